//! Data sets by name: Fashion-MNIST and MNIST from disk, cache or their public locations, and glyphs, which is
//! drawn on the spot and needs no file.
//!
//! Not a place for formats (those are `systole_data::format`) nor for preprocessing (that is a `map`).

mod download;
mod files;
mod glyphs;

pub use files::{DataDir, fashion_mnist, mnist};
pub use glyphs::glyphs;

use std::sync::Arc;
use systole_base::{Literal, Result};
use systole_data::Dataset;

/// A data set of pictures: `image: u8[H, W, C]` with values 0 to 255, `label: i32[]`.
#[derive(Clone, Debug)]
pub struct ImageDataset {
    /// Its name, as given to `systole train`.
    pub name: &'static str,
    /// Where it came from: a folder, or how it was made.
    pub origin: String,
    /// Training elements, in their original order.
    pub train: Dataset,
    /// Test elements, in their original order.
    pub test: Dataset,
    /// Number of training elements.
    pub train_len: usize,
    /// Number of test elements.
    pub test_len: usize,
    /// Height, width, channels.
    pub image_shape: [usize; 3],
    /// What the labels stand for.
    pub class_names: Vec<String>,
    /// Labels are below this.
    pub num_classes: usize,
    /// The training arrays whole.
    pub train_arrays: Arrays,
    /// The test arrays whole.
    pub test_arrays: Arrays,
}

/// `images: u8[N, H, W, C]`, `labels: i32[N]`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Arrays {
    pub images: Literal,
    pub labels: Literal,
}

impl ImageDataset {
    /// The two pipelines: `let (train, test) = datasets::fashion_mnist(DataDir::default())?.split();`
    pub fn split(self) -> (Dataset, Dataset) {
        (self.train, self.test)
    }

    fn new(
        name: &'static str,
        origin: String,
        class_names: &[&str],
        train: Arrays,
        test: Arrays,
    ) -> Result<ImageDataset> {
        let shape = train.images.shape();
        Ok(ImageDataset {
            name,
            origin,
            train_len: shape[0],
            test_len: test.images.shape()[0],
            image_shape: [shape[1], shape[2], shape[3]],
            num_classes: class_names.len(),
            class_names: class_names.iter().map(|s| s.to_string()).collect(),
            train: slices(format!("{name} train"), &train)?,
            test: slices(format!("{name} test"), &test)?,
            train_arrays: train,
            test_arrays: test,
        })
    }
}

fn slices(source: String, arrays: &Arrays) -> Result<Dataset> {
    let fields = [("image", arrays.images.clone()), ("label", arrays.labels.clone())];
    Dataset::from_named_slices(Arc::<str>::from(source), fields)
}
