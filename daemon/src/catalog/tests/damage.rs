//! Damaged copies of a real catalog: each serves all sessions and complete searches in the end.
//!
//! `OLLM_DAMAGED_COPIES` sets the number of copies, `OLLM_DAMAGE_SEED` the first seed; a failure names its seed.
#![expect(clippy::print_stdout, reason = "the figures of a long run")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Message, RecordBody, Role, SessionHeader};
use ollm_protocol::{Seq, SessionId};

use super::following::all;
use super::forgetting::xorshift;
use super::search;
use crate::catalog::files::with_suffix;
use crate::catalog::{Catalog, ListQuery, SearchQuery};
use crate::clock::Clock;
use crate::session::index::{HintSource, IndexSource, OpenHint};
use crate::session::{NewRecord, NewSession, Sessions};

/// The number of copies in a normal run: some seconds.
const COPIES: u64 = 24;
/// The time in which a copy must be whole.
const LIMIT: Duration = Duration::from_secs(60);
const FILES: [&str; 3] = ["", "-wal", "-seal"];

struct Hints(Arc<Catalog>);

impl HintSource for Hints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.hint(id)
    }
}

/// What a catalog must return: the words of each session's records.
type Expected = BTreeMap<SessionId, Vec<String>>;

/// Logs, and copies of their catalog: closed, as after a crash, and closed earlier.
struct Originals {
    dir: tempfile::TempDir,
    expected: Expected,
}

impl Originals {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let logs = dir.path().join("sessions");
        std::fs::create_dir(&logs).expect("creates");
        let sessions = Sessions::new(logs, Arc::new(Clock::system()), Arc::new(()));
        let path = dir.path().join("catalog.sqlite3");
        let mut expected = Expected::new();
        let mut deleted = Vec::new();
        let catalog = open(&path, &sessions);
        for number in 0..12 {
            if number == 8 {
                catch_up(&catalog);
                catalog.shutdown();
                copy(&path, &dir.path().join("earlier"));
            }
            let (id, words) = record_session(&sessions, number);
            expected.insert(id, words);
            catalog.mark_dirty(id);
            deleted.extend((number % 4 == 3).then_some(id));
        }
        let catalog = open(&path, &sessions);
        catch_up(&catalog);
        for id in &deleted {
            sessions.begin_delete(*id).expect("deletes");
            sessions.remove_contents(*id).expect("deletes");
            catalog.forget(&[*id]).expect("forgets");
            sessions.finish_delete(*id).expect("deletes");
            expected.remove(id);
        }
        assert!(catalog.wait_clean(Instant::now() + LIMIT));
        catalog.shutdown();
        copy(&path, &dir.path().join("closed"));
        let catalog = open(&path, &sessions);
        catch_up(&catalog);
        // A copy with a seal and a journal: the cleanup of a full shard removes the seal for a moment.
        let seal = with_suffix(&path, "-seal");
        for number in 12.. {
            assert!(number < 100, "there is such a moment");
            let deadline = Instant::now() + LIMIT;
            while !seal.exists() {
                assert!(Instant::now() < deadline, "is sealed when idle");
                std::thread::sleep(Duration::from_millis(5));
            }
            let (id, words) = record_session(&sessions, number);
            expected.insert(id, words);
            catalog.mark_dirty(id);
            catch_up(&catalog);
            copy(&path, &dir.path().join("crashed"));
            if seal.exists()
                && std::fs::metadata(with_suffix(&path, "-wal")).is_ok_and(|wal| wal.len() > 0)
            {
                break;
            }
        }
        catalog.shutdown();
        Self { dir, expected }
    }

    fn sessions(&self) -> Sessions {
        let logs = self.dir.path().join("sessions");
        Sessions::new(logs, Arc::new(Clock::system()), Arc::new(()))
    }
}

fn record_session(sessions: &Sessions, number: usize) -> (SessionId, Vec<String>) {
    let clock = Clock::system();
    let header = SessionHeader::new(clock.session_id(), clock.now());
    let id = header.session_id;
    sessions.create(NewSession { header, key: None }).expect("creates");
    let words: Vec<String> = (0..20).map(|at| format!("s{number}w{at}x")).collect();
    for (at, word) in words.iter().enumerate() {
        let size = if at == 5 { 12_000 } else { 30 };
        let text = format!("{word} common {}", "filler ".repeat(size));
        let message = Message::text(Role::User, text, clock.now());
        let record = NewRecord::new(RecordBody::Message(message), None);
        sessions.append(id, vec![record], None).expect("queues").wait().expect("records");
    }
    (id, words)
}

fn open(path: &Path, sessions: &Sessions) -> Arc<Catalog> {
    let source: Arc<dyn IndexSource> = Arc::new(sessions.clone());
    Arc::new(Catalog::open(path.to_owned(), source).expect("opens"))
}

fn catch_up(catalog: &Catalog) {
    assert!(catalog.wait_caught_up(Instant::now() + LIMIT), "catches up");
}

/// Copies the files of a catalog.
fn copy(from: &Path, to: &Path) {
    for suffix in FILES {
        let _absent = std::fs::copy(with_suffix(from, suffix), with_suffix(to, suffix));
    }
}

/// Damages the copy of a catalog; returns what was done.
fn damage(originals: &Path, path: &Path, seed: u64) -> String {
    let mut random = xorshift(usize::try_from(seed).expect("small"));
    let mut below = |limit: u64| random() % limit.max(1);
    let origin = ["closed", "crashed", "crashed"][usize::try_from(below(3)).expect("small")];
    copy(&originals.join(origin), path);
    let wal = with_suffix(path, "-wal");
    let file = |path: &Path| File::options().read(true).write(true).open(path).expect("opens");
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.len());
    let db = file(path);
    let n_pages = len(path) / 4096;
    let target = if below(4) == 0 && len(&wal) > 0 { wal.clone() } else { path.to_owned() };
    let kind = below(14);
    let done = match kind {
        0..=4 => {
            let n_bits = [1, 1, 1, 16, 200][usize::try_from(kind).expect("small")];
            for _ in 0..n_bits {
                let at = below(len(&target));
                let mut byte = [0];
                file(&target).read_exact_at(&mut byte, at).expect("reads");
                byte[0] ^= 1 << below(8);
                file(&target).write_all_at(&byte, at).expect("writes");
            }
            format!("{n_bits} bits flipped in {}", target.display())
        }
        5 | 6 => {
            let value = if kind == 5 { 0 } else { 0xa5 };
            let page = below(n_pages);
            db.write_all_at(&[value; 4096], page * 4096).expect("writes");
            format!("page {page} overwritten with {value}")
        }
        7 => {
            let (one, other) = (below(n_pages), below(n_pages));
            let mut pages = [[0; 4096]; 2];
            db.read_exact_at(&mut pages[0], one * 4096).expect("reads");
            db.read_exact_at(&mut pages[1], other * 4096).expect("reads");
            db.write_all_at(&pages[0], other * 4096).expect("writes");
            db.write_all_at(&pages[1], one * 4096).expect("writes");
            format!("pages {one} and {other} swapped")
        }
        8 => {
            let size = below(len(&target));
            file(&target).set_len(size).expect("cuts");
            format!("{} cut to {size}", target.display())
        }
        9 => {
            std::fs::copy(originals.join("crashed-wal"), &wal).expect("copies");
            std::fs::copy(originals.join("closed"), path).expect("copies");
            let seal = originals.join(["closed-seal", "earlier-seal"][below(2) as usize]);
            std::fs::copy(seal, with_suffix(path, "-seal")).expect("copies");
            "files of several times mixed".to_owned()
        }
        10 => {
            std::fs::copy(originals.join("earlier"), path).expect("copies");
            "an earlier file under this journal".to_owned()
        }
        11 => {
            copy(&originals.join("earlier"), path);
            let _absent = std::fs::remove_file(&wal);
            let _absent = std::fs::remove_file(with_suffix(path, "-seal"));
            "an earlier catalog without a seal".to_owned()
        }
        _ => {
            let number = below(9);
            // Without a seal, the rows themselves must show the damage, which one of the statements hides.
            if number != 4 && below(2) == 0 {
                let _absent = std::fs::remove_file(with_suffix(path, "-seal"));
            }
            run_statement(path, number)
        }
    };
    format!("{origin}: {done}")
}

/// Runs a statement that damages the tables; returns what was done.
fn run_statement(path: &Path, number: u64) -> String {
    const STATEMENTS: [&str; 9] = [
        "DROP TABLE details",
        "DROP INDEX sessions_by_activity",
        "ALTER TABLE sessions RENAME COLUMN bytes TO octets",
        "DELETE FROM docs WHERE docid % 3 = 0",
        "UPDATE docs SET seq = seq + 1",
        "UPDATE sessions SET bytes = bytes + 7, records = records + 1",
        "DELETE FROM sessions WHERE num % 2 = 0",
        "PRAGMA user_version = 2",
        "DROP TABLE words_1_data",
    ];
    let statement = STATEMENTS[usize::try_from(number).expect("small")];
    let conn = rusqlite::Connection::open(path).expect("opens");
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)
        .expect("configures");
    // The statement may be refused on this copy, which is then not damaged.
    let result = conn.execute_batch(statement);
    format!("{statement}: {result:?}")
}

/// Returns how a catalog differs from what it must return.
fn difference(catalog: &Catalog, expected: &Expected) -> Option<String> {
    let none = HashSet::new();
    let listed = match catalog.list(&ListQuery { limit: 1_000, ..all(&none) }) {
        Ok(listed) => listed,
        Err(error) => return Some(format!("the list: {error}")),
    };
    let ids: BTreeSet<_> = listed.iter().map(|session| session.session_id).collect();
    let counts =
        listed.iter().all(|session| session.message_count == 20 && session.damaged_records == 0);
    if ids != expected.keys().copied().collect() || listed.len() != ids.len() || !counts {
        return Some(format!("the list has {} sessions", listed.len()));
    }
    let find = |query: &str| catalog.search(&SearchQuery { limit: 1_000, ..search(query) });
    match find("common") {
        Ok(page) if page.hits.len() == expected.len() * 20 => {}
        other => return Some(format!("the common word: {:?}", other.map(|page| page.hits.len()))),
    }
    for (id, words) in expected {
        for (at, word) in words.iter().enumerate() {
            let found = find(word).map(|page| {
                page.hits.iter().map(|hit| (hit.session_id, hit.seq)).collect::<Vec<_>>()
            });
            if !matches!(&found, Ok(hits) if *hits == [(*id, Seq(at as u64 + 1))]) {
                return Some(format!("{word}: {found:?}"));
            }
        }
    }
    None
}

/// The result of one damaged copy.
struct Outcome {
    done: String,
    was_replaced: bool,
    /// Whether the first answers, before the check of the file, were complete.
    was_complete_at_once: bool,
    time: Duration,
}

fn check_copy(originals: &Originals, seed: u64) -> Outcome {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("catalog.sqlite3");
    let done = damage(originals.dir.path(), &path, seed);
    let inode = |path: &Path| std::fs::metadata(path).map(|data| data.ino()).ok();
    let damaged = inode(&path);
    let start = Instant::now();
    let sessions = originals.sessions();
    let catalog = open(&path, &sessions);
    sessions.set_hints(Arc::new(Hints(Arc::clone(&catalog))));
    let was_complete_at_once = difference(&catalog, &originals.expected).is_none();
    // Sessions open right however damaged the catalog is, before it is repaired.
    for id in originals.expected.keys() {
        let seqs: Vec<Seq> = (1..=20).map(Seq).collect();
        let bodies = sessions.bodies(*id, &seqs).expect("reads");
        assert!(bodies.iter().all(Option::is_some), "seed {seed}, {done}: all records are served");
        let session = sessions.summary(*id).expect("opens");
        assert_eq!(
            (session.damaged_records, session.message_count),
            (0, 20),
            "seed {seed}, {done}"
        );
    }
    loop {
        assert!(catalog.wait_caught_up(start + LIMIT), "seed {seed}, {done}: catches up");
        let Some(difference) = difference(&catalog, &originals.expected) else { break };
        assert!(start.elapsed() < LIMIT, "seed {seed}, {done}: {difference}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let time = start.elapsed();
    catalog.shutdown();
    let was_replaced = inode(&path) != damaged;
    Outcome { done, was_replaced, was_complete_at_once, time }
}

#[test]
fn every_damaged_catalog_is_whole_in_the_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let copies = number("OLLM_DAMAGED_COPIES").unwrap_or(COPIES);
    let first = number("OLLM_DAMAGE_SEED").unwrap_or(1);
    let originals = Originals::new();
    let mut outcomes = Vec::new();
    for seed in first..first + copies {
        let outcome = check_copy(&originals, seed);
        println!(
            "seed {seed}: {}; replaced {}, complete at once {}, {:?}",
            outcome.done, outcome.was_replaced, outcome.was_complete_at_once, outcome.time
        );
        outcomes.push(outcome);
    }
    let count =
        |of: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| of(outcome)).count();
    println!(
        "{copies} copies from seed {first}: {} replaced, {} harmless, {} incomplete at first, slowest {:?}",
        count(&|outcome| outcome.was_replaced),
        count(&|outcome| !outcome.was_replaced),
        count(&|outcome| !outcome.was_complete_at_once),
        outcomes.iter().map(|outcome| outcome.time).max()
    );
    assert!(count(&|outcome| outcome.was_replaced) > 0, "some damage was found");
}

#[test]
fn read_that_meets_damage_reads_the_file_that_replaces_it() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let logs = dir.path().join("sessions");
    std::fs::create_dir(&logs).expect("creates");
    let sessions = Sessions::new(logs, Arc::new(Clock::system()), Arc::new(()));
    let path = dir.path().join("catalog.sqlite3");
    let catalog = open(&path, &sessions);
    for number in 0..3 {
        catalog.mark_dirty(record_session(&sessions, number).0);
    }
    let none = HashSet::new();
    let query = ListQuery { limit: 1_000, ..all(&none) };
    // A missing table, and a renamed column.
    for number in [0, 2] {
        catch_up(&catalog);
        let done = run_statement(&path, number);
        catalog.list(&query).expect(&done);
        catch_up(&catalog);
        assert_eq!(catalog.list(&query).expect(&done).len(), 3, "{done}");
        catalog.search(&search("common")).expect(&done);
    }
    // An answer that must not lack a session waits for all of them.
    catch_up(&catalog);
    let done = run_statement(&path, 2);
    assert_eq!(catalog.retention_rows().expect(&done).len(), 3, "{done}");
}
