//! Servers with the API of OpenAI: llama-server, vLLM and their like.

mod dialect;

pub(super) use self::dialect::Dialect;
