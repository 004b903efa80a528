//! Imports ONNX losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

use super::call::{NodeCall, RuleResult, unsupported};
use super::conv_pool::sums_in;
use super::elementwise::several_outputs;
use super::op_row::operators;
use crate::model::broken;
use systole_base::{DType, Result, ensure};
use systole_ir::Tensor;

operators! {
    "NegativeLogLikelihoodLoss" 12..22: negative_log_likelihood;
    "SoftmaxCrossEntropyLoss" 12..13: softmax_cross_entropy;
}

fn negative_log_likelihood(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let loss = class_loss(c, &x.convert(sums_in(x.dtype())))?;
    several_outputs(vec![loss.convert(x.dtype())])
}

/// Imports SoftmaxCrossEntropyLoss, with the log-probabilities as second output.
fn softmax_cross_entropy(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let wide = x.convert(sums_in(x.dtype()));
    ensure!(x.rank() >= 2, broken(format!("scores {} have no class dimension", x.ty())));
    let shifted = &wide - wide.reduce_max(&[1]).broadcast_except(x.shape(), &[1]);
    let sum = shifted.exp().sum(&[1]).broadcast_except(x.shape(), &[1]);
    let log_probabilities = shifted - sum.log();
    let loss = class_loss(c, &log_probabilities)?;
    several_outputs(vec![loss.convert(x.dtype()), log_probabilities.convert(x.dtype())])
}

/// `x: T[N, C, …], classes: I[N, …], weights: T[C] → T[N, …]` or `T[]`: the negative elements at the classes, weighted
/// by class and reduced; elements of class `ignore_index` have weight 0.
fn class_loss(c: &mut NodeCall, x: &Tensor) -> Result<Tensor> {
    let classes = c.tensor(1)?;
    let count = x.shape().get(1).copied().unwrap_or(0);
    let mut expected = x.shape().to_vec();
    expected.truncate(1);
    expected.extend(x.shape().iter().skip(2));
    if x.rank() < 2 || classes.shape().dims() != expected || !classes.dtype().is_int() {
        return Err(broken(format!("classes {} do not match {}", classes.ty(), x.ty())));
    }
    let wide = classes.broadcast_except(x.shape(), &[1]);
    let hot = wide.equal(&c.g.iota(wide.ty().clone(), 1));
    let picked = |t: &Tensor| hot.select(t, &t.zeros_like()).sum(&[1]);
    let mut weights = match c.optional(2)? {
        Some(w) if w.shape().dims() == [count] => {
            picked(&w.convert(x.dtype()).broadcast_in_dim(x.shape(), &[1]))
        }
        Some(w) => return Err(broken(format!("weights {} do not match {count} classes", w.ty()))),
        None => picked(&x.ones_like()),
    };
    if c.attribute("ignore_index").is_some() {
        let ignored = classes.convert(DType::I64);
        let ignored = ignored.equal(&ignored.scalar_like(c.int("ignore_index", 0)? as f64));
        weights = ignored.select(&weights.zeros_like(), &weights);
    }
    let loss = -picked(x) * &weights;
    match c.word("reduction", "mean")?.as_str() {
        "none" => Ok(loss),
        "sum" => Ok(loss.sum_all()),
        "mean" => Ok(loss.sum_all() / weights.sum_all()),
        other => Err(unsupported(format!("unsupported reduction {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, ints, run_node};

    #[test]
    fn losses_are_weighted_by_class_and_skip_ignored_ones() {
        let x = floats([3, 2], [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
        let (classes, weights) = (ints([3], [1, 0, -7]), floats([2], [1.0, 10.0]));
        let run = |reduction: &str| {
            let node = OnnxNode::new("NegativeLogLikelihoodLoss", ["x", "t", "w"], "y");
            let node = node.with("reduction", OnnxAttribute::Text(reduction.into()));
            run_node(22, node.with("ignore_index", OnnxAttribute::Int(-7)), &[&x, &classes, &weights])
                .remove(0)
        };
        assert_close(&run("none"), &[20.0, 3.0, 0.0]);
        assert_close(&run("sum"), &[23.0]);
        assert_close(&run("mean"), &[23.0 / 11.0]);
    }

    #[test]
    fn cross_entropy_returns_its_log_probabilities() {
        let x = floats([1, 2, 2], [0.0, 1.0, 0.0, 0.0]);
        let mut node = OnnxNode::new("SoftmaxCrossEntropyLoss", ["x", "t"], "y");
        node.outputs.push("p".into());
        let y = run_node(13, node, &[&x, &ints([1, 2], [0, 1])]);
        let (half, e) = (0.5f32.ln(), 1f32.exp());
        let expected = [half, (e / (1.0 + e)).ln(), half, (1.0 / (1.0 + e)).ln()];
        assert_close(&y[1], &expected);
        assert_close(&y[0], &[-(expected[0] + expected[3]) / 2.0]);
    }
}
