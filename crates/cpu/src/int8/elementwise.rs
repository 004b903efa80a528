//! Element-wise int8 kernels: 256-entry lookup tables, and add/subtract of two tensors of the same shape.

use crate::int8::isa::Int8Isa;
use crate::int8::parallel_blocks::in_chunks;
use crate::machine::thread_pool::ThreadPool;
use crate::simd::int8::add_sub::{self, AddArgs, FixedPointFactor, LinearFormula};
use crate::simd::int8::binary_formula::{BinaryArgs, BinaryFormula, pairs};

/// Elements per parallel block.
const PART: usize = 1 << 14;

fn byte(q: i8) -> usize {
    usize::from((q as u8) ^ 0x80)
}

/// Applies a lookup table: `y[i] = entries[x[i] + 128]`.
pub fn table(team: &ThreadPool, entries: &[i8; 256], x: &[i8], y: &mut [i8]) {
    let work = x.len() as f64 * 0.5;
    in_chunks(team, y, PART, work, |n, y| {
        for (y, x) in y.iter_mut().zip(&x[n * PART..]) {
            *y = entries[byte(*x)];
        }
    });
}

/// Adds or subtracts two int8 tensors of the same shape (TFLite `ADD`, `SUB`).
#[derive(Clone, Copy, Debug)]
pub struct Int8Add(add_sub::AddParams, Option<LinearFormula>);

impl Int8Add {
    /// Creates the op. `zeros`, `factors`: zero points and scales `(multiplier, shift)` of the operands, which are
    /// shifted left by 20 bits; `factor`: scale of the sum. Returns `None` if a factor is 1 or more.
    pub fn new(
        zeros: [i32; 2],
        factors: [(i32, i32); 2],
        is_difference: bool,
        factor: (i32, i32),
        (zero, low, high): (i32, i32, i32),
    ) -> Option<Int8Add> {
        let below_1 = |(multiplier, shift): (i32, i32)| {
            let holds = multiplier >= 0 && (-29..=0).contains(&shift);
            holds.then_some(FixedPointFactor { multiplier, right: -shift })
        };
        let holds = zeros.iter().all(|z| (-128..=127).contains(z));
        let factors = [below_1(factors[0])?, below_1(factors[1])?];
        let own =
            add_sub::AddParams { zeros, factors, is_difference, factor: below_1(factor)?, zero, low, high };
        holds.then(|| Int8Add(own, LinearFormula::of(&own)))
    }

    /// Whether a linear integer formula reproduces the result for all pairs of operands.
    pub fn is_linear(&self) -> bool {
        self.1.is_some()
    }

    /// Computes `a: i8[N], b: i8[N] → y: i8[N]`.
    pub fn run(&self, unit: Int8Isa, team: &ThreadPool, a: &[i8], b: &[i8], y: &mut [i8]) {
        assert!(a.len() == y.len() && b.len() == y.len(), "{} and {} → {}", a.len(), b.len(), y.len());
        let [low, high] = [self.0.low, self.0.high].map(|end| end as i8);
        let formula = self.1.map(BinaryFormula::Linear);
        in_chunks(team, y, PART, a.len() as f64 * 0.3, |n, y| {
            let (x, n, to) = ([&a[n * PART..], &b[n * PART..]].map(<[i8]>::as_ptr), y.len(), y.as_mut_ptr());
            // SAFETY: the machine supports the instruction set's level; the operands are as long as the result.
            unsafe {
                match &formula {
                    Some(how) => pairs(unit.level())(&BinaryArgs {
                        how,
                        bounds: [low, high],
                        x: x[0],
                        y: x[1],
                        is_one: false,
                        n,
                        to,
                    }),
                    None => add_sub::addition(unit.level())(&AddArgs { how: &self.0, x, n, to }),
                }
            }
        });
    }
}
