//! The division of a window between prompt and answer, and of the prompt between its parts. Arithmetic only.

use ollm_protocol::content::ContextBudget;

use super::input::ContextError;

/// The division of a window.
///
/// **Units**: tokens.
/// **Invariant**: the parts together never exceed `prompt_limit`, which leaves the reserve for the answer free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub num_ctx: u32,
    pub prompt_limit: u64,
    /// The system message.
    pub system: u64,
    /// The tool definitions.
    pub tools: u64,
    pub checkpoints: u64,
}

impl Budget {
    /// Divides a window, without checkpoints.
    ///
    /// **Errors**: `Overflow` if the system message and the tools alone exceed the limit.
    pub(super) fn new(
        num_ctx: u32,
        answer_reserve: u32,
        system: u64,
        tools: u64,
    ) -> Result<Self, ContextError> {
        let prompt_limit = prompt_limit(num_ctx, answer_reserve);
        let fixed = system.saturating_add(tools);
        if fixed > prompt_limit {
            return Err(ContextError::Overflow {
                needed: fixed,
                available: prompt_limit,
                what: "system message and tools",
            });
        }
        Ok(Self { num_ctx, prompt_limit, system, tools, checkpoints: 0 })
    }

    /// Returns the tokens that the conversation may have.
    pub(super) const fn available(&self) -> u64 {
        self.prompt_limit - self.system - self.tools - self.checkpoints
    }

    /// Returns the tokens of the longest answer: prompt and answer leave one token of the window free.
    pub(super) fn answer_limit(&self, context_tokens: u64) -> u32 {
        let free = u64::from(self.num_ctx).saturating_sub(1).saturating_sub(context_tokens);
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    /// Returns the division as replies show it.
    #[expect(clippy::cast_precision_loss, reason = "token counts lie far below 2^52")]
    pub(super) fn report(&self, conversation: u64) -> ContextBudget {
        let available = self.available();
        let percent = if available == 0 {
            0.0
        } else {
            (conversation as f64 * 10_000.0 / available as f64).round() / 100.0
        };
        ContextBudget {
            context_size: u64::from(self.num_ctx),
            prompt_limit: self.prompt_limit,
            system_prompt_tokens: self.system,
            tool_definition_tokens: self.tools,
            checkpoint_tokens: self.checkpoints,
            reserve_for_response: u64::from(self.num_ctx) - self.prompt_limit,
            available_tokens: available,
            conversation_tokens: conversation,
            utilization_percent: percent,
        }
    }
}

/// Returns the size at which a conversation is compacted: a share of the tokens that it may have.
pub(crate) fn trigger(available: u64, threshold: f64) -> u64 {
    share(available, threshold)
}

/// Returns a share of some tokens.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "token counts lie far below 2^52, and a share lies between 0 and 1"
)]
pub(crate) fn share(tokens: u64, share: f64) -> u64 {
    (tokens as f64 * share.clamp(0.0, 1.0)) as u64
}

/// Returns the tokens that a prompt may have: 85 % of the window, or less if the user reserves more for answers, but
/// at least 60 %.
pub(crate) fn prompt_limit(num_ctx: u32, answer_reserve: u32) -> u64 {
    let window = u64::from(num_ctx);
    let default_reserve = window - (window * 85 + 50) / 100;
    let configured_reserve = u64::from(answer_reserve).min(window * 40 / 100);
    window - default_reserve.max(configured_reserve)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn window_is_divided_as_documented() {
        // (window, reserve, (system, tools, checkpoints)) -> (limit, available)
        let check = |size, reserve, (system, tools, checkpoints), expect: (u64, u64)| {
            let budget = Budget::new(size, reserve, system, tools).expect("fits");
            let budget = Budget { checkpoints, ..budget };
            let got = (budget.prompt_limit, budget.available());
            assert_eq!(got, expect, "{size} {reserve} {system} {tools} {checkpoints}");
        };
        check(8192, 0, (0, 0, 0), (6963, 6963));
        check(8192, 0, (500, 0, 0), (6963, 6463));
        check(8192, 0, (500, 0, 2000), (6963, 4463));
        check(8192, 2000, (500, 100, 0), (6192, 5592));
        check(8192, 9000, (0, 0, 0), (4916, 4916));
        check(512, 0, (0, 0, 0), (435, 435));
        check(2048, 0, (0, 0, 0), (1741, 1741));
        check(4096, 0, (0, 0, 0), (3482, 3482));
        check(262_144, 0, (0, 0, 0), (222_822, 222_822));
    }

    #[test]
    fn trigger_is_a_share_of_the_available_tokens() {
        assert_eq!(trigger(6463, 0.8), 5170);
        assert_eq!(trigger(4463, 0.8), 3570);
        assert_eq!(trigger(6963, 0.8), 5570);
    }

    #[test]
    fn impossible_budgets_are_refused_with_numbers() {
        let refused = Budget::new(8192, 0, 7000, 10);
        assert!(matches!(
            refused,
            Err(ContextError::Overflow { needed: 7010, available: 6963, .. })
        ));
    }

    proptest! {
        #[test]
        fn prompt_and_answer_stay_within_the_window(
            size in 1_u32..=262_144, reserve in any::<u32>(), share in 0..=100_u64,
        ) {
            let budget = Budget::new(size, reserve, 0, 0).expect("fits");
            let used = budget.available() * share / 100;
            prop_assert!(used <= budget.prompt_limit);
            prop_assert!(used + u64::from(budget.answer_limit(used)) < u64::from(size));
            prop_assert!(budget.prompt_limit * 10 >= u64::from(size) * 6);
        }
    }
}
