//! The handlers, one file a noun: convert in, one call of the domain, convert out.

mod chat;
mod context;
mod context_entries;
mod daemon;
mod env;
mod event;
mod goal;
mod loops;
mod model;
mod session;

use super::Registry;

/// Registers every handler.
pub(super) fn register(registry: &mut Registry) {
    chat::register(registry);
    context::register(registry);
    context_entries::register(registry);
    daemon::register(registry);
    env::register(registry);
    event::register(registry);
    goal::register(registry);
    model::register(registry);
    loops::register(registry);
    session::register(registry);
}
