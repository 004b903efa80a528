//! Huffman codes of a baseline scan: the bits, the tables, a block's coefficients.

/// Bits that are looked up at once: longer codes are rare.
const LOOK: u32 = 10;
/// Bytes behind the data, so that eight can be read anywhere.
pub(super) const SLACK: usize = 8;

/// Place of the k-th coefficient of the file in a block, row by row; what runs over the end falls on the last.
const ZIGZAG: [u8; 64 + 16] = {
    let mut places = [63u8; 80];
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

/// The place of the k-th coefficient in a block, row by row.
pub(super) fn place(k: usize) -> usize {
    usize::from(ZIGZAG[k])
}

/// A symbol with the length of its code: how many bits the code and the value behind it take (0 to 7), how many the value
/// alone (8 to 15), the zeros before it (16 to 23). 0: the code is longer than the look.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry(u32);

impl Entry {
    fn new(symbol: u8, length: u32) -> Entry {
        let size = u32::from(symbol & 15);
        Entry((length + size) | size << 8 | u32::from(symbol >> 4) << 16)
    }

    #[inline]
    fn bits(self) -> u32 {
        self.0 & 0xff
    }

    #[inline]
    fn size(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    #[inline]
    fn run(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// What the codes of a table are for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Class {
    /// First coefficients, as differences.
    Dc,
    /// All others, with the zeros before them.
    Ac,
}

/// A table of codes.
#[derive(Clone)]
pub(super) struct Table {
    /// By the next bits.
    entries: Box<[Entry; 1 << LOOK]>,
    /// Codes of `n` bits are below this, once shifted to 16 bits.
    ends: [u32; 17],
    /// Index of a symbol less its code, by the code's length.
    offsets: [i32; 17],
    list: Vec<u8>,
}

impl Table {
    /// Of the numbers of codes of 1 to 16 bits, and the symbols in order. `None`: there are more codes than bits can say, or
    /// symbols that the class does not have.
    pub fn new(class: Class, counts: &[u8; 16], list: &[u8]) -> Option<Table> {
        let is_known = |&symbol: &u8| match (class, symbol >> 4, symbol & 15) {
            (Class::Dc, run, size) => run == 0 && size <= 11,
            (Class::Ac, run, 0) => run == 0 || run == 15,
            (Class::Ac, _, size) => size <= 10,
        };
        if !list.iter().all(is_known) {
            return None;
        }
        let (mut ends, mut offsets) = ([0; 17], [0; 17]);
        let mut entries = Box::new([Entry(0); 1 << LOOK]);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..counts[length as usize - 1] {
                let symbol = *list.get(index)?;
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    entries.get_mut(first..first + (1 << (LOOK - length)))?.fill(Entry::new(symbol, length));
                }
                (code, index) = (code + 1, index + 1);
            }
            if code > 1 << length {
                return None;
            }
            ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(Table { entries, ends, offsets, list: list.to_vec() })
    }

    /// The next symbol. `None`: no code begins so.
    #[inline]
    fn next(&self, bits: &Bits) -> Option<Entry> {
        match self.entries[bits.look()] {
            Entry(0) => self.long(bits.next_16()),
            entry => Some(entry),
        }
    }

    #[cold]
    fn long(&self, next: u32) -> Option<Entry> {
        let length = (LOOK as usize + 1..17).find(|&n| next < self.ends[n])?;
        let index = (next >> (16 - length)) as i32 + self.offsets[length];
        Some(Entry::new(*self.list.get(usize::try_from(index).ok()?)?, length as u32))
    }
}

/// What is added to a value by its first bit and its size: those that begin with 0 are negative. A table, since the sign
/// cannot be foretold and must not become a jump.
const BELOW: [i16; 32] = {
    let mut below = [0; 32];
    let mut size = 1;
    while size < 12 {
        below[size] = 1 - (1 << size);
        size += 1;
    }
    below
};

/// The bits of one stretch between restart markers, without the zeros that follow bytes of 255 in the file.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The next bits, from the highest on.
    held: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    /// `bytes` end with [`SLACK`] bytes that are not part of the data.
    pub fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0, held: 0, count: 0 }
    }

    /// At least 56 bits are there afterwards: two codes with their values. Behind the end they are zeros.
    #[inline]
    fn refill(&mut self) {
        if let Some(next) = self.bytes.get(self.at..).and_then(|b| b.first_chunk::<8>()) {
            self.held |= u64::from_be_bytes(*next) >> self.count;
        }
        self.at += (63 - self.count as usize) / 8;
        self.count |= 56;
    }

    #[inline]
    fn look(&self) -> usize {
        (self.held >> (64 - LOOK)) as usize
    }

    fn next_16(&self) -> u32 {
        (self.held >> 48) as u32
    }

    #[inline]
    fn skip(&mut self, n: u32) {
        self.held <<= n;
        self.count -= n;
    }

    /// The value behind a code, both used up.
    #[inline]
    fn value(&mut self, entry: Entry) -> i16 {
        let size = entry.size();
        let value = self.held << (entry.bits() - size);
        self.skip(entry.bits());
        let which = (value >> 63 << 4) as usize | size as usize & 15;
        ((value >> 1 >> (63 - size)) as i16).wrapping_add(BELOW[which])
    }

    /// Whether no more was read than there was, and no whole byte is left.
    pub fn is_used_up(&self) -> bool {
        let (used, there) =
            (8 * self.at as isize - self.count as isize, 8 * (self.bytes.len() - SLACK) as isize);
        used <= there && there - used < 8
    }
}

/// Reads the coefficients of a block into `out`, which is zeros, row by row; `last` is the first coefficient of the block
/// before. Says how many, in the file's order, may differ from 0. `None`: this is no code.
#[inline]
pub(super) fn block(
    bits: &mut Bits,
    dc: &Table,
    ac: &Table,
    last: &mut i16,
    out: &mut [i16; 64],
) -> Option<usize> {
    bits.refill();
    let difference = dc.next(bits)?;
    *last = last.wrapping_add(bits.value(difference));
    out[0] = *last;
    let mut k = 1;
    while k < 64 {
        bits.refill();
        let entry = ac.next(bits)?;
        let value = bits.value(entry);
        if entry.size() == 0 && entry.run() == 0 {
            return Some(k);
        }
        // A run of zeros without a value ends in a zero.
        k += entry.run();
        out[usize::from(ZIGZAG[k]) & 63] = value;
        k += 1;
    }
    (k == 64).then_some(k)
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

    #[test]
    fn codes_of_every_length_are_read_with_their_values() {
        // Codes 0, 10, 110, …: the n-th has n bits; symbols of run n mod 3 and size n mod 10 + 1, and the value 0…0 or 10…0.
        let list: Vec<u8> = (1..=16u8).map(|n| (n % 3) << 4 | (n % 10 + 1)).collect();
        let table = Table::new(Class::Ac, &[1; 16], &list).unwrap();
        for (i, &symbol) in list.iter().enumerate() {
            for first in [0, 1] {
                let code = ((1u64 << (i + 1)) - 2) << (63 - i) | first << (62 - i);
                let mut bytes = code.to_be_bytes().to_vec();
                bytes.extend([0; SLACK]);
                let mut bits = Bits::new(&bytes);
                bits.refill();
                let entry = table.next(&bits).unwrap();
                assert_eq!(entry, Entry::new(symbol, i as u32 + 1), "code of {} bits", i + 1);
                let size = u32::from(symbol & 15);
                let expected = if first == 1 { 1 << (size - 1) } else { 1 - (1 << size) };
                assert_eq!(i32::from(bits.value(entry)), expected, "value of {size} bits");
            }
        }
        let one = |class, symbol| {
            Table::new(class, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[symbol]).is_some()
        };
        assert!(one(Class::Dc, 11) && !one(Class::Dc, 12) && one(Class::Ac, 0xf0) && !one(Class::Ac, 0x20));
        assert!(
            Table::new(Class::Dc, &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 2, 3]).is_none()
        );
        assert!(Table::new(Class::Ac, &[1; 16], &list[1..]).is_none(), "fewer symbols than codes");
    }
}
