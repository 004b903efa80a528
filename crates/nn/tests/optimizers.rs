//! Optimizers and schedules compared with Keras, step by step; gradient accumulation; loss scaling.

mod keras;

use keras::{Fixture, Worst, config, max_relative, name, relative_l2};
use serde_json::{Value, json};
use systole_ir::{DType, Literal, Tensor, TensorType};
use systole_nn::optimizer::*;
use systole_nn::schedule::Schedule;
use systole_runtime::{Buffer, Jit, Params, backend, jit};

const PARAMS: [&str; 2] = ["p0", "p1"];
/// What all optimizers take beside their rules' own.
const COMMON: [&str; 7] = [
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
];

fn schedule_of(value: &Value) -> Schedule {
    match value.as_f64() {
        Some(rate) => Schedule::Constant(rate),
        None => serde_json::from_value(config(&value["class"], &value["kwargs"])).unwrap(),
    }
}

/// The optimizer of a case, from Keras's complete configuration.
fn optimizer_of(case: &Value) -> Optimizer {
    let full = &case["config"];
    let mut optimizer: Optimizer = case["class"].as_str().unwrap().parse().unwrap();
    let own: Vec<String> = optimizer.kind.config().keys().cloned().collect();
    for key in own.iter().map(String::as_str).chain(COMMON) {
        optimizer = optimizer.with(key, &full[key]).unwrap();
    }
    optimizer.learning_rate = schedule_of(&full["learning_rate"]);
    optimizer
}

type StepIn = (Params, Params, Params, Tensor, Tensor);
type Step = Jit<StepIn, (Params, Params), Box<dyn Fn(StepIn) -> (Params, Params)>>;

fn step_of(optimizer: &Optimizer) -> Step {
    let optimizer = optimizer.clone();
    let f: Box<dyn Fn(StepIn) -> (Params, Params)> =
        Box::new(move |(params, grads, state, learning_rate, step)| {
            optimizer.update(&UpdateInputs { learning_rate, step }, &params, &grads, &state)
        });
    jit(f).on(backend("ref").unwrap())
}

/// A run of an optimizer from given starting values.
struct Descent {
    optimizer: Optimizer,
    step: Step,
    params: Params<Buffer>,
    state: Params<Buffer>,
    steps: u64,
}

impl Descent {
    fn new(optimizer: Optimizer, params: Params<Buffer>) -> Descent {
        let state = optimizer.init(&params).unwrap();
        Descent { step: step_of(&optimizer), optimizer, params, state, steps: 0 }
    }

    fn take(&mut self, grads: Params<Buffer>) {
        let rate = Buffer::from(self.optimizer.values_at(self.steps));
        let step = Buffer::scalar(DType::I64, self.steps as f64);
        let args = (self.params.clone(), grads, self.state.clone(), rate, step);
        (self.params, self.state) = self.step.call(args).unwrap();
        self.steps += 1;
    }

    fn param(&self, name: &str) -> Literal {
        self.params[name].to_literal().unwrap()
    }
}

fn tree(of: impl Fn(&str) -> Literal) -> Params<Buffer> {
    PARAMS.iter().map(|p| (p.to_string(), of(p).into())).collect()
}

#[test]
fn every_optimizer_is_keras_s_at_each_step() {
    let fixture = Fixture::open("optimizers");
    let (mut params, mut slots) = (Worst::below(2e-7), Worst::below(4e-7));
    for case in fixture.list("cases") {
        let case_name = name(case);
        let mut run = Descent::new(optimizer_of(case), tree(|p| fixture.get(&format!("init/{p}")).clone()));
        for step in 1..=6 {
            run.take(tree(|p| fixture.get(&format!("grad/{p}/step{step}")).clone()));
            for p in PARAMS {
                let place = format!("{case_name}/{p}/step{step}");
                params.see(&place, relative_l2(&run.param(p), fixture.get(&place)));
            }
        }
        for (slot, value) in run.state.iter() {
            let (kind, p) = slot.split_once('/').unwrap();
            let place = format!("{case_name}/slot/{kind}/{p}");
            // The file has no arrays without dimensions.
            let expected = fixture.get(&place).reshape(value.ty().shape.clone()).unwrap();
            slots.see(&place, relative_l2(&value.to_literal().unwrap(), &expected));
        }
    }
    params.report("parameters");
    slots.report("slots");
}

/// A case that a file lists and the fixture lacks would be compared with nothing.
#[test]
fn the_fixture_has_the_cases_that_the_optimizers_list() {
    let fixture = Fixture::open("optimizers");
    let listed: Vec<Value> =
        parity_cases().flat_map(|text| serde_json::from_str::<Vec<Value>>(text).unwrap()).collect();
    let known = |case: &Value| {
        fixture.list("cases").iter().any(|c| ["name", "class", "kwargs"].iter().all(|k| c[k] == case[k]))
    };
    let missing: Vec<&str> = listed.iter().filter(|c| !known(c)).map(name).collect();
    assert!(missing.is_empty(), "run fixtures/keras/generate.py optimizers: {missing:?}");
    for optimizer in NAMES {
        let tried = listed.iter().any(|c| c["class"].as_str().unwrap().eq_ignore_ascii_case(optimizer));
        assert!(tried, "{optimizer} lists no case");
    }
}

#[test]
fn settings_that_a_rule_does_not_take_are_errors() {
    let cases = [
        (adam(1e-3).momentum(0.9), "adam has no argument `momentum`"),
        (sgd(1e-3).betas(0.9, 0.99), "sgd has no argument `beta_1`"),
        (sgd(1e-3).epsilon(1e-7), "sgd has no argument `epsilon`"),
        (rmsprop(1e-3).amsgrad(true), "rmsprop has no argument `amsgrad`"),
        (adamw(1e-3).rho(0.9).centered(true), "adamw has no argument `rho`"),
        (adam(1e-3).nesterov(true), "adam has no argument `nesterov`"),
    ];
    for (optimizer, what) in cases {
        for error in [optimizer.check().unwrap_err(), optimizer.init(&Params::new()).unwrap_err()] {
            let text = error.to_string();
            let parts = [what, "tests/optimizers.rs:", "available: ", "did you mean"];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
    assert!(sgd(1e-3).momentum(0.9).nesterov(true).check().is_ok());
}

#[test]
fn every_schedule_is_keras_s() {
    let fixture = Fixture::open("optimizers");
    let mut worst = Worst::below(1e-6);
    for case in fixture.list("schedules") {
        let schedule = schedule_of(case);
        schedule.check().unwrap();
        let expected = fixture.get(&format!("schedule/{}", name(case))).to_f64s();
        // Against the highest rate: near its end Keras's cosine is a difference of rounded numbers.
        let highest = expected.iter().copied().fold(0.0, f64::max);
        for (step, expected) in expected.into_iter().enumerate() {
            let deviation = (schedule.at(step as u64) - expected).abs() / highest;
            worst.see(&format!("{} step {step}", name(case)), deviation);
        }
    }
    worst.report("schedules");
}

#[test]
fn warm_up_leads_into_the_schedule_it_precedes() {
    let schedule = Schedule::cosine_decay(0.4, 100).after_warmup(4);
    let rates: Vec<f64> = (0..5).map(|s| schedule.at(s)).collect();
    assert!(max_relative(&rates, &[0.0, 0.1, 0.2, 0.3, 0.4]) < 1e-12, "{rates:?}");
    assert_eq!(schedule.at(104), 0.0);
}

fn random(shape: &[usize], seed: u64) -> Literal {
    systole_nn::Initializer::RandomNormal { mean: 0.0, stddev: 1.0 }.make(shape, seed, "test")
}

/// Rows of a least-squares problem y = x·w, its gradient for a part of the rows.
fn gradient(rows: std::ops::Range<usize>, w: &Literal) -> Params<Buffer> {
    let (x, y) = (random(&[12, 3], 1), random(&[12, 1], 2));
    let f = jit(|(w, x, y): (Tensor, Tensor, Tensor)| {
        let e = x.dot(&w) - y;
        systole_ir::grad(&(&e * &e).mean_all(), &[&w]).remove(0)
    });
    let part = |l: &Literal, width: usize| {
        let values = &l.to_f32s()[rows.start * width..rows.end * width];
        Buffer::from(Literal::from_slice([rows.len(), width], values).unwrap())
    };
    let g = f.on(backend("ref").unwrap()).call((w.clone().into(), part(&x, 3), part(&y, 1))).unwrap();
    [("w".to_string(), g)].into_iter().collect()
}

fn one(w: &Literal) -> Params<Buffer> {
    [("w".to_string(), w.clone().into())].into_iter().collect()
}

#[test]
fn accumulated_micro_batches_equal_one_large_batch() {
    let mut worst = Worst::below(1e-6);
    let start = random(&[3, 1], 3);
    let optimizers = [
        sgd(0.1).momentum(0.9),
        adam(0.01),
        adamw(0.01),
        rmsprop(0.01).momentum(0.5).centered(true),
        adam(0.01).global_clipnorm(0.5),
        sgd(0.1).clipnorm(0.5),
    ];
    let plain = NAMES.iter().map(|name| name.parse().unwrap());
    for optimizer in optimizers.into_iter().chain(plain) {
        let mut whole = Descent::new(optimizer.clone(), one(&start));
        let mut parts = Descent::new(optimizer.clone().gradient_accumulation_steps(3), one(&start));
        for _ in 0..4 {
            whole.take(gradient(0..12, &whole.param("w")));
            for k in 0..3 {
                let before = parts.param("w");
                parts.take(gradient(4 * k..4 * k + 4, &before));
                assert_eq!(parts.param("w") != before, k == 2, "parameters change at every third step only");
            }
            worst.see(optimizer.name(), relative_l2(&parts.param("w"), &whole.param("w")));
        }
        let sums = parts.state["gradient_accumulator/w"].to_literal().unwrap();
        assert!(sums.to_f64s().iter().all(|&s| s == 0.0), "accumulators start again");
    }
    worst.report("accumulation");
}

#[test]
fn excluded_parameters_do_not_decay() {
    let optimizer = sgd(0.1).weight_decay(0.5).exclude_from_weight_decay(["bias"]);
    let ones = || Buffer::from(Literal::from_slice([1], &[1f32]).unwrap());
    let params: Params<Buffer> =
        ["dense/kernel", "dense/bias"].into_iter().map(|n| (n.to_string(), ones())).collect();
    let zeros = params.map(|_, b| Buffer::zeros(b.ty().clone()));
    let mut run = Descent::new(optimizer, params);
    run.take(zeros);
    assert_eq!(run.param("dense/kernel").to_f32s(), [0.95]);
    assert_eq!(run.param("dense/bias").to_f32s(), [1.0]);
}

/// Takes steps with a gradient that is a given multiple of the loss scale; returns the run's traces.
fn scaled_steps(optimizer: &Optimizer, scale: &LossScale, grads: &[f32]) -> (Vec<f32>, Params<Buffer>) {
    let f = jit(|(params, grads, state, learning_rate, step): StepIn| {
        let grads = grads.map(|_, g| scale.scale(g, &state));
        scale.update(optimizer, &UpdateInputs { learning_rate, step }, &params, &grads, &state)
    })
    .on(backend("ref").unwrap());
    let value = |v: f32| one(&Literal::from_slice([1], &[v]).unwrap());
    let mut params = value(1.0);
    let mut state = optimizer.init(&params).unwrap();
    scale.init().into_iter().for_each(|(n, b)| state.insert(n, b));
    let mut seen = Vec::new();
    for (step, &g) in grads.iter().enumerate() {
        let rate = Buffer::scalar(DType::F32, optimizer.learning_rate.at(0));
        let step = Buffer::scalar(DType::I64, step as f64);
        (params, state) = f.call((params, value(g), state, rate, step)).unwrap();
        seen.push(params["w"].to_f64().unwrap() as f32);
    }
    (seen, state)
}

#[test]
fn loss_scale_skips_overflows_and_grows_after_good_steps() {
    let scale = LossScale { initial_scale: 1024.0, dynamic_growth_steps: 3 };
    let optimizer = adam(0.1).gradient_accumulation_steps(2);
    let good = [0.5, 0.25, 0.75, -0.5];
    let (expected, _) = scaled_steps(&optimizer, &LossScale::default(), &good);
    let (seen, state) = scaled_steps(&optimizer, &scale, &[0.5, f32::INFINITY, 0.25, f32::NAN, 0.75, -0.5]);
    // Skipped steps leave no trace: neither in parameters and slots nor in the counts of Adam and accumulation.
    assert_eq!([seen[0], seen[2], seen[4], seen[5]], expected[..]);
    assert_eq!((seen[1], seen[3]), (seen[0], seen[2]));
    let number = |name: &str| state[&format!("loss_scale/{name}")[..]].to_f64().unwrap();
    assert_eq!((number("scale"), number("good_steps"), number("skipped")), (256.0, 2.0, 2.0));
    let (_, state) = scaled_steps(&optimizer, &scale, &[0.5; 4]);
    assert_eq!(state["loss_scale/scale"].to_f64().unwrap(), 2048.0);
    assert_eq!(state["loss_scale/good_steps"].to_f64().unwrap(), 1.0);
}

#[test]
fn a_scale_never_reaches_zero_or_infinity() {
    let scale = LossScale { initial_scale: 1.0, dynamic_growth_steps: 1 };
    let (_, state) = scaled_steps(&sgd(0.1), &scale, &[f32::NAN; 200]);
    assert_eq!(state["loss_scale/scale"].to_f64().unwrap(), f32::MIN_POSITIVE as f64);
    let (_, state) = scaled_steps(&sgd(0.1), &scale, &[0.0; 200]);
    assert_eq!(state["loss_scale/scale"].to_f64().unwrap(), 2f64.powi(127));
}

/// A norm that is not finite must reach the parameters: a scale of zero would hide it.
#[test]
fn clipping_by_global_norm_does_not_hide_infinities() {
    let mut run = Descent::new(sgd(0.1).global_clipnorm(1.0), one(&random(&[3, 1], 3)));
    run.take(one(&Literal::from_slice([3, 1], &[1.0, f32::INFINITY, 1.0]).unwrap()));
    assert!(run.param("w").to_f32s().iter().all(|x| x.is_nan()));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let cases = [
        (adam(1e-3).clipnorm(1.0).clipvalue(1.0), "clipnorm and clipvalue are mutually exclusive"),
        (adam(1e-3).clipnorm(0.0), "clipnorm is not above 0"),
        (adam(1e-3).clipvalue(f64::NAN), "clipvalue is not above 0"),
        (adam(1e-3).betas(1.5, 0.9), "beta_1 is 1.5"),
        (sgd(1e-3).gradient_accumulation_steps(0), "gradient_accumulation_steps is 0"),
        (sgd(f64::NAN), "the learning rate is not finite"),
        (sgd(Schedule::cosine_decay(0.1, 0)), "decay_steps 0"),
        (
            sgd(Schedule::PiecewiseConstantDecay { boundaries: vec![1], values: vec![0.1] }),
            "1 boundaries and 1",
        ),
    ];
    for (optimizer, part) in cases {
        let message = optimizer.init(&Params::new()).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn names_and_configurations_read_back() {
    for &name in NAMES {
        let optimizer: Optimizer = name.parse().unwrap();
        assert_eq!(optimizer.name(), name);
        let text = serde_json::to_string(&optimizer).unwrap();
        assert_eq!(serde_json::from_str::<Optimizer>(&text).unwrap(), optimizer, "{text}");
    }
    assert_eq!("Adam".parse::<Optimizer>().unwrap(), adam(0.001));
    let message = "adm".parse::<Optimizer>().unwrap_err().to_string();
    assert!(message.contains("`adam`"), "{message}");
    let mut unknown = serde_json::to_value(adam(0.1)).unwrap();
    unknown["clip_norm"] = json!(1.0);
    assert!(serde_json::from_value::<Optimizer>(unknown).unwrap_err().to_string().contains("clip_norm"));
}

#[test]
fn slots_have_their_parameter_s_type_and_name() {
    let ty = TensorType::new(DType::F32, [2, 3]);
    let params: Params<TensorType> = [("a/kernel".to_string(), ty.clone())].into_iter().collect();
    let slots = adam(0.1).amsgrad(true).gradient_accumulation_steps(4).slots(&params);
    let names: Vec<&str> = slots.names().collect();
    assert_eq!(
        names,
        ["momentum/a/kernel", "velocity/a/kernel", "velocity_hat/a/kernel", "gradient_accumulator/a/kernel"]
    );
    assert!(slots.values().all(|t| *t == ty));
    assert!(sgd(0.1).slots(&params).is_empty());
}

/// Runs an optimizer on one number with these gradients; what it is after each.
fn numbers(optimizer: Optimizer, grads: &[f32]) -> Vec<f64> {
    let value = |v: f32| one(&Literal::from_slice([1], &[v]).unwrap());
    let mut run = Descent::new(optimizer, value(1.0));
    let mut seen = Vec::new();
    for &g in grads {
        run.take(value(g));
        seen.push(run.param("w").to_f64s()[0]);
    }
    seen
}

const GRADS: [f32; 6] = [0.5, -0.25, 0.75, 1.0, -0.5, 0.25];

/// fastai's formulas with a momentum of its own in each step, by hand.
#[test]
fn momentum_follows_its_schedule() {
    let moms = [0.95, 0.85, 0.95];
    let cycle = Schedule::momentum_cycle(moms).over(8);
    let at: Vec<f64> = (0..9).map(|s| cycle.at(s)).collect();
    assert!(
        max_relative(&[at[0], at[1], at[2], at[5], at[8]], &[0.95, 0.9, 0.85, 0.9, 0.95]) < 1e-12,
        "{at:?}"
    );
    let mut worst = Worst::below(2e-6);
    let (mut p, mut m) = (1.0, 0.0);
    for (t, value) in
        numbers(sgd(0.1).momentum(0.5).momentum_schedule(cycle.clone()), &GRADS).into_iter().enumerate()
    {
        m = at[t] * m - 0.1 * GRADS[t] as f64;
        p += m;
        worst.see("sgd", (p - value).abs());
    }
    let (mut p, mut m, mut v) = (1.0, 0.0, 0.0f64);
    for (t, value) in numbers(adam(0.1).momentum_schedule(cycle.clone()), &GRADS).into_iter().enumerate() {
        let (g, n) = (GRADS[t] as f64, t as f64 + 1.0);
        m = at[t] * m + (1.0 - at[t]) * g;
        v = 0.999 * v + 0.001 * g * g;
        // ε stands beside the root of the mean that is not corrected, as in Keras.
        p -= 0.1 * (1.0 - 0.999f64.powf(n)).sqrt() / (1.0 - at[t].powf(n)) * m / (v.sqrt() + 1e-7);
        // 1 − β₂ᵗ is a difference in f32.
        worst.see("adam", (p - value).abs() / 5.0);
    }
    worst.report("momentum schedules");
    let cycled = adam(0.1).momentum_schedule(cycle.clone());
    assert_eq!((cycled.momentum_at(2), adam(0.1).momentum_at(2)), (Some(cycle.at(2)), Some(0.9)));
    assert_eq!((adagrad(0.1).momentum_at(0), sgd(0.1).momentum(0.8).momentum_at(0)), (None, Some(0.8)));
    let names: Vec<String> =
        cycled.map_optimizer("head", sgd(0.1)).scheduled().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["learning_rate", "learning_rate of head", "momentum"]);
    // A schedule that does not change is the rule's own momentum.
    for &name in NAMES {
        let plain: Optimizer = name.parse().unwrap();
        let (plain, own) = match name {
            "sgd" | "rmsprop" => (plain.momentum(0.9), 0.9),
            "muon" => (plain, 0.95),
            _ => (plain, 0.9),
        };
        let scheduled = plain.clone().momentum_schedule(own);
        match scheduled.check() {
            Ok(()) => {
                let (a, b) = (numbers(plain, &GRADS), numbers(scheduled, &GRADS));
                // Muon's own momentum is not that of its AdamW, which a schedule sets too.
                assert!(name == "muon" || max_relative(&a, &b) < 1e-6, "{name}: {a:?} {b:?}");
            }
            Err(e) => assert!(e.to_string().contains("momentum"), "{name}: {e}"),
        }
    }
    assert!(sgd(0.1).momentum_schedule(0.9).check().is_err(), "sgd without momentum keeps none");
}

#[test]
fn lookahead_returns_half_of_the_way() {
    let fast = |from: f64, grads: &[f32]| grads.iter().fold(from, |p, g| p - 0.1 * f64::from(*g));
    let seen = numbers(sgd(0.1).lookahead(3, 0.5), &GRADS);
    let first = 0.5 * (1.0 + fast(1.0, &GRADS[..3]));
    let second = 0.5 * (first + fast(first, &GRADS[3..]));
    let expected = [fast(1.0, &GRADS[..1]), fast(1.0, &GRADS[..2]), first, fast(first, &GRADS[3..4])];
    assert!(max_relative(&seen[..4], &expected) < 1e-6, "{seen:?} {expected:?}");
    assert!((seen[5] - second).abs() < 1e-6, "{seen:?} {second}");
    // Of micro-batches those count that change weights.
    let halves: Vec<f32> = GRADS.iter().flat_map(|g| [*g, *g]).collect();
    let accumulated = numbers(sgd(0.1).lookahead(3, 0.5).gradient_accumulation_steps(2), &halves);
    assert!((accumulated[11] - second).abs() < 1e-6, "{accumulated:?}");
    assert!(sgd(0.1).lookahead(0, 0.5).check().is_err() && sgd(0.1).lookahead(5, 1.5).check().is_err());
}

/// Layers with optimizers of their own are changed as those change them alone: Keras's `OptimizerMap`.
#[test]
fn layers_have_optimizers_and_rates_of_their_own() {
    let start = |name: &str| random(&[3, 2], if name.starts_with("body") { 5 } else { 6 });
    let grad = |name: &str, step: u64| random(&[3, 2], 10 * step + u64::from(name.starts_with("body")));
    let names = ["body/kernel", "head/kernel"];
    let run = |optimizer: Optimizer, names: &[&str]| {
        let of = |f: &dyn Fn(&str) -> Literal| -> Params<Buffer> {
            names.iter().map(|n| (n.to_string(), f(n).into())).collect()
        };
        let mut run = Descent::new(optimizer, of(&start));
        (0..4).for_each(|step| run.take(of(&|name| grad(name, step))));
        run
    };
    let body = Schedule::cosine_decay(0.2, 3);
    let own = sgd(body).momentum(0.9).clipnorm(0.5);
    let outer = adam(0.01).global_clipnorm(0.1).weight_decay(0.01);
    let both = run(outer.clone().map_optimizer("body", own.clone()), &names);
    let slots: Vec<&str> = both.state.names().collect();
    assert_eq!(slots, ["momentum/body/kernel", "momentum/head/kernel", "velocity/head/kernel"]);
    assert_eq!(both.param("body/kernel"), run(own, &names[..1]).param("body/kernel"));
    assert_eq!(both.param("head/kernel"), run(outer, &names[1..]).param("head/kernel"));

    // Parts of the rate: as if the rate were so.
    let slow = run(adamw(0.01).lr_mult("bo*", 0.25), &names);
    assert!(
        relative_l2(&slow.param("body/kernel"), &run(adamw(0.0025), &names[..1]).param("body/kernel")) < 1e-6
    );
    assert_eq!(slow.param("head/kernel"), run(adamw(0.01), &names[1..]).param("head/kernel"));
    let groups = adam(1.0).discriminative(&["stem", "body", "head"], 100.0).lr_mult;
    let parts: Vec<f64> = ["stem", "body", "head"].iter().map(|g| groups[*g]).collect();
    assert!(max_relative(&parts, &[0.01, 0.1, 1.0]) < 1e-12, "{parts:?}");

    let mistake = |optimizer: Optimizer| {
        let params = names.iter().map(|n| (n.to_string(), start(n).into())).collect();
        optimizer.init(&params).unwrap_err().to_string()
    };
    assert!(mistake(adam(0.1).lr_mult("bodi", 0.1)).contains("`bodi`"));
    assert!(mistake(adam(0.1).lr_mult("bo*", 0.1).lr_mult("body", 0.1)).contains("two entries"));
    assert!(mistake(adam(0.1).lr_mult("body", -1.0)).contains("lr_mult of `body` is -1"));
    assert!(mistake(adam(0.1).map_optimizer("body", sgd(0.1).ema(0.9))).contains("apply to all parameters"));
    assert!(
        mistake(adam(0.1).map_optimizer("body", sgd(0.1).clipnorm(0.0))).contains("clipnorm is not above 0")
    );
    let text = serde_json::to_string(&adam(0.1).map_optimizer("body", sgd(0.1))).unwrap();
    assert_eq!(serde_json::from_str::<Optimizer>(&text).unwrap(), adam(0.1).map_optimizer("body", sgd(0.1)));
    let table = json!({"body*": {"type": "sgd", "learning_rate": 0.5, "momentum": 0.9}, "head": "lion"});
    let read = adam(0.1).with("optimizer_map", &table).unwrap();
    assert_eq!(read.optimizer_map["body*"], sgd(0.5).momentum(0.9));
    assert_eq!(read.optimizer_map["head"].name(), "lion");
}

#[test]
fn an_update_without_its_values_says_which_it_takes() {
    let optimizer = sgd(0.1).momentum(0.9).momentum_schedule(0.8);
    let params = one(&random(&[2], 1));
    let state = optimizer.init(&params).unwrap();
    let args =
        (params.clone(), params, state, Buffer::scalar(DType::F32, 0.1), Buffer::scalar(DType::I64, 0.0));
    let e = step_of(&optimizer).call(args).unwrap_err().to_string();
    assert!(e.contains("2 values") && e.contains("values_at"), "{e}");
}
