//! What the benchmark programs share.
#![allow(dead_code, reason = "every program uses only a part of it")]

pub(crate) mod daemon;
pub(crate) mod logs;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod text;
