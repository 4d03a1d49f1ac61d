//! Fake model servers, for the integration tests, the benchmarks and the unit tests of the daemon.
//!
//! - [`http`]: a server that carries out the steps of each reply. It knows nothing of models.
//! - [`answer`]: what a model answers: a policy from questions to answers, in the words of no particular server.
//! - [`ollama`]: how Ollama says it, and what Ollama does besides.
//! - [`openai`]: how servers with the API of OpenAI say it.
//!
//! Several programs include these files by their path, so they name each other by `super` only.
#![allow(dead_code, unused_imports, reason = "each program uses a part of it")]

pub(crate) mod answer;
pub(crate) mod http;
pub(crate) mod ollama;
pub(crate) mod openai;
