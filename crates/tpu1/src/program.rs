//! TPU v1 program: the instructions and weight memory of a batch, and the events that the timing model reads.

use crate::chip::Tpu1Chip;
use crate::instruction::{BYTES, Function, Instruction, Register};
use crate::timing::{BatchTiming, UnitEvent, timing};
use systole_base::{Error, ErrorKind, Result, err};

/// A layer of a TPU v1 program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramLayer {
    /// Name of the layer.
    pub name: String,
    /// Number of weight tiles it fetches; tiles count again for each chunk of rows.
    pub tiles: usize,
    /// Multiply-adds with weights of the model.
    pub useful: f64,
    /// Multiply-adds that its passes could do: rows times the multipliers of the array.
    pub possible: f64,
    /// Matrix products of the layer: rows of the batch, inputs, outputs, and number of products.
    pub product: Option<[usize; 4]>,
}

/// TPU v1 instructions for a batch, with the weight memory they read.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipProgram {
    /// Name of the model.
    pub name: String,
    /// Instructions in issue order.
    pub instructions: Vec<Instruction>,
    /// Layers in the order of their debug tags.
    pub parts: Vec<ProgramLayer>,
    /// Contents of the weight memory: tiles, then biases and tables. Empty in timing-only programs.
    pub weights: Vec<u8>,
    /// Samples per batch.
    pub batch: usize,
    /// Bytes of a sample's input and output.
    pub sample: [usize; 2],
    /// Peak number of unified-buffer rows in use.
    pub rows: usize,
}

/// Current register values.
#[derive(Clone, Debug)]
pub(crate) struct RegisterFile([u64; Register::ALL.len()]);

impl RegisterFile {
    pub(crate) fn new() -> RegisterFile {
        RegisterFile([0; Register::ALL.len()])
    }

    pub(crate) fn set(&mut self, register: Register, value: u64) {
        self.0[register as usize] = value;
    }

    pub(crate) fn get(&self, register: Register) -> u64 {
        self.0[register as usize]
    }

    pub(crate) fn signed(&self, register: Register) -> i64 {
        self.get(register) as i64
    }

    /// Returns a register that holds a size or address.
    pub(crate) fn size(&self, register: Register) -> usize {
        self.get(register) as usize
    }
}

/// Splits a convolution's length into rows and columns.
pub(crate) fn lines_of(length: u32) -> (usize, usize) {
    ((length >> 16) as usize, (length & 0xffff) as usize)
}

/// Returns the cycles of an `Activate` on the unified buffer at one row per cycle: two operands, or the images that it
/// pools.
fn vector_cycles(function: Function, length: usize, registers: &RegisterFile) -> f64 {
    let size = |r: Register| registers.size(r).max(1);
    let rows = match function {
        Function::Add | Function::Subtract | Function::Multiply => 2 * length,
        Function::MaxPool | Function::AveragePool => {
            let area = |h, w| size(h).saturating_mul(size(w));
            let made = area(Register::OutputHeight, Register::OutputWidth);
            let windows = made.saturating_mul(area(Register::WindowHeight, Register::WindowWidth));
            // No row is read twice, and rows outside all windows are not read.
            let read = area(Register::InputHeight, Register::InputWidth).min(windows);
            length.max((length / made.max(1)).saturating_mul(read))
        }
        Function::Normalize | Function::Table => length,
    };
    rows as f64
}

impl ChipProgram {
    /// Encodes the TPU v1 program in bytes, as sent to the chip.
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions.iter().flat_map(|i| i.encode()).collect()
    }

    /// Decodes a TPU v1 program from bytes.
    ///
    /// # Errors
    /// If the number of bytes is not a multiple of 12, or if [`Instruction::decode`] fails; the error has the position.
    pub fn instructions_of(bytes: &[u8]) -> Result<Vec<Instruction>> {
        let (each, rest) = bytes.as_chunks::<BYTES>();
        if !rest.is_empty() {
            return Err(err!(
                Data,
                "a program of {} bytes does not consist of whole instructions",
                bytes.len()
            )
            .because("an instruction has 12 bytes"));
        }
        let decoded = |(n, b)| Instruction::decode(b).map_err(|e: Error| e.at(format!("instruction {n}")));
        each.iter().enumerate().map(decoded).collect()
    }

    /// Returns the events that determine the time. An `Activate` on accumulators overlaps with the next passes if both
    /// halves of the accumulators alternate; rows that need more than a half delay them.
    pub fn events(&self, chip: &Tpu1Chip) -> Vec<UnitEvent> {
        let mut registers = RegisterFile::new();
        let mut events = Vec::new();
        for instruction in &self.instructions {
            match *instruction {
                Instruction::SetConfiguration { register, value } => registers.set(register, value),
                Instruction::ReadHostMemory { bytes, .. } => events.push(UnitEvent::Input(bytes.into())),
                Instruction::MatrixMultiply { length, speed, switch, convolve, .. } => {
                    let (lines, columns) = lines_of(length);
                    let rows = if convolve { lines * columns } else { length as usize };
                    events.push(UnitEvent::Pass { rows, slow: speed.cycles(), switch });
                }
                Instruction::Activate { function: Function::Normalize, length, .. } => {
                    let held_up = 2 * length as usize > chip.accumulators;
                    events.extend(held_up.then_some(UnitEvent::Empty(length.into())));
                }
                Instruction::Activate { function, length, .. } => {
                    events.push(UnitEvent::Vector(vector_cycles(function, length as usize, &registers)));
                }
                Instruction::Synchronize => events.push(UnitEvent::Sync),
                _ => {}
            }
        }
        events
    }

    /// Computes the program's timing on a chip.
    pub fn timing(&self, chip: &Tpu1Chip) -> BatchTiming {
        timing(chip, self.events(chip))
    }

    /// Returns the multiply-adds with weights of the model, and those that its passes could do.
    pub fn multiplications(&self) -> [f64; 2] {
        [self.parts.iter().map(|p| p.useful).sum(), self.parts.iter().map(|p| p.possible).sum()]
    }

    /// Returns the number of weight tiles that the program fetches.
    pub fn tiles(&self) -> usize {
        self.parts.iter().map(|p| p.tiles).sum()
    }

    /// Returns the program's instructions as lines of text, with layer names.
    pub fn listing(&self) -> Vec<String> {
        let line = |i: &Instruction| match i {
            Instruction::DebugTag(n) => match self.parts.get(*n as usize) {
                Some(part) => format!("{i}  ; {}", part.name),
                None => i.to_string(),
            },
            _ => i.to_string(),
        };
        self.instructions.iter().map(line).collect()
    }
}

/// Splits the output rows of a layer into chunks that fit into the accumulators, with `columns` pixels per row. Returns
/// the rows of each chunk.
///
/// # Errors
/// If one row does not fit into the accumulators.
pub(crate) fn cuts(chip: &Tpu1Chip, layer: &str, lines: usize, columns: usize) -> Result<Vec<usize>> {
    let rows = lines * columns;
    if rows <= chip.accumulators {
        return Ok(vec![lines]);
    }
    let most = chip.accumulators / 2 / columns.max(1);
    if most == 0 {
        return Err(err!(
            Unsupported,
            "a line of {columns} pixels needs more than half of the {} accumulators",
            chip.accumulators
        )
        .at(format!("layer `{layer}`"))
        .hint(format!("use smaller images, or pass --accumulators {}", 2 * columns)));
    }
    let whole = vec![most; lines / most];
    let rest = lines % most;
    Ok(whole.into_iter().chain((rest > 0).then_some(rest)).collect())
}

/// Error for a batch whose rows exceed the accumulators.
pub(crate) fn too_many_rows(chip: &Tpu1Chip, layer: &str, rows: usize) -> Error {
    err!(
        Unsupported,
        "a batch of {rows} needs {rows} rows of accumulators, but the chip has {}",
        chip.accumulators
    )
    .at(format!("layer `{layer}`"))
    .hint(format!("pass --batch {}, or less", chip.accumulators))
}

/// Formats a number of bytes.
fn size(bytes: usize) -> String {
    match bytes {
        ..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Error for activations that exceed the unified buffer.
pub(crate) fn too_large(chip: &Tpu1Chip, layer: &str, rows: usize, batch: usize) -> Error {
    let (needed, there) = (size(rows * chip.matrix), size(chip.unified_buffer));
    let what = format!("its activations need {needed}, but the unified buffer has {there}");
    let fits = batch * chip.buffer_rows() / rows.max(1);
    let hint = match fits {
        0 => "use smaller images or fewer channels: a single sample is too large".to_string(),
        n => format!("pass --batch {n}, or less"),
    };
    Error::new(ErrorKind::Unsupported, what).at(format!("layer `{layer}`")).hint(hint)
}

/// Error for weights that exceed the off-chip weight memory.
pub(crate) fn too_many_weights(chip: &Tpu1Chip, layer: &str) -> Error {
    err!(Unsupported, "the weights need more than the {} of weight memory", size(chip.weight_memory))
        .at(format!("layer `{layer}`"))
        .hint("use a smaller model for TPU v1")
}
