//! The ids by which a context links calls to their results.
//!
//! A session's calls come from many models and clients, each with ids of its own form, and any model may go on with
//! it. Pure: an id follows from the recorded one alone, so that every build has the same.

/// Characters of an id: what templates of the Mistral family ask for; they refuse every conversation with another.
const LENGTH: usize = 9;
/// Letters and digits without capitals, which no template treats apart.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// An id that every template takes: the recorded one where it is of that form, else nine letters and digits that
/// follow from it.
pub(super) fn linked(recorded: &str) -> String {
    let fits =
        recorded.len() == LENGTH && recorded.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if fits {
        return recorded.to_owned();
    }
    let hash = blake3::hash(recorded.as_bytes());
    let digit = |byte: &u8| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]);
    hash.as_bytes()[..LENGTH].iter().map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_becomes_one_that_every_template_takes() {
        let of_others =
            ["", "call_1", "call_2", "toolu_01A09q90qw90lq917835lq9", "aB3dE6gH", "aB3dE6gHé"];
        let ids: Vec<String> = of_others.iter().map(|id| linked(id)).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(!ids[..at].contains(id), "{id} twice");
            assert_eq!(linked(id), *id, "once more changes nothing");
        }
        assert_eq!(linked("aB3dE6gH9"), "aB3dE6gH9");
        assert_eq!(linked("call_1"), ids[1]);
    }
}
