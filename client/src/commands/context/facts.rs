//! `ollmctl context facts`: what the user stated in a session and what still holds.

use clap::{Args, Subcommand};
use ollm_protocol::Seq;
use ollm_protocol::method::{ContextFacts, ContextForgetFact};
use ollm_protocol::methods::context::{
    ContextFact, ContextFactsParams, ContextFactsResult, ContextForgetFactParams,
    ContextForgetFactResult,
};
use ollm_protocol::sanitize;

use crate::args::session::SessionFlag;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::render::RenderOptions;
use crate::render::table;
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::units::counted;

/// Facts of one page.
const PAGE_FACTS: u32 = 500;

/// Show what you stated in a session and what still holds; long conversations keep the best of it in every context.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
N is the number of the record and that of the fact in it, as `context facts` shows them; `12` means all facts of \
record 12. A later statement about the same thing replaces an earlier one by itself.

Examples:
  ollmctl context facts
  ollmctl context facts --session last --json
  ollmctl context facts forget 12.0
  ollmctl remember 'The staging port is 48213.'"
)]
pub(crate) struct FactsArgs {
    #[command(flatten)]
    session: SessionFlag,
    #[command(subcommand)]
    command: Option<FactsCommand>,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum FactsCommand {
    /// List the facts, the newest first; `facts` alone does the same.
    #[command(after_help = "\
Examples:
  ollmctl context facts list --all")]
    List {
        /// Also list facts that were suppressed.
        #[arg(long)]
        all: bool,
    },
    /// Suppress a fact, so that later contexts do not show it among the facts.
    #[command(after_help = "\
The message itself stays as it is. `context facts restore` undoes it.

Examples:
  ollmctl context facts forget 12.0
  ollmctl context facts forget 12 --session last")]
    Forget {
        /// The fact, or all facts of a record.
        #[arg(value_name = "N", value_parser = parse_fact)]
        fact: FactNumber,
    },
    /// Show a suppressed fact again.
    #[command(after_help = "\
Examples:
  ollmctl context facts restore 12")]
    Restore {
        /// The fact, or all facts of a record.
        #[arg(value_name = "N", value_parser = parse_fact)]
        fact: FactNumber,
    },
}

/// A fact of a record, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FactNumber {
    seq: Seq,
    index: Option<u32>,
}

fn parse_fact(text: &str) -> Result<FactNumber, String> {
    let text = text.trim_start_matches('#');
    let (seq, index) = text.split_once('.').map_or((text, None), |(seq, index)| (seq, Some(index)));
    let index = index.map(str::parse).transpose();
    match (seq.parse(), index) {
        (Ok(seq), Ok(index)) => Ok(FactNumber { seq: Seq(seq), index }),
        _ => {
            Err("expected the number of a record such as 12, or of a fact such as 12.0".to_owned())
        }
    }
}

pub(super) fn run(args: FactsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("context facts", ctx)?;
    let (fact, restore) = match args.command {
        None => return list(ContextFactsParams::new(session_id), ctx),
        Some(FactsCommand::List { all }) => {
            let params = ContextFactsParams {
                include_forgotten: all,
                ..ContextFactsParams::new(session_id)
            };
            return list(params, ctx);
        }
        Some(FactsCommand::Forget { fact }) => (fact, false),
        Some(FactsCommand::Restore { fact }) => (fact, true),
    };
    let FactNumber { seq, index } = fact;
    let params = ContextForgetFactParams { session_id, seq, index, restore, key: None };
    ctx.show::<ContextForgetFact>(&params, |result, _| render_forgotten(result, fact, restore))
}

/// Lists all pages.
fn list(mut params: ContextFactsParams, ctx: &mut CommandContext<'_>) -> CommandResult {
    params.limit = Some(PAGE_FACTS);
    let mut whole = ctx.call::<ContextFacts>(&params)?.value;
    while let Some(cursor) = whole.next_cursor.take() {
        params.cursor = Some(cursor);
        let page = ctx.call::<ContextFacts>(&params)?.value;
        whole.data.extend(page.data);
        whole.next_cursor = page.next_cursor;
    }
    ctx.print_value(&whole, render_list)
}

fn render_list(listed: &ContextFactsResult, options: &RenderOptions) -> String {
    if listed.data.is_empty() {
        return "no facts; ollmctl remember 'TEXT' adds a text to every context\n".to_owned();
    }
    let columns =
        [("N", Word), ("SAID", Word), ("SCORE", Number), ("STATE", Word), ("FACT", Prose)];
    let rows = listed.data.iter().map(|fact| {
        let number = format!("{}.{}", fact.seq, fact.index);
        let score = format!("{:.1}", fact.score);
        [number, options.minute(fact.at), score, state(fact), sanitize::one_line(&fact.text)]
    });
    table::render(options.width, &columns, rows) + &format!("{}\n", counted(listed.total, "fact"))
}

/// Returns the state of a fact in words, such as `pinned, replaces #3`.
fn state(fact: &ContextFact) -> String {
    let mut words = Vec::new();
    let mut add = |is_so: bool, word: String| words.extend(is_so.then_some(word));
    add(fact.forgotten, "suppressed".to_owned());
    add(fact.shown, "shown".to_owned());
    add(fact.pinned, "pinned".to_owned());
    add(fact.entry_key.is_some(), "entry".to_owned());
    if let Some(seq) = fact.supersedes {
        add(true, format!("replaces #{seq}"));
    }
    words.join(", ")
}

fn render_forgotten(result: &ContextForgetFactResult, fact: FactNumber, restore: bool) -> String {
    let verb = match (result.changed, restore) {
        (true, false) => "suppressed",
        (true, true) => "restored",
        (false, false) => "was suppressed already",
        (false, true) => "was not suppressed",
    };
    let is_meant = |one: &&ContextFact| fact.index.is_none_or(|index| one.index == index);
    let mut text = String::new();
    for one in result.data.iter().filter(is_meant) {
        text.push_str(&format!("{verb}: {}\n", sanitize::one_line(&one.text)));
    }
    if result.changed && !restore {
        text.push_str(&format!("undo: ollmctl context facts restore {}\n", shown_number(fact)));
    }
    text
}

fn shown_number(fact: FactNumber) -> String {
    match fact.index {
        Some(index) => format!("{}.{index}", fact.seq),
        None => fact.seq.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{plain, render_options};

    #[test]
    fn list_shows_number_score_state_and_text() {
        let value = json!({ "total": 2, "data": [
            { "seq": 14, "index": 1, "at": "2026-01-27T10:00:00.000Z", "text": "The port is\u{1b}[2J 6200.",
              "values": ["6200"], "score": 3.7, "source": "message", "supersedes": 3, "shown": true },
            { "seq": 12, "index": 0, "at": "2026-01-27T10:00:00.000Z", "text": "Never deploy on Fridays.",
              "rule": true, "score": 3.5, "source": "message", "forgotten": true } ] });
        let text =
            plain(&render_list(&serde_json::from_value(value).unwrap(), &render_options(100)));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("N ") && lines[0].ends_with("FACT"), "{text}");
        assert!(lines[1].starts_with("14.1") && lines[1].contains("shown, replaces #3"), "{text}");
        assert!(
            lines[2].contains("suppressed") && lines[2].ends_with("Never deploy on Fridays."),
            "{text}"
        );
        assert_eq!(lines[3], "2 facts");
    }

    #[test]
    fn number_names_a_fact_or_all_of_a_record() {
        let check = |text: &str, expect: Option<(u64, Option<u32>)>| {
            let parsed = parse_fact(text).ok().map(|fact| (fact.seq.0, fact.index));
            assert_eq!(parsed, expect, "{text}");
        };
        check("12", Some((12, None)));
        check("#12.3", Some((12, Some(3))));
        check("12.", None);
        check("x", None);
        check("-1", None);
    }
}
