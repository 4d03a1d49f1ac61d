//! The tools as clients see them: names, descriptions and parameters. The texts are written for models.
//!
//! **Invariant**: the list is the same at every call, in the same order, because clients cache it.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::memory::Remembered;
use super::quotation::Quotation;

/// The tools, in the order of their list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolName {
    Recall,
    Read,
    Sessions,
    Blame,
    Facts,
    Remember,
    Context,
}

impl ToolName {
    const ALL: [Self; 7] = [
        Self::Recall,
        Self::Read,
        Self::Sessions,
        Self::Blame,
        Self::Facts,
        Self::Remember,
        Self::Context,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Recall => "recall",
            Self::Read => "read",
            Self::Sessions => "sessions",
            Self::Blame => "blame",
            Self::Facts => "facts",
            Self::Remember => "remember",
            Self::Context => "context",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Recall => "Recall earlier messages",
            Self::Read => "Read around a message",
            Self::Sessions => "List earlier sessions",
            Self::Blame => "Find why a file was changed",
            Self::Facts => "List what is remembered",
            Self::Remember => "Remember a text",
            Self::Context => "Show the state of a session",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Recall => {
                "Finds messages of earlier conversations that answer a question in plain words. Returns excerpts, each \
                 with a reference SESSION#NUMBER, which `read` takes. Use it before you ask the user for something that \
                 was probably said already: decisions, names, ports, preferences, errors and how they were solved."
            }
            Self::Read => {
                "Reads a message of an earlier conversation, with the messages and tool calls before and after it, within \
                 a limit of tokens. The reference is that of an excerpt, such as 9f04#12."
            }
            Self::Sessions => {
                "Lists earlier conversations, the most recently active first, with their titles. `query` is words of the \
                 title; `recall` searches what was said."
            }
            Self::Blame => {
                "Finds the conversations in which a file was read or changed, the newest first, with the request of the \
                 user that led to it. Use it before you change code whose purpose is unclear. The file need not exist any \
                 more."
            }
            Self::Facts => {
                "Lists what is remembered for all sessions or for this project, and in the project the facts that the user \
                 stated in recent conversations and that still hold: names, dates, rules, preferences, corrections."
            }
            Self::Remember => {
                "Remembers a short text for all later conversations of this project, or of all projects. Use it when the \
                 user asks to remember something, or corrects something that will matter again; never for secrets. The \
                 same text is remembered once."
            }
            Self::Context => {
                "Shows the state of an earlier conversation, to continue its work: goals, notes on its older part, the \
                 request that came last and the answer."
            }
        }
    }

    fn tool(self) -> Tool {
        let is_reading = self != Self::Remember;
        let annotations = ToolAnnotations::with_title(self.title())
            .read_only(is_reading)
            .destructive(false)
            .idempotent(true)
            .open_world(false);
        let tool = Tool::new(self.name(), self.description(), JsonObject::new())
            .with_title(self.title())
            .with_annotations(annotations);
        match self {
            Self::Recall => reading::<RecallParams>(tool),
            Self::Read => reading::<ReadParams>(tool),
            Self::Sessions => reading::<SessionsParams>(tool),
            Self::Blame => reading::<BlameParams>(tool),
            Self::Facts => reading::<FactsParams>(tool),
            Self::Context => reading::<ContextParams>(tool),
            Self::Remember => {
                tool.with_input_schema::<RememberParams>().with_output_schema::<Remembered>()
            }
        }
    }
}

fn reading<P: JsonSchema + 'static>(tool: Tool) -> Tool {
    tool.with_input_schema::<P>().with_output_schema::<Quotation>()
}

/// Removes from a schema what says nothing to a model. Some clients refuse a field with several types, and each request to a
/// model repeats the schemas.
fn shorten(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for noise in ["$schema", "format"] {
                if fields.get(noise).is_some_and(Value::is_string) {
                    fields.shift_remove(noise);
                }
            }
            // An absent value is an absent field.
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".to_owned(), only);
                }
            }
            fields.values_mut().for_each(shorten);
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        _ => {}
    }
}

fn shortened(schema: &JsonObject) -> Arc<JsonObject> {
    let mut value = Value::Object(schema.clone());
    shorten(&mut value);
    match value {
        Value::Object(schema) => Arc::new(schema),
        _ => Arc::default(),
    }
}

/// Returns the list of tools.
pub(super) fn all() -> Vec<Tool> {
    let tools = ToolName::ALL.into_iter().map(|name| {
        let mut tool = name.tool();
        tool.input_schema = shortened(&tool.input_schema);
        tool.output_schema = tool.output_schema.map(|schema| shortened(&schema));
        tool
    });
    tools.collect()
}

/// The parameters of `recall`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RecallParams {
    /// The question, in plain words. Rare words, names and numbers find most.
    pub(super) query: String,
    /// The directory of the project, or "all" for all sessions. Default: the project in which you work.
    pub(super) project: Option<String>,
    /// Only messages of this time or later: RFC 3339, a date, or an age such as 7d.
    pub(super) since: Option<String>,
    /// Only messages before this time.
    pub(super) until: Option<String>,
    /// The most excerpts, 1 to 20.
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 20))]
    pub(super) limit: u32,
}

/// The parameters of `read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ReadParams {
    /// The message, such as 9f04#12. A message that was cut goes on at the reference that is named there.
    #[serde(rename = "ref")]
    pub(super) reference: String,
    /// The number of messages and tool calls before it, at most 50.
    #[serde(default = "two")]
    #[schemars(range(max = 50))]
    pub(super) before: u32,
    /// The number of messages and tool calls after it, at most 50.
    #[serde(default = "four")]
    #[schemars(range(max = 50))]
    pub(super) after: u32,
    /// The most tokens to return, 200 to 20000.
    #[serde(default = "two_thousand")]
    #[schemars(range(min = 200, max = 20000))]
    pub(super) max_tokens: u64,
}

/// The parameters of `sessions`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SessionsParams {
    /// The directory of the project, or "all" for all sessions. Default: the project in which you work.
    pub(super) project: Option<String>,
    /// Words of the title.
    pub(super) query: Option<String>,
    /// The most sessions, 1 to 20.
    #[serde(default = "twenty")]
    #[schemars(range(min = 1, max = 20))]
    pub(super) limit: u32,
    /// The nextCursor of the page before.
    pub(super) cursor: Option<String>,
}

/// The parameters of `blame`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BlameParams {
    /// The path of the file: relative to the project in which you work, or absolute.
    pub(super) path: String,
}

/// The sessions that facts hold for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub(super) enum MemoryScope {
    #[default]
    Project,
    Global,
}

/// The parameters of `facts`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FactsParams {
    /// Only facts with at least one of these words, those with most of them first.
    pub(super) query: Option<String>,
    /// "project" for the project in which you work, "global" for what holds everywhere.
    #[serde(default)]
    pub(super) scope: MemoryScope,
}

/// The parameters of `remember`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RememberParams {
    /// The text: one statement that can be understood alone.
    pub(super) text: String,
    /// "project" for later conversations of this project, "global" for all.
    pub(super) scope: MemoryScope,
}

/// The parameters of `context`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ContextParams {
    /// The session: an id, or the part of a reference before the #.
    pub(super) session: String,
}

const fn two() -> u32 {
    2
}
const fn four() -> u32 {
    4
}
const fn five() -> u32 {
    5
}
const fn twenty() -> u32 {
    20
}
const fn two_thousand() -> u64 {
    2000
}
