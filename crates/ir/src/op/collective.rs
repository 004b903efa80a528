//! Collective ops all_reduce, all_gather, reduce_scatter, all_to_all and collective_permute; and the device indices
//! partition_id and replica_id.
//!
//! A program on one device is a group of one. [`together`](Collective::together) evaluates a collective on several
//! devices: the interpreter runs them in lockstep ([`interp::run_devices`](crate::interp::run_devices)).

use super::elementwise_samples::{moved, program};
use super::*;
use systole_base::err;

impl ReplicaGroups {
    /// Creates device groups of replicas for a collective.
    pub fn of(members: Vec<Vec<usize>>) -> ReplicaGroups {
        ReplicaGroups { members, channel: 0, global: false }
    }

    /// Number of devices per group of the collective.
    pub fn size(&self) -> usize {
        self.members.first().map_or(1, |g| g.len())
    }

    /// Checks groups of equal sizes. `labels` are the op's constraint labels for repeated devices and for global ids without a
    /// channel.
    pub(super) fn check(&self, labels: [&'static str; 2]) -> Result<(), SpecConstraint> {
        if self.members.iter().any(|g| g.len() != self.size()) {
            return Err(SpecConstraint::new(labels[0], "replica_groups must have equal sizes"));
        }
        self.check_members(labels)
    }

    /// Like [`check`](ReplicaGroups::check), for groups of any sizes.
    fn check_members(&self, [unique, global]: [&'static str; 2]) -> Result<(), SpecConstraint> {
        let all: Vec<usize> = self.members.iter().flatten().copied().collect();
        let wrong = |label: &'static str, what: &str| Err(SpecConstraint::new(label, what));
        if all.is_empty() || self.members.iter().any(Vec::is_empty) {
            return wrong(unique, "replica_groups is empty");
        }
        if !gather::unique(&all) {
            return wrong(unique, "a device occurs twice in replica_groups");
        }
        match self.global && self.channel == 0 {
            true => wrong(global, "use_global_device_ids requires a channel"),
            false => Ok(()),
        }
    }

    /// Group of a device, and its index in the group.
    fn place(&self, device: usize) -> Result<(&[usize], usize)> {
        let found = self.members.iter().find_map(|g| Some((&g[..], g.iter().position(|&d| d == device)?)));
        found.ok_or_else(|| {
            err!(Graph, "device {device} is in none of the groups {:?}", self.members)
                .hint("list each device of the program once in replica_groups")
        })
    }

    /// Applies `f` to each group's operands, which returns a result for each member; collects the results in device
    /// order.
    fn each(
        &self,
        args: &[Vec<&Literal>],
        mut f: impl FnMut(&[&Literal]) -> Result<Vec<Literal>>,
    ) -> Result<Vec<Literal>> {
        let mut out: Vec<Option<Literal>> = vec![None; args.len()];
        for group in &self.members {
            group.iter().zip(f(&ReplicaGroups::operands(group, args)?)?).for_each(|(&d, y)| out[d] = Some(y));
        }
        for device in 0..args.len() {
            self.place(device)?;
        }
        Ok(out.into_iter().flatten().collect())
    }

    /// Operands of a group's devices.
    pub(super) fn operands<'a>(group: &[usize], args: &[Vec<&'a Literal>]) -> Result<Vec<&'a Literal>> {
        let operands: Option<Vec<&Literal>> = group.iter().map(|&d| Some(args.get(d)?[0])).collect();
        operands.ok_or_else(|| {
            err!(Graph, "group {group:?} exceeds the {} devices of the program", args.len())
                .hint("run the program on as many devices as its groups contain")
        })
    }

    /// Attributes `replica_groups`, `channel_handle` and `use_global_device_ids` for text.
    pub(super) fn attrs(&self) -> AttrList {
        // −1 pads groups of different sizes.
        let size = self.members.iter().map(Vec::len).max().unwrap_or(1);
        let padded =
            |g: &Vec<usize>| g.iter().map(|&d| d as i64).chain([-1].repeat(size - g.len())).collect();
        let ids = self.members.iter().map(padded).collect::<Vec<Vec<i64>>>().concat();
        let mut attrs = vec![("replica_groups", matrix(self.members.len(), size, &ids))];
        if self.channel > 0 {
            // Type 1: device to device.
            let fields = vec![("handle", AttrField::Int(self.channel as i64)), ("type", AttrField::Int(1))];
            attrs.push(("channel_handle", Attr::Struct("channel_handle", fields)));
        }
        if self.global {
            attrs.push(("use_global_device_ids", Attr::Unit));
        }
        attrs
    }

    /// Parses the groups from an op's attributes.
    pub(super) fn read(s: &OpSource<'_>) -> OpParseResult<ReplicaGroups> {
        let channel = match s.has("channel_handle") {
            true => s.field_size("channel_handle", "channel_handle", "handle")?,
            false => 0,
        };
        Ok(ReplicaGroups {
            members: numbers(s, "replica_groups", is_padding)?,
            channel,
            global: s.has("use_global_device_ids"),
        })
    }
}

fn matrix(rows: usize, columns: usize, values: &[i64]) -> Attr {
    match Literal::from_slice([rows, columns], values) {
        Ok(l) => Attr::Dense(l),
        Err(e) => systole_base::bug!("cannot make a matrix of {} values: {e}", values.len()),
    }
}

/// Pads groups of different sizes.
fn is_padding(entry: i64) -> bool {
    entry == -1
}

/// Parses a matrix of non-negative integers into rows, without the padding at their ends.
fn numbers(s: &OpSource<'_>, name: &str, is_padding: fn(i64) -> bool) -> OpParseResult<Vec<Vec<usize>>> {
    let wrong = |what: &str| format!("attribute `{name}` {what}");
    let l = s.dense(name)?;
    ensure!(l.shape().rank() == 2, wrong("must be a matrix"));
    let flat = l.as_slice::<i64>().map_err(|_| wrong("must have element type i64"))?;
    let row = |row: &[i64]| {
        let end = row.iter().rposition(|&i| !is_padding(i)).map_or(0, |last| last + 1);
        row[..end].iter().map(|&i| usize::try_from(i)).collect::<Result<Vec<usize>, _>>()
    };
    let rows = flat.chunks(l.shape()[1].max(1)).map(row).collect::<Result<_, _>>();
    rows.map_err(|_| wrong("has a negative entry"))
}

/// Returns the value that all devices agree on, for the condition of a loop or branch with collectives.
///
/// # Errors
/// If devices disagree: some would wait forever for others.
pub fn agreed(said: impl IntoIterator<Item = Scalar>) -> Result<Scalar> {
    let mut said = said.into_iter();
    let first = said.next().unwrap_or(Scalar::Bool(false));
    if said.all(|other| other == first) {
        return Ok(first);
    }
    Err(err!(Graph, "devices disagree on the condition of a loop or branch with collectives")
    .because(
        "all devices must run the same iterations and branches, otherwise they wait for each other forever",
    )
    .hint("compute the condition from values that are the same on all devices"))
}

impl Collective for AllReduce {
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        self.groups.each(args, |xs| Ok(vec![fold(&self.body, xs)?; xs.len()]))
    }
}

impl Collective for AllGather {
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        self.groups.each(args, |xs| Ok(vec![join(xs, self.dim); xs.len()]))
    }
}

impl Collective for ReduceScatter {
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        self.groups.each(args, |xs| Ok(cut(&fold(&self.body, xs)?, self.dim, xs.len())))
    }
}

impl Collective for AllToAll {
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        self.groups.each(args, |xs| {
            let parts: Vec<Vec<Literal>> = xs.iter().map(|x| cut(x, self.split_dim, xs.len())).collect();
            let got = |k: usize| parts.iter().map(|p| &p[k]).collect::<Vec<_>>();
            Ok((0..xs.len()).map(|k| join(&got(k), self.concat_dim)).collect())
        })
    }
}

impl Collective for CollectivePermute {
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        let got = |to: usize| {
            let from = self.pairs.iter().find(|p| p[1] == to).and_then(|p| args.get(p[0]));
            from.map_or_else(|| Literal::zeros(args[to][0].ty().clone()), |x| x[0].clone())
        };
        if let Some(pair) = self.pairs.iter().find(|p| p.iter().any(|&d| d >= args.len())) {
            return Err(err!(Graph, "transfer {pair:?} exceeds the {} devices of the program", args.len())
                .hint("run the program on as many devices as its transfers use"));
        }
        Ok((0..args.len()).map(got).collect())
    }
}

fn number(n: usize) -> Literal {
    Literal::scalar(DType::U32, n as f64)
}

impl Collective for PartitionId {
    fn together(&self, devices: DeviceCounts, _: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        Ok((0..devices.count()).map(|d| number(d % devices.partitions)).collect())
    }
}

impl Collective for ReplicaId {
    fn together(&self, devices: DeviceCounts, _: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        Ok((0..devices.count()).map(|d| number(d / devices.partitions)).collect())
    }
}

/// Reduces arrays of one type element by element.
fn fold(body: &Arc<Graph>, xs: &[&Literal]) -> Result<Literal> {
    let ty = xs[0].ty();
    let mut out = LiteralBuilder::new(ty.clone());
    if Monoid::of(body) == Some(Monoid::Add) && ty.dtype.is_float() {
        let mut sums = xs[0].to_f64s();
        for x in &xs[1..] {
            sums.iter_mut().zip(x.to_f64s()).for_each(|(sum, v)| *sum += v);
        }
        sums.into_iter().enumerate().for_each(|(i, v)| out.set(i, Scalar::Float(v)));
        return Ok(out.finish());
    }
    let mut cx = EvalCx::default();
    for i in 0..ty.elements() {
        let mut sum = xs[0].get(i);
        for x in &xs[1..] {
            sum = cx.run_scalars(body, &[sum, x.get(i)])?[0];
        }
        out.set(i, sum);
    }
    Ok(out.finish())
}

/// Bytes of the contiguous elements from `dim` on, and the number of such runs.
fn runs(ty: &TensorType, dim: usize) -> (usize, usize) {
    let count: usize = ty.shape[..dim].iter().product();
    (ty.bytes() / count.max(1), count)
}

/// Concatenates arrays of one type along a dimension.
fn join(xs: &[&Literal], dim: usize) -> Literal {
    let ty = xs[0].ty();
    let mut dims = ty.shape.to_vec();
    dims[dim] *= xs.len();
    let mut out = Literal::zeros(ty.with_shape(dims));
    let (run, count) = runs(ty, dim);
    for (k, x) in xs.iter().enumerate() {
        for r in 0..count {
            let at = (r * xs.len() + k) * run;
            out.bytes_mut()[at..at + run].copy_from_slice(&x.bytes()[r * run..(r + 1) * run]);
        }
    }
    out
}

/// Splits an array into equal parts along a dimension.
fn cut(x: &Literal, dim: usize, parts: usize) -> Vec<Literal> {
    let mut dims = x.shape().to_vec();
    dims[dim] /= parts;
    let part = x.ty().with_shape(dims);
    let (run, count) = runs(&part, dim);
    let own = |k: usize| {
        let mut out = Literal::zeros(part.clone());
        for r in 0..count {
            let at = (r * parts + k) * run;
            out.bytes_mut()[r * run..(r + 1) * run].copy_from_slice(&x.bytes()[at..at + run]);
        }
        out
    };
    (0..parts).map(own).collect()
}

/// Evaluates a collective on one device.
pub(super) fn alone(op: &impl Collective, args: &[&Literal]) -> Result<Vec<Literal>> {
    op.together(DeviceCounts::ONE, &[args.to_vec()])
}

/// Checks that there is one operand; returns its type.
pub(super) fn one(args: &[&TensorType]) -> Result<TensorType, SpecConstraint> {
    expect_args(args, 1)?;
    Ok(args[0].clone())
}

/// The type with another size of dimension `dim`.
fn resized(x: &TensorType, dim: usize, size: impl FnOnce(usize) -> Option<usize>) -> Option<TensorType> {
    let mut dims = x.shape.to_vec();
    *dims.get_mut(dim)? = size(x.shape[dim])?;
    let shape = Shape::new(dims);
    shape.checked_elements()?;
    Some(x.with_shape(shape))
}

fn divided(n: usize, parts: usize) -> Option<usize> {
    (parts > 0 && n.is_multiple_of(parts)).then(|| n / parts)
}

/// Gradient of a sum over devices; other reductions are not differentiable.
fn summed(body: &Graph, dy: &[Option<Tensor>], back: impl FnOnce(&Tensor) -> Tensor) -> Vec<Grad> {
    match &dy[0] {
        None => vec![Grad::Zero],
        Some(dy) if Monoid::of(body) == Some(Monoid::Add) => vec![Grad::Of(back(dy))],
        Some(_) => vec![Grad::None { why: "only sums over devices are differentiable" }],
    }
}

/// Appends a collective with one operand and one result.
pub(super) fn emit(op: impl Into<Op>, x: &Tensor) -> Tensor {
    x.builder().emit(op, &[x]).remove(0)
}

/// Rules shared by all collectives.
macro_rules! shared {
    () => {
        lowered!(Exchange);

        fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
            alone(self, args)
        }
    };
}

impl OpRule for AllReduce {
    shared!();

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        self.groups.check_members(["C1", "C4"])?;
        reduce::check_fold_body(&self.body, &[x.dtype]).map_err(|c| SpecConstraint::new("C5", c.message))?;
        Ok(smallvec![x])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        summed(&self.body, dy, |dy| emit(self.clone(), dy))
    }

    fn attrs(&self) -> AttrList {
        self.groups.attrs()
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }
}

impl OpRule for AllGather {
    shared!();

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        self.groups.check(["C2", "C5"])?;
        require!(
            self.dim < x.rank(),
            "C1",
            "all_gather_dim {} must be below the rank {}",
            self.dim,
            x.rank()
        );
        let grown = resized(&x, self.dim, |n| n.checked_mul(self.groups.size()));
        Ok(smallvec![
            grown.ok_or_else(|| SpecConstraint::new("C6", format!("the result size overflows for {x}")))?
        ])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero] };
        let body = Monoid::Add.body(dy.dtype());
        vec![Grad::Of(emit(ReduceScatter { groups: self.groups.clone(), dim: self.dim, body }, dy))]
    }

    fn attrs(&self) -> AttrList {
        [vec![("all_gather_dim", Attr::Int(self.dim as i64))], self.groups.attrs()].concat()
    }
}

impl OpRule for ReduceScatter {
    shared!();

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        self.groups.check(["C3", "C6"])?;
        let (dim, n) = (self.dim, self.groups.size());
        require!(dim < x.rank(), "C2", "scatter_dimension {dim} must be below the rank {}", x.rank());
        reduce::check_fold_body(&self.body, &[x.dtype]).map_err(|c| SpecConstraint::new("C7", c.message))?;
        let part = resized(&x, dim, |size| divided(size, n));
        Ok(smallvec![part.ok_or_else(|| {
            SpecConstraint::new("C1", format!("cannot split dimension {dim} of {x} into {n} equal parts"))
        })?])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        summed(&self.body, dy, |dy| emit(AllGather { groups: self.groups.clone(), dim: self.dim }, dy))
    }

    fn attrs(&self) -> AttrList {
        [vec![("scatter_dimension", Attr::Int(self.dim as i64))], self.groups.attrs()].concat()
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.body])
    }
}

impl OpRule for AllToAll {
    shared!();

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        self.groups.check(["C5", "-"])?;
        let (split, concat, n) = (self.split_dim, self.concat_dim, self.groups.size());
        require!(split < x.rank(), "C1", "split_dimension {split} must be below the rank {}", x.rank());
        require!(concat < x.rank(), "C3", "concat_dimension {concat} must be below the rank {}", x.rank());
        let part = resized(&x, split, |size| divided(size, n));
        let part = part.ok_or_else(|| {
            SpecConstraint::new("C2", format!("cannot split dimension {split} of {x} into {n} equal parts"))
        })?;
        let joined = resized(&part, concat, |size| size.checked_mul(n));
        Ok(smallvec![
            joined.ok_or_else(|| SpecConstraint::new("C9", format!("the result size overflows for {x}")))?
        ])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let (split_dim, concat_dim) = (self.concat_dim, self.split_dim);
        let back = AllToAll { groups: self.groups.clone(), split_dim, concat_dim };
        vec![dy[0].as_ref().map_or(Grad::Zero, |dy| Grad::Of(emit(back, dy)))]
    }

    fn attrs(&self) -> AttrList {
        let own = vec![
            ("split_dimension", Attr::Int(self.split_dim as i64)),
            ("concat_dimension", Attr::Int(self.concat_dim as i64)),
            ("split_count", Attr::Int(self.groups.size() as i64)),
        ];
        [own, self.groups.attrs()].concat()
    }
}

impl OpRule for CollectivePermute {
    shared!();

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        let ends = |k: usize| self.pairs.iter().map(|p| p[k]).collect::<Vec<_>>();
        require!(gather::unique(&ends(0)), "C2", "a device is a source twice: {:?}", self.pairs);
        require!(gather::unique(&ends(1)), "C3", "a device is a target twice: {:?}", self.pairs);
        Ok(smallvec![x])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let pairs = self.pairs.iter().map(|&[from, to]| [to, from]).collect();
        let back = CollectivePermute { pairs, channel: self.channel };
        vec![dy[0].as_ref().map_or(Grad::Zero, |dy| Grad::Of(emit(back, dy)))]
    }

    fn attrs(&self) -> AttrList {
        let pairs: Vec<i64> = self.pairs.iter().flatten().map(|&d| d as i64).collect();
        let channel =
            ReplicaGroups { channel: self.channel, ..ReplicaGroups::default() }.attrs().into_iter().skip(1);
        let pairs = ("source_target_pairs", matrix(self.pairs.len(), 2, &pairs));
        std::iter::once(pairs).chain(channel).collect()
    }
}

/// Rules of partition_id and replica_id.
macro_rules! identity {
    ($($op:ident),*) => { $(
        impl OpRule for $op {
            shared!();

            fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
                expect_args(args, 0)?;
                Ok(smallvec![TensorType::scalar(DType::U32)])
            }

            fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
                Vec::new()
            }
        }
    )* };
}

identity!(PartitionId, ReplicaId);

/// Parsing of the collectives, and their samples on one device (several devices need several programs).
macro_rules! exchanges {
    ($($op:ident: $parse:expr, $samples:expr;)*) => { $(
        impl StructuralOp for $op {
            fn parse(source: &OpSource<'_>) -> OpParseResult<Self> {
                $parse(source)
            }

            fn samples() -> Vec<OpSample> {
                $samples
            }

            fn collective(&self) -> Option<&dyn Collective> {
                Some(self)
            }
        }
    )* };
}

exchanges! {
    AllReduce: |s: &OpSource<'_>| Ok(AllReduce { groups: ReplicaGroups::read(s)?, body: s.region(0)? }),
        on_one(|dtype| AllReduce { groups: me(), body: Monoid::Add.body(dtype) }.into());
    AllGather: |s: &OpSource<'_>| Ok(AllGather { groups: ReplicaGroups::read(s)?, dim: s.size("all_gather_dim")? }),
        on_one(|_| AllGather { groups: me(), dim: 1 }.into());
    ReduceScatter: |s: &OpSource<'_>| {
        let dim = s.size("scatter_dimension")?;
        Ok(ReduceScatter { groups: ReplicaGroups::read(s)?, dim, body: s.region(0)? })
    }, on_one(|dtype| ReduceScatter { groups: me(), dim: 1, body: Monoid::Add.body(dtype) }.into());
    AllToAll: read_all_to_all, on_one(|_| AllToAll { groups: me(), split_dim: 1, concat_dim: 0 }.into());
    CollectivePermute: read_permute, on_one(|_| CollectivePermute { pairs: vec![[0, 0]], channel: 0 }.into());
    PartitionId: |_: &OpSource<'_>| Ok(PartitionId), identity_samples(PartitionId.into());
    ReplicaId: |_: &OpSource<'_>| Ok(ReplicaId), identity_samples(ReplicaId.into());
}

fn read_all_to_all(s: &OpSource<'_>) -> OpParseResult<AllToAll> {
    let groups = ReplicaGroups::read(s)?;
    let (split_dim, concat_dim) = (s.size("split_dimension")?, s.size("concat_dimension")?);
    ensure!(s.size("split_count")? != 0, "split_count must be positive (C4)".into());
    match s.size("split_count")? == groups.size() {
        true => Ok(AllToAll { groups, split_dim, concat_dim }),
        false => Err("split_count must equal the group size (C8)".into()),
    }
}

fn read_permute(s: &OpSource<'_>) -> OpParseResult<CollectivePermute> {
    let pairs = numbers(s, "source_target_pairs", |_| false)?;
    let pairs: Option<Vec<[usize; 2]>> = pairs.into_iter().map(|p| p.try_into().ok()).collect();
    let channel = match s.has("channel_handle") {
        true => s.field_size("channel_handle", "channel_handle", "handle")?,
        false => 0,
    };
    Ok(CollectivePermute { pairs: pairs.ok_or("source_target_pairs must be pairs (C1)")?, channel })
}

/// Samples of a unary collective on one device.
pub(super) fn on_one(op: impl Fn(DType) -> Op) -> Vec<OpSample> {
    let run = |x: &[Tensor]| x.iter().map(|x| emit(op(x.dtype()), x)).collect();
    let mut all = moved("one", &[&[3, 5]], run);
    all.extend(moved("empty", &[&[0, 3]], run).into_iter().take(1));
    all
}

/// Groups of a program on one device.
pub(super) fn me() -> ReplicaGroups {
    ReplicaGroups::of(vec![vec![0]])
}

fn identity_samples(op: Op) -> Vec<OpSample> {
    let case = |label: &str, shape: &[usize]| {
        program(label, |g| vec![g.emit(op.clone(), &[]).remove(0).broadcast_to(&Shape::new(shape))])
    };
    vec![case("scalar", &[]), case("empty", &[0])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, grad, interp, text};

    #[test]
    fn groups_of_different_sizes_are_summed() -> Result<()> {
        let ty = TensorType::new(DType::F64, [2]);
        let groups = ReplicaGroups::of(vec![vec![0], vec![1, 2, 3]]);
        let g = GraphBuilder::new("main");
        let x = g.parameter(ty.clone(), "x");
        let sum = emit(AllReduce { groups: groups.clone(), body: Monoid::Add.body(DType::F64) }, &x);
        let dx = grad(&(&sum * &sum).sum_all(), &[&x]).remove(0);
        let graph = g.finish(&[sum, dx])?;
        let written = text::print_program(&graph, &[], None);
        assert!(written.contains("dense<[[0, -1, -1], [1, 2, 3]]>"), "{written}");
        let graph = text::parse_program(&written)?.graph;

        let args =
            (1..=4).map(|k| Literal::from_slice([2], &[f64::from(k), 1.0])).collect::<Result<Vec<_>>>()?;
        let args: Vec<Vec<&Literal>> = args.iter().map(|x| vec![x]).collect();
        let out = interp::run_devices(&graph, DeviceCounts::replicas(4), &args)?;
        let values: Vec<_> = out.iter().map(|own| (own[0].to_f64s(), own[1].to_f64s())).collect();
        let rest = (vec![9.0, 3.0], vec![54.0, 18.0]);
        assert_eq!(values, [(vec![1.0, 1.0], vec![2.0, 2.0]), rest.clone(), rest.clone(), rest]);

        let label = |op: &dyn OpRule| op.infer(&[&ty]).err().map(|c| c.label);
        assert_eq!(label(&AllGather { groups: groups.clone(), dim: 0 }), Some("C2"));
        assert_eq!(label(&AllToAll { groups, split_dim: 0, concat_dim: 0 }), Some("C5"));
        let empty = ReplicaGroups::of(vec![vec![0], vec![]]);
        assert_eq!(label(&AllReduce { groups: empty, body: Monoid::Add.body(DType::F64) }), Some("C1"));
        Ok(())
    }
}
