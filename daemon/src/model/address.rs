//! The names of models: the server that a name means, and what the model is called there.
//!
//! A name is an alias of the configuration, `NAME@SERVER`, or a name at the server [`DEFAULT_SERVER`]. PROTOCOL.md,
//! "Names of models", describes it. Names of models contain slashes and colons, and servers are configured, so the text
//! behind the last `@` is always a server. An alias that several servers have means any of them, and `ALIAS@SERVER` one.
//!
//! **Invariant**: two names of the same model have the same key, and the keys of models of different servers differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::info::canonical_name;

/// The server of names that name none.
pub(crate) const DEFAULT_SERVER: &str = "ollama";

/// A model of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelAddress {
    pub(crate) server: String,
    /// The name that the server knows.
    pub(crate) name: String,
}

/// A name ends with a server that is not configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownServer {
    pub(crate) server: String,
    /// The names of the servers that are.
    pub(crate) known: Vec<String>,
}

/// The names of all servers and aliases; clones share them.
#[derive(Clone, Default)]
pub(crate) struct ModelNames(Arc<RwLock<NameTable>>);

#[derive(Default)]
struct NameTable {
    servers: BTreeSet<String>,
    /// The models of each alias, in the order of the configuration; at least one.
    aliases: BTreeMap<String, Vec<ModelAddress>>,
    /// The servers whose names have tags, as those of Ollama do; any text is a name of its own at the others.
    tagged: BTreeSet<String>,
}

impl NameTable {
    /// Returns the text that is the same for all names of a model.
    fn key(&self, address: &ModelAddress) -> String {
        let ModelAddress { server, name } = address;
        if server != DEFAULT_SERVER && !self.tagged.contains(server) {
            return address.to_string();
        }
        ModelAddress { server: server.clone(), name: canonical_name(name) }.to_string()
    }

    /// Returns the model of an alias at a server.
    fn aliased(&self, alias: &str, server: &str) -> Option<&ModelAddress> {
        self.aliases.get(alias)?.iter().find(|address| address.server == server)
    }
}

/// Returns the name that means a model, or an alias, at one server.
pub(crate) fn at_server(model: &str, server: &str) -> String {
    format!("{model}@{server}")
}

/// Prints the name without an alias.
impl fmt::Display for ModelAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)?;
        if self.server == DEFAULT_SERVER { Ok(()) } else { write!(out, "@{}", self.server) }
    }
}

impl ModelNames {
    /// Replaces all servers and aliases; the aliases are in the order of the configuration. What is known of the names at
    /// the `unchanged` servers stays.
    pub(super) fn set(
        &self,
        servers: BTreeSet<String>,
        aliases: impl Iterator<Item = (String, ModelAddress)>,
        unchanged: &BTreeSet<String>,
    ) {
        let mut table = self.0.write();
        let tagged = table.tagged.intersection(unchanged).cloned().collect();
        *table = NameTable { servers, tagged, ..NameTable::default() };
        for (alias, address) in aliases {
            table.aliases.entry(alias).or_default().push(address);
        }
    }

    /// Notes that the names of a server have tags.
    pub(super) fn note_tags(&self, server: &str) {
        if !self.0.read().tagged.contains(server) {
            self.0.write().tagged.insert(server.to_owned());
        }
    }

    /// Returns the server of a model; that of its name if it is not configured.
    pub(crate) fn server_of(&self, model: &str) -> String {
        self.resolve(model).map_or_else(|unknown| unknown.server, |address| address.server)
    }

    /// Returns the servers of an alias that several have, in the order of the configuration; none for other names.
    pub(crate) fn equal_servers(&self, model: &str) -> Vec<String> {
        let table = self.0.read();
        let group = table.aliases.get(model).filter(|group| group.len() > 1);
        group.into_iter().flatten().map(|address| address.server.clone()).collect()
    }

    /// Returns the alias of a name `ALIAS@SERVER` if several servers have it, else the name: equal servers are one model.
    pub(crate) fn without_server<'m>(&self, model: &'m str) -> &'m str {
        let table = self.0.read();
        let alias = model.rsplit_once('@').filter(|(alias, server)| {
            let is_group = table.aliases.get(*alias).is_some_and(|group| group.len() > 1);
            is_group && table.aliased(alias, server).is_some()
        });
        alias.map_or(model, |(alias, _)| alias)
    }

    /// Returns the model that a name means: of equal servers, the first.
    pub(crate) fn resolve(&self, model: &str) -> Result<ModelAddress, UnknownServer> {
        let table = self.0.read();
        if let Some(address) = table.aliases.get(model).and_then(|group| group.first()) {
            return Ok(address.clone());
        }
        let address = |server: &str, name: &str| {
            let own = || ModelAddress { server: server.to_owned(), name: name.to_owned() };
            table.aliased(name, server).cloned().unwrap_or_else(own)
        };
        match model.rsplit_once('@').filter(|(name, server)| !name.is_empty() && !server.is_empty())
        {
            None => Ok(address(DEFAULT_SERVER, model)),
            Some((name, server)) if server == DEFAULT_SERVER || table.servers.contains(server) => {
                Ok(address(server, name))
            }
            Some((_, server)) => Err(UnknownServer {
                server: server.to_owned(),
                known: table.servers.iter().cloned().collect(),
            }),
        }
    }

    /// Returns the text that is the same for all names of a model. A name that means none is its own key.
    pub(crate) fn key(&self, model: &str) -> String {
        let address = self.resolve(model);
        address.map_or_else(|_| model.to_owned(), |address| self.0.read().key(&address))
    }

    /// Returns the aliases with what they mean.
    pub(crate) fn aliases(&self) -> Vec<(String, ModelAddress)> {
        let table = self.0.read();
        let groups = table.aliases.iter();
        let each = groups.flat_map(|(alias, group)| group.iter().map(move |one| (alias, one)));
        each.map(|(alias, address)| (alias.clone(), address.clone())).collect()
    }

    /// Returns the shortest name of a model of a server.
    pub(crate) fn shown(&self, address: &ModelAddress) -> String {
        let (table, name) = (self.0.read(), address.to_string());
        let key = table.key(address);
        let mut aliases = table.aliases.iter();
        match aliases.find(|(_, group)| group.iter().any(|known| table.key(known) == key)) {
            Some((alias, _)) => alias.clone(),
            // The alias of another model hides the name alone.
            None if table.aliases.contains_key(&name) => format!("{name}@{}", address.server),
            None => name,
        }
    }
}

/// The names at one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnNames {
    /// The name of the server in the configuration.
    pub(crate) server: String,
    /// The names at the server by alias.
    pub(crate) aliases: BTreeMap<String, String>,
}

impl OwnNames {
    /// Returns the name at the server of a model that is named in any way.
    pub(super) fn of<'a>(&'a self, model: &'a str) -> &'a str {
        if let Some(name) = self.aliases.get(model) {
            return name;
        }
        match model.rsplit_once('@') {
            Some((name, server)) if server == self.server => {
                self.aliases.get(name).map_or(name, String::as_str)
            }
            _ => model,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ModelNames {
        let names = ModelNames::default();
        let servers = ["gpu", "ollama"].map(str::to_owned).into();
        let address = |server: &str, name: &str| ModelAddress {
            server: server.to_owned(),
            name: name.to_owned(),
        };
        let aliases = [
            ("big".to_owned(), address("gpu", "Qwen/Qwen3-32B")),
            ("small".to_owned(), address("ollama", "hf.co/a/b:Q4")),
            ("equal".to_owned(), address("ollama", "e:8b")),
            ("equal".to_owned(), address("gpu", "E/8B")),
        ];
        names.set(servers, aliases.into_iter(), &BTreeSet::new());
        names
    }

    #[test]
    fn name_means_a_model_of_one_server() {
        let names = names();
        let check = |model: &str, server: &str, name: &str| {
            let found = names.resolve(model).expect("is known");
            assert_eq!((found.server.as_str(), found.name.as_str()), (server, name), "{model}");
        };
        check("qwen3:8b", "ollama", "qwen3:8b");
        check("hf.co/someone/model:Q4", "ollama", "hf.co/someone/model:Q4");
        check("qwen3:8b@ollama", "ollama", "qwen3:8b");
        check("big", "gpu", "Qwen/Qwen3-32B");
        check("big@gpu", "gpu", "Qwen/Qwen3-32B");
        check("big@ollama", "ollama", "big");
        check("Qwen/Qwen3-32B@gpu", "gpu", "Qwen/Qwen3-32B");
        check("qwen@q4@gpu", "gpu", "qwen@q4");
        check("small", "ollama", "hf.co/a/b:Q4");
        check("@gpu", "ollama", "@gpu");
        check("equal", "ollama", "e:8b");
        check("equal@gpu", "gpu", "E/8B");
        check("equal@ollama", "ollama", "e:8b");
        let unknown = names.resolve("m@elsewhere").expect_err("is not configured");
        assert_eq!((unknown.server.as_str(), unknown.known.len()), ("elsewhere", 2));
    }

    #[test]
    fn names_of_one_model_have_one_key() {
        let names = names();
        let same = |all: &[&str]| {
            let keys: BTreeSet<_> = all.iter().map(|model| names.key(model)).collect();
            assert_eq!(keys.len(), 1, "{keys:?}");
            keys
        };
        let ollama = same(&["qwen3", "qwen3:latest", "library/qwen3", "qwen3@ollama"]);
        assert!(ollama.contains("qwen3:latest"), "as it is in the files of earlier versions");
        same(&["big", "big@gpu", "Qwen/Qwen3-32B@gpu"]);
        assert_eq!(names.key("m@elsewhere"), "m@elsewhere");
        // Only Ollama has tags.
        let keys = |all: [&str; 3]| all.map(|model| names.key(model));
        let gpu = ["qwen3@gpu", "qwen3:latest@gpu", "library/qwen3@gpu"];
        assert_eq!(keys(gpu), gpu);
        names.note_tags("gpu");
        assert!(ollama.is_disjoint(&same(&gpu)));
        // A reload forgets it only of servers that changed.
        let servers: BTreeSet<_> = ["gpu", "ollama"].map(str::to_owned).into();
        names.set(servers.clone(), std::iter::empty(), &servers);
        same(&gpu);
        names.set(servers, std::iter::empty(), &BTreeSet::new());
        assert_eq!(keys(gpu), gpu);
    }

    #[test]
    fn alias_of_several_servers_is_one_model() {
        let names = names();
        assert_eq!(names.equal_servers("equal"), ["ollama", "gpu"]);
        for other in ["big", "equal@gpu", "qwen3"] {
            assert!(names.equal_servers(other).is_empty(), "{other}");
        }
        assert_ne!(names.key("equal@gpu"), names.key("equal@ollama"));
        for (model, expect) in [
            ("equal@gpu", "equal"),
            ("equal", "equal"),
            ("equal@nowhere", "equal@nowhere"),
            ("big@gpu", "big@gpu"),
            ("qwen3:8b", "qwen3:8b"),
        ] {
            assert_eq!(names.without_server(model), expect);
        }
    }

    #[test]
    fn shown_name_is_the_alias_or_has_the_server() {
        let names = names();
        let shown = |model: &str| names.shown(&names.resolve(model).expect("is known"));
        assert_eq!(shown("Qwen/Qwen3-32B@gpu"), "big");
        assert_eq!(shown("other@gpu"), "other@gpu");
        assert_eq!(shown("qwen3:8b"), "qwen3:8b");
        let check = |model: &str, expect: &str| {
            assert_eq!(shown(model), expect);
            let found = names.resolve(expect).expect("is known");
            assert_eq!((found.server.as_str(), found.name.as_str()), ("ollama", "big"));
        };
        check("big@ollama", "big@ollama");
    }

    #[test]
    fn server_knows_its_models_by_their_own_names() {
        let aliases = [("big".to_owned(), "Qwen/Qwen3-32B".to_owned())].into();
        let own = OwnNames { server: "gpu".to_owned(), aliases };
        for model in ["big", "big@gpu", "Qwen/Qwen3-32B@gpu", "Qwen/Qwen3-32B"] {
            assert_eq!(own.of(model), "Qwen/Qwen3-32B");
        }
        assert_eq!(own.of("x@y@gpu"), "x@y");
    }
}
