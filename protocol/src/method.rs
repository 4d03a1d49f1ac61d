//! The one list of methods.
//!
//! The methods that the daemon registers, the calls of the client, the completion of `ollmctl call` and the OpenRPC
//! document all follow from it. PROTOCOL.md, section 8, has a row for each method.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::content::{BuiltContext, named_enum};
use crate::event::Event;
use crate::methods::session::branches;
use crate::methods::{
    TextPart, backup, chat, context, daemon, env, event, files, goal, hook, loops, model, session,
    snapshot, store,
};

named_enum! {
    /// The life of a running call whose client leaves.
    pub enum Life {
        /// The call is canceled.
        Canceled = "canceled",
        /// The call runs to its end.
        Completes = "completes",
        /// The call is a subscription, which ends; the records that it wrote stay.
        Stream = "stream",
    }
}

named_enum! {
    /// The effect of a call on what later calls see.
    pub enum Effect {
        /// The call changes nothing, so it can be repeated at any time.
        Safe = "safe",
        /// The call can change something: a session, a file, the daemon, or the memory of the model server.
        Changes = "changes",
    }
}

/// A method, as a type.
pub trait Method {
    /// The name, `noun.verb`.
    const NAME: &'static str;
    /// What becomes of a running call whose client leaves.
    const LIFE: Life;
    /// Whether a call changes something.
    const EFFECT: Effect;
    /// The params, an object. Absent params count as an empty object.
    type Params: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// The result, an object. For a stream, the result of each notification.
    type Result: Serialize + DeserializeOwned + JsonSchema + Clone + Send + 'static;
}

/// A method, as a value.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// The name, `noun.verb`.
    pub name: &'static str,
    /// What becomes of a running call whose client leaves.
    pub life: Life,
    /// Whether a call changes something.
    pub effect: Effect,
    /// A sentence for people, which the OpenRPC document and the completion of `ollmctl call` show.
    pub summary: &'static str,
}

/// The schemas of a method. They stand apart from [`MethodInfo`], because a client that only knows the names would else
/// contain the code of every schema.
#[derive(Clone, Copy)]
pub struct MethodSchemas {
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
    ($($marker:ident = $name:literal, $life:ident, $effect:ident, $params:ty => $result:ty, $summary:literal;)*) => {
        $(
            #[doc = $summary]
            #[derive(Clone, Copy, Debug)]
            pub enum $marker {}

            impl Method for $marker {
                const NAME: &'static str = $name;
                const LIFE: Life = Life::$life;
                const EFFECT: Effect = Effect::$effect;
                type Params = $params;
                type Result = $result;
            }
        )*

        /// All methods, by noun.
        pub const METHODS: &[MethodInfo] = &[
            $(MethodInfo {
                name: $name,
                life: Life::$life,
                effect: Effect::$effect,
                summary: $summary,
            },)*
        ];

        /// The schemas of all methods, in the order of [`METHODS`].
        pub const METHOD_SCHEMAS: &[MethodSchemas] = &[
            $(MethodSchemas {
                params: |generator| generator.subschema_for::<$params>(),
                result: |generator| generator.subschema_for::<$result>(),
            },)*
        ];
    };
}

methods! {
    DaemonHello = "daemon.hello", Canceled, Safe, daemon::DaemonHelloParams => daemon::DaemonHelloResult, "Agrees on a protocol version and returns the limits of the connection.";
    DaemonStatus = "daemon.status", Canceled, Safe, daemon::NoParams => daemon::DaemonStatusResult, "Returns the status of the daemon and its parts.";
    DaemonDoctor = "daemon.doctor", Canceled, Safe, daemon::NoParams => daemon::DaemonDoctorResult, "Examines the daemon and its machine, and returns what a person should know or do.";
    DaemonReload = "daemon.reload", Completes, Changes, daemon::NoParams => daemon::DaemonReloadResult, "Reads the configuration again.";
    DaemonShutdown = "daemon.shutdown", Completes, Changes, daemon::DaemonShutdownParams => daemon::DaemonShutdownResult, "Stops the daemon after its running calls.";
    RpcDiscover = "rpc.discover", Canceled, Safe, daemon::NoParams => serde_json::Value, "Returns the OpenRPC document, which describes every method.";
    SessionCreate = "session.create", Completes, Changes, session::SessionCreateParams => session::SessionResult, "Creates a session; nothing is written to disk before its first record.";
    SessionRecord = "session.record", Completes, Changes, session::SessionRecordParams => session::SessionRecordResult, "Records a message; the reply means that it is on disk.";
    SessionRecordToolCall = "session.recordToolCall", Completes, Changes, session::SessionRecordToolCallParams => session::SessionRecordResult, "Records an executed tool call with its result.";
    SessionRecordCustom = "session.recordCustom", Completes, Changes, session::SessionRecordCustomParams => session::SessionRecordResult, "Records data of a client, with or without a text for the context.";
    SessionGet = "session.get", Canceled, Safe, session::SessionGetParams => session::SessionGetResult, "Returns a page of records.";
    SessionList = "session.list", Canceled, Safe, session::SessionListParams => session::SessionListResult, "Lists sessions, the most recently active first.";
    SessionSearch = "session.search", Canceled, Safe, session::SessionSearchParams => session::SessionSearchResult, "Searches the text of all records.";
    SessionGetRecord = "session.getRecord", Canceled, Safe, session::SessionGetRecordParams => TextPart, "Returns a part of a record that is too large for a page of records.";
    SessionGetFileContent = "session.getFileContent", Canceled, Safe, session::files::SessionGetFileContentParams => TextPart, "Returns a part of the content of a file that a session keeps.";
    SessionResume = "session.resume", Completes, Changes, session::SessionResumeParams => session::SessionGetResult, "Announces that a session is resumed, and returns its last page of records.";
    SessionCurrent = "session.current", Canceled, Safe, session::SessionCurrentParams => session::SessionCurrentResult, "Returns the current session of a project.";
    SessionSetCurrent = "session.setCurrent", Completes, Changes, session::SessionSetCurrentParams => session::SessionCurrentResult, "Sets or clears the current session of a project.";
    SessionSetProjectServers = "session.setProjectServers", Completes, Changes, session::SessionSetProjectServersParams => session::SessionSetProjectServersResult, "Sets the model servers that may get texts of a project's sessions, or returns them.";
    SessionSetMode = "session.setMode", Completes, Changes, session::SessionSetModeParams => session::SessionResult, "Changes the mode of a session.";
    SessionClose = "session.close", Completes, Changes, session::SessionIdParams => session::SessionResult, "Closes a session; recording opens it again.";
    SessionUpdate = "session.update", Completes, Changes, session::SessionUpdateParams => session::SessionResult, "Changes the title, model and other fields of a session.";
    SessionArchive = "session.archive", Completes, Changes, session::SessionIdParams => session::SessionResult, "Archives a session, which hides it from lists.";
    SessionUnarchive = "session.unarchive", Completes, Changes, session::SessionIdParams => session::SessionResult, "Unarchives a session.";
    SessionDelete = "session.delete", Completes, Changes, session::SessionIdParams => session::SessionDeleteResult, "Deletes a session and all of its files.";
    SessionClear = "session.clear", Completes, Changes, session::SessionClearParams => session::SessionCleanupResult, "Deletes all sessions.";
    SessionCleanup = "session.cleanup", Completes, Changes, session::SessionCleanupParams => session::SessionCleanupResult, "Deletes all but the most recently active sessions.";
    SessionExport = "session.export", Canceled, Safe, session::SessionExportParams => TextPart, "Exports a session as a file, part by part.";
    SessionImport = "session.import", Completes, Changes, session::SessionImportParams => session::SessionImportResult, "Imports a file as a session, chunk by chunk.";
    SessionSave = "session.save", Completes, Changes, session::SessionIdParams => session::SessionSaveResult, "Writes the session document now.";
    SessionBranch = "session.branch", Completes, Changes, branches::SessionBranchParams => branches::SessionBranchResult, "Moves the active leaf to another record, where the conversation continues.";
    SessionTree = "session.tree", Canceled, Safe, branches::SessionTreeParams => branches::SessionTreeResult, "Returns the tree of a session, one line a record.";
    SessionLabel = "session.label", Completes, Changes, branches::SessionLabelParams => branches::SessionLabelResult, "Labels a record, or removes its label.";
    SessionUndo = "session.undo", Completes, Changes, branches::SessionUndoParams => branches::SessionUndoResult, "Undoes the newest operations of a session.";
    SessionRedo = "session.redo", Completes, Changes, branches::SessionUndoParams => branches::SessionUndoResult, "Redoes the operations that were undone last.";
    SessionOperations = "session.operations", Canceled, Safe, branches::SessionOperationsParams => branches::SessionOperationsResult, "Lists the operations of a session, the newest first.";
    SessionFiles = "session.files", Canceled, Safe, session::files::SessionFilesParams => session::files::SessionFilesResult, "Lists the files that a session read and changed.";
    SessionBlame = "session.blame", Canceled, Safe, session::files::SessionBlameParams => session::files::SessionBlameResult, "Finds the turns that read or changed a file, in all sessions.";
    SessionFork = "session.fork", Completes, Changes, branches::SessionForkParams => branches::SessionForkResult, "Creates a session that begins as another one does.";
    SnapshotCreate = "snapshot.create", Completes, Changes, snapshot::SnapshotCreateParams => snapshot::SnapshotResult, "Takes a snapshot of a session's context.";
    SnapshotList = "snapshot.list", Canceled, Safe, snapshot::SnapshotListParams => snapshot::SnapshotListResult, "Lists snapshots, the newest first.";
    SnapshotGet = "snapshot.get", Canceled, Safe, snapshot::SnapshotGetParams => snapshot::SnapshotGetResult, "Returns a snapshot with the content of its file.";
    SnapshotUpdate = "snapshot.update", Completes, Changes, snapshot::SnapshotUpdateParams => snapshot::SnapshotResult, "Pins or unpins a snapshot, or changes its summary.";
    SnapshotRestore = "snapshot.restore", Completes, Changes, snapshot::SnapshotRestoreParams => snapshot::SnapshotRestoreResult, "Returns a session to a snapshot, or makes a new session of it.";
    SnapshotDelete = "snapshot.delete", Completes, Changes, snapshot::SnapshotDeleteParams => snapshot::SnapshotDeleteResult, "Deletes the file of a snapshot.";
    ContextBuild = "context.build", Completes, Changes, context::ContextBuildParams => BuiltContext, "Builds the messages to send to a model, within its context window.";
    ContextStatus = "context.status", Canceled, Safe, context::ContextStatusParams => context::ContextStatusResult, "Returns how full the context of a session is.";
    ContextInspect = "context.inspect", Canceled, Safe, context::ContextInspectParams => context::ContextInspectResult, "Explains a context: everything in it and everything left out, with the reason.";
    ContextGetBuild = "context.getBuild", Canceled, Safe, context::ContextGetBuildParams => TextPart, "Returns a part of a recent build, which can be larger than a response.";
    ContextRecall = "context.recall", Canceled, Safe, context::ContextRecallParams => context::ContextRecallResult, "Finds the messages that answer a question best.";
    ContextCompact = "context.compact", Canceled, Changes, context::ContextCompactParams => context::ContextCompactResult, "Compacts a session; a client that leaves before the end cancels it.";
    ContextCheckpoints = "context.checkpoints", Canceled, Safe, session::SessionIdParams => context::ContextCheckpointsResult, "Lists the checkpoints of a session, which stand for its older records.";
    ContextAddEntry = "context.addEntry", Completes, Changes, context::ContextAddEntryParams => context::ContextAddEntryResult, "Sets a context entry, a text in every system message.";
    ContextRemoveEntry = "context.removeEntry", Completes, Changes, context::ContextRemoveEntryParams => context::ContextRemoveEntryResult, "Removes a context entry.";
    ContextListEntries = "context.listEntries", Canceled, Safe, context::ContextListEntriesParams => context::ContextListEntriesResult, "Lists the context entries in force.";
    ContextPin = "context.pin", Completes, Changes, context::ContextPinParams => context::ContextPinResult, "Pins a record, which keeps it in every later context.";
    ContextUnpin = "context.unpin", Completes, Changes, context::ContextPinParams => context::ContextPinResult, "Unpins a record.";
    ContextFacts = "context.facts", Canceled, Safe, context::ContextFactsParams => context::ContextFactsResult, "Lists the facts that the user stated in a session and that still hold.";
    ContextForgetFact = "context.forgetFact", Completes, Changes, context::ContextForgetFactParams => context::ContextForgetFactResult, "Suppresses a fact, so that later contexts do not show it, or shows it again.";
    GoalChange = "goal.change", Completes, Changes, goal::GoalChangeParams => goal::GoalChangeResult, "Changes goals in several steps: all of them are made, or none.";
    GoalList = "goal.list", Canceled, Safe, goal::GoalListParams => goal::GoalListResult, "Lists the goals of a session, the newest first.";
    ModelList = "model.list", Canceled, Safe, daemon::NoParams => model::ModelListResult, "Lists the models of the model server.";
    ModelShow = "model.show", Canceled, Safe, model::ModelShowParams => model::ModelShowResult, "Describes a model.";
    ModelRunning = "model.running", Canceled, Safe, daemon::NoParams => model::ModelRunningResult, "Lists the models in the memory of the model server.";
    ModelServers = "model.servers", Canceled, Safe, model::ModelServersParams => model::ModelServersResult, "Reports the state of the model servers, and what a person can do about their problems.";
    ModelWarm = "model.warm", Canceled, Changes, model::ModelWarmParams => model::ModelWarmResult, "Loads a model, so that its next answer starts sooner.";
    ModelCountTokens = "model.countTokens", Canceled, Safe, model::ModelCountTokensParams => model::ModelCountTokensResult, "Counts the tokens of a text or a conversation.";
    ModelFitText = "model.fitText", Canceled, Safe, model::ModelFitTextParams => model::ModelFitTextResult, "Returns the longest beginning of a text that has at most some tokens.";
    ChatSend = "chat.send", Stream, Changes, chat::ChatSendParams => chat::ChatEvent, "Starts a chat turn and streams its events.";
    ChatFollow = "chat.follow", Stream, Safe, session::SessionIdParams => chat::FollowEvent, "Follows the running chat turn of a session, whoever started it.";
    ChatSubmitToolResults = "chat.submitToolResults", Completes, Changes, chat::ChatSubmitToolResultsParams => chat::ChatSubmitToolResultsResult, "Submits the results of tool calls that a chat turn waits for.";
    ChatCancel = "chat.cancel", Completes, Changes, session::SessionIdParams => chat::ChatCancelResult, "Cancels the chat turn of a session and records its partial answer.";
    EnvSanitize = "env.sanitize", Canceled, Safe, env::EnvSanitizeParams => env::EnvSanitizeResult, "Filters environment variables for tools; their values are never logged.";
    EnvRules = "env.rules", Canceled, Safe, daemon::NoParams => env::EnvRulesResult, "Returns the rules that filter environment variables.";
    LoopStatus = "loop.status", Canceled, Safe, session::SessionIdParams => loops::LoopStatusResult, "Returns the state of the loop detection of a session.";
    LoopReset = "loop.reset", Completes, Changes, session::SessionIdParams => loops::LoopStatusResult, "Resets the loop detection of a session, so that its model is called again.";
    FilesDiscover = "files.discover", Canceled, Safe, files::FilesDiscoverParams => files::FilesDiscoverResult, "Lists the files of a directory that no ignore file leaves out, a page at a time.";
    FilesSearch = "files.search", Canceled, Safe, files::FilesSearchParams => files::FilesSearchResult, "Finds files of a directory by parts of their paths, the best first.";
    FilesWatch = "files.watch", Stream, Safe, files::FilesWatchParams => files::FilesEvent, "Subscribes to changes of the files of a directory.";
    FilesStatus = "files.status", Canceled, Safe, daemon::NoParams => files::FilesStatusResult, "Returns the directories whose files are in memory.";
    StoreVerify = "store.verify", Completes, Changes, store::StoreVerifyParams => store::StoreVerifyResult, "Reads everything on the disk, compares it, and can make derived files again.";
    BackupCreate = "backup.create", Completes, Changes, backup::BackupCreateParams => backup::BackupCreateResult, "Backs up the home or one session, also while others write.";
    BackupList = "backup.list", Canceled, Safe, backup::BackupListParams => backup::BackupListResult, "Lists the backups in a directory or a file.";
    BackupVerify = "backup.verify", Canceled, Safe, backup::BackupVerifyParams => backup::BackupVerifyResult, "Reads backups as a whole and compares every checksum.";
    BackupRestore = "backup.restore", Completes, Changes, backup::BackupRestoreParams => backup::BackupRestoreResult, "Restores a backup into a home without sessions, or one session of it.";
    BackupPrune = "backup.prune", Completes, Changes, backup::BackupPruneParams => backup::BackupPruneResult, "Removes the backups that no rule keeps, and the parts that no other one needs.";
    HookList = "hook.list", Canceled, Safe, hook::HookListParams => hook::HookListResult, "Lists the hooks of the home and of a project.";
    HookTrust = "hook.trust", Completes, Changes, hook::HookTrustParams => hook::HookTrustResult, "Lets hooks of a project run, each with the content that the caller saw.";
    HookUntrust = "hook.untrust", Completes, Changes, hook::HookUntrustParams => hook::HookUntrustResult, "Lets no hook of a project run any more.";
    HookTest = "hook.test", Canceled, Changes, hook::HookTestParams => hook::HookTestResult, "Runs the hooks of an occasion by hand and returns their output, which changes nothing.";
    EventSubscribe = "event.subscribe", Stream, Safe, event::EventSubscribeParams => Event, "Subscribes to events.";
}

/// The method of the notifications of [`EventSubscribe`].
pub const EVENT_NOTIFICATION: &str = "event.event";
/// The method that ends a subscription of [`EventSubscribe`]. Its params are an array with the subscription's number.
pub const EVENT_UNSUBSCRIBE: &str = "event.unsubscribe";

/// The method of the notifications of [`FilesWatch`].
pub const FILES_NOTIFICATION: &str = "files.changed";
/// The method that ends a subscription of [`FilesWatch`]. Its params are an array with the subscription's number.
pub const FILES_UNWATCH: &str = "files.unwatch";

/// The method of the notifications of [`ChatSend`] and [`ChatFollow`].
pub const CHAT_NOTIFICATION: &str = "chat.event";
/// The method that ends a subscription of [`ChatSend`], and its turn unless that is detached. Its params are an array
/// with the subscription's number.
pub const CHAT_UNSUBSCRIBE: &str = "chat.unsubscribe";
/// The method that ends a subscription of [`ChatFollow`], but not its turn. Its params are an array with the
/// subscription's number.
pub const CHAT_UNFOLLOW: &str = "chat.unfollow";

/// The methods of life `Stream`, in the order of [`METHODS`].
pub const STREAMS: &[StreamInfo] = &[
    StreamInfo {
        method: ChatSend::NAME,
        notification: CHAT_NOTIFICATION,
        unsubscribe: CHAT_UNSUBSCRIBE,
    },
    StreamInfo {
        method: ChatFollow::NAME,
        notification: CHAT_NOTIFICATION,
        unsubscribe: CHAT_UNFOLLOW,
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
        let streams = METHODS.iter().filter(|method| method.life == Life::Stream);
        assert_eq!(listed, streams.map(|method| method.name).collect::<Vec<_>>());
    }

    #[test]
    fn params_are_objects_that_refuse_unknown_fields() {
        for (method, schemas) in METHODS.iter().zip(METHOD_SCHEMAS) {
            let mut generator = SchemaGenerator::default();
            let schema = (schemas.params)(&mut generator);
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
