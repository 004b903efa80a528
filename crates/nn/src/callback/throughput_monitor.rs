//! `ThroughputMonitor` callback: logs training throughput: batches, samples and FLOPs per second, MFU.

use super::callback_trait::{Callback, FitCx};
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use crate::json::{Deserialize, Serialize};
use crate::model::history::Logs;
use systole_ir::cost::cost;
use systole_ir::{Result, err};

/// Callback that adds throughput to the logs of each epoch, without validation: `batches_per_sec`, `samples_per_sec`,
/// `flops_per_sec` from the operations in the step's graph, and `mfu` (model FLOPs utilization), their fraction of the
/// devices' peak.
///
/// The peak is measured on the CPU engine (by the command line, at the run's precision), or given as `available_flops`;
/// otherwise `mfu` is omitted. The first epoch includes compilation.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::ThroughputMonitor, Fit};
/// let monitor = ThroughputMonitor::new().available_flops(1e9);
/// let history = model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(monitor)], ..Default::default() })?;
/// let last = history.last();
/// assert_eq!(last["samples_per_sec"], 4.0 * last["batches_per_sec"]);
/// assert_eq!(last["mfu"], last["flops_per_sec"] / 1e9);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThroughputMonitor {
    /// Peak operations per second of all devices together. Default: as measured.
    pub available_flops: Option<f64>,
    /// Operations per step for a batch size.
    #[serde(skip)]
    step: Option<(u64, f64)>,
}

impl ThroughputMonitor {
    /// Creates a throughput monitor without `mfu`.
    pub fn new() -> ThroughputMonitor {
        ThroughputMonitor::default()
    }

    /// Sets the peak operations per second of all devices together. Default: none.
    pub fn available_flops(mut self, flops: f64) -> Self {
        self.available_flops = Some(flops);
        self
    }

    /// Returns the operations per step from its graph.
    fn flops(&mut self, cx: &mut FitCx<'_>, batch: u64) -> Result<f64> {
        match self.step {
            Some((size, flops)) if size == batch => Ok(flops),
            _ => {
                let graph = cx.model.train_graph(batch as usize)?;
                let flops = cost(&graph).flops;
                self.step = Some((batch, flops));
                Ok(flops)
            }
        }
    }
}

impl ConfigCallback for ThroughputMonitor {
    fn check(&self) -> ArgumentCheck {
        match self.available_flops {
            Some(flops) if !(flops > 0.0 && flops.is_finite()) => {
                let e = err!(Config, "available_flops is {flops}");
                Err((
                    "available_flops",
                    e.hint("set available_flops to FLOP per second, such as 1e11, or omit it to measure the peak rate"),
                ))
            }
            _ => Ok(()),
        }
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.available_flops = self.available_flops.or_else(|| (place.peak_flops)());
    }
}

impl Callback for ThroughputMonitor {
    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "ThroughputMonitor")
    }

    fn values(&mut self, cx: &mut FitCx<'_>) -> Result<Logs> {
        let mut logs = Logs::new();
        let (pace, seconds) = (cx.pace, cx.pace.time.as_secs_f64());
        if cx.is_within_epoch || pace.batches == 0 || seconds <= 0.0 {
            return Ok(logs);
        }
        logs.insert("batches_per_sec", pace.batches as f64 / seconds);
        logs.insert("samples_per_sec", pace.samples as f64 / seconds);
        // A smaller last batch counts by its samples.
        let usual = pace.samples.div_ceil(pace.batches);
        let flops = self.flops(cx, usual)? * pace.samples as f64 / usual as f64 / seconds;
        logs.insert("flops_per_sec", flops);
        if let Some(most) = self.available_flops {
            logs.insert("mfu", flops / most);
        }
        Ok(logs)
    }
}
