//! Ops that move elements and do no arithmetic, with places known when the graph is built:
//! broadcast_in_dim, reshape, transpose, reverse, concatenate, slice, pad.

use super::attr::ints;
use super::*;
use crate::require;
use smallvec::smallvec;
use systole_base::{Dims, LiteralBuilder, Shape};

/// Fills a result by asking for each index where its element comes from.
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
    named!("broadcast_in_dim", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        let x = args[0];
        require!(
            self.dims.len() == x.rank(),
            "C2",
            "{} broadcast_dimensions for rank {}",
            self.dims.len(),
            x.rank()
        );
        for (i, &d) in self.dims.iter().enumerate() {
            require!(d < self.shape.rank(), "C3", "dimension {d} is not below rank {}", self.shape.rank());
            require!(!self.dims[..i].contains(&d), "C4", "dimension {d} is named twice");
            require!(
                x.shape[i] == 1 || x.shape[i] == self.shape[d],
                "C5",
                "dimension {i} of {x} has size {}, which is neither 1 nor {}",
                x.shape[i],
                self.shape[d]
            );
        }
        Ok(smallvec![x.with_shape(&self.shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
        // Sum over the dimensions that were repeated; the kept ones may stand in another order.
        let from = |d: usize| self.dims.iter().position(|&t| t == d);
        let repeats = |d: usize| from(d).is_none_or(|i| x[0].shape()[i] == 1 && self.shape[d] != 1);
        let summed: Vec<usize> = (0..self.shape.rank()).filter(|&d| repeats(d)).collect();
        let kept: Vec<usize> = (0..self.shape.rank()).filter(|&d| !repeats(d)).collect();
        let sum = if summed.is_empty() { dy.clone() } else { dy.sum(&summed) };
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&k| from(kept[k]));
        vec![Grad::Of(sum.transpose(&order).reshape(x[0].shape()))]
    }
    fn attrs(&self) -> Attrs {
        vec![("broadcast_dimensions", ints(&self.dims))]
    }
}

impl OpRule for Reshape {
    named!("reshape", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
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
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &Outs) -> Result<Vec<Literal>> {
        Ok(vec![args[0].reshape(&self.shape)?])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        vec![dy[0].as_ref().map_or(Grad::Zero, |dy| Grad::Of(dy.reshape(x[0].shape())))]
    }
}

impl OpRule for Transpose {
    named!("transpose", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        require!(
            sorted.iter().copied().eq(0..args[0].rank()),
            "C2",
            "{:?} is no permutation of the dimensions of {}",
            &self.permutation[..],
            args[0]
        );
        let shape: Shape = self.permutation.iter().map(|&d| args[0].shape[d]).collect();
        Ok(smallvec![args[0].with_shape(shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
    fn attrs(&self) -> Attrs {
        vec![("permutation", ints(&self.permutation))]
    }
}

impl OpRule for Reverse {
    named!("reverse", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        for (i, &d) in self.dims.iter().enumerate() {
            require!(!self.dims[..i].contains(&d), "C2", "dimension {d} is named twice");
            require!(d < args[0].rank(), "C3", "dimension {d} is not below rank {}", args[0].rank());
        }
        Ok(smallvec![args[0].clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
    fn attrs(&self) -> Attrs {
        vec![("dimensions", ints(&self.dims))]
    }
}

impl OpRule for Concatenate {
    named!("concatenate", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        require!(!args.is_empty(), "C3", "needs at least one operand");
        let first = args[0];
        require!(self.dim < first.rank(), "C4", "dimension {} is not below rank {}", self.dim, first.rank());
        let mut dims = first.shape.dims().to_vec();
        for x in &args[1..] {
            require!(x.dtype == first.dtype, "C1", "element types differ: {first} and {x}");
            let same = x.rank() == first.rank()
                && (0..x.rank()).all(|d| d == self.dim || x.shape[d] == first.shape[d]);
            require!(same, "C2", "{x} and {first} differ in more than dimension {}", self.dim);
            dims[self.dim] += x.shape[self.dim];
        }
        Ok(smallvec![first.with_shape(dims)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
    fn attrs(&self) -> Attrs {
        vec![("dimension", Attr::Int(self.dim as i64))]
    }
}

impl OpRule for Slice {
    named!("slice", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
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
                "slice {}..{} does not lie in dimension {d} of {x}",
                self.start[d],
                self.limit[d]
            );
            require!(self.strides[d] > 0, "C4", "the stride of dimension {d} is 0");
        }
        let shape: Shape =
            (0..n).map(|d| (self.limit[d] - self.start[d]).div_ceil(self.strides[d])).collect();
        Ok(smallvec![x.with_shape(shape)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
    fn attrs(&self) -> Attrs {
        vec![
            ("start_indices", ints(&self.start)),
            ("limit_indices", ints(&self.limit)),
            ("strides", ints(&self.strides)),
        ]
    }
}

impl Pad {
    /// The operand coordinate that lands at result coordinate `i` of dimension `d`, if any.
    fn source(&self, d: usize, size: usize, i: usize) -> Option<usize> {
        let (at, step) = (i as i64 - self.low[d], self.interior[d] as i64 + 1);
        (at >= 0 && at % step == 0 && at / step < size as i64).then_some((at / step) as usize)
    }
}

impl OpRule for Pad {
    named!("pad", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 2)?;
        let (x, v) = (args[0], args[1]);
        require!(v.rank() == 0 && v.dtype == x.dtype, "C1", "the padding value is {v}, not {}[]", x.dtype);
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
            require!(total >= 0, "C4", "dimension {d} of {x} would have size {total}");
            dims.push(total as usize);
        }
        Ok(smallvec![x.with_shape(&dims[..])])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let shape = args[0].shape().clone();
        let from = |index: &[usize]| {
            let at: Option<Dims> = (0..shape.rank()).map(|d| self.source(d, shape[d], index[d])).collect();
            at.map(|at| shape.ravel(&at))
        };
        Ok(vec![gather_by(&outs[0], args[0], from, Some(args[1]))])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        // Undo the outer padding (a negative pad restores what was cut, as zeros), then drop the interior.
        let flip = |v: &[i64]| v.iter().map(|&p| -p).collect::<Vec<_>>();
        let inner = dy.pad(&dy.scalar_like(0.0), &flip(&self.low), &flip(&self.high), &vec![0; x[0].rank()]);
        let strides: Vec<usize> = self.interior.iter().map(|&i| i + 1).collect();
        let dx = inner.slice(&vec![0; x[0].rank()], inner.shape(), &strides);
        let dx_kept = dx.sum_all();
        vec![Grad::Of(dx), Grad::Of(dy.sum_all() - dx_kept)]
    }
    fn attrs(&self) -> Attrs {
        vec![
            ("edge_padding_low", Attr::Ints(self.low.clone())),
            ("edge_padding_high", Attr::Ints(self.high.clone())),
            ("interior_padding", ints(&self.interior)),
        ]
    }
}
