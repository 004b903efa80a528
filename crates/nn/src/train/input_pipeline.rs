//! The batches of `fit`: each is read and brought to the device while the step before it runs, by a thread of its own.
//! Where steps and pipelines share the cores, that thread would only disturb them.
//!
//! One batch is ahead, no more. It has not been consumed: a batch carries the place behind it, and the run's place is that
//! of the last batch that a step took. There, and from a pipeline with `debug()`, batches are read on the calling thread,
//! when a step asks for them.

use crate::model::batch::{Batch, BatchFields, DeviceBatch};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use systole_data::{DatasetIter, PipelinePosition, PipelineReport};
use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_runtime::{Backend, trace};

/// What a step takes.
pub(crate) struct ReadyBatch {
    /// The arrays on the host.
    pub batch: Batch,
    /// The same on the device, or on their way to it.
    pub on_device: DeviceBatch,
    /// The place behind this batch, where it is wanted.
    pub position: Option<PipelinePosition>,
}

/// How batches are made of elements.
pub(crate) struct BatchRecipe {
    /// The fields that are taken.
    pub fields: BatchFields,
    /// Weight of each class in the loss.
    pub class_weight: BTreeMap<i64, f64>,
    /// Where they are put.
    pub backend: Arc<dyn Backend>,
    /// Whether places are wanted: for backups.
    pub positions: bool,
    /// No more than these are read.
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
            let on_device = batch.put(&*self.backend)?;
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
    /// The calling thread.
    Here(Arc<BatchRecipe>),
    /// The thread that is a batch ahead. `None`: it has been told to end.
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
        // Without room: what waits to be taken is the one batch ahead.
        let (give, take) = sync_channel(0);
        let shared = iter.clone();
        let thread = Builder::new().name("feed".into()).spawn(move || read_ahead(&shared, &recipe, &give));
        // Where no thread can be had, each batch is read when it is asked for.
        let origin = thread.map_or(here, |thread| BatchSource::Ahead(Some(take), Some(thread)));
        InputPipeline { iter, origin }
    }

    /// The next batch, or why there is none; waits for it.
    pub fn next(&mut self) -> Option<Result<ReadyBatch>> {
        match &mut self.origin {
            BatchSource::Here(recipe) => recipe.next(&mut lock(&self.iter)),
            BatchSource::Ahead(take, thread) => match take.as_ref()?.recv() {
                Ok(fed) => Some(fed),
                Err(_) => {
                    // What a function of the pipeline panicked with, if that ended the thread, is the caller's.
                    if let Some(Err(panic)) = thread.take().map(JoinHandle::join) {
                        resume_unwind(panic);
                    }
                    None
                }
            },
        }
    }

    /// What the pipeline's stages did, so far.
    pub fn report(&self) -> PipelineReport {
        lock(&self.iter).report()
    }
}

impl Drop for InputPipeline {
    /// The thread ends with the batch that it reads now: files and memory of the pipeline are given back here.
    fn drop(&mut self) {
        if let BatchSource::Ahead(take, thread) = &mut self.origin {
            take.take();
            if let Some(thread) = thread.take() {
                // What it panicked with was about a batch that nobody took.
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

/// Multiplies each sample's weight by that of its class (labels as numbers or one-hot).
fn apply_class_weight(batch: &mut Batch, weights: &BTreeMap<i64, f64>) -> Result<()> {
    if weights.is_empty() {
        return Ok(());
    }
    if !batch.more.is_empty() {
        let what = "class_weight does not say which of several outputs its classes are of";
        return Err(
            Error::new(ErrorKind::Config, what).hint("give weights of samples: a field OUTPUT_sample_weight")
        );
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
