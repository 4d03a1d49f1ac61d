//! `ollmctl servers`: the model servers, and what helps if one does not work.

use clap::Subcommand;
use ollm_protocol::method::ModelServers;
use ollm_protocol::methods::model::{
    CountsBy, KnownFrom, ModelServersParams, ModelServersResult, ServedModelReport, ServerReport,
};
use ollm_protocol::sanitize;

use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, Style};

/// List and test the model servers of the configuration.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum ServersCommand {
    /// List the model servers, each with its state in a line.
    #[command(after_help = "\
Servers are described in the section `servers` of the configuration; `ollmctl config list` explains it.

Examples:
  ollmctl servers list
  ollmctl servers list --json")]
    List,
    /// Ask each model server, or one, about its models: their windows, and how their tokens are counted.
    #[command(after_help = "\
Nothing is generated, and no model is loaded.

Examples:
  ollmctl servers test
  ollmctl servers test ollama")]
    Test {
        /// The server [default: all].
        #[arg(value_name = "SERVER")]
        server: Option<String>,
    },
}

pub(super) fn run(command: &ServersCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = match command {
        ServersCommand::List => ModelServersParams::default(),
        ServersCommand::Test { server } => {
            ModelServersParams { server: server.clone(), test: true }
        }
    };
    ctx.show::<ModelServers>(&params, render)
}

fn render(result: &ModelServersResult, _: &RenderOptions) -> String {
    result.data.iter().map(server_lines).collect()
}

/// Returns the line of a server, and further ones for its models and problems.
fn server_lines(report: &ServerReport) -> String {
    let line = |text: &str| sanitize::one_line(text);
    let mut facts = Vec::new();
    if let Some(time) = report.answered_ms {
        facts.push(format!("answered in {time} ms"));
    }
    if let Some(n_models) = report.n_models {
        facts.push(counted(u64::from(n_models), "model"));
    }
    let at_a_time = counted(u64::from(report.parallel), "request");
    facts.push(format!("{at_a_time} at a time ({})", origin(report.parallel_from)));
    let found = if report.found.is_empty() { &report.kind } else { &report.found };
    let mut what = line(found);
    if let Some(version) = &report.version {
        what.push_str(&format!(" {}", line(version)));
    }
    if !report.host.is_empty() {
        what.push_str(&format!(" at {}", line(&report.host)));
    }
    let state = if report.ready { "ready".to_owned() } else { Style::Bad.paint("not ready") };
    let mut text = format!("{}: {state}, {what}; {}\n", line(&report.server), facts.join(", "));
    text.extend(report.models.iter().map(model_line));
    for problem in &report.problems {
        let (problem, hint) = (line(&problem.text), line(&problem.hint));
        text.push_str(&format!("  {}: {problem}; try: {hint}\n", Style::Bad.paint("problem")));
    }
    text
}

fn model_line(model: &ServedModelReport) -> String {
    let window = match (model.window, model.window_from) {
        (Some(window), Some(from)) => {
            format!("window of {} tokens ({})", grouped(u64::from(window)), origin(from))
        }
        _ => "window as requested".to_owned(),
    };
    let counts = match model.counts {
        CountsBy::Vocabulary => "counted by its vocabulary",
        CountsBy::Server => "counted by the server, estimated before",
        CountsBy::Answers => "estimated, corrected by the counts of answers",
    };
    format!("  {}: {window}, {counts}\n", sanitize::one_line(&model.model))
}

const fn origin(from: KnownFrom) -> &'static str {
    match from {
        KnownFrom::Asked => "asked",
        KnownFrom::Configured => "configured",
        KnownFrom::Default => "by default",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn server_is_a_line_with_its_models_and_problems() {
        let result = serde_json::from_value(json!({ "data": [
            { "server": "gpu", "kind": "auto", "found": "vLLM", "host": "http://gpu:8000", "ready": true,
              "version": "0.33.0", "answeredMs": 12, "nModels": 1, "parallel": 4,
              "parallelFrom": "configured", "models": [
                { "model": "big", "window": 32768, "windowFrom": "asked", "counts": "server" }] },
            { "server": "key\u{1b}[2J", "kind": "openai", "found": "", "host": "", "ready": false,
              "parallel": 1, "parallelFrom": "default", "problems": [
                { "text": "the model server key needs the variable K", "hint": "ollmctl config check" }] },
        ] }))
        .unwrap();
        assert_eq!(
            plain(&render(&result, &render_options(80))),
            "\
gpu: ready, vLLM 0.33.0 at http://gpu:8000; answered in 12 ms, 1 model, 4 requests at a time (configured)
  big: window of 32,768 tokens (asked), counted by the server, estimated before
key: not ready, openai; 1 request at a time (by default)
  problem: the model server key needs the variable K; try: ollmctl config check
"
        );
    }
}
