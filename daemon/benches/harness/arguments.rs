//! The arguments and variables of a benchmark program.

use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

/// The arguments that are not yet taken. Those of cargo are left out.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn new() -> Self {
        Self(std::env::args().skip(1).filter(|argument| argument != "--bench").collect())
    }

    /// Takes an argument without a value; returns whether it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|argument| argument == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes an argument and its value, as text; `None` if it is not there.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>> {
        let Some(at) = self.0.iter().position(|argument| argument == name) else { return Ok(None) };
        self.0.remove(at);
        let is_there = at < self.0.len();
        is_there.then(|| Some(self.0.remove(at))).with_context(|| format!("{name} needs a value"))
    }

    /// Takes an argument with a number.
    pub(crate) fn number<T: FromStr>(&mut self, name: &str, default: T) -> Result<T> {
        let Some(text) = self.text(name)? else { return Ok(default) };
        text.parse().ok().with_context(|| format!("{name} {text} is no number"))
    }

    /// Takes an argument with a list with commas; `none` is the empty list.
    pub(crate) fn list<T: Clone>(
        &mut self,
        name: &str,
        default: &[T],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>> {
        let parse = |item| parse(item).with_context(|| format!("unknown {item}"));
        match self.text(name)?.as_deref() {
            None => Ok(default.to_vec()),
            Some("none") => Ok(Vec::new()),
            Some(text) => text.split(',').map(parse).collect(),
        }
    }

    /// Returns the arguments without names.
    ///
    /// **Errors**: a named argument is left.
    pub(crate) fn rest(self) -> Result<Vec<String>> {
        if let Some(unknown) = self.0.iter().find(|argument| argument.starts_with("--")) {
            bail!("unknown argument {unknown}");
        }
        Ok(self.0)
    }
}

/// Returns the number in an environment variable.
pub(crate) fn variable<T: FromStr>(name: &str, default: T) -> Result<T> {
    let Ok(text) = std::env::var(name) else { return Ok(default) };
    text.parse().ok().with_context(|| format!("{name}={text} is no number"))
}
