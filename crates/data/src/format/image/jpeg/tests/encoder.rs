//! JPEG encoder for tests: arbitrary samples in every layout that the decoder supports.

use super::super::huffman::place;
use systole_base::rng::RandomStream;

pub struct Layout {
    pub width: usize,
    pub height: usize,
    /// Horizontal and vertical sampling factor of the first component; the others have 1 × 1. `None`: grayscale.
    pub sampling: Option<(usize, usize)>,
    /// Quantization step of coefficient k: 1 + k · coarse / 8.
    pub coarse: usize,
    /// MCUs between restart markers; 0 for none.
    pub restart: usize,
    pub seed: u64,
}

/// Encodes gradients with noise.
pub fn jpeg(layout: &Layout) -> Vec<u8> {
    let (across, down) = layout.sampling.unwrap_or((1, 1));
    let sizes: Vec<(usize, usize)> = match layout.sampling {
        None => vec![(1, 1)],
        Some(size) => vec![size, (1, 1), (1, 1)],
    };
    let mut out = vec![0xff, 0xd8];
    let steps: Vec<usize> = (0..64).map(|k| (1 + k * layout.coarse / 8).min(255)).collect();
    let table = steps.iter().map(|&s| s as u8);
    segment(&mut out, 0xdb, std::iter::once(0).chain(table).collect());
    let (h, w) = (layout.height as u16, layout.width as u16);
    let mut frame = vec![8, (h >> 8) as u8, h as u8, (w >> 8) as u8, w as u8, sizes.len() as u8];
    let mut scan = vec![sizes.len() as u8];
    for (i, (wide, high)) in sizes.iter().enumerate() {
        frame.extend([i as u8 + 1, (wide << 4 | high) as u8, 0]);
        scan.extend([i as u8 + 1, 0]);
    }
    scan.extend([0, 63, 0]);
    segment(&mut out, 0xc0, frame);
    let codes = [
        Codes(vec![(4, (0..12).collect())]),
        Codes(vec![(2, vec![0]), (4, FREQUENT.to_vec()), (12, rare())]),
    ];
    for (i, codes) in codes.iter().enumerate() {
        segment(&mut out, 0xc4, codes.segment(i as u8));
    }
    segment(&mut out, 0xdd, vec![(layout.restart >> 8) as u8, layout.restart as u8]);
    segment(&mut out, 0xda, scan);

    let (columns, rows) = (layout.width.div_ceil(8 * across), layout.height.div_ceil(8 * down));
    let mut draws = RandomStream::new(layout.seed, 1, 2);
    let (mut bits, mut last) = (Writer::default(), [0; 3]);
    for unit in 0..columns * rows {
        if layout.restart > 0 && unit > 0 && unit.is_multiple_of(layout.restart) {
            bits.end(&mut out);
            out.extend([0xff, 0xd0 + ((unit / layout.restart - 1) % 8) as u8]);
            last = [0; 3];
        }
        for (i, (wide, high)) in sizes.iter().enumerate() {
            for _ in 0..wide * high {
                let (level, slope, noise) =
                    (draws.below(200) as f64 - 100.0, draws.below(9) as f64 - 4.0, 1 + draws.below(30));
                let samples: Vec<f64> = (0..64)
                    .map(|p| {
                        level + slope * (p % 8) as f64 - 2.0 * (p / 8) as f64 + draws.below(noise) as f64
                    })
                    .collect();
                let coefficients = transformed(&samples);
                let value = |k: usize| (coefficients[place(k)] / steps[k] as f64).round() as i32;
                bits.block(&codes, &std::array::from_fn(value), &mut last[i]);
            }
        }
    }
    bits.end(&mut out);
    out.extend([0xff, 0xd9]);
    out
}

const FREQUENT: [u8; 5] = [0x01, 0x02, 0x11, 0x03, 0x04];

/// All other symbols of a run and a value, and the run of 16 zeros.
fn rare() -> Vec<u8> {
    let all = (0..16u8).flat_map(|run| (1..=10).map(move |size| run << 4 | size));
    all.filter(|s| !FREQUENT.contains(s)).chain([0xf0]).collect()
}

fn segment(out: &mut Vec<u8>, kind: u8, body: Vec<u8>) {
    let size = (body.len() + 2) as u16;
    out.extend([0xff, kind, (size >> 8) as u8, size as u8]);
    out.extend(body);
}

fn transformed(samples: &[f64]) -> [f64; 64] {
    let c = |u: usize| if u == 0 { 0.5f64.sqrt() } else { 1.0 };
    let cosine = |x: usize, u: usize| ((2 * x + 1) as f64 * u as f64 * std::f64::consts::PI / 16.0).cos();
    std::array::from_fn(|q| {
        let (v, u) = (q / 8, q % 8);
        let sum = (0..64).map(|p| samples[p] * cosine(p % 8, u) * cosine(p / 8, v));
        c(u) * c(v) * sum.sum::<f64>() / 4.0
    })
}

/// Symbols by code length.
struct Codes(Vec<(usize, Vec<u8>)>);

impl Codes {
    fn segment(&self, class: u8) -> Vec<u8> {
        let mut body = vec![0; 17];
        body[0] = class << 4;
        for (length, symbols) in &self.0 {
            body[*length] = symbols.len() as u8;
            body.extend(symbols);
        }
        body
    }

    /// Returns code and length of a symbol.
    fn of(&self, symbol: u8) -> (u32, usize) {
        let (mut code, mut before) = (0, 0);
        for (length, symbols) in &self.0 {
            code <<= length - before;
            before = *length;
            if let Some(at) = symbols.iter().position(|&s| s == symbol) {
                return (code + at as u32, *length);
            }
            code += symbols.len() as u32;
        }
        panic!("no code for {symbol:#x}")
    }
}

#[derive(Default)]
struct Writer {
    bits: Vec<bool>,
}

impl Writer {
    fn put(&mut self, value: u32, length: usize) {
        self.bits.extend((0..length).rev().map(|i| value >> i & 1 == 1));
    }

    fn block(&mut self, [dc, ac]: &[Codes; 2], values: &[i32; 64], last: &mut i32) {
        let symbol = |bits: &mut Writer, codes: &Codes, run: usize, value: i32| {
            let size = (32 - value.unsigned_abs().leading_zeros()) as usize;
            let (code, length) = codes.of((run << 4 | size) as u8);
            bits.put(code, length);
            bits.put(if value < 0 { (value - 1) as u32 } else { value as u32 }, size);
        };
        symbol(self, dc, 0, values[0] - *last);
        *last = values[0];
        let mut run = 0;
        let end = values.iter().rposition(|&v| v != 0).unwrap_or(0);
        for &value in &values[1..end + 1] {
            if value == 0 {
                run += 1;
                continue;
            }
            for _ in 0..run / 16 {
                let (code, length) = ac.of(0xf0);
                self.put(code, length);
            }
            symbol(self, ac, run % 16, value);
            run = 0;
        }
        if end < 63 {
            let (code, length) = ac.of(0);
            self.put(code, length);
        }
    }

    /// Fills the last byte with ones.
    fn end(&mut self, out: &mut Vec<u8>) {
        while !self.bits.len().is_multiple_of(8) {
            self.bits.push(true);
        }
        for byte in self.bits.chunks(8) {
            let byte = byte.iter().fold(0, |byte, &bit| byte << 1 | bit as u8);
            out.push(byte);
            if byte == 0xff {
                out.push(0);
            }
        }
        self.bits.clear();
    }
}
