//! Which session a chat is: a new one until something is said, a project's current one, or a chosen one.

use std::io::BufRead as _;

use ollm_protocol::content::Session;
use ollm_protocol::method::{
    ModelList, SessionCreate, SessionCurrent, SessionResume, SessionSetCurrent, SessionUpdate,
};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::session::{
    SessionCreateParams, SessionCurrentParams, SessionGetResult, SessionListParams,
    SessionResumeParams, SessionSetCurrentParams, SessionUpdateParams,
};
use ollm_protocol::sanitize;
use ollm_protocol::{ErrorKind, SessionId};

use super::super::{CommandError, Cx, project};
use crate::cli::ChatArgs;
use crate::error::ClientError;
use crate::render::sessions;
use crate::resolve::ListSessions as _;

/// Sessions that are offered to choose from; more are found by `sessions list`.
const OFFERED: u32 = 10;
/// What a person is told to pull who has no model: small enough for any machine.
const FIRST_MODEL: &str = "qwen3:0.6b";

/// The session of a chat.
pub(super) struct Talk {
    session: Option<Session>,
    /// Whether something was said in it.
    has_begun: bool,
    /// Whose current session it becomes when something is said.
    project: Option<String>,
    model: Option<String>,
    system: Option<String>,
}

impl Talk {
    /// The session that the arguments mean.
    pub(super) fn begin(args: &ChatArgs, cx: &mut Cx<'_>) -> Result<Self, CommandError> {
        let session = if args.continue_ {
            Some(current(cx)?)
        } else if let Some(text) = &args.resume {
            let id = if text.is_empty() { choose(cx)? } else { cx.session(text)? };
            Some(page(id, 1, cx)?.session)
        } else {
            None
        };
        let mut talk = Self {
            has_begun: session.is_some(),
            // A chat is possible where no project is.
            project: match &session {
                Some(session) => session.project_path.clone(),
                None => project::path(None).ok(),
            },
            session,
            model: None,
            system: None,
        };
        if let Some(system) = args.system.clone() {
            talk.set_system(system, cx)?;
        }
        if let Some(model) = args.model.clone() {
            talk.set_model(model, cx)?;
        }
        Ok(talk)
    }

    /// A new one, which asks the same model.
    pub(super) fn renewed(&self) -> Self {
        Self {
            session: None,
            has_begun: false,
            project: project::path(None).ok(),
            model: self.model().map(str::to_owned),
            system: self.system.clone(),
        }
    }

    /// The session, once something was said in it.
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref().filter(|_| self.has_begun)
    }

    /// The session's id; where there is none, one is begun.
    pub(super) fn id(&mut self, cx: &mut Cx<'_>) -> Result<SessionId, CommandError> {
        if let Some(session) = &self.session {
            return Ok(session.session_id);
        }
        let params = SessionCreateParams {
            project_path: self.project.clone(),
            model: self.model.clone(),
            system_prompt: self.system.clone().filter(|text| !text.is_empty()),
            ..SessionCreateParams::default()
        };
        let session = cx.call::<SessionCreate>(&params)?.value.session;
        Ok(self.session.insert(session).session_id)
    }

    /// Something was said: from now on the project goes on with this session.
    pub(super) fn was_accepted(&mut self, cx: &mut Cx<'_>) {
        self.has_begun = true;
        let (Some(session), Some(project_path)) = (&self.session, self.project.take()) else {
            return;
        };
        let session_id = Some(session.session_id);
        let params = SessionSetCurrentParams { project_path, session_id };
        match cx.call::<SessionSetCurrent>(&params) {
            Ok(_) => {}
            // Its project is not on this machine, which is no reason not to talk.
            Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::InvalidParams) => {}
            Err(error) => cx.terminal.note(&CommandError::from(error).to_text()),
        }
    }

    /// The model, where it is known here.
    pub(super) fn model(&self) -> Option<&str> {
        let of_session = self.session.as_ref().and_then(|session| session.model.as_deref());
        of_session.or(self.model.as_deref())
    }

    /// Asks another model from now on.
    pub(super) fn set_model(&mut self, model: String, cx: &mut Cx<'_>) -> Result<(), CommandError> {
        if let Some(session) = self.session.take_if(|_| self.has_begun) {
            let params = SessionUpdateParams {
                model: Some(model.clone()),
                ..SessionUpdateParams::new(session.session_id)
            };
            self.session = Some(session);
            self.session = Some(cx.call::<SessionUpdate>(&params)?.value.session);
        }
        // One in which nothing was said is begun again.
        self.session.take_if(|_| !self.has_begun);
        self.model = Some(model);
        Ok(())
    }

    fn set_system(&mut self, system: String, cx: &mut Cx<'_>) -> Result<(), CommandError> {
        if let Some(session) = &self.session {
            let params = SessionUpdateParams {
                system_prompt: Some(system.clone()),
                ..SessionUpdateParams::new(session.session_id)
            };
            cx.call::<SessionUpdate>(&params)?;
        }
        self.system = Some(system);
        Ok(())
    }

    /// Whether a turn was refused because nobody says which model.
    pub(super) fn lacks_model(&self, error: &CommandError) -> bool {
        let CommandError::Client(ClientError::Rpc(failure)) = error else { return false };
        failure.kind == Some(ErrorKind::InvalidParams)
            && failure.message.starts_with("model")
            && self.model().is_none()
    }

    /// Takes the only model of the server, or the one that a person chooses.
    ///
    /// **Errors**: which models there are where nobody can choose, and what to do where there is none.
    pub(super) fn pick_model(&mut self, cx: &mut Cx<'_>) -> Result<(), CommandError> {
        let list = cx.call::<ModelList>(&NoParams {})?.value;
        let host = sanitize::one_line(&list.host);
        // A server that does not tell what its models can do may have any.
        let can_chat = |can: &[String]| can.is_empty() || can.iter().any(|can| can == "completion");
        let names: Vec<String> = list
            .data
            .into_iter()
            .filter(|model| can_chat(&model.capabilities))
            .map(|model| model.model)
            .collect();
        match names.as_slice() {
            [] => Err(CommandError::Gone {
                message: format!("{host} has no model that answers"),
                hint: Some(format!("ollama pull {FIRST_MODEL}")),
            }),
            [only] => {
                let shown = sanitize::one_line(only);
                if !cx.json() {
                    cx.terminal.note(&format!("{shown} answers: it is the only model of {host}"));
                }
                self.set_model(only.clone(), cx)
            }
            several => {
                let name = choose_model(&host, several, cx)?;
                self.set_model(name, cx)
            }
        }
    }
}

/// The last records of a session.
pub(super) fn page(
    session_id: SessionId,
    limit: u32,
    cx: &mut Cx<'_>,
) -> Result<SessionGetResult, CommandError> {
    let params = SessionResumeParams { session_id, limit: Some(limit) };
    Ok(cx.call::<SessionResume>(&params)?.value)
}

fn current(cx: &mut Cx<'_>) -> Result<Session, CommandError> {
    let project_path = project::path(None)?;
    let params = SessionCurrentParams { project_path };
    let found = cx.call::<SessionCurrent>(&params)?.value.session;
    found.ok_or_else(|| CommandError::Gone {
        message: format!("{} has no current session", sanitize::one_line(&params.project_path)),
        hint: Some("ollmctl chat".to_owned()),
    })
}

/// Lets a person choose from the recent sessions.
fn choose(cx: &mut Cx<'_>) -> Result<SessionId, CommandError> {
    if !cx.terminal.can_ask() || cx.json() {
        return Err(CommandError::usage(
            "nobody is here to choose a session",
            "ollmctl chat --resume last 'And then?'",
        ));
    }
    let params = SessionListParams { limit: Some(OFFERED), ..SessionListParams::default() };
    let found = cx.client()?.list(&params)?.data;
    if found.is_empty() {
        return Err(CommandError::Gone {
            message: "there is no session yet".to_owned(),
            hint: Some("ollmctl chat".to_owned()),
        });
    }
    let text = sessions::numbered(&found, &cx.view());
    cx.print_text(&text)?;
    cx.terminal.flush().map_err(CommandError::Output)?;
    loop {
        let typed = typed_choice(found.len(), cx)?;
        if let Some(session) = numbered(&typed, &found) {
            return Ok(session.session_id);
        }
        match cx.session(&typed) {
            Ok(id) => return Ok(id),
            Err(error) => cx.terminal.note(&error.to_text()),
        }
    }
}

/// Lets a person choose from the models of a server.
///
/// **Errors**: which there are, where nobody is asked.
fn choose_model(host: &str, names: &[String], cx: &mut Cx<'_>) -> Result<String, CommandError> {
    let shown: Vec<String> = names.iter().map(|name| sanitize::one_line(name)).collect();
    if !cx.terminal.can_ask() || cx.json() {
        return Err(CommandError::usage(
            format!("no model is named, and {host} has several:\n  {}", shown.join("\n  ")),
            &format!("ollmctl chat --model {}  # or set ollama.model", shown[0]),
        ));
    }
    let lines = shown.iter().enumerate().map(|(at, name)| format!("{:>3}  {name}\n", at + 1));
    let lines: String = lines.collect();
    cx.terminal.note_piece(&format!("No model is named, and {host} has several:\n{lines}"));
    loop {
        let typed = typed_choice(names.len(), cx)?;
        let by_name = names.iter().find(|name| **name == typed);
        if let Some(name) = numbered(&typed, names).or(by_name) {
            return Ok(name.clone());
        }
    }
}

/// What a person answers when there is something to choose.
///
/// **Errors**: nothing was chosen.
fn typed_choice(number: usize, cx: &mut Cx<'_>) -> Result<String, CommandError> {
    cx.terminal.note_piece(&format!("Which one, 1 to {number}? "));
    let mut typed = String::new();
    let read = std::io::stdin().lock().read_line(&mut typed).map_err(CommandError::Input)?;
    let typed = typed.trim();
    if read == 0 || typed.is_empty() {
        return Err(CommandError::usage("nothing was chosen", ""));
    }
    Ok(typed.to_owned())
}

/// The one with a number; they count from 1.
fn numbered<'a, T>(typed: &str, all: &'a [T]) -> Option<&'a T> {
    all.get(typed.parse::<usize>().ok()?.checked_sub(1)?)
}
