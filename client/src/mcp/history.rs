//! The tools that read sessions: `recall`, `read`, `sessions` and `blame`.

use std::sync::Arc;

use ollm_protocol::content::{Part, RecallHit, Record, RecordBody, RecordKind, Session};
use ollm_protocol::method::{ContextRecall, SessionBlame, SessionGet, SessionList};
use ollm_protocol::methods::context::ContextRecallParams;
use ollm_protocol::methods::session::files::{BlamedTurn, SessionBlameParams, TouchKind};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams, SessionListParams};
use ollm_protocol::{Seq, SessionId};
use serde_json::Value;

use super::ToolAnswer;
use super::link::DaemonLink;
use super::quotation::{Block, DEFAULT_TOKENS, Draft, minute};
use super::scope::ClientScope;
use super::tools::{BlameParams, ReadParams, RecallParams, SessionsParams};
use crate::args::given_time;
use crate::command_error::{CommandError, CommandResult};
use crate::render::units::DayBoundary;

/// The most excerpts of `recall` and sessions of `sessions`.
const MAX_EXCERPTS: u32 = 20;
/// The most neighbors of `read` on each side.
const MAX_NEIGHBORS: u32 = 50;
/// The characters of a title in a list: a page fits into its tokens, because the cursor goes on behind the whole page.
const TITLE_CHARS: usize = 80;
/// The excerpts before a prompt, their tokens together, and the words that each shares with the prompt.
const EXCERPTS_OF_PROMPT: usize = 3;
const TOKENS_OF_PROMPT: u64 = 800;
const WORDS_OF_PROMPT: usize = 2;
/// The turns of `blame`.
const BLAMED_TURNS: u32 = 15;
/// The limits of `maxTokens`.
const TOKENS: std::ops::RangeInclusive<u64> = 200..=20_000;
/// The records that are read for each neighbor that is wanted: others, such as snapshots, stand between them.
const RECORDS_PER_NEIGHBOR: i64 = 6;
/// The largest record that is fetched whole, in bytes of JSON. Larger ones are mostly data.
const MAX_RECORD_BYTES: u64 = 4 << 20;
/// The longest arguments of a tool call that are shown, in bytes.
const ARGS_BYTES: usize = 2048;

/// Finds messages that answer a question.
pub(super) async fn recall(
    link: &DaemonLink,
    scope: &ClientScope,
    params: RecallParams,
) -> CommandResult<ToolAnswer> {
    let project = scope.project(params.project.as_deref())?;
    let time = |text: &Option<String>, boundary| {
        text.as_deref().map(|text| given_time(text, boundary)).transpose()
    };
    let asked = ContextRecallParams {
        query: params.query,
        project_path: project.clone(),
        since: time(&params.since, DayBoundary::Start)?,
        until: time(&params.until, DayBoundary::End)?,
        limit: Some(params.limit.clamp(1, MAX_EXCERPTS)),
        unrestricted: true,
        ..ContextRecallParams::default()
    };
    let found = link.call::<ContextRecall>(&asked).await?;
    let blocks: Vec<Block> = found.data.into_iter().enumerate().map(excerpt_block).collect();
    let remark = match (blocks.is_empty(), &project) {
        (false, _) => None,
        (true, Some(_)) => Some(
            "Nothing was found in this project. Try other words, or project \"all\".".to_owned(),
        ),
        (true, None) => Some("Nothing was found. Try other words.".to_owned()),
    };
    Draft { blocks, remark, next_cursor: None }.fit(link, DEFAULT_TOKENS).await
}

/// Returns a quotation of what earlier sessions of a project say about a prompt, without those of the session `own`; `None` if
/// nothing has two words of it.
pub(crate) async fn recall_before_prompt(
    link: &DaemonLink,
    project_path: Option<String>,
    query: String,
    own: Option<SessionId>,
) -> CommandResult<Option<String>> {
    let limit = Some(MAX_EXCERPTS);
    let asked = ContextRecallParams {
        query,
        project_path,
        limit,
        unrestricted: true,
        ..Default::default()
    };
    let found = link.call::<ContextRecall>(&asked).await?.data.into_iter();
    let others =
        found.filter(|hit| Some(hit.session_id) != own && hit.matched.len() >= WORDS_OF_PROMPT);
    let blocks: Vec<Block> =
        others.take(EXCERPTS_OF_PROMPT).enumerate().map(excerpt_block).collect();
    if blocks.is_empty() {
        return Ok(None);
    }
    Ok(Some(Draft { blocks, ..Draft::default() }.fit_text(link, TOKENS_OF_PROMPT).await?))
}

fn excerpt_block((rank, hit): (usize, RecallHit)) -> Block {
    let reference = reference(hit.short_id.as_deref(), hit.session_id, hit.seq);
    let branch = if hit.other_branch { ", on a branch that was left" } else { "" };
    let (role, at) = (hit.role.as_str(), minute(hit.at));
    let place = format!("{role}, {at}, in {:?}{branch}", hit.title);
    Block::new(reference, place, hit.excerpt, rank)
}

/// Reads a record with its neighbors.
pub(super) async fn read(link: &Arc<DaemonLink>, params: ReadParams) -> CommandResult<ToolAnswer> {
    let wanted = ReadReference::parse(&params.reference)?;
    let id = link.session(wanted.session).await?;
    let (before, after) = (params.before.min(MAX_NEIGHBORS), params.after.min(MAX_NEIGHBORS));
    let seq = i64::try_from(wanted.seq.0).unwrap_or(i64::MAX);
    let first = (seq - (i64::from(before) + 1) * RECORDS_PER_NEIGHBOR).max(0);
    let last = seq.saturating_add((i64::from(after) + 1) * RECORDS_PER_NEIGHBOR);
    let limit = u32::try_from(last - first).unwrap_or(1000).clamp(1, 1000);
    let page = SessionGetParams {
        session_id: id,
        from: Some(first),
        limit: Some(limit),
        branch: BranchFilter::All,
    };
    let mut page = link.call::<SessionGet>(&page).await?;
    link.require_shown(&page.session).await?;
    let missing = || {
        let message = format!("session {} has no message {}", wanted.session, wanted.seq.0);
        CommandError::not_found(message, "")
    };
    let Some(target) = page.records.iter().position(|record| record.seq == wanted.seq) else {
        // A page also ends at its size, before the record if large ones precede it.
        let alone = SessionGetParams {
            session_id: id,
            from: Some(seq),
            limit: Some(1),
            branch: BranchFilter::All,
        };
        page = link.call::<SessionGet>(&alone).await?;
        let Some(record) = page.records.pop().filter(|record| record.seq == wanted.seq) else {
            return Err(missing());
        };
        let block = block_of(link, id, &page.session, record).await?.ok_or_else(missing)?;
        let blocks = vec![block.without_first(wanted.offset)];
        return Draft { blocks, ..Draft::default() }.fit(link, clamp(params.max_tokens)).await;
    };
    let active = page.records[target].active;
    let is_neighbor = |record: &Record| record.active == active && is_spoken(record.kind);
    let mut later = page.records.split_off(target);
    let record = later.remove(0);
    let mut blocks = Vec::new();
    // The message counts most, then what is near it: the answer before the question.
    let earlier = page.records.drain(..).rev().filter(is_neighbor).take(before as usize);
    for (distance, record) in earlier.enumerate() {
        if let Some(block) = block_of(link, id, &page.session, record).await? {
            blocks.push(Block { rank: 2 * distance + 2, ..block });
        }
    }
    blocks.reverse();
    let target = block_of(link, id, &page.session, record).await?.ok_or_else(missing)?;
    blocks.push(Block { rank: 0, ..target.without_first(wanted.offset) });
    for (distance, record) in later.into_iter().filter(is_neighbor).take(after as usize).enumerate()
    {
        if let Some(block) = block_of(link, id, &page.session, record).await? {
            blocks.push(Block { rank: 2 * distance + 1, ..block });
        }
    }
    Draft { blocks, ..Draft::default() }.fit(link, clamp(params.max_tokens)).await
}

fn clamp(tokens: u64) -> u64 {
    tokens.clamp(*TOKENS.start(), *TOKENS.end())
}

/// Lists sessions.
pub(super) async fn sessions(
    link: &DaemonLink,
    scope: &ClientScope,
    params: SessionsParams,
) -> CommandResult<ToolAnswer> {
    let listed = SessionListParams {
        project_path: scope.project(params.project.as_deref())?,
        title: params.query,
        limit: Some(params.limit.clamp(1, MAX_EXCERPTS)),
        cursor: params.cursor,
        ..SessionListParams::default()
    };
    let page = link.call::<SessionList>(&listed).await?;
    let mut blocks = Vec::new();
    for session in page.data {
        if !link.may_show(&session).await? {
            continue;
        }
        let reference = short(session.short_id.as_deref(), session.session_id);
        let project = session.project_name.map_or(String::new(), |name| format!(", {name}"));
        let (at, n) = (minute(session.last_activity), session.message_count);
        let place = format!("{at}, {n} messages{project}");
        let title = session.title.chars().take(TITLE_CHARS).collect();
        blocks.push(Block::new(reference, place, title, blocks.len()));
    }
    let remark = blocks.is_empty().then(|| "There are no such sessions.".to_owned());
    Draft { blocks, remark, next_cursor: page.next_cursor }.fit(link, DEFAULT_TOKENS).await
}

/// Finds the turns that used a file: in the project, else in all sessions.
pub(super) async fn blame(
    link: &DaemonLink,
    scope: &ClientScope,
    params: BlameParams,
) -> CommandResult<ToolAnswer> {
    let project = scope.project(None)?;
    let mut asked = SessionBlameParams {
        path: params.path,
        project_path: project,
        limit: Some(BLAMED_TURNS),
        unrestricted: true,
        cursor: None,
    };
    let mut found = link.call::<SessionBlame>(&asked).await?;
    if found.data.is_empty() && found.next_cursor.is_none() && asked.project_path.take().is_some() {
        found = link.call::<SessionBlame>(&asked).await?;
    }
    let blocks: Vec<Block> = found.data.into_iter().enumerate().map(blamed_block).collect();
    let remark = if blocks.is_empty() {
        Some("No recorded conversation read or changed this file.".to_owned())
    } else {
        found.next_cursor.is_some().then(|| "There are older ones.".to_owned())
    };
    Draft { blocks, remark, next_cursor: None }.fit(link, DEFAULT_TOKENS).await
}

fn blamed_block((rank, turn): (usize, BlamedTurn)) -> Block {
    let verb = match turn.touch {
        TouchKind::Changed => "changed",
        TouchKind::Read => "read",
    };
    let reference = reference(turn.short_id.as_deref(), turn.session_id, turn.seq);
    let (tool, at) = (turn.tool, minute(turn.at));
    let place = format!("{verb} by {tool}, {at}, in {:?}, for the request:", turn.title);
    let text =
        turn.request.map_or_else(|| "(no request is recorded)".to_owned(), |request| request.text);
    Block::new(reference, place, text, rank)
}

/// A reference of `read`: `SESSION#NUMBER`, and `@BYTES` to go on within a record that was cut.
struct ReadReference<'a> {
    session: &'a str,
    seq: Seq,
    offset: usize,
}

impl<'a> ReadReference<'a> {
    fn parse(text: &'a str) -> CommandResult<Self> {
        let parse = || {
            let (session, rest) = text.trim().split_once('#')?;
            let (seq, offset) = rest.split_once('@').unwrap_or((rest, "0"));
            Some(Self { session, seq: Seq(seq.parse().ok()?), offset: offset.parse().ok()? })
        };
        parse().ok_or_else(|| {
            let message =
                format!("{text:?} is not a reference such as 9f04#12; `recall` returns them");
            CommandError::usage(message, "")
        })
    }
}

impl Block {
    /// Returns the block without the first bytes of its text.
    fn without_first(mut self, offset: usize) -> Self {
        let from = (offset.min(self.text.len())..=self.text.len())
            .find(|at| self.text.is_char_boundary(*at));
        self.offset = from.unwrap_or_default();
        self.text = self.text.split_off(self.offset);
        self
    }
}

/// Returns whether records of a kind are parts of a conversation.
fn is_spoken(kind: RecordKind) -> bool {
    matches!(kind, RecordKind::Message | RecordKind::ToolCall)
}

/// Returns a record as a quotation; `None` if it says nothing.
pub(super) async fn block_of(
    link: &DaemonLink,
    id: SessionId,
    session: &Session,
    record: Record,
) -> CommandResult<Option<Block>> {
    let (seq, at, size) = (record.seq, record.at, record.size_bytes);
    let (label, text) = if size.is_some_and(|bytes| bytes > MAX_RECORD_BYTES) {
        ("record".to_owned(), format!("({} bytes, which are not shown)", size.unwrap_or_default()))
    } else {
        match record_text(link.whole_record(id, record).await?) {
            Some(found) => found,
            None => return Ok(None),
        }
    };
    let place = format!("{label}, {}, in {:?}", minute(at), session.title);
    let reference = reference(session.short_id.as_deref(), id, seq);
    Ok(Some(Block { is_record: true, ..Block::new(reference, place, text, 0) }))
}

/// Returns who says something in a record, and the text. Thinking is left out.
fn record_text(record: Record) -> Option<(String, String)> {
    match record.into_body()? {
        RecordBody::Message(message) => {
            let parts = message.parts.iter().filter_map(|part| match part {
                Part::Text { text } => Some(text.clone()),
                Part::ToolCall { name, args, .. } => {
                    Some(format!("(calls {name} {})", shown_args(args)))
                }
                Part::Image { .. } => Some("(a picture)".to_owned()),
                Part::Thinking { .. } => None,
            });
            let text = parts.collect::<Vec<_>>().join("\n");
            (!text.is_empty()).then(|| (message.role.as_str().to_owned(), text))
        }
        RecordBody::ToolCall(call) => {
            let result = call.result.error.as_deref().unwrap_or(&call.result.llm_content);
            let args = shown_args(&call.args);
            Some((format!("tool {}", call.name), format!("{args}\n{result}")))
        }
        RecordBody::Custom(custom) => Some(("user".to_owned(), custom.context_text?)),
        _ => None,
    }
}

fn shown_args(args: &Value) -> String {
    let mut text = args.to_string();
    ollm_protocol::limits::shorten_text(&mut text, ARGS_BYTES);
    text
}

/// Returns the reference of a record.
pub(super) fn reference(short_id: Option<&str>, id: SessionId, seq: Seq) -> String {
    format!("{}#{}", short(short_id, id), seq.0)
}

/// Returns the short form of a session's id, which takes fewer tokens, or the whole id.
pub(super) fn short(short_id: Option<&str>, id: SessionId) -> String {
    short_id.map_or_else(|| id.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_has_a_session_a_number_and_perhaps_an_offset() {
        let parse = |text: &str| {
            ReadReference::parse(text)
                .ok()
                .map(|found| (found.session.to_owned(), found.seq.0, found.offset))
        };
        assert_eq!(parse("9f04#12"), Some(("9f04".to_owned(), 12, 0)));
        assert_eq!(parse(" 9f04#12@300 "), Some(("9f04".to_owned(), 12, 300)));
        for wrong in ["9f04", "9f04#", "9f04#x", "9f04#1@", "#"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn text_goes_on_at_an_offset() {
        let block = |offset| {
            let block = Block::new("a#1".to_owned(), String::new(), "aé b".to_owned(), 0);
            let block = block.without_first(offset);
            (block.text, block.offset)
        };
        assert_eq!(block(0), ("aé b".to_owned(), 0));
        assert_eq!(block(1), ("é b".to_owned(), 1));
        assert_eq!(block(2), (" b".to_owned(), 3));
        assert_eq!(block(99), (String::new(), 5));
    }
}
