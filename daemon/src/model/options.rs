//! The options of a request that do not make a server load the model again. Pure.

use serde_json::{Map, Value};

/// How the next token is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling(Map<String, Value>);

/// An option that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidOption {
    /// It would make the server load the model anew at each request that differs.
    #[error("{name} is one for all requests to a model and cannot be set for a single one")]
    Load { name: String },
    /// Nobody knows it; servers ignore it without a word.
    #[error("there is no option {name}")]
    Unknown { name: String },
    /// Its value is of another type.
    #[error("{name} must be {expected}")]
    Type { name: String, expected: &'static str },
}

/// What an option holds.
#[derive(Clone, Copy)]
enum Kind {
    Whole,
    Number,
    Texts,
}

/// Every option of a request.
///
/// **Source**: `api.Options` of Ollama 0.33. `num_predict` is not here: it is bounded by the window.
const OPTIONS: &[(&str, Kind)] = &[
    ("num_keep", Kind::Whole),
    ("seed", Kind::Whole),
    ("top_k", Kind::Whole),
    ("top_p", Kind::Number),
    ("min_p", Kind::Number),
    ("typical_p", Kind::Number),
    ("repeat_last_n", Kind::Whole),
    ("temperature", Kind::Number),
    ("repeat_penalty", Kind::Number),
    ("presence_penalty", Kind::Number),
    ("frequency_penalty", Kind::Number),
    ("stop", Kind::Texts),
];

/// The options of the model's process: a server loads the model again when one differs.
const LOAD_OPTIONS: &[&str] =
    &["num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"];

impl Sampling {
    /// Checks options as a client gives them.
    ///
    /// **Errors**: the first that cannot be sent. A server would ignore an unknown one, fail on a wrong type, and
    /// load the model again for one of its process.
    pub(crate) fn check(options: Map<String, Value>) -> Result<Self, InvalidOption> {
        for (name, value) in &options {
            if LOAD_OPTIONS.contains(&name.as_str()) {
                return Err(InvalidOption::Load { name: name.clone() });
            }
            let Some((_, kind)) = OPTIONS.iter().find(|(known, _)| known == name) else {
                return Err(InvalidOption::Unknown { name: name.clone() });
            };
            let (fits, expected) = match kind {
                Kind::Whole => (value.is_i64(), "a whole number"),
                Kind::Number => (value.is_number(), "a number"),
                Kind::Texts => {
                    let texts = value.as_array();
                    (texts.is_some_and(|all| all.iter().all(Value::is_string)), "a list of texts")
                }
            };
            if !fits {
                return Err(InvalidOption::Type { name: name.clone(), expected });
            }
        }
        Ok(Self(options))
    }

    /// The options as they are sent.
    pub(super) const fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_options_of_a_request_pass() {
        let check = |options: Value, expect: Result<(), &str>| {
            let Value::Object(map) = options else { panic!("an object") };
            let found = Sampling::check(map).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned));
        };
        check(json!({}), Ok(()));
        check(json!({"temperature": 0, "top_p": 0.5, "seed": -1, "stop": ["a", "b"]}), Ok(()));
        let load = "num_ctx is one for all requests to a model and cannot be set for a single one";
        check(json!({"num_ctx": 4096}), Err(load));
        check(json!({"num_predict": 5}), Err("there is no option num_predict"));
        check(json!({"shift": true}), Err("there is no option shift"));
        check(json!({"seed": 0.5}), Err("seed must be a whole number"));
        check(json!({"temperature": "hot"}), Err("temperature must be a number"));
        check(json!({"stop": "a"}), Err("stop must be a list of texts"));
    }
}
