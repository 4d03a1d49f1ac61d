//! `ollmctl files`: lists, searches and watches the files of a directory.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand, ValueHint};
use ollm_protocol::method::{FilesDiscover, FilesSearch, FilesStatus};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::files::{
    FilesDiscoverParams, FilesDiscoverResult, FilesEvent, FilesSearchParams, FilesStatusResult,
    FilesWatchParams, WatchMode, WorkspaceFile, WorkspaceHit, WorkspacePath, WorkspaceRoot,
};
use ollm_protocol::sanitize;

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::BlockingClient;
use crate::project;
use crate::render::table::{self, TableColumn};
use crate::render::units::{bytes, counted, grouped};
use crate::render::{RenderOptions, Style, warning_line, wire_name};

/// Files in one page.
const PAGE: u32 = 10_000;

/// List, search and watch the files of a directory, without those that are ignored.
///
/// Files are ignored by .ollmignore, .gitignore, git's exclude files and `files.ignore`, and so are node_modules, .git,
/// dist, build and target. A line `!build/` in .ollmignore brings `build` back.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum FilesCommand {
    List(FilesListArgs),
    Search(FilesSearchArgs),
    Watch(FilesWatchArgs),
    Status(FilesStatusArgs),
}

/// The arguments that select a directory and files in it.
#[derive(Debug, Args)]
struct FilesSelectionArgs {
    /// Only files that match PATTERN, in the syntax of .gitignore; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Leave out files that match PATTERN; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Also names that begin with a dot.
    #[arg(long)]
    hidden: bool,
}

/// The flags for the form of printed paths.
#[derive(Debug, Args)]
struct PathOutputArgs {
    /// End each path with a NUL byte, for `xargs -0`.
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
    /// Print absolute paths, not those relative to DIR.
    #[arg(short, long)]
    absolute: bool,
}

/// List the files of a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Paths are relative to DIR. What was left out is reported on stderr.

Examples:
  ollmctl files list
  ollmctl files list -0 | fzf --read0 --print0 | xargs -0 less
  ollmctl files list --include '*.rs' -0 | xargs -0 wc -l
  ollmctl files list ~/src/project --long --hidden")]
pub(crate) struct FilesListArgs {
    /// The directory [default: the current one].
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    selection: FilesSelectionArgs,
    #[command(flatten)]
    output: PathOutputArgs,
    /// Only to this depth; the files of DIR itself have depth 1.
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<u32>,
    /// Also print size and time.
    #[arg(short, long, conflicts_with = "print0")]
    long: bool,
    /// At most this many files.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Read the directory again, although its changes are followed.
    #[arg(long)]
    refresh: bool,
}

/// Find files by some letters of their paths, the best first.
#[derive(Debug, Args)]
#[command(after_help = "\
The letters of each word must occur in the path in their order. An upper-case letter makes its word match case.

Examples:
  ollmctl files search rpcmeth
  ollmctl files search 'session rs' --limit 5
  ollmctl files search readme ~/src/project --absolute")]
pub(crate) struct FilesSearchArgs {
    /// The words.
    query: String,
    /// The directory [default: the current one].
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    selection: FilesSelectionArgs,
    #[command(flatten)]
    output: PathOutputArgs,
    /// At most this many files.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

/// Follow the changes of the files of a directory, until interrupted.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints a line for each file on a terminal, and a JSON line for each change otherwise or with --json. `resync` means \
that more changed than is known one by one.

Examples:
  ollmctl files watch
  ollmctl files watch ~/src/project --include '*.rs' --json")]
pub(crate) struct FilesWatchArgs {
    /// The directory [default: the current one].
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    selection: FilesSelectionArgs,
    /// Begin with what changed after a generation.
    #[arg(long, value_name = "GENERATION")]
    since: Option<u64>,
}

/// Show the directories whose files the daemon has in memory.
#[derive(Debug, Args)]
#[command(after_help = "\
A directory is dropped after 10 minutes without use. MODE is `watch`, or `poll` if the system cannot report changes.

Examples:
  ollmctl files status
  ollmctl files status --json")]
pub(crate) struct FilesStatusArgs {}

pub(super) fn run(command: FilesCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        FilesCommand::List(args) => list(args, ctx),
        FilesCommand::Search(args) => search(args, ctx),
        FilesCommand::Watch(args) => watch(args, ctx),
        FilesCommand::Status(_) => ctx.show::<FilesStatus>(&NoParams {}, render_status),
    }
}

fn list(args: FilesListArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let root = project::canonical_path(args.dir.as_deref())?;
    let mut params = FilesDiscoverParams {
        root: root.clone(),
        max_depth: args.max_depth,
        include: args.selection.include,
        exclude: args.selection.exclude,
        hidden: args.selection.hidden,
        // A list of paths needs no look at each file.
        details: Some(args.long || ctx.json()),
        limit: None,
        cursor: None,
        refresh: args.refresh,
    };
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut whole: Option<FilesDiscoverResult> = None;
    loop {
        params.limit = Some(u32::try_from(left).unwrap_or(PAGE).min(PAGE));
        let page = ctx.call::<FilesDiscover>(&params)?.value;
        left = left.saturating_sub(page.data.len() as u64);
        params.cursor.clone_from(&page.next_cursor);
        params.refresh = false;
        let is_last = page.next_cursor.is_none() || left == 0;
        if ctx.json() {
            match &mut whole {
                Some(whole) => add_page(whole, page),
                None => whole = Some(page),
            }
        } else {
            let options = ctx.render_options();
            for file in &page.data {
                let details = if args.long { long_details(file, &options) } else { String::new() };
                print_path(&file.path, &details, None, &root, &args.output, ctx)?;
            }
            // A reader such as fzf shows what there is while the rest is listed.
            ctx.terminal.flush()?;
            for warning in page.warnings.iter().filter(|_| is_last) {
                let text = warning_line(&format!("{}: {}", warning.path, warning.message));
                ctx.terminal.eprint(&text);
            }
        }
        if is_last {
            return whole.map_or(Ok(()), |whole| ctx.print_json(&whole));
        }
    }
}

/// Adds a page to those before it.
fn add_page(whole: &mut FilesDiscoverResult, page: FilesDiscoverResult) {
    whole.data.extend(page.data);
    if !page.warnings.is_empty() {
        whole.warnings = page.warnings;
    }
    whole.next_cursor = page.next_cursor;
}

fn search(args: FilesSearchArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let root = project::canonical_path(args.dir.as_deref())?;
    let params = FilesSearchParams {
        root: root.clone(),
        query: args.query,
        include: args.selection.include,
        exclude: args.selection.exclude,
        hidden: args.selection.hidden,
        limit: Some(args.limit),
    };
    let reply = ctx.call::<FilesSearch>(&params)?;
    if ctx.json() {
        return ctx.print_raw_json(&reply.raw);
    }
    for hit in &reply.value.data {
        print_path(&hit.path, "", Some(hit), &root, &args.output, ctx)?;
    }
    if reply.value.walking {
        ctx.terminal
            .eprint(&warning_line("the directory is still being read, so files may be missing"));
    }
    if reply.value.data.is_empty() {
        // Stdout has paths alone, for other programs.
        let searched = counted(reply.value.searched, "file");
        ctx.terminal.eprint(&format!("none of {searched} matches\n"));
    }
    Ok(())
}

fn watch(args: FilesWatchArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut params = FilesWatchParams {
        root: project::canonical_path(args.dir.as_deref())?,
        include: args.selection.include,
        exclude: args.selection.exclude,
        hidden: args.selection.hidden,
        since: args.since,
    };
    let for_people = ctx.terminal.out_is_terminal() && !ctx.json();
    let mut events = ctx.take_client()?.watch_files(&params)?;
    loop {
        while let Some(raw) = events.next_raw()? {
            let event =
                for_people.then(|| serde_json::from_str::<FilesEvent>(raw.get()).ok()).flatten();
            match event {
                Some(event) => ctx.print_text(&render_event(&event))?,
                // An item that this version cannot decode is printed as JSON, too.
                None => ctx.print_json_line(&raw)?,
            }
            ctx.terminal.flush()?;
        }
        if !events.is_restarting() {
            return Err(CommandError::StreamEnded);
        }
        // The journal of the next daemon is younger, so `resync` follows.
        params.since = Some(0);
        events = BlockingClient::connect_to_successor(ctx.connector())?.watch_files(&params)?;
    }
}

/// Prints a path: its bytes for a program, and without control characters for a person.
fn print_path(
    path: &WorkspacePath,
    details: &str,
    hit: Option<&WorkspaceHit>,
    root: &str,
    output: &PathOutputArgs,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let base = match (output.absolute, root.ends_with('/')) {
        (false, _) => String::new(),
        (true, true) => root.to_owned(),
        (true, false) => format!("{root}/"),
    };
    if ctx.terminal.out_is_terminal() && !output.print0 {
        let shown = hit.map_or_else(|| sanitize::one_line(&path.path), highlighted);
        return ctx.print_text(&format!("{details}{base}{shown}\n"));
    }
    let bytes = path.path_bytes.as_deref().and_then(|bytes| STANDARD.decode(bytes).ok());
    let bytes = bytes.unwrap_or_else(|| path.path.clone().into_bytes());
    let end: &[u8] = if output.print0 { b"\0" } else { b"\n" };
    Ok(ctx.terminal.print_raw([details.as_bytes(), base.as_bytes(), &bytes, end].concat())?)
}

/// Returns the path of a hit with its matched characters in bold.
fn highlighted(hit: &WorkspaceHit) -> String {
    let mut positions = hit.positions.iter().peekable();
    let mut shown = String::new();
    for (at, char) in hit.path.path.chars().enumerate() {
        let text = sanitize::one_line(char.encode_utf8(&mut [0; 4])).to_string();
        let is_matched = positions.next_if(|position| **position as usize == at).is_some();
        shown.push_str(&if is_matched { Style::Strong.paint(&text) } else { text });
    }
    shown
}

/// Returns size and time of a file, in columns before its path.
fn long_details(file: &WorkspaceFile, options: &RenderOptions) -> String {
    let size = file.size.map_or_else(|| "?".to_owned(), bytes);
    let time = file.modified_at.map_or_else(|| "?".to_owned(), |at| options.minute(at));
    let kind = if wire_name(file.kind) == "symlink" { "l" } else { "-" };
    format!("{kind} {size:>10}  {time}  ")
}

/// Returns a line for each changed file.
fn render_event(event: &FilesEvent) -> String {
    let line = |style: Style, word: &str, text: &str| {
        format!("{}  {}\n", style.paint(&format!("{word:<8}")), sanitize::one_line(text))
    };
    match event {
        FilesEvent::Watching { generation, mode } => {
            let note = match mode {
                WatchMode::Watch => String::new(),
                WatchMode::Poll => ", by walking again every few seconds".to_owned(),
            };
            line(Style::Faint, "watching", &format!("from generation {generation} on{note}"))
        }
        FilesEvent::FilesChanged { added, modified, removed, renamed, .. } => {
            let lists = [("added", added), ("modified", modified), ("removed", removed)];
            let mut text = String::new();
            for (word, paths) in lists {
                paths.iter().for_each(|path| text.push_str(&line(Style::Strong, word, &path.path)));
            }
            for path in renamed {
                let change = format!("{} -> {}", path.from.path, path.to.path);
                text.push_str(&line(Style::Strong, "renamed", &change));
            }
            text
        }
        FilesEvent::Resync { .. } => {
            line(Style::Bad, "resync", "more changed than is known one by one; list again")
        }
        FilesEvent::RootGone { message, .. } => line(Style::Bad, "gone", message),
    }
}

fn render_status(status: &FilesStatusResult, options: &RenderOptions) -> String {
    let mut text: String = status.warnings.iter().map(|warning| warning_line(warning)).collect();
    if status.roots.is_empty() {
        text.push_str("no directory is in memory; `ollmctl files list` reads one\n");
        return text;
    }
    let columns = [
        ("STATE", TableColumn::Word),
        ("MODE", TableColumn::Word),
        ("FILES", TableColumn::Number),
        ("MEMORY", TableColumn::Number),
        ("WALK", TableColumn::Number),
        ("WATCHERS", TableColumn::Number),
        ("ROOT", TableColumn::Prose),
    ];
    let row = |root: &WorkspaceRoot| {
        let mut path = sanitize::one_line(&root.root).to_string();
        if root.hidden {
            path.push_str(" (with hidden files)");
        }
        if let Some(problem) = &root.problem {
            path.push_str(&format!(": {problem}"));
        }
        vec![
            wire_name(root.state),
            wire_name(root.mode),
            grouped(root.files),
            bytes(root.memory_bytes),
            format!("{} ms", grouped(root.walk_ms)),
            grouped(root.subscriptions),
            path,
        ]
    };
    text.push_str(&table::render(options.width, &columns, status.roots.iter().map(row)));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{plain, render_options, run_against};

    fn answer(method: &str, params: &Value) -> Option<Value> {
        Some(match method {
            "files.discover" => match params["cursor"].as_str() {
                None => json!({ "data": [{ "path": "a b.rs", "kind": "file", "size": 2048,
                    "modifiedAt": "2026-01-27T10:00:00Z" }], "generation": 7, "nextCursor": "c" }),
                Some(_) => {
                    json!({ "data": [{ "path": "x\u{fffd}", "pathBytes": "eMOp", "kind": "symlink" }],
                    "generation": 7, "warnings": [{ "path": "d", "message": "this directory is skipped" }] })
                }
            },
            "files.search" if params["query"] == "none" => {
                json!({ "data": [], "generation": 7, "searched": 2 })
            }
            "files.search" => {
                json!({ "data": [{ "path": "a b.rs", "kind": "file", "score": 9, "positions": [0, 2] }],
                "generation": 7, "searched": 2 })
            }
            _ => return None,
        })
    }

    #[test]
    fn list_requests_all_pages_and_prints_paths() {
        let run = run_against(&["files", "list", "/tmp", "--exclude", "*.txt"], answer);
        assert!(run.error.is_none(), "{:?}", run.error);
        assert_eq!(run.calls.len(), 2);
        assert_eq!(run.calls[0].1["details"], false);
        assert_eq!(run.calls[1].1["cursor"], "c");
        assert_eq!(run.stdout, "a b.rs\nx\u{e9}\n", "the bytes of a path, not its text");
        let run = run_against(&["files", "list", "/tmp", "--json"], answer);
        let whole: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert_eq!(whole["data"].as_array().map(Vec::len), Some(2));
        assert_eq!(whole.get("nextCursor"), None);
        let run = run_against(&["files", "list", "/", "--limit", "1", "-0", "--absolute"], answer);
        assert_eq!(run.stdout, "/a b.rs\0");
        let run = run_against(&["files", "list", "/tmp", "--limit", "1", "--long"], answer);
        assert!(run.stdout.contains("2") && run.stdout.ends_with("a b.rs\n"), "{}", run.stdout);
    }

    #[test]
    fn search_without_hit_succeeds() {
        let run = run_against(&["files", "search", "ab", "/tmp"], answer);
        assert_eq!(run.stdout, "a b.rs\n");
        let run = run_against(&["files", "search", "none", "/tmp"], answer);
        assert!(run.stdout.is_empty() && run.error.is_none(), "{:?}", run.error);
    }

    #[test]
    fn changes_and_status_are_lines_for_people() {
        let event = json!({ "kind": "files-changed", "generation": 8, "added": [{ "path": "a\u{1b}[2J" }],
            "renamed": [{ "from": { "path": "b" }, "to": { "path": "c" } }] });
        let event = serde_json::from_value(event).expect("an event");
        assert_eq!(plain(&render_event(&event)), "added     a\nrenamed   b -> c\n");
        let root = json!({ "root": "/p", "state": "ready", "mode": "poll", "files": 1200, "directories": 3,
            "generation": 7, "subscriptions": 1, "memoryBytes": 4096, "walkMs": 12, "warnings": 0, "idleSeconds": 1 });
        let status = json!({ "roots": [root], "maxRoots": 64, "warnings": ["no watches"] });
        let status = serde_json::from_value(status).expect("a status");
        let text = plain(&render_status(&status, &render_options(100)));
        assert!(
            text.starts_with("warning: no watches\n")
                && text.contains("1,200")
                && text.contains("poll"),
            "{text}"
        );
    }
}
