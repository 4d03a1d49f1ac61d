use proptest::prelude::*;

use super::*;

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Rules::new(&EnvironmentConfig { allow: owned(allow), deny: owned(deny) })
}

#[track_caller]
fn check(name: &str, value: &str, expect: Option<&str>) {
    assert_eq!(rules(&[], &[]).refusal(name, value), expect, "{name}");
}

#[test]
fn what_is_a_secret_by_its_name_is_kept_back() {
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
fn what_is_needed_or_harmless_passes() {
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
        "",
    ] {
        check(name, "/some/where", None);
    }
    check("HTTP_PROXY", "http://proxy:3128", None);
    check("HTTP_PROXY", "http://ada:secret@proxy:3128", Some(URL_CREDENTIALS));
    check("REDIS_URL", "redis://:secret@cache:6379/0", Some(URL_CREDENTIALS));
}

#[test]
fn configured_rules_add_to_the_built_in_ones() {
    let own = rules(&["HTTP_PROXY", "GITHUB_TOKEN"], &["ACME_*", "*_internal"]);
    assert_eq!(own.refusal("acme_host", "x"), Some("ACME_*"));
    assert_eq!(own.refusal("HOST_INTERNAL", "x"), Some("*_INTERNAL"));
    assert_eq!(own.refusal("A_TOKEN", "x"), Some("*_TOKEN"));
    assert_eq!(own.refusal("HTTP_PROXY", "http://ada:secret@proxy"), None);
    assert_eq!(own.refusal("HTTPS_PROXY", "http://ada:secret@proxy"), Some(URL_CREDENTIALS));
    // Deny wins, and says so.
    assert_eq!(own.refusal("GITHUB_TOKEN", "x"), Some("*_TOKEN"));
    let [warning] = own.warnings() else { panic!("{:?}", own.warnings()) };
    assert!(
        warning.contains("GITHUB_TOKEN has no effect") && warning.contains("*_TOKEN"),
        "{warning}"
    );
    assert_eq!(rules(&[], &["PATH", "*"]).refusal("PATH", "x"), None);
    assert_eq!(rules(&[], &["*"]).refusal("EDITOR", "x"), Some("*"));
}

#[test]
fn a_broken_pattern_is_left_out_with_a_warning_and_the_others_hold() {
    let broken = rules(&["("], &["[A-Z", "ACME_*"]);
    assert_eq!(broken.refusal("A_TOKEN", "x"), Some("*_TOKEN"));
    assert_eq!(broken.refusal("ACME_HOST", "x"), Some("ACME_*"));
    let warnings = broken.warnings().join("\n");
    assert!(warnings.contains("environment.deny: the pattern \"[A-Z\" has '['"), "{warnings}");
    assert!(warnings.contains("environment.allow: the pattern \"(\""), "{warnings}");
}

#[test]
fn nothing_is_lost_and_values_stay_as_they_are() {
    let given = [("A", "1"), ("B_KEY", "2"), ("C", " x\n=y ")];
    let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let done = rules(&[], &[]).sanitize(Variables(given.into()));
    let passing: Vec<_> =
        done.variables.0.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(passing, [("A", "1"), ("C", " x\n=y ")]);
    let expect = RemovedVariable { name: "B_KEY".to_owned(), rule: "*_KEY".to_owned() };
    assert_eq!(done.removed, [expect]);
    let described = rules(&["A"], &["B"]).describe();
    assert_eq!(
        (&*described.allow, described.deny.last().map(String::as_str)),
        (&["A".to_owned()][..], Some("B"))
    );
}

/// Names in any writing that mean a secret.
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
        .prop_map(|(start, sign, word, small, number)| {
            let word = if small { word.to_lowercase() } else { word.to_owned() };
            format!("{start}{sign}{word}{number}")
        })
        .prop_filter("core names always pass", |name| !name.to_uppercase().starts_with("LC_"))
}

proptest! {
    #[test]
    fn a_denied_name_never_passes(
        name in denied_name(),
        value in "\\PC{0,20}",
        allow in prop::collection::vec("[A-Z*_\\[(]{0,6}", 0..4),
        deny in prop::collection::vec("[A-Z*_\\[(]{0,6}", 0..4),
    ) {
        let allow = [allow, vec![name.clone(), "*".to_owned()]].concat();
        let rules = Rules::new(&EnvironmentConfig { allow, deny });
        let done = rules.sanitize(Variables([(name.clone(), value)].into()));
        prop_assert!(done.variables.0.is_empty(), "{name}");
        prop_assert_eq!(done.removed.len(), 1);
    }

    #[test]
    fn a_core_name_always_passes(
        at in 0..CORE.len(),
        category in "[A-Z_]{0,8}",
        value in "\\PC{0,20}",
        deny in prop::collection::vec("[A-Z*_?]{0,6}", 0..6),
    ) {
        let name = CORE[at].replace('*', &category);
        let deny = [deny, vec!["*".to_owned(), name.clone()]].concat();
        let rules = Rules::new(&EnvironmentConfig { allow: vec![], deny });
        let value = format!("{value}https://ada:secret@host");
        let done = rules.sanitize(Variables([(name.clone(), value.clone())].into()));
        prop_assert_eq!(done.variables.0.get(&name), Some(&value));
    }

    #[test]
    fn what_does_not_pass_is_named_and_what_passes_is_unchanged(
        variables in prop::collection::btree_map("[A-Za-z_]{1,10}", "\\PC{0,20}", 0..20)
    ) {
        let done = rules(&[], &[]).sanitize(Variables(variables.clone()));
        prop_assert_eq!(done.variables.0.len() + done.removed.len(), variables.len());
        for (name, value) in &done.variables.0 {
            prop_assert_eq!(&variables[name], value);
        }
    }
}
