//! What a run is asked to do, by its arguments.

use anyhow::{Context as _, Result, bail};

use super::summarizer::Summarizer;

/// Turns of a generated session with the good summarizer, and with the others.
const TURNS: usize = 10_000;
const TURNS_OF_OTHERS: usize = 300;
/// Windows from the smallest on.
const WINDOWS: [u32; 6] = [2048, 4096, 8192, 16_384, 32_768, 131_072];

/// A run.
pub(crate) struct Options {
    /// Turns of a generated session with the good summarizer.
    pub(crate) turns: usize,
    /// With the others.
    pub(crate) turns_of_others: usize,
    /// Windows, in tokens.
    pub(crate) windows: Vec<u32>,
    /// Summarizers.
    pub(crate) summarizers: Vec<Summarizer>,
    /// A real session in the format of pi.
    pub(crate) session: Option<String>,
    /// Whether the calls are timed on a session of 100,000 records as well.
    pub(crate) speed: bool,
}

impl Options {
    /// Reads the arguments; those of cargo are passed over.
    pub(crate) fn read() -> Result<Self> {
        let mut options = Self {
            turns: TURNS,
            turns_of_others: TURNS_OF_OTHERS,
            windows: WINDOWS.to_vec(),
            summarizers: Summarizer::ALL.to_vec(),
            session: None,
            speed: true,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
            match name.as_str() {
                "--bench" => {}
                "--turns" => options.turns = value()?.parse()?,
                "--turns-of-others" => options.turns_of_others = value()?.parse()?,
                "--windows" => options.windows = listed(&value()?, |one| one.parse().ok())?,
                "--summarizers" => options.summarizers = listed(&value()?, Summarizer::named)?,
                "--session" => options.session = Some(value()?),
                "--no-speed" => options.speed = false,
                _ => bail!("{name} is not known"),
            }
        }
        Ok(options)
    }

    /// Turns of a generated session.
    pub(crate) fn turns_with(&self, summarizer: Summarizer) -> usize {
        if summarizer == Summarizer::Good {
            self.turns
        } else {
            self.turns_of_others.min(self.turns)
        }
    }
}

/// A list with commas; `none` is the empty one.
fn listed<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|one| read(one).with_context(|| format!("{one} is not known"))).collect()
}
