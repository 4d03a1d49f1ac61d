//! The MCP clients: where their settings are, and what an entry looks like there.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::SettingsFormat;
use crate::address::{Environment, variables};
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;
use crate::own_program;

/// The name of the entry.
pub(super) const ENTRY: &str = "ollm";

/// A client that can be given the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClientName {
    ClaudeCode,
    Codex,
    Vscode,
    Zed,
    Goose,
    Gemini,
    Opencode,
    LmStudio,
}

/// The file of a client's settings, and the entry for it.
#[derive(Debug)]
pub(super) struct ClientFile {
    pub(super) client: ClientName,
    pub(super) path: PathBuf,
    pub(super) format: SettingsFormat,
    /// The field that has the servers by name.
    pub(super) section: &'static str,
    pub(super) entry: Value,
    /// Whether a file that is created may be read by others, because it belongs to a project.
    pub(super) is_shared: bool,
}

impl ClientName {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Vscode => "vscode",
            Self::Zed => "zed",
            Self::Goose => "goose",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::LmStudio => "lm-studio",
        }
    }

    const fn format(self) -> SettingsFormat {
        match self {
            Self::Codex => SettingsFormat::Toml,
            Self::Goose => SettingsFormat::Yaml,
            _ => SettingsFormat::Json,
        }
    }

    const fn section(self) -> &'static str {
        match self {
            Self::ClaudeCode | Self::Gemini | Self::LmStudio => "mcpServers",
            Self::Codex => "mcp_servers",
            Self::Vscode => "servers",
            Self::Zed => "context_servers",
            Self::Goose => "extensions",
            Self::Opencode => "mcp",
        }
    }

    /// Returns what a person does for the client to use the server.
    pub(super) const fn start_hint(self) -> &'static str {
        match self {
            Self::ClaudeCode => "start Claude Code again; /mcp lists the server",
            Self::Codex => "start codex again; `codex mcp list` lists the server",
            Self::Vscode => "VS Code asks whether to trust the server when a chat first uses it",
            Self::Zed => "Zed starts the server at once; the agent panel lists it",
            Self::Goose => "start goose again",
            Self::Gemini => "start Gemini CLI again; /mcp lists the server",
            Self::Opencode => "start opencode again; `opencode mcp list` lists the server",
            Self::LmStudio => "LM Studio loads the server at once; turn it on in a chat",
        }
    }

    fn entry(self, program: String, args: Vec<String>) -> Value {
        match self {
            Self::ClaudeCode | Self::Vscode => {
                json!({ "type": "stdio", "command": program, "args": args })
            }
            Self::Codex | Self::Gemini | Self::LmStudio => {
                json!({ "command": program, "args": args })
            }
            Self::Zed => json!({ "command": program, "args": args, "env": {} }),
            Self::Goose => json!({
                "name": ENTRY, "description": "Earlier conversations", "type": "stdio", "enabled": true,
                "cmd": program, "args": args, "timeout": 60,
            }),
            Self::Opencode => {
                let command: Vec<String> = std::iter::once(program).chain(args).collect();
                json!({ "type": "local", "command": command, "enabled": true })
            }
        }
    }

    /// Returns the file of the user's settings.
    fn user_path(self, places: &Places) -> PathBuf {
        let home = &places.home;
        match self {
            Self::ClaudeCode => places
                .variable("CLAUDE_CONFIG_DIR")
                .unwrap_or_else(|| home.clone())
                .join(".claude.json"),
            Self::Codex => {
                let own = places.variable("CODEX_HOME").unwrap_or_else(|| home.join(".codex"));
                own.join("config.toml")
            }
            Self::Vscode if cfg!(target_os = "macos") => {
                home.join("Library/Application Support/Code/User/mcp.json")
            }
            Self::Vscode => places.config.join("Code/User/mcp.json"),
            Self::Zed => places.config.join("zed/settings.json"),
            Self::Goose => places.config.join("goose/config.yaml"),
            Self::Gemini => home.join(".gemini/settings.json"),
            Self::Opencode => opencode_file(&places.config.join("opencode")),
            Self::LmStudio => home.join(".lmstudio/mcp.json"),
        }
    }

    /// Returns the file of a project's settings; `None` if the client has none.
    fn project_path(self, project: &Path) -> Option<PathBuf> {
        Some(match self {
            Self::ClaudeCode => project.join(".mcp.json"),
            Self::Codex => project.join(".codex/config.toml"),
            Self::Vscode => project.join(".vscode/mcp.json"),
            Self::Zed => project.join(".zed/settings.json"),
            Self::Gemini => project.join(".gemini/settings.json"),
            Self::Opencode => opencode_file(project),
            Self::Goose | Self::LmStudio => return None,
        })
    }
}

/// opencode reads both; a file with comments has the longer name.
fn opencode_file(directory: &Path) -> PathBuf {
    let commented = directory.join("opencode.jsonc");
    if commented.exists() { commented } else { directory.join("opencode.json") }
}

/// The directories in which settings are.
struct Places {
    home: PathBuf,
    config: PathBuf,
}

impl Places {
    /// Returns a directory that a variable of the client names.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let set = variables().into_iter().find(|(own, value)| own == name && !value.is_empty());
        set.map(|(_, value)| self.home.join(value))
    }
}

impl ClientFile {
    /// Returns the file of a client for the user, or for the project in the current directory. `flags` are those with which
    /// the server finds its daemon.
    pub(super) fn find(
        client: ClientName,
        is_project: bool,
        flags: Vec<String>,
        environment: &Environment,
    ) -> CommandResult<Self> {
        let home = environment.user_home.clone().ok_or(ClientError::NoHome)?;
        // Zed, goose and opencode look there on macOS too.
        let config = environment.config_home.clone().unwrap_or_else(|| home.join(".config"));
        let places = Places { home, config };
        let path = if is_project {
            let directory = PathBuf::from(crate::project::canonical_path(None)?);
            client.project_path(&directory).ok_or_else(|| {
                let name = client.name();
                let message = format!("{name} has no settings of a project");
                CommandError::usage(message, &format!("ollmctl mcp install {name}"))
            })?
        } else {
            client.user_path(&places)
        };
        // Editors do not have the PATH of a shell; a file of a project is for other machines as well.
        let program =
            if is_project { "ollmctl".to_owned() } else { own_program::installed(environment)? };
        let args = flags.into_iter().chain(["mcp".to_owned()]).collect();
        Ok(Self {
            client,
            path,
            format: client.format(),
            section: client.section(),
            entry: client.entry(program, args),
            is_shared: is_project,
        })
    }
}
