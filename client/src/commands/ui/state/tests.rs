use ollm_protocol::content::Session;
use ollm_protocol::methods::session::branches::SessionUndoResult;
use ollm_protocol::methods::session::{SessionGetResult, SessionListResult, SessionSearchResult};
use ollm_protocol::{Event, SessionId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};
use serde_json::{Value, json};

use super::*;
use crate::commands::ui::draw::{UiPalette, draw};
use crate::testing::{render_options, session_named};

/// The view with a daemon of some sessions, which answers at once.
struct UiFixture {
    state: UiState,
    /// The sessions of the daemon, the most recently active first.
    sessions: Vec<Session>,
    /// The calls that changed something or asked what a step would do.
    changes: Vec<UiCall>,
    /// The requests that are no calls.
    others: Vec<UiRequest>,
    /// The hits of every search.
    hits: Vec<Value>,
    /// The records of every session.
    records: Vec<Value>,
}

fn id(number: u64) -> SessionId {
    format!("0192f0c1-9a3b-7000-8000-{number:012x}").parse().unwrap()
}

fn session(number: u64, title: &str) -> Session {
    let mut session = session_named(&id(number).to_string(), title);
    let at = session.last_activity.unix_ms() - i64::try_from(number).unwrap() * 60_000;
    session.last_activity = Timestamp::from_unix_ms(at);
    session
}

fn message(seq: u64, role: &str, text: &str) -> Value {
    let at = "2026-01-27T09:00:00Z";
    let parts = json!([{ "type": "text", "text": text }]);
    let message = json!({ "role": role, "parts": parts, "timestamp": at });
    json!({ "seq": seq, "at": at, "type": "message", "message": message })
}

impl UiFixture {
    fn new(size: (u16, u16), sessions: Vec<Session>) -> Self {
        Self {
            state: UiState::new(size, render_options(80), None),
            sessions,
            changes: Vec::new(),
            others: Vec::new(),
            hits: Vec::new(),
            records: vec![message(1, "user", "Which port?"), message(2, "assistant", "48213.")],
        }
    }

    fn connected(size: (u16, u16), titles: &[&str]) -> Self {
        let numbered = titles.iter().zip(1..);
        let mut fixture =
            Self::new(size, numbered.map(|(title, number)| session(number, title)).collect());
        fixture.input(UiInput::Connected);
        fixture
    }

    /// Gives an input to the state, and answers its calls until it makes none.
    fn input(&mut self, input: UiInput) {
        let mut pending = self.state.update(input);
        while !pending.is_empty() {
            for request in std::mem::take(&mut pending) {
                match request {
                    UiRequest::Call(call) => {
                        if let Some(answer) = self.answer(&call) {
                            pending.extend(self.state.update(UiInput::answered(call, Ok(answer))));
                        }
                    }
                    other => self.others.push(other),
                }
            }
        }
    }

    fn answer(&mut self, call: &UiCall) -> Option<UiAnswer> {
        match call {
            UiCall::List { params, .. }
            | UiCall::One { params, .. }
            | UiCall::Titles { params, .. } => Some(UiAnswer::List(self.list(params))),
            UiCall::Hits { .. } => {
                let page = json!({ "data": self.hits });
                let page: SessionSearchResult = serde_json::from_value(page).unwrap();
                Some(UiAnswer::Hits(page))
            }
            UiCall::Records(target) => {
                let session = json!(session(1, "of the records"));
                let mut page = json!({ "session": session, "records": self.records });
                page["session"]["sessionId"] = json!(target.session_id);
                let page: SessionGetResult = serde_json::from_value(page).unwrap();
                Some(UiAnswer::Records(Box::new(page)))
            }
            UiCall::Fork { .. } => {
                let fork = Session { last_activity: self.state.times.now, ..session(99, "a fork") };
                self.sessions.insert(0, fork.clone());
                Some(UiAnswer::Session(Box::new(fork)))
            }
            UiCall::PreviewStep { .. } => {
                self.changes.push(call.clone());
                let operation = json!({
                    "seq": 7, "throughSeq": 9, "kind": "turn", "state": "applied",
                    "text": "Which \u{1b}[2Jport?", "added": { "records": 3, "messages": 2 },
                    "files": { "count": 2, "paths": ["a.rs", "b.rs"] }
                });
                let files = json!([{ "path": "a.rs", "status": "putBack" }]);
                let counts = json!({ "putBack": 1, "conflict": 1 });
                let plan = json!({ "planId": id(5), "counts": counts, "files": files });
                let result = json!({
                    "operations": [operation], "undoable": 3, "redoable": 0, "files": plan
                });
                let result: SessionUndoResult = serde_json::from_value(result).unwrap();
                Some(UiAnswer::Step(result))
            }
            call => {
                self.changes.push(call.clone());
                None
            }
        }
    }

    fn list(&self, params: &SessionListParams) -> SessionListResult {
        let words = params.title.clone().unwrap_or_default().to_lowercase();
        let prefix = params.id_prefix.clone().unwrap_or_default();
        let matching = self.sessions.iter().filter(|session| {
            let is_archived = session.status == SessionStatus::Archived;
            session.title.to_lowercase().contains(&words)
                && session.session_id.to_string().starts_with(&prefix)
                && is_archived == (params.status == Some(SessionStatus::Archived))
        });
        let from: usize = params.cursor.as_deref().map_or(0, |cursor| cursor.parse().unwrap());
        let limit = params.limit.unwrap() as usize;
        let rest: Vec<Session> = matching.skip(from).cloned().collect();
        let next_cursor = (rest.len() > limit).then(|| (from + limit).to_string());
        let data = rest.into_iter().take(limit).collect();
        SessionListResult { data, next_cursor, behind: false }
    }

    fn key(&mut self, key: UiKey) {
        self.input(UiInput::Key(key));
    }

    fn keys(&mut self, keys: &str) {
        keys.chars().for_each(|char| self.key(UiKey::Char(char)));
    }

    fn terminal(&self, has_color: bool) -> Terminal<TestBackend> {
        let (width, height) = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&self.state, UiPalette { has_color }, frame)).unwrap();
        terminal
    }

    /// Returns the lines of the screen.
    fn screen(&self) -> Vec<String> {
        let terminal = self.terminal(true);
        let buffer = terminal.backend().buffer();
        let line = |y| {
            let mut line = String::new();
            let mut skipped = 0;
            for x in 0..buffer.area.width {
                let symbol = buffer[(x, y)].symbol();
                // A wide character takes the next cell, too.
                if skipped == 0 {
                    line.push_str(symbol);
                    skipped = crate::commands::ui::text::columns(symbol).saturating_sub(1);
                } else {
                    skipped -= 1;
                }
            }
            line.trim_end().to_owned()
        };
        (0..buffer.area.height).map(line).collect()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        let screen = self.screen().join("\n");
        assert!(screen.contains(text), "no {text:?} in\n{screen}");
    }

    #[track_caller]
    fn hides(&self, text: &str) {
        let screen = self.screen().join("\n");
        assert!(!screen.contains(text), "{text:?} in\n{screen}");
    }
}

fn event(kind: &str, session_id: SessionId, data: Value) -> UiInput {
    let event: Event = serde_json::from_value(json!({
        "epoch": "e", "eventSeq": 1, "sessionId": session_id, "seq": 1, "kind": kind,
        "at": "2026-01-27T09:30:00Z", "data": data
    }))
    .unwrap();
    UiInput::Event(Box::new(event))
}

#[test]
fn first_screen_waits_for_no_reply() {
    let fixture = UiFixture::new((80, 24), Vec::new());
    fixture.shows("Sessions of all projects");
    fixture.shows("connecting…");
    fixture.shows("? help");
}

#[test]
fn sessions_are_shown_with_the_records_of_the_selected_one() {
    let mut fixture = UiFixture::connected((80, 24), &["Reverse a list", "", "設定ファイルを読む"]);
    let screen = fixture.screen();
    assert_eq!(screen[0], "Sessions of all projects · 3");
    assert_eq!(screen[1], format!(">  Reverse a list{}2     1 h ago", " ".repeat(50)));
    assert!(screen[2].starts_with("   (untitled)"), "{screen:#?}");
    assert!(screen[3].starts_with("   設定ファイルを読む"), "{screen:#?}");
    fixture.shows("── Reverse a list ─");
    fixture.shows("Which port?");
    fixture.shows("48213.");
    fixture.keys("j");
    assert!(fixture.screen()[2].starts_with(">  (untitled)"));
    fixture.shows("── (untitled) ─");
}

#[test]
fn every_screen_fits_every_size() {
    let mut fixture = UiFixture::connected((80, 24), &["Reverse a list", "Ports"]);
    fixture.input(event("turn-started", id(1), json!({ "model": "tiny" })));
    for keys in ["", "/rev", "?", "d", "r"] {
        fixture.keys(keys);
        for size in [(1, 1), (10, 3), (40, 20), (80, 24), (200, 50), (300, 2), (2, 90)] {
            fixture.input(UiInput::Resized(size));
            drop(fixture.screen());
        }
        fixture.key(UiKey::Esc);
    }
    fixture.keys("e");
    fixture.input(UiInput::Resized((40, 20)));
    fixture.shows("turn-started");
}

#[test]
fn narrow_screen_keeps_titles_and_ages() {
    let fixture = UiFixture::connected((40, 20), &["How do I reverse a list without a copy?"]);
    assert_eq!(fixture.screen()[1], ">  How do I reverse a list w…    1 h ago");
    fixture.shows("Enter chat  / search  ? help  q quit");
}

#[test]
fn escape_sequences_in_titles_are_not_drawn() {
    let mut fixture =
        UiFixture::connected((80, 24), &["evil \u{1b}[2J\u{1b}]0;owned\u{7}title\u{202e}\nline"]);
    fixture.shows("evil title line");
    fixture.hides("owned");
    fixture.keys("d");
    fixture.shows("delete “evil title line”");
}

#[test]
fn selection_and_matches_are_seen_without_colors() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.hits = vec![json!({
        "sessionId": id(1), "title": "Lists", "seq": 3, "role": "user", "score": 1.0,
        "at": "2026-01-27T09:00:00Z", "snippet": "reverse a list", "matches": [[0, 7]]
    })];
    fixture.keys("/reverse");
    let terminal = fixture.terminal(false);
    let cells = terminal.backend().buffer().content();
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let has = |modifier| cells.iter().any(|cell| cell.modifier.contains(modifier));
    assert!(has(Modifier::REVERSED) && has(Modifier::UNDERLINED));
    let terminal = fixture.terminal(true);
    let is_of_palette = |color: Color| !matches!(color, Color::Rgb(..) | Color::Indexed(_));
    assert!(terminal.backend().buffer().content().iter().all(|cell| is_of_palette(cell.fg)));
}

#[test]
fn search_finds_titles_and_messages_as_one_types() {
    let mut fixture = UiFixture::connected((80, 24), &["Reverse a list", "Ports"]);
    fixture.hits = vec![json!({
        "sessionId": id(2), "title": "Ports", "seq": 3, "role": "assistant", "score": 1.0,
        "at": "2026-01-27T09:00:00Z", "snippet": "it is the reverse proxy", "matches": [[10, 17]]
    })];
    fixture.keys("/rev");
    let screen = fixture.screen();
    assert!(screen[1].starts_with("Search: rev") && screen[1].ends_with('2'), "{screen:#?}");
    assert!(screen[2].starts_with(">  Reverse a list"), "{screen:#?}");
    assert!(screen[3].contains("assistant: it is the reverse proxy  Ports"), "{screen:#?}");
    fixture.key(UiKey::Down);
    fixture.shows("── Ports #3 ");
    fixture.key(UiKey::Enter);
    assert!(matches!(fixture.others[..], [UiRequest::Chat(Some(chosen))] if chosen == id(2)));
    fixture.key(UiKey::Tab);
    fixture.keys("r");
    fixture.shows("Title: ");
    fixture.key(UiKey::Esc);
    fixture.key(UiKey::Esc);
    assert!(fixture.state.search.is_none());
    fixture.shows("   Ports");
}

#[test]
fn letters_of_a_search_start_no_action() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("/dyq?");
    assert!(fixture.changes.is_empty() && fixture.others.is_empty());
    fixture.shows("Search: dyq?");
    fixture.shows("Nothing found.");
}

#[test]
fn session_is_deleted_only_after_a_yes() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists", "Ports"]);
    fixture.keys("d");
    fixture.shows("delete “Lists” with 2 messages");
    fixture.shows("cannot be undone");
    fixture.key(UiKey::Enter);
    fixture.shows("nothing was changed");
    assert!(fixture.changes.is_empty());
    fixture.keys("dy");
    assert!(matches!(fixture.changes[..], [UiCall::Delete(deleted)] if deleted == id(1)));
    fixture.input(UiInput::answered(UiCall::Delete(id(1)), Ok(UiAnswer::Done)));
    fixture.shows("deleted");
    fixture.hides("Lists");
    fixture.shows(">  Ports");
}

#[test]
fn rename_begins_with_the_title() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("r of Rust");
    fixture.key(UiKey::Enter);
    let [UiCall::Rename { session_id, title }] = &fixture.changes[..] else {
        panic!("{:?}", fixture.changes)
    };
    assert_eq!((*session_id, title.as_str()), (id(1), "Lists of Rust"));
    let renamed = Session { title: title.clone(), ..session(1, "") };
    let call = fixture.changes.remove(0);
    fixture.input(UiInput::answered(call, Ok(UiAnswer::Session(Box::new(renamed)))));
    fixture.shows(">  Lists of Rust");
    fixture.shows("renamed: Lists of Rust");
}

#[test]
fn undo_shows_what_it_would_do_and_names_the_operation() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("u");
    fixture.shows("undo turn #7: Which port?");
    fixture.shows("taken back: 2 messages");
    fixture.shows("f puts files back too: a.rs");
    fixture.shows("1 file cannot be put back; why: ollmctl undo --files preview");
    fixture.shows("3 more can be undone");
    fixture.keys("y");
    let step = |fixture: &UiFixture| match fixture.changes.last() {
        Some(UiCall::Step { step: StepDirection::Back, operation, plan, .. }) => {
            (operation.0, plan.is_some())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(step(&fixture), (7, false));
    fixture.keys("uf");
    assert_eq!(step(&fixture), (7, true));
}

#[test]
fn late_answer_does_not_take_keys_that_are_typed_for_something_else() {
    for (asked, typed, shown) in [
        ('u', "j", "press u again to undo"),
        ('U', "/dy", "Search: dy"),
        ('u', "d", "delete “Lists”"),
        ('f', "/dy", "Search: dy"),
        ('f', "r", "Title: Lists"),
    ] {
        let mut fixture = UiFixture::connected((80, 24), &["Lists", "Ports"]);
        let mut requests = fixture.state.update(UiInput::Key(UiKey::Char(asked)));
        let UiRequest::Call(call) = requests.remove(0) else { panic!("{requests:?}") };
        fixture.keys(typed);
        let answer = fixture.answer(&call).unwrap();
        fixture.changes.clear();
        fixture.input(UiInput::answered(call, Ok(answer)));
        fixture.shows(shown);
        fixture.keys("y");
        assert!(!fixture.changes.iter().any(|call| matches!(call, UiCall::Step { .. })), "{asked}");
    }
}

#[test]
fn fork_is_selected_when_it_is_listed() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists", "Ports"]);
    fixture.keys("jf");
    fixture.shows(">  a fork");
    fixture.shows("forked: a fork");
}

#[test]
fn archived_sessions_are_listed_on_request() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists", "Ports"]);
    fixture.sessions[1].status = SessionStatus::Archived;
    fixture.input(event("session-archived", id(2), json!({ "reason": "client" })));
    fixture.hides("Ports");
    fixture.keys("A");
    fixture.shows("Archived sessions of all projects · 1");
    fixture.shows(">a Ports");
    fixture.keys("a");
    assert!(matches!(fixture.changes[..], [UiCall::Archive { archive: false, .. }]));
}

#[test]
fn project_without_sessions_shows_all() {
    let mut fixture = UiFixture::connected((80, 24), &[]);
    let project = OwnProject { path: "/p".to_owned(), name: "p".to_owned() };
    fixture.state = UiState::new((80, 24), fixture.state.times, Some(project));
    fixture.shows("Sessions of p");
    fixture.input(UiInput::Connected);
    fixture.shows("Sessions of all projects · 0");
    fixture.shows("n begins a chat");
    fixture.keys("p");
    fixture.shows("Sessions of p · 0");
    fixture.shows("p shows all projects");
}

#[test]
fn changes_elsewhere_appear_without_moving_the_selection() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists", "Ports"]);
    fixture.keys("j");
    let new = Session { last_activity: fixture.state.times.now, ..session(3, "New") };
    fixture.sessions.insert(0, new);
    fixture.input(event("session-created", id(3), json!({ "title": "New" })));
    let screen = fixture.screen();
    assert!(screen[1].starts_with("   New") && screen[3].starts_with(">  Ports"), "{screen:#?}");
    fixture.sessions.remove(0);
    fixture.input(event("session-deleted", id(3), json!({ "reason": "client" })));
    fixture.hides("New");
    assert!(fixture.screen()[2].starts_with(">  Ports"));
}

#[test]
fn event_that_changes_nothing_requests_nothing() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    assert!(fixture.state.update(event("files-progress", id(1), json!({}))).is_empty());
    assert!(!fixture.state.update(event("message-recorded", id(1), json!({}))).is_empty());
}

#[test]
fn answer_that_is_written_elsewhere_is_followed() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    assert_eq!(fixture.state.followed(), Some((id(1), false)));
    fixture.input(event("turn-started", id(1), json!({ "model": "tiny" })));
    assert_eq!(fixture.state.followed(), Some((id(1), true)));
    fixture.shows("1 answering");
    fixture.shows(">● Lists");
    let turn =
        |event: Value| UiInput::Turn(id(1), Some(Box::new(serde_json::from_value(event).unwrap())));
    let at = "2026-01-27T09:00:00Z";
    fixture.input(turn(
        json!({ "kind": "running", "model": "tiny", "startedAt": at, "text": "A grow" }),
    ));
    fixture.input(turn(json!({ "kind": "delta", "text": "ing answ" })));
    fixture.shows("assistant, answering now");
    fixture.shows("A growing answ");
    fixture.input(UiInput::Turn(id(1), None));
    fixture.hides("answering now");
    fixture.input(event("turn-ended", id(1), json!({ "model": "tiny" })));
    fixture.hides("1 answering");
    fixture.keys("e");
    fixture.shows("Lists  turn-ended #1 model=tiny");
    fixture.keys("t");
    fixture.hides("turn-ended");
    fixture.key(UiKey::Esc);
    fixture.shows("Lists  turn-ended #1 model=tiny");
    fixture.key(UiKey::Esc);
    fixture.shows("Sessions of all projects");
}

#[test]
fn lost_connection_is_said_and_everything_is_read_again() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.input(UiInput::Disconnected);
    fixture.shows("ollmd has stopped, R starts it");
    fixture.shows(">  Lists");
    fixture.keys("d");
    fixture.shows("ollmd cannot be reached");
    fixture.keys("R");
    assert!(matches!(fixture.others[..], [UiRequest::StartDaemon]));
    fixture.sessions[0].title = "Lists of Rust".to_owned();
    fixture.input(UiInput::Connected);
    fixture.shows("connected to ollmd again");
    fixture.shows(">  Lists of Rust");
    fixture.hides("has stopped");
}

#[test]
fn change_without_an_answer_is_said_when_the_connection_is_lost() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("dy");
    fixture.input(UiInput::Disconnected);
    fixture.shows("it is unknown whether the last change was made");
}

#[test]
fn list_that_cannot_be_read_is_not_requested_at_once_again() {
    let mut fixture = UiFixture::new((80, 24), Vec::new());
    let requests = fixture.state.update(UiInput::Connected);
    let [UiRequest::Call(call @ UiCall::List { .. })] = &requests[..] else {
        panic!("{requests:?}")
    };
    let text = "the disk is full".to_owned();
    let problem = CallProblem { text, is_gone: false, is_lost: false };
    let next = fixture.state.update(UiInput::answered(call.clone(), Err(problem)));
    assert!(next.is_empty());
    fixture.shows("the disk is full");
    assert!(!fixture.state.update(UiInput::Tick(fixture.state.times.now)).is_empty());
}

#[test]
fn tree_asks_before_it_continues_elsewhere() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("t");
    let node = |seq: u64, parent: Option<u64>, active: bool| {
        json!({
            "seq": seq, "parent": parent, "type": "message", "role": "user",
            "text": format!("text {seq}"), "active": active, "children": 1
        })
    };
    let nodes = [node(1, None, true), node(2, Some(1), false), node(3, Some(1), true)];
    let counts = json!({ "nodes": 3, "active": 2, "branches": 2, "labels": 0 });
    let page = json!({ "data": nodes, "leaf": 3, "counts": counts });
    let call = UiCall::Tree { session_id: id(1), cursor: None };
    let page = UiAnswer::Tree(serde_json::from_value(page).unwrap());
    fixture.input(UiInput::answered(call, Ok(page)));
    fixture.shows("├─   #2 user: text 2");
    fixture.shows(">* #3 user: text 3 <- here");
    fixture.shows("2 branches");
    fixture.key(UiKey::Enter);
    fixture.shows("continues here already");
    fixture.key(UiKey::Up);
    fixture.key(UiKey::Enter);
    fixture.shows("continue the conversation after #2: text 2");
    fixture.changes.clear();
    fixture.keys("y");
    assert!(matches!(fixture.changes[..], [UiCall::Branch { to, .. }] if to.0 == 2));
    // Esc and a letter that arrive together.
    fixture.key(UiKey::Alt('r'));
    fixture.shows("Sessions of all projects");
    fixture.shows("Title: Lists");
}

#[test]
fn restore_is_asked_for_unless_another_key_was_pressed_since() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("t");
    let node = |seq: u64| {
        json!({ "seq": seq, "parent": seq - 1, "type": "message", "role": "user", "text": "text",
            "active": true, "children": 1 })
    };
    let counts = json!({ "nodes": 2, "active": 2, "branches": 1, "labels": 0 });
    let page = json!({ "data": [node(1), node(2)], "leaf": 2, "counts": counts });
    let call = UiCall::Tree { session_id: id(1), cursor: None };
    let page = UiAnswer::Tree(serde_json::from_value(page).unwrap());
    fixture.input(UiInput::answered(call, Ok(page)));
    let snapshot = json!({
        "snapshotId": id(9), "sessionId": id(1), "timestamp": "2026-01-27T10:00:00Z",
        "reason": "manual", "summary": "before\u{1b}[2J it", "tokenCount": 1, "messageCount": 1,
        "userMessageCount": 1, "leaf": 1, "sizeBytes": 1
    });
    let snapshots = UiAnswer::Snapshots(vec![serde_json::from_value(snapshot).unwrap()]);
    fixture.input(UiInput::answered(UiCall::Snapshots(id(1)), Ok(snapshots)));
    fixture.keys("S");
    fixture.shows("no snapshot was taken at this record");
    fixture.key(UiKey::Up);
    let asked = "restore the snapshot of 2026-01-27 10:00, manual: before it";
    for (typed, shown) in [("", asked), ("j", "press S")] {
        fixture.changes.clear();
        fixture.keys(&format!("S{typed}"));
        let call = fixture.changes.remove(0);
        let result = json!({
            "snapshotId": id(9), "sessionId": id(1),
            "removed": { "records": 1, "messages": 1, "tokens": 4 }
        });
        let result = UiAnswer::Restore(Box::new(serde_json::from_value(result).unwrap()));
        fixture.input(UiInput::answered(call, Ok(result)));
        fixture.shows(shown);
        fixture.keys("y");
        let is_restored = matches!(fixture.changes[..], [UiCall::Restore { plan: None, .. }]);
        assert_eq!(is_restored, typed.is_empty());
    }
}

#[test]
fn help_lists_the_keys_of_the_view() {
    let mut fixture = UiFixture::connected((80, 24), &["Lists"]);
    fixture.keys("?");
    fixture.shows("Keys of the sessions");
    fixture.shows("delete the session with all its files; asks first");
    fixture.key(UiKey::PageDown);
    fixture.shows("some records are damaged");
    fixture.keys("x");
    fixture.hides("Keys of the sessions");
    assert!(fixture.changes.is_empty());
}
