//! Reading a foreign JSON object field by field: what is taken is known, what is left over is a loss.

use ollm_protocol::Timestamp;
use serde_json::{Map, Value};

use super::losses::Losses;

/// The last instant that RFC 3339 can write; a log with a later one could not be read again.
const LAST_MS: i64 = 253_402_300_799_999;
/// The first instant that RFC 3339 can write.
const FIRST_MS: i64 = -62_167_219_200_000;

/// The fields of an object that nobody has asked for yet.
#[derive(Debug, Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of a JSON object; `None` for any other value.
    pub(super) fn of(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self(map)),
            _ => None,
        }
    }

    /// Puts a field back that was looked at and not used.
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Takes a field of any type; `null` counts as absent.
    pub(super) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be a text.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, |value| match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        })
    }

    /// Takes a field that must be a list.
    pub(super) fn list(&mut self, name: &str) -> Option<Vec<Value>> {
        self.take(name, |value| match value {
            Value::Array(list) => Ok(list),
            other => Err(other),
        })
    }

    /// Takes a field that must be an object.
    pub(super) fn object(&mut self, name: &str) -> Option<Self> {
        self.take(name, |value| match value {
            Value::Object(map) => Ok(Self(map)),
            other => Err(other),
        })
    }

    /// Takes a field that must be true or false.
    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        self.take(name, |value| value.as_bool().ok_or(value))
    }

    /// Takes a field that must be a whole number from 0.
    pub(super) fn count(&mut self, name: &str) -> Option<u64> {
        self.take(name, |value| {
            let count = value.as_u64().or_else(|| u64::try_from(whole(&value)?).ok());
            count.ok_or(value)
        })
    }

    /// Takes a field that must be a whole number of 32 bits.
    pub(super) fn small(&mut self, name: &str) -> Option<i32> {
        self.take(name, |value| whole(&value).and_then(|n| n.try_into().ok()).ok_or(value))
    }

    /// Takes a field that must be a finite number.
    pub(super) fn number(&mut self, name: &str) -> Option<f64> {
        self.take(name, |value| value.as_f64().ok_or(value))
    }

    /// Takes a field that must be an instant: RFC 3339 or milliseconds since 1970.
    pub(super) fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.take(name, |value| instant(&value).ok_or(value))
    }

    /// Reports every field that nobody took; `owner` says where they were.
    pub(super) fn report_rest(self, losses: &mut Losses, line: Option<u64>, owner: &str) {
        let mut rest: Vec<_> = self.0.into_iter().collect();
        // A field that was looked at and put back stands last; the report is by name.
        rest.sort_by(|one, other| one.0.cmp(&other.0));
        for (name, value) in rest {
            if !value.is_null() {
                losses.add(line, &format!("{owner}.{name}"), "no place for this field");
            }
        }
    }

    /// Everything that nobody took.
    pub(super) fn into_rest(self) -> Map<String, Value> {
        self.0
    }

    /// Takes a field if it converts; one of another type stays and is reported with the rest.
    fn take<T>(
        &mut self,
        name: &str,
        convert: impl FnOnce(Value) -> Result<T, Value>,
    ) -> Option<T> {
        match convert(self.0.shift_remove(name)?) {
            Ok(taken) => Some(taken),
            Err(value) => {
                self.0.insert(name.to_owned(), value);
                None
            }
        }
    }
}

/// A whole number, also where a program wrote it as `3.0`.
fn whole(value: &Value) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let number = value.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked before")]
    (number.abs() < 9e15 && number.fract() == 0.0).then_some(number as i64)
}

fn instant(value: &Value) -> Option<Timestamp> {
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
    fn an_instant_is_rfc_3339_or_milliseconds_that_rfc_3339_can_write() {
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
    fn a_count_is_any_whole_number_from_0() {
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
    fn what_nobody_took_is_reported_and_null_is_nothing() {
        let mut fields =
            Fields::of(json!({ "a": 1, "b": "x", "c": null, "d": 3 })).expect("an object");
        assert_eq!(fields.count("a"), Some(1));
        assert_eq!(fields.count("b"), None);
        let mut losses = Losses::default();
        fields.report_rest(&mut losses, None, "message");
        let what: Vec<_> = losses.finish().into_iter().map(|loss| loss.what).collect();
        assert_eq!(what, ["message.b", "message.d"]);
    }
}
