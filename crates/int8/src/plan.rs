//! Memory planning and batching: assigns tensors to memory slots and chooses the batch size of each segment.
//!
//! The graph is split into segments where tensors become much smaller. A segment runs on as many samples at a time as
//! fit into the cache; with small tensors, many samples share one read of the weights. Tensors that cross segments hold
//! all samples; the others are overwritten for each batch of a segment.

use systole_tflite::TfliteModel;

/// Bytes that a step may read and write to stay in a core's cache.
const NEAR: usize = 1 << 20;
/// Maximum bytes of all tensors of a batch.
const TOGETHER: usize = 1 << 26;
/// Maximum samples per batch.
const MOST: usize = 256;

/// Consecutive steps that run on the same number of samples at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub steps: std::ops::Range<usize>,
    pub samples: usize,
}

/// Memory slot of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorSlot {
    pub slot: usize,
    /// Bytes per sample.
    pub bytes: usize,
    /// Whether it holds all samples, not only those of the segment's current batch.
    pub is_whole: bool,
}

/// Tensors that a step reads and writes; aliases count as one tensor.
pub(crate) struct StepTensors {
    pub reads: Vec<usize>,
    pub makes: Vec<usize>,
}

/// Memory plan of a graph.
#[derive(Debug)]
pub(crate) struct MemoryPlan {
    /// Slot of each tensor; `None` for constants and tensors that no step writes.
    pub homes: Vec<Option<TensorSlot>>,
    /// Bytes per sample of each slot.
    pub slots: Vec<usize>,
    pub segments: Vec<Segment>,
    /// Maximum samples per batch.
    pub samples: usize,
}

/// Range of steps during which a tensor must stay in memory.
#[derive(Clone, Copy)]
struct TensorLifetime {
    from: usize,
    to: usize,
    is_whole: bool,
}

impl MemoryPlan {
    /// Plans the memory of a program's steps. `root[t]`: the tensor whose memory tensor `t` shares.
    pub fn new(model: &TfliteModel, steps: &[StepTensors], root: &[usize]) -> MemoryPlan {
        let bytes = |t: usize| model.tensors.get(t).map_or(0, |t| t.ty.bytes());
        let segments = segments(steps, &bytes);
        let spans = spans(model, steps, &segments, root);
        let mut homes = vec![None; model.tensors.len()];
        // Each slot's size, and the step until which it is occupied.
        let mut slots: Vec<(usize, usize)> = Vec::new();
        let mut order: Vec<usize> = (0..spans.len()).filter(|t| spans[*t].is_some()).collect();
        order.sort_by_key(|t| spans[*t].map_or(0, |s| s.from));
        for t in order {
            let Some(span) = spans[t] else { continue };
            let fits = |(_, (size, until)): &(usize, &(usize, usize))| *until < span.from && *size > 0;
            let free = slots.iter().enumerate().filter(fits);
            let best = free.min_by_key(|(_, (size, _))| size.abs_diff(bytes(t))).map(|(i, _)| i);
            let slot = best.unwrap_or_else(|| {
                slots.push((1, 0));
                slots.len() - 1
            });
            slots[slot] = (slots[slot].0.max(bytes(t)), span.to);
            homes[t] = Some(TensorSlot { slot, bytes: bytes(t), is_whole: span.is_whole });
        }
        for t in 0..homes.len() {
            homes[t] = homes[root[t]];
        }
        let slots: Vec<usize> = slots.into_iter().map(|(size, _)| size).collect();
        let samples = (TOGETHER / slots.iter().sum::<usize>().max(1)).clamp(1, MOST);
        MemoryPlan { homes, slots, segments, samples }
    }
}

/// Returns the number of samples (a power of two) whose operands of this step fit into the cache.
fn near(step: &StepTensors, bytes: &impl Fn(usize) -> usize) -> usize {
    let all: usize = step.reads.iter().chain(&step.makes).map(|t| bytes(*t)).sum();
    let samples = (NEAR / all.max(1)).clamp(1, MOST);
    1 << samples.ilog2()
}

fn segments(steps: &[StepTensors], bytes: &impl Fn(usize) -> usize) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        let samples = near(step, bytes);
        match all.last_mut() {
            // A step that could process twice as many samples starts a segment; one that needs fewer reduces its
            // segment's number.
            Some(last) if samples < 2 * last.samples || samples == last.samples => {
                last.samples = last.samples.min(samples);
                last.steps.end = n + 1;
            }
            _ => all.push(Segment { steps: n..n + 1, samples }),
        }
    }
    all
}

fn spans(
    model: &TfliteModel,
    steps: &[StepTensors],
    segments: &[Segment],
    root: &[usize],
) -> Vec<Option<TensorLifetime>> {
    let segment = |step: usize| segments.iter().find(|s| s.steps.contains(&step));
    let begin = |step: usize| segment(step).map_or(0, |s| s.steps.start);
    let end = |step: usize| segment(step).map_or(steps.len(), |s| s.steps.end);
    let mut spans: Vec<Option<TensorLifetime>> = vec![None; model.tensors.len()];
    // Inputs exist before the first step.
    for &t in &model.inputs {
        spans[root[t]] = Some(TensorLifetime { from: 0, to: end(0), is_whole: true });
    }
    for (n, step) in steps.iter().enumerate() {
        for t in step.makes.iter().map(|t| root[*t]) {
            spans[t].get_or_insert(TensorLifetime { from: n, to: n, is_whole: false });
        }
        for t in step.reads.iter().map(|t| root[*t]) {
            if let Some(span) = &mut spans[t] {
                span.is_whole |= begin(span.from) != begin(n);
                span.to = span.to.max(if span.is_whole { end(n) } else { n });
            }
        }
    }
    for &t in &model.outputs {
        if let Some(span) = &mut spans[root[t]] {
            (span.to, span.is_whole) = (usize::MAX, true);
        }
    }
    // Batches of a segment run one after the other, so a tensor of all samples occupies memory from the segment's first
    // step.
    for span in spans.iter_mut().flatten().filter(|s| s.is_whole) {
        span.from = begin(span.from);
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::DType;
    use systole_tflite::{TfliteOp, TfliteOperator, TfliteTensor};

    /// A chain of steps over tensors of these sizes.
    fn chain(sizes: &[usize]) -> (TfliteModel, Vec<StepTensors>, Vec<usize>) {
        let model = TfliteModel {
            tensors: sizes.iter().map(|n| TfliteTensor::new("t", [1, *n], DType::I8)).collect(),
            operators: (1..sizes.len()).map(|i| TfliteOperator::new(TfliteOp::Relu, [i - 1], [i])).collect(),
            inputs: vec![0],
            outputs: vec![sizes.len() - 1],
            ..TfliteModel::default()
        };
        let steps = (1..sizes.len()).map(|i| StepTensors { reads: vec![i - 1], makes: vec![i] }).collect();
        (model, steps, (0..sizes.len()).collect())
    }

    #[test]
    fn small_tensors_go_together_and_large_ones_stay_near() {
        let (model, steps, root) = chain(&[500_000, 600_000, 600_000, 60_000, 1000, 1000, 10]);
        let plan = MemoryPlan::new(&model, &steps, &root);
        let found: Vec<(usize, usize)> = plan.segments.iter().map(|s| (s.steps.end, s.samples)).collect();
        assert_eq!(found, [(3, 1), (4, 16), (6, 256)]);
        // Tensors that cross segments hold all samples, and their memory is not shared in the meantime.
        let homes: Vec<TensorSlot> = plan.homes.iter().flatten().copied().collect();
        assert_eq!(
            homes.iter().map(|h| h.is_whole).collect::<Vec<_>>(),
            [true, false, false, true, true, false, true]
        );
        assert!([1, 2].iter().all(|t| homes[*t].slot != homes[3].slot && homes[*t].slot != homes[0].slot));
        assert!(plan.slots.len() < 7, "{plan:?}");
        assert!(homes.iter().all(|h| plan.slots[h.slot] >= h.bytes));
    }
}
