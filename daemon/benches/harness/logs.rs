//! Writes session logs as FORMAT.md describes them, faster than a daemon would record them.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;
use serde_json::json;

/// 2026-01-01T00:00:00Z: the first log begins here, and every record is later than the one before.
const BEGIN_MS: u64 = 1_767_225_600_000;

/// Makes logs, one after another.
pub(crate) struct Logs<'a> {
    dir: &'a Path,
    now_ms: u64,
    bytes: u64,
}

impl<'a> Logs<'a> {
    /// Logs in a directory.
    pub(crate) fn new(dir: &'a Path) -> Self {
        Self { dir, now_ms: BEGIN_MS, bytes: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes one session with a message for each text, user and assistant in turns; returns its id.
    pub(crate) fn write(&mut self, texts: impl Iterator<Item = String>) -> Result<String> {
        let id = self.next_id();
        let file = std::fs::File::create(self.dir.join(format!("{id}.jsonl")))?;
        let mut log = BufWriter::with_capacity(1 << 20, file);
        let at = self.next_instant();
        let header = format!(
            r#"{{"v":1,"seq":0,"parent":null,"durable":null,"at":"{at}","type":"session","session":{{"sessionId":"{id}","startTime":"{at}","model":"bench"}}"#
        );
        self.line(&mut log, &header)?;
        for (at_text, text) in texts.enumerate() {
            let (seq, parent) = (at_text + 1, at_text);
            let at = self.next_instant();
            let parent = if parent == 0 { json!(null) } else { json!(parent) };
            let role = if seq % 2 == 1 { "user" } else { "assistant" };
            let tokens = text.len() / 4;
            let text = serde_json::to_string(&text)?;
            let line = format!(
                r#"{{"v":1,"seq":{seq},"parent":{parent},"durable":{parent},"at":"{at}","type":"message","tokens":{tokens},"tokenizer":"estimate-v1","message":{{"role":"{role}","parts":[{{"type":"text","text":{text}}}],"timestamp":"{at}"}}"#
            );
            self.line(&mut log, &line)?;
        }
        log.flush()?;
        Ok(id)
    }

    /// An id as a session gets that begins now, so that logs made twice are the same.
    fn next_id(&self) -> String {
        let (seconds, millis) = (self.now_ms / 1000, u32::try_from(self.now_ms % 1000));
        let at =
            uuid::Timestamp::from_unix_time(seconds, millis.unwrap_or_default() * 1_000_000, 0, 0);
        uuid::Uuid::new_v7(at).to_string()
    }

    fn line(&mut self, log: &mut impl std::io::Write, open_object: &str) -> Result<()> {
        let crc = crc32c::crc32c(open_object.as_bytes());
        let line = format!("{open_object},\"crc\":\"{crc:08x}\"}}\n");
        self.bytes += line.len() as u64;
        Ok(log.write_all(line.as_bytes())?)
    }

    /// Ten milliseconds later than the one before; a million records stay within one day.
    fn next_instant(&mut self) -> String {
        self.now_ms += 10;
        let of_day = self.now_ms - BEGIN_MS;
        let (seconds, ms) = (of_day / 1000, of_day % 1000);
        let (day, hour) = (seconds / 86_400 + 1, seconds / 3600 % 24);
        let (minute, second) = (seconds / 60 % 60, seconds % 60);
        format!("2026-01-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}
