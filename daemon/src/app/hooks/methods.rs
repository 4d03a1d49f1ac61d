//! `hook.*`: hooks as the wire has them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{HookOccasion, HookOrigin, HookState};
use ollm_protocol::methods::hook::{
    Hook, HookListParams, HookListResult, HookRunner, HookTest, HookTestParams, HookTestResult,
    HookTrustParams, HookTrustResult, HookUntrustParams, HookUntrustResult, TrustedHook,
};

use super::{find, input_with_settings, run_by, run_hooks};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::hooks::{FoundHook, RunBy};
use crate::projects::Projects;

/// The most bytes of texts in a list. Their JSON can have six times as many, and is less than a response may have: a text that
/// was shortened would hide what is trusted.
const MAX_TEXT_BYTES: usize = 2 << 20;
/// The most hooks that are trusted at once: as many as a project can have.
const MAX_TRUSTED: usize = 64;

/// Lists hooks (`hook.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: HookListParams) -> Result<HookListResult> {
    let project = params.project_path.as_deref().map(Projects::canonical).transpose()?;
    let found = core.hooks.find(project.as_deref().map(Path::new), &HookOccasion::ALL);
    let mut n_left = MAX_TEXT_BYTES;
    let shown = |hook: FoundHook| {
        let has_texts = params.texts && hook.origin == HookOrigin::Project;
        let texts = if has_texts { core.hooks.texts(&hook) } else { (None, None) };
        let n_bytes: usize = [&texts.0, &texts.1].into_iter().flatten().map(String::len).sum();
        let (text, trusted_text) = match n_left.checked_sub(n_bytes) {
            Some(rest) => {
                n_left = rest;
                texts
            }
            None => (None, None),
        };
        Hook { text, trusted_text, ..shown(core, hook) }
    };
    let config = core.config();
    Ok(HookListResult {
        data: found.hooks.into_iter().map(shown).collect(),
        warnings: found.warnings,
        enabled: config.hooks.enabled,
        run_by: match run_by(&config) {
            RunBy::Daemon => HookRunner::Daemon,
            RunBy::Systemd => HookRunner::Systemd,
        },
    })
}

/// Lets hooks of a project run (`hook.trust`). Blocks on the disk.
pub(crate) fn trust(core: &Arc<Core>, params: HookTrustParams) -> Result<HookTrustResult> {
    let project = PathBuf::from(Projects::canonical(&params.project_path)?);
    if params.hooks.len() > MAX_TRUSTED {
        let problem = format!("must have at most {MAX_TRUSTED} hooks");
        return Err(AppError::invalid("hooks", problem));
    }
    let pair = |hook: TrustedHook| (hook.name, hook.digest);
    let wanted: Vec<_> = params.hooks.into_iter().map(pair).collect();
    core.hooks.trust(&project, &wanted)?;
    Ok(HookTrustResult { trusted: wanted.len() as u64 })
}

/// Lets no hook of a project run any more (`hook.untrust`). Blocks on the disk.
pub(crate) fn untrust(core: &Arc<Core>, params: HookUntrustParams) -> Result<HookUntrustResult> {
    let project = PathBuf::from(Projects::lenient(&params.project_path));
    Ok(HookUntrustResult { untrusted: core.hooks.untrust(&project)? })
}

/// Runs the hooks of an occasion by hand (`hook.test`).
pub(crate) async fn test(core: Arc<Core>, params: HookTestParams) -> Result<HookTestResult> {
    let HookTestParams { session_id, occasion } = params;
    if !core.config().hooks.enabled {
        return Err(AppError::invalid("occasion", "hooks.enabled is false, so no hook runs"));
    }
    let input =
        blocking(&core, move |core| input_with_settings(core, session_id, occasion)).await?;
    let found = find(&core, input.project_path.clone(), vec![occasion]).await?;
    let (ready, others): (Vec<_>, Vec<_>) =
        found.hooks.into_iter().partition(|hook| hook.state == HookState::Ready);
    let finished = run_hooks(&core, ready, &input).await;
    let test = |one: super::FinishedHook| HookTest {
        path: one.hook.path.to_string_lossy().into_owned(),
        input: input.clone(),
        output: one.output,
        run: one.run,
    };
    Ok(HookTestResult {
        data: finished.into_iter().map(test).collect(),
        others: others.into_iter().map(|hook| shown(&core, hook)).collect(),
    })
}

/// Returns a hook without its texts.
fn shown(core: &Core, hook: FoundHook) -> Hook {
    Hook {
        last_run: core.hook_runs.last_run(&hook.path),
        path: hook.path.to_string_lossy().into_owned(),
        name: hook.name,
        occasion: hook.occasion,
        origin: hook.origin,
        size_bytes: hook.size_bytes,
        digest: hook.digest,
        state: hook.state,
        problem: hook.problem,
        text: None,
        trusted_text: None,
    }
}
