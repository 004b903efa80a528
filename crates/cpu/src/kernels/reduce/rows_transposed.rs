//! Row programs with short rows, such as a softmax over ten logits, in transposed blocks.
//!
//! Blocks of rows are transposed to `[columns, rows]`: SIMD lanes are then different rows, and a reduction along a row
//! adds whole vectors.
//!
//! Accepts only plans whose arrays are `[rows, columns]`, `[rows]`, `[columns]` or scalars, each read in only one of
//! these forms. The number of the row (an iota) is an array `[rows]` of a block. The programs of the stages are rewritten for the transposed block; arrays `[rows, columns]` are
//! transposed through scratch.

use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::elementwise::{MapKernel, iota};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::reduce::fold::ReduceKernel;
use crate::kernels::reduce::rows::{RowsStage, StageKernel};
use crate::simd::level::Level;
use smallvec::SmallVec;
use systole_compile::{FusedRows, Kernel as Plan, Map, MapLoad, Step};
use systole_ir::{DType, Result, TensorType};

/// Maximum row length, in elements: longer rows fill the accumulators of a reduction along the row.
const COLUMNS: usize = 32;
/// Maximum rows per block.
const BLOCK: usize = 128;

/// Shape of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ArrayShape {
    /// `[rows, columns]`.
    Full,
    /// `[rows]`.
    Row,
    /// `[columns]`.
    Column,
    /// `[]`.
    Scalar,
}

/// Origin of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ArrayOrigin {
    Input,
    Output,
    /// Written and read by stages only.
    Local,
    /// The numbers of the block's rows, of this integer type.
    RowNumbers(DType),
}

/// Array of the step as the block's stages see it.
struct BlockArray {
    kind: ArrayShape,
    whose: ArrayOrigin,
    /// Bytes of an element.
    size: usize,
    /// Offset in scratch, for locals and for transposed blocks of inputs and outputs.
    at: usize,
}

/// All stages, bound for blocks of this number of rows.
struct BoundBlock {
    rows: usize,
    arrays: Vec<BlockArray>,
    stages: Vec<RowsStage>,
    scratch: usize,
}

/// Kernel of a row program with short rows, bound to a step.
pub struct RowsTransposed {
    rows: usize,
    columns: usize,
    whole: BoundBlock,
    /// Stages for the last block, if it is shorter.
    rest: Option<BoundBlock>,
    work_ns: f64,
}

impl RowsTransposed {
    /// Creates the kernel of a row-wise fusion. `None` if rows do not have 2 to [`COLUMNS`] elements, or if an array is
    /// read with other strides than those of [`ArrayShape`].
    pub fn new(plan: &FusedRows, step: &Step, level: Level) -> Option<RowsTransposed> {
        let columns = columns(plan).filter(|c| (2..=COLUMNS).contains(c))?;
        let block = plan.rows.div_ceil(plan.rows.div_ceil(BLOCK));
        let shape = RowsShape { rows: plan.rows, columns };
        let whole = BoundBlock::new(plan, step, shape, block, level)?;
        let rest = match plan.rows % block {
            0 => None,
            rows => Some(BoundBlock::new(plan, step, shape, rows, level)?),
        };
        let work = |b: &BoundBlock| b.stages.iter().map(|s| s.work.nanoseconds()).sum::<f64>();
        let work_ns = work(&whole) * (plan.rows as f64 / block as f64);
        Some(RowsTransposed { rows: plan.rows, columns, whole, rest, work_ns })
    }
}

impl Kernel for RowsTransposed {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let inputs = io.inputs.iter().map(|&p| Ptr::of(p));
        let arrays: SmallVec<[Ptr; 16]> = inputs.chain(io.outputs.iter().map(|&p| Ptr(p))).collect();
        let block = self.whole.rows;
        let body = |i: usize| {
            let rows = block.min(self.rows - i * block);
            let b = if rows == block { Some(&self.whole) } else { self.rest.as_ref() };
            // SAFETY: by the contract of `Kernel::run`; blocks read and write different rows.
            b.iter().for_each(|b| unsafe { b.run(&arrays, i * block, self.columns) });
        };
        cx.team.run_with(self.rows.div_ceil(block), self.work_ns, cx.flush, &body);
        Ok(())
    }
}

/// Returns the elements per row, from the largest index space of the stages.
fn columns(plan: &FusedRows) -> Option<usize> {
    let elements = plan.stages.iter().filter_map(|stage| match &stage.kernel {
        Plan::Map(map) | Plan::Reduce { map, .. } => Some(map.shape.elements()),
        _ => None,
    });
    elements.max().map(|n| n / plan.rows)
}

#[derive(Clone, Copy)]
struct RowsShape {
    rows: usize,
    columns: usize,
}

impl RowsShape {
    /// Returns the row and column strides of a load; `None` if it does not have this form.
    fn strides(self, map: &Map, strides: &[usize]) -> Option<[usize; 2]> {
        let RowsShape { rows, columns } = self;
        Some(match (map.shape.dims(), strides) {
            (&[n], &[s]) if n == rows * columns => [s * columns, s],
            (&[n], &[s]) if n == rows => [s, 0],
            (&[r, c], &[s, t]) if (r, c) == (rows, columns) => [s, t],
            _ => return None,
        })
    }

    /// Returns whether a program's index space is `[rows, columns]` (true) or `[rows]` (false); `None`: neither.
    fn is_wide(self, map: &Map) -> Option<bool> {
        match map.shape.elements() {
            n if n == self.rows * self.columns => Some(true),
            n if n == self.rows => Some(false),
            _ => None,
        }
    }

    /// Returns the program for a transposed block of `rows` rows, and the shape of each input that it loads. Row numbers
    /// become loads of inputs from `inputs` on, one for each type in `numbers`.
    fn turn(
        self,
        map: &Map,
        rows: usize,
        fold: bool,
        inputs: usize,
        numbers: &mut Vec<DType>,
    ) -> Option<(Map, Vec<(usize, ArrayShape)>)> {
        let (wide, columns) = (self.is_wide(map)?, self.columns);
        let mut kinds = Vec::new();
        let mut loads = Vec::with_capacity(map.loads.len());
        for load in &map.loads {
            loads.push(match load {
                MapLoad::Array { input, dtype, strides, offset: 0 } => {
                    let (kind, turned) = match self.strides(map, strides)? {
                        [0, 0] => (ArrayShape::Scalar, [0, 0]),
                        [0, 1] => (ArrayShape::Column, [1, 0]),
                        [1, 0] => (ArrayShape::Row, [0, 1]),
                        [s, 1] if s == columns => (ArrayShape::Full, [rows, 1]),
                        _ => return None,
                    };
                    kinds.push((*input, kind));
                    MapLoad::Array {
                        input: *input,
                        dtype: *dtype,
                        strides: turned.into_iter().collect(),
                        offset: 0,
                    }
                }
                MapLoad::Array { .. } => return None,
                MapLoad::Iota { inner: 1, size, dtype } if wide && *size == columns => {
                    MapLoad::Iota { inner: rows, size: columns, dtype: *dtype }
                }
                MapLoad::Iota { inner, size, dtype }
                    if !fold && *inner == if wide { columns } else { 1 } && *size == self.rows =>
                {
                    if !matches!(dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64) {
                        return None;
                    }
                    let (input, strides) = (inputs + place_of(numbers, *dtype), [0, 1].into_iter().collect());
                    MapLoad::Array { input, dtype: *dtype, strides, offset: 0 }
                }
                MapLoad::Iota { .. } => return None,
                MapLoad::Splat { .. } => load.clone(),
            });
        }
        let joined = join_dims(&mut loads, rows, wide, fold);
        let shape = match joined {
            true => [rows * if wide { columns } else { 1 }].into(),
            false => [columns, rows].into(),
        };
        Some((Map { shape, loads, ..map.clone() }, kinds))
    }
}

impl BoundBlock {
    fn new(plan: &FusedRows, step: &Step, shape: RowsShape, rows: usize, level: Level) -> Option<BoundBlock> {
        let (inputs, outputs) = (step.inputs.len(), step.outputs.len());
        let arrays_of_plan = inputs + outputs + plan.locals.len();
        let mut found: Vec<Option<(ArrayShape, usize)>> = vec![None; arrays_of_plan];
        // Rejects arrays that are used with two shapes or element sizes.
        let mut see = |array: usize, kind: ArrayShape, size: usize| {
            let known = found[array].get_or_insert((kind, size));
            (*known == (kind, size)).then_some(())
        };
        let (mut stages, mut all_numbers) = (Vec::with_capacity(plan.stages.len()), Vec::new());
        for stage in &plan.stages {
            let size = |types: &[TensorType], k: usize| types[k].dtype.size();
            let (map, fold) = match &stage.kernel {
                Plan::Map(map) => (map, None),
                Plan::Reduce { map, folded, monoid } => (map, Some((folded, *monoid))),
                _ => return None,
            };
            let mut numbers = Vec::new();
            let (turned, kinds) = shape.turn(map, rows, fold.is_some(), stage.inputs.len(), &mut numbers)?;
            for (k, kind) in kinds {
                see(stage.inputs[k], kind, size(&stage.input_types, k))?;
            }
            let wide = shape.is_wide(map)?;
            let made = if wide && fold.is_none() { ArrayShape::Full } else { ArrayShape::Row };
            for (k, &array) in stage.outputs.iter().enumerate() {
                see(array, made, size(&stage.output_types, k))?;
            }
            let work = match fold {
                None => StageKernel::Map(MapKernel::new(&turned, level)),
                Some((folded, monoid)) => {
                    // The last inputs, one per store, are the initial values of the reductions.
                    for k in stage.inputs.len() - map.stores.len()..stage.inputs.len() {
                        see(stage.inputs[k], ArrayShape::Scalar, size(&stage.input_types, k))?;
                    }
                    if !wide || folded[..] != [false, true] {
                        return None;
                    }
                    let dtype = stage.output_types[0].dtype;
                    StageKernel::Fold(ReduceKernel::of_columns(&turned, monoid, dtype, level))
                }
            };
            let mut read = stage.inputs.clone();
            read.extend(numbers.into_iter().map(|dtype| arrays_of_plan + place_of(&mut all_numbers, dtype)));
            stages.push(RowsStage { work, inputs: read, outputs: stage.outputs.clone() });
        }
        found.extend(all_numbers.iter().map(|dtype| Some((ArrayShape::Row, dtype.size()))));
        let origin = |k: usize| match k {
            k if k < inputs => ArrayOrigin::Input,
            k if k < inputs + outputs => ArrayOrigin::Output,
            k if k < arrays_of_plan => ArrayOrigin::Local,
            k => ArrayOrigin::RowNumbers(all_numbers[k - arrays_of_plan]),
        };
        // An array that no stage uses has any shape.
        let found = found.into_iter().map(|array| array.unwrap_or((ArrayShape::Scalar, 1)));
        let found =
            found.enumerate().map(|(k, (kind, size))| BlockArray { kind, whose: origin(k), size, at: 0 });
        let mut block = BoundBlock { rows, arrays: found.collect(), stages, scratch: 0 };
        block.lay_out(shape.columns);
        Some(block)
    }

    /// Sets the offsets in scratch of arrays that the block holds.
    fn lay_out(&mut self, columns: usize) {
        for a in &mut self.arrays {
            a.at = self.scratch;
            let is_own = matches!(a.whose, ArrayOrigin::Local | ArrayOrigin::RowNumbers(_));
            if a.kind == ArrayShape::Full || is_own {
                let elements = if a.kind == ArrayShape::Full { self.rows * columns } else { self.rows };
                self.scratch += (elements * a.size).next_multiple_of(64);
            }
        }
    }

    /// Runs all stages for the block that starts at row `first`.
    unsafe fn run(&self, arrays: &[Ptr], first: usize, columns: usize) {
        with_scratch(self.scratch, |scratch| {
            let place = |(k, a): (usize, &BlockArray)| match (a.kind, a.whose) {
                (ArrayShape::Full, _) | (_, ArrayOrigin::Local | ArrayOrigin::RowNumbers(_)) => {
                    scratch.wrapping_add(a.at)
                }
                (ArrayShape::Row, _) => arrays[k].at(first * a.size),
                _ => arrays[k].at(0),
            };
            let places: SmallVec<[*mut u8; 24]> = self.arrays.iter().enumerate().map(place).collect();
            let full = |whose: ArrayOrigin| {
                let all = self.arrays.iter().enumerate();
                all.filter(move |(_, a)| a.kind == ArrayShape::Full && a.whose == whose)
            };
            for (k, a) in full(ArrayOrigin::Input) {
                let from = arrays[k].at(first * columns * a.size).cast_const();
                // SAFETY: `from` points to the block's rows of an input; scratch has room for as many elements.
                unsafe { turn(places[k], from, a.size, self.rows, columns) };
            }
            for (k, a) in self.arrays.iter().enumerate() {
                if let ArrayOrigin::RowNumbers(dtype) = a.whose {
                    // SAFETY: scratch has room for a number of each row.
                    unsafe { iota(places[k], dtype, 1, usize::MAX, first, self.rows) };
                }
            }
            for stage in &self.stages {
                let inputs: SmallVec<[*const u8; 8]> =
                    stage.inputs.iter().map(|&k| places[k].cast_const()).collect();
                let outputs: SmallVec<[*mut u8; 4]> = stage.outputs.iter().map(|&k| places[k]).collect();
                // SAFETY: the programs were rewritten for a block of this size, and every array has the elements of its
                // shape.
                unsafe {
                    match &stage.work {
                        StageKernel::Map(m) => m.range(&inputs, &outputs, 0..m.elements()),
                        StageKernel::Fold(f) => f.columns(&inputs, &outputs),
                    }
                }
            }
            for (k, a) in full(ArrayOrigin::Output) {
                let to = arrays[k].at(first * columns * a.size);
                // SAFETY: `to` points to the block's rows of an output, which no other block writes.
                unsafe { turn(to, places[k].cast_const(), a.size, columns, self.rows) };
            }
        });
    }
}

/// Merges the two dimensions of a block into one if all loads are contiguous across both; a reduction needs them separate.
/// Returns whether it did.
fn join_dims(loads: &mut [MapLoad], rows: usize, wide: bool, fold: bool) -> bool {
    let lie_together = |load: &MapLoad| match load {
        MapLoad::Array { strides, .. } => strides[..] == [rows, 1] || strides[..] == [0, 0],
        _ => true,
    };
    let joined = !wide || !fold && loads.iter().all(lie_together);
    for load in loads.iter_mut().filter(|_| joined) {
        if let MapLoad::Array { strides, .. } = load {
            strides.remove(0);
        }
    }
    joined
}

/// Index of an element type in a list, to which it is added if it is missing.
fn place_of(list: &mut Vec<DType>, dtype: DType) -> usize {
    list.iter().position(|d| *d == dtype).unwrap_or_else(|| {
        list.push(dtype);
        list.len() - 1
    })
}

/// Transposes `from: [rows, columns]` to `to: [columns, rows]`, elements of `size` bytes.
unsafe fn turn(to: *mut u8, from: *const u8, size: usize, rows: usize, columns: usize) {
    let dims = [
        Dim { size: columns, src: 1, dst: rows as isize },
        Dim { size: rows, src: columns as isize, dst: 1 },
    ];
    // SAFETY: by the caller's promise, both have `rows · columns` elements and do not overlap.
    unsafe { BoxCopy::new(size, &dims, 0, 0).run_here(from, 0, to, 0) }
}
