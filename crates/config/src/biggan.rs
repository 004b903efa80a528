//! `[biggan]`: trains a BigGAN generator and discriminator instead of `layers`; checks the other sections against it.

use super::RunConfig;
use super::key_error::KeyError;
use std::path::Path;
use systole_data::{AUTOTUNE, Dataset};
use systole_datasets::TrainingData;
use systole_ir::{Result, TensorType, err};
use systole_nn::Model;
use systole_nn::applications::biggan::{BigGan, SampleGrid};
use systole_nn::callback::Callback;
use systole_nn::loss::Loss;

impl RunConfig {
    /// Returns an error for the first key that is incompatible with BigGAN.
    pub(super) fn check_biggan(&self) -> Result<(), KeyError> {
        let Some(gan) = &self.biggan else { return Ok(()) };
        gan.check().map_err(|e| {
            let key = e.places().first().map_or("biggan".into(), |key| format!("biggan.{key}"));
            KeyError::of(&key, e)
        })?;
        if self.model.is_some() || !self.layers.is_empty() {
            return Err(KeyError::new("biggan", "[biggan] cannot be combined with layers or a [model]")
                .hint_setting("remove [model] and [[layers]]: BigGAN has its own networks"));
        }
        let adam = self.optimizer.get("type").and_then(toml::Value::as_str) == Some("adam");
        if let Some(key) = self.optimizer.keys().find(|key| *key != "type") {
            let what = format!("BigGAN has two optimizers: `{key}` is ambiguous");
            return Err(KeyError::new(&format!("optimizer.{key}"), what).hint_setting(
                "set the optimizers' arguments in [biggan]: G_lr and D_lr, G_B1, D_B1, G_B2, D_B2, adam_eps",
            ));
        }
        if !adam {
            return Err(KeyError::new("optimizer.type", "BigGAN requires the Adam optimizer")
                .hint_setting("set optimizer.type = \"adam\""));
        }
        if !matches!(super::model_sections::loss(&self.compile.loss)?, Loss::Hinge) {
            return Err(KeyError::new("compile.loss", "BigGAN requires the hinge loss")
                .hint_setting("set compile.loss = \"hinge\""));
        }
        if !self.compile.metrics.is_empty() {
            return Err(KeyError::new("compile.metrics", "no metric applies to BigGAN training")
                .hint_setting(
                    "set compile.metrics=[]; compute scores after training: systole evaluate RUN --features CLASSIFIER",
                ));
        }
        if self.compile.precision == "mixed_float16" {
            return Err(KeyError::new(
                "compile.precision",
                "BigGAN does not support loss scaling: a step has several updates",
            )
            .hint_setting("set compile.precision=mixed_bfloat16, which needs no loss scale"));
        }
        self.check_biggan_data(gan)
    }

    fn check_biggan_data(&self, gan: &BigGan) -> Result<(), KeyError> {
        let (batch, parts) = (self.fit.batch_size, gan.num_D_accumulations);
        if batch != super::auto_batch_size::AUTO && !batch.is_multiple_of(parts) {
            let what =
                format!("the batch size {batch} is not divisible by `biggan.num_D_accumulations`, {parts}");
            return Err(KeyError::new("fit.batch_size", what)
                .hint_setting(format!("set fit.batch_size={}", batch.next_multiple_of(parts))));
        }
        let side = gan.resolution;
        let fits = match self.data.image_size {
            Some(size) => size == [side, side],
            None => side == 32 || self.data.dataset != "cifar10",
        };
        if !fits {
            let what =
                format!("the images are not {side} × {side}, the size that biggan.resolution requires");
            return Err(KeyError::new("data.image_size", what)
                .hint_setting(format!("set data.image_size=[{side},{side}]")));
        }
        if !["cifar10", "folder", "records"].contains(&self.data.kind()) || self.data.channels() != 3 {
            let what = format!("BigGAN generates color images, but `{}` is grayscale", self.data.dataset);
            return Err(KeyError::new("data.dataset", what).hint_setting(
                "set data.dataset to cifar10, or to folder or records with your own color images",
            ));
        }
        let scale = self.data.scale;
        if (scale * 255.0 - 1.0).abs() > 1e-9 {
            return Err(KeyError::new("data.scale", "BigGAN requires pixels scaled to the range 0 to 1")
                .hint_setting("set data.scale = \"1/255\""));
        }
        if !super::augment::mixes(&self.data.augment).is_empty() {
            return Err(KeyError::new("data.augment", "BigGAN would learn to generate mixed images")
                .hint_setting("set data.augment=[\"flip\"], as in BigGAN-PyTorch, or data.augment=[]"));
        }
        if self.fit.class_weight.is_some() || self.fine_tune.is_some() {
            let key = if self.fine_tune.is_some() { "fine_tune" } else { "fit.class_weight" };
            return Err(KeyError::new(key, "this key applies only to classifiers, not to BigGAN")
                .hint_setting(format!("remove {key}")));
        }
        Ok(())
    }

    /// Returns the types of the model's inputs for one sample of type `sample`.
    pub(super) fn model_inputs(&self, sample: &TensorType, model: &Model) -> Vec<TensorType> {
        match &self.biggan {
            Some(gan) => gan.input_types().to_vec(),
            // Tokens and segment ids have one type.
            None if self.data.kind() == "sentences" => {
                vec![sample.clone(); model.architecture().inputs.len().max(1)]
            }
            None => vec![sample.clone()],
        }
    }

    /// Returns the number of samples that one step reads: each of BigGAN's discriminator updates has its own batch.
    pub fn samples_per_step(&self) -> usize {
        self.fit.batch_size * self.biggan.as_ref().map_or(1, |gan| gan.num_D_steps)
    }

    /// Sets BigGAN's number of classes to that of the data.
    pub(super) fn fit_biggan(&mut self, data: &TrainingData) {
        if let (Some(gan), n @ 1..) = (&mut self.biggan, data.class_names.len()) {
            gan.n_classes = n;
        }
    }

    /// Returns an error if the images do not have the networks' shape.
    pub(super) fn check_biggan_samples(&self, sample: &TensorType, classes: usize) -> Result<()> {
        let Some(gan) = &self.biggan else { return Ok(()) };
        let side = gan.resolution;
        if sample.shape.dims() != [side, side, 3] {
            return Err(err!(Config, "the images are {sample}, but this BigGAN generates {side} × {side} color images").at("biggan.resolution").hint_setting(format!(
                "set data.image_size=[{side},{side}] and data.color_mode=rgb, or set biggan.resolution to the images' size"
            )));
        }
        if classes > gan.n_classes {
            return Err(err!(
                Config,
                "the data has {classes} classes, but biggan.n_classes is {}",
                gan.n_classes
            )
            .hint_setting(format!("set biggan.n_classes={classes}")));
        }
        Ok(())
    }

    /// Returns the training (or test) samples with images resized for the networks; pixels are 0 to 255.
    pub fn true_pictures(&self, data: &TrainingData, testing: bool) -> Dataset {
        let elements = match (testing, &data.streamed) {
            (true, _) => data.test.clone(),
            (false, None) => self.train_elements(data).0,
            (false, Some(s)) => {
                let prepare = s.prepare.clone();
                self.train_elements(data).0.map_parallel(move |s| prepare.call(s), AUTOTUNE)
            }
        };
        self.sized(elements, data)
    }

    /// Returns the callback that writes grids of generated images.
    pub(super) fn sample_grid(&self, folder: &Path) -> Option<Box<dyn Callback>> {
        let gan = self.biggan.as_ref()?;
        Some(Box::new(SampleGrid::new(gan, folder, self.seed)))
    }
}
