//! Sessions as resources: `ollm://session/ID`, which a person chooses from the list of a client.

use std::sync::Arc;

use ollm_protocol::method::{SessionGet, SessionList};
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams, SessionListParams};
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};

use super::history::block_of;
use super::link::DaemonLink;
use super::quotation::{Block, Draft, minute};
use crate::command_error::CommandResult;

const PREFIX: &str = "ollm://session/";
const MIME: &str = "text/plain";
/// The resources of a page.
const PAGE: u32 = 50;
/// The newest records that a resource shows, and its tokens: what a person wants in a prompt at once. `read` has the rest.
const RECORDS: u32 = 60;
const TOKENS: u64 = 8000;

/// Lists sessions, the most recently active first.
pub(super) async fn list(
    link: &DaemonLink,
    cursor: Option<String>,
) -> CommandResult<ListResourcesResult> {
    let params = SessionListParams { limit: Some(PAGE), cursor, ..SessionListParams::default() };
    let page = link.call::<SessionList>(&params).await?;
    let mut resources = Vec::new();
    for session in page.data {
        if !link.may_show(&session).await? {
            continue;
        }
        let name = session.short_id.unwrap_or_else(|| session.session_id.to_string());
        let project = session.project_name.map_or(String::new(), |name| format!(" in {name}"));
        let (n, at) = (session.message_count, minute(session.last_activity));
        let resource = Resource::new(format!("{PREFIX}{}", session.session_id), name)
            .with_title(session.title)
            .with_description(format!("{n} messages{project}, last active {at}"))
            .with_mime_type(MIME);
        resources.push(resource);
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = page.next_cursor;
    Ok(listed)
}

/// Returns the form of the addresses.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{PREFIX}{{id}}"), "session")
        .with_title("An earlier conversation")
        .with_description("The newest messages of a session.")
        .with_mime_type(MIME);
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// Returns the session of an address.
pub(super) fn session_of(uri: &str) -> Option<&str> {
    uri.strip_prefix(PREFIX).filter(|id| !id.is_empty() && !id.contains('/'))
}

/// Reads the newest messages of a session.
pub(super) async fn read(
    link: &Arc<DaemonLink>,
    uri: &str,
    session: &str,
) -> CommandResult<ReadResourceResult> {
    let id = link.session(session).await?;
    let params = SessionGetParams {
        session_id: id,
        from: Some(-i64::from(RECORDS)),
        limit: Some(RECORDS),
        branch: BranchFilter::Active,
    };
    let page = link.call::<SessionGet>(&params).await?;
    link.require_shown(&page.session).await?;
    let newest = page.records.len();
    let mut blocks: Vec<Block> = Vec::new();
    for (at, record) in page.records.into_iter().enumerate() {
        if let Some(block) = block_of(link, id, &page.session, record).await? {
            blocks.push(Block { rank: newest - at, ..block });
        }
    }
    let remark = blocks.is_empty().then(|| "The session is empty.".to_owned());
    let text = Draft { blocks, remark, next_cursor: None }.fit_text(link, TOKENS).await?;
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri)]))
}
