//! `ollmctl events`: follows the daemon's events, one line each.

use clap::Args;
use ollm_protocol::event::EventCursor;
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, EventKind, sanitize};
use serde_json::Value;

use crate::args::wire_enum;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::connection::BlockingClient;
use crate::render::session_table::short_id;
use crate::render::{RenderOptions, Style, wire_name};

/// Follow the daemon's events, one a line, until interrupted.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints short texts on a terminal, and JSON lines otherwise or with --json. When the daemon is restarted, the new one's \
events follow after a `resync`.

Examples:
  ollmctl events
  ollmctl events --session last --kind message-recorded --json")]
pub(crate) struct EventsArgs {
    /// Only events of one session: an id, a unique end or beginning of one, or `last`.
    #[arg(long, value_name = "SESSION", add = completion::sessions())]
    session: Option<String>,
    /// Only events of this kind; may be given several times.
    #[arg(long = "kind", value_name = "KIND", value_parser = wire_enum::<EventKind>(&[]))]
    kinds: Vec<EventKind>,
}

pub(super) fn run(args: &EventsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.as_deref().map(|session| ctx.session(session)).transpose()?;
    let mut params =
        EventSubscribeParams { session_id, kinds: args.kinds.clone(), ..Default::default() };
    let options = ctx.render_options();
    let for_people = ctx.terminal.out_is_terminal() && !ctx.json();
    let mut events = ctx.take_client()?.subscribe_events(&params)?;
    loop {
        while let Some(raw) = events.next_raw()? {
            let event = for_people.then(|| serde_json::from_str::<Event>(raw.get()).ok()).flatten();
            match event {
                Some(event) => ctx.print_text(&render(&event, &options))?,
                // An event of a kind that this version cannot decode is printed as JSON, too.
                None => ctx.print_json_line(&raw)?,
            }
            // A reader acts on each line, so no line may wait for the next.
            ctx.terminal.flush()?;
        }
        if !events.is_restarting() {
            return Err(CommandError::StreamEnded);
        }
        // No daemon has this epoch, so the stream of the next one begins with `resync`.
        params.since = Some(EventCursor { epoch: String::new(), event_seq: 0 });
        events =
            BlockingClient::connect_to_successor(ctx.connector())?.subscribe_events(&params)?;
    }
}

/// Returns a line such as `10:00:00  9a3b0001  message-recorded  #3  role=user tokens=12`.
fn render(event: &Event, options: &RenderOptions) -> String {
    let time = options.second(event.at);
    let session = event.session_id.map_or_else(String::new, |id| short_id(None, id));
    let style = match event.kind {
        EventKind::Lagged | EventKind::Resync => Style::Bad,
        _ => Style::Strong,
    };
    let kind = style.paint(&wire_name(event.kind));
    let mut line = format!("{time}  {session:<8}  {kind}");
    if let Some(seq) = event.seq {
        line.push_str(&format!("  #{seq}"));
    }
    let data = data_text(event);
    if !data.is_empty() {
        line.push_str(&format!("  {data}"));
    }
    line.push('\n');
    line
}

/// Returns the data of an event on one line, such as `role=user tokens=12`, without what is null.
pub(super) fn data_text(event: &Event) -> String {
    let Value::Object(fields) = &event.data else { return String::new() };
    let present = fields.iter().filter(|(_, value)| !value.is_null());
    let texts = present.map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{}={}", sanitize::one_line(name), sanitize::one_line(&text))
    });
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::address::Environment;
    use crate::args::variant_names;
    use crate::cli::{Cli, CliCommand};
    use crate::error::Exit;
    use crate::testing::{TestHome, plain, render_options, reply, run_at, send};

    #[test]
    fn event_is_one_sanitized_line() {
        let event: Event = serde_json::from_value(json!({
            "epoch": "e", "eventSeq": 7, "sessionId": "0192f0c1-9a3b-7000-8000-000000000001",
            "seq": 3, "kind": "message-recorded", "at": "2026-01-27T10:00:00Z",
            "data": {"model": null, "role": "user", "title": "a\u{1b}[2J\nb"}
        }))
        .unwrap();
        let text = plain(&render(&event, &render_options(80)));
        assert_eq!(text, "10:00:00  00000001  message-recorded  #3  role=user title=a b\n");
    }

    #[test]
    fn help_and_refusal_list_the_kinds() {
        let mut command = crate::cli::whole_command();
        let help = command.find_subcommand_mut("events").unwrap().render_help().to_string();
        let refused = Cli::try_parse_from(["ollmctl", "events", "--kind", "message"]).unwrap_err();
        let refused = refused.to_string();
        for name in variant_names::<EventKind>() {
            assert!(help.contains(name) && refused.contains(name), "{name}: {help}{refused}");
        }
        let cli = Cli::try_parse_from(["ollmctl", "events", "--kind", "message-recorded"]).unwrap();
        let CliCommand::Events(args) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(args.kinds, [EventKind::MessageRecorded]);
    }

    #[test]
    fn end_of_stream_is_an_error() {
        let ending = |sends_reason: bool| {
            let home = TestHome::new();
            let _server = home.serve(move |request, stream| {
                reply(stream, request, &json!(7));
                if sends_reason {
                    let params = json!({"subscription": 7, "error": "leaving"});
                    send(
                        stream,
                        &json!({"jsonrpc": "2.0", "method": "event.event", "params": params}),
                    );
                }
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            });
            let line = ["--no-spawn", "events"];
            run_at(&home.socket(), &line, &Environment::default()).1.unwrap()
        };
        for error in [ending(true), ending(false)] {
            assert_eq!(error.exit(), Exit::Unreachable);
            assert!(error.to_text().contains("ollmd"), "{error}");
        }
    }
}
