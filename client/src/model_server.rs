//! The model server of the daemon, compared with `OLLAMA_HOST` of this shell.
//!
//! The daemon has the variable of the shell that started it, or none as a service, and any later one changes nothing.
//! Pure.

use ollm_protocol::ErrorKind;
use ollm_protocol::methods::daemon::ModelServerAddress;
use ollm_protocol::model_host::ModelHost;
use ollm_protocol::sanitize;

/// The daemon's advice for an Ollama that does not run.
pub(crate) const START_OLLAMA: &str = "ollama serve";
/// The advice where Ollama is not installed.
pub(crate) const NO_OLLAMA: &str = "Ollama is not installed here (https://ollama.com); without a model, everything but answers works";

/// A daemon that uses another model server than its environment variable in this shell says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OtherModelServer {
    /// The difference, as a sentence.
    pub(crate) text: String,
    /// The next command.
    pub(crate) hint: String,
}

impl OtherModelServer {
    /// Compares the daemon's model server with `OLLAMA_HOST`; `None` if they are the same, if one is not known, or if the
    /// configuration decides. `is_service`: a service manager starts the daemon, without the variables of this shell.
    pub(crate) fn of(
        used: Option<&ModelServerAddress>,
        ollama_host: Option<&str>,
        is_service: bool,
    ) -> Option<Self> {
        let (used, own) = (used?, ModelHost::parse(ollama_host?).ok()?.to_string());
        if used.configured || used.host == own {
            return None;
        }
        let host = sanitize::one_line(&used.host);
        let text = format!("the daemon uses {host}, and OLLAMA_HOST of this shell is {own}");
        let hint = if is_service {
            "set ollama.host in the file of `ollmctl config path`"
        } else {
            "ollmctl daemon restart"
        };
        Some(Self { text, hint: hint.to_owned() })
    }
}

/// Returns whether an error can have its cause in the address of the model server.
pub(crate) const fn is_about_server(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ModelUnavailable | ErrorKind::ModelNotFound | ErrorKind::ModelRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_server_is_named_with_the_command_that_changes_it() {
        let used =
            |host: &str, configured| ModelServerAddress { host: host.to_owned(), configured };
        let local = used("http://127.0.0.1:11434", false);
        let hint = |used: &ModelServerAddress, own, is_service| {
            OtherModelServer::of(Some(used), own, is_service).map(|other| other.hint)
        };
        for same in
            [None, Some("127.0.0.1"), Some("0.0.0.0:11434"), Some("http://127.0.0.1:11434/")]
        {
            assert_eq!(hint(&local, same, false), None, "{same:?}");
        }
        assert_eq!(hint(&local, Some("ftp://box"), false), None, "is no address");
        assert_eq!(OtherModelServer::of(None, Some("box"), false), None);
        let other = OtherModelServer::of(Some(&local), Some("box"), false).expect("differs");
        assert_eq!(
            other.text,
            "the daemon uses http://127.0.0.1:11434, and OLLAMA_HOST of this shell is http://box:11434"
        );
        assert_eq!(other.hint, "ollmctl daemon restart");
        assert_eq!(hint(&used("http://a:1", true), Some("box"), false), None);
        assert!(hint(&local, Some("box"), true).is_some_and(|hint| hint.contains("ollama.host")));
    }
}
