//! Winograd F(2×2, 3×3) convolutions (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015).
//!
//! The result is cut into tiles of 2×2 pixels. With `d` the 4×4 input elements that a tile depends on and `g` the
//! filter, the tile is `Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A`: 16 multiplications instead of 36. The sum over channels comes
//! before the back transform, so each of the 16 components of the tiles is one GEMM `[tiles, C] · [C, F]`. The filter
//! gradient is `Gᵀ [Σ (Bᵀ d B) ⊙ (A dy Aᵀ)] G`.
//!
//! The transforms only add, subtract and halve, so errors stay near those of the definition, relative to the sum of
//! absolute products. But an infinity spreads over its tile as a NaN. Programs that must follow the definition
//! ([`CompileTarget::winograd`](crate::simd::level::CompileTarget::winograd) off) do not use these kernels.

mod forward;
mod gradient;
mod tiling;

pub use crate::kernels::conv::winograd::forward::WinogradForward;
pub use crate::kernels::conv::winograd::gradient::WinogradKernelGradient;
