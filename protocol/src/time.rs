//! Instants, in the one form that the wire, the log and all documents use.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, TimeZone, Utc};

use crate::ids::json_string;

/// 0001-01-01T00:00:00.000Z in milliseconds since 1970.
const FIRST_MS: i64 = -62_135_596_800_000;
/// 9999-12-31T23:59:59.999Z in milliseconds since 1970.
const LAST_MS: i64 = 253_402_300_799_999;

/// An instant in UTC with millisecond precision, written as RFC 3339 (`2026-01-27T10:00:00.000Z`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(DateTime<Utc>);

/// A text is not an instant in RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a time must be in RFC 3339, for example 2026-01-27T10:00:00Z")]
pub struct InvalidTimestamp;

impl Timestamp {
    /// Returns the instant `ms` milliseconds after 1970, clamped to the years 1 to 9999, which RFC 3339 can express.
    #[must_use]
    pub fn from_unix_ms(ms: i64) -> Self {
        let ms = ms.clamp(FIRST_MS, LAST_MS);
        Self(Utc.timestamp_millis_opt(ms).single().unwrap_or_default())
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub fn unix_ms(self) -> i64 {
        self.0.timestamp_millis()
    }

    /// Returns the instant as chrono's type.
    #[must_use]
    pub fn to_utc(self) -> DateTime<Utc> {
        self.0
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let at = DateTime::parse_from_rfc3339(text).map_err(|_| InvalidTimestamp)?;
        let ms = at.timestamp_millis();
        // With its offset applied, an instant can lie outside of the years that can be written.
        if (FIRST_MS..=LAST_MS).contains(&ms) {
            Ok(Self::from_unix_ms(ms))
        } else {
            Err(InvalidTimestamp)
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

json_string!(Timestamp, "date-time");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_offset_is_read_and_utc_milliseconds_are_written() {
        let at: Timestamp = "2026-01-27T11:00:00.123456+01:00".parse().expect("valid");
        assert_eq!(at.to_string(), "2026-01-27T10:00:00.123Z");
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert!("9999-12-31T23:59:59-01:00".parse::<Timestamp>().is_err());
        for ms in [i64::MIN, i64::MAX] {
            let at = Timestamp::from_unix_ms(ms);
            assert_eq!(at.to_string().parse(), Ok(at));
        }
    }
}
