//! The parts of the simulator of endless conversations.

pub(crate) mod chat;
pub(crate) mod facts;
pub(crate) mod generated;
pub(crate) mod options;
pub(crate) mod replay;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod speed;
pub(crate) mod stage;
pub(crate) mod summarizer;
pub(crate) mod tally;
