//! sort: sorts several operands together along one dimension by any comparator; argsort and top_k.

use super::elementwise_samples::{SPECIAL, array, program};
use super::sample::{WIDE, sample};
use super::*;
use systole_base::Error;

impl OpRule for Sort {
    lowered!(Move);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(!args.is_empty(), "C1", "expected at least one operand");
        for x in args {
            require!(x.shape == args[0].shape, "C3", "operand shapes differ: {} and {x}", args[0]);
        }
        require!(
            self.dim < args[0].rank(),
            "C4",
            "dimension {} must be below the rank {}",
            self.dim,
            args[0].rank()
        );
        let params = self.comparator.param_types();
        let pairs = args.iter().flat_map(|x| [x.dtype; 2]).map(TensorType::scalar);
        let fits = params.iter().cloned().eq(pairs)
            && self.comparator.result_types() == [TensorType::scalar(DType::Bool)];
        require!(fits, "C5", "the comparator takes {params:?}, expected pairs of elements of {args:?}");
        Ok(args.iter().map(|&x| x.clone()).collect())
    }

    fn result_count(&self, args: usize) -> usize {
        args
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let shape = args[0].shape();
        let (size, step) = (shape[self.dim], shape.strides()[self.dim]);
        let mut sorted: Vec<LiteralBuilder> = outs.iter().map(|t| LiteralBuilder::new(t.clone())).collect();
        for (first, index) in shape.indices().enumerate() {
            if index[self.dim] != 0 {
                continue;
            }
            let mut places: Vec<usize> = (0..size).map(|j| first + j * step).collect();
            merge_sort(&mut places, &mut |a, b| {
                let pairs: Vec<Scalar> = args.iter().flat_map(|x| [x.get(a), x.get(b)]).collect();
                Ok(cx.run_scalars(&self.comparator, &pairs)?[0].as_bool())
            })?;
            for (out, x) in sorted.iter_mut().zip(args) {
                places.iter().enumerate().for_each(|(j, &from)| out.set(first + j * step, x.get(from)));
            }
        }
        Ok(sorted.into_iter().map(LiteralBuilder::finish).collect())
    }

    /// Adds an iota operand unless there is one: sorted, it is the permutation that the derivative inverts.
    fn augment(&self, x: &[Tensor]) -> Option<(Op, Vec<Tensor>)> {
        if self.place_of_iota(x).is_some() {
            return None;
        }
        let ty = x[0].ty().with_dtype(DType::I32);
        let iota = x[0].builder().iota(ty, self.dim);
        let g = GraphBuilder::new("comparator");
        let param = |t: &Tensor| g.parameter(TensorType::scalar(t.dtype()), "element");
        let pairs: Vec<Tensor> = x.iter().flat_map(|t| [param(t), param(t)]).collect();
        param(&iota);
        param(&iota);
        let before = g.inline(&self.comparator, &pairs.iter().collect::<Vec<_>>());
        let comparator = g.finish(&before).ok()?;
        Some((Sort { comparator, ..self.clone() }.into(), vec![iota]))
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(k) = self.place_of_iota(x) else {
            systole_base::bug!("sort was not augmented before its derivative")
        };
        let differentiated: Vec<usize> = (0..x.len()).filter(|&i| dy[i].is_some()).collect();
        // Sorting by the permutation moves every cotangent back to the position of its element.
        let operands: Vec<&Tensor> = std::iter::once(&y[k]).chain(dy.iter().flatten()).collect();
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype()).collect();
        let back = Tensor::sort_by(&operands, self.dim, false, first_less(&dtypes, false));
        let mut grads = vec![Grad::Zero; x.len()];
        for (&i, dx) in differentiated.iter().zip(&back[1..]) {
            grads[i] = Grad::Of(dx.clone());
        }
        grads
    }

    fn attrs(&self) -> AttrList {
        vec![("dimension", Attr::Int(self.dim as i64)), ("is_stable", Attr::Bool(self.stable))]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.comparator])
    }

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let n = args[0].elements() as f64;
        let depth = (args[0].shape[self.dim].max(2) as f64).log2();
        OpCost { flops: n * depth, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for Sort {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let dim =
            if s.has("dimension") { s.size("dimension")? } else { s.result(0)?.rank().saturating_sub(1) };
        Ok(Sort { dim, stable: s.flag("is_stable")?, comparator: s.region(0)? })
    }

    fn samples() -> Vec<OpSample> {
        let case = |what: &str, dtype: DType, shape: &[usize], dim: usize, descending: bool| {
            let params = [(TensorType::new(dtype, shape), ArgDomain::Distinct(1.0))];
            sample(format!("{what}{dtype}"), &params, 0, dtype == DType::F64, |x| {
                vec![x[0].sort(dim, descending)]
            })
        };
        let mut all: Vec<OpSample> = DType::ALL.into_iter().map(|d| case("", d, &[3, 5], 1, false)).collect();
        all.extend([
            case("descending_", DType::F64, &[7, 3], 0, true),
            case("one_", DType::F64, &[1], 0, false),
            case("empty_", DType::F64, &[0, 3], 0, false),
        ]);
        let ty = TensorType::new(DType::F64, [5, 3]);
        let params =
            [(ty.with_dtype(DType::I32), ArgDomain::Uniform(0.0, 2.0)), (ty.clone(), WIDE), (ty, WIDE)];
        all.push(sample("by_equal_keys".into(), &params, 0, true, |x| {
            let g = GraphBuilder::new("comparator");
            let dtypes = [DType::I32, DType::I32, DType::F64, DType::F64, DType::F64, DType::F64];
            let p = dtypes.map(|d| g.parameter(TensorType::scalar(d), "element"));
            let Ok(by_key) = g.finish(&[p[0].less(&p[1])]) else {
                systole_base::bug!("cannot build the sample by_key")
            };
            Tensor::sort_by(&x.iter().collect::<Vec<_>>(), 0, true, by_key)
        }));
        all.push(program("special", |g| vec![g.constant(array(DType::F32, &[7], &SPECIAL)).sort(0, false)]));
        all
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let n = at.node.inputs.len();
        let op = Sort { dim: rows.cut(at.ty(0))?.dim(self.dim)?, ..self.clone() };
        RowOp::rows(op, first_by_rows(n, n))
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(at.node.inputs.len(), |d| d != self.dim)
    }
}

impl Sort {
    /// Index of an iota operand along the sorted dimension: sorted, it is the permutation.
    fn place_of_iota(&self, x: &[Tensor]) -> Option<usize> {
        let counts = |t: &Tensor| {
            let counts_along =
                |op: &Op| matches!(op, Op::Iota(i) if i.dim == self.dim && i.ty.dtype == DType::I32);
            !t.is_poisoned() && t.builder().with_node(t.id().index(), |n| counts_along(&n.op))
        };
        x.iter().position(counts)
    }
}

/// Merge sort: stable, and defined for any comparator, even one that is not a total order.
fn merge_sort(
    items: &mut [usize],
    before: &mut dyn FnMut(usize, usize) -> Result<bool, Error>,
) -> Result<()> {
    if items.len() < 2 {
        return Ok(());
    }
    let middle = items.len() / 2;
    merge_sort(&mut items[..middle], before)?;
    merge_sort(&mut items[middle..], before)?;
    let (left, right) = (items[..middle].to_vec(), items[middle..].to_vec());
    let (mut l, mut r) = (0, 0);
    for slot in items.iter_mut() {
        let take_right = l == left.len() || (r < right.len() && before(right[r], left[l])?);
        *slot = if take_right { right[r] } else { left[l] };
        (l, r) = if take_right { (l, r + 1) } else { (l + 1, r) };
    }
    Ok(())
}

/// Comparator of operands of `dtypes` by the first operand only; floats in total order, with NaN last.
fn first_less(dtypes: &[DType], descending: bool) -> Arc<Graph> {
    let g = GraphBuilder::new("comparator");
    let param = |&d: &DType| g.parameter(TensorType::scalar(d), "element");
    let pairs: Vec<Tensor> = dtypes.iter().flat_map(|d| [param(d), param(d)]).collect();
    let compare_type = match CompareType::of(dtypes[0]) {
        CompareType::Float => CompareType::TotalOrder,
        integers => integers,
    };
    let direction = if descending { Direction::Gt } else { Direction::Lt };
    let before = g.emit(Compare { direction, compare_type }, &[&pairs[0], &pairs[1]]);
    match g.finish(&before) {
        Ok(comparator) => comparator,
        Err(e) => systole_base::bug!("cannot build the comparator of {dtypes:?}: {e}"),
    }
}

/// Sorting by value. Stable; floats in total order (−0 before 0, NaN last in ascending order).
impl Tensor {
    /// `x: T[…] → T[…]`: sorts along `dim`.
    ///
    /// ```
    /// use systole_ir::{interp, DType::F32, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::new(F32, [4]), "x");
    /// let (top, places) = x.top_k(2);
    /// let graph = g.finish(&[x.sort(0, false), x.argsort(0, false), top, places]).unwrap();
    /// let x = Literal::from_slice([4], &[3f32, 1., 4., 2.]).unwrap();
    /// let out = interp::run(&graph, &[&x]).unwrap();
    /// assert_eq!(out[0].to_f32s(), [1., 2., 3., 4.]);
    /// assert_eq!(out[1].as_slice::<i32>().unwrap(), [1, 3, 0, 2]);
    /// assert_eq!(out[2].to_f32s(), [4., 3.]);
    /// assert_eq!(out[3].as_slice::<i32>().unwrap(), [2, 0]);
    /// ```
    #[track_caller]
    pub fn sort(&self, dim: usize, descending: bool) -> Tensor {
        Tensor::sort_by(&[self], dim, true, first_less(&[self.dtype()], descending)).remove(0)
    }

    /// `x: T[…] → i32[…]`: indices that sort the array along `dim`.
    #[track_caller]
    pub fn argsort(&self, dim: usize, descending: bool) -> Tensor {
        self.sort_with_places(dim, descending).1
    }

    /// `x: T[…, N] → (T[…, k], i32[…, k])`: the `k` largest elements of the last dimension in descending order, and
    /// their indices.
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let last = self.rank().saturating_sub(1);
        let (values, places) = self.sort_with_places(last, true);
        (values.slice_dim(last, 0, k), places.slice_dim(last, 0, k))
    }

    #[track_caller]
    fn sort_with_places(&self, dim: usize, descending: bool) -> (Tensor, Tensor) {
        let iota = self.builder().iota(self.ty().with_dtype(DType::I32), dim);
        let comparator = first_less(&[self.dtype(), DType::I32], descending);
        let mut sorted = Tensor::sort_by(&[self, &iota], dim, true, comparator);
        let places = sorted.remove(1);
        (sorted.remove(0), places)
    }
}
