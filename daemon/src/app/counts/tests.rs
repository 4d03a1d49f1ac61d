//! Tests of what the counts of a server teach.

use std::path::Path;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextMessage, CountKind, Role};

use super::*;
use crate::model::{ADVICE, CallTarget, ChatRequest, Sampling};
use crate::tokens::testing::{GgufBuilder, byte_level};
use crate::tokens::{learn, probes};

const SESSION: SessionId = SessionId::from_uuid(uuid::Uuid::nil());

/// The template of Phi-3.
fn render(messages: &[ContextMessage]) -> String {
    let turn = |message: &ContextMessage| {
        format!("<|{}|>\n{}<|end|>\n", message.role.as_str(), message.content)
    };
    messages.iter().map(turn).collect::<String>() + "<|assistant|>\n"
}

/// Returns a vocabulary like that of Phi-3, without the name of the model.
fn phi3() -> Vocabulary {
    let specials = ["<unk>", "<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"];
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = specials.map(str::to_owned).into_iter().chain(bytes).collect();
    let kinds: Vec<i32> = (0..tokens.len()).map(|at| if at < 6 { 3 } else { 6 }).collect();
    GgufBuilder::new("llama")
        .text("general.architecture", "phi3")
        .texts("tokenizer.ggml.tokens", &tokens)
        .numbers("tokenizer.ggml.token_type", &kinds)
        .scores("tokenizer.ggml.scores", &vec![0.0; tokens.len()])
        .flag("tokenizer.ggml.add_bos_token", false)
        .vocabulary()
}

/// Learns the template with the tokenizer in use, as after a start of the daemon.
fn learn_template(counts: &Counts) {
    let prompts: Vec<_> = probes(false).iter().map(|probe| Some(render(probe))).collect();
    let tokenizer = counts.tokenizer("phi").unwrap();
    let template = learn(tokenizer.tokenizer(), &prompts).unwrap();
    counts.store_template("phi", "default/", template);
}

fn request(text: &str) -> ChatRequest {
    ChatRequest {
        model: "phi".to_owned(),
        messages: vec![ContextMessage::text(Role::User, text)],
        tools: Vec::new(),
        num_ctx: 4096,
        num_predict: None,
        sampling: Sampling::default(),
        think: None,
        format: None,
        logprobs: None,
        keep_alive: Duration::ZERO,
        affinity: None,
    }
}

/// Stores the vocabulary with a guessed name, and the template; returns the tokenizer for the other name.
fn with_guessed_name(dir: &Path) -> (Counts, Tokenizer) {
    let counts = Counts::new(dir.to_owned());
    assert!(phi3().needs_name());
    let vocabulary = phi3().with_other_name();
    let engine = Engine::LlamaCpp;
    let other = Tokenizer::new(&vocabulary.clone().with_other_name(), engine).unwrap();
    let learned = LearnedVocabulary::new(vocabulary, &[engine], true).unwrap();
    counts.store_vocabulary(&ModelInfo::default(), "phi", learned);
    counts.note_listed("phi", ListedDigest::Absent);
    learn_template(&counts);
    (counts, other)
}

#[test]
fn guessed_name_is_settled_by_the_first_count_of_the_server() {
    for is_right in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (counts, other) = with_guessed_name(dir.path());
        let request = request(" hello\n");
        let load = |counts: &Counts| counts.load(Some("phi"), Some(None), &[]);
        let counter = load(&counts);
        let guessed = counter.count_prompt(&request.messages, &[]);
        let expect = u64::from(other.count_prompt(&render(&request.messages)));
        assert_eq!(counter.kind_of(&request.messages), CountKind::Calibrated);
        let margin = counter.margin(&request.messages, &[], guessed);
        assert!(guessed != expect && guessed.abs_diff(expect) <= margin, "{guessed} {expect}");
        let read = if is_right { guessed } else { expect };
        counts.calibrate(SESSION, &request, read);
        if !is_right {
            learn_template(&counts);
        }
        let reopened = Counts::new(dir.path().to_owned());
        let counter = load(&reopened);
        assert_eq!(counter.kind_of(&request.messages), CountKind::Calibrated, "is not checked");
        reopened.note_listed("phi", ListedDigest::Absent);
        for counts in [&counts, &reopened] {
            let counter = load(counts);
            assert_eq!(counter.kind_of(&request.messages), CountKind::Exact, "{is_right}");
            assert_eq!(counter.count_prompt(&request.messages, &[]), read);
        }
    }
}

#[test]
fn other_engine_is_found_by_the_count_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let counts = Counts::new(dir.path().to_owned());
    // An end-of-generation text that is an ordinary token is special for the newer engine only.
    let vocabulary = GgufBuilder::new("llama")
        .texts("tokenizer.ggml.tokens", &["<unk>", "</s>", "<", "/", "s", ">", "a"])
        .numbers("tokenizer.ggml.token_type", &[2, 1, 1, 1, 1, 1, 1])
        .scores("tokenizer.ggml.scores", &[0.0; 7])
        .flag("tokenizer.ggml.add_bos_token", false)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .vocabulary();
    let learned = LearnedVocabulary::new(vocabulary, &[Engine::LlamaCpp], false).unwrap();
    counts.store_vocabulary(&ModelInfo::default(), "phi", learned);
    let text = "a</s>";
    let read = 5;
    let mismatch = counts.contradict(&request(text), read, Some(text)).unwrap();
    assert_eq!(mismatch.cause, MismatchCause::Engine);
    let counter = counts.load(Some("phi"), None, &[]);
    assert_eq!(u64::from(counter.count_text(text)), read);
    let few = counts.contradict(&request(text), 1, Some(text));
    assert!(few.is_none(), "no engine finds so few tokens: the server truncated the prompt");
}

/// Returns a vocabulary that merges two digits in Ollama's engine in Go only.
fn smollm() -> Vocabulary {
    let specials = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"];
    byte_level("smollm", &["1 2"], &specials)
        .text("general.architecture", "llama")
        .flag("tokenizer.ggml.add_bos_token", false)
        .vocabulary()
}

#[test]
fn count_on_which_possible_engines_differ_is_exact_once_the_server_excluded_all_but_one() {
    let engines = [Engine::OldLlamaCpp, Engine::OllamaGo];
    for used in engines {
        let dir = tempfile::tempdir().unwrap();
        let counts = Counts::new(dir.path().to_owned());
        let store = || {
            let learned = LearnedVocabulary::new(smollm(), &engines, false).unwrap();
            counts.store_vocabulary(&ModelInfo::default(), "phi", learned);
            learn_template(&counts);
        };
        store();
        let [same, differs] = ["ab", "12"].map(request);
        let kind = |counts: &Counts, request: &ChatRequest| {
            counts.note_listed("phi", ListedDigest::Absent);
            let counter = counts.load(Some("phi"), Some(None), &[]);
            let kind = counter.kind_of(&request.messages);
            assert_eq!(counter.kind_of_text(&request.messages[0].content), kind);
            let tokens = counter.count_prompt(&request.messages, &[]);
            (kind, tokens, counter.margin(&request.messages, &[], tokens))
        };
        let (is_exact, tokens, _) = kind(&counts, &same);
        assert_eq!(is_exact, CountKind::Exact);
        counts.calibrate(SESSION, &same, tokens);
        let (uncertain, tokens, margin) = kind(&counts, &differs);
        assert_eq!((uncertain, margin), (CountKind::Calibrated, 1), "both agreed on the other one");
        counts.calibrate(SESSION, &differs, tokens + 5);
        assert_eq!(kind(&counts, &differs).0, CountKind::Calibrated, "no engine finds as many");

        let tokenizer = Tokenizer::new(&smollm(), used).unwrap();
        let read = u64::from(tokenizer.count_prompt(&render(&differs.messages)));
        counts.calibrate(SESSION, &differs, read);
        if used == Engine::OllamaGo {
            learn_template(&counts);
        }
        for counts in [&counts, &Counts::new(dir.path().to_owned())] {
            assert_eq!(kind(counts, &differs), (CountKind::Exact, read, 0), "{used:?}");
        }
        store();
        assert_eq!(kind(&counts, &differs).0, CountKind::Calibrated, "is another model or server");
    }
}

#[test]
fn engines_that_count_alike_are_one() {
    let with_architecture = |architecture: &str| {
        let vocabulary = byte_level("smollm", &[], &[]).text("general.architecture", architecture);
        let engines = [Engine::OldLlamaCpp, Engine::OllamaGo];
        LearnedVocabulary::new(vocabulary.vocabulary(), &engines, false).unwrap().tokenizers.len()
    };
    assert_eq!(with_architecture("llama"), 2);
    assert_eq!(with_architecture("phi3"), 1, "the engine in Go does not run it");
}

/// A link stands for every file that exists and cannot be read, such as one on a disk with errors.
#[test]
fn unreadable_list_of_models_is_not_replaced_and_is_read_as_soon_as_it_can_be() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let counts = || Counts::new(dir.path().to_owned());
    let think = |counts: &Counts, model: &str| {
        counts.load(Some(model), None, &[]);
        counts.state.lock().known(&counts.names.key(model)).map(|known| known.think.clone())
    };
    let earlier = counts();
    earlier.change("earlier", |known| "low".clone_into(&mut known.think));
    let (path, real) = (dir.path().join("models.json"), dir.path().join("real"));
    crate::fsutil::rename_durably(&path, &real).expect("renames");
    std::os::unix::fs::symlink(&real, &path).expect("links");
    let now = counts();
    assert_eq!(think(&now, "earlier"), None);
    now.change("m", |known| "high".clone_into(&mut known.think));
    assert!(path.is_symlink(), "is not replaced");
    assert_eq!(think(&now, "m").as_deref(), Some("high"), "is known in memory");
    crate::fsutil::rename_durably(&real, &path).expect("renames");
    assert_eq!(think(&now, "earlier").as_deref(), Some("low"));
    now.change("n", |known| "max".clone_into(&mut known.think));
    let later = counts();
    let found = ["earlier", "m", "n"].map(|model| think(&later, model));
    assert_eq!(found, ["low", "high", "max"].map(|think| Some(think.to_owned())));
}

#[test]
fn model_on_which_the_server_ended_is_tried_again_soon() {
    let dir = tempfile::tempdir().unwrap();
    let counts = Counts::new(dir.path().to_owned());
    let to = CallTarget { host: "h".to_owned(), model: None, advice: &ADVICE };
    let ended = ModelError::Disconnected { to: to.clone(), reason: "reset".to_owned() };
    let refused = ModelError::Refused { to, status: 400, message: "no".to_owned() };
    counts.note_server_failure("ended", &ended);
    counts.note_server_failure("refused", &refused);
    counts.note_failure("unusable", &"unknown rules");
    let waits = |name: &str| {
        let until = counts.state.lock().failures[name];
        until.saturating_duration_since(Instant::now())
    };
    let minute = Duration::from_secs(60);
    assert!(!counts.may_try("ended") && waits("ended") < minute / 2 && waits("ended") > minute / 4);
    assert!(waits("refused") > 4 * minute && waits("unusable") > 4 * minute);
    counts.state.lock().failures.insert("ended".to_owned(), Instant::now());
    assert!(counts.may_try("ended"));
}

/// The template of Mistral, which writes the system message before the last message of the user, and drops it where the
/// conversation does not end with one.
fn render_late_system(messages: &[ContextMessage]) -> String {
    let mut prompt = String::from("<s>");
    let system = messages.iter().find(|message| message.role == Role::System);
    for (at, message) in messages.iter().enumerate() {
        let content = &message.content;
        match message.role {
            Role::User => {
                let is_last = at + 1 == messages.len();
                let system = system.filter(|_| is_last).map(|one| format!("{}\n\n", one.content));
                prompt.push_str(&format!("[INST] {}{content}[/INST]", system.unwrap_or_default()));
            }
            Role::Assistant => prompt.push_str(&format!(" {content}</s>")),
            Role::System | Role::Tool => {}
        }
    }
    prompt
}

#[test]
fn system_message_that_a_template_moves_is_soon_counted_to_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let counts = Counts::new(dir.path().to_owned());
    let vocabulary = phi3().with_other_name();
    let learned = LearnedVocabulary::new(vocabulary, &[Engine::LlamaCpp], false).unwrap();
    counts.store_vocabulary(&ModelInfo::default(), "phi", learned);
    counts.note_listed("phi", ListedDigest::Absent);
    let probes = probes(false);
    let prompts: Vec<_> = probes.iter().map(|probe| Some(render_late_system(probe))).collect();
    let tokenizer = counts.tokenizer("phi").unwrap();
    if let Some(template) = learn(tokenizer.tokenizer(), &prompts) {
        counts.store_template("phi", "default/", template);
    }
    let rendered: Vec<_> = probes.into_iter().zip(prompts).collect();
    counts.calibrate_by_rendered(&ModelInfo::default(), "phi", None, &[], &rendered);
    let mut messages = vec![ContextMessage::text(Role::System, "Answer in one sentence.")];
    let mut errors = Vec::new();
    for turn in 0..5 {
        messages.push(ContextMessage::text(Role::User, format!("question {turn}")));
        let counter = counts.load(Some("phi"), Some(None), &[]);
        let counted = counter.count_prompt(&messages, &[]);
        let read = u64::from(tokenizer.count_prompt(&render_late_system(&messages)));
        errors.push(counted.cast_signed() - read.cast_signed());
        counts.calibrate(SESSION, &ChatRequest { messages: messages.clone(), ..request("") }, read);
        messages.push(ContextMessage::text(Role::Assistant, format!("answer {turn}")));
    }
    // The first message of the user is written differently, so the second and the third turn agree.
    assert_eq!(errors[3..], [0, 0], "{errors:?}");
}
