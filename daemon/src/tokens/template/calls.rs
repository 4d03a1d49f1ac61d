//! The text form in which a chat template writes tool calls, their arguments, and JSON.
//!
//! Must not know seams, or prompts beyond the text of one call.
//!
//! **Invariant**: a value that template engines write in different ways has no text (`None`), never a guessed one.

use ollm_protocol::content::ContextToolCall;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form of the tool calls of an assistant message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallForm {
    /// The text before the name of the first call, in a message without text.
    pub(super) open: String,
    /// The same in a message with text; `None` if that form was not understood.
    pub(super) open_behind_text: Option<String>,
    /// Whether a message with text is written without its calls, as by Ollama's template of Qwen 2.5.
    #[serde(default)]
    pub(super) is_dropped_behind_text: bool,
    /// The text between the name and the arguments of a call.
    pub(super) middle: String,
    /// The text between the arguments of a call and the name of the next; `None` if only single calls were understood.
    pub(super) between: Option<String>,
    pub(super) arguments: ArgumentForm,
}

impl CallForm {
    /// Returns the text of a message with its calls, or `None` if the form does not cover it.
    pub(super) fn write(&self, content: &str, calls: &[ContextToolCall]) -> Option<String> {
        let mut text = content.to_owned();
        let open = if content.is_empty() { &self.open } else { self.open_behind_text.as_ref()? };
        text.push_str(open);
        for (at, call) in calls.iter().enumerate() {
            if at > 0 {
                text.push_str(self.between.as_ref()?);
            }
            text.push_str(&call.function.name);
            text.push_str(&self.middle);
            text.push_str(&self.arguments.write(&call.function.arguments)?);
        }
        Some(text)
    }
}

/// The form of the arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ArgumentForm {
    /// A JSON object.
    Object(JsonStyle),
    /// A list of names and values, as tags or lines.
    List(ListForm),
}

/// The form of arguments as a list: strings are written verbatim, arrays and objects as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListForm {
    before_name: String,
    behind_name: String,
    behind_value: String,
    style: JsonStyle,
    /// Whether booleans are written as `True` and `False`.
    is_python: bool,
}

impl ArgumentForm {
    /// Returns the forms that the arguments of the first call of `tool` may have in a prompt, each with their text.
    pub(super) fn candidates(prompt: &str, tool: &str, arguments: &Value) -> Vec<(Self, String)> {
        let objects = styles().map(Self::Object);
        let lists = styles().filter_map(|style| ListForm::find(prompt, tool, arguments, style));
        let lists = lists.flat_map(|form| {
            let python = ListForm { is_python: true, ..form.clone() };
            [Self::List(form), Self::List(python)]
        });
        let written = |form: Self| Some((form.write(arguments)?, form));
        let forms = objects.chain(lists).filter_map(written);
        forms.filter(|(text, _)| prompt.contains(text)).map(|(text, form)| (form, text)).collect()
    }

    pub(super) const fn style(&self) -> JsonStyle {
        match self {
            Self::Object(style) | Self::List(ListForm { style, .. }) => *style,
        }
    }

    /// Returns the text of arguments, or `None` if template engines write them in different ways.
    pub(super) fn write(&self, arguments: &Value) -> Option<String> {
        match self {
            Self::Object(style) => style.write(arguments),
            Self::List(form) => form.write(arguments),
        }
    }
}

impl ListForm {
    /// Finds the form of two arguments, the first of them a string, after the first mention of a tool.
    fn find(prompt: &str, tool: &str, arguments: &Value, style: JsonStyle) -> Option<Self> {
        let (_, after) = prompt.split_once(tool)?;
        let [(first, first_value), (second, second_value)] = ordered(arguments, style)?[..] else {
            return None;
        };
        let parts = [
            first.to_owned(),
            value_of(first_value, style, false)?,
            second.to_owned(),
            value_of(second_value, style, false)?,
        ];
        let [opening, behind_name, next, second_behind_name, rest] = split_at(after, &parts)?[..]
        else {
            return None;
        };
        // The text before a name is the common end of the texts before both names. It may wrongly include an end of
        // the text after a value, which changes nothing because that also follows the last value.
        let before_name = common_suffix(opening, next);
        let behind_value = next.strip_suffix(before_name)?;
        (behind_name == second_behind_name && rest.starts_with(behind_value)).then(|| Self {
            before_name: before_name.to_owned(),
            behind_name: behind_name.to_owned(),
            behind_value: behind_value.to_owned(),
            style,
            is_python: false,
        })
    }

    fn write(&self, arguments: &Value) -> Option<String> {
        let mut text = String::new();
        for (name, value) in ordered(arguments, self.style)? {
            let value = value_of(value, self.style, self.is_python)?;
            let pieces =
                [&self.before_name, name.as_str(), &self.behind_name, &value, &self.behind_value];
            text.extend(pieces);
        }
        Some(text)
    }
}

/// Returns the arguments in the order in which they are written.
fn ordered(arguments: &Value, style: JsonStyle) -> Option<Vec<(&String, &Value)>> {
    let mut fields: Vec<_> = arguments.as_object()?.iter().collect();
    if style.is_sorted() {
        fields.sort_by_key(|(name, _)| name.as_str());
    }
    Some(fields)
}

/// Returns the text of a value in a list.
fn value_of(value: &Value, style: JsonStyle, is_python: bool) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(true) if is_python => Some("True".to_owned()),
        Value::Bool(false) if is_python => Some("False".to_owned()),
        // Engines omit null, or write it as `null` or `None`.
        Value::Null => None,
        other => style.write_nested(other),
    }
}

/// Returns the pieces of a text before, between and after some parts, which it must contain in this order.
pub(super) fn split_at<'t>(text: &'t str, parts: &[impl AsRef<str>]) -> Option<Vec<&'t str>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for part in parts {
        let (piece, after) = rest.split_once(part.as_ref())?;
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    Some(pieces)
}

fn common_suffix<'t>(text: &'t str, other: &str) -> &'t str {
    let pairs = text.chars().rev().zip(other.chars().rev());
    let n_bytes: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &text[text.len() - n_bytes..]
}

/// The style in which a template engine writes JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JsonStyle {
    order: KeyOrder,
    /// Whether a space follows commas and colons.
    spaced: bool,
    /// Whether `<`, `>` and `&` are escaped, as Go does.
    escaped: bool,
}

/// The order of the keys of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum KeyOrder {
    /// The given order.
    Given,
    /// The given order for the outermost object, alphabetical for nested ones: some servers store arguments in a list
    /// and nested objects in maps.
    #[serde(rename = "inner")]
    NestedAlphabetical,
    /// Alphabetical for all objects.
    #[serde(rename = "alphabet")]
    Alphabetical,
}

/// Returns every known style.
fn styles() -> impl Iterator<Item = JsonStyle> {
    let orders =
        [KeyOrder::Given, KeyOrder::NestedAlphabetical, KeyOrder::Alphabetical].into_iter();
    orders.flat_map(|order| {
        let flags = [(false, false), (true, false), (false, true), (true, true)].into_iter();
        flags.map(move |(spaced, escaped)| JsonStyle { order, spaced, escaped })
    })
}

impl JsonStyle {
    /// Returns a value as JSON, or `None` if engines write one of its numbers or strings in different ways.
    pub(super) fn write(self, value: &Value) -> Option<String> {
        self.write_ordered(value, self.is_sorted())
    }

    /// Returns a string as JSON without its quotes.
    pub(super) fn unquoted(self, text: &str) -> Option<String> {
        let json = self.write(&Value::from(text))?;
        Some(json.strip_prefix('"')?.strip_suffix('"')?.to_owned())
    }

    /// Returns a value that is nested in another one as JSON.
    fn write_nested(self, value: &Value) -> Option<String> {
        self.write_ordered(value, self.order != KeyOrder::Given)
    }

    fn write_ordered(self, value: &Value, is_sorted: bool) -> Option<String> {
        let mut out = String::new();
        self.append(value, is_sorted, &mut out)?;
        Some(out)
    }

    /// Returns whether the keys of the outermost object are in alphabetical order.
    fn is_sorted(self) -> bool {
        self.order == KeyOrder::Alphabetical
    }

    fn append(self, value: &Value, is_sorted: bool, out: &mut String) -> Option<()> {
        let sorts_nested = self.order != KeyOrder::Given;
        let comma = if self.spaced { ", " } else { "," };
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if is_sorted {
                    fields.sort_by_key(|(name, _)| name.as_str());
                }
                out.push('{');
                for (at, (name, value)) in fields.into_iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    self.text(name, out)?;
                    out.push_str(if self.spaced { ": " } else { ":" });
                    self.append(value, sorts_nested, out)?;
                }
                out.push('}');
            }
            Value::Array(values) => {
                out.push('[');
                for (at, value) in values.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    self.append(value, sorts_nested, out)?;
                }
                out.push(']');
            }
            Value::String(text) => self.text(text, out)?,
            // Servers parse these as floating point numbers, and print them in different ways.
            Value::Number(number) if number.as_i64().is_none_or(|n| n.abs() > 1_000_000) => {
                return None;
            }
            other => out.push_str(&other.to_string()),
        }
        Some(())
    }

    fn text(self, text: &str, out: &mut String) -> Option<()> {
        // There are several escapes for these control characters.
        if text.chars().any(|char| char.is_control() && !matches!(char, '\n' | '\r' | '\t'))
            || text.contains(['\u{2028}', '\u{2029}'])
        {
            return None;
        }
        let json = Value::from(text).to_string();
        if self.escaped {
            let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
            out.push_str(&json.replace('&', "\\u0026"));
        } else {
            out.push_str(&json);
        }
        Some(())
    }
}
