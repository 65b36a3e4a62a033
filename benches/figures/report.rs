//! Figures: each a median of several runs, beside a floor that was measured in the same run.

use std::path::PathBuf;

use serde_json::{Value, json};

/// Collects figures, printing each as it comes.
pub struct Report {
    figures: Vec<Value>,
}

/// Runs of one measurement, ascending.
#[derive(Clone, Debug)]
pub struct Runs(Vec<f64>);

impl Runs {
    pub fn new(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        Self(runs)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn quantile(&self, q: f64) -> f64 {
        match self.0.len() {
            0 => f64::NAN,
            n => self.0[((n - 1) as f64 * q).round() as usize],
        }
    }
}

/// What a figure is held against.
pub struct Against<'a> {
    /// The floor's value, in the figure's unit, from the same run.
    pub floor: Option<f64>,
    /// What is aimed at, in words: `≤ 1.5 × floor`.
    pub target: &'a str,
}

impl Report {
    pub fn new() -> Self {
        println!("{:<44} {:>12} {:<6} {:>12} {:>7}  target", "name", "value", "unit", "floor", "ratio");
        Self { figures: Vec::new() }
    }

    pub fn figure(&mut self, name: &str, runs: &Runs, unit: &str, against: &Against<'_>) {
        let value = runs.median();
        // Beside a floor of nothing there is no ratio.
        let ratio = against.floor.filter(|floor| *floor > 0.0).map(|floor| value / floor);
        let show = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
        println!(
            "{name:<44} {value:>12.2} {unit:<6} {:>12} {:>7}  {}",
            show(against.floor),
            show(ratio),
            against.target
        );
        self.figures.push(json!({
            "name": name,
            "value": value,
            "min": runs.quantile(0.0),
            "max": runs.quantile(1.0),
            "runs": runs.0.len(),
            "unit": unit,
            "floor": against.floor,
            "ratio": ratio,
            "target": against.target,
        }));
    }

    pub fn finish(self) -> std::io::Result<()> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("summary.json"), format!("{:#}\n", Value::Array(self.figures)))
    }
}
