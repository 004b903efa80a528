//! Profile tables: time by layer and phase (forward, backward, update), and each kernel against the machine's roofline.
//!
//! Shares are fractions of the wall time of the program's kernels. Steps inside a parallel loop run on one thread each:
//! their CPU time is divided by the number of threads, and counts for at most the step that contains them.
//!
//! The lower bound of a kernel's time is the larger of two times. One is its operations at the peak rate of its element
//! type (FMA, bf16, int8). The other is the bytes that it must read and write, at the bandwidth of the smallest cache
//! that holds them. If a kernel was faster than that, its data was already in a faster cache, which is then used.

use crate::kernel::{KernelTimes, ProgramView};
use crate::machine::peak::{Peak, peak};
use crate::simd::level::Level;
use systole_compile::{Kernel, Step};
use systole_ir::DType;
use systole_runtime::layer_times::{LayerPhase, LayerTime, layer_table, name_within, percent};

/// Number of kernels in the short table.
const SLOWEST: usize = 10;
/// Width of the short table's first column.
const KERNELS: usize = 41;

/// A step with its share of the program's time.
struct ProfileRow<'p> {
    /// Nesting depth of the program.
    depth: usize,
    index: usize,
    step: &'p Step,
    times: KernelTimes,
    /// Wall time of all calls.
    seconds: f64,
    kind: LayerPhase,
    /// Path of the layer that the time is attributed to.
    layer: String,
    /// Whether it only runs the steps that follow.
    is_container: bool,
}

/// Machine configuration that a program ran on.
struct ProfiledMachine {
    level: Level,
    threads: usize,
}

/// Formats times by layer and the slowest kernels in 80 columns. Returns `None` if no run was timed.
pub(crate) fn summary(program: &dyn ProgramView, level: Level, threads: usize) -> Option<String> {
    let (machine, rows) = (ProfiledMachine { level, threads }, rows_of(program, threads));
    let total = total_of(&rows)?;
    let runs = rows.iter().filter(|r| r.depth == 0).map(|r| r.times.calls).max().unwrap_or(1);
    let per_run = 1e3 / runs as f64;
    let mut text = format!(
        "{runs} run{} on {threads} thread{}: ms per run, and shares of the time in kernels\n",
        if runs == 1 { "" } else { "s" },
        if threads == 1 { "" } else { "s" },
    );
    let parts: Vec<LayerTime> = rows.iter().filter(|r| !r.is_container).map(ProfileRow::part).collect();
    text += &layer_table(&parts, total, per_run);
    let mut slowest: Vec<&ProfileRow> = rows.iter().filter(|r| !r.is_container).collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let all = slowest.len();
    slowest.truncate(SLOWEST);
    text += &match all > SLOWEST {
        true => format!("\nthe {SLOWEST} slowest of {all} kernels; --profile=kernels shows all\n"),
        false => "\n".into(),
    };
    text += &machine.ceilings();
    text +=
        &format!("{:<KERNELS$}{:>7}{:>10}{:>8}{:>13}\n", "kernel", "calls", "ms/call", "share", "of ceiling");
    for r in slowest {
        text += &format!(
            "{:<KERNELS$}{:>7}{:>10.3}{:>8}{:>13}\n",
            name_within(&format!("{} {}", r.index, r.step.kernel.name()), &r.layer, KERNELS - 1),
            r.times.calls,
            r.times.seconds * 1e3,
            percent(r.seconds / total),
            machine.of_ceiling(r),
        );
    }
    Some(text)
}

/// Formats the times of all kernels; steps of nested programs follow the step that contains them. Returns `None` if no
/// run was timed.
pub(crate) fn all_kernels(program: &dyn ProgramView, level: Level, threads: usize) -> Option<String> {
    let (machine, rows) = (ProfiledMachine { level, threads }, rows_of(program, threads));
    let total = total_of(&rows)?;
    let mut text = machine.ceilings();
    text += &format!(
        "{:<34} {:>7} {:>9} {:>7} {:>8} {:>7} {:>13}  result\n",
        "kernel", "calls", "ms/call", "share", "GFLOP/s", "GB/s", "of ceiling"
    );
    for r in &rows {
        let (seconds, step) = (r.times.seconds, r.step);
        let of = if step.scope.is_empty() { "" } else { " of " };
        text += &format!(
            "{:<34} {:>7} {:>9.3} {:>7} {:>8.1} {:>7.1} {:>13}  {}{of}{}\n",
            format!("{}{} {}", "  ".repeat(r.depth), r.index, step.kernel.name()),
            r.times.calls,
            seconds * 1e3,
            percent(r.seconds / total),
            step.flops / seconds / 1e9,
            step.bytes_moved() / seconds / 1e9,
            machine.of_ceiling(r),
            step.output_types.first().map_or(String::new(), |t| t.to_string()),
            step.scope,
        );
    }
    Some(text)
}

fn total_of(rows: &[ProfileRow<'_>]) -> Option<f64> {
    let total: f64 = rows.iter().filter(|r| r.depth == 0).map(|r| r.seconds).sum();
    (total > 0.0).then_some(total)
}

/// Returns all steps that ran, those of each program sorted by time.
fn rows_of(program: &dyn ProgramView, threads: usize) -> Vec<ProfileRow<'_>> {
    let mut rows = Vec::new();
    collect(&[program], threads, None, &mut rows);
    rows
}

/// Appends the rows of nested programs, such as a loop's condition and body. `outer`: the row that contains them.
fn collect<'p>(
    programs: &[&'p dyn ProgramView],
    threads: usize,
    outer: Option<usize>,
    rows: &mut Vec<ProfileRow<'p>>,
) {
    let steps = programs.iter().flat_map(|&p| (0..p.steps().len()).map(move |i| (p, i)));
    let all: Vec<_> = steps.filter_map(|(p, i)| Some((p, i, p.times(i)?))).collect();
    let by_clock = |t: &KernelTimes| t.calls as f64 * t.seconds / if t.alone { threads as f64 } else { 1.0 };
    let own: Vec<f64> = all.iter().map(|(_, _, t)| by_clock(t)).collect();
    let seconds = within(&own, outer.map(|o| rows[o].seconds));
    let mut timed: Vec<_> = all.into_iter().zip(seconds).collect();
    timed.sort_by(|a, b| b.1.total_cmp(&a.1));
    for ((program, index, times), seconds) in timed {
        let step = &program.steps()[index];
        let inner: Vec<&dyn ProgramView> =
            program.kernels()[index].inner().into_iter().map(|(_, p)| p).collect();
        let (kind, layer) = place_of(step, outer.map(|o| &rows[o]));
        let depth = outer.map_or(0, |o| rows[o].depth + 1);
        let at = rows.len();
        rows.push(ProfileRow { depth, index, step, times, seconds, kind, layer, is_container: false });
        collect(&inner, threads, Some(at), rows);
        rows[at].is_container = rows.len() > at + 1;
    }
}

/// Returns the times of steps, scaled so that their sum does not exceed that of the containing step.
fn within(own: &[f64], outer: Option<f64>) -> Vec<f64> {
    let sum: f64 = own.iter().sum();
    let scale = outer.filter(|_| sum > 0.0).map_or(1.0, |outer| outer / sum);
    own.iter().map(|t| t * scale).collect()
}

/// Returns the phase and layer of a step. Loop bodies belong to their layer; row blocks contain parts of several
/// layers.
fn place_of(step: &Step, outer: Option<&ProfileRow<'_>>) -> (LayerPhase, String) {
    let own = outer.is_none_or(|o| o.layer.is_empty() || matches!(o.step.kernel, Kernel::Blocks(_)));
    let layer = match outer {
        Some(o) if !own || step.scope.is_empty() => o.layer.clone(),
        _ => step.scope.to_string(),
    };
    let is_derivative = step.scope.is_derivative || outer.is_some_and(|o| o.kind == LayerPhase::Backward);
    (LayerPhase::of(&layer, is_derivative), layer)
}

impl ProfileRow<'_> {
    fn part(&self) -> LayerTime {
        LayerTime { layer: self.layer.clone(), kind: self.kind, seconds: self.seconds }
    }
}

impl ProfiledMachine {
    /// Formats the peak rates that kernels are compared with.
    fn ceilings(&self) -> String {
        let all = peak(self.level, self.threads);
        let tiers: Vec<String> =
            all.tiers.iter().map(|t| format!("{} {:.0} GB/s", t.name, t.gb_per_s)).collect();
        let bf16 = match all.bf16_gflops > all.fma_gflops {
            true => format!(", bf16 {:.0}", all.bf16_gflops),
            false => String::new(),
        };
        format!(
            "ceilings of {} thread{}: FMA {:.0}{bf16}, int8 {:.0} GFLOP/s;\n  {}\n",
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            all.fma_gflops,
            all.int8_gflops,
            tiers.join(", ")
        )
    }

    /// Returns the fraction of a ceiling that a kernel reached, and the ceiling's name: `73 % memory`.
    fn of_ceiling(&self, row: &ProfileRow<'_>) -> String {
        if row.is_container {
            return String::new();
        }
        let threads = if row.times.alone { 1 } else { self.threads };
        let (share, name) = reached(&peak(self.level, threads), row.step, row.times.seconds);
        match share > 1.0 {
            // Measured peaks vary over time.
            true => format!("above {name}"),
            false => format!("{:.0} % {name}", 100.0 * share),
        }
    }
}

/// Returns the larger fraction of peak: of arithmetic, or of the bandwidth of the cache that the data came from.
fn reached(peak: &Peak, step: &Step, seconds: f64) -> (f64, &'static str) {
    let factors = step.input_types.first().map(|t| t.dtype);
    let alike = step.is_product() && step.input_types.iter().take(2).all(|t| Some(t.dtype) == factors);
    let (name, rate) = match factors.filter(|_| alike) {
        Some(DType::BF16) if peak.bf16_gflops > peak.fma_gflops => ("bf16", peak.bf16_gflops),
        Some(DType::I8 | DType::U8) => ("int8", peak.int8_gflops),
        _ => ("FMA", peak.fma_gflops),
    };
    let computing = step.flops / rate / 1e9 / seconds;
    let moving = moved(peak, step.bytes_moved(), seconds);
    if computing > moving.0 { (computing, name) } else { moving }
}

/// Returns the fraction of a memory level's bandwidth at which `bytes` were moved.
fn moved(peak: &Peak, bytes: f64, seconds: f64) -> (f64, &'static str) {
    let holds = peak.tier(bytes);
    let nearer = peak.tiers.iter().rev().skip_while(|t| t.name != holds.name);
    let share = |gb_per_s: f64| bytes / gb_per_s / 1e9 / seconds;
    let mut shares = nearer.map(|t| (share(t.gb_per_s), t.name));
    let first = shares.next().unwrap_or((0.0, holds.name));
    std::iter::once(first)
        .chain(shares)
        .reduce(|last, nearer| if last.0 > 1.0 { nearer } else { last })
        .unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::peak::Tier;

    #[test]
    fn steps_take_no_longer_than_what_contains_them() {
        assert_eq!(within(&[3.0, 1.0], None), [3.0, 1.0]);
        assert_eq!(within(&[6.0, 2.0], Some(4.0)), [3.0, 1.0]);
        assert_eq!(within(&[0.0], Some(4.0)), [0.0]);
    }

    #[test]
    fn a_kernel_faster_than_memory_had_its_data_in_a_cache() {
        let tier = |name, bytes, gb_per_s| Tier { name, bytes, gb_per_s };
        let tiers =
            vec![tier("L2", 1 << 20, 200.0), tier("L3", 1 << 25, 100.0), tier("memory", usize::MAX, 10.0)];
        let peak = Peak {
            level: Level::Portable,
            threads: 2,
            fma_gflops: 100.0,
            bf16_gflops: 100.0,
            int8_gflops: 100.0,
            tiers,
        };
        let told = |bytes, seconds| {
            let (share, name) = moved(&peak, bytes, seconds);
            format!("{:.0} % {name}", 100.0 * share)
        };
        assert_eq!(told(1e8, 0.1), "10 % memory");
        assert_eq!(told(1e8, 2e-3), "50 % L3");
        assert_eq!(told(1e8, 5e-4), "100 % L2");
        assert_eq!(told(1e6, 1.0), "0 % L2");
        assert!(moved(&peak, 1e8, 1e-4).0 > 1.0, "faster than anything that was measured");
    }
}
