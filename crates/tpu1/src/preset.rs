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

/// `count` matrices of `inputs` × `outputs` weights.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    inputs: usize,
    outputs: usize,
    count: usize,
}

/// A layer of a preset.
#[derive(Clone, Copy, Debug)]
enum PresetLayer {
    /// Multiplies rows of each sample by matrices.
    Matrix { rows: usize, of: Matrices },
    /// Applies the activation unit to values of each sample.
    Vector { values: usize },
    /// Pools images with these numbers of pixels and channels.
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
    PresetLayer::Matrix { rows, of: Matrices { inputs, outputs, count } }
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

fn cnn1() -> Vec<(String, PresetLayer)> {
    let mut shapes = Vec::new();
    for (pixels, inputs, outputs, taps, pools) in
        [(35 * 35, 64, 96, 3, 5), (17 * 17, 192, 192, 7, 4), (8 * 8, 448, 320, 3, 4)]
    {
        shapes.extend(vec![matrix(pixels, inputs, outputs, taps); 24]);
        shapes.extend(vec![PresetLayer::Pool { pixels, channels: outputs }; pools]);
    }
    shapes.extend(vec![matrix(1, 4480, 4480, 1); 4]);
    named("layer", shapes)
}

impl Preset {
    /// Returns all TPU v1 presets.
    pub fn all() -> Vec<Preset> {
        let dims = [1150, 1000, 1280, 1050, 1020];
        let mlp1 = dims.windows(2).map(|d| matrix(1, d[0], d[1], 1)).collect();
        let lstm1 = (0..37).map(|n| matrix(1, 600, 600, if n % 37 < 20 { 3 } else { 2 })).collect();
        let mut cnn0 = vec![matrix(361, 25 * 48, 256, 1)];
        cnn0.extend(vec![matrix(361, 256, 256, 9); 13]);
        cnn0.extend(vec![matrix(361, 256, 256, 1); 2]);
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
                2000,
                Speed::Full,
                named("fc", vec![matrix(1, 2000, 2000, 1); 5]),
                "5 layers of 2000 × 2000 (published: 20M weights in 5 layers)",
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
                35 * 35 * 64,
                Speed::Full,
                cnn1(),
                "qualitative only: published are 72 convolutions, 13 pools, 4 dense layers and 100M weights, but the published rates contradict each other",
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
        let bytes = (batch * self.input * self.speed.cycles()) as u32;
        maker.push(Instruction::ReadHostMemory { host: 0, buffer: 0, bytes });
        maker.push(Instruction::SynchronizeHost);
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
        let (input, output) = match shape {
            PresetLayer::Matrix { rows, of } => {
                self.matrices(name, rows, of, &mut part)?;
                (rows * of.inputs.div_ceil(n), rows * of.outputs.div_ceil(n))
            }
            PresetLayer::Vector { values } => (values.div_ceil(n), values.div_ceil(n)),
            PresetLayer::Pool { pixels, channels } => {
                (pixels * channels.div_ceil(n), pixels * channels.div_ceil(n))
            }
        };
        if let PresetLayer::Vector { .. } | PresetLayer::Pool { .. } = shape {
            let length = (self.batch * output * self.speed.cycles()) as u32;
            self.push(Instruction::Activate {
                function: Function::Table,
                accumulator: 0,
                buffer: self.at,
                length,
            });
        }
        let used = self.batch * (input + output) * self.speed.cycles();
        ensure!(used <= self.chip.buffer_rows(), too_large(self.chip, name, used, self.batch));
        self.program.rows = self.program.rows.max(used);
        self.push(Instruction::Synchronize);
        self.program.parts.push(part);
        self.at = (self.chip.buffer_rows() / 2) as u32 - self.at;
        Ok(())
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
        for rows in cuts {
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
