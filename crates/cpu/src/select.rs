//! Kernel dispatch: tries each family's candidates by priority; the first that accepts a step computes it.
//!
//! This works like oneDNN's implementation list, with reasons: a [`KernelCandidate`] that rejects a step says why, and
//! `systole show MODEL --stage kernels` prints it. A kernel that consists of another family's kernel (a 1 × 1
//! convolution is a GEMM) gets it from [`Problem::bind`].

use crate::kernel::{Kernel, KernelChoice};
use crate::simd::level::{CompileTarget, Level};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
use systole_compile::Step;
use systole_ir::{Error, Result, ResultExt, err};

/// Problem descriptor: a step that needs a kernel, and the machine.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The operation, and the types of its operands and results.
    pub step: &'a Step,
    /// Instruction-set level, and allowed approximations.
    pub target: CompileTarget,
    /// Registry for nested kernels.
    pub registry: KernelRegistry,
    /// Collects the dispatch decisions of nested kernels while a candidate is tried.
    pub inside: Option<&'a RefCell<Vec<KernelChoice>>>,
}

/// All kernel families, and the candidate that `SYSTOLE_KERNEL` moves first or last, if any.
#[derive(Clone, Copy)]
pub struct KernelRegistry {
    /// Families in the order in which they are tried.
    pub families: &'static [&'static Family],
    /// Preference set by `SYSTOLE_KERNEL`.
    pub preference: Option<Preference>,
    /// Whether choices keep why candidates rejected a step.
    pub explains: bool,
}

/// Changes a kernel candidate's priority (first or last), for comparisons.
#[derive(Clone, Copy)]
pub enum Preference {
    /// Try it before the others of its family.
    First(&'static KernelCandidate),
    /// Try it after the others: shows its gain over the next one.
    Last(&'static KernelCandidate),
}

impl Preference {
    /// Sort key of a candidate of the same family; equal keys keep their order.
    fn rank(self, candidate: &KernelCandidate) -> i8 {
        match self {
            Preference::First(first) => i8::from(!std::ptr::eq(candidate, first)),
            Preference::Last(last) => i8::from(std::ptr::eq(candidate, last)),
        }
    }
}

/// Kernel family: the candidate kernels for one kind of step.
pub struct Family {
    /// Name of the family and of its folder.
    pub name: &'static str,
    /// One-line description of its steps.
    pub doc: &'static str,
    /// Whether a step belongs to the family.
    pub takes: fn(&Step) -> bool,
    /// Candidates by priority. The last one accepts every step that the compiler emits.
    pub candidates: &'static [KernelCandidate],
}

/// A kernel implementation that may accept a step.
pub struct KernelCandidate {
    /// Name, as in `SYSTOLE_KERNEL=family/name`.
    pub name: &'static str,
    /// When it is fastest, and why it is not more general.
    pub why: &'static str,
    /// Instruction-set levels at which it is tried.
    pub levels: &'static [Level],
    /// Returns the kernel, or why it rejects the problem.
    pub accepts: fn(&Problem<'_>) -> CandidateResult,
}

impl KernelCandidate {
    /// Creates a kernel candidate: one row of a family's table.
    pub const fn new(
        name: &'static str,
        levels: &'static [Level],
        why: &'static str,
        accepts: fn(&Problem<'_>) -> CandidateResult,
    ) -> KernelCandidate {
        KernelCandidate { name, why, levels, accepts }
    }
}

/// Result of a dispatch check: the value, or why a candidate rejects the problem.
pub type SelectResult<T, E = Rejection> = std::result::Result<T, E>;

/// A candidate's kernel, or why it rejects the problem.
pub type CandidateResult = SelectResult<Box<dyn Kernel>>;

/// Reason why a kernel candidate rejects a step.
#[derive(Debug)]
pub enum Rejection {
    /// The candidate rejects the problem, for this reason.
    Reason(Cow<'static, str>),
    /// The candidate accepts the problem, but failed.
    Error(Error),
}

impl From<&'static str> for Rejection {
    fn from(reason: &'static str) -> Rejection {
        Rejection::Reason(reason.into())
    }
}

impl From<String> for Rejection {
    fn from(reason: String) -> Rejection {
        Rejection::Reason(reason.into())
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Rejection {
        Rejection::Error(error)
    }
}

/// All instruction-set levels.
pub const EVERY: &[Level] = &Level::ALL;
/// Instruction-set levels that include AVX2.
pub const AVX2_UP: &[Level] = &[Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];
/// Instruction-set levels that include AMX.
pub const AMX: &[Level] = &[Level::Amx];

/// Converts an optional kernel to a result, with `reason` if it is `None`.
pub fn answer<K: Kernel + 'static>(kernel: Option<K>, reason: &'static str) -> CandidateResult {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>).ok_or_else(|| reason.into())
}

impl<'a> Problem<'a> {
    /// Creates the problem of a step.
    pub fn new(step: &'a Step, target: CompileTarget, registry: KernelRegistry) -> Problem<'a> {
        Problem { step, target, registry, inside: None }
    }

    /// Finds the kernel of another step for the same machine (nested kernel).
    pub fn bind(&self, step: &Step) -> Result<Box<dyn Kernel>> {
        self.bind_noted(&Problem { step, ..*self })
    }

    /// Finds the kernel of a nested problem and records the decision.
    fn bind_noted(&self, inner: &Problem<'_>) -> Result<Box<dyn Kernel>> {
        let (kernel, choice) = choose(inner)?;
        if let Some(inside) = self.inside {
            inside.borrow_mut().push(choice);
        }
        Ok(kernel)
    }

    /// Tries one kernel candidate, `family/name`, for another step.
    pub fn ask_for(&self, path: &str, step: &Step) -> CandidateResult {
        let candidate = find(self.registry.families, path)?;
        Problem { step, ..*self }.ask(candidate)
    }

    /// Returns the family of the step.
    fn family(&self) -> Result<&'static Family> {
        self.registry
            .families
            .iter()
            .copied()
            .find(|f| (f.takes)(self.step))
            .ok_or_else(|| err!(Bug, "no kernel family accepts {}", self.step.kernel.name()))
    }

    /// Tries one kernel candidate; it is rejected if it does not support the target's level.
    pub fn ask(&self, candidate: &KernelCandidate) -> CandidateResult {
        if !candidate.levels.contains(&self.target.level) {
            return Err(format!("it does not support {}", self.target.level.name()).into());
        }
        (candidate.accepts)(self)
    }
}

/// Selects the kernel of a step by priority, and records the decision.
pub fn choose(problem: &Problem<'_>) -> Result<(Box<dyn Kernel>, KernelChoice)> {
    let family = problem.family()?;
    let mut order: Vec<&KernelCandidate> = family.candidates.iter().collect();
    if let Some(preference) = problem.registry.preference {
        order.sort_by_key(|candidate| preference.rank(candidate));
    }
    let mut refused = Vec::new();
    for candidate in order {
        let inside = RefCell::default();
        match (Problem { inside: Some(&inside), ..*problem }).ask(candidate) {
            Ok(kernel) => {
                let (family, inside) = (family.name, inside.into_inner());
                if !problem.registry.explains {
                    refused = Vec::new();
                }
                return Ok((kernel, KernelChoice { family, candidate: candidate.name, refused, inside }));
            }
            Err(Rejection::Reason(reason)) => refused.push((candidate.name, reason)),
            Err(Rejection::Error(error)) => return Err(error).at(|| problem.step.kernel.name()),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    Err(err!(Bug, "no kernel of {} accepts {}", family.name, problem.step.kernel.name())
        .because(reasons.join("; ")))
}

/// Parses a preference: `family/name` (try it first) or `-family/name` (last).
pub fn preference(families: &'static [&'static Family], asked: &str) -> Result<Preference> {
    Ok(match asked.strip_prefix('-') {
        Some(path) => Preference::Last(find(families, path)?),
        None => Preference::First(find(families, asked)?),
    })
}

/// Returns the kernel candidate named `family/name`.
pub fn find(families: &'static [&'static Family], path: &str) -> Result<&'static KernelCandidate> {
    let of = |(family, name): (&str, &str)| {
        let family = families.iter().find(|f| f.name == family)?;
        family.candidates.iter().find(|c| c.name == name)
    };
    path.split_once('/').and_then(of).ok_or_else(|| {
        let all = paths(families).into_iter().map(|(path, _)| path);
        err!(Config, "unknown kernel `{path}`")
            .hint(format!("use one of these kernels: {}", all.collect::<Vec<_>>().join(", ")))
    })
}

/// Returns `family/name` of all kernel candidates, and the levels at which each is tried.
pub fn paths(families: &[&Family]) -> Vec<(String, &'static [Level])> {
    let of = |f: &&Family| {
        let name = f.name;
        f.candidates.iter().map(move |c| (format!("{name}/{}", c.name), c.levels))
    };
    families.iter().flat_map(of).collect()
}

/// Formats all kernel families and their candidates as Markdown tables.
pub fn tables(families: &[&Family]) -> String {
    let mut text = String::from(HEAD);
    for family in families {
        let _ = write!(text, "\n## {}\n\n{}.\n\n", family.name, capital(family.doc));
        text += "| Candidate | Levels | Why |\n|---|---|---|\n";
        for c in family.candidates {
            let _ = writeln!(text, "| `{}` | {} | {} |", c.name, levels(c.levels), c.why);
        }
    }
    text
}

/// Text before the tables.
const HEAD: &str = "\
# Kernels of the CPU engine

This file is generated from the tables in `crates/cpu/src/kernels` and `crates/cpu/src/run`. To regenerate it, run
`SYSTOLE_BLESS=1 cargo test -p systole-cpu --test candidates`.

Each step of a program belongs to one family. The family's candidates are tried in table order, and the first one that
accepts the step computes it. `systole show MODEL --stage kernels` prints the kernel of each step, and why the candidates
above it rejected the step. `SYSTOLE_KERNEL=family/candidate` tries a candidate first, `-family/candidate` tries it last.";

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or(String::new(), |first| first.to_uppercase().chain(rest).collect())
}

fn levels(levels: &[Level]) -> String {
    if levels == EVERY {
        return "every".into();
    }
    levels.iter().map(|l| l.name()).collect::<Vec<_>>().join(", ")
}
