//! Data movement ops broadcast_in_dim, reshape, transpose, reverse, concatenate, slice and pad: static indices, no
//! arithmetic.

use super::attr::ints;
use super::elementwise_samples::{moved, moved_f64};
use super::*;

/// Fills a result element by element, given the source index of each element.
fn gather_by(
    out: &TensorType,
    source: &Literal,
    mut from: impl FnMut(&[usize]) -> Option<usize>,
    otherwise: Option<&Literal>,
) -> Literal {
    let mut b = LiteralBuilder::new(out.clone());
    for (i, index) in out.shape.indices().enumerate() {
        match (from(&index), otherwise) {
            (Some(at), _) => b.set(i, source.get(at)),
            (None, Some(value)) => b.set(i, value.get(0)),
            (None, None) => {}
        }
    }
    b.finish()
}

impl OpRule for BroadcastInDim {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let x = args[0];
        require!(
            self.dims.len() == x.rank(),
            "C2",
            "got {} broadcast_dimensions for rank {}",
            self.dims.len(),
            x.rank()
        );
        for (i, &d) in self.dims.iter().enumerate() {
            require!(
                d < self.shape.rank(),
                "C3",
                "dimension {d} must be below the rank {}",
                self.shape.rank()
            );
            require!(!self.dims[..i].contains(&d), "C4", "dimension {d} is listed twice");
            require!(
                x.shape[i] == 1 || x.shape[i] == self.shape[d],
                "C5",
                "dimension {i} of {x} has size {}, expected 1 or {}",
                x.shape[i],
                self.shape[d]
            );
        }
        Ok(smallvec![x.with_shape(&self.shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let shape = args[0].shape().clone();
        let from = |index: &[usize]| {
            let at: Dims = self
                .dims
                .iter()
                .enumerate()
                .map(|(i, &d)| if shape[i] == 1 { 0 } else { index[d] })
                .collect();
            Some(shape.ravel(&at))
        };
        Ok(vec![gather_by(&outs[0], args[0], from, None)])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero] };
        // Sum over the repeated dimensions; the remaining ones may be in another order.
        let from = |d: usize| self.dims.iter().position(|&t| t == d);
        let repeats = |d: usize| from(d).is_none_or(|i| x[0].shape()[i] == 1 && self.shape[d] != 1);
        let summed: Vec<usize> = (0..self.shape.rank()).filter(|&d| repeats(d)).collect();
        let kept: Vec<usize> = (0..self.shape.rank()).filter(|&d| !repeats(d)).collect();
        let sum = if summed.is_empty() { dy.clone() } else { dy.sum(&summed) };
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&k| from(kept[k]));
        vec![Grad::Of(sum.transpose(&order).reshape(x[0].shape()))]
    }
    fn attrs(&self) -> AttrList {
        vec![("broadcast_dimensions", ints(&self.dims))]
    }
}

impl StructuralOp for BroadcastInDim {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let shape = s.result(0)?.shape.clone();
        Ok(BroadcastInDim { dims: s.sizes("broadcast_dimensions")?, shape })
    }

    fn samples() -> Vec<OpSample> {
        let to =
            |x: &[Tensor], shape: &[usize], dims: &[usize]| vec![x[0].broadcast_in_dim(&shape.into(), dims)];
        let mut all = moved("repeat", &[&[3, 1]], |x| to(x, &[2, 3, 5], &[1, 2]));
        all.extend([
            moved_f64("swapped", &[&[3, 5]], |x| to(x, &[5, 2, 3], &[2, 0])),
            moved_f64("scalar", &[&[]], |x| to(x, &[3], &[])),
            moved_f64("to_nothing", &[&[1, 3]], |x| to(x, &[0, 3], &[0, 1])),
            moved_f64("ones", &[&[1, 1]], |x| to(x, &[1, 3], &[0, 1])),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let (x, out) = (at.ty(0), at.out());
        let cut = rows.cut(out)?;
        let shape = cut.shape(out);
        let by_rows = |k: usize| self.dims[k] == k && x.shape[k] == out.shape[k];
        if self.dims.len() >= cut.dims && cut.all(by_rows) {
            return RowOp::rows(BroadcastInDim { dims: cut.leading(&self.dims)?, shape }, [RowUse::Rows]);
        }
        // If the rows are one dimension, an operand dimension of size 1 may be broadcast along it.
        let place = |(k, &d): (usize, &usize)| match cut.dim(d) {
            None if cut.dims == 1 && x.shape[k] == 1 => Some(0),
            place => place,
        };
        let dims: Option<Dims> = self.dims.iter().enumerate().map(place).collect();
        RowOp::rows(BroadcastInDim { dims: dims?, shape }, [RowUse::Whole])
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        let operand = |d: usize| {
            let k = self.dims.iter().position(|&to| to == d)?;
            (at.ty(0).shape[k] == at.out().shape[d]).then_some(k)
        };
        (0..at.out().rank()).map(|d| ShardingFactor::dim([operand(d)], d)).collect()
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        let shape = Shape::new(&shard_of(&self.shape, d, parts)[..]);
        Some(BroadcastInDim { shape, ..self.clone() }.into())
    }
}

impl OpRule for Reshape {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let n = self.shape.checked_elements();
        require!(
            n == Some(args[0].elements()),
            "C2",
            "{} has {} elements, {} has {}",
            args[0],
            args[0].elements(),
            self.shape,
            n.map_or("too many".into(), |n| n.to_string())
        );
        Ok(smallvec![args[0].with_shape(&self.shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        Ok(vec![args[0].reshape(&self.shape)?])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        vec![dy[0].as_ref().map_or(Grad::Zero, |dy| Grad::Of(dy.reshape(x[0].shape())))]
    }
}

impl StructuralOp for Reshape {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Reshape { shape: s.result(0)?.shape.clone() })
    }

    fn samples() -> Vec<OpSample> {
        let mut all = moved("flat", &[&[3, 5]], |x| vec![x[0].reshape([15])]);
        all.extend([
            moved_f64("ones", &[&[3, 5]], |x| vec![x[0].reshape([1, 3, 1, 5])]),
            moved_f64("scalar", &[&[1, 1]], |x| vec![x[0].reshape([])]),
            moved_f64("empty", &[&[0, 5]], |x| vec![x[0].reshape([7, 0, 2])]),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        rows.cut(at.ty(0))?;
        RowOp::rows(Reshape { shape: rows.cut(at.out())?.shape(at.out()) }, [RowUse::Rows])
    }

    /// Equal parts of an operand dimension are equal parts of a result dimension if the same number of elements precede
    /// both.
    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        let (x, out) = (at.ty(0), at.out());
        let before = |t: &TensorType, d: usize| t.shape[..d].iter().product::<usize>();
        let pairs = (0..x.rank()).flat_map(|k| (0..out.rank()).map(move |d| (k, d)));
        let pairs = pairs.filter(|&(k, d)| before(x, k) == before(out, d));
        pairs.map(|(k, d)| ShardingFactor::dim([Some(k)], d)).collect()
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        Some(Reshape { shape: Shape::new(&shard_of(&self.shape, d, parts)[..]) }.into())
    }
}

impl OpRule for Transpose {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        require!(
            sorted.iter().copied().eq(0..args[0].rank()),
            "C2",
            "{:?} is not a permutation of the dimensions of {}",
            &self.permutation[..],
            args[0]
        );
        let shape: Shape = self.permutation.iter().map(|&d| args[0].shape[d]).collect();
        Ok(smallvec![args[0].with_shape(shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let strides = args[0].shape().strides();
        let from =
            |index: &[usize]| Some(index.iter().zip(&self.permutation).map(|(&i, &d)| i * strides[d]).sum());
        Ok(vec![gather_by(&outs[0], args[0], from, None)])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero] };
        let mut inverse = vec![0; self.permutation.len()];
        self.permutation.iter().enumerate().for_each(|(i, &d)| inverse[d] = i);
        vec![Grad::Of(dy.transpose(&inverse))]
    }
    fn attrs(&self) -> AttrList {
        vec![("permutation", ints(&self.permutation))]
    }
}

impl StructuralOp for Transpose {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Transpose { permutation: s.sizes("permutation")? })
    }

    fn samples() -> Vec<OpSample> {
        let mut all = moved("swap", &[&[3, 5]], |x| vec![x[0].transpose(&[1, 0])]);
        all.extend([
            moved_f64("cycle", &[&[2, 3, 5]], |x| vec![x[0].transpose(&[2, 0, 1])]),
            moved_f64("empty", &[&[3, 0]], |x| vec![x[0].transpose(&[1, 0])]),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        RowOp::rows(
            Transpose { permutation: rows.cut(at.ty(0))?.leading(&self.permutation)? },
            [RowUse::Rows],
        )
    }

    fn factors(&self, _: NodeView<'_>) -> Vec<ShardingFactor> {
        self.permutation.iter().enumerate().map(|(d, &k)| ShardingFactor::dim([Some(k)], d)).collect()
    }
}

impl OpRule for Reverse {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        for (i, &d) in self.dims.iter().enumerate() {
            require!(!self.dims[..i].contains(&d), "C2", "dimension {d} is listed twice");
            require!(d < args[0].rank(), "C3", "dimension {d} must be below the rank {}", args[0].rank());
        }
        Ok(smallvec![args[0].clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let shape = args[0].shape().clone();
        let from = |index: &[usize]| {
            let at: Dims = (0..shape.rank())
                .map(|d| if self.dims.contains(&d) { shape[d] - 1 - index[d] } else { index[d] })
                .collect();
            Some(shape.ravel(&at))
        };
        Ok(vec![gather_by(&outs[0], args[0], from, None)])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        vec![dy[0].as_ref().map_or(Grad::Zero, |dy| Grad::Of(dy.reverse(&self.dims)))]
    }
    fn attrs(&self) -> AttrList {
        vec![("dimensions", ints(&self.dims))]
    }
}

impl StructuralOp for Reverse {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Reverse { dims: s.sizes("dimensions")? })
    }

    fn samples() -> Vec<OpSample> {
        let mut all = moved("last", &[&[3, 5]], |x| vec![x[0].reverse(&[1])]);
        all.extend([
            moved_f64("both", &[&[3, 5]], |x| vec![x[0].reverse(&[1, 0])]),
            moved_f64("none", &[&[3]], |x| vec![x[0].reverse(&[])]),
            moved_f64("empty", &[&[3, 0]], |x| vec![x[0].reverse(&[0, 1])]),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        RowOp::rows(Reverse { dims: rows.cut(at.ty(0))?.other_dims(&self.dims)? }, [RowUse::Rows])
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(1, |d| !self.dims.contains(&d))
    }
}

impl OpRule for Concatenate {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(!args.is_empty(), "C3", "expected at least one operand");
        let first = args[0];
        require!(
            self.dim < first.rank(),
            "C4",
            "dimension {} must be below the rank {}",
            self.dim,
            first.rank()
        );
        let mut dims = first.shape.dims().to_vec();
        for x in &args[1..] {
            require!(x.dtype == first.dtype, "C1", "element types differ: {first} and {x}");
            let same = x.rank() == first.rank()
                && (0..x.rank()).all(|d| d == self.dim || x.shape[d] == first.shape[d]);
            require!(same, "C2", "{x} and {first} may differ only in dimension {}", self.dim);
            dims[self.dim] += x.shape[self.dim];
        }
        Ok(smallvec![first.with_shape(dims)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, mut index) in outs[0].shape.indices().enumerate() {
            let mut k = 0;
            while index[self.dim] >= args[k].shape()[self.dim] {
                index[self.dim] -= args[k].shape()[self.dim];
                k += 1;
            }
            b.set(i, args[k].at(&index));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero; x.len()] };
        let mut start = 0;
        let part = |x: &Tensor| {
            let size = x.shape()[self.dim];
            start += size;
            Grad::Of(dy.slice_dim(self.dim, start - size, start))
        };
        x.iter().map(part).collect()
    }
    fn attrs(&self) -> AttrList {
        vec![("dimension", Attr::Int(self.dim as i64))]
    }
}

impl StructuralOp for Concatenate {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Concatenate { dim: s.size("dimension")? })
    }

    fn samples() -> Vec<OpSample> {
        let join = |x: &[Tensor], dim| vec![Tensor::concatenate(&x.iter().collect::<Vec<_>>(), dim)];
        let mut all = moved("last", &[&[3, 2], &[3, 5]], |x| join(x, 1));
        all.extend([
            moved_f64("three", &[&[1, 3], &[0, 3], &[2, 3]], |x| join(x, 0)),
            moved_f64("one", &[&[3]], |x| join(x, 0)),
            moved_f64("empty", &[&[0, 2], &[0, 3]], |x| join(x, 1)),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let n = at.node.inputs.len();
        RowOp::rows(Concatenate { dim: rows.cut(at.out())?.dim(self.dim)? }, first_by_rows(n, n))
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(at.node.inputs.len(), |d| d != self.dim)
    }
}

impl Slice {
    /// Whether the slice keeps all elements along dimension `d` of `x`.
    fn keeps(&self, d: usize, x: &TensorType) -> bool {
        self.start[d] == 0 && self.limit[d] == x.shape[d] && self.strides[d] == 1
    }
}

impl OpRule for Slice {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let x = args[0];
        let n = x.rank();
        require!(
            self.start.len() == n && self.limit.len() == n && self.strides.len() == n,
            "C2",
            "start, limit and strides must each have {n} entries"
        );
        for d in 0..n {
            require!(
                self.start[d] <= self.limit[d] && self.limit[d] <= x.shape[d],
                "C3",
                "slice {}..{} is out of bounds for dimension {d} of {x}",
                self.start[d],
                self.limit[d]
            );
            require!(self.strides[d] > 0, "C4", "the stride of dimension {d} must be positive");
        }
        let shape: Shape =
            (0..n).map(|d| (self.limit[d] - self.start[d]).div_ceil(self.strides[d])).collect();
        Ok(smallvec![x.with_shape(shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let shape = args[0].shape().clone();
        let from = |index: &[usize]| {
            let at: Dims = (0..shape.rank()).map(|d| self.start[d] + index[d] * self.strides[d]).collect();
            Some(shape.ravel(&at))
        };
        Ok(vec![gather_by(&outs[0], args[0], from, None)])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero] };
        let low: Vec<i64> = self.start.iter().map(|&s| s as i64).collect();
        let interior: Vec<usize> = self.strides.iter().map(|&s| s - 1).collect();
        let high: Vec<i64> = (0..x[0].rank())
            .map(|d| {
                let n = dy.shape()[d];
                let reached = if n == 0 { 0 } else { 1 + (n - 1) * self.strides[d] };
                x[0].shape()[d] as i64 - low[d] - reached as i64
            })
            .collect();
        vec![Grad::Of(dy.pad(&dy.scalar_like(0.0), &low, &high, &interior))]
    }
    fn attrs(&self) -> AttrList {
        vec![
            ("start_indices", ints(&self.start)),
            ("limit_indices", ints(&self.limit)),
            ("strides", ints(&self.strides)),
        ]
    }
}

impl StructuralOp for Slice {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Slice {
            start: s.sizes("start_indices")?,
            limit: s.sizes("limit_indices")?,
            strides: s.sizes("strides")?,
        })
    }

    fn samples() -> Vec<OpSample> {
        let mut all = moved("step", &[&[5, 7]], |x| vec![x[0].slice(&[1, 0], &[4, 7], &[1, 3])]);
        all.extend([
            moved_f64("uneven", &[&[8]], |x| vec![x[0].slice(&[1], &[7], &[4])]),
            moved_f64("empty", &[&[5]], |x| vec![x[0].slice(&[2], &[2], &[1])]),
            moved_f64("of_empty", &[&[0, 5]], |x| vec![x[0].slice(&[0, 1], &[0, 4], &[1, 1])]),
            moved_f64("scalar", &[&[]], |x| vec![x[0].slice(&[], &[], &[])]),
        ]);
        all
    }

    /// Only for slices that keep all rows.
    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(0))?;
        let op = Slice {
            start: cut.sizes(&self.start, 0),
            limit: cut.sizes(&self.limit, cut.block),
            strides: cut.sizes(&self.strides, 1),
        };
        if cut.all(|d| self.keeps(d, at.ty(0))) { RowOp::rows(op, [RowUse::Rows]) } else { None }
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(1, |d| self.keeps(d, at.ty(0)))
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        Some(Slice { limit: shard_of(&self.limit, d, parts), ..self.clone() }.into())
    }
}

impl Pad {
    /// Whether there is no padding along dimension `d`.
    fn keeps(&self, d: usize) -> bool {
        self.low[d] == 0 && self.high[d] == 0 && self.interior[d] == 0
    }

    /// Operand index for result index `i` of dimension `d`; `None` in the padding.
    fn source(&self, d: usize, size: usize, i: usize) -> Option<usize> {
        let (at, step) = (i as i64 - self.low[d], self.interior[d] as i64 + 1);
        (at >= 0 && at % step == 0 && at / step < size as i64).then_some((at / step) as usize)
    }
}

impl OpRule for Pad {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (x, v) = (args[0], args[1]);
        require!(
            v.rank() == 0 && v.dtype == x.dtype,
            "C1",
            "the padding value has type {v}, expected {}[]",
            x.dtype
        );
        let n = x.rank();
        require!(
            self.low.len() == n && self.high.len() == n && self.interior.len() == n,
            "C2",
            "low, high and interior must each have {n} entries"
        );
        let mut dims = Dims::new();
        for d in 0..n {
            let size = x.shape[d] as i64;
            let spread = size + (size - 1).max(0) * self.interior[d] as i64;
            let total = spread + self.low[d] + self.high[d];
            require!(total >= 0, "C4", "dimension {d} of {x} would have the negative size {total}");
            dims.push(total as usize);
        }
        Ok(smallvec![x.with_shape(&dims[..])])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let shape = args[0].shape().clone();
        let from = |index: &[usize]| {
            let at: Option<Dims> = (0..shape.rank()).map(|d| self.source(d, shape[d], index[d])).collect();
            at.map(|at| shape.ravel(&at))
        };
        Ok(vec![gather_by(&outs[0], args[0], from, Some(args[1]))])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        // Undo the outer padding (negative padding restores what was cropped, as zeros), then drop the interior.
        let flip = |v: &[i64]| v.iter().map(|&p| -p).collect::<Vec<_>>();
        let inner = dy.pad(&dy.scalar_like(0.0), &flip(&self.low), &flip(&self.high), &vec![0; x[0].rank()]);
        let strides: Vec<usize> = self.interior.iter().map(|&i| i + 1).collect();
        let dx = inner.slice(&vec![0; x[0].rank()], inner.shape(), &strides);
        let dx_kept = dx.sum_all();
        vec![Grad::Of(dx), Grad::Of(dy.sum_all() - dx_kept)]
    }
    fn attrs(&self) -> AttrList {
        vec![
            ("edge_padding_low", Attr::Ints(self.low.clone())),
            ("edge_padding_high", Attr::Ints(self.high.clone())),
            ("interior_padding", ints(&self.interior)),
        ]
    }
}

impl StructuralOp for Pad {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Pad {
            low: s.ints("edge_padding_low")?,
            high: s.ints("edge_padding_high")?,
            interior: s.sizes("interior_padding")?.to_vec(),
        })
    }

    fn samples() -> Vec<OpSample> {
        let mut all = moved("around", &[&[2, 3], &[]], |x| vec![x[0].pad(&x[1], &[1, 0], &[0, 2], &[0, 1])]);
        all.extend([
            moved_f64("cut", &[&[5, 4], &[]], |x| vec![x[0].pad(&x[1], &[-1, 2], &[-2, -1], &[0, 0])]),
            moved_f64("cut_between", &[&[4], &[]], |x| vec![x[0].pad(&x[1], &[-2], &[-1], &[2])]),
            moved_f64("empty", &[&[0, 3], &[]], |x| vec![x[0].pad(&x[1], &[1, 0], &[1, 0], &[2, 0])]),
            moved_f64("to_nothing", &[&[2], &[]], |x| vec![x[0].pad(&x[1], &[-1], &[-1], &[0])]),
        ]);
        all
    }

    /// Only for padding that adds no rows.
    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(0))?;
        let op = Pad {
            low: cut.list(&self.low, 0),
            high: cut.list(&self.high, 0),
            interior: cut.list(&self.interior, 0),
        };
        if cut.all(|d| self.keeps(d)) { RowOp::rows(op, [RowUse::Rows, RowUse::Whole]) } else { None }
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(1, |d| self.keeps(d))
    }
}
