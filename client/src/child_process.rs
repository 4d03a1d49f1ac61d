//! Programs that are started: reading a line from their pipe, and waiting for their end.

use std::io::{self, PipeReader, Read as _};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The maximum number of bytes read from a pipe, or of a log; a starting daemon writes one line.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 10;
/// The time between two checks whether a silent program has ended.
const EXIT_CHECK_PAUSE: Duration = Duration::from_millis(50);

/// Reads from a pipe up to the first line break, the end of the pipe, or the failure of the writer; `None` at the
/// deadline.
pub(crate) fn read_line(
    reader: &mut PipeReader,
    deadline: Instant,
    has_failed: &mut dyn FnMut() -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let is_complete = read_until(reader, deadline, has_failed, &mut line, Some(b'\n'))?;
    Ok(is_complete.then_some(line))
}

/// Reads from a pipe up to its end, or what arrives before the deadline.
pub(crate) fn read_to_end(reader: &mut PipeReader, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_until(reader, deadline, &mut || false, &mut bytes, None)?;
    Ok(bytes)
}

/// Appends what is read; returns false at the deadline.
fn read_until(
    reader: &mut PipeReader,
    deadline: Instant,
    has_failed: &mut dyn FnMut() -> bool,
    line: &mut Vec<u8>,
    last: Option<u8>,
) -> io::Result<bool> {
    let mut chunk = [0_u8; 4096];
    while !last.is_some_and(|last| line.contains(&last)) && line.len() < MAX_LINE_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left.min(EXIT_CHECK_PAUSE)).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&*reader, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if has_failed() => break,
            Ok(0) if left <= EXIT_CHECK_PAUSE => return Ok(false),
            Ok(0) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match reader.read(&mut chunk)? {
            0 => break,
            read => line.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(true)
}

/// Waits for the end of a process; `None` at the deadline.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Collects the daemon's exit status in a thread, so that a program that outlives the daemon keeps no zombie.
pub(crate) fn reap(mut child: Child) {
    let thread = std::thread::Builder::new().name("ollmd-reaper".to_owned());
    // Without the thread the system collects the status when this process ends.
    drop(thread.spawn(move || child.wait()));
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn pipe_is_read_up_to_line_break_end_or_deadline() {
        let check = |written: &[u8], hang_up: bool, expect: Option<&[u8]>| {
            let (mut reader, mut writer) = io::pipe().unwrap();
            writer.write_all(written).unwrap();
            let held = (!hang_up).then_some(writer);
            let deadline = Instant::now() + Duration::from_millis(30);
            assert_eq!(read_line(&mut reader, deadline, &mut || false).unwrap().as_deref(), expect);
            drop(held);
        };
        check(b"ok\n", false, Some(b"ok\n"));
        check(b"ok", true, Some(b"ok"));
        check(b"", true, Some(b""));
        check(b"", false, None);
        check(b"half a line", false, None);
    }
}
