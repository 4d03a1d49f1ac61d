//! `ollmctl doctor --store`: the check of everything on the disk, which the daemon makes.

use std::fmt::Write as _;

use ollm_protocol::method::StoreVerify;
use ollm_protocol::methods::store::{StoreFinding, StoreVerifyParams, StoreVerifyResult};
use ollm_protocol::sanitize;

use super::backup;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::Exit;
use crate::render::table::{self, TableColumn};
use crate::render::units::{bytes, counted, grouped};
use crate::render::{RenderOptions, Style, try_line};

/// The most findings that are shown.
const MAX_SHOWN: usize = 100;

/// Checks the store, and prints what is wrong and what takes space.
pub(super) fn run(repair: bool, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = StoreVerifyParams { repair };
    let reply = backup::call_with_meter::<StoreVerify>(&params, "reading everything", ctx)?;
    ctx.print(&reply, render)?;
    match reply.value.ok {
        true => Ok(()),
        false => Err(CommandError::Unwell { exit: Exit::Internal }),
    }
}

fn render(result: &StoreVerifyResult, options: &RenderOptions) -> String {
    let columns = [
        ("SPACE", TableColumn::Word),
        ("FILES", TableColumn::Number),
        ("SIZE", TableColumn::Number),
    ];
    let rows = result
        .space
        .iter()
        .map(|usage| [sanitize::one_line(&usage.kind), grouped(usage.files), bytes(usage.bytes)]);
    let mut text = table::render(options.width, &columns, rows);
    if !result.largest.is_empty() {
        let columns = [
            ("LARGEST SESSIONS", TableColumn::Word),
            ("SIZE", TableColumn::Number),
            ("TITLE", TableColumn::Prose),
        ];
        let rows = result.largest.iter().map(|one| {
            [one.session_id.to_string(), bytes(one.bytes), sanitize::one_line(&one.title)]
        });
        text.push('\n');
        text += &table::render(options.width, &columns, rows);
    }
    text.push('\n');
    for found in result.findings.iter().take(MAX_SHOWN) {
        text += &finding_lines(found);
    }
    let n_shown = result.findings.len().min(MAX_SHOWN) as u64;
    if result.finding_count > n_shown {
        let more = counted(result.finding_count - n_shown, "further finding");
        let _infallible = writeln!(text, "{more}");
    }
    let read = format!(
        "{} with {}",
        counted(result.sessions, "session"),
        counted(result.records, "record")
    );
    let _infallible = match (result.ok, result.finding_count) {
        (true, 0) => writeln!(text, "everything is whole: {read}"),
        (true, _) => writeln!(text, "nothing is lost: {read}"),
        (false, _) => {
            writeln!(text, "{}", Style::Bad.paint(&format!("not everything is whole: {read}")))
        }
    };
    text
}

/// Returns the file and the place of a finding, what is wrong, and what helps.
fn finding_lines(found: &StoreFinding) -> String {
    let level = match found.repaired {
        true => Style::Strong.paint("repaired:"),
        false => Style::Bad.paint(&format!("{}:", found.level.as_str())),
    };
    let at = found.offset.map_or_else(String::new, |offset| format!(", byte {offset}"));
    let mut text = format!("{level} {}{at}\n", sanitize::one_line(&found.path));
    let _infallible = writeln!(text, "  {}", sanitize::one_line(&found.text));
    if let Some(hint) = &found.hint {
        text += &try_line(hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::run_against;

    #[test]
    fn finding_is_shown_with_its_place_and_decides_about_the_exit_code() {
        let run = |ok: bool| {
            run_against(&["doctor", "--store"], move |method, params| {
                if method == "event.subscribe" {
                    return Some(json!(1));
                }
                assert_eq!((method, params), ("store.verify", &json!({})));
                let finding = json!({
                    "level": "problem", "path": "/h/x.jsonl", "offset": 7, "seq": 3,
                    "text": "record 3 is lost", "hint": "ollmctl sessions list",
                });
                let findings = if ok { json!([]) } else { json!([finding]) };
                Some(json!({
                    "ok": ok, "sessions": 1, "records": 9, "findings": findings,
                    "findingCount": u8::from(!ok), "largest": [],
                    "space": [{ "kind": "logs", "files": 1, "bytes": 2048 }],
                }))
            })
        };
        let whole = run(true);
        assert!(whole.error.is_none());
        assert!(whole.stdout.contains("2.0 KiB") && whole.stdout.contains("everything is whole"));
        let damaged = run(false);
        assert!(damaged.error.is_some());
        let lines =
            "problem: /h/x.jsonl, byte 7\n  record 3 is lost\n  try: ollmctl sessions list\n";
        assert!(damaged.stdout.contains(lines), "{}", damaged.stdout);
    }
}
