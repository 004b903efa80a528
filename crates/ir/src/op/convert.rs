//! Changes of element type: convert, bitcast_convert, reduce_precision.

use super::*;
use crate::require;
use smallvec::smallvec;
use systole_base::{DType, LiteralBuilder, Scalar};

impl OpRule for Convert {
    named!("convert", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        Ok(smallvec![args[0].with_dtype(self.to)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &Outs) -> Result<Vec<Literal>> {
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

impl OpRule for BitcastConvert {
    named!("bitcast_convert", Move);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        let x = args[0];
        require!(
            (x.dtype == DType::Bool) == (self.to == DType::Bool),
            "C1",
            "bool has no bits to share with another type"
        );
        let (from, to) = (x.dtype.size(), self.to.size());
        let mut dims = x.shape.dims().to_vec();
        if from > to {
            dims.push(from / to);
        } else if from < to {
            let last = dims.pop();
            require!(last == Some(to / from), "C1", "the last dimension of {x} must be {}", to / from);
        }
        Ok(smallvec![TensorType::new(self.to, dims)])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        Ok(vec![Literal::from_bytes(outs[0].clone(), args[0].bytes())?])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero]
    }
}

impl ReducePrecision {
    /// The value at one element.
    pub fn apply(self, x: f64) -> f64 {
        if x.is_nan() && self.mantissa_bits == 0 {
            return f64::INFINITY.copysign(x); // no bit is left that tells NaN from infinity
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
    named!("reduce_precision", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        require!(args[0].dtype.is_float(), "-", "is not defined on {}", args[0].dtype);
        require!(self.exponent_bits >= 1, "C2", "exponent_bits must be at least 1");
        Ok(smallvec![args[0].clone()])
    }
    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for i in 0..outs[0].elements() {
            b.set(i, Scalar::Float(self.apply(args[0].get(i).as_f64())));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        vec![dy[0].clone().map_or(Grad::Zero, Grad::Of)]
    }
    fn attrs(&self) -> Attrs {
        vec![
            ("exponent_bits", Attr::Int32(self.exponent_bits as i32)),
            ("mantissa_bits", Attr::Int32(self.mantissa_bits as i32)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduce_precision_agrees_with_bf16_and_f16_on_normal_values() {
        let mut s = systole_base::rng::Stream::new(1, 2, 3);
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
