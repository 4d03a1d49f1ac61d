//! HTTP to one server: one pool of connections, each phase with its own limit, and few retries.
//!
//! The client is made at the first request and given back when it was not used for a while: a daemon that talks
//! to no model pays nothing for it.
//!
//! **Invariants**: what is retried was refused before the server could begin, a refused connection or status 503;
//! redirects are not followed; between this process and this machine there is no proxy.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Client, Method, Response, redirect};
use tokio::time::{Instant, timeout_at};

use super::error_response::refusal;
use crate::clock::Clock;
use crate::model::backend::Timeouts;
use crate::model::error::{self, ModelError, Phase, Target};
use crate::model::host::{Host, Secret};

/// How often a request is sent at most.
const TRIES: u32 = 3;
/// The pause before the second try; each further one is twice as long. Up to as much again is added by chance, so
/// that clients that failed together do not come back together.
const PAUSE: Duration = Duration::from_millis(100);
/// The largest error body that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// A client that was not used for so long is given back.
const UNUSED: Duration = Duration::from_secs(60);
/// Connections that wait for their next use.
const MAX_IDLE: usize = 4;
/// How often a silent connection is asked by the system whether its other end is still there, which finds a
/// machine that is gone during an answer.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A request before it is sent.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    /// Begins with a slash.
    pub(super) path: &'a str,
    /// JSON.
    pub(super) body: Option<Vec<u8>>,
    pub(super) to: Target,
}

/// Until when something must have happened, and what to say when it did not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    phase: Phase,
    after: Duration,
    at: Instant,
}

impl Deadline {
    pub(super) fn new(phase: Phase, after: Duration) -> Self {
        // Nobody waits for years, and the sum must not overflow.
        let at = Instant::now() + after.min(Duration::from_secs(365 * 86_400));
        Self { phase, after, at }
    }

    /// Waits for something until the deadline.
    pub(super) async fn bound<T>(
        self,
        to: &Target,
        work: impl Future<Output = T>,
    ) -> Result<T, ModelError> {
        let Self { phase, after, at } = self;
        let late = |_| ModelError::Timeout { to: to.clone(), phase, after };
        timeout_at(at, work).await.map_err(late)
    }
}

/// HTTP to one server.
pub(super) struct Http {
    host: Host,
    key: Option<Secret>,
    timeouts: Timeouts,
    clock: Arc<Clock>,
    pool: Mutex<Option<Pool>>,
}

struct Pool {
    client: Client,
    used_at: Instant,
}

impl Http {
    pub(super) fn new(
        host: Host,
        key: Option<Secret>,
        timeouts: Timeouts,
        clock: Arc<Clock>,
    ) -> Self {
        Self { host, key, timeouts, clock, pool: Mutex::new(None) }
    }

    pub(super) const fn host(&self) -> &Host {
        &self.host
    }

    pub(super) const fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Gives the client back when it was not used for a while. Answers that are under way keep theirs.
    pub(super) fn rest(&self) -> bool {
        let mut pool = self.pool.lock();
        let unused = pool.as_ref().is_some_and(|pool| pool.used_at.elapsed() >= UNUSED);
        if unused {
            *pool = None;
        }
        unused
    }

    /// Sends a request and waits for the head of its answer, whose status is 200.
    ///
    /// The deadline counts for the last try; those before it failed at once.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        phase: Phase,
        after: Duration,
    ) -> Result<(Response, Deadline), ModelError> {
        let mut tries = 1;
        loop {
            let deadline = Deadline::new(phase, after);
            let (error, again) = match self.send_once(call, deadline).await {
                Ok(response) => return Ok((response, deadline)),
                Err(failure) => failure,
            };
            if !again || tries == TRIES {
                return Err(error);
            }
            let pause = PAUSE * (1 << (tries - 1));
            tokio::time::sleep(pause + self.clock.jitter(pause)).await;
            tries += 1;
        }
    }

    /// One try; an error with whether another one may help.
    async fn send_once(
        &self,
        call: &Call<'_>,
        deadline: Deadline,
    ) -> Result<Response, (ModelError, bool)> {
        let client = self.client(&call.to).map_err(|error| (error, false))?;
        let mut request = client.request(call.method.clone(), self.host.url(call.path));
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let sent = deadline.bound(&call.to, request.send()).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unsent(&call.to, &error)),
            Err(late) => return Err((late, false)),
        };
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let location = header(LOCATION).map(str::to_owned);
        let is_html = header(CONTENT_TYPE).is_some_and(|kind| kind.contains("html"));
        // What can be had of the body; without it the status speaks.
        let body = self.read(response, &call.to, deadline, "an error", MAX_ERROR_BYTES).await;
        let body = body.unwrap_or_default();
        let error = refusal(call.to.clone(), status, location.as_deref(), is_html, &body);
        Err((error, status == 503))
    }

    /// What it means that no answer came, and whether another try may help: only where the connection was refused,
    /// since a server that had the request may have begun with it.
    fn unsent(&self, to: &Target, error: &reqwest::Error) -> (ModelError, bool) {
        let to = to.clone();
        if error.is_connect() && error.is_timeout() {
            let after = self.timeouts.connect;
            return (ModelError::Timeout { to, phase: Phase::Connect, after }, false);
        }
        let reason = innermost(error);
        if error.is_connect() {
            return (ModelError::Unreachable { to, reason }, true);
        }
        if error.is_builder() {
            return (ModelError::Client { to, reason }, false);
        }
        if is_not_http(error) {
            return (
                ModelError::NotOllama { to, found: "it does not speak HTTP".to_owned() },
                false,
            );
        }
        (ModelError::Disconnected { to, reason }, false)
    }

    /// Reads an answer whole, within its deadline.
    pub(super) async fn read(
        &self,
        mut response: Response,
        to: &Target,
        deadline: Deadline,
        what: &'static str,
        limit_bytes: usize,
    ) -> Result<Vec<u8>, ModelError> {
        let mut body = Vec::new();
        while let Some(piece) = deadline.bound(to, piece(&mut response, to)).await?? {
            if body.len() + piece.len() > limit_bytes {
                return Err(ModelError::TooLarge { to: to.clone(), what, limit_bytes });
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// The client, made when it is first needed.
    fn client(&self, to: &Target) -> Result<Client, ModelError> {
        let mut pool = self.pool.lock();
        if let Some(pool) = pool.as_mut() {
            pool.used_at = Instant::now();
            return Ok(pool.client.clone());
        }
        let client =
            self.build().map_err(|reason| ModelError::Client { to: to.clone(), reason })?;
        *pool = Some(Pool { client: client.clone(), used_at: Instant::now() });
        Ok(client)
    }

    fn build(&self) -> Result<Client, String> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/x-ndjson, application/json"));
        if let Some(key) = &self.key {
            let bearer = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            let mut bearer = bearer.map_err(|_| "OLLAMA_API_KEY is not a key".to_owned())?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        // One for the whole process; somebody else's is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = Client::builder()
            .user_agent(concat!("ollmd/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(redirect::Policy::none())
            .connect_timeout(self.timeouts.connect)
            .tcp_keepalive(KEEPALIVE)
            // The library's own eviction would be a timer that never ends; see `rest`.
            .pool_idle_timeout(None)
            .pool_max_idle_per_host(MAX_IDLE);
        if self.host.is_loopback() {
            builder = builder.no_proxy();
        }
        if !self.host.is_https() {
            // Reading the machine's certificates takes milliseconds and a megabyte.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| innermost(&error))
    }
}

/// The next piece of a body; `None` at its end. Cancel safe.
pub(super) async fn piece(
    response: &mut Response,
    to: &Target,
) -> Result<Option<impl AsRef<[u8]> + std::ops::Deref<Target = [u8]> + use<>>, ModelError> {
    let broken = |error: reqwest::Error| ModelError::Disconnected {
        to: to.clone(),
        reason: match innermost(&error) {
            // The HTTP library's word for a connection that was closed within an answer.
            reason if reason.starts_with("unexpected eof") => "the server closed it".to_owned(),
            reason => reason,
        },
    };
    response.chunk().await.map_err(broken)
}

/// The cause that says most, without addresses, which the target names already.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    error::said(&text.to_lowercase())
}

/// Whether what came back is not even HTTP.
fn is_not_http(error: &reqwest::Error) -> bool {
    let text = innermost(error);
    text.contains("invalid http") || text.contains("invalid header")
}
