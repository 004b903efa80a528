//! Huffman decoding of a baseline JPEG scan: bit reader, lookup tables, block coefficients.

use std::cell::RefCell;
use std::rc::Rc;

/// Bits per table lookup: longer codes are rare.
const LOOK: u32 = 11;
/// Padding bytes after the data, so that eight bytes can be read anywhere.
pub(super) const SLACK: usize = 8;

/// Zigzag order: position in the block, row by row, of the k-th coefficient; indices past the end map to the last.
const ZIGZAG: [u8; 256] = {
    let mut places = [63u8; 256];
    let (mut k, mut diagonal) = (0, 0);
    while diagonal < 15 {
        let mut i = 0;
        while i <= diagonal {
            // Odd diagonals run downward, even ones upward.
            let (row, column) = if diagonal % 2 == 1 { (i, diagonal - i) } else { (diagonal - i, i) };
            if row < 8 && column < 8 {
                places[k] = (8 * row + column) as u8;
                k += 1;
            }
            i += 1;
        }
        diagonal += 1;
    }
    places
};

/// Returns the position in a block, row by row, of the k-th coefficient.
pub(super) fn place(k: usize) -> usize {
    usize::from(ZIGZAG[k])
}

/// Lookup table entry for the next bits: one code with its value, or two. Bits 0 to 5: total length; [`PARTIAL`]: the
/// value is not included; 8 to 15 and 16 to 23: growth of the coefficient index by the first and second code (0: no
/// second code); 24 to 31: length of the first; 32 to 47 and 48 to 63: both values (equal for one code), or the value's
/// size.
#[derive(Clone, Copy, PartialEq, Debug)]
struct HuffmanEntry(u64);

const PARTIAL: u64 = 1 << 7;
/// The code is longer than the lookup.
const LONGER: HuffmanEntry = HuffmanEntry(PARTIAL);
/// Index growth at the end of a block, and for an invalid code: beyond any sum of zero runs.
const END: u32 = 80;
const NO_CODE: u32 = 160;

impl HuffmanEntry {
    fn new(bits: u32, growth: u32, value: i32) -> HuffmanEntry {
        let (bits, growth, value) = (u64::from(bits), u64::from(growth), u64::from(value as u16));
        HuffmanEntry(bits | growth << 8 | bits << 24 | value << 32 | value << 48)
    }

    /// Returns an entry for a code of `length` bits without its value.
    fn partial(symbol: u8, length: u32) -> HuffmanEntry {
        let size = u32::from(symbol & 15);
        let growth = if symbol == 0 { END } else { u32::from(symbol >> 4) + 1 };
        HuffmanEntry(HuffmanEntry::new(length + size, growth, size as i32).0 | PARTIAL)
    }

    /// Completes an entry with its value; `held` starts with the code.
    #[inline]
    fn whole(self, held: u64) -> HuffmanEntry {
        let size = self.value() as u32;
        let bits = held << (self.bits() - size);
        let value = (bits >> 1 >> (63 - size)) as i32;
        // Values that start with 0 are negative.
        let below = if bits >> 63 == 0 { (1 << size) - 1 } else { 0 };
        HuffmanEntry::new(self.bits(), self.growth() as u32, value - below)
    }

    /// Combines two consecutive codes.
    fn and(self, next: HuffmanEntry) -> HuffmanEntry {
        let (bits, growth) = (u64::from(next.bits()), next.growth() as u64);
        HuffmanEntry((self.0 << 16 >> 16) + (bits | growth << 16 | next.0 >> 48 << 48))
    }

    #[inline]
    fn bits(self) -> u32 {
        self.0 as u32 & 63
    }

    #[inline]
    fn is_partial(self) -> bool {
        self.0 & PARTIAL != 0
    }

    #[inline]
    fn growth(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    #[inline]
    fn second_growth(self) -> usize {
        (self.0 >> 16 & 0xff) as usize
    }

    #[inline]
    fn first_bits(self) -> u32 {
        (self.0 >> 24) as u32 & 63
    }

    #[inline]
    fn value(self) -> i16 {
        (self.0 >> 32) as i16
    }

    #[inline]
    fn second_value(self) -> i16 {
        (self.0 >> 48) as i16
    }
}

/// Kind of coefficients that a table codes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HuffmanTableClass {
    /// DC coefficients, as differences.
    Dc,
    /// AC coefficients, with preceding zeros.
    Ac,
}

/// Huffman decoding table.
pub(super) struct HuffmanTable {
    class: HuffmanTableClass,
    counts: [u8; 16],
    /// Entries indexed by the next bits.
    entries: Box<[HuffmanEntry; 1 << LOOK]>,
    /// Upper bound of codes of `n` bits, shifted to 16 bits.
    ends: [u32; 17],
    /// Symbol index minus code, by code length.
    offsets: [i32; 17],
    list: Vec<u8>,
}

thread_local! {
    /// Recently built tables of this thread: images from one source mostly share them, and building is slow.
    static LAST: RefCell<Vec<Rc<HuffmanTable>>> = const { RefCell::new(Vec::new()) };
}
/// Number of tables to keep.
const KEPT: usize = 8;

impl HuffmanTable {
    /// Like [`HuffmanTable::new`], but reuses a recently built table.
    pub fn shared(class: HuffmanTableClass, counts: &[u8; 16], list: &[u8]) -> Option<Rc<HuffmanTable>> {
        LAST.with_borrow_mut(|last| {
            let is_same = |t: &&Rc<HuffmanTable>| t.class == class && t.counts == *counts && t.list == list;
            if let Some(table) = last.iter().find(is_same) {
                return Some(table.clone());
            }
            let table = Rc::new(HuffmanTable::new(class, counts, list)?);
            last.truncate(KEPT - 1);
            last.insert(0, table.clone());
            Some(table)
        })
    }

    /// Builds a table from the number of codes of 1 to 16 bits and the symbols in order. `None`: the code is
    /// oversubscribed, or a symbol is invalid for the class.
    fn new(class: HuffmanTableClass, counts: &[u8; 16], list: &[u8]) -> Option<HuffmanTable> {
        let is_known = |&symbol: &u8| match (class, symbol >> 4, symbol & 15) {
            (HuffmanTableClass::Dc, run, size) => run == 0 && size <= 11,
            (HuffmanTableClass::Ac, run, 0) => run == 0 || run == 15,
            (HuffmanTableClass::Ac, _, size) => size <= 10,
        };
        if !list.iter().all(is_known) {
            return None;
        }
        let (mut ends, mut offsets) = ([0; 17], [0; 17]);
        let mut entries = Box::new([LONGER; 1 << LOOK]);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..counts[length as usize - 1] {
                let symbol = *list.get(index)?;
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let same = entries.get_mut(first..first + (1 << (LOOK - length)))?;
                    fill(same, code, HuffmanEntry::partial(symbol, length));
                }
                (code, index) = (code + 1, index + 1);
            }
            if code > 1 << length {
                return None;
            }
            ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        if class == HuffmanTableClass::Ac {
            entries = paired(&entries);
        }
        Some(HuffmanTable { class, counts: *counts, entries, ends, offsets, list: list.to_vec() })
    }

    /// Returns the entry for `held`, the next bits.
    #[inline]
    fn next(&self, held: u64) -> HuffmanEntry {
        match self.entries[(held >> (64 - LOOK)) as usize] {
            entry if entry.is_partial() => self.rare(held, entry),
            entry => entry,
        }
    }

    #[cold]
    #[inline(never)]
    fn rare(&self, held: u64, entry: HuffmanEntry) -> HuffmanEntry {
        if entry == LONGER { self.long(held) } else { entry.whole(held) }
    }

    fn long(&self, held: u64) -> HuffmanEntry {
        let next = (held >> 48) as u32;
        let of = |length: usize| {
            let index = (next >> (16 - length)) as i32 + self.offsets[length];
            let symbol = *self.list.get(usize::try_from(index).ok()?)?;
            Some(HuffmanEntry::partial(symbol, length as u32).whole(held))
        };
        let length = (LOOK as usize + 1..17).find(|&n| next < self.ends[n]);
        length.and_then(of).unwrap_or(HuffmanEntry::new(0, NO_CODE, 0))
    }
}

/// Fills the entries that start with `code`, with the value if it is within the lookup.
fn fill(same: &mut [HuffmanEntry], code: u32, entry: HuffmanEntry) {
    let length = LOOK - same.len().ilog2();
    if entry.bits() > LOOK {
        return same.fill(entry);
    }
    let each = 1 << (LOOK - entry.bits());
    for (value, alike) in (0u64..).zip(same.chunks_mut(each)) {
        let held = u64::from(code) << (64 - length) | value << (64 - entry.bits());
        alike.fill(entry.whole(held));
    }
}

/// Adds a second code with its value to entries where both fit in the lookup and the first does not end its block.
fn paired(single: &[HuffmanEntry; 1 << LOOK]) -> Box<[HuffmanEntry; 1 << LOOK]> {
    let of = |look: usize| {
        let first = single[look];
        if first.is_partial() || first.growth() >= END as usize {
            return first;
        }
        let next = single[look << first.bits() & ((1 << LOOK) - 1)];
        let fits = !next.is_partial() && first.bits() + next.bits() <= LOOK;
        if fits { first.and(next) } else { first }
    };
    let mut entries = Box::new(*single);
    entries.iter_mut().enumerate().for_each(|(look, entry)| *entry = of(look));
    entries
}

/// Bit reader for the data between two restart markers, without stuffed zero bytes.
#[derive(Clone, Copy)]
pub(super) struct HuffmanBitReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Next bits, from the highest on.
    held: u64,
    count: u32,
}

impl<'a> HuffmanBitReader<'a> {
    /// Creates a bit reader of a JPEG scan; `bytes` ends with [`SLACK`] padding bytes.
    pub fn new(bytes: &'a [u8]) -> HuffmanBitReader<'a> {
        HuffmanBitReader { bytes, at: 0, held: 0, count: 0 }
    }

    /// Ensures at least 56 bits: two codes with their values. Beyond the end they are zeros.
    #[inline]
    fn refill(&mut self) {
        if let Some(next) = self.bytes.get(self.at..).and_then(|b| b.first_chunk::<8>()) {
            self.held |= u64::from_be_bytes(*next) >> self.count;
        }
        self.at += (63 - self.count as usize) / 8;
        self.count |= 56;
    }

    #[inline]
    fn skip(&mut self, n: u32) {
        self.held <<= n;
        self.count -= n;
    }

    /// Whether all bytes of the scan were consumed and none was read past the end.
    pub fn is_used_up(&self) -> bool {
        let (used, there) =
            (8 * self.at as isize - self.count as isize, 8 * (self.bytes.len() - SLACK) as isize);
        used <= there && there - used < 8
    }
}

/// Decodes a block into `out` (zeros on entry), row by row; `last` is the DC coefficient of the previous block. Returns
/// how many coefficients in zigzag order may be nonzero. `None`: invalid code.
///
/// A separate function, so that its bits stay in registers.
#[inline(never)]
pub(super) fn block(
    stretch: &mut HuffmanBitReader,
    dc: &HuffmanTable,
    ac: &HuffmanTable,
    last: &mut i16,
    out: &mut [i16; 64],
) -> Option<usize> {
    let mut bits = *stretch;
    bits.refill();
    let difference = dc.next(bits.held);
    if difference.growth() == NO_CODE as usize {
        return None;
    }
    bits.skip(difference.bits());
    *last = last.wrapping_add(difference.value());
    out[0] = *last;
    let mut k = 0;
    'block: while k < 63 {
        bits.refill();
        // Two codes of 16 bits with 10-bit values are available.
        for _ in 0..2 {
            let (before, entry) = (bits, ac.next(bits.held));
            bits.skip(entry.bits());
            let first = k + entry.growth();
            k = first + entry.second_growth();
            // A run of zeros without a value ends in a zero; the end of a block writes one over an existing zero.
            out[usize::from(ZIGZAG[first & 0xff])] = entry.value();
            out[usize::from(ZIGZAG[k & 0xff])] = entry.second_value();
            if k >= 63 {
                if first >= 63 && k > first {
                    // The block was full: the second code belongs to the next block.
                    (bits, k) = (before, first);
                    bits.skip(entry.first_bits());
                    out[63] = entry.value();
                }
                break 'block;
            }
        }
    }
    *stretch = bits;
    match k {
        63 => Some(64),
        _ if (END as usize..NO_CODE as usize).contains(&k) => Some(k + 1 - END as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_standard() {
        let first: Vec<usize> = (0..11).map(place).collect();
        assert_eq!(first, [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32]);
        let mut all: Vec<usize> = (0..64).map(place).collect();
        assert_eq!((all[62], all[63]), (62, 63));
        all.sort_unstable();
        assert!(all.into_iter().eq(0..64));
    }

    /// Symbols 0x01, 0x00 and 0x03 as codes 0, 10 and 110.
    fn three_codes(class: HuffmanTableClass) -> Rc<HuffmanTable> {
        HuffmanTable::shared(class, &[1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 3]).unwrap()
    }

    #[test]
    fn two_codes_in_one_look_are_two_codes_one_after_the_other() {
        let (dc, ac) = (three_codes(HuffmanTableClass::Dc), three_codes(HuffmanTableClass::Ac));
        assert!(Rc::ptr_eq(&ac, &three_codes(HuffmanTableClass::Ac)) && !Rc::ptr_eq(&ac, &dc));
        let of = |text: &str| -> Vec<u8> {
            let bits = text.bytes().filter(|b| *b != b' ').chain([b'1'; 8]).collect::<Vec<_>>();
            let (bytes, _) = bits.as_chunks::<8>();
            let byte = |b: &[u8; 8]| b.iter().fold(0, |all, bit| all << 1 | (bit - b'0'));
            bytes.iter().map(byte).chain([0; SLACK]).collect()
        };
        // DC coefficient 1, then 5, -1, 1 and the end; then a block whose last coefficient is nonzero, and the next
        // code.
        let full = format!("01 {} 110111 01 10", "01".repeat(62));
        let bytes = of(&format!("01 110101 00 01 10 {full}"));
        let (mut bits, mut last) = (HuffmanBitReader::new(&bytes), 0);
        let mut out = [0i16; 64];
        assert_eq!(block(&mut bits, &dc, &ac, &mut last, &mut out), Some(4));
        let first: Vec<i16> = (0..5).map(|k| out[place(k)]).collect();
        assert_eq!((first, out.iter().filter(|&&v| v != 0).count()), (vec![1, 5, -1, 1, 0], 4));
        out = [0; 64];
        assert_eq!(block(&mut bits, &dc, &ac, &mut last, &mut out), Some(64));
        assert_eq!((out[0], out[place(62)], out[63], last), (2, 1, 7, 2));
        out = [0; 64];
        assert_eq!(
            block(&mut bits, &dc, &ac, &mut last, &mut out),
            Some(1),
            "the code behind a full block is the next's"
        );
        assert_eq!(out[0], 3);
        assert!(bits.is_used_up());
    }

    #[test]
    fn codes_of_every_length_are_read_with_their_values() {
        // Codes 0, 10, 110, …: the n-th has n bits; symbols of run n mod 3 and size n mod 10 + 1, and the value 0…0 or
        // 10…0.
        let list: Vec<u8> = (1..=16u8).map(|n| (n % 3) << 4 | (n % 10 + 1)).collect();
        let table = HuffmanTable::new(HuffmanTableClass::Ac, &[1; 16], &list).unwrap();
        for (i, &symbol) in list.iter().enumerate() {
            for first in [0, 1] {
                let code = ((1u64 << (i + 1)) - 2) << (63 - i) | first << (62 - i);
                let mut bytes = code.to_be_bytes().to_vec();
                bytes.extend([0; SLACK]);
                let mut bits = HuffmanBitReader::new(&bytes);
                bits.refill();
                let size = u32::from(symbol & 15);
                let expected = if first == 1 { 1 << (size - 1) } else { 1 - (1 << size) };
                let entry = HuffmanEntry::new(i as u32 + 1 + size, u32::from(symbol >> 4) + 1, expected);
                // The zeros after it may be another code.
                let first = |e: HuffmanEntry| (e.first_bits(), e.growth(), e.value());
                let found = table.next(bits.held);
                assert_eq!(first(found), first(entry), "code of {} bits, value of {size}", i + 1);
            }
        }
        let one = |class, symbol| {
            HuffmanTable::new(class, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[symbol]).is_some()
        };
        assert!(
            one(HuffmanTableClass::Dc, 11)
                && !one(HuffmanTableClass::Dc, 12)
                && one(HuffmanTableClass::Ac, 0xf0)
                && !one(HuffmanTableClass::Ac, 0x20)
        );
        assert!(
            HuffmanTable::new(
                HuffmanTableClass::Dc,
                &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[1, 2, 3]
            )
            .is_none()
        );
        assert!(
            HuffmanTable::new(HuffmanTableClass::Ac, &[1; 16], &list[1..]).is_none(),
            "fewer symbols than codes"
        );
    }
}
