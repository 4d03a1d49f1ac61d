//! A built context: how the window is divided, what is in and what is not.

use ollm_protocol::content::{BuiltContext, ContextMessage, OmittedItem, Role};
use ollm_protocol::sanitize;

use super::View;
use super::number::{counted, grouped};
use super::style::Style;
use super::table::{self, Column};
use super::window::{self, Share, count_word};

/// The most rows of what was left out.
const OMITTED_SHOWN: usize = 12;

/// The whole picture of a build.
pub(crate) fn build(result: &BuiltContext, view: &View) -> String {
    let window = result.budget.model_context_window;
    let shares = shares(result);
    let mut text = format!(
        "{} of {} used, {} by {}\n\n{}\n\n",
        counted(result.tokens_used, "token"),
        grouped(result.token_budget),
        count_word(result.count_kind),
        sanitize::one_line(&result.strategy),
        window::bar(&shares, window, view),
    );
    text.push_str(&window::legend(&shares, window, view));
    text.push('\n');
    text.push_str(&table::fields(&facts(result)));
    if !result.omitted.is_empty() {
        text.push('\n');
        text.push_str(&omitted(&result.omitted, view));
    }
    text
}

fn shares(result: &BuiltContext) -> Vec<Share> {
    let budget = &result.budget;
    let used = [
        budget.system_prompt_tokens,
        budget.tool_definition_tokens,
        budget.checkpoint_tokens,
        budget.current_conversation_tokens,
    ];
    let free = budget.prompt_limit.saturating_sub(used.iter().sum());
    [
        ("system", '#', budget.system_prompt_tokens),
        ("tools", '%', budget.tool_definition_tokens),
        ("checkpoints", '+', budget.checkpoint_tokens),
        ("conversation", '=', budget.current_conversation_tokens),
        ("free", '.', free),
        ("answer reserve", '~', budget.reserve_for_response),
    ]
    .into_iter()
    .map(|(name, sign, tokens)| Share { name, sign, tokens })
    .collect()
}

fn facts(result: &BuiltContext) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        (
            "messages",
            format!(
                "{} of {} in, {} as summaries",
                grouped(result.included_message_count),
                grouped(result.original_message_count),
                grouped(result.summarized_message_count),
            ),
        ),
        (
            "reused",
            format!("{} of the previous build's beginning", counted(result.prefix_tokens, "token")),
        ),
        ("ask with", format!("num_ctx {}, num_predict {}", result.num_ctx, result.num_predict)),
        ("build", sanitize::one_line(&result.build_id)),
    ];
    if result.transient {
        facts.push((
            "transient",
            "this plan is not recorded and the next may differ; --auto records it".into(),
        ));
    }
    facts
}

fn omitted(items: &[OmittedItem], view: &View) -> String {
    let tokens: u64 = items.iter().map(|item| item.tokens).sum();
    let mut text = format!("left out: {}\n", counted(tokens, "token"));
    let columns =
        [("RECORDS", Column::Word), ("TOKENS", Column::Number), ("REASON", Column::Prose)];
    let rows: Vec<Vec<String>> = items
        .iter()
        .take(OMITTED_SHOWN)
        .map(|item| {
            let place = match item.through_seq {
                Some(through) => format!("#{} to #{through}", item.seq),
                None => format!("#{}", item.seq),
            };
            vec![place, grouped(item.tokens), sanitize::one_line(&item.reason)]
        })
        .collect();
    text.push_str(&table::render(view.width, &columns, &rows));
    if let Some(more) = items.len().checked_sub(OMITTED_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("and {} more: --json lists all\n", grouped(more as u64)));
    }
    text
}

/// The messages as a model would be sent them.
pub(crate) fn messages(messages: &[ContextMessage]) -> String {
    let mut text = String::new();
    for message in messages {
        let style = match message.role {
            Role::User => Style::User,
            Role::Assistant => Style::Assistant,
            Role::Tool => Style::Tool,
            Role::System => Style::Faint,
        };
        let mut who = message.role.as_str().to_owned();
        if let Some(tool) = &message.tool_name {
            who = format!("{who} {}", sanitize::one_line(tool));
        }
        text.push_str(&format!("\n{}\n", style.paint(&who)));
        let content = sanitize::text(&message.content);
        if !content.is_empty() {
            text.push_str(content.trim_end_matches('\n'));
            text.push('\n');
        }
        for call in &message.tool_calls {
            let args = sanitize::one_line(&call.function.arguments.to_string());
            text.push_str(&format!("-> {} {args}\n", sanitize::one_line(&call.function.name)));
        }
        if !message.images.is_empty() {
            text.push_str(&format!("[{}]\n", counted(message.images.len() as u64, "image")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    fn sample() -> BuiltContext {
        serde_json::from_value(serde_json::json!({
            "messages": [{"role": "user", "content": "hi\u{1b}[2J"}],
            "strategy": "full-history", "tokensUsed": 1500, "tokenBudget": 3481,
            "budget": {
                "modelContextWindow": 4096, "promptLimit": 3481, "systemPromptTokens": 300,
                "toolDefinitionTokens": 0, "checkpointTokens": 0, "reserveForResponse": 615,
                "availableTokens": 3181, "currentConversationTokens": 1200,
                "utilizationPercent": 37.7
            },
            "originalMessageCount": 120, "includedMessageCount": 34, "summarizedMessageCount": 0,
            "omitted": [{"seq": 3, "throughSeq": 40, "tokens": 12000, "reason": "budget"}],
            "countKind": "estimated", "prefixTokens": 900, "transient": true,
            "numCtx": 4096, "numPredict": 614, "buildId": "b1"
        }))
        .unwrap()
    }

    #[test]
    fn a_build_reads_well_without_colors() {
        let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        assert_eq!(
            strip_str(&build(&sample(), &view)).to_string(),
            "\
1,500 tokens of 3,481 used, estimated by full-history

[######=======================......................................~~~~~~~~~~~]

   PART            TOKENS   SHARE
#  system             300   7.3 %
%  tools                0   0.0 %
+  checkpoints          0   0.0 %
=  conversation     1,200  29.3 %
.  free             1,981  48.4 %
~  answer reserve     615  15.0 %
   window           4,096

messages   34 of 120 in, 0 as summaries
reused     900 tokens of the previous build's beginning
ask with   num_ctx 4096, num_predict 614
build      b1
transient  this plan is not recorded and the next may differ; --auto records it

left out: 12,000 tokens
RECORDS    TOKENS  REASON
#3 to #40  12,000  budget
"
        );
    }

    #[test]
    fn a_bar_is_as_wide_as_asked_whatever_the_numbers() {
        let check = |parts: &[u64], window, expect: &str| {
            let shares: Vec<Share> = parts
                .iter()
                .zip("#=.~".chars())
                .map(|(tokens, sign)| Share { name: "", sign, tokens: *tokens })
                .collect();
            let view =
                View { width: 12, now: ollm_protocol::Timestamp::from_unix_ms(0), full: false };
            assert_eq!(window::bar(&shares, window, &view), format!("[{expect}]"));
        };
        check(&[1, 1, 1, 1], 4, "###==...~~");
        check(&[1, 0, 998, 1], 1000, "#.........");
        check(&[0, 0, 10, 0], 10, "..........");
        check(&[50, 50, 50, 50], 100, "#####=====");
        check(&[0, 0, 0, 0], 0, "");
    }

    #[test]
    fn messages_are_shown_clean() {
        let text = strip_str(&messages(&sample().messages)).to_string();
        assert_eq!(text, "\nuser\nhi\n");
    }
}
