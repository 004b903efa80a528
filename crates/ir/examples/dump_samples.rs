//! Writes all op samples to a folder, as input for `fixtures/ops/generate.py`: `cargo run -p systole-ir --example
//! dump_samples -- DIR`.
//!
//! `samples.tsv` has one line per sample: number, name, and the types of its arguments and results. `N.mlir` is its
//! text, `N.bin` contains the bytes of its arguments.

use std::fmt::Write;
use std::path::Path;
use systole_ir::{Error, ErrorKind, Result, TensorType, op::TABLE, text};

/// Seed of the arguments for which the fixtures were generated; the same as in `tests/ops.rs`.
const SEED: u64 = 9;

fn main() -> Result<()> {
    let dir =
        std::env::args().nth(1).ok_or_else(|| Error::new(ErrorKind::Config, "pass a folder to write to"))?;
    let write = |name: String, bytes: &[u8]| {
        let path = Path::new(&dir).join(name);
        std::fs::write(&path, bytes).map_err(|e| Error::io("cannot write", path, e))
    };
    std::fs::create_dir_all(&dir).map_err(|e| Error::io("cannot create", &dir, e))?;
    let types = |types: Vec<TensorType>| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(";");
    let mut index = String::new();
    let samples = TABLE.iter().flat_map(|e| (e.samples)().into_iter().map(move |s| (e.name, s)));
    for (i, (op, s)) in samples.enumerate() {
        let (from, to) = (types(s.graph.param_types()), types(s.graph.result_types()));
        let _ = writeln!(index, "{i}\t{op}/{}\t{from}\t{to}", s.label);
        write(format!("{i}.mlir"), text::print(&s.graph).as_bytes())?;
        let args: Vec<u8> = s.arguments(SEED).iter().flat_map(|a| a.bytes().to_vec()).collect();
        write(format!("{i}.bin"), &args)?;
    }
    write("samples.tsv".into(), index.as_bytes())
}
