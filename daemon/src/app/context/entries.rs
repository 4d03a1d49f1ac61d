//! Context entries: keyed texts at the end of every system message of a session, a project or this home.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextEntry, ContextEntryChange, ContextScope, RecordBody};
use ollm_protocol::limits::{self, BoundedField, json_bytes};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextAddEntryResult, ContextListEntriesParams,
    ContextListEntriesResult, ContextRemoveEntryParams, ContextRemoveEntryResult, ContextSource,
};

use super::folds::{Folds, merged_entries, session_entries, settled_path, shared_entries};
use super::quota::TokenQuota;
use crate::app::change::{FirstPhase, in_two_phases};
use crate::app::core::{Core, blocking};
use crate::app::drafts::uncounted;
use crate::app::error::{AppError, Result};
use crate::app::path::ActivePath;
use crate::context::ENTRIES_PERCENT;
use crate::goal::block::BoundedText;
use crate::projects::{Owner, Projects, StoredEntry};

/// The most bytes of JSON of all entries that apply together, so that a list of the entries of all scopes fits into a
/// frame: it has every text twice.
const MAX_ENTRIES_BYTES: usize = 2 * 1024 * 1024;

/// Sets a context entry (`context.addEntry`).
///
/// **Errors**: `Context` if all entries in force together would not fit into their share.
pub(crate) async fn add(
    core: Arc<Core>,
    params: ContextAddEntryParams,
) -> Result<ContextAddEntryResult> {
    let ContextAddEntryParams { session_id, project_path, scope, key, content, priority, source } =
        params;
    check_key(&key)?;
    if content.trim().is_empty() {
        return Err(AppError::invalid("content", "must not be empty"));
    }
    BoundedField::EntryContent.check(content.len())?;
    let source = source.map_or(ContextEntry::DEFAULT_SOURCE, ContextSource::as_str).to_owned();
    let priority = priority.unwrap_or(ContextEntry::DEFAULT_PRIORITY);
    let entry = StoredEntry { content, priority, source };
    carry_out(&core, session_id, move |core| {
        let scope = EntryScope::of(core, session_id, project_path.as_deref(), scope)?;
        let result = check_fit(core, &scope, &key, &entry)?;
        scope.set(core, &key, Some(entry.clone()), |_| result)
    })
    .await
}

/// Removes a context entry (`context.removeEntry`); an entry of a wider scope with the same key is in force again.
pub(crate) async fn remove(
    core: Arc<Core>,
    params: ContextRemoveEntryParams,
) -> Result<ContextRemoveEntryResult> {
    let ContextRemoveEntryParams { session_id, project_path, scope, key } = params;
    check_key(&key)?;
    let removed = carry_out(&core, session_id, move |core| {
        let scope = EntryScope::of(core, session_id, project_path.as_deref(), scope)?;
        scope.set(core, &key, None, |removed| removed)
    });
    Ok(ContextRemoveEntryResult { removed: removed.await? })
}

/// Carries out a change of an entry: in two phases if it is one of a session.
async fn carry_out<T: Send + 'static>(
    core: &Arc<Core>,
    session_id: Option<SessionId>,
    plan: impl Fn(&Arc<Core>) -> Result<FirstPhase<T>> + Clone + Send + 'static,
) -> Result<T> {
    let Some(id) = session_id else {
        return match blocking(core, plan).await? {
            FirstPhase::Append(_, _, result)
            | FirstPhase::Nothing(result)
            | FirstPhase::Unrecorded(result) => Ok(result),
        };
    };
    let (result, _) = in_two_phases(core, id, None, |_| blocking(core, plan.clone())).await?;
    Ok(result.expect("a call without a key is planned"))
}

/// Lists the context entries in force (`context.listEntries`). Blocks on the disk.
pub(crate) fn list(
    core: &Arc<Core>,
    params: ContextListEntriesParams,
) -> Result<ContextListEntriesResult> {
    let ContextListEntriesParams { session_id, project_path } = params;
    let is_global = session_id.is_none() && project_path.is_none();
    let scope = is_global.then_some(ContextScope::Global);
    let scope = match (session_id, &project_path) {
        // A project that moved is asked for its entries by its old path.
        (None, Some(path)) => EntryScope::Project(Projects::lenient(path)),
        _ => EntryScope::of(core, session_id, project_path.as_deref(), scope)?,
    };
    let (mut data, quota) = scope.entries(core)?;
    let tokens = quota.count(&render_entries(&data));
    // The files and the log can have entries of any size.
    limits::shorten_entries(&mut data);
    let addition = render_entries(&data);
    Ok(ContextListEntriesResult { data, addition, tokens, token_limit: quota.limit })
}

/// Renders context entries within a number of tokens: entries that do not fit are left out and counted. Returns `None`
/// without entries.
///
/// An entry that cannot fit is refused when it is set; entries that were set for a larger window are cut here.
pub(super) fn entries_block(
    entries: &[ContextEntry],
    count: &dyn Fn(&str) -> u64,
    max_tokens: u64,
) -> Option<BoundedText> {
    let whole = render_entries(entries);
    if whole.is_empty() || count(&whole) <= max_tokens {
        return (!whole.is_empty()).then_some(BoundedText { text: whole, omitted: 0 });
    }
    let more = |omitted: usize| format!("+{omitted} more");
    let mut kept = Vec::new();
    let mut left = max_tokens.checked_sub(count(&more(entries.len())) + 1)?;
    for entry in entries {
        let text = render_entry(entry);
        let cost = count(&text) + 1;
        if cost <= left {
            left -= cost;
            kept.push(text);
        }
    }
    loop {
        let omitted = entries.len() - kept.len();
        let text = [kept.as_slice(), &[more(omitted)]].concat().join("\n");
        if count(&text) <= max_tokens {
            return Some(BoundedText { text, omitted });
        }
        // The parts may count a little less than the whole.
        kept.pop()?;
    }
}

fn render_entries(entries: &[ContextEntry]) -> String {
    entries.iter().map(render_entry).collect::<Vec<_>>().join("\n")
}

/// The beginning of the block of an entry.
pub(super) const ENTRY_BEGIN: &str = "<context-entry key=";
/// The end of the block of an entry.
pub(super) const ENTRY_END: &str = "</context-entry>";

/// Renders an entry as a block that its own text cannot end.
pub(super) fn render_entry(entry: &ContextEntry) -> String {
    let content = entry.content.replace("</context-entry", "<\\/context-entry");
    format!("{ENTRY_BEGIN}{:?}>\n{content}\n{ENTRY_END}", entry.key)
}

/// The owner of context entries.
enum EntryScope {
    /// The session, and its active path.
    Session(SessionId, Arc<ActivePath>),
    /// The canonical path of the project.
    Project(String),
    Global,
}

impl EntryScope {
    /// Checks that the params name exactly one scope. Blocks on the disk.
    fn of(
        core: &Arc<Core>,
        session: Option<SessionId>,
        project: Option<&str>,
        scope: Option<ContextScope>,
    ) -> Result<Self> {
        let may_be = |wanted: ContextScope| scope.is_none_or(|scope| scope == wanted);
        match (session, project) {
            (Some(_), Some(_)) => {
                Err(AppError::invalid("sessionId", "cannot be named together with projectPath"))
            }
            (Some(id), None) if may_be(ContextScope::Session) => {
                Ok(Self::Session(id, settled_path(core, id)?))
            }
            (None, Some(path)) if may_be(ContextScope::Project) => {
                Ok(Self::Project(Projects::canonical(path)?))
            }
            // Said explicitly, so that a forgotten session id does not change every session.
            (None, None) if scope == Some(ContextScope::Global) => Ok(Self::Global),
            (None, None) => {
                let problem = "name sessionId or projectPath, or say global";
                Err(AppError::invalid("scope", problem))
            }
            _ => Err(AppError::invalid("scope", "contradicts sessionId or projectPath")),
        }
    }

    const fn scope(&self) -> ContextScope {
        match self {
            Self::Session(..) => ContextScope::Session,
            Self::Project(_) => ContextScope::Project,
            Self::Global => ContextScope::Global,
        }
    }

    /// Returns the file that keeps the entries; those of a session are in its log.
    const fn owner(&self) -> Option<Owner<'_>> {
        match self {
            Self::Session(..) => None,
            Self::Project(path) => Some(Owner::Project(path.as_str())),
            Self::Global => Some(Owner::Global),
        }
    }

    /// Returns the entries in force, in the order in which they are sent, and their quota. Blocks on the disk.
    fn entries(&self, core: &Core) -> Result<(Vec<ContextEntry>, TokenQuota)> {
        let mut session = None;
        let entries = match self {
            Self::Session(id, path) => {
                session = Some(*id);
                let project = core.settings(*id)?.project_path;
                Folds::load(core, *id, path, project.as_deref())?.entries
            }
            Self::Project(path) => merged_entries(shared_entries(core, Some(path))?),
            Self::Global => merged_entries(shared_entries(core, None)?),
        };
        Ok((entries, TokenQuota::of(core, session, ENTRIES_PERCENT)?))
    }

    /// Returns the entry of this scope itself, and not of a wider one. Blocks on the disk.
    fn own_entry(&self, core: &Core, key: &str) -> Result<Option<StoredEntry>> {
        Ok(match (self, self.owner()) {
            (Self::Session(id, path), _) => session_entries(core, *id, path)?.get(key).cloned(),
            (_, Some(owner)) => core.projects.entries(owner)?.remove(key),
            (_, None) => None,
        })
    }

    /// Sets or removes an entry of this scope: in its file, or by a record that is to be appended to the session. The result is
    /// made from whether that changes anything. Blocks on the disk.
    fn set<T>(
        &self,
        core: &Core,
        key: &str,
        entry: Option<StoredEntry>,
        result: impl FnOnce(bool) -> T,
    ) -> Result<FirstPhase<T>> {
        let changed = match self.owner() {
            Some(owner) => core.projects.set_entry(owner, key, entry.clone())?,
            None => self.own_entry(core, key)? != entry,
        };
        Ok(match self {
            Self::Session(_, path) if changed => {
                let records = vec![uncounted(change_record(key, entry))];
                FirstPhase::Append(path.leaf, records, result(true))
            }
            _ => FirstPhase::Nothing(result(changed)),
        })
    }
}

/// Checks that an entry fits beside the others. The result says whether it changes anything. Blocks on the disk.
fn check_fit(
    core: &Core,
    scope: &EntryScope,
    key: &str,
    entry: &StoredEntry,
) -> Result<ContextAddEntryResult> {
    let (mut entries, quota) = scope.entries(core)?;
    let StoredEntry { content, priority, source } = entry.clone();
    let new = ContextEntry {
        key: key.to_owned(),
        content,
        priority,
        source,
        scope: scope.scope(),
        shortened: false,
    };
    entries.retain(|entry| entry.key != key);
    entries.push(new.clone());
    let needed = quota.count(&render_entries(&entries));
    let changed = scope.own_entry(core, key)?.as_ref() != Some(entry);
    if changed {
        let bytes = json_bytes(&entries);
        if bytes > MAX_ENTRIES_BYTES {
            return Err(AppError::EntriesTooLarge { bytes, limit: MAX_ENTRIES_BYTES });
        }
        quota.check(needed, "text of all context entries together")?;
    }
    Ok(ContextAddEntryResult { entry: new, changed, tokens: needed, token_limit: quota.limit })
}

fn change_record(key: &str, entry: Option<StoredEntry>) -> RecordBody {
    let (content, priority, source) = match entry {
        Some(StoredEntry { content, priority, source }) => {
            (Some(content), Some(priority), Some(source))
        }
        None => (None, None, None),
    };
    let key = key.to_owned();
    RecordBody::ContextEntry(ContextEntryChange { key, content, priority, source })
}

fn check_key(key: &str) -> Result<()> {
    BoundedField::EntryKey.check(key.len())?;
    if key.trim().is_empty() {
        return Err(AppError::invalid("key", "must not be empty"));
    }
    if key.chars().any(char::is_control) {
        return Err(AppError::invalid("key", "must be one line without control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::app::testing::TestSession;

    fn entry(key: &str, content: &str) -> ContextEntry {
        ContextEntry {
            key: key.to_owned(),
            content: content.to_owned(),
            priority: 100,
            source: "user".to_owned(),
            scope: ContextScope::Session,
            shortened: false,
        }
    }

    fn count(text: &str) -> u64 {
        text.len() as u64
    }

    #[test]
    fn entries_are_rendered_so_that_none_ends_another() {
        let text = render_entries(&[entry("a \"b\"", "x</context-entry>y"), entry("c", "z")]);
        assert_eq!(
            text,
            "<context-entry key=\"a \\\"b\\\"\">\nx<\\/context-entry>y\n</context-entry>\n\
             <context-entry key=\"c\">\nz\n</context-entry>"
        );
        assert_eq!(render_entries(&[]), "");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_entries_of_a_session_are_all_set() {
        let session = Arc::new(TestSession::new(&[]));
        let set = |number: usize| {
            let session = Arc::clone(&session);
            let params = json!({
                "sessionId": session.id,
                "key": format!("key {number}"),
                "content": "Be brief.",
            });
            let params = serde_json::from_value(params).expect("params");
            let set = async move { add(Arc::clone(&session.core), params).await };
            crate::shutdown::Tasks::new().spawn(set)
        };
        let tasks: Vec<_> = (0..16).map(set).collect();
        for task in tasks {
            assert!(task.await.expect("no panic").expect("sets").changed);
        }
        let params = serde_json::from_value(json!({ "sessionId": session.id })).expect("params");
        assert_eq!(list(&session.core, params).expect("lists").data.len(), 16);
        let again = set(3).await.expect("no panic").expect("is set");
        assert!(!again.changed);
    }

    #[test]
    fn entries_that_do_not_fit_are_counted() {
        let entries = [entry("a", "x"), entry("b", &"y".repeat(500)), entry("c", "z")];
        let all = entries_block(&entries, &count, 1000).expect("fits");
        assert_eq!((all.omitted, all.text), (0, render_entries(&entries)));
        let some = entries_block(&entries, &count, 300).expect("some fit");
        assert_eq!(some.omitted, 1);
        assert!(some.text.ends_with("\n+1 more"), "{}", some.text);
        assert!(some.text.contains("key=\"c\"") && count(&some.text) <= 300);
        assert_eq!(entries_block(&entries, &count, 7), None);
        assert_eq!(entries_block(&[], &count, 10), None);
    }
}
