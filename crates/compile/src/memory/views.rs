//! Slices that are read where they lie: `dynamic_slice` that moves nothing.
//!
//! A contiguous part of an array, as one trip's entry of an array of all trips is, needs no memory of its own: its place
//! is the place in the whole, as long as nobody writes there before its last reader is done. Where that is depends on
//! indices, so each run looks it up when the slicing step's turn comes.

use crate::options::Options;
use crate::program::{ALIGN, Kernel, Location, Schedule, View};
use systole_ir::{Op, TensorType};

/// Gives slices their places in their operands. Lifetimes are known, and are kept right.
pub fn run(s: &mut Schedule, options: &Options) {
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
            // Its last reader may write over it.
            _ => last < s.slots[of].last,
        };
        if stays {
            s.slots[slice].place = Location::View(s.views.len());
            s.slots[of].last = s.slots[of].last.max(last);
            s.views.push(View { of, by: i });
        }
    }
}

/// Whether a block of `part`'s size lies together in `whole`, and everywhere at a multiple of [`ALIGN`] bytes.
pub fn lies_together(whole: &TensorType, part: &TensorType) -> bool {
    let cut = |&d: &usize| part.shape[d] < whole.shape[d];
    // Starts are multiples of the distances along the dimensions that are cut; of a whole, none is.
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
        // At elements, and at half a line.
        assert!(
            !lies(&[100], &[5]) && !lies(&[100, 8], &[1, 8]) && !lies(&[3, 0], &[1, 0]) && !lies(&[], &[])
        );
    }

    /// The program of `x: f32[8, 64]`, an index and what `build` makes of them and of the index's row.
    fn planned(donated: &[usize], build: impl Fn(&Tensor, &Tensor, &Tensor) -> Vec<Tensor>) -> Schedule {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [8, 64]), "x");
        let i = g.parameter(TensorType::scalar(DType::I32), "i");
        let row = x.dynamic_slice(&[&i, &g.scalar(DType::I32, 0.0)], &[1, 64]);
        let graph = g.finish(&build(&x, &i, &row)).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &Options { donated: donated.to_vec(), ..Options::default() }).unwrap()
    }

    #[test]
    fn a_slice_is_read_in_place_unless_somebody_may_write_there_first() {
        let of_row = |_: &Tensor, _: &Tensor, row: &Tensor| vec![row.dot(&row.transpose(&[1, 0]))];
        assert_eq!(planned(&[], of_row).views.len(), 1);
        // The result could take the place of an argument that is given away.
        assert_eq!(planned(&[0], of_row).views.len(), 0);
        // It lives longer, so nobody does.
        let later = |x: &Tensor, _: &Tensor, row: &Tensor| {
            let sum = row.dot(&row.transpose(&[1, 0]));
            vec![x * &sum.broadcast_in_dim(&[8, 64].into(), &[0, 1])]
        };
        assert_eq!(planned(&[0], later).views.len(), 1);
        // What is a result has memory of its own.
        assert_eq!(planned(&[], |_, _, row| vec![row.clone()]).views.len(), 0);
    }
}
