//! Reads a vocabulary from the JSON of `/api/show` with `verbose: true`, one element at a time.
//!
//! Parsing into a `serde_json::Value` first would take many times the memory of the vocabulary.
//! Must not know what the values mean.
//!
//! **Source**: the field `model_info` contains the keys of the GGUF file except `general.name` and the chat template.
//! Without `verbose` the server reports null instead of arrays.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::builder::{MetadataKey, MetadataValue, VocabularyBuilder};
use super::vocabulary::{Vocabulary, VocabularyError};

impl Vocabulary {
    /// Reads the response of `/api/show` with `verbose: true`.
    ///
    /// **Errors**: `Json` if it cannot be parsed, `NoTokens` if it is not verbose.
    pub fn from_show(json: &[u8]) -> Result<Self, VocabularyError> {
        let mut target = ShowTarget::default();
        let mut source = serde_json::Deserializer::from_slice(json);
        let read = source.deserialize_map(ResponseVisitor(&mut target)).and_then(|()| source.end());
        match (target.failure, read) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(VocabularyError::Json(error)),
            (None, Ok(())) => target.builder.finish(),
        }
    }
}

/// The builder that visitors fill, and its error if it refused a value.
#[derive(Default)]
struct ShowTarget {
    builder: VocabularyBuilder,
    failure: Option<VocabularyError>,
}

/// Visits the whole response and reads `model_info`.
struct ResponseVisitor<'t>(&'t mut ShowTarget);

impl<'de> Visitor<'de> for ResponseVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the description of a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == "model_info" {
                map.next_value_seed(InfoVisitor(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Visits the object `model_info`.
struct InfoVisitor<'t>(&'t mut ShowTarget);

impl<'de> DeserializeSeed<'de> for InfoVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for InfoVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of model information")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match MetadataKey::by_name(&name) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(key) => {
                    map.next_value_seed(EntryVisitor { target: self.0, key, is_element: false })?;
                }
            }
        }
        Ok(())
    }
}

/// Visits the value of a key, or an element of its array.
struct EntryVisitor<'t> {
    target: &'t mut ShowTarget,
    key: MetadataKey,
    is_element: bool,
}

impl EntryVisitor<'_> {
    fn store<E: serde::de::Error>(self, value: MetadataValue<'_>) -> Result<(), E> {
        if !self.is_element {
            self.target.builder.set(self.key, value);
            return Ok(());
        }
        self.target.builder.append(self.key, value).map_err(|error| {
            self.target.failure = Some(error);
            E::custom("not a vocabulary")
        })
    }
}

impl<'de> DeserializeSeed<'de> for EntryVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, a flag or an array of these")
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<(), E> {
        self.store(MetadataValue::Flag(flag))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.store(MetadataValue::Integer(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.store(MetadataValue::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.store(MetadataValue::Real(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.store(MetadataValue::Text(text.as_bytes()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        if self.is_element {
            return Err(A::Error::custom("an array in an array"));
        }
        let Self { target, key, .. } = self;
        while elements
            .next_element_seed(EntryVisitor { target: &mut *target, key, is_element: true })?
            .is_some()
        {}
        Ok(())
    }
}
