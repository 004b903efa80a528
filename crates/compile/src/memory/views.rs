//! Views: turns `dynamic_slice` of contiguous parts into aliases, without a copy.
//!
//! A contiguous slice of an array, such as one iteration's entry of a stacked array, needs no memory of its own. It
//! aliases the sliced array, provided that nothing writes there before the last reader of the slice has run. The offset
//! depends on run-time indices, so each run computes it when it reaches the slicing step.

use crate::options::PipelineOptions;
use crate::program::{ALIGN, Kernel, Location, ProgramSchedule, SlotView};
use systole_ir::{Op, TensorType};

/// Turns slices into views (aliases) of their operands if that is legal. Needs live ranges, and extends those of the
/// sliced arrays.
pub fn run(s: &mut ProgramSchedule, options: &PipelineOptions) {
    for i in 0..s.steps.len() {
        let step = &s.steps[i];
        let Kernel::Op { op: Op::DynamicSlice(_), .. } = &step.kernel else { continue };
        let (of, slice) = (step.inputs[0], step.outputs[0]);
        let is_made = matches!(s.slots[slice].place, Location::Arena(_));
        if !is_made || !lies_together(&step.input_types[0], &step.output_types[0]) {
            continue;
        }
        let last = s.slots[slice].last;
        let stays = match s.slots[of].place {
            Location::View(_) => false,
            Location::Param(p) if !options.donated.contains(&p) => true,
            // The last reader of the array may write over it, so the array must outlive the slice.
            _ => last < s.slots[of].last,
        };
        if stays {
            s.slots[slice].place = Location::View(s.views.len());
            s.slots[of].last = s.slots[of].last.max(last);
            s.views.push(SlotView { of, by: i });
        }
    }
}

/// Whether every slice of `whole` with the shape of `part` is contiguous and starts at a multiple of [`ALIGN`] bytes.
pub fn lies_together(whole: &TensorType, part: &TensorType) -> bool {
    let cut = |&d: &usize| part.shape[d] < whole.shape[d];
    // Start offsets are multiples of the strides of the dimensions that are cut, and the innermost of these has the
    // smallest stride. A slice of the whole array cuts none.
    let Some(last) = (0..part.rank()).rev().find(cut) else { return false };
    let is_line = (whole.shape.strides()[last] * whole.dtype.size()).is_multiple_of(ALIGN);
    part.bytes() > 0 && is_line && (0..last).all(|d| part.shape[d] == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType::{self, F32};
    use systole_ir::{GraphBuilder, Tensor};

    #[test]
    fn only_whole_rows_at_cache_lines_lie_together() {
        let lies = |whole: &[usize], part: &[usize]| {
            lies_together(&TensorType::new(F32, whole.to_vec()), &TensorType::new(F32, part.to_vec()))
        };
        assert!(lies(&[100, 64, 32], &[1, 64, 32]) && lies(&[100, 64, 32], &[7, 64, 32]));
        assert!(lies(&[100, 64, 32], &[1, 3, 32]) && lies(&[5, 6, 16], &[1, 1, 16]));
        assert!(!lies(&[100, 64, 32], &[2, 3, 32]) && !lies(&[100, 64, 32], &[1, 64, 16]));
        // Starts at single elements and at half a cache line are not aligned.
        assert!(
            !lies(&[100], &[5]) && !lies(&[100, 8], &[1, 8]) && !lies(&[3, 0], &[1, 0]) && !lies(&[], &[])
        );
    }

    /// The program of `build(x, i, row)` with `x: f32[8, 64]`, `i: i32[]` and `row: f32[1, 64]`, the slice of `x` at
    /// `i`.
    fn planned(
        donated: &[usize],
        build: impl Fn(&Tensor, &Tensor, &Tensor) -> Vec<Tensor>,
    ) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [8, 64]), "x");
        let i = g.parameter(TensorType::scalar(DType::I32), "i");
        let row = x.dynamic_slice(&[&i, &g.scalar(DType::I32, 0.0)], &[1, 64]);
        let graph = g.finish(&build(&x, &i, &row)).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &PipelineOptions { donated: donated.to_vec(), ..PipelineOptions::default() })
            .unwrap()
    }

    #[test]
    fn a_slice_is_read_in_place_unless_somebody_may_write_there_first() {
        let of_row = |_: &Tensor, _: &Tensor, row: &Tensor| vec![row.dot(&row.transpose(&[1, 0]))];
        assert_eq!(planned(&[], of_row).views.len(), 1);
        // The result may be written over a donated argument.
        assert_eq!(planned(&[0], of_row).views.len(), 0);
        // A later reader of the argument keeps it live beyond the slice.
        let later = |x: &Tensor, _: &Tensor, row: &Tensor| {
            let sum = row.dot(&row.transpose(&[1, 0]));
            vec![x * &sum.broadcast_in_dim(&[8, 64].into(), &[0, 1])]
        };
        assert_eq!(planned(&[0], later).views.len(), 1);
        // A result needs its own memory.
        assert_eq!(planned(&[], |_, _, row| vec![row.clone()]).views.len(), 0);
    }
}
