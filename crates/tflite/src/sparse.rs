//! Expands sparse tensors of `.tflite` files, block by block, to dense ones.

use crate::flatbuffer_read::FlatbufferTable;
use crate::model::broken;
use systole_base::{Literal, Result, TensorType, ensure};

/// Maximum number of levels: dimensions and block dimensions.
const MOST_LEVELS: usize = 16;

/// A level of the traversal: a dimension with all indices, or with those that a list holds.
enum SparseLevel {
    Dense(usize),
    /// For each element of the level before: where its indices start, and the indices.
    Listed(Vec<usize>, Vec<usize>),
}

/// A sparse tensor whose elements are visited in the order in which the file stores them.
struct SparseTensor<'a> {
    dims: &'a [usize],
    levels: Vec<SparseLevel>,
    /// Dimension of each level; blocks come behind the dimensions.
    order: Vec<usize>,
    /// Dimension and size of each block.
    blocks: Vec<(usize, usize)>,
    size: usize,
    stored: std::slice::ChunksExact<'a, u8>,
    made: Vec<u8>,
}

fn sizes(found: &[i32]) -> Result<Vec<usize>> {
    let one =
        |&v: &i32| usize::try_from(v).map_err(|_| broken(format!("the sparse tensor has the index {v}")));
    found.iter().map(one).collect()
}

/// Reads a list of indices: the union's number is in field `id`, its table behind it.
fn listed(table: &FlatbufferTable, id: u16) -> Result<Vec<usize>> {
    let Some(list) = table.table(id + 1)? else { return Ok(Vec::new()) };
    match table.byte(id)?.unwrap_or(0) {
        1 => sizes(&list.ints(0)?),
        2 => Ok(list.shorts(0)?.into_iter().map(usize::from).collect()),
        3 => Ok(list.bytes(0)?.unwrap_or(&[]).iter().map(|&b| usize::from(b)).collect()),
        other => Err(broken(format!("the sparse tensor has indices of type {other}"))),
    }
}

fn level(table: &FlatbufferTable) -> Result<SparseLevel> {
    match table.byte(0)?.unwrap_or(0) {
        0 => Ok(SparseLevel::Dense(sizes(&[table.int(1)?.unwrap_or(0)])?[0])),
        1 => {
            let starts = listed(table, 2)?;
            ensure!(starts.is_sorted(), broken("the lists of the sparse tensor are not in order".into()));
            Ok(SparseLevel::Listed(starts, listed(table, 4)?))
        }
        other => Err(broken(format!("the sparse tensor has the unknown format {other}"))),
    }
}

/// Expands the stored elements of a sparse tensor; the others are 0.
///
/// # Errors
/// If the description does not match the type.
pub(crate) fn dense(ty: &TensorType, stored: &[u8], sparsity: &FlatbufferTable) -> Result<Literal> {
    let dims = ty.shape.dims();
    let order = sizes(&sparsity.ints(0)?)?;
    let map = sizes(&sparsity.ints(1)?)?;
    let levels = sparsity.tables(2)?.iter().map(level).collect::<Result<Vec<_>>>()?;
    let count = levels.len();
    let mut seen = vec![false; count];
    order.iter().for_each(|&d| seen.iter_mut().skip(d).take(1).for_each(|seen| *seen = true));
    // With at most as many indices as elements, and lists in order, the number of visits is limited.
    let whole = levels.iter().fold(1usize, |n, level| match level {
        SparseLevel::Dense(size) => n.saturating_mul(*size),
        SparseLevel::Listed(..) => n,
    });
    let fits = count <= MOST_LEVELS
        && count == dims.len() + map.len()
        && order.len() == count
        && !seen.contains(&false)
        && order[..dims.len()].iter().all(|&d| d < dims.len())
        && (1..=ty.elements()).contains(&whole);
    ensure!(fits, broken(format!("a sparse tensor of {count} levels does not match {ty}")));
    let mut blocks = Vec::new();
    for (i, &d) in map.iter().enumerate() {
        let at = order.iter().position(|&o| o == dims.len() + i);
        let Some(SparseLevel::Dense(size)) = at.and_then(|at| levels.get(at)) else {
            return Err(broken("a block of the sparse tensor is not dense".into()));
        };
        ensure!(d < dims.len(), broken(format!("a block of the sparse tensor has dimension {d}")));
        blocks.push((d, *size));
    }
    let size = ty.dtype.size();
    let mut tensor = SparseTensor {
        dims,
        levels,
        order,
        blocks,
        size,
        stored: stored.chunks_exact(size),
        made: vec![0; ty.bytes()],
    };
    tensor.visit(&mut Vec::new(), 0)?;
    Literal::from_bytes(ty.clone(), &tensor.made)
}

impl SparseTensor<'_> {
    /// Visits the elements below the indices of the levels before; `before` is the position in the last level.
    fn visit(&mut self, indices: &mut Vec<usize>, before: usize) -> Result<()> {
        let below: Vec<(usize, usize)> = match self.levels.get(indices.len()) {
            None => return self.store(indices),
            Some(SparseLevel::Dense(size)) => {
                (0..*size).map(|k| (k, before.saturating_mul(*size).saturating_add(k))).collect()
            }
            Some(SparseLevel::Listed(starts, of)) => {
                let [Some(&start), Some(&end)] = [before, before + 1].map(|k| starts.get(k)) else {
                    return Err(broken("a list of the sparse tensor is too short".into()));
                };
                let own = of
                    .get(start..end)
                    .ok_or_else(|| broken("a list of the sparse tensor is too short".into()))?;
                own.iter().zip(start..).map(|(&k, at)| (k, at)).collect()
            }
        };
        for (k, at) in below {
            indices.push(k);
            self.visit(indices, at)?;
            indices.pop();
        }
        Ok(())
    }

    fn store(&mut self, indices: &[usize]) -> Result<()> {
        let rank = self.dims.len();
        let mut place = vec![0usize; rank];
        for (&index, &d) in indices.iter().zip(&self.order).take(rank) {
            place[d] = index;
        }
        for (&index, &o) in indices.iter().zip(&self.order).skip(rank) {
            let (d, size) = self.blocks[o - rank];
            place[d] = place[d].saturating_mul(size).saturating_add(index);
        }
        let is_inside = place.iter().zip(self.dims).all(|(k, d)| k < d);
        let element = self.stored.next().filter(|_| is_inside);
        let element =
            element.ok_or_else(|| broken("the sparse tensor has too few elements, or one outside".into()))?;
        let at = place.iter().zip(self.dims).fold(0, |at, (k, d)| at * d + k) * self.size;
        self.made[at..at + self.size].copy_from_slice(element);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flatbuffer_read::FlatbufferBytes;
    use crate::flatbuffer_write::{FlatbufferField, FlatbufferNode, file};
    use systole_base::DType;

    fn node(node: FlatbufferNode) -> FlatbufferField {
        FlatbufferField::Node(node)
    }

    fn ints(values: &[i32]) -> FlatbufferField {
        node(FlatbufferNode::Ints(values.to_vec()))
    }

    /// A level with listed indices: int32 starts, uint8 indices.
    fn listed(starts: &[i32], of: &[u8]) -> FlatbufferNode {
        let list = |values: FlatbufferField| node(FlatbufferNode::Table(vec![(0, values)]));
        FlatbufferNode::Table(vec![
            (0, FlatbufferField::Byte(1)),
            (2, FlatbufferField::Byte(1)),
            (3, list(ints(starts))),
            (4, FlatbufferField::Byte(3)),
            (5, list(node(FlatbufferNode::Bytes(of.into())))),
        ])
    }

    fn all(size: i32) -> FlatbufferNode {
        FlatbufferNode::Table(vec![(1, FlatbufferField::int(size))])
    }

    fn expanded(
        dims: [usize; 2],
        order: &[i32],
        blocks: &[i32],
        levels: Vec<FlatbufferNode>,
    ) -> Result<Vec<i8>> {
        let table = FlatbufferNode::Table(vec![
            (0, ints(order)),
            (1, ints(blocks)),
            (2, node(FlatbufferNode::List(levels))),
        ]);
        let bytes = file(b"TEST", &table);
        let parsed = FlatbufferBytes::new(&bytes);
        let stored: Vec<u8> = (1..9).collect();
        dense(&TensorType::new(DType::I8, dims), &stored, &parsed.root()?)?
            .as_slice::<i8>()
            .map(<[i8]>::to_vec)
    }

    #[test]
    fn listed_rows_and_blocks_are_expanded() {
        let rows = vec![all(2), listed(&[0, 1, 3], &[2, 0, 3])];
        assert_eq!(expanded([2, 4], &[0, 1], &[], rows).unwrap(), [0, 0, 1, 0, 2, 0, 0, 3]);
        // Blocks of 2 × 2: the second of the first row of blocks, the first of the second.
        let blocks = vec![all(2), listed(&[0, 1, 2], &[1, 0]), all(2), all(2)];
        let expected = [0, 0, 1, 2, 0, 0, 3, 4, 5, 6, 0, 0, 7, 8, 0, 0];
        assert_eq!(expanded([4, 4], &[0, 1, 2, 3], &[0, 1], blocks).unwrap(), expected);
    }

    #[test]
    fn descriptions_that_do_not_match_are_errors() {
        let rows = |starts: &[i32], of: &[u8]| vec![all(2), listed(starts, of)];
        for (order, levels) in [
            (&[0, 1][..], rows(&[0, 1, 3], &[2, 0, 9])),
            (&[0, 1], rows(&[0, 3, 1], &[2, 0, 3])),
            (&[0, 1], rows(&[0, 1], &[2, 0, 3])),
            (&[0, 1], rows(&[0, 1, 9], &[2, 0, 3])),
            (&[0, 0], rows(&[0, 1, 3], &[2, 0, 3])),
            (&[0, 1], vec![all(2)]),
            (&[0, 1], vec![all(1 << 30), all(1 << 30)]),
        ] {
            assert!(expanded([2, 4], order, &[], levels).is_err(), "{order:?}");
        }
    }
}
