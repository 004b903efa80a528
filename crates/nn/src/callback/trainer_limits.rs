//! Lightning's `Trainer` limits: numbers of batches (`limit_train_batches`, …) and `max_time`.

use crate::json::{Deserialize, Serialize};
use serde::Deserializer;
use std::str::FromStr;
use std::time::Duration;
use systole_data::Dataset;
use systole_ir::{Error, Result, err};

/// Limit on the number of batches of a dataset: `0.25` is a fraction, `10` a count; `1.0` is all batches, `1` one
/// batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Limit {
    /// The first batches.
    Batches(usize),
    /// Fraction of all batches, 0.0 to 1.0, rounded down.
    Share(f64),
}

impl Limit {
    /// Resolves the limit to a number of batches of `data`. `name` is used in errors; `steps` is the number of steps
    /// per epoch if fixed.
    ///
    /// # Errors
    /// If the limit is a fraction and the number of batches is unknown.
    pub fn of(self, name: &str, data: &Dataset, steps: Option<usize>) -> Result<usize> {
        let known = data.cardinality().finite().and_then(|n| usize::try_from(n).ok());
        let all = steps.or(known);
        match self {
            Limit::Batches(n) => Ok(all.map_or(n, |all| n.min(all))),
            Limit::Share(share) => all.map(|all| (all as f64 * share) as usize).ok_or_else(|| {
                err!(Config, "{name} is a fraction of an unknown number of batches")
                    .because("the dataset does not report its number of batches")
                    .hint(format!("give a number of batches: {name} = 10"))
            }),
        }
    }
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Limit> {
        let wrong = || {
            err!(Config, "expected a number of batches such as 10 or a fraction such as 0.1, got `{text}`")
        };
        if let Ok(n) = text.parse() {
            return Ok(Limit::Batches(n));
        }
        let share: f64 = text.parse().map_err(|_| wrong())?;
        if (0.0..=1.0).contains(&share) { Ok(Limit::Share(share)) } else { Err(wrong()) }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number of batches such as 10 or a fraction such as 0.1")]
        enum SerializedLimit {
            Batches(usize),
            Share(f64),
        }
        let text = match SerializedLimit::deserialize(deserializer)? {
            SerializedLimit::Batches(n) => return Ok(Limit::Batches(n)),
            SerializedLimit::Share(share) => format!("{share:?}"),
        };
        text.parse().map_err(|e: Error| serde::de::Error::custom(e.what()))
    }
}

/// Parses Lightning's `max_time`: `DD:HH:MM:SS`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(systole_nn::max_time("00:01:30:00")?, Duration::from_secs(5400));
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// If the format is invalid or the time is zero.
pub fn max_time(text: &str) -> Result<Duration> {
    let parsed = time(text).ok().filter(|_| text.split(':').count() == 4);
    parsed.ok_or_else(|| {
        no_time(text).hint("give days, hours, minutes and seconds, such as 00:12:00:00 for half a day")
    })
}

fn no_time(text: &str) -> Error {
    err!(Config, "expected a time, got `{text}`")
}

/// Parses `HH:MM:SS`, or with days as [`max_time`].
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(systole_nn::time("00:10:00")?, Duration::from_secs(600));
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// If the format is invalid or the time is zero.
pub fn time(text: &str) -> Result<Duration> {
    let wrong = || {
        no_time(text).hint(
            "give hours, minutes and seconds, such as 00:10:00 for ten minutes, or 01:00:00:00 for a day",
        )
    };
    let parts: Vec<u64> =
        text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>().ok_or_else(wrong)?;
    let (days, hours, minutes, seconds) = match parts[..] {
        [hours, minutes, seconds] => (0, hours, minutes, seconds),
        [days, hours, minutes, seconds] => (days, hours, minutes, seconds),
        _ => return Err(wrong()),
    };
    let all = [(days, 86_400), (hours, 3_600), (minutes, 60), (seconds, 1)];
    let sum = all.iter().try_fold(0u64, |sum, (n, of)| sum.checked_add(n.checked_mul(*of)?));
    match sum {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(wrong()),
    }
}
