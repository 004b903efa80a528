//! Each invariant, broken once in a program that holds all of them.

use super::{verify_planned, verify_steps};
use crate::options::{Blocking, Options};
use crate::program::{Kernel, Load, Location, Schedule, Slot};
use systole_ir::DType::{self, F32};
use systole_ir::{Graph, GraphBuilder, Tensor, TensorType, flow};

fn compiled(graph: &Graph, options: &Options) -> Schedule {
    let (graph, _) = crate::optimize(graph).unwrap();
    let s = crate::schedule(&graph, options).unwrap();
    verify_planned(&s, &options.donated).unwrap_or_else(|e| panic!("{e}\n{s}"));
    s
}

/// Two products with a map between them, and the update of a donated parameter.
fn program() -> Schedule {
    let ty = TensorType::new(F32, [32, 32]);
    let g = GraphBuilder::new("main");
    let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty, "x"));
    let h = x.dot(&w).tanh().dot(&x);
    let s = h.sum(&[0]);
    let graph = g.finish(&[&w - &(&h * 0.1), s]).unwrap();
    compiled(&graph, &Options { donated: vec![0], ..Options::default() })
}

/// Checks that a program is refused for a reason with these words, once it is changed so.
fn caught(words: &str, change: impl FnOnce(&mut Schedule)) {
    caught_in(program(), &[0], words, change);
}

fn caught_in(mut s: Schedule, donated: &[usize], words: &str, change: impl FnOnce(&mut Schedule)) {
    change(&mut s);
    match verify_planned(&s, donated) {
        Ok(()) => panic!("nobody noticed: {words}\n{s}"),
        Err(e) => assert!(e.to_string().contains(words), "{e}\n{s}"),
    }
}

fn step_of(s: &Schedule, test: impl Fn(&Kernel) -> bool) -> usize {
    s.steps.iter().position(|step| test(&step.kernel)).unwrap_or_else(|| panic!("{s}"))
}

fn in_arena(s: &Schedule) -> Vec<Slot> {
    (0..s.slots.len())
        .filter(|&x| matches!(s.slots[x].place, Location::Arena(_)) && s.slots[x].bytes > 0)
        .collect()
}

#[test]
fn an_array_has_one_writer_before_its_readers() {
    caught("has a second writer", |s| s.steps[1].outputs[0] = s.steps[0].outputs[0]);
    caught("has a second writer", |s| s.steps[0].outputs[0] = s.steps[0].inputs[0]);
    caught("is read before it is written", |s| s.steps.swap(0, 1));
    caught("is read before it is written", |s| s.steps[0].inputs[0] = 99);
    caught("is never written", |s| {
        s.steps.pop();
    });
    caught("does not exist", |s| s.steps[0].outputs[0] = 99);
}

#[test]
fn an_array_has_one_size_and_a_kernel_its_types() {
    caught("and is used as", |s| s.steps[0].input_types[0] = TensorType::new(F32, [32]));
    caught("without a type", |s| {
        s.steps[0].input_types.pop();
    });
    caught("are not the inferred", |s| {
        s.steps[0].output_types[0] = TensorType::new(F32, [16, 64]);
    });
    caught("is not of the size of what is given", |s| s.params[0] = TensorType::new(F32, [32]));
    let map = |s: &Schedule| step_of(s, |k| matches!(k, Kernel::Map(_)));
    let edit = |s: &mut Schedule, change: &dyn Fn(&mut crate::Map)| {
        let at = map(s);
        if let Kernel::Map(m) = &mut s.steps[at].kernel {
            change(m);
        }
    };
    caught("leads to element", |s| {
        edit(s, &|m| {
            if let Load::Array { offset, .. } = &mut m.loads[0] {
                *offset = 1;
            }
        });
    });
    caught("is stored as", |s| {
        let at = map(s);
        s.steps[at].output_types[0] = TensorType::new(DType::I32, [32, 32]);
    });
    caught("is made of later ones", |s| {
        edit(s, &|m| {
            let e = m.loads.len();
            m.instrs[0].args[0] = e;
        });
    });
    caught("a register that does not exist", |s| edit(s, &|m| m.stores[0] = 99));
    caught("folds from", |s| {
        let at = step_of(s, |k| matches!(k, Kernel::Reduce { .. }));
        if let Kernel::Reduce { folded, .. } = &mut s.steps[at].kernel {
            folded.iter_mut().for_each(|f| *f = !*f);
        }
        // As many elements are kept either way; of the initial value there is only one.
        let init = s.steps[at].inputs[0];
        let last = s.steps[at].inputs.len() - 1;
        (s.steps[at].inputs[last], s.steps[at].input_types[last]) = (init, TensorType::new(F32, [32, 32]));
    });
}

#[test]
fn arrays_that_live_together_do_not_share_bytes() {
    caught("share bytes while both live", |s| {
        // The second product reads the first of these.
        let (a, b) = (s.steps[1].outputs[0], s.steps[2].outputs[0]);
        s.slots[b].place = s.slots[a].place;
    });
    caught("does not lie in the arena", |s| s.arena_bytes = 64);
    caught("does not lie in the arena", |s| {
        let x = in_arena(s)[0];
        s.slots[x].place = Location::Arena(4);
    });
    caught("lives longer than its storage says", |s| {
        let x = in_arena(s)[0];
        s.slots[x].last = s.slots[x].first;
    });
    caught("lies in the arena", |s| {
        let x = s.results[1].slot;
        s.slots[x].place = Location::Arena(s.arena_bytes);
        s.arena_bytes += s.slots[x].bytes.next_multiple_of(64);
    });
}

#[test]
fn donated_memory_is_not_read_after_it_is_overwritten() {
    assert_eq!(program().results[0].reuse, Some(0));
    caught("which is not given to it", |s| s.results[0].reuse = Some(1));
    caught("which is not given to it", |s| s.results[1].reuse = Some(0));
    caught_in(program(), &[], "which is not given to it", |_| {});
    // One more product reads the old value, after the update.
    caught("is read after result 0 has overwritten it", |s| {
        let (w, late) = (s.steps[0].inputs[1], s.steps.len());
        assert!(matches!(s.slots[w].place, Location::Param(0)));
        let mut step = s.steps[0].clone();
        let mut storage = s.slots[step.outputs[0]].clone();
        (storage.place, storage.first, storage.last) = (Location::Arena(s.arena_bytes), late, late);
        s.arena_bytes += storage.bytes;
        (step.inputs, step.outputs) = (vec![w, w], vec![s.slots.len()]);
        s.slots.push(storage);
        s.slots[w].last = late;
        s.results.iter().for_each(|r| s.slots[r.slot].last = late + 1);
        s.steps.push(step);
    });
}

/// A loop that puts the entries of all trips into one array.
fn scan() -> Schedule {
    let g = GraphBuilder::new("main");
    let xs = g.parameter(TensorType::new(F32, [7, 4, 160]), "xs");
    let start = g.full(&TensorType::new(F32, [4, 160]), 0.5);
    let (last, all) = flow::scan(&[&start], &[&xs], |state, x| {
        let y: Tensor = (&state[0] * &x[0]).tanh();
        (vec![y.clone()], vec![&y * 2.0])
    });
    compiled(&g.finish(&[last, all].concat()).unwrap(), &Options::default())
}

fn trip(s: &mut Schedule) -> &mut Schedule {
    let at = step_of(s, |k| matches!(k, Kernel::While { .. }));
    let Kernel::While { body, .. } = &mut s.steps[at].kernel else { unreachable!() };
    body
}

#[test]
fn bodies_of_loops_are_verified_and_fit_their_step() {
    caught_in(scan(), &[], "has a second writer", |s| {
        let body = trip(s);
        let given = body.steps[0].inputs[0];
        body.steps[0].outputs[0] = given;
    });
    caught_in(scan(), &[], "is not a slice of an array of its own", |s| trip(s).views[0].by += 1);
    caught_in(scan(), &[], "a state without a start", |s| {
        let at = step_of(s, |k| matches!(k, Kernel::While { .. }));
        let Kernel::While { starts, .. } = &mut s.steps[at].kernel else { unreachable!() };
        starts.pop();
    });
    caught_in(scan(), &[], "is read after a part of it is overwritten", |s| {
        let body = trip(s);
        let written =
            body.steps.iter().position(|step| matches!(step.kernel, Kernel::StridedMap(_))).unwrap();
        let of =
            body.views.iter().find(|v| body.steps[written].outputs.contains(&body.steps[v.by].outputs[0]));
        let slice = body.steps[of.unwrap().by].clone();
        let x = body.slots.len();
        let late = body.steps.len();
        let mut storage = body.slots[slice.outputs[0]].clone();
        (storage.place, storage.first, storage.last) = (Location::Arena(body.arena_bytes), late, late);
        body.arena_bytes += storage.bytes.next_multiple_of(64);
        body.slots.push(storage);
        slice.inputs.iter().for_each(|&x| body.slots[x].last = body.slots[x].last.max(late));
        body.steps.push(crate::Step { outputs: vec![x], ..slice });
        body.results.iter().for_each(|r| body.slots[r.slot].last = late + 1);
    });
}

#[test]
fn blocks_take_and_give_the_rows_of_their_step() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [10, 64]), "x");
    let w = g.parameter(TensorType::new(F32, [64, 64]), "w");
    let y = x.dot(&w).tanh();
    let graph = g.finish(&[y.dot(&w), (&y * &y).sum_all()]).unwrap();
    let options = Options { blocks: Blocking::Rows(4), ..Options::default() };
    let blocks = |s: &Schedule| step_of(s, |k| matches!(k, Kernel::Blocks(_)));
    caught_in(compiled(&graph, &options), &[], "a block of 3 rows", |s| {
        let at = blocks(s);
        let Kernel::Blocks(b) = &mut s.steps[at].kernel else { unreachable!() };
        (b.block, b.rest) = (3, None);
    });
    caught_in(compiled(&graph, &options), &[], "do not make up", |s| {
        let at = blocks(s);
        let Kernel::Blocks(b) = &mut s.steps[at].kernel else { unreachable!() };
        b.outputs[0] += 4;
    });
}

#[test]
fn steps_without_places_are_verified_too() {
    let mut s = program();
    s.slots.iter_mut().for_each(|x| (x.first, x.last) = (0, 0));
    verify_steps(&s).unwrap();
    s.steps.swap(0, 1);
    assert!(verify_steps(&s).is_err());
}
