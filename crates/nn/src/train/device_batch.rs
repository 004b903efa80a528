//! Runs training steps and predictions on one batch that stays on the device, for benchmarks.
//!
//! There is no data pipeline, no copies and no logs.

use crate::model::Model;
use crate::model::batch::{Batch, DeviceBatch, put};
use std::sync::Arc;
use std::time::Instant;
use systole_ir::Result;
use systole_runtime::{Backend, Buffer, Executable, ExecutableReport, Params, ReadyEvent};

/// Training steps of a model on one batch, with weights, optimizer slots and batch on the device. Trains the model.
///
/// ```
/// use systole_nn::{layers::*, loss::mean_squared_error, optimizer::sgd, Batch, Compile, Model};
/// use systole_ir::Literal;
/// let mut model = Model::sequential([dense(1)]);
/// model.compile(Compile { optimizer: sgd(0.1), loss: mean_squared_error(), ..Default::default() })?;
/// let x = Literal::from_slice([4, 2], &[0f32, 1., 1., 0., 1., 1., 0., 0.])?;
/// let y = Literal::from_slice([4, 1], &[1f32, 1., 2., 0.])?;
/// let batch = Batch { inputs: vec![x], label: Some(y), ..Default::default() };
/// let mut step = model.device_batch_training(&batch)?;
/// step.run()?;
/// let first = step.loss()?;
/// for _ in 0..20 { step.run()?; }
/// assert!(step.loss()? < first);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct DeviceBatchTraining<'m> {
    model: &'m mut Model,
    batch: DeviceBatch,
    program: Arc<dyn Executable>,
    compile_ms: f64,
}

impl DeviceBatchTraining<'_> {
    /// Runs one full training step: forward, loss, backward, update, metrics. An asynchronous device may still be
    /// computing afterwards; [`ready_event`](DeviceBatchTraining::ready_event) reports when it is done.
    pub fn run(&mut self) -> Result<()> {
        self.model.step_on(self.batch.clone())
    }

    /// Returns the completion event of the last step, if it may still be running.
    pub fn ready_event(&self) -> Option<ReadyEvent> {
        self.model.state.ready_event()
    }

    /// Returns the mean loss of the steps so far, `NaN` before the first.
    pub fn loss(&self) -> Result<f64> {
        let logs = self.model.compiled()?.train.metrics.logs(&self.model.state.metrics)?;
        Ok(logs.get("loss").unwrap_or(f64::NAN))
    }

    /// Returns the compiler's report on the training step.
    pub fn report(&self) -> &ExecutableReport {
        self.program.report()
    }

    /// Returns the milliseconds from the first trace to the compiled training step.
    pub fn compile_ms(&self) -> f64 {
        self.compile_ms
    }
}

/// Predictions of a model for one batch, with weights and batch on the device.
pub struct DeviceBatchPrediction<'m> {
    model: &'m Model,
    batch: DeviceBatch,
    program: Arc<dyn Executable>,
    compile_ms: f64,
}

impl DeviceBatchPrediction<'_> {
    /// Runs the prediction and returns its first output as a device array, which may not be ready yet
    /// ([`Buffer::ready_event`]).
    pub fn run(&mut self) -> Result<Buffer> {
        Ok(self.model.compiled()?.predict.run(&self.model.state, self.batch.0.clone())?.swap_remove(0))
    }

    /// Returns the compiler's report on the prediction program.
    pub fn report(&self) -> &ExecutableReport {
        self.program.report()
    }

    /// Returns the milliseconds from the first trace to the compiled prediction program.
    pub fn compile_ms(&self) -> f64 {
        self.compile_ms
    }
}

impl Model {
    /// Compiles the training step for `batch` and moves weights, state and batch to the device.
    ///
    /// # Errors
    /// If the model is not compiled, or the batch is incompatible with it.
    pub fn device_batch_training(&mut self, batch: &Batch) -> Result<DeviceBatchTraining<'_>> {
        self.ready_for(batch)?;
        self.state.metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        // Compile first, so that a program that does not fit into memory fails before weights are initialized.
        let start = Instant::now();
        let types = batch.buffers();
        let program = self.compiled()?.train.prepare(&self.state, &types, self.controls())?;
        let compile_ms = millis(start);
        let batch = self.move_to_device(batch)?;
        Ok(DeviceBatchTraining { model: self, batch, program, compile_ms })
    }

    /// Compiles the prediction for `batch` and moves weights and batch to the device.
    ///
    /// # Errors
    /// If the model is not compiled, or the batch is incompatible with it.
    pub fn device_batch_prediction(&mut self, batch: &Batch) -> Result<DeviceBatchPrediction<'_>> {
        if !self.is_built() {
            self.build(&batch.sample_types()?)?;
        }
        self.check_batch(batch)?;
        let start = Instant::now();
        let types = batch.buffers();
        let program = self.compiled()?.predict.prepare(&self.state, types.0)?;
        let compile_ms = millis(start);
        let batch = self.move_to_device(batch)?;
        Ok(DeviceBatchPrediction { model: self, batch, program, compile_ms })
    }

    /// Replaces host arrays of the state by device arrays, and copies the batch to the device.
    fn move_to_device(&mut self, batch: &Batch) -> Result<DeviceBatch> {
        let device = self.compiled()?.backend.clone();
        let state = &mut self.state;
        for group in [&mut state.trainable, &mut state.frozen, &mut state.optimizer, &mut state.metrics] {
            put_all(group, &*device)?;
        }
        batch.put(&*device)
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn put_all(group: &mut Params<Buffer>, device: &dyn Backend) -> Result<()> {
    // One at a time, so that at most one array exists twice.
    let names: Vec<String> = group.names().map(str::to_string).collect();
    for name in names {
        if let Some(buffer) = group.get(&name).cloned() {
            group.insert(name, put(buffer, device)?);
        }
    }
    Ok(())
}
