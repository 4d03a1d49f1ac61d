//! The permissions of a session: which tools of a client run without a question, and which never. PROTOCOL.md, 8.2.
//!
//! They are the value of one name in the metadata of the session, so they are durable and follow forks. An import drops
//! them: its file may be from anybody. The daemon runs no tools: it checks the shape of the list, and clients that run tools
//! ask [`decide`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::Meta;
use super::named_enum;

/// The name of the permissions in the metadata of a session.
pub const PERMISSIONS: &str = "ollm.permissions";
/// The most rules of a session: each call of a tool reads them all.
pub const MAX_PERMISSIONS: usize = 256;

named_enum! {
    /// What happens when a model calls a tool.
    pub enum PermissionDecision {
        /// The tool runs.
        Allow = "allow",
        /// A person is asked.
        Ask = "ask",
        /// The tool does not run.
        Deny = "deny",
    }
}

/// A rule about tools.
///
/// **Shape**: `{"tool":"files__read_*","decision":"allow"}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolPermission {
    /// The names of the tools: `*` stands for any characters, `?` for one.
    pub tool: String,
    /// What happens when one of them is called.
    pub decision: PermissionDecision,
}

/// Returns the rules in the metadata of a session; none if there are none.
///
/// **Errors**: the value is not a list of at most [`MAX_PERMISSIONS`] rules, each with a pattern.
pub fn permissions(metadata: &Meta) -> Result<Vec<ToolPermission>, &'static str> {
    let rules = match metadata.get(PERMISSIONS) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => Vec::<ToolPermission>::deserialize(value),
    };
    let rules = rules.map_err(|_| "must be a list of {tool, decision}")?;
    if rules.len() > MAX_PERMISSIONS {
        return Err("has more than 256 rules");
    }
    let has_patterns = rules.iter().all(|rule| !rule.tool.is_empty());
    if has_patterns { Ok(rules) } else { Err("has a rule without a pattern") }
}

/// Returns the decision of the first rule that matches a tool; [`PermissionDecision::Ask`] if none does.
#[must_use]
pub fn decide(rules: &[ToolPermission], tool: &str) -> PermissionDecision {
    let rule = rules.iter().find(|rule| matches(&rule.tool, tool));
    rule.map_or(PermissionDecision::Ask, |rule| rule.decision)
}

/// Puts a rule before all others, in place of one with the same pattern.
pub fn set_permission(rules: &mut Vec<ToolPermission>, rule: ToolPermission) {
    rules.retain(|known| known.tool != rule.tool);
    rules.insert(0, rule);
    rules.truncate(MAX_PERMISSIONS);
}

/// Returns whether a pattern matches a whole name. After a mismatch only the last `*` takes one character more, so the time
/// is at most the product of both lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut done) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while done < name.len() {
        match (pattern.get(at), last_star) {
            (Some('*'), _) => {
                last_star = Some((at, done));
                at += 1;
            }
            (Some(char), _) if *char == '?' || *char == name[done] => {
                (at, done) = (at + 1, done + 1)
            }
            (_, Some((star, taken))) => {
                last_star = Some((star, taken + 1));
                (at, done) = (star + 1, taken + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|char| *char == '*')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(tool: &str, decision: PermissionDecision) -> ToolPermission {
        ToolPermission { tool: tool.to_owned(), decision }
    }

    #[test]
    fn pattern_matches_a_whole_name() {
        let check = |pattern: &str, name: &str, expect: bool| {
            assert_eq!(matches(pattern, name), expect, "{pattern} {name}");
        };
        check("files__read", "files__read", true);
        check("files__read", "files__read_all", false);
        check("files__*", "files__read", true);
        check("files__*", "git__files__read", false);
        check("*__read", "git__files__read", true);
        check("*", "", true);
        check("a?c*e*", "abcdefe", true);
        check("a*b*c", "aXbXbX", false);
        check("??", "é", false);
        check("*é?", "caféx", true);
        check(&"*a".repeat(40), &"a".repeat(39), false);
    }

    #[test]
    fn first_rule_that_matches_decides() {
        use PermissionDecision::{Allow, Ask, Deny};
        let mut rules = vec![rule("git__push", Deny), rule("git__*", Allow)];
        assert_eq!(decide(&rules, "git__push"), Deny);
        assert_eq!(decide(&rules, "git__log"), Allow);
        assert_eq!(decide(&rules, "files__read"), Ask);
        set_permission(&mut rules, rule("git__*", Ask));
        assert_eq!(rules, [rule("git__*", Ask), rule("git__push", Deny)]);
        assert_eq!(decide(&rules, "git__push"), Ask, "the newest rule comes first");
    }

    #[test]
    fn metadata_holds_a_list_of_rules_or_none() {
        let check = |value: Value, expect: Result<usize, &str>| {
            let metadata = json!({ PERMISSIONS: value.clone() });
            let metadata: Meta = serde_json::from_value(metadata).unwrap();
            let found = permissions(&metadata).map(|rules| rules.len());
            assert_eq!(found, expect, "{value}");
        };
        check(Value::Null, Ok(0));
        check(json!([{ "tool": "a", "decision": "deny" }]), Ok(1));
        check(json!([{ "tool": "", "decision": "deny" }]), Err("has a rule without a pattern"));
        check(
            json!([{ "tool": "a", "decision": "never" }]),
            Err("must be a list of {tool, decision}"),
        );
        check(json!("a"), Err("must be a list of {tool, decision}"));
        let many = vec![json!({ "tool": "a", "decision": "ask" }); MAX_PERMISSIONS + 1];
        check(json!(many), Err("has more than 256 rules"));
    }
}
