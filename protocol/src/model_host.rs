//! The address of a model server, by the rules of `OLLAMA_HOST`.
//!
//! The daemon connects to it, and a client compares it with the variable of its own shell. Knows nothing of the server.
//!
//! **Invariant**: no error repeats the address, which may contain a password.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The default port of an address without a scheme.
const PORT: u16 = 11_434;
/// The name of the hosted service, for which https is the default.
const CLOUD: &str = "ollama.com";

/// The address of a model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelHost {
    https: bool,
    /// A host name, or an IP address as it is written in a URL.
    name: String,
    port: u16,
    /// A path without leading and trailing slashes.
    base_path: String,
}

/// The characters of an invalid host name that an error quotes.
const MAX_NAMED_CHARS: usize = 80;

/// The address of the model server is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address of the model server {problem}")]
pub struct InvalidHost {
    /// The problem, as the predicate of a sentence.
    pub problem: String,
}

impl InvalidHost {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into() }
    }
}

impl ModelHost {
    /// Parses the value of `OLLAMA_HOST` or `ollama.host`; an empty value means this machine.
    ///
    /// **Source**: `envconfig` of Ollama 0.33 and the examples of its Python client. The default port is 80 or 443 with
    /// a scheme, and http on 11434 without one; an invalid port becomes the default; the text after the first slash is a
    /// base path; an address for listening on all interfaces means this machine.
    ///
    /// **Errors**: a scheme other than http or https, and characters that are invalid in host names. Ollama's own
    /// clients accept them as names and fail when they connect.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let text = text.trim_matches(|sign: char| sign.is_whitespace() || "\"'".contains(sign));
        let (https, rest, default) = match text.split_once("://") {
            None if text == CLOUD => (true, text, 443),
            None => (false, text, PORT),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest, 80),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest, 443),
            Some(_) => return Err(InvalidHost::new("must begin with http:// or https://")),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(InvalidHost::new("contains a user name; set the key with OLLAMA_API_KEY"));
        }
        let (name, port) = split_port(authority);
        let port = port.map_or(default, |port| port.parse().unwrap_or(default));
        Ok(Self { https, name: name_of(name)?, port, base_path: path_of(path)? })
    }

    /// Returns the URL of a path, which begins with a slash.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{self}{path}")
    }

    /// Returns whether the connection is encrypted.
    #[must_use]
    pub const fn is_https(&self) -> bool {
        self.https
    }

    /// Returns whether the address is this machine, so that no proxy may be used.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let address: Option<IpAddr> = self.name.trim_matches(['[', ']']).parse().ok();
        address.map_or_else(
            || self.name == "localhost" || self.name.ends_with(".localhost"),
            |address| address.is_loopback(),
        )
    }
}

impl fmt::Display for ModelHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(out, "{scheme}://{}:{}", self.name, self.port)?;
        if self.base_path.is_empty() { Ok(()) } else { write!(out, "/{}", self.base_path) }
    }
}

/// Splits the port off. An IPv6 address has a port only if it is in brackets.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    if let Some(inside) = authority.strip_prefix('[')
        && let Some((address, rest)) = inside.split_once(']')
    {
        return (address, rest.strip_prefix(':'));
    }
    match authority.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (authority, None),
    }
}

/// Returns the host name as it is written in a URL.
fn name_of(name: &str) -> Result<String, InvalidHost> {
    let name = name.trim_matches(['[', ']']);
    if name.is_empty() {
        return Ok(Ipv4Addr::LOCALHOST.to_string());
    }
    match name.parse() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => Ok(Ipv4Addr::LOCALHOST.to_string()),
        Ok(IpAddr::V4(address)) => Ok(address.to_string()),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => {
            Ok(format!("[{}]", Ipv6Addr::LOCALHOST))
        }
        Ok(IpAddr::V6(address)) => Ok(format!("[{address}]")),
        Err(_) if name.chars().all(|char| char.is_alphanumeric() || "-._".contains(char)) => {
            Ok(name.to_ascii_lowercase())
        }
        Err(_) => {
            let name: String = name.chars().take(MAX_NAMED_CHARS).collect();
            Err(InvalidHost::new(format!(
                "has {name:?} where a host name or an IP address belongs"
            )))
        }
    }
}

fn path_of(path: &str) -> Result<String, InvalidHost> {
    let path = path.trim_matches('/');
    let fits = |char: char| char.is_ascii_alphanumeric() || "-._~/%".contains(char);
    if path.chars().all(fits) && !path.split('/').any(|part| part == "..") {
        return Ok(path.to_owned());
    }
    Err(InvalidHost::new("has a path with invalid characters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_like_in_ollamas_own_clients() {
        let check = |text: &str, expect: &str| {
            assert_eq!(ModelHost::parse(text).expect(text).to_string(), expect, "{text}");
        };
        check("", "http://127.0.0.1:11434");
        check("  ", "http://127.0.0.1:11434");
        check("1.2.3.4", "http://1.2.3.4:11434");
        check("1.2.3.4:5", "http://1.2.3.4:5");
        check(":56789", "http://127.0.0.1:56789");
        check(":", "http://127.0.0.1:11434");
        check("example.com", "http://example.com:11434");
        check("example.com:", "http://example.com:11434");
        check("example.com:56789", "http://example.com:56789");
        check("Example.COM", "http://example.com:11434");
        check("localhost", "http://localhost:11434");
        check("http://", "http://127.0.0.1:80");
        check("http://1.2.3.4", "http://1.2.3.4:80");
        check("HTTP://1.2.3.4", "http://1.2.3.4:80");
        check("http://example.com:56789", "http://example.com:56789");
        check("https://example.com", "https://example.com:443");
        check("https://example.com:8443", "https://example.com:8443");
        check("ollama.com", "https://ollama.com:443");
        check("https://ollama.com", "https://ollama.com:443");
        check("example.com/", "http://example.com:11434");
        check("example.com:56789/", "http://example.com:56789");
        check("example.com/path", "http://example.com:11434/path");
        check("example.com:56789/a/path/", "http://example.com:56789/a/path");
        check("https://example.com:56789/path", "https://example.com:56789/path");
        check("\"1.2.3.4:5\"", "http://1.2.3.4:5");
        check("'1.2.3.4'", "http://1.2.3.4:11434");
        check(" \" example.com \" ", "http://example.com:11434");
        check("0.0.0.0", "http://127.0.0.1:11434");
        check("0.0.0.0:9", "http://127.0.0.1:9");
        check("::", "http://[::1]:11434");
        check("[::]:9", "http://[::1]:9");
        check("::1", "http://[::1]:11434");
        check("[::1]", "http://[::1]:11434");
        check("[::1]:56789", "http://[::1]:56789");
        check("2001:db8:85a3::8a2e:370:7334", "http://[2001:db8:85a3::8a2e:370:7334]:11434");
        check("[0001:002:003:0004::1]:56789", "http://[1:2:3:4::1]:56789");
        check("http://[::1]/path", "http://[::1]:80/path");
        check("example.com:99999", "http://example.com:11434");
        check("example.com:-1", "http://example.com:11434");
        check("example.com:port", "http://example.com:11434");
        check("http://example.com:port", "http://example.com:80");
        check("https://example.com:99999", "https://example.com:443");
    }

    #[test]
    fn invalid_address_is_refused_and_not_repeated() {
        for text in [
            "ftp://example.com",
            "http://user:hunter2@example.com",
            "exa mple.com",
            "a:b:c",
            "example.com/a?b",
            "example.com/../x",
            "fe80::1%eth0",
        ] {
            let error = ModelHost::parse(text).expect_err(text).to_string();
            assert!(!error.contains("hunter2") && !error.contains("example.com"), "{error}");
        }
    }

    #[test]
    fn loopback_is_recognized() {
        let check = |text, expect| {
            assert_eq!(ModelHost::parse(text).expect(text).is_loopback(), expect, "{text}");
        };
        check("", true);
        check("localhost:1", true);
        check("127.8.9.1", true);
        check("[::1]:4", true);
        check("0.0.0.0", true);
        check("http://box.localhost", true);
        check("192.168.1.4", false);
        check("localhost.example.com", false);
        check("ollama.com", false);
    }

    #[test]
    fn path_is_appended_to_the_base_path() {
        let url = |text: &str| ModelHost::parse(text).expect(text).url("/api/tags");
        assert_eq!(url(""), "http://127.0.0.1:11434/api/tags");
        assert_eq!(url("https://a.b/c/"), "https://a.b:443/c/api/tags");
        assert!(ModelHost::parse("https://a.b").is_ok_and(|host| host.is_https()));
    }
}
