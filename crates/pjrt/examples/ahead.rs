//! Compiles a product of matrices for TPUs that are not here. A program that compiles ahead of time is its own child.
//!
//! `cargo run -p systole-pjrt --example ahead -- v5e 2 2`

use std::path::Path;
use systole_ir::{DType, GraphBuilder, Result, TensorType};
use systole_pjrt::{AcceleratorPlatform, AheadCompiler, COMMAND, discover, program_text, serve};
use systole_runtime::{AotCompiler, AotRequest, AotTopology};

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, command, folder] = &args[..]
        && command == COMMAND
    {
        return serve(Path::new(folder));
    }
    let generation = args.get(1).map_or("v5e", String::as_str);
    let extents: Vec<usize> = args.iter().skip(2).filter_map(|n| n.parse().ok()).collect();
    let slice = AotTopology::new(generation, if extents.is_empty() { &[1, 1] } else { &extents });
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::BF16, [1024, 1024]), "x");
    let program = program_text(&*g.finish(&[x.matmul(&x)])?, &[]);

    let library = discover(AcceleratorPlatform::Tpu, None, None).require(AcceleratorPlatform::Tpu)?;
    let report = AheadCompiler::new(library)?.compile_ahead(&AotRequest::new(program, slice))?;
    println!("{}: {:.2} s, {:?}", report.device_kind, report.seconds, report.memory);
    println!("{:?}", report.cost.get("flops"));
    Ok(())
}
