//! One connection: frames in, calls begun in their order, frames out.
//!
//! Each call is polled once where it arrives and becomes a task only if it is not done by then. So a simple
//! call costs no task, and a handler that hands its work over before it waits keeps the order of arrival.
//!
//! How large the answer to a read is shows only when it is made, and it is held until the client takes it. So
//! a connection begins with few reads at once and gets more as their answers prove small. Writes answer briefly
//! and may wait for each other, so they are never held back by this.
//!
//! **Invariants**: no further frame is looked at while as many calls run, as many request bytes are held, or
//! as many answers wait as the limits allow, so a client that floods or does not read slows down itself; an
//! error in one frame leaves the others alone; reads are dropped with the connection.

use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use jsonrpsee::types::Id;
use jsonrpsee::{MethodSink, Methods};
use ollm_protocol::ErrorKind;
use ollm_protocol::frame::{Decoder, Frame, Framing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::Limits;
use super::service::{Reply, Service, SubscriptionIds, Work, error_reply};
use super::writer::{Answers, OUTGOING_MESSAGES, write};
use crate::rpc::error::RpcError;
use crate::shutdown::Tasks;

/// How often a connection that reads nothing asks whether its peer is still there. The kernel reports the
/// end of the peer only to who reads, and only in these states nobody does.
const PEER_CHECK: Duration = Duration::from_millis(250);

/// Room for a read, so that an idle connection holds little.
const READ_BYTES: usize = 8 * 1024;

/// Frames that are looked at before other tasks get their turn.
const FRAMES_IN_A_ROW: usize = 64;

/// Reads that run at once before any answer is known: few, because each may answer with a page of megabytes.
const FIRST_READS: usize = 8;

/// Bytes that the answers of the reads that run at once may take together, judged by the answers so far.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// What every connection of a server shares.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) methods: Methods,
    pub(super) tasks: Tasks,
    pub(super) limits: Limits,
    pub(super) ids: Arc<SubscriptionIds>,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames are taken.
    Open,
    /// No more frames; what runs is finished and answered, subscriptions go on while the client listens.
    Finishing,
}

/// Why a connection ended.
enum End {
    /// Everything that came was answered.
    Finished,
    /// The peer is gone, so nobody waits for answers.
    Gone,
}

/// A call that ended, with the request bytes it held.
struct Ended {
    bytes: usize,
    /// For a read: the bytes of its answer.
    read: Option<usize>,
}

/// The reads that run, and how many may.
struct Reads {
    running: usize,
    may_run: usize,
    most: usize,
}

impl Reads {
    fn new(limits: &Limits) -> Self {
        let most = usize::try_from(limits.call.in_flight).unwrap_or(usize::MAX);
        Self { running: 0, may_run: FIRST_READS.min(most), most }
    }

    /// A large answer lowers the number that may run at once, a small one raises it by one.
    fn learn(&mut self, answer_bytes: usize) {
        let fits = (ANSWER_BYTES / answer_bytes.max(1)).clamp(1, self.most);
        self.may_run = (self.may_run + 1).min(fits);
    }
}

struct Connection {
    reader: OwnedReadHalf,
    decoder: Decoder,
    framing: Arc<OnceLock<Framing>>,
    service: Service,
    answers: Answers,
    calls: JoinSet<Ended>,
    reads: Reads,
    /// Request bytes of the running calls.
    held_bytes: usize,
    phase: Phase,
    limits: Limits,
    peer_check: Interval,
}

/// Serves one client until it leaves or the daemon does.
///
/// **Cancel safety**: dropping this closes the connection; writes that began go on.
pub(super) async fn serve(stream: UnixStream, number: usize, shared: Shared) {
    let Shared { methods, tasks, limits, ids } = shared;
    let (reader, out) = stream.into_split();
    let (answers, answers_end) = Answers::channel();
    let (items, items_end) = mpsc::channel(OUTGOING_MESSAGES);
    let framing = Arc::new(OnceLock::new());
    let max_item = u32::try_from(limits.call.frame_bytes).unwrap_or(u32::MAX);
    let items = MethodSink::new_with_limit(items, max_item);
    let writer =
        tasks.spawn(write(out, answers_end, items_end, Arc::clone(&framing), limits.stall));
    let mut writer = AbortOnDropHandle::new(writer);
    let frame_bytes = usize::try_from(limits.call.frame_bytes).unwrap_or(usize::MAX);
    let mut peer_check = tokio::time::interval(PEER_CHECK);
    peer_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = Connection {
        reader,
        decoder: Decoder::new(frame_bytes),
        framing,
        service: Service::new(methods, limits.clone(), number, items, ids),
        answers,
        calls: JoinSet::new(),
        reads: Reads::new(&limits),
        held_bytes: 0,
        phase: Phase::Open,
        limits,
        peer_check,
    };
    if let End::Gone = connection.run(&tasks).await {
        return;
    }
    // The writer ends when nobody can send any more: now that is up to the subscriptions.
    let Connection { reader, mut peer_check, service, answers, .. } = connection;
    drop((service, answers));
    loop {
        tokio::select! {
            ended = &mut writer => {
                if let Ok(Err(error)) = ended {
                    tracing::debug!(connection = number, %error, "the client took no answers");
                }
                return;
            }
            _ = peer_check.tick() => if has_hung_up(&reader) { return },
        }
    }
}

impl Connection {
    async fn run(&mut self, tasks: &Tasks) -> End {
        loop {
            if let Err(gone) = self.take_frames().await {
                return gone;
            }
            if self.phase == Phase::Finishing && self.calls.is_empty() {
                return End::Finished;
            }
            let has_room = self.has_room();
            let reads = self.phase == Phase::Open && has_room;
            self.decoder.buffer().reserve(if reads { READ_BYTES } else { 0 });
            tokio::select! {
                biased;
                () = tasks.stopping(), if self.phase == Phase::Open => self.phase = Phase::Finishing,
                () = self.answers.closed() => return End::Gone,
                Some(ended) = self.calls.join_next() => {
                    self.note_end(ended);
                }
                read = self.reader.read_buf(self.decoder.buffer()), if reads => match read {
                    Ok(0) => if let Err(gone) = self.end_of_stream().await { return gone },
                    Ok(_) => {}
                    Err(_) => return End::Gone,
                },
                () = self.answers.room(), if !self.answers.has_room() => {}
                _ = self.peer_check.tick(), if !reads => {
                    if has_hung_up(&self.reader) {
                        return End::Gone;
                    }
                }
            }
        }
    }

    /// Begins the calls of all complete frames for which there is room.
    async fn take_frames(&mut self) -> Result<(), End> {
        let mut in_a_row = 0;
        while self.phase == Phase::Open && self.has_room() {
            let frame = match self.decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    self.note_framing();
                    let error = RpcError::new(ErrorKind::ParseError, error.to_string());
                    self.answers.send(error_reply(&Id::Null, error)).await;
                    self.phase = Phase::Finishing;
                    break;
                }
            };
            self.note_framing();
            self.begin(frame).await?;
            in_a_row += 1;
            if in_a_row % FRAMES_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    fn note_framing(&self) {
        if let Some(framing) = self.decoder.framing() {
            // It never changes, so setting it again changes nothing.
            self.framing.get_or_init(|| framing);
        }
    }

    fn has_room(&self) -> bool {
        let in_flight = usize::try_from(self.limits.call.in_flight).unwrap_or(usize::MAX);
        self.calls.len() < in_flight
            && self.held_bytes <= self.limits.held_bytes
            && self.answers.has_room()
    }

    async fn begin(&mut self, frame: Frame) -> Result<(), End> {
        let bytes = match &frame {
            Frame::Message(bytes) => bytes.len(),
            Frame::Oversized { prefix } => prefix.len(),
        };
        match self.service.accept(frame) {
            Work::Done(None) => {}
            Work::Done(Some(reply)) => self.start(std::future::ready(Some(reply)), 0, false).await,
            Work::Call(pending) => self.start(pending, bytes, false).await,
            Work::Read(pending) => {
                while self.reads.running >= self.reads.may_run {
                    tokio::select! {
                        Some(ended) = self.calls.join_next() => self.note_end(ended),
                        () = self.answers.closed() => return Err(End::Gone),
                    }
                }
                self.start(pending, bytes, true).await;
            }
            Work::Subscribe(pending) => {
                let reply = tokio::select! {
                    reply = pending => reply,
                    () = self.answers.closed() => return Err(End::Gone),
                };
                if let Some(reply) = reply {
                    self.answers.send(reply).await;
                }
            }
        }
        Ok(())
    }

    /// Polls a call once, outside of the runtime's fairness so that it surely begins; a call that is not done
    /// by then goes on as a task.
    async fn start(
        &mut self,
        reply: impl Future<Output = Reply> + Send + 'static,
        bytes: usize,
        reads: bool,
    ) {
        let answers = self.answers.clone();
        let mut call = Box::pin(async move {
            let mut answer_bytes = 0;
            if let Some(json) = reply.await {
                answer_bytes = json.get().len();
                answers.send(json).await;
            }
            Ended { bytes, read: reads.then_some(answer_bytes) }
        });
        let first = {
            let mut call = tokio::task::unconstrained(call.as_mut());
            poll_fn(move |context| Poll::Ready(std::pin::Pin::new(&mut call).poll(context))).await
        };
        if first.is_pending() {
            self.held_bytes += bytes;
            self.reads.running += usize::from(reads);
            self.calls.spawn(call);
        }
    }

    fn note_end(&mut self, ended: Result<Ended, JoinError>) {
        // Handlers do not panic past their barrier, and nobody cancels a call alone.
        let Ok(Ended { bytes, read }) = ended else { return };
        self.held_bytes -= bytes;
        if let Some(answer_bytes) = read {
            self.reads.running -= 1;
            self.reads.learn(answer_bytes);
        }
    }

    /// Takes the last frame, which needs no line end, and finds out soon whether the peer still listens.
    async fn end_of_stream(&mut self) -> Result<(), End> {
        self.phase = Phase::Finishing;
        self.peer_check.reset_immediately();
        match self.decoder.finish() {
            Some(frame) => self.begin(frame).await,
            None => Ok(()),
        }
    }
}

/// Whether the peer closed both directions; one that only ended its own half is still listening.
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
    fn small_answers_earn_more_reads_at_once_and_a_large_one_ends_that() {
        let mut reads = Reads::new(&Limits::default());
        let check = |reads: &mut Reads, answer_bytes, times, expect| {
            (0..times).for_each(|_| reads.learn(answer_bytes));
            assert_eq!(reads.may_run, expect, "{answer_bytes} bytes");
        };
        check(&mut reads, 100, 10, 18);
        check(&mut reads, 0, 1000, 256);
        check(&mut reads, 2 << 20, 1, 8);
        check(&mut reads, 64 << 20, 1, 1);
        check(&mut reads, 6 << 20, 5, 2);
        check(&mut reads, 100, 1, 3);
    }
}
