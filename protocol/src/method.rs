//! The one list of methods.
//!
//! The router's check, the client's calls, the completion of `ollmctl call` and the OpenRPC document are all
//! made from it.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::content::BuiltContext;
use crate::event::Event;
use crate::methods::{
    chat as h, context as c, daemon as d, env, event as e, goal as g, loops as l, model as mo,
    session as s,
};

/// What becomes of a call when its client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It is dropped.
    Read,
    /// It runs to its end.
    Write,
    /// It is a subscription: it ends, and what it had produced stays.
    Stream,
}

/// One method of the wire.
pub trait Method {
    /// Its name, `noun.verb`.
    const NAME: &'static str;
    /// What becomes of a call when its client leaves.
    const CLASS: Class;
    /// What it takes: an object; absent params count as an empty one.
    type Params: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// What it answers: an object. For a stream, what each notification carries.
    type Result: Serialize + DeserializeOwned + JsonSchema + Clone + Send + 'static;
}

/// A method as data.
#[derive(Clone, Copy)]
pub struct MethodInfo {
    /// Its name.
    pub name: &'static str,
    /// What becomes of a call when its client leaves.
    pub class: Class,
    /// One sentence.
    pub summary: &'static str,
    /// The schema of its params.
    pub params: fn(&mut SchemaGenerator) -> Schema,
    /// The schema of its result, or of a stream's items.
    pub result: fn(&mut SchemaGenerator) -> Schema,
}

macro_rules! methods {
    ($($marker:ident = $name:literal, $class:ident, $params:ty => $result:ty, $summary:literal;)*) => {
        $(
            #[doc = $summary]
            #[derive(Clone, Copy, Debug)]
            pub enum $marker {}

            impl Method for $marker {
                const NAME: &'static str = $name;
                const CLASS: Class = Class::$class;
                type Params = $params;
                type Result = $result;
            }
        )*

        /// Every method, by noun.
        pub const METHODS: &[MethodInfo] = &[
            $(MethodInfo {
                name: $name,
                class: Class::$class,
                summary: $summary,
                params: |generator| generator.subschema_for::<$params>(),
                result: |generator| generator.subschema_for::<$result>(),
            },)*
        ];
    };
}

methods! {
    DaemonHello = "daemon.hello", Read, d::DaemonHelloParams => d::DaemonHelloResult, "Agrees on a protocol and tells the limits.";
    DaemonStatus = "daemon.status", Read, d::NoParams => d::DaemonStatusResult, "Tells how the daemon is.";
    DaemonReload = "daemon.reload", Write, d::NoParams => d::DaemonReloadResult, "Reads the configuration again.";
    DaemonShutdown = "daemon.shutdown", Write, d::NoParams => d::DaemonShutdownResult, "Finishes acknowledged work and leaves.";
    RpcDiscover = "rpc.discover", Read, d::NoParams => serde_json::Value, "Describes every method as an OpenRPC document.";
    SessionCreate = "session.create", Write, s::SessionCreateParams => s::SessionResult, "Begins a session; nothing reaches the disk before the first record.";
    SessionRecord = "session.record", Write, s::SessionRecordParams => s::SessionRecordResult, "Records a message; the reply means it is synced.";
    SessionRecordToolCall = "session.recordToolCall", Write, s::SessionRecordToolCallParams => s::SessionRecordResult, "Records an executed tool call with its result.";
    SessionRecordCustom = "session.recordCustom", Write, s::SessionRecordCustomParams => s::SessionRecordResult, "Records data of a client, in or out of the context.";
    SessionGet = "session.get", Read, s::SessionGetParams => s::SessionGetResult, "Reads a page of records.";
    SessionList = "session.list", Read, s::SessionListParams => s::SessionListResult, "Lists sessions, the most recently active first.";
    SessionSearch = "session.search", Read, s::SessionSearchParams => s::SessionSearchResult, "Finds text in everything that was recorded.";
    SessionResume = "session.resume", Write, s::SessionResumeParams => s::SessionGetResult, "Takes a session up again and returns its last page.";
    SessionCurrent = "session.current", Read, s::SessionCurrentParams => s::SessionCurrentResult, "Tells the session that a project goes on with.";
    SessionSetCurrent = "session.setCurrent", Write, s::SessionSetCurrentParams => s::SessionCurrentResult, "Sets the session that a project goes on with.";
    SessionSetMode = "session.setMode", Write, s::SessionSetModeParams => s::SessionResult, "Changes the mode of a session.";
    SessionClose = "session.close", Write, s::SessionIdParams => s::SessionResult, "Closes a session; recording opens it again.";
    SessionUpdate = "session.update", Write, s::SessionUpdateParams => s::SessionResult, "Changes title, model and other fields of a session.";
    SessionArchive = "session.archive", Write, s::SessionIdParams => s::SessionResult, "Puts a session away.";
    SessionUnarchive = "session.unarchive", Write, s::SessionIdParams => s::SessionResult, "Brings an archived session back.";
    SessionDelete = "session.delete", Write, s::SessionIdParams => s::SessionDeleteResult, "Deletes a session and every file of it.";
    SessionClear = "session.clear", Write, s::SessionClearParams => s::SessionCleanupResult, "Deletes every session.";
    SessionCleanup = "session.cleanup", Write, s::SessionCleanupParams => s::SessionCleanupResult, "Deletes all but the most recently active sessions.";
    SessionExport = "session.export", Read, s::SessionExportParams => s::SessionExportResult, "Reads a session as a file, chunk by chunk.";
    SessionImport = "session.import", Write, s::SessionImportParams => s::SessionImportResult, "Imports a file, chunk by chunk.";
    SessionSave = "session.save", Write, s::SessionIdParams => s::SessionSaveResult, "Writes the session document now.";
    ContextBuild = "context.build", Write, c::ContextBuildParams => BuiltContext, "Chooses what a model is sent, within its window.";
    ContextStatus = "context.status", Read, c::ContextStatusParams => c::ContextStatusResult, "Tells how full the context of a session is.";
    ContextInspect = "context.inspect", Read, c::ContextInspectParams => c::ContextInspectResult, "Tells why each thing is in a context, or is not.";
    ContextCompact = "context.compact", Read, c::ContextCompactParams => c::ContextCompactResult, "Makes a conversation shorter; a client that leaves before it is written ends it.";
    ContextCheckpoints = "context.checkpoints", Read, s::SessionIdParams => c::ContextCheckpointsResult, "Lists the summaries that stand for the beginning of a conversation.";
    ContextAddEntry = "context.addEntry", Write, c::ContextAddEntryParams => c::ContextAddEntryResult, "Sets a text that every context begins with.";
    ContextRemoveEntry = "context.removeEntry", Write, c::ContextRemoveEntryParams => c::ContextRemoveEntryResult, "Removes a text that every context begins with.";
    ContextListEntries = "context.listEntries", Read, c::ContextListEntriesParams => c::ContextListEntriesResult, "Lists the texts that every context begins with.";
    ContextPin = "context.pin", Write, c::ContextPinParams => c::ContextPinResult, "Keeps a record in every later context.";
    ContextUnpin = "context.unpin", Write, c::ContextPinParams => c::ContextPinResult, "Releases a pinned record.";
    GoalCreate = "goal.create", Write, g::GoalCreateParams => g::GoalResult, "Sets what a session works towards.";
    GoalList = "goal.list", Read, g::GoalListParams => g::GoalListResult, "Lists the goals of a session, the newest first.";
    GoalUpdate = "goal.update", Write, g::GoalUpdateParams => g::GoalResult, "Changes a goal, pauses it, or completes it.";
    GoalAddCheckpoint = "goal.addCheckpoint", Write, g::GoalAddCheckpointParams => g::GoalResult, "Adds a step on the way to a goal.";
    GoalUpdateCheckpoint = "goal.updateCheckpoint", Write, g::GoalUpdateCheckpointParams => g::GoalResult, "Says how far a step is.";
    GoalAddDecision = "goal.addDecision", Write, g::GoalAddDecisionParams => g::GoalResult, "Adds a decision, perhaps in the place of another.";
    GoalLockDecision = "goal.lockDecision", Write, g::GoalLockDecisionParams => g::GoalResult, "Keeps a decision from being changed by a model.";
    GoalAddArtifact = "goal.addArtifact", Write, g::GoalAddArtifactParams => g::GoalResult, "Notes a file that was made, changed or deleted.";
    GoalSetNextSteps = "goal.setNextSteps", Write, g::GoalSetNextStepsParams => g::GoalResult, "Says what comes next.";
    GoalApplyMarkers = "goal.applyMarkers", Write, g::GoalApplyMarkersParams => g::GoalApplyMarkersResult, "Does what the markers in a text say.";
    ModelList = "model.list", Read, d::NoParams => mo::ModelListResult, "Lists the models of the model server.";
    ModelShow = "model.show", Read, mo::ModelShowParams => mo::ModelShowResult, "Tells what a model is.";
    ModelRunning = "model.running", Read, d::NoParams => mo::ModelRunningResult, "Lists the models in the model server's memory.";
    ModelWarm = "model.warm", Read, mo::ModelWarmParams => mo::ModelWarmResult, "Loads a model, so that the next answer begins sooner.";
    ModelCountTokens = "model.countTokens", Read, mo::ModelCountTokensParams => mo::ModelCountTokensResult, "Counts the tokens of a text or a conversation as the model does.";
    ChatSend = "chat.send", Stream, h::ChatSendParams => h::ChatEvent, "Has a model answer, and tells as it does.";
    ChatSubmitToolResults = "chat.submitToolResults", Write, h::ChatSubmitToolResultsParams => h::ChatSubmitToolResultsResult, "Gives a turn the results of the tools that it waits for.";
    ChatCancel = "chat.cancel", Write, s::SessionIdParams => h::ChatCancelResult, "Ends a turn; what was answered until then stays.";
    EnvSanitize = "env.sanitize", Read, env::EnvSanitizeParams => env::EnvSanitizeResult, "Tells which variables tools may see; its params reach no log.";
    EnvRules = "env.rules", Read, d::NoParams => env::EnvRulesResult, "Tells by which rules variables are kept from tools.";
    LoopStatus = "loop.status", Read, s::SessionIdParams => l::LoopStatusResult, "Tells whether a session repeats itself.";
    LoopReset = "loop.reset", Write, s::SessionIdParams => l::LoopStatusResult, "Lets a session that repeated itself go on.";
    EventSubscribe = "event.subscribe", Stream, e::EventSubscribeParams => Event, "Tells what happens, as it happens.";
}

/// The notification that carries the events of [`EventSubscribe`].
pub const EVENT_NOTIFICATION: &str = "event.event";
/// Ends a subscription of [`EventSubscribe`]; takes its id in an array.
pub const EVENT_UNSUBSCRIBE: &str = "event.unsubscribe";

/// The notification that carries the events of a turn of [`ChatSend`].
pub const CHAT_NOTIFICATION: &str = "chat.event";
/// Ends a subscription of [`ChatSend`], and its turn unless that is detached; takes its id in an array.
pub const CHAT_UNSUBSCRIBE: &str = "chat.unsubscribe";

/// Each method of class `Stream`, with its notification and with what ends its subscriptions.
pub const STREAMS: &[(&str, &str, &str)] = &[
    (ChatSend::NAME, CHAT_NOTIFICATION, CHAT_UNSUBSCRIBE),
    (EventSubscribe::NAME, EVENT_NOTIFICATION, EVENT_UNSUBSCRIBE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_noun_dot_verb_and_unique() {
        for (at, method) in METHODS.iter().enumerate() {
            assert_eq!(method.name.split('.').count(), 2, "{}", method.name);
            assert!(!method.summary.is_empty());
            assert!(METHODS[at + 1..].iter().all(|other| other.name != method.name));
        }
    }

    #[test]
    fn every_stream_has_a_notification_and_an_end() {
        let listed: Vec<_> = STREAMS.iter().map(|(name, ..)| *name).collect();
        let streams = METHODS.iter().filter(|method| method.class == Class::Stream);
        assert_eq!(listed, streams.map(|method| method.name).collect::<Vec<_>>());
    }

    #[test]
    fn every_params_schema_is_an_object_that_refuses_unknown_names() {
        for method in METHODS {
            let mut generator = SchemaGenerator::default();
            let schema = (method.params)(&mut generator);
            let definitions = generator.take_definitions(true);
            let name = schema
                .get("$ref")
                .and_then(|link| link.as_str())
                .and_then(|link| link.rsplit('/').next())
                .expect("params are named types");
            let params = &definitions[name];
            assert_eq!(params["type"], "object", "{}", method.name);
            assert_eq!(params["additionalProperties"], false, "{}", method.name);
        }
    }
}
