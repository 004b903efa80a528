//! Imports ONNX sequences of tensors whose lengths and positions are known at import.

use super::call::{NodeCall, RuleResult, axis, output, unsupported};
use super::op_row::operators;
use super::values::RuleOutput;
use crate::model::broken;
use systole_base::{Literal, Result};
use systole_ir::Tensor;

operators! {
    "ConcatFromSequence" 11..11: concat_from_sequence;
    "SequenceAt" 11..11: sequence_at;
    "SequenceConstruct" 11..11: |c| {
        let all = (0..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
        sequence(all)
    };
    "SequenceEmpty" 11..11: |c| {
        c.int("dtype", 1)?;
        sequence(Vec::new())
    };
    "SequenceErase" 11..11: |c| {
        let mut all = c.sequence(0)?;
        let last = all.len() as i64 - 1;
        let at = position(c, 1, last, all.len())?;
        all.remove(at);
        sequence(all)
    };
    "SequenceInsert" 11..11: |c| {
        let (mut all, t) = (c.sequence(0)?, c.tensor(1)?);
        let end = all.len();
        let at = position(c, 2, end as i64, end + 1)?;
        all.insert(at, t);
        sequence(all)
    };
    "SequenceLength" 11..11: |c| {
        let n = c.sequence(0)?.len() as i64;
        output(c.g.constant(Literal::from_slice([], &[n])?))
    };
    "SplitToSequence" 11..24: split_to_sequence;
}

fn sequence(all: Vec<Tensor>) -> RuleResult {
    Ok(vec![RuleOutput::Sequence(all)])
}

/// Returns a constant position below `limit`; negative ones count from the sequence's end.
fn position(c: &mut NodeCall, i: usize, default: i64, limit: usize) -> Result<usize> {
    let n = c.sequence(0)?.len() as i64;
    let at = if c.has(i) { c.number(i)? } else { default };
    let own = if at < 0 { at.saturating_add(n) } else { at };
    let own = usize::try_from(own).ok().filter(|at| *at < limit);
    own.ok_or_else(|| broken(format!("position {at} is out of range for a sequence of {n} tensors")))
}

fn sequence_at(c: &mut NodeCall) -> RuleResult {
    let all = c.sequence(0)?;
    let at = position(c, 1, 0, all.len())?;
    output(all[at].clone())
}

fn concat_from_sequence(c: &mut NodeCall) -> RuleResult {
    let all = c.sequence(0)?;
    let first = all.first().ok_or_else(|| broken("cannot concatenate an empty sequence"))?;
    let is_new = c.is("new_axis", false)?;
    let dim = axis(c.int("axis", 0)?, first.rank() + usize::from(is_new))?;
    let apart = |t: &Tensor| {
        let mut dims = t.shape().to_vec();
        if is_new {
            dims.insert(dim.min(dims.len()), 1);
        }
        t.reshape(dims)
    };
    let all: Vec<Tensor> = all.iter().map(apart).collect();
    output(Tensor::concatenate(&all.iter().collect::<Vec<_>>(), dim))
}

/// Imports SplitToSequence with constant sizes: slices of one index, of equal sizes, or of given sizes.
fn split_to_sequence(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let (size, keeps) = (x.shape()[dim], c.is("keepdims", true)?);
    let sizes = match c.has(1) {
        false => vec![1; size],
        true => {
            let listed = c.known(1)?;
            let each = c.numbers(1)?;
            let sizes: Vec<usize> = each.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect();
            match sizes[..] {
                [n] if listed.shape().rank() == 0 && n > 0 => {
                    (0..size.div_ceil(n)).map(|i| n.min(size - i * n)).collect()
                }
                _ => sizes,
            }
        }
    };
    if sizes.iter().try_fold(0usize, |n, s| n.checked_add(*s)) != Some(size) {
        return Err(unsupported(format!("split sizes {sizes:?} do not match {}", x.ty())));
    }
    c.spend(sizes.len() * 64)?;
    let mut at = 0;
    let mut all = Vec::new();
    for n in sizes {
        let part = x.slice_dim(dim, at, at + n);
        at += n;
        let mut dims = part.shape().to_vec();
        if !keeps && !c.has(1) {
            dims.remove(dim);
        }
        all.push(part.reshape(dims));
    }
    sequence(all)
}

#[cfg(test)]
mod tests {
    use crate::DimSizes;
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, ints, model_of};

    /// Splits six elements by `sizes`, inserts the third part at position 0, erases the last, and joins them.
    #[test]
    fn parts_are_inserted_erased_and_joined() {
        let x = floats([6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let node = |op: &str, inputs: &[&str], y: &str| OnnxNode::new(op, inputs.iter().copied(), y);
        let mut m = model_of(17, node("SplitToSequence", &["x", "two"], "parts"), &[&x], false);
        m.graph.constants.insert("two".into(), ints([], [2]));
        m.graph.constants.insert("zero".into(), ints([], [0]));
        m.graph.constants.insert("last".into(), ints([], [-1]));
        m.graph.nodes.extend([
            node("SequenceAt", &["parts", "last"], "third"),
            node("SequenceInsert", &["parts", "third", "zero"], "more"),
            node("SequenceErase", &["more"], "less"),
            node("ConcatFromSequence", &["less"], "y").with("axis", OnnxAttribute::Int(0)),
            node("SequenceLength", &["less"], "n"),
        ]);
        m.graph.outputs[0].name = "y".into();
        let mut length = m.graph.outputs[0].clone();
        length.name = "n".into();
        m.graph.outputs.push(length);
        let sizes = DimSizes { given: vec![("x".into(), vec![6])], ..DimSizes::default() };
        let y = systole_ir::interp::run(&m.import(&sizes).unwrap().graph, &[&x]).unwrap();
        assert_eq!(y[0].to_f32s(), [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(y[1].to_f64s(), [3.0]);
        m.graph.outputs[0].name = "less".into();
        let e = m.import(&sizes).unwrap_err().to_string();
        assert!(e.contains("`less`"), "{e}");
    }
}
