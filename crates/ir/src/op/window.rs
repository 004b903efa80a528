//! Sliding windows: reduce_window (pooling, cumulative sums) and select_and_scatter (gradient of max pooling).

use super::attr::ints;
use super::reduce::check_fold_body;
use super::*;
use crate::grad;

impl Window {
    /// Creates a window without dilation. Each argument has one entry per dimension of the operand.
    pub fn new(dimensions: &[usize], strides: &[usize], padding: &[[i64; 2]]) -> Window {
        Window {
            dimensions: dimensions.into(),
            strides: strides.into(),
            base_dilations: smallvec![1; dimensions.len()],
            window_dilations: smallvec![1; dimensions.len()],
            padding: padding.into(),
        }
    }

    /// The window along dimension `d` of an operand.
    pub(crate) fn along(&self, d: usize, shape: &Shape) -> WindowDim {
        WindowDim {
            size: shape[d],
            window: self.dimensions[d],
            stride: self.strides[d],
            base_dilation: self.base_dilations[d],
            window_dilation: self.window_dilations[d],
            padding: self.padding[d],
        }
    }

    /// Index in the operand of window element `k` of result element `out`; `None` in padding and holes.
    pub(crate) fn source(&self, shape: &Shape, out: &[usize], k: &[usize]) -> Option<usize> {
        let at = (0..shape.rank()).map(|d| self.along(d, shape).source(out[d], k[d]));
        at.zip(shape.iter()).try_fold(0, |linear, (i, &size)| Some(linear * size + i?))
    }

    /// Whether windows have one element along dimension `d` and each element is in exactly one window.
    fn is_single(&self, d: usize) -> bool {
        self.dimensions[d] == 1
            && self.strides[d] == 1
            && self.base_dilations[d] == 1
            && self.window_dilations[d] == 1
            && self.padding[d] == [0, 0]
    }

    fn has_holes(&self) -> bool {
        self.base_dilations.iter().chain(&self.window_dilations).any(|&d| d != 1)
    }
}

/// A window along one dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowDim {
    pub(crate) size: usize,
    pub(crate) window: usize,
    pub(crate) stride: usize,
    pub(crate) base_dilation: usize,
    pub(crate) window_dilation: usize,
    pub(crate) padding: [i64; 2],
}

/// Extent of `n` elements with this dilation; `None` if it overflows.
fn reach(n: usize, dilation: usize) -> Option<i64> {
    let Some(steps) = n.checked_sub(1) else { return Some(0) };
    i64::try_from(steps.checked_mul(dilation)?).ok()?.checked_add(1)
}

/// Like [`reach`], for sizes that [`WindowDim::count`] has accepted.
pub(super) fn reach_of(n: usize, dilation: usize) -> i64 {
    reach(n, dilation).unwrap_or(i64::MAX)
}

impl WindowDim {
    /// Number of window positions; `None` if a size overflows.
    pub(crate) fn count(&self) -> Option<usize> {
        let (base, window) =
            (reach(self.size, self.base_dilation)?, reach(self.window, self.window_dilation)?);
        // Checked so that later sums of these cannot overflow either.
        self.padding[0].checked_neg()?;
        let padded = base.checked_add(self.padding[1])?.checked_add(self.padding[0])?;
        if padded == 0 || window > padded {
            return Some(0);
        }
        let steps = usize::try_from(padded - window).ok()? / self.stride;
        steps.checked_add(1)
    }

    /// Operand index of window element `k` at position `out`; `None` in padding and holes.
    pub(crate) fn source(&self, out: usize, k: usize) -> Option<usize> {
        let at = (out * self.stride + k * self.window_dilation) as i64 - self.padding[0];
        let at = usize::try_from(at).ok()?;
        (at % self.base_dilation == 0 && at / self.base_dilation < self.size).then(|| at / self.base_dilation)
    }

    /// Padding of the cotangent (of `out` elements, dilated by the stride) so that its window sums give the operand's
    /// cotangent: every operand element meets every window element once.
    pub(crate) fn cotangent_padding(&self, out: usize) -> [i64; 2] {
        let window = reach_of(self.window, self.window_dilation);
        let low = window - 1 - self.padding[0];
        let base = reach_of(self.size, self.base_dilation);
        [low, base + window - 1 - reach_of(out, self.stride) - low]
    }

    /// Padding of the operand so that windows of `out` elements with this stride give the window's cotangent.
    pub(crate) fn window_cotangent_padding(&self, out: usize) -> [i64; 2] {
        let [low, _] = self.padding;
        let window = reach_of(self.window, self.window_dilation);
        [low, reach_of(out, self.stride) + window - 1 - reach_of(self.size, self.base_dilation) - low]
    }
}

/// Creates the type with these sizes; violates constraint `label` if its size in bytes overflows.
pub(crate) fn checked_type(
    label: &'static str,
    dtype: DType,
    dims: &[usize],
) -> Result<TensorType, SpecConstraint> {
    let ty = TensorType::new(dtype, dims);
    let bytes = ty.shape.checked_elements().and_then(|n| n.checked_mul(dtype.size()));
    match bytes {
        Some(n) if isize::try_from(n).is_ok() => Ok(ty),
        _ => Err(SpecConstraint::new(label, format!("the result {ty} is too large"))),
    }
}

impl ReduceWindow {
    fn check_window(&self, n: usize) -> Result<(), SpecConstraint> {
        let w = &self.window;
        let sized = |v: &[usize]| v.len() == n;
        let positive = |v: &[usize]| v.iter().all(|&s| s > 0);
        require!(sized(&w.dimensions), "C4", "got {} window_dimensions for rank {n}", w.dimensions.len());
        require!(positive(&w.dimensions), "C5", "window_dimensions must be positive");
        require!(sized(&w.strides), "C6", "got {} window_strides for rank {n}", w.strides.len());
        require!(positive(&w.strides), "C7", "window_strides must be positive");
        require!(
            sized(&w.base_dilations),
            "C8",
            "got {} base_dilations for rank {n}",
            w.base_dilations.len()
        );
        require!(positive(&w.base_dilations), "C9", "base_dilations must be positive");
        require!(
            sized(&w.window_dilations),
            "C10",
            "got {} window_dilations for rank {n}",
            w.window_dilations.len()
        );
        require!(positive(&w.window_dilations), "C11", "window_dilations must be positive");
        require!(w.padding.len() == n, "C12", "got {} padding pairs for rank {n}", w.padding.len());
        Ok(())
    }

    /// Gradient of a window sum: windows over the padded, dilated cotangent.
    fn sum_gradient(&self, x: &Tensor, dy: &Tensor) -> Tensor {
        let w = &self.window;
        let rank = x.rank();
        let pads: Vec<[i64; 2]> =
            (0..rank).map(|d| w.along(d, x.shape()).cotangent_padding(dy.shape()[d])).collect();
        let low: Vec<i64> = pads.iter().map(|p| p[0]).collect();
        let high: Vec<i64> = pads.iter().map(|p| p[1]).collect();
        let interior: Vec<usize> = w.strides.iter().map(|s| s - 1).collect();
        let spread = dy.pad(&dy.scalar_like(0.0), &low, &high, &interior);
        let window = Window {
            strides: w.base_dilations.clone(),
            base_dilations: smallvec![1; rank],
            padding: vec![[0, 0]; rank],
            ..w.clone()
        };
        Monoid::Add.over_windows(&spread, window)
    }

    /// Gradient of a window maximum or minimum `y` without contributing initial value. The cotangent of each window
    /// goes to its first extreme element in row-major order, as in XLA and TensorFlow.
    fn extreme_gradient(&self, monoid: Monoid, x: &Tensor, y: &Tensor, dy: &Tensor) -> Tensor {
        let w = &self.window;
        if x.rank() == 0 {
            // One window of one element. (XLA's CPU backend aborts on a select_and_scatter of rank 0.)
            return dy.clone();
        }
        if !w.has_holes() {
            let direction = if monoid == Monoid::Maximum { Direction::Ge } else { Direction::Le };
            let op = SelectAndScatter {
                dimensions: w.dimensions.clone(),
                strides: w.strides.clone(),
                padding: w.padding.clone(),
                select: comparison(direction, x.dtype()),
                scatter: Monoid::Add.body(x.dtype()),
            };
            return x.builder().emit(op, &[x, dy, &dy.scalar_like(0.0)]).remove(0);
        }
        let patches = x.patches(w, monoid.identity(x.dtype()));
        let spread = |t: &Tensor| t.broadcast_except(patches.shape(), &[0]);
        let place = x.builder().iota(patches.ty().with_dtype(DType::I32), 0);
        let none = x.builder().full(place.ty(), patches.dim(0) as f64);
        let first = patches.equal(&spread(y)).select(&place, &none).reduce_min(&[0]);
        let dp = place.equal(&spread(&first)).select(&spread(dy), &patches.zeros_like());
        grad::vjp(&[&patches], &[&dp], &[x]).remove(0)
    }

    /// Gradients of a maximum or minimum. If the initial value is not the constant identity, it gets the cotangent of
    /// the windows where it exceeds all elements.
    fn extreme_vjp(&self, monoid: Monoid, x: &[Tensor], y: &Tensor, dy: &Tensor) -> Vec<Grad> {
        let (x, init) = (&x[0], &x[1]);
        if is_constant(init, monoid.identity(x.dtype())) {
            return vec![Grad::Of(self.extreme_gradient(monoid, x, y, dy)), Grad::Zero];
        }
        let plain = monoid.over_windows(x, self.window.clone());
        let wins = if monoid == Monoid::Maximum { init.greater(&plain) } else { init.less(&plain) };
        let zero = dy.zeros_like();
        let dx = self.extreme_gradient(monoid, x, &plain, &wins.select(&zero, dy));
        vec![Grad::Of(dx), Grad::Of(wins.select(dy, &zero).sum_all())]
    }

    /// Gradients of a product: expands windows to patches and reduces those.
    fn product_vjp(&self, x: &[Tensor], dy: &Tensor) -> Vec<Grad> {
        let (x, init) = (&x[0], &x[1]);
        let patches = x.patches(&self.window, Scalar::of(x.dtype(), 1.0));
        let fold = Reduce { dims: smallvec![0], body: self.body.clone() };
        let product = x.builder().emit(fold.clone(), &[&patches, init]);
        // Applies the vjp rule directly instead of differentiating nodes, because operand and initial value may depend
        // on each other.
        let mut grads = fold.vjp(&[patches.clone(), init.clone()], &product, &[Some(dy.clone())]);
        if let Grad::Of(dp) = &grads[0] {
            grads[0] = Grad::Of(grad::vjp(&[&patches], &[dp], &[x]).remove(0));
        }
        grads
    }
}

/// Whether `t` is a rank-0 constant of this value.
fn is_constant(t: &Tensor, value: Scalar) -> bool {
    t.builder().with_node(t.id().index(), |n| match &n.op {
        Op::Constant(c) => c.value.shape().rank() == 0 && c.value.get(0) == value,
        _ => false,
    })
}

/// Body `(a, b) → a direction b` over scalars of `dtype`.
fn comparison(direction: Direction, dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("select");
    let a = g.parameter(TensorType::scalar(dtype), "a");
    let b = g.parameter(TensorType::scalar(dtype), "b");
    match g.finish(&[a.compare(&b, direction)]) {
        Ok(body) => body,
        Err(e) => systole_base::bug!("comparison over {dtype}: {e}"),
    }
}

impl OpRule for ReduceWindow {
    lowered!(Fold);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let paired = !args.is_empty() && args.len().is_multiple_of(2);
        require!(paired, "C1", "expected one initial value per input");
        let (xs, inits) = args.split_at(args.len() / 2);
        let first = xs[0];
        for (x, init) in xs.iter().zip(inits) {
            require!(x.shape == first.shape, "C2", "input shapes differ: {x} and {first}");
            let fits = init.rank() == 0 && init.dtype == x.dtype;
            require!(fits, "C3", "the initial value of {x} has type {init}, expected {}[]", x.dtype);
        }
        self.check_window(first.rank())?;
        let dtypes: Vec<_> = xs.iter().map(|x| x.dtype).collect();
        check_fold_body(&self.body, &dtypes).map_err(|c| SpecConstraint::new("C13", c.message))?;
        let mut dims = Dims::new();
        for d in 0..first.rank() {
            let count = self.window.along(d, &first.shape).count();
            require!(count.is_some(), "C15", "the padded size of dimension {d} overflows");
            dims.push(count.unwrap_or(0));
        }
        xs.iter().map(|x| checked_type("C15", x.dtype, &dims)).collect()
    }

    fn result_count(&self, args: usize) -> usize {
        args / 2
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let (xs, inits) = args.split_at(outs.len());
        let shape = xs[0].shape().clone();
        let window = Shape::new(&self.window.dimensions);
        let mut results: Vec<LiteralBuilder> = outs.iter().map(|t| LiteralBuilder::new(t.clone())).collect();
        for (i, out) in outs[0].shape.indices().enumerate() {
            let mut acc: Vec<Scalar> = inits.iter().map(|v| v.get(0)).collect();
            for k in window.indices() {
                let Some(at) = self.window.source(&shape, &out, &k) else { continue };
                acc.extend(xs.iter().map(|x| x.get(at)));
                acc = cx.run_scalars(&self.body, &acc)?;
            }
            results.iter_mut().zip(acc).for_each(|(b, v)| b.set(i, v));
        }
        Ok(results.into_iter().map(LiteralBuilder::finish).collect())
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(monoid) = Monoid::of(&self.body) else {
            let why = "the body of this reduce_window is not a single add, multiply, minimum or maximum";
            return vec![Grad::None { why }; x.len()];
        };
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        if dy.ty().elements() == 0 {
            return vec![Grad::Zero, Grad::Zero];
        }
        match monoid {
            // Every window is its initial value: the operand has no gradient.
            _ if x[0].ty().elements() == 0 => vec![Grad::Zero, Grad::Of(dy.sum_all())],
            Monoid::Add => vec![Grad::Of(self.sum_gradient(&x[0], dy)), Grad::Of(dy.sum_all())],
            Monoid::Minimum | Monoid::Maximum => self.extreme_vjp(monoid, x, &y[0], dy),
            Monoid::Multiply => self.product_vjp(x, dy),
            Monoid::And | Monoid::Or => vec![Grad::Zero, Grad::Zero],
        }
    }

    fn attrs(&self) -> AttrList {
        let w = &self.window;
        vec![
            ("window_dimensions", ints(&w.dimensions)),
            ("window_strides", ints(&w.strides)),
            ("base_dilations", ints(&w.base_dilations)),
            ("window_dilations", ints(&w.window_dilations)),
            ("padding", Attr::Pairs(w.padding.clone())),
        ]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }

    /// One run of the body per window element, including padding and holes.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let window: f64 = self.window.dimensions.iter().map(|&w| w as f64).product();
        let flops = outs[0].elements() as f64 * window * body_work(&self.body);
        OpCost { flops, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for ReduceWindow {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let dimensions = s.sizes("window_dimensions")?;
        let n = dimensions.len();
        let window = Window {
            strides: s.sizes_or_ones("window_strides", n)?,
            base_dilations: s.sizes_or_ones("base_dilations", n)?,
            window_dilations: s.sizes_or_ones("window_dilations", n)?,
            padding: s.pairs("padding", n)?,
            dimensions,
        };
        Ok(ReduceWindow { window, body: s.region(0)? })
    }

    fn samples() -> Vec<OpSample> {
        reduce_window_samples()
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(0))?;
        let own = &self.window;
        if !cut.all(|d| own.is_single(d)) {
            return None;
        }
        let window = Window {
            dimensions: cut.sizes(&own.dimensions, 1),
            strides: cut.sizes(&own.strides, 1),
            base_dilations: cut.sizes(&own.base_dilations, 1),
            window_dilations: cut.sizes(&own.window_dilations, 1),
            padding: cut.list(&own.padding, [0, 0]),
        };
        let n = at.node.inputs.len();
        RowOp::rows(ReduceWindow { window, body: self.body.clone() }, first_by_rows(n / 2, n / 2 * 2))
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(at.node.inputs.len() / 2, |d| self.window.is_single(d))
    }
}

/// Operations of one run of a scalar body.
fn body_work(body: &Graph) -> f64 {
    body.nodes.len().saturating_sub(body.params.len()) as f64
}

impl SelectAndScatter {
    /// Whether windows have one element along dimension `d` and each element is in exactly one window.
    fn is_single(&self, d: usize) -> bool {
        self.dimensions[d] == 1 && self.strides[d] == 1 && self.padding[d] == [0, 0]
    }

    /// Returns the sliding window of select_and_scatter, without dilation.
    pub fn window(&self) -> Window {
        Window::new(&self.dimensions, &self.strides, &self.padding)
    }

    fn check_window(&self, n: usize) -> Result<(), SpecConstraint> {
        let positive = |v: &[usize]| v.iter().all(|&s| s > 0);
        require!(
            self.dimensions.len() == n,
            "C4",
            "got {} window_dimensions for rank {n}",
            self.dimensions.len()
        );
        require!(positive(&self.dimensions), "C5", "window_dimensions must be positive");
        require!(self.strides.len() == n, "C6", "got {} window_strides for rank {n}", self.strides.len());
        require!(positive(&self.strides), "C7", "window_strides must be positive");
        require!(self.padding.len() == n, "C8", "got {} padding pairs for rank {n}", self.padding.len());
        Ok(())
    }

    /// Index of the element of window `out` that `select` keeps; `None` if the window has no elements.
    fn selected(&self, cx: &mut EvalCx, x: &Literal, out: &[usize]) -> Result<Option<usize>> {
        let window = self.window();
        let mut kept: Option<usize> = None;
        for k in Shape::new(&self.dimensions).indices() {
            let Some(at) = window.source(x.shape(), out, &k) else { continue };
            let keeps = match kept {
                Some(kept) => cx.run_scalars(&self.select, &[x.get(kept), x.get(at)])?[0].as_bool(),
                None => false,
            };
            if !keeps {
                kept = Some(at);
            }
        }
        Ok(kept)
    }

    /// `→ J[…']`: row-major index in `x` of the element that each window selects, −1 if there is none.
    fn selected_positions(&self, x: &Tensor) -> Tensor {
        let places = if x.ty().elements() < i32::MAX as usize { DType::I32 } else { DType::I64 };
        let g = x.builder();
        let flat = g.iota(TensorType::new(places, [x.ty().elements()]), 0).reshape(x.shape());
        let inits = [x.scalar_like(0.0), g.scalar(places, -1.0)];
        match self.selection_body(x.dtype(), places) {
            Ok(body) => {
                let found = Tensor::reduce_window(&[x, &flat], &[&inits[0], &inits[1]], self.window(), body);
                found[1].clone()
            }
            Err(e) => x.fail(e),
        }
    }

    /// Body `(kept, index, candidate, its index) → (kept, index)` using `select`; a negative index means none.
    fn selection_body(&self, dtype: DType, places: DType) -> Result<Arc<Graph>> {
        let g = GraphBuilder::new("body");
        let scalar = |dtype, name: &str| g.parameter(TensorType::scalar(dtype), name);
        let (kept, place) = (scalar(dtype, "kept"), scalar(places, "place"));
        let (other, other_place) = (scalar(dtype, "candidate"), scalar(places, "candidate_place"));
        let zero = place.scalar_like(0.0);
        let better = g.inline(&self.select, &[&kept, &other]).remove(0);
        let keep = better.and(&place.greater_equal(&zero)).or(&other_place.less(&zero));
        g.finish(&[keep.select(&kept, &other), keep.select(&place, &other_place)])
    }
}

impl OpRule for SelectAndScatter {
    lowered!(Fold);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 3)?;
        let (x, source, init) = (args[0], args[1], args[2]);
        require!(x.dtype == source.dtype, "C1", "element types differ: {x} and {source}");
        let fits = init.rank() == 0 && init.dtype == x.dtype;
        require!(fits, "C3", "the initial value of {x} has type {init}, expected {}[]", x.dtype);
        self.check_window(x.rank())?;
        let window = self.window();
        let counts: Option<Dims> = (0..x.rank()).map(|d| window.along(d, &x.shape).count()).collect();
        let expected = counts.map(|c| source.with_shape(&c[..]));
        require!(
            expected.as_ref() == Some(source),
            "C2",
            "the source has type {source}, but the windows over {x} give {}",
            expected.map_or("too many elements".into(), |t| t.to_string())
        );
        let scalar = TensorType::scalar(x.dtype);
        let pair = [scalar.clone(), scalar.clone()];
        let picks = self.select.param_types() == pair
            && self.select.result_types() == [TensorType::scalar(DType::Bool)];
        require!(picks, "C9", "select must compare two scalars of {}", x.dtype);
        let folds = self.scatter.param_types() == pair && self.scatter.result_types() == [scalar];
        require!(folds, "C10", "scatter must combine scalars of {}", x.dtype);
        Ok(smallvec![x.clone()])
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let (x, source) = (args[0], args[1]);
        let mut b = LiteralBuilder::new(outs[0].clone());
        (0..outs[0].elements()).for_each(|i| b.set(i, args[2].get(0)));
        for (i, out) in source.shape().indices().enumerate() {
            let Some(at) = self.selected(cx, x, &out)? else { continue };
            let folded = cx.run_scalars(&self.scatter, &[b.get(at), source.get(i)])?;
            b.set(at, folded[0]);
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero; 3] };
        if Monoid::of(&self.scatter) != Some(Monoid::Add) {
            let why = "the scatter body of this select_and_scatter is not an add";
            return vec![Grad::Zero, Grad::None { why }, Grad::None { why }];
        }
        let dinit = Grad::Of(dy.sum_all());
        if x[0].ty().elements() == 0 || x[1].ty().elements() == 0 {
            return vec![Grad::Zero, Grad::Zero, dinit];
        }
        let places = self.selected_positions(&x[0]);
        let found = dy.reshape([dy.ty().elements()]).take(&places);
        let any = places.greater_equal(&places.zeros_like());
        // The selection is constant almost everywhere: the operand has no gradient.
        vec![Grad::Zero, Grad::Of(any.select(&found, &found.zeros_like())), dinit]
    }

    fn attrs(&self) -> AttrList {
        vec![
            ("window_dimensions", ints(&self.dimensions)),
            ("window_strides", ints(&self.strides)),
            ("padding", Attr::Pairs(self.padding.clone())),
        ]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.select, &self.scatter])
    }

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let window: f64 = self.dimensions.iter().map(|&w| w as f64).product();
        let per_window = window * body_work(&self.select) + body_work(&self.scatter);
        OpCost { flops: args[1].elements() as f64 * per_window, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for SelectAndScatter {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let n = s.operands.first().map_or(0, |x| x.rank());
        Ok(SelectAndScatter {
            dimensions: s.sizes_or_ones("window_dimensions", n)?,
            strides: s.sizes_or_ones("window_strides", n)?,
            padding: s.pairs("padding", n)?,
            select: s.region(0)?,
            scatter: s.region(1)?,
        })
    }

    fn samples() -> Vec<OpSample> {
        select_and_scatter_samples()
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let cut = rows.cut(at.ty(0))?;
        if !cut.all(|d| self.is_single(d)) {
            return None;
        }
        let op = SelectAndScatter {
            dimensions: cut.sizes(&self.dimensions, 1),
            strides: cut.sizes(&self.strides, 1),
            padding: cut.list(&self.padding, [0, 0]),
            ..self.clone()
        };
        RowOp::rows(op, first_by_rows(2, 3))
    }

    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(2, |d| self.is_single(d))
    }
}

impl Monoid {
    /// `x: T[…] → T[…']`: reduces sliding windows with this monoid, starting from its identity.
    #[track_caller]
    pub fn over_windows(self, x: &Tensor, window: Window) -> Tensor {
        let init = Literal::splat(TensorType::scalar(x.dtype()), self.identity(x.dtype()));
        let init = x.builder().constant(init);
        Tensor::reduce_window(&[x], &[&init], window, self.body(x.dtype())).remove(0)
    }
}

/// Pooling. Windows have one entry per dimension, including batch and channels: `[1, 2, 2, 1]` for images `[B, H, W,
/// C]`; see [`conv::same_padding`] for Keras's `padding="same"`.
impl Tensor {
    /// `x: T[…] → T[…']`: maximum of each window; ties send the gradient to the first element.
    #[track_caller]
    pub fn max_pool(&self, window: &[usize], strides: &[usize], padding: &[[i64; 2]]) -> Tensor {
        Monoid::Maximum.over_windows(self, Window::new(window, strides, padding))
    }

    /// `x: T[…] → T[…']`: sum of each window.
    #[track_caller]
    pub fn sum_pool(&self, window: &[usize], strides: &[usize], padding: &[[i64; 2]]) -> Tensor {
        Monoid::Add.over_windows(self, Window::new(window, strides, padding))
    }

    /// `x: T[…] → T[…']`: mean of each window; padding is not counted, as in TensorFlow. Bf16 and f16 are summed in
    /// f32.
    #[track_caller]
    pub fn avg_pool(&self, window: &[usize], strides: &[usize], padding: &[[i64; 2]]) -> Tensor {
        if matches!(self.dtype(), DType::F16 | DType::BF16) {
            return self.convert(DType::F32).avg_pool(window, strides, padding).convert(self.dtype());
        }
        let spec = Window::new(window, strides, padding);
        let sum = Monoid::Add.over_windows(self, spec.clone());
        if sum.is_poisoned() {
            return sum;
        }
        let mut whole = 1.0;
        let mut mean = sum;
        for (d, &size) in window.iter().enumerate() {
            let counts = elements_seen(spec.along(d, self.shape()), mean.shape()[d]);
            if counts.iter().all(|&c| c == size as f64) {
                whole *= size as f64;
                continue;
            }
            // The number of elements in a window is a product over dimensions.
            let Ok(counts) = Literal::from_slice([counts.len()], &counts) else { continue };
            let counts = self.builder().constant(counts.convert(self.dtype()));
            mean = &mean / &counts.broadcast_in_dim(mean.shape(), &[d]);
        }
        mean / whole
    }

    /// `x: T[…] → T[K, …']`: element `k` (row-major) of each window, `outside` in padding and holes (im2col). The
    /// window must have passed reduce_window's checks.
    #[track_caller]
    pub(crate) fn patches(&self, window: &Window, outside: Scalar) -> Tensor {
        let g = self.builder();
        let outside = g.constant(Literal::splat(TensorType::scalar(self.dtype()), outside));
        let low: Vec<i64> = window.padding.iter().map(|p| p[0]).collect();
        let high: Vec<i64> = window.padding.iter().map(|p| p[1]).collect();
        let interior: Vec<usize> = window.base_dilations.iter().map(|d| d.saturating_sub(1)).collect();
        let padded = self.pad(&outside, &low, &high, &interior);
        let counts: Option<Vec<usize>> = (0..self.rank().min(window.dimensions.len()))
            .map(|d| window.along(d, self.shape()).count())
            .collect();
        let counts = counts.unwrap_or_default();
        let lead: Vec<usize> = std::iter::once(1).chain(counts.iter().copied()).collect();
        let part = |k: Dims| {
            let start: Vec<usize> = k.iter().zip(&window.window_dilations).map(|(k, d)| k * d).collect();
            let span = |d: usize| if counts[d] == 0 { 0 } else { (counts[d] - 1) * window.strides[d] + 1 };
            let limit: Vec<usize> = (0..counts.len()).map(|d| start[d] + span(d)).collect();
            padded.slice(&start, &limit, &window.strides).reshape(&lead[..])
        };
        let parts: Vec<Tensor> = Shape::new(&window.dimensions).indices().map(part).collect();
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 0)
    }
}

/// Number of non-padding elements in the window at each of `out` positions; at least 1.
fn elements_seen(along: WindowDim, out: usize) -> Vec<f64> {
    let seen = |o: usize| (0..along.window).filter(|&k| along.source(o, k).is_some()).count();
    (0..out).map(|o| seen(o).max(1) as f64).collect()
}

/// Returns small test programs of reduce_window: each attribute differs from its default at least once.
pub fn reduce_window_samples() -> Vec<OpSample> {
    let mut all: Vec<OpSample> = [DType::F32, DType::F64].into_iter().flat_map(float_cases).collect();
    let small = || Window::new(&[2, 2], &[2, 1], &[[0, 1], [1, 0]]);
    for dtype in [DType::BF16, DType::F16, DType::I32, DType::U8] {
        all.push(fold("sum", dtype, &[3, 4], Monoid::Add, small()));
        all.push(fold("max", dtype, &[3, 4], Monoid::Maximum, small()));
    }
    for monoid in [Monoid::And, Monoid::Or] {
        all.push(fold("bits", DType::I32, &[3, 4], monoid, small()));
        all.push(fold("logic", DType::Bool, &[3, 4], monoid, small()));
    }
    all.push(paired());
    all
}

fn fold(what: &str, dtype: DType, shape: &[usize], monoid: Monoid, window: Window) -> OpSample {
    let domain = match monoid {
        Monoid::Maximum | Monoid::Minimum => ArgDomain::Distinct(0.125),
        _ if dtype.is_unsigned_int() || dtype == DType::Bool => ArgDomain::Uniform(0.0, 1.0),
        _ => sample::WIDE,
    };
    let label = format!("{what}_{}_{dtype}", monoid.name());
    let params = [(TensorType::new(dtype, shape), domain)];
    sample::sample(label, &params, 16, dtype == DType::F64, |x| vec![monoid.over_windows(&x[0], window)])
}

/// One-dimensional window, as a base for samples.
fn line(window: usize, stride: usize, padding: [i64; 2]) -> Window {
    Window::new(&[window], &[stride], &[padding])
}

fn float_cases(dtype: DType) -> Vec<OpSample> {
    let mut all = vec![];
    for m in [Monoid::Add, Monoid::Maximum, Monoid::Minimum, Monoid::Multiply] {
        let image = Window::new(&[1, 2, 3, 1], &[1, 2, 2, 1], &[[0, 0], [0, 1], [1, 1], [0, 0]]);
        let holes =
            Window { base_dilations: smallvec![2], window_dilations: smallvec![3], ..line(3, 3, [3, 2]) };
        let base = Window { base_dilations: smallvec![3], ..line(4, 1, [1, 2]) };
        let sparse = Window { window_dilations: smallvec![2], ..line(3, 1, [2, 0]) };
        all.push(fold("image", dtype, &[2, 5, 4, 2], m, image));
        all.push(fold("running", dtype, &[5], m, line(5, 1, [4, 0])));
        all.push(fold("gaps", dtype, &[7], m, line(2, 3, [0, 0])));
        all.push(fold("cropped", dtype, &[8], m, line(3, 2, [-1, -2])));
        all.push(fold("no_window_fits", dtype, &[2], m, line(3, 1, [0, 0])));
        all.push(fold("empty", dtype, &[0, 3], m, Window::new(&[1, 2], &[1, 1], &[[0, 0]; 2])));
        all.push(fold("one", dtype, &[1, 1], m, Window::new(&[1, 1], &[1, 1], &[[0, 0]; 2])));
        all.push(fold("no_dims", dtype, &[], m, Window::new(&[], &[], &[])));
        all.push(fold("all_holes", dtype, &[5], m, holes));
        all.push(fold("base_holes", dtype, &[4], m, base));
        all.push(fold("window_holes", dtype, &[6], m, sparse));
        all.push(with_initial(dtype, m));
    }
    all
}

/// Sample whose initial value is a parameter that contributes to the result.
fn with_initial(dtype: DType, monoid: Monoid) -> OpSample {
    let params = [(TensorType::new(dtype, [5]), sample::WIDE), (TensorType::scalar(dtype), sample::WIDE)];
    let body = monoid.body(dtype);
    sample::sample(format!("initial_{}_{dtype}", monoid.name()), &params, 16, dtype == DType::F64, |x| {
        Tensor::reduce_window(&[&x[0]], &[&x[1]], line(2, 2, [0, 1]), body)
    })
}

/// Sample with two operands and a body that mixes them: the maximum and the value at the same position.
fn paired() -> OpSample {
    let (a, b) = (TensorType::new(DType::F32, [6]), TensorType::new(DType::I32, [6]));
    let g = GraphBuilder::new("body");
    let scalar = |t: &TensorType, name: &str| g.parameter(TensorType::scalar(t.dtype), name);
    let p = [scalar(&a, "a"), scalar(&b, "b"), scalar(&a, "c"), scalar(&b, "d")];
    let keep = p[0].greater_equal(&p[2]);
    let body = match g.finish(&[keep.select(&p[0], &p[2]), keep.select(&p[1], &p[3])]) {
        Ok(body) => body,
        Err(e) => systole_base::bug!("cannot build the body of the sample: {e}"),
    };
    let params = [(a, ArgDomain::Distinct(0.5)), (b, ArgDomain::Uniform(0.0, 9.0))];
    sample::sample("paired".into(), &params, 0, false, |x| {
        let low =
            x[0].builder().constant(Literal::splat(TensorType::scalar(DType::F32), DType::F32.lowest()));
        let none = x[1].scalar_like(-1.0);
        Tensor::reduce_window(&[&x[0], &x[1]], &[&low, &none], line(3, 2, [1, 0]), body)
    })
}

/// Returns small test programs of select_and_scatter.
pub fn select_and_scatter_samples() -> Vec<OpSample> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32] {
        let image = Window::new(&[1, 2, 3, 1], &[1, 1, 2, 1], &[[0, 0], [0, 1], [1, 1], [0, 0]]);
        all.push(scattered("image", dtype, &[2, 3, 4, 2], Direction::Ge, image));
        all.push(scattered("least", dtype, &[6], Direction::Le, line(3, 2, [1, 0])));
    }
    for dtype in [DType::F32, DType::F64] {
        all.push(scattered("gaps", dtype, &[7], Direction::Ge, line(2, 3, [0, 0])));
        all.push(scattered(
            "last_of_ties",
            dtype,
            &[4, 3],
            Direction::Gt,
            Window::new(&[2, 2], &[1, 1], &[[0, 0]; 2]),
        ));
        all.push(scattered("cropped", dtype, &[7], Direction::Ge, line(2, 2, [-1, -1])));
        all.push(scattered("no_window_fits", dtype, &[2], Direction::Ge, line(3, 1, [0, 0])));
        all.push(scattered(
            "empty",
            dtype,
            &[0, 3],
            Direction::Ge,
            Window::new(&[1, 2], &[1, 1], &[[0, 0]; 2]),
        ));
        all.push(scattered("one", dtype, &[1], Direction::Ge, line(1, 1, [0, 0])));
    }
    all
}

fn scattered(what: &str, dtype: DType, shape: &[usize], keep: Direction, window: Window) -> OpSample {
    let counts = (0..shape.len()).map(|d| window.along(d, &shape.into()).count().unwrap_or(0));
    let source = TensorType::new(dtype, counts.collect::<Vec<_>>());
    let op = SelectAndScatter {
        dimensions: window.dimensions,
        strides: window.strides,
        padding: window.padding,
        select: comparison(keep, dtype),
        scatter: Monoid::Add.body(dtype),
    };
    let params = [
        (TensorType::new(dtype, shape), ArgDomain::Distinct(0.125)),
        (source, sample::WIDE),
        (TensorType::scalar(dtype), sample::WIDE),
    ];
    sample::sample(format!("{what}_{dtype}"), &params, 16, dtype == DType::F64, |x| {
        x[0].builder().emit(op, &[&x[0], &x[1], &x[2]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp;

    #[test]
    fn samples_and_their_derivatives() {
        sample::check::all(&reduce_window_samples());
        sample::check::all(&select_and_scatter_samples());
    }

    /// An initial value computed from the operand gets its gradient once.
    #[test]
    fn initial_values_may_depend_on_the_operand() {
        let monoids = [Monoid::Add, Monoid::Maximum, Monoid::Minimum, Monoid::Multiply];
        let samples = monoids.map(|m| {
            let params = [(TensorType::new(DType::F64, [5]), ArgDomain::Distinct(0.5))];
            sample::sample(format!("dependent_{}", m.name()), &params, 16, true, |x| {
                let init = x[0].mean_all();
                Tensor::reduce_window(&[&x[0]], &[&init], line(2, 1, [0, 1]), m.body(DType::F64))
            })
        });
        sample::check::all(&samples);
    }

    /// y and dΣ(w·y)/dx for weights 1, 2, 3, …
    fn with_gradient(shape: &[usize], x: &[f32], f: impl Fn(&Tensor) -> Tensor) -> [Vec<f32>; 2] {
        let g = GraphBuilder::new("main");
        let p = g.parameter(TensorType::new(DType::F32, shape), "x");
        let y = f(&p);
        let weights: Vec<f32> = (1..=y.ty().elements()).map(|w| w as f32).collect();
        let weights = g.constant(Literal::from_slice(y.shape(), &weights).unwrap());
        let dx = grad(&(&y * &weights).sum_all(), &[&p]).remove(0);
        let graph = g.finish(&[y, dx]).unwrap();
        graph.verify().unwrap();
        let out = interp::run(&graph, &[&Literal::from_slice(shape, x).unwrap()]).unwrap();
        [out[0].to_f32s(), out[1].to_f32s()]
    }

    #[test]
    fn ties_send_the_gradient_to_the_first() {
        let [y, dx] = with_gradient(&[4], &[5., 5., 5., 1.], |x| x.max_pool(&[2], &[1], &[[0, 0]]));
        assert_eq!(y, [5., 5., 5.]);
        assert_eq!(dx, [1., 2., 3., 0.]);
        // The same with dilated windows, which use another code path.
        let window = || Window { window_dilations: smallvec![2], ..line(2, 1, [0, 0]) };
        let [y, dx] = with_gradient(&[4], &[5., 5., 5., 1.], |x| Monoid::Maximum.over_windows(x, window()));
        assert_eq!(y, [5., 5.]);
        assert_eq!(dx, [1., 2., 0., 0.]);
    }

    #[test]
    fn average_excludes_padding() {
        let [y, dx] = with_gradient(&[3, 2], &[1., 2., 3., 4., 5., 6.], |x| {
            x.avg_pool(&[2, 2], &[2, 2], &[[0, 1], [0, 0]])
        });
        assert_eq!(y, [2.5, 5.5]);
        assert_eq!(dx, [0.25, 0.25, 0.25, 0.25, 1., 1.]);
        let [y, _] = with_gradient(&[3], &[1., 2., 4.], |x| x.sum_pool(&[2], &[1], &[[1, 0]]));
        assert_eq!(y, [1., 3., 6.]);
    }

    #[test]
    fn products_with_zeros_have_gradients() {
        let window = || line(2, 1, [0, 0]);
        let [y, dx] = with_gradient(&[4], &[2., 0., 0., 3.], |x| Monoid::Multiply.over_windows(x, window()));
        assert_eq!(y, [0., 0., 0.]);
        assert_eq!(dx, [0., 2., 9., 0.]);
    }

    /// Examples from the specification.
    #[test]
    fn examples_of_the_specification() {
        let g = GraphBuilder::new("main");
        let i32s = |shape: &[usize], v: &[i32]| Literal::from_slice(shape, v).unwrap();
        let x = g.constant(i32s(&[3, 2], &[1, 2, 3, 4, 5, 6]));
        let window = Window {
            base_dilations: smallvec![2, 1],
            window_dilations: smallvec![3, 1],
            ..Window::new(&[2, 1], &[4, 1], &[[2, 1], [0, 0]])
        };
        let y = Monoid::Add.over_windows(&x, window);
        let x = g.constant(i32s(&[4, 2], &[1, 5, 2, 5, 3, 6, 4, 4]));
        let source = g.constant(i32s(&[2, 2], &[5, 6, 7, 8]));
        let op = SelectAndScatter {
            dimensions: smallvec![3, 1],
            strides: smallvec![2, 1],
            padding: vec![[0, 1], [0, 0]],
            select: comparison(Direction::Ge, DType::I32),
            scatter: Monoid::Add.body(DType::I32),
        };
        let z = g.emit(op, &[&x, &source, &x.scalar_like(0.0)]).remove(0);
        let out = interp::run(&g.finish(&[y, z]).unwrap(), &[]).unwrap();
        assert_eq!(out[0], i32s(&[2, 2], &[0, 0, 3, 4]));
        assert_eq!(out[1], i32s(&[4, 2], &[0, 0, 0, 0, 5, 14, 7, 0]));
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [4]);
        let init = TensorType::scalar(DType::F32);
        let of = |f: &dyn Fn(&mut Window)| {
            let mut window = line(2, 1, [0, 0]);
            f(&mut window);
            ReduceWindow { window, body: Monoid::Add.body(DType::F32) }.infer(&[&x, &init]).unwrap_err().label
        };
        assert_eq!(of(&|w| w.dimensions = smallvec![]), "C4");
        assert_eq!(of(&|w| w.dimensions = smallvec![0]), "C5");
        assert_eq!(of(&|w| w.strides = smallvec![1, 1]), "C6");
        assert_eq!(of(&|w| w.strides = smallvec![0]), "C7");
        assert_eq!(of(&|w| w.base_dilations = smallvec![]), "C8");
        assert_eq!(of(&|w| w.base_dilations = smallvec![0]), "C9");
        assert_eq!(of(&|w| w.window_dilations = smallvec![]), "C10");
        assert_eq!(of(&|w| w.window_dilations = smallvec![0]), "C11");
        assert_eq!(of(&|w| w.padding = vec![]), "C12");
        for padding in [[i64::MAX, 1], [i64::MAX, i64::MAX], [i64::MIN, 0], [0, i64::MAX / 2]] {
            assert_eq!(of(&|w| w.padding = vec![padding]), "C15");
        }
        assert_eq!(of(&|w| w.base_dilations = smallvec![usize::MAX]), "C15");
        let wrong = ReduceWindow { window: line(2, 1, [0, 0]), body: Monoid::Add.body(DType::F64) };
        assert_eq!(wrong.infer(&[&x, &init]).unwrap_err().label, "C13");
        assert_eq!(wrong.infer(&[&x]).unwrap_err().label, "C1");
        assert_eq!(wrong.infer(&[&x, &x]).unwrap_err().label, "C3");
    }

    #[test]
    fn wrong_sources_and_bodies_are_refused() {
        let x = TensorType::new(DType::F32, [4]);
        let init = TensorType::scalar(DType::F32);
        let op = SelectAndScatter {
            dimensions: smallvec![2],
            strides: smallvec![2],
            padding: vec![[0, 0]],
            select: comparison(Direction::Ge, DType::F32),
            scatter: Monoid::Add.body(DType::F32),
        };
        let source = TensorType::new(DType::F32, [2]);
        assert!(op.infer(&[&x, &source, &init]).is_ok());
        assert_eq!(op.infer(&[&x, &x, &init]).unwrap_err().label, "C2");
        assert_eq!(op.infer(&[&x, &source.with_dtype(DType::F64), &init]).unwrap_err().label, "C1");
        assert_eq!(op.infer(&[&x, &source, &x]).unwrap_err().label, "C3");
        let swapped = SelectAndScatter { select: op.scatter.clone(), ..op.clone() };
        assert_eq!(swapped.infer(&[&x, &source, &init]).unwrap_err().label, "C9");
        let swapped = SelectAndScatter { scatter: op.select.clone(), ..op };
        assert_eq!(swapped.infer(&[&x, &source, &init]).unwrap_err().label, "C10");
    }

    #[test]
    fn other_bodies_say_why_they_have_no_derivative() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F32, [6]), "x");
        let b = GraphBuilder::new("body");
        let scalar = TensorType::scalar(DType::F32);
        let (p, q) = (b.parameter(scalar.clone(), "p"), b.parameter(scalar, "q"));
        let body = b.finish(&[&p * &(&q + 1.0)]).unwrap();
        let y = Tensor::reduce_window(&[&x], &[&x.scalar_like(1.0)], line(2, 1, [0, 0]), body).remove(0);
        grad(&y.sum_all(), &[&x]);
        let error = g.finish(&[]).unwrap_err();
        systole_testing::assert_error(&error, systole_base::ErrorKind::Graph, &["reduce_window"]);
    }
}
