//! Learning-rate finder: a short run with exponentially rising rate, and suggestions from its loss curve.
//!
//! Source: fastai's `lr_find`, after Smith, 2015 (arXiv:1506.01186).

use crate::model::Model;
use crate::model::batch::{Batch, BatchFields};
use crate::optimizer::schedule::Schedule;
use crate::setters::with_defaults;
use systole_data::{Dataset, DatasetIter};
use systole_ir::{Error, ErrorKind, Result, err};

with_defaults! {
    /// Options of [`Model::lr_find`], with fastai's names and defaults.
    #[derive(Clone, Debug, PartialEq)]
    pub struct LrFind {
        /// First learning rate.
        pub start_lr: f64 = 1e-7,
        /// Last learning rate.
        pub end_lr: f64 = 10.0,
        /// Number of weight updates.
        pub num_it: usize = 100,
        /// Whether to stop once the smoothed loss exceeds four times the best.
        pub stop_div: bool = true,
    }
}

/// Decay of the loss's moving average.
const SMOOTHING: f64 = 0.98;
/// The run stops when the loss exceeds this multiple of the best.
const DIVERGED: f64 = 4.0;

/// Result of [`Model::lr_find`]: learning rates and losses.
#[derive(Clone, Debug, PartialEq)]
pub struct LrFindResult {
    /// Learning rate of each update.
    pub rates: Vec<f64>,
    /// Bias-corrected moving average of the losses up to each update.
    pub losses: Vec<f64>,
    /// Requested number of updates.
    pub num_it: usize,
    /// Why the run stopped early.
    pub stopped_because: Option<String>,
}

impl Model {
    /// Runs a learning-rate range test: trains with exponentially rising rate on labelled batches of `data`, then
    /// restores weights, optimizer and step.
    ///
    /// With gradient accumulation an update uses several batches, and its loss is their mean. In mixed float16 losses
    /// are unscaled.
    ///
    /// ```
    /// use systole_data::Dataset;
    /// use systole_ir::Literal;
    /// use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, LrFind, Model};
    /// let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
    /// let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(2);
    /// let mut model = Model::sequential([dense(1)]);
    /// model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
    /// let found = model.lr_find(&data, LrFind::default())?;
    /// model.set_learning_rate(found.suggestion("valley").unwrap_or(0.05));
    /// assert_eq!(model.steps(), 0);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the arguments are invalid, the model is not compiled, or the data has no batch compatible with it.
    pub fn lr_find(&mut self, data: &Dataset, options: LrFind) -> Result<LrFindResult> {
        options.check()?;
        let mut batches = InfiniteBatches::of(data, self.batch_fields())?;
        let first = batches.next()?;
        self.ready_for(&first)?;
        let rate = self.compiled()?.config.optimizer.learning_rate.clone();
        let (state, step) = (self.state.clone(), self.steps());
        let found = self.sweep(first, &mut batches, &options);
        self.put_back(state, step);
        self.set_learning_rate(rate);
        found
    }

    fn sweep(
        &mut self,
        first: Batch,
        batches: &mut InfiniteBatches<'_>,
        options: &LrFind,
    ) -> Result<LrFindResult> {
        let together = self.compiled()?.config.optimizer.gradient_accumulation_steps.unwrap_or(1).max(1);
        let mut found =
            LrFindResult { rates: vec![], losses: vec![], num_it: options.num_it, stopped_because: None };
        let (mut next, mut mean, mut best) = (Some(first), 0.0, f64::INFINITY);
        for i in 0..options.num_it {
            let rate = options.rate(i);
            self.set_learning_rate(Schedule::Constant(rate));
            let mut loss = 0.0;
            for _ in 0..together {
                let batch = next.take().map_or_else(|| batches.next(), Ok)?;
                loss += self.train_on_batch(&batch)?["loss"] / together as f64;
            }
            mean = SMOOTHING * mean + (1.0 - SMOOTHING) * loss;
            let smoothed = mean / (1.0 - SMOOTHING.powi(i as i32 + 1));
            found.rates.push(rate);
            found.losses.push(smoothed);
            best = smoothed.min(best);
            if !smoothed.is_finite() {
                found.stopped_because = Some(format!("the loss is not finite at rate {rate:.2e}"));
                break;
            }
            if options.stop_div && smoothed > DIVERGED * best {
                found.stopped_because =
                    Some(format!("the loss at rate {rate:.2e} is more than {DIVERGED} times the best"));
                break;
            }
        }
        Ok(found)
    }
}

impl LrFind {
    /// Returns the learning rate of an update.
    fn rate(&self, i: usize) -> f64 {
        self.start_lr * (self.end_lr / self.start_lr).powf(i as f64 / (self.num_it - 1) as f64)
    }

    /// Validates the options of the learning-rate finder.
    ///
    /// # Errors
    /// If the rates do not rise, or there are too few updates for a curve.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        if !(self.start_lr > 0.0 && self.start_lr < self.end_lr && self.end_lr.is_finite()) {
            let what =
                format!("start_lr {} and end_lr {} are not a rising range", self.start_lr, self.end_lr);
            return wrong(
                what,
                "choose start_lr above 0 and end_lr above it; the usual values are 1e-7 and 10",
            );
        }
        if self.num_it < 20 {
            return wrong(
                format!("num_it is {}, too few for a curve", self.num_it),
                "choose at least 20; the usual value is 100",
            );
        }
        Ok(())
    }
}

/// Infinite batches: repeats passes over the data.
struct InfiniteBatches<'a> {
    data: &'a Dataset,
    fields: BatchFields,
    pass: u64,
    iter: DatasetIter,
}

impl InfiniteBatches<'_> {
    fn of(data: &Dataset, fields: BatchFields) -> Result<InfiniteBatches<'_>> {
        Ok(InfiniteBatches { data, fields, pass: 0, iter: data.iter_epoch(0) })
    }

    fn next(&mut self) -> Result<Batch> {
        let sample = match self.iter.next() {
            Some(sample) => sample?,
            None => {
                self.pass += 1;
                self.iter = self.data.iter_epoch(self.pass);
                self.iter.next().ok_or_else(|| {
                    err!(Data, "the data has no batch for the learning-rate finder")
                        .hint("use a smaller batch, or more data")
                })??
            }
        };
        Batch::of_fields(&sample, &self.fields)
    }
}

/// Methods of suggesting a learning rate that [`LrFindResult::suggestion`] accepts.
pub const SUGGESTIONS: [&str; 4] = ["valley", "slide", "minimum", "steep"];

/// Suggested rates from the curve.
impl LrFindResult {
    /// Returns the learning rate suggested by one of the methods [`SUGGESTIONS`]; `None` if the curve is too short.
    ///
    /// - `valley`: middle of the longest decreasing stretch (fastai's default).
    /// - `slide`: before the last steep section, from the right.
    /// - `minimum`: a tenth of the rate with the lowest loss.
    /// - `steep`: where the loss falls fastest over the logarithm of the rate.
    pub fn suggestion(&self, name: &str) -> Option<f64> {
        let (rates, losses) = self.curve();
        match name {
            "valley" => valley(rates, losses),
            "slide" => slide(rates, losses),
            "minimum" => Some(rates[least(losses)?] / 10.0),
            "steep" => steep(rates, losses),
            _ => None,
        }
    }

    /// Returns the part of the loss curve used for suggestions: without the first tenth and the last five updates, and
    /// without everything from a non-finite loss on.
    pub fn curve(&self) -> (&[f64], &[f64]) {
        let from = (self.num_it / 10).min(self.losses.len());
        let to = self.losses.len().saturating_sub(5).max(from);
        let finite = self.losses[from..to].iter().take_while(|l| l.is_finite()).count();
        (&self.rates[from..from + finite], &self.losses[from..from + finite])
    }
}

fn least(losses: &[f64]) -> Option<usize> {
    (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b]))
}

/// Finds the longest decreasing subsequence and returns the rate at one third of it, plus half of that.
fn valley(rates: &[f64], losses: &[f64]) -> Option<f64> {
    let mut lengths = vec![1usize; losses.len()];
    let mut end = 0;
    for i in 1..losses.len() {
        for j in 0..i {
            if losses[i] < losses[j] && lengths[i] < lengths[j] + 1 {
                lengths[i] = lengths[j] + 1;
            }
            if lengths[end] < lengths[i] {
                end = i;
            }
        }
    }
    // May be one before the first, as fastai counts.
    let start = end as i64 - *lengths.get(end)? as i64;
    let section = (end as i64 - start) as f64 / 3.0;
    let at = start + section as i64 + (section / 2.0) as i64;
    rates.get(usize::try_from(at).unwrap_or(0)).copied()
}

/// Slopes of the losses per update, as `numpy.gradient`.
fn slopes(losses: &[f64]) -> Vec<f64> {
    let n = losses.len();
    (0..n)
        .map(|i| match i {
            _ if n < 2 => 0.0,
            0 => losses[1] - losses[0],
            _ if i == n - 1 => losses[i] - losses[i - 1],
            _ => (losses[i + 1] - losses[i - 1]) / 2.0,
        })
        .collect()
}

/// Moves a window of 15 to the left while the slopes at its ends differ.
fn slide(rates: &[f64], losses: &[f64]) -> Option<f64> {
    const WIDTH: usize = 15;
    const LEAST: f64 = 0.005;
    let slopes = slopes(losses);
    let mut right = losses.len().checked_sub(1)?;
    let mut left = right.checked_sub(WIDTH)?;
    let mut found = rates[left];
    while (slopes[right] - slopes[left]).abs() > LEAST {
        found = rates[left];
        right -= 1;
        match left.checked_sub(1) {
            Some(before) => left = before,
            None => break,
        }
    }
    Some(found)
}

fn steep(rates: &[f64], losses: &[f64]) -> Option<f64> {
    let fall = |i: usize| (losses[i + 1] - losses[i]) / (rates[i + 1].ln() - rates[i].ln());
    let steepest = (0..losses.len().checked_sub(1)?).min_by(|&a, &b| fall(a).total_cmp(&fall(b)))?;
    Some(rates[steepest])
}
