//! Where tensors lie, and how many samples go through a part of the graph together.
//!
//! The graph is cut into segments where tensors become much smaller: a segment is run on so many samples at a time that what it
//! reads and writes stays in the cache, and where tensors are small, many samples share what is read of the weights.
//! Tensors that are made in one segment and read in another hold all samples; the others are written anew for each part.

use systole_tflite::TfliteModel;

/// Bytes that a step reads and writes, which stay in a core's cache.
const NEAR: usize = 1 << 20;
/// Bytes of all tensors of the samples that are together.
const TOGETHER: usize = 1 << 26;
/// Samples that are together, at most.
const MOST: usize = 256;

/// Steps that are run on some samples at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub steps: std::ops::Range<usize>,
    pub samples: usize,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorSlot {
    pub slot: usize,
    /// Bytes of a sample.
    pub bytes: usize,
    /// Whether it holds all samples, rather than those of a part.
    pub is_whole: bool,
}

/// What a step reads and makes: tensors, of which aliases are one.
pub(crate) struct StepTensors {
    pub reads: Vec<usize>,
    pub makes: Vec<usize>,
}

/// The plan of a graph.
#[derive(Debug)]
pub(crate) struct MemoryPlan {
    /// By tensor; `None`: constants, and what nothing makes.
    pub homes: Vec<Option<TensorSlot>>,
    /// Bytes of a sample in each slot.
    pub slots: Vec<usize>,
    pub segments: Vec<Segment>,
    /// Samples that are together.
    pub samples: usize,
}

/// When a tensor must be kept.
#[derive(Clone, Copy)]
struct TensorLifetime {
    from: usize,
    to: usize,
    is_whole: bool,
}

impl MemoryPlan {
    /// The plan of steps. `root` says which tensor's memory a tensor has.
    pub fn new(model: &TfliteModel, steps: &[StepTensors], root: &[usize]) -> MemoryPlan {
        let bytes = |t: usize| model.tensors.get(t).map_or(0, |t| t.ty.bytes());
        let segments = segments(steps, &bytes);
        let spans = spans(model, steps, &segments, root);
        let mut homes = vec![None; model.tensors.len()];
        // The slot's size, and until when it is taken.
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

/// Samples of which a step's operands stay near: a power of two.
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
            // A step that could take twice as many begins a segment; one that can take fewer makes its own take fewer.
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
    // What is given is there before the first step.
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
    // Parts of a segment are run one after the other: what holds all samples is taken from its first step on.
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

    /// A chain of tensors of these sizes.
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
        // What passes from one segment to another holds all samples, and nothing else is written there meanwhile.
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
