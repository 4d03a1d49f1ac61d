//! Numbers, sizes and times as people write and read them. Pure: the present time is an argument.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, TimeZone, Utc};
use indicatif::HumanCount;
use ollm_protocol::Timestamp;

/// The instant that a date without a time means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DayBoundary {
    /// The first instant of the day, for `--since`.
    Start,
    /// The first instant of the next day, for `--until`, so that the day is included.
    End,
}

/// Returns a number with thousands separators: `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Returns a number with its noun, which gets an `s` unless the number is one: `1 message`, `12 messages`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Returns a size in binary units: `1.5 MiB`.
#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
pub(crate) fn bytes(number: u64) -> String {
    let mut value = number as f64;
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { counted(number, "byte") } else { format!("{value:.1} {unit}") }
}

/// Parses an age (`3d`, `12h`, `30m`, `45s`, `2w`), a date in the time zone of `now`, or an RFC 3339 time.
pub(crate) fn parse_time<Z: TimeZone>(
    text: &str,
    boundary: DayBoundary,
    now: &DateTime<Z>,
) -> Option<Timestamp> {
    let instant = text.parse().ok();
    instant.or_else(|| parse_date(text, boundary, now)).or_else(|| parse_age(text, now))
}

fn parse_date<Z: TimeZone>(
    text: &str,
    boundary: DayBoundary,
    now: &DateTime<Z>,
) -> Option<Timestamp> {
    let date: NaiveDate = text.parse().ok()?;
    let date = match boundary {
        DayBoundary::Start => date,
        DayBoundary::End => date.checked_add_days(Days::new(1))?,
    };
    // A day on which summer time begins at midnight has no 00:00 and begins at 01:00.
    let midnight = date.and_time(NaiveTime::MIN);
    let zone = now.timezone();
    let first = zone
        .from_local_datetime(&midnight)
        .earliest()
        .or_else(|| zone.from_local_datetime(&(midnight + TimeDelta::hours(1))).earliest())?;
    Some(Timestamp::from_unix_ms(first.timestamp_millis()))
}

fn parse_age<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Option<Timestamp> {
    let unit = text.chars().last()?;
    let number: i64 = text[..text.len() - unit.len_utf8()].parse().ok().filter(|age| *age >= 0)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let age_ms = number.checked_mul(seconds)?.checked_mul(1000)?;
    Some(Timestamp::from_unix_ms(now.timestamp_millis().checked_sub(age_ms)?))
}

/// Returns an age: `just now`, `5 min ago`, `3 h ago`, `2 d ago`; after a month the date.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = (now.unix_ms() - at.unix_ms()) / 1000;
    match seconds {
        ..60 => "just now".to_owned(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        86_400..2_592_000 => format!("{} d ago", seconds / 86_400),
        _ => at.to_utc().format("%Y-%m-%d").to_string(),
    }
}

/// Returns the present time.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_ms(Utc::now().timestamp_millis())
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn numbers_have_separators_and_units() {
        let check = |number, expect: &str| assert_eq!(grouped(number), expect);
        check(0, "0");
        check(999, "999");
        check(1000, "1,000");
        check(1_234_567, "1,234,567");
        assert_eq!(counted(1, "message"), "1 message");
        assert_eq!(counted(1200, "message"), "1,200 messages");
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(bytes(1023), "1,023 bytes");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn times_are_parsed_in_every_form() {
        let zone = FixedOffset::east_opt(2 * 3600).unwrap();
        let now = zone.with_ymd_and_hms(2026, 1, 27, 12, 0, 0).unwrap();
        let check = |text: &str, boundary, expect: &str| {
            assert_eq!(parse_time(text, boundary, &now).unwrap().to_string(), expect, "{text}");
        };
        check("2026-01-26T10:00:00Z", DayBoundary::Start, "2026-01-26T10:00:00.000Z");
        check("2026-01-26", DayBoundary::Start, "2026-01-25T22:00:00.000Z");
        check("2026-01-26", DayBoundary::End, "2026-01-26T22:00:00.000Z");
        check("3d", DayBoundary::Start, "2026-01-24T10:00:00.000Z");
        check("12h", DayBoundary::End, "2026-01-26T22:00:00.000Z");
        check("30m", DayBoundary::Start, "2026-01-27T09:30:00.000Z");
        check("2w", DayBoundary::Start, "2026-01-13T10:00:00.000Z");
        for wrong in
            ["", "d", "-3d", "3", "3x", "yesterday", "2026-13-01", "9999999999999999w", "日"]
        {
            assert!(parse_time(wrong, DayBoundary::Start, &now).is_none(), "{wrong}");
        }
    }

    #[test]
    fn age_uses_the_largest_unit() {
        let now = Timestamp::from_unix_ms(10_000_000_000);
        let check = |seconds: i64, expect: &str| {
            assert_eq!(ago(Timestamp::from_unix_ms(now.unix_ms() - seconds * 1000), now), expect);
        };
        check(-5, "just now");
        check(59, "just now");
        check(60, "1 min ago");
        check(3 * 3600 + 5, "3 h ago");
        check(86_400, "1 d ago");
        check(40 * 86_400, "1970-03-17");
    }
}
