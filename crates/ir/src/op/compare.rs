//! Ops compare, select and clamp.

use super::elementwise_samples::{COUNTS, SPECIAL, array, program};
use super::sample::{WIDE, sample};
use super::*;
use std::cmp::Ordering;

impl Direction {
    /// All six comparison operators with their names in StableHLO text.
    pub const ALL: [(Direction, &'static str); 6] = [
        (Direction::Eq, "EQ"),
        (Direction::Ne, "NE"),
        (Direction::Ge, "GE"),
        (Direction::Gt, "GT"),
        (Direction::Le, "LE"),
        (Direction::Lt, "LT"),
    ];

    /// Whether the comparison holds for an ordering; `None` is unordered (a NaN).
    pub fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Direction::Eq => order == Some(Ordering::Equal),
            Direction::Ne => order != Some(Ordering::Equal),
            Direction::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Direction::Gt => order == Some(Ordering::Greater),
            Direction::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Direction::Lt => order == Some(Ordering::Less),
        }
    }
}

impl CompareType {
    /// Default comparison type of an element type.
    pub fn of(dtype: DType) -> CompareType {
        match dtype {
            d if d.is_float() => CompareType::Float,
            d if d.is_signed_int() => CompareType::Signed,
            _ => CompareType::Unsigned,
        }
    }

    /// Name of the comparison operator in StableHLO text.
    pub fn name(self) -> &'static str {
        match self {
            CompareType::Float => "FLOAT",
            CompareType::TotalOrder => "TOTALORDER",
            CompareType::Signed => "SIGNED",
            CompareType::Unsigned => "UNSIGNED",
        }
    }
}

impl Compare {
    /// Compares one pair of elements with this operator.
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
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (a, b) = (args[0], args[1]);
        require!(a.dtype == b.dtype, "C1", "element types differ: {a} and {b}");
        require!(a.shape == b.shape, "C2", "shapes differ: {a} and {b}");
        let natural = CompareType::of(a.dtype);
        let fits = self.compare_type == natural
            || (natural == CompareType::Float && self.compare_type == CompareType::TotalOrder);
        require!(
            fits,
            "C3",
            "invalid compare_type {} for element type {}",
            self.compare_type.name(),
            a.dtype
        );
        Ok(smallvec![a.with_dtype(DType::Bool)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
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

    fn attrs(&self) -> AttrList {
        let spelled = Direction::ALL.iter().find(|d| d.0 == self.direction).map_or("", |d| d.1);
        vec![
            ("comparison_direction", Attr::Enum("comparison_direction", spelled.into())),
            ("compare_type", Attr::Enum("comparison_type", self.compare_type.name().into())),
        ]
    }
}

impl StructuralOp for Compare {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let word = s.keyword("comparison_direction", "comparison_direction")?;
        let direction = Direction::ALL.iter().find(|d| d.1 == word).map(|d| d.0);
        let direction = direction.ok_or_else(|| format!("unknown comparison direction `{word}`"))?;
        let operand = s.operands.first().ok_or("the operands are missing")?;
        let natural = CompareType::of(operand.dtype);
        let all = [CompareType::Float, CompareType::TotalOrder, CompareType::Signed, CompareType::Unsigned];
        let compare_type = if s.has("compare_type") {
            let word = s.keyword("compare_type", "comparison_type")?;
            let found = all.into_iter().find(|t| t.name() == word);
            found.ok_or_else(|| format!("unknown comparison type `{word}`"))?
        } else {
            natural
        };
        Ok(Compare { direction, compare_type })
    }

    fn samples() -> Vec<OpSample> {
        let case = |label: String, dtype: DType, rows: usize, op: Compare| {
            let few = ArgDomain::Uniform(-2.0, 2.0);
            let params = [(TensorType::new(dtype, [rows, 5]), few), (TensorType::new(dtype, [rows, 5]), few)];
            sample(label, &params, 0, false, |x| x[0].builder().emit(op, &[&x[0], &x[1]]))
        };
        let mut all = Vec::new();
        for (direction, name) in Direction::ALL {
            for dtype in DType::ALL {
                let op = Compare { direction, compare_type: CompareType::of(dtype) };
                all.push(case(format!("{name}_{dtype}"), dtype, 3, op));
            }
            for (compare_type, what) in [(CompareType::TotalOrder, "total"), (CompareType::Float, "special")]
            {
                let op = Compare { direction, compare_type };
                all.push(program(&format!("{what}_{name}"), |g| special_pairs(g, op)));
            }
        }
        let op = Compare { direction: Direction::Eq, compare_type: CompareType::Float };
        all.push(case("empty".into(), DType::F32, 0, op));
        all
    }
}

/// Compares every pair of special values.
fn special_pairs(g: &GraphBuilder, op: Compare) -> Vec<Tensor> {
    let n = SPECIAL.len();
    let pick = |f: &dyn Fn(usize) -> usize| {
        let values: Vec<f64> = (0..n * n).map(|i| SPECIAL[f(i)]).collect();
        g.constant(array(DType::F32, &[n * n], &values))
    };
    let (a, b) = (pick(&|i| i / n), pick(&|i| i % n));
    // Without the barrier XLA folds the comparison of the constants, always as FLOAT.
    let hidden = g.emit(OptimizationBarrier { stop_gradient: false }, &[&a, &b]);
    g.emit(op, &[&hidden[0], &hidden[1]])
}

impl OpRule for Select {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 3)?;
        let (p, t, f) = (args[0], args[1], args[2]);
        require!(p.dtype == DType::Bool, "-", "the predicate has type {p}, expected bool");
        require!(
            p.rank() == 0 || p.shape == t.shape,
            "C1",
            "the predicate has type {p}, expected a scalar or the shape of {t}"
        );
        require!(t == f, "C2", "on_true and on_false differ: {t} and {f}");
        Ok(smallvec![t.clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
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

impl StructuralOp for Select {
    fn parse(_: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Select)
    }

    fn samples() -> Vec<OpSample> {
        let case = |what: &str, dtype: DType, pred: &[usize], shape: &[usize]| {
            let ty = TensorType::new(dtype, shape);
            let params = [(TensorType::new(DType::Bool, pred), WIDE), (ty.clone(), COUNTS), (ty, COUNTS)];
            let label = format!("{what}{dtype}");
            sample(label, &params, 0, dtype == DType::F64, |x| {
                x[0].builder().emit(Select, &[&x[0], &x[1], &x[2]])
            })
        };
        let mut all: Vec<OpSample> = DType::ALL.into_iter().map(|d| case("", d, &[3, 5], &[3, 5])).collect();
        all.push(case("scalar_pred_", DType::F64, &[], &[3, 5]));
        all.push(case("empty_", DType::F32, &[5, 0], &[5, 0]));
        all
    }
}

impl OpRule for Clamp {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 3)?;
        let (lo, x, hi) = (args[0], args[1], args[2]);
        require!(
            lo.rank() == 0 || lo.shape == x.shape,
            "C1",
            "min has type {lo}, expected a scalar or the shape of {x}"
        );
        require!(
            hi.rank() == 0 || hi.shape == x.shape,
            "C2",
            "max has type {hi}, expected a scalar or the shape of {x}"
        );
        require!(lo.dtype == x.dtype && hi.dtype == x.dtype, "C3", "element types differ: {lo}, {x}, {hi}");
        require!(x.dtype != DType::Bool, "-", "not supported for bool");
        Ok(smallvec![x.clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
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

impl StructuralOp for Clamp {
    fn parse(_: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Clamp)
    }

    fn samples() -> Vec<OpSample> {
        let case = |what: &str, dtype: DType, bound: &[usize], shape: &[usize]| {
            let (ty, bound) = (TensorType::new(dtype, shape), TensorType::new(dtype, bound));
            let (low, high) = (ArgDomain::Uniform(-3.0, 2.0), ArgDomain::Uniform(2.5, 5.0));
            let params = [(bound.clone(), low), (ty, ArgDomain::Uniform(-8.0, 8.0)), (bound, high)];
            let label = format!("{what}{dtype}");
            sample(label, &params, 0, dtype == DType::F64, |x| vec![x[1].clamp(&x[0], &x[2])])
        };
        let dtypes = DType::ALL.into_iter().filter(|&d| d != DType::Bool);
        let mut all: Vec<OpSample> = dtypes.map(|d| case("", d, &[3, 5], &[3, 5])).collect();
        all.push(case("scalar_bounds_", DType::F64, &[], &[3, 5]));
        all.push(case("empty_", DType::F32, &[], &[0]));
        all
    }
}
