//! Passphrases and keys: read from files or the terminal, never from the command line.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ollm_protocol::methods::backup::{
    BackupCreateParams, BackupListParams, BackupPruneParams, BackupRestoreParams, BackupSecret,
    BackupVerifyParams,
};

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;
use crate::regular_file;

/// The largest file of a passphrase or of keys, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

// These structs have no doc comments: clap would print them instead of the help of the command that contains them.

#[derive(Debug, Args)]
pub(super) struct SecretArgs {
    /// The file whose first line is the passphrase [default: asked on the terminal if it is needed].
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,
    /// The file with the secret key of age, as `age-keygen` writes it.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct NewSecretArgs {
    /// Encrypt with a passphrase, which is asked for.
    #[arg(long, conflicts_with_all = ["passphrase_file", "identity", "recipient", "recipients_file"])]
    encrypt: bool,
    #[command(flatten)]
    existing: SecretArgs,
    /// Encrypt a new place for the owner of this public key of age; can be repeated.
    #[arg(long, value_name = "KEY", conflicts_with = "passphrase_file")]
    recipient: Vec<String>,
    /// Encrypt a new place for the owners of the public keys in a file, one a line.
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    recipients_file: Option<PathBuf>,
}

impl SecretArgs {
    /// Reads the given files; `None` if none was given.
    pub(super) fn read(&self) -> CommandResult<Option<BackupSecret>> {
        let secret = BackupSecret {
            passphrase: self.passphrase_file.as_deref().map(passphrase_in).transpose()?,
            identities: self.identity.as_deref().map(keys_in).transpose()?.unwrap_or_default(),
            recipients: Vec::new(),
        };
        Ok((secret != BackupSecret::default()).then_some(secret))
    }
}

impl NewSecretArgs {
    /// Reads the given files, or asks for a passphrase: twice for a new place.
    pub(super) fn read(
        &self,
        place: &Path,
        ctx: &CommandContext<'_>,
    ) -> CommandResult<Option<BackupSecret>> {
        if self.encrypt {
            let is_new = !place.join("ollm-backup.json").exists();
            let passphrase = Some(ask(is_new, "create", ctx)?);
            return Ok(Some(BackupSecret { passphrase, ..BackupSecret::default() }));
        }
        let mut secret = self.existing.read()?.unwrap_or_default();
        secret.recipients.clone_from(&self.recipient);
        if let Some(path) = &self.recipients_file {
            secret.recipients.extend(keys_in(path)?);
        }
        Ok((secret != BackupSecret::default()).then_some(secret))
    }
}

/// Params with the secrets of a backup.
pub(super) trait WithSecret {
    fn secret(&mut self) -> &mut Option<BackupSecret>;

    /// Asks for the passphrase if an error says that it is needed.
    ///
    /// **Errors**: the same error, with the flag that helps, if nobody can be asked or a passphrase was given.
    fn complete(
        &mut self,
        mut error: ClientError,
        command: &str,
        ctx: &CommandContext<'_>,
    ) -> CommandResult {
        let ClientError::Rpc(failure) = &mut error else { return Err(error.into()) };
        let flag = match failure.fields.get("reason").and_then(|reason| reason.as_str()) {
            Some("passphraseNeeded") if self.secret().is_none() && ctx.terminal.can_ask() => {
                let passphrase = Some(ask(false, command, ctx)?);
                *self.secret() = Some(BackupSecret { passphrase, ..BackupSecret::default() });
                return Ok(());
            }
            Some("passphraseNeeded") => "--passphrase-file FILE",
            Some("identityNeeded") => "--identity FILE",
            _ => return Err(error.into()),
        };
        failure.hint = Some(format!("ollmctl backup {command} PLACE {flag}"));
        Err(error.into())
    }
}

macro_rules! with_secret {
    ($($params:ty),*) => {
        $(impl WithSecret for $params {
            fn secret(&mut self) -> &mut Option<BackupSecret> {
                &mut self.secret
            }
        })*
    };
}

with_secret!(
    BackupCreateParams,
    BackupListParams,
    BackupPruneParams,
    BackupRestoreParams,
    BackupVerifyParams
);

/// Asks for a passphrase on the terminal, twice for a new one.
fn ask(is_new: bool, command: &str, ctx: &CommandContext<'_>) -> CommandResult<String> {
    if !ctx.terminal.can_ask() {
        let hint = format!("ollmctl backup {command} PLACE --passphrase-file FILE");
        return Err(CommandError::usage(
            "there is no terminal to ask for the passphrase on",
            &hint,
        ));
    }
    let prompt = |text: &str| rpassword::prompt_password(text).map_err(CommandError::Input);
    let passphrase = prompt("passphrase of the backup: ")?;
    if passphrase.is_empty() {
        return Err(CommandError::usage("the passphrase is empty", ""));
    }
    if is_new && prompt("the same again: ")? != passphrase {
        return Err(CommandError::usage("the two passphrases differ", ""));
    }
    Ok(passphrase)
}

/// Reads the first line of a file.
fn passphrase_in(path: &Path) -> CommandResult<String> {
    let text = read(path)?;
    let passphrase = text.lines().next().unwrap_or_default().to_owned();
    if passphrase.is_empty() {
        let problem = format!("{} has no passphrase in its first line", path.display());
        return Err(CommandError::usage(problem, ""));
    }
    Ok(passphrase)
}

/// Reads the keys of a file, one a line, besides comments. A file without any must not lead to a plain backup.
fn keys_in(path: &Path) -> CommandResult<Vec<String>> {
    let text = read(path)?;
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = keys.map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(CommandError::usage(format!("{} has no key", path.display()), ""));
    }
    Ok(keys)
}

/// Reads a whole file: a key behind a limit would be missing without a word.
fn read(path: &Path) -> CommandResult<String> {
    let mut text = String::new();
    let read = regular_file::open_input(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|source| CommandError::File { action: "read", path: path.to_owned(), source })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("{} has more than {MAX_FILE_BYTES} bytes", path.display());
        return Err(CommandError::usage(problem, ""));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the files are those of a user")]
    fn secrets_are_read_from_files_without_comments_and_line_breaks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "# a key\n\n  age1x \nage1y\n").unwrap();
        assert_eq!(keys_in(&path).unwrap(), ["age1x", "age1y"]);
        std::fs::write(&path, "correct horse \r\nmore\n").unwrap();
        assert_eq!(passphrase_in(&path).unwrap(), "correct horse ");
        std::fs::write(&path, "\nmore\n").unwrap();
        assert!(matches!(passphrase_in(&path), Err(CommandError::Usage { .. })));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the files are those of a user")]
    fn file_without_a_key_or_with_too_many_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let check = |content: &str, expected: &str| {
            std::fs::write(&path, content).unwrap();
            let error = keys_in(&path).unwrap_err();
            assert!(matches!(error, CommandError::Usage { .. }), "{error:?}");
            assert!(error.to_string().ends_with(expected), "{error}");
        };
        check("# none\n", "has no key");
        check("", "has no key");
        check(&"age1x\n".repeat(50_000), "has more than 262144 bytes");
    }
}
