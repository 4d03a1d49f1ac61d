//! Workspaces on the disk: ignore rules, pages, changes, and everything that goes wrong.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;

use super::changes::ChangeSet;
use super::*;
use crate::shutdown::Tasks;

mod following;
mod limits;

/// The limit of every wait; only a failing test reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// A function that is called with a root and a directory of it, before the directory becomes a part of the tree.
#[derive(Clone, Default)]
pub(super) struct ReadHook(Option<Arc<ReadFunction>>);

type ReadFunction = dyn Fn(&Path, &[u8]) + Send + Sync;

impl ReadHook {
    fn new(function: impl Fn(&Path, &[u8]) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(function)))
    }

    pub(super) fn call(&self, root: &Path, dir: &[u8]) {
        if let Some(function) = &self.0 {
            function(root, dir);
        }
    }
}

/// A gate at which walks wait while it is closed.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Returns a hook that waits before a directory is taken, if the function says so.
    fn hook(&self, waits: impl Fn(&Path, &[u8]) -> bool + Send + Sync + 'static) -> ReadHook {
        let gate = self.clone();
        ReadHook::new(move |root, dir| {
            if waits(root, dir) {
                let (is_open, opened) = &*gate.0;
                let mut is_open = is_open.lock();
                while !*is_open {
                    opened.wait(&mut is_open);
                }
            }
        })
    }

    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Opens a gate at the end of a test, also of one that fails, so that no thread waits for ever.
struct OpenAtEnd(Gate);

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

    fn limited(limits: FilesLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::with_limits(Arc::new(Clock::system()), &settings(&[]), limits);
        Self { dir, files }
    }

    fn report(&self) -> RootReport {
        self.files.status().into_iter().find(|report| report.key == self.key()).expect("is in use")
    }

    fn set_mode(&self, path: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(self.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
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
    workspace.write("repo/.git/info/exclude", "x\n");
    assert_eq!(list(&workspace.files, &key, PageQuery::default()).await.unwrap().0, ["a.tmp", "y"]);

    workspace.write("repo/.git/worktrees/w/commondir", "../..\n");
    workspace.write(
        "w/.git",
        &format!("gitdir: {}\n", workspace.path("repo/.git/worktrees/w").display()),
    );
    workspace.write("w/a.tmp", "");
    workspace.write("w/b", "");
    workspace.write("repo/.git/info/exclude", "*.tmp\n");
    let key = RootKey { path: workspace.path("w"), ..workspace.key() };
    assert_eq!(workspace.list_afresh(&key).await, ["b"]);
}

#[tokio::test]
async fn changed_exclude_file_is_applied_to_its_repository_and_worktree() {
    let workspace = Workspace::new();
    workspace.write("repo/.git/info/exclude", "*.tmp\n");
    workspace.write("repo/.git/worktrees/w/commondir", "../..\n");
    let git_dir = workspace.path("repo/.git/worktrees/w");
    workspace.write("w/.git", &format!("gitdir: {}\n", git_dir.display()));
    ["repo/a.tmp", "repo/b", "w/a.tmp", "w/b"].iter().for_each(|path| workspace.write(path, ""));
    assert_eq!(workspace.list().await.len(), 2);
    let mut news = workspace.subscribe().await;
    workspace.write("repo/.git/info/exclude", "b\n");
    let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
    while added.len() < 2 || removed.len() < 2 {
        let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
        added.extend(changes.added);
        removed.extend(changes.removed);
    }
    assert_eq!(text(&added), ["repo/a.tmp", "w/a.tmp"]);
    assert_eq!(text(&removed), ["repo/b", "w/b"]);
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

/// Runs a test in a thread that may not do what only the superuser may.
fn unprivileged(test: impl AsyncFnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let none = rustix::thread::CapabilitySet::empty();
            let none = rustix::thread::CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            };
            // Threads that it starts have the same rights.
            rustix::thread::set_capabilities(None, none).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(test());
        });
        if let Err(failed) = thread.join() {
            std::panic::resume_unwind(failed);
        }
    });
}

#[test]
fn unreadable_directory_is_skipped_with_a_warning_until_it_is_readable() {
    unprivileged(async || {
        let workspace = Workspace::new();
        workspace.write("open/f", "");
        workspace.write("closed/f", "");
        workspace.set_mode("closed", 0);
        let (found, warnings) =
            list(&workspace.files, &workspace.key(), PageQuery::default()).await.unwrap();
        assert_eq!(found, ["open/f"]);
        assert_eq!(warnings[0].path, "closed");
        let mut news = workspace.subscribe().await;
        workspace.set_mode("closed", 0o700);
        let FilesNews::Changed { changes, .. } = next(&mut news).await else { panic!("a change") };
        assert_eq!(text(&changes.added), ["closed/f"]);
    });
}

#[test]
fn root_that_loses_its_rights_is_gone_until_it_has_them_again() {
    unprivileged(async || {
        let workspace = Workspace::new();
        workspace.write("f", "");
        let mut news = workspace.subscribe().await;
        workspace.set_mode("", 0);
        let FilesNews::Gone { problem: RootProblem::Unreadable(_), .. } = next(&mut news).await
        else {
            panic!("the root is gone")
        };
        workspace.set_mode("", 0o700);
        assert!(matches!(next(&mut news).await, FilesNews::Resync { .. }));
        assert_eq!(workspace.list().await, ["f"]);
    });
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
async fn directory_of_200_000_files_is_listed() {
    let workspace = Workspace::new();
    for at in 0..200_000 {
        std::fs::File::create(workspace.path(&at.to_string())).unwrap();
    }
    let query = PageQuery { limit: 9_999, ..PageQuery::default() };
    let (found, _) = list(&workspace.files, &workspace.key(), query).await.unwrap();
    assert_eq!(found.len(), 200_000);
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 200_000);
}

#[tokio::test]
async fn deep_trees_and_many_roots_are_listed() {
    let workspace = Workspace::new();
    // About as deep as a path can be: each level has a name of one letter.
    let mut deep = workspace.dir.path().to_owned();
    let levels = (4_080 - deep.as_os_str().len()) / 2;
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
    assert!(levels >= 2_000);

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
