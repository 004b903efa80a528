//! Imports einsum, unary_einsum and torch_index_select with dot_general and gather.

use super::attribute::size;
use super::types::{not_there, wrong};
use crate::syntax::Operation;
use systole_base::{DType, Dims, Result, ensure};
use systole_ir::Tensor;
use systole_ir::op::{DotGeneral, Gather};

/// Parses `"ab,bc->ac"`: the letters of each operand and of the result.
fn letters(config: Option<&str>, operands: &[&Tensor]) -> Result<(Vec<Vec<char>>, Vec<char>)> {
    let config = config.ok_or_else(|| wrong("missing attribute `einsum_config`"))?;
    let parts = config.split_once("->");
    let (from, to) = parts.ok_or_else(|| wrong(format!("einsum `{config}` has no result")))?;
    ensure!(!config.contains('.'), not_there(format!("einsum `{config}`: an ellipsis is not supported")));
    let chars = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<Vec<char>>();
    let from: Vec<Vec<char>> = from.split(',').map(chars).collect();
    let fits = from.len() == operands.len() && from.iter().zip(operands).all(|(l, x)| l.len() == x.rank());
    ensure!(fits, wrong(format!("einsum `{config}` does not match the operands' dimensions")));
    let twice = |all: &[char]| all.iter().enumerate().any(|(i, c)| all[..i].contains(c));
    let to = chars(to);
    if from.iter().any(|l| twice(l)) || twice(&to) {
        return Err(not_there(format!("einsum `{config}`: a repeated letter in one array is not supported")));
    }
    if to.iter().any(|c| from.iter().all(|l| !l.contains(c))) {
        return Err(wrong(format!("einsum `{config}`: the result has a letter that is in no operand")));
    }
    Ok((from, to))
}

/// Sums over letters that are neither in `kept` nor in other arrays.
fn summed(x: &Tensor, own: &[char], kept: impl Fn(char) -> bool) -> (Tensor, Vec<char>) {
    let gone: Vec<usize> = (0..own.len()).filter(|&d| !kept(own[d])).collect();
    let left = own.iter().copied().filter(|c| kept(*c)).collect();
    (if gone.is_empty() { x.clone() } else { x.sum(&gone) }, left)
}

fn in_order(x: &Tensor, own: &[char], to: &[char]) -> Result<Tensor> {
    let places: Option<Vec<usize>> = to.iter().map(|c| own.iter().position(|o| o == c)).collect();
    let places = places.filter(|p| p.len() == own.len());
    let places = places.ok_or_else(|| wrong("the letters of the result do not match the remaining ones"))?;
    Ok(if places.is_sorted() { x.clone() } else { x.transpose(&places) })
}

/// Imports unary einsum `"ab->b"`: sums over letters that are not in the result, then permutes.
pub(super) fn unary(config: Option<&str>, x: &Tensor) -> Result<Tensor> {
    let (from, to) = letters(config, &[x])?;
    let (sum, left) = summed(x, &from[0], |c| to.contains(&c));
    in_order(&sum, &left, &to)
}

/// Imports einsum `"ab,bc->ac"`: letters in both operands and the result are batch dimensions, letters in both operands
/// only are contracted.
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

/// Gathers slices of `x` along `dim` at the indices in `index`, like PyTorch's `index_select` with leading
/// `batch_dims`.
pub(super) fn select(op: &Operation, x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let dim = size(op, "dim")?.ok_or_else(|| wrong("missing attribute `dim`"))?;
    let batch = size(op, "batch_dims")?.unwrap_or(0);
    if dim >= x.rank() || batch > dim || batch > index.rank() {
        return Err(wrong(format!("`dim` {dim} or `batch_dims` {batch} is out of range for the rank")));
    }
    let mut slice_sizes: Dims = x.shape().iter().copied().collect();
    slice_sizes[dim] = 1;
    slice_sizes[..batch].iter_mut().for_each(|n| *n = 1);
    // Result dimensions: batch, x's dimensions before `dim`, those of the index, x's dimensions after it.
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
