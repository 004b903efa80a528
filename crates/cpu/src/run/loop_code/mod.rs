//! Loops over small arrays as machine code: scalar replacement of arrays, with calls of the kernels of all other steps.
//!
//! A step of a loop's program costs a call of about 50 nanoseconds, more than the arithmetic on a few numbers. `lowering`
//! therefore turns condition, body, and the loops and branches inside into one piece of scalar code: elements of small
//! arrays become values of their own, copies and slices of them become nothing (`steps`, `indexed`, `product`), and
//! the steps on larger arrays become calls (`loop_function`). `kernel` is the loop's kernel.

mod control;
mod indexed;
pub mod kernel;
mod loop_call;
mod loop_function;
mod lowering;
mod product;
mod steps;
