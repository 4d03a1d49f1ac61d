//! `context.recall`: the messages that answer a question. `turn_recall` brings them back into prompts.

use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::content::{RecallHit, RecallScope as WireScope};
use ollm_protocol::methods::context::{ContextRecallParams, ContextRecallResult, RecallExclusion};
use ollm_protocol::{Seq, SessionId};

use super::inputs::{self, BuildLeaf, plan, request_like_last};
use crate::app::core::Core;
use crate::app::error::{AppError, Result, page_limit};
use crate::app::models::gate::{is_unrestricted, may_quote};
use crate::app::other_branches::other_branches;
use crate::catalog::{RecallPeriod, RecallQuery, RecallScope, RecalledMessage, RecalledPage};
use crate::config::RecallSetting;
use crate::context::{Built, ItemSource};
use crate::projects::Projects;
use crate::session::project_hash;

const DEFAULT_LIMIT: u32 = 8;
const MAX_LIMIT: u32 = 100;

/// Finds the messages that answer a question best (`context.recall`). Blocks on the disk. Does not wait for a catalog that is
/// being rebuilt.
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
    let query = RecallQuery {
        question: &params.query,
        scope: asked.scope(),
        period: RecallPeriod { since: params.since, until: params.until },
        limit,
        turn: None,
        wants: &|id, seq| Some(id) != own || !shown.contains(&seq),
    };
    let page = recall_of(core, &query, &|id| !params.unrestricted || is_unrestricted(core, id))?;
    let model = match own {
        Some(id) => core.placed_or_default(id, core.settings(id)?.model),
        None => core.model_or_default(None),
    };
    let counter = core.counts.load(model.as_deref(), None, &[]);
    let mut tokens = 0;
    let mut data = Vec::with_capacity(page.messages.len());
    for message in page.messages {
        let more = tokens + u64::from(counter.count_text(&message.excerpt));
        if params.token_limit.is_some_and(|most| more > most) {
            break;
        }
        tokens = more;
        data.push(hit(message));
    }
    let found = other_branches(core, data.iter().map(|hit| (hit.session_id, hit.seq)));
    for hit in &mut data {
        hit.other_branch = found.contains(&(hit.session_id, hit.seq));
        hit.short_id = core.catalog.short_id(hit.session_id);
    }
    Ok(ContextRecallResult { data, tokens, behind: (page.behind > 0).then_some(page.behind) })
}

/// Finds messages for the prompts of a session; none of a session that it may not quote.
pub(in crate::app) fn recall_for_prompt(
    core: &Core,
    id: SessionId,
    query: &RecallQuery<'_>,
) -> Result<RecalledPage> {
    recall_of(core, query, &|other| may_quote(core, id, other))
}

/// Finds messages of the sessions that may be shown. Only those of found messages are examined, because each is opened.
fn recall_of(
    core: &Core,
    query: &RecallQuery<'_>,
    may_show: &dyn Fn(SessionId) -> bool,
) -> Result<RecalledPage> {
    let mut denied = HashSet::new();
    let wants = query.wants;
    loop {
        let page = core.catalog.recall(&RecallQuery {
            wants: &|session, seq| !denied.contains(&session) && wants(session, seq),
            ..*query
        })?;
        let found: HashSet<SessionId> = page.messages.iter().map(|one| one.session_id).collect();
        let before = denied.len();
        let new: Vec<_> = found.into_iter().filter(|session| !may_show(*session)).collect();
        denied.extend(new);
        if denied.len() == before {
            return Ok(page);
        }
    }
}

/// The sessions that a question is asked of.
pub(in crate::app) enum AskedSessions {
    One(SessionId),
    /// The sessions of a project, by its hash.
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

    /// Returns the sessions that a turn recalls from.
    pub(in crate::app) fn of_turn(
        core: &Core,
        id: SessionId,
        scope: RecallSetting,
    ) -> Result<Self> {
        Ok(match scope {
            RecallSetting::All => Self::All,
            RecallSetting::Project => {
                core.summary(id)?.project_hash.map_or(Self::One(id), Self::Project)
            }
            RecallSetting::Session | RecallSetting::Off => Self::One(id),
        })
    }

    pub(in crate::app) fn scope(&self) -> RecallScope<'_> {
        match self {
            Self::One(id) => RecallScope::Session(*id),
            Self::Project(hash) => RecallScope::Project(hash),
            Self::All => RecallScope::All,
        }
    }
}

/// Returns the records that the context of a session shows as they are. Blocks on the disk.
fn shown_now(core: &Arc<Core>, id: SessionId) -> Result<HashSet<Seq>> {
    let request = request_like_last(core, id);
    let inputs = inputs::load(core, &request, None, BuildLeaf::Active)?;
    Ok(shown_in(&plan(core, &request, &inputs)?))
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
        short_id: None,
        title: message.title,
        seq: message.seq,
        role: message.role,
        at: message.at,
        excerpt: message.excerpt,
        score: message.score,
        matched: message.matched,
        other_branch: false,
    }
}
