//! Built-in and configured rules, and credentials in URLs.

use proptest::prelude::*;

use super::*;

fn rules(allow: &[&str], deny: &[&str]) -> EnvironmentRules {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    EnvironmentRules::new(&EnvironmentConfig { allow: owned(allow), deny: owned(deny) })
}

/// Asserts which built-in rule removes a variable, or that it passes.
#[track_caller]
fn check(name: &str, value: &str, expect: Option<&str>) {
    assert_eq!(rules(&[], &[]).denying_rule(name, value), expect, "{name}");
}

#[test]
fn secret_names_are_removed() {
    check("OPENAI_API_KEY", "x", Some("*_KEY"));
    check("STRIPE_SECRET", "x", Some("*_SECRET"));
    check("GH_TOKEN", "x", Some("*_TOKEN"));
    check("DB_PASSWORD", "x", Some("*_PASSWORD"));
    check("MY_CREDENTIAL", "x", Some("*_CREDENTIAL"));
    check("AWS_REGION", "x", Some("AWS_*"));
    check("GITHUB_ACTOR", "x", Some("GITHUB_*"));
    check("MYSQL_PASS", "x", Some("*_PASS*"));
    check("MYSQL_PWD", "x", Some("*_PWD"));
    check("GOOGLE_APPLICATION_CREDENTIALS", "x", Some("*CREDENTIAL*"));
    check("PGPASSWORD", "x", Some("PG*PASSWORD"));
    check("PGPASSFILE", "/home/ada/.pgpass", Some("PGPASSFILE"));
    check("VOLC_SK", "x", Some("*_SK"));
    check("DATABASE_URL", "x", Some("DATABASE_URL"));
    check("SENTRY_DSN", "x", Some("*_DSN"));
    check("SSH_AUTH_SOCK", "x", Some("SSH_AUTH_SOCK"));
    check("token", "x", Some("TOKEN"));
    check("Secret", "x", Some("SECRET"));
    check("apikey", "x", Some("APIKEY"));
    check("openaiApiKey", "x", Some("*_KEY"));
    check("npm_config_//registry.npmjs.org/:_authToken", "x", Some("*_TOKEN"));
    check("API_KEY_PROD", "x", Some("API_KEY_*"));
    check("STRIPE_SECRET_LIVE", "x", Some("*_SECRET_*"));
}

#[test]
fn core_and_harmless_names_pass() {
    for name in ["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "LC_ALL", "lc_ctype"] {
        check(name, "https://ada:secret@host", None);
    }
    for name in [
        "PWD",
        "OLDPWD",
        "EDITOR",
        "MONKEY",
        "KEYBOARD_LAYOUT",
        "TOKENIZERS_PARALLELISM",
        "COMPASS",
        "CARGO_HOME",
        "XDG_RUNTIME_DIR",
        "SECRETARY",
        "DISPLAY",
        "SSH_ASKPASS",
        "KUBECONFIG",
        "TASK",
        "",
    ] {
        check(name, "/some/where", None);
    }
    check("HTTP_PROXY", "http://proxy:3128", None);
    check("HTTP_PROXY", "http://ada:secret@proxy:3128", Some(URL_CREDENTIALS));
    check("REDIS_URL", "redis://:secret@cache:6379/0", Some(URL_CREDENTIALS));
}

#[test]
fn configured_rules_extend_the_built_in_ones() {
    let own = rules(&["HTTP_PROXY", "GITHUB_TOKEN"], &["ACME_*", "*_internal"]);
    assert_eq!(own.denying_rule("acme_host", "x"), Some("ACME_*"));
    assert_eq!(own.denying_rule("HOST_INTERNAL", "x"), Some("*_INTERNAL"));
    assert_eq!(own.denying_rule("A_TOKEN", "x"), Some("*_TOKEN"));
    assert_eq!(own.denying_rule("HTTP_PROXY", "http://ada:secret@proxy"), None);
    assert_eq!(own.denying_rule("HTTPS_PROXY", "http://ada:secret@proxy"), Some(URL_CREDENTIALS));
    // Deny takes precedence, with a warning.
    assert_eq!(own.denying_rule("GITHUB_TOKEN", "x"), Some("*_TOKEN"));
    let [warning] = own.warnings() else { panic!("{:?}", own.warnings()) };
    assert!(
        warning.contains("GITHUB_TOKEN has no effect") && warning.contains("*_TOKEN"),
        "{warning}"
    );
    assert_eq!(rules(&[], &["PATH", "*"]).denying_rule("PATH", "x"), None);
    assert_eq!(rules(&[], &["*"]).denying_rule("EDITOR", "x"), Some("*"));
}

#[test]
fn invalid_pattern_is_ignored_with_a_warning_and_the_others_apply() {
    let rules = rules(&["("], &["[A-Z", "ACME_*"]);
    assert_eq!(rules.denying_rule("A_TOKEN", "x"), Some("*_TOKEN"));
    assert_eq!(rules.denying_rule("ACME_HOST", "x"), Some("ACME_*"));
    let warnings = rules.warnings().join("\n");
    assert!(warnings.contains("environment.deny: the pattern \"[A-Z\" contains '['"), "{warnings}");
    assert!(warnings.contains("environment.allow: the pattern \"(\""), "{warnings}");
}

#[test]
fn every_variable_passes_unchanged_or_is_removed() {
    let given = [("A", "1"), ("B_KEY", "2"), ("C", " x\n=y ")];
    let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let sanitized = rules(&[], &[]).sanitize(Variables(given.into()));
    let passed: Vec<_> =
        sanitized.passed.0.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(passed, [("A", "1"), ("C", " x\n=y ")]);
    let expect = RemovedVariable { name: "B_KEY".to_owned(), rule: "*_KEY".to_owned() };
    assert_eq!(sanitized.removed, [expect]);
    let rules = rules(&["A"], &["B"]);
    assert_eq!(rules.allow_patterns(), ["A"]);
    assert_eq!(rules.deny_patterns().last().map(String::as_str), Some("B"));
}

#[test]
fn urls_with_and_without_credentials_are_distinguished() {
    let check = |value: &str, expect| assert_eq!(has_url_credentials(value), expect, "{value}");
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

/// Generates names of secrets in different spellings.
fn denied_name() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "KEY",
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "CREDENTIAL",
        "PASS",
        "PWD",
        "DSN",
    ]);
    ("[A-Za-z][A-Za-z0-9_]{0,12}", "[_.-]", word, any::<bool>(), "[0-9]{0,2}")
        .prop_map(|(start, separator, word, is_lowercase, number)| {
            let word = if is_lowercase { word.to_lowercase() } else { word.to_owned() };
            format!("{start}{separator}{word}{number}")
        })
        .prop_filter("core names always pass", |name| !name.to_uppercase().starts_with("LC_"))
}

proptest! {
    #[test]
    fn denied_name_never_passes(
        name in denied_name(),
        value in "\\PC{0,20}",
        allow in prop::collection::vec("[A-Z*_\\[(]{0,6}", 0..4),
        deny in prop::collection::vec("[A-Z*_\\[(]{0,6}", 0..4),
    ) {
        let allow = [allow, vec![name.clone(), "*".to_owned()]].concat();
        let rules = EnvironmentRules::new(&EnvironmentConfig { allow, deny });
        let sanitized = rules.sanitize(Variables([(name.clone(), value)].into()));
        prop_assert!(sanitized.passed.0.is_empty(), "{name}");
        prop_assert_eq!(sanitized.removed.len(), 1);
    }

    #[test]
    fn core_name_always_passes(
        at in 0..CORE.len(),
        category in "[A-Z_]{0,8}",
        value in "\\PC{0,20}",
        deny in prop::collection::vec("[A-Z*_?]{0,6}", 0..6),
    ) {
        let name = CORE[at].replace('*', &category);
        let deny = [deny, vec!["*".to_owned(), name.clone()]].concat();
        let rules = EnvironmentRules::new(&EnvironmentConfig { allow: vec![], deny });
        let value = format!("{value}https://ada:secret@host");
        let sanitized = rules.sanitize(Variables([(name.clone(), value.clone())].into()));
        prop_assert_eq!(sanitized.passed.0.get(&name), Some(&value));
    }

    #[test]
    fn any_variables_pass_unchanged_or_are_removed(
        variables in prop::collection::btree_map("[A-Za-z_]{1,10}", "\\PC{0,20}", 0..20)
    ) {
        let sanitized = rules(&[], &[]).sanitize(Variables(variables.clone()));
        prop_assert_eq!(sanitized.passed.0.len() + sanitized.removed.len(), variables.len());
        for (name, value) in &sanitized.passed.0 {
            prop_assert_eq!(&variables[name], value);
        }
    }
}
