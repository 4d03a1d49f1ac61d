//! The options of the answers of a chat: those of its flags and of `/set`, which win over those that the session keeps.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use ollm_protocol::content::Meta;
use ollm_protocol::methods::chat::{ChatSendParams, Think};
use ollm_protocol::sanitize;
use serde_json::Value;

use super::files;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::sessions::options::option;

/// The sampling options that most model servers have. PROTOCOL.md, `chat.send`.
const SAMPLING: [&str; 12] = [
    "temperature",
    "seed",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "stop",
    "num_keep",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
];
/// The other options of an answer.
const OTHERS: [&str; 3] = ["think", "format", "answerLimit"];
/// The largest file with a JSON Schema.
const MAX_SCHEMA_BYTES: u64 = 1 << 20;
/// The command in the hint of an option that cannot be read.
const EXAMPLE: &str = "ollmctl chat -o temperature=0.2 'Why?'";

/// The flags for options.
#[derive(Debug, Default, Args)]
pub(super) struct OptionArgs {
    /// Set an option of the answers, such as temperature=0.2; repeat for more, /set in a chat lists them.
    #[arg(short, long = "option", value_name = "NAME=VALUE", value_hint = ValueHint::Other)]
    options: Vec<String>,
    /// Let the model answer in JSON: `json`, or a file with a JSON Schema.
    #[arg(long, value_name = "json|FILE", value_hint = ValueHint::FilePath)]
    format: Option<String>,
    /// Let the model server keep the model in memory for a number of seconds after each answer; 0 unloads it.
    #[arg(long, value_name = "SECONDS")]
    pub(super) keep_alive: Option<u32>,
    /// Show the model a picture with the question; repeat for more. In a chat, `@FILE` in a message does it.
    #[arg(long = "image", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) images: Vec<PathBuf>,
}

/// The options of a chat; null stands for an option of the session that is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChatOptions(Meta);

impl ChatOptions {
    /// Reads the flags.
    ///
    /// **Errors**: an option is unknown, or the schema cannot be read.
    pub(super) fn of(args: &OptionArgs) -> CommandResult<Self> {
        let mut options = Self::default();
        for text in &args.options {
            options.set(named_option(text, EXAMPLE)?, false);
        }
        if let Some(format) = &args.format {
            options.0.insert("format".to_owned(), format_of(format)?);
        }
        Ok(options)
    }

    /// Sets an option. Null removes it, and leaves it out if the session keeps it.
    pub(super) fn set(&mut self, (name, value): (String, Value), is_kept: bool) {
        if value.is_null() && !is_kept {
            self.0.remove(&name);
        } else {
            self.0.insert(name, value);
        }
    }

    /// Forgets an option, so that the session's holds.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Sets how the model thinks.
    pub(super) fn set_think(&mut self, think: Think) {
        self.0.insert("think".to_owned(), serde_json::to_value(think).unwrap_or_default());
    }

    /// Returns how the model thinks; `None` if the chat does not decide it.
    pub(super) fn think(&self) -> Option<Think> {
        serde_json::from_value(self.0.get("think")?.clone()).ok()
    }

    /// Sets the longest answer.
    pub(super) fn set_answer_limit(&mut self, tokens: u32) {
        self.0.insert("answerLimit".to_owned(), tokens.into());
    }

    /// Puts the options into the params of a turn.
    pub(super) fn apply(&self, params: &mut ChatSendParams) {
        for (name, value) in &self.0 {
            match name.as_str() {
                "think" if !value.is_null() => params.think = self.think(),
                "format" if !value.is_null() => params.format = Some(value.clone()),
                "answerLimit" if !value.is_null() => {
                    params.answer_limit = value.as_u64().and_then(|limit| limit.try_into().ok());
                }
                _ => drop(params.options.insert(name.clone(), value.clone())),
            }
        }
    }

    /// Lists the options in force with their source, and the names of the others.
    pub(super) fn list(&self, kept: &Meta) -> String {
        let mut text = String::new();
        let mut names: Vec<&str> = Vec::new();
        let known = || SAMPLING.into_iter().chain(OTHERS);
        let further: BTreeSet<&str> =
            self.0.keys().chain(kept.keys()).map(String::as_str).collect();
        let further = further.into_iter().filter(|name| known().all(|known| known != *name));
        for name in known().chain(further) {
            let (value, source) = match (self.0.get(name), kept.get(name)) {
                (Some(Value::Null), _) => ("-".to_owned(), "left out in this chat"),
                (Some(value), _) => (value.to_string(), "this chat"),
                (None, Some(value)) => (value.to_string(), "kept by the session"),
                (None, None) => {
                    names.push(name);
                    continue;
                }
            };
            let (name, value) = (sanitize::one_line(name), sanitize::one_line(&value));
            let _infallible = writeln!(text, "{name} = {value}  ({source})");
        }
        let _infallible = writeln!(
            text,
            "Not set: {}. The configuration, the model or its server decides about them.\n\
             /set NAME=VALUE sets one for this chat, /set --keep NAME=VALUE for the session, and /set NAME= removes one.",
            names.join(", ")
        );
        text
    }
}

/// Reads `NAME=VALUE`. Each kind of server has options of its own, so a name that is not known here is left to it.
/// `example`: a command that sets an option, for the hint of an error.
///
/// **Errors**: the option cannot have the value.
pub(super) fn named_option(text: &str, example: &str) -> CommandResult<(String, Value)> {
    let (name, value) = option(text, example)?;
    let normal = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    let known = SAMPLING.into_iter().chain(OTHERS).find(|known| normal(known) == normal(&name));
    let Some(known) = known else { return Ok((name, value)) };
    let value = match (known, value) {
        ("format", Value::String(path)) => format_of(&path)?,
        ("think", Value::String(word)) if matches!(word.as_str(), "on" | "off") => {
            Value::from(word == "on")
        }
        ("stop", Value::String(word)) => Value::from(vec![word]),
        (name, value) if has_wrong_kind(name, &value) => {
            return Err(CommandError::usage(
                format!("{name} cannot be {}", sanitize::one_line(&value.to_string())),
                "",
            ));
        }
        (_, value) => value,
    };
    Ok((known.to_owned(), value))
}

/// Returns whether a value is not of the kind of its option; null removes any.
fn has_wrong_kind(name: &str, value: &Value) -> bool {
    match name {
        _ if value.is_null() => false,
        "think" => serde_json::from_value::<Think>(value.clone()).is_err(),
        "answerLimit" => value.as_u64().is_none_or(|limit| limit == 0 || limit > u32::MAX.into()),
        "format" => !value.is_object(),
        "stop" => !value.is_array(),
        _ => !value.is_number(),
    }
}

/// Returns `json`, or the JSON Schema in a file.
fn format_of(text: &str) -> CommandResult<Value> {
    if text == "json" {
        return Ok(Value::from(text));
    }
    let schema = files::read(text.as_ref(), MAX_SCHEMA_BYTES)?;
    let shown = sanitize::one_line(text);
    let problem = match serde_json::from_slice::<Value>(&schema) {
        Ok(value) if value.is_object() => return Ok(value),
        Ok(_) => format!("{shown} is not a JSON Schema, which is an object"),
        Err(error) => format!("{shown} is not JSON: {error}"),
    };
    Err(CommandError::usage(problem, ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::SESSION_ID;

    #[test]
    fn option_has_the_kind_of_its_name() {
        let check = |text: &str, name: &str, value: Value| {
            assert_eq!(named_option(text, EXAMPLE).unwrap(), (name.to_owned(), value), "{text}");
        };
        check("temperature=0.2", "temperature", json!(0.2));
        check("top-p=1", "top_p", json!(1));
        check("answer_limit=9", "answerLimit", json!(9));
        check("stop=END", "stop", json!(["END"]));
        check("think=off", "think", json!(false));
        check("think=high", "think", json!("high"));
        check("format=json", "format", json!("json"));
        check("seed=", "seed", Value::Null);
        check("repetition_penalty=1.1", "repetition_penalty", json!(1.1));
        for wrong in ["temperature=hot", "think=lots", "answerLimit=0", "format=/no", "seed"] {
            assert!(named_option(wrong, EXAMPLE).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_of_the_chat_win_and_are_listed_with_their_source() {
        let kept = Meta::from([("seed".to_owned(), json!(7)), ("top_k".to_owned(), json!(1))]);
        let named = |text: &str| named_option(text, EXAMPLE).unwrap();
        let mut options = ChatOptions::default();
        options.set_think(Think::Flag(false));
        options.set(named("temperature=0.2"), false);
        options.set(named("top_k="), true);
        options.set(named("min_p="), false);
        options.set(named("mirostat=2"), false);
        let mut params = ChatSendParams::new(SESSION_ID.parse().unwrap());
        options.apply(&mut params);
        assert_eq!(params.think, Some(Think::Flag(false)));
        assert_eq!(
            Value::from(params.options),
            json!({"mirostat": 2, "temperature": 0.2, "top_k": null})
        );
        let list = options.list(&kept);
        for line in [
            "temperature = 0.2  (this chat)",
            "mirostat = 2  (this chat)",
            "seed = 7  (kept by the session)",
            "top_k = -",
        ] {
            assert!(list.contains(line), "{list}");
        }
    }
}
