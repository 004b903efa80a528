//! Explicit padding and dilation of convolution inputs: copies the input into zeros; offset tables.
//!
//! Kernels then need no bounds checks.

use crate::kernel::KernelContext;
use crate::kernel::copy::{BoxCopy, Dim, fill};
use smallvec::SmallVec;
use systole_ir::TensorType;

/// A convolution's padded input and its strides. Without padding and dilation the input is used in place.
pub struct PaddedConvInput {
    /// Copy of the input into zeros; `None` if the input is used in place.
    copy: Option<BoxCopy>,
    elements: usize,
    /// Bytes per element.
    size: usize,
    /// Strides in elements: between images, and along each spatial dimension.
    pub image: usize,
    pub strides: SmallVec<[usize; 3]>,
}

impl PaddedConvInput {
    /// Plans the padding of `x: f32[B, …, C]`, with spatial dimensions from 1 on. Negative padding crops the input.
    pub fn new(x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<PaddedConvInput> {
        PaddedConvInput::of_size(4, x, padding, dilation)
    }

    /// Like [`PaddedConvInput::new`], for elements of `bytes` bytes.
    pub fn of_size(
        bytes: usize,
        x: &TensorType,
        padding: &[[i64; 2]],
        dilation: &[usize],
    ) -> Option<PaddedConvInput> {
        let (batch, channels, n) = (x.shape[0], x.shape[x.rank() - 1], padding.len());
        let own = x.shape.strides();
        if padding.iter().all(|p| *p == [0, 0]) && dilation.iter().all(|&d| d == 1) {
            let strides = (1..=n).map(|d| own[d]).collect();
            return Some(PaddedConvInput { copy: None, elements: 0, size: bytes, image: own[0], strides });
        }
        let places: SmallVec<[PaddedDim; 3]> =
            (0..n).map(|i| PaddedDim::of(x.shape[i + 1], padding[i], dilation[i])).collect::<Option<_>>()?;
        let strides = strides_of(&places, channels);
        let image = places.iter().map(|p| p.padded).product::<usize>() * channels;
        let mut dims: Vec<Dim> = vec![Dim { size: batch, src: own[0] as isize, dst: image as isize }];
        let (mut src_at, mut at) = (0, 0);
        for (i, place) in places.iter().enumerate() {
            let dst = (strides[i] * dilation[i]) as isize;
            dims.push(Dim { size: place.count, src: own[i + 1] as isize, dst });
            src_at += place.first as isize * own[i + 1] as isize;
            at += place.at * strides[i] as isize;
        }
        dims.push(Dim { size: channels, src: 1, dst: 1 });
        let copy = Some(BoxCopy::new(bytes, &dims, src_at, at));
        Some(PaddedConvInput { copy, elements: batch * image, size: bytes, image, strides })
    }

    pub fn bytes(&self) -> usize {
        (self.elements * self.size).next_multiple_of(64)
    }

    /// Pads the input into `scratch`, if needed, and returns the address that kernels read.
    pub unsafe fn prepare(&self, cx: &KernelContext<'_>, x: *const u8, scratch: *mut u8) -> *const f32 {
        let Some(copy) = &self.copy else { return x.cast() };
        let zero = 0f32;
        // SAFETY: the caller guarantees that `scratch` has [`Padded::bytes`] bytes; the copy's indices are inside
        // `elements`.
        unsafe {
            fill(cx, scratch, self.elements, self.size, (&raw const zero).cast());
            copy.run(cx, x, scratch);
        }
        scratch.cast_const().cast()
    }
}

/// Mapping of one dimension's elements to the padded dimension.
pub struct PaddedDim {
    /// Elements of the padded dimension.
    pub padded: usize,
    /// First element that is not cropped, and the number of such elements.
    pub first: usize,
    pub count: usize,
    /// Padded position of the first element.
    pub at: isize,
}

impl PaddedDim {
    /// Returns the mapping, or `None` if more than the whole dimension is cropped.
    pub fn of(size: usize, [low, high]: [i64; 2], dilation: usize) -> Option<PaddedDim> {
        let (size, step) = (size as i64, dilation as i64);
        let padded = (size - 1) * step + 1 + low + high;
        let first = if low < 0 { (-low + step - 1) / step } else { 0 };
        let end = ((padded - low + step - 1).div_euclid(step)).min(size);
        Some(PaddedDim {
            padded: usize::try_from(padded).ok()?,
            first: first as usize,
            count: usize::try_from((end - first).max(0)).ok()?,
            at: (low + first * step) as isize,
        })
    }
}

/// Returns the row-major strides of the padded dimensions; channels are innermost.
pub fn strides_of(places: &[PaddedDim], channels: usize) -> SmallVec<[usize; 3]> {
    let mut strides: SmallVec<[usize; 3]> = SmallVec::from_elem(channels, places.len());
    for i in (0..places.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * places[i + 1].padded;
    }
    strides
}

/// Returns the element offsets of all index combinations of dimensions `(size, stride)`, in row-major order.
pub fn offsets(dims: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut all = vec![0];
    for (size, stride) in dims {
        all = all.iter().flat_map(|&at| (0..size).map(move |i| at + i * stride)).collect();
    }
    all
}
