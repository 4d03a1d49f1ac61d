//! The section `servers`: further model servers, each under a name of its own, so that the table of keys cannot list them.
//!
//! Keys come from the environment or from a private file, and are read here.
//!
//! **Invariant**: no error, warning or listing contains a key, a header's value, or an address, which may contain a
//! password.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ollm_protocol::model_host::ModelHost;
use serde_json::{Map, Value, json};

use super::error::{ConfigError, ConfigNotices, ConfigWarning, ValueSource, nearest};
use super::portable::has_password;
use super::raw::describe as describe_openly;
use super::sections::{ApiKey, MAX_WINDOW};
use crate::fsutil;

/// The name of the section.
pub(super) const SECTION: &str = "servers";
/// The server that the section `ollama` describes.
const OLLAMA: &str = "ollama";
/// The most bytes of a file with a key, or with certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The most requests that a server can be said to answer at the same time.
const MAX_PARALLEL: u64 = 1024;
const SERVER_KEYS: &[&str] =
    &["kind", "url", "keyEnv", "keyFile", "caFile", "headers", "parallel", "affinity", "models"];
const AFFINITY_KEYS: &[&str] = &["header", "field"];
/// The headers of requests, which `affinity` must not replace.
const REQUEST_HEADERS: &str = "accept accept-encoding authorization connection content-encoding content-length \
    content-type expect host te trailer transfer-encoding upgrade user-agent";
/// The fields of requests to servers of any kind, which `affinity` must not replace either.
const REQUEST_FIELDS: &str = "\
    _debug_render_only cache_prompt chat_template_kwargs context_length draft_num_predict \
    dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent \
    dynatemp_range format frequency_penalty ignore_eos include_stop_str_in_output keep_alive length_penalty \
    logprobs main_gpu max_completion_tokens max_model_len max_tokens messages min_keep min_p min_tokens \
    mirostat mirostat_eta mirostat_tau model n_ctx n_gpu_layers n_predict num_batch num_ctx num_gpu \
    num_keep num_predict num_thread options presence_penalty reasoning_effort repeat_last_n repeat_penalty \
    repetition_penalty response_format samplers seed skip_special_tokens stop stream stream_options \
    temperature think tools top_k top_logprobs top_n_sigma top_p truncate ttl typical_p use_mmap \
    xtc_probability xtc_threshold";
const MODEL_KEYS: &[&str] = &["name", "window", "maxOutput", "tokenizer"];

/// The text of the section for people.
pub(super) const TEXT: &str = "
## servers

Further model servers, each under a name; only in the file. A model of one is named by its alias, or as `NAME@SERVER`.

    servers:
      laptop:
        kind: llama-server
        url: http://127.0.0.1:8080
      cluster:
        url: https://models.example.com/v1
        keyEnv: CLUSTER_KEY
        parallel: 4
        models:
          big: { name: Qwen/Qwen3-32B, window: 32768 }

- `kind` (`auto`): `ollama`, `llama-server`, `vllm`, `openai` for any other server with that API, or `auto`, which asks
  the server.
- `url`: the address, with `http://` or `https://`, with or without `/v1`.
- `keyEnv`: the variable of the daemon's environment that has the API key.
- `keyFile`: a file with the key, which only its owner can read.
- `caFile`: a file in PEM with the certificates that sign the server's, besides those of this machine.
- `headers`: further headers of each request.
- `parallel`: the number of requests that the server answers at the same time, unless it says so itself; without it, one.
- `affinity`: `{ header: NAME }` or `{ field: NAME }`, the header or the field of each chat request that tells a router
  which requests belong together: its value is the same for a session, and says nothing else of it.
- `models`: models by alias: `name` as the server knows it, by default the alias; `window` in tokens, where the server
  does not say it or has a larger one, and for Ollama that of sessions that name none; `maxOutput`, the longest answer
  in tokens; `tokenizer`, a file on this machine with the model's vocabulary, by which texts are counted exactly: a
  `tokenizer.json` of Hugging Face, or a GGUF file. `ollmctl servers test` says if it is not understood.
  An alias of several servers declares them equal: a session uses one of them, and another one if that fails before
  it answers. `ALIAS@SERVER` names one.

The server of the section `ollama` has the name `ollama`; here it can be given every key but `url`, and a key of
`keyEnv` or `keyFile` wins over `OLLAMA_API_KEY`.
An alias hides a model of it with the same name, which is `NAME@ollama` then.
";

/// The kind of a server, as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// The server is asked.
    Auto,
    Ollama,
    LlamaServer,
    Vllm,
    OpenAi,
}

impl ServerKind {
    const ALL: [Self; 5] = [Self::Auto, Self::Ollama, Self::LlamaServer, Self::Vllm, Self::OpenAi];

    /// Returns the word of the configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ollama => "ollama",
            Self::LlamaServer => "llama-server",
            Self::Vllm => "vllm",
            Self::OpenAi => "openai",
        }
    }
}

/// The place of the value in a chat request that is the same for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// A header.
    Header(String),
    /// A field of the JSON body.
    Field(String),
}

/// A server of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    pub(crate) kind: ServerKind,
    /// `None` for the server of the section `ollama`.
    pub(crate) host: Option<ModelHost>,
    pub(crate) key: Option<ApiKey>,
    /// Further headers, whose values may be secret.
    pub(crate) headers: Vec<(String, ApiKey)>,
    /// Certificates in PEM.
    pub(crate) certificates: Option<Vec<u8>>,
    /// The reason for which the server cannot be used, as the predicate of a sentence.
    pub(crate) problem: Option<String>,
    pub(crate) parallel: Option<u32>,
    pub(crate) affinity: Option<Affinity>,
    /// The models by alias.
    pub(crate) models: BTreeMap<String, ServedModel>,
    /// The position in the section, from 1.
    pub(crate) position: usize,
    /// The section as it is in the file, without values that may be secret.
    shown: Value,
}

/// A model of a server of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServedModel {
    /// The name that the server knows.
    pub(crate) name: String,
    /// The window, in tokens.
    pub(crate) window: Option<u32>,
    /// The longest answer, in tokens.
    pub(crate) max_output: Option<u32>,
    /// A file with the model's vocabulary.
    pub(crate) tokenizer: Option<PathBuf>,
}

impl ServerConfig {
    /// Returns the section without values that may be secret.
    pub(super) fn shown(&self) -> Value {
        self.shown.clone()
    }
}

/// Returns the section of a server without values that may be secret.
fn redacted(section: &Value, host: Option<&ModelHost>) -> Value {
    let mut shown = section.clone();
    if let Some(host) = host {
        shown["url"] = json!(host.to_string());
    }
    let headers = shown.get_mut("headers").and_then(Value::as_object_mut);
    headers.into_iter().flatten().for_each(|(_, value)| *value = json!("(hidden)"));
    shown
}

/// Removes what is no key of a server, and its headers, which may be secret. Returns false if nothing of it may stay.
pub(super) fn remove_secrets(section: &mut Value) -> bool {
    let Some(entries) = section.as_object_mut() else { return false };
    entries.retain(|name, _| SERVER_KEYS.contains(&name.as_str()) && name != "headers");
    !entries.get("url").is_some_and(has_password)
}

/// Returns a wrong value for an error: only numbers are repeated, because any text may be a secret in a wrong place.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::String(text) if text.trim().is_empty() => "an empty text".to_owned(),
        Value::String(_) => "another text".to_owned(),
        Value::Bool(_) => "a truth value".to_owned(),
        other => describe_openly(other),
    }
}

/// Reads the section, without the servers that are wrong; `line_of` returns where a server is.
pub(super) fn read(
    section: &Value,
    line_of: impl Fn(&str) -> ValueSource,
    env: &BTreeMap<String, String>,
    notices: &mut ConfigNotices,
) -> BTreeMap<String, ServerConfig> {
    let mut servers = BTreeMap::new();
    let Value::Object(all) = section else { return servers };
    for (name, value) in all {
        let place = KeyPlace { location: line_of(name), key: format!("{SECTION}.{name}") };
        let fits = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
        if name.is_empty() || !name.chars().all(fits) {
            let expected = "named with letters, digits, dots, dashes and underscores";
            notices.mistakes.push(place.wrong_text(expected, name));
            continue;
        }
        let Some(server) = notices.value_of(place.server(name, value, env)) else { continue };
        if let Some(problem) = &server.problem {
            let (location, name, problem) = (place.location, name.clone(), problem.clone());
            notices.warnings.push(ConfigWarning::UnusableServer { location, name, problem });
        }
        let position = servers.len() + 1;
        servers.insert(name.clone(), ServerConfig { position, ..server });
    }
    servers
}

/// The place of a value, for errors.
struct KeyPlace {
    location: ValueSource,
    key: String,
}

impl KeyPlace {
    fn at(&self, name: &str) -> Self {
        Self { location: self.location.clone(), key: format!("{}.{name}", self.key) }
    }

    fn wrong(&self, expected: &str, found: &Value) -> ConfigError {
        self.wrong_as(expected, describe(found))
    }

    /// Returns the error for a text that is repeated, because it cannot be a secret: a name, an alias or a kind.
    fn wrong_text(&self, expected: &str, found: &str) -> ConfigError {
        self.wrong_as(expected, json!(found).to_string())
    }

    fn wrong_as(&self, expected: &str, found: String) -> ConfigError {
        let Self { location, key } = self;
        let (location, key, expected) = (location.clone(), key.clone(), expected.to_owned());
        ConfigError::Value { location, key, expected, found }
    }

    /// Returns the entries of a section that has only known keys.
    fn entries<'v>(
        &self,
        value: &'v Value,
        known: &'static [&'static str],
    ) -> Result<&'v Map<String, Value>, ConfigError> {
        let entries = value.as_object().ok_or_else(|| self.wrong("a section with keys", value))?;
        match entries.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(entries),
            Some(name) => Err(ConfigError::UnknownKey {
                location: self.location.clone(),
                key: format!("{}.{name}", self.key),
                hint: nearest(name, known.iter().copied()),
            }),
        }
    }

    fn server(
        &self,
        name: &str,
        value: &Value,
        env: &BTreeMap<String, String>,
    ) -> Result<ServerConfig, ConfigError> {
        let entries = self.entries(value, SERVER_KEYS)?;
        let text = |key: &str| self.text(entries, key);
        let is_ollama = name == OLLAMA;
        let kind = match text("kind")? {
            None if is_ollama => ServerKind::Ollama,
            None => ServerKind::Auto,
            Some(word) => {
                let words = ServerKind::ALL.map(ServerKind::name).join(", ");
                let kind = ServerKind::ALL.into_iter().find(|kind| kind.name() == word);
                let wrong = || self.at("kind").wrong_text(&format!("one of {words}"), word);
                kind.filter(|kind| !is_ollama || *kind == ServerKind::Ollama).ok_or_else(wrong)?
            }
        };
        let host = self.host(is_ollama, text("url")?)?;
        let (mut key, mut certificates, mut problem) = (None, None, None);
        match self.key(text("keyEnv")?, text("keyFile")?, env)? {
            Ok(found) => key = found,
            Err(reason) => problem = Some(reason),
        }
        let shown = redacted(value, host.as_ref());
        if let Some(path) = text("caFile")? {
            match read_small(&self.absolute("caFile", path)?) {
                Ok((pem, _)) => certificates = Some(pem),
                Err(reason) => problem = Some(format!("cannot read its caFile: {reason}")),
            }
        }
        Ok(ServerConfig {
            kind,
            host,
            key,
            headers: self.headers(entries)?,
            certificates,
            problem,
            parallel: self.count(entries, "parallel", MAX_PARALLEL)?,
            affinity: self.affinity(entries)?,
            models: self.models(entries)?,
            position: 0,
            shown,
        })
    }

    fn host(&self, is_ollama: bool, url: Option<&str>) -> Result<Option<ModelHost>, ConfigError> {
        let place = self.at("url");
        let wrong = |expected: &str| place.wrong(expected, &json!(url));
        let Some(url) = url.filter(|_| !is_ollama) else {
            return match url {
                None if is_ollama => Ok(None),
                None => Err(wrong("the address of the server")),
                Some(_) => Err(wrong("absent, because ollama.host is the address of this server")),
            };
        };
        let trimmed = url.trim().trim_end_matches('/');
        let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        if !trimmed.starts_with("http://") && !trimmed.starts_with("https://") {
            return Err(wrong("an address that begins with http:// or https://"));
        }
        if trimmed.split('/').nth(2).is_some_and(|authority| authority.contains('@')) {
            return Err(wrong("an address without a user name; keyEnv or keyFile names the key"));
        }
        ModelHost::parse(trimmed).map(Some).map_err(|_| wrong("an address that is valid"))
    }

    /// Returns the key, or why it cannot be had.
    fn key(
        &self,
        variable: Option<&str>,
        file: Option<&str>,
        env: &BTreeMap<String, String>,
    ) -> Result<Result<Option<ApiKey>, String>, ConfigError> {
        let usable = |text: &str| {
            let text = text.trim();
            let fits = !text.is_empty() && text.chars().all(|char| char.is_ascii_graphic());
            fits.then(|| ApiKey(text.to_owned()))
        };
        Ok(match (variable, file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                return Err(self.at("keyFile").wrong("absent beside keyEnv", &json!("a file")));
            }
            (Some(variable), None) if !is_variable(variable) => {
                let expected = "the name of a variable, not the key itself";
                return Err(self.at("keyEnv").wrong(expected, &json!(variable)));
            }
            (Some(variable), None) => match env.get(variable).map(|text| usable(text)) {
                None => {
                    Err(format!("needs the variable {variable}, which the daemon does not have"))
                }
                Some(None) => Err(format!("needs a key, and the variable {variable} has none")),
                Some(key) => Ok(key),
            },
            (None, Some(path)) => {
                let path = self.absolute("keyFile", path)?;
                match read_small(&path) {
                    Err(reason) => Err(format!("cannot read its keyFile: {reason}")),
                    Ok((_, mode)) if mode & 0o077 != 0 => Err(format!(
                        "does not use its keyFile, which others can read; chmod 600 {}",
                        path.display()
                    )),
                    Ok((bytes, _)) => usable(&String::from_utf8_lossy(&bytes))
                        .map(Some)
                        .ok_or_else(|| "needs a key, and its keyFile has none".to_owned()),
                }
            }
        })
    }

    fn headers(&self, entries: &Map<String, Value>) -> Result<Vec<(String, ApiKey)>, ConfigError> {
        let place = self.at("headers");
        let Some(value) = entries.get("headers").filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        let headers =
            value.as_object().ok_or_else(|| place.wrong("a section with texts", value))?;
        let header = |(name, value): (&String, &Value)| {
            let fits = |text: &str| text.chars().all(|char| (' '..='~').contains(&char));
            let is_name = name.chars().all(|char| char.is_ascii_alphanumeric() || char == '-');
            match value.as_str().filter(|text| is_name && !name.is_empty() && fits(text)) {
                Some(text) => Ok((name.clone(), ApiKey(text.to_owned()))),
                None if is_name => Err(place.at(name).wrong("a text for a header", value)),
                // Without a colon, the value is part of the name.
                None => Err(place.wrong("a section with names of headers", value)),
            }
        };
        headers.iter().map(header).collect()
    }

    fn affinity(&self, entries: &Map<String, Value>) -> Result<Option<Affinity>, ConfigError> {
        let place = self.at("affinity");
        let Some(value) = entries.get("affinity").filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let configured = entries.get("headers").and_then(Value::as_object);
        let is_configured = |name: &str| {
            configured.is_some_and(|all| all.keys().any(|one| one.eq_ignore_ascii_case(name)))
        };
        let entries = place.entries(value, AFFINITY_KEYS)?;
        let is_free = |name: &str, marks: &str, taken: &str| {
            let fits = |char: char| char.is_ascii_alphanumeric() || marks.contains(char);
            let is_taken = taken.split(' ').any(|one| one.eq_ignore_ascii_case(name));
            name.chars().all(fits) && !is_taken
        };
        match (place.text(entries, "header")?, place.text(entries, "field")?) {
            (Some(name), None) if is_free(name, "-", REQUEST_HEADERS) && !is_configured(name) => {
                Ok(Some(Affinity::Header(name.to_owned())))
            }
            (None, Some(name)) if is_free(name, "-_", REQUEST_FIELDS) => {
                Ok(Some(Affinity::Field(name.to_owned())))
            }
            _ => Err(place.wrong("a header or a field with a name that no request has", value)),
        }
    }

    fn models(
        &self,
        entries: &Map<String, Value>,
    ) -> Result<BTreeMap<String, ServedModel>, ConfigError> {
        let place = self.at("models");
        let Some(value) = entries.get("models").filter(|value| !value.is_null()) else {
            return Ok(BTreeMap::new());
        };
        let models = value.as_object().ok_or_else(|| place.wrong("a section of aliases", value))?;
        let model = |(alias, value): (&String, &Value)| {
            let place = place.at(alias);
            if alias.is_empty() || alias.chars().any(|char| char == '@' || char.is_whitespace()) {
                return Err(place.wrong_text("an alias without spaces and @", alias));
            }
            let empty = json!({});
            let value = if value.is_null() { &empty } else { value };
            let entries = place.entries(value, MODEL_KEYS)?;
            let tokenizer = place.text(entries, "tokenizer")?;
            let served = ServedModel {
                name: place.text(entries, "name")?.unwrap_or(alias).to_owned(),
                window: place.count(entries, "window", u64::from(MAX_WINDOW))?,
                max_output: place.count(entries, "maxOutput", u64::from(MAX_WINDOW))?,
                tokenizer: tokenizer.map(|path| place.absolute("tokenizer", path)).transpose()?,
            };
            Ok((alias.clone(), served))
        };
        models.iter().map(model).collect()
    }

    fn text<'v>(
        &self,
        entries: &'v Map<String, Value>,
        key: &str,
    ) -> Result<Option<&'v str>, ConfigError> {
        match entries.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text)),
            Some(other) => Err(self.at(key).wrong("a text", other)),
        }
    }

    fn count(
        &self,
        entries: &Map<String, Value>,
        key: &str,
        most: u64,
    ) -> Result<Option<u32>, ConfigError> {
        match entries.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let count = value.as_u64().filter(|count| (1..=most).contains(count));
                let count = count.and_then(|count| u32::try_from(count).ok());
                let wrong =
                    || self.at(key).wrong(&format!("a whole number from 1 to {most}"), value);
                count.map(Some).ok_or_else(wrong)
            }
        }
    }

    fn absolute(&self, key: &str, path: &str) -> Result<PathBuf, ConfigError> {
        let is_absolute = Path::new(path).is_absolute();
        is_absolute
            .then(|| PathBuf::from(path))
            .ok_or_else(|| self.at(key).wrong("an absolute path", &json!(path)))
    }
}

/// Returns whether a text can be the name of a variable.
fn is_variable(text: &str) -> bool {
    let fits = |char: char| char.is_ascii_alphanumeric() || char == '_';
    text.chars().all(fits) && !text.starts_with(|char: char| char.is_ascii_digit())
}

/// Reads a small regular file, and returns its mode. An error does not repeat the path, which may be a key by mistake.
fn read_small(path: &Path) -> Result<(Vec<u8>, u32), String> {
    let failed = |error: std::io::Error| error.to_string();
    let file = fsutil::open_regular(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok((bytes, mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read_servers(
        section: &Value,
    ) -> Result<(BTreeMap<String, ServerConfig>, Vec<String>), String> {
        let mut notices = ConfigNotices::default();
        let env = [("KEY".to_owned(), " sesame\n".to_owned()), ("NONE".to_owned(), String::new())];
        let line = |_: &str| ValueSource::Variable("X".to_owned());
        let servers = read(section, line, &env.into(), &mut notices);
        let warnings = notices.into_warnings().map_err(|error| error.to_string())?;
        Ok((servers, warnings.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn server_has_defaults_and_models() {
        let section = json!({
            "a": { "url": "http://h:1/v1/" },
            "b": { "kind": "vllm", "url": "https://h", "keyEnv": "KEY", "parallel": 4,
                "headers": { "X-Team": "blue" },
                "models": { "big": { "name": "Q/W", "window": 32768, "maxOutput": 5 }, "own": null } },
            "ollama": { "parallel": 2 },
        });
        let (servers, warnings) = read_servers(&section).expect("is valid");
        assert!(warnings.is_empty(), "{warnings:?}");
        let host = |name: &str| servers[name].host.as_ref().map(ToString::to_string);
        assert_eq!(host("a").as_deref(), Some("http://h:1"));
        assert_eq!((servers["a"].kind, servers["a"].parallel), (ServerKind::Auto, None));
        let b = &servers["b"];
        assert_eq!((b.kind, b.parallel), (ServerKind::Vllm, Some(4)));
        assert_eq!(b.key, Some(ApiKey("sesame".to_owned())));
        assert_eq!((b.models["big"].name.as_str(), b.models["big"].window), ("Q/W", Some(32_768)));
        assert_eq!(b.models["own"].name, "own");
        assert_eq!((servers["ollama"].kind, host("ollama")), (ServerKind::Ollama, None));
        for shown in [b.shown().to_string(), format!("{b:?}")] {
            assert!(!shown.contains("blue") && !shown.contains("sesame"), "{shown}");
        }
    }

    #[test]
    fn mistake_is_named_with_its_key_and_without_secrets() {
        let check = |server: Value, expect: &str| {
            let error = read_servers(&json!({ "s": server })).expect_err("is wrong");
            assert!(error.contains(expect), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        };
        let url = "http://h:1";
        check(json!({ "kind": "openai" }), "servers.s.url must be the address of the server");
        check(json!({ "url": "h:1" }), "begins with http://");
        check(json!({ "url": "http://me:hunter2@h" }), "without a user name");
        check(json!({ "url": url, "kind": "llamacpp" }), "one of auto, ollama, llama-server");
        check(json!({ "url": url, "paralell": 2 }), "did you mean parallel?");
        for wrong in [
            json!({}),
            json!({ "header": "a_b" }),
            json!({ "header": "Authorization" }),
            json!({ "header": "content-TYPE" }),
            json!({ "field": "messages" }),
            json!({ "field": "Max_tokens" }),
            json!({ "field": "temperature" }),
            json!({ "field": "a", "header": "b" }),
            json!({ "field": "a b" }),
        ] {
            check(json!({ "url": url, "affinity": wrong }), "servers.s.affinity must be a header");
        }
        let twice =
            json!({ "url": url, "affinity": { "header": "x-a" }, "headers": { "X-A": "b" } });
        check(twice, "servers.s.affinity must be a header");
        check(json!({ "url": url, "parallel": 0 }), "servers.s.parallel must be a whole number");
        check(json!({ "url": url, "keyEnv": "A", "keyFile": "/b" }), "absent beside keyEnv");
        check(json!({ "url": url, "keyFile": "b" }), "an absolute path");
        check(json!({ "url": url, "headers": { "A": "hunter2\n" } }), "servers.s.headers.A");
        check(json!({ "url": url, "headers": { "A": ["hunter2"] } }), "servers.s.headers.A");
        check(json!({ "url": url, "headers": { "A hunter2": null } }), "servers.s.headers must");
        check(json!({ "url": url, "headers": "hunter2" }), "a section with texts");
        check(json!({ "url": url, "keyEnv": "sk-hunter2" }), "servers.s.keyEnv must be the name");
        check(json!({ "url": url, "keyEnv": "2hunter2" }), "not the key itself");
        check(json!({ "url": url, "keyFile": "hunter2" }), "an absolute path, not another text");
        check(json!({ "url": url, "parallel": "hunter2" }), "not another text");
        check(json!({ "url": url, "models": { "a": { "tokenizer": "hunter2" } } }), "an absolute");
        check(json!("hunter2"), "servers.s must be a section with keys");
        check(json!({ "url": url, "models": { "a@b": {} } }), "without spaces and @");
        check(json!({ "url": url, "models": { "a": { "windwo": 1 } } }), "did you mean window?");
        check(json!(3), "a section with keys");
        let ollama = json!({ "ollama": { "url": url } });
        assert!(read_servers(&ollama).is_err_and(|error| error.contains("ollama.host")));
    }

    #[test]
    fn equal_servers_have_the_order_of_the_file() {
        let server = json!({ "url": "http://h:1", "models": { "big": {} } });
        let section = json!({ "b": server, "ollama": {}, "a": server });
        let (servers, _) = read_servers(&section).expect("is valid");
        let positions: Vec<_> = ["b", "ollama", "a"].map(|name| servers[name].position).into();
        assert_eq!(positions, [1, 2, 3]);
    }

    #[test]
    fn key_that_cannot_be_had_makes_the_server_unusable() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let file = |mode: u32, text: &str| {
            fsutil::replace_atomically(&path, text.as_bytes()).expect("writes");
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::File::open(&path)
                .and_then(|file| file.set_permissions(permissions))
                .expect("changes");
        };
        let read = |key: &str, value: Value| {
            let mut server = json!({ "url": "http://h:1" });
            server[key] = value;
            let (servers, warnings) = read_servers(&json!({ "s": server })).expect("is valid");
            assert_eq!(warnings.len(), usize::from(servers["s"].problem.is_some()), "{warnings:?}");
            (servers["s"].key.is_some(), servers["s"].problem.clone().unwrap_or_default())
        };
        assert!(read("keyEnv", json!("MISSING")).1.contains("MISSING"));
        assert!(read("keyEnv", json!("NONE")).1.contains("has none"));
        assert!(read("keyFile", json!(path)).1.contains("cannot read"));
        assert!(!read("keyFile", json!("/hunter2")).1.contains("hunter2"));
        file(0o600, "sesame\n");
        assert_eq!(read("keyFile", json!(path)), (true, String::new()));
        file(0o640, "sesame\n");
        assert!(read("keyFile", json!(path)).1.contains("chmod 600"));
        file(0o400, "two words\n");
        assert!(read("keyFile", json!(path)).1.contains("has none"));
        assert!(read("caFile", json!("/nowhere/ca.pem")).1.contains("caFile"));
    }
}
