//! Changes on the disk, and what subscribers see of them.

use std::collections::BTreeMap;

use super::super::changes::MAX_BATCH;
use super::super::root::PollReason;
use super::*;

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
async fn contents_that_change_beside_names_are_reported() {
    let workspace = Workspace::new();
    let paths =
        ["gen/a", "gen/sub/b", "src/lib", "src2/lib", "src2/more", "file", "dir/x", "other"];
    paths.iter().for_each(|path| workspace.write(path, "old"));
    let mut news = workspace.subscribe().await;
    // A directory is made anew, and another one takes the place of one.
    std::fs::remove_dir_all(workspace.path("gen")).unwrap();
    ["gen/a", "gen/sub/b"].iter().for_each(|path| workspace.write(path, "new"));
    workspace.rename("src", "src-old");
    workspace.rename("src2", "src");
    // Files are written after and before a move, and in a directory that was moved.
    workspace.rename("file", "moved");
    workspace.write("moved", "new");
    workspace.rename("dir", "moved-dir");
    workspace.write("moved-dir/x", "new");
    workspace.write("other", "new");
    workspace.rename("other", "other-moved");
    workspace.write("end", "");
    // The notices may come in several batches, whose sum is known.
    let changes = loop {
        let changes = workspace.files.known_changes(&workspace.key()).expect("is followed");
        if changes.added.contains(&b"end"[..]) {
            break changes;
        }
        next(&mut news).await;
    };
    let modified = text(&changes.modified);
    for path in ["gen/a", "gen/sub/b", "src/lib", "moved", "moved-dir/x", "other-moved"] {
        assert!(modified.iter().any(|found| found == path), "{path} is not in {changes:?}");
    }
    for (to, from) in [
        ("moved", "file"),
        ("moved-dir/x", "dir/x"),
        ("other-moved", "other"),
        ("src/more", "src2/more"),
    ] {
        assert_eq!(
            changes.renamed.get(to.as_bytes()).map(Vec::as_slice),
            Some(from.as_bytes()),
            "{changes:?}"
        );
    }
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
    let workspace = Workspace::limited(FilesLimits { max_watch: 0, ..FilesLimits::default() });
    workspace.write("a", "");
    let mut news =
        workspace.files.subscribe(&workspace.key(), PathFilter::default(), None).await.unwrap();
    let mode = FollowMode::Poll(PollReason::NoSupport);
    assert!(
        matches!(next(&mut news).await, FilesNews::Watching { mode: found, .. } if found == mode)
    );
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

/// Changes a workspace in one way; what is impossible does nothing. `content` is new in each call.
#[expect(clippy::disallowed_methods, reason = "files of a test")]
fn change(workspace: &Workspace, dice: &mut Dice, content: &str) {
    let path = workspace.path(&dice.path());
    let other = workspace.path(&dice.path());
    let ignored = ["*.log\n", "a/\n", "!c.log\n", "", "b\n!b/d.rs\n"]
        [usize::try_from(dice.below(5)).unwrap()];
    let _possible = match dice.below(11) {
        0 | 1 => std::fs::write(path, content),
        2 => std::fs::create_dir_all(path),
        3 => {
            std::fs::create_dir_all(&path).and_then(|()| std::fs::write(path.join("d.rs"), content))
        }
        4 => std::fs::rename(path, other),
        5 => std::fs::remove_dir_all(path),
        6 => std::fs::remove_file(path),
        7 => std::fs::write(
            path.join(if dice.below(2) == 0 { ".gitignore" } else { ".ollmignore" }),
            ignored,
        ),
        // A new directory in the place of an old one, with files of the same names.
        8 => std::fs::remove_dir_all(&path)
            .and_then(|()| std::fs::create_dir(&path))
            .and_then(|()| std::fs::write(path.join("d.rs"), content)),
        9 => std::fs::rename(path, &other).and_then(|()| {
            let written = if other.is_dir() { other.join("d.rs") } else { other };
            std::fs::write(written, content)
        }),
        _ => symlink(content, path),
    };
}

/// Returns the content of a file or the target of a link; `None` if it is gone.
fn content(workspace: &Workspace, path: &str) -> Option<String> {
    let path = workspace.path(path);
    let target = std::fs::read_link(&path).map(|target| target.to_string_lossy().into_owned());
    target.or_else(|_| std::fs::read_to_string(&path)).ok()
}

/// The law: after any changes, also during the first walk, the files in memory are those of a fresh walk, and the reported
/// changes lead from the files before to those after, and name each file whose content changed.
#[tokio::test]
async fn followed_files_equal_a_fresh_walk_after_any_changes() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let workspace = Workspace::new();
        let mut n_changes = 0;
        let mut change_some = |dice: &mut Dice, number: u64| {
            for _ in 0..number {
                n_changes += 1;
                change(&workspace, dice, &n_changes.to_string());
            }
        };
        change_some(&mut dice, 20);
        let mut news = workspace.subscribe().await;
        let with_contents = |paths: Vec<String>| -> BTreeMap<String, Option<String>> {
            paths.into_iter().map(|path| (path.clone(), content(&workspace, &path))).collect()
        };
        let mut known = with_contents(workspace.list().await);
        for round in 0..4 {
            let number = 1 + dice.below(30);
            change_some(&mut dice, number);
            let fresh = with_contents(workspace.list_afresh(&workspace.key()).await);
            let end = Instant::now() + LIMIT;
            while known != fresh {
                let item = tokio::time::timeout_at(end.into(), news.next()).await;
                let item = item.unwrap_or_else(|_| {
                    panic!("seed {seed}, round {round}: {known:?} is not {fresh:?}")
                });
                apply(&workspace, &mut known, item);
            }
            let listed: BTreeSet<String> = workspace.list().await.into_iter().collect();
            assert!(listed.iter().eq(fresh.keys()), "seed {seed}, round {round}: {listed:?}");
        }
    }
}

fn apply(workspace: &Workspace, known: &mut BTreeMap<String, Option<String>>, item: FilesNews) {
    let FilesNews::Changed { changes, .. } = item else { panic!("{item:?}") };
    let shared = |a: &BTreeSet<Vec<u8>>, b: &BTreeSet<Vec<u8>>| !a.is_disjoint(b);
    let ChangeSet { added, modified, removed, .. } = &changes;
    assert!(!shared(added, modified) && !shared(added, removed) && !shared(modified, removed));
    for path in text(removed) {
        assert!(known.remove(&path).is_some(), "{path} was not known: {changes:?}");
    }
    let name = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let moved: Vec<_> = changes
        .renamed
        .iter()
        .map(|(to, from)| (name(to), known.remove(&name(from)).expect("a known file is renamed")))
        .collect();
    for (to, content) in moved {
        assert_eq!(known.insert(to, content), None, "{changes:?}");
    }
    for path in text(added) {
        assert_eq!(known.insert(path.clone(), content(workspace, &path)), None, "{path} was known");
    }
    for path in text(modified) {
        let file = known.get_mut(&path).expect("a known file is modified");
        *file = content(workspace, &path);
    }
}
