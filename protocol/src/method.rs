//! The one list of methods.
//!
//! The methods that the daemon registers, the calls of the client, the completion of `ollmctl call` and the OpenRPC
//! document all follow from it. PROTOCOL.md, section 8, has a row for each method.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::content::BuiltContext;
use crate::event::Event;
use crate::methods::session::branches;
use crate::methods::{
    chat, context, daemon, env, event, files, goal, loops, model, session, snapshot,
};

/// The class of a method: it decides about a running call whose client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The call is dropped.
    Read,
    /// The call runs to its end.
    Write,
    /// The call is a subscription, which ends; the records that it wrote stay.
    Stream,
}

/// A method, as a type.
pub trait Method {
    /// The name, `noun.verb`.
    const NAME: &'static str;
    /// The class.
    const CLASS: Class;
    /// The params, an object. Absent params count as an empty object.
    type Params: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// The result, an object. For a stream, the result of each notification.
    type Result: Serialize + DeserializeOwned + JsonSchema + Clone + Send + 'static;
}

/// A method, as a value.
#[derive(Clone, Copy)]
pub struct MethodInfo {
    /// The name, `noun.verb`.
    pub name: &'static str,
    /// The class.
    pub class: Class,
    /// A sentence for people, which the OpenRPC document and the completion of `ollmctl call` show.
    pub summary: &'static str,
    /// Returns the schema of the params.
    pub params: fn(&mut SchemaGenerator) -> Schema,
    /// Returns the schema of the result; for a stream, that of each notification's result.
    pub result: fn(&mut SchemaGenerator) -> Schema,
}

/// The methods that belong to a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamInfo {
    /// The method that subscribes.
    pub method: &'static str,
    /// The method of the notifications.
    pub notification: &'static str,
    /// The method that unsubscribes.
    pub unsubscribe: &'static str,
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

        /// All methods, by noun.
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
    DaemonHello = "daemon.hello", Read, daemon::DaemonHelloParams => daemon::DaemonHelloResult, "Agrees on a protocol version and returns the limits of the connection.";
    DaemonStatus = "daemon.status", Read, daemon::NoParams => daemon::DaemonStatusResult, "Returns the status of the daemon and its parts.";
    DaemonDoctor = "daemon.doctor", Read, daemon::NoParams => daemon::DaemonDoctorResult, "Examines the daemon and its machine, and returns what a person should know or do.";
    DaemonReload = "daemon.reload", Write, daemon::NoParams => daemon::DaemonReloadResult, "Reads the configuration again.";
    DaemonShutdown = "daemon.shutdown", Write, daemon::NoParams => daemon::DaemonShutdownResult, "Stops the daemon after its running calls.";
    RpcDiscover = "rpc.discover", Read, daemon::NoParams => serde_json::Value, "Returns the OpenRPC document, which describes every method.";
    SessionCreate = "session.create", Write, session::SessionCreateParams => session::SessionResult, "Creates a session; nothing is written to disk before its first record.";
    SessionRecord = "session.record", Write, session::SessionRecordParams => session::SessionRecordResult, "Records a message; the reply means that it is on disk.";
    SessionRecordToolCall = "session.recordToolCall", Write, session::SessionRecordToolCallParams => session::SessionRecordResult, "Records an executed tool call with its result.";
    SessionRecordCustom = "session.recordCustom", Write, session::SessionRecordCustomParams => session::SessionRecordResult, "Records data of a client, with or without a text for the context.";
    SessionGet = "session.get", Read, session::SessionGetParams => session::SessionGetResult, "Returns a page of records.";
    SessionList = "session.list", Read, session::SessionListParams => session::SessionListResult, "Lists sessions, the most recently active first.";
    SessionSearch = "session.search", Read, session::SessionSearchParams => session::SessionSearchResult, "Searches the text of all records.";
    SessionGetRecord = "session.getRecord", Read, session::SessionGetRecordParams => session::SessionGetRecordResult, "Returns a part of a record that is too large for a page of records.";
    SessionResume = "session.resume", Write, session::SessionResumeParams => session::SessionGetResult, "Announces that a session is resumed, and returns its last page of records.";
    SessionCurrent = "session.current", Read, session::SessionCurrentParams => session::SessionCurrentResult, "Returns the current session of a project.";
    SessionSetCurrent = "session.setCurrent", Write, session::SessionSetCurrentParams => session::SessionCurrentResult, "Sets or clears the current session of a project.";
    SessionSetMode = "session.setMode", Write, session::SessionSetModeParams => session::SessionResult, "Changes the mode of a session.";
    SessionClose = "session.close", Write, session::SessionIdParams => session::SessionResult, "Closes a session; recording opens it again.";
    SessionUpdate = "session.update", Write, session::SessionUpdateParams => session::SessionResult, "Changes the title, model and other fields of a session.";
    SessionArchive = "session.archive", Write, session::SessionIdParams => session::SessionResult, "Archives a session, which hides it from lists.";
    SessionUnarchive = "session.unarchive", Write, session::SessionIdParams => session::SessionResult, "Unarchives a session.";
    SessionDelete = "session.delete", Write, session::SessionIdParams => session::SessionDeleteResult, "Deletes a session and all of its files.";
    SessionClear = "session.clear", Write, session::SessionClearParams => session::SessionCleanupResult, "Deletes all sessions.";
    SessionCleanup = "session.cleanup", Write, session::SessionCleanupParams => session::SessionCleanupResult, "Deletes all but the most recently active sessions.";
    SessionExport = "session.export", Read, session::SessionExportParams => session::SessionExportResult, "Exports a session as a file, chunk by chunk.";
    SessionImport = "session.import", Write, session::SessionImportParams => session::SessionImportResult, "Imports a file as a session, chunk by chunk.";
    SessionSave = "session.save", Write, session::SessionIdParams => session::SessionSaveResult, "Writes the session document now.";
    SessionBranch = "session.branch", Write, branches::SessionBranchParams => branches::SessionBranchResult, "Moves the active leaf to another record, where the conversation continues.";
    SessionTree = "session.tree", Read, branches::SessionTreeParams => branches::SessionTreeResult, "Returns the tree of a session, one line a record.";
    SessionLabel = "session.label", Write, branches::SessionLabelParams => branches::SessionLabelResult, "Labels a record, or removes its label.";
    SessionUndo = "session.undo", Write, branches::SessionUndoParams => branches::SessionUndoResult, "Undoes the newest operations of a session.";
    SessionRedo = "session.redo", Write, branches::SessionUndoParams => branches::SessionUndoResult, "Redoes the operations that were undone last.";
    SessionOperations = "session.operations", Read, branches::SessionOperationsParams => branches::SessionOperationsResult, "Lists the operations of a session, the newest first.";
    SessionFiles = "session.files", Read, session::files::SessionFilesParams => session::files::SessionFilesResult, "Lists the files that a session read and changed.";
    SessionFork = "session.fork", Write, branches::SessionForkParams => branches::SessionForkResult, "Creates a session that begins as another one does.";
    SnapshotCreate = "snapshot.create", Write, snapshot::SnapshotCreateParams => snapshot::SnapshotResult, "Takes a snapshot of a session's context.";
    SnapshotList = "snapshot.list", Read, snapshot::SnapshotListParams => snapshot::SnapshotListResult, "Lists snapshots, the newest first.";
    SnapshotGet = "snapshot.get", Read, snapshot::SnapshotGetParams => snapshot::SnapshotGetResult, "Returns a snapshot with the content of its file.";
    SnapshotUpdate = "snapshot.update", Write, snapshot::SnapshotUpdateParams => snapshot::SnapshotResult, "Pins or unpins a snapshot, or changes its summary.";
    SnapshotRestore = "snapshot.restore", Write, snapshot::SnapshotRestoreParams => snapshot::SnapshotRestoreResult, "Returns a session to a snapshot, or makes a new session of it.";
    SnapshotDelete = "snapshot.delete", Write, snapshot::SnapshotDeleteParams => snapshot::SnapshotDeleteResult, "Deletes the file of a snapshot.";
    ContextBuild = "context.build", Write, context::ContextBuildParams => BuiltContext, "Builds the messages to send to a model, within its context window.";
    ContextStatus = "context.status", Read, context::ContextStatusParams => context::ContextStatusResult, "Returns how full the context of a session is.";
    ContextInspect = "context.inspect", Read, context::ContextInspectParams => context::ContextInspectResult, "Explains a context: everything in it and everything left out, with the reason.";
    ContextGetBuild = "context.getBuild", Read, context::ContextGetBuildParams => context::ContextGetBuildResult, "Returns a part of a recent build, which can be larger than a response.";
    ContextRecall = "context.recall", Read, context::ContextRecallParams => context::ContextRecallResult, "Finds the messages that answer a question best.";
    ContextCompact = "context.compact", Read, context::ContextCompactParams => context::ContextCompactResult, "Compacts a session; a client that leaves before the end cancels it.";
    ContextCheckpoints = "context.checkpoints", Read, session::SessionIdParams => context::ContextCheckpointsResult, "Lists the checkpoints of a session, which stand for its older records.";
    ContextAddEntry = "context.addEntry", Write, context::ContextAddEntryParams => context::ContextAddEntryResult, "Sets a context entry, a text in every system message.";
    ContextRemoveEntry = "context.removeEntry", Write, context::ContextRemoveEntryParams => context::ContextRemoveEntryResult, "Removes a context entry.";
    ContextListEntries = "context.listEntries", Read, context::ContextListEntriesParams => context::ContextListEntriesResult, "Lists the context entries in force.";
    ContextPin = "context.pin", Write, context::ContextPinParams => context::ContextPinResult, "Pins a record, which keeps it in every later context.";
    ContextUnpin = "context.unpin", Write, context::ContextPinParams => context::ContextPinResult, "Unpins a record.";
    ContextFacts = "context.facts", Read, context::ContextFactsParams => context::ContextFactsResult, "Lists the facts that the user stated in a session and that still hold.";
    ContextForgetFact = "context.forgetFact", Write, context::ContextForgetFactParams => context::ContextForgetFactResult, "Suppresses a fact, so that later contexts do not show it, or shows it again.";
    GoalCreate = "goal.create", Write, goal::GoalCreateParams => goal::GoalResult, "Creates a goal and makes it the active one.";
    GoalList = "goal.list", Read, goal::GoalListParams => goal::GoalListResult, "Lists the goals of a session, the newest first.";
    GoalUpdate = "goal.update", Write, goal::GoalUpdateParams => goal::GoalResult, "Changes the description, priority or status of a goal.";
    GoalAddCheckpoint = "goal.addCheckpoint", Write, goal::GoalAddCheckpointParams => goal::GoalResult, "Adds a checkpoint to a goal.";
    GoalUpdateCheckpoint = "goal.updateCheckpoint", Write, goal::GoalUpdateCheckpointParams => goal::GoalResult, "Changes the description or status of a checkpoint.";
    GoalAddDecision = "goal.addDecision", Write, goal::GoalAddDecisionParams => goal::GoalResult, "Adds a decision to a goal; it may supersede another one.";
    GoalLockDecision = "goal.lockDecision", Write, goal::GoalLockDecisionParams => goal::GoalResult, "Locks a decision, so that models cannot change it.";
    GoalAddArtifact = "goal.addArtifact", Write, goal::GoalAddArtifactParams => goal::GoalResult, "Adds a created, modified or deleted file to a goal.";
    GoalSetNextSteps = "goal.setNextSteps", Write, goal::GoalSetNextStepsParams => goal::GoalResult, "Replaces the next steps of a goal.";
    GoalApplyMarkers = "goal.applyMarkers", Write, goal::GoalApplyMarkersParams => goal::GoalApplyMarkersResult, "Applies the goal markers in a text or in a recorded message.";
    ModelList = "model.list", Read, daemon::NoParams => model::ModelListResult, "Lists the models of the model server.";
    ModelShow = "model.show", Read, model::ModelShowParams => model::ModelShowResult, "Describes a model.";
    ModelRunning = "model.running", Read, daemon::NoParams => model::ModelRunningResult, "Lists the models in the memory of the model server.";
    ModelWarm = "model.warm", Read, model::ModelWarmParams => model::ModelWarmResult, "Loads a model, so that its next answer starts sooner.";
    ModelCountTokens = "model.countTokens", Read, model::ModelCountTokensParams => model::ModelCountTokensResult, "Counts the tokens of a text or a conversation.";
    ChatSend = "chat.send", Stream, chat::ChatSendParams => chat::ChatEvent, "Starts a chat turn and streams its events.";
    ChatSubmitToolResults = "chat.submitToolResults", Write, chat::ChatSubmitToolResultsParams => chat::ChatSubmitToolResultsResult, "Submits the results of tool calls that a chat turn waits for.";
    ChatCancel = "chat.cancel", Write, session::SessionIdParams => chat::ChatCancelResult, "Cancels the chat turn of a session and records its partial answer.";
    EnvSanitize = "env.sanitize", Read, env::EnvSanitizeParams => env::EnvSanitizeResult, "Filters environment variables for tools; their values are never logged.";
    EnvRules = "env.rules", Read, daemon::NoParams => env::EnvRulesResult, "Returns the rules that filter environment variables.";
    LoopStatus = "loop.status", Read, session::SessionIdParams => loops::LoopStatusResult, "Returns the state of the loop detection of a session.";
    LoopReset = "loop.reset", Write, session::SessionIdParams => loops::LoopStatusResult, "Resets the loop detection of a session, so that its model is called again.";
    FilesDiscover = "files.discover", Read, files::FilesDiscoverParams => files::FilesDiscoverResult, "Lists the files of a directory that no ignore file leaves out, a page at a time.";
    FilesSearch = "files.search", Read, files::FilesSearchParams => files::FilesSearchResult, "Finds files of a directory by parts of their paths, the best first.";
    FilesWatch = "files.watch", Stream, files::FilesWatchParams => files::FilesEvent, "Subscribes to changes of the files of a directory.";
    FilesStatus = "files.status", Read, daemon::NoParams => files::FilesStatusResult, "Returns the directories whose files are in memory.";
    EventSubscribe = "event.subscribe", Stream, event::EventSubscribeParams => Event, "Subscribes to events.";
}

/// The method of the notifications of [`EventSubscribe`].
pub const EVENT_NOTIFICATION: &str = "event.event";
/// The method that ends a subscription of [`EventSubscribe`]. Its params are an array with the subscription's number.
pub const EVENT_UNSUBSCRIBE: &str = "event.unsubscribe";

/// The method of the notifications of [`FilesWatch`].
pub const FILES_NOTIFICATION: &str = "files.changed";
/// The method that ends a subscription of [`FilesWatch`]. Its params are an array with the subscription's number.
pub const FILES_UNWATCH: &str = "files.unwatch";

/// The method of the notifications of [`ChatSend`].
pub const CHAT_NOTIFICATION: &str = "chat.event";
/// The method that ends a subscription of [`ChatSend`], and its turn unless that is detached. Its params are an array
/// with the subscription's number.
pub const CHAT_UNSUBSCRIBE: &str = "chat.unsubscribe";

/// The methods of class `Stream`, in the order of [`METHODS`].
pub const STREAMS: &[StreamInfo] = &[
    StreamInfo {
        method: ChatSend::NAME,
        notification: CHAT_NOTIFICATION,
        unsubscribe: CHAT_UNSUBSCRIBE,
    },
    StreamInfo {
        method: FilesWatch::NAME,
        notification: FILES_NOTIFICATION,
        unsubscribe: FILES_UNWATCH,
    },
    StreamInfo {
        method: EventSubscribe::NAME,
        notification: EVENT_NOTIFICATION,
        unsubscribe: EVENT_UNSUBSCRIBE,
    },
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
    fn every_stream_has_a_notification_and_an_unsubscribe_method() {
        let listed: Vec<_> = STREAMS.iter().map(|stream| stream.method).collect();
        let streams = METHODS.iter().filter(|method| method.class == Class::Stream);
        assert_eq!(listed, streams.map(|method| method.name).collect::<Vec<_>>());
    }

    #[test]
    fn params_are_objects_that_refuse_unknown_fields() {
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
