//! The checks of logs and imports on arbitrary bytes, for fuzz targets and property tests.

mod imports;
mod log_lines;

pub(crate) use imports::check_import;
pub(crate) use log_lines::check_log;
pub(crate) use log_lines::{LogFixture, open_with_hint, update_of_log};
