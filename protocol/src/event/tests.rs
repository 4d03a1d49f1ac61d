//! The description of the events in PROTOCOL.md, which is made from their types.

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use serde_json::Value;

use super::*;

fn protocol_md() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/PROTOCOL.md");
    std::fs::read_to_string(path).expect("reads")
}

fn name(kind: EventKind) -> String {
    serde_json::to_value(kind).expect("serializes").as_str().expect("a name").to_owned()
}

/// Returns the rows of the table, one a kind.
fn rows() -> Vec<String> {
    let mut generator = SchemaGenerator::default();
    let mut described = BTreeMap::new();
    let links: Vec<_> = EVENTS.iter().map(|event| (event.data)(&mut generator)).collect();
    let definitions = generator.take_definitions(true);
    let target = |schema: &Value| {
        let mut schema = schema.clone();
        let mut name = String::new();
        while let Some(link) = schema.get("$ref").and_then(Value::as_str) {
            name = link.rsplit('/').next().expect("has a name").to_owned();
            schema = definitions[&name].clone();
        }
        (name, schema)
    };
    EVENTS
        .iter()
        .zip(links)
        .map(|(event, link)| {
            let (of, schema) = target(&link.to_value());
            let first = described.entry(of).or_insert(event.kind);
            let data = match *first == event.kind || schema["properties"].is_null() {
                true => fields(&schema),
                false => format!("as `{}`", name(*first)),
            };
            let row = format!("| `{}` | {} | {data} |", name(event.kind), lines(event.summary));
            row.replace("|  |", "| |")
        })
        .collect()
}

/// Returns the fields of an object with their descriptions.
fn fields(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object() else { return String::new() };
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    let is_null = |text: &str| text.contains("null");
    let described = properties.iter().map(|(name, field)| {
        let text = lines(field["description"].as_str().expect("is described"));
        let mark = if is_required(name) || is_null(&text) { "" } else { "?" };
        format!("`{name}{mark}`: {text}")
    });
    described.collect::<Vec<_>>().join("; ")
}

/// Joins the lines of a text, without the period at its end.
fn lines(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    joined.trim_end_matches('.').to_owned()
}

/// `OLLM_WRITE_FIXTURES=1` writes the table.
#[test]
#[expect(clippy::disallowed_methods, reason = "a file of the sources, written on request")]
fn table_in_protocol_md_follows_from_the_types() {
    let text = protocol_md();
    let head = "| kind | when | data |\n|---|---|---|\n";
    let (before, rest) = text.split_once(head).expect("has the table");
    let end = rest.find("\n\n").expect("the table ends") + 1;
    let expect = rows().join("\n") + "\n";
    if std::env::var_os("OLLM_WRITE_FIXTURES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/PROTOCOL.md");
        std::fs::write(path, format!("{before}{head}{expect}{}", &rest[end..])).expect("writes");
        return;
    }
    assert_eq!(&rest[..end], expect);
}

fn json(data: &impl EventData) -> String {
    serde_json::to_string(data).expect("serializes")
}

#[test]
fn absent_fields_are_omitted_or_null() {
    let progress = CompressionProgressData {
        step: CompressionStep::Planning,
        piece: None,
        pieces: None,
        from: None,
        to: None,
    };
    assert_eq!(json(&progress), r#"{"step":"planning"}"#);
    let moved = BranchChangedData { to: None, cause: "undo".to_owned() };
    assert_eq!(json(&moved), r#"{"to":null,"cause":"undo"}"#);
    let tier = Tier1CompressedData {
        method: crate::content::CompactionMethod::Summarized,
        tier_name: "smart".to_owned(),
    };
    let expect = r#"{"method":"summarized","tierName":"smart"}"#;
    assert_eq!(json(&Tier2CompressedData(tier)), expect);
    assert_eq!(json(&ResyncData(NoData)), "null");
}
