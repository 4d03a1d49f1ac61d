//! Reads a vocabulary from the JSON of `/api/show` with `verbose: true`, element by element, without a tree of it.
//!
//! Must not know what the values mean.
//!
//! **Source**: the field `model_info` holds every key of the GGUF file but `general.name` and the chat template; a
//! server that was not asked to be verbose answers with null instead of arrays.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::builder::{Builder, Key, Value};
use super::vocabulary::VocabularyError;

/// Reads all of `json`.
pub(super) fn read(json: &[u8]) -> Result<Builder, VocabularyError> {
    let mut builder = Builder::default();
    let mut failure = None;
    let mut source = serde_json::Deserializer::from_slice(json);
    let answer = Answer { builder: &mut builder, failure: &mut failure };
    let read = source.deserialize_map(answer).and_then(|()| source.end());
    match (failure, read) {
        (Some(failure), _) => Err(failure),
        (None, Err(error)) => Err(VocabularyError::Json(error)),
        (None, Ok(())) => Ok(builder),
    }
}

/// The whole answer, of which only `model_info` is read.
struct Answer<'b> {
    builder: &'b mut Builder,
    failure: &'b mut Option<VocabularyError>,
}

impl<'de> Visitor<'de> for Answer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the description of a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if name == "model_info" {
                map.next_value_seed(Info { builder: self.builder, failure: self.failure })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The object of keys and values.
struct Info<'b> {
    builder: &'b mut Builder,
    failure: &'b mut Option<VocabularyError>,
}

impl<'de> DeserializeSeed<'de> for Info<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Info<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of model information")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match Key::of(&name) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(key) => map.next_value_seed(Entry {
                    builder: self.builder,
                    failure: self.failure,
                    key,
                    is_element: false,
                })?,
            }
        }
        Ok(())
    }
}

/// The value under a key that matters, or an element of its array.
struct Entry<'b> {
    builder: &'b mut Builder,
    failure: &'b mut Option<VocabularyError>,
    key: Key,
    is_element: bool,
}

impl Entry<'_> {
    fn take<E: serde::de::Error>(self, value: Value<'_>) -> Result<(), E> {
        if !self.is_element {
            self.builder.value(self.key, value);
            return Ok(());
        }
        self.builder.element(self.key, value).map_err(|error| {
            *self.failure = Some(error);
            E::custom("not a vocabulary")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, a flag or an array of these")
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<(), E> {
        self.take(Value::Flag(flag))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.take(Value::Integer(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.take(Value::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.take(Value::Real(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.take(Value::Text(text.as_bytes()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        if self.is_element {
            return Err(A::Error::custom("an array in an array"));
        }
        loop {
            let next = Entry {
                builder: self.builder,
                failure: self.failure,
                key: self.key,
                is_element: true,
            };
            if elements.next_element_seed(next)?.is_none() {
                return Ok(());
            }
        }
    }
}
