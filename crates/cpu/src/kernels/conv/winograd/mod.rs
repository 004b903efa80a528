//! Convolutions with windows of 3 by 3 from fewer products: F(2×2, 3×3) of Winograd's minimal filtering (Lavin and Gray,
//! "Fast Algorithms for Convolutional Neural Networks", 2015).
//!
//! The result is cut into tiles of 2 by 2 pixels. With `d` the 4 by 4 elements of the input that a tile sees and `g`
//! the window, the tile is `Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A`: 16 products where the definition has 36. Sums over channels are
//! taken of the products, so for each of the 16 components of a tile there is one product of matrices: `[tiles, C]` and `[C, F]`.
//! The kernel's gradient goes the way back: `Gᵀ [Σ (Bᵀ d B) ⊙ (A dy Aᵀ)] G`.
//!
//! The transforms add and halve, so that errors stay near those of the definition, relative to the sum of absolute
//! products; but an infinity spreads over its tile as a NaN. Programs whose letter counts are computed without them.

mod forward;
mod gradient;
mod tiling;

pub use crate::kernels::conv::winograd::forward::Forward;
pub use crate::kernels::conv::winograd::gradient::KernelGradient;
