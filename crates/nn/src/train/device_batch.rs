//! Steps on one batch that stays on the device, for measurements: no data pipeline, no copies, no logs.

use crate::model::Model;
use crate::model::batch::{Batch, DeviceBatch, put};
use std::sync::Arc;
use std::time::Instant;
use systole_ir::Result;
use systole_runtime::{Backend, Buffer, Executable, ExecutableReport, Params, ReadyEvent};

/// Training steps of a model on one batch, with weights, slots and batch on the device. The model is trained by it.
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
    /// One whole step: forward, loss, backward, update, metrics. Where a device works by itself it may go on after this:
    /// [`ready_event`](DeviceBatchTraining::ready_event) says when it has ended.
    pub fn run(&mut self) -> Result<()> {
        self.model.step_on(self.batch.clone())
    }

    /// The last step, where it may be under way still.
    pub fn ready_event(&self) -> Option<ReadyEvent> {
        self.model.state.ready_event()
    }

    /// Mean loss of the steps so far, `NaN` before the first.
    pub fn loss(&self) -> Result<f64> {
        let logs = self.model.compiled()?.train.metrics.logs(&self.model.state.metrics)?;
        Ok(logs.get("loss").unwrap_or(f64::NAN))
    }

    /// What compiling found out.
    pub fn report(&self) -> &ExecutableReport {
        self.program.report()
    }

    /// Milliseconds from the first trace to a program ready to run.
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
    /// The (first) output of the batch, on the device, which may be computing it still ([`Buffer::ready_event`]).
    pub fn run(&mut self) -> Result<Buffer> {
        Ok(self.model.compiled()?.predict.run(&self.model.state, self.batch.0.clone())?.swap_remove(0))
    }

    /// What compiling found out.
    pub fn report(&self) -> &ExecutableReport {
        self.program.report()
    }

    /// Milliseconds from the first trace to a program ready to run.
    pub fn compile_ms(&self) -> f64 {
        self.compile_ms
    }
}

impl Model {
    /// Compiles the training step for `batch` and puts everything that it needs on the device.
    ///
    /// # Errors
    /// When the model is not compiled, or the batch does not fit it.
    pub fn device_batch_training(&mut self, batch: &Batch) -> Result<DeviceBatchTraining<'_>> {
        self.ready_for(batch)?;
        self.state.metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        // First, so that a program which does not fit into memory is refused before any weight is drawn.
        let start = Instant::now();
        let types = batch.buffers();
        let program = self.compiled()?.train.prepare(&self.state, &types, self.controls())?;
        let compile_ms = millis(start);
        let batch = self.move_to_device(batch)?;
        Ok(DeviceBatchTraining { model: self, batch, program, compile_ms })
    }

    /// Compiles the prediction of `batch` and puts everything that it needs on the device.
    ///
    /// # Errors
    /// When the model is not compiled, or the batch does not fit it.
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

    /// Replaces host arrays of the state by arrays on the device, and copies the batch there.
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
    // One at a time, so that no more than one array exists twice.
    let names: Vec<String> = group.names().map(str::to_string).collect();
    for name in names {
        if let Some(buffer) = group.get(&name).cloned() {
            group.insert(name, put(buffer, device)?);
        }
    }
    Ok(())
}
