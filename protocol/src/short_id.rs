//! Short forms of ids: the last hexadecimal digits, as few as tell an id from all others.
//!
//! The beginning of a UUID of version 7 is a time, which is the same for all ids of a minute; its end is random.

use std::ops::RangeInclusive;

use uuid::Uuid;

/// The fewest digits of a short form. With fewer, a new session would often make that of another one ambiguous.
const MIN_DIGITS: usize = 4;
/// The digits of a whole id.
const ID_DIGITS: usize = 32;

/// Returns the digits of an id in reverse order, as a number. Ids with the same end are neighbors in its order.
#[must_use]
pub const fn reversed(id: Uuid) -> u128 {
    const LOW: u128 = u128::from_be_bytes([0x0F; 16]);
    let swapped = id.as_u128().swap_bytes();
    ((swapped & LOW) << 4) | ((swapped >> 4) & LOW)
}

/// Returns the short form of an id. Of `others`, only its neighbors in the order of [`reversed`] matter.
#[must_use]
pub fn shorten(id: Uuid, others: impl IntoIterator<Item = Uuid>) -> String {
    let own = reversed(id);
    let shared = |other: Uuid| (reversed(other) ^ own).leading_zeros() as usize / 4;
    let others = others.into_iter().filter(|other| *other != id);
    let digits = others.map(|other| shared(other) + 1).max().unwrap_or(0).max(MIN_DIGITS);
    id.as_simple().to_string().split_off(ID_DIGITS - digits)
}

/// Returns the smallest and the largest number of ids that end with a text, with or without hyphens; `None` if no id can.
#[must_use]
pub fn with_end(end: &str) -> Option<RangeInclusive<u128>> {
    let digits: Option<Vec<u32>> =
        end.chars().rev().filter(|char| *char != '-').map(|char| char.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() <= ID_DIGITS)?;
    let place = |(at, digit): (usize, &u32)| u128::from(*digit) << (124 - 4 * at);
    let least: u128 = digits.iter().enumerate().map(place).sum();
    let free = u128::MAX.checked_shr(4 * u32::try_from(digits.len()).ok()?).unwrap_or(0);
    Some(least..=least | free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Uuid {
        text.parse().expect("a UUID")
    }

    #[test]
    fn short_form_is_the_shortest_end_that_no_other_id_has() {
        let own = id("0192f0c1-9a3b-7000-8000-00000012abcd");
        let check = |others: &[&str], expected: &str| {
            assert_eq!(shorten(own, others.iter().map(|other| id(other))), expected, "{others:?}");
        };
        check(&[], "abcd");
        check(&["0192f0c1-9a3b-7000-8000-00000012abce"], "abcd");
        check(&["0192f0c1-9a3b-7000-8000-000000f3abcd"], "2abcd");
        check(
            &["0192f0c1-9a3b-7000-8000-000000f2abcd", "0192f0c1-9a3b-7000-8000-0000ff12abcd"],
            "012abcd",
        );
        check(&["1192f0c1-9a3b-7000-8000-00000012abcd"], "0192f0c19a3b7000800000000012abcd");
        check(&["0192f0c1-9a3b-7000-8000-00000012abcd"], "abcd");
    }

    #[test]
    fn range_of_an_end_has_the_ids_with_it_and_no_others() {
        let own = id("0192f0c1-9a3b-7000-8000-00000012abcd");
        let check = |end: &str, expected: bool| {
            let found = with_end(end).is_some_and(|range| range.contains(&reversed(own)));
            assert_eq!(found, expected, "{end}");
        };
        for end in ["", "d", "D", "abcd", "2-abcd", "8000-00000012abcd", &own.to_string()] {
            check(end, true);
        }
        for end in [
            "a",
            "abce",
            "1192f0c1-9a3b-7000-8000-00000012abcd",
            "x",
            "00192f0c1-9a3b-7000-8000-00000012abcd",
        ] {
            check(end, false);
        }
    }
}
