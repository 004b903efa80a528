//! Which arrays of a program are split, and how.

use std::ops::Range;
use systole_ir::{Error, ErrorKind, Graph, Mesh, Result, Sharding, Shardings, TensorType};
use systole_runtime::ValueRoles;

/// How a model's steps are split over devices: an argument of `compile`.
///
/// | strategy | the batch | weights, optimizer slots | known as |
/// |---|---|---|---|
/// | [`one_device`](Strategy::one_device) | whole | whole | no strategy |
/// | [`data_parallel`](Strategy::data_parallel) | split | whole on each device | Keras's `TPUStrategy` and `MirroredStrategy`, PyTorch's DDP |
/// | [`fully_sharded`](Strategy::fully_sharded) | split | split, gathered where they are used | PyTorch's FSDP, ZeRO stage 3 |
///
/// Results are those of one device up to the order of sums: losses, metrics, batch normalisation and dropout are of the
/// whole batch.
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
    /// Without a mesh: how many devices.
    pub(crate) devices: Option<usize>,
    /// Patterns of paths, and for each dimension the axis that splits it.
    shardings: Vec<(String, Vec<Option<String>>)>,
}

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

/// Arrays of fewer elements are not worth splitting.
const SMALL: usize = 1024;

impl Strategy {
    fn of(kind: StrategyKind) -> Strategy {
        Strategy { kind, ..Strategy::default() }
    }

    /// Everything on one device.
    pub fn one_device() -> Strategy {
        Strategy::of(StrategyKind::OneDevice)
    }

    /// Each device takes a part of every batch; gradients are summed.
    pub fn data_parallel() -> Strategy {
        Strategy::of(StrategyKind::DataParallel)
    }

    /// As [`data_parallel`](Strategy::data_parallel), and weights and optimizer slots are split along their greatest
    /// dimension that divides. Those of fewer than 1,024 elements stay whole.
    pub fn fully_sharded() -> Strategy {
        Strategy::of(StrategyKind::FullySharded)
    }

    /// Data parallel where the backend has several devices, else one device.
    pub fn auto() -> Strategy {
        Strategy::of(StrategyKind::Auto)
    }

    /// The names that [`parse`](Strategy::parse) takes.
    pub const NAMES: [&str; 4] = [KINDS[0].0, KINDS[1].0, KINDS[2].0, KINDS[3].0];

    /// The strategy of a name: `one_device`, `data_parallel`, `fully_sharded`, `auto`. Errors: another name.
    pub fn parse(name: &str) -> Result<Strategy> {
        let found = KINDS.iter().find(|(n, _)| *n == name).map(|(_, kind)| Strategy::of(*kind));
        found.ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("there is no strategy `{name}`"))
                .hint(format!("one of: {}", Strategy::NAMES.join(", ")))
        })
    }

    /// The name that [`parse`](Strategy::parse) takes.
    pub fn name(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(n, _)| n)
    }

    /// How many devices, on one axis named `data`. On a backend of one device they are logical ones. The default: all
    /// devices of the backend.
    pub fn devices(mut self, n: usize) -> Strategy {
        self.devices = Some(n);
        self
    }

    /// The devices as a mesh. The batch is split along its axis `data`, or else its first.
    pub fn mesh(mut self, mesh: Mesh) -> Strategy {
        self.mesh = Some(mesh);
        self
    }

    /// Splits the arrays whose path matches `pattern` (`*` stands for anything; `dense*/kernel` also finds its optimizer
    /// slots) and that have as many dimensions as `axes`, each along the axis named there. For backends that split programs
    /// by themselves; others refuse axes beside the batch's.
    pub fn shard<'a>(mut self, pattern: &str, axes: impl IntoIterator<Item = Option<&'a str>>) -> Strategy {
        let axes = axes.into_iter().map(|a| a.map(str::to_string)).collect();
        self.shardings.push((pattern.into(), axes));
        self
    }

    /// Into how many parts batches are split on so many devices, and which parts the devices `own` take.
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

    /// How a program's parameters and results lie on `mesh`. `split_batch`: false where every device takes all of it.
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

    /// Where a weight, a slot or another value beside the batch lies.
    fn state(&self, mesh: &Mesh, axis: usize, name: &str, ty: &TensorType) -> Result<Sharding> {
        let whole = Sharding::replicated(ty.rank());
        if let Some((pattern, axes)) =
            self.shardings.iter().find(|(p, axes)| axes.len() == ty.rank() && finds(p, name))
        {
            let mut sharding = whole;
            for (d, own) in axes.iter().enumerate().filter_map(|(d, a)| Some((d, a.as_ref()?))) {
                let axis = mesh.axis(own).ok_or_else(|| {
                    Error::new(ErrorKind::Config, format!("the mesh {mesh} has no axis {own}"))
                        .at(format!("the sharding of {pattern}"))
                })?;
                sharding = sharding.split(d, axis);
            }
            return Ok(sharding);
        }
        let parts = mesh.axes()[axis].1;
        let divides = |d: &usize| ty.shape[*d].is_multiple_of(parts);
        let split = self.kind == StrategyKind::FullySharded && ty.elements() >= SMALL.max(parts);
        // The first of the greatest.
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

/// Whether a pattern matches a path (`0/dense/kernel`) or its end from some `/` on.
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
