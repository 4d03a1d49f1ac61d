//! The configuration file as a backup has it: the settings that make sense on another machine and are no secrets.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::lines::yaml_options;
use super::sections::KEYS;
use super::servers;

/// A setting that names a directory of this machine: elsewhere the restored sessions would not be found.
const DATA_DIR: (&str, &str) = ("sessions", "dataDir");
/// The setting with the address of a server.
const HOST: (&str, &str) = ("ollama", "host");

/// Returns the text of a configuration without headers of servers, `ollama.host` with a password, `sessions.dataDir`,
/// comments, and everything that is no setting; `None` if it cannot be parsed. A server whose address may have a
/// password is left out as a whole, because one without an address is a mistake.
pub(crate) fn portable(text: &str) -> Option<String> {
    let values: Value = serde_saphyr::from_str_with_options(text, yaml_options()).ok()?;
    // A file of comments only.
    if values.is_null() {
        return Some(String::new());
    }
    let mut kept = Map::new();
    for (section, value) in values.as_object()? {
        let Value::Object(entries) = value else { continue };
        let mut entries = entries.clone();
        if section == servers::SECTION {
            entries.retain(|_, server| servers::remove_secrets(server));
        } else {
            let is_key = |name: &str| {
                (section.as_str(), name) != DATA_DIR
                    && KEYS.iter().any(|key| key.section == section && key.name == name)
            };
            let is_host = |name: &str| (section.as_str(), name) == HOST;
            entries.retain(|name, value| is_key(name) && !(is_host(name) && has_password(value)));
        }
        if !entries.is_empty() {
            kept.insert(section.clone(), Value::Object(entries));
        }
    }
    let mut yaml = String::new();
    write_yaml(&kept, 0, &mut yaml);
    Some(yaml)
}

/// Returns whether an address may have a user name and a password. A valid one has no `@`, in its path either.
pub(super) fn has_password(address: &Value) -> bool {
    address.as_str().is_some_and(|text| text.contains('@'))
}

fn write_yaml(entries: &Map<String, Value>, indent: usize, out: &mut String) {
    for (name, value) in entries {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        let is_plain =
            name.starts_with(|char: char| char.is_ascii_alphabetic()) && name.chars().all(is_plain);
        let name = if is_plain { name.clone() } else { Value::from(name.as_str()).to_string() };
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let _infallible = writeln!(out, "{:indent$}{name}:", "");
                write_yaml(inner, indent + 2, out);
            }
            // JSON on one line is YAML as well.
            value => {
                let _infallible = writeln!(out, "{:indent$}{name}: {value}", "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_places_of_this_machine_are_left_out() {
        let text = "\
# password: hunter2
models: { default: 'qwen3:8b@laptop' }
ollama: { host: 'http://ada:pw@example.com', connectTimeout: 3s }
sessions:
  dataDir: /data
  maxSessions: 5
other: { apiKey: abc }
servers:
  a b:
    url: http://x:1
    headers: { Authorization: Bearer t }
    keyFile: /keys/ada@example.com
    token: abc
    models: { big: { name: x, window: 32768 } }
  c: { url: 'http://me:pw@y', models: { small: {} } }
  d: 'http://me:pw@y'
";
        let expected = "\
models:
  default: \"qwen3:8b@laptop\"
ollama:
  connectTimeout: \"3s\"
sessions:
  maxSessions: 5
servers:
  \"a b\":
    url: \"http://x:1\"
    keyFile: \"/keys/ada@example.com\"
    models:
      big:
        name: \"x\"
        window: 32768
";
        let kept = portable(text).expect("is YAML");
        assert_eq!(kept, expected);
        assert_eq!(portable(&kept).as_deref(), Some(expected), "it can be read");
        assert_eq!(portable("a: [").as_deref(), None);
        assert_eq!(portable("").as_deref(), Some(""));
        assert_eq!(portable("# models: {}\n").as_deref(), Some(""));
    }
}
