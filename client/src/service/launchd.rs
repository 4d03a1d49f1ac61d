//! The agent of launchd: written into the template in `launchd/`, and read from the file of a user.
//!
//! launchd passes no socket and expands nothing, so the flags say everything that is not the default.

use std::path::Path;

use super::{ServedDaemon, UnusablePath};

pub(super) const TEMPLATE: &str = include_str!("../../../launchd/org.ollm.ollmd.plist");

/// The key whose value is the command.
const COMMAND_KEY: &str = "<key>ProgramArguments</key>";
/// The command of the template, in which a shell expands the home of the user.
const SHELL: &str = "exec \"$HOME/";

/// Returns the text of the agent.
pub(super) fn write(daemon: &ServedDaemon) -> Result<String, UnusablePath> {
    let words = daemon.words(true)?;
    let items = words.iter().map(|word| format!("        <string>{}</string>\n", escape(word)));
    let array = format!("{COMMAND_KEY}\n    <array>\n{}    </array>", items.collect::<String>());
    let command = command(TEMPLATE).unwrap_or(COMMAND_KEY);
    Ok(TEMPLATE.replacen(command, &array, 1))
}

/// Reads the daemon that the agent runs; `None` if it has no command.
pub(super) fn read(agent: &str, user_home: &Path) -> Option<ServedDaemon> {
    let items = command(agent)?.split("<string>").skip(1);
    let items = items.filter_map(|item| item.split("</string>").next());
    let words: Vec<String> = items.map(unescape).collect();
    match words.last().and_then(|last| last.strip_prefix(SHELL)) {
        Some(program) => {
            let program = user_home.join(program.trim_end_matches('"'));
            Some(ServedDaemon { program, home: None, config: None, socket: None })
        }
        None => ServedDaemon::from_words(words),
    }
}

/// Returns the key of the command with its value.
fn command(agent: &str) -> Option<&str> {
    const END: &str = "</array>";
    let begin = agent.find(COMMAND_KEY)?;
    let end = agent[begin..].find(END)?;
    Some(&agent[begin..begin + end + END.len()])
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_differs_from_the_template_only_in_its_command() {
        let daemon = ServedDaemon {
            program: "/opt/ollm/ollmd".into(),
            home: Some("/Users/ada/R&D".into()),
            config: None,
            socket: None,
        };
        let agent = write(&daemon).unwrap();
        let words = ["/opt/ollm/ollmd", "--home", "/Users/ada/R&amp;D"];
        for word in words {
            assert!(agent.contains(&format!("        <string>{word}</string>\n")), "{agent}");
        }
        assert!(!agent.contains("/bin/sh"), "{agent}");
        let (own, template) = (command(&agent).unwrap(), command(TEMPLATE).unwrap());
        assert_eq!(agent.replace(own, ""), TEMPLATE.replace(template, ""));
    }
}
