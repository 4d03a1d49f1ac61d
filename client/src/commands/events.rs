//! `ollmctl events`: one line an event, handed on at once.

use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, EventKind};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as KindError, StrDeserializer};

use super::{CommandError, Cx};
use crate::cli::EventsArgs;
use crate::render::{event, json};

pub(super) fn run(args: &EventsArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let kinds = args.kinds.iter().map(|kind| parse_kind(kind)).collect::<Result<_, _>>()?;
    let session_id = args.session.as_deref().map(|session| cx.session(session)).transpose()?;
    let params = EventSubscribeParams { session_id, kinds, ..Default::default() };
    let for_people = cx.terminal.is_interactive() && !cx.json();
    let mut events = cx.take_client()?.subscribe_events(&params)?;
    while let Some(raw) = events.next_raw()? {
        let readable = for_people.then(|| serde_json::from_str::<Event>(raw.get()).ok()).flatten();
        match readable {
            Some(read) => cx.print_text(&event::line(&read, &chrono::Local))?,
            // An event of a newer daemon that this version cannot read is still a line of JSON.
            None => cx
                .terminal
                .print_raw(&format!("{}\n", json::escaped(raw.get())))
                .map_err(CommandError::Output)?,
        }
        // Whoever reads this decides line by line, so no line may wait for the next.
        cx.terminal.flush().map_err(CommandError::Output)?;
    }
    cx.terminal.note("ollmd ended the stream");
    Ok(())
}

fn parse_kind(text: &str) -> Result<EventKind, CommandError> {
    let input: StrDeserializer<'_, KindError> = text.into_deserializer();
    // The refusal lists every kind.
    EventKind::deserialize(input).map_err(|error| {
        CommandError::usage(
            format!("no such kind of event: {error}"),
            "ollmctl events --kind message-recorded",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_the_words_of_the_wire() {
        assert_eq!(parse_kind("message-recorded").unwrap(), EventKind::MessageRecorded);
        let refused = parse_kind("message").unwrap_err().to_string();
        assert!(refused.contains("session-created"), "{refused}");
    }
}
