//! The models in the lists of a server: those on its disk and those in its memory. They are read from its JSON as it is.
//!
//! Every field is optional, because servers of many versions are in use.

use serde::{Deserialize, Deserializer};

use super::info::canonical_name;

/// A model in the server's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ListedModel {
    /// The name with its tag.
    #[serde(flatten, deserialize_with = "model_name")]
    pub model: String,
    /// The hash of the model's contents: models with the same digest have the same template and vocabulary.
    #[serde(default)]
    pub digest: String,
    /// The size on disk.
    #[serde(default, rename = "size")]
    pub size_bytes: u64,
    /// The time of the last change, in the server's format.
    #[serde(default, deserialize_with = "unless_empty")]
    pub modified_at: Option<String>,
    #[serde(default)]
    pub details: ModelVariant,
    // After 0.24.
    #[serde(default, deserialize_with = "absent_or_null")]
    pub capabilities: Vec<String>,
    /// The machine that runs a remote model.
    #[serde(default, deserialize_with = "unless_empty")]
    pub remote_host: Option<String>,
    /// The window of every request, if the server alone decides about it.
    #[serde(skip)]
    pub served_context: Option<u32>,
    /// Set if the server says nothing more about the model in its description.
    #[serde(skip)]
    pub is_whole: bool,
}

/// The digest that the server lists for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListedDigest {
    Digest(String),
    /// The server lists no digest for the model.
    Absent,
    /// The server did not respond in time.
    Unknown,
}

impl ListedDigest {
    /// Returns the digest of a model in a list.
    pub(super) fn find(list: Vec<ListedModel>, model: &str) -> Self {
        let name = canonical_name(model);
        let listed = list.into_iter().find(|listed| canonical_name(&listed.model) == name);
        listed.map_or(Self::Absent, |listed| Self::of(Some(listed.digest)))
    }

    /// Returns what a server listed that described a model with this digest.
    pub(crate) fn of(digest: Option<String>) -> Self {
        digest.filter(|digest| !digest.is_empty()).map_or(Self::Absent, Self::Digest)
    }

    /// Returns whether the server says that a model has this digest.
    pub(crate) fn is(&self, digest: Option<&str>) -> bool {
        match self {
            Self::Digest(listed) => digest == Some(listed),
            Self::Absent => digest.is_none(),
            Self::Unknown => false,
        }
    }
}

/// The variant of a model family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ModelVariant {
    /// The family of the architecture.
    #[serde(deserialize_with = "unless_empty")]
    pub family: Option<String>,
    /// The number of parameters, in the server's format.
    #[serde(deserialize_with = "unless_empty")]
    pub parameter_size: Option<String>,
    #[serde(rename = "quantization_level", deserialize_with = "unless_empty")]
    pub quantization: Option<String>,
    /// The longest window that the model was trained for; only in lists of newer servers.
    #[serde(rename = "context_length", deserialize_with = "positive")]
    pub trained_context: Option<u32>,
}

/// A model in the server's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct RunningModel {
    /// The name with its tag.
    #[serde(flatten, deserialize_with = "model_name")]
    pub model: String,
    /// The hash of the model's contents.
    pub digest: String,
    /// The memory of the model, including its window.
    #[serde(rename = "size")]
    pub size_bytes: u64,
    /// The part of it that is GPU memory.
    #[serde(rename = "size_vram")]
    pub size_vram_bytes: u64,
    /// The window with which the model was loaded. Since 0.10.0.
    #[serde(rename = "context_length", deserialize_with = "positive")]
    pub effective_context: Option<u32>,
    /// The time at which the server unloads the model if it stays idle, in the server's format.
    #[serde(deserialize_with = "unless_empty")]
    pub expires_at: Option<String>,
}

/// Reads the name of a model, which servers before 0.1.33 send as `name` only.
fn model_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ModelNames {
        name: String,
        model: String,
    }
    let ModelNames { name, model } = ModelNames::deserialize(from)?;
    Ok(if model.is_empty() { name } else { model })
}

/// Reads null as the default, because Go writes an empty list as null.
pub(super) fn absent_or_null<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Reads an empty text, which Go writes for a missing one, as `None`.
pub(super) fn unless_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()))
}

/// Reads a positive number that fits into 32 bits; any other number is `None`.
fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<u64>::deserialize(from)?.and_then(positive_u32))
}

pub(super) fn positive_u32(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn name_is_that_of_either_field() {
        let check = |report: serde_json::Value| {
            let running: RunningModel = serde_json::from_value(report.clone()).expect("is read");
            assert_eq!((running.model.as_str(), running.size_bytes), ("m:latest", 5), "{report}");
            let listed: ListedModel = serde_json::from_value(report.clone()).expect("is read");
            assert_eq!((listed.model.as_str(), listed.size_bytes), ("m:latest", 5), "{report}");
        };
        check(json!({ "name": "m:latest", "size": 5 }));
        check(json!({ "model": "m:latest", "size": 5 }));
        check(json!({ "name": "m", "model": "m:latest", "size": 5, "new": {} }));
    }
}
