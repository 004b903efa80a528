//! `SpikeDetection` callback: ends training at a loss spike, and skips the offending batches after a restart.

use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use super::monitored_value::Mode;
use crate::json::{Deserialize, Serialize};
use crate::setters::{field_setters, with_defaults};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, Result, err};

/// An epoch and a batch in it, both from 0.
type BatchIndex = (usize, usize);

with_defaults! {
    /// Callback that ends training with an error if a batch's loss spikes: it is worse than the previous one and
    /// differs from the mean of the last `window` by at least `rtol` times that mean. That batch and the previous one
    /// are written to `skip_batches.json`; the next start skips the batches of that file.
    ///
    /// If the last backup was made between the two, the earlier one has already been trained on. Checks each step, so
    /// devices wait after each.
    ///
    /// ```
    /// # use systole_data::Dataset;
    /// # use systole_ir::Literal;
    /// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
    /// # let x = Literal::from_slice([6, 1], &[1f32, 1.1, 1., 1.1, 1., 1e6])?;
    /// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(1);
    /// # let mut model = Model::sequential([dense(1)]);
    /// # model.compile(Compile { optimizer: sgd(0.0), loss: mean_squared_error(), ..Default::default() })?;
    /// use systole_nn::{callback::SpikeDetection, Fit};
    /// let path = std::env::temp_dir().join(format!("doc-spike-{}.json", std::process::id()));
    /// let mut fit = || model.fit(&data, Fit { callbacks: vec![Box::new(SpikeDetection::new(&path))], ..Default::default() });
    /// assert!(fit().unwrap_err().to_string().contains("batch 6"));
    /// assert_eq!(fit()?.samples, 4); // without the fifth and the sixth
    /// # std::fs::remove_file(path).unwrap();
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct SpikeDetection {
        /// Number of losses in the mean.
        pub window: usize = 10,
        /// Number of batches of the run before the check starts.
        pub warmup: u64 = 1,
        /// Minimum spike, as a multiple of the mean.
        pub rtol: f64 = 2.0,
        /// Minimum absolute spike. Default: none.
        pub atol: Option<f64> = None,
        /// Direction of improvement of the loss.
        pub mode: Mode = Mode::Min,
        /// Whether a non-finite loss is a spike.
        pub finite_only: bool = true,
        /// File with batches to skip, in the run's folder.
        pub exclude_batches_path: PathBuf = "skip_batches.json".into(),
        #[serde(skip)]
        seen: LossHistory = LossHistory::default(),
        #[serde(skip)]
        left_out: BTreeSet<BatchIndex> = BTreeSet::new(),
    }
}

/// Losses of recent batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct LossHistory {
    /// Losses of the last batches, as bits, because JSON has no infinity.
    losses: VecDeque<u64>,
    /// Number of batches of the run.
    batches: u64,
    /// Sum of losses and number of samples in this epoch, as bits.
    totals: (u64, u64),
    /// Previous batch.
    last: Option<BatchIndex>,
}

impl SpikeDetection {
    /// Creates a callback that skips the batches listed in this file, if it exists, and adds new ones to it.
    pub fn new(exclude_batches_path: impl AsRef<Path>) -> SpikeDetection {
        SpikeDetection {
            exclude_batches_path: exclude_batches_path.as_ref().into(),
            ..SpikeDetection::default()
        }
    }

    /// Checks Lightning's conditions.
    fn is_spike(&self, loss: f64) -> bool {
        if self.seen.batches < self.warmup {
            return false;
        }
        if self.finite_only && !loss.is_finite() {
            return true;
        }
        let losses = self.seen.losses.iter().map(|bits| f64::from_bits(*bits));
        let (Some(last), n) = (losses.clone().next_back(), losses.len()) else { return false };
        let mean = losses.sum::<f64>() / n as f64;
        let better = if self.mode == Mode::Max { loss >= last } else { loss <= last };
        let far = (loss - mean).abs();
        !better && self.atol.is_none_or(|atol| far >= atol.abs()) && far >= (self.rtol * mean).abs()
    }

    /// Returns the loss of the last batch alone: metrics hold sums since the start of the epoch.
    fn loss_of_batch(&mut self, cx: &FitCx<'_>) -> Result<f64> {
        let value = |name: &str| cx.model.state.metrics.get(name).map_or(Ok(0.0), |sum| sum.to_f64());
        let (total, count) = (value("loss/total")?, value("loss/count")?);
        let before = (f64::from_bits(self.seen.totals.0), f64::from_bits(self.seen.totals.1));
        self.seen.totals = (total.to_bits(), count.to_bits());
        Ok((total - before.0) / (count - before.1))
    }

    fn write(&mut self, at: BatchIndex, cx: &FitCx<'_>) -> Result<()> {
        self.left_out.extend(self.seen.last);
        self.left_out.insert(at);
        if !cx.model.leads() {
            return Ok(());
        }
        let all: Vec<Value> =
            self.left_out.iter().map(|(epoch, batch)| json!({"epoch": epoch, "batch": batch})).collect();
        let text = format!("{:#}\n", Value::from(all));
        let path = &self.exclude_batches_path;
        write_atomically(&OsFileSystem, path, &[text.as_bytes()])
    }

    /// Reads the batches that earlier starts found.
    fn read(&mut self) -> Result<()> {
        let path = &self.exclude_batches_path;
        let text = match std::fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            text => text.map_err(|e| Error::io("cannot read", path, e))?,
        };
        let wrong = |why: String| {
            err!(Data, "cannot read the batches to skip from {}", path.display()).because(why).hint(
                "write a list such as [{\"epoch\": 0, \"batch\": 17}], from 0, or remove the file to skip no batch",
            )
        };
        let all: Vec<Value> = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        for entry in &all {
            let number = |key: &str| entry[key].as_u64().and_then(|n| usize::try_from(n).ok());
            let place = number("epoch")
                .zip(number("batch"))
                .ok_or_else(|| wrong(format!("{entry} is not a batch")))?;
            self.left_out.insert(place);
        }
        Ok(())
    }
}

field_setters! {
    impl SpikeDetection {
        /// Sets the number of losses in the mean.
        window(batches: usize);
        /// Sets the number of batches of the run before the check starts.
        warmup(batches: u64);
        /// Sets the minimum spike, as a multiple of the mean.
        rtol(rtol: f64);
        /// Sets the minimum absolute spike.
        atol(atol: f64) => Some(atol);
        /// Sets the direction of improvement of the loss.
        mode(mode: Mode);
        /// Sets whether a non-finite loss is a spike.
        finite_only(yes: bool);
    }
}

impl ConfigCallback for SpikeDetection {
    fn check(&self) -> ArgumentCheck {
        let wrong = |key, what: &str, hint: &str| Err((key, Error::new(ErrorKind::Config, what).hint(hint)));
        if self.window == 0 {
            return wrong("window", "window is 0", "choose a number of batches of at least 1");
        }
        if self.rtol.is_nan() || self.atol.is_some_and(f64::is_nan) {
            return wrong("rtol", "rtol or atol is NaN", "choose a number; Lightning's rtol is 2.0");
        }
        Ok(())
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        vec![("exclude_batches_path", self.exclude_batches_path.to_str().unwrap_or_default())]
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.exclude_batches_path = place.file(&self.exclude_batches_path);
    }
}

impl Callback for SpikeDetection {
    fn state(&self) -> Result<CallbackState> {
        let values = serde_json::to_value(&self.seen).map_err(|e| {
            err!(Bug, "cannot serialize SpikeDetection's state").because(e.to_string())
        })?;
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.seen = serde_json::from_value(state.values.clone()).map_err(|e| {
            err!(Data, "cannot read SpikeDetection's state in the backup")
                .because(e.to_string())
        })?;
        Ok(())
    }

    fn skips(&self, epoch: usize, batch: usize) -> bool {
        self.left_out.contains(&(epoch, batch))
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "SpikeDetection")?;
        self.read()?;
        if !self.left_out.is_empty() {
            let (n, path) = (self.left_out.len(), self.exclude_batches_path.display());
            cx.note(format!("skipping batches that SpikeDetection found: {n} of {path}"));
        }
        Ok(())
    }

    fn on_epoch_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        self.seen.totals = Default::default();
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let loss = self.loss_of_batch(cx)?;
        let at = (cx.epoch, cx.batch);
        if self.is_spike(loss) {
            let mean = self.seen.losses.iter().map(|bits| f64::from_bits(*bits)).sum::<f64>();
            let mean = mean / self.seen.losses.len().max(1) as f64;
            self.write(at, cx)?;
            let (epoch, batch) = (at.0 + 1, at.1 + 1);
            return Err(err!(Data, "the loss of batch {batch} of epoch {epoch} jumped to {loss:.4}")
            .because(format!("the mean of the previous losses is {mean:.4} (SpikeDetection)"))
            .hint(format!(
                "start again: the run then skips this batch and the previous one ({})",
                self.exclude_batches_path.display()
            )));
        }
        self.seen.batches += 1;
        self.seen.last = Some(at);
        self.seen.losses.push_back(loss.to_bits());
        while self.seen.losses.len() > self.window {
            self.seen.losses.pop_front();
        }
        Ok(())
    }
}
