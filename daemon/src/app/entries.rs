//! Context entries: keyed texts that every context of a session, a project or this home begins with.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextEntry, ContextEntryChange, ContextScope, RecordBody};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextAddEntryResult, ContextListEntriesParams,
    ContextListEntriesResult, ContextRemoveEntryParams, ContextRemoveEntryResult, ContextSource,
};

use super::facts::{Places, merged, own_entries};
use super::paths::active;
use super::shares::{Share, share};
use super::{AppError, Core, append, blocking};
use crate::context::ContextError;
use crate::goal::block::BoundedText;
use crate::projects::{Owner, Projects, StoredEntries, StoredEntry};
use crate::session::Draft;

/// The most of a prompt that all entries may have, in percent.
pub(crate) const ENTRIES_PERCENT: u64 = 20;
/// A key is a name, not a text; in bytes.
const MAX_KEY_BYTES: usize = 256;

/// The entries in force for a session, in the order in which they are sent. Blocks on the disk.
pub(super) fn in_force(
    core: &Core,
    id: SessionId,
    places: &Places,
) -> Result<Vec<ContextEntry>, AppError> {
    let own = own_entries(core, id, places)?;
    let mut scopes = shared(core, places.project.as_deref());
    scopes.push((ContextScope::Session, StoredEntries::clone(&own)));
    Ok(merged(scopes))
}

/// What holds for a project and for this home, the narrower one last.
fn shared(core: &Core, project: Option<&str>) -> Vec<(ContextScope, StoredEntries)> {
    let mut scopes = vec![(ContextScope::Global, core.projects.entries(Owner::Global))];
    if let Some(path) = project {
        scopes.push((ContextScope::Project, core.projects.entries(Owner::Project(path))));
    }
    scopes
}

/// What entries add to the system message: one block each, in their order; empty where there are none.
pub(crate) fn render_entries(entries: &[ContextEntry]) -> String {
    entries.iter().map(rendered).collect::<Vec<_>>().join("\n")
}

/// Like [`render_entries`], within a share: entries that do not fit are left out and counted. `None` where there is
/// nothing to say.
///
/// Entries are refused when they are set if they cannot fit; what was set for a larger window is met here.
pub(crate) fn entries_block(
    entries: &[ContextEntry],
    count: &dyn Fn(&str) -> u64,
    max_tokens: u64,
) -> Option<BoundedText> {
    let whole = render_entries(entries);
    if whole.is_empty() || count(&whole) <= max_tokens {
        return (!whole.is_empty()).then_some(BoundedText { text: whole, omitted: 0 });
    }
    let more = |omitted: usize| format!("+{omitted} more (context.listEntries)");
    let mut kept = Vec::new();
    let mut left = max_tokens.checked_sub(count(&more(entries.len())) + 1)?;
    for entry in entries {
        let text = rendered(entry);
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
        // Parts may count a little less than the whole.
        kept.pop()?;
    }
}

/// One entry, which its own text cannot end.
pub(crate) fn rendered(entry: &ContextEntry) -> String {
    let content = entry.content.replace("</context-entry", "<\\/context-entry");
    format!("<context-entry key={:?}>\n{content}\n</context-entry>", entry.key)
}

/// Where an entry is kept.
enum Place {
    Session(SessionId),
    Project(String),
    Global,
}

impl Place {
    fn of(
        session: Option<SessionId>,
        project: Option<&str>,
        scope: Option<ContextScope>,
    ) -> Result<Self, AppError> {
        let wanted = |scope_is: ContextScope| scope.is_none_or(|scope| scope == scope_is);
        match (session, project) {
            (Some(_), Some(_)) => {
                Err(AppError::invalid("sessionId", "cannot be named together with projectPath"))
            }
            (Some(id), None) if wanted(ContextScope::Session) => Ok(Self::Session(id)),
            (None, Some(path)) if wanted(ContextScope::Project) => {
                Ok(Self::Project(Projects::canonical(path)?))
            }
            // A forgotten session must not become an entry of all of them.
            (None, None) if scope == Some(ContextScope::Global) => Ok(Self::Global),
            (None, None) => {
                let problem = "name sessionId or projectPath, or say global";
                Err(AppError::invalid("scope", problem))
            }
            _ => Err(AppError::invalid("scope", "does not fit what is named beside it")),
        }
    }

    const fn scope(&self) -> ContextScope {
        match self {
            Self::Session(_) => ContextScope::Session,
            Self::Project(_) => ContextScope::Project,
            Self::Global => ContextScope::Global,
        }
    }

    const fn owner(&self) -> Option<Owner<'_>> {
        match self {
            Self::Session(_) => None,
            Self::Project(path) => Some(Owner::Project(path.as_str())),
            Self::Global => Some(Owner::Global),
        }
    }

    /// What holds there, in order, and how much may.
    fn entries(&self, core: &Core) -> Result<(Vec<ContextEntry>, Share), AppError> {
        let entries = match self {
            Self::Session(id) => in_force(core, *id, &active(core, *id)?.places)?,
            Self::Project(path) => merged(shared(core, Some(path))),
            Self::Global => merged(shared(core, None)),
        };
        let session = if let Self::Session(id) = self { Some(*id) } else { None };
        Ok((entries, share(core, session, ENTRIES_PERCENT)?))
    }

    /// The entry of this place itself, and not of a wider one.
    fn own(&self, core: &Core, key: &str) -> Result<Option<StoredEntry>, AppError> {
        Ok(match (self, self.owner()) {
            (Self::Session(id), _) => {
                own_entries(core, *id, &active(core, *id)?.places)?.get(key).cloned()
            }
            (_, Some(owner)) => core.projects.entries(owner).remove(key),
            (_, None) => None,
        })
    }
}

/// Sets an entry.
///
/// **Errors**: `Context` where the entries that hold there would not fit into their share together.
pub(crate) async fn add_entry(
    core: &Arc<Core>,
    params: ContextAddEntryParams,
) -> Result<ContextAddEntryResult, AppError> {
    let ContextAddEntryParams { session_id, project_path, scope, key, content, priority, source } =
        params;
    check_key(&key)?;
    if content.trim().is_empty() {
        return Err(AppError::invalid("content", "must not be empty"));
    }
    let source = source.map_or(ContextEntry::DEFAULT_SOURCE, ContextSource::as_str).to_owned();
    let priority = priority.unwrap_or(ContextEntry::DEFAULT_PRIORITY);
    let entry = StoredEntry { content, priority, source };
    let planned = blocking(core, move |core| {
        let place = Place::of(session_id, project_path.as_deref(), scope)?;
        let (result, is_new) = fitting(core, &place, &key, &entry)?;
        match place.owner().filter(|_| is_new) {
            Some(owner) => {
                core.projects.set_entry(owner, &key, Some(entry))?;
                Ok((result, None))
            }
            None => Ok((result, is_new.then(|| changed(key, Some(entry))))),
        }
    });
    let (result, record) = planned.await?;
    if let (Some(id), Some(record)) = (session_id, record) {
        append(core, id, vec![Draft::new(record, None)], None).await?;
    }
    Ok(result)
}

/// Checks that an entry fits beside the others; also tells whether it says something new.
fn fitting(
    core: &Core,
    place: &Place,
    key: &str,
    entry: &StoredEntry,
) -> Result<(ContextAddEntryResult, bool), AppError> {
    let (mut entries, share) = place.entries(core)?;
    let StoredEntry { content, priority, source } = entry.clone();
    let new = ContextEntry { key: key.to_owned(), content, priority, source, scope: place.scope() };
    entries.retain(|entry| entry.key != key);
    entries.push(new.clone());
    let needed = share.count(&render_entries(&entries));
    let is_new = place.own(core, key)?.as_ref() != Some(entry);
    if needed > share.limit && is_new {
        let what = "text of all context entries together";
        return Err(ContextError::Overflow { needed, available: share.limit, what }.into());
    }
    let result =
        ContextAddEntryResult { entry: new, changed: is_new, tokens: needed, limit: share.limit };
    Ok((result, is_new))
}

fn changed(key: String, entry: Option<StoredEntry>) -> RecordBody {
    let (content, priority, source) = match entry {
        Some(StoredEntry { content, priority, source }) => {
            (Some(content), Some(priority), Some(source))
        }
        None => (None, None, None),
    };
    RecordBody::ContextEntry(ContextEntryChange { key, content, priority, source })
}

/// Removes an entry; one of a wider scope with the same key holds again.
pub(crate) async fn remove_entry(
    core: &Arc<Core>,
    params: ContextRemoveEntryParams,
) -> Result<ContextRemoveEntryResult, AppError> {
    let ContextRemoveEntryParams { session_id, project_path, scope, key } = params;
    check_key(&key)?;
    let planned = blocking(core, move |core| {
        let place = Place::of(session_id, project_path.as_deref(), scope)?;
        match place.owner() {
            Some(owner) => Ok((core.projects.set_entry(owner, &key, None)?, None)),
            None => {
                let removed = place.own(core, &key)?.is_some();
                Ok((removed, removed.then(|| changed(key, None))))
            }
        }
    });
    let (removed, record) = planned.await?;
    if let (Some(id), Some(record)) = (session_id, record) {
        append(core, id, vec![Draft::new(record, None)], None).await?;
    }
    Ok(ContextRemoveEntryResult { removed })
}

/// Lists the entries in force. Blocks on the disk.
pub(crate) fn list_entries(
    core: &Core,
    params: &ContextListEntriesParams,
) -> Result<ContextListEntriesResult, AppError> {
    let ContextListEntriesParams { session_id, project_path } = params;
    let is_global = session_id.is_none() && project_path.is_none();
    let scope = is_global.then_some(ContextScope::Global);
    let place = Place::of(*session_id, project_path.as_deref(), scope)?;
    let (data, share) = place.entries(core)?;
    let addition = render_entries(&data);
    let tokens = share.count(&addition);
    Ok(ContextListEntriesResult { data, addition, tokens, limit: share.limit })
}

fn check_key(key: &str) -> Result<(), AppError> {
    let problem = if key.trim().is_empty() || key.len() > MAX_KEY_BYTES {
        format!("must have 1 to {MAX_KEY_BYTES} bytes")
    } else if key.chars().any(char::is_control) {
        "must stand on one line, without control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(AppError::invalid("key", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, content: &str) -> ContextEntry {
        ContextEntry {
            key: key.to_owned(),
            content: content.to_owned(),
            priority: 100,
            source: "user".to_owned(),
            scope: ContextScope::Session,
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

    #[test]
    fn what_does_not_fit_is_counted() {
        let entries = [entry("a", "x"), entry("b", &"y".repeat(500)), entry("c", "z")];
        let all = entries_block(&entries, &count, 1000).expect("fits");
        assert_eq!((all.omitted, all.text), (0, render_entries(&entries)));
        let some = entries_block(&entries, &count, 300).expect("some fit");
        assert_eq!(some.omitted, 1);
        assert!(some.text.ends_with("\n+1 more (context.listEntries)"), "{}", some.text);
        assert!(some.text.contains("key=\"c\"") && count(&some.text) <= 300);
        assert_eq!(entries_block(&entries, &count, 10), None);
        assert_eq!(entries_block(&[], &count, 10), None);
    }
}
