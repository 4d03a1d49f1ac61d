//! A stream of bytes from one side to the other, which the recorder gets a copy of.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use super::rewrite::Rewriter;
use super::tap::{AcpSide, Tap};
use crate::command_error::{CommandError, CommandResult};

/// Bytes of one read: the capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;

/// The copying of one stream, from the editor to the agent or back.
pub(super) struct Pump {
    from: File,
    to: File,
    tap: Arc<Tap>,
    direction: AcpSide,
    progress: PumpProgress,
}

/// The progress of a copy.
#[derive(Clone, Default)]
pub(super) struct PumpProgress(Arc<(AtomicU64, AtomicBool)>);

impl PumpProgress {
    pub(super) fn n_bytes(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    /// Returns whether the reader of the other side is waited for.
    pub(super) fn is_writing(&self) -> bool {
        self.0.1.load(Ordering::Relaxed)
    }
}

impl Pump {
    pub(super) fn new(from: File, to: File, tap: Arc<Tap>, direction: AcpSide) -> Self {
        Self { from, to, tap, direction, progress: PumpProgress::default() }
    }

    pub(super) fn progress(&self) -> PumpProgress {
        self.progress.clone()
    }

    /// Copies in a thread until the stream ends, then closes the other side.
    pub(super) fn start(mut self, rewriter: Option<Rewriter>) -> CommandResult<JoinHandle<()>> {
        let name = match self.direction {
            AcpSide::FromEditor => "acp-editor",
            AcpSide::FromAgent => "acp-agent",
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || self.copy(rewriter)).map_err(CommandError::Thread)
    }

    fn copy(&mut self, mut rewriter: Option<Rewriter>) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Some(n) = self.read(&mut chunk) {
            let piece = &chunk[..n];
            let written = match &mut rewriter {
                None => self.pass(piece, piece),
                Some(rewriter) => rewriter.push(piece, |said, new| self.pass(said, new)),
            };
            if written.is_err() {
                return;
            }
        }
        if let Some(rewriter) = rewriter {
            // A last line without a break passes as it is.
            drop(rewriter.finish(|piece| self.pass(piece, piece)));
        }
    }

    /// Records what was said and writes what takes its place. In this order, because the reply of the other side must not be
    /// recorded first.
    fn pass(&self, said: &[u8], written: &[u8]) -> io::Result<()> {
        self.tap.push(self.direction, said);
        self.write(written)
    }

    /// Reads some bytes; `None` at the end.
    fn read(&mut self, chunk: &mut [u8]) -> Option<usize> {
        loop {
            match self.from.read(chunk) {
                Ok(0) => return None,
                Ok(n) => return Some(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.from, PollFlags::IN)
                }
                Err(_) => return None,
            }
        }
    }

    fn write(&self, mut piece: &[u8]) -> io::Result<()> {
        self.progress.0.1.store(true, Ordering::Relaxed);
        let mut to = &self.to;
        while !piece.is_empty() {
            match to.write(piece) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => piece = &piece[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.to, PollFlags::OUT)
                }
                Err(error) => return Err(error),
            }
        }
        self.progress.0.1.store(false, Ordering::Relaxed);
        self.progress.0.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Waits for a stream that the other side made non-blocking.
fn wait(stream: &File, flags: PollFlags) {
    poll(&mut [PollFd::new(stream, flags)], None).ok();
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;

    use super::*;
    use crate::commands::acp::proxy::tap::Tapped;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_byte_passes_in_order_however_it_is_cut(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..12),
            read_bytes in 1..5000_usize,
            is_rewriting: bool,
        ) {
            let (from, mut to_pump) = std::io::pipe().unwrap();
            let (mut from_pump, to) = std::io::pipe().unwrap();
            let tap = Arc::new(Tap::default());
            let file = |pipe: OwnedFd| File::from(pipe);
            let pump = Pump::new(file(from.into()), file(to.into()), Arc::clone(&tap), AcpSide::FromAgent);
            let pumping = pump.start(is_rewriting.then(|| Rewriter::new(None, None))).unwrap();
            let expect = pieces.concat();
            let writing = std::thread::spawn(move || pieces.iter().for_each(|piece| to_pump.write_all(piece).unwrap()));
            let (mut passed, mut chunk) = (Vec::new(), vec![0; read_bytes]);
            loop {
                match from_pump.read(&mut chunk).unwrap() {
                    0 => break,
                    n => passed.extend_from_slice(&chunk[..n]),
                }
            }
            writing.join().unwrap();
            pumping.join().unwrap();
            tap.close();
            let mut tapped = Vec::new();
            while let Some(Tapped::Bytes(_, bytes)) = tap.take() {
                tapped.extend(bytes);
            }
            prop_assert_eq!(&passed, &expect);
            prop_assert_eq!(&tapped, &expect);
        }
    }
}
