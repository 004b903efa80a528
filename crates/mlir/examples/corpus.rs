//! StableHLO's own test programs, read and run on the interpreter:
//! `cargo run -p systole-mlir --example corpus -- FOLDER…`, folders such as `stablehlo/testdata` and
//! `stablehlo/tests/interpret` of a checkout. Prints what passed, what failed, and what is out of scope and why, by op.

#![allow(clippy::print_stdout, reason = "an example")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use systole_base::{Error, ErrorKind, Literal, Result};
use systole_mlir::import::{self, ResultCheck};
use systole_mlir::syntax::{MlirFunction, MlirModule};

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|e| e == "mlir") => found.push(path),
            false => {}
        }
    }
}

/// Runs a program on the interpreter and asks its own checks.
fn run(program: &systole_ir::text::StableHloProgram, checks: &[ResultCheck]) -> Result<()> {
    let args: Vec<Literal> = program.graph.param_types().into_iter().map(Literal::zeros).collect();
    let results = systole_ir::interp::run(&program.graph, &args.iter().collect::<Vec<_>>())?;
    let count: usize = checks.iter().map(ResultCheck::arrays).sum();
    let mut rest = &results[results.len() - count..];
    for check in checks {
        let (these, others) = rest.split_at(check.arrays());
        let these: Vec<&Literal> = these.iter().collect();
        check.run(&these).map_err(|what| Error::new(ErrorKind::Numeric, "differs").at(what))?;
        rest = others;
    }
    Ok(())
}

/// What became of one program.
enum Outcome {
    Passed,
    /// It runs, and says nothing of its results.
    Ran,
    Failed(Error),
    OutOfScope(Error),
}

fn outcome(module: &MlirModule, f: &MlirFunction) -> Outcome {
    let imported = match import::of_function(module, f) {
        Ok(imported) => imported,
        Err(e) if e.kind() == ErrorKind::Unsupported => return Outcome::OutOfScope(e),
        Err(e) => return Outcome::Failed(e),
    };
    match run(&imported.program, &imported.checks).map_err(|e| e.at(format!("@{}", f.name))) {
        Ok(()) if imported.checks.is_empty() => Outcome::Ran,
        Ok(()) => Outcome::Passed,
        Err(e) => Outcome::Failed(e),
    }
}

/// Ops of a program, with those of its calls counted in their own functions.
fn ops(module: &MlirModule) -> Vec<String> {
    fn walk(region: &systole_mlir::syntax::MlirRegion, all: &mut Vec<String>) {
        for op in &region.operations {
            all.push(op.name.clone());
            op.regions.iter().for_each(|r| walk(r, all));
        }
    }
    let mut all = Vec::new();
    module.functions.iter().for_each(|f| walk(&f.body, &mut all));
    all.sort();
    all.dedup();
    all
}

/// The op that an error names, or the type that it cannot have.
fn subject(e: &Error) -> String {
    let op = e.places().iter().find_map(|p| p.split(", ").find(|p| p.contains('.') && !p.contains(' ')));
    op.map_or_else(|| e.what().chars().take(60).collect(), str::to_owned)
}

#[derive(Default)]
struct Tally {
    passed: usize,
    ran: usize,
    failed: usize,
    out: usize,
    by_op: BTreeMap<String, [usize; 3]>,
    reasons: BTreeMap<String, (usize, String)>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome, module: &MlirModule, path: &str) {
        let column = match &outcome {
            Outcome::Passed | Outcome::Ran => 0,
            Outcome::Failed(_) => 1,
            Outcome::OutOfScope(_) => 2,
        };
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Ran => self.ran += 1,
            Outcome::Failed(e) => {
                self.failed += 1;
                self.reason("FAILED", &e, path);
            }
            Outcome::OutOfScope(e) => {
                self.out += 1;
                self.reason("out of scope", &e, path);
            }
        }
        for op in ops(module) {
            self.by_op.entry(op).or_default()[column] += 1;
        }
    }

    fn reason(&mut self, what: &str, e: &Error, path: &str) {
        let told: String = e.what().chars().take(110).collect();
        let key = match e.kind() {
            ErrorKind::Numeric => format!("{what}: {}", e.places().join(", ")),
            _ => format!("{what}: {told} [{}]", subject(e)),
        };
        self.reasons.entry(key).or_insert((0, path.to_owned())).0 += 1;
    }
}

/// The programs of a file: `// -----` stands between those of tests.
fn of_file(text: &str, path: &str, tally: &mut Tally) {
    for part in text.split("// -----") {
        let has_code = part.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with("//"));
        if !has_code {
            continue;
        }
        let module = match systole_mlir::text::parse(part) {
            Ok(module) => module,
            Err(e) => {
                tally.add(Outcome::Failed(e), &MlirModule::default(), path);
                continue;
            }
        };
        let main = module.functions.iter().position(|f| f.name == "main");
        let is_test = |i: usize, f: &MlirFunction| match main {
            Some(main) => i == main,
            None => f.body.arguments.is_empty() && !f.is_private,
        };
        for (_, f) in module.functions.iter().enumerate().filter(|(i, f)| is_test(*i, f)) {
            tally.add(outcome(&module, f), &module, path);
        }
    }
}

fn main() {
    let mut all = Vec::new();
    std::env::args().skip(1).for_each(|dir| files(Path::new(&dir), &mut all));
    all.sort();
    let mut tally = Tally::default();
    for path in &all {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        of_file(&std::fs::read_to_string(path).unwrap_or_default(), &name, &mut tally);
    }
    let mut reasons: Vec<_> = tally.reasons.iter().collect();
    reasons.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
    println!("{:5} {:6} {:6}  op", "right", "failed", "out");
    for (op, [right, failed, out]) in &tally.by_op {
        println!("{right:5} {failed:6} {out:6}  {op}");
    }
    for (reason, (n, path)) in reasons {
        println!("{n:5} {reason} ({path})");
    }
    let programs = tally.passed + tally.ran + tally.failed + tally.out;
    println!(
        "{} files, {programs} programs: {} right, {} run without a claim, {} failed, {} out of scope",
        all.len(),
        tally.passed,
        tally.ran,
        tally.failed,
        tally.out
    );
}
