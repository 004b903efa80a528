//! The loop of the PyTorch and PyTorch/XLA tutorials, on every device: for each batch zero the gradients, forward, loss, backward,
//! SGD step; first for a small convolutional network on MNIST, then for ResNet-50. The same file runs on the CPU, on eight devices, and
//! on accelerators behind PJRT plugins, in mixed precision, and goes on after a kill with the same bits.
//!
//! Run it: `cargo run --release --example pytorch_loop -- [cnn | resnet50] [--steps N] [--batch N] [--device NAME] [--devices N]
//! [--precision mixed_bfloat16] [--accumulate N] [--out FOLDER]`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::nn::Architecture;
use systole::nn::applications::ResNet50;
use systole::prelude::*;

/// What the command line says.
struct Arguments {
    network: String,
    steps: u64,
    batch: usize,
    accelerator: Accelerator,
    out: Option<String>,
}

fn arguments() -> Result<Arguments> {
    let mut of = Arguments {
        network: "cnn".into(),
        steps: 300,
        batch: 64,
        accelerator: Accelerator { seed: 1, ..default() },
        out: None,
    };
    let wrong =
        |what: String| Error::new(ErrorKind::Config, what).hint("see the first lines of this example");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if let "cnn" | "resnet50" = word.as_str() {
            of.network = word;
            continue;
        }
        let value = words.next().ok_or_else(|| wrong(format!("{word} has no value")))?;
        let number = || value.parse::<usize>().map_err(|_| wrong(format!("{word} {value} is no number")));
        match word.as_str() {
            "--steps" => of.steps = number()? as u64,
            "--batch" => of.batch = number()?,
            // `model.to(device)`
            "--device" => of.accelerator.backend = Some(backend(&value)?),
            "--devices" => of.accelerator.strategy = Strategy::data_parallel().devices(number()?),
            "--precision" => of.accelerator.precision = value.parse()?,
            "--accumulate" => of.accelerator.gradient_accumulation_steps = number()?,
            "--out" => of.out = Some(value),
            _ => return Err(wrong(format!("there is no argument {word}"))),
        }
    }
    Ok(of)
}

/// `nn.Sequential`, or `torchvision.models.resnet50`.
fn network(name: &str) -> Result<Architecture> {
    if name == "resnet50" {
        let resnet = ResNet50 { classes: 10, classifier_activation: Activation::Linear, ..default() };
        return resnet.architecture();
    }
    let cnn = Sequential::new([
        conv2d(32, 3).activation("relu"),
        max_pooling2d(2),
        conv2d(64, 3).activation("relu"),
        max_pooling2d(2),
        flatten(),
        dropout(0.25),
        dense(10),
    ]);
    Ok(cnn.architecture().clone())
}

/// `DataLoader`: batches of pictures from 0 to 1 and their classes; MNIST, or drawn signs where it is not to be had.
fn loader(batch: usize) -> Result<Dataset> {
    let data = datasets::mnist(DataDir::default()).or_else(|e| {
        println!("{}: drawn pictures take its place", e.what());
        datasets::glyphs(0)
    })?;
    let picture = |s: Sample| s.map("image", |x| x.cast(F32) / 255.0);
    Ok(data.train.map(picture).shuffle(60_000, 1).batch_drop_remainder(batch).prefetch(AUTOTUNE))
}

fn main() -> Result<()> {
    let Arguments { network: name, steps, batch, accelerator, out } = arguments()?;
    let loader = loader(batch)?;
    let mut model = Model::new(network(&name)?);
    model.build(&[TensorType::new(F32, [28, 28, 1])])?;

    let criterion = sparse_categorical_crossentropy().from_logits(true);
    let optimizer = sgd(0.001).momentum(0.9);
    let mut state = accelerator.prepare_model(&optimizer, &model)?;
    let forward = model.architecture().clone();
    let step = accelerator.step(
        &optimizer,
        move |cx: &mut Cx, _: &Params, (inputs, labels): &(Tensor, Tensor)| {
            // `optimizer.zero_grad()` has no counterpart: gradients are values. `loss.backward()` and `optimizer.step()` follow.
            let outputs = forward.call(cx, std::slice::from_ref(inputs));
            criterion.value(labels, &outputs, None)
        },
    )?;

    let mut backup =
        out.map(|dir| LoopBackup::open(BackupAndRestore::new(dir).every_steps(5))).transpose()?;
    let mut place = match &backup {
        Some(backup) => backup.restore(&mut [&mut state])?.unwrap_or_default(),
        None => default(),
    };
    let (mut running, mut shown) = (0.0, 0);
    while state.steps < steps {
        let mut batches = loader.iter_at(&place);
        while state.steps < steps
            && let Some(batch) = batches.next()
        {
            let batch = batch?;
            let pair = (batch.get("image")?.clone().into(), batch.get("label")?.clone().into());
            let loss = step.call(&mut state, pair)?;
            place = batches.position();
            if let Some(backup) = &mut backup {
                backup.after_step(&[&state], &place)?;
            }
            if state.steps.is_multiple_of(10) || state.steps == steps {
                (running, shown) = (loss.to_f64()?, state.steps);
                println!("[{}, {:5}] loss: {running:.6}", place.epoch + 1, state.steps);
            }
        }
        if state.steps < steps {
            place = systole::data::PipelinePosition::new(place.epoch + 1, 0);
        }
    }
    if let Some(backup) = backup {
        backup.finish(&[&state], &place)?;
    }
    state.put_into(&mut model)?;
    println!("finished after {} steps; weights {}", state.steps, model.digest_of_weights());
    assert!(shown == 0 || running.is_finite(), "the loss is a number");
    Ok(())
}
