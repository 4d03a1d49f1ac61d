//! What a server says of its models. Values only.

use super::KvGeometry;

/// A model in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedModel {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents: the same digest is the same model, template and vocabulary.
    pub digest: String,
    /// Its size on disk.
    pub size_bytes: u64,
    /// When it was last changed, as the server writes it.
    pub modified_at: Option<String>,
    /// The architecture's family.
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    pub parameter_size: Option<String>,
    /// How its weights are packed.
    pub quantization: Option<String>,
    /// The longest window it was trained for; newer servers only.
    pub trained: Option<u32>,
    /// What it can do; newer servers only.
    pub capabilities: Vec<String>,
    /// The machine that really answers, for models that are elsewhere.
    pub remote_host: Option<String>,
}

/// Everything that matters of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelInfo {
    /// Its name as it was asked for.
    pub model: String,
    /// Names its contents; absent where the server's list does not have the name.
    pub digest: Option<String>,
    /// The architecture's name, which is the prefix of its numbers.
    pub architecture: Option<String>,
    /// The architecture's family.
    pub family: Option<String>,
    /// The number of its parameters, as the server writes it.
    pub parameter_size: Option<String>,
    /// The number of its parameters.
    pub parameter_count: Option<u64>,
    /// How its weights are packed.
    pub quantization: Option<String>,
    /// The longest window it was trained for.
    pub trained: Option<u32>,
    /// What it can do; empty where the server does not say.
    pub capabilities: Vec<String>,
    /// How its messages become a prompt.
    pub template: Option<String>,
    /// The renderer that is used in the place of the template.
    pub renderer: Option<String>,
    /// The system message that the server puts before conversations that have none.
    pub system: Option<String>,
    /// Messages that the server puts before every conversation.
    pub messages: Vec<HiddenMessage>,
    /// What its memory of a conversation costs, where the server says enough.
    pub geometry: Option<KvGeometry>,
    /// The file of its weights, as the server names it; that may lie on another machine.
    pub weights: Option<String>,
    /// The machine that really answers, for models that are elsewhere.
    pub remote_host: Option<String>,
}

impl ModelInfo {
    /// Whether the model can do something; `None` where the server does not say what it can.
    pub(crate) fn can(&self, capability: &str) -> Option<bool> {
        (!self.capabilities.is_empty())
            .then(|| self.capabilities.iter().any(|known| known == capability))
    }
}

/// A message that belongs to the model itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HiddenMessage {
    /// Who speaks.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A model in the server's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunningModel {
    /// Its name with its tag.
    pub model: String,
    /// Names its contents.
    pub digest: String,
    /// Memory that it takes, its window included.
    pub size_bytes: u64,
    /// Of that, memory of the graphics processor.
    pub size_vram_bytes: u64,
    /// The window that it was loaded with; newer servers only.
    pub effective: Option<u32>,
    /// When it leaves memory unless it is used, as the server writes it.
    pub expires_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_only_where_the_server_lists_them() {
        let mut info = ModelInfo::default();
        assert_eq!(info.can("tools"), None);
        info.capabilities = vec!["completion".to_owned(), "tools".to_owned()];
        assert_eq!(info.can("tools"), Some(true));
        assert_eq!(info.can("thinking"), Some(false));
    }
}
