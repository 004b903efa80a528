//! Moves average pooling of a convolution's result to the convolution's input:
//! `Σ_u (x ∗ k)[S·i + u] = ((Σ_u x[· + u]) ∗ k)[S·i]`.
//!
//! The convolution then has stride `S`, so that it computes fewer outputs. An average's division moves to the window
//! sums of the input, which usually has far fewer channels than the result. The gradients w.r.t. filter and bias are
//! rewritten in the same way: autodiff computes them from a gradient that repeats each window's value over its
//! elements.
//!
//! [`run`] does this for f32, where sums may be reassociated. [`run_narrow`] adds bf16 and f16 pooled in f32: the
//! original program rounds the convolution's result before it is summed, the rewritten one does not.

use crate::graph::rewrite::{NodeLookup, Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{
    Binary, BroadcastInDim, ConvDims, Convert, Convolution, Monoid, Pad, Reduce, ReduceWindow, Window,
};
use systole_ir::{DType, Dims, Graph, Node, Op, TensorType, ValueId};

/// Maximum number of bf16 or f16 channels for which the rewrite pays. It computes in f32; with more channels a
/// convolution in the narrow type is faster on machines with instructions for it.
const NARROW_CHANNELS: usize = 4;

/// Height and width.
type HeightWidth<T> = [T; 2];

/// Pooling windows over images `[B, H, W, C]`, without padding.
#[derive(Clone, Copy)]
struct PoolingWindows {
    size: HeightWidth<usize>,
    strides: HeightWidth<usize>,
}

impl PoolingWindows {
    /// Elements per window.
    fn count(self) -> usize {
        self.size[0] * self.size[1]
    }
}

/// A value and the windows that it is summed over: size, window dilation and padding.
type WindowSumKey = (ValueId, HeightWidth<usize>, HeightWidth<usize>, HeightWidth<[i64; 2]>);

/// Cache of new values, each of which is created once.
#[derive(Default)]
struct WindowSumCache {
    /// Window sums.
    sums: HashMap<WindowSumKey, ValueId>,
    /// Window sums divided by a number, by the bits of the number.
    quotients: HashMap<(ValueId, u64), ValueId>,
    /// Rewritten convolutions, by result.
    pooled: HashMap<ValueId, WindowSumConvolution>,
    /// Values converted to f32.
    wide: HashMap<ValueId, ValueId>,
    /// Whether bf16 and f16 are rewritten too.
    narrow: bool,
}

impl WindowSumCache {
    /// Whether sums of this type may be reassociated.
    fn takes(&self, dtype: DType) -> bool {
        dtype == DType::F32 || self.narrow && matches!(dtype, DType::BF16 | DType::F16)
    }

    /// Whether the window sums of images `[B, H, W, C]` are computed before the convolution.
    fn sums_inputs(&self, x: &TensorType) -> bool {
        self.takes(x.dtype) && (x.dtype == DType::F32 || x.shape[3] <= NARROW_CHANNELS)
    }

    /// The value converted to f32.
    fn wide(&mut self, g: &mut Rewriter, v: ValueId, node: &Node) -> ValueId {
        *self.wide.entry(v).or_insert_with(|| converted(g, v, DType::F32, node))
    }

    /// The value from which `v` differs only by rounding; `v` itself unless `narrow`.
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

/// A convolution of window sums, with its bias.
#[derive(Clone)]
struct WindowSumConvolution {
    conv: Convolution,
    summed: ValueId,
    kernel: ValueId,
    bias: Option<ValueId>,
}

/// Moves average pooling before the convolution, where the result is exact.
pub fn run(graph: &Graph) -> Graph {
    rewrite(graph, false)
}

/// Moves average pooling before the convolution, also for bf16 and f16 (changes rounding).
pub fn run_narrow(graph: &Graph) -> Graph {
    rewrite(graph, true)
}

fn rewrite(graph: &Graph, narrow: bool) -> Graph {
    let mut users = vec![0; graph.nodes.len()];
    for v in graph.nodes.iter().flat_map(|n| &n.inputs).chain(&graph.results) {
        users[v.index()] += 1;
    }
    let mut known = WindowSumCache { narrow, ..WindowSumCache::default() };
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

/// Rewrites window sums of a convolution, optionally with a bias, that has no other users.
fn pooled(
    g: &mut Rewriter,
    known: &mut WindowSumCache,
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
    // The saved multiply-adds must outweigh the window sums of the input.
    let fewer = windows.strides[0] * windows.strides[1] > 1 && c.strides.len() == 2;
    if !plain || !fewer {
        return None;
    }
    let (x, kernel) = (known.wide(g, x, node), known.wide(g, kernel, node));
    let bias = bias.map(|b| known.wide(g, b, node));
    let dilation = [c.strides[0], c.strides[1]];
    let summed = sums_of(g, known, x, windows.size, dilation, [c.padding[0], c.padding[1]], node);
    // The stride from window sum to window sum, and a negative padding that crops the sums after the last one.
    let strides: Dims = (0..2).map(|d| windows.strides[d] * dilation[d]).collect();
    let padding = (0..2).map(|d| {
        let reach = (g.ty(kernel).shape[d] - 1) * c.rhs_dilation[d] + 1;
        left_over(g.ty(summed).shape[d + 1], reach, strides[d], node.outs[0].shape[d + 1])
    });
    let conv = Convolution { padding: padding.collect(), strides, element_type: DType::F32, ..c };
    let bias = bias.map(|b| scaled(g, b, windows.count() as f64, node));
    let pooled = WindowSumConvolution { conv, summed, kernel, bias };
    let y = pooled.push(g, node);
    known.pooled.insert(y, pooled);
    Some(y)
}

impl WindowSumConvolution {
    fn push(&self, g: &mut Rewriter, node: &Node) -> ValueId {
        let y = g.push(self.conv.clone(), &[self.summed, self.kernel], node);
        let Some(bias) = self.bias else { return y };
        let wide = BroadcastInDim { dims: smallvec![3], shape: node.outs[0].shape.clone() };
        let wide = g.push(wide, &[bias], node);
        g.push(Binary::Add, &[y, wide], node)
    }
}

/// Moves a division of a rewritten convolution to its window sums and bias.
fn divided(g: &mut Rewriter, known: &mut WindowSumCache, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (pooled, by) = (known.pooled.get(&inputs[0])?.clone(), g.splat(inputs[1])?);
    let summed = quotient(g, known, pooled.summed, by, node);
    let bias = pooled.bias.map(|b| scaled(g, b, 1.0 / by, node));
    Some(WindowSumConvolution { summed, bias, ..pooled }.push(g, node))
}

/// The dividend and the divisor, if `v` is a division by a splat.
fn dividend(g: &Rewriter, v: ValueId) -> Option<(ValueId, f64)> {
    let node = g.node(v);
    let Op::Binary(Binary::Divide) = &node.op else { return None };
    Some((node.inputs[0], g.splat(node.inputs[1])?))
}

fn quotient(g: &mut Rewriter, known: &mut WindowSumCache, v: ValueId, by: f64, node: &Node) -> ValueId {
    *known.quotients.entry((v, by.to_bits())).or_insert_with(|| scaled(g, v, 1.0 / by, node))
}

/// Rewrites the filter gradient of a convolution whose result is summed over windows.
fn kernel_gradient(
    g: &mut Rewriter,
    known: &mut WindowSumCache,
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
    let dilation = [c.rhs_dilation[0], c.rhs_dilation[1]];
    let summed = sums_of(g, known, x, windows.size, dilation, [c.padding[0], c.padding[1]], node);
    let rhs_dilation: Dims = (0..2).map(|d| windows.strides[d] * dilation[d]).collect();
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

/// Rewrites the bias gradient.
fn bias_gradient(
    g: &mut Rewriter,
    known: &WindowSumCache,
    r: &Reduce,
    node: &Node,
    inputs: &[ValueId],
) -> Option<ValueId> {
    let &[spread, init] = inputs else { return None };
    let (dy, windows) = spread_over_windows(g, known.unrounded(g, spread))?;
    let is_sum = r.dims[..] == [0, 1, 2] && Monoid::of(&r.body) == Some(Monoid::Add) && g.is_zero(init);
    if !is_sum {
        return None;
    }
    let (dy, by) = dividend(g, dy).unwrap_or((dy, 1.0));
    let zero = converted(g, init, DType::F32, node);
    let sum = g.push(Reduce { body: Monoid::Add.body(DType::F32), ..r.clone() }, &[dy, zero], node);
    let sum = scaled(g, sum, windows.count() as f64 / by, node);
    Some(converted(g, sum, node.outs[0].dtype, node))
}

/// The padding with which the last of `count` windows of extent `reach` ends where the array ends. Negative padding
/// crops.
fn left_over(size: usize, reach: usize, stride: usize, count: usize) -> [i64; 2] {
    let used = reach + (count - 1) * stride;
    // A remainder smaller than the stride holds no further window.
    let needless = size >= used && size < used + stride;
    [0, if needless { 0 } else { used as i64 - size as i64 }]
}

/// The windows, if the op is an unpadded, undilated sum over height and width of f32 images.
fn summed_windows(g: &Rewriter, op: &ReduceWindow, inputs: &[ValueId]) -> Option<PoolingWindows> {
    let &[x, init] = inputs else { return None };
    let w = &op.window;
    let plain = g.ty(x).rank() == 4
        && g.ty(x).dtype == DType::F32
        && g.ty(x).elements() > 0
        && Monoid::of(&op.body) == Some(Monoid::Add)
        && g.is_zero(init)
        && [&w.base_dilations, &w.window_dilations].iter().all(|d| d.iter().all(|&d| d == 1))
        && w.padding.iter().all(|p| *p == [0, 0])
        && [0, 3].iter().all(|&d| w.dimensions[d] == 1 && w.strides[d] == 1)
        && (1..3).all(|d| w.dimensions[d] <= g.ty(x).shape[d]);
    let pair = |dims: &Dims| [dims[1], dims[2]];
    plain.then(|| PoolingWindows { size: pair(&w.dimensions), strides: pair(&w.strides) })
}

/// If `v` is the gradient of window sums (stride-1 window sums of a padded gradient), the gradient that it repeats over
/// the windows.
fn spread_over_windows(g: &Rewriter, v: ValueId) -> Option<(ValueId, PoolingWindows)> {
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
        && g.is_zero(padded.inputs[1])
        && g.ty(dy).elements() > 0;
    let strides = [interior[1] + 1, interior[2] + 1];
    fits.then_some((dy, PoolingWindows { strides, ..windows }))
}

/// Window sums of images with stride 1: one at each position of the padded images.
fn sums_of(
    g: &mut Rewriter,
    known: &mut WindowSumCache,
    x: ValueId,
    size: HeightWidth<usize>,
    dilation: HeightWidth<usize>,
    padding: HeightWidth<[i64; 2]>,
    node: &Node,
) -> ValueId {
    if let Some(&sums) = known.sums.get(&(x, size, dilation, padding)) {
        return sums;
    }
    let dtype = g.ty(x).dtype;
    let along = |pair: HeightWidth<usize>| -> Dims { smallvec![1, pair[0], pair[1], 1] };
    let window = Window {
        window_dilations: along(dilation),
        ..Window::new(&along(size), &[1; 4], &[[0, 0], padding[0], padding[1], [0, 0]])
    };
    let zero = g.scalar(dtype, 0.0, node);
    let sums = g.push(ReduceWindow { window, body: Monoid::Add.body(dtype) }, &[x, zero], node);
    known.sums.insert((x, size, dilation, padding), sums);
    sums
}

/// The vector that a broadcast repeats along the first three of four dimensions.
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
    let factor = g.full(&ty, factor, node);
    g.push(Binary::Multiply, &[v, factor], node)
}
