//! The instructions, and twelve bytes for each.
//!
//! The paper names about a dozen and says of one, the multiplication, that it has 12 bytes: 3 of an address in the unified
//! buffer, 2 of one in the accumulators, 4 of a length (or two of 2 for convolutions), and opcode and flags in the rest.
//! That layout is used here. **Opcodes, flags, the registers and every other field are ours**: they were not published.

use std::fmt;
use systole_base::{Error, ErrorKind, Result};

/// Bytes of an instruction.
pub const BYTES: usize = 12;

/// How many bits the operands of a multiplication have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// 8 × 8 bits: a row a cycle.
    Full,
    /// 8 × 16 bits: two cycles.
    Half,
    /// 16 × 16 bits: four.
    Quarter,
}

impl Speed {
    /// Cycles of a row.
    pub fn cycles(self) -> usize {
        match self {
            Speed::Full => 1,
            Speed::Half => 2,
            Speed::Quarter => 4,
        }
    }
}

/// An enum with the list of its variants, in the order of their numbers.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// All, in the order of their numbers.
            pub const ALL: &[$name] = &[$($name::$variant),*];
        }
    };
}

numbered! {
    /// What an `Activate` does with each value.
    Function {
        /// Accumulators + bias, scaled to 8 bits and clamped (`relu` is a clamp).
        Normalize,
        /// A value of the unified buffer through a table of 256 (sigmoid, tanh).
        Table,
        /// The sum of two rows of the unified buffer, each with its scale.
        Add,
        /// Their product.
        Multiply,
        /// The largest of a window of rows.
        MaxPool,
        /// Their mean.
        AveragePool,
        /// The first of two rows of the unified buffer less the second, each with its scale.
        Subtract,
    }
}

numbered! {
    /// What `SetConfiguration` sets. All are ours.
    Register {
        /// Values of a pixel, for transfers between host and unified buffer.
        Channels,
        /// Lines of the picture that is read.
        InputHeight,
        /// … its columns.
        InputWidth,
        /// … lines of the one that is written.
        OutputHeight,
        /// … its columns.
        OutputWidth,
        /// Steps of a window, in lines.
        StrideHeight,
        /// … and columns.
        StrideWidth,
        /// Where the tap lies, relative to the window's step, in lines; signed.
        OffsetHeight,
        /// … and columns.
        OffsetWidth,
        /// Taps of a pooling window, in lines.
        WindowHeight,
        /// … in columns.
        WindowWidth,
        /// The first line of all pictures that a pass computes.
        FirstLine,
        /// What lies outside the picture; signed.
        Fill,
        /// Byte of the weight memory where a row of biases, or a table, begins.
        Constants,
        /// How sums become 8 bits: a fixed-point multiplier, its shift; or a number (the bits of an f64) where the shift is `REAL`.
        Multiplier,
        /// … and its shift.
        Shift,
        /// Zero point of what is written; signed, as the limits are.
        OutputZero,
        /// … the least value.
        Low,
        /// … and the largest.
        High,
        /// The left operand of `Add` and `Multiply`: its row of the unified buffer.
        LeftAddress,
        /// … its zero point.
        LeftZero,
        /// … its multiplier.
        LeftMultiplier,
        /// … and shift.
        LeftShift,
        /// The right operand's.
        RightAddress,
        /// … its zero point.
        RightZero,
        /// … its multiplier.
        RightMultiplier,
        /// … and shift.
        RightShift,
    }
}

/// An instruction. Addresses of the unified buffer and of accumulators count rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `bytes` of the host's memory into the unified buffer.
    ReadHostMemory {
        /// Byte of the host's memory.
        host: u32,
        /// Row of the unified buffer.
        buffer: u32,
        /// How many.
        bytes: u32,
    },
    /// … and back.
    WriteHostMemory {
        /// Byte of the host's memory.
        host: u32,
        /// Row of the unified buffer.
        buffer: u32,
        /// How many.
        bytes: u32,
    },
    /// So many tiles from a byte of the weight memory into the queue; done once the addresses are sent.
    ReadWeights {
        /// Byte of the weight memory.
        address: u64,
        /// How many.
        tiles: u32,
    },
    /// A pass over the array. `switch`: with the next tile of the queue. `accumulate`: sums are added, not overwritten.
    /// `convolve`: rows are picked by the registers of a picture, and the length is lines × columns.
    MatrixMultiply {
        /// First row of the input.
        buffer: u32,
        /// First row of the sums.
        accumulator: u16,
        /// Rows; lines (upper half) and columns (lower half) where it convolves.
        length: u32,
        /// Bits of the operands.
        speed: Speed,
        /// Whether the next tile is taken.
        switch: bool,
        /// Whether sums are added to what is there.
        accumulate: bool,
        /// Whether the registers of a picture pick the rows.
        convolve: bool,
    },
    /// Rows of accumulators (or of the unified buffer) through the activation unit, into the unified buffer.
    Activate {
        /// What is done.
        function: Function,
        /// First row that is read, of a function that reads accumulators.
        accumulator: u16,
        /// First row that is written.
        buffer: u32,
        /// Rows.
        length: u32,
    },
    /// What was written to the unified buffer can be read from here on.
    Synchronize,
    /// The host has read or written what it was asked to.
    SynchronizeHost,
    /// A register's new value.
    SetConfiguration {
        /// Which.
        register: Register,
        /// Its value; signed ones in two's complement.
        value: u64,
    },
    /// The host is told.
    InterruptHost,
    /// A mark for traces: the number of a layer.
    DebugTag(u32),
    /// Nothing.
    Nop,
    /// The end.
    Halt,
}

/// Opcodes. The values are ours.
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

/// Little-endian fields of so many bytes, one after the other.
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
    /// Its twelve bytes.
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

    /// The instruction of twelve bytes.
    ///
    /// # Errors
    /// An opcode, flag, function or register that there is not.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Instruction> {
        use Instruction::*;
        let at = |at, width| field(bytes, at, width);
        let wrong =
            |what: String| Error::new(ErrorKind::Data, what).because(format!("the bytes are {bytes:02x?}"));
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
                let register =
                    *register.ok_or_else(|| wrong(format!("there is no register {}", at(1, 2))))?;
                SetConfiguration { register, value: at(3, 8) }
            }
            opcode::MULTIPLY => {
                let flags = at(1, 2);
                let speed = match flags >> 3 {
                    0 => Speed::Full,
                    1 => Speed::Half,
                    2 => Speed::Quarter,
                    _ => return Err(wrong(format!("a multiplication has no flags {flags:#x}"))),
                };
                let is = |bit: u64| flags >> bit & 1 == 1;
                let (switch, accumulate, convolve) = (is(0), is(1), is(2));
                let (buffer, accumulator, length) = (at(3, 3) as u32, at(6, 2) as u16, at(8, 4) as u32);
                MatrixMultiply { buffer, accumulator, length, speed, switch, accumulate, convolve }
            }
            opcode::ACTIVATE => {
                let function = Function::ALL.get(at(1, 2) as usize);
                let function =
                    *function.ok_or_else(|| wrong(format!("there is no function {}", at(1, 2))))?;
                let (buffer, accumulator, length) = (at(3, 3) as u32, at(6, 2) as u16, at(8, 4) as u32);
                Activate { function, accumulator, buffer, length }
            }
            other => return Err(wrong(format!("there is no opcode {other:#04x}"))),
        })
    }
}

/// As the listing shows it.
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
                    slow => write!(f, ", {} cycles a row", slow.cycles()),
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

    /// Whatever twelve bytes hold, they are refused or are what they decode to.
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
        assert!(e.to_string().contains("no opcode 0x33"), "{e}");
    }
}
