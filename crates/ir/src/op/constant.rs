//! Values without operands: parameters of the graph, constants, iota.

use super::*;
use crate::require;
use smallvec::smallvec;
use systole_base::{LiteralBuilder, Scalar, bug};

impl OpRule for Parameter {
    named!("parameter", Leaf);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 0)?;
        Ok(smallvec![self.ty.clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], _: &Outs) -> Result<Vec<Literal>> {
        bug!("parameters are bound by the interpreter")
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn cost(&self, _: &[&TensorType], _: &Outs) -> Cost {
        Cost::default()
    }
}

impl OpRule for Constant {
    named!("constant", Leaf);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 0)?;
        Ok(smallvec![self.value.ty().clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], _: &Outs) -> Result<Vec<Literal>> {
        Ok(vec![self.value.clone()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn attrs(&self) -> Attrs {
        vec![("value", Attr::Dense(self.value.clone()))]
    }
    fn cost(&self, _: &[&TensorType], _: &Outs) -> Cost {
        Cost::default()
    }
}

impl OpRule for Iota {
    named!("iota", Map);
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 0)?;
        require!(
            self.dim < self.ty.rank(),
            "C1",
            "iota_dimension {} is not below rank {}",
            self.dim,
            self.ty.rank()
        );
        Ok(smallvec![self.ty.clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, index) in outs[0].shape.indices().enumerate() {
            b.set(i, Scalar::Int(index[self.dim] as i64).convert_to(self.ty.dtype));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn attrs(&self) -> Attrs {
        vec![("iota_dimension", Attr::Int(self.dim as i64))]
    }
}
