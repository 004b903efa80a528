//! How many of the programs of a folder are read: `cargo run -p systole-mlir --example corpus -- FOLDER`.

#![allow(clippy::print_stdout, reason = "an example")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
fn run(
    program: &systole_ir::text::Program,
    checks: &[systole_mlir::import::Check],
) -> systole_base::Result<()> {
    let results = systole_ir::interp::run(&program.graph, &[])?;
    let count: usize = checks.iter().map(|c| c.arrays()).sum();
    let mut rest = &results[results.len() - count..];
    for check in checks {
        let (these, others) = rest.split_at(check.arrays());
        let these: Vec<&systole_base::Literal> = these.iter().collect();
        check.run(&these).map_err(|what| {
            systole_base::Error::new(
                systole_base::ErrorKind::Numeric,
                what.split(" is").next().map_or(String::new(), |_| "differs".into()),
            )
            .at(what)
        })?;
        rest = others;
    }
    Ok(())
}

fn main() {
    let mut all = Vec::new();
    std::env::args().skip(1).for_each(|dir| files(Path::new(&dir), &mut all));
    all.sort();
    let (mut parsed, mut read, mut tested, mut passed) = (0, 0, 0, 0);
    let mut reasons: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for path in &all {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let module = systole_mlir::text::parse(&text);
        parsed += usize::from(module.is_ok());
        let each = |module: systole_mlir::syntax::Module| -> systole_base::Result<()> {
            // Tests of ops are many functions in one file; programs have a `main`.
            let main = module.functions.iter().position(|f| f.name == "main");
            let is_test = |i: usize, f: &systole_mlir::syntax::Function| match main {
                Some(main) => i == main,
                None => f.body.arguments.is_empty() && !f.is_private,
            };
            for (i, f) in module.functions.iter().enumerate().filter(|(i, f)| is_test(*i, f)) {
                let imported = systole_mlir::import::of_function(&module, f)
                    .map_err(|e| e.at(format!("@{}, {i}", f.name)))?;
                let (program, checks) = (imported.program, imported.checks);
                read += 1;
                if program.graph.params.is_empty() && !checks.is_empty() {
                    tested += 1;
                    run(&program, &checks).map_err(|e| e.at(f.name.clone()))?;
                    passed += 1;
                }
            }
            Ok(())
        };
        let result = module.and_then(each);
        match result {
            Ok(()) => {}
            Err(e) => {
                let at = e.places().first().map(|p| p.split(", ").last().unwrap_or("").to_string());
                let key: String = format!("{:?} {} [{}]", e.kind(), e.what(), at.unwrap_or_default())
                    .chars()
                    .take(150)
                    .collect();
                let entry = reasons.entry(key).or_insert((0, path.display().to_string()));
                entry.0 += 1;
            }
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
    for (reason, (n, path)) in reasons.iter().take(200) {
        println!("{n:5} {reason}  ({})", path.rsplit('/').next().unwrap_or(""));
    }
    println!("{} files, {parsed} parsed, {read} read, {passed} of {tested} right", all.len());
}
