//! Contraction of element-wise programs: a product that only one `add` or `subtract` reads becomes a fused multiply-add,
//! which rounds once.
//!
//! This is LLVM's `-ffp-contract=fast` with its choice of the product (the first operand's, if both are), as in XLA's
//! CPU compiler: half the instructions, and programs whose rounding errors depend on it have those of XLA.

use crate::program::{Contraction, Kernel, Map, MapInstr, MapRegister, ProgramSchedule};
use smallvec::smallvec;
use systole_ir::op::Binary;
use systole_ir::{DType, Op};

/// Contracts the element-wise programs of a schedule, including those of reductions.
pub fn run(s: &mut ProgramSchedule) {
    for step in &mut s.steps {
        if let Kernel::Map(map) | Kernel::Reduce { map, .. } = &mut step.kernel
            && let Some(new) = contracted(map)
        {
            *map = new;
        }
    }
}

/// Returns the map with contracted sums; `None` if there are none.
fn contracted(map: &Map) -> Option<Map> {
    let first = map.loads.len();
    let mut reads = vec![0; first + map.instrs.len()];
    map.instrs.iter().flat_map(|i| &i.args).chain(&map.stores).for_each(|&r| reads[r] += 1);
    let product = |sum: &MapInstr, r: MapRegister| {
        let k = r.checked_sub(first)?;
        let instr = &map.instrs[k];
        let is_product = instr.op == Op::Binary(Binary::Multiply) && instr.to == sum.from && reads[r] == 1;
        is_product.then_some(k)
    };
    let mut absorbed = vec![false; map.instrs.len()];
    let mut instrs = map.instrs.clone();
    for (k, sum) in map.instrs.iter().enumerate() {
        let (Op::Binary(Binary::Add | Binary::Subtract), DType::F32 | DType::F64) = (&sum.op, sum.from)
        else {
            continue;
        };
        let &[left, right] = &sum.args[..] else { continue };
        let (factor, other, place) = match (product(sum, left), product(sum, right)) {
            (Some(factor), _) => (factor, right, Contraction::Left),
            (None, Some(factor)) => (factor, left, Contraction::Right),
            (None, None) => continue,
        };
        let &[a, b] = &map.instrs[factor].args[..] else { continue };
        absorbed[factor] = true;
        (instrs[k].args, instrs[k].contraction) = (smallvec![a, b, other], Some(place));
    }
    absorbed.contains(&true).then(|| without(map, instrs, &absorbed))
}

/// Removes the instructions that are absorbed and renumbers the registers.
fn without(map: &Map, instrs: Vec<MapInstr>, absorbed: &[bool]) -> Map {
    let first = map.loads.len();
    let mut numbers: Vec<MapRegister> = (0..first).collect();
    let mut kept: Vec<MapInstr> = Vec::with_capacity(instrs.len());
    for (mut instr, gone) in instrs.into_iter().zip(absorbed) {
        numbers.push(first + kept.len());
        if !gone {
            instr.args.iter_mut().for_each(|a| *a = numbers[*a]);
            kept.push(instr);
        }
    }
    let stores = map.stores.iter().map(|&s| numbers[s]).collect();
    Map { shape: map.shape.clone(), loads: map.loads.clone(), instrs: kept, stores }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PipelineOptions, RoundingOptions};
    use systole_ir::{GraphBuilder, Tensor, TensorType};

    /// The instructions of a program that returns `f(x, y)`.
    fn instructions(dtype: DType, f: impl Fn(&Tensor, &Tensor) -> Vec<Tensor>) -> Vec<MapInstr> {
        let g = GraphBuilder::new("main");
        let [x, y] = ["x", "y"].map(|name| g.parameter(TensorType::new(dtype, [8]), name));
        let graph = g.finish(&f(&x, &y)).unwrap();
        let options = PipelineOptions {
            rounding: RoundingOptions { contraction: true, ..RoundingOptions::default() },
            ..PipelineOptions::default()
        };
        let program = crate::schedule(&graph, &options).unwrap();
        let maps = program.steps.iter().filter_map(|s| match &s.kernel {
            Kernel::Map(map) => Some(map.instrs.clone()),
            _ => None,
        });
        maps.flatten().collect()
    }

    fn contractions(instrs: &[MapInstr]) -> Vec<Option<Contraction>> {
        instrs.iter().map(|i| i.contraction).collect()
    }

    #[test]
    fn products_that_one_sum_reads_are_contracted() {
        for dtype in [DType::F32, DType::F64] {
            let one = instructions(dtype, |x, y| vec![x * y + x]);
            assert_eq!(
                (contractions(&one), &one[0].args[..]),
                (vec![Some(Contraction::Left)], &[0, 1, 0][..])
            );
            let right = instructions(dtype, |x, y| vec![x - &(x * y)]);
            assert_eq!(contractions(&right), [Some(Contraction::Right)]);
            assert_eq!(right[0].op, Op::Binary(Binary::Subtract));
        }
    }

    #[test]
    fn of_two_products_the_first_is_contracted() {
        let both = instructions(DType::F32, |x, y| vec![x * y - x * x]);
        assert_eq!(contractions(&both), [None, Some(Contraction::Left)]);
        assert_eq!(both[0].args[0], both[0].args[1], "the second product is rounded");
    }

    #[test]
    fn products_that_others_read_and_other_types_are_not() {
        let stored = |x: &Tensor, y: &Tensor| {
            let product = x * y;
            vec![&product + x, product]
        };
        assert!(contractions(&instructions(DType::F32, stored)).iter().all(Option::is_none));
        let squared = |x: &Tensor, y: &Tensor| {
            let product = x * y;
            vec![&product + &product]
        };
        assert!(contractions(&instructions(DType::F32, squared)).iter().all(Option::is_none));
        for dtype in [DType::I32, DType::BF16, DType::F16] {
            let sum = instructions(dtype, |x, y| vec![x * y + x]);
            assert!(!sum.is_empty() && contractions(&sum).iter().all(Option::is_none), "{dtype}");
        }
    }
}
