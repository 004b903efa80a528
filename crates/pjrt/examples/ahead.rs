//! Compiles a product of matrices for TPUs that are not here. A program that compiles ahead of time is its own child.
//!
//! `cargo run -p systole-pjrt --example ahead -- v5e:1x1`

use std::path::Path;
use systole_ir::{DType, GraphBuilder, Result, TensorType};
use systole_pjrt::{COMMAND, Platform, TpuCompiler, discover, program_text, serve};
use systole_runtime::{AheadOfTime, AheadRequest};

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, command, folder] = &args[..]
        && command == COMMAND
    {
        return serve(Path::new(folder));
    }
    let slice = args.get(1).map_or("v5e:1x1", String::as_str);
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::BF16, [1024, 1024]), "x");
    let program = program_text(&*g.finish(&[x.matmul(&x)])?, &[]);

    let library = discover(Platform::Tpu, None, None).require(Platform::Tpu)?;
    let report = TpuCompiler::new(library)?.compile_ahead(&AheadRequest::new(program, slice.parse()?))?;
    println!("{}: {:.2} s, {:?}", report.device_kind, report.seconds, report.memory);
    println!("{:?}", report.cost.get("flops"));
    Ok(())
}
