//! dynamic_slice and dynamic_update_slice: read or overwrite a block at a start index given at run time.

use super::attr::ints;
use super::gather::{as_index, elements};
use super::*;

/// Checks that start indices are integer scalars of one type.
fn check_starts(starts: &[&TensorType], label: &'static str) -> Result<(), SpecConstraint> {
    for s in starts {
        let fits = s.rank() == 0 && s.dtype.is_int() && *s == starts[0];
        if !fits {
            let what = format!(
                "the start index has type {s}, expected an integer scalar of the same type as the others, {}",
                starts[0]
            );
            return Err(SpecConstraint::new(label, what));
        }
    }
    Ok(())
}

/// Clamps start indices so that a block of `sizes` is inside `shape`.
fn clamped(starts: &[&Literal], shape: &Shape, sizes: &[usize]) -> Dims {
    let last = (0..shape.rank()).map(|d| (shape[d] - sizes[d]) as i64);
    starts.iter().zip(last).map(|(s, last)| as_index(s.get(0)).clamp(0, last) as usize).collect()
}

/// Indices in `shape` of the elements of a block of `sizes` at `start`, in row-major order.
fn block<'a>(shape: &'a Shape, start: &'a [usize], sizes: &Shape) -> impl Iterator<Item = usize> + 'a {
    sizes.indices().map(move |index| {
        let at: Dims = index.iter().zip(start).map(|(i, s)| i + s).collect();
        shape.ravel(&at)
    })
}

impl OpRule for DynamicSlice {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(!args.is_empty(), "-", "expected an operand and its start indices");
        let (x, starts) = (args[0], &args[1..]);
        require!(
            starts.len() == x.rank() && self.sizes.len() == x.rank(),
            "C2",
            "got {} start_indices and {} slice_sizes for {x}",
            starts.len(),
            self.sizes.len()
        );
        check_starts(starts, "C3")?;
        let inside = self.sizes.iter().zip(x.shape.iter()).all(|(s, n)| s <= n);
        require!(inside, "C4", "slice_sizes {:?} exceed {x}", &self.sizes[..]);
        Ok(smallvec![x.with_shape(&self.sizes[..])])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let x = args[0];
        let start = clamped(&args[1..], x.shape(), &self.sizes);
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, at) in block(x.shape(), &start, &outs[0].shape).enumerate() {
            b.set(i, x.get(at));
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let mut grads = vec![Grad::Zero; x.len()];
        if let Some(dy) = &dy[0] {
            // Both blocks have the same size, so the starts are clamped in the same way.
            let starts: Vec<&Tensor> = x[1..].iter().collect();
            grads[0] = Grad::Of(x[0].zeros_like().dynamic_update_slice(dy, &starts));
        }
        grads
    }

    fn attrs(&self) -> AttrList {
        vec![("slice_sizes", ints(&self.sizes))]
    }

    /// Only the block is moved.
    fn cost(&self, _: &[&TensorType], outs: &ResultTypes) -> OpCost {
        OpCost { flops: 0.0, bytes: 2.0 * outs[0].bytes() as f64 }
    }
}

/// Not split: the block may cover other rows.
impl StructuralOp for DynamicSlice {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(DynamicSlice { sizes: s.sizes("slice_sizes")? })
    }

    fn samples() -> Vec<OpSample> {
        elementwise_samples::every_dtype(dynamic_slice_samples())
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(1, |d| self.sizes[d] == at.ty(0).shape[d])
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        Some(DynamicSlice { sizes: shard_of(&self.sizes, d, parts) }.into())
    }
}

impl OpRule for DynamicUpdateSlice {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(args.len() >= 2, "-", "expected an operand, an update and the start indices");
        let (x, update, starts) = (args[0], args[1], &args[2..]);
        require!(x.dtype == update.dtype, "C2", "element types differ: {x} and {update}");
        require!(x.rank() == update.rank(), "C3", "ranks differ: {x} and {update}");
        require!(starts.len() == x.rank(), "C4", "got {} start_indices for {x}", starts.len());
        check_starts(starts, "C5")?;
        let inside = update.shape.iter().zip(x.shape.iter()).all(|(s, n)| s <= n);
        require!(inside, "C6", "the update {update} is larger than {x}");
        Ok(smallvec![x.clone()])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let (x, update) = (args[0], args[1]);
        let start = clamped(&args[2..], x.shape(), update.shape());
        let mut b = LiteralBuilder::new(outs[0].clone());
        (0..outs[0].elements()).for_each(|i| b.set(i, x.get(i)));
        for (i, at) in block(x.shape(), &start, update.shape()).enumerate() {
            b.set(at, update.get(i));
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let mut grads = vec![Grad::Zero; x.len()];
        if let Some(dy) = &dy[0] {
            let starts: Vec<&Tensor> = x[2..].iter().collect();
            grads[0] = Grad::Of(dy.dynamic_update_slice(&x[1].zeros_like(), &starts));
            grads[1] = Grad::Of(dy.dynamic_slice(&starts, x[1].shape()));
        }
        grads
    }

    /// Only the block is moved if the operand is updated in place.
    fn cost(&self, args: &[&TensorType], _: &ResultTypes) -> OpCost {
        OpCost { flops: 0.0, bytes: 2.0 * args[1].bytes() as f64 }
    }
}

/// Not split: the block may cover other rows.
impl StructuralOp for DynamicUpdateSlice {
    fn parse(_: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(DynamicUpdateSlice)
    }

    fn samples() -> Vec<OpSample> {
        elementwise_samples::every_dtype(dynamic_update_slice_samples())
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(2, |d| at.ty(1).shape[d] == at.ty(0).shape[d])
    }
}

/// Returns small test programs of dynamic_slice: start indices inside, outside and at both ends.
pub fn dynamic_slice_samples() -> Vec<OpSample> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::Bool] {
        for index in [DType::I32, DType::I64, DType::U8] {
            all.push(sliced("block", dtype, index, &[5, 3], &[2, 2]));
        }
        all.push(sliced("all", dtype, DType::I32, &[3, 1], &[3, 1]));
        all.push(sliced("nothing", dtype, DType::I32, &[4, 2], &[0, 2]));
        all.push(sliced("no_dims", dtype, DType::I32, &[], &[]));
    }
    all
}

/// Parameters: arrays of these shapes, and one start index per dimension.
fn with_starts(dtype: DType, index: DType, shapes: &[&[usize]]) -> Vec<(TensorType, ArgDomain)> {
    let low = if index.is_unsigned_int() { 0.0 } else { -3.0 };
    let arrays = shapes.iter().map(|s| (TensorType::new(dtype, *s), elements(dtype)));
    let start = (TensorType::scalar(index), ArgDomain::Uniform(low, 6.0));
    arrays.chain(vec![start; shapes[0].len()]).collect()
}

fn sliced(what: &str, dtype: DType, index: DType, shape: &[usize], sizes: &[usize]) -> OpSample {
    let params = with_starts(dtype, index, &[shape]);
    sample::sample(format!("{what}_{dtype}_{index}"), &params, 0, dtype == DType::F64, |x| {
        vec![x[0].dynamic_slice(&x[1..].iter().collect::<Vec<_>>(), sizes)]
    })
}

/// Returns small test programs of dynamic_update_slice: start indices inside, outside and at both ends.
pub fn dynamic_update_slice_samples() -> Vec<OpSample> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::Bool] {
        for index in [DType::I32, DType::I64, DType::U8] {
            all.push(updated("block", dtype, index, &[5, 3], &[2, 2]));
        }
        all.push(updated("all", dtype, DType::I32, &[3, 1], &[3, 1]));
        all.push(updated("nothing", dtype, DType::I32, &[4, 2], &[0, 2]));
        all.push(updated("no_dims", dtype, DType::I32, &[], &[]));
    }
    all
}

fn updated(what: &str, dtype: DType, index: DType, shape: &[usize], sizes: &[usize]) -> OpSample {
    let params = with_starts(dtype, index, &[shape, sizes]);
    sample::sample(format!("{what}_{dtype}_{index}"), &params, 0, dtype == DType::F64, |x| {
        vec![x[0].dynamic_update_slice(&x[1], &x[2..].iter().collect::<Vec<_>>())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, interp};

    #[test]
    fn samples_and_their_derivatives() {
        sample::check::all(&dynamic_slice_samples());
        sample::check::all(&dynamic_update_slice_samples());
    }

    /// Examples from the specification: starts −1 and 3 become 0 and 2.
    #[test]
    fn starts_are_clamped() {
        let g = GraphBuilder::new("main");
        let i32s = |shape: &[usize], v: &[i32]| Literal::from_slice(shape, v).unwrap();
        let at = |v: i64| g.constant(Literal::from_slice([], &[v]).unwrap());
        let x = g.constant(i32s(&[4, 4], &[0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
        let y = x.dynamic_slice(&[&at(-1), &at(3)], &[2, 2]);
        let ones = g.constant(i32s(&[2, 2], &[7; 4]));
        let z = x.dynamic_update_slice(&ones, &[&at(i64::MAX), &at(i64::MIN)]);
        let huge = g.constant(Literal::from_slice([], &[u64::MAX]).unwrap());
        let w = x.dynamic_slice(&[&huge, &huge], &[4, 1]);
        let out = interp::run(&g.finish(&[y, z, w]).unwrap(), &[]).unwrap();
        assert_eq!(out[0], i32s(&[2, 2], &[1; 4]));
        assert_eq!(out[1], i32s(&[4, 4], &[0, 0, 1, 1, 0, 0, 1, 1, 7, 7, 0, 0, 7, 7, 0, 0]));
        assert_eq!(out[2], i32s(&[4, 1], &[1, 1, 0, 0]));
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [4, 3]);
        let (i, l) = (TensorType::scalar(DType::I32), TensorType::scalar(DType::I64));
        let slice = |sizes: &[usize], args: &[&TensorType]| {
            DynamicSlice { sizes: sizes.into() }.infer(args).unwrap_err().label
        };
        assert_eq!(slice(&[1, 1], &[]), "-");
        assert_eq!(slice(&[1], &[&x, &i, &i]), "C2");
        assert_eq!(slice(&[1, 1], &[&x, &i]), "C2");
        assert_eq!(slice(&[1, 1], &[&x, &i, &l]), "C3");
        assert_eq!(slice(&[1, 1], &[&x, &x, &x]), "C3");
        assert_eq!(slice(&[1, 4], &[&x, &i, &i]), "C4");
        let update = |args: &[&TensorType]| DynamicUpdateSlice.infer(args).unwrap_err().label;
        assert_eq!(update(&[&x]), "-");
        assert_eq!(update(&[&x, &x.with_dtype(DType::F64), &i, &i]), "C2");
        assert_eq!(update(&[&x, &x.with_shape([4]), &i, &i]), "C3");
        assert_eq!(update(&[&x, &x, &i]), "C4");
        assert_eq!(update(&[&x, &x, &l, &i]), "C5");
        assert_eq!(update(&[&x, &x.with_shape([5, 1]), &i, &i]), "C6");
    }
}
