//! (to be written)
use std::path::*;
use std::time::Duration;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub(crate) struct ConfigError;
pub(crate) struct FlagOverrides {
    pub log_level: Option<String>,
}
#[derive(Clone, Copy)]
pub(crate) enum OnLimit {
    Archive,
    Delete,
}
pub(crate) struct SessionsConfig {
    pub data_dir: Option<PathBuf>,
    pub max_sessions: u32,
    pub on_limit: OnLimit,
    pub max_sessions_per_project: u32,
    pub auto_archive_after_days: u32,
    pub auto_save: bool,
    pub document_idle: Duration,
}
pub(crate) struct ContextConfig {
    pub size: Option<u32>,
    pub answer_reserve: Option<u32>,
    pub user_share: f64,
}
pub(crate) struct ModesConfig;
impl ModesConfig {
    pub(crate) fn text(&self, _: &str) -> Option<&str> {
        None
    }
}
pub(crate) struct LogConfig {
    pub level: String,
    pub keep_days: u32,
}
pub(crate) struct Config {
    pub sessions: SessionsConfig,
    pub context: ContextConfig,
    pub modes: ModesConfig,
    pub log: LogConfig,
}
impl Config {
    pub(crate) fn load(
        _: &Path,
        _: Option<&Path>,
        _: impl Iterator<Item = (String, String)>,
        _: &FlagOverrides,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        Ok((Config{sessions:SessionsConfig{data_dir:None,max_sessions:100,on_limit:OnLimit::Archive,max_sessions_per_project:50,auto_archive_after_days:30,auto_save:true,document_idle:Duration::from_secs(2)},context:ContextConfig{size:None,answer_reserve:None,user_share:0.5},modes:ModesConfig,log:LogConfig{level:"info".into(),keep_days:7}},vec![]))    }
    pub(crate) fn diff(&self, _: &Self) -> (Vec<String>, Vec<String>) {
        (vec![], vec![])
    }
    pub(crate) fn to_json(&self) -> String {
        String::new()
    }
    pub(crate) fn to_yaml(&self) -> String {
        String::new()
    }
}
