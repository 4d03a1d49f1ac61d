//! Code fences in the text of a model, as Markdown has them.

/// The fewest marks of a fence.
const MIN_MARKS: usize = 3;

/// The marks that begin a code fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFence {
    mark: char,
    length: usize,
}

impl CodeFence {
    /// Returns the fence that a line begins, if it begins one. `line`: without space around it.
    #[must_use]
    pub fn opened_by(line: &str) -> Option<Self> {
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let rest = line.trim_start_matches(mark);
        let length = line.len() - rest.len();
        // Further backticks on the line make it inline code.
        let is_inline = mark == '`' && rest.contains('`');
        (length >= MIN_MARKS && !is_inline).then_some(Self { mark, length })
    }

    /// Returns whether a line ends the fence: it has at least as many of the same marks, and nothing else. `line`: without
    /// space around it.
    #[must_use]
    pub fn is_closed_by(self, line: &str) -> bool {
        line.len() >= self.length && line.chars().all(|char| char == self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_is_closed_by_as_many_of_its_own_marks() {
        let check = |open: &str, close: &str, expect: Option<bool>| {
            let closed = CodeFence::opened_by(open).map(|fence| fence.is_closed_by(close));
            assert_eq!(closed, expect, "{open} {close}");
        };
        check("```rust", "```", Some(true));
        check("```", "`````", Some(true));
        check("````", "```", Some(false));
        check("```", "~~~", Some(false));
        check("~~~", "~~~ rust", Some(false));
        check("~~~", "", Some(false));
        check("```f()```", "```", None);
        check("``", "``", None);
        check("text", "", None);
    }
}
