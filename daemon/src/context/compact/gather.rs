//! One pass over the records of a range: everything that a compaction needs of them.

use ollm_protocol::Seq;
use ollm_protocol::content::RecordBody;

use super::extract::Extractor;
use super::retention::{Identifiers, Kept};
use super::transcript::{Piece, Pieces};
use crate::context::BuildInput;
use crate::context::contents::{Contents, ContentsError};
use crate::context::ledger::Ledger;
use crate::tokens::Counter;

/// Files whose names are looked for in a new context: those that were changed last.
const MEASURED_FILES: usize = 10;
/// Records that are read at once.
const BATCH: usize = 64;

/// What a range holds.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The records as a summarizer reads them.
    pub pieces: Vec<Piece>,
    /// Identifiers that occur more than once.
    pub identifiers: Vec<String>,
    /// Files that tools changed and read.
    pub files: Ledger,
    /// What a summary without a model is made from.
    pub extractor: Extractor,
}

/// Reads the records of a range; `room` is how many tokens a piece may have.
pub(crate) fn gather(
    contents: &dyn Contents,
    records: &[Seq],
    counter: &Counter,
    room: u64,
) -> Result<Gathered, ContentsError> {
    let mut pieces = Pieces::new(counter, room);
    let mut identifiers = Identifiers::default();
    let mut gathered = Gathered::default();
    each(contents, records, |seq, body| {
        pieces.add(seq, body);
        identifiers.see(body);
        gathered.files.note(body);
        gathered.extractor.see(seq, body);
    })?;
    gathered.pieces = pieces.finish();
    gathered.identifiers = identifiers.frequent();
    Ok(gathered)
}

/// Reads records for a summary without a model.
pub(crate) fn extracted(
    contents: &dyn Contents,
    records: &[Seq],
) -> Result<Extractor, ContentsError> {
    let mut extractor = Extractor::default();
    each(contents, records, |seq, body| extractor.see(seq, body))?;
    Ok(extractor)
}

/// The texts of some records, damaged ones left out.
fn texts(contents: &dyn Contents, records: &[Seq]) -> Result<Vec<String>, ContentsError> {
    let mut texts = Vec::new();
    each(contents, records, |_, body| match body {
        RecordBody::Message(message) => texts.push(message.plain_text()),
        RecordBody::ToolCall(call) => texts.push(call.result.llm_content.clone()),
        RecordBody::Custom(custom) => texts.extend(custom.context_text.clone()),
        _ => {}
    })?;
    Ok(texts)
}

fn each(
    contents: &dyn Contents,
    records: &[Seq],
    mut see: impl FnMut(Seq, &RecordBody),
) -> Result<(), ContentsError> {
    for batch in records.chunks(BATCH) {
        let bodies = contents.bodies(batch)?;
        for (seq, body) in batch.iter().zip(bodies) {
            if let Some(body) = body {
                see(*seq, &body);
            }
        }
    }
    Ok(())
}

/// What a compaction must not lose: the task, pins and decisions of the session, with files and identifiers of the
/// range.
pub(crate) fn to_keep(
    input: &BuildInput<'_>,
    contents: &dyn Contents,
    files: Vec<String>,
    identifiers: Vec<String>,
) -> Result<Kept, ContentsError> {
    let task = input.path.iter().find(|item| item.is_user_message()).map(|item| item.seq);
    let task = texts(contents, task.as_slice())?.pop();
    let on_path = |seq: &&Seq| input.path.binary_search_by_key(*seq, |item| item.seq).is_ok();
    let pins: Vec<Seq> = input.pins.iter().filter(on_path).copied().collect();
    let pins = texts(contents, &pins)?;
    // What was worked on long ago may be no more than a number in the ledger.
    let files = files[files.len().saturating_sub(MEASURED_FILES)..].to_vec();
    Ok(Kept { task, pins, decisions: input.decisions.to_vec(), files, identifiers })
}
