//! Fuses max pooling with argmax and the convolution, bias, relu and dense layer around it, forward and backward.
//!
//! Only windows without overlap, padding and dilation are fused. Each input element is then in at most one window, so
//! gradients of windows are written, never added. The rules match on the step list before buffers are planned, and
//! apply only if no other step reads an array that they remove.

use crate::program::{
    Kernel, Map, MapInstr, MapLoad, MapRegister, MaxPoolArgmax, Relu, SlotId, Step, StepList, Unpool,
    UnpooledGradient,
};
use smallvec::SmallVec;
use std::ops::RangeInclusive;
use systole_ir::op::{Binary, CompareType, ConvDims, Convolution, Direction, Monoid, Window};
use systole_ir::{DType, Graph, Op, Scalar, Shape, TensorType};

/// Number of elements of a pooling window. The argmax is one byte, and [`DEAD`](crate::DEAD) uses its highest bit.
const WINDOW: RangeInclusive<usize> = 2..=64;

/// Number of window elements that [`UnpooledGradient`] supports: its kernels select an element by the argmax in a table
/// of 4 or 16 entries, which fit a vector register.
const LOOKED_UP: RangeInclusive<usize> = 2..=16;

/// Maximum padded input elements of one image for [`UnpooledGradient`], which builds a table of each pixel's window. A
/// larger table does not stay in L1 and L2.
const TABLE: usize = 1 << 14;

/// M and K, and the minimum N, of a GEMM that is computed inside the kernel that reads it. Kernels read rows of this
/// length without packing.
const SMALL: RangeInclusive<usize> = 1..=64;
const LONG: usize = 256;

/// N of a GEMM that is accumulated while its left operand is produced: at most one vector of f32. `VECTOR` is that
/// vector's width in elements.
const COLUMNS: RangeInclusive<usize> = 1..=16;
const VECTOR: usize = 16;

/// Window and strides of a pooling of `x: T[B, H, W, C]`, if the fused kernels support it.
fn plain_window(w: &Window, x: &TensorType) -> Option<Unpool> {
    let fits = x.rank() == 4
        && matches!(x.dtype, DType::F32 | DType::BF16 | DType::F16)
        && x.elements() > 0
        && [&w.base_dilations, &w.window_dilations].iter().all(|d| d.iter().all(|&d| d == 1))
        && w.padding.iter().all(|p| *p == [0, 0])
        && [0, 3].iter().all(|&d| w.dimensions[d] == 1 && w.strides[d] == 1)
        && [1, 2].iter().all(|&d| w.dimensions[d] <= w.strides[d] && w.dimensions[d] <= x.shape[d])
        && WINDOW.contains(&(w.dimensions[1] * w.dimensions[2]));
    fits.then(|| Unpool { window: [w.dimensions[1], w.dimensions[2]], strides: [w.strides[1], w.strides[2]] })
}

/// Window and strides of a step that is a max pooling, if the fused kernels support it.
fn max_pool(steps: &StepList<'_>, step: &Step) -> Option<Unpool> {
    let Kernel::Op { op: Op::ReduceWindow(op), .. } = &step.kernel else { return None };
    let [_, init] = step.inputs[..] else { return None };
    let from_nothing = steps.constant(init)?.get(0) == Monoid::Maximum.identity(step.input_types[0].dtype);
    let is_max = Monoid::of(&op.body) == Some(Monoid::Maximum);
    (is_max && from_nothing).then(|| plain_window(&op.window, &step.input_types[0]))?
}

/// Whether the select body `(kept, candidate)` of a `select_and_scatter` is `kept >= candidate`, so that the first of
/// equal maxima wins, as in the stored argmax.
fn keeps_first_greatest(select: &Graph) -> bool {
    let [result] = select.results[..] else { return false };
    let node = select.node(result);
    let Op::Compare(c) = &node.op else { return false };
    c.direction == Direction::Ge
        && c.compare_type != CompareType::TotalOrder
        && node.inputs[..] == select.params[..]
}

/// Rewrites the gradient of sum pooling over non-overlapping windows. Autodiff emits it as a window sum over the
/// dilated and padded output gradient. Each of these sums has a single nonzero term, so the step only copies values.
pub fn spread_sums(steps: &mut StepList<'_>) {
    for r in steps.find(|s| matches!(s.kernel, Kernel::Op { op: Op::ReduceWindow(_), .. })) {
        let Some((pad, at)) = spread_at(steps, r) else { continue };
        let Some(pad) = steps.list[pad].take() else { continue };
        let Some(step) = &mut steps.list[r] else { continue };
        step.kernel = Kernel::Unpool(at);
        step.inputs = vec![pad.inputs[0]];
        step.input_types = vec![pad.input_types[0].clone()];
    }
}

fn spread_at(steps: &StepList<'_>, r: usize) -> Option<(usize, Unpool)> {
    let step = steps.step(r)?;
    let (padded, full) = (step.inputs[0], &step.output_types[0]);
    let Kernel::Op { op: Op::ReduceWindow(op), .. } = &step.kernel else { return None };
    let pad = steps.writer(padded)?;
    let maker = steps.step(pad)?;
    let Kernel::Op { op: Op::Pad(p), .. } = &maker.kernel else { return None };
    (steps.only_reader(padded) == Some(r)).then_some(())?;
    let is_zero = |slot: SlotId| steps.constant(slot).is_some_and(|c| c.get(0).as_f64() == 0.0);
    let w = &op.window;
    // The forward pooling's window: its strides are the dilation of the padded gradient.
    let strides: Vec<usize> = p.interior.iter().map(|i| i + 1).collect();
    let at = plain_window(&Window::new(&w.dimensions, &strides, &[[0, 0]; 4]), full)?;
    let fits = Monoid::of(&op.body) == Some(Monoid::Add)
        && w.strides.iter().chain(&w.base_dilations).chain(&w.window_dilations).all(|&s| s == 1)
        && w.padding.iter().all(|p| *p == [0, 0])
        && (0..4).all(|d| p.low[d] == w.dimensions[d] as i64 - 1)
        && (1..3).all(|d| at.covered(d - 1, maker.input_types[0].shape[d]) <= full.shape[d])
        && is_zero(*maker.inputs.get(1)?)
        && is_zero(*step.inputs.get(1)?);
    fits.then_some((pad, at))
}

/// Whether a step is the gradient of a max pooling of `operand` with `window`.
fn is_derivative(steps: &StepList<'_>, step: &Step, operand: SlotId, window: &Window) -> bool {
    let Kernel::Op { op: Op::SelectAndScatter(op), .. } = &step.kernel else { return false };
    let [x, source, init] = step.inputs[..] else { return false };
    x == operand
        && source != operand
        && steps.constant(init).is_some_and(|c| c.get(0).as_f64() == 0.0)
        && (&op.dimensions, &op.strides, &op.padding)
            == (&window.dimensions, &window.strides, &window.padding)
        && keeps_first_greatest(&op.select)
        && Monoid::of(&op.scatter) == Some(Monoid::Add)
}

/// Pairs max pooling with its gradient: `reduce_window` by `maximum` stores its argmax, which `select_and_scatter` over
/// the same windows reads instead of the pooled operand.
pub fn remember_places(steps: &mut StepList<'_>) {
    for p in steps.find(|s| matches!(s.kernel, Kernel::Op { op: Op::ReduceWindow(_), .. })) {
        let Some(step) = steps.step(p) else { continue };
        let Some(at) = max_pool(steps, step) else { continue };
        let Kernel::Op { op: Op::ReduceWindow(op), .. } = &step.kernel else { continue };
        let operand = step.inputs[0];
        let is_derivative =
            |&d: &usize| d > p && steps.step(d).is_some_and(|s| is_derivative(steps, s, operand, &op.window));
        let derivatives: Vec<usize> = steps.readers(operand).into_iter().filter(is_derivative).collect();
        if !derivatives.is_empty() {
            place_at(steps, p, at, &derivatives);
        }
    }
}

/// Adds the argmax as second result of the pooling at `p`, and makes its gradients read it.
fn place_at(steps: &mut StepList<'_>, p: usize, at: Unpool, derivatives: &[usize]) {
    let Some(pool) = &mut steps.list[p] else { return };
    become_pool(pool, at);
    let ty = pool.output_types[0].with_dtype(DType::U8);
    let place = steps.new_slot(&ty);
    if let Some(pool) = &mut steps.list[p] {
        pool.outputs.push(place);
        pool.output_types.push(ty.clone());
    }
    for &d in derivatives {
        let Some(step) = &mut steps.list[d] else { continue };
        step.kernel = Kernel::Unpool(at);
        step.inputs = vec![step.inputs[1], place];
        step.input_types = vec![step.input_types[1].clone(), ty.clone()];
    }
}

/// Turns a `reduce_window` into a [`MaxPoolArgmax`] without argmax.
fn become_pool(step: &mut Step, at: Unpool) {
    let operand = step.input_types[0].clone();
    step.kernel = Kernel::Pool(MaxPoolArgmax {
        window: at.window,
        strides: at.strides,
        relu: Relu::None,
        conv: None,
        product: 0,
        operand,
    });
    step.inputs.truncate(1);
    step.input_types.truncate(1);
}

/// A step that is `select(x <= 0, 0, x)`.
struct ReluStep {
    result: SlotId,
    predicate: Option<SlotId>,
    /// Whether `x` is the step's first input plus a bias for each channel; otherwise `x` is the input itself.
    biased: bool,
}

fn relu_of(step: &Step) -> Option<ReluStep> {
    let Kernel::Map(m) = &step.kernel else { return None };
    let (sum, compare, select) = match &m.instrs[..] {
        [compare, select] => (None, compare, select),
        [sum, compare, select] => (Some(sum), compare, select),
        _ => return None,
    };
    let (Op::Compare(c), Op::Select(_)) = (&compare.op, &select.op) else { return None };
    let &[x, zero] = &compare.args[..] else { return None };
    let biased = sum.is_some();
    let is_input = match sum {
        None => step.inputs.len() == 1 && is_own(m, x),
        Some(sum) => x == m.loads.len() && adds_channel_bias(step, m, sum),
    };
    let predicate = m.loads.len() + usize::from(biased);
    let fits = is_input
        && c.direction == Direction::Le
        && is_zero(m, zero)
        && (select.args[0], select.args[2]) == (predicate, x)
        && is_zero(m, select.args[1]);
    let output = |e: MapRegister| m.stores.iter().position(|&s| s == e).map(|k| step.outputs[k]);
    let known = m.stores.iter().all(|&s| s == predicate || s == predicate + 1);
    (fits && known).then_some(())?;
    Some(ReluStep { result: output(predicate + 1)?, predicate: output(predicate), biased })
}

/// Whether a register is loaded from an array at the element that is computed.
fn is_own(m: &Map, e: MapRegister) -> bool {
    m.loads.get(e).is_some_and(|l| m.is_linear(l))
}

fn is_zero(m: &Map, e: MapRegister) -> bool {
    matches!(m.loads.get(e), Some(MapLoad::Splat { value: Scalar::Float(v), .. }) if *v == 0.0)
}

/// A step that is `select(predicate, 0, x)` with this predicate: the slots of `x` and of the result.
fn masked(step: &Step, predicate: SlotId) -> Option<(SlotId, SlotId)> {
    let Kernel::Map(m) = &step.kernel else { return None };
    let ([select], [y]) = (&m.instrs[..], &step.outputs[..]) else { return None };
    let (&[p, zero, x], Op::Select(_)) = (&select.args[..], &select.op) else { return None };
    let input = |e: MapRegister| match m.loads.get(e)? {
        MapLoad::Array { input, .. } if is_own(m, e) => Some(step.inputs[*input]),
        _ => None,
    };
    (input(p)? == predicate && is_zero(m, zero)).then_some((input(x)?, *y))
}

/// A step that is `select(top <= 0, 0, x)` for an array `top`: the slot of `x`.
fn masked_by(step: &Step, top: SlotId) -> Option<SlotId> {
    let Kernel::Map(m) = &step.kernel else { return None };
    let ([compare, select], [_]) = (&m.instrs[..], &step.outputs[..]) else { return None };
    let (Op::Compare(c), Op::Select(_)) = (&compare.op, &select.op) else { return None };
    let (&[a, b], &[p, zero, x]) = (&compare.args[..], &select.args[..]) else { return None };
    let input = |e: MapRegister| match m.loads.get(e)? {
        MapLoad::Array { input, .. } if is_own(m, e) => Some(step.inputs[*input]),
        _ => None,
    };
    let fits = c.direction == Direction::Le
        && input(a)? == top
        && is_zero(m, b)
        && p == m.loads.len()
        && is_zero(m, zero)
        && input(x)? != top
        && m.stores[..] == [p + 1];
    fits.then(|| input(x))?
}

/// Removes `select(predicate, 0, x)` from a step whose result `k` it is, so that the result is `x`. `Ok`: the rewritten
/// step. `Err`: the step computed nothing else, and this is the slot of `x`.
fn unmask(step: &Step, k: usize, predicate: SlotId) -> Option<Result<Step, SlotId>> {
    if step.outputs.len() == 1
        && let Some((x, _)) = masked(step, predicate)
    {
        return Some(Err(x));
    }
    let Kernel::Map(m) = &step.kernel else { return None };
    let select = m.stores[k];
    let instr = m.instrs.get(select.checked_sub(m.loads.len())?)?;
    let (&[p, zero, x], Op::Select(_)) = (&instr.args[..], &instr.op) else { return None };
    let &MapLoad::Array { input: gone, .. } = m.loads.get(p)? else { return None };
    let uses = |e: MapRegister| m.instrs.iter().flat_map(|i| i.args.iter()).filter(|&&a| a == e).count();
    let stores = |e: MapRegister| m.stores.iter().filter(|&&s| s == e).count();
    let reads =
        m.loads.iter().filter(|l| matches!(l, MapLoad::Array { input, .. } if *input == gone)).count();
    let alone = (uses(p), stores(p), uses(select), stores(select), reads) == (1, 0, 0, 1, 1);
    (alone && step.inputs[gone] == predicate && is_zero(m, zero) && x >= m.loads.len()).then_some(())?;
    let renumber = |e: MapRegister| e - usize::from(e > p) - usize::from(e > select);
    let mut map = m.clone();
    map.stores[k] = x;
    map.instrs.remove(select - m.loads.len());
    map.loads.remove(p);
    map.stores.iter_mut().for_each(|s| *s = renumber(*s));
    map.instrs.iter_mut().flat_map(|i| i.args.iter_mut()).for_each(|a| *a = renumber(*a));
    for load in &mut map.loads {
        if let MapLoad::Array { input, .. } = load {
            *input -= usize::from(*input > gone);
        }
    }
    let mut step = Step { kernel: Kernel::Map(map), ..step.clone() };
    step.inputs.remove(gone);
    step.input_types.remove(gone);
    Some(Ok(step))
}

/// Pooling steps into which no relu is fused yet.
fn pools(steps: &StepList<'_>) -> Vec<usize> {
    steps.find(|s| matches!(&s.kernel, Kernel::Pool(p) if p.relu == Relu::None))
}

fn set_relu(step: &mut Step, relu: Relu) {
    if let Kernel::Pool(pool) = &mut step.kernel {
        pool.relu = relu;
    }
}

/// The steps that read an argmax, if all of them are [`Kernel::Unpool`].
fn unpools(steps: &StepList<'_>, place: SlotId) -> Option<Vec<usize>> {
    let all = steps.readers(place);
    let known = |&u: &usize| steps.step(u).is_some_and(|s| matches!(s.kernel, Kernel::Unpool(_)));
    (!steps.is_result(place) && all.iter().all(known)).then_some(all)
}

/// Fuses `relu(max_pool(x))`: the pooling applies relu and marks the argmax of windows without gradient as
/// [`DEAD`](crate::DEAD). The selects with which autodiff masks the gradient are removed.
pub fn relu_after(steps: &mut StepList<'_>) {
    for p in pools(steps) {
        if let Some(change) = relu_after_at(steps, p) {
            let relu = steps.list[change.relu].take();
            if let (Some(pool), Some(relu)) = (&mut steps.list[p], relu) {
                set_relu(pool, Relu::After);
                pool.outputs[0] = change.result;
                pool.flops += relu.flops;
            }
            for (select, unpool, rest) in change.gradients {
                let (step, source) = match rest {
                    Ok(step) => (Some(step), None),
                    Err(source) => (None, Some(source)),
                };
                steps.list[select] = step;
                if let (Some(unpool), Some(source)) = (&mut steps.list[unpool], source) {
                    unpool.inputs[0] = source;
                }
            }
        }
    }
}

struct ReluAfter {
    relu: usize,
    result: SlotId,
    /// For each gradient: the step with its select, the step that unpools it, and what remains of the former (see
    /// [`unmask`]).
    gradients: Vec<(usize, usize, Result<Step, SlotId>)>,
}

fn relu_after_at(steps: &StepList<'_>, p: usize) -> Option<ReluAfter> {
    let outputs = &steps.step(p)?.outputs;
    let top = outputs[0];
    let all = outputs.get(1).map_or(Some(Vec::new()), |&place| unpools(steps, place))?;
    let mut gradients = Vec::new();
    let mut relus = steps.readers(top);
    // Gradients whose mask is recomputed from the maximum instead of read.
    for unpool in &all {
        let source = steps.step(*unpool)?.inputs[0];
        let select = steps.writer(source)?;
        if let Some(x) = masked_by(steps.step(select)?, top)
            && steps.only_reader(source) == Some(*unpool)
        {
            relus.retain(|&r| r != select);
            gradients.push((select, *unpool, Err(x)));
        }
    }
    let &[relu] = &relus[..] else { return None };
    (!steps.is_result(top)).then_some(())?;
    let ReluStep { result, predicate, biased: false } = relu_of(steps.step(relu)?)? else { return None };
    let again: Vec<usize> = gradients.iter().map(|g| g.1).collect();
    for unpool in all.iter().filter(|u| !again.contains(u)) {
        let source = steps.step(*unpool)?.inputs[0];
        let select = steps.writer(source)?;
        let step = steps.step(select)?;
        let k = step.outputs.iter().position(|&o| o == source)?;
        (steps.only_reader(source) == Some(*unpool)).then_some(())?;
        gradients.push((select, *unpool, unmask(step, k, predicate?)?));
    }
    if let Some(predicate) = predicate {
        let known = |u: &usize| gradients.iter().any(|g| g.0 == *u);
        (!steps.is_result(predicate) && steps.readers(predicate).iter().all(known)).then_some(())?;
    }
    Some(ReluAfter { relu, result, gradients })
}

/// Fuses `max_pool(relu(x))`: the pooling applies relu to its operand and marks the argmax of windows without gradient
/// as [`DEAD`](crate::DEAD). The selects with which autodiff masks the gradient are removed.
pub fn relu_before(steps: &mut StepList<'_>) {
    for p in pools(steps) {
        let Some(change) = relu_before_at(steps, p) else { continue };
        let Some(relu) = steps.list[change.relu].take() else { continue };
        if let Some(mut made) = change.biased.and_then(|c| steps.list[c].take()) {
            add_bias(&mut made, &relu);
            // At the position of the relu step the bias is available. At that of the convolution it may not be: a
            // conversion of it may come in between.
            steps.list[change.relu] = Some(made);
        }
        if let Some(pool) = &mut steps.list[p] {
            set_relu(pool, Relu::Before);
            pool.inputs[0] = relu.inputs[0];
            pool.flops += relu.flops;
        }
        for (select, unpool, result) in change.gradients {
            steps.list[select] = None;
            if let Some(unpool) = &mut steps.list[unpool] {
                unpool.outputs[0] = result;
            }
        }
    }
}

struct ReluBefore {
    relu: usize,
    /// The convolution, if relu's step first adds a bias to its result.
    biased: Option<usize>,
    /// For each gradient: the step with its select, the step that unpools it, and the select's result.
    gradients: Vec<(usize, usize, SlotId)>,
}

fn relu_before_at(steps: &StepList<'_>, p: usize) -> Option<ReluBefore> {
    let pool = steps.step(p)?;
    let (x, place) = (pool.inputs[0], *pool.outputs.get(1)?);
    let at = steps.writer(x)?;
    let relu = relu_of(steps.step(at)?)?;
    (relu.result == x && steps.only_reader(x) == Some(p)).then_some(())?;
    let biased =
        if relu.biased { Some(convolution_of(steps, at, &pool.input_types[0].shape)?) } else { None };
    let mut gradients = Vec::new();
    for unpool in unpools(steps, place)? {
        let full = steps.step(unpool)?.outputs[0];
        let select = steps.only_reader(full)?;
        let (from, to) = masked(steps.step(select)?, relu.predicate?)?;
        (from == full).then_some(())?;
        gradients.push((select, unpool, to));
    }
    if let Some(predicate) = relu.predicate {
        let known = |u: &usize| gradients.iter().any(|g| g.0 == *u);
        (!steps.is_result(predicate) && steps.readers(predicate).iter().all(known)).then_some(())?;
    }
    Some(ReluBefore { relu: at, biased, gradients })
}

/// The convolution without bias that produces a step's first input, if its result has this shape, no other step reads
/// it, and a pooling can be fused into it.
fn convolution_of(steps: &StepList<'_>, reader: usize, shape: &Shape) -> Option<usize> {
    let x = steps.step(reader)?.inputs[0];
    let at = steps.writer(x)?;
    let made = steps.step(at)?;
    let Kernel::Op { op: Op::Convolution(c), bias: false } = &made.kernel else { return None };
    let mut types = made.input_types.iter().chain(&made.output_types);
    let fits = is_plain_convolution(c)
        && types.all(|t| t.dtype == made.output_types[0].dtype)
        && made.output_types[0].shape == *shape
        && steps.only_reader(x) == Some(reader);
    fits.then_some(at)
}

/// Moves the bias that `adder` adds to its first input into the convolution `made`, which produces that input.
fn add_bias(made: &mut Step, adder: &Step) {
    if let Kernel::Op { bias, .. } = &mut made.kernel {
        *bias = true;
    }
    made.inputs.extend(adder.inputs.get(1));
    made.input_types.extend(adder.input_types.get(1).cloned());
}

/// Whether a convolution has the only layout that fused kernels support: `x: T[B, H, W, C]`, `kernel: T[h, w, C, F]`,
/// one group, no reversal.
fn is_plain_convolution(c: &Convolution) -> bool {
    c.dims == ConvDims::channels_last(2)
        && c.feature_groups == 1
        && c.batch_groups == 1
        && c.reversal.iter().all(|r| !r)
}

/// Fuses a convolution, and its bias, into the pooling that is its only reader.
pub fn convolution_into_pool(steps: &mut StepList<'_>) {
    let candidates = steps.find(|s| match &s.kernel {
        Kernel::Pool(p) => p.conv.is_none(),
        Kernel::Op { op: Op::ReduceWindow(_), .. } => true,
        _ => false,
    });
    for p in candidates {
        let Some(maker) = made_for_pool(steps, p) else { continue };
        let at = steps.step(p).and_then(|s| max_pool(steps, s));
        let Some(mut made) = steps.list[maker.conv].take() else { continue };
        if let Some(bias) = maker.bias.and_then(|b| steps.list[b].take()) {
            add_bias(&mut made, &bias);
            made.flops += bias.flops;
        }
        let Some(step) = &mut steps.list[p] else { continue };
        if let Some(at) = at {
            become_pool(step, at);
        }
        let (Kernel::Pool(pool), Kernel::Op { op: Op::Convolution(c), .. }) = (&mut step.kernel, made.kernel)
        else {
            continue;
        };
        pool.conv = Some(c);
        (step.inputs, step.input_types) = (made.inputs, made.input_types);
        step.scope = made.scope;
        step.flops += made.flops;
    }
}

/// The convolution that produces a pooling's operand, and the separate step that adds its bias, if there is one.
struct PoolProducer {
    conv: usize,
    bias: Option<usize>,
}

fn made_for_pool(steps: &StepList<'_>, p: usize) -> Option<PoolProducer> {
    let step = steps.step(p)?;
    (matches!(step.kernel, Kernel::Pool(_)) || max_pool(steps, step).is_some()).then_some(())?;
    let x = step.inputs[0];
    let writer = steps.writer(x)?;
    let made = steps.step(writer)?;
    (steps.only_reader(x) == Some(p) && made.output_types[0].dtype == step.input_types[0].dtype)
        .then_some(())?;
    if is_channel_bias(made) {
        return Some(PoolProducer {
            conv: convolution_of(steps, writer, &step.input_types[0].shape)?,
            bias: Some(writer),
        });
    }
    let Kernel::Op { op: Op::Convolution(c), .. } = &made.kernel else { return None };
    let one_type = made.input_types.iter().all(|t| t.dtype == made.output_types[0].dtype);
    let same_shape = made.output_types[0].shape == step.input_types[0].shape;
    (is_plain_convolution(c) && one_type && same_shape).then_some(PoolProducer { conv: writer, bias: None })
}

/// Whether a step only adds its second input, a vector, to its first along the last dimension.
fn is_channel_bias(step: &Step) -> bool {
    let Kernel::Map(m) = &step.kernel else { return false };
    matches!((&m.instrs[..], &m.stores[..]), ([add], [_]) if adds_channel_bias(step, m, add))
}

/// Whether an instruction adds a step's second input, a vector, to its first along the last dimension.
fn adds_channel_bias(step: &Step, m: &Map, add: &MapInstr) -> bool {
    let (&[a, b], [_, bias]) = (&add.args[..], &step.input_types[..]) else { return false };
    let is_input = |e: MapRegister, k: usize| matches!(m.loads.get(e), Some(MapLoad::Array { input, .. }) if *input == k);
    let repeats = |e: MapRegister| matches!(m.loads.get(e), Some(MapLoad::Array { strides, offset: 0, .. }) if strides[..] == [0, 1]);
    add.op == Op::Binary(Binary::Add)
        && m.shape.rank() == 2
        && is_input(a, 0)
        && is_own(m, a)
        && is_input(b, 1)
        && repeats(b)
        && bias.elements() == m.shape[1]
}

/// Splits `sum += convolution` into the convolution and an addition, if the convolution is a kernel gradient of an
/// unpooled array: [`gradient_of_pooled`] matches only a plain convolution.
pub fn add_kernel_gradients_apart(steps: &mut StepList<'_>) {
    for i in steps.find(|s| matches!(s.kernel, Kernel::Accumulate { op: Op::Convolution(_) })) {
        let Some(gradient) = apart(steps, i) else { continue };
        let Some(onto) = steps.list[i].take() else { continue };
        let ty = onto.output_types[0].clone();
        let made = steps.new_slot(&ty);
        let addend = onto.inputs[2];
        let add = Step {
            kernel: Kernel::Map(sum_of_two(&ty)),
            inputs: vec![made, addend],
            input_types: vec![ty.clone(), ty.clone()],
            flops: ty.elements() as f64,
            ..onto
        };
        steps.list[i] = Some(Step { outputs: vec![made], ..gradient });
        steps.list.insert(i + 1, Some(add));
    }
}

/// The kernel gradient of an accumulating step as a separate step, if [`gradient_of_pooled`] could fuse it.
fn apart(steps: &StepList<'_>, i: usize) -> Option<Step> {
    let onto = steps.step(i)?;
    let Kernel::Accumulate { op } = &onto.kernel else { return None };
    let dy = onto.inputs[1];
    let unpool = steps.step(steps.writer(dy)?)?;
    let plain = Step {
        kernel: Kernel::Op { op: op.clone(), bias: false },
        inputs: onto.inputs[..2].to_vec(),
        input_types: onto.input_types[..2].to_vec(),
        ..onto.clone()
    };
    let fits =
        matches!(unpool.kernel, Kernel::Unpool(_)) && is_kernel_gradient(&plain, dy, &onto.input_types[1]);
    fits.then_some(plain)
}

/// The map `a + b` over two arrays of type `ty`.
fn sum_of_two(ty: &TensorType) -> Map {
    let strides: SmallVec<[usize; 4]> = [1].into_iter().collect();
    let load = |input| MapLoad::Array { input, dtype: ty.dtype, strides: strides.clone(), offset: 0 };
    let add = MapInstr {
        op: Op::Binary(Binary::Add),
        args: [0, 1].into_iter().collect(),
        from: ty.dtype,
        to: ty.dtype,
        contraction: None,
    };
    Map { shape: [ty.elements()].into(), loads: vec![load(0), load(1)], instrs: vec![add], stores: vec![2] }
}

/// Computes gradients of kernel and bias directly from the pooled gradient and the argmax, if these are the only
/// readers of the unpooled array. That array, mostly zeros, is never materialized.
pub fn gradient_of_pooled(steps: &mut StepList<'_>) {
    for u in steps.find(|s| matches!(s.kernel, Kernel::Unpool(_))) {
        let Some((kernel, bias)) = gradients_of(steps, u) else { continue };
        let Some(place) = place_of_gradients(steps, kernel, bias) else { continue };
        let (Some(unpool), Some(made)) = (steps.list[u].take(), steps.list[kernel].take()) else { continue };
        let summed = bias.and_then(|b| steps.list[b].take());
        let (Kernel::Unpool(at), Kernel::Op { op: Op::Convolution(conv), .. }) = (unpool.kernel, made.kernel)
        else {
            continue;
        };
        let taps = made.output_types[0].elements() / unpool.output_types[0].shape[3];
        let mut step = Step {
            kernel: Kernel::UnpooledGradient(UnpooledGradient {
                product: false,
                conv,
                unpool: at,
                full: unpool.output_types[0].clone(),
            }),
            inputs: vec![made.inputs[0], unpool.inputs[1], unpool.inputs[0]],
            input_types: vec![
                made.input_types[0].clone(),
                unpool.input_types[1].clone(),
                unpool.input_types[1].with_dtype(unpool.output_types[0].dtype),
            ],
            outputs: made.outputs,
            output_types: made.output_types,
            scope: made.scope,
            flops: 2.0 * (unpool.input_types[0].elements() * taps) as f64,
        };
        if let Some(summed) = summed {
            step.flops += unpool.input_types[0].elements() as f64;
            step.outputs.extend(summed.outputs);
            step.output_types.extend(summed.output_types);
        }
        steps.list[place] = Some(step);
    }
}

/// Where both gradients can be computed: at the earlier one, or at the kernel's if its image is computed in between, as
/// rematerialization does, and nothing reads the bias gradient before.
fn place_of_gradients(steps: &StepList<'_>, kernel: usize, bias: Option<usize>) -> Option<usize> {
    let Some(bias) = bias.filter(|bias| *bias < kernel) else { return Some(kernel) };
    let image = steps.step(kernel)?.inputs[0];
    if steps.writer(image).is_none_or(|at| at < bias) {
        return Some(bias);
    }
    let sums = &steps.step(bias)?.outputs;
    let is_read_later = sums.iter().flat_map(|slot| steps.readers(*slot)).all(|reader| reader > kernel);
    is_read_later.then_some(kernel)
}

/// Computes the pooled gradient inside the step of [`gradient_of_pooled`], its only reader, if it is a GEMM of small K:
/// computing a few columns takes no longer than reading them from L2 or beyond.
pub fn product_into_gradient(steps: &mut StepList<'_>) {
    for u in steps.find(|s| matches!(s.kernel, Kernel::UnpooledGradient(_))) {
        let product_of = |s: &Step| small_product(steps, s.inputs[2], s.input_types[1].shape[0]);
        let Some(dot) = steps.step(u).and_then(product_of) else { continue };
        let (Some(made), Some(step)) = (steps.list[dot].take(), &mut steps.list[u]) else { continue };
        if let Kernel::UnpooledGradient(g) = &mut step.kernel {
            g.product = true;
        }
        step.inputs.splice(2.., made.inputs);
        step.input_types.splice(2.., made.input_types);
        step.flops += made.flops;
    }
}

/// The GEMM `[images, K] · [K, N]` of few images and small K that produces an array with a single reader. M must be the
/// number of images: the kernel uses row `i` for image `i`, and a dense layer over the channels of each pixel has more
/// rows.
fn small_product(steps: &StepList<'_>, array: SlotId, images: usize) -> Option<usize> {
    steps.only_reader(array)?;
    let writer = steps.writer(array)?;
    let step = steps.step(writer)?;
    let Kernel::Op { op: Op::DotGeneral(dot), bias: false } = &step.kernel else { return None };
    let ([left, right], [out]) = (&step.input_types[..], &step.output_types[..]) else { return None };
    let plain = left.rank() == 2
        && right.rank() == 2
        && (&dot.lhs_contract[..], &dot.rhs_contract[..]) == (&[1][..], &[0][..])
        && left.dtype == out.dtype
        && right.dtype == out.dtype
        && matches!(out.dtype, DType::F32 | DType::BF16 | DType::F16);
    let few = left.shape.iter().all(|n| SMALL.contains(n)) && right.shape[1] >= LONG;
    let by_image = left.shape[0] == images;
    (plain && few && by_image).then_some(writer)
}

/// Fuses a GEMM of small N with the pooled convolution that produces its left operand. The GEMM is accumulated after
/// each row of windows, while that row is in L1 or L2.
pub fn product_of_pooled(steps: &mut StepList<'_>) {
    for p in steps.find(|s| matches!(&s.kernel, Kernel::Pool(p) if p.conv.is_some())) {
        let Some(dot) = pooled_product(steps, p) else { continue };
        let (Some(made), Some(step)) = (steps.list[dot].take(), &mut steps.list[p]) else { continue };
        if let Kernel::Pool(pool) = &mut step.kernel {
            pool.product = made.inputs.len() - 1;
        }
        step.inputs.extend(&made.inputs[1..]);
        step.input_types.extend_from_slice(&made.input_types[1..]);
        step.outputs.extend(made.outputs);
        step.output_types.extend(made.output_types);
        step.flops += made.flops;
    }
}

/// A GEMM whose left operand is the result of the pooling at `p`, and whose other operands exist before that step.
fn pooled_product(steps: &StepList<'_>, p: usize) -> Option<usize> {
    let step = steps.step(p)?;
    let (y, ty) = (step.outputs[0], &step.output_types[0]);
    let fits = |d: &usize| {
        let Some(dot) = steps.step(*d) else { return false };
        is_product_of_images(dot, ty)
            && dot.inputs[0] == y
            && dot.inputs[1..].iter().all(|&other| steps.writer(other).is_none_or(|at| at < p))
    };
    steps.readers(y).into_iter().find(fits)
}

/// Whether a step is `[B, H' W' C] · [N, H' W' C]ᵀ` of small N, with or without a bias, where a row of `images`
/// (`W' C` elements) is a multiple of the vector width.
fn is_product_of_images(dot: &Step, images: &TensorType) -> bool {
    let Kernel::Op { op: Op::DotGeneral(d), .. } = &dot.kernel else { return false };
    let ([left, right, ..], [out]) = (&dot.input_types[..], &dot.output_types[..]) else { return false };
    let elements = images.elements() / images.shape[0].max(1);
    left.rank() == 2
        && right.rank() == 2
        && (&d.lhs_contract[..], &d.rhs_contract[..]) == (&[1][..], &[1][..])
        && left.shape[..] == [images.shape[0], elements]
        && COLUMNS.contains(&right.shape[0])
        && elements >= LONG
        && (images.shape[2] * images.shape[3]).is_multiple_of(VECTOR)
        && [left, right, out].iter().all(|t| t.dtype == images.dtype)
}

/// The readers of an unpooled gradient, if they are one kernel gradient and at most one bias gradient.
fn gradients_of(steps: &StepList<'_>, u: usize) -> Option<(usize, Option<usize>)> {
    let step = steps.step(u).filter(|s| s.inputs.len() == 2)?;
    let Kernel::Unpool(at) = step.kernel else { return None };
    let (full, ty) = (step.outputs[0], &step.output_types[0]);
    (!steps.is_result(full) && LOOKED_UP.contains(&(at.window[0] * at.window[1]))).then_some(())?;
    let readers = steps.readers(full);
    let (mut kernel, mut bias) = (None, None);
    for r in readers {
        let reader = steps.step(r)?;
        if is_kernel_gradient(reader, full, ty) && kernel.is_none() {
            kernel = Some(r);
        } else if is_channel_sum(steps, reader, ty) && bias.is_none() {
            bias = Some(r);
        } else {
            return None;
        }
    }
    Some((kernel?, bias))
}

/// Whether a step is the kernel gradient of a 2-d convolution for the output gradient `dy: ty`, with at most [`TABLE`]
/// padded input elements per image.
fn is_kernel_gradient(step: &Step, dy: SlotId, ty: &TensorType) -> bool {
    let Kernel::Op { op: Op::Convolution(c), bias: false } = &step.kernel else { return false };
    let d = &c.dims;
    let layout = (d.input_feature, &d.input_spatial[..], d.input_batch) == (0, &[1, 2], 3)
        && (d.kernel_input_feature, &d.kernel_spatial[..], d.kernel_output_feature) == (0, &[1, 2], 3)
        && (&d.output_spatial[..], d.output_batch, d.output_feature) == (&[0, 1], 2, 3);
    layout
        && step.input_types.iter().all(|t| t.dtype == ty.dtype)
        && is_sum_type(step.output_types[0].dtype, ty.dtype)
        && c.feature_groups == 1
        && c.batch_groups == 1
        && c.reversal.iter().all(|r| !r)
        && step.inputs[0] != dy
        && step.input_types[1].shape == ty.shape
        && padded_image(c, &step.input_types[0].shape).is_some_and(|n| n <= TABLE)
}

/// Whether a reduction of `dtype` may have results of type `sum`: the same type, or f32 for bf16 and f16.
fn is_sum_type(sum: DType, dtype: DType) -> bool {
    sum == dtype || (sum == DType::F32 && matches!(dtype, DType::BF16 | DType::F16))
}

/// Elements of one image of a kernel gradient's input after padding and dilation.
fn padded_image(c: &Convolution, x: &Shape) -> Option<usize> {
    let side = |i: usize| {
        let holes = (x[i + 1] as i64 - 1) * c.lhs_dilation[i] as i64 + 1;
        usize::try_from(holes + c.padding[i][0] + c.padding[i][1]).ok()
    };
    side(0)?.checked_mul(side(1)?)?.checked_mul(x[3])
}

/// Whether a step sums an array of type `ty` over all but its last dimension: a bias gradient.
fn is_channel_sum(steps: &StepList<'_>, step: &Step, ty: &TensorType) -> bool {
    let Kernel::Reduce { map, folded, monoid: Monoid::Add } = &step.kernel else { return false };
    let [_, init] = step.inputs[..] else { return false };
    let widened = match &map.instrs[..] {
        [] => map.stores[..] == [0],
        [widen] => {
            matches!(widen.op, Op::Convert(_)) && widen.args[..] == [0] && map.stores[..] == [map.loads.len()]
        }
        _ => false,
    };
    widened
        && is_sum_type(step.output_types[0].dtype, ty.dtype)
        && folded[..] == [true, false]
        && is_own(map, 0)
        && map.shape[1] == ty.shape[3]
        && steps.constant(init).is_some_and(|c| c.get(0).as_f64() == 0.0)
}
