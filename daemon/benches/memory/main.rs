//! What a small window still shows of a long session: facts that the user said once, with models that write good and
//! bad notes.
//!
//! Run with `cargo bench --bench memory`. The model server is part of this program. Each run plays a session of
//! ordinary work in which the user states thirty facts once each, counts those in the last prompt, and then asks a
//! question about each. Arguments: `--turns N` (200), `--windows 2048,4096,8192`, `--summarizers ideal,weak`,
//! `--pause MS` (the time between turns, 50), `--notes MS` (the time that notes take, 30), `--pastes N` (a long file in
//! every Nth turn, 16, or 0 for none), `--print` (the last prompt).
//!
//! Real talk comes first if `OLLM_TALK` is set, and alone with `--talk`: the statements of a set (`--set tune`, `unread`
//! or `none`), planted in the dialogues of the folder `OLLM_TALK` (`dialogue.rs` describes it; without it in a small one
//! of our own), are counted in the last prompt and in the prompts of questions about them. `--dialogues A,B` plays only
//! these, `--dump DIR` writes the last prompt of each session. A column is a number of cases out of all; those of blocks
//! are useful tokens; `during` is for the prompts of all turns. Questions about a dialogue are asked at five places of its
//! end. `--no-recall` sends turns without what the message asks for. `--judge KIND` says which facts the model chooses
//! (`perfect`, `noise`, `coin`, `all`, `none`, `first`, `half`; none without it). `--folded` counts in the facts of the messages
//! alone, without a daemon; `--set` may name a file.
//!
//! The rows with bars, by their commands; the bars of questions, whole messages and reported figures hold in every row:
//! - facts after 200 turns, tokens read: `cargo bench --bench memory`
//! - facts after 450 turns: `cargo bench --bench memory -- --turns 450 --windows 4096 --summarizers typical`
//! - notes that the user waits for: `cargo bench --bench memory -- --pause 5000 --notes 3000 --windows 8192`

#[path = "../harness/mod.rs"]
mod harness;

mod dialogue;
mod folded;
mod server;
mod statements;
mod story;
mod talk;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use harness::arguments::Arguments;
use harness::generate::Random;
use harness::model_server::Answer;
use harness::report::{Report, Row, Samples, is_bench_run};
use harness::session::SimulatedSession;
use ollm_daemon::bench_api::BenchFacts;
use server::{Judge, MemoryServer, ModelRequest, Summarizer};
use story::FACTS;
use talk::TalkOptions;

const WINDOWS: [u32; 5] = [2048, 4096, 8192, 16_384, 32_768];
/// The windows of the table of real talk.
const TALK_WINDOWS: [u32; 2] = [8192, 4096];
/// The columns of the table for people.
const COLUMNS: &str = "window summarizer shown asked whole couldBeWhole notes notesWaitedFor readTokensForNotes \
    readTokens reportedPercent";
/// The sizes of pasted files in percent of the prompt's limit.
const PASTE_PERCENT: [u64; 5] = [30, 45, 60, 72, 80];
/// The percentage of the prompt's limit that a newest message leaves to everything older, and the fewest tokens.
const OTHERS_PERCENT: u64 = 10;
const MIN_OTHERS: u64 = 96;
/// The tokens of a turn's frame.
const TURN_TOKENS: u64 = 16;
/// The messages whose facts are folded, and the most that one may cost in microseconds.
const FOLDED_TURNS: usize = 4000;
const MAX_FOLD_US: f64 = 20.0;
/// The fewest facts in the last prompt: by window, turns and summarizer.
const SHOWN_BARS: [(u32, usize, Summarizer, usize); 6] = [
    (8192, 200, Summarizer::Typical, 27),
    (8192, 200, Summarizer::Weak, 24),
    (4096, 450, Summarizer::Typical, 24),
    (4096, 200, Summarizer::Weak, 20),
    (2048, 200, Summarizer::Typical, 15),
    (2048, 200, Summarizer::Weak, 12),
];
/// The most percentage points between the reported and the true share of facts that are shown.
const MAX_REPORT_ERROR: u64 = 10;
/// The most tokens that a server reads for notes in a session of this window and number of turns, with typical notes.
const MAX_READ: (u32, usize, u64) = (8192, 200, 46_000);
/// The most notes that a user waits for in percent, with pauses of this many milliseconds or more.
const MAX_WAITED_PERCENT: usize = 5;
const LONG_PAUSE_MS: u64 = 5000;
/// The approximate number of bytes of a token.
const BYTES_PER_TOKEN: u64 = 4;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let options = Options::from_args()?;
    if let Some(talk) = &options.talk {
        let sizes = json!({ "set": talk.set, "turns": talk.n_turns, "pauseMs": talk.pause_ms,
            "notesMs": talk.notes_ms });
        let report = Report::new("memory", &sizes);
        match options.is_folded {
            true => folded::run(talk, &report)?,
            false => talk::run(talk, &report)?,
        }
    }
    if options.is_only_talk {
        return Ok(());
    }
    let sizes = json!({ "turns": options.turns, "facts": FACTS.len(), "pauseMs": options.pause_ms,
        "notesMs": options.notes_ms, "pasteEvery": options.pastes });
    let report = Report::new("memory", &sizes);
    report.print(fold_speed()?)?;
    for &window in &options.windows {
        for &summarizer in &options.summarizers {
            let measured = Session::start(&options, summarizer, window)?.play(&options)?;
            report.print(measured.row(&options))?;
        }
    }
    report.print_table(COLUMNS)
}

/// Times the fold of facts over the messages of a long session, without pasted files.
fn fold_speed() -> Result<Row> {
    let mut random = Random::new(7);
    let turns = (0..FOLDED_TURNS).map(|at| {
        let fact = FACTS.get(at / 4 % FACTS.len()).filter(|_| at.is_multiple_of(4));
        story::turn(at, fact, &mut random).message
    });
    let turns: Vec<String> = turns.collect();
    let mut facts = BenchFacts::default();
    let mut turns = turns.iter().cycle();
    let samples = Samples::take(FOLDED_TURNS, || {
        facts.fold(turns.next().context("a cycle has no end")?);
        Ok(())
    })?;
    let p50 = samples.p50_us();
    let row = Row::latency("facts of a message", &samples).with("facts", facts.count());
    Ok(row.at_most(p50, MAX_FOLD_US))
}

/// The result of one session.
struct Measured {
    window: u32,
    summarizer: Summarizer,
    /// The facts in the last prompt of the session.
    shown: Vec<usize>,
    /// The facts that were in the prompt of the question about them.
    asked: Vec<usize>,
    /// The newest messages that were whole, of those that had room.
    whole: (usize, usize),
    /// The requests for notes until the questions, and those for which the user waited.
    notes: usize,
    notes_waited_for: usize,
    /// The tokens that a server with one cache slot read, for answers and notes, until the questions.
    read_tokens: u64,
    notes_tokens: u64,
    failed: usize,
    /// The percentage of values that the daemon says are still there.
    reported: Value,
}

impl Measured {
    fn row(&self, options: &Options) -> Row {
        let missing = |found: &[usize]| {
            let missing = (0..FACTS.len()).filter(|at| !found.contains(at));
            missing.map(|at| FACTS[at].value).collect::<Vec<_>>()
        };
        let bars = self.bars(options);
        let is_missed = |(_, is_met): &&(String, bool)| !is_met;
        let missed: Vec<&str> =
            bars.iter().filter(is_missed).map(|(text, _)| text.as_str()).collect();
        let all: Vec<&str> = bars.iter().map(|(text, _)| text.as_str()).collect();
        Row::value(
            &format!("{} {}", self.window, self.summarizer.name()),
            "facts",
            self.shown.len(),
        )
        .with("window", self.window)
        .with("summarizer", self.summarizer.name())
        .with("shown", self.shown.len())
        .with("asked", self.asked.len())
        .with("notShown", json!(missing(&self.shown)))
        .with("notFoundWhenAsked", json!(missing(&self.asked)))
        .with("whole", self.whole.0)
        .with("couldBeWhole", self.whole.1)
        .with("notes", self.notes)
        .with("notesWaitedFor", self.notes_waited_for)
        .with("readTokens", self.read_tokens)
        .with("readTokensForNotes", self.notes_tokens)
        .with("failedTurns", self.failed)
        .with("truePercent", self.shown.len() * 100 / FACTS.len())
        .with("reportedPercent", self.reported.clone())
        .with("missedBars", json!(missed))
        .bar(&all.join(", "), missed.is_empty())
    }

    /// Returns the bars of the row, and whether each is met.
    fn bars(&self, options: &Options) -> Vec<(String, bool)> {
        let mut bars = vec![
            ("asked 30".to_owned(), self.asked.len() == FACTS.len()),
            ("whole".to_owned(), self.whole.0 == self.whole.1),
        ];
        let is_this = |bar: &&(u32, usize, Summarizer, usize)| {
            (bar.0, bar.1) == (self.window, options.turns) && bar.2 == self.summarizer
        };
        if let Some((.., least)) = SHOWN_BARS.iter().find(is_this) {
            bars.push((format!("shown >= {least}"), self.shown.len() >= *least));
        }
        if let Some(reported) = self.reported.as_u64() {
            let shown = (self.shown.len() * 100 / FACTS.len()) as u64;
            let error = reported.abs_diff(shown);
            bars.push((format!("reported +-{MAX_REPORT_ERROR}"), error <= MAX_REPORT_ERROR));
        }
        let (window, turns, most) = MAX_READ;
        let is_typical = self.summarizer == Summarizer::Typical;
        if (self.window, options.turns) == (window, turns) && is_typical {
            bars.push((format!("notes read <= {most}"), self.notes_tokens <= most));
        }
        if options.pause_ms >= LONG_PAUSE_MS && self.notes > 0 {
            let is_met = self.notes_waited_for * 100 <= self.notes * MAX_WAITED_PERCENT;
            bars.push((format!("waited <= {MAX_WAITED_PERCENT} %"), is_met));
        }
        bars
    }
}

/// A session that is played.
struct Session {
    inner: SimulatedSession<MemoryServer>,
    measured: Measured,
    limit: u64,
}

impl Session {
    fn start(options: &Options, summarizer: Summarizer, window: u32) -> Result<Self> {
        let delay = Duration::from_millis(options.notes_ms);
        let server = MemoryServer::start(summarizer, Judge::None, delay, story::noted());
        let host = server.fake.host().to_owned();
        let mut inner = SimulatedSession::start(server, &host, window, "")?;
        let status = inner.call("context.status", json!({}))?;
        let limit = status["promptLimit"].as_u64().unwrap_or_else(|| u64::from(window) * 3 / 4);
        let measured = Measured {
            window,
            summarizer,
            shown: Vec::new(),
            asked: Vec::new(),
            whole: (0, 0),
            notes: 0,
            notes_waited_for: 0,
            read_tokens: 0,
            notes_tokens: 0,
            failed: 0,
            reported: Value::Null,
        };
        Ok(Self { inner, measured, limit })
    }

    fn play(mut self, options: &Options) -> Result<Measured> {
        let mut random = Random::new(u64::from(self.measured.window));
        let facts: Vec<usize> =
            (0..FACTS.len()).map(|fact| story::turn_of(fact, options.turns)).collect();
        let mut n_pastes = 0;
        let mut last = String::new();
        for at in 0..options.turns {
            let fact = facts.iter().position(|turn| *turn == at).map(|fact| &FACTS[fact]);
            let turn = story::turn(at, fact, &mut random);
            let is_paste = options.pastes > 0 && (at + 1) % options.pastes == 0 && fact.is_none();
            let message = if is_paste {
                n_pastes += 1;
                let percent = PASTE_PERCENT[n_pastes % PASTE_PERCENT.len()];
                let bytes = self.limit * percent / 100 * BYTES_PER_TOKEN;
                story::paste(at, usize::try_from(bytes)?, &mut random)
            } else {
                turn.message
            };
            let requests = self.turn(&message, turn.answer)?;
            if is_paste {
                self.check_whole(&message, &requests)?;
            }
            if let Some(request) = requests.into_iter().rfind(|request| !request.is_for_notes) {
                last = request.prompt;
            }
            std::thread::sleep(Duration::from_millis(options.pause_ms));
        }
        let is_in = |prompt: &str, at: &usize| prompt.contains(FACTS[*at].value);
        self.measured.shown = (0..FACTS.len()).filter(|at| is_in(&last, at)).collect();
        let status = self.inner.call("context.status", json!({}))?;
        // The score is a number with decimals.
        let score = status["reliability"]["score"].as_f64().map(|score| score.round() as u64);
        self.measured.reported = json!(score);
        if options.print {
            writeln!(std::io::stderr(), "{last}\n")?;
        }
        // The questions come without a pause.
        let Measured { notes, notes_waited_for, read_tokens, notes_tokens, .. } = self.measured;
        for (at, fact) in FACTS.iter().enumerate() {
            let requests = self.turn(fact.question, "Let me see.".to_owned())?;
            let mut prompts = requests.iter().filter(|request| !request.is_for_notes);
            if prompts.next_back().is_some_and(|request| request.prompt.contains(fact.value)) {
                self.measured.asked.push(at);
            }
        }
        Ok(Measured { notes, notes_waited_for, read_tokens, notes_tokens, ..self.measured })
    }

    /// Sends a message; returns the requests that the server got since the turn before.
    fn turn(&mut self, message: &str, answer: String) -> Result<Vec<ModelRequest>> {
        self.inner.server.begin_turn([Answer::whole(&answer)]);
        let outcome = self.inner.turn(message, &json!([]), |_, _| String::new())?;
        self.inner.server.end_turn();
        let measured = &mut self.measured;
        measured.failed += usize::from(outcome.error.is_some());
        let requests = self.inner.server.take_requests();
        for request in &requests {
            let tokens = request.new_bytes as u64 / BYTES_PER_TOKEN;
            measured.read_tokens += tokens;
            if request.is_for_notes {
                measured.notes += 1;
                measured.notes_waited_for += usize::from(request.is_waited_for);
                measured.notes_tokens += tokens;
            }
        }
        Ok(requests)
    }

    /// Counts a message that could be whole in its prompt, and whether it was.
    fn check_whole(&mut self, message: &str, requests: &[ModelRequest]) -> Result<()> {
        let records = self.inner.new_records()?;
        let is_it = |record: &&Value| record["message"]["parts"][0]["text"] == message;
        let record = records.iter().find(is_it).context("the message has a record")?;
        let tokens = record["tokens"].as_u64().unwrap_or(u64::MAX);
        let status = self.inner.call("context.status", json!({}))?;
        let available = status["availableTokens"].as_u64().context("has a number")?;
        let others = (self.limit * OTHERS_PERCENT / 100).max(MIN_OTHERS);
        if tokens.saturating_add(others + TURN_TOKENS) < available {
            let mut prompts = requests.iter().filter(|request| !request.is_for_notes);
            let is_whole =
                prompts.next_back().is_some_and(|request| request.prompt.contains(message));
            self.measured.whole.0 += usize::from(is_whole);
            self.measured.whole.1 += 1;
        }
        Ok(())
    }
}

/// The arguments of the program.
struct Options {
    turns: usize,
    windows: Vec<u32>,
    summarizers: Vec<Summarizer>,
    pause_ms: u64,
    notes_ms: u64,
    /// A file is pasted in every turn of this number.
    pastes: usize,
    print: bool,
    /// The table of real talk comes first where there is talk, or alone.
    talk: Option<TalkOptions>,
    is_only_talk: bool,
    /// Only the facts of real talk are counted.
    is_folded: bool,
}

impl Options {
    fn from_args() -> Result<Self> {
        let mut arguments = Arguments::new();
        let is_folded = arguments.flag("--folded");
        let is_only_talk = arguments.flag("--talk") || is_folded;
        let windows = arguments.list("--windows", &[], |item| item.parse().ok())?;
        let summarizers = arguments.list("--summarizers", &[], Summarizer::named)?;
        let (turns, pause_ms) =
            (arguments.number("--turns", 200)?, arguments.number("--pause", 50)?);
        let notes_ms = arguments.number("--notes", 30)?;
        let judge = arguments.text("--judge")?.unwrap_or_else(|| "none".to_owned());
        let judge = Judge::named(&judge).context("--judge names a kind of model")?;
        let talk = TalkOptions {
            n_turns: turns,
            windows: or(&windows, &TALK_WINDOWS),
            summarizers: or(&summarizers, &Summarizer::OF_TALK),
            set: arguments.text("--set")?.unwrap_or_else(|| "tune".to_owned()),
            names: arguments.list("--dialogues", &[], |item| Some(item.to_owned()))?,
            pause_ms,
            notes_ms,
            judge,
            dump: arguments.text("--dump")?,
            has_recall: !arguments.flag("--no-recall"),
        };
        let has_talk = is_only_talk || std::env::var_os("OLLM_TALK").is_some();
        let options = Self {
            turns,
            windows: or(&windows, &WINDOWS),
            summarizers: or(&summarizers, &Summarizer::ALL),
            pause_ms,
            notes_ms,
            pastes: arguments.number("--pastes", 16)?,
            print: arguments.flag("--print"),
            talk: has_talk.then_some(talk),
            is_only_talk,
            is_folded,
        };
        ensure!(arguments.rest()?.is_empty(), "every argument has a name");
        Ok(options)
    }
}

/// Returns a list, or the default if it is empty.
fn or<T: Clone>(list: &[T], default: &[T]) -> Vec<T> {
    if list.is_empty() { default.to_vec() } else { list.to_vec() }
}
