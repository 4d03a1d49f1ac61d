//! The question whose home a daemon serves, asked before anything else is sent. PROTOCOL.md, section 1.
//!
//! **Invariant**: nothing is sent after the question until its reply has arrived, so the stream is at the beginning of
//! a message afterwards.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::method::{DaemonHello, DaemonStatus};
use ollm_protocol::methods::daemon::{DaemonHelloParams, DaemonHelloResult, ModelServerAddress};
use ollm_protocol::{ErrorKind, Method as _, PROTOCOL_VERSION};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::address::home_id;
use crate::error::{AttemptCause, ClientError, RpcFailure};

/// The longest reply; that of `daemon.status` has a few kilobytes.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// The reason why a daemon is not used.
pub(super) enum HelloError {
    /// Another socket can be tried.
    Attempt(AttemptCause),
    /// The daemon refused the call.
    Refused(ClientError),
}

/// The version of a daemon that serves the requested home, and its model server.
#[derive(Debug)]
pub(crate) struct DaemonVersion {
    pub(crate) version: String,
    pub(crate) protocol: u32,
    pub(crate) model_server: Option<ModelServerAddress>,
}

/// Asks the daemon at the other end which home it serves.
///
/// **Errors**: [`AttemptCause::OtherHome`] if it is not `home`.
pub(super) fn require_home(
    stream: &UnixStream,
    home: &Path,
    timeout: Duration,
) -> Result<DaemonVersion, HelloError> {
    let mut exchange = Exchange { stream, timeout, last_id: 0 };
    let hello = exchange.hello()?;
    // A socket of a service manager starts the daemon, which creates the home before it replies.
    let own = home_id(home);
    if own.is_none() || hello.home_id != own {
        let status: Value = exchange.call(DaemonStatus::NAME, &json!({}))?;
        let served = PathBuf::from(status["home"].as_str().unwrap_or_default());
        // Early daemons name the home by its path only.
        let is_same = hello.home_id.is_none() && own.is_some() && home_id(&served) == own;
        if !is_same {
            let wanted = home.to_owned();
            return Err(HelloError::Attempt(AttemptCause::OtherHome { served, wanted }));
        }
    }
    let cannot_reset = |error| HelloError::Attempt(AttemptCause::Failed(error));
    stream.set_read_timeout(None).map_err(cannot_reset)?;
    stream.set_write_timeout(None).map_err(cannot_reset)?;
    let DaemonHelloResult { version, protocol, model_server, .. } = hello;
    Ok(DaemonVersion { version, protocol, model_server })
}

/// Calls over a stream that nobody else uses.
struct Exchange<'a> {
    stream: &'a UnixStream,
    timeout: Duration,
    last_id: u64,
}

impl Exchange<'_> {
    fn hello(&mut self) -> Result<DaemonHelloResult, HelloError> {
        let params = |min: u32, max: u32| DaemonHelloParams {
            client: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: min,
            protocol_max: max,
        };
        match self.call(DaemonHello::NAME, &params(PROTOCOL_VERSION, PROTOCOL_VERSION)) {
            // A daemon of another protocol can be named, and stopped.
            Err(HelloError::Refused(ClientError::Rpc(failure)))
                if failure.kind == Some(ErrorKind::UnsupportedVersion) =>
            {
                self.call(DaemonHello::NAME, &params(0, u32::MAX))
            }
            agreed => agreed,
        }
    }

    fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &impl serde::Serialize,
    ) -> Result<T, HelloError> {
        self.last_id += 1;
        let request = json!({
            "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params
        });
        let line = self.exchange(&request).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                HelloError::Attempt(AttemptCause::Silent(self.timeout))
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => HelloError::Attempt(AttemptCause::Closed),
            _ => HelloError::Attempt(AttemptCause::Failed(error)),
        })?;
        let bad_reply = |source| {
            HelloError::Refused(ClientError::BadReply { method: method.to_owned(), source })
        };
        let mut reply: Value = serde_json::from_slice(&line).map_err(bad_reply)?;
        if let Some(error) = reply.get_mut("error").map(Value::take) {
            let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok());
            let message = error["message"].as_str().unwrap_or_default().to_owned();
            let failure =
                RpcFailure::new(code.unwrap_or_default(), message, error.get("data").cloned());
            return Err(HelloError::Refused(ClientError::Rpc(Box::new(failure))));
        }
        serde_json::from_value(reply["result"].take()).map_err(bad_reply)
    }

    /// Sends a line and waits for the next one.
    fn exchange(&mut self, request: &Value) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.timeout;
        let mut stream = self.stream;
        stream.set_write_timeout(Some(self.timeout))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = Vec::new();
        let mut chunk = [0_u8; 4096];
        while !line.ends_with(b"\n") {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || line.len() > MAX_REPLY_BYTES {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => line.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestHome, reply, send};

    /// Asks a daemon that replies with the given `homeId` and serves the given home.
    fn ask(answer: Option<String>, served: &Path, wanted: &Path) -> Result<u32, HelloError> {
        let home = TestHome::new();
        let served = served.to_owned();
        let _server =
            home.serve(move |request, stream| match request["method"].as_str().unwrap() {
                "daemon.hello" if request["params"]["protocolMax"] == PROTOCOL_VERSION => {
                    let data = json!({"kind": "unsupportedVersion"});
                    let error = json!({"code": 1010, "message": "no", "data": data});
                    send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
                }
                "daemon.hello" => {
                    let limits =
                        json!({"frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1});
                    let mut hello = json!({
                        "protocol": 77, "schemaRevision": 1, "version": "9", "pid": 1, "epoch": "e",
                        "limits": limits
                    });
                    if let Some(answer) = &answer {
                        hello["homeId"] = answer.clone().into();
                    }
                    reply(stream, request, &hello);
                }
                _ => reply(stream, request, &json!({ "home": served })),
            });
        let stream = UnixStream::connect(home.socket()).unwrap();
        require_home(&stream, wanted, Duration::from_secs(20)).map(|version| version.protocol)
    }

    #[test]
    fn only_a_daemon_of_the_wanted_home_is_used() {
        let scratch = tempfile::tempdir().unwrap();
        let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
        for path in [&one, &two] {
            std::fs::DirBuilder::new().create(path).unwrap();
        }
        let is_other = |answer, served: &Path, wanted: &Path| match ask(answer, served, wanted) {
            Ok(protocol) => {
                assert_eq!(protocol, 77, "a daemon of another protocol is named");
                false
            }
            Err(HelloError::Attempt(AttemptCause::OtherHome { served: named, .. })) => {
                assert_eq!(named, served);
                true
            }
            Err(_) => panic!("another error"),
        };
        assert!(!is_other(home_id(&one), &one, &one));
        assert!(is_other(home_id(&two), &two, &one));
        assert!(!is_other(None, &one, &one), "an early daemon names the path only");
        assert!(is_other(None, &two, &one));
        assert!(is_other(home_id(&one), &one, &scratch.path().join("missing")));
    }

    #[test]
    fn daemon_that_leaves_or_is_silent_is_an_attempt() {
        let home = TestHome::new();
        let _server = home.serve(|_, stream| stream.shutdown(std::net::Shutdown::Both).unwrap());
        let ask =
            |stream: &UnixStream| require_home(stream, home.path(), Duration::from_millis(50));
        let closed = ask(&UnixStream::connect(home.socket()).unwrap());
        assert!(matches!(closed, Err(HelloError::Attempt(AttemptCause::Closed))));
        let (silent, _other) = UnixStream::pair().unwrap();
        assert!(matches!(ask(&silent), Err(HelloError::Attempt(AttemptCause::Silent(_)))));
    }
}
