//! Row-wise fusion: merges reductions over trailing dimensions and the maps around them (softmax, layer normalization,
//! cross-entropy, and their gradients) into one step.
//!
//! A row is one index of the leading dimensions that the reduction keeps. The fused step runs all its stages for a few
//! rows before it continues with the next rows, so that intermediate arrays stay in L1 and L2 and are not materialized.
//! Starting from each reduction, nearby steps are added while the set stays convex (no path leaves it and returns) and
//! every stage needs only its own row of the results of other stages.

use crate::program::{FusedRows, Kernel, Map, MapLoad, ProgramSchedule, SlotId, Step};
use std::collections::HashSet;
use systole_ir::bug;

/// Maximum bytes of one row of all arrays of a fused step. A longer row does not stay in L2.
const ROW_BYTES: usize = 3 << 18;
/// Number of steps before and after the reduction that are considered; limits compile time.
const WINDOW: usize = 128;
/// Maximum number of stages of a fused step.
const MAX_STAGES: usize = 32;

/// Fuses row reductions with the reductions and maps around them where that is legal. Runs before the buffer plan.
pub fn join(s: &mut ProgramSchedule) {
    let mut seed = 0;
    while seed < s.steps.len() {
        if let Some(cluster) = RowCluster::around(s, seed) {
            seed = cluster.replace(s);
        }
        seed += 1;
    }
}

/// Number of rows, if a step reduces the trailing dimensions of each row to one value.
fn folded_rows(step: &Step) -> Option<usize> {
    let Kernel::Reduce { map, folded, .. } = &step.kernel else { return None };
    let kept = folded.iter().take_while(|f| !**f).count();
    let trailing = kept < folded.len() && folded[kept..].iter().all(|f| *f);
    let rows: usize = map.shape.dims()[..kept].iter().product();
    (trailing && rows > 1 && map.shape.elements() > 0).then_some(rows)
}

/// Whether a step computes each of `rows` rows from the same row of the arrays that the cluster writes (`inner`).
fn works_on_rows(step: &Step, rows: usize, inner: &dyn Fn(SlotId) -> bool) -> bool {
    let map = match &step.kernel {
        Kernel::Map(m) => m,
        Kernel::Reduce { map, .. } if folded_rows(step) == Some(rows) => map,
        _ => return false,
    };
    let divides = map.shape.elements() > 0 && map.shape.elements().is_multiple_of(rows);
    let aligned = |(k, slot): (usize, &SlotId)| {
        let is_operand = map.loads_of(k).next().is_some();
        !inner(*slot) || is_operand && map.loads_of(k).all(|l| keeps_rows(map, l, rows))
    };
    divides && step.inputs.iter().enumerate().all(aligned)
}

/// Whether row `r` of the index space reads only row `r` of the loaded array: a row-major array of the leading
/// dimensions, broadcast over the trailing ones, whose number of elements is a multiple of `rows`.
fn keeps_rows(map: &Map, load: &MapLoad, rows: usize) -> bool {
    let MapLoad::Array { strides, offset, .. } = load else { return true };
    let dims = map.shape.dims();
    let leading = strides.iter().rposition(|&s| s != 0).map_or(0, |d| d + 1);
    let mut stride = 1;
    for d in (0..leading).rev() {
        if strides[d] != stride {
            return false;
        }
        stride *= dims[d];
    }
    *offset == 0 && stride.is_multiple_of(rows)
}

/// Steps to be fused, in order, and their number of rows.
struct RowCluster {
    rows: usize,
    members: Vec<usize>,
}

impl RowCluster {
    /// The steps that can be fused with the reduction `seed`; `None` if no other step works on whole rows.
    fn around(s: &ProgramSchedule, seed: usize) -> Option<RowCluster> {
        let rows = folded_rows(&s.steps[seed])?;
        let mut c = RowCluster { rows, members: vec![seed] };
        let window = seed.saturating_sub(WINDOW)..(seed + WINDOW).min(s.steps.len());
        loop {
            let more = window.clone().find_map(|t| c.with(s, t));
            match more {
                Some(larger) if larger.members.len() <= MAX_STAGES => c = larger,
                _ => break,
            }
        }
        let whole = |&m: &usize| match &s.steps[m].kernel {
            Kernel::Map(map) | Kernel::Reduce { map, .. } => map.shape.elements() > rows,
            _ => false,
        };
        (c.members.iter().filter(|m| whole(m)).count() > 1).then_some(c)
    }

    /// The cluster with step `t` added, if that is legal and `t` shares an array with a member.
    fn with(&self, s: &ProgramSchedule, t: usize) -> Option<RowCluster> {
        if self.members.contains(&t) || !works_on_rows(&s.steps[t], self.rows, &|_| false) {
            return None;
        }
        let step = &s.steps[t];
        let near = self.members.iter().any(|&m| {
            let other = &s.steps[m];
            let shared = step.inputs.iter().zip(&step.input_types).any(|(x, ty)| {
                ty.elements() > self.rows
                    && ty.elements().is_multiple_of(self.rows)
                    && other.inputs.contains(x)
            });
            shared
                || step.inputs.iter().any(|x| other.outputs.contains(x))
                || step.outputs.iter().any(|x| other.inputs.contains(x))
        });
        if !near {
            return None;
        }
        let mut members = self.members.clone();
        members.push(t);
        members.sort_unstable();
        let c = RowCluster { rows: self.rows, members };
        (c.is_convex(s) && c.is_aligned(s) && c.row_bytes(s) <= ROW_BYTES).then_some(c)
    }

    /// Slots that members write.
    fn made(&self, s: &ProgramSchedule) -> HashSet<SlotId> {
        self.members.iter().flat_map(|&m| s.steps[m].outputs.iter().copied()).collect()
    }

    /// Steps between the members that depend on a member and so must move after all of them. `None`: a member depends
    /// on such a step, so the set is not convex.
    fn later(&self, s: &ProgramSchedule) -> Option<Vec<usize>> {
        let (&first, &last) = (self.members.first()?, self.members.last()?);
        let mut tainted = self.made(s);
        let own = tainted.clone();
        let mut later = Vec::new();
        for u in first..=last {
            let step = &s.steps[u];
            if self.members.binary_search(&u).is_ok() {
                if step.inputs.iter().any(|x| tainted.contains(x) && !own.contains(x)) {
                    return None;
                }
            } else if step.inputs.iter().any(|x| tainted.contains(x)) {
                tainted.extend(&step.outputs);
                later.push(u);
            }
        }
        Some(later)
    }

    fn is_convex(&self, s: &ProgramSchedule) -> bool {
        self.later(s).is_some()
    }

    fn is_aligned(&self, s: &ProgramSchedule) -> bool {
        let made = self.made(s);
        self.members.iter().all(|&m| works_on_rows(&s.steps[m], self.rows, &|x| made.contains(&x)))
    }

    /// Bytes of one row of all arrays that members read or write.
    fn row_bytes(&self, s: &ProgramSchedule) -> usize {
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for &m in &self.members {
            let step = &s.steps[m];
            for x in step.inputs.iter().chain(&step.outputs).filter(|x| seen.insert(**x)) {
                bytes += s.slots[*x].bytes / self.rows;
            }
        }
        bytes
    }

    /// Replaces the members by one step; returns its index.
    fn replace(self, s: &mut ProgramSchedule) -> usize {
        let later = self.later(s).unwrap_or_else(|| bug!("the fused steps are not convex"));
        let (first, last) = (self.members[0], self.members[self.members.len() - 1]);
        let joined = self.step(s);
        // Intermediate arrays need no memory in the arena.
        self.made(s).into_iter().filter(|x| !joined.outputs.contains(x)).for_each(|x| s.slots[x].bytes = 0);
        let mut before = Vec::new();
        let mut after = Vec::new();
        for (k, step) in s.steps.splice(first..=last, []).enumerate() {
            let u = first + k;
            if later.contains(&u) {
                after.push(step);
            } else if self.members.binary_search(&u).is_err() {
                before.push(step);
            }
        }
        let at = first + before.len();
        let all = before.into_iter().chain(std::iter::once(joined)).chain(after);
        s.steps.splice(first..first, all);
        at
    }

    fn step(&self, s: &ProgramSchedule) -> Step {
        let made = self.made(s);
        let wanted: HashSet<SlotId> = (0..s.steps.len())
            .filter(|u| self.members.binary_search(u).is_err())
            .flat_map(|u| s.steps[u].inputs.iter().copied())
            .chain(s.results.iter().map(|r| r.slot))
            .collect();
        let mut inputs: Vec<SlotId> = Vec::new();
        let (mut input_types, mut outputs, mut output_types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut locals, mut local_bytes) = (Vec::new(), Vec::new());
        for &m in &self.members {
            let step = &s.steps[m];
            for (&x, ty) in step.inputs.iter().zip(&step.input_types) {
                if !made.contains(&x) && !inputs.contains(&x) {
                    inputs.push(x);
                    input_types.push(ty.clone());
                }
            }
            for (&x, ty) in step.outputs.iter().zip(&step.output_types) {
                if wanted.contains(&x) {
                    outputs.push(x);
                    output_types.push(ty.clone());
                } else {
                    locals.push(x);
                    local_bytes.push(s.slots[x].bytes / self.rows);
                }
            }
        }
        let arrays: Vec<SlotId> = [&inputs[..], &outputs, &locals].concat();
        let number = |x: &SlotId| arrays.iter().position(|a| a == x).unwrap_or(0);
        let stages = self.members.iter().map(|&m| {
            let step = &s.steps[m];
            Step {
                inputs: step.inputs.iter().map(number).collect(),
                outputs: step.outputs.iter().map(number).collect(),
                ..step.clone()
            }
        });
        Step {
            kernel: Kernel::Rows(FusedRows {
                rows: self.rows,
                stages: stages.collect(),
                locals: local_bytes,
            }),
            inputs,
            input_types,
            outputs,
            output_types,
            scope: s.steps[self.members[0]].scope.clone(),
            flops: self.members.iter().map(|&m| s.steps[m].flops).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType::F32, GraphBuilder, Tensor, TensorType, vjp};

    /// The schedule of `f(x, shift)` and its gradients; `shift` is broadcast from the last dimension.
    fn steps(dims: &[usize], f: impl Fn(&Tensor, &Tensor) -> Tensor) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, dims), "x");
        let shift = g.parameter(TensorType::new(F32, &dims[dims.len() - 1..]), "shift");
        let y = f(&x, &shift.broadcast_in_dim(x.shape(), &[dims.len() - 1]));
        let dy = g.parameter(y.ty().clone(), "dy");
        let grads = vjp(&[&y], &[&dy], &[&x, &shift]);
        let graph = g.finish(&[&[y], &grads[..]].concat()).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &crate::PipelineOptions::default()).unwrap()
    }

    fn centred(x: &Tensor, dims: &[usize]) -> Tensor {
        let centred = x - x.mean(dims).broadcast_except(x.shape(), dims);
        let variance = (&centred * &centred).mean(dims);
        centred * (variance + 1e-3).rsqrt().broadcast_except(x.shape(), dims)
    }

    #[test]
    fn work_along_rows_is_one_step_without_arrays_in_between() {
        type Function = fn(&Tensor, &Tensor) -> Tensor;
        let functions: [Function; 3] = [|x, _| x.softmax(), |x, _| x.log_softmax(), |x, _| centred(x, &[2])];
        for f in functions {
            let s = steps(&[4, 8, 300], f);
            // The second step is the gradient w.r.t. the unused `shift`: zeros.
            assert_eq!(s.steps.len(), 2, "{s}");
            assert!(s.steps.iter().any(|x| matches!(&x.kernel, Kernel::Rows(r) if r.rows == 32)), "{s}");
            assert_eq!(s.arena_bytes, 0, "{s}");
        }
    }

    #[test]
    fn rows_beyond_the_caches_are_not_joined() {
        let s = steps(&[2, 1 << 20], |x, _| x.softmax());
        assert!(s.steps.iter().all(|step| !matches!(step.kernel, Kernel::Rows(_))), "{s}");
    }

    #[test]
    fn statistics_of_columns_read_only_what_exists() {
        let s = steps(&[6, 50, 32], |x, shift| (centred(x, &[0, 1]) + shift).relu());
        let large = |step: &Step| step.output_types.iter().filter(|t| t.elements() == 6 * 50 * 32).count();
        // Result and input gradient: no centered value, square or mask is stored.
        assert_eq!(s.steps.iter().map(large).sum::<usize>(), 2, "{s}");
        // Three passes over the data: mean, variance, and all sums of the gradient at once. The other two reductions
        // are over per-sample values.
        let reads = |step: &&Step| step.input_types.iter().any(|t| t.elements() == 6 * 50 * 32);
        let folds = || s.steps.iter().filter(|step| matches!(step.kernel, Kernel::Reduce { .. }));
        assert_eq!((folds().filter(reads).count(), folds().count()), (3, 5), "{s}");
    }
}
