//! Sort keys: maps elements to unsigned integers whose order is the order of the comparator.
//!
//! Used for comparators that compare the elements of one operand directly. Functions of elements are separate operands
//! already (the compiler's pass `sort_keys`).

use systole_ir::op::{Compare, CompareType, Direction};
use systole_ir::{DType, Graph, Op};

/// Integer keys of the elements of one operand that replace a comparator.
pub struct SortKeys {
    /// Operand that is compared.
    pub operand: usize,
    compare: Compare,
    is_descending: bool,
    dtype: DType,
}

impl SortKeys {
    /// Returns the keys of a comparator. `None` if it is not a `<` or `>` comparison of both elements of an operand.
    pub fn of(body: &Graph) -> Option<SortKeys> {
        let node = body.node(*body.results.first()?);
        let Op::Compare(compare) = &node.op else { return None };
        let [p, q] = [0, 1].map(|i| match &body.node(node.inputs[i]).op {
            Op::Parameter(p) => Some(p.index),
            _ => None,
        });
        let (p, q) = (p?, q?);
        let is_descending = match compare.direction {
            Direction::Lt => p > q,
            Direction::Gt => p < q,
            _ => return None,
        };
        let dtype = body.ty(node.inputs[0]).dtype;
        (p / 2 == q / 2 && p != q).then_some(SortKeys {
            operand: p / 2,
            compare: *compare,
            is_descending,
            dtype,
        })
    }

    /// Number of bits of a sort key.
    pub fn bits(&self) -> usize {
        8 * self.dtype.size()
    }

    /// Appends the keys of `n` elements starting at `first`, `step` elements apart. Returns whether all elements are
    /// ordered: a NaN is not, unless the order is total.
    ///
    /// # Safety
    /// These elements can be read.
    pub unsafe fn keys(&self, first: *const u8, step: usize, n: usize, keys: &mut Vec<u64>) -> bool {
        // SAFETY: by the caller's promise; the sizes are those of the types.
        unsafe {
            match self.dtype.size() {
                1 => self.of_words(first, step, n, keys),
                2 => self.of_words(first.cast::<u16>(), step, n, keys),
                4 => self.of_words(first.cast::<u32>(), step, n, keys),
                _ => self.of_words(first.cast::<u64>(), step, n, keys),
            }
        }
    }

    /// Appends the keys of elements whose bits are `W`.
    ///
    /// # Safety
    /// As for [`SortKeys::keys`].
    unsafe fn of_words<W: Copy + Into<u64>>(
        &self,
        x: *const W,
        step: usize,
        n: usize,
        keys: &mut Vec<u64>,
    ) -> bool {
        let bits = self.bits();
        let (sign, mask) = (1u64 << (bits - 1), u64::MAX >> (64 - bits));
        let turned = if self.is_descending { mask } else { 0 };
        let is_float = self.dtype.is_float();
        // Whether −0 equals 0, and NaN is unordered.
        let is_partial = is_float && self.compare.compare_type != CompareType::TotalOrder;
        let infinity = if is_partial { infinity(self.dtype) } else { mask };
        let is_signed = is_float || self.dtype.is_signed_int();
        let (base, of_negative) = (if is_signed { sign } else { 0 }, if is_float { mask } else { 0 });
        let of_sign = if is_partial { 0 } else { sign };
        let mut beyond = 0;
        // By arithmetic alone: the signs of elements are unpredictable, so branches would be mispredicted half of the
        // time.
        let key = |i: usize| {
            // SAFETY: by the caller's promise.
            let own: u64 = unsafe { x.add(i * step).read_unaligned() }.into();
            let own = if own == sign { of_sign } else { own };
            let all_if_negative = ((own << (64 - bits)) as i64 >> 63) as u64;
            (own & (mask ^ sign), own ^ (base | (of_negative & all_if_negative)) ^ turned)
        };
        keys.reserve(n);
        for i in 0..n {
            let (size, key) = key(i);
            beyond = size.max(beyond);
            keys.push(key);
        }
        beyond <= infinity
    }
}

/// Returns the bits of infinity.
fn infinity(dtype: DType) -> u64 {
    systole_ir::Scalar::Float(f64::INFINITY).to_bits(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::Scalar;
    use systole_ir::rng::RandomStream;

    /// Compares the keys of random bits with a comparison of the numbers.
    fn check<W: Copy + Into<u64> + TryFrom<u64>>(
        dtype: DType,
        compare_type: CompareType,
        s: &mut RandomStream,
    ) {
        let bits = 8 * dtype.size();
        let (sign, mask) = (1u64 << (bits - 1), u64::MAX >> (64 - bits));
        let edges = [0, 1, 2, sign, sign | 1, sign - 1, sign - 2, mask, mask - 1, infinity_or(dtype, 3)];
        let all: Vec<u64> = edges.into_iter().chain((0..60).map(|_| s.next_u64() & mask)).collect();
        let number = |bits: u64| Scalar::from_bits(dtype, bits);
        let is_nan = |bits: u64| matches!(number(bits), Scalar::Float(v) if v.is_nan());
        let is_partial = dtype.is_float() && compare_type != CompareType::TotalOrder;
        let words = |all: &[u64]| all.iter().map(|b| W::try_from(*b).ok().expect("fits")).collect::<Vec<W>>();
        for direction in [Direction::Lt, Direction::Gt] {
            let compare = Compare { direction, compare_type };
            let keys = SortKeys { operand: 0, compare, is_descending: direction == Direction::Gt, dtype };
            let of = |all: &[u64]| {
                let (words, mut to) = (words(all), vec![7]);
                // SAFETY: `words` has all elements.
                let has_place = unsafe { keys.of_words(words.as_ptr(), 1, words.len(), &mut to) };
                (has_place, to.split_off(1))
            };
            let some: Vec<u64> = all.iter().copied().filter(|b| !(is_partial && is_nan(*b))).collect();
            assert_eq!(of(&all).0, some.len() == all.len(), "{dtype}, {compare_type:?}");
            let (has_place, made) = of(&some);
            assert!(has_place && made.iter().all(|key| *key <= mask), "{dtype}, {compare_type:?}");
            for (a, key) in some.iter().zip(&made) {
                for (b, other) in some.iter().zip(&made) {
                    let before = Op::from(compare).rule().eval_scalar(&[number(*a), number(*b)], dtype);
                    assert_eq!(before, Some(Scalar::Bool(key < other)), "{dtype}: {a:#x} and {b:#x}");
                }
            }
        }
    }

    fn infinity_or(dtype: DType, other: u64) -> u64 {
        if dtype.is_float() { infinity(dtype) } else { other }
    }

    #[test]
    fn keys_have_the_order_of_their_numbers() {
        use CompareType::{Float, Signed, TotalOrder, Unsigned};
        let mut s = RandomStream::new(3, 1, 4);
        check::<u8>(DType::I8, Signed, &mut s);
        check::<u8>(DType::U8, Unsigned, &mut s);
        check::<u16>(DType::I16, Signed, &mut s);
        check::<u16>(DType::U16, Unsigned, &mut s);
        check::<u32>(DType::I32, Signed, &mut s);
        check::<u32>(DType::U32, Unsigned, &mut s);
        check::<u64>(DType::I64, Signed, &mut s);
        check::<u64>(DType::U64, Unsigned, &mut s);
        for of_floats in [Float, TotalOrder] {
            check::<u16>(DType::BF16, of_floats, &mut s);
            check::<u16>(DType::F16, of_floats, &mut s);
            check::<u32>(DType::F32, of_floats, &mut s);
            check::<u64>(DType::F64, of_floats, &mut s);
        }
    }
}
