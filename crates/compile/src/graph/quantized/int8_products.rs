//! Rewrites products of dequantized values to int8 products with int32 sums, a zero-point correction and a scale; and
//! pools and gathers integers instead of the values they stand for.
//!
//! `Σ sx·(x − zx) · sw·(w − zw) = sx·sw · (Σ x·w − zx·Σ w − zw·Σ x + K·zx·zw)`: the weights are constant, so that all but
//! the products and `Σ x` is computed here. uint8 values are shifted by 128, because both operands of a product have one
//! type.

use super::dequantized::{DequantizationMatch, QuantParam, ZeroPoint, vector};
use super::quantization::QuantizationMatch;
use crate::graph::canonicalize::dead_code;
use crate::graph::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{
    Binary, BroadcastInDim, Constant, ConvDims, Convert, Convolution, DotGeneral, Monoid,
    OptimizationBarrier, Pad, Reduce, ReduceWindow,
};
use systole_ir::{DType, Dims, Graph, Literal, Node, Op, TensorType, ValueId};

/// Computes products, maxima and gathers of dequantized values in integers.
pub fn run(graph: &Graph) -> Graph {
    let is_byte = |t: &TensorType| matches!(t.dtype, DType::I8 | DType::U8);
    if !graph.nodes.iter().any(|node| node.outs.iter().any(is_byte)) {
        return graph.clone();
    }
    let mut rewrite = Int8Rewrite::default();
    let readers = reader_counts(graph);
    let new = rebuild(graph, |g, _, node, inputs| {
        let value = match &node.op {
            Op::Convert(c) => rewrite.quantize(g, c.to, node, inputs),
            Op::Binary(Binary::Multiply) => rewrite.dequantize(g, node, inputs),
            Op::Binary(Binary::Add) if node.inputs.iter().all(|v| is_read_once(graph, &readers, *v)) => {
                sum_of_products(g, node, inputs)
            }
            Op::DotGeneral(d) => rewrite.dot(g, d, node, inputs),
            Op::Convolution(c) => rewrite.convolution(g, c, node, inputs),
            Op::ReduceWindow(w) => rewrite.max_pool(g, w, node, inputs),
            Op::Gather(_) => gather(g, node, inputs),
            _ => None,
        };
        value.map(|v| smallvec![v])
    });
    dead_code::run(&new)
}

/// Difference of uint8 values and the int8 values that replace them.
const SHIFT: f64 = 128.0;

/// Maximum number of products that are added; any sum of them fits int32.
const MOST_K: usize = 1 << 16;

/// The rewrite of one graph.
#[derive(Default)]
struct Int8Rewrite {
    /// For uint8 values, the same values minus 128 as int8.
    signed: HashMap<ValueId, ValueId>,
}

/// An operand of a product as int8.
struct Int8Operand {
    q: ValueId,
    zero: ZeroPoint,
    scale: QuantParam,
}

/// A product of int8 operands, and what its correction needs.
struct Int8Sums {
    /// `i32[…]`.
    sums: ValueId,
    /// Dimension of the sums along which the weights' columns are.
    columns: usize,
    /// The left operand and, if its sums along the last dimension are needed, the weights' zero points.
    rows: Option<(ValueId, QuantParam)>,
    /// Sum of each column of the weights.
    of_weights: Vec<i64>,
    k: usize,
}

impl Int8Rewrite {
    /// Returns int8 values: uint8 values are shifted by 128.
    fn signed(&mut self, g: &mut Rewriter, q: ValueId, like: &Node) -> ValueId {
        if g.ty(q).dtype == DType::I8 {
            return q;
        }
        if let Some(&known) = self.signed.get(&q) {
            return known;
        }
        let node = g.node(q).clone();
        let value = match &node.op {
            Op::Constant(c) => g.push(Constant { value: shifted(&c.value) }, &[], like),
            Op::Transpose(_) | Op::Reshape(_) | Op::Slice(_) => {
                let inner = self.signed(g, node.inputs[0], like);
                g.push(node.op.clone(), &[inner], like)
            }
            _ => {
                let x = g.push(Convert { to: DType::I32 }, &[q], like);
                let ty = g.ty(x).clone();
                let by = g.full(&ty, SHIFT, like);
                let x = g.push(Binary::Subtract, &[x, by], like);
                g.push(Convert { to: DType::I8 }, &[x], like)
            }
        };
        self.signed.insert(q, value);
        value
    }

    fn int8(&mut self, g: &mut Rewriter, d: DequantizationMatch, like: &Node) -> Int8Operand {
        let is_shifted = g.ty(d.q).dtype == DType::U8;
        let zero = match d.zero {
            zero if !is_shifted => zero,
            ZeroPoint::Known(zero) => ZeroPoint::Known(zero.map(|z| z - SHIFT)),
            ZeroPoint::Computed(zero) => {
                let by = g.scalar(DType::I32, SHIFT, like);
                ZeroPoint::Computed(g.push(Binary::Subtract, &[zero, by], like))
            }
        };
        Int8Operand { q: self.signed(g, d.q, like), zero, scale: d.scale }
    }

    /// Quantizes to int8. A value that is quantized as it was before is not changed.
    fn quantize(&mut self, g: &mut Rewriter, to: DType, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
        let quantization = QuantizationMatch::of(g, inputs[0], to)?;
        let before = self.quantized_before(g, &quantization, node);
        let own = before.unwrap_or_else(|| quantization.push_signed(g, node));
        if to == DType::I8 {
            return Some(own);
        }
        let value = g.push_as(node, inputs);
        self.signed.insert(value, own);
        Some(value)
    }

    /// The int8 values that were dequantized with the same scale and zero point.
    fn quantized_before(&mut self, g: &mut Rewriter, to: &QuantizationMatch, like: &Node) -> Option<ValueId> {
        let (x, scale) = to.source.clone()?;
        let zero = ZeroPoint::Known(to.known_zero.clone()?);
        let from = DequantizationMatch::of(g, x)?;
        let from =
            DequantizationMatch { zero: of_unsigned(from.zero, g.ty(from.q).dtype, to.dtype)?, ..from };
        (from.scale == scale && from.zero == zero).then(|| self.signed(g, from.q, like))
    }

    /// Dequantizes the int8 values that replace uint8 values.
    fn dequantize(&mut self, g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
        let value = g.push_as(node, inputs);
        let found = DequantizationMatch::plain(g, value).filter(|d| self.signed.contains_key(&d.q));
        let Some(DequantizationMatch { q, zero: ZeroPoint::Known(zero), scale }) = found else {
            return Some(value);
        };
        let (q, zero) = (self.signed(g, q, node), ZeroPoint::Known(zero.map(|z| z - SHIFT)));
        DequantizationMatch { q, zero, scale }.push(g, node).or(Some(value))
    }

    /// The operands of a product, if both are dequantized and the right one is constant.
    fn operands(&mut self, g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<[Int8Operand; 2]> {
        if !matches!(node.outs[0].dtype, DType::F32 | DType::I32) {
            return None;
        }
        let w = DequantizationMatch::of(g, inputs[1]).filter(|w| is_constant(g, w.q))?;
        let x = DequantizationMatch::of(g, inputs[0])?;
        let is_scalar = |zero: &ZeroPoint| match zero {
            ZeroPoint::Known(p) => p.one().is_some(),
            ZeroPoint::Computed(_) => true,
        };
        let fits = x.scale.one().is_some() && is_scalar(&x.zero) && matches!(w.zero, ZeroPoint::Known(_));
        fits.then(|| [self.int8(g, x, node), self.int8(g, w, node)])
    }

    fn dot(&mut self, g: &mut Rewriter, d: &DotGeneral, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
        let (a, b) = (g.ty(inputs[0]).clone(), g.ty(inputs[1]).clone());
        let is_matrix = d.lhs_batch.is_empty() && b.rank() == 2 && d.rhs_contract.len() == 1;
        if !is_matrix || d.lhs_contract[..] != [a.rank().checked_sub(1)?] {
            return None;
        }
        let k = a.shape[a.rank() - 1];
        let [x, w] = self.operands(g, node, inputs).filter(|_| (1..=MOST_K).contains(&k))?;
        let columns = 1 - d.rhs_contract[0];
        let ZeroPoint::Known(zero) = &w.zero else { return None };
        let rows = zero.numbers().iter().any(|z| *z != 0.0).then(|| (x.q, zero.clone()));
        if rows.as_ref().is_some_and(|(_, zero)| matches!(zero, QuantParam::Along(d, _) if *d != columns)) {
            return None;
        }
        let of_weights = column_sums(g, w.q, columns)?;
        let sums = g.push(DotGeneral { element_type: DType::I32, ..d.clone() }, &[x.q, w.q], node);
        let dim = a.rank() - 1;
        finish(g, &Int8Sums { sums, columns: dim, rows, of_weights, k }, [&x, &w], columns, node)
    }

    fn convolution(
        &mut self,
        g: &mut Rewriter,
        c: &Convolution,
        node: &Node,
        inputs: &[ValueId],
    ) -> Option<ValueId> {
        let is_dense = [c.feature_groups, c.batch_groups] == [1, 1]
            && c.dims == ConvDims::channels_last(2)
            && c.lhs_dilation.iter().all(|&d| d == 1)
            && c.reversal.iter().all(|r| !r)
            && c.padding.iter().flatten().all(|&p| p >= 0);
        let k: usize = g.ty(inputs[1]).shape.iter().take(3).product();
        if !is_dense || !(1..=MOST_K).contains(&k) {
            return None;
        }
        let [x, w] = self.operands(g, node, inputs)?;
        let ZeroPoint::Known(zero) = &w.zero else { return None };
        if zero.numbers().iter().any(|z| *z != 0.0) {
            return None;
        }
        let columns = c.dims.kernel_output_feature;
        let of_weights = column_sums(g, w.q, columns)?;
        let (q, padding) = padded(g, c, &x, node)?;
        let op = Convolution { element_type: DType::I32, padding, ..c.clone() };
        let sums = g.push(op, &[q, w.q], node);
        let parts = Int8Sums { sums, columns: c.dims.output_feature, rows: None, of_weights, k };
        finish(g, &parts, [&x, &w], columns, node)
    }

    /// Max pooling of integers.
    fn max_pool(
        &mut self,
        g: &mut Rewriter,
        w: &ReduceWindow,
        node: &Node,
        inputs: &[ValueId],
    ) -> Option<ValueId> {
        let is_lowest = || QuantParam::of(g, inputs[1])?.one().filter(|v| *v <= f64::from(f32::MIN));
        if node.outs.len() != 1 || Monoid::of(&w.body) != Some(Monoid::Maximum) || is_lowest().is_none() {
            return None;
        }
        let x = DequantizationMatch::of(g, inputs[0]).filter(|x| x.scale.one().is_some_and(|s| s > 0.0))?;
        let x = self.int8(g, x, node);
        let lowest = g.scalar(DType::I8, -SHIFT, node);
        let op = ReduceWindow { window: w.window.clone(), body: Monoid::Maximum.body(DType::I8) };
        let q = g.push(op, &[x.q, lowest], node);
        DequantizationMatch { q, zero: x.zero, scale: x.scale }.push(g, node)
    }
}

/// A zero point in the type `to` that is shifted as the values of type `from` are.
fn of_unsigned(zero: ZeroPoint, from: DType, to: DType) -> Option<ZeroPoint> {
    match (zero, from, to) {
        (zero, from, to) if from == to => Some(zero),
        (ZeroPoint::Known(zero), DType::I8, DType::U8) => Some(ZeroPoint::Known(zero.map(|z| z + SHIFT))),
        _ => None,
    }
}

/// A gather from a dequantized table dequantizes what it takes only.
fn gather(g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let table = DequantizationMatch::plain(g, inputs[0]).filter(|d| d.scale.one().is_some())?;
    if !matches!(&table.zero, ZeroPoint::Known(zero) if zero.one().is_some())
        || g.ty(inputs[0]).dtype != DType::F32
    {
        return None;
    }
    let q = g.push(node.op.clone(), &[table.q, inputs[1]], node);
    DequantizationMatch { q, ..table }.push(g, node)
}

/// A sum of two dequantized results of products: one of them is stored in 8 bits, so that each product has an epilogue of
/// its own, and no int32 sums are stored.
fn sum_of_products(g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (a, b) = (DequantizationMatch::plain(g, inputs[0])?, DequantizationMatch::plain(g, inputs[1])?);
    if g.ty(inputs[0]).dtype != DType::F32 || !is_result(g, a.q) || !is_result(g, b.q) {
        return None;
    }
    let stored = OptimizationBarrier { stop_gradient: false };
    let q = g.push(stored, &[b.q], node);
    let b = DequantizationMatch { q, ..b }.push(g, node)?;
    Some(g.push(Binary::Add, &[inputs[0], b], node))
}

/// The number of readers of each node's results.
fn reader_counts(graph: &Graph) -> Vec<usize> {
    let mut counts = vec![0; graph.nodes.len()];
    let read = graph.nodes.iter().flat_map(|node| &node.inputs).chain(&graph.results);
    read.for_each(|v| counts[v.index()] += 1);
    counts
}

/// Whether a value, and everything from 8 bits to it, has one reader: the integers are not stored for others.
fn is_read_once(graph: &Graph, readers: &[usize], v: ValueId) -> bool {
    let node = graph.node(v);
    let is_byte = matches!(graph.ty(v).dtype, DType::I8 | DType::U8);
    let is_step = matches!(node.op, Op::Convert(_) | Op::Binary(_));
    readers[v.index()] == 1 && (is_byte || is_step && is_read_once(graph, readers, node.inputs[0]))
}

/// Whether an int8 value is quantized from the sums of one int8 product.
fn is_result(g: &Rewriter, v: ValueId) -> bool {
    let node = g.node(v);
    match &node.op {
        Op::DotGeneral(_) | Op::Convolution(_) => g.ty(v).dtype == DType::I32,
        Op::Convert(_) | Op::Unary(_) | Op::Binary(_) => is_result(g, node.inputs[0]),
        Op::Clamp(_) => is_result(g, node.inputs[1]),
        _ => false,
    }
}

/// uint8 constants minus 128.
fn shifted(value: &Literal) -> Literal {
    let bytes: Vec<i8> = value.bytes().iter().map(|b| (b ^ 0x80) as i8).collect();
    match Literal::from_slice(value.ty().shape.clone(), &bytes) {
        Ok(value) => value,
        Err(e) => systole_ir::bug!("{e}"),
    }
}

/// Whether a value consists of the elements of a constant.
fn is_constant(g: &Rewriter, v: ValueId) -> bool {
    let node = g.node(v);
    match &node.op {
        Op::Constant(_) => true,
        Op::Transpose(_) | Op::Reshape(_) | Op::Slice(_) => is_constant(g, node.inputs[0]),
        _ => false,
    }
}

/// Sums of an int8 constant over all dimensions but one.
fn column_sums(g: &Rewriter, v: ValueId, dim: usize) -> Option<Vec<i64>> {
    let node = g.node(v);
    match &node.op {
        Op::Transpose(t) => column_sums(g, node.inputs[0], t.permutation[dim]),
        Op::Constant(c) => {
            let dims = c.value.ty().shape.dims();
            let inner: usize = dims[dim + 1..].iter().product();
            let mut sums = vec![0i64; dims[dim]];
            for (i, part) in c.value.as_slice::<i8>().ok()?.chunks_exact(inner.max(1)).enumerate() {
                sums[i % dims[dim]] += part.iter().map(|w| i64::from(*w)).sum::<i64>();
            }
            Some(sums)
        }
        _ => None,
    }
}

/// The input of an int8 convolution and its padding: the zero point is padded where zeros would be.
fn padded(
    g: &mut Rewriter,
    c: &Convolution,
    x: &Int8Operand,
    node: &Node,
) -> Option<(ValueId, Vec<[i64; 2]>)> {
    if c.padding.iter().flatten().all(|&p| p == 0) || x.zero == ZeroPoint::Known(QuantParam::All(0.0)) {
        return Some((x.q, c.padding.clone()));
    }
    let value = match &x.zero {
        ZeroPoint::Known(zero) => g.scalar(DType::I8, zero.one()?, node),
        ZeroPoint::Computed(zero) => g.push(Convert { to: DType::I8 }, &[*zero], node),
    };
    let rank = g.ty(x.q).rank();
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    for (&d, [before, after]) in c.dims.input_spatial.iter().zip(&c.padding) {
        (low[d], high[d]) = (*before, *after);
    }
    let q = g.push(Pad { low, high, interior: vec![0; rank] }, &[x.q, value], node);
    Some((q, vec![[0, 0]; c.padding.len()]))
}

/// Corrects the sums for the zero points, and scales them if the result is a float. `columns`: dimension of the weights
/// along which their columns are.
fn finish(
    g: &mut Rewriter,
    parts: &Int8Sums,
    [x, w]: [&Int8Operand; 2],
    columns: usize,
    node: &Node,
) -> Option<ValueId> {
    let scales = match &w.scale {
        QuantParam::Along(dim, _) if *dim != columns => return None,
        scales => scales.map(|s| s * x.scale.one().unwrap_or(1.0)),
    };
    let sums = corrected(g, parts, &x.zero, node);
    if node.outs[0].dtype == DType::I32 {
        return Some(sums);
    }
    let y = g.push(Convert { to: DType::F32 }, &[sums], node);
    let scales = match scales {
        QuantParam::Along(_, all) => QuantParam::Along(parts.columns, all),
        one => one,
    };
    let scales = scales.push(g, &node.outs[0], node);
    Some(g.push(Binary::Multiply, &[y, scales], node))
}

/// Returns `Σ x·w + zx·(K·zw − Σ w) − zw·Σ x`.
fn corrected(g: &mut Rewriter, parts: &Int8Sums, zero: &ZeroPoint, node: &Node) -> ValueId {
    let mut sums = parts.sums;
    let ty = g.ty(sums).clone();
    let of_weights = |n: usize| match &parts.rows {
        Some((_, QuantParam::All(z))) => *z as i64,
        Some((_, QuantParam::Along(_, all))) => all[n] as i64,
        None => 0,
    };
    let factors =
        parts.of_weights.iter().enumerate().map(|(n, sum)| parts.k as i64 * of_weights(n) - sum).collect();
    // Sums are modulo 2³².
    let list = |g: &mut Rewriter, all: Vec<i64>| {
        let all: Vec<f64> = all.into_iter().map(|v| f64::from(v as i32)).collect();
        vector(g, &ty, parts.columns, &all, node)
    };
    let factors: Vec<i64> = factors;
    match zero {
        ZeroPoint::Known(zero) => {
            let zero = zero.one().unwrap_or(0.0) as i64;
            if zero != 0 && factors.iter().any(|f| *f != 0) {
                let more = list(g, factors.iter().map(|f| f * zero).collect());
                sums = g.push(Binary::Add, &[sums, more], node);
            }
        }
        ZeroPoint::Computed(zero) => {
            let factors = list(g, factors);
            let spread = BroadcastInDim { dims: Dims::new(), shape: ty.shape.clone() };
            let zero = g.push(spread, &[*zero], node);
            let more = g.push(Binary::Multiply, &[zero, factors], node);
            sums = g.push(Binary::Add, &[sums, more], node);
        }
    }
    if let Some((x, zero)) = &parts.rows {
        let of_rows = row_sums(g, *x, &ty, node);
        let zero = match zero {
            QuantParam::All(z) => QuantParam::All(*z),
            QuantParam::Along(_, all) => QuantParam::Along(parts.columns, all.clone()),
        };
        let zero = zero.push(g, &ty, node);
        let less = g.push(Binary::Multiply, &[of_rows, zero], node);
        sums = g.push(Binary::Subtract, &[sums, less], node);
    }
    sums
}

/// Sums of int8 values along their last dimension, broadcast to the type of a product.
fn row_sums(g: &mut Rewriter, x: ValueId, ty: &TensorType, node: &Node) -> ValueId {
    let x = g.push(Convert { to: DType::I32 }, &[x], node);
    let last = g.ty(x).rank() - 1;
    let zero = g.scalar(DType::I32, 0.0, node);
    let op = Reduce { dims: Dims::from_slice(&[last]), body: Monoid::Add.body(DType::I32) };
    let sums = g.push(op, &[x, zero], node);
    let spread = BroadcastInDim { dims: (0..last).collect(), shape: ty.shape.clone() };
    g.push(spread, &[sums], node)
}
