//! Comparators that compare the elements of one operand as they are: each element has a key, and the order of keys, as
//! whole numbers, is that of the elements. Functions of elements are operands of their own by then (the compiler's pass
//! `sort_keys`).

use systole_ir::op::{Compare, CompareType, Direction};
use systole_ir::{DType, Graph, Op};

/// A comparator as keys of the elements of one operand.
pub struct SortKeys {
    /// The operand that is compared.
    pub operand: usize,
    compare: Compare,
    is_descending: bool,
    dtype: DType,
}

impl SortKeys {
    /// `None`: the comparator is no comparison, below or above, of both elements of an operand.
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

    /// Bits of a key.
    pub fn bits(&self) -> usize {
        8 * self.dtype.size()
    }

    /// Appends the keys of `n` elements from `first` on, `step` elements apart. Returns whether each has its place in the
    /// order: a NaN has none, unless the order is total.
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
        // Where −0 equals 0, and NaN is apart.
        let is_partial = is_float && self.compare.compare_type != CompareType::TotalOrder;
        let infinity = if is_partial { infinity(self.dtype) } else { mask };
        let is_signed = is_float || self.dtype.is_signed_int();
        let mut has_place = true;
        keys.extend((0..n).map(|i| {
            // SAFETY: by the caller's promise.
            let mut bits: u64 = unsafe { x.add(i * step).read_unaligned() }.into();
            has_place &= bits & (mask ^ sign) <= infinity;
            if is_partial && bits == sign {
                bits = 0;
            }
            let key = match is_float && bits & sign != 0 {
                true => bits ^ mask,
                false => bits ^ if is_signed { sign } else { 0 },
            };
            key ^ turned
        }));
        has_place
    }
}

/// The bits of infinity.
fn infinity(dtype: DType) -> u64 {
    systole_ir::Scalar::Float(f64::INFINITY).to_bits(dtype)
}
