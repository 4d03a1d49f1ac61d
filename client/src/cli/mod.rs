//! Flags and subcommands. The help texts are the reference manual.
//!
//! Knows clap and nothing of what the commands do. Every line of an example that begins with `ollmctl` is
//! parsed by a test.

mod candidates;
mod chat;
mod context;
mod entries;
mod goal;
mod kinds;
mod methods;
mod models;
mod services;
mod sessions;
mod which;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCompleter;
use ollm_protocol::EventKind;
use ollm_protocol::content::Role;

pub(crate) use chat::{ChatArgs, think, think_word};
pub(crate) use context::{
    ContextBuildArgs, ContextCheckpointsArgs, ContextCommand, ContextCompactArgs,
    ContextInspectArgs, ContextStatusArgs, StrategyArg,
};
pub(crate) use entries::{EntriesArgs, EntriesCommand, PinArgs, PlaceArgs};
pub(crate) use goal::{CheckpointArgs, GoalArgs, GoalCommand};
pub(crate) use methods::{MethodName, closest, distance};
pub(crate) use models::{ModelsArgs, ModelsCommand};
pub(crate) use services::{ExecArgs, LoopCommand};
pub(crate) use sessions::{
    BranchArg, CleanupArgs, ClearArgs, CurrentArgs, DeleteArgs, ExportArgs, ExportForm, ImportArgs,
    ListArgs, RenameArgs, SearchArgs, SessionArg, SessionsCommand, ViewArgs,
};

use which::CURRENT_HELP;
pub(crate) use which::WhichArgs;

/// What stands for a session on the command line.
const SESSION_HELP: &str = "An id, a unique beginning of one, or `last`: the most recently active session of all \
    projects that is not archived";

/// Sessions, search and contexts that fit, for local language models.
///
/// Talks to ollmd, which keeps every conversation durably and is started when it is not running.
#[derive(Debug, Parser)]
#[command(
    name = "ollmctl",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "\
SESSION stands for an id, any unique beginning of one with at least 4 characters, or `last`: the most recently \
active session of all projects that is not archived. Where it may be left out, it is the current session of this \
directory's project.

Examples:
  ollmctl chat
  ollmctl chat -c 'And in Rust?'
  ollmctl sessions list
  ollmctl sessions view last
  ollmctl sessions search 'reverse list' --since 7d
  ollmctl context build last --size 4096

Exit codes: 0 done, 1 internal, 2 usage, 3 not found, 4 busy, 5 configuration, 6 no daemon,
130 interrupted; `exec` has those of its command, and 124 after a timeout."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// The daemon's home directory [default: $OLLM_HOME, else ~/.ollm].
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The daemon's socket [default: $OLLM_SOCKET, else found from the home].
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print the daemon's result as JSON, and errors as JSON on stderr.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Do not start the daemon when it is not running [also: OLLM_NO_SPAWN=1].
    #[arg(long, global = true)]
    pub(crate) no_spawn: bool,
    /// The longest wait for a reply in seconds [default: 30, and more for what takes long].
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// When to use colors: always, never, or auto, which is on a terminal unless NO_COLOR is set.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) color: ColorArg,
}

/// When to use colors.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What stands for a session that may be archived.
const ANY_SESSION_HELP: &str = "An id, or a unique beginning of one";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk with a local model; everything said is kept as a session.
    #[command(after_help = "\
Without a question, and nothing behind a pipe, this is a chat on the terminal: /help lists what can be typed there, \
Ctrl-C ends an answer, Ctrl-D the chat. With one the answer goes to stdout and everything else to stderr. A new \
session becomes the current one of this directory's project, so that -c goes on with it.

--json prints the events of the turn, one a line; the first names the session.

What is typed in a chat is kept for the arrow keys in `chat-history` in the daemon's home.

Examples:
  ollmctl chat
  ollmctl chat 'How do I reverse a list in Python?'
  ollmctl chat --continue 'And in Rust?'
  git diff | ollmctl chat -m qwen3:8b 'Write a commit message for this change.'
  ollmctl chat --resume last")]
    Chat(ChatArgs),
    /// List, read, search, export, import and delete sessions.
    #[command(subcommand, alias = "session")]
    Sessions(SessionsCommand),
    /// Record a message, in the project's current session unless told otherwise.
    #[command(after_help = "\
Prints the session's id and the number of the record. The message is on disk when the command returns.

Examples:
  ollmctl record 'How do I reverse a list?'
  ollmctl record --role assistant --model qwen3:8b 'Use reversed().'
  ollmctl record --new --project . 'Another matter.'
  git diff | ollmctl record -")]
    Record(RecordArgs),
    /// See what a model is sent, make it shorter, and say what is always in it.
    #[command(subcommand)]
    Context(ContextCommand),
    /// See and set what a session works towards.
    #[command(after_help = "\
The goal is sent with every context. What a model says moves it on by markers such as `[CHECKPOINT] Add login - \
COMPLETED`; what you decide and lock, only you change.

Examples:
  ollmctl goal
  ollmctl goal create 'Implement user authentication'
  ollmctl goal checkpoint 'Add login'
  ollmctl goal checkpoint 1 completed
  ollmctl goal decide 'Use JWT' --locked")]
    Goal(GoalArgs),
    /// See which models the model server has, and load them.
    #[command(
        visible_alias = "model",
        after_help = "\
Examples:
  ollmctl models
  ollmctl models show qwen3:8b
  ollmctl models warm qwen3:8b --size 16384"
    )]
    Models(ModelsArgs),
    /// Run a command without secrets in its environment, and record it with its output as a tool call.
    #[command(after_help = "\
The command runs in the current directory, reads stdin itself, and its output passes unchanged; a bounded copy \
without escape sequences is recorded. Without --session that is in the project's current session. Nothing runs \
where the daemon cannot be asked which variables may pass (ollmctl call env.rules).

--timeout is also the longest time that the command may run. With --json its stdout goes to stderr, and stdout \
gets one JSON value in the end.

The exit code is that of the command: 128 and its number after a signal, 124 after a timeout, 127 for a command \
that is not there, 126 for one that cannot be run.

Examples:
  ollmctl exec -- cargo test
  ollmctl exec --session last -- sh -c 'git log | head -3'
  ollmctl exec --timeout 60 --json -- ./slow.sh")]
    Exec(ExecArgs),
    /// See whether a session repeats itself, and let it go on.
    #[command(subcommand)]
    Loop(LoopCommand),
    /// Call any method of the daemon and print its result as JSON.
    #[command(after_help = "\
`rpc.discover` describes every method with its parameters.

Examples:
  ollmctl call daemon.status
  ollmctl call session.list '{\"limit\": 3}'
  echo '{\"limit\": 3}' | ollmctl call session.list -")]
    Call(CallArgs),
    /// Follow what happens, one event a line, until interrupted.
    #[command(after_help = "\
Prints JSON lines, and short texts on a terminal unless --json is given.

Examples:
  ollmctl events
  ollmctl events --session last --kind message-recorded --json")]
    Events(EventsArgs),
    /// Start, stop and inspect the daemon.
    #[command(subcommand)]
    Daemon(DaemonCommand),
    /// Print the path of the daemon's socket, starting the daemon if need be.
    #[command(after_help = "\
Examples:
  ollmctl socket
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session.list\"}' | nc -N -U \"$(ollmctl socket)\"")]
    Socket,
    /// See in seconds what the daemon does, in a scratch home that is removed again.
    #[command(after_help = "\
Imports a real session, records more, kills the daemon in the middle and shows that nothing acknowledged is \
missing, builds a context, searches, exports, has the smallest model of a reachable Ollama answer, and cleans up, \
after Ctrl-C too. Your own sessions are not touched.

Examples:
  ollmctl tour
  ollmctl tour --json")]
    Tour,
    /// Look at the daemon's configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print what makes a shell complete commands, flags, sessions and models.
    #[command(after_help = "\
For ~/.bashrc, ~/.zshrc and fish's config.fish; a copy in a file may not fit the next version.

Examples:
  source <(ollmctl completions bash)
  source <(ollmctl completions zsh)
  ollmctl completions fish | source")]
    Completions(CompletionsArgs),
}

/// Arguments of `record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The session to record in: an id, a unique beginning of one, or `last` [default: the current session of the
    /// project, else a new one].
    #[arg(long, value_name = "SESSION", conflicts_with = "new", add = by_session())]
    pub(crate) session: Option<String>,
    /// Begin a new session and make it the project's current one.
    #[arg(long)]
    pub(crate) new: bool,
    /// Who says it.
    #[arg(long, default_value = "user")]
    pub(crate) role: RoleArg,
    /// The model: the one that answered, and that of a new session.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The project's directory [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// A key of your choice: recording twice with the same one records once.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// The message; `-`, or nothing behind a pipe, reads it from stdin.
    pub(crate) text: Option<String>,
}

/// A role as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// Instructions to the model.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The output of a tool.
    Tool,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::System => Self::System,
            RoleArg::User => Self::User,
            RoleArg::Assistant => Self::Assistant,
            RoleArg::Tool => Self::Tool,
        }
    }
}

/// Arguments of `call`.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The method, for example `session.list`.
    #[arg(value_parser = MethodName, hide_possible_values = true)]
    pub(crate) method: String,
    /// The parameters as a JSON object; `-` reads them from stdin.
    #[arg(value_name = "JSON")]
    pub(crate) params: Option<String>,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only those of one session: an id, a unique beginning of one, or `last`.
    #[arg(long, value_name = "SESSION", add = by_session())]
    pub(crate) session: Option<String>,
    /// Only this kind; may be given several times.
    #[arg(long = "kind", value_name = "KIND", value_parser = kinds::parser())]
    pub(crate) kinds: Vec<EventKind>,
}

/// Subcommands of `daemon`.
#[derive(Debug, Subcommand)]
pub(crate) enum DaemonCommand {
    /// Start the daemon, also where OLLM_NO_SPAWN is set; one that runs already is fine.
    #[command(after_help = "\
Where a unit of systemd or an agent of launchd is installed for the default home, the service manager starts it.")]
    Start,
    /// Let the daemon finish its work and leave; waits until it is gone.
    Stop,
    /// Stop the daemon and start it again, for example after an update; its configuration is checked first.
    Restart,
    /// Show how the daemon is; does not start it.
    Status,
    /// Run the daemon in the foreground, with its log on the terminal.
    #[command(after_help = "\
Examples:
  ollmctl daemon run
  ollmctl daemon run -- --log-level debug")]
    Run(DaemonRunArgs),
}

/// Arguments of `daemon run`.
#[derive(Debug, Args)]
pub(crate) struct DaemonRunArgs {
    /// Further flags of ollmd.
    #[arg(last = true, value_name = "FLAGS")]
    pub(crate) flags: Vec<OsString>,
}

/// Subcommands of `config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the settings in force and where each comes from.
    #[command(after_help = "\
Behind each value stands its source: a line of the file, a variable, `default`, or how it is computed. `no effect \
yet` marks what is checked and not used by this version. What is printed can be used as a configuration file.")]
    Show,
    /// Check the configuration and name file, line and key of what is wrong.
    Check,
    /// Print the path of the configuration file.
    Path,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: ShellArg,
}

/// A shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShellArg {
    /// GNU Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// The friendly interactive shell.
    Fish,
}

/// Lets a shell ask for sessions.
fn by_session() -> ArgValueCompleter {
    ArgValueCompleter::new(candidates::sessions)
}

/// Offers the models that the server has.
fn by_model() -> ArgValueCompleter {
    ArgValueCompleter::new(candidates::models)
}

fn parse_seconds(text: &str) -> Result<Duration, InvalidSeconds> {
    let seconds = text.parse::<f64>().map_err(|_| InvalidSeconds)?;
    Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero()).ok_or(InvalidSeconds)
}

#[derive(Debug, thiserror::Error)]
#[error("must be a number of seconds above 0")]
struct InvalidSeconds;

#[cfg(test)]
mod tests;
