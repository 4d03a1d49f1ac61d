//! `ollmctl tour`: shows what the daemon does, with a real conversation in a temporary home.
//!
//! **Invariants**: every claim that the tour prints is checked in the same run, and a failed check ends it with an error;
//! however it ends, also by a signal, its daemon is stopped and its home removed.

mod chat;
mod crash;
mod home;
mod report;
mod undo;

use std::time::Instant;

use clap::Args;
use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactStrategy, ExportFormat, SearchSort, Session};
use ollm_protocol::method::{
    ContextBuild, ContextCompact, DaemonStatus, SessionExport, SessionGet, SessionImport,
    SessionSearch, SessionUpdate,
};
use ollm_protocol::methods::context::{ContextBuildParams, ContextCompactParams};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::session::{
    BranchFilter, SessionExportParams, SessionGetParams, SessionImportParams, SessionSearchParams,
    SessionUpdateParams,
};
use ollm_protocol::sanitize::one_line;
use serde_json::json;

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::BlockingClient;
use crate::error::ClientError;
use crate::render::units::grouped;
use home::TourHome;
use report::{StepReport, TourReport, check};

/// A part of a real coding session; its source and license are beside the file.
const REAL_SESSION: &str = include_str!("../../../../tests/fixtures/import/pi-mono-session.jsonl");
/// The context window in tokens: that of a small local model.
const WINDOW_TOKENS: u32 = 4096;
/// A name that occurs in the conversation.
const SEARCHED_WORD: &str = "AgentSession";

/// Show in seconds what the daemon does, in a temporary home that is removed afterwards.
#[derive(Debug, Args)]
#[command(after_help = "\
Imports a real session, records more, kills the daemon while it writes and shows that no acknowledged record is \
missing, builds and compacts a context, undoes that and redoes it, restores a snapshot, forks the session, searches, \
exports, lets the smallest model of a reachable model server answer, and cleans up, also after Ctrl-C. Your own sessions are \
not touched.

Examples:
  ollmctl tour
  ollmctl tour --json")]
pub(crate) struct TourArgs {}

pub(super) fn run(ctx: &mut CommandContext<'_>) -> CommandResult {
    let started = Instant::now();
    let mut home = TourHome::new(ctx.environment, chat::configured_model_server(ctx))?;
    let mut report = TourReport::new(ctx);
    if let Err(error) = run_steps(&mut home, &mut report) {
        // A signal kills the daemon, and then any step may fail.
        let error = if home.is_interrupted() { CommandError::Interrupted } else { error };
        home.discard()?;
        return Err(error);
    }
    let (steps, seconds) = (report.into_steps(), started.elapsed().as_secs_f64());
    if ctx.json() {
        return ctx.print_json(&json!({ "steps": steps, "seconds": seconds }));
    }
    ctx.print_text(&format!(
        "\nEvery check passed, in {seconds:.1} s. Your own sessions were not touched.\nNext: ollmctl chat\n"
    ))
}

fn run_steps(home: &mut TourHome, report: &mut TourReport<'_, '_>) -> CommandResult {
    let mut client = home.connect()?;
    report.step("start", start(&mut client)?)?;
    let (id, imported) = import(&mut client)?;
    report.step("import", imported)?;
    drop(client);
    let crash = crash::record_and_kill(home)?;
    report.step("record", crash.report())?;
    let (mut client, recovered) = crash.recover(home)?;
    report.step("recover", recovered)?;
    report.step("context", build(&mut client, id)?)?;
    report.step("compact", compact(&mut client, id)?)?;
    report.step("undo", undo::undo(&mut client, id)?)?;
    report.step("snapshot", undo::snapshot(&mut client, id)?)?;
    report.step("fork", undo::fork(&mut client, id)?)?;
    report.step("search", search(&mut client, id)?)?;
    report.step("export", export(&mut client, id)?)?;
    drop(client);
    report.step("chat", chat::chat(home)?)?;
    home.shut_down_and_remove()?;
    report.step("clean up", ("daemon stopped, temporary home removed".to_owned(), json!({})))
}

fn start(client: &mut BlockingClient) -> CommandResult<StepReport> {
    let status = client.call::<DaemonStatus>(&NoParams {})?;
    let memory = status.memory_bytes.unwrap_or_default() as f64 / (1024.0 * 1024.0);
    let path = one_line(&status.home.to_string_lossy());
    let text = format!("a private daemon in {path}: process {}, {memory:.1} MiB", status.pid);
    Ok((text, json!({ "pid": status.pid, "memoryBytes": status.memory_bytes })))
}

fn import(client: &mut BlockingClient) -> CommandResult<(SessionId, StepReport)> {
    let result = client.call::<SessionImport>(&SessionImportParams {
        upload_id: None,
        data: REAL_SESSION.to_owned(),
        last: true,
        project_path: None,
        dry_run: false,
    })?;
    let (Some(session), Some(imported)) = (result.session, result.report) else {
        let failure = "the import returned no session".to_owned();
        return Err(CommandError::Tour { failure });
    };
    let text = format!(
        "a real coding session ({}): {} messages, {} tool calls, {} tokens\n\"{}\"",
        one_line(&imported.format),
        session.message_count,
        session.tool_call_count,
        grouped(session.token_count),
        one_line(&session.title),
    );
    let numbers = json!({
        "messages": session.message_count,
        "toolCalls": session.tool_call_count,
        "tokens": session.token_count,
        "losses": imported.losses.len(),
    });
    Ok((session.session_id, (text, numbers)))
}

fn build(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let built = client.call::<ContextBuild>(&ContextBuildParams {
        context_size: Some(WINDOW_TOKENS),
        ..ContextBuildParams::new(id)
    })?;
    let token_count = session(client, id)?.token_count;
    let (used, limit) = (built.context_tokens, built.prompt_limit);
    check(used <= limit, "the context is larger than its limit")?;
    let text = format!(
        "for a window of {} tokens: {} of {} messages, {} of {} tokens,\nfrom a conversation of {}; {} entries list the omitted parts with reasons",
        grouped(u64::from(WINDOW_TOKENS)),
        built.included_message_count,
        grouped(built.original_message_count),
        grouped(used),
        grouped(limit),
        grouped(token_count),
        built.omitted.len(),
    );
    let numbers = json!({
        "contextSize": WINDOW_TOKENS,
        "contextTokens": used,
        "promptLimit": limit,
        "tokenCount": token_count,
        "omitted": built.omitted.len(),
    });
    Ok((text, numbers))
}

/// Compacts the conversation, without a model because that is fast.
fn compact(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    client.call::<SessionUpdate>(&SessionUpdateParams {
        context_size: Some(WINDOW_TOKENS),
        ..SessionUpdateParams::new(id)
    })?;
    let done = client.call::<ContextCompact>(&ContextCompactParams {
        strategy: Some(CompactStrategy::Truncate),
        ..ContextCompactParams::new(id)
    })?;
    let built = client.call::<ContextBuild>(&ContextBuildParams::new(id))?;
    let messages = session(client, id)?.message_count;
    let is_shorter = done.compacted && done.tokens_after < done.tokens_before;
    check(is_shorter, "the context is not shorter after a compaction")?;
    let fits = built.context_tokens <= built.prompt_limit && !built.transient;
    check(fits, "the context does not fit after a compaction")?;
    let is_complete = messages >= built.original_message_count;
    check(is_complete, "messages are missing from the log after a compaction")?;
    let text = format!(
        "{} tokens before, {} after; the log keeps all {} messages,\nand {} entries list the omitted parts",
        grouped(done.tokens_before),
        grouped(done.tokens_after),
        grouped(messages),
        built.omitted.len(),
    );
    let numbers = json!({
        "tokensBefore": done.tokens_before, "tokensAfter": done.tokens_after,
        "messages": messages, "omitted": built.omitted.len(),
    });
    Ok((text, numbers))
}

fn search(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let params = SessionSearchParams {
        query: SEARCHED_WORD.to_owned(),
        session_id: Some(id),
        project_path: None,
        role: None,
        since: None,
        until: None,
        sort: SearchSort::Newest,
        limit: Some(100),
        cursor: None,
    };
    home::wait_until_indexed(client)?;
    let started = Instant::now();
    let hits = client.call::<SessionSearch>(&params)?.data;
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    check(!hits.is_empty(), "a word of the conversation is not found")?;
    let snippet: String = one_line(&hits[0].snippet).chars().take(60).collect();
    let text = format!(
        "\"{SEARCHED_WORD}\": {} hits in {ms:.1} ms; the newest is {} #{}\n\"{snippet}\"",
        hits.len(),
        hits[0].role.as_str(),
        hits[0].seq,
    );
    Ok((text, json!({ "hits": hits.len(), "ms": ms })))
}

fn export(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let format = ExportFormat::Markdown;
    let mut params = SessionExportParams { session_id: id, format, branch: None, cursor: None };
    let mut markdown = String::new();
    loop {
        let chunk = client.call::<SessionExport>(&params)?;
        markdown.push_str(&chunk.data);
        params.cursor = chunk.next_cursor;
        if params.cursor.is_none() {
            break;
        }
    }
    let (bytes, lines) = (markdown.len() as u64, markdown.lines().count() as u64);
    let text = format!("as Markdown: {} KiB, {} lines", grouped(bytes / 1024), grouped(lines));
    Ok((text, json!({ "bytes": bytes, "lines": lines })))
}

fn session(client: &mut BlockingClient, id: SessionId) -> Result<Session, ClientError> {
    let branch = BranchFilter::All;
    let params = SessionGetParams { session_id: id, from: None, limit: Some(1), branch };
    Ok(client.call::<SessionGet>(&params)?.session)
}
