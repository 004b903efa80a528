//! Generates images with a BigGAN, and writes sample grids during training.

use super::options::BigGan;
use crate::callback::{Callback, FitCx};
use crate::layer::initializer::Initializer;
use crate::model::Model;
use std::path::{Path, PathBuf};
use systole_data::Dataset;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_data::format::png;
use systole_ir::{DType, Error, Literal, Result, err};

/// Images per class in a sample grid.
const OF_A_CLASS: usize = 10;
/// Maximum number of classes in a sample grid.
const CLASSES: usize = 10;
/// Batch size of image generation.
const AT_ONCE: usize = 100;

impl BigGan {
    /// Returns the BigGAN options of a saved or trained model; `None` if it was trained otherwise.
    pub fn of(model: &Model) -> Option<BigGan> {
        let step = model.compile_config()?.train_step.as_ref().filter(|s| s.name() == super::NAME)?;
        serde_json::from_value(step.config()?).ok()
    }

    /// Generates one image per class label: `classes: i32[N] → u8[N, H, W, 3]`, from noise drawn for `seed`, with
    /// moving statistics.
    ///
    /// # Errors
    /// If the model is not a generator with these options.
    pub fn pictures(&self, model: &mut Model, classes: &[i32], seed: u64) -> Result<Literal> {
        let side = self.resolution;
        let shape = [classes.len(), side, side, 3];
        if classes.is_empty() {
            return Literal::from_slice(shape, &[0u8; 0]);
        }
        let noise = Initializer::RandomNormal { mean: 0.0, stddev: 1.0 };
        let noise = noise.make(&[classes.len(), self.noise()], seed, "biggan/pictures");
        let classes = Literal::from_slice([classes.len()], classes)?;
        let data = Dataset::from_tensor_slices([("z", noise), ("y", classes)])?.batch(AT_ONCE);
        let made = model.predict(&data)?;
        let bytes: Vec<u8> = made.to_f32s().into_iter().map(|x| ((x + 1.0) * 127.5).round() as u8).collect();
        Literal::from_slice(shape, &bytes)
    }

    /// Generates a sample grid: `→ u8[H', W', 3]`, a row of ten images per class for at most ten classes.
    ///
    /// # Errors
    /// If the model is not a generator with these options.
    pub fn sheet(&self, model: &mut Model, seed: u64) -> Result<Literal> {
        let classes = self.n_classes.min(CLASSES);
        let of_each: Vec<i32> = (0..classes * OF_A_CLASS).map(|i| (i / OF_A_CLASS) as i32).collect();
        grid(&self.pictures(model, &of_each, seed)?, OF_A_CLASS)
    }
}

/// Arranges images in a grid with `columns` columns and gaps of two pixels: `u8[N, H, W, C] → u8[H', W', C]`.
///
/// ```
/// use systole_ir::Literal;
/// let pictures = Literal::from_slice([3, 4, 4, 3], &[200u8; 144])?;
/// let sheet = systole_nn::applications::biggan::grid(&pictures, 2)?;
/// assert_eq!(sheet.ty().to_string(), "ui8[10, 10, 3]");
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// If the array does not contain images.
pub fn grid(pictures: &Literal, columns: usize) -> Result<Literal> {
    const GAP: usize = 2;
    let &[n, h, w, c] = pictures.shape().dims() else {
        return Err(err!(Data, "expected images, got {}", pictures.ty())
            .hint("pass ui8[count, height, width, channels]"));
    };
    if pictures.dtype() != DType::U8 || columns == 0 || n == 0 {
        return Err(err!(Data, "cannot arrange {} in {columns} columns", pictures.ty()));
    }
    let columns = columns.min(n);
    let rows = n.div_ceil(columns);
    let (height, width) = (rows * (h + GAP) - GAP, columns * (w + GAP) - GAP);
    let mut out = vec![255u8; height * width * c];
    for (i, picture) in pictures.bytes().chunks_exact((h * w * c).max(1)).enumerate() {
        let (top, left) = (i / columns * (h + GAP), i % columns * (w + GAP));
        for (y, line) in picture.chunks_exact(w * c).enumerate() {
            let at = ((top + y) * width + left) * c;
            out[at..at + w * c].copy_from_slice(line);
        }
    }
    Literal::from_slice([height, width, c], &out)
}

/// Callback that writes a PNG grid of generated images every `save_every` steps (`samples/step-0002000.png`) and at the
/// end (`samples.png`).
///
/// Rows are classes. The noise is fixed, so that the images show the generator's progress.
#[derive(Clone, Debug)]
pub struct SampleGrid {
    options: BigGan,
    folder: PathBuf,
    seed: u64,
}

impl SampleGrid {
    /// Creates the callback for a run in `folder`; noise is drawn for `seed`.
    pub fn new(options: &BigGan, folder: impl Into<PathBuf>, seed: u64) -> SampleGrid {
        SampleGrid { options: options.clone(), folder: folder.into(), seed }
    }

    /// Path of the final grid of generated images.
    pub fn last(folder: &Path) -> PathBuf {
        folder.join("samples.png")
    }

    fn write(&self, cx: &mut FitCx<'_>, file: &Path) -> Result<()> {
        // Prediction is a collective operation of all hosts.
        let sheet = self.options.sheet(cx.model, self.seed)?;
        if !cx.model.leads() {
            return Ok(());
        }
        let written = || -> Result<()> {
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(|e| Error::io("cannot create the folder", folder, e))?;
            }
            write_atomically(&OsFileSystem, file, &[&png::to_bytes(&sheet)?])
        };
        if let Err(e) = written() {
            cx.note(format!("cannot write a sample grid: {e}"));
        }
        Ok(())
    }
}

impl Callback for SampleGrid {
    fn wants_batch(&self, step: u64) -> bool {
        self.options.save_every > 0 && step > 0 && step.is_multiple_of(self.options.save_every)
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let step = cx.model.steps();
        if !self.wants_batch(step) {
            return Ok(());
        }
        let file = self.folder.join("samples").join(format!("step-{step:07}.png"));
        self.write(cx, &file)
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.write(cx, &SampleGrid::last(&self.folder))
    }
}
