//! Resolves TPU slice names (`v5e-16`, `v5p:4x4x4`) to chips, hosts, topology and rings.

use crate::table::{ChipTables, Tpu};
use systole_ir::{Error, Result, err};
use systole_runtime::AotTopology;

/// A TPU slice, or several equal ones over the data-center network.
#[derive(Clone, Debug, PartialEq)]
pub struct TpuSlice {
    /// Cloud name, such as `v5litepod-16`; a topology without a cloud name is kept as written.
    pub name: String,
    /// TPU generation, such as `v5e`.
    pub generation: String,
    /// Chips along each axis, such as `[4, 4]`.
    pub topology: Vec<usize>,
    /// Whether each axis wraps around to a ring.
    pub wrap: Vec<bool>,
    /// Chips per slice.
    pub chips: usize,
    /// Devices per slice that a program sees.
    pub devices: usize,
    /// Hosts per slice.
    pub hosts: usize,
    /// Number of slices; several are joined by the data-center network.
    pub slices: usize,
}

impl TpuSlice {
    /// Resolves a slice name: `v2-8`, `v5litepod-16`, `v5e-16`, `v5p-64`, `tpu7x-2x2x1` or a topology `v5e:4x4`; the
    /// prefix `2*` means two slices.
    ///
    /// ```
    /// use systole_plan::{TpuSlice, ChipTables};
    /// let tables = ChipTables::built_in().unwrap();
    /// let slice = TpuSlice::of("v5e-16", &tables).unwrap();
    /// assert_eq!((slice.libtpu(&tables).as_str(), slice.chips, slice.hosts), ("v5e:4x4", 16, 2));
    /// assert_eq!(TpuSlice::of("v2-8", &tables).unwrap().devices, 8);
    /// let e = TpuSlice::of("v5p-7", &tables).unwrap_err().to_string();
    /// assert!(e.contains("v5p-8"));
    /// ```
    pub fn of(name: &str, tables: &ChipTables) -> Result<TpuSlice> {
        let name = name.trim();
        if let Some((n, rest)) = name.split_once('*') {
            let slices = n.trim().parse::<usize>().ok().filter(|n| (1..=1024).contains(n));
            let slices = slices.ok_or_else(|| {
                let e = err!(Config, "expected a number of slices, got `{n}`").at(name);
                e.hint("for two slices write 2*v5e-16")
            })?;
            return Ok(TpuSlice { slices, ..TpuSlice::of(rest, tables)? });
        }
        let lower = name.to_lowercase();
        let (family, size) = lower.split_once([':', '-']).ok_or_else(|| unknown(name, tables))?;
        let tpu = tables.tpu(family).ok_or_else(|| unknown(name, tables))?;
        let named = tpu.slices.iter().find(|(n, _)| n.split_once('-').is_some_and(|(_, s)| s == size));
        let topology = match named {
            Some((_, topology)) => dims(topology),
            None if lower.contains('-') && !size.contains('x') => counted(tpu, size),
            None if size.contains('x') => dims(size).filter(|d| offered(tpu, d)),
            None => None,
        };
        let topology = topology.ok_or_else(|| unknown(name, tables))?;
        Ok(TpuSlice::shaped(tpu, topology))
    }

    /// Like [`TpuSlice::of`], but also accepts topologies that the compiler supports and no cloud sells, such as
    /// `v2:1x1`. A generation alone means one chip.
    ///
    /// ```
    /// use systole_plan::{TpuSlice, ChipTables};
    /// let tables = ChipTables::built_in().unwrap();
    /// assert_eq!(TpuSlice::compilable("v4", &tables).unwrap().topology, [1, 1, 1]);
    /// assert_eq!(TpuSlice::compilable("v4:2x1", &tables).unwrap().name, "v4:2x1x1");
    /// assert!(TpuSlice::compilable("v4:64x1", &tables).is_err());
    /// ```
    pub fn compilable(name: &str, tables: &ChipTables) -> Result<TpuSlice> {
        let lower = name.trim().to_lowercase();
        let (family, size) = lower.split_once(':').unwrap_or((&lower, "1"));
        let unsold = tables.tpu(family).and_then(|tpu| Some(TpuSlice::shaped(tpu, small_enough(tpu, size)?)));
        TpuSlice::of(name, tables).or_else(|refused| unsold.ok_or(refused))
    }

    fn shaped(tpu: &Tpu, topology: Vec<usize>) -> TpuSlice {
        let chips = topology.iter().product();
        TpuSlice {
            name: cloud_name(tpu, &topology).unwrap_or_else(|| format!("{}:{}", tpu.name, joined(&topology))),
            generation: tpu.name.clone(),
            wrap: topology.iter().map(|&d| d % tpu.wrap_axis == 0).collect(),
            chips,
            devices: chips * tpu.devices,
            hosts: chips.div_ceil(tpu.host_chips),
            topology,
            slices: 1,
        }
    }

    /// Returns every named TPU slice, by generation and size.
    pub fn all(tables: &ChipTables) -> Vec<TpuSlice> {
        let of = |t: &Tpu| {
            let mut found: Vec<TpuSlice> =
                t.slices.values().filter_map(|s| Some(TpuSlice::shaped(t, dims(s)?))).collect();
            found.sort_by_key(|s| s.chips);
            found
        };
        tables.tpus.iter().flat_map(of).collect()
    }

    /// Topology name of the slice for libtpu: `v5e:4x4`.
    pub fn libtpu(&self, tables: &ChipTables) -> String {
        let tpu = tables.tpu(&self.generation);
        format!("{}:{}", tpu.map_or(self.generation.as_str(), |t| &t.libtpu), joined(&self.topology))
    }

    /// Returns the slice's target for ahead-of-time compilation.
    pub fn ahead(&self, tables: &ChipTables) -> AotTopology {
        AotTopology {
            topology: self.libtpu(tables),
            extents: self.topology.clone(),
            rings: self.wrap.clone(),
            chip_config: tables.tpu(&self.generation).and_then(|t| t.chip_config.clone()),
            gpu: None,
            count: self.slices,
        }
    }

    /// Number of chips of all slices.
    pub fn all_chips(&self) -> usize {
        self.chips * self.slices
    }

    /// Total number of devices: devices per slice times number of slices.
    pub fn all_devices(&self) -> usize {
        self.devices * self.slices
    }

    /// Name of the slice, prefixed by the number of slices if there are several.
    pub fn title(&self) -> String {
        if self.slices == 1 { self.name.clone() } else { format!("{}*{}", self.slices, self.name) }
    }
}

fn joined(dims: &[usize]) -> String {
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

fn dims(text: &str) -> Option<Vec<usize>> {
    text.split('x').map(|d| d.parse().ok().filter(|d| (1..=1024).contains(d))).collect()
}

/// Whether a topology can be requested: named ones, and multiples of 4×4×4 cubes on generations with cubes.
fn offered(tpu: &Tpu, dims: &[usize]) -> bool {
    if tpu.slices.values().any(|t| *t == joined(dims)) {
        return true;
    }
    let Some(cubes) = tpu.cubes else { return false };
    let chips: usize = dims.iter().product();
    dims.len() == tpu.axes && dims.iter().all(|d| d % 4 == 0) && chips <= 64 * cubes && chips <= tpu.max_chips
}

/// Resolves sizes that count cores (`v4-6144`) to 4×4×4 cubes in the most compact box.
fn counted(tpu: &Tpu, size: &str) -> Option<Vec<usize>> {
    let cores: usize = size.parse().ok()?;
    let chips =
        (tpu.names_count == "cores" && cores.is_multiple_of(tpu.cores)).then_some(cores / tpu.cores)?;
    compact(chips.min(tpu.max_chips + 1)).filter(|d| offered(tpu, d))
}

/// Returns the box of whole cubes with the smallest sum of sides, in ascending order.
fn compact(chips: usize) -> Option<Vec<usize>> {
    let cubes = chips.is_multiple_of(64).then_some(chips / 64)?;
    let sides = |a: usize| (a..=cubes / a).map(move |b| [a, b, cubes / (a * b).max(1)]);
    let boxes = (1..=cubes).take_while(|a| a * a * a <= cubes).flat_map(sides);
    let whole = boxes.filter(|[a, b, c]| a * b * c == cubes && b <= c);
    let shortest = whole.min_by_key(|sides| sides.iter().sum::<usize>())?;
    Some(shortest.map(|side| 4 * side).to_vec())
}

/// Returns the cloud name of a topology, if it has one.
fn cloud_name(tpu: &Tpu, topology: &[usize]) -> Option<String> {
    let text = joined(topology);
    if let Some((name, _)) = tpu.slices.iter().find(|(_, t)| **t == text) {
        return Some(name.clone());
    }
    let chips: usize = topology.iter().product();
    match tpu.names_count.as_str() {
        "cores" => {
            let usual = offered(tpu, topology) && compact(chips).as_deref() == Some(topology);
            usual.then(|| format!("{}-{}", tpu.name, chips * tpu.cores))
        }
        "topology" => offered(tpu, topology).then(|| format!("{}-{text}", tpu.name)),
        _ => None,
    }
}

/// Parses a topology whose sides do not exceed the longest side of a named slice.
fn small_enough(tpu: &Tpu, size: &str) -> Option<Vec<usize>> {
    let mut found = dims(size)?;
    found.resize(found.len().max(tpu.axes), 1);
    let longest = tpu.slices.values().filter_map(|t| dims(t)?.into_iter().max()).max()?;
    let fits = found.len() == tpu.axes && found.iter().all(|&d| d <= longest);
    (fits && found.iter().product::<usize>() <= tpu.max_chips).then_some(found)
}

fn unknown(name: &str, tables: &ChipTables) -> Error {
    let all = TpuSlice::all(tables);
    let mut near: Vec<&TpuSlice> = all.iter().collect();
    near.sort_by_key(|s| distance(name, s, tables));
    let told = |s: &&TpuSlice| match s.libtpu(tables) {
        topology if topology == s.name => topology,
        topology => format!("{} ({topology})", s.name),
    };
    let near: Vec<String> = near.iter().take(3).map(told).collect();
    let counting = |unit: &str| {
        let of_unit = tables.tpus.iter().filter(|t| t.names_count == unit).map(|t| t.name.as_str());
        let names: Vec<&str> = of_unit.collect();
        match names.as_slice() {
            [some @ .., last] if !some.is_empty() => format!("{} and {last}", some.join(", ")),
            one => one.concat(),
        }
    };
    let (cores, chips, topology) = (counting("cores"), counting("chips"), counting("topology"));
    err!(Config, "unknown TPU slice `{name}`")
        .because(format!(
            "the number counts TensorCores for {cores}, chips for {chips}; {topology} needs a topology"
        ))
        .hint(format!("did you mean {}?", near.join(", ")))
}

/// Distance for suggestions: first by generation, then by size.
fn distance(name: &str, s: &TpuSlice, tables: &ChipTables) -> (usize, usize) {
    let lower = name.to_lowercase();
    let (family, size) = lower.split_once([':', '-']).unwrap_or((&lower, ""));
    let generation = tables.tpu(family).map_or_else(|| closest_family(family, tables), |t| t.name.clone());
    let count = |text: &str| match dims(text) {
        Some(d) => d.iter().product::<usize>(),
        None => 8,
    };
    let own = match size.contains('x') {
        true => s.chips,
        false => s.name.split_once('-').map_or(s.chips, |(_, n)| count(n)),
    };
    (usize::from(s.generation != generation), own.abs_diff(count(size)))
}

/// Returns the generation with the longest common prefix.
fn closest_family(family: &str, tables: &ChipTables) -> String {
    let common = |t: &&Tpu| family.bytes().zip(t.name.bytes()).take_while(|(a, b)| a == b).count();
    tables.tpus.iter().max_by_key(common).map_or_else(String::new, |t| t.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> TpuSlice {
        TpuSlice::of(name, &ChipTables::built_in().unwrap()).unwrap()
    }

    #[test]
    fn names_count_cores_or_chips() {
        let tables = ChipTables::built_in().unwrap();
        for s in TpuSlice::all(&tables) {
            let t = tables.tpu(&s.generation).unwrap();
            let Some((_, n)) = s.name.split_once('-') else { panic!("{}", s.name) };
            match t.names_count.as_str() {
                "cores" => assert_eq!(n.parse::<usize>().unwrap(), s.chips * t.cores, "{}", s.name),
                "chips" => assert_eq!(n.parse::<usize>().unwrap(), s.chips, "{}", s.name),
                _ => assert_eq!(dims(n).unwrap(), s.topology),
            }
            assert!(s.chips <= t.max_chips, "{}", s.name);
            assert_eq!(TpuSlice::of(&s.name, &tables).unwrap(), s);
        }
    }

    #[test]
    fn other_spellings_name_the_same_slice() {
        assert_eq!(of("v5e-16"), of("v5litepod-16"));
        assert_eq!(of("v5e:4x4"), of("V5LITEPOD-16"));
        assert_eq!(of("v4:4x4x4").name, "v4-128");
        assert_eq!(of("v4:12x12x12").chips, 1728);
        let two = of("2*v5e-16");
        assert_eq!((two.slices, two.all_chips(), two.title().as_str()), (2, 32, "2*v5litepod-16"));
    }

    #[test]
    fn names_count_cores_of_every_box_of_cubes() {
        // The slices that the tutorials say training jobs use: 3,072 chips.
        assert_eq!(of("v4-6144"), of("v4:12x16x16"));
        assert_eq!((of("v4-6144").chips, of("v4-6144").name.as_str()), (3072, "v4-6144"));
        assert_eq!(of("v4-6912").topology, [12, 12, 24], "3,456 chips: MLPerf's slice");
        assert_eq!((of("v5p-3072").chips, of("v5p-17920").chips), (1536, 8960));
        assert_eq!(of("tpu7x-12x12x12").name, "tpu7x-12x12x12");
        // A box that is not the usual one of its size has no number.
        assert_eq!(of("v4:4x4x192").name, "v4:4x4x192");
        let tables = ChipTables::built_in().unwrap();
        for name in ["v4-6145", "v4-6080", "v4-8320", "v4-0", "v3-6144", "v5e-512", "v4-99999999999999999999"]
        {
            assert!(TpuSlice::of(name, &tables).is_err(), "{name}");
        }
        // Names in the table are those of this rule.
        for s in TpuSlice::all(&tables).iter().filter(|s| s.chips % 64 == 0 && s.topology.len() == 3) {
            assert_eq!(compact(s.chips).unwrap(), s.topology, "{}", s.name);
        }
    }

    #[test]
    fn rings_close_where_the_hardware_closes_them() {
        assert_eq!(of("v5e-256").wrap, [true, true]);
        assert_eq!(of("v5e-64").wrap, [false, false]);
        assert_eq!(of("v5e-128").wrap, [false, true]);
        assert_eq!(of("v5p-128").wrap, [true, true, true]);
        assert_eq!(of("v4-16").wrap, [false, false, false]);
    }

    #[test]
    fn names_that_do_not_exist_are_refused_with_the_nearest() {
        let tables = ChipTables::built_in().unwrap();
        let told = |name: &str| TpuSlice::of(name, &tables).unwrap_err().to_string();
        assert!(told("v3-16").contains("v3-8") || told("v3-16").contains("v3-32"), "{}", told("v3-16"));
        assert!(told("v5e-10").contains("v5litepod-8"), "{}", told("v5e-10"));
        let units = "TensorCores for v2, v3, v4 and v5p, chips for v5e and v6e; tpu7x needs a topology";
        assert!(told("v5e-10").contains(units), "{}", told("v5e-10"));
        assert!(told("v6-8").contains("v6e-8"), "{}", told("v6-8"));
        assert!(told("v5e:3x3").contains("v5litepod-8"), "{}", told("v5e:3x3"));
        assert!(told("v5e:32x16").contains("v5litepod-256"), "{}", told("v5e:32x16"));
        assert!(told("").contains("unknown TPU slice"));
        assert!(told("0*v5e-4").contains("2*v5e-16"), "{}", told("0*v5e-4"));
        assert!(told("v4:99999999999999999999x4x4").contains("unknown TPU slice"));
    }
}
