//! The checks that the fuzz targets and the property tests run on arbitrary bytes. Each panics if a property is broken.
//!
//! It exists only for tests and fuzzing. The checks of a module lie in the module, because they use its private parts.
//! ARCHITECTURE.md, "Fuzzing".

mod frames;

pub use frames::frames;

/// Checks that bytes can be read as the log of a session, and that what is read can be written again.
///
/// The first byte selects how the other bytes become a log: see `session::fuzzing`.
pub fn log_lines(bytes: &[u8]) {
    crate::session::fuzzing::check_log(bytes);
}

/// Checks that bytes can be imported or are refused, and that an import survives its own export.
pub fn imports(bytes: &[u8]) {
    crate::session::fuzzing::check_import(bytes);
}

/// Checks that bytes in the rows of the catalog never change what a session contains.
///
/// The first bytes select the column: see `catalog::fuzzing`.
pub fn catalog_rows(bytes: &[u8]) {
    crate::catalog::fuzzing::check_rows_of(bytes);
}

#[cfg(test)]
mod tests;
