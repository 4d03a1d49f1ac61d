//! `ollmctl tour`: what the daemon does, shown on a real conversation in a scratch home.
//!
//! Owns the steps and their numbers. Every claim that it prints is checked in the same run: a step that does not
//! hold ends the tour with an error and a failing exit code. However it ends, by a signal too, its daemon is
//! stopped and its home removed.

mod chat;
mod compact;
mod crash;
mod interrupt;
mod scratch;

use std::time::Instant;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ExportFormat, SearchSort};
use ollm_protocol::method::{
    ContextBuild, DaemonStatus, SessionExport, SessionImport, SessionSearch,
};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::session::{
    SessionExportParams, SessionImportParams, SessionSearchParams,
};
use ollm_protocol::sanitize;
use serde_json::{Value, json};

use super::{CommandError, Cx};
use crate::connection::BlockingClient;
use crate::render::number::grouped;
use interrupt::Interrupt;
use scratch::Scratch;

/// A part of a real coding session; source and licence stand beside the file.
const REAL_SESSION: &str = include_str!("../../../../tests/fixtures/import/pi-mono-session.jsonl");
/// The window for which a context is built, in tokens: a small local model.
const WINDOW: u32 = 4096;
/// A name that the conversation contains.
const WORD: &str = "AgentSession";

/// The steps so far, as they are printed.
struct Steps<'a, 'cx> {
    cx: &'a mut Cx<'cx>,
    began: Instant,
    told: Vec<Value>,
}

impl Steps<'_, '_> {
    /// Prints a step with the time it took and its numbers, at once: somebody is watching.
    fn tell(&mut self, name: &str, text: &str, numbers: Value) -> Result<(), CommandError> {
        let took = self.began.elapsed();
        self.began = Instant::now();
        let number = self.told.len() + 1;
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.told.push(json!({ "step": name, "ms": ms, "numbers": numbers }));
        if self.cx.json() {
            return Ok(());
        }
        let seconds = took.as_secs_f64();
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let mut shown = format!("{number}. {name:<8} {seconds:>6.2} s  {first}\n");
        for line in lines {
            shown.push_str(&format!("{:22}{line}\n", ""));
        }
        self.cx.print_text(&shown)?;
        self.cx.terminal.flush().map_err(CommandError::Output)
    }
}

pub(super) fn run(cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let began = Instant::now();
    let mut scratch = Scratch::new(cx.environment, chat::configured_host(cx))?;
    let interrupt = Interrupt::watch(scratch.daemon())?;
    let mut steps = Steps { cx, began, told: Vec::new() };
    if let Err(error) = take(&mut scratch, &mut steps) {
        // A signal takes the daemon away, and whatever was going on fails; that is not what went wrong.
        let error = if interrupt.came() { CommandError::Interrupted } else { error };
        scratch.discard()?;
        return Err(error);
    }
    let total = began.elapsed().as_secs_f64();
    let Steps { cx, told, .. } = steps;
    if cx.json() {
        return cx.print_json(&json!({ "steps": told, "seconds": total }));
    }
    cx.print_text(&format!(
        "\nAll of it held, in {total:.1} s. Your own sessions were not touched.\nNext: ollmctl chat\n"
    ))
}

fn take(scratch: &mut Scratch, steps: &mut Steps<'_, '_>) -> Result<(), CommandError> {
    let mut client = start(scratch, steps)?;
    let id = import(&mut client, steps)?;
    drop(client);
    let mut client = crash::run(scratch, steps)?;
    build(&mut client, id, steps)?;
    compact::run(&mut client, id, steps)?;
    search(&mut client, id, steps)?;
    export(&mut client, id, steps)?;
    drop(client);
    chat::run(scratch, steps)?;
    clean_up(scratch, steps)
}

fn start(scratch: &mut Scratch, steps: &mut Steps<'_, '_>) -> Result<BlockingClient, CommandError> {
    let mut client = scratch.connect()?;
    let status = client.call::<DaemonStatus>(&NoParams {})?;
    let memory = status.memory_bytes.unwrap_or_default() as f64 / (1024.0 * 1024.0);
    let home = sanitize::one_line(&status.home.to_string_lossy());
    let text = format!("a private daemon in {home}: process {}, {memory:.1} MiB", status.pid);
    steps.tell("start", &text, json!({ "pid": status.pid, "memoryBytes": status.memory_bytes }))?;
    Ok(client)
}

fn import(
    client: &mut BlockingClient,
    steps: &mut Steps<'_, '_>,
) -> Result<SessionId, CommandError> {
    let result = client.call::<SessionImport>(&SessionImportParams {
        upload_id: None,
        data: REAL_SESSION.to_owned(),
        last: true,
        project_path: None,
        dry_run: false,
    })?;
    let (Some(session), Some(report)) = (result.session, result.report) else {
        return Err(broken("the import answered without a session"));
    };
    let text = format!(
        "a real coding session ({}): {} messages, {} tool calls, {} tokens\n\"{}\"",
        sanitize::one_line(&report.format),
        session.message_count,
        session.tool_call_count,
        grouped(session.token_count),
        sanitize::one_line(&session.title),
    );
    let numbers = json!({
        "messages": session.message_count,
        "toolCalls": session.tool_call_count,
        "tokens": session.token_count,
        "losses": report.losses.len(),
    });
    steps.tell("import", &text, numbers)?;
    Ok(session.session_id)
}

fn build(
    client: &mut BlockingClient,
    id: SessionId,
    steps: &mut Steps<'_, '_>,
) -> Result<(), CommandError> {
    let built = client.call::<ContextBuild>(&ContextBuildParams {
        context_size: Some(WINDOW),
        ..ContextBuildParams::new(id)
    })?;
    let whole = client.call::<ollm_protocol::method::SessionGet>(&scratch::first_page(id))?;
    let (used, limit) = (built.tokens_used, built.token_budget);
    if used > limit {
        return Err(broken("the context is larger than its limit"));
    }
    let text = format!(
        "for a window of {} tokens: {} of {} messages, {} of {} tokens\nfrom a conversation of {}; {} entries say what was left out, and why",
        grouped(u64::from(WINDOW)),
        built.included_message_count,
        grouped(built.original_message_count),
        grouped(used),
        grouped(limit),
        grouped(whole.session.token_count),
        built.omitted.len(),
    );
    let numbers = json!({
        "window": WINDOW,
        "tokensUsed": used,
        "promptLimit": limit,
        "conversationTokens": whole.session.token_count,
        "omitted": built.omitted.len(),
    });
    steps.tell("context", &text, numbers)
}

fn search(
    client: &mut BlockingClient,
    id: SessionId,
    steps: &mut Steps<'_, '_>,
) -> Result<(), CommandError> {
    let params = SessionSearchParams {
        query: WORD.to_owned(),
        session_id: Some(id),
        project_path: None,
        role: None,
        since: None,
        until: None,
        sort: SearchSort::Newest,
        limit: Some(100),
        cursor: None,
    };
    scratch::wait_until_indexed(client)?;
    let asked = Instant::now();
    let found = client.call::<SessionSearch>(&params)?;
    let took_ms = asked.elapsed().as_secs_f64() * 1000.0;
    let Some(hit) = found.data.first() else {
        return Err(broken("a word of the conversation is not found"));
    };
    let text = format!(
        "\"{WORD}\": {} hits in {took_ms:.1} ms; the newest is {} #{}\n\"{}\"",
        found.data.len(),
        hit.role.as_str(),
        hit.seq,
        sanitize::one_line(&hit.snippet).chars().take(60).collect::<String>(),
    );
    steps.tell("search", &text, json!({ "hits": found.data.len(), "ms": took_ms }))
}

fn export(
    client: &mut BlockingClient,
    id: SessionId,
    steps: &mut Steps<'_, '_>,
) -> Result<(), CommandError> {
    let mut markdown = String::new();
    let mut cursor = None;
    loop {
        let params = SessionExportParams { session_id: id, format: ExportFormat::Markdown, cursor };
        let chunk = client.call::<SessionExport>(&params)?;
        markdown.push_str(&chunk.data);
        cursor = chunk.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let (bytes, lines) = (markdown.len() as u64, markdown.lines().count() as u64);
    let text = format!("as Markdown: {} KiB, {} lines", grouped(bytes / 1024), grouped(lines));
    steps.tell("export", &text, json!({ "bytes": bytes, "lines": lines }))
}

fn clean_up(scratch: &Scratch, steps: &mut Steps<'_, '_>) -> Result<(), CommandError> {
    scratch.remove()?;
    if scratch.home().exists() {
        return Err(broken("the scratch home is still there"));
    }
    steps.tell("clean up", "daemon stopped, scratch home removed", json!({}))
}

/// A claim of the tour that does not hold.
fn broken(what: &str) -> CommandError {
    CommandError::Tour { claim: what.to_owned() }
}
