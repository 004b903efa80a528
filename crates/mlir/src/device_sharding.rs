//! How an array of all devices lies on them: equal tiles, and which of them each device has. Read from the strings of
//! GSPMD (`mhlo.sharding`) and from axes of a mesh (Shardy); told to others as `xla.OpSharding`.

use systole_base::{Error, ErrorKind, Literal, LiteralBuilder, Result, Scalar, TensorType};

/// An error about a sharding.
fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what)
}

/// More devices than this are a mistake.
const MOST_DEVICES: usize = 1024;

/// Equal tiles of an array over devices.
///
/// ```
/// use systole_mlir::tiles::Tiles;
/// let tiles = Tiles::of_text("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 2, 4)?;
/// assert_eq!(tiles.local(&[6, 3])?, [3, 3]);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSharding {
    /// Into how many parts each dimension is split.
    counts: Vec<usize>,
    /// The tile of each device, by its place in the assignment; tiles are numbered in row-major order.
    owner: Vec<usize>,
    /// Which term of a sum each device has, where the array is a sum of what devices have.
    term: Vec<usize>,
}

impl DeviceSharding {
    /// Every device has all of an array of `rank` dimensions.
    pub fn replicated(rank: usize, devices: usize) -> DeviceSharding {
        DeviceSharding { counts: vec![1; rank], owner: vec![0; devices], term: vec![0; devices] }
    }

    /// Whether every device has all of it.
    pub fn is_replicated(&self) -> bool {
        self.counts.iter().all(|c| *c == 1) && self.terms() == 1
    }

    /// Of how many terms it is the sum.
    fn terms(&self) -> usize {
        self.term.iter().max().map_or(1, |t| t + 1)
    }

    /// Where the same parts lie, but each device has its own values.
    pub fn without_terms(&self) -> DeviceSharding {
        DeviceSharding { term: vec![0; self.term.len()], ..self.clone() }
    }

    /// How many devices there are.
    pub fn devices(&self) -> usize {
        self.owner.len()
    }

    /// Of the axes of a mesh (name and size, the first slowest) that split each dimension, the first slowest; along those
    /// of `unreduced` devices have terms of a sum.
    ///
    /// # Errors
    /// `Data` when the mesh has other devices or no such axes.
    pub fn of_axes(
        dims: &[Vec<String>],
        unreduced: &[String],
        mesh: &[(String, u64)],
        devices: usize,
    ) -> Result<DeviceSharding> {
        let total = mesh.iter().try_fold(1u64, |n, (_, size)| n.checked_mul(*size));
        if total != Some(devices as u64) {
            return Err(wrong(format!("a mesh {mesh:?} for {devices} devices")));
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

    /// `{devices=[2,4]<=[8]}`, `{replicated}` and the other forms of GSPMD, for an array of `rank` dimensions.
    ///
    /// # Errors
    /// `Data` when it is none of them, or for other devices.
    pub fn of_text(text: &str, rank: usize, devices: usize) -> Result<DeviceSharding> {
        let wrong = || wrong(format!("the sharding {text} is not understood for {devices} devices"));
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

    /// The axes of a mesh that split each dimension, as [`DeviceSharding::of_axes`] takes them; `None` where no axes say it.
    pub(crate) fn axes(&self, mesh: &[(String, u64)]) -> Option<Vec<Vec<String>>> {
        let mut dims: Vec<Vec<(usize, &String)>> = vec![Vec::new(); self.counts.len()];
        for (name, _) in mesh {
            let (stride, size) = part_of_mesh(mesh, name).ok()?;
            // Where the next device along the axis has its tile; a dimension's slowest axis goes farthest.
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

    /// The dimensions of one device's part.
    ///
    /// # Errors
    /// `Data` when a dimension does not divide.
    pub fn local(&self, dims: &[usize]) -> Result<Vec<usize>> {
        if dims.len() != self.counts.len() {
            let what = format!("a sharding of {} dimensions for {}", self.counts.len(), dims.len());
            return Err(wrong(what));
        }
        let one = |(d, c): (&usize, &usize)| match d.is_multiple_of(*c) {
            true => Ok(d / c),
            false => Err(wrong(format!("a dimension of {d} is not split into {c} equal parts"))),
        };
        dims.iter().zip(&self.counts).map(one).collect()
    }

    /// Parts of all devices → the array. `ty` is that of the whole.
    ///
    /// # Errors
    /// `Data` when a part is missing or a dimension does not divide.
    pub fn join(&self, ty: &TensorType, parts: &[Literal]) -> Result<Literal> {
        if self.is_replicated() {
            return parts.first().cloned().ok_or_else(|| wrong("an array without parts"));
        }
        let mut whole: Option<Literal> = None;
        for term in 0..self.terms() {
            let one = self.join_term(ty, parts, term)?;
            whole = Some(match whole {
                Some(sum) => added(&sum, &one),
                None => one,
            });
        }
        whole.ok_or_else(|| wrong("an array without parts"))
    }

    fn join_term(&self, ty: &TensorType, parts: &[Literal], term: usize) -> Result<Literal> {
        let local = self.local(&ty.shape)?;
        let mut whole = Literal::zeros(ty.clone());
        let bytes = whole.bytes_mut();
        let tiles: usize = self.counts.iter().product();
        for tile in 0..tiles {
            let holder = self.owner.iter().zip(&self.term).position(|held| held == (&tile, &term));
            let part = holder.and_then(|d| parts.get(d)).ok_or_else(|| wrong("a part is missing"))?.bytes();
            self.runs(ty, &local, tile, |at, from, len| {
                if let (Some(to), Some(own)) = (bytes.get_mut(at..at + len), part.get(from..from + len)) {
                    to.copy_from_slice(own);
                }
            });
        }
        Ok(whole)
    }

    /// A device's part of the array: of a sum the first device has all, and others nothing.
    ///
    /// # Errors
    /// `Data` when a dimension does not divide.
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
        let tile = tile.ok_or_else(|| wrong(format!("there is no device {device} of {}", self.devices())))?;
        let (from, to) = (whole.bytes(), part.bytes_mut());
        self.runs(whole.ty(), &local, tile, |at, own, len| {
            if let (Some(to), Some(from)) = (to.get_mut(own..own + len), from.get(at..at + len)) {
                to.copy_from_slice(from);
            }
        });
        Ok(part)
    }

    /// Where each device's part begins, along each dimension.
    pub(crate) fn starts(&self, local: &[usize]) -> Vec<Vec<usize>> {
        self.owner
            .iter()
            .map(|tile| self.place(*tile).iter().zip(local).map(|(at, n)| at * n).collect())
            .collect()
    }

    /// The place of a tile among the others.
    fn place(&self, tile: usize) -> Vec<usize> {
        let (mut place, mut rest) = (vec![0; self.counts.len()], tile);
        for (at, count) in place.iter_mut().zip(&self.counts).rev() {
            *at = rest % count;
            rest /= count;
        }
        place
    }

    /// Groups of devices whose parts lie behind each other along a dimension, and whose other parts are the same.
    pub(crate) fn rows(&self, dim: usize) -> Vec<Vec<usize>> {
        self.groups(|place, term, copy| {
            let at = place.get(dim).copied().unwrap_or(0);
            let others: Vec<usize> =
                place.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, p)| *p).collect();
            ((others, term, copy), at)
        })
    }

    /// Groups of devices that have the terms of the same sum.
    pub(crate) fn sums(&self) -> Vec<Vec<usize>> {
        self.groups(|place, term, copy| ((place, 0, copy), term))
    }

    /// Whether each device has the whole along a dimension.
    pub(crate) fn is_whole(&self, dim: usize) -> bool {
        self.counts.get(dim).is_none_or(|c| *c == 1)
    }

    /// Whether it is no sum.
    pub(crate) fn is_reduced(&self) -> bool {
        self.terms() == 1
    }

    /// Whether a device has the first term: for each device.
    pub(crate) fn firsts(&self) -> Vec<bool> {
        self.term.iter().map(|t| *t == 0).collect()
    }

    /// Groups by a key, in the order of a number; devices with the same part are told apart by their order.
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

    /// Calls with each run of bytes that lie together: place in the whole, place in the part, length.
    fn runs(&self, ty: &TensorType, local: &[usize], tile: usize, mut each: impl FnMut(usize, usize, usize)) {
        let rank = local.len();
        let size = ty.dtype.size();
        let start: Vec<usize> = self.place(tile).iter().zip(local).map(|(at, n)| at * n).collect();
        // Dimensions behind the last one that is split lie together.
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

    /// As GSPMD writes it, which [`DeviceSharding::of_text`] reads; a sum of terms cannot be said, and is replicated there.
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

    /// A serialized `xla.OpSharding`:
    /// <https://github.com/openxla/xla/blob/main/xla/xla_data.proto>.
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
            // UNREDUCED; for each of the copies the terms.
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

/// The sum, element by element.
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

/// Stride and size of an axis, or of a part of one: `x`, `x:(2)4` is the four parts of `x` behind its first two.
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

/// `field: repeated int64`, packed.
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

/// The devices in the order of the tiles: `<=[8]`, `<=[2,4]T(1,0)`, `0,2,1,3`; words may follow.
fn device_order(text: &str, devices: usize) -> Option<Vec<usize>> {
    let Some(iota) = text.strip_prefix("<=[") else {
        return numbers(text.split_whitespace().next()?);
    };
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
        // type: OTHER, dimensions 2 and 4, the devices in order, the last dimension UNREDUCED.
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
