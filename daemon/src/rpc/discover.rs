//! The OpenRPC document: every method with its params, result and errors, and every event, from the Rust types.

use std::sync::OnceLock;

use ollm_protocol::event::EVENTS;
use ollm_protocol::method::{METHOD_SCHEMAS, MethodInfo, MethodSchemas, STREAMS};
use ollm_protocol::{Effect, ErrorKind, Life, METHODS, PROTOCOL_VERSION, SCHEMA_REVISION};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The version of OpenRPC that the document follows.
const OPENRPC_VERSION: &str = "1.3.2";

/// The path of named types in the document.
const SCHEMAS: &str = "/components/schemas";

/// Returns the document, which is built once.
pub(super) fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(build)
}

fn build() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut methods: Vec<Value> = METHODS
        .iter()
        .zip(METHOD_SCHEMAS)
        .map(|(method, schemas)| describe(method, schemas, &mut generator))
        .collect();
    methods.extend(STREAMS.iter().map(|stream| unsubscribe(stream.unsubscribe, stream.method)));
    let errors: Map<String, Value> = ErrorKind::ALL
        .iter()
        .map(|kind| {
            let data = json!({ "kind": kind.as_str() });
            let error = json!({ "code": kind.code(), "message": kind.as_str(), "data": data });
            (kind.as_str().to_owned(), error)
        })
        .collect();
    let events: Map<String, Value> = EVENTS
        .iter()
        .map(|event| {
            let name = json!(event.kind).as_str().unwrap_or_default().to_owned();
            let data = (event.data)(&mut generator).to_value();
            (name, json!({ "summary": event.summary.trim(), "data": data }))
        })
        .collect();
    json!({
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "ollmd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable sessions, exact budgets and search for local language models.",
            "x-protocol": PROTOCOL_VERSION,
            "x-schema-revision": SCHEMA_REVISION,
        },
        "methods": methods,
        "x-events": events,
        "components": { "schemas": generator.take_definitions(true), "errors": errors },
    })
}

fn describe(
    method: &MethodInfo,
    schemas: &MethodSchemas,
    generator: &mut SchemaGenerator,
) -> Value {
    let params = params_of(schemas, generator);
    let result = (schemas.result)(generator).to_value();
    let mut described = json!({
        "name": method.name,
        "summary": method.summary,
        "paramStructure": "by-name",
        "params": params,
        "errors": error_links(),
        "x-life": method.life.as_str(),
        "x-effect": method.effect.as_str(),
    });
    if method.life == Life::Stream {
        described["result"] = json!({ "name": "subscription", "schema": { "type": "integer" } });
        if let Some(stream) = STREAMS.iter().find(|stream| stream.method == method.name) {
            described["x-notification"] =
                json!({ "method": stream.notification, "result": result });
            described["x-unsubscribe"] = json!(stream.unsubscribe);
        }
    } else {
        described["result"] = json!({ "name": "result", "schema": result });
    }
    described
}

/// Returns the properties of the params object as params, the required ones first.
fn params_of(schemas: &MethodSchemas, generator: &mut SchemaGenerator) -> Vec<Value> {
    let link = (schemas.params)(generator).to_value();
    let object = link["$ref"]
        .as_str()
        .and_then(|link| link.rsplit('/').next())
        .and_then(|name| generator.definitions().get(name))
        .unwrap_or(&link);
    let required = |name: &str| {
        object["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name))
    };
    let mut params: Vec<Value> = object["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            let description = schema.get("description").cloned().unwrap_or_default();
            let required = required(name);
            json!({ "name": name, "required": required, "description": description, "schema": schema })
        })
        .collect();
    params.sort_by_key(|param| param["required"] == false);
    params
}

/// Describes the method that ends a subscription, which the list of methods does not name.
fn unsubscribe(name: &str, of: &str) -> Value {
    json!({
        "name": name,
        "summary": format!("Ends a subscription of {of}."),
        "paramStructure": "by-position",
        "params": [{ "name": "subscription", "required": true, "schema": { "type": "integer" } }],
        "result": { "name": "ended", "schema": { "type": "boolean" } },
        "errors": error_links(),
        "x-life": Life::Completes.as_str(),
        "x-effect": Effect::Changes.as_str(),
    })
}

fn error_links() -> Vec<Value> {
    let link =
        |kind: &ErrorKind| json!({ "$ref": format!("#/components/errors/{}", kind.as_str()) });
    ErrorKind::ALL.iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves() {
        fn follow(document: &Value, value: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(link) = fields.get("$ref").and_then(Value::as_str) {
                        let place = link.strip_prefix('#').expect("a link within the document");
                        assert!(document.pointer(place).is_some(), "{link}");
                    }
                    fields.values().for_each(|value| follow(document, value));
                }
                Value::Array(items) => items.iter().for_each(|value| follow(document, value)),
                _ => {}
            }
        }
        follow(document(), document());
    }

    #[test]
    fn every_method_is_described_with_params_by_name() {
        let described = document()["methods"].as_array().expect("methods");
        for method in METHODS {
            assert!(described.iter().any(|found| found["name"] == method.name), "{}", method.name);
        }
        let hello = described.iter().find(|found| found["name"] == "daemon.hello").expect("hello");
        let names: Vec<_> = hello["params"].as_array().expect("params").iter().collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|param| param["required"] == true));
        assert_eq!(hello["result"]["schema"]["$ref"], "#/components/schemas/DaemonHelloResult");
    }
}
