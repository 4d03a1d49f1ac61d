//! Models, and the model server as the status shows it.

use ollm_protocol::content::{CountKind, ModelServerStatus};
use ollm_protocol::methods::model::{
    ModelCountTokensResult, ModelListResult, ModelRunningResult, ModelShowResult, ModelWarmResult,
};
use ollm_protocol::sanitize;

use super::View;
use super::number::{self, bytes, grouped};
use super::style::Style;
use super::table::{self, Column};

/// The models that the server has.
pub(crate) fn list(result: &ModelListResult, view: &View) -> String {
    if result.data.is_empty() {
        return format!(
            "{} has no models; try: ollama pull qwen3:4b\n",
            sanitize::one_line(&result.host)
        );
    }
    let columns = [
        ("MODEL", Column::Word),
        ("SIZE", Column::Number),
        ("PARAMETERS", Column::Number),
        ("WINDOW", Column::Number),
        ("CAN", Column::Prose),
    ];
    let rows: Vec<Vec<String>> = result
        .data
        .iter()
        .map(|model| {
            vec![
                sanitize::one_line(&model.model),
                bytes(model.size_bytes),
                sanitize::one_line(model.parameter_size.as_deref().unwrap_or_default()),
                window(model.trained_context),
                sanitize::one_line(&model.capabilities.join(", ")),
            ]
        })
        .collect();
    table::render(view.width, &columns, &rows)
}

/// A count.
pub(crate) fn counted(result: &ModelCountTokensResult) -> String {
    let tokens = number::counted(result.tokens, "token");
    match result.kind {
        CountKind::Exact => format!("{tokens}\n"),
        CountKind::Calibrated | CountKind::Estimated => {
            format!("{tokens}, estimated (at most about {} more)\n", grouped(result.margin))
        }
    }
}

/// One model.
pub(crate) fn show(result: &ModelShowResult) -> String {
    let model = &result.model;
    let mut rows = vec![("model", sanitize::one_line(&model.model))];
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    let line = |text: &Option<String>| text.as_deref().map(sanitize::one_line);
    add("server", Some(sanitize::one_line(&result.host)));
    add("elsewhere", line(&model.remote_host));
    add("digest", line(&model.digest));
    add("family", line(&model.family));
    add("parameters", line(&model.parameter_size));
    add("packed as", line(&model.quantization));
    let tokens = |tokens: u32| format!("{} tokens", grouped(u64::from(tokens)));
    add("trained for", model.trained_context.map(tokens));
    add("requested", model.requested_context.map(tokens));
    let cost = |each| format!("at most {} for 1,000 tokens", bytes(each * 1000));
    add("memory", model.context_bytes_per_token.map(cost));
    let can = sanitize::one_line(&model.capabilities.join(", "));
    add("can", (!can.is_empty()).then_some(can));
    add("system", line(&model.system));
    let hidden = model.hidden_messages;
    add("brings", (hidden > 0).then(|| format!("{} messages of its own", grouped(hidden))));
    table::fields(&rows)
}

/// The models in the server's memory.
pub(crate) fn running(result: &ModelRunningResult, view: &View) -> String {
    if result.data.is_empty() {
        return format!("{} has no model in memory\n", sanitize::one_line(&result.host));
    }
    let columns = [
        ("MODEL", Column::Word),
        ("SIZE", Column::Number),
        ("IN VIDEO MEMORY", Column::Number),
        ("WINDOW", Column::Number),
    ];
    let rows: Vec<Vec<String>> = result
        .data
        .iter()
        .map(|model| {
            vec![
                sanitize::one_line(&model.model),
                bytes(model.size_bytes),
                bytes(model.size_vram_bytes),
                window(model.effective_context),
            ]
        })
        .collect();
    let mut text = table::render(view.width, &columns, &rows);
    for model in &result.data {
        let name = sanitize::one_line(&model.model);
        model
            .warnings
            .iter()
            .for_each(|warning| text.push_str(&warn(&format!("{name}: {warning}"))));
    }
    text
}

/// A model was loaded.
pub(crate) fn warmed(result: &ModelWarmResult) -> String {
    let effective = result.effective_context.unwrap_or(result.requested_context);
    let mut text = format!(
        "{} is loaded with a window of {} tokens",
        sanitize::one_line(&result.model),
        grouped(u64::from(effective))
    );
    if let Some(size) = result.size_bytes {
        text.push_str(&format!(", {}", bytes(size)));
    }
    text.push('\n');
    result.warnings.iter().for_each(|warning| text.push_str(&warn(warning)));
    text
}

/// The model server in one line.
pub(crate) fn server(status: &ModelServerStatus) -> String {
    let host = sanitize::one_line(&status.host);
    match (status.reachable, &status.version, &status.error) {
        (Some(true), Some(version), _) => {
            format!("{host}, version {}", sanitize::one_line(version))
        }
        (Some(true), None, _) => host,
        (Some(false), _, Some(error)) => sanitize::one_line(error),
        (Some(false), _, None) => format!("{host} does not answer"),
        (None, ..) => format!("{host}, not asked yet"),
    }
}

fn warn(text: &str) -> String {
    format!("{} {}\n", Style::Bad.paint("warning:"), sanitize::one_line(text))
}

fn window(tokens: Option<u32>) -> String {
    tokens.map(|tokens| grouped(u64::from(tokens))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use serde_json::json;

    use super::*;

    fn view() -> View {
        View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false }
    }

    #[test]
    fn a_list_is_a_table() {
        let result = serde_json::from_value(json!({ "host": "http://h:1", "data": [
            { "model": "qwen3:8b\u{1b}[2J", "digest": "d", "sizeBytes": 5_368_709_120_u64,
              "parameterSize": "8.2B", "trainedContext": 40960, "capabilities": ["tools", "thinking"] },
            { "model": "old:latest", "digest": "e", "sizeBytes": 1024 },
        ] }))
        .unwrap();
        assert_eq!(
            strip_str(&list(&result, &view())).to_string(),
            "\
MODEL          SIZE  PARAMETERS  WINDOW  CAN
qwen3:8b    5.0 GiB        8.2B  40,960  tools, thinking
old:latest  1.0 KiB
"
        );
        let none = ModelListResult { host: "http://h:1".to_owned(), data: vec![] };
        assert_eq!(list(&none, &view()), "http://h:1 has no models; try: ollama pull qwen3:4b\n");
    }

    #[test]
    fn one_model_is_names_and_values() {
        let result = serde_json::from_value(json!({ "host": "http://h:1", "model": {
            "model": "qwen3:8b", "trainedContext": 40960, "contextBytesPerToken": 147_456,
            "capabilities": ["tools"], "hiddenMessages": 2,
        } }))
        .unwrap();
        assert_eq!(
            show(&result),
            "\
model        qwen3:8b
server       http://h:1
trained for  40,960 tokens
memory       at most 140.6 MiB for 1,000 tokens
can          tools
brings       2 messages of its own
"
        );
    }

    #[test]
    fn what_is_loaded_says_its_window_and_its_warnings() {
        let result = serde_json::from_value(json!({
            "host": "http://h:1", "model": "m", "requestedContext": 8192, "effectiveContext": 4096,
            "sizeBytes": 2048, "durationMs": 5, "warnings": ["it is slow"],
        }))
        .unwrap();
        let expect = "m is loaded with a window of 4,096 tokens, 2.0 KiB\nwarning: it is slow\n";
        assert_eq!(strip_str(&warmed(&result)).to_string(), expect);
        let result = serde_json::from_value(json!({ "host": "http://h:1", "data": [{
            "model": "m", "digest": "d", "sizeBytes": 2048, "sizeVramBytes": 1024,
            "effectiveContext": 4096, "warnings": ["it is slow"],
        }] }))
        .unwrap();
        let text = strip_str(&running(&result, &view())).to_string();
        assert!(text.ends_with("4,096\nwarning: m: it is slow\n"), "{text}");
    }

    #[test]
    fn the_server_is_one_line() {
        let check = |status: serde_json::Value, expect: &str| {
            assert_eq!(server(&serde_json::from_value(status).unwrap()), expect);
        };
        let up = json!({ "host": "http://h:1", "reachable": true, "version": "0.33.0" });
        check(up, "http://h:1, version 0.33.0");
        let error = "cannot reach the model server at http://h:1: connection refused";
        check(json!({ "host": "http://h:1", "reachable": false, "error": error }), error);
        check(json!({ "host": "http://h:1" }), "http://h:1, not asked yet");
    }
}
