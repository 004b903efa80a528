//! Counter-based random number generator (Philox4x32-10): each draw is a pure function of (seed, stream, index). The
//! random state of a training run is a few integers, and any draw can be recomputed on its own.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

/// Computes one Philox4x32-10 block: four u32 from a 128-bit counter and a 64-bit key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let p0 = 0xD251_1F53u64 * c[0] as u64;
        let p1 = 0xCD9E_8D57u64 * c[2] as u64;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Hashes a name ("shuffle", a layer's path) to a 64-bit stream number: [`fnv1a`], then [`mix`].
pub fn hash_name(name: &str) -> u64 {
    mix(fnv1a(name.as_bytes()))
}

/// Computes the 64-bit FNV-1a hash of bytes (RFC 9923). Not cryptographic: detects damage, not forgery.
///
/// ```
/// assert_eq!(systole_base::rng::fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
/// ```
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Mixes 64 bits bijectively (SplitMix64's finalizer).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Sequence of random draws keyed by (seed, stream, index). Cheap to create: use one per purpose.
///
/// ```
/// use systole_base::rng::{hash_name, RandomStream};
/// let mut a = RandomStream::new(7, hash_name("augment"), 42);
/// let mut b = RandomStream::new(7, hash_name("augment"), 42);
/// assert_eq!(a.next_u32(), b.next_u32());
/// ```
#[derive(Clone, Debug)]
pub struct RandomStream {
    key: [u32; 2],
    index: u64,
    block: u64,
    buffer: [u32; 4],
    used: usize,
}

impl RandomStream {
    /// Creates the sequence for element `index` of `stream` under `seed`.
    pub fn new(seed: u64, stream: u64, index: u64) -> RandomStream {
        let k = mix(seed ^ mix(stream));
        RandomStream { key: [k as u32, (k >> 32) as u32], index, block: 0, buffer: [0; 4], used: 4 }
    }

    /// Number of [`RandomStream::next_u32`] values drawn so far.
    pub fn drawn(&self) -> u64 {
        (self.block * 4 + self.used as u64).wrapping_sub(4)
    }

    /// Seeks to the state after `drawn` values of [`RandomStream::next_u32`].
    pub fn seek(&mut self, drawn: u64) {
        self.block = drawn / 4;
        self.used = 4;
        for _ in 0..drawn % 4 {
            self.next_u32();
        }
    }

    /// Returns the next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            let counter =
                [self.block as u32, (self.block >> 32) as u32, self.index as u32, (self.index >> 32) as u32];
            self.buffer = philox4x32(counter, self.key);
            self.block += 1;
            self.used = 0;
        }
        self.used += 1;
        self.buffer[self.used - 1]
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32() as u64;
        low | (self.next_u32() as u64) << 32
    }

    /// Draws uniformly from [0, 1), 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / (1 << 24) as f32)
    }

    /// Draws uniformly from [0, 1), 53 bits.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Draws uniformly from [low, high).
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    /// Draws an integer uniformly from [0, n), without bias. `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Lemire's method: rejects the few low products that would favor small values.
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = self.next_u64() as u128 * n as u128;
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Draws from the standard normal distribution (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.uniform_f64();
        let v = self.uniform_f64();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

crate::renamed! { Stream => RandomStream }
