//! The settings of file, environment and flags: merged by figment, each with its source, and checked one by one
//! against the table of keys.
//!
//! Must not know what a setting means.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use figment::providers::Format;
use figment::value::{Dict, Map, Value as RawValue};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::{ConfigError, ConfigWarning, ValueSource, nearest};
use super::keys::{ConfigKey, KEYS, KeyKind, parse_duration};
use super::lines::{KeyLines, yaml_options};

/// Variables that other modules read: they locate files and sockets.
const OTHER_VARIABLES: &[&str] =
    &["OLLM_HOME", "OLLM_SOCKET", "OLLM_CONFIG", "OLLM_NO_SPAWN", "OLLM_DAEMON", "OLLM_LOG"];

/// The configuration file.
pub(super) struct ConfigFile<'a> {
    pub path: &'a Path,
    pub text: String,
}

/// The checked value of every key, with its source; a default has none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings(BTreeMap<SectionAndName, (Value, Option<ValueSource>)>);

type SectionAndName = (&'static str, &'static str);

impl Settings {
    /// Merges the layers, later ones over earlier ones, and checks every value.
    pub(super) fn read(
        file: Option<&ConfigFile<'_>>,
        env: impl Iterator<Item = (String, String)>,
        flags: &[(String, String)],
        warnings: &mut Vec<ConfigWarning>,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::new();
        let mut lines = KeyLines::default();
        if let Some(file) = file {
            let fail = |error| syntax_error(file.path, &error);
            lines = KeyLines::parse(&file.text).map_err(fail)?;
            // `None` for a file of comments only, which YAML reads as null.
            let values: Option<Dict> = Yaml::from_str(&file.text).map_err(fail)?;
            let values = values.unwrap_or_default();
            check_names(file.path, &lines, &values, warnings)?;
            figment = figment.merge(LayerValues { layer: Layer::File, values });
        }
        let (values, variables) = env_values(env, warnings)?;
        figment = figment.merge(LayerValues { layer: Layer::Env, values });
        let values = flag_values(flags)?;
        figment = figment.merge(LayerValues { layer: Layer::Flag, values });

        let sources = Sources { file: file.map(|file| file.path), lines, variables };
        let values = KEYS
            .iter()
            .map(|key| Ok(((key.section, key.name), merged_value(key, &figment, &sources)?)));
        values.collect::<Result<_, _>>().map(Self)
    }

    /// Returns a key's value and source.
    pub(super) fn entry(&self, key: &ConfigKey) -> (&Value, Option<&ValueSource>) {
        match self.0.get(&(key.section, key.name)) {
            Some((value, source)) => (value, source.as_ref()),
            None => unreachable!("every key in the table has a value"),
        }
    }

    /// Returns the value of a key as a `T`.
    ///
    /// **Panics**: the key is not in the table, or its kind is never a `T`, which the first load in any test finds.
    pub(super) fn get<T: DeserializeOwned>(&self, section: &'static str, name: &'static str) -> T {
        let value = self.0.get(&(section, name)).map(|(value, _)| value.clone());
        serde_json::from_value(value.unwrap_or_default())
            .unwrap_or_else(|error| unreachable!("{section}.{name} in the table: {error}"))
    }

    /// Returns the value of a key whose kind is a duration. **Panics**: as [`Settings::get`].
    pub(super) fn duration(&self, section: &'static str, name: &'static str) -> Duration {
        let text: String = self.get(section, name);
        parse_duration(&text).expect("the text of a checked duration")
    }

    /// Returns the keys of a section that have a text, with their texts.
    pub(super) fn texts_in(&self, section: &str) -> impl Iterator<Item = (&'static str, &str)> {
        let keys = self.0.iter().filter(move |((of, _), _)| *of == section);
        keys.filter_map(|((_, name), (value, _))| Some((*name, value.as_str()?)))
    }
}

/// YAML 1.2, in which `yes` and `on` are texts. A key that occurs twice is an error.
struct Yaml;

impl Format for Yaml {
    type Error = serde_saphyr::Error;

    const NAME: &'static str = "YAML";

    fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Self::Error> {
        serde_saphyr::from_str_with_options(text, yaml_options())
    }
}

/// A layer of values, with the name by which figment remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    File,
    Env,
    Flag,
}

impl Layer {
    const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Env => "env",
            Self::Flag => "flag",
        }
    }
}

/// The values of one layer.
struct LayerValues {
    layer: Layer,
    values: Dict,
}

impl Provider for LayerValues {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.layer.as_str())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The variable that set a key.
type KeyVariables = BTreeMap<SectionAndName, String>;

/// The places in which values were set, from which their [`ValueSource`] is made.
struct Sources<'a> {
    file: Option<&'a Path>,
    lines: KeyLines,
    variables: KeyVariables,
}

impl Sources<'_> {
    fn source_of(&self, key: &ConfigKey, layer: Layer) -> ValueSource {
        let variable = self.variables.get(&(key.section, key.name));
        match (layer, self.file, variable) {
            (Layer::Env, _, Some(variable)) => ValueSource::Variable(variable.clone()),
            (Layer::File, Some(path), _) => {
                ValueSource::file(path, self.lines.key(key.section, key.name))
            }
            _ => ValueSource::Flag(key.to_string()),
        }
    }
}

/// Returns the checked value of a key and its source.
fn merged_value(
    key: &ConfigKey,
    figment: &Figment,
    sources: &Sources<'_>,
) -> Result<(Value, Option<ValueSource>), ConfigError> {
    let name = key.to_string();
    let Ok(value) = figment.find_value(&name) else {
        return Ok((key.kind.parse(key.default).unwrap_or_default(), None));
    };
    let metadata = figment.find_metadata(&name).map(|metadata| metadata.name.as_ref());
    let layer = [Layer::Env, Layer::Flag]
        .into_iter()
        .find(|layer| metadata == Some(layer.as_str()))
        .unwrap_or(Layer::File);
    let checked = match layer {
        Layer::File => check_yaml(key.kind, &value),
        Layer::Env | Layer::Flag => value.as_str().and_then(|text| key.kind.parse(text)),
    };
    let location = sources.source_of(key, layer);
    let Some(checked) = checked else {
        let (expected, found) = (key.kind.to_string(), describe(&value));
        return Err(ConfigError::Value { location, key: name, expected, found });
    };
    Ok((checked, Some(location)))
}

/// Checks a value of the file. A text is never taken for a number or a switch.
fn check_yaml(kind: KeyKind, value: &RawValue) -> Option<Value> {
    match (kind, value) {
        (_, RawValue::Empty(..)) if kind.is_optional() => Some(Value::Null),
        (KeyKind::List, RawValue::Empty(..)) => Some(json!([])),
        (KeyKind::List, RawValue::Array(_, items)) => {
            items.iter().map(|item| item.as_str().map(Value::from)).collect()
        }
        (KeyKind::Switch, RawValue::Bool(_, on)) => Some(json!(on)),
        // A duration needs a unit; only 0 is a duration without one.
        (
            KeyKind::Count(..) | KeyKind::OptionalCount(..) | KeyKind::Duration(_),
            RawValue::Num(_, number),
        ) => kind.parse(&number.to_u128()?.to_string()),
        (KeyKind::Share, RawValue::Num(_, number)) => {
            // `parse` rejects numbers below 0 and above 1.
            let whole = number.to_i128().map(|number| number.to_string());
            kind.parse(&whole.or_else(|| number.to_f64().map(|number| number.to_string()))?)
        }
        (
            KeyKind::Text | KeyKind::Path | KeyKind::Duration(_) | KeyKind::Choice(_),
            RawValue::String(_, text),
        ) => kind.parse(text),
        _ => None,
    }
}

/// Rejects unknown keys in known sections; warns of unknown sections.
fn check_names(
    path: &Path,
    lines: &KeyLines,
    values: &Dict,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<(), ConfigError> {
    for (section, value) in values {
        let location = ValueSource::file(path, lines.section(section));
        if !KEYS.iter().any(|key| key.section == section) {
            let hint = nearest(section, KEYS.iter().map(|key| key.section));
            let section = section.clone();
            warnings.push(ConfigWarning::UnknownSection { location, section, hint });
            continue;
        }
        let keys = match value {
            RawValue::Dict(_, keys) => keys,
            RawValue::Empty(..) => continue,
            other => {
                return Err(ConfigError::Value {
                    location,
                    key: section.clone(),
                    expected: "a section with keys".to_owned(),
                    found: describe(other),
                });
            }
        };
        for name in keys.keys() {
            if find_key(section, name).is_none() {
                let location = ValueSource::file(path, lines.key(section, name));
                return Err(unknown_key(location, section, name));
            }
        }
    }
    Ok(())
}

/// Reads variables such as `OLLM_SESSIONS__MAXSESSIONS`: section and key with two underscores between them, in any
/// case. Single underscores are ignored, so `OLLM_SESSIONS__MAX_SESSIONS` is the same key.
fn env_values(
    env: impl Iterator<Item = (String, String)>,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<(Dict, KeyVariables), ConfigError> {
    let mut values = Dict::new();
    let mut variables = KeyVariables::new();
    for (variable, value) in env {
        let Some(suffix) = variable.strip_prefix("OLLM_") else { continue };
        if OTHER_VARIABLES.contains(&variable.as_str()) {
            continue;
        }
        let (section, name) = suffix.split_once("__").unwrap_or((suffix, ""));
        let is_in_section = |key: &&ConfigKey| normalize(key.section) == normalize(section);
        let Some(known) = KEYS.iter().find(is_in_section).filter(|_| !name.is_empty()) else {
            let hint = nearest(&normalize(section), KEYS.iter().map(|key| key.section));
            warnings.push(ConfigWarning::UnknownVariable { variable, hint });
            continue;
        };
        let mut keys = KEYS.iter().filter(is_in_section);
        let Some(key) = keys.find(|key| normalize(key.name) == normalize(name)) else {
            let location = ValueSource::Variable(variable.clone());
            return Err(unknown_key(location, known.section, &normalize(name)));
        };
        insert(&mut values, key, value);
        variables.insert((key.section, key.name), variable);
    }
    Ok((values, variables))
}

fn flag_values(flags: &[(String, String)]) -> Result<Dict, ConfigError> {
    let mut values = Dict::new();
    for (path, value) in flags {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        match find_key(section, name) {
            Some(key) => insert(&mut values, key, value.clone()),
            None => return Err(unknown_key(ValueSource::Flag(path.clone()), section, name)),
        }
    }
    Ok(values)
}

fn insert(values: &mut Dict, key: &ConfigKey, value: String) {
    let section =
        values.entry(key.section.to_owned()).or_insert_with(|| RawValue::from(Dict::new()));
    if let RawValue::Dict(_, keys) = section {
        keys.insert(key.name.to_owned(), RawValue::from(value));
    }
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
fn describe(value: &RawValue) -> String {
    match value {
        RawValue::Empty(..) => "nothing".to_owned(),
        RawValue::Dict(..) => "a section".to_owned(),
        RawValue::Array(..) => "a list".to_owned(),
        RawValue::String(_, text) => format!("{text:?}"),
        RawValue::Char(_, char) => format!("{char:?}"),
        RawValue::Bool(_, on) => on.to_string(),
        RawValue::Num(_, number) => match (number.to_u128(), number.to_i128()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => number.to_string(),
            (None, None) => number.to_f64().map_or_else(String::new, |number| number.to_string()),
        },
    }
}
