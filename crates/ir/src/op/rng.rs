//! rng_bit_generator: random bits from an explicit state (Philox and Threefry), identical to XLA's.
//!
//! The specification leaves the bits to the implementation. These match XLA bit for bit, so that a program draws the
//! same numbers on every backend.

use super::sample::sample;
use super::*;
use systole_base::rng::philox4x32;

impl RngAlgorithm {
    /// Name of the random number generator in StableHLO text.
    pub fn name(self) -> &'static str {
        match self {
            RngAlgorithm::Philox => "PHILOX",
            RngAlgorithm::ThreeFry => "THREE_FRY",
        }
    }
}

impl OpRule for RngBitGenerator {
    lowered!(Draw);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let state = args[0];
        require!(
            state.rank() == 1 && state.dtype == DType::U64,
            "I2",
            "the state has type {state}, expected ui64[2]"
        );
        let fits = match self.algorithm {
            RngAlgorithm::Philox => state.shape[0] == 2 || state.shape[0] == 3,
            RngAlgorithm::ThreeFry => state.shape[0] == 2,
        };
        require!(fits, "C2", "{} does not support a state of type {state}", self.algorithm.name());
        require!(
            self.ty.dtype.is_unsigned_int(),
            "-",
            "expected an unsigned integer result type, got {}",
            self.ty.dtype
        );
        Ok(smallvec![state.clone(), self.ty.clone()])
    }

    fn result_count(&self, _: usize) -> usize {
        2
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let state: Vec<u64> = args[0].as_slice::<u64>()?.to_vec();
        let (next, bits) = match self.algorithm {
            RngAlgorithm::Philox => philox(&state, &outs[1]),
            RngAlgorithm::ThreeFry => threefry(&state, &outs[1]),
        };
        Ok(vec![Literal::from_slice([next.len()], &next)?, bits])
    }

    fn vjp(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero]
    }

    fn attrs(&self) -> AttrList {
        vec![("rng_algorithm", Attr::Enum("rng_algorithm", self.algorithm.name().into()))]
    }

    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        // Ten rounds of about ten operations per four words.
        OpCost { flops: 25.0 * outs[1].elements() as f64, bytes: moved_bytes(args, outs) }
    }
}

/// Not split: the bits of an element depend on the shape of the whole array.
impl StructuralOp for RngBitGenerator {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let algorithm = match s.keyword("rng_algorithm", "rng_algorithm")? {
            "PHILOX" | "DEFAULT" => RngAlgorithm::Philox,
            "THREE_FRY" => RngAlgorithm::ThreeFry,
            other => return Err(format!("unknown generator algorithm `{other}`")),
        };
        Ok(RngBitGenerator { algorithm, ty: s.result(1)?.clone() })
    }

    fn samples() -> Vec<OpSample> {
        const STATE: ArgDomain = ArgDomain::Uniform(0.0, 1e15);
        let case = |algorithm: RngAlgorithm, words: usize, dtype: DType, shape: &[usize]| {
            let params = [(TensorType::new(DType::U64, [words]), STATE)];
            let dims: String = shape.iter().map(|d| format!("_{d}")).collect();
            let label = format!("{}{words}_{dtype}{dims}", algorithm.name());
            sample(label, &params, 0, false, |x| {
                let (next, bits) = x[0].random_bits(TensorType::new(dtype, shape), algorithm);
                vec![next, bits]
            })
        };
        let shapes: [&[usize]; 7] = [&[], &[3], &[3, 5], &[5, 4], &[5, 3, 7], &[7, 7], &[0, 3]];
        let mut all = Vec::new();
        for (algorithm, words) in
            [(RngAlgorithm::Philox, 2), (RngAlgorithm::Philox, 3), (RngAlgorithm::ThreeFry, 2)]
        {
            for dtype in DType::ALL.into_iter().filter(|d| d.is_unsigned_int()) {
                all.extend(shapes.iter().map(|s| case(algorithm, words, dtype, s)));
            }
        }
        all
    }
}

fn low_high(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Philox: blocks of four words at consecutive 128-bit counters, in order. 64-bit elements use two words, low first; 8-
/// and 16-bit elements use the low bits of a whole word.
fn philox(state: &[u64], ty: &TensorType) -> (Vec<u64>, Literal) {
    // With a two-word state the key is also the high half of the counter.
    let (low, high) = (state[1], if state.len() == 3 { state[2] } else { state[0] });
    let counter = (high as u128) << 64 | low as u128;
    let wide = ty.dtype.size() == 8;
    let per_block = if wide { 2 } else { 4 };
    let mut out = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let at = counter.wrapping_add((i / per_block) as u128);
        let ([a, b], [c, d]) = (low_high(at as u64), low_high((at >> 64) as u64));
        let words = philox4x32([a, b, c, d], low_high(state[0]));
        let bits = if wide {
            words[i % 2 * 2] as u64 | (words[i % 2 * 2 + 1] as u64) << 32
        } else {
            words[i % 4] as u64
        };
        out.set(i, Scalar::from_bits(ty.dtype, bits));
    }
    let next = counter.wrapping_add(ty.elements().div_ceil(per_block) as u128);
    let mut next_state = vec![state[0], next as u64, (next >> 64) as u64];
    next_state.truncate(state.len());
    (next_state, out.finish())
}

/// Threefry: one counter per two words. The pair is adjacent along the first even dimension (or the largest, if all are
/// odd), so that halves of a sharded array need only their own counters.
fn threefry(state: &[u64], ty: &TensorType) -> (Vec<u64>, Literal) {
    let key = low_high(state[0]);
    let block = |i: usize| threefry2x32(low_high(state[1].wrapping_add(i as u64)), key);
    let mut out = LiteralBuilder::new(ty.clone());
    if ty.dtype.size() == 8 {
        for i in 0..ty.elements() {
            let [a, b] = block(i);
            out.set(i, Scalar::from_bits(ty.dtype, a as u64 | (b as u64) << 32));
        }
        return (vec![state[0], state[1].wrapping_add(ty.elements() as u64)], out.finish());
    }
    let split = split_dim(&ty.shape);
    let mut half = ty.shape.to_vec();
    if let Some(d) = split {
        half[d] = half[d].div_ceil(2);
    }
    let half = Shape::from(half);
    for (i, mut index) in ty.shape.indices().enumerate() {
        let mut which = 0;
        if let Some(d) = split {
            which = index[d] % 2;
            index[d] /= 2;
        }
        out.set(i, Scalar::from_bits(ty.dtype, block(half.ravel(&index))[which] as u64));
    }
    (vec![state[0], state[1].wrapping_add(half.elements() as u64)], out.finish())
}

fn split_dim(shape: &Shape) -> Option<usize> {
    let even = (0..shape.rank()).find(|&d| shape[d].is_multiple_of(2));
    even.or_else(|| (0..shape.rank()).rev().max_by_key(|&d| shape[d]))
}

/// Computes one Threefry2x32-20 block: two u32 from a 64-bit counter and a 64-bit key. Salmon et al., "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011.
pub fn threefry2x32(counter: [u32; 2], key: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for group in 0..5 {
        for r in ROTATIONS[group % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(r) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    x
}

/// Random draws from this tensor as the generator state. Each method returns the next state first.
impl Tensor {
    /// `state: u64[2 or 3] → (u64[…], T[…])`: random bits.
    #[track_caller]
    pub fn random_bits(&self, ty: TensorType, algorithm: RngAlgorithm) -> (Tensor, Tensor) {
        let mut outs = self.builder().emit(RngBitGenerator { algorithm, ty }, &[self]);
        let bits = outs.remove(1);
        (outs.remove(0), bits)
    }

    /// `state: u64[2 or 3] → (u64[…], f32[shape])`: uniform in [0, 1), 24 bits, with Philox.
    ///
    /// ```
    /// use systole_ir::{interp, DType, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let state = g.parameter(TensorType::new(DType::U64, [2]), "state");
    /// let (next, u) = state.random_uniform(&[1000]);
    /// let graph = g.finish(&[next, u.mean_all()]).unwrap();
    /// let out = interp::run(&graph, &[&Literal::from_slice([2], &[7u64, 0]).unwrap()]).unwrap();
    /// assert_eq!(out[0].as_slice::<u64>().unwrap(), [7, 250]);
    /// assert!((out[1].to_f32s()[0] - 0.5).abs() < 0.05);
    /// ```
    #[track_caller]
    pub fn random_uniform(&self, shape: &[usize]) -> (Tensor, Tensor) {
        let (next, bits) = self.random_bits(TensorType::new(DType::U32, shape), RngAlgorithm::Philox);
        let top = bits.shift_right_logical(&bits.scalar_like(8.0));
        (next, top.convert(DType::F32) * (1.0 / (1u32 << 24) as f64))
    }

    /// `state: u64[2 or 3] → (u64[…], f32[shape])`: standard normal (Box–Muller), with Philox.
    #[track_caller]
    pub fn random_normal(&self, shape: &[usize]) -> (Tensor, Tensor) {
        let pairs: Vec<usize> = std::iter::once(2).chain(shape.iter().copied()).collect();
        let (next, uniform) = self.random_uniform(&pairs);
        let (first, second) =
            (uniform.slice_dim(0, 0, 1).reshape(shape), uniform.slice_dim(0, 1, 2).reshape(shape));
        // 1 − u is in (0, 1], so its logarithm is finite.
        let radius = ((1.0 - first).log() * -2.0).sqrt();
        (next, radius * (second * std::f64::consts::TAU).cosine())
    }

    /// `state: u64[2 or 3] → (u64[…], bool[shape])`: true with probability `p`, with Philox.
    #[track_caller]
    pub fn random_bernoulli(&self, p: f64, shape: &[usize]) -> (Tensor, Tensor) {
        let (next, uniform) = self.random_uniform(shape);
        let p = uniform.scalar_like(p);
        (next, uniform.less(&p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_matches_the_published_vectors() {
        // Random123 1.14, kat_vectors.
        assert_eq!(threefry2x32([0; 2], [0; 2]), [0x6b200159, 0x99ba4efe]);
        assert_eq!(threefry2x32([!0; 2], [!0; 2]), [0x1cb996fc, 0xbb002be7]);
        assert_eq!(
            threefry2x32([0x243f6a88, 0x85a308d3], [0x13198a2e, 0x03707344]),
            [0xc4923a9c, 0x483df7a0]
        );
    }

    fn draw(algorithm: RngAlgorithm, state: &[u64], dtype: DType, shape: &[usize]) -> (Vec<u64>, Vec<u64>) {
        let state = Literal::from_slice([state.len()], state).unwrap();
        let op = RngBitGenerator { algorithm, ty: TensorType::new(dtype, shape) };
        let outs = op.infer(&[state.ty()]).unwrap();
        let out = op.eval(&mut EvalCx::default(), &[&state], &outs).unwrap();
        let bits = (0..outs[1].elements()).map(|i| out[1].get(i).to_bits(dtype)).collect();
        (out[0].as_slice::<u64>().unwrap().to_vec(), bits)
    }

    #[test]
    fn bits_are_those_of_xla() {
        // jax.lax.rng_bit_generator(uint64([5, 7]), shape, dtype, algorithm) of JAX 0.10.2 on a CPU.
        use RngAlgorithm::*;
        type Case<'a> = (RngAlgorithm, DType, &'a [usize], u64, &'a [u64]);
        let cases: &[Case<'_>] = &[
            (Philox, DType::U8, &[2, 3], 9, &[241, 168, 167, 57, 60, 177]),
            (Philox, DType::U16, &[3], 8, &[20977, 23464, 2727]),
            (Philox, DType::U32, &[], 8, &[1957188081]),
            (
                Philox,
                DType::U64,
                &[3],
                9,
                &[14169269631707533809, 12636950168311171751, 14822611576293642300],
            ),
            (Philox, DType::U64, &[0, 2], 7, &[]),
            (ThreeFry, DType::U8, &[3], 9, &[115, 216, 69]),
            (ThreeFry, DType::U32, &[], 8, &[4000641395]),
            (
                ThreeFry,
                DType::U32,
                &[2, 3],
                10,
                &[4000641395, 10964293, 3804237681, 1063621336, 2057536082, 1604586794],
            ),
            (
                ThreeFry,
                DType::U64,
                &[3],
                10,
                &[4568218857448468851, 8837050182540938565, 6891647807627726705],
            ),
            (ThreeFry, DType::U16, &[0, 2], 7, &[]),
        ];
        for (algorithm, dtype, shape, counter, bits) in cases {
            let (state, drawn) = draw(*algorithm, &[5, 7], *dtype, shape);
            assert_eq!(state, [5, *counter], "{algorithm:?} {dtype} {shape:?}");
            assert_eq!(drawn, *bits, "{algorithm:?} {dtype} {shape:?}");
        }
        // The longest dimension is split if all are odd.
        let (state, drawn) = draw(ThreeFry, &[5, 7], DType::U32, &[3, 5]);
        assert_eq!(state, [5, 16]);
        assert_eq!(drawn[..6], [4000641395, 1063621336, 10964293, 2057536082, 3804237681, 3127050898]);
    }

    #[test]
    fn a_wide_counter_carries() {
        let (state, _) = draw(RngAlgorithm::Philox, &[5, u64::MAX, 9], DType::U32, &[8]);
        assert_eq!(state, [5, 1, 10]);
        let (state, _) = draw(RngAlgorithm::Philox, &[5, u64::MAX], DType::U32, &[8]);
        assert_eq!(state, [5, 1]);
    }
}
