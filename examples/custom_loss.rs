//! A loss and a metric of your own: the focal loss (Lin et al., 2017), which looks at hard samples most, as a type with an
//! argument; and a metric as a plain function. They are compiled into the training step like built-in ones.
//!
//! Run it: `cargo run --release --example custom_loss`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

/// `y_true: i32[B], y_pred: f32[B, C] → f32[B]`: −(1 − p)ᵞ·ln p of the right class's probability p.
#[derive(Debug)]
struct FocalLoss {
    gamma: f64,
}

impl CustomLoss for FocalLoss {
    fn name(&self) -> &str {
        "focal_loss"
    }

    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let right = y_true.one_hot(y_pred.dim(-1), F32);
        let p = (y_pred * right).sum(&[1]).clamp(&y_pred.scalar_like(1e-7), &y_pred.scalar_like(1.0));
        let hard = (1.0 - &p).power(&p.scalar_like(self.gamma));
        -(hard * p.log())
    }

    /// Class numbers: integers without the output's last axis.
    fn label(&self, output: &TensorType) -> TensorType {
        TensorType::new(I32, &output.shape.dims()[..output.rank() - 1])
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({ "gamma": self.gamma })
    }
}

/// How sure the model is: the mean of the greatest probability.
fn confidence() -> Metric {
    Metric::custom("confidence", |_, y_pred| y_pred.reduce_max(&[1]))
}

fn main() -> Result<()> {
    let data = datasets::glyphs(0)?;
    let scale = |s: Sample| s.map("image", |x| x.cast(F32) / 255.0);
    let train = data.train.map(scale).shuffle(10_000, 1).repeat().batch(100);
    let test = data.test.map(scale).take(1000).batch(100);

    let mut model =
        Sequential::new([flatten(), dense(64).activation("relu"), dense(10).activation("softmax")]);
    model.compile(Compile {
        optimizer: adam(3e-3),
        loss: FocalLoss { gamma: 2.0 }.into(),
        metrics: vec![sparse_categorical_accuracy(), confidence()],
        ..default()
    })?;
    model.fit(&train, Fit { epochs: 2, steps_per_epoch: Some(100), ..default() })?;
    let logs = model.evaluate(&test)?;
    println!("accuracy {:.3}, confidence {:.3}", logs["sparse_categorical_accuracy"], logs["confidence"]);

    // A model file keeps the names and arguments; their code comes from the program that reads it.
    let path = std::env::temp_dir().join(format!("focal-{}.safetensors", std::process::id()));
    model.save(&path)?;
    let known = CustomObjects::new().loss(FocalLoss { gamma: 2.0 }).metric(confidence());
    let again = load_model_with(&path, &known)?.evaluate(&test)?;
    assert_eq!(again["loss"], logs["loss"]);
    std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
    assert!(logs["sparse_categorical_accuracy"] > 0.5, "it must learn");
    Ok(())
}
