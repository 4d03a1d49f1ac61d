//! `ollmctl chat`: a conversation with a model, all of which the daemon keeps.
//!
//! A question on the command line or from a pipe gets one answer; otherwise the chat runs on the terminal
//! (`interactive`), with commands (`slash`, `help`). `session` is the session, `options` has the options of its answers,
//! `files` puts files into a message, `turn` runs one turn, `screen` shows the turn, `suspend` stops the process for
//! Ctrl-Z, and `editor` runs the editor of the user. This client keeps only the typed lines, for the arrow keys (`input`,
//! `history`).

mod editor;
mod files;
mod fit;
mod help;
mod history;
mod input;
mod interactive;
mod model_name;
mod options;
mod screen;
pub(super) mod session;
mod slash;
mod suspend;
mod turn;

use std::io::IsTerminal as _;
use std::sync::Arc;

use clap::{Args, ValueHint};
use ollm_protocol::methods::chat::Think;
use ollm_protocol::methods::session::MessageInput;
use serde_json::json;

use crate::args::read_stdin;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::interrupts::Interrupts;
use fit::require_fit;
use model_name::require_model;
use options::{ChatOptions, OptionArgs};
use screen::{JsonLines, Screen};
use session::{ChatSession, think_parser};
use suspend::StopKey;
use turn::{TurnEnd, TurnRunner, WhenBusy, canceled};

/// The shortest fence around text from a pipe; the fence is longer than any run of backticks in the text.
const MIN_FENCE_CHARS: usize = 3;

/// Talk with a local model; the conversation is kept as a session.
#[derive(Debug, Args)]
#[command(after_help = "\
Without a question, this is a chat on the terminal: /help lists its commands, Ctrl-C cancels an answer, Ctrl-D leaves. \
With a question, the answer goes to stdout and everything else to stderr. A new session becomes the current one of \
this directory's project, so that -c continues it.

A question of which the model can be shown less than nine tenths is refused unless --allow-truncation is given; the \
part of a longer one that the model is shown is reported on stderr.

--json prints the events of the turn, one a line; the first names the session.

Lines typed in a chat are kept for the arrow keys in `chat-history` in the daemon's home, until the session is deleted.

Examples:
  ollmctl chat
  ollmctl chat 'How do I reverse a list in Python?'
  ollmctl chat --continue 'And in Rust?'
  git diff | ollmctl chat -m qwen3:8b 'Write a commit message for this change.'
  ollmctl chat --resume last")]
pub(crate) struct ChatArgs {
    /// Continue the current session of this directory's project.
    #[arg(short, long = "continue", conflicts_with_all = ["resume", "new"])]
    continue_: bool,
    /// Continue a session: an id, a unique end or beginning of one, `last`, or words of its title; without a value, choose
    /// from the latest sessions.
    #[arg(
        short,
        long,
        value_name = "SESSION",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with = "new",
        add = completion::sessions()
    )]
    resume: Option<String>,
    /// Start a new session, which is the default.
    #[arg(short, long)]
    new: bool,
    /// The model, which also becomes the session's [default: the session's, else the configured one].
    #[arg(short, long, add = completion::models())]
    model: Option<String>,
    /// Instructions to the model for the whole session; an empty text removes them.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Let the model think before it answers: on, off, or for models that support them low, medium, high or max.
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        value_parser = think_parser(),
        hide_possible_values = true
    )]
    think: Option<Think>,
    /// Let the model answer without thinking.
    #[arg(long, conflicts_with = "think")]
    no_think: bool,
    #[command(flatten)]
    options: OptionArgs,
    /// End each answer after a number of tokens [default: context.answerLimit, else the rest of the window].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    answer_limit: Option<u32>,
    /// Ask for one answer even if more than a tenth of the question does not fit into the model's window.
    #[arg(long)]
    allow_truncation: bool,
    /// Print the text of answers as it arrives, without rendering Markdown and without painting a line twice: for screen
    /// readers.
    #[arg(long)]
    plain: bool,
    /// Do not keep the lines typed in this chat, and do not offer earlier ones.
    #[arg(long)]
    no_history: bool,
    /// The question; text from a pipe is appended to it. Without question and pipe, chat on the terminal.
    #[arg(value_hint = ValueHint::Other)]
    question: Option<String>,
}

impl ChatArgs {
    const fn thinking(&self) -> Option<Think> {
        if self.no_think { Some(Think::Flag(false)) } else { self.think }
    }
}

pub(super) fn run(args: ChatArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let question = question(args.question.as_deref())?;
    if question.is_none() && (ctx.json() || !ctx.terminal.out_is_terminal()) {
        return Err(CommandError::usage(
            "a chat needs a terminal; for one answer give the question",
            "ollmctl chat 'How do I reverse a list?'",
        ));
    }
    if question.is_none() && !args.options.images.is_empty() {
        return Err(CommandError::usage(
            "--image is for one question; in a chat, name the picture in a message",
            "ollmctl chat --image picture.png 'What is on it?'",
        ));
    }
    // A file that cannot be read changes nothing.
    let pictures = files::pictures(&args.options.images)?;
    let mut session = open_session(&args, ctx)?;
    let is_chat = question.is_none();
    let when_busy = if is_chat { WhenBusy::Wait } else { WhenBusy::Fail };
    let interrupts = Interrupts::watch()?;
    let is_plain = args.plain || !ctx.environment.can_move_cursor();
    // Without a terminal on stdout there is nothing to put back.
    let stop_key = if ctx.terminal.out_is_terminal() { StopKey::watch()? } else { Arc::default() };
    let turns = TurnRunner::new(when_busy, Arc::clone(&interrupts), stop_key);
    match question {
        Some(question) => {
            if !args.allow_truncation {
                require_fit(&question, &mut session, ctx)?;
            }
            let prepared = files::message(question, pictures);
            answer_once(&prepared, session, turns, is_plain, ctx)
        }
        None => {
            ctx.chat_interrupts = Some(interrupts);
            interactive::run(session, turns, !args.no_history, is_plain, ctx)
        }
    }
}

/// Opens the session that the arguments name.
fn open_session(args: &ChatArgs, ctx: &mut CommandContext<'_>) -> CommandResult<ChatSession> {
    if let Some(model) = &args.model {
        require_model(model, ctx)?;
    }
    let existing = if args.continue_ {
        Some(session::current(ctx)?)
    } else if let Some(text) = &args.resume {
        let id = if text.is_empty() { session::choose(ctx)? } else { session::find(text, ctx)? };
        Some(session::resume(id, ctx)?)
    } else {
        None
    };
    let mut chat = ChatSession::new(existing);
    chat.options = ChatOptions::of(&args.options)?;
    args.thinking().into_iter().for_each(|think| chat.options.set_think(think));
    args.answer_limit.into_iter().for_each(|tokens| chat.options.set_answer_limit(tokens));
    if let Some(seconds) = args.options.keep_alive {
        chat.set_keep_alive(seconds, ctx)?;
    }
    if let Some(system) = args.system.clone() {
        chat.set_system(system, ctx)?;
    }
    if let Some(model) = args.model.clone() {
        chat.set_model(model, ctx)?;
    }
    Ok(chat)
}

/// Returns the question from the command line and from a pipe; `None` if there is neither.
fn question(given: Option<&str>) -> CommandResult<Option<String>> {
    let given = given.filter(|text| *text != "-");
    let question = if std::io::stdin().is_terminal() {
        given.map(str::to_owned)
    } else {
        Some(with_piped(given.unwrap_or_default(), &read_stdin("chat")?))
    };
    if question.as_ref().is_some_and(|text| text.trim().is_empty()) {
        let hint = "ollmctl chat 'How do I reverse a list?'";
        return Err(CommandError::usage("there is no question", hint));
    }
    Ok(question)
}

/// Appends piped text to a question, between fences that do not occur in it.
fn with_piped(question: &str, piped: &str) -> String {
    if piped.trim().is_empty() {
        return question.to_owned();
    }
    if question.trim().is_empty() {
        return piped.to_owned();
    }
    format!("{question}\n\nstdin:\n{}", fenced(piped))
}

/// Returns a text between fences that do not occur in it.
pub(crate) fn fenced(text: &str) -> String {
    let runs = text.split(|char| char != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0).saturating_add(1).max(MIN_FENCE_CHARS));
    format!("{fence}\n{}\n{fence}", text.trim_end_matches('\n'))
}

fn answer_once(
    question: &MessageInput,
    mut session: ChatSession,
    turns: TurnRunner,
    is_plain: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let end = if ctx.json() {
        let first = json!({ "kind": "session", "sessionId": session.id(ctx)? });
        ctx.terminal.print_raw(format!("{first}\n"))?;
        session.ask(Some(question), &turns, &mut JsonLines, ctx)?
    } else {
        let mut screen = Screen::for_one_answer(is_plain, ctx.terminal);
        let end = session.ask(Some(question), &turns, &mut screen, ctx)?;
        if let Some(usage) = screen.usage_line().filter(|_| ctx.terminal.err_is_terminal()) {
            ctx.terminal.eprintln(&usage);
        }
        end
    };
    match end {
        TurnEnd::Answered => Ok(()),
        TurnEnd::Canceled { has_answer: true } => {
            Err(canceled("canceled; the answer so far is kept"))
        }
        TurnEnd::Canceled { has_answer: false } => {
            Err(canceled("canceled before the answer began; the question is kept without one"))
        }
        TurnEnd::Abandoned | TurnEnd::TakenBack => Err(canceled("canceled")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piped_text_is_fenced_after_the_question() {
        let check = |question, piped, expect: &str| assert_eq!(with_piped(question, piped), expect);
        check("why?", "", "why?");
        check("", "text\n", "text\n");
        check("why?", "a\nb\n", "why?\n\nstdin:\n```\na\nb\n```");
        check("why?", "```\nx\n```\n", "why?\n\nstdin:\n````\n```\nx\n```\n````");
    }
}
