//! How a program's state lies in memory: weights that products read and updates write may lie in panels of columns.
//!
//! A product of few rows divides its right operand among threads by columns, and with rows of the whole matrix that is
//! what makes work of cache lines: the update that follows writes each weight where another core has read it, and the
//! product packs what it reads, step after step. In panels each thread reads and writes the same whole pages in both,
//! and products of f32 need not pack. So weights, and the optimizer's arrays beside them, lie like that from the first
//! step on; a [`Buffer`](systole_runtime::Buffer) turns them back into rows where something else reads them.
//!
//! [`arrange`] finds arrays for which this holds in all steps of a program: parameters that results take the place of,
//! read by products as their right operand, and by element-wise programs element by element.

use crate::kernel::Cx;
use crate::kernel::Kernel;
use crate::kernel::Side;
use crate::kernel::copy::{BoxCopy, Dim};
use crate::machine::memory::Memory;
use systole_compile::{Kernel as Plan, Load, Location, Map, Schedule, Slot, Step, right_operand};
use systole_ir::Result;

/// Matrices `[rows, columns]` that lie as `[columns / width, rows, width]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panels {
    pub rows: usize,
    pub columns: usize,
    pub width: usize,
}

impl Panels {
    /// Copies a matrix into panels, or back into rows.
    ///
    /// # Safety
    /// Both have the matrix's elements, of `size` bytes each, and do not overlap.
    pub unsafe fn copy(&self, cx: &Cx<'_>, size: usize, from: *const u8, to: *mut u8, into_panels: bool) {
        let (rows, columns, width) = (self.rows as isize, self.columns as isize, self.width as isize);
        let dim = |size: usize, in_rows: isize, in_panels: isize| {
            let [src, dst] = if into_panels { [in_rows, in_panels] } else { [in_panels, in_rows] };
            Dim { size, src, dst }
        };
        let dims = [
            dim(self.columns / self.width, width, rows * width),
            dim(self.rows, columns, width),
            dim(self.width, 1, 1),
        ];
        // SAFETY: by the caller's promise; each element of either is in the box once.
        unsafe { BoxCopy::new(size, &dims, 0, 0).run(cx, from, to) };
    }
}

/// Turns a matrix of elements of `size` bytes from how it lies into how it shall lie; `None`: as rows.
///
/// # Safety
/// `from` has the matrix's elements.
pub unsafe fn turned(
    cx: &Cx<'_>,
    [lies, shall]: [Option<Panels>; 2],
    size: usize,
    from: *const u8,
) -> Result<Memory> {
    let bytes = |p: &Panels| p.rows * p.columns * size;
    let of = |p: Panels, from: *const u8, into: bool| -> Result<Memory> {
        let to = Memory::new(bytes(&p))?;
        // SAFETY: by the caller's promise; the new memory has room.
        unsafe { p.copy(cx, size, from, to.ptr(), into) };
        Ok(to)
    };
    match (lies, shall) {
        (Some(a), Some(b)) => {
            let rows = of(a, from, false)?;
            of(b, rows.ptr().cast_const(), true)
        }
        (Some(a), None) => of(a, from, false),
        (None, Some(b)) => of(b, from, true),
        (None, None) => Memory::new(0),
    }
}

/// Arrays that a step takes in panels all together or not at all.
struct SharedLayout {
    slots: Vec<Slot>,
    /// The product's side that decides the panels, and the matrix.
    product: Option<(Side, [usize; 2])>,
}

/// The panels in which each slot lies, if it does. Kernels take them so from now on.
pub fn arrange(s: &Schedule, kernels: &mut [Box<dyn Kernel>]) -> Vec<Option<Panels>> {
    let uses: Vec<Vec<SharedLayout>> = s.steps.iter().map(together).collect();
    let nowhere = s.slots.len();
    let sets = alike(s, &uses);
    let mut lies = vec![None; s.slots.len()];
    let mut products: Vec<(Slot, usize, Side, [usize; 2])> = Vec::new();
    for (i, uses) in uses.iter().enumerate() {
        for u in uses {
            if let (Some((side, matrix)), Some(&x)) = (u.product, u.slots.first()) {
                products.push((sets.of(x), i, side, matrix));
            }
        }
    }
    let none = sets.of(nowhere);
    let roots: Vec<Slot> = (0..s.slots.len()).filter(|&x| sets.of(x) == x && x != none).collect();
    for root in roots {
        let of_set: Vec<_> = products.iter().filter(|p| p.0 == root).collect();
        let has = |side: Side| of_set.iter().any(|p| p.2 == side);
        let Some(&&(_, _, _, matrix)) = of_set.first() else { continue };
        if !has(Side::Right) || !has(Side::Result) || of_set.iter().any(|p| p.3 != matrix) {
            continue;
        }
        let widths: Vec<_> =
            of_set.iter().map(|&&(_, i, side, _)| kernels[i].take_panels(side, true)).collect();
        match widths[0] {
            Some(width) if widths.iter().all(|&w| w == Some(width)) => {
                let panels = Panels { rows: matrix[0], columns: matrix[1], width };
                (0..s.slots.len()).filter(|&x| sets.of(x) == root).for_each(|x| lies[x] = Some(panels));
            }
            _ => of_set.iter().for_each(|&&(_, i, side, _)| {
                kernels[i].take_panels(side, false);
            }),
        }
    }
    lies
}

/// Sets of slots that lie alike or not at all; what lies as rows is joined with a slot that does not exist.
fn alike(s: &Schedule, uses: &[Vec<SharedLayout>]) -> Sets {
    let mut sets = Sets((0..s.slots.len()).collect());
    let nowhere = s.slots.len();
    sets.0.push(nowhere);
    for (x, storage) in s.slots.iter().enumerate() {
        match storage.place {
            Location::Arena(_) => {}
            Location::Param(p) => {
                // A parameter keeps its order if no result takes its place.
                match s.results.iter().find(|r| r.reuse == Some(p)) {
                    Some(r) => sets.join(x, r.slot),
                    None => sets.join(x, nowhere),
                }
            }
            Location::Result(k) if s.results[k].reuse.is_some() => {}
            _ => sets.join(x, nowhere),
        }
    }
    for (step, uses) in s.steps.iter().zip(uses) {
        for &x in step.inputs.iter().chain(&step.outputs) {
            if !uses.iter().any(|u| u.slots.contains(&x)) {
                sets.join(x, nowhere);
            }
        }
        for u in uses {
            u.slots.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
        }
    }
    sets
}

/// What a step takes in panels if its kernel can.
fn together(step: &Step) -> Vec<SharedLayout> {
    let right = right_operand(step)
        .map(|(slot, matrix)| SharedLayout { slots: vec![slot], product: Some((Side::Right, matrix)) });
    let result = match &step.kernel {
        Plan::Map(map) => program(step, map, 0),
        Plan::ProductEpilogue(h) if h.product.rank() == 2 => program(step, &h.map, h.operands()).map(|t| {
            let matrix = [h.product.shape[0], h.product.shape[1]];
            SharedLayout { product: Some((Side::Result, matrix)), ..t }
        }),
        _ => None,
    };
    right.into_iter().chain(result).collect()
}

/// The arrays of an element-wise program that reads and writes them element by element; `None` where it knows an
/// element's place. Its inputs are the step's from `first` on, and perhaps one more.
fn program(step: &Step, map: &Map, first: usize) -> Option<SharedLayout> {
    let mut slots = step.outputs.clone();
    for load in &map.loads {
        match load {
            Load::Splat { .. } => {}
            Load::Array { input, strides, .. } => {
                let Some(&x) = step.inputs.get(first + input) else { continue };
                let whole = step.input_types[first + input].elements() == map.shape.elements();
                if whole && map.is_linear(load) {
                    slots.push(x);
                } else if strides.iter().any(|&s| s != 0) {
                    return None;
                }
            }
            Load::Iota { .. } => return None,
        }
    }
    Some(SharedLayout { slots, product: None })
}

/// Sets of slots, each slot with another one of its set; the last has itself.
struct Sets(Vec<Slot>);

impl Sets {
    fn of(&self, mut x: Slot) -> Slot {
        while self.0[x] != x {
            x = self.0[x];
        }
        x
    }

    fn join(&mut self, a: Slot, b: Slot) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a] = b;
    }
}
