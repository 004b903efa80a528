//! `systole export`: a model's weights as a file of Keras, PyTorch or safetensors.

use super::common::Common;
use super::import::{rows_json, rows_table};
use super::outcome::{Failure, Outcome, Run};
use super::run_folder;
use super::screen::{Screen, counted};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_data::disk::{Disk, write_atomically};
use systole_ir::{Error, ErrorKind, ResultExt};
use systole_nn::Model;
use systole_weights::{Format, export};

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// A model file, or the folder of a run: its best model
    model: String,
    /// Whose file it becomes
    #[arg(long, value_name = "NAME")]
    format: FormatName,
    /// The file to write: .keras (with the layers) or .weights.h5, .pt, .safetensors
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file when it exists
    #[arg(long)]
    force: bool,
}

/// What `--format` takes.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormatName {
    /// Keras 3: .keras or .weights.h5
    Keras,
    /// PyTorch: a state_dict in a .pt file
    Torch,
    /// The state_dict of PyTorch as safetensors
    Safetensors,
}

impl FormatName {
    fn format(self) -> (Format, &'static [&'static str]) {
        match self {
            FormatName::Keras => (Format::Keras, &[".keras", ".h5"]),
            FormatName::Torch => (Format::Torch, &[".pt", ".pth", ".bin"]),
            FormatName::Safetensors => (Format::Safetensors, &[".safetensors"]),
        }
    }
}

impl Run for ExportArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        run(&self, screen)
    }
}

fn run(args: &ExportArgs, screen: &Screen) -> Outcome {
    let (format, endings) = args.format.format();
    let name = args.out.display().to_string();
    if !endings.iter().any(|e| name.ends_with(e)) {
        let e = Error::new(ErrorKind::Config, format!("{name} is no name of such a file")).at("--out");
        return Err(Failure::usage(e.hint(format!("end it in {}", endings.join(" or ")))));
    }
    check_out(&args.out, args.force)?;
    let file = run_folder::model_file(&args.model)?;
    let model = Model::load_to_predict(&file)?;
    let made = export(&model, format, &args.out).at(|| file.clone())?;
    write_atomically(&Disk, &args.out, &[&made.bytes])?;
    if screen.json {
        screen.object(&json!({
            "model_file": file, "file": args.out, "bytes": made.bytes.len(), "rows": rows_json(&made.rows),
            "notes": made.notes,
        }));
        return Ok(0);
    }
    screen
        .line(rows_table(&made.rows, ["theirs", "shape", "ours", "shape", "how it becomes ours"]).trim_end());
    made.notes.iter().for_each(|note| screen.line(format!("Named {note}.")));
    screen.line(format!(
        "{name}: {}, {}",
        counted(made.rows.len() as u64, "weight"),
        counted(made.bytes.len() as u64, "byte")
    ));
    Ok(0)
}

/// An earlier file is replaced only when that was asked for.
pub(crate) fn check_out(out: &Path, force: bool) -> Result<(), Failure> {
    if out.exists() && !force {
        let e = Error::new(ErrorKind::Io, format!("{} exists already", out.display()));
        return Err(e.hint("choose another file with --out, or --force to replace it").into());
    }
    Ok(())
}
