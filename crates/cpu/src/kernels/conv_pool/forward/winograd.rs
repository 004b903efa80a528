//! Winograd F(2×2, 3×3) convolution with fused 2×2 max pooling for few channels; a pooling window is one output tile.
//!
//! A tile takes 16 multiplications for each channel and filter, where the definition takes 36; `simd/winograd.rs` has
//! the transforms. With few channels, GEMMs over transformed arrays would not pay off. Here the input of a row of
//! windows is transformed first. Then lanes are filters: each transformed element is broadcast, and multiply-adds,
//! output transform and maximum stay in registers.
//!
//! Larger kernels are sums of parts with three or two rows and columns of taps. A part of two is a part of three with a
//! zero last row or column, so the products of one row or column of the tile vanish: 5×5 taps take 49 multiplications,
//! the definition 100. All parts are summed in the transformed tile, as channels are.

use crate::kernels::conv_pool::forward::microkernel::{
    CompareVector, MicrokernelTypes, ResultRounding, STORED, STORED_F16, WIDE, WindowRowArgs, finish,
    finish_finite,
};
use crate::simd::level::Level;
use crate::simd::narrow_floats::F16;
use crate::simd::vector::Portable32;
use crate::simd::winograd::{COMPONENTS, FilterTransforms, WinogradTransforms};
use smallvec::SmallVec;
use std::collections::VecDeque;
use systole_compile::Relu;

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};

/// Supported numbers of rows and columns of taps: a single one saves nothing, and more have not been measured.
const SIZES: std::ops::RangeInclusive<usize> = 2..=7;
/// Maximum number of channels: with more, too few windows of a row fit the transformed arrays.
const CHANNELS: usize = 8;
/// Minimum multiplications per window that must be saved to pay for the transforms.
const WORTH: usize = 16;
/// Maximum multiplications per window: the transformed kernel, a vector for each, stays in L1.
const MOST: usize = 400;

/// Arrays per transformed row: `e[i] - e[i + 2]`, `e[i] + e[i + 1]` and `e[i + 1] - e[i]`. `e` is the sum or difference
/// of two rows of the input, indexed by pixel. The last row of a part of three has the opposite sign.
const ARRAYS: usize = 3;
/// Elements of each transformed array. It is constant so that offsets of arrays and rows are immediates.
const ARRAY_ELEMENTS: usize = 128;
/// Elements between transformed rows.
const ROW: usize = ARRAYS * ARRAY_ELEMENTS;
/// Maximum products of one pass over a row of windows, whose transformed taps stay in registers.
const OF_PASS: usize = 24;
/// Maximum channels of parts with three rows of taps in one pass.
const MOST_THREES: usize = 6;
/// Maximum channels of parts with two rows of taps in one pass.
const MOST_TWOS: usize = 4;
/// Maximum windows of a pass: their sums stay in L1.
const WINDOWS: usize = 16;
/// Vectors of sums per window between passes: two for each column of a tile.
const SUMS: usize = 8;

/// Expands `body` for each of `T` channels of parts. The macro unrolls, so that transformed taps stay in registers.
macro_rules! each_term {
    ($n:ident, $k:ident => $body:expr) => {
        each_term!(@ $n, $k => $body, 0 1 2 3 4 5)
    };
    (@ $n:ident, $k:ident => $body:expr, $($number:literal)*) => {
        $(if $number < $n {
            const $k: usize = $number;
            $body
        })*
    };
}

/// Arguments of a microkernel: [`WindowRowArgs`] for results, bias and sizes, and the transformed operands.
struct TransformedArgs<'a> {
    windows: &'a WindowRowArgs,
    channels: usize,
    passes: &'a [ProductPass],
    run: PassesFn,
    /// Products of a tile: number of vectors of the transformed kernel for each vector of filters.
    products: usize,
    kernel: *const f32,
    input: *const f32,
    /// [`SUMS`] vectors for each window.
    sums: *mut f32,
}

/// Products of one tile column that are computed in one pass over all windows of a row.
struct ProductPass {
    column: usize,
    /// Offsets in the transformed input of channels of parts with three rows of taps. Each has four products in a
    /// column.
    threes: SmallVec<[usize; MOST_THREES]>,
    /// Offsets of channels of parts with two rows of taps. Each has three products in a column.
    twos: SmallVec<[usize; MOST_TWOS]>,
    /// Index of the first product.
    first: usize,
    /// Whether to add to the sums of the previous pass.
    add: bool,
}

/// Part of the kernel: three or two rows and columns of taps.
struct TapBlock {
    /// First row and column.
    at: [usize; 2],
    size: [usize; 2],
    /// For each channel and column of a tile, the index of its first product.
    products: Vec<[usize; 4]>,
}

/// Division of a kernel into parts and passes.
struct WinogradParts {
    parts: Vec<TapBlock>,
    passes: Vec<ProductPass>,
    /// Transformed rows: two rows of the input, and whether they are added or the second one is subtracted.
    rows: Vec<([usize; 2], bool)>,
    /// Products of a tile.
    products: usize,
    /// Pixels from the first part's input to the last part's input.
    beyond: usize,
}

/// Divides `taps` rows or columns into parts; returns the start and length of each.
fn parts(taps: usize) -> Vec<[usize; 2]> {
    // As many parts of three as possible, the rest of two.
    let threes = (0..=taps / 3).rev().find(|n| (taps - 3 * n).is_multiple_of(2)).unwrap_or(0);
    let twos = (taps - 3 * threes) / 2;
    let of = |first: usize, count: usize, size: usize| (0..count).map(move |i| [first + i * size, size]);
    of(0, threes, 3).chain(of(3 * threes, twos, 2)).collect()
}

impl WinogradParts {
    fn new([height, width]: [usize; 2], channels: usize) -> WinogradParts {
        let (mut all, mut rows) = (Vec::new(), Vec::new());
        // For parts of three and of two rows: part index, channel, offset in the transformed input.
        let mut starts: [Vec<(usize, usize, usize)>; 2] = Default::default();
        for [top, high] in parts(height) {
            let first = rows.len() * ROW;
            for [left, wide] in parts(width) {
                let of_channel = |c: usize| (all.len(), c, first + left * channels + c);
                starts[3 - high].extend((0..channels).map(of_channel));
                let products = vec![[0; 4]; channels];
                all.push(TapBlock { at: [top, left], size: [high, wide], products });
            }
            let of_part = [([0, 2], false), ([1, 2], true), ([2, 1], false), ([3, 1], false)];
            rows.extend(of_part[..=high].iter().map(|&([a, b], add)| ([top + a, top + b], add)));
        }
        let (mut passes, mut products) = (Vec::new(), 0);
        for column in 0..4 {
            // Parts of two columns have no products in the last column of the tile.
            let [mut threes, mut twos] = starts.each_ref().map(|starts| {
                starts.iter().copied().filter(|s| column <= all[s.0].size[1]).collect::<VecDeque<_>>()
            });
            let mut add = false;
            // There is at least one pass, because an empty pass stores the zeros that the output transform reads.
            while !add || !threes.is_empty() || !twos.is_empty() {
                let mut pass = ProductPass {
                    column,
                    threes: SmallVec::new(),
                    twos: SmallVec::new(),
                    first: products,
                    add: std::mem::replace(&mut add, true),
                };
                while pass.threes.len() < MOST_THREES
                    && let Some((part, channel, at)) = threes.pop_front()
                {
                    all[part].products[channel][column] = products;
                    pass.threes.push(at);
                    products += 4;
                }
                while pass.twos.len() < MOST_TWOS
                    && products - pass.first + 3 <= OF_PASS
                    && let Some((part, channel, at)) = twos.pop_front()
                {
                    all[part].products[channel][column] = products;
                    pass.twos.push(at);
                    products += 3;
                }
                passes.push(pass);
            }
        }
        let beyond = all.last().map_or(0, |p: &TapBlock| p.at[1]);
        WinogradParts { parts: all, passes, rows, products, beyond }
    }
}

/// Arguments of [`transform`].
struct InputTransformArgs<'a> {
    x: *const f32,
    /// Elements of an input row that may be read.
    seen: usize,
    /// Elements of each array to write, rounded up to whole vectors.
    count: usize,
    /// Elements between input rows.
    down: usize,
    channels: usize,
    rows: &'a [([usize; 2], bool)],
    to: *mut f32,
}

/// Applies the input transform to several windows of a row.
#[inline(always)]
unsafe fn transform<V: CompareVector>(r: &InputTransformArgs<'_>) {
    // SAFETY: the rows have `seen` elements each, and there is room for all arrays in whole vectors, by the caller's
    // promise.
    unsafe {
        let mut to = r.to;
        for &([a, b], add) in r.rows {
            let (a, b) = (r.x.add(a * r.down), r.x.add(b * r.down));
            let mut at = 0;
            while at < r.count {
                let mut e = [V::splat(0.0); 3];
                let mut k = 0;
                while k < 3 {
                    let from = at + k * r.channels;
                    // Elements beyond the last one are unused, but must not be read.
                    let lanes = V::LANES.min(r.seen.saturating_sub(from));
                    let (a, b): (V, V) = match lanes == V::LANES {
                        true => (V::load(a.add(from)), V::load(b.add(from))),
                        false => (
                            V::load_part(a.wrapping_add(from), lanes),
                            V::load_part(b.wrapping_add(from), lanes),
                        ),
                    };
                    e[k] = if add { a.add(b) } else { a.sub(b) };
                    k += 1;
                }
                e[0].sub(e[2]).store(to.add(at));
                e[0].add(e[1]).store(to.add(at + ARRAY_ELEMENTS));
                e[1].sub(e[0]).store(to.add(at + 2 * ARRAY_ELEMENTS));
                at += V::LANES;
            }
            to = to.add(ROW);
        }
    }
}

/// Returns the address of column `j` of a window's transformed tile. `at`: offset of the window's first element of a
/// channel.
#[inline(always)]
unsafe fn column(c: &TransformedArgs<'_>, j: usize, at: usize) -> *const f32 {
    let (right, array) = [(0, 0), (1, 1), (1, 2), (1, 0)][j];
    // SAFETY: the caller's window is inside the transformed input.
    unsafe { c.input.add(at + right * c.channels + array * ARRAY_ELEMENTS) }
}

/// Computes one channel's column `J` of `Aᵀ (u ⊙ v)`, the first step of the output transform. `start` is added to the
/// products of row 1.
#[inline(always)]
unsafe fn down<V: CompareVector, const J: usize>(
    c: &TransformedArgs<'_>,
    at: usize,
    u: &[V; COMPONENTS],
    start: Option<V>,
) -> [V; 2] {
    // SAFETY: the caller's window is inside the transformed input.
    unsafe {
        let x = column(c, J, at);
        let v = [V::splat(*x), V::splat(*x.add(ROW)), V::splat(*x.add(2 * ROW)), V::splat(*x.add(3 * ROW))];
        let first = match start {
            Some(start) => v[1].mul_add(u[4 + J], start),
            None => v[1].mul(u[4 + J]),
        };
        let second = v[2].mul(u[8 + J]);
        [v[0].mul_add(u[J], first.add(second)), v[3].mul_add(u[12 + J], first.sub(second))]
    }
}

/// Second step of the output transform: computes the four pixels of a window from the columns of its tile.
#[inline(always)]
unsafe fn pixels<V: CompareVector>([a, b, c, d]: [[V; 2]; 4]) -> [V; 4] {
    // SAFETY: the level is available.
    unsafe {
        [
            a[0].add(b[0].add(c[0])),
            b[0].sub(c[0]).sub(d[0]),
            a[1].add(b[1].add(c[1])),
            b[1].sub(c[1]).sub(d[1]),
        ]
    }
}

/// Loads the next `T` × `N` vectors. (Loops, not closures, because closures would not be compiled with the level's
/// target features.)
#[inline(always)]
unsafe fn vectors<V: CompareVector, const T: usize, const N: usize>(from: &mut *const f32) -> [[V; N]; T] {
    // SAFETY: the caller has as many vectors at `from`.
    unsafe {
        let mut all = [[V::splat(0.0); N]; T];
        let mut i = 0;
        while i < T * N {
            all[i / N][i % N] = V::load(*from);
            (*from, i) = (from.add(V::LANES), i + 1);
        }
        all
    }
}

/// Adds the products of one channel of a part: `N` rows of a tile column.
#[inline(always)]
unsafe fn add_products<V: CompareVector, const N: usize>(m: &mut [V; 4], x: *const f32, u: &[V; N]) {
    let mut i = 0;
    while i < N {
        // SAFETY: the caller's window is inside the transformed input.
        m[i] = unsafe { V::splat(*x.add(i * ROW)).mul_add(u[i], m[i]) };
        i += 1;
    }
}

/// Runs one pass with `T` channels of three-row parts and `U` channels of two-row parts: adds to a column of `Aᵀ Σ (u ⊙
/// v)` for each window.
#[inline(always)]
unsafe fn pass<V: CompareVector, const T: usize, const U: usize>(
    c: &TransformedArgs<'_>,
    p: &ProductPass,
    kernel: *const f32,
) {
    // SAFETY: the transformed operands and sums cover all windows, and the pass has `T` and `U` channels, by the
    // caller's promise.
    unsafe {
        let zero = V::splat(0.0);
        let mut u = kernel.add(p.first * V::LANES);
        let three: [[V; 4]; T] = vectors(&mut u);
        let two: [[V; 3]; U] = vectors(&mut u);
        let mut x = column(c, p.column, 0);
        let mut to = c.sums.add(2 * p.column * V::LANES);
        let (threes, twos) = (p.threes.as_ptr(), p.twos.as_ptr());
        for _ in 0..c.windows.windows {
            let mut m = [zero; 4];
            each_term!(T, K => add_products(&mut m, x.add(*threes.add(K)), &three[K]));
            each_term!(U, K => add_products(&mut m, x.add(*twos.add(K)), &two[K]));
            let mut top = m[0].add(m[1].add(m[2]));
            let mut bottom = m[3].add(m[1].sub(m[2]));
            if p.add {
                top = top.add(V::load(to));
                bottom = bottom.add(V::load(to.add(V::LANES)));
            }
            top.store(to);
            bottom.store(to.add(V::LANES));
            x = x.wrapping_add(2 * c.channels);
            to = to.wrapping_add(SUMS * V::LANES);
        }
    }
}

/// Runs all passes.
#[inline(always)]
unsafe fn passes<V: CompareVector>(c: &TransformedArgs<'_>, kernel: *const f32) {
    macro_rules! by_terms {
        ($p:ident, $([$t:literal $u:literal])*) => {
            match ($p.threes.len(), $p.twos.len()) {
                // SAFETY: by the caller's promise.
                $(($t, $u) => unsafe { pass::<V, $t, $u>(c, $p, kernel) },)*
                _ => {}
            }
        };
    }
    for p in c.passes {
        by_terms!(p,
            [0 0] [0 1] [0 2] [0 3] [0 4] [1 0] [1 1] [1 2] [1 3] [1 4] [2 0] [2 1] [2 2] [2 3] [2 4]
            [3 0] [3 1] [3 2] [3 3] [3 4] [4 0] [4 1] [4 2] [5 0] [5 1] [6 0]);
    }
}

/// Computes a vector of filters in several passes, for any number of channels and parts.
#[inline(always)]
unsafe fn several<V: CompareVector, const WHOLE: bool, const KIND: ResultRounding>(
    (w, c): (&WindowRowArgs, &TransformedArgs<'_>),
    from: usize,
    floor: V,
) {
    // SAFETY: by the caller's promise, transformed operands, sums and results cover the windows and filters.
    unsafe {
        let kernel = c.kernel.add(from * c.products);
        (c.run)(c, kernel);
        let bias = if w.bias.is_null() { V::splat(0.0) } else { V::load(w.bias.add(from)) };
        let mut sums = c.sums.cast_const();
        for i in 0..w.windows {
            let (a, b) = (sums, sums.add(2 * V::LANES));
            let (c, d) = (sums.add(4 * V::LANES), sums.add(6 * V::LANES));
            let a: [V; 2] = [V::load(a), V::load(a.add(V::LANES))];
            let b: [V; 2] = [V::load(b), V::load(b.add(V::LANES))];
            let c: [V; 2] = [V::load(c), V::load(c.add(V::LANES))];
            let d: [V; 2] = [V::load(d), V::load(d.add(V::LANES))];
            // The bias is added to the second column, which contributes to all four pixels once.
            let x = pixels([a, [b[0].add(bias), b[1].add(bias)], c, d]);
            store::<V, WHOLE, KIND>(w, x, bias, floor, (i, from));
            sums = sums.wrapping_add(SUMS * V::LANES);
        }
    }
}

/// Stores maximum and argmax of window `i` for filters starting at `from`: a whole vector (`WHOLE`), or the tail.
#[inline(always)]
unsafe fn store<V: CompareVector, const WHOLE: bool, const KIND: ResultRounding>(
    w: &WindowRowArgs,
    x: [V; 4],
    bias: V,
    floor: V,
    (i, from): (usize, usize),
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match WHOLE {
            true => finish_finite::<V, KIND>(w, x, bias, floor, i * w.row + from),
            false => finish::<V, KIND>(w, x, bias, i * w.row + from, w.columns - from),
        }
    }
}

/// Computes a vector of filters for 3×3 taps of one channel: all 16 transformed taps stay in registers.
#[inline(always)]
unsafe fn one<V: CompareVector, const WHOLE: bool, const KIND: ResultRounding>(
    (w, c): (&WindowRowArgs, &TransformedArgs<'_>),
    from: usize,
    floor: V,
) {
    // SAFETY: by the caller's promise, transformed operands and results cover the windows and filters.
    unsafe {
        let bias = if w.bias.is_null() { V::splat(0.0) } else { V::load(w.bias.add(from)) };
        let kernel = c.kernel.add(from * COMPONENTS);
        let mut u = [bias; COMPONENTS];
        for (p, u) in u.iter_mut().enumerate() {
            *u = V::load(kernel.add((p % 4 * 4 + p / 4) * V::LANES));
        }
        for i in 0..w.windows {
            // The bias is added to a product that contributes to all four pixels once.
            let x = pixels([
                down::<V, 0>(c, 2 * i, &u, None),
                down::<V, 1>(c, 2 * i, &u, Some(bias)),
                down::<V, 2>(c, 2 * i, &u, None),
                down::<V, 3>(c, 2 * i, &u, None),
            ]);
            store::<V, WHOLE, KIND>(w, x, bias, floor, (i, from));
        }
    }
}

/// Computes a whole vector of filters (`WHOLE`), or the tail.
#[inline(always)]
unsafe fn filters<V: CompareVector, const ONE: bool, const WHOLE: bool, const KIND: ResultRounding>(
    (w, c): (&WindowRowArgs, &TransformedArgs<'_>),
    from: usize,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let floor = V::splat(if w.relu == Relu::None { f32::NEG_INFINITY } else { 0.0 });
        if ONE {
            return one::<V, WHOLE, KIND>((w, c), from, floor);
        }
        several::<V, WHOLE, KIND>((w, c), from, floor);
    }
}

/// Microkernel: computes windows of a row for a panel of filters. `ONE`: there is one channel and one part.
#[inline(always)]
unsafe fn windows<V: CompareVector, const ONE: bool, const KIND: ResultRounding>(c: &TransformedArgs<'_>) {
    // Local copies, so that the compiler knows that stores do not change them.
    let (w, c) = (*c.windows, TransformedArgs { ..*c });
    let mut from = 0;
    // SAFETY: by the caller's promise.
    unsafe {
        while from + V::LANES <= w.columns {
            filters::<V, ONE, true, KIND>((&w, &c), from);
            from += V::LANES;
        }
        if from < w.columns {
            filters::<V, ONE, false, KIND>((&w, &c), from);
        }
    }
}

type WindowsFn = unsafe fn(&TransformedArgs<'_>);
/// Function type that runs all passes for a vector of filters.
type PassesFn = unsafe fn(&TransformedArgs<'_>, *const f32);
type TransformFn = unsafe fn(&InputTransformArgs<'_>);

macro_rules! kernels {
    ($name:ident, $transform:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const ONE: bool, const KIND: ResultRounding>(c: &TransformedArgs<'_>) {
            // SAFETY: the caller's promises are those of `windows`.
            unsafe { windows::<$v, ONE, KIND>(c) }
        }
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $transform(r: &InputTransformArgs<'_>) {
            // SAFETY: the caller's promises are those of `transform`.
            unsafe { transform::<$v>(r) }
        }
    };
}
kernels!(portable, transform_portable, Portable32);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, transform_avx2, V8x32, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, transform_avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn passes_avx512(c: &TransformedArgs<'_>, kernel: *const f32) {
    // SAFETY: the caller's promises are those of `passes`.
    unsafe { passes::<V16x32>(c, kernel) }
}

/// Replaces the passes for one part of one channel, which needs none.
unsafe fn no_passes(_: &TransformedArgs<'_>, _: *const f32) {}

/// Winograd transforms and microkernels of a pooled convolution.
pub struct WinogradWindows {
    /// Columns of taps.
    width: usize,
    channels: usize,
    terms: WinogradParts,
    /// Filters per vector.
    lanes: usize,
    run: WindowsFn,
    passes: PassesFn,
    transform: TransformFn,
    of_kernel: unsafe fn(&FilterTransforms),
}

impl WinogradWindows {
    /// Creates the transforms for a kernel with these rows and columns of taps and windows of stride 2. `None` if
    /// transforms would not pay off or the level has no microkernel.
    pub fn new(
        kernel: [usize; 2],
        channels: usize,
        stored: MicrokernelTypes,
        level: Level,
    ) -> Option<WinogradWindows> {
        let kind = match stored {
            MicrokernelTypes::Wide => WIDE,
            MicrokernelTypes::Once(F16) => STORED_F16,
            MicrokernelTypes::Once(_) => STORED,
            MicrokernelTypes::Rounded(_) | MicrokernelTypes::Pairs => return None,
        };
        if kernel.iter().any(|taps| !SIZES.contains(taps)) {
            return None;
        }
        let terms = WinogradParts::new(kernel, channels);
        let definition = 4 * kernel.iter().product::<usize>() * channels;
        if channels > CHANNELS || terms.products > MOST || terms.products + WORTH > definition {
            return None;
        }
        macro_rules! kernels {
            ($name:ident, $one:literal) => {
                match kind {
                    WIDE => $name::<$one, WIDE>,
                    STORED_F16 => $name::<$one, STORED_F16>,
                    _ => $name::<$one, STORED>,
                }
            };
        }
        let kernels: (WindowsFn, PassesFn, TransformFn, usize) = match (level, terms.products == COMPONENTS) {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, true) => (kernels!(avx512, true), no_passes, transform_avx512, 16),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, false) => (kernels!(avx512, false), passes_avx512, transform_avx512, 16),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, true) => (kernels!(avx2, true), no_passes, transform_avx2, 8),
            (Level::Portable, true) => (kernels!(portable, true), no_passes, transform_portable, 4),
            // Several parts or channels need 32 vector registers to pay off.
            _ => return None,
        };
        let (run, passes, transform, lanes) = kernels;
        let of_kernel = WinogradTransforms::of(level).kernel;
        Some(WinogradWindows { width: kernel[1], channels, terms, lanes, run, passes, transform, of_kernel })
    }

    /// Bytes of the transformed input of a group of windows and of their sums.
    pub fn part_bytes(&self) -> usize {
        (self.terms.rows.len() * ROW + WINDOWS * SUMS * self.lanes) * 4
    }

    /// Maximum number of windows that are transformed together.
    pub fn most(&self) -> usize {
        let fit = (ARRAY_ELEMENTS / self.channels - self.terms.beyond) / 2;
        if self.terms.products == COMPONENTS { fit } else { fit.min(WINDOWS) }
    }

    /// Elements of the transformed kernel per filter, with filters padded to whole vectors.
    pub fn elements(&self) -> usize {
        self.terms.products
    }

    /// Transforms `panel: f32[taps, channels, columns]` of a kernel; `columns` is a multiple of the vector width.
    ///
    /// # Safety
    /// The panel is valid, and `to` has room for [`elements`](WinogradWindows::elements) of each filter.
    pub unsafe fn kernel(&self, panel: *const f32, columns: usize, to: *mut f32) {
        let (lanes, channels) = (self.lanes, self.channels);
        for at in (0..columns).step_by(lanes) {
            let to = to.wrapping_add(at * self.elements());
            for part in &self.terms.parts {
                for channel in 0..channels {
                    // A part of two has zeros for its missing taps.
                    let (mut taps, mut components) = ([[0f32; 16]; 9], [[0f32; 16]; COMPONENTS]);
                    for (i, j) in (0..part.size[0]).flat_map(|i| (0..part.size[1]).map(move |j| (i, j))) {
                        let tap = (part.at[0] + i) * self.width + part.at[1] + j;
                        let from = panel.wrapping_add((tap * channels + channel) * columns + at);
                        // SAFETY: the panel has the tap; a vector has at most 16 lanes.
                        unsafe { std::ptr::copy_nonoverlapping(from, taps[3 * i + j].as_mut_ptr(), lanes) };
                    }
                    let w = FilterTransforms {
                        taps: taps.as_mut_ptr().cast(),
                        tap: 16,
                        row: 16,
                        components: components.as_mut_ptr().cast(),
                        component: 16,
                        wide: 16,
                        rows: 1,
                        elements: lanes,
                        add: false,
                    };
                    // SAFETY: both arrays have whole vectors for all taps and components; the kernel was chosen for an
                    // available level.
                    unsafe { (self.of_kernel)(&w) };
                    for (i, j) in (0..=part.size[0]).flat_map(|i| (0..=part.size[1]).map(move |j| (i, j))) {
                        let to = to.wrapping_add((part.products[channel][j] + i) * lanes);
                        // SAFETY: `to` has room for a vector of each product.
                        unsafe { std::ptr::copy_nonoverlapping(components[4 * i + j].as_ptr(), to, lanes) };
                    }
                }
            }
        }
    }

    /// Transforms the input of several windows of a row. `x`: the first window's first element; `down`: elements
    /// between rows.
    ///
    /// # Safety
    /// All elements that the windows read are valid, and `to` has room for [`part_bytes`](WinogradWindows::part_bytes);
    /// there are at most [`most`](WinogradWindows::most) windows.
    pub unsafe fn row(&self, x: *const f32, down: usize, windows: usize, to: *mut f32) {
        let channels = self.channels;
        let r = InputTransformArgs {
            x,
            seen: (2 * windows + self.width - 1) * channels,
            count: (2 * windows + self.terms.beyond) * channels,
            down,
            channels,
            rows: &self.terms.rows,
            to,
        };
        // SAFETY: by the caller's promise.
        unsafe { (self.transform)(&r) };
    }

    /// Computes windows from their transformed input and a panel of the transformed kernel.
    ///
    /// # Safety
    /// Results are those of [`WindowRowArgs`]. `input` was written by [`row`](WinogradWindows::row) and has room for
    /// the sums after it; `kernel` was written by [`kernel`](WinogradWindows::kernel).
    pub unsafe fn windows(&self, windows: &WindowRowArgs, kernel: *const f32, input: *mut f32) {
        let call = TransformedArgs {
            windows,
            channels: self.channels,
            passes: &self.terms.passes,
            run: self.passes,
            products: self.terms.products,
            kernel,
            input,
            sums: input.wrapping_add(self.terms.rows.len() * ROW),
        };
        // SAFETY: by the caller's promise; the kernel was chosen for an available level.
        unsafe { (self.run)(&call) };
    }
}
