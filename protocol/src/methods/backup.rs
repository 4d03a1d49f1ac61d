//! `backup.*`: copies of sessions in a directory or a file outside of the home, and their return.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{SessionId, Timestamp};

/// The secrets of an encrypted backup. Each text is shown by no log and no error.
#[skip_serializing_none]
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupSecret {
    /// The passphrase.
    pub passphrase: Option<String>,
    /// The secret keys of age, each `AGE-SECRET-KEY-1...`, of which one opens the backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<String>,
    /// The public keys of age, each `age1...`, whose secret keys shall open a new backup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
}

impl fmt::Debug for BackupSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackupSecret(hidden)")
    }
}

/// The params of `backup.create`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupCreateParams {
    /// The absolute path: a file if its name ends with `.tar`, which must not exist, or else a directory, to which the
    /// backup is added.
    pub path: PathBuf,
    /// The only session; default the whole home.
    pub session_id: Option<SessionId>,
    /// Encrypts a new backup, or opens an encrypted directory.
    pub secret: Option<BackupSecret>,
}

/// The result of `backup.create`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupCreateResult {
    /// The backup.
    pub backup: BackupInfo,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// The number of parts that were written.
    pub new_parts: u64,
    /// The bytes of these parts before encryption.
    pub new_bytes: u64,
    /// The number of parts that were there already.
    pub known_parts: u64,
    /// The files that are not in the backup, with the reason, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedFile>,
    /// Sentences for a person: about damage that was backed up as it is, and about what was asked and not done; at most
    /// 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A file that a backup lacks, or a directory that could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkippedFile {
    /// The path in the home.
    pub path: String,
    /// The reason, for a person.
    pub reason: String,
}

/// A backup as lists show it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupInfo {
    /// The id: the time in UTC and a part of a checksum.
    pub backup_id: String,
    /// The time.
    pub created_at: Timestamp,
    /// The version of the daemon that made it.
    pub version: String,
    /// The only session; absent for a backup of the whole home.
    pub session_id: Option<SessionId>,
    /// The number of sessions.
    pub sessions: u64,
    /// The number of files.
    pub files: u64,
    /// The size of the files in bytes.
    pub bytes: u64,
}

/// A session of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackedUpSession {
    /// The session.
    pub session_id: SessionId,
    /// The title.
    pub title: String,
    /// The time of its last activity.
    pub last_activity: Timestamp,
    /// The number of records in its log.
    pub records: u64,
    /// The size of its log in bytes.
    pub log_bytes: u64,
}

/// A backup whose manifest cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnreadableBackup {
    /// The id.
    pub backup_id: String,
    /// The reason, for a person.
    pub reason: String,
}

/// The params of `backup.list`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupListParams {
    /// The absolute path of the file or directory.
    pub path: PathBuf,
    /// The only backup, whose sessions are listed too.
    pub backup_id: Option<String>,
    /// Opens an encrypted backup.
    pub secret: Option<BackupSecret>,
}

/// The result of `backup.list`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupListResult {
    /// Whether the backups are encrypted.
    pub encrypted: bool,
    /// The backups, the newest first.
    pub data: Vec<BackupInfo>,
    /// The sessions of the one that was asked for, the most recently active first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<BackedUpSession>,
    /// The backups that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableBackup>,
}

/// The params of `backup.verify`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupVerifyParams {
    /// The absolute path of the file or directory.
    pub path: PathBuf,
    /// Opens an encrypted backup.
    pub secret: Option<BackupSecret>,
}

/// The result of `backup.verify`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupVerifyResult {
    /// Whether there is a backup, and every byte is as it was written.
    pub ok: bool,
    /// Whether the backups are encrypted.
    pub encrypted: bool,
    /// The backups that can be read, the newest first.
    pub backups: Vec<BackupInfo>,
    /// The number of parts that were read.
    pub parts: u64,
    /// The size of these parts in bytes, without encryption.
    pub bytes: u64,
    /// The number of parts that no backup needs, as an interrupted one leaves them until the next prune.
    pub unneeded_parts: u64,
    /// The damage, at most 1,000 places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<BackupFinding>,
}

/// A damaged place of a backup.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupFinding {
    /// The file in the directory or in the tar file.
    pub path: String,
    /// The position in the tar file, in bytes.
    pub offset: Option<u64>,
    /// A sentence for a person.
    pub text: String,
    /// The files of the home that cannot be restored, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// The params of `backup.restore`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupRestoreParams {
    /// The absolute path of the file or directory.
    pub path: PathBuf,
    /// The backup; default the newest, or the newest with the session.
    pub backup_id: Option<String>,
    /// The only session; default everything, into a home without sessions.
    pub session_id: Option<SessionId>,
    /// Opens an encrypted backup.
    pub secret: Option<BackupSecret>,
}

/// The result of `backup.restore`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRestoreResult {
    /// The backup.
    pub backup: BackupInfo,
    /// The sessions that were restored.
    pub sessions: Vec<SessionId>,
    /// The sessions that the home has already, with the same records or more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub present: Vec<SessionId>,
    /// The size of the restored files in bytes.
    pub bytes: u64,
    /// The files that the home has already, whatever their content; they stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// The newer backups that cannot be read, so that an older one with the session was restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableBackup>,
    /// Whether the configuration was restored. It is in force, except for what `daemon.status` has in `restartNeeded`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub config_restored: bool,
}

/// The params of `backup.prune`. One of the numbers is at least 1.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupPruneParams {
    /// The absolute path of the directory.
    pub path: PathBuf,
    /// Keeps this many of the newest backups of each group: those of the home, and those of each single session.
    pub keep_last: Option<u32>,
    /// Keeps the newest backup of this many days that have one, by UTC.
    pub keep_daily: Option<u32>,
    /// Keeps the newest backup of this many weeks that have one, from Monday by UTC.
    pub keep_weekly: Option<u32>,
    /// Keeps the newest backup of this many months that have one, by UTC.
    pub keep_monthly: Option<u32>,
    /// Whether to return what would be removed without removing it. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Opens encrypted backups.
    pub secret: Option<BackupSecret>,
}

/// The result of `backup.prune`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupPruneResult {
    /// Whether the backups are encrypted.
    pub encrypted: bool,
    /// The backups that stay, the newest first.
    pub kept: Vec<BackupInfo>,
    /// The backups that were removed, or would be, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<BackupInfo>,
    /// The number of parts that were removed, or would be, because no backup needs them.
    pub removed_parts: u64,
    /// The size of the files of these parts in bytes.
    pub removed_bytes: u64,
    /// Whether this was a dry run, which removes nothing. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}
