//! Arguments of `chat`.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueHint};
use ollm_protocol::methods::chat::{Think, ThinkLevel};

use super::{by_model, by_session};

/// How much a model can be told to think; without a word it just thinks.
const THINK: [&str; 6] = ["on", "off", "low", "medium", "high", "max"];

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Go on with the current session of this directory's project.
    #[arg(short, long = "continue", conflicts_with_all = ["resume", "new"])]
    pub(crate) continue_: bool,
    /// Go on with a session: an id, a unique beginning of one, or `last`; without one, choose from the recent ones.
    #[arg(
        short,
        long,
        value_name = "SESSION",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with = "new",
        add = by_session()
    )]
    pub(crate) resume: Option<String>,
    /// Begin a new session, as without -c and -r.
    #[arg(short, long)]
    pub(crate) new: bool,
    /// The model, from now on also the session's [default: the session's, else the configured one].
    #[arg(short, long, add = by_model())]
    pub(crate) model: Option<String>,
    /// Instructions to the model that hold for the whole session; an empty text removes them.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let the model think before it answers: on, off, or low, medium, high or max for models that know them.
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        value_parser = PossibleValuesParser::new(THINK).map(|word| think(&word).unwrap_or(Think::Flag(true))),
        hide_possible_values = true
    )]
    pub(crate) think: Option<Think>,
    /// Let the model answer at once.
    #[arg(long, conflicts_with = "think")]
    pub(crate) no_think: bool,
    /// Keep no file of what is typed, and offer nothing that was typed before.
    #[arg(long)]
    pub(crate) no_history: bool,
    /// The question; a text behind a pipe follows it. Without either, a chat on the terminal.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) question: Option<String>,
}

impl ChatArgs {
    /// Whether the model is to think, where somebody said so.
    pub(crate) const fn thinking(&self) -> Option<Think> {
        if self.no_think { Some(Think::Flag(false)) } else { self.think }
    }
}

/// How much a model is to think, by the word for it; `None` where it is none of them.
pub(crate) fn think(word: &str) -> Option<Think> {
    Some(match word {
        "off" => Think::Flag(false),
        "on" => Think::Flag(true),
        "low" => Think::Level(ThinkLevel::Low),
        "medium" => Think::Level(ThinkLevel::Medium),
        "high" => Think::Level(ThinkLevel::High),
        "max" => Think::Level(ThinkLevel::Max),
        _ => return None,
    })
}

/// The word for how much a model is to think.
pub(crate) const fn think_word(think: Think) -> &'static str {
    match think {
        Think::Flag(false) => "off",
        Think::Flag(true) => "on",
        Think::Level(ThinkLevel::Low) => "low",
        Think::Level(ThinkLevel::Medium) => "medium",
        Think::Level(ThinkLevel::High) => "high",
        Think::Level(ThinkLevel::Max) => "max",
    }
}
