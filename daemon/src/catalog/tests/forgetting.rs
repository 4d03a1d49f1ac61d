//! After a removal nothing of a session is in any file.

use ollm_protocol::content::Role;

use super::fake::{Bench, at, id};
use crate::catalog::query::{self, shards};
use crate::fsutil;
use crate::session::index::KeyEntry;

/// Begins many words of one session, so that the prefixes by which FTS5 finds its pages are longer than it.
const FAMILY: &str = "zyxwvuts";

/// Words that only one session has, different from their first letters on.
fn secrets(n: usize) -> Vec<String> {
    let letters = |seed: usize| {
        let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let letter = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'a' + u8::try_from(state % 26).expect("small"))
        };
        std::iter::repeat_with(letter).take(10).collect::<String>()
    };
    (1..=n).map(letters).collect()
}

fn integrity(bench: &Bench) {
    let conn = rusqlite::Connection::open(bench.path()).expect("opens");
    for shard in shards::newest_first(&conn).expect("reads") {
        let table = format!("words_{}", shard.num);
        let sql = format!("INSERT INTO {table} ({table}) VALUES ('integrity-check')");
        conn.execute(&sql, []).expect("the index is whole");
    }
    let answer: String =
        conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checks");
    assert_eq!(answer, "ok");
}

#[test]
fn no_byte_of_a_forgotten_session_is_left() {
    let bench = Bench::new();
    // An id whose bytes occur nowhere by chance.
    let gone = id(0x7c9e_6679_7425_40de_944b_e07f_c1f9_0ae7);
    let secrets = secrets(3_000);
    // Other sessions before, between and after, so that pages and segments are shared.
    for (number, chunk) in secrets.chunks(30).enumerate() {
        let other: Vec<String> = chunk.iter().map(|word| word.chars().rev().collect()).collect();
        bench.say(id(1), Role::User, at(0), &other.join(" "));
        let family =
            chunk.iter().map(|word| format!("{FAMILY}{word}")).collect::<Vec<_>>().join(" ");
        bench.say(gone, Role::Tool, at(0), &format!("common {} {family}", chunk.join(" ")));
        if number % 7 == 0 {
            bench.settle();
        }
    }
    let mark = *b"markedcreatekey!";
    bench.logs.with(gone, |log| {
        log.session.title = "Titleofsecrets".into();
        log.keys = vec![KeyEntry { key: *b"markedrecordkey!", payload: *b"payload!", seq: 1 }];
        log.create_key = Some(KeyEntry { key: mark, payload: *b"payload!", seq: 0 });
    });
    bench.catalog.mark_dirty(gone);
    bench.settle();
    let files = bench.files();
    for bytes in [&b"Titleofsecrets"[..], &mark, b"markedrecordkey!"] {
        assert!(files.contain(bytes), "{} is in the files", bytes.escape_ascii());
    }
    let found = secrets.iter().filter(|word| files.contain(word.as_bytes())).nth(100);
    assert!(found.is_some(), "more than 100 words are in the files before");
    bench.forget(gone);
    let files = bench.files();
    for bytes in [&b"Titleofsecrets"[..], &mark, b"markedrecordkey!"] {
        assert!(!files.contain(bytes), "{} is left", bytes.escape_ascii());
    }
    assert!(!files.contain(b"carry of 100") || bench.catalog.hint(id(1)).is_some());
    assert!(!files.contain(&gone.as_uuid().into_bytes()));
    assert!(!files.contain(gone.to_string().as_bytes()));
    let left: Vec<_> = secrets.iter().filter(|word| files.contain(word.as_bytes())).collect();
    assert!(
        left.is_empty(),
        "{} words are left, among them {:?}",
        left.len(),
        &left[..left.len().min(5)]
    );
    // A word can also begin in the index with what it has in common with the word before it.
    let tails: Vec<_> =
        secrets.iter().filter(|word| files.contain(&word.as_bytes()[2..])).collect();
    assert!(tails.is_empty(), "{tails:?}");
    assert!(!files.contain(&FAMILY.as_bytes()[..4]));
    assert_eq!(bench.find("common"), "");
    for (seq, chunk) in secrets.chunks(30).enumerate() {
        let others: Vec<String> = chunk.iter().map(|word| word.chars().rev().collect()).collect();
        assert_eq!(bench.find(&others.join(" ")), format!("1:{seq}"), "another session is found");
    }
    integrity(&bench);
}

#[test]
fn a_session_whose_log_vanished_leaves_nothing_either() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "staying words");
    bench.say(id(2), Role::User, at(0), "vanishedword");
    bench.settle();
    bench.logs.remove(id(2));
    bench.catalog.mark_dirty(id(2));
    bench.settle();
    bench.clean();
    assert!(!bench.holds(b"vanishedword"));
    assert_eq!((bench.find("staying"), bench.find("vanishedword")), ("1:0".into(), String::new()));
    assert!(bench.catalog.hint(id(2)).is_none());
    integrity(&bench);
}

#[test]
fn a_replaced_log_leaves_nothing_either() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "lostfromthelog");
    bench.settle();
    bench.logs.with(id(1), |log| {
        log.records.clear();
        log.generation = 2;
    });
    bench.say(id(1), Role::User, at(0), "presentinthelog");
    bench.settle();
    assert_eq!(bench.find("lostfromthelog"), "");
    bench.forget(id(1));
    assert!(!bench.holds(b"lostfromthelog") && !bench.holds(b"presentinthelog"));
}

#[test]
fn a_removal_that_a_crash_cut_short_is_finished_at_the_next_start() {
    let mut bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "staying words");
    bench.settle();
    bench.say(id(2), Role::User, at(0), "halfremovedword");
    bench.settle();
    bench.catalog.shutdown();
    // The transaction that removes is committed, and nothing after it happened.
    let conn = rusqlite::Connection::open(bench.path()).expect("opens");
    let row = query::session(&conn, id(2)).expect("reads").expect("is there");
    query::remove_session(&conn, row.num).expect("removes");
    drop(conn);
    bench.logs.remove(id(2));
    assert!(bench.holds(b"halfremovedword"), "in the index");
    bench.reopen();
    assert_eq!(bench.find("halfremovedword"), "", "nothing leads to it");
    bench.clean();
    assert!(!bench.holds(b"halfremovedword"));
    assert_eq!(bench.find("staying"), "1:0");
}

#[test]
fn the_last_session_takes_the_whole_index_with_it() {
    let bench = Bench::new();
    for word in secrets(200) {
        bench.say(id(1), Role::User, at(0), &word);
        bench.say(id(2), Role::User, at(1), &word);
    }
    bench.settle();
    bench.catalog.forget(&[id(1), id(2)]).expect("forgets");
    bench.clean();
    for word in secrets(200) {
        assert!(!bench.holds(word.as_bytes()), "{word}");
    }
    bench.say(id(3), Role::User, at(0), "beginning again");
    bench.settle();
    assert_eq!(bench.find("beginning"), "3:0");
    integrity(&bench);
}

#[test]
fn sessions_whose_rows_cannot_be_removed_are_hidden_until_they_can() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "staying words");
    bench.say(id(2), Role::User, at(0), "going words");
    bench.settle();
    // As when the transaction fails: the rows are there, and the removal will be tried again.
    bench.catalog.shared.queue.forgotten(&[id(2)], false);
    assert_eq!(bench.find("words"), "1:0");
    let rows = bench.catalog.retention_rows().expect("reads");
    assert_eq!(rows.iter().map(|row| row.session_id).collect::<Vec<_>>(), [id(1)]);
    assert!(bench.holds(b"going"));
    bench.clean();
    assert!(!bench.holds(b"going"));
    assert_eq!(bench.find("words"), "1:0");
}

#[test]
fn a_journal_that_a_crash_left_is_emptied() {
    let mut bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "staying words");
    bench.settle();
    bench.catalog.shutdown();
    let journal = bench.path().with_extension("sqlite3-wal");
    let conn = rusqlite::Connection::open(bench.path()).expect("opens");
    // Without room for its pages the transaction writes them to the journal before its end.
    conn.pragma_update(None, "cache_size", 1).expect("sets");
    conn.execute_batch("BEGIN; CREATE TABLE cut_off (text)").expect("writes");
    for _ in 0..100 {
        let text = "wordofacrash".repeat(1_000);
        conn.execute("INSERT INTO cut_off VALUES (?1)", [text]).expect("writes");
    }
    let crashed = std::fs::read(&journal).expect("reads");
    conn.execute_batch("ROLLBACK").expect("gives up");
    drop(conn);
    fsutil::replace_unsynced(&journal, &crashed).expect("writes");
    assert!(bench.holds(b"wordofacrash"));
    bench.reopen();
    bench.clean();
    assert!(!bench.holds(b"wordofacrash"));
    assert_eq!(bench.find("words"), "1:0");
}

#[test]
fn files_that_were_moved_aside_go_too() {
    let mut bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "wordinolderfile");
    bench.settle();
    bench.catalog.shutdown();
    let conn = rusqlite::Connection::open(bench.path()).expect("opens");
    conn.pragma_update(None, "user_version", 99).expect("writes");
    drop(conn);
    bench.reopen();
    bench.settle();
    assert!(bench.home.path().join("catalog.sqlite3.corrupt-1").exists());
    bench.forget(id(1));
    assert!(!bench.holds(b"wordinolderfile"));
}

#[test]
fn a_forgotten_session_comes_back_only_when_it_is_marked_again() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "hello");
    bench.catalog.forget(&[id(1)]).expect("forgets");
    bench.settle();
    assert_eq!(bench.find("hello"), "", "its log is still there, and it is not indexed");
    bench.catalog.mark_dirty(id(1));
    bench.settle();
    assert_eq!(bench.find("hello"), "1:0");
    bench.catalog.forget(&[id(7)]).expect("one that is not known is no error");
}

#[test]
fn a_session_in_another_project_is_found_there() {
    let bench = Bench::new();
    let move_to = |project: &str| {
        bench.logs.with(id(1), |log| log.session.project_hash = Some(project.into()));
        bench.say(id(1), Role::User, at(0), "hello");
        bench.settle();
    };
    let find = |project: &str| {
        let query = super::fake::search("hello");
        bench.find_with(&crate::catalog::SearchQuery { project_hash: Some(project), ..query })
    };
    move_to("aaaa");
    assert_eq!((find("aaaa"), find("bbbb")), ("1:0".into(), String::new()));
    move_to("bbbb");
    assert_eq!((find("aaaa"), find("bbbb")), (String::new(), "1:1 1:0".into()));
    integrity(&bench);
}
