//! An event as one line for people.

use chrono::TimeZone;
use ollm_protocol::sanitize;
use ollm_protocol::{Event, EventKind};
use serde_json::Value;

use super::sessions::short_id;
use super::style::Style;

/// `10:00:00  0192f0c1-9a3b  message-recorded  #3 role=user tokens=12`
pub(crate) fn line<Z: TimeZone>(event: &Event, zone: &Z) -> String
where
    Z::Offset: std::fmt::Display,
{
    let time = event.at.to_utc().with_timezone(zone).format("%H:%M:%S");
    let session = event.session_id.map_or_else(String::new, |id| short_id(&id));
    let kind = serde_json::to_value(event.kind).ok();
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    let kind = match event.kind {
        EventKind::Lagged | EventKind::Resync => Style::Bad.paint(kind),
        _ => Style::Strong.paint(kind),
    };
    let mut line = format!("{time}  {session:<13}  {kind}");
    if let Some(seq) = event.seq {
        line.push_str(&format!("  #{seq}"));
    }
    if let Value::Object(fields) = &event.data {
        for (at, (name, value)) in fields.iter().enumerate() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let gap = if at == 0 { "  " } else { " " };
            line.push_str(&format!(
                "{gap}{}={}",
                sanitize::one_line(name),
                sanitize::one_line(&text)
            ));
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_clean_line() {
        let event: Event = serde_json::from_value(serde_json::json!({
            "epoch": "e", "eventSeq": 7, "sessionId": "0192f0c1-9a3b-7000-8000-000000000001",
            "seq": 3, "kind": "message-recorded", "at": "2026-01-27T10:00:00Z",
            "data": {"role": "user", "title": "a\u{1b}[2J\nb"}
        }))
        .unwrap();
        let text = anstream::adapter::strip_str(&line(&event, &chrono::Utc)).to_string();
        assert_eq!(text, "10:00:00  0192f0c1-9a3b  message-recorded  #3  role=user title=a b\n");
    }
}
