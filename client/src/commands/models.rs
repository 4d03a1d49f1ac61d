//! `ollmctl models`: the models of the model server.

use clap::{Args, Subcommand};
use ollm_protocol::content::{CountKind, ModelServerStatus};
use ollm_protocol::method::{ModelCountTokens, ModelList, ModelRunning, ModelShow, ModelWarm};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::{
    DefaultWindowSource, ModelCountTokensParams, ModelCountTokensResult, ModelDetails,
    ModelListResult, ModelRunningResult, ModelShowParams, ModelShowResult, ModelSummary,
    ModelWarmParams, ModelWarmResult,
};
use ollm_protocol::sanitize;

use crate::args::text_or_stdin;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::render::table;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::{bytes, counted, grouped};
use crate::render::{RenderOptions, warning_line};

/// The server of models that name none.
const OLLAMA: &str = "ollama";

/// List, show and load the models of the model servers.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  ollmctl models
  ollmctl models show qwen3:8b
  ollmctl models warm qwen3:8b --context-size 16384"
)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: Option<ModelsCommand>,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum ModelsCommand {
    /// List the models of the model server; `models` alone does the same.
    List,
    /// Show a model: its context window, its capabilities and the memory that it needs.
    #[command(after_help = "\
Examples:
  ollmctl models show qwen3:8b
  ollmctl models show --json")]
    Show {
        /// The model [default: the configured one].
        #[arg(value_name = "MODEL", add = completion::models())]
        model: Option<String>,
    },
    /// List the models in the model server's memory, with the context window that each really has.
    Running,
    /// Load a model, so that its next answer begins sooner; waits until it is loaded.
    #[command(after_help = "\
All requests to a model use one window. A model that is loaded with a larger window keeps it.

Examples:
  ollmctl models warm qwen3:8b
  ollmctl models warm qwen3:8b --context-size 16384")]
    Warm {
        /// The model [default: the configured one].
        #[arg(value_name = "MODEL", add = completion::models())]
        model: Option<String>,
        /// The context window in tokens, at least 2048 [default: the configured one, else that of the
        /// Modelfile, else up to 8192].
        #[arg(long, value_name = "TOKENS")]
        context_size: Option<u32>,
    },
    /// Count the tokens of a text as a model does.
    #[command(after_help = "\
The count is exact if the model server reports the model's vocabulary, now or earlier.

Examples:
  ollmctl models count 'How many tokens is this?'
  cat notes.md | ollmctl models count -m qwen3:8b -")]
    Count {
        /// The text; read from stdin if it is `-`, or if it is missing and stdin is a pipe.
        #[arg(value_name = "TEXT")]
        text: Option<String>,
        /// The model [default: the configured one].
        #[arg(short, long, value_name = "MODEL", add = completion::models())]
        model: Option<String>,
    },
}

pub(super) fn run(args: ModelsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    match args.command.unwrap_or(ModelsCommand::List) {
        ModelsCommand::List => ctx.show::<ModelList>(&NoParams {}, render_list),
        ModelsCommand::Show { model } => {
            ctx.show::<ModelShow>(&ModelShowParams { model }, render_model)
        }
        ModelsCommand::Running => ctx.show::<ModelRunning>(&NoParams {}, render_running),
        ModelsCommand::Warm { model, context_size } => {
            ctx.show::<ModelWarm>(&ModelWarmParams { model, context_size }, render_warmed)
        }
        ModelsCommand::Count { text, model } => {
            let text = Some(text_or_stdin(
                text.as_deref(),
                "models count",
                "ollmctl models count 'hello'",
            )?);
            let params =
                ModelCountTokensParams { model, text, ..ModelCountTokensParams::default() };
            ctx.show::<ModelCountTokens>(&params, render_count)
        }
    }
}

fn render_list(result: &ModelListResult, options: &RenderOptions) -> String {
    let missing = result
        .missing
        .iter()
        .map(|missing| warning_line(&format!("{}: {}", missing.server, missing.problem)));
    let differing = result.data.iter().filter_map(|model| {
        let tokens = counted(model.count_difference?, "token");
        let text =
            format!("{}: replicas of the server count it differently, by {tokens}", model.model);
        Some(warning_line(&text))
    });
    let missing: String = missing.chain(differing).collect();
    if result.data.is_empty() && !missing.is_empty() {
        return format!("no server lists models\n{missing}");
    }
    if result.data.is_empty() {
        let host = sanitize::one_line(&result.host);
        let command = sanitize::one_line(&result.get_small_model);
        return format!("{host} has no models; try: {command}\n");
    }
    if result.data.iter().any(|model| model.server.as_deref().unwrap_or(OLLAMA) != OLLAMA) {
        return render_list_of_several(result, options) + &missing;
    }
    let columns = [
        ("MODEL", Word),
        ("SIZE", Number),
        ("PARAMETERS", Number),
        ("WINDOW", Number),
        ("CAPABILITIES", Prose),
    ];
    let rows = result.data.iter().map(|model| {
        [
            sanitize::one_line(&model.model),
            bytes(model.size_bytes),
            sanitize::one_line(model.parameter_size.as_deref().unwrap_or_default()),
            window(model.trained_context),
            sanitize::one_line(&model.capabilities.join(", ")),
        ]
    });
    table::render(options.width, &columns, rows) + &missing
}

/// The same for the models of several servers.
fn render_list_of_several(result: &ModelListResult, options: &RenderOptions) -> String {
    let columns = [
        ("MODEL", Word),
        ("SERVER", Word),
        ("STATE", Word),
        ("WINDOW", Number),
        ("SIZE", Number),
        ("CAPABILITIES", Prose),
    ];
    let rows = result.data.iter().map(|model| {
        let state = match model.loaded {
            Some(true) => "loaded",
            Some(false) => "not loaded",
            None => "",
        };
        let size = if model.size_bytes > 0 { bytes(model.size_bytes) } else { String::new() };
        [
            sanitize::one_line(&model.model),
            sanitize::one_line(model.server.as_deref().unwrap_or_default()),
            state.to_owned(),
            window(model.window.or(model.trained_context)),
            size,
            sanitize::one_line(&model.capabilities.join(", ")),
        ]
    });
    table::render(options.width, &columns, rows)
}

fn render_count(result: &ModelCountTokensResult, _: &RenderOptions) -> String {
    let tokens = counted(result.tokens, "token");
    match result.count_kind {
        CountKind::Exact => format!("{tokens}\n"),
        CountKind::Calibrated | CountKind::Estimated => {
            format!("{tokens}, estimated (at most about {} more)\n", grouped(result.margin))
        }
    }
}

fn render_model(result: &ModelShowResult, _: &RenderOptions) -> String {
    let model = &result.model;
    let mut rows = vec![("model", sanitize::one_line(&model.model))];
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    let line = |text: &Option<String>| text.as_deref().map(sanitize::one_line);
    add("server", Some(sanitize::one_line(&result.host)));
    add("remote host", line(&model.remote_host));
    add("digest", line(&model.digest));
    add("family", line(&model.family));
    add("parameters", line(&model.parameter_size));
    add("quantization", line(&model.quantization));
    let tokens = |tokens: u32| format!("{} tokens", grouped(u64::from(tokens)));
    add("trained for", model.trained_context.map(tokens));
    add("window", default_window(model));
    add("in force", model.context_size.map(tokens));
    let cost = |each| format!("at most {} for 1,000 tokens", bytes(each * 1000));
    add("memory", model.context_bytes_per_token.map(cost));
    let capabilities = sanitize::one_line(&model.capabilities.join(", "));
    add("capabilities", (!capabilities.is_empty()).then_some(capabilities));
    add("system", line(&model.system));
    let hidden = model.hidden_messages;
    add("built in", (hidden > 0).then(|| counted(hidden, "message")));
    table::fields(&rows)
}

/// Returns the window of sessions that name none, with its origin.
fn default_window(model: &ModelDetails) -> Option<String> {
    let tokens = |tokens: u32| grouped(u64::from(tokens));
    let origin = match (model.default_context_from?, model.modelfile_context) {
        (DefaultWindowSource::Config, Some(own)) => {
            format!("by context.size, which overrides num_ctx {} of the Modelfile", tokens(own))
        }
        (DefaultWindowSource::Config, None) => "by context.size".to_owned(),
        (DefaultWindowSource::Modelfile, _) => "by num_ctx of the Modelfile".to_owned(),
        (DefaultWindowSource::Server, _) => "by the server".to_owned(),
        (DefaultWindowSource::Default, _) => "by default (context.size is not set)".to_owned(),
    };
    Some(format!("{} tokens {origin}", tokens(model.default_context?)))
}

fn render_running(result: &ModelRunningResult, options: &RenderOptions) -> String {
    if result.data.is_empty() {
        return format!("{} has no model in memory\n", sanitize::one_line(&result.host));
    }
    let columns =
        [("MODEL", Word), ("SIZE", Number), ("IN VIDEO MEMORY", Number), ("WINDOW", Number)];
    let rows = result.data.iter().map(|model| {
        [
            sanitize::one_line(&model.model),
            bytes(model.size_bytes),
            bytes(model.size_vram_bytes),
            window(model.effective_context),
        ]
    });
    let mut text = table::render(options.width, &columns, rows);
    for model in &result.data {
        let lines = model.warnings.iter();
        text.extend(lines.map(|warning| warning_line(&format!("{}: {warning}", model.model))));
    }
    text
}

fn render_warmed(result: &ModelWarmResult, _: &RenderOptions) -> String {
    let effective = result.effective_context.unwrap_or(result.context_size);
    let mut text = format!(
        "{} is loaded with a window of {} tokens",
        sanitize::one_line(&result.model),
        grouped(u64::from(effective))
    );
    if let Some(size) = result.size_bytes {
        text.push_str(&format!(", {}", bytes(size)));
    }
    text.push('\n');
    text.extend(result.warnings.iter().map(|warning| warning_line(warning)));
    text
}

/// Returns whether a model can chat. A model without reported capabilities may have any.
pub(crate) fn can_chat(model: &ModelSummary) -> bool {
    let capabilities = &model.capabilities;
    capabilities.is_empty() || capabilities.iter().any(|name| name == "completion")
}

/// Returns the names of the models that can chat.
pub(super) fn chat_models(models: Vec<ModelSummary>) -> Vec<String> {
    models.into_iter().filter(can_chat).map(|model| model.model).collect()
}

/// Returns the state of the model server on one line.
pub(super) fn server_state(status: &ModelServerStatus) -> String {
    let host = sanitize::one_line(&status.host);
    match (status.reachable, &status.version, &status.error) {
        (Some(true), Some(version), _) => {
            format!("{host}, version {}", sanitize::one_line(version))
        }
        (Some(true), None, _) => host,
        (Some(false), _, Some(error)) => sanitize::one_line(error),
        (Some(false), _, None) => format!("{host} does not answer"),
        (None, ..) => format!("{host}, not contacted yet"),
    }
}

fn window(tokens: Option<u32>) -> String {
    tokens.map(|tokens| grouped(u64::from(tokens))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn list_is_a_table() {
        let result = serde_json::from_value(json!({ "host": "http://h:1", "getSmallModel": "get small", "data": [
            { "model": "qwen3:8b\u{1b}[2J", "digest": "d", "sizeBytes": 5_368_709_120_u64,
              "parameterSize": "8.2B", "trainedContext": 40960, "capabilities": ["tools", "thinking"] },
            { "model": "old:latest", "digest": "e", "sizeBytes": 1024 },
        ] }))
        .unwrap();
        assert_eq!(
            plain(&render_list(&result, &render_options(80))),
            "\
MODEL          SIZE  PARAMETERS  WINDOW  CAPABILITIES
qwen3:8b    5.0 GiB        8.2B  40,960  tools, thinking
old:latest  1.0 KiB
"
        );
        let (host, get_small_model) = ("http://h:1".to_owned(), "get small".to_owned());
        let none = ModelListResult { host, get_small_model, data: vec![], missing: vec![] };
        assert_eq!(
            render_list(&none, &render_options(80)),
            "http://h:1 has no models; try: get small\n"
        );
        let result =
            serde_json::from_value(json!({ "host": "http://h:1", "getSmallModel": "get small",
            "data": [], "missing": [{ "server": "far", "problem": "is away" }] }));
        let text = plain(&render_list(&result.unwrap(), &render_options(80)));
        assert_eq!(text, "no server lists models\nwarning: far: is away\n");
    }

    #[test]
    fn list_of_several_servers_has_their_names_and_states() {
        let result = serde_json::from_value(json!({ "host": "http://h:1", "getSmallModel": "get", "data": [
            { "model": "qwen3:8b", "digest": "d", "sizeBytes": 1024, "trainedContext": 40960,
              "server": "ollama", "loaded": false },
            { "model": "big", "digest": "e", "sizeBytes": 0, "server": "gpu", "loaded": true, "window": 32768 },
        ], "missing": [{ "server": "far", "problem": "http://far:1 did not answer in time" }] }))
        .unwrap();
        assert_eq!(
            plain(&render_list(&result, &render_options(80))),
            "\
MODEL     SERVER  STATE       WINDOW     SIZE  CAPABILITIES
qwen3:8b  ollama  not loaded  40,960  1.0 KiB
big       gpu     loaded      32,768
warning: far: http://far:1 did not answer in time
"
        );
    }

    #[test]
    fn model_is_a_table_of_fields() {
        let result = serde_json::from_value(json!({ "host": "http://h:1", "model": {
            "model": "qwen3:8b", "trainedContext": 40960, "contextBytesPerToken": 147_456,
            "capabilities": ["tools"], "hiddenMessages": 2,
        } }))
        .unwrap();
        assert_eq!(
            render_model(&result, &render_options(80)),
            "\
model         qwen3:8b
server        http://h:1
trained for   40,960 tokens
memory        at most 140.6 MiB for 1,000 tokens
capabilities  tools
built in      2 messages
"
        );
    }

    #[test]
    fn window_of_a_model_has_its_origin() {
        let check = |model: serde_json::Value, expect: &str| {
            let model = serde_json::from_value(model).unwrap();
            assert_eq!(default_window(&model).as_deref(), Some(expect));
        };
        let both = json!({ "model": "m", "modelfileContext": 4096, "defaultContext": 8192,
            "defaultContextFrom": "config" });
        check(both, "8,192 tokens by context.size, which overrides num_ctx 4,096 of the Modelfile");
        let own = json!({ "model": "m", "modelfileContext": 4096, "defaultContext": 4096,
            "defaultContextFrom": "modelfile" });
        check(own, "4,096 tokens by num_ctx of the Modelfile");
        let none = json!({ "model": "m", "defaultContext": 2048, "defaultContextFrom": "default" });
        check(none, "2,048 tokens by default (context.size is not set)");
    }

    #[test]
    fn loaded_model_has_its_window_and_warnings() {
        let result = serde_json::from_value(json!({
            "host": "http://h:1", "model": "m", "contextSize": 8192, "effectiveContext": 4096,
            "sizeBytes": 2048, "durationMs": 5, "warnings": ["it is slow"],
        }))
        .unwrap();
        let expect = "m is loaded with a window of 4,096 tokens, 2.0 KiB\nwarning: it is slow\n";
        assert_eq!(plain(&render_warmed(&result, &render_options(80))), expect);
        let result = serde_json::from_value(json!({ "host": "http://h:1", "data": [{
            "model": "m", "digest": "d", "sizeBytes": 2048, "sizeVramBytes": 1024,
            "effectiveContext": 4096, "warnings": ["it is slow"],
        }] }))
        .unwrap();
        let text = plain(&render_running(&result, &render_options(80)));
        assert!(text.ends_with("4,096\nwarning: m: it is slow\n"), "{text}");
    }

    #[test]
    fn server_state_is_one_line() {
        let check = |status: serde_json::Value, expect: &str| {
            assert_eq!(server_state(&serde_json::from_value(status).unwrap()), expect);
        };
        let up = json!({ "host": "http://h:1", "reachable": true, "version": "0.33.0" });
        check(up, "http://h:1, version 0.33.0");
        let error = "cannot reach the model server at http://h:1: connection refused";
        check(json!({ "host": "http://h:1", "reachable": false, "error": error }), error);
        check(json!({ "host": "http://h:1" }), "http://h:1, not contacted yet");
    }
}
