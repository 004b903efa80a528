//! Reads the artifacts of a folder, such as `stablehlo/tests/vhlo` of StableHLO's repository, writes each for its own version, and
//! compares it with the text beside it: `cargo run -p systole-bytecode --example translate_corpus -- FOLDER`.

#![allow(clippy::print_stdout, reason = "an example")]

use std::path::Path;
use systole_base::Result;
use systole_bytecode::{parse, version_of, write};

/// What became of one file.
fn one(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let module = parse(&bytes)?;
    let ops: usize = module.functions.iter().map(|f| f.body.operations.len()).sum();
    let mut said = format!("{} functions, {ops} ops", module.functions.len());
    let version = version_of(&bytes).unwrap_or(systole_bytecode::CURRENT);
    if version.major > 0 && std::env::var("W").is_ok() {
        let again = write(&module, version)?;
        said += if parse(&again)? == module { ", written again" } else { ", WRITTEN OTHERWISE" };
        said += if again == bytes { " to the byte" } else { "" };
    }
    Ok(said)
}

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "bc")).collect();
    paths.sort();
    let mut failed = 0;
    for path in &paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match one(path) {
            Ok(said) => println!("passed {name}: {said}"),
            Err(e) => {
                failed += 1;
                println!("failed {name}: {e}");
            }
        }
    }
    println!("{} passed, {failed} failed", paths.len() - failed);
}
