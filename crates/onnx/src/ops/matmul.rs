//! Imports and exports ONNX matrix products: MatMul, Gemm, Einsum.

use super::call::{NodeCall, RuleResult, checked, plain, unsupported};
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::Result;
use systole_ir::Tensor;
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "Einsum" 12..28: einsum;
    "Gemm" 1..13: gemm
        => FullyConnected write_dense, if |s| s.rank() == 2 || s.rank() > 2 && s.operator.is(OptionField::KeepNumDims);
    "MatMul" 1..13: matmul => BatchMatmul write_batch_matmul, if |s| s.rank() > 2 && s.computed().count() == 2;
}

/// Imports MatMul with NumPy semantics: batched over leading dimensions with broadcasting.
fn matmul(c: &mut NodeCall) -> RuleResult {
    let (a, b) = (c.plain(0)?, c.plain(1)?);
    plain(product(&a, &b)?)
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (ra, rb) = (a.rank(), b.rank());
    match (ra, rb) {
        (0, _) | (_, 0) => Err(broken("MatMul requires arrays, got a scalar")),
        (_, 1) => Ok(a.dot(b)),
        (1, 2) => Ok(a.dot(b)),
        (1, _) => {
            let row = a.reshape([1, a.shape()[0]]);
            let y = product(&row, b)?;
            let mut dims = y.shape().to_vec();
            dims.remove(y.rank() - 2);
            Ok(y.reshape(dims))
        }
        (_, 2) => Ok(a.dot_general(b, &[], &[], &[ra - 1], &[0])),
        _ => {
            let (a, b) = (side_by_side(a, b)?, side_by_side(b, a)?);
            Ok(a.matmul(&b))
        }
    }
}

/// Broadcasts `a` to the common leading dimensions.
fn side_by_side(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let n = a.rank().max(b.rank()) - 2;
    let size = |t: &Tensor, d: usize| (d + t.rank()).checked_sub(n + 2).map_or(1, |i| t.shape()[i]);
    let mut dims = Vec::new();
    for d in 0..n {
        dims.push(match (size(a, d), size(b, d)) {
            (x, y) if x == y || y == 1 => x,
            (1, y) => y,
            _ => return Err(broken(format!("cannot multiply {} and {}", a.ty(), b.ty()))),
        });
    }
    dims.extend_from_slice(&a.shape()[a.rank() - 2..]);
    Ok(a.broadcast_to(&checked(dims)?.into()))
}

/// Imports Gemm: α·A·B + β·C.
fn gemm(c: &mut NodeCall) -> RuleResult {
    let (a, b) = (c.plain(0)?, c.plain(1)?);
    if a.rank() != 2 || b.rank() != 2 {
        return Err(broken(format!("Gemm requires matrices, got {} and {}", a.ty(), b.ty())));
    }
    let sides = [usize::from(c.int("transA", 0)? == 0), usize::from(c.is("transB", false)?)];
    let mut y = a.dot_general(&b, &[], &[], &[sides[0]], &[sides[1]]);
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    if alpha != 1.0 {
        y = y * alpha;
    }
    if let Some(bias) = c.optional(2)? {
        y = y + if beta == 1.0 { bias } else { bias * beta };
    }
    plain(y)
}

/// Imports Einsum of one or two operands.
fn einsum(c: &mut NodeCall) -> RuleResult {
    let equation: String = c.word("equation", "")?.chars().filter(|l| !l.is_whitespace()).collect();
    let unread = || {
        unsupported(format!("unsupported equation `{equation}`"))
            .hint("use an einsum equation with one or two operands and plain letters")
    };
    let (operands, result) = equation.split_once("->").ok_or_else(unread)?;
    let operands: Vec<Vec<char>> = operands.split(',').map(|o| o.chars().collect()).collect();
    let result: Vec<char> = result.chars().collect();
    let once =
        |l: &[char]| l.iter().all(|x| x.is_ascii_alphabetic() && l.iter().filter(|y| *y == x).count() == 1);
    if operands.len() != c.node.inputs.len() || !operands.iter().chain([&result]).all(|l| once(l)) {
        return Err(unread());
    }
    let mut x = Vec::new();
    for (i, letters) in operands.iter().enumerate() {
        let t = c.plain(i)?;
        if t.rank() != letters.len() {
            return Err(broken(format!("{} does not match the equation `{equation}`", t.ty())));
        }
        let others: Vec<&char> =
            operands.iter().enumerate().filter(|(k, _)| *k != i).flat_map(|(_, l)| l).collect();
        let gone: Vec<usize> = (0..letters.len())
            .filter(|&d| !result.contains(&letters[d]) && !others.contains(&&letters[d]))
            .collect();
        let left: Vec<char> =
            letters.iter().enumerate().filter(|(d, _)| !gone.contains(d)).map(|(_, l)| *l).collect();
        x.push((if gone.is_empty() { t } else { t.sum_in_f32(&gone) }, left));
    }
    let (y, letters) = match &x[..] {
        [(t, letters)] => (t.clone(), letters.clone()),
        [a, b] => contracted(a, b, &result),
        _ => return Err(unread()),
    };
    let order = result.iter().map(|l| letters.iter().position(|k| k == l)).collect::<Option<Vec<_>>>();
    let order = order.filter(|o| o.len() == letters.len()).ok_or_else(unread)?;
    plain(y.transpose(&order))
}

/// Contracts two operands; returns the product and the letters of its dimensions.
fn contracted(
    (a, la): &(Tensor, Vec<char>),
    (b, lb): &(Tensor, Vec<char>),
    result: &[char],
) -> (Tensor, Vec<char>) {
    let shared = |keep: bool| la.iter().filter(move |l| lb.contains(l) && result.contains(l) == keep);
    let places = |of: &[char], keep: bool| -> Vec<usize> {
        shared(keep).filter_map(|l| of.iter().position(|k| k == l)).collect()
    };
    let y = a.dot_general(b, &places(la, true), &places(lb, true), &places(la, false), &places(lb, false));
    let own =
        |of: &[char], other: &[char]| of.iter().copied().filter(|l| !other.contains(l)).collect::<Vec<_>>();
    (y, [shared(true).copied().collect(), own(la, lb), own(lb, la)].concat())
}

/// Exports FULLY_CONNECTED, `x: [N, I], w: [O, I]`, as Gemm, or as MatMul and Add for higher ranks.
fn write_dense(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, w) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let bias = o.inputs.get(2).copied().flatten();
    let (rank, own) = (e.tensor(x)?.dims().len(), e.names[y].clone());
    let activation = o.activation()?;
    let input = e.real(x, ChannelOrder::Plain)?;
    if rank > 2 && o.is(OptionField::KeepNumDims) {
        let inputs = [input, e.weights(w, &[1, 0])?];
        let Some(bias) = bias else {
            return e.finish(y, ChannelOrder::Plain, activation, |out| OnnxNode::new("MatMul", inputs, out));
        };
        let product = e.made(&format!("{own}/product"), "MatMul", inputs.iter().map(String::as_str));
        let bias = e.weights(bias, &[0])?;
        return e
            .finish(y, ChannelOrder::Plain, activation, |out| OnnxNode::new("Add", [product, bias], out));
    }
    let rows = match rank {
        2 => input,
        _ => {
            let inner = e.tensor(w)?.dims().last().copied().unwrap_or(1);
            let shape = e.list(&format!("{own}/rows/shape"), &[-1, inner as i64])?;
            e.made(&format!("{own}/rows"), "Reshape", [input.as_str(), &shape])
        }
    };
    let mut inputs = vec![rows, e.weights(w, &[0, 1])?];
    if let Some(bias) = bias {
        inputs.push(e.weights(bias, &[0])?);
    }
    e.finish(y, ChannelOrder::Plain, activation, |out| {
        OnnxNode::new("Gemm", inputs, out).with("transB", OnnxAttribute::Int(1))
    })
}

/// Exports BATCH_MATMUL.
fn write_batch_matmul(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let own = e.names[y].clone();
    let mut inputs = Vec::new();
    for (i, field) in [OptionField::AdjX, OptionField::AdjY].into_iter().enumerate() {
        let t = operand_of(o, i)?;
        let mut name = e.real(t, ChannelOrder::Plain)?;
        if o.is(field) {
            let rank = e.tensor(t)?.dims().len() as i64;
            let order: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            let output = e.unique(&format!("{own}/turned"));
            e.push(OnnxNode::new("Transpose", [name], output.clone()).ints("perm", order));
            name = output;
        }
        inputs.push(name);
    }
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| OnnxNode::new("MatMul", inputs, out))
}
