//! `hook.*`: the hooks of the home and of projects, and which ones of a project may run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::SessionId;
use crate::content::{
    HookInput, HookOccasion, HookOrigin, HookOutput, HookRun, HookState, named_enum,
};

/// The params of `hook.list`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookListParams {
    /// The project whose hooks are listed after those of the home.
    pub project_path: Option<String>,
    /// Whether the texts of a project's hooks are returned, as they are and as they were trusted. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub texts: bool,
}

/// The result of `hook.list`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookListResult {
    /// The hooks, those of the home first, in the order of the occasions and of their names.
    pub data: Vec<Hook>,
    /// Problems that concern no single hook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether hooks run at all.
    pub enabled: bool,
    /// The program that starts hooks.
    pub run_by: HookRunner,
}

named_enum! {
    /// The program that starts hooks.
    pub enum HookRunner {
        /// The daemon.
        Daemon = "daemon",
        /// The systemd instance of the user, without the restrictions of the daemon's service.
        Systemd = "systemd",
    }
}

/// A hook.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// The name: the occasion, or `OCCASION.d/FILE`.
    pub name: String,
    /// The occasion.
    pub occasion: HookOccasion,
    /// The place.
    pub origin: HookOrigin,
    /// The file.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// The blake3 hash of its content; absent if it was not read.
    pub digest: Option<String>,
    /// Whether it runs.
    pub state: HookState,
    /// The reason if it does not run.
    pub problem: Option<String>,
    /// The content, if it is a text.
    pub text: Option<String>,
    /// The content that was trusted, if it is another text.
    pub trusted_text: Option<String>,
    /// The last run since the daemon started.
    pub last_run: Option<HookRun>,
}

/// The params of `hook.trust`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookTrustParams {
    /// The project.
    pub project_path: String,
    /// The hooks that may run, all others of the project may not. Each must have the content that the caller saw.
    pub hooks: Vec<TrustedHook>,
}

/// A hook that may run with one content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrustedHook {
    /// The name, as `hook.list` returns it.
    pub name: String,
    /// The blake3 hash of the content.
    pub digest: String,
}

/// The result of `hook.trust`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookTrustResult {
    /// The number of hooks of the project that may run.
    pub trusted: u64,
}

/// The params of `hook.untrust`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookUntrustParams {
    /// The project. Its directory need not exist any more.
    pub project_path: String,
}

/// The result of `hook.untrust`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookUntrustResult {
    /// Whether hooks of the project were trusted before.
    pub untrusted: bool,
}

/// The params of `hook.test`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookTestParams {
    /// The session that the hooks are told.
    pub session_id: SessionId,
    /// The occasion.
    pub occasion: HookOccasion,
}

/// The result of `hook.test`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookTestResult {
    /// The hooks of the occasion that are ready, each with its run.
    pub data: Vec<HookTest>,
    /// The hooks of the occasion that do not run.
    pub others: Vec<Hook>,
}

/// A hook that was run by hand. Its output changed nothing.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookTest {
    /// The file.
    pub path: String,
    /// The input.
    pub input: HookInput,
    /// The output; absent if it cannot be used.
    pub output: Option<HookOutput>,
    /// The run.
    pub run: HookRun,
}
