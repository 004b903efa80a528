//! Estimates from ahead-of-time compilation with Google's TPU compiler.
//!
//! Compiles once per TPU generation and per-device batch size, or once per slice if a strategy shards the step. The
//! compiles run in parallel, each in its own process.

use super::args::PlanArgs;
use super::planned_program::PlannedProgram;
use crate::commands::compile::{mesh, spread};
use crate::run::run_summary;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use systole_devices::{compile_cache, find_plugin};
use systole_dist::Strategy;
use systole_ir::{Result, err, knobs};
use systole_pjrt::{AcceleratorPlatform, AheadCompiler, program_text, spread_text};
use systole_plan::{ChipTables, Estimate, HalfType, KernelList, Machine, TpuSlice, analytic, compiled};
use systole_runtime::{AotCompiler, AotReport, AotRequest};

/// Memory reserved per compile, with a margin: steps of small models took 0.2 to 0.6 GiB. The free memory limits the
/// number of parallel compiles.
const EACH: usize = 2 << 30;

/// Compile target and the number of samples in the program.
type CompileKey = (String, usize);

/// The compiler and its results.
pub(super) struct CompilerEstimates {
    compiler: AheadCompiler,
    said: HashMap<CompileKey, Result<AotReport>>,
}

struct CompileJob {
    key: CompileKey,
    slice: TpuSlice,
    program: String,
    partitions: usize,
}

impl CompilerEstimates {
    /// Loads libtpu, if it is found.
    pub(super) fn find() -> Result<CompilerEstimates> {
        let library = find_plugin(AcceleratorPlatform::Tpu, None).require(AcceleratorPlatform::Tpu)?;
        let compiler = AheadCompiler::new(library)?;
        let compiler = match compile_cache()? {
            Some(cache) => compiler.with_cache(cache),
            None => compiler,
        };
        Ok(CompilerEstimates { compiler, said: HashMap::new() })
    }

    /// Compiles the programs of all slices among `machines`.
    pub(super) fn compile_all(
        &mut self,
        args: &PlanArgs,
        machines: &[Machine],
        subject: &mut PlannedProgram,
        tables: &ChipTables,
    ) -> Result<()> {
        let mut jobs: Vec<CompileJob> = Vec::new();
        for machine in machines {
            let Machine::Slice(slice) = machine else { continue };
            // A batch that cannot be split over the devices is reported with the machine's table row.
            let Ok((share, samples)) = subject.share(machine.devices(), &mut Vec::new()) else { continue };
            let key = key(args, slice, share.batch, samples, tables);
            if jobs.iter().any(|j| j.key == key) {
                continue;
            }
            match job(args, key.clone(), slice, subject, tables) {
                Ok(job) => jobs.push(job),
                Err(e) => drop(self.said.insert(key, Err(e))),
            }
        }
        let available = systole_cpu::available_memory().unwrap_or(16 << 30);
        let budget = knobs::MEMORY_LIMIT.get_bytes()?.unwrap_or(available);
        let lanes = lanes(budget, run_summary::threads(), jobs.len());
        let reports = side_by_side(&jobs, lanes, |job| {
            self.compiler.compile_ahead(&AotRequest {
                hlo: true,
                partitions: job.partitions,
                memory_limit: budget / lanes,
                ..AotRequest::new(job.program.as_str(), job.slice.ahead(tables))
            })
        });
        self.said.extend(jobs.into_iter().map(|j| j.key).zip(reports));
        Ok(())
    }

    /// Returns the compiled estimate, or the analytic one with a note if the compiler failed.
    pub(super) fn estimate(
        &self,
        args: &PlanArgs,
        (work, batch, samples): (&KernelList, usize, f64),
        machine: &Machine,
        slice: &TpuSlice,
        tables: &ChipTables,
        notes: &mut Vec<String>,
    ) -> Result<Estimate> {
        let why = match self.said.get(&key(args, slice, batch, samples, tables)) {
            Some(Ok(report)) => return compiled(report, work, machine, tables),
            Some(Err(e)) => e.what().to_string(),
            None => "it was not compiled".into(),
        };
        notes.push(format!("analytic, because the compiler failed: {why}"));
        let estimate = analytic(work, machine, tables, HalfType::Bf16)?;
        Ok(if args.is_fully_sharded() { estimate.fully_sharded(work, machine, tables) } else { estimate })
    }
}

/// Number of compiles to run in parallel.
fn lanes(budget: usize, threads: usize, jobs: usize) -> usize {
    (budget / EACH).min(threads).min(jobs).max(1)
}

/// Runs the jobs on `lanes` threads and returns their results in order.
fn side_by_side<J: Sync, R: Send>(jobs: &[J], lanes: usize, run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some((i, job)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, jobs.get(i)?)))
        {
            let said = run(job);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, said));
        }
    };
    std::thread::scope(|s| (0..lanes).for_each(|_| drop(s.spawn(work))));
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

/// Sharded programs depend on the slice and the global batch; others are the same for all slices of a generation.
fn key(args: &PlanArgs, slice: &TpuSlice, batch: usize, samples: f64, tables: &ChipTables) -> CompileKey {
    match args.strategy {
        Some(_) if batch > 0 => (slice.ahead(tables).to_string(), samples as usize),
        _ => (slice.generation.clone(), batch),
    }
}

fn job(
    args: &PlanArgs,
    key: CompileKey,
    slice: &TpuSlice,
    subject: &mut PlannedProgram,
    tables: &ChipTables,
) -> Result<CompileJob> {
    // All arguments may be donated, as in training.
    let all = |n: usize| (0..n).collect::<Vec<_>>();
    if let (Some(name), true) = (&args.strategy, slice.all_devices() > 1)
        && let Some((graph, roles)) = subject.whole()?
    {
        let mesh = mesh(args.mesh.as_deref(), &Machine::Slice(slice.clone())).map_err(|f| f.error)?;
        if mesh.devices() != slice.all_devices() {
            let e = err!(Config, "the mesh {mesh} does not cover all devices");
            return Err(e.at("--mesh").hint_command(
                "pass a --mesh that covers all devices; plan slices of different sizes one at a time",
            ));
        }
        let spread = spread(&Strategy::parse(name)?, &graph, &roles, &mesh).map_err(|f| f.error)?;
        let program = spread_text(&graph, &all(graph.params.len()), &spread);
        return Ok(CompileJob { key, slice: slice.clone(), program, partitions: mesh.devices() });
    }
    let (share, _) = subject.share(slice.all_devices(), &mut Vec::new())?;
    // A program that is not a training step keeps its arguments.
    let donated = if share.batch > 0 { share.graph.params.len() } else { 0 };
    let program = program_text(&share.graph, &all(donated));
    Ok(CompileJob { key, slice: smallest(slice, tables), program, partitions: 1 })
}

/// Returns the generation's smallest slice: the program of one device is the same on all slices.
fn smallest(slice: &TpuSlice, tables: &ChipTables) -> TpuSlice {
    let all = TpuSlice::all(tables).into_iter().filter(|s| s.generation == slice.generation);
    all.min_by_key(|s| s.chips).unwrap_or_else(|| slice.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_compile_at_a_time_as_memory_and_cores_allow() {
        assert_eq!(lanes(24 << 30, 16, 24), 12);
        assert_eq!(lanes(24 << 30, 2, 24), 2);
        assert_eq!(lanes(1 << 30, 16, 24), 1);
        assert_eq!(lanes(usize::MAX, 16, 3), 3);
    }

    #[test]
    fn jobs_run_side_by_side_and_answers_keep_their_order() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let together = std::sync::Barrier::new(4);
        let jobs: Vec<usize> = (0..24).collect();
        let said = side_by_side(&jobs, 4, |&j| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Goes on only when four are here.
            together.wait();
            now.fetch_sub(1, Ordering::SeqCst);
            j * j
        });
        assert_eq!(said, jobs.iter().map(|j| j * j).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), 4);
    }
}
