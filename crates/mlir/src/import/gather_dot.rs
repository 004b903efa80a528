//! Ops of sums of products and of choices by index that the IR writes by dot_general and gather.

use super::attribute::size;
use super::types::{not_there, wrong};
use crate::syntax::Operation;
use systole_base::{DType, Dims, Result};
use systole_ir::Tensor;
use systole_ir::op::{DotGeneral, Gather};

/// The letters of `"ab,bc->ac"`: of each operand and of the result.
fn letters(config: Option<&str>, operands: &[&Tensor]) -> Result<(Vec<Vec<char>>, Vec<char>)> {
    let config = config.ok_or_else(|| wrong("`einsum_config` is missing"))?;
    let parts = config.split_once("->");
    let (from, to) = parts.ok_or_else(|| wrong(format!("`{config}` names no result")))?;
    if config.contains('.') {
        return Err(not_there(format!("`{config}`: dimensions that dots stand for are not supported")));
    }
    let chars = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<Vec<char>>();
    let from: Vec<Vec<char>> = from.split(',').map(chars).collect();
    let fits = from.len() == operands.len() && from.iter().zip(operands).all(|(l, x)| l.len() == x.rank());
    if !fits {
        return Err(wrong(format!("`{config}` does not name the dimensions of the operands")));
    }
    let twice = |all: &[char]| all.iter().enumerate().any(|(i, c)| all[..i].contains(c));
    let to = chars(to);
    if from.iter().any(|l| twice(l)) || twice(&to) {
        return Err(not_there(format!("`{config}`: a letter twice in one array is not supported")));
    }
    if to.iter().any(|c| from.iter().all(|l| !l.contains(c))) {
        return Err(wrong(format!("`{config}`: the result has a letter that no operand has")));
    }
    Ok((from, to))
}

/// The sum over letters that neither `kept` nor others have.
fn summed(x: &Tensor, own: &[char], kept: impl Fn(char) -> bool) -> (Tensor, Vec<char>) {
    let gone: Vec<usize> = (0..own.len()).filter(|&d| !kept(own[d])).collect();
    let left = own.iter().copied().filter(|c| kept(*c)).collect();
    (if gone.is_empty() { x.clone() } else { x.sum(&gone) }, left)
}

fn in_order(x: &Tensor, own: &[char], to: &[char]) -> Result<Tensor> {
    let places: Option<Vec<usize>> = to.iter().map(|c| own.iter().position(|o| o == c)).collect();
    let places = places.filter(|p| p.len() == own.len());
    let places = places.ok_or_else(|| wrong("the letters of the result are not those that are left"))?;
    Ok(if places.is_sorted() { x.clone() } else { x.transpose(&places) })
}

/// `"ab->b"`: sums over what the result has not, then its order.
pub(super) fn unary(config: Option<&str>, x: &Tensor) -> Result<Tensor> {
    let (from, to) = letters(config, &[x])?;
    let (sum, left) = summed(x, &from[0], |c| to.contains(&c));
    in_order(&sum, &left, &to)
}

/// `"ab,bc->ac"`: letters of both and of the result are the batch's, those of both alone are summed over.
pub(super) fn einsum(config: Option<&str>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (from, to) = letters(config, &[a, b])?;
    let (a, own_a) = summed(a, &from[0], |c| to.contains(&c) || from[1].contains(&c));
    let (b, own_b) = summed(b, &from[1], |c| to.contains(&c) || from[0].contains(&c));
    let both: Vec<char> = own_a.iter().copied().filter(|c| own_b.contains(c)).collect();
    let (batch, contracted): (Vec<char>, Vec<char>) = both.iter().partition(|c| to.contains(c));
    let places = |own: &[char], all: &[char]| -> Dims {
        all.iter().filter_map(|c| own.iter().position(|o| o == c)).collect()
    };
    let dot = DotGeneral {
        lhs_batch: places(&own_a, &batch),
        rhs_batch: places(&own_b, &batch),
        lhs_contract: places(&own_a, &contracted),
        rhs_contract: places(&own_b, &contracted),
        element_type: a.dtype(),
    };
    let product = a.builder().emit(dot, &[&a, &b]).remove(0);
    let rest = own_a.iter().chain(&own_b).copied().filter(|c| !both.contains(c));
    let left: Vec<char> = batch.iter().copied().chain(rest).collect();
    in_order(&product, &left, &to)
}

/// Slices of `x` along `dim` at the places that `index` names, as PyTorch's `index_select` with leading `batch_dims`.
pub(super) fn select(op: &Operation, x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let dim = size(op, "dim")?.ok_or_else(|| wrong("`dim` is missing"))?;
    let batch = size(op, "batch_dims")?.unwrap_or(0);
    if dim >= x.rank() || batch > dim || batch > index.rank() {
        return Err(wrong(format!("`dim` {dim} or `batch_dims` {batch} is beyond the rank")));
    }
    let mut slice_sizes: Dims = x.shape().iter().copied().collect();
    slice_sizes[dim] = 1;
    slice_sizes[..batch].iter_mut().for_each(|n| *n = 1);
    // Result: batch, x's dimensions before `dim`, those of the index, x's dimensions after it.
    let (before, of_index) = (dim - batch, index.rank() - batch);
    let after = x.rank() - dim - 1;
    let offset = (batch..dim).chain((0..after).map(|i| batch + before + of_index + i)).collect();
    let gather = Gather {
        offset_dims: offset,
        collapsed_slice_dims: [dim].into_iter().collect(),
        operand_batching_dims: (0..batch).collect(),
        start_indices_batching_dims: (0..batch).collect(),
        start_index_map: [dim].into_iter().collect(),
        index_vector_dim: index.rank(),
        slice_sizes,
        indices_are_sorted: false,
    };
    let index = if index.dtype().is_unsigned_int() { index.convert(DType::I64) } else { index.clone() };
    Ok(x.gather(&index, gather))
}
