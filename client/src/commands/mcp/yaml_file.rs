//! An entry in a section of a YAML file: a mapping at the beginning of a line.
//!
//! The edit is one of lines, because no library keeps comments. Its caller parses the result and compares, so a file whose
//! form this module does not know is refused, never damaged.

use serde_json::{Map, Value};

use super::entry::SyntaxError;

/// Returns the value of a text.
pub(super) fn parse(text: &str) -> Result<Value, SyntaxError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let parsed: Result<Option<Value>, _> = serde_saphyr::from_str_with_options(text, options);
    match parsed {
        Ok(value) => {
            Ok(value.filter(|value| !value.is_null()).unwrap_or_else(|| Value::Object(Map::new())))
        }
        Err(error) => {
            let line = error.location().map_or(1, |at| usize::try_from(at.line()).unwrap_or(1));
            Err(SyntaxError { line, problem: error.to_string() })
        }
    }
}

/// Returns a text with the entry as the first of a section, or without it.
pub(super) fn edit(text: &str, section: &str, name: &str, entry: Option<&Value>) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_section = |line: &&str| {
        let rest = line.strip_prefix(section).and_then(|rest| rest.strip_prefix(':'));
        rest.is_some_and(|rest| {
            let value = rest.split(" #").next().unwrap_or_default().trim();
            value.is_empty() || matches!(value, "{}" | "{ }" | "null" | "~")
        })
    };
    let Some(at) = lines.iter().position(is_section) else {
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let added = entry.map(|entry| format!("{section}:\n{}", rendered(name, entry, 2)));
        return format!("{text}{gap}{}", added.unwrap_or_default());
    };
    let indent =
        lines[at + 1..].iter().find(|line| is_content(line)).map_or(0, |line| indent_of(line));
    let indent = if indent == 0 { 2 } else { indent };
    // The lines of an older entry.
    let key = format!("{}{name}:", " ".repeat(indent));
    let section_end =
        lines[at + 1..].iter().position(|line| is_content(line) && indent_of(line) == 0);
    let section_end = section_end.map_or(lines.len(), |n| at + 1 + n);
    let first = lines[at + 1..section_end]
        .iter()
        .position(|line| line.starts_with(&key))
        .map(|n| at + 1 + n);
    let own = first.map_or(at + 1..at + 1, |first| {
        let deeper = |line: &&&str| is_content(line) && indent_of(line) > indent;
        first..first + 1 + lines[first + 1..section_end].iter().take_while(deeper).count()
    });
    let is_only = !lines[at + 1..own.start]
        .iter()
        .chain(&lines[own.end..section_end])
        .any(|line| is_content(line));
    let head = match entry {
        Some(_) => format!("{section}:{}", comment_of(lines[at])),
        None if is_only => format!("{section}: {{}}{}", comment_of(lines[at])),
        None => lines[at].to_owned(),
    };
    let mut edited = lines[..at].concat();
    edited.push_str(&head);
    edited.push_str(&lines[at + 1..own.start].concat());
    if let Some(entry) = entry {
        if !edited.ends_with('\n') {
            edited.push('\n');
        }
        edited.push_str(&rendered(name, entry, indent));
    }
    edited.push_str(&lines[own.end..].concat());
    edited
}

/// Returns the comment of a line, with the break at its end.
fn comment_of(line: &str) -> &str {
    line.find(" #")
        .map_or_else(|| &line[line.trim_end_matches(['\r', '\n']).len()..], |at| &line[at..])
}

fn is_content(line: &str) -> bool {
    let text = line.trim();
    !text.is_empty() && !text.starts_with('#')
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Returns the lines of an entry. Strings are written as in JSON, which YAML reads too.
fn rendered(name: &str, entry: &Value, indent: usize) -> String {
    let mut lines = format!("{}{name}:\n", " ".repeat(indent));
    for (field, value) in entry.as_object().into_iter().flatten() {
        lines.push_str(&format!("{}{field}: {value}\n", " ".repeat(2 * indent)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entry_is_the_first_of_its_section_and_taken_back() {
        let entry = json!({ "cmd": "/bin/ollmctl", "args": ["mcp"] });
        let check = |text: &str, expect: &str| {
            let new = edit(text, "extensions", "ollm", Some(&entry));
            assert_eq!(new, expect);
            assert_eq!(parse(&new).unwrap()["extensions"]["ollm"], entry);
            assert_eq!(edit(&new, "extensions", "ollm", Some(&entry)), new);
        };
        let own = "    ollm:\n        cmd: \"/bin/ollmctl\"\n        args: [\"mcp\"]\n";
        let two = "  ollm:\n    cmd: \"/bin/ollmctl\"\n    args: [\"mcp\"]\n";
        check("", &format!("extensions:\n{two}"));
        check("a: 1", &format!("a: 1\nextensions:\n{two}"));
        check("extensions: {} # none\nb: 2\n", &format!("extensions: # none\n{two}b: 2\n"));
        let text = "# mine\nextensions:\n    # about dev\n    dev:\n        enabled: true\nb: 2\n";
        let new = format!(
            "# mine\nextensions:\n{own}    # about dev\n    dev:\n        enabled: true\nb: 2\n"
        );
        check(text, &new);
        assert_eq!(edit(&new, "extensions", "ollm", None), text);
        assert_eq!(
            edit(&format!("extensions:\n{two}b: 2\n"), "extensions", "ollm", None),
            "extensions: {}\nb: 2\n"
        );
    }

    #[test]
    fn syntax_error_has_its_line() {
        assert_eq!(parse("a: 1\nb: [\n").unwrap_err().line, 2);
        assert_eq!(parse("# nothing\n").unwrap(), json!({}));
    }
}
