//! Compares Keras models with what they computed in Keras: `cargo run -p systole-weights --example keras_layers -- FOLDER`.
//!
//! The folder has `NAME.keras` or `NAME.h5` with `NAME.npz` (inputs `x0`, …, outputs `y0`, …), as `bench/keras-layers` writes
//! them. Prints a line for each, and exits with 1 if a model computes something else.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use systole_data::Sample;
use systole_data::format::npy;
use systole_ir::{Literal, Result};
use systole_nn::Model;
use systole_weights::WeightSource;

/// Largest difference of the first output, relative to its largest value.
fn difference(path: &Path) -> Result<f32> {
    let arrays = npy::read_npz(path.with_extension("npz"))?;
    let named = |start: &str| -> Vec<Literal> {
        arrays.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, array)| array.clone()).collect()
    };
    let (inputs, outputs) = (named("x"), named("y"));
    let source = WeightSource::open(path)?;
    let Some((layers, types)) = source.architecture()? else { return Ok(f32::INFINITY) };
    let mut model = Model::new(layers);
    model.build(&types)?;
    source.fill(&mut model, false)?;
    let found = match &inputs[..] {
        [x] => model.predict_on_batch(x)?,
        _ => {
            let names: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
            model.predict_on_sample(&Sample::new(names.into_iter().zip(inputs)))?
        }
    };
    let (found, expected) = (found.to_f32s(), outputs[0].to_f32s());
    if found.len() != expected.len() {
        return Ok(f32::INFINITY);
    }
    if found.iter().any(|v| v.is_nan()) {
        return Ok(f32::INFINITY);
    }
    let scale = expected.iter().fold(1f32, |most, v| most.max(v.abs()));
    Ok(found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / scale)
}

#[allow(clippy::print_stdout, reason = "a program's output")]
fn main() -> ExitCode {
    systole_runtime::register(systole_cpu::provider());
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let is_model = |path: &PathBuf| path.extension().is_some_and(|e| e == "keras" || e == "h5");
    let found = std::fs::read_dir(&folder).map(|all| all.filter_map(|e| e.ok().map(|e| e.path())));
    let Ok(found) = found else {
        println!("cannot read {folder}");
        return ExitCode::FAILURE;
    };
    let mut files: Vec<PathBuf> = found.filter(is_model).collect();
    files.sort();
    let (mut equal, mut refused, mut wrong) = (0, 0, 0);
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        match difference(file) {
            Ok(d) if d <= 1e-5 => {
                equal += 1;
                println!("{name}: {d:.1e}");
            }
            Ok(d) => {
                wrong += 1;
                println!("{name}: wrong by {d:e}");
            }
            Err(e) => {
                refused += 1;
                println!("{name}: {}", e.to_string().replace('\n', " "));
            }
        }
    }
    println!("{} models: {equal} equal to 1e-5, {wrong} wrong, {refused} refused", files.len());
    ExitCode::from(u8::from(wrong > 0))
}
