//! The catalog as its users see it, over logs in memory.

mod fake;
mod following;
mod forgetting;
mod searching;
