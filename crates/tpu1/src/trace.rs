//! Exports a program's timing as a Chrome trace (ui.perfetto.dev, chrome://tracing).

use crate::chip::Tpu1Chip;
use crate::timing::BatchTiming;
use serde_json::{Value, json};

/// Units in display order.
const UNITS: [&str; 3] = ["weight memory", "weight shift", "matrix multiply"];

/// Returns the timing of a batch as events in the Chrome trace format, in microseconds. `name`: returns the name of a
/// pass.
pub fn trace(chip: &Tpu1Chip, timing: &BatchTiming, name: impl Fn(usize) -> String) -> Value {
    let us = |cycles: f64| cycles / chip.clock_mhz;
    let unit = |(n, unit): (usize, &&str)| json!({"ph": "M", "pid": 1, "tid": n, "name": "thread_name", "args": {"name": unit}});
    let mut events: Vec<Value> = UNITS.iter().enumerate().map(unit).collect();
    for (n, pass) in timing.passes.iter().enumerate() {
        let name = name(n);
        for (tid, span) in [pass.fetch, pass.shift, Some(pass.multiply)].into_iter().enumerate() {
            let Some([begin, end]) = span else { continue };
            events.push(json!({
                "ph": "X", "pid": 1, "tid": tid, "name": name, "ts": us(begin), "dur": us(end - begin),
                "args": {"cycle": begin, "cycles": end - begin},
            }));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn every_pass_has_its_three_spans() {
        let chip = Tpu1Chip::v1();
        let timing = Preset::of("mlp1").unwrap().program(&chip, None).unwrap().timing(&chip);
        let value = trace(&chip, &timing, |n| n.to_string());
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 3 + 3 * timing.passes.len());
        let last = events.last().unwrap();
        let end = last["ts"].as_f64().unwrap() + last["dur"].as_f64().unwrap();
        assert!((end / 1e6 - timing.seconds(&chip)).abs() < 1e-9);
    }
}
