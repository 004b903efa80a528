//! Errors point to the line of user code that created the op, for every method that creates several ops.

use std::collections::BTreeSet;
use systole_ir::{
    DType::{self, F32, I32, U32, U64},
    Error, ErrorKind, GraphBuilder, Literal, Shape, Tensor, TensorType, control_builders, grad, op,
};

fn parameter(g: &GraphBuilder, dtype: DType, dims: &[usize]) -> Tensor {
    g.parameter(TensorType::new(dtype, dims), "x")
}

/// A call of a method.
type Call = fn(&GraphBuilder) -> Tensor;

/// Every tensor method that creates ops, by name.
fn calls() -> Vec<(&'static str, Call)> {
    fn x(g: &GraphBuilder) -> Tensor {
        parameter(g, F32, &[2, 4])
    }
    fn state(g: &GraphBuilder) -> Tensor {
        parameter(g, U64, &[2])
    }
    fn pool(g: &GraphBuilder) -> Tensor {
        parameter(g, F32, &[1, 4, 4, 1])
    }
    vec![
        ("mean", |g| x(g).mean(&[0])),
        ("mean_all", |g| x(g).mean_all()),
        ("variance", |g| x(g).variance(&[0])),
        ("argmax", |g| x(g).argmax(1)),
        ("one_hot", |g| parameter(g, I32, &[2]).one_hot(3, F32)),
        ("log_softmax", |g| x(g).log_softmax()),
        ("softmax", |g| x(g).softmax()),
        ("relu", |g| x(g).relu()),
        ("leaky_relu", |g| x(g).leaky_relu(0.1)),
        ("silu", |g| x(g).silu()),
        ("elu", |g| x(g).elu(1.0)),
        ("sinh", |g| x(g).sinh()),
        ("softplus", |g| x(g).softplus()),
        ("gelu", |g| x(g).gelu()),
        ("gelu_tanh", |g| x(g).gelu_tanh()),
        ("sum_in_f32", |g| parameter(g, DType::BF16, &[2]).sum_in_f32(&[0])),
        ("compare", |g| x(g).compare(&x(g), op::Direction::Lt)),
        ("select", |g| x(g).less(&x(g)).select(&x(g), &x(g))),
        ("clamp", |g| x(g).clamp(&g.scalar(F32, 0.0), &g.scalar(F32, 1.0))),
        ("convert", |g| x(g).convert(I32)),
        ("bitcast_convert", |g| x(g).bitcast_convert(U32)),
        ("reduce_precision", |g| x(g).reduce_precision(8, 7)),
        ("stop_gradient", |g| x(g).stop_gradient()),
        ("reshape", |g| x(g).reshape([8])),
        ("transpose", |g| x(g).transpose(&[1, 0])),
        ("reverse", |g| x(g).reverse(&[0])),
        ("slice", |g| x(g).slice(&[0, 0], &[1, 2], &[1, 1])),
        ("slice_dim", |g| x(g).slice_dim(0, 0, 1)),
        ("pad", |g| x(g).pad(&g.scalar(F32, 0.0), &[1, 1], &[0, 0], &[0, 0])),
        ("concatenate", |g| Tensor::concatenate(&[&x(g), &x(g)], 0)),
        ("dynamic_slice", |g| x(g).dynamic_slice(&[&g.scalar(I32, 0.0), &g.scalar(I32, 0.0)], &[1, 1])),
        ("dynamic_update_slice", |g| {
            let update = parameter(g, F32, &[1, 1]);
            x(g).dynamic_update_slice(&update, &[&g.scalar(I32, 0.0), &g.scalar(I32, 0.0)])
        }),
        ("take", |g| x(g).take(&parameter(g, I32, &[3]))),
        ("sum", |g| x(g).sum(&[0])),
        ("prod", |g| x(g).prod(&[0])),
        ("reduce_max", |g| x(g).reduce_max(&[0])),
        ("reduce_min", |g| x(g).reduce_min(&[0])),
        ("all", |g| x(g).less(&x(g)).all(&[0])),
        ("any", |g| x(g).less(&x(g)).any(&[0])),
        ("sum_all", |g| x(g).sum_all()),
        ("dot", |g| x(g).dot(&parameter(g, F32, &[4, 3]))),
        ("dot_general", |g| x(g).dot_general(&x(g), &[0], &[0], &[1], &[1])),
        ("matmul", |g| parameter(g, F32, &[1, 2, 4]).matmul(&parameter(g, F32, &[1, 4, 2]))),
        ("random_uniform", |g| state(g).random_uniform(&[3]).1),
        ("random_normal", |g| state(g).random_normal(&[3]).1),
        ("random_bernoulli", |g| state(g).random_bernoulli(0.5, &[3]).1),
        ("random_bits", |g| state(g).random_bits(TensorType::new(U32, [3]), op::RngAlgorithm::Philox).1),
        ("sort", |g| x(g).sort(0, true)),
        ("argsort", |g| x(g).argsort(0, true)),
        ("top_k", |g| x(g).top_k(2).0),
        ("max_pool", |g| pool(g).max_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4])),
        ("sum_pool", |g| pool(g).sum_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4])),
        ("avg_pool", |g| pool(g).avg_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0], [0, 1], [0, 1], [0, 0]])),
        ("scalar_like", |g| x(g).scalar_like(1.0)),
        ("zeros_like", |g| x(g).zeros_like()),
        ("ones_like", |g| x(g).ones_like()),
        ("broadcast_with", |g| x(g).broadcast_with(&parameter(g, F32, &[4])).1),
        ("broadcast_to", |g| x(g).broadcast_to(&Shape::new([3, 2, 4]))),
        ("broadcast_in_dim", |g| x(g).broadcast_in_dim(&Shape::new([2, 4, 3]), &[0, 1])),
        ("broadcast_except", |g| parameter(g, F32, &[2]).broadcast_except(&Shape::new([2, 4]), &[1])),
        ("while_loop", |g| {
            let limit = g.scalar(F32, 9.0);
            control_builders::while_loop(&[&g.scalar(F32, 1.0)], |s| s[0].less(&limit), |s| vec![&s[0] * 2.0])
                .remove(0)
        }),
        ("cond", |g| {
            let x = g.parameter(TensorType::scalar(F32), "x");
            control_builders::cond(&x.less(&x.scalar_like(0.0)), || vec![-&x], || vec![x.sqrt()]).remove(0)
        }),
        ("outlined", |g| {
            let x = x(g);
            control_builders::outlined(&x, || vec![x.exp()]).remove(0)
        }),
    ]
}

/// Methods with op-specific attributes, which create a single node.
const SINGLE: [&str; 8] =
    ["gather", "scatter", "reduce", "reduce_window", "sort_by", "convolution", "fail", "products_of_others"];

#[test]
fn nodes_know_the_line_of_the_user_that_made_them() {
    for (name, call) in calls() {
        let g = GraphBuilder::new("main");
        let y = call(&g);
        let graph = g.finish(&[y]).unwrap_or_else(|e| panic!("{name}: {e}"));
        for node in &graph.nodes {
            let file = node.loc.map_or("", |loc| loc.file);
            assert!(file.ends_with("tests/lines.rs"), "{name}: {} comes from {file}", node.op.name());
        }
    }
}

#[test]
fn every_method_of_tensors_is_looked_at() {
    let looked_at: BTreeSet<&str> = calls().iter().map(|(name, _)| *name).chain(SINGLE).collect();
    for file in [
        "op/composites.rs",
        "op/tensor_methods.rs",
        "op/rng.rs",
        "op/sort.rs",
        "op/window.rs",
        "op/tensor_arithmetic.rs",
    ] {
        let text = std::fs::read_to_string(format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("    pub fn ").filter(|rest| !rest.starts_with('$')) else {
                continue;
            };
            let name = rest.split(['(', '<']).next().unwrap();
            let head: String =
                lines[i..].iter().take_while(|l| !l.ends_with('{')).chain([line]).copied().collect();
            let makes =
                head.contains("-> Tensor") || head.contains("-> (Tensor") || head.contains("-> Vec<Tensor>");
            let is_of_tensors =
                head.contains("self") && !head.contains("fn over") && !head.contains("fn full");
            if makes && is_of_tensors {
                assert!(
                    looked_at.contains(name),
                    "{file}: `{name}` creates ops: add it to the calls of this test"
                );
                assert_eq!(lines[i - 1].trim(), "#[track_caller]", "{file}: {name}");
            }
        }
    }
}

/// Checks that the error of `build` on `f32[2, 4]` points to `line`; returns the error.
fn told(line: u32, build: impl FnOnce(&Tensor) -> Tensor) -> Error {
    let g = GraphBuilder::new("main");
    let x = parameter(&g, F32, &[2, 4]);
    let e = g.finish(&[build(&x)]).unwrap_err();
    assert!(e.places().iter().any(|p| p.ends_with(&format!("tests/lines.rs:{line}"))), "line {line}: {e}");
    let ours = e.places().iter().find(|p| p.contains("src/"));
    assert!(ours.is_none(), "{e}");
    e
}

#[test]
fn errors_name_the_line_of_the_user() {
    told(line!(), |x| x + &x.slice_dim(1, 0, 3));
    told(line!(), |x| x * &x.convert(I32));
    told(line!(), |x| x.dot(x));
    told(line!(), |x| x.convert(I32).softmax());
    told(line!(), |x| x.mean(&[7]));
    told(line!(), |x| x.one_hot(3, F32).reshape([1, 1]));
    told(line!(), |x| x.top_k(9).0);
    told(line!(), |x| grad(x, &[x]).remove(0));
    told(line!(), |x| x.fail(Error::new(ErrorKind::Graph, "not this one")));
    told(line!(), |x| control_builders::cond(x, || vec![x.exp()], || vec![x.clone()]).remove(0));
    told(line!(), |x| control_builders::fori_loop(3, &[x], |_, s| vec![s[0].reshape([5])]).remove(0));
    told(line!(), |x| control_builders::scan(&[x], &[], |c, _| (c.to_vec(), vec![])).0.remove(0));
    let other = GraphBuilder::new("other");
    let foreign = parameter(&other, F32, &[2, 4]);
    told(line!(), |x| x + &foreign);
    told(line!(), |x| x + &x.builder().constant(Literal::zeros(TensorType::new(F32, [3]))));
}
