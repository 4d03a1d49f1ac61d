//! `session.*`: each handler is one call of the domain.

use std::sync::Arc;

use ollm_protocol::method as m;
use ollm_protocol::methods::session as s;

use crate::app::{self, blocking};
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

type Answer<T> = Result<T, RpcError>;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<m::SessionCreate, _, _>(create);
    registry.register::<m::SessionRecord, _, _>(record);
    registry.register::<m::SessionRecordToolCall, _, _>(record_tool_call);
    registry.register::<m::SessionRecordCustom, _, _>(record_custom);
    registry.register::<m::SessionGet, _, _>(get);
    registry.register::<m::SessionList, _, _>(list);
    registry.register::<m::SessionSearch, _, _>(search);
    registry.register::<m::SessionResume, _, _>(resume);
    registry.register::<m::SessionCurrent, _, _>(current);
    registry.register::<m::SessionSetCurrent, _, _>(set_current);
    registry.register::<m::SessionSetMode, _, _>(set_mode);
    registry.register::<m::SessionClose, _, _>(close);
    registry.register::<m::SessionUpdate, _, _>(update);
    registry.register::<m::SessionArchive, _, _>(archive);
    registry.register::<m::SessionUnarchive, _, _>(unarchive);
    registry.register::<m::SessionDelete, _, _>(delete);
    registry.register::<m::SessionClear, _, _>(clear);
    registry.register::<m::SessionCleanup, _, _>(cleanup);
    registry.register::<m::SessionExport, _, _>(export);
    registry.register::<m::SessionImport, _, _>(import);
    registry.register::<m::SessionSave, _, _>(save);
}

async fn create(handles: Arc<Handles>, params: s::SessionCreateParams) -> Answer<s::SessionResult> {
    let session = blocking(&handles.core, |core| app::create(core, params)).await?;
    Ok(s::SessionResult { session })
}

async fn record(
    handles: Arc<Handles>,
    params: s::SessionRecordParams,
) -> Answer<s::SessionRecordResult> {
    Ok(app::record(&handles.core, params).await?)
}

async fn record_tool_call(
    handles: Arc<Handles>,
    params: s::SessionRecordToolCallParams,
) -> Answer<s::SessionRecordResult> {
    Ok(app::record_tool_call(&handles.core, params).await?)
}

async fn record_custom(
    handles: Arc<Handles>,
    params: s::SessionRecordCustomParams,
) -> Answer<s::SessionRecordResult> {
    Ok(app::record_custom(&handles.core, params).await?)
}

async fn get(handles: Arc<Handles>, params: s::SessionGetParams) -> Answer<s::SessionGetResult> {
    Ok(blocking(&handles.core, |core| app::get(core, params)).await?)
}

async fn list(handles: Arc<Handles>, params: s::SessionListParams) -> Answer<s::SessionListResult> {
    Ok(blocking(&handles.core, |core| app::list(core, params)).await?)
}

async fn search(
    handles: Arc<Handles>,
    params: s::SessionSearchParams,
) -> Answer<s::SessionSearchResult> {
    Ok(blocking(&handles.core, |core| app::search(core, params)).await?)
}

async fn resume(
    handles: Arc<Handles>,
    params: s::SessionResumeParams,
) -> Answer<s::SessionGetResult> {
    Ok(blocking(&handles.core, |core| app::resume(core, params)).await?)
}

async fn current(
    handles: Arc<Handles>,
    params: s::SessionCurrentParams,
) -> Answer<s::SessionCurrentResult> {
    Ok(blocking(&handles.core, move |core| app::current(core, &params)).await?)
}

async fn set_current(
    handles: Arc<Handles>,
    params: s::SessionSetCurrentParams,
) -> Answer<s::SessionCurrentResult> {
    Ok(blocking(&handles.core, move |core| app::set_current(core, &params)).await?)
}

async fn set_mode(
    handles: Arc<Handles>,
    params: s::SessionSetModeParams,
) -> Answer<s::SessionResult> {
    Ok(s::SessionResult { session: app::set_mode(&handles.core, params).await? })
}

async fn close(handles: Arc<Handles>, params: s::SessionIdParams) -> Answer<s::SessionResult> {
    Ok(s::SessionResult { session: app::close(&handles.core, params.session_id).await? })
}

async fn update(handles: Arc<Handles>, params: s::SessionUpdateParams) -> Answer<s::SessionResult> {
    Ok(s::SessionResult { session: app::update(&handles.core, params).await? })
}

async fn archive(handles: Arc<Handles>, params: s::SessionIdParams) -> Answer<s::SessionResult> {
    Ok(s::SessionResult { session: app::archive(&handles.core, params.session_id).await? })
}

async fn unarchive(handles: Arc<Handles>, params: s::SessionIdParams) -> Answer<s::SessionResult> {
    Ok(s::SessionResult { session: app::unarchive(&handles.core, params.session_id).await? })
}

async fn delete(
    handles: Arc<Handles>,
    params: s::SessionIdParams,
) -> Answer<s::SessionDeleteResult> {
    Ok(blocking(&handles.core, move |core| app::delete(core, params.session_id)).await?)
}

async fn clear(
    handles: Arc<Handles>,
    params: s::SessionClearParams,
) -> Answer<s::SessionCleanupResult> {
    Ok(blocking(&handles.core, move |core| app::clear(core, &params)).await?)
}

async fn cleanup(
    handles: Arc<Handles>,
    params: s::SessionCleanupParams,
) -> Answer<s::SessionCleanupResult> {
    Ok(blocking(&handles.core, move |core| app::cleanup(core, &params)).await?)
}

async fn export(
    handles: Arc<Handles>,
    params: s::SessionExportParams,
) -> Answer<s::SessionExportResult> {
    Ok(blocking(&handles.core, move |core| app::export(core, &params)).await?)
}

async fn import(
    handles: Arc<Handles>,
    params: s::SessionImportParams,
) -> Answer<s::SessionImportResult> {
    Ok(blocking(&handles.core, |core| app::import(core, params)).await?)
}

async fn save(handles: Arc<Handles>, params: s::SessionIdParams) -> Answer<s::SessionSaveResult> {
    Ok(blocking(&handles.core, move |core| app::save(core, params.session_id)).await?)
}
