//! Opens program files (StableHLO text or bytecode, ONNX, `.tflite`) and reads or generates their input arrays.
//!
//! The format is detected from the content.

use crate::args::missing_path::missing;
use crate::render::screen::{note, number_of};
use clap::Args;
use std::io::Read;
use std::path::{Path, PathBuf};
use systole_data::format::ModelFormat;
use systole_ir::{Error, Literal, Result, ResultExt, err};
use systole_mlir::import::ImportedProgram;
use systole_onnx::DimSizes;
use systole_program::program_file::{self, OpenContext, ParsedProgram, ProgramFile};
use systole_program::{files, inputs};

/// Source of a program's arguments.
#[derive(Args)]
pub(crate) struct InputArgs {
    /// Read the arguments arg0, arg1, … from a .npz or .safetensors file
    #[arg(long, value_name = "FILE", conflicts_with = "random")]
    pub(crate) input: Option<PathBuf>,
    /// Use random arguments with this seed: floats in -1 to 1, integers 0 to 9
    #[arg(long, value_name = "SEED")]
    pub(crate) random: Option<u64>,
    /// Run this function [default: main, or the first public function]
    #[arg(long, value_name = "NAME")]
    pub(crate) function: Option<String>,
    #[command(flatten)]
    pub(crate) dims: DimArgs,
}

/// Sizes for the open dimensions of an ONNX or .tflite model.
#[derive(Args, Clone, Default)]
pub(crate) struct DimArgs {
    /// Set the size of a dynamic dimension, such as batch=8 of an ONNX model or N=8 of a .tflite model; repeatable
    ///
    /// [default: the size that the arguments have, otherwise 1]
    #[arg(long = "dim", value_name = "NAME=N", value_parser = dim)]
    pub(crate) dims: Vec<(String, usize)>,
}

fn dim(text: &str) -> Result<(String, usize), String> {
    let parts = text.rsplit_once('=').and_then(|(name, n)| Some((name, n.parse::<usize>().ok()?)));
    let (name, n) =
        parts.filter(|(name, n)| !name.is_empty() && *n > 0).ok_or("write NAME=N, such as batch=8")?;
    Ok((name.into(), n))
}

impl DimArgs {
    /// Returns the context of a file: its folder, the open sizes and the shapes of the input arrays.
    fn around(&self, name: &str, input: Option<&Path>, bytes: &[u8]) -> Result<OpenContext> {
        let is_model = program_file::is_model(bytes);
        if !is_model && !self.dims.is_empty() {
            let e = err!(Config, "the program has no open sizes: only ONNX and .tflite models have them");
            return Err(e.at("--dim").hint_command("remove --dim"));
        }
        let mut sizes = DimSizes { named: self.dims.iter().cloned().collect(), ..DimSizes::default() };
        if let Some(path) = input.filter(|_| is_model) {
            for (name, array) in files::read(path)? {
                sizes.given.push((name.clone(), array.dims.clone()));
                sizes.values.push((name, array.bytes));
            }
        }
        let folder =
            (name != STANDARD_INPUT).then(|| Path::new(name).parent().unwrap_or(Path::new("")).to_path_buf());
        Ok(OpenContext { folder, sizes })
    }

    /// Formats the options as they are written on a command line.
    pub(crate) fn words(&self) -> String {
        self.dims
            .iter()
            .map(|(name, n)| format!(" --dim {}", crate::render::screen::quoted(format!("{name}={n}"))))
            .collect()
    }
}

/// Reports the sizes chosen for open dimensions.
fn tell(opened: &ProgramFile) {
    if !opened.settled.is_empty() {
        let all: Vec<String> = opened.settled.iter().map(|(name, n)| format!("{name} = {n}")).collect();
        note(&format!("open sizes of the model: {}", all.join(", ")));
    }
    if !opened.fixed.is_empty() {
        let stages = match opened.stages {
            0 => String::new(),
            n => format!(" ({} computed sizes and positions)", number_of(n, "stage")),
        };
        note(&format!(
            "the program is compiled for the values of {}: its shapes depend on them{stages}",
            opened.fixed.join(", ")
        ));
    }
}

impl InputArgs {
    /// Reads the program that the arguments are for.
    pub(crate) fn open(&self, name: &str) -> Result<ImportedProgram> {
        let opened = program_file::function(&self.source(name)?, self.function.as_deref());
        Ok(opened.at(|| called(name).to_string())?.imported)
    }

    fn source(&self, name: &str) -> Result<ParsedProgram> {
        let bytes = bytes(name)?;
        let around = self.dims.around(name, self.input.as_deref(), &bytes)?;
        let source = program_file::source(&bytes, &around).at(|| called(name).to_string())?;
        if let ParsedProgram::Model(opened) = &source {
            tell(opened);
        }
        Ok(source)
    }

    /// Returns the parsed file and the functions to run; `None` is the main program.
    pub(crate) fn functions(&self, name: &str) -> Result<(ParsedProgram, Vec<Option<String>>)> {
        let source = self.source(name)?;
        let functions = match (&self.function, program_file::tests(&source)) {
            (None, tests) if !tests.is_empty() => tests.into_iter().map(Some).collect(),
            (function, _) => vec![function.clone()],
        };
        Ok((source, functions))
    }

    /// Returns the arguments, each as the arrays that hold it, and a description of their source.
    pub(crate) fn values(&self, program: &ImportedProgram) -> Result<(Vec<Vec<Literal>>, String)> {
        let faces = &program.interface.arguments;
        systole_program::run::fits(&program.program.graph, false)?;
        let count = number_of(faces.len(), "argument");
        match (&self.input, self.random) {
            (None, _) if faces.is_empty() => Ok((Vec::new(), "no arguments".into())),
            (Some(path), _) => {
                let names = &program.program.graph.param_names;
                let own: Vec<String> =
                    faces.iter().map(|f| names.get(f.first).cloned().unwrap_or_default()).collect();
                let given =
                    inputs::of_file(faces, &own, files::read(path)?).at(|| path.display().to_string())?;
                Ok((given, format!("{count} from {}", path.display())))
            }
            (None, Some(seed)) => {
                Ok((inputs::random(faces, seed)?, format!("{count}, random with seed {seed}")))
            }
            (None, None) => Err(inputs::missing(faces)),
        }
    }
}

/// Name of standard input.
const STANDARD_INPUT: &str = "-";

/// Number of bytes read to detect the format.
const START: u64 = 4096;

/// Whether the name is that of a program file, by its extension or its first bytes.
pub(crate) fn is_program(name: &str) -> bool {
    let extension = Path::new(name).extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        _ if name == STANDARD_INPUT => true,
        Some("mlir" | "mlirbc" | "bc" | "onnx" | "tflite") => true,
        Some("toml") => false,
        _ => std::fs::File::open(name).is_ok_and(|file| {
            let mut start = Vec::new();
            // A pipe can be read only once.
            let is_file = file.metadata().is_ok_and(|m| m.is_file());
            is_file && file.take(START).read_to_end(&mut start).is_ok() && program_file::is_program(&start)
        }),
    }
}

/// Recognizes a model file of another program by its first bytes; `None` if there is no such file.
pub(crate) fn model_format(name: &str) -> Option<ModelFormat> {
    let path = Path::new(name);
    if !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        return None;
    }
    let mut start = Vec::new();
    std::fs::File::open(path).ok()?.take(16).read_to_end(&mut start).ok()?;
    ModelFormat::of(&start)
}

/// Reads the bytes of a program file.
pub(crate) fn bytes(name: &str) -> Result<Vec<u8>> {
    let path = Path::new(name);
    if name == STANDARD_INPUT {
        return bounded(std::io::stdin().lock(), "standard input");
    }
    if path.is_dir() {
        let e = err!(Io, "{name} is a folder; expected a program file");
        return Err(e.hint_command("name a file in the folder: StableHLO text, bytecode, ONNX or .tflite"));
    }
    // A pipe may be endless.
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        let file = std::fs::File::open(path).map_err(|e| {
            Error::io("cannot read", name, e).hint("check the permissions of the program file")
        })?;
        return bounded(file, name);
    }
    systole_data::input_file::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => missing(path),
        _ => Error::io("cannot read", name, e).hint("check the path and the permissions of the program file"),
    })
}

/// Reads to the end, but at most an eighth of the free memory: the parsed program needs several times the size.
fn bounded(source: impl Read, name: &str) -> Result<Vec<u8>> {
    let most = (systole_data::free_memory() / 8) as u64;
    let mut bytes = Vec::new();
    source.take(most).read_to_end(&mut bytes).map_err(|e| Error::io("cannot read", name, e))?;
    if bytes.len() as u64 == most {
        let e = err!(Data, "{name} is larger than the read limit of {} MiB", most >> 20);
        return Err(e.hint_command("check that the file is a program; raise the limit with --memory-limit"));
    }
    Ok(bytes)
}

/// Reads a program file.
pub(crate) fn open(name: &str, dims: &DimArgs) -> Result<ProgramFile> {
    let bytes = bytes(name)?;
    opened(name, &bytes, dims)
}

fn opened(name: &str, bytes: &[u8], dims: &DimArgs) -> Result<ProgramFile> {
    let around = dims.around(name, None, bytes)?;
    let opened =
        program_file::source(bytes, &around).and_then(|source| program_file::function(&source, None));
    let opened = opened.at(|| called(name).to_string())?;
    tell(&opened);
    Ok(opened)
}

/// Reads a program file as an MLIR module.
pub(crate) fn module(name: &str, dims: &DimArgs) -> Result<systole_mlir::syntax::MlirModule> {
    let bytes = bytes(name)?;
    let around = dims.around(name, None, &bytes)?;
    program_file::source(&bytes, &around).and_then(program_file::as_module).at(|| called(name).to_string())
}

/// Reads a program file as text for an external compiler. Text files are passed on without parsing.
pub(crate) fn text(name: &str, dims: &DimArgs) -> Result<String> {
    let bytes = bytes(name)?;
    let bytes = match program_file::is_model(&bytes) {
        true => bytes,
        false => match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(e) => e.into_bytes(),
        },
    };
    let program = opened(name, &bytes, dims)?.imported.program;
    Ok(systole_ir::text::print_program(&program.graph, &program.donated, program.spread.as_ref()))
}

/// Name of the file in messages.
pub(crate) fn called(name: &str) -> &str {
    if name == STANDARD_INPUT { "standard input" } else { name }
}
