//! The thread that records the conversation with the daemon: it reads what passed, and at the same time writes to the daemon,
//! however long that takes.
//!
//! While the daemon is away or hangs, steps wait in the backlog; they are written when it is back. When both streams have
//! ended, the daemon has [`END_LIMIT`] for the rest. The streams know nothing of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::backlog::Backlog;
use super::conversation::AcpConversation;
use super::frames::Lines;
use super::tap::{AcpSide, Tap, Tapped};
use super::writer::StepWriter;
use crate::background::spawn;
use crate::command_error::{CommandError, CommandResult};

/// The wait for the daemon after the agent's end. The editor waits for this program meanwhile.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The wait for the record of what was lost.
const MARK_LIMIT: Duration = Duration::from_secs(1);
/// The wait for the thread, which needs a processor too.
const THREAD_LIMIT: Duration = Duration::from_secs(7);
/// The pause between two looks at whether the wait is cut short.
const PAUSE: Duration = Duration::from_millis(20);

/// The recorder while it works.
pub(super) struct RunningRecorder {
    ended: Receiver<Option<String>>,
}

impl RunningRecorder {
    /// Starts the thread.
    pub(super) fn start(writer: StepWriter, tap: Arc<Tap>) -> CommandResult<Self> {
        let (send, ended) = mpsc::sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::Thread)?;
        // The end is sent before the runtime is dropped, which waits for an attempt to connect.
        spawn("acp-recorder", move || drop(send.send(runtime.block_on(record(writer, &tap)))))?;
        Ok(Self { ended })
    }

    /// Waits for the end of the recording, for a few seconds and until `is_hurried` is set. Returns what a person should know
    /// about it.
    pub(super) fn finish(self, is_hurried: &AtomicBool) -> Option<String> {
        let deadline = Instant::now() + THREAD_LIMIT;
        while Instant::now() < deadline && !is_hurried.load(Ordering::Relaxed) {
            match self.ended.recv_timeout(PAUSE) {
                Ok(problem) => return problem,
                Err(RecvTimeoutError::Timeout) => {}
                // The thread has panicked.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Some("the end of the conversation was not recorded in time".to_owned())
    }
}

/// The parts of a conversation that are not recorded.
#[derive(Debug, Default)]
struct RecordingLoss {
    /// The lines that were not read, and the bytes that did not fit into the tap.
    lines: u64,
    bytes: u64,
    /// The steps that the daemon refused, with the first reason.
    refused: u64,
    refusal: Option<String>,
    /// The steps that did not fit into the backlog, or were left in it, with the reason if it is known.
    late: u64,
    problem: Option<String>,
}

impl RecordingLoss {
    /// Returns the loss for a person; `None` if nothing was lost.
    fn text(&self) -> Option<String> {
        let steps = |number: u64, reason: Option<&str>| {
            let (parts, were) = if number == 1 { ("part", "was") } else { ("parts", "were") };
            let reason = reason.unwrap_or("ollmd did not take them in time");
            format!("{number} {parts} of the conversation {were} not recorded: {reason}")
        };
        let mut texts = Vec::new();
        if self.refused > 0 {
            texts.push(steps(self.refused, self.refusal.as_deref()));
        }
        if self.late > 0 {
            texts.push(steps(self.late, self.problem.as_deref()));
        }
        if self.lines > 0 {
            let lines = self.lines;
            texts.push(format!("{lines} or more messages were too long or too fast to be read"));
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// Records everything that passes, and returns what a person should know about it.
async fn record(mut writer: StepWriter, tap: &Tap) -> Option<String> {
    let backlog = Backlog::new();
    let writing = async {
        tokio::select! {
            () = writer.write(&backlog) => {}
            () = backlog.expired(END_LIMIT) => {}
        }
    };
    let (mut loss, ()) = tokio::join!(read(tap, &backlog), writing);
    let (n_lost, n_left) = backlog.n_lost_and_left();
    loss.late = n_lost + n_left;
    loss.refused = writer.n_refused();
    loss.refusal = writer.refusal().map(str::to_owned);
    loss.problem = writer.problem().map(str::to_owned);
    let text = loss.text()?;
    if n_left == 0 {
        let data =
            json!({ "lines": loss.lines, "bytes": loss.bytes, "steps": loss.late + loss.refused });
        drop(timeout(MARK_LIMIT, writer.mark_loss(data)).await);
    }
    Some(text)
}

/// Reads what passes to its end, adds its steps to the backlog, and closes that.
async fn read(tap: &Tap, backlog: &Backlog) -> RecordingLoss {
    let mut conversation = AcpConversation::new();
    let (mut editor, mut agent) = (Lines::default(), Lines::default());
    let mut loss = RecordingLoss::default();
    loop {
        match tap.next().await {
            Tapped::Bytes(direction, bytes) => {
                let lines = if direction == AcpSide::FromEditor { &mut editor } else { &mut agent };
                lines.push(&bytes, |line| backlog.add(conversation.line(direction, line)));
            }
            Tapped::Lost(direction, bytes) => {
                loss.bytes += bytes;
                if direction == AcpSide::FromEditor { editor.skip() } else { agent.skip() }
            }
            Tapped::Closed => break,
        }
        // The daemon's replies are read by the same thread.
        yield_now().await;
    }
    for (direction, lines) in [(AcpSide::FromEditor, &mut editor), (AcpSide::FromAgent, &mut agent)]
    {
        backlog.add(conversation.line(direction, &lines.rest()));
    }
    backlog.add(conversation.end());
    backlog.close();
    loss.lines = editor.lost() + agent.lost();
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_names_what_is_missing_and_why() {
        assert_eq!(RecordingLoss::default().text(), None);
        let loss = RecordingLoss {
            refused: 1,
            refusal: Some("the disk is full".to_owned()),
            late: 3,
            lines: 2,
            ..RecordingLoss::default()
        };
        assert_eq!(
            loss.text().unwrap(),
            "1 part of the conversation was not recorded: the disk is full; \
             3 parts of the conversation were not recorded: ollmd did not take them in time; \
             2 or more messages were too long or too fast to be read"
        );
    }

    #[test]
    fn reading_ends_with_the_streams_and_records_what_is_left_open() {
        let (tap, backlog) = (Tap::default(), Backlog::new());
        tap.push(AcpSide::FromEditor, b"{\"id\":1,\"method\":\"session/prompt\",");
        tap.push(AcpSide::FromEditor, b"\"params\":{\"sessionId\":\"s\",\"prompt\":[]}}\n");
        let update = "{\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":\
            {\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"Hi\"}}}}";
        // The line break is missing.
        tap.push(AcpSide::FromAgent, update.as_bytes());
        tap.close();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let loss = runtime.block_on(read(&tap, &backlog));
        assert!(loss.text().is_none() && backlog.is_closed());
        assert_eq!(backlog.n_lost_and_left(), (0, 2));
    }
}
