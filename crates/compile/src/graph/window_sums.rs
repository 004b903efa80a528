//! Sums over windows of a convolution's result, as average pooling takes them, are the convolution of sums over
//! windows of its input: `Σ_u (x ∗ k)[S·i + u] = ((Σ_u x[· + u]) ∗ k)[S·i]`.
//!
//! The convolution then takes steps of `S`, and the input usually has far fewer features than the result, so that it is
//! divided by the size of a window rather than that. The gradients of kernel and bias follow: autodiff makes them from
//! a gradient that repeats each window's over its elements. [`run`] does so for f32, where sums may be grouped anew;
//! [`run_narrow`] for narrow floats that are summed in f32: these are rounded before they are summed by the definition,
//! and not at all then.

use super::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{
    Binary, BroadcastInDim, Constant, ConvDims, Convert, Convolution, Monoid, Pad, Reduce, ReduceWindow,
    Window,
};
use systole_ir::{DType, Dims, Graph, Literal, Node, Op, TensorType, ValueId};

/// Channels of narrow floats up to which products of f32 with their sums are worth it: of more, products of the narrow
/// floats themselves take less time on machines that have them.
const NARROW_CHANNELS: usize = 4;

/// Height and width.
type Pair<T> = [T; 2];

/// Windows over images `[B, H, W, C]` that end inside them.
#[derive(Clone, Copy)]
struct Windows {
    size: Pair<usize>,
    strides: Pair<usize>,
}

impl Windows {
    /// Elements of a window.
    fn count(self) -> usize {
        self.size[0] * self.size[1]
    }
}

/// A value, and the windows that it is summed over: size, holes and padding.
type Summed = (ValueId, Pair<usize>, Pair<usize>, Pair<[i64; 2]>);

/// New values that are made once.
#[derive(Default)]
struct Known {
    /// Sums over windows.
    sums: HashMap<Summed, ValueId>,
    /// Sums divided by a number, by its bits.
    quotients: HashMap<(ValueId, u64), ValueId>,
    /// What pooled convolutions became.
    pooled: HashMap<ValueId, Pooled>,
    /// Narrow values as f32.
    wide: HashMap<ValueId, ValueId>,
    /// Whether results may be narrow.
    narrow: bool,
}

impl Known {
    /// Whether arrays of a type can be summed anew.
    fn takes(&self, dtype: DType) -> bool {
        dtype == DType::F32 || self.narrow && matches!(dtype, DType::BF16 | DType::F16)
    }

    /// Whether images `[B, H, W, C]` are summed over windows before they are convolved.
    fn sums_inputs(&self, x: &TensorType) -> bool {
        self.takes(x.dtype) && (x.dtype == DType::F32 || x.shape[3] <= NARROW_CHANNELS)
    }

    /// A value as f32.
    fn wide(&mut self, g: &mut Rewriter, v: ValueId, node: &Node) -> ValueId {
        *self.wide.entry(v).or_insert_with(|| converted(g, v, DType::F32, node))
    }

    /// What is the value but for roundings.
    fn unrounded(&self, g: &Rewriter, mut v: ValueId) -> ValueId {
        while let (true, Op::Convert(_)) = (self.narrow, &g.node(v).op) {
            let from = g.node(v).inputs[0];
            if !self.takes(g.ty(from).dtype) || !self.takes(g.ty(v).dtype) {
                break;
            }
            v = from;
        }
        v
    }
}

fn converted(g: &mut Rewriter, v: ValueId, to: DType, node: &Node) -> ValueId {
    if g.ty(v).dtype == to { v } else { g.push(Convert { to }, &[v], node) }
}

/// A convolution of sums, and the vector that is added to it.
#[derive(Clone)]
struct Pooled {
    conv: Convolution,
    summed: ValueId,
    kernel: ValueId,
    bias: Option<ValueId>,
}

/// The pass.
pub fn run(graph: &Graph) -> Graph {
    rewrite(graph, false)
}

/// The pass that takes narrow results too.
pub fn run_narrow(graph: &Graph) -> Graph {
    rewrite(graph, true)
}

fn rewrite(graph: &Graph, narrow: bool) -> Graph {
    let mut users = vec![0; graph.nodes.len()];
    for v in graph.nodes.iter().flat_map(|n| &n.inputs).chain(&graph.results) {
        users[v.index()] += 1;
    }
    let mut known = Known { narrow, ..Known::default() };
    rebuild(graph, |g, _, node, inputs| {
        let value = match &node.op {
            Op::ReduceWindow(op) => pooled(g, &mut known, graph, &users, op, node, inputs),
            Op::Binary(Binary::Divide) => divided(g, &mut known, node, inputs),
            Op::Convolution(c) => kernel_gradient(g, &mut known, c, node, inputs),
            Op::Reduce(r) => bias_gradient(g, &known, r, node, inputs),
            _ => None,
        };
        value.map(|v| smallvec![v])
    })
}

/// Sums over windows of a convolution, perhaps with a bias, of which nothing else is wanted.
fn pooled(
    g: &mut Rewriter,
    known: &mut Known,
    graph: &Graph,
    users: &[usize],
    op: &ReduceWindow,
    node: &Node,
    inputs: &[ValueId],
) -> Option<ValueId> {
    let windows = summed_windows(g, op, inputs)?;
    let alone = |v: ValueId| users[v.index()] == 1;
    let (mut old, mut new, mut bias) = (node.inputs[0], inputs[0], None);
    if let (true, Op::Convert(_), Op::Convert(_)) = (known.narrow, &graph.node(old).op, &g.node(new).op)
        && alone(old)
    {
        (old, new) = (graph.node(old).inputs[0], g.node(new).inputs[0]);
    }
    if matches!(graph.node(old).op, Op::Binary(Binary::Add)) && alone(old) {
        let (a, b) = (g.node(new).inputs[0], g.node(new).inputs[1]);
        let (k, vector) = if let Some(b) = repeated(g, b) { (0, b) } else { (1, repeated(g, a)?) };
        (old, new, bias) = (graph.node(old).inputs[k], g.node(new).inputs[k], Some(vector));
    }
    let Op::Convolution(c) = g.node(new).op.clone() else { return None };
    let (x, kernel) = (g.node(new).inputs[0], g.node(new).inputs[1]);
    let plain = alone(old)
        && c.dims == ConvDims::channels_last(2)
        && known.sums_inputs(g.ty(x))
        && [c.element_type, g.ty(kernel).dtype].iter().all(|&t| known.takes(t))
        && c.lhs_dilation.iter().all(|&d| d == 1)
        && c.reversal.iter().all(|r| !r)
        && (c.feature_groups, c.batch_groups) == (1, 1);
    // Fewer products must make up for the sums of the input.
    let fewer = windows.strides[0] * windows.strides[1] > 1 && c.strides.len() == 2;
    if !plain || !fewer {
        return None;
    }
    let (x, kernel) = (known.wide(g, x, node), known.wide(g, kernel, node));
    let bias = bias.map(|b| known.wide(g, b, node));
    let holes = [c.strides[0], c.strides[1]];
    let summed = sums_of(g, known, x, windows.size, holes, [c.padding[0], c.padding[1]], node);
    // Steps from sum to sum, and what is left over behind the last one.
    let strides: Dims = (0..2).map(|d| windows.strides[d] * holes[d]).collect();
    let padding = (0..2).map(|d| {
        let reach = (g.ty(kernel).shape[d] - 1) * c.rhs_dilation[d] + 1;
        left_over(g.ty(summed).shape[d + 1], reach, strides[d], node.outs[0].shape[d + 1])
    });
    let conv = Convolution { padding: padding.collect(), strides, element_type: DType::F32, ..c };
    let bias = bias.map(|b| scaled(g, b, windows.count() as f64, node));
    let pooled = Pooled { conv, summed, kernel, bias };
    let y = pooled.push(g, node);
    known.pooled.insert(y, pooled);
    Some(y)
}

impl Pooled {
    fn push(&self, g: &mut Rewriter, node: &Node) -> ValueId {
        let y = g.push(self.conv.clone(), &[self.summed, self.kernel], node);
        let Some(bias) = self.bias else { return y };
        let wide = BroadcastInDim { dims: smallvec![3], shape: node.outs[0].shape.clone() };
        let wide = g.push(wide, &[bias], node);
        g.push(Binary::Add, &[y, wide], node)
    }
}

/// A pooled convolution divided by a number is that of divided sums.
fn divided(g: &mut Rewriter, known: &mut Known, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (pooled, by) = (known.pooled.get(&inputs[0])?.clone(), splat(g, inputs[1])?);
    let summed = quotient(g, known, pooled.summed, by, node);
    let bias = pooled.bias.map(|b| scaled(g, b, 1.0 / by, node));
    Some(Pooled { summed, bias, ..pooled }.push(g, node))
}

/// What a value divides by one number, and that.
fn dividend(g: &Rewriter, v: ValueId) -> Option<(ValueId, f64)> {
    let node = g.node(v);
    let Op::Binary(Binary::Divide) = &node.op else { return None };
    Some((node.inputs[0], splat(g, node.inputs[1])?))
}

/// The number that all elements of a value are.
fn splat(g: &Rewriter, v: ValueId) -> Option<f64> {
    match &g.node(v).op {
        Op::Constant(c) if c.value.ty().elements() > 0 && c.value.is_splat() => Some(c.value.get(0).as_f64()),
        Op::BroadcastInDim(_) => splat(g, g.node(v).inputs[0]),
        _ => None,
    }
}

fn quotient(g: &mut Rewriter, known: &mut Known, v: ValueId, by: f64, node: &Node) -> ValueId {
    *known.quotients.entry((v, by.to_bits())).or_insert_with(|| scaled(g, v, 1.0 / by, node))
}

/// The gradient of a convolution's kernel by sums over windows of the result.
fn kernel_gradient(
    g: &mut Rewriter,
    known: &mut Known,
    c: &Convolution,
    node: &Node,
    inputs: &[ValueId],
) -> Option<ValueId> {
    let (x, spread) = (inputs[0], known.unrounded(g, inputs[1]));
    let (dy, windows) = spread_over_windows(g, spread)?;
    let d = &c.dims;
    let layout = (d.input_feature, &d.input_spatial[..], d.input_batch) == (0, &[1, 2], 3)
        && (d.kernel_input_feature, &d.kernel_spatial[..], d.kernel_output_feature) == (0, &[1, 2], 3)
        && (&d.output_spatial[..], d.output_batch, d.output_feature) == (&[0, 1], 2, 3);
    let plain = layout
        && known.sums_inputs(g.ty(x))
        && c.lhs_dilation.iter().all(|&d| d == 1)
        && c.reversal.iter().all(|r| !r)
        && (c.feature_groups, c.batch_groups) == (1, 1);
    if !plain {
        return None;
    }
    let x = known.wide(g, x, node);
    let holes = [c.rhs_dilation[0], c.rhs_dilation[1]];
    let summed = sums_of(g, known, x, windows.size, holes, [c.padding[0], c.padding[1]], node);
    let rhs_dilation: Dims = (0..2).map(|d| windows.strides[d] * holes[d]).collect();
    let padding = (0..2).map(|d| {
        let reach = (g.ty(dy).shape[d + 1] - 1) * rhs_dilation[d] + 1;
        left_over(g.ty(summed).shape[d + 1], reach, c.strides[d], node.outs[0].shape[d])
    });
    let conv =
        Convolution { padding: padding.collect(), rhs_dilation, element_type: DType::F32, ..c.clone() };
    let (summed, dy) = match dividend(g, dy) {
        Some((dy, by)) => (quotient(g, known, summed, by, node), dy),
        None => (summed, dy),
    };
    let gradient = g.push(conv, &[summed, dy], node);
    Some(converted(g, gradient, node.outs[0].dtype, node))
}

/// The gradient of a bias by sums over windows.
fn bias_gradient(
    g: &mut Rewriter,
    known: &Known,
    r: &Reduce,
    node: &Node,
    inputs: &[ValueId],
) -> Option<ValueId> {
    let &[spread, init] = inputs else { return None };
    let (dy, windows) = spread_over_windows(g, known.unrounded(g, spread))?;
    let is_sum = r.dims[..] == [0, 1, 2] && Monoid::of(&r.body) == Some(Monoid::Add) && is_zero(g, init);
    if !is_sum {
        return None;
    }
    let (dy, by) = dividend(g, dy).unwrap_or((dy, 1.0));
    let zero = converted(g, init, DType::F32, node);
    let sum = g.push(Reduce { body: Monoid::Add.body(DType::F32), ..r.clone() }, &[dy, zero], node);
    let sum = scaled(g, sum, windows.count() as f64 / by, node);
    Some(converted(g, sum, node.outs[0].dtype, node))
}

/// Padding, negative where something is left over, with which `count` windows of a `reach` end where the array does.
fn left_over(size: usize, reach: usize, stride: usize, count: usize) -> [i64; 2] {
    let used = reach + (count - 1) * stride;
    // What is too little for one more window is left out anyway.
    let needless = size >= used && size < used + stride;
    [0, if needless { 0 } else { used as i64 - size as i64 }]
}

/// The windows over which an op sums images of f32.
fn summed_windows(g: &Rewriter, op: &ReduceWindow, inputs: &[ValueId]) -> Option<Windows> {
    let &[x, init] = inputs else { return None };
    let w = &op.window;
    let plain = g.ty(x).rank() == 4
        && g.ty(x).dtype == DType::F32
        && g.ty(x).elements() > 0
        && Monoid::of(&op.body) == Some(Monoid::Add)
        && is_zero(g, init)
        && [&w.base_dilations, &w.window_dilations].iter().all(|d| d.iter().all(|&d| d == 1))
        && w.padding.iter().all(|p| *p == [0, 0])
        && [0, 3].iter().all(|&d| w.dimensions[d] == 1 && w.strides[d] == 1)
        && (1..3).all(|d| w.dimensions[d] <= g.ty(x).shape[d]);
    let pair = |dims: &Dims| [dims[1], dims[2]];
    plain.then(|| Windows { size: pair(&w.dimensions), strides: pair(&w.strides) })
}

/// What `v` repeats over windows, if it is the derivative of sums over windows: sums over the padded gradient.
fn spread_over_windows(g: &Rewriter, v: ValueId) -> Option<(ValueId, Windows)> {
    let node = g.node(v);
    let Op::ReduceWindow(op) = &node.op else { return None };
    let windows = summed_windows(g, op, &node.inputs)?;
    let padded = g.node(node.inputs[0]);
    let Op::Pad(Pad { low, high, interior }) = &padded.op else { return None };
    let (dy, size) = (padded.inputs[0], op.window.dimensions.clone());
    let inside = |d: usize| low[d] == size[d] as i64 - 1 && high[d] >= low[d];
    let fits = windows.strides == [1, 1]
        && (0..4).all(inside)
        && [0, 3].iter().all(|&d| interior[d] == 0 && high[d] == 0)
        && is_zero(g, padded.inputs[1])
        && g.ty(dy).elements() > 0;
    let strides = [interior[1] + 1, interior[2] + 1];
    fits.then_some((dy, Windows { strides, ..windows }))
}

/// Sums over windows of images that begin at every pixel of the padded images.
fn sums_of(
    g: &mut Rewriter,
    known: &mut Known,
    x: ValueId,
    size: Pair<usize>,
    holes: Pair<usize>,
    padding: Pair<[i64; 2]>,
    node: &Node,
) -> ValueId {
    if let Some(&sums) = known.sums.get(&(x, size, holes, padding)) {
        return sums;
    }
    let dtype = g.ty(x).dtype;
    let along = |pair: Pair<usize>| -> Dims { smallvec![1, pair[0], pair[1], 1] };
    let window = Window {
        window_dilations: along(holes),
        ..Window::new(&along(size), &[1; 4], &[[0, 0], padding[0], padding[1], [0, 0]])
    };
    let zero = g.push(Constant { value: Literal::zeros(TensorType::scalar(dtype)) }, &[], node);
    let sums = g.push(ReduceWindow { window, body: Monoid::Add.body(dtype) }, &[x, zero], node);
    known.sums.insert((x, size, holes, padding), sums);
    sums
}

/// The vector that a broadcast repeats along all but the last of four dimensions.
fn repeated(g: &Rewriter, v: ValueId) -> Option<ValueId> {
    let node = g.node(v);
    let Op::BroadcastInDim(b) = &node.op else { return None };
    let x = g.ty(node.inputs[0]);
    (b.dims[..] == [3] && x.shape[0] == b.shape[3]).then_some(node.inputs[0])
}

fn scaled(g: &mut Rewriter, v: ValueId, factor: f64, node: &Node) -> ValueId {
    if factor == 1.0 {
        return v;
    }
    let ty = g.ty(v).clone();
    let factor = g.push(Constant { value: Literal::scalar(ty.dtype, factor) }, &[], node);
    let factor = g.push(BroadcastInDim { dims: Dims::new(), shape: ty.shape }, &[factor], node);
    g.push(Binary::Multiply, &[v, factor], node)
}

fn is_zero(g: &Rewriter, v: ValueId) -> bool {
    matches!(&g.node(v).op, Op::Constant(c) if c.value.ty().rank() == 0 && c.value.get(0).as_f64() == 0.0)
}
