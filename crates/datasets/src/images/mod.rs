//! Image datasets: CIFAR-10, folders with one subfolder per class, and synthetic glyphs.

mod cifar;
pub(crate) mod folder;
mod glyphs;
mod resizing;
pub(crate) mod splits;

pub use cifar::{cifar10, cifar10_or_glyphs, cifar100};
pub use folder::{FolderOptions, fit_picture, fit_picture_on, folder, picture_size_for};
pub use glyphs::{colour_glyphs, glyphs};
pub use resizing::{ImageFit, ImageResizing, ResizeMethod};
