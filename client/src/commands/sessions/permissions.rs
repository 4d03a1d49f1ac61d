//! `ollmctl sessions permissions`: which tools run in a session without a question, and which never.

use clap::Args;
use ollm_protocol::content::{
    Meta, PERMISSIONS, PermissionDecision, ToolPermission, permissions, set_permission,
};
use ollm_protocol::method::{SessionGet, SessionUpdate};
use ollm_protocol::methods::session::SessionUpdateParams;
use ollm_protocol::sanitize;
use serde_json::json;

use super::options::of_session;
use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};

/// Show or set which tools run in a session without a question, and which never.
#[derive(Debug, Args)]
#[command(after_help = "\
A pattern is the name of a tool, as SERVER__TOOL for those of an MCP server; `*` stands for any characters, `?` for one. \
The first rule that matches decides, and a new rule comes first. Without one, the editor asks. \"Always allow\" in an \
editor adds such a rule.

Examples:
  ollmctl sessions permissions
  ollmctl sessions permissions last --allow 'files__read_*' --deny '*__delete*'
  ollmctl sessions permissions last --remove '*__delete*'")]
pub(crate) struct PermissionsArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// Run the tools without a question.
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Ask before the tools run.
    #[arg(long, value_name = "PATTERN")]
    ask: Vec<String>,
    /// Never run the tools.
    #[arg(long, value_name = "PATTERN")]
    deny: Vec<String>,
    /// Remove the rule with this pattern.
    #[arg(long, value_name = "PATTERN")]
    remove: Vec<String>,
}

pub(super) fn run(args: PermissionsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("sessions permissions", ctx)?;
    let reply = ctx.call::<SessionGet>(&of_session(session_id))?;
    let changes_nothing = [&args.allow, &args.ask, &args.deny, &args.remove].map(Vec::is_empty);
    if changes_nothing == [true; 4] {
        return ctx.print(&reply, |result, _| shown(&result.session.metadata));
    }
    // A list that cannot be read, as an import can bring it, is replaced.
    let mut rules = permissions(&reply.value.session.metadata).unwrap_or_default();
    for pattern in &args.remove {
        let n_rules = rules.len();
        rules.retain(|rule| rule.tool != *pattern);
        if rules.len() == n_rules {
            let problem = format!("no rule has the pattern {}", sanitize::one_line(pattern));
            let hint = format!("ollmctl sessions permissions{}", args.session.typed());
            return Err(CommandError::usage(problem, &hint));
        }
    }
    // The strictest rule comes first.
    for (decision, patterns) in [
        (PermissionDecision::Allow, args.allow),
        (PermissionDecision::Ask, args.ask),
        (PermissionDecision::Deny, args.deny),
    ] {
        for tool in patterns {
            set_permission(&mut rules, ToolPermission { tool, decision });
        }
    }
    let metadata = Some(with_permissions(&rules));
    let params = SessionUpdateParams { metadata, ..SessionUpdateParams::new(session_id) };
    ctx.show::<SessionUpdate>(&params, |result, _| shown(&result.session.metadata))
}

/// Returns the metadata that sets the permissions of a session.
pub(crate) fn with_permissions(rules: &[ToolPermission]) -> Meta {
    let value = if rules.is_empty() { json!(null) } else { json!(rules) };
    Meta::from_iter([(PERMISSIONS.to_owned(), value)])
}

fn shown(metadata: &Meta) -> String {
    let line = |rule: &ToolPermission| {
        format!("{:<5}  {}\n", rule.decision.as_str(), sanitize::one_line(&rule.tool))
    };
    match permissions(metadata) {
        Ok(rules) if rules.is_empty() => {
            "no rules: each call of a tool is asked about\n".to_owned()
        }
        Ok(rules) => rules.iter().map(line).collect(),
        Err(problem) => format!("the rules cannot be read: the list {problem}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_in_the_order_in_which_they_decide() {
        let rule = |tool: &str, decision| ToolPermission { tool: tool.to_owned(), decision };
        let rules = [
            rule("git__push", PermissionDecision::Deny),
            rule("git__\u{1b}[31m*", PermissionDecision::Allow),
        ];
        assert_eq!(shown(&with_permissions(&rules)), "deny   git__push\nallow  git__*\n");
        assert!(shown(&with_permissions(&[])).starts_with("no rules"));
        let damaged = Meta::from_iter([(PERMISSIONS.to_owned(), json!(1))]);
        assert!(shown(&damaged).contains("cannot be read"));
    }
}
