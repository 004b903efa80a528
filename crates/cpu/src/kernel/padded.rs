//! Explicit padding of a convolution's input: a copy with padding and input dilation written as zeros, so that kernels
//! need no bounds checks, and tables of offsets into it.

use crate::kernel::Cx;
use crate::kernel::copy::{BoxCopy, Dim, fill};
use smallvec::SmallVec;
use systole_ir::TensorType;

/// The padded input and its strides. Without padding and dilation the input is used in place.
pub struct Padded {
    /// Copy of the input into zeros; `None`: it is used in place.
    copy: Option<BoxCopy>,
    elements: usize,
    /// Bytes of an element.
    size: usize,
    /// Strides in elements: between images, and along each spatial dimension.
    pub image: usize,
    pub strides: SmallVec<[usize; 3]>,
}

impl Padded {
    /// `x: f32[B, …, C]`, with spatial dimensions from 1 on. Negative padding crops the input.
    pub fn new(x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<Padded> {
        Padded::of_size(4, x, padding, dilation)
    }

    /// As [`Padded::new`], for elements of `bytes` bytes.
    pub fn of_size(bytes: usize, x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<Padded> {
        let (batch, channels, n) = (x.shape[0], x.shape[x.rank() - 1], padding.len());
        let own = x.shape.strides();
        if padding.iter().all(|p| *p == [0, 0]) && dilation.iter().all(|&d| d == 1) {
            let strides = (1..=n).map(|d| own[d]).collect();
            return Some(Padded { copy: None, elements: 0, size: bytes, image: own[0], strides });
        }
        let mut sizes: SmallVec<[usize; 3]> = SmallVec::new();
        let mut dims: Vec<Dim> = vec![Dim { size: batch, src: own[0] as isize, dst: 0 }];
        let (mut src_at, mut dst_at, mut places) = (0isize, SmallVec::<[isize; 3]>::new(), Vec::new());
        for i in 0..n {
            let (size, step) = (x.shape[i + 1] as i64, dilation[i] as i64);
            let [low, high] = padding[i];
            let padded = (size - 1) * step + 1 + low + high;
            let first = if low < 0 { (-low + step - 1) / step } else { 0 };
            let end = ((padded - low + step - 1).div_euclid(step)).min(size);
            sizes.push(usize::try_from(padded).ok()?);
            places.push((usize::try_from((end - first).max(0)).ok()?, step as isize));
            src_at += first as isize * own[i + 1] as isize;
            dst_at.push((low + first * step) as isize);
        }
        let mut strides: SmallVec<[usize; 3]> = SmallVec::from_elem(channels, n);
        for i in (0..n.saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * sizes[i + 1];
        }
        let image = sizes.iter().product::<usize>() * channels;
        dims[0].dst = image as isize;
        for i in 0..n {
            let (size, step) = places[i];
            dims.push(Dim { size, src: own[i + 1] as isize, dst: strides[i] as isize * step });
        }
        dims.push(Dim { size: channels, src: 1, dst: 1 });
        let at = dst_at.iter().zip(&strides).map(|(&p, &s)| p * s as isize).sum();
        let copy = Some(BoxCopy::new(bytes, &dims, src_at, at));
        Some(Padded { copy, elements: batch * image, size: bytes, image, strides })
    }

    pub fn bytes(&self) -> usize {
        (self.elements * self.size).next_multiple_of(64)
    }

    /// Pads the input into `scratch`, if needed, and returns the address that kernels read.
    pub unsafe fn prepare(&self, cx: &Cx<'_>, x: *const u8, scratch: *mut u8) -> *const f32 {
        let Some(copy) = &self.copy else { return x.cast() };
        let zero = 0f32;
        // SAFETY: by the caller's promise `scratch` has [`Padded::bytes`] bytes; the copy's indices are inside
        // `elements`.
        unsafe {
            fill(cx, scratch, self.elements, self.size, (&raw const zero).cast());
            copy.run(cx, x, scratch);
        }
        scratch.cast_const().cast()
    }
}

/// Element offsets of all index combinations of dimensions `(size, stride)`, in row-major order.
pub fn offsets(dims: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut all = vec![0];
    for (size, stride) in dims {
        all = all.iter().flat_map(|&at| (0..size).map(move |i| at + i * stride)).collect();
    }
    all
}
