//! Bytes → a program, by what they are and not by the file's name: StableHLO text, Systole's own or that of other systems,
//! portable bytecode, or an ONNX model.

use std::path::PathBuf;
use systole_base::{Error, ErrorKind, Result};
use systole_mlir::import::{self, ImportedProgram};
use systole_mlir::syntax::MlirModule;
use systole_onnx::{DimSizes, OnnxModel};

/// How a program was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFormat {
    /// MLIR text.
    Text,
    /// MLIR bytecode.
    Bytecode,
    /// ONNX's protocol buffer.
    Onnx,
}

/// What a file leaves to others to say.
#[derive(Clone, Debug, Default)]
pub struct OpenContext {
    /// The folder that it lies in: constants of ONNX models may lie in files beside it.
    pub folder: Option<PathBuf>,
    /// What settles the sizes that an ONNX model leaves open.
    pub sizes: DimSizes,
}

/// A program file that was read.
#[derive(Clone, Debug)]
pub struct ProgramFile {
    /// How it was written.
    pub form: ProgramFormat,
    /// What it computes.
    pub imported: ImportedProgram,
    /// Sizes that an ONNX model leaves open, as they are now.
    pub settled: Vec<(String, usize)>,
}

/// What a program file says, before one of its functions is chosen.
#[derive(Clone, Debug)]
pub enum ParsedProgram {
    /// Functions of StableHLO, as text or bytecode.
    Module(ProgramFormat, MlirModule),
    /// The one graph of an ONNX model.
    Onnx(Box<ProgramFile>),
}

/// How MLIR bytecode begins.
const BYTECODE: &[u8] = b"ML\xefR";

/// Whether bytes are, or mean to be, a program: bytecode, an ONNX model, or text that begins as a module does.
pub fn is_program(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let code = text.lines().map(str::trim_start).find(|l| !l.is_empty() && !l.starts_with("//"));
    let begins = ["module", "func.func", "\"builtin.module\"", "#loc", "builtin.module", "\"func.func\""];
    start.starts_with(BYTECODE)
        || OnnxModel::is_onnx(start)
        || code.is_some_and(|l| begins.iter().any(|b| l.starts_with(b)))
}

/// Reads a program: its `main`, or else its first function that is not private.
///
/// # Errors
/// As [`module`]; as [`import::program`].
pub fn open(bytes: &[u8]) -> Result<ProgramFile> {
    open_function(bytes, None)
}

/// As [`open`], of a function by its name.
///
/// # Errors
/// As [`open`]; when there is no such function, those that there are.
pub fn open_function(bytes: &[u8], name: Option<&str>) -> Result<ProgramFile> {
    function(&source(bytes, &OpenContext::default())?, name)
}

/// Reads what a program file says.
///
/// # Errors
/// As [`module`].
pub fn source(bytes: &[u8], around: &OpenContext) -> Result<ParsedProgram> {
    if !OnnxModel::is_onnx(bytes) {
        let (form, module) = module(bytes)?;
        return Ok(ParsedProgram::Module(form, module));
    }
    let read = onnx(bytes, around)?.import(&around.sizes)?;
    let imported = ImportedProgram::of_graph(read.graph);
    Ok(ParsedProgram::Onnx(Box::new(ProgramFile {
        form: ProgramFormat::Onnx,
        imported,
        settled: read.settled,
    })))
}

/// Reads an ONNX model, and the files beside it that hold its constants.
///
/// # Errors
/// When it is damaged, or such a file cannot be read.
pub fn onnx(bytes: &[u8], around: &OpenContext) -> Result<OnnxModel> {
    let beside = |file: &str| match &around.folder {
        Some(folder) => {
            let path = folder.join(file);
            systole_data::input_file::read(&path).map_err(|e| {
                Error::io("cannot read", &path, e)
                    .hint("keep the constants of the model beside it, as they were written")
            })
        }
        None => Err(Error::new(ErrorKind::Unsupported, format!("constants lie in another file, {file}"))
            .hint("name the model by its path, with that file beside it")),
    };
    OnnxModel::from_parts("the ONNX model", bytes, &beside)
}

/// A function of a source as a program: the one of a name, or that of [`open`].
///
/// # Errors
/// As [`open_function`].
pub fn function(source: &ParsedProgram, name: Option<&str>) -> Result<ProgramFile> {
    let named = name.map(|n| n.trim_start_matches('@'));
    let (form, module) = match source {
        ParsedProgram::Module(form, module) => (*form, module),
        ParsedProgram::Onnx(opened) if named.is_none_or(|n| n == "main") => return Ok((**opened).clone()),
        ParsedProgram::Onnx(_) => {
            let e = Error::new(ErrorKind::Config, "an ONNX model has one function");
            return Err(e.hint("leave --function out"));
        }
    };
    let imported = match named {
        None => import::program(module),
        Some(name) => match module.functions.iter().find(|f| f.name == name) {
            Some(function) => import::of_function(module, function),
            None => {
                let all: Vec<&str> = module.functions.iter().map(|f| f.name.as_str()).take(20).collect();
                let e = Error::new(ErrorKind::Config, format!("the program has no function @{name}"));
                return Err(e.hint(format!("it has {}", all.join(", "))));
            }
        },
    };
    let imported = imported.map_err(|e| e.hint(UNREAD))?;
    Ok(ProgramFile { form, imported, settled: Vec::new() })
}

/// Names of the functions of a file that is no program but many tests: there is no `main`, and several take nothing. Else none.
pub fn tests(source: &ParsedProgram) -> Vec<String> {
    let ParsedProgram::Module(_, module) = source else { return Vec::new() };
    let own = || module.functions.iter().filter(|f| !f.is_private);
    let is_program = own().any(|f| f.name == "main" || !f.body.arguments.is_empty());
    if is_program || own().count() < 2 { Vec::new() } else { own().map(|f| f.name.clone()).collect() }
}

/// A source as a module: an ONNX model is written out as StableHLO.
///
/// # Errors
/// When what is written for an ONNX model does not read, which is a defect.
pub fn as_module(source: ParsedProgram) -> Result<MlirModule> {
    match source {
        ParsedProgram::Module(_, module) => Ok(module),
        ParsedProgram::Onnx(opened) => {
            let graph = &opened.imported.program.graph;
            systole_mlir::text::parse(&systole_ir::text::print_program(graph, &[], None))
        }
    }
}

/// Reads what a program says, whether or not it can be run here.
///
/// # Errors
/// `Data` where it is no program, says which kind of file it seems to be; else with line and column, or byte.
pub fn module(bytes: &[u8]) -> Result<(ProgramFormat, MlirModule)> {
    if bytes.starts_with(BYTECODE) {
        return Ok((ProgramFormat::Bytecode, systole_bytecode::parse(bytes)?));
    }
    if let Some((what, hint)) = other_kind(bytes) {
        return Err(Error::new(ErrorKind::Data, format!("this is no program: {what}")).hint(hint));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        Error::new(ErrorKind::Data, "this is neither StableHLO text nor bytecode")
            .at(format!("byte {at}"))
            .because("it is no UTF-8 there, and bytecode begins with ML\\xefR")
            .hint(HINT)
    })?;
    Ok((ProgramFormat::Text, systole_mlir::text::parse(text).map_err(|e| e.hint(HINT))?))
}

const HINT: &str = "StableHLO is read as JAX (jax.jit(f).lower(x).as_text()), PyTorch/XLA, MLIR's printer and `systole show \
                    MODEL --stage stablehlo` write it";

/// For programs that are well written and cannot be run here.
const UNREAD: &str =
    "docs/guide/programs.md says what is read; where the specification has it, please report the program";

/// What bytes seem to be that are no program, and what to do.
fn other_kind(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let text = bytes.trim_ascii_start();
    let lower: Vec<u8> = text.iter().take(64).map(u8::to_ascii_lowercase).collect();
    let begins = |with: &[u8]| lower.starts_with(with);
    let kind = match () {
        () if bytes.is_empty() => ("it is empty", "write the program again: nothing was written there"),
        () if text.is_empty() => ("there are only spaces in it", "write the program again"),
        () if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") => (
            "it is a page of the web",
            "get the file itself: what was fetched is a page about it, or an error's",
        ),
        () if begins(b"hlomodule") => (
            "it is HLO text, which XLA's compiler makes of StableHLO",
            "take the program before it is compiled: jax.jit(f).lower(x).as_text()",
        ),
        () if begins(b"{\"") || begins(b"{ \"") => ("it is JSON", HINT),
        () if begins(b"\x7felf") => ("it is machine code", HINT),
        () if bytes.starts_with(b"\x1f\x8b") => ("it is packed by gzip", "unpack it: gunzip -k FILE"),
        () if bytes.starts_with(b"PK\x03\x04") => {
            ("it is a ZIP archive", "unpack it and name the program in it")
        }
        () if bytes.starts_with(b"\x93NUMPY") => ("it is a NumPy array", "give arrays with --input"),
        () if bytes.contains(&0) && bytes.get(8..9) == Some(b"{") => {
            ("it is a safetensors file", "give arrays with --input")
        }
        () => return None,
    };
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_programs_say_what_they_seem_to_be() {
        for (bytes, part) in [
            (&b""[..], "empty"),
            (b"  \n", "only spaces"),
            (b"<!DOCTYPE html><html>", "page of the web"),
            (b"HloModule jit_f", "HLO text"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"PK\x03\x04", "ZIP"),
            (b"\xff\xfe\x00", "neither StableHLO text nor bytecode"),
            (b"module {", "StableHLO is read"),
        ] {
            let told = open(bytes).unwrap_err().to_string();
            assert!(told.contains(part) && told.contains("try: "), "{told}");
        }
    }

    #[test]
    fn programs_are_known_by_how_they_begin() {
        for text in ["module @m {", "\n// made by\nfunc.func @main", "#loc1 = loc(\"x\")", "ML"] {
            assert_eq!(is_program(text.as_bytes()), text != "ML", "{text}");
        }
        assert!(is_program(b"ML\xefR\x0d") && !is_program(b"# mine.toml\n[model]") && !is_program(b""));
    }
}
