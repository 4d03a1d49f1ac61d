//! `ollmctl mcp`, as a client starts it: over pipes, with the real daemon.

mod install;
mod tools;

use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::Receiver;

use serde_json::{Value, json};

use crate::harness::{ChildExt as _, DEADLINE, Sandbox, array, lines_of, program, start};

/// The newest revision of the protocol, which has no handshake.
const MODERN: &str = "2026-07-28";
/// An older one.
const OLDER: &str = "2025-06-18";

/// An MCP client with its server.
#[must_use]
struct Mcp {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    version: &'static str,
    /// The answer to `roots/list`.
    roots: Vec<String>,
}

impl Mcp {
    /// Starts a server in a directory, without a handshake.
    fn spawn(sandbox: &Sandbox, directory: &str, version: &'static str) -> Self {
        let mut command = sandbox.command("ollmctl");
        command
            .args(["mcp"])
            .env("OLLM_DAEMON", program("ollmd"))
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(&mut child);
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next_id: 1, version, roots: Vec::new() }
    }

    /// Starts a server of the newest revision.
    fn modern(sandbox: &Sandbox, directory: &str) -> Self {
        Self::spawn(sandbox, directory, MODERN)
    }

    /// Starts a server and shakes hands; a client with roots says that it has some.
    fn older(sandbox: &Sandbox, directory: &str, roots: &[&str]) -> Self {
        let mut client = Self::spawn(sandbox, directory, OLDER);
        client.roots = roots.iter().map(|root| (*root).to_owned()).collect();
        let capabilities = if roots.is_empty() { json!({}) } else { json!({ "roots": {} }) };
        let params = json!({ "protocolVersion": OLDER, "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" } });
        let reply = client.request("initialize", params);
        assert_eq!(reply["result"]["protocolVersion"], OLDER, "{reply}");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    #[track_caller]
    fn message(&self) -> Value {
        let line = self.lines.recv_timeout(DEADLINE).expect("a message within the deadline");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }

    /// Sends a request and returns the response to it; answers what the server asks meanwhile.
    #[track_caller]
    fn request(&mut self, method: &str, mut params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        if self.version == MODERN {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let message = self.message();
            if message["method"] == "roots/list" {
                let roots: Vec<Value> =
                    self.roots.iter().map(|uri| json!({ "uri": uri })).collect();
                let result = json!({ "roots": roots });
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
            } else if message["id"] == id {
                return message;
            }
        }
    }

    /// Calls a tool that succeeds, and returns its result.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let reply = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        let result = reply["result"].clone();
        assert_eq!(result["isError"], false, "{reply}");
        result
    }

    /// Calls a tool that reads, and returns its text, which is the same in both forms of the result.
    #[track_caller]
    fn text(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!(result["structuredContent"]["text"], text.as_str());
        text
    }

    /// Calls a tool that fails, and returns the message for the model.
    #[track_caller]
    fn fails(&mut self, tool: &str, arguments: Value) -> String {
        let reply = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        assert_eq!(reply["result"]["isError"], true, "{reply}");
        reply["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Closes stdin and returns the exit code.
    #[track_caller]
    fn leave(mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.child.wait_timeout(DEADLINE).expect("the server ends with its client").code()
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn both_revisions_have_the_same_tools_at_each_run() {
    let sandbox = Sandbox::new();
    let directory = sandbox.project_dir("p");
    let mut lists = Vec::new();
    for _ in 0..2 {
        let mut older = Mcp::older(&sandbox, &directory, &[]);
        lists.push(older.request("tools/list", json!({}))["result"]["tools"].clone());
        assert_eq!(older.leave(), Some(0));
        let mut modern = Mcp::modern(&sandbox, &directory);
        let found = modern.request("server/discover", json!({}));
        let found = &found["result"];
        assert!(array(&found["supportedVersions"]).contains(&json!(MODERN)), "{found}");
        assert!(found["instructions"].as_str().unwrap().contains("recall"), "{found}");
        let listed = modern.request("tools/list", json!({}));
        let listed = &listed["result"];
        assert!(listed["ttlMs"].is_u64() && listed["resultType"] == "complete", "{listed}");
        lists.push(listed["tools"].clone());
        assert_eq!(modern.leave(), Some(0));
    }
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:#?}");
    let names: Vec<&str> =
        array(&lists[0]).iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["recall", "read", "sessions", "blame", "facts", "remember", "context"]);
    for tool in array(&lists[0]) {
        let hints = &tool["annotations"];
        assert_eq!(hints["readOnlyHint"], tool["name"] != "remember", "{tool}");
        assert_eq!(hints["destructiveHint"], false, "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        // Some clients refuse a field with several types.
        assert!(!tool["inputSchema"].to_string().contains("null"), "{tool}");
    }
    assert!(!sandbox.home().join("daemon.json").exists(), "a list needs no daemon");
}

#[test]
fn unknown_tool_is_an_error_of_the_protocol_and_wrong_arguments_are_for_the_model() {
    let (sandbox, _daemon, _wire) = start();
    let directory = sandbox.project_dir("p");
    for mut client in [Mcp::modern(&sandbox, &directory), Mcp::older(&sandbox, &directory, &[])] {
        let reply = client.request("tools/call", json!({ "name": "delete", "arguments": {} }));
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
        let wrong = client.fails("recall", json!({ "qery": "x" }));
        assert!(wrong.contains("unknown field `qery`") && wrong.contains("`query`"), "{wrong}");
        let missing = client.fails("read", json!({}));
        assert!(missing.contains("missing field `ref`"), "{missing}");
        let wrong = client.fails("read", json!({ "ref": "nonsense" }));
        assert!(wrong.contains("is not a reference such as 9f04#12"), "{wrong}");
        let wrong = client.fails("recall", json!({ "query": "x", "since": "soon" }));
        assert!(wrong.contains("is not a time"), "{wrong}");
        let unknown = client.fails("read", json!({ "ref": "dead#1" }));
        assert!(unknown.contains("no session id ends or begins with \"dead\""), "{unknown}");
        let reply = client.request("tools/everything", json!({}));
        assert_eq!(reply["error"]["code"], -32601, "{reply}");
        assert_eq!(client.leave(), Some(0));
    }
}

#[test]
fn project_is_the_root_of_the_client_else_the_working_directory() {
    let (sandbox, _daemon, mut wire) = start();
    let (here, there) = (sandbox.project_dir("here"), sandbox.project_dir("t here"));
    for (project, port) in [(&here, 48213), (&there, 48214)] {
        let session = wire.create(json!({ "projectPath": project }));
        wire.record(&session, "user", &format!("The staging port is {port}."));
    }
    wire.wait_for_catalog();
    let asked = json!({ "query": "Which port does staging have?" });
    let root = format!("file://{}", there.replace(' ', "%20"));
    let mut with_root = Mcp::older(&sandbox, &here, &[&root]);
    let text = with_root.text("recall", asked.clone());
    assert!(text.contains("48214") && !text.contains("48213"), "{text}");
    // The roots change.
    with_root.roots = vec![format!("file://{here}")];
    with_root.send(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
    let text = with_root.text("recall", asked.clone());
    assert!(text.contains("48213") && !text.contains("48214"), "{text}");
    for mut client in [Mcp::modern(&sandbox, &here), Mcp::older(&sandbox, &here, &[])] {
        let text = client.text("recall", asked.clone());
        assert!(text.contains("48213") && !text.contains("48214"), "{text}");
        let other = json!({ "query": "staging port", "project": "../t here" });
        assert!(client.text("recall", other).contains("48214"));
        let all = client.text("recall", json!({ "query": "staging port", "project": "all" }));
        assert!(all.contains("48213") && all.contains("48214"), "{all}");
    }
}

#[test]
fn daemon_is_replaced_under_a_client() {
    let (sandbox, daemon, mut wire) = start();
    let directory = sandbox.project_dir("p");
    let session = wire.create(json!({ "projectPath": directory }));
    wire.record(&session, "user", "The staging port is 48213.");
    wire.wait_for_catalog();
    let mut client = Mcp::modern(&sandbox, &directory);
    let asked = json!({ "query": "staging port" });
    assert!(client.text("recall", asked.clone()).contains("48213"));
    daemon.kill();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    wire.wait_for_catalog();
    assert!(client.text("recall", asked).contains("48213"));
}

#[test]
fn missing_daemon_is_started_by_the_first_call() {
    let sandbox = Sandbox::new();
    let directory = sandbox.project_dir("p");
    let mut client = Mcp::modern(&sandbox, &directory);
    let text = client.text("recall", json!({ "query": "staging port" }));
    assert!(text.contains("Nothing was found in this project"), "{text}");
    assert_eq!(client.leave(), Some(0));
}
