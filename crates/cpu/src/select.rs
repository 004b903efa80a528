//! How the kernel of a step is chosen: each family has one table of candidates, and the first that accepts wins.
//!
//! A [`Candidate`] says why it refuses, so that the choice can be read (`systole show MODEL --stage kernels`). A family
//! that needs a kernel of another one (a convolution of single pixels is a product) asks [`Problem::bind`] for it.

use crate::kernel::{Choice, Kernel};
use crate::simd::level::{Level, Target};
use std::borrow::Cow;
use systole_compile::Step;
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// One step to be bound, for one machine.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// What it computes, and the types of its operands and results.
    pub step: &'a Step,
    /// Levels and liberties.
    pub target: Target,
    /// Where kernels inside kernels are looked for.
    pub registry: Registry,
}

/// All families, and which candidate goes before the others.
#[derive(Clone, Copy)]
pub struct Registry {
    /// In the order in which they are asked whether a step is theirs.
    pub families: &'static [&'static Family],
    /// Tried before the others of its family (`SYSTOLE_KERNEL`).
    pub forced: Option<&'static Candidate>,
}

/// Kernels for one kind of step.
pub struct Family {
    /// Its folder.
    pub name: &'static str,
    /// What its steps compute, one line.
    pub doc: &'static str,
    /// Whether a step is of this kind.
    pub takes: fn(&Step) -> bool,
    /// By priority; the last one takes everything that the compiler makes.
    pub candidates: &'static [Candidate],
}

/// One way to compute a step.
pub struct Candidate {
    /// The field's name for it, as in `SYSTOLE_KERNEL=family/name`.
    pub name: &'static str,
    /// When it is the best, and what it would cost to make it more general.
    pub why: &'static str,
    /// Levels of instructions that it is tried at.
    pub levels: &'static [Level],
    /// The kernel, or why it does not take the problem.
    pub accepts: fn(&Problem<'_>) -> Answer,
}

/// What a candidate answers.
pub type Answer = std::result::Result<Box<dyn Kernel>, Refusal>;

/// Why there is no kernel.
#[derive(Debug)]
pub enum Refusal {
    /// It does not take this problem: the reason.
    Reason(Cow<'static, str>),
    /// It would, but something inside it went wrong.
    Error(Error),
}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Refusal {
        Refusal::Reason(reason.into())
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Reason(reason.into())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Error(error)
    }
}

/// Every level.
pub const EVERY: &[Level] = &Level::ALL;
/// Levels with AVX-512.
pub const AVX512_UP: &[Level] = &[Level::Avx512, Level::Avx512Bf16, Level::Amx];
/// Levels with products of bf16 pairs.
pub const PAIRS: &[Level] = &[Level::Avx512Bf16, Level::Amx];
/// Tile registers.
pub const AMX: &[Level] = &[Level::Amx];

/// A kernel that a constructor makes or not, as an answer.
pub fn answer<K: Kernel + 'static>(kernel: Option<K>, reason: &'static str) -> Answer {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>).ok_or_else(|| reason.into())
}

impl<'a> Problem<'a> {
    /// Binds another step for the same machine: a kernel inside a kernel.
    pub fn bind(&self, step: &Step) -> Result<Box<dyn Kernel>> {
        Ok(choose(&Problem { step, ..*self })?.0)
    }

    /// Asks one candidate, `family/name`, for another step.
    pub fn ask_for(&self, path: &str, step: &Step) -> Answer {
        let candidate = find(self.registry.families, path)?;
        Problem { step, ..*self }.ask(candidate)
    }

    /// The family of the step.
    fn family(&self) -> Result<&'static Family> {
        self.registry.families.iter().copied().find(|f| (f.takes)(self.step)).ok_or_else(|| {
            Error::new(ErrorKind::Bug, format!("no family of kernels takes {}", self.step.kernel.name()))
        })
    }

    /// What one candidate answers, its levels considered.
    pub fn ask(&self, candidate: &Candidate) -> Answer {
        if !candidate.levels.contains(&self.target.level) {
            return Err(format!("it is not made for {}", self.target.level.name()).into());
        }
        (candidate.accepts)(self)
    }
}

/// The kernel of a step, and how it was chosen.
pub fn choose(problem: &Problem<'_>) -> Result<(Box<dyn Kernel>, Choice)> {
    let family = problem.family()?;
    let forced = problem.registry.forced.filter(|f| family.candidates.iter().any(|c| std::ptr::eq(c, *f)));
    let mut refused = Vec::new();
    for candidate in forced.into_iter().chain(family.candidates) {
        match problem.ask(candidate) {
            Ok(kernel) => {
                return Ok((kernel, Choice { family: family.name, candidate: candidate.name, refused }));
            }
            Err(Refusal::Reason(reason)) => refused.push((candidate.name, reason)),
            Err(Refusal::Error(error)) => return Err(error).at(|| problem.step.kernel.name()),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    let what = format!("no kernel of {} takes {}", family.name, problem.step.kernel.name());
    Err(Error::new(ErrorKind::Bug, what).because(reasons.join("; ")))
}

/// The candidate that `family/name` names.
pub fn find(families: &'static [&'static Family], path: &str) -> Result<&'static Candidate> {
    let of = |(family, name): (&str, &str)| {
        let family = families.iter().find(|f| f.name == family)?;
        family.candidates.iter().find(|c| c.name == name)
    };
    path.split_once('/').and_then(of).ok_or_else(|| {
        let all =
            families.iter().flat_map(|f| f.candidates.iter().map(move |c| format!("{}/{}", f.name, c.name)));
        Error::new(ErrorKind::Config, format!("`{path}` is no kernel"))
            .at("SYSTOLE_KERNEL")
            .hint(format!("one of {}", all.collect::<Vec<_>>().join(", ")))
    })
}
