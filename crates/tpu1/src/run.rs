//! Functional simulator of TPU v1: executes a program instruction by instruction with bit-exact results.

use crate::chip::Tpu1Chip;
use crate::instruction::{Function, Instruction, Register, Speed};
use crate::model::{Arithmetic, OutputRange, ScaledOperand, looked_up, pooled};
use crate::program::{ChipProgram, RegisterFile, lines_of};
use crate::rescale::ScaleFactor;
use std::collections::VecDeque;
use std::ops::Range;
use systole_base::{Error, ErrorKind, Result, ensure, err};

/// Result of a simulated batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchResult {
    /// Outputs of all samples, in order.
    pub output: Vec<i8>,
    /// Number of accumulator sums that wrapped around.
    pub overflows: u64,
}

impl ChipProgram {
    /// Runs the program on a batch: `input: i8[batch, height, width, channels] → i8[batch, …]`.
    ///
    /// # Errors
    /// If the input has the wrong size, or if the program reads missing weights, rows outside the memories, or rows
    /// written since the last synchronization.
    pub fn run(&self, chip: &Tpu1Chip, input: &[i8]) -> Result<BatchResult> {
        chip.check()?;
        let [from, to] = self.sample.map(|values| values * self.batch);
        if input.len() != from {
            return Err(err!(
                Data,
                "the input has {} values, but a batch of {} has {from}",
                input.len(),
                self.batch
            ));
        }
        let mut machine = ChipSimulator {
            chip,
            weights: &self.weights,
            buffer: vec![0; chip.buffer_rows() * chip.matrix],
            is_written: vec![false; chip.buffer_rows()],
            written: Vec::new(),
            accumulators: vec![0; chip.accumulators * chip.matrix],
            queue: VecDeque::new(),
            tile: None,
            registers: RegisterFile::new(),
            host: input.iter().copied().chain(std::iter::repeat_n(0, to)).collect(),
            overflows: 0,
        };
        for (n, instruction) in self.instructions.iter().enumerate() {
            if *instruction == Instruction::Halt {
                break;
            }
            machine.step(*instruction).map_err(|e| e.at(format!("instruction {n}: {instruction}")))?;
        }
        Ok(BatchResult { output: machine.host.split_off(from), overflows: machine.overflows })
    }
}

struct ChipSimulator<'a> {
    chip: &'a Tpu1Chip,
    weights: &'a [u8],
    buffer: Vec<i8>,
    /// Rows written since the last synchronization: a flag per row, and a list of them.
    is_written: Vec<bool>,
    written: Vec<usize>,
    accumulators: Vec<i32>,
    /// Weight-memory addresses of the tiles in the FIFO.
    queue: VecDeque<usize>,
    tile: Option<usize>,
    registers: RegisterFile,
    host: Vec<i8>,
    overflows: u64,
}

fn broken(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what).because("the TPU v1 program is invalid")
}

impl ChipSimulator<'_> {
    fn step(&mut self, instruction: Instruction) -> Result<()> {
        use Instruction::*;
        match instruction {
            ReadHostMemory { host, buffer, bytes } => self.transfer(host, buffer, bytes, true),
            WriteHostMemory { host, buffer, bytes } => self.transfer(host, buffer, bytes, false),
            ReadWeights { address, tiles } => {
                let size = self.chip.tile_bytes();
                let all = (tiles as usize).checked_mul(size).and_then(|n| n.checked_add(address as usize));
                if all.is_none_or(|end| end > self.weights.len()) {
                    return Err(broken("it reads a tile outside the weight memory"));
                }
                self.queue.extend((0..tiles as usize).map(|n| address as usize + n * size));
                Ok(())
            }
            MatrixMultiply { buffer, accumulator, length, speed, switch, accumulate, convolve } => {
                if speed != Speed::Full {
                    let e = err!(Unsupported, "16-bit operands can be timed but not computed");
                    return Err(e.hint("use an int8 model, whose operands have 8 bits"));
                }
                if switch {
                    self.tile = Some(self.queue.pop_front().ok_or_else(|| broken("no tile in the queue"))?);
                }
                self.multiply(buffer as usize, accumulator as usize, length, accumulate, convolve)
            }
            Activate { function: Function::Normalize, accumulator, buffer, length } => {
                self.normalize(accumulator as usize, buffer as usize, length as usize)
            }
            Activate { function: Function::MaxPool | Function::AveragePool, buffer, length, .. } => {
                let is_mean = matches!(instruction, Activate { function: Function::AveragePool, .. });
                self.pool(is_mean, buffer as usize, length as usize)
            }
            Activate { function, buffer, length, .. } => {
                self.vector(function, buffer as usize, length as usize)
            }
            Synchronize | SynchronizeHost => {
                self.written.drain(..).for_each(|row| self.is_written[row] = false);
                Ok(())
            }
            SetConfiguration { register, value } => {
                self.registers.set(register, value);
                Ok(())
            }
            InterruptHost | DebugTag(_) | Nop | Halt => Ok(()),
        }
    }

    /// Returns the range of `rows` unified-buffer rows, if they exist.
    fn rows(&self, first: usize, rows: usize) -> Result<Range<usize>> {
        let end = first.checked_add(rows).filter(|end| *end <= self.is_written.len());
        let end = end.ok_or_else(|| {
            broken(format!(
                "it accesses row {first} of the unified buffer and {rows} more, which do not all exist"
            ))
        })?;
        Ok(first..end)
    }

    fn values(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.chip.matrix..rows.end * self.chip.matrix
    }

    /// Returns the value range of unified-buffer rows that may be read.
    fn readable(&self, first: usize, rows: usize) -> Result<Range<usize>> {
        let rows = self.rows(first, rows)?;
        if self.is_written[rows.clone()].contains(&true) {
            return Err(broken("it reads rows that were written since the last synchronize"));
        }
        Ok(self.values(rows))
    }

    /// Marks rows of the unified buffer as written and returns their range.
    fn written(&mut self, first: usize, rows: usize) -> Result<Range<usize>> {
        let rows = self.rows(first, rows)?;
        for row in rows.clone() {
            if !std::mem::replace(&mut self.is_written[row], true) {
                self.written.push(row);
            }
        }
        Ok(self.values(rows))
    }

    /// Transfers data between host and unified buffer. Host pixels are contiguous; here a block of channels is, for all
    /// pixels.
    fn transfer(&mut self, host: u32, buffer: u32, bytes: u32, is_read: bool) -> Result<()> {
        let (channels, n) = (self.registers.size(Register::Channels).max(1), self.chip.matrix);
        let (host, bytes) = (host as usize, bytes as usize);
        ensure!(host + bytes <= self.host.len(), broken("it accesses bytes outside the host's memory"));
        let pixels = bytes / channels;
        let rows = pixels * channels.div_ceil(n);
        let rows = match is_read {
            true => self.written(buffer as usize, rows)?,
            false => self.readable(buffer as usize, rows)?,
        };
        for pixel in 0..pixels {
            for channel in 0..channels {
                let here = rows.start + (channel / n * pixels + pixel) * n + channel % n;
                let there = host + pixel * channels + channel;
                match is_read {
                    true => self.buffer[here] = self.host[there],
                    false => self.host[there] = self.buffer[here],
                }
            }
        }
        Ok(())
    }

    /// Returns the pixel that each row of a convolution's pass reads; `None` for padding.
    fn pixels(&self, length: u32) -> Result<Vec<Option<usize>>> {
        use Register::*;
        let size = |r: Register| self.registers.size(r);
        let ((lines, columns), first) = (lines_of(length), size(FirstLine));
        let [height, width, out_height] = [InputHeight, InputWidth, OutputHeight].map(size);
        if out_height == 0 || lines.saturating_mul(columns) > self.chip.accumulators {
            return Err(broken("the image of its pass is empty, or has more pixels than accumulators"));
        }
        let at = |place: usize, stride: Register, offset: Register, size: usize| {
            let at = place.checked_mul(self.registers.size(stride)).map(|p| p as i64);
            let at = at.and_then(|p| p.checked_add(self.registers.signed(offset)))?;
            usize::try_from(at).ok().filter(|at| *at < size)
        };
        let pixel = |line: usize, column: usize| {
            let (sample, y) = ((first + line) / out_height, (first + line) % out_height);
            let y = at(y, StrideHeight, OffsetHeight, height)?;
            let x = at(column, StrideWidth, OffsetWidth, width)?;
            sample.checked_mul(height)?.checked_add(y)?.checked_mul(width)?.checked_add(x)
        };
        Ok((0..lines).flat_map(|l| (0..columns).map(move |c| (l, c))).map(|(l, c)| pixel(l, c)).collect())
    }

    fn multiply(
        &mut self,
        buffer: usize,
        accumulator: usize,
        length: u32,
        accumulate: bool,
        convolve: bool,
    ) -> Result<()> {
        let n = self.chip.matrix;
        let tile = self.tile.ok_or_else(|| broken("no tile in the array"))?;
        if !convolve && length as usize > self.chip.accumulators {
            return Err(broken("it accesses rows outside the accumulators"));
        }
        let pixels: Vec<Option<usize>> = match convolve {
            true => self.pixels(length)?,
            false => (0..length as usize).map(Some).collect(),
        };
        if accumulator + pixels.len() > self.chip.accumulators {
            return Err(broken("it accesses rows outside the accumulators"));
        }
        let fill = self.registers.signed(Register::Fill) as i8;
        let (mut row, mut sums) = (vec![fill; n], vec![0i64; n]);
        for (i, pixel) in pixels.iter().enumerate() {
            match pixel {
                Some(p) => {
                    let from = buffer
                        .checked_add(*p)
                        .ok_or_else(|| broken("it reads a row outside the unified buffer"))?;
                    row.copy_from_slice(&self.buffer[self.readable(from, 1)?]);
                }
                None => row.fill(fill),
            }
            let to = &mut self.accumulators[(accumulator + i) * n..][..n];
            for (sum, old) in sums.iter_mut().zip(to.iter()) {
                *sum = if accumulate { i64::from(*old) } else { 0 };
            }
            for (k, value) in row.iter().enumerate().filter(|(_, v)| **v != 0) {
                let weights = &self.weights[tile + k * n..][..n];
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += i64::from(*value) * i64::from(*weight as i8);
                }
            }
            for (to, sum) in to.iter_mut().zip(&sums) {
                *to = *sum as i32;
                self.overflows += u64::from(i64::from(*to) != *sum);
            }
        }
        Ok(())
    }

    fn output(&self) -> OutputRange {
        let of = |r: Register| self.registers.signed(r) as i32;
        let (low, high) = (of(Register::Low), of(Register::High));
        OutputRange { zero: of(Register::OutputZero), low, high: high.max(low) }
    }

    fn scale(&self, multiplier: Register, shift: Register) -> ScaleFactor {
        ScaleFactor::of_registers([self.registers.get(multiplier), self.registers.get(shift)])
    }

    fn normalize(&mut self, accumulator: usize, buffer: usize, rows: usize) -> Result<()> {
        let (n, at) = (self.chip.matrix, self.registers.size(Register::Constants));
        let end = at.checked_add(4 * n).filter(|end| *end <= self.weights.len());
        let constants =
            &self.weights[at..end.ok_or_else(|| broken("it reads biases outside the weight memory"))?];
        let biases: Vec<i32> = constants.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        if accumulator + rows > self.chip.accumulators {
            return Err(broken("it accesses rows outside the accumulators"));
        }
        let (output, scale) = (self.output(), self.scale(Register::Multiplier, Register::Shift));
        let to = self.written(buffer, rows)?;
        let sums = &self.accumulators[accumulator * n..][..rows * n];
        for (to, sums) in self.buffer[to].chunks_mut(n).zip(sums.chunks(n)) {
            for ((to, sum), bias) in to.iter_mut().zip(sums).zip(&biases) {
                *to = output.of(scale.apply(sum.wrapping_add(*bias)));
            }
        }
        Ok(())
    }

    /// Executes a function that works on values of unified-buffer rows.
    fn vector(&mut self, function: Function, buffer: usize, rows: usize) -> Result<()> {
        use Register::*;
        let left = self.readable(self.registers.size(LeftAddress), rows)?;
        let values: Vec<i8> = match function {
            Function::Table => {
                let at = self.registers.size(Constants);
                let bytes = at.checked_add(256).and_then(|end| self.weights.get(at..end));
                let bytes = bytes.ok_or_else(|| broken("it reads a table outside the weight memory"))?;
                let table: [i8; 256] = std::array::from_fn(|n| bytes[n] as i8);
                self.buffer[left].iter().map(|v| looked_up(&table, *v)).collect()
            }
            _ => {
                let operand = |zero: Register, multiplier: Register, shift: Register| ScaledOperand {
                    zero: self.registers.signed(zero) as i32,
                    scale: self.scale(multiplier, shift),
                };
                let operands = [
                    operand(LeftZero, LeftMultiplier, LeftShift),
                    operand(RightZero, RightMultiplier, RightShift),
                ];
                let (output, scale) = (self.output(), self.scale(Multiplier, Shift));
                let right = self.readable(self.registers.size(RightAddress), rows)?;
                let what = match function {
                    Function::Add => Arithmetic::Add,
                    Function::Subtract => Arithmetic::Subtract,
                    _ => Arithmetic::Multiply,
                };
                let pairs = self.buffer[left].iter().zip(&self.buffer[right]);
                pairs.map(|(a, b)| what.of(operands, scale, output, *a, *b)).collect()
            }
        };
        let to = self.written(buffer, rows)?;
        self.buffer[to].copy_from_slice(&values);
        Ok(())
    }

    fn pool(&mut self, is_mean: bool, buffer: usize, rows: usize) -> Result<()> {
        use Register::*;
        let registers = self.registers.clone();
        let size = |r: Register| registers.size(r);
        let [height, width, out_height, out_width] =
            [InputHeight, InputWidth, OutputHeight, OutputWidth].map(size);
        if size(WindowHeight).max(size(WindowWidth)) > usize::from(u16::MAX) {
            return Err(broken("its pooling window is too large"));
        }
        let area = out_height.checked_mul(out_width).filter(|a| *a > 0);
        let area = area.ok_or_else(|| broken("it pools into an image without pixels"))?;
        let all = (rows / area).saturating_mul(height).saturating_mul(width);
        let (from, output, n) = (self.readable(size(LeftAddress), all)?, self.output(), self.chip.matrix);
        let inside = |place: usize, tap: usize, stride: Register, offset: Register, size: usize| {
            let at = place.checked_mul(registers.size(stride))?.checked_add(tap)? as i64;
            let at = at.checked_add(registers.signed(offset))?;
            usize::try_from(at).ok().filter(|at| *at < size)
        };
        // This fails if there are not enough rows to write.
        let to = self.written(buffer, rows)?;
        let mut values = Vec::with_capacity(rows * n);
        for row in 0..rows {
            let (sample, y, x) = (row / area, row % area / out_width, row % out_width);
            let lines =
                (0..size(WindowHeight)).filter_map(|r| inside(y, r, StrideHeight, OffsetHeight, height));
            let columns =
                (0..size(WindowWidth)).filter_map(|s| inside(x, s, StrideWidth, OffsetWidth, width));
            let columns: Vec<usize> = columns.collect();
            let taps: Vec<usize> = lines
                .flat_map(|l| {
                    columns.iter().map(move |c| from.start + ((sample * height + l) * width + c) * n)
                })
                .collect();
            for lane in 0..n {
                let window: Vec<i8> = taps.iter().map(|tap| self.buffer[tap + lane]).collect();
                values.push(pooled(is_mean, output, &window));
            }
        }
        self.buffer[to].copy_from_slice(&values);
        Ok(())
    }
}
