//! The settings of file, environment and flags: merged by figment, each with its source, and checked one by one
//! against the table of keys.
//!
//! Must not know the meaning of a setting.

use std::collections::BTreeMap;
use std::path::Path;

use figment::Figment;
use figment::providers::Serialized;
use serde_json::{Map, Value, json};

use super::error::{ConfigError, ConfigNotices, ConfigWarning, ValueSource, nearest};
use super::keys::{ConfigKey, KeyKind};
use super::lines::{KeyLines, yaml_options};
use super::sections::KEYS;
use super::servers::{self, ServerConfig};

/// Variables that other modules read: they locate files and sockets.
const OTHER_VARIABLES: &[&str] =
    &["OLLM_HOME", "OLLM_SOCKET", "OLLM_CONFIG", "OLLM_NO_SPAWN", "OLLM_DAEMON", "OLLM_LOG"];

/// The configuration file.
pub(super) struct ConfigFile<'a> {
    pub path: &'a Path,
    pub text: String,
}

/// The checked value of every key, with its source; a default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings(BTreeMap<SectionAndName, (Value, Option<ValueSource>)>);

type SectionAndName = (&'static str, &'static str);

/// The source of each key that is set. A later layer replaces the sources of the earlier ones.
type KeySources = BTreeMap<SectionAndName, ValueSource>;

/// The servers of the section `servers`, by name.
type Servers = BTreeMap<String, ServerConfig>;

/// The values of one layer, by section and name.
type LayerValues = Map<String, Value>;

impl Settings {
    /// Merges the layers, later ones over earlier ones, and checks every value. The default replaces a wrong one.
    ///
    /// **Errors**: the file is not YAML.
    pub(super) fn read(
        file: Option<&ConfigFile<'_>>,
        env: &BTreeMap<String, String>,
        flags: &[(String, String)],
        notices: &mut ConfigNotices,
    ) -> Result<(Self, Servers), ConfigError> {
        let mut sources = KeySources::new();
        let mut figment = Figment::new();
        let (file_values, servers) = file_values(file, env, &mut sources, notices)?;
        for layer in [
            file_values,
            env_values(env, &mut sources, notices),
            flag_values(flags, &mut sources, notices),
        ] {
            figment = figment.merge(Serialized::defaults(layer));
        }
        let values = KEYS.iter().map(|key| {
            let name = (key.section, key.name);
            let source = sources.remove(&name);
            let set = source.as_ref().map(|source| checked_value(key, &figment, source));
            let value = set.and_then(|checked| notices.value_of(checked));
            let default = || key.kind.parse(key.default).unwrap_or_default();
            (name, (value.unwrap_or_else(default), source))
        });
        Ok((Self(values.collect()), servers))
    }

    /// Returns a key's value and source.
    pub(super) fn entry(&self, key: &ConfigKey) -> (&Value, Option<&ValueSource>) {
        match self.0.get(&(key.section, key.name)) {
            Some((value, source)) => (value, source.as_ref()),
            None => unreachable!("every key in the table has a value"),
        }
    }

    /// Returns all values as one object of sections.
    pub(super) fn values(&self) -> Value {
        let mut sections = json!({});
        for ((section, name), (value, _)) in &self.0 {
            sections[*section][*name] = value.clone();
        }
        sections
    }
}

/// Returns the merged value of a key that is set.
fn checked_value(
    key: &ConfigKey,
    figment: &Figment,
    source: &ValueSource,
) -> Result<Value, ConfigError> {
    let found: Value = figment.extract_inner(&key.to_string()).unwrap_or_default();
    let checked = match source {
        ValueSource::File { .. } => check_yaml(key.kind, &found),
        ValueSource::Variable(_) | ValueSource::Flag(_) => {
            found.as_str().and_then(|text| key.kind.parse(text))
        }
    };
    checked.ok_or_else(|| ConfigError::Value {
        location: source.clone(),
        key: key.to_string(),
        expected: key.kind.to_string(),
        found: describe(&found),
    })
}

/// Checks a value of the file. A text is never taken for a number or a switch.
fn check_yaml(kind: KeyKind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (_, Value::Null) if kind.is_optional() => Some(Value::Null),
        (KeyKind::List, Value::Null) => Some(json!([])),
        (KeyKind::List, Value::Array(items)) => {
            items.iter().all(Value::is_string).then(|| value.clone())
        }
        (KeyKind::Switch, Value::Bool(_)) => Some(value.clone()),
        // A duration needs a unit; only 0 is a duration without one.
        (
            KeyKind::Count(..)
            | KeyKind::OptionalCount(..)
            | KeyKind::Duration(_)
            | KeyKind::Size(_)
            | KeyKind::Share,
            Value::Number(number),
        ) => kind.parse(&number.to_string()),
        (
            KeyKind::Text
            | KeyKind::Path
            | KeyKind::Duration(_)
            | KeyKind::Size(_)
            | KeyKind::Choice(_),
            Value::String(text),
        ) => kind.parse(text),
        _ => None,
    }
}

/// Reads the file. Unknown keys in known sections are mistakes; warns of unknown sections.
fn file_values(
    file: Option<&ConfigFile<'_>>,
    env: &BTreeMap<String, String>,
    sources: &mut KeySources,
    notices: &mut ConfigNotices,
) -> Result<(LayerValues, Servers), ConfigError> {
    let Some(ConfigFile { path, text }) = file else { return Ok(Default::default()) };
    let fail = |error| syntax_error(path, &error);
    let lines = KeyLines::parse(text).map_err(fail)?;
    // `None` for a file of comments only, which YAML reads as null.
    let values: Option<LayerValues> =
        serde_saphyr::from_str_with_options(text, yaml_options()).map_err(fail)?;
    let mut values = values.unwrap_or_default();
    let servers = match values.remove(servers::SECTION) {
        Some(section @ (Value::Object(_) | Value::Null)) => {
            let line_of = |name: &str| ValueSource::file(path, lines.key(servers::SECTION, name));
            servers::read(&section, line_of, env, notices)
        }
        Some(other) => {
            notices.mistakes.push(ConfigError::Value {
                location: ValueSource::file(path, lines.section(servers::SECTION)),
                key: servers::SECTION.to_owned(),
                expected: "a section of servers".to_owned(),
                found: servers::describe(&other),
            });
            Servers::new()
        }
        None => Servers::new(),
    };
    for (section, value) in &values {
        let location = ValueSource::file(path, lines.section(section));
        if !KEYS.iter().any(|key| key.section == section) {
            let known = KEYS.iter().map(|key| key.section);
            let hint = nearest(section, known.chain([servers::SECTION]));
            let section = section.clone();
            notices.warnings.push(ConfigWarning::UnknownSection { location, section, hint });
            continue;
        }
        let keys = match value {
            Value::Object(keys) => keys,
            Value::Null => continue,
            other => {
                notices.mistakes.push(ConfigError::Value {
                    location,
                    key: section.clone(),
                    expected: "a section with keys".to_owned(),
                    found: describe(other),
                });
                continue;
            }
        };
        for name in keys.keys() {
            let location = ValueSource::file(path, lines.key(section, name));
            match find_key(section, name) {
                Some(key) => drop(sources.insert((key.section, key.name), location)),
                None => notices.mistakes.push(unknown_key(location, section, name)),
            }
        }
    }
    Ok((values, servers))
}

/// Reads variables such as `OLLM_SESSIONS__MAXSESSIONS`: section and key with two underscores between them, in any
/// case. Single underscores are ignored, so `OLLM_SESSIONS__MAX_SESSIONS` is the same key.
fn env_values(
    env: &BTreeMap<String, String>,
    sources: &mut KeySources,
    notices: &mut ConfigNotices,
) -> LayerValues {
    let mut values = LayerValues::new();
    for (variable, value) in env {
        let Some(suffix) = variable.strip_prefix("OLLM_") else { continue };
        if OTHER_VARIABLES.contains(&variable.as_str()) {
            continue;
        }
        let (section, name) = suffix.split_once("__").unwrap_or((suffix, ""));
        let is_in_section = |key: &&ConfigKey| normalize(key.section) == normalize(section);
        let Some(known) = KEYS.iter().find(is_in_section).filter(|_| !name.is_empty()) else {
            let hint = nearest(&normalize(section), KEYS.iter().map(|key| key.section));
            let variable = variable.clone();
            notices.warnings.push(ConfigWarning::UnknownVariable { variable, hint });
            continue;
        };
        let source = ValueSource::Variable(variable.clone());
        let mut keys = KEYS.iter().filter(is_in_section);
        let Some(key) = keys.find(|key| normalize(key.name) == normalize(name)) else {
            notices.mistakes.push(unknown_key(source, known.section, &normalize(name)));
            continue;
        };
        insert(&mut values, key, value);
        sources.insert((key.section, key.name), source);
    }
    values
}

fn flag_values(
    flags: &[(String, String)],
    sources: &mut KeySources,
    notices: &mut ConfigNotices,
) -> LayerValues {
    let mut values = LayerValues::new();
    for (path, value) in flags {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        let source = ValueSource::Flag(path.clone());
        let Some(key) = find_key(section, name) else {
            notices.mistakes.push(unknown_key(source, section, name));
            continue;
        };
        insert(&mut values, key, value);
        sources.insert((key.section, key.name), source);
    }
    values
}

fn insert(values: &mut LayerValues, key: &ConfigKey, value: &str) {
    values.entry(key.section).or_insert_with(|| json!({}))[key.name] = value.into();
}

fn find_key(section: &str, name: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

/// Returns a name in lower case without underscores.
fn normalize(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

fn unknown_key(location: ValueSource, section: &str, name: &str) -> ConfigError {
    let names = KEYS.iter().filter(|key| key.section == section).map(|key| key.name);
    let hint = nearest(name, names);
    ConfigError::UnknownKey { location, key: format!("{section}.{name}"), hint }
}

fn syntax_error(path: &Path, error: &serde_saphyr::Error) -> ConfigError {
    let line = error.location().map(|location| location.line());
    let message = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key} occurs twice")
        }
        other => other.to_string(),
    };
    ConfigError::Syntax { location: ValueSource::file(path, line), message }
}

/// Describes a value for an error message.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Object(_) => "a section".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        scalar => scalar.to_string(),
    }
}
