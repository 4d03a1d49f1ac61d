//! The simulator of endless conversations.
//!
//! A run is a [session](crate::harness::session) of a daemon with a scripted [`model_server`], either [`generated`] or the [`replay`] of a
//! real one. It checks after each change of the context which [`facts`] are still there, and collects [`metrics`].

pub(crate) mod facts;
pub(crate) mod generated;
pub(crate) mod metrics;
pub(crate) mod model_server;
pub(crate) mod replay;
pub(crate) mod speed;
