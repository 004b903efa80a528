//! `a·x + y` as a compiled function: the smallest program on Systole. It is traced once, compiled once, and run on
//! arrays; on a TPU tutorial's page it is the function that `tpu.rewrite` is shown with.
//!
//! Run it: `cargo run --release --example axpy`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

fn main() -> Result<()> {
    let axpy = jit(|(a, x, y): (Tensor, Tensor, Tensor)| a * x + y);

    let x = Literal::from_slice([4], &[1f32, 2.0, 3.0, 4.0])?;
    let y = Literal::from_slice([4], &[10f32, 20.0, 30.0, 40.0])?;
    for a in [2.0, 3.0] {
        let out = axpy.call((Buffer::scalar(F32, a), x.clone().into(), y.clone().into()))?;
        println!("{a} * x + y = {:?}", out.to_literal()?.to_f32s());
    }
    assert_eq!(axpy.compiled_programs(), 1, "a new value of `a` compiles nothing");
    Ok(())
}
