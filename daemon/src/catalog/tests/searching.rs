//! Search: hits, their order, pages and snippets.

use std::collections::HashSet;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Role, SearchSort};
use proptest::prelude::*;

use super::{CatalogFixture, HOUR_MS, START_MS, at, id, locations, search};
use crate::catalog::query::fulltext;
use crate::catalog::{CatalogError, SearchQuery};

#[test]
fn queries_of_all_forms_find_their_texts() {
    let fixture = CatalogFixture::new();
    let texts = [
        "the parse_config_file function reads settings",
        "class HttpServerFactory extends Base",
        "see src/catalog/words.rs and tests/it/main.rs",
        "我们今天讨论数据库的全文搜索功能",
        "日本語の形態素解析は難しい",
        "The quick brown fox\n  jumps over the lazy dog",
        "let y = a.b(c) + os.path.join(x)",
        "configuration configure configured",
        "don't panic!",
        "데이터베이스 검색",
        "fn getUserName(user_name: &str) reads decode_utf8",
    ];
    for text in texts {
        fixture.record(id(1), Role::User, at(0), text);
    }
    fixture.catch_up();
    let check = |query: &str, expect: &[usize]| {
        let expect: Vec<String> = expect.iter().map(|seq| format!("1:{seq}")).collect();
        assert_eq!(fixture.find(query), expect.join(" "), "{query}");
    };
    check("parse_config_file", &[0]);
    check("config", &[0]);
    check("PARSE file", &[0]);
    check("parse dog", &[]);
    check("HttpServerFactory", &[1]);
    check("httpserverfactory", &[1]);
    check("factory server", &[1]);
    check("src/catalog/words.rs", &[2]);
    check("main.rs", &[2]);
    check("catalog.rs", &[]);
    check("words rs", &[2]);
    check("数据库", &[3]);
    check("全文搜索", &[3]);
    check("数搜", &[]);
    check("能", &[3]);
    check("形態素", &[4]);
    check("難しい", &[4]);
    check("데이터", &[9]);
    check("검색", &[9]);
    check("UserName", &[10]);
    check("username", &[10]);
    check("get_user_name", &[10]);
    check("nameUser", &[]);
    check("utf8", &[10]);
    check("HttpServer", &[1]);
    check("server_factory", &[1]);
    check("config_file", &[0]);
    check("\"brown fox jumps\"", &[5]);
    check("\"brown jumps\"", &[]);
    check("\"QUICK brown\" lazy", &[5]);
    check("config*", &[7, 0]);
    check("configur*", &[7]);
    check("a.b(c)", &[6]);
    check("os.path", &[6]);
    check("path.os", &[]);
    check("don't", &[8]);
    check("x) OR (words:NEAR* \"", &[]);
    check("' OR 1=1 --", &[]);
}

#[test]
fn hits_from_many_shards_are_ordered_by_time() {
    let fixture = CatalogFixture::new();
    // Two concurrent sessions, whose documents share the shards.
    for hour in 0..120 {
        fixture.record(id(1), Role::User, at(hour), "needle in hay");
        fixture.record(id(2), Role::User, at(hour), "needle in straw");
        if hour % 9 == 0 {
            fixture.catch_up();
        }
    }
    // Long before all others in time, and recorded last.
    fixture.record(id(3), Role::User, at(-500), "needle in rust");
    fixture.catch_up();
    let conn = rusqlite::Connection::open(fixture.path()).expect("opens");
    assert!(fulltext::list_shards(&conn).expect("reads").len() > 3, "the test has many shards");
    let mut expect: Vec<String> =
        (0..120).rev().flat_map(|seq| [format!("2:{seq}"), format!("1:{seq}")]).collect();
    expect.push("3:0".to_owned());
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let query = SearchQuery { cursor: cursor.as_deref(), limit: 7, ..search("needl*") };
        let page = fixture.catalog.search(&query).expect("searches");
        found.extend(locations(&page).split_whitespace().map(str::to_owned));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, expect);
    assert_eq!(fixture.find("rust"), "3:0");
    let since = SearchQuery { since: Some(at(118)), ..search("\"in hay\"") };
    assert_eq!(fixture.find_with(&since), "1:119 1:118");
    let until = SearchQuery { until: Some(at(1)), ..search("needle") };
    assert_eq!(fixture.find_with(&until), "2:0 1:0 3:0");
}

#[test]
fn filters_work_alone_and_combined() {
    let fixture = CatalogFixture::new();
    fixture.logs.change(id(2), |log| log.session.project_hash = Some("beef".into()));
    for hour in 0..6 {
        let role = if hour % 2 == 0 { Role::User } else { Role::Assistant };
        fixture.record(id(1), role, at(hour), "needle");
        fixture.record(id(2), role, at(hour), "needle");
    }
    fixture.catch_up();
    let check = |query: SearchQuery<'_>, expect: &str| {
        assert_eq!(fixture.find_with(&query), expect, "{query:?}");
    };
    let needle = search("needle");
    check(SearchQuery { session_id: Some(id(1)), ..needle.clone() }, "1:5 1:4 1:3 1:2 1:1 1:0");
    check(SearchQuery { session_id: Some(id(3)), ..needle.clone() }, "");
    check(
        SearchQuery { project_hash: Some("beef"), role: Some(Role::User), ..needle.clone() },
        "2:4 2:2 2:0",
    );
    check(SearchQuery { project_hash: Some("\" OR x"), ..needle.clone() }, "");
    let (since, until) = (Some(at(2)), Some(at(4)));
    check(SearchQuery { session_id: Some(id(1)), since, until, ..needle.clone() }, "1:3 1:2");
    let later = Timestamp::from_unix_ms(at(2).unix_ms() + 1);
    check(
        SearchQuery { session_id: Some(id(1)), since: Some(later), until, ..needle.clone() },
        "1:3",
    );
    check(SearchQuery { until: Some(at(-1)), ..needle }, "");
}

#[test]
fn imported_old_records_come_after_newer_ones() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(100), "needle now");
    fixture.catch_up();
    fixture.record(id(2), Role::User, at(-5_000), "needle imported");
    fixture.record(id(2), Role::User, Timestamp::from_unix_ms(0), "needle before all hours");
    fixture.catch_up();
    fixture.record(id(3), Role::User, at(50), "needle between");
    fixture.record(
        id(3),
        Role::User,
        Timestamp::from_unix_ms(253_402_300_799_000),
        "needle of the far future",
    );
    fixture.catch_up();
    assert_eq!(fixture.find("needle"), "3:1 1:0 3:0 2:0 2:1");
}

#[test]
fn hour_with_more_records_than_ids_spills_into_later_hours() {
    let fixture = CatalogFixture::new();
    let n_records = 9_000;
    for number in 0..n_records {
        let minute = Timestamp::from_unix_ms(START_MS + number % 60 * 60_000);
        fixture.logs.record(
            id(1),
            Role::User,
            minute,
            if number % 3000 == 0 { "rare" } else { "plain" },
        );
    }
    fixture.catalog.mark_dirty(id(1));
    fixture.record(id(2), Role::User, at(1), "rare");
    fixture.catch_up();
    assert_eq!(fixture.find("rare").split(' ').count(), 4);
    let until = Some(Timestamp::from_unix_ms(START_MS + HOUR_MS));
    let within = fixture.find_with(&SearchQuery { until, ..search("rare") });
    assert_eq!(
        within.split(' ').collect::<HashSet<_>>(),
        HashSet::from(["1:0", "1:3000", "1:6000"])
    );
}

#[test]
fn pages_return_every_hit_once() {
    let fixture = CatalogFixture::new();
    for seq in 0..300 {
        let text = if seq % 7 == 0 { "needle in hay" } else { "in the hay, a needle" };
        fixture.logs.record(
            id(seq % 3),
            Role::User,
            at(i64::try_from(seq / 5).expect("small")),
            text,
        );
    }
    (0..3).for_each(|number| fixture.catalog.mark_dirty(id(number)));
    fixture.catch_up();
    for (query, sort, expect) in [
        ("needle", SearchSort::Newest, 300),
        ("\"needle in\"", SearchSort::Newest, 43),
        ("needle", SearchSort::Relevance, 300),
    ] {
        let (mut found, mut cursor, mut times) = (Vec::new(), None, Vec::new());
        loop {
            let query = SearchQuery { sort, limit: 11, cursor: cursor.as_deref(), ..search(query) };
            let page = fixture.catalog.search(&query).expect("searches");
            assert!(page.hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
            times.extend(page.hits.iter().map(|hit| hit.at));
            found.extend(locations(&page).split(' ').map(str::to_owned).collect::<Vec<_>>());
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        found.retain(|location| !location.is_empty());
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), expect, "{query}");
        assert_eq!(found.len(), expect, "{query}");
        if sort == SearchSort::Newest {
            assert!(times.is_sorted_by(|one, other| one >= other), "{query}");
        }
    }
}

#[test]
fn page_ends_after_many_candidates_and_continues() {
    let fixture = CatalogFixture::new();
    for seq in 0..2_500 {
        let text = if seq == 3 { "alpha beta" } else { "beta alpha" };
        fixture.logs.record(id(1), Role::User, at(seq / 100), text);
    }
    fixture.catalog.mark_dirty(id(1));
    fixture.catch_up();
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let query = SearchQuery { cursor: cursor.as_deref(), ..search("\"alpha beta\"") };
        let page = fixture.catalog.search(&query).expect("searches");
        pages.push(locations(&page));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, ["", "", "1:3"]);
}

#[test]
fn relevance_orders_the_best_hit_first() {
    let fixture = CatalogFixture::new();
    let filler = "something else entirely ".repeat(20);
    fixture.record(id(1), Role::User, at(0), "borrow checker");
    fixture.record(id(1), Role::User, at(1), &format!("borrow {filler} checker"));
    fixture.record(id(1), Role::User, at(2), &format!("checker {filler} {filler} borrow"));
    fixture.catch_up();
    let query = SearchQuery { sort: SearchSort::Relevance, ..search("borrow checker") };
    assert_eq!(fixture.find_with(&query), "1:0 1:1 1:2");
    assert_eq!(fixture.find("borrow checker"), "1:2 1:1 1:0");
}

#[test]
fn hit_has_session_title_and_snippet() {
    let fixture = CatalogFixture::new();
    fixture.logs.change(id(1), |log| log.session.title = "A title".into());
    fixture.record(
        id(1),
        Role::Assistant,
        at(3),
        "first line\n\u{1b}[1mthe Needle\u{1b}[0m is here",
    );
    fixture.catch_up();
    let page = fixture.catalog.search(&search("needle")).expect("searches");
    let hit = &page.hits[0];
    assert_eq!((hit.title.as_str(), hit.role, hit.at), ("A title", Role::Assistant, at(3)));
    assert_eq!(
        (hit.snippet.as_str(), &hit.matches[..]),
        ("first line the Needle is here", &[(15, 21)][..])
    );
    assert_eq!((page.behind, page.next_cursor), (0, None));
}

#[test]
fn unreadable_record_is_skipped() {
    let fixture = CatalogFixture::new();
    fixture.record(id(1), Role::User, at(0), "needle");
    fixture.record(id(2), Role::User, at(1), "needle");
    fixture.catch_up();
    fixture.logs.change(id(2), |log| log.is_unreadable = true);
    assert_eq!(fixture.find("needle"), "1:0");
    fixture.logs.change(id(1), |log| log.records.clear());
    assert_eq!(fixture.find("needle"), "");
}

#[test]
fn invalid_queries_and_cursors_are_errors() {
    let fixture = CatalogFixture::new();
    let error_of = |query: &SearchQuery<'_>| fixture.catalog.search(query).expect_err("fails");
    assert!(matches!(error_of(&search(" ?! ")), CatalogError::EmptyQuery));
    for cursor in ["", "n", "nx", "r5", "n-4", "r1-", "n99999999999999999999"] {
        let query = SearchQuery { cursor: Some(cursor), ..search("x") };
        assert!(matches!(error_of(&query), CatalogError::InvalidCursor), "{cursor}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_query_succeeds_and_every_word_finds_its_text(text in "[a-zA-Z0-9_.日本語é\" *()-]{1,60}", query in any::<String>()) {
        let fixture = CatalogFixture::new();
        fixture.record(id(1), Role::User, at(0), &text);
        fixture.catch_up();
        match fixture.catalog.search(&search(&query)) {
            Ok(_) | Err(CatalogError::EmptyQuery) => {}
            Err(error) => prop_assert!(false, "{query:?}: {error:?}"),
        }
        for word in text.split_whitespace().map(|word| word.replace(['"', '*'], " ")) {
            match fixture.catalog.search(&search(&word)) {
                Ok(page) => prop_assert_eq!(page.hits.len(), 1, "{:?} in {:?}", word, text),
                Err(CatalogError::EmptyQuery) => {}
                Err(error) => prop_assert!(false, "{word:?}: {error:?}"),
            }
        }
    }
}
