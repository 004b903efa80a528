//! Compiles an int8 model to TPU v1 instructions: weight tiling and unified-buffer allocation.
//!
//! Layers are separated by one synchronization each.
//!
//! A tensor is stored in blocks of as many channels as the array has rows. Each block holds all samples in row-major
//! order, one unified-buffer row per pixel. A dense layer is a convolution whose window is the whole image. There is
//! one tile per tap and block of input channels; their sums are added in the accumulators. The input's zero point is
//! subtracted once, in the bias. For padding, the systolic data setup supplies the zero point in place of a buffer row.

use crate::chip::Tpu1Chip;
use crate::instruction::{Function, Instruction, Register, Speed};
use crate::model::{
    Arithmetic, ChipConvolution, ChipLayer, ChipModel, ChipOp, ConvWindow, ImageShape, OutputRange,
    ScaledOperand,
};
use crate::program::{ChipProgram, ProgramLayer, cuts, too_large, too_many_rows, too_many_weights};
use systole_base::{Result, ensure};

/// Compiles an int8 model to TPU v1 instructions for a batch size.
///
/// # Errors
/// If sizes do not match, or if the model needs more accumulators, unified buffer or weight memory than the chip has.
/// The error names the layer.
pub fn compile(chip: &Tpu1Chip, model: &ChipModel, batch: usize) -> Result<ChipProgram> {
    chip.check()?;
    model.check()?;
    let (places, rows, layer) = allocate(chip, model);
    // All sizes and addresses scale with the batch.
    ensure!(rows * batch <= chip.buffer_rows(), too_large(chip, layer, rows * batch, batch));
    let mut maker = ProgramBuilder {
        chip,
        batch,
        model,
        places: places.iter().map(|place| place * batch).collect(),
        registers: [None; Register::ALL.len()],
        program: ChipProgram {
            name: model.name.clone(),
            instructions: Vec::new(),
            parts: Vec::new(),
            weights: Vec::new(),
            batch,
            rows: rows * batch,
            sample: [model.input().values(), model.tensors[model.output()].values()],
        },
    };
    maker.all()?;
    Ok(maker.program)
}

/// Allocates the unified buffer for one sample (first fit by live range). Returns the first row of each tensor, the
/// peak number of rows, and the layer at the peak.
fn allocate<'a>(chip: &Tpu1Chip, model: &'a ChipModel) -> (Vec<usize>, usize, &'a str) {
    let rows = |t: usize| model.tensors[t].pixels() * model.tensors[t].channels.div_ceil(chip.matrix);
    let last_use = |t: usize| model.layers.iter().rposition(|l| l.inputs.contains(&t));
    let mut places = vec![0; model.tensors.len()];
    // Start, end, tensor.
    let mut taken = vec![(0, rows(0), 0)];
    let (mut most, mut at) = (0, "input");
    for (n, layer) in model.layers.iter().enumerate() {
        let (mut begin, size) = (0, rows(layer.output));
        taken.sort_unstable();
        for (from, to, _) in &taken {
            if begin + size <= *from {
                break;
            }
            begin = begin.max(*to);
        }
        places[layer.output] = begin;
        taken.push((begin, begin + size, layer.output));
        let end = taken.iter().map(|t| t.1).max().unwrap_or(0);
        if end > most {
            (most, at) = (end, &layer.name);
        }
        taken.retain(|t| t.2 == model.output() || last_use(t.2).is_some_and(|last| last > n));
    }
    (places, most, at)
}

struct ProgramBuilder<'a> {
    chip: &'a Tpu1Chip,
    batch: usize,
    model: &'a ChipModel,
    /// First row of each tensor.
    places: Vec<usize>,
    registers: [Option<u64>; Register::ALL.len()],
    program: ChipProgram,
}

impl ProgramBuilder<'_> {
    fn push(&mut self, instruction: Instruction) {
        self.program.instructions.push(instruction);
    }

    /// Sends unified-buffer rows through the activation unit into rows from `buffer` on.
    fn activate(&mut self, function: Function, buffer: usize, rows: usize) {
        let (buffer, length) = (buffer as u32, rows as u32);
        self.push(Instruction::Activate { function, accumulator: 0, buffer, length });
    }

    /// Sets a register unless it already has the value.
    fn set(&mut self, register: Register, value: u64) {
        if self.registers[register as usize].replace(value) != Some(value) {
            self.push(Instruction::SetConfiguration { register, value });
        }
    }

    fn set_signed(&mut self, register: Register, value: i64) {
        self.set(register, value as u64);
    }

    /// Returns the rows of a channel block of a tensor.
    fn block(&self, picture: ImageShape) -> usize {
        self.batch * picture.pixels()
    }

    fn blocks(&self, picture: ImageShape) -> usize {
        picture.channels.div_ceil(self.chip.matrix)
    }

    fn all(&mut self) -> Result<()> {
        let (model, output) = (self.model, self.model.output());
        let [from, to] = self.program.sample.map(|values| (values * self.batch) as u32);
        self.set(Register::Channels, model.input().channels as u64);
        self.push(Instruction::ReadHostMemory { host: 0, buffer: self.places[0] as u32, bytes: from });
        self.push(Instruction::SynchronizeHost);
        for (n, layer) in model.layers.iter().enumerate() {
            self.push(Instruction::DebugTag(n as u32));
            let part = self.layer(layer)?;
            self.program.parts.push(part);
            self.push(Instruction::Synchronize);
        }
        self.set(Register::Channels, model.tensors[output].channels as u64);
        self.push(Instruction::WriteHostMemory { host: from, buffer: self.places[output] as u32, bytes: to });
        for last in [Instruction::SynchronizeHost, Instruction::InterruptHost, Instruction::Halt] {
            self.push(last);
        }
        Ok(())
    }

    fn layer(&mut self, layer: &ChipLayer) -> Result<ProgramLayer> {
        let (from, to) = (self.model.tensors[layer.inputs[0]], self.model.tensors[layer.output]);
        let all = self.block(to) * self.blocks(to);
        let mut part =
            ProgramLayer { name: layer.name.clone(), tiles: 0, useful: 0.0, possible: 0.0, product: None };
        match &layer.op {
            ChipOp::Convolution(c) => self.convolution(layer, c, from, to, &mut part)?,
            ChipOp::Pool { window, is_mean, output } => {
                let function = if *is_mean { Function::AveragePool } else { Function::MaxPool };
                self.picture(window, from, to);
                self.set(Register::WindowHeight, window.size[0] as u64);
                self.set(Register::WindowWidth, window.size[1] as u64);
                self.offset(window, [0, 0]);
                self.limits(*output);
                for block in 0..self.blocks(to) {
                    let source = self.places[layer.inputs[0]] + block * self.block(from);
                    self.set(Register::LeftAddress, source as u64);
                    self.activate(
                        function,
                        self.places[layer.output] + block * self.block(to),
                        self.block(to),
                    );
                }
            }
            ChipOp::Arithmetic(what, operands, scale, output) => {
                let function = match what {
                    Arithmetic::Add => Function::Add,
                    Arithmetic::Subtract => Function::Subtract,
                    Arithmetic::Multiply => Function::Multiply,
                };
                self.operands(layer, *operands);
                self.scale(scale.registers());
                self.limits(*output);
                self.activate(function, self.places[layer.output], all);
            }
            ChipOp::Table(table) => {
                self.set(Register::Constants, self.program.weights.len() as u64);
                self.program.weights.extend(table.iter().map(|v| *v as u8));
                self.set(Register::LeftAddress, self.places[layer.inputs[0]] as u64);
                self.activate(Function::Table, self.places[layer.output], all);
            }
            ChipOp::Crop(first) => self.crop(layer, *first, (from, to)),
            ChipOp::Join => self.join(layer, to),
        }
        Ok(part)
    }

    /// Copies `rows` rows of an image from a given row and column on, as 1×1 max pooling.
    fn copy(
        &mut self,
        (source, from): (usize, ImageShape),
        (target, to): (usize, ImageShape),
        first: [usize; 2],
        rows: usize,
    ) {
        self.picture(&ConvWindow::of([1, 1]), from, to);
        self.set(Register::WindowHeight, 1);
        self.set(Register::WindowWidth, 1);
        self.set(Register::OffsetHeight, first[0] as u64);
        self.set(Register::OffsetWidth, first[1] as u64);
        self.limits(OutputRange { zero: 0, low: -128, high: 127 });
        self.set(Register::LeftAddress, source as u64);
        self.activate(Function::MaxPool, target, rows);
    }

    /// Crops an image from a given row and column on.
    fn crop(&mut self, layer: &ChipLayer, first: [usize; 2], (from, to): (ImageShape, ImageShape)) {
        for block in 0..self.blocks(to) {
            let source = self.places[layer.inputs[0]] + block * self.block(from);
            let target = self.places[layer.output] + block * self.block(to);
            self.copy((source, from), (target, to), first, self.block(to));
        }
    }

    /// Concatenates the pixels of images. A sample's pixels must be contiguous, so each sample is copied separately.
    fn join(&mut self, layer: &ChipLayer, to: ImageShape) {
        let mut before = 0;
        for &input in &layer.inputs {
            let from = self.model.tensors[input];
            let line = ImageShape { height: 1, width: from.pixels(), channels: from.channels };
            for place in 0..self.blocks(to) * self.batch {
                let (block, sample) = (place / self.batch, place % self.batch);
                let source = self.places[input] + block * self.block(from) + sample * line.width;
                let target = self.places[layer.output] + block * self.block(to) + sample * to.width + before;
                self.copy((source, line), (target, line), [0, 0], line.width);
            }
            before += line.width;
        }
    }

    fn operands(&mut self, layer: &ChipLayer, operands: [ScaledOperand; 2]) {
        use Register::*;
        let left = [LeftAddress, LeftZero, LeftMultiplier, LeftShift];
        let right = [RightAddress, RightZero, RightMultiplier, RightShift];
        for (n, (registers, operand)) in [left, right].into_iter().zip(operands).enumerate() {
            self.set(registers[0], self.places[layer.inputs[n]] as u64);
            self.set_signed(registers[1], operand.zero.into());
            let [multiplier, shift] = operand.scale.registers();
            self.set(registers[2], multiplier);
            self.set(registers[3], shift);
        }
    }

    fn scale(&mut self, [multiplier, shift]: [u64; 2]) {
        self.set(Register::Multiplier, multiplier);
        self.set(Register::Shift, shift);
    }

    fn limits(&mut self, output: OutputRange) {
        self.set_signed(Register::OutputZero, output.zero.into());
        self.set_signed(Register::Low, output.low.into());
        self.set_signed(Register::High, output.high.into());
    }

    /// Sets the registers for the images that are read and written.
    fn picture(&mut self, window: &ConvWindow, from: ImageShape, to: ImageShape) {
        use Register::*;
        let values = [from.height, from.width, to.height, to.width, window.stride[0], window.stride[1]];
        let registers = [InputHeight, InputWidth, OutputHeight, OutputWidth, StrideHeight, StrideWidth];
        for (register, value) in registers.into_iter().zip(values) {
            self.set(register, value as u64);
        }
    }

    fn offset(&mut self, window: &ConvWindow, tap: [usize; 2]) {
        let of = |axis: usize| (tap[axis] * window.dilation[axis]) as i64 - window.before[axis] as i64;
        self.set_signed(Register::OffsetHeight, of(0));
        self.set_signed(Register::OffsetWidth, of(1));
    }

    fn convolution(
        &mut self,
        layer: &ChipLayer,
        c: &ChipConvolution,
        from: ImageShape,
        to: ImageShape,
        part: &mut ProgramLayer,
    ) -> Result<()> {
        let n = self.chip.matrix;
        if to.pixels() == 1 && self.batch > self.chip.accumulators {
            return Err(too_many_rows(self.chip, &layer.name, self.batch));
        }
        let cuts = cuts(self.chip, &layer.name, self.batch * to.height, to.width)?;
        let single = c.window.size == [1, 1]
            && c.window.stride == [1, 1]
            && c.window.before == [0, 0]
            && from.pixels() == to.pixels();
        if !single {
            self.picture(&c.window, from, to);
            self.set_signed(Register::Fill, c.input_zero.into());
        }
        self.scale(c.scale.registers());
        self.limits(c.output);
        for column in 0..to.channels.div_ceil(n) {
            let constants = self.program.weights.len();
            self.program
                .weights
                .extend(biases(c, from.channels, column * n, n).iter().flat_map(|b| b.to_le_bytes()));
            let first = self.program.weights.len() as u64;
            let passes = passes(c, from.channels, column, n);
            for (tap, block) in &passes {
                self.program.weights.extend(tile(c, from.channels, *tap, *block, column, n));
            }
            if self.program.weights.len() > self.chip.weight_memory {
                return Err(too_many_weights(self.chip, &layer.name));
            }
            self.set(Register::Constants, constants as u64);
            self.column(layer, (c, from, to), column, &cuts, first, &passes, single);
            part.tiles += passes.len() * cuts.len();
            part.possible += (self.block(to) * passes.len() * n * n) as f64;
        }
        let inputs = c.weights.len() / c.filters.max(1);
        part.useful = (self.block(to) * c.weights.len()) as f64;
        part.product = (!c.is_depthwise).then_some([self.block(to), inputs, c.filters, 1]);
        Ok(())
    }

    /// Emits the passes of a block of filters, chunk by chunk.
    #[expect(clippy::too_many_arguments, reason = "parameters of one layer")]
    fn column(
        &mut self,
        layer: &ChipLayer,
        (c, from, to): (&ChipConvolution, ImageShape, ImageShape),
        column: usize,
        cuts: &[usize],
        address: u64,
        passes: &[([usize; 2], usize)],
        single: bool,
    ) {
        let mut line = 0;
        for (turn, &lines) in cuts.iter().enumerate() {
            let rows = lines * to.width;
            // The two halves of the accumulators alternate if a block needs at most half.
            let half = if 2 * rows <= self.chip.accumulators { self.chip.accumulators / 2 } else { 0 };
            let accumulator = ((column + turn) % 2 * half) as u16;
            self.push(Instruction::ReadWeights { address, tiles: passes.len() as u32 });
            self.set(Register::FirstLine, line as u64);
            for (k, (tap, block)) in passes.iter().enumerate() {
                let source = self.places[layer.inputs[0]] + block * self.block(from);
                let (source, length) = match single {
                    true => (source + line * to.width, rows as u32),
                    false => (source, (lines as u32) << 16 | to.width as u32),
                };
                if !single {
                    self.offset(&c.window, *tap);
                }
                self.push(Instruction::MatrixMultiply {
                    buffer: source as u32,
                    accumulator,
                    length,
                    speed: Speed::Full,
                    switch: true,
                    accumulate: k > 0,
                    convolve: !single,
                });
            }
            let buffer = (self.places[layer.output] + column * self.block(to) + line * to.width) as u32;
            self.push(Instruction::Activate {
                function: Function::Normalize,
                accumulator,
                buffer,
                length: rows as u32,
            });
            line += lines;
        }
    }
}

/// Returns the input channel that a depthwise output channel reads.
fn channel_of(c: &ChipConvolution, channels: usize, filter: usize) -> usize {
    filter / (c.filters / channels.max(1)).max(1)
}

/// Returns the weight of a filter for a channel and a tap, or `None` if the filter does not read the channel.
fn weight(
    c: &ChipConvolution,
    channels: usize,
    [r, s]: [usize; 2],
    channel: usize,
    filter: usize,
) -> Option<i8> {
    let tap = r * c.window.size[1] + s;
    if channel >= channels || filter >= c.filters {
        return None;
    }
    match c.is_depthwise {
        true => (channel_of(c, channels, filter) == channel).then(|| c.weights[tap * c.filters + filter]),
        false => {
            let taps = c.window.size[0] * c.window.size[1];
            Some(c.weights[(filter * taps + tap) * channels + channel])
        }
    }
}

/// Returns the passes of a block of filters: tap and block of input channels.
fn passes(c: &ChipConvolution, channels: usize, column: usize, n: usize) -> Vec<([usize; 2], usize)> {
    let blocks = match c.is_depthwise {
        true => {
            let last = ((column + 1) * n).min(c.filters) - 1;
            channel_of(c, channels, column * n) / n..channel_of(c, channels, last) / n + 1
        }
        false => 0..channels.div_ceil(n),
    };
    let taps = (0..c.window.size[0]).flat_map(|r| (0..c.window.size[1]).map(move |s| [r, s]));
    taps.flat_map(|tap| blocks.clone().map(move |block| (tap, block))).collect()
}

/// Returns a weight tile: rows are input channels, columns are filters.
fn tile(
    c: &ChipConvolution,
    channels: usize,
    tap: [usize; 2],
    block: usize,
    column: usize,
    n: usize,
) -> Vec<u8> {
    let value =
        |k: usize, m: usize| weight(c, channels, tap, block * n + k, column * n + m).unwrap_or(0) as u8;
    (0..n).flat_map(|k| (0..n).map(move |m| value(k, m))).collect()
}

/// Returns the biases of a block of filters, minus the contribution of the input's zero point.
fn biases(c: &ChipConvolution, channels: usize, first: usize, n: usize) -> Vec<i32> {
    let of = |filter: usize| {
        let Some(bias) = c.bias.get(filter) else { return 0 };
        let mut sum = 0i32;
        for r in 0..c.window.size[0] {
            for s in 0..c.window.size[1] {
                let own = (0..channels).filter_map(|channel| weight(c, channels, [r, s], channel, filter));
                sum = own.fold(sum, |sum, w| sum.wrapping_add(w.into()));
            }
        }
        bias.wrapping_sub(sum.wrapping_mul(c.input_zero))
    };
    (first..first + n).map(of).collect()
}
