//! `systole translate`: programs between StableHLO text and bytecode, and between versions; ONNX models as either.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::program::{self, DimArgs};
use crate::render::screen::{Screen, number_of};
use clap::Args;
use serde_json::json;
use std::path::Path;
use systole_bytecode::StablehloVersion;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, Result, ResultExt};
use systole_program::program_file::ProgramFormat;

#[derive(Args)]
pub(crate) struct TranslateArgs {
    /// A program: StableHLO text or bytecode, or an ONNX model; `-` reads standard input
    #[arg(value_name = "IN")]
    program: String,
    /// Where it goes: text into a .mlir file, bytecode into .mlirbc or .bc; `-` shows text
    #[arg(value_name = "OUT")]
    output: String,
    /// The StableHLO version whose readers the bytecode is for, such as 1.0.0 [default: the newest that is known here]
    #[arg(long, value_name = "VERSION")]
    target: Option<String>,
    #[command(flatten)]
    dims: DimArgs,
}

impl RunCommand for TranslateArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(&self, screen)
    }
}

fn run(args: &TranslateArgs, screen: &Screen) -> CommandResult {
    let form = form_of(&args.output).map_err(|e| CommandError::usage(e.at("OUT")))?;
    let version = version(args.target.as_deref(), form).map_err(|e| CommandError::usage(e.at("--target")))?;
    let place = || program::called(&args.program).to_string();
    let module = program::module(&args.program, &args.dims)?;
    let written = match form {
        ProgramFormat::Text => systole_mlir::text::write(&module).into_bytes(),
        _ => systole_bytecode::write(&module, version).at(place)?,
    };
    if args.output == "-" {
        screen.line(String::from_utf8_lossy(&written).trim_end());
        return Ok(0);
    }
    write_atomically(&OsFileSystem, Path::new(&args.output), &[&written])?;
    let what = match form {
        ProgramFormat::Text => "StableHLO text".into(),
        _ => format!("bytecode of StableHLO {version}"),
    };
    match screen.json {
        true => screen.object(&json!({
            "program": args.program, "output": args.output, "bytes": written.len(),
            "version": (form == ProgramFormat::Bytecode).then(|| version.to_string()),
        })),
        false => screen.line(format!("{}: {what}, {}", args.output, number_of(written.len(), "byte"))),
    }
    Ok(0)
}

/// What an output's name asks for.
fn form_of(output: &str) -> Result<ProgramFormat> {
    let extension = Path::new(output).extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        _ if output == "-" => Ok(ProgramFormat::Text),
        Some("mlir") => Ok(ProgramFormat::Text),
        Some("mlirbc" | "bc") => Ok(ProgramFormat::Bytecode),
        _ => Err(Error::new(ErrorKind::Config, format!("{output} does not say how the program is written"))
            .hint("name it .mlir for text, .mlirbc or .bc for bytecode, or - to see it as text")),
    }
}

/// The version that bytecode is written for.
fn version(target: Option<&str>, form: ProgramFormat) -> Result<StablehloVersion> {
    let Some(text) = target else { return Ok(systole_bytecode::CURRENT) };
    if form == ProgramFormat::Text {
        let e = Error::new(ErrorKind::Config, "text has no version");
        return Err(e.hint("leave the option out, or name an output that ends in .mlirbc"));
    }
    StablehloVersion::from_text(text.trim_start_matches('v')).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("`{text}` is no version"))
            .hint(format!("write one such as 1.0.0; the newest is {}", systole_bytecode::CURRENT))
    })
}
