//! Imports ONNX operators that crop, select or reorder elements: CenterCropPad, Col2Im, Compress, NonZero,
//! ReverseSequence.

use super::call::{NodeCall, RuleResult, axes, axis, checked, output, unsupported};
use super::indexing::element_gather;
use super::op_row::operators;
use super::resize::taken;
use crate::model::broken;
use systole_base::{DType, Literal, Result, ensure};
use systole_ir::Tensor;

operators! {
    "CenterCropPad" 18..18: center_crop_pad;
    "Col2Im" 18..18: column_to_image;
    "Compress" 9..11: compress;
    "NonZero" 9..13: non_zero;
    "ReverseSequence" 10..10: reverse_sequence;
}

/// Imports CenterCropPad: crops or pads with zeros around the center.
fn center_crop_pad(c: &mut NodeCall) -> RuleResult {
    let (x, sizes) = (c.tensor(0)?, c.numbers(1)?);
    let dims = match c.ints("axes")? {
        Some(list) => list.iter().map(|&a| axis(a, x.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..x.rank()).collect(),
    };
    if dims.len() != sizes.len() {
        return Err(broken(format!("shape {sizes:?} does not match axes {dims:?} of {}", x.ty())));
    }
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (&d, &size) in dims.iter().zip(&sizes) {
        let (own, size) = (x.shape()[d] as i64, super::call::moved(size)?);
        ensure!(size >= 0, broken(format!("invalid dimension size {size}")));
        // An odd difference leaves one element more after the center when padding, and removes one more there.
        low[d] = if size >= own { (size - own) / 2 } else { -((own - size) / 2) };
        high[d] = size - own - low[d];
    }
    output(x.pad(&x.scalar_like(0.0), &low, &high, &vec![0; x.rank()]))
}

/// Returns an attribute with one positive size per dimension.
fn per_dim(c: &NodeCall, name: &str, n: usize) -> Result<Vec<usize>> {
    let list = c.sizes(name)?.unwrap_or(vec![1; n]);
    match list.len() == n && list.iter().all(|v| (1..=1 << 24).contains(v)) {
        true => Ok(list),
        false => Err(broken(format!("attribute {name} must have {n} sizes, got {list:?}"))),
    }
}

/// Returns the sizes in a constant operand.
fn sizes(c: &mut NodeCall, i: usize) -> Result<Vec<usize>> {
    let size = |v: i64| usize::try_from(v).ok().filter(|v| (1..=1 << 24).contains(v));
    let list = c.numbers(i)?;
    let sizes = list.iter().map(|&v| size(v)).collect::<Option<Vec<_>>>();
    sizes.ok_or_else(|| broken(format!("operand {i} must be sizes, got {list:?}")))
}

/// Imports Col2Im: adds the columns `[N, C · block, L]` to the blocks of an image.
fn column_to_image(c: &mut NodeCall) -> RuleResult {
    let (x, image, block) = (c.tensor(0)?, sizes(c, 1)?, sizes(c, 2)?);
    let n = image.len();
    let (dilations, strides) = (per_dim(c, "dilations", n)?, per_dim(c, "strides", n)?);
    let pads = c.sizes("pads")?.unwrap_or(vec![0; 2 * n]);
    if block.len() != n || pads.len() != 2 * n || x.rank() != 3 {
        return Err(broken(format!("image {image:?} and block {block:?} do not match {}", x.ty())));
    }
    let offsets: usize = checked(block.clone())?.iter().product();
    let padded: Vec<usize> =
        (0..n).map(|d| image[d].saturating_add(pads[d]).saturating_add(pads[d + n])).collect();
    let reach: Vec<usize> = (0..n).map(|d| dilations[d].saturating_mul(block[d] - 1) + 1).collect();
    let fits = (0..n).all(|d| padded[d] >= reach[d]);
    let counts: Vec<usize> = (0..n).map(|d| padded[d].saturating_sub(reach[d]) / strides[d] + 1).collect();
    let (batch, channels) = (x.shape()[0], x.shape()[1] / offsets);
    let expected = [batch, channels.saturating_mul(offsets), checked(counts.clone())?.iter().product()];
    checked([&[batch, channels][..], &padded].concat())?;
    if !fits || x.shape().dims() != expected {
        return Err(broken(format!("{} columns do not cover image {image:?} with block {block:?}", x.ty())));
    }
    c.spend(offsets * 64)?;
    let apart = x.reshape([&[batch, channels, offsets][..], &counts].concat());
    let whole = [&[batch, channels][..], &counts].concat();
    let mut sum: Option<Tensor> = None;
    for k in 0..offsets {
        let part = apart.slice_dim(2, k, k + 1).reshape(whole.clone());
        let (mut low, mut high, mut between) = (vec![0; n + 2], vec![0; n + 2], vec![0; n + 2]);
        let mut rest = k;
        for d in (0..n).rev() {
            let at = (rest % block[d] * dilations[d]) as i64;
            rest /= block[d];
            let covered = ((counts[d] - 1) * strides[d] + 1) as i64;
            (low[d + 2], between[d + 2]) = (at - pads[d] as i64, strides[d] - 1);
            high[d + 2] = (padded[d] - pads[d + n]) as i64 - at - covered;
        }
        let placed = part.pad(&x.scalar_like(0.0), &low, &high, &between);
        sum = Some(sum.map_or(placed.clone(), |all| all + &placed));
    }
    output(sum.ok_or_else(|| broken("the block is empty"))?)
}

/// Imports Compress with a constant condition: the elements of an axis, or of the flattened array, where it holds.
fn compress(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let (x, dim) = match c.attribute("axis") {
        Some(_) => (x.clone(), axis(c.int("axis", 0)?, x.rank())?),
        None => (x.reshape([x.shape().elements()]), 0),
    };
    let holds = c.known(1)?;
    let count = holds.ty().elements().min(x.shape()[dim]);
    c.spend(count)?;
    let places: Vec<i64> = (0..count).filter(|&i| holds.get(i).as_bool()).map(|i| i as i64).collect();
    output(taken(&x, dim, &places)?)
}

/// Imports NonZero of a constant: the indices of its nonzero elements, one column each.
fn non_zero(c: &mut NodeCall) -> RuleResult {
    let x = c.known(0)?;
    let n = x.ty().elements();
    c.spend(n.saturating_mul(x.shape().rank().max(1)))?;
    let places: Vec<usize> = (0..n).filter(|&i| x.get(i).as_f64() != 0.0).collect();
    let strides = x.shape().strides();
    let mut table = Vec::new();
    for (d, &size) in x.shape().iter().enumerate() {
        table.extend(places.iter().map(|&i| (i / strides[d].max(1) % size.max(1)) as i64));
    }
    output(c.g.constant(Literal::from_slice([x.shape().rank(), places.len()], &table)?))
}

/// Imports ReverseSequence: reverses the first elements of each sample, as many as its length.
fn reverse_sequence(c: &mut NodeCall) -> RuleResult {
    let (x, lengths) = (c.tensor(0)?, c.tensor(1)?.convert(DType::I64));
    let (time, batch) = (axis(c.int("time_axis", 0)?, x.rank())?, axis(c.int("batch_axis", 1)?, x.rank())?);
    axes(&[time as i64, batch as i64], x.rank())?;
    if lengths.shape().dims() != [x.shape()[batch]] {
        return Err(unsupported(format!("lengths {} do not match {}", lengths.ty(), x.ty())));
    }
    let wide = x.ty().with_dtype(DType::I64);
    let lengths = lengths.broadcast_in_dim(&wide.shape, &[batch]);
    let at = c.g.iota(wide, time);
    let at = at.less(&lengths).select(&(&lengths - 1.0 - &at), &at);
    output(element_gather(&x, time, &at))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, ints, model_of, run_constants, run_node};
    use systole_base::Literal;

    /// Runs a node whose first operand is an input and whose others are constants.
    fn run(opset: i64, node: OnnxNode, x: &Literal, others: &[&Literal]) -> Literal {
        let names = node.inputs.clone();
        let mut m = model_of(opset, node, &[x], false);
        let constants = names[1..].iter().cloned().zip(others.iter().map(|&o| o.clone()));
        m.graph.constants.extend(constants);
        let given = vec![(names[0].clone(), x.shape().to_vec())];
        let program =
            m.import(&crate::DimSizes { given, ..Default::default() }).unwrap_or_else(|e| panic!("{e}"));
        systole_ir::interp::run(&program.graph, &[x]).unwrap().remove(0)
    }

    #[test]
    fn images_are_cropped_and_padded_around_the_center() {
        let x = floats([5], [1.0, 2.0, 3.0, 4.0, 5.0]);
        let node = OnnxNode::new("CenterCropPad", ["x", "s"], "y");
        assert_eq!(run(18, node.clone(), &x, &[&ints([1], [2])]).to_f32s(), [2.0, 3.0]);
        assert_eq!(run(18, node, &x, &[&ints([1], [8])]).to_f32s(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0]);
    }

    #[test]
    fn columns_are_added_to_an_image() {
        // Blocks of 2 with stride 1 over 3 pixels: [1, 2] at 0 and [3, 4] at 1.
        let x = floats([1, 2, 2], [1.0, 3.0, 2.0, 4.0]);
        let node = OnnxNode::new("Col2Im", ["x", "i", "b"], "y");
        let y = run(18, node.clone(), &x, &[&ints([1], [3]), &ints([1], [2])]);
        assert_eq!(y.to_f32s(), [1.0, 5.0, 4.0]);
        let node = node.ints("pads", [1, 0]).ints("strides", [2]);
        // Over one padded and three pixels: [1, 2] at −1 and [3, 4] at 1.
        let y = run(18, node, &x, &[&ints([1], [3]), &ints([1], [2])]);
        assert_eq!(y.to_f32s(), [2.0, 3.0, 4.0]);
    }

    #[test]
    fn elements_are_selected_by_a_constant_condition() {
        let x = floats([3, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let holds = Literal::from_bools([3], &[false, true, true]).unwrap();
        let node = OnnxNode::new("Compress", ["x", "c"], "y");
        assert_eq!(run(11, node.clone(), &x, &[&holds]).to_f32s(), [2.0, 3.0]);
        let node = node.with("axis", OnnxAttribute::Int(0));
        assert_eq!(run(11, node, &x, &[&holds]).to_f32s(), [3.0, 4.0, 5.0, 6.0]);
        let y =
            run_constants(13, OnnxNode::new("NonZero", ["x"], "y"), &[&floats([2, 2], [1.0, 0.0, 1.0, 1.0])]);
        assert_eq!(y[0].to_f64s(), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn sequences_are_reversed_by_length() {
        let x = floats([2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let node = OnnxNode::new("ReverseSequence", ["x", "n"], "y")
            .with("time_axis", OnnxAttribute::Int(1))
            .with("batch_axis", OnnxAttribute::Int(0));
        let y = run_node(10, node, &[&x, &ints([2], [2, 3])]);
        assert_eq!(y[0].to_f32s(), [2.0, 1.0, 3.0, 6.0, 5.0, 4.0]);
    }
}
