//! Recalled messages as a prompt shows them.
//!
//! **Invariant**: the text of a message is data: defused, and never a line of its own that begins a piece.

use ollm_protocol::Timestamp;

use crate::catalog::RecalledMessage;
use crate::context::defuse_all;

/// The length of a date, such as `2026-01-27`.
const DATE_CHARS: usize = 10;
/// The first line of a block, which stands before the message that it is for.
const INTRODUCTION: &str = "Earlier messages that may help with the message below:";

/// The block of recalled messages for a turn, in the order in which they were said: of two that differ, the later one holds.
#[derive(Clone, Default)]
pub(super) struct RecalledBlock(Vec<BlockPiece>);

#[derive(Clone)]
struct BlockPiece {
    at: Timestamp,
    /// The line of its date, which pieces share.
    heading: String,
    text: String,
}

impl RecalledBlock {
    /// Returns the block with another message. `is_of_other`: whether it is of another conversation.
    pub(super) fn with(&self, message: &RecalledMessage, is_of_other: bool) -> Self {
        let piece = BlockPiece {
            at: message.at,
            heading: format!("[{}]", origin_of(message, is_of_other)),
            text: said(message).replace('\n', "\n  "),
        };
        let mut pieces = self.0.clone();
        pieces.insert(pieces.partition_point(|one| one.at <= piece.at), piece);
        Self(pieces)
    }

    /// Returns the text of the block.
    pub(super) fn text(&self) -> String {
        let mut text = INTRODUCTION.to_owned();
        let mut heading = "";
        for piece in &self.0 {
            if piece.heading != heading {
                heading = &piece.heading;
                text = format!("{text}\n{heading}");
            }
            text = format!("{text}\n- {}", piece.text);
        }
        text
    }
}

/// Returns a recalled message with its number, if it is of the conversation that asks, its date and its author.
pub(in crate::app) fn numbered_piece(message: &RecalledMessage, is_of_other: bool) -> String {
    let number = match is_of_other {
        true => String::new(),
        false => format!("#{}, ", message.seq),
    };
    let border = if message.has_neighbor { '\n' } else { ' ' };
    format!("[{number}{}]{border}{}", origin_of(message, is_of_other), said(message))
}

/// Returns the date of a message, and whether it is of another conversation.
fn origin_of(message: &RecalledMessage, is_of_other: bool) -> String {
    let place = if is_of_other { ", another conversation" } else { "" };
    let date = message.at.to_string();
    format!("{}{place}", date.get(..DATE_CHARS).unwrap_or_default())
}

/// Returns the excerpt of a message behind its role. An excerpt with a neighbor names the roles itself.
fn said(message: &RecalledMessage) -> String {
    let excerpt = defuse_all(&message.excerpt);
    match message.has_neighbor {
        true => excerpt,
        false => format!("{}: {excerpt}", message.role.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::Role;
    use ollm_protocol::{Seq, SessionId};

    use super::*;

    fn message(at: &str, excerpt: &str, has_neighbor: bool) -> RecalledMessage {
        RecalledMessage {
            session_id: SessionId::from_uuid(uuid::Uuid::from_u128(1)),
            title: String::new(),
            seq: Seq(3),
            role: Role::User,
            at: at.parse().expect("a time"),
            excerpt: excerpt.to_owned(),
            has_neighbor,
            alone: None,
            score: 1.0,
            matched: Vec::new(),
            says_more: true,
        }
    }

    #[test]
    fn block_has_its_messages_in_the_order_of_time_and_each_date_once() {
        let late = message("2026-11-24T10:00:00Z", "Now it is 51877.", false);
        let other = message("2026-11-24T09:00:00Z", "[2026-01-01]\n- 1", false);
        let pair = message("2026-11-22T09:00:00Z", "user: Which port?\nassistant: 48213.", true);
        let first = message("2026-11-22T08:00:00Z", "Staging moves.", false);
        let block = RecalledBlock::default()
            .with(&late, false)
            .with(&pair, false)
            .with(&other, true)
            .with(&first, false);
        let expect = "Earlier messages that may help with the message below:
[2026-11-22]
- user: Staging moves.
- user: Which port?
  assistant: 48213.
[2026-11-24, another conversation]
- user: [2026-01-01]
  - 1
[2026-11-24]
- user: Now it is 51877.";
        assert_eq!(block.text(), expect);
    }

    #[test]
    fn piece_with_a_number_names_its_date_and_its_author() {
        let at = "2026-11-22T08:00:00Z";
        let check = |message: &RecalledMessage, is_of_other, expect: &str| {
            assert_eq!(numbered_piece(message, is_of_other), expect);
        };
        check(&message(at, "It moves.", false), false, "[#3, 2026-11-22] user: It moves.");
        let pair = message(at, "user: Why?\nassistant: So.", true);
        check(&pair, false, "[#3, 2026-11-22]\nuser: Why?\nassistant: So.");
        let other = "[2026-11-22, another conversation] user: It moves.";
        check(&message(at, "It moves.", false), true, other);
    }
}
