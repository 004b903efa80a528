//! TPU slices by name: the clouds' (`v2-8`, `v5litepod-16`) and the compiler's (`v5e:4x4`).
//!
//! The one table of which slices exist. What their chips can do and cost is not here.
//! Source: <https://cloud.google.com/tpu/docs/system-architecture-tpu-vm> and the pages of each generation.

use std::fmt;
use systole_ir::{Error, ErrorKind, Result};

/// A generation of TPUs, as the names of its slices and the compiler's names need it.
#[derive(Debug, PartialEq)]
pub struct Generation {
    /// The compiler's name: `v5e`.
    pub name: &'static str,
    /// What the clouds put before the dash, the usual one first: `v5litepod`, `v5e`.
    pub products: &'static [&'static str],
    /// Devices that one chip shows itself as: 2 where each core is one.
    pub devices_per_chip: usize,
    /// What a product's number counts for each chip: 2 where it counts cores.
    pub counted_per_chip: usize,
    /// Axes of the network between chips.
    pub axes: usize,
    /// Extents of the largest slice.
    pub largest: &'static [usize],
    /// Extents of the slices that have a product name with a number, smallest first.
    pub sizes: &'static [&'static [usize]],
    /// An axis of a multiple of this many chips is closed to a ring.
    pub ring: usize,
    /// The compiler's configuration of a chip as clouds offer it, where it is not its default.
    pub chip_config: Option<&'static str>,
}

/// All generations that the compiler knows and clouds offer or offered, oldest first.
pub const GENERATIONS: &[Generation] = &[
    Generation {
        name: "v2",
        products: &["v2"],
        devices_per_chip: 2,
        counted_per_chip: 2,
        axes: 2,
        largest: &[16, 16],
        sizes: &[&[2, 2], &[4, 4], &[8, 8], &[8, 16], &[16, 16]],
        ring: 16,
        chip_config: None,
    },
    Generation {
        name: "v3",
        products: &["v3"],
        devices_per_chip: 2,
        counted_per_chip: 2,
        axes: 2,
        largest: &[32, 32],
        sizes: &[&[2, 2], &[4, 4], &[4, 8], &[8, 8], &[8, 16], &[16, 16], &[16, 32], &[32, 32]],
        ring: 32,
        chip_config: None,
    },
    Generation {
        name: "v4",
        products: &["v4"],
        devices_per_chip: 1,
        counted_per_chip: 2,
        axes: 3,
        largest: &[16, 16, 16],
        sizes: &[
            &[2, 2, 1],
            &[2, 2, 2],
            &[2, 2, 4],
            &[2, 4, 4],
            &[4, 4, 4],
            &[4, 4, 8],
            &[4, 8, 8],
            &[8, 8, 8],
            &[8, 8, 12],
            &[8, 8, 16],
            &[8, 16, 16],
            &[16, 16, 16],
        ],
        ring: 4,
        chip_config: Some("megacore"),
    },
    Generation {
        name: "v5e",
        products: &["v5litepod", "v5e"],
        devices_per_chip: 1,
        counted_per_chip: 1,
        axes: 2,
        largest: &[16, 16],
        sizes: &[&[1, 1], &[2, 2], &[2, 4], &[4, 4], &[4, 8], &[8, 8], &[8, 16], &[16, 16]],
        ring: 16,
        chip_config: None,
    },
    Generation {
        name: "v5p",
        products: &["v5p"],
        devices_per_chip: 1,
        counted_per_chip: 2,
        axes: 3,
        largest: &[16, 20, 28],
        sizes: &[
            &[2, 2, 1],
            &[2, 2, 2],
            &[2, 2, 4],
            &[2, 4, 4],
            &[4, 4, 4],
            &[4, 4, 8],
            &[4, 8, 8],
            &[8, 8, 8],
            &[8, 8, 16],
            &[8, 16, 16],
            &[16, 16, 16],
            &[16, 16, 24],
        ],
        ring: 4,
        chip_config: None,
    },
    Generation {
        name: "v6e",
        products: &["v6e"],
        devices_per_chip: 1,
        counted_per_chip: 1,
        axes: 2,
        largest: &[16, 16],
        sizes: &[&[1, 1], &[2, 2], &[2, 4], &[4, 4], &[4, 8], &[8, 8], &[8, 16], &[16, 16]],
        ring: 16,
        chip_config: None,
    },
    // Its products are named by their extents only: `tpu7x-2x2x1`.
    Generation {
        name: "tpu7x",
        products: &["tpu7x"],
        devices_per_chip: 2,
        counted_per_chip: 2,
        axes: 3,
        largest: &[16, 24, 24],
        sizes: &[],
        ring: 4,
        chip_config: None,
    },
];

/// A number of chips wired together, or several of these joined by the data centre's network.
///
/// ```
/// use systole_runtime::Slice;
/// let slice: Slice = "v5litepod-16".parse()?;
/// assert_eq!((slice.topology(), slice.chips()), ("v5e:4x4".to_string(), 16));
/// assert_eq!("v2-8".parse::<Slice>()?.devices(), 8);
/// assert!("v2-9".parse::<Slice>().unwrap_err().to_string().contains("v2-8"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The generation of its chips.
    pub generation: &'static Generation,
    /// Chips along each axis, as many as the generation has axes.
    pub extents: Vec<usize>,
    /// How many equal slices the data centre's network joins.
    pub count: usize,
}

impl Slice {
    /// Chips, of all slices.
    pub fn chips(&self) -> usize {
        self.extents.iter().product::<usize>() * self.count
    }

    /// Devices that a program sees, of all slices.
    pub fn devices(&self) -> usize {
        self.chips() * self.generation.devices_per_chip
    }

    /// The compiler's name of one slice: `v5e:2x2`, `v4:2x2x1`.
    pub fn topology(&self) -> String {
        format!("{}:{}", self.generation.name, extents_text(&self.extents))
    }

    /// Which axes are closed to rings.
    pub fn rings(&self) -> [bool; 3] {
        std::array::from_fn(|axis| {
            self.extents.get(axis).is_some_and(|n| n.is_multiple_of(self.generation.ring))
        })
    }

    /// The clouds' name, where one with a number exists: `v5litepod-4`.
    pub fn product(&self) -> Option<String> {
        let g = self.generation;
        let product = g.products.first()?;
        if g.sizes.is_empty() {
            return Some(format!("{product}-{}", extents_text(&self.extents)));
        }
        let chips: usize = self.extents.iter().product();
        g.sizes.contains(&&self.extents[..]).then(|| format!("{product}-{}", chips * g.counted_per_chip))
    }

    /// The same slice `count` times, joined by the data centre's network.
    pub fn times(self, count: usize) -> Slice {
        Slice { count, ..self }
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.write_str(&self.topology()),
            n => write!(f, "{n} × {}", self.topology()),
        }
    }
}

fn extents_text(extents: &[usize]) -> String {
    extents.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

impl std::str::FromStr for Slice {
    type Err = Error;

    /// Reads `v5e:4x4`, `v5litepod-16`, `tpu7x-2x2x1`, or a generation alone, which is one chip.
    fn from_str(text: &str) -> Result<Slice> {
        let lower = text.trim().to_lowercase();
        let (head, size) = match lower.split_once([':', '-']) {
            Some((head, size)) => (head, Some(size)),
            None => (lower.as_str(), None),
        };
        let generation = GENERATIONS.iter().find(|g| g.name == head || g.products.contains(&head));
        let generation = generation.ok_or_else(|| unknown(text))?;
        let found = match size {
            None => Some(vec![1; generation.axes]),
            Some(size) if size.contains('x') => extents(generation, size),
            Some(size) if lower.contains('-') => numbered(generation, size),
            Some(_) => None,
        };
        let extents = found.ok_or_else(|| refused(text, generation, size.unwrap_or_default()))?;
        Ok(Slice { generation, extents, count: 1 })
    }
}

/// `4x4` and, where the network has three axes, `4x4x1`; only what is no larger than the largest slice.
fn extents(generation: &Generation, text: &str) -> Option<Vec<usize>> {
    let mut extents = text.split('x').map(|n| n.parse().ok()).collect::<Option<Vec<usize>>>()?;
    extents.resize(extents.len().max(generation.axes), 1);
    let mut sorted = extents.clone();
    sorted.sort_unstable();
    let fits = sorted.len() == generation.axes
        && sorted.iter().zip(generation.largest).all(|(n, most)| *n >= 1 && n <= most);
    fits.then_some(extents)
}

fn numbered(generation: &Generation, text: &str) -> Option<Vec<usize>> {
    let number: usize = text.parse().ok()?;
    let chips = |size: &&&[usize]| size.iter().product::<usize>() * generation.counted_per_chip == number;
    generation.sizes.iter().find(chips).map(|size| size.to_vec())
}

fn unknown(text: &str) -> Error {
    let names: Vec<&str> = GENERATIONS.iter().map(|g| g.name).collect();
    Error::new(ErrorKind::Config, format!("there is no TPU slice `{text}`"))
        .because(format!("generations are {}", names.join(", ")))
        .hint("write a cloud's name as v5litepod-4, or chips along the axes as v5e:2x2")
}

/// The nearest slices of the same generation are named.
fn refused(text: &str, generation: &'static Generation, size: &str) -> Error {
    let wanted: usize = match size.contains('x') {
        true => size.split('x').map(|n| n.parse().unwrap_or(1usize)).fold(1, usize::saturating_mul),
        false => size.parse::<usize>().unwrap_or(1) / generation.counted_per_chip,
    };
    let sizes: Vec<&[usize]> = match generation.sizes {
        [] => vec![&[2, 2, 1], &[2, 2, 2], &[2, 2, 4], &[2, 4, 4], &[4, 4, 4], generation.largest],
        sizes => sizes.to_vec(),
    };
    let mut nearest: Vec<Slice> =
        sizes.iter().map(|s| Slice { generation, extents: s.to_vec(), count: 1 }).collect();
    nearest.sort_by_key(|s| s.chips().abs_diff(wanted));
    let near: Vec<String> = nearest
        .iter()
        .take(3)
        .map(|s| match s.product() {
            Some(product) if product != s.topology() => format!("{product} ({})", s.topology()),
            _ => s.topology(),
        })
        .collect();
    Error::new(ErrorKind::Config, format!("there is no TPU slice `{text}`"))
        .because(format!("the largest of {} is {}", generation.name, extents_text(generation.largest)))
        .hint(format!("the nearest: {}", near.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> Slice {
        text.parse().unwrap()
    }

    #[test]
    fn clouds_names_and_the_compilers_mean_the_same() {
        let cases = [
            ("v2-8", "v2:2x2", 4, 8),
            ("v3-32", "v3:4x4", 16, 32),
            ("v4-8", "v4:2x2x1", 4, 4),
            ("v5litepod-16", "v5e:4x4", 16, 16),
            ("v5e-8", "v5e:2x4", 8, 8),
            ("v5p-64", "v5p:2x4x4", 32, 32),
            ("v6e-256", "v6e:16x16", 256, 256),
            ("tpu7x-2x2x1", "tpu7x:2x2x1", 4, 8),
            ("TPU7x:2x2", "tpu7x:2x2x1", 4, 8),
            ("v5e", "v5e:1x1", 1, 1),
        ];
        for (text, topology, chips, devices) in cases {
            let s = slice(text);
            assert_eq!((s.topology().as_str(), s.chips(), s.devices()), (topology, chips, devices), "{text}");
            assert_eq!(slice(&s.topology()), s);
        }
        assert_eq!(slice("v5e:4x4").product().as_deref(), Some("v5litepod-16"));
        assert_eq!(slice("v5e:2x2").times(2).to_string(), "2 × v5e:2x2");
    }

    #[test]
    fn every_numbered_slice_reads_back() {
        for g in GENERATIONS {
            for size in g.sizes {
                let s = Slice { generation: g, extents: size.to_vec(), count: 1 };
                let product = s.product().unwrap();
                assert_eq!(slice(&product), s, "{product}");
                assert!(extents(g, &extents_text(size)).is_some(), "{product} is larger than the largest");
            }
        }
    }

    #[test]
    fn what_does_not_exist_names_the_nearest() {
        for (text, near) in [
            ("v2-9", "v2-8"),
            ("v5e:32x32", "v5litepod-256"),
            ("v5p-12", "v5p-8"),
            ("v9-8", "v6e"),
            ("tpu7x:99x1", "tpu7x"),
            ("v5e:0x2", "v5litepod-1"),
            ("v5e:2x2x2x2", "v5litepod-16"),
            ("v5e:", "v5litepod"),
            ("", "v5litepod-4"),
        ] {
            let message = text.parse::<Slice>().unwrap_err().to_string();
            assert!(message.contains(near), "{text}: {message}");
        }
    }
}
