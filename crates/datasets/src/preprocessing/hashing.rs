//! Hashing: things to bins without a vocabulary, by the hashes of TensorFlow: FarmHash's `Fingerprint64`, SipHash-2-4 with a salt.

use super::{LookupOutputMode, wrong};
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use systole_base::{Literal, Result};

/// Texts or integers to bins: Keras's `Hashing`.
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
    /// How many bins there are. Required.
    pub num_bins: u64,
    /// What has bin 0 to itself.
    pub mask_value: Option<String>,
    /// Keys of SipHash, in the place of FarmHash.
    pub salt: Option<[u64; 2]>,
    /// What bins become; not [`OutputMode::TfIdf`].
    pub output_mode: LookupOutputMode,
}

impl Hashing {
    /// The bin of a text, or of an integer as a text.
    ///
    /// # Errors
    /// When there are no bins.
    pub fn bin(&self, value: &str) -> Result<u64> {
        if self.num_bins == 0 {
            return Err(wrong("Hashing: num_bins is 0", "give at least one bin"));
        }
        let Some(mask) = self.mask_value.as_deref().filter(|_| self.num_bins > 1) else {
            return Ok(bin(value, self.num_bins, self.salt));
        };
        Ok(if value == mask { 0 } else { 1 + bin(value, self.num_bins - 1, self.salt) })
    }

    /// `values → i64[n], f32[n, num_bins] or f32[num_bins]`.
    ///
    /// # Errors
    /// When there are no bins, or the output mode is `tf_idf`.
    pub fn call<T: ToString>(&self, values: impl IntoIterator<Item = T>) -> Result<Literal> {
        let bins = values.into_iter().map(|value| Ok(self.bin(&value.to_string())? as i64));
        encode("Hashing", &bins.collect::<Result<Vec<i64>>>()?, self.num_bins, self.output_mode)
    }
}

/// What [`HashedCrossing`] crosses.
#[derive(Clone, Debug, PartialEq)]
pub enum CrossedFeature {
    /// A text.
    Text(String),
    /// An integer.
    Int(i64),
}

/// Several features of one sample to one bin: Keras's `HashedCrossing`.
///
/// ```
/// use systole_datasets::preprocessing::{Feature, HashedCrossing};
/// let crossing = HashedCrossing { num_bins: 5, ..Default::default() };
/// let bin = |a: &str, b| crossing.bin(&[Feature::Text(a.into()), Feature::Int(b)]);
/// assert_eq!([bin("A", 101)?, bin("B", 101)?, bin("A", 102)?], [1, 4, 3]);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashedCrossing {
    /// How many bins there are. Required.
    pub num_bins: u64,
    /// What the bin becomes: itself or one-hot.
    pub output_mode: LookupOutputMode,
}

impl HashedCrossing {
    /// The bin of features together.
    ///
    /// # Errors
    /// When there are no bins, or fewer than two features.
    pub fn bin(&self, features: &[CrossedFeature]) -> Result<u64> {
        if self.num_bins == 0 || features.len() < 2 {
            let what = format!("HashedCrossing: {} features and {} bins", features.len(), self.num_bins);
            return Err(wrong(what, "cross at least two features, to at least one bin"));
        }
        let of = |feature: &CrossedFeature| match feature {
            CrossedFeature::Text(text) => fingerprint64(text.as_bytes()),
            CrossedFeature::Int(n) => *n as u64,
        };
        Ok(features.iter().fold(CROSS_KEY, |hash, feature| fingerprint_cat(hash, of(feature)))
            % self.num_bins)
    }

    /// `features of one sample → i64[1] or f32[1, num_bins]`.
    ///
    /// # Errors
    /// As [`HashedCrossing::bin`].
    pub fn call(&self, features: &[CrossedFeature]) -> Result<Literal> {
        encode("HashedCrossing", &[self.bin(features)? as i64], self.num_bins, self.output_mode)
    }
}

fn encode(of: &str, bins: &[i64], num_bins: u64, mode: LookupOutputMode) -> Result<Literal> {
    if mode == LookupOutputMode::TfIdf {
        return Err(wrong(format!("{of}: output_mode is tf_idf"), "hashes know no frequencies: use count"));
    }
    mode.encode(bins, num_bins as usize, &[])
}

/// The bin of a text among so many, which are some.
pub(super) fn bin(value: &str, bins: u64, salt: Option<[u64; 2]>) -> u64 {
    let hash = match salt {
        Some(key) => siphash(key, value.as_bytes()),
        None => fingerprint64(value.as_bytes()),
    };
    hash % bins
}

/// Where TensorFlow's crossed hashes begin.
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

/// Eight bytes from `at` on; those beyond the end are 0, which no caller reads.
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

/// FarmHash's `Fingerprint64`, which is its hash `na`. Source: Geoff Pike, FarmHash.
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

/// What the first and the last 16 bytes come to, for 17 to 64 of them.
fn halves(s: &[u8], first: u64, mul: u64) -> (u64, u64) {
    let len = s.len();
    let (a, b) = (u64_at(s, 0).wrapping_mul(first), u64_at(s, 8));
    let (c, d) = (u64_at(s, len - 8).wrapping_mul(mul), u64_at(s, len - 16).wrapping_mul(K2));
    let u = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    (u, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c))
}

/// 32 bytes from `at` on.
fn weak_hash(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|k| u64_at(s, at + k));
    let a = a.wrapping_add(w);
    let mut b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    let a = a.wrapping_add(x).wrapping_add(y);
    b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

/// What the loop over blocks of 64 bytes carries.
struct FarmHashState {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl FarmHashState {
    /// One block; `last` is the multiplier of the last one, which is taken apart a little otherwise.
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
    reason = "deprecated as a hasher of maps; of a fixed algorithm there is no other in the standard library"
)]
fn siphash([first, second]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(first, second);
    hasher.write(bytes);
    hasher.finish()
}
