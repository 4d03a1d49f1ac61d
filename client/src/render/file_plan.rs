//! Lines for the plan and the results of files that the daemon puts back.

use ollm_protocol::content::{
    FileAction, FileLoss, FilePlan, FileStatus, PlannedFile, UnrecordedCall,
};
use ollm_protocol::sanitize;

use super::Style;
use super::units::counted;

/// The files that a remark names.
const MAX_NAMED: usize = 5;

/// Returns what happens or happened to each file, one a line.
pub(crate) fn plan_lines(plan: &FilePlan) -> String {
    let mut text = String::new();
    for file in &plan.files {
        let (verb, path) = (verb_of(file, plan.applied), sanitize::one_line(&file.path));
        let reason = file.reason.as_deref().map(sanitize::one_line).or_else(|| losses_of(file));
        let reason = reason.map(|reason| format!(" ({reason})"));
        text.push_str(&format!(
            "  {verb:<11} {path}{}\n",
            Style::Faint.paint(&reason.unwrap_or_default())
        ));
    }
    if plan.unlisted > 0 {
        text.push_str(&format!("  ... and {}\n", counted(plan.unlisted, "more file")));
    }
    for (call, seqs) in by_tool(&plan.unrecorded) {
        let tool = sanitize::one_line(&call.tool);
        let what = match call.omitted {
            Some(count) => format!("{} that {tool} wrote without a record", counted(count, "file")),
            None if call.unfinished => format!("what {tool} wrote: its result is not recorded"),
            None => format!("what {tool} wrote, if anything: it left no record"),
        };
        text.push_str(&format!("  not undoable  {what} {}\n", Style::Faint.paint(&seqs)));
    }
    for kept in &plan.kept {
        let (path, file) = (sanitize::one_line(&kept.path), sanitize::one_line(&kept.file));
        text.push_str(&match path.is_empty() {
            true => format!("  kept        {file}: the session did not write it\n"),
            false => format!("  kept        {path}: a content that is nowhere else is in {file}\n"),
        });
    }
    if plan.files.is_empty() && plan.unrecorded.is_empty() {
        text.push_str("  no files\n");
    }
    text
}

fn verb_of(file: &PlannedFile, applied: bool) -> &'static str {
    match (file.status, file.action) {
        (FileStatus::PutBack, Some(FileAction::Remove)) if applied => "removed",
        (FileStatus::PutBack, Some(FileAction::Remove)) => "remove",
        (FileStatus::PutBack, Some(FileAction::Create)) if applied => "recreated",
        (FileStatus::PutBack, Some(FileAction::Create)) => "recreate",
        (FileStatus::PutBack, _) => "put back",
        (FileStatus::Unchanged, _) => "unchanged",
        (FileStatus::Conflict, _) => "conflict",
        (FileStatus::Unknown, _) => "unknown",
        (FileStatus::Outside, _) => "outside",
        (FileStatus::InGit, _) => "in .git",
        (FileStatus::Failed, _) => "failed",
    }
}

/// Returns what a file loses in words; `None` if it keeps everything.
fn losses_of(file: &PlannedFile) -> Option<String> {
    let word = |loss: &FileLoss| match loss {
        FileLoss::HardLinks => "its hard links",
        FileLoss::Group => "its group",
        FileLoss::SpecialBits => "its set-ID bits",
        FileLoss::Acl => "its access control list",
        FileLoss::ExtendedAttributes => "extended attributes",
    };
    let words: Vec<&str> = file.loses.iter().map(word).collect();
    (!words.is_empty()).then(|| format!("loses {}", words.join(", ")))
}

/// Returns the calls of each tool as one, with their records.
fn by_tool(calls: &[UnrecordedCall]) -> Vec<(UnrecordedCall, String)> {
    let mut tools: Vec<(UnrecordedCall, String)> = Vec::new();
    for call in calls {
        let same = |(known, _): &&mut (UnrecordedCall, String)| {
            known.tool == call.tool
                && known.omitted.is_some() == call.omitted.is_some()
                && known.unfinished == call.unfinished
        };
        let seq = format!("#{}", call.seq);
        match tools.iter_mut().find(same) {
            Some((known, seqs)) => {
                seqs.push_str(&format!(", {seq}"));
                known.omitted = known.omitted.map(|count| count + call.omitted.unwrap_or_default());
            }
            None => tools.push((call.clone(), seq)),
        }
    }
    tools
}

/// Returns the first call of a plan that was started and whose result is not recorded: nobody knows what it wrote.
pub(crate) fn unfinished_call(plan: &FilePlan) -> Option<&UnrecordedCall> {
    plan.unrecorded.iter().find(|call| call.unfinished)
}

/// Returns the names of the files that a plan would put back, on one line; `None` if there are none.
pub(crate) fn names_to_put_back(plan: &FilePlan) -> Option<String> {
    let files = plan.files.iter().filter(|file| file.status == FileStatus::PutBack);
    let names: Vec<String> =
        files.take(MAX_NAMED).map(|file| sanitize::one_line(&file.path)).collect();
    let more = plan.counts.put_back.saturating_sub(names.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}
