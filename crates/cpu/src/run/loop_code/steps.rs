//! Lowers steps on small arrays, element by element; all other steps become calls of their kernels.
#![forbid(unsafe_code)]

use crate::run::loop_code::indexed::is_indexed;
use crate::run::loop_code::loop_call::JitLoopCall;
use crate::run::loop_code::lowering::{LoopLowering, ProgramSlot, SMALL};
use crate::run::loop_code::product::is_small_product;
use crate::simd::jit::scalar_code::{ScalarAddress, ScalarCode, ScalarItem, ScalarValue};
use crate::simd::jit::scalar_lower::scalar_type;
use crate::simd::level::Level;
use crate::simd::loops::loop_of_instruction;
use systole_compile::{Kernel, Map, MapInstr, MapLoad, Step, StridedMap};
use systole_ir::interp::EvalCx;
use systole_ir::op::Monoid;
use systole_ir::{DType, Literal, LiteralBuilder, Op, Scalar, TensorType};

/// Elements of the largest array whose elements are computed one by one.
const MOST_ELEMENTS: usize = 32;

/// Instructions of the largest element-wise program, for all elements.
const MOST_INSTRUCTIONS: usize = 512;

/// Whether a step is computed element by element.
pub fn is_elementwise(step: &Step, level: Level) -> bool {
    let is_small = |t: &TensorType| {
        scalar_type(t.dtype).is_some() && t.bytes() <= SMALL && (1..=MOST_ELEMENTS).contains(&t.elements())
    };
    if let Some(is_supported) = is_indexed(step, &is_small) {
        return is_supported;
    }
    if !step.output_types.iter().all(is_small) {
        return false;
    }
    match &step.kernel {
        Kernel::Map(map) => has_scalar_form(map, MOST_ELEMENTS, level),
        Kernel::StridedMap(p) => has_scalar_form(&p.map, MOST_ELEMENTS, level),
        Kernel::Reduce { map, folded, .. } => {
            has_scalar_form(map, 2 * MOST_ELEMENTS, level) && is_in_order(map, folded)
        }
        Kernel::Op { op: Op::DotGeneral(dot), bias: false } => is_small_product(dot, step),
        Kernel::Op {
            op: Op::Slice(_) | Op::Concatenate(_) | Op::Transpose(_) | Op::Reverse(_) | Op::Pad(_),
            bias: false,
        } => step.input_types.iter().all(|t| t.elements() <= 8 * MOST_ELEMENTS),
        _ => false,
    }
}

/// Whether all instructions of an element-wise program have a scalar form or a vector loop.
fn has_scalar_form(map: &Map, elements: usize, level: Level) -> bool {
    let n = map.shape.elements();
    (1..=elements).contains(&n)
        && n * map.instrs.len() <= MOST_INSTRUCTIONS
        && (0..map.loads.len() + map.instrs.len()).all(|e| scalar_type(map.dtype(e)).is_some())
        && map.instrs.iter().all(|i| {
            scalar_type(i.from).is_some() && (is_scalar(i) || loop_of_instruction(i, level).is_some())
        })
}

/// Whether an instruction has a scalar form.
fn is_scalar(instr: &MapInstr) -> bool {
    let mut code = ScalarCode::default();
    let x = code.word(0);
    code.instruction(instr, &[x, x, x][..instr.args.len()]).is_some()
}

impl LoopLowering {
    /// Lowers a step that is computed element by element.
    pub fn elementwise_step(&mut self, program: usize, step: &Step) -> Option<()> {
        match &step.kernel {
            Kernel::Map(map) => {
                let values = self.map(program, step, map)?;
                for (s, values) in values.into_iter().enumerate() {
                    let to = (program, step.outputs[s]);
                    let scalar = scalar_type(step.output_types[s].dtype)?;
                    for (i, value) in values.into_iter().enumerate() {
                        self.set_element(to, i, scalar, value)?;
                    }
                }
                Some(())
            }
            Kernel::StridedMap(p) => self.strided_map(program, step, p),
            Kernel::Reduce { map, folded, monoid } => self.reduce(program, step, (map, folded, *monoid)),
            Kernel::Op { op: Op::DynamicSlice(_), .. } => self.dynamic_slice(program, step),
            Kernel::Op { op: Op::DynamicUpdateSlice(_), .. } => self.dynamic_update(program, step),
            Kernel::Op { op: Op::Gather(gather), .. } => self.gather(program, gather, step),
            Kernel::Op { op: Op::Scatter(scatter), .. } => self.scatter(program, scatter, step),
            Kernel::Op { op: Op::DotGeneral(dot), .. } => self.product(program, dot, step),
            Kernel::Op { op, .. } => self.movement(program, op, step),
            _ => None,
        }
    }

    /// Returns the values that an element-wise program stores, for each store and element.
    fn map(&mut self, program: usize, step: &Step, map: &Map) -> Option<Vec<Vec<ScalarValue>>> {
        let n = map.shape.elements();
        let count = map.loads.len() + map.instrs.len();
        let mut values: Vec<Vec<ScalarValue>> = vec![Vec::with_capacity(n); count];
        let inputs: Vec<ProgramSlot> = step.inputs.iter().map(|&s| (program, s)).collect();
        let is_scalar: Vec<bool> = map.instrs.iter().map(is_scalar).collect();
        // Element by element if possible: fewer values are alive at a time.
        let parts: Vec<(usize, usize)> = match is_scalar.iter().all(|&s| s) {
            true => (0..n).map(|i| (i, i + 1)).collect(),
            false => vec![(0, n)],
        };
        for (from, to) in parts {
            for (e, load) in map.loads.iter().enumerate() {
                for i in from..to {
                    let value = self.loaded(load, map, &inputs, i)?;
                    values[e].push(value);
                }
            }
            for (k, instr) in map.instrs.iter().enumerate() {
                let result = map.loads.len() + k;
                if !is_scalar[k] {
                    values[result] = self.tile(instr, &values, n)?;
                    continue;
                }
                for i in from..to {
                    let args: Vec<ScalarValue> = instr.args.iter().map(|&a| values[a][i]).collect();
                    let value = self.code.instruction(instr, &args)?;
                    values[result].push(value);
                }
            }
        }
        Some(map.stores.iter().map(|&s| values[s].clone()).collect())
    }

    /// Lowers an element-wise program that stores into parts of arrays.
    fn strided_map(&mut self, program: usize, step: &Step, p: &StridedMap) -> Option<()> {
        let values = self.map(program, step, &p.map)?;
        for (store, values) in p.stores.iter().zip(values) {
            let scalar = scalar_type(step.output_types[store.output].dtype)?;
            for (i, value) in values.into_iter().enumerate() {
                let at = element_at(&p.map, &store.strides, store.offset, i);
                self.set_element((program, step.outputs[store.output]), at, scalar, value)?;
            }
        }
        Some(())
    }

    /// Returns element `i` of a load.
    fn loaded(&mut self, load: &MapLoad, map: &Map, inputs: &[ProgramSlot], i: usize) -> Option<ScalarValue> {
        match load {
            MapLoad::Array { input, dtype, strides, offset } => {
                let at = element_at(map, strides, *offset, i);
                self.element(inputs[*input], at, scalar_type(*dtype)?)
            }
            MapLoad::Splat { value, dtype } => Some(self.code.constant_of(*dtype, value.to_bits(*dtype))),
            MapLoad::Iota { inner, size, dtype } => {
                let index = Scalar::Int((i / inner % size) as i64);
                Some(self.code.constant_of(*dtype, index.to_bits(*dtype)))
            }
        }
    }

    /// Computes an instruction without a scalar form by its vector loop, for all elements.
    fn tile(&mut self, instr: &MapInstr, values: &[Vec<ScalarValue>], n: usize) -> Option<Vec<ScalarValue>> {
        let run = loop_of_instruction(instr, self.level)?;
        let mut args = [0; 3];
        for (k, &a) in instr.args.iter().enumerate() {
            let is_bool = matches!(instr.op, Op::Select(_)) && k == 0;
            let scalar = scalar_type(if is_bool { DType::Bool } else { instr.from })?;
            args[k] = self.code.reserve(8 * n);
            for (i, &value) in values[a].iter().enumerate() {
                self.code.store(value, ScalarAddress::Frame(args[k] + i * scalar.bytes()), scalar);
            }
        }
        let used = args[0];
        args[instr.args.len()..].fill(used);
        let (to, scalar) = (self.code.reserve(8 * n), scalar_type(instr.to)?);
        self.code.items.push(ScalarItem::Tile { run, args, to, count: n });
        Some((0..n).map(|i| self.code.load(ScalarAddress::Frame(to + i * scalar.bytes()), scalar)).collect())
    }

    fn reduce(
        &mut self,
        program: usize,
        step: &Step,
        (map, folded, monoid): (&Map, &[bool], Monoid),
    ) -> Option<()> {
        let values = self.map(program, step, map)?;
        let first = step.inputs.len() - values.len();
        for (s, values) in values.into_iter().enumerate() {
            let dtype = step.output_types[s].dtype;
            let scalar = scalar_type(dtype)?;
            let mut sums: Vec<Option<ScalarValue>> = vec![None; step.output_types[s].elements()];
            for (i, value) in values.into_iter().enumerate() {
                let sum = &mut sums[kept_index(map, folded, i)];
                *sum = Some(match *sum {
                    Some(sum) => self.code.combine(monoid.op(), dtype, sum, value)?,
                    None => value,
                });
            }
            let initial = self.element((program, step.inputs[first + s]), 0, scalar)?;
            for (i, sum) in sums.into_iter().enumerate() {
                let value = self.code.combine(monoid.op(), dtype, initial, sum?)?;
                self.set_element((program, step.outputs[s]), i, scalar, value)?;
            }
        }
        Some(())
    }

    /// Lowers an op that only moves elements.
    fn movement(&mut self, program: usize, op: &Op, step: &Step) -> Option<()> {
        let scalar = scalar_type(step.output_types[0].dtype)?;
        let sources = sources(op, step)?;
        for (i, (input, element)) in sources.into_iter().enumerate() {
            let value = self.element((program, step.inputs[input]), element, scalar)?;
            self.set_element((program, step.outputs[0]), i, scalar, value)?;
        }
        Some(())
    }

    /// Lowers a step to a call of its kernel.
    pub fn kernel_call(&mut self, program: usize, step: usize) {
        let executor = self.programs[program].program.clone();
        let of = &executor.schedule().steps[step];
        let inputs = of.inputs.iter().map(|&s| self.expose((program, s))).collect();
        let outputs = of.outputs.iter().map(|&s| self.expose((program, s))).collect();
        let scratch = self.programs[program].scratch;
        let scratch = self.scratch(scratch);
        self.call(JitLoopCall::Kernel { program: executor.clone(), step, inputs, outputs, scratch });
        of.outputs.iter().for_each(|&s| self.forget((program, s)));
    }
}

/// Whether the reduction's kernel folds the elements of each result in their order: with dimensions of one kind merged,
/// it folds rows or columns of a matrix.
fn is_in_order(map: &Map, folded: &[bool]) -> bool {
    let mut kinds: Vec<bool> =
        (0..map.shape.rank()).filter(|&d| map.shape[d] > 1).map(|d| folded[d]).collect();
    kinds.dedup();
    kinds.len() <= 2
}

/// Returns the element of an array that index `i` of an element-wise program reads or writes.
fn element_at(map: &Map, strides: &[usize], offset: usize, i: usize) -> usize {
    let (mut at, mut rest) = (offset, i);
    for (d, stride) in strides.iter().enumerate().rev() {
        at += rest % map.shape[d] * stride;
        rest /= map.shape[d];
    }
    at
}

/// Returns the result that element `i` of a reduction's index space belongs to.
fn kept_index(map: &Map, folded: &[bool], i: usize) -> usize {
    let (mut index, mut scale, mut rest) = (0, 1, i);
    for d in (0..map.shape.rank()).rev() {
        let at = rest % map.shape[d];
        rest /= map.shape[d];
        if !folded[d] {
            index += at * scale;
            scale *= map.shape[d];
        }
    }
    index
}

/// Returns the operand and element that each element of an op's result is a copy of: the op is evaluated on numbers of
/// elements.
fn sources(op: &Op, step: &Step) -> Option<Vec<(usize, usize)>> {
    let mut first = Vec::new();
    let mut next = 0;
    let mut numbers = Vec::new();
    for t in &step.input_types {
        let mut literal = LiteralBuilder::new(t.with_dtype(DType::I32));
        (0..t.elements()).for_each(|i| literal.set(i, Scalar::Int((next + i) as i64)));
        numbers.push(literal.finish());
        first.push(next);
        next += t.elements();
    }
    let refs: Vec<&Literal> = numbers.iter().collect();
    let types = smallvec::smallvec![step.output_types[0].with_dtype(DType::I32)];
    let result = op.rule().eval(&mut EvalCx::default(), &refs, &types).ok()?;
    let of = |number: &i32| {
        let number = *number as usize;
        let input = first.iter().rposition(|&f| f <= number)?;
        Some((input, number - first[input]))
    };
    result.first()?.as_slice::<i32>().ok()?.iter().map(of).collect()
}
