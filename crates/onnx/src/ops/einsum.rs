//! Imports ONNX Einsum: any number of operands, `...`, repeated letters and implicit results.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::op_row::operators;
use crate::model::broken;
use std::collections::BTreeMap;
use systole_base::{DType, Result};
use systole_ir::Tensor;

operators! {
    "Einsum" 12..28: einsum;
}

/// Letters of the dimensions of operands and result.
struct EinsumSubscripts {
    operands: Vec<Vec<char>>,
    result: Vec<char>,
}

/// A tensor and the letters of its dimensions.
type Lettered = (Tensor, Vec<char>);

/// Replaces `...` by one private letter per dimension, counted from the last.
fn without_ellipsis(part: &str, dims: usize) -> Vec<char> {
    let letters: String = (0..dims as u32).rev().filter_map(|k| char::from_u32(0xE000 + k)).collect();
    part.replacen("...", &letters, 1).chars().collect()
}

impl EinsumSubscripts {
    /// Parses an equation for operands of these ranks; `None` if it is malformed.
    fn parse(equation: &str, ranks: &[usize]) -> Option<EinsumSubscripts> {
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let parts: Vec<&str> = left.split(',').collect();
        let mut operands = Vec::new();
        let mut most = 0;
        for (part, &rank) in parts.iter().zip(ranks) {
            let letters = part.replacen("...", "", 1);
            if !letters.chars().all(|l| l.is_ascii_alphabetic()) {
                return None;
            }
            let dims = rank.checked_sub(letters.len())?;
            if dims > 0 && !part.contains("...") {
                return None;
            }
            most = most.max(dims);
            operands.push(without_ellipsis(part, dims));
        }
        let all = || operands.iter().flatten().copied();
        let result = match right {
            Some(right) => without_ellipsis(right, most),
            None => {
                let mut once: Vec<char> = all().filter(|l| all().filter(|k| k == l).count() == 1).collect();
                once.retain(char::is_ascii);
                once.sort_unstable();
                without_ellipsis("...", most).into_iter().chain(once).collect()
            }
        };
        let is_right = result.iter().all(|l| all().any(|k| k == *l))
            && result.iter().all(|l| result.iter().filter(|k| *k == l).count() == 1);
        (parts.len() == ranks.len() && is_right).then_some(EinsumSubscripts { operands, result })
    }
}

fn einsum(c: &mut NodeCall) -> RuleResult {
    let equation: String = c.word("equation", "")?.chars().filter(|l| !l.is_whitespace()).collect();
    let x = (0..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
    let ranks: Vec<usize> = x.iter().map(Tensor::rank).collect();
    let parsed = EinsumSubscripts::parse(&equation, &ranks).ok_or_else(|| {
        broken(format!("the equation `{equation}` does not match operands of ranks {ranks:?}"))
    })?;
    let mut sizes = BTreeMap::new();
    for (t, letters) in x.iter().zip(&parsed.operands) {
        for (&size, &letter) in t.shape().iter().zip(letters) {
            let most = sizes.entry(letter).or_insert(size);
            *most = if *most == 1 { size } else { *most };
        }
    }
    let mut left: Vec<Lettered> =
        x.iter().zip(parsed.operands).map(|(t, letters)| own_dims(t, &letters, &sizes)).collect();
    let mut y = left.remove(0);
    while !left.is_empty() {
        let next = left.remove(0);
        let later: Vec<char> = left.iter().flat_map(|(_, l)| l).chain(&parsed.result).copied().collect();
        let a = summed(&y, |l| later.contains(&l) || next.1.contains(&l));
        let b = summed(&next, |l| later.contains(&l) || y.1.contains(&l));
        y = contracted(&a, &b, &later);
    }
    let (y, letters) = summed(&y, |l| parsed.result.contains(&l));
    let order: Vec<usize> =
        parsed.result.iter().filter_map(|l| letters.iter().position(|k| k == l)).collect();
    match order.len() == y.rank() {
        true => output(y.transpose(&order)),
        false => Err(unsupported(format!("unsupported equation `{equation}`"))),
    }
}

/// Takes the diagonal of dimensions with the same letter, and drops dimensions of size 1 that others broadcast.
fn own_dims(t: &Tensor, letters: &[char], sizes: &BTreeMap<char, usize>) -> Lettered {
    let (mut t, mut letters) = (t.clone(), letters.to_vec());
    let again =
        |l: &[char]| (0..l.len()).rev().find_map(|d| Some((l[..d].iter().position(|k| *k == l[d])?, d)));
    while let Some((first, d)) = again(&letters) {
        let places = t.ty().with_dtype(DType::I32);
        let g = t.builder().clone();
        let is_diagonal = g.iota(places.clone(), first).equal(&g.iota(places, d));
        t = is_diagonal.select(&t, &t.zeros_like()).sum(&[d]);
        letters.remove(d);
    }
    let keeps = |d: usize, l: &char| t.shape()[d] != 1 || sizes.get(l) == Some(&1);
    let kept: Vec<usize> = letters.iter().enumerate().filter(|(d, l)| keeps(*d, l)).map(|(d, _)| d).collect();
    let dims: Vec<usize> = kept.iter().map(|&d| t.shape()[d]).collect();
    (t.reshape(dims), kept.iter().map(|&d| letters[d]).collect())
}

/// Sums over the dimensions whose letters are not kept.
fn summed((t, letters): &Lettered, keeps: impl Fn(char) -> bool) -> Lettered {
    let gone: Vec<usize> = (0..letters.len()).filter(|&d| !keeps(letters[d])).collect();
    let kept = letters.iter().copied().filter(|&l| keeps(l)).collect();
    (if gone.is_empty() { t.clone() } else { t.sum_in_f32(&gone) }, kept)
}

/// Contracts two operands over the letters that both have and `kept` lacks.
fn contracted((a, la): &Lettered, (b, lb): &Lettered, kept: &[char]) -> Lettered {
    let shared = |keep: bool| la.iter().filter(move |l| lb.contains(l) && kept.contains(l) == keep);
    let places = |of: &[char], keep: bool| -> Vec<usize> {
        shared(keep).filter_map(|l| of.iter().position(|k| k == l)).collect()
    };
    let y = a.dot_general(b, &places(la, true), &places(lb, true), &places(la, false), &places(lb, false));
    let own =
        |of: &[char], other: &[char]| of.iter().copied().filter(|l| !other.contains(l)).collect::<Vec<_>>();
    (y, [shared(true).copied().collect(), own(la, lb), own(lb, la)].concat())
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, node_error, run_node};
    use systole_base::Literal;

    fn run(equation: &str, x: &[&Literal]) -> (Vec<usize>, Vec<f32>) {
        let names = (0..x.len()).map(|i| format!("x{i}"));
        let node = OnnxNode::new("Einsum", names, "y").with("equation", OnnxAttribute::Text(equation.into()));
        let y = run_node(12, node, x).remove(0);
        (y.shape().to_vec(), y.to_f32s())
    }

    #[test]
    fn equations_have_ellipses_diagonals_and_implicit_results() {
        let (a, b) = (floats([2, 2], [1.0, 2.0, 3.0, 4.0]), floats([2], [5.0, 6.0]));
        assert_eq!(run("ij,j->i", &[&a, &b]), (vec![2], vec![17.0, 39.0]));
        assert_eq!(run("ij,j", &[&a, &b]), (vec![2], vec![17.0, 39.0]));
        assert_eq!(run("i,i", &[&b, &b]), (vec![], vec![61.0]));
        assert_eq!(run("ba", &[&a]), (vec![2, 2], vec![1.0, 3.0, 2.0, 4.0]));
        assert_eq!(run("ii", &[&a]), (vec![], vec![5.0]));
        let c = floats([1, 2, 2], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(run("...ii->...i", &[&c]), (vec![1, 2], vec![1.0, 4.0]));
        assert_eq!(run("...ij,...jk->...ik", &[&c, &a]), (vec![1, 2, 2], vec![7.0, 10.0, 15.0, 22.0]));
        assert_eq!(run("ij,jk,k->i", &[&a, &a, &b]), (vec![2], vec![95.0, 207.0]));
        assert_eq!(run("i,j->ji", &[&b, &b]), (vec![2, 2], vec![25.0, 30.0, 30.0, 36.0]));
        let one = floats([1, 2], [10.0, 20.0]);
        assert_eq!(run("...i,...i->...i", &[&a, &one]), (vec![2, 2], vec![10.0, 40.0, 30.0, 80.0]));
        let node = OnnxNode::new("Einsum", ["x"], "y").with("equation", OnnxAttribute::Text("ij->k".into()));
        assert!(node_error(12, node, &[&a]).contains("`ij->k`"));
    }
}
