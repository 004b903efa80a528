//! Runs StableHLO programs exported by JAX, from text and from bytecode, on both engines and compares the results with
//! JAX's own CPU backend. `tests/peers/jax_programs/generate.py` makes the programs. Each program may state a relative
//! tolerance for floats (2e-5 to 5e-4 for most of f32); the default is [`Tolerance`]. Integers and booleans must be
//! equal. Programs for several devices run on eight.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use systole::cpu::CpuBackend;
use systole_dist::{DeviceOwnership, SimulatedMesh};
use systole_ir::op::DeviceCounts;
use systole_ir::{Graph, Literal, Result};
use systole_mlir::interface::ProgramPort;
use systole_program::bisect::run;
use systole_program::compare::{Tolerance, compare};
use systole_program::files;
use systole_program::program_file::{ProgramFile, open};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg, ReferenceBackend};

type Parts = BTreeMap<String, Vec<u8>>;

/// The programs of the fixture, by name.
fn programs() -> BTreeMap<String, Parts> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fixtures/jax/programs.npz");
    let arrays: BTreeMap<String, Vec<u8>> =
        files::read(&path).unwrap().into_iter().map(|(name, x)| (name, x.bytes)).collect();
    let index: Vec<(String, usize)> = serde_json::from_slice(&arrays["index"]).unwrap();
    let mut rest = &arrays["data"][..];
    let mut all: BTreeMap<String, Parts> = BTreeMap::new();
    for (key, length) in index {
        let (name, part) = key.split_once('/').unwrap_or_else(|| panic!("{key}"));
        let (bytes, after) = rest.split_at(length);
        rest = after;
        all.entry(name.to_owned()).or_default().insert(part.to_owned(), bytes.to_vec());
    }
    all
}

/// The arrays that hold arguments (`arg`) or results (`out`).
fn held(faces: &[ProgramPort], parts: &Parts, what: &str) -> std::result::Result<Vec<Literal>, String> {
    let one = |(i, face): (usize, &ProgramPort)| {
        let bytes = parts.get(&format!("{what}{i}")).ok_or(format!("{what}{i} is missing"))?;
        face.split(bytes).map_err(|e| format!("{what}{i}: {e}"))
    };
    let all: std::result::Result<Vec<_>, String> = faces.iter().enumerate().map(one).collect();
    Ok(all?.concat())
}

/// One form of a program on one device: what is wrong.
fn check(program: &ProgramFile, parts: &Parts, device: &dyn Backend) -> std::result::Result<(), String> {
    let interface = &program.imported.interface;
    let arguments = held(&interface.arguments, parts, "arg")?;
    let expected = held(&interface.results, parts, "out")?;
    let stated = parts.get("tolerance").and_then(|b| Some(f64::from_le_bytes(b[..].try_into().ok()?)));
    let tolerance = Tolerance(stated.filter(|t| *t >= 0.0));
    for results in computed(&program.imported.program.graph, &arguments, device).map_err(|e| e.to_string())? {
        if results.len() != expected.len() {
            return Err(format!("{} arrays where JAX has {}", results.len(), expected.len()));
        }
        let differs = |(i, (a, b)): (usize, (&Literal, &Literal))| Some((i, compare(a, b, tolerance)?));
        if let Some((i, d)) = results.iter().zip(&expected).enumerate().find_map(differs) {
            return Err(format!(
                "array {i}, {:?}: {:?}, and JAX has {:?}; {} of {} differ",
                d.index, d.first, d.second, d.count, d.elements
            ));
        }
    }
    Ok(())
}

/// The results on each device: one, or the eight of the generator's mesh, each of which is given and gives whole arrays.
fn computed(graph: &Arc<Graph>, arguments: &[Literal], device: &dyn Backend) -> Result<Vec<Vec<Literal>>> {
    if !graph.nodes.iter().any(|n| n.op.meets()) {
        return Ok(vec![run(graph, arguments, device)?]);
    }
    let team = DeviceOwnership::alone(DeviceCounts { replicas: 1, partitions: 8 });
    let program = SimulatedMesh::compile(device, graph, &team, &CompileOptions::default())?;
    let put = || arguments.iter().map(|x| device.put(x, DeviceId(0)).map(ExecutableArg::Donate)).collect();
    let given = (0..8).map(|_| put()).collect::<Result<Vec<Vec<ExecutableArg<'_>>>>>()?;
    let literals = |own: &Vec<Buffer>| own.iter().map(Buffer::to_literal).collect();
    program.run(given)?.iter().map(literals).collect()
}

#[test]
fn programs_of_jax_compute_what_jax_computes() {
    let devices: [Arc<dyn Backend>; 2] =
        [Arc::new(CpuBackend::new().expect("this machine's engine")), Arc::new(ReferenceBackend)];
    let all = programs();
    assert!(all.len() >= 150, "{} programs", all.len());
    let mut wrong = Vec::new();
    for (name, parts) in &all {
        let read = |form: &str| open(&parts[form]).map_err(|e| format!("{name}, {form}: {e}"));
        let (of_text, of_bytecode) = match (read("mlir"), read("bc")) {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => {
                wrong.extend(a.err().into_iter().chain(b.err()));
                continue;
            }
        };
        for (form, program) in [("text", &of_text), ("bytecode", &of_bytecode)] {
            for device in &devices {
                if let Err(e) = check(program, parts, &**device) {
                    wrong.push(format!("{name}, {form} on {}: {e}", device.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} programs:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

/// A program that is cut, or has other bytes, is a program or an error with a reason.
#[test]
fn damaged_programs_are_programs_or_errors() {
    let mut draws = systole_base::rng::RandomStream::new(11, 0, 0);
    let (mut errors, mut tried) = (0u32, 0u32);
    for (name, parts) in &programs() {
        for form in ["mlir", "bc"] {
            let bytes = &parts[form];
            let mut damaged = Vec::new();
            // Each 7th byte of the small ones; of the others as many places.
            let step = 7.max(bytes.len().div_ceil(40) / 7 * 7);
            damaged.extend((0..bytes.len()).step_by(step).map(|n| bytes[..n].to_vec()));
            for _ in 0..10 {
                let mut other = bytes.clone();
                for _ in 0..1 + draws.below(4) {
                    let at = draws.below(other.len() as u64) as usize;
                    other[at] = draws.below(256) as u8;
                }
                damaged.push(other);
            }
            for input in damaged {
                tried += 1;
                let opened = std::panic::catch_unwind(|| match open(&input) {
                    Ok(program) => program.imported.program.graph.verify().map(|()| true),
                    Err(e) => {
                        assert!(!e.what().is_empty());
                        Ok(false)
                    }
                });
                let opened = opened.unwrap_or_else(|_| panic!("{name}.{form} panicked: {input:02x?}"));
                errors += u32::from(!opened.unwrap_or_else(|e| panic!("{name}.{form}: {e}")));
            }
        }
    }
    assert!(errors > tried / 2, "damage is seen: {errors} of {tried}");
}
