//! Asking a model which facts to remember, in the pause of a compaction: a bonus, and never a condition. A request that
//! fails or gives way to a chat costs the choice alone.
//!
//! The choice is recorded with the compaction, so the facts stay a function of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use ollm_protocol::content::{AskedFact, ContextMessage, Role};
use ollm_protocol::{Seq, SessionId};

use super::commit::{NewHead, plan};
use super::policy::is_noticed;
use super::summarizer::{QueuePlace, Summarizer};
use super::survey::{CompactionRequest, Survey};
use crate::app::core::{Core, blocking};
use crate::app::error::Result;
use crate::context::compact::{behind_chat, defuse_all, prompt_text};
use crate::facts::{
    EXAM, FactCandidate, answer_format, chosen_places, is_agreed, passes_exam, selection_request,
};
use crate::model::{Priority, Ticket};
use crate::tokens::ESTIMATE_MARGIN_DIVISOR;

/// The tokens by which a conversation grows between two selections, for each token of a request. A server with one cache slot
/// reads the tokens of a conversation three to five times, so two requests are some three hundredths of all.
const GROWTH_PER_TOKEN: u64 = 7;
/// The words before a question behind the prompt of the chat.
const PAUSE: &str = "The conversation pauses here: do not go on with it, and call no tool.";
/// The longest answer in tokens: six numbers as JSON, each in a line of its own.
const ANSWER_TOKENS: u32 = 96;

/// Asks the model that wrote a summary about the facts at the border of the new head. Returns none if there is nothing to ask,
/// or if the model has no time or cannot choose.
pub(super) async fn asked_facts(
    core: &Arc<Core>,
    request: &CompactionRequest,
    survey: &Arc<Survey>,
    head: &NewHead,
) -> Vec<AskedFact> {
    let asked = ask_about_facts(core, request, survey, head).await;
    let asked = asked.inspect_err(|error| tracing::info!("no facts were chosen: {error}"));
    asked.ok().flatten().unwrap_or_default()
}

async fn ask_about_facts(
    core: &Arc<Core>,
    request: &CompactionRequest,
    survey: &Arc<Survey>,
    head: &NewHead,
) -> Result<Option<Vec<AskedFact>>> {
    let (id, window) = (survey.inputs.id, survey.inputs.window.size);
    let model = survey.summarizing_model(core)?;
    if core.speeds.get(&model).can_choose == Some(false) {
        return Ok(None);
    }
    let (candidates, asked_at) = candidates(core, request, survey, head).await?;
    let ticket = core.models.queues().enter(&model, Priority::Background);
    if candidates.is_empty() || ticket.n_ahead() > 0 || core.turns.is_running(id) {
        return Ok(None);
    }
    let place = QueuePlace::Own(Priority::Background);
    let own = Summarizer::new(core, id, &model, place, false, window).await?;
    let question = FactQuestion::new(own, &ticket, request, survey);
    let texts: Vec<&str> = candidates.iter().map(|one| one.text.as_str()).collect();
    let tokens = question.tokens(&texts);
    if tokens * GROWTH_PER_TOKEN > survey.tokens_behind(asked_at)
        || !question.fits(&texts)
        || question.disturbs(tokens)
        || !question.is_understood().await?
    {
        return Ok(None);
    }
    let (answers, n_texts) = (question.answers(&texts).await?, texts.len());
    let asked = answers.map(|answers| {
        let facts = candidates.into_iter().enumerate();
        let asked = |(at, one): (usize, FactCandidate)| AskedFact {
            chosen: is_agreed(at, n_texts, &answers),
            ..one.asked
        };
        facts.map(asked).collect()
    });
    Ok(asked)
}

/// Returns the facts at the border of a head, and the newest compaction in which a model was asked.
async fn candidates(
    core: &Arc<Core>,
    request: &CompactionRequest,
    survey: &Arc<Survey>,
    head: &NewHead,
) -> Result<(Vec<FactCandidate>, Option<Seq>)> {
    let (built, _) = plan(core, request, survey, head).await?;
    let survey = Arc::clone(survey);
    blocking(core, move |_| {
        let counter = &survey.inputs.counter;
        let count = |text: &str| u64::from(counter.count_text(text));
        let items = built.new_epoch.as_ref().map_or(&[][..], |epoch| &epoch.head);
        let prompt = prompt_text(&built.result.messages);
        let (mut candidates, asked_at) = survey.inputs.facts.candidates(items, &prompt, &count)?;
        candidates.iter_mut().for_each(|one| one.text = defuse_all(&one.text));
        Ok((candidates, asked_at))
    })
    .await
}

/// A question about facts to a model.
struct FactQuestion<'a> {
    core: &'a Core,
    id: SessionId,
    summarizer: Summarizer<'a>,
    ticket: &'a Ticket,
    /// The messages before the question.
    before: &'a [ContextMessage],
    /// Set if these are the prompt of the chat.
    is_behind_chat: bool,
}

impl<'a> FactQuestion<'a> {
    /// Creates a question behind the prompt of the chat, as long as the server holds that, so that it reads no more than the
    /// question, and a user who comes back does not wait for the prompt. Otherwise the question stands alone.
    fn new(
        own: Summarizer<'a>,
        ticket: &'a Ticket,
        request: &CompactionRequest,
        survey: &'a Survey,
    ) -> Self {
        let (core, id) = (own.core, survey.inputs.id);
        let is_held = core.speeds.get(&own.model).slots.hold(id);
        match survey.chat_prompt(core, &own.model).filter(|_| is_held) {
            Some(before) => {
                let summarizer = own.behind_chat(request.params.tools.clone());
                Self { core, id, summarizer, ticket, before, is_behind_chat: true }
            }
            None => {
                let (summarizer, before) = (own, &[][..]);
                Self { core, id, summarizer, ticket, before, is_behind_chat: false }
            }
        }
    }

    fn messages<'t>(&self, texts: impl ExactSizeIterator<Item = &'t str>) -> Vec<ContextMessage> {
        let text = selection_request(texts);
        match self.is_behind_chat {
            true => behind_chat(self.before, &format!("{PAUSE}\n\n{text}")),
            false => vec![ContextMessage::text(Role::User, text)],
        }
    }

    /// Returns the tokens of the question about some texts, without those of the chat.
    fn tokens(&self, texts: &[&str]) -> u64 {
        let text = selection_request(texts.iter().copied());
        u64::from(self.summarizer.counter.count_text(&text))
    }

    /// Returns whether the window has room for the question and its answer.
    fn fits(&self, texts: &[&str]) -> bool {
        let messages = self.messages(texts.iter().copied());
        let tokens = self.summarizer.prompt_tokens(&messages);
        tokens + tokens / ESTIMATE_MARGIN_DIVISOR + u64::from(ANSWER_TOKENS)
            <= self.summarizer.window()
    }

    /// Returns whether the question would cost another session its prompt, or a user who comes back a wait that is noticed.
    fn disturbs(&self, tokens: u64) -> bool {
        let measured = self.core.speeds.get(&self.summarizer.model);
        let reading = measured.reading_or_guess(tokens).unwrap_or_default();
        let displaces = !self.is_behind_chat && measured.slots.own_displaces_other(self.id);
        displaces || measured.reads_on() && is_noticed(reading)
    }

    /// Returns whether the model can choose, which is asked once.
    async fn is_understood(&self) -> Result<bool> {
        let model = &self.summarizer.model;
        if let Some(can_choose) = self.core.speeds.get(model).can_choose {
            return Ok(can_choose);
        }
        let Some(answers) = self.answers(&EXAM.map(|(text, _)| text)).await? else {
            return Ok(false);
        };
        let can_choose = passes_exam(&answers);
        tracing::info!(model, can_choose, "the model was examined");
        self.core.speeds.note_choosing(model, can_choose);
        Ok(can_choose)
    }

    /// Returns the answers to a list and to the list from its end; `None` if a chat needs the model.
    async fn answers(&self, texts: &[&str]) -> Result<Option<[BTreeSet<usize>; 2]>> {
        let Some(forward) = self.answer(texts.iter().copied()).await? else { return Ok(None) };
        if forward.is_empty() {
            return Ok(Some([forward, BTreeSet::new()]));
        }
        let backward = self.answer(texts.iter().rev().copied()).await?;
        Ok(backward.map(|backward| [forward, backward]))
    }

    async fn answer<'t>(
        &self,
        texts: impl ExactSizeIterator<Item = &'t str>,
    ) -> Result<Option<BTreeSet<usize>>> {
        let (n_texts, messages) = (texts.len(), self.messages(texts));
        let format = answer_format(n_texts);
        let answer = self.summarizer.short_answer(messages, format, ANSWER_TOKENS, self.ticket);
        Ok(answer.await?.map(|answer| chosen_places(&answer, n_texts)))
    }
}
