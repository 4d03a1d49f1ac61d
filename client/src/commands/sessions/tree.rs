//! `ollmctl sessions tree` and `label`: all branches of a session, drawn with box characters, and names of records.

use std::collections::HashMap;

use clap::Args;
use ollm_protocol::content::{RecordKind, TreeCounts, TreeNode};
use ollm_protocol::method::{SessionLabel, SessionTree};
use ollm_protocol::methods::session::branches::{
    SessionLabelParams, SessionLabelResult, SessionTreeParams,
};
use ollm_protocol::{Seq, sanitize};
use serde_json::Value;

use crate::args::parse_seq;
use crate::args::session::{OptionalSessionArg, SessionFlag};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::completion;
use crate::project::session_or_current;
use crate::render::table::clip;
use crate::render::units::counted;
use crate::render::{RenderOptions, Style, wire_name};

/// The command that helps if a label is not given as it should be.
const LABEL_HINT: &str = "ollmctl sessions label --help";
/// Nodes of one page.
const PAGE_NODES: u32 = 1000;

/// Show all branches of a session as a tree; a star marks the active branch.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line has the number of a record, which `sessions branch`, `fork` and `label` take. The branch that goes on stays \
in its column; the others are drawn before it.

Examples:
  ollmctl sessions tree
  ollmctl sessions tree last --all --json")]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// Show also what the daemon records for itself, such as context heads and token usage.
    #[arg(long)]
    all: bool,
}

/// Name a record, so that `sessions tree` shows the name; an empty name removes it.
#[derive(Debug, Args)]
#[command(
    override_usage = "ollmctl sessions label [OPTIONS] [SESSION] <N> <NAME>",
    after_help = "\
Examples:
  ollmctl sessions label 12 'before the rewrite'
  ollmctl sessions label last 12 'before the rewrite'"
)]
pub(crate) struct LabelArgs {
    /// The session, unless it is the current one, the number of the record as in `sessions tree`, and the name.
    #[arg(value_name = "WORD", required = true, num_args = 2..=3, add = completion::sessions())]
    words: Vec<String>,
    #[command(flatten)]
    session: SessionFlag,
}

pub(super) fn run(args: &TreeArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("sessions tree", ctx)?;
    let mut params = SessionTreeParams { session_id, limit: Some(PAGE_NODES), cursor: None };
    let (mut nodes, mut joined): (Vec<TreeNode>, Vec<Value>) = (Vec::new(), Vec::new());
    loop {
        let reply = ctx.call::<SessionTree>(&params)?;
        let mut json = if ctx.json() { reply.to_json() } else { Value::Null };
        if let Some(Value::Array(page)) = json.get_mut("data").map(Value::take) {
            joined.extend(page);
        }
        let page = reply.value;
        nodes.extend(page.data);
        params.cursor = page.next_cursor;
        if params.cursor.is_some() {
            continue;
        }
        if ctx.json() {
            json["data"] = Value::Array(joined);
            return ctx.print_json(&json);
        }
        let text = render(&nodes, page.leaf, &page.counts, args.all, &ctx.render_options());
        return ctx.print_text(&text);
    }
}

pub(super) fn label(args: &LabelArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let (session, seq, name) = match args.words.as_slice() {
        [session, seq, name] if args.session.given().is_none() => {
            (Some(session.as_str()), seq, name)
        }
        [seq, name] => (args.session.given(), seq, name),
        _ => return Err(CommandError::usage("a number and a name are needed", LABEL_HINT)),
    };
    let seq = parse_seq(seq).map_err(|problem| CommandError::usage(problem, LABEL_HINT))?;
    let session_id = session_or_current(session, "sessions label", ctx)?;
    let label = Some(name.clone());
    ctx.show::<SessionLabel>(&SessionLabelParams { session_id, seq, label }, render_label)
}

fn render_label(result: &SessionLabelResult, _: &RenderOptions) -> String {
    let SessionLabelResult { seq, label, changed } = result;
    let already = if *changed { "" } else { " already" };
    match label.as_deref().map(sanitize::one_line) {
        Some(label) => format!("#{seq} is named{already}: {label}\n"),
        None => format!("#{seq} has no name{already}\n"),
    }
}

/// A line that is still to be drawn: a node, and what is left of it and of those behind it.
struct PendingLine {
    at: usize,
    first: String,
    rest: String,
}

/// A line of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct TreeRow {
    /// The branches on the left of the node.
    pub(in crate::commands) prefix: String,
    /// The position of the node among those that were given.
    pub(in crate::commands) at: usize,
    /// Set for the node of the active leaf, or the nearest one before it.
    pub(in crate::commands) is_leaf: bool,
}

/// Returns the lines of a tree, whose nodes are in the order of the log. The branch that goes on stays in its column; the
/// others come before it. Records that the daemon wrote for itself are left out unless `all` is set.
pub(in crate::commands) fn tree_rows(
    nodes: &[TreeNode],
    leaf: Option<Seq>,
    all: bool,
) -> Vec<TreeRow> {
    let drawn = DrawnTree::new(nodes, leaf, all);
    let mut rows = Vec::with_capacity(nodes.len());
    let mut pending = Vec::new();
    drawn.push_children(&drawn.roots, "", &mut pending);
    while let Some(PendingLine { mut at, first, rest }) = pending.pop() {
        let mut prefix = first;
        loop {
            rows.push(TreeRow { prefix, at, is_leaf: drawn.leaf == Some(at) });
            prefix = rest.clone();
            match drawn.children[at].as_slice() {
                [only] => at = *only,
                children => {
                    drawn.push_children(children, &rest, &mut pending);
                    break;
                }
            }
        }
    }
    rows
}

/// Draws the tree.
fn render(
    nodes: &[TreeNode],
    leaf: Option<Seq>,
    counts: &TreeCounts,
    all: bool,
    options: &RenderOptions,
) -> String {
    let mut out = String::new();
    for row in tree_rows(nodes, leaf, all) {
        let room = options.width.saturating_sub(row.prefix.chars().count());
        out.push_str(&Style::Faint.paint(&row.prefix));
        out.push_str(&line(&nodes[row.at], row.is_leaf, room));
        out.push('\n');
    }
    if nodes.is_empty() {
        return "the session has no records yet\n".to_owned();
    }
    let branches = counts.branches;
    let counted_branches =
        if branches == 1 { "1 branch".to_owned() } else { format!("{branches} branches") };
    let records = counted(counts.nodes, "record");
    let end = if leaf.is_none() { "; the leaf is before the first record" } else { "" };
    out.push_str(&Style::Faint.paint(&format!("{records} on {counted_branches}{end}")));
    out.push('\n');
    out
}

/// The nodes to draw, each with its children, by their positions.
struct DrawnTree<'a> {
    nodes: &'a [TreeNode],
    children: Vec<Vec<usize>>,
    roots: Vec<usize>,
    /// The drawn node of the active leaf, or the nearest one before it.
    leaf: Option<usize>,
}

impl<'a> DrawnTree<'a> {
    fn new(nodes: &'a [TreeNode], leaf: Option<Seq>, all: bool) -> Self {
        let children = vec![Vec::new(); nodes.len()];
        let mut tree = Self { nodes, children, roots: Vec::new(), leaf: None };
        // The drawn node of each record: its own, or the nearest one before it.
        let mut place: HashMap<Seq, Option<usize>> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let parent = node.parent.and_then(|parent| place.get(&parent).copied()).flatten();
            if !all && node.label.is_none() && is_bookkeeping(node) {
                place.insert(node.seq, parent);
                continue;
            }
            match parent {
                Some(parent) => tree.children[parent].push(at),
                None => tree.roots.push(at),
            }
            place.insert(node.seq, Some(at));
        }
        tree.leaf = leaf.and_then(|leaf| place.get(&leaf).copied()).flatten();
        tree
    }

    /// Adds the lines of children. The branch that continues is drawn last, in the column of its parent.
    fn push_children(&self, children: &[usize], prefix: &str, pending: &mut Vec<PendingLine>) {
        let active = children.iter().position(|at| self.nodes[*at].active);
        let Some(trunk) = active.or(children.len().checked_sub(1)) else { return };
        let trunk_line = |at| PendingLine { at, first: prefix.to_owned(), rest: prefix.to_owned() };
        pending.push(trunk_line(children[trunk]));
        let side = |(_, at): (usize, &usize)| PendingLine {
            at: *at,
            first: format!("{prefix}├─ "),
            rest: format!("{prefix}│  "),
        };
        let others = children.iter().enumerate().filter(|(place, _)| *place != trunk);
        let mut others: Vec<PendingLine> = others.map(side).collect();
        others.reverse();
        pending.append(&mut others);
    }
}

/// Returns the line of a node without its branches.
fn line(node: &TreeNode, is_leaf: bool, width: usize) -> String {
    let star = if node.active { '*' } else { ' ' };
    let name = node.role.map_or_else(|| wire_name(node.kind), |role| role.as_str().to_owned());
    let label = node.label.as_deref().map(sanitize::one_line);
    let label = label.map_or_else(String::new, |label| format!("  [{label}]"));
    let here = if is_leaf { "  <- here" } else { "" };
    let fixed = format!("{star} #{} {name}: ", node.seq);
    let room =
        width.saturating_sub(fixed.chars().count() + label.chars().count() + here.chars().count());
    let text = clip(&sanitize::one_line(&node.text), room.max(8));
    let style = node.role.map_or(Style::Faint, Style::of_role);
    let name = style.paint(&name);
    let (label, here) = (Style::Strong.paint(&label), Style::Strong.paint(here));
    format!("{star} #{} {name}: {}{label}{here}", node.seq, text.trim_end())
}

/// Returns whether the daemon recorded a node for itself.
fn is_bookkeeping(node: &TreeNode) -> bool {
    matches!(node.kind, RecordKind::Epoch | RecordKind::Usage | RecordKind::Delta)
        || node.kind == RecordKind::Custom && node.text.starts_with("ollm.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Exit;
    use crate::testing::{SESSION_ID, plain, run_against};

    fn nodes(rows: &[(u64, Option<u64>, &str, &str, bool)]) -> Vec<TreeNode> {
        let node = |(seq, parent, kind, text, active): &(u64, Option<u64>, &str, &str, bool)| {
            let role = (*kind == "message").then_some("user");
            serde_json::from_value(json!({
                "seq": seq, "parent": parent, "type": kind, "role": role, "text": text,
                "active": active, "children": 0,
            }))
            .unwrap()
        };
        rows.iter().map(node).collect()
    }

    #[test]
    fn session_is_not_given_twice() {
        for line in [
            &["sessions", "label", "last", "12", "x", "--session", SESSION_ID][..],
            &["sessions", "options", "last", "--session", SESSION_ID],
        ] {
            let run = run_against(line, |_, _| None);
            assert_eq!(run.error.as_ref().unwrap().exit(), Exit::Usage, "{line:?}");
            assert!(run.calls.is_empty(), "{line:?}");
        }
    }

    #[test]
    fn branch_that_goes_on_keeps_its_column() {
        let mut nodes = nodes(&[
            (1, None, "message", "one", true),
            (2, Some(1), "epoch", "start", true),
            (3, Some(2), "message", "two", true),
            (4, Some(3), "message", "left", false),
            (5, Some(4), "message", "left too", false),
            (6, Some(4), "message", "right too", false),
            (7, Some(3), "message", "three", true),
            (8, None, "message", "another beginning", false),
        ]);
        nodes[2].label = Some("here\u{1b}[31m".to_owned());
        let counts = TreeCounts { nodes: 8, active: 4, branches: 4, labels: 1 };
        let text =
            render(&nodes, Some(Seq(7)), &counts, false, &crate::testing::render_options(80));
        let expected = "\
├─   #8 user: another beginning
* #1 user: one
* #3 user: two  [here]
├─   #4 user: left
│  ├─   #5 user: left too
│    #6 user: right too
* #7 user: three  <- here
8 records on 4 branches
";
        assert_eq!(plain(&text), expected);
    }
}
