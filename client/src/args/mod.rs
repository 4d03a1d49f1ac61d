//! Arguments that several commands share: the global flags, sessions, roles, and texts from the command line or stdin;
//! and enums of the protocol, whose values are their names on the wire.

pub(crate) mod session;

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, ColorChoice, Command, FromArgMatches, Subcommand};
use ollm_protocol::content::Role;
use ollm_protocol::{Seq, Timestamp, sanitize};
use serde::Deserialize;
use serde::de::value::{Error, StringDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer as _, Visitor};

use crate::command_error::{CommandError, CommandResult};
use crate::render::units::{DayBoundary, parse_time};

/// The flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// The daemon's home directory [default: $OLLM_HOME, else ~/.ollm].
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The daemon's socket [default: $OLLM_SOCKET, else found from the home].
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print the daemon's result as JSON on stdout, and errors as JSON on stderr.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Do not start the daemon if it does not run [also: OLLM_NO_SPAWN=1].
    #[arg(long, global = true)]
    pub(crate) no_spawn: bool,
    /// The longest wait for a reply in seconds [default: 30, and more for slow operations].
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// When to use colors: always, never, or auto (on a terminal unless NO_COLOR is set).
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) color: ColorChoice,
}

/// The commands below a command, which are defined once it is chosen.
///
/// `#[command(subcommand)]` defines them with the command itself, which takes longer than a short call.
#[derive(Debug)]
pub(crate) struct CommandGroup<T>(pub(crate) T);

impl<T: Subcommand> Args for CommandGroup<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_subcommands(command.subcommand_required(true).arg_required_else_help(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_subcommands_for_update(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for CommandGroup<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Returns a parser of the enum's names. `help` has a text for each variant in the order of the protocol, or is empty.
pub(crate) fn wire_enum<T>(help: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: for<'de> Deserialize<'de> + Clone + Send + Sync + 'static,
{
    wire_enum_with_alias(help, ("", ""))
}

/// Returns a parser of the enum's names that also accepts `alias` for the name `aliased`.
pub(crate) fn wire_enum_with_alias<T>(
    help: &'static [&'static str],
    (alias, aliased): (&'static str, &'static str),
) -> impl TypedValueParser<Value = T>
where
    T: for<'de> Deserialize<'de> + Clone + Send + Sync + 'static,
{
    let names = variant_names::<T>();
    debug_assert!(help.is_empty() || help.len() == names.len(), "{names:?} have other help");
    let values = names.iter().enumerate().map(|(at, name)| {
        let value = PossibleValue::new(*name).alias((*name == aliased).then_some(alias));
        match help.get(at) {
            Some(help) => value.help(*help),
            None => value,
        }
    });
    PossibleValuesParser::new(values).try_map(move |name| {
        let name = if name == alias { aliased.to_owned() } else { name };
        T::deserialize::<StringDeserializer<Error>>(name.into_deserializer())
    })
}

/// Returns the parser of a role.
pub(crate) fn role_parser() -> impl TypedValueParser<Value = Role> {
    wire_enum(&["Instructions to the model", "The user", "The model", "The output of a tool"])
}

/// Parses the number of a record, with or without `#`.
pub(crate) fn parse_seq(text: &str) -> Result<Seq, &'static str> {
    text.trim_start_matches('#').parse().map(Seq).map_err(|_| "write the number of a record")
}

/// Parses a time: an age, a date on this machine, or an RFC 3339 time.
pub(crate) fn given_time(text: &str, boundary: DayBoundary) -> CommandResult<Timestamp> {
    parse_time(text, boundary, &chrono::Local::now()).ok_or_else(|| {
        let forms = "write 3d, 12h, 30m, 2026-01-27 or 2026-01-27T10:00:00Z";
        let text = sanitize::one_line(text);
        CommandError::usage(format!("{text:?} is not a time; {forms}"), "")
    })
}

/// Parses a number of seconds above 0.
fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let wait = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    wait.filter(|wait| !wait.is_zero()).ok_or("must be a number of seconds above 0")
}

/// Returns the argument, or all of stdin if the argument is `-` or is missing and stdin is not a terminal.
///
/// **Errors**: the argument is missing and stdin is a terminal; the hint is `example`.
pub(crate) fn text_or_stdin(
    given: Option<&str>,
    command: &'static str,
    example: &str,
) -> CommandResult<String> {
    match given {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => {
            Err(CommandError::usage("the text is missing", example))
        }
        _ => read_stdin(command),
    }
}

/// Reads all of stdin for a command.
pub(crate) fn read_stdin(command: &str) -> CommandResult<String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|source| CommandError::File {
        action: "read",
        path: "-".into(),
        source,
    })?;
    utf8_from_stdin(bytes, command)
}

fn utf8_from_stdin(bytes: Vec<u8>, command: &str) -> CommandResult<String> {
    String::from_utf8(bytes).map_err(|error| CommandError::NotUtf8 {
        path: "-".into(),
        offset: error.utf8_error().valid_up_to() as u64,
        command: command.to_owned(),
    })
}

/// Returns the names of an enum's variants.
pub(crate) fn variant_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The deserializer always fails, after it has received the names.
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

    #[test]
    fn stdin_must_be_utf8() {
        assert_eq!(utf8_from_stdin("naïve".into(), "record").unwrap(), "naïve");
        let error = utf8_from_stdin(b"na\xefve".to_vec(), "record").unwrap_err();
        assert!(
            matches!(error, CommandError::NotUtf8 { offset: 2, command, .. } if command == "record")
        );
    }
}
