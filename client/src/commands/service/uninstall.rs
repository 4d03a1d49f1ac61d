//! `ollmctl service uninstall`: the end of the service, and of every file of it.

use std::io;
use std::path::{Path, PathBuf};

use ollm_protocol::sanitize;
use serde::Serialize;

use super::refuse_other_home;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::daemon::replace::stop_and;
use crate::commands::exec::shell_quoted;
use crate::error::ClientError;
use crate::service::{LINKS, Manager, ManagerKind};

/// The directory of the changes that `systemctl --user edit ollmd` makes.
const EDITS: &str = "ollmd.service.d";

/// The outcome of a removal.
#[derive(Serialize)]
struct Removal {
    removed: Vec<PathBuf>,
    /// The home, which stays.
    home: PathBuf,
    notes: Vec<String>,
}

pub(super) fn run(now: bool, ctx: &mut CommandContext<'_>) -> CommandResult {
    let kind = ManagerKind::of_system(ctx.environment);
    refuse_other_home(kind, ctx)?;
    let home = ctx.connector().address().home().to_owned();
    let directory = kind.directory(ctx.environment).ok_or(ClientError::NoHome)?;
    let mut paths: Vec<PathBuf> =
        kind.file_names().iter().map(|name| directory.join(name)).collect();
    if kind == ManagerKind::Systemd {
        paths.extend(LINKS.map(|link| directory.join(link)));
    }
    paths.retain(|path| path.symlink_metadata().is_ok());
    let mut removal = Removal { removed: Vec::new(), home, notes: vec![] };
    if paths.is_empty() {
        return print(&removal, ctx);
    }
    // Without a manager nothing runs as a service.
    let manager = Manager::find(ctx.environment).ok();
    if let Some(manager) = &manager {
        stop_and(ctx, "service uninstall", now, false, |_, _| {
            // The files go in any case: without them there is no service at the next login.
            removal.notes.extend(manager.disable().err().map(|error| error.to_string()));
            Ok(())
        })?;
    }
    for path in paths {
        remove(&path)?;
        removal.removed.push(path);
    }
    if let Some(manager) = &manager {
        removal.notes.extend(manager.forget().err().map(|error| error.to_string()));
    }
    let edits = directory.join(EDITS);
    if kind == ManagerKind::Systemd && edits.exists() {
        let path = shell_quoted(&sanitize::one_line(&edits.to_string_lossy()));
        removal.notes.push(format!("your own settings of the service stay: rm -r {path}"));
    }
    print(&removal, ctx)
}

/// Removes a file, and its directory if that was the last one of it and is one of links.
fn remove(path: &Path) -> CommandResult {
    let fail = |source| CommandError::File { action: "remove", path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        // The manager removes the links.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let parent =
        path.parent().filter(|parent| parent.extension().is_some_and(|end| end == "wants"));
    if let Some(parent) = parent {
        // Fails if it has other links.
        drop(std::fs::remove_dir(parent));
    }
    Ok(())
}

fn print(removal: &Removal, ctx: &mut CommandContext<'_>) -> CommandResult {
    ctx.print_value(removal, |removal, _| {
        if removal.removed.is_empty() {
            return "no service is installed\n".to_owned();
        }
        let path = |path: &PathBuf| sanitize::one_line(&path.to_string_lossy());
        let mut text = String::new();
        for removed in &removal.removed {
            text.push_str(&format!("removed {}\n", path(removed)));
        }
        text + &format!(
            "the service is gone; the data stays in {}, and any ollmctl command starts ollmd\n",
            path(&removal.home)
        )
    })?;
    if !ctx.json() {
        ctx.terminal.flush()?;
        removal.notes.iter().for_each(|note| ctx.note(note));
    }
    Ok(())
}
