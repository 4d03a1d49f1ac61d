//! Workspaces on the disk: ignore rules, pages, changes, and everything that goes wrong.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::changes::{ChangeSet, MAX_BATCH};
use super::*;
use crate::shutdown::Tasks;

/// The limit of every wait; only a failing test reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory with files, and a handle that follows it.
struct Workspace {
    dir: tempfile::TempDir,
    files: Files,
}

fn settings(ignore: &[&str]) -> FilesConfig {
    FilesConfig { max_depth: None, ignore: ignore.iter().map(|text| (*text).to_owned()).collect() }
}

impl Workspace {
    fn new() -> Self {
        Self::with(&settings(&[]))
    }

    fn with(settings: &FilesConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, files: Files::new(Arc::new(Clock::system()), settings) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn key(&self) -> RootKey {
        RootKey { path: self.dir.path().to_owned(), hidden: false, max_depth: None }
    }

    async fn list(&self) -> Vec<String> {
        list(&self.files, &self.key(), PageQuery::default()).await.unwrap().0
    }

    /// Lists with a handle that knows nothing yet.
    async fn list_afresh(&self, key: &RootKey) -> Vec<String> {
        let settings = self.files.0.settings.lock().clone();
        let fresh = Files::new(Arc::new(Clock::system()), &settings);
        let mut found = list(&fresh, key, PageQuery::default()).await.unwrap().0;
        // Pages of a first walk are in the order of the walk.
        found.sort();
        found
    }

    async fn subscribe(&self) -> FilesSubscription {
        let mut news =
            self.files.subscribe(&self.key(), PathFilter::default(), None).await.unwrap();
        assert!(matches!(next(&mut news).await, FilesNews::Watching { .. }));
        news
    }
}

async fn next(news: &mut FilesSubscription) -> FilesNews {
    tokio::time::timeout(LIMIT, news.next()).await.expect("news within the limit")
}

/// Returns the paths of all pages, and the warnings of the last.
async fn list(
    files: &Files,
    key: &RootKey,
    query: PageQuery,
) -> Result<(Vec<String>, Vec<FileWarning>), FilesError> {
    let mut query = PageQuery { limit: if query.limit == 0 { 7 } else { query.limit }, ..query };
    let mut paths = Vec::new();
    loop {
        let page = files.page(key, query.clone(), false).await?;
        paths
            .extend(page.files.iter().map(|file| String::from_utf8_lossy(&file.path).into_owned()));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok((paths, page.warnings));
        }
    }
}

fn text(paths: &BTreeSet<Vec<u8>>) -> Vec<String> {
    paths.iter().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
}

#[tokio::test]
async fn ignore_sources_hold_singly_combined_and_nested() {
    let check = async |files: &[(&str, &str)], expected: &[&str]| {
        let workspace = Workspace::with(&settings(&["*.conf"]));
        files.iter().for_each(|(path, text)| workspace.write(path, text));
        let mut found = workspace.list().await;
        found.sort();
        assert_eq!(found, expected, "{files:?}");
    };
    // Nothing but built-in names, of directories only; a file may have such a name.
    let built_in = [
        ("a", ""),
        ("target/b", ""),
        ("x/node_modules/c/d", ""),
        ("x/build", ""),
        (".h/i", ""),
        ("k.conf", ""),
    ];
    check(&built_in, &["a", "x/build"]).await;
    // .gitignore outside of a repository, nested, with negation, anchored, and for directories.
    check(
        &[
            (".gitignore", "*.log\n/top\nonly-dir/\n"),
            ("a.log", ""),
            ("top", ""),
            ("sub/top", ""),
            ("only-dir/x", ""),
            ("sub/only-dir", ""),
            ("sub/.gitignore", "!keep.log\n"),
            ("sub/keep.log", ""),
            ("sub/b.log", ""),
            ("sub/deep/keep.log", ""),
        ],
        &["sub/deep/keep.log", "sub/keep.log", "sub/only-dir", "sub/top"],
    )
    .await;
    // .ollmignore is stronger than .gitignore, also one further up, and brings built-in and configured names back.
    check(
        &[
            (".ollmignore", "!important.log\n!build/\n!k.conf\nsecret\n"),
            (".gitignore", "*.log\n"),
            ("sub/.gitignore", "!secret\nimportant.log\n"),
            ("sub/important.log", ""),
            ("sub/secret", ""),
            ("build/out", ""),
            ("dist/out", ""),
            ("k.conf", ""),
            ("b.log", ""),
        ],
        &["build/out", "k.conf", "sub/important.log"],
    )
    .await;
    // A .gitignore that lists what is wanted does not bring built-in names back, but hidden names that it asks for.
    check(
        &[
            (".gitignore", "*\n!*/\n!*.rs\n!.env\n"),
            ("a.rs", ""),
            ("b.c", ""),
            ("target/c.rs", ""),
            (".env", ""),
            (".x.rs", ""),
        ],
        &[".env", ".x.rs", "a.rs"],
    )
    .await;
    // The exclude file of a repository is weaker than .gitignore; rules end at a repository within.
    check(
        &[
            (".git/HEAD", ""),
            (".git/info/exclude", "*.tmp\n*.bak\n"),
            (".gitignore", "!a.tmp\n*.o\n"),
            ("a.tmp", ""),
            ("b.tmp", ""),
            ("c.o", ""),
            ("nested/.git/HEAD", ""),
            ("nested/c.o", ""),
            ("nested/b.bak", ""),
        ],
        &["a.tmp", "nested/b.bak", "nested/c.o"],
    )
    .await;
}

#[tokio::test]
async fn rules_of_the_repository_above_hold_and_a_worktree_has_its_exclude_file() {
    let workspace = Workspace::new();
    workspace.write(".gitignore", "*.log\n");
    workspace.write("repo/.git/info/exclude", "*.tmp\n");
    workspace.write("repo/.gitignore", "/sub/x\n");
    for path in ["repo/sub/x", "repo/sub/y", "repo/sub/a.tmp", "repo/sub/a.log"] {
        workspace.write(path, "");
    }
    let key = RootKey { path: workspace.path("repo/sub"), ..workspace.key() };
    // What lies above the repository has no say.
    assert_eq!(workspace.list_afresh(&key).await, ["a.log", "y"]);
    let (found, _) = list(&workspace.files, &key, PageQuery::default()).await.unwrap();
    assert_eq!(found.len(), 2);
    // A change above the root is noticed when the root is listed next.
    workspace.write("repo/.gitignore", "*.log\n");
    let (mut found, _) = list(&workspace.files, &key, PageQuery::default()).await.unwrap();
    found.sort();
    assert_eq!(found, ["x", "y"]);

    workspace.write("repo/.git/worktrees/w/commondir", "../..\n");
    workspace.write(
        "w/.git",
        &format!("gitdir: {}\n", workspace.path("repo/.git/worktrees/w").display()),
    );
    workspace.write("w/a.tmp", "");
    workspace.write("w/b", "");
    let key = RootKey { path: workspace.path("w"), ..workspace.key() };
    assert_eq!(workspace.list_afresh(&key).await, ["b"]);
}

#[tokio::test]
async fn malformed_ignore_files_and_special_files_cost_a_warning_only() {
    let workspace = Workspace::new();
    workspace.write(".gitignore", "a{b\n*.log\n\u{feff}\n");
    workspace.write("x.log", "");
    workspace.write("y", "");
    std::fs::create_dir(workspace.path("sub")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, workspace.path("sub/.gitignore"), rustix::fs::Mode::RWXU)
        .unwrap();
    workspace.write("sub/z", "");
    let (mut found, warnings) =
        list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
    found.sort();
    assert_eq!(found, ["sub/z", "y"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].path.ends_with("/.gitignore") && warnings[0].problem.contains("line 1"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn links_are_listed_and_not_followed_and_names_are_bytes() {
    let workspace = Workspace::new();
    workspace.write("d/f", "");
    symlink("..", workspace.path("d/loop")).unwrap();
    symlink("nowhere", workspace.path("broken")).unwrap();
    let odd = workspace.dir.path().join(OsStr::from_bytes(b"odd-\xff"));
    #[expect(clippy::disallowed_methods, reason = "a file of a test")]
    std::fs::write(odd, "12345").unwrap();
    let query = PageQuery { limit: 100, details: true, ..PageQuery::default() };
    // Walked first, so that the order is that of names.
    workspace.list().await;
    let page = workspace.files.page(&workspace.key(), query, true).await.unwrap();
    let found: Vec<(&[u8], EntryKind)> =
        page.files.iter().map(|file| (&file.path[..], file.kind)).collect();
    assert_eq!(
        found,
        [
            (&b"broken"[..], EntryKind::Symlink),
            (b"odd-\xff", EntryKind::File),
            (b"d/f", EntryKind::File),
            (b"d/loop", EntryKind::Symlink),
        ]
    );
    assert_eq!(page.files[1].details.unwrap().size_bytes, 5);
}

#[tokio::test]
async fn unreadable_directory_is_skipped_with_a_warning_until_it_is_readable() {
    let workspace = Workspace::new();
    workspace.write("open/f", "");
    workspace.write("closed/f", "");
    let set_mode = |mode| {
        std::fs::set_permissions(workspace.path("closed"), std::fs::Permissions::from_mode(mode))
            .unwrap();
    };
    set_mode(0);
    if std::fs::read_dir(workspace.path("closed")).is_ok() {
        // The superuser reads everything.
        return;
    }
    let (found, warnings) =
        list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
    assert_eq!(found, ["open/f"]);
    assert_eq!(warnings[0].path, "closed");
    let mut news = workspace.subscribe().await;
    set_mode(0o700);
    let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
    assert_eq!(text(&changes.added), ["closed/f"]);
}

#[tokio::test]
async fn bad_roots_are_errors_that_name_them() {
    let workspace = Workspace::new();
    workspace.write("file", "");
    let root = |path: PathBuf| RootKey { path, ..workspace.key() };
    let check = async |key: RootKey, expected: RootProblem| {
        let error = list(&workspace.files, &key, PageQuery::default()).await.unwrap_err();
        assert_eq!(error, FilesError::Root { path: key.path, problem: expected });
    };
    check(root(workspace.path("file")), RootProblem::NotADirectory).await;
    check(root(workspace.path("missing")), RootProblem::NotFound).await;
    let relative = list(&workspace.files, &root("src".into()), PageQuery::default()).await;
    assert!(matches!(relative, Err(FilesError::NotAbsolute { .. })));
    // The error is not remembered when the directory exists.
    std::fs::create_dir(workspace.path("missing")).unwrap();
    workspace.write("missing/f", "");
    let found = list(&workspace.files, &root(workspace.path("missing")), PageQuery::default())
        .await
        .unwrap()
        .0;
    assert_eq!(found, ["f"]);
    // The whole machine, as deep as is read at once.
    let top = RootKey { path: "/".into(), hidden: true, max_depth: Some(1) };
    list(&workspace.files, &top, PageQuery::default()).await.unwrap();
    let cursor =
        PageQuery { cursor: Some("c29tZXRoaW5n".to_owned()), limit: 1, ..PageQuery::default() };
    let error =
        workspace.files.page(&root(workspace.path("missing")), cursor, false).await.unwrap_err();
    assert_eq!(error, FilesError::Cursor);
}

#[tokio::test]
async fn depth_limits_files() {
    let workspace = Workspace::new();
    ["a", "d/b", "d/e/c"].iter().for_each(|path| workspace.write(path, ""));
    for (depth, expected) in
        [(0, &[][..]), (1, &["a"]), (2, &["a", "d/b"]), (9, &["a", "d/b", "d/e/c"])]
    {
        let key = RootKey { max_depth: Some(depth), ..workspace.key() };
        assert_eq!(workspace.list_afresh(&key).await, expected, "{depth}");
    }
    // A root that is walked whole answers for less of it.
    workspace.list().await;
    let key = RootKey { max_depth: Some(1), ..workspace.key() };
    assert_eq!(list(&workspace.files, &key, PageQuery::default()).await.unwrap().0, ["a"]);
    assert_eq!(workspace.files.status().len(), 1);
}

#[tokio::test]
async fn deep_trees_wide_directories_and_many_roots_are_listed() {
    let workspace = Workspace::new();
    // As deep as a path can be: each level has a name of one letter.
    let mut deep = workspace.dir.path().to_owned();
    let levels = (4_000 - deep.as_os_str().len()) / 2;
    for _ in 0..levels {
        deep.push("d");
        std::fs::create_dir(&deep).unwrap();
    }
    workspace.write("f", "");
    let bottom = deep.join("x");
    #[expect(clippy::disallowed_methods, reason = "a file of a test")]
    std::fs::write(bottom, "").unwrap();
    let (found, warnings) =
        list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
    assert_eq!((found.len(), warnings), (2, Vec::new()));
    assert!(levels > 1_900);

    for at in 0..20_000 {
        workspace.write(&format!("wide/{at}"), "");
    }
    let wide = RootKey { path: workspace.path("wide"), ..workspace.key() };
    let query = PageQuery { limit: 999, ..PageQuery::default() };
    let (found, _) = list(&workspace.files, &wide, query).await.unwrap();
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 20_000);

    let root = |at: usize| {
        workspace.write(&format!("roots/{at}/f"), "");
        let key = RootKey { path: workspace.path(&format!("roots/{at}")), ..workspace.key() };
        let files = workspace.files.clone();
        Tasks::new().spawn(async move { list(&files, &key, PageQuery::default()).await.unwrap().0 })
    };
    let at_once: Vec<_> = (0..50).map(root).collect();
    for found in at_once {
        assert_eq!(found.await.unwrap(), ["f"]);
    }
    for at in 50..2 * MAX_ROOTS {
        assert_eq!(root(at).await.unwrap(), ["f"]);
    }
    assert!(workspace.files.status().len() <= MAX_ROOTS);
}

#[tokio::test]
async fn first_page_comes_before_the_walk_ends_and_later_pages_miss_nothing() {
    let workspace = Workspace::new();
    let expected: BTreeSet<String> = (0..300).map(|at| format!("d{}/e{at}/f", at % 9)).collect();
    expected.iter().for_each(|path| workspace.write(path, ""));
    // The cursor of the first page of a first walk continues in the order of the walk, also after its end.
    let query = PageQuery { limit: 10, ..PageQuery::default() };
    let first = workspace.files.page(&workspace.key(), query, false).await.unwrap();
    let mut found: Vec<String> =
        first.files.iter().map(|file| String::from_utf8(file.path.clone()).unwrap()).collect();
    let rest = PageQuery { limit: 10, cursor: first.next_cursor, ..PageQuery::default() };
    found.extend(list(&workspace.files, &workspace.key(), rest).await.unwrap().0);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    let sorted = workspace.list().await;
    assert_eq!(sorted.len(), expected.len());
    let again = workspace.list().await;
    assert_eq!(sorted, again);
}

#[tokio::test]
async fn changes_are_reported_once_with_what_became_of_them() {
    let workspace = Workspace::new();
    ["a", "b", "dir/one", "dir/two", ".gitignore"]
        .iter()
        .for_each(|path| workspace.write(path, ""));
    let mut news = workspace.subscribe().await;
    let expect = async |news: &mut FilesSubscription, check: &dyn Fn(&ChangeSet) -> bool| {
        let mut all = ChangeSet::default();
        loop {
            let FilesNews::Changed { changes, .. } = next(news).await else { panic!("a change") };
            all.added.extend(changes.added);
            all.modified.extend(changes.modified);
            all.removed.extend(changes.removed);
            all.renamed.extend(changes.renamed);
            if check(&all) {
                return;
            }
        }
    };
    workspace.write("a", "changed");
    expect(&mut news, &|all| text(&all.modified) == ["a"]).await;
    workspace.write("new/deep/file", "");
    expect(&mut news, &|all| text(&all.added) == ["new/deep/file"]).await;
    workspace.rename("a", "c");
    expect(&mut news, &|all| all.renamed.get(&b"c"[..]).is_some_and(|from| from == b"a")).await;
    workspace.rename("dir", "moved");
    expect(&mut news, &|all| {
        all.renamed.len() == 2 && all.renamed[&b"moved/one"[..]] == b"dir/one"
    })
    .await;
    // As an editor saves: a temporary file takes the place of the old one.
    workspace.write("b.tmp~", "new content");
    workspace.rename("b.tmp~", "b");
    expect(&mut news, &|all| text(&all.modified).contains(&"b".to_owned())).await;
    std::fs::remove_dir_all(workspace.path("moved")).unwrap();
    expect(&mut news, &|all| text(&all.removed) == ["moved/one", "moved/two"]).await;
    // A changed ignore file is applied to what it concerns.
    workspace.write(".gitignore", "c\n");
    expect(&mut news, &|all| text(&all.removed) == ["c"]).await;
    workspace.write(".gitignore", "");
    expect(&mut news, &|all| text(&all.added) == ["c"]).await;
    assert_eq!(workspace.list().await, ["b", "c", "new/deep/file"]);
}

#[tokio::test]
async fn since_returns_the_difference_and_nothing_follows_an_ended_subscription() {
    let workspace = Workspace::new();
    workspace.write("a", "");
    let page = PageQuery { limit: 10, ..PageQuery::default() };
    let before =
        workspace.files.page(&workspace.key(), page.clone(), false).await.unwrap().generation;
    let mut news = workspace.subscribe().await;
    workspace.write("b", "");
    assert!(
        matches!(next(&mut news).await, FilesNews::Changed { generation, .. } if generation > before)
    );
    drop(news);
    assert_eq!(workspace.files.status()[0].n_subscribers, 0);
    let changes = workspace.files.known_changes(&workspace.key()).expect("is followed");
    assert_eq!(text(&changes.added), ["b"]);
    let mut later = workspace
        .files
        .subscribe(&workspace.key(), PathFilter::default(), Some(before))
        .await
        .unwrap();
    assert!(
        matches!(next(&mut later).await, FilesNews::Watching { generation, .. } if generation == before)
    );
    assert!(matches!(next(&mut later).await, FilesNews::Changed { .. }));
    let mut lost =
        workspace.files.subscribe(&workspace.key(), PathFilter::default(), Some(1)).await.unwrap();
    assert!(matches!(next(&mut lost).await, FilesNews::Watching { .. }));
    assert!(matches!(next(&mut lost).await, FilesNews::Resync { .. }));
    let other = RootKey { hidden: true, ..workspace.key() };
    assert_eq!(workspace.files.known_changes(&other), None);
}

#[tokio::test]
async fn changes_are_known_of_a_root_with_a_configured_depth() {
    let workspace = Workspace::with(&FilesConfig { max_depth: Some(2), ..settings(&[]) });
    workspace.write("a", "");
    assert_eq!(workspace.list().await, ["a"]);
    let changes = workspace.files.known_changes(&workspace.key()).expect("is followed");
    assert!(changes.is_empty());
}

#[tokio::test]
async fn lost_notices_and_huge_changes_are_a_resync_after_which_the_files_are_right() {
    let workspace = Workspace::new();
    workspace.write("a", "");
    let mut news = workspace.subscribe().await;
    for at in 0..2 * MAX_BATCH {
        workspace.write(&format!("many/{at}"), "");
    }
    while !matches!(next(&mut news).await, FilesNews::Resync { .. }) {}
    let fresh = workspace.list_afresh(&workspace.key()).await;
    let mut found = workspace.list().await;
    while found.len() < fresh.len() {
        next(&mut news).await;
        found = workspace.list().await;
    }
    found.sort();
    assert_eq!(found, fresh);
}

#[tokio::test]
async fn root_that_vanishes_is_reported_and_followed_again_when_it_is_back() {
    let workspace = Workspace::new();
    workspace.write("root/a", "");
    let key = RootKey { path: workspace.path("root"), ..workspace.key() };
    let mut news = workspace.files.subscribe(&key, PathFilter::default(), None).await.unwrap();
    assert!(matches!(next(&mut news).await, FilesNews::Watching { .. }));
    workspace.rename("root", "elsewhere");
    assert!(matches!(
        next(&mut news).await,
        FilesNews::Gone { problem: RootProblem::NotFound, .. }
    ));
    assert!(list(&workspace.files, &key, PageQuery::default()).await.is_err());
    workspace.write("root/b", "");
    while !matches!(next(&mut news).await, FilesNews::Resync { .. }) {}
    assert_eq!(list(&workspace.files, &key, PageQuery::default()).await.unwrap().0, ["b"]);
    // Another directory under the same name is not the same root.
    workspace.rename("root", "old");
    workspace.rename("elsewhere", "root");
    assert_eq!(list(&workspace.files, &key, PageQuery::default()).await.unwrap().0, ["a"]);
}

#[tokio::test]
async fn configured_patterns_apply_to_followed_roots() {
    let workspace = Workspace::new();
    ["a.rs", "b.txt"].iter().for_each(|path| workspace.write(path, ""));
    let mut news = workspace.subscribe().await;
    workspace.files.configure(&settings(&["*.txt"]));
    let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
    assert_eq!(text(&changes.removed), ["b.txt"]);
    assert_eq!(workspace.list().await, ["a.rs"]);
}

#[tokio::test]
async fn polled_root_reports_names_and_contents() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::polling(Arc::new(Clock::system()), &settings(&[]));
    let workspace = Workspace { dir, files };
    workspace.write("a", "");
    let mut news =
        workspace.files.subscribe(&workspace.key(), PathFilter::default(), None).await.unwrap();
    assert!(matches!(next(&mut news).await, FilesNews::Watching { mode: FollowMode::Poll, .. }));
    workspace.write("a", "longer");
    workspace.write("b", "");
    let (mut modified, mut added) = (BTreeSet::new(), BTreeSet::new());
    while modified.is_empty() || added.is_empty() {
        let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
        modified.extend(changes.modified);
        added.extend(changes.added);
    }
    assert_eq!((text(&modified), text(&added)), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

/// A generator of numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c.log", "d.rs", "target", ".h"];
        let depth = 1 + self.below(3);
        let part = |dice: &mut Self| names[usize::try_from(dice.below(6)).unwrap()];
        (0..depth).map(|_| part(self)).collect::<Vec<_>>().join("/")
    }
}

/// Changes a workspace in one way; what is impossible does nothing.
#[expect(clippy::disallowed_methods, reason = "files of a test")]
fn change(workspace: &Workspace, dice: &mut Dice) {
    let path = workspace.path(&dice.path());
    let other = workspace.path(&dice.path());
    let ignored = ["*.log\n", "a/\n", "!c.log\n", "", "b\n!b/d.rs\n"]
        [usize::try_from(dice.below(5)).unwrap()];
    let _possible = match dice.below(9) {
        0 | 1 => std::fs::write(path, "x"),
        2 => std::fs::create_dir_all(path),
        3 => std::fs::create_dir_all(&path).and_then(|()| std::fs::write(path.join("d.rs"), "y")),
        4 => std::fs::rename(path, other),
        5 => std::fs::remove_dir_all(path),
        6 => std::fs::remove_file(path),
        7 => std::fs::write(
            path.join(if dice.below(2) == 0 { ".gitignore" } else { ".ollmignore" }),
            ignored,
        ),
        _ => symlink("a", path),
    };
}

/// The law: after any changes, also during the first walk, the files in memory are those of a fresh walk, and the reported
/// changes lead from the files before to those after.
#[tokio::test]
async fn followed_files_equal_a_fresh_walk_after_any_changes() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let workspace = Workspace::new();
        (0..20).for_each(|_| change(&workspace, &mut dice));
        let mut news = workspace.subscribe().await;
        let mut known: BTreeSet<String> = workspace.list().await.into_iter().collect();
        for round in 0..4 {
            (0..1 + dice.below(30)).for_each(|_| change(&workspace, &mut dice));
            let fresh: BTreeSet<String> =
                workspace.list_afresh(&workspace.key()).await.into_iter().collect();
            let end = Instant::now() + LIMIT;
            while known != fresh {
                let item = tokio::time::timeout_at(end.into(), news.next()).await;
                let item = item.unwrap_or_else(|_| {
                    panic!("seed {seed}, round {round}: {known:?} is not {fresh:?}")
                });
                apply(&mut known, item);
            }
            let listed: BTreeSet<String> = workspace.list().await.into_iter().collect();
            assert_eq!(listed, fresh, "seed {seed}, round {round}");
        }
    }
}

fn apply(known: &mut BTreeSet<String>, item: FilesNews) {
    let FilesNews::Changed { changes, .. } = item else { panic!("{item:?}") };
    for path in text(&changes.removed)
        .into_iter()
        .chain(changes.renamed.values().map(|from| String::from_utf8(from.clone()).unwrap()))
    {
        assert!(known.remove(&path), "{path} was not known");
    }
    for path in text(&changes.added)
        .into_iter()
        .chain(changes.renamed.keys().map(|to| String::from_utf8(to.clone()).unwrap()))
    {
        assert!(known.insert(path.clone()), "{path} was known");
    }
    assert!(text(&changes.modified).iter().all(|path| known.contains(path)));
}
