//! Thread pool: persistent workers that share the blocks of one parallel loop at a time, with work stealing.
//!
//! Each thread starts with its own range of blocks, the same in every loop with the same number of blocks. So data that
//! it wrote in one loop is in its cache when it reads the same part in the next loop. A thread that is done steals from
//! the end of another thread's range.
//!
//! Workers spin briefly after a loop, since a program is many short loops, then park. A loop never waits for a worker
//! that has not joined it: on a busy machine the caller runs the blocks itself. Nested loops, and loops of other
//! threads while the pool is busy, run serially. Results must not depend on which thread runs a block.

use crate::machine::trace_spans;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use systole_ir::knobs;
use systole_runtime::trace;

/// How long an idle worker spins before it parks. This is longer than the serial kernels of a small training step, each
/// of which would otherwise cost a wake-up.
const SPIN: Duration = Duration::from_micros(100);

/// Loops with less work than this (nanoseconds on one core) run serially, because sharing costs more than it gains.
pub const SERIAL_BELOW_NS: f64 = 6_000.0;

/// Thread pool for parallel loops, with persistent workers.
pub struct ThreadPool {
    shared: Arc<PoolShared>,
    workers: Vec<JoinHandle<()>>,
    busy: Mutex<()>,
}

struct PoolShared {
    /// Loop number (upper 32 bits), [`OPEN`], and the number of workers in the loop ([`MEMBERS`]).
    state: AtomicU64,
    job: Mutex<Option<PoolJob>>,
    /// Remaining blocks of each thread.
    ranges: Vec<BlockRange>,
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: u64 = 1 << 31;
const MEMBERS: u64 = OPEN - 1;

/// Range of blocks that is consumed from both ends: start in the upper 32 bits, end in the lower. Aligned to avoid
/// false sharing.
#[derive(Default)]
#[repr(align(128))]
struct BlockRange(AtomicU64);

impl BlockRange {
    fn set(&self, range: Range<usize>) {
        self.0.store((range.start as u64) << 32 | range.end as u64, Relaxed);
    }

    /// Takes the first block or the last one.
    fn take(&self, first: bool) -> Option<usize> {
        let rest = |r: u64| {
            let (start, end) = (r >> 32, r & 0xffff_ffff);
            (start < end).then(|| if first { r + (1 << 32) } else { r - 1 })
        };
        let taken = self.0.fetch_update(Relaxed, Relaxed, rest).ok()?;
        Some(if first { taken >> 32 } else { (taken & 0xffff_ffff) - 1 } as usize)
    }
}

/// Body of the current loop, with its lifetime erased; see [`ThreadPool::run_with`] for why that is sound.
#[derive(Clone, Copy)]
struct PoolJob {
    body: &'static (dyn Fn(usize) + Sync),
    flush: bool,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl ThreadPool {
    /// Creates a pool of `threads` threads (at least 1), including the caller of each loop.
    pub fn new(threads: usize) -> ThreadPool {
        let shared = Arc::new(PoolShared {
            state: AtomicU64::new(0),
            job: Mutex::new(None),
            ranges: (0..threads.max(1)).map(|_| BlockRange::default()).collect(),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let spawn = |i: usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("systole-{i}")).spawn(move || shared.work(i)).ok()
        };
        // If the system cannot create a thread, the pool has fewer.
        let workers = (1..threads.max(1)).filter_map(spawn).collect();
        ThreadPool { shared, workers, busy: Mutex::new(()) }
    }

    /// Creates the pool selected by the environment variable `SYSTOLE_THREADS`; 0 means all cores.
    pub fn from_knob() -> ThreadPool {
        let asked = knobs::THREADS.get_usize().min(1024);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        ThreadPool::new(if asked == 0 { cores } else { asked })
    }

    /// Returns the number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(0)`, …, `body(blocks − 1)`, each once, in any order and on any thread. `work_ns`: estimated total
    /// time on one core. If a block panics, the panic is raised here after all threads have left the loop.
    pub fn run(&self, blocks: usize, work_ns: f64, body: &(dyn Fn(usize) + Sync)) {
        self.run_with(blocks, work_ns, false, body);
    }

    /// Like [`ThreadPool::run`]. `flush`: whether workers flush subnormals to zero in the blocks. The caller sets its
    /// own mode.
    pub fn run_with(&self, blocks: usize, work_ns: f64, flush: bool, body: &(dyn Fn(usize) + Sync)) {
        let countable = u32::try_from(blocks).is_ok();
        let alone = self.workers.is_empty() || blocks < 2 || !countable || work_ns < SERIAL_BELOW_NS;
        let guard = if alone || INSIDE.get() { None } else { self.busy.try_lock().ok() };
        if guard.is_none() {
            (0..blocks).for_each(body);
            return;
        }
        // Kernels that workers run inside this loop are attributed to the same program.
        let program = if trace::is_on() { trace::program() } else { None };
        let named = |block: usize| match &program {
            Some(program) => trace::within(program, || body(block)),
            None => body(block),
        };
        let body: &(dyn Fn(usize) + Sync) = if program.is_some() { &named } else { body };
        // SAFETY: only the lifetime changes. Workers use the body only while they are members of this loop, and this
        // function returns (or unwinds) only after it has closed the loop and the last member has left.
        let body: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        let s = &*self.shared;
        *lock(&s.job) = Some(PoolJob { body, flush });
        let threads = s.ranges.len();
        for (i, range) in s.ranges.iter().enumerate() {
            range.set(blocks * i / threads..blocks * (i + 1) / threads);
        }
        let number = (s.state.load(Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        s.state.store(number << 32 | OPEN, SeqCst);
        if s.parked.load(SeqCst) > 0 {
            drop(lock(&s.lock));
            s.wake.notify_all();
        }
        INSIDE.set(true);
        s.take_blocks(0, body);
        INSIDE.set(false);
        s.state.fetch_and(!OPEN, AcqRel);
        wait_until(|| s.state.load(Acquire) & MEMBERS == 0);
        *lock(&s.job) = None;
        let panic = lock(&s.panic).take();
        drop(guard);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(lock(&self.shared.lock));
        self.shared.wake.notify_all();
        for w in self.workers.drain(..) {
            let _ = w.join();
        }
    }
}

/// Whether this thread is inside a parallel loop.
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins, then yields, because the other thread may have lost its core.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins += 1;
        if spins < 20_000 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl PoolShared {
    /// Runs blocks as thread `me` until none remain.
    fn take_blocks(&self, me: usize, body: &(dyn Fn(usize) + Sync)) {
        let threads = self.ranges.len();
        let all = || {
            while let Some(block) = self.ranges[me].take(true) {
                body(block);
            }
            for other in (1..threads).map(|i| &self.ranges[(me + i) % threads]) {
                while let Some(block) = other.take(false) {
                    body(block);
                }
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(all)) {
            // Other threads stop at their next block.
            self.ranges.iter().for_each(|r| r.set(0..0));
            lock(&self.panic).get_or_insert(payload);
        }
    }

    fn work(&self, me: usize) {
        INSIDE.set(true);
        let mut last = 0;
        while let Some(state) = self.next_loop(last) {
            last = state >> 32;
            if !self.join_loop(last) {
                continue;
            }
            let job = *lock(&self.job);
            if let Some(job) = job {
                let before = flush_denormals(job.flush);
                let start = trace::begin();
                self.take_blocks(me, job.body);
                trace_spans::worker_span(start);
                restore_denormals(before);
            }
            self.state.fetch_sub(1, AcqRel);
        }
    }

    /// Waits for an open loop other than number `last`; returns `None` when the pool is dropped.
    fn next_loop(&self, last: u64) -> Option<u64> {
        let fresh = || {
            let s = self.state.load(SeqCst);
            (s & OPEN != 0 && s >> 32 != last).then_some(s)
        };
        let mut start = Instant::now();
        let mut spins = 0u32;
        loop {
            if self.stop.load(Relaxed) {
                return None;
            }
            if let Some(s) = fresh() {
                return Some(s);
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(64) && start.elapsed() > SPIN {
                let mut guard = lock(&self.lock);
                self.parked.fetch_add(1, SeqCst);
                while fresh().is_none() && !self.stop.load(SeqCst) {
                    guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.parked.fetch_sub(1, SeqCst);
                start = Instant::now();
            }
        }
    }

    /// Joins loop `number`, unless it is closed.
    fn join_loop(&self, number: u64) -> bool {
        let enter = |s: u64| (s & OPEN != 0 && s >> 32 == number).then_some(s + 1);
        self.state.fetch_update(AcqRel, Acquire, enter).is_ok()
    }
}

/// If `on`, sets flush-to-zero and denormals-are-zero for this thread; returns the previous MXCSR to restore.
pub fn flush_denormals(on: bool) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if on {
        let before = mxcsr();
        set_mxcsr(before | FLUSH);
        return Some(before);
    }
    let _ = on;
    None
}

/// Undoes [`flush_denormals`] on this thread.
pub fn restore_denormals(before: Option<u32>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = before {
        set_mxcsr(value);
    }
    let _ = before;
}

/// Runs `f` on this thread without flushing subnormal numbers, for code of the host program such as Python callbacks.
pub fn with_subnormals<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    let before = mxcsr();
    #[cfg(target_arch = "x86_64")]
    set_mxcsr(before & !FLUSH);
    let made = f();
    #[cfg(target_arch = "x86_64")]
    set_mxcsr(before);
    made
}

/// Bits FTZ and DAZ of MXCSR.
#[cfg(target_arch = "x86_64")]
const FLUSH: u32 = 0x8040;

#[cfg(target_arch = "x86_64")]
fn mxcsr() -> u32 {
    let mut value = 0u32;
    // SAFETY: stores MXCSR into a local variable.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags)) };
    value
}

#[cfg(target_arch = "x86_64")]
fn set_mxcsr(value: u32) {
    // SAFETY: the value was read from MXCSR, with only the bits FTZ and DAZ changed. No exception is unmasked and
    // rounding stays to nearest, which is all that compiled code relies on.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags, readonly)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_runs_once_for_any_team() {
        for threads in [1, 2, 3, 8] {
            let team = ThreadPool::new(threads);
            for blocks in [0usize, 1, 2, 7, 1000] {
                for _ in 0..20 {
                    let hits: Vec<AtomicUsize> = (0..blocks).map(|_| AtomicUsize::new(0)).collect();
                    team.run(blocks, 1e9, &|i| {
                        hits[i].fetch_add(1, Relaxed);
                        // A nested loop runs serially instead of deadlocking.
                        team.run(3, 1e9, &|_| {});
                    });
                    assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn ranges_are_taken_from_both_ends() {
        let range = BlockRange::default();
        assert_eq!((range.take(true), range.take(false)), (None, None));
        range.set(3..7);
        let taken = [true, false, true, false, true, false].map(|first| range.take(first));
        assert_eq!(taken, [Some(3), Some(6), Some(4), Some(5), None, None]);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = ThreadPool::new(3);
        for _ in 0..10 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(100, 1e9, &|i| assert!(i != 57, "block 57"));
            }));
            assert!(caught.is_err());
        }
        let sum = AtomicUsize::new(0);
        team.run(100, 1e9, &|i| {
            sum.fetch_add(i, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 4950);
    }

    #[test]
    fn many_threads_share_one_team() {
        let team = ThreadPool::new(2);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        let n = AtomicUsize::new(0);
                        team.run(10, 1e9, &|_| {
                            n.fetch_add(1, Relaxed);
                        });
                        assert_eq!(n.load(Relaxed), 10);
                    }
                });
            }
        });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn denormals_flush_only_while_asked() {
        let tiny = std::hint::black_box(1e-40f32);
        let before = flush_denormals(true);
        let flushed = std::hint::black_box(tiny) * std::hint::black_box(1.0);
        restore_denormals(before);
        let kept = std::hint::black_box(tiny) * std::hint::black_box(1.0);
        assert_eq!((flushed, kept), (0.0, 1e-40));
    }
}
