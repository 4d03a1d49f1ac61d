//! `session.export`: sessions as files, chunk by chunk.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::ExportFormat;
use ollm_protocol::methods::session::{BranchFilter, SessionExportParams, SessionExportResult};

use super::read::{RecordSlice, read};
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::session::document::SessionOverview;
use crate::session::export::Exporter;

/// The most records in one chunk.
const CHUNK_RECORDS: usize = 256;

/// Reads the next chunk of an export (`session.export`). Blocks on the disk.
pub(crate) fn export(core: &Arc<Core>, params: SessionExportParams) -> Result<SessionExportResult> {
    let id = params.session_id;
    let mut progress = match &params.cursor {
        Some(cursor) => ExportProgress::parse(cursor, params.format)?,
        None => ExportProgress::start(core, id, params.format)?,
    };
    let mut data = String::new();
    let page = progress.advance(core, id, &mut data)?;
    Ok(SessionExportResult {
        data,
        next_cursor: (!page.is_last).then(|| progress.to_cursor()),
        done_records: page.done_records,
        total_records: progress.end,
    })
}

/// The progress of an export. All chunks stop at the record that was the last at the first chunk.
pub(super) struct ExportProgress {
    end: u64,
    next: u64,
    has_begun: bool,
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
    pub(super) fn start(core: &Core, id: SessionId, format: ExportFormat) -> Result<Self> {
        let end = core.sessions.with(id, |live| live.state().entries().len() as u64)?;
        Ok(Self { end, next: 0, has_begun: false, exporter: Exporter::new(format) })
    }

    /// Writes the next page of records to `out`. Blocks on the disk.
    pub(super) fn advance(
        &mut self,
        core: &Core,
        id: SessionId,
        out: &mut String,
    ) -> Result<ExportedPage> {
        let RecordSlice { session, system_prompt, records, next: after, .. } =
            read(core, id, self.next..self.end, CHUNK_RECORDS, BranchFilter::All)?;
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
        format!("{}:{}:{}", self.end, self.next, self.exporter.to_cursor())
    }

    fn parse(cursor: &str, format: ExportFormat) -> Result<Self> {
        let parse = || {
            let mut fields = cursor.splitn(3, ':');
            let end = fields.next()?.parse().ok()?;
            let next = fields.next()?.parse().ok()?;
            let exporter = Exporter::from_cursor(fields.next()?)?;
            (exporter.format() == format).then_some(Self { end, next, has_begun: true, exporter })
        };
        parse().ok_or_else(|| AppError::invalid("cursor", "is not a cursor of this export"))
    }
}
