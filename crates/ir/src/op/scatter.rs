//! scatter: combines updates into an operand at an array of indices.

use super::attr::AttrField;
use super::gather::{GatherDims, elements, fixed_indices, list, sorted, unique};
use super::reduce::check_fold_body;
use super::*;

/// Body `(current, update) → update` over scalars of `dtype`: overwrites.
pub fn overwrite_body(dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("body");
    g.parameter(TensorType::scalar(dtype), "current");
    let update = g.parameter(TensorType::scalar(dtype), "update");
    match g.finish(&[update]) {
        Ok(body) => body,
        Err(e) => systole_base::bug!("overwrite body for {dtype}: {e}"),
    }
}

impl Scatter {
    /// `x: T[N, …], indices: I[…], updates: T[indices…, …] → T[N, …]`: combines whole rows by index.
    pub fn rows(x: &TensorType, indices_rank: usize, body: Arc<Graph>) -> Scatter {
        Scatter {
            update_window_dims: (indices_rank..indices_rank + x.rank().saturating_sub(1)).collect(),
            inserted_window_dims: smallvec![0],
            input_batching_dims: smallvec![],
            scatter_indices_batching_dims: smallvec![],
            scatter_dims_to_operand_dims: smallvec![0],
            index_vector_dim: indices_rank,
            indices_are_sorted: false,
            unique_indices: false,
            body,
        }
    }

    fn placement(&self) -> GatherDims<'_> {
        GatherDims {
            window_dims: &self.update_window_dims,
            dropped: &self.inserted_window_dims,
            operand_batching: &self.input_batching_dims,
            indices_batching: &self.scatter_indices_batching_dims,
            index_map: &self.scatter_dims_to_operand_dims,
            index_vector_dim: self.index_vector_dim,
        }
    }

    /// Block size in each operand dimension.
    fn block(&self, operand_rank: usize, updates: &[usize]) -> Dims {
        let mut sizes: Dims = smallvec![1; operand_rank];
        for (&d, &w) in self.placement().shown(operand_rank).iter().zip(&self.update_window_dims) {
            sizes[d] = updates[w];
        }
        sizes
    }

    /// Maximum start of a block for each component of an index vector; `None` if no block fits.
    fn room(&self, operand: &[usize], updates: &[usize]) -> Option<Vec<usize>> {
        let block = self.block(operand.len(), updates);
        self.scatter_dims_to_operand_dims.iter().map(|&d| operand[d].checked_sub(block[d])).collect()
    }

    fn check_operand(&self, x: &TensorType) -> Result<(), SpecConstraint> {
        let n = x.rank();
        let (inserted, batching) = (&self.inserted_window_dims, &self.input_batching_dims);
        let named = self.update_window_dims.len() + inserted.len() + batching.len();
        require!(
            n == named,
            "C2",
            "got {named} window, inserted and batching dimensions in total, but {x} has {n} dimensions"
        );
        let dropped = [&inserted[..], batching].concat();
        require!(
            unique(&dropped),
            "C9",
            "a dimension occurs twice in inserted_window_dims and input_batching_dims"
        );
        require!(sorted(inserted), "C10", "inserted_window_dims must be sorted");
        require!(inserted.iter().all(|&d| d < n), "C11", "inserted_window_dims must be below the rank {n}");
        require!(sorted(batching), "C12", "input_batching_dims must be sorted");
        require!(batching.iter().all(|&d| d < n), "C13", "input_batching_dims must be below the rank {n}");
        let moved = [&self.scatter_dims_to_operand_dims[..], batching].concat();
        require!(
            unique(&moved),
            "C20",
            "a dimension occurs twice in scatter_dims_to_operand_dims and input_batching_dims"
        );
        require!(
            moved.iter().all(|&d| d < n),
            "C21",
            "scatter_dims_to_operand_dims must be below the rank {n}"
        );
        Ok(())
    }

    fn check_indices(&self, x: &TensorType, indices: &TensorType) -> Result<(), SpecConstraint> {
        let (rank, ivd) = (indices.rank(), self.index_vector_dim);
        let batching = &self.scatter_indices_batching_dims;
        require!(indices.dtype.is_int(), "-", "the indices have type {indices}, expected integers");
        require!(unique(batching), "C14", "scatter_indices_batching_dims must be unique");
        require!(
            batching.iter().all(|&d| d < rank),
            "C15",
            "scatter_indices_batching_dims must be below the rank of {indices}"
        );
        require!(!batching.contains(&ivd), "C16", "index_vector_dim {ivd} must not be a batching dimension");
        let paired = batching.len() == self.input_batching_dims.len();
        require!(paired, "C17", "operand and indices must have the same number of batching dimensions");
        for (&o, &i) in self.input_batching_dims.iter().zip(batching) {
            let same = x.shape[o] == indices.shape[i];
            require!(same, "C18", "batch sizes differ: dimension {o} of {x}, dimension {i} of {indices}");
        }
        require!(ivd <= rank, "C22", "index_vector_dim {ivd} exceeds the rank of {indices}");
        let length = if ivd < rank { indices.shape[ivd] } else { 1 };
        let named = self.scatter_dims_to_operand_dims.len();
        require!(
            named == length,
            "C19",
            "scatter_dims_to_operand_dims has {named} entries, but index vectors have length {length}"
        );
        Ok(())
    }

    fn check_updates(
        &self,
        x: &TensorType,
        indices: &TensorType,
        updates: &TensorType,
    ) -> Result<(), SpecConstraint> {
        let windows = &self.update_window_dims;
        require!(unique(windows) && sorted(windows), "C7", "update_window_dims must be sorted");
        let below = windows.iter().all(|&d| d < updates.rank());
        require!(below, "C8", "update_window_dims must be below the rank of {updates}");
        let place = self.placement();
        let inside: Dims = windows.iter().map(|&d| updates.shape[d]).collect();
        let expected = place.block_shape(indices, &inside);
        let fits = place.shown(x.rank()).iter().zip(&inside).all(|(&d, &size)| size <= x.shape[d]);
        require!(
            fits && expected[..] == *updates.shape,
            "C4",
            "the updates {updates} do not match the indices {indices} and blocks inside {x}"
        );
        Ok(())
    }
}

impl OpRule for Scatter {
    lowered!(Fold);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(
            args.len() >= 3 && !args.len().is_multiple_of(2),
            "C5",
            "expected inputs, indices and one update per input"
        );
        let n = args.len() / 2;
        let (xs, indices, updates) = (&args[..n], args[n], &args[n + 1..]);
        for (x, u) in xs.iter().zip(updates) {
            require!(x.shape == xs[0].shape, "C1", "input shapes differ: {x} and {}", xs[0]);
            require!(u.shape == updates[0].shape, "C3", "update shapes differ: {u} and {}", updates[0]);
            require!(x.dtype == u.dtype, "C6", "element types differ: {x} and its update {u}");
        }
        self.check_operand(xs[0])?;
        self.check_indices(xs[0], indices)?;
        self.check_updates(xs[0], indices, updates[0])?;
        let dtypes: Vec<_> = xs.iter().map(|x| x.dtype).collect();
        check_fold_body(&self.body, &dtypes).map_err(|c| SpecConstraint::new("C23", c.message))?;
        Ok(xs.iter().map(|&x| x.clone()).collect())
    }

    fn result_count(&self, args: usize) -> usize {
        args.saturating_sub(1) / 2
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let n = outs.len();
        let (xs, indices, updates) = (&args[..n], args[n], &args[n + 1..]);
        let (place, shape) = (self.placement(), &outs[0].shape);
        let block = self.block(shape.rank(), updates[0].shape());
        let mut results: Vec<LiteralBuilder> = outs.iter().map(|t| LiteralBuilder::new(t.clone())).collect();
        for (b, x) in results.iter_mut().zip(xs) {
            (0..shape.elements()).for_each(|i| b.set(i, x.get(i)));
        }
        for (i, index) in updates[0].shape().indices().enumerate() {
            let (start, offset) = place.locate(shape.rank(), indices, &index);
            let inside =
                |d: usize| usize::try_from(start[d]).is_ok_and(|s| shape[d].checked_sub(block[d]) >= Some(s));
            if !(0..shape.rank()).all(inside) {
                continue;
            }
            let at: Dims = (0..shape.rank()).map(|d| start[d] as usize + offset[d]).collect();
            let at = shape.ravel(&at);
            let scalars: Vec<Scalar> =
                results.iter().map(|b| b.get(at)).chain(updates.iter().map(|u| u.get(i))).collect();
            for (b, v) in results.iter_mut().zip(cx.run_scalars(&self.body, &scalars)?) {
                b.set(at, v);
            }
        }
        Ok(results.into_iter().map(LiteralBuilder::finish).collect())
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let overwrites = self.body.results[..] == self.body.params[self.body.params.len() / 2..];
        let monoid = Monoid::of(&self.body);
        if x.len() != 3 || (monoid.is_none() && !overwrites) {
            let why = "scatter is differentiable only with one input and a body that is a single add, multiply, \
                       minimum or maximum, or that returns the update";
            return vec![Grad::None { why }; x.len()];
        }
        let Some(dy) = &dy[0] else { return vec![Grad::Zero; 3] };
        let [operand, indices, updates] = [&x[0], &x[1], &x[2]];
        let room = self.room(operand.shape(), updates.shape());
        let (Some(room), false) = (room, operand.ty().elements() * updates.ty().elements() == 0) else {
            return vec![Grad::Of(dy.clone()), Grad::Zero, Grad::Zero];
        };
        let at = UpdateLocations { op: self, indices, updates, room };
        let [dx, du] = match monoid {
            Some(Monoid::Add) => [dy.clone(), at.read(dy)],
            Some(Monoid::Multiply) => at.product_gradients(operand, dy),
            Some(Monoid::Minimum | Monoid::Maximum) => at.extreme_gradients(operand, &y[0], dy),
            Some(Monoid::And | Monoid::Or) => return vec![Grad::Zero; 3],
            None => at.overwrite_gradients(dy),
        };
        vec![Grad::Of(dx), Grad::Zero, Grad::Of(du)]
    }

    fn attrs(&self) -> AttrList {
        let numbers = vec![
            ("update_window_dims", list(&self.update_window_dims)),
            ("inserted_window_dims", list(&self.inserted_window_dims)),
            ("input_batching_dims", list(&self.input_batching_dims)),
            ("scatter_indices_batching_dims", list(&self.scatter_indices_batching_dims)),
            ("scatter_dims_to_operand_dims", list(&self.scatter_dims_to_operand_dims)),
            ("index_vector_dim", AttrField::Int(self.index_vector_dim as i64)),
        ];
        vec![
            ("scatter_dimension_numbers", Attr::Struct("scatter", numbers)),
            ("indices_are_sorted", Attr::Bool(self.indices_are_sorted)),
            ("unique_indices", Attr::Bool(self.unique_indices)),
        ]
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }

    /// One run of the body per update.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let updates = args.last().map_or(0, |u| u.elements()) as f64;
        let work = self.body.nodes.len().saturating_sub(self.body.params.len()) as f64;
        OpCost { flops: updates * work, bytes: moved_bytes(args, outs) }
    }
}

/// Not split: updates may go to other rows.
impl StructuralOp for Scatter {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        const NAME: &str = "scatter_dimension_numbers";
        let list = |field: &str| s.field(NAME, "scatter", field);
        Ok(Scatter {
            update_window_dims: list("update_window_dims")?,
            inserted_window_dims: list("inserted_window_dims")?,
            input_batching_dims: list("input_batching_dims")?,
            scatter_indices_batching_dims: list("scatter_indices_batching_dims")?,
            scatter_dims_to_operand_dims: list("scatter_dims_to_operand_dims")?,
            index_vector_dim: s.field_size(NAME, "scatter", "index_vector_dim")?,
            indices_are_sorted: s.flag("indices_are_sorted")?,
            unique_indices: s.flag("unique_indices")?,
            body: s.region(0)?,
        })
    }

    fn samples() -> Vec<OpSample> {
        scatter_samples()
    }

    /// Dimensions that blocks contain entirely. Also dimensions of the indices, if the operand is the identity of the
    /// reduction.
    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        if at.node.inputs.len() != 3 {
            return Vec::new();
        }
        let [x, indices, updates] = [0, 1, 2].map(|k| at.ty(k));
        let hidden =
            |d: &usize| self.inserted_window_dims.contains(d) || self.input_batching_dims.contains(d);
        let shown = (0..x.rank()).filter(|d| !hidden(d)).zip(&self.update_window_dims);
        let mut all: Vec<ShardingFactor> = shown
            .filter(|&(d, &u)| x.shape[d] == updates.shape[u])
            .map(|(d, &u)| ShardingFactor::dim([Some(d), None, Some(u)], d))
            .collect();
        let adds = Monoid::of(&self.body) == Some(Monoid::Add) && is_zeros(at.graph, at.node.inputs[0]);
        let batch = (0..updates.rank()).filter(|d| !self.update_window_dims.contains(d));
        let own = (0..indices.rank()).filter(|&d| d != self.index_vector_dim);
        for (i, u) in own.zip(batch) {
            match self.scatter_indices_batching_dims.iter().position(|&d| d == i) {
                Some(k) => {
                    let d = self.input_batching_dims[k];
                    all.push(ShardingFactor::dim([Some(d), Some(i), Some(u)], d));
                }
                None if adds => all.push(ShardingFactor::fold([None, Some(i), Some(u)], Monoid::Add)),
                None => {}
            }
        }
        all
    }
}

/// Locations of a scatter's updates, to read or write other arrays there.
struct UpdateLocations<'a> {
    op: &'a Scatter,
    indices: &'a Tensor,
    updates: &'a Tensor,
    room: Vec<usize>,
}

impl UpdateLocations<'_> {
    /// `t: U[operand…] → U[updates…]`: reads the element at the location of each update; zero if the update is dropped.
    fn read(&self, t: &Tensor) -> Tensor {
        let (op, place) = (self.op, self.op.placement());
        let spec = Gather {
            offset_dims: op.update_window_dims.clone(),
            collapsed_slice_dims: op.inserted_window_dims.clone(),
            operand_batching_dims: op.input_batching_dims.clone(),
            start_indices_batching_dims: op.scatter_indices_batching_dims.clone(),
            start_index_map: op.scatter_dims_to_operand_dims.clone(),
            index_vector_dim: op.index_vector_dim,
            slice_sizes: op.block(t.rank(), self.updates.shape()),
            indices_are_sorted: op.indices_are_sorted,
        };
        let found = t.gather(self.indices, spec);
        let inside = place.all_inside(self.indices, &self.room);
        let inside = inside.broadcast_in_dim(found.shape(), &place.batch_dims(found.rank()));
        inside.select(&found, &found.zeros_like())
    }

    /// `into: U[operand…], values: U[updates…] → U[operand…]`: combines other values at the same locations.
    fn write(&self, into: &Tensor, values: &Tensor, body: Arc<Graph>) -> Tensor {
        into.scatter(self.indices, values, Scatter { body, ..self.op.clone() })
    }

    fn add(&self, values: &Tensor, like: &Tensor) -> Tensor {
        let zeros = like.builder().full(&like.ty().with_dtype(values.dtype()), 0.0);
        self.write(&zeros, values, Monoid::Add.body(values.dtype()))
    }

    /// Gradient of overwriting: the cotangent of an overwritten location goes to the update that remains there.
    fn overwrite_gradients(&self, dy: &Tensor) -> [Tensor; 2] {
        let body = overwrite_body(dy.dtype());
        let dx = self.write(dy, &self.updates.zeros_like(), body);
        let du = self.read(dy);
        if self.op.unique_indices {
            return [dx, du];
        }
        // If several updates have the same location, the backend chooses which remains. Scattering their numbers finds
        // out which.
        let n = self.updates.ty().elements();
        let numbers = if n < i32::MAX as usize { DType::I32 } else { DType::I64 };
        let g = dy.builder();
        let own = g.iota(TensorType::new(numbers, [n]), 0).reshape(self.updates.shape());
        let none = g.full(&dy.ty().with_dtype(numbers), -1.0);
        let left = self.read(&self.write(&none, &own, overwrite_body(numbers)));
        [dx, left.equal(&own).select(&du, &du.zeros_like())]
    }

    /// Gradient of y = x·Πu: for each factor the product of the others, exact even with zeros.
    fn product_gradients(&self, x: &Tensor, dy: &Tensor) -> [Tensor; 2] {
        let (u, zero, one) = (self.updates, self.updates.zeros_like(), self.updates.ones_like());
        let times = || Monoid::Multiply.body(u.dtype());
        let dx = dy * &self.write(&x.ones_like(), u, times());
        let is_zero = u.equal(&zero);
        let nonzero = is_zero.select(&one, u);
        let zeros = is_zero.convert(u.dtype());
        let product = self.read(&self.write(&x.ones_like(), &nonzero, times())) / &nonzero;
        let other_zeros = self.read(&self.add(&zeros, x)) - &zeros;
        let others = other_zeros.greater(&zero).select(&zero, &product);
        [dx, self.read(&(dy * x)) * others]
    }

    /// Gradient of y = max(x, u…) or min: ties share the cotangent evenly, as in reduce.
    fn extreme_gradients(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> [Tensor; 2] {
        let hit_x = x.equal(y);
        let hit_u = self.updates.equal(&self.read(y));
        let hits = hit_x.convert(dy.dtype()) + self.add(&hit_u.convert(dy.dtype()), x);
        let share = dy / &hits;
        let dx = hit_x.select(&share, &dy.zeros_like());
        let shared = self.read(&share);
        [dx, hit_u.select(&shared, &shared.zeros_like())]
    }
}

/// Returns small test programs of scatter: each attribute differs from its default at least once; indices inside and
/// outside.
pub fn scatter_samples() -> Vec<OpSample> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32] {
        let bodies = [Monoid::Add, Monoid::Multiply, Monoid::Minimum, Monoid::Maximum];
        let bodies = bodies.map(|m| (m.name(), m.body(dtype)));
        for (name, body) in bodies.into_iter().chain([("overwrite", overwrite_body(dtype))]) {
            all.extend(cases(name, dtype, body));
        }
    }
    for index in [DType::I64, DType::U8, DType::U64] {
        let rows = |x: &TensorType| Scatter::rows(x, 1, Monoid::Add.body(DType::F64));
        all.push(case("add_rows", DType::F64, index, [&[4, 3], &[5], &[5, 3]], rows));
    }
    for monoid in [Monoid::And, Monoid::Or] {
        let rows = |x: &TensorType| Scatter::rows(x, 1, monoid.body(DType::Bool));
        all.push(case(monoid.name(), DType::Bool, DType::I32, [&[4, 3], &[5], &[5, 3]], rows));
    }
    all.push(paired());
    all
}

#[rustfmt::skip]
fn cases(name: &str, dtype: DType, body: Arc<Graph>) -> Vec<OpSample> {
    let plain = || Scatter {
        update_window_dims: smallvec![], inserted_window_dims: smallvec![], input_batching_dims: smallvec![],
        scatter_indices_batching_dims: smallvec![], scatter_dims_to_operand_dims: smallvec![], index_vector_dim: 0,
        indices_are_sorted: false, unique_indices: false, body: body.clone(),
    };
    let blocks = || Scatter { update_window_dims: smallvec![1, 2], scatter_dims_to_operand_dims: smallvec![1, 0], index_vector_dim: 1, ..plain() };
    let mixed = || Scatter { update_window_dims: smallvec![0, 2], inserted_window_dims: smallvec![1], scatter_dims_to_operand_dims: smallvec![2, 1], index_vector_dim: 0, ..plain() };
    let batched = || Scatter { update_window_dims: smallvec![2], input_batching_dims: smallvec![1], scatter_indices_batching_dims: smallvec![0], inserted_window_dims: smallvec![0], scatter_dims_to_operand_dims: smallvec![0], index_vector_dim: 2, ..plain() };
    let crossed = || Scatter { input_batching_dims: smallvec![0, 2], scatter_indices_batching_dims: smallvec![2, 0], inserted_window_dims: smallvec![1], scatter_dims_to_operand_dims: smallvec![1], index_vector_dim: 1, ..plain() };
    let rows = |x: &TensorType, rank: usize| Scatter::rows(x, rank, body.clone());
    let i = DType::I32;
    let label = |what: &str| format!("{name}_{what}");
    vec![
        case(&label("rows"), dtype, i, [&[4, 2], &[7], &[7, 2]], |x| rows(x, 1)),
        case(&label("scalar_index"), dtype, i, [&[4, 3], &[], &[3]], |x| rows(x, 0)),
        case(&label("nothing"), dtype, i, [&[4, 3], &[0], &[0, 3]], |x| rows(x, 1)),
        case(&label("into_nothing"), dtype, i, [&[0, 3], &[2], &[2, 3]], |x| rows(x, 1)),
        case(&label("blocks"), dtype, i, [&[4, 5], &[3, 2], &[3, 2, 3]], |_| blocks()),
        case(&label("mixed_dims"), dtype, i, [&[3, 4, 5], &[2, 3], &[2, 3, 3]], |_| mixed()),
        case(&label("batched"), dtype, i, [&[5, 2, 3], &[2, 4, 1], &[2, 4, 2]], |_| batched()),
        case(&label("crossed_batches"), dtype, i, [&[2, 4, 3], &[3, 1, 2], &[3, 2]], |_| crossed()),
        sorted_rows(&label("unique_sorted"), dtype, body.clone()),
    ]
}

fn case(
    what: &str,
    dtype: DType,
    index: DType,
    [x, indices, updates]: [&[usize]; 3],
    spec: impl Fn(&TensorType) -> Scatter,
) -> OpSample {
    let x = TensorType::new(dtype, x);
    let op = spec(&x);
    let low = if index.is_unsigned_int() { 0.0 } else { -2.0 };
    let params = [
        (x, elements(dtype)),
        (TensorType::new(index, indices), ArgDomain::Uniform(low, 6.0)),
        (TensorType::new(dtype, updates), elements(dtype)),
    ];
    sample::sample(format!("{what}_{dtype}_{index}"), &params, 16, dtype == DType::F64, |x| {
        vec![x[0].scatter(&x[1], &x[2], op)]
    })
}

fn sorted_rows(what: &str, dtype: DType, body: Arc<Graph>) -> OpSample {
    let params = [
        (TensorType::new(dtype, [5, 3]), elements(dtype)),
        (TensorType::new(dtype, [3, 3]), elements(dtype)),
    ];
    sample::sample(format!("{what}_{dtype}"), &params, 16, dtype == DType::F64, |x| {
        let indices = fixed_indices(x[0].builder(), &[3, 1], &[1, 3, 4]);
        let rows = Scatter::rows(x[0].ty(), 1, body);
        let op = Scatter { indices_are_sorted: true, unique_indices: true, ..rows };
        vec![x[0].scatter(&indices, &x[1], op)]
    })
}

/// Sample with two inputs and a body that mixes them.
fn paired() -> OpSample {
    let g = GraphBuilder::new("body");
    let types = [DType::F32, DType::I32].map(TensorType::scalar);
    let p: Vec<Tensor> = (0..4).map(|i| g.parameter(types[i % 2].clone(), "p")).collect();
    let keep = p[0].greater_equal(&p[2]);
    let body = match g.finish(&[keep.select(&p[0], &p[2]), &p[1] + &p[3]]) {
        Ok(body) => body,
        Err(e) => systole_base::bug!("cannot build the body of the sample: {e}"),
    };
    let params = [
        (types[0].with_shape([5]), sample::WIDE),
        (types[1].with_shape([5]), sample::WIDE),
        (TensorType::new(DType::I32, [7]), ArgDomain::Uniform(-1.0, 6.0)),
        (types[0].with_shape([7]), sample::WIDE),
        (types[1].with_shape([7]), sample::WIDE),
    ];
    sample::sample("paired".into(), &params, 0, false, |x| {
        let op = Scatter::rows(x[0].ty(), 1, body);
        x[0].builder().emit(op, &x.iter().collect::<Vec<_>>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{grad, interp};

    #[test]
    fn samples_and_their_derivatives() {
        sample::check::all(&scatter_samples());
    }

    fn run(x: &[f32], indices: &[i64], updates: &[f32], body: Arc<Graph>) -> [Vec<f32>; 3] {
        let g = GraphBuilder::new("main");
        let f32s = |v: &[f32]| Literal::from_slice([v.len()], v).unwrap();
        let a = g.parameter(TensorType::new(DType::F32, [x.len()]), "x");
        let u = g.parameter(TensorType::new(DType::F32, [updates.len()]), "u");
        let at = fixed_indices(&g, &[indices.len()], indices);
        let y = a.scatter(&at, &u, Scatter::rows(a.ty(), 1, body));
        let weights: Vec<f32> = (1..=x.len()).map(|w| w as f32).collect();
        let loss = (&y * &g.constant(f32s(&weights))).sum_all();
        let grads = grad(&loss, &[&a, &u]);
        let graph = g.finish(&[vec![y], grads].concat()).unwrap();
        let out = interp::run(&graph, &[&f32s(x), &f32s(updates)]).unwrap();
        [out[0].to_f32s(), out[1].to_f32s(), out[2].to_f32s()]
    }

    #[test]
    fn overwriting_leaves_the_last_and_only_that_has_a_gradient() {
        let [y, dx, du] =
            run(&[1., 2., 3.], &[1, 1, -1, 3, 0], &[5., 6., 7., 8., 9.], overwrite_body(DType::F32));
        assert_eq!(y, [9., 6., 3.]);
        assert_eq!(dx, [0., 0., 3.]);
        assert_eq!(du, [0., 2., 0., 0., 1.]);
    }

    #[test]
    fn products_with_zeros_have_gradients() {
        let body = || Monoid::Multiply.body(DType::F32);
        let [y, dx, du] = run(&[2., 3., 5.], &[0, 0, 1, 1, 8], &[0., 7., 0., 0., 4.], body());
        assert_eq!(y, [0., 0., 5.]);
        assert_eq!(dx, [0., 0., 3.]);
        assert_eq!(du, [14., 0., 0., 0., 0.]);
        let [y, dx, du] = run(&[0., 3.], &[0, 1, 1], &[4., 5., 6.], body());
        assert_eq!(y, [0., 90.]);
        assert_eq!(dx, [4., 60.]);
        assert_eq!(du, [0., 36., 30.]);
    }

    #[test]
    fn ties_of_extremes_share() {
        let [y, dx, du] = run(&[2., 3.], &[0, 0, 1, 1], &[2., 1., 4., 4.], Monoid::Maximum.body(DType::F32));
        assert_eq!(y, [2., 4.]);
        assert_eq!(dx, [0.5, 0.]);
        assert_eq!(du, [0.5, 0., 1., 1.]);
    }

    /// A block that is partly out of bounds is dropped entirely.
    #[test]
    fn blocks_outside_are_dropped() {
        let g = GraphBuilder::new("main");
        let x = g.constant(Literal::from_slice([5], &[0f32; 5]).unwrap());
        let u = g.constant(Literal::from_slice([3, 3], &[1f32, 2., 3., 4., 5., 6., 7., 8., 9.]).unwrap());
        let at = fixed_indices(&g, &[3, 1], &[-1, 3, 2]);
        let op = Scatter {
            update_window_dims: smallvec![1],
            inserted_window_dims: smallvec![],
            index_vector_dim: 1,
            ..Scatter::rows(x.ty(), 1, Monoid::Add.body(DType::F32))
        };
        let y = x.scatter(&at, &u, op);
        let out = interp::run(&g.finish(&[y]).unwrap(), &[]).unwrap();
        assert_eq!(out[0].to_f32s(), [0., 0., 7., 8., 9.]);
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [5, 2, 3]);
        let indices = TensorType::new(DType::I32, [2, 4, 1]);
        let updates = TensorType::new(DType::F32, [2, 4, 2]);
        let good = Scatter {
            update_window_dims: smallvec![2],
            inserted_window_dims: smallvec![0],
            input_batching_dims: smallvec![1],
            scatter_indices_batching_dims: smallvec![0],
            scatter_dims_to_operand_dims: smallvec![0],
            index_vector_dim: 2,
            indices_are_sorted: false,
            unique_indices: false,
            body: Monoid::Add.body(DType::F32),
        };
        assert!(good.infer(&[&x, &indices, &updates]).is_ok());
        let of = |f: &dyn Fn(&mut Scatter)| {
            let mut op = good.clone();
            f(&mut op);
            op.infer(&[&x, &indices, &updates]).unwrap_err().label
        };
        assert_eq!(of(&|s| s.update_window_dims = smallvec![]), "C2");
        assert_eq!(of(&|s| s.update_window_dims = smallvec![1]), "C4");
        assert_eq!(of(&|s| s.update_window_dims = smallvec![3]), "C8");
        assert_eq!(of(&|s| s.inserted_window_dims = smallvec![1]), "C9");
        assert_eq!(of(&|s| s.inserted_window_dims = smallvec![3]), "C11");
        assert_eq!(of(&|s| s.input_batching_dims = smallvec![3]), "C13");
        assert_eq!(of(&|s| s.scatter_indices_batching_dims = smallvec![0, 0]), "C14");
        assert_eq!(of(&|s| s.scatter_indices_batching_dims = smallvec![3]), "C15");
        assert_eq!(of(&|s| s.scatter_indices_batching_dims = smallvec![2]), "C16");
        assert_eq!(of(&|s| s.scatter_indices_batching_dims = smallvec![]), "C17");
        assert_eq!(of(&|s| s.scatter_indices_batching_dims = smallvec![1]), "C18");
        assert_eq!(of(&|s| s.scatter_dims_to_operand_dims = smallvec![0, 2]), "C19");
        assert_eq!(of(&|s| s.scatter_dims_to_operand_dims = smallvec![1]), "C20");
        assert_eq!(of(&|s| s.scatter_dims_to_operand_dims = smallvec![3]), "C21");
        assert_eq!(of(&|s| s.index_vector_dim = 4), "C22");
        assert_eq!(of(&|s| s.body = Monoid::Add.body(DType::F64)), "C23");
        let args = |u: &TensorType| good.infer(&[&x, &indices, u]).unwrap_err().label;
        assert_eq!(args(&updates.with_dtype(DType::F64)), "C6");
        assert_eq!(args(&updates.with_shape([2, 4, 4])), "C4");
        assert_eq!(good.infer(&[&x, &indices]).unwrap_err().label, "C5");
        assert_eq!(good.infer(&[&x, &x, &indices, &updates, &indices]).unwrap_err().label, "C3");
        let floats = indices.with_dtype(DType::F32);
        assert_eq!(good.infer(&[&x, &floats, &updates]).unwrap_err().label, "-");
    }
}
