//! Counter-based random numbers: any draw is a pure function of (seed, what, index), so the state of a
//! whole training run is a few integers and any part can be drawn again alone.
//!
//! Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

/// One Philox4x32-10 block: four u32 from a 128-bit counter and a 64-bit key.
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

/// A 64-bit hash of text, to turn names ("shuffle", a layer's path) into stream numbers: [`fnv1a`], then mixed.
pub fn hash_name(name: &str) -> u64 {
    mix(fnv1a(name.as_bytes()))
}

/// The 64-bit FNV-1a hash of bytes (RFC 9923): finds damage and differences, not forgeries.
///
/// ```
/// assert_eq!(systole_base::rng::fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
/// ```
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// A bijective 64-bit mixer (SplitMix64's finaliser).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of draws keyed by (seed, stream, index). Cheap to make: make one for each thing that is drawn.
///
/// ```
/// use systole_base::rng::{hash_name, Stream};
/// let mut a = Stream::new(7, hash_name("augment"), 42);
/// let mut b = Stream::new(7, hash_name("augment"), 42);
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
    /// The draws for element `index` of `stream` under `seed`.
    pub fn new(seed: u64, stream: u64, index: u64) -> RandomStream {
        let k = mix(seed ^ mix(stream));
        RandomStream { key: [k as u32, (k >> 32) as u32], index, block: 0, buffer: [0; 4], used: 4 }
    }

    /// How many [`RandomStream::next_u32`] this stream has given.
    pub fn drawn(&self) -> u64 {
        (self.block * 4 + self.used as u64).wrapping_sub(4)
    }

    /// Continues as a stream that has given so many [`RandomStream::next_u32`].
    pub fn seek(&mut self, drawn: u64) {
        self.block = drawn / 4;
        self.used = 4;
        for _ in 0..drawn % 4 {
            self.next_u32();
        }
    }

    /// The next 32 random bits.
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

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32() as u64;
        low | (self.next_u32() as u64) << 32
    }

    /// Uniform in [0, 1), 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / (1 << 24) as f32)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    /// Uniform integer in [0, n), without bias. `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Lemire's method: reject the few low products that would favour small values.
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = self.next_u64() as u128 * n as u128;
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.uniform_f64();
        let v = self.uniform_f64();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}
