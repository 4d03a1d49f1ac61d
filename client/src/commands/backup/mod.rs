//! `ollmctl backup`: backups of the home or of one session in a directory or a file, and their return.
//!
//! The daemon does the work; passphrases and keys are read here and go to it over its socket only.

mod secret;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ollm_protocol::event::StoreProgressData;
use ollm_protocol::method::{BackupCreate, BackupList, BackupPrune, BackupRestore, BackupVerify};
use ollm_protocol::methods::backup::{
    BackupCreateParams, BackupCreateResult, BackupInfo, BackupListParams, BackupListResult,
    BackupPruneParams, BackupPruneResult, BackupRestoreParams, BackupRestoreResult,
    BackupVerifyParams, BackupVerifyResult, UnreadableBackup,
};
use ollm_protocol::{EventKind, Method, SessionId, sanitize};

use self::secret::{NewSecretArgs, SecretArgs, WithSecret};
use crate::command_context::{CallReply, CommandContext};
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::error::{ClientError, Exit};
use crate::render::progress::ProgressMeter;
use crate::render::table::{self, TableColumn};
use crate::render::units::{bytes, counted, grouped};
use crate::render::{RenderOptions, Style, try_line};

/// The most lines of one kind that are shown.
const MAX_SHOWN: usize = 20;
/// The help of a place.
const PLACE_HELP: &str = "A directory of backups, or a file whose name ends with .tar";

/// Back up the home or one session, check backups, and restore them.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum BackupCommand {
    Create(CreateArgs),
    List(BackupListArgs),
    Verify(VerifyArgs),
    Restore(RestoreArgs),
    Prune(PruneArgs),
}

/// Make a backup while everything works on.
#[derive(Debug, Args)]
#[command(after_help = "\
A directory can hold any number of backups: each writes only what the earlier ones do not have. It has files that \
never change, so any program can copy it elsewhere. A file holds one backup, and must not exist.

A backup has sessions with their files and snapshots, the context entries of projects, and the configuration without \
headers of servers, servers with a password in the address, `sessions.dataDir` and comments. It has no keys, no \
vocabularies, and nothing that is made again: search index and documents.

Encryption is that of age (age-encryption.org). In an encrypted directory, later backups need the passphrase or the \
identity too. Names and contents are hidden; the number, the sizes and the times of files are not. Without the \
passphrase or the key nobody can read the backup.

Examples:
  ollmctl backup create /mnt/usb/ollm
  ollmctl backup create /mnt/usb/ollm-secret --encrypt
  ollmctl backup create ollm.tar --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p
  ollmctl backup create talk.tar --session last")]
pub(crate) struct CreateArgs {
    #[arg(value_name = "PLACE", help = PLACE_HELP)]
    place: PathBuf,
    /// Only back up this session [default: the whole home].
    #[arg(long, value_name = "SESSION", add = completion::sessions())]
    session: Option<String>,
    #[command(flatten)]
    secret: NewSecretArgs,
}

/// List the backups of a place, the newest first, or the sessions of one backup.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl backup list /mnt/usb/ollm
  ollmctl backup list /mnt/usb/ollm 20261128T044756123Z-2f0c9a417be3d850")]
pub(crate) struct BackupListArgs {
    #[arg(value_name = "PLACE", help = PLACE_HELP)]
    place: PathBuf,
    /// The backup whose sessions are listed.
    #[arg(value_name = "BACKUP")]
    backup: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
}

/// Read all backups of a place and compare every checksum.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 if there is a backup and every byte is as it was written, 1 if not; the damaged files and what they lose \
are named.

Examples:
  ollmctl backup verify /mnt/usb/ollm
  ollmctl backup verify ollm.tar --identity key.txt")]
pub(crate) struct VerifyArgs {
    #[arg(value_name = "PLACE", help = PLACE_HELP)]
    place: PathBuf,
    #[command(flatten)]
    secret: SecretArgs,
}

/// Restore a backup into a home without sessions, or one session into any home.
#[derive(Debug, Args)]
#[command(after_help = "\
Everything is read and checked first, and then comes into the home as a whole, or not at all. Nothing is overwritten: a \
session that exists with other records is refused, and other files that exist stay.
Sessions keep their ids, so a conversation goes on where it stopped.

Examples:
  ollmctl backup restore /mnt/usb/ollm
  ollmctl --home ~/other backup restore ollm.tar
  ollmctl backup restore /mnt/usb/ollm --session 0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01")]
pub(crate) struct RestoreArgs {
    #[arg(value_name = "PLACE", help = PLACE_HELP)]
    place: PathBuf,
    /// The backup [default: the newest].
    #[arg(long, value_name = "BACKUP")]
    backup: Option<String>,
    /// The whole id of the only session to restore.
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    #[command(flatten)]
    secret: SecretArgs,
}

/// Remove the backups of a directory that no rule keeps, and the parts that no other backup needs.
#[derive(Debug, Args)]
#[command(after_help = "\
A backup stays if one of the rules keeps it; the newest one always does. Days, weeks and months are those of UTC, and \
only those count that have a backup. Backups of the home and those of each single session are counted for themselves.
If a backup cannot be read, nothing is removed.

Examples:
  ollmctl backup prune /mnt/usb/ollm --keep-last 3 --keep-daily 7 --keep-monthly 12 --dry-run
  ollmctl backup prune /mnt/usb/ollm --keep-last 1")]
pub(crate) struct PruneArgs {
    #[arg(value_name = "PLACE", help = "A directory of backups")]
    place: PathBuf,
    #[command(flatten)]
    rules: KeepArgs,
    /// Show what would be removed and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    secret: SecretArgs,
}

// No doc comment: clap would print it instead of the help of the command that contains it.

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct KeepArgs {
    /// Keep the newest N backups.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: Option<u32>,
    /// Keep the newest backup of N days.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_daily: Option<u32>,
    /// Keep the newest backup of N weeks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_weekly: Option<u32>,
    /// Keep the newest backup of N months.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_monthly: Option<u32>,
}

pub(super) fn run(command: BackupCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        BackupCommand::Create(args) => create(&args, ctx),
        BackupCommand::List(args) => list(&args, ctx),
        BackupCommand::Verify(args) => verify(&args, ctx),
        BackupCommand::Restore(args) => restore(&args, ctx),
        BackupCommand::Prune(args) => prune(&args, ctx),
    }
}

fn create(args: &CreateArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let path = absolute(&args.place)?;
    let session_id = args.session.as_deref().map(|text| ctx.session(text)).transpose()?;
    let given = args.secret.read(&path, ctx)?;
    let mut params = BackupCreateParams { path, session_id, secret: given };
    let reply = called::<BackupCreate>(&mut params, "backing up", "create", ctx)?;
    ctx.print(&reply, |result, _| render_created(&params.path, result))?;
    if reply.value.skipped.is_empty() {
        return Ok(());
    }
    // A script must not take it for a backup of everything.
    Err(CommandError::Unwell { exit: Exit::Internal })
}

fn list(args: &BackupListArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let (path, backup_id) = (absolute(&args.place)?, args.backup.clone());
    let mut params = BackupListParams { path, backup_id, secret: args.secret.read()? };
    let reply = called::<BackupList>(&mut params, "reading", "list", ctx)?;
    ctx.print(&reply, render_list)
}

fn verify(args: &VerifyArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let path = absolute(&args.place)?;
    let mut params = BackupVerifyParams { path, secret: args.secret.read()? };
    let reply = called::<BackupVerify>(&mut params, "reading", "verify", ctx)?;
    ctx.print(&reply, |result, _| render_verified(&params.path, result))?;
    match reply.value.ok {
        true => Ok(()),
        false => Err(CommandError::Unwell { exit: Exit::Internal }),
    }
}

fn restore(args: &RestoreArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut params = BackupRestoreParams {
        path: absolute(&args.place)?,
        backup_id: args.backup.clone(),
        session_id: args.session,
        secret: args.secret.read()?,
    };
    let reply = called::<BackupRestore>(&mut params, "restoring", "restore", ctx)?;
    ctx.print(&reply, |result, _| render_restored(result))
}

fn prune(args: &PruneArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut params = BackupPruneParams {
        path: absolute(&args.place)?,
        keep_last: args.rules.keep_last,
        keep_daily: args.rules.keep_daily,
        keep_weekly: args.rules.keep_weekly,
        keep_monthly: args.rules.keep_monthly,
        dry_run: args.dry_run,
        secret: args.secret.read()?,
    };
    let reply = called::<BackupPrune>(&mut params, "removing", "prune", ctx)?;
    ctx.print(&reply, render_pruned)
}

/// Calls a method and shows its progress; asks for the passphrase if the place needs one.
fn called<M: Method>(
    params: &mut M::Params,
    label: &str,
    command: &str,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<CallReply<M::Result>>
where
    M::Params: WithSecret,
{
    match call_with_meter::<M>(params, label, ctx) {
        Err(CommandError::Client(error)) => {
            params.complete(error, command, ctx)?;
            call_with_meter::<M>(params, label, ctx)
        }
        reply => reply,
    }
}

/// Calls a method and shows its progress in bytes.
pub(super) fn call_with_meter<M: Method>(
    params: &M::Params,
    label: &str,
    ctx: &CommandContext<'_>,
) -> CommandResult<CallReply<M::Result>> {
    let mut meter = ProgressMeter::bytes(label);
    let kind = EventKind::StoreProgress;
    let reply = ctx.call_with_events::<M>(params, None, kind, &mut |event| {
        let data = event.map(|event| serde_json::from_value(event.data.clone()));
        if let Some(Ok(StoreProgressData { method, done, total })) = data
            && method == M::NAME
        {
            meter.set(done, total);
        }
    })?;
    reply.ok_or_else(|| ClientError::Closed { method: M::NAME.to_owned() }.into())
}

/// Returns the path that the daemon uses, which has no working directory.
fn absolute(path: &Path) -> CommandResult<PathBuf> {
    let fail = |source| CommandError::File { action: "find", path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(fail)?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(CommandError::PathNotUtf8 { path }),
    }
}

fn line(text: &str) -> String {
    sanitize::one_line(text)
}

/// Returns the first of some lines, and how many more there are.
fn shown(lines: impl ExactSizeIterator<Item = String>) -> String {
    let n_more = lines.len().saturating_sub(MAX_SHOWN);
    let mut text: String = lines.take(MAX_SHOWN).map(|text| format!("{text}\n")).collect();
    if n_more > 0 {
        let _infallible =
            writeln!(text, "  and {} more; --json lists them", grouped(n_more as u64));
    }
    text
}

fn render_created(path: &Path, result: &BackupCreateResult) -> String {
    let BackupInfo { backup_id, sessions, bytes: size, .. } = &result.backup;
    let encrypted = if result.encrypted { ", encrypted" } else { "" };
    let mut text = format!(
        "backup {backup_id} of {} ({}{encrypted}) in {}\n",
        counted(*sessions, "session"),
        bytes(*size),
        line(&path.to_string_lossy())
    );
    let _infallible = writeln!(
        text,
        "{}",
        Style::Faint.paint(&format!(
            "{} written ({}), {} there already",
            counted(result.new_parts, "part"),
            bytes(result.new_bytes),
            grouped(result.known_parts)
        ))
    );
    text += &shown(
        result
            .warnings
            .iter()
            .map(|warning| format!("{} {}", Style::Bad.paint("warning:"), line(warning))),
    );
    text += &shown(result.skipped.iter().map(|skipped| {
        let (path, reason) = (line(&skipped.path), line(&skipped.reason));
        format!("{} {path}: {reason}", Style::Bad.paint("not backed up:"))
    }));
    // Other warnings are about the call, and not about the store.
    let is_damaged = result.warnings.iter().any(|warning| warning.starts_with("session "));
    if is_damaged || !result.skipped.is_empty() {
        text += &try_line("ollmctl doctor --store");
    }
    text
}

/// Returns lines about backups that cannot be read.
fn unreadable(backups: &[UnreadableBackup]) -> String {
    shown(backups.iter().map(|backup| {
        let (id, reason) = (line(&backup.backup_id), line(&backup.reason));
        format!("{} backup {id}: {reason}", Style::Bad.paint("cannot be read:"))
    }))
}

fn render_list(result: &BackupListResult, options: &RenderOptions) -> String {
    if result.data.is_empty() {
        return match result.unreadable.as_slice() {
            [] => "no backup is complete\n".to_owned(),
            backups => unreadable(backups),
        };
    }
    if !result.sessions.is_empty() {
        let columns = [
            ("SESSION", TableColumn::Word),
            ("LAST ACTIVITY", TableColumn::Word),
            ("RECORDS", TableColumn::Number),
            ("TITLE", TableColumn::Prose),
        ];
        let rows = result.sessions.iter().map(|session| {
            [
                session.session_id.to_string(),
                options.minute(session.last_activity),
                grouped(session.records),
                line(&session.title),
            ]
        });
        return table::render(options.width, &columns, rows);
    }
    let columns = [
        ("BACKUP", TableColumn::Word),
        ("TIME", TableColumn::Word),
        ("SESSIONS", TableColumn::Number),
        ("SIZE", TableColumn::Number),
        ("OF", TableColumn::Prose),
    ];
    let rows = result.data.iter().map(|backup| {
        let of = backup.session_id.map_or_else(|| "home".to_owned(), |id| format!("session {id}"));
        [
            line(&backup.backup_id),
            options.minute(backup.created_at),
            grouped(backup.sessions),
            bytes(backup.bytes),
            of,
        ]
    });
    table::render(options.width, &columns, rows) + &unreadable(&result.unreadable)
}

fn render_verified(path: &Path, result: &BackupVerifyResult) -> String {
    let n_backups = counted(result.backups.len() as u64, "backup");
    let size = format!("{}, {}", counted(result.parts, "part"), bytes(result.bytes));
    let mut text = match result.ok {
        true => format!("every byte of {n_backups} is as it was written ({size})\n"),
        false => {
            let text = format!("not whole; {n_backups} can be read ({size})");
            format!("{}\n", Style::Bad.paint(&text))
        }
    };
    text += &shown(result.findings.iter().map(|finding| {
        let at = finding.offset.map_or_else(String::new, |at| format!(" at byte {at}"));
        let mut text = format!("{}{at}: {}", line(&finding.path), line(&finding.text));
        for lost in &finding.lost {
            let _infallible = write!(text, "\n  needed by {}", line(lost));
        }
        text
    }));
    let has_bad_part = result.findings.iter().any(|finding| finding.path.starts_with("parts/"));
    if has_bad_part && path.is_dir() {
        // A backup takes a part of the right size for a whole one.
        let place = line(&path.to_string_lossy());
        text += &try_line(&format!(
            "remove these parts and back up to {place} again, which writes what the home has"
        ));
    }
    if result.unneeded_parts > 0 {
        let count = counted(result.unneeded_parts, "part");
        text += &Style::Faint
            .paint(&format!("no backup needs {count}; the next `backup prune` removes this\n"));
    }
    text
}

fn render_restored(result: &BackupRestoreResult) -> String {
    let mut text = String::new();
    let id = line(&result.backup.backup_id);
    for present in &result.present {
        let _infallible =
            writeln!(text, "session {present} is there with all records of the backup");
    }
    if !result.sessions.is_empty() || result.present.is_empty() {
        let _infallible = writeln!(
            text,
            "restored {} ({}) from backup {id}",
            counted(result.sessions.len() as u64, "session"),
            bytes(result.bytes)
        );
    }
    text += &shown(result.kept.iter().map(|path| format!("kept {}, which exists", line(path))));
    text += &unreadable(&result.unreadable);
    if result.config_restored {
        text += "config.yaml is in force; settings that need a restart: ollmctl daemon status\n";
    }
    text
}

fn render_pruned(result: &BackupPruneResult, options: &RenderOptions) -> String {
    let mut text = shown(result.removed.iter().map(|backup| {
        let of = backup.session_id.map_or_else(|| "home".to_owned(), |id| format!("session {id}"));
        format!("{}  {}  {of}", line(&backup.backup_id), options.minute(backup.created_at))
    }));
    let (remove, keep) =
        if result.dry_run { ("would remove", "would keep") } else { ("removed", "kept") };
    let _infallible = writeln!(
        text,
        "{remove} {} and {} ({}), {keep} {}",
        counted(result.removed.len() as u64, "backup"),
        counted(result.removed_parts, "part"),
        bytes(result.removed_bytes),
        counted(result.kept.len() as u64, "backup")
    );
    text
}
