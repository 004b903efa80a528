//! dot_general: sums of products over pairs of dimensions, batched over others.

use super::*;
use crate::require;
use smallvec::smallvec;
use systole_base::{DType, Dims, LiteralBuilder, Scalar};

impl DotGeneral {
    /// Dimensions of `a` that are neither batch nor contracted.
    pub fn lhs_free(&self, rank: usize) -> Dims {
        (0..rank).filter(|d| !self.lhs_batch.contains(d) && !self.lhs_contract.contains(d)).collect()
    }

    /// Dimensions of `b` that are neither batch nor contracted.
    pub fn rhs_free(&self, rank: usize) -> Dims {
        (0..rank).filter(|d| !self.rhs_batch.contains(d) && !self.rhs_contract.contains(d)).collect()
    }
}

fn distinct(batch: &[usize], contract: &[usize]) -> bool {
    let all: Vec<usize> = [batch, contract].concat();
    all.iter().enumerate().all(|(i, d)| !all[..i].contains(d))
}

impl OpRule for DotGeneral {
    named!("dot_general", Contract);

    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 2)?;
        let (a, b) = (args[0], args[1]);
        require!(self.lhs_batch.len() == self.rhs_batch.len(), "C1", "batch dimensions do not pair up");
        require!(
            self.lhs_contract.len() == self.rhs_contract.len(),
            "C2",
            "contracting dimensions do not pair up"
        );
        let below = |dims: &[usize], x: &TensorType| dims.iter().all(|d| *d < x.rank());
        require!(below(&self.lhs_batch, a), "C5", "batch dimensions are not below the rank of {a}");
        require!(below(&self.lhs_contract, a), "C6", "contracting dimensions are not below the rank of {a}");
        require!(below(&self.rhs_batch, b), "C7", "batch dimensions are not below the rank of {b}");
        require!(below(&self.rhs_contract, b), "C8", "contracting dimensions are not below the rank of {b}");
        require!(distinct(&self.lhs_batch, &self.lhs_contract), "C3", "dimensions of {a} are named twice");
        require!(distinct(&self.rhs_batch, &self.rhs_contract), "C4", "dimensions of {b} are named twice");
        for (&l, &r) in self.lhs_batch.iter().zip(&self.rhs_batch) {
            require!(a.shape[l] == b.shape[r], "C9", "batch sizes differ: {l} of {a}, {r} of {b}");
        }
        for (&l, &r) in self.lhs_contract.iter().zip(&self.rhs_contract) {
            require!(
                a.shape[l] == b.shape[r],
                "C10",
                "summed sizes differ: dimension {l} of {a} is {}, dimension {r} of {b} is {}",
                a.shape[l],
                b.shape[r]
            );
        }
        require!(a.dtype == b.dtype, "C13", "element types differ: {a} and {b}");
        require!(
            a.dtype.is_float() == self.element_type.is_float(),
            "C13",
            "{} products cannot sum to {}",
            a.dtype,
            self.element_type
        );
        let dims: Dims = self
            .lhs_batch
            .iter()
            .map(|&d| a.shape[d])
            .chain(self.lhs_free(a.rank()).iter().map(|&d| a.shape[d]))
            .chain(self.rhs_free(b.rank()).iter().map(|&d| b.shape[d]))
            .collect();
        Ok(smallvec![TensorType::new(self.element_type, &dims[..])])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let (a, b) = (args[0], args[1]);
        let (sa, sb) = (a.shape().strides(), b.shape().strides());
        let (fa, fb) = (self.lhs_free(a.shape().rank()), self.rhs_free(b.shape().rank()));
        let inner: systole_base::Shape = self.lhs_contract.iter().map(|&d| a.shape()[d]).collect();
        let batch = self.lhs_batch.len();
        let mut out = LiteralBuilder::new(outs[0].clone());
        for (i, index) in outs[0].shape.indices().enumerate() {
            let (bi, rest) = index.split_at(batch);
            let (ai, ci) = rest.split_at(fa.len());
            let dot = |dims: &[usize], at: &[usize], strides: &[usize]| -> usize {
                dims.iter().zip(at).map(|(&d, &i)| i * strides[d]).sum()
            };
            let base_a = dot(&self.lhs_batch, bi, &sa) + dot(&fa, ai, &sa);
            let base_b = dot(&self.rhs_batch, bi, &sb) + dot(&fb, ci, &sb);
            let pairs = inner.indices().map(|k| {
                let x = a.get(base_a + dot(&self.lhs_contract, &k, &sa));
                (x, b.get(base_b + dot(&self.rhs_contract, &k, &sb)))
            });
            out.set(i, sum_of_products(a.dtype(), self.element_type, pairs));
        }
        Ok(vec![out.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        let (a, b) = (&x[0], &x[1]);
        let dy = dy.convert(a.dtype());
        let (fa, fb) = (self.lhs_free(a.rank()), self.rhs_free(b.rank()));
        let nb = self.lhs_batch.len();
        let batch: Vec<usize> = (0..nb).collect();
        let rows: Vec<usize> = (nb..nb + fa.len()).collect();
        let cols: Vec<usize> = (nb + fa.len()..dy.rank()).collect();

        // da[batch, free a, contract] = Σ over b's free dims of dy · b, then back to a's order of dimensions.
        let da = dy.dot_general(b, &batch, &self.rhs_batch, &cols, &fb);
        let da_order = order_of(&self.rhs_contract);
        let da_dims: Vec<usize> = [
            &self.lhs_batch[..],
            &fa[..],
            &da_order.iter().map(|&k| self.lhs_contract[k]).collect::<Vec<_>>(),
        ]
        .concat();
        let db = dy.dot_general(a, &batch, &self.lhs_batch, &rows, &fa);
        let db_order = order_of(&self.lhs_contract);
        let db_dims: Vec<usize> = [
            &self.rhs_batch[..],
            &fb[..],
            &db_order.iter().map(|&k| self.rhs_contract[k]).collect::<Vec<_>>(),
        ]
        .concat();
        vec![Grad::Of(da.transpose(&inverse(&da_dims))), Grad::Of(db.transpose(&inverse(&db_dims)))]
    }

    fn attrs(&self) -> Attrs {
        use super::attr::Field;
        let list = |d: &[usize]| Field::List(d.iter().map(|&d| d as i64).collect());
        vec![(
            "dot_dimension_numbers",
            Attr::Struct(
                "dot",
                vec![
                    ("lhs_batching_dimensions", list(&self.lhs_batch)),
                    ("rhs_batching_dimensions", list(&self.rhs_batch)),
                    ("lhs_contracting_dimensions", list(&self.lhs_contract)),
                    ("rhs_contracting_dimensions", list(&self.rhs_contract)),
                ],
            ),
        )]
    }

    fn cost(&self, args: &[&TensorType], outs: &Outs) -> Cost {
        let inner: usize = self.lhs_contract.iter().map(|&d| args[0].shape[d]).product();
        Cost { flops: 2.0 * outs[0].elements() as f64 * inner as f64, bytes: moved_bytes(args, outs) }
    }
}

/// Σ xᵢ·yᵢ: floats in f64 and rounded once, integers exactly modulo the result's width.
pub(crate) fn sum_of_products(
    from: DType,
    to: DType,
    pairs: impl Iterator<Item = (Scalar, Scalar)>,
) -> Scalar {
    if from.is_float() {
        return Scalar::Float(pairs.map(|(x, y)| x.as_f64() * y.as_f64()).sum()).round_to(to);
    }
    if from == DType::Bool {
        return Scalar::Bool(pairs.fold(false, |any, (x, y)| any | (x.as_bool() & y.as_bool()))).round_to(to);
    }
    let sum = pairs.fold(0i64, |s, (x, y)| s.wrapping_add(x.as_i64().wrapping_mul(y.as_i64())));
    Scalar::Int(sum).round_to(to)
}

/// The positions of `dims` sorted by value: free dimensions come out in increasing order.
fn order_of(dims: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|&k| dims[k]);
    order
}

/// The permutation that undoes `dims`.
fn inverse(dims: &[usize]) -> Vec<usize> {
    let mut inv = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(i, &d)| inv[d] = i);
    inv
}
