//! Input pipeline of `fit`: a thread prefetches the next batch to the device during the current step.
//!
//! If steps and data pipeline share the cores, batches are read on the calling thread instead.
//!
//! It prefetches exactly one batch. A prefetched batch is not yet consumed: each batch carries the data position after
//! it, and the run's position is that of the last batch used by a step. A pipeline with `debug()` is also read on the
//! calling thread.

use crate::model::batch::{Batch, BatchFields, DeviceBatch};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use systole_data::{DatasetIter, PipelinePosition, PipelineReport};
use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_runtime::{Backend, trace};

/// A batch ready for a training step.
pub(crate) struct ReadyBatch {
    /// Host arrays.
    pub batch: Batch,
    /// Device arrays; the copy may still be in progress.
    pub on_device: DeviceBatch,
    /// Data position after this batch, if requested.
    pub position: Option<PipelinePosition>,
}

/// How elements of the dataset become batches on the device.
pub(crate) struct BatchRecipe {
    /// Fields to read.
    pub fields: BatchFields,
    /// Weight of each class in the loss.
    pub class_weight: BTreeMap<i64, f64>,
    /// Target backend.
    pub backend: Arc<dyn Backend>,
    /// Whether to record data positions, for backups.
    pub positions: bool,
    /// Maximum number of batches to read.
    pub most: Option<usize>,
}

impl BatchRecipe {
    fn next(&self, iter: &mut DatasetIter) -> Option<Result<ReadyBatch>> {
        let sample = iter.next()?;
        let position = self.positions.then(|| DatasetIter::position(iter));
        Some(sample.and_then(|sample| {
            let mut batch = Batch::of_fields(&sample, &self.fields)?;
            apply_class_weight(&mut batch, &self.class_weight)?;
            let start = trace::begin();
            let on_device = match self.backend.shares_cores() {
                // Steps read host arrays in place.
                true => batch.buffers(),
                false => batch.put(&*self.backend)?,
            };
            trace::span("data", "copy to device", start, || "{}".into());
            Ok(ReadyBatch { batch, on_device, position })
        }))
    }
}

/// The batches of a pass over the data, in order.
pub(crate) struct InputPipeline {
    iter: Arc<Mutex<DatasetIter>>,
    origin: BatchSource,
}

enum BatchSource {
    /// Read on the calling thread.
    Here(Arc<BatchRecipe>),
    /// Prefetched by a thread. `None`: the thread was stopped.
    Ahead(Option<Receiver<Result<ReadyBatch>>>, Option<JoinHandle<()>>),
}

impl InputPipeline {
    pub fn start(iter: DatasetIter, recipe: BatchRecipe) -> InputPipeline {
        let in_place = iter.runs_in_place() || recipe.backend.shares_cores();
        let (iter, recipe) = (Arc::new(Mutex::new(iter)), Arc::new(recipe));
        let here = BatchSource::Here(recipe.clone());
        if in_place {
            return InputPipeline { iter, origin: here };
        }
        // A rendezvous channel: the blocked sender holds the one prefetched batch.
        let (give, take) = sync_channel(0);
        let shared = iter.clone();
        let thread = Builder::new().name("feed".into()).spawn(move || read_ahead(&shared, &recipe, &give));
        // If no thread can be started, batches are read on demand.
        let origin = thread.map_or(here, |thread| BatchSource::Ahead(Some(take), Some(thread)));
        InputPipeline { iter, origin }
    }

    /// Waits for the next batch of the input pipeline; `None` at the end of the data.
    pub fn next(&mut self) -> Option<Result<ReadyBatch>> {
        match &mut self.origin {
            BatchSource::Here(recipe) => recipe.next(&mut lock(&self.iter)),
            BatchSource::Ahead(take, thread) => match take.as_ref()?.recv() {
                Ok(fed) => Some(fed),
                Err(_) => {
                    // If a function of the pipeline panicked on the thread, resume the panic here.
                    if let Some(Err(panic)) = thread.take().map(JoinHandle::join) {
                        resume_unwind(panic);
                    }
                    None
                }
            },
        }
    }

    /// Returns statistics of the input pipeline's stages so far.
    pub fn report(&self) -> PipelineReport {
        lock(&self.iter).report()
    }
}

impl Drop for InputPipeline {
    /// Waits for the thread to finish its current batch, so that files and memory of the pipeline are released here.
    fn drop(&mut self) {
        if let BatchSource::Ahead(take, thread) = &mut self.origin {
            take.take();
            if let Some(thread) = thread.take() {
                // A panic concerns a batch that was never used.
                let _ = thread.join();
            }
        }
    }
}

fn read_ahead(iter: &Mutex<DatasetIter>, recipe: &BatchRecipe, give: &SyncSender<Result<ReadyBatch>>) {
    for _ in 0..recipe.most.unwrap_or(usize::MAX) {
        let Some(fed) = recipe.next(&mut lock(iter)) else { return };
        if give.send(fed).is_err() {
            return;
        }
    }
}

fn lock(iter: &Mutex<DatasetIter>) -> MutexGuard<'_, DatasetIter> {
    iter.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Multiplies sample weights by the weights of their classes (labels as indices or one-hot).
fn apply_class_weight(batch: &mut Batch, weights: &BTreeMap<i64, f64>) -> Result<()> {
    if weights.is_empty() {
        return Ok(());
    }
    if !batch.more.is_empty() {
        let what = "class_weight is ambiguous for a model with several outputs";
        return Err(Error::new(ErrorKind::Config, what)
            .hint("give sample weights per output: a field OUTPUT_sample_weight"));
    }
    let Some(label) = &batch.label else { return Ok(()) };
    let n = batch.size();
    let classes: Vec<i64> = match label.shape().elements() / n.max(1) {
        1 => (0..n).map(|i| label.get(i).as_i64()).collect(),
        k => (0..n)
            .map(|i| {
                let row = (0..k).map(|j| label.get(i * k + j).as_f64());
                row.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(j, _)| j as i64)
            })
            .collect(),
    };
    let old = batch.weight.as_ref().map(|w| w.convert(DType::F32).to_f32s());
    let new: Vec<f32> = classes
        .iter()
        .enumerate()
        .map(|(i, c)| weights.get(c).copied().unwrap_or(1.0) as f32 * old.as_ref().map_or(1.0, |w| w[i]))
        .collect();
    batch.weight = Some(Literal::from_slice([n], &new)?);
    Ok(())
}
