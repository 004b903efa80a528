//! `Timer` callback: ends training after a given time.

use super::callback_trait::{Callback, CallbackState, FitCx, duration};
use super::config_callback::{ArgumentCheck, ConfigCallback, checked};
use crate::callback::trainer_limits::time;
use crate::json::{Deserialize, Serialize};
use serde_json::json;
use std::time::{Duration, Instant};
use systole_ir::Result;

/// When [`Timer`] checks the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimerInterval {
    /// After each step.
    #[default]
    Step,
    /// After each epoch.
    Epoch,
}

/// Callback that ends training after a given total time; counts all starts of a run.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::{Timer, TimerInterval}, Fit};
/// let timer = Timer::new("00:10:00").interval(TimerInterval::Epoch);
/// let history = model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(timer)], ..Default::default() })?;
/// assert_eq!(history.epochs.len(), 2); // in far less than ten minutes
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timer {
    /// Duration: `HH:MM:SS`, optionally with days before. Required.
    pub duration: String,
    /// When to check the time: after each step, or after each epoch.
    pub interval: TimerInterval,
    #[serde(skip)]
    began: Option<Instant>,
    /// Training time of earlier starts of the run.
    #[serde(skip)]
    before: Duration,
}

impl Timer {
    /// Creates a callback that ends training after this time: `00:10:00` is ten minutes.
    pub fn new(duration: &str) -> Timer {
        Timer {
            duration: duration.into(),
            interval: TimerInterval::Step,
            began: None,
            before: Duration::ZERO,
        }
    }

    /// Sets when to check the time. Default: `TimerInterval::Step`.
    pub fn interval(mut self, interval: TimerInterval) -> Self {
        self.interval = interval;
        self
    }

    /// Returns the elapsed training time, including all starts of the run.
    pub fn time_elapsed(&self) -> Duration {
        self.before + self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Returns the remaining training time.
    pub fn time_remaining(&self) -> Duration {
        time(&self.duration).unwrap_or_default().saturating_sub(self.time_elapsed())
    }

    fn look(&self, cx: &mut FitCx<'_>) {
        if self.time_remaining().is_zero() {
            let why = || format!("the time limit of {} for this run is reached (Timer)", self.duration);
            cx.stop_because.get_or_insert_with(why);
        }
    }
}

impl ConfigCallback for Timer {
    fn check(&self) -> ArgumentCheck {
        time(&self.duration).map(drop).map_err(|e| ("duration", e))
    }
}

impl Callback for Timer {
    fn state(&self) -> Result<CallbackState> {
        let seconds = CallbackState::float(Some(self.time_elapsed().as_secs_f64()));
        Ok(CallbackState { values: json!({ "seconds": seconds }), ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.before = duration("seconds", state.float_of("seconds")?.unwrap_or(0.0))?;
        Ok(())
    }

    /// Needs no values of a step: the time is checked without waiting for devices.
    fn wants_batch(&self, _step: u64) -> bool {
        self.interval == TimerInterval::Step && self.time_remaining().is_zero()
    }

    fn on_train_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "Timer")?;
        self.began = Some(Instant::now());
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.interval == TimerInterval::Step {
            self.look(cx);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.look(cx);
        Ok(())
    }
}
