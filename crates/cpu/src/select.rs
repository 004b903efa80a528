//! Kernel dispatch: each family of kernels has one table of candidates by priority, and the first that accepts a step
//! computes it.
//!
//! This is the implementation list of oneDNN with reasons: a [`KernelCandidate`] that refuses says why, and `systole show
//! MODEL --stage kernels` prints it. A kernel that is made of another family's kernel (a 1 × 1 convolution is a GEMM)
//! gets it from [`Problem::bind`].

use crate::kernel::{Kernel, KernelChoice};
use crate::simd::level::{CompileTarget, Level};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
use systole_compile::Step;
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// Problem descriptor: one step to find a kernel for, on one machine.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The operation, and the types of its operands and results.
    pub step: &'a Step,
    /// Instruction-set level, and which approximations are allowed.
    pub target: CompileTarget,
    /// Where kernels inside kernels are found.
    pub registry: KernelRegistry,
    /// Collects the decisions for kernels that a candidate binds inside its own, while it is asked.
    pub inside: Option<&'a RefCell<Vec<KernelChoice>>>,
}

/// All families, and the candidate that is asked out of order, if there is one.
#[derive(Clone, Copy)]
pub struct KernelRegistry {
    /// In the order in which they are asked whether they take a step.
    pub families: &'static [&'static Family],
    /// Set by `SYSTOLE_KERNEL`.
    pub preference: Option<Preference>,
}

/// A candidate that is asked out of order, for comparisons.
#[derive(Clone, Copy)]
pub enum Preference {
    /// Before the others of its family.
    First(&'static KernelCandidate),
    /// After the others: shows what it gains over the next one.
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

/// Kernels for one kind of step.
pub struct Family {
    /// Name of its folder.
    pub name: &'static str,
    /// What its steps compute, in one line.
    pub doc: &'static str,
    /// Whether a step belongs to the family.
    pub takes: fn(&Step) -> bool,
    /// By priority. The last one accepts every step that the compiler emits.
    pub candidates: &'static [KernelCandidate],
}

/// One way to compute a step.
pub struct KernelCandidate {
    /// The field's name for it, as in `SYSTOLE_KERNEL=family/name`.
    pub name: &'static str,
    /// When it is fastest, and why it is not more general.
    pub why: &'static str,
    /// Instruction-set levels at which it is asked.
    pub levels: &'static [Level],
    /// Returns the kernel, or why it does not take the problem.
    pub accepts: fn(&Problem<'_>) -> CandidateResult,
}

impl KernelCandidate {
    /// A row of a family's table.
    pub const fn new(
        name: &'static str,
        levels: &'static [Level],
        why: &'static str,
        accepts: fn(&Problem<'_>) -> CandidateResult,
    ) -> KernelCandidate {
        KernelCandidate { name, why, levels, accepts }
    }
}

/// What was asked for, or why a candidate does not take the problem.
pub type SelectResult<T, E = Rejection> = std::result::Result<T, E>;

/// Answer of a candidate.
pub type CandidateResult = SelectResult<Box<dyn Kernel>>;

/// Why there is no kernel.
#[derive(Debug)]
pub enum Rejection {
    /// The candidate does not take the problem, for this reason.
    Reason(Cow<'static, str>),
    /// The candidate takes it, but failed.
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

/// Every level.
pub const EVERY: &[Level] = &Level::ALL;
/// Levels with AVX2.
pub const AVX2_UP: &[Level] = &[Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];
/// Levels with AMX.
pub const AMX: &[Level] = &[Level::Amx];

/// Turns the result of a constructor into an answer.
pub fn answer<K: Kernel + 'static>(kernel: Option<K>, reason: &'static str) -> CandidateResult {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>).ok_or_else(|| reason.into())
}

impl<'a> Problem<'a> {
    /// A step of a program.
    pub fn new(step: &'a Step, target: CompileTarget, registry: KernelRegistry) -> Problem<'a> {
        Problem { step, target, registry, inside: None }
    }

    /// Finds the kernel of another step for the same machine: a kernel inside a kernel.
    pub fn bind(&self, step: &Step) -> Result<Box<dyn Kernel>> {
        self.bind_noted(&Problem { step, ..*self })
    }

    /// Finds the kernel of a problem inside this one, and records the decision.
    fn bind_noted(&self, inner: &Problem<'_>) -> Result<Box<dyn Kernel>> {
        let (kernel, choice) = choose(inner)?;
        if let Some(inside) = self.inside {
            inside.borrow_mut().push(choice);
        }
        Ok(kernel)
    }

    /// Asks one candidate, `family/name`, for another step.
    pub fn ask_for(&self, path: &str, step: &Step) -> CandidateResult {
        let candidate = find(self.registry.families, path)?;
        Problem { step, ..*self }.ask(candidate)
    }

    /// The family of the step.
    fn family(&self) -> Result<&'static Family> {
        self.registry.families.iter().copied().find(|f| (f.takes)(self.step)).ok_or_else(|| {
            Error::new(ErrorKind::Bug, format!("no family of kernels takes {}", self.step.kernel.name()))
        })
    }

    /// Asks one candidate; refused if it is not made for the target's level.
    pub fn ask(&self, candidate: &KernelCandidate) -> CandidateResult {
        if !candidate.levels.contains(&self.target.level) {
            return Err(format!("it is not made for {}", self.target.level.name()).into());
        }
        (candidate.accepts)(self)
    }
}

/// The kernel of a step, and how it was chosen.
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
                return Ok((kernel, KernelChoice { family, candidate: candidate.name, refused, inside }));
            }
            Err(Rejection::Reason(reason)) => refused.push((candidate.name, reason)),
            Err(Rejection::Error(error)) => return Err(error).at(|| problem.step.kernel.name()),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    let what = format!("no kernel of {} takes {}", family.name, problem.step.kernel.name());
    Err(Error::new(ErrorKind::Bug, what).because(reasons.join("; ")))
}

/// Parses `family/name` (that candidate first) or `-family/name` (last).
pub fn preference(families: &'static [&'static Family], asked: &str) -> Result<Preference> {
    Ok(match asked.strip_prefix('-') {
        Some(path) => Preference::Last(find(families, path)?),
        None => Preference::First(find(families, asked)?),
    })
}

/// The candidate that `family/name` names.
pub fn find(families: &'static [&'static Family], path: &str) -> Result<&'static KernelCandidate> {
    let of = |(family, name): (&str, &str)| {
        let family = families.iter().find(|f| f.name == family)?;
        family.candidates.iter().find(|c| c.name == name)
    };
    path.split_once('/').and_then(of).ok_or_else(|| {
        let all = paths(families).into_iter().map(|(path, _)| path);
        Error::new(ErrorKind::Config, format!("`{path}` is no kernel"))
            .hint(format!("one of {}", all.collect::<Vec<_>>().join(", ")))
    })
}

/// `family/name` of all candidates, and the levels at which each is asked.
pub fn paths(families: &[&Family]) -> Vec<(String, &'static [Level])> {
    let of = |f: &&Family| {
        let name = f.name;
        f.candidates.iter().map(move |c| (format!("{name}/{}", c.name), c.levels))
    };
    families.iter().flat_map(of).collect()
}

/// All families and their candidates, as a document in Markdown.
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

This file is generated from the tables of `crates/cpu/src/kernels` and `crates/cpu/src/run`
(`SYSTOLE_BLESS=1 cargo test -p systole-cpu --test candidates` writes it again).

Each step of a program belongs to one family. The family's candidates are asked in the order of its table, and the first
one that accepts the step computes it. `systole show MODEL --stage kernels` prints what was chosen for each step, and why the
candidates above it refused; `SYSTOLE_KERNEL=family/candidate` has one asked before the others, `-family/candidate` after them.
";

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
