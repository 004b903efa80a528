//! Lowers slices, updates, gathers and scatters at run-time indices.
#![forbid(unsafe_code)]

use crate::kernels::movement::scatter::overwrites;
use crate::run::loop_code::loop_call::{PointerSource, SlotMemory};
use crate::run::loop_code::lowering::{LoopLowering, ProgramSlot};
use crate::simd::jit::scalar_code::{ScalarAddress, ScalarCode, ScalarOperation, ScalarType, ScalarValue};
use crate::simd::jit::scalar_lower::scalar_type;
use std::collections::HashMap;
use systole_compile::{Kernel, Step};
use systole_ir::op::{Binary, Direction, Gather, Monoid, Scatter};
use systole_ir::{DType, Graph, Op, TensorType};

/// Elements of the largest array that is copied element by element.
const MOST_COPIED: usize = 16;

/// For ops with run-time indices: whether scalar code computes them. `is_small`: whether an array's elements are values.
pub fn is_indexed(step: &Step, is_small: &dyn Fn(&TensorType) -> bool) -> Option<bool> {
    let Kernel::Op { op, bias: false } = &step.kernel else { return None };
    let x = step.input_types.first()?;
    let output_is_small = step.output_types.iter().all(is_small);
    Some(match op {
        Op::DynamicSlice(_) => output_is_small && has_indices(x, &step.input_types[1..]),
        Op::DynamicUpdateSlice(_) => is_small(&step.input_types[1]) && has_indices(x, &step.input_types[2..]),
        Op::Gather(_) => output_is_small && has_indices(x, &step.input_types[1..]),
        Op::Scatter(scatter) => {
            step.input_types.len() == 3
                && is_small(&step.input_types[2])
                && has_indices(x, &step.input_types[1..2])
                && (overwrites(&scatter.body) || combines(&scatter.body, x.dtype))
        }
        _ => return None,
    })
}

/// Whether a slice that is read in place has indices that scalar code can compute.
pub fn is_simple_view(step: &Step) -> bool {
    has_indices(&step.input_types[0], &step.input_types[1..])
}

/// Whether offsets in an array, and their indices, fit into the instructions that compute them.
fn has_indices(x: &TensorType, starts: &[TensorType]) -> bool {
    scalar_type(x.dtype).is_some()
        && x.bytes() < 1 << 30
        && starts.iter().all(|t| matches!(t.dtype, DType::I32 | DType::U32 | DType::I64))
}

/// Whether a scatter's body is one op that has a scalar form.
fn combines(body: &Graph, dtype: DType) -> bool {
    let mut code = ScalarCode::default();
    let x = code.word(0);
    Monoid::of(body).is_some_and(|monoid| code.combine(monoid.op(), dtype, x, x).is_some())
}

/// Returns the coordinates of element `i`.
fn coordinates(ty: &TensorType, i: usize) -> Vec<usize> {
    let mut rest = i;
    let mut at: Vec<usize> = (0..ty.rank())
        .rev()
        .map(|d| {
            let k = rest % ty.shape[d];
            rest /= ty.shape[d];
            k
        })
        .collect();
    at.reverse();
    at
}

/// How index vectors are stored, and what they index.
struct IndexVectors<'a> {
    slot: ProgramSlot,
    ty: &'a TensorType,
    vector_dim: usize,
    /// Per component: the operand's dimension, and the maximum valid start.
    components: Vec<(usize, usize)>,
    /// Batching dimensions of the operand, and those of the indices.
    batching: [&'a [usize]; 2],
}

impl IndexVectors<'_> {
    /// Dimensions of the indices except that of the components.
    fn batch_dims(&self) -> Vec<usize> {
        (0..self.ty.rank()).filter(|&d| d != self.vector_dim).collect()
    }

    /// Returns the element of component `k` of the vector at these batch coordinates.
    fn element(&self, batch: &[usize], k: usize) -> usize {
        let strides = self.ty.shape.strides();
        let first: usize = self.batch_dims().iter().zip(batch).map(|(&d, &at)| at * strides[d]).sum();
        first + k * strides.get(self.vector_dim).copied().unwrap_or(0)
    }

    /// Returns the element of the operand that the batching dimensions add.
    fn batch_offset(&self, batch: &[usize], strides: &[usize]) -> usize {
        let dims = self.batch_dims();
        let at = |d: usize| dims.iter().position(|&b| b == d).map_or(0, |k| batch[k]);
        self.batching[0].iter().zip(self.batching[1]).map(|(&x, &i)| strides[x] * at(i)).sum()
    }
}

impl LoopLowering {
    /// Returns the byte offset of a block at run-time indices.
    fn block(
        &mut self,
        program: usize,
        step: &Step,
        first: usize,
        block: &TensorType,
    ) -> Option<ScalarValue> {
        let x = &step.input_types[0];
        let strides = x.shape.strides();
        let mut offset = None;
        for d in (0..x.rank()).filter(|&d| x.shape[d] > block.shape[d]) {
            let dtype = step.input_types[first + d].dtype;
            let scalar = scalar_type(dtype)?;
            let index = self.element((program, step.inputs[first + d]), 0, scalar)?;
            let max = u32::try_from(x.shape[d] - block.shape[d]).ok()?;
            let scale = u32::try_from(strides[d] * x.dtype.size()).ok()?;
            let (wide, signed) = (dtype.size() == 8, dtype.is_signed_int());
            let index = self.code.general(index);
            let part = self.code.define(ScalarOperation::Index { wide, signed, max, scale }, &[index]);
            offset = self.with_part(offset, part);
        }
        Some(offset.unwrap_or_else(|| self.code.double(0)))
    }

    /// Returns the addresses of the elements of a block of an array, in the order of the block.
    fn block_addresses(
        &self,
        (memory, x): (SlotMemory, &TensorType),
        block: &TensorType,
        offset: ScalarValue,
    ) -> Option<Vec<ScalarAddress>> {
        let strides = x.shape.strides();
        let address = |i: usize| {
            let at: usize = coordinates(block, i).iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            self.address(memory, at * x.dtype.size(), Some(offset))
        };
        (0..block.elements()).map(address).collect()
    }

    /// Lowers a dynamic slice.
    pub fn dynamic_slice(&mut self, program: usize, step: &Step) -> Option<()> {
        let (x, y) = (&step.input_types[0], &step.output_types[0]);
        let offset = self.block(program, step, 1, y)?;
        let memory = self.expose((program, step.inputs[0]));
        let memory = self.indexable(memory);
        let scalar = scalar_type(y.dtype)?;
        for (i, address) in self.block_addresses((memory, x), y, offset)?.into_iter().enumerate() {
            let value = self.code.load(address, scalar);
            self.set_element((program, step.outputs[0]), i, scalar, value)?;
        }
        Some(())
    }

    /// Lowers an update of a block.
    pub fn dynamic_update(&mut self, program: usize, step: &Step) -> Option<()> {
        let (x, update) = (&step.input_types[0], &step.input_types[1]);
        let [from, to] = [(program, step.inputs[0]), (program, step.outputs[0])];
        let scalar = scalar_type(x.dtype)?;
        let offset = self.block(program, step, 2, update)?;
        let values: Option<Vec<ScalarValue>> =
            (0..update.elements()).map(|i| self.element((program, step.inputs[1]), i, scalar)).collect();
        let memory = self.copied(from, to, x)?;
        let addresses = self.block_addresses((memory, x), update, offset)?;
        for (value, address) in values?.into_iter().zip(addresses) {
            self.code.store(value, address, scalar);
        }
        self.forget(to);
        Some(())
    }

    /// Lowers a slice that its readers read in place: its address becomes a pointer in the frame.
    pub fn view(&mut self, program: usize, step: &Step) -> Option<()> {
        let offset = self.block(program, step, 1, &step.output_types[0])?;
        let (pointer, displacement) = match self.expose((program, step.inputs[0])) {
            SlotMemory::Frame(at) => (self.pointer(PointerSource::Frame), at),
            SlotMemory::Pointer { pointer, displacement } => (pointer, displacement),
        };
        let SlotMemory::Pointer { pointer: to, .. } = self.memory((program, step.outputs[0])) else {
            return None;
        };
        let base = self.code.load(ScalarAddress::Frame(pointer), ScalarType::I64);
        let displacement = self.code.double(displacement as u64);
        let address = self.code.combine(Binary::Add, DType::I64, base, displacement)?;
        let address = self.code.combine(Binary::Add, DType::I64, address, offset)?;
        self.code.store(address, ScalarAddress::Frame(to), ScalarType::I64);
        self.forget((program, step.outputs[0]));
        Some(())
    }

    /// Returns memory that an index can be added to.
    fn indexable(&mut self, memory: SlotMemory) -> SlotMemory {
        match memory {
            SlotMemory::Frame(displacement) => {
                SlotMemory::Pointer { pointer: self.pointer(PointerSource::Frame), displacement }
            }
            pointer => pointer,
        }
    }

    /// Returns the byte offset in `x` of the start that an index vector names, and whether it is in bounds.
    fn start(
        &mut self,
        vectors: &IndexVectors<'_>,
        x: &TensorType,
        batch: &[usize],
    ) -> Option<(ScalarValue, ScalarValue)> {
        let strides = x.shape.strides();
        let dtype = vectors.ty.dtype;
        let (scalar, wide, signed) = (scalar_type(dtype)?, dtype.size() == 8, dtype.is_signed_int());
        let mut offset = None;
        let mut valid = self.code.constant_of(DType::Bool, 1);
        for (k, &(dim, most)) in vectors.components.iter().enumerate() {
            let index = self.element(vectors.slot, vectors.element(batch, k), scalar)?;
            let max = u32::try_from(most).ok()?;
            let scale = u32::try_from(strides[dim] * x.dtype.size()).ok()?;
            let index = self.code.general(index);
            let part = self.code.define(ScalarOperation::Index { wide, signed, max, scale }, &[index]);
            offset = self.with_part(offset, part);
            let (low, high) = (self.code.constant_of(dtype, 0), self.code.constant_of(dtype, most as u64));
            let above = self.code.relation(Direction::Ge, dtype, index, low);
            let below = self.code.relation(Direction::Le, dtype, index, high);
            let inside = self.code.combine(Binary::And, DType::Bool, above, below)?;
            valid = self.code.combine(Binary::And, DType::Bool, valid, inside)?;
        }
        Some((offset.unwrap_or_else(|| self.code.double(0)), valid))
    }

    /// Adds a dimension's part to an offset.
    fn with_part(&mut self, offset: Option<ScalarValue>, part: ScalarValue) -> Option<ScalarValue> {
        match offset {
            Some(offset) => self.code.combine(Binary::Add, DType::I64, offset, part),
            None => Some(part),
        }
    }

    /// Lowers a gather.
    pub fn gather(&mut self, program: usize, g: &Gather, step: &Step) -> Option<()> {
        let (x, indices, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let strides = x.shape.strides();
        let vectors = IndexVectors {
            slot: (program, step.inputs[1]),
            ty: indices,
            vector_dim: g.index_vector_dim,
            components: g.start_index_map.iter().map(|&d| (d, x.shape[d] - g.slice_sizes[d])).collect(),
            batching: [&g.operand_batching_dims, &g.start_indices_batching_dims],
        };
        let hidden = |d: &usize| g.collapsed_slice_dims.contains(d) || g.operand_batching_dims.contains(d);
        let sliced: Vec<usize> = (0..x.rank()).filter(|d| !hidden(d)).collect();
        let memory = self.expose((program, step.inputs[0]));
        let memory = self.indexable(memory);
        let scalar = scalar_type(y.dtype)?;
        let mut starts: HashMap<Vec<usize>, ScalarValue> = HashMap::new();
        for i in 0..y.elements() {
            let at = coordinates(y, i);
            let batch: Vec<usize> =
                (0..y.rank()).filter(|d| !g.offset_dims.contains(d)).map(|d| at[d]).collect();
            let inside: usize = sliced.iter().zip(&g.offset_dims).map(|(&d, &o)| strides[d] * at[o]).sum();
            let element = inside + vectors.batch_offset(&batch, &strides);
            let offset = match starts.get(&batch) {
                Some(&offset) => offset,
                None => {
                    let (offset, _) = self.start(&vectors, x, &batch)?;
                    starts.insert(batch, offset);
                    offset
                }
            };
            let address = self.address(memory, element * x.dtype.size(), Some(offset))?;
            let value = self.code.load(address, scalar);
            self.set_element((program, step.outputs[0]), i, scalar, value)?;
        }
        Some(())
    }

    /// Lowers a scatter: each element of the updates, in order, unless its block is out of bounds.
    pub fn scatter(&mut self, program: usize, s: &Scatter, step: &Step) -> Option<()> {
        let (x, updates) = (&step.input_types[0], &step.input_types[2]);
        let hidden = |d: &usize| s.inserted_window_dims.contains(d) || s.input_batching_dims.contains(d);
        let window: Vec<(usize, usize)> =
            (0..x.rank()).filter(|d| !hidden(d)).zip(s.update_window_dims.iter().copied()).collect();
        let size = |d: usize| window.iter().find(|(x, _)| *x == d).map_or(1, |&(_, w)| updates.shape[w]);
        let vectors = IndexVectors {
            slot: (program, step.inputs[1]),
            ty: &step.input_types[1],
            vector_dim: s.index_vector_dim,
            components: s.scatter_dims_to_operand_dims.iter().map(|&d| (d, x.shape[d] - size(d))).collect(),
            batching: [&s.input_batching_dims, &s.scatter_indices_batching_dims],
        };
        let (strides, scalar) = (x.shape.strides(), scalar_type(x.dtype)?);
        let [from, to] = [(program, step.inputs[0]), (program, step.outputs[0])];
        // The values of before: operands may be in the memory that is written.
        let new: Option<Vec<ScalarValue>> =
            (0..updates.elements()).map(|i| self.element((program, step.inputs[2]), i, scalar)).collect();
        let mut starts = Vec::new();
        for i in 0..updates.elements() {
            let at = coordinates(updates, i);
            let batch: Vec<usize> =
                (0..updates.rank()).filter(|d| !s.update_window_dims.contains(d)).map(|d| at[d]).collect();
            let inside: usize = window.iter().map(|&(d, w)| strides[d] * at[w]).sum();
            let element = inside + vectors.batch_offset(&batch, &strides);
            let (offset, valid) = self.start(&vectors, x, &batch)?;
            starts.push((element, offset, valid));
        }
        let memory = self.copied(from, to, x)?;
        for ((element, offset, valid), new) in starts.into_iter().zip(new?) {
            let address = self.address(memory, element * x.dtype.size(), Some(offset))?;
            let old = self.code.load(address, scalar);
            let new = match Monoid::of(&s.body) {
                Some(monoid) => self.code.combine(monoid.op(), x.dtype, old, new)?,
                None => new,
            };
            let value = self.code.choose(x.dtype, valid, new, old);
            self.code.store(value, address, scalar);
        }
        self.forget(to);
        Some(())
    }

    /// Copies an operand to the result's memory, unless both share it; returns the memory.
    fn copied(&mut self, from: ProgramSlot, to: ProgramSlot, x: &TensorType) -> Option<SlotMemory> {
        let scalar = scalar_type(x.dtype)?;
        let (before, after) = (self.expose(from), self.expose(to));
        if before != after {
            match x.elements() <= MOST_COPIED {
                true => {
                    for i in 0..x.elements() {
                        let value = self.element(from, i, scalar)?;
                        self.set_element(to, i, scalar, value)?;
                    }
                }
                false => self.copy(before, after, x.bytes()),
            }
        }
        Some(self.indexable(after))
    }
}
