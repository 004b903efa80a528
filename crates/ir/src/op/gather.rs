//! gather: reads slices of an operand at an array of indices (embedding lookup). Also index helpers shared with
//! scatter.

use super::attr::{AttrField, ints};
use super::window::checked_type;
use super::*;

impl Gather {
    /// `x: T[N, …], indices: I[…] → T[indices…, …]`: gathers whole rows by index.
    pub fn rows(x: &TensorType, indices_rank: usize) -> Gather {
        let mut slice_sizes: Dims = x.shape.dims().into();
        if let Some(first) = slice_sizes.first_mut() {
            *first = 1;
        }
        Gather {
            offset_dims: (indices_rank..indices_rank + x.rank().saturating_sub(1)).collect(),
            collapsed_slice_dims: smallvec![0],
            operand_batching_dims: smallvec![],
            start_indices_batching_dims: smallvec![],
            start_index_map: smallvec![0],
            index_vector_dim: indices_rank,
            slice_sizes,
            indices_are_sorted: false,
        }
    }

    fn placement(&self) -> GatherDims<'_> {
        GatherDims {
            window_dims: &self.offset_dims,
            dropped: &self.collapsed_slice_dims,
            operand_batching: &self.operand_batching_dims,
            indices_batching: &self.start_indices_batching_dims,
            index_map: &self.start_index_map,
            index_vector_dim: self.index_vector_dim,
        }
    }

    fn check_slices(&self, x: &TensorType) -> Result<(), SpecConstraint> {
        let (n, sizes) = (x.rank(), &self.slice_sizes);
        let below = |v: &[usize]| v.iter().all(|&d| d < n);
        let thin = |v: &[usize]| v.iter().all(|&d| sizes[d] <= 1);
        require!(sizes.len() == n, "C20", "got {} slice_sizes for {x}", sizes.len());
        let inside = sizes.iter().zip(x.shape.iter()).all(|(s, n)| s <= n);
        require!(inside, "C21", "slice_sizes {:?} exceed {x}", &sizes[..]);
        require!(below(&self.collapsed_slice_dims), "C8", "collapsed_slice_dims must be below the rank {n}");
        require!(
            below(&self.operand_batching_dims),
            "C11",
            "operand_batching_dims must be below the rank {n}"
        );
        let dropped = [&self.collapsed_slice_dims[..], &self.operand_batching_dims].concat();
        require!(
            unique(&dropped),
            "C6",
            "a dimension occurs twice in collapsed_slice_dims and operand_batching_dims"
        );
        require!(sorted(&self.collapsed_slice_dims), "C7", "collapsed_slice_dims must be sorted");
        require!(
            thin(&self.collapsed_slice_dims),
            "C9",
            "slice sizes of collapsed dimensions must be at most 1"
        );
        require!(sorted(&self.operand_batching_dims), "C10", "operand_batching_dims must be sorted");
        require!(
            thin(&self.operand_batching_dims),
            "C12",
            "slice sizes of batching dimensions must be at most 1"
        );
        let kept = self.offset_dims.len() + dropped.len();
        require!(
            n == kept,
            "C1",
            "got {kept} offset, collapsed and batching dimensions in total, but {x} has {n} dimensions"
        );
        Ok(())
    }

    fn check_indices(&self, x: &TensorType, indices: &TensorType) -> Result<(), SpecConstraint> {
        let (n, rank, ivd) = (x.rank(), indices.rank(), self.index_vector_dim);
        let batching = &self.start_indices_batching_dims;
        require!(indices.dtype.is_int(), "-", "the indices have type {indices}, expected integers");
        require!(ivd <= rank, "C2", "index_vector_dim {ivd} exceeds the rank of {indices}");
        let length = if ivd < rank { indices.shape[ivd] } else { 1 };
        let named = self.start_index_map.len();
        require!(
            named == length,
            "C3",
            "start_index_map has {named} entries, but index vectors have length {length}"
        );
        require!(unique(batching), "C13", "start_indices_batching_dims must be unique");
        require!(
            batching.iter().all(|&d| d < rank),
            "C14",
            "start_indices_batching_dims must be below the rank of {indices}"
        );
        require!(!batching.contains(&ivd), "C15", "index_vector_dim {ivd} must not be a batching dimension");
        let paired = batching.len() == self.operand_batching_dims.len();
        require!(paired, "C16", "operand and indices must have the same number of batching dimensions");
        for (&o, &i) in self.operand_batching_dims.iter().zip(batching) {
            let same = x.shape[o] == indices.shape[i];
            require!(same, "C17", "batch sizes differ: dimension {o} of {x}, dimension {i} of {indices}");
        }
        let moved = [&self.start_index_map[..], &self.operand_batching_dims].concat();
        require!(
            unique(&moved),
            "C18",
            "a dimension occurs twice in start_index_map and operand_batching_dims"
        );
        require!(
            self.start_index_map.iter().all(|&d| d < n),
            "C19",
            "start_index_map must be below the rank {n}"
        );
        Ok(())
    }
}

/// Whether no dimension occurs twice.
pub(crate) fn unique(dims: &[usize]) -> bool {
    dims.iter().enumerate().all(|(i, d)| !dims[..i].contains(d))
}

/// Whether dimensions are in increasing order.
pub(crate) fn sorted(dims: &[usize]) -> bool {
    dims.windows(2).all(|w| w[0] <= w[1])
}

/// Correspondence between the dimensions of operand, indices and blocks (gather's result, scatter's updates).
pub(crate) struct GatherDims<'a> {
    /// Dimensions of the blocks that index within a block.
    pub(crate) window_dims: &'a [usize],
    /// Operand dimensions that are dropped from blocks.
    pub(crate) dropped: &'a [usize],
    /// Batching dimensions of the operand.
    pub(crate) operand_batching: &'a [usize],
    /// Corresponding batching dimensions of the indices.
    pub(crate) indices_batching: &'a [usize],
    /// Operand dimension of each component of an index vector.
    pub(crate) index_map: &'a [usize],
    pub(crate) index_vector_dim: usize,
}

impl GatherDims<'_> {
    /// Operand dimensions that are kept in blocks, in the order of `window_dims`.
    pub(crate) fn shown(&self, operand_rank: usize) -> Dims {
        let hidden = |d: &usize| self.dropped.contains(d) || self.operand_batching.contains(d);
        (0..operand_rank).filter(|d| !hidden(d)).collect()
    }

    /// Batch dimensions of blocks of this rank: those that select an index vector.
    pub(crate) fn batch_dims(&self, rank: usize) -> Dims {
        (0..rank).filter(|d| !self.window_dims.contains(d)).collect()
    }

    /// Shape of the blocks, from that of the indices and the sizes within a block.
    pub(crate) fn block_shape(&self, indices: &TensorType, inside: &[usize]) -> Dims {
        let batch = (0..indices.rank()).filter(|&d| d != self.index_vector_dim).map(|d| indices.shape[d]);
        let batch: Dims = batch.collect();
        let (mut b, mut w) = (batch.iter(), inside.iter());
        let size = |d: usize| if self.window_dims.contains(&d) { w.next() } else { b.next() };
        (0..batch.len() + inside.len()).map(size).map(|s| s.copied().unwrap_or(0)).collect()
    }

    /// For element `index` of the blocks: the start of its block in each operand dimension, and its offset from that
    /// start. Starts are unmodified indices: neither clamped nor checked.
    pub(crate) fn locate(&self, rank: usize, indices: &Literal, index: &[usize]) -> (Vec<i64>, Dims) {
        let batch: Dims = self.batch_dims(index.len()).iter().map(|&d| index[d]).collect();
        let (mut start, mut offset) = (vec![0i64; rank], smallvec![0; rank]);
        for (k, &d) in self.index_map.iter().enumerate() {
            let mut at = batch.clone();
            if self.index_vector_dim < indices.shape().rank() {
                at.insert(self.index_vector_dim, k);
            }
            start[d] = as_index(indices.at(&at));
        }
        for (&o, &i) in self.operand_batching.iter().zip(self.indices_batching) {
            start[o] = batch[i - usize::from(i > self.index_vector_dim)] as i64;
        }
        for (&d, &w) in self.shown(rank).iter().zip(self.window_dims) {
            offset[d] = index[w];
        }
        (start, offset)
    }

    /// `indices → J[…]`: clamps component `k` of each vector to `0..=high[k]`.
    pub(crate) fn clamped(&self, indices: &Tensor, high: &[usize]) -> Tensor {
        let indices = signed(indices, high);
        let zero = indices.zeros_like();
        let high = self.bounds(&indices, high);
        indices.maximum(&zero).minimum(&high)
    }

    /// `→ bool[…]` over the index vectors: whether each component `k` is in `0..=high[k]`.
    pub(crate) fn all_inside(&self, indices: &Tensor, high: &[usize]) -> Tensor {
        let indices = signed(indices, high);
        let high = self.bounds(&indices, high);
        let inside = indices.greater_equal(&indices.zeros_like()).and(&indices.less_equal(&high));
        if self.index_vector_dim < indices.rank() { inside.all(&[self.index_vector_dim]) } else { inside }
    }

    /// Upper bound for each component of the index vectors, in the shape of the indices.
    fn bounds(&self, indices: &Tensor, high: &[usize]) -> Tensor {
        let g = indices.builder();
        let ty = TensorType::new(indices.dtype(), [high.len()]);
        let mut b = LiteralBuilder::new(ty);
        high.iter().enumerate().for_each(|(k, &h)| b.set(k, Scalar::Int(h as i64)));
        let vector = g.constant(b.finish());
        if self.index_vector_dim < indices.rank() {
            return vector.broadcast_in_dim(indices.shape(), &[self.index_vector_dim]);
        }
        vector.reshape([]).broadcast_to(indices.shape())
    }
}

/// Converts an index to i64; a value that does not fit becomes out of range.
pub(crate) fn as_index(s: Scalar) -> i64 {
    match s {
        Scalar::Uint(u) => i64::try_from(u).unwrap_or(i64::MAX),
        other => other.as_i64(),
    }
}

/// Converts indices to i32 or i64, wide enough to compare them with the bounds `high`.
fn signed(indices: &Tensor, high: &[usize]) -> Tensor {
    let small = high.iter().all(|&h| h < i32::MAX as usize);
    match indices.dtype() {
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 if small => indices.convert(DType::I32),
        // Larger than any size, and exact in f64 and u64.
        DType::U64 => indices.minimum(&indices.scalar_like((1u64 << 62) as f64)).convert(DType::I64),
        _ => indices.convert(DType::I64),
    }
}

impl OpRule for Gather {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (x, indices) = (args[0], args[1]);
        self.check_slices(x)?;
        self.check_indices(x, indices)?;
        let place = self.placement();
        let inside: Dims = place.shown(x.rank()).iter().map(|&d| self.slice_sizes[d]).collect();
        let dims = place.block_shape(indices, &inside);
        require!(unique(&self.offset_dims) && sorted(&self.offset_dims), "C4", "offset_dims must be sorted");
        let inside_result = self.offset_dims.iter().all(|&d| d < dims.len());
        require!(inside_result, "C5", "offset_dims must be below the result's rank {}", dims.len());
        Ok(smallvec![checked_type("C22", x.dtype, &dims)?])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let (x, indices) = (args[0], args[1]);
        let (place, shape) = (self.placement(), x.shape());
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, index) in outs[0].shape.indices().enumerate() {
            let (start, offset) = place.locate(shape.rank(), indices, &index);
            let at: Dims = (0..shape.rank())
                .map(|d| start[d].clamp(0, (shape[d] - self.slice_sizes[d]) as i64) as usize + offset[d])
                .collect();
            // Only a collapsed slice of size 0 has no element to read.
            if at.iter().zip(shape.iter()).all(|(i, n)| i < n) {
                b.set(i, x.at(&at));
            }
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        let (operand, indices) = (&x[0], &x[1]);
        if operand.ty().elements() == 0 || dy.ty().elements() == 0 {
            return vec![Grad::Zero, Grad::Zero];
        }
        // Scatter drops out-of-range blocks that gather clamps, so clamp first.
        let room = |&d: &usize| operand.shape()[d] - self.slice_sizes[d];
        let high: Vec<usize> = self.start_index_map.iter().map(room).collect();
        let indices = self.placement().clamped(indices, &high);
        let op = Scatter {
            update_window_dims: self.offset_dims.clone(),
            inserted_window_dims: self.collapsed_slice_dims.clone(),
            input_batching_dims: self.operand_batching_dims.clone(),
            scatter_indices_batching_dims: self.start_indices_batching_dims.clone(),
            scatter_dims_to_operand_dims: self.start_index_map.clone(),
            index_vector_dim: self.index_vector_dim,
            // Clamping preserves the order of numbers, but not that of vectors.
            indices_are_sorted: self.indices_are_sorted && high.len() == 1,
            unique_indices: false,
            body: Monoid::Add.body(operand.dtype()),
        };
        vec![Grad::Of(operand.zeros_like().scatter(&indices, dy, op)), Grad::Zero]
    }

    fn attrs(&self) -> AttrList {
        let numbers = vec![
            ("offset_dims", list(&self.offset_dims)),
            ("collapsed_slice_dims", list(&self.collapsed_slice_dims)),
            ("operand_batching_dims", list(&self.operand_batching_dims)),
            ("start_indices_batching_dims", list(&self.start_indices_batching_dims)),
            ("start_index_map", list(&self.start_index_map)),
            ("index_vector_dim", AttrField::Int(self.index_vector_dim as i64)),
        ];
        vec![
            ("dimension_numbers", Attr::Struct("gather", numbers)),
            ("slice_sizes", ints(&self.slice_sizes)),
            ("indices_are_sorted", Attr::Bool(self.indices_are_sorted)),
        ]
    }

    /// Counts only the elements that are read.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        OpCost { flops: 0.0, bytes: 2.0 * outs[0].bytes() as f64 + args[1].bytes() as f64 }
    }
}

impl StructuralOp for Gather {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let list = |field: &str| s.field("dimension_numbers", "gather", field);
        Ok(Gather {
            offset_dims: list("offset_dims")?,
            collapsed_slice_dims: list("collapsed_slice_dims")?,
            operand_batching_dims: list("operand_batching_dims")?,
            start_indices_batching_dims: list("start_indices_batching_dims")?,
            start_index_map: list("start_index_map")?,
            index_vector_dim: s.field_size("dimension_numbers", "gather", "index_vector_dim")?,
            slice_sizes: s.sizes("slice_sizes")?,
            indices_are_sorted: s.flag("indices_are_sorted")?,
        })
    }

    fn samples() -> Vec<OpSample> {
        elementwise_samples::every_dtype(gather_samples())
    }

    /// Reads the table whole and the indices by rows.
    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(1))?;
        if !self.operand_batching_dims.is_empty() {
            return None;
        }
        let op = Gather {
            offset_dims: cut.other_dims(&self.offset_dims)?,
            index_vector_dim: cut.dim(self.index_vector_dim)?,
            ..self.clone()
        };
        RowOp::rows(op, [RowUse::Whole, RowUse::Rows])
    }

    /// Dimensions of the indices. The table is replicated, except for batching dimensions.
    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        let batch = (0..at.out().rank()).filter(|d| !self.offset_dims.contains(d));
        let own = (0..at.ty(1).rank()).filter(|&d| d != self.index_vector_dim);
        let paired = |i: usize| {
            let k = self.start_indices_batching_dims.iter().position(|&d| d == i)?;
            Some(self.operand_batching_dims[k])
        };
        own.zip(batch).map(|(i, d)| ShardingFactor::dim([paired(i), Some(i)], d)).collect()
    }
}

pub(crate) fn list(dims: &[usize]) -> AttrField {
    AttrField::List(dims.iter().map(|&d| d as i64).collect())
}

/// Returns small test programs of gather: each attribute differs from its default at least once; indices inside and
/// outside.
pub fn gather_samples() -> Vec<OpSample> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::Bool] {
        all.extend(cases(dtype));
    }
    for index in [DType::I64, DType::U8, DType::U64] {
        let rows = |x: &TensorType| Gather::rows(x, 1);
        all.push(case("rows", DType::F64, index, &[4, 3], &[5], rows));
    }
    all
}

#[rustfmt::skip]
fn cases(dtype: DType) -> Vec<OpSample> {
    let plain = || Gather {
        offset_dims: smallvec![], collapsed_slice_dims: smallvec![], operand_batching_dims: smallvec![],
        start_indices_batching_dims: smallvec![], start_index_map: smallvec![], index_vector_dim: 0,
        slice_sizes: smallvec![], indices_are_sorted: false,
    };
    let blocks = move || Gather { offset_dims: smallvec![1, 2], start_index_map: smallvec![1, 0], index_vector_dim: 1, slice_sizes: smallvec![2, 3], ..plain() };
    let mixed = move || Gather { offset_dims: smallvec![0, 2], collapsed_slice_dims: smallvec![1], start_index_map: smallvec![2, 1], index_vector_dim: 0, slice_sizes: smallvec![2, 1, 3], ..plain() };
    let batched = move || Gather { offset_dims: smallvec![2], operand_batching_dims: smallvec![1], start_indices_batching_dims: smallvec![0], collapsed_slice_dims: smallvec![0], start_index_map: smallvec![0], index_vector_dim: 2, slice_sizes: smallvec![1, 1, 2], ..plain() };
    let crossed = move || Gather { operand_batching_dims: smallvec![0, 2], start_indices_batching_dims: smallvec![2, 0], collapsed_slice_dims: smallvec![1], start_index_map: smallvec![1], index_vector_dim: 1, slice_sizes: smallvec![1, 1, 1], ..plain() };
    let i = DType::I32;
    vec![
        case("rows", dtype, i, &[4, 3], &[5], |x| Gather::rows(x, 1)),
        case("rows_of_a_grid", dtype, i, &[4, 1, 2], &[2, 3], |x| Gather::rows(x, 2)),
        case("scalar_index", dtype, i, &[4, 3], &[], |x| Gather::rows(x, 0)),
        case("no_indices", dtype, i, &[4, 3], &[0], |x| Gather::rows(x, 1)),
        case("empty_rows", dtype, i, &[4, 0], &[2], |x| Gather::rows(x, 1)),
        case("blocks", dtype, i, &[4, 5], &[3, 2], |_| blocks()),
        case("mixed_dims", dtype, i, &[3, 4, 5], &[2, 3], |_| mixed()),
        case("batched", dtype, i, &[5, 2, 3], &[2, 4, 1], |_| batched()),
        case("crossed_batches", dtype, i, &[2, 4, 3], &[3, 1, 2], |_| crossed()),
        sorted_rows(dtype),
    ]
}

fn case(
    what: &str,
    dtype: DType,
    index: DType,
    x: &[usize],
    indices: &[usize],
    spec: impl Fn(&TensorType) -> Gather,
) -> OpSample {
    let x = TensorType::new(dtype, x);
    let op = spec(&x);
    let low = if index.is_unsigned_int() { 0.0 } else { -2.0 };
    let params = [(x, elements(dtype)), (TensorType::new(index, indices), ArgDomain::Uniform(low, 6.0))];
    sample::sample(format!("{what}_{dtype}_{index}"), &params, 0, dtype == DType::F64, |x| {
        vec![x[0].gather(&x[1], op)]
    })
}

pub(crate) fn elements(dtype: DType) -> ArgDomain {
    if dtype == DType::Bool { ArgDomain::Uniform(0.0, 1.0) } else { sample::WIDE }
}

/// `→ i32[…]`: constant indices, for samples that guarantee properties such as sorted indices.
pub(crate) fn fixed_indices(g: &crate::GraphBuilder, shape: &[usize], values: &[i64]) -> Tensor {
    let mut b = LiteralBuilder::new(TensorType::new(DType::I32, shape));
    values.iter().enumerate().for_each(|(i, &v)| b.set(i, Scalar::Int(v)));
    g.constant(b.finish())
}

fn sorted_rows(dtype: DType) -> OpSample {
    let params = [(TensorType::new(dtype, [4, 3]), elements(dtype))];
    sample::sample(format!("sorted_{dtype}"), &params, 0, dtype == DType::F64, |x| {
        let indices = fixed_indices(x[0].builder(), &[4, 1], &[0, 1, 1, 9]);
        let op = Gather { indices_are_sorted: true, index_vector_dim: 1, ..Gather::rows(x[0].ty(), 1) };
        vec![x[0].gather(&indices, op)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, grad, interp};

    #[test]
    fn samples_and_their_derivatives() {
        sample::check::all(&gather_samples());
    }

    /// Example from the specification; its last index is out of range.
    #[test]
    fn example_of_the_specification() {
        let g = GraphBuilder::new("main");
        let x: Vec<i32> = (1..=48).collect();
        let x = g.constant(Literal::from_slice([2, 3, 4, 2], &x).unwrap());
        let starts = [
            [[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]],
            [[[0, 0], [2, 1], [2, 2]], [[1, 2], [0, 1], [1, 0]]],
        ];
        let starts: Vec<i64> = starts.concat().concat().concat();
        let starts = g.constant(Literal::from_slice([2, 2, 3, 2], &starts).unwrap());
        let op = Gather {
            offset_dims: smallvec![3, 4],
            collapsed_slice_dims: smallvec![1],
            operand_batching_dims: smallvec![0],
            start_indices_batching_dims: smallvec![1],
            start_index_map: smallvec![2, 1],
            index_vector_dim: 3,
            slice_sizes: smallvec![1, 1, 2, 2],
            indices_are_sorted: false,
        };
        let y = x.gather(&starts, op);
        let out = interp::run(&g.finish(&[y]).unwrap(), &[]).unwrap().remove(0);
        let expected = [
            [
                [[1, 2, 3, 4], [3, 4, 5, 6], [13, 14, 15, 16]],
                [[33, 34, 35, 36], [35, 36, 37, 38], [41, 42, 43, 44]],
            ],
            [
                [[1, 2, 3, 4], [13, 14, 15, 16], [21, 22, 23, 24]],
                [[43, 44, 45, 46], [33, 34, 35, 36], [27, 28, 29, 30]],
            ],
        ];
        let expected: Vec<i32> = expected.concat().concat().concat();
        assert_eq!(out, Literal::from_slice([2, 2, 3, 2, 2], &expected).unwrap());
    }

    /// Repeated and out-of-range rows of an embedding: cotangents are summed where the lookup read.
    #[test]
    fn embedding_gradient() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F32, [3, 2]), "x");
        let rows = fixed_indices(&g, &[4], &[2, 0, 2, 7]);
        let y = x.take(&rows);
        let w = g.constant(Literal::from_slice([4, 2], &[1f32, 2., 3., 4., 5., 6., 7., 8.]).unwrap());
        let dx = grad(&(&y * &w).sum_all(), &[&x]).remove(0);
        let graph = g.finish(&[dx]).unwrap();
        let out = interp::run(&graph, &[&Literal::zeros(TensorType::new(DType::F32, [3, 2]))]).unwrap();
        assert_eq!(out[0].to_f32s(), [3., 4., 0., 0., 13., 16.]);
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [5, 2, 3]);
        let indices = TensorType::new(DType::I32, [2, 4, 1]);
        let good = Gather {
            offset_dims: smallvec![2],
            collapsed_slice_dims: smallvec![0],
            operand_batching_dims: smallvec![1],
            start_indices_batching_dims: smallvec![0],
            start_index_map: smallvec![0],
            index_vector_dim: 2,
            slice_sizes: smallvec![1, 1, 2],
            indices_are_sorted: false,
        };
        assert!(good.infer(&[&x, &indices]).is_ok());
        let of = |f: &dyn Fn(&mut Gather)| {
            let mut op = good.clone();
            f(&mut op);
            op.infer(&[&x, &indices]).unwrap_err().label
        };
        assert_eq!(of(&|g| g.offset_dims = smallvec![]), "C1");
        assert_eq!(of(&|g| g.index_vector_dim = 4), "C2");
        assert_eq!(of(&|g| g.start_index_map = smallvec![0, 2]), "C3");
        assert_eq!(of(&|g| g.offset_dims = smallvec![9]), "C5");
        assert_eq!(of(&|g| g.collapsed_slice_dims = smallvec![1]), "C6");
        assert_eq!(of(&|g| g.collapsed_slice_dims = smallvec![7]), "C8");
        assert_eq!(of(&|g| g.slice_sizes = smallvec![2, 1, 2]), "C9");
        assert_eq!(of(&|g| g.operand_batching_dims = smallvec![3]), "C11");
        assert_eq!(of(&|g| g.slice_sizes = smallvec![1, 2, 2]), "C12");
        assert_eq!(of(&|g| g.start_indices_batching_dims = smallvec![0, 0]), "C13");
        assert_eq!(of(&|g| g.start_indices_batching_dims = smallvec![3]), "C14");
        assert_eq!(of(&|g| g.start_indices_batching_dims = smallvec![2]), "C15");
        assert_eq!(of(&|g| g.start_indices_batching_dims = smallvec![]), "C16");
        assert_eq!(of(&|g| g.start_indices_batching_dims = smallvec![1]), "C17");
        assert_eq!(of(&|g| g.start_index_map = smallvec![1]), "C18");
        assert_eq!(of(&|g| g.start_index_map = smallvec![3]), "C19");
        assert_eq!(of(&|g| g.slice_sizes = smallvec![1, 1]), "C20");
        assert_eq!(of(&|g| g.slice_sizes = smallvec![1, 1, 4]), "C21");
        let floats = indices.with_dtype(DType::F32);
        assert_eq!(good.infer(&[&x, &floats]).unwrap_err().label, "-");
        let many = TensorType::new(DType::I32, [usize::MAX / 8, 0]);
        let wide = Gather {
            offset_dims: smallvec![1, 2],
            index_vector_dim: 1,
            start_index_map: smallvec![],
            ..Gather::rows(&x, 1)
        };
        let wide = Gather { slice_sizes: smallvec![1, 2, 3], ..wide };
        assert_eq!(wide.infer(&[&x, &many]).unwrap_err().label, "C22");
    }
}
