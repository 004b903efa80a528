//! Serializes a program's source: `MARK`, the plugin's version, a checksum, the compile options and the code.

use crate::call::{CallError, CallResult};
use crate::device::VERSION;
use systole_ir::ensure;
use systole_ir::rng::fnv1a;
use systole_pjrt::sys::code;

/// Source of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SerializedSource {
    /// Text or bytecode.
    pub(crate) code: Vec<u8>,
    pub(crate) options: Vec<u8>,
}

const MARK: &[u8] = b"systole program\n";

impl SerializedSource {
    /// Serializes to `MARK, length of the version: u32, version, checksum: u64, length of the options: u64, options,
    /// code`.
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

    /// Parses a serialized program. Errors: other data, another version, or damage.
    pub(crate) fn read(bytes: &[u8]) -> CallResult<SerializedSource> {
        let wrong = |why: &str| CallError {
            code: code::INVALID_ARGUMENT,
            message: format!("this is not a program that Systole's plugin can load: {why}; compile it again"),
        };
        let cut = || wrong("it is truncated");
        let rest = bytes.strip_prefix(MARK).ok_or_else(|| wrong("it has no program header"))?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (version, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        if version != VERSION.as_bytes() {
            let version = String::from_utf8_lossy(&version[..version.len().min(100)]).into_owned();
            return Err(wrong(&format!("it was written by {version:?}, but this is {VERSION:?}")));
        }
        let (sum, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        ensure!(fnv1a(rest) == u64::from_le_bytes(*sum), wrong("it is damaged"));
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
        let (options, code) = rest.split_at_checked(length).ok_or_else(cut)?;
        Ok(SerializedSource { code: code.into(), options: options.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_or_missing_byte_is_refused() {
        let program = SerializedSource { code: b"func.func @main".into(), options: vec![1, 2, 3] };
        let bytes = program.to_bytes();
        assert!(SerializedSource::read(&bytes).is_ok_and(|p| p == program));
        for n in 0..bytes.len() {
            assert!(SerializedSource::read(&bytes[..n]).is_err(), "the first {n} bytes");
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[n] ^= 1 << bit;
                let code = SerializedSource::read(&other).err().map(|e| e.code);
                assert_eq!(code, Some(code::INVALID_ARGUMENT), "bit {bit} of byte {n}");
            }
        }
    }
}
