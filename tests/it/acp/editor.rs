//! An editor for tests: `ollmctl acp` as a process, its messages one after the other.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};

use crate::harness::{ChildExt as _, DEADLINE, Daemon, Sandbox, Wire, program};

/// A sandbox with a daemon, and an agent that an editor has started.
#[must_use]
pub(super) struct Editor {
    pub(super) sandbox: Sandbox,
    pub(super) daemon: Option<Daemon>,
    /// The arguments of the agent.
    args: &'static [&'static str],
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    last_id: u64,
    /// The answer to a question of the agent: the option of a permission.
    pub(super) permits: &'static str,
}

impl Editor {
    /// Starts a daemon with a configuration, and an agent.
    pub(super) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts a daemon with a configuration, and an agent that agrees on the draft of version 2.
    pub(super) fn start_v2(config: &str) -> Self {
        let mut editor = Self::start_with(config, &["--unstable-v2"]);
        assert_eq!(editor.agree(2)["protocolVersion"], 2);
        editor
    }

    pub(super) fn start_with(config: &str, args: &'static [&'static str]) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(config);
        let daemon = Some(sandbox.daemon());
        let (child, stdin, messages) = spawn(&sandbox, args);
        let (stdin, permits) = (Some(stdin), "allow_once");
        Self { sandbox, daemon, args, child, stdin, messages, last_id: 0, permits }
    }

    /// Asks for a version of the protocol, in the form of version 2.
    #[track_caller]
    pub(super) fn agree(&mut self, version: u64) -> Value {
        let info = json!({ "name": "tests", "version": "1" });
        let params = json!({ "protocolVersion": version, "info": info, "capabilities": {} });
        self.ok("initialize", params)
    }

    /// Closes the input and waits for the end; returns the exit code.
    pub(super) fn end(&mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.child.wait_timeout(DEADLINE).expect("the agent ends").code()
    }

    /// Ends the agent and starts another one.
    pub(super) fn restart(&mut self) {
        assert_eq!(self.end(), Some(0));
        let (child, stdin, messages) = spawn(&self.sandbox, self.args);
        (self.child, self.stdin, self.messages) = (child, Some(stdin), messages);
    }

    pub(super) fn wire(&self) -> Wire {
        // The next daemon, which the agent starts, is at the socket of its home.
        Wire::connect(Path::new(self.sandbox.ctl(["socket"]).ok().trim_end()))
    }

    /// Returns the texts of the user's messages in the log of a session.
    pub(super) fn asked(&self, session: &str) -> Vec<String> {
        let records = self.wire().records(session);
        let asked = records.iter().filter(|record| record["message"]["role"] == "user");
        let text =
            |record: &Value| record["message"]["parts"][0]["text"].as_str().unwrap().to_owned();
        asked.map(text).collect()
    }

    pub(super) fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Sends a request and returns its id.
    pub(super) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send_line(&request.to_string());
        id
    }

    pub(super) fn notify(&mut self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.send_line(&message.to_string());
    }

    /// Waits for the next message.
    #[track_caller]
    pub(super) fn next(&self) -> Value {
        self.messages.recv_timeout(DEADLINE).expect("another message within the deadline")
    }

    /// Waits for the reply to a request; returns it, and the updates before it. Answers questions of the agent.
    #[track_caller]
    pub(super) fn reply(&mut self, id: u64) -> (Value, Vec<Value>) {
        let mut updates = Vec::new();
        loop {
            let mut message = self.next();
            if message["method"] == "session/request_permission" {
                self.answer(&message);
                updates.push(message);
            } else if message["method"] == "session/update" {
                updates.push(message["params"]["update"].take());
            } else if message["id"] == id {
                return (message, updates);
            }
        }
    }

    fn answer(&mut self, question: &Value) {
        let outcome = json!({ "outcome": "selected", "optionId": self.permits });
        let result = json!({ "outcome": outcome });
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        self.send_line(&answer.to_string());
    }

    /// Sends a prompt of version 2; returns the reply, and the updates to the end of the answer. Answers questions of the
    /// agent, which are among the updates.
    #[track_caller]
    pub(super) fn prompt_to_idle(&mut self, params: Value) -> (Value, Vec<Value>) {
        let id = self.request("session/prompt", params);
        let (mut reply, mut updates) = (Value::Null, Vec::new());
        let mut is_idle = false;
        while reply.is_null() || !(is_idle || reply["error"].is_object()) {
            let mut message = self.next();
            if message["id"] == id && message.get("method").is_none() {
                reply = message;
                continue;
            }
            if message["method"] == "session/request_permission" {
                self.answer(&message);
                updates.push(message);
            } else {
                let update = message["params"]["update"].take();
                is_idle |= update["state"] == "idle";
                updates.push(update);
            }
        }
        (reply, updates)
    }

    /// Calls a method, which must succeed.
    #[track_caller]
    pub(super) fn ok(&mut self, method: &str, params: Value) -> Value {
        self.ok_with_updates(method, params).0
    }

    #[track_caller]
    pub(super) fn ok_with_updates(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let id = self.request(method, params);
        let (mut reply, updates) = self.reply(id);
        assert_eq!(reply["jsonrpc"], "2.0");
        assert!(reply.get("result").is_some(), "{method}: {reply}");
        (reply["result"].take(), updates)
    }

    /// Calls a method, which must fail, and returns the error.
    #[track_caller]
    pub(super) fn refused(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let (mut reply, _) = self.reply(id);
        assert!(reply.get("error").is_some(), "{method}: {reply}");
        reply["error"].take()
    }

    /// Begins a session in the directory of the sandbox, after its list of commands has arrived.
    #[track_caller]
    pub(super) fn new_session(&mut self) -> String {
        self.new_session_with(json!([]))
    }

    #[track_caller]
    pub(super) fn new_session_with(&mut self, servers: Value) -> String {
        let cwd = self.sandbox.project_dir("project");
        let reply = self.ok("session/new", json!({ "cwd": cwd, "mcpServers": servers }));
        let commands = self.next();
        assert_eq!(commands["params"]["update"]["sessionUpdate"], "available_commands_update");
        reply["sessionId"].as_str().unwrap().to_owned()
    }

    pub(super) fn send_prompt(&mut self, session: &str, text: &str) -> u64 {
        self.request("session/prompt", prompt(session, text))
    }

    /// Sends a prompt, which must be answered; returns why it ended, and the updates.
    #[track_caller]
    pub(super) fn prompt(&mut self, session: &str, text: &str) -> (String, Vec<Value>) {
        let (reply, updates) = self.ok_with_updates("session/prompt", prompt(session, text));
        (reply["stopReason"].as_str().unwrap().to_owned(), updates)
    }

    #[track_caller]
    pub(super) fn prompt_refused(&mut self, session: &str, text: &str) -> Value {
        self.refused("session/prompt", prompt(session, text))
    }

    /// Waits for an update of a kind of any session; the messages before it are dropped.
    #[track_caller]
    pub(super) fn update(&self, kind: &str) -> Value {
        loop {
            let mut message = self.next();
            if message["params"]["update"]["sessionUpdate"] == kind {
                return message["params"]["update"].take();
            }
        }
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn spawn(sandbox: &Sandbox, args: &[&str]) -> (Child, ChildStdin, Receiver<Value>) {
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).arg("acp").args(args);
    command.env("A_TOKEN", "hunter2").env("PLAIN", "seen");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (send, messages) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let line = line.unwrap();
            let message = serde_json::from_str(&line);
            let message = message.unwrap_or_else(|_| panic!("stdout has only messages: {line}"));
            if send.send(message).is_err() {
                return;
            }
        }
    });
    (child, stdin, messages)
}

pub(super) fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

/// Returns the updates of a kind.
pub(super) fn of_kind<'a>(updates: &'a [Value], kind: &str) -> Vec<&'a Value> {
    updates.iter().filter(|update| update["sessionUpdate"] == kind).collect()
}

/// Returns the text that updates of a kind carry.
pub(super) fn text_of(updates: &[Value], kind: &str) -> String {
    let texts = of_kind(updates, kind).into_iter();
    texts.filter_map(|update| update["content"]["text"].as_str()).collect()
}
