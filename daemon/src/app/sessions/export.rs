//! `session.export`: sessions as files, chunk by chunk.

use std::sync::Arc;

use ollm_protocol::content::ExportFormat;
use ollm_protocol::limits::{MAX_PART_BYTES, part_of};
use ollm_protocol::methods::TextPart;
use ollm_protocol::methods::session::{BranchFilter, SessionExportParams};
use ollm_protocol::{Seq, SessionId};

use super::read::{Branches, LargeRecords, RecordSlice, read};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::session::OpenSession;
use crate::session::document::SessionOverview;
use crate::session::export::Exporter;

/// The most records in one chunk.
const CHUNK_RECORDS: usize = 256;
/// Reads the next chunk of an export (`session.export`). Blocks on the disk.
pub(crate) fn export(core: &Arc<Core>, params: SessionExportParams) -> Result<TextPart> {
    let id = params.session_id;
    let mut progress = match &params.cursor {
        Some(cursor) => ExportProgress::parse(cursor, params.format)?,
        None => {
            let branch = params.branch.unwrap_or_else(|| default_branch(params.format));
            ExportProgress::start(core, id, params.format, branch)?
        }
    };
    let (data, page) = progress.next_chunk(core, id)?;
    let (done, total) = core
        .sessions
        .with(id, |live| (n_shown(live, page.done_records), n_shown(live, progress.end)))?;
    let next_cursor = (!page.is_last).then(|| progress.to_cursor());
    Ok(TextPart { data, next_cursor, done, total })
}

/// Returns the branches of an export that does not name them: files for programs have all records, and those for readers
/// the conversation as it is.
const fn default_branch(format: ExportFormat) -> BranchFilter {
    match format {
        ExportFormat::Json | ExportFormat::Jsonl => BranchFilter::All,
        ExportFormat::Markdown | ExportFormat::Html => BranchFilter::Active,
    }
}

/// Returns the number of records before `end` that clients know.
fn n_shown(live: &OpenSession, end: u64) -> u64 {
    live.state().client_records(0..end).count() as u64
}

/// The progress of an export. All chunks stop at the record that was the last at the first chunk.
#[derive(Clone)]
pub(super) struct ExportProgress {
    end: u64,
    next: u64,
    /// The bytes of the text of the next record that earlier chunks have; 0 for most records.
    skip: usize,
    has_begun: bool,
    branches: Branches,
    exporter: Exporter,
}

/// A page of an export that was written.
pub(super) struct ExportedPage {
    pub(super) is_last: bool,
    /// The records of this pass that are written.
    done_records: u64,
}

impl ExportProgress {
    /// Starts an export.
    pub(super) fn start(
        core: &Core,
        id: SessionId,
        format: ExportFormat,
        branch: BranchFilter,
    ) -> Result<Self> {
        let (end, leaf) = core
            .sessions
            .with(id, |live| (live.state().entries().len() as u64, live.state().leaf()))?;
        // A move of the leaf between two chunks would join the parts of two paths.
        let branches = match branch {
            BranchFilter::All => Branches::All,
            BranchFilter::Active => Branches::To(leaf),
        };
        let exporter = Exporter::new(format);
        Ok(Self { end, next: 0, skip: 0, has_begun: false, branches, exporter })
    }

    /// Returns the records to read, of any size.
    const fn records(&self) -> (Branches, LargeRecords) {
        (self.branches, LargeRecords::Whole)
    }

    /// Writes the next page of records to `out`. Blocks on the disk.
    pub(super) fn advance(
        &mut self,
        core: &Core,
        id: SessionId,
        out: &mut String,
    ) -> Result<ExportedPage> {
        self.advance_by(core, id, CHUNK_RECORDS, out)
    }

    /// Returns the next chunk, which fits into a frame as a JSON string. Blocks on the disk.
    ///
    /// A text grows when it is escaped, and again as JSON: if the text of a page does not fit, the chunk has fewer
    /// records, in the end a part of one.
    fn next_chunk(&mut self, core: &Core, id: SessionId) -> Result<(String, ExportedPage)> {
        if self.skip == 0 {
            for max_records in [CHUNK_RECORDS, CHUNK_RECORDS / 16, 1] {
                let mut progress = self.clone();
                let mut text = String::new();
                let page = progress.advance_by(core, id, max_records, &mut text)?;
                if part_of(&text, MAX_PART_BYTES) == text.len() {
                    *self = progress;
                    return Ok((text, page));
                }
            }
        }
        self.next_part(core, id)
    }

    /// Returns the text before the first record, or a part of the text of the next record. Blocks on the disk.
    ///
    /// The text of a record depends on the record and on the state of the exporter alone, so the parts fit together
    /// even if the session changes in between. The text after the last record is in a chunk of its own.
    fn next_part(&mut self, core: &Core, id: SessionId) -> Result<(String, ExportedPage)> {
        let RecordSlice { session, system_prompt, records, next: after, .. } =
            read(core, id, self.next..self.end, 1, self.records())?;
        let mut page = ExportedPage { is_last: false, done_records: self.next };
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            let overview =
                SessionOverview { session: &session, system_prompt: system_prompt.as_deref() };
            self.exporter.begin(&overview, &mut text);
            return Ok((text, page));
        }
        let mut exporter = self.exporter.clone();
        for record in records {
            exporter.record(record, &mut text);
        }
        let invalid = || AppError::invalid("cursor", "is not a cursor of this export");
        let rest = text.get(self.skip..).ok_or_else(invalid)?;
        let part = part_of(rest, MAX_PART_BYTES);
        if part < rest.len() {
            self.skip += part;
            return Ok((rest[..part].to_owned(), page));
        }
        page.done_records = after;
        let data = rest.to_owned();
        (self.skip, self.next, self.exporter) = (0, after, exporter);
        Ok((data, page))
    }

    fn advance_by(
        &mut self,
        core: &Core,
        id: SessionId,
        max_records: usize,
        out: &mut String,
    ) -> Result<ExportedPage> {
        let RecordSlice { session, system_prompt, records, next: after, .. } =
            read(core, id, self.next..self.end, max_records, self.records())?;
        let overview =
            SessionOverview { session: &session, system_prompt: system_prompt.as_deref() };
        if !std::mem::replace(&mut self.has_begun, true) {
            self.exporter.begin(&overview, out);
        }
        for record in records {
            self.exporter.record(record, out);
        }
        let pass_is_over = after >= self.end;
        self.next = if pass_is_over { 0 } else { after };
        let is_last = pass_is_over && !self.exporter.end_pass(&overview, out);
        Ok(ExportedPage { is_last, done_records: after.min(self.end) })
    }

    fn to_cursor(&self) -> String {
        let branches = match self.branches {
            Branches::All | Branches::Active => "all".to_owned(),
            Branches::To(None) => "none".to_owned(),
            Branches::To(Some(leaf)) => leaf.0.to_string(),
        };
        let Self { end, next, skip, exporter, .. } = self;
        format!("{end}:{next}:{skip}:{branches}:{}", exporter.to_cursor())
    }

    fn parse(cursor: &str, format: ExportFormat) -> Result<Self> {
        let parse = || {
            let mut fields = cursor.splitn(5, ':');
            let end = fields.next()?.parse().ok()?;
            let next = fields.next()?.parse().ok()?;
            let skip = fields.next()?.parse().ok()?;
            let branches = match fields.next()? {
                "all" => Branches::All,
                "none" => Branches::To(None),
                leaf => Branches::To(Some(Seq(leaf.parse().ok()?))),
            };
            let exporter = Exporter::from_cursor(fields.next()?)?;
            let progress = Self { end, next, skip, has_begun: true, branches, exporter };
            (progress.exporter.format() == format).then_some(progress)
        };
        parse().ok_or_else(|| AppError::invalid("cursor", "is not a cursor of this export"))
    }
}
