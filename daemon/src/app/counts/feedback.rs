//! Learning from what the server says of prompts that could not be counted exactly.

use std::sync::Arc;

use super::{Counts, MAX_TEMPLATES, Variant};
use crate::app::{Core, blocking};
use crate::model::{ChatRequest, ThinkMode};
use crate::tokens::is_plausible;

/// Notes how many tokens the server read of a request; prompts that are counted exactly teach nothing.
///
/// Nothing here is an error of its caller.
pub(in crate::app) async fn learn_from(core: &Arc<Core>, request: &ChatRequest, read: u64) {
    if !teaches(request) {
        return;
    }
    let request = request.clone();
    let learned = blocking(core, move |core| {
        core.counts.learn_from(&request, read);
        Ok(())
    });
    drop(learned.await);
}

/// Whether the server's count is that of one prompt and of nothing else.
fn teaches(request: &ChatRequest) -> bool {
    let has_images = request.messages.iter().any(|message| !message.images.is_empty());
    // A model that thinks first answers in a form in two passes, and the count is that of one of them.
    let has_passes = request.format.is_some() && request.think != Some(ThinkMode::Off);
    !has_images && !has_passes
}

impl Counts {
    fn learn_from(&self, request: &ChatRequest, read: u64) {
        let ChatRequest { model, messages, tools, think, num_ctx, .. } = request;
        let counter = self.load(Some(model), Some(*think), tools).calibrated(None);
        let parts = counter.inexact_parts(messages, tools);
        let counted = counter.count_prompt(messages, tools);
        if parts.is_empty() || !is_plausible(counted, read, *num_ctx, counter.has_vocabulary()) {
            return;
        }
        let key = Variant::new(*think, tools).key();
        self.change(model, |known| {
            // A vocabulary that cannot be read now will be read again: what is learned without it is not for it.
            if known.vocabulary.is_empty() == counter.has_vocabulary() {
                return;
            }
            if known.calibrations.len() >= MAX_TEMPLATES && !known.calibrations.contains_key(&key) {
                known.calibrations.retain(|key, _| key.ends_with('/'));
            }
            let before = known.calibrations.remove(&key).unwrap_or_default();
            known.calibrations.insert(key, Arc::new(before.with(parts, counted, read)));
        });
    }
}
