//! `session.blame`: the turns that read or changed a file, in all sessions, and the messages that asked for them.
//!
//! The search index names the records whose calls mention the path, the newest first; each is read from its log, and counts
//! only if its call used that file. So the time depends on the mentions that are looked at, which are bounded, and not on
//! the sessions.

use std::sync::Arc;

use ollm_protocol::content::{Record, RecordBody, RecordKind, Role, SearchSort};
use ollm_protocol::limits::shorten_text;
use ollm_protocol::methods::session::files::{
    BlameRequest, BlamedTurn, SessionBlameParams, SessionBlameResult, TouchKind,
};
use ollm_protocol::{Seq, SessionId};

use super::list::{catch_up, lenient_hash};
use crate::app::context::used_files::within;
use crate::app::core::Core;
use crate::app::error::{AppError, Result, page_limit};
use crate::app::models::gate::is_unrestricted;
use crate::app::other_branches::other_branches;
use crate::catalog::SearchQuery;
use crate::context::{FileUse, plain_path, touches};

const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;
/// The most searches of one page. Each examines at most 1,000 mentions, which takes about 10 ms; a page that reaches this
/// limit has fewer turns, and its cursor continues.
const MAX_SEARCHES: usize = 8;
/// The length of the beginning of a request, in bytes: enough to recognize it.
const REQUEST_BYTES: usize = 600;
/// The longest path, in bytes; a query has room for 4,096.
const MAX_PATH_BYTES: usize = 2048;

/// Finds the turns that used a file, the newest first (`session.blame`). Blocks on the disk.
pub(crate) fn blame(core: &Arc<Core>, params: SessionBlameParams) -> Result<SessionBlameResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let file = BlamedFile::new(&params.path, params.project_path.as_deref())?;
    let project = lenient_hash(params.project_path.as_deref());
    let query = file.query();
    catch_up(core);
    let mut cursor = params.cursor;
    let mut data: Vec<BlamedTurn> = Vec::new();
    let mut behind = 0;
    for _ in 0..MAX_SEARCHES {
        let page = core.catalog.search(&SearchQuery {
            query: &query,
            session_id: None,
            project_hash: project.as_deref(),
            role: None,
            since: None,
            until: None,
            sort: SearchSort::Newest,
            // A mention adds at most one turn.
            limit: limit - data.len(),
            cursor: cursor.as_deref(),
        })?;
        behind = page.behind;
        for hit in page.hits {
            // A session that was deleted or damaged meanwhile is no reason to hide the others.
            if let Ok(Some(touch)) = examine(core, &file, hit.session_id, hit.seq)
                && (!params.unrestricted || is_unrestricted(core, hit.session_id))
            {
                add(&mut data, touch, hit.title);
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() || data.len() >= limit {
            break;
        }
    }
    let found = other_branches(core, data.iter().map(|turn| (turn.session_id, turn.seq)));
    for turn in &mut data {
        turn.other_branch = found.contains(&(turn.session_id, turn.seq));
        turn.short_id = core.catalog.short_id(turn.session_id);
    }
    Ok(SessionBlameResult { data, next_cursor: cursor, behind: (behind > 0).then_some(behind) })
}

/// The file that is asked for.
struct BlamedFile {
    /// The path: relative to the project, or absolute.
    path: String,
}

impl BlamedFile {
    fn new(path: &str, project: Option<&str>) -> Result<Self> {
        let problem = match path {
            _ if plain_path(path).is_empty() => "is empty",
            _ if path.len() > MAX_PATH_BYTES => "is too long",
            _ if path.contains(['\n', '\r']) => "has a line break",
            _ => {
                return Ok(Self { path: within(project, plain_path(path)).to_owned() });
            }
        };
        Err(AppError::invalid("path", problem))
    }

    /// Returns the phrase that every call with the file has. The root of a project is not a part of it, because calls
    /// mostly name files without it; nor is that of an absolute path, whose project is unknown.
    fn query(&self) -> String {
        let mut phrase = self.path.as_str();
        if let Some(absolute) = phrase.strip_prefix('/') {
            phrase = absolute.rsplit_once('/').map_or(absolute, |(above, _)| {
                let parent =
                    above.rsplit_once('/').map_or(0, |(grandparent, _)| grandparent.len() + 1);
                &absolute[parent..]
            });
        }
        format!("\"{}\"", phrase.replace('"', " "))
    }

    /// Returns whether a call in a project with the directory `root` means this file.
    fn is_meant_by(&self, used: &str, root: Option<&str>) -> bool {
        let used = plain_path(used);
        match self.path.strip_prefix('/') {
            Some(absolute) => {
                used == self.path
                    || root.is_some_and(|root| {
                        let root = root.trim_start_matches('/');
                        absolute.strip_prefix(root).and_then(|rest| rest.strip_prefix('/'))
                            == Some(used)
                    })
            }
            None => within(root, used) == self.path,
        }
    }
}

/// A record that used the file.
struct FileTouch {
    id: SessionId,
    record: Record,
    touch: TouchKind,
    tool: String,
    request: Option<BlameRequest>,
}

/// Returns the use that a record makes of the file, with the message of the user that it follows.
fn examine(core: &Core, file: &BlamedFile, id: SessionId, seq: Seq) -> Result<Option<FileTouch>> {
    let Some(record) = core.sessions.records(id, &[seq])?.pop().flatten() else { return Ok(None) };
    let Some(body) = record.clone().into_body() else { return Ok(None) };
    let uses = touches(&body);
    if uses.is_empty() {
        // A record that only mentions the file; its session stays closed.
        return Ok(None);
    }
    let (root, request) = core.sessions.with(id, |live| {
        let state = live.state();
        let mut next = Some(seq);
        let request = loop {
            let Some(entry) = next.and_then(|seq| state.entry(seq)) else { break None };
            if entry.kind() == Some(RecordKind::Message) && entry.role() == Some(Role::User) {
                break next;
            }
            next = entry.parent().filter(|parent| Some(*parent) < next);
        };
        (state.project_path().map(str::to_owned), request)
    })?;
    // A file that a call changed was also read, if it is both.
    let own = uses.into_iter().filter(|(_, path, _)| file.is_meant_by(path, root.as_deref()));
    let Some((used, _, tool)) = own.max_by_key(|(used, ..)| *used == FileUse::Modified) else {
        return Ok(None);
    };
    let touch = match used {
        FileUse::Read => TouchKind::Read,
        FileUse::Modified => TouchKind::Changed,
    };
    let tool = tool.to_owned();
    let request = request.map(|seq| request_text(core, id, seq)).transpose()?;
    Ok(Some(FileTouch { id, record, touch, tool, request }))
}

fn request_text(core: &Core, id: SessionId, seq: Seq) -> Result<BlameRequest> {
    let record = core.sessions.records(id, &[seq])?.pop().flatten();
    let mut text = match record.and_then(Record::into_body) {
        Some(RecordBody::Message(message)) => message.plain_text(),
        _ => String::new(),
    };
    shorten_text(&mut text, REQUEST_BYTES);
    Ok(BlameRequest { seq, text })
}

/// Adds a use: to the turn that is listed already, or as a turn of its own.
fn add(data: &mut Vec<BlamedTurn>, found: FileTouch, title: String) {
    let request_of = |turn: &BlamedTurn| turn.request.as_ref().map(|request| request.seq);
    let same = data.iter_mut().find(|turn| {
        turn.session_id == found.id
            && found.request.as_ref().is_some_and(|request| request_of(turn) == Some(request.seq))
    });
    let (seq, at) = (found.record.seq, found.record.at);
    match same {
        // The change is what a person looks for.
        Some(turn) if found.touch == TouchKind::Changed && turn.touch == TouchKind::Read => {
            (turn.touch, turn.seq, turn.at, turn.tool) = (found.touch, seq, at, found.tool);
        }
        Some(_) => {}
        None => data.push(BlamedTurn {
            session_id: found.id,
            short_id: None,
            title,
            seq,
            at,
            touch: found.touch,
            tool: found.tool,
            request: found.request,
            other_branch: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_meant_by_each_of_its_names() {
        let check = |path: &str, project: Option<&str>, used: &str, expect: bool| {
            let file = BlamedFile::new(path, project).unwrap();
            assert_eq!(file.is_meant_by(used, Some("/home/u/p")), expect, "{path} {used}");
        };
        check("src/a.rs", None, "./src/a.rs", true);
        check("./src/a.rs", None, "/home/u/p/src/a.rs", true);
        check("/home/u/p/src/a.rs", Some("/home/u/p"), "src/a.rs", true);
        check("/home/u/p/src/a.rs", None, "src/a.rs", true);
        check("/etc/hosts", None, "/etc/hosts", true);
        check("a.rs", None, "src/a.rs", false);
        check("/home/u/q/src/a.rs", None, "src/a.rs", false);
        check("src/a.rs", None, "/elsewhere/src/a.rs", false);
        for wrong in ["", "./", "a\nb", &"a".repeat(3000)] {
            assert!(BlamedFile::new(wrong, None).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn phrase_has_no_root() {
        let query = |path: &str| BlamedFile::new(path, None).unwrap().query();
        assert_eq!(query("src/a.rs"), "\"src/a.rs\"");
        assert_eq!(query("/home/u/p/src/a.rs"), "\"src/a.rs\"");
        assert_eq!(query("/etc/hosts"), "\"etc/hosts\"");
        assert_eq!(query("/hosts"), "\"hosts\"");
        assert_eq!(query("a\"b"), "\"a b\"");
    }
}
