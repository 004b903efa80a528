//! Compares a Hugging Face folder with what transformers computed: `cargo run -p systole-weights --example hidden_states -- FOLDER NPZ`.
//!
//! The arrays are `y` and one for each input of the model, whose names are printed. `bench/minilm` writes them.

use std::path::Path;
use std::process::ExitCode;
use systole_data::Dataset;
use systole_data::format::npy;
use systole_ir::{Literal, Result, ensure, err};
use systole_nn::Model;
use systole_weights::WeightSource;

/// Largest difference of the outputs, relative to the largest value.
fn difference(folder: &str, arrays: &str) -> Result<(Vec<String>, f32)> {
    let arrays = npy::read_npz(arrays)?;
    let source = WeightSource::open(Path::new(folder))?;
    let (layers, types) = source.architecture()?.ok_or_else(|| err!(Data, "{folder} has no architecture"))?;
    let mut model = Model::new(layers);
    model.build(&types)?;
    source.fill(&mut model, false)?;
    let names: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
    let array = |name: &str| -> Result<Literal> {
        let found = arrays.iter().find(|(n, _)| n.trim_end_matches(".npy") == name).map(|(_, a)| a.clone());
        found.ok_or_else(|| err!(Data, "the arrays have no {name}; the inputs are {names:?}"))
    };
    let inputs = names.iter().map(|n| Ok((n.clone(), array(n)?))).collect::<Result<Vec<_>>>()?;
    if let Some((_, ids)) = inputs.first() {
        model.set_sequence_length(ids.shape()[1]);
    }
    let found = model.predict(&Dataset::from_tensor_slices(inputs)?.batch(8))?.to_f32s();
    let y = array("y")?.to_f32s();
    let scale = y.iter().fold(1f32, |most, v| most.max(v.abs()));
    let worst = found.iter().zip(&y).map(|(a, b)| (a - b).abs() / scale).fold(0f32, f32::max);
    let is_alike = found.len() == y.len();
    ensure!(is_alike, err!(Data, "got {} values, expected {}", found.len(), y.len()));
    Ok((names, worst))
}

#[allow(clippy::print_stdout, reason = "a program's output")]
fn main() -> ExitCode {
    systole_runtime::register(systole_cpu::provider());
    let [folder, arrays] = [1, 2].map(|n| std::env::args().nth(n).unwrap_or_default());
    match difference(&folder, &arrays) {
        Ok((names, worst)) => {
            println!("inputs {}: largest difference {worst:.1e}", names.join(", "));
            ExitCode::from(u8::from(worst > 1e-4))
        }
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}
