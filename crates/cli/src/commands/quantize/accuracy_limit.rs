//! Accepted loss of accuracy by quantization (`--max-accuracy-drop`, `--max-error-increase`), and the layers that must
//! stay in float to keep within it.

use crate::models::accuracy::Int8Quality;
use clap::Args;
use serde_json::{Value, json};
use systole_ir::Result;

/// Default of `--max-accuracy-drop`, in percentage points.
const POINTS: f64 = 2.0;
/// Default of `--max-error-increase`, in percent.
const PERCENT: f64 = 5.0;
/// Increase of an RMSE that is always accepted, as a fraction of the targets' standard deviation: an output has only 256
/// values.
const RESOLUTION: f64 = 0.02;
/// Maximum number of layers that a remedy keeps in float.
const MOST: usize = 8;

/// Accepted loss of accuracy.
#[derive(Args, Clone, Default)]
pub(crate) struct AccuracyLimits {
    /// Accept this drop of the accuracy, in percentage points [default: 2]
    ///
    /// The exit code is 3 if the accuracy drops by more. The file is written anyway, and the command prints which layers
    /// to keep in float.
    #[arg(long, value_name = "POINTS", value_parser = positive)]
    pub(crate) max_accuracy_drop: Option<f64>,
    /// Accept this increase of a regression's RMSE, in percent [default: 5]
    ///
    /// The exit code is 3 if the RMSE rises by more, and by more than 2 % of the standard deviation of the targets. Also
    /// limits the loss of weight-only quantization for models without an accuracy metric.
    #[arg(long, value_name = "PERCENT", value_parser = positive)]
    pub(crate) max_error_increase: Option<f64>,
}

/// Parses a number that is not negative.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("expected a number of at least 0".into()),
    }
}

impl AccuracyLimits {
    /// Returns a message if the accuracy drops by more than accepted; both are fractions.
    pub(crate) fn excess_of_accuracy(&self, before: f64, after: f64) -> Option<String> {
        let (drop, most) = (100.0 * (before - after), self.max_accuracy_drop.unwrap_or(POINTS));
        (drop > most + 1e-9 || after.is_nan()).then(|| {
            format!(
                "The accuracy drops by {drop:.2} points; --max-accuracy-drop accepts {most}. Exit code 3."
            )
        })
    }

    /// Returns a message if an error or loss rises by more than accepted. An increase up to `free` is always accepted.
    pub(crate) fn excess_of_error(&self, name: &str, before: f64, after: f64, free: f64) -> Option<String> {
        let most = self.max_error_increase.unwrap_or(PERCENT);
        let rise = after - before;
        let is_more = rise > before.abs() * most / 100.0 + 1e-9 && rise > free;
        (is_more || after.is_nan()).then(|| {
            let percent = 100.0 * rise / before.abs().max(f64::MIN_POSITIVE);
            format!("The {name} rises by {percent:.1} %; --max-error-increase accepts {most}. Exit code 3.")
        })
    }

    /// Returns a message if an int8 model is worse than accepted.
    pub(crate) fn excess(&self, quality: &Int8Quality) -> Option<String> {
        match quality {
            Int8Quality::Classes(a) => self.excess_of_accuracy(a.share(a.float), a.share(a.int8)),
            Int8Quality::Values(e) => self.excess_of_error("RMSE", e.float, e.int8, RESOLUTION * e.deviation),
        }
    }
}

/// Layers that keep the accuracy within the limits if they stay in float.
pub(crate) struct FloatLayers {
    pub(crate) skip: Vec<String>,
    pub(crate) quality: Int8Quality,
}

impl FloatLayers {
    /// Searches for few of the `ranked` layers, most sensitive first, that keep the accuracy within the limits. `measure`
    /// quantizes without the given layers.
    pub(crate) fn find(
        ranked: &[String],
        limits: &AccuracyLimits,
        measure: impl Fn(&[String]) -> Result<Option<Int8Quality>>,
    ) -> Option<FloatLayers> {
        // A combination that cannot be quantized is no remedy.
        let accepted = |skip: &[String]| {
            let quality = measure(skip).ok().flatten()?;
            limits.excess(&quality).is_none().then_some(quality)
        };
        let most = ranked.len().saturating_sub(1).min(MOST);
        let (count, quality) = (1..=most).find_map(|n| Some((n, accepted(&ranked[..n])?)))?;
        let mut found = FloatLayers { skip: ranked[..count].to_vec(), quality };
        for layer in &ranked[..count - 1] {
            let fewer: Vec<String> = found.skip.iter().filter(|l| *l != layer).cloned().collect();
            if let Some(quality) = accepted(&fewer) {
                found = FloatLayers { skip: fewer, quality };
            }
        }
        Some(found)
    }

    /// Describes the remedy; `given` are the layers that `--skip` already names.
    pub(crate) fn text(&self, given: &[String]) -> String {
        format!(
            "  try: add --skip {} --force, which gives {} on the same test samples",
            self.all(given).join(","),
            self.quality.int8_text()
        )
    }

    pub(crate) fn json(&self, given: &[String]) -> Value {
        json!({"skip": self.all(given), "accuracy": self.quality.json()})
    }

    fn all(&self, given: &[String]) -> Vec<String> {
        given.iter().chain(&self.skip).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::accuracy::Int8Accuracy;

    fn quality(int8: usize) -> Int8Quality {
        Int8Quality::Classes(Int8Accuracy { answers: 100, samples: 100, float: 90, int8, agree: 0 })
    }

    #[test]
    fn only_the_layers_that_matter_stay_in_floats() {
        let ranked = ["a", "b", "c", "d"].map(String::from);
        let limits = AccuracyLimits::default();
        // Both b and c must be in floats.
        let measure = |skip: &[String]| {
            Ok(Some(quality(if skip.contains(&"b".into()) && skip.contains(&"c".into()) { 89 } else { 50 })))
        };
        assert_eq!(FloatLayers::find(&ranked, &limits, measure).unwrap().skip, ["b", "c"]);
        let never = |_: &[String]| Ok(Some(quality(50)));
        assert!(FloatLayers::find(&ranked, &limits, never).is_none());
        assert!(FloatLayers::find(&ranked[..1], &limits, |_| Ok(Some(quality(90)))).is_none());
    }

    #[test]
    fn limits_are_inclusive() {
        let limits = AccuracyLimits { max_accuracy_drop: Some(2.0), max_error_increase: Some(5.0) };
        assert!(limits.excess(&quality(88)).is_none() && limits.excess(&quality(87)).is_some());
        assert!(limits.excess_of_error("RMSE", 1.0, 1.05, 0.0).is_none());
        assert!(limits.excess_of_error("RMSE", 1.0, 1.06, 0.0).is_some());
        assert!(limits.excess_of_error("RMSE", 0.0, 0.02, 0.02).is_none());
        assert!(limits.excess_of_error("RMSE", 0.0, f64::NAN, 0.02).is_some());
    }
}
