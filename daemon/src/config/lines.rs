//! The lines of a YAML file on which its keys are, for error messages and listings.
//!
//! The merged values no longer have lines, so the file is parsed a second time for them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The lines of sections and their keys, counted from 1.
#[derive(Debug, Default)]
pub(super) struct KeyLines {
    sections: BTreeMap<String, u64>,
    keys: BTreeMap<(String, String), u64>,
}

impl KeyLines {
    pub(super) fn parse(text: &str) -> Result<Self, serde_saphyr::Error> {
        let root: YamlMap = serde_saphyr::from_str_with_options(text, yaml_options())?;
        let mut lines = Self::default();
        for (section, values) in root.0 {
            // A span is that of the value, which may begin on a later line than its key.
            let line = key_line(text, &section, 1, values.referenced.line());
            for (name, value) in values.value.0 {
                let at = key_line(text, &name, line, value.referenced.line());
                lines.keys.insert((section.clone(), name), at);
            }
            lines.sections.insert(section, line);
        }
        Ok(lines)
    }

    pub(super) fn section(&self, section: &str) -> Option<u64> {
        self.sections.get(section).copied()
    }

    /// Returns the line of a key, or of its section if the key itself is not found.
    pub(super) fn key(&self, section: &str, name: &str) -> Option<u64> {
        let key = (section.to_owned(), name.to_owned());
        self.keys.get(&key).copied().or_else(|| self.section(section))
    }
}

/// The options for reading the file: `yes` and `on` are texts.
pub(super) fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true, with_snippet: false }
}

/// Returns the last line from `first` to the line of the value that contains the key.
fn key_line(text: &str, key: &str, first: u64, value: u64) -> u64 {
    let n_lines = usize::try_from(value).unwrap_or(usize::MAX);
    let lines: Vec<&str> = text.lines().take(n_lines).collect();
    let found = lines.iter().rposition(|line| {
        let code = line.split(" #").next().unwrap_or_default();
        code.contains(key) && code.contains(':')
    });
    found.map(|line| line as u64 + 1).filter(|line| *line >= first).unwrap_or(value)
}

/// A YAML mapping with the positions of its values. Any other value is read as an empty mapping.
#[derive(Default)]
struct YamlMap(Vec<(String, Spanned<Self>)>);

impl<'de> Deserialize<'de> for YamlMap {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(YamlMapVisitor)
    }
}

struct YamlMapVisitor;

/// Defines methods that read a scalar as an empty mapping.
macro_rules! visit_scalars {
    ($($visit:ident($scalar:ty)),*) => {
        $(fn $visit<E>(self, _: $scalar) -> Result<YamlMap, E> {
            Ok(YamlMap::default())
        })*
    };
}

impl<'de> Visitor<'de> for YamlMapVisitor {
    type Value = YamlMap;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlMap, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(YamlMap(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlMap, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(YamlMap::default())
    }

    fn visit_unit<E>(self) -> Result<YamlMap, E> {
        Ok(YamlMap::default())
    }

    visit_scalars!(
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_f64(f64),
        visit_str(&str)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_lines_on_which_they_are_written() {
        let text = "# top\nlog: { level: info,\n  keepDays: 9 }\n\nenvironment:\n  allow:\n    - A\n    - B\n  deny: [C]\nmodes:\n  user: |\n    be kind\n    allow: no\n  planning: ~\nfiles:\n";
        let lines = KeyLines::parse(text).expect("YAML");
        let check = |section, key, line| assert_eq!(lines.key(section, key), Some(line), "{key}");
        check("log", "level", 2);
        check("log", "keepDays", 3);
        check("environment", "allow", 6);
        check("environment", "deny", 9);
        check("modes", "user", 11);
        check("modes", "planning", 14);
        assert_eq!(lines.section("environment"), Some(5));
        assert_eq!(lines.section("files"), Some(15));
        assert_eq!(lines.section("none"), None);
    }
}
