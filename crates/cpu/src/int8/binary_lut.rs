//! Broadcasting binary int8 ops (max, mul, add …): an exact arithmetic formula if there is one, else a lookup table.

use crate::int8::isa::Int8Isa;
use crate::int8::output_quantization::{OutputQuantization, OutputScale, fast_ends};
use crate::int8::parallel_blocks::in_chunks;
use crate::machine::thread_pool::ThreadPool;
use crate::simd::int8::add_sub::LinearFormula;
use crate::simd::int8::binary_formula::{BinaryArgs as Call, BinaryFormula, ProductFormula, pairs};

/// Elements per parallel block.
const PART: usize = 1 << 14;
/// Fewest elements for which a vectorized call pays off.
const RUN: usize = 16;

/// Formula to try for a binary int8 function.
#[derive(Clone, Copy, Debug)]
pub enum FormulaHint {
    /// Minimum of both operands.
    Least,
    /// Maximum of both operands.
    Greatest,
    /// Weighted sum of both operands, with these slopes.
    Sum([f64; 2]),
    /// Product: zero points of both operands, multiplier and shift of the product, zero point of the result.
    Product([i32; 2], (i32, i32), i32),
    /// No known formula.
    Other,
}

/// A binary int8 function, given by its 256 × 256 lookup table.
#[derive(Debug)]
pub struct BinaryLut {
    entries: Box<[i8; 65536]>,
    bounds: [i8; 2],
    formula: Option<(Int8Isa, BinaryFormula)>,
}

fn byte(q: i8) -> usize {
    usize::from((q as u8) ^ 0x80)
}

impl BinaryLut {
    /// Creates the function from its table: `f(a, b) = entries[256 · (a + 128) + b + 128]`.
    pub fn new(unit: Int8Isa, entries: Box<[i8; 65536]>, likely: FormulaHint) -> BinaryLut {
        let bounds = [entries.iter().min(), entries.iter().max()].map(|v| v.copied().unwrap_or(0));
        let mut own = BinaryLut { entries, bounds, formula: None };
        own.formula = own.guess(unit, likely).map(|formula| (unit, formula)).filter(|f| own.holds(f));
        own
    }

    /// Whether an arithmetic formula replaces the lookup table.
    pub fn is_formula(&self) -> bool {
        self.formula.is_some()
    }

    fn guess(&self, unit: Int8Isa, likely: FormulaHint) -> Option<BinaryFormula> {
        let [low, high] = self.bounds.map(i32::from);
        match likely {
            FormulaHint::Least => Some(BinaryFormula::Least),
            FormulaHint::Greatest => Some(BinaryFormula::Greatest),
            FormulaHint::Sum(slopes) => {
                let exact: Vec<i64> = self.entries.iter().map(|y| i64::from(*y)).collect();
                LinearFormula::fit(slopes, &exact, [low, high]).map(BinaryFormula::Linear)
            }
            FormulaHint::Product(zeros, scale, zero) => {
                let scale = OutputScale::Fixed(vec![scale]);
                let output = OutputQuantization { bias: None, scale, zero, low, high };
                let near = fast_ends(unit, &output, &[0], &[255 * 255])?.near?;
                let first = |list: &[f32]| list.first().copied();
                Some(BinaryFormula::Product(ProductFormula {
                    zeros,
                    constant: -*near.shift.first()?,
                    line: [first(&near.high)?, first(&near.low)?],
                    start: first(&near.start)?,
                    below: first(if near.is_signed { &near.below } else { &near.start })?,
                    limit: *near.limit.first()?,
                }))
            }
            FormulaHint::Other => None,
        }
    }

    /// Whether the formula equals the table for all pairs.
    fn holds(&self, formula: &(Int8Isa, BinaryFormula)) -> bool {
        let all: [i8; 256] = std::array::from_fn(|i| (i as i32 - 128) as i8);
        let mut y = [0; 256];
        self.entries.as_chunks::<256>().0.iter().zip(&all).all(|(row, a)| {
            self.call(formula, &[*a; 256], &all, &mut y);
            y == *row
        })
    }

    /// Computes `y[i] = f(a[i], b[i])`, or `f(a[i], b[0])` if `b` has one element.
    fn call(&self, (unit, formula): &(Int8Isa, BinaryFormula), a: &[i8], b: &[i8], y: &mut [i8]) {
        assert!(a.len() >= y.len() && (b.len() == 1 || b.len() >= y.len()), "{} and {}", a.len(), b.len());
        let call = Call {
            how: formula,
            bounds: self.bounds,
            x: a.as_ptr(),
            y: b.as_ptr(),
            is_one: b.len() == 1,
            n: y.len(),
            to: y.as_mut_ptr(),
        };
        // SAFETY: the machine supports the instruction set's level; the operands are as long as the result.
        unsafe { pairs(unit.level())(&call) };
    }

    /// Applies the binary int8 function: `y[i] = f(a[i], b[(i / inner) % b.len()])`.
    pub fn run(&self, team: &ThreadPool, a: &[i8], b: &[i8], inner: usize, y: &mut [i8]) {
        let inner = inner.max(1);
        if b.is_empty() {
            return;
        }
        let is_long = if inner == 1 { b.len() >= RUN } else { inner >= RUN };
        let formula = self.formula.as_ref().filter(|_| is_long);
        let work = a.len() as f64 * if formula.is_some() { 0.2 } else { 1.0 };
        in_chunks(team, y, PART, work, |n, y| {
            let first = n * PART;
            match formula {
                Some(formula) => self.by_formula(formula, &a[first..], (b, inner, first), y),
                None => self.by_table(&a[first..], (b, inner, first), y),
            }
        });
    }

    fn by_formula(
        &self,
        formula: &(Int8Isa, BinaryFormula),
        mut a: &[i8],
        (b, inner, first): (&[i8], usize, usize),
        mut y: &mut [i8],
    ) {
        let (mut at, mut within) = (first / inner % b.len(), first % inner);
        while !y.is_empty() {
            let n = if inner == 1 { b.len() - at } else { inner - within }.min(y.len());
            let (now, later) = y.split_at_mut(n);
            let other = if inner == 1 && n > 1 { &b[at..] } else { &b[at..at + 1] };
            self.call(formula, a, other, now);
            (a, y) = (&a[n..], later);
            at = if inner == 1 { (at + n) % b.len() } else { (at + 1) % b.len() };
            within = 0;
        }
    }

    fn by_table(&self, a: &[i8], (b, inner, first): (&[i8], usize, usize), y: &mut [i8]) {
        let (mut at, mut left) = (first / inner % b.len(), inner - first % inner);
        for (y, a) in y.iter_mut().zip(a) {
            *y = self.entries[byte(*a) << 8 | byte(b[at])];
            left -= 1;
            if left == 0 {
                (left, at) = (inner, if at + 1 == b.len() { 0 } else { at + 1 });
            }
        }
    }
}
