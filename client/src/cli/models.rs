//! Subcommands of `models`.

use clap::{Args, Subcommand};

use super::by_model;

/// Arguments of `models`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ModelsCommand>,
}

/// What to do with models.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models that the model server has; so does `models` alone.
    List,
    /// Show what a model is: its window, what it can do, and what its memory costs.
    #[command(after_help = "\
Examples:
  ollmctl models show qwen3:8b
  ollmctl models show --json")]
    Show(ModelArg),
    /// List the models in the model server's memory, with the window each really has.
    Running,
    /// Load a model, so that the next answer begins sooner; waits until it is there.
    #[command(after_help = "\
The window is one for all requests to a model. A larger one that is in force stays.

Examples:
  ollmctl models warm qwen3:8b
  ollmctl models warm qwen3:8b --size 16384")]
    Warm(WarmArgs),
    /// Count the tokens of a text as a model does.
    #[command(after_help = "\
The count is exact where the model server tells the model's vocabulary, or did once.

Examples:
  ollmctl models count 'How many tokens is this?'
  cat notes.md | ollmctl models count -m qwen3:8b -")]
    Count(CountArgs),
}

/// Arguments of `models count`.
#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    /// The text; `-`, or nothing behind a pipe, reads it from stdin.
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// The model [default: the configured one].
    #[arg(short, long, value_name = "MODEL", add = by_model())]
    pub(crate) model: Option<String>,
}

/// A model.
#[derive(Debug, Args)]
pub(crate) struct ModelArg {
    /// The model [default: the configured one].
    #[arg(value_name = "MODEL", add = by_model())]
    pub(crate) model: Option<String>,
}

/// Arguments of `models warm`.
#[derive(Debug, Args)]
pub(crate) struct WarmArgs {
    /// The model [default: the configured one].
    #[arg(value_name = "MODEL", add = by_model())]
    pub(crate) model: Option<String>,
    /// The context window in tokens, at least 2048 [default: the configured one, else up to 8192].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) size: Option<u32>,
}
