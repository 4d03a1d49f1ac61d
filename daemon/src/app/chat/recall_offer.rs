//! The definitions of the tools by which a model recalls earlier messages itself, and when they are offered.

use serde_json::{Value, json};

use crate::app::core::Core;
use crate::catalog::{RECALL_READ, RECALL_SEARCH};
use crate::config::{RecallSetting, RecallTools};

/// Returns whether the tools are offered beside those of a client.
pub(super) fn are_offered(core: &Core, client_tools: &[Value]) -> bool {
    let config = core.config();
    let is_taken = |tool: &Value| tool["function"]["name"].as_str().is_some_and(is_recall_tool);
    config.recall.tools == RecallTools::Auto
        && config.recall.scope != RecallSetting::Off
        && !client_tools.is_empty()
        && !client_tools.iter().any(is_taken)
}

/// Returns the definitions of the tools. They stand in every prompt of a session, so they are short.
pub(super) fn definitions() -> [Value; 2] {
    let search = "Search everything that was said in this conversation, also what is not shown.";
    let read = "Read an earlier message whole, by the number that recall_search returns.";
    [
        definition(
            RECALL_SEARCH,
            search,
            &json!({ "query": { "type": "string" }, "limit": { "type": "integer" } }),
            "query",
        ),
        definition(
            RECALL_READ,
            read,
            &json!({ "message": { "type": "integer" }, "from": { "type": "integer" } }),
            "message",
        ),
    ]
}

fn definition(name: &str, description: &str, properties: &Value, required: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": properties, "required": [required] });
    let function = json!({ "name": name, "description": description, "parameters": parameters });
    json!({ "type": "function", "function": function })
}

/// Returns whether the daemon answers a tool of this name.
pub(super) fn is_recall_tool(name: &str) -> bool {
    name == RECALL_SEARCH || name == RECALL_READ
}
