//! `chat.follow`: a running turn for clients that did not start it.
//!
//! A follower gets the state of the turn and its events from then on. One that falls behind gets the state again, which
//! replaces what it knows. It never slows the turn, and leaving never ends it.

use std::collections::VecDeque;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::methods::chat::{ChatEvent, FollowEvent};
use ollm_protocol::methods::session::SessionIdParams;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::check_exists;
use crate::app::core::Core;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::running::{Holder, RunningTurn};
use crate::app::turn_feed::JoinedFeed;

/// A client's view of a running turn.
pub(crate) struct TurnFollower {
    id: SessionId,
    turn: Holder<RunningTurn>,
    /// The state of the turn, as far as the client has not got it.
    first: VecDeque<FollowEvent>,
    events: mpsc::Receiver<Arc<ChatEvent>>,
    has_ended: bool,
}

/// Joins the running turn of a session (`chat.follow`).
///
/// **Errors**: `NotRunning`, `TooManyFollowers`.
pub(crate) async fn follow(core: &Arc<Core>, params: SessionIdParams) -> Result<TurnFollower> {
    let id = params.session_id;
    let Some(turn) = core.turns.holder(id) else {
        check_exists(core, id).await?;
        return Err(ChatError::NotRunning { id }.into());
    };
    let JoinedFeed { first, events } = join(id, &turn)?;
    Ok(TurnFollower { id, turn, first: first.into(), events, has_ended: false })
}

fn join(id: SessionId, turn: &Holder<RunningTurn>) -> Result<JoinedFeed, ChatError> {
    turn.value.join().ok_or(ChatError::TooManyFollowers { id })
}

impl TurnFollower {
    /// Waits for the next event; `None` after the last one. `as_event` makes the last event of an error.
    ///
    /// **Cancel safety**: no event is lost.
    pub(crate) async fn next(
        &mut self,
        as_event: fn(AppError) -> ChatEvent,
    ) -> Option<FollowEvent> {
        loop {
            if let Some(event) = self.first.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Some(event) => return Some(FollowEvent::Event(Arc::unwrap_or_clone(event))),
                    None => self.join_again(as_event),
                },
                () = self.turn.ended() => match self.events.try_recv() {
                    // It came after the poll for events and before that for the end.
                    Ok(event) => return Some(FollowEvent::Event(Arc::unwrap_or_clone(event))),
                    Err(TryRecvError::Disconnected) => self.join_again(as_event),
                    Err(TryRecvError::Empty) => return Some(self.last(as_event)),
                },
            }
        }
    }

    /// Returns the last event of a turn that has ended. One whose message could not be recorded, or that panicked, has none.
    fn last(&mut self, as_event: fn(AppError) -> ChatEvent) -> FollowEvent {
        self.has_ended = true;
        let last = self.turn.value.feed.last(as_event);
        let none = || as_event(ChatError::NotRunning { id: self.id }.into());
        FollowEvent::Event(last.unwrap_or_else(none))
    }

    /// Takes a place in the feed again, after this follower lost its own.
    fn join_again(&mut self, as_event: fn(AppError) -> ChatEvent) {
        match join(self.id, &self.turn) {
            Ok(JoinedFeed { first, events }) => (self.first, self.events) = (first.into(), events),
            Err(error) => {
                self.has_ended = true;
                self.first.push_back(FollowEvent::Event(as_event(error.into())));
            }
        }
    }
}
