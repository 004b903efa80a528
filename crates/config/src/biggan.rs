//! `[biggan]`: a generator and a discriminator in the place of layers, and what of the other tables that leaves.

use super::RunConfig;
use super::key_error::KeyError;
use std::path::Path;
use systole_data::{AUTOTUNE, Dataset};
use systole_datasets::TrainingData;
use systole_ir::{Error, ErrorKind, Result, TensorType};
use systole_nn::applications::biggan::{BigGan, SampleGrid};
use systole_nn::callback::Callback;
use systole_nn::loss::Loss;

impl RunConfig {
    /// The first key that does not go with BigGAN.
    pub(super) fn check_biggan(&self) -> Result<(), KeyError> {
        let Some(gan) = &self.biggan else { return Ok(()) };
        gan.check().map_err(|e| {
            let key = e.places().first().map_or("biggan".into(), |key| format!("biggan.{key}"));
            KeyError::of(&key, e)
        })?;
        if self.model.is_some() || !self.layers.is_empty() {
            return Err(KeyError::new("biggan", "there are both a [biggan] and layers or a [model]")
                .hint("keep one of them: BigGAN has its own networks"));
        }
        let adam = self.optimizer.get("type").and_then(toml::Value::as_str) == Some("adam");
        if let Some(key) = self.optimizer.keys().find(|key| *key != "type") {
            let what = format!("BigGAN has two optimizers, and `{key}` is of neither");
            return Err(KeyError::new(&format!("optimizer.{key}"), what)
                .hint("set those of the generator and the discriminator: biggan.G_lr and biggan.D_lr, G_B1, D_B1, G_B2, D_B2, adam_eps"));
        }
        if !adam {
            return Err(
                KeyError::new("optimizer.type", "BigGAN trains by Adam").hint("write type = \"adam\"")
            );
        }
        if !matches!(super::model_sections::loss(&self.compile.loss)?, Loss::Hinge) {
            return Err(KeyError::new("compile.loss", "BigGAN's loss is the hinge loss")
                .hint("write loss = \"hinge\""));
        }
        if !self.compile.metrics.is_empty() {
            return Err(KeyError::new(
                "compile.metrics",
                "no metric says how good pictures are that are made",
            )
            .hint("write metrics = []; scores are measured by: systole evaluate RUN --features CLASSIFIER"));
        }
        if self.compile.precision == "mixed_float16" {
            return Err(KeyError::new("compile.precision", "a step with several updates has no loss scale")
                .hint("use mixed_bfloat16, which needs none"));
        }
        self.check_biggan_data(gan)
    }

    fn check_biggan_data(&self, gan: &BigGan) -> Result<(), KeyError> {
        let (batch, parts) = (self.fit.batch_size, gan.num_D_accumulations);
        if batch != super::auto_batch_size::AUTO && !batch.is_multiple_of(parts) {
            let what = format!("a batch of {batch} cannot be computed in {parts} equal parts");
            return Err(KeyError::new("fit.batch_size", what)
                .hint(format!("choose a multiple of {parts}, which num_D_accumulations is")));
        }
        let side = gan.resolution;
        let fits = match self.data.image_size {
            Some(size) => size == [side, side],
            None => side == 32 || self.data.dataset != "cifar10",
        };
        if !fits {
            let what = format!("the pictures are not {side} × {side}, which biggan.resolution is");
            return Err(
                KeyError::new("data.image_size", what).hint(format!("set data.image_size=[{side},{side}]"))
            );
        }
        if !["cifar10", "folder", "records"].contains(&self.data.dataset.as_str())
            || self.data.channels() != 3
        {
            let what = format!("BigGAN makes colour pictures, and {} has none", self.data.dataset);
            return Err(KeyError::new("data.dataset", what).hint(
                "set data.dataset to cifar10, or to folder or records with colour pictures of your own",
            ));
        }
        let scale = self.data.scale;
        if (scale * 255.0 - 1.0).abs() > 1e-9 {
            return Err(KeyError::new("data.scale", "BigGAN's pixels go from 0 to 1, and then to −1 to 1")
                .hint("write scale = \"1/255\""));
        }
        if !super::augment::mixes(&self.data.augment).is_empty() {
            return Err(KeyError::new("data.augment", "mixed pictures would be learned as such")
                .hint("leave mixup and cutmix out; flip is what BigGAN-PyTorch has"));
        }
        if self.fit.class_weight.is_some() || self.fine_tune.is_some() {
            let key = if self.fine_tune.is_some() { "fine_tune" } else { "fit.class_weight" };
            return Err(
                KeyError::new(key, "this is for classifiers, and BigGAN is none").hint("leave it out")
            );
        }
        Ok(())
    }

    /// Types of one sample of what the model takes, where samples of the data are `sample`.
    pub(super) fn model_inputs(&self, sample: &TensorType) -> Vec<TensorType> {
        match &self.biggan {
            Some(gan) => gan.input_types().to_vec(),
            None => vec![sample.clone()],
        }
    }

    /// Samples that a step takes from the data: BigGAN's updates of the discriminator each have a batch of their own.
    pub fn samples_per_step(&self) -> usize {
        self.fit.batch_size * self.biggan.as_ref().map_or(1, |gan| gan.num_D_steps)
    }

    /// Gives BigGAN the classes of the data.
    pub(super) fn fit_biggan(&mut self, data: &TrainingData) {
        if let (Some(gan), n @ 1..) = (&mut self.biggan, data.class_names.len()) {
            gan.n_classes = n;
        }
    }

    /// An error where pictures are not what the networks take.
    pub(super) fn check_biggan_samples(&self, sample: &TensorType, classes: usize) -> Result<()> {
        let Some(gan) = &self.biggan else { return Ok(()) };
        let side = gan.resolution;
        if sample.shape.dims() != [side, side, 3] {
            let what = format!("the pictures are {sample}, and this BigGAN makes {side} × {side} in colour");
            return Err(Error::new(ErrorKind::Config, what).at("biggan.resolution").hint(format!(
                "set data.image_size=[{side},{side}] and data.color_mode=rgb, or biggan.resolution to the pictures' size"
            )));
        }
        if classes > gan.n_classes {
            let what = format!("the data have {classes} classes, and biggan.n_classes is {}", gan.n_classes);
            return Err(Error::new(ErrorKind::Config, what).hint(format!("set biggan.n_classes={classes}")));
        }
        Ok(())
    }

    /// Samples of training (or of testing) whose pictures have the size that the networks take; pixels are 0 to 255.
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

    /// What writes grids of pictures.
    pub(super) fn sample_grid(&self, folder: &Path) -> Option<Box<dyn Callback>> {
        let gan = self.biggan.as_ref()?;
        Some(Box::new(SampleGrid::new(gan, folder, self.seed)))
    }
}
