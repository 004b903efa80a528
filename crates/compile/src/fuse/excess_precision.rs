//! Excess precision: element-wise programs over bf16 and f16 keep intermediate values in f32 and round only what they
//! store.
//!
//! By definition each op rounds its result to the narrow type. Kernels compute in f32 anyway, so each of these
//! roundings costs instructions and precision. XLA omits them by default too (`xla_allow_excess_precision`). Explicit
//! `reduce_precision` still rounds.

use crate::program::{Kernel, Map, MapInstr, MapLoad, MapRegister, ProgramSchedule};
use smallvec::smallvec;
use systole_ir::op::{CompareType, Convert, Direction};
use systole_ir::{DType, Op};

/// Applies excess precision to the element-wise programs of a schedule, including those of reductions.
pub fn run(s: &mut ProgramSchedule) {
    for step in &mut s.steps {
        if let Kernel::Map(map) | Kernel::Reduce { map, .. } = &mut step.kernel
            && rounds_on_the_way(map)
        {
            *map = WideMapBuilder::new(map).run();
        }
    }
}

/// Whether a type is bf16 or f16, for which kernels compute in f32.
pub fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Rewrites a map so that it reads an input in f32 instead of bf16 or f16.
pub fn from_wide(map: &Map, input: usize) -> Map {
    let mut w = WideMapBuilder::new(map);
    for (e, load) in w.loads.iter_mut().enumerate() {
        if let MapLoad::Array { input: i, dtype, .. } = load
            && *i == input
        {
            *dtype = DType::F32;
            (w.same[e], w.wide[e]) = (None, Some(e));
        }
    }
    w.run()
}

/// Whether an op on bf16 or f16 computes the same on f32 operands, up to rounding. Other ops keep their narrow
/// operands.
fn reads_wide(instr: &MapInstr) -> bool {
    let by_value = match &instr.op {
        Op::Unary(_) | Op::Binary(_) | Op::Clamp(_) | Op::Select(_) | Op::Convert(_) => true,
        // Comparisons that find the maximum of an array compare stored values, which were rounded. An unrounded value
        // would equal none of them, and the gradient of the maximum would vanish.
        Op::Compare(c) => {
            let is_equality = matches!(c.direction, Direction::Eq | Direction::Ne);
            c.compare_type != CompareType::TotalOrder && !is_equality
        }
        // reduce_precision rounds intentionally. The others are not instructions of a map, but loads or separate steps.
        _ => false,
    };
    by_value && is_narrow(instr.from)
}

/// Whether an op can produce f32 instead of bf16 or f16.
fn gives_wide(instr: &MapInstr) -> bool {
    let from_f32 = matches!(instr.op, Op::Convert(_)) && instr.from == DType::F32;
    is_narrow(instr.to) && (reads_wide(instr) || from_f32)
}

/// Whether a map has a rounding to remove: a narrow result that another instruction reads.
fn rounds_on_the_way(map: &Map) -> bool {
    let first = map.loads.len();
    map.instrs.iter().any(|instr| {
        let rounded = |&&e: &&MapRegister| e >= first && gives_wide(&map.instrs[e - first]);
        reads_wide(instr) && instr.args.iter().any(|e| rounded(&e))
    })
}

/// Rebuilds a map instruction by instruction.
struct WideMapBuilder<'m> {
    old: &'m Map,
    loads: Vec<MapLoad>,
    instrs: Vec<MapInstr>,
    /// For each old register, the new registers that hold it in its own type and in f32, if they exist.
    same: Vec<Option<MapRegister>>,
    wide: Vec<Option<MapRegister>>,
}

impl<'m> WideMapBuilder<'m> {
    fn new(old: &'m Map) -> WideMapBuilder<'m> {
        let registers = old.loads.len() + old.instrs.len();
        let mut w = WideMapBuilder {
            old,
            loads: old.loads.clone(),
            instrs: Vec::with_capacity(2 * registers),
            same: vec![None; registers],
            wide: vec![None; registers],
        };
        for (e, load) in old.loads.iter().enumerate() {
            match load {
                MapLoad::Splat { value, dtype } if is_narrow(*dtype) => {
                    w.loads[e] = MapLoad::Splat { value: *value, dtype: DType::F32 };
                    w.wide[e] = Some(e);
                }
                _ => w.same[e] = Some(e),
            }
        }
        w
    }

    fn run(mut self) -> Map {
        let (old, first) = (self.old, self.old.loads.len());
        for (k, instr) in old.instrs.iter().enumerate() {
            let e = first + k;
            if matches!(instr.op, Op::Convert(_)) && self.passes_on(e, instr) {
                continue;
            }
            let (reads, gives) = (reads_wide(instr), gives_wide(instr));
            let args = instr
                .args
                .iter()
                .map(|&a| if reads && is_narrow(old.dtype(a)) { self.wide(a) } else { self.same(a) });
            let args = args.collect();
            let from = if reads { DType::F32 } else { instr.from };
            let to = if gives { DType::F32 } else { instr.to };
            let op = match &instr.op {
                Op::Convert(_) => Convert { to }.into(),
                op => op.clone(),
            };
            let contraction = instr.contraction;
            let new = self.push(MapInstr { op, args, from, to, contraction });
            if gives {
                self.wide[e] = Some(new);
            } else {
                self.same[e] = Some(new);
            }
        }
        let stores = old.stores.iter().map(|&e| self.same(e)).collect();
        Map { shape: old.shape.clone(), loads: self.loads, instrs: self.instrs, stores }
    }

    /// Whether a conversion needs no instruction because its operand exists in f32.
    fn passes_on(&mut self, e: MapRegister, instr: &MapInstr) -> bool {
        let a = instr.args[0];
        if reads_wide(instr) && instr.to == DType::F32 {
            self.same[e] = Some(self.wide(a));
        } else if gives_wide(instr) {
            self.wide[e] = Some(if instr.from == DType::F32 { self.same(a) } else { self.wide(a) });
        } else {
            return false;
        }
        true
    }

    /// Register that holds an old one in its own type; rounds the f32 register if there is no other.
    fn same(&mut self, e: MapRegister) -> MapRegister {
        if let Some(new) = self.same[e] {
            return new;
        }
        let (a, to) = (self.wide(e), self.old.dtype(e));
        let new = self.push(MapInstr {
            op: Convert { to }.into(),
            args: smallvec![a],
            from: DType::F32,
            to,
            contraction: None,
        });
        self.same[e] = Some(new);
        new
    }

    /// Register that holds an old one in f32; widens it if there is none.
    fn wide(&mut self, e: MapRegister) -> MapRegister {
        if let Some(new) = self.wide[e] {
            return new;
        }
        let (a, from, to) = (self.same(e), self.old.dtype(e), DType::F32);
        let new = self.push(MapInstr {
            op: Convert { to }.into(),
            args: smallvec![a],
            from,
            to,
            contraction: None,
        });
        self.wide[e] = Some(new);
        new
    }

    fn push(&mut self, instr: MapInstr) -> MapRegister {
        self.instrs.push(instr);
        self.loads.len() + self.instrs.len() - 1
    }
}
