//! How a template writes the arguments of a call. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::{JsonStyle, styles};

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
