//! Tests of the facts that a model chooses in the pause of a compaction.

use ollm_protocol::content::AskedFact;
use ollm_protocol::methods::context::ContextFact;
use serde_json::json;

use super::*;
use crate::app::branches::fork::fork;
use crate::app::context::facts;
use crate::facts::EXAM;

/// The answers of a model that can choose, to the exam and to the exam from its end.
const PASSES: [&str; 2] =
    [r#"{"numbers": [1, 4, 5, 7, 10, 11]}"#, r#"{"numbers": [2, 3, 6, 8, 9, 12]}"#];
/// Its answers to a list of twelve facts: the first, the second and the last.
const CHOICE: [&str; 2] = [r#"{"numbers": [1, 2, 12]}"#, r#"{"numbers": [1, 11, 12, 5]}"#];

/// Returns the digest by which a record names a fact.
fn digest_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

fn door(n: usize) -> String {
    format!("The access code of door {n}-{} is {}.", n * 7, 50_000 + n)
}

impl LongSession {
    /// Creates a session with more facts than a head has room for, which is due in the pause.
    async fn with_many_facts() -> Self {
        let settings = [("models.default", "m"), ("context.size", "8192")];
        let (test, backend) = TestSession::with_model(&settings);
        let (core, id) = (Arc::clone(&test.core), test.id);
        let session = Self { test, backend, core, id };
        session.test.record("user", "Port the parser, please.").await;
        for n in 0..50 {
            let facts: Vec<String> = (4 * n..4 * n + 4).map(door).collect();
            session.test.record("user", &facts.join(" ")).await;
            session.test.record("assistant", "Noted.").await;
        }
        session.fill_until_due().await;
        session
    }

    fn answer_all(&self, texts: &[&'static str]) {
        texts.iter().for_each(|text| self.backend.answer_text(text));
    }

    async fn compact_and_choose(&self) -> Vec<AskedFact> {
        let outcome = self.compact_in_pause().await;
        assert!(matches!(outcome, CompactionOutcome::Done(_)));
        self.compactions().pop().expect("is recorded").asked
    }

    /// Returns the scores of facts in a session.
    fn scores(&self, id: SessionId, asked: &[AskedFact]) -> Vec<Option<f64>> {
        let params = json!({ "sessionId": id, "limit": 500 });
        let params = serde_json::from_value(params).expect("params");
        let listed: Vec<ContextFact> = facts::list(&self.core, params).expect("lists").data;
        let score = |one: &AskedFact| {
            let mut of_record = listed.iter().filter(|fact| fact.seq == one.seq);
            of_record.find(|fact| digest_of(&fact.text) == one.digest).map(|fact| fact.score)
        };
        asked.iter().map(score).collect()
    }
}

#[tokio::test]
async fn chosen_facts_are_recorded_and_followed_by_undo_and_forks() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, PASSES[0], PASSES[1], CHOICE[0], CHOICE[1]]);
    let before = session.survey().await.inputs.leaf;
    let asked = session.compact_and_choose().await;
    let chosen: Vec<usize> = (0..asked.len()).filter(|at| asked[*at].chosen).collect();
    assert_eq!((asked.len(), chosen), (12, vec![0, 1, 11]));
    let with = session.scores(session.id, &asked);

    let params = json!({ "sessionId": session.id });
    let forked = fork(&session.core, serde_json::from_value(params).expect("params"));
    let forked = forked.expect("forks").session.session_id;
    assert_eq!(session.scores(forked, &asked), with);

    let back = LeafMove { to: before, cause: "undo".to_owned() };
    session.test.append(RecordBody::Leaf(back)).await;
    let without = session.scores(session.id, &asked);
    for (at, one) in asked.iter().enumerate() {
        let (with, without) = (with[at].expect("is listed"), without[at].expect("is listed"));
        let gain = with - without;
        assert!(if one.chosen { (1.0..1.5).contains(&gain) } else { gain.abs() < 0.01 }, "{gain}");
    }
    assert_eq!(session.scores(forked, &asked), with, "the fork has the compaction");
}

#[tokio::test]
async fn choice_is_in_the_head_of_its_compaction() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, PASSES[0], PASSES[1], CHOICE[0], CHOICE[1]]);
    let asked = session.compact_and_choose().await;
    let texts: Vec<String> = session.backend.requests()[3]
        .messages
        .last()
        .into_iter()
        .flat_map(|message| message.content.lines().map(str::to_owned))
        .filter_map(|line| Some(line.split_once(". The")?.1.to_owned()))
        .collect();
    assert_eq!(texts.len(), asked.len());
    let params = BuildRequest::new(session.id);
    let built = build_with(&session.core, params, None).await.expect("fits");
    let is_shown = |text: &String| built.messages.iter().any(|one| one.content.contains(text));
    let missing = texts.iter().zip(&asked).filter(|(text, one)| one.chosen && !is_shown(text));
    assert_eq!(missing.count(), 0);
    assert!(texts.iter().any(|text| !is_shown(text)), "some did not fit");
}

#[tokio::test]
async fn requests_are_short_and_name_a_format() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, PASSES[0], PASSES[1], CHOICE[0], CHOICE[1]]);
    session.compact_and_choose().await;
    let requests = session.backend.requests();
    let [_, exam, _, forward, backward] = &*requests else { panic!("{} requests", requests.len()) };
    let text = |request: &crate::model::ChatRequest| {
        request.messages.last().expect("a message").content.clone()
    };
    assert!(EXAM.iter().all(|(sentence, _)| text(exam).contains(sentence)));
    let lines = |request| {
        let text = text(request);
        let lines = text.lines().filter_map(|line| Some(line.split_once(". The")?.1.to_owned()));
        lines.collect::<Vec<_>>()
    };
    let mut reversed = lines(backward);
    reversed.reverse();
    assert_eq!(lines(forward), reversed);
    let summary = &requests[0].messages;
    for request in [forward, backward] {
        let n_before = request.messages.len() - 1;
        assert_eq!(request.messages[..n_before], summary[..n_before], "behind the chat's prompt");
        assert!(request.format.is_some() && request.tools.is_empty());
        assert!(text(request).len() < 1500 && !text(request).contains("words nobody"));
        assert!(request.num_predict.is_some_and(|most| most.get() < 100));
    }
}

#[tokio::test]
async fn model_that_cannot_choose_is_not_asked_again() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, CHOICE[0], CHOICE[1]]);
    assert_eq!(session.compact_and_choose().await, []);
    assert_eq!(session.backend.requests().len(), 3);
    session.fill_until_due().await;
    session.answer_all(&[SUMMARY]);
    assert_eq!(session.compact_and_choose().await, []);
    assert_eq!(session.backend.requests().len(), 4);
}

#[tokio::test]
async fn chat_ends_the_choice_and_not_the_compaction() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, PASSES[0], PASSES[1], CHOICE[0]]);
    session.backend.answer(&[AnswerStep::Pause]);
    session.compact_until_a_chat().await;
    let compaction = session.compactions().pop().expect("is recorded");
    assert_eq!(
        (compaction.asked.len(), compaction.method),
        (0, Some(CompactionMethod::Summarized))
    );
    // The next pause asks, and examines the model no more.
    session.fill_until_due().await;
    session.answer_all(&[SUMMARY, CHOICE[0], CHOICE[1]]);
    assert!(session.compact_and_choose().await.iter().any(|one| one.chosen));
}

#[tokio::test]
async fn other_compaction_ends_the_choice_and_not_its_compaction() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY]);
    session.backend.answer(&[AnswerStep::Pause]);
    let other = async {
        session.backend.paused().await;
        session.task().run().await
    };
    let (outcome, other) = tokio::join!(session.compact_in_pause(), other);
    assert!(matches!(outcome, CompactionOutcome::Done(_)));
    assert!(other.is_ok(), "the session is free again");
    let first = session.compactions().remove(0);
    assert_eq!((first.asked.len(), first.method), (0, Some(CompactionMethod::Summarized)));
}

#[tokio::test]
async fn failing_choice_does_not_fail_the_compaction() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY, PASSES[0]]);
    session.backend.refuse(ScriptedBackend::broken());
    assert_eq!(session.compact_and_choose().await, []);
    assert_eq!(session.compaction_count(), 1);
}

#[tokio::test]
async fn nobody_who_waits_waits_for_a_choice() {
    let session = LongSession::with_many_facts().await;
    session.answer_all(&[SUMMARY]);
    session.summarize().await.expect("compacts");
    assert_eq!(session.backend.requests().len(), 1);
}
