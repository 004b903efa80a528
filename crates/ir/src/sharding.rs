//! How arrays are split over several devices: [`Mesh`], [`Sharding`] and, for a whole program, [`Shardings`].
//!
//! The terms are Shardy's (the `sdy` dialect): a mesh names the axes of a box of devices, a sharding names for each
//! dimension of an array the axes that split it. What no axis splits is the same on all of them.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use systole_base::{Dims, Error, ErrorKind, Result, Shape, TensorType};

/// A box of devices with named axes, numbered with the last axis fastest.
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
    /// A mesh of axes with their sizes. Errors: no axis, a size of 0, a name twice or that is not a word.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Result<Mesh> {
        let axes: Vec<(String, usize)> = axes.into_iter().map(|(n, s)| (n.into(), s)).collect();
        let wrong = |what: String| {
            Err(Error::new(ErrorKind::Config, what).hint("a mesh is written like data=4 or data=4,model=2"))
        };
        if axes.is_empty() {
            return wrong("a mesh needs an axis".into());
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(word) {
                return wrong(format!("{name:?} is no name for an axis of a mesh"));
            }
            if *size == 0 {
                return wrong(format!("axis {name} of the mesh has no devices"));
            }
            if axes[..i].iter().any(|(n, _)| n == name) {
                return wrong(format!("the mesh has two axes of name {name}"));
            }
        }
        let Some(_) = axes.iter().try_fold(1usize, |n, (_, s)| n.checked_mul(*s)) else {
            return wrong("the mesh has more devices than can be counted".into());
        };
        Ok(Mesh { axes })
    }

    /// Names and sizes, slowest first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.axes
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|(_, s)| s).product()
    }

    /// The number of an axis.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|(n, _)| n == name)
    }

    /// Where a device is, along each axis.
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

    /// `data=4,model=2`.
    fn from_str(text: &str) -> Result<Mesh> {
        let axis = |part: &str| {
            let (name, size) = part.split_once('=')?;
            Some((name.trim().to_string(), size.trim().parse().ok()?))
        };
        let axes: Option<Vec<_>> = text.split(',').map(axis).collect();
        Mesh::new(axes.ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("{text:?} is no mesh"))
                .hint("write each axis with its size, like data=4 or data=4,model=2")
        })?)
    }
}

/// For each dimension of an array the axes (numbers within the mesh) that split it, the slowest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sharding {
    dims: SmallVec<[SmallVec<[usize; 1]>; 4]>,
}

impl Sharding {
    /// An array of `rank` dimensions that every device has whole.
    pub fn replicated(rank: usize) -> Sharding {
        Sharding { dims: (0..rank).map(|_| SmallVec::new()).collect() }
    }

    /// Of the names of the axes that split each dimension. Errors: as [`local`](Sharding::local), or there is no such axis.
    pub fn of_axes(dims: &[Vec<String>], mesh: &Mesh, ty: &TensorType) -> Result<Sharding> {
        let refused = |what: String| Error::new(ErrorKind::Data, what);
        if dims.len() != ty.rank() {
            return Err(refused(format!("a sharding of {} dimensions does not fit {ty}", dims.len())));
        }
        let mut whole = Sharding::replicated(ty.rank());
        for (d, name) in dims.iter().enumerate().flat_map(|(d, axes)| axes.iter().map(move |name| (d, name)))
        {
            let axis = mesh.axis(name).ok_or_else(|| refused(format!("the mesh has no axis {name}")))?;
            whole = whole.split(d, axis);
        }
        whole.local(mesh, ty).map(|_| whole)
    }

    /// As this, with dimension `dim` split along `axis` as well.
    pub fn split(mut self, dim: usize, axis: usize) -> Sharding {
        self.dims[dim].push(axis);
        self
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The axes that split a dimension.
    pub fn axes(&self, dim: usize) -> &[usize] {
        &self.dims[dim]
    }

    /// Whether every device has the whole array.
    pub fn is_replicated(&self) -> bool {
        self.dims.iter().all(|axes| axes.is_empty())
    }

    /// Into how many parts each dimension is split.
    pub fn parts(&self, mesh: &Mesh) -> Dims {
        self.dims.iter().map(|axes| axes.iter().map(|&a| mesh.axes[a].1).product::<usize>()).collect()
    }

    /// The type of one device's part of an array. Errors: the rank differs, an axis is not in the mesh or used twice,
    /// a dimension does not divide.
    pub fn local(&self, mesh: &Mesh, ty: &TensorType) -> Result<TensorType> {
        let wrong = |what: String| Error::new(ErrorKind::Config, what).at(format!("mesh {mesh}, array {ty}"));
        if self.rank() != ty.rank() {
            return Err(wrong(format!("a sharding of {} dimensions does not fit", self.rank())));
        }
        let used: Vec<usize> = self.dims.iter().flatten().copied().collect();
        if let Some(axis) = used.iter().find(|&&a| a >= mesh.axes.len()) {
            return Err(wrong(format!("a sharding names axis {axis} of {}", mesh.axes.len())));
        }
        if (1..used.len()).any(|i| used[..i].contains(&used[i])) {
            return Err(wrong("a sharding uses an axis twice".into()));
        }
        let mut local = Dims::new();
        for (d, (&size, parts)) in ty.shape.iter().zip(self.parts(mesh)).enumerate() {
            if size % parts != 0 {
                let near = size.div_ceil(parts) * parts;
                return Err(wrong(format!(
                    "dimension {d} of size {size} cannot be split into {parts} equal parts"
                ))
                .hint(format!("make it a multiple of {parts}, such as {near}")));
            }
            local.push(size / parts);
        }
        Ok(ty.with_shape(Shape::new(local)))
    }

    /// Which indices of each dimension of an array of shape `whole` a device holds. Call [`local`](Sharding::local) first.
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

    /// As Shardy writes it: `[{"data"}, {}]`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let names = |axes: &SmallVec<[usize; 1]>| {
            let names: Vec<String> = axes.iter().map(|&a| format!("{:?}", mesh.axes[a].0)).collect();
            format!("{{{}}}", names.join(", "))
        };
        let dims: Vec<String> = self.dims.iter().map(names).collect();
        format!("[{}]", dims.join(", "))
    }
}

/// How a program's arguments and results lie on the devices of a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shardings {
    /// The devices.
    pub mesh: Mesh,
    /// One sharding for each parameter.
    pub params: Vec<Sharding>,
    /// One sharding for each result.
    pub results: Vec<Sharding>,
}
