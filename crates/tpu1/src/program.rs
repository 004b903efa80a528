//! [`ChipProgram`]: the instructions of a batch with what they were made from, and the events that their time is told by.

use crate::chip::Tpu1Chip;
use crate::instruction::{BYTES, Function, Instruction, Register};
use crate::timing::{BatchTiming, UnitEvent, timing};
use systole_base::{Error, ErrorKind, Result};

/// A layer as the program has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramLayer {
    /// Its name.
    pub name: String,
    /// Tiles of weights that it reads, again where pictures are cut.
    pub tiles: usize,
    /// Multiplications of weights that the model has.
    pub useful: f64,
    /// Rows of all its passes times the multipliers of the array.
    pub possible: f64,
    /// Its products, as rows of the batch, inputs, outputs, and how many of them.
    pub product: Option<[usize; 4]>,
}

/// Instructions for a batch, the weight memory that goes with them, and what they were made from.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipProgram {
    /// What the program was made of.
    pub name: String,
    /// In the order in which they are issued.
    pub instructions: Vec<Instruction>,
    /// Layers in the order of the tags.
    pub parts: Vec<ProgramLayer>,
    /// The weight memory: tiles, then biases and tables. Empty where only the time matters.
    pub weights: Vec<u8>,
    /// Samples of the batch.
    pub batch: usize,
    /// Bytes of a sample's input and of its output.
    pub sample: [usize; 2],
    /// Rows of the unified buffer that are in use at once, at most.
    pub rows: usize,
}

/// Registers as they stand.
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

    /// A size or address.
    pub(crate) fn size(&self, register: Register) -> usize {
        self.get(register) as usize
    }
}

/// Lines and columns that a length of a convolution holds.
pub(crate) fn lines_of(length: u32) -> (usize, usize) {
    ((length >> 16) as usize, (length & 0xffff) as usize)
}

/// Cycles of an `Activate` that reads the unified buffer, a row a cycle: its two operands, or the pictures that it pools.
fn vector_cycles(function: Function, length: usize, registers: &RegisterFile) -> f64 {
    let size = |r: Register| registers.size(r).max(1);
    let rows = match function {
        Function::Add | Function::Subtract | Function::Multiply => 2 * length,
        Function::MaxPool | Function::AveragePool => {
            let area = |h, w| size(h).saturating_mul(size(w));
            let made = area(Register::OutputHeight, Register::OutputWidth);
            let windows = made.saturating_mul(area(Register::WindowHeight, Register::WindowWidth));
            // No row is read twice, and none that lies in no window.
            let read = area(Register::InputHeight, Register::InputWidth).min(windows);
            length.max((length / made.max(1)).saturating_mul(read))
        }
        Function::Normalize | Function::Table => length,
    };
    rows as f64
}

impl ChipProgram {
    /// The program as the chip is sent it.
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions.iter().flat_map(|i| i.encode()).collect()
    }

    /// The instructions of a program as the chip is sent it.
    ///
    /// # Errors
    /// A number of bytes that is no multiple of twelve, and what [`Instruction::decode`] refuses, with its place.
    pub fn instructions_of(bytes: &[u8]) -> Result<Vec<Instruction>> {
        let (each, rest) = bytes.as_chunks::<BYTES>();
        if !rest.is_empty() {
            let what = format!("{} bytes are no whole number of instructions", bytes.len());
            return Err(Error::new(ErrorKind::Data, what).because("each has 12"));
        }
        let decoded = |(n, b)| Instruction::decode(b).map_err(|e: Error| e.at(format!("instruction {n}")));
        each.iter().enumerate().map(decoded).collect()
    }

    /// What its time is told by. An `Activate` of accumulators is overlapped by the next passes where both halves of the
    /// accumulators take turns; rows that need more than a half hold them up.
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

    /// Its time on a chip.
    pub fn timing(&self, chip: &Tpu1Chip) -> BatchTiming {
        timing(chip, self.events(chip))
    }

    /// Multiplications of weights that the model has, and those that its passes had room for.
    pub fn multiplications(&self) -> [f64; 2] {
        [self.parts.iter().map(|p| p.useful).sum(), self.parts.iter().map(|p| p.possible).sum()]
    }

    /// Tiles of weights that are read.
    pub fn tiles(&self) -> usize {
        self.parts.iter().map(|p| p.tiles).sum()
    }

    /// The instructions as lines, with the layers' names.
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

/// How the rows of a layer are cut so that accumulators hold them: lines of so many rows each, as lines of each cut.
///
/// # Errors
/// Where one line is more than the accumulators hold.
pub(crate) fn cuts(chip: &Tpu1Chip, layer: &str, lines: usize, columns: usize) -> Result<Vec<usize>> {
    let rows = lines * columns;
    if rows <= chip.accumulators {
        return Ok(vec![lines]);
    }
    let most = chip.accumulators / 2 / columns.max(1);
    if most == 0 {
        let what = format!(
            "a line of {columns} pixels needs more than half of the {} accumulators",
            chip.accumulators
        );
        return Err(Error::new(ErrorKind::Unsupported, what)
            .at(format!("layer `{layer}`"))
            .hint(format!("smaller pictures, or --accumulators {}", 2 * columns)));
    }
    let whole = vec![most; lines / most];
    let rest = lines % most;
    Ok(whole.into_iter().chain((rest > 0).then_some(rest)).collect())
}

/// The error of a batch whose rows no accumulators hold.
pub(crate) fn too_many_rows(chip: &Tpu1Chip, layer: &str, rows: usize) -> Error {
    let what =
        format!("a batch of {rows} needs {rows} rows of accumulators, and there are {}", chip.accumulators);
    Error::new(ErrorKind::Unsupported, what)
        .at(format!("layer `{layer}`"))
        .hint(format!("--batch {}, or less", chip.accumulators))
}

/// The error of activations that no unified buffer holds.
pub(crate) fn too_large(chip: &Tpu1Chip, layer: &str, rows: usize, batch: usize) -> Error {
    let size = |bytes: usize| match bytes >> 20 {
        0 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    };
    let (needed, there) = (size(rows * chip.matrix), size(chip.unified_buffer));
    let what = format!("its activations need {needed}, and the unified buffer has {there}");
    let fits = batch * chip.buffer_rows() / rows.max(1);
    let hint = match fits {
        0 => "smaller pictures or fewer channels: a single sample is too large".to_string(),
        n => format!("--batch {n}, or less"),
    };
    Error::new(ErrorKind::Unsupported, what).at(format!("layer `{layer}`")).hint(hint)
}

/// The error of weights that the memory beside the chip does not hold.
pub(crate) fn too_many_weights(chip: &Tpu1Chip, layer: &str) -> Error {
    let what = format!("the weights need more than the {} GiB of weight memory", chip.weight_memory >> 30);
    Error::new(ErrorKind::Unsupported, what).at(format!("layer `{layer}`")).hint("a smaller model")
}
