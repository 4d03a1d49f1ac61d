//! The format of a file, by its beginning.
//!
//! A format of this table cannot be imported yet; the refusal names it, so that a person knows why.

use std::fmt;
use std::io::{BufRead, Read};

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::imported::{ImportError, shortened};
use super::lines::LineReader;

/// Number of non-blank lines that are examined; more than one, because the first line may be damaged.
const DETECT_LINES: usize = 5;
/// Bytes that are examined of a line and of a whole file. The first line of every known format is much shorter.
pub(super) const DETECT_BYTES: usize = 64 * 1024;
/// Number of names that are read of one object.
const MAX_NAMES: usize = 64;
/// Number of names in the description of an unknown file.
const SHOWN_NAMES: usize = 4;

/// A format that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// An own export as JSON lines.
    Export,
    /// A session of pi.
    Pi,
    /// A session document.
    Document,
}

/// The sign of a foreign format.
enum ForeignSign {
    /// The file begins with this text.
    Start(&'static str),
    /// The first object, or the first element of an array, has all these fields.
    Fields(&'static [&'static str]),
}

/// A format of another program.
struct ForeignFormat {
    /// The format with its article.
    name: &'static str,
    /// The sign in words.
    shape: &'static str,
    sign: ForeignSign,
}

/// The formats of other programs. The first one that applies is reported.
const FOREIGN_FORMATS: &[ForeignFormat] = &[
    ForeignFormat {
        name: "a Claude Code session",
        shape: "JSON lines with `uuid` and `parentUuid`",
        sign: ForeignSign::Fields(&["uuid", "parentUuid"]),
    },
    ForeignFormat {
        name: "a Claude Code session",
        shape: "JSON lines that begin with a `summary` and its `leafUuid`",
        sign: ForeignSign::Fields(&["summary", "leafUuid"]),
    },
    ForeignFormat {
        name: "a Codex rollout",
        shape: "JSON lines with `timestamp`, `type` and `payload`",
        sign: ForeignSign::Fields(&["timestamp", "type", "payload"]),
    },
    ForeignFormat {
        name: "an export of ChatGPT",
        shape: "a list of conversations with `mapping` and `create_time`",
        sign: ForeignSign::Fields(&["mapping", "create_time"]),
    },
    ForeignFormat {
        name: "an export of Open WebUI",
        shape: "a list of objects with `user_id`, `title` and `chat`",
        sign: ForeignSign::Fields(&["user_id", "title", "chat"]),
    },
    ForeignFormat {
        name: "a conversation of LM Studio",
        shape: "an object with `pinned`, `createdAt` and `tokenCount`",
        sign: ForeignSign::Fields(&["pinned", "createdAt", "tokenCount"]),
    },
    ForeignFormat {
        name: "a chat history of aider",
        shape: "Markdown that begins with `# aider chat started at`",
        sign: ForeignSign::Start("# aider chat started at"),
    },
    ForeignFormat {
        name: "a SQLite database, such as the logs of llm",
        shape: "a file that begins with `SQLite format 3`",
        sign: ForeignSign::Start("SQLite format 3"),
    },
];

/// Returns the format of a file, or `None` if it has none of the known ones. A document may prove to be something else.
///
/// **Errors**: `Empty`, `Foreign`, `File`.
pub(super) fn detect(source: impl BufRead) -> Result<Option<FileFormat>, ImportError> {
    let mut lines = LineReader::new(source, DETECT_BYTES);
    let mut first: Option<Vec<u8>> = None;
    let mut foreign = None;
    for _ in 0..DETECT_LINES {
        let Some(line) = lines.next().map_err(ImportError::File)? else { break };
        let head = ObjectHead::of(line.text);
        if head.is_complete_object && head.has("ollmExport") {
            return Ok(Some(FileFormat::Export));
        }
        if head.is_pi_header() {
            return Ok(Some(FileFormat::Pi));
        }
        foreign = foreign.or_else(|| find_foreign(line.text, &head));
        first.get_or_insert_with(|| line.text.to_vec());
    }
    let Some(first) = first else { return Err(ImportError::Empty) };
    if let Some(ForeignFormat { name, shape, .. }) = foreign {
        return Err(ImportError::Foreign { name, shape });
    }
    Ok(first.starts_with(b"{").then_some(FileFormat::Document))
}

/// Returns the foreign format of the beginning of a file, or of a whole document that has line breaks.
pub(super) fn detect_foreign(beginning: &[u8]) -> Option<ImportError> {
    let beginning = beginning.trim_ascii_start();
    let found = find_foreign(beginning, &ObjectHead::of(beginning))?;
    Some(ImportError::Foreign { name: found.name, shape: found.shape })
}

/// Describes the beginning of a file of an unknown format.
pub(super) fn describe(beginning: &[u8]) -> String {
    let beginning = beginning.trim_ascii_start();
    let head = ObjectHead::of(beginning);
    let names: Vec<_> =
        head.names.iter().take(SHOWN_NAMES).map(|name| format!("`{}`", shortened(name))).collect();
    let with_names = |what: &str| match names.as_slice() {
        [] => format!("{what} without fields"),
        names => format!("{what} whose first fields are {}", names.join(", ")),
    };
    match beginning.first() {
        Some(b'{') => with_names("a JSON object"),
        Some(b'[') => with_names("a JSON list, with an element"),
        _ => {
            let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let start: String = String::from_utf8_lossy(line).chars().take(40).collect();
            format!("text that begins with {:?}", shortened(&start))
        }
    }
}

/// Reads the bytes from which a file is described.
pub(super) fn beginning_of(source: impl Read) -> Result<Vec<u8>, ImportError> {
    let mut beginning = Vec::new();
    let read = source.take(DETECT_BYTES as u64).read_to_end(&mut beginning);
    read.map_err(ImportError::File)?;
    Ok(beginning)
}

fn find_foreign(text: &[u8], head: &ObjectHead) -> Option<&'static ForeignFormat> {
    FOREIGN_FORMATS.iter().find(|format| match format.sign {
        ForeignSign::Start(start) => text.starts_with(start.as_bytes()),
        ForeignSign::Fields(names) => names.iter().all(|name| head.has(name)),
    })
}

/// The beginning of a JSON object, or of the first object of a list.
#[derive(Default)]
struct ObjectHead {
    /// The names of the fields, as far as they were read.
    names: Vec<String>,
    /// The value of `type`, if it is a string.
    kind: Option<String>,
    has_text_id: bool,
    /// Whether the text is one whole object.
    is_complete_object: bool,
}

impl ObjectHead {
    /// Reads as much of a text as is JSON.
    fn of(text: &[u8]) -> Self {
        let mut head = Self::default();
        let mut input = serde_json::Deserializer::from_slice(text);
        let parsed = input.deserialize_any(HeadVisitor(&mut head));
        head.is_complete_object = parsed.is_ok() && input.end().is_ok() && text.starts_with(b"{");
        head
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|found| found == name)
    }

    /// Returns whether this is the first line of a pi session.
    fn is_pi_header(&self) -> bool {
        // The lines of a session log have a `seq`; they are not entries of pi.
        let is_header = self.kind.as_deref() == Some("session") && self.has_text_id;
        self.is_complete_object && is_header && !self.has("seq")
    }
}

struct HeadVisitor<'a>(&'a mut ObjectHead);

impl<'de> Visitor<'de> for HeadVisitor<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let head = self.0;
        while let Some(name) = fields.next_key::<String>()? {
            let is_examined = matches!(name.as_str(), "type" | "id");
            let is_type = name == "type";
            if head.names.len() < MAX_NAMES {
                head.names.push(name);
            }
            if !is_examined {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            match fields.next_value::<Value>()? {
                Value::String(text) if is_type => head.kind = Some(text),
                Value::String(_) => head.has_text_id = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        struct FirstElement<'a>(&'a mut ObjectHead);
        impl<'de> serde::de::DeserializeSeed<'de> for FirstElement<'_> {
            type Value = ();
            fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
                input.deserialize_map(HeadVisitor(self.0))
            }
        }
        elements.next_element_seed(FirstElement(self.0))?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
