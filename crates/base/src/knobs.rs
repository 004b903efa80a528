//! Every switch of Systole, declared once: environment variable, type, default, what it does.
//! `systole knobs` lists this table; nothing else in the code reads an environment variable of ours.

use std::env;

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
    values: "0..5",
    default: "0",
    doc: "1 devices and compile times; 2 each kernel with its time; 3 passes; 4 graph text per stage; 5 every rewrite",
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
pub const KNOBS: &[Knob] = &[LOG, THREADS, ISA, BACKEND, DATA, CACHE, PARANOID];

impl Knob {
    /// The value set in the environment, else the default.
    pub fn get(&self) -> String {
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
    fn table_is_well_formed() {
        for (i, k) in KNOBS.iter().enumerate() {
            assert!(k.name.starts_with("SYSTOLE_") && !k.doc.is_empty() && !k.values.is_empty());
            assert!(KNOBS[..i].iter().all(|o| o.name != k.name), "{} twice", k.name);
        }
    }
}
