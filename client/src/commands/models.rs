//! `ollmctl models`.

use std::time::Duration;

use ollm_protocol::method::{ModelCountTokens, ModelList, ModelRunning, ModelShow, ModelWarm};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::{ModelCountTokensParams, ModelShowParams, ModelWarmParams};

use super::record::{TextUse, text_or_stdin};
use super::{CommandError, Cx};
use crate::cli::{ModelsArgs, ModelsCommand};
use crate::render::models;

/// A large model takes minutes from a slow disk; the daemon has limits of its own.
const LOADING: Duration = Duration::from_secs(15 * 60);
/// What `models count` reads.
const COUNT: TextUse =
    TextUse { verb: "count", command: "models count", example: "ollmctl models count 'hello'" };
/// The daemon asks up to three times, each with a limit of its own.
const ASKING: Duration = Duration::from_secs(120);

pub(super) fn run(args: ModelsArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match args.command.unwrap_or(ModelsCommand::List) {
        ModelsCommand::List => {
            let reply = cx.call_patiently::<ModelList>(&NoParams {}, ASKING)?;
            cx.print(&reply, |list, cx| models::list(list, &cx.view()))
        }
        ModelsCommand::Show(args) => {
            let params = ModelShowParams { model: args.model };
            let reply = cx.call_patiently::<ModelShow>(&params, ASKING)?;
            cx.print(&reply, |shown, _| models::show(shown))
        }
        ModelsCommand::Running => {
            let reply = cx.call_patiently::<ModelRunning>(&NoParams {}, ASKING)?;
            cx.print(&reply, |running, cx| models::running(running, &cx.view()))
        }
        ModelsCommand::Warm(args) => {
            let params = ModelWarmParams { model: args.model, context_size: args.size };
            let reply = cx.call_patiently::<ModelWarm>(&params, LOADING)?;
            cx.print(&reply, |warmed, _| models::warmed(warmed))
        }
        ModelsCommand::Count(args) => {
            let text = text_or_stdin(args.text.as_deref(), &COUNT)?;
            let params = ModelCountTokensParams {
                model: args.model,
                text: Some(text),
                ..ModelCountTokensParams::default()
            };
            let reply = cx.call_patiently::<ModelCountTokens>(&params, ASKING)?;
            cx.print(&reply, |counted, _| models::counted(counted))
        }
    }
}
