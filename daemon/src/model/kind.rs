//! The one place that makes a backend of a kind of server.

use std::sync::Arc;

use super::auto::Auto;
use super::backend::Backend;
use super::error::ModelError;
use super::ollama::Ollama;
use super::openai::{Dialect, OpenAi};
use super::server::ServerSettings;
use crate::clock::Clock;
use crate::config::ServerKind;

/// Makes the backend of a server.
///
/// **Errors**: the settings of the server cannot be used.
pub(super) fn connect(
    settings: &ServerSettings,
    clock: &Arc<Clock>,
) -> Result<Arc<dyn Backend>, ModelError> {
    let (address, timeouts) = (settings.address.clone()?, settings.timeouts);
    let (names, clock) = (settings.own_names(), Arc::clone(clock));
    let dialect = match settings.kind {
        ServerKind::Ollama => return Ok(Arc::new(Ollama::new(address, timeouts, clock, names))),
        ServerKind::Auto => return Ok(Arc::new(Auto::new(address, timeouts, clock, names))),
        ServerKind::LlamaServer => Dialect::LlamaServer,
        ServerKind::Vllm => Dialect::Vllm,
        ServerKind::OpenAi => Dialect::Plain,
    };
    Ok(Arc::new(OpenAi::new(address, timeouts, clock, names, dialect, true)))
}
