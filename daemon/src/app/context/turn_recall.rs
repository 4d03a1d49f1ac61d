//! Automatic recall: the earlier messages that the user's message asks for and its prompt does not show.
//!
//! **Invariant**: what a turn recalls is a record beside the user's message, so that every later prompt repeats it byte
//! for byte. It is data: defused, and in a block of its own.
//! **Invariant**: what is recalled for a context that was just compacted only uses room that is free, so it causes
//! neither a compaction nor a cut.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::content::{CompactMode, Delta, RecalledRecord, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::inputs::{self, BuildLeaf, Inputs, plan};
use super::recall::{AskedSessions, shown_in};
use crate::app::build_request::BuildRequest;
use crate::app::core::{Core, blocking};
use crate::app::drafts::counted_for;
use crate::app::error::Result;
use crate::catalog::{RecallQuery, RecalledMessage, TurnRules};
use crate::config::RecallSetting;
use crate::context::compact::prompt_text;
use crate::context::{
    Built, ItemSource, PathItem, RECALL_TOPIC, defuse_all, prompt_limit, recalled_block, trigger,
};
use crate::facts::{
    for_each_sentence_of_line, for_each_statement, is_joined_script, is_plain_request,
};
use crate::tokens::Counter;

/// Maximum number of messages that a turn recalls.
const MAX_PIECES: usize = 3;
/// Number of messages among which those of a turn are chosen: some are too long, or are there already.
const MAX_CANDIDATES: usize = 8;
/// The length of a date, such as `2026-01-27`.
const DATE_CHARS: usize = 10;
/// The first line of a block that stands before the message that it is for.
const FOR_MESSAGE_BELOW: &str = "Earlier messages that may help with the message below:";
/// The first line of a block behind that message, in the pending message of a build that writes no record.
const FOR_MESSAGE_ABOVE: &str = "Earlier messages that may help with the message above:";
/// The tokens of a block around its text, at most.
const BLOCK_TOKENS: u64 = 24;

/// The earlier messages that a question needs and its prompt does not show.
#[derive(Debug, Default)]
pub(crate) enum RecallForTurn {
    #[default]
    Nothing,
    /// The record that goes before the question.
    Before(Delta),
    /// There are some, but the question does not fit into the context in force: what the next one shows decides.
    Deferred,
}

/// Returns what a question brings back. Blocks on the disk.
///
/// `params`: those of the build, with the question as `pending`.
pub(crate) fn recall_for_turn(core: &Arc<Core>, params: &BuildRequest) -> Result<RecallForTurn> {
    let Some(question) = params.pending.as_deref() else { return Ok(RecallForTurn::Nothing) };
    let Some(recall) = TurnRecall::load(core, params, None)? else {
        return Ok(RecallForTurn::Nothing);
    };
    let share = |recall: &TurnRecall<'_>| Ok(recall.share());
    let Some(delta) = recall.find(question, FOR_MESSAGE_BELOW, MAX_PIECES, &share)? else {
        return Ok(RecallForTurn::Nothing);
    };
    Ok(match recall.built()?.result.transient {
        true => RecallForTurn::Deferred,
        false => RecallForTurn::Before(delta),
    })
}

/// Recalls for a turn with a new context, because that may have dropped what the user's message needs; returns the messages
/// that are recorded behind it. What was recalled before the message and is still shown counts against its share. Within
/// tool calls, nothing is recalled.
///
/// `params`: those of the build that follows.
pub(crate) async fn recall_after_compaction(
    core: &Arc<Core>,
    params: &BuildRequest,
    counter: &Counter,
) -> Result<Vec<RecalledRecord>> {
    let params = BuildRequest { compact: CompactMode::Never, ..params.clone() };
    let (id, counter) = (params.session_id, counter.clone());
    let found = blocking(core, move |core| {
        let Some(recall) = TurnRecall::load(core, &params, Some(counter))? else {
            return Ok(None);
        };
        // A context that needs another head already leaves no room.
        if recall.built()?.result.transient {
            return Ok(None);
        }
        let Some(question) = recall.newest_message()? else { return Ok(None) };
        let leaf = recall.inputs.leaf;
        let (n_shown, tokens) = recall.shown_for_newest()?;
        let room = |recall: &TurnRecall<'_>| {
            let left = recall.share().saturating_sub(tokens);
            Ok(recall.free_room()?.min(left))
        };
        let n_left = MAX_PIECES.saturating_sub(n_shown);
        // A prompt has what was recalled before the message, although its record is behind it.
        let delta = recall.find(&question, FOR_MESSAGE_BELOW, n_left, &room)?;
        Ok(delta.map(|delta| (delta, leaf)))
    });
    let Some((delta, leaf)) = found.await? else { return Ok(Vec::new()) };
    record(core, id, leaf, delta).await
}

/// Records what was recalled behind a leaf; returns the messages, none if the leaf moved.
async fn record(
    core: &Arc<Core>,
    id: SessionId,
    leaf: Option<Seq>,
    delta: Delta,
) -> Result<Vec<RecalledRecord>> {
    let recalled = delta.recalled.clone();
    let draft = counted_for(core, id, RecordBody::Delta(delta)).0;
    let appended = core.append_if_leaf(id, leaf, vec![draft]).await?;
    Ok(if appended.is_some() { recalled } else { Vec::new() })
}

/// Adds what the pending message of a build needs, or without one the newest message of the user: as a record if the
/// build may write, else to the text of the pending message. Returns the messages.
pub(super) async fn recall_for_build(
    core: &Arc<Core>,
    params: &mut BuildRequest,
) -> Result<Vec<RecalledRecord>> {
    let (id, request) = (params.session_id, params.clone());
    let found = blocking(core, move |core| {
        let Some(recall) = TurnRecall::load(core, &request, None)? else { return Ok(None) };
        let (question, introduction) = match &request.pending {
            Some(pending) => (Some(pending.clone()), FOR_MESSAGE_BELOW),
            None if request.compact == CompactMode::Auto => {
                (recall.newest_message()?, FOR_MESSAGE_BELOW)
            }
            None => (recall.newest_message()?, FOR_MESSAGE_ABOVE),
        };
        let Some(question) = question else { return Ok(None) };
        let leaf = recall.inputs.leaf;
        let delta = recall.find(&question, introduction, MAX_PIECES, &TurnRecall::free_room)?;
        Ok(delta.map(|delta| (delta, leaf)))
    });
    let Some((delta, leaf)) = found.await? else { return Ok(Vec::new()) };
    if params.compact == CompactMode::Auto {
        return record(core, id, leaf, delta).await;
    }
    let block = recalled_block(&delta.text);
    params.pending = Some(match params.pending.take() {
        Some(pending) => format!("{block}\n\n{pending}"),
        None => block,
    });
    Ok(delta.recalled)
}

/// A recall for a context.
struct TurnRecall<'a> {
    core: &'a Arc<Core>,
    params: BuildRequest,
    inputs: Inputs,
    /// The context without what is recalled, once it is planned: most questions find nothing and need none.
    built: OnceCell<Built>,
    scope: RecallSetting,
}

/// The messages that a context has already: its records, and those that earlier recalls brought back into it.
struct ShownMessages {
    records: HashSet<Seq>,
    recalled: Vec<RecalledRecord>,
    /// The text of the prompt, with single spaces only.
    text: String,
}

/// Returns whether a text has every sentence of an excerpt.
///
/// `flat_text`: the text with single spaces.
fn says(flat_text: &str, excerpt: &str) -> bool {
    let excerpt = defuse_all(excerpt);
    let (mut n_said, mut n_all) = (0, 0);
    for line in excerpt.lines() {
        for_each_sentence_of_line(line, &mut |sentence| {
            let sentence = flat(sentence.trim_matches(|char| matches!(char, '…' | '.' | ' ')));
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

/// Returns whether a text states a fact.
fn states_fact(text: &str) -> bool {
    let mut states = false;
    for_each_statement(text, |_| states = true);
    states
}

/// Returns a text with single spaces only.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'a> TurnRecall<'a> {
    /// Reads what the context depends on; returns `None` if it shows everything that could be recalled, or if recall is
    /// off.
    fn load(
        core: &'a Arc<Core>,
        params: &BuildRequest,
        counter: Option<Counter>,
    ) -> Result<Option<Self>> {
        let scope = core.config().recall.scope;
        if scope == RecallSetting::Off {
            return Ok(None);
        }
        let inputs = inputs::load(core, params, counter, BuildLeaf::Active)?;
        if scope == RecallSetting::Session && inputs.shows_everything() {
            return Ok(None);
        }
        let params = params.clone();
        Ok(Some(Self { core, params, inputs, built: OnceCell::new(), scope }))
    }

    /// Returns the context without what is recalled.
    fn built(&self) -> Result<&Built> {
        if let Some(built) = self.built.get() {
            return Ok(built);
        }
        let built = plan(self.core, &self.params, &self.inputs)?;
        Ok(self.built.get_or_init(|| built))
    }

    /// Returns the tokens that recalled messages may have by their share of the prompt limit.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of at most some million tokens"
    )]
    fn share(&self) -> u64 {
        let config = self.core.config();
        let limit = prompt_limit(self.inputs.window.size, config.context.answer_reserve);
        (limit as f64 * config.recall.share) as u64
    }

    /// Returns the tokens of their share that are free: below the trigger of the next compaction, and none while the
    /// message that is being answered is cut.
    fn free_room(&self) -> Result<u64> {
        let result = &self.built()?.result;
        if !result.cut.is_empty() {
            return Ok(0);
        }
        let budget = &result.budget;
        let threshold = self.core.config().compression.threshold;
        let below = trigger(budget.available_tokens, threshold)
            .saturating_sub(budget.current_conversation_tokens);
        let left = result.token_budget.saturating_sub(result.tokens_used);
        Ok(self.share().min(below.min(left).saturating_sub(BLOCK_TOKENS)))
    }

    /// Returns the text of the user's message that is being answered; `None` within tool calls or after an answer.
    fn newest_message(&self) -> Result<Option<String>> {
        let newest = self.inputs.path.newest_spoken();
        let Some(newest) = newest.filter(|item| item.is_user_message()) else {
            return Ok(None);
        };
        Ok(match self.core.body(self.inputs.id, newest.seq)? {
            Some(RecordBody::Message(message)) => Some(message.sent_text()),
            _ => None,
        })
    }

    /// Returns the messages that the context shows because the user's newest message brought them back, and their tokens.
    fn shown_for_newest(&self) -> Result<(usize, u64)> {
        let items = &self.inputs.path.items;
        let newest = items.iter().rposition(PathItem::is_user_message).unwrap_or(items.len());
        let is_delta = |item: &&PathItem| item.kind == RecordKind::Delta;
        let before = items[..newest].iter().rev().take_while(is_delta);
        let own: HashSet<Seq> =
            before.chain(items[newest..].iter().filter(is_delta)).map(|item| item.seq).collect();
        let mut deltas = self.shown_deltas()?;
        deltas.retain(|(seq, delta)| own.contains(seq) && !delta.recalled.is_empty());
        let count = |text: &str| u64::from(self.inputs.counter.count_text(text));
        Ok((
            deltas.iter().map(|(_, delta)| delta.recalled.len()).sum(),
            deltas.iter().map(|(_, delta)| count(&delta.text)).sum(),
        ))
    }

    /// Finds what a question needs: `n_most` messages at most, within the tokens that `room` returns.
    fn find(
        &self,
        question: &str,
        introduction: &str,
        n_most: usize,
        room: &dyn Fn(&Self) -> Result<u64>,
    ) -> Result<Option<Delta>> {
        if n_most == 0 {
            return Ok(None);
        }
        let id = self.inputs.id;
        let shown = OnceCell::new();
        let other = |session: SessionId| (session != id).then_some(session);
        let asked = AskedSessions::of_turn(self.core, id, self.scope)?;
        let page = self.core.catalog.recall(&RecallQuery {
            question,
            scope: asked.scope(),
            limit: MAX_CANDIDATES,
            turn: Some(TurnRules { states_fact: &states_fact }),
            wants: &|session, seq| {
                let shown = shown.get_or_init(|| self.shown());
                shown.as_ref().is_ok_and(|shown| !self.has(shown, other(session), seq))
            },
        })?;
        let shown = shown.into_inner().transpose()?;
        if page.messages.is_empty() {
            return Ok(None);
        }
        let most = room(self)?;
        let mut text = introduction.to_owned();
        let mut recalled = Vec::new();
        for message in page.messages {
            let (session_id, seq, score) = (other(message.session_id), message.seq, message.score);
            let with = |message: &RecalledMessage| {
                let longer = format!("{text}\n{}", piece(message, session_id.is_some(), false));
                let fits = u64::from(self.inputs.counter.count_text(&longer)) <= most;
                (fits && !only_asks(message)).then_some(longer)
            };
            let own = message.alone.as_ref().unwrap_or(&message.excerpt);
            // The prompt says it in facts, notes or quotes.
            let is_shown = shown.as_ref().is_some_and(|shown| says(&shown.text, own));
            // The question of an answer that was found before adds nothing. Another answer to a question does.
            let found = if message.role == Role::User { &message.excerpt } else { own };
            if is_shown || says(&flat(&text), found) {
                continue;
            }
            let longer = with(&message).or_else(|| with(&message.without_neighbor()?));
            if let Some(longer) = longer {
                text = longer;
                recalled.push(RecalledRecord { session_id, seq, score });
            }
            if recalled.len() == n_most {
                break;
            }
        }
        let topic = RECALL_TOPIC.to_owned();
        Ok((!recalled.is_empty()).then_some(Delta { topic, text, recalled }))
    }

    /// Returns the messages that the context has already.
    fn shown(&self) -> Result<ShownMessages> {
        let built = self.built()?;
        let recalled = self.shown_deltas()?.into_iter().flat_map(|(_, delta)| delta.recalled);
        let text = flat(&prompt_text(&built.result.messages));
        Ok(ShownMessages { records: shown_in(built), recalled: recalled.collect(), text })
    }

    /// Returns the deltas that the context shows whole.
    fn shown_deltas(&self) -> Result<Vec<(Seq, Delta)>> {
        let items = self.built()?.items.iter().filter(|item| item.form != "cut");
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

/// Returns a recalled message as a prompt shows it: its number if `is_named`, its date and author, and its excerpt.
/// Messages of other conversations have no number.
pub(in crate::app) fn piece(
    message: &RecalledMessage,
    is_of_other: bool,
    is_named: bool,
) -> String {
    let date = message.at.to_string();
    let date = date.get(..DATE_CHARS).unwrap_or_default();
    let place = if is_of_other { ", another conversation" } else { "" };
    let number = match is_named && !is_of_other {
        true => format!("#{}, ", message.seq),
        false => String::new(),
    };
    let excerpt = defuse_all(&message.excerpt);
    // An excerpt with a neighbor names the roles itself.
    if message.has_neighbor {
        format!("[{number}{date}{place}]\n{excerpt}")
    } else {
        format!("[{number}{date}{place}] {}: {excerpt}", message.role.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
