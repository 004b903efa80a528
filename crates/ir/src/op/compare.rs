//! Ops around bool: compare, select, clamp.

use super::*;
use crate::require;
use smallvec::smallvec;
use systole_base::{DType, LiteralBuilder, Scalar};

impl Compare {
    /// The relation at one pair of elements.
    pub fn apply(self, a: Scalar, b: Scalar) -> bool {
        let order = match (a, b) {
            (Scalar::Float(a), Scalar::Float(b)) if self.compare_type == CompareType::TotalOrder => {
                Some(a.total_cmp(&b))
            }
            (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(&b),
            (Scalar::Uint(a), Scalar::Uint(b)) => Some(a.cmp(&b)),
            _ => Some(a.as_i64().cmp(&b.as_i64())),
        };
        self.direction.holds(order)
    }
}

impl OpRule for Compare {
    named!("compare", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 2)?;
        let (a, b) = (args[0], args[1]);
        require!(a.dtype == b.dtype, "C1", "element types differ: {a} and {b}");
        require!(a.shape == b.shape, "C2", "shapes differ: {a} and {b}");
        let natural = CompareType::of(a.dtype);
        let fits = self.compare_type == natural
            || (natural == CompareType::Float && self.compare_type == CompareType::TotalOrder);
        require!(fits, "C3", "compare_type {} does not fit {}", self.compare_type.name(), a.dtype);
        Ok(smallvec![a.with_dtype(DType::Bool)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for i in 0..outs[0].elements() {
            b.set(i, Scalar::Bool(self.apply(args[0].get(i), args[1].get(i))));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero, Grad::Zero]
    }
    fn eval_scalar(&self, args: &[Scalar], _: DType) -> Option<Scalar> {
        Some(Scalar::Bool(self.apply(args[0], args[1])))
    }

    fn attrs(&self) -> Attrs {
        let spelled = Direction::ALL.iter().find(|d| d.0 == self.direction).map_or("", |d| d.1);
        vec![
            ("comparison_direction", Attr::Enum("comparison_direction", spelled.into())),
            ("compare_type", Attr::Enum("comparison_type", self.compare_type.name().into())),
        ]
    }
}

impl OpRule for Select {
    named!("select", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 3)?;
        let (p, t, f) = (args[0], args[1], args[2]);
        require!(p.dtype == DType::Bool, "-", "the predicate is {p}, not bool");
        require!(p.rank() == 0 || p.shape == t.shape, "C1", "predicate {p} fits neither a scalar nor {t}");
        require!(t == f, "C2", "on_true and on_false differ: {t} and {f}");
        Ok(smallvec![t.clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        let scalar = args[0].shape().rank() == 0;
        for i in 0..outs[0].elements() {
            let side = if args[0].get(if scalar { 0 } else { i }).as_bool() { 1 } else { 2 };
            b.set(i, args[side].get(i));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero, Grad::Zero] };
        let zero = dy.zeros_like();
        vec![Grad::Zero, Grad::Of(x[0].select(dy, &zero)), Grad::Of(x[0].select(&zero, dy))]
    }
    fn eval_scalar(&self, args: &[Scalar], _: DType) -> Option<Scalar> {
        Some(args[if args[0].as_bool() { 1 } else { 2 }])
    }
}

impl OpRule for Clamp {
    named!("clamp", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 3)?;
        let (lo, x, hi) = (args[0], args[1], args[2]);
        require!(lo.rank() == 0 || lo.shape == x.shape, "C1", "min {lo} fits neither a scalar nor {x}");
        require!(hi.rank() == 0 || hi.shape == x.shape, "C2", "max {hi} fits neither a scalar nor {x}");
        require!(lo.dtype == x.dtype && hi.dtype == x.dtype, "C3", "element types differ: {lo}, {x}, {hi}");
        require!(x.dtype != DType::Bool, "-", "is not defined on bool");
        Ok(smallvec![x.clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        let pick = |a: &Literal, i: usize| a.get(if a.shape().rank() == 0 { 0 } else { i });
        let dtype = outs[0].dtype;
        for i in 0..outs[0].elements() {
            let raised = Binary::Maximum.apply(dtype, args[1].get(i), pick(args[0], i));
            b.set(i, Binary::Minimum.apply(dtype, raised, pick(args[2], i)));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero, Grad::Zero] };
        let lo = x[0].broadcast_to(dy.shape());
        let hi = x[2].broadcast_to(dy.shape());
        let zero = dy.zeros_like();
        let below = x[1].less(&lo);
        let above = x[1].greater(&hi);
        let bound = |side: &Tensor, arg: &Tensor| {
            let g = side.select(dy, &zero);
            if arg.rank() == 0 && g.rank() > 0 { g.sum_all() } else { g }
        };
        vec![
            Grad::Of(bound(&below, &x[0])),
            Grad::Of(below.select(&zero, &above.select(&zero, dy))),
            Grad::Of(bound(&above, &x[2])),
        ]
    }
}
