//! What an import carried over, and what not.

use std::collections::BTreeMap;

use ollm_protocol::content::{ImportLoss, ImportReport, Session};
use ollm_protocol::sanitize;

use super::View;
use super::number::{counted, grouped};
use super::{sessions, table};

/// The session, the counts and the losses of one file.
pub(crate) fn report(
    file: &str,
    session: Option<&Session>,
    report: &ImportReport,
    dry_run: bool,
    view: &View,
) -> String {
    let format = sanitize::one_line(&report.format);
    let file = sanitize::one_line(file);
    let done = match (report.already_imported, dry_run) {
        (true, _) => "was imported before:",
        (false, true) => "would be imported:",
        (false, false) => "imported:",
    };
    let mut text = format!("{file} ({format}) {done}\n");
    if let Some(session) = session {
        let id = session.session_id.to_string();
        let title = table::clip(&sessions::title(session), view.width.saturating_sub(id.len() + 4));
        text.push_str(&format!("  {id}  {title}\n"));
    }
    let several = report.imported_records > report.source_records;
    text.push_str(&format!(
        "  {} in the file, {} recorded{}\n",
        counted(report.source_records, "record"),
        grouped(report.imported_records),
        if several { " (some become several)" } else { "" },
    ));
    if !report.losses.is_empty() {
        text.push_str("  not carried over, or only in part:\n");
        text.push_str(&losses(&report.losses));
    }
    if let Some(session) = session.filter(|_| !dry_run || report.already_imported) {
        let id = sessions::short_id(&session.session_id);
        text.push_str(&format!("  next: ollmctl sessions view {id}\n"));
    }
    text
}

/// Losses of one kind and reason together, the most frequent first, with the lines of the first few.
fn losses(losses: &[ImportLoss]) -> String {
    const LINES_SHOWN: usize = 3;
    let mut groups: BTreeMap<(&str, &str), Vec<Option<u64>>> = BTreeMap::new();
    for loss in losses {
        groups.entry((&loss.what, &loss.reason)).or_default().push(loss.line);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.len()));
    let mut text = String::new();
    for ((what, reason), lines) in groups {
        let shown: Vec<String> =
            lines.iter().flatten().take(LINES_SHOWN).map(ToString::to_string).collect();
        let more = if lines.len() > LINES_SHOWN { ", ..." } else { "" };
        let place = match shown.len() {
            0 => String::new(),
            1 if more.is_empty() => format!(" (line {})", shown[0]),
            _ => format!(" (lines {}{more})", shown.join(", ")),
        };
        let times = if lines.len() > 1 {
            format!("{} x ", grouped(lines.len() as u64))
        } else {
            String::new()
        };
        text.push_str(&format!(
            "    {times}{}: {}{place}\n",
            sanitize::one_line(what),
            sanitize::one_line(reason),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session_named;

    fn loss(line: u64, what: &str) -> ImportLoss {
        ImportLoss { line: Some(line), what: what.into(), reason: "has no counterpart".into() }
    }

    #[test]
    fn a_record_that_becomes_several_is_no_surprise_and_titles_fit() {
        let view = View { width: 60, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        let id = "0192f0c1-9a3b-7000-8000-000000000001";
        let session = session_named(id, "Untangle the parser of the configuration");
        let import = ImportReport {
            format: "pi v1".into(),
            source_records: 3,
            imported_records: 5,
            already_imported: false,
            losses: Vec::new(),
        };
        assert_eq!(
            report("talk.jsonl", Some(&session), &import, true, &view),
            format!(
                "talk.jsonl (pi v1) would be imported:\n  {id}  Untangle the parser…\n  \
                 3 records in the file, 5 recorded (some become several)\n"
            )
        );
    }

    #[test]
    fn losses_are_grouped_and_the_most_frequent_comes_first() {
        let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        let mut losses = vec![loss(9, "image")];
        losses.extend((1..=5).map(|line| loss(line, "thinking_level_change")));
        let session = session_named("0192f0c1-9a3b-7000-8000-000000000001", "Untangle");
        let mut import = ImportReport {
            format: "pi v1".into(),
            source_records: 1003,
            imported_records: 997,
            already_imported: false,
            losses,
        };
        assert_eq!(
            report("talk.jsonl", Some(&session), &import, false, &view),
            "\
talk.jsonl (pi v1) imported:
  0192f0c1-9a3b-7000-8000-000000000001  Untangle
  1,003 records in the file, 997 recorded
  not carried over, or only in part:
    5 x thinking_level_change: has no counterpart (lines 1, 2, 3, ...)
    image: has no counterpart (line 9)
  next: ollmctl sessions view 0192f0c1-9a3b
"
        );
        import.already_imported = true;
        import.losses.clear();
        let again = report("talk.jsonl", None, &import, false, &view);
        assert_eq!(
            again,
            "talk.jsonl (pi v1) was imported before:\n  1,003 records in the file, 997 recorded\n"
        );
    }
}
