//! Datasets of images: CIFAR-10, folders with one folder for each class, and glyphs, which are drawn by code.

mod cifar;
pub(crate) mod folder;
mod glyphs;
mod splits;

pub use cifar::cifar10;
pub use folder::{FolderOptions, fit_picture, fit_picture_on, folder, picture_size_for};
pub use glyphs::{colour_glyphs, glyphs};
