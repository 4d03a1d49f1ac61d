//! `ollmctl remember` and `/remember`: a context entry for a text that every context has to contain.

use clap::Args;
use ollm_protocol::content::ContextScope;
use ollm_protocol::method::ContextAddEntry;
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextAddEntryResult, ContextSource,
};
use ollm_protocol::sanitize;

use crate::args::text_or_stdin;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::commands::context::entries::budget_line;
use crate::completion;
use crate::project::{self, session_or_current};

/// The beginning of the keys of remembered texts.
const KEY_PREFIX: &str = "remember-";
/// Words of a text in its key.
const KEY_WORDS: usize = 5;
/// Characters of these words.
const KEY_CHARS: usize = 40;

/// Remember a text: every context contains it from now on.
#[derive(Debug, Args)]
#[command(after_help = "\
The text is a context entry of the current session, and of later sessions too with --project or --global. \
`ollmctl context entries` lists, changes and removes it.

Examples:
  ollmctl remember 'The staging port is 48213.'
  ollmctl remember 'Answer in Spanish.' --global
  ollmctl remember 'Never touch legacy/.' --project
  ./rules.sh | ollmctl remember --project -")]
pub(crate) struct RememberArgs {
    /// The text; read from stdin if it is `-`, or if it is missing and stdin is a pipe.
    text: Option<String>,
    /// Remember it in one session: an id, a unique end or beginning of one, or `last` [default: the current session of this
    /// directory's project].
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["project", "global"], add = completion::sessions())]
    session: Option<String>,
    /// Remember it in all sessions of this directory's project.
    #[arg(long, conflicts_with = "global")]
    project: bool,
    /// Remember it in all sessions.
    #[arg(long)]
    global: bool,
}

pub(crate) fn run(args: &RememberArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let example = "ollmctl remember 'The staging port is 48213.'";
    let text = text_or_stdin(args.text.as_deref(), "remember", example)?;
    let text = text.trim();
    let (mut session_id, mut project_path, mut scope) = (None, None, None);
    let flag = if args.global {
        scope = Some(ContextScope::Global);
        "--global".to_owned()
    } else if args.project {
        project_path = Some(project::of_current_directory("remember TEXT")?);
        "--project .".to_owned()
    } else {
        let id = session_or_current(args.session.as_deref(), "remember TEXT", ctx)?;
        session_id = Some(id);
        format!("--session {id}")
    };
    let params = ContextAddEntryParams {
        session_id,
        project_path,
        scope,
        key: key_of(text),
        content: text.to_owned(),
        priority: None,
        source: Some(ContextSource::User),
    };
    ctx.show::<ContextAddEntry>(&params, |added, _| render_remembered(added, &flag))
}

fn render_remembered(added: &ContextAddEntryResult, flag: &str) -> String {
    let outcome = if added.changed { "remembered" } else { "was remembered already" };
    let place = match added.entry.scope {
        ContextScope::Session => "this session",
        ContextScope::Project => "all sessions of this project",
        ContextScope::Global => "all sessions",
    };
    let key = sanitize::one_line(&added.entry.key);
    format!(
        "{outcome} in {place}\n{}list:   ollmctl context entries {flag}\nremove: ollmctl context entries remove {key} {flag}\n",
        budget_line(added.tokens, added.token_limit)
    )
}

/// Returns the key of a text: its first words, and a checksum that tells texts with the same beginning apart.
pub(crate) fn key_of(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower
        .split(|char: char| !char.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(KEY_WORDS)
        .collect();
    let words: String = words.join("-").chars().take(KEY_CHARS).collect();
    // FNV-1a: the same in every version, so that a repeated text is one entry.
    let checksum = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{KEY_PREFIX}{}-{checksum:08x}", words.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_the_text() {
        assert_eq!(key_of("The staging port is 48213."), key_of("The staging port is 48213."));
        assert!(
            key_of("The staging port is 48213.").starts_with("remember-the-staging-port-is-48213-")
        );
        assert_ne!(key_of("Never touch a, b, c, d, e"), key_of("Never touch a, b, c, d, f"));
        assert!(key_of("请记住端口是48213").starts_with("remember-请记住端口是48213-"));
        assert!(key_of("!").starts_with("remember--"));
        assert!(key_of(&"字".repeat(5000)).len() < 256);
    }

    #[test]
    fn reply_says_how_to_list_and_remove() {
        let value = serde_json::json!({ "entry": { "key": "remember-a-1", "content": "a", "priority": 100,
            "source": "user", "scope": "global" }, "changed": true, "tokens": 12, "tokenLimit": 1392 });
        assert_eq!(
            render_remembered(&serde_json::from_value(value).unwrap(), "--global"),
            "remembered in all sessions\n12 tokens of at most 1,392\nlist:   ollmctl context entries --global\n\
             remove: ollmctl context entries remove remember-a-1 --global\n"
        );
    }
}
