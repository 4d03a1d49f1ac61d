//! Defaults, precedence of the sources, and the wording of errors and warnings.

use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use super::*;

/// Loads a configuration from the text of a file, variables and flags. Paths in messages are relative to the home.
fn load(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<(Config, Vec<String>), String> {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join(FILE_NAME);
    crate::fsutil::replace_atomically(&path, text.as_bytes()).expect("writes");
    let owned = |pair: &(&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
    let flags = FlagOverrides(flags.iter().map(owned).collect());
    let relative = |text: String| text.replace(&format!("{}/", home.path().display()), "");
    match Config::load(home.path(), None, env.iter().map(owned), &flags) {
        Ok((config, warnings)) => {
            Ok((config, warnings.iter().map(|warning| relative(warning.to_string())).collect()))
        }
        Err(error) => Err(relative(error.to_string())),
    }
}

#[test]
fn without_a_file_all_values_are_defaults() {
    let home = Path::new("/nowhere");
    let (config, warnings) =
        Config::load(home, None, std::iter::empty(), &FlagOverrides::default()).expect("loads");
    assert!(warnings.is_empty());
    assert_eq!(config.sessions.data_dir, Path::new("/nowhere/sessions"));
    assert_eq!(config.sessions.max_sessions, 100);
    assert_eq!(config.sessions.on_limit, OnLimit::Archive);
    assert_eq!(config.ollama.keep_alive, Duration::from_secs(300));
    let context =
        ContextConfig { size: None, answer_reserve: 0, answer_limit: None, user_share: 0.5 };
    assert_eq!(config.context, context);
    assert_eq!(config.log, LogConfig { level: "info".to_owned(), keep_days: 7 });
    assert_eq!(config.modes.developer, None);
    // The listed configuration can be read again.
    let (again, _) = load(&config.to_yaml(), &[], &[]).expect("loads");
    let computed = ["sessions.dataDir", "context.size"].map(str::to_owned);
    let diff = again.diff(&config);
    assert_eq!([diff.restart_needed, diff.applied].concat(), computed, "set instead of computed");
    assert_eq!(again.sessions, config.sessions);
    assert_eq!(again.context.size, Some(DEFAULT_CONTEXT_SIZE));
}

#[test]
fn page_lists_every_key() {
    assert!(
        include_str!("../../CONFIG.md") == Config::keys_as_text(),
        "daemon/CONFIG.md differs from the table of keys; renew it with \
         `cargo run --bin ollmd -- --list-config > daemon/CONFIG.md`"
    );
}

#[test]
fn home_that_is_not_utf8_is_used_and_shown() {
    let home = Path::new(std::ffi::OsStr::from_bytes(b"/nowhere/\xff"));
    let (config, _) =
        Config::load(home, None, std::iter::empty(), &FlagOverrides::default()).expect("loads");
    assert_eq!(config.sessions.data_dir, home.join("sessions"));
    assert_eq!(config.to_json()["sessions"]["dataDir"]["value"], "/nowhere/\u{fffd}/sessions");
}

#[test]
fn effective_values_are_shown_with_their_sources() {
    let file = "sessions:\n  maxSessions: 77\n  dataDir: ~\nfiles: { maxDepth: 3 }\n";
    let env = [("OLLM_LOG__KEEP_DAYS", "8")];
    let (config, _) = load(file, &env, &[("log.level", "debug")]).expect("loads");
    let yaml = config.to_yaml();
    let check = |name: &str, value: &str, note: &str| {
        let line = yaml.lines().find(|line| line.trim_start().starts_with(name)).expect("listed");
        let (shown, comment) = line.split_once("  # ").expect("a comment");
        assert_eq!(shown.trim_start(), format!("{name}: {value}"));
        assert!(comment.ends_with(note), "{line}");
    };
    check("maxSessions", "77", "/config.yaml:2");
    check("onLimit", "\"archive\"", "default");
    check("size", "8192", "computed: unless the session or the Modelfile sets one");
    check("answerReserve", "~", "computed: 15 % of each window");
    check("answerLimit", "~", "computed: the rest of the window");
    check("keepDays", "8", "OLLM_LOG__KEEP_DAYS");
    check("level", "\"debug\"", "--log-level or OLLM_LOG");
    check("maxDepth", "3", "/config.yaml:4");
    check("keepAlive", "\"5m\"", "default");
    check("idleTimeout", "\"2m\"", "default");
    check("host", "~", "computed: OLLAMA_HOST, else this machine");
    assert!(
        yaml.contains("/sessions\"  # ") && yaml.contains("config.yaml:3; computed: in the home")
    );
    let json = config.to_json();
    assert_eq!(json["sessions"]["maxSessions"]["line"], 2);
    assert_eq!(json["log"]["keepDays"]["variable"], "OLLM_LOG__KEEP_DAYS");
    assert_eq!(
        json["context"]["size"],
        json!({ "value": 8192, "source": "computed", "how": "unless the session or the Modelfile sets one" })
    );
}

#[test]
fn model_server_variables_are_used_and_the_api_key_is_never_shown() {
    let env = [("OLLAMA_HOST", "box:1"), ("OLLAMA_API_KEY", " hunter2\n")];
    let host = |text: &str, env: &[(&str, &str)]| {
        let (config, _) = load(text, env, &[]).expect("loads");
        config.ollama.host
    };
    assert_eq!(host("", &[]), "");
    assert_eq!(host("", &[("OLLAMA_HOST", "")]), "");
    assert_eq!(host("", &env), "box:1");
    assert_eq!(host("ollama:\n  host: mine\n", &env), "mine");
    let (config, warnings) = load("", &env, &[("log.level", "warn")]).expect("loads");
    assert_eq!(config.ollama_key, Some(ApiKey("hunter2".to_owned())));
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.to_json()["ollama"]["host"]["value"], "box:1");
    for shown in [format!("{config:?}"), config.to_yaml(), config.to_json().to_string()] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn missing_explicit_file_is_an_error() {
    let named = Path::new("/nowhere/mine.yaml");
    let flags = FlagOverrides::default();
    let error = Config::load(Path::new("/nowhere"), Some(named), std::iter::empty(), &flags);
    let error = error.expect_err("is missing");
    assert_eq!(error.to_string(), "cannot read the configuration /nowhere/mine.yaml");
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let file = "sessions:\n  maxSessions: 1\n  documentIdle: 3s\nlog: { level: warn, keepDays: 9 }\n\
                environment:\n  allow: [A, B]\nmodes:\n  developer: be brief\nollama: ~\n";
    let env = [
        ("OLLM_SESSIONS__MAXSESSIONS", "2"),
        ("OLLM_LOG__KEEP_DAYS", "8"),
        ("OLLM_LOOP_DETECTION__enabled", "false"),
        ("OLLM_ENVIRONMENT__DENY", "X, Y"),
        ("OLLM_MODELS__DEFAULT", "7"),
        ("OLLM_HOME", "/x"),
        ("PATH", "/bin"),
    ];
    let (config, warnings) = load(file, &env, &[("log.keepDays", "6")]).expect("loads");
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.sessions.max_sessions, 2);
    assert_eq!(config.sessions.document_idle, Duration::from_secs(3));
    assert_eq!((config.log.level.as_str(), config.log.keep_days), ("warn", 6));
    assert!(!config.loop_detection.enabled);
    assert_eq!(config.environment.allow, ["A", "B"]);
    assert_eq!(config.environment.deny, ["X", "Y"]);
    assert_eq!(config.models.default.as_deref(), Some("7"));
    assert_eq!(config.modes.developer.as_deref(), Some("be brief"));
    let json = config.to_json();
    let source = |section: &str, key: &str| json[section][key]["source"].as_str().expect("named");
    assert_eq!(source("sessions", "maxSessions"), "env");
    assert_eq!(source("sessions", "documentIdle"), "file");
    assert_eq!(source("log", "keepDays"), "flag");
    assert_eq!(source("goals", "markers"), "default");
}

#[test]
fn every_mistake_is_named_on_a_line() {
    let text =
        "context:\n  size: -4\nlog:\n  colour: red\nservers:\n  a: { url: 5 }\n  b: { url: 6 }\n";
    let error = load(text, &[("OLLM_LOG__KEEPDAY", "1")], &[("log.level", "loud")]);
    let error = error.expect_err("is wrong");
    for part in [
        "config.yaml:6: servers.a.url",
        "config.yaml:7: servers.b.url",
        "config.yaml:4: unknown key log.colour",
        "variable OLLM_LOG__KEEPDAY: unknown key",
        "config.yaml:2: context.size",
        "flag for log.level: log.level",
    ] {
        assert!(error.lines().any(|line| line.starts_with(part)), "{part}: {error}");
    }
    assert_eq!(error.lines().count(), 6, "{error}");
}

#[test]
fn errors_name_file_line_and_key() {
    let check = |text: &str, expect: &str| {
        assert_eq!(load(text, &[], &[]).expect_err("is wrong"), expect, "{text}");
    };
    check(
        "log:\n  level: info\nsessions:\n  maxSesions: 5\n",
        "config.yaml:4: unknown key sessions.maxSesions; did you mean maxSessions?",
    );
    check("log: { colour: red }\n", "config.yaml:1: unknown key log.colour");
    check(
        "sessions:\n  # a comment\n  maxSessions: many\n",
        "config.yaml:3: sessions.maxSessions must be a whole number from 0 to 1000000, not \"many\"",
    );
    check(
        "sessions: {\n maxSessions: -1 }",
        "config.yaml:2: sessions.maxSessions must be a whole number from 0 to 1000000, not -1",
    );
    check(
        "compression:\n  threshold: 1.5\n",
        "config.yaml:2: compression.threshold must be a number from 0 to 1, not 1.5",
    );
    check(
        "compression:\n  threshold: 80\n",
        "config.yaml:2: compression.threshold must be a number from 0 to 1, not 80",
    );
    check(
        "compression:\n  enabled: yes\n",
        "config.yaml:2: compression.enabled must be true or false, not \"yes\"",
    );
    check(
        "compression:\n  strategy: zip\n",
        "config.yaml:2: compression.strategy must be one of summarize, truncate, hybrid, not \"zip\"",
    );
    check(
        "ollama:\n  keepAlive: 5\n",
        "config.yaml:2: ollama.keepAlive must be a duration such as 500ms, 30s or 5m, up to 30d, not 5",
    );
    check(
        "context:\n  size: 100\n",
        "config.yaml:2: context.size must be a whole number from 2048 to 16777216, not 100",
    );
    check(
        "sessions:\n  dataDir: data\n",
        "config.yaml:2: sessions.dataDir must be an absolute path, not \"data\"",
    );
    check(
        "environment:\n  allow:\n    - 1\n",
        "config.yaml:2: environment.allow must be a list of texts, not a list",
    );
    check(
        "goals:\n  markers:\n",
        "config.yaml:2: goals.markers must be true or false, not nothing",
    );
    check("log: loud\n", "config.yaml:1: log must be a section with keys, not \"loud\"");
    check("log:\n  level: info\n  level: warn\n", "config.yaml:3: the key level occurs twice");
    check("log:\n  keepDays: 1\nlog: ~\n", "config.yaml:3: the key log occurs twice");
}

#[test]
fn syntax_error_names_its_line() {
    let check = |text: &str, line: u64| {
        let error = load(text, &[], &[]).expect_err("is invalid");
        assert!(error.starts_with(&format!("config.yaml:{line}: ")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    check("log:\n  level: [info\n", 2);
    check("- a\n- b\n", 1);
}

#[test]
fn empty_file_and_comments_are_valid() {
    for text in ["", "# nothing yet\n", "---\n", "log:\n"] {
        assert!(load(text, &[], &[]).is_ok(), "{text:?}");
    }
}

#[test]
fn variables_and_flags_are_checked() {
    let env = |name, value| load("", &[(name, value)], &[]).map(|(_, warnings)| warnings);
    assert_eq!(
        env("OLLM_SESSIONS__MAXSESSIONS", "many").expect_err("is wrong"),
        "variable OLLM_SESSIONS__MAXSESSIONS: sessions.maxSessions must be a whole number from 0 to \
         1000000, not \"many\""
    );
    assert_eq!(
        env("OLLM_SESSIONS__MAXSESION", "1").expect_err("is wrong"),
        "variable OLLM_SESSIONS__MAXSESION: unknown key sessions.maxsesion; did you mean maxSessions?"
    );
    let warned =
        |name: &str, hint: &str| vec![format!("variable {name} names no key and is ignored{hint}")];
    let hint = "; did you mean OLLM_SESSIONS__KEY?";
    assert_eq!(env("OLLM_SESIONS__X", "1"), Ok(warned("OLLM_SESIONS__X", hint)));
    assert_eq!(env("OLLM_SESSIONS", "1"), Ok(warned("OLLM_SESSIONS", hint)));
    assert_eq!(env("OLLM_XYZZY__X", "1"), Ok(warned("OLLM_XYZZY__X", "")));
    assert_eq!(env("OLLM_SOCKET", "1"), Ok(vec![]));
    let flag = load("", &[], &[("log.keepDays", "0")]).map(|_| ());
    let expect =
        "flag for log.keepDays: log.keepDays must be a whole number from 1 to 36500, not \"0\"";
    assert_eq!(flag.expect_err("is wrong"), expect);
}

#[test]
fn unknown_section_is_a_warning() {
    let (_, warnings) = load("a: 1\nsesions:\n  maxSessions: 1\n", &[], &[]).expect("loads");
    assert_eq!(
        warnings,
        [
            "config.yaml:1: unknown section a is ignored",
            "config.yaml:2: unknown section sesions is ignored; did you mean sessions?"
        ]
    );
}

#[test]
fn diff_separates_live_changes_from_restarts() {
    let (old, _) = load("", &[], &[]).expect("loads");
    let text = "sessions: { dataDir: /data, maxSessions: 5 }\nlog: { keepDays: 3 }\n";
    let (new, _) = load(text, &[], &[]).expect("loads");
    let diff = new.diff(&old);
    assert_eq!(diff.applied, ["sessions.maxSessions"]);
    assert_eq!(diff.restart_needed, ["sessions.dataDir", "log.keepDays"]);
}
