//! Timing statistics of repeated runs: median, best, 10th and 90th percentile.

use crate::render::screen::number_of;
use serde_json::{Value, json};
use std::fmt;

/// Timing statistics of repeated runs, in ms.
pub(crate) struct TimingStats {
    runs: usize,
    median: f64,
    best: f64,
    /// 10th and 90th percentile.
    tenths: (f64, f64),
}

/// Computes the statistics of sorted times; `None` if there are none.
pub(crate) fn spread(sorted: &[f64]) -> Option<TimingStats> {
    let n = sorted.len();
    let at = |i: usize| sorted.get(i).copied();
    let median = (at(n.checked_sub(1)? / 2)? + at(n / 2)?) / 2.0;
    Some(TimingStats { runs: n, median, best: at(0)?, tenths: (at(n / 10)?, at(n - 1 - n / 10)?) })
}

impl TimingStats {
    pub(crate) fn json(&self) -> Value {
        json!({
            "runs": self.runs, "median_ms": self.median, "best_ms": self.best, "p10_ms": self.tenths.0,
            "p90_ms": self.tenths.1,
        })
    }
}

impl fmt::Display for TimingStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimingStats { runs, median, best, tenths: (low, high) } = self;
        let runs = number_of(*runs, "more run");
        write!(f, "{runs}: median {median:.3} ms, best {best:.3} ms, p10–p90 {low:.3} to {high:.3} ms")
    }
}
