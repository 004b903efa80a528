//! Stages convolution input for int8 matmul: im2col window gathering and zero-point padding of images.

use crate::int8::windows::Int8WindowDim;

/// Geometry of a batch of images and of the windows over them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvInput {
    pub rows: Int8WindowDim,
    pub columns: Int8WindowDim,
    pub channels: usize,
    /// Padding value (the input's zero point).
    pub zero: i8,
}

/// Bytes that a short copy may read and write past its end.
pub(super) const SLACK: usize = 32;

impl ConvInput {
    /// Bytes of one staged image.
    pub fn size(&self) -> usize {
        self.rows.size * self.columns.size * self.channels
    }

    pub fn positions(&self) -> usize {
        self.rows.positions * self.columns.positions
    }

    /// Gathers convolution window number `at`, counted over all images (im2col).
    ///
    /// # Safety
    /// `x` contains that image; `to` has room for the window and [`SLACK`] bytes.
    pub unsafe fn window(&self, x: &[i8], at: usize, to: *mut i8) {
        let (image, own) = (at / self.positions(), at % self.positions());
        let (oy, ox) = (own / self.columns.positions, own % self.columns.positions);
        let (c, line) = (self.channels, self.columns.window * self.channels);
        if let Some(from) = self.inside(oy, ox) {
            let (from, next) = (image * self.size() + from, self.columns.size * c);
            let reach = from + (self.rows.window - 1) * next + line.max(SLACK);
            if reach <= x.len() {
                // SAFETY: all window rows are inside `x`, including the overrun of short copies.
                unsafe { lines(x.as_ptr().add(from), next, self.rows.window, line, to) };
                return;
            }
        }
        let x = &x[image * self.size()..];
        for ky in 0..self.rows.window {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = to.add(ky * line);
                let Some(py) = self.rows.place(oy, ky) else {
                    to.write_bytes(self.zero as u8, line);
                    continue;
                };
                let row = &x[py * self.columns.size * c..];
                if self.columns.dilation == 1 {
                    self.line(row, ox, to);
                    continue;
                }
                for kx in 0..self.columns.window {
                    match self.columns.place(ox, kx) {
                        Some(px) => copy(&row[px * c..], to.add(kx * c), c),
                        None => to.add(kx * c).write_bytes(self.zero as u8, c),
                    }
                }
            }
        }
    }

    /// Returns the offset of a window in its image if the window is contiguous per row and entirely inside.
    #[inline(always)]
    fn inside(&self, oy: usize, ox: usize) -> Option<usize> {
        let first = |a: &Int8WindowDim, at: usize| {
            let first = (at * a.stride).checked_sub(a.before)?;
            (a.dilation == 1 && first + a.window <= a.size).then_some(first)
        };
        let (y, x) = (first(&self.rows, oy)?, first(&self.columns, ox)?);
        Some((y * self.columns.size + x) * self.channels)
    }

    /// Gathers one row of a window whose taps are adjacent.
    #[inline(always)]
    unsafe fn line(&self, row: &[i8], ox: usize, to: *mut i8) {
        let (c, columns) = (self.channels, self.columns);
        let first = ox * columns.stride;
        let (before, from) = (columns.before.saturating_sub(first), first.saturating_sub(columns.before));
        let before = before.min(columns.window);
        let end = (first + columns.window).saturating_sub(columns.before).min(columns.size);
        let inside = end.saturating_sub(from);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if before > 0 {
                to.write_bytes(self.zero as u8, before * c);
            }
            if inside > 0 {
                copy(&row[from * c..], to.add(before * c), inside * c);
            }
            let after = columns.window - before - inside;
            if after > 0 {
                to.add((before + inside) * c).write_bytes(self.zero as u8, after * c);
            }
        }
    }

    /// Returns rows and columns of the zero-padded image (stride 1).
    pub fn bordered(&self) -> [usize; 2] {
        [self.rows, self.columns].map(|a| a.positions + (a.window - 1) * a.dilation)
    }

    /// Writes row `y` of the zero-padded image.
    ///
    /// # Safety
    /// `to` has room for it.
    pub unsafe fn line_with_border(&self, x: &[i8], y: usize, to: *mut i8) {
        let [_, w] = self.bordered();
        let (c, line) = (self.channels, w * self.channels);
        let before = self.columns.before.min(w) * c;
        let own = (self.columns.size * c).min(line - before);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match y.checked_sub(self.rows.before).filter(|y| *y < self.rows.size) {
                None => to.write_bytes(self.zero as u8, line),
                Some(y) => {
                    to.write_bytes(self.zero as u8, before);
                    let row = &x[y * self.columns.size * c..][..own];
                    to.add(before).copy_from_nonoverlapping(row.as_ptr(), own);
                    to.add(before + own).write_bytes(self.zero as u8, line - before - own);
                }
            }
        }
    }
}

/// Copies `count` rows of `n` bytes; source rows are `next` bytes apart.
#[inline(always)]
unsafe fn lines(mut from: *const i8, next: usize, count: usize, n: usize, mut to: *mut i8) {
    for _ in 0..count {
        // SAFETY: guaranteed by the caller; both sides have room for whole short copies.
        unsafe {
            if n <= SLACK {
                to.cast::<[i8; SLACK]>().write_unaligned(from.cast::<[i8; SLACK]>().read_unaligned());
            } else {
                to.copy_from_nonoverlapping(from, n);
            }
        }
        (from, to) = (from.wrapping_add(next), to.wrapping_add(n));
    }
}

/// Copies the first `n` bytes of `from`.
#[inline(always)]
unsafe fn copy(from: &[i8], to: *mut i8, n: usize) {
    debug_assert!(from.len() >= n);
    // SAFETY: `to` has room for `n` bytes and the overrun; short copies are used only if `from` is long enough.
    unsafe {
        if n <= SLACK && from.len() >= SLACK {
            to.cast::<[i8; SLACK]>().write_unaligned(from.as_ptr().cast::<[i8; SLACK]>().read_unaligned());
        } else {
            to.copy_from_nonoverlapping(from.as_ptr(), n);
        }
    }
}

/// Widens `n` values from int8 to int16.
///
/// # Safety
/// `from` has `n` bytes; `to` has room for `n` results.
pub(super) unsafe fn widen(from: *const i8, n: usize, to: *mut i16) {
    for i in 0..n {
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(i).write(i16::from(*from.add(i))) };
    }
}
