//! `context.recall`: the messages that answer a question; and those that a chat turn brings back into its prompt.
//!
//! **Invariant**: what a turn recalls is recorded before the user's message, so that every later prompt repeats it byte
//! for byte. It is data: defused, and in a block of its own.

use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::content::{
    CompactMode, Delta, RecallHit, RecallScope as WireScope, RecalledRecord,
};
use ollm_protocol::methods::context::{
    ContextBuildParams, ContextRecallParams, ContextRecallResult, RecallExclusion,
};
use ollm_protocol::{Seq, SessionId};

use super::build::{params_like_last, plan};
use super::inputs::{self, BuildLeaf};
use crate::app::core::Core;
use crate::app::error::{AppError, Result, page_limit};
use crate::catalog::{RecallQuery, RecallScope, RecalledMessage};
use crate::config::RecallSetting;
use crate::context::{Built, ItemSource, RECALL_TOPIC, defuse_all};
use crate::projects::Projects;
use crate::session::project_hash;

const DEFAULT_LIMIT: u32 = 8;
const MAX_LIMIT: u32 = 100;
/// Maximum number of messages that a turn recalls.
const MAX_PIECES: usize = 3;
/// Number of messages among which those of a turn are chosen: some are not strong enough, or too long.
const MAX_CANDIDATES: usize = 8;
/// The length of a date, such as `2026-01-27`.
const DATE_CHARS: usize = 10;
/// The first line of the block of recalled messages.
const INTRODUCTION: &str = "Earlier messages that may help with the message below:";

/// Finds the messages that answer a question best (`context.recall`). Blocks on the disk, and never waits for the
/// catalog.
pub(crate) fn recall(core: &Arc<Core>, params: ContextRecallParams) -> Result<ContextRecallResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let asked = AskedSessions::of(core, &params)?;
    let shown = match (params.exclude, params.session_id) {
        (None, _) => HashSet::new(),
        (Some(RecallExclusion::Shown), Some(id)) => shown_now(core, id)?,
        (Some(RecallExclusion::Shown), None) => {
            return Err(AppError::invalid("exclude", "needs sessionId"));
        }
    };
    core.catalog.retry_gaps();
    let own = params.session_id;
    let page = core.catalog.recall(&RecallQuery {
        question: &params.query,
        scope: asked.scope(),
        limit,
        wants: &|id, seq| Some(id) != own || !shown.contains(&seq),
    })?;
    let config = core.config();
    let model = own.map(|id| core.settings(id)).transpose()?.and_then(|settings| settings.model);
    let model = model.or_else(|| config.ollama.model.clone());
    let counter = core.counts.load(model.as_deref(), None, &[]);
    let mut tokens = 0;
    let mut data = Vec::with_capacity(page.messages.len());
    for message in page.messages {
        let more = tokens + u64::from(counter.count_text(&message.excerpt));
        if params.max_tokens.is_some_and(|most| more > most) {
            break;
        }
        tokens = more;
        data.push(hit(message));
    }
    Ok(ContextRecallResult { data, tokens, behind: (page.behind > 0).then_some(page.behind) })
}

/// Returns the earlier messages that a question needs and its prompt does not show, as the record that goes before
/// it; `None` if there are none. Blocks on the disk.
///
/// `params`: those of the build, with the question as `pending`.
pub(crate) fn recall_for_turn(
    core: &Arc<Core>,
    params: &ContextBuildParams,
) -> Result<Option<Delta>> {
    let id = params.session_id;
    let config = core.config();
    let scope = config.recall.scope;
    let Some(question) = params.pending.as_deref().filter(|_| scope != RecallSetting::Off) else {
        return Ok(None);
    };
    let inputs = inputs::load(core, params, None, BuildLeaf::Active)?;
    if scope == RecallSetting::Session && inputs.shows_everything() {
        return Ok(None);
    }
    let built = plan(core, params, &inputs)?;
    let shown = shown_in(&built);
    let is_shown = |session: Option<SessionId>, seq: Seq| {
        let mut recalled = inputs.recalled().iter();
        recalled.any(|(_, record)| record.session_id == session && record.seq == seq)
            || session.is_none() && (shown.contains(&seq) || !inputs.path.contains(seq))
    };
    let other = |session: SessionId| (session != id).then_some(session);
    let asked = AskedSessions::of_turn(core, id, scope)?;
    let page = core.catalog.recall(&RecallQuery {
        question,
        scope: asked.scope(),
        limit: MAX_CANDIDATES,
        wants: &|session, seq| !is_shown(other(session), seq),
    })?;
    let count = |text: &str| u64::from(inputs.counter.count_text(text));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of at most some million tokens"
    )]
    let most = (built.result.token_budget as f64 * config.recall.share) as u64;
    let mut text = INTRODUCTION.to_owned();
    let mut recalled = Vec::new();
    for message in page.messages.into_iter().filter(|message| message.is_strong) {
        let piece = format!("{text}\n{}", piece(&message, other(message.session_id).is_some()));
        let is_repeated = text.contains(defuse_all(&message.excerpt).trim());
        if !is_repeated && count(&piece) <= most {
            text = piece;
            let (seq, score) = (message.seq, message.score);
            recalled.push(RecalledRecord { session_id: other(message.session_id), seq, score });
        }
        if recalled.len() == MAX_PIECES {
            break;
        }
    }
    let topic = RECALL_TOPIC.to_owned();
    Ok((!recalled.is_empty()).then_some(Delta { topic, text, recalled }))
}

/// Returns a recalled message as a prompt shows it: its date and author, and its excerpt.
fn piece(message: &RecalledMessage, is_of_other: bool) -> String {
    let date = message.at.to_string();
    let date = date.get(..DATE_CHARS).unwrap_or_default();
    let place = if is_of_other { ", another conversation" } else { "" };
    // An excerpt with a neighbor names the roles itself.
    let role = message.role.as_str();
    let excerpt = defuse_all(&message.excerpt);
    if message.has_neighbor {
        format!("[{date}{place}]\n{excerpt}")
    } else {
        format!("[{date}{place}] {role}: {excerpt}")
    }
}

/// The sessions that a question is asked of.
pub(super) enum AskedSessions {
    One(SessionId),
    /// Those of a project, by its hash.
    Project(String),
    All,
}

impl AskedSessions {
    fn of(core: &Core, params: &ContextRecallParams) -> Result<Self> {
        let of_session = params.session_id.map(|id| core.summary(id)).transpose()?;
        if of_session.is_some() && params.project_path.is_some() {
            return Err(AppError::invalid("projectPath", "is not allowed together with sessionId"));
        }
        let path = params.project_path.as_deref();
        let path = path.map(|path| project_hash(&Projects::lenient(path)));
        let narrowest = match (&of_session, &path) {
            (Some(_), _) => WireScope::Session,
            (None, Some(_)) => WireScope::Project,
            (None, None) => WireScope::All,
        };
        match (params.scope.unwrap_or(narrowest), of_session, path) {
            (WireScope::All, ..) => Ok(Self::All),
            (WireScope::Session, Some(session), _) => Ok(Self::One(session.session_id)),
            (WireScope::Session, None, _) => Err(AppError::invalid("scope", "needs sessionId")),
            (WireScope::Project, Some(session), _) => {
                // A session without a project stands alone.
                Ok(session.project_hash.map_or(Self::One(session.session_id), Self::Project))
            }
            (WireScope::Project, None, Some(hash)) => Ok(Self::Project(hash)),
            (WireScope::Project, None, None) => {
                Err(AppError::invalid("scope", "needs sessionId or projectPath"))
            }
        }
    }

    fn of_turn(core: &Core, id: SessionId, scope: RecallSetting) -> Result<Self> {
        Ok(match scope {
            RecallSetting::All => Self::All,
            RecallSetting::Project => {
                core.summary(id)?.project_hash.map_or(Self::One(id), Self::Project)
            }
            RecallSetting::Session | RecallSetting::Off => Self::One(id),
        })
    }

    pub(super) fn scope(&self) -> RecallScope<'_> {
        match self {
            Self::One(id) => RecallScope::Session(*id),
            Self::Project(hash) => RecallScope::Project(hash),
            Self::All => RecallScope::All,
        }
    }
}

/// Returns the records that the context of a session shows as they are. Blocks on the disk.
fn shown_now(core: &Arc<Core>, id: SessionId) -> Result<HashSet<Seq>> {
    let params = ContextBuildParams { compact: CompactMode::Never, ..params_like_last(core, id) };
    let inputs = inputs::load(core, &params, None, BuildLeaf::Active)?;
    Ok(shown_in(&plan(core, &params, &inputs)?))
}

/// Returns the records that a context shows as they are.
pub(super) fn shown_in(built: &Built) -> HashSet<Seq> {
    let shown = built.items.iter().filter(|item| !matches!(item.form, "cut" | "stub"));
    let seqs = shown.filter_map(|item| match &item.source {
        ItemSource::Record(record) => Some(record.seq),
        _ => None,
    });
    seqs.collect()
}

fn hit(message: RecalledMessage) -> RecallHit {
    RecallHit {
        session_id: message.session_id,
        title: message.title,
        seq: message.seq,
        role: message.role,
        at: message.at,
        excerpt: message.excerpt,
        score: message.score,
        matched: message.matched,
    }
}
