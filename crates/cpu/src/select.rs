//! How the kernel of a step is chosen: each family has one table of candidates, and the first that accepts wins.
//!
//! A [`Candidate`] says why it refuses, so that the choice can be read (`systole show MODEL --stage kernels`). A family
//! that needs a kernel of another one (a convolution of single pixels is a product) asks [`Problem::bind`] for it.

use crate::kernel::{Choice, Kernel};
use crate::simd::level::{Level, Target};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
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
    /// Notes which kernels a candidate bound inside its own, while one is asked.
    pub inside: Option<&'a RefCell<Vec<Choice>>>,
}

/// All families, and which candidate is asked out of turn.
#[derive(Clone, Copy)]
pub struct Registry {
    /// In the order in which they are asked whether a step is theirs.
    pub families: &'static [&'static Family],
    /// Asked before or after the others of its family (`SYSTOLE_KERNEL`).
    pub preference: Option<Preference>,
}

/// A candidate that is asked out of turn, for comparing.
#[derive(Clone, Copy)]
pub enum Preference {
    /// Before the others of its family.
    First(&'static Candidate),
    /// After them: what is it worth?
    Last(&'static Candidate),
}

impl Preference {
    /// Where a candidate of the same family stands; those of one rank keep their order.
    fn rank(self, candidate: &Candidate) -> i8 {
        match self {
            Preference::First(first) => i8::from(!std::ptr::eq(candidate, first)),
            Preference::Last(last) => i8::from(std::ptr::eq(candidate, last)),
        }
    }
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
/// Levels with AVX2.
pub const AVX2_UP: &[Level] = &[Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];
/// Tile registers.
pub const AMX: &[Level] = &[Level::Amx];

/// A kernel that a constructor makes or not, as an answer.
pub fn answer<K: Kernel + 'static>(kernel: Option<K>, reason: &'static str) -> Answer {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>).ok_or_else(|| reason.into())
}

impl<'a> Problem<'a> {
    /// A step of a program.
    pub fn new(step: &'a Step, target: Target, registry: Registry) -> Problem<'a> {
        Problem { step, target, registry, inside: None }
    }

    /// Binds another step for the same machine: a kernel inside a kernel.
    pub fn bind(&self, step: &Step) -> Result<Box<dyn Kernel>> {
        self.bind_noted(&Problem { step, ..*self })
    }

    /// Binds a problem inside this one, and notes what was chosen.
    fn bind_noted(&self, inner: &Problem<'_>) -> Result<Box<dyn Kernel>> {
        let (kernel, choice) = choose(inner)?;
        if let Some(inside) = self.inside {
            inside.borrow_mut().push(choice);
        }
        Ok(kernel)
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
    let mut order: Vec<&Candidate> = family.candidates.iter().collect();
    if let Some(preference) = problem.registry.preference {
        order.sort_by_key(|candidate| preference.rank(candidate));
    }
    let mut refused = Vec::new();
    for candidate in order {
        let inside = RefCell::default();
        match (Problem { inside: Some(&inside), ..*problem }).ask(candidate) {
            Ok(kernel) => {
                let (family, inside) = (family.name, inside.into_inner());
                return Ok((kernel, Choice { family, candidate: candidate.name, refused, inside }));
            }
            Err(Refusal::Reason(reason)) => refused.push((candidate.name, reason)),
            Err(Refusal::Error(error)) => return Err(error).at(|| problem.step.kernel.name()),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    let what = format!("no kernel of {} takes {}", family.name, problem.step.kernel.name());
    Err(Error::new(ErrorKind::Bug, what).because(reasons.join("; ")))
}

/// What `family/name` asks for: that candidate first; or last, with a `-` before it.
pub fn preference(families: &'static [&'static Family], asked: &str) -> Result<Preference> {
    Ok(match asked.strip_prefix('-') {
        Some(path) => Preference::Last(find(families, path)?),
        None => Preference::First(find(families, asked)?),
    })
}

/// The candidate that `family/name` names.
pub fn find(families: &'static [&'static Family], path: &str) -> Result<&'static Candidate> {
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

/// `family/name` of all candidates, and the levels that each is tried at.
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

/// What stands before the tables.
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
