//! Estimates which intermediate values fit on chip and which go to main memory, by lifetime and size.

use crate::device_model::DeviceModel;
use crate::kernel_list::{KernelList, KernelWork, MemoryArray};
use std::collections::{HashMap, HashSet};

/// A value last used at most this many kernels later counts as a temporary.
const NEAR: usize = 4;

/// Memory assignment of a program's values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValuePlacement {
    /// Values on the chip: (program or loop body, array id).
    on_chip: HashSet<(usize, usize)>,
    /// Long-lived bytes in main memory at peak usage.
    pub(crate) activations: f64,
    /// Short-lived bytes in main memory at peak usage.
    pub(crate) temporaries: f64,
    /// Batch size of the program.
    batch: Option<usize>,
    /// Bytes of all arguments.
    arguments: f64,
    /// Whether arguments are prefetched onto the chip, and results copied out, while other kernels run.
    ahead: bool,
    /// Values between kernels.
    between: HashSet<(usize, usize)>,
}

/// Memory traffic of a kernel: main memory bytes, seconds for them, seconds of asynchronous copies, seconds of on-chip
/// memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryTraffic {
    pub(crate) bytes: f64,
    pub(crate) far: f64,
    pub(crate) beside: f64,
    pub(crate) near: f64,
    /// Whether all operands and results are on the chip.
    pub(crate) all_near: bool,
}

/// Lifetime of a value between kernels. Arguments and results are not included.
struct ValueLifetime {
    value: (usize, usize),
    made: usize,
    last: usize,
    bytes: f64,
}

impl ValuePlacement {
    pub(crate) fn of(work: &KernelList, device: &DeviceModel) -> ValuePlacement {
        let kernels = ordered(work, device);
        let mut lives = lives(&kernels, device);
        let room = device.tile.map_or(0.0, |t| t.on_chip);
        let on_chip = on_chip(&mut lives, kernels.len(), room);
        let between = lives.iter().map(|l| l.value).collect();
        lives.retain(|l| !on_chip.contains(&l.value));
        let (activations, temporaries) = fullest(&lives, kernels.len());
        let arguments: f64 = work.arguments.iter().map(|a| device.bytes(&a.ty)).sum();
        // A single kernel has no earlier kernel that could hide its transfers.
        let ahead = arguments < room && kernels.len() > 1;
        ValuePlacement { on_chip, activations, temporaries, batch: work.batch(), arguments, ahead, between }
    }

    /// Returns the memory traffic of one execution of a kernel.
    pub(crate) fn moved(&self, kernel: &KernelWork, device: &DeviceModel) -> MemoryTraffic {
        let mut moved = MemoryTraffic { bytes: 0.0, far: 0.0, beside: 0.0, near: 0.0, all_near: true };
        let reads = kernel.reads.iter().map(|a| (a, false));
        for (a, written) in reads.chain(kernel.writes.iter().map(|a| (a, true))) {
            let bytes = device.array_bytes(a) * a.part;
            if self.on_chip.contains(&(kernel.graph, a.id)) {
                moved.near += bytes / device.on_chip_bytes_per_s;
                continue;
            }
            let seconds = bytes / device.rate(self.beside(a, device));
            moved.bytes += bytes;
            match self.ahead && !self.between.contains(&(kernel.graph, a.id)) {
                true => {
                    moved.near += bytes / device.on_chip_bytes_per_s;
                    moved.beside += seconds;
                    moved.all_near &= !written;
                }
                false => {
                    moved.far += seconds;
                    moved.all_near = false;
                }
            }
        }
        moved
    }

    /// Working-set bytes around an array, which determine its cache level. Per-sample values pass between kernels in
    /// blocks of samples; weights and whole-batch values are read again with all arguments.
    fn beside(&self, a: &MemoryArray, device: &DeviceModel) -> f64 {
        let whole = device.array_bytes(a);
        match self.batch {
            Some(batch) if a.ty.shape.first() == Some(&batch) => whole / batch as f64 * device.blocks,
            _ => whole.max(self.arguments),
        }
    }
}

/// Orders the kernels like memory-saving schedulers: kernels that only produce results (weight updates) run as early as
/// possible, so that gradients are freed early.
fn ordered<'a>(work: &'a KernelList, device: &DeviceModel) -> Vec<&'a KernelWork> {
    let kernels: Vec<&KernelWork> = work.kernels.iter().filter(|k| device.runs(k)).collect();
    let mut made: HashMap<(usize, usize), usize> = HashMap::new();
    let mut read: HashSet<(usize, usize)> = HashSet::new();
    for (i, k) in kernels.iter().enumerate() {
        made.extend(k.writes.iter().map(|a| ((k.graph, a.id), i)));
        read.extend(k.reads.iter().map(|a| (k.graph, a.id)));
    }
    let place = |(i, k): (usize, &KernelWork)| {
        let last = k.writes.iter().all(|a| !read.contains(&(k.graph, a.id)));
        let ready = k.reads.iter().filter_map(|a| made.get(&(k.graph, a.id))).max();
        if last { ready.map_or(i, |&r| r) } else { i }
    };
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by_key(|&i| (place((i, kernels[i])), i));
    order.into_iter().map(|i| kernels[i]).collect()
}

fn lives(kernels: &[&KernelWork], device: &DeviceModel) -> Vec<ValueLifetime> {
    let mut lives: HashMap<(usize, usize), ValueLifetime> = HashMap::new();
    for (i, k) in kernels.iter().enumerate() {
        for a in &k.writes {
            let value = (k.graph, a.id);
            lives.insert(value, ValueLifetime { value, made: i, last: i, bytes: device.array_bytes(a) });
        }
        for a in &k.reads {
            if let Some(life) = lives.get_mut(&(k.graph, a.id)) {
                life.last = i;
            }
        }
    }
    lives.into_values().filter(|l| l.last > l.made).collect()
}

/// Places the smallest values first, if there is room during their whole lifetime.
fn on_chip(lives: &mut [ValueLifetime], kernels: usize, room: f64) -> HashSet<(usize, usize)> {
    lives.sort_by(|a, b| a.bytes.total_cmp(&b.bytes).then(a.value.cmp(&b.value)));
    let mut free = vec![room; kernels];
    let mut placed = HashSet::new();
    for life in lives.iter().take_while(|l| l.bytes <= room) {
        let alive = &mut free[life.made..=life.last];
        if alive.iter().all(|f| *f >= life.bytes) {
            alive.iter_mut().for_each(|f| *f -= life.bytes);
            placed.insert(life.value);
        }
    }
    placed
}

/// Returns long-lived and short-lived bytes at the kernel with peak usage.
fn fullest(lives: &[ValueLifetime], kernels: usize) -> (f64, f64) {
    let mut change = vec![(0.0, 0.0); kernels + 1];
    for l in lives {
        let (long, short) = if l.last - l.made > NEAR { (l.bytes, 0.0) } else { (0.0, l.bytes) };
        change[l.made].0 += long;
        change[l.made].1 += short;
        change[l.last + 1].0 -= long;
        change[l.last + 1].1 -= short;
    }
    let mut now = (0.0, 0.0);
    let mut most = (0.0, 0.0);
    for c in change {
        now = (now.0 + c.0, now.1 + c.1);
        if now.0 + now.1 > most.0 + most.1 {
            most = now;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChipTables, Machine};
    use systole_ir::op::Convolution;
    use systole_ir::{DType, GraphBuilder, TensorType, grad};

    fn placed(work: &KernelList, chip: &str) -> ValuePlacement {
        let tables = ChipTables::built_in().unwrap();
        let machine = Machine::of(chip, &tables).unwrap();
        ValuePlacement::of(work, &machine.device(&tables, crate::HalfType::Bf16).unwrap())
    }

    /// libtpu 0.0.51 reports 18.3, 18.4 and 19.5 MB beside arguments and results on v2, v3 and v5p, 2 MB elsewhere.
    #[test]
    fn an_argument_is_reordered_for_its_convolution_and_small_copies_stay_on_the_chip() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::BF16, [64, 32, 32, 64]), "x");
        let kernel = g.parameter(TensorType::new(DType::BF16, [3, 3, 64, 128]), "kernel");
        let spec = Convolution::same(x.ty(), kernel.ty(), &[1, 1], &[1, 1], 1);
        let work = KernelList::of(&g.finish(&[x.convolution(&kernel, spec)]).unwrap());
        for (chip, bytes) in [("v2-8", 16_777_216.0), ("v5p-8", 16_777_216.0), ("v5e-1", 0.0), ("v4-8", 0.0)]
        {
            let p = placed(&work, chip);
            assert_eq!(p.activations + p.temporaries, bytes, "{chip}");
        }
        assert_eq!(placed(&work, "h100").temporaries, 0.0, "only tiles need another order");
    }

    #[test]
    fn random_bits_are_turned_through_rows_of_128() {
        let g = GraphBuilder::new("main");
        let state = g.parameter(TensorType::new(DType::U64, [2]), "state");
        let (next, draws) = state.random_uniform(&[1024, 512]);
        let work = KernelList::of(&g.finish(&[next, draws]).unwrap());
        let p = placed(&work, "v2-8");
        let wide = 1024.0 * 512.0 / 4.0 * 128.0;
        assert!(p.temporaries >= wide && p.temporaries < 1.5 * wide, "{p:?}");
        assert_eq!(placed(&work, "v6e-1").temporaries, 0.0);
    }

    /// libtpu 0.0.51 keeps of convolution → normalisation → relu → convolution only the convolutions' results; what the
    /// gradient of a maximum over windows reads is written.
    #[test]
    fn a_normalised_value_is_made_again_by_products_and_stored_for_gradients_of_windows() {
        let large = |pooled: bool| -> Vec<Vec<usize>> {
            let g = GraphBuilder::new("main");
            let x = g.parameter(TensorType::new(DType::F32, [64, 16, 16, 32]), "x");
            let kernel = g.parameter(TensorType::new(DType::F32, [3, 3, 32, 32]), "kernel");
            let spec = Convolution::same(x.ty(), kernel.ty(), &[1, 1], &[1, 1], 1);
            let y = x.convolution(&kernel, spec.clone());
            let mean = y.sum(&[0, 1, 2]) * (1.0 / 16384.0);
            let centred = &y - mean.broadcast_except(y.shape(), &[0, 1, 2]);
            let relu = centred.maximum(&centred.scalar_like(0.0).broadcast_to(y.shape()));
            let z = match pooled {
                true => {
                    let most = relu.max_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
                    grad(&most.sum(&[0, 1, 2, 3]), &[&relu]).remove(0)
                }
                false => relu.convolution(&kernel, spec),
            };
            let work = KernelList::of(&g.finish(&[z]).unwrap());
            let written = work.kernels.iter().flat_map(|k| &k.writes);
            written.filter(|a| a.ty.rank() == 4).map(|a| a.ty.shape.to_vec()).collect()
        };
        let (whole, pooled) = (vec![64, 16, 16, 32], vec![64, 8, 8, 32]);
        assert_eq!(large(false), vec![whole.clone(); 2], "the two convolutions' results");
        // The convolution's result, what the windows see, the gradient that comes in and the one that goes out.
        assert_eq!(large(true), [whole.clone(), whole.clone(), pooled, whole]);
    }
}
