//! Context entries and pins, for people.

use ollm_protocol::content::ContextScope;
use ollm_protocol::methods::context::{
    ContextAddEntryResult, ContextListEntriesResult, ContextPinResult,
};
use ollm_protocol::sanitize;

use super::number::{counted, grouped};
use super::table::{self, Column};

/// The entries in the order in which they are sent, and how much of their share they have.
pub(crate) fn list(listed: &ContextListEntriesResult, width: usize) -> String {
    if listed.data.is_empty() {
        return "no entries\n".to_owned();
    }
    let columns = [
        ("KEY", Column::Word),
        ("SCOPE", Column::Word),
        ("SOURCE", Column::Word),
        ("PRIORITY", Column::Number),
        ("TEXT", Column::Prose),
    ];
    let rows: Vec<_> = listed
        .data
        .iter()
        .map(|entry| {
            vec![
                sanitize::one_line(&entry.key),
                scope(entry.scope).to_owned(),
                sanitize::one_line(&entry.source),
                entry.priority.to_string(),
                sanitize::one_line(&entry.content),
            ]
        })
        .collect();
    table::render(width, &columns, &rows) + &share(listed.tokens, listed.limit)
}

const fn scope(scope: ContextScope) -> &'static str {
    match scope {
        ContextScope::Global => "global",
        ContextScope::Project => "project",
        ContextScope::Session => "session",
    }
}

/// What became of an entry.
pub(crate) fn added(added: &ContextAddEntryResult) -> String {
    let done = if added.changed { "set" } else { "was set already" };
    let (key, scope) = (sanitize::one_line(&added.entry.key), scope(added.entry.scope));
    format!("{key} {done} ({scope})\n{}", share(added.tokens, added.limit))
}

/// What is pinned.
pub(crate) fn pins(result: &ContextPinResult) -> String {
    if result.data.is_empty() {
        return "nothing is pinned\n".to_owned();
    }
    let pinned = result.data.iter().map(|one| format!("#{}", one.seq)).collect::<Vec<_>>();
    format!("pinned: {}\n{}", pinned.join(", "), share(result.tokens, result.limit))
}

fn share(tokens: u64, limit: u64) -> String {
    format!("{} of {} that they may have\n", counted(tokens, "token"), grouped(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_sent_in_order_and_how_much_it_may_be() {
        let entry = |key: &str, scope: &str| {
            serde_json::json!({ "key": key, "content": "Be\nbrief. \u{1b}[2J", "priority": 5,
                "source": "user", "scope": scope })
        };
        let value = serde_json::json!({ "data": [entry("tone", "global"), entry("style", "session")],
            "addition": "", "tokens": 12, "limit": 1392 });
        let text = list(&serde_json::from_value(value).unwrap(), 60);
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "\
KEY    SCOPE    SOURCE  PRIORITY  TEXT
tone   global   user           5  Be brief.
style  session  user           5  Be brief.
12 tokens of 1,392 that they may have
"
        );
    }
}
