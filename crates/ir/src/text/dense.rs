//! Prints and parses dense arrays exactly: `dense<[1.0, 2.5]>`, `dense<0.0>` (splat), `dense<"0x…">` for long ones.

use std::fmt::Write;
use systole_base::{DType, Literal, Scalar};

/// Maximum number of elements printed as a list; longer arrays are printed as hex bytes.
const LONGEST_LIST: usize = 32;

/// Prints an array as `dense<…>` without its type.
pub(super) fn print_dense(value: &Literal) -> String {
    let n = value.ty().elements();
    if n == 0 {
        return "dense<>".into();
    }
    if value.is_splat() {
        return format!("dense<{}>", element(value, 0));
    }
    // Long i1 arrays are always lists: some versions of MLIR pack their bits in hex form, others do not.
    if n > LONGEST_LIST && value.dtype() != DType::Bool {
        let mut out = String::from("dense<\"0x");
        value.bytes().iter().for_each(|b| {
            let _ = write!(out, "{b:02X}");
        });
        return out + "\">";
    }
    let mut out = String::from("dense<");
    list(value, 0, 0, &mut out);
    out + ">"
}

/// Appends the elements of a subarray; `first` is the index of its first element.
fn list(value: &Literal, dim: usize, first: usize, out: &mut String) {
    let Some(&size) = value.shape().get(dim) else { return out.push_str(&element(value, first)) };
    let step: usize = value.shape()[dim + 1..].iter().product();
    out.push('[');
    for i in 0..size {
        out.push_str(if i == 0 { "" } else { ", " });
        list(value, dim + 1, first + i * step, out);
    }
    out.push(']');
}

fn bits_at(value: &Literal, i: usize) -> u64 {
    let size = value.dtype().size();
    let mut raw = [0; 8];
    raw[..size].copy_from_slice(&value.bytes()[i * size..(i + 1) * size]);
    u64::from_le_bytes(raw)
}

fn element(value: &Literal, i: usize) -> String {
    let (dtype, bits) = (value.dtype(), bits_at(value, i));
    let f = match Scalar::from_bits(dtype, bits) {
        Scalar::Bool(b) => return b.to_string(),
        Scalar::Int(v) => return v.to_string(),
        Scalar::Uint(v) => return v.to_string(),
        Scalar::Float(f) => f,
    };
    // MLIR parses decimals as f64 and then rounds; the round-trip check does the same.
    let shortest = if dtype == DType::F64 { format!("{f:?}") } else { format!("{:?}", f as f32) };
    let reads_back = |s: &str| s.parse().is_ok_and(|v| Scalar::Float(v).to_bits(dtype) == bits);
    if !f.is_finite() || !reads_back(&shortest) {
        return format!("0x{bits:0width$X}", width = dtype.size() * 2);
    }
    // MLIR requires a decimal point before the exponent.
    match shortest.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => shortest,
    }
}

/// Parses one array element (without spaces around the sign) to its bits; `Err` is the message.
pub fn parse_element(text: &str, dtype: DType) -> Result<u64, String> {
    let wrong = || format!("expected an element of type {dtype}, got `{text}`");
    if dtype == DType::Bool {
        return match text {
            "true" | "1" => Ok(1),
            "false" | "0" => Ok(0),
            _ => Err(wrong()),
        };
    }
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(hex, 16).map_err(|_| wrong())?;
        return if bits.leading_zeros() >= 64 - dtype.bits() { Ok(bits) } else { Err(wrong()) };
    }
    if dtype.is_float() {
        let plain = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let value: f64 = text.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
        return Ok(Scalar::Float(value).to_bits(dtype));
    }
    let value: i128 = text.parse().map_err(|_| wrong())?;
    let scalar = match (i64::try_from(value), u64::try_from(value)) {
        (Ok(v), _) if dtype.is_signed_int() => Scalar::Int(v),
        (_, Ok(v)) if dtype.is_unsigned_int() => Scalar::Uint(v),
        _ => return Err(wrong()),
    };
    if scalar.round_to(dtype) == scalar { Ok(scalar.to_bits(dtype)) } else { Err(wrong()) }
}

/// Decodes a hex string to bytes.
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?.as_bytes();
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let byte = |p: &[u8]| Some(nibble(p[0])? << 4 | nibble(*p.get(1)?)?);
    digits.chunks(2).map(byte).collect()
}
