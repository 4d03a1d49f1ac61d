//! The fields of a foreign JSON object. A field that is not taken is a loss.

use ollm_protocol::Timestamp;
use serde_json::{Map, Value};

use super::imported::Losses;
use crate::nesting;

/// The last time that RFC 3339 can express; a log with a later time could not be read again.
const LAST_MS: i64 = 253_402_300_799_999;
/// The first time that RFC 3339 can express.
const FIRST_MS: i64 = -62_167_219_200_000;

/// The fields of an object that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Returns the fields of a JSON object, or `None` for any other value.
    pub(super) fn of(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self(map)),
            _ => None,
        }
    }

    /// Puts a field back that was taken and not used.
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Returns whether a field is there and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field of any type; a null counts as absent, and a value that is nested too deeply stays.
    pub(super) fn value(&mut self, name: &str) -> Option<Value> {
        self.take(name, |value| nesting::check(value).is_ok().then(|| value.take()))
            .filter(|value| !value.is_null())
    }

    /// Takes a field if it is a string.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, |value| match value {
            Value::String(text) => Some(std::mem::take(text)),
            _ => None,
        })
    }

    /// Takes a field if it is an array.
    pub(super) fn list(&mut self, name: &str) -> Option<Vec<Value>> {
        self.take(name, |value| value.as_array_mut().map(std::mem::take))
    }

    /// Takes a field if it is an object.
    pub(super) fn object(&mut self, name: &str) -> Option<Self> {
        self.take(name, |value| value.as_object_mut().map(std::mem::take).map(Self))
    }

    /// Takes a field if it is a boolean.
    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        self.take(name, |value| value.as_bool())
    }

    /// Takes a field if it is a non-negative integer.
    pub(super) fn count(&mut self, name: &str) -> Option<u64> {
        self.take(name, |value| value.as_u64().or_else(|| integer(value)?.try_into().ok()))
    }

    /// Takes a field if it is an integer of 32 bits.
    pub(super) fn small(&mut self, name: &str) -> Option<i32> {
        self.take(name, |value| integer(value)?.try_into().ok())
    }

    /// Takes a field if it is a number.
    pub(super) fn number(&mut self, name: &str) -> Option<f64> {
        self.take(name, |value| value.as_f64())
    }

    /// Takes a field if it is a time, in RFC 3339 or in milliseconds since 1970.
    pub(super) fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.take(name, |value| time_of(value))
    }

    /// Reports every field that was not taken; `owner` names the object.
    pub(super) fn report_remaining(self, losses: &mut Losses, owner: &str) {
        let mut remaining: Vec<_> = self.0.into_iter().collect();
        // Sorted by name, because a field that was put back is the last one in the object.
        remaining.sort_by(|one, other| one.0.cmp(&other.0));
        for (name, value) in remaining {
            let what = format!("{owner}.{name}");
            if nesting::check(&value).is_err() {
                losses.add_too_deep(&what);
            } else if !value.is_null() {
                losses.add(&what, "a session has no such field");
            }
        }
    }

    /// Returns the fields that were not taken.
    pub(super) fn into_remaining(self) -> Map<String, Value> {
        self.0
    }

    /// Takes a field if `convert` returns a value; otherwise the field stays and is reported with the remaining ones.
    fn take<T>(&mut self, name: &str, convert: impl FnOnce(&mut Value) -> Option<T>) -> Option<T> {
        let taken = convert(self.0.get_mut(name)?)?;
        self.0.shift_remove(name);
        Some(taken)
    }
}

/// Returns the integer of a number such as `3` or `3.0`.
fn integer(value: &Value) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let number = value.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked before")]
    (number.abs() < 9e15 && number.fract() == 0.0).then_some(number as i64)
}

fn time_of(value: &Value) -> Option<Timestamp> {
    let at = match value {
        Value::String(text) => text.parse().ok()?,
        Value::Number(number) => {
            #[expect(clippy::cast_possible_truncation, reason = "a cast of floats saturates")]
            let ms = number.as_i64().or_else(|| number.as_f64().map(|ms| ms as i64))?;
            if !(FIRST_MS..=LAST_MS).contains(&ms) {
                return None;
            }
            Timestamp::from_unix_ms(ms)
        }
        _ => return None,
    };
    (FIRST_MS..=LAST_MS).contains(&at.unix_ms()).then_some(at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn time_is_rfc_3339_or_milliseconds_in_its_range() {
        let check = |value: Value, expect: Option<&str>| {
            let found = Fields::of(json!({ "at": value })).and_then(|mut fields| fields.time("at"));
            assert_eq!(found.map(|at| at.to_string()).as_deref(), expect);
        };
        check(json!("2026-01-27T10:00:00Z"), Some("2026-01-27T10:00:00.000Z"));
        check(json!(1_765_233_665_292_i64), Some("2025-12-08T22:41:05.292Z"));
        check(json!(1_765_233_665_292.5), Some("2025-12-08T22:41:05.292Z"));
        check(json!(LAST_MS), Some("9999-12-31T23:59:59.999Z"));
        check(json!(LAST_MS + 1), None);
        check(json!("9999-12-31T23:59:59-01:00"), None);
        check(json!(1e300), None);
        check(json!("yesterday"), None);
        check(json!(true), None);
    }

    #[test]
    fn count_is_a_non_negative_integer() {
        let check = |value: Value, expect: Option<u64>| {
            let found = Fields::of(json!({ "n": value })).and_then(|mut fields| fields.count("n"));
            assert_eq!(found, expect);
        };
        check(json!(u64::MAX), Some(u64::MAX));
        check(json!(3.0), Some(3));
        check(json!(3.5), None);
        check(json!(-1), None);
        check(json!(1e300), None);
        check(json!("3"), None);
    }

    #[test]
    fn fields_not_taken_are_reported_except_nulls() {
        let mut fields =
            Fields::of(json!({ "a": 1, "b": "x", "c": null, "d": 3 })).expect("an object");
        assert_eq!(fields.count("a"), Some(1));
        assert_eq!(fields.count("b"), None);
        let mut losses = Losses::default();
        fields.report_remaining(&mut losses, "message");
        let what: Vec<_> = losses.finish().into_iter().map(|loss| loss.what).collect();
        assert_eq!(what, ["message.b", "message.d"]);
    }
}
