//! Parts of epochs and ends by the clock: the trial runs of Lightning's `Trainer`.

use serde::{Deserialize, Deserializer, Serialize};
use std::str::FromStr;
use std::time::Duration;
use systole_data::Dataset;
use systole_ir::{Error, ErrorKind, Result};

/// How many of a data set's batches are used: `0.25` is a share, `10` a count; `1.0` is all of them, `1` one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Limit {
    /// Batches from the first on.
    Batches(usize),
    /// A share of all, 0.0 to 1.0, rounded down.
    Share(f64),
}

impl Limit {
    /// Batches of `data` that it leaves, told by `name`; `steps` where an epoch has a number of steps of its own.
    ///
    /// # Errors
    /// A share of data that do not tell how many batches they have.
    pub fn of(self, name: &str, data: &Dataset, steps: Option<usize>) -> Result<usize> {
        let known = data.cardinality().finite().and_then(|n| usize::try_from(n).ok());
        let all = steps.or(known);
        match self {
            Limit::Batches(n) => Ok(all.map_or(n, |all| n.min(all))),
            Limit::Share(share) => all.map(|all| (all as f64 * share) as usize).ok_or_else(|| {
                Error::new(ErrorKind::Config, format!("{name} is a share of an unknown number of batches"))
                    .because("the data do not tell how many batches they have")
                    .hint(format!("give a number of batches: {name} = 10"))
            }),
        }
    }
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Limit> {
        let wrong = || {
            let what = format!("`{text}` is neither a number of batches, as 10, nor a share of them, as 0.1");
            Error::new(ErrorKind::Config, what)
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
        #[serde(untagged, expecting = "expected a number of batches such as 10 or a share such as 0.1")]
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

/// Lightning's `max_time`: `DD:HH:MM:SS`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(systole_nn::max_time("00:01:30:00")?, Duration::from_secs(5400));
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// Another form; no time at all.
pub fn max_time(text: &str) -> Result<Duration> {
    let parsed = time(text).ok().filter(|_| text.split(':').count() == 4);
    parsed.ok_or_else(|| no_time(text).hint("days, hours, minutes and seconds: 00:12:00:00 is half a day"))
}

fn no_time(text: &str) -> Error {
    Error::new(ErrorKind::Config, format!("`{text}` is no time"))
}

/// `HH:MM:SS`, or with days before as [`max_time`].
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(systole_nn::time("00:10:00")?, Duration::from_secs(600));
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// Another form; no time at all.
pub fn time(text: &str) -> Result<Duration> {
    let wrong =
        || no_time(text).hint("hours, minutes and seconds: 00:10:00 is ten minutes; 01:00:00:00 a day");
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
