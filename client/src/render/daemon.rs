//! How the daemon is.

use ollm_protocol::methods::daemon::DaemonStatusResult;
use ollm_protocol::sanitize;

use super::View;
use super::number::{bytes, counted, grouped};
use super::style::Style;
use super::{models, table, time};

/// The status as names and values, then what a person should know.
pub(crate) fn status(status: &DaemonStatusResult, view: &View) -> String {
    let store = &status.store;
    let catalog = &status.catalog;
    let behind = match catalog.behind {
        0 => String::new(),
        behind => format!(", {} still to be indexed", counted(behind, "session")),
    };
    let mut rows = vec![
        (
            "version",
            format!("{} (protocol {})", sanitize::one_line(&status.version), status.protocol),
        ),
        ("process", format!("{}, started {}", status.pid, time::ago(status.started_at, view.now))),
        ("home", sanitize::one_line(&status.home.to_string_lossy())),
        ("socket", sanitize::one_line(&status.socket.to_string_lossy())),
        (
            "sessions",
            format!(
                "{} on disk, {} in memory",
                grouped(store.sessions),
                grouped(store.open_sessions)
            ),
        ),
        (
            "records",
            format!(
                "{} written in {} since the start",
                grouped(store.records_written),
                counted(store.syncs, "sync")
            ),
        ),
        (
            "catalog",
            format!(
                "{}, {}{behind}",
                sanitize::one_line(&catalog.state),
                bytes(catalog.size_bytes)
            ),
        ),
        ("models", models::server(&status.model_server)),
        (
            "clients",
            format!(
                "{}, {}",
                counted(status.connections, "connection"),
                counted(status.subscriptions, "subscription")
            ),
        ),
    ];
    if let Some(memory) = status.memory_bytes {
        rows.push(("memory", bytes(memory)));
    }
    let failed = store.last_failed_write.as_ref().map(|failed| {
        let ago = time::ago(failed.at, view.now);
        // The text names the file.
        format!("{ago}: {}", sanitize::one_line(&failed.error))
    });
    rows.extend(failed.map(|failed| ("failed", failed)));
    let mut text = table::fields(&rows);
    for setting in &status.restart_needed {
        text.push_str(&format!(
            "changed, holds after a restart: {}\n",
            sanitize::one_line(setting)
        ));
    }
    for warning in &status.warnings {
        text.push_str(&format!(
            "{} {}\n",
            Style::Bad.paint("warning:"),
            sanitize::one_line(warning)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    #[test]
    fn a_status_is_a_small_table() {
        let result: DaemonStatusResult = serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "pid": 42, "startedAt": "2026-01-27T09:00:00Z",
            "home": "/home/ada/.ollm", "socket": "/run/user/1000/ollm/ab.sock", "protocol": 1,
            "connections": 1, "subscriptions": 0, "memoryBytes": 9437184,
            "store": {"sessions": 1200, "openSessions": 3, "recordsWritten": 50, "syncs": 20,
                "lastFailedWrite": {"at": "2026-01-27T09:58:00Z", "path": "/x", "error": "cannot append to the log /x: no space"}},
            "catalog": {"state": "ready", "behind": 2, "sizeBytes": 2048},
            "modelServer": {"host": "http://127.0.0.1:11434", "reachable": true, "version": "0.33.0"},
            "warnings": ["disk \u{1b}[5mfull"]
        }))
        .unwrap();
        let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
        assert_eq!(
            strip_str(&status(&result, &view)).to_string(),
            "\
version   0.1.0 (protocol 1)
process   42, started 1 h ago
home      /home/ada/.ollm
socket    /run/user/1000/ollm/ab.sock
sessions  1,200 on disk, 3 in memory
records   50 written in 20 syncs since the start
catalog   ready, 2.0 KiB, 2 sessions still to be indexed
models    http://127.0.0.1:11434, version 0.33.0
clients   1 connection, 0 subscriptions
memory    9.0 MiB
failed    2 min ago: cannot append to the log /x: no space
warning: disk full
"
        );
    }
}
