//! The session log: one record a line, only ever appended to. FORMAT.md, "The session log".
//!
//! This is the only module that knows the shape of a line. One file holds each version: `v1` is the only one so far and
//! therefore also the one that is written; a second version adds a match on the version here.
//!
//! **Invariants**: a record that is returned had a correct checksum; a torn tail starts after the last acknowledged record.

pub(super) mod file;
pub(super) mod recover;
mod v1;

pub(super) use v1::{EncodedLine, LineFields, decode_line, encode_line, line_crc};
