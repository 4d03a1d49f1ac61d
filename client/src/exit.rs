//! The exit codes of `ollmctl`: one for each class of errors, so that a script can decide without parsing messages.

use std::process::ExitCode;

use ollm_protocol::ErrorClass;

/// An exit code of `ollmctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded, or the reader of its output closed the pipe.
    Success = 0,
    /// The daemon or the machine failed.
    Internal = 1,
    /// The command line or the request is wrong.
    Usage = 2,
    /// The requested thing does not exist.
    NotFound = 3,
    /// The request conflicts with other work; a retry can help.
    Busy = 4,
    /// The configuration is wrong.
    Config = 5,
    /// The daemon cannot be reached.
    Unreachable = 6,
    /// A signal ended the command; shells use this code for Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// Returns the exit code for a class of the daemon's errors.
    #[must_use]
    pub const fn of_class(class: ErrorClass) -> Self {
        match class {
            ErrorClass::User => Self::Usage,
            ErrorClass::Config => Self::Config,
            ErrorClass::Busy => Self::Busy,
            ErrorClass::Gone => Self::NotFound,
            ErrorClass::Internal => Self::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::ErrorKind;

    use super::*;

    #[test]
    fn error_kind_has_the_code_of_its_class() {
        let check =
            |kind: ErrorKind, code: u8| assert_eq!(Exit::of_class(kind.class()) as u8, code);
        check(ErrorKind::Internal, 1);
        check(ErrorKind::Storage, 1);
        check(ErrorKind::InvalidParams, 2);
        check(ErrorKind::InvalidId, 2);
        check(ErrorKind::SessionNotFound, 3);
        check(ErrorKind::Busy, 4);
        check(ErrorKind::Conflict, 4);
        check(ErrorKind::Config, 5);
        assert!(ErrorKind::ALL.iter().all(|kind| Exit::of_class(kind.class()) as u8 > 0));
    }
}
