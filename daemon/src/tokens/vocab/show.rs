//! Reads a vocabulary from the JSON of `/api/show` with `verbose: true`, one element at a time.
//!
//! Parsing into a `serde_json::Value` first would take many times the memory of the vocabulary.
//! Must not know the meaning of the values.
//!
//! **Source**: the field `model_info` contains the keys of the GGUF file except `general.name` and the chat template.
//! Without `verbose` the server reports null instead of arrays.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::builder::{MetadataKey, MetadataValue, VocabularyBuilder};
use super::vocabulary::{Vocabulary, VocabularyError};

impl Vocabulary {
    /// Reads the response of `/api/show` with `verbose: true`.
    ///
    /// **Errors**: `Json` if it cannot be parsed, `NoTokens` if it is not verbose.
    pub fn from_show(json: &[u8]) -> Result<Self, VocabularyError> {
        let (mut builder, mut failure) = (VocabularyBuilder::default(), None);
        let mut source = serde_json::Deserializer::from_slice(json);
        let visitor = ShowVisitor {
            builder: &mut builder,
            failure: &mut failure,
            position: ShowPosition::Response,
        };
        let read = visitor.deserialize(&mut source).and_then(|()| source.end());
        match (failure, read) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(VocabularyError::Json(error)),
            (None, Ok(())) => builder.finish(),
        }
    }
}

/// Visits the response with all its values, and passes the metadata to a builder.
struct ShowVisitor<'b> {
    builder: &'b mut VocabularyBuilder,
    /// The error of the builder, if it refused a value.
    failure: &'b mut Option<VocabularyError>,
    position: ShowPosition,
}

/// The position of a value in the response.
#[derive(Clone, Copy)]
enum ShowPosition {
    /// The whole response, an object.
    Response,
    /// The object `model_info`.
    ModelInfo,
    /// The value of a key in `model_info`.
    Entry(MetadataKey),
    /// An element of an array in `model_info`.
    Element(MetadataKey),
}

impl ShowVisitor<'_> {
    fn at(&mut self, position: ShowPosition) -> ShowVisitor<'_> {
        ShowVisitor { builder: self.builder, failure: self.failure, position }
    }

    fn store<E: Error>(self, value: MetadataValue<'_>) -> Result<(), E> {
        match self.position {
            ShowPosition::Entry(key) => {
                self.builder.set(key, value);
                Ok(())
            }
            ShowPosition::Element(key) => self.builder.append(key, value).map_err(|error| {
                *self.failure = Some(error);
                E::custom("not a vocabulary")
            }),
            ShowPosition::Response | ShowPosition::ModelInfo => {
                Err(E::custom("expected an object"))
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for ShowVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShowVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the description of a model")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        if matches!(self.position, ShowPosition::Entry(_) | ShowPosition::Element(_)) {
            return Err(A::Error::custom("an object in an entry"));
        }
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let position = match self.position {
                ShowPosition::Response if name == "model_info" => Some(ShowPosition::ModelInfo),
                ShowPosition::ModelInfo => MetadataKey::by_name(&name).map(ShowPosition::Entry),
                _ => None,
            };
            match position {
                Some(position) => map.next_value_seed(self.at(position))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        let ShowPosition::Entry(key) = self.position else {
            return Err(A::Error::custom("an array that is not an entry"));
        };
        while elements.next_element_seed(self.at(ShowPosition::Element(key)))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<(), E> {
        self.store(MetadataValue::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.store(MetadataValue::Integer(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.store(MetadataValue::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.store(MetadataValue::Real(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.store(MetadataValue::Text(text.as_bytes()))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        match self.position {
            ShowPosition::Entry(_) | ShowPosition::Element(_) => Ok(()),
            ShowPosition::Response | ShowPosition::ModelInfo => {
                Err(E::custom("expected an object"))
            }
        }
    }
}
