//! The choices that a person has for a session in an editor: its mode, its model, and how the model thinks.
//!
//! Editors know modes in two forms, as modes and as one of the config options; both are sent.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::ErrorKind;
use ollm_protocol::content::{Meta, Session};
use ollm_protocol::method::{ModelList, ModelShow, SessionSetMode, SessionUpdate as UpdateSession};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelShowParams;
use ollm_protocol::methods::session::{SessionSetModeParams, SessionUpdateParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::agent::{Agent, Answer, RequestResult};
use super::schema::{RequestError, SessionUpdate, SetConfigOption, SetMode};
use super::sessions::EditorSession;
use crate::commands::models::can_chat;

/// The longest wait for the list of models: an editor shows a new session only then.
const MODELS_LIMIT: Duration = Duration::from_secs(2);
/// The mode of a session that has none. As a label without a text it is like no mode.
const NO_MODE: &str = "none";
/// The modes: id, name and description. The daemon has a text for each but the first.
const MODES: [(&str, &str, &str); 6] = [
    (NO_MODE, "None", "No instructions to the model"),
    ("assistant", "Assistant", "Plain, brief answers"),
    ("developer", "Developer", "Small changes in the style of what is there"),
    ("planning", "Planning", "Choices and steps; changes nothing"),
    ("debugger", "Debugger", "From what was observed to the cause"),
    ("user", "User", "Explanations without inner workings"),
];
/// The ways to think: value, name, and the value of the option `think` of a session.
const THINKING: [(&str, &str); 7] = [
    ("default", "As the model does"),
    ("off", "Off"),
    ("on", "On"),
    ("low", "Low"),
    ("medium", "Medium"),
    ("high", "High"),
    ("max", "Max"),
];

/// The choices that were made for a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices {
    /// The model; `None` for the configured one.
    pub(super) model: Option<String>,
    /// The mode; `None` for none.
    pub(super) mode: Option<String>,
    /// The option `think` of the session; null if it has none.
    pub(super) think: Value,
}

impl Choices {
    pub(super) fn of(session: &Session) -> Self {
        Self {
            model: session.model.clone(),
            mode: session.mode.clone(),
            think: session.options.get("think").cloned().unwrap_or_default(),
        }
    }

    /// Returns the options that a session with these choices keeps.
    pub(super) fn options(&self) -> Meta {
        Meta::from_iter([("think".to_owned(), self.think.clone())])
    }

    fn mode_id(&self) -> &str {
        self.mode.as_deref().unwrap_or(NO_MODE)
    }

    fn thinking(&self) -> String {
        match &self.think {
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            Value::String(level) => level.clone(),
            _ => "default".to_owned(),
        }
    }
}

/// The models of all servers, as they were last listed.
#[derive(Default)]
pub(super) struct ModelChoices(Mutex<Arc<OfferedModels>>);

#[derive(Default)]
pub(super) struct OfferedModels {
    /// The configured model; `None` if none is configured or that is unknown.
    default: Option<String>,
    /// Set if no model is configured.
    lacks_default: bool,
    models: Vec<OfferedModel>,
}

struct OfferedModel {
    name: String,
    /// Set to true if the model thinks; `None` if its server did not say.
    thinks: Option<bool>,
    /// Set unless its server says that it calls no tools.
    calls_tools: bool,
}

impl ModelChoices {
    pub(super) fn known(&self) -> Arc<OfferedModels> {
        Arc::clone(&self.0.lock())
    }

    /// Lists the models again. Without an answer in time, the earlier list holds.
    pub(super) async fn refresh(&self, agent: &Agent) -> Arc<OfferedModels> {
        let daemon = &agent.daemon;
        let default = ModelShowParams { model: None };
        let asked = async {
            tokio::join!(daemon.call::<ModelList>(&NoParams {}), daemon.call::<ModelShow>(&default))
        };
        let Ok((list, default)) = timeout(MODELS_LIMIT, asked).await else { return self.known() };
        let is_about_params = |kind: &str| kind == ErrorKind::InvalidParams.as_str();
        let models = list.map(|list| list.data).unwrap_or_default().into_iter().filter(can_chat);
        let models = models.map(|model| {
            let has = |name: &str| model.capabilities.iter().any(|known| known == name);
            let thinks = (!model.capabilities.is_empty()).then(|| has("thinking"));
            let calls_tools = model.capabilities.is_empty() || has("tools");
            OfferedModel { name: model.model, thinks, calls_tools }
        });
        let known = Arc::new(OfferedModels {
            lacks_default: default.as_ref().is_err_and(|error| is_about_params(error.kind())),
            default: default.ok().map(|shown| shown.model.model),
            models: models.collect(),
        });
        *self.0.lock() = Arc::clone(&known);
        known
    }
}

impl OfferedModels {
    /// Returns the model that a new session needs because none is configured: the first one, which the person can change.
    pub(super) fn needed(&self) -> Option<String> {
        let first = self.models.first().filter(|_| self.lacks_default);
        first.map(|model| model.name.clone())
    }

    /// Returns whether the model of a session calls tools, as far as its server says.
    pub(super) fn calls_tools(&self, choices: &Choices) -> bool {
        let current = self.current(choices);
        let known = self.models.iter().find(|model| Some(model.name.as_str()) == current);
        known.is_none_or(|model| model.calls_tools)
    }

    fn current<'a>(&'a self, choices: &'a Choices) -> Option<&'a str> {
        choices.model.as_deref().or(self.default.as_deref())
    }
}

/// Returns the modes of a session, as `modes` of a reply.
pub(super) fn modes(choices: &Choices) -> Value {
    let current = choices.mode_id();
    let mut available: Vec<Value> = MODES
        .iter()
        .map(
            |(id, name, description)| json!({ "id": id, "name": name, "description": description }),
        )
        .collect();
    // A mode that is a label of another client.
    if !MODES.iter().any(|(id, ..)| *id == current) {
        available.push(json!({ "id": current, "name": current }));
    }
    json!({ "currentModeId": current, "availableModes": available })
}

/// Returns the config options of a session.
pub(super) fn config_options(choices: &Choices, known: &OfferedModels) -> Vec<Value> {
    let mode = choices.mode_id();
    let modes = MODES.iter().map(|(id, name, text)| (*id, *name, Some(*text)));
    let mut options = vec![select(("mode", "Mode", "mode"), mode, modes.collect())];
    if let Some(current) = known.current(choices) {
        let models =
            known.models.iter().map(|model| (model.name.as_str(), model.name.as_str(), None));
        options.push(select(("model", "Model", "model"), current, models.collect()));
        let model = known.models.iter().find(|model| model.name == current);
        if model.and_then(|model| model.thinks) == Some(false) {
            return options;
        }
    }
    let levels = THINKING.iter().map(|(value, name)| (*value, *name, None)).collect();
    options.push(select(("thinking", "Thinking", "thought_level"), &choices.thinking(), levels));
    options
}

/// Returns a config option. The current value is always one of its values.
fn select<'a>(
    (id, name, category): (&str, &str, &str),
    current: &'a str,
    mut values: Vec<(&'a str, &'a str, Option<&'a str>)>,
) -> Value {
    if !values.iter().any(|(value, ..)| *value == current) {
        values.insert(0, (current, current, None));
    }
    let values: Vec<Value> = values
        .into_iter()
        .map(|(value, name, description)| match description {
            Some(text) => json!({ "value": value, "name": name, "description": text }),
            None => json!({ "value": value, "name": name }),
        })
        .collect();
    json!({ "type": "select", "id": id, "name": name, "category": category,
        "currentValue": current, "options": values })
}

/// Changes the mode of a session (`session/set_mode`).
pub(super) async fn set_mode(agent: &Agent, params: SetMode) -> RequestResult {
    let session = agent.open.find(&params.session_id)?;
    let options = choose(agent, &session, "mode", &params.mode_id).await?;
    let update = SessionUpdate::ConfigOptionUpdate { config_options: options };
    Ok(Answer { result: json!({}), then: vec![(params.session_id, update)] })
}

/// Changes a config option of a session (`session/set_config_option`).
pub(super) async fn set_option(agent: &Agent, params: SetConfigOption) -> RequestResult {
    let SetConfigOption { session_id, config_id, kind, value } = params;
    let Some(value) = value.as_str().filter(|value| !value.is_empty()) else {
        return Err(RequestError::invalid("the value of a config option is a text"));
    };
    let session = agent.open.find(&session_id)?;
    let (version, shown) =
        (agent.version(), config_options(&session.choices(), &agent.models.known()));
    version.check_choice(&shown, &config_id, &kind, value)?;
    let options = choose(agent, &session, &config_id, value).await?;
    let mut answer = Answer::from(json!({ "configOptions": version.config_options(options) }));
    if config_id == "mode" {
        let update = SessionUpdate::CurrentModeUpdate { current_mode_id: value.to_owned() };
        answer.then.push((session_id, update));
    }
    Ok(answer)
}

/// Makes a choice for a session and returns its config options.
async fn choose(
    agent: &Agent,
    session: &EditorSession,
    option: &str,
    value: &str,
) -> RequestResult<Vec<Value>> {
    let mut choices = session.choices();
    match option {
        "mode" => choices.mode = Some(value.to_owned()),
        "model" => choices.model = Some(value.to_owned()),
        "thinking" => choices.think = think_of(value)?,
        _ => return Err(RequestError::invalid(format!("there is no config option {option}"))),
    }
    // A draft is written with its first prompt, so that a session that is only looked at leaves no file.
    if let Some(id) = session.written_id() {
        apply(agent, id, &choices, Some(&session.choices())).await?;
    }
    session.set_choices(choices.clone());
    Ok(config_options(&choices, &agent.models.known()))
}

fn think_of(value: &str) -> RequestResult<Value> {
    match value {
        "default" => Ok(Value::Null),
        "on" => Ok(json!(true)),
        "off" => Ok(json!(false)),
        level if THINKING.iter().any(|(known, _)| *known == level) => Ok(json!(level)),
        _ => Err(RequestError::invalid(format!("there is no way to think called {value}"))),
    }
}

/// Changes the session of the daemon from the earlier choices to new ones.
pub(super) async fn apply(
    agent: &Agent,
    id: ollm_protocol::SessionId,
    choices: &Choices,
    earlier: Option<&Choices>,
) -> Result<(), crate::error::ClientError> {
    let nothing = Choices::default();
    let earlier = earlier.unwrap_or(&nothing);
    // Another client may have changed meanwhile what is not chosen here.
    let sets_model = choices.model != earlier.model;
    let sets_think = choices.think != earlier.think;
    if sets_model || sets_think {
        let params = SessionUpdateParams {
            model: choices.model.clone().filter(|_| sets_model),
            options: sets_think.then(|| choices.options()),
            ..SessionUpdateParams::new(id)
        };
        let _session = agent.daemon.call::<UpdateSession>(&params).await?;
    }
    if let Some(mode) = choices.mode.clone().filter(|_| choices.mode != earlier.mode) {
        let params = SessionSetModeParams { session_id: id, mode, trigger: None, confidence: None };
        let _session = agent.daemon.call::<SessionSetMode>(&params).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(lacks_default: bool, thinks: Option<bool>) -> OfferedModels {
        let models = ["a", "b"].map(|name| OfferedModel {
            name: name.to_owned(),
            thinks,
            calls_tools: true,
        });
        let default = (!lacks_default).then(|| "b".to_owned());
        OfferedModels { default, lacks_default, models: models.into() }
    }

    #[test]
    fn options_have_the_current_value_among_their_values() {
        let choices = Choices {
            model: Some("gone".to_owned()),
            mode: Some("own".to_owned()),
            think: json!("high"),
        };
        for option in config_options(&choices, &known(false, None)) {
            let values = option["options"].as_array().unwrap();
            let is_current = |value: &&Value| value["value"] == option["currentValue"];
            assert_eq!(values.iter().filter(is_current).count(), 1, "{option}");
        }
        let all = modes(&choices);
        assert_eq!(all["availableModes"].as_array().unwrap().len(), MODES.len() + 1);
        assert_eq!(modes(&Choices::default())["currentModeId"], NO_MODE);
    }

    #[test]
    fn thinking_is_offered_unless_the_model_does_not_think() {
        let ids = |thinks| -> Vec<Value> {
            let options = config_options(&Choices::default(), &known(false, thinks));
            options.into_iter().map(|option| option["id"].clone()).collect()
        };
        assert_eq!(ids(Some(false)), ["mode", "model"]);
        assert_eq!(ids(None), ["mode", "model", "thinking"]);
    }

    #[test]
    fn new_session_gets_a_model_only_if_none_is_configured() {
        assert_eq!(known(false, None).needed(), None);
        assert_eq!(known(true, None).needed().as_deref(), Some("a"));
    }

    #[test]
    fn every_way_to_think_is_read_back_as_it_was_chosen() {
        for (value, _) in THINKING {
            let choices = Choices { think: think_of(value).unwrap(), ..Choices::default() };
            assert_eq!(choices.thinking(), value);
        }
        assert!(think_of("sideways").is_err());
    }
}
