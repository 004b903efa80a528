//! Element type conversions: convert, bitcast_convert, reduce_precision.

use super::elementwise_samples::{COUNTS, SPECIAL, array, program};
use super::sample::sample;
use super::*;

impl OpRule for Convert {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        Ok(smallvec![args[0].with_dtype(self.to)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        Ok(vec![args[0].convert(self.to)])
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        match &dy[0] {
            Some(dy) if self.to.is_float() => vec![Grad::Of(dy.convert(x[0].dtype()))],
            _ => vec![Grad::Zero],
        }
    }
    fn eval_scalar(&self, args: &[Scalar], _: DType) -> Option<Scalar> {
        Some(args[0].convert_to(self.to))
    }
}

impl StructuralOp for Convert {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Convert { to: s.result(0)?.dtype })
    }

    fn samples() -> Vec<OpSample> {
        let pairs = DType::ALL.into_iter().flat_map(|a| DType::ALL.into_iter().map(move |b| (a, b)));
        let case = |what: &str, (from, to): (DType, DType), size: usize| {
            let same = from == DType::F64 && to == DType::F64;
            let params = [(TensorType::new(from, [size]), COUNTS)];
            sample(format!("{what}{from}_{to}"), &params, 0, same, |x| {
                x[0].builder().emit(Convert { to }, &[&x[0]])
            })
        };
        let mut all: Vec<OpSample> = pairs.map(|p| case("", p, 7)).collect();
        all.push(case("empty_", (DType::F32, DType::I8), 0));
        for to in DType::ALL {
            let wide =
                [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e30, 0.1, 2.5, 3.5, -0.0, 65519.0];
            all.push(program(&format!("special_{to}"), |g| {
                g.emit(Convert { to }, &[&g.constant(array(DType::F32, &[wide.len()], &wide))])
            }));
        }
        all
    }
}

impl OpRule for BitcastConvert {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let x = args[0];
        require!(
            (x.dtype == DType::Bool) == (self.to == DType::Bool),
            "C1",
            "cannot bitcast between bool and another type"
        );
        let (from, to) = (x.dtype.size(), self.to.size());
        let mut dims = x.shape.dims().to_vec();
        if from > to {
            dims.push(from / to);
        } else if from < to {
            let last = dims.pop();
            require!(last == Some(to / from), "C1", "the last dimension of {x} must have size {}", to / from);
        }
        Ok(smallvec![TensorType::new(self.to, dims)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        Ok(vec![Literal::from_bytes(outs[0].clone(), args[0].bytes())?])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero]
    }
}

/// Not split: an element may become several elements along a new dimension.
impl StructuralOp for BitcastConvert {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(BitcastConvert { to: s.result(0)?.dtype })
    }

    fn samples() -> Vec<OpSample> {
        let case = |from: DType, shape: &[usize], to: DType| {
            let params = [(TensorType::new(from, shape), COUNTS)];
            sample(format!("{from}_{to}"), &params, 0, false, |x| vec![x[0].bitcast_convert(to)])
        };
        use DType::*;
        let same = [
            (Bool, Bool),
            (I8, U8),
            (U8, I8),
            (I16, BF16),
            (F16, U16),
            (U16, I16),
            (BF16, F16),
            (F32, U32),
            (I32, F32),
            (U32, I32),
            (F64, I64),
            (I64, U64),
            (U64, F64),
        ];
        let mut all: Vec<OpSample> = same.into_iter().map(|(a, b)| case(a, &[3, 5], b)).collect();
        all.extend([
            case(U32, &[2, 3], U8),
            case(F32, &[3], BF16),
            case(U8, &[3, 4], F32),
            case(U16, &[3, 4], U64),
            case(F64, &[0], F32),
        ]);
        all
    }
}

impl ReducePrecision {
    /// Evaluates reduce_precision on one element.
    pub fn apply(self, x: f64) -> f64 {
        if x.is_nan() && self.mantissa_bits == 0 {
            return f64::INFINITY.copysign(x); // no mantissa bit is left to tell NaN from infinity
        }
        if !x.is_finite() || x == 0.0 {
            return x;
        }
        let (e, m) = (self.exponent_bits.min(11) as i32, self.mantissa_bits.min(52));
        let bias = (1i32 << (e - 1)) - 1;
        let drop = 52 - m;
        let bits = x.to_bits();
        let half_and_odd = if drop == 0 { 0 } else { ((1u64 << drop) >> 1) - 1 + ((bits >> drop) & 1) };
        let rounded = f64::from_bits((bits + half_and_odd) & !((1u64 << drop) - 1));
        let exponent = ((rounded.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        if exponent > bias {
            f64::INFINITY.copysign(x)
        } else if exponent < 1 - bias {
            0f64.copysign(x) // denormals of the narrow format flush to zero, as in XLA
        } else {
            rounded
        }
    }
}

impl OpRule for ReducePrecision {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        require!(args[0].dtype.is_float(), "-", "not supported for element type {}", args[0].dtype);
        require!(self.exponent_bits >= 1, "C2", "exponent_bits must be at least 1");
        Ok(smallvec![args[0].clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for i in 0..outs[0].elements() {
            b.set(i, Scalar::Float(self.apply(args[0].get(i).as_f64())));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        vec![dy[0].clone().map_or(Grad::Zero, Grad::Of)]
    }
    fn attrs(&self) -> AttrList {
        vec![
            ("exponent_bits", Attr::Int32(self.exponent_bits as i32)),
            ("mantissa_bits", Attr::Int32(self.mantissa_bits as i32)),
        ]
    }
}

impl StructuralOp for ReducePrecision {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let bits = |name: &str| Ok::<u32, String>(s.size(name)?.min(64) as u32);
        Ok(ReducePrecision { exponent_bits: bits("exponent_bits")?, mantissa_bits: bits("mantissa_bits")? })
    }

    fn samples() -> Vec<OpSample> {
        let sized = |what: &str, dtype: DType, rows: usize, exponent: u32, mantissa: u32| {
            let params = [(TensorType::new(dtype, [rows, 5]), COUNTS)];
            let label = format!("{what}{dtype}_e{exponent}m{mantissa}");
            sample(label, &params, 0, false, |x| vec![x[0].reduce_precision(exponent, mantissa)])
        };
        let case = |dtype: DType, exponent: u32, mantissa: u32| sized("", dtype, 3, exponent, mantissa);
        use DType::*;
        let mut all = vec![
            case(F32, 5, 10),
            case(F32, 8, 7),
            case(F32, 4, 3),
            case(F32, 3, 0),
            case(F64, 8, 23),
            case(F64, 5, 2),
            case(F16, 4, 3),
            case(BF16, 5, 2),
            case(F32, 8, 23),
            sized("empty_", F32, 0, 5, 10),
        ];
        all.push(program("special", |g| {
            let edge = [65504.0, 65519.0, 65520.0, 6.1e-5, 6.0e-5, 1e-8, -1e-8];
            vec![g.constant(array(F32, &[14], &[SPECIAL, edge].concat())).reduce_precision(5, 10)]
        }));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduce_precision_agrees_with_bf16_and_f16_on_normal_values() {
        let mut s = systole_base::rng::RandomStream::new(1, 2, 3);
        for _ in 0..10_000 {
            let x = f32::from_bits(s.next_u32() & 0x3fff_ffff | 0x2000_0000) as f64;
            let bf16 = ReducePrecision { exponent_bits: 8, mantissa_bits: 7 }.apply(x);
            assert_eq!(bf16, Scalar::Float(x).round_to(DType::BF16).as_f64(), "{x}");
            if (1e-4..6e4).contains(&x) {
                let f16 = ReducePrecision { exponent_bits: 5, mantissa_bits: 10 }.apply(x);
                assert_eq!(f16, Scalar::Float(x).round_to(DType::F16).as_f64(), "{x}");
            }
        }
    }
}
