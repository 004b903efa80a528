//! Memory check before a run: rejects programs that do not fit, instead of risking an out-of-memory kill.

use crate::machine::memory::{available, resident};
use crate::run::executor::Executor;
use systole_compile::{ArrayUsage, footprint, largest_intermediates};
use systole_ir::{Error, Result, err, knobs};

/// Programs that need fewer bytes are not compared with the machine's free memory, since that costs reads of system
/// files.
const SMALL: usize = 256 << 20;

/// Returns an error if the program needs more memory than `SYSTOLE_MEMORY_LIMIT` allows or than the machine has
/// available. No other code makes this decision. The backend reacts with rematerialization, and returns the error if no
/// variant fits.
pub(crate) fn check(executor: &Executor, param_names: &[String]) -> Result<()> {
    let need = MemoryDemand::of(executor)?;
    match Shortage::of(need.arguments, need.own())? {
        None => Ok(()),
        Some(shortage) => Err(need.refused(executor, param_names, &shortage)),
    }
}

/// Checks the memory of a program without an executor, which allocates `bytes` in addition to its arguments.
///
/// # Errors
/// If it needs more memory than `SYSTOLE_MEMORY_LIMIT` allows or than the machine has available.
pub fn check_memory(bytes: usize) -> Result<()> {
    match Shortage::of(0, bytes)? {
        None => Ok(()),
        Some(s) => Err(err!(Unsupported, "this program needs {} of memory, {}", mib(s.total), s.told)
            .because(format!(
                "intermediate values {}, other memory of the process {}",
                mib(bytes),
                mib(s.total - bytes)
            ))
            .hint(s.way_out)),
    }
}

/// More memory needed than there is.
struct Shortage {
    /// Bytes that the process needs.
    total: usize,
    /// What it has instead.
    told: String,
    way_out: &'static str,
}

impl Shortage {
    /// Returns what is missing for arguments and `own` further bytes.
    fn of(arguments: usize, own: usize) -> Result<Option<Shortage>> {
        let limit = knobs::MEMORY_LIMIT.get_bytes()?;
        if limit.is_none() && own < SMALL {
            return Ok(None);
        }
        let used = resident().unwrap_or(0);
        // Most arguments are already resident and part of `used`; the others will be.
        let total = used.max(arguments).saturating_add(own);
        if let Some(limit) = limit.filter(|&l| total > l) {
            let told = format!("but the limit is {}", mib(limit));
            return Ok(Some(Shortage { total, told, way_out: "raise --memory-limit" }));
        }
        Ok(available().filter(|&free| own > free).map(|free| {
            let told = format!("but {} are available", mib(used.saturating_add(free)));
            Shortage { total, told, way_out: "give the process more memory" }
        }))
    }
}

/// Bytes that a run needs, by purpose.
struct MemoryDemand {
    arguments: usize,
    results: usize,
    /// Arena of intermediate values, and scratch of kernels.
    working: usize,
    arena: usize,
}

impl MemoryDemand {
    fn of(executor: &Executor) -> Result<MemoryDemand> {
        let f = footprint(executor.schedule());
        let working = executor.memory_bytes()?.saturating_add(executor.constant_bytes());
        Ok(MemoryDemand { arguments: f.arguments, results: f.results, working, arena: f.arena })
    }

    /// Returns the bytes that a run allocates: all but its arguments.
    fn own(&self) -> usize {
        self.results.saturating_add(self.working)
    }

    fn refused(&self, executor: &Executor, param_names: &[String], shortage: &Shortage) -> Error {
        let Shortage { total, told, way_out } = shortage;
        let kernels = self.working.saturating_sub(self.arena);
        let mut parts = vec![
            format!(
                "weights, optimizer state, batch and other memory of the process {}",
                mib(total - self.own())
            ),
            format!("intermediate values {}", mib(self.arena)),
            format!("kernels' working memory {}", mib(kernels)),
            format!("new results {}", mib(self.results)),
        ];
        parts.retain(|p| !p.ends_with(" 0 MiB"));
        let mut holdings = largest_intermediates(executor.schedule());
        holdings.extend(arguments(executor, param_names));
        holdings.sort_by_key(|h| std::cmp::Reverse(h.ty.bytes()));
        let largest: Vec<String> = holdings
            .iter()
            .take(4)
            .map(|h| format!("{} ({}, {})", h.ty, mib(h.ty.bytes()), h.what))
            .collect();
        let mut e = err!(Unsupported, "this program needs {} of memory, {told}", mib(*total))
            .because(parts.join(", "));
        if !largest.is_empty() {
            e = e.because(format!("the largest arrays of the program: {}", largest.join(", ")));
        }
        e.hint(format!(
            "use a smaller batch (--batch-size), 16-bit values (--precision mixed_bfloat16), layers with remat = true \
             (which recompute instead of storing), or {way_out}"
        ))
    }
}

fn arguments<'a>(executor: &'a Executor, names: &'a [String]) -> impl Iterator<Item = ArrayUsage> + 'a {
    let types = executor.schedule().params.iter().zip(names);
    types.map(|(ty, name)| ArrayUsage { ty: ty.clone(), what: format!("argument {name}") })
}

fn mib(bytes: usize) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
