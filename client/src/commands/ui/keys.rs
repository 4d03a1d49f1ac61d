//! Keys: the bytes of a terminal as keys, and the thread that reads them.
//!
//! The thread reads only while a [`Keyboard`] exists, so that a chat can have the terminal in between.
//! **Invariant**: bytes that are no key are skipped and never stop the keys behind them; a pasted text is one key,
//! also if it is too long: its rest is dropped.

use std::io::{self, PipeWriter};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::background;
use crate::command_error::{CommandError, CommandResult};

/// The wait for the rest of a sequence that begins with ESC, over a slow connection too; then it was the key Esc.
const ESCAPE_WAIT: Duration = Duration::from_millis(40);
/// Keys that wait to be handled. A person types fewer; a held key repeats 30 times a second.
const MAX_WAITING_KEYS: usize = 256;
/// The longest pasted text, in bytes: more cannot be a title or a search.
const MAX_PASTE_BYTES: usize = 64 << 10;
const PASTE_START: &[u8] = b"\x1b[200~";
const PASTE_END: &[u8] = b"\x1b[201~";
/// The wait for the rest of the mark before a pasted text, and for the end of a text that is too long. A longer wait
/// would only delay the keys behind a mark that is lost.
const PASTE_WAIT: Duration = Duration::from_secs(1);

/// A key, or a text that was pasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UiKey {
    Char(char),
    /// Ctrl with a letter, in lower case.
    Ctrl(char),
    /// Alt with a character.
    Alt(char),
    Enter,
    Esc,
    Tab,
    BackTab,
    Backspace,
    Delete,
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    PageUp,
    PageDown,
    Paste(String),
}

/// The keys of the terminal of this process, until it is dropped. Its last key is followed by `None` if the terminal is
/// gone.
pub(super) struct Keyboard {
    keys: Receiver<UiKey>,
    /// Closing it ends the thread.
    stop: Option<PipeWriter>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl Keyboard {
    /// Starts to read keys from stdin.
    pub(super) fn start() -> CommandResult<Self> {
        let (sender, keys) = channel(MAX_WAITING_KEYS);
        let (stopped, stop) = io::pipe().map_err(CommandError::Thread)?;
        let (running, ended) = mpsc::channel::<()>();
        background::spawn("ollmctl-keys", move || {
            read_keys(&stopped, &sender);
            drop(running);
        })?;
        Ok(Self { keys, stop: Some(stop), ended })
    }

    /// Waits for the next key; `None` if the terminal is gone.
    ///
    /// **Cancel safety**: no key is lost.
    pub(super) async fn next(&mut self) -> Option<UiKey> {
        self.keys.recv().await
    }

    /// Returns the next key if it was typed already.
    pub(super) fn next_waiting(&mut self) -> Option<UiKey> {
        self.keys.try_recv().ok()
    }
}

impl Drop for Keyboard {
    /// Waits for the end of the thread, so that it takes no key from the next reader of the terminal.
    fn drop(&mut self) {
        self.keys.close();
        drop(self.stop.take());
        // An error is what is waited for: the thread sends nothing.
        self.ended.recv().ok();
    }
}

fn read_keys(stopped: &io::PipeReader, keys: &Sender<UiKey>) {
    let stdin = io::stdin();
    let mut decoder = KeyDecoder::default();
    let mut bytes = [0; 4096];
    loop {
        let wait = decoder.wait();
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut files = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let ready = match poll(&mut files, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(ready) => ready,
        };
        if !files[1].revents().is_empty() {
            return;
        }
        let found = if ready == 0 {
            decoder.finish()
        } else {
            match rustix::io::read(&stdin, &mut bytes) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                Err(_) | Ok(0) => return,
                Ok(read) => decoder.push(&bytes[..read]),
            }
        };
        if found.into_iter().any(|key| keys.blocking_send(key).is_err()) {
            return;
        }
    }
}

/// Turns the bytes of a terminal into keys.
#[derive(Debug, Default)]
struct KeyDecoder {
    bytes: Vec<u8>,
    /// Set from the cut of a pasted text that is too long to the end of the paste. The rest would be obeyed as keys.
    drops_paste: bool,
}

/// The beginning of the bytes: a key or nothing, and its length; or a sequence whose end is missing.
enum DecodedKey {
    Key(UiKey, usize),
    /// A pasted text that is too long, without its rest.
    CutPaste(UiKey, usize),
    Skipped(usize),
    Incomplete,
}

impl KeyDecoder {
    /// Adds bytes and returns the complete keys.
    fn push(&mut self, bytes: &[u8]) -> Vec<UiKey> {
        self.bytes.extend(bytes);
        let mut keys = Vec::new();
        let mut done = 0;
        while done < self.bytes.len() {
            let rest = &self.bytes[done..];
            if self.drops_paste {
                let Some(end) = paste_end(rest) else {
                    // The mark of the end may be incomplete.
                    done += rest.len().saturating_sub(PASTE_END.len() - 1);
                    break;
                };
                self.drops_paste = false;
                done += end + PASTE_END.len();
                continue;
            }
            match first_key(rest) {
                DecodedKey::Key(key, length) => {
                    keys.push(key);
                    done += length;
                }
                DecodedKey::CutPaste(key, length) => {
                    keys.push(key);
                    done += length;
                    self.drops_paste = true;
                }
                DecodedKey::Skipped(length) => done += length,
                DecodedKey::Incomplete => break,
            }
        }
        self.bytes.drain(..done);
        keys
    }

    /// Returns the time after which the last bytes mean what they mean alone; `None` if no time changes that.
    fn wait(&self) -> Option<Duration> {
        if self.drops_paste {
            return Some(PASTE_WAIT);
        }
        if self.bytes.is_empty() || self.bytes.starts_with(PASTE_START) {
            return None;
        }
        let is_mark = self.bytes.len() > 1 && PASTE_START.starts_with(&self.bytes);
        Some(if is_mark { PASTE_WAIT } else { ESCAPE_WAIT })
    }

    /// Returns the key of an unfinished sequence: Esc if it is nothing else. Ends a paste that is dropped.
    fn finish(&mut self) -> Vec<UiKey> {
        let was_paste = std::mem::take(&mut self.drops_paste);
        let rest = std::mem::take(&mut self.bytes);
        if rest == b"\x1b" && !was_paste { vec![UiKey::Esc] } else { Vec::new() }
    }
}

fn first_key(bytes: &[u8]) -> DecodedKey {
    match bytes {
        [0x1b] => DecodedKey::Incomplete,
        [0x1b, b'[', rest @ ..] => control_sequence(bytes, rest),
        [0x1b, b'O'] => DecodedKey::Incomplete,
        [0x1b, b'O', letter, ..] => match letter_key(*letter) {
            Some(key) => DecodedKey::Key(key, 3),
            None => DecodedKey::Skipped(3),
        },
        [0x1b, 0x1b, ..] => DecodedKey::Key(UiKey::Esc, 1),
        [0x1b, rest @ ..] => match first_key(rest) {
            DecodedKey::Key(UiKey::Char(char), length) => {
                DecodedKey::Key(UiKey::Alt(char), length + 1)
            }
            DecodedKey::Incomplete => DecodedKey::Incomplete,
            DecodedKey::Key(_, length)
            | DecodedKey::CutPaste(_, length)
            | DecodedKey::Skipped(length) => DecodedKey::Skipped(length + 1),
        },
        [b'\r' | b'\n', ..] => DecodedKey::Key(UiKey::Enter, 1),
        [b'\t', ..] => DecodedKey::Key(UiKey::Tab, 1),
        [0x7f | 0x08, ..] => DecodedKey::Key(UiKey::Backspace, 1),
        [control @ 1..=26, ..] => DecodedKey::Key(UiKey::Ctrl(char::from(control - 1 + b'a')), 1),
        [0..=31, ..] | [] => DecodedKey::Skipped(1),
        _ => character(bytes),
    }
}

/// Decodes a sequence after ESC and `[`, which are part of `whole`.
fn control_sequence(whole: &[u8], rest: &[u8]) -> DecodedKey {
    if let Some(pasted) = rest.strip_prefix(b"200~") {
        return paste(whole, pasted);
    }
    // The Linux console sends its function keys so.
    if rest.first() == Some(&b'[') {
        return if rest.len() < 2 { DecodedKey::Incomplete } else { DecodedKey::Skipped(4) };
    }
    let is_end = |byte: &u8| (0x40..=0x7e).contains(byte) || *byte < 0x20;
    let Some(end) = rest.iter().position(is_end) else { return DecodedKey::Incomplete };
    // A sequence has no control characters: this is none.
    if rest[end] < 0x20 {
        return DecodedKey::Skipped(2 + end);
    }
    let number = rest[..end].split(|byte| *byte == b';').next();
    let key = match (rest[end], number) {
        (b'~', Some(b"1" | b"7")) => Some(UiKey::Home),
        (b'~', Some(b"4" | b"8")) => Some(UiKey::End),
        (b'~', Some(b"3")) => Some(UiKey::Delete),
        (b'~', Some(b"5")) => Some(UiKey::PageUp),
        (b'~', Some(b"6")) => Some(UiKey::PageDown),
        (b'Z', _) => Some(UiKey::BackTab),
        (letter, _) => letter_key(letter),
    };
    let length = 2 + end + 1;
    key.map_or(DecodedKey::Skipped(length), |key| DecodedKey::Key(key, length))
}

fn letter_key(letter: u8) -> Option<UiKey> {
    match letter {
        b'A' => Some(UiKey::Up),
        b'B' => Some(UiKey::Down),
        b'C' => Some(UiKey::Right),
        b'D' => Some(UiKey::Left),
        b'H' => Some(UiKey::Home),
        b'F' => Some(UiKey::End),
        b'M' => Some(UiKey::Enter),
        _ => None,
    }
}

fn paste(whole: &[u8], pasted: &[u8]) -> DecodedKey {
    let start = whole.len() - pasted.len();
    let key = |text: &[u8]| UiKey::Paste(String::from_utf8_lossy(text).into_owned());
    match paste_end(pasted) {
        Some(end) => DecodedKey::Key(key(&pasted[..end]), start + end + PASTE_END.len()),
        None if pasted.len() > MAX_PASTE_BYTES => {
            // The last bytes may begin the mark of the end.
            let cut = pasted.len() - (PASTE_END.len() - 1);
            DecodedKey::CutPaste(key(&pasted[..cut]), start + cut)
        }
        None => DecodedKey::Incomplete,
    }
}

/// Returns the position of the mark that ends a pasted text.
fn paste_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(PASTE_END.len()).position(|window| window == PASTE_END)
}

fn character(bytes: &[u8]) -> DecodedKey {
    let length = match bytes[0] {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    let Some(first) = bytes.get(..length) else { return DecodedKey::Incomplete };
    match std::str::from_utf8(first).ok().and_then(|text| text.chars().next()) {
        Some(char) => DecodedKey::Key(UiKey::Char(char), length),
        None => DecodedKey::Skipped(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Vec<UiKey> {
        let mut decoder = KeyDecoder::default();
        let mut keys = decoder.push(bytes);
        keys.extend(decoder.finish());
        keys
    }

    #[test]
    fn bytes_become_keys() {
        let check = |bytes: &[u8], expect: &[UiKey]| assert_eq!(decode(bytes), expect, "{bytes:?}");
        check(b"aA", &[UiKey::Char('a'), UiKey::Char('A')]);
        check("é日🎉".as_bytes(), &[UiKey::Char('é'), UiKey::Char('日'), UiKey::Char('🎉')]);
        check(
            b"\r\t\x7f\x08\x03",
            &[UiKey::Enter, UiKey::Tab, UiKey::Backspace, UiKey::Backspace, UiKey::Ctrl('c')],
        );
        check(
            b"\x1b[A\x1bOB\x1b[1;5C\x1b[Z",
            &[UiKey::Up, UiKey::Down, UiKey::Right, UiKey::BackTab],
        );
        check(
            b"\x1b[5~\x1b[6~\x1b[3~\x1b[1~\x1b[F",
            &[UiKey::PageUp, UiKey::PageDown, UiKey::Delete, UiKey::Home, UiKey::End],
        );
        check(b"\x1bx\x1b\x1b[A", &[UiKey::Alt('x'), UiKey::Esc, UiKey::Up]);
        check(b"\x1b", &[UiKey::Esc]);
    }

    #[test]
    fn bytes_that_are_no_key_are_skipped() {
        let check = |bytes: &[u8]| assert_eq!(decode(bytes), [UiKey::Char('q')], "{bytes:?}");
        check(b"\x1b[[Aq");
        check(b"\x1b[Iq");
        check(b"\x1bOPq");
        check(b"\x1b[15~q");
        check(b"\xff\xfeq");
        check(b"\x00\x1c\x1fq");
        assert_eq!(decode(b"\x1b[12"), []);
        assert_eq!(decode(b"\x1b[1\rq"), [UiKey::Enter, UiKey::Char('q')]);
    }

    #[test]
    fn sequences_may_arrive_in_pieces() {
        let input = "a\u{1b}[A\u{1b}[200~two\nlines\u{1b}[201~é\u{1b}[6~".as_bytes();
        let whole = decode(input);
        assert_eq!(whole[2], UiKey::Paste("two\nlines".to_owned()));
        for size in 1..input.len() {
            let mut decoder = KeyDecoder::default();
            let keys: Vec<UiKey> =
                input.chunks(size).flat_map(|piece| decoder.push(piece)).collect();
            assert_eq!(keys, whole, "pieces of {size}");
        }
    }

    #[test]
    fn rest_of_a_long_paste_is_no_key() {
        for split in 0..PASTE_END.len() {
            let mut decoder = KeyDecoder::default();
            let mut long = b"\x1b[200~".to_vec();
            long.resize(long.len() + MAX_PASTE_BYTES + 1, b'x');
            long.extend(&PASTE_END[..split]);
            let keys = decoder.push(&long);
            assert!(matches!(keys.as_slice(), [UiKey::Paste(_)]), "{split}");
            if split == 0 {
                assert_eq!(decoder.push(b"dy\rdy\x1b[A"), []);
            }
            assert_eq!(decoder.wait(), Some(PASTE_WAIT));
            decoder.push(&PASTE_END[split..]);
            assert_eq!(decoder.wait(), None);
            assert_eq!(decoder.push(b"q"), [UiKey::Char('q')], "{split}");
        }
    }

    #[test]
    fn paste_without_an_end_is_bounded() {
        let mut decoder = KeyDecoder::default();
        assert_eq!(decoder.push(PASTE_START), []);
        assert_eq!(decoder.push(&[b'x'; MAX_PASTE_BYTES + 1]).len(), 1);
        assert_eq!(decoder.push(&[b'd'; MAX_PASTE_BYTES]), []);
        assert!(decoder.bytes.len() < PASTE_END.len());
        assert_eq!(decoder.finish(), []);
        assert_eq!(decoder.wait(), None);
        assert_eq!(decoder.push(b"q"), [UiKey::Char('q')]);
    }

    #[test]
    fn mark_of_a_paste_is_awaited_longer_than_esc() {
        let check = |bytes: &[u8], expect: Option<Duration>| {
            let mut decoder = KeyDecoder::default();
            decoder.push(bytes);
            assert_eq!(decoder.wait(), expect, "{bytes:?}");
        };
        check(b"\x1b", Some(ESCAPE_WAIT));
        check(b"\x1b[", Some(PASTE_WAIT));
        check(b"\x1b[200", Some(PASTE_WAIT));
        check(b"\x1b[12", Some(ESCAPE_WAIT));
        check(b"\x1b[200~", None);
        check(b"q", None);
    }
}
