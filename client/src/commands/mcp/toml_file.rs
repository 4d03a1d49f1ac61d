//! A table in a TOML file.

use serde_json::{Map, Value};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

use super::entry::SyntaxError;

/// Returns the value of a text.
pub(super) fn parse(text: &str) -> Result<Value, SyntaxError> {
    Ok(table_value(document(text)?.as_table()))
}

/// Returns a text with the entry in a section, or without it. All other lines stay as they are.
pub(super) fn edit(
    text: &str,
    section: &str,
    name: &str,
    entry: Option<&Value>,
) -> Result<String, SyntaxError> {
    let mut document = document(text)?;
    let new_section = || {
        let mut table = Table::new();
        // Without a header of its own.
        table.set_implicit(true);
        Item::Table(table)
    };
    let own = document.entry(section).or_insert_with(new_section);
    let Some(own) = own.as_table_like_mut() else { return Ok(text.to_owned()) };
    match entry {
        Some(entry) => {
            let entry = entry.as_object().cloned().unwrap_or_default();
            own.insert(name, table_of(&entry));
        }
        None => drop(own.remove(name)),
    }
    let edited = document.to_string();
    // A new table is set apart from what precedes it.
    let header = format!("[{section}.{name}]");
    Ok(match (entry, edited.split_once(&header)) {
        (Some(_), Some((before, after)))
            if !before.is_empty() && !before.ends_with("\n\n") && !text.contains(&header) =>
        {
            let gap = if before.ends_with('\n') { "\n" } else { "\n\n" };
            format!("{before}{gap}{header}{after}")
        }
        _ => edited,
    })
}

fn document(text: &str) -> Result<DocumentMut, SyntaxError> {
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        SyntaxError { line, problem: error.message().to_owned() }
    })
}

fn table_of(entry: &Map<String, Value>) -> Item {
    let mut table = Table::new();
    for (name, value) in entry {
        table.insert(name, Item::Value(toml_value(value)));
    }
    Item::Table(table)
}

/// Returns a value of an entry, which has no null.
fn toml_value(value: &Value) -> toml_edit::Value {
    match value {
        Value::Null => toml_edit::Value::from(""),
        Value::Bool(value) => toml_edit::Value::from(*value),
        Value::Number(value) => match value.as_i64() {
            Some(whole) => toml_edit::Value::from(whole),
            None => toml_edit::Value::from(value.as_f64().unwrap_or_default()),
        },
        Value::String(text) => toml_edit::Value::from(text.as_str()),
        Value::Array(values) => values.iter().map(toml_value).collect::<Array>().into(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), toml_value(value)));
            fields.collect::<InlineTable>().into()
        }
    }
}

fn table_value(table: &dyn TableLike) -> Value {
    let fields = table.iter().filter(|(_, item)| !item.is_none());
    Value::Object(fields.map(|(name, item)| (name.to_owned(), item_value(item))).collect())
}

fn item_value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => value_of(value),
        Item::Table(table) => table_value(table),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| table_value(table)).collect(),
    }
}

fn value_of(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::from(text.value().as_str()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(value) => Value::from(*value.value()),
        toml_edit::Value::Datetime(at) => Value::from(at.value().to_string()),
        toml_edit::Value::Array(values) => values.iter().map(value_of).collect(),
        toml_edit::Value::InlineTable(table) => table_value(table),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_is_added_and_taken_back_without_touching_the_rest() {
        let entry = json!({ "command": "/bin/ollmctl", "args": ["mcp"] });
        let added = "[mcp_servers.ollm]\ncommand = \"/bin/ollmctl\"\nargs = [\"mcp\"]\n";
        let check = |text: &str, expect: String| {
            let new = edit(text, "mcp_servers", "ollm", Some(&entry)).unwrap();
            assert_eq!(new, expect);
            assert_eq!(parse(&new).unwrap()["mcp_servers"]["ollm"], entry);
        };
        check("", added.to_owned());
        let text = "# mine\nmodel = \"x\" # why\n\n[mcp_servers.other]\ncommand = 'o'\n";
        check(text, format!("{text}\n{added}"));
        let later = "[a]\nb = 1\n\n# about c\n[c]\nd = 2\n";
        check(later, format!("{later}\n{added}"));
        let with_own = "a = 1\n\n[mcp_servers.ollm]\ncommand = \"old\"\n\n# about c\n[c]\nd = 2\n";
        let without = edit(with_own, "mcp_servers", "ollm", None).unwrap();
        assert_eq!(without, "a = 1\n\n# about c\n[c]\nd = 2\n");
    }

    #[test]
    fn syntax_error_has_its_line() {
        assert_eq!(parse("a = 1\nb = \n").unwrap_err().line, 2);
    }
}
