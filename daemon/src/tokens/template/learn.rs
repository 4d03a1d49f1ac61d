//! Learning a template: conversations of texts that are found again in the prompt that the server makes of them.
//!
//! What is learned is held against longer conversations with awkward texts; what does not give them byte for byte and
//! token for token is not used. Pure.

use ollm_protocol::content::{ContextFunction, ContextMessage, ContextToolCall, Role};
use serde_json::{Value, json};

use super::calls::{ArgumentForm, CallForm, JsonStyle};
use super::{Place, Seam, Template, Trim, Trims};
use crate::tokens::tokenizer::Tokenizer;

/// The texts that are looked for; no template holds them.
const MARKS: [&str; 6] =
    ["zqtextzero", "zqtextone", "zqtexttwo", "zqtextthree", "zqtextfour", "zqtextfive"];
/// The names of the tools that are called.
const NAMES: [&str; 2] = ["zqnameone", "zqnametwo"];
/// Texts that tokenizers and templates treat in special ways, for the checks.
const AWKWARD: [&str; 6] = [
    "It's done. \n",
    "\n\n  12345 items...\n\n",
    " fn main() {\n\tlet x = \"é字\";\n}",
    "!?\r\n",
    "  two  spaces  ",
    "x",
];
/// Probes of plain conversations; those of tools follow.
const N_PLAIN: usize = 6;

/// The conversations to render, in the order in which [`learn`] takes the prompts.
pub(crate) fn probes(with_calls: bool) -> Vec<Vec<ContextMessage>> {
    use Role::{Assistant as A, System as S, Tool as T, User as U};
    let marked = |roles: &[Role], first: usize| {
        let texts = MARKS[first..].iter();
        roles.iter().zip(texts).map(|(role, text)| message(*role, text)).collect::<Vec<_>>()
    };
    let awkward = |roles: &[Role]| {
        let texts = AWKWARD.iter().cycle();
        roles.iter().zip(texts).map(|(role, text)| message(*role, text)).collect::<Vec<_>>()
    };
    let mut all = vec![
        marked(&[U], 1),
        marked(&[S, U, A, U], 0),
        marked(&[U, A], 1),
        awkward(&[S, U, A, U, A, U, A, U]),
        awkward(&[U, A, U, A, U]),
        marked(&[U, A, U], 1),
    ];
    if !with_calls {
        return all;
    }
    let mut one = marked(&[U, A, T, A, U], 1);
    one[1] = calling("", &[arguments()]);
    let mut two = marked(&[U, A, T, T, U], 1);
    two[1] = calling(MARKS[2], &[arguments(), arguments()]);
    let mut last = marked(&[U, A, T], 1);
    last[1] = calling("", &[arguments()]);
    let mut check = awkward(&[S, U, A, T, T, A, U, A, T]);
    check[2] = calling("", &[json!({}), json!({ "b": "x\ny", "a": [1, -2, null] })]);
    check[7] = calling("", &[json!({ "path": "src/<a> & b.rs", "ok": true })]);
    let mut texts = awkward(&[U, A, T, U]);
    texts[1] = calling("Let me see.", &[json!({ "path": "é" })]);
    let mut single = awkward(&[S, U, A, T, A, U, A, T]);
    single[2] = calling("", &[json!({ "b": "x\ny", "a": [1, -2, null] })]);
    single[6] = calling("", &[json!({ "path": "src/<a> & b.rs", "ok": true })]);
    // A template that writes ids, or the names of tools beside their results, is one that is not understood.
    for message in check.iter_mut().chain(&mut texts).chain(&mut single) {
        message.tool_calls.iter_mut().for_each(|call| call.id.make_ascii_uppercase());
        message.tool_call_id.iter_mut().for_each(|id| id.make_ascii_uppercase());
        message.tool_name.iter_mut().for_each(|name| NAMES[1].clone_into(name));
    }
    all.extend([one, two, last, check, texts, single]);
    all
}

/// Learns a template from the prompts that the server made of the probes; `None` where it is not understood.
pub(crate) fn learn(tokenizer: &Tokenizer, prompts: &[Option<String>]) -> Option<Template> {
    let probes = probes(prompts.len() > N_PLAIN);
    // Where a system message is written depends on the place of others in some templates.
    let template = plain_form(tokenizer, &probes, prompts, (1, &[3, 4]))
        .or_else(|| plain_form(tokenizer, &probes, prompts, (5, &[4])))?;
    let calling = with_calls(tokenizer, &template, &probes, prompts);
    Some(calling.unwrap_or(template))
}

/// The template of conversations without tools, learned from one probe and held against others.
fn plain_form(
    tokenizer: &Tokenizer,
    probes: &[Vec<ContextMessage>],
    prompts: &[Option<String>],
    (shown, checks): (usize, &[usize]),
) -> Option<Template> {
    let prompt = |at: usize| prompts.get(at)?.as_deref();
    let mut plain = Learner { tokenizer, seams: Vec::new() };
    plain.take(&probes[shown], prompt(shown)?, None)?;
    plain.take(&probes[0], prompt(0)?, None)?;
    // A conversation that ends with the model's own words may be continued, or be refused.
    let before = plain.seams.len();
    if prompt(2).and_then(|prompt| plain.take(&probes[2], prompt, None)).is_none() {
        plain.seams.truncate(before);
    }
    let template =
        Template { seams: plain.seams, calls: None, results: None, trims: Trims::default() };
    Trims::plain().map(|trims| Template { trims, ..template.clone() }).find(|template| {
        checks.iter().all(|at| {
            prompt(*at).is_some_and(|prompt| gives(template, tokenizer, &probes[*at], prompt))
        })
    })
}

/// The template with what it makes of calls and results, where that holds.
fn with_calls(
    tokenizer: &Tokenizer,
    plain: &Template,
    probes: &[Vec<ContextMessage>],
    prompts: &[Option<String>],
) -> Option<Template> {
    let prompt = prompts.get(N_PLAIN)?.as_deref()?;
    let forms = ArgumentForm::shown(prompt, NAMES[0], &arguments());
    forms.iter().find_map(|shown| with_arguments(tokenizer, plain, probes, prompts, shown))
}

/// The same where the arguments of calls have a given form, beside which stands how a prompt shows them.
fn with_arguments(
    tokenizer: &Tokenizer,
    plain: &Template,
    probes: &[Vec<ContextMessage>],
    prompts: &[Option<String>],
    shown: &(ArgumentForm, String),
) -> Option<Template> {
    let style = shown.0.style();
    let holds = |template: &Template, at: usize| {
        let prompt = prompts.get(N_PLAIN + at).and_then(Option::as_deref);
        prompt.is_some_and(|prompt| gives(template, tokenizer, &probes[N_PLAIN + at], prompt))
    };
    let several = calling_form(tokenizer, plain, probes, prompts, shown, true);
    let single = || calling_form(tokenizer, plain, probes, prompts, shown, false);
    // A model that makes one call at a time refuses conversations with two.
    let mut found = several
        .and_then(|template| result_forms(&template, style).find(|template| holds(template, 3)))
        .or_else(|| result_forms(&single()?, style).find(|template| holds(template, 5)))?;
    if !holds(&found, 4)
        && let Some(form) = &mut found.calls
    {
        form.open_behind_text = None;
    }
    Some(found)
}

/// A template with each way in which results of tools may be written.
fn result_forms(template: &Template, style: JsonStyle) -> impl Iterator<Item = Template> {
    let trimmed = Trim::ALL
        .map(|tool| Template { trims: Trims { tool, ..template.trims }, ..template.clone() });
    trimmed.into_iter().flat_map(move |template| {
        [
            Template { results: None, ..template.clone() },
            Template { results: Some(style), ..template },
        ]
    })
}

/// What the probes show of calls, with several calls in one message or without.
fn calling_form(
    tokenizer: &Tokenizer,
    plain: &Template,
    probes: &[Vec<ContextMessage>],
    prompts: &[Option<String>],
    (arguments, args): &(ArgumentForm, String),
    with_several: bool,
) -> Option<Template> {
    let prompt = |at: usize| prompts.get(N_PLAIN + at)?.as_deref();
    let pieces = cut(prompt(0)?, &[MARKS[1], NAMES[0], args, MARKS[3]])?;
    let to_assistant = plain.seam(Place::User, Place::Assistant)?.text();
    let open = pieces[1].strip_prefix(&to_assistant)?.to_owned();
    let mut form = CallForm {
        open,
        open_behind_text: None,
        middle: pieces[2].clone(),
        between: None,
        arguments: arguments.clone(),
    };
    if with_several {
        let two = [MARKS[1], NAMES[0], args, NAMES[1], args, MARKS[3]];
        let behind = [MARKS[1], MARKS[2], NAMES[0], args, NAMES[1], args, MARKS[3]];
        if let Some(pieces) = cut(prompt(1)?, &behind) {
            form.open_behind_text = Some(pieces[2].clone());
            form.between = Some(pieces[4].clone());
        } else {
            form.between = cut(prompt(1)?, &two).map(|pieces| pieces[3].clone());
        }
    }
    let mut learner = Learner { tokenizer, seams: plain.seams.clone() };
    for at in (0..3).filter(|at| with_several || *at != 1) {
        learner.take(&probes[N_PLAIN + at], prompt(at)?, Some(args))?;
    }
    let calls = Some(form);
    Some(Template { seams: learner.seams, calls, results: None, trims: plain.trims })
}

/// Whether a template gives a prompt to the byte and to the token.
fn gives(
    template: &Template,
    tokenizer: &Tokenizer,
    messages: &[ContextMessage],
    prompt: &str,
) -> bool {
    let Some(chunks) = template.chunks(messages) else { return false };
    let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
    if text != prompt {
        return false;
    }
    let counts =
        chunks.iter().map(|chunk| i64::from(tokenizer.count(&chunk.text)) + i64::from(chunk.extra));
    counts.sum::<i64>() == i64::from(whole(tokenizer, prompt))
}

/// Tokens of a whole prompt, as the engine counts it.
pub(in crate::tokens) fn whole(tokenizer: &Tokenizer, prompt: &str) -> u32 {
    let begins = tokenizer.ids_with("", true).first() == tokenizer.ids(prompt).first();
    tokenizer.count_with(prompt, !begins)
}

/// The seams as they become known.
struct Learner<'t> {
    tokenizer: &'t Tokenizer,
    seams: Vec<(Place, Place, Seam)>,
}

impl Learner<'_> {
    /// Takes what stands between the messages of one probe; `None` where it contradicts what is known.
    fn take(&mut self, probe: &[ContextMessage], prompt: &str, args: Option<&str>) -> Option<()> {
        let mut rest = prompt;
        let mut before = Place::Start;
        for message in probe {
            let place = Place::of(message);
            // A message with calls begins with its seam's text and ends with its last arguments.
            let (start, end) = if place == Place::Calls {
                let args = args?;
                let mut end = 0;
                for call in &message.tool_calls {
                    let name = end + rest[end..].find(&call.function.name)?;
                    end = name + rest[name..].find(args)? + args.len();
                }
                (None, end)
            } else {
                let start = rest.find(&message.content)?;
                (Some(start), start + message.content.len())
            };
            if let Some(start) = start {
                self.note(before, place, &rest[..start])?;
            }
            rest = &rest[end..];
            before = place;
        }
        self.note(before, Place::End, rest)
    }

    fn note(&mut self, before: Place, after: Place, text: &str) -> Option<()> {
        let known = self.seams.iter().find(|(a, b, _)| (*a, *b) == (before, after));
        if let Some((.., known)) = known {
            return (known.text() == text).then_some(());
        }
        let seam = match (before, after) {
            (Place::Start, _) => Seam::start(self.tokenizer, text)?,
            (_, Place::End) => Seam::end(text),
            _ => Seam::between(self.tokenizer, text)?,
        };
        self.seams.push((before, after, seam));
        Some(())
    }
}

/// The pieces of a text before, between and behind some marks, which stand in it in this order.
fn cut(text: &str, marks: &[&str]) -> Option<Vec<String>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for mark in marks {
        let (piece, after) = rest.split_once(mark)?;
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces.push(rest.to_owned());
    Some(pieces)
}

/// Arguments by which a form shows itself.
fn arguments() -> Value {
    json!({ "zqkey": "a<b>&c é", "aqkey": [1, { "d": null, "c": true }, "<"] })
}

fn calling(text: &str, arguments: &[Value]) -> ContextMessage {
    let call = |(at, arguments): (usize, &Value)| ContextToolCall {
        id: call_id(at),
        function: ContextFunction {
            name: NAMES[at % NAMES.len()].to_owned(),
            arguments: arguments.clone(),
        },
    };
    let tool_calls = arguments.iter().enumerate().map(call).collect();
    ContextMessage { tool_calls, ..message(Role::Assistant, text) }
}

/// Nine letters and digits: templates of the Mistral family refuse a conversation with any other id.
fn call_id(at: usize) -> String {
    format!("callno{at:03}")
}

fn message(role: Role, content: &str) -> ContextMessage {
    let is_tool = role == Role::Tool;
    ContextMessage {
        role,
        content: content.to_owned(),
        tool_calls: Vec::new(),
        tool_name: is_tool.then(|| NAMES[0].to_owned()),
        tool_call_id: is_tool.then(|| call_id(0)),
        images: Vec::new(),
    }
}
