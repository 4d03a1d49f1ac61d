//! The help of a chat: the names of all commands on one screen, and the explanations of some.

use super::slash::SlashCommand;
use crate::render::table::wrapped_fields;
use crate::render::wrap::wrap;

/// The keys of a chat.
const KEYS: &str = "
Enter sends. Alt-Enter, a backslash at the end, or an open ``` begin a new line.
@FILE puts a text or a picture into a message; Tab completes files and commands.
Up and Ctrl-R bring earlier lines back, Ctrl-X Ctrl-E opens $EDITOR, // begins
a message with a slash. Ctrl-C cancels an answer, Ctrl-D leaves.
/help COMMAND explains one, /help all each. Ctrl-Z stops the chat until fg.
";

/// Returns the names of all commands by their groups, and the keys.
pub(super) fn overview(width: Option<usize>) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for command in SlashCommand::all() {
        let name = command.name();
        match groups.last_mut() {
            Some((group, names)) if *group == command.group => names.push(name),
            _ => groups.push((command.group, vec![name])),
        }
    }
    let rows = groups.into_iter().map(|(group, mut names)| {
        // Two commands can have one name.
        names.dedup();
        (group, names.join("  "))
    });
    let rows: Vec<(&str, String)> = rows.collect();
    wrapped_fields(&rows, width) + &wrap(KEYS, width, 0)
}

/// Returns the explanations of the commands that begin with a text, or of all; `None` if there is no such command.
pub(super) fn explanations(topic: &str, width: Option<usize>) -> Option<String> {
    let topic = topic.trim_start_matches('/');
    let is_meant =
        |command: &SlashCommand| topic == "all" || command.name()[1..].starts_with(topic);
    let rows: Vec<_> = SlashCommand::all()
        .filter(is_meant)
        .map(|command| (command.usage, command.help.to_owned()))
        .collect();
    (!rows.is_empty()).then(|| wrapped_fields(&rows, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overview_names_every_command_on_one_screen() {
        let help = overview(Some(80));
        assert!(help.lines().count() <= 22, "{help}");
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
        for command in SlashCommand::all() {
            assert!(help.contains(command.name()), "{}", command.name());
        }
    }

    #[test]
    fn topic_is_the_beginning_of_a_name() {
        let both = explanations("/snapshot re", None).unwrap();
        assert!(both.starts_with("/snapshot restore") && both.lines().count() == 1, "{both}");
        assert_eq!(explanations("undo", None).unwrap().lines().count(), 1);
        assert!(explanations("all", None).unwrap().lines().count() > 30);
        assert_eq!(explanations("nothing", None), None);
    }
}
