//! Method names as arguments: any is accepted, since a newer daemon may know more, and the known ones complete.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use ollm_protocol::METHODS;
use ollm_protocol::method::{Method as _, SessionCleanup, SessionClear, SessionDelete};

/// The most names that are offered for a wrong one.
const MAX_OFFERED: usize = 4;

/// Parses a method name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodName;

impl TypedValueParser for MethodName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            METHODS.iter().map(|method| PossibleValue::new(method.name).help(method.summary)),
        ))
    }
}

/// What is never offered: a line that is pasted without much thought must not delete anything.
const DESTRUCTIVE: [&str; 3] = [SessionDelete::NAME, SessionClear::NAME, SessionCleanup::NAME];

/// The known names that somebody may have meant: those of the same noun or with few letters changed.
pub(crate) fn closest(wrong: &str) -> Vec<&'static str> {
    let lower = wrong.to_lowercase();
    let noun = lower.split('.').next().unwrap_or_default();
    let mut near: Vec<(usize, &'static str)> = METHODS
        .iter()
        .map(|method| (distance(&lower, &method.name.to_lowercase()), method.name))
        .filter(|(distance, name)| {
            *distance <= 4
                || name.split('.').next() == Some(noun)
                || name.ends_with(&format!(".{lower}"))
        })
        .filter(|(_, name)| !DESTRUCTIVE.contains(name))
        .collect();
    near.sort_unstable();
    near.into_iter().take(MAX_OFFERED).map(|(_, name)| name).collect()
}

/// Letters to insert, delete or change to make one text the other.
pub(crate) fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, to) in right.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_offers_what_was_meant_first() {
        let check = |wrong, expect| assert_eq!(closest(wrong).first().copied(), expect, "{wrong}");
        check("session.lst", Some("session.list"));
        check("sesion.list", Some("session.list"));
        check("Session.List", Some("session.list"));
        check("daemon.staus", Some("daemon.status"));
        check("build", Some("context.build"));
        check("utterly.different.thing", None);
        assert!(closest("session.zzzzzzzzzz").len() <= MAX_OFFERED);
        for wrong in ["session.delte", "session.claer", "session.cleanp", "delete", "clear"] {
            let offered = closest(wrong);
            assert!(!offered.iter().any(|name| DESTRUCTIVE.contains(name)), "{offered:?}");
        }
    }
}
