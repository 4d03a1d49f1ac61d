//! The gate for nested JSON: every value that enters the daemon is nested at most [`MAX_LEVELS`] deep.
//!
//! JSON parsers, this daemon's included, refuse text that is nested deeper than some limit, to protect their stack: 127
//! levels here, 64 to 1,000 elsewhere. A value that was accepted is read again in a line of a log, a reply, an event, a
//! document and an export, each of which adds a few levels. So the limit is checked where a value comes from: params,
//! imports and answers of models.
//!
//! A field whose content the protocol defines has a fixed depth. Only lists and objects with free content count, from
//! the field of the protocol that contains them.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Serializer};

/// Maximum number of nested lists and objects of a value, itself included. The parsers of the clients allow 127 levels,
/// and no reply, document or line of a log adds more than 10 to a value.
pub(crate) const MAX_LEVELS: usize = 96;
/// Maximum number of nested lists and objects of a JSON text that serde parses.
pub(crate) const MAX_PARSED_LEVELS: usize = 127;
/// Bytes of a text that are read before its depth is compared with a limit.
const CHUNK_BYTES: usize = 4096;

/// A value is nested deeper than [`MAX_LEVELS`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} nested deeper than {MAX_LEVELS} levels", Subject(.field))]
pub(crate) struct TooDeep {
    /// The path of the field that contains the value, such as `toolCall.args`; empty if the value is in no field.
    pub(crate) field: String,
}

struct Subject<'a>(&'a str);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { out.write_str("it is") } else { write!(out, "`{}` is", self.0) }
    }
}

/// Checks every value with free content in `value`.
///
/// **Errors**: `TooDeep` for the first one that is nested too deeply.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), TooDeep> {
    match value.serialize(Meter { levels: 0 }) {
        Err(MeterError::TooDeep(path)) => Err(TooDeep { field: path.unwrap_or_default() }),
        // A value that cannot be serialized is refused where it is written.
        Ok(()) | Err(MeterError::Other) => Ok(()),
    }
}

/// Returns whether a JSON text is nested deeper than `limit` levels. Never recurses.
pub(crate) fn is_deeper_than(limit: usize, json: &[u8]) -> bool {
    let mut counter = LevelCounter::default();
    json.chunks(CHUNK_BYTES).any(|chunk| {
        counter.read(chunk);
        counter.deepest > limit
    })
}

/// Counts the levels of a JSON text that is read byte by byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelCounter {
    levels: usize,
    deepest: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl LevelCounter {
    /// Reads the next bytes.
    pub(crate) fn read(&mut self, json: &[u8]) {
        let mut at = 0;
        while let Some(found) = self.next_mark(&json[at..]) {
            at += found + 1;
            match json[at - 1] {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = !self.is_in_string,
                b'[' | b'{' => {
                    self.levels += 1;
                    self.deepest = self.deepest.max(self.levels);
                }
                _ => self.levels = self.levels.saturating_sub(1),
            }
        }
    }

    /// Returns the position of the next byte that changes the state.
    fn next_mark(self, json: &[u8]) -> Option<usize> {
        if self.is_escaped {
            return (!json.is_empty()).then_some(0);
        }
        if self.is_in_string {
            return memchr::memchr2(b'"', b'\\', json);
        }
        json.iter().position(|byte| matches!(byte, b'[' | b'{' | b']' | b'}' | b'"'))
    }

    /// Forgets how deep the text was so far.
    pub(crate) const fn begin_value(&mut self) {
        self.deepest = self.levels;
    }

    /// Returns whether serde refuses what was read since [`LevelCounter::begin_value`] because of its nesting.
    pub(crate) const fn is_unparsable(&self) -> bool {
        self.deepest > MAX_PARSED_LEVELS
    }
}

/// Returns whether serde refuses a JSON text because of its nesting, which no other sign of its error says.
pub(crate) fn is_unparsable(json: &[u8]) -> bool {
    is_deeper_than(MAX_PARSED_LEVELS, json)
}

/// Why measuring stopped.
#[derive(Debug)]
enum MeterError {
    /// A value is too deep; the path of its field, `None` until a field of the protocol is reached.
    TooDeep(Option<String>),
    Other,
}

impl MeterError {
    /// Puts a field of the protocol before the path.
    fn in_field(self, name: &str) -> Self {
        match self {
            Self::TooDeep(None) => Self::TooDeep(Some(name.to_owned())),
            Self::TooDeep(Some(rest)) if rest.starts_with('[') => {
                Self::TooDeep(Some(format!("{name}{rest}")))
            }
            Self::TooDeep(Some(rest)) => Self::TooDeep(Some(format!("{name}.{rest}"))),
            Self::Other => Self::Other,
        }
    }

    /// Puts the position in a list before the path, if the list has items of the protocol.
    fn in_list(self, index: usize) -> Self {
        match self {
            Self::TooDeep(Some(rest)) => Self::TooDeep(Some(format!("[{index}].{rest}"))),
            other => other,
        }
    }
}

impl fmt::Display for MeterError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value cannot be measured")
    }
}

impl std::error::Error for MeterError {}

impl ser::Error for MeterError {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

/// A serializer that writes nothing and counts the lists and objects around a value.
#[derive(Clone, Copy)]
struct Meter {
    /// The lists and maps around the value, from the innermost field of the protocol on.
    levels: usize,
}

impl Meter {
    /// Enters a list or a map.
    fn enter(self) -> Result<MeterItems, MeterError> {
        if self.levels == MAX_LEVELS {
            return Err(MeterError::TooDeep(None));
        }
        Ok(MeterItems { inside: Self { levels: self.levels + 1 }, index: 0 })
    }

    /// Enters a type of the protocol, whose fields count anew.
    const fn enter_type() -> MeterItems {
        MeterItems { inside: Self { levels: 0 }, index: 0 }
    }
}

/// The items of a list or map, or the fields of a type.
struct MeterItems {
    inside: Meter,
    index: usize,
}

impl MeterItems {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), MeterError> {
        let index = self.index;
        self.index += 1;
        value.serialize(self.inside).map_err(|error| error.in_list(index))
    }

    fn field<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Result<(), MeterError> {
        value.serialize(self.inside).map_err(|error| error.in_field(name))
    }
}

/// Implements methods for values that contain no other.
macro_rules! leaves {
    ($($method:ident($($type:ty),*);)*) => {
        $(fn $method(self, $(_: $type),*) -> Result<(), MeterError> { Ok(()) })*
    };
}

impl Serializer for Meter {
    type Ok = ();
    type Error = MeterError;
    type SerializeSeq = MeterItems;
    type SerializeTuple = MeterItems;
    type SerializeTupleStruct = MeterItems;
    type SerializeTupleVariant = MeterItems;
    type SerializeMap = MeterItems;
    type SerializeStruct = MeterItems;
    type SerializeStructVariant = MeterItems;

    leaves! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), MeterError> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), MeterError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), MeterError> {
        Self::enter_type().field(name, value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<MeterItems, MeterError> {
        self.enter()
    }

    fn serialize_tuple(self, _: usize) -> Result<MeterItems, MeterError> {
        self.enter()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<MeterItems, MeterError> {
        Ok(Self::enter_type())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<MeterItems, MeterError> {
        Ok(Self::enter_type())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<MeterItems, MeterError> {
        self.enter()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<MeterItems, MeterError> {
        Ok(Self::enter_type())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<MeterItems, MeterError> {
        Ok(Self::enter_type())
    }
}

/// Implements the collection of items by [`MeterItems::item`].
macro_rules! items {
    ($($trait:ident $method:ident;)*) => {
        $(impl ser::$trait for MeterItems {
            type Ok = ();
            type Error = MeterError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), MeterError> {
                self.item(value)
            }

            fn end(self) -> Result<(), MeterError> {
                Ok(())
            }
        })*
    };
}

items! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

/// Implements the collection of fields by [`MeterItems::field`].
macro_rules! fields {
    ($($trait:ident;)*) => {
        $(impl ser::$trait for MeterItems {
            type Ok = ();
            type Error = MeterError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), MeterError> {
                self.field(name, value)
            }

            fn end(self) -> Result<(), MeterError> {
                Ok(())
            }
        })*
    };
}

fields! {
    SerializeStruct;
    SerializeStructVariant;
}

impl ser::SerializeMap for MeterItems {
    type Ok = ();
    type Error = MeterError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), MeterError> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), MeterError> {
        self.item(value)
    }

    fn end(self) -> Result<(), MeterError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::Timestamp;
    use ollm_protocol::content::{Custom, Message, Part, RecordBody, Role};
    use serde_json::{Value, json};

    use super::*;

    /// Returns a value of this many levels, lists and objects in turn.
    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!([]), |inner, at| match at % 2 {
            0 => json!([1, inner]),
            _ => json!({ "a": "x", "b": inner }),
        })
    }

    #[test]
    fn level_counter_agrees_with_the_whole_text_however_it_is_split() {
        for levels in [126, 127, 128] {
            let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            for json in
                [deep.clone(), r#"{"a[\"[{":"[[\\","b":[]}"#.to_owned(), format!("[{deep}]")]
            {
                let expect = is_unparsable(json.as_bytes());
                for len in [1, 2, 7] {
                    let mut counter = LevelCounter::default();
                    json.as_bytes().chunks(len).for_each(|chunk| counter.read(chunk));
                    assert_eq!(counter.is_unparsable(), expect, "{levels} {len} {json:.40}");
                    counter.begin_value();
                    assert!(!counter.is_unparsable());
                }
            }
        }
    }

    #[test]
    fn free_content_is_counted_from_its_field() {
        let custom =
            |data| RecordBody::Custom(Custom { name: "n".to_owned(), data, context_text: None });
        let calls = |args| {
            let mut message = Message::text(Role::Assistant, "x", Timestamp::from_unix_ms(1));
            message.parts.push(Part::ToolCall { id: "i".to_owned(), name: "n".to_owned(), args });
            RecordBody::Message(message)
        };
        let check_both = |body: &dyn Fn(Value) -> RecordBody, field: &str| {
            assert_eq!(check(&body(nested(MAX_LEVELS))), Ok(()));
            let refused = check(&body(nested(MAX_LEVELS + 1))).expect_err("is too deep");
            assert_eq!(refused.field, field);
        };
        check_both(&custom, "data");
        check_both(&calls, "parts[1].args");
        assert_eq!(check(&nested(MAX_LEVELS)), Ok(()));
        let refused = check(&nested(MAX_LEVELS + 1)).expect_err("is too deep");
        assert_eq!(refused.to_string(), "it is nested deeper than 96 levels");
    }

    #[test]
    fn text_is_unparsable_exactly_if_serde_refuses_its_depth() {
        for levels in [1, MAX_PARSED_LEVELS, MAX_PARSED_LEVELS + 1, 100_000] {
            let text = format!("{}\"[[\\\"{{\"{}", "[".repeat(levels), "]".repeat(levels));
            let parsed = serde_json::from_str::<Value>(&text);
            assert_eq!(is_unparsable(text.as_bytes()), parsed.is_err(), "{levels} levels");
        }
        let wide = format!("[{}1]", "[{}],".repeat(1000));
        assert!(!is_deeper_than(3, wide.as_bytes()) && is_deeper_than(2, wide.as_bytes()));
    }
}
