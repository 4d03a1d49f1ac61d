//! `ollmctl events`: one line an event, handed on at once.

use ollm_protocol::Event;
use ollm_protocol::methods::event::EventSubscribeParams;

use super::{CommandError, Cx};
use crate::cli::EventsArgs;
use crate::render::{event, json};

pub(super) fn run(args: &EventsArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = args.session.as_deref().map(|session| cx.session(session)).transpose()?;
    let params =
        EventSubscribeParams { session_id, kinds: args.kinds.clone(), ..Default::default() };
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
    Err(CommandError::StreamEnded)
}
