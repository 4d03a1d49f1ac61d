//! The index of titles, in which a list finds the titles that contain a text, alone or in a longer word.
//!
//! The index is an FTS5 table with a row for each session. Its tokens are grams: each character of a word of the title begins
//! one, which has up to [`GRAM_CHARS`] characters of that word. So a text of three characters is a gram, a longer one
//! is an AND of its grams, and a shorter one is the beginning of grams. The index finds every title that contains the
//! text, and perhaps other ones: the caller checks each title with [`TitleWords::are_in`].
//!
//! FTS5 takes other ASCII characters than letters and digits as separators, so private characters stand for them. A
//! title with such private characters is found too often, which does no harm.
//!
//! A change of these rules needs a new [`super::schema::VERSION`].

use ollm_protocol::limits::BoundedField;
use rusqlite::{Connection, params};

use super::fulltext::quoted;

/// The name of the table.
pub(crate) const TABLE: &str = "titles";

/// Number of characters of a gram. Grams of three characters are rare enough to find few titles, and a title of 60
/// characters adds about 100 bytes to the index.
const GRAM_CHARS: usize = 3;
/// Maximum number of grams of an expression, because FTS5 rejects deep ones. Only the titles are checked for the others.
const MAX_GRAMS: usize = 32;
/// The private character that stands for the ASCII character 0.
const PRIVATE_USE: u32 = 0xE000;

/// The words that the titles of listed sessions contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TitleWords(Vec<String>);

impl TitleWords {
    /// Returns the words of a text; case does not matter.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.split_whitespace().map(str::to_lowercase).collect())
    }

    /// Returns whether a title contains each of the words, alone or in a longer word.
    pub(crate) fn are_in(&self, title: &str) -> bool {
        let title = title.to_lowercase();
        self.0.iter().all(|word| title.contains(word))
    }

    /// Returns the FTS5 expression that matches every title with the words; `None` without words, which are in every
    /// title.
    pub(crate) fn expression(&self) -> Option<String> {
        let mut terms = Vec::new();
        for word in &self.0 {
            let chars: Vec<char> = word.chars().map(token_char).collect();
            if chars.len() < GRAM_CHARS {
                terms.push(quoted(&chars.iter().collect::<String>()) + " *");
            }
            let grams = chars.windows(GRAM_CHARS).take(MAX_GRAMS);
            terms.extend(grams.map(|gram| quoted(&gram.iter().collect::<String>())));
        }
        terms.truncate(MAX_GRAMS);
        (!terms.is_empty()).then(|| terms.join(" AND "))
    }
}

/// Returns the tokens of a title.
fn grams_of(title: &str) -> String {
    // A log can have a title of any size; lists show and check a shortened one.
    let mut title = title.to_owned();
    BoundedField::Title.shorten(&mut title);
    let folded = title.to_lowercase();
    let mut grams = String::new();
    for word in folded.split_whitespace() {
        for (at, _) in word.char_indices() {
            grams.extend(word[at..].chars().take(GRAM_CHARS).map(token_char));
            grams.push(' ');
        }
    }
    grams
}

/// Returns the character that stands for another one in a token.
fn token_char(char: char) -> char {
    if char.is_ascii() && !char.is_ascii_alphanumeric() {
        char::from_u32(PRIVATE_USE + u32::from(char)).unwrap_or(char)
    } else {
        char
    }
}

/// Creates the empty table. Like a shard of the full-text index, it is merged as a whole after a removal.
pub(super) fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE VIRTUAL TABLE titles USING
             fts5(text, content='', contentless_delete=1, detail=none, tokenize='ascii');
         INSERT INTO titles (titles, rank) VALUES ('deletemerge', 0);",
    )
}

/// Removes all titles.
pub(crate) fn reset(conn: &Connection) -> rusqlite::Result<()> {
    conn.flush_prepared_statement_cache();
    conn.execute_batch("DROP TABLE titles")?;
    create(conn)
}

/// Stores the title of a session in place of `old`, the stored one, which is `None` for a new session.
pub(crate) fn put(
    conn: &Connection,
    num: i64,
    old: Option<&str>,
    title: &str,
) -> rusqlite::Result<()> {
    if old == Some(title) {
        return Ok(());
    }
    if old.is_some() {
        remove(conn, num)?;
    }
    conn.prepare_cached("INSERT INTO titles (rowid, text) VALUES (?1, ?2)")?
        .execute(params![num, grams_of(title)])
        .map(drop)
}

/// Removes the title of a session. Its grams leave the files when the table is merged.
pub(crate) fn remove(conn: &Connection, num: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM titles WHERE rowid = ?1")?.execute([num]).map(drop)
}

/// Returns whether the table has a row for exactly the sessions.
pub(crate) fn has_all(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row(
        "SELECT (SELECT count(*) FROM titles_docsize) = (SELECT count(*) FROM sessions)
             AND NOT EXISTS (SELECT 1 FROM sessions WHERE num NOT IN (SELECT id FROM titles_docsize))",
        [],
        |row| row.get(0),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> Connection {
        let conn = Connection::open_in_memory().expect("opens");
        create(&conn).expect("creates");
        conn
    }

    /// Returns the sessions whose titles may have the words of a text.
    fn found(conn: &Connection, words: &TitleWords) -> Vec<i64> {
        let expression = words.expression().expect("there are words");
        conn.prepare("SELECT rowid FROM titles WHERE titles MATCH ?1 ORDER BY rowid")
            .expect("prepares")
            .query_map([expression], |row| row.get(0))
            .expect("searches")
            .collect::<rusqlite::Result<_>>()
            .expect("searches")
    }

    #[test]
    fn words_become_an_expression_of_quoted_grams() {
        let check = |text: &str, expect: &str| {
            assert_eq!(TitleWords::new(text).expression().as_deref(), Some(expect), "{text}");
        };
        check("Abcd", "\"abc\" AND \"bcd\"");
        check("ab Ö", "\"ab\" * AND \"ö\" *");
        check("日本語", "\"日本語\"");
        check("\"*", "\"\u{E022}\u{E02A}\" *");
        check("NOT x OR", "\"not\" AND \"x\" * AND \"or\" *");
        assert_eq!(TitleWords::new(" \n").expression(), None);
        let long = TitleWords::new(&"abcdefgh ".repeat(400)).expression().expect("has words");
        assert_eq!(long.split(" AND ").count(), MAX_GRAMS);
    }

    #[test]
    fn title_is_found_by_any_part_of_its_words_until_it_is_replaced_or_removed() {
        let conn = table();
        put(&conn, 1, None, "Rename the C++ Player").expect("writes");
        put(&conn, 2, None, "今日の天気 in Köln").expect("writes");
        put(&conn, 3, None, "").expect("writes");
        let check = |text: &str, expect: &[i64]| {
            assert_eq!(found(&conn, &TitleWords::new(text)), expect, "{text}");
        };
        for (text, expect) in [
            ("layer RENAM", &[1_i64][..]),
            ("c++", &[1]),
            ("++", &[1]),
            ("+", &[1]),
            ("天気", &[2]),
            ("気", &[2]),
            ("KÖL", &[2]),
            ("n", &[1, 2]),
            ("player in", &[]),
            ("thec", &[]),
        ] {
            check(text, expect);
        }
        put(&conn, 1, Some("Rename the C++ Player"), "Rename the C++ Player").expect("keeps");
        check("player", &[1]);
        put(&conn, 1, Some("Rename the C++ Player"), "Other").expect("replaces");
        check("player", &[]);
        check("othe", &[1]);
        remove(&conn, 1).expect("removes");
        remove(&conn, 9).expect("an unknown session is no error");
        check("othe", &[]);
        reset(&conn).expect("resets");
        check("天気", &[]);
    }

    #[test]
    fn words_behind_the_longest_shown_title_are_not_indexed() {
        let conn = table();
        let title = format!("begin {} behind", "x".repeat(BoundedField::Title.max_bytes()));
        put(&conn, 1, None, &title).expect("writes");
        assert_eq!(found(&conn, &TitleWords::new("begin x…")), [1]);
        assert_eq!(found(&conn, &TitleWords::new("behind")), [0_i64; 0]);
    }

    proptest! {
        #[test]
        fn every_title_that_contains_the_words_is_found(
            title in prop::collection::vec(any::<char>(), 1..40),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..6), 1..4),
        ) {
            let title: String = title.into_iter().collect();
            let folded: Vec<char> = title.to_lowercase().chars().collect();
            let cut = |(at, n): &(prop::sample::Index, usize)| {
                folded.iter().skip(at.index(folded.len())).take(*n).collect::<String>()
            };
            let words = TitleWords::new(&cuts.iter().map(cut).collect::<Vec<_>>().join(" "));
            if words.expression().is_some() && words.are_in(&title) {
                let conn = table();
                put(&conn, 1, None, &title).expect("writes");
                prop_assert_eq!(found(&conn, &words), [1]);
            }
        }
    }
}
