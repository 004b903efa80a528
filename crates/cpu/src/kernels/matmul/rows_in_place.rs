//! Products whose left operand tile registers load from where it lies: as convolutions of one pixel's window, whose
//! kernel does not pack its input.

use crate::kernel::product::{Roles, count, joint_stride};
use crate::kernels::matmul::product::Product;
use crate::select::{Answer, Problem};
use systole_compile::{Kernel as Plan, Step};
use systole_ir::op::Convolution;
use systole_ir::{Op, TensorType};

/// How many rows there are at least: fewer leave threads without work, as they do not share the packed columns.
const FEWEST_ROWS: usize = 64;
/// Elements of a result from which on packing pays.
const LARGE: usize = 1 << 20;
/// Products for which two panels of rows fit the first-level cache often enough.
const LONGEST: usize = 4096;

/// The distances along an operand's rows or columns, and along the products.
fn strides(r: &Roles) -> Option<(usize, usize)> {
    Some((joint_stride(&r.free)?, joint_stride(&r.inner)?))
}

/// The kernel of the convolution that computes the product.
pub fn bind(d: &Product, problem: &Problem<'_>) -> Answer {
    let [m, n, k] = d.size();
    // Its kernel (the right operand) may be stored `[1, K, N]` or `[1, N, K]`.
    let by_columns = match strides(&d.right) {
        Some((1, step)) if step == n => false,
        Some((column, 1)) if column == k => true,
        _ => return Err("the right operand is no matrix without gaps".into()),
    };
    if count(&d.left.batch) != 1 {
        return Err("it is a batch of products".into());
    }
    if strides(&d.left) != Some((k, 1)) {
        return Err("the rows of the left operand do not lie one after the other".into());
    }
    if m < FEWEST_ROWS {
        return Err(format!("it has {m} rows, fewer than {FEWEST_ROWS}").into());
    }
    if m * n == 0 || k == 0 {
        return Err("it has no products".into());
    }
    if m * n >= LARGE || k > LONGEST {
        return Err("it is so large that packing pays".into());
    }
    let [from, to] = d.types;
    let mut c = Convolution::channels_last(&[1], &[[0, 0]], &[1], 1, to);
    if by_columns {
        (c.dims.kernel_input_feature, c.dims.kernel_output_feature) = (2, 1);
    }
    let kernel = if by_columns { [1, n, k] } else { [1, k, n] };
    let step = Step {
        kernel: Plan::Op { op: Op::from(c), bias: false },
        input_types: vec![TensorType::new(from, [1, m, k]), TensorType::new(from, kernel)],
        output_types: vec![TensorType::new(to, [1, m, n])],
        ..problem.step.clone()
    };
    problem.ask_for("conv/amx", &step)
}
