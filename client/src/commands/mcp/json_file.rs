//! A member of an object in a JSON file with comments and trailing commas, as editors have them.

use std::ops::Range;

use serde_json::{Map, Value};

use super::entry::SyntaxError;

/// The deepest nesting that is parsed.
const MAX_DEPTH: usize = 128;

/// Returns the value of a text.
pub(super) fn parse(text: &str) -> Result<Value, SyntaxError> {
    Ok(document(text)?.map_or_else(|| Value::Object(Map::new()), |node| node.value))
}

/// Returns a text with the entry in a section, or without it. Everything else stays as it is. A file of another form, such
/// as a list, is returned unchanged.
pub(super) fn edit(
    text: &str,
    section: &str,
    name: &str,
    entry: Option<&Value>,
) -> Result<String, SyntaxError> {
    let Some(root) = document(text)? else {
        let Some(entry) = entry else { return Ok(text.to_owned()) };
        let new = pretty(&serde_json::json!({ section: { name: entry } }), "  ", "");
        // Comments alone stay.
        let before = if text.trim().is_empty() { "" } else { text };
        let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        return Ok(format!("{before}{gap}{new}\n"));
    };
    let style = JsonLayout::of(text, &root);
    let own = root.members.iter().rev().find(|member| member.key == section);
    Ok(match (own, entry) {
        (None, None) => text.to_owned(),
        (None, Some(entry)) => style.insert(&root, section, &serde_json::json!({ name: entry })),
        (Some(own), entry) => {
            let old = own.node.members.iter().rposition(|member| member.key == name);
            match (old, entry) {
                (None, None) => text.to_owned(),
                (Some(at), None) => style.remove(&own.node, at),
                (None, Some(entry)) => style.insert(&own.node, name, entry),
                (Some(at), Some(entry)) => {
                    let old = &own.node.members[at];
                    let new = if style.is_first_of_line(old.start) {
                        pretty(entry, &style.unit, style.indent_of(old.start))
                    } else {
                        inline(entry)
                    };
                    style.replaced(&[(old.node.range.clone(), &new)])
                }
            }
        }
    })
}

/// A value with its place in the text.
#[derive(Debug)]
struct JsonNode {
    range: Range<usize>,
    value: Value,
    /// The members of an object.
    members: Vec<JsonMember>,
}

#[derive(Debug)]
struct JsonMember {
    key: String,
    /// The first byte of the key.
    start: usize,
    node: JsonNode,
    /// The byte after the comma that follows the value.
    comma: Option<usize>,
}

/// The layout of a text, which changes follow.
struct JsonLayout<'t> {
    text: &'t str,
    unit: String,
    line_break: &'static str,
}

impl<'t> JsonLayout<'t> {
    fn of(text: &'t str, root: &JsonNode) -> Self {
        let line_break = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let mut style = Self { text, unit: "  ".to_owned(), line_break };
        if let Some(first) = root.members.first() {
            let indent = style.indent_of(first.start);
            if !indent.is_empty() {
                style.unit = indent.to_owned();
            }
        }
        style
    }

    /// Returns the white space at the beginning of the line of a byte.
    fn indent_of(&self, at: usize) -> &'t str {
        let line = &self.text[self.line_start(at)..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |line_break| line_break + 1)
    }

    /// Returns whether a byte is the first of its line, apart from white space.
    fn is_first_of_line(&self, at: usize) -> bool {
        self.text[self.line_start(at)..at].trim().is_empty()
    }

    /// Returns the end of the line of a byte if nothing but a comment follows on it, else that byte.
    fn after_comment(&self, at: usize) -> usize {
        let rest = &self.text[at..];
        let line = &rest[..rest.find(['\n', '\r']).unwrap_or(rest.len())];
        let tail = line.trim_start();
        let is_block = tail.starts_with("/*")
            && tail.find("*/").is_some_and(|end| tail[end + 2..].trim().is_empty());
        if tail.starts_with("//") || is_block { at + line.trim_end().len() } else { at }
    }

    fn insert(&self, object: &JsonNode, key: &str, value: &Value) -> String {
        let key = Value::from(key).to_string();
        let n = self.line_break;
        let Some(last) = object.members.last() else {
            let outer = self.indent_of(object.range.start);
            let indent = format!("{outer}{}", self.unit);
            let new = format!("{n}{indent}{key}: {}", pretty(value, &self.unit, &indent));
            let inside = object.range.start + 1..object.range.end - 1;
            // Comments inside stay, behind the new member.
            return if self.text[inside.clone()].trim().is_empty() {
                self.replaced(&[(inside, &format!("{new}{n}{outer}"))])
            } else {
                self.replaced(&[(inside.start..inside.start, &new)])
            };
        };
        if !self.is_first_of_line(last.start) {
            // A file that a program wrote without spaces is read by programs; the new member stays readable.
            let new = format!(", {key}: {}", inline(value));
            return self.replaced(&[(last.node.range.end..last.node.range.end, &new)]);
        }
        let indent = self.indent_of(last.start);
        let new = pretty(value, &self.unit, indent);
        match last.comma {
            Some(comma) => {
                let at = self.after_comment(comma);
                self.replaced(&[(at..at, &format!("{n}{indent}{key}: {new},"))])
            }
            None => {
                let end = last.node.range.end;
                let at = self.after_comment(end);
                let new = format!("{n}{indent}{key}: {new}");
                self.replaced(&[(end..end, ","), (at..at, &new)])
            }
        }
    }

    fn remove(&self, object: &JsonNode, at: usize) -> String {
        let member = &object.members[at];
        let inside = object.range.start + 1..object.range.end - 1;
        let end = member.comma.unwrap_or(member.node.range.end);
        let around = [inside.start..member.start, end..inside.end];
        if around.iter().all(|part| self.text[part.clone()].trim().is_empty()) {
            return self.replaced(&[(inside, "")]);
        }
        let previous = at.checked_sub(1).map(|at| &object.members[at]);
        let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
        // A comma before the last member would remain.
        if let (None, Some(comma)) = (member.comma, previous.and_then(|previous| previous.comma)) {
            edits.push((comma - 1..comma, ""));
        }
        let rest = &self.text[end..];
        let is_last_of_line = rest.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
        if self.is_first_of_line(member.start) && is_last_of_line {
            let next = end + rest.find('\n').map_or(0, |line_break| line_break + 1);
            edits.push((self.line_start(member.start)..next, ""));
        } else if self.is_first_of_line(member.start) {
            edits.push((member.start..end, ""));
        } else {
            let spaces = self.text[..member.start].trim_end().len();
            edits.push((spaces..end, ""));
        }
        self.replaced(&edits)
    }

    /// Returns the text with some ranges replaced, which are in order.
    fn replaced(&self, edits: &[(Range<usize>, &str)]) -> String {
        let mut edited = String::with_capacity(self.text.len() + 256);
        let mut copied = 0;
        for (range, new) in edits {
            edited.push_str(&self.text[copied..range.start]);
            if self.line_break == "\r\n" {
                edited.push_str(&new.replace("\r\n", "\n").replace('\n', "\r\n"));
            } else {
                edited.push_str(new);
            }
            copied = range.end;
        }
        edited.push_str(&self.text[copied..]);
        edited
    }
}

/// Returns a value on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let fields = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), inline(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns a value with an indentation, of which the first line has none. Lists of short texts stay on a line.
fn pretty(value: &Value, unit: &str, indent: &str) -> String {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let inner = format!("{indent}{unit}");
            let lines = fields.iter().map(|(key, value)| {
                format!("{inner}{}: {}", Value::from(key.as_str()), pretty(value, unit, &inner))
            });
            format!("{{\n{}\n{indent}}}", lines.collect::<Vec<_>>().join(",\n"))
        }
        Value::Array(values) => {
            let values = values.iter().map(|value| pretty(value, unit, indent));
            format!("[{}]", values.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Parses a text; `None` if it has nothing but white space and comments.
fn document(text: &str) -> Result<Option<JsonNode>, SyntaxError> {
    let mut parser = Parser { text, at: if text.starts_with('\u{feff}') { 3 } else { 0 } };
    parser.skip()?;
    if parser.at == text.len() {
        return Ok(None);
    }
    let root = parser.value(0)?;
    parser.skip()?;
    if parser.at < text.len() {
        return Err(parser.error("something follows the value"));
    }
    Ok(Some(root))
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, problem: &str) -> SyntaxError {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        SyntaxError { line, problem: problem.to_owned() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = &self.text[self.at..];
            if rest.starts_with([' ', '\t', '\n', '\r']) {
                self.at += 1;
            } else if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or_else(|| self.error("a comment has no end"))?;
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<JsonNode, SyntaxError> {
        if depth > MAX_DEPTH {
            return Err(self.error("the value is nested too deeply"));
        }
        let start = self.at;
        let (value, members) = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => (self.array(depth)?, Vec::new()),
            Some(b'"') => (Value::String(self.string()?), Vec::new()),
            _ => (self.scalar()?, Vec::new()),
        };
        Ok(JsonNode { range: start..self.at, value, members })
    }

    fn object(&mut self, depth: usize) -> Result<(Value, Vec<JsonMember>), SyntaxError> {
        self.at += 1;
        let (mut value, mut members) = (Map::new(), Vec::<JsonMember>::new());
        loop {
            self.skip()?;
            if self.peek() == Some(b'}') {
                self.at += 1;
                return Ok((Value::Object(value), members));
            }
            if members.last().is_some_and(|last| last.comma.is_none()) || self.peek() != Some(b'"')
            {
                return Err(self.error("a name in quotes, a comma or } is missing"));
            }
            let start = self.at;
            let key = self.string()?;
            self.skip()?;
            if self.peek() != Some(b':') {
                return Err(self.error("a colon is missing"));
            }
            self.at += 1;
            self.skip()?;
            let mut node = self.value(depth + 1)?;
            value.insert(key.clone(), std::mem::take(&mut node.value));
            self.skip()?;
            let comma = (self.peek() == Some(b',')).then(|| {
                self.at += 1;
                self.at
            });
            members.push(JsonMember { key, start, node, comma });
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        self.at += 1;
        let mut values = Vec::new();
        let mut may_follow = true;
        loop {
            self.skip()?;
            if self.peek() == Some(b']') {
                self.at += 1;
                return Ok(Value::Array(values));
            }
            if !may_follow {
                return Err(self.error("a comma or ] is missing"));
            }
            values.push(self.value(depth + 1)?.value);
            self.skip()?;
            may_follow = self.peek() == Some(b',');
            self.at += usize::from(may_follow);
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let rest = &self.text[self.at..];
        let bytes = rest.as_bytes();
        let mut end = 1;
        while let Some(byte) = bytes.get(end) {
            match byte {
                b'"' => {
                    let text = serde_json::from_str(&rest[..=end]);
                    let text = text.map_err(|_| self.error("a text is not valid"))?;
                    self.at += end + 1;
                    return Ok(text);
                }
                b'\\' => end += 2,
                b'\n' => break,
                _ => end += 1,
            }
        }
        Err(self.error("a text has no end"))
    }

    fn scalar(&mut self) -> Result<Value, SyntaxError> {
        let rest = &self.text[self.at..];
        let is_end = |char: char| char.is_whitespace() || ",:]}/\"[{".contains(char);
        let token = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        let value = serde_json::from_str(token)
            .map_err(|_| self.error("a value is missing or not valid"))?;
        self.at += token.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry() -> Value {
        json!({ "command": "o", "args": ["mcp"] })
    }

    /// Checks a text with the entry, and that removing it gives the old text where nothing had to be created.
    fn check(text: &str, expect: &str, comes_back: bool) {
        let new = edit(text, "servers", "ollm", Some(&entry())).unwrap();
        assert_eq!(new, expect);
        assert_eq!(parse(&new).unwrap()["servers"]["ollm"], entry());
        assert_eq!(edit(&new, "servers", "ollm", Some(&entry())).unwrap(), new);
        if comes_back {
            assert_eq!(edit(&new, "servers", "ollm", None).unwrap(), text);
        }
    }

    #[test]
    fn entry_is_the_last_member_and_comments_stay() {
        let own = "\"ollm\": {\n      \"command\": \"o\",\n      \"args\": [\"mcp\"]\n    }";
        let new = format!("{{\n  \"servers\": {{\n    {own}\n  }}\n}}\n");
        check("", &new, false);
        check("// mine\n{}\n", &format!("// mine\n{new}"), false);
        check("// mine", &format!("// mine\n{new}"), false);
        check("/* mine */\n", &format!("/* mine */\n{new}"), false);
        check(
            "{\n  \"a\": 1 // why\n}\n",
            &format!("{{\n  \"a\": 1, // why\n  \"servers\": {{\n    {own}\n  }}\n}}\n"),
            false,
        );
        check(
            "{\n  \"servers\": {\n    \"x\": { \"command\": \"x\" } /* x */\n    // end\n  }\n}\n",
            &format!(
                "{{\n  \"servers\": {{\n    \"x\": {{ \"command\": \"x\" }}, /* x */\n    {own}\n    // end\n  }}\n}}\n"
            ),
            true,
        );
        check(
            "{\n  \"servers\": {\n    \"x\": {}, // x\n  },\n}\n",
            &format!("{{\n  \"servers\": {{\n    \"x\": {{}}, // x\n    {own},\n  }},\n}}\n"),
            true,
        );
    }

    #[test]
    fn layout_of_the_file_is_followed() {
        check(
            "{\"servers\":{\"x\":{}}}",
            "{\"servers\":{\"x\":{}, \"ollm\": { \"command\": \"o\", \"args\": [\"mcp\"] }}}",
            true,
        );
        check(
            "{\r\n\t\"servers\": {\r\n\t\t\"x\": {}\r\n\t}\r\n}",
            "{\r\n\t\"servers\": {\r\n\t\t\"x\": {},\r\n\t\t\"ollm\": {\r\n\t\t\t\"command\": \"o\",\r\n\t\t\t\"args\": [\"mcp\"]\r\n\t\t}\r\n\t}\r\n}",
            true,
        );
    }

    #[test]
    fn entry_between_others_is_removed_alone() {
        let text = "{\n  \"servers\": {\n    \"ollm\": {},\n    \"y\": {}\n  }\n}\n";
        let without = edit(text, "servers", "ollm", None).unwrap();
        assert_eq!(without, "{\n  \"servers\": {\n    \"y\": {}\n  }\n}\n");
        let inline = edit("{\"servers\":{\"ollm\":{}, \"y\":1}}", "servers", "ollm", None).unwrap();
        assert_eq!(parse(&inline).unwrap(), json!({ "servers": { "y": 1 } }), "{inline}");
    }

    #[test]
    fn syntax_error_has_its_line() {
        let line = |text: &str| parse(text).unwrap_err().line;
        assert_eq!(line("{\n\"a\": 1\n\"b\": 2}"), 3);
        assert_eq!(line("{\n\"a\": tru\n}"), 2);
        assert_eq!(line("{\n\n/* x"), 3);
        assert_eq!(line("{\"a\": \"x\n\"}"), 1);
        assert_eq!(line("{} {}"), 1);
        assert_eq!(line("{,}"), 1);
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
