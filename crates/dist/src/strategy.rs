//! Distribution strategies: which arrays of a program are sharded over which mesh axes.

use std::ops::Range;
use systole_ir::{Graph, Mesh, Result, Sharding, Shardings, TensorType, err};
use systole_runtime::ValueRoles;

/// Distribution strategy: how training steps are split over devices. An argument of `compile`.
///
/// | strategy | batch | weights, optimizer slots | known as |
/// |---|---|---|---|
/// | [`one_device`](Strategy::one_device) | whole | whole | no strategy |
/// | [`data_parallel`](Strategy::data_parallel) | split | replicated | Keras's `TPUStrategy` and `MirroredStrategy`, PyTorch's DDP |
/// | [`fully_sharded`](Strategy::fully_sharded) | split | split, gathered where they are used | PyTorch's FSDP, ZeRO stage 3 |
///
/// Results equal those of one device up to the order of summation: losses, metrics, batch normalization and dropout
/// apply to the whole batch.
///
/// ```
/// use systole_dist::Strategy;
/// let s = Strategy::data_parallel().devices(8);
/// assert_eq!(s.to_string(), "data_parallel over data=8");
/// let s = Strategy::parse("fully_sharded")?.mesh("data=4".parse()?);
/// assert_eq!(s.to_string(), "fully_sharded over data=4");
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Strategy {
    pub(crate) kind: StrategyKind,
    pub(crate) mesh: Option<Mesh>,
    /// Number of devices, if no mesh is given.
    pub(crate) devices: Option<usize>,
    /// Path patterns, and for each dimension the mesh axis that splits it.
    shardings: Vec<(String, Vec<Option<String>>)>,
}

/// Built-in strategies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum StrategyKind {
    #[default]
    OneDevice,
    DataParallel,
    FullySharded,
    Auto,
}

const KINDS: [(&str, StrategyKind); 4] = [
    ("one_device", StrategyKind::OneDevice),
    ("data_parallel", StrategyKind::DataParallel),
    ("fully_sharded", StrategyKind::FullySharded),
    ("auto", StrategyKind::Auto),
];

/// Minimum number of elements of a sharded weight.
const SMALL: usize = 1024;

impl Strategy {
    fn of(kind: StrategyKind) -> Strategy {
        Strategy { kind, ..Strategy::default() }
    }

    /// Creates the strategy that runs everything on one device.
    pub fn one_device() -> Strategy {
        Strategy::of(StrategyKind::OneDevice)
    }

    /// Creates the data-parallel strategy: splits every batch over the devices, replicates the weights and sums the
    /// gradients.
    pub fn data_parallel() -> Strategy {
        Strategy::of(StrategyKind::DataParallel)
    }

    /// Creates the fully sharded strategy: like [`data_parallel`](Strategy::data_parallel), but also splits weights and
    /// optimizer slots along their largest evenly divisible dimension. Weights of fewer than 1,024 elements are
    /// replicated.
    pub fn fully_sharded() -> Strategy {
        Strategy::of(StrategyKind::FullySharded)
    }

    /// Creates the default strategy: data parallel if the backend has several devices, otherwise one device.
    pub fn auto() -> Strategy {
        Strategy::of(StrategyKind::Auto)
    }

    /// Names of strategies accepted by [`parse`](Strategy::parse).
    pub const NAMES: [&str; 4] = [KINDS[0].0, KINDS[1].0, KINDS[2].0, KINDS[3].0];

    /// Parses a name: `one_device`, `data_parallel`, `fully_sharded` or `auto`. Errors on other names.
    pub fn parse(name: &str) -> Result<Strategy> {
        let found = KINDS.iter().find(|(n, _)| *n == name).map(|(_, kind)| Strategy::of(*kind));
        found.ok_or_else(|| {
            err!(Config, "unknown strategy `{name}`")
                .hint(format!("choose one of these strategies: {}", Strategy::NAMES.join(", ")))
        })
    }

    /// Name of the distribution strategy, as accepted by [`parse`](Strategy::parse).
    pub fn name(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(n, _)| n)
    }

    /// Sets the number of devices, as a mesh with one axis named `data`. A single-device backend creates logical
    /// devices. Default: all devices of the backend.
    pub fn devices(mut self, n: usize) -> Strategy {
        self.devices = Some(n);
        self
    }

    /// Sets the device mesh. The batch is split along its axis `data`, or along the first axis if there is none.
    pub fn mesh(mut self, mesh: Mesh) -> Strategy {
        self.mesh = Some(mesh);
        self
    }

    /// Shards the arrays whose path matches `pattern` along the given mesh axes, one for each dimension. `*` matches
    /// anything; `dense*/kernel` also matches its optimizer slots. Only for backends that partition programs
    /// themselves; others reject axes other than that of the batch.
    pub fn shard<'a>(mut self, pattern: &str, axes: impl IntoIterator<Item = Option<&'a str>>) -> Strategy {
        let axes = axes.into_iter().map(|a| a.map(str::to_string)).collect();
        self.shardings.push((pattern.into(), axes));
        self
    }

    /// Returns the number of parts into which batches are split on `devices` devices, and which parts the devices `own`
    /// process.
    ///
    /// ```
    /// use systole_dist::Strategy;
    /// assert_eq!(Strategy::data_parallel().batch_parts(8, 4..8), (8, 4..8));
    /// let mesh = "data=2,model=4".parse()?;
    /// assert_eq!(Strategy::data_parallel().mesh(mesh).batch_parts(8, 4..8), (2, 1..2));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn batch_parts(&self, devices: usize, own: Range<usize>) -> (usize, Range<usize>) {
        let Some(mesh) = &self.mesh else { return (devices, own) };
        let axis = mesh.axis("data").unwrap_or(0);
        let parts = own.map(|device| mesh.coordinates(device)[axis]);
        let (first, last) = parts.fold((usize::MAX, 0), |(first, last), p| (first.min(p), last.max(p)));
        (mesh.axes()[axis].1, first.min(last)..last + 1)
    }

    /// Returns the shardings of a program's parameters and results on `mesh`. With `split_batch = false` the batch is
    /// replicated.
    pub fn spread(
        &self,
        mesh: &Mesh,
        graph: &Graph,
        roles: &ValueRoles,
        split_batch: bool,
    ) -> Result<Shardings> {
        let axis = mesh.axis("data").unwrap_or(0);
        let mut params = Vec::with_capacity(graph.params.len());
        for (i, (&p, name)) in graph.params.iter().zip(&graph.param_names).enumerate() {
            let ty = graph.ty(p);
            params.push(match roles.batch.contains(&i) {
                true if split_batch && ty.rank() > 0 => Sharding::replicated(ty.rank()).split(0, axis),
                true => Sharding::replicated(ty.rank()),
                false if roles.whole.contains(&i) => Sharding::replicated(ty.rank()),
                false => self.state(mesh, axis, name, ty)?,
            });
        }
        let result = |(k, ty): (usize, TensorType)| match roles.replaces.get(k).copied().flatten() {
            Some(p) if graph.ty(graph.params[p]).shape == ty.shape => params[p].clone(),
            _ => Sharding::replicated(ty.rank()),
        };
        let results = graph.result_types().into_iter().enumerate().map(result).collect();
        Ok(Shardings { mesh: mesh.clone(), params, results })
    }

    /// Sharding of a weight, an optimizer slot or another non-batch value.
    fn state(&self, mesh: &Mesh, axis: usize, name: &str, ty: &TensorType) -> Result<Sharding> {
        let whole = Sharding::replicated(ty.rank());
        if let Some((pattern, axes)) =
            self.shardings.iter().find(|(p, axes)| axes.len() == ty.rank() && finds(p, name))
        {
            let mut sharding = whole;
            for (d, own) in axes.iter().enumerate().filter_map(|(d, a)| Some((d, a.as_ref()?))) {
                let axis = mesh.axis(own).ok_or_else(|| {
                    err!(Config, "the mesh {mesh} has no axis `{own}`").at(format!("sharding of {pattern}"))
                })?;
                sharding = sharding.split(d, axis);
            }
            return Ok(sharding);
        }
        let parts = mesh.axes()[axis].1;
        let divides = |d: &usize| ty.shape[*d].is_multiple_of(parts);
        let split = self.kind == StrategyKind::FullySharded && ty.elements() >= SMALL.max(parts);
        // The first of the largest dimensions.
        let best = (0..ty.rank()).rev().filter(divides).max_by_key(|&d| ty.shape[d]);
        Ok(match best {
            Some(d) if split => whole.split(d, axis),
            _ => whole,
        })
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name();
        match (&self.mesh, self.devices) {
            (Some(mesh), _) => write!(f, "{name} over {mesh}"),
            (None, Some(n)) => write!(f, "{name} over data={n}"),
            (None, None) => write!(f, "{name}"),
        }
    }
}

/// Whether a pattern matches a path (`0/dense/kernel`) or a suffix of it that starts after a `/`.
fn finds(pattern: &str, path: &str) -> bool {
    let ends = path.match_indices('/').map(|(i, _)| &path[i + 1..]);
    std::iter::once(path).chain(ends).any(|end| matches(pattern.as_bytes(), end.as_bytes()))
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=text.len()).any(|i| matches(rest, &text[i..])),
        (Some((a, rest)), Some((b, after))) => a == b && matches(rest, after),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, Literal, Tensor};
    use systole_runtime::jit;

    #[test]
    fn what_must_be_whole_is_not_split() {
        let add = |(weight, count): (Tensor, Tensor)| (&weight + 1.0, &count + 1.0);
        let zeros = || Literal::zeros(TensorType::new(DType::F32, [4096])).into();
        let (graph, roles) = jit(add).whole(1).program((zeros(), zeros())).unwrap();
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let spread = Strategy::fully_sharded().spread(&mesh, &graph, &roles, true).unwrap();
        let whole = Sharding::replicated(1);
        assert_eq!(spread.params, [whole.clone().split(0, 0), whole]);
        assert_eq!(spread.params, spread.results);
    }

    #[test]
    fn patterns_find_paths_and_their_ends() {
        assert!(finds("dense*/kernel", "0/dense_1/kernel"));
        assert!(finds("dense*/kernel", "2/adam/m/dense/kernel"));
        assert!(finds("*", "anything"));
        assert!(!finds("dense/kernel", "0/dense_1/kernel"));
        assert!(!finds("kernel", "0/dense/kernel_2"));
    }
}
