//! Every switch of Systole, declared once: environment variable, type, default, what it does.
//! `systole knobs` lists this table; nothing else in the code reads an environment variable of ours.

use std::env;
use std::sync::{Mutex, PoisonError};

/// A declared switch.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Environment variable.
    pub name: &'static str,
    /// What values it takes.
    pub values: &'static str,
    /// The value when unset.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Verbosity ladder.
pub const LOG: Knob = Knob {
    name: "SYSTOLE_LOG",
    values: "0..4",
    default: "0",
    doc: "1 devices and compile times; 2 each kernel with its time and rate; 3 what each pass did; 4 the schedule of every program",
};
/// Worker threads of the CPU backend.
pub const THREADS: Knob = Knob {
    name: "SYSTOLE_THREADS",
    values: "0..1024",
    default: "0",
    doc: "worker threads of the CPU backend; 0: one for each core this process may use. Results do not depend on it",
};
/// Instruction-set level of the CPU backend.
pub const ISA: Knob = Knob {
    name: "SYSTOLE_ISA",
    values: "auto|portable|avx2|avx512",
    default: "auto",
    doc: "highest instruction set that CPU kernels may use; a level the machine lacks is an error",
};
/// Blocks of rows in compiled programs.
pub const BLOCKS: Knob = Knob {
    name: "SYSTOLE_BLOCKS",
    values: "on|off",
    default: "on",
    doc: "on: parts of a program run for blocks of samples that stay in the cache; off: one op after the other",
};
/// Where datasets lie.
pub const DATA: Knob = Knob {
    name: "SYSTOLE_DATA",
    values: "PATH",
    default: "",
    doc: "folder that holds data sets, one folder each (fashion-mnist, mnist)",
};
/// Download cache.
pub const CACHE: Knob = Knob {
    name: "SYSTOLE_CACHE",
    values: "PATH",
    default: "",
    doc: "folder for downloads; empty: the user's cache folder",
};
/// Extra checking of passes.
pub const PARANOID: Knob = Knob {
    name: "SYSTOLE_PARANOID",
    values: "0|1",
    default: "0",
    doc: "1: verify the graph after every compiler pass (always on in debug builds)",
};
/// Default backend.
pub const BACKEND: Knob = Knob {
    name: "SYSTOLE_BACKEND",
    values: "auto|cpu|ref",
    default: "auto",
    doc: "backend that compiles and runs graphs; ref is the slow reference interpreter",
};

/// All knobs, in the order `systole knobs` shows them.
pub const KNOBS: &[Knob] = &[LOG, THREADS, ISA, BLOCKS, BACKEND, DATA, CACHE, PARANOID];

/// Values that the program's own arguments gave: setting environment variables is not safe once threads run.
static OVERRIDES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Sets a knob for this process, stronger than the environment. For programs' arguments, before anything starts.
pub fn override_value(knob: Knob, value: impl Into<String>) {
    let mut overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
    overrides.retain(|(name, _)| *name != knob.name);
    overrides.push((knob.name, value.into()));
}

impl Knob {
    /// The overriding value, else the one set in the environment, else the default.
    pub fn get(&self) -> String {
        let overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = overrides.iter().find(|(name, _)| *name == self.name) {
            return value.clone();
        }
        env::var(self.name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| self.default.to_string())
    }

    /// The value as a number; the default where it does not parse.
    pub fn get_usize(&self) -> usize {
        self.get().trim().parse().unwrap_or_else(|_| self.default.parse().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_stronger_than_the_default() {
        let knob = Knob { name: "SYSTOLE_TEST_KNOB", values: "0..9", default: "3", doc: "for this test" };
        assert_eq!(knob.get_usize(), 3);
        override_value(knob, "5");
        override_value(knob, "7");
        assert_eq!(knob.get_usize(), 7);
    }

    #[test]
    fn table_is_well_formed() {
        for (i, k) in KNOBS.iter().enumerate() {
            assert!(k.name.starts_with("SYSTOLE_") && !k.doc.is_empty() && !k.values.is_empty());
            assert!(KNOBS[..i].iter().all(|o| o.name != k.name), "{} twice", k.name);
        }
    }
}
