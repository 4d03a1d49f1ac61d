//! The handlers, one file a noun: convert in, one call of the domain, convert out.

mod daemon;
mod event;

use super::Registry;

/// Registers every handler.
pub(super) fn register(registry: &mut Registry) {
    daemon::register(registry);
    event::register(registry);
}
