//! `ollmctl goal`: what a session works towards.

use ollm_protocol::content::{Goal, GoalStatus};
use ollm_protocol::method as m;
use ollm_protocol::methods::goal as g;
use ollm_protocol::{GoalId, Method, SessionId};

use super::which::session_of;
use super::{CommandError, Cx};
use crate::cli::{CheckpointArgs, GoalArgs, GoalCommand};
use crate::render::goal;

/// Goals that are asked for at once.
const PAGE: u32 = 100;

pub(super) fn run(args: GoalArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let GoalArgs { session, goal, command } = args;
    let session_id = session_of(session.as_deref(), "goal list", cx)?;
    let command = command.unwrap_or(GoalCommand::List);
    if let GoalCommand::Create(args) = command {
        let params = g::GoalCreateParams {
            session_id,
            description: args.text,
            priority: args.priority.into(),
            checkpoints: args.steps,
            key: None,
        };
        return change::<m::GoalCreate>(&params, cx);
    }
    if let (GoalCommand::List, None) = (&command, goal) {
        return list(session_id, cx);
    }
    let all = goals(session_id, cx)?;
    let of = match goal {
        Some(number) => Some(numbered(&all, number, "goal")?),
        None => all.iter().find(|goal| goal.status == GoalStatus::Active),
    };
    act(session_id, command, of, cx)
}

/// What is done with one goal; the daemon says it where none is active.
fn act(
    session_id: SessionId,
    command: GoalCommand,
    of: Option<&Goal>,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let (goal_id, key) = (of.map(|goal| goal.id), None);
    let decision = |number: usize| {
        numbered(of.map_or(&[], |goal| &goal.decisions), number, "decision").map(|one| one.id)
    };
    match command {
        GoalCommand::Create(_) => Ok(()),
        GoalCommand::List => match of {
            Some(goal) if cx.json() => cx.print_json(goal),
            Some(goal) => cx.print_text(&goal::whole(goal)),
            None => Ok(()),
        },
        GoalCommand::Update(args) => change::<m::GoalUpdate>(
            &g::GoalUpdateParams {
                session_id,
                goal_id,
                description: args.text,
                priority: args.priority.map(Into::into),
                status: args.status.map(Into::into),
                key,
            },
            cx,
        ),
        GoalCommand::Checkpoint(args) => checkpoint(session_id, of, args, cx),
        GoalCommand::Decide(args) => {
            let supersedes = args.instead_of.map(decision).transpose()?;
            let (description, kind, locked) = (args.text, args.kind, args.locked);
            let params = g::GoalAddDecisionParams {
                session_id,
                goal_id,
                description,
                kind,
                locked,
                supersedes,
                key,
            };
            change::<m::GoalAddDecision>(&params, cx)
        }
        GoalCommand::Lock(args) => {
            let decision_id = decision(args.decision)?;
            let params = g::GoalLockDecisionParams { session_id, goal_id, decision_id, key };
            change::<m::GoalLockDecision>(&params, cx)
        }
        GoalCommand::Artifact(args) => {
            let (path, action, kind) = (args.path, args.action.into(), args.kind);
            let params = g::GoalAddArtifactParams { session_id, goal_id, path, action, kind, key };
            change::<m::GoalAddArtifact>(&params, cx)
        }
        GoalCommand::Next(args) => {
            let next_steps = args.steps;
            let params = g::GoalSetNextStepsParams { session_id, goal_id, next_steps, key };
            change::<m::GoalSetNextSteps>(&params, cx)
        }
    }
}

fn checkpoint(
    session_id: SessionId,
    of: Option<&Goal>,
    args: CheckpointArgs,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let (goal_id, key) = (of.map(|goal| goal.id), None);
    let steps = of.map_or(&[][..], |goal| &goal.checkpoints);
    let same = |words: &str| words.trim().to_lowercase() == args.step.trim().to_lowercase();
    let known = match args.step.trim().parse() {
        Ok(number) => Some(numbered(steps, number, "step")?),
        Err(_) => steps.iter().find(|step| same(&step.description)),
    };
    match (known, args.state) {
        (Some(step), Some(state)) => {
            let params = g::GoalUpdateCheckpointParams {
                session_id,
                goal_id,
                checkpoint_id: step.id,
                description: None,
                status: Some(state.into()),
                key,
            };
            change::<m::GoalUpdateCheckpoint>(&params, cx)
        }
        (Some(_), None) => Err(CommandError::usage(
            "the goal has this step; say how far it is",
            "ollmctl goal checkpoint N completed",
        )),
        (None, state) => {
            let status = state.map(Into::into).unwrap_or_default();
            let description = args.step;
            let params =
                g::GoalAddCheckpointParams { session_id, goal_id, description, status, key };
            change::<m::GoalAddCheckpoint>(&params, cx)
        }
    }
}

/// Changes a goal and shows what became of it.
fn change<M: Method<Result = g::GoalResult>>(
    params: &M::Params,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let reply = cx.call::<M>(params)?;
    cx.print(&reply, |changed, _| goal::whole(&changed.goal))
}

fn list(session_id: SessionId, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    if cx.json() {
        let params = page_params(session_id, None);
        let reply = cx.call::<m::GoalList>(&params)?;
        return cx.print_raw_json(&reply.raw);
    }
    let all = goals(session_id, cx)?;
    cx.print_text(&goal::list(&all))
}

/// Every goal of a session, oldest first.
pub(super) fn goals(session_id: SessionId, cx: &mut Cx<'_>) -> Result<Vec<Goal>, CommandError> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = cx.call::<m::GoalList>(&page_params(session_id, cursor))?.value;
        all.extend(page.data);
        cursor = page.next_cursor;
        if cursor.is_none() {
            all.reverse();
            return Ok(all);
        }
    }
}

fn page_params(session_id: SessionId, cursor: Option<GoalId>) -> g::GoalListParams {
    g::GoalListParams { session_id, status: None, limit: Some(PAGE), cursor }
}

/// One of a list by the number that is shown before it.
fn numbered<'a, T>(all: &'a [T], number: usize, what: &str) -> Result<&'a T, CommandError> {
    let found = number.checked_sub(1).and_then(|at| all.get(at));
    found.ok_or_else(|| CommandError::Gone {
        message: format!("there is no {what} {number}"),
        hint: Some("ollmctl goal list".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_from_one() {
        assert_eq!(*numbered(&["a", "b"], 2, "step").unwrap(), "b");
        for number in [0, 3] {
            let error = numbered(&["a", "b"], number, "step").unwrap_err();
            assert!(error.to_text().contains(&format!("no step {number}")), "{}", error.to_text());
        }
    }
}
