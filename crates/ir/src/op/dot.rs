//! dot_general: batched matrix product over any dimensions.

use super::sample::{WIDE, sample};
use super::*;

impl DotGeneral {
    /// Free dimensions of the left operand: neither batch nor contracting.
    pub fn lhs_free(&self, rank: usize) -> Dims {
        (0..rank).filter(|d| !self.lhs_batch.contains(d) && !self.lhs_contract.contains(d)).collect()
    }

    /// Free dimensions of the right operand: neither batch nor contracting.
    pub fn rhs_free(&self, rank: usize) -> Dims {
        (0..rank).filter(|d| !self.rhs_batch.contains(d) && !self.rhs_contract.contains(d)).collect()
    }
}

fn distinct(batch: &[usize], contract: &[usize]) -> bool {
    let all: Vec<usize> = [batch, contract].concat();
    all.iter().enumerate().all(|(i, d)| !all[..i].contains(d))
}

impl OpRule for DotGeneral {
    lowered!(Contract);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (a, b) = (args[0], args[1]);
        require!(
            self.lhs_batch.len() == self.rhs_batch.len(),
            "C1",
            "the operands must have the same number of batch dimensions"
        );
        require!(
            self.lhs_contract.len() == self.rhs_contract.len(),
            "C2",
            "the operands must have the same number of contracting dimensions"
        );
        let below = |dims: &[usize], x: &TensorType| dims.iter().all(|d| *d < x.rank());
        require!(below(&self.lhs_batch, a), "C5", "batch dimensions must be below the rank of {a}");
        require!(below(&self.lhs_contract, a), "C6", "contracting dimensions must be below the rank of {a}");
        require!(below(&self.rhs_batch, b), "C7", "batch dimensions must be below the rank of {b}");
        require!(below(&self.rhs_contract, b), "C8", "contracting dimensions must be below the rank of {b}");
        require!(distinct(&self.lhs_batch, &self.lhs_contract), "C3", "a dimension of {a} is listed twice");
        require!(distinct(&self.rhs_batch, &self.rhs_contract), "C4", "a dimension of {b} is listed twice");
        for (&l, &r) in self.lhs_batch.iter().zip(&self.rhs_batch) {
            require!(
                a.shape[l] == b.shape[r],
                "C9",
                "batch sizes differ: dimension {l} of {a}, dimension {r} of {b}"
            );
        }
        for (&l, &r) in self.lhs_contract.iter().zip(&self.rhs_contract) {
            require!(
                a.shape[l] == b.shape[r],
                "C10",
                "contracting sizes differ: dimension {l} of {a} has size {}, dimension {r} of {b} has size {}",
                a.shape[l],
                b.shape[r]
            );
        }
        require!(a.dtype == b.dtype, "C13", "element types differ: {a} and {b}");
        require!(
            a.dtype.is_float() == self.element_type.is_float(),
            "C13",
            "cannot accumulate products of {} in {}",
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

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
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

        // da[batch, free a, contract] = Σ over b's free dims of dy · b, then transposed to a's dimension order.
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

    fn attrs(&self) -> AttrList {
        use super::attr::AttrField;
        let list = |d: &[usize]| AttrField::List(d.iter().map(|&d| d as i64).collect());
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

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let inner: usize = self.lhs_contract.iter().map(|&d| args[0].shape[d]).product();
        OpCost { flops: 2.0 * outs[0].elements() as f64 * inner as f64, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for DotGeneral {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let list = |field: &str| s.field("dot_dimension_numbers", "dot", field);
        Ok(DotGeneral {
            lhs_batch: list("lhs_batching_dimensions")?,
            rhs_batch: list("rhs_batching_dimensions")?,
            lhs_contract: list("lhs_contracting_dimensions")?,
            rhs_contract: list("rhs_contracting_dimensions")?,
            element_type: s.result(0)?.dtype,
        })
    }

    fn samples() -> Vec<OpSample> {
        // Batch dimensions of both operands, then contracting dimensions of both.
        type Lists<'a> = [&'a [usize]; 4];
        let case = |what: &str, from: DType, to: DType, a: &[usize], b: &[usize], lists: Lists<'_>| {
            let [lhs_batch, rhs_batch, lhs_contract, rhs_contract] = lists.map(systole_base::Dims::from);
            let op = DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, element_type: to };
            let params = [(TensorType::new(from, a), WIDE), (TensorType::new(from, b), WIDE)];
            // Backends sum in another order and, in bf16 and f16, round differently.
            let label = format!("{what}_{from}_{to}");
            sample(label, &params, 32, from == DType::F64, |x| x[0].builder().emit(op, &[&x[0], &x[1]]))
        };
        use DType::*;
        let matrix: Lists<'_> = [&[], &[], &[1], &[0]];
        let mut all: Vec<OpSample> =
            DType::ALL.into_iter().map(|d| case("matrix", d, d, &[3, 5], &[5, 2], matrix)).collect();
        all.extend([
            case("batched", F64, F64, &[2, 3, 5], &[2, 5, 4], [&[0], &[0], &[2], &[1]]),
            case("any_order", F64, F64, &[5, 2, 3, 4], &[4, 3, 7, 2], [&[1], &[3], &[3, 2], &[0, 1]]),
            case("outer", F64, F64, &[3], &[5], [&[], &[], &[], &[]]),
            case("inner", F64, F64, &[7], &[7], [&[], &[], &[0], &[0]]),
            case("over_nothing", F64, F64, &[3, 0], &[0, 2], matrix),
            case("of_nothing", F64, F64, &[0, 3], &[3, 2], matrix),
            case("wide", BF16, F32, &[3, 5], &[5, 2], matrix),
            case("wide", F16, F32, &[3, 5], &[5, 2], matrix),
            case("wide", I8, I32, &[3, 5], &[5, 2], matrix),
            case("wide", U8, U32, &[3, 5], &[5, 2], matrix),
        ]);
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(0))?;
        if let (Some(lhs_batch), Some(rhs_batch)) =
            (cut.leading(&self.lhs_batch), cut.leading(&self.rhs_batch))
        {
            let op = DotGeneral {
                lhs_batch,
                rhs_batch,
                lhs_contract: cut.other_dims(&self.lhs_contract)?,
                rhs_contract: cut.other_dims(&self.rhs_contract)?,
                element_type: self.element_type,
            };
            return RowOp::rows(op, [RowUse::Rows, RowUse::Rows]);
        }
        if !self.lhs_batch.is_empty() {
            return None;
        }
        if let Some(lhs_contract) = cut.other_dims(&self.lhs_contract) {
            return RowOp::rows(DotGeneral { lhs_contract, ..self.clone() }, [RowUse::Rows, RowUse::Whole]);
        }
        // The rows are contracted: a sum over blocks, as in a weight gradient.
        let mut pairs: Vec<(usize, usize)> = vec![(0, 0)];
        let mut joined = 0;
        for (&l, &r) in self.lhs_contract.iter().zip(&self.rhs_contract) {
            match (cut.dim(l), cut.dim(r)) {
                (Some(l), Some(r)) => pairs.push((l, r)),
                (None, None) if l == r => joined += 1,
                _ => return None,
            }
        }
        if joined != cut.dims || self.element_type == DType::Bool {
            return None;
        }
        let op = DotGeneral {
            lhs_contract: pairs.iter().map(|p| p.0).collect(),
            rhs_contract: pairs.iter().map(|p| p.1).collect(),
            element_type: sum_type(self.element_type),
            ..self.clone()
        };
        RowOp::sum(op, [RowUse::Rows, RowUse::Rows])
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        let batch = self.lhs_batch.iter().zip(&self.rhs_batch).enumerate();
        let batch = batch.map(|(i, (&l, &r))| ShardingFactor::dim([Some(l), Some(r)], i));
        let (rows, columns) = (self.lhs_free(at.ty(0).rank()), self.rhs_free(at.ty(1).rank()));
        let first = self.lhs_batch.len();
        let left = rows.iter().enumerate().map(|(i, &l)| ShardingFactor::dim([Some(l), None], first + i));
        let right = columns.iter().enumerate();
        let right = right.map(|(i, &r)| ShardingFactor::dim([None, Some(r)], first + rows.len() + i));
        let summed = self.lhs_contract.iter().zip(&self.rhs_contract);
        let summed = summed.map(|(&l, &r)| ShardingFactor::fold([Some(l), Some(r)], Monoid::Add));
        batch.chain(left).chain(right).chain(summed).collect()
    }

    fn shard(&self, along: FactorResult, _: usize) -> Option<Op> {
        let element_type = sum_type(self.element_type);
        matches!(along, FactorResult::Fold(_)).then(|| DotGeneral { element_type, ..self.clone() }.into())
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

/// Positions of `dims` sorted by value, so that free dimensions come out in increasing order.
fn order_of(dims: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|&k| dims[k]);
    order
}

/// Inverse permutation of `dims`.
fn inverse(dims: &[usize]) -> Vec<usize> {
    let mut inv = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(i, &d)| inv[d] = i);
    inv
}
