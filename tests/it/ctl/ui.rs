//! `ollmctl ui` on a terminal, with the screens that a person sees: lists, search, chats, other clients, and signals.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Daemon, FakeOllama, Sandbox, ScreenTerminal, Wire, program, start, until};

/// The terminal that everybody has.
const SIZE: (u16, u16) = (80, 24);
const CTRL_Z: &str = "\u{1a}";
const DOWN: &str = "\u{1b}[B";

/// Records a session with one message and its answer, and returns its id.
fn talk(wire: &mut Wire, title: &str, question: &str) -> String {
    let session = wire.create(json!({ "title": title }));
    wire.record(&session, "user", question);
    wire.record(&session, "assistant", &format!("All about {question}"));
    session
}

/// Starts a daemon with two sessions, the second one newer.
fn two_talks() -> (Sandbox, Daemon, Wire, [String; 2]) {
    let (sandbox, daemon, mut wire) = start();
    let ids = [
        talk(&mut wire, "Herons", "wading birds"),
        talk(&mut wire, "Ports \u{1b}]0;owned\u{7}\u{1b}[2Jof staging", "48213"),
    ];
    (sandbox, daemon, wire, ids)
}

fn ui(sandbox: &Sandbox) -> ScreenTerminal {
    ScreenTerminal::start(sandbox, &["ui"], SIZE)
}

/// Checks that the program left the terminal as it found it.
#[track_caller]
fn assert_left(terminal: &ScreenTerminal) {
    let screen = terminal.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste());
}

#[test]
fn sessions_are_read_searched_and_left() {
    let (sandbox, _daemon, _wire, _ids) = two_talks();
    let mut terminal = ui(&sandbox);
    let screen = terminal.shows(&["Sessions of all projects · 2", "All about 48213"]);
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[1].starts_with(">  Ports of staging") && lines[2].starts_with("   Herons"));
    terminal.send("/wadi");
    let screen = terminal.shows(&["Search: wadi", "assistant: All about wading birds  Herons"]);
    assert!(!screen.contains("Ports"), "{screen}");
    terminal.send(DOWN);
    terminal.shows(&["── Herons #1 ", "» user  #1"]);
    terminal.send("\u{1b}");
    terminal.hides("Search:");
    terminal.send("?");
    terminal.shows(&["Keys of the sessions"]);
    terminal.resize((40, 20));
    terminal.shows(&["search titles and messages\n"]);
    terminal.send("qq");
    assert_eq!(terminal.exit_code(), Some(0));
    assert_left(&terminal);
    let written = String::from_utf8_lossy(terminal.written());
    assert!(written.contains("\u{1b}[?2026h"), "frames are shown as a whole");
    assert!(!written.contains("owned") && !written.contains("\u{1b}]"), "{written:?}");
    assert!(!written.contains("38;5;"), "only the 16 colors of the palette are used");
}

#[test]
fn session_is_resumed_in_a_chat_that_comes_back() {
    let fake = FakeOllama::new();
    let sandbox = Sandbox::new();
    sandbox.write_config(&fake.config("tiny"));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let id = talk(&mut wire, "Herons", "wading birds");
    let mut terminal = ui(&sandbox);
    terminal.shows(&[">  Herons"]);
    terminal.send("\r");
    terminal.shows(&["/help lists"]);
    assert!(!terminal.screen().alternate_screen());
    terminal.send("and storks?\r");
    terminal.shows(&["> and storks?", "Context: "]);
    terminal.send("/exit\r");
    terminal.shows(&["Sessions of all projects", ">  Herons", "and storks?"]);
    assert!(terminal.screen().alternate_screen());
    let messages = wire.records(&id).iter().filter(|record| record["type"] == "message").count();
    assert_eq!(messages, 4);
    wire.ok("session.delete", json!({ "sessionId": id }));
    terminal.shows(&["No sessions yet"]);
    terminal.send("q");
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn message_of_a_failed_chat_stays_until_a_key() {
    let (sandbox, daemon, wire, _ids) = two_talks();
    let mut terminal = ScreenTerminal::start(&sandbox, &["--no-spawn", "ui"], SIZE);
    terminal.shows(&[">  Ports"]);
    drop(wire);
    assert!(daemon.terminate().success());
    terminal.shows(&["ollmd has stopped"]);
    terminal.send("\r");
    terminal.shows(&["cannot connect to ollmd", "Press Enter to go back"]);
    assert!(!terminal.screen().alternate_screen());
    terminal.send("\r");
    terminal.shows(&[">  Ports", "ollmd has stopped"]);
    assert!(terminal.screen().alternate_screen());
}

#[test]
fn changes_of_other_clients_and_a_restart_are_shown() {
    let (sandbox, daemon, mut wire, [older, _]) = two_talks();
    let mut terminal = ui(&sandbox);
    terminal.shows(&["· 2"]);
    wire.record(&older, "user", "How tall are they?");
    let screen =
        terminal.shows(&["Herons                                                          3"]);
    assert!(screen.lines().nth(2).unwrap().starts_with(">  Ports"), "the selection stays");
    terminal.send("k");
    terminal.shows(&["How tall are they?"]);
    drop(wire);
    assert!(daemon.terminate().success());
    terminal.shows(&["ollmd has stopped", "How tall are they?"]);
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    terminal.shows(&["connected to ollmd again"]);
    terminal.hides("has stopped");
    wire.ok("session.update", json!({ "sessionId": older, "title": "Tall herons" }));
    terminal.shows(&[">  Tall herons"]);
    terminal.send("e");
    terminal.shows(&["Tall herons  session-updated"]);
}

#[test]
fn session_is_renamed_undone_forked_and_deleted_by_keys() {
    let (sandbox, _daemon, mut wire, [_, newer]) = two_talks();
    let mut terminal = ui(&sandbox);
    terminal.shows(&[">  Ports"]);
    terminal.send("r\u{15}Ports of Hamburg\r");
    terminal.shows(&["renamed: Ports of Hamburg", ">  Ports of Hamburg"]);
    terminal.send("u");
    terminal.shows(&["undo turn #1: 48213", "taken back: 2 messages", "y undo"]);
    terminal.send("y");
    terminal.shows(&["undone: turn #1: 48213"]);
    terminal.send("t");
    terminal.shows(&["#1 user: 48213", "Window ", "Before "]);
    terminal.send("U");
    terminal.shows(&["redo turn #1: 48213"]);
    terminal.send("y");
    terminal.shows(&["redone: turn #1", "#2 assistant: All about 48213", "<- here"]);
    terminal.send("\u{1b}");
    terminal.send("f");
    terminal.shows(&[">  Ports of Hamburg (fork ", "· 3"]);
    terminal.send("dx");
    terminal.shows(&["nothing was changed", "· 3"]);
    terminal.send("dy");
    terminal.shows(&["deleted", "· 2"]);
    assert_eq!(wire.session(&newer)["title"], "Ports of Hamburg");
}

#[test]
fn snapshot_is_restored_by_a_key_of_the_tree() {
    let (sandbox, _daemon, mut wire, [_, newer]) = two_talks();
    let mut terminal = ui(&sandbox);
    terminal.shows(&[">  Ports"]);
    terminal.send("t");
    terminal.shows(&[">* #2 assistant: All about 48213 <- here"]);
    terminal.send("S");
    terminal.shows(&["no snapshot was taken at this record"]);
    terminal.send("s");
    terminal.shows(&["[snapshot, manual] <- here"]);
    let seq = wire.record(&newer, "user", "Which ship?");
    terminal.shows(&[&format!(">* #{seq} user: Which ship? <- here")]);
    terminal.send("k");
    terminal.shows(&[">* #2 assistant"]);
    terminal.send("S");
    terminal.shows(&[
        "restore the snapshot of ",
        "manual: 48213",
        "taken back: 1 message",
        "y restore · any other key",
    ]);
    terminal.send("y");
    terminal.shows(&["restored: taken back: 1 message", "[snapshot, manual] <- here"]);
    let tree = wire.ok("session.tree", json!({ "sessionId": newer }));
    assert_eq!(tree["leaf"], 2);
    terminal.send("\t");
    terminal.shows(&[&format!(">  #{seq} user: Which ship?")]);
    terminal.send("?");
    terminal.shows(&["restore the newest snapshot at the record"]);
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let (sandbox, _daemon, _wire, _ids) = two_talks();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut terminal = ui(&sandbox);
        terminal.shows(&["Herons"]);
        terminal.signal(signal);
        assert_eq!(terminal.exit_code(), Some(code));
        assert_left(&terminal);
    }
}

#[test]
fn stopped_view_continues_in_the_foreground() {
    let (sandbox, _daemon, _wire, _ids) = two_talks();
    let ollmctl = program("ollmctl");
    let script = format!(
        "set -m; {} ui; echo was stopped; read line; fg; echo has ended",
        ollmctl.display()
    );
    let mut terminal = ScreenTerminal::start_with(&sandbox, "/bin/sh", &["-c", &script], SIZE, &[]);
    terminal.shows(&[">  Ports"]);
    terminal.send(CTRL_Z);
    terminal.shows(&["was stopped"]);
    assert_left(&terminal);
    terminal.send("\r");
    terminal.shows(&[">  Ports"]);
    terminal.send("j");
    terminal.shows(&[">  Herons"]);
    terminal.send("q");
    terminal.shows(&["has ended"]);
    assert_left(&terminal);
}

#[test]
fn terminal_that_cannot_show_it_is_refused() {
    let sandbox = Sandbox::new();
    let error = sandbox.ctl(["ui"]).fails(2);
    assert!(error.contains("needs a terminal") && error.contains("try: ollmctl sessions list"));
    let dumb = [("TERM", "dumb")];
    let mut terminal =
        ScreenTerminal::start_with(&sandbox, program("ollmctl"), &["ui"], SIZE, &dumb);
    terminal.shows(&["TERM is dumb", "try: ollmctl sessions list"]);
    assert_eq!(terminal.exit_code(), Some(2));
    // Nothing is started for a view that cannot be shown.
    assert!(!sandbox.home().join("daemon.json").exists());
}

#[test]
fn command_alone_names_the_view_on_a_terminal_only() {
    let sandbox = Sandbox::new();
    let hint = "`ollmctl ui` shows your sessions";
    let mut terminal = ScreenTerminal::start(&sandbox, &[], (100, 100));
    terminal.shows(&["Usage: ollmctl", hint]);
    assert_eq!(terminal.exit_code(), Some(2));
    let help = sandbox.ctl::<&str>([]).fails(2);
    assert!(help.contains("Usage: ollmctl") && !help.contains(hint), "{help}");
}

#[test]
fn first_connection_that_fails_is_an_error() {
    let sandbox = Sandbox::new();
    let mut terminal = ScreenTerminal::start(&sandbox, &["--no-spawn", "ui"], SIZE);
    terminal.shows(&["cannot connect to ollmd", "try: ollmctl daemon start"]);
    assert_eq!(terminal.exit_code(), Some(6));
    assert_left(&terminal);
    until("no daemon was started", || !sandbox.home().join("daemon.json").exists());
}
