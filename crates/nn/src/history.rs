//! What training reports: values by name for each epoch.

/// Loss and metrics by name, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// No values.
    pub fn new() -> Logs {
        Logs::default()
    }

    /// Sets a value.
    pub fn insert(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(n, v)| (n.as_str(), *v))
    }

    /// Adds all of `other` under `prefix`.
    pub fn extend_with_prefix(&mut self, prefix: &str, other: &Logs) {
        other.iter().for_each(|(n, v)| self.insert(format!("{prefix}{n}"), v));
    }
}

impl std::ops::Index<&str> for Logs {
    type Output = f64;

    /// The value of a name.
    ///
    /// # Panics
    /// When there is none; [`Logs::get`] does not.
    fn index(&self, name: &str) -> &f64 {
        match self.0.iter().find(|(n, _)| n == name) {
            Some((_, v)) => v,
            None => panic!("no value `{name}` was logged"),
        }
    }
}

/// What `fit` returns.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Values of each epoch that was finished (or interrupted after at least one step).
    pub epochs: Vec<Logs>,
    /// Number of the first epoch, from 0.
    pub initial_epoch: usize,
    /// Wall-clock milliseconds of each step, waiting for data included.
    pub step_ms: Vec<f32>,
    /// Milliseconds of each step spent waiting for data.
    pub wait_ms: Vec<f32>,
    /// Milliseconds that steps stood still for each backup.
    pub backup_ms: Vec<f32>,
    /// Samples trained on.
    pub samples: u64,
    /// What went wrong without ending training: backups that could not be written.
    pub notes: Vec<String>,
    /// Whether the user stopped it.
    pub interrupted: bool,
    /// Why it ended early, when a callback or the data did that.
    pub stopped_because: Option<String>,
}

impl History {
    /// One value of every epoch that has it.
    pub fn get(&self, name: &str) -> Vec<f64> {
        self.epochs.iter().filter_map(|e| e.get(name)).collect()
    }

    /// The last epoch's values.
    pub fn last(&self) -> Logs {
        self.epochs.last().cloned().unwrap_or_default()
    }

    /// Median step time in milliseconds, the first step (which compiles) left out where there are others.
    pub fn median_step_ms(&self) -> f64 {
        let mut ms: Vec<f32> =
            self.step_ms.iter().copied().skip(usize::from(self.step_ms.len() > 1)).collect();
        ms.sort_by(f32::total_cmp);
        ms.get(ms.len() / 2).copied().unwrap_or(0.0) as f64
    }
}
