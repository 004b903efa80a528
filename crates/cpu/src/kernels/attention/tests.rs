//! Tests of bf16 attention on AMX tile registers against f32 GEMMs, and against bf16 pairs on vectors (VDPBF16PS).
//!
//! Tests run on emulated tile registers on every machine, and on the machine's own tile registers if it has them.

use crate::kernels::attention::*;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use crate::simd::amx;
use systole_ir::attention::AttentionConfig;
use systole_ir::op::ArgDomain;
use systole_ir::rng::RandomStream;
use systole_ir::{GraphBuilder, Literal, TensorType, bf16, vjp};

/// Batch, queries, keys, heads, features of keys and of values.
type Sizes = [usize; 6];

/// Returns the steps that compute bf16 attention and its gradient.
fn steps([batch, queries, keys, heads, width, depth]: Sizes, attention: AttentionConfig) -> Vec<Step> {
    let g = GraphBuilder::new("attention");
    let array = |places, features| TensorType::new(DType::BF16, [batch, places, heads, features]);
    let types = [array(queries, width), array(keys, width), array(keys, depth)];
    let [q, k, v] = types.map(|t| g.parameter(t, "x"));
    let random = g.parameter(TensorType::new(DType::U64, [2]), "random");
    let y = attention.of(&q, &k, &v, attention.dropout.map(|_| &random));
    let dy = g.parameter(y.ty().clone(), "dy");
    let gradients = vjp(&[&y], &[&dy], &[&q, &k, &v]);
    let graph = g.finish(&[vec![y], gradients].concat()).unwrap();
    let all = systole_compile::schedule(&graph, &Default::default()).unwrap().steps;
    let found: Vec<Step> = all.into_iter().filter(|s| recognised(s).is_some()).collect();
    assert_eq!(found.len(), 2, "attention and its derivative");
    found
}

fn recognised(step: &Step) -> Option<&AttentionMatch> {
    match &step.kernel {
        systole_compile::Kernel::Attention(found) => Some(found),
        _ => None,
    }
}

fn draw(step: &Step) -> Vec<Literal> {
    let one = |(i, t): (usize, &TensorType)| match t.dtype {
        DType::U64 => Literal::from_slice([2], &[0x0123_4567_89ab_cdefu64, 41]).unwrap(),
        _ => ArgDomain::Uniform(-2.0, 2.0).draw(t, &mut RandomStream::new(7, 8, i as u64)),
    };
    step.input_types.iter().enumerate().map(one).collect()
}

/// Runs a kernel and returns its results in bytes. Scratch is filled with NaNs before: that of this thread, and that
/// shared by the tasks.
fn run(kernel: &AttentionKernel, threads: usize, step: &Step, inputs: &[Literal]) -> Vec<Vec<u8>> {
    let from: Vec<*const u8> = inputs.iter().map(|i| i.bytes().as_ptr()).collect();
    let mut outputs: Vec<Vec<u8>> = step.output_types.iter().map(|t| vec![0xff; t.bytes()]).collect();
    let to: Vec<*mut u8> = outputs.iter_mut().map(|o| o.as_mut_ptr()).collect();
    let shared = AlignedMemory::new(kernel.scratch().max(64)).unwrap();
    let own = kernel.pairs.as_ref().map_or(kernel.places().total * 4, |p| kernel.pair_scratch(p));
    let io = Io { inputs: &from, outputs: &to, scratch: shared.ptr() };
    // SAFETY: memory of these sizes; arrays are those of the step.
    unsafe {
        shared.ptr().write_bytes(0xff, kernel.scratch());
        with_scratch(own, |scratch| scratch.write_bytes(0xff, own));
        kernel.run(&KernelContext { team: &ThreadPool::new(threads), flush: true }, &io).unwrap();
    }
    outputs
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&b| bf16::from_bits(u16::from_le_bytes(b)).to_f32())
}

/// Returns the largest deviation of an element, relative to its magnitude plus the root mean square of `want`.
fn distance(got: &[u8], want: &[u8]) -> f32 {
    let square: f32 = numbers(want).map(|x| x * x).sum();
    let size = (square / (want.len() / 2) as f32).sqrt().max(1e-3);
    let part = |(x, y): (f32, f32)| (x - y).abs() / (size + y.abs());
    numbers(got).zip(numbers(want)).map(part).max_by(f32::total_cmp).unwrap_or(0.0)
}

/// Checks a step with blocks of at most `block` queries.
fn check(step: &Step, block: usize, what: &str) {
    let found = recognised(step).expect("attention");
    let inputs = draw(step);
    let [q, k, v] = [found.q, found.k, found.v].map(|i| &step.input_types[i].shape);
    let want = run(&AttentionKernel::with(found, step, Level::Portable, None), 1, step, &inputs);
    let pairs = Some(Level::Avx512Bf16).filter(|l| l.is_available());
    let vectors = pairs.and_then(|l| Bf16PairGemms::with_vectors(l, [k[1], q[3], v[3]]));
    let by_vectors =
        vectors.map(|p| run(&AttentionKernel::with(found, step, Level::Avx512, Some(p)), 1, step, &inputs));
    for unit in std::iter::once(&amx::EMULATED).chain(amx::kernels_of(Level::best())) {
        for level in [Level::Portable, Level::Avx512].into_iter().filter(|l| l.is_available()) {
            let mut kernel =
                AttentionKernel::with(found, step, level, Bf16PairGemms::with_tiles(unit, level));
            assert!(kernel.pairs.is_some());
            kernel.block = kernel.block.min(block);
            let got = run(&kernel, 1, step, &inputs);
            for (i, got) in got.iter().enumerate() {
                let d = distance(got, &want[i]);
                assert!(d <= 3e-2, "{what}, {level:?}, result {i}: {d} from products of f32");
                let Some(pairs) = &by_vectors else { continue };
                let d = distance(got, &pairs[i]);
                assert!(d <= 8e-3, "{what}, {level:?}, result {i}: {d} from pairs by vectors");
            }
            for threads in [2, 3] {
                assert!(got == run(&kernel, threads, step, &inputs), "{what}, {level:?}, {threads} threads");
            }
        }
    }
}

#[test]
fn tile_registers_attend_and_give_the_derivatives() {
    let all: [Sizes; 7] = [
        [1, 1, 1, 1, 1, 1],
        // Partial tiles and odd counts; one and two whole tiles.
        [2, 37, 45, 2, 20, 24],
        [1, 33, 17, 3, 7, 31],
        [1, 64, 64, 2, 32, 64],
        [1, 16, 48, 1, 16, 48],
        // Several tasks for each head, whose partial sums are added.
        [1, 150, 150, 1, 8, 12],
        [1, 70, 131, 2, 33, 40],
    ];
    for sizes in all {
        for causal in [false, true] {
            for dropout in [None, Some(AttentionDropout::rate(0.3))] {
                let what = AttentionConfig { scale: 1.0 / (sizes[4] as f64).sqrt(), causal, dropout };
                for step in steps(sizes, what) {
                    for block in [19, usize::MAX] {
                        check(&step, block, &format!("{sizes:?} {what:?} by {block}"));
                    }
                }
            }
        }
    }
}
