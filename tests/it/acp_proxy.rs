//! `ollmctl acp -- AGENT`: the proxy between an editor and an agent, with agents that are shell scripts.

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{
    ChildExt as _, DEADLINE, Sandbox, Wire, array, lines_of, program, start, until, until_some,
};

/// An agent: it answers what an editor asks, and writes what it reads to the file `$LOG`.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
update() { say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s-1","update":'"$1"'}}'; }
chunk() { update '{"sessionUpdate":"'"$1"'","content":{"type":"text","text":"'"$2"'"}}'; }
while IFS= read -r line; do
  printf '%s\n' "$line" >> "$LOG"
  id=$(printf '%s' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":1,"agentInfo":{"name":"scripted"}}}' ;;
    *'"method":"session/new"'*) say '{"jsonrpc":"2.0","id":'$id',"result":{"sessionId":"s-1"}}' ;;
    *'"method":"session/load"'*)
      chunk user_message_chunk 'Make the server listen on port 48213.'
      chunk agent_message_chunk 'Done.'
      say '{"jsonrpc":"2.0","id":'$id',"result":{}}' ;;
    *kill*) chunk agent_message_chunk 'Half of an'; kill -9 $$ ;;
    *'"method":"session/prompt"'*)
      chunk agent_thought_chunk 'I think.'
      chunk agent_message_chunk 'I edit the server.'
      update '{"sessionUpdate":"tool_call","toolCallId":"c1","title":"Edit","kind":"edit","status":"pending"}'
      update '{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"diff","path":"src/server.rs","oldText":"1","newText":"2"}]}'
      chunk agent_message_chunk 'The server listens on port 48213.'
      say '{"jsonrpc":"2.0","id":'$id',"result":{"stopReason":"end_turn"}}' ;;
    *) say "$line" ;;
  esac
done
echo bye >&2
exit 7
"#;

/// An editor with a proxy and its agent.
#[must_use]
struct Editor {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
}

impl Editor {
    fn start(sandbox: &Sandbox, flags: &[&str], agent: &[&str]) -> Self {
        let mut command = sandbox.command("ollmctl");
        command
            .args(["acp"])
            .args(flags)
            .arg("--")
            .args(agent)
            .env("OLLM_DAEMON", program("ollmd"))
            .env("LOG", sandbox.path("agent.log"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(&mut child);
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next_id: 1 }
    }

    fn scripted(sandbox: &Sandbox, flags: &[&str]) -> Self {
        Self::start(sandbox, flags, &["/bin/sh", "-c", AGENT])
    }

    fn send(&mut self, line: &str) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("a line within the deadline")
    }

    /// Sends a request and returns the lines up to its response.
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Vec<Value> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(
            &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string(),
        );
        let mut lines = Vec::new();
        loop {
            let line: Value = serde_json::from_str(&self.line()).unwrap();
            lines.push(line);
            if lines.last().unwrap()["id"] == id {
                return lines;
            }
        }
    }

    fn open(&mut self, cwd: &str) {
        self.ask("initialize", json!({ "protocolVersion": 1 }));
        self.ask("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    }

    fn prompt(&mut self, text: &str) -> Vec<Value> {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.ask("session/prompt", json!({ "sessionId": "s-1", "prompt": prompt }))
    }

    /// Closes stdin and returns the status and the stderr.
    #[track_caller]
    fn leave(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        self.end()
    }

    #[track_caller]
    fn end(&mut self) -> (ExitStatus, String) {
        let mut stderr = self.child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let status = self.child.wait_timeout(DEADLINE).expect("the proxy ends with its agent");
        (status, reader.join().unwrap())
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the only session, and its messages and calls as `role: text`.
fn recorded(wire: &mut Wire) -> (Value, Vec<String>) {
    let listed = wire.ok("session.list", json!({}));
    let [session] = array(&listed["data"]) else { panic!("{listed}") };
    let id = session["sessionId"].as_str().unwrap();
    let records = wire.records(id);
    let said = records.iter().filter_map(|record| {
        if let Some(call) = record.get("toolCall") {
            return Some(format!("{}: {}", call["name"].as_str()?, call["args"]["path"].as_str()?));
        }
        let message = record.get("message")?;
        let parts = array(&message["parts"]).iter();
        let texts: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
        Some(format!("{}: {}", message["role"].as_str()?, texts.join("|")))
    });
    (session.clone(), said.collect())
}

const TURN: [&str; 4] = [
    "user: Make the server listen on port 48213.",
    "assistant: I think.|I edit the server.",
    "edit: src/server.rs",
    "assistant: The server listens on port 48213.",
];

#[test]
fn conversation_becomes_a_session_that_a_restarted_proxy_goes_on_with() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let mut editor = Editor::scripted(&sandbox, &[]);
    editor.open(&project);
    let lines = editor.prompt("Make the server listen on port 48213.");
    assert_eq!(lines.len(), 6);
    let (status, stderr) = editor.leave();
    assert_eq!((status.code(), stderr.as_str()), (Some(7), "bye\n"));
    let (session, said) = recorded(&mut wire);
    assert_eq!(said, TURN);
    assert_eq!(session["projectPath"], project.as_str());
    assert_eq!(session["metadata"]["acp"], json!({ "agent": "scripted", "sessionId": "s-1" }));
    let mut later = Editor::scripted(&sandbox, &[]);
    later.ask("initialize", json!({ "protocolVersion": 1 }));
    let lines =
        later.ask("session/load", json!({ "sessionId": "s-1", "cwd": project, "mcpServers": [] }));
    assert_eq!(lines.len(), 3, "the replay passes");
    later.prompt("Make the server listen on port 48213.");
    let _ended = later.leave();
    let (again, said) = recorded(&mut wire);
    assert_eq!(again["sessionId"], session["sessionId"]);
    assert_eq!(said, [TURN, TURN].concat(), "the replay is not recorded again");
    wire.wait_for_catalog();
    let found = sandbox.ctl(["recall", "Which port does the server listen on?"]).ok();
    assert!(found.contains("48213"), "{found}");
    let blamed = wire.ok("session.blame", json!({ "path": format!("{project}/src/server.rs") }));
    assert_eq!(array(&blamed["data"]).len(), 2, "{blamed}");
    assert_eq!(blamed["data"][0]["touch"], "changed");
}

#[test]
fn loaded_session_that_is_new_here_is_recorded_from_its_replay() {
    let (sandbox, _daemon, mut wire) = start();
    let mut editor = Editor::scripted(&sandbox, &[]);
    // The second replay has nothing new.
    for _ in 0..2 {
        editor.ask(
            "session/load",
            json!({ "sessionId": "s-1", "cwd": "/nowhere", "mcpServers": [] }),
        );
    }
    let _ended = editor.leave();
    let (session, said) = recorded(&mut wire);
    assert_eq!(said, ["user: Make the server listen on port 48213.", "assistant: Done."]);
    assert_eq!(session.get("projectPath"), None, "the directory does not exist");
}

#[test]
fn everything_passes_as_it_is() {
    let (sandbox, _daemon, _wire) = start();
    for flags in [&[] as &[&str], &["--mcp", "--recall"]] {
        let mut editor = Editor::start(&sandbox, flags, &["/bin/cat"]);
        let odd = [
            "",
            "garbage \u{7f} é",
            "{ \"id\" : 1.50 , \"method\":\"x/unknown\",\"_meta\":{\"a\":[1e400]}, \"params\": {\"b\":12345678901234567890123} }",
            "{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{\"sessionId\":\"s\"}}",
            "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32601}}",
        ];
        for line in odd {
            editor.send(line);
            assert_eq!(editor.line(), line);
        }
        let large = format!("{{\"x\":\"{}\"}}", "y".repeat(10 << 20));
        editor.send(&large);
        assert!(editor.line() == large, "10 MB pass");
        let (status, stderr) = editor.leave();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    }
}

#[test]
fn end_of_the_agent_is_that_of_the_proxy() {
    let (sandbox, _daemon, mut wire) = start();
    for (script, code, signal) in [
        ("exit 3", Some(3), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -15 $$", None, Some(15)),
        ("kill -2 $$", None, Some(2)),
        ("kill -11 $$", None, Some(11)),
        ("kill -13 $$", None, Some(13)),
    ] {
        let (status, _) = Editor::start(&sandbox, &[], &["/bin/sh", "-c", script]).end();
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
    let (status, stderr) = Editor::start(&sandbox, &[], &["/nowhere/agent"]).end();
    assert_eq!(status.code(), Some(127));
    assert!(stderr.contains("cannot run /nowhere/agent"), "{stderr}");
    // A program that the agent left running does not keep the editor waiting.
    let (status, _) =
        Editor::start(&sandbox, &[], &["/bin/sh", "-c", "sleep 600 2>/dev/null & exit 4"]).end();
    assert_eq!(status.code(), Some(4));
    assert_eq!(wire.ok("session.list", json!({}))["data"], json!([]), "nothing was said");
}

#[test]
fn signal_to_the_proxy_is_the_agents() {
    let (sandbox, _daemon, _wire) = start();
    for (name, signal) in [("TERM", Signal::TERM), ("USR1", Signal::USR1)] {
        let script =
            format!("trap 'echo caught; exit 5' {name}; echo ready; while :; do sleep 0.01; done");
        let mut editor = Editor::start(&sandbox, &[], &["/bin/sh", "-c", &script]);
        assert_eq!(editor.line(), "ready");
        kill_process(Pid::from_raw(editor.child.id().cast_signed()).unwrap(), signal).unwrap();
        assert_eq!(editor.line(), "caught");
        assert_eq!(editor.end().0.code(), Some(5));
    }
}

#[test]
fn answer_of_a_killed_agent_is_kept() {
    let (sandbox, _daemon, mut wire) = start();
    let mut editor = Editor::scripted(&sandbox, &[]);
    editor.open(&sandbox.project_dir("p"));
    let prompt = json!([{ "type": "text", "text": "Please kill yourself." }]);
    let params = json!({ "sessionId": "s-1", "prompt": prompt });
    editor.send(
        &json!({ "jsonrpc": "2.0", "id": 9, "method": "session/prompt", "params": params })
            .to_string(),
    );
    assert!(editor.line().contains("Half of an"));
    assert_eq!(editor.end().0.signal(), Some(9));
    let (session, said) = recorded(&mut wire);
    assert_eq!(said, ["user: Please kill yourself.", "assistant: Half of an"]);
    let records = wire.records(session["sessionId"].as_str().unwrap());
    let last = records.iter().rev().find_map(|record| record.get("message")).unwrap();
    assert_eq!(last["finishReason"], "interrupted");
}

#[test]
fn conversation_of_a_killed_proxy_is_kept_up_to_then() {
    let (sandbox, _daemon, mut wire) = start();
    let mut editor = Editor::scripted(&sandbox, &[]);
    editor.open(&sandbox.project_dir("p"));
    editor.prompt("Make the server listen on port 48213.");
    until("the turn is recorded", || {
        let listed = wire.ok("session.list", json!({}));
        listed["data"][0]["messageCount"] == 3
    });
    editor.child.kill().unwrap();
    let (_, said) = recorded(&mut wire);
    assert_eq!(said, TURN);
}

#[test]
fn without_a_daemon_everything_passes_and_the_end_says_what_is_missing() {
    let sandbox = Sandbox::new();
    let mut editor = Editor::scripted(&sandbox, &["--no-spawn", "--recall"]);
    editor.open(&sandbox.project_dir("p"));
    assert_eq!(editor.prompt("Make the server listen on port 48213.").len(), 6);
    let (status, stderr) = editor.leave();
    assert_eq!(status.code(), Some(7));
    assert!(
        stderr.starts_with("bye\n")
            && stderr.contains("were not recorded: cannot connect to ollmd"),
        "{stderr}"
    );
}

#[test]
fn daemon_that_is_replaced_loses_nothing() {
    let (sandbox, daemon, _wire) = start();
    let mut editor = Editor::scripted(&sandbox, &["--no-spawn"]);
    editor.open(&sandbox.project_dir("p"));
    editor.prompt("Make the server listen on port 48213.");
    daemon.kill();
    editor.prompt("Make the server listen on port 48213.");
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    until("both turns are recorded", || {
        let listed = wire.ok("session.list", json!({}));
        listed["data"][0]["messageCount"] == 6
    });
    let (status, stderr) = editor.leave();
    assert_eq!((status.code(), stderr.as_str()), (Some(7), "bye\n"));
    assert_eq!(recorded(&mut wire).1, [TURN, TURN].concat());
}

#[test]
fn daemon_that_hangs_delays_nothing_and_is_caught_up_when_it_wakes() {
    let (sandbox, daemon, mut wire) = start();
    let mut editor = Editor::scripted(&sandbox, &["--no-spawn"]);
    editor.open(&sandbox.project_dir("p"));
    let mut until_recorded = |n_messages: u64| {
        until("the turns are recorded", || {
            let listed = wire.ok("session.list", json!({}));
            listed["data"][0]["messageCount"] == n_messages
        });
    };
    editor.prompt("Make the server listen on port 48213.");
    until_recorded(3);
    daemon.signal(Signal::STOP);
    editor.prompt("Make the server listen on port 48213.");
    daemon.signal(Signal::CONT);
    until_recorded(6);
    // At the end it is not awaited for long.
    daemon.signal(Signal::STOP);
    editor.prompt("Make the server listen on port 48213.");
    let begun = Instant::now();
    let (status, stderr) = editor.leave();
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(7));
    assert!(stderr.contains("4 parts of the conversation were not recorded"), "{stderr}");
    daemon.signal(Signal::CONT);
}

#[test]
fn agent_that_uses_an_id_again_gets_another_session() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    for text in ["one", "two"] {
        let mut editor = Editor::scripted(&sandbox, &[]);
        editor.open(&project);
        editor.prompt(text);
        let _ended = editor.leave();
    }
    // The newest one is meant by its id.
    let mut editor = Editor::scripted(&sandbox, &[]);
    editor.ask("initialize", json!({ "protocolVersion": 1 }));
    editor.ask("session/load", json!({ "sessionId": "s-1", "cwd": project, "mcpServers": [] }));
    editor.prompt("three");
    let _ended = editor.leave();
    let listed = wire.ok("session.list", json!({}));
    let mut asked: Vec<Vec<String>> = Vec::new();
    for session in array(&listed["data"]) {
        assert_eq!(session["projectPath"], project.as_str());
        let records = wire.records(session["sessionId"].as_str().unwrap());
        let messages = records.iter().map(|record| &record["message"]);
        let texts = messages.filter(|message| message["role"] == "user");
        asked.push(
            texts.map(|message| message["parts"][0]["text"].as_str().unwrap().to_owned()).collect(),
        );
    }
    asked.sort();
    assert_eq!(asked, [vec!["one"], vec!["two", "three"]]);
}

#[test]
fn prompt_gets_what_is_recalled_and_a_session_the_server_of_tools() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("p");
    let other = wire.create(json!({ "projectPath": project }));
    wire.record(&other, "user", "The staging server uses port 48213.");
    wire.wait_for_catalog();
    let mut editor = Editor::scripted(&sandbox, &["--recall", "--mcp"]);
    editor.open(&project);
    editor.prompt("Which port does the staging server use?");
    editor.prompt("Thanks!");
    editor.prompt("/review Which port does the staging server use?");
    let _ended = editor.leave();
    let log = until_some("the log of the agent", || {
        std::fs::read_to_string(sandbox.path("agent.log")).ok()
    });
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let server = &lines[1]["params"]["mcpServers"][0];
    assert_eq!((&server["name"], &server["env"]), (&json!("ollm"), &json!([])));
    assert!(array(&server["args"]).contains(&json!("mcp")), "{server}");
    let prompt = array(&lines[2]["params"]["prompt"]);
    let added = prompt[0]["text"].as_str().unwrap();
    assert!(added.starts_with("<quoted_history>") && added.contains("48213"), "{added}");
    assert_eq!(prompt[1]["text"], "Which port does the staging server use?");
    assert_eq!(array(&lines[3]["params"]["prompt"]).len(), 1, "nothing is known about thanks");
    assert_eq!(array(&lines[4]["params"]["prompt"]).len(), 1, "a command stays the first block");
    // The record has what the person wrote.
    wire.wait_for_catalog();
    let recalled =
        wire.ok("context.recall", json!({ "query": "quoted_history information instructions" }));
    assert_eq!(recalled["data"], json!([]), "{recalled}");
}
