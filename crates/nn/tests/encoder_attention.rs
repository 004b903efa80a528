//! Layers of transformer encoders that Keras does not have: windows of images, biases by distance, the step of a token or
//! an index.

use systole_data::Sample;
use systole_ir::{DType, Literal, TensorType};
use systole_nn::layers::*;
use systole_nn::{Model, any_input, input, input_of};

fn literal(shape: &[usize], f: impl Fn(usize) -> f32) -> Literal {
    let count: usize = shape.iter().product();
    Literal::from_slice(shape.to_vec(), &(0..count).map(f).collect::<Vec<_>>()).unwrap()
}

fn wave(i: usize) -> f32 {
    (i as f32 * 0.7).sin()
}

fn start() {
    systole_runtime::register(systole_cpu::provider());
}

#[test]
fn the_step_of_a_token_is_selected() {
    start();
    let (x, tokens) = (input("x", [4, 3]), input_of("tokens", DType::I32, [4]));
    for (layer, rows) in [(token_step().token(9), [1, 0]), (token_step(), [2, 3])] {
        let y = layer.on(&[&x, &tokens]);
        let mut model = Model::functional(&[x.clone(), tokens.clone()], &y).unwrap();
        model.build(&[TensorType::new(DType::F32, [4, 3]), TensorType::new(DType::I32, [4])]).unwrap();
        let ids = Literal::from_slice([2, 4], &[1i32, 9, 30, 9, 5, 4, 3, 7]).unwrap();
        let values = literal(&[2, 4, 3], wave);
        let all = values.to_f32s();
        let found = model.predict_on_sample(&Sample::new([("x", values), ("tokens", ids)])).unwrap();
        for (i, row) in rows.into_iter().enumerate() {
            let at = (i * 4 + row) * 3;
            assert_eq!(found.to_f32s()[i * 3..(i + 1) * 3], all[at..at + 3]);
        }
    }
}

#[test]
fn steps_are_selected_by_their_index() {
    start();
    let values = literal(&[2, 5, 3], wave);
    let all = values.to_f32s();
    let rows = |steps: &[usize]| -> Vec<f32> {
        let starts = (0..2).flat_map(|b| steps.iter().map(move |s| (b * 5 + s) * 3));
        starts.flat_map(|at| all[at..at + 3].to_vec()).collect()
    };
    for (layer, steps) in [
        (select_step(-1), &[4][..]),
        (select_step(1), &[1]),
        (slice_steps(1), &[1, 2, 3, 4]),
        (slice_steps(-4).end(-1), &[1, 2, 3]),
        (slice_steps(0).end(2).reverse(true), &[1, 0]),
    ] {
        let mut model = Model::sequential([layer]);
        model.build(&[TensorType::new(DType::F32, [5, 3])]).unwrap();
        assert_eq!(model.predict_on_batch(&values).unwrap().to_f32s(), rows(steps));
    }
}

#[test]
fn position_biases_depend_on_the_distance() {
    start();
    let x = input("x", [7, 2]);
    let layer = relative_position_bias(2).num_buckets(8).max_distance(5).name("bias");
    let mut model = Model::functional(std::slice::from_ref(&x), &x.apply(layer)).unwrap();
    model.build(&[TensorType::new(DType::F32, [7, 2])]).unwrap();
    model.set_weight("bias/embeddings", literal(&[8, 2], |i| i as f32)).unwrap();
    let found = model.predict_on_batch(&literal(&[1, 7, 2], wave)).unwrap();
    assert_eq!(found.shape().dims(), [1, 2, 7, 7]);
    let at = |head: usize, q: usize, k: usize| found.to_f32s()[(head * 7 + q) * 7 + k];
    for q in 0..6 {
        for k in 0..6 {
            assert_eq!(at(0, q, k), at(0, q + 1, k + 1));
            assert_eq!(at(1, q, k), at(0, q, k) + 1.0, "the next column of the same bucket");
        }
    }
    // The buckets of the distances 0 to 6, and −1 to −6: transformers' `_relative_position_bucket`.
    let row = |bucket: usize| 2.0 * bucket as f32;
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|k| at(0, 0, k)), [0, 5, 6, 6, 7, 7, 7].map(row));
    assert_eq!([1, 2, 3, 4, 5, 6].map(|q| at(0, q, 0)), [1, 2, 2, 3, 3, 3].map(row));
}

/// One window without a shift and with a table of zeros attends to all positions; a shifted one does not mix borders.
#[test]
fn a_window_over_the_image_is_plain_attention() {
    start();
    let image = TensorType::new(DType::F32, [4, 4, 6]);
    let mut windows = Model::sequential([window_attention(2, 4).name("attention")]);
    windows.build(std::slice::from_ref(&image)).unwrap();
    let x = any_input("x");
    let y = x.apply(reshape([16, 6])).apply(multi_head_attention(2, 3).name("attention"));
    let mut plain = Model::functional(&[x], &y.apply(reshape([4, 4, 6]))).unwrap();
    plain.build(std::slice::from_ref(&image)).unwrap();
    windows.set_weight("attention/relative_position_bias_table", literal(&[49, 2], |_| 0.0)).unwrap();
    let paths: Vec<String> = plain.weights().iter().map(|(path, _)| path.to_string()).collect();
    for path in &paths {
        windows.set_weight(path, plain.weight(path).unwrap()).unwrap();
    }
    let batch = literal(&[2, 4, 4, 6], wave);
    let close =
        |a: &Literal, b: &Literal| a.to_f32s().iter().zip(b.to_f32s()).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close(&windows.predict_on_batch(&batch).unwrap(), &plain.predict_on_batch(&batch).unwrap()));
    // Rows 0 and 3 are neighbors in a window of 2 that is moved by 1, but do not see each other.
    let mut moved = Model::sequential([window_attention(2, 2).shift_size(1).name("attention")]);
    moved.build(&[image]).unwrap();
    let changed = literal(&[2, 4, 4, 6], |i| if i % 96 < 24 { wave(i) + 1.0 } else { wave(i) });
    let [a, b] = [batch, changed].map(|x| moved.predict_on_batch(&x).unwrap().to_f32s());
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert_eq!(i % 96 < 24, (a - b).abs() > 1e-6, "element {i}");
    }
}
