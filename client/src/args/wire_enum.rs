//! Enums of the protocol as arguments: the values are the names on the wire.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, IntoDeserializer as _, Visitor};

/// Returns a parser of the enum's names. `help` has a text for each variant in the order of the protocol, or is empty.
pub(crate) fn wire_enum<T>(help: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: for<'de> Deserialize<'de> + Clone + Send + Sync + 'static,
{
    let names = variant_names::<T>();
    debug_assert!(help.is_empty() || help.len() == names.len(), "{names:?} have other help");
    let values = names.iter().enumerate().map(|(at, name)| {
        let value = PossibleValue::new(*name);
        match help.get(at) {
            Some(help) => value.help(*help),
            None => value,
        }
    });
    PossibleValuesParser::new(values).try_map(|name| {
        T::deserialize::<serde::de::value::StringDeserializer<Error>>(name.into_deserializer())
    })
}

/// Returns the names of an enum's variants.
pub(crate) fn variant_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The deserializer always fails; it is given the names before that.
    drop(T::deserialize(VariantNames(&mut names)));
    names
}

/// A deserializer that keeps the variant names of an enum and fails.
struct VariantNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for VariantNames<'_> {
    type Error = Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = variants;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("there is no value"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use ollm_protocol::EventKind;
    use ollm_protocol::content::CheckpointStatus;

    use super::*;

    #[test]
    fn values_are_the_names_on_the_wire() {
        let command = clap::Command::new("test");
        let parse = |name: &str| {
            let parser = wire_enum::<CheckpointStatus>(&[]);
            parser.parse_ref(&command, None, OsStr::new(name)).ok()
        };
        assert_eq!(parse("in-progress"), Some(CheckpointStatus::InProgress));
        assert_eq!(parse("InProgress"), None);
        let names = variant_names::<EventKind>();
        assert!(names.contains(&"message-recorded") && names.contains(&"resync"), "{names:?}");
    }
}
