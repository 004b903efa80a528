//! Mutation tests: each invariant is broken once in a valid program, and the verifier must report it.

use super::{verify_planned, verify_steps};
use crate::options::{PipelineOptions, RowBlocksMode};
use crate::program::{Kernel, Location, MapLoad, MaxPoolArgmax, ProgramSchedule, SlotId, Step};
use std::sync::Arc;
use systole_ir::DType::{self, F32, I32, U8, U64};
use systole_ir::attention::{AttentionConfig, AttentionDropout, AttentionMatch, AttentionOperand};
use systole_ir::op::Convolution;
use systole_ir::{Graph, GraphBuilder, Tensor, TensorType, control_builders, grad, vjp};

fn compiled(graph: &Graph, options: &PipelineOptions) -> ProgramSchedule {
    let (graph, _) = crate::optimize(graph).unwrap();
    let s = crate::schedule(&graph, options).unwrap();
    verify_planned(&s, &options.donated).unwrap_or_else(|e| panic!("{e}\n{s}"));
    s
}

/// Two GEMMs with a map between them, and the update of a donated parameter.
fn program() -> ProgramSchedule {
    let ty = TensorType::new(F32, [32, 32]);
    let g = GraphBuilder::new("main");
    let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty, "x"));
    let h = x.dot(&w).tanh().dot(&x);
    let s = h.sum(&[0]);
    let graph = g.finish(&[&w - &(&h * 0.1), s]).unwrap();
    compiled(&graph, &PipelineOptions { donated: vec![0], ..PipelineOptions::default() })
}

/// Checks that [`program`] is rejected after `change`, with an error that contains `words`.
fn caught(words: &str, change: impl FnOnce(&mut ProgramSchedule)) {
    caught_in(program(), &[0], words, change);
}

fn caught_in(
    mut s: ProgramSchedule,
    donated: &[usize],
    words: &str,
    change: impl FnOnce(&mut ProgramSchedule),
) {
    change(&mut s);
    match verify_planned(&s, donated) {
        Ok(()) => panic!("nobody noticed: {words}\n{s}"),
        Err(e) => assert!(e.to_string().contains(words), "{e}\n{s}"),
    }
}

fn step_of(s: &ProgramSchedule, test: impl Fn(&Kernel) -> bool) -> usize {
    s.steps.iter().position(|step| test(&step.kernel)).unwrap_or_else(|| panic!("{s}"))
}

fn in_arena(s: &ProgramSchedule) -> Vec<SlotId> {
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
    caught("but is used with", |s| s.steps[0].input_types[0] = TensorType::new(F32, [32]));
    caught("number of operand or result types", |s| {
        s.steps[0].input_types.pop();
    });
    caught("results have types", |s| {
        s.steps[0].output_types[0] = TensorType::new(F32, [16, 64]);
    });
    caught("differs in size", |s| s.params[0] = TensorType::new(F32, [32]));
    let map = |s: &ProgramSchedule| step_of(s, |k| matches!(k, Kernel::Map(_)));
    let edit = |s: &mut ProgramSchedule, change: &dyn Fn(&mut crate::Map)| {
        let at = map(s);
        if let Kernel::Map(m) = &mut s.steps[at].kernel {
            change(m);
        }
    };
    caught("accesses element", |s| {
        edit(s, &|m| {
            if let MapLoad::Array { offset, .. } = &mut m.loads[0] {
                *offset = 1;
            }
        });
    });
    caught("cannot be stored as", |s| {
        let at = map(s);
        s.steps[at].output_types[0] = TensorType::new(DType::I32, [32, 32]);
    });
    caught("depends on later registers", |s| {
        edit(s, &|m| {
            let e = m.loads.len();
            m.instrs[0].args[0] = e;
        });
    });
    caught("a missing register", |s| edit(s, &|m| m.stores[0] = 99));
    caught("reductions with initial value", |s| {
        let at = step_of(s, |k| matches!(k, Kernel::Reduce { .. }));
        if let Kernel::Reduce { folded, .. } = &mut s.steps[at].kernel {
            folded.iter_mut().for_each(|f| *f = !*f);
        }
        // The matrix is square, so the number of results stays the same. The initial value must be a scalar.
        let init = s.steps[at].inputs[0];
        let last = s.steps[at].inputs.len() - 1;
        (s.steps[at].inputs[last], s.steps[at].input_types[last]) = (init, TensorType::new(F32, [32, 32]));
    });
}

#[test]
fn arrays_that_live_together_do_not_share_bytes() {
    caught("share bytes while both are live", |s| {
        // The second GEMM reads the first of these while it writes the second.
        let (a, b) = (s.steps[1].outputs[0], s.steps[2].outputs[0]);
        s.slots[b].place = s.slots[a].place;
    });
    caught("is outside of the arena", |s| s.arena_bytes = 64);
    caught("is outside of the arena", |s| {
        let x = in_arena(s)[0];
        s.slots[x].place = Location::Arena(4);
    });
    caught("lives longer than its storage says", |s| {
        let x = in_arena(s)[0];
        s.slots[x].last = s.slots[x].first;
    });
    caught("is in the arena", |s| {
        let x = s.results[1].slot;
        s.slots[x].place = Location::Arena(s.arena_bytes);
        s.arena_bytes += s.slots[x].bytes.next_multiple_of(64);
    });
}

#[test]
fn donated_memory_is_not_read_after_it_is_overwritten() {
    assert_eq!(program().results[0].reuse, Some(0));
    caught("which is not donated to it", |s| s.results[0].reuse = Some(1));
    caught("which is not donated to it", |s| s.results[1].reuse = Some(0));
    caught_in(program(), &[], "which is not donated to it", |_| {});
    // A GEMM appended after the update reads the old value.
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

/// A loop that stacks one entry per iteration into an array.
fn scan() -> ProgramSchedule {
    let g = GraphBuilder::new("main");
    let xs = g.parameter(TensorType::new(F32, [7, 4, 160]), "xs");
    let start = g.full(&TensorType::new(F32, [4, 160]), 0.5);
    let (last, all) = control_builders::scan(&[&start], &[&xs], |state, x| {
        let y: Tensor = (&state[0] * &x[0]).tanh();
        (vec![y.clone()], vec![&y * 2.0])
    });
    compiled(&g.finish(&[last, all].concat()).unwrap(), &PipelineOptions::default())
}

fn trip(s: &mut ProgramSchedule) -> &mut ProgramSchedule {
    let at = step_of(s, |k| matches!(k, Kernel::While { .. }));
    let Kernel::While { body, .. } = &mut s.steps[at].kernel else { unreachable!() };
    Arc::make_mut(body)
}

#[test]
fn bodies_of_loops_are_verified_and_fit_their_step() {
    caught_in(scan(), &[], "has a second writer", |s| {
        let body = trip(s);
        let given = body.steps[0].inputs[0];
        body.steps[0].outputs[0] = given;
    });
    caught_in(scan(), &[], "is not a slice of a materialized array", |s| trip(s).views[0].by += 1);
    caught_in(scan(), &[], "number of initial values", |s| {
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

/// Checks that [`scan`] is rejected after `change` of its initial values, condition and body.
fn caught_in_loop(
    words: &str,
    change: impl FnOnce(&mut Vec<Option<usize>>, &mut ProgramSchedule, &mut ProgramSchedule),
) {
    caught_in(scan(), &[], words, |s| {
        let at = step_of(s, |k| matches!(k, Kernel::While { .. }));
        let Kernel::While { starts, cond, body, .. } = &mut s.steps[at].kernel else { unreachable!() };
        change(starts, Arc::make_mut(cond), Arc::make_mut(body));
    });
}

#[test]
fn states_start_as_inputs_of_their_own_and_stay_where_they_are() {
    let s = scan();
    let at = step_of(&s, |k| matches!(k, Kernel::While { .. }));
    let Kernel::While { captures, starts, body, .. } = &s.steps[at].kernel else { unreachable!() };
    let (captures, inputs) = (*captures, s.steps[at].inputs.len());
    let ty = |k: usize| &body.params[captures + k];
    let given: Vec<usize> = (0..starts.len()).filter(|&k| starts[k].is_some()).collect();
    let (first, second) = (given[0], given[1]);
    assert!(
        captures > 0 && body.results.iter().enumerate().any(|(k, r)| r.reuse == Some(captures + k)),
        "{s}"
    );
    caught_in_loop("which is not in", |starts, _, _| starts[first] = Some(inputs));
    caught_in_loop("which is not in", |starts, _, _| starts[first] = Some(captures - 1));
    caught_in_loop("is neither a capture nor an initial value", |starts, _, _| starts[first] = None);
    assert_ne!(ty(first), ty(second), "{s}");
    caught_in_loop("initial value of a state has type", |starts, _, _| starts[first] = starts[second]);
    caught_in_loop("loop state has type", |_, _, body| {
        body.params[captures + first] = TensorType::new(F32, [1])
    });
    caught_in_loop("next loop state has type", |_, _, body| {
        body.results[first].ty = TensorType::new(F32, [1])
    });
    caught_in_loop("loop capture has type", |_, cond, body| {
        let other = TensorType::new(F32, [3, 3]);
        (cond.params[0], body.params[0]) = (other.clone(), other);
    });
    caught_in_loop("parameter of the loop condition", |_, cond, _| {
        cond.params[0] = TensorType::new(F32, [3, 3])
    });
    caught_in_loop("result of the loop condition", |_, cond, _| cond.results[0].ty = TensorType::scalar(U8));
    caught_in_loop("reuses parameter", |_, _, body| {
        let at = body.results.iter().position(|r| r.reuse.is_some()).unwrap();
        let other = (0..body.results.len()).find(|k| *k != at).unwrap();
        body.results[at].reuse = Some(captures + other);
    });
}

#[test]
fn two_states_do_not_start_as_one_input() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [4, 160]), "x");
    let y = g.parameter(TensorType::new(F32, [4, 160]), "y");
    let xs = g.parameter(TensorType::new(F32, [7, 4, 160]), "xs");
    let (last, _) = control_builders::scan(&[&x, &y], &[&xs], |state, x| {
        (vec![(&state[0] * &x[0]).tanh(), &state[1] + &x[0]], vec![])
    });
    let s = compiled(&g.finish(&last).unwrap(), &PipelineOptions::default());
    caught_in(s, &[], "is the initial value of two states", |s| {
        let at = step_of(s, |k| matches!(k, Kernel::While { .. }));
        let types = s.steps[at].output_types.clone();
        let Kernel::While { starts, .. } = &mut s.steps[at].kernel else { unreachable!() };
        let pair = (0..types.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let (a, b) = { pair }
            .find(|&(a, b)| types[a] == types[b] && starts[a].is_some() && starts[b].is_some())
            .unwrap();
        starts[a] = starts[b];
    });
}

/// Attention with dropout, and its gradients w.r.t. queries, keys and values.
fn attention() -> ProgramSchedule {
    let g = GraphBuilder::new("main");
    let array = |places, width| TensorType::new(F32, [2, places, 3, width]);
    let (q, k, v) =
        (g.parameter(array(4, 6), "q"), g.parameter(array(8, 6), "k"), g.parameter(array(8, 2), "v"));
    let random = g.parameter(TensorType::new(U64, [2]), "random");
    let y = AttentionConfig { scale: 0.5, causal: true, dropout: Some(AttentionDropout::rate(0.1)) }.of(
        &q,
        &k,
        &v,
        Some(&random),
    );
    let dy = g.parameter(y.ty().clone(), "dy");
    let grads = vjp(&[&y], &[&dy], &[&q, &k, &v]);
    compiled(&g.finish(&[&[y], &grads[..]].concat()).unwrap(), &PipelineOptions::default())
}

/// Checks that [`attention`] is rejected after `change` of the forward step or, with `gradient`, of the backward step.
fn caught_in_attention(gradient: bool, words: &str, change: impl FnOnce(&mut AttentionMatch, &mut Step)) {
    caught_in(attention(), &[], words, |s| {
        let at = step_of(s, |k| matches!(k, Kernel::Attention(a) if a.gradient.is_some() == gradient));
        let Kernel::Attention(mut a) = s.steps[at].kernel.clone() else { unreachable!() };
        change(&mut a, &mut s.steps[at]);
        s.steps[at].kernel = Kernel::Attention(a);
    });
}

/// Replaces a type by another of the same size in bytes, so that only the check of types can notice.
fn seen_as(ty: &mut TensorType, dtype: DType, shape: &[usize]) {
    let other = TensorType::new(dtype, shape);
    assert_eq!(ty.bytes(), other.bytes());
    *ty = other;
}

#[test]
fn attention_has_the_operands_and_results_of_its_definition() {
    for gradient in [false, true] {
        caught_in_attention(gradient, "must all have rank 4", |a, step| {
            seen_as(&mut step.input_types[a.q], F32, &[8, 18]);
        });
        caught_in_attention(gradient, "no attention kernel for the element type", |a, step| {
            seen_as(&mut step.input_types[a.q], I32, &[2, 4, 3, 6]);
        });
        caught_in_attention(gradient, "keys of attention", |a, step| {
            seen_as(&mut step.input_types[a.k], F32, &[2, 16, 3, 3]);
        });
        caught_in_attention(gradient, "values of attention", |a, step| {
            seen_as(&mut step.input_types[a.v], F32, &[2, 4, 3, 4]);
        });
        caught_in_attention(gradient, "values of attention: operand 9", |a, _| a.v = 9);
        caught_in_attention(gradient, "random state of attention", |a, step| {
            seen_as(&mut step.input_types[a.random.unwrap()], I32, &[4]);
        });
        caught_in_attention(gradient, "both dropout and a random state", |a, _| a.random = None);
        caught_in_attention(gradient, "branch index", |_, step| {
            let last = step.input_types.len() - 1;
            seen_as(&mut step.input_types[last], F32, &[]);
        });
    }
    caught_in_attention(false, "result of attention", |_, step| {
        seen_as(&mut step.output_types[0], F32, &[2, 4, 2, 3]);
    });
    caught_in_attention(true, "output gradient of attention", |a, step| {
        seen_as(&mut step.input_types[a.gradient.as_ref().unwrap().0], F32, &[2, 4, 2, 3]);
    });
    caught_in_attention(true, "gradient of attention", |a, _| {
        a.gradient.as_mut().unwrap().1.reverse();
    });
    caught_in_attention(true, "the same gradient twice", |a, _| {
        a.gradient.as_mut().unwrap().1 = vec![AttentionOperand::Keys; 3];
    });
}

/// Forward and backward pass of convolution, max pooling, relu and a dense layer: one kernel for each direction.
fn conv_net() -> ProgramSchedule {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [3, 18, 18, 1]), "x");
    let k = g.parameter(TensorType::new(F32, [3, 3, 1, 8]), "k");
    let b = g.parameter(TensorType::new(F32, [8]), "b");
    let w = g.parameter(TensorType::new(F32, [10, 512]), "w");
    let shift = g.parameter(TensorType::new(F32, [10]), "shift");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1)) + &b;
    let pooled = h.max_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]).relu();
    let y = pooled.reshape([3, 512]).dot_general(&w, &[], &[], &[1], &[1]) + &shift;
    let grads = grad(&(&y * &y).sum_all(), &[&k, &b]);
    compiled(&g.finish(&[&[y], &grads[..]].concat()).unwrap(), &PipelineOptions::default())
}

/// Checks that [`conv_net`] is rejected after `change` of the fused pooling or, with `gradient`, of the fused gradient.
fn caught_in_pool(gradient: bool, words: &str, change: impl FnOnce(&mut Step)) {
    caught_in(conv_net(), &[], words, |s| {
        let at = step_of(s, |k| match k {
            Kernel::Pool(p) => !gradient && p.product == 2,
            Kernel::UnpooledGradient(g) => gradient && g.product,
            _ => false,
        });
        change(&mut s.steps[at]);
    });
}

#[test]
fn pooling_has_the_operands_of_its_product() {
    caught_in_pool(false, "right operand of the fused GEMM", |step| {
        seen_as(&mut step.input_types[3], F32, &[20, 256]);
    });
    caught_in_pool(false, "right operand of the fused GEMM", |step| {
        seen_as(&mut step.input_types[3], I32, &[10, 512]);
    });
    caught_in_pool(false, "bias of the fused GEMM", |step| {
        seen_as(&mut step.input_types[4], F32, &[2, 5]);
    });
    caught_in_pool(false, "result of the fused GEMM", |step| {
        seen_as(&mut step.output_types[2], F32, &[10, 3]);
    });
    caught_in_pool(false, "argmax has type", |step| {
        seen_as(&mut step.output_types[1], DType::I8, &[3, 8, 8, 8]);
    });
    let edit = |step: &mut Step, change: &dyn Fn(&mut MaxPoolArgmax)| {
        let Kernel::Pool(p) = &mut step.kernel else { unreachable!() };
        change(p);
    };
    caught_in_pool(false, "wrong number of operands for max_pool", |step| edit(step, &|p| p.product = 6));
    caught_in_pool(false, "wrong number of operands for max_pool", |step| edit(step, &|p| p.product = 0));
    caught_in_pool(false, "wrong number of operands for max_pool", |step| edit(step, &|p| p.conv = None));
    caught_in_pool(false, "windows [17, 2]", |step| edit(step, &|p| p.window[0] = 17));
}

#[test]
fn gradients_of_pooling_have_the_operands_of_their_product() {
    caught_in_pool(true, "left operand of the pooled gradient", |step| {
        seen_as(&mut step.input_types[2], F32, &[6, 5]);
    });
    caught_in_pool(true, "right operand of the pooled gradient", |step| {
        seen_as(&mut step.input_types[3], F32, &[20, 256]);
    });
    caught_in_pool(true, "right operand of the pooled gradient", |step| {
        seen_as(&mut step.input_types[3], I32, &[10, 512]);
    });
    caught_in_pool(true, "unpool: cannot compute", |step| {
        seen_as(&mut step.input_types[1], U8, &[3, 8, 4, 16]);
    });
    caught_in_pool(true, "element type of the input", |step| {
        seen_as(&mut step.input_types[0], I32, &[3, 18, 18, 1]);
    });
    caught_in_pool(true, "wrong type of the bias gradient", |step| {
        seen_as(&mut step.output_types[1], I32, &[8])
    });
    caught_in_pool(true, "unpooled kernel gradient: 4", |step| {
        let Kernel::UnpooledGradient(g) = &mut step.kernel else { unreachable!() };
        g.product = false;
    });
}

/// A dense layer over the channels of each pooled pixel has more rows than there are images.
#[test]
fn a_product_of_other_rows_than_images_is_not_made_in_the_gradient() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [2, 4, 4, 3]), "x");
    let k = g.parameter(TensorType::new(F32, [1, 1, 3, 256]), "k");
    let w = g.parameter(TensorType::new(F32, [10, 256]), "w");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
    let pooled = h.max_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    let y = pooled.reshape([8, 256]).dot_general(&w, &[], &[], &[1], &[1]);
    let grads = grad(&(&y * &y).sum_all(), &[&k]);
    let s = compiled(&g.finish(&grads).unwrap(), &PipelineOptions::default());
    let at = step_of(&s, |k| matches!(k, Kernel::UnpooledGradient(_)));
    assert!(matches!(&s.steps[at].kernel, Kernel::UnpooledGradient(g) if !g.product), "{s}");
}

#[test]
fn blocks_take_and_give_the_rows_of_their_step() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [10, 64]), "x");
    let w = g.parameter(TensorType::new(F32, [64, 64]), "w");
    let y = x.dot(&w).tanh();
    let graph = g.finish(&[y.dot(&w), (&y * &y).sum_all()]).unwrap();
    let options = PipelineOptions { blocks: RowBlocksMode::Rows(4), ..PipelineOptions::default() };
    let blocks = |s: &ProgramSchedule| step_of(s, |k| matches!(k, Kernel::Blocks(_)));
    caught_in(compiled(&graph, &options), &[], "a block of 3 rows", |s| {
        let at = blocks(s);
        let Kernel::Blocks(b) = &mut s.steps[at].kernel else { unreachable!() };
        (b.block, b.rest) = (3, None);
    });
    caught_in(compiled(&graph, &options), &[], "do not match the results", |s| {
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
