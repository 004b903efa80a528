//! Synthetic random batches with a configuration's shapes, for benchmarks without data.

use super::RunConfig;
use systole_base::rng::{RandomStream, hash_name};
use systole_ir::{DType, Literal, Result, TensorType};
use systole_nn::{Batch, Model};

impl RunConfig {
    /// Returns a synthetic (random) batch of `fit.batch_size` samples for `model`: scaled pixels or tokens, and labels.
    /// Deterministic for a configuration and its seed.
    ///
    /// ```
    /// use systole::config::RunConfig;
    /// let config = RunConfig::preset("mlp")?;
    /// let model = config.untrained()?;
    /// let batch = config.synthetic_batch(&model)?;
    /// assert_eq!(batch.inputs[0].ty().to_string(), "f32[128, 28, 28, 1]");
    /// assert_eq!(batch.label.unwrap().ty().to_string(), "i32[128]");
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an array is too large for memory.
    pub fn synthetic_batch(&self, model: &Model) -> Result<Batch> {
        let output = model.output_type().cloned().unwrap_or(TensorType::scalar(DType::F32));
        let own = model.compile_config().and_then(|c| c.train_step.as_ref());
        let classes = match &self.biggan {
            Some(gan) => gan.n_classes,
            None => output.shape.last().copied().unwrap_or(1),
        };
        let (types, label) = model.step_types(self.fit.batch_size)?;
        let names: Vec<String> = match own.filter(|step| !step.fields().is_empty()) {
            Some(step) => step.fields(),
            None => model.architecture().inputs.iter().map(|i| i.name.clone()).collect(),
        };
        let inputs = names.iter().zip(&types).map(|(name, ty)| self.draw(name, ty, classes));
        Ok(Batch {
            inputs: inputs.collect::<Result<_>>()?,
            label: Some(self.draw("label", &label, classes)?),
            ..Default::default()
        })
    }

    /// Returns a random batch of type `ty`: integers below `limit`, or pixels.
    fn draw(&self, name: &str, ty: &TensorType, limit: usize) -> Result<Literal> {
        let batch = ty.shape.clone();
        let mut draws = RandomStream::new(self.seed, hash_name(&format!("synthetic/{name}")), 0);
        if ty.dtype.is_int() {
            let tokens: Vec<i32> = (0..batch.elements()).map(|_| draws.below(limit as u64) as i32).collect();
            return Ok(Literal::from_slice(batch, &tokens)?.convert(ty.dtype));
        }
        let scale = 255.0 * self.data.scale / (1u64 << 32) as f64;
        let pixels: Vec<f32> =
            (0..batch.elements()).map(|_| (f64::from(draws.next_u32()) * scale) as f32).collect();
        Ok(Literal::from_slice(batch, &pixels)?.convert(ty.dtype))
    }
}
