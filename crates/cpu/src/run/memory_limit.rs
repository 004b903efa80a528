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
    let limit = knobs::MEMORY_LIMIT.get_bytes()?;
    let need = MemoryDemand::of(executor)?;
    if limit.is_none() && need.own() < SMALL {
        return Ok(());
    }
    let used = resident().unwrap_or(0);
    // Most arguments are already resident and part of `used`; the others will be.
    let total = used.max(need.arguments).saturating_add(need.own());
    if let Some(limit) = limit.filter(|&l| total > l) {
        let told = format!("but the limit is {}", mib(limit));
        return Err(need.refused(executor, param_names, total, &told, "raise --memory-limit"));
    }
    match available() {
        Some(free) if need.own() > free => {
            let told = format!("but {} are available", mib(used.saturating_add(free)));
            Err(need.refused(executor, param_names, total, &told, "give the process more memory"))
        }
        _ => Ok(()),
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

    fn refused(
        &self,
        executor: &Executor,
        param_names: &[String],
        total: usize,
        told: &str,
        raise: &str,
    ) -> Error {
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
        let mut e = err!(Unsupported, "this program needs {} of memory, {told}", mib(total))
            .because(parts.join(", "));
        if !largest.is_empty() {
            e = e.because(format!("the largest arrays of the program: {}", largest.join(", ")));
        }
        e.hint(format!(
            "use a smaller batch (--batch-size), 16-bit values (--precision mixed_bfloat16), layers with remat = true \
             (which recompute instead of storing), or {raise}"
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
