//! Tests updates of a state in loops and branches, which share memory with it, against the interpreter: bit for bit.

mod common;

use common::*;
use systole_ir::DType::{F32, I32};
use systole_ir::control_builders::{case, cond, fori_loop};
use systole_ir::{GraphBuilder, Tensor, TensorType};

/// Runs ten iterations of `f(i, x, y) → (x, y)` with `x, y: f32[16, 32]`, whose rows are whole cache lines: slices of them are views, on every level and number of threads.
fn check(name: &str, f: impl Fn(&Tensor, &Tensor, &Tensor) -> (Tensor, Tensor)) {
    let g = GraphBuilder::new(name);
    let [x, y] = ["x", "y"].map(|name| g.parameter(TensorType::new(F32, [16, 32]), name));
    let last = fori_loop(10, &[&x, &y], |i, s| {
        let (x, y) = f(i, &s[0], &s[1]);
        vec![x, y]
    });
    let graph = g.finish(&last).unwrap();
    check_near(&graph, &arguments(&graph, -1.0, 1.0, 9), 0.0);
}

/// Writes row `at + shift`, or reads it.
fn put(x: &Tensor, row: &Tensor, at: &Tensor, shift: i32) -> Tensor {
    x.dynamic_update_slice(row, &[&(at + shift as f64), &at.scalar_like(0.0)])
}

fn row(x: &Tensor, at: &Tensor, shift: i32) -> Tensor {
    x.dynamic_slice(&[&(at + shift as f64), &at.scalar_like(0.0)], &[1, 32])
}

#[test]
fn several_updates_of_a_state() {
    check("twice", |i, x, y| {
        let v = row(y, i, 0);
        (put(&put(x, &v, i, 0), &(&v * 2.0), i, 1), y * 0.5)
    });
    check("swap of rows", |i, x, y| {
        let (a, b) = (row(x, i, 0), row(x, i, 5));
        (put(&put(x, &b, i, 0), &a, i, 5), y + 1.0)
    });
    check("read between", |i, x, y| {
        let once = put(x, &row(y, i, 0), i, 0);
        let v = &row(&once, i, 1) + &row(x, i, 0);
        (put(&once, &v, i, 3), y * 0.5)
    });
    check("old state after an update", |i, x, y| {
        let once = put(x, &row(y, i, 0), i, 0);
        (put(&once, &row(y, i, 1), i, 2), x + y)
    });
    check("map after an update", |i, x, y| (put(x, &row(y, i, 0), i, 0) * 0.75 - 0.125, y * 0.5));
    check("sum before an update", |i, x, y| {
        let v = row(x, i, 0) + x.sum(&[0]).reshape([1, 32]);
        (put(&put(x, &v, i, 1), &v, i, 2), y * 0.5)
    });
}

#[test]
fn updates_in_branches() {
    let odd = |i: &Tensor| i.and(&i.scalar_like(1.0)).equal(&i.scalar_like(1.0));
    check("write if valid", |i, x, y| {
        let v = row(y, i, 0);
        let x = cond(&odd(i), || vec![put(x, &v, i, 0)], || vec![x.clone()]).remove(0);
        (x, y * 0.5)
    });
    check("write, map or nothing", |i, x, y| {
        let which = i.and(&i.scalar_like(3.0));
        let v = row(y, i, 0);
        let made = case(
            &which,
            &[
                &|| vec![put(x, &v, i, 0), y.clone()],
                &|| vec![x + y, y * 0.5],
                &|| vec![x.clone(), put(y, &row(x, i, 2), i, 1)],
                &|| vec![y.zeros_like(), x.clone()],
            ],
        );
        (made[0].clone(), made[1].clone())
    });
    check("exchange of states", |i, x, y| {
        let made =
            cond(&odd(i), || vec![y.clone(), x.clone()], || vec![x.clone(), put(y, &row(x, i, 0), i, 3)]);
        (made[0].clone(), made[1].clone())
    });
    check("state read after its branch wrote", |i, x, y| {
        let made = cond(
            &odd(i),
            || {
                let once = put(x, &row(y, i, 0), i, 0);
                vec![put(&once, &row(x, i, 0), i, 1), x * 2.0]
            },
            || vec![x.clone(), x.clone()],
        );
        (made[0].clone(), &made[1] + y)
    });
    check("a row of the state that its branch changes", |i, x, y| {
        let wide = |v: &Tensor| v.broadcast_in_dim(&[16, 32].into(), &[0, 1]);
        let which = i.and(&i.scalar_like(3.0));
        let made = case(
            &which,
            &[
                &|| vec![x + &wide(&row(x, i, 0)), put(y, &row(y, i, 1), i, 3)],
                &|| vec![put(x, &row(x, i, 1), i, 2), y - &wide(&row(y, i, 2))],
                &|| vec![x * &wide(&row(x, i, 4)), y.clone()],
            ],
        );
        (made[0].clone(), made[1].clone())
    });
    check("branches in branches", |i, x, y| {
        let v = row(y, i, 0);
        let inner =
            || cond(&i.less(&i.scalar_like(5.0)), || vec![put(x, &v, i, 1)], || vec![put(x, &v, i, 2)]);
        let x = cond(&odd(i), inner, || vec![x.clone()]).remove(0);
        (put(&x, &v, i, 4), y * 0.5)
    });
}

/// A program that is not in a loop, with all arguments donated.
#[test]
fn updates_of_arguments() {
    let g = GraphBuilder::new("arguments");
    let [x, y] = ["x", "y"].map(|name| g.parameter(TensorType::new(F32, [16, 32]), name));
    let i = g.scalar(I32, 3.0);
    let pred = x.sum(&[0, 1]).less(&y.sum(&[0, 1]));
    let once = put(&x, &row(&y, &i, 0), &i, 0);
    let made = cond(&pred, || vec![put(&once, &row(&y, &i, 1), &i, 2)], || vec![once.clone()]).remove(0);
    let graph = g.finish(&[made, &y + &x]).unwrap();
    check_near(&graph, &arguments(&graph, -1.0, 1.0, 9), 0.0);
}
