//! Learning a template from rendered probes: conversations whose texts are found again in the server's prompts.
//!
//! A learned template is checked against longer conversations with texts that are difficult for tokenizers. It is used
//! only if it reproduces their prompts byte for byte and token for token.
//! Must not know how prompts are rendered.

use ollm_protocol::content::{ContextFunction, ContextMessage, ContextToolCall, Role};
use serde_json::{Value, json};

use super::calls::{ArgumentForm, CallForm, JsonStyle, split_at};
use super::{Neighbor, RoleTrims, Seam, Template, Trim, TrimmedChars};
use crate::tokens::tokenizer::Tokenizer;

/// Texts that are searched for in prompts; no template contains them.
const MARKERS: [&str; 6] =
    ["zqtextzero", "zqtextone", "zqtexttwo", "zqtextthree", "zqtextfour", "zqtextfive"];
/// Names of called tools that are searched for in prompts.
const TOOLS: [&str; 2] = ["zqnameone", "zqnametwo"];
/// Texts for checks that tokenizers and templates treat in special ways.
const DIFFICULT: [&str; 7] = [
    "It's done. \n",
    "\n\n  12345 items...\n\n",
    " fn main() {\n\tlet x = \"é字\";\n}",
    "!?\r\n",
    "  two  spaces  ",
    "\u{a0}wide \u{2003}\u{3000}",
    "x",
];
/// White space around a text. The outermost character belongs to all sets of [`super::TrimmedChars`], and the innermost
/// to the largest set alone, so that what remains of it is the set.
const TRIMMED: [&str; 2] = ["\n \u{b}\u{3000}", "\u{3000}\u{b} \n"];

// The positions of the probes. Probes whose names begin with CHECK are used only for checks.
const USER: usize = 0;
const SYSTEM: usize = 1;
const ASSISTANT_LAST: usize = 2;
const CHECK_SYSTEM: usize = 3;
const CHECK: usize = 4;
const NO_SYSTEM: usize = 5;
const TRIMMED_SYSTEM: usize = 6;
const TRIMMED_TURNS: usize = 7;
const ONE_CALL: usize = 8;
const TWO_CALLS: usize = 9;
const RESULT_LAST: usize = 10;
const CHECK_TWO_CALLS: usize = 11;
const CHECK_CALL_AFTER_TEXT: usize = 12;
const CHECK_SINGLE_CALLS: usize = 13;
const TRIMMED_RESULT: usize = 14;
const CALL_AFTER_TEXT: usize = 15;

/// Returns the conversations to render, in the order in which [`learn`] expects the prompts.
pub(crate) fn probes(with_calls: bool) -> Vec<Vec<ContextMessage>> {
    use Role::{Assistant as A, System as S, Tool as T, User as U};
    let conversation = |roles: &[Role], texts: &[&str]| -> Vec<ContextMessage> {
        let texts = texts.iter().cycle();
        roles.iter().zip(texts).map(|(role, text)| message(*role, text)).collect()
    };
    let marked = |roles: &[Role], first: usize| conversation(roles, &MARKERS[first..]);
    let difficult = |roles: &[Role]| conversation(roles, &DIFFICULT);
    let mut probes = vec![
        marked(&[U], 1),
        marked(&[S, U, A, U], 0),
        marked(&[U, A], 1),
        difficult(&[S, U, A, U, A, U, A, U]),
        difficult(&[U, A, U, A, U]),
        marked(&[U, A, U], 1),
        with_white_space(marked(&[S, U, A, U], 0)),
        with_white_space(marked(&[U, A, U], 1)),
    ];
    if !with_calls {
        return probes;
    }
    let mut one = marked(&[U, A, T, A, U], 1);
    one[1] = call_message("", &[marked_arguments()]);
    let mut two = marked(&[U, A, T, T, U], 1);
    two[1] = call_message("", &[marked_arguments(), marked_arguments()]);
    let mut result_last = marked(&[U, A, T], 1);
    result_last[1] = call_message("", &[marked_arguments()]);
    let list = json!({ "b": "x\ny", "a": [1, -2, null] });
    let path = json!({ "path": "src/<a> & b.rs", "ok": true });
    let mut check_two = difficult(&[S, U, A, T, T, A, U, A, T]);
    check_two[2] = call_message("", &[json!({}), list.clone()]);
    check_two[7] = call_message("", std::slice::from_ref(&path));
    let mut check_after_text = difficult(&[U, A, T, U]);
    check_after_text[1] = call_message("Let me see.", &[json!({ "path": "é" })]);
    let mut check_single = difficult(&[S, U, A, T, A, U, A, T]);
    check_single[2] = call_message("", &[list]);
    check_single[6] = call_message("", &[path]);
    // Other ids and names than in the marked probes, so that a template that writes them fails the checks.
    let checks = check_two.iter_mut().chain(&mut check_after_text).chain(&mut check_single);
    for message in checks {
        message.tool_calls.iter_mut().for_each(|call| call.id.make_ascii_uppercase());
        message.tool_call_id.iter_mut().for_each(|id| id.make_ascii_uppercase());
        message.tool_name.iter_mut().for_each(|name| TOOLS[1].clone_into(name));
    }
    let mut trimmed = with_white_space(marked(&[U, A, T, A, U], 1));
    trimmed[1] = one[1].clone();
    let mut after_text = marked(&[U, A, T, U], 1);
    after_text[1] = call_message(MARKERS[2], &[marked_arguments()]);
    probes.extend([one, two, result_last, check_two, check_after_text, check_single, trimmed]);
    probes.push(after_text);
    probes
}

/// Puts white space around every text.
fn with_white_space(mut messages: Vec<ContextMessage>) -> Vec<ContextMessage> {
    let [before, after] = TRIMMED;
    for message in &mut messages {
        message.content = format!("{before}{}{after}", message.content);
    }
    messages
}

/// Learns a template from the server's renderings of the probes; `None` if the template is not understood.
///
/// A missing prompt (`None`) is a probe that the server refused.
pub(crate) fn learn(tokenizer: &Tokenizer, prompts: &[Option<String>]) -> Option<Template> {
    let learner = Learner { tokenizer, probes: probes(prompts.len() > ONE_CALL), prompts };
    // Some templates move the system message, or write tools in its place, so conversations without one are tried
    // separately.
    let template =
        learner.without_calls(SYSTEM, TRIMMED_SYSTEM, &[CHECK_SYSTEM, CHECK]).or_else(|| {
            let template = learner.without_calls(NO_SYSTEM, TRIMMED_TURNS, &[CHECK])?;
            Some(learner.with_dropped_system(&template).unwrap_or(template))
        })?;
    let with_calls = learner.with_calls(&template);
    Some(with_calls.unwrap_or(template))
}

/// The probes with their prompts.
struct Learner<'a> {
    tokenizer: &'a Tokenizer,
    probes: Vec<Vec<ContextMessage>>,
    prompts: &'a [Option<String>],
}

/// The seams found so far.
type Seams = Vec<(Neighbor, Neighbor, Seam)>;

impl Learner<'_> {
    fn prompt(&self, probe: usize) -> Option<&str> {
        self.prompts.get(probe)?.as_deref()
    }

    /// Learns conversations without tools from one probe and the trimming from another, and checks the template against
    /// others.
    fn without_calls(&self, probe: usize, trimmed: usize, checks: &[usize]) -> Option<Template> {
        let mut seams = Vec::new();
        self.add_seams(probe, None, &mut seams)?;
        self.add_seams(USER, None, &mut seams)?;
        // The server may refuse a conversation that ends with the model's message, or continue that message.
        let n_seams = seams.len();
        if self.add_seams(ASSISTANT_LAST, None, &mut seams).is_none() {
            seams.truncate(n_seams);
        }
        let mut template = Template {
            seams,
            calls: None,
            results: None,
            trims: RoleTrims::default(),
            is_system_dropped: false,
        };
        template.trims = self.trims(&template, trimmed)?;
        checks.iter().all(|check| self.is_reproduced(&template, *check)).then_some(template)
    }

    /// Extends a template by system messages, if it writes conversations as if they had none.
    fn with_dropped_system(&self, template: &Template) -> Option<Template> {
        // The turns of both probes have the same texts.
        if self.prompt(SYSTEM)? != self.prompt(NO_SYSTEM)? {
            return None;
        }
        let start = template.seam(Neighbor::Start, Neighbor::User)?.clone();
        let mut seams = template.seams.clone();
        seams.push((Neighbor::Start, Neighbor::System, Seam::default()));
        seams.push((Neighbor::System, Neighbor::User, start));
        let found = Template { seams, is_system_dropped: true, ..template.clone() };
        self.is_reproduced(&found, CHECK_SYSTEM).then_some(found)
    }

    /// Finds the trimming of each role's texts in a probe with white space around them, or returns `None` if the
    /// template does not cover its prompt.
    fn trims(&self, template: &Template, probe: usize) -> Option<RoleTrims> {
        let (prompt, messages) = (self.prompt(probe)?, &self.probes[probe]);
        let mut trims = template.trims;
        let (mut written, mut before) = (String::new(), Neighbor::Start);
        for (at, message) in messages.iter().enumerate() {
            let kind = template.kind(message);
            let after = messages.get(at + 1).map_or(Neighbor::End, |next| template.kind(next));
            written.push_str(&template.seam(before, kind)?.text());
            let end = template.seam(kind, after)?.text();
            let body = if kind == Neighbor::Calls {
                template.body(message)?.into_owned()
            } else {
                let until = |body: &&str| prompt.starts_with(&format!("{written}{body}{end}"));
                let trim = Trim::all().find(|trim| until(&trim.apply(&message.content)))?;
                trims.set(message.role, trim);
                trim.apply(&message.content).to_owned()
            };
            written.push_str(&body);
            before = kind;
        }
        Some(trims)
    }

    /// Extends a template by tool calls and results, if they are understood.
    fn with_calls(&self, template: &Template) -> Option<Template> {
        let prompt = self.prompt(ONE_CALL)?;
        let forms = ArgumentForm::candidates(prompt, TOOLS[0], &marked_arguments());
        forms.iter().find_map(|(form, text)| self.with_arguments(template, form, text))
    }

    /// Extends a template by calls whose arguments have a form; `text` is their text in the prompts.
    fn with_arguments(
        &self,
        template: &Template,
        form: &ArgumentForm,
        text: &str,
    ) -> Option<Template> {
        let several = self.with_call_form(template, form, text, true);
        let single = || self.with_call_form(template, form, text, false);
        let checked = |template: &Template, check: usize| {
            let mut forms = self.result_forms(template, form.style());
            forms.find(|found| self.is_reproduced(found, check))
        };
        // A model that makes single calls only refuses conversations with two.
        let found = several
            .and_then(|template| checked(&template, CHECK_TWO_CALLS))
            .or_else(|| checked(&single()?, CHECK_SINGLE_CALLS))?;
        let beside_text = self.with_calls_after_text(&found, text);
        let beside_text =
            beside_text.filter(|found| self.is_reproduced(found, CHECK_CALL_AFTER_TEXT));
        Some(beside_text.unwrap_or(found))
    }

    /// Extends a template by calls in a message with text, which some templates write without the calls.
    fn with_calls_after_text(&self, template: &Template, arguments: &str) -> Option<Template> {
        let mut found = template.clone();
        let calls = found.calls.as_mut()?;
        let prompt = self.prompt(CALL_AFTER_TEXT)?;
        let parts = [MARKERS[1], MARKERS[2], TOOLS[0], arguments, MARKERS[3]];
        if prompt.contains(TOOLS[0]) {
            calls.open_behind_text = Some(split_at(prompt, &parts)?[2].to_owned());
        } else {
            calls.is_dropped_behind_text = true;
        }
        let mut seams = std::mem::take(&mut found.seams);
        let kind_of = |message: &ContextMessage| found.kind(message);
        self.add_seams_of(CALL_AFTER_TEXT, Some(arguments), &mut seams, kind_of)?;
        found.seams = seams;
        Some(found)
    }

    /// Returns a template with each form that the results of tools may have.
    fn result_forms(
        &self,
        template: &Template,
        style: JsonStyle,
    ) -> impl Iterator<Item = Template> {
        let verbatim = self.trims(template, TRIMMED_RESULT);
        let verbatim = verbatim.map(|trims| Template { trims, results: None, ..template.clone() });
        let template = template.clone();
        let as_json = TrimmedChars::ALL.into_iter().map(move |set| {
            let tool = Trim { start: set, end: set };
            let trims = RoleTrims { tool, ..template.trims };
            Template { trims, results: Some(style), ..template.clone() }
        });
        verbatim.into_iter().chain(as_json)
    }

    /// Reads the form and the seams of calls from the probes, with several calls in one message or with single calls.
    fn with_call_form(
        &self,
        template: &Template,
        form: &ArgumentForm,
        arguments: &str,
        with_several: bool,
    ) -> Option<Template> {
        let one_call = [MARKERS[1], TOOLS[0], arguments, MARKERS[3]];
        let pieces = split_at(self.prompt(ONE_CALL)?, &one_call)?;
        let to_assistant = template.seam(Neighbor::User, Neighbor::Assistant)?.text();
        let mut calls = CallForm {
            open: pieces[1].strip_prefix(&to_assistant)?.to_owned(),
            open_behind_text: None,
            is_dropped_behind_text: false,
            middle: pieces[2].to_owned(),
            between: None,
            arguments: form.clone(),
        };
        if with_several {
            let prompt = self.prompt(TWO_CALLS)?;
            let two_calls = [MARKERS[1], TOOLS[0], arguments, TOOLS[1], arguments, MARKERS[3]];
            calls.between = split_at(prompt, &two_calls).map(|pieces| pieces[3].to_owned());
        }
        let mut seams = template.seams.clone();
        for probe in [ONE_CALL, TWO_CALLS, RESULT_LAST] {
            if with_several || probe != TWO_CALLS {
                self.add_seams(probe, Some(arguments), &mut seams)?;
            }
        }
        Some(Template { seams, calls: Some(calls), results: None, ..template.clone() })
    }

    /// Adds the seams of a probe; `None` if its prompt is missing or contradicts a known seam.
    fn add_seams(&self, probe: usize, arguments: Option<&str>, seams: &mut Seams) -> Option<()> {
        self.add_seams_of(probe, arguments, seams, Neighbor::of)
    }

    /// The same for messages that are written as other kinds.
    fn add_seams_of(
        &self,
        probe: usize,
        arguments: Option<&str>,
        seams: &mut Seams,
        kind_of: impl Fn(&ContextMessage) -> Neighbor,
    ) -> Option<()> {
        let mut rest = self.prompt(probe)?;
        let mut before = Neighbor::Start;
        for message in &self.probes[probe] {
            let kind = kind_of(message);
            let end = if kind == Neighbor::Calls {
                // The text before the calls belongs to the form of calls.
                end_of_calls(rest, message, arguments?)?
            } else {
                let start = rest.find(&message.content)?;
                self.add_seam(before, kind, &rest[..start], seams)?;
                start + message.content.len()
            };
            rest = &rest[end..];
            before = kind;
        }
        self.add_seam(before, Neighbor::End, rest, seams)
    }

    fn add_seam(
        &self,
        before: Neighbor,
        after: Neighbor,
        text: &str,
        seams: &mut Seams,
    ) -> Option<()> {
        let known = seams.iter().find(|(a, b, _)| (*a, *b) == (before, after));
        if let Some((.., known)) = known {
            return (known.text() == text).then_some(());
        }
        let seam = match (before, after) {
            (Neighbor::Start, _) => Seam::start(self.tokenizer, text)?,
            (_, Neighbor::End) => Seam::new(text, "", 0),
            _ => Seam::between(self.tokenizer, text)?,
        };
        seams.push((before, after, seam));
        Some(())
    }

    /// Returns whether a template reproduces the prompt of a probe byte for byte and token for token.
    fn is_reproduced(&self, template: &Template, probe: usize) -> bool {
        let chunks = template.chunks(&self.probes[probe]);
        let (Some(prompt), Some(chunks)) = (self.prompt(probe), chunks) else { return false };
        let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        let counts = chunks
            .iter()
            .map(|chunk| i64::from(self.tokenizer.count(&chunk.text)) + i64::from(chunk.extra));
        text == prompt && counts.sum::<i64>() == i64::from(self.tokenizer.count_prompt(prompt))
    }
}

/// Returns the end of the last arguments of a message with calls.
fn end_of_calls(prompt: &str, message: &ContextMessage, arguments: &str) -> Option<usize> {
    message.tool_calls.iter().try_fold(0, |end, call| {
        let name = end + prompt[end..].find(&call.function.name)?;
        Some(name + prompt[name..].find(arguments)? + arguments.len())
    })
}

/// Returns arguments by whose text every argument form can be recognized.
fn marked_arguments() -> Value {
    json!({ "zqkey": "a<b>&c é", "aqkey": [1, { "d": null, "c": true }, "<"] })
}

fn call_message(text: &str, arguments: &[Value]) -> ContextMessage {
    let call = |(at, arguments): (usize, &Value)| ContextToolCall {
        id: call_id(at),
        function: ContextFunction {
            name: TOOLS[at % TOOLS.len()].to_owned(),
            arguments: arguments.clone(),
        },
    };
    let tool_calls = arguments.iter().enumerate().map(call).collect();
    ContextMessage { tool_calls, ..message(Role::Assistant, text) }
}

/// Returns an id of nine letters and digits, because templates of the Mistral family refuse other ids.
fn call_id(at: usize) -> String {
    format!("callno{at:03}")
}

fn message(role: Role, content: &str) -> ContextMessage {
    let is_tool = role == Role::Tool;
    ContextMessage {
        tool_name: is_tool.then(|| TOOLS[0].to_owned()),
        tool_call_id: is_tool.then(|| call_id(0)),
        ..ContextMessage::text(role, content)
    }
}
