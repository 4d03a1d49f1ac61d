//! The small programs in `client/examples`, as a person runs them. Those in Rust are compiled with the tests.

use std::path::Path;

use crate::harness::{Answer, FakeOllama, Sandbox, program, run};

/// Runs an example with a question and returns what it printed.
#[track_caller]
fn answer_of(interpreter: &str, example: &str) -> String {
    let fake = FakeOllama::new();
    fake.script(Answer::text("Use \"reversed\".\nOr sort it."));
    let sandbox = Sandbox::new();
    sandbox.write_config(&fake.config("tiny"));
    let _daemon = sandbox.daemon();
    let mut command = std::process::Command::new(interpreter);
    sandbox.isolate(&mut command);
    let ollmctl = program("ollmctl");
    let programs = ollmctl.parent().map(Path::display).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("client/examples").join(example);
    command.env("PATH", format!("{programs}:/usr/bin:/bin")).arg(file);
    command.arg("How do I \"reverse\" a list\\?\nQuickly.");
    let printed = run(command, "").ok();
    let asked = fake.requests("/api/chat")[0].body["messages"][0]["content"].clone();
    assert_eq!(asked, "How do I \"reverse\" a list\\?\nQuickly.", "{example}");
    printed
}

#[test]
fn example_for_the_shell_prints_an_answer() {
    let printed = answer_of("/bin/sh", "chat.sh");
    // The shell has no parser of JSON, so quotes stay escaped.
    assert_eq!(printed.replace('\\', ""), "Use \"reversed\".\nOr sort it.\n");
}

#[test]
fn example_in_python_prints_an_answer() {
    // Not every machine has Python.
    if Path::new("/usr/bin/python3").exists() {
        assert_eq!(answer_of("/usr/bin/python3", "chat.py"), "Use \"reversed\".\nOr sort it.\n");
    }
}
