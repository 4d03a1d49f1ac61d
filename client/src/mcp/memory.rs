//! The tools for what is remembered, and for the state of a session: `facts`, `remember` and `context`.

use std::sync::Arc;

use ollm_protocol::content::{ContextScope, GoalStatus, Role};
use ollm_protocol::method::{
    ContextAddEntry, ContextCheckpoints, ContextFacts, ContextListEntries, GoalList, SessionGet,
    SessionList,
};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextFactsParams, ContextListEntriesParams, ContextSource,
};
use ollm_protocol::methods::goal::GoalListParams;
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionIdParams, SessionListParams,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::ToolAnswer;
use super::history::{block_of, reference, short};
use super::link::DaemonLink;
use super::quotation::{Block, DEFAULT_TOKENS, Draft, minute};
use super::scope::ClientScope;
use super::tools::{ContextParams, FactsParams, MemoryScope, RememberParams};
use crate::command_error::{CommandError, CommandResult};
use crate::commands::remember::key_of;

/// The number of recent sessions whose facts are listed. Each may have to be read from the disk.
const SESSIONS_WITH_FACTS: u32 = 12;
/// The facts of each session, the newest first.
const FACTS_OF_SESSION: u32 = 100;
/// The records in which the last request and its answer are looked for.
const LAST_RECORDS: u32 = 40;
/// The longest text that can be remembered, in bytes. It is in every later prompt.
const REMEMBERED_BYTES: usize = 4096;

/// The outcome of `remember`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remembered {
    /// The key of the text, by which the user can remove it.
    key: String,
    /// Whether it is new; false if the same text was remembered already.
    changed: bool,
    /// The tokens of all texts that are remembered for these sessions.
    tokens: u64,
    /// The most tokens that they may have.
    token_limit: u64,
}

/// Lists what is remembered, and the facts of recent sessions.
pub(super) async fn facts(
    link: &DaemonLink,
    scope: &ClientScope,
    params: FactsParams,
) -> CommandResult<ToolAnswer> {
    let project = match params.scope {
        MemoryScope::Global => None,
        MemoryScope::Project => scope.project(None)?,
    };
    if let Some(path) = &project
        && !link.may_show_project(path.clone()).await?
    {
        let message =
            "only some model servers may get the texts of this project, so no other program does";
        return Err(CommandError::usage(message, "ollmctl sessions servers --project ."));
    }
    let listed = ContextListEntriesParams { session_id: None, project_path: project.clone() };
    let entries = link.call::<ContextListEntries>(&listed).await?.data;
    let mut blocks: Vec<Block> = entries
        .into_iter()
        .map(|entry| {
            let place = match entry.scope {
                ContextScope::Global => "remembered for all sessions",
                ContextScope::Project => "remembered for this project",
                ContextScope::Session => "remembered in a session",
            };
            Block::new(entry.key, place.to_owned(), entry.content, 0)
        })
        .collect();
    if project.is_some() {
        blocks.extend(stated(link, project).await?);
    }
    let words = words_of(params.query.as_deref().unwrap_or_default());
    let mut ranked: Vec<(usize, Block)> = blocks
        .into_iter()
        .map(|block| (n_words_in(&words, &block.text), block))
        .filter(|(found, _)| words.is_empty() || *found > 0)
        .collect();
    ranked.sort_by_key(|(found, _)| std::cmp::Reverse(*found));
    let blocks: Vec<Block> =
        ranked.into_iter().enumerate().map(|(rank, (_, block))| Block { rank, ..block }).collect();
    let remark = blocks.is_empty().then(|| "Nothing like that is remembered.".to_owned());
    Draft { blocks, remark, next_cursor: None }.fit(link, DEFAULT_TOKENS).await
}

/// Returns the facts that the user stated in recent sessions of a project, the newest session first.
async fn stated(link: &DaemonLink, project_path: Option<String>) -> CommandResult<Vec<Block>> {
    let limit = Some(SESSIONS_WITH_FACTS);
    let recent = SessionListParams { project_path, limit, ..SessionListParams::default() };
    let mut blocks: Vec<Block> = Vec::new();
    for session in link.call::<SessionList>(&recent).await?.data {
        let id = session.session_id;
        if !session.allowed_servers.is_empty() {
            continue;
        }
        let asked = ContextFactsParams {
            session_id: id,
            include_forgotten: false,
            limit: Some(FACTS_OF_SESSION),
            cursor: None,
        };
        for fact in link.call::<ContextFacts>(&asked).await?.data {
            // What is remembered is listed already.
            if fact.entry_key.is_some() || blocks.iter().any(|known| known.text == fact.text) {
                continue;
            }
            let reference = reference(session.short_id.as_deref(), id, fact.seq);
            blocks.push(Block::new(
                reference,
                format!("stated, {}", minute(fact.at)),
                fact.text,
                0,
            ));
        }
    }
    Ok(blocks)
}

fn words_of(query: &str) -> Vec<String> {
    let words = query.split(|char: char| !char.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn n_words_in(words: &[String], text: &str) -> usize {
    let text = text.to_lowercase();
    words.iter().filter(|word| text.contains(word.as_str())).count()
}

/// Remembers a text for the project or for all sessions.
pub(super) async fn remember(
    link: &DaemonLink,
    scope: &ClientScope,
    params: RememberParams,
) -> CommandResult<ToolAnswer> {
    let text = params.text.trim();
    if text.is_empty() || text.len() > REMEMBERED_BYTES {
        let message = format!("the text must have 1 to {REMEMBERED_BYTES} bytes");
        return Err(CommandError::usage(message, ""));
    }
    let (project_path, wire_scope) = match params.scope {
        MemoryScope::Global => (None, Some(ContextScope::Global)),
        MemoryScope::Project => (scope.project(None)?, None),
    };
    if project_path.is_none() && wire_scope.is_none() {
        let message = "the client works in no project: use scope \"global\"";
        return Err(CommandError::usage(message, ""));
    }
    let entry = ContextAddEntryParams {
        session_id: None,
        project_path,
        scope: wire_scope,
        key: key_of(text),
        content: text.to_owned(),
        priority: None,
        source: Some(ContextSource::Extension),
    };
    let added = link.call::<ContextAddEntry>(&entry).await?;
    let outcome = if added.changed { "Remembered." } else { "This was remembered already." };
    let (tokens, token_limit) = (added.tokens, added.token_limit);
    let answer = format!("{outcome} {tokens} of at most {token_limit} tokens are used.");
    let structured =
        Remembered { key: added.entry.key, changed: added.changed, tokens, token_limit };
    Ok(ToolAnswer::new(answer, &structured))
}

/// Shows the state of a session.
pub(super) async fn context(
    link: &Arc<DaemonLink>,
    params: ContextParams,
) -> CommandResult<ToolAnswer> {
    let id = link.session(params.session.split('#').next().unwrap_or_default()).await?;
    let last = SessionGetParams {
        session_id: id,
        from: Some(-i64::from(LAST_RECORDS)),
        limit: Some(LAST_RECORDS),
        branch: BranchFilter::Active,
    };
    let page = link.call::<SessionGet>(&last).await?;
    let session = page.session;
    link.require_shown(&session).await?;
    let name = short(session.short_id.as_deref(), id);
    let mut blocks = Vec::new();
    let project = session.project_path.as_deref().unwrap_or("no project");
    let model = session.model.as_deref().unwrap_or("no model");
    let (n, at) = (session.message_count, minute(session.last_activity));
    let title = format!("{}\n{n} messages, {project}, {model}, last active {at}", session.title);
    blocks.push(Block::new(name.clone(), "session".to_owned(), title, 0));
    let goals = GoalListParams {
        session_id: id,
        status: Some(GoalStatus::Active),
        limit: Some(5),
        cursor: None,
    };
    for goal in link.call::<GoalList>(&goals).await?.data {
        let steps = goal.next_steps.iter().map(|step| format!("\n- next: {step}"));
        let text = format!("{}{}", goal.description, steps.collect::<String>());
        blocks.push(Block::new(name.clone(), "active goal".to_owned(), text, 1));
    }
    let notes = link.call::<ContextCheckpoints>(&SessionIdParams { session_id: id }).await?;
    for checkpoint in notes.checkpoints {
        let place = format!("notes on messages {} to {}", checkpoint.from.0, checkpoint.to.0);
        let reference = reference(session.short_id.as_deref(), id, checkpoint.from);
        blocks.push(Block::new(reference, place, checkpoint.summary, 4));
    }
    let last_of = |role: Role| {
        let is_of = |message: &ollm_protocol::content::Message| message.role == role;
        page.records.iter().rev().find(|record| record.message.as_ref().is_some_and(is_of)).cloned()
    };
    let spoken = [(last_of(Role::User), 2), (last_of(Role::Assistant), 3)];
    let mut spoken: Vec<_> =
        spoken.into_iter().filter_map(|(record, rank)| Some((record?, rank))).collect();
    spoken.sort_by_key(|(record, _)| record.seq);
    for (record, rank) in spoken {
        if let Some(block) = block_of(link, id, &session, record).await? {
            blocks.push(Block { rank, ..block });
        }
    }
    Draft { blocks, ..Draft::default() }.fit(link, DEFAULT_TOKENS).await
}
