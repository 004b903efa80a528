//! Decides when `fit` validates: after epochs, or within them by Lightning's `val_check_interval`.

use crate::callback::trainer_limits::time;
use crate::json::{Deserialize, Serialize};
use crate::model::history::Logs;
use serde::{Deserializer, Serializer};
use std::str::FromStr;
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result, err};

/// How often a model is validated within an epoch: `0.25` after every quarter, `100` after every hundred batches,
/// `"00:10:00"` every ten minutes. `1.0` means after each epoch, `1` after each batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValCheckInterval {
    /// Fraction of the epoch's batches, above 0 and at most 1.
    Share(f64),
    /// Number of batches; if larger than an epoch, counted across epochs.
    Batches(usize),
    /// Time between validations.
    Time(Duration),
}

impl FromStr for ValCheckInterval {
    type Err = Error;

    fn from_str(text: &str) -> Result<ValCheckInterval> {
        if text.contains(':') {
            return time(text).map(ValCheckInterval::Time);
        }
        let batches = text.parse().ok().filter(|n| *n > 0).map(ValCheckInterval::Batches);
        let share = || text.parse().ok().filter(|s| *s > 0.0 && *s <= 1.0).map(ValCheckInterval::Share);
        batches.or_else(share).ok_or_else(|| {
            err!(Config, "expected a validation interval, got `{text}`").hint(
                "give a fraction of the epoch's batches (0.25), a number of batches (100) or a time (\"00:10:00\")",
            )
        })
    }
}

impl<'de> Deserialize<'de> for ValCheckInterval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ValCheckInterval, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a fraction such as 0.25, a number of batches such as 100 or a time such as \"00:10:00\""
        )]
        enum SerializedInterval {
            Batches(usize),
            Share(f64),
            Time(String),
        }
        let text = match SerializedInterval::deserialize(deserializer)? {
            SerializedInterval::Batches(n) => n.to_string(),
            SerializedInterval::Share(share) => format!("{share:?}"),
            SerializedInterval::Time(text) => text,
        };
        text.parse().map_err(|e: Error| serde::de::Error::custom(e.what()))
    }
}

impl Serialize for ValCheckInterval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ValCheckInterval::Share(share) => share.serialize(serializer),
            ValCheckInterval::Batches(n) => n.serialize(serializer),
            ValCheckInterval::Time(time) => {
                let seconds = time.as_secs();
                let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
                format!("{days:02}:{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60)
                    .serialize(serializer)
            }
        }
    }
}

/// Validation schedule of a run, resolved from [`ValCheckInterval`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum ValidationTrigger {
    /// After epochs only.
    Epoch,
    /// Every so many batches of an epoch.
    Batches(usize),
    /// Every so many batches across epochs; the second value is the batches per epoch.
    Across(usize, usize),
    Time(Duration),
}

/// Validation schedule of a run in progress.
#[derive(Debug)]
pub(crate) struct ValCheck {
    every: ValidationTrigger,
    /// Validate every this many epochs.
    epochs: usize,
    first_epoch: usize,
    /// Time of this start or the last validation, and the time since the last validation from before this start.
    since: (Instant, Duration),
    /// Step of the last validation, and its values.
    pub(crate) last: Option<(u64, Logs)>,
}

impl ValCheck {
    /// Creates the schedule. `steps`: steps per epoch, if known.
    pub(crate) fn new(
        interval: Option<ValCheckInterval>,
        (epochs, first_epoch): (usize, usize),
        steps: Option<usize>,
    ) -> Result<ValCheck> {
        let every = match (interval, steps) {
            (None, _) => ValidationTrigger::Epoch,
            (Some(ValCheckInterval::Time(time)), _) => ValidationTrigger::Time(time),
            (Some(ValCheckInterval::Batches(n)), Some(steps)) if n > steps => {
                ValidationTrigger::Across(n, steps)
            }
            (Some(ValCheckInterval::Batches(n)), _) => ValidationTrigger::Batches(n),
            (Some(ValCheckInterval::Share(share)), Some(steps)) => {
                ValidationTrigger::Batches(((steps as f64 * share) as usize).max(1))
            }
            (Some(ValCheckInterval::Share(_)), None) => {
                let what = "val_check_interval is a fraction of an unknown number of batches";
                return Err(Error::new(ErrorKind::Config, what)
                    .because("the dataset does not report its number of batches")
                    .hint("give a number of batches: val_check_interval = 100"));
            }
        };
        let since = (Instant::now(), Duration::ZERO);
        Ok(ValCheck { every, epochs, first_epoch, since, last: None })
    }

    /// Whether a validation is due after `done` batches of an epoch; `is_whole`: whether these are all of it.
    pub(crate) fn is_due(&self, epoch: usize, done: usize, is_whole: bool) -> bool {
        let in_epoch = (epoch + 1).is_multiple_of(self.epochs);
        match self.every {
            ValidationTrigger::Epoch => is_whole && in_epoch,
            ValidationTrigger::Batches(n) => in_epoch && done.is_multiple_of(n),
            ValidationTrigger::Across(n, steps) => {
                ((epoch - self.first_epoch.min(epoch)) * steps + done).is_multiple_of(n)
            }
            ValidationTrigger::Time(time) => self.waited() >= time,
        }
    }

    /// Whether the schedule is by time, which several hosts cannot agree on.
    pub(crate) fn is_by_time(&self) -> bool {
        matches!(self.every, ValidationTrigger::Time(_))
    }

    /// Records a validation.
    pub(crate) fn take(&mut self, step: u64, logs: Logs) {
        self.since = (Instant::now(), Duration::ZERO);
        self.last = Some((step, logs));
    }

    /// Returns the values of a validation at this step, if there was one.
    pub(crate) fn at(&self, step: u64) -> Option<&Logs> {
        self.last.as_ref().filter(|(at, _)| *at == step).map(|(_, logs)| logs)
    }

    /// Returns the time since the last validation, including earlier starts.
    pub(crate) fn waited(&self) -> Duration {
        self.since.0.elapsed() + self.since.1
    }

    /// Resumes from a backup.
    pub(crate) fn go_on(&mut self, waited: Duration, last: Option<(u64, Logs)>) {
        (self.since, self.last) = ((Instant::now(), waited), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(interval: &str, epochs: usize, steps: Option<usize>) -> Vec<(usize, usize)> {
        let check = ValCheck::new(Some(interval.parse().unwrap()), (epochs, 0), steps).unwrap();
        let all = (0..3).flat_map(|epoch| (1..=10).map(move |done| (epoch, done)));
        all.filter(|(epoch, done)| check.is_due(*epoch, *done, *done == 10)).collect()
    }

    #[test]
    fn shares_and_batches_are_lightnings() {
        // int(10 · 0.4) = 4 batches: not at the epoch's end.
        assert_eq!(due("0.4", 2, Some(10)), [(1, 4), (1, 8)]);
        assert_eq!(due("1.0", 1, Some(10)), [(0, 10), (1, 10), (2, 10)]);
        assert_eq!(due("5", 3, None), [(2, 5), (2, 10)]);
        assert_eq!(due("0.001", 3, Some(10)).len(), 10);
        // More than an epoch: counted across epochs.
        assert_eq!(due("12", 1, Some(10)), [(1, 2), (2, 4)]);
        let e = ValCheck::new(Some(ValCheckInterval::Share(0.5)), (1, 0), None).unwrap_err().to_string();
        assert!(e.contains("val_check_interval = 100"), "{e}");
    }

    #[test]
    fn intervals_are_read_and_written() {
        for (text, json) in
            [("0.25", "0.25"), ("100", "100"), ("1.0", "1.0"), ("00:10:00", "\"00:00:10:00\"")]
        {
            let interval: ValCheckInterval = text.parse().unwrap();
            assert_eq!(serde_json::to_string(&interval).unwrap(), json);
            assert_eq!(serde_json::from_str::<ValCheckInterval>(json).unwrap(), interval);
        }
        for wrong in ["0", "1.5", "-1", "often", "10:00", "00:00:00"] {
            assert!(wrong.parse::<ValCheckInterval>().is_err(), "{wrong}");
        }
    }
}
