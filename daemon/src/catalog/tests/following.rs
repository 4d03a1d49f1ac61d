//! Lists, hints, rebuilding and damage.

use std::collections::HashSet;

use ollm_protocol::SessionId;
use ollm_protocol::content::{Role, SessionStatus};

use super::fake::{Bench, LISTED, at, id, session};
use crate::catalog::query::packed::BLOCK_ITEMS;
use crate::catalog::{Catalog, ListQuery};
use crate::session::index::KeyEntry;

fn listed(catalog: &Catalog, query: &ListQuery<'_>) -> Vec<u128> {
    let page = catalog.list(query).expect("lists");
    page.iter().map(|session| session.session_id.as_uuid().as_u128()).collect()
}

fn all(exclude: &HashSet<SessionId>) -> ListQuery<'_> {
    ListQuery {
        project_hash: None,
        statuses: LISTED,
        id_prefix: None,
        limit: 100,
        after: None,
        exclude,
    }
}

fn key(number: u8, seq: u32) -> KeyEntry {
    KeyEntry { key: [number; 16], payload: [number; 8], seq }
}

#[test]
fn a_new_catalog_without_a_session_is_ready() {
    let bench = Bench::new();
    bench.settle();
    let status = bench.catalog.status();
    assert_eq!((status.state.as_str(), status.behind), ("ready", 0));
    assert!(bench.catalog.knows_all());
}

#[test]
fn a_hint_gives_back_all_blocks_after_a_restart() {
    let mut bench = Bench::new();
    let n_records = BLOCK_ITEMS * 2 + 100;
    // In steps that end within, at and after a block.
    for end in [1, 700, BLOCK_ITEMS, BLOCK_ITEMS + 1, n_records] {
        bench.logs.with(id(1), |log| {
            log.keys = (0..end).map(|n| key(7, u32::try_from(n).expect("small"))).collect()
        });
        for seq in bench.logs.with(id(1), |log| log.records.len() as u64)..end {
            bench.logs.say(id(1), Role::User, at(0), &format!("word{seq}"));
        }
        bench.catalog.mark_dirty(id(1));
        bench.settle();
    }
    bench.reopen();
    let hint = bench.catalog.hint(id(1)).expect("a hint");
    assert_eq!((hint.point.records, hint.point.bytes), (n_records, n_records * 100));
    assert!(hint.entries.iter().enumerate().all(|(n, entry)| entry.offset == n as u64 * 100));
    assert!(hint.keys.iter().enumerate().all(|(n, key)| key.seq as usize == n));
    assert_eq!((hint.entries.len() as u64, hint.keys.len() as u64), (n_records, n_records));
    assert_eq!(hint.carry, format!("carry of {n_records} records").into_bytes());
    assert_eq!(bench.find(&format!("word{}", n_records - 1)), format!("1:{}", n_records - 1));
    assert!(bench.catalog.hint(id(2)).is_none());
}

#[test]
fn pages_go_on_where_activity_is_equal() {
    let bench = Bench::new();
    for number in 1..=30 {
        bench.say(id(number), Role::User, at(i64::try_from(number / 10).expect("small")), "hello");
    }
    bench.settle();
    let none = HashSet::new();
    let whole = listed(&bench.catalog, &all(&none));
    assert_eq!(whole, (1..=30).rev().collect::<Vec<_>>());
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = bench.catalog.list(&ListQuery { limit: 7, after, ..all(&none) }).expect("lists");
        let Some(last) = page.last() else { break };
        after = Some((last.last_activity.unix_ms(), last.session_id));
        paged.extend(page.iter().map(|session| session.session_id.as_uuid().as_u128()));
    }
    assert_eq!(paged, whole);
}

#[test]
fn a_list_has_what_its_filters_ask_for() {
    let bench = Bench::new();
    for number in 1..=4 {
        bench.say(id(number << 120), Role::User, at(0), "hello");
    }
    let change = |number: u128, change: &dyn Fn(&mut super::fake::Log)| {
        bench.logs.with(id(number << 120), |log| change(log));
        bench.catalog.mark_dirty(id(number << 120));
    };
    change(1, &|log| log.session.project_hash = Some("abcd".into()));
    change(2, &|log| log.session.status = SessionStatus::Archived);
    change(3, &|log| log.session.forked_from = Some(id(1 << 120)));
    change(4, &|log| {
        log.session.pinned = true;
        log.create_key = Some(key(9, 0));
    });
    bench.settle();
    let none = HashSet::new();
    let check = |query: ListQuery<'_>, expect: &[u128]| {
        let numbers: Vec<_> =
            listed(&bench.catalog, &query).iter().map(|number| number >> 120).collect();
        assert_eq!(numbers, expect, "{query:?}");
    };
    check(all(&none), &[4, 3, 1]);
    check(ListQuery { project_hash: Some("abcd"), ..all(&none) }, &[1]);
    check(ListQuery { statuses: &[SessionStatus::Archived], ..all(&none) }, &[2]);
    check(ListQuery { id_prefix: Some("03"), ..all(&none) }, &[3]);
    check(ListQuery { id_prefix: Some("03000000-00"), ..all(&none) }, &[3]);
    check(ListQuery { id_prefix: Some("'; DROP"), ..all(&none) }, &[]);
    check(ListQuery { limit: 0, ..all(&none) }, &[]);
    check(ListQuery { limit: 1, exclude: &HashSet::from([id(4 << 120)]), ..all(&none) }, &[3]);
    assert_eq!(bench.catalog.forks_of(id(1 << 120)).expect("reads"), [id(3 << 120)]);
    let found = bench.catalog.find_create_key([9; 16]).expect("reads");
    assert_eq!(found, Some((id(4 << 120), [9; 8])));
    let rows = bench.catalog.retention_rows().expect("reads");
    let pinned: Vec<_> = rows.iter().filter(|row| row.pinned).map(|row| row.session_id).collect();
    assert_eq!((rows.len(), pinned), (4, vec![id(4 << 120)]));
}

/// What a user sees of a catalog.
fn view(bench: &Bench) -> (Vec<String>, String, String) {
    let none = HashSet::new();
    let page = bench.catalog.list(&all(&none)).expect("lists");
    let sessions =
        page.iter().map(|session| serde_json::to_string(session).expect("serializes")).collect();
    (sessions, bench.find("common"), bench.find("\"word 7\""))
}

#[test]
fn a_rebuilt_catalog_equals_the_live_one() {
    let mut bench = Bench::new();
    for seq in 0..40 {
        let number = 1 + seq % 5;
        let hours = i64::try_from(seq * 7 % 40).expect("small");
        bench.say(id(number), Role::User, at(hours), &format!("common word {seq}"));
        if seq % 9 == 0 {
            bench.settle();
        }
    }
    bench.settle();
    let live = view(&bench);
    assert_eq!(live.0.len(), 5);
    assert!(!live.1.is_empty() && !live.2.is_empty());
    bench.catalog.shutdown();
    std::fs::remove_file(bench.path()).expect("removes");
    bench.reopen();
    bench.settle();
    assert_eq!(view(&bench), live);
    assert_eq!(bench.catalog.status().state, "ready");
}

#[test]
fn what_changed_while_it_was_away_is_found_at_the_next_start() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.say(id(number), Role::User, at(0), "before");
    }
    bench.settle();
    bench.catalog.shutdown();
    bench.logs.say(id(1), Role::User, at(1), "added");
    bench.logs.remove(id(2));
    bench.logs.say(id(4), Role::User, at(1), "created");
    bench.logs.updates.lock().expect("no panic").clear();
    bench.reopen();
    bench.settle();
    assert_eq!((bench.find("added"), bench.find("created")), ("1:1".into(), "4:0".into()));
    assert_eq!(bench.find("before"), "3:0 1:0");
    assert_eq!(listed(&bench.catalog, &all(&HashSet::new())), [4, 1, 3]);
    let mut asked = bench.logs.updates.lock().expect("no panic").clone();
    asked.sort();
    assert_eq!(asked, [id(1), id(2), id(4)], "what is equal is not read");
}

#[test]
fn a_replaced_log_is_taken_as_a_whole() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "first version");
    bench.say(id(1), Role::User, at(0), "second record");
    bench.settle();
    bench.logs.with(id(1), |log| {
        log.records.truncate(1);
        log.generation = 2;
    });
    bench.say(id(1), Role::User, at(0), "other record");
    bench.settle();
    assert_eq!(bench.find("record"), "1:1");
    assert_eq!(bench.find("second"), "");
    assert_eq!(bench.catalog.hint(id(1)).expect("a hint").entries.len(), 2);
}

#[test]
fn a_damaged_file_is_moved_aside_and_made_anew() {
    let check = |name: &str, damage: &dyn Fn(&std::path::Path)| {
        let mut bench = Bench::new();
        for number in 1..=20 {
            bench.say(id(number), Role::User, at(0), &"some words here ".repeat(50));
        }
        bench.settle();
        for round in 1..=2 {
            bench.catalog.shutdown();
            damage(&bench.path());
            bench.reopen();
            bench.settle();
            assert_eq!(bench.find("words").split(' ').count(), 20, "{name}");
            let aside: Vec<_> = std::fs::read_dir(bench.home.path())
                .expect("lists")
                .flatten()
                .filter(|file| file.file_name().to_string_lossy().contains("corrupt"))
                .map(|file| file.file_name().into_string().expect("a name"))
                .collect();
            assert_eq!(aside, [format!("catalog.sqlite3.corrupt-{round}")], "{name}");
        }
    };
    let cut = |path: &std::path::Path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("opens");
        file.set_len(5000).expect("cuts");
    };
    let overwrite = |path: &std::path::Path| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("opens");
        file.write_all_at(&[0x5a; 20_000], 0).expect("writes");
    };
    let version = |path: &std::path::Path| {
        let conn = rusqlite::Connection::open(path).expect("opens");
        conn.pragma_update(None, "user_version", 99).expect("writes");
    };
    check("cut", &cut);
    check("overwritten", &overwrite);
    check("of another version", &version);
}

#[test]
fn damage_that_is_found_later_is_repaired_too() {
    use std::os::unix::fs::FileExt;
    let mut bench = Bench::new();
    for number in 1..=200 {
        bench.say(
            id(number),
            Role::User,
            at(0),
            &format!("shared u{number} {}", "words ".repeat(20)),
        );
    }
    bench.settle();
    bench.catalog.shutdown();
    let length = std::fs::metadata(bench.path()).expect("exists").len();
    let file = std::fs::OpenOptions::new().write(true).open(bench.path()).expect("opens");
    // Every page but the first ones, which opening looks at, is damaged in turn until a read meets one.
    for page in (length / 4096 / 2)..(length / 4096) {
        file.write_all_at(&[0xff; 200], page * 4096).expect("writes");
    }
    drop(file);
    bench.reopen();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let none = HashSet::new();
    let whole = || {
        let query = super::fake::search("shared");
        let hits = bench.catalog.search(&crate::catalog::SearchQuery { limit: 200, ..query });
        let hints = (1..=200).filter(|number| bench.catalog.hint(id(*number)).is_some()).count();
        let listed = bench.catalog.list(&ListQuery { limit: 300, ..all(&none) });
        hits.is_ok_and(|page| page.hits.len() == 200)
            && hints == 200
            && listed.is_ok_and(|page| page.len() == 200)
    };
    while !whole() {
        assert!(std::time::Instant::now() < deadline, "is repaired");
        bench.catalog.wait_caught_up(deadline);
    }
}

#[test]
fn one_unreadable_log_does_not_hold_up_the_others() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "hidden");
    bench.logs.with(id(1), |log| log.unreadable = true);
    bench.say(id(2), Role::User, at(0), "visible");
    bench.settle();
    assert_eq!((bench.find("visible"), bench.find("hidden")), ("2:0".into(), String::new()));
    assert_eq!(bench.catalog.status().behind, 1);
    bench.logs.with(id(1), |log| log.unreadable = false);
    bench.catalog.mark_dirty(id(1));
    bench.settle();
    assert_eq!((bench.find("hidden"), bench.catalog.status().behind), ("1:0".into(), 0));
}

#[test]
fn a_closed_catalog_answers_with_an_error() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "hello");
    bench.catalog.shutdown();
    assert!(bench.catalog.list(&all(&HashSet::new())).is_err());
    assert!(bench.catalog.forget(&[id(1)]).is_err());
    assert!(bench.catalog.hint(id(1)).is_none());
    assert_eq!(bench.catalog.status().state, "unavailable");
    assert_eq!(session(id(1), at(0)).session_id, id(1));
}
