//! Minimal reader of optimized HLO modules (`HloModuleProtoWithConfig`): instructions, shapes with layout, estimated
//! cycles.

use std::collections::HashMap;
use systole_ir::Result;
use systole_runtime::protobuf::{ProtoValue, fields};

/// An HLO module: computations by id.
#[derive(Debug, Default)]
pub(crate) struct OptimizedHlo {
    pub(crate) computations: HashMap<u64, HloComputation>,
    pub(crate) entry: u64,
}

#[derive(Debug, Default)]
pub(crate) struct HloComputation {
    pub(crate) name: String,
    pub(crate) instructions: Vec<HloInstruction>,
    pub(crate) root: u64,
}

#[derive(Debug, Default)]
pub(crate) struct HloInstruction {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) opcode: String,
    pub(crate) shape: HloShape,
    pub(crate) operands: Vec<u64>,
    pub(crate) called: Vec<u64>,
    /// Channel id, shared by the parts of one collective.
    pub(crate) channel: Option<u64>,
    /// The compiler's estimated cycles, if there are any.
    pub(crate) cycles: Option<f64>,
    /// Value of a scalar integer constant.
    pub(crate) constant: Option<i64>,
}

/// Shape of an array, or of a tuple of shapes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HloShape {
    element: u64,
    dims: Vec<u64>,
    minor_to_major: Vec<u64>,
    tile: Vec<u64>,
    memory_space: u64,
    parts: Vec<HloShape>,
}

impl OptimizedHlo {
    /// Reads a serialized `HloModuleProtoWithConfig`.
    pub(crate) fn read(bytes: &[u8]) -> Result<OptimizedHlo> {
        let mut module = OptimizedHlo::default();
        for field in fields(bytes) {
            if let (1, ProtoValue::Bytes(b)) = field? {
                module.add(b)?;
            }
        }
        Ok(module)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        for field in fields(bytes) {
            match field? {
                (3, ProtoValue::Bytes(b)) => {
                    let (id, computation) = computation(b)?;
                    self.computations.insert(id, computation);
                }
                (6, ProtoValue::Number(id)) => self.entry = id,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an instruction is a matrix product or convolution, or a fusion that contains one.
    pub(crate) fn multiplies(&self, i: &HloInstruction) -> bool {
        if matches!(i.opcode.as_str(), "convolution" | "dot") {
            return true;
        }
        let inside = i.called.iter().filter_map(|c| self.computations.get(c));
        i.opcode == "fusion" && inside.flat_map(|c| &c.instructions).any(|j| self.multiplies(j))
    }

    /// Trip count of a loop: the constant in its condition, the only hint that libtpu keeps.
    pub(crate) fn trips(&self, i: &HloInstruction) -> f64 {
        let constants = |c: &u64| -> Vec<i64> {
            let own = self.computations.get(c).map(|c| c.instructions.as_slice()).unwrap_or_default();
            let inner = own.iter().flat_map(|j| &j.called).filter_map(|c| self.computations.get(c));
            own.iter().chain(inner.flat_map(|c| &c.instructions)).filter_map(|j| j.constant).collect()
        };
        let largest = i.called.get(1).map(constants).unwrap_or_default().into_iter().max();
        largest.filter(|&n| n > 0).unwrap_or(1) as f64
    }
}

impl HloInstruction {
    /// Shape of the instruction's result. Asynchronous start ops return a tuple of operand and result.
    pub(crate) fn made(&self) -> &HloShape {
        let pair = self.opcode.ends_with("-start") && self.opcode != "all-reduce-start";
        self.shape.parts.get(1).filter(|_| pair).unwrap_or(&self.shape)
    }
}

fn computation(bytes: &[u8]) -> Result<(u64, HloComputation)> {
    let mut found = HloComputation::default();
    let mut id = 0;
    for field in fields(bytes) {
        match field? {
            (1, v) => found.name = v.text().into(),
            (2, ProtoValue::Bytes(b)) => found.instructions.push(instruction(b)?),
            (5, ProtoValue::Number(n)) => id = n,
            (6, ProtoValue::Number(n)) => found.root = n,
            _ => {}
        }
    }
    Ok((id, found))
}

fn instruction(bytes: &[u8]) -> Result<HloInstruction> {
    let mut i = HloInstruction::default();
    for field in fields(bytes) {
        match field? {
            (1, v) => i.name = v.text().into(),
            (2, v) => i.opcode = v.text().into(),
            (3, ProtoValue::Bytes(b)) => i.shape = shape(b)?,
            (8, ProtoValue::Bytes(b)) => i.constant = scalar(b)?,
            (26, ProtoValue::Number(n)) => i.channel = Some(n),
            (35, ProtoValue::Number(n)) => i.id = n,
            (36, v) => i.operands.extend(v.numbers()),
            (38, v) => i.called.extend(v.numbers()),
            (43, v) => i.cycles = cycles(v.text()),
            _ => {}
        }
    }
    Ok(i)
}

/// Extracts `estimated_cycles` from the backend config JSON: `"window_config":{…"estimated_cycles":"1083068"…}`.
fn cycles(config: &str) -> Option<f64> {
    let (_, after) = config.split_once("\"estimated_cycles\":\"")?;
    after.split_once('"')?.0.parse().ok().filter(|c| *c > 0.0)
}

/// Reads an s32 or s64 scalar of a LiteralProto.
fn scalar(bytes: &[u8]) -> Result<Option<i64>> {
    let mut value = None;
    for field in fields(bytes) {
        if let (4 | 6, v) = field? {
            value = v.numbers().first().map(|&n| n as i64);
        }
    }
    Ok(value)
}

fn shape(bytes: &[u8]) -> Result<HloShape> {
    let mut s = HloShape::default();
    for field in fields(bytes) {
        match field? {
            (2, ProtoValue::Number(n)) => s.element = n,
            (3, v) => s.dims.extend(v.numbers()),
            (4, ProtoValue::Bytes(b)) => s.parts.push(shape(b)?),
            (5, ProtoValue::Bytes(b)) => layout(b, &mut s)?,
            _ => {}
        }
    }
    Ok(s)
}

fn layout(bytes: &[u8], s: &mut HloShape) -> Result<()> {
    for field in fields(bytes) {
        match field? {
            (1, v) => s.minor_to_major.extend(v.numbers()),
            // The first tile determines the padding; later tiles only reorder elements within it.
            (6, ProtoValue::Bytes(b)) if s.tile.is_empty() => {
                for tile in fields(b) {
                    if let (1, v) = tile? {
                        s.tile.extend(v.numbers());
                    }
                }
            }
            (8, ProtoValue::Number(n)) => s.memory_space = n,
            _ => {}
        }
    }
    Ok(())
}

impl HloShape {
    /// Bytes in the device's main memory, including tile padding.
    pub(crate) fn bytes(&self) -> f64 {
        if !self.parts.is_empty() {
            return self.parts.iter().map(HloShape::bytes).sum();
        }
        if self.memory_space != 0 {
            return 0.0;
        }
        let mut dims: Vec<f64> = self.dims.iter().map(|&d| d as f64).collect();
        for (k, &tile) in self.tile.iter().rev().enumerate() {
            if let Some(d) = self.minor_to_major.get(k).and_then(|&d| dims.get_mut(d as usize)) {
                *d = (*d / tile as f64).ceil() * tile as f64;
            }
        }
        dims.iter().product::<f64>() * element_bytes(self.element)
    }

    /// Whether it is a scalar, or a tuple of scalars.
    pub(crate) fn is_scalar(&self) -> bool {
        self.dims.iter().product::<u64>() <= 1 && self.parts.iter().all(HloShape::is_scalar)
    }

    /// Bytes without padding, in any memory.
    pub(crate) fn whole(&self) -> f64 {
        let own = self.dims.iter().map(|&d| d as f64).product::<f64>() * element_bytes(self.element);
        self.parts.iter().map(HloShape::whole).fold(own, |sum, part| sum + part)
    }
}

/// Bytes per element by XLA's primitive type number; 0 for tokens and tuples.
fn element_bytes(element: u64) -> f64 {
    match element {
        1 | 2 | 6 | 19 | 20 | 23 | 24 | 25 | 28 | 29 => 1.0,
        3 | 7 | 10 | 16 => 2.0,
        4 | 8 | 11 => 4.0,
        5 | 9 | 12 | 15 => 8.0,
        18 => 16.0,
        21 | 22 => 0.5,
        _ => 0.0,
    }
}
