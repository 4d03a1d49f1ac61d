//! One connection: frames in, calls started in their order, frames out.
//!
//! Each call is polled once where it arrives and becomes a task only if it is not done by then. So a short call costs
//! no task, and a handler that queues its work before its first await keeps the order of arrival.
//!
//! A read is a call of a safe method. The size of its response is known only when the read is done, and the response
//! takes memory until the client reads it. A connection therefore starts with few concurrent reads, and gets more as
//! their responses prove small. Other calls have short responses and may wait for each other, so they are not limited in
//! this way.
//!
//! A large frame needs a place among those of all connections before it is read, see [`super::memory`].
//!
//! **Invariants**: no further frame is examined while the running calls, their request bytes or the waiting responses
//! reach a limit, so a client that sends too much or does not read slows down only itself; an error in one frame does
//! not affect the others; calls that do not complete without their client are canceled with the connection.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use jsonrpsee::types::Id;
use jsonrpsee::{MethodSink, Methods};
use ollm_protocol::ErrorKind;
use ollm_protocol::frame::{Decoder, Frame, Framing, MAX_FRAME_BYTES};
use ollm_protocol::methods::daemon::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::memory::{ConnectionMemory, FramePlace, FrameRoom};
use super::service::{FrameTask, RpcResponse, RpcService, SubscriptionIds, error_response};
use super::writer::{ResponseSender, WAITING_MESSAGES, write};
use crate::rpc::error::RpcError;
use crate::shutdown::Tasks;

/// The interval at which a connection that reads nothing checks whether its peer is still there. The kernel reports
/// the end of the peer only to a reader.
const PEER_CHECK: Duration = Duration::from_millis(250);

/// The interval at which an unfinished frame in a place is checked for its age.
const FRAME_CHECK: Duration = Duration::from_millis(500);

/// The buffer for one read, small so that an idle connection holds little memory.
const READ_BYTES: usize = 8 * 1024;

/// Number of frames that are examined before other tasks run.
const FRAMES_IN_A_ROW: usize = 64;

/// Number of concurrent reads before any response is known: few, because each response may be a page of megabytes.
const FIRST_READS: usize = 8;

/// Bytes that the responses of all concurrent reads may take, estimated from earlier responses.
const RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// The limits of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    /// The limits that `daemon.hello` reports.
    pub calls: Limits,
    /// Request bytes of the running calls from which on no further frame is read.
    pub held_bytes: usize,
    /// The longest time for which a client may leave waiting messages unread before it is disconnected.
    pub stall: Duration,
}

impl Default for ConnectionLimits {
    /// 256 calls fill a group commit and cost nothing while idle.
    fn default() -> Self {
        Self {
            calls: Limits {
                frame_bytes: MAX_FRAME_BYTES as u64,
                batch: 256,
                subscriptions: 64,
                in_flight: 256,
                // Added to the reply, so that a connection does not hold the table.
                field_bytes: BTreeMap::new(),
            },
            held_bytes: 2 * MAX_FRAME_BYTES,
            stall: Duration::from_secs(30),
        }
    }
}

/// The parts that all connections of a server share.
#[derive(Clone)]
pub(super) struct ConnectionContext {
    pub methods: Methods,
    pub tasks: Tasks,
    pub limits: ConnectionLimits,
    pub ids: Arc<SubscriptionIds>,
    pub memory: ConnectionMemory,
}

/// Serves one client until it disconnects or the daemon stops.
///
/// **Cancel safety**: dropping the future closes the connection; started writes continue.
pub(super) async fn serve(stream: UnixStream, number: usize, context: ConnectionContext) {
    let ConnectionContext { methods, tasks, limits, ids, memory } = context;
    let (reader, out) = stream.into_split();
    let (responses, responses_receiver) = ResponseSender::channel(memory.clone());
    let (notifications, notifications_receiver) = mpsc::channel(WAITING_MESSAGES);
    let framing = Arc::new(OnceLock::new());
    let max_bytes = u32::try_from(limits.calls.frame_bytes).unwrap_or(u32::MAX);
    let notifications = MethodSink::new_with_limit(notifications, max_bytes);
    let writing = write(
        out,
        responses_receiver,
        notifications_receiver,
        Arc::clone(&framing),
        limits.stall,
        memory.clone(),
    );
    let mut writer = AbortOnDropHandle::new(tasks.spawn(writing));
    let check = |period| {
        let mut check = tokio::time::interval(period);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        check
    };
    let in_flight = usize::try_from(limits.calls.in_flight).unwrap_or(usize::MAX);
    let mut connection = Connection {
        reader,
        decoder: Decoder::new(usize::try_from(limits.calls.frame_bytes).unwrap_or(usize::MAX)),
        framing,
        service: RpcService::new(methods, limits.calls, number, notifications, ids),
        responses,
        calls: JoinSet::new(),
        max_calls: in_flight,
        reads: ReadLimiter::new(in_flight),
        held_bytes: 0,
        max_held_bytes: limits.held_bytes,
        is_open: true,
        room: FrameRoom::new(memory),
        is_frame_refused: false,
        frame_check: check(FRAME_CHECK),
        peer_check: check(PEER_CHECK),
    };
    if connection.run(&tasks).await.is_err() {
        return;
    }
    // The writer ends when the last sender is dropped; only subscriptions hold one from now on.
    let Connection { reader, mut peer_check, service, responses, .. } = connection;
    drop((service, responses));
    loop {
        tokio::select! {
            ended = &mut writer => {
                if let Ok(Err(error)) = ended {
                    tracing::debug!(connection = number, %error, "cannot write to the client");
                }
                return;
            }
            _ = peer_check.tick() => if has_hung_up(&reader) { return },
        }
    }
}

/// The peer disconnected, so no response is needed.
struct PeerLeft;

/// A call that ended.
struct FinishedCall {
    request_bytes: usize,
    /// The size of the response, for a read.
    read_bytes: Option<usize>,
}

/// Limits the number of concurrent reads by the size of their responses.
struct ReadLimiter {
    running: usize,
    limit: usize,
    max: usize,
}

impl ReadLimiter {
    fn new(max: usize) -> Self {
        Self { running: 0, limit: FIRST_READS.min(max), max }
    }

    /// Ends a read: a small response raises the limit by one, a large one lowers it.
    fn end(&mut self, response_bytes: usize) {
        self.running -= 1;
        let fitting = (RESPONSE_BYTES / response_bytes.max(1)).clamp(1, self.max);
        self.limit = (self.limit + 1).min(fitting);
    }
}

struct Connection {
    reader: OwnedReadHalf,
    decoder: Decoder,
    /// The framing of the client's first frame, which the writer uses too.
    framing: Arc<OnceLock<Framing>>,
    service: RpcService,
    responses: ResponseSender,
    calls: JoinSet<FinishedCall>,
    max_calls: usize,
    reads: ReadLimiter,
    /// Request bytes of the running calls.
    held_bytes: usize,
    max_held_bytes: usize,
    /// Whether more frames are read. Otherwise the running calls still get their responses, and subscriptions continue
    /// while the client listens.
    is_open: bool,
    /// The place of the unfinished frame.
    room: FrameRoom,
    /// Whether the unfinished frame took too long, so that its end is an error.
    is_frame_refused: bool,
    frame_check: Interval,
    peer_check: Interval,
}

impl Connection {
    /// Serves calls until all have their responses and no more frames are read.
    async fn run(&mut self, tasks: &Tasks) -> Result<(), PeerLeft> {
        loop {
            self.take_frames(tasks).await?;
            if !self.is_open && self.calls.is_empty() {
                return Ok(());
            }
            let wants_bytes = self.is_open && self.has_room();
            let held = self.decoder.unfinished_bytes();
            if held == 0 {
                // The frame is too large, and its bytes are skipped.
                drop(self.room.take());
            }
            let can_read = wants_bytes && self.room.has_room(held);
            self.decoder.buffer().reserve(if can_read { READ_BYTES } else { 0 });
            tokio::select! {
                biased;
                () = tasks.stopping(), if self.is_open => self.is_open = false,
                () = self.responses.closed() => return Err(PeerLeft),
                Some(finished) = self.calls.join_next() => self.end_call(finished),
                read = self.reader.read_buf(self.decoder.buffer()), if can_read => match read {
                    Ok(0) => self.end_of_stream().await?,
                    Ok(_) => self.room.note_bytes(),
                    Err(_) => return Err(PeerLeft),
                },
                () = self.room.wait(held), if wants_bytes && !can_read => {}
                () = self.responses.wait_for_room(), if !self.responses.has_room() => {}
                _ = self.frame_check.tick(), if self.room.is_taken() => self.refuse_slow_frame(),
                _ = self.peer_check.tick(), if !can_read => {
                    if has_hung_up(&self.reader) {
                        return Err(PeerLeft);
                    }
                }
            }
        }
    }

    /// Gives up the unfinished frame if it held its place for too long. Its call gets an error at its end.
    fn refuse_slow_frame(&mut self) {
        if self.room.is_overdue() {
            self.decoder.skip_unfinished();
            self.is_frame_refused = true;
            drop(self.room.take());
        }
    }

    fn has_room(&self) -> bool {
        self.calls.len() < self.max_calls
            && self.held_bytes <= self.max_held_bytes
            && self.responses.has_room()
    }

    /// Starts the calls of all complete frames, as far as there is room and the daemon does not stop.
    async fn take_frames(&mut self, tasks: &Tasks) -> Result<(), PeerLeft> {
        let mut in_a_row = 0;
        while self.is_open && self.has_room() {
            if tasks.is_stopping() {
                self.is_open = false;
                break;
            }
            let frame = self.decoder.next_frame();
            if let Some(framing) = self.decoder.framing() {
                // The framing never changes after the first frame.
                self.framing.get_or_init(|| framing);
            }
            match frame {
                Ok(Some(frame)) => self.start(frame).await?,
                Ok(None) => break,
                Err(error) => {
                    let error = RpcError::new(ErrorKind::ParseError, error.to_string());
                    self.responses.send(error_response(&Id::Null, error)).await;
                    self.is_open = false;
                    break;
                }
            }
            in_a_row += 1;
            if in_a_row % FRAMES_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Starts the calls of one frame.
    async fn start(&mut self, frame: Frame) -> Result<(), PeerLeft> {
        let place = self.room.take();
        let is_refused = std::mem::take(&mut self.is_frame_refused);
        let bytes = match &frame {
            Frame::Message(bytes) => bytes.len(),
            Frame::Oversized { prefix } => prefix.len(),
        };
        let task = match &frame {
            Frame::Oversized { prefix } if is_refused => RpcService::refuse_slow(prefix),
            _ => self.service.accept(frame),
        };
        match task {
            FrameTask::Done(None) => {}
            FrameTask::Done(Some(response)) => {
                self.start_call(std::future::ready(Some(response)), 0, false, place).await;
            }
            FrameTask::Change(pending) => self.start_call(pending, bytes, false, place).await,
            FrameTask::Safe(pending) => {
                while self.reads.running >= self.reads.limit {
                    tokio::select! {
                        Some(finished) = self.calls.join_next() => self.end_call(finished),
                        () = self.responses.closed() => return Err(PeerLeft),
                    }
                }
                self.start_call(pending, bytes, true, place).await;
            }
            FrameTask::Subscribe(pending) => {
                let response = tokio::select! {
                    response = pending => response,
                    () = self.responses.closed() => return Err(PeerLeft),
                };
                if let Some(response) = response {
                    self.responses.send(response).await;
                }
            }
        }
        Ok(())
    }

    /// Polls a call once, outside of the runtime's budget so that it certainly starts. A call that is not done by
    /// then becomes a task.
    async fn start_call(
        &mut self,
        response: impl Future<Output = RpcResponse> + Send + 'static,
        request_bytes: usize,
        is_read: bool,
        place: FramePlace,
    ) {
        let responses = self.responses.clone();
        let mut call = Box::pin(async move {
            let mut response_bytes = 0;
            let response = response.await;
            drop(place);
            if let Some(json) = response {
                response_bytes = json.get().len();
                responses.send(json).await;
            }
            FinishedCall { request_bytes, read_bytes: is_read.then_some(response_bytes) }
        });
        let first = {
            let mut call = tokio::task::unconstrained(call.as_mut());
            poll_fn(move |context| Poll::Ready(std::pin::Pin::new(&mut call).poll(context))).await
        };
        if first.is_pending() {
            self.held_bytes += request_bytes;
            self.reads.running += usize::from(is_read);
            self.calls.spawn(call);
        }
    }

    fn end_call(&mut self, finished: Result<FinishedCall, JoinError>) {
        // The barrier around handlers catches panics, and no call is canceled alone.
        let Ok(FinishedCall { request_bytes, read_bytes }) = finished else { return };
        self.held_bytes -= request_bytes;
        if let Some(response_bytes) = read_bytes {
            self.reads.end(response_bytes);
        }
    }

    /// Takes the last frame, which needs no line break, and checks soon whether the peer still listens.
    async fn end_of_stream(&mut self) -> Result<(), PeerLeft> {
        self.is_open = false;
        self.peer_check.reset_immediately();
        match self.decoder.finish() {
            Some(frame) => self.start(frame).await,
            None => Ok(()),
        }
    }
}

/// Returns whether the peer closed both directions. A peer that closed only its sending half still listens.
fn has_hung_up(reader: &OwnedReadHalf) -> bool {
    let stream: &UnixStream = reader.as_ref();
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_limit_grows_with_small_responses_and_drops_with_a_large_one() {
        let mut reads = ReadLimiter::new(256);
        let check = |reads: &mut ReadLimiter, response_bytes, times, expect| {
            for _ in 0..times {
                reads.running += 1;
                reads.end(response_bytes);
            }
            assert_eq!(reads.limit, expect, "{response_bytes} bytes");
        };
        check(&mut reads, 100, 10, 18);
        check(&mut reads, 0, 1000, 256);
        check(&mut reads, 2 << 20, 1, 8);
        check(&mut reads, 64 << 20, 1, 1);
        check(&mut reads, 6 << 20, 5, 2);
        check(&mut reads, 100, 1, 3);
    }
}
