//! BigGAN training step compared with a JAX port of BigGAN-PyTorch (`fixtures/biggan`).
//!
//! Also tests that micro-batches add up to the batch, that moving averages are updated, and that runs check their
//! options.

use serde_json::Value;
use std::sync::Arc;
use systole_data::Dataset;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Literal, Tensor, TensorType};
use systole_nn::applications::biggan::{
    BigGan, FeatureStatistics, NormStyle, WeightParametrization, frechet_distance, inception_score,
};
use systole_nn::{Batch, Compile, Cx, Fit, Model, Precision, StepCx, TrainStep};
use systole_runtime::{Backend, Buffer, Params, backend, jit, value_and_grad};

fn cpu() -> Option<Arc<dyn Backend>> {
    systole_runtime::register(systole_cpu::provider());
    Some(backend("cpu").unwrap())
}

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/biggan/values.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Numbers in (−0.5, 0.5) that the fixture's script makes, too.
fn draw(path: &str, shape: &[usize]) -> Literal {
    let k = path.chars().enumerate().map(|(i, c)| (i + 1) * c as usize).sum::<usize>() % 1009;
    let n: usize = shape.iter().product();
    let one = |j: usize| {
        let x = (j as f64 * 12.9898 + k as f64 * 78.233).sin() * 43758.5453;
        (x - x.floor() - 0.5) as f32
    };
    Literal::from_slice(shape.to_vec(), &(0..n).map(one).collect::<Vec<f32>>()).unwrap()
}

fn scaled(x: &Literal, by: f32) -> Literal {
    let values: Vec<f32> = x.to_f32s().into_iter().map(|v| v * by).collect();
    Literal::from_slice(x.shape().to_vec(), &values).unwrap()
}

/// A small one for the tests of its step.
fn small() -> BigGan {
    BigGan { G_ch: 1, D_ch: 1, dim_z: 8, shared_dim: 4, n_classes: 3, num_D_steps: 1, ..BigGan::default() }
}

fn model(gan: &BigGan) -> Model {
    let mut model = Model::new(gan.architecture().unwrap());
    model.build(&gan.input_types()).unwrap();
    model
        .compile(Compile { train_step: Some(Arc::new(gan.clone())), backend: cpu(), ..Compile::default() })
        .unwrap();
    model
}

/// Pictures from 0 to 1 and their classes.
fn batch(n: usize) -> Batch {
    let mut draws = RandomStream::new(3, 0, 0);
    let pixels: Vec<f32> = (0..n * 32 * 32 * 3).map(|_| draws.below(256) as f32 / 255.0).collect();
    let classes: Vec<i32> = (0..n).map(|i| (i % 3) as i32).collect();
    Batch {
        inputs: vec![Literal::from_slice([n, 32, 32, 3], &pixels).unwrap()],
        label: Some(Literal::from_slice([n], &classes).unwrap()),
        ..Batch::default()
    }
}

fn weights(model: &Model) -> Vec<(String, Vec<f32>)> {
    let all = model.weights();
    all.into_iter().map(|(p, w)| (p.to_string(), w.to_literal().unwrap().to_f32s())).collect()
}

type NetworkIn = (Params, Tensor, Tensor, Tensor);

/// Generator and discriminator while training: pictures, scores, losses and gradients as JAX computes them.
#[test]
fn networks_equal_those_of_jax() {
    let wanted = &fixture()["networks"];
    let attention = || "16".to_string();
    let gan = BigGan {
        G_ch: 8,
        D_ch: 8,
        n_classes: 3,
        shared_dim: 5,
        dim_z: 8,
        G_attn: attention(),
        D_attn: attention(),
        ..BigGan::default()
    };
    let mut model = Model::new(gan.architecture().unwrap());
    model.build(&gan.input_types()).unwrap();
    let drawn = |path: &str, w: &Buffer| match path.contains("moving_") {
        true => w.clone(),
        false => draw(path, w.ty().shape.dims()).into(),
    };
    let all: Params<Buffer> =
        model.weights().into_iter().map(|(p, w)| (p.to_string(), drawn(p, w))).collect();
    let (z, real) = (scaled(&draw("z", &[3, 8]), 4.0), scaled(&draw("real", &[3, 32, 32, 3]), 2.0));
    let y = Literal::from_slice([3], &[0i32, 2, 1]).unwrap();
    let network = |name: &str| {
        let all = &model.architecture().networks;
        all.iter().find(|(n, _)| n == name).map(|(_, network)| network.clone()).unwrap()
    };
    let (g, d) = (network("G"), network("D"));
    let step = jit(move |(all, z, y, real): NetworkIn| {
        let b = z.builder().clone();
        let (seed, at) = (b.scalar(DType::U64, 1.0), b.scalar(DType::U64, 1.0));
        let run = |p: &Params, name: &str, inputs: &[Tensor]| {
            let mut cx = Cx::new(&b, p.clone(), Precision::Float32).training_with(&seed, &at);
            let network = if name == "G" { &g } else { &d };
            cx.scope(name, |cx| network.call(cx, inputs))
        };
        let pictures = run(&all, "G", &[z.clone(), y.clone()]);
        let scores = run(&all, "D", &[real.clone(), y.clone()]);
        let still = pictures.stop_gradient();
        let (d_loss, d_grads) = value_and_grad(
            |p: &Params| {
                let fake = run(p, "D", &[still.clone(), y.clone()]);
                let real = run(p, "D", &[real.clone(), y.clone()]);
                (-real + 1.0).relu().mean_all() + (fake + 1.0).relu().mean_all()
            },
            &all,
        );
        let (g_loss, g_grads) = value_and_grad(
            |p: &Params| {
                let fake = run(p, "G", &[z.clone(), y.clone()]);
                -run(&all, "D", &[fake, y.clone()]).mean_all()
            },
            &all,
        );
        let length = |_: &str, g: &Tensor| (g * g).sum_all().sqrt();
        (pictures, scores, d_loss, g_loss, d_grads.map(length), g_grads.map(length))
    })
    .on(cpu().unwrap());
    let (pictures, scores, d_loss, g_loss, d_grads, g_grads) =
        step.call((all, z.into(), y.into(), real.into())).unwrap();
    let close = |name: &str, got: f64, want: f64| {
        assert!((got - want).abs() < 2e-4 * want.abs().max(1.0), "{name}: {got} is not {want}");
    };
    let pictures = pictures.to_literal().unwrap().to_f32s();
    let some: Vec<f32> = pictures.into_iter().step_by(97).collect();
    let expected = list(&wanted["pictures"]);
    assert_eq!(some.len(), expected.len());
    some.iter().zip(&expected).for_each(|(a, b)| close("pictures", f64::from(*a), *b));
    let scores = scores.to_literal().unwrap().to_f32s();
    scores.iter().zip(list(&wanted["scores"])).for_each(|(a, b)| close("scores", f64::from(*a), b));
    close("D_loss", d_loss.to_f64().unwrap(), wanted["D_loss"].as_f64().unwrap());
    close("G_loss", g_loss.to_f64().unwrap(), wanted["G_loss"].as_f64().unwrap());
    for (name, grads) in [("D_grads", d_grads), ("G_grads", g_grads)] {
        let table = wanted[name].as_object().unwrap();
        assert!(table.len() > 20);
        for (path, want) in table {
            close(path, grads[path.as_str()].to_f64().unwrap(), want.as_f64().unwrap());
        }
    }
}

#[test]
fn distances_equal_those_of_scipy() {
    let wanted = &fixture()["scores"];
    let mut statistics = [FeatureStatistics::new(6).unwrap(), FeatureStatistics::new(6).unwrap()];
    let (a, b) = (draw("features a", &[40, 6]).to_f32s(), draw("features b", &[50, 6]).to_f32s());
    let b: Vec<f32> = b.into_iter().map(|x| (f64::from(x) * 1.5 + 0.25) as f32).collect();
    for (to, from) in statistics.iter_mut().zip([a, b]) {
        from.chunks(6).for_each(|row| to.add(row));
    }
    let [a, b] = &statistics;
    let fid = frechet_distance(a, b).unwrap();
    assert!((fid - wanted["fid"].as_f64().unwrap()).abs() < 1e-8, "{fid}");
    assert!((fid - frechet_distance(b, a).unwrap()).abs() < 1e-10);
    assert!(frechet_distance(a, a).unwrap().abs() < 1e-10);
    let mut shares = Vec::new();
    for row in draw("logits", &[60, 4]).to_f32s().chunks(4) {
        let e: Vec<f64> = row.iter().map(|x| (f64::from(*x) * 6.0).exp()).collect();
        let sum: f64 = e.iter().sum();
        shares.extend(e.iter().map(|x| (x / sum) as f32));
    }
    let (mean, std) = inception_score(&shares, 4, 5).unwrap();
    assert!((mean - wanted["is"].as_f64().unwrap()).abs() < 1e-6, "{mean}");
    assert!((std - wanted["is_std"].as_f64().unwrap()).abs() < 1e-6, "{std}");
    assert!(inception_score(&shares, 4, 61).is_err() && FeatureStatistics::new(0).is_err());
}

/// Without batch normalisation and spectral normalisation, whose state moves with each part, parts of a batch are the batch.
#[test]
fn accumulated_parts_equal_the_whole_batch() {
    let of = |parts: usize| BigGan {
        num_D_accumulations: parts,
        num_G_accumulations: parts,
        G_batch_size: 8 / parts,
        norm_style: NormStyle::None,
        G_param: WeightParametrization::None,
        D_param: WeightParametrization::None,
        D_ortho: 1e-4,
        G_ortho: 1e-4,
        ema: false,
        // Of gradients that are next to nothing Adam makes steps, else, that rounding decides.
        adam_eps: 1e-3,
        ..small()
    };
    let after = |parts: usize| {
        let mut model = model(&of(parts));
        for _ in 0..2 {
            model.train_on_batch(&batch(8)).unwrap();
        }
        weights(&model)
    };
    let (whole, begin) = (after(1), weights(&model(&of(1))));
    let parted = after(4);
    let mut moved = 0f32;
    for ((path, a), (_, b)) in whole.iter().zip(&parted) {
        a.iter().zip(b).for_each(|(x, y)| assert!((x - y).abs() < 1e-6, "{path}: {x} is not {y}"));
    }
    for (path, a) in whole.iter().filter(|(path, _)| path.starts_with("G/")) {
        let before = begin.iter().find(|(p, _)| p == path).map(|(_, w)| w);
        let differs = before.map_or(0.0, |b| a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max));
        moved = moved.max(differs);
    }
    assert!(moved > 1e-5, "{moved}");
}

/// Until `ema_start` the layers that make pictures are the generator; then they keep `ema_decay` of themselves. Each part of a batch moves
/// the singular vectors and the moving statistics.
#[test]
fn running_means_follow_the_generator() {
    let gan = BigGan { ema_start: 2, ema_decay: 0.75, ..small() };
    let mut model = model(&gan);
    let mut last = Vec::new();
    for step in 0..4 {
        model.train_on_batch(&batch(4)).unwrap();
        let now = weights(&model);
        let of =
            |all: &[(String, Vec<f32>)], path: &str| all.iter().find(|(p, _)| p == path).unwrap().1.clone();
        for path in
            ["linear/dense/kernel", "shared/embeddings", "output_bn/moving_mean", "block1_conv1/vector_u"]
        {
            let (mean, own) = (of(&now, path), of(&now, &format!("G/{path}")));
            if step < 2 {
                assert_eq!(mean, own, "{path}");
                continue;
            }
            let before = of(&last, path);
            for ((m, o), b) in mean.iter().zip(&own).zip(&before) {
                assert!((m - (0.75 * b + 0.25 * o)).abs() < 1e-6, "{path}: {m}, {o}, {b}");
            }
            assert_ne!(mean, own, "{path}");
        }
        last = now;
    }
    let pictures = gan.pictures(&mut model, &[0, 1, 2, 0], 5).unwrap();
    assert_eq!(pictures.ty().to_string(), "ui8[4, 32, 32, 3]");
    assert_eq!(gan.sheet(&mut model, 5).unwrap().shape().dims(), [100, 338, 3]);
}

/// The step with an optimizer that changes weights by their gradients.
#[derive(Debug)]
struct Seen(BigGan);

impl TrainStep for Seen {
    fn name(&self) -> &str {
        "seen"
    }

    fn fields(&self) -> Vec<String> {
        vec!["image".into()]
    }

    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        self.0.training_step(cx)
    }
}

/// Its gradient `2·(WWᵀ ⊙ (1 − I))W`, seen through a step of plain descent.
#[test]
fn orthogonal_regularisation_is_added_to_gradients() {
    let own =
        BigGan { G_param: WeightParametrization::None, D_param: WeightParametrization::None, ..small() };
    let path = "D/block0_conv2/kernel";
    let after = |strength: f64| {
        let gan = BigGan { D_ortho: strength, ..own.clone() };
        let mut model = Model::new(gan.architecture().unwrap());
        model.build(&gan.input_types()).unwrap();
        let optimizer = systole_nn::optimizer::sgd(1.0);
        let step = Some(Arc::new(Seen(gan)) as Arc<dyn TrainStep>);
        model.compile(Compile { optimizer, train_step: step, backend: cpu(), ..Compile::default() }).unwrap();
        let shape = model.weight(path).unwrap().shape().to_vec();
        model.set_weight(path, draw("kernel", &shape)).unwrap();
        model.train_on_batch(&batch(4)).unwrap();
        model.weight(path).unwrap().to_f32s()
    };
    let (plain, with) = (after(0.0), after(0.5));
    let w = draw("kernel", &[3, 3, 4, 4]).to_f32s();
    let row = |f: usize| (0..36).map(|i| f64::from(w[i * 4 + f])).collect::<Vec<f64>>();
    for f in 0..4 {
        let mut g = vec![0.0; 36];
        for other in (0..4).filter(|o| *o != f) {
            let (a, b) = (row(f), row(other));
            let product: f64 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
            g.iter_mut().zip(&b).for_each(|(g, b)| *g += 2.0 * product * b);
        }
        for (i, g) in g.iter().enumerate() {
            let told = f64::from(plain[i * 4 + f] - with[i * 4 + f]);
            assert!((told - 0.5 * g).abs() < 1e-4, "{told} is not {}", 0.5 * g);
        }
    }
}

/// A model file brings the step back, and a run of other options is another run.
#[test]
fn model_files_keep_the_step() {
    let gan = small();
    let mut model = model(&gan);
    let data = Dataset::from_tensor_slices([
        ("image", batch(8).inputs[0].clone()),
        ("label", batch(8).label.unwrap()),
    ]);
    let data = data.unwrap().batch(4);
    let history =
        model.fit(&data, Fit { epochs: 1, validation: Some(data.clone()), ..Fit::default() }).unwrap();
    for name in ["loss", "D_loss", "G_loss", "D_real", "D_fake", "val_D_loss"] {
        assert!(history.last()[name].is_finite(), "{name}");
    }
    let file = std::env::temp_dir().join(format!("systole-biggan-{}.safetensors", std::process::id()));
    model.save(&file).unwrap();
    let mut again = Model::load(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(BigGan::of(&again), Some(gan.clone()));
    assert_eq!(gan.pictures(&mut again, &[1, 2], 9).unwrap(), gan.pictures(&mut model, &[1, 2], 9).unwrap());
    model.train_on_batch(&batch(4)).unwrap();
    again.train_on_batch(&batch(4)).unwrap();
    for ((path, a), (_, b)) in weights(&again).iter().zip(&weights(&model)) {
        assert!(a == b, "{path}");
    }
}

#[test]
fn larger_ones_have_their_shapes_and_mistakes_are_told() {
    for (resolution, scores) in [(64, "64"), (128, "64"), (256, "64")] {
        let gan =
            BigGan { resolution, G_ch: 8, D_ch: 8, dim_z: 24, G_attn: scores.into(), ..BigGan::default() };
        let mut model = Model::new(gan.architecture().unwrap());
        model.build(&gan.input_types()).unwrap();
        assert_eq!(model.output_type(), Some(&TensorType::new(DType::F32, [resolution, resolution, 3])));
        assert!(model.weights().iter().any(|(p, _)| p.ends_with("_attention/gamma")), "{resolution}");
    }
    let wrong = |gan: BigGan| gan.check().unwrap_err().to_string();
    for (gan, part) in [
        (BigGan { resolution: 33, ..small() }, "one of 32, 64, 128, 256"),
        (BigGan { G_lr: 0.0, ..small() }, "G_lr"),
        (BigGan { D_lr: -1.0, ..small() }, "at least 0"),
        (BigGan { ema_decay: 1.0, ..small() }, "below 1"),
        (BigGan { dim_z: 3, ..small() }, "increase dim_z"),
        (BigGan { G_shared: false, ..small() }, "hier = false"),
        (BigGan { G_attn: "15".into(), ..small() }, "invalid resolution"),
        (BigGan { D_attn: "16".into(), ..small() }, "there are 4"),
        (BigGan { num_D_accumulations: 0, ..small() }, "at least 1"),
    ] {
        let told = wrong(gan);
        assert!(told.contains(part), "{told}");
    }
    let e = model(&BigGan { num_D_accumulations: 3, ..small() })
        .train_on_batch(&batch(4))
        .unwrap_err()
        .to_string();
    assert!(e.contains("into 3 parts"), "{e}");
}
