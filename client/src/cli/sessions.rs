//! Subcommands of `sessions`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ollm_protocol::content::{ExportFormat, SearchSort, SessionStatus};

use super::{ANY_SESSION_HELP, RoleArg, SESSION_HELP, by_session};

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List sessions, the most recently active first.
    #[command(after_help = "\
Examples:
  ollmctl sessions list
  ollmctl sessions list --project . --limit 5
  ollmctl sessions list --status archived --json")]
    List(ListArgs),
    /// Read a session as a transcript.
    #[command(after_help = "\
Examples:
  ollmctl sessions view last
  ollmctl sessions view last --from -20
  ollmctl sessions view 0192f0c1 --from 100 --limit 50 --branch all")]
    View(ViewArgs),
    /// Find text in everything that was recorded.
    #[command(after_help = "\
All words must occur; word* matches beginnings of three letters and more.
\"A phrase\" in quotes must stand so, and so must words joined by dots or hyphens, like os.path and 2024-06-01.
Names like foo_bar and camelCase are found whole and by their parts.

Examples:
  ollmctl sessions search parse config
  ollmctl sessions search '\"connection refused\"' --since 7d
  ollmctl sessions search foo_bar --role assistant --sort relevance
  ollmctl sessions search deadline --since 2026-01-01 --until 2026-01-31")]
    Search(SearchArgs),
    /// Write a session to a file, or to stdout.
    #[command(after_help = "\
A file appears complete or not at all. The form follows the ending of the file unless --format is given.
With --json stdout has JSON: what was written, or without a file the export itself, as json or jsonl.

Examples:
  ollmctl sessions export last --output talk.md
  ollmctl sessions export last --format jsonl > talk.jsonl")]
    Export(ExportArgs),
    /// Import session files of ollmd and of other programs; `-` reads stdin.
    #[command(after_help = "\
The format is found from the content: exports of ollmd (json, jsonl), session documents, pi session files.
Importing a file again changes nothing. What cannot be carried over is reported.

Examples:
  ollmctl sessions import talk.jsonl
  ollmctl sessions import --dry-run old/a.jsonl old/b.jsonl
  ollmctl sessions import --project . talk.json")]
    Import(ImportArgs),
    /// Delete sessions and every file of them.
    #[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions delete 0192f0c1
  ollmctl sessions delete --yes 0192f0c1 0192f0d7")]
    Delete(DeleteArgs),
    /// Delete every session.
    #[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions clear --all")]
    Clear(ClearArgs),
    /// Delete all but the most recently active sessions; pinned and archived ones stay.
    #[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions cleanup --keep 50 --dry-run
  ollmctl sessions cleanup --keep 50 --yes")]
    Cleanup(CleanupArgs),
    /// Put a session away: it is listed only when asked for.
    Archive(SessionArg),
    /// Bring an archived session back.
    #[command(mut_arg("id", |id| id.help(ANY_SESSION_HELP)))]
    Unarchive(SessionArg),
    /// Give a session a title; an empty one goes back to its first words.
    #[command(after_help = "\
Examples:
  ollmctl sessions rename last 'The parser'")]
    Rename(RenameArgs),
    /// Take a session up again as its project's current one and show its last page.
    Resume(SessionArg),
    /// Close a session; recording opens it again.
    Close(SessionArg),
    /// Show the session that a project goes on with.
    #[command(after_help = "\
Examples:
  ollmctl sessions current
  ollmctl sessions current --project ~/src/parser")]
    Current(CurrentArgs),
}

/// Arguments of `sessions list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of one project's directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Also the archived ones.
    #[arg(long, conflicts_with = "status")]
    pub(crate) all: bool,
    /// Only those of one status [default: all but the archived].
    #[arg(long)]
    pub(crate) status: Option<StatusArg>,
    /// The most sessions.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// A status as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StatusArg {
    /// In use.
    Active,
    /// At rest.
    Closed,
    /// Put away.
    Archived,
    /// With damaged records.
    Corrupted,
}

impl From<StatusArg> for SessionStatus {
    fn from(status: StatusArg) -> Self {
        match status {
            StatusArg::Active => Self::Active,
            StatusArg::Closed => Self::Closed,
            StatusArg::Archived => Self::Archived,
            StatusArg::Corrupted => Self::Corrupted,
        }
    }
}

/// Arguments of `sessions view`.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    #[arg(value_name = "SESSION", help = SESSION_HELP, add = by_session())]
    pub(crate) id: String,
    /// The first record; a negative number counts from the end.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) from: Option<i64>,
    /// The most records [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Only what is in force, or everything that was ever recorded.
    #[arg(long, default_value = "active")]
    pub(crate) branch: BranchArg,
    /// Print long tool outputs and thinking whole.
    #[arg(long)]
    pub(crate) full: bool,
}

/// Which branches a view covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BranchArg {
    /// Only what is in force.
    Active,
    /// Everything.
    All,
}

/// Arguments of `sessions search`.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// What to look for.
    #[arg(required = true, value_name = "WORDS")]
    pub(crate) words: Vec<String>,
    /// Only in one session: an id, a unique beginning of one, or `last`.
    #[arg(long, value_name = "SESSION", add = by_session())]
    pub(crate) session: Option<String>,
    /// Only in one project's directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Only what one role said.
    #[arg(long)]
    pub(crate) role: Option<RoleArg>,
    /// Only from then on: 3d, 12h, 2026-01-27, 2026-01-27T10:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only before then; a date includes its day.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// The order of the hits.
    #[arg(long, default_value = "newest")]
    pub(crate) sort: SortArg,
    /// The most hits.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// The order of hits as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Newest first.
    Newest,
    /// Best first.
    Relevance,
}

impl From<SortArg> for SearchSort {
    fn from(sort: SortArg) -> Self {
        match sort {
            SortArg::Newest => Self::Newest,
            SortArg::Relevance => Self::Relevance,
        }
    }
}

/// Arguments of `sessions export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[arg(value_name = "SESSION", help = SESSION_HELP, add = by_session())]
    pub(crate) id: String,
    /// The form [default: by the ending of the file, else markdown].
    #[arg(long)]
    pub(crate) format: Option<ExportForm>,
    /// The file [default: stdout].
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The form of an export as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportForm {
    /// The session document.
    Json,
    /// Every record; an import gives the same session back.
    Jsonl,
    /// For reading.
    #[value(alias = "md")]
    Markdown,
    /// For a browser.
    Html,
}

impl From<ExportForm> for ExportFormat {
    fn from(form: ExportForm) -> Self {
        match form {
            ExportForm::Json => Self::Json,
            ExportForm::Jsonl => Self::Jsonl,
            ExportForm::Markdown => Self::Markdown,
            ExportForm::Html => Self::Html,
        }
    }
}

/// Arguments of `sessions import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The files.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The project's directory [default: what the file says].
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Only say what would be imported.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `sessions delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[arg(required = true, value_name = "SESSION", help = SESSION_HELP, add = by_session())]
    pub(crate) ids: Vec<String>,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Arguments of `sessions clear`.
#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    /// Says that every session is meant, pinned and archived ones too.
    #[arg(long, required = true)]
    pub(crate) all: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Arguments of `sessions cleanup`.
#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// How many sessions to keep.
    #[arg(long, value_name = "N")]
    pub(crate) keep: u32,
    /// Only say what would go.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// One session as the only argument.
#[derive(Debug, Args)]
pub(crate) struct SessionArg {
    #[arg(value_name = "SESSION", help = SESSION_HELP, add = by_session())]
    pub(crate) id: String,
}

/// Arguments of `sessions rename`.
#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    #[arg(value_name = "SESSION", help = SESSION_HELP, add = by_session())]
    pub(crate) id: String,
    /// The title.
    pub(crate) title: String,
}

/// Arguments of `sessions current`.
#[derive(Debug, Args)]
pub(crate) struct CurrentArgs {
    /// The project's directory [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
}
