//! Groups of instructions of an element-wise program that the JIT compiles, inside a program that is interpreted.
//!
//! One op that the JIT does not know (log1p, sine, an op of f64) leaves a program to the interpreter. Its other
//! instructions then are few loops of machine code over tiles instead of one loop each.
#![forbid(unsafe_code)]

use crate::simd::jit::{JitLoop, LoadAccess, ResultSink};
use crate::simd::level::Level;
use smallvec::{SmallVec, smallvec};
use systole_compile::{Map, MapInstr, MapLoad, MapRegister};
use systole_ir::op::Convert;
use systole_ir::{DType, Shape};

/// What the interpreter runs at a time.
pub enum TileStep {
    /// An instruction, by its number.
    Single(usize),
    /// Several instructions as machine code.
    Group(JitGroup),
}

/// Machine code of several instructions, and the program's registers that it reads and writes.
pub struct JitGroup {
    pub code: JitLoop,
    pub reads: Vec<MapRegister>,
    pub writes: Vec<MapRegister>,
}

/// Returns the steps of a program in an order in which operands come first. Without `jit`, each instruction is a step.
pub fn tile_steps(map: &Map, level: Level, jit: bool) -> Vec<TileStep> {
    if !jit {
        return (0..map.instrs.len()).map(TileStep::Single).collect();
    }
    // The instruction that rounds to bf16 flushes subnormal numbers to zero, other than the interpreter.
    let level = if level == Level::Avx512Bf16 { Level::Avx512 } else { level };
    let known: Vec<bool> = (0..map.instrs.len()).map(|k| is_known(map, k, level)).collect();
    let mut done = vec![false; map.instrs.len()];
    let mut steps = Vec::new();
    let mut left: Vec<usize> = (0..map.instrs.len()).collect();
    while !left.is_empty() {
        for kind in [true, false] {
            let mut ready = Vec::new();
            left.retain(|&k| {
                let is_ready = known[k] == kind && map.instrs[k].args.iter().all(|&a| is_done(map, &done, a));
                if is_ready {
                    done[k] = true;
                    ready.push(k);
                }
                !is_ready
            });
            match kind {
                true => compile(map, &ready, level, &mut steps),
                false => steps.extend(ready.into_iter().map(TileStep::Single)),
            }
        }
    }
    steps
}

fn is_done(map: &Map, done: &[bool], register: MapRegister) -> bool {
    register.checked_sub(map.loads.len()).is_none_or(|k| done[k])
}

/// Whether the JIT supports an instruction.
fn is_known(map: &Map, k: usize, level: Level) -> bool {
    let single = register_program(map, &[k]);
    JitLoop::supports(&single.map, &single.access, level)
}

/// Appends the steps of instructions that the JIT supports: one, or more where their values need too many registers.
fn compile(map: &Map, instrs: &[usize], level: Level, steps: &mut Vec<TileStep>) {
    if let [k] = instrs {
        steps.push(TileStep::Single(*k));
    }
    if instrs.len() < 2 {
        return;
    }
    let RegisterProgram { map: own, access, reads, writes } = register_program(map, instrs);
    match JitLoop::new(&own, &access, ResultSink::Arrays, level) {
        Some(code) => steps.push(TileStep::Group(JitGroup { code, reads, writes })),
        None => {
            let (first, second) = instrs.split_at(instrs.len() / 2);
            compile(map, first, level, steps);
            compile(map, second, level, steps);
        }
    }
}

/// Some instructions of a program as a program of their own, whose arrays are registers.
struct RegisterProgram {
    map: Map,
    access: Vec<LoadAccess>,
    reads: Vec<MapRegister>,
    writes: Vec<MapRegister>,
}

fn register_program(map: &Map, instrs: &[usize]) -> RegisterProgram {
    let loads = map.loads.len();
    let own = |register: MapRegister| register.checked_sub(loads).and_then(|k| instrs.binary_search(&k).ok());
    let mut reads: Vec<MapRegister> = Vec::new();
    for &a in instrs.iter().flat_map(|&k| &map.instrs[k].args) {
        if own(a).is_none() && !reads.contains(&a) {
            reads.push(a);
        }
    }
    let (access, read): (Vec<LoadAccess>, Vec<MapLoad>) =
        reads.iter().enumerate().map(|(input, &register)| register_load(map, input, register)).unzip();
    let new = |register: MapRegister| match own(register) {
        Some(k) => reads.len() + k,
        None => reads.iter().position(|&r| r == register).unwrap_or_default(),
    };
    let mut code: Vec<MapInstr> = instrs.iter().map(|&k| map.instrs[k].clone()).collect();
    code.iter_mut().flat_map(|instr| &mut instr.args).for_each(|a| *a = new(*a));
    let is_read = |register: MapRegister| {
        let others = map.instrs.iter().enumerate().filter(|(k, _)| instrs.binary_search(k).is_err());
        map.stores.contains(&register) || others.into_iter().any(|(_, i)| i.args.contains(&register))
    };
    let writes: Vec<MapRegister> = instrs.iter().map(|k| loads + k).filter(|&r| is_read(r)).collect();
    let mut stores = Vec::new();
    for &register in &writes {
        let from = map.dtype(register);
        let mut at = new(register);
        // Registers hold narrow floats as f32.
        if lane(from) != from {
            let op = Convert { to: lane(from) }.into();
            code.push(MapInstr { op, args: smallvec![at], from, to: lane(from), contraction: None });
            at = reads.len() + code.len() - 1;
        }
        stores.push(at);
    }
    let shape = Shape::from(vec![map.shape.elements()]);
    RegisterProgram { map: Map { shape, loads: read, instrs: code, stores }, access, reads, writes }
}

/// Returns the type that a register's lanes have in memory.
fn lane(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Returns how machine code reads a register of the program: constants are a part of the code.
fn register_load(map: &Map, input: usize, register: MapRegister) -> (LoadAccess, MapLoad) {
    match map.loads.get(register) {
        Some(splat @ MapLoad::Splat { dtype, .. }) if dtype.is_float() || dtype.size() == 4 => {
            (LoadAccess::Constant, splat.clone())
        }
        _ => {
            let strides: SmallVec<[usize; 4]> = smallvec![1];
            let dtype = lane(map.dtype(register));
            (LoadAccess::Stream, MapLoad::Array { input, dtype, strides, offset: 0 })
        }
    }
}
