//! Tiled shardings: splits an array into equal tiles and assigns them to devices. Parses GSPMD strings
//! (`mhlo.sharding`) and Shardy mesh axes; serializes to `xla.OpSharding`.

use crate::syntax::ShardyMesh;
use systole_base::{Error, ErrorKind, Literal, LiteralBuilder, Result, Scalar, TensorType};

/// Returns an error about a sharding.
fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what)
}

/// Shardings over more devices are rejected.
const MOST_DEVICES: usize = 1024;

/// Sharding of an array into equal tiles over devices.
///
/// ```
/// use systole_mlir::device_sharding::DeviceSharding;
/// let tiles = DeviceSharding::of_text("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 2, 4)?;
/// assert_eq!(tiles.local(&[6, 3])?, [3, 3]);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSharding {
    /// Number of tiles along each dimension.
    counts: Vec<usize>,
    /// Tile of each device, by its position in the assignment; tiles are numbered in row-major order.
    owner: Vec<usize>,
    /// Term of each device if the array is a sum of per-device terms (unreduced).
    term: Vec<usize>,
}

impl DeviceSharding {
    /// Returns the sharding that replicates an array of `rank` dimensions on every device.
    pub fn replicated(rank: usize, devices: usize) -> DeviceSharding {
        DeviceSharding { counts: vec![1; rank], owner: vec![0; devices], term: vec![0; devices] }
    }

    /// Whether every device holds the whole array.
    pub fn is_replicated(&self) -> bool {
        self.counts.iter().all(|c| *c == 1) && self.terms() == 1
    }

    /// Returns the number of terms of the sum.
    fn terms(&self) -> usize {
        self.term.iter().max().map_or(1, |t| t + 1)
    }

    /// Returns the same tiling with partial sums treated as independent values.
    pub fn without_terms(&self) -> DeviceSharding {
        DeviceSharding { term: vec![0; self.term.len()], ..self.clone() }
    }

    /// Returns the number of devices of the sharding.
    pub fn devices(&self) -> usize {
        self.owner.len()
    }

    /// Creates a sharding from mesh axes (name and size, slowest first) for each dimension. Along the axes in
    /// `unreduced`, devices hold terms of a sum.
    ///
    /// # Errors
    /// `Data` if the mesh has a different number of devices or lacks an axis.
    pub fn of_axes(
        dims: &[Vec<String>],
        unreduced: &[String],
        mesh: &[(String, u64)],
        devices: usize,
    ) -> Result<DeviceSharding> {
        let total = mesh.iter().try_fold(1u64, |n, (_, size)| n.checked_mul(*size));
        if total != Some(devices as u64) {
            return Err(wrong(format!("mesh {mesh:?} does not have {devices} devices")));
        }
        let mut tiles =
            DeviceSharding { counts: Vec::new(), owner: vec![0; devices], term: vec![0; devices] };
        for axes in dims {
            let mut count = 1;
            for axis in axes {
                let (stride, size) = part_of_mesh(mesh, axis)?;
                count *= size;
                for (device, tile) in tiles.owner.iter_mut().enumerate() {
                    *tile = *tile * size + device / stride % size;
                }
            }
            tiles.counts.push(count);
        }
        for axis in unreduced {
            let (stride, size) = part_of_mesh(mesh, axis)?;
            for (device, term) in tiles.term.iter_mut().enumerate() {
                *term = *term * size + device / stride % size;
            }
        }
        Ok(tiles)
    }

    /// Creates a sharding from axes of a Shardy mesh, like [`DeviceSharding::of_axes`], in the mesh's device order.
    ///
    /// # Errors
    /// As above, and if the mesh does not list each device once.
    pub fn on_mesh(
        dims: &[Vec<String>],
        unreduced: &[String],
        mesh: &ShardyMesh,
        devices: usize,
    ) -> Result<DeviceSharding> {
        let tiles = DeviceSharding::of_axes(dims, unreduced, &mesh.axes, devices)?;
        if mesh.devices.is_empty() {
            return Ok(tiles);
        }
        let mut positions = vec![None; devices];
        for (position, device) in mesh.devices.iter().enumerate() {
            if let Some(place) = positions.get_mut(*device as usize) {
                *place = Some(position);
            }
        }
        let positions: Option<Vec<usize>> = positions.into_iter().collect();
        let positions = positions.filter(|_| mesh.devices.len() == devices).ok_or_else(|| {
            wrong(format!("device_ids {:?} of a mesh must list each of {devices} devices once", mesh.devices))
        })?;
        let own = |all: &[usize]| positions.iter().map(|p| all[*p]).collect();
        Ok(DeviceSharding { owner: own(&tiles.owner), term: own(&tiles.term), counts: tiles.counts })
    }

    /// Parses a GSPMD sharding such as `{devices=[2,4]<=[8]}` or `{replicated}` for an array of `rank` dimensions.
    ///
    /// # Errors
    /// `Data` if the text does not parse or is for a different number of devices.
    pub fn of_text(text: &str, rank: usize, devices: usize) -> Result<DeviceSharding> {
        let wrong = || wrong(format!("invalid sharding {text} for {devices} devices"));
        let inner = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(wrong)?.trim();
        let Some(rest) = inner.strip_prefix("devices=[") else {
            let known = ["replicated", "maximal", "manual", "unknown", "unreduced"];
            let known = known.iter().any(|word| inner.starts_with(word));
            return if known { Ok(DeviceSharding::replicated(rank, devices)) } else { Err(wrong()) };
        };
        let (dims, rest) = rest.split_once(']').ok_or_else(wrong)?;
        let dims = numbers(dims).ok_or_else(wrong)?;
        let order = device_order(rest.trim(), devices).ok_or_else(wrong)?;
        let tiles = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if tiles != Some(devices) || dims.len() < rank || order.len() != devices || devices > MOST_DEVICES {
            return Err(wrong());
        }
        let copies: usize = dims[rank..].iter().product();
        let mut owner = vec![usize::MAX; devices];
        for (place, device) in order.iter().enumerate() {
            *owner.get_mut(*device).ok_or_else(wrong)? = place / copies.max(1);
        }
        match owner.contains(&usize::MAX) {
            true => Err(wrong()),
            false => Ok(DeviceSharding { counts: dims[..rank].to_vec(), owner, term: vec![0; devices] }),
        }
    }

    /// Returns the mesh axes that split each dimension, in the form of [`DeviceSharding::of_axes`]; `None` if mesh axes
    /// cannot express the sharding.
    pub(crate) fn axes(&self, mesh: &[(String, u64)]) -> Option<Vec<Vec<String>>> {
        let mut dims: Vec<Vec<(usize, &String)>> = vec![Vec::new(); self.counts.len()];
        for (name, _) in mesh {
            let (stride, size) = part_of_mesh(mesh, name).ok()?;
            // Tile of the next device along the axis; a dimension's slowest axis has the largest step.
            let next = if size > 1 { *self.owner.get(stride)? } else { 0 };
            let place = self.place(next);
            if let Some(d) = place.iter().position(|at| *at > 0) {
                dims[d].push((place[d], name));
            }
        }
        dims.iter_mut().for_each(|axes| axes.sort_by_key(|(step, _)| std::cmp::Reverse(*step)));
        let dims: Vec<Vec<String>> =
            dims.into_iter().map(|axes| axes.into_iter().map(|(_, name)| name.clone()).collect()).collect();
        let same =
            DeviceSharding::of_axes(&dims, &[], mesh, self.devices()).is_ok_and(|tiles| tiles == *self);
        same.then_some(dims)
    }

    /// Returns the shape of one device's shard of an array.
    ///
    /// # Errors
    /// `Data` if a dimension is not divisible.
    pub fn local(&self, dims: &[usize]) -> Result<Vec<usize>> {
        if dims.len() != self.counts.len() {
            let what = format!("sharding of {} dimensions for an array of {}", self.counts.len(), dims.len());
            return Err(wrong(what));
        }
        let one = |(d, c): (&usize, &usize)| match d.is_multiple_of(*c) {
            true => Ok(d / c),
            false => Err(wrong(format!("cannot split a dimension of {d} into {c} equal tiles"))),
        };
        dims.iter().zip(&self.counts).map(one).collect()
    }

    /// Assembles the array of type `ty` from the shards of all devices.
    ///
    /// # Errors
    /// `Data` if a shard is missing or a dimension is not divisible.
    pub fn join(&self, ty: &TensorType, parts: &[Literal]) -> Result<Literal> {
        if self.is_replicated() {
            return parts.first().cloned().ok_or_else(|| wrong("the array has no shards"));
        }
        let mut whole: Option<Literal> = None;
        for term in 0..self.terms() {
            let one = self.join_term(ty, parts, term)?;
            whole = Some(match whole {
                Some(sum) => added(&sum, &one),
                None => one,
            });
        }
        whole.ok_or_else(|| wrong("the array has no shards"))
    }

    fn join_term(&self, ty: &TensorType, parts: &[Literal], term: usize) -> Result<Literal> {
        let local = self.local(&ty.shape)?;
        let mut whole = Literal::zeros(ty.clone());
        let bytes = whole.bytes_mut();
        let tiles: usize = self.counts.iter().product();
        for tile in 0..tiles {
            let holder = self.owner.iter().zip(&self.term).position(|held| held == (&tile, &term));
            let part = holder.and_then(|d| parts.get(d)).ok_or_else(|| wrong("a shard is missing"))?.bytes();
            self.runs(ty, &local, tile, |at, from, len| {
                if let (Some(to), Some(own)) = (bytes.get_mut(at..at + len), part.get(from..from + len)) {
                    to.copy_from_slice(own);
                }
            });
        }
        Ok(whole)
    }

    /// Returns a device's shard of the array; of a sum, the first device gets the values and the others zeros.
    ///
    /// # Errors
    /// `Data` if a dimension is not divisible.
    pub fn cut(&self, whole: &Literal, device: usize) -> Result<Literal> {
        if self.is_replicated() {
            return Ok(whole.clone());
        }
        let local = self.local(&whole.ty().shape)?;
        let mut part = Literal::zeros(TensorType::new(whole.dtype(), &local[..]));
        if self.term.get(device).is_some_and(|t| *t > 0) {
            return Ok(part);
        }
        let tile = self.owner.get(device).copied();
        let tile = tile.ok_or_else(|| {
            wrong(format!("device {device} does not exist: the sharding has {} devices", self.devices()))
        })?;
        let (from, to) = (whole.bytes(), part.bytes_mut());
        self.runs(whole.ty(), &local, tile, |at, own, len| {
            if let (Some(to), Some(from)) = (to.get_mut(own..own + len), from.get(at..at + len)) {
                to.copy_from_slice(from);
            }
        });
        Ok(part)
    }

    /// Returns the start index of each device's shard along each dimension.
    pub(crate) fn starts(&self, local: &[usize]) -> Vec<Vec<usize>> {
        self.owner
            .iter()
            .map(|tile| self.place(*tile).iter().zip(local).map(|(at, n)| at * n).collect())
            .collect()
    }

    /// Returns the index of a tile along each dimension.
    fn place(&self, tile: usize) -> Vec<usize> {
        let (mut place, mut rest) = (vec![0; self.counts.len()], tile);
        for (at, count) in place.iter_mut().zip(&self.counts).rev() {
            *at = rest % count;
            rest /= count;
        }
        place
    }

    /// Returns groups of devices whose shards are adjacent along a dimension and equal in all others, in order.
    pub(crate) fn rows(&self, dim: usize) -> Vec<Vec<usize>> {
        self.groups(|place, term, copy| {
            let at = place.get(dim).copied().unwrap_or(0);
            let others: Vec<usize> =
                place.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, p)| *p).collect();
            ((others, term, copy), at)
        })
    }

    /// Returns groups of devices that hold terms of the same sum.
    pub(crate) fn sums(&self) -> Vec<Vec<usize>> {
        self.groups(|place, term, copy| ((place, 0, copy), term))
    }

    /// Whether each device holds the whole extent of a dimension.
    pub(crate) fn is_whole(&self, dim: usize) -> bool {
        self.counts.get(dim).is_none_or(|c| *c == 1)
    }

    /// Whether the array is not a sum of per-device terms.
    pub(crate) fn is_reduced(&self) -> bool {
        self.terms() == 1
    }

    /// Returns, for each device, whether it holds the first term.
    pub(crate) fn firsts(&self) -> Vec<bool> {
        self.term.iter().map(|t| *t == 0).collect()
    }

    /// Groups devices by a key, ordered by a number; devices with the same shard are distinguished by their order.
    fn groups<K: PartialEq>(&self, key: impl Fn(Vec<usize>, usize, usize) -> (K, usize)) -> Vec<Vec<usize>> {
        let mut groups: Vec<(K, Vec<(usize, usize)>)> = Vec::new();
        for d in 0..self.owner.len() {
            let same = |e: &usize| self.owner[*e] == self.owner[d] && self.term[*e] == self.term[d];
            let copy = (0..d).filter(same).count();
            let (key, at) = key(self.place(self.owner[d]), self.term[d], copy);
            match groups.iter_mut().find(|(k, _)| *k == key) {
                Some((_, group)) => group.push((at, d)),
                None => groups.push((key, vec![(at, d)])),
            }
        }
        let in_order = |(_, mut group): (K, Vec<(usize, usize)>)| {
            group.sort_unstable();
            group.into_iter().map(|(_, d)| d).collect()
        };
        groups.into_iter().map(in_order).collect()
    }

    /// Calls `each` for every contiguous run of bytes: offset in the array, offset in the shard, length.
    fn runs(&self, ty: &TensorType, local: &[usize], tile: usize, mut each: impl FnMut(usize, usize, usize)) {
        let rank = local.len();
        let size = ty.dtype.size();
        let start: Vec<usize> = self.place(tile).iter().zip(local).map(|(at, n)| at * n).collect();
        // Dimensions after the last split one are contiguous.
        let last = (0..rank).rev().find(|&d| self.counts[d] > 1).unwrap_or(0);
        let len = local.get(last..).unwrap_or_default().iter().product::<usize>() * size;
        let rows: usize = local.get(..last).unwrap_or_default().iter().product();
        for row in 0..rows {
            let (mut index, mut rest) = (start.clone(), row);
            for d in (0..last).rev() {
                index[d] += rest % local[d];
                rest /= local[d];
            }
            let at = index.iter().zip(ty.shape.iter()).fold(0, |at, (i, n)| at * n + i);
            each(at * size, row * len, len);
        }
    }

    /// Formats the sharding as GSPMD text, which [`DeviceSharding::of_text`] parses; sums of terms are written as
    /// replicated.
    pub fn to_text(&self) -> String {
        if self.is_replicated() || self.terms() > 1 {
            return "{replicated}".into();
        }
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let copies = self.owner.len() / self.counts.iter().product::<usize>().max(1);
        let (mut dims, mut more) = (self.counts.clone(), "");
        if copies > 1 {
            dims.push(copies);
            more = " last_tile_dim_replicate";
        }
        let mut devices: Vec<usize> = (0..self.owner.len()).collect();
        devices.sort_by_key(|d| self.owner[*d]);
        format!("{{devices=[{}]{}{more}}}", list(&dims), list(&devices))
    }

    /// Serializes to an `xla.OpSharding` message: <https://github.com/openxla/xla/blob/main/xla/xla_data.proto>.
    pub fn to_proto(&self) -> Vec<u8> {
        if self.is_replicated() {
            // type = REPLICATED
            return vec![0x08, 0];
        }
        let (tiles, terms) = (self.counts.iter().product::<usize>(), self.terms());
        let copies = self.owner.len() / (tiles * terms).max(1);
        let mut devices: Vec<usize> = (0..self.owner.len()).collect();
        devices.sort_by_key(|d| self.owner[*d]);
        let (mut dims, mut kinds) = (self.counts.clone(), Vec::new());
        if copies > 1 {
            dims.push(copies);
            kinds.push(0);
        }
        if terms > 1 {
            // UNREDUCED: the terms of each copy.
            dims.push(terms);
            kinds.push(6);
            let copy = |d: usize| {
                (0..d).filter(|e| self.owner[*e] == self.owner[d] && self.term[*e] == self.term[d]).count()
            };
            devices.sort_by_key(|d| (self.owner[*d], copy(*d), self.term[*d]));
        }
        // type = OTHER
        let mut bytes = vec![0x08, 3];
        packed(3, &dims, &mut bytes);
        packed(4, &devices, &mut bytes);
        match terms {
            1 if copies > 1 => bytes.extend([0x30, 1]),
            1 => {}
            _ => packed(8, &kinds, &mut bytes),
        }
        bytes
    }
}

/// Adds element by element.
fn added(a: &Literal, b: &Literal) -> Literal {
    let mut sum = LiteralBuilder::new(a.ty().clone());
    for i in 0..a.ty().elements() {
        sum.set(
            i,
            match (a.get(i), b.get(i)) {
                (Scalar::Float(x), Scalar::Float(y)) => Scalar::Float(x + y),
                (Scalar::Int(x), Scalar::Int(y)) => Scalar::Int(x.wrapping_add(y)),
                (Scalar::Uint(x), Scalar::Uint(y)) => Scalar::Uint(x.wrapping_add(y)),
                (Scalar::Bool(x), Scalar::Bool(y)) => Scalar::Bool(x || y),
                (x, _) => x,
            },
        );
    }
    sum.finish()
}

/// Returns stride and size of an axis or sub-axis: `x`, or `x:(2)4` for the four parts after the first two.
fn part_of_mesh(mesh: &[(String, u64)], axis: &str) -> Result<(usize, usize)> {
    let (name, part) = axis.split_once(':').map_or((axis, None), |(name, part)| (name, Some(part)));
    let missing = || wrong(format!("the mesh has no axis {axis}"));
    let at = mesh.iter().position(|(n, _)| n == name).ok_or_else(missing)?;
    let size = usize::try_from(mesh[at].1).map_err(|_| missing())?;
    let stride: usize = mesh[at + 1..].iter().map(|(_, size)| *size as usize).product();
    let Some(part) = part else { return Ok((stride, size)) };
    let (before, own) = part.strip_prefix('(').and_then(|p| p.split_once(')')).ok_or_else(missing)?;
    let (before, own): (usize, usize) =
        (before.parse().map_err(|_| missing())?, own.parse().map_err(|_| missing())?);
    match before.checked_mul(own) {
        Some(n) if n > 0 && size.is_multiple_of(n) => Ok((stride * (size / n), own)),
        _ => Err(missing()),
    }
}

/// Writes `field: repeated int64`, packed.
fn packed(field: u8, values: &[usize], out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    values.iter().for_each(|v| varint(*v as u64, &mut inner));
    out.push(field << 3 | 2);
    varint(inner.len() as u64, out);
    out.extend(inner);
}

fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v > 0x7f {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    text.split(',').filter(|t| !t.trim().is_empty()).map(|t| t.trim().parse().ok()).collect()
}

/// Parses the device order of the tiles: `<=[8]`, `<=[2,4]T(1,0)`, `0,2,1,3`; more words may follow.
fn device_order(text: &str, devices: usize) -> Option<Vec<usize>> {
    let Some(iota) = text.strip_prefix("<=[") else { return numbers(text.split_whitespace().next()?) };
    let (dims, rest) = iota.split_once(']')?;
    let dims = numbers(dims)?;
    if dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(devices) {
        return None;
    }
    let order = match rest.strip_prefix("T(") {
        Some(rest) => numbers(rest.split_once(')')?.0)?,
        None => (0..dims.len()).collect(),
    };
    let mut seen = order.clone();
    seen.sort_unstable();
    if !seen.into_iter().eq(0..dims.len()) {
        return None;
    }
    let stride = |d: usize| dims[d + 1..].iter().product::<usize>();
    let mut all = vec![0];
    for d in order {
        let step = stride(d);
        all = all.iter().flat_map(|at| (0..dims[d]).map(move |i| at + i * step)).collect();
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Vec<(String, u64)> {
        vec![("x".into(), 2), ("y".into(), 4)]
    }

    fn axes(dims: &[&[&str]]) -> DeviceSharding {
        let dims: Vec<Vec<String>> = dims.iter().map(|d| d.iter().map(|a| a.to_string()).collect()).collect();
        DeviceSharding::of_axes(&dims, &[], &mesh(), 8).unwrap()
    }

    #[test]
    fn a_mesh_has_the_order_of_its_devices() -> Result<()> {
        let mesh = |devices: &[u64]| ShardyMesh {
            name: "mesh".into(),
            axes: vec![("x".into(), 2), ("y".into(), 2)],
            devices: devices.to_vec(),
        };
        let dims = [vec!["x".to_string()], vec!["y".to_string()]];
        for (devices, text) in [
            (&[][..], "{devices=[2,2]<=[4]}"),
            (&[3, 2, 1, 0], "{devices=[2,2]3,2,1,0}"),
            (&[2, 0, 3, 1], "{devices=[2,2]2,0,3,1}"),
        ] {
            let tiles = DeviceSharding::on_mesh(&dims, &[], &mesh(devices), 4)?;
            assert_eq!(tiles, DeviceSharding::of_text(text, 2, 4)?, "{text}");
        }
        for wrong in [&[0, 1, 2][..], &[0, 1, 2, 2], &[0, 1, 2, 4], &[0, 1, 2, 3, 3]] {
            assert!(DeviceSharding::on_mesh(&dims, &[], &mesh(wrong), 4).is_err(), "{wrong:?}");
        }
        Ok(())
    }

    #[test]
    fn both_ways_to_write_a_sharding_say_the_same() {
        for (dims, text) in [
            (&[&["x"][..], &["y"]][..], "{devices=[2,4]<=[8]}"),
            (&[&["y"], &["x"]], "{devices=[4,2]<=[2,4]T(1,0)}"),
            (&[&["x"], &[]], "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
            (&[&[], &["y"]], "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"),
            (&[&["y", "x"], &[]], "{devices=[8,1]0,4,1,5,2,6,3,7}"),
            (&[&["y:(1)2"], &[]], "{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dims={replicated}}"),
            (&[&[], &[]], "{replicated}"),
        ] {
            assert_eq!(axes(dims), DeviceSharding::of_text(text, 2, 8).unwrap(), "{text}");
            assert_eq!(axes(dims), DeviceSharding::of_text(&axes(dims).to_text(), 2, 8).unwrap(), "{text}");
        }
        for wrong in ["", "{devices=[2,4]<=[7]}", "{devices=[2]0,0}", "{devices=[8,1]<=[8]T(1)}", "{half}"] {
            assert!(DeviceSharding::of_text(wrong, 2, 8).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_sum_of_terms_is_the_whole() {
        let tiles = DeviceSharding::of_axes(&[vec!["x".into()]], &["y".into()], &mesh(), 8).unwrap();
        let whole = Literal::from_slice([4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let parts: Vec<Literal> = (0..8).map(|d| tiles.cut(&whole, d).unwrap()).collect();
        assert_eq!((parts[4].to_f32s(), parts[5].to_f32s()), (vec![3.0, 4.0], vec![0.0, 0.0]));
        assert_eq!(tiles.join(whole.ty(), &parts).unwrap(), whole);
        assert_eq!(tiles.sums(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        // type: OTHER, dimensions 2 and 4, the devices in order, last dimension UNREDUCED.
        let expected = [8, 3, 0x1a, 2, 2, 4, 0x22, 8, 0, 1, 2, 3, 4, 5, 6, 7, 0x42, 1, 6];
        assert_eq!(tiles.to_proto(), expected);
    }

    #[test]
    fn parts_joined_are_the_whole() {
        let values: Vec<f32> = (0..8 * 4 * 3).map(|i| i as f32).collect();
        let whole = Literal::from_slice([8, 4, 3], &values).unwrap();
        for dims in
            [&[&["x"][..], &["y"], &[]][..], &[&["y", "x"], &[], &[]], &[&[], &["x"], &[]], &[&[], &[], &[]]]
        {
            let tiles = axes(dims);
            let parts: Vec<Literal> = (0..8).map(|d| tiles.cut(&whole, d).unwrap()).collect();
            assert_eq!(parts[0].shape().to_vec(), tiles.local(&[8, 4, 3]).unwrap());
            assert_eq!(tiles.join(whole.ty(), &parts).unwrap(), whole);
        }
        let second = axes(&[&["x"], &["y"], &[]]).cut(&whole, 6).unwrap();
        assert_eq!(second.to_f32s()[..3], [4.0 * 12.0 + 6.0, 4.0 * 12.0 + 7.0, 4.0 * 12.0 + 8.0]);
    }
}
