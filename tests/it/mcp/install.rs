//! `ollmctl mcp install` and `uninstall`, on files as the clients and people write them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::Sandbox;

/// A client, its file in the home of the user, and a real-shaped file with a place that must stay.
const FILES: [(&str, &str, &str); 8] = [
    (
        "claude-code",
        ".claude.json",
        "{\n  \"numStartups\": 12,\n  \"projects\": {\n    \"/home/u/p\": { \"allowedTools\": [], \"history\": [\"a \\\"b\\\"\"] }\n  },\n  \
         \"mcpServers\": {\n    \"github\": {\n      \"type\": \"http\",\n      \"url\": \"https://example.org/mcp\"\n    }\n  }\n}\n",
    ),
    (
        "codex",
        ".codex/config.toml",
        "model = \"gpt-5\" # the default\napproval_policy = \"on-request\"\n\n[mcp_servers.docs]\ncommand = 'npx'\nargs = [\n  \"-y\", # yes\n  \"docs\",\n]\n\n\
         # trusted\n[projects.\"/home/u/p\"]\ntrust_level = \"trusted\"\n",
    ),
    (
        "vscode",
        ".config/Code/User/mcp.json",
        "{\n\t// my servers\n\t\"servers\": {\n\t\t\"playwright\": {\n\t\t\t\"command\": \"npx\",\n\t\t\t\"args\": [\"-y\", \"playwright\"],\n\t\t}, // browser\n\t},\n\t\"inputs\": []\n}",
    ),
    (
        "zed",
        ".config/zed/settings.json",
        "// Zed settings\n//\n// See the documentation.\n{\n  \"theme\": \"One Dark\", /* dark */\n  \"buffer_font_size\": 15,\n}\n",
    ),
    (
        "goose",
        ".config/goose/config.yaml",
        "GOOSE_PROVIDER: ollama\nextensions:\n  # built in\n  developer:\n    enabled: true\n    name: developer\n    type: builtin\nGOOSE_MODEL: qwen3\n",
    ),
    (
        "gemini",
        ".gemini/settings.json",
        "{\n  \"security\": {\n    \"auth\": {\n      \"selectedType\": \"oauth-personal\"\n    }\n  },\n  \"mcpServers\": {}\n}",
    ),
    (
        "opencode",
        ".config/opencode/opencode.json",
        "{\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"mcp\": {\n    \"x\": { \"type\": \"remote\", \"url\": \"https://example.org\" }\n  }\n}\n",
    ),
    ("lm-studio", ".lmstudio/mcp.json", "{\"mcpServers\":{\"x\":{\"command\":\"x\"}}}"),
];

fn put(sandbox: &Sandbox, name: &str, text: &str) -> PathBuf {
    let path = sandbox.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Returns the lines of a text without a comma at their end, which the line before a new one gets.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.trim().trim_end_matches(',')).collect()
}

#[test]
fn entry_is_added_to_the_file_of_each_client_and_taken_back_to_the_byte() {
    for (client, name, old) in FILES {
        let sandbox = Sandbox::new();
        let path = put(&sandbox, name, old);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let shown = sandbox.ctl(["mcp", "install", client, "--dry-run"]).ok();
        assert!(
            shown.starts_with(&*path.to_string_lossy()) && shown.contains("\n+ "),
            "{client}: {shown}"
        );
        assert_eq!(text(&path), old, "{client}: a dry run changes nothing");
        let refused = sandbox.ctl(["mcp", "install", client]).fails(2);
        assert!(refused.contains("add --yes"), "{refused}");
        let done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        assert!(done.contains(&format!("ollmctl mcp uninstall {client}")), "{done}");
        let new = text(&path);
        assert!(new.contains("ollm") && new.contains("mcp\""), "{client}: {new}");
        assert!(
            new.contains(sandbox.home().to_str().unwrap()),
            "{client}: another home is named: {new}"
        );
        let kept = lines(&new);
        let is_kept =
            |line: &&str| kept.contains(line) || old.lines().count() == 1 || line.ends_with("{}");
        assert!(lines(old).iter().all(is_kept), "{client}: {new}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(text(&sandbox.path(&format!("{name}.before-ollm"))), old, "{client}");
        let again = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        assert!(again.contains("has the server already"), "{again}");
        let _done = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        assert_eq!(text(&path), old, "{client}");
        assert!(!sandbox.path(&format!("{name}.before-ollm")).exists(), "{client}");
        let again = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        assert!(again.contains("does not have the server"), "{again}");
    }
}

#[test]
fn file_that_did_not_exist_comes_and_goes() {
    for (client, name, _) in FILES {
        let sandbox = Sandbox::new();
        let outcome = sandbox.ctl(["--json", "mcp", "install", client, "--yes"]).json();
        assert_eq!(
            (&outcome["changed"], outcome.get("copy")),
            (&Value::Bool(true), None),
            "{outcome}"
        );
        let path = sandbox.path(name);
        assert_eq!(outcome["path"], path.to_str().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(text(&path).contains("ollm"));
        let _done = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        assert!(!path.exists(), "{client}");
    }
}

#[test]
fn only_the_entry_goes_if_the_file_changed_since() {
    for (client, name, old) in FILES {
        let sandbox = Sandbox::new();
        let path = put(&sandbox, name, old);
        let _done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        let (from, to) = match client {
            "codex" => ("gpt-5", "gpt-6"),
            "goose" => ("qwen3", "qwen4"),
            "vscode" => ("playwright\"]", "playwright@2\"]"),
            "zed" => ("One Dark", "One Light"),
            "claude-code" => ("12", "13"),
            "gemini" => ("oauth-personal", "api-key"),
            "opencode" => ("example.org", "example.com"),
            _ => ("{\"command\":\"x\"}", "{\"command\":\"y\"}"),
        };
        fs::write(&path, text(&path).replace(from, to)).unwrap();
        let _done = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        let left = text(&path);
        assert!(!left.contains("ollm") && left.contains(to), "{client}: {left}");
        // A section that the installation made may remain, empty.
        let expect = old.replace(from, to);
        let kept = lines(&left);
        assert!(
            lines(&expect).iter().all(|line| kept.contains(line) || line.ends_with("{}")),
            "{client}: {left}"
        );
    }
}

#[test]
fn newer_form_of_the_entry_keeps_the_copy_of_the_first_installation() {
    for (client, name, old) in FILES {
        let sandbox = Sandbox::new();
        let path = put(&sandbox, name, old);
        let _done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        let home = sandbox.home().to_str().unwrap().to_owned();
        fs::write(&path, text(&path).replace(&home, "/elsewhere")).unwrap();
        let _done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        assert!(!text(&path).contains("/elsewhere"), "{client}: {}", text(&path));
        assert_eq!(text(&sandbox.path(&format!("{name}.before-ollm"))), old, "{client}");
        let _done = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        assert!(!text(&path).contains("ollm"), "{client}: {}", text(&path));
        assert!(!sandbox.path(&format!("{name}.before-ollm")).exists(), "{client}");
        // An entry that was there before goes too.
        let _done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        fs::remove_file(sandbox.path(&format!("{name}.before-ollm"))).unwrap();
        fs::write(&path, text(&path).replace(&home, "/elsewhere")).unwrap();
        let _done = sandbox.ctl(["mcp", "install", client, "--yes"]).ok();
        let _done = sandbox.ctl(["mcp", "uninstall", client, "--yes"]).ok();
        assert!(!text(&path).contains("ollm"), "{client}: {}", text(&path));
    }
}

#[test]
fn link_stays_and_the_file_that_it_leads_to_changes() {
    let sandbox = Sandbox::new();
    let real = put(&sandbox, "dotfiles/codex.toml", "model = \"x\"\n");
    fs::create_dir_all(sandbox.path(".codex")).unwrap();
    let link = sandbox.path(".codex/config.toml");
    std::os::unix::fs::symlink("../dotfiles/codex.toml", &link).unwrap();
    let _done = sandbox.ctl(["mcp", "install", "codex", "--yes"]).ok();
    assert!(link.is_symlink());
    assert!(text(&real).contains("[mcp_servers.ollm]"), "{}", text(&real));
    let _done = sandbox.ctl(["mcp", "uninstall", "codex", "--yes"]).ok();
    assert_eq!(text(&real), "model = \"x\"\n");
    assert!(link.is_symlink());
}

#[test]
fn file_that_does_not_parse_is_refused_with_its_line() {
    for (client, name, broken, line) in [
        ("zed", ".config/zed/settings.json", "{\n  \"a\": 1\n  \"b\": 2\n}\n", 3),
        ("codex", ".codex/config.toml", "a = 1\nb = = 2\n", 2),
        ("goose", ".config/goose/config.yaml", "a: 1\nb: 'x\n", 3),
    ] {
        let sandbox = Sandbox::new();
        let path = put(&sandbox, name, broken);
        for verb in ["install", "uninstall"] {
            let refused = sandbox.ctl(["mcp", verb, client, "--yes"]).fails(2);
            assert!(refused.contains("does not parse, so it was not changed"), "{refused}");
            assert!(refused.contains(&format!("line {line}")), "{client}: {refused}");
        }
        assert_eq!(text(&path), broken);
    }
    let sandbox = Sandbox::new();
    put(&sandbox, ".codex/config.toml", "mcp_servers = 3\n");
    let refused = sandbox.ctl(["mcp", "install", "codex", "--yes"]).fails(2);
    assert!(
        refused.contains("cannot be changed safely; the entry is {\"mcp_servers\""),
        "{refused}"
    );
}

#[test]
fn settings_of_a_project_name_the_program_alone() {
    let sandbox = Sandbox::new();
    for (client, name) in [
        ("claude-code", ".mcp.json"),
        ("codex", ".codex/config.toml"),
        ("vscode", ".vscode/mcp.json"),
        ("zed", ".zed/settings.json"),
        ("gemini", ".gemini/settings.json"),
        ("opencode", "opencode.json"),
    ] {
        let _done = sandbox.ctl(["mcp", "install", client, "--project", "--yes"]).ok();
        let new = text(&sandbox.path(name));
        assert!(new.contains("\"ollmctl\""), "{client}: {new}");
        assert!(!new.contains(sandbox.home().to_str().unwrap()), "{client}: {new}");
    }
    let refused = sandbox.ctl(["mcp", "install", "goose", "--project", "--yes"]).fails(2);
    assert!(refused.contains("goose has no settings of a project"), "{refused}");
}
