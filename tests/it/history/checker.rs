//! The legal order of one session's concurrent calls, found as Wing and Gong describe it.
//!
//! A history is legal if its calls can be put in one order in which each takes effect at an instant between its
//! request and its reply, and in which each reply is what a session that handles one call at a time would answer.
//! A call whose reply was lost with the daemon took effect before the daemon ended, or never.

use std::collections::HashSet;
use std::fmt::Write as _;

/// The number of idempotency keys that the clients share.
pub(super) const KEYS: usize = 6;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Records the message with this number, under a key if there is one. The keys' messages differ by their numbers.
    Record { number: u32, key: Option<usize> },
    /// Sets the title to this number.
    Rename { title: u32 },
    /// Reads the messages and the title.
    Get,
    /// Reads the number of messages and the title from a list of all sessions.
    List,
    /// Deletes the session.
    Delete,
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The position of the message, and the number of messages if this call recorded it.
    Recorded { seq: u64, count: Option<u64> },
    /// The key was used with another message.
    Conflict,
    /// The title was changed. The session in the reply may be newer, so it is not compared.
    Renamed,
    /// The title, and the numbers of all messages in order.
    Content { title: u32, messages: Vec<u32> },
    /// The title and the number of messages.
    Listed { title: u32, count: u64 },
    /// The session was deleted by this call.
    Deleted,
    /// There is no such session.
    Missing,
}

/// One call, with the instants of its request and its reply on the clock of the test.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) client: usize,
    pub(super) request: Request,
    /// `None` if the daemon was killed before it replied.
    pub(super) reply: Option<Reply>,
    pub(super) from: u64,
    /// The instant of the reply, or of the end of the daemon.
    pub(super) to: u64,
}

impl Call {
    fn describe(&self, text: &mut String) {
        let Self { client, request, reply, from, to } = self;
        let _infallible =
            writeln!(text, "  {from} to {to}, client {client}: {request:?} -> {reply:?}");
    }
}

/// A session that handles one call at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    deleted: bool,
    title: u32,
    count: u64,
    /// A digest of the numbers of all messages in order.
    messages: u64,
    last_seq: Option<u64>,
    /// The message of each used key, and its seq if a reply named it.
    keys: [Option<(u32, Option<u64>)>; KEYS],
}

impl Model {
    /// Returns the state after a call, or `None` if the reply is illegal in this state.
    fn after(mut self, request: Request, reply: Option<&Reply>) -> Option<Self> {
        if self.deleted {
            return matches!(reply, None | Some(Reply::Missing)).then_some(self);
        }
        let legal = match (request, reply) {
            (Request::Record { number, key }, reply) => self.record(number, key, reply),
            (Request::Rename { title }, None | Some(Reply::Renamed)) => {
                self.title = title;
                true
            }
            (Request::Get | Request::List, None) => true,
            (Request::Get, Some(Reply::Content { title, messages })) => {
                *title == self.title
                    && messages.len() as u64 == self.count
                    && messages.iter().fold(0, |sum, number| digest(sum, *number)) == self.messages
            }
            (Request::List, Some(Reply::Listed { title, count })) => {
                (*title, *count) == (self.title, self.count)
            }
            (Request::Delete, None | Some(Reply::Deleted)) => {
                self = Self { deleted: true, ..Self::default() };
                true
            }
            _ => false,
        };
        legal.then_some(self)
    }

    fn record(&mut self, number: u32, key: Option<usize>, reply: Option<&Reply>) -> bool {
        if let Some((used_for, known_seq)) = key.and_then(|key| self.keys[key]) {
            return match reply {
                None => true,
                Some(Reply::Conflict) => used_for != number,
                Some(Reply::Recorded { seq, count: None }) => {
                    if let Some(key) = key {
                        self.keys[key] = Some((used_for, Some(*seq)));
                    }
                    used_for == number && known_seq.is_none_or(|known| known == *seq)
                }
                _ => false,
            };
        }
        self.count += 1;
        self.messages = digest(self.messages, number);
        let seq = match reply {
            None => None,
            Some(Reply::Recorded { seq, count: Some(count) }) => {
                if *count != self.count || self.last_seq.is_some_and(|last| last >= *seq) {
                    return false;
                }
                self.last_seq = Some(*seq);
                Some(*seq)
            }
            _ => return false,
        };
        if let Some(key) = key {
            self.keys[key] = Some((number, seq));
        }
        true
    }
}

fn digest(sum: u64, number: u32) -> u64 {
    (sum ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Looks for a legal order of a session's calls.
///
/// **Errors**: there is none; describes the longest legal beginning and the calls that stop it.
pub(super) fn check(mut calls: Vec<Call>) -> Result<(), String> {
    calls.sort_by_key(|call| call.from);
    let mut search = Search {
        calls: &calls,
        placed: vec![false; calls.len()],
        seen: HashSet::new(),
        order: Vec::new(),
        longest: Vec::new(),
    };
    if search.extend(Model::default(), 0, 0) { Ok(()) } else { Err(search.describe()) }
}

/// A depth-first search for an order. It never visits the same state with the same remaining calls twice.
struct Search<'a> {
    /// The calls in the order of their requests.
    calls: &'a [Call],
    placed: Vec<bool>,
    seen: HashSet<(Model, usize, Vec<usize>)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

impl Search<'_> {
    /// Tries each call that may come next. All calls before `first` are decided, and the latest request that has taken
    /// effect came at `latest`.
    fn extend(&mut self, model: Model, first: usize, latest: u64) -> bool {
        if self.order.len() > self.longest.len() {
            self.longest = self.order.clone();
        }
        // A call without a reply that ended before a request which took effect has taken no effect itself.
        let is_decided = |search: &Self, index: usize| {
            let call = &search.calls[index];
            search.placed[index] || call.reply.is_none() && call.to < latest
        };
        let Some(first) = (first..self.calls.len()).find(|index| !is_decided(self, *index)) else {
            return true;
        };
        let mut next = Vec::new();
        let mut decided = Vec::new();
        // A call cannot follow one that was requested after its own reply.
        let mut earliest_reply = u64::MAX;
        for index in first..self.calls.len() {
            let call = &self.calls[index];
            if call.from > earliest_reply {
                break;
            }
            if is_decided(self, index) {
                decided.push(index);
                continue;
            }
            if call.reply.is_some() {
                earliest_reply = earliest_reply.min(call.to);
            }
            next.push(index);
        }
        if earliest_reply == u64::MAX {
            // Only calls without a reply remain.
            return true;
        }
        if !self.seen.insert((model, first, decided)) {
            return false;
        }
        for index in next {
            let call = &self.calls[index];
            let Some(after) = model.after(call.request, call.reply.as_ref()) else { continue };
            self.placed[index] = true;
            self.order.push(index);
            if self.extend(after, first, latest.max(call.from)) {
                return true;
            }
            self.order.pop();
            self.placed[index] = false;
        }
        false
    }

    fn describe(&self) -> String {
        let mut text =
            String::from("the calls have no legal order; the longest legal beginning ends with\n");
        for index in self.longest.iter().rev().take(12).rev() {
            self.calls[*index].describe(&mut text);
        }
        text.push_str("and these calls were under way or came next:\n");
        let rest = (0..self.calls.len()).filter(|index| !self.longest.contains(index));
        for index in rest.take(12) {
            self.calls[index].describe(&mut text);
        }
        text
    }
}

/// Histories that a wrong daemon would leave, and their legal counterparts.
mod tests {
    use super::*;

    fn call(request: Request, reply: Option<Reply>, from: u64, to: u64) -> Call {
        Call { client: 0, request, reply, from, to }
    }

    fn record(number: u32, seq: u64, count: u64, from: u64, to: u64) -> Call {
        let reply = Reply::Recorded { seq, count: Some(count) };
        call(Request::Record { number, key: None }, Some(reply), from, to)
    }

    fn keyed(number: u32, seq: u64, count: Option<u64>, from: u64, to: u64) -> Call {
        let reply = Reply::Recorded { seq, count };
        call(Request::Record { number, key: Some(0) }, Some(reply), from, to)
    }

    fn get(messages: &[u32], from: u64, to: u64) -> Call {
        let reply = Reply::Content { title: 0, messages: messages.to_vec() };
        call(Request::Get, Some(reply), from, to)
    }

    fn lost(number: u32, from: u64, to: u64) -> Call {
        call(Request::Record { number, key: None }, None, from, to)
    }

    #[test]
    fn legal_histories_have_an_order() {
        let histories: [(&str, Vec<Call>); 6] = [
            ("a read beside a write sees it", vec![record(1, 2, 1, 0, 9), get(&[1], 1, 2)]),
            ("a read beside a write does not see it", vec![record(1, 2, 1, 0, 9), get(&[], 1, 2)]),
            (
                "concurrent writes in either order",
                vec![record(1, 3, 2, 0, 9), record(2, 2, 1, 1, 8)],
            ),
            ("a lost call took effect", vec![lost(1, 0, 3), get(&[1], 4, 5)]),
            ("a lost call took no effect", vec![lost(1, 0, 3), get(&[], 4, 5)]),
            ("a retry", vec![keyed(1, 2, Some(1), 0, 1), keyed(1, 2, None, 2, 3), get(&[1], 4, 5)]),
        ];
        for (name, history) in histories {
            assert!(check(history.clone()).is_ok(), "{name}: {:?}", check(history.clone()));
        }
    }

    #[test]
    fn illegal_histories_have_none() {
        let histories: [(&str, Vec<Call>); 9] = [
            ("a lost write", vec![record(1, 2, 1, 0, 1), get(&[], 2, 3)]),
            ("a write that is there twice", vec![record(1, 2, 1, 0, 1), get(&[1, 1], 2, 3)]),
            ("a stale read", vec![record(1, 2, 1, 0, 1), get(&[1], 2, 3), get(&[], 4, 5)]),
            ("an unknown message", vec![get(&[7], 0, 1)]),
            (
                "reordered messages",
                vec![record(1, 2, 1, 0, 1), record(2, 3, 2, 2, 3), get(&[2, 1], 4, 5)],
            ),
            ("a reused seq", vec![record(1, 2, 1, 0, 1), record(2, 2, 2, 2, 3)]),
            ("a retry with another seq", vec![keyed(1, 2, Some(1), 0, 1), keyed(1, 3, None, 2, 3)]),
            (
                "a retry that records again",
                vec![keyed(1, 2, Some(1), 0, 1), keyed(1, 3, Some(2), 2, 3)],
            ),
            (
                "an effect after the end of the daemon",
                vec![lost(1, 0, 3), get(&[], 4, 5), get(&[1], 6, 7)],
            ),
        ];
        for (name, history) in histories {
            assert!(check(history.clone()).is_err(), "{name} is accepted");
        }
    }

    #[test]
    fn deleted_session_stays_deleted() {
        let delete = call(Request::Delete, Some(Reply::Deleted), 0, 1);
        let missing = call(Request::Get, Some(Reply::Missing), 2, 3);
        assert!(check(vec![delete.clone(), missing.clone()]).is_ok());
        assert!(check(vec![delete.clone(), missing, get(&[], 4, 5)]).is_err());
        assert!(
            check(vec![delete.clone(), call(Request::Delete, Some(Reply::Deleted), 2, 3)]).is_err()
        );
        let early = call(Request::Get, Some(Reply::Missing), 0, 1);
        assert!(check(vec![early, record(1, 2, 1, 2, 3)]).is_err());
    }
}
