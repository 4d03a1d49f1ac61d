//! Which white space at the ends of a message's text a template drops. Pure.

use ollm_protocol::content::Role;
use serde::{Deserialize, Serialize};

/// What is dropped of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Trim {
    /// Nothing.
    #[default]
    None,
    /// White space at both ends.
    Both,
    /// White space at the end.
    End,
    /// Line breaks at the beginning.
    FirstBreaks,
}

impl Trim {
    /// What a template may do, the usual first.
    pub(super) const ALL: [Self; 4] = [Self::None, Self::Both, Self::End, Self::FirstBreaks];

    /// What is left of a text.
    pub(super) fn apply(self, text: &str) -> &str {
        match self {
            Self::None => text,
            Self::Both => text.trim(),
            Self::End => text.trim_end(),
            Self::FirstBreaks => text.trim_start_matches('\n'),
        }
    }
}

/// What is dropped of each role's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trims {
    pub(super) system: Trim,
    pub(super) user: Trim,
    pub(super) assistant: Trim,
    pub(super) tool: Trim,
}

impl Trims {
    /// What a template may do to conversations without tools.
    pub(super) fn plain() -> impl Iterator<Item = Self> {
        let each = |make: fn(Self, Trim) -> Self| {
            move |trims: Self| Trim::ALL.into_iter().map(move |trim| make(trims, trim))
        };
        Trim::ALL
            .into_iter()
            .map(|user| Self { user, ..Self::default() })
            .flat_map(each(|trims, assistant| Self { assistant, ..trims }))
            .flat_map(each(|trims, system| Self { system, ..trims }))
    }

    pub(super) const fn of(self, role: Role) -> Trim {
        match role {
            Role::System => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
            Role::Tool => self.tool,
        }
    }
}
