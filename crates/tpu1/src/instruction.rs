//! TPU v1 instruction set: instructions, registers, and their encoding in 12 bytes.
//!
//! The paper names about a dozen instructions and describes one, the multiplication, with 12 bytes: a 3-byte
//! unified-buffer address, a 2-byte accumulator address, a 4-byte length (or two of 2 bytes for convolutions), and
//! opcode and flags in the rest. That layout is used here. **Opcodes, flags, registers and all other fields are our own
//! choice**: they were not published.

use std::fmt;
use systole_base::{Error, ErrorKind, Result};

/// Bytes per TPU v1 instruction.
pub const BYTES: usize = 12;

/// Operand widths of a matrix multiplication on TPU v1: 8 or 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// 8 × 8 bits: one row per cycle.
    Full,
    /// 8 × 16 bits: two cycles per row.
    Half,
    /// 16 × 16 bits: four cycles per row.
    Quarter,
}

impl Speed {
    /// Returns the cycles per input row of a multiplication with these operand widths.
    pub fn cycles(self) -> usize {
        match self {
            Speed::Full => 1,
            Speed::Half => 2,
            Speed::Quarter => 4,
        }
    }
}

/// Defines an enum with a list of its variants in numeric order.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// All variants of the instruction field, in numeric order.
            pub const ALL: &[$name] = &[$($name::$variant),*];
        }
    };
}

numbered! {
    /// Function of an `Activate` instruction.
    Function {
        /// Requantizes accumulators: adds the bias, scales to int8 and clamps (`relu` is a clamp).
        Normalize,
        /// Applies a 256-entry lookup table to unified-buffer values (sigmoid, tanh).
        Table,
        /// Adds two rows of the unified buffer, each with its scale.
        Add,
        /// Multiplies two rows of the unified buffer.
        Multiply,
        /// Maximum over a window of rows.
        MaxPool,
        /// Mean over a window of rows.
        AveragePool,
        /// Subtracts the second row of the unified buffer from the first, each with its scale.
        Subtract,
    }
}

numbered! {
    /// Registers that `SetConfiguration` writes. The paper does not give them; the simulator defines them.
    Register {
        /// Values per pixel, for transfers between host and unified buffer.
        Channels,
        /// Rows of the input image.
        InputHeight,
        /// Columns of the input image.
        InputWidth,
        /// Rows of the output image.
        OutputHeight,
        /// Columns of the output image.
        OutputWidth,
        /// Vertical stride of a window.
        StrideHeight,
        /// Horizontal stride of a window.
        StrideWidth,
        /// Vertical offset of the tap from the window's origin; signed.
        OffsetHeight,
        /// Horizontal offset of the tap from the window's origin; signed.
        OffsetWidth,
        /// Rows of a pooling window.
        WindowHeight,
        /// Columns of a pooling window.
        WindowWidth,
        /// First row, counted over all images, that a pass computes.
        FirstLine,
        /// Padding value; signed.
        Fill,
        /// Weight-memory address of a row of biases or of a table.
        Constants,
        /// Fixed-point multiplier of requantization, or the bits of an f64 factor if the shift is `REAL`.
        Multiplier,
        /// Shift of requantization.
        Shift,
        /// Zero point of the output; signed.
        OutputZero,
        /// Minimum of the output; signed.
        Low,
        /// Maximum of the output; signed.
        High,
        /// Unified-buffer row of the left operand of `Add`, `Subtract` and `Multiply`.
        LeftAddress,
        /// Zero point of the left operand.
        LeftZero,
        /// Multiplier of the left operand.
        LeftMultiplier,
        /// Shift of the left operand.
        LeftShift,
        /// Unified-buffer row of the right operand.
        RightAddress,
        /// Zero point of the right operand.
        RightZero,
        /// Multiplier of the right operand.
        RightMultiplier,
        /// Shift of the right operand.
        RightShift,
    }
}

/// TPU v1 instruction. Addresses of the unified buffer and of accumulators count rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Copies bytes from host memory to the unified buffer.
    ReadHostMemory {
        /// Byte address in host memory.
        host: u32,
        /// Row of the unified buffer.
        buffer: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// Copies bytes from the unified buffer to host memory.
    WriteHostMemory {
        /// Byte address in host memory.
        host: u32,
        /// Row of the unified buffer.
        buffer: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// Fetches tiles from weight memory into the FIFO; retires once the addresses are sent.
    ReadWeights {
        /// Byte address in weight memory.
        address: u64,
        /// Number of tiles.
        tiles: u32,
    },
    /// Multiplies input rows by a tile (one pass over the array). `switch`: use the next tile of the FIFO.
    /// `accumulate`: add to the accumulators instead of overwriting them. `convolve`: select rows by the image
    /// registers; the length is rows × columns.
    MatrixMultiply {
        /// First row of the input.
        buffer: u32,
        /// First row of the sums.
        accumulator: u16,
        /// Number of rows; rows (upper half) and columns (lower half) of the output image if `convolve`.
        length: u32,
        /// Operand widths.
        speed: Speed,
        /// Whether to switch to the next tile.
        switch: bool,
        /// Whether to add to the accumulators.
        accumulate: bool,
        /// Whether the image registers select the rows.
        convolve: bool,
    },
    /// Sends rows of accumulators (or of the unified buffer) through the activation unit into the unified buffer.
    Activate {
        /// Function to apply.
        function: Function,
        /// First row to read, if the function reads accumulators.
        accumulator: u16,
        /// First row to write.
        buffer: u32,
        /// Number of rows.
        length: u32,
    },
    /// Waits until earlier writes to the unified buffer are visible.
    Synchronize,
    /// Waits until host transfers are complete.
    SynchronizeHost,
    /// Writes a register.
    SetConfiguration {
        /// Register to write.
        register: Register,
        /// Value to write; signed values in two's complement.
        value: u64,
    },
    /// Sends an interrupt to the host.
    InterruptHost,
    /// Marks the start of a layer in traces, by number.
    DebugTag(u32),
    /// Does nothing.
    Nop,
    /// Ends the program.
    Halt,
}

/// Opcodes. The paper does not give the values; the simulator defines them.
mod opcode {
    pub const NOP: u8 = 0x00;
    pub const HALT: u8 = 0x02;
    pub const READ_HOST: u8 = 0x04;
    pub const WRITE_HOST: u8 = 0x05;
    pub const READ_WEIGHTS: u8 = 0x08;
    pub const CONFIGURE: u8 = 0x10;
    pub const MULTIPLY: u8 = 0x20;
    pub const TAG: u8 = 0x40;
    pub const INTERRUPT: u8 = 0x41;
    pub const ACTIVATE: u8 = 0x80;
    pub const SYNC_HOST: u8 = 0xfe;
    pub const SYNC: u8 = 0xff;
}

/// Packs little-endian fields `(value, bytes)` one after the other.
fn pack(opcode: u8, fields: &[(u64, usize)]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let (mut at, all) = (1, &mut bytes);
    all[0] = opcode;
    for &(value, width) in fields {
        all[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        at += width;
    }
    bytes
}

fn field(bytes: &[u8; BYTES], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |value, &b| value << 8 | u64::from(b))
}

impl Instruction {
    /// Encodes the instruction in 12 bytes.
    pub fn encode(self) -> [u8; BYTES] {
        use Instruction::*;
        match self {
            Nop => pack(opcode::NOP, &[]),
            Halt => pack(opcode::HALT, &[]),
            Synchronize => pack(opcode::SYNC, &[]),
            SynchronizeHost => pack(opcode::SYNC_HOST, &[]),
            InterruptHost => pack(opcode::INTERRUPT, &[]),
            DebugTag(tag) => pack(opcode::TAG, &[(tag.into(), 4)]),
            ReadHostMemory { host, buffer, bytes } => {
                pack(opcode::READ_HOST, &[(buffer.into(), 3), (host.into(), 4), (bytes.into(), 4)])
            }
            WriteHostMemory { host, buffer, bytes } => {
                pack(opcode::WRITE_HOST, &[(buffer.into(), 3), (host.into(), 4), (bytes.into(), 4)])
            }
            ReadWeights { address, tiles } => {
                pack(opcode::READ_WEIGHTS, &[(address, 5), (0, 2), (tiles.into(), 4)])
            }
            SetConfiguration { register, value } => {
                pack(opcode::CONFIGURE, &[(register as u64, 2), (value, 8)])
            }
            MatrixMultiply { buffer, accumulator, length, speed, switch, accumulate, convolve } => {
                let slow = speed.cycles() as u64 / 2;
                let flags =
                    u64::from(switch) | u64::from(accumulate) << 1 | u64::from(convolve) << 2 | slow << 3;
                let fields = [(flags, 2), (buffer.into(), 3), (accumulator.into(), 2), (length.into(), 4)];
                pack(opcode::MULTIPLY, &fields)
            }
            Activate { function, accumulator, buffer, length } => {
                let fields =
                    [(function as u64, 2), (buffer.into(), 3), (accumulator.into(), 2), (length.into(), 4)];
                pack(opcode::ACTIVATE, &fields)
            }
        }
    }

    /// Decodes an instruction from 12 bytes.
    ///
    /// # Errors
    /// If the opcode, flags, function or register is unknown.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Instruction> {
        use Instruction::*;
        let at = |at, width| field(bytes, at, width);
        let wrong = |what: String| {
            Error::new(ErrorKind::Data, what)
                .because(format!("the bytes of the invalid instruction are {bytes:02x?}"))
        };
        let host = || (at(4, 4) as u32, at(1, 3) as u32, at(8, 4) as u32);
        Ok(match bytes[0] {
            opcode::NOP => Nop,
            opcode::HALT => Halt,
            opcode::SYNC => Synchronize,
            opcode::SYNC_HOST => SynchronizeHost,
            opcode::INTERRUPT => InterruptHost,
            opcode::TAG => DebugTag(at(1, 4) as u32),
            opcode::READ_HOST => {
                let (host, buffer, bytes) = host();
                ReadHostMemory { host, buffer, bytes }
            }
            opcode::WRITE_HOST => {
                let (host, buffer, bytes) = host();
                WriteHostMemory { host, buffer, bytes }
            }
            opcode::READ_WEIGHTS => ReadWeights { address: at(1, 5), tiles: at(8, 4) as u32 },
            opcode::CONFIGURE => {
                let register = Register::ALL.get(at(1, 2) as usize);
                let register = *register.ok_or_else(|| wrong(format!("unknown register {}", at(1, 2))))?;
                SetConfiguration { register, value: at(3, 8) }
            }
            opcode::MULTIPLY => {
                let flags = at(1, 2);
                let speed = match flags >> 3 {
                    0 => Speed::Full,
                    1 => Speed::Half,
                    2 => Speed::Quarter,
                    _ => return Err(wrong(format!("unknown flags {flags:#x} of a multiplication"))),
                };
                let is = |bit: u64| flags >> bit & 1 == 1;
                let (switch, accumulate, convolve) = (is(0), is(1), is(2));
                let (buffer, accumulator, length) = (at(3, 3) as u32, at(6, 2) as u16, at(8, 4) as u32);
                MatrixMultiply { buffer, accumulator, length, speed, switch, accumulate, convolve }
            }
            opcode::ACTIVATE => {
                let function = Function::ALL.get(at(1, 2) as usize);
                let function = *function.ok_or_else(|| wrong(format!("unknown function {}", at(1, 2))))?;
                let (buffer, accumulator, length) = (at(3, 3) as u32, at(6, 2) as u16, at(8, 4) as u32);
                Activate { function, accumulator, buffer, length }
            }
            other => return Err(wrong(format!("unknown opcode {other:#04x}"))),
        })
    }
}

/// Formats the instruction for listings.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Instruction::*;
        match self {
            ReadHostMemory { host, buffer, bytes } => {
                write!(f, "read_host_memory   {bytes} bytes of {host:#x} → UB[{buffer}]")
            }
            WriteHostMemory { host, buffer, bytes } => {
                write!(f, "write_host_memory  UB[{buffer}] → {bytes} bytes of {host:#x}")
            }
            ReadWeights { address, tiles } => {
                write!(f, "read_weights       {tiles} × tile of {address:#x} → FIFO")
            }
            MatrixMultiply { buffer, accumulator, length, speed, switch, accumulate, convolve } => {
                let (name, length) = match convolve {
                    true => ("convolve          ", format!("{} × {}", length >> 16, length & 0xffff)),
                    false => ("matrix_multiply   ", length.to_string()),
                };
                let sign = if *accumulate { "+=" } else { "=" };
                let weights = if *switch { "next tile" } else { "same tile" };
                write!(f, "{name} ACC[{accumulator}] {sign} UB[{buffer}] · {weights}, {length} rows")?;
                match speed {
                    Speed::Full => Ok(()),
                    slow => write!(f, ", {} cycles per row", slow.cycles()),
                }
            }
            Activate { function: Function::Normalize, accumulator, buffer, length } => {
                write!(f, "activate           UB[{buffer}] = normalize ACC[{accumulator}], {length} rows")
            }
            Activate { function, buffer, length, .. } => {
                let name = format!("{function:?}").to_lowercase();
                write!(f, "activate           UB[{buffer}] = {name}, {length} rows")
            }
            Synchronize => write!(f, "synchronize"),
            SynchronizeHost => write!(f, "synchronize_host"),
            SetConfiguration { register, value } => {
                write!(f, "set_configuration  {register:?} = {}", *value as i64)
            }
            InterruptHost => write!(f, "interrupt_host"),
            DebugTag(tag) => write!(f, "debug_tag          {tag}"),
            Nop => write!(f, "nop"),
            Halt => write!(f, "halt"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::rng::RandomStream;

    /// Any twelve bytes are rejected, or re-encode to the same bytes.
    #[test]
    fn bytes_and_instructions_are_each_others() {
        let mut draw = RandomStream::new(1, 2, 3);
        let codes = [0, 2, 4, 5, 8, 0x10, 0x20, 0x40, 0x41, 0x80, 0xfe, 0xff, 0x33];
        let mut decoded = 0;
        for n in 0..20_000 {
            let mut bytes = [0u8; BYTES];
            bytes.iter_mut().for_each(|b| *b = draw.next_u32() as u8);
            bytes[0] = codes[n % codes.len()];
            if n % 3 > 0 {
                (bytes[1], bytes[2]) = (draw.below(28) as u8, 0);
            }
            if let Ok(instruction) = Instruction::decode(&bytes) {
                decoded += 1;
                assert_eq!(Instruction::decode(&instruction.encode()).unwrap(), instruction);
                assert!(!instruction.to_string().is_empty());
            }
        }
        assert!(decoded > 10_000, "{decoded}");
        assert!(Register::ALL.iter().enumerate().all(|(n, r)| *r as usize == n));
    }

    /// The paper's layout of the one instruction that it describes.
    #[test]
    fn a_multiplication_has_three_two_and_four_bytes_behind_its_flags() {
        let multiply = Instruction::MatrixMultiply {
            buffer: 0x01_0203,
            accumulator: 0x0405,
            length: 0x0607_0809,
            speed: Speed::Half,
            switch: true,
            accumulate: false,
            convolve: true,
        };
        let bytes = multiply.encode();
        assert_eq!(bytes[1..3], [0b1101, 0]);
        assert_eq!(bytes[3..], [3, 2, 1, 5, 4, 9, 8, 7, 6]);
        let e = Instruction::decode(&[0x33; BYTES]).unwrap_err();
        assert!(e.to_string().contains("0x33"), "{e}");
    }
}
