//! Removal: no byte of a forgotten session stays in any file.

use ollm_protocol::content::Role;

use super::{CatalogFixture, at, id, search};
use crate::catalog::SearchQuery;
use crate::catalog::query::{self, fulltext, schema, sessions, titles};
use crate::fsutil;
use crate::session::index::KeyEntry;

/// The beginning of many words of one session. It is shorter than the prefixes by which FTS5 finds its pages.
const COMMON_PREFIX: &str = "zyxwvuts";

/// Returns words that only one session contains, with different first letters.
fn secrets(n: usize) -> Vec<String> {
    let letters = |seed: usize| {
        let mut random = xorshift(seed);
        let letter = || char::from(b'a' + u8::try_from(random() % 26).expect("small"));
        std::iter::repeat_with(letter).take(10).collect::<String>()
    };
    (1..=n).map(letters).collect()
}

/// Returns a generator of numbers that are the same in every run.
pub(super) fn xorshift(seed: usize) -> impl FnMut() -> u64 {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Asserts that the database and all shards of the index are consistent.
fn check_integrity(fixture: &CatalogFixture) {
    let conn = rusqlite::Connection::open(fixture.path()).expect("opens");
    let shards = fulltext::list_shards(&conn).expect("reads");
    let shards = shards.iter().map(|shard| fulltext::table_of(shard.num));
    for table in shards.chain([titles::TABLE.to_owned()]) {
        let sql = format!("INSERT INTO {table} ({table}) VALUES ('integrity-check')");
        conn.execute(&sql, []).expect("the index is consistent");
    }
    let result: String =
        conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checks");
    assert_eq!(result, "ok");
    assert!(
        titles::has_all(&conn).expect("reads"),
        "each session has a row in the index of titles"
    );
}

#[test]
fn forgotten_session_leaves_no_byte_in_the_files() {
    let fixture = CatalogFixture::new();
    // An id whose bytes occur nowhere by chance.
    let forgotten = id(0x7c9e_6679_7425_40de_944b_e07f_c1f9_0ae7);
    let secrets = secrets(3_000);
    // Other sessions before, between and after, so that pages and segments are shared.
    for (number, chunk) in secrets.chunks(30).enumerate() {
        let other: Vec<String> = chunk.iter().map(|word| word.chars().rev().collect()).collect();
        fixture.record(id(1), Role::User, at(0), &other.join(" "));
        let prefixed =
            chunk.iter().map(|word| format!("{COMMON_PREFIX}{word}")).collect::<Vec<_>>().join(" ");
        fixture.record(
            forgotten,
            Role::Tool,
            at(0),
            &format!("common {} {prefixed}", chunk.join(" ")),
        );
        if number % 7 == 0 {
            fixture.catch_up();
        }
    }
    let create_key = *b"markedcreatekey!";
    fixture.logs.change(forgotten, |log| {
        log.session.title = "Titleofsecrets".into();
        log.keys = vec![KeyEntry { key: *b"markedrecordkey!", payload: *b"payload!", seq: 1 }];
        log.create_key = Some(KeyEntry { key: create_key, payload: *b"payload!", seq: 0 });
    });
    fixture.catalog.mark_dirty(forgotten);
    fixture.catch_up();
    let files = fixture.files();
    for bytes in [&b"Titleofsecrets"[..], &create_key, b"markedrecordkey!"] {
        assert!(files.contain(bytes), "{} is missing", bytes.escape_ascii());
    }
    let found = secrets.iter().filter(|word| files.contain(word.as_bytes())).nth(100);
    assert!(found.is_some(), "more than 100 words are in the files");
    fixture.forget(forgotten);
    let files = fixture.files();
    for bytes in [&b"Titleofsecrets"[..], &create_key, b"markedrecordkey!"] {
        assert!(!files.contain(bytes), "{} is left", bytes.escape_ascii());
    }
    assert!(!files.contain(b"carry of 100") || fixture.catalog.hint(id(1)).is_some());
    assert!(!files.contain(&forgotten.as_uuid().into_bytes()));
    assert!(!files.contain(forgotten.to_string().as_bytes()));
    let left: Vec<_> = secrets.iter().filter(|word| files.contain(word.as_bytes())).collect();
    assert!(
        left.is_empty(),
        "{} words are left, among them {:?}",
        left.len(),
        &left[..left.len().min(5)]
    );
    // The index stores only the suffix in which a word differs from the word before it.
    let tails: Vec<_> =
        secrets.iter().filter(|word| files.contain(&word.as_bytes()[2..])).collect();
    assert!(tails.is_empty(), "{tails:?}");
    assert!(!files.contain(&COMMON_PREFIX.as_bytes()[..4]));
    assert_eq!(fixture.find("common"), "");
    for (seq, chunk) in secrets.chunks(30).enumerate() {
        let others: Vec<String> = chunk.iter().map(|word| word.chars().rev().collect()).collect();
        assert_eq!(
            fixture.find(&others.join(" ")),
            format!("1:{seq}"),
            "the other session is still found"
        );
    }
    check_integrity(&fixture);
}

/// SQLite moves rows between pages, and leaves their bytes in the unused part of a page. With these sizes it does so
/// in the table of a shard.
#[test]
fn words_in_the_unused_part_of_a_page_are_overwritten() {
    let fixture = CatalogFixture::new();
    let secrets = secrets(600);
    for (number, chunk) in secrets.chunks(10).enumerate() {
        let reversed = |word: &String| word.chars().rev().collect::<String>();
        let others: Vec<_> = chunk.iter().map(reversed).collect();
        fixture.record(id(1), Role::User, at(0), &others.join(" "));
        let prefixed: Vec<_> = chunk.iter().map(|word| format!("{COMMON_PREFIX}{word}")).collect();
        let text = format!("common {} {}", chunk.join(" "), prefixed.join(" "));
        fixture.record(id(2), Role::Tool, at(0), &text);
        if number % 2 == 0 {
            fixture.catch_up();
        }
    }
    fixture.catch_up();
    fixture.forget(id(2));
    let files = fixture.files();
    let left: Vec<_> = secrets.iter().filter(|word| files.contain(&word.as_bytes()[2..])).collect();
    assert!(left.is_empty(), "{left:?}");
    check_integrity(&fixture);
}

#[test]
fn forgotten_title_leaves_no_gram_in_the_files() {
    let fixture = CatalogFixture::new();
    // Letters that nothing else in the files has.
    let letters = |number: u32| {
        let letter = |at| char::from_u32(0x12000 + number * 6 + at).expect("a letter");
        (0..6).map(letter).collect::<String>()
    };
    let set_title = |number: u32, title: String| {
        fixture.logs.change(id(number.into()), |log| log.session.title = title);
        fixture.catalog.mark_dirty(id(number.into()));
    };
    for number in 1..=60 {
        fixture.logs.record(id(number.into()), Role::User, at(0), "hello");
        set_title(number, letters(number));
        if number % 7 == 0 {
            fixture.catch_up();
        }
    }
    fixture.catch_up();
    // Earlier titles of a session leave the files with it, even if it has none now.
    set_title(2, letters(100));
    fixture.catch_up();
    set_title(3, String::new());
    fixture.catch_up();
    let forgotten = [2, 3, 30, 60];
    // The index stores only the end in which a gram differs from the one before it.
    let ends = |number: u32| {
        let letters: Vec<char> = letters(number).chars().collect();
        letters.windows(2).map(|pair| pair.iter().collect::<String>()).collect::<Vec<_>>()
    };
    let files = fixture.files();
    for number in [30, 60, 100] {
        assert!(ends(number).iter().any(|end| files.contain(end.as_bytes())), "{number}");
    }
    let ids = forgotten.map(|number| id(number.into()));
    fixture.catalog.forget(&ids).expect("forgets");
    fixture.wait_clean();
    let files = fixture.files();
    for number in forgotten.into_iter().chain([100]) {
        for end in ends(number) {
            assert!(!files.contain(end.as_bytes()), "{end} of {number} is left");
        }
    }
    assert!(ends(31).iter().any(|end| files.contain(end.as_bytes())), "the others stay");
    check_integrity(&fixture);
}

/// `secure_delete` alone leaves copies of rows; when that changes, `rewrite` is not needed any more.
#[test]
fn rewritten_table_has_no_copy_of_a_removed_row() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let leaves_copy = |seed: usize, rewrites: bool| {
        let path = dir.path().join(format!("{seed}-{rewrites}"));
        let conn = rusqlite::Connection::open(&path).expect("opens");
        schema::configure(&conn).expect("configures");
        schema::create(&conn).expect("creates");
        let mut random = xorshift(seed);
        let mut below = |limit: u64| random() % limit;
        query::begin(&conn).expect("begins");
        for _ in 0..300 {
            let num = below(60).cast_signed();
            let text = "x".repeat(300 + usize::try_from(below(600)).expect("small"));
            let sql =
                "INSERT OR REPLACE INTO details (num, session, carry, crc) VALUES (?1, ?2, ?3, 0)";
            let carry = vec![b'y'; 200 + usize::try_from(below(500)).expect("small")];
            conn.execute(sql, (num, format!("title-of-{num}-{text}"), carry)).expect("writes");
        }
        conn.execute("DELETE FROM details WHERE num % 2 = 0", []).expect("removes");
        if rewrites {
            let before = rows(&conn);
            query::rewrite(&conn, "details").expect("rewrites");
            assert_eq!(rows(&conn), before, "the other rows stay");
        }
        query::commit(&conn).expect("commits");
        assert!(query::truncate_wal(&conn).expect("truncates"));
        let file = std::fs::read(&path).expect("reads");
        let is_left =
            |num: &i32| memchr::memmem::find(&file, format!("title-of-{num}-").as_bytes());
        (0..60).step_by(2).any(|num| is_left(&num).is_some())
    };
    assert!((0..60).any(|seed| leaves_copy(seed, false)), "copies are left without a rewrite");
    assert!(!(0..60).any(|seed| leaves_copy(seed, true)));
}

/// Returns the numbers and the texts in the table `details`.
fn rows(conn: &rusqlite::Connection) -> Vec<(i64, String)> {
    let sql = "SELECT num, session FROM details ORDER BY num";
    let mut statement = conn.prepare(sql).expect("prepares");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("reads");
    rows.map(|row| row.expect("reads")).collect()
}

#[test]
fn session_with_vanished_log_leaves_nothing() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "staying words");
    fixture.record(id(2), Role::User, at(0), "vanishedword");
    fixture.catch_up();
    fixture.logs.remove(id(2));
    fixture.catalog.mark_dirty(id(2));
    fixture.catch_up();
    fixture.wait_clean();
    assert!(!fixture.contains(b"vanishedword"));
    assert_eq!(
        (fixture.find("staying"), fixture.find("vanishedword")),
        ("1:0".into(), String::new())
    );
    assert!(fixture.catalog.hint(id(2)).is_none());
    check_integrity(&fixture);
}

#[test]
fn replaced_log_leaves_nothing() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "lostfromthelog");
    fixture.catch_up();
    fixture.logs.change(id(1), |log| {
        log.records.clear();
        log.generation = 2;
    });
    fixture.record(id(1), Role::User, at(0), "presentinthelog");
    fixture.catch_up();
    assert_eq!(fixture.find("lostfromthelog"), "");
    fixture.forget(id(1));
    assert!(!fixture.contains(b"lostfromthelog") && !fixture.contains(b"presentinthelog"));
}

#[test]
fn removal_interrupted_by_a_crash_is_finished_at_the_next_start() {
    let mut fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "staying words");
    fixture.catch_up();
    fixture.record(id(2), Role::User, at(0), "halfremovedword");
    fixture.catch_up();
    fixture.catalog.shutdown();
    // As after a crash right behind the commit of the removal.
    let conn = rusqlite::Connection::open(fixture.path()).expect("opens");
    schema::configure(&conn).expect("configures");
    let row = sessions::read_row(&conn, id(2)).expect("reads").expect("exists");
    sessions::remove(&conn, row.num).expect("removes");
    drop(conn);
    fixture.logs.remove(id(2));
    assert!(fixture.contains(b"halfremovedword"), "in the index");
    fixture.reopen();
    assert_eq!(fixture.find("halfremovedword"), "", "no row leads to it");
    fixture.wait_clean();
    assert!(!fixture.contains(b"halfremovedword"));
    assert_eq!(fixture.find("staying"), "1:0");
}

#[test]
fn removal_of_the_last_session_drops_the_index() {
    let fixture = CatalogFixture::new();
    for word in secrets(200) {
        fixture.record(id(1), Role::User, at(0), &word);
        fixture.record(id(2), Role::User, at(1), &word);
    }
    fixture.catch_up();
    fixture.catalog.forget(&[id(1), id(2)]).expect("forgets");
    fixture.wait_clean();
    for word in secrets(200) {
        assert!(!fixture.contains(word.as_bytes()), "{word}");
    }
    fixture.record(id(3), Role::User, at(0), "beginning again");
    fixture.catch_up();
    assert_eq!(fixture.find("beginning"), "3:0");
    check_integrity(&fixture);
}

#[test]
fn failed_removal_hides_the_session_and_is_retried() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "staying words");
    fixture.record(id(2), Role::User, at(0), "going words");
    fixture.catch_up();
    // As after a failed transaction: the rows still exist.
    fixture.catalog.shared.queue.forget_done(&[id(2)], false);
    assert_eq!(fixture.find("words"), "1:0");
    let rows = fixture.catalog.retention_rows().expect("reads");
    assert_eq!(rows.iter().map(|row| row.session_id).collect::<Vec<_>>(), [id(1)]);
    assert!(fixture.contains(b"going"));
    fixture.wait_clean();
    assert!(!fixture.contains(b"going"));
    assert_eq!(fixture.find("words"), "1:0");
}

#[test]
fn session_marked_after_a_failed_removal_is_kept() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "restored words");
    fixture.catch_up();
    fixture.catalog.shared.queue.forget_done(&[id(1)], false);
    fixture.catalog.mark_dirty(id(1));
    fixture.wait_clean();
    fixture.catch_up();
    assert_eq!(fixture.find("words"), "1:0");
}

#[test]
fn journal_left_by_a_crash_is_truncated() {
    let mut fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "staying words");
    fixture.catch_up();
    fixture.catalog.shutdown();
    let journal = fixture.path().with_extension("sqlite3-wal");
    let conn = rusqlite::Connection::open(fixture.path()).expect("opens");
    // Without room in the cache, the pages are written to the journal before the commit.
    conn.pragma_update(None, "cache_size", 1).expect("sets");
    conn.execute_batch("BEGIN; CREATE TABLE cut_off (text)").expect("writes");
    for _ in 0..100 {
        let text = "wordofacrash".repeat(1_000);
        conn.execute("INSERT INTO cut_off VALUES (?1)", [text]).expect("writes");
    }
    let crashed = std::fs::read(&journal).expect("reads");
    conn.execute_batch("ROLLBACK").expect("rolls back");
    drop(conn);
    fsutil::replace_unsynced(&journal, &crashed).expect("writes");
    assert!(fixture.contains(b"wordofacrash"));
    fixture.reopen();
    fixture.wait_clean();
    assert!(!fixture.contains(b"wordofacrash"));
    assert_eq!(fixture.find("words"), "1:0");
}

/// Nobody can ask such a file which sessions it has, and the sessions may have been deleted before it was damaged.
#[test]
fn damaged_catalog_keeps_no_word_of_a_deleted_session() {
    let versioned = |path: &std::path::Path| {
        let conn = rusqlite::Connection::open(path).expect("opens");
        conn.pragma_update(None, "user_version", 99).expect("writes");
    };
    let overwritten = |path: &std::path::Path| {
        use std::os::unix::fs::FileExt;
        let file = fsutil::open_private(path).expect("opens");
        file.write_all_at(&[0x5a; 100], 0).expect("writes");
    };
    for damage in [&versioned as &dyn Fn(&std::path::Path), &overwritten] {
        let mut fixture = CatalogFixture::new();
        fixture.record(id(1), Role::User, at(0), "wordofadeletedsession");
        fixture.record(id(2), Role::User, at(0), "staying words");
        fixture.catch_up();
        fixture.catalog.shutdown();
        fixture.logs.remove(id(1));
        damage(&fixture.path());
        assert!(fixture.contains(b"wordofadeletedsession"));
        fixture.reopen();
        fixture.catch_up();
        assert!(!fixture.contains(b"wordofadeletedsession"));
        assert_eq!(fixture.find("words"), "2:0");
    }
}

#[test]
fn forgotten_session_returns_only_when_marked_again() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "hello");
    fixture.catalog.forget(&[id(1)]).expect("forgets");
    fixture.catch_up();
    assert_eq!(fixture.find("hello"), "", "the log still exists and is not indexed");
    fixture.catalog.mark_dirty(id(1));
    fixture.catch_up();
    assert_eq!(fixture.find("hello"), "1:0");
    fixture.catalog.forget(&[id(7)]).expect("an unknown session is no error");
}

#[test]
fn session_that_changes_its_project_is_found_in_the_new_one() {
    let fixture = CatalogFixture::new();
    let move_to = |project: &str| {
        fixture.logs.change(id(1), |log| log.session.project_hash = Some(project.into()));
        fixture.record(id(1), Role::User, at(0), "hello");
        fixture.catch_up();
    };
    let find = |project: &str| {
        fixture.find_with(&SearchQuery { project_hash: Some(project), ..search("hello") })
    };
    move_to("aaaa");
    assert_eq!((find("aaaa"), find("bbbb")), ("1:0".into(), String::new()));
    move_to("bbbb");
    assert_eq!((find("aaaa"), find("bbbb")), (String::new(), "1:1 1:0".into()));
    check_integrity(&fixture);
}
