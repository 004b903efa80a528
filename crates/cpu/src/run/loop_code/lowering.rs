//! Programs of a loop while they are lowered: where their arrays are, and which of their elements are known values.
#![forbid(unsafe_code)]

use crate::run::executor::Executor;
use crate::run::loop_code::loop_call::{JitLoopCall, PointerSource, SlotMemory};
use crate::simd::jit::scalar_code::{
    CodeLabel, FrameOffset, ScalarAddress, ScalarCode, ScalarItem, ScalarType, ScalarValue,
};
use crate::simd::level::Level;
use std::collections::HashMap;
use std::sync::Arc;
use systole_compile::{ALIGN, Location, SlotId};

/// Bytes of the largest array whose elements are values.
pub const SMALL: usize = 128;

/// A slot of one of the loop's programs: program, then slot.
pub type ProgramSlot = (usize, SlotId);

/// Argument of a program inside the loop.
#[derive(Clone, Copy, Debug)]
pub enum LoopArgument {
    /// A slot of the program around it.
    Slot(ProgramSlot),
    /// A state of a loop, or an input of the whole.
    Memory(SlotMemory),
}

/// A program at one place of the code.
pub struct LoopProgram {
    pub program: Arc<Executor>,
    params: Vec<LoopArgument>,
    results: Vec<SlotMemory>,
    /// Whether each result is stored in its final memory, even if it is small.
    in_place: Vec<bool>,
    /// Offsets in scratch: the program's arena, and its kernels' scratch.
    arena: usize,
    pub scratch: usize,
    memory: HashMap<SlotId, SlotMemory>,
    /// Values of elements, by byte offset and form.
    known: HashMap<SlotId, HashMap<(usize, ScalarType), ScalarValue>>,
}

/// A loop that is lowered to scalar code.
pub struct LoopLowering {
    pub code: ScalarCode,
    pub level: Level,
    pub programs: Vec<LoopProgram>,
    pub calls: Vec<JitLoopCall>,
    /// Pointers in the frame.
    pub pointers: Vec<(FrameOffset, PointerSource)>,
}

impl LoopLowering {
    pub fn new(level: Level) -> LoopLowering {
        LoopLowering {
            code: ScalarCode::default(),
            level,
            programs: Vec::new(),
            calls: Vec::new(),
            pointers: Vec::new(),
        }
    }

    /// Adds a program at this place of the code; returns its number. `results`: memory of each result, and whether it
    /// is stored there even if it is small. `arena`: offset of its memory in scratch.
    pub fn enter(
        &mut self,
        program: &Arc<Executor>,
        params: Vec<LoopArgument>,
        results: Vec<(SlotMemory, bool)>,
        arena: usize,
    ) -> usize {
        let (results, in_place) = results.into_iter().unzip();
        self.programs.push(LoopProgram {
            program: program.clone(),
            params,
            results,
            in_place,
            arena,
            scratch: arena + program.schedule().arena_bytes.next_multiple_of(ALIGN),
            memory: HashMap::new(),
            known: HashMap::new(),
        });
        self.programs.len() - 1
    }

    /// Returns the address of a pointer in the frame.
    pub fn pointer(&mut self, source: PointerSource) -> FrameOffset {
        if let Some((at, _)) = self.pointers.iter().find(|(_, s)| s.is_same(&source)) {
            return *at;
        }
        let at = self.code.reserve(8);
        self.pointers.push((at, source));
        at
    }

    /// Returns memory in scratch.
    pub fn scratch(&mut self, displacement: usize) -> SlotMemory {
        SlotMemory::Pointer { pointer: self.pointer(PointerSource::Scratch), displacement }
    }

    /// Returns the slot itself, or the slot around the program that is its argument.
    pub fn owner(&self, (mut program, mut slot): ProgramSlot) -> ProgramSlot {
        loop {
            let p = &self.programs[program];
            match p.program.schedule().slots[slot].place {
                Location::Param(k) => match p.params[k] {
                    LoopArgument::Slot(around) => (program, slot) = around,
                    LoopArgument::Memory(_) => return (program, slot),
                },
                _ => return (program, slot),
            }
        }
    }

    /// Returns the bytes of a slot.
    pub fn bytes(&self, (program, slot): ProgramSlot) -> usize {
        self.programs[program].program.schedule().slots[slot].bytes
    }

    /// Returns the memory of a slot.
    pub fn memory(&mut self, slot: ProgramSlot) -> SlotMemory {
        let (program, slot) = self.owner(slot);
        if let Some(&memory) = self.programs[program].memory.get(&slot) {
            return memory;
        }
        let p = &self.programs[program];
        let storage = p.program.schedule().slots[slot].clone();
        let memory = match storage.place {
            Location::Param(k) => match p.params[k] {
                LoopArgument::Memory(memory) => memory,
                LoopArgument::Slot(around) => self.memory(around),
            },
            Location::Constant(constant) => {
                let source = PointerSource::Constant(p.program.clone(), constant);
                SlotMemory::Pointer { pointer: self.pointer(source), displacement: 0 }
            }
            Location::View(_) => {
                let pointer = self.code.reserve(8);
                self.code.visible.push((pointer, 8));
                SlotMemory::Pointer { pointer, displacement: 0 }
            }
            Location::Result(k) if p.in_place[k] || storage.bytes > SMALL => p.results[k],
            Location::Arena(at) if storage.bytes > SMALL => {
                let displacement = p.arena + at;
                self.scratch(displacement)
            }
            _ => SlotMemory::Frame(self.code.reserve(storage.bytes)),
        };
        self.programs[program].memory.insert(slot, memory);
        memory
    }

    /// Returns the address of a byte of some memory; `None` if it is out of reach.
    pub fn address(
        &self,
        memory: SlotMemory,
        bytes: usize,
        index: Option<ScalarValue>,
    ) -> Option<ScalarAddress> {
        Some(match memory {
            SlotMemory::Frame(at) => ScalarAddress::Frame(at + bytes),
            SlotMemory::Pointer { pointer, displacement } => {
                let displacement = displacement + bytes;
                i32::try_from(displacement + 8).ok()?;
                ScalarAddress::Pointer { pointer, displacement, index }
            }
        })
    }

    /// Returns the value of element `i` of a slot.
    pub fn element(&mut self, slot: ProgramSlot, i: usize, scalar: ScalarType) -> Option<ScalarValue> {
        let owner = self.owner(slot);
        let at = i * scalar.bytes();
        if let Some(value) = self.constant(owner, at, scalar) {
            return Some(value);
        }
        let is_small = self.bytes(owner) <= SMALL;
        let p = &self.programs[owner.0];
        if let Some(&value) = p.known.get(&owner.1).and_then(|known| known.get(&(at, scalar))) {
            return Some(value);
        }
        let memory = self.memory(owner);
        let address = self.address(memory, at, None)?;
        let value = self.code.load(address, scalar);
        if is_small {
            self.programs[owner.0].known.entry(owner.1).or_default().insert((at, scalar), value);
        }
        Some(value)
    }

    /// Returns an element of a small constant.
    fn constant(
        &mut self,
        (program, slot): ProgramSlot,
        at: usize,
        scalar: ScalarType,
    ) -> Option<ScalarValue> {
        let schedule = self.programs[program].program.schedule();
        let Location::Constant(constant) = schedule.slots[slot].place else { return None };
        let bytes = schedule.constants[constant].bytes();
        if bytes.len() > SMALL {
            return None;
        }
        let mut bits = [0; 8];
        bits[..scalar.bytes()].copy_from_slice(&bytes[at..at + scalar.bytes()]);
        let bits = u64::from_le_bytes(bits);
        Some(match scalar {
            ScalarType::Bool => self.code.word(if bits == 0 { 0 } else { u32::MAX }),
            ScalarType::F32 | ScalarType::I32 => self.code.word(bits as u32),
            ScalarType::F64 | ScalarType::I64 => self.code.double(bits),
        })
    }

    /// Makes a value element `i` of a slot.
    pub fn set_element(
        &mut self,
        slot: ProgramSlot,
        i: usize,
        scalar: ScalarType,
        value: ScalarValue,
    ) -> Option<()> {
        let owner = self.owner(slot);
        let (at, end) = (i * scalar.bytes(), (i + 1) * scalar.bytes());
        let memory = self.memory(owner);
        let to = self.address(memory, at, None)?;
        self.code.store(value, to, scalar);
        let known = self.programs[owner.0].known.entry(owner.1).or_default();
        known.retain(|(from, scalar), _| from + scalar.bytes() <= at || *from >= end);
        known.insert((at, scalar), value);
        Some(())
    }

    /// Notes that a slot's memory was written by other means.
    pub fn forget(&mut self, slot: ProgramSlot) {
        let (program, slot) = self.owner(slot);
        self.programs[program].known.remove(&slot);
    }

    /// Notes that calls or indexed accesses read a slot's memory.
    pub fn expose(&mut self, slot: ProgramSlot) -> SlotMemory {
        let memory = self.memory(slot);
        if let SlotMemory::Frame(at) = memory {
            let bytes = self.bytes(self.owner(slot));
            self.code.visible.push((at, bytes));
        }
        memory
    }

    /// Makes the next item the target of jumps to `label`.
    pub fn place(&mut self, label: CodeLabel) {
        self.code.place(label);
        self.programs.iter_mut().for_each(|p| p.known.clear());
    }

    /// Adds a call.
    pub fn call(&mut self, call: JitLoopCall) {
        self.calls.push(call);
        self.code.items.push(ScalarItem::Call(self.calls.len() - 1));
    }

    /// Copies an array from memory to memory.
    pub fn copy(&mut self, from: SlotMemory, to: SlotMemory, bytes: usize) {
        for memory in [from, to] {
            if let SlotMemory::Frame(at) = memory {
                self.code.visible.push((at, bytes));
            }
        }
        self.call(JitLoopCall::Copy { from, to, bytes });
    }
}
