//! The source of a program: its code and its compile options, and the code in a form that older readers know.
//!
//! The serialized form is `MARK`, this plugin's version, a checksum, the options and the code.

use crate::annotations;
use crate::call::Failure;
use crate::device::VERSION;
use std::sync::Arc;
use systole_ir::rng::fnv1a;
use systole_ir::text;
use systole_mlir::import;
use systole_mlir::syntax::{Attribute, Function, Module};
use systole_mlir::tiles::Tiles;
use systole_pjrt::sys::code;
use systole_pjrt::with_layers;

/// How MLIR bytecode begins.
const BYTECODE: &[u8] = b"ML\xefR";

/// What a program is compiled from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    /// Text or bytecode.
    pub(crate) code: Vec<u8>,
    pub(crate) options: Vec<u8>,
}

const MARK: &[u8] = b"systole program\n";

impl Source {
    /// `MARK, length of the version: u32, version, checksum: u64, length of the options: u64, options, code`.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut rest = (self.options.len() as u64).to_le_bytes().to_vec();
        rest.extend_from_slice(&self.options);
        rest.extend_from_slice(&self.code);
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(&(VERSION.len() as u32).to_le_bytes());
        bytes.extend_from_slice(VERSION.as_bytes());
        bytes.extend_from_slice(&fnv1a(&rest).to_le_bytes());
        bytes.extend_from_slice(&rest);
        bytes
    }

    /// Errors: bytes of something else, of another version, or damaged ones.
    pub(crate) fn read(bytes: &[u8]) -> Result<Source, Failure> {
        let wrong = |why: &str| Failure {
            code: code::INVALID_ARGUMENT,
            message: format!("this is no program that Systole's plugin can load: {why}; compile it again"),
        };
        let cut = || wrong("it is cut off");
        let rest = bytes.strip_prefix(MARK).ok_or_else(|| wrong("it does not begin as one"))?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (version, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        if version != VERSION.as_bytes() {
            let version = String::from_utf8_lossy(&version[..version.len().min(100)]).into_owned();
            return Err(wrong(&format!("it was made by {version:?}, and this is {VERSION:?}")));
        }
        let (sum, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        if fnv1a(rest) != u64::from_le_bytes(*sum) {
            return Err(wrong("it is damaged"));
        }
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
        let (options, code) = rest.split_at_checked(length).ok_or_else(cut)?;
        Ok(Source { code: code.into(), options: options.into() })
    }
}

/// A program as it came.
pub(crate) enum Written {
    /// Systole's own text: what each device has is said by its mesh.
    Own(Box<text::Program>),
    Other(Box<Module>),
}

/// Reads text or bytecode.
pub(crate) fn parse(code: &[u8]) -> Result<Written, Failure> {
    if code.starts_with(BYTECODE) {
        return Ok(Written::Other(Box::new(systole_bytecode::parse(code)?)));
    }
    let text = std::str::from_utf8(code).map_err(|_| {
        Failure::invalid("the program is neither StableHLO text nor bytecode (a portable artifact)")
    })?;
    if text.starts_with("ML\u{ef}R") {
        return Err(Failure::invalid("the program is bytecode that was taken for text"));
    }
    match text::parse_program(text) {
        Ok(mut program) => {
            program.graph = Arc::new(with_layers(Arc::unwrap_or_clone(program.graph), text));
            Ok(Written::Own(Box::new(program)))
        }
        // All in the generic form is meant as text of ours.
        Err(e) if is_ours(text) => Err(e.into()),
        Err(_) => Ok(Written::Other(Box::new(systole_mlir::text::parse(text)?))),
    }
}

/// Whether a text that does not read was meant as one of ours: it is in the generic form, or none at all.
fn is_ours(text: &str) -> bool {
    let generic = text.contains("\"stablehlo.") && !text.contains(" stablehlo.");
    generic || !text.contains("func")
}

/// A program with Shardy's ops as StableHLO without them, as each device runs it, and one of several devices with what
/// JAX until 0.8 reads of how arguments and results lie; `None` where the source has neither.
pub(crate) fn plain(code: &[u8], arguments: &[Tiles], results: &[Tiles]) -> Option<Vec<u8>> {
    let Ok(Written::Other(mut module)) = parse(code) else { return None };
    let is_shardys = |f: &Function| f.body.operations.iter().any(|op| op.name.starts_with("sdy."));
    let texts = |all: &[Tiles]| all.iter().map(Tiles::to_text).collect::<Vec<_>>();
    let outs = match texts(results).as_slice() {
        [one] => one.clone(),
        all => format!("{{{}}}", all.join(", ")),
    };
    const INS: &str = "mhlo.spmd_parameters_shardings";
    const OUTS: &str = "mhlo.spmd_output_sharding";
    if module.functions.iter().any(is_shardys) {
        annotations::take(&mut module, 1, &[]).ok()?;
        let import::Imported { program, .. } = import::program(&module).ok()?;
        let own = text::print_program(&program.graph, &[], None);
        let head = "module @main ";
        let ins = texts(arguments).iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", ");
        let told = format!("attributes {{{INS} = [{ins}], {OUTS} = \"{outs}\"}}");
        return Some(format!("{head}{told} {}", own.strip_prefix(head)?).into());
    }
    if results.iter().chain(arguments).all(|t| t.devices() == 1) {
        return None;
    }
    let ins = texts(arguments).into_iter().map(Attribute::String).collect();
    module.attributes.extend([(INS.into(), Attribute::List(ins)), (OUTS.into(), Attribute::String(outs))]);
    Some(systole_mlir::text::write(&module).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_or_missing_byte_is_refused() {
        let program = Source { code: b"func.func @main".into(), options: vec![1, 2, 3] };
        let bytes = program.to_bytes();
        assert!(Source::read(&bytes).is_ok_and(|p| p == program));
        for n in 0..bytes.len() {
            assert!(Source::read(&bytes[..n]).is_err(), "the first {n} bytes");
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[n] ^= 1 << bit;
                let e = Source::read(&other).err().map(|e| e.message).unwrap_or_default();
                assert!(e.contains("compile it again"), "bit {bit} of byte {n}: {e}");
            }
        }
    }
}
