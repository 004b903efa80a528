//! `systole translate`: converts programs between StableHLO text, bytecode and versions; reads ONNX and .tflite models too.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::program::{self, DimArgs};
use crate::render::screen::{Screen, number_of};
use clap::Args;
use serde_json::json;
use std::path::Path;
use systole_bytecode::StablehloVersion;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Result, ResultExt, err};
use systole_program::program_file::ProgramFormat;

#[derive(Args)]
pub(crate) struct TranslateArgs {
    /// StableHLO text or bytecode, ONNX or .tflite model; `-` reads standard input
    #[arg(value_name = "IN")]
    program: String,
    /// Output file: .mlir for text, .mlirbc or .bc for bytecode; `-` prints text
    #[arg(value_name = "OUT")]
    output: String,
    /// Write bytecode of this StableHLO version, such as 1.0.0 [default: the newest]
    #[arg(long, value_name = "VERSION")]
    target: Option<String>,
    #[command(flatten)]
    dims: DimArgs,
}

impl RunCommand for TranslateArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let form = form_of(&self.output).map_err(|e| CommandError::usage(e.at("OUT")))?;
        let version =
            version(self.target.as_deref(), form).map_err(|e| CommandError::usage(e.at("--target")))?;
        let place = || program::called(&self.program).to_string();
        let module = program::module(&self.program, &self.dims)?;
        let written = match form {
            ProgramFormat::Text => systole_mlir::text::write(&module).into_bytes(),
            _ => systole_bytecode::write(&module, version).at(place)?,
        };
        if self.output == "-" {
            screen.line(String::from_utf8_lossy(&written).trim_end());
            return Ok(0);
        }
        write_atomically(&OsFileSystem, Path::new(&self.output), &[&written])?;
        let what = match form {
            ProgramFormat::Text => "StableHLO text".into(),
            _ => format!("StableHLO {version} bytecode"),
        };
        match screen.json {
            true => screen.object(&json!({
                "program": self.program, "output": self.output, "bytes": written.len(),
                "version": (form == ProgramFormat::Bytecode).then(|| version.to_string()),
            })),
            false => screen.line(format!("{}: {what}, {}", self.output, number_of(written.len(), "byte"))),
        }
        Ok(0)
    }
}

/// Returns the program format of an output file name.
fn form_of(output: &str) -> Result<ProgramFormat> {
    let extension = Path::new(output).extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        _ if output == "-" => Ok(ProgramFormat::Text),
        Some("mlir") => Ok(ProgramFormat::Text),
        Some("mlirbc" | "bc") => Ok(ProgramFormat::Bytecode),
        _ => Err(err!(Config, "{output} has no known extension")
            .hint_command("use .mlir for text, .mlirbc or .bc for bytecode, or - to print text")),
    }
}

/// Returns the bytecode version to write.
fn version(target: Option<&str>, form: ProgramFormat) -> Result<StablehloVersion> {
    let Some(text) = target else { return Ok(systole_bytecode::CURRENT) };
    if form == ProgramFormat::Text {
        let e = err!(Config, "StableHLO text has no version to choose with --target");
        return Err(e.hint_command("remove --target, or name an output file that ends in .mlirbc"));
    }
    StablehloVersion::from_text(text.trim_start_matches('v')).ok_or_else(|| {
        err!(Config, "expected a version, got `{text}`").hint_command(format!(
            "write a StableHLO version as 1.0.0; the newest is {}",
            systole_bytecode::CURRENT
        ))
    })
}
