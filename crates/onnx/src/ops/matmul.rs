//! Imports and exports ONNX operators on matrices: Det, Gemm, MatMul.

use super::call::{NodeCall, RuleResult, checked, output, unsupported};
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::Result;
use systole_ir::Tensor;
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "Det" 11..22: determinant;
    "Gemm" 1..13: gemm
        => FullyConnected write_dense, if |s| s.rank() == 2 || s.rank() > 2 && s.operator.is(OptionField::KeepNumDims);
    "MatMul" 1..13: matmul => BatchMatmul write_batch_matmul, if |s| s.rank() > 2 && s.computed().count() == 2;
}

/// Imports MatMul with NumPy semantics: batched over leading dimensions with broadcasting.
fn matmul(c: &mut NodeCall) -> RuleResult {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    output(product(&a, &b)?)
}

/// Multiplies like NumPy's matmul.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
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
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
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
    output(y)
}

/// Largest matrix whose determinant is unrolled.
const MOST_ELIMINATED: usize = 64;

/// Imports Det: `T[…, M, M] → T[…]` by Gaussian elimination with row pivots, unrolled.
fn determinant(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let Some(&[rows, n]) = x.shape().last_chunk().filter(|[rows, n]| rows == n) else {
        return Err(broken(format!("Det requires square matrices, got {}", x.ty())));
    };
    if rows > MOST_ELIMINATED {
        return Err(unsupported(format!("determinants of {rows} rows are not supported"))
            .because(format!("the elimination is unrolled for at most {MOST_ELIMINATED} rows")));
    }
    let leading = x.shape()[..x.rank() - 2].to_vec();
    let mut a = x.reshape([leading.iter().product::<usize>(), n, n]);
    let mut y = a.slice_dim(2, 0, 1).sum(&[1, 2]).ones_like();
    for k in (1..=n).rev() {
        let whole = a.shape().clone();
        let column = a.slice_dim(2, 0, 1);
        let place = column.abs().argmax(1).reshape([whole[0], 1, 1]).broadcast_to(column.shape());
        let is_pivot = place.equal(&c.g.iota(place.ty().clone(), 1)).broadcast_to(&whole);
        let pivot_row = is_pivot.select(&a, &a.zeros_like()).sum(&[1]);
        let pivot = pivot_row.slice_dim(1, 0, 1).reshape([whole[0]]);
        let place = place.slice_dim(1, 0, 1).reshape([whole[0]]);
        let sign = place.equal(&place.zeros_like()).select(&pivot.ones_like(), &-pivot.ones_like());
        y = y * &pivot * sign;
        if k == 1 {
            break;
        }
        // The first row moves to the place of the pivot's.
        let first = a.slice_dim(1, 0, 1).broadcast_to(&whole);
        let rest = is_pivot.select(&first, &a).slice_dim(1, 1, k);
        let safe = pivot.equal(&pivot.zeros_like()).select(&pivot.ones_like(), &pivot);
        let factor = rest.slice_dim(2, 0, 1) / safe.reshape([whole[0], 1, 1]);
        a = (&rest - factor * pivot_row.reshape([whole[0], 1, k])).slice_dim(2, 1, k);
    }
    output(y.reshape(leading))
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

#[cfg(test)]
mod tests {
    use crate::model::OnnxNode;
    use crate::test_node::{assert_close, floats, run_node};

    #[test]
    fn determinants_are_those_of_elimination_with_pivots() {
        let x = floats(
            [2, 3, 3],
            [0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 3.0, 0.0, 1.0, 1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 1.0, 1.0],
        );
        assert_close(&run_node(22, OnnxNode::new("Det", ["x"], "y"), &[&x])[0], &[-5.0, 0.0]);
    }
}
