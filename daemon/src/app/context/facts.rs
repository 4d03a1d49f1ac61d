//! Facts: what the user stated and what still holds, for lists and for the heads of contexts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use ollm_protocol::content::{
    AskedFact, Custom, FACTS_BLOCK, HeadItem, RecordBody, RecordKind, Retention, Role,
};
use ollm_protocol::limits::{MAX_PAGE_BYTES, json_bytes};
use ollm_protocol::methods::context::{
    ContextFact, ContextFactsParams, ContextFactsResult, ContextForgetFactParams,
    ContextForgetFactResult, FactOrigin, FactRef,
};
use ollm_protocol::{Seq, SessionId, method};
use parking_lot::Mutex;

use super::folds::{active_path, facts, pins, settled_path};
use crate::app::change::{FirstPhase, in_two_phases};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{take_key, uncounted};
use crate::app::error::{AppError, Result, page_limit};
use crate::app::path::ActivePath;
use crate::context::compact::recount_facts;
use crate::context::{FactSource, defuse};
use crate::facts::{
    FORGET_RECORD, FactCandidate, FactFold, ForgottenFact, KnownFact, RankedFact, SaidText,
    ShownText, block_lines, fact_block, fact_candidates,
};
use crate::session::SessionError;

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 500;

/// Lists the facts of a session (`context.facts`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: ContextFactsParams) -> Result<ContextFactsResult> {
    let ContextFactsParams { session_id: id, include_forgotten, limit, cursor } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let before = cursor.as_deref().map(parse_cursor).transpose()?;
    let known = KnownFacts::load(core, id)?;
    let ranked = known.fold.ranked(&known.pins);
    let listed = ranked.iter().filter(|one| include_forgotten || !one.is_forgotten);
    let mut rest: Vec<&RankedFact<'_>> = listed.collect();
    rest.sort_by_key(|one| std::cmp::Reverse((one.fact.seq, one.fact.index)));
    let total = rest.len() as u64;
    rest.retain(|one| before.is_none_or(|before| (one.fact.seq, one.fact.index) < before));
    let (mut data, mut bytes) = (Vec::new(), 0);
    for ranked in &rest {
        let fact = known.describe(ranked);
        bytes += json_bytes(&fact);
        data.push(fact);
        if data.len() >= limit || bytes > MAX_PAGE_BYTES {
            break;
        }
    }
    let last = data.last().filter(|_| data.len() < rest.len());
    let next_cursor = last.map(|fact| format!("{}.{}", fact.seq, fact.index));
    Ok(ContextFactsResult { data, total, next_cursor })
}

/// Parses the position of a fact: the number of its record, and its own among those of the record.
fn parse_cursor(cursor: &str) -> Result<(Seq, u32)> {
    let parts = cursor
        .split_once('.')
        .and_then(|(seq, index)| Some((seq.parse().ok()?, index.parse().ok()?)));
    let (seq, index) =
        parts.ok_or_else(|| AppError::invalid("cursor", "is not a cursor of this list"))?;
    Ok((Seq(seq), index))
}

/// Suppresses facts of a record, or shows them again (`context.forgetFact`).
///
/// The head in force still shows them; the next one follows the change.
pub(crate) async fn forget(
    core: Arc<Core>,
    mut params: ContextForgetFactParams,
) -> Result<ContextForgetFactResult> {
    let key = take_key::<method::ContextForgetFact>(&mut params, |params| &mut params.key)?;
    let ContextForgetFactParams { session_id: id, seq, index, restore, .. } = params;
    let has_key = key.is_some();
    let first_phase = |_| {
        blocking(&core, move |core| {
            let path = settled_path(core, id)?;
            let (change, is_changed) = forget_record(core, id, &path, seq, index, restore)?;
            // A key is remembered even by a call that changes nothing.
            if !is_changed && !has_key {
                return Ok(FirstPhase::Nothing(false));
            }
            let data =
                serde_json::to_value(&change).expect("a struct of numbers and strings is JSON");
            let custom = Custom { name: FORGET_RECORD.to_owned(), data, context_text: None };
            let records = vec![uncounted(RecordBody::Custom(custom))];
            Ok(FirstPhase::Append(path.leaf, records, is_changed))
        })
    };
    let (is_changed, _) = in_two_phases(&core, id, key.as_ref(), first_phase).await?;
    let data = blocking(&core, move |core| {
        let known = KnownFacts::load(core, id)?;
        let ranked = known.fold.ranked(&known.pins);
        let own = ranked.iter().filter(|one| one.fact.seq == seq);
        Ok(own.map(|one| known.describe(one)).collect())
    })
    .await?;
    let (changed, duplicate) = (is_changed == Some(true), is_changed.is_none());
    Ok(ContextForgetFactResult { data, changed, duplicate })
}

/// Returns the change of a record's facts, and whether it changes anything. Blocks on the disk.
fn forget_record(
    core: &Core,
    id: SessionId,
    path: &ActivePath,
    seq: Seq,
    index: Option<u32>,
    restored: bool,
) -> Result<(ForgottenFact, bool)> {
    let entry = core.sessions.with(id, |live| live.state().entry(seq))?;
    let kind = entry.ok_or(SessionError::RecordNotFound { id, seq })?;
    let states = match kind.kind() {
        Some(RecordKind::Message) => kind.role() == Some(Role::User),
        kind => kind == Some(RecordKind::ContextEntry),
    };
    if !states {
        return Err(AppError::invalid(
            "seq",
            "only messages of the user and context entries state facts",
        ));
    }
    let fold = facts(core, id, path)?;
    let listed = fold.ranked(&pins(core, id, path)?).into_iter();
    let own: Vec<_> = listed.map(|ranked| ranked.fact).filter(|fact| fact.seq == seq).collect();
    let digest = match index {
        None => None,
        Some(index) => match own.iter().find(|fact| fact.index == index) {
            Some(fact) => Some(fact.digest()),
            None => {
                let problem = format!("record {seq} states no fact {index} that holds");
                return Err(AppError::invalid("index", problem));
            }
        },
    };
    if own.is_empty() {
        return Err(AppError::invalid("seq", format!("record {seq} states no fact that holds")));
    }
    if restored && index.is_some() && fold.is_forgotten(seq, None) {
        let problem = "was suppressed with all facts of its record; restore them without index";
        return Err(AppError::invalid("index", problem));
    }
    let is_forgotten = |digest: Option<&str>| fold.is_forgotten(seq, digest);
    let was_forgotten =
        is_forgotten(None) || digest.as_deref().is_some_and(|digest| is_forgotten(Some(digest)));
    let is_changed = match (restored, &digest) {
        (false, _) => !was_forgotten,
        (true, Some(_)) => was_forgotten,
        (true, None) => was_forgotten || own.iter().any(|fact| is_forgotten(Some(&fact.digest()))),
    };
    Ok((ForgottenFact { seq, digest, restored }, is_changed))
}

/// The facts on the path of a build, which are folded when a head is planned.
pub(crate) struct SessionFacts {
    core: Arc<Core>,
    id: SessionId,
    path: Arc<ActivePath>,
    pins: Vec<Seq>,
    fold: OnceLock<Arc<FactFold>>,
    /// The error of the fold. If it is set, the head was planned without facts and must not be used.
    failure: Mutex<Option<AppError>>,
}

impl SessionFacts {
    pub(super) fn new(
        core: &Arc<Core>,
        id: SessionId,
        path: &Arc<ActivePath>,
        pins: Vec<Seq>,
    ) -> Self {
        let (core, path) = (Arc::clone(core), Arc::clone(path));
        Self { core, id, path, pins, fold: OnceLock::new(), failure: Mutex::new(None) }
    }

    /// Returns the facts. Blocks on the disk.
    pub(crate) fn fold(&self) -> Result<Arc<FactFold>> {
        if let Some(fold) = self.fold.get() {
            return Ok(Arc::clone(fold));
        }
        let fold = facts(&self.core, self.id, &self.path)?;
        Ok(Arc::clone(self.fold.get_or_init(|| fold)))
    }

    /// Returns the error of a fold that failed while a head was planned.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }

    /// Returns the retention of the newest compaction with the facts that a prompt says now. Blocks on the disk.
    pub(super) fn retention_in(&self, retention: Retention, prompt: &str) -> Result<Retention> {
        let retention = recount_facts(retention, self, prompt);
        self.check()?;
        Ok(retention)
    }

    /// Returns the facts as if a model had been asked about some of them.
    pub(crate) fn with_asked(&self, asked: &[AskedFact]) -> Result<Self> {
        let Self { core, id, path, pins, .. } = self;
        let with = Self::new(core, *id, path, pins.clone());
        let mut fold = self.fold()?;
        Arc::make_mut(&mut fold).note_asked(asked);
        Ok(Self { fold: OnceLock::from(fold), ..with })
    }

    /// Returns the facts that a model should be asked about before a head is recorded, and the newest compaction in which one
    /// was asked. Blocks on the disk.
    pub(crate) fn candidates(
        &self,
        head: &[HeadItem],
        prompt: &str,
        count: &dyn Fn(&str) -> u64,
    ) -> Result<(Vec<FactCandidate>, Option<Seq>)> {
        let lines: HashSet<String> = shown_lines(head).into_iter().collect();
        let fold = self.fold()?;
        let is_in_block = |fact: &KnownFact| lines.contains(&defuse(&fact.shown()));
        Ok((fact_candidates(&fold, &is_in_block, prompt, count), fold.asked_at))
    }

    fn fold_or_note(&self) -> Option<Arc<FactFold>> {
        self.fold().map_err(|error| *self.failure.lock() = Some(error)).ok()
    }
}

impl FactSource for SessionFacts {
    fn lines(
        &self,
        notes: &str,
        is_shown: &dyn Fn(Seq) -> bool,
        room: u64,
        count: &dyn Fn(&str) -> u64,
    ) -> String {
        let Some(fold) = self.fold_or_note() else { return String::new() };
        let shown = ShownText { notes, has_record: is_shown };
        let text = fact_block(&fold.ranked(&self.pins), &shown, room, count).text;
        text.lines().map(defuse).collect::<Vec<_>>().join("\n")
    }

    fn unsaid_records(&self, text: &str) -> HashMap<Seq, f32> {
        let mut records = HashMap::new();
        let Some(fold) = self.fold_or_note() else { return records };
        let said = SaidText::new(text);
        let ranked = fold.ranked(&self.pins);
        let unsaid =
            |one: &&RankedFact<'_>| one.is_worth_showing() && !said.says(&one.fact.searched);
        for one in ranked.iter().filter(unsaid) {
            *records.entry(one.fact.seq).or_default() += one.probability();
        }
        records
    }

    fn count_lasting(&self, text: &str) -> (f32, f32) {
        let fold = self.fold_or_note();
        fold.map_or((0.0, 0.0), |fold| fold.count_lasting(text, &self.pins))
    }

    fn texts(&self) -> Vec<String> {
        let Some(fold) = self.fold_or_note() else { return Vec::new() };
        let ranked = fold.ranked(&self.pins);
        let facts = ranked.iter().filter(|one| one.is_worth_showing());
        facts.map(|one| one.fact.text.clone()).collect()
    }
}

/// Returns the retention of the newest compaction with the facts that a prompt says now. Blocks on the disk.
pub(crate) fn retention_in(
    core: &Arc<Core>,
    id: SessionId,
    retention: Retention,
    prompt: &str,
) -> Result<Retention> {
    let path = active_path(core, id)?;
    let facts = SessionFacts::new(core, id, &path, pins(core, id, &path)?);
    facts.retention_in(retention, prompt)
}

/// The facts of a session with what the head in force shows.
struct KnownFacts {
    fold: Arc<FactFold>,
    pins: Vec<Seq>,
    /// The lines of the block of facts in force.
    shown: Vec<String>,
}

impl KnownFacts {
    fn load(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        let path = active_path(core, id)?;
        let epoch = super::head::epoch_in_force(core, id, &path)?;
        let head = epoch.as_ref().map_or(&[][..], |epoch| &epoch.head);
        Ok(Self {
            fold: facts(core, id, &path)?,
            pins: pins(core, id, &path)?,
            shown: shown_lines(head),
        })
    }

    fn describe(&self, ranked: &RankedFact<'_>) -> ContextFact {
        let fact = ranked.fact;
        ContextFact {
            seq: fact.seq,
            index: fact.index,
            at: fact.at,
            text: fact.shown().into_owned(),
            values: fact.values.iter().map(|value| value.text.clone()).collect(),
            rule: fact.is_rule,
            score: (f64::from(ranked.score) * 100.0).round() / 100.0,
            source: if fact.entry.is_some() { FactOrigin::Entry } else { FactOrigin::Message },
            entry_key: fact.entry.clone(),
            pinned: ranked.is_pinned,
            repeated: fact.n_repeats,
            supersedes: fact.supersedes,
            forgotten: ranked.is_forgotten,
            shown: self.shown.contains(&defuse(&fact.shown())),
        }
    }
}

/// Returns the facts in the block of a head, by their texts.
fn shown_lines(head: &[HeadItem]) -> Vec<String> {
    let blocks = head.iter().filter_map(|item| match item {
        HeadItem::Block { topic, text } if topic == FACTS_BLOCK => Some(text),
        _ => None,
    });
    blocks.flat_map(|text| block_lines(text)).map(str::to_owned).collect()
}

/// Returns the facts that the block of a head names.
pub(super) fn facts_in(facts: &SessionFacts, head: &[HeadItem]) -> Result<Vec<FactRef>> {
    let shown = shown_lines(head);
    if shown.is_empty() {
        return Ok(Vec::new());
    }
    let fold = facts.fold()?;
    let ranked = fold.ranked(&[]);
    let named = ranked.iter().filter(|one| shown.contains(&defuse(&one.fact.shown())));
    let reference = |one: &RankedFact<'_>| FactRef {
        seq: one.fact.seq,
        index: one.fact.index,
        supersedes: one.fact.supersedes,
    };
    Ok(named.map(reference).collect())
}
