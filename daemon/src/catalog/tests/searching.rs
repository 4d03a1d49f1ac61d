//! Search: what is found, in which order, with which snippet.

use std::collections::HashSet;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Role, SearchSort};
use proptest::prelude::*;

use super::fake::{Bench, HOUR_MS, START_MS, at, id, places, search};
use crate::catalog::query::shards;
use crate::catalog::{CatalogError, SearchQuery};

#[test]
fn a_query_finds_what_its_language_says() {
    let bench = Bench::new();
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
    ];
    for text in texts {
        bench.say(id(1), Role::User, at(0), text);
    }
    bench.settle();
    let check = |query: &str, expect: &[usize]| {
        let expect: Vec<String> = expect.iter().map(|seq| format!("1:{seq}")).collect();
        assert_eq!(bench.find(query), expect.join(" "), "{query}");
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
fn hits_come_newest_first_out_of_many_shards() {
    let bench = Bench::new();
    // Sessions beside each other in time, so that their documents lie in the same shards.
    for hour in 0..120 {
        bench.say(id(1), Role::User, at(hour), "needle in hay");
        bench.say(id(2), Role::User, at(hour), "needle in straw");
        if hour % 9 == 0 {
            bench.settle();
        }
    }
    // Said long before all others, and recorded last.
    bench.say(id(3), Role::User, at(-500), "needle in rust");
    bench.settle();
    let conn = rusqlite::Connection::open(bench.path()).expect("opens");
    assert!(shards::newest_first(&conn).expect("reads").len() > 3, "the test has many shards");
    let mut expect: Vec<String> =
        (0..120).rev().flat_map(|seq| [format!("2:{seq}"), format!("1:{seq}")]).collect();
    expect.push("3:0".to_owned());
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let query = SearchQuery { cursor: cursor.as_deref(), limit: 7, ..search("needl*") };
        let page = bench.catalog.search(&query).expect("searches");
        found.extend(places(&page).split_whitespace().map(str::to_owned));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, expect);
    assert_eq!(bench.find("rust"), "3:0");
    let since = SearchQuery { since: Some(at(118)), ..search("\"in hay\"") };
    assert_eq!(bench.find_with(&since), "1:119 1:118");
    let until = SearchQuery { until: Some(at(1)), ..search("needle") };
    assert_eq!(bench.find_with(&until), "2:0 1:0 3:0");
}

#[test]
fn filters_hold_singly_and_together() {
    let bench = Bench::new();
    bench.logs.with(id(2), |log| log.session.project_hash = Some("beef".into()));
    for hour in 0..6 {
        let role = if hour % 2 == 0 { Role::User } else { Role::Assistant };
        bench.say(id(1), role, at(hour), "needle");
        bench.say(id(2), role, at(hour), "needle");
    }
    bench.settle();
    let check = |query: SearchQuery<'_>, expect: &str| {
        assert_eq!(bench.find_with(&query), expect, "{query:?}");
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
fn an_old_import_comes_after_what_is_newer() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(100), "needle now");
    bench.settle();
    bench.say(id(2), Role::User, at(-5_000), "needle imported");
    bench.say(id(2), Role::User, Timestamp::from_unix_ms(0), "needle before all hours");
    bench.settle();
    bench.say(id(3), Role::User, at(50), "needle between");
    bench.say(
        id(3),
        Role::User,
        Timestamp::from_unix_ms(253_402_300_799_000),
        "needle of the far future",
    );
    bench.settle();
    assert_eq!(bench.find("needle"), "3:1 1:0 3:0 2:0 2:1");
}

#[test]
fn an_hour_holds_more_records_than_it_has_ids() {
    let bench = Bench::new();
    let n_records = 9_000;
    for number in 0..n_records {
        let minute = Timestamp::from_unix_ms(START_MS + number % 60 * 60_000);
        bench.logs.say(
            id(1),
            Role::User,
            minute,
            if number % 3000 == 0 { "rare" } else { "plain" },
        );
    }
    bench.catalog.mark_dirty(id(1));
    bench.say(id(2), Role::User, at(1), "rare");
    bench.settle();
    assert_eq!(bench.find("rare").split(' ').count(), 4);
    let until = Some(Timestamp::from_unix_ms(START_MS + HOUR_MS));
    let within = bench.find_with(&SearchQuery { until, ..search("rare") });
    assert_eq!(
        within.split(' ').collect::<HashSet<_>>(),
        HashSet::from(["1:0", "1:3000", "1:6000"])
    );
}

#[test]
fn pages_go_on_until_all_is_found_once() {
    let bench = Bench::new();
    for seq in 0..300 {
        let text = if seq % 7 == 0 { "needle in hay" } else { "in the hay, a needle" };
        bench.logs.say(id(seq % 3), Role::User, at(i64::try_from(seq / 5).expect("small")), text);
    }
    (0..3).for_each(|number| bench.catalog.mark_dirty(id(number)));
    bench.settle();
    for (query, sort, expect) in [
        ("needle", SearchSort::Newest, 300),
        ("\"needle in\"", SearchSort::Newest, 43),
        ("needle", SearchSort::Relevance, 300),
    ] {
        let (mut found, mut cursor, mut times) = (Vec::new(), None, Vec::new());
        loop {
            let query = SearchQuery { sort, limit: 11, cursor: cursor.as_deref(), ..search(query) };
            let page = bench.catalog.search(&query).expect("searches");
            assert!(page.hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
            times.extend(page.hits.iter().map(|hit| hit.at));
            found.extend(places(&page).split(' ').map(str::to_owned).collect::<Vec<_>>());
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        found.retain(|place| !place.is_empty());
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), expect, "{query}");
        assert_eq!(found.len(), expect, "{query}");
        if sort == SearchSort::Newest {
            assert!(times.is_sorted_by(|one, other| one >= other), "{query}");
        }
    }
}

#[test]
fn a_page_ends_after_many_candidates_and_goes_on() {
    let bench = Bench::new();
    for seq in 0..2_500 {
        let text = if seq == 3 { "alpha beta" } else { "beta alpha" };
        bench.logs.say(id(1), Role::User, at(seq / 100), text);
    }
    bench.catalog.mark_dirty(id(1));
    bench.settle();
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let query = SearchQuery { cursor: cursor.as_deref(), ..search("\"alpha beta\"") };
        let page = bench.catalog.search(&query).expect("searches");
        pages.push(places(&page));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, ["", "", "1:3"]);
}

#[test]
fn relevance_puts_the_best_first() {
    let bench = Bench::new();
    let filler = "something else entirely ".repeat(20);
    bench.say(id(1), Role::User, at(0), "borrow checker");
    bench.say(id(1), Role::User, at(1), &format!("borrow {filler} checker"));
    bench.say(id(1), Role::User, at(2), &format!("checker {filler} {filler} borrow"));
    bench.settle();
    let query = SearchQuery { sort: SearchSort::Relevance, ..search("borrow checker") };
    assert_eq!(bench.find_with(&query), "1:0 1:1 1:2");
    assert_eq!(bench.find("borrow checker"), "1:2 1:1 1:0");
}

#[test]
fn a_hit_says_where_and_what() {
    let bench = Bench::new();
    bench.logs.with(id(1), |log| log.session.title = "A title".into());
    bench.say(id(1), Role::Assistant, at(3), "first line\n\u{1b}[1mthe Needle\u{1b}[0m is here");
    bench.settle();
    let page = bench.catalog.search(&search("needle")).expect("searches");
    let hit = &page.hits[0];
    assert_eq!((hit.title.as_str(), hit.role, hit.at), ("A title", Role::Assistant, at(3)));
    assert_eq!(
        (hit.snippet.as_str(), &hit.matches[..]),
        ("first line the Needle is here", &[(15, 21)][..])
    );
    assert_eq!((page.behind, page.next_cursor), (0, None));
}

#[test]
fn a_record_that_cannot_be_read_is_passed_over() {
    let bench = Bench::new();
    bench.say(id(1), Role::User, at(0), "needle");
    bench.say(id(2), Role::User, at(1), "needle");
    bench.settle();
    bench.logs.with(id(2), |log| log.unreadable = true);
    assert_eq!(bench.find("needle"), "1:0");
    bench.logs.with(id(1), |log| log.records.clear());
    assert_eq!(bench.find("needle"), "");
}

#[test]
fn wrong_queries_are_refused() {
    let bench = Bench::new();
    let refusal = |query: &SearchQuery<'_>| bench.catalog.search(query).expect_err("is refused");
    assert!(matches!(refusal(&search(" ?! ")), CatalogError::EmptyQuery));
    for cursor in ["", "n", "nx", "r5", "n-4", "r1-", "n99999999999999999999"] {
        let query = SearchQuery { cursor: Some(cursor), ..search("x") };
        assert!(matches!(refusal(&query), CatalogError::InvalidCursor), "{cursor}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// No query breaks the search, and a word of a text always finds it.
    #[test]
    fn every_word_of_a_text_finds_it(text in "[a-zA-Z0-9_.日本語é\" *()-]{1,60}", query in any::<String>()) {
        let bench = Bench::new();
        bench.say(id(1), Role::User, at(0), &text);
        bench.settle();
        match bench.catalog.search(&search(&query)) {
            Ok(_) | Err(CatalogError::EmptyQuery) => {}
            Err(error) => prop_assert!(false, "{query:?}: {error:?}"),
        }
        for word in text.split_whitespace().map(|word| word.replace(['"', '*'], " ")) {
            match bench.catalog.search(&search(&word)) {
                Ok(page) => prop_assert_eq!(page.hits.len(), 1, "{:?} in {:?}", word, text),
                Err(CatalogError::EmptyQuery) => {}
                Err(error) => prop_assert!(false, "{word:?}: {error:?}"),
            }
        }
    }
}
