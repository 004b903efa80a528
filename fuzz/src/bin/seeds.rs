//! Writes the inputs to begin with into `corpus/TARGET/`.
#![allow(dead_code)]

#[path = "../targets.rs"]
mod targets;

// The fuzzer's library brings a `main` of its own unless nothing of it is linked.
fn main() -> std::io::Result<()> {
    for (name, _, seeds) in targets::TARGETS {
        std::fs::create_dir_all(format!("corpus/{name}"))?;
        for (i, seed) in seeds().into_iter().enumerate() {
            std::fs::write(format!("corpus/{name}/seed-{i}"), seed)?;
        }
    }
    Ok(())
}
