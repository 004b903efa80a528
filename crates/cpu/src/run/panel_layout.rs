//! Panel layout assignment: decides which state arrays are stored in column panels instead of row-major.
//!
//! A product with few rows partitions its right operand, the weights, among threads by columns. With row-major weights
//! this is slow for two reasons. The optimizer update that follows partitions by rows, so each weight is written by
//! another core than the one that reads it next, and its cache line moves between cores. In addition, the product packs
//! the weights again in every step. In panels, `[columns / width, rows, width]`, each thread reads and writes the same
//! contiguous pages in both kernels, and f32 products read the panels without packing.
//!
//! So weights, and optimizer arrays of the same shape, stay in panels from step to step; a
//! [`Buffer`](systole_runtime::Buffer) converts them to rows when something else reads them. [`arrange`] selects arrays
//! for which every use in the program allows this: parameters that are updated in place by results, read by products as
//! their right operand and by element-wise programs at the running index only.

use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::{GemmSide, Kernel, KernelContext};
use crate::machine::memory::AlignedMemory;
use systole_compile::{Location, Map, MapLoad, ProgramSchedule, SlotId, Step, right_operand};
use systole_ir::Result;

/// Layout of a matrix `[rows, columns]` that is stored as `[columns / width, rows, width]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PanelLayout {
    pub rows: usize,
    pub columns: usize,
    pub width: usize,
}

impl PanelLayout {
    /// Copies a matrix from rows to panels (`into_panels`) or back.
    ///
    /// # Safety
    /// Both have room for the matrix, of elements of `size` bytes, and do not overlap.
    pub unsafe fn copy(
        &self,
        cx: &KernelContext<'_>,
        size: usize,
        from: *const u8,
        to: *mut u8,
        into_panels: bool,
    ) {
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
        // SAFETY: guaranteed by the caller; the box contains each element of both exactly once.
        unsafe { BoxCopy::new(size, &dims, 0, 0).run(cx, from, to) };
    }
}

/// Converts a matrix of elements of `size` bytes from layout `lies` to layout `shall`; `None` means row-major.
///
/// # Safety
/// `from` points to the matrix in the layout `lies`.
pub unsafe fn turned(
    cx: &KernelContext<'_>,
    [lies, shall]: [Option<PanelLayout>; 2],
    size: usize,
    from: *const u8,
) -> Result<AlignedMemory> {
    let bytes = |p: &PanelLayout| p.rows * p.columns * size;
    let of = |p: PanelLayout, from: *const u8, into: bool| -> Result<AlignedMemory> {
        let to = AlignedMemory::new(bytes(&p))?;
        // SAFETY: guaranteed by the caller; `rows` holds the same matrix, and the new memory has room and does not
        // overlap.
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
        (None, None) => AlignedMemory::new(0),
    }
}

/// Layout constraint of a step: either all of these arrays are in panels, or none.
struct SharedLayout {
    slots: Vec<SlotId>,
    /// For a product: the operand concerned, and the matrix's rows and columns. The product determines the width.
    product: Option<(GemmSide, [usize; 2])>,
}

/// Assigns panels to slots (`None`: row-major) and switches the kernels of products to them.
///
/// Slots with constraints in common form sets. A set gets panels if products read it as their right operand and
/// epilogues of products of the same shape write it, and if all these kernels agree on the width.
pub fn arrange(s: &ProgramSchedule, kernels: &mut [Box<dyn Kernel>]) -> Vec<Option<PanelLayout>> {
    let uses: Vec<Vec<SharedLayout>> = s.steps.iter().map(together).collect();
    let nowhere = s.slots.len();
    let sets = alike(s, &uses);
    let mut lies = vec![None; s.slots.len()];
    let mut products: Vec<(SlotId, usize, GemmSide, [usize; 2])> = Vec::new();
    for (i, uses) in uses.iter().enumerate() {
        for u in uses {
            if let (Some((side, matrix)), Some(&x)) = (u.product, u.slots.first()) {
                products.push((sets.of(x), i, side, matrix));
            }
        }
    }
    let none = sets.of(nowhere);
    let roots: Vec<SlotId> = (0..s.slots.len()).filter(|&x| sets.of(x) == x && x != none).collect();
    for root in roots {
        let of_set: Vec<_> = products.iter().filter(|p| p.0 == root).collect();
        let has = |side: GemmSide| of_set.iter().any(|p| p.2 == side);
        let Some(&&(_, _, _, matrix)) = of_set.first() else { continue };
        if !has(GemmSide::Right) || !has(GemmSide::Result) || of_set.iter().any(|p| p.3 != matrix) {
            continue;
        }
        let widths: Vec<_> =
            of_set.iter().map(|&&(_, i, side, _)| kernels[i].take_panels(side, true)).collect();
        match widths[0] {
            Some(width) if widths.iter().all(|&w| w == Some(width)) => {
                let panels = PanelLayout { rows: matrix[0], columns: matrix[1], width };
                (0..s.slots.len()).filter(|&x| sets.of(x) == root).for_each(|x| lies[x] = Some(panels));
            }
            _ => of_set.iter().for_each(|&&(_, i, side, _)| {
                kernels[i].take_panels(side, false);
            }),
        }
    }
    lies
}

/// Returns sets of slots that must have the same layout. Slots that must be row-major are joined with an extra slot,
/// number `s.slots.len()`.
fn alike(s: &ProgramSchedule, uses: &[Vec<SharedLayout>]) -> UnionFind {
    let mut sets = UnionFind((0..s.slots.len()).collect());
    let nowhere = s.slots.len();
    sets.0.push(nowhere);
    for (x, storage) in s.slots.iter().enumerate() {
        match storage.place {
            Location::Arena(_) => {}
            Location::Param(p) => {
                // Only a parameter whose memory a result reuses may change its layout; others belong to the caller.
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

/// Returns the layout constraints of a step.
fn together(step: &Step) -> Vec<SharedLayout> {
    let right = right_operand(step)
        .map(|(slot, matrix)| SharedLayout { slots: vec![slot], product: Some((GemmSide::Right, matrix)) });
    let result = match step.epilogue() {
        Some((map, first, None)) => program(step, map, first),
        Some((map, first, Some(product))) if product.rank() == 2 => program(step, map, first).map(|t| {
            let matrix = [product.shape[0], product.shape[1]];
            SharedLayout { product: Some((GemmSide::Result, matrix)), ..t }
        }),
        _ => None,
    };
    right.into_iter().chain(result).collect()
}

/// Returns the arrays that an element-wise program reads and writes at the running index; any common layout suits them.
/// Returns `None` if the program depends on an element's position. Its inputs are the step's from `first` on, and
/// perhaps one more (the product, for an epilogue).
fn program(step: &Step, map: &Map, first: usize) -> Option<SharedLayout> {
    let mut slots = step.outputs.clone();
    for load in &map.loads {
        match load {
            MapLoad::Splat { .. } => {}
            MapLoad::Array { input, strides, .. } => {
                let Some(&x) = step.inputs.get(first + input) else { continue };
                let whole = step.input_types[first + input].elements() == map.shape.elements();
                if whole && map.is_linear(load) {
                    slots.push(x);
                } else if strides.iter().any(|&s| s != 0) {
                    return None;
                }
            }
            MapLoad::Iota { .. } => return None,
        }
    }
    Some(SharedLayout { slots, product: None })
}

/// Union-find: parent of each slot; a root is its own parent.
struct UnionFind(Vec<SlotId>);

impl UnionFind {
    /// Returns the root of a slot's set.
    fn of(&self, mut x: SlotId) -> SlotId {
        while self.0[x] != x {
            x = self.0[x];
        }
        x
    }

    fn join(&mut self, a: SlotId, b: SlotId) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a] = b;
    }
}
