//! Samples and rows, and how they are printed: JSON to stdout, a table for people to stderr.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

/// Returns whether this is `cargo bench`: `cargo test --all-targets` runs these programs too, and must not measure.
pub(crate) fn is_bench_run() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// The durations of one operation.
#[derive(Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Times `n` runs of `operation`, after a tenth as many that are not timed.
    pub(crate) fn take(n: usize, mut operation: impl FnMut() -> Result<()>) -> Result<Self> {
        for _ in 0..n.div_ceil(10) {
            operation()?;
        }
        let mut samples = Self::default();
        for _ in 0..n {
            let started = Instant::now();
            operation()?;
            samples.push(started.elapsed());
        }
        Ok(samples)
    }

    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// Returns the number of timed and untimed runs of [`Samples::take`].
    pub(crate) fn n_runs(&self) -> usize {
        self.count() + self.count().div_ceil(10)
    }

    /// Adds the samples of another round.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the median in microseconds.
    pub(crate) fn p50_us(&self) -> f64 {
        self.percentile_us(50.0)
    }

    /// Returns the sample below which `percent` of all samples lie, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let at = (last as f64 * percent / 100.0).round() as usize;
        sorted.get(at).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e6)
    }
}

/// A measurement with its floor and its bar.
///
/// The floor is a lower bound that was measured in the same run, the bar is the limit that a value must meet.
pub(crate) struct Row {
    fields: Map<String, Value>,
}

impl Row {
    /// Creates a row without numbers.
    fn new(name: &str, unit: &str) -> Self {
        let fields = json!({ "name": name, "unit": unit });
        Self { fields: fields.as_object().cloned().unwrap_or_default() }
    }

    /// Creates a row with one value.
    pub(crate) fn value(name: &str, unit: &str, value: impl Into<Value>) -> Self {
        Self::new(name, unit).with("value", value)
    }

    /// Creates a row of latencies in microseconds.
    pub(crate) fn latency(name: &str, samples: &Samples) -> Self {
        Self::new(name, "us")
            .with("n", samples.count())
            .with("p50", rounded(samples.p50_us()))
            .with("p99", rounded(samples.percentile_us(99.0)))
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the CPU time that the daemon used for each of `n` operations, in microseconds.
    pub(crate) fn cpu(self, used: Duration, n: usize) -> Self {
        self.with("cpuUs", rounded(used.as_secs_f64() * 1e6 / n as f64))
    }

    /// Adds a floor, the ratio to it, and whether the ratio is at most `bar`.
    pub(crate) fn at_most_times(self, value: f64, floor: f64, bar: f64) -> Self {
        let ratio = value / floor;
        self.ratio(floor, ratio).bar(&format!("<= {bar}x the floor"), ratio <= bar)
    }

    /// Adds a floor, the ratio to it, and whether the ratio is at least `bar`.
    pub(crate) fn at_least_times(self, value: f64, floor: f64, bar: f64) -> Self {
        let ratio = value / floor;
        self.ratio(floor, ratio).bar(&format!(">= {bar}x the floor"), ratio >= bar)
    }

    /// Adds whether `value`, in the row's unit, is at most `bar`.
    pub(crate) fn at_most(self, value: f64, bar: f64) -> Self {
        self.bar(&format!("<= {bar}"), value <= bar)
    }

    /// Adds a floor and the ratio to it.
    pub(crate) fn ratio(self, floor: f64, ratio: f64) -> Self {
        self.with("floor", rounded(floor)).with("ratio", rounded(ratio))
    }

    /// Adds the text of a bar and whether it is met.
    pub(crate) fn bar(self, text: &str, is_met: bool) -> Self {
        self.with("bar", text).with("met", is_met)
    }
}

/// Rounds to three decimal places.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The samples of a program's operations on items, and the item that took longest.
pub(crate) struct Slowest<T>(pub(crate) Samples, pub(crate) Option<T>);

impl<T> Slowest<T> {
    /// Times `operation` with each item, after the first `n_untimed` items, which fill the caches.
    pub(crate) fn take(
        items: impl Iterator<Item = T>,
        n_untimed: usize,
        mut operation: impl FnMut(&T) -> Result<()>,
    ) -> Result<Self> {
        let (mut samples, mut slowest) = (Samples::default(), (Duration::ZERO, None));
        for (at, item) in items.enumerate() {
            let started = Instant::now();
            operation(&item)?;
            let elapsed = started.elapsed();
            if at >= n_untimed {
                samples.push(elapsed);
                if elapsed > slowest.0 {
                    slowest = (elapsed, Some(item));
                }
            }
        }
        Ok(Self(samples, slowest.1))
    }
}

/// Prints the rows of one program.
pub(crate) struct Report {
    machine: Value,
    /// The rows so far.
    rows: RefCell<Vec<Map<String, Value>>>,
}

impl Report {
    /// Creates the report of a program; `conditions` describes the run.
    pub(crate) fn new(program: &str, conditions: &Value) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpu = read("/proc/cpuinfo");
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let machine = json!({
            "program": program,
            "cores": cores,
            "cpu": model.unwrap_or_default().trim(),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "load": read("/proc/loadavg").split(' ').next(),
            "optimized": !cfg!(debug_assertions),
            "facts": conditions,
        });
        Self { machine, rows: RefCell::default() }
    }

    pub(crate) fn print(&self, row: Row) -> Result<()> {
        let mut fields = row.fields;
        self.rows.borrow_mut().push(fields.clone());
        let text = |name: &str| text_of(&fields, name);
        let met = match fields.get("met") {
            Some(Value::Bool(true)) => "met",
            Some(_) => "MISSED",
            None => "",
        };
        let line = format!(
            "{:<44} {:>5} p50 {:>10} p99 {:>10} cpu {:>7} rate {:>10} value {:>10} floor {:>10} ratio {:>7}  {} {}",
            text("name"),
            text("unit"),
            text("p50"),
            text("p99"),
            text("cpuUs"),
            text("rate"),
            text("value"),
            text("floor"),
            text("ratio"),
            text("bar"),
            met
        );
        writeln!(std::io::stderr(), "{line}").context("write the table")?;
        fields.insert("machine".to_owned(), self.machine.clone());
        writeln!(std::io::stdout(), "{}", Value::Object(fields)).context("write the JSON")
    }
    /// Prints a table for people: the fields that `columns` names, of all rows that have the first of them.
    pub(crate) fn print_table(&self, columns: &str) -> Result<()> {
        let columns: Vec<&str> = columns.split(' ').collect();
        let rows = self.rows.borrow();
        let rows = rows.iter().filter(|fields| fields.contains_key(columns[0]));
        let texts = |fields| columns.iter().map(|name| text_of(fields, name)).collect();
        let heading = columns.iter().map(|name| (*name).to_owned()).collect();
        let lines: Vec<Vec<String>> = std::iter::once(heading).chain(rows.map(texts)).collect();
        for line in &lines {
            let padded = line.iter().enumerate().map(|(at, text)| {
                let width = lines.iter().map(|line| line[at].len()).max().unwrap_or_default();
                format!("{text:>width$}")
            });
            let padded: Vec<String> = padded.collect();
            writeln!(std::io::stderr(), "{}", padded.join(" ")).context("write the table")?;
        }
        Ok(())
    }
}

/// Returns a field as text for people.
fn text_of(fields: &Map<String, Value>, name: &str) -> String {
    match fields.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
