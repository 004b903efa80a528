//! Device meshes and array shardings: [`Mesh`], [`Sharding`], and [`Shardings`] for a whole program.
//!
//! Terms follow Shardy (the `sdy` dialect). A sharding lists, for each dimension of an array, the axes that split it.
//! Arrays are replicated along all other axes.

use crate::ensure;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use systole_base::{Dims, Error, ErrorKind, Result, Shape, TensorType, err};

/// A grid of devices with named axes; device numbers are row-major (last axis fastest).
///
/// ```
/// use systole_ir::Mesh;
/// let mesh: Mesh = "data=4,model=2".parse()?;
/// assert_eq!(mesh.devices(), 8);
/// assert_eq!(mesh.coordinates(5)[..], [2, 1]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
}

impl Mesh {
    /// Creates a mesh from axis names and sizes. Errors if there is no axis, a size is 0, or a name is invalid or repeated.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Result<Mesh> {
        let axes: Vec<(String, usize)> = axes.into_iter().map(|(n, s)| (n.into(), s)).collect();
        let wrong = |what: String| {
            Err(Error::new(ErrorKind::Config, what).hint("write the mesh as data=4 or data=4,model=2"))
        };
        if axes.is_empty() {
            return wrong("a mesh needs at least one axis".into());
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(word) {
                return wrong(format!("invalid name {name:?} of a mesh axis"));
            }
            if *size == 0 {
                return wrong(format!("axis {name} of the mesh has no devices"));
            }
            if axes[..i].iter().any(|(n, _)| n == name) {
                return wrong(format!("the mesh has two axes named {name}"));
            }
        }
        let Some(_) = axes.iter().try_fold(1usize, |n, (_, s)| n.checked_mul(*s)) else {
            return wrong("the number of devices in the mesh overflows".into());
        };
        Ok(Mesh { axes })
    }

    /// Names and sizes of the axes, slowest first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.axes
    }

    /// Number of devices of the mesh.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, s)| s).product()
    }

    /// Index of a mesh axis by name.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|(n, _)| n == name)
    }

    /// Coordinates of a device along each mesh axis.
    pub fn coordinates(&self, device: usize) -> Dims {
        self.shape().unravel(device)
    }

    fn shape(&self) -> Shape {
        Shape::new(self.axes.iter().map(|(_, s)| *s).collect::<Dims>())
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, size)) in self.axes.iter().enumerate() {
            write!(f, "{}{name}={size}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Mesh {
    type Err = Error;

    /// Parses `data=4,model=2`.
    fn from_str(text: &str) -> Result<Mesh> {
        let axis = |part: &str| {
            let (name, size) = part.split_once('=')?;
            Some((name.trim().to_string(), size.trim().parse().ok()?))
        };
        let axes: Option<Vec<_>> = text.split(',').map(axis).collect();
        Mesh::new(axes.ok_or_else(|| {
            err!(Config, "invalid mesh {text:?}")
                .hint("write each axis with its size, such as data=4 or data=4,model=2")
        })?)
    }
}

/// For each dimension of an array, the mesh axes (as indices) that split it, slowest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sharding {
    dims: SmallVec<[SmallVec<[usize; 1]>; 4]>,
}

impl Sharding {
    /// Creates the sharding of an array of `rank` dimensions that is replicated on every device.
    pub fn replicated(rank: usize) -> Sharding {
        Sharding { dims: (0..rank).map(|_| SmallVec::new()).collect() }
    }

    /// Creates a sharding from the names of the axes that split each dimension. Errors like [`local`](Sharding::local), or for an unknown axis.
    pub fn of_axes(dims: &[Vec<String>], mesh: &Mesh, ty: &TensorType) -> Result<Sharding> {
        let refused = |what: String| Error::new(ErrorKind::Data, what);
        ensure!(dims.len() == ty.rank(), refused(format!("got {} sharding dimensions for {ty}", dims.len())));
        let mut whole = Sharding::replicated(ty.rank());
        for (d, name) in dims.iter().enumerate().flat_map(|(d, axes)| axes.iter().map(move |name| (d, name)))
        {
            let axis = mesh.axis(name).ok_or_else(|| refused(format!("the mesh has no axis {name}")))?;
            whole = whole.split(d, axis);
        }
        whole.local(mesh, ty).map(|_| whole)
    }

    /// Returns the sharding with dimension `dim` additionally split along `axis`.
    pub fn split(mut self, dim: usize, axis: usize) -> Sharding {
        self.dims[dim].push(axis);
        self
    }

    /// Number of dimensions of the sharded array.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Mesh axes that split a dimension.
    pub fn axes(&self, dim: usize) -> &[usize] {
        &self.dims[dim]
    }

    /// Whether the array is replicated on every device.
    pub fn is_replicated(&self) -> bool {
        self.dims.iter().all(|axes| axes.is_empty())
    }

    /// Number of shards along each dimension of the array.
    pub fn parts(&self, mesh: &Mesh) -> Dims {
        self.dims.iter().map(|axes| axes.iter().map(|&a| mesh.axes[a].1).product::<usize>()).collect()
    }

    /// Type of one device's shard of an array. Errors if the rank differs, an axis is missing in the mesh or used
    /// twice, or a dimension does not divide evenly.
    pub fn local(&self, mesh: &Mesh, ty: &TensorType) -> Result<TensorType> {
        let wrong = |what: String| Error::new(ErrorKind::Config, what).at(format!("mesh {mesh}, array {ty}"));
        if self.rank() != ty.rank() {
            return Err(wrong(format!("the sharding has {} dimensions, unlike the array", self.rank())));
        }
        let used: Vec<usize> = self.dims.iter().flatten().copied().collect();
        if let Some(axis) = used.iter().find(|&&a| a >= mesh.axes.len()) {
            return Err(wrong(format!(
                "the sharding uses axis {axis} of a mesh of {} axes",
                mesh.axes.len()
            )));
        }
        if (1..used.len()).any(|i| used[..i].contains(&used[i])) {
            return Err(wrong("a sharding uses an axis twice".into()));
        }
        let mut local = Dims::new();
        for (d, (&size, parts)) in ty.shape.iter().zip(self.parts(mesh)).enumerate() {
            if size % parts != 0 {
                let near = size.div_ceil(parts) * parts;
                return Err(wrong(format!(
                    "cannot split dimension {d} of size {size} into {parts} equal parts"
                ))
                .hint(format!("make the size a multiple of {parts}, such as {near}")));
            }
            local.push(size / parts);
        }
        Ok(ty.with_shape(Shape::new(local)))
    }

    /// Index range of each dimension of an array of shape `whole` that a device holds. Call [`local`](Sharding::local) first.
    pub fn ranges(&self, mesh: &Mesh, whole: &Shape, device: usize) -> SmallVec<[Range<usize>; 4]> {
        let at = mesh.coordinates(device);
        let range = |(axes, &size): (&SmallVec<[usize; 1]>, &usize)| {
            let (part, parts) = axes.iter().fold((0, 1), |(part, parts), &a| {
                let n = mesh.axes[a].1;
                (part * n + at[a], parts * n)
            });
            let len = size / parts;
            part * len..(part + 1) * len
        };
        self.dims.iter().zip(whole.iter()).map(range).collect()
    }

    /// Formats the sharding like Shardy: `[{"data"}, {}]`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let names = |axes: &SmallVec<[usize; 1]>| {
            let names: Vec<String> = axes.iter().map(|&a| format!("{:?}", mesh.axes[a].0)).collect();
            format!("{{{}}}", names.join(", "))
        };
        let dims: Vec<String> = self.dims.iter().map(names).collect();
        format!("[{}]", dims.join(", "))
    }
}

/// Shardings of a program's parameters and results on a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shardings {
    /// Mesh of devices.
    pub mesh: Mesh,
    /// Sharding of each parameter.
    pub params: Vec<Sharding>,
    /// Sharding of each result.
    pub results: Vec<Sharding>,
}
