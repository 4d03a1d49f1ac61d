//! `context.addEntry`, `context.pin` and their kin.

use std::sync::Arc;

use ollm_protocol::method as m;
use ollm_protocol::methods::context as c;

use crate::app::{self, blocking};
use crate::rpc::error::RpcError;
use crate::rpc::{Handles, Registry};

type Answer<T> = Result<T, RpcError>;

pub(super) fn register(registry: &mut Registry) {
    registry.register::<m::ContextAddEntry, _, _>(add_entry);
    registry.register::<m::ContextRemoveEntry, _, _>(remove_entry);
    registry.register::<m::ContextListEntries, _, _>(list_entries);
    registry.register::<m::ContextPin, _, _>(pin);
    registry.register::<m::ContextUnpin, _, _>(unpin);
}

async fn add_entry(
    handles: Arc<Handles>,
    params: c::ContextAddEntryParams,
) -> Answer<c::ContextAddEntryResult> {
    Ok(app::add_entry(&handles.core, params).await?)
}

async fn remove_entry(
    handles: Arc<Handles>,
    params: c::ContextRemoveEntryParams,
) -> Answer<c::ContextRemoveEntryResult> {
    Ok(app::remove_entry(&handles.core, params).await?)
}

async fn list_entries(
    handles: Arc<Handles>,
    params: c::ContextListEntriesParams,
) -> Answer<c::ContextListEntriesResult> {
    Ok(blocking(&handles.core, move |core| app::list_entries(core, &params)).await?)
}

async fn pin(handles: Arc<Handles>, params: c::ContextPinParams) -> Answer<c::ContextPinResult> {
    Ok(app::pin(&handles.core, params).await?)
}

async fn unpin(handles: Arc<Handles>, params: c::ContextPinParams) -> Answer<c::ContextPinResult> {
    Ok(app::unpin(&handles.core, params).await?)
}
