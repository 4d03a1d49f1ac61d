//! Asks a model and prints its answer while it is written: `cargo run --example follow_turn -- 'How do I reverse a list?'`
//!
//! A daemon that ends meanwhile does not end the program: the turn begins again with the next one.

use std::io::{Write as _, stdout};
use std::sync::Arc;

use ollm_client::{Address, Connector, Environment, FollowedTurn, ReconnectingClient, TurnStep};
use ollm_protocol::content::Role;
use ollm_protocol::method::SessionCreate;
use ollm_protocol::methods::chat::{ChatEvent, ChatSendParams};
use ollm_protocol::methods::session::{MessageInput, SessionCreateParams};
use ollm_protocol::sanitize::Sanitizer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1).unwrap_or_else(|| "How do I reverse a list?".to_owned());
    let environment = Environment::read();
    let connector = Connector::new(Address::new(None, None, &environment)?, &environment);
    let client = Arc::new(ReconnectingClient::new(connector));

    let session = client.call::<SessionCreate>(&SessionCreateParams::default()).await?.session;
    let message = Some(MessageInput::text(Role::User, question));
    let params = ChatSendParams { message, ..ChatSendParams::new(session.session_id) };
    let mut turn = FollowedTurn::start(client, params).await?;
    // A terminal would obey the control characters of a model.
    let mut sanitizer = Sanitizer::default();
    while let Some(step) = turn.next().await {
        match step? {
            TurnStep::Event(event) => match *event {
                ChatEvent::Delta { text: Some(text), .. } => {
                    write!(stdout(), "{}", sanitizer.push(&text))?;
                    stdout().flush()?;
                }
                ChatEvent::Error { message, .. } => return Err(message.into()),
                _ => {}
            },
            TurnStep::Restarted => writeln!(stdout(), "\n[the answer begins again]")?,
        }
    }
    writeln!(stdout())?;
    Ok(())
}
