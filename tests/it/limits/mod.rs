//! Limits: fields, records, replies, open sessions, retention, and calls during a deletion.

mod deletion;
mod fields;
mod open_sessions;
mod records;
mod replies;
mod retention;
