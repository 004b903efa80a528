//! Multi-output fusion of reductions: merges reductions over the same large operand into one step that reads it once.
//!
//! The reductions must have the same monoid and index space.

use crate::program::{Kernel, Map, MapInstr, MapLoad, MapRegister, ProgramSchedule, SlotId, Step};
use smallvec::SmallVec;
use systole_ir::TensorType;

/// Fuses reductions over the same operand pairwise until no pair is left. Runs before the buffer plan.
pub fn join(s: &mut ProgramSchedule) {
    let mut j = 0;
    while j < s.steps.len() {
        let place = (0..j).rev().find_map(|i| place(s, i, j).map(|at| (i, at)));
        if let Some((i, at)) = place {
            let second = s.steps.remove(j);
            let first = s.steps.remove(i);
            // Removing `first` has moved the later position one step forward.
            let at = if at == i { i } else { j - 1 };
            s.steps.insert(at, joined(first, second));
            j -= 1;
        }
        j += 1;
    }
}

/// Position at which reductions `i < j` can be fused without breaking a dependence: `i` or `j`.
fn place(s: &ProgramSchedule, i: usize, j: usize) -> Option<usize> {
    let (a, b) = (&s.steps[i], &s.steps[j]);
    let (Kernel::Reduce { map: x, folded: f, monoid: m }, Kernel::Reduce { map: y, folded: g, monoid: n }) =
        (&a.kernel, &b.kernel)
    else {
        return None;
    };
    let same = x.shape == y.shape && f == g && m == n && a.output_types[0] == b.output_types[0];
    let large = |k: usize| a.input_types[k].elements() == x.shape.elements();
    let shared = (0..a.inputs.len()).any(|k| large(k) && b.inputs.contains(&a.inputs[k]));
    if !same || !shared || x.instrs.len() + y.instrs.len() > 64 {
        return None;
    }
    let between = || &s.steps[i..j];
    if between().iter().all(|step| step.outputs.iter().all(|o| !b.inputs.contains(o))) {
        return Some(i);
    }
    let waits = s.steps[i + 1..=j].iter().all(|step| a.outputs.iter().all(|o| !step.inputs.contains(o)));
    waits.then_some(j)
}

/// Merges both steps. The inputs are those of both maps, then the initial values of both.
fn joined(first: Step, second: Step) -> Step {
    let stores = first.outputs.len();
    let (Kernel::Reduce { map, folded, monoid }, Kernel::Reduce { map: other, .. }) =
        (first.kernel, second.kernel)
    else {
        systole_ir::bug!("only reductions can be merged")
    };
    let split = |step: (Vec<SlotId>, Vec<TensorType>), inits: usize| {
        let all: Vec<(SlotId, TensorType)> = step.0.into_iter().zip(step.1).collect();
        let inits = all[all.len() - inits..].to_vec();
        (all[..all.len() - inits.len()].to_vec(), inits)
    };
    let (mut inputs, mut inits) = split((first.inputs, first.input_types), stores);
    let (more, more_inits) = split((second.inputs, second.input_types), second.outputs.len());
    inits.extend(more_inits);
    let map = union(map, &mut inputs, &other, more);
    let (inputs, input_types) = inputs.into_iter().chain(inits).unzip();
    Step {
        kernel: Kernel::Reduce { map, folded, monoid },
        inputs,
        input_types,
        outputs: [first.outputs, second.outputs].concat(),
        output_types: [first.output_types, second.output_types].concat(),
        scope: first.scope,
        flops: first.flops + second.flops,
    }
}

/// Merges two maps: equal loads and instructions occur once.
fn union(
    mut map: Map,
    inputs: &mut Vec<(SlotId, TensorType)>,
    other: &Map,
    more: Vec<(SlotId, TensorType)>,
) -> Map {
    let places: Vec<usize> = more
        .into_iter()
        .map(|x| {
            inputs.iter().position(|y| *y == x).unwrap_or_else(|| {
                inputs.push(x);
                inputs.len() - 1
            })
        })
        .collect();
    let mut loads = map.loads.clone();
    let mut registers: Vec<MapRegister> = Vec::new();
    for load in &other.loads {
        let mut load = load.clone();
        if let MapLoad::Array { input, .. } = &mut load {
            *input = places[*input];
        }
        registers.push(loads.iter().position(|l| same_load(l, &load)).unwrap_or_else(|| {
            loads.push(load);
            loads.len() - 1
        }));
    }
    // Registers are numbered loads first, so new loads shift those of the instructions.
    let by = loads.len() - map.loads.len();
    let old = map.loads.len();
    let moved = |e: MapRegister| if e < old { e } else { e + by };
    map.instrs.iter_mut().for_each(|i| i.args.iter_mut().for_each(|a| *a = moved(*a)));
    map.stores.iter_mut().for_each(|s| *s = moved(*s));
    for instr in &other.instrs {
        let args: SmallVec<[MapRegister; 3]> = instr.args.iter().map(|&a| registers[a]).collect();
        let same = |i: &MapInstr| {
            i.op == instr.op
                && i.contraction == instr.contraction
                && i.args == args
                && i.from == instr.from
                && i.to == instr.to
        };
        let at = map.instrs.iter().position(same).unwrap_or_else(|| {
            map.instrs.push(MapInstr { args: args.clone(), ..instr.clone() });
            map.instrs.len() - 1
        });
        registers.push(loads.len() + at);
    }
    map.stores.extend(other.stores.iter().map(|&s| registers[s]));
    map.loads = loads;
    map
}

fn same_load(a: &MapLoad, b: &MapLoad) -> bool {
    match (a, b) {
        (
            MapLoad::Array { input: i, strides: s, offset: o, .. },
            MapLoad::Array { input: j, strides: t, offset: p, .. },
        ) => (i, s, o) == (j, t, p),
        (MapLoad::Splat { value: v, dtype: d }, MapLoad::Splat { value: w, dtype: e }) => {
            d == e && v.to_bits(*d) == w.to_bits(*e)
        }
        (MapLoad::Iota { inner, size, dtype }, MapLoad::Iota { inner: i, size: s, dtype: d }) => {
            inner == i && size == s && dtype == d
        }
        _ => false,
    }
}
