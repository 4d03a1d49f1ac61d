//! The text form in which a chat template writes tool calls, their arguments, and JSON.
//!
//! Must not know seams or prompts beyond the text of one call.
//!
//! **Invariant**: values that template engines write in different ways have no form (`None`), never a guessed one.

use ollm_protocol::content::ContextToolCall;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How calls are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallForm {
    /// Before the name of the first call, where the message has no text.
    pub(super) open: String,
    /// The same behind a text; absent where a text with calls is written in a way that was not understood.
    pub(super) open_behind_text: Option<String>,
    /// Between a call's name and its arguments.
    pub(super) middle: String,
    /// Between a call's arguments and the next call's name; absent where only one call is understood.
    pub(super) between: Option<String>,
    pub(super) arguments: ArgumentForm,
}

impl CallForm {
    /// A message's text with its calls; `None` where that is not known.
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

/// How arguments are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ArgumentForm {
    /// As one JSON object.
    Object(JsonStyle),
    /// One after the other, as tags or lines.
    List(ListForm),
}

/// One argument after the other: texts as they are, lists and objects as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListForm {
    before_name: String,
    behind_name: String,
    behind_value: String,
    style: JsonStyle,
    /// `True` and `False`, as Python has it.
    is_python: bool,
}

impl ArgumentForm {
    /// The forms in which a prompt may show the arguments of the first call of a tool, with how they stand there.
    pub(super) fn shown(prompt: &str, tool: &str, arguments: &Value) -> Vec<(Self, String)> {
        let objects = styles().map(Self::Object);
        let lists = styles().filter_map(|style| ListForm::shown(prompt, tool, arguments, style));
        let lists = lists.flat_map(|form| {
            let python = ListForm { is_python: true, ..form.clone() };
            [Self::List(form), Self::List(python)]
        });
        let written = |form: Self| Some((form.write(arguments)?, form));
        let found = objects.chain(lists).filter_map(written);
        found.filter(|(text, _)| prompt.contains(text)).map(|(text, form)| (form, text)).collect()
    }

    /// How JSON is written.
    pub(super) const fn style(&self) -> JsonStyle {
        match self {
            Self::Object(style) | Self::List(ListForm { style, .. }) => *style,
        }
    }

    /// Arguments in this form; `None` where engines differ in how they write them.
    pub(super) fn write(&self, arguments: &Value) -> Option<String> {
        match self {
            Self::Object(style) => style.write(arguments),
            Self::List(form) => form.write(arguments),
        }
    }
}

impl ListForm {
    /// The form in which two arguments, the first of them a text, stand behind the name of a tool.
    fn shown(prompt: &str, tool: &str, arguments: &Value, style: JsonStyle) -> Option<Self> {
        let (_, mut rest) = prompt.split_once(tool)?;
        let [(first, first_value), (second, second_value)] = ordered(arguments, style)?[..] else {
            return None;
        };
        let marks = [
            first.to_owned(),
            value_of(first_value, style, false)?,
            second.to_owned(),
            value_of(second_value, style, false)?,
        ];
        let mut between = Vec::new();
        for mark in &marks {
            let (piece, after) = rest.split_once(mark)?;
            between.push(piece);
            rest = after;
        }
        let [opening, behind_name, next, again] = between[..] else { return None };
        // What stands before each name is what both have in common: more of it than there is changes nothing, as it
        // then follows the last value too.
        let before_name = common_suffix(opening, next);
        let behind_value = next.strip_suffix(before_name)?;
        (behind_name == again && rest.starts_with(behind_value)).then(|| Self {
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

/// Arguments in the order in which they are written.
fn ordered(arguments: &Value, style: JsonStyle) -> Option<Vec<(&String, &Value)>> {
    let mut fields: Vec<_> = arguments.as_object()?.iter().collect();
    if style.is_sorted() {
        fields.sort_by_key(|(name, _)| name.as_str());
    }
    Some(fields)
}

/// A value as it stands in a list.
fn value_of(value: &Value, style: JsonStyle, is_python: bool) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(true) if is_python => Some("True".to_owned()),
        Value::Bool(false) if is_python => Some("False".to_owned()),
        // Left out, written, or written as Python does.
        Value::Null => None,
        other => style.write_inner(other),
    }
}

fn common_suffix<'t>(text: &'t str, other: &str) -> &'t str {
    let pairs = text.chars().rev().zip(other.chars().rev());
    let n_bytes: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &text[text.len() - n_bytes..]
}

/// How a template writes arguments as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::tokens) struct JsonStyle {
    /// In which order keys stand.
    order: KeyOrder,
    /// A space behind commas and colons.
    spaced: bool,
    /// `<`, `>` and `&` as escapes, as Go does.
    escaped: bool,
}

/// In which order the keys of objects stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum KeyOrder {
    /// As they were given.
    Given,
    /// Those of the arguments as they were given, those within them by the alphabet: a server that keeps the former in
    /// a list of its own and the latter in maps.
    Inner,
    /// By the alphabet.
    Alphabet,
}

/// Every style that is known.
pub(super) fn styles() -> impl Iterator<Item = JsonStyle> {
    let orders = [KeyOrder::Given, KeyOrder::Inner, KeyOrder::Alphabet].into_iter();
    orders.flat_map(|order| {
        let flags = [(false, false), (true, false), (false, true), (true, true)].into_iter();
        flags.map(move |(spaced, escaped)| JsonStyle { order, spaced, escaped })
    })
}

impl JsonStyle {
    /// A value in this style; `None` for numbers that engines write differently.
    pub(super) fn write(self, value: &Value) -> Option<String> {
        let mut out = String::new();
        self.append(value, self.is_sorted(), &mut out)?;
        Some(out)
    }

    /// A text as JSON without its quotes.
    pub(super) fn unquoted(self, text: &str) -> Option<String> {
        let json = self.write(&Value::from(text))?;
        Some(json.strip_prefix('"')?.strip_suffix('"')?.to_owned())
    }

    /// A value that stands within another one, in this style.
    pub(super) fn write_inner(self, value: &Value) -> Option<String> {
        let mut out = String::new();
        self.append(value, self.order != KeyOrder::Given, &mut out)?;
        Some(out)
    }

    /// Whether the keys of the outermost object stand by the alphabet.
    pub(super) fn is_sorted(self) -> bool {
        self.order == KeyOrder::Alphabet
    }

    fn append(self, value: &Value, is_sorted: bool, out: &mut String) -> Option<()> {
        let sorts_inner = self.order != KeyOrder::Given;
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
                    self.append(value, sorts_inner, out)?;
                }
                out.push('}');
            }
            Value::Array(values) => {
                out.push('[');
                for (at, value) in values.iter().enumerate() {
                    out.push_str(if at > 0 { comma } else { "" });
                    self.append(value, sorts_inner, out)?;
                }
                out.push(']');
            }
            Value::String(text) => self.text(text, out)?,
            // Servers read them as floating point numbers and write them in ways of their own.
            Value::Number(number) if number.as_i64().is_none_or(|n| n.abs() > 1_000_000) => {
                return None;
            }
            other => out.push_str(&other.to_string()),
        }
        Some(())
    }

    fn text(self, text: &str, out: &mut String) -> Option<()> {
        // Control characters have several escapes.
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
