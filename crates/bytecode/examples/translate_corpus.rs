//! Reads the artifacts of a folder, such as `stablehlo/tests/vhlo` of StableHLO's repository, writes each for its own version, and
//! compares it with the text beside it: `cargo run -p systole-bytecode --example translate_corpus -- FOLDER [OUT]`. What is
//! written goes to the folder OUT.

#![allow(clippy::print_stdout, reason = "an example")]

use std::path::Path;
use systole_base::Result;
use systole_bytecode::{CURRENT, parse, version_of, write};
use systole_mlir::syntax::{MlirModule, MlirRegion, Operation, SourceSpan};

/// A module without the places of its ops and the names of its arguments.
fn bare(mut module: MlirModule) -> MlirModule {
    fn ops(region: &mut MlirRegion) {
        for op in &mut region.operations {
            let Operation { place, regions, .. } = op;
            *place = SourceSpan::default();
            regions.iter_mut().for_each(ops);
        }
    }
    for f in &mut module.functions {
        ops(&mut f.body);
        f.names.clear();
    }
    module
}

/// What became of one file.
fn one(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let module = bare(parse(&bytes)?);
    let ops: usize = module.functions.iter().map(|f| f.body.operations.len()).sum();
    let mut said = format!("{} functions, {ops} ops", module.functions.len());
    let version = version_of(&bytes).filter(|v| v.major > 0).unwrap_or(CURRENT);
    let written = write(&module, version)?;
    if let (Some(out), Some(name)) = (std::env::args().nth(2), path.file_name()) {
        std::fs::write(Path::new(&out).join(name), &written).unwrap_or_else(|e| println!("{e}"));
    }
    let again = bare(parse(&written)?);
    said += if again == module { ", written for " } else { ", WRITTEN OTHERWISE for " };
    said += &version.to_string();
    if let Ok(text) = std::fs::read_to_string(path.with_extension("")) {
        let text = bare(parse(&write(&systole_mlir::text::parse(&text)?, version)?)?);
        said += if text == module { ", as in text" } else { ", OTHERWISE THAN IN TEXT" };
        for (a, b) in text.functions.iter().zip(&module.functions).filter(|(a, b)| a != b) {
            said += &format!(" @{}", b.name);
            if std::env::var("SHOW").is_ok() {
                println!("{a:#?}\n{b:#?}");
            }
        }
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
