//! Rows of few elements, such as the logits of ten classes: blocks of rows are turned, so that vectors lie along the many
//! rows instead of the few columns, and folds along rows add whole vectors to each other.

use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::program::MapKernel;
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::reduce::fold::ReduceKernel;
use crate::kernels::reduce::rows::{Stage, Work};
use crate::simd::level::Level;
use smallvec::SmallVec;
use systole_compile::{Kernel as Plan, Load, Map, Rows, Step};
use systole_ir::{Result, TensorType};

/// Elements of a row, at most: those of folds that would take element by element.
const COLUMNS: usize = 32;
/// Rows of one block, at most.
const BLOCK: usize = 128;

/// What an array holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// An element for each row and column.
    Full,
    /// One for each row.
    Row,
    /// One for each column.
    Column,
    /// One.
    Scalar,
}

/// Who makes an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Input,
    Output,
    Local,
}

struct Array {
    kind: Kind,
    whose: Whose,
    /// Bytes of an element.
    size: usize,
    /// Where it lies in scratch, if there.
    at: usize,
}

/// All stages for blocks of one number of rows.
struct Block {
    rows: usize,
    arrays: Vec<Array>,
    stages: Vec<Stage>,
    scratch: usize,
}

/// A step of short rows.
pub struct RowsTransposed {
    rows: usize,
    columns: usize,
    /// All blocks but the last, and that one where it is shorter.
    whole: Block,
    rest: Option<Block>,
    work_ns: f64,
}

impl RowsTransposed {
    /// `None` where rows are long, or something is read in another way than by rows and columns.
    pub fn new(plan: &Rows, step: &Step, level: Level) -> Option<RowsTransposed> {
        let columns = columns(plan).filter(|c| (2..=COLUMNS).contains(c))?;
        let block = plan.rows.div_ceil(plan.rows.div_ceil(BLOCK));
        let shape = Shape { rows: plan.rows, columns };
        let whole = Block::new(plan, step, shape, block, level)?;
        let rest = match plan.rows % block {
            0 => None,
            rows => Some(Block::new(plan, step, shape, rows, level)?),
        };
        let work = |b: &Block| b.stages.iter().map(|s| s.work.nanoseconds()).sum::<f64>();
        let work_ns = work(&whole) * (plan.rows as f64 / block as f64);
        Some(RowsTransposed { rows: plan.rows, columns, whole, rest, work_ns })
    }
}

impl Kernel for RowsTransposed {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let inputs = io.inputs.iter().map(|&p| Ptr::of(p));
        let arrays: SmallVec<[Ptr; 16]> = inputs.chain(io.outputs.iter().map(|&p| Ptr(p))).collect();
        let block = self.whole.rows;
        let body = |i: usize| {
            let rows = block.min(self.rows - i * block);
            let b = if rows == block { Some(&self.whole) } else { self.rest.as_ref() };
            // SAFETY: blocks have rows of their own.
            b.iter().for_each(|b| unsafe { b.run(&arrays, i * block, self.columns) });
        };
        cx.team.run_with(self.rows.div_ceil(block), self.work_ns, cx.flush, &body);
        Ok(())
    }
}

/// Elements of a row.
fn columns(plan: &Rows) -> Option<usize> {
    let elements = plan.stages.iter().filter_map(|stage| match &stage.kernel {
        Plan::Map(map) | Plan::Reduce { map, .. } => Some(map.shape.elements()),
        _ => None,
    });
    elements.max().map(|n| n / plan.rows)
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
}

impl Shape {
    /// Distances of a load from row to row and from column to column; `None`: it has others too.
    fn strides(self, map: &Map, strides: &[usize]) -> Option<[usize; 2]> {
        let Shape { rows, columns } = self;
        Some(match (map.shape.dims(), strides) {
            (&[n], &[s]) if n == rows * columns => [s * columns, s],
            (&[n], &[s]) if n == rows => [s, 0],
            (&[r, c], &[s, t]) if (r, c) == (rows, columns) => [s, t],
            _ => return None,
        })
    }

    /// Whether a program computes an element for each column, or one for each row only.
    fn is_wide(self, map: &Map) -> Option<bool> {
        match map.shape.elements() {
            n if n == self.rows * self.columns => Some(true),
            n if n == self.rows => Some(false),
            _ => None,
        }
    }

    /// The program for a block of `rows`, turned; of each load, which input is of which kind.
    fn turn(self, map: &Map, rows: usize, fold: bool) -> Option<(Map, Vec<(usize, Kind)>)> {
        let (wide, columns) = (self.is_wide(map)?, self.columns);
        let mut kinds = Vec::new();
        let mut loads = Vec::with_capacity(map.loads.len());
        for load in &map.loads {
            loads.push(match load {
                Load::Array { input, dtype, strides, offset: 0 } => {
                    let (kind, turned) = match self.strides(map, strides)? {
                        [0, 0] => (Kind::Scalar, [0, 0]),
                        [0, 1] => (Kind::Column, [1, 0]),
                        [1, 0] => (Kind::Row, [0, 1]),
                        [s, 1] if s == columns => (Kind::Full, [rows, 1]),
                        _ => return None,
                    };
                    kinds.push((*input, kind));
                    Load::Array {
                        input: *input,
                        dtype: *dtype,
                        strides: turned.into_iter().collect(),
                        offset: 0,
                    }
                }
                Load::Array { .. } => return None,
                Load::Iota { inner: 1, size, dtype } if wide && *size == columns => {
                    Load::Iota { inner: rows, size: columns, dtype: *dtype }
                }
                Load::Iota { .. } => return None,
                Load::Splat { .. } => load.clone(),
            });
        }
        // One run of elements, where that is how all lie.
        let lie_together = |load: &Load| match load {
            Load::Array { strides, .. } => strides[..] == [rows, 1] || strides[..] == [0, 0],
            _ => true,
        };
        let joined = !wide || !fold && loads.iter().all(lie_together);
        for load in loads.iter_mut().filter(|_| joined) {
            if let Load::Array { strides, .. } = load {
                strides.remove(0);
            }
        }
        let shape = match joined {
            true => [rows * if wide { columns } else { 1 }].into(),
            false => [columns, rows].into(),
        };
        Some((Map { shape, loads, ..map.clone() }, kinds))
    }
}

impl Block {
    fn new(plan: &Rows, step: &Step, shape: Shape, rows: usize, level: Level) -> Option<Block> {
        let (inputs, outputs) = (step.inputs.len(), step.outputs.len());
        let mut found: Vec<Option<(Kind, usize)>> = vec![None; inputs + outputs + plan.locals.len()];
        // An array that is seen in two ways is left to those who take rows as they are.
        let mut see = |array: usize, kind: Kind, size: usize| {
            let known = found[array].get_or_insert((kind, size));
            (*known == (kind, size)).then_some(())
        };
        let mut stages = Vec::with_capacity(plan.stages.len());
        for stage in &plan.stages {
            let size = |types: &[TensorType], k: usize| types[k].dtype.size();
            let (map, fold) = match &stage.kernel {
                Plan::Map(map) => (map, None),
                Plan::Reduce { map, folded, monoid } => (map, Some((folded, *monoid))),
                _ => return None,
            };
            let (turned, kinds) = shape.turn(map, rows, fold.is_some())?;
            for (k, kind) in kinds {
                see(stage.inputs[k], kind, size(&stage.input_types, k))?;
            }
            let wide = shape.is_wide(map)?;
            let made = if wide && fold.is_none() { Kind::Full } else { Kind::Row };
            for (k, &array) in stage.outputs.iter().enumerate() {
                see(array, made, size(&stage.output_types, k))?;
            }
            let work = match fold {
                None => Work::Map(MapKernel::new(&turned, level)),
                Some((folded, monoid)) => {
                    // Initial values come after the program's inputs.
                    for k in stage.inputs.len() - map.stores.len()..stage.inputs.len() {
                        see(stage.inputs[k], Kind::Scalar, size(&stage.input_types, k))?;
                    }
                    if !wide || folded[..] != [false, true] {
                        return None;
                    }
                    let dtype = stage.output_types[0].dtype;
                    Work::Fold(ReduceKernel::of_columns(&turned, monoid, dtype, level))
                }
            };
            stages.push(Stage { work, inputs: stage.inputs.clone(), outputs: stage.outputs.clone() });
        }
        let mut scratch = 0;
        let arrays = found.into_iter().enumerate().map(|(k, array)| {
            // What no program reads has no place that matters.
            let (kind, size) = array.unwrap_or((Kind::Scalar, 1));
            let whose = match k {
                k if k < inputs => Whose::Input,
                k if k < inputs + outputs => Whose::Output,
                _ => Whose::Local,
            };
            let at = scratch;
            if kind == Kind::Full || whose == Whose::Local {
                let elements = if kind == Kind::Full { rows * shape.columns } else { rows };
                scratch += (elements * size).next_multiple_of(64);
            }
            Array { kind, whose, size, at }
        });
        let arrays = arrays.collect();
        Some(Block { rows, arrays, stages, scratch })
    }

    /// Runs the block from row `first` on.
    unsafe fn run(&self, arrays: &[Ptr], first: usize, columns: usize) {
        with_scratch(self.scratch, |scratch| {
            let place = |(k, a): (usize, &Array)| match (a.kind, a.whose) {
                (Kind::Full, _) | (_, Whose::Local) => scratch.wrapping_add(a.at),
                (Kind::Row, _) => arrays[k].at(first * a.size),
                _ => arrays[k].at(0),
            };
            let places: SmallVec<[*mut u8; 24]> = self.arrays.iter().enumerate().map(place).collect();
            let full = |whose: Whose| {
                let all = self.arrays.iter().enumerate();
                all.filter(move |(_, a)| a.kind == Kind::Full && a.whose == whose)
            };
            for (k, a) in full(Whose::Input) {
                let from = arrays[k].at(first * columns * a.size).cast_const();
                // SAFETY: the block's rows of an input, and scratch of their size.
                unsafe { turn(places[k], from, a.size, self.rows, columns) };
            }
            for stage in &self.stages {
                let inputs: SmallVec<[*const u8; 8]> =
                    stage.inputs.iter().map(|&k| places[k].cast_const()).collect();
                let outputs: SmallVec<[*mut u8; 4]> = stage.outputs.iter().map(|&k| places[k]).collect();
                // SAFETY: arrays have the sizes of the block's programs; stages are in order.
                unsafe {
                    match &stage.work {
                        Work::Map(m) => m.range(&inputs, &outputs, 0..m.elements()),
                        Work::Fold(f) => f.columns(&inputs, &outputs),
                    }
                }
            }
            for (k, a) in full(Whose::Output) {
                let to = arrays[k].at(first * columns * a.size);
                // SAFETY: the block's rows of an output.
                unsafe { turn(to, places[k].cast_const(), a.size, columns, self.rows) };
            }
        });
    }
}

/// Columns become rows: `from: [rows, columns] → to: [columns, rows]`.
unsafe fn turn(to: *mut u8, from: *const u8, size: usize, rows: usize, columns: usize) {
    let dims = [
        Dim { size: columns, src: 1, dst: rows as isize },
        Dim { size: rows, src: columns as isize, dst: 1 },
    ];
    // SAFETY: by the caller's promise.
    unsafe { BoxCopy::new(size, &dims, 0, 0).run_here(from, 0, to, 0) }
}
