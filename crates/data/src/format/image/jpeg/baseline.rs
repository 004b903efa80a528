//! Fast baseline JPEG decoder, bit-identical to libjpeg's defaults.
//!
//! Supports 8 bits, Huffman codes, one scan, grayscale or YCbCr with 4:4:4, 4:2:2 or 4:2:0 subsampling. Files with
//! other features or any damage are left to the general decoder, so that errors are reported consistently. Keeps only a
//! few rows of samples in memory, never a whole plane.

use super::huffman::{self, HuffmanBitReader, HuffmanTable, HuffmanTableClass, SLACK};
use super::{idct, upsample_color};
use std::rc::Rc;

/// Parsed headers.
pub(super) struct JpegFrame<'a> {
    pub width: usize,
    pub height: usize,
    components: Vec<JpegComponent>,
    dc: [Option<Rc<HuffmanTable>>; 2],
    ac: [Option<Rc<HuffmanTable>>; 2],
    /// MCUs between restart markers; 0 if there are none.
    restart: usize,
    /// Data of the scan and everything after it.
    data: &'a [u8],
}

struct JpegComponent {
    id: u8,
    /// Horizontal and vertical blocks per MCU.
    wide: usize,
    high: usize,
    steps: [i16; 64],
    step_table: usize,
    tables: (usize, usize),
}

impl JpegFrame<'_> {
    /// Parses the headers of a baseline JPEG. `None`: the general decoder is needed.
    pub fn of(bytes: &[u8]) -> Option<JpegFrame<'_>> {
        let mut frame = JpegFrame {
            width: 0,
            height: 0,
            components: Vec::new(),
            dc: [None, None],
            ac: [None, None],
            restart: 0,
            data: &[],
        };
        let mut steps: [Option<[i16; 64]>; 4] = [None; 4];
        let mut is_jfif = false;
        let mut rest = bytes.strip_prefix(&[0xff, 0xd8])?;
        loop {
            let (&[mark, kind, high, low], _) = rest.split_first_chunk::<4>()?;
            let size = usize::from(high) << 8 | usize::from(low);
            if mark != 0xff || size < 2 {
                return None;
            }
            let segment = rest.get(4..2 + size)?;
            rest = &rest[2 + size..];
            match kind {
                0xc0 if frame.components.is_empty() => frame.start(segment)?,
                0xc4 => frame.codes(segment)?,
                0xdb => quantization(segment, &mut steps)?,
                0xdd => {
                    frame.restart =
                        usize::from(segment.first()?.to_owned()) << 8 | usize::from(*segment.get(1)?)
                }
                0xda => {
                    frame.scan(segment, &steps)?;
                    frame.data = rest;
                    let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
                    let is_known = ids.len() == 1 || ids == [1, 2, 3] || (is_jfif && ids == [0, 1, 2]);
                    return is_known.then_some(frame);
                }
                0xe0 => is_jfif |= segment.starts_with(b"JFIF\0"),
                // Adobe's marker gives the color space if it is not YCbCr.
                0xee if segment.starts_with(b"Adobe") && segment.get(11) != Some(&1) => return None,
                0xe1..=0xef | 0xfe => {}
                _ => return None,
            }
        }
    }

    fn start(&mut self, segment: &[u8]) -> Option<()> {
        let (&[bits, h1, h0, w1, w0, count], list) = segment.split_first_chunk::<6>()?;
        self.height = usize::from(h1) << 8 | usize::from(h0);
        self.width = usize::from(w1) << 8 | usize::from(w0);
        let (list, rest) = list.as_chunks::<3>();
        if bits != 8
            || self.height == 0
            || self.width == 0
            || list.len() != usize::from(count)
            || !rest.is_empty()
        {
            return None;
        }
        for &[id, sampling, table] in list {
            let (wide, high) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            let step_table = usize::from(table);
            self.components.push(JpegComponent {
                id,
                wide,
                high,
                steps: [0; 64],
                step_table,
                tables: (0, 0),
            });
        }
        let sizes: Vec<_> = self.components.iter().map(|c| (c.wide, c.high)).collect();
        match sizes[..] {
            // A single component has MCUs of one block, whatever its sampling factors.
            [_] => (self.components[0].wide, self.components[0].high) = (1, 1),
            [(1, 1), (1, 1), (1, 1)] => {}
            // libjpeg does not interpolate across so few samples.
            [(2, 1 | 2), (1, 1), (1, 1)] if self.width > 4 => {}
            _ => return None,
        }
        Some(())
    }

    fn codes(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&[which, ref counts @ ..], rest)) = segment.split_first_chunk::<17>() {
            let count: usize = counts.iter().map(|&n| usize::from(n)).sum();
            let (class, tables) = match which >> 4 {
                0 => (HuffmanTableClass::Dc, &mut self.dc),
                _ => (HuffmanTableClass::Ac, &mut self.ac),
            };
            let table = HuffmanTable::shared(class, counts, rest.get(..count)?)?;
            *tables.get_mut(usize::from(which & 15))? = Some(table);
            segment = &rest[count..];
        }
        segment.is_empty().then_some(())
    }

    fn scan(&mut self, segment: &[u8], steps: &[Option<[i16; 64]>; 4]) -> Option<()> {
        let (&count, list) = segment.split_first()?;
        let (chosen, rest) = list.as_chunks::<2>();
        // All components and all coefficients in one scan.
        if chosen.len() != self.components.len() + 1 || usize::from(count) != self.components.len() {
            return None;
        }
        let (last, chosen) = chosen.split_last()?;
        if *last != [0, 63] || rest != [0] {
            return None;
        }
        for (component, &[id, tables]) in self.components.iter_mut().zip(chosen) {
            component.tables = (usize::from(tables >> 4), usize::from(tables & 15));
            component.steps = (*steps.get(component.step_table)?)?;
            let (dc, ac) = component.tables;
            if id != component.id || self.dc.get(dc)?.is_none() || self.ac.get(ac)?.is_none() {
                return None;
            }
        }
        Some(())
    }

    /// Number of channels of the JPEG: 1 (grayscale) or 3 (RGB).
    pub fn channels(&self) -> usize {
        self.components.len()
    }

    /// Returns the blocks of an MCU: component, and horizontal and vertical block index.
    fn places(&self) -> Vec<(usize, usize, usize)> {
        let of = |(i, c): (usize, &JpegComponent)| {
            let (wide, all) = (c.wide, c.wide * c.high);
            (0..all).map(move |block| (i, block % wide, block / wide))
        };
        self.components.iter().enumerate().flat_map(of).collect()
    }

    /// Decodes the JPEG's pixels into `out`, which has `height · width · channels` bytes. `None`: the data is invalid.
    pub fn decode(&self, out: &mut [u8]) -> Option<()> {
        let (bytes, stretches) = stretches(self.data)?;
        let unit = self.components.first()?;
        let (across, down) = (self.width.div_ceil(8 * unit.wide), self.height.div_ceil(8 * unit.high));
        let units = across * down;
        let every = if self.restart == 0 { units } else { self.restart };
        if stretches.len() != units.div_ceil(every) {
            return None;
        }
        let coders: Vec<(&HuffmanTable, &HuffmanTable)> = self
            .components
            .iter()
            .map(|c| Some((self.dc[c.tables.0].as_deref()?, self.ac[c.tables.1].as_deref()?)))
            .collect::<Option<_>>()?;
        let mut planes: Vec<ComponentRows> =
            self.components.iter().map(|c| ComponentRows::new(self, c, across)).collect();
        let mut painter = PixelWriter::new(self);
        let places = self.places();
        let mut blocks = vec![CoefficientBlock { coefficients: [0; 64], count: 0 }; places.len()];
        let mut stretch = stretches.iter();
        let mut bits = HuffmanBitReader::new(&[0; SLACK]);
        let mut last = [0i16; 3];
        for row in 0..down {
            planes.iter_mut().for_each(ComponentRows::turn_over);
            for column in 0..across {
                if (row * across + column).is_multiple_of(every) {
                    if !bits.is_used_up() {
                        return None;
                    }
                    bits = HuffmanBitReader::new(&bytes[stretch.next()?.clone()]);
                    last = [0; 3];
                }
                // All blocks of an MCU are decoded first: reading memory right after small writes to it is slow.
                for (block, &(i, ..)) in blocks.iter_mut().zip(&places) {
                    block.read(&mut bits, coders[i], &mut last[i])?;
                }
                for (block, &(i, x, y)) in blocks.iter().zip(&places) {
                    let component = &self.components[i];
                    planes[i].put(column * component.wide + x, y, block, &component.steps);
                }
            }
            painter.paint(&planes, row, row + 1 == down, out);
        }
        bits.is_used_up().then_some(())
    }
}

/// Coefficients of a block in row order, and how many in zigzag order may be nonzero.
#[derive(Clone)]
struct CoefficientBlock {
    coefficients: [i16; 64],
    count: usize,
}

impl CoefficientBlock {
    #[inline]
    fn read(
        &mut self,
        bits: &mut HuffmanBitReader,
        (dc, ac): (&HuffmanTable, &HuffmanTable),
        last: &mut i16,
    ) -> Option<()> {
        self.coefficients = [0; 64];
        self.count = huffman::block(bits, dc, ac, last, &mut self.coefficients)?;
        Some(())
    }
}

/// Parses quantization tables into row order.
fn quantization(mut segment: &[u8], steps: &mut [Option<[i16; 64]>; 4]) -> Option<()> {
    while let Some((&[which, ref list @ ..], rest)) = segment.split_first_chunk::<65>() {
        // 16-bit tables have another precision code.
        let table = steps.get_mut(usize::from(which))?.insert([0; 64]);
        list.iter().enumerate().for_each(|(k, &step)| table[huffman::place(k)] = step.into());
        segment = rest;
    }
    segment.is_empty().then_some(())
}

/// Returns the data without stuffed zero bytes, and the ranges between restart markers, each followed by [`SLACK`].
/// `None`: the markers are out of order, or markers other than the end follow.
fn stretches(data: &[u8]) -> Option<(Vec<u8>, Vec<std::ops::Range<usize>>)> {
    let mut bytes = Vec::with_capacity(data.len() + SLACK);
    let (mut found, mut start, mut rest) = (Vec::new(), 0, data);
    loop {
        let run = plain(rest);
        bytes.extend_from_slice(&rest[..run]);
        let (&[_, kind], behind) = rest[run..].split_first_chunk::<2>()?;
        rest = behind;
        match kind {
            0 => bytes.push(0xff),
            0xd0..=0xd7 | 0xd9 => {
                bytes.extend([0; SLACK]);
                found.push(start..bytes.len());
                start = bytes.len();
                if kind == 0xd9 {
                    return Some((bytes, found));
                }
                if usize::from(kind - 0xd0) != (found.len() - 1) % 8 {
                    return None;
                }
            }
            _ => return None,
        }
    }
}

/// Number of bytes before the first 255.
fn plain(bytes: &[u8]) -> usize {
    let (chunks, _) = bytes.as_chunks::<16>();
    let whole = chunks.iter().take_while(|c| !c.iter().fold(false, |any, &b| any | (b == 0xff))).count();
    16 * whole + bytes[16 * whole..].iter().take_while(|&&b| b != 0xff).count()
}

/// Sample rows of one component: those of one MCU row, preceded by the last row of the previous one.
struct ComponentRows {
    samples: Vec<u8>,
    /// Samples between rows.
    stride: usize,
    /// Samples of the image; the rest is padding of the blocks.
    width: usize,
    height: usize,
    /// Rows of an MCU row.
    rows: usize,
}

impl ComponentRows {
    fn new(frame: &JpegFrame, component: &JpegComponent, across: usize) -> ComponentRows {
        let first = &frame.components[0];
        let stride = upsample_color::padded(8 * component.wide * across);
        let rows = 8 * component.high;
        let width = (frame.width * component.wide).div_ceil(first.wide);
        let height = (frame.height * component.high).div_ceil(first.high);
        ComponentRows { samples: vec![0; stride * (rows + 1)], stride, width, height, rows }
    }

    /// Starts the next MCU row.
    fn turn_over(&mut self) {
        let last = self.rows * self.stride;
        self.samples.copy_within(last..last + self.stride, 0);
    }

    /// Stores a block at column `x` and row `y` of the MCU row.
    #[inline]
    fn put(&mut self, x: usize, y: usize, block: &CoefficientBlock, steps: &[i16; 64]) {
        let rows = match block.count {
            1 => [[idct::flat(block.coefficients[0], steps[0]); 8]; 8],
            2..=10 => idct::corner(&block.coefficients, steps),
            _ => idct::block(&block.coefficients, steps),
        };
        let from = (8 * y + 1) * self.stride + 8 * x;
        let to = &mut self.samples[from..][..7 * self.stride + 8];
        for (i, row) in rows.iter().enumerate() {
            to[i * self.stride..][..8].copy_from_slice(row);
        }
    }

    /// Returns row `i` of the image, clamped, while the MCU row is `unit`.
    fn row(&self, unit: usize, i: isize) -> &[u8] {
        let i = i.clamp(0, self.height as isize - 1) as usize;
        &self.samples[(i + 1 - unit * self.rows) * self.stride..][..self.stride]
    }
}

/// Converts samples to pixels as soon as the needed rows are available.
struct PixelWriter {
    width: usize,
    height: usize,
    channels: usize,
    /// Horizontal and vertical subsampling ratio.
    ratio: (usize, usize),
    sums: Vec<i16>,
    blue: Vec<u8>,
    red: Vec<u8>,
}

impl PixelWriter {
    fn new(frame: &JpegFrame) -> PixelWriter {
        let first = &frame.components[0];
        let room = upsample_color::padded(frame.width);
        PixelWriter {
            width: frame.width,
            height: frame.height,
            channels: frame.channels(),
            ratio: (first.wide, first.high),
            sums: Vec::with_capacity(room),
            blue: vec![0; room],
            red: vec![0; room],
        }
    }

    fn paint(&mut self, planes: &[ComponentRows], unit: usize, is_last: bool, out: &mut [u8]) {
        let rows = planes[0].rows;
        // With vertical subsampling, the last row waits for the chroma row below it.
        let late = self.ratio.1 - 1;
        let first = (unit * rows).saturating_sub(late);
        let end = if is_last { self.height } else { (unit + 1) * rows - late };
        let size = self.width * self.channels;
        for (y, pixels) in (first..end).zip(out[first * size..].chunks_exact_mut(size)) {
            let light = planes[0].row(unit, y as isize);
            match planes {
                [_, blue, red] if self.ratio == (1, 1) => {
                    let (blue, red) = (blue.row(unit, y as isize), red.row(unit, y as isize));
                    upsample_color::rgb(light, blue, red, pixels);
                }
                [_, blue, red] => {
                    let tall = self.ratio.1 == 2;
                    widen(blue, unit, y, tall, &mut self.sums, &mut self.blue);
                    widen(red, unit, y, tall, &mut self.sums, &mut self.red);
                    upsample_color::rgb(light, &self.blue, &self.red, pixels);
                }
                _ => pixels.copy_from_slice(&light[..self.width]),
            }
        }
    }
}

/// Upsamples row `y` of a chroma plane horizontally by 2, and vertically if `tall`.
fn widen(plane: &ComponentRows, unit: usize, y: usize, tall: bool, sums: &mut Vec<i16>, out: &mut [u8]) {
    if !tall {
        upsample_color::edged(&plane.row(unit, y as isize)[..plane.width], sums);
        return upsample_color::doubled::<false>(sums, out);
    }
    let near = (y / 2) as isize;
    let far = if y.is_multiple_of(2) { near - 1 } else { near + 1 };
    upsample_color::edged_sum(
        &plane.row(unit, near)[..plane.width],
        &plane.row(unit, far)[..plane.width],
        sums,
    );
    upsample_color::doubled::<true>(sums, out);
}
