//! `mhlo.sharding = "{devices=[2,4]<=[8]}"`: how GSPMD's text splits arrays, as axes of a mesh. What axes cannot say is left out:
//! a sharding changes no value.

use systole_base::{Result, TensorType};
use systole_ir::{Mesh, Sharding, Spread};

/// Devices that one text may name.
const MOST_DEVICES: usize = 1 << 16;

/// Into how many parts each dimension is split, and the devices of the parts in row-major order; dimensions behind those of
/// the array tell devices with the same part apart.
struct Tiles {
    parts: Vec<usize>,
    devices: Vec<usize>,
}

/// What a text says, with the type of its array.
pub(super) type Said<'a> = (Option<&'a str>, TensorType);

/// The mesh of a program and how its arrays lie there; `None` where no text splits one or axes cannot say how.
pub(super) fn spread(params: &[Said], results: &[Said]) -> Result<Option<Spread>> {
    let read = |(text, _): &Said| text.map_or(Some(None), tiles);
    let Some(all) = params.iter().chain(results).map(read).collect::<Option<Vec<Option<Tiles>>>>() else {
        return Ok(None);
    };
    let mut counts = all.iter().flatten().map(|t| t.devices.len());
    let Some(n) = counts.next().filter(|n| counts.all(|m| m == *n) && *n > 1) else { return Ok(None) };
    let mut factors = factors(n);
    for _ in 0..2 {
        let names: Vec<String> = (0..factors.len()).map(|i| format!("d{i}")).collect();
        let mesh = Mesh::new(names.iter().map(String::as_str).zip(factors.iter().copied()))?;
        let one = |((_, ty), tiles): (&Said, &Option<Tiles>)| of_tiles(tiles.as_ref(), ty, &mesh, &factors);
        let shardings = params.iter().chain(results).zip(&all).map(one).collect::<Option<Vec<_>>>();
        if let Some(mut params_) = shardings.filter(|all| all.iter().any(|s| !s.is_replicated())) {
            let results = params_.split_off(params.len());
            return Ok(Some(Spread { mesh, params: params_, results }));
        }
        factors.reverse();
    }
    Ok(None)
}

/// Prime factors, the least first.
fn factors(mut n: usize) -> Vec<usize> {
    let mut all = Vec::new();
    let mut p = 2;
    while n > 1 {
        match n % p {
            0 => {
                all.push(p);
                n /= p;
            }
            _ => p += 1,
        }
    }
    all
}

/// `Some(None)`: every device has all; `None`: it is not read.
fn tiles(text: &str) -> Option<Option<Tiles>> {
    let inner = text.trim();
    if inner.is_empty() {
        return Some(None);
    }
    let inner = inner.strip_prefix('{')?.strip_suffix('}')?.trim();
    if inner == "replicated" || inner.starts_with("maximal ") || inner == "manual" {
        return Some(None);
    }
    let (parts, rest) = list(inner.strip_prefix("devices=")?)?;
    let count = product(&parts)?;
    // What follows the devices says what dimensions behind the array's are.
    let rest = rest.split_once(' ').map_or(rest, |(devices, _)| devices);
    let devices = match rest.strip_prefix("<=") {
        Some(rest) => {
            let (dims, order) = list(rest)?;
            if product(&dims)? != count {
                return None;
            }
            let order = match order.strip_prefix("T(") {
                Some(order) => numbers(order.strip_suffix(')')?)?,
                None => (0..dims.len()).collect(),
            };
            transposed(&dims, &order)?
        }
        None => numbers(rest)?,
    };
    (devices.len() == count).then_some(Some(Tiles { parts, devices }))
}

/// `[2,4]` and what follows it.
fn list(text: &str) -> Option<(Vec<usize>, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((numbers(inner)?, rest))
}

fn numbers(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(|n| n.trim().parse().ok()).collect()
}

fn product(sizes: &[usize]) -> Option<usize> {
    let n = sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
    n.filter(|n| (1..=MOST_DEVICES).contains(n))
}

fn strides(sizes: &[usize]) -> Vec<usize> {
    (0..sizes.len()).map(|d| sizes[d + 1..].iter().product()).collect()
}

/// The numbers of an array of these sizes, with its dimensions in another order.
fn transposed(sizes: &[usize], order: &[usize]) -> Option<Vec<usize>> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..sizes.len()) {
        return None;
    }
    let own = strides(sizes);
    let new: Vec<usize> = order.iter().map(|&d| sizes[d]).collect();
    let steps = strides(&new);
    let at = |i: usize| {
        let places = steps.iter().zip(&new).map(|(step, size)| i / step % size);
        places.zip(order).map(|(place, &d)| place * own[d]).sum()
    };
    Some((0..new.iter().product()).map(at).collect())
}

/// The axes of each dimension: those along which its parts lie one after the other.
fn of_tiles(tiles: Option<&Tiles>, ty: &TensorType, mesh: &Mesh, factors: &[usize]) -> Option<Sharding> {
    let Some(tiles) = tiles else { return Some(Sharding::replicated(ty.rank())) };
    if tiles.parts.len() < ty.rank() || tiles.devices.first() != Some(&0) {
        return None;
    }
    let (own, strides) = (strides(&tiles.parts), strides(factors));
    let mut sharding = Sharding::replicated(ty.rank());
    // How far each dimension's places lie apart: pairs of size and step, to compare with all devices.
    let mut steps: Vec<Vec<(usize, usize)>> = Vec::new();
    for (d, &size) in tiles.parts.iter().enumerate() {
        let (mut left, mut along, mut axes) = (size, 1, Vec::new());
        while left > 1 {
            let step = *tiles.devices.get(along * own[d])?;
            let axis = strides.iter().zip(factors).position(|(s, f)| *s == step && left % f == 0)?;
            axes.push((factors[axis], step, axis));
            left /= factors[axis];
            along *= factors[axis];
        }
        if d < ty.rank() {
            for (.., axis) in axes.iter().rev() {
                sharding = sharding.split(d, *axis);
            }
        }
        steps.push(axes.into_iter().map(|(size, step, _)| (size, step)).collect());
    }
    let lies = |i: usize| -> usize {
        let of_dim = |(d, steps): (usize, &Vec<(usize, usize)>)| {
            let mut place = i / own[d] % tiles.parts[d];
            let mut sum = 0;
            for (size, step) in steps {
                sum += place % size * step;
                place /= size;
            }
            sum
        };
        steps.iter().enumerate().map(of_dim).sum()
    };
    let straight = tiles.devices.iter().enumerate().all(|(i, device)| lies(i) == *device);
    (straight && sharding.local(mesh, ty).is_ok()).then_some(sharding)
}
