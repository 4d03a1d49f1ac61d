//! Limits of roots, idle roots, and everything that does not answer or fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::super::open_root::{RootAge, age_of};
use super::super::page::PagePosition;
use super::super::root::PollReason;
use super::*;

/// Limits of a handle whose calls fail soon.
fn short_limits(on_read: ReadHook) -> FilesLimits {
    FilesLimits {
        no_answer: Duration::from_secs(3),
        slow_answer: Duration::from_secs(6),
        partial_page: Duration::from_millis(100),
        walk_patience: Duration::from_millis(500),
        polled_age: Duration::ZERO,
        on_read,
        ..FilesLimits::default()
    }
}

/// Returns a workspace with 300 files in as many directories, whose first walk waits after 20 of them.
fn half_walked() -> (Workspace, BTreeSet<String>, OpenAtEnd) {
    let (gate, n_read) = (Gate::default(), AtomicUsize::new(0));
    let on_read = gate.hook(move |_, _| n_read.fetch_add(1, Ordering::Relaxed) >= 20);
    let workspace = Workspace::limited(FilesLimits { on_read, ..FilesLimits::default() });
    let paths: BTreeSet<String> = (0..300).map(|at| format!("d{}/e{at}/f", at % 3)).collect();
    paths.iter().for_each(|path| workspace.write(path, ""));
    (workspace, paths, OpenAtEnd(gate))
}

fn names(page: &FilesPage) -> Vec<String> {
    page.files.iter().map(|file| String::from_utf8(file.path.clone()).unwrap()).collect()
}

#[tokio::test]
async fn first_page_comes_before_the_walk_ends_and_later_pages_miss_nothing() {
    let (workspace, expected, gate) = half_walked();
    let query = PageQuery { limit: 5, ..PageQuery::default() };
    let first = workspace.files.page(&workspace.key(), query, false).await.unwrap();
    assert!(workspace.report().is_walking);
    let mut found = names(&first);
    let cursor = first.next_cursor.expect("there are more files");
    assert!(matches!(PagePosition::decode(&cursor), Some(PagePosition::Walked { .. })));
    gate.0.open();
    // The cursor continues in the order of the walk, also after its end.
    let rest = PageQuery { limit: 10, cursor: Some(cursor), ..PageQuery::default() };
    found.extend(list(&workspace.files, &workspace.key(), rest).await.unwrap().0);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    let sorted = workspace.list().await;
    assert_eq!(sorted.len(), expected.len());
    assert_eq!(sorted, workspace.list().await);
}

#[tokio::test]
async fn cursor_of_a_walk_is_invalid_after_its_root_was_dropped() {
    let (workspace, _, gate) = half_walked();
    let query = PageQuery { limit: 5, ..PageQuery::default() };
    let first = workspace.files.page(&workspace.key(), query, false).await.unwrap();
    gate.0.open();
    let dropped = workspace.files.0.roots.lock().drain().next().unwrap();
    dropped.1.root.stop();
    let next = PageQuery { limit: 5, cursor: first.next_cursor, ..PageQuery::default() };
    let error = workspace.files.page(&workspace.key(), next, false).await.unwrap_err();
    assert_eq!(error, FilesError::Cursor);
}

#[tokio::test]
async fn changes_during_the_first_walk_are_not_missed() {
    let (workspace, paths, gate) = half_walked();
    let query = PageQuery { limit: 5, ..PageQuery::default() };
    workspace.files.page(&workspace.key(), query, false).await.unwrap();
    // In directories that were read, and in others.
    for path in paths.iter().step_by(3) {
        std::fs::remove_file(workspace.path(path)).unwrap();
        workspace.write(&format!("{path}-other"), "");
        workspace.write(&format!("{}/new/f", path.split_once('/').unwrap().0), "");
    }
    workspace.rename("d0", "moved");
    gate.0.open();
    let mut news = workspace.subscribe().await;
    let fresh = workspace.list_afresh(&workspace.key()).await;
    loop {
        let mut found = workspace.list().await;
        found.sort();
        if found == fresh {
            break;
        }
        next(&mut news).await;
    }
}

#[tokio::test]
async fn root_with_too_many_files_is_right_about_those_that_it_has() {
    let workspace = Workspace::limited(FilesLimits { max_files: 20, ..FilesLimits::default() });
    (0..60).for_each(|at| workspace.write(&format!("d{}/f{at}", at % 12), ""));
    let (found, warnings) =
        list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
    let report = workspace.report();
    assert!(report.is_cut && (20..60).contains(&report.n_files), "{report:?}");
    assert!(warnings.iter().any(|warning| warning.problem.contains("more than 20 files")));
    // All known directories are followed, also if several changed at once.
    let mut news = workspace.subscribe().await;
    let known: BTreeSet<&str> = found.iter().map(|path| path.split_once('/').unwrap().0).collect();
    let mut expected: BTreeSet<String> = known.iter().map(|dir| format!("{dir}/new")).collect();
    expected.iter().for_each(|path| workspace.write(path, ""));
    while !expected.is_empty() {
        let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
        let added = text(&changes.added);
        expected.retain(|path| !added.contains(path));
    }
    assert!(workspace.report().is_cut);
    // With room for all, the next walk reads all.
    for at in 2..12 {
        std::fs::remove_dir_all(workspace.path(&format!("d{at}"))).unwrap();
    }
    let query = PageQuery { limit: 100, ..PageQuery::default() };
    let mut found = Vec::new();
    while found.is_empty() || workspace.report().is_cut {
        let page = workspace.files.page(&workspace.key(), query.clone(), true).await.unwrap();
        found = names(&page);
    }
    assert_eq!(found, workspace.list_afresh(&workspace.key()).await);
}

#[tokio::test]
async fn roots_that_hang_fail_in_time_and_others_answer() {
    let gate = Gate::default();
    let _open = OpenAtEnd(gate.clone());
    let on_read = gate.hook(|root, _| root.to_string_lossy().contains("hung"));
    let workspace = Workspace::limited(short_limits(on_read));
    ["hung1/f", "hung2/f", "fine/f", "late/f"].iter().for_each(|path| workspace.write(path, ""));
    let key = |name: &str| RootKey { path: workspace.path(name), ..workspace.key() };
    assert_eq!(list(&workspace.files, &key("fine"), PageQuery::default()).await.unwrap().0, ["f"]);
    let (first, second) = (key("hung1"), key("hung2"));
    let filter = PathFilter::default();
    let query = || PageQuery { limit: 1, ..PageQuery::default() };
    let (page, found, watch, other) = tokio::join!(
        workspace.files.page(&first, query(), false),
        workspace.files.search(&first, "f".to_owned(), filter.clone(), 1),
        workspace.files.subscribe(&first, filter.clone(), None),
        workspace.files.page(&second, query(), false),
    );
    let errors = [page.err(), found.err(), watch.err(), other.err()];
    for (error, key) in errors.into_iter().zip([&first, &first, &first, &second]) {
        assert_eq!(error, Some(FilesError::NoAnswer { path: key.path.clone() }));
    }
    // Both permits for walks are taken. The root that was quiet waits for one, and so does a new one.
    let page = workspace.files.page(&key("fine"), query(), true).await.unwrap();
    assert_eq!(names(&page), ["f"]);
    assert_eq!(list(&workspace.files, &key("late"), PageQuery::default()).await.unwrap().0, ["f"]);
}

#[tokio::test]
async fn polled_root_whose_walk_hangs_has_the_files_of_the_last_one() {
    let (gate, hangs) = (Gate::default(), Arc::new(AtomicBool::new(false)));
    let _open = OpenAtEnd(gate.clone());
    let is_hanging = Arc::clone(&hangs);
    let on_read = gate.hook(move |_, _| is_hanging.load(Ordering::Relaxed));
    let workspace = Workspace::limited(FilesLimits { max_watch: 0, ..short_limits(on_read) });
    workspace.write("f", "");
    assert_eq!(workspace.list().await, ["f"]);
    hangs.store(true, Ordering::Relaxed);
    workspace.write("g", "");
    let root = Arc::clone(&workspace.files.0.roots.lock()[&workspace.key()].root);
    while age_of(&root) != RootAge::Old {
        tokio::task::yield_now().await;
    }
    assert_eq!(workspace.list().await, ["f"]);
    let refreshed = workspace.files.page(&workspace.key(), PageQuery::default(), true).await;
    assert!(matches!(refreshed, Err(FilesError::NoAnswer { .. })));
    assert!(workspace.report().is_hanging);
}

#[tokio::test]
async fn root_whose_disk_does_not_answer_is_reported_as_hanging() {
    let workspace = Workspace::new();
    workspace.write("f", "");
    assert_eq!(workspace.list().await, ["f"]);
    let is_hanging = async || {
        let reports = workspace.files.checked_status().await;
        reports.iter().any(|report| report.is_hanging)
    };
    assert!(!is_hanging().await);
    // Calls that wait for the disk hold all permits of the root.
    let open = workspace.files.0.roots.lock()[&workspace.key()].clone();
    let held = open.hold_disk().await;
    assert!(is_hanging().await);
    drop(held);
    assert!(!is_hanging().await);
}

#[tokio::test]
async fn status_reports_leave_one_look_at_a_disk_that_does_not_answer() {
    let workspace = Workspace::new();
    workspace.write("f", "");
    assert_eq!(workspace.list().await, ["f"]);
    let open = workspace.files.0.roots.lock()[&workspace.key()].clone();
    let n_free = open.n_free();
    let (answer, hangs) = std::sync::mpsc::channel::<()>();
    let limit = Duration::from_millis(1);
    let look = move || {
        let _ended = hangs.recv();
    };
    assert!(!open.looks(limit, look).await);
    for _ in 0..3 {
        assert!(!open.answers(limit).await);
        assert_eq!(open.n_free(), n_free - 1);
    }
    drop(answer);
    assert!(open.answers(Duration::from_secs(60)).await);
}

#[tokio::test]
async fn root_without_watches_is_polled_until_a_refresh_finds_some() {
    let workspace = Workspace::limited(FilesLimits { max_watch: 5, ..FilesLimits::default() });
    (0..10).for_each(|at| workspace.write(&format!("d{at}/f"), ""));
    let mut found = workspace.list().await;
    found.sort();
    assert_eq!(found, (0..10).map(|at| format!("d{at}/f")).collect::<Vec<_>>());
    let reports = workspace.files.status();
    assert_eq!(reports[0].mode, FollowMode::Poll(PollReason::NoWatches));
    let mut news =
        workspace.files.subscribe(&workspace.key(), PathFilter::default(), None).await.unwrap();
    assert!(matches!(next(&mut news).await, FilesNews::Watching { .. }));
    workspace.write("d1/new", "");
    let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
    assert_eq!(text(&changes.added), ["d1/new"]);
    for at in 2..10 {
        std::fs::remove_dir_all(workspace.path(&format!("d{at}"))).unwrap();
    }
    let query = PageQuery { limit: 10, ..PageQuery::default() };
    let page = workspace.files.page(&workspace.key(), query, true).await.unwrap();
    assert_eq!(names(&page), ["d0/f", "d1/f", "d1/new"]);
    assert_eq!(workspace.report().mode, FollowMode::Watch);
    // What was written between the last poll and the first watch is not known.
    while next(&mut news).await != (FilesNews::Resync { generation: workspace.report().generation })
    {
    }
    workspace.write("d1/new", "changed");
    let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
    assert_eq!(text(&changes.modified), ["d1/new"]);
}

#[tokio::test]
async fn idle_roots_are_dropped_and_subscribed_ones_kept() {
    let workspace = Workspace::limited(FilesLimits { idle: LIMIT, ..FilesLimits::default() });
    workspace.write("f", "");
    let other = RootKey { hidden: true, ..workspace.key() };
    list(&workspace.files, &other, PageQuery::default()).await.unwrap();
    let news = workspace.subscribe().await;
    let age = |by: Duration| {
        for open in workspace.files.0.roots.lock().values() {
            *open.root.used_at.lock() = Instant::now().checked_sub(by).unwrap();
        }
    };
    let keys = || workspace.files.status().into_iter().map(|root| root.key).collect::<Vec<_>>();
    workspace.files.release_idle();
    assert_eq!(keys(), [workspace.key(), other]);
    age(2 * LIMIT);
    workspace.files.release_idle();
    assert_eq!(keys(), [workspace.key()]);
    // The end of a subscription is a use.
    drop(news);
    workspace.files.release_idle();
    assert_eq!(keys(), [workspace.key()]);
    age(2 * LIMIT);
    workspace.files.release_idle();
    assert!(keys().is_empty());
}

#[tokio::test]
async fn roots_that_grew_are_dropped_until_the_others_have_room() {
    let workspace =
        Workspace::limited(FilesLimits { max_total_files: 10, ..FilesLimits::default() });
    ["a/f", "b/f"].iter().for_each(|path| workspace.write(path, ""));
    let key = |name: &str| RootKey { path: workspace.path(name), ..workspace.key() };
    let _first = list(&workspace.files, &key("a"), PageQuery::default()).await.unwrap();
    let mut news = workspace.files.subscribe(&key("b"), PathFilter::default(), None).await.unwrap();
    assert!(matches!(next(&mut news).await, FilesNews::Watching { .. }));
    workspace.files.release_idle();
    assert_eq!(workspace.files.status().len(), 2);
    (0..10).for_each(|at| workspace.write(&format!("b/f{at}"), ""));
    let mut n_added = 0;
    while n_added < 10 {
        let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
        n_added += changes.added.len();
    }
    workspace.files.release_idle();
    let left: Vec<_> = workspace.files.status().into_iter().map(|root| root.key).collect();
    assert_eq!(left, [key("b")], "the root that nobody uses is dropped");
}

#[tokio::test]
async fn panic_in_a_walk_is_an_error_and_the_next_call_walks_again() {
    let fails = Arc::new(AtomicBool::new(true));
    let is_failing = Arc::clone(&fails);
    let on_read = ReadHook::new(move |_, dir| {
        assert!(!(dir == b"d30" && is_failing.load(Ordering::Relaxed)), "a panic of the test");
    });
    let workspace = Workspace::limited(FilesLimits { on_read, ..FilesLimits::default() });
    (0..40).for_each(|at| workspace.write(&format!("d{at}/f"), ""));
    let query = PageQuery { limit: 100, ..PageQuery::default() };
    let key = workspace.key();
    // The first page of a walk may come before its panic.
    let until_error = async {
        loop {
            if let Err(error) = workspace.files.page(&key, query.clone(), false).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(LIMIT, until_error).await.expect("an error");
    let problem = RootProblem::Internal;
    assert_eq!(error, FilesError::Root { path: key.path.clone(), problem });
    fails.store(false, Ordering::Relaxed);
    assert_eq!(workspace.list().await.len(), 40);
}

#[test]
fn file_that_cannot_be_looked_up_stays_without_details_and_one_that_vanished_goes() {
    unprivileged(async || {
        let workspace = Workspace::new();
        ["open/f", "closed/f"].iter().for_each(|path| workspace.write(path, "text"));
        workspace.set_mode("closed", 0);
        let file = |path: &str| PageFile {
            path: path.as_bytes().to_vec(),
            kind: EntryKind::File,
            details: None,
        };
        let paths = ["closed/f", "gone/f", "open/f", "open/gone", "open/f/x"];
        let mut page = FilesPage { files: paths.map(file).to_vec(), ..FilesPage::default() };
        page::add_details(&mut page, workspace.dir.path());
        assert_eq!(names(&page), ["closed/f", "open/f"]);
        let sizes: Vec<_> =
            page.files.iter().map(|file| file.details.map(|details| details.size_bytes)).collect();
        assert_eq!(sizes, [None, Some(4)]);
        workspace.set_mode("closed", 0o700);
    });
}

#[tokio::test]
async fn ignore_file_with_many_malformed_lines_has_few_warnings() {
    let workspace = Workspace::new();
    workspace.write(".gitignore", &"a{b\n".repeat(30));
    workspace.write("f", "");
    let (found, warnings) =
        list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
    assert_eq!((found, warnings.len()), (vec!["f".to_owned()], 11));
    assert!(warnings[10].problem.starts_with("20 more lines"), "{warnings:?}");
}
