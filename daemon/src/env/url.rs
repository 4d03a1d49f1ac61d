//! Whether a value embeds credentials in a URL: `postgres://ada:secret@db/app`, `https://token@host/repo.git`.

/// The longest scheme that is looked for before `://`.
const MAX_SCHEME: usize = 32;

/// Whether any URL in a value carries a password, or a lone user where that is mostly a token.
pub(super) fn embeds_credentials(value: &str) -> bool {
    value.match_indices("://").any(|(at, _)| {
        let scheme = scheme_before(&value[..at]);
        let rest = &value[at + 3..];
        let end = rest.find(|sign: char| sign.is_whitespace() || "\"'<>`".contains(sign));
        !scheme.is_empty() && has_credentials(&scheme, &rest[..end.unwrap_or(rest.len())])
    })
}

/// The scheme that ends here, in small letters; empty where there is none.
fn scheme_before(text: &str) -> String {
    let belongs = |sign: &char| sign.is_ascii_alphanumeric() || "+-.".contains(*sign);
    let mut scheme: Vec<char> = text.chars().rev().take(MAX_SCHEME).take_while(belongs).collect();
    scheme.reverse();
    scheme.into_iter().collect::<String>().to_ascii_lowercase()
}

fn has_credentials(scheme: &str, rest: &str) -> bool {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if let Some((user, _host)) = authority.rsplit_once('@') {
        return match user.split_once(':') {
            Some((_, password)) => !password.is_empty(),
            // `ssh://git@host` names an account; before a web host a lone name is a token.
            None => !user.is_empty() && matches!(scheme, "http" | "https"),
        };
    }
    // A password with a slash in it that nobody encoded: what looks like a port is no number, and an @ follows.
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    !authority.starts_with('[') && port.is_some_and(|port| !is_port(port)) && rest.contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_credentials() {
        let check = |value: &str, expect| assert_eq!(embeds_credentials(value), expect, "{value}");
        check("postgres://ada:secret@db.example/app", true);
        check("redis://:secret@cache:6379/0", true);
        check("https://ghp_abc@github.com/a/b.git", true);
        check("HTTPS://ada:secret@host", true);
        check("amqps+srv://ada:p%40ss@host", true);
        check("postgres://ada:se/cret@db/app", true);
        check("first https://host/ok then mysql://a:b@h/d", true);
        check("--proxy=http://ada:secret@proxy:3128", true);
        check("jdbc:postgresql://ada:secret@db/app", true);
        check("https://user:pa@ss@host/", true);
        check("https://example.com/@ada", false);
        check("https://example.com:8080/@ada", false);
        check("https://example.com/?mail=a@b.c", false);
        check("https://example.com/a:b@c", false);
        check("ssh://git@github.com/a/b.git", false);
        check("ftp://ada@host", false);
        check("ada:secret@host", false);
        check("http://[::1]:80/@x", false);
        check("https://ada:@host", false);
        check("://ada:secret@host", false);
        check("unix:///run/x.sock", false);
        check("", false);
        check("a://", false);
    }
}
