//! In-place `concatenate` and `dynamic_update_slice`: element-wise programs store their results directly into parts of
//! a larger array.
//!
//! A `concatenate` whose operands are all results of one map is fused into that map, which gets strided stores. In loop
//! bodies a `dynamic_update_slice` that writes one entry of a stacked, loop-carried array is fused into the map that
//! produces or reads the entry: the map stores through a view of the state, and the state is not copied. This rule runs
//! after all other fusion, because those rules support only maps with whole results, and before the buffer plan.

use crate::graph::layout::slices::RUN;
use crate::memory::lies_together;
use crate::options::PipelineOptions;
use crate::program::{
    Kernel, Location, MapLoad, MapRegister, ProgramSchedule, SlotId, SlotStorage, Step, StridedMap,
    StridedStore, is_result, readers, writer,
};
use smallvec::SmallVec;
use systole_ir::op::DynamicSlice;
use systole_ir::{Op, Shape, TensorType};

/// A step's map with explicit stores: strided ones if it has them, otherwise one whole array for each result.
fn strided(step: &Step) -> Option<StridedMap> {
    match &step.kernel {
        Kernel::StridedMap(p) => Some(p.clone()),
        Kernel::Map(map) => {
            let strides: SmallVec<[usize; 4]> = map.shape.strides().iter().copied().collect();
            let part = |output| StridedStore { output, strides: strides.clone(), offset: 0 };
            Some(StridedMap { map: map.clone(), stores: (0..map.stores.len()).map(part).collect() })
        }
        _ => None,
    }
}

/// Splits a dimension of the index space so that the trailing dimensions have exactly `inner` elements. `false`: no
/// split of a dimension does that.
fn cut_at(strided: &mut StridedMap, inner: usize) -> bool {
    let (mut after, mut d) = (1, strided.map.shape.rank());
    while after < inner && d > 0 {
        d -= 1;
        after *= strided.map.shape[d];
    }
    if after == inner {
        return true;
    }
    // Dimension `d` becomes `[own / rows, rows]`; `rows` and the dimensions behind it have `inner` elements.
    let own = strided.map.shape.dims().get(d).copied().unwrap_or(1);
    let behind = after / own.max(1);
    if after < inner || !inner.is_multiple_of(behind) || !own.is_multiple_of(inner / behind) {
        return false;
    }
    let rows = inner / behind;
    let cut = |strides: &mut SmallVec<[usize; 4]>| {
        let stride = strides[d];
        strides[d] = stride * rows;
        strides.insert(d + 1, stride);
    };
    for load in &mut strided.map.loads {
        if let MapLoad::Array { strides, .. } = load {
            cut(strides);
        }
    }
    strided.stores.iter_mut().for_each(|part| cut(&mut part.strides));
    let mut dims = strided.map.shape.dims().to_vec();
    dims[d] = own / rows;
    dims.insert(d + 1, rows);
    strided.map.shape = Shape::from(dims);
    true
}

/// Applies both in-place rewrites (concatenate, loop states) wherever they are legal; loop states only in loop bodies
/// (`options.state_at`).
pub fn join(s: &mut ProgramSchedule, options: &PipelineOptions) {
    let mut at = 0;
    while at < s.steps.len() {
        if !join_concatenate(s, at) {
            at += 1;
        }
    }
    let Some(first) = options.state_at else { return };
    for k in 0..s.results.len() {
        if let Some(entry) = StackUpdate::of(s, k, first + k) {
            entry.join(s);
        }
    }
}

/// Fuses the `concatenate` at `at` into the map that produces all its operands; `false` if that is not legal.
fn join_concatenate(s: &mut ProgramSchedule, at: usize) -> bool {
    let step = &s.steps[at];
    let Kernel::Op { op: Op::Concatenate(c), .. } = &step.kernel else { return false };
    let Some(maker) = step.inputs.first().and_then(|&x| writer(s, x)) else { return false };
    let Some(mut parts) = strided(&s.steps[maker]) else { return false };
    let made = &s.steps[maker].outputs;
    // Contiguous elements of one operand, and of the result, for each index of the dimensions before `c.dim`.
    let inner: usize = step.input_types[0].shape.dims()[c.dim..].iter().product();
    let row: usize = step.output_types[0].shape.dims()[c.dim..].iter().product();
    let own = |(k, x): (usize, &SlotId)| {
        made.contains(x) && !step.inputs[..k].contains(x) && !is_result(s, *x) && readers(s, *x).count() == 1
    };
    // An operand must be one contiguous store; one that is itself written in parts is left alone.
    let whole = |x: &SlotId| {
        let mut stores = parts.stores.iter().filter(|part| made[part.output] == *x);
        stores.next().is_some_and(|part| parts.is_whole(part)) && stores.next().is_none()
    };
    let even = step.input_types.iter().all(|t| *t == step.input_types[0]);
    if !even
        || inner < RUN
        || !step.inputs.iter().enumerate().all(own)
        || !step.inputs.iter().all(whole)
        || !cut_at(&mut parts, inner)
    {
        return false;
    }
    let step = s.steps.remove(at);
    let maker = &mut s.steps[maker];
    let output = maker.outputs.len();
    let strides = row_strides(&parts.map.shape, inner, row);
    for part in &mut parts.stores {
        let slot = maker.outputs[part.output];
        if let Some(k) = step.inputs.iter().position(|&x| x == slot) {
            *part = StridedStore { output, strides: strides.clone(), offset: k * inner };
        }
    }
    maker.kernel = Kernel::StridedMap(parts);
    maker.outputs.extend(step.outputs);
    maker.output_types.extend(step.output_types);
    step.inputs.iter().for_each(|&x| drop_output(s, x));
    true
}

/// Strides of `shape` in elements, if runs of `inner` contiguous elements are `row` elements apart.
fn row_strides(shape: &Shape, inner: usize, row: usize) -> SmallVec<[usize; 4]> {
    let apart = |&s: &usize| if s >= inner { s / inner * row } else { s };
    shape.strides().iter().map(apart).collect()
}

/// Removes an output that has no reader from the map that stores it.
fn drop_output(s: &mut ProgramSchedule, slot: SlotId) {
    s.slots[slot].bytes = 0;
    let Some(step) = s.steps.iter_mut().find(|step| step.outputs.contains(&slot)) else { return };
    let (Some(o), Kernel::StridedMap(parts)) =
        (step.outputs.iter().position(|&x| x == slot), &mut step.kernel)
    else {
        return;
    };
    let kept: Vec<bool> = parts.stores.iter().map(|part| part.output != o).collect();
    let mut keep = kept.iter();
    parts.map.stores.retain(|_| *keep.next().unwrap_or(&true));
    parts.stores.retain(|part| part.output != o);
    parts.stores.iter_mut().for_each(|part| part.output -= usize::from(part.output > o));
    step.outputs.remove(o);
    step.output_types.remove(o);
}

/// A `dynamic_update_slice` of a loop-carried array, and the map that will store the entry instead.
struct StackUpdate {
    /// Index of the state among the results, and the slot of its parameter.
    state: usize,
    array: SlotId,
    /// The `dynamic_update_slice`.
    update: usize,
    /// The map, and the registers that it will store, with their strides in the entry.
    program: usize,
    stores: Vec<(MapRegister, StridedStore)>,
    /// Steps after the map that compute the start indices. They move before it.
    indices: Vec<usize>,
}

impl StackUpdate {
    /// The update that produces result `k`, if it updates the state in parameter `param` and is its only reader.
    fn of(s: &ProgramSchedule, k: usize, param: usize) -> Option<StackUpdate> {
        let result = s.results[k].slot;
        let update = writer(s, result)?;
        let step = &s.steps[update];
        let (Kernel::Op { op: Op::DynamicUpdateSlice(_), .. }, &[array, entry, ..]) =
            (&step.kernel, &step.inputs[..])
        else {
            return None;
        };
        let stays = s.slots[array].place == Location::Param(param)
            && !is_result(s, array)
            && readers(s, array).eq([update])
            && step.inputs.iter().filter(|&&x| x == array).count() == 1
            && readers(s, result).next().is_none()
            && s.results.iter().filter(|r| r.slot == result).count() == 1
            // Only a contiguous part can be a view of the array.
            && lies_together(&step.input_types[0], &step.input_types[1]);
        if !stays {
            return None;
        }
        let (program, stores) =
            StackUpdate::made(s, entry).or_else(|| StackUpdate::read(s, entry, &step.input_types[1]))?;
        let mut indices = Vec::new();
        step.inputs[2..].iter().try_for_each(|&x| StackUpdate::before(s, x, program, &mut indices))?;
        Some(StackUpdate { state: k, array, update, program, stores, indices })
    }

    /// The map that computes the entry, and its stores.
    fn made(s: &ProgramSchedule, entry: SlotId) -> Option<(usize, Vec<(MapRegister, StridedStore)>)> {
        let program = writer(s, entry)?;
        let parts = strided(&s.steps[program])?;
        let o = s.steps[program].outputs.iter().position(|&x| x == entry)?;
        let stores = parts.map.stores.iter().zip(&parts.stores).filter(|(_, part)| part.output == o);
        Some((program, stores.map(|(&e, part)| (e, part.clone())).collect()))
    }

    /// The first map whose loads read each element of an existing entry exactly once, and these loads as stores.
    fn read(
        s: &ProgramSchedule,
        entry: SlotId,
        ty: &TensorType,
    ) -> Option<(usize, Vec<(MapRegister, StridedStore)>)> {
        readers(s, entry).find_map(|program| {
            let step = &s.steps[program];
            let parts = strided(step)?;
            let mut loads: Vec<(MapRegister, StridedStore)> = Vec::new();
            for (e, load) in parts.map.loads.iter().enumerate() {
                if let MapLoad::Array { input, strides, offset, dtype } = load
                    && step.inputs[*input] == entry
                    && *dtype == ty.dtype
                {
                    loads.push((e, StridedStore { output: 0, strides: strides.clone(), offset: *offset }));
                }
            }
            loads.sort_by_key(|(_, part)| part.offset);
            // Contiguous elements of one load. Loads must follow each other at this distance.
            let inner = loads.get(1).map_or(ty.elements(), |(_, second)| second.offset).max(1);
            let strides = row_strides(&parts.map.shape, inner, inner * loads.len());
            let covers = !loads.is_empty()
                && loads.len() * parts.map.shape.elements() == ty.elements()
                && loads.iter().enumerate().all(|(k, (_, p))| p.strides == strides && p.offset == k * inner);
            covers.then_some((program, loads))
        })
    }

    /// Collects the steps that must move before step `program` so that a scalar is available there, in order. `None`:
    /// one of them depends on `program`, or is not scalar.
    fn before(s: &ProgramSchedule, scalar: SlotId, program: usize, indices: &mut Vec<usize>) -> Option<()> {
        let Some(maker) = writer(s, scalar).filter(|&w| w >= program && !indices.contains(&w)) else {
            return Some(());
        };
        let step = &s.steps[maker];
        if maker == program || step.output_types.iter().any(|t| t.rank() > 0) {
            return None;
        }
        step.inputs.iter().try_for_each(|&x| StackUpdate::before(s, x, program, indices))?;
        indices.push(maker);
        Some(())
    }

    /// Replaces the update by a view of the state, to which the map stores.
    fn join(self, s: &mut ProgramSchedule) {
        let Some(mut parts) = strided(&s.steps[self.program]) else { return };
        let update = s.steps[self.update].clone();
        let (entry, ty) = (update.inputs[1], update.input_types[1].clone());
        let view = s.slots.len();
        s.slots.push(SlotStorage { bytes: ty.bytes(), place: Location::Arena(0), first: 0, last: 0 });
        // The buffer plan turns this slice into a view. The map only writes to it; it is an input so that the map runs
        // after the slice's indices are known.
        let slice = Step {
            kernel: Kernel::Op {
                op: DynamicSlice { sizes: ty.shape.dims().iter().copied().collect() }.into(),
                bias: false,
            },
            inputs: [&[self.array][..], &update.inputs[2..]].concat(),
            input_types: [&update.input_types[..1], &update.input_types[2..]].concat(),
            outputs: vec![view],
            output_types: vec![ty.clone()],
            scope: update.scope.clone(),
            flops: 0.0,
        };
        let program = &mut s.steps[self.program];
        let output = program.outputs.len();
        for (e, part) in self.stores {
            parts.map.stores.push(e);
            parts.stores.push(StridedStore { output, ..part });
        }
        program.kernel = Kernel::StridedMap(parts);
        program.inputs.push(view);
        program.input_types.push(ty.clone());
        program.outputs.push(view);
        program.output_types.push(ty);
        let mut steps: Vec<Option<Step>> = std::mem::take(&mut s.steps).into_iter().map(Some).collect();
        steps[self.update] = None;
        let indices: Vec<Step> = self.indices.iter().filter_map(|&i| steps[i].take()).collect();
        let behind = steps.split_off(self.program);
        s.steps = steps
            .into_iter()
            .flatten()
            .chain(indices)
            .chain([slice])
            .chain(behind.into_iter().flatten())
            .collect();
        let result = std::mem::replace(&mut s.results[self.state].slot, self.array);
        (s.slots[result].place, s.slots[result].bytes) = (Location::Arena(0), 0);
        if readers(s, entry).next().is_none() && !is_result(s, entry) {
            drop_output(s, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Kernel, Location, PipelineOptions, ProgramSchedule, ResultPlan, Step};
    use systole_ir::DType::F32;
    use systole_ir::{GraphBuilder, Tensor, TensorType, control_builders};

    /// The schedule of `build(x)` for `x: f32[6, 160]`.
    fn steps(build: impl Fn(&Tensor) -> Vec<Tensor>) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [6, 160]), "x");
        let graph = g.finish(&build(&x)).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &PipelineOptions::default()).unwrap()
    }

    fn names(s: &ProgramSchedule) -> Vec<String> {
        s.steps.iter().map(|step| step.kernel.name()).collect()
    }

    #[test]
    fn a_program_writes_what_is_joined_to_its_place() {
        let s = steps(|x| {
            let y = x.tanh();
            let other = y.exp();
            vec![Tensor::concatenate(&[&y, &(&other + x), &(&y * x)], 1), other]
        });
        let [Step { kernel: Kernel::StridedMap(p), outputs, .. }] = &s.steps[..] else { panic!("{s}") };
        assert_eq!((outputs.len(), s.arena_bytes), (2, 0), "{s}");
        let mut places: Vec<(usize, &[usize], usize)> =
            p.stores.iter().map(|part| (part.output, &part.strides[..], part.offset)).collect();
        places.sort();
        let row = &[480, 1][..];
        assert_eq!(places, [(0, &[160, 1][..], 0), (1, row, 0), (1, row, 160), (1, row, 320)], "{s}");
    }

    #[test]
    fn parts_that_have_nothing_else_in_common_are_made_by_one_program() {
        let s = steps(|x| {
            let other = x.reverse(&[1]);
            vec![Tensor::concatenate(&[&x.tanh(), &other.exp(), &(x * &other)], 1)]
        });
        assert_eq!(names(&s).len(), 2, "{s}");
        let [_, Step { kernel: Kernel::StridedMap(p), .. }] = &s.steps[..] else { panic!("{s}") };
        assert_eq!(p.stores.len(), 3, "{s}");
    }

    #[test]
    fn what_others_read_or_make_is_joined_by_a_step_of_its_own() {
        let shared = steps(|x| {
            let y = x.tanh();
            vec![Tensor::concatenate(&[&y, &(&y + x)], 1), y]
        });
        assert_eq!(names(&shared), ["map[2]", "concatenate"], "{shared}");
        let twice = steps(|x| vec![Tensor::concatenate(&[&x.tanh(), &x.tanh()], 1)]);
        assert_eq!(names(&twice), ["tanh", "concatenate"], "{twice}");
        let foreign = steps(|x| vec![Tensor::concatenate(&[&x.tanh(), x], 1)]);
        assert_eq!(names(&foreign), ["tanh", "concatenate"], "{foreign}");
    }

    /// The body of a scan over 7 entries `x: f32[4, 160]`, with `build(states, x) → (next states, stacked entries)`.
    fn body(build: impl Fn(&[Tensor], &Tensor) -> (Vec<Tensor>, Vec<Tensor>)) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let xs = g.parameter(TensorType::new(F32, [7, 4, 160]), "xs");
        let start = g.full(&TensorType::new(F32, [4, 160]), 0.5);
        let (last, all) = control_builders::scan(&[&start, &start], &[&xs], |state, x| build(state, &x[0]));
        let graph = g.finish(&[last, all].concat()).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        let s = crate::schedule(&graph, &PipelineOptions::default()).unwrap();
        let body = s.steps.iter().find_map(|step| match &step.kernel {
            Kernel::While { body, .. } => Some((**body).clone()),
            _ => None,
        });
        body.unwrap_or_else(|| panic!("{s}"))
    }

    #[test]
    fn entries_of_all_trips_are_written_where_they_lie() {
        // Entries: one that a map computes, one that is also a state, and one that the map only reads.
        let s = body(|state, x| {
            let y = (&state[0] * x).tanh();
            let next = &y + &state[1];
            (vec![next, x * 2.0], vec![&y - x, y, state[1].clone()])
        });
        assert!(!names(&s).iter().any(|name| name == "dynamic_update_slice"), "{s}");
        let programs = s.steps.iter().filter(|step| matches!(step.kernel, Kernel::StridedMap(_)));
        assert_eq!(programs.count(), 1, "{s}");
        // Views: the entry that is read, and the three that are written.
        assert_eq!(s.views.len(), 4, "{s}");
        let stays = |r: &&ResultPlan| matches!(s.slots[r.slot].place, Location::Param(_)) && r.ty.rank() == 3;
        assert_eq!(s.results.iter().filter(stays).count(), 3, "{s}");
    }

    #[test]
    fn entries_that_no_program_has_are_put_there() {
        let s = body(|state, x| {
            let y = state[0].dot(&x.transpose(&[1, 0])).dot(x);
            (vec![y.clone(), state[1].clone()], vec![y])
        });
        assert_eq!(names(&s).iter().filter(|name| *name == "dynamic_update_slice").count(), 1, "{s}");
    }
}
