//! Fusion rules for pooling and statistics apply exactly where they may. The fused kernels are tested in the CPU crate.

use systole_compile::{
    Kernel, PipelineOptions, ProgramSchedule, Relu, RowBlocksMode, optimize, remat, schedule,
};
use systole_ir::DType::{self, *};
use systole_ir::op::{Convolution, Monoid, Window};
use systole_ir::{GraphBuilder, Op, Tensor, TensorType, grad};

/// A pooled convolution with relu, and which of its intermediate values are results too.
#[derive(Clone, Copy)]
struct Net {
    filters: usize,
    channels: usize,
    relu: Relu,
    window: Window2,
    also: Also,
}

#[derive(Clone, Copy)]
struct Window2 {
    size: usize,
    stride: usize,
    padding: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Also {
    Nothing,
    /// The convolution's result.
    Convolved,
    /// The maxima before relu.
    Pooled,
    /// The gradient of the input.
    InputGradient,
    /// The full-size gradient.
    FullGradient,
}

const NET: Net = Net {
    filters: 8,
    channels: 1,
    relu: Relu::After,
    window: Window2 { size: 2, stride: 2, padding: 0 },
    also: Also::Nothing,
};

fn compiled(n: Net) -> ProgramSchedule {
    compiled_as(n, F32, 2, RowBlocksMode::Off)
}

fn compiled_as(n: Net, dtype: DType, batch: usize, blocks: RowBlocksMode) -> ProgramSchedule {
    let g = GraphBuilder::new("net");
    let x = g.parameter(TensorType::new(dtype, [batch, 12, 12, n.channels]), "x");
    let k = g.parameter(TensorType::new(dtype, [3, 3, n.channels, n.filters]), "kernel");
    let b = g.parameter(TensorType::new(dtype, [n.filters]), "bias");
    let w = n.window;
    let window = Window::new(&[1, w.size, w.size, 1], &[1, w.stride, w.stride, 1], &{
        let p = [w.padding; 2];
        [[0, 0], p, p, [0, 0]]
    });
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1)) + &b;
    let a = if n.relu == Relu::Before { h.relu() } else { h.clone() };
    let p = Monoid::Maximum.over_windows(&a, window);
    let y = if n.relu == Relu::After { p.relu() } else { p.clone() };
    // The gradient comes from later steps, as in a net.
    let flat = y.reshape([batch, y.ty().elements() / batch]);
    let w = g.parameter(TensorType::new(dtype, [flat.dim(1), 3]), "dense");
    let out = flat.dot(&w).convert(F32);
    let loss = (&out * &out).sum_all();
    let wanted: Vec<&Tensor> = match n.also {
        Also::InputGradient => vec![&k, &b, &x],
        Also::FullGradient => vec![&k, &b, &h],
        _ => vec![&k, &b],
    };
    let mut results = vec![y.clone()];
    results.extend(grad(&loss, &wanted));
    match n.also {
        Also::Convolved => results.push(h),
        Also::Pooled => results.push(p),
        _ => {}
    }
    let graph = g.finish(&results).unwrap();
    schedule(&optimize(&graph).unwrap().0, &PipelineOptions { blocks, ..PipelineOptions::default() }).unwrap()
}

fn names(s: &ProgramSchedule) -> Vec<String> {
    s.steps.iter().map(|step| step.kernel.name()).collect()
}

fn has(s: &ProgramSchedule, name: &str) -> bool {
    names(s).iter().any(|n| n == name)
}

#[test]
fn a_pooled_convolution_and_its_gradients_are_two_steps() {
    for (relu, name) in [
        (Relu::After, "convolution+max_pool+relu"),
        (Relu::Before, "convolution+relu+max_pool"),
        (Relu::None, "convolution+max_pool"),
    ] {
        let s = compiled(Net { relu, ..NET });
        assert_eq!(names(&s).first().map(String::as_str), Some(name), "{s}");
        assert_eq!(names(&s).last().map(String::as_str), Some("unpooled kernel gradient"), "{s}");
        assert!(!names(&s).iter().any(|n| n == "select"), "{s}");
        // No array of the convolution's size is left.
        let full = 2 * 10 * 10 * 8 * 4;
        assert!(s.slots.iter().all(|x| x.bytes < full), "{s}");
    }
}

#[test]
fn the_mask_of_relu_is_taken_out_of_a_longer_step() {
    let g = GraphBuilder::new("net");
    let x = g.parameter(TensorType::new(F32, [2, 12, 12, 1]), "x");
    let k = g.parameter(TensorType::new(F32, [3, 3, 1, 4]), "kernel");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
    let y = Monoid::Maximum.over_windows(&h, Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4])).relu();
    // Two users: their gradients are added in the step that masks the sum.
    let flat = y.reshape([2, 100]);
    let [u, v] = ["u", "v"].map(|name| g.parameter(TensorType::new(F32, [100, 3]), name));
    let results = grad(&(flat.dot(&u).tanh() * flat.dot(&v)).sum_all(), &[&k]);
    let graph = g.finish(&results).unwrap();
    let s = schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap();
    assert!(has(&s, "convolution+max_pool+relu") && has(&s, "unpooled kernel gradient"), "{s}");
    assert!(!s.to_string().contains("i1["), "{s}");
}

/// Rematerialization computes the images again, shortly before the kernel gradient and after the sum of the bias.
#[test]
fn a_kernel_gradient_follows_images_that_are_computed_again() {
    let g = GraphBuilder::new("net");
    let bytes = g.parameter(TensorType::new(U8, [200, 12, 12, 1]), "x");
    let x = bytes.convert(F32);
    let k = g.parameter(TensorType::new(F32, [3, 3, 1, 8]), "kernel");
    let b = g.parameter(TensorType::new(F32, [8]), "bias");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1)) + &b;
    let window = Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    let y = Monoid::Maximum.over_windows(&h, window).relu().reshape([200, 200]);
    let w = g.parameter(TensorType::new(F32, [200, 3]), "dense");
    let results = grad(&y.dot(&w).tanh().sum_all(), &[&k, &b, &w]);
    let graph = optimize(&g.finish(&results).unwrap()).unwrap().0;
    let whole = schedule(&graph, &PipelineOptions::default()).unwrap();
    assert!(has(&whole, "unpooled kernel gradient"), "{whole}");
    let mut is_computed_again = false;
    for save in [0.2, 0.4, 0.7, 1.0].map(|share| (whole.arena_bytes as f64 * share) as usize) {
        let Some(less) = remat(&graph, save) else { continue };
        let s = schedule(&less, &PipelineOptions::default()).unwrap();
        assert!(has(&s, "unpooled kernel gradient"), "{s}");
        let converts = less.nodes.iter().filter(|n| matches!(n.op, Op::Convert(_)) && n.outs[0].rank() == 4);
        is_computed_again |= converts.count() > 1;
    }
    assert!(is_computed_again);
}

#[test]
fn values_that_something_else_wants_are_made() {
    let s = compiled(Net { also: Also::Convolved, ..NET });
    assert!(has(&s, "convolution+bias") && has(&s, "max_pool+relu"), "{s}");
    let s = compiled(Net { also: Also::Pooled, ..NET });
    assert!(has(&s, "convolution+max_pool") && !has(&s, "convolution+max_pool+relu"), "{s}");
    for also in [Also::InputGradient, Also::FullGradient] {
        let s = compiled(Net { also, ..NET });
        assert!(has(&s, "convolution+max_pool+relu") && has(&s, "unpool 2x2"), "{s}");
        assert!(!has(&s, "unpooled kernel gradient"), "{s}");
    }
}

#[test]
fn windows_that_overlap_or_reach_out_of_the_image_are_left_alone() {
    for window in [
        Window2 { size: 3, stride: 2, padding: 0 },
        Window2 { size: 2, stride: 2, padding: 1 },
        Window2 { size: 9, stride: 9, padding: 0 },
    ] {
        let s = compiled(Net { window, ..NET });
        assert!(has(&s, "reduce_window") && has(&s, "select_and_scatter"), "{s}");
    }
    // Gaps between windows are supported.
    let s = compiled(Net { window: Window2 { size: 2, stride: 3, padding: 0 }, ..NET });
    assert!(has(&s, "unpooled kernel gradient"), "{s}");
}

#[test]
fn gradients_of_wide_inputs_are_unpooled_first() {
    let s = compiled(Net { channels: 256, ..NET });
    assert!(has(&s, "unpool 2x2") && has(&s, "convolution+max_pool+relu"), "{s}");
}

#[test]
fn pooling_without_gradients_remembers_no_places() {
    let g = GraphBuilder::new("infer");
    let x = g.parameter(TensorType::new(F32, [2, 9, 9, 1]), "x");
    let k = g.parameter(TensorType::new(F32, [3, 3, 1, 4]), "kernel");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
    let window = Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    let graph = g.finish(&[Monoid::Maximum.over_windows(&h, window)]).unwrap();
    let s = schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap();
    assert!(matches!(&s.steps[..], [one] if matches!(one.kernel, Kernel::Pool(_)) && one.outputs.len() == 1));
}

#[test]
fn the_same_pool_of_two_arrays_is_two_steps() {
    let g = GraphBuilder::new("two");
    let window = || Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    let x = g.parameter(TensorType::new(F32, [2, 8, 8, 3]), "x");
    let y = g.parameter(TensorType::new(F32, [2, 8, 8, 3]), "y");
    let (a, b) = (Monoid::Maximum.over_windows(&x, window()), Monoid::Maximum.over_windows(&y, window()));
    let results = grad(&(a * b).sum_all(), &[&x, &y]);
    let graph = g.finish(&results).unwrap();
    let s = schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap();
    let count = |name: &str| names(&s).iter().filter(|n| *n == name).count();
    assert_eq!((count("max_pool"), count("unpool 2x2")), (2, 2), "{s}");
}

#[test]
fn the_derivative_of_average_pooling_is_one_step() {
    for (size, stride, steps) in
        [(2, 2, vec!["unpool 2x2"]), (3, 4, vec!["unpool 3x3"]), (3, 2, vec!["pad", "reduce_window"])]
    {
        let g = GraphBuilder::new("average");
        let x = g.parameter(TensorType::new(F32, [2, 13, 12, 3]), "x");
        let window = Window::new(&[1, size, size, 1], &[1, stride, stride, 1], &[[0, 0]; 4]);
        let y = Monoid::Add.over_windows(&x, window);
        let dy = g.parameter(y.ty().clone(), "dy");
        let graph = g.finish(&grad(&(y * dy).sum_all(), &[&x])).unwrap();
        let s = schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap();
        assert_eq!(names(&s), steps, "{s}");
    }
}

#[test]
fn narrow_floats_in_blocks_have_no_full_size_gradient() {
    // Sums over the blocks are f32, and predicates of bf16 values are recomputed instead of stored.
    let s = compiled_as(NET, BF16, 8, RowBlocksMode::Rows(2));
    let bodies: Vec<&ProgramSchedule> = s
        .steps
        .iter()
        .filter_map(|step| match &step.kernel {
            Kernel::Blocks(b) => Some(&b.body),
            _ => None,
        })
        .map(|body| &**body)
        .collect();
    let has =
        |test: &dyn Fn(&Kernel) -> bool| bodies.iter().flat_map(|b| &b.steps).any(|step| test(&step.kernel));
    assert!(has(&|k| matches!(k, Kernel::UnpooledGradient(_))), "{s}");
    assert!(has(&|k| matches!(k, Kernel::Pool(p) if p.conv.is_some() && p.relu == Relu::After)), "{s}");
    assert!(!has(&|k| matches!(k, Kernel::Unpool(_))), "{s}");
}

/// Batch-normalization statistics of a convolution, over some dimensions.
fn statistics(dtype: systole_ir::DType, dims: &[usize], squares: bool) -> ProgramSchedule {
    let g = GraphBuilder::new("net");
    let x = g.parameter(TensorType::new(dtype, [4, 8, 8, 3]), "x");
    let k = g.parameter(TensorType::new(dtype, [3, 3, 3, 16]), "k");
    let y = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
    let wide = y.convert(F32);
    let kept: Vec<usize> = (0..4).filter(|d| !dims.contains(d)).collect();
    let mean = wide.mean(dims);
    let centred = &wide - mean.broadcast_in_dim(wide.shape(), &kept);
    let second = if squares { &centred * &centred } else { centred.abs() };
    let graph = g.finish(&[y, mean, second.mean(dims)]).unwrap();
    schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap()
}

#[test]
fn statistics_of_a_convolution_are_gathered_in_it() {
    for dtype in [F32, BF16] {
        let s = statistics(dtype, &[0, 1, 2], true);
        assert!(has(&s, "convolution+moments"), "{s}");
        // Nothing else reads the result.
        let y = s.steps[0].outputs[0];
        assert!(s.steps.iter().all(|step| !step.inputs.contains(&y)), "{s}");
    }
    for s in [statistics(F32, &[0, 1, 2], false), statistics(F32, &[0, 1], true)] {
        assert!(!has(&s, "convolution+moments"), "{s}");
    }
}
