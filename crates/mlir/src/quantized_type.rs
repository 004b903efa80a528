//! Quantized element types of StableHLO: integers `q` that stand for the reals `scale · (q − zero point)`.
//!
//! Source: the StableHLO specification, "Quantized types"; the text form is that of MLIR's dialect `quant`.

use std::fmt;

/// A quantized element type, per tensor or per axis.
///
/// ```
/// use systole_mlir::quantized_type::QuantizedType;
/// let ty = QuantizedType::parse("!quant.uniform<i8<-127:127>:f32:0, {0.5:3, 2.0}>").unwrap();
/// assert_eq!((ty.storage(), ty.range, ty.axis), ("i8".into(), (-127, 127), Some(0)));
/// assert_eq!(ty.scales, [(0.5, 3), (2.0, 0)]);
/// assert_eq!(ty.to_string(), "!quant.uniform<i8<-127:127>:f32:0, {0.5:3, 2.0}>");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedType {
    /// Whether the integers are signed.
    pub is_signed: bool,
    /// Bits of an integer, 1 to 32.
    pub bits: u32,
    /// Smallest and largest integer.
    pub range: (i64, i64),
    /// Name of the float type of the reals.
    pub expressed: String,
    /// Dimension of which each slice has its own scale.
    pub axis: Option<u64>,
    /// Scale and zero point; one pair per slice if there is an axis.
    pub scales: Vec<(f64, i64)>,
}

impl QuantizedType {
    /// Parses `!quant.uniform<i8<-127:127>:f32:0, {34.0:16, 2.0}>`; `None` for other types, also for scales per block.
    pub fn parse(name: &str) -> Option<QuantizedType> {
        let text = name.strip_prefix("!quant.uniform<")?.strip_suffix('>')?;
        let (types, scales) = text.split_once(',')?;
        let (storage, rest) = match types.split_once('<') {
            Some((storage, rest)) => (storage, rest),
            None => types.split_at_checked(types.find(':')?)?,
        };
        let bits: u32 = storage.get(1..)?.parse().ok().filter(|n| (1..=32).contains(n))?;
        let is_signed = storage.starts_with('i');
        let (range, rest) = match rest.split_once('>') {
            Some((range, rest)) => {
                let (low, high) = range.split_once(':')?;
                ((low.trim().parse().ok()?, high.trim().parse().ok()?), rest)
            }
            None => (whole_range(is_signed, bits), rest),
        };
        let mut rest = rest.strip_prefix(':')?.split(':');
        let expressed = rest.next()?.trim().to_owned();
        let axis = rest.next().map(|axis| axis.trim().parse()).transpose().ok()?;
        let scale = |item: &str| {
            let (scale, zero) = item.trim().split_once(':').unwrap_or((item.trim(), "0"));
            Some((scale.parse().ok()?, zero.trim().parse().ok()?))
        };
        let scales = scales.trim().trim_matches(['{', '}']).split(',').map(scale).collect::<Option<_>>()?;
        Some(QuantizedType { is_signed, bits, range, expressed, axis, scales })
    }

    /// Returns the name of the integers' element type: `i8`, `ui8`.
    pub fn storage(&self) -> String {
        format!("{}i{}", if self.is_signed { "" } else { "u" }, self.bits)
    }
}

/// Returns the smallest and largest integer of a width.
fn whole_range(is_signed: bool, bits: u32) -> (i64, i64) {
    let half = 1i64 << bits.clamp(1, 32).saturating_sub(1);
    if is_signed { (-half, half - 1) } else { (0, 2 * half - 1) }
}

impl fmt::Display for QuantizedType {
    /// The range appears only if it differs from the storage type's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_signed { "i" } else { "u" };
        write!(f, "!quant.uniform<{sign}{}", self.bits)?;
        if self.range != whole_range(self.is_signed, self.bits) {
            write!(f, "<{}:{}>", self.range.0, self.range.1)?;
        }
        write!(f, ":{}", self.expressed)?;
        self.axis.iter().try_for_each(|axis| write!(f, ":{axis}"))?;
        let one = |&(scale, zero): &(f64, i64)| match zero {
            0 => float_text(scale),
            zero => format!("{}:{zero}", float_text(scale)),
        };
        let scales = self.scales.iter().map(one).collect::<Vec<_>>().join(", ");
        if self.axis.is_some() { write!(f, ", {{{scales}}}>") } else { write!(f, ", {scales}>") }
    }
}

/// Formats a number like MLIR prints floats.
pub fn float_text(x: impl fmt::Debug) -> String {
    let shortest = format!("{x:?}");
    match shortest.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => shortest,
    }
}
