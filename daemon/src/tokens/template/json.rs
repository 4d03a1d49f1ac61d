//! JSON as the template engines write it. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
