//! Lists, hints for quick opening, following the logs, rebuilding, and damage.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ollm_protocol::content::{Record, Role, SessionStatus};
use ollm_protocol::{Seq, SessionId};
use parking_lot::Mutex;

use super::forgetting::xorshift;
use super::{CatalogFixture, FakeLog, LISTED, at, id, search};
use crate::catalog::listing::ListPage;
use crate::catalog::query::sessions::{BLOCK_ITEMS, id_range};
use crate::catalog::{Catalog, ListQuery, SearchQuery, TitleWords};
use crate::session::index::{
    IndexEntry, IndexProgress, IndexSource, IndexUpdate, KeyEntry, SourceError, UpdateScope,
};

/// Returns the numbers of the listed sessions.
fn listed(catalog: &Catalog, query: &ListQuery<'_>) -> Vec<u128> {
    let page = catalog.list(query).expect("lists");
    page.iter().map(|session| session.session_id.as_uuid().as_u128()).collect()
}

pub(super) fn all(exclude: &HashSet<SessionId>) -> ListQuery<'_> {
    ListQuery {
        project_hash: None,
        statuses: LISTED,
        id_prefix: None,
        title: None,
        id_end: None,
        limit: 100,
        max_bytes: usize::MAX,
        after: None,
        exclude,
    }
}

fn key(number: u8, seq: u32) -> KeyEntry {
    KeyEntry { key: [number; 16], payload: [number; 8], seq }
}

#[test]
fn new_catalog_without_sessions_is_ready() {
    let fixture = CatalogFixture::new();
    fixture.catch_up();
    let status = fixture.catalog.status();
    assert_eq!((status.state.as_str(), status.behind), ("ready", 0));
    assert!(fixture.catalog.knows_all());
}

#[test]
fn hint_after_a_restart_has_all_blocks() {
    let mut fixture = CatalogFixture::new();
    let n_records = BLOCK_ITEMS * 2 + 100;
    // The steps end within, at and after a block.
    for end in [1, 700, BLOCK_ITEMS, BLOCK_ITEMS + 1, n_records] {
        fixture.logs.change(id(1), |log| {
            log.keys = (0..end).map(|n| key(7, u32::try_from(n).expect("small"))).collect()
        });
        for seq in fixture.logs.change(id(1), |log| log.records.len() as u64)..end {
            fixture.logs.record(id(1), Role::User, at(0), &format!("word{seq}"));
        }
        fixture.catalog.mark_dirty(id(1));
        fixture.catch_up();
    }
    fixture.reopen();
    let hint = fixture.catalog.hint(id(1)).expect("a hint");
    assert_eq!((hint.point.records, hint.point.bytes), (n_records, n_records * 100));
    assert!(hint.entries.iter().enumerate().all(|(n, entry)| entry.offset == n as u64 * 100));
    assert!(hint.keys.iter().enumerate().all(|(n, key)| key.seq as usize == n));
    assert_eq!((hint.entries.len() as u64, hint.keys.len() as u64), (n_records, n_records));
    assert_eq!(hint.carry, format!("carry of {n_records} records").into_bytes());
    assert_eq!(fixture.find(&format!("word{}", n_records - 1)), format!("1:{}", n_records - 1));
    assert!(fixture.catalog.hint(id(2)).is_none());
}

#[test]
fn short_form_of_an_id_is_its_shortest_unique_end_and_finds_it() {
    let fixture = CatalogFixture::new();
    let ids = [0x1_0000_abcd, 0x2_0000_abcd, 0x3_000f_abcd, 0x4_0000_0000, 0x5_abcd_0001];
    for number in ids {
        fixture.logs.record(id(number), Role::User, at(0), "x");
        fixture.catalog.mark_dirty(id(number));
    }
    fixture.catch_up();
    let short = ids.map(|number| fixture.catalog.short_id(id(number)).expect("a short form"));
    assert_eq!(short, ["10000abcd", "20000abcd", "fabcd", "0000", "0001"]);
    let none = HashSet::new();
    let with_end = |end| listed(&fixture.catalog, &ListQuery { id_end: Some(end), ..all(&none) });
    for (number, end) in ids.into_iter().zip(&short) {
        assert_eq!(with_end(end.as_str()), [number], "{end}");
    }
    let mut found = with_end("ABCD");
    found.sort_unstable();
    assert_eq!(found, [ids[0], ids[1], ids[2]]);
    assert_eq!(with_end("abcdx"), [0; 0]);
    let both = ListQuery { id_prefix: Some("0000"), id_end: Some("fabcd"), ..all(&none) };
    assert_eq!(listed(&fixture.catalog, &both), [ids[2]]);
    let neither = ListQuery { id_prefix: Some("1"), ..both };
    assert_eq!(listed(&fixture.catalog, &neither), [0; 0]);
}

#[test]
fn list_pages_continue_among_equal_activity() {
    let fixture = CatalogFixture::new();
    for number in 1..=30 {
        fixture.record(
            id(number),
            Role::User,
            at(i64::try_from(number / 10).expect("small")),
            "hello",
        );
    }
    fixture.catch_up();
    let none = HashSet::new();
    let whole = listed(&fixture.catalog, &all(&none));
    assert_eq!(whole, (1..=30).rev().collect::<Vec<_>>());
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page =
            fixture.catalog.list(&ListQuery { limit: 7, after, ..all(&none) }).expect("lists");
        let Some(last) = page.last() else { break };
        after = Some((last.last_activity.unix_ms(), last.session_id));
        paged.extend(page.iter().map(|session| session.session_id.as_uuid().as_u128()));
    }
    assert_eq!(paged, whole);
}

#[test]
fn list_filters_select_sessions() {
    let fixture = CatalogFixture::new();
    for number in 1..=4 {
        fixture.record(id(number << 120), Role::User, at(0), "hello");
    }
    let change = |number: u128, change: &dyn Fn(&mut FakeLog)| {
        fixture.logs.change(id(number << 120), |log| change(log));
        fixture.catalog.mark_dirty(id(number << 120));
    };
    change(1, &|log| log.session.project_hash = Some("abcd".into()));
    change(2, &|log| log.session.status = SessionStatus::Archived);
    change(3, &|log| {
        log.session.title = "Rename the Player".into();
        log.session.forked_from = Some(id(1 << 120));
    });
    change(4, &|log| {
        log.session.pinned = true;
        log.create_key = Some(key(9, 0));
    });
    fixture.catch_up();
    let none = HashSet::new();
    let check = |query: ListQuery<'_>, expect: &[u128]| {
        let numbers: Vec<_> =
            listed(&fixture.catalog, &query).iter().map(|number| number >> 120).collect();
        assert_eq!(numbers, expect, "{query:?}");
    };
    check(all(&none), &[4, 3, 1]);
    check(ListQuery { project_hash: Some("abcd"), ..all(&none) }, &[1]);
    check(ListQuery { statuses: &[SessionStatus::Archived], ..all(&none) }, &[2]);
    check(ListQuery { id_prefix: Some("03"), ..all(&none) }, &[3]);
    check(ListQuery { id_prefix: Some("03000000-00"), ..all(&none) }, &[3]);
    check(ListQuery { id_prefix: Some("'; DROP"), ..all(&none) }, &[]);
    let (third, first) = (id(3 << 120).to_string(), id(1 << 120).to_string());
    let whole = |prefix, project_hash, statuses| ListQuery {
        id_prefix: Some(prefix),
        project_hash,
        statuses,
        ..all(&none)
    };
    check(whole(&third, None, LISTED), &[3]);
    check(whole(&third, Some("abcd"), LISTED), &[]);
    check(whole(&first, Some("abcd"), LISTED), &[1]);
    check(whole(&third, None, &[SessionStatus::Archived]), &[]);
    for (title, expect) in
        [("NAME LAYER", &[3_u128][..]), ("rename", &[3]), ("rename x", &[]), ("", &[4, 3, 1])]
    {
        check(ListQuery { title: Some(&TitleWords::new(title)), ..all(&none) }, expect);
    }
    check(ListQuery { limit: 0, ..all(&none) }, &[]);
    check(ListQuery { limit: 1, exclude: &HashSet::from([id(4 << 120)]), ..all(&none) }, &[3]);
    assert_eq!(fixture.catalog.forks_of(id(1 << 120)).expect("reads"), [id(3 << 120)]);
    let found = fixture.catalog.find_create_key([9; 16]).expect("reads");
    assert_eq!(found, Some((id(4 << 120), [9; 8])));
    let rows = fixture.catalog.retention_rows().expect("reads");
    let pinned: Vec<_> = rows.iter().filter(|row| row.pinned).map(|row| row.session_id).collect();
    assert_eq!((rows.len(), pinned), (4, vec![id(4 << 120)]));
}

/// Words of titles in several scripts.
const TITLE_WORDS: [&str; 20] = [
    "deploy",
    "Deployment",
    "Größe",
    "STRASSE",
    "日本語",
    "天気予報",
    "ひらがな",
    "한국어",
    "Привет",
    "мир",
    "ΟΔΟΣ",
    "C++",
    "foo_bar.rs",
    "naïve",
    "a",
    "İstanbul",
    "مرحبا",
    "🙂👍🏽",
    "x-y/z",
    "\"100%\"",
];

/// Returns up to `max` words of [`TITLE_WORDS`], or parts of them.
fn random_words(max: usize, has_parts: bool, random: &mut impl FnMut() -> u64) -> String {
    let mut below = |limit: usize| usize::try_from(random() % limit as u64).expect("small");
    let mut words = Vec::new();
    for _ in 0..below(max + 1) {
        let word: Vec<char> = TITLE_WORDS[below(TITLE_WORDS.len())].chars().collect();
        let (first, len) = if has_parts { (below(word.len()), 1 + below(4)) } else { (0, 99) };
        words.push(word.into_iter().skip(first).take(len).collect::<String>());
    }
    words.join(" ")
}

/// Asserts that lists by words have the sessions that reading every title finds, in whole and in pages.
fn check_titles(fixture: &CatalogFixture, texts: &[&str]) {
    let none = HashSet::new();
    let whole = |statuses| ListQuery { statuses, limit: 1_000, ..all(&none) };
    for (statuses, project_hash) in
        [(LISTED, None), (&[SessionStatus::Archived], None), (LISTED, Some("abcd"))]
    {
        let query = ListQuery { project_hash, ..whole(statuses) };
        let sessions = fixture.catalog.list(&query).expect("lists");
        for text in texts {
            let words = TitleWords::new(text);
            let with_words = sessions.iter().filter(|session| words.are_in(&session.title));
            let expect: Vec<_> =
                with_words.map(|session| session.session_id.as_uuid().as_u128()).collect();
            let query = ListQuery { title: Some(&words), ..query.clone() };
            assert_eq!(listed(&fixture.catalog, &query), expect, "{text}");
            let (mut paged, mut after) = (Vec::new(), None);
            loop {
                let query = ListQuery { limit: 3, after, ..query.clone() };
                let page = fixture.catalog.list(&query).expect("lists");
                let Some(last) = page.last() else { break };
                after = Some((last.last_activity.unix_ms(), last.session_id));
                paged.extend(page.iter().map(|session| session.session_id.as_uuid().as_u128()));
            }
            assert_eq!(paged, expect, "{text} in pages");
        }
    }
}

#[test]
fn list_by_words_has_the_sessions_whose_titles_contain_them() {
    let mut fixture = CatalogFixture::new();
    let mut random = xorshift(7);
    for number in 1..=60 {
        let title = random_words(4, false, &mut random);
        let is_of_project = random().is_multiple_of(3);
        fixture.logs.change(id(number), |log| {
            log.session.title = title;
            log.session.project_hash = is_of_project.then(|| "abcd".to_owned());
        });
        let hours = i64::try_from(random() % 20).expect("small");
        fixture.record(id(number), Role::User, at(hours), "hello");
    }
    fixture.catch_up();
    let texts: Vec<String> = (0..24).map(|_| random_words(2, true, &mut random)).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.extend(["", "deploy", "ploym", "本", "天気", "++", "\"", "οδος", "nowhere", "q"]);
    check_titles(&fixture, &texts);
    // Sessions get other titles, are archived and are deleted.
    for number in 1..=60 {
        let title = random_words(4, false, &mut random);
        if number % 4 == 2 {
            fixture.logs.remove(id(number));
            fixture.catalog.forget(&[id(number)]).expect("forgets");
            continue;
        }
        fixture.logs.change(id(number), |log| match number % 4 {
            0 => log.session.title = title,
            1 => log.session.status = SessionStatus::Archived,
            _ => {}
        });
        fixture.catalog.mark_dirty(id(number));
    }
    fixture.catch_up();
    check_titles(&fixture, &texts);
    fixture.wait_clean();
    check_titles(&fixture, &texts);
    fixture.catalog.shutdown();
    std::fs::remove_file(fixture.path()).expect("removes");
    fixture.reopen();
    fixture.catch_up();
    check_titles(&fixture, &texts);
}

#[test]
fn list_by_words_of_an_old_title_reads_no_other_old_title() {
    let fixture = CatalogFixture::new();
    for number in 1..=100 {
        let title = if number == 1 { "Needle" } else { "Haystack" };
        fixture.logs.change(id(number), |log| log.session.title = title.into());
        fixture.record(id(number), Role::User, at(0), "hello");
    }
    fixture.catch_up();
    // A title that cannot be read would fail the list.
    let conn = rusqlite::Connection::open(fixture.path()).expect("opens");
    let sql = "UPDATE details SET session = 'damaged' WHERE num BETWEEN 2 AND 90";
    assert_eq!(conn.execute(sql, []).expect("writes"), 89);
    drop(conn);
    let none = HashSet::new();
    for (text, expect) in [("eedl", &[1_u128][..]), ("ne", &[1]), ("nowhere", &[]), ("q", &[])] {
        let words = TitleWords::new(text);
        let query = ListQuery { title: Some(&words), ..all(&none) };
        let found = fixture.catalog.shared.read(|conn| {
            let hidden = HashSet::new();
            let mut page = ListPage::new(&query, &hidden);
            page.read_part(conn)?;
            Ok(page.into_sessions())
        });
        let found = found.expect("reads no damaged title");
        let numbers: Vec<_> =
            found.iter().map(|session| session.session_id.as_uuid().as_u128()).collect();
        assert_eq!(numbers, expect, "{text}");
    }
}

/// Returns everything that callers can see of a catalog.
fn view(fixture: &CatalogFixture) -> (Vec<String>, String, String) {
    let none = HashSet::new();
    let page = fixture.catalog.list(&all(&none)).expect("lists");
    let sessions =
        page.iter().map(|session| serde_json::to_string(session).expect("serializes")).collect();
    check_titles(fixture, &["itl", "title 2", "TITLE", "4", "other"]);
    (sessions, fixture.find("common"), fixture.find("\"word 7\""))
}

#[test]
fn rebuilt_catalog_equals_the_live_one() {
    let mut fixture = CatalogFixture::new();
    for seq in 0..40 {
        let number = 1 + seq % 5;
        let hours = i64::try_from(seq * 7 % 40).expect("small");
        fixture.logs.change(id(number), |log| log.session.title = format!("Title {number}"));
        fixture.record(id(number), Role::User, at(hours), &format!("common word {seq}"));
        if seq % 9 == 0 {
            fixture.catch_up();
        }
    }
    fixture.catch_up();
    let live = view(&fixture);
    assert_eq!(live.0.len(), 5);
    assert!(!live.1.is_empty() && !live.2.is_empty());
    fixture.catalog.shutdown();
    std::fs::remove_file(fixture.path()).expect("removes");
    fixture.reopen();
    fixture.catch_up();
    assert_eq!(view(&fixture), live);
    assert_eq!(fixture.catalog.status().state, "ready");
}

#[test]
fn changes_while_closed_are_found_at_the_next_start() {
    let mut fixture = CatalogFixture::new();
    for number in 1..=3 {
        fixture.record(id(number), Role::User, at(0), "before");
    }
    fixture.catch_up();
    fixture.catalog.shutdown();
    fixture.logs.record(id(1), Role::User, at(1), "added");
    fixture.logs.remove(id(2));
    fixture.logs.record(id(4), Role::User, at(1), "created");
    fixture.logs.updates.lock().clear();
    fixture.reopen();
    fixture.catch_up();
    assert_eq!((fixture.find("added"), fixture.find("created")), ("1:1".into(), "4:0".into()));
    assert_eq!(fixture.find("before"), "3:0 1:0");
    assert_eq!(listed(&fixture.catalog, &all(&HashSet::new())), [4, 1, 3]);
    let mut updated = fixture.logs.updates.lock().clone();
    updated.sort();
    assert_eq!(updated, [id(1), id(2), id(4)], "an unchanged log is not read");
}

#[test]
fn replaced_log_is_indexed_from_its_beginning() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "first version");
    fixture.record(id(1), Role::User, at(0), "second record");
    fixture.catch_up();
    fixture.logs.change(id(1), |log| {
        log.records.truncate(1);
        log.generation = 2;
    });
    fixture.record(id(1), Role::User, at(0), "other record");
    fixture.catch_up();
    assert_eq!(fixture.find("record"), "1:1");
    assert_eq!(fixture.find("second"), "");
    assert_eq!(fixture.catalog.hint(id(1)).expect("a hint").entries.len(), 2);
}

#[test]
fn damaged_file_is_removed_and_rebuilt() {
    let check = |name: &str, damage: &dyn Fn(&std::path::Path)| {
        let mut fixture = CatalogFixture::new();
        for number in 1..=20 {
            fixture.record(id(number), Role::User, at(0), &"some words here ".repeat(50));
        }
        fixture.catch_up();
        for _ in 1..=2 {
            fixture.catalog.shutdown();
            damage(&fixture.path());
            fixture.reopen();
            fixture.catch_up();
            assert_eq!(fixture.find("words").split(' ').count(), 20, "{name}");
            let kept = std::fs::read_dir(fixture.home.path()).expect("lists").flatten();
            let kept = kept.map(|file| file.file_name().into_string().expect("a name"));
            let kept: Vec<_> = kept.filter(|name| name.contains("corrupt")).collect();
            assert!(kept.is_empty(), "{name}: {kept:?}");
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
fn damage_that_is_found_while_reading_is_repaired() {
    use std::os::unix::fs::FileExt;
    let mut fixture = CatalogFixture::new();
    for number in 1..=200 {
        fixture.record(
            id(number),
            Role::User,
            at(0),
            &format!("shared u{number} {}", "words ".repeat(20)),
        );
    }
    fixture.catch_up();
    fixture.catalog.shutdown();
    let length = std::fs::metadata(fixture.path()).expect("exists").len();
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path()).expect("opens");
    // Damages the second half of the pages; opening reads only the first ones.
    for page in (length / 4096 / 2)..(length / 4096) {
        file.write_all_at(&[0xff; 200], page * 4096).expect("writes");
    }
    drop(file);
    fixture.reopen();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let none = HashSet::new();
    let is_whole = || {
        let hits = fixture.catalog.search(&SearchQuery { limit: 200, ..search("shared") });
        let hints = (1..=200).filter(|number| fixture.catalog.hint(id(*number)).is_some()).count();
        let listed = fixture.catalog.list(&ListQuery { limit: 300, ..all(&none) });
        hits.is_ok_and(|page| page.hits.len() == 200)
            && hints == 200
            && listed.is_ok_and(|page| page.len() == 200)
    };
    while !is_whole() {
        assert!(std::time::Instant::now() < deadline, "is repaired");
        fixture.catalog.wait_caught_up(deadline);
    }
}

#[test]
fn unreadable_log_does_not_delay_other_sessions() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "hidden");
    fixture.logs.change(id(1), |log| log.is_unreadable = true);
    fixture.record(id(2), Role::User, at(0), "visible");
    fixture.catch_up();
    assert_eq!((fixture.find("visible"), fixture.find("hidden")), ("2:0".into(), String::new()));
    assert_eq!(fixture.catalog.status().behind, 1);
    fixture.logs.change(id(1), |log| log.is_unreadable = false);
    fixture.catalog.mark_dirty(id(1));
    fixture.catch_up();
    assert_eq!((fixture.find("hidden"), fixture.catalog.status().behind), ("1:0".into(), 0));
}

#[test]
fn unreadable_log_is_read_again_without_a_change() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "hidden");
    fixture.logs.change(id(1), |log| log.is_unreadable = true);
    fixture.catch_up();
    assert_eq!(fixture.catalog.status().behind, 1);
    fixture.logs.change(id(1), |log| log.is_unreadable = false);
    let deadline = Instant::now() + Duration::from_secs(20);
    while fixture.find("hidden") != "1:0" {
        assert!(Instant::now() < deadline, "is read again");
        std::thread::yield_now();
    }
    fixture.catch_up();
    assert_eq!(fixture.catalog.status().behind, 0);
}

#[test]
fn unusable_log_is_reported_and_not_behind() {
    let fixture = CatalogFixture::new();
    fixture.logs.change(id(1), |log| log.is_unusable = true);
    fixture.record(id(1), Role::User, at(0), "hidden");
    fixture.record(id(2), Role::User, at(0), "visible");
    fixture.catch_up();
    let status = fixture.catalog.status();
    assert_eq!((status.state.as_str(), status.behind, status.unusable), ("ready", 0, 1));
    assert_eq!(fixture.find("visible"), "2:0");
    fixture.logs.change(id(1), |log| log.is_unusable = false);
    fixture.catalog.mark_dirty(id(1));
    fixture.catch_up();
    assert_eq!((fixture.find("hidden"), fixture.catalog.status().unusable), ("1:0".into(), 0));
}

#[test]
fn text_that_returns_is_indexed() {
    let mut fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "first text");
    fixture.record(id(1), Role::User, at(0), "second text");
    fixture.logs.change(id(1), |log| log.missing.push(Seq(0)));
    fixture.catch_up();
    assert_eq!((fixture.find("text"), fixture.catalog.status().behind), ("1:1".into(), 0));
    fixture.catalog.retry_gaps();
    fixture.catch_up();
    assert_eq!(fixture.find("text"), "1:1", "it is still missing");
    fixture.logs.change(id(1), |log| log.missing.clear());
    fixture.catalog.retry_gaps();
    fixture.catch_up();
    assert_eq!(fixture.find("text"), "1:0 1:1", "among equal times, in the order of indexing");
    fixture.logs.change(id(1), |log| log.missing.push(Seq(2)));
    fixture.record(id(1), Role::User, at(1), "third text");
    fixture.catch_up();
    fixture.catalog.shutdown();
    fixture.logs.change(id(1), |log| log.missing.clear());
    fixture.reopen();
    fixture.catch_up();
    assert_eq!(fixture.find("third"), "1:2", "the start tries again");
}

#[test]
fn closed_catalog_returns_errors() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "hello");
    fixture.catalog.shutdown();
    assert!(fixture.catalog.list(&all(&HashSet::new())).is_err());
    assert!(fixture.catalog.forget(&[id(1)]).is_err());
    assert!(fixture.catalog.hint(id(1)).is_none());
    assert_eq!(fixture.catalog.status().state, "unavailable");
}

#[test]
fn id_prefix_becomes_a_range_of_ids() {
    let check = |prefix: &str, least: u8, greatest: u8| {
        let (from, to) = id_range(prefix).expect("a prefix of ids");
        assert_eq!((from[0], to[0], from[15], to[15]), (least, greatest, 0, 255), "{prefix}");
    };
    check("", 0, 255);
    check("A", 0xA0, 0xAF);
    check("a1", 0xA1, 0xA1);
    assert_eq!(id_range("0-1-2").expect("valid").0[..2], [0x01, 0x20]);
    assert_eq!(id_range("xyz"), None);
    assert_eq!(id_range(&"0".repeat(33)), None);
}

/// Owns the catalog's last handle while the catalog's own thread reads it.
struct LastOwner {
    catalog: Mutex<Option<Arc<Catalog>>>,
    is_dropped: mpsc::Sender<bool>,
}

impl IndexSource for LastOwner {
    fn logs(&self) -> Result<Vec<(SessionId, u64)>, SourceError> {
        let dropped = || drop(self.catalog.lock().take());
        let survived = catch_unwind(AssertUnwindSafe(dropped)).is_ok();
        self.is_dropped.send(survived).expect("the test waits");
        Ok(Vec::new())
    }

    fn update(
        &self,
        _: SessionId,
        _: IndexProgress,
        _: UpdateScope,
    ) -> Result<Option<IndexUpdate>, SourceError> {
        Ok(None)
    }

    fn records(
        &self,
        _: SessionId,
        _: &[(Seq, IndexEntry)],
        _: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Option<Record>>, SourceError> {
        Ok(Vec::new())
    }
}

#[test]
fn last_handle_can_be_dropped_by_the_thread_of_the_catalog() {
    let dir = tempfile::tempdir().expect("a directory");
    let (is_dropped, dropped) = mpsc::channel();
    let source = Arc::new(LastOwner { catalog: Mutex::new(None), is_dropped });
    let mut owner = source.catalog.lock();
    let catalog =
        Catalog::open(dir.path().join("catalog.sqlite3"), Arc::<LastOwner>::clone(&source));
    *owner = Some(Arc::new(catalog.expect("opens")));
    drop(owner);
    assert_eq!(dropped.recv_timeout(Duration::from_secs(20)), Ok(true));
}
