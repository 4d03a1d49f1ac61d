//! Times as people write and read them. Pure: the present instant is an argument.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, TimeZone, Utc};
use ollm_protocol::Timestamp;
use ollm_protocol::sanitize;

/// Says how a time may be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no time; write 3d, 12h, 30m, 2026-01-27 or 2026-01-27T10:00:00Z")]
pub(crate) struct InvalidTime {
    text: String,
}

/// Which end of a day a date without a time stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DayEnd {
    /// Its first instant: `--since`.
    First,
    /// The first instant of the next day, so that the day itself is included: `--until`.
    Next,
}

/// Reads `3d`, `12h`, `30m`, `45s`, `2w` (ago), a date in the zone of `now`, or an RFC 3339 instant.
pub(crate) fn parse<Z: TimeZone>(
    text: &str,
    day_end: DayEnd,
    now: &DateTime<Z>,
) -> Result<Timestamp, InvalidTime> {
    let found = text
        .parse::<Timestamp>()
        .ok()
        .or_else(|| parse_date(text, day_end, now))
        .or_else(|| parse_age(text, now));
    found.ok_or_else(|| InvalidTime { text: sanitize::one_line(text) })
}

fn parse_date<Z: TimeZone>(text: &str, day_end: DayEnd, now: &DateTime<Z>) -> Option<Timestamp> {
    let date: NaiveDate = text.parse().ok()?;
    let date = match day_end {
        DayEnd::First => date,
        DayEnd::Next => date.checked_add_days(Days::new(1))?,
    };
    // Where summer time begins at midnight the day has no 00:00; it begins at 01:00 then.
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

/// How long ago: `just now`, `5 min ago`, `3 h ago`, `2 d ago`; after a month the date.
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

/// Date and minute in the zone of the reader.
pub(crate) fn minute<Z: TimeZone>(at: Timestamp, zone: &Z) -> String
where
    Z::Offset: std::fmt::Display,
{
    at.to_utc().with_timezone(zone).format("%Y-%m-%d %H:%M").to_string()
}

/// The present instant.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_ms(Utc::now().timestamp_millis())
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        let zone = FixedOffset::east_opt(2 * 3600).unwrap();
        let now = zone.with_ymd_and_hms(2026, 1, 27, 12, 0, 0).unwrap();
        let check = |text: &str, day_end, expect: &str| {
            assert_eq!(parse(text, day_end, &now).unwrap().to_string(), expect, "{text}");
        };
        check("2026-01-26T10:00:00Z", DayEnd::First, "2026-01-26T10:00:00.000Z");
        check("2026-01-26", DayEnd::First, "2026-01-25T22:00:00.000Z");
        check("2026-01-26", DayEnd::Next, "2026-01-26T22:00:00.000Z");
        check("3d", DayEnd::First, "2026-01-24T10:00:00.000Z");
        check("12h", DayEnd::Next, "2026-01-26T22:00:00.000Z");
        check("30m", DayEnd::First, "2026-01-27T09:30:00.000Z");
        check("2w", DayEnd::First, "2026-01-13T10:00:00.000Z");
        for wrong in
            ["", "d", "-3d", "3", "3x", "yesterday", "2026-13-01", "9999999999999999w", "日"]
        {
            assert!(parse(wrong, DayEnd::First, &now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ages_are_short() {
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
