//! Measures peak rates of this machine (FLOP/s and memory bandwidth) for rooflines.
//!
//! Benchmarks and profiles compare with these ceilings. Short loops run on all threads at once, and each thread reports
//! the best of many bursts, so that other processes disturb the result little. No result of a program depends on them.

use crate::simd::amx;
use crate::simd::gemm::int8_peak_loop;
use crate::simd::level::{Isa, Level, TileLoop};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::DType;

/// Measured peak rates for a number of threads at one instruction-set level.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Instruction-set level.
    pub level: Level,
    /// Number of threads that run at the same time.
    pub threads: usize,
    /// f32 multiply-adds, in GFLOP/s (a multiply-add is two operations).
    pub fma_gflops: f64,
    /// bf16 multiply-adds with f32 accumulators, in GFLOP/s; the f32 rate if no bf16 instruction is faster.
    pub bf16_gflops: f64,
    /// int8 multiply-adds with i32 accumulators, in 10⁹ operations per second.
    pub int8_gflops: f64,
    /// Bandwidth by size of the working set, smallest first.
    pub tiers: Vec<Tier>,
}

/// Bandwidth of one level of the memory hierarchy.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// `L2`, `L3` or `memory`.
    pub name: &'static str,
    /// Largest working set, summed over all threads, that fits into it, in bytes.
    pub bytes: usize,
    /// Bandwidth of all threads in 10⁹ bytes per second: the larger of the read rate and the copy rate (reads plus
    /// writes).
    pub gb_per_s: f64,
}

impl Peak {
    /// Returns the smallest memory level that holds a working set of `bytes`.
    pub fn tier(&self, bytes: f64) -> &Tier {
        let last = self.tiers.len() - 1;
        self.tiers.iter().find(|t| bytes <= t.bytes as f64).unwrap_or(&self.tiers[last])
    }

    /// Returns the peak rate of multiply-adds of an element type, in 10⁹ operations per second.
    pub fn products(&self, dtype: DType) -> f64 {
        match dtype {
            DType::BF16 => self.bf16_gflops,
            DType::I8 | DType::U8 => self.int8_gflops,
            _ => self.fma_gflops,
        }
    }

    /// Returns the main memory bandwidth in 10⁹ bytes per second.
    pub fn memory_gb_per_s(&self) -> f64 {
        self.tier(f64::INFINITY).gb_per_s
    }
}

static MEASURED: Mutex<Vec<Peak>> = Mutex::new(Vec::new());

/// Returns the peak rates of `threads` threads at `level`. The first call measures them (0.2 s); later calls are
/// cached.
///
/// ```
/// let peak = systole_cpu::peak(systole_cpu::Level::Portable, 1);
/// assert!(peak.fma_gflops > 0.0 && peak.memory_gb_per_s() > 0.0);
/// ```
pub fn peak(level: Level, threads: usize) -> Peak {
    // An unsupported level cannot be measured.
    let level = if level.is_available() { level } else { Level::best() };
    let threads = threads.max(1);
    let mut known = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(peak) = known.iter().find(|p| p.level == level && p.threads == threads) {
        return peak.clone();
    }
    let peak = measure(level, threads);
    known.push(peak.clone());
    peak
}

fn measure(level: Level, threads: usize) -> Peak {
    let (l2, l3) = (cache_bytes(2).unwrap_or(1 << 20), cache_bytes(3).unwrap_or(0));
    let rate = |burst: &(dyn Fn() -> f64 + Sync)| on_all(threads, || best(Duration::from_millis(30), burst));
    let fma_gflops = rate(&|| fma_burst(level));
    let [bf16_gflops, int8_gflops] = match amx::kernels_of(level) {
        Some(unit) => [0, 1].map(|i| rate(&|| tiles_burst(unit, i))),
        None if level == Level::Avx512Bf16 => {
            [rate(&pairs_burst).max(fma_gflops), rate(&|| bytes_burst(level))]
        }
        None => [fma_gflops, rate(&|| bytes_burst(level))],
    };
    // Working sets are half a cache; the other half is left for other data.
    let mut tiers = vec![("L2", l2 * threads, l2 / 2)];
    if l3 > l2 * threads {
        tiers.push(("L3", l3, l3 / 2 / threads));
    }
    tiers.push(("memory", usize::MAX, (4 * l3).clamp(32 << 20, 128 << 20) / threads));
    let tiers = tiers.into_iter().map(|(name, bytes, each)| {
        let gb_per_s = on_all(threads, || bandwidth(level, each));
        Tier { name, bytes, gb_per_s }
    });
    Peak { level, threads, fma_gflops, bf16_gflops, int8_gflops, tiers: tiers.collect() }
}

/// Returns the size in bytes of a cache level, if the system reports it.
fn cache_bytes(level: usize) -> Option<usize> {
    let read = |i: usize, what: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{i}/{what}")).ok()
    };
    let index = (0..8).find(|&i| {
        read(i, "level").is_some_and(|l| l.trim() == level.to_string())
            && read(i, "type").is_some_and(|t| t.trim() != "Instruction")
    })?;
    let size = read(index, "size")?;
    size.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
}

/// Runs `rate` on `threads` threads at the same time; returns the sum.
fn on_all(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    let start = Barrier::new(threads);
    let one = || {
        start.wait();
        rate()
    };
    std::thread::scope(|s| {
        let others: Vec<_> = (1..threads).map(|_| s.spawn(one)).collect();
        let own = one();
        own + others.into_iter().filter_map(|t| t.join().ok()).sum::<f64>()
    })
}

/// Returns the best rate (10⁹ per second) of a burst that returns its amount of work, repeated for `time`.
fn best(time: Duration, mut burst: impl FnMut() -> f64) -> f64 {
    let began = Instant::now();
    let mut best = 0f64;
    while began.elapsed() < time {
        let start = Instant::now();
        let done = burst();
        best = best.max(done / start.elapsed().as_secs_f64().max(1e-9) / 1e9);
    }
    best
}

/// [`CHAINS`] vectors of independent multiply-add chains, `N` floats in total: few enough for the registers. The array
/// is flat, since the compiler keeps nested arrays in memory.
struct Chains<const N: usize>;

const CHAINS: usize = 12;
/// Length of each chain in one burst: about 50 µs.
const STEPS: usize = 1 << 13;

impl<const N: usize> TileLoop for Chains<N> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `a` and `dst` hold N floats.
        let mut sums = unsafe { *a.cast::<[f32; N]>() };
        let x = sums[0];
        for _ in 0..n {
            for s in &mut sums {
                *s = if I::FMA { s.mul_add(x, x) } else { *s * x + x };
            }
        }
        // SAFETY: as above.
        unsafe { *dst.cast() = sums };
    }
}

/// Runs one burst; returns the number of operations.
fn fma_burst(level: Level) -> f64 {
    match level {
        Level::Portable => burst_of::<{ CHAINS * 4 }>(level),
        Level::Avx2 => burst_of::<{ CHAINS * 8 }>(level),
        _ => burst_of::<{ CHAINS * 16 }>(level),
    }
}

fn burst_of<const N: usize>(level: Level) -> f64 {
    // Opaque start values: the compiler would otherwise merge equal chains. They converge to 1.
    let start = std::hint::black_box([0.5f32; N]);
    let mut out = start;
    let from = start.as_ptr().cast::<u8>();
    let to = out.as_mut_ptr().cast::<u8>();
    // SAFETY: the level is available (see `peak`); operand and result hold N floats, the other operands are not read.
    unsafe { level.tile::<Chains<N>>()(to, from, from, from, STEPS) };
    std::hint::black_box(out);
    (2 * N * STEPS) as f64
}

/// Like [`fma_burst`], for bf16 pairs: two multiply-adds per f32 lane.
#[cfg(target_arch = "x86_64")]
fn pairs_burst() -> f64 {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps, _mm512_set1_ps};

    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn burst(x: f32) -> [__m512; CHAINS] {
        let mut sums = [_mm512_set1_ps(x); CHAINS];
        // SAFETY: both types have 512 bits, and any bits are valid.
        let pairs: __m512bh = unsafe { std::mem::transmute(_mm512_set1_ps(x)) };
        for _ in 0..STEPS {
            sums = sums.map(|s| _mm512_dpbf16_ps(s, pairs, pairs));
        }
        sums
    }

    // SAFETY: called only at the level that has the instruction, and the level is available (see `peak`).
    std::hint::black_box(unsafe { burst(std::hint::black_box(0.5)) });
    (4 * 16 * CHAINS * STEPS) as f64
}

#[cfg(not(target_arch = "x86_64"))]
fn pairs_burst() -> f64 {
    0.0
}

/// Like [`fma_burst`], for int8.
fn bytes_burst(level: Level) -> f64 {
    let (run, operations) = int8_peak_loop(level);
    // SAFETY: the level is available (see `peak`).
    unsafe { run(STEPS) };
    (operations * STEPS) as f64
}

/// Like [`fma_burst`], on tile registers: bf16 (`which` 0) or int8 (1).
fn tiles_burst(unit: &amx::AmxKernels, which: usize) -> f64 {
    // SAFETY: the level is available (see `peak`).
    unsafe { (unit.at_most[which])(STEPS / 4) };
    (amx::AT_MOST[which] * (STEPS / 4)) as f64
}

/// Sums 64-bit words: a read-bound loop.
struct ReadWords;

impl TileLoop for ReadWords {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `a` holds n words, `dst` one.
        let (dst, a) = unsafe { (&mut *dst.cast::<u64>(), std::slice::from_raw_parts(a.cast::<u64>(), n)) };
        *dst = a.iter().fold(0, |sum, x| sum.wrapping_add(*x));
    }
}

/// Returns the larger of the read rate and the copy rate over a working set of `bytes` in one thread.
fn bandwidth(level: Level, bytes: usize) -> f64 {
    let words = bytes / 8;
    let mut data = vec![1u64; words];
    let read = level.tile::<ReadWords>();
    let time = Duration::from_millis(20);
    // Small working sets are traversed several times per burst, so that reading the clock costs little.
    let rounds = (1usize << 20).div_ceil(bytes);
    let reading = best(time, || {
        for _ in 0..rounds {
            let (from, mut sum) = (data.as_ptr().cast::<u8>(), 0u64);
            // SAFETY: the level is available; `data` holds that many words, `sum` one.
            unsafe { read(std::ptr::from_mut(&mut sum).cast(), from, from, from, words) };
            std::hint::black_box(sum);
        }
        (rounds * bytes) as f64
    });
    let (from, to) = data.split_at_mut(words / 2);
    let copying = best(time, || {
        for _ in 0..rounds {
            to[..from.len()].copy_from_slice(from);
            std::hint::black_box(&mut *to);
        }
        (rounds * 16 * from.len()) as f64
    });
    reading.max(copying)
}

/// Returns the CPU time of all threads of this process so far, in seconds; `None` if the system does not report it.
pub fn process_cpu_seconds() -> Option<f64> {
    const CLOCK_PROCESS_CPUTIME_ID: i32 = 2;
    clock(CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of the calling thread so far, in seconds; `None` if the system does not report it.
pub fn thread_cpu_seconds() -> Option<f64> {
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    clock(CLOCK_THREAD_CPUTIME_ID)
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn clock(clock: i32) -> Option<f64> {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: writes the structure, which has the layout of this platform's `timespec`.
    let result = unsafe { clock_gettime(clock, &mut time) };
    (result == 0).then_some(time.seconds as f64 + time.nanoseconds as f64 * 1e-9)
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn clock(_: i32) -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_positive_and_tiers_grow() {
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            let p = peak(level, 2);
            assert_eq!((p.level, p.threads), (level, 2));
            assert!(p.fma_gflops > 0.0 && p.products(DType::BF16) >= p.products(DType::F32), "{p:?}");
            assert!(p.products(DType::I8) == p.int8_gflops && p.int8_gflops > 0.0, "{p:?}");
            assert!(p.tiers.iter().all(|t| t.gb_per_s > 0.0), "{p:?}");
            assert!(p.tiers.windows(2).all(|t| t[0].bytes < t[1].bytes), "{p:?}");
            assert_eq!(p.tier(1.0).name, "L2");
            assert_eq!(p.tier(1e15).name, "memory");
            // Cached: a second measurement would hardly give the same bits.
            assert_eq!(peak(level, 2), p);
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn processor_time_goes_on() {
        for clock in [process_cpu_seconds, thread_cpu_seconds] {
            let before = clock().unwrap();
            fma_burst(Level::Portable);
            assert!(clock().unwrap() > before);
        }
    }
}
