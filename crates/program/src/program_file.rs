//! Opens program files by content: StableHLO text (Systole's or external), portable bytecode, an ONNX or a `.tflite` model.

use std::path::{Path, PathBuf};
use systole_base::{Error, Result, err};
use systole_data::format::ModelFormat;
use systole_mlir::import::{self, ImportedProgram};
use systole_mlir::syntax::MlirModule;
use systole_onnx::{DimSizes, OnnxModel};
use systole_tflite::TfliteModel;

/// Format of a program file: StableHLO text, bytecode, ONNX or `.tflite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFormat {
    /// MLIR text.
    Text,
    /// MLIR bytecode.
    Bytecode,
    /// ONNX protobuf.
    Onnx,
    /// LiteRT flatbuffer.
    Tflite,
}

/// Context for opening a program file: its directory, and sizes of symbolic dimensions.
#[derive(Clone, Debug, Default)]
pub struct OpenContext {
    /// Directory of the file, for external data of ONNX models.
    pub folder: Option<PathBuf>,
    /// Sizes for the symbolic dimensions of an ONNX or `.tflite` model.
    pub sizes: DimSizes,
}

/// A program read from a file.
#[derive(Clone, Debug)]
pub struct ProgramFile {
    /// File format.
    pub form: ProgramFormat,
    /// The imported program.
    pub imported: ImportedProgram,
    /// Resolved symbolic dimension sizes of a model.
    pub settled: Vec<(String, usize)>,
    /// Inputs of an ONNX model for whose values the program is compiled.
    pub fixed: Vec<String>,
    /// Number of stages that computed sizes and positions of an ONNX model from its inputs.
    pub stages: usize,
}

/// A parsed program file, before a function is selected.
#[derive(Clone, Debug)]
pub enum ParsedProgram {
    /// StableHLO functions, from text or bytecode.
    Module(ProgramFormat, MlirModule),
    /// A model that has one graph: ONNX or `.tflite`.
    Model(Box<ProgramFile>),
}

/// Magic number of MLIR bytecode.
const BYTECODE: &[u8] = b"ML\xefR";

/// Whether bytes look like a program: bytecode, an ONNX or `.tflite` model, or text that starts like a module.
pub fn is_program(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let code = text.lines().map(str::trim_start).find(|l| !l.is_empty() && !l.starts_with("//"));
    let begins = ["module", "func.func", "\"builtin.module\"", "#loc", "builtin.module", "\"func.func\""];
    start.starts_with(BYTECODE)
        || OnnxModel::is_onnx(start)
        || is_tflite(start)
        || code.is_some_and(|l| begins.iter().any(|b| l.starts_with(b)))
}

/// Opens a program: its `main`, or the first function that is not private.
///
/// # Errors
/// See [`module`] and [`import::program`].
pub fn open(bytes: &[u8]) -> Result<ProgramFile> {
    open_function(bytes, None)
}

/// Like [`open`], for a function by name.
///
/// # Errors
/// See [`open`]; also if the function does not exist (lists the existing ones).
pub fn open_function(bytes: &[u8], name: Option<&str>) -> Result<ProgramFile> {
    function(&source(bytes, &OpenContext::default())?, name)
}

/// Whether bytes are a `.tflite` model.
fn is_tflite(start: &[u8]) -> bool {
    ModelFormat::of(start) == Some(ModelFormat::Tflite)
}

/// Whether bytes are a model with one graph, whose open sizes the context states: ONNX or `.tflite`.
pub fn is_model(start: &[u8]) -> bool {
    OnnxModel::is_onnx(start) || is_tflite(start)
}

/// Parses a program file: StableHLO text, bytecode, ONNX or `.tflite`.
///
/// An int8 `.tflite` graph becomes the graph of its ONNX export, in which rescaling is a multiplication of floats: values
/// are within one step of the file's own fixed-point arithmetic after each operator.
///
/// # Errors
/// See [`module`].
pub fn source(bytes: &[u8], around: &OpenContext) -> Result<ParsedProgram> {
    let (form, model) = if OnnxModel::is_onnx(bytes) {
        (ProgramFormat::Onnx, onnx(bytes, around)?)
    } else if is_tflite(bytes) {
        let model = TfliteModel::from_bytes("the .tflite model", bytes)?.fold_constants()?;
        (ProgramFormat::Tflite, systole_onnx::export(&model)?)
    } else {
        let (form, module) = module(bytes)?;
        return Ok(ParsedProgram::Module(form, module));
    };
    let read = model.import(&around.sizes)?;
    let imported = ImportedProgram::of_graph(read.graph);
    Ok(ParsedProgram::Model(Box::new(ProgramFile {
        form,
        imported,
        settled: read.settled,
        fixed: read.fixed,
        stages: read.stages,
    })))
}

/// Parses an ONNX model with its external data.
///
/// # Errors
/// If it is damaged, or external data cannot be read.
pub fn onnx(bytes: &[u8], around: &OpenContext) -> Result<OnnxModel> {
    let beside = |file: &str| match &around.folder {
        Some(folder) => {
            let path = folder.join(file);
            stays_in(folder, &path)?;
            systole_data::input_file::read(&path).map_err(|e| {
                Error::io("cannot read", &path, e)
                    .hint("keep the external data in the ONNX model's directory")
            })
        }
        None => Err(err!(Unsupported, "constants are in an external file, {file}")
            .hint("pass the model's path, with that file in the same directory")),
    };
    OnnxModel::from_parts("the ONNX model", bytes, &beside)
}

/// Rejects external data that a symbolic link takes out of the model's directory: a downloaded model must not read other
/// files.
fn stays_in(folder: &Path, path: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Remote and missing files have no real path; reading them tells the rest.
    let (Ok(folder), Ok(real)) = (folder.canonicalize(), path.canonicalize()) else { return Ok(()) };
    if real.starts_with(&folder) {
        return Ok(());
    }
    Err(err!(Data, "external data {} is a symbolic link to {}", path.display(), real.display())
        .because("external data is read only from the model's directory")
        .hint("copy the file itself to the model's directory"))
}

/// Selects a function as the program: by name, or like [`open`].
///
/// # Errors
/// See [`open_function`].
pub fn function(source: &ParsedProgram, name: Option<&str>) -> Result<ProgramFile> {
    let named = name.map(|n| n.trim_start_matches('@'));
    let (form, module) = match source {
        ParsedProgram::Module(form, module) => (*form, module),
        ParsedProgram::Model(opened) if named.is_none_or(|n| n == "main") => return Ok((**opened).clone()),
        ParsedProgram::Model(_) => {
            return Err(err!(Config, "the model has only one function").hint("omit --function"));
        }
    };
    let imported = match named {
        None => import::program(module),
        Some(name) => match module.functions.iter().find(|f| f.name == name) {
            Some(function) => import::of_function(module, function),
            None => {
                let all: Vec<&str> = module.functions.iter().map(|f| f.name.as_str()).take(20).collect();
                let e = err!(Config, "the program has no function @{name}");
                return Err(e.hint(format!("choose one of: `{}`", all.join("`, `"))));
            }
        },
    };
    let imported = imported.map_err(|e| e.hint(UNREAD))?;
    Ok(ProgramFile { form, imported, settled: Vec::new(), fixed: Vec::new(), stages: 0 })
}

/// Returns the function names of a file of tests: it has no `main` and several functions without arguments. Otherwise
/// empty.
pub fn tests(source: &ParsedProgram) -> Vec<String> {
    let ParsedProgram::Module(_, module) = source else { return Vec::new() };
    let own = || module.functions.iter().filter(|f| !f.is_private);
    let is_program = own().any(|f| f.name == "main" || !f.body.arguments.is_empty());
    if is_program || own().count() < 2 { Vec::new() } else { own().map(|f| f.name.clone()).collect() }
}

/// Converts a parsed program to an MLIR module; an ONNX or `.tflite` model is written as StableHLO.
///
/// # Errors
/// If the StableHLO of a model does not parse, which is a bug.
pub fn as_module(source: ParsedProgram) -> Result<MlirModule> {
    match source {
        ParsedProgram::Module(_, module) => Ok(module),
        ParsedProgram::Model(opened) => {
            let graph = &opened.imported.program.graph;
            systole_mlir::text::parse(&systole_ir::text::print_program(graph, &[], None))
        }
    }
}

/// Parses a program file as an MLIR module, whether or not it can be imported.
///
/// # Errors
/// `Data` if it is not a program (names the apparent file type); otherwise with line and column, or byte offset.
pub fn module(bytes: &[u8]) -> Result<(ProgramFormat, MlirModule)> {
    if bytes.starts_with(BYTECODE) {
        return Ok((ProgramFormat::Bytecode, systole_bytecode::parse(bytes)?));
    }
    if let Some((what, hint)) = other_kind(bytes) {
        return Err(err!(Data, "not a program: {what}").hint(hint));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        err!(Data, "the file is neither StableHLO text nor bytecode")
            .at(format!("byte {at}"))
            .because("the file is not UTF-8 text, and bytecode starts with ML\\xefR")
            .hint(HINT)
    })?;
    Ok((ProgramFormat::Text, systole_mlir::text::parse(text).map_err(|e| e.hint(HINT))?))
}

const HINT: &str = "pass StableHLO as written by JAX (jax.jit(f).lower(x).as_text()), PyTorch/XLA, MLIR or `systole show \
                    MODEL --stage stablehlo`";

/// Hint for valid programs that are not supported.
const UNREAD: &str =
    "see docs/guide/programs.md for what is supported; report programs that the specification allows";

/// Returns the apparent type of a file that is not a program, and a hint.
fn other_kind(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    if let Some(format) = ModelFormat::of(bytes).filter(|_| !is_model(bytes)) {
        return Some((format.name(), format.hint()));
    }
    let text = bytes.trim_ascii_start();
    let lower: Vec<u8> = text.iter().take(64).map(u8::to_ascii_lowercase).collect();
    let begins = |with: &[u8]| lower.starts_with(with);
    let kind = match () {
        () if bytes.is_empty() => ("the file is empty", "write the program again: the file is empty"),
        () if text.is_empty() => ("the file contains only spaces", "write the program again"),
        () if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") => {
            ("it is a web page", "download the file itself: this is a page about it, or an error page")
        }
        () if begins(b"hlomodule") => (
            "it is HLO text, which XLA generates from StableHLO",
            "pass the program before compilation: jax.jit(f).lower(x).as_text()",
        ),
        () if begins(b"{\"") || begins(b"{ \"") => ("it is JSON", HINT),
        () if begins(b"\x7felf") => ("it is machine code", HINT),
        () if bytes.starts_with(b"\x1f\x8b") => ("it is compressed with gzip", "unpack it: gunzip -k FILE"),
        () if bytes.starts_with(b"\x93NUMPY") => ("it is a NumPy array", "pass arrays with --input"),
        () if bytes.contains(&0) && bytes.get(8..9) == Some(b"{") => {
            ("it is a safetensors file", "pass arrays with --input")
        }
        () => return None,
    };
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;

    #[test]
    fn files_that_are_no_programs_say_what_they_seem_to_be() {
        for (bytes, part) in [
            (&b""[..], "empty"),
            (b"  \n", "only spaces"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"HloModule jit_f", "HLO text"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"PK\x03\x04", "ZIP"),
            (b"\xff\xfe\x00", "neither StableHLO text nor bytecode"),
            (b"module {", "pass StableHLO"),
        ] {
            let told = open(bytes).unwrap_err().to_string();
            assert!(told.contains(part) && told.contains("try: "), "{told}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn external_data_is_not_read_through_links_that_leave_the_directory() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx");
        let all = std::env::temp_dir().join(format!("systole-external-data-{}", std::process::id()));
        let (folder, away) = (all.join("model"), all.join("away"));
        for folder in [&folder, &away] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let name = "beside.onnx.data";
        std::fs::copy(fixtures.join(name), away.join(name)).unwrap();
        std::fs::copy(fixtures.join(name), folder.join("kept")).unwrap();
        let bytes = std::fs::read(fixtures.join("beside.onnx")).unwrap();
        let around = OpenContext { folder: Some(folder.clone()), ..OpenContext::default() };
        let link = folder.join(name);
        std::os::unix::fs::symlink(away.join(name), &link).unwrap();
        let e = onnx(&bytes, &around).unwrap_err();
        let named = [&link, &away.join(name)].map(|path| path.display().to_string());
        systole_testing::assert_error(&e, ErrorKind::Data, &[&named[0], &named[1]]);
        assert!(e.hint_text().is_some(), "{e}");
        // A link within the directory, and the directory itself behind a link.
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("kept", &link).unwrap();
        assert!(onnx(&bytes, &around).is_ok());
        std::os::unix::fs::symlink(&folder, all.join("link")).unwrap();
        let around = OpenContext { folder: Some(all.join("link")), ..OpenContext::default() };
        assert!(onnx(&bytes, &around).is_ok());
        std::fs::remove_dir_all(&all).unwrap();
    }

    #[test]
    fn programs_are_known_by_how_they_begin() {
        for text in ["module @m {", "\n// made by\nfunc.func @main", "#loc1 = loc(\"x\")", "ML"] {
            assert_eq!(is_program(text.as_bytes()), text != "ML", "{text}");
        }
        assert!(is_program(b"ML\xefR\x0d") && !is_program(b"# mine.toml\n[model]") && !is_program(b""));
    }
}
