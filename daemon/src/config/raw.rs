//! What the file, the environment and the flags said: merged by figment, each value with its source, checked one
//! by one against the table of keys. *Shell*: reads the file.

use std::collections::BTreeMap;
use std::path::Path;

use figment::providers::Format;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::DeserializeOwned;

use super::error::{ConfigError, ConfigWarning, Place, nearest};
use super::keys::{KEYS, Key, Kind, Setting};
use super::lines::{Lines, yaml_options};

/// Variables that say where things are, read by others.
const OTHER_VARIABLES: &[&str] =
    &["OLLM_HOME", "OLLM_SOCKET", "OLLM_CONFIG", "OLLM_NO_SPAWN", "OLLM_DAEMON", "OLLM_LOG"];

/// YAML 1.2: `yes` and `on` are texts, and a key that comes twice is an error.
struct Yaml;

impl Format for Yaml {
    type Error = serde_saphyr::Error;

    const NAME: &'static str = "YAML";

    fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Self::Error> {
        serde_saphyr::from_str_with_options(text, yaml_options())
    }
}

/// A layer of values, by the name that figment remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Env,
    Flag,
}

impl Source {
    const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Env => "env",
            Self::Flag => "flag",
        }
    }
}

/// The value of every key in the table, and where it was set; nowhere is the default.
pub(super) type Settings = BTreeMap<(&'static str, &'static str), (Setting, Option<Place>)>;

/// One source's values as figment takes them.
struct Layer {
    source: Source,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.as_str())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The configuration file, read.
pub(super) struct File<'a> {
    pub path: &'a Path,
    pub text: String,
}

/// Merges the sources and checks every value.
pub(super) fn read(
    file: Option<&File<'_>>,
    env: impl Iterator<Item = (String, String)>,
    flags: &[(String, String)],
    warnings: &mut Vec<ConfigWarning>,
) -> Result<Settings, ConfigError> {
    let mut figment = Figment::new();
    let mut lines = Lines::default();
    if let Some(file) = file {
        lines = Lines::read(&file.text).map_err(|error| syntax(file.path, &error))?;
        // `None` for a file of comments only, which YAML reads as nothing.
        let values: Option<Dict> =
            Yaml::from_str(&file.text).map_err(|error| syntax(file.path, &error))?;
        let values = values.unwrap_or_default();
        check_names(file.path, &lines, &values, warnings)?;
        figment = figment.merge(Layer { source: Source::File, values });
    }
    let (values, variables) = env_values(env, warnings)?;
    figment = figment.merge(Layer { source: Source::Env, values });
    let values = flag_values(flags)?;
    figment = figment.merge(Layer { source: Source::Flag, values });

    let places = Places { file: file.map(|file| file.path), lines, variables };
    let mut settings = Settings::new();
    for key in KEYS {
        settings.insert((key.section, key.name), setting(key, &figment, &places)?);
    }
    Ok(settings)
}

/// Where keys were set.
struct Places<'a> {
    file: Option<&'a Path>,
    lines: Lines,
    variables: Variables,
}

/// The variable that set a key, by section and name.
type Variables = BTreeMap<(&'static str, &'static str), String>;

impl Places<'_> {
    fn place(&self, key: &Key, source: Source) -> Place {
        let variable = self.variables.get(&(key.section, key.name));
        match (source, self.file, variable) {
            (Source::Env, _, Some(variable)) => Place::Variable(variable.clone()),
            (Source::File, Some(path), _) => {
                Place::file(path, self.lines.key(key.section, key.name))
            }
            _ => Place::Flag(key.to_string()),
        }
    }
}

/// The value of one key, and where it was set.
fn setting(
    key: &Key,
    figment: &Figment,
    places: &Places<'_>,
) -> Result<(Setting, Option<Place>), ConfigError> {
    let name = key.to_string();
    let Ok(value) = figment.find_value(&name) else {
        return Ok((key.kind.read(key.default).unwrap_or(Setting::Nothing), None));
    };
    let metadata = figment.find_metadata(&name).map(|metadata| metadata.name.as_ref());
    let source = [Source::Env, Source::Flag]
        .into_iter()
        .find(|source| metadata == Some(source.as_str()))
        .unwrap_or(Source::File);
    let checked = match (source, &value) {
        (Source::File, value) => typed(key.kind, value),
        (_, value) => value.as_str().and_then(|text| key.kind.read(text)),
    };
    let place = places.place(key, source);
    let Some(setting) = checked else {
        let (expected, found) = (key.kind.to_string(), show(&value));
        return Err(ConfigError::Value { place, key: name, expected, found });
    };
    Ok((setting, Some(place)))
}

/// A value of the file in the type that its key has; a text never stands for a number or a switch.
fn typed(kind: Kind, value: &Value) -> Option<Setting> {
    match (kind, value) {
        (_, Value::Empty(..)) if kind.takes_nothing() => Some(Setting::Nothing),
        (Kind::List, Value::Empty(..)) => Some(Setting::List(Vec::new())),
        (Kind::List, Value::Array(_, items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().map(Setting::List)
        }
        (Kind::Switch, Value::Bool(_, on)) => Some(Setting::Switch(*on)),
        (Kind::Count(..) | Kind::MaybeCount(..), Value::Num(_, number)) => {
            kind.read(&number.to_u128()?.to_string())
        }
        (Kind::Share, Value::Num(_, number)) => {
            // Both print as the number that `read` takes; what is negative or above 1 it refuses.
            let whole = number.to_i128().map(|number| number.to_string());
            kind.read(&whole.or_else(|| number.to_f64().map(|number| number.to_string()))?)
        }
        // A whole number without a unit could be anything but 0.
        (Kind::Time(_), Value::Num(_, number)) => kind.read(&number.to_u128()?.to_string()),
        (Kind::Text | Kind::Path | Kind::Time(_) | Kind::Choice(_), Value::String(_, text)) => {
            kind.read(text)
        }
        _ => None,
    }
}

/// Refuses unknown keys in known sections; warns of unknown sections.
fn check_names(
    path: &Path,
    lines: &Lines,
    values: &Dict,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<(), ConfigError> {
    for (section, value) in values {
        let place = |line| Place::file(path, line);
        if !KEYS.iter().any(|key| key.section == section) {
            let hint = nearest(section, KEYS.iter().map(|key| key.section));
            let place = place(lines.section(section));
            warnings.push(ConfigWarning::UnknownSection { place, section: section.clone(), hint });
            continue;
        }
        let keys = match value {
            Value::Dict(_, keys) => keys,
            Value::Empty(..) => continue,
            other => {
                return Err(ConfigError::Value {
                    place: place(lines.section(section)),
                    key: section.clone(),
                    expected: "a section with keys".to_owned(),
                    found: show(other),
                });
            }
        };
        for name in keys.keys() {
            if find(section, name).is_none() {
                let place = place(lines.key(section, name));
                return Err(unknown(place, section, name));
            }
        }
    }
    Ok(())
}

/// `OLLM_SESSIONS__MAXSESSIONS`: section and key between two underscores, in any case; single underscores within
/// them do not count, so `OLLM_SESSIONS__MAX_SESSIONS` is the same.
fn env_values(
    env: impl Iterator<Item = (String, String)>,
    warnings: &mut Vec<ConfigWarning>,
) -> Result<(Dict, Variables), ConfigError> {
    let mut values = Dict::new();
    let mut variables = Variables::new();
    for (variable, value) in env {
        let Some(rest) = variable.strip_prefix("OLLM_") else { continue };
        if OTHER_VARIABLES.contains(&variable.as_str()) {
            continue;
        }
        let (section, name) = rest.split_once("__").unwrap_or((rest, ""));
        let is_section = |key: &&Key| plain(key.section) == plain(section);
        let Some(known) = KEYS.iter().find(is_section).filter(|_| !name.is_empty()) else {
            let hint = nearest(&plain(section), KEYS.iter().map(|key| key.section));
            warnings.push(ConfigWarning::UnknownVariable { variable, hint });
            continue;
        };
        let found = KEYS.iter().filter(is_section).find(|key| plain(key.name) == plain(name));
        match found {
            Some(key) => {
                insert(&mut values, key, value);
                variables.insert((key.section, key.name), variable);
            }
            None => {
                let place = Place::Variable(variable.clone());
                return Err(unknown(place, known.section, &plain(name)));
            }
        }
    }
    Ok((values, variables))
}

fn flag_values(flags: &[(String, String)]) -> Result<Dict, ConfigError> {
    let mut values = Dict::new();
    for (path, value) in flags {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        match find(section, name) {
            Some(key) => insert(&mut values, key, value.clone()),
            None => return Err(unknown(Place::Flag(path.clone()), section, name)),
        }
    }
    Ok(values)
}

fn insert(values: &mut Dict, key: &Key, value: String) {
    let section = values.entry(key.section.to_owned()).or_insert_with(|| Value::from(Dict::new()));
    if let Value::Dict(_, keys) = section {
        keys.insert(key.name.to_owned(), Value::from(value));
    }
}

fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

fn unknown(place: Place, section: &str, name: &str) -> ConfigError {
    let names = KEYS.iter().filter(|key| key.section == section).map(|key| key.name);
    let hint = nearest(name, names);
    ConfigError::UnknownKey { place, key: format!("{section}.{name}"), hint }
}

/// A name without case and underscores.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// A value as an error shows it.
fn show(value: &Value) -> String {
    match value {
        Value::Empty(..) => "nothing".to_owned(),
        Value::Dict(..) => "a section".to_owned(),
        Value::Array(..) => "a list".to_owned(),
        Value::String(_, text) => format!("{text:?}"),
        Value::Char(_, sign) => format!("{sign:?}"),
        Value::Bool(_, on) => on.to_string(),
        Value::Num(_, number) => match (number.to_u128(), number.to_i128()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => number.to_string(),
            (None, None) => number.to_f64().map_or_else(String::new, |number| number.to_string()),
        },
    }
}

fn syntax(path: &Path, error: &serde_saphyr::Error) -> ConfigError {
    let line = error.location().map(|location| location.line());
    let message = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key} is there twice")
        }
        other => other.to_string(),
    };
    ConfigError::Syntax { place: Place::file(path, line), message }
}
