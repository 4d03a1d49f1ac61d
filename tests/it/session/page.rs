//! The page of a session in a real browser, where there is one.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::harness::start;

/// The names of a browser that can print a page.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path);
    places.flat_map(|dir| BROWSERS.map(|name| dir.join(name))).find(|file| file.is_file())
}

#[test]
fn page_works_in_a_browser_and_loads_nothing() {
    let Some(browser) = browser() else {
        eprintln!("skipped: there is no {}", BROWSERS.join(" or "));
        return;
    };
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "title": "A <b>page</b>" }));
    wire.record(&session, "user", "Is `a` **here**?\n\n<script>document.title = 'run'</script>");
    wire.record(
        &session,
        "assistant",
        "![x](http://127.0.0.1:1/x.png)\n\n```rust\nfn main() {}\n```",
    );
    let result = json!({ "llmContent": "done", "success": true });
    let call = json!({ "id": "1", "name": "write", "args": { "path": "a.rs" }, "result": result });
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
    let page = sandbox.path("page.html");
    std::fs::write(&page, wire.export(&session, "html")).unwrap();
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--dump-dom",
            "--virtual-time-budget=2000",
        ])
        .arg(format!("--user-data-dir={}", sandbox.path("browser").display()))
        .args(["--enable-logging=stderr", "--v=0"])
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(dom.contains("<nav>"), "the script shows the search: {dom}\n{log}");
    assert!(
        dom.contains("<title>A &lt;b&gt;page&lt;/b&gt;</title>"),
        "no script of a message ran: {dom}"
    );
    assert!(dom.contains("<span class=\"k\">fn"), "{dom}");
    assert!(!dom.contains("<img"), "{dom}");
    assert!(!log.contains("Content Security Policy"), "the page keeps its own policy: {log}");
}
