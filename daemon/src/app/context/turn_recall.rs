//! Automatic recall: the earlier messages that the user's message needs and its prompt does not show.
//!
//! Recall is a step of a build (`build`), and looks for messages once for each context that answers a message: [`decide`] says
//! when, and with how much room.
//!
//! **Invariant**: what is recalled is a record beside the user's message, so that every later prompt repeats it byte for
//! byte. It is data: defused, and in a block of its own.
//! **Invariant**: it causes neither a compaction nor a cut: what it finds uses room that is free, or that another head of the
//! same checkpoints leaves free.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::content::{Delta, RecalledRecord, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::inputs::Inputs;
use super::recall::{AskedSessions, recall_for_prompt, shown_in};
use super::recalled_block::RecalledBlock;
use crate::app::build_request::BuildRequest;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::catalog::{RecallPeriod, RecallQuery, RecalledMessage, RecalledPage, TurnRules};
use crate::config::RecallSetting;
use crate::context::compact::prompt_text;
use crate::context::{Built, ItemSource, PathItem, RECALL_TOPIC, defuse_all, keeps_all, share};
use crate::facts::{
    RecallNeed, for_each_sentence_of_line, is_plain_request, one_line, recall_need,
};
use crate::languages::is_joined_script;

/// Maximum number of messages that a turn recalls.
const MAX_PIECES: usize = 12;
/// Number of messages among which those of a turn are chosen: some are too long, or are there already.
const MAX_CANDIDATES: usize = 24;
/// The tokens of a block around its text, at most.
const BLOCK_TOKENS: u64 = 24;

/// The state of a context on which recall for it depends. Counts are in tokens.
#[derive(Clone, Copy, Debug)]
struct RecallSituation {
    scope: RecallSetting,
    /// The reason for which the message that waits for its answer needs earlier ones; `None` without such a message too.
    need: Option<RecallNeed>,
    /// The context shows the whole conversation.
    shows_everything: bool,
    /// Messages were brought back for this message since the newest compaction.
    has_recalled: bool,
    /// The messages that the context shows because they were brought back for this message, and their tokens.
    n_shown: usize,
    shown_tokens: u64,
    /// The message that is being answered, or a result for it, is cut.
    is_cut: bool,
    /// The tokens that recalled messages may have by their share of the prompt limit.
    share_tokens: u64,
    /// The tokens of the prompt limit that are free.
    free_tokens: u64,
    /// The room that recall may use.
    room: RecallRoom,
}

/// The room that recalled messages may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecallRoom {
    /// The tokens that are free in the context.
    Free,
    /// The tokens that another head would leave free. They are used if less than half of the share is free and the context
    /// lacks the best message, because that head leaves something out.
    MayBeMade,
}

/// Messages that were found for a context.
pub(super) struct FoundMessages {
    /// The block that shows them.
    pub(super) delta: Delta,
    /// The tokens that another head has to leave free for the block; `None` if it uses free room.
    pub(super) spare_tokens: Option<u64>,
}

/// What recall does for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecallAction {
    Nothing,
    /// Looks for this many messages at most, with this many tokens at most.
    Find {
        n_most: usize,
        most_tokens: u64,
        /// The tokens that another head would leave free, if too few are free now.
        made_tokens: Option<u64>,
    },
}

/// Decides whether a context needs earlier messages, and how many have room in it.
fn decide(situation: &RecallSituation) -> RecallAction {
    let RecallSituation { scope, need, n_shown, shown_tokens, .. } = *situation;
    let is_complete = scope == RecallSetting::Session && situation.shows_everything;
    let free = situation.free_tokens.saturating_sub(BLOCK_TOKENS);
    let share_tokens = situation.share_tokens.saturating_sub(shown_tokens);
    let is_short = situation.room == RecallRoom::MayBeMade && free < share_tokens / 2;
    let made_tokens = is_short.then_some(share_tokens);
    let most_tokens = share_tokens.min(free);
    let n_most = MAX_PIECES.saturating_sub(n_shown);
    let is_off = scope == RecallSetting::Off || need.is_none() || is_complete;
    let has_no_room = n_most == 0 || made_tokens.unwrap_or(most_tokens) == 0;
    match is_off || situation.has_recalled || situation.is_cut || has_no_room {
        true => RecallAction::Nothing,
        false => RecallAction::Find { n_most, most_tokens, made_tokens },
    }
}

/// Returns what the message that a context is to answer needs and the context does not show. Blocks on the disk.
///
/// `built`: the context without it. `room`: the room that may be used.
pub(super) fn recall_for(
    core: &Arc<Core>,
    request: &BuildRequest,
    inputs: &Inputs,
    built: &Built,
    room: RecallRoom,
) -> Result<Option<FoundMessages>> {
    let recall = TurnRecall { core, request, inputs, built };
    let question = recall.question()?;
    let need = question.as_deref().and_then(|question| recall.need(question));
    match decide(&recall.situation(need, room)?) {
        RecallAction::Nothing => Ok(None),
        RecallAction::Find { n_most, most_tokens, made_tokens } => {
            let points_back = need == Some(RecallNeed::PointsBack);
            let question = question.as_deref().unwrap_or_default();
            let candidates = recall.candidates(question, points_back)?;
            let find = |most_tokens| recall.choose(&candidates, points_back, n_most, most_tokens);
            if let Some(tokens) = made_tokens.filter(|_| !candidates.best_is_shown()) {
                let spare_tokens = Some(tokens + BLOCK_TOKENS);
                return Ok(find(tokens)?.map(|delta| FoundMessages { delta, spare_tokens }));
            }
            Ok(find(most_tokens)?.map(|delta| FoundMessages { delta, spare_tokens: None }))
        }
    }
}

/// A recall for a context.
struct TurnRecall<'a> {
    core: &'a Arc<Core>,
    request: &'a BuildRequest,
    inputs: &'a Inputs,
    /// The context without what is recalled.
    built: &'a Built,
}

/// The messages that a context has already: its records, and those that earlier recalls brought back into it.
struct ShownMessages {
    records: HashSet<Seq>,
    recalled: Vec<RecalledRecord>,
    /// The text of the prompt, with single spaces only.
    text: String,
}

/// The messages that may answer a question, the best first.
struct Candidates {
    page: RecalledPage,
    /// The messages that the context has already, if any message was found.
    shown: Option<ShownMessages>,
    /// Set if the context has a message that is better than all of the page.
    has_better: bool,
}

impl Candidates {
    /// Returns whether the prompt says a message in its facts, notes or quotes.
    fn is_said(&self, message: &RecalledMessage) -> bool {
        let own = message.alone.as_ref().unwrap_or(&message.excerpt);
        self.shown.as_ref().is_some_and(|shown| says(&shown.text, own))
    }

    /// Returns whether the context has the best message.
    fn best_is_shown(&self) -> bool {
        self.has_better || self.page.messages.first().is_some_and(|best| self.is_said(best))
    }
}

/// Returns whether a text has every sentence of an excerpt.
///
/// `flat_text`: the text with single spaces.
fn says(flat_text: &str, excerpt: &str) -> bool {
    let excerpt = defuse_all(excerpt);
    let (mut n_said, mut n_all) = (0, 0);
    for line in excerpt.lines() {
        for_each_sentence_of_line(line, &mut |sentence| {
            let sentence = one_line(sentence.trim_matches(|char| matches!(char, '…' | '.' | ' ')));
            n_all += usize::from(!sentence.is_empty());
            n_said += usize::from(!sentence.is_empty() && has_words(flat_text, &sentence));
        });
    }
    n_all > 0 && n_said == n_all
}

/// Returns whether a text has some words that are not parts of longer ones. Scripts that join words have no such parts.
fn has_words(text: &str, words: &str) -> bool {
    let is_border = |inside: Option<char>, outside: Option<char>| {
        outside.is_none_or(|char| !char.is_alphanumeric())
            || inside.into_iter().chain(outside).any(is_joined_script)
    };
    text.match_indices(words).any(|(at, _)| {
        is_border(words.chars().next(), text[..at].chars().next_back())
            && is_border(words.chars().next_back(), text[at + words.len()..].chars().next())
    })
}

/// Returns whether a message, with its neighbor if it has one, only asks for something, which helps with no later
/// question.
fn only_asks(message: &RecalledMessage) -> bool {
    let excerpt = message.excerpt.as_str();
    if !message.has_neighbor {
        return message.role == Role::User && is_plain_request(excerpt);
    }
    // Both messages begin with their roles.
    let second = ["\nuser: ", "\nassistant: "];
    let parts = second.into_iter().find_map(|role| excerpt.split_once(role));
    parts.is_some_and(|(first, second)| {
        let first = first.split_once(": ").map_or(first, |(_, text)| text);
        is_plain_request(first) && is_plain_request(second)
    })
}

impl TurnRecall<'_> {
    /// Returns the text of the message that is to be answered: the pending one, or the newest one of the user; `None`
    /// within tool calls or after an answer.
    fn question(&self) -> Result<Option<String>> {
        if self.request.pending.is_some() {
            return Ok(self.request.pending.clone());
        }
        let Some(seq) = self.recorded_question() else { return Ok(None) };
        Ok(match self.core.body(self.inputs.id, seq)? {
            Some(RecordBody::Message(message)) => Some(message.sent_text()),
            _ => None,
        })
    }

    /// Returns the record of the message that is to be answered, if it is recorded.
    fn recorded_question(&self) -> Option<Seq> {
        let newest = self.inputs.path.newest_spoken().filter(|_| self.request.pending.is_none());
        newest.filter(|item| item.is_user_message()).map(|item| item.seq)
    }

    /// Returns why a question needs what the rest of its prompt does not show.
    fn need(&self, question: &str) -> Option<RecallNeed> {
        let messages = &self.built.result.messages;
        let own = messages.iter().rposition(|message| message.role == Role::User);
        let rest = OnceCell::new();
        recall_need(question, &|value| {
            let rest = rest.get_or_init(|| {
                let others = messages.iter().enumerate().filter(|(at, _)| Some(*at) != own);
                others
                    .fold(String::new(), |all, (_, message)| all + &message.content.to_lowercase())
            });
            rest.contains(&value.to_lowercase())
        })
    }

    fn situation(&self, need: Option<RecallNeed>, room: RecallRoom) -> Result<RecallSituation> {
        let Self { core, inputs, built, .. } = self;
        let (config, result) = (core.config(), &built.result);
        let compaction_at = inputs.compaction_at();
        let own = self.shown_for_question()?;
        let count = |delta: &Delta| u64::from(inputs.counter.count_text(&delta.text));
        Ok(RecallSituation {
            scope: config.recall.scope,
            need,
            shows_everything: compaction_at.is_none() && keeps_all(&result.strategy),
            has_recalled: own.iter().any(|(seq, _)| Some(*seq) > compaction_at),
            n_shown: own.iter().map(|(_, delta)| delta.recalled.len()).sum(),
            shown_tokens: own.iter().map(|(_, delta)| count(delta)).sum(),
            is_cut: !result.cut.is_empty(),
            share_tokens: share(result.prompt_limit, config.recall.share),
            free_tokens: result.prompt_limit.saturating_sub(result.context_tokens),
            room,
        })
    }

    /// Returns the deltas that the context shows because they were recorded for the message that is to be answered: before
    /// it or behind it.
    fn shown_for_question(&self) -> Result<Vec<(Seq, Delta)>> {
        let Some(question) = self.recorded_question() else { return Ok(Vec::new()) };
        let items = &self.inputs.path.items;
        let at = items.partition_point(|item| item.seq < question);
        let is_delta = |item: &&PathItem| item.kind == RecordKind::Delta;
        let before = items[..at].iter().rev().take_while(is_delta);
        let own: HashSet<Seq> =
            before.chain(items[at..].iter().filter(is_delta)).map(|item| item.seq).collect();
        let mut deltas = self.shown_deltas()?;
        deltas.retain(|(seq, delta)| own.contains(seq) && !delta.recalled.is_empty());
        Ok(deltas)
    }

    /// Chooses among the candidates those that a prompt has room for and does not say.
    ///
    /// `points_back`: whether the question asks what was said. Then a message of this session may be shown that states only
    /// what was corrected or taken back since; else a small model would answer with the old value although the new one stands
    /// in its prompt.
    fn choose(
        &self,
        candidates: &Candidates,
        points_back: bool,
        n_most: usize,
        most_tokens: u64,
    ) -> Result<Option<Delta>> {
        let id = self.inputs.id;
        let other = |session: SessionId| (session != id).then_some(session);
        if candidates.page.messages.is_empty() {
            return Ok(None);
        }
        let facts = if points_back { None } else { Some(self.inputs.facts.fold()?) };
        let is_outdated = |message: &RecalledMessage| {
            let facts = facts.as_ref().filter(|_| message.session_id == id);
            facts.is_some_and(|facts| facts.is_outdated(&message.excerpt))
        };
        let mut block = RecalledBlock::default();
        let mut recalled = Vec::new();
        for message in &candidates.page.messages {
            let (session_id, seq, score) = (other(message.session_id), message.seq, message.score);
            let with = |message: &RecalledMessage| {
                let longer = block.with(message, session_id.is_some());
                let fits = u64::from(self.inputs.counter.count_text(&longer.text())) <= most_tokens;
                (fits && !only_asks(message) && !is_outdated(message)).then_some(longer)
            };
            // The question of an answer that was found before adds nothing. Another answer to a question does.
            let own = message.alone.as_ref().filter(|_| message.role != Role::User);
            let found = own.unwrap_or(&message.excerpt);
            if candidates.is_said(message) || says(&one_line(&block.text()), found) {
                continue;
            }
            let longer = with(message).or_else(|| with(&message.without_neighbor()?));
            if let Some(longer) = longer {
                block = longer;
                recalled.push(RecalledRecord { session_id, seq, score });
            }
            if recalled.len() == n_most {
                break;
            }
        }
        let (topic, text) = (RECALL_TOPIC.to_owned(), block.text());
        Ok((!recalled.is_empty()).then_some(Delta { topic, text, recalled }))
    }

    /// Finds messages that may answer a question and that the context does not have. Of a question that points back less
    /// suffices.
    fn candidates(&self, question: &str, points_back: bool) -> Result<Candidates> {
        let id = self.inputs.id;
        let (shown, has_better) = (OnceCell::new(), OnceCell::new());
        let other = |session: SessionId| (session != id).then_some(session);
        let asked = AskedSessions::of_turn(self.core, id, self.core.config().recall.scope)?;
        let page = recall_for_prompt(
            self.core,
            id,
            &RecallQuery {
                question,
                scope: asked.scope(),
                period: RecallPeriod::default(),
                limit: MAX_CANDIDATES,
                turn: Some(TurnRules {
                    points_back,
                    question: self.recorded_question().map(|seq| (id, seq)),
                }),
                wants: &|session, seq| {
                    let shown = shown.get_or_init(|| self.shown());
                    let is_missing =
                        shown.as_ref().is_ok_and(|shown| !self.has(shown, other(session), seq));
                    // The best one comes first.
                    has_better.get_or_init(|| !is_missing);
                    is_missing
                },
            },
        )?;
        let shown = shown.into_inner().transpose()?;
        Ok(Candidates { page, shown, has_better: has_better.into_inner().unwrap_or(false) })
    }

    /// Returns the messages that the context has already.
    fn shown(&self) -> Result<ShownMessages> {
        let recalled = self.shown_deltas()?.into_iter().flat_map(|(_, delta)| delta.recalled);
        let text = one_line(&prompt_text(&self.built.result.messages));
        Ok(ShownMessages { records: shown_in(self.built), recalled: recalled.collect(), text })
    }

    /// Returns the deltas that the context shows whole.
    fn shown_deltas(&self) -> Result<Vec<(Seq, Delta)>> {
        let items = self.built.items.iter().filter(|item| item.form != "cut");
        let deltas: Vec<Seq> = items
            .filter_map(|item| match &item.source {
                ItemSource::Record(record) if record.kind == RecordKind::Delta => Some(record.seq),
                _ => None,
            })
            .collect();
        let bodies = self.core.sessions.bodies(self.inputs.id, &deltas)?;
        let shown = deltas.into_iter().zip(bodies).filter_map(|(seq, body)| match body {
            Some(RecordBody::Delta(delta)) => Some((seq, delta)),
            _ => None,
        });
        Ok(shown.collect())
    }

    /// Returns whether the context has a message, or cannot have it because it was undone. `session`: if it is another
    /// one.
    fn has(&self, shown: &ShownMessages, session: Option<SessionId>, seq: Seq) -> bool {
        let mut recalled = shown.recalled.iter();
        recalled.any(|record| record.session_id == session && record.seq == seq)
            || session.is_none()
                && (shown.records.contains(&seq) || !self.inputs.path.contains(seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_looks_for_messages_once_for_each_context_of_a_question_and_within_its_room() {
        let question = RecallSituation {
            scope: RecallSetting::Session,
            need: Some(RecallNeed::Question),
            shows_everything: false,
            has_recalled: false,
            n_shown: 0,
            shown_tokens: 0,
            is_cut: false,
            share_tokens: 100,
            free_tokens: 1_000,
            room: RecallRoom::Free,
        };
        let find =
            |n_most, most_tokens| RecallAction::Find { n_most, most_tokens, made_tokens: None };
        let find_with = |n_most, most_tokens, made_tokens| {
            let made_tokens = Some(made_tokens);
            RecallAction::Find { n_most, most_tokens, made_tokens }
        };
        let full = RecallSituation { room: RecallRoom::MayBeMade, ..question };
        let nothing = RecallAction::Nothing;
        let everywhere = RecallSetting::All;
        for (name, situation, expect) in [
            ("question", question, find(12, 100)),
            ("off", RecallSituation { scope: RecallSetting::Off, ..question }, nothing),
            ("needs nothing", RecallSituation { need: None, ..question }, nothing),
            ("nothing left out", RecallSituation { shows_everything: true, ..question }, nothing),
            (
                "nothing left out, other sessions",
                RecallSituation { shows_everything: true, scope: everywhere, ..question },
                find(12, 100),
            ),
            (
                "asked before",
                RecallSituation { has_recalled: true, n_shown: 1, ..question },
                nothing,
            ),
            (
                "compacted since",
                RecallSituation { n_shown: 1, shown_tokens: 40, ..question },
                find(11, 60),
            ),
            ("as many as allowed", RecallSituation { n_shown: 12, ..question }, nothing),
            ("share is used up", RecallSituation { shown_tokens: 100, ..question }, nothing),
            ("message is cut", RecallSituation { is_cut: true, ..question }, nothing),
            ("little room", RecallSituation { free_tokens: 64, ..question }, find(12, 40)),
            ("no room", RecallSituation { free_tokens: 24, ..question }, nothing),
            ("no room yet", RecallSituation { free_tokens: 24, ..full }, find_with(12, 0, 100)),
            (
                "too little room",
                RecallSituation { free_tokens: 73, ..full },
                find_with(12, 49, 100),
            ),
            ("enough room", RecallSituation { free_tokens: 74, ..full }, find(12, 50)),
            (
                "no room for the rest",
                RecallSituation { free_tokens: 0, n_shown: 1, shown_tokens: 40, ..full },
                find_with(11, 0, 60),
            ),
            (
                "no room and no need",
                RecallSituation { free_tokens: 0, need: None, ..full },
                nothing,
            ),
            ("no share", RecallSituation { share_tokens: 0, ..question }, nothing),
        ] {
            assert_eq!(decide(&situation), expect, "{name}");
        }
    }

    #[test]
    fn text_says_an_excerpt_if_it_has_all_of_its_sentences() {
        let text = "user: Which port? assistant: Use port 8080. It is open, since May.";
        let check = |excerpt: &str, expect| assert_eq!(says(text, excerpt), expect, "{excerpt}");
        check("Use port 8080.", true);
        check("It is open, since May.\nUse port 8080.", true);
        check("Use port 80.", false);
        check("Reuse port 8080.", false);
        check("Use port 8080. It is closed.", false);
        check("user: Which port?\nassistant: Use port 9090.", false);
        check("...", false);
        let text = "我说过端口是8080，密码是4471吗？";
        assert!(says(text, "端口是8080") && !says(text, "端口是808"));
    }
}
