//! The check of a model's name before a chat uses it, so that a misspelled one costs no session.

use std::cmp::Reverse;

use ollm_protocol::method::{ModelList, ModelShow};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelShowParams;
use ollm_protocol::{ErrorKind, sanitize};
use strsim::levenshtein;

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::models::chat_models;
use crate::error::ClientError;

/// The most edits between a name and a similar one.
const MAX_EDITS: usize = 2;
/// The most similar names that an error lists.
const MAX_SIMILAR: usize = 3;

/// Refuses the name of a model that the model server does not have. A server that does not answer refuses none.
pub(super) fn require_model(name: &str, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = ModelShowParams { model: Some(name.to_owned()) };
    let mut failure = match ctx.call::<ModelShow>(&params) {
        Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::ModelNotFound) => failure,
        Err(error @ ClientError::Rpc(_)) if !is_about_name(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(_) => return Ok(()),
    };
    let listed = ctx.call::<ModelList>(&NoParams {}).map(|list| list.value.data);
    let names = chat_models(listed.unwrap_or_default());
    let names: Vec<String> = names.iter().map(|name| sanitize::one_line(name)).collect();
    let similar = similar(name, &names);
    if let Some(first) = similar.first() {
        failure.message = format!("{}; similar ones are {}", failure.message, similar.join(", "));
        failure.hint = Some(match ctx.in_chat() {
            true => format!("/model {first}"),
            false => format!("ollmctl chat --model {first}"),
        });
    }
    Err(CommandError::Client(ClientError::Rpc(failure)))
}

/// Returns whether the daemon refused a name as such.
fn is_about_name(error: &ClientError) -> bool {
    error.kind() == ErrorKind::InvalidParams.as_str()
}

/// Returns the names that a person may have meant, the most similar first: those of the same model with another tag, those
/// that begin alike, and those with few edits.
fn similar<'a>(wrong: &str, names: &'a [String]) -> Vec<&'a str> {
    let wrong = wrong.to_lowercase();
    let base = |name: &str| name.split(':').next().unwrap_or_default().to_lowercase();
    let mut found: Vec<(usize, Reverse<bool>, &str)> = names
        .iter()
        .map(|name| {
            let (own, other) = (base(&wrong), base(name));
            let edits = levenshtein(&own, &other);
            (edits, Reverse(other.starts_with(&own)), name.as_str())
        })
        .filter(|(edits, begins, _)| *edits <= MAX_EDITS || begins.0)
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(.., name)| name).take(MAX_SIMILAR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_have_the_same_model_or_few_edits() {
        let names = ["fake:1b", "fake:7b", "qwen3:8b", "qwen3-coder:30b"].map(str::to_owned);
        let check =
            |wrong: &str, expect: &[&str]| assert_eq!(similar(wrong, &names), expect, "{wrong}");
        check("fake", &["fake:1b", "fake:7b"]);
        check("FAKE:2b", &["fake:1b", "fake:7b"]);
        check("quen3", &["qwen3:8b"]);
        check("qwen", &["qwen3:8b", "qwen3-coder:30b"]);
        check("nosuch", &[]);
    }
}
