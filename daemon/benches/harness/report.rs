//! Samples, rows and how they are printed: JSON to standard output, a table for people to standard error.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Whether this is `cargo bench`: `cargo test --all-targets` starts these programs too, and must not measure.
pub(crate) fn is_asked_for() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Durations of one operation.
#[derive(Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Times `n` runs of `operation`; a tenth as many untimed ones come first.
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

    /// Adds one.
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// Adds those of another round.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The sample below which `percent` of all lie, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index into a short list"
        )]
        let at = (last as f64 * percent / 100.0).round() as usize;
        sorted.get(at).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e6)
    }
}

/// One measurement beside its floor and its bar.
pub(crate) struct Row {
    fields: serde_json::Map<String, Value>,
}

impl Row {
    /// A row without numbers.
    pub(crate) fn new(name: &str, unit: &str) -> Self {
        let fields = json!({ "name": name, "unit": unit });
        Self { fields: fields.as_object().cloned().unwrap_or_default() }
    }

    /// A row of latencies in microseconds.
    pub(crate) fn latency(name: &str, samples: &Samples) -> Self {
        Self::new(name, "us")
            .with("n", samples.count())
            .with("p50", rounded(samples.percentile_us(50.0)))
            .with("p99", rounded(samples.percentile_us(99.0)))
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the floor of the same run, the ratio to it, and whether the ratio is at most `bar`.
    pub(crate) fn at_most_times(self, value: f64, floor: f64, bar: f64) -> Self {
        let ratio = value / floor;
        self.ratio(floor, ratio).bar(&format!("<= {bar}x the floor"), ratio <= bar)
    }

    /// Adds the floor of the same run, the ratio to it, and whether the ratio is at least `bar`.
    pub(crate) fn at_least_times(self, value: f64, floor: f64, bar: f64) -> Self {
        let ratio = value / floor;
        self.ratio(floor, ratio).bar(&format!(">= {bar}x the floor"), ratio >= bar)
    }

    /// Adds whether `value` is at most `bar`, both in the row's unit.
    pub(crate) fn at_most(self, value: f64, bar: f64) -> Self {
        self.bar(&format!("<= {bar}"), value <= bar)
    }

    fn ratio(self, floor: f64, ratio: f64) -> Self {
        self.with("floor", rounded(floor)).with("ratio", rounded(ratio))
    }

    fn bar(self, text: &str, is_met: bool) -> Self {
        self.with("bar", text).with("met", is_met)
    }
}

/// Three digits after the point are more than a measurement means.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Prints rows as they come.
pub(crate) struct Report {
    machine: Value,
}

impl Report {
    /// A report of one program; `facts` say under which conditions it ran.
    pub(crate) fn new(program: &str, facts: &Value) -> Self {
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
            "facts": facts,
        });
        Self { machine }
    }

    /// Prints one row.
    pub(crate) fn row(&self, row: Row) -> Result<()> {
        let mut fields = row.fields;
        let text = |name: &str| match fields.get(name) {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let met = match fields.get("met") {
            Some(Value::Bool(true)) => "met",
            Some(_) => "MISSED",
            None => "",
        };
        let line = format!(
            "{:<44} {:>5} p50 {:>10} p99 {:>10} rate {:>10} value {:>10} floor {:>10} ratio {:>7}  {} {}",
            text("name"),
            text("unit"),
            text("p50"),
            text("p99"),
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
}
