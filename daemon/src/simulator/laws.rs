//! The laws that hold after every start, whatever the disk lost: checked against the model, and by further calls.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use memchr::memmem;
use ollm_protocol::content::{Record, RecordKind, Session, SessionStatus};
use ollm_protocol::{Seq, SessionId};
use serde_json::{Value, json};

use super::dice::Dice;
use super::home::OpenHome;
use super::model::{ExpectedFork, ExpectedRecord, ExpectedSession, Model, RecordContent, Span};
use super::workload::{Workload, of};
use crate::app::error::AppError;
use crate::app::sessions::{create, list};
use crate::catalog::ListQuery;
use crate::projects::Owner;
use crate::session::SessionError;

/// The letters of a word that are compared with files: an index may store the first ones only once for several words.
const SIGNIFICANT: std::ops::RangeFrom<usize> = 4..;

/// Fails with the law that is broken.
macro_rules! law {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}

/// Checks everything that can be read, without changing anything on purpose.
pub(super) fn check(home: &OpenHome, model: &Model) -> Result<(), String> {
    let mut existing = HashMap::new();
    for session in &model.sessions {
        if let Some((summary, records)) = read_session(home, session)? {
            check_records(session, &summary, &records)?;
            check_document(home, session, &records)?;
            check_snapshots(home, session)?;
            existing.insert(session.id, summary);
        } else {
            law!(!session.must_exist(), "law 1: session {} is lost", session.marker);
            check_gone(home, session)?;
        }
    }
    check_forks(home, model, &mut existing)?;
    check_files_have_sessions(home, model)?;
    check_projects(home, model)?;
    home.wait_for_catalog()?;
    check_catalog(home, model, &existing)?;
    for session in model.sessions.iter().filter(|one| !existing.contains_key(&one.id)) {
        let is_begun = session.deletion.is_some();
        law!(
            !is_begun || no_byte_left(home, session)?,
            "law 45: bytes of {} are left",
            session.marker
        );
    }
    Ok(())
}

/// Reads a session with all its records; `None` if it does not exist.
fn read_session(
    home: &OpenHome,
    session: &ExpectedSession,
) -> Result<Option<(Session, Vec<Record>)>, String> {
    let sessions = &home.core.sessions;
    let summary = match sessions.summary(session.id) {
        Ok(summary) => summary,
        Err(SessionError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(format!("law 10: {error}")),
    };
    let len = sessions.with(session.id, |live| live.state().entries().len() as u64);
    let seqs: Vec<Seq> = (0..len.map_err(|error| error.to_string())?).map(Seq).collect();
    let records = sessions.records(session.id, &seqs).map_err(|error| error.to_string())?;
    let n_lost = records.iter().filter(|record| record.is_none()).count();
    law!(
        n_lost == 0,
        "law 1: {n_lost} of {} records of {} are damaged",
        seqs.len(),
        session.marker
    );
    Ok(Some((summary, records.into_iter().flatten().collect())))
}

fn text_of(record: &Record) -> Option<RecordContent> {
    if let Some(message) = &record.message {
        return Some(RecordContent::Message(message.plain_text()));
    }
    let call = record.tool_call.as_ref()?;
    let result = serde_json::to_value(&call.result).expect("is JSON");
    let text = result["llmContent"].as_str().map(str::to_owned);
    Some(RecordContent::ToolCall(text.unwrap_or_default()))
}

fn check_records(
    session: &ExpectedSession,
    summary: &Session,
    records: &[Record],
) -> Result<(), String> {
    let marker = &session.marker;
    law!(!session.is_deleted(), "law 7: the deleted session {marker} is there");
    let is_damaged = summary.status == SessionStatus::Corrupted || summary.damaged_records > 0;
    law!(!is_damaged, "law 2: the torn tail of {marker} counts as damage");
    let contents: Vec<_> = records.iter().map(text_of).collect();
    for expected in &session.records {
        let token = &expected.token;
        let found: Vec<usize> = contents
            .iter()
            .enumerate()
            .filter(|(_, content)| content.as_ref() == Some(&expected.content))
            .map(|(seq, _)| seq)
            .collect();
        law!(found.len() <= 1, "law 4: {token} of {marker} is recorded {} times", found.len());
        if expected.span.is_acked() {
            let acked = expected.seq.map(|seq| seq.0 as usize);
            let found = found.first().copied();
            law!(found == acked, "law 1: {token} of {marker} is at {found:?}, not at {acked:?}");
        }
    }
    for moved in &session.moves {
        let found = records.iter().find(|record| record.seq == moved.seq);
        let to = found.and_then(|record| record.leaf.as_ref()).map(|leaf| leaf.to);
        law!(to == Some(moved.to), "law 1: the move {} of {marker} is lost", moved.seq);
    }
    if let Some(import) = &session.import {
        // Cut after any of its records until it is acknowledged.
        let imported = records.iter().filter_map(|record| record.message.as_ref());
        let imported: Vec<String> = imported.map(|message| message.plain_text()).collect();
        let in_order = imported.iter().zip(&import.tokens);
        law!(
            in_order.clone().all(|(text, token)| text.contains(token.as_str())),
            "law 11: the import {marker} has other records"
        );
        let n_lost = import.tokens.len().saturating_sub(imported.len());
        law!(
            n_lost == 0 || !import.span.is_acked(),
            "law 1: {n_lost} of {} imported records of {marker} are lost",
            import.tokens.len()
        );
    }
    let n_known = session.records.len() + session.import.as_ref().map_or(0, |one| one.tokens.len());
    let n_found = contents.iter().flatten().count();
    law!(n_found <= n_known, "law 4: {marker} has {n_found} records, of which {n_known} were sent");
    let n_messages = records.iter().filter(|record| record.kind == RecordKind::Message).count();
    law!(
        summary.message_count == n_messages as u64,
        "law 5: {marker} counts {} messages of {n_messages}",
        summary.message_count
    );
    let title = Some(summary.title.clone()).filter(|title| title.starts_with("title "));
    law!(session.title.admits(&title), "law 1: {marker} has the title {title:?}");
    Ok(())
}

/// Checks that the document, if there is one, is whole and says what the log says.
fn check_document(
    home: &OpenHome,
    session: &ExpectedSession,
    records: &[Record],
) -> Result<(), String> {
    let marker = &session.marker;
    let must_have = session.saved.iter().filter(|(_, span)| span.is_acked());
    let must_have = must_have.map(|(n, _)| *n).max();
    let bytes = match fs::read(home.core.sessions.document_path(session.id)) {
        Ok(bytes) => bytes,
        Err(_) => {
            law!(must_have.is_none(), "law 9: the saved document of {marker} is lost");
            return Ok(());
        }
    };
    let document: Value = serde_json::from_slice(&bytes)
        .map_err(|error| format!("law 9: the document of {marker} is broken: {error}"))?;
    let parts_of = |list: &str| document[list].as_array().cloned().unwrap_or_default();
    let said: Vec<String> = parts_of("messages")
        .iter()
        .map(|message| message["parts"][0]["text"].as_str().unwrap_or_default().to_owned())
        .collect();
    let logged = records.iter().filter_map(|record| record.message.as_ref());
    let is_prefix = logged.map(|message| message.plain_text()).zip(&said).all(|(a, b)| a == *b);
    let n_logged = records.iter().filter(|record| record.message.is_some()).count();
    law!(
        is_prefix && said.len() <= n_logged,
        "law 9: the document of {marker} says what the log does not say"
    );
    let n_said = said.len() + parts_of("toolCalls").len();
    law!(
        must_have.is_none_or(|must_have| n_said >= must_have),
        "law 9: the document of {marker} has {n_said} of {must_have:?} records"
    );
    Ok(())
}

/// Checks that every acknowledged snapshot is there and whole, that no deleted one is, and that no file is half-written.
fn check_snapshots(home: &OpenHome, session: &ExpectedSession) -> Result<(), String> {
    let (marker, store) = (&session.marker, &home.core.snapshots);
    let found = store.list(session.id).map_err(|error| error.to_string())?;
    law!(found.skipped.is_empty(), "law 28: {marker} has broken snapshots: {:?}", found.skipped);
    let n_automatic = found.snapshots.iter().filter(|one| one.reason != "manual").count();
    // One is kept, and each of two crashes in a row can end a cleanup that the next one repeats.
    law!(n_automatic <= 3, "law 28: {marker} has {n_automatic} automatic snapshots");
    for expected in &session.snapshots {
        let summary = &expected.summary;
        let own: Vec<_> = found.snapshots.iter().filter(|one| one.summary == *summary).collect();
        law!(own.len() <= 1, "law 4: there are {} snapshots {summary}", own.len());
        let is_deleted = expected.deletion.is_some_and(Span::is_acked);
        law!(!is_deleted || own.is_empty(), "law 7: the deleted snapshot {summary} is there");
        let Some((id, leaf)) = expected.taken else { continue };
        let must_exist = expected.deletion.is_none();
        law!(!must_exist || own.len() == 1, "law 1: the snapshot {summary} is lost");
        let Some(info) = own.first() else { continue };
        law!((info.snapshot_id, info.leaf) == (id, leaf), "law 4: {summary} is another snapshot");
        let owner = store.session_of(id, None).map_err(|error| error.to_string())?;
        law!(owner == session.id, "law 28: the map has {owner} for {summary}");
        let (_, document) = store.read(owner, id).map_err(|error| error.to_string())?;
        let said = document.user_messages.iter().chain(&document.messages);
        let mut texts = said.flat_map(|one| &one.message.parts);
        law!(
            texts.all(|part| json!(part).to_string().contains(marker.as_str())),
            "law 27: {summary} says what the session does not say"
        );
    }
    Ok(())
}

/// Checks that no file of a session is left that does not exist.
fn check_gone(home: &OpenHome, session: &ExpectedSession) -> Result<(), String> {
    let id = session.id.to_string();
    for path in files_below(&home.dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_own = path.iter().any(|part| part.to_string_lossy().contains(&id));
        // Unacknowledged bytes of a session that never existed may be kept aside.
        let is_aside = session.deletion.is_none() && (name.contains(".torn-") || is_blob(&path));
        let is_empty = fs::metadata(&path).is_ok_and(|data| data.len() == 0);
        // While the catalog cannot remove rows, the empty mark of a deletion stays for the next start.
        let may_be_empty = session.deletion.is_none() || home.has_damaged_catalog;
        law!(
            !is_own || is_aside || is_empty && may_be_empty,
            "law 7: {} of {} is left",
            path.display(),
            session.marker
        );
    }
    Ok(())
}

fn is_blob(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.to_string_lossy().ends_with(".blobs"))
}

/// Checks that every fork that was acknowledged is there, begins as its source does, and is not damaged. One whose reply
/// was lost is whole or not there at all.
fn check_forks(
    home: &OpenHome,
    model: &Model,
    existing: &mut HashMap<SessionId, Session>,
) -> Result<(), String> {
    let sessions = &home.core.sessions;
    let mut found: Vec<Session> = Vec::new();
    for (id, _) in sessions.log_ids().map_err(|error| error.to_string())? {
        if model.sessions.iter().all(|session| session.id != id) {
            found.push(sessions.summary(id).map_err(|error| format!("law 10: {error}"))?);
        }
    }
    for fork in &model.forks {
        let ExpectedFork { source, title, created, .. } = fork;
        let own: Vec<&Session> = found.iter().filter(|session| session.title == *title).collect();
        law!(own.len() <= 1, "law 4: there are {} sessions {title}", own.len());
        law!(created.is_none() || own.len() == 1, "law 1: {title} is lost");
        let Some(session) = own.first() else { continue };
        let id = session.session_id;
        law!(created.is_none_or(|(known, _)| known == id), "law 4: {title} is another session");
        law!(session.forked_from == Some(*source), "law 12: {title} has another source");
        let is_damaged = session.status == SessionStatus::Corrupted || session.damaged_records > 0;
        law!(!is_damaged, "law 2: {title} is damaged");
        let seqs: Vec<Seq> = (0..created.map_or(1, |(_, n)| n as u64)).map(Seq).collect();
        let read = |id| sessions.records(id, &seqs).map_err(|error| error.to_string());
        let copied = read(id)?;
        law!(copied.iter().all(Option::is_some), "law 12: records of {title} are damaged");
        law!(copied == read(*source)?, "law 12: {title} has other records than its source");
        existing.insert(id, (*session).clone());
    }
    Ok(())
}

/// Checks that every log belongs to a session that somebody created.
fn check_files_have_sessions(home: &OpenHome, model: &Model) -> Result<(), String> {
    for (id, _) in home.core.sessions.log_ids().map_err(|error| error.to_string())? {
        let is_fork = |title: &str| model.forks.iter().any(|fork| fork.title == title);
        let title = home.core.sessions.summary(id).map(|session| session.title).unwrap_or_default();
        let is_known = model.sessions.iter().any(|session| session.id == id) || is_fork(&title);
        law!(is_known, "law 7: the log of {id} belongs to no session");
    }
    Ok(())
}

fn check_projects(home: &OpenHome, model: &Model) -> Result<(), String> {
    let projects = &home.core.projects;
    let current = projects.current("/").map_err(|error| error.to_string())?;
    law!(model.current.admits(&current), "law 1: the current session is {current:?}");
    let entries = projects.entries(Owner::Global).map_err(|error| error.to_string())?;
    for (key, values) in &model.entries {
        let content = entries.get(key).map(|entry| entry.content.clone());
        law!(values.admits(&content), "law 1: the context entry {key} is {content:?}");
    }
    Ok(())
}

/// Checks that the catalog lists and finds what the logs hold.
fn check_catalog(
    home: &OpenHome,
    model: &Model,
    existing: &HashMap<SessionId, Session>,
) -> Result<(), String> {
    let every_status = [
        SessionStatus::Active,
        SessionStatus::Closed,
        SessionStatus::Archived,
        SessionStatus::Corrupted,
    ];
    let query = ListQuery {
        project_hash: None,
        statuses: &every_status,
        id_prefix: None,
        title: None,
        id_end: None,
        limit: usize::MAX,
        max_bytes: usize::MAX,
        after: None,
        exclude: &Default::default(),
    };
    let listed = read_catalog(home, || Ok(home.core.catalog.list(&query)?))?;
    let is_unlisted = |id: &&SessionId| listed.iter().all(|row| row.session_id != **id);
    let unlisted: Vec<_> = existing.keys().filter(is_unlisted).collect();
    law!(unlisted.is_empty(), "law 3: the list has {} sessions and not {unlisted:?}", listed.len());
    for row in &listed {
        let id = row.session_id;
        let Some(session) = existing.get(&id) else {
            return Err(format!("law 3: the list has {id}, which does not exist"));
        };
        law!(row == session, "law 3: the list has {row:?} for {session:?}");
    }
    for session in model.sessions.iter().filter(|one| existing.contains_key(&one.id)) {
        let is_newest = |record: &&ExpectedRecord| {
            record.span.is_acked() && record.content != RecordContent::Other
        };
        let Some(newest) = session.records.iter().rfind(is_newest) else {
            continue;
        };
        let params = json!({ "query": newest.token });
        let hits = read_catalog(home, || list::search(&home.core, of(&params)))?;
        // A fork has the same words.
        let own = hits.data.iter().filter(|hit| hit.session_id == session.id);
        let found: Vec<_> = own.map(|hit| (hit.session_id, hit.seq)).collect();
        let expected = newest.seq.map(|seq| (session.id, seq));
        law!(
            found.first().copied() == expected,
            "law 3: a search for {} of {} finds {found:?} and not {expected:?}",
            newest.token,
            session.marker
        );
    }
    Ok(())
}

/// Reads the catalog. A read that finds damage reads the new catalog, which may not know all sessions yet.
fn read_catalog<T>(home: &OpenHome, read: impl Fn() -> Result<T, AppError>) -> Result<T, String> {
    let read = || read().map_err(|error| format!("law 3: {error}"));
    let result = read()?;
    if !home.has_damaged_catalog {
        return Ok(result);
    }
    home.wait_for_catalog()?;
    read()
}

/// Returns whether no file contains words of a session.
fn no_byte_left(home: &OpenHome, session: &ExpectedSession) -> Result<bool, String> {
    let id = session.id.to_string();
    let words = [&session.marker[SIGNIFICANT], id.as_str()];
    for path in files_below(&home.dir) {
        let bytes = fs::read(&path).unwrap_or_default();
        for word in words {
            law!(
                memmem::find(&bytes, word.as_bytes()).is_none(),
                "law 45: {} has bytes of {}",
                path.display(),
                session.marker
            );
        }
    }
    Ok(true)
}

/// Checks the files of a crash before a start: a deleted session has no bytes in them, except in the catalog.
pub(super) fn check_before_start(root: &Path, model: &Model) -> Result<(), String> {
    for session in model.sessions.iter().filter(|session| session.is_deleted()) {
        for path in files_below(root) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = fs::read(&path).unwrap_or_default();
            let is_left = memmem::find(&bytes, session.marker.as_bytes()).is_some();
            law!(
                !is_left || name.starts_with("catalog"),
                "law 45: {name} has bytes of {}, whose deletion was acknowledged",
                session.marker
            );
        }
    }
    Ok(())
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Uses the daemon after a crash: repeats what was not answered, and records.
pub(super) fn continue_after_crash(daemon: &mut Workload, dice: &mut Dice) -> Result<(), String> {
    for at in daemon.model.usable() {
        let session = daemon.model.sessions[at].clone();
        if session.import.is_some() {
            daemon.send_import(at)?;
        }
        if !exists(&daemon.home, session.id) {
            continue;
        }
        if let Some(key) = &session.create_key
            && session.must_exist()
        {
            let params = json!({ "key": key, "systemPrompt": format!("be {}", session.marker) });
            let core = &daemon.home.core;
            let again = create::create(core, of(&params)).map_err(|error| error.to_string())?;
            let again = again.session.session_id;
            law!(
                again == session.id,
                "law 4: the retry of creating {} made another",
                session.marker
            );
        }
        for number in 0..session.records.len() {
            if session.records[number].key.is_some() {
                daemon.retry_record(at, number)?;
            }
        }
        for number in 0..session.snapshots.len() {
            if session.snapshots[number].deletion.is_none() {
                daemon.send_snapshot(at, number)?;
            }
        }
        if dice.percent(70) {
            daemon.record_message(at, 1)?;
        }
    }
    for number in 0..daemon.model.forks.len() {
        daemon.send_fork(number)?;
    }
    for key in daemon.model.entries.keys().cloned().collect::<Vec<_>>() {
        daemon.repeat_entry(&key)?;
    }
    Ok(())
}

/// Returns whether a session exists. A draft of a lost session does not.
fn exists(home: &OpenHome, id: SessionId) -> bool {
    home.core.sessions.summary(id).is_ok()
}
