//! reduce: reduces dimensions of one or more operands with any body.

use super::attr::ints;
use super::elementwise_samples::COUNTS;
use super::sample::{WIDE, sample};
use super::*;

/// Checks a reduction body: takes `n` accumulators and `n` elements, returns `n` accumulators.
pub(crate) fn check_fold_body(body: &Graph, dtypes: &[DType]) -> Result<(), SpecConstraint> {
    let n = dtypes.len();
    let params = body.param_types();
    let results = body.result_types();
    let fits = params.len() == 2 * n
        && results.len() == n
        && (0..n).all(|i| {
            let t = TensorType::scalar(dtypes[i]);
            params[i] == t && params[n + i] == t && results[i] == t
        });
    require!(
        fits,
        "C6",
        "the body has type {params:?} → {results:?}, expected a reduction of scalars of {dtypes:?}"
    );
    Ok(())
}

impl OpRule for Reduce {
    lowered!(Fold);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(
            !args.is_empty() && args.len().is_multiple_of(2),
            "C3",
            "expected one initial value per input"
        );
        let (xs, inits) = args.split_at(args.len() / 2);
        for (x, init) in xs.iter().zip(inits) {
            require!(x.shape == xs[0].shape, "C1", "input shapes differ: {x} and {}", xs[0]);
            require!(
                init.rank() == 0 && init.dtype == x.dtype,
                "C2",
                "the initial value of {x} has type {init}, expected {}[]",
                x.dtype
            );
        }
        for (i, &d) in self.dims.iter().enumerate() {
            require!(d < xs[0].rank(), "C4", "dimension {d} must be below the rank {}", xs[0].rank());
            require!(!self.dims[..i].contains(&d), "C5", "dimension {d} is listed twice");
        }
        let dtypes: Vec<_> = xs.iter().map(|x| x.dtype).collect();
        check_fold_body(&self.body, &dtypes)?;
        let kept: Shape =
            (0..xs[0].rank()).filter(|d| !self.dims.contains(d)).map(|d| xs[0].shape[d]).collect();
        Ok(xs.iter().map(|x| x.with_shape(&kept)).collect())
    }

    fn result_count(&self, args: usize) -> usize {
        args / 2
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let n = outs.len();
        let mut acc: Vec<LiteralBuilder> = outs.iter().map(|t| LiteralBuilder::new(t.clone())).collect();
        for (k, b) in acc.iter_mut().enumerate() {
            (0..outs[k].elements()).for_each(|i| b.set(i, args[n + k].get(0)));
        }
        let kept: Vec<usize> = (0..args[0].shape().rank()).filter(|d| !self.dims.contains(d)).collect();
        for (i, index) in args[0].shape().indices().enumerate() {
            let at: Dims = kept.iter().map(|&d| index[d]).collect();
            let at = outs[0].shape.ravel(&at);
            let scalars: Vec<Scalar> =
                acc.iter().map(|b| b.get(at)).chain(args[..n].iter().map(|x| x.get(i))).collect();
            for (b, v) in acc.iter_mut().zip(cx.run_scalars(&self.body, &scalars)?) {
                b.set(at, v);
            }
        }
        Ok(acc.into_iter().map(LiteralBuilder::finish).collect())
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(monoid) = Monoid::of(&self.body) else {
            let why = "the body of this reduce is not a single add, multiply, minimum or maximum";
            return vec![Grad::None { why }; x.len()];
        };
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        let (x, init, y) = (&x[0], &x[1], &y[0]);
        let spread = |t: &Tensor| t.broadcast_except(x.shape(), &self.dims);
        match monoid {
            Monoid::Add => vec![Grad::Of(spread(dy)), Grad::Of(dy.sum_all())],
            Monoid::Minimum | Monoid::Maximum => {
                // Ties share the cotangent evenly, as in XLA and TensorFlow; the initial value counts as one of them.
                let hit = x.equal(&spread(y)).convert(dy.dtype());
                let init_hit = y.equal(&init.broadcast_to(y.shape())).convert(dy.dtype());
                let share = dy / &(hit.sum(&self.dims) + &init_hit);
                vec![Grad::Of(hit * spread(&share)), Grad::Of((init_hit * share).sum_all())]
            }
            Monoid::Multiply => {
                let others = x.products_of_others(&self.dims);
                let dx = &others * &spread(&(dy * &init.broadcast_to(dy.shape())));
                vec![Grad::Of(dx), Grad::Of((dy * &x.prod(&self.dims)).sum_all())]
            }
            Monoid::And | Monoid::Or => vec![Grad::Zero, Grad::Zero],
        }
    }

    fn attrs(&self) -> AttrList {
        vec![("dimensions", ints(&self.dims))]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let per_element = self.body.nodes.len().saturating_sub(self.body.params.len()) as f64;
        OpCost { flops: args[0].elements() as f64 * per_element, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for Reduce {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Reduce { dims: s.sizes("dimensions")?, body: s.region(0)? })
    }

    fn samples() -> Vec<OpSample> {
        let case = |what: &str, monoid: Monoid, dtype: DType, shape: &[usize], dims: &[usize]| {
            let domain = if matches!(monoid, Monoid::And | Monoid::Or) { COUNTS } else { WIDE };
            let params = [(TensorType::new(dtype, shape), domain), (TensorType::scalar(dtype), WIDE)];
            let label = format!("{}_{what}{dtype}", monoid.name());
            sample(label, &params, 16, dtype == DType::F64, |x| {
                Tensor::reduce(&[&x[0]], &[&x[1]], dims, monoid.body(dtype))
            })
        };
        let mut all = Vec::new();
        for monoid in
            [Monoid::Add, Monoid::Multiply, Monoid::Minimum, Monoid::Maximum, Monoid::And, Monoid::Or]
        {
            let bits_only = matches!(monoid, Monoid::And | Monoid::Or);
            let dtypes: Vec<DType> =
                DType::ALL.into_iter().filter(|d| !(bits_only && d.is_float())).collect();
            all.extend(dtypes.iter().map(|&d| case("", monoid, d, &[3, 5], &[1])));
            let widest = dtypes[dtypes.len() - 1];
            all.extend([
                case("outer_", monoid, widest, &[3, 2, 5], &[0, 2]),
                case("unordered_", monoid, widest, &[3, 2, 5], &[2, 0]),
                case("of_nothing_", monoid, widest, &[0, 3], &[0]),
                case("to_nothing_", monoid, widest, &[0, 3], &[1]),
                case("no_dims_", monoid, widest, &[3], &[]),
            ]);
        }
        all.push(argmax());
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let n = at.node.inputs.len() / 2;
        let x = at.ty(0);
        let cut = rows.cut(x)?;
        if let Some(dims) = cut.other_dims(&self.dims) {
            return RowOp::rows(Reduce { dims, body: self.body.clone() }, first_by_rows(n, 2 * n));
        }
        let zero = at.constant(1).is_some_and(|c| c.value.get(0).as_f64() == 0.0);
        let all_rows = cut.all(|d| self.dims.contains(&d));
        let adds = n == 1 && x.dtype != DType::Bool && Monoid::of(&self.body) == Some(Monoid::Add);
        if !(adds && zero && all_rows) {
            return None;
        }
        let dims = std::iter::once(0).chain(self.dims.iter().filter_map(|&d| cut.dim(d))).collect();
        let wide = sum_type(x.dtype);
        let body = if wide == x.dtype { self.body.clone() } else { Monoid::Add.body(wide) };
        RowOp::sum(Reduce { dims, body }, first_by_rows(n, 2 * n))
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        let n = at.node.inputs.len() / 2;
        let x = at.ty(0);
        let operands = |d: usize| (0..2 * n).map(move |k| (k < n).then_some(d));
        let kept = (0..x.rank()).filter(|d| !self.dims.contains(d));
        let mut all: Vec<ShardingFactor> =
            kept.enumerate().map(|(to, d)| ShardingFactor::dim(operands(d), to)).collect();
        if let (1, Some(monoid)) = (n, Monoid::of(&self.body))
            && at.constant(1).is_some_and(|c| c.value.get(0) == monoid.identity(x.dtype))
        {
            all.extend(self.dims.iter().map(|&d| ShardingFactor::fold(operands(d), monoid)));
        }
        all
    }
}

/// Sample that reduces two operands together: the maximum and its index.
fn argmax() -> OpSample {
    let params = [
        (TensorType::new(DType::F32, [3, 5]), ArgDomain::Distinct(0.5)),
        (TensorType::new(DType::I32, [3, 5]), ArgDomain::Distinct(1.0)),
    ];
    sample("pair".into(), &params, 0, false, |x| {
        let g = GraphBuilder::new("body");
        let [a, i, b, j] = [DType::F32, DType::I32, DType::F32, DType::I32]
            .map(|d| g.parameter(TensorType::scalar(d), "element"));
        let keep = a.greater_equal(&b);
        let body = g.finish(&[keep.select(&a, &b), keep.select(&i, &j)]);
        let Ok(body) = body else { systole_base::bug!("cannot build the sample argmax") };
        let inits = [x[0].scalar_like(f64::NEG_INFINITY), x[1].scalar_like(-1.0)];
        Tensor::reduce(&[&x[0], &x[1]], &[&inits[0], &inits[1]], &[1], body)
    })
}
