//! A session as updates: what the editor shows of a session that it loads.

use ollm_protocol::Seq;
use ollm_protocol::method::SessionGet;
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};

use super::agent::Agent;
use super::sessions::EditorSession;
use super::updates::ReplayedRecords;
use crate::error::ClientError;

/// Records of a page. A page also ends at a few megabytes.
const PAGE_RECORDS: u32 = 200;

/// Sends the messages and tool calls on the active path, in their order: all, or those after a message.
///
/// Holds one page in memory at a time, and waits for an editor that reads slowly.
pub(super) async fn replay(
    agent: &Agent,
    session: &EditorSession,
    after: Option<Seq>,
) -> Result<(), ClientError> {
    let session_id = session.id();
    let mut replayed = ReplayedRecords::new(&agent.capabilities()).after(after);
    let mut next = Some(after.map_or(0, |seq| seq.next().0.cast_signed()));
    while let Some(from) = next {
        let params = SessionGetParams {
            session_id,
            from: Some(from),
            limit: Some(PAGE_RECORDS),
            branch: BranchFilter::Active,
        };
        let client = agent.daemon.client().await?;
        let page = client.call::<SessionGet>(&params).await?;
        // A page without records would be asked for again and again.
        next = page.next_from.filter(|next| *next > from);
        for record in page.records {
            let record = client.whole_record(session_id, record).await?;
            for update in agent.version().record(replayed.updates(record)) {
                agent.editor.update(&session.name, update).await;
            }
        }
    }
    for update in replayed.finish() {
        agent.editor.update(&session.name, update).await;
    }
    Ok(())
}
