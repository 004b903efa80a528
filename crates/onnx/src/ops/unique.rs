//! Imports ONNX Unique: the different elements or slices of a known array.

use super::call::{NodeCall, RuleResult, axis};
use super::op_row::operators;
use super::values::RuleOutput;
use std::cmp::Ordering;
use systole_base::{Literal, LiteralBuilder, Scalar, TensorType};

operators! {
    "Unique" 11..11: unique;
}

/// Orders elements of one type; NaN is the largest.
fn order(a: &Scalar, b: &Scalar) -> Ordering {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => a.cmp(b),
        (Scalar::Uint(a), Scalar::Uint(b)) => a.cmp(b),
        (Scalar::Bool(a), Scalar::Bool(b)) => a.cmp(b),
        _ => {
            let (a, b) = (a.as_f64(), b.as_f64());
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
    }
}

/// Returns the elements of each slice along a dimension.
fn slices(x: &Literal, dim: usize) -> Vec<Vec<Scalar>> {
    let stride = x.shape().strides()[dim].max(1);
    let mut all = vec![Vec::new(); x.shape()[dim]];
    for i in 0..x.ty().elements() {
        all[i / stride % x.shape()[dim].max(1)].push(x.get(i));
    }
    all
}

/// `x: T[…] → y: T[K], index: i64[K], inverse: i64[N], counts: i64[K]`, of slices along `axis` if there is one.
fn unique(c: &mut NodeCall) -> RuleResult {
    let (x, is_sorted) = (c.known(0)?, c.is("sorted", true)?);
    c.spend(x.ty().elements())?;
    let (x, dim) = match c.attribute("axis") {
        Some(_) => {
            let dim = axis(c.int("axis", 0)?, x.shape().rank())?;
            (x, dim)
        }
        None => (x.reshape([x.ty().elements()])?, 0),
    };
    let all = slices(&x, dim);
    let compare = |a: usize, b: usize| {
        let pairs = all[a].iter().zip(&all[b]);
        pairs.map(|(a, b)| order(a, b)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut by_value: Vec<usize> = (0..all.len()).collect();
    by_value.sort_by(|&a, &b| compare(a, b));
    // Positions of equal slices, the first one in front.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in by_value {
        match groups.last_mut().filter(|group| compare(group[0], i).is_eq()) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    if !is_sorted {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0i64; all.len()];
    for (k, group) in groups.iter().enumerate() {
        group.iter().for_each(|&i| inverse[i] = k as i64);
    }
    let firsts: Vec<usize> = groups.iter().map(|group| group[0]).collect();
    let numbers = |all: Vec<i64>| Literal::from_slice([all.len()], &all);
    let made = [
        taken(&x, dim, &firsts),
        numbers(firsts.iter().map(|&i| i as i64).collect())?,
        numbers(inverse)?,
        numbers(groups.iter().map(|group| group.len() as i64).collect())?,
    ];
    Ok(made.into_iter().map(|value| RuleOutput::Tensor(c.g.constant(value))).collect())
}

/// Returns the slices at these positions along a dimension.
fn taken(x: &Literal, dim: usize, places: &[usize]) -> Literal {
    let (mut dims, stride, size) = (x.shape().to_vec(), x.shape().strides()[dim].max(1), x.shape()[dim]);
    dims[dim] = places.len();
    let ty = TensorType::new(x.dtype(), dims);
    let mut y = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let (outer, at, inner) =
            (i / stride / places.len().max(1), i / stride % places.len().max(1), i % stride);
        y.set(i, x.get((outer * size + places[at]) * stride + inner));
    }
    y.finish()
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{array, floats, run_constants};
    use systole_base::Literal;

    fn unique(x: &Literal, axis: Option<i64>, is_sorted: bool) -> Vec<Vec<f64>> {
        let mut node =
            OnnxNode::new("Unique", ["x"], "y").with("sorted", OnnxAttribute::Int(is_sorted.into()));
        node.outputs.extend(["index", "inverse", "counts"].map(String::from));
        if let Some(axis) = axis {
            node = node.with("axis", OnnxAttribute::Int(axis));
        }
        run_constants(17, node, &[x]).iter().map(Literal::to_f64s).collect()
    }

    #[test]
    fn elements_and_slices_are_listed_once() {
        // The examples of the operator's specification.
        let x = floats([6], [2.0, 1.0, 1.0, 3.0, 4.0, 3.0]);
        let sorted = unique(&x, None, true);
        assert_eq!(sorted[0], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(sorted[1], [1.0, 0.0, 3.0, 4.0]);
        assert_eq!(sorted[2], [1.0, 0.0, 0.0, 2.0, 3.0, 2.0]);
        assert_eq!(sorted[3], [2.0, 1.0, 2.0, 1.0]);
        let first = unique(&x, None, false);
        assert_eq!(first[0], [2.0, 1.0, 3.0, 4.0]);
        assert_eq!(first[1], [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(first[2], [0.0, 1.0, 1.0, 2.0, 3.0, 2.0]);
        let rows = array([3, 3], &[1i32, 0, 0, 1, 0, 0, 2, 3, 4]);
        let by_row = unique(&rows, Some(0), true);
        assert_eq!(
            (&by_row[0][..], &by_row[2][..]),
            (&[1.0, 0.0, 0.0, 2.0, 3.0, 4.0][..], &[0.0, 0.0, 1.0][..])
        );
        let by_column = unique(&rows, Some(1), true);
        assert_eq!(by_column[0], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 3.0, 4.0, 2.0]);
        assert_eq!(by_column[1], [1.0, 2.0, 0.0]);
    }
}
