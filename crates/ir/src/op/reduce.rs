//! reduce: folds dimensions with any body over any number of operands.

use super::attr::ints;
use super::*;
use crate::require;
use std::sync::Arc;
use systole_base::{Dims, LiteralBuilder, Scalar, Shape};

/// Checks a folding body: `n` accumulators and `n` elements in, `n` accumulators out.
pub(crate) fn check_fold_body(body: &Graph, dtypes: &[systole_base::DType]) -> Result<(), Constraint> {
    let n = dtypes.len();
    let params = body.param_types();
    let results = body.result_types();
    let fits = params.len() == 2 * n
        && results.len() == n
        && (0..n).all(|i| {
            let t = TensorType::scalar(dtypes[i]);
            params[i] == t && params[n + i] == t && results[i] == t
        });
    require!(fits, "C6", "the body {params:?} → {results:?} does not fold scalars of {dtypes:?}");
    Ok(())
}

impl OpRule for Reduce {
    named!("reduce", Fold);

    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        require!(
            !args.is_empty() && args.len().is_multiple_of(2),
            "C3",
            "takes as many inputs as initial values"
        );
        let (xs, inits) = args.split_at(args.len() / 2);
        for (x, init) in xs.iter().zip(inits) {
            require!(x.shape == xs[0].shape, "C1", "input shapes differ: {x} and {}", xs[0]);
            require!(
                init.rank() == 0 && init.dtype == x.dtype,
                "C2",
                "the initial value of {x} is {init}, not {}[]",
                x.dtype
            );
        }
        for (i, &d) in self.dims.iter().enumerate() {
            require!(d < xs[0].rank(), "C4", "dimension {d} is not below rank {}", xs[0].rank());
            require!(!self.dims[..i].contains(&d), "C5", "dimension {d} is named twice");
        }
        let dtypes: Vec<_> = xs.iter().map(|x| x.dtype).collect();
        check_fold_body(&self.body, &dtypes)?;
        let kept: Shape =
            (0..xs[0].rank()).filter(|d| !self.dims.contains(d)).map(|d| xs[0].shape[d]).collect();
        Ok(xs.iter().map(|x| x.with_shape(&kept)).collect())
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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

    fn attrs(&self) -> Attrs {
        vec![("dimensions", ints(&self.dims))]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }

    fn cost(&self, args: &[&TensorType], outs: &Outs) -> Cost {
        let per_element = self.body.nodes.len().saturating_sub(self.body.params.len()) as f64;
        Cost { flops: args[0].elements() as f64 * per_element, bytes: moved_bytes(args, outs) }
    }
}
