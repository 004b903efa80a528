//! The learning-rate finder: a short run whose rate rises from step to step, and what its losses suggest. Source: fastai's
//! `lr_find`, after Smith, 2015 (arXiv:1506.01186).

use crate::model::Model;
use crate::model::batch::{Batch, BatchFields};
use crate::optimizer::schedule::Schedule;
use systole_data::{Dataset, DatasetIter};
use systole_ir::{Error, ErrorKind, Result};

/// Arguments of [`Model::lr_find`], with fastai's names and defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct LrFind {
    /// The first rate.
    pub start_lr: f64,
    /// The last rate.
    pub end_lr: f64,
    /// Updates of the weights.
    pub num_it: usize,
    /// Whether to stop once the smoothed loss is above four times the best.
    pub stop_div: bool,
}

impl Default for LrFind {
    fn default() -> LrFind {
        LrFind { start_lr: 1e-7, end_lr: 10.0, num_it: 100, stop_div: true }
    }
}

/// Decay of the running mean of losses.
const SMOOTHING: f64 = 0.98;
/// How many times the best loss ends the run.
const DIVERGED: f64 = 4.0;

/// What [`Model::lr_find`] saw.
#[derive(Clone, Debug, PartialEq)]
pub struct LrFindResult {
    /// The rate of each update.
    pub rates: Vec<f64>,
    /// The running mean of the losses up to each update, corrected for its start at 0.
    pub losses: Vec<f64>,
    /// How many updates were wanted.
    pub num_it: usize,
    /// Why it ended before that.
    pub stopped_because: Option<String>,
}

impl Model {
    /// Trains for some updates with a rate that rises from each to the next, on batches of `data` with labels, and puts
    /// weights, optimizer and step back to what they were.
    ///
    /// With gradient accumulation an update is as many batches, and its loss their mean. In mixed float16 losses are those
    /// before the scale.
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
    /// When the arguments make no sense, the model is not compiled, or the data have no batch that fits it.
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
    /// The rate of an update.
    fn rate(&self, i: usize) -> f64 {
        self.start_lr * (self.end_lr / self.start_lr).powf(i as f64 / (self.num_it - 1) as f64)
    }

    /// An error where the arguments make no sense.
    ///
    /// # Errors
    /// When the rates do not rise, or there are too few updates for a curve.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        if !(self.start_lr > 0.0 && self.start_lr < self.end_lr && self.end_lr.is_finite()) {
            let what = format!("there is no way up from rate {} to {}", self.start_lr, self.end_lr);
            return wrong(what, "choose start_lr above 0 and end_lr above it; 1e-7 and 10 are usual");
        }
        if self.num_it < 20 {
            return wrong(
                format!("{} updates show no curve", self.num_it),
                "choose at least 20; 100 is usual",
            );
        }
        Ok(())
    }
}

/// Batches without an end: pass after pass over the data.
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
                    Error::new(ErrorKind::Data, "there is no batch to look for a learning rate with")
                        .hint("use a smaller batch, or more data")
                })??
            }
        };
        Batch::of_fields(&sample, &self.fields)
    }
}

/// The names that [`LrFindResult::suggestion`] takes.
pub const SUGGESTIONS: [&str; 4] = ["valley", "slide", "minimum", "steep"];

/// What the curve suggests.
impl LrFindResult {
    /// A rate by one of [`SUGGESTIONS`]; `None` where the curve is too short for it.
    ///
    /// - `valley`: the middle of the longest way down (fastai's default).
    /// - `slide`: before the last steep part, seen from the right.
    /// - `minimum`: a tenth of the rate of the least loss.
    /// - `steep`: where the loss falls most by the logarithm of the rate.
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

    /// The part that suggestions look at: without the first tenth of the updates and the last five, and without what
    /// follows a loss that is not finite.
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

/// The longest subsequence that falls, a third of its length and half of that after where it begins.
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
    // One before the first of them may be meant, as fastai counts.
    let start = end as i64 - *lengths.get(end)? as i64;
    let section = (end as i64 - start) as f64 / 3.0;
    let at = start + section as i64 + (section / 2.0) as i64;
    rates.get(usize::try_from(at).unwrap_or(0)).copied()
}

/// Slopes of the losses by number of update, as `numpy.gradient`.
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

/// A window of 15 moves left while the slopes at its ends differ.
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
