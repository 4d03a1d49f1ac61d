//! `ollmctl chat`: a talk with a model, of which the daemon keeps everything.
//!
//! `talk` knows which session it is; `turns` runs one turn and hears Ctrl-C; `screen` shows it; `oneshot` and
//! `interactive` are the two ways in. Nothing here is kept but what was typed, for the arrow keys (`input`).

mod aims;
mod echo;
mod input;
mod interactive;
mod interrupts;
mod next;
mod oneshot;
mod screen;
mod slash;
mod talk;
mod turns;

use std::io::IsTerminal as _;

use ollm_protocol::content::Role;
use ollm_protocol::methods::chat::ChatSendParams;
use ollm_protocol::methods::session::MessageInput;

use super::{CommandError, Cx};
use crate::cli::ChatArgs;
use talk::Talk;
use turns::{Outcome, Turns, Watch};

pub(super) fn run(args: ChatArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let question = oneshot::question(args.question.as_deref())?;
    if question.is_none() && (cx.json() || !cx.terminal.is_interactive()) {
        return Err(CommandError::usage(
            "a chat needs a terminal; for one answer give the question",
            "ollmctl chat 'How do I reverse a list?'",
        ));
    }
    let talk = Talk::begin(&args, cx)?;
    let turns = Turns::new()?;
    match question {
        Some(question) => oneshot::run(&args, question, talk, turns, cx),
        None => interactive::run(&args, talk, turns, cx),
    }
}

/// How the model is to answer, whatever is said.
#[derive(Clone, Copy, Debug)]
struct Manner {
    think: Option<ollm_protocol::methods::chat::Think>,
}

/// Has the model answer a message, or what is recorded already; where no model is named, the only one of the server
/// is taken.
fn ask(
    talk: &mut Talk,
    message: Option<&str>,
    manner: Manner,
    (turns, watch): (&mut Turns, &mut dyn Watch),
    cx: &mut Cx<'_>,
) -> Result<Outcome, CommandError> {
    let first = turn(talk, message, manner, (&mut *turns, &mut *watch), cx);
    match first {
        Err(error) if talk.lacks_model(&error) => {
            talk.pick_model(cx)?;
            turn(talk, message, manner, (turns, watch), cx)
        }
        other => other,
    }
}

fn turn(
    talk: &mut Talk,
    message: Option<&str>,
    manner: Manner,
    (turns, watch): (&mut Turns, &mut dyn Watch),
    cx: &mut Cx<'_>,
) -> Result<Outcome, CommandError> {
    let params = ChatSendParams {
        message: message.map(|text| MessageInput::text(Role::User, text)),
        think: manner.think,
        ..ChatSendParams::new(talk.id(cx)?)
    };
    turns.run(params, &mut |cx| talk.was_accepted(cx), watch, cx)
}

/// Whether somebody types, rather than a program writes.
fn is_typed() -> bool {
    std::io::stdin().is_terminal()
}
