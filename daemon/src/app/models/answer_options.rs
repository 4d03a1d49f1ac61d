//! The options of an answer: those that a session keeps, and those of one turn, which win.

use std::time::Duration;

use ollm_protocol::content::Meta;
use ollm_protocol::limits::{MAX_OPTIONS_BYTES, json_bytes};
use ollm_protocol::methods::chat::{ChatSendParams, Think};
use serde_json::{Map, Value};

use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::model::Sampling;

/// The longest wait for a server to say its kind, before options are kept without a check of their names.
const IDENTIFY_WAIT: Duration = Duration::from_secs(2);
/// The options that are not those of sampling.
const THINK: &str = "think";
const FORMAT: &str = "format";
const ANSWER_LIMIT: &str = "answerLimit";

/// The options of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerOptions {
    /// The sampling options. Their names depend on the kind of the server.
    pub(crate) sampling: Map<String, Value>,
    pub(crate) answer_limit: Option<u32>,
    pub(crate) think: Option<Think>,
    pub(crate) format: Option<Value>,
}

impl AnswerOptions {
    /// Reads the options that a session keeps; null is none.
    ///
    /// **Errors**: `Invalid` for a value of a wrong type.
    pub(crate) fn kept(options: &Meta) -> Result<Self> {
        let mut read = Self::default();
        for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
            match name.as_str() {
                THINK => read.think = Some(typed(name, value, "true, false or a level")?),
                ANSWER_LIMIT => {
                    read.answer_limit = Some(typed(name, value, "a number of tokens")?);
                }
                FORMAT => read.format = Some(value.clone()),
                _ => drop(read.sampling.insert(name.clone(), value.clone())),
            }
        }
        Ok(read)
    }

    /// Returns these options with those of a turn, which win.
    pub(crate) fn with_turn(mut self, params: &mut ChatSendParams) -> Self {
        for (name, value) in std::mem::take(&mut params.options) {
            match (name.as_str(), value.is_null()) {
                (THINK, true) => self.think = None,
                (ANSWER_LIMIT, true) => self.answer_limit = None,
                (FORMAT, true) => self.format = None,
                (_, true) => drop(self.sampling.remove(&name)),
                (_, false) => drop(self.sampling.insert(name, value)),
            }
        }
        Self {
            sampling: self.sampling,
            answer_limit: params.answer_limit.take().or(self.answer_limit),
            think: params.think.take().or(self.think),
            format: params.format.take().or(self.format),
        }
    }
}

fn typed<T: serde::de::DeserializeOwned>(name: &str, value: &Value, expected: &str) -> Result<T> {
    let wrong = |_| AppError::invalid("options", format!("{name} must be {expected}"));
    serde_json::from_value(value.clone()).map_err(wrong)
}

/// Checks the options that a session is to keep for a model. The names are checked when they are used if the server does
/// not say soon which it has.
///
/// **Errors**: `Invalid`.
pub(crate) async fn check_kept(core: &Core, model: Option<String>, options: &Meta) -> Result<()> {
    let options = checked(options)?;
    let Some(model) = core.model_or_default(model).filter(|_| !options.sampling.is_empty()) else {
        return Ok(());
    };
    let Ok(backend) = core.models.backend_for(&model) else { return Ok(()) };
    let identified = tokio::time::timeout(IDENTIFY_WAIT, backend.identify()).await;
    match identified {
        Ok(Ok(())) => {
            let checked = Sampling::check(options.sampling, backend.sampling());
            checked.map(drop).map_err(|error| AppError::invalid("options", error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Reads the options that a session is to keep, and checks what is the same for all servers.
fn checked(options: &Meta) -> Result<AnswerOptions> {
    let options = AnswerOptions::kept(options)?;
    if options.answer_limit == Some(0) {
        return Err(AppError::invalid("options", "answerLimit must be at least 1"));
    }
    Ok(options)
}

/// Removes the options that no chat accepts, whatever its server is; returns their names, each with the problem.
pub(crate) fn remove_invalid(options: &mut Meta) -> Vec<(String, AppError)> {
    let mut removed = Vec::new();
    options.retain(|name, value| {
        let alone = Meta::from([(name.clone(), value.clone())]);
        let problem = checked(&alone).err();
        removed.extend(problem.map(|problem| (name.clone(), problem)));
        removed.last().is_none_or(|(last, _)| last != name)
    });
    removed
}

/// Refuses options that are too large together.
pub(crate) fn check_size(options: &Meta) -> Result<()> {
    if json_bytes(options) > MAX_OPTIONS_BYTES {
        let problem = format!("must have at most {MAX_OPTIONS_BYTES} bytes of JSON");
        return Err(AppError::invalid("options", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_of_a_turn_win_and_null_removes() {
        let kept: Meta =
            serde_json::from_value(json!({ "temperature": 0.5, "seed": 1, "top_k": null,
            "think": "low", "format": "json", "answerLimit": 9 }))
            .expect("a map");
        let kept = AnswerOptions::kept(&kept).expect("is valid");
        assert_eq!(Value::Object(kept.sampling.clone()), json!({ "temperature": 0.5, "seed": 1 }));
        let turn = |params: Value| {
            let id = "01890000-0000-7000-8000-000000000000".parse().expect("an id");
            let mut given = ChatSendParams::new(id);
            given.options = params["options"].as_object().cloned().unwrap_or_default();
            given.think = serde_json::from_value(params["think"].clone()).expect("an option");
            given.answer_limit =
                serde_json::from_value(params["answerLimit"].clone()).expect("a number");
            kept.clone().with_turn(&mut given)
        };
        assert_eq!(turn(json!({})), kept);
        let other = turn(json!({ "options": { "seed": 2, "temperature": null }, "think": false }));
        assert_eq!(Value::Object(other.sampling), json!({ "seed": 2 }));
        assert_eq!((other.think, other.answer_limit), (Some(Think::Flag(false)), Some(9)));
        let none = json!({ "think": null, "format": null, "answerLimit": null });
        let none = turn(json!({ "options": none, "answerLimit": 5 }));
        assert_eq!((none.think, none.format, none.answer_limit), (None, None, Some(5)));
        for wrong in [json!({ "think": 3 }), json!({ "answerLimit": "x" })] {
            let wrong: Meta = serde_json::from_value(wrong).expect("a map");
            assert!(AnswerOptions::kept(&wrong).is_err());
        }
    }
}
