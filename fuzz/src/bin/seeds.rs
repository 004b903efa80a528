//! Writes the inputs to begin with into `corpus/TARGET/`.
#![allow(dead_code)]

#[cfg(feature = "model")]
#[path = "../checkpoints.rs"]
mod checkpoints;
#[path = "../targets.rs"]
mod targets;
#[cfg(feature = "tokenizer")]
#[path = "../tokenizers.rs"]
mod tokenizers;
#[cfg(feature = "weights")]
#[path = "../weights.rs"]
mod weights;

// The fuzzer's library brings a `main` of its own unless nothing of it is linked.
fn main() -> std::io::Result<()> {
    for (name, _, seeds) in targets::TARGETS {
        write(name, seeds())?;
    }
    #[cfg(feature = "model")]
    write("model", checkpoints::model_seeds())?;
    #[cfg(feature = "tokenizer")]
    write("tokenizer", tokenizers::tokenizer_seeds())?;
    #[cfg(feature = "weights")]
    {
        write("weights", weights::weights_seeds())?;
        write("pickle", weights::pickle_seeds())?;
        write("keras", weights::keras_seeds())?;
        write("hfconfig", weights::hfconfig_seeds())?;
    }
    Ok(())
}

fn write(name: &str, seeds: Vec<Vec<u8>>) -> std::io::Result<()> {
    std::fs::create_dir_all(format!("corpus/{name}"))?;
    for (i, seed) in seeds.into_iter().enumerate() {
        std::fs::write(format!("corpus/{name}/seed-{i}"), seed)?;
    }
    Ok(())
}
