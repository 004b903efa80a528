//! Ops without operands: parameter, constant, iota.

use super::elementwise_samples::{SPECIAL, array, program};
use super::*;
use systole_base::bug;

impl OpRule for Parameter {
    lowered!(Leaf);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 0)?;
        Ok(smallvec![self.ty.clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        bug!("parameters are bound by the interpreter")
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn cost(&self, _: &[&TensorType], _: &ResultTypes) -> OpCost {
        OpCost::default()
    }
}

impl OpRule for Constant {
    lowered!(Leaf);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 0)?;
        Ok(smallvec![self.value.ty().clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        Ok(vec![self.value.clone()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn attrs(&self) -> AttrList {
        vec![("value", Attr::Dense(self.value.clone()))]
    }
    fn cost(&self, _: &[&TensorType], _: &ResultTypes) -> OpCost {
        OpCost::default()
    }
}

/// Not split: constants are inputs of a row block, and callers know their sharding.
impl StructuralOp for Constant {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Constant { value: s.dense("value")? })
    }

    fn samples() -> Vec<OpSample> {
        let values = [0.0, 1.0, -1.5, 100.25, 3e-5, 1e30];
        let mut all = Vec::new();
        for dtype in DType::ALL {
            all.push(program(&dtype.to_string(), |g| vec![g.constant(array(dtype, &[2, 3], &values))]));
            all.push(program(&format!("long_{dtype}"), |g| {
                let many: Vec<f64> = (0..45).map(|i| i as f64 * 0.7 - 9.0).collect();
                vec![g.constant(array(dtype, &[5, 9], &many))]
            }));
            all.push(program(&format!("equal_{dtype}"), |g| vec![g.constant(array(dtype, &[3], &[1.0; 3]))]));
            all.push(program(&format!("highest_{dtype}"), |g| {
                let ty = TensorType::scalar(dtype);
                vec![
                    g.constant(Literal::splat(ty.clone(), dtype.highest())),
                    g.constant(Literal::splat(ty, dtype.lowest())),
                ]
            }));
        }
        all.push(program("special", |g| vec![g.constant(array(DType::F32, &[7], &SPECIAL))]));
        all.push(program("empty", |g| vec![g.constant(array(DType::I16, &[2, 0, 3], &[]))]));
        all
    }
}

impl OpRule for Iota {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 0)?;
        require!(
            self.dim < self.ty.rank(),
            "C1",
            "iota_dimension {} must be below the rank {}",
            self.dim,
            self.ty.rank()
        );
        Ok(smallvec![self.ty.clone()])
    }
    fn eval(&self, _: &mut EvalCx, _: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, index) in outs[0].shape.indices().enumerate() {
            b.set(i, Scalar::Int(index[self.dim] as i64).convert_to(self.ty.dtype));
        }
        Ok(vec![b.finish()])
    }
    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![]
    }
    fn attrs(&self) -> AttrList {
        vec![("iota_dimension", Attr::Int(self.dim as i64))]
    }
}

impl StructuralOp for Iota {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Iota { dim: s.size("iota_dimension")?, ty: s.result(0)?.clone() })
    }

    fn samples() -> Vec<OpSample> {
        let case = |what: &str, dtype: DType, shape: &[usize], dim: usize| {
            program(&format!("{what}{dtype}"), |g| vec![g.iota(TensorType::new(dtype, shape), dim)])
        };
        let dtypes = DType::ALL.into_iter().filter(|&d| d != DType::Bool);
        let mut all: Vec<OpSample> = dtypes.map(|d| case("", d, &[3, 5], 1)).collect();
        all.extend([case("outer_", DType::I32, &[3, 5], 0), case("empty_", DType::F32, &[3, 0], 0)]);
        all
    }

    fn row_op(&self, _: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(&self.ty)?;
        RowOp::rows(Iota { dim: cut.dim(self.dim)?, ty: self.ty.with_shape(cut.shape(&self.ty)) }, [])
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(0, |d| d != self.dim)
    }

    fn shard(&self, along: FactorResult, parts: usize) -> Option<Op> {
        let FactorResult::Dim(d) = along else { return None };
        let ty = self.ty.with_shape(&shard_of(&self.ty.shape, d, parts)[..]);
        Some(Iota { ty, ..self.clone() }.into())
    }
}
