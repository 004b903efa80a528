//! Incremental decoding gives the same scores and tokens as recomputing the whole text.

use serde_json::json;
use systole_data::Dataset;
use systole_ir::rng::{RandomStream, hash_name};
use systole_ir::{DType, Literal, TensorType};
use systole_nn::applications::by_name;
use systole_nn::layers::*;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::sgd;
use systole_nn::{
    Compile, Fit, Model, Precision, Quantize, QuantizeRanges, Sampling, TextGenerator, WeightBits,
};

const CONTEXT: usize = 80;
const TOKENS: usize = 29;

/// A model with weights that are large enough for tokens to differ.
fn drawn(mut model: Model) -> Model {
    systole_runtime::register(systole_cpu::provider());
    model.build(&[TensorType::new(DType::I32, [CONTEXT])]).unwrap();
    let weights: Vec<(String, TensorType)> =
        model.weights().into_iter().map(|(path, value)| (path.to_string(), value.ty().clone())).collect();
    for (path, ty) in weights {
        let mut draws = RandomStream::new(3, hash_name(&path), 0);
        let scale = if path.contains("norm") { 1.0 } else { 0.4 };
        let values: Vec<f32> = (0..ty.elements()).map(|_| (draws.normal() * scale) as f32).collect();
        model.set_weight(&path, Literal::from_slice(ty.shape, &values).unwrap()).unwrap();
    }
    model
}

fn gpt2() -> Model {
    let arguments = json!({"vocabulary_size": TOKENS, "num_layers": 3, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24,
                           "max_sequence_length": CONTEXT + 7});
    Model::new(by_name("gpt2", arguments.as_object().unwrap()).unwrap())
}

fn recurrent() -> Model {
    Model::sequential([
        embedding(TOKENS, 8),
        lstm(12).return_sequences(true),
        gru(12).return_sequences(true).reset_after(false),
        simple_rnn(9).return_sequences(true).unroll(true),
        dense(TOKENS).activation("softmax"),
    ])
}

fn prompt(length: usize) -> Vec<u32> {
    let mut draws = RandomStream::new(1, hash_name("prompt"), 0);
    (0..length).map(|_| draws.below(TOKENS as u64) as u32).collect()
}

/// Recomputes the scores after each token from the whole text.
fn anew(model: &mut Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut padded: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
    padded.resize(CONTEXT, 0);
    let all = model.predict_on_batch(&Literal::from_slice([1, CONTEXT], &padded).unwrap()).unwrap().to_f32s();
    all.chunks(TOKENS).take(tokens.len()).map(<[f32]>::to_vec).collect()
}

/// The greatest distance, in parts of the greatest score; of probabilities the logarithms, which are scores but for a constant.
fn distance(scores: &[f32], expected: &[f32], are_probabilities: bool) -> f32 {
    let normal = |x: &[f32]| -> Vec<f32> {
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = x.iter().map(|v| (v - most).exp()).sum();
        x.iter().map(|v| (v - most).exp() / sum).collect()
    };
    let (a, b) = if are_probabilities {
        (normal(scores), expected.to_vec())
    } else {
        (scores.to_vec(), expected.to_vec())
    };
    let most = b.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

#[test]
fn scores_are_those_of_the_whole_text() {
    for (name, model, are_probabilities) in [("gpt2", gpt2(), false), ("recurrent", recurrent(), true)] {
        let mut model = drawn(model);
        let tokens = prompt(CONTEXT);
        let expected = anew(&mut model, &tokens);
        let mut decoder = model.decoder().unwrap();
        // Pieces of 8 and 1, and more room while there is something to keep; then pieces of 64, 8 and 1; one by one to the end.
        for lengths in [[50, 24, 1, 5], [74, 1, 1, 4]] {
            decoder.restart();
            let mut at = 0;
            for length in lengths {
                let scores = decoder.feed(&tokens[at..at + length]).unwrap();
                at += length;
                let far = distance(&scores, &expected[at - 1], are_probabilities);
                assert!(far < 1e-5, "{name}, after {at} tokens: {far}");
            }
        }
        assert_eq!(decoder.position(), CONTEXT);
        let e = decoder.feed(&[1]).unwrap_err().to_string();
        assert!(e.contains("length 80"), "{e}");
        decoder.restart();
        let scores = decoder.feed(&tokens[..3]).unwrap();
        assert!(distance(&scores, &expected[2], are_probabilities) < 1e-5, "{name} started again");
        let e = decoder.feed(&[TOKENS as u32]).unwrap_err().to_string();
        assert!(e.contains("id 29") && e.contains("ids 0") && e.contains("28"), "{e}");
        assert!(decoder.feed(&[]).is_err());
    }
}

/// Generates tokens as [`TextGenerator`] does, without a cache.
fn by_whole_texts(model: &mut Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut window = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
    let mut made = Vec::new();
    for _ in 0..count {
        let scores = anew(model, &window).pop().unwrap();
        let best =
            (0..TOKENS).max_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a))).unwrap() as u32;
        made.push(best);
        let is_full = window.len() == CONTEXT;
        window.push(best);
        if is_full {
            window = window.split_off(window.len() - CONTEXT / 2);
        }
    }
    made
}

#[test]
fn tokens_are_those_of_whole_texts_beyond_the_context_too() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    for model in [gpt2(), recurrent()] {
        let mut model = drawn(model);
        for length in [3, 78, 200] {
            let prompt = prompt(length);
            let mut text = TextGenerator::new(model.decoder().unwrap(), &prompt, greedy.clone()).unwrap();
            let made: Vec<u32> = (0..48).map(|_| text.next_token().unwrap()).collect();
            assert_eq!(made, by_whole_texts(&mut model, &prompt, 48), "a prompt of {length}");
        }
    }
}

#[test]
fn draws_are_a_function_of_the_seed_and_may_leave_tokens_out() {
    let model = drawn(gpt2());
    let made = |seed: u64, is_so: fn(u32) -> bool| -> Vec<u32> {
        let sampling = Sampling { seed, temperature: 1.5, ..Sampling::default() };
        let mut text = TextGenerator::new(model.decoder().unwrap(), &[1, 2], sampling).unwrap().only(is_so);
        (0..40).map(|_| text.next_token().unwrap()).collect()
    };
    assert_eq!(made(1, |_| true), made(1, |_| true));
    assert_ne!(made(1, |_| true), made(2, |_| true));
    assert!(made(1, |id| id % 3 == 0).iter().all(|id| id % 3 == 0));
    assert!(TextGenerator::new(model.decoder().unwrap(), &[], Sampling::default()).is_err());
}

#[test]
fn narrow_floats_are_kept_narrow() {
    let mut model = drawn(gpt2());
    let compile = Compile { optimizer: sgd(0.1), precision: Precision::MixedBfloat16, ..Default::default() };
    model.compile(compile).unwrap();
    let tokens = prompt(20);
    let expected = anew(&mut model, &tokens);
    let scores = model.decoder().unwrap().feed(&tokens).unwrap();
    let far = distance(&scores, &expected[19], false);
    assert!(far < 0.03, "{far}");
}

#[test]
fn models_that_look_ahead_are_refused_by_name() {
    let refused = |mut model: Model, input: TensorType| {
        model.build(&[input]).unwrap();
        model.decoder().err().expect("refused").to_string()
    };
    let tokens = || TensorType::new(DType::I32, [CONTEXT]);
    let e = refused(
        Model::sequential([embedding(9, 4), transformer_block(8, 2).name("ahead"), dense(9)]),
        tokens(),
    );
    assert!(e.contains("ahead") && e.contains("use_causal_mask") && e.contains("try: "), "{e}");
    let backwards = gru(4).return_sequences(true).go_backwards(true);
    let e = refused(Model::sequential([embedding(9, 4), backwards, dense(9)]), tokens());
    assert!(e.contains("go_backwards"), "{e}");
    let e =
        refused(Model::sequential([embedding(9, 4), batch_normalization().name("over"), dense(9)]), tokens());
    assert!(e.contains("over") && e.contains("BatchNormalization"), "{e}");
    let e = refused(Model::sequential([dense(9)]), TensorType::new(DType::F32, [4]));
    assert!(e.contains("f32[4]"), "{e}");
}

/// A file with packed weights, and the same weights as floats: whole numbers are read as they lie, and give the floats' scores.
#[test]
fn packed_weights_give_the_scores_of_their_floats() {
    let arguments = json!({"vocabulary_size": 96, "num_layers": 2, "num_heads": 2, "hidden_dim": 130, "intermediate_dim": 256,
                           "max_sequence_length": CONTEXT});
    let gpt2 = || Model::new(by_name("gpt2", arguments.as_object().unwrap()).unwrap());
    let recurrent = || Model::sequential([embedding(96, 70), lstm(66).return_sequences(true), dense(96)]);
    for (name, model) in [("gpt2", gpt2()), ("recurrent", recurrent())] {
        let model = drawn(model);
        for bits in [WeightBits::Int8, WeightBits::Int4] {
            let mut file = model.to_file().unwrap();
            file.pack_weights(bits).unwrap();
            let packed = Model::from_file(file, &CustomObjects::new()).unwrap();
            let floats = Model::from_file(packed.to_file().unwrap(), &CustomObjects::new()).unwrap();
            let (mut one, mut other) = (packed.decoder().unwrap(), floats.decoder().unwrap());
            for piece in [&[3u32, 17, 95][..], &[1], &[7, 7, 7, 7, 8, 9, 10, 11, 50]] {
                let (got, expected) = (one.feed(piece).unwrap(), other.feed(piece).unwrap());
                let far = distance(&got, &expected, false);
                assert!(far <= 1e-5, "{name} in {bits:?}, {} tokens: {far}", piece.len());
                assert!(distance(&got, &vec![0.0; got.len()], false) > 0.1);
            }
        }
    }
}

/// As far as rounding lets it: how many places there are to look at changes sums of a softmax a little, and so a level here and there.
#[test]
fn models_trained_for_eight_bits_generate_in_eight_bits() {
    let mut model = drawn(gpt2());
    let learned = QuantizeRanges::Learned;
    for ranges in [Quantize::default().ranges, learned] {
        let quantize = Some(Quantize { ranges, ..Quantize::default() });
        let compile =
            Compile { optimizer: sgd(1e-4), loss: mean_squared_error(), quantize, ..Compile::default() };
        model.compile(compile).unwrap();
        let tokens: Vec<i32> = prompt(8 * CONTEXT).iter().map(|t| *t as i32).collect();
        let x = Literal::from_slice([8, CONTEXT], &tokens).unwrap();
        let label = Literal::from_slice([8, CONTEXT, TOKENS], &vec![0f32; 8 * CONTEXT * TOKENS]).unwrap();
        let data = Dataset::from_tensor_slices([("tokens", x), ("label", label)]).unwrap().batch(4);
        model.fit(&data, Fit { epochs: 2, verbose: 0, ..Fit::default() }).unwrap();
        let tokens = prompt(CONTEXT);
        let expected = anew(&mut model, &tokens);
        let mut decoder = model.decoder().unwrap();
        let mut at = 0;
        for length in [50, 24, 1, 5] {
            let scores = decoder.feed(&tokens[at..at + length]).unwrap();
            at += length;
            let far = distance(&scores, &expected[at - 1], false);
            assert!(far < 0.1, "{ranges:?}, after {at} tokens: {far}");
            assert!(distance(&scores, &vec![0.0; scores.len()], false) > 0.1);
        }
    }
}
