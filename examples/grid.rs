//! The lesson of the CUDA tutorials without a GPU: a grid of blocks of threads, shared memory, barriers. A vector sum, a tiled
//! product of matrices; a race that a missing barrier makes, found and shown; and shared memory whose banks are in each
//! other's way. Run it with `cargo run --release --example grid`.
//!
//! Threads of a block are threads of this computer; blocks run one after the other. Every access is written down, so that
//! races are found by rule and not by luck: two threads at one place, at least one of them writing, with no barrier between.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};

/// Threads that a GPU runs in step, and the banks of its shared memory.
const WARP: usize = 32;

/// An array that all threads see: of the device, or of a block.
struct Memory {
    name: &'static str,
    cells: Vec<AtomicU32>,
    is_shared: bool,
}

impl Memory {
    fn new(name: &'static str, values: &[f32], is_shared: bool) -> Memory {
        let cells = values.iter().map(|v| AtomicU32::new(v.to_bits())).collect();
        Memory { name, cells, is_shared }
    }

    fn global(name: &'static str, values: &[f32]) -> Memory {
        Memory::new(name, values, false)
    }

    /// `__shared__ float name[n]`. A block begins with what the one before has left, as on a GPU.
    fn shared(name: &'static str, n: usize) -> Memory {
        Memory::new(name, &vec![0.0; n], true)
    }

    fn values(&self) -> Vec<f32> {
        self.cells.iter().map(|c| f32::from_bits(c.load(Relaxed))).collect()
    }
}

/// An access, as it is written down.
#[derive(Clone)]
struct Access {
    memory: &'static str,
    is_shared: bool,
    place: usize,
    is_write: bool,
    /// Barriers that the thread had passed.
    after: usize,
    block: usize,
    thread: usize,
    /// The how-manieth of its thread: threads of a warp are in step.
    step: usize,
}

/// A thread: `blockIdx`, `threadIdx` and `blockDim`, and what a kernel may do.
struct Thread<'a> {
    block: [usize; 2],
    thread: [usize; 2],
    dim: [usize; 2],
    blocks: [usize; 2],
    barrier: &'a Barrier,
    barriers: Cell<usize>,
    log: RefCell<Vec<Access>>,
}

impl Thread<'_> {
    /// `blockIdx * blockDim + threadIdx`, along x (0) or y (1).
    fn global(&self, axis: usize) -> usize {
        self.block[axis] * self.dim[axis] + self.thread[axis]
    }

    fn write_down(&self, memory: &Memory, place: usize, is_write: bool) {
        let mut log = self.log.borrow_mut();
        let step = log.len();
        log.push(Access {
            memory: memory.name,
            is_shared: memory.is_shared,
            place,
            is_write,
            after: self.barriers.get(),
            block: self.block[1] * self.blocks[0] + self.block[0],
            thread: self.thread[1] * self.dim[0] + self.thread[0],
            step,
        });
    }

    fn get(&self, memory: &Memory, place: usize) -> f32 {
        self.write_down(memory, place, false);
        f32::from_bits(memory.cells[place].load(Relaxed))
    }

    fn set(&self, memory: &Memory, place: usize, value: f32) {
        self.write_down(memory, place, true);
        memory.cells[place].store(value.to_bits(), Relaxed);
    }

    /// `__syncthreads()`.
    fn sync(&self) {
        self.barriers.set(self.barriers.get() + 1);
        self.barrier.wait();
    }
}

/// What a launch was like.
struct Report {
    reads: BTreeMap<&'static str, usize>,
    races: Vec<String>,
    /// How often the same access of a warp had to be repeated because of banks, at most: 1 is none.
    conflicts: usize,
    conflict: String,
}

/// `kernel<<<blocks, threads>>>()`.
fn launch(blocks: [usize; 2], threads: [usize; 2], kernel: impl Fn(&Thread) + Sync) -> Report {
    let log = Mutex::new(Vec::new());
    for block in 0..blocks[0] * blocks[1] {
        let barrier = Barrier::new(threads[0] * threads[1]);
        std::thread::scope(|scope| {
            for thread in 0..threads[0] * threads[1] {
                let (barrier, kernel, log) = (&barrier, &kernel, &log);
                scope.spawn(move || {
                    let t = Thread {
                        block: [block % blocks[0], block / blocks[0]],
                        thread: [thread % threads[0], thread / threads[0]],
                        dim: threads,
                        blocks,
                        barrier,
                        barriers: Cell::new(0),
                        log: RefCell::default(),
                    };
                    kernel(&t);
                    log.lock().expect("no thread panics").extend(t.log.into_inner());
                });
            }
        });
    }
    let mut log = log.into_inner().expect("no thread panics");
    // Threads end in any order; what is found must not depend on it.
    log.sort_by_key(|a| (a.block, a.thread, a.step));
    let mut reads = BTreeMap::new();
    for access in log.iter().filter(|a| !a.is_write) {
        *reads.entry(access.memory).or_insert(0) += 1;
    }
    let (conflicts, conflict) = bank_conflicts(&log);
    Report { reads, races: races(&log), conflicts, conflict }
}

/// Two threads at one place between the same barriers, one of them writing. Blocks are never synchronised with each other.
fn races(log: &[Access]) -> Vec<String> {
    let mut places: BTreeMap<(&str, usize, usize), Vec<&Access>> = BTreeMap::new();
    for a in log {
        let block = if a.is_shared { a.block } else { 0 };
        places.entry((a.memory, block, a.place)).or_default().push(a);
    }
    let mut found = Vec::new();
    for accesses in places.values() {
        let clash = |w: &&&Access| {
            let same_time = |a: &&Access| a.block != w.block || a.after == w.after;
            let other = |a: &&Access| (a.block, a.thread) != (w.block, w.thread);
            accesses.iter().copied().find(|a| other(a) && same_time(a))
        };
        let pair = accesses.iter().filter(|a| a.is_write).find_map(|w| Some((*w, clash(&w)?)));
        if let Some((w, a)) = pair {
            let does = if a.is_write { "writes" } else { "reads" };
            found.push(format!(
                "{}[{}]: thread {} of block {} writes while thread {} of block {} {does} (after {} barriers)",
                w.memory, w.place, w.thread, w.block, a.thread, a.block, w.after
            ));
        }
    }
    found
}

/// The worst access of a warp: places in one bank of shared memory are served one after the other, one place to all at once.
fn bank_conflicts(log: &[Access]) -> (usize, String) {
    let mut warps: BTreeMap<(usize, usize, usize), BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for a in log.iter().filter(|a| a.is_shared) {
        let banks = warps.entry((a.block, a.thread / WARP, a.step)).or_default();
        let places = banks.entry(a.place % WARP).or_default();
        if !places.contains(&a.place) {
            places.push(a.place);
        }
    }
    let all = warps.iter().flat_map(|(at, banks)| banks.iter().map(move |(bank, places)| (at, bank, places)));
    let worst = all.max_by_key(|(at, _, places)| (places.len(), std::cmp::Reverse(**at)));
    let Some(((block, warp, step), bank, places)) = worst else { return (1, String::new()) };
    let first: Vec<String> = places.iter().take(4).map(usize::to_string).collect();
    let told =
        format!("warp {warp} of block {block}, access {step}: bank {bank} has places {} …", first.join(", "));
    (places.len(), told)
}

/// `c[i] = a[i] + b[i]`, a thread for each element, and the last block not full.
fn vector_add() {
    let n = 1000;
    let a = Memory::global("a", &(0..n).map(|i| i as f32).collect::<Vec<_>>());
    let b = Memory::global("b", &vec![0.5; n]);
    let c = Memory::global("c", &vec![0.0; n]);
    let report = launch([n.div_ceil(64), 1], [64, 1], |t| {
        let i = t.global(0);
        if i < n {
            t.set(&c, i, t.get(&a, i) + t.get(&b, i));
        }
    });
    assert!(c.values().iter().enumerate().all(|(i, v)| *v == i as f32 + 0.5) && report.races.is_empty());
    println!("vector sum: {n} elements in {} blocks of 64 threads, no race", n.div_ceil(64));
}

const N: usize = 24;
const TILE: usize = 8;

/// `c = a · b` of N × N matrices, a thread for each element. Blocks put tiles into shared memory; without the second
/// barrier, fast threads overwrite a tile that slow ones still read.
fn product(is_tiled: bool, has_both_barriers: bool) -> (Vec<f32>, Report) {
    let values = |f: fn(usize) -> usize| (0..N * N).map(|i| f(i) as f32).collect::<Vec<_>>();
    let a = Memory::global("a", &values(|i| i % 7));
    let b = Memory::global("b", &values(|i| i % 5));
    let c = Memory::global("c", &vec![0.0; N * N]);
    let (tile_a, tile_b) = (Memory::shared("tile_a", TILE * TILE), Memory::shared("tile_b", TILE * TILE));
    let report = launch([N / TILE; 2], [TILE; 2], |t| {
        let ([x, y], [column, row]) = (t.thread, [t.global(0), t.global(1)]);
        let mut sum = 0.0;
        if !is_tiled {
            (0..N).for_each(|k| sum += t.get(&a, row * N + k) * t.get(&b, k * N + column));
        }
        for first in (0..N).step_by(TILE).take(if is_tiled { N } else { 0 }) {
            t.set(&tile_a, y * TILE + x, t.get(&a, row * N + first + x));
            t.set(&tile_b, y * TILE + x, t.get(&b, (first + y) * N + column));
            t.sync();
            (0..TILE).for_each(|k| sum += t.get(&tile_a, y * TILE + k) * t.get(&tile_b, k * TILE + x));
            if has_both_barriers {
                t.sync();
            }
        }
        t.set(&c, row * N + column, sum);
    });
    (c.values(), report)
}

/// A tile of 32 × 32 is written by rows and read by columns; `width` places lie between its rows.
fn transpose(width: usize) -> Report {
    let out = Memory::global("out", &[0.0; WARP * WARP]);
    let tile = Memory::shared("tile", WARP * width);
    let report = launch([1, 1], [WARP, 4], |t| {
        let [x, y] = t.thread;
        (y..WARP).step_by(4).for_each(|row| t.set(&tile, row * width + x, (row * WARP + x) as f32));
        t.sync();
        (y..WARP).step_by(4).for_each(|row| t.set(&out, row * WARP + x, t.get(&tile, x * width + row)));
    });
    assert!(out.values().iter().enumerate().all(|(i, v)| *v == (i % WARP * WARP + i / WARP) as f32));
    report
}

fn main() {
    vector_add();

    let (plain, naive) = product(false, true);
    let (tiled, sparing) = product(true, true);
    let element =
        |i: usize| (0..N).map(|k| ((i / N * N + k) % 7 * ((k * N + i % N) % 5)) as f32).sum::<f32>();
    assert!((0..N * N).all(|i| plain[i] == element(i)) && plain == tiled);
    assert!(naive.races.is_empty() && sparing.races.is_empty());
    println!(
        "product of {N} × {N}: {} reads of a in global memory, {} with tiles of {TILE} × {TILE} in shared memory; no race",
        naive.reads["a"], sparing.reads["a"]
    );

    let (_, broken) = product(true, false);
    println!("without the second barrier: {} races, the first of them", broken.races.len());
    println!("  {}", broken.races[0]);

    let (in_the_way, padded) = (transpose(WARP), transpose(WARP + 1));
    println!("a tile of 32 × 32 read by columns: {}-way bank conflicts", in_the_way.conflicts);
    println!("  {}", in_the_way.conflict);
    println!("rows of 33 places: {}-way, which is none", padded.conflicts);
    assert_eq!((in_the_way.conflicts, padded.conflicts), (WARP, 1));
}
