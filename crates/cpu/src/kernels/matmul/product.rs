//! What a step asks of a product: sizes, element types, how its operands lie.

use crate::kernel::product::{Epilogue, Roles, count, roles};
use crate::select::{Problem, Refusal};
use crate::simd::level::Target;
use systole_compile::Kernel as Plan;
use systole_ir::{DType, Op};

/// `[M, K] · [K, N] → [M, N]`, or a batch of such products.
pub struct Product {
    /// Rows are its free dimensions.
    pub left: Roles,
    /// Columns are its free dimensions.
    pub right: Roles,
    /// Element types of the operands, and of the result.
    pub types: [DType; 2],
    pub epilogue: Epilogue,
    pub target: Target,
}

impl Product {
    /// The product of a step.
    pub fn of(p: &Problem<'_>) -> Result<Product, Refusal> {
        let Plan::Op { op: Op::DotGeneral(d), bias } = &p.step.kernel else {
            return Err("it is no product".into());
        };
        let (a, b) = (&p.step.input_types[0], &p.step.input_types[1]);
        let left = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let right = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        let epilogue = Epilogue { bias: *bias, accumulate: false };
        Ok(Product { left, right, types: [a.dtype, d.element_type], epilogue, target: p.target })
    }

    /// Rows, columns, and products of an element.
    pub fn size(&self) -> [usize; 3] {
        [&self.left.free, &self.right.free, &self.left.inner].map(|dims| count(dims))
    }

    /// Refuses a bias.
    pub fn without_bias(self) -> Result<Product, Refusal> {
        if self.epilogue == Epilogue::default() { Ok(self) } else { Err("it adds a bias".into()) }
    }
}
