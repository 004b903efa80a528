//! Fuses dequantization into GEMMs with few rows: reads int8 or int4 weights directly instead of writing the float
//! matrix to memory.

use crate::program::{DequantizeStep, DequantizedGemm, Kernel, SlotId, StepList};
use systole_ir::{DType, Op};

/// Maximum number of rows; with more, dequantizing the matrix once is faster.
const ROWS: usize = 8;

/// Fuses dequantization into GEMMs with few rows, and removes dequantization steps without other readers.
pub fn products(steps: &mut StepList<'_>) {
    for at in steps.find(|s| matches!(&s.kernel, Kernel::Packed(p) if p.product.is_none())) {
        let Some(step) = steps.step(at) else { continue };
        let Kernel::Packed(packed) = &step.kernel else { continue };
        let (packed, slot) = (packed.clone(), step.outputs[0]);
        let operands = packed.at.map(|i| (step.inputs[i], step.input_types[i].clone()));
        for reader in steps.readers(slot) {
            let Some(product) = product_of(steps, reader, slot) else { continue };
            let Some(step) = &mut steps.list[reader] else { continue };
            step.kernel = Kernel::Packed(DequantizeStep {
                at: [1, 2],
                product: Some(product),
                unpack: packed.unpack.clone(),
            });
            let (slots, types) = operands.clone().into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
            step.inputs.splice(1..2, slots);
            step.input_types.splice(1..2, types);
        }
        if steps.readers(slot).is_empty() && !steps.is_result(slot) {
            steps.list[at] = None;
        }
    }
}

/// The GEMM with few rows at step `at`, if its right operand is the matrix in `slot`.
fn product_of(steps: &StepList<'_>, at: usize, slot: SlotId) -> Option<DequantizedGemm> {
    let step = steps.step(at)?;
    let Kernel::Op { op: Op::DotGeneral(d), bias } = &step.kernel else { return None };
    let (left, right) = (&step.input_types[0], &step.input_types[1]);
    let rows: usize = d.lhs_free(left.rank()).iter().map(|&d| left.shape[d]).product();
    let fits = step.inputs[1] == slot
        && step.inputs.iter().filter(|&&x| x == slot).count() == 1
        && d.lhs_batch.is_empty()
        && [left.dtype, right.dtype, d.element_type] == [DType::F32; 3]
        && (1..=ROWS).contains(&rows);
    fits.then(|| DequantizedGemm { op: Op::DotGeneral(d.clone()), bias: *bias, right: right.clone() })
}
