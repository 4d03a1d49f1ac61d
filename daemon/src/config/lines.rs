//! On which line of a YAML file a section or key stands, because merged values no longer know. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Lines of sections and of the keys in them, counted from 1.
#[derive(Debug, Default)]
pub(super) struct Lines {
    sections: BTreeMap<String, u64>,
    keys: BTreeMap<(String, String), u64>,
}

impl Lines {
    /// Finds the lines in a file.
    pub(super) fn read(text: &str) -> Result<Self, serde_saphyr::Error> {
        let root: Node = serde_saphyr::from_str_with_options(text, yaml_options())?;
        let mut lines = Self::default();
        for (section, node) in root.0 {
            // The span is the value's, which may begin on a later line than its key.
            let line = key_line(text, &section, 1, node.referenced.line());
            for (name, value) in node.value.0 {
                let at = key_line(text, &name, line, value.referenced.line());
                lines.keys.insert((section.clone(), name), at);
            }
            lines.sections.insert(section, line);
        }
        Ok(lines)
    }

    /// The line of a section.
    pub(super) fn section(&self, section: &str) -> Option<u64> {
        self.sections.get(section).copied()
    }

    /// The line of a key; that of its section where the key itself is not found.
    pub(super) fn key(&self, section: &str, name: &str) -> Option<u64> {
        let key = (section.to_owned(), name.to_owned());
        self.keys.get(&key).copied().or_else(|| self.section(section))
    }
}

/// The last line from `first` up to the value's that names the key.
fn key_line(text: &str, key: &str, first: u64, value: u64) -> u64 {
    let at = |line: u64| usize::try_from(line).unwrap_or(usize::MAX);
    let lines: Vec<&str> = text.lines().take(at(value)).collect();
    let named = lines.iter().rposition(|line| {
        let code = line.split(" #").next().unwrap_or_default();
        code.contains(key) && code.contains(':')
    });
    named.map(|line| line as u64 + 1).filter(|line| *line >= first).unwrap_or(value)
}

/// A mapping with the places of its values; anything else is empty.
#[derive(Default)]
struct Node(Vec<(String, Spanned<Self>)>);

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Node::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<Node, D::Error> {
        input.deserialize_any(self)
    }
}

/// How the file is read, here and where lines are looked up.
pub(super) fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true, with_snippet: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_they_stand() {
        let text = "# top\nlog: { level: info,\n  keepDays: 9 }\n\nenvironment:\n  allow:\n    - A\n    - B\n  deny: [C]\nmodes:\n  user: |\n    be kind\n    allow: no\n  planning: ~\nfiles:\n";
        let lines = Lines::read(text).expect("YAML");
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
