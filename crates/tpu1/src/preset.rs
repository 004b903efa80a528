//! The six applications of the TPU v1 paper as timing-only programs with **reconstructed** layer shapes.
//!
//! Only the numbers of layers and weights, batch sizes and layer types are published. The programs have no weights.

use crate::chip::Tpu1Chip;
use crate::instruction::{Function, Instruction, Speed};
use crate::paper::{APPLICATIONS, PaperApplication};
use crate::program::{ChipProgram, ProgramLayer, cuts, too_large, too_many_rows, too_many_weights};
use systole_base::{Result, ensure, err};

/// Prefix of the names of TPU v1 presets.
pub const PREFIX: &str = "tpu1/";

/// `count` matrices of `inputs` × `outputs` weights. Each output row reads `channels` new values.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    inputs: usize,
    outputs: usize,
    count: usize,
    channels: usize,
}

/// A layer of a preset.
#[derive(Clone, Copy, Debug)]
enum PresetLayer {
    /// Multiplies rows of each sample by matrices.
    Matrix { rows: usize, of: Matrices },
    /// Applies the activation unit to values of each sample.
    Vector { values: usize },
    /// Pools images with these numbers of input pixels and channels; each pixel is read once.
    Pool { pixels: usize, channels: usize },
}

/// One of the six applications in the TPU v1 paper (Jouppi et al. 2017), with reconstructed layer shapes.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Published figures of the application.
    pub paper: &'static PaperApplication,
    /// Assumptions of the reconstruction.
    pub reconstruction: &'static str,
    /// Bytes of input per sample.
    input: usize,
    speed: Speed,
    layers: Vec<(String, PresetLayer)>,
}

fn matrix(rows: usize, inputs: usize, outputs: usize, count: usize) -> PresetLayer {
    PresetLayer::Matrix { rows, of: Matrices { inputs, outputs, count, channels: inputs } }
}

fn named(name: &str, shapes: Vec<PresetLayer>) -> Vec<(String, PresetLayer)> {
    shapes.into_iter().enumerate().map(|(n, s)| (format!("{name}_{n}"), s)).collect()
}

/// Inserts vector layers evenly between matrix layers.
fn with_vectors(mut matrices: Vec<PresetLayer>, vectors: usize, values: usize) -> Vec<(String, PresetLayer)> {
    let all = matrices.len() + vectors;
    matrices.reverse();
    let (mut layers, mut done) = (Vec::new(), 0);
    for n in 1..=all {
        match done < n * vectors / all {
            true => {
                done += 1;
                layers.push((format!("vector_{done}"), PresetLayer::Vector { values }));
            }
            false => layers.extend(matrices.pop().map(|m| (format!("fc_{}", n - done), m))),
        }
    }
    layers
}

/// Convolution with `taps` positions of the filter. Fewer input channels than rows of the array share a tile.
fn convolution(pixels: usize, taps: usize, inputs: usize, outputs: usize) -> PresetLayer {
    let (shared, count) = if inputs < 256 { (taps * inputs, 1) } else { (inputs, taps) };
    PresetLayer::Matrix { rows: pixels, of: Matrices { inputs: shared, outputs, count, channels: inputs } }
}

/// Modules of the Inception network with batch normalization (Ioffe and Szegedy 2015): pixels, input channels, outputs
/// of 1 × 1, reduction and outputs of 3 × 3, reduction and outputs of the two 3 × 3, outputs of the pool's projection.
/// Modules without 1 × 1 and projection halve the size.
const INCEPTION: [[usize; 8]; 10] = [
    [784, 192, 64, 64, 64, 64, 96, 32],
    [784, 256, 64, 64, 96, 64, 96, 64],
    [784, 320, 0, 128, 160, 64, 96, 0],
    [196, 576, 224, 64, 96, 96, 128, 128],
    [196, 576, 192, 96, 128, 96, 128, 128],
    [196, 576, 160, 128, 160, 128, 160, 96],
    [196, 576, 96, 128, 192, 160, 192, 96],
    [196, 576, 0, 128, 192, 192, 256, 0],
    [49, 1024, 352, 192, 320, 160, 224, 128],
    [49, 1024, 352, 192, 320, 192, 224, 128],
];

fn inception(module: [usize; 8]) -> Vec<PresetLayer> {
    let [pixels, inputs, one, reduce, three, reduce_double, double, project] = module;
    let after = if one == 0 { pixels / 4 } else { pixels };
    let mut shapes = Vec::new();
    shapes.extend((one > 0).then(|| convolution(pixels, 1, inputs, one)));
    shapes.extend([
        convolution(pixels, 1, inputs, reduce),
        convolution(after, 9, reduce, three),
        convolution(pixels, 1, inputs, reduce_double),
        convolution(pixels, 9, reduce_double, double),
        convolution(after, 9, double, double),
        PresetLayer::Pool { pixels, channels: inputs },
    ]);
    shapes.extend((project > 0).then(|| convolution(pixels, 1, inputs, project)));
    shapes
}

/// The 69 convolutions and 13 pools of that network, three more convolutions, and 4 dense layers with the rest of the
/// 100M weights.
fn cnn1() -> Vec<(String, PresetLayer)> {
    let mut shapes = vec![
        convolution(112 * 112, 49, 3, 64),
        PresetLayer::Pool { pixels: 112 * 112, channels: 64 },
        convolution(56 * 56, 1, 64, 64),
        convolution(56 * 56, 9, 64, 192),
        PresetLayer::Pool { pixels: 56 * 56, channels: 192 },
    ];
    shapes.extend(INCEPTION.into_iter().flat_map(inception));
    shapes.extend([convolution(49, 1, 1024, 1024); 3]);
    shapes.push(PresetLayer::Pool { pixels: 49, channels: 1024 });
    shapes.push(matrix(1, 1024, 5208, 1));
    shapes.extend([matrix(1, 5208, 5208, 1); 3]);
    named("layer", shapes)
}

impl Preset {
    /// Returns all TPU v1 presets.
    pub fn all() -> Vec<Preset> {
        let dims = [1150, 1000, 1280, 1050, 1020];
        let mlp1 = dims.windows(2).map(|d| matrix(1, d[0], d[1], 1)).collect();
        let lstm1 = (0..37).map(|n| matrix(1, 600, 600, if n % 37 < 20 { 3 } else { 2 })).collect();
        let mlp0 = [2288, 1776].repeat(3).windows(2).map(|d| matrix(1, d[0], d[1], 1)).collect();
        let mut cnn0 = vec![convolution(361, 25, 48, 256)];
        cnn0.extend(vec![convolution(361, 9, 256, 256); 13]);
        cnn0.extend(vec![convolution(361, 1, 256, 256); 2]);
        let of = |n: usize, input, speed, layers, reconstruction| Preset {
            paper: &APPLICATIONS[n],
            reconstruction,
            input,
            speed,
            layers,
        };
        vec![
            of(
                0,
                2288,
                Speed::Full,
                named("fc", mlp0),
                "2288 → 1776 → 2288 → 1776 → 2288 → 1776 (published: 5 layers, 20M weights, 2 % of the active multipliers unused)",
            ),
            of(
                1,
                1150,
                Speed::Full,
                named("fc", mlp1),
                "1150 → 1000 → 1280 → 1050 → 1020 (published: 4 layers, 5M weights, 11 % unused multipliers)",
            ),
            of(
                2,
                2048,
                Speed::Half,
                with_vectors(vec![matrix(1, 2048, 1024, 1); 24], 34, 1024),
                "6 LSTM layers of 1024 units as 24 matrices of 2048 × 1024, 16-bit activations (published: 24 + 34 layers, 52M weights)",
            ),
            of(
                3,
                1200,
                Speed::Half,
                with_vectors(lstm1, 19, 600),
                "94 matrices of 600 × 600 in 37 layers, 16-bit activations (published: 37 + 19 layers, 34M weights, and a matrix of 600 × 600)",
            ),
            of(
                4,
                361 * 48,
                Speed::Full,
                named("conv", cnn0),
                "a Go board of 19 × 19: 5 × 5 × 48 → 256 (packed), 13 of 3 × 3 × 256 → 256, 2 of 1 × 1 (published: 16 layers, 8M weights)",
            ),
            of(
                5,
                224 * 224 * 3,
                Speed::Full,
                cnn1(),
                "Inception with batch normalization (2015), 3 more convolutions of 1 × 1 and 4 dense layers of 5208; images in groups that fit the unified buffer (published: an Inception, 72 convolutions, 13 pools, 4 dense layers, 100M weights)",
            ),
        ]
    }

    /// Returns the TPU v1 preset with this name, such as `tpu1/mlp0`.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn of(name: &str) -> Result<Preset> {
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        let all = Preset::all();
        let names: Vec<String> = all.iter().map(Preset::name).collect();
        all.into_iter().find(|p| p.paper.name.eq_ignore_ascii_case(short)).ok_or_else(|| {
            err!(Config, "unknown TPU v1 application `{name}`, and no file or directory has this name").hint(
                format!(
                    "pass one of {}, a run directory, a model file or an int8 .tflite file",
                    names.join(", ")
                ),
            )
        })
    }

    /// Returns the preset's name, such as `tpu1/mlp0`.
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", self.paper.name.to_lowercase())
    }

    /// Generates the preset's timing-only instructions for a batch (default: the TPU v1 paper's batch size).
    ///
    /// # Errors
    /// If accumulators, unified buffer or weight memory are too small; the error names the layer.
    pub fn program(&self, chip: &Tpu1Chip, batch: Option<usize>) -> Result<ChipProgram> {
        chip.check()?;
        let batch = batch.unwrap_or(self.paper.batch);
        let mut maker = PresetBuilder {
            chip,
            batch,
            speed: self.speed,
            at: 0,
            tiles: 0,
            input: (batch * self.input * self.speed.cycles()) as u64,
            program: ChipProgram {
                name: self.name(),
                instructions: Vec::new(),
                parts: Vec::new(),
                weights: Vec::new(),
                batch,
                sample: [self.input, 0],
                rows: 0,
            },
        };
        for (name, shape) in &self.layers {
            maker.layer(name, *shape)?;
        }
        for last in [Instruction::SynchronizeHost, Instruction::InterruptHost, Instruction::Halt] {
            maker.push(last);
        }
        Ok(maker.program)
    }
}

struct PresetBuilder<'a> {
    chip: &'a Tpu1Chip,
    batch: usize,
    speed: Speed,
    /// Location of the layer's input: lower or upper half of the unified buffer.
    at: u32,
    /// Number of tiles so far.
    tiles: usize,
    /// Bytes of input that the first layer reads.
    input: u64,
    program: ChipProgram,
}

impl PresetBuilder<'_> {
    fn push(&mut self, instruction: Instruction) {
        self.program.instructions.push(instruction);
    }

    fn layer(&mut self, name: &str, shape: PresetLayer) -> Result<()> {
        self.push(Instruction::DebugTag(self.program.parts.len() as u32));
        let mut part =
            ProgramLayer { name: name.into(), tiles: 0, useful: 0.0, possible: 0.0, product: None };
        let n = self.chip.matrix;
        // Pixels with fewer channels than a row of the unified buffer share rows.
        let (input, output) = match shape {
            PresetLayer::Matrix { rows, of } => {
                self.matrices(name, rows, of, &mut part)?;
                ((rows * of.channels).div_ceil(n), (rows * of.outputs).div_ceil(n))
            }
            PresetLayer::Vector { values } => self.activate(1, values),
            PresetLayer::Pool { pixels, channels } => self.activate(pixels, channels),
        };
        let used = self.samples(shape, input + output) * (input + output) * self.speed.cycles();
        ensure!(used <= self.chip.buffer_rows(), too_large(self.chip, name, used, self.batch));
        self.program.rows = self.program.rows.max(used);
        self.push(Instruction::Synchronize);
        self.program.parts.push(part);
        self.at = (self.chip.buffer_rows() / 2) as u32 - self.at;
        Ok(())
    }

    /// Applies the activation unit to pixels, one row of 256 values per cycle. Returns the rows of the unified buffer for
    /// input and output.
    fn activate(&mut self, pixels: usize, channels: usize) -> (usize, usize) {
        let n = self.chip.matrix;
        let length = (self.batch * pixels * channels.div_ceil(n) * self.speed.cycles()) as u32;
        let (function, buffer) = (Function::Table, self.at);
        self.push(Instruction::Activate { function, accumulator: 0, buffer, length });
        let rows = (pixels * channels).div_ceil(n);
        (rows, rows)
    }

    /// Returns the samples whose rows are in the unified buffer at once: the batch, or for images as many as fit.
    fn samples(&self, shape: PresetLayer, rows: usize) -> usize {
        let is_image = !matches!(shape, PresetLayer::Matrix { rows: 1, .. } | PresetLayer::Vector { .. });
        let fit = self.chip.buffer_rows() / (rows * self.speed.cycles()).max(1);
        if is_image { self.batch.min(fit.max(1)) } else { self.batch }
    }

    /// Reads the input of the first layer's next rows; it arrives while the array works on earlier rows.
    fn read_input(&mut self, rows: [usize; 2], of: usize) {
        if self.program.parts.is_empty() {
            let [host, end] = rows.map(|row| self.input * row as u64 / of.max(1) as u64);
            self.push(Instruction::ReadHostMemory {
                host: host as u32,
                buffer: 0,
                bytes: (end - host) as u32,
            });
            self.push(Instruction::SynchronizeHost);
        }
    }

    fn matrices(&mut self, name: &str, rows: usize, of: Matrices, part: &mut ProgramLayer) -> Result<()> {
        let (n, all) = (self.chip.matrix, rows * self.batch);
        if rows == 1 && self.batch > self.chip.accumulators {
            return Err(too_many_rows(self.chip, name, self.batch));
        }
        let (down, across) = (of.inputs.div_ceil(n) * of.count, of.outputs.div_ceil(n));
        let cuts = cuts(self.chip, name, all, 1)?;
        let address = (self.tiles * self.chip.tile_bytes()) as u64;
        self.tiles += down * across;
        if self.tiles * self.chip.tile_bytes() > self.chip.weight_memory {
            return Err(too_many_weights(self.chip, name));
        }
        let out = (self.chip.buffer_rows() / 2) as u32 - self.at;
        let mut done = 0;
        for rows in cuts {
            self.read_input([done, done + rows], all);
            done += rows;
            self.push(Instruction::ReadWeights { address, tiles: (down * across) as u32 });
            part.tiles += down * across;
            for column in 0..across {
                // The halves of the accumulators alternate.
                let half = if 2 * rows <= self.chip.accumulators { self.chip.accumulators / 2 } else { 0 };
                let accumulator = ((column % 2) * half) as u16;
                for k in 0..down {
                    self.push(Instruction::MatrixMultiply {
                        buffer: self.at,
                        accumulator,
                        length: rows as u32,
                        speed: self.speed,
                        switch: true,
                        accumulate: k > 0,
                        convolve: false,
                    });
                }
                self.push(Instruction::Activate {
                    function: Function::Normalize,
                    accumulator,
                    buffer: out,
                    length: rows as u32,
                });
            }
        }
        part.product = Some([all, of.inputs, of.outputs, of.count]);
        part.useful = (all * of.inputs * of.outputs * of.count) as f64;
        part.possible = (all * down * across * self.chip.tile_bytes()) as f64;
        Ok(())
    }
}
