//! HTTP to one server, with one connection pool, a time limit per phase, and few retries.
//!
//! The client is created by the first request and dropped after a minute without requests, so that a daemon that calls
//! no model needs no memory for it.
//! Must not know the server's JSON, except for errors.
//!
//! **Invariants**: only a refused connection and status 503 are retried here, because then the server has not begun with the
//! request; redirects are not followed; no proxy is used for this machine.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::model_host::ModelHost;
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
    SERVER,
};
use reqwest::{Certificate, Client, Method, Response, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::backend::MAX_ATTEMPTS;
use super::error::{CallPhase, CallTarget, ModelError, ServerAdvice, sanitized};
use super::error_response::{ResponseHead, from_response};
use crate::clock::Clock;
use crate::config::{Affinity, ApiKey};

/// The pause before the second attempt; each further pause is twice as long. A random time of up to the same length is
/// added, so that clients that failed together do not retry together.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum size of a response that is not streamed. A vocabulary with its scores has about 13 MB.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum size of an error response that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// The idle time after which the client is dropped.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of idle connections in the pool.
const MAX_IDLE_CONNECTIONS: usize = 4;
/// The least length of a key or a header's value that is looked for in a server's text; a shorter one is no secret, and may
/// be part of any number.
const MIN_SECRET_BYTES: usize = 4;
/// The types of responses that are understood.
const ACCEPTED: &str = "application/x-ndjson, application/json, text/event-stream";
/// The interval of TCP keep-alive probes, which detect that the server's machine has failed during an answer.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The time limits of the phases of a call. A whole answer has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// The time until the connection is established.
    pub connect: Duration,
    /// The time from the request to the first line of an answer. Loading a model and reading the prompt send nothing.
    pub first_token: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// The time for a whole response that is not streamed, such as the list of models.
    pub response: Duration,
    /// The time for requests that must not block others: the version, and the running models, which a server reports
    /// only after it has loaded a model.
    pub probe: Duration,
}

impl Timeouts {
    /// Responses that are not streamed come from the server's memory or from a few files.
    const RESPONSE: Duration = Duration::from_secs(30);
    /// A server on this machine responds within a millisecond, one in a slow network within half a second.
    const PROBE: Duration = Duration::from_secs(2);

    /// Adds the limits that cannot be configured.
    pub(crate) const fn new(connect: Duration, first_token: Duration, idle: Duration) -> Self {
        Self { connect, first_token, idle, response: Self::RESPONSE, probe: Self::PROBE }
    }
}

/// A request that can be sent several times.
pub(super) struct HttpCall<'a> {
    pub(super) method: Method,
    /// The path, which begins with a slash.
    pub(super) path: &'a str,
    /// The JSON body.
    pub(super) body: Option<Vec<u8>>,
    pub(super) max_attempts: u32,
    pub(super) to: CallTarget,
    /// The value for a router, of a chat request.
    pub(super) affinity: Option<String>,
}

/// The response to a probe, whatever its status.
pub(super) struct ProbeResponse {
    /// The header `Server`; empty without it.
    pub(super) server: String,
    body: Vec<u8>,
}

impl ProbeResponse {
    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    pub(super) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// The end of a time limit, with the details of its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    phase: CallPhase,
    after: Duration,
    at: Instant,
}

impl Deadline {
    pub(super) fn new(phase: CallPhase, after: Duration) -> Self {
        // The limit of a year keeps the sum from overflowing.
        let at = Instant::now() + after.min(Duration::from_secs(365 * 86_400));
        Self { phase, after, at }
    }

    /// Waits for a future until the deadline.
    pub(super) async fn limit<T>(
        self,
        to: &CallTarget,
        work: impl Future<Output = T>,
    ) -> Result<T, ModelError> {
        let Self { phase, after, at } = self;
        let timed_out = |_| ModelError::Timeout { to: to.clone(), phase, after };
        timeout_at(at, work).await.map_err(timed_out)
    }
}

/// The address of a server, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpAddress {
    pub(crate) host: ModelHost,
    /// Sent as `Authorization: Bearer`.
    pub(crate) key: Option<ApiKey>,
    /// Further headers of every request; the values may be secret.
    pub(crate) headers: Vec<(String, ApiKey)>,
    /// Certificates in PEM that the server may be signed by, besides those of this machine.
    pub(crate) certificates: Option<Vec<u8>>,
    /// The place of the value by which a router knows the session of a chat request.
    pub(crate) affinity: Option<Affinity>,
}

impl HttpAddress {
    /// Returns an address without key, headers and certificates of its own.
    pub(crate) const fn new(host: ModelHost) -> Self {
        Self { host, key: None, headers: Vec::new(), certificates: None, affinity: None }
    }

    /// Replaces the key and the values of headers in a server's text.
    fn without_secrets(&self, text: &str) -> String {
        let headers = self.headers.iter().map(|(_, value)| value);
        let all = self.key.iter().chain(headers).map(|secret| secret.0.trim());
        // The value of a header may have a scheme before the key.
        let all = all.flat_map(|secret| {
            let key = secret.split_once(' ').map(|(_, key)| key.trim());
            std::iter::once(secret).chain(key)
        });
        let mut all: Vec<&str> = all.filter(|secret| secret.len() >= MIN_SECRET_BYTES).collect();
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        all.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[key]"))
    }

    /// Does the same in all texts of an error in JSON.
    pub(super) fn json_without_secrets(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.without_secrets(text),
            Value::Array(all) => all.iter_mut().for_each(|value| self.json_without_secrets(value)),
            Value::Object(all) => {
                all.values_mut().for_each(|value| self.json_without_secrets(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Does the same in the body of an error. The texts of JSON are replaced one by one, so that it stays JSON.
    fn body_without_secrets(&self, body: &[u8]) -> Vec<u8> {
        if self.key.is_none() && self.headers.is_empty() {
            return body.to_owned();
        }
        match serde_json::from_slice::<Value>(body) {
            Ok(mut json) => {
                self.json_without_secrets(&mut json);
                json.to_string().into_bytes()
            }
            Err(_) => self.without_secrets(&String::from_utf8_lossy(body)).into_bytes(),
        }
    }
}

/// The HTTP connection to one server.
pub(super) struct Http {
    pub(super) address: Arc<HttpAddress>,
    pub(super) timeouts: Timeouts,
    clock: Arc<Clock>,
    advice: &'static ServerAdvice,
    client: Mutex<Option<PooledClient>>,
}

/// A client with its connection pool.
struct PooledClient {
    client: Client,
    used_at: Instant,
}

impl Http {
    pub(super) fn new(
        address: HttpAddress,
        timeouts: Timeouts,
        clock: Arc<Clock>,
        advice: &'static ServerAdvice,
    ) -> Self {
        Self { address: Arc::new(address), timeouts, clock, advice, client: Mutex::new(None) }
    }

    /// Returns the address of the server.
    pub(super) fn host(&self) -> String {
        self.address.host.to_string()
    }

    /// Returns the server, or a model on it, for an error.
    pub(super) fn target(&self, model: Option<&str>) -> CallTarget {
        CallTarget { host: self.host(), model: model.map(str::to_owned), advice: self.advice }
    }

    /// Drops the client if it is idle, and returns whether it was. Answers in progress keep their own clone.
    pub(super) fn release_idle(&self) -> bool {
        let mut client = self.client.lock();
        let is_idle = client.as_ref().is_some_and(|client| client.used_at.elapsed() >= IDLE_LIMIT);
        if is_idle {
            *client = None;
        }
        is_idle
    }

    /// Sends a request and waits for the head of a response with status 200.
    ///
    /// Each attempt has its own deadline; the returned one also limits reading the body.
    pub(super) async fn send(
        &self,
        call: &HttpCall<'_>,
        phase: CallPhase,
        after: Duration,
    ) -> Result<(Response, Deadline), ModelError> {
        let mut attempt = 1;
        loop {
            let deadline = Deadline::new(phase, after);
            let (error, can_retry) = match self.send_once(call, deadline).await {
                Ok(response) => return Ok((response, deadline)),
                Err(failure) => failure,
            };
            if !can_retry || attempt >= call.max_attempts {
                return Err(error);
            }
            let pause = RETRY_PAUSE * (1 << (attempt - 1));
            tokio::time::sleep(pause + self.clock.jitter(pause)).await;
            attempt += 1;
        }
    }

    /// Sends a request once; an error comes with whether a retry may help.
    async fn send_once(
        &self,
        call: &HttpCall<'_>,
        deadline: Deadline,
    ) -> Result<Response, (ModelError, bool)> {
        let client = self.client(&call.to).map_err(|error| (error, false))?;
        let mut request = client.request(call.method.clone(), self.address.host.url(call.path));
        let mut body = call.body.clone();
        match (&self.address.affinity, &call.affinity) {
            (Some(Affinity::Header(name)), Some(value)) => request = request.header(name, value),
            (Some(Affinity::Field(name)), Some(value)) => {
                body = body.map(|body| with_field(body, name, value));
            }
            _ => {}
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let sent = deadline.limit(&call.to, request.send()).await;
        let response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.send_error(&call.to, &error)),
            Err(timeout) => return Err((timeout, false)),
        };
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let head = ResponseHead {
            status,
            location: header(LOCATION).map(|location| self.address.without_secrets(location)),
            is_html: header(CONTENT_TYPE).is_some_and(|kind| kind.contains("html")),
            retry_after: header(RETRY_AFTER).and_then(|wait| wait.trim().parse().ok()),
        };
        // If the body cannot be read, the status alone determines the error.
        let body = self.read(response, &call.to, deadline, "an error", MAX_ERROR_BYTES).await;
        let body = body.unwrap_or_default();
        let body = self.address.body_without_secrets(&body);
        let error = from_response(call.to.clone(), &head, &body);
        Err((error, status == 503))
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn call(
        &self,
        call: &HttpCall<'_>,
        phase: CallPhase,
        after: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let (response, deadline) = self.send(call, phase, after).await?;
        self.read(response, &call.to, deadline, "a response", MAX_RESPONSE_BYTES).await
    }

    /// Requests a path once; returns `None` if no response arrives soon.
    pub(super) async fn probe(&self, path: &str) -> Option<ProbeResponse> {
        let to = self.target(None);
        let deadline = Deadline::new(CallPhase::Response, self.timeouts.probe);
        let request = self.client(&to).ok()?.get(self.address.host.url(path));
        let response = deadline.limit(&to, request.send()).await.ok()?.ok()?;
        let server = response.headers().get(SERVER).and_then(|value| value.to_str().ok());
        let server = server.unwrap_or_default().to_owned();
        let body = self.read(response, &to, deadline, "a response", MAX_ERROR_BYTES).await;
        Some(ProbeResponse { server, body: body.unwrap_or_default() })
    }

    /// Converts an error without a response, and decides whether a retry may help: only if the connection was refused,
    /// because otherwise the server may have begun with the request.
    fn send_error(&self, to: &CallTarget, error: &reqwest::Error) -> (ModelError, bool) {
        let to = to.clone();
        if error.is_connect() && error.is_timeout() {
            let after = self.timeouts.connect;
            return (ModelError::Timeout { to, phase: CallPhase::Connect, after }, false);
        }
        let reason = innermost(error);
        if error.is_connect() {
            return (ModelError::Unreachable { to, reason }, true);
        }
        if error.is_builder() {
            return (ModelError::Client { to, reason }, false);
        }
        if is_not_http(error) {
            let found = "it does not speak HTTP".to_owned();
            return (ModelError::OtherServer { to, found }, false);
        }
        (ModelError::Disconnected { to, reason }, false)
    }

    /// Reads the whole body of a response, until the deadline.
    pub(super) async fn read(
        &self,
        mut response: Response,
        to: &CallTarget,
        deadline: Deadline,
        what: &'static str,
        limit_bytes: usize,
    ) -> Result<Vec<u8>, ModelError> {
        let mut body = Vec::new();
        while let Some(chunk) = deadline.limit(to, next_chunk(&mut response, to)).await?? {
            if body.len() + chunk.len() > limit_bytes {
                return Err(ModelError::TooLarge { to: to.clone(), what, limit_bytes });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Returns the client, creating it if necessary.
    fn client(&self, to: &CallTarget) -> Result<Client, ModelError> {
        let mut pooled = self.client.lock();
        if let Some(pooled) = pooled.as_mut() {
            pooled.used_at = Instant::now();
            return Ok(pooled.client.clone());
        }
        let client =
            self.build().map_err(|reason| ModelError::Client { to: to.clone(), reason })?;
        *pooled = Some(PooledClient { client: client.clone(), used_at: Instant::now() });
        Ok(client)
    }

    fn build(&self) -> Result<Client, String> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let HttpAddress { host, key, headers: further, certificates, .. } = &*self.address;
        if let Some(key) = key {
            let bearer = HeaderValue::from_str(&format!("Bearer {}", key.0));
            let mut bearer = bearer.map_err(|_| "the API key is not a valid key".to_owned())?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        for (name, value) in further {
            let invalid = |_| format!("{name} is not a valid header");
            let mut value = HeaderValue::from_str(&value.0).map_err(|_| invalid(()))?;
            value.set_sensitive(true);
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(()))?;
            headers.insert(name, value);
        }
        // The provider is global to the process; an error means that there is one already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = Client::builder()
            .user_agent(concat!("ollmd/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(redirect::Policy::none())
            .connect_timeout(self.timeouts.connect)
            .tcp_keepalive(KEEPALIVE)
            // The library would evict connections with a timer that never stops; see `release_idle`.
            .pool_idle_timeout(None)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS);
        if host.is_loopback() {
            builder = builder.no_proxy();
        }
        if let Some(pem) = certificates {
            let all = Certificate::from_pem_bundle(pem).map_err(|error| innermost(&error))?;
            builder = builder.tls_certs_merge(all);
        }
        if !host.is_https() {
            // Loading the machine's certificates would take milliseconds and a megabyte.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| innermost(&error))
    }
}

/// Returns a request with a JSON body.
pub(super) fn post(
    path: &str,
    body: serde_json::Result<Vec<u8>>,
    to: CallTarget,
) -> Result<HttpCall<'_>, ModelError> {
    match body {
        Ok(body) => {
            let (method, max_attempts) = (Method::POST, MAX_ATTEMPTS);
            Ok(HttpCall { method, path, body: Some(body), max_attempts, to, affinity: None })
        }
        Err(error) => Err(ModelError::Client { to, reason: error.to_string() }),
    }
}

/// Adds a field at the end of a JSON object, which has others.
fn with_field(mut object: Vec<u8>, name: &str, value: &str) -> Vec<u8> {
    if object.pop() == Some(b'}') {
        let field = format!(",{}:{}}}", Value::from(name), Value::from(value));
        object.extend_from_slice(field.as_bytes());
    }
    object
}

/// Parses a response. Anything but the expected JSON comes from another kind of server.
pub(super) fn decode<T: DeserializeOwned>(
    to: &CallTarget,
    path: &str,
    body: &[u8],
) -> Result<T, ModelError> {
    let first = body.trim_ascii().first();
    // serde would read an array as the fields of a struct.
    let parsed = if first == Some(&b'[') { None } else { serde_json::from_slice(body).ok() };
    parsed.ok_or_else(|| {
        let kind = match first {
            Some(b'<') => "a page",
            Some(b'{' | b'[') => "other JSON",
            None => "nothing",
            Some(_) => "something other than JSON",
        };
        ModelError::OtherServer { to: to.clone(), found: format!("{path} returns {kind}") }
    })
}

/// Returns the next chunk of a body; `None` at its end. Cancel safe.
pub(super) async fn next_chunk(
    response: &mut Response,
    to: &CallTarget,
) -> Result<Option<impl AsRef<[u8]> + std::ops::Deref<Target = [u8]> + use<>>, ModelError> {
    let broken = |error: reqwest::Error| ModelError::Disconnected {
        to: to.clone(),
        reason: match innermost(&error) {
            // The HTTP library's text for a connection that was closed within a response.
            reason if reason.starts_with("unexpected eof") => "closed by the server".to_owned(),
            reason => reason,
        },
    };
    response.chunk().await.map_err(broken)
}

/// Returns the innermost cause, which says most and does not repeat the address.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    sanitized(&text.to_lowercase())
}

/// Returns whether the response is not HTTP.
fn is_not_http(error: &reqwest::Error) -> bool {
    let text = innermost(error);
    text.contains("invalid http") || text.contains("invalid header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_text_has_no_key() {
        let secret = |text: &str| ApiKey(text.to_owned());
        let address = HttpAddress {
            key: Some(secret("ses/ame")),
            headers: vec![
                ("X-Auth".to_owned(), secret("Bearer hunter2")),
                ("X-N".to_owned(), secret("40")),
            ],
            ..HttpAddress::new(ModelHost::parse("http://h:1").expect("an address"))
        };
        let check = |text: &str, expect: &str| {
            let shown = address.body_without_secrets(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&shown), expect);
        };
        check(r#"{"error":"no ses\/ame, 4096"}"#, r#"{"error":"no [key], 4096"}"#);
        check("wrong key hunter2, got Bearer hunter2", "wrong key [key], got [key]");
        assert_eq!(address.without_secrets("http://x/?k=ses/ame"), "http://x/?k=[key]");
    }
}
