//! Keras's `Hashing` and `HashedCrossing` with TensorFlow's hashes: FarmHash `Fingerprint64`, SipHash-2-4 with a salt.

use super::{LookupOutputMode, wrong};
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use systole_base::{Literal, Result, ensure};

/// Hashes strings or integers to bins: Keras's `Hashing`.
///
/// ```
/// use systole_datasets::preprocessing::Hashing;
/// let hashing = Hashing { num_bins: 3, ..Default::default() };
/// let bins = hashing.call(["A", "B", "C", "D", "E"])?;
/// assert_eq!(bins.to_f64s(), [1.0, 0.0, 1.0, 1.0, 2.0]);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hashing {
    /// Number of bins. Required.
    pub num_bins: u64,
    /// Value that is mapped to bin 0, which no other value uses.
    pub mask_value: Option<String>,
    /// Keys for SipHash, which replaces FarmHash.
    pub salt: Option<[u64; 2]>,
    /// Output encoding; not [`LookupOutputMode::TfIdf`].
    pub output_mode: LookupOutputMode,
}

impl Hashing {
    /// Returns the bin of a string, or of an integer formatted as a string.
    ///
    /// # Errors
    /// If `num_bins` is 0.
    pub fn bin(&self, value: &str) -> Result<u64> {
        ensure!(self.num_bins != 0, wrong("Hashing: num_bins is 0", "set num_bins to at least 1"));
        let Some(mask) = self.mask_value.as_deref().filter(|_| self.num_bins > 1) else {
            return Ok(bin(value, self.num_bins, self.salt));
        };
        Ok(if value == mask { 0 } else { 1 + bin(value, self.num_bins - 1, self.salt) })
    }

    /// Hashes `values → i64[n], f32[n, num_bins] or f32[num_bins]`.
    ///
    /// # Errors
    /// If `num_bins` is 0, or the output mode is `tf_idf`.
    pub fn call<T: ToString>(&self, values: impl IntoIterator<Item = T>) -> Result<Literal> {
        let bins = values.into_iter().map(|value| Ok(self.bin(&value.to_string())? as i64));
        encode("Hashing", &bins.collect::<Result<Vec<i64>>>()?, self.num_bins, self.output_mode)
    }
}

/// Value of a feature for [`HashedCrossing`]: text or integer.
#[derive(Clone, Debug, PartialEq)]
pub enum CrossedFeature {
    /// String value.
    Text(String),
    /// Integer value.
    Int(i64),
}

/// Hashes a combination of features to one bin: Keras's `HashedCrossing`.
///
/// ```
/// use systole_datasets::preprocessing::{CrossedFeature, HashedCrossing};
/// let crossing = HashedCrossing { num_bins: 5, ..Default::default() };
/// let bin = |a: &str, b| crossing.bin(&[CrossedFeature::Text(a.into()), CrossedFeature::Int(b)]);
/// assert_eq!([bin("A", 101)?, bin("B", 101)?, bin("A", 102)?], [1, 4, 3]);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashedCrossing {
    /// Number of bins. Required.
    pub num_bins: u64,
    /// Output encoding: the bin index or one-hot.
    pub output_mode: LookupOutputMode,
}

impl HashedCrossing {
    /// Returns the bin of the combined features.
    ///
    /// # Errors
    /// If `num_bins` is 0, or there are fewer than two features.
    pub fn bin(&self, features: &[CrossedFeature]) -> Result<u64> {
        if self.num_bins == 0 || features.len() < 2 {
            let what = format!("HashedCrossing: {} features and {} bins", features.len(), self.num_bins);
            return Err(wrong(what, "pass at least two features, and set num_bins to at least 1"));
        }
        let of = |feature: &CrossedFeature| match feature {
            CrossedFeature::Text(text) => fingerprint64(text.as_bytes()),
            CrossedFeature::Int(n) => *n as u64,
        };
        Ok(features.iter().fold(CROSS_KEY, |hash, feature| fingerprint_cat(hash, of(feature)))
            % self.num_bins)
    }

    /// Hashes `features of one sample → i64[1] or f32[1, num_bins]`.
    ///
    /// # Errors
    /// See [`HashedCrossing::bin`].
    pub fn call(&self, features: &[CrossedFeature]) -> Result<Literal> {
        encode("HashedCrossing", &[self.bin(features)? as i64], self.num_bins, self.output_mode)
    }
}

fn encode(of: &str, bins: &[i64], num_bins: u64, mode: LookupOutputMode) -> Result<Literal> {
    if mode == LookupOutputMode::TfIdf {
        return Err(wrong(
            format!("{of}: output_mode is tf_idf"),
            "set output_mode to count: hashing has no term frequencies",
        ));
    }
    mode.encode(bins, num_bins as usize, &[])
}

/// Returns the bin of a string; `bins` is not 0.
pub(super) fn bin(value: &str, bins: u64, salt: Option<[u64; 2]>) -> u64 {
    let hash = match salt {
        Some(key) => siphash(key, value.as_bytes()),
        None => fingerprint64(value.as_bytes()),
    };
    hash % bins
}

/// Initial hash of TensorFlow's feature crosses.
const CROSS_KEY: u64 = 0x00DE_CAFC_AFFE;
const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

fn shift_mix(v: u64) -> u64 {
    v ^ (v >> 47)
}

/// TensorFlow's `FingerprintCat64`.
fn fingerprint_cat(a: u64, b: u64) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mut result = a ^ MUL;
    result ^= shift_mix(b.wrapping_mul(MUL)).wrapping_mul(MUL);
    result = result.wrapping_mul(MUL);
    shift_mix(shift_mix(result).wrapping_mul(MUL))
}

/// Loads eight bytes from `at`; bytes beyond the end are 0, and no caller uses them.
fn u64_at(s: &[u8], at: usize) -> u64 {
    s.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u32_at(s: &[u8], at: usize) -> u64 {
    s.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, |b| u64::from(u32::from_le_bytes(b)))
}

fn hash_16(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

/// Computes FarmHash's `Fingerprint64` (farmhashna). Source: Geoff Pike, FarmHash.
pub(super) fn fingerprint64(s: &[u8]) -> u64 {
    let len = s.len();
    let mul = K2.wrapping_add(2 * len as u64);
    match len {
        0 => K2,
        1..=3 => {
            let byte = |at: usize| u32::from(s[at]);
            let y = u64::from(byte(0).wrapping_add(byte(len >> 1) << 8));
            let z = u64::from((len as u32).wrapping_add(byte(len - 1) << 2));
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        4..=7 => hash_16((len as u64).wrapping_add(u32_at(s, 0) << 3), u32_at(s, len - 4), mul),
        8..=16 => {
            let (a, b) = (u64_at(s, 0).wrapping_add(K2), u64_at(s, len - 8));
            let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
            hash_16(c, d, mul)
        }
        17..=32 => {
            let (u, v) = halves(s, K1, mul);
            hash_16(u, v, mul)
        }
        33..=64 => {
            let (y, u) = halves(s, K2, mul);
            let a = u64_at(s, 0).wrapping_mul(K2);
            let z = hash_16(y, u, mul);
            let (e, f) = (u64_at(s, 16).wrapping_mul(mul), u64_at(s, 24));
            let g = y.wrapping_add(u64_at(s, len - 32)).wrapping_mul(mul);
            let h = z.wrapping_add(u64_at(s, len - 24)).wrapping_mul(mul);
            let left = e.wrapping_add(f).rotate_right(43).wrapping_add(g.rotate_right(30)).wrapping_add(h);
            hash_16(left, e.wrapping_add(f.wrapping_add(a).rotate_right(18)).wrapping_add(g), mul)
        }
        _ => fingerprint_long(s),
    }
}

/// Hashes the first and last 16 bytes of inputs of 17 to 64 bytes.
fn halves(s: &[u8], first: u64, mul: u64) -> (u64, u64) {
    let len = s.len();
    let (a, b) = (u64_at(s, 0).wrapping_mul(first), u64_at(s, 8));
    let (c, d) = (u64_at(s, len - 8).wrapping_mul(mul), u64_at(s, len - 16).wrapping_mul(K2));
    let u = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    (u, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c))
}

/// Hashes 32 bytes from `at`.
fn weak_hash(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|k| u64_at(s, at + k));
    let a = a.wrapping_add(w);
    let mut b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    let a = a.wrapping_add(x).wrapping_add(y);
    b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

/// State of FarmHash's loop over 64-byte blocks.
struct FarmHashState {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl FarmHashState {
    /// Processes one block; `last` marks the last one, whose multiplier and mixing differ.
    fn take(&mut self, s: &[u8], at: usize, mul: u64, last: bool) {
        let (nine, w1, v0) = (if last { 9u64 } else { 1 }, self.w.1, self.v.0);
        let sum = self.x.wrapping_add(self.y).wrapping_add(v0).wrapping_add(u64_at(s, at + 8));
        self.x = sum.rotate_right(37).wrapping_mul(mul) ^ w1.wrapping_mul(nine);
        let sum = self.y.wrapping_add(self.v.1).wrapping_add(u64_at(s, at + 48));
        self.y = sum.rotate_right(42).wrapping_mul(mul);
        self.y = self.y.wrapping_add(v0.wrapping_mul(nine)).wrapping_add(u64_at(s, at + 40));
        self.z = self.z.wrapping_add(self.w.0).rotate_right(33).wrapping_mul(mul);
        let next = weak_hash(s, at, self.v.1.wrapping_mul(mul), self.x.wrapping_add(self.w.0));
        self.w = weak_hash(s, at + 32, self.z.wrapping_add(w1), self.y.wrapping_add(u64_at(s, at + 16)));
        self.v = next;
        std::mem::swap(&mut self.z, &mut self.x);
    }
}

fn fingerprint_long(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let len = s.len();
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let x = SEED.wrapping_mul(K2).wrapping_add(u64_at(s, 0));
    let mut blocks = FarmHashState { x, y, z, v: (0, 0), w: (0, 0) };
    (0..(len - 1) / 64).for_each(|k| blocks.take(s, 64 * k, K1, false));
    let mul = K1.wrapping_add((blocks.z & 0xff) << 1);
    blocks.w.0 = blocks.w.0.wrapping_add(((len - 1) & 63) as u64);
    blocks.v.0 = blocks.v.0.wrapping_add(blocks.w.0);
    blocks.w.0 = blocks.w.0.wrapping_add(blocks.v.0);
    blocks.take(s, len - 64, mul, true);
    let FarmHashState { x, y, z, v, w } = blocks;
    let left = hash_16(v.0, w.0, mul).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z);
    hash_16(left, hash_16(v.1, w.1, mul).wrapping_add(x), mul)
}

/// SipHash-2-4. Source: Aumasson and Bernstein 2012.
#[expect(
    deprecated,
    reason = "deprecated as a map hasher, but the only fixed SipHash in the standard library"
)]
fn siphash([first, second]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(first, second);
    hasher.write(bytes);
    hasher.finish()
}
