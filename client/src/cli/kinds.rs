//! Kinds of events as arguments, by their names on the wire.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ollm_protocol::EventKind;
use serde::Deserialize as _;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer as _, Visitor};

/// Parses a kind; the names are completed, and listed where none of them is given.
pub(super) fn parser() -> impl TypedValueParser<Value = EventKind> {
    PossibleValuesParser::new(names()).try_map(|name| {
        let name: StrDeserializer<'_, Error> = name.as_str().into_deserializer();
        EventKind::deserialize(name)
    })
}

/// The names of all kinds, in the order of the protocol.
fn names() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Nothing is read: what is wanted was said when reading was asked for.
    drop(EventKind::deserialize(Names(&mut names)));
    names
}

/// Reads nothing, and keeps the names that were expected.
struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
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
        Err(Error::custom("there is nothing to read"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn kinds_are_the_words_of_the_wire() {
        assert!(names().contains(&"message-recorded") && names().contains(&"resync"));
        let cli = Cli::try_parse_from(["ollmctl", "events", "--kind", "message-recorded"]).unwrap();
        let Command::Events(args) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(args.kinds, [EventKind::MessageRecorded]);
    }

    #[test]
    fn every_kind_is_named_in_the_help_and_where_none_is_meant() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("events").unwrap().render_help().to_string();
        let refused = Cli::try_parse_from(["ollmctl", "events", "--kind", "message"]).unwrap_err();
        let refused = refused.to_string();
        for name in names() {
            assert!(help.contains(name) && refused.contains(name), "{name}: {help}{refused}");
        }
    }
}
