//! Fourier transforms of lines by Stockham's algorithm, which needs no permutation of its result. A length is split in two
//! factors: transforms of the columns of `[a, b]`, factors of one, and those of the columns of the transposed array; so every
//! loop runs along contiguous columns. Short lines are columns of a block of lines. Roots are computed in f64.
//!
//! Source: Stockham 1966, "High-speed convolution and correlation"; Bailey 1990, "FFTs in external or hierarchical memory".

use crate::simd::level::{Isa, Tile};
use crate::simd::real::{Real, load, store};
use crate::simd::vector::Vector;
use std::marker::PhantomData;
use systole_ir::op::Routine;

/// Lines up to this length are columns of blocks of lines.
const SHORT: usize = 63;
/// Columns that are transformed at a time.
const WIDTH: usize = 32;

/// Real and imaginary part of a constant.
type Complex<T> = [T; 2];

/// One factor of the length of columns.
struct Stage<T> {
    radix: usize,
    /// What is left of the length, divided by the radix.
    groups: usize,
    /// For each group the factors of all terms but the first.
    turns: Vec<Complex<T>>,
    /// For a radix without a butterfly of its own: its roots.
    roots: Vec<Complex<T>>,
}

/// How lines of one length are transformed.
pub struct Plan<T> {
    kind: Routine,
    /// Elements of a line of the real or complex array.
    length: usize,
    /// The length of the complex transform, and its two factors.
    n: usize,
    factors: [usize; 2],
    stages: [Vec<Stage<T>>; 2],
    /// Between the factors: `[a, b]`, real parts, then imaginary parts.
    between: Vec<T>,
    /// For real lines of even length: the roots that part both halves, real parts, then imaginary parts.
    parting: Vec<T>,
}

/// `e^(−2πi · k / n)`
fn root<T: Real>(k: usize, n: usize) -> Complex<T> {
    let angle = -2.0 * std::f64::consts::PI * (k % n) as f64 / n as f64;
    [T::of(angle.cos()), T::of(angle.sin())]
}

fn stages<T: Real>(length: usize) -> Vec<Stage<T>> {
    let (mut all, mut left) = (Vec::new(), length);
    while left > 1 {
        let radix = [4].into_iter().chain(2..=left).find(|r| left.is_multiple_of(*r)).unwrap_or(left);
        let groups = left / radix;
        let turns = (0..groups).flat_map(|p| (1..radix).map(move |j| root(p * j, left))).collect();
        let roots =
            if matches!(radix, 2 | 4) { Vec::new() } else { (0..radix).map(|k| root(k, radix)).collect() };
        all.push(Stage { radix, groups, turns, roots });
        left = groups;
    }
    all
}

impl<T: Real> Plan<T> {
    /// Lines of `length` elements, of which all prime factors are small.
    pub fn new(kind: Routine, length: usize) -> Plan<T> {
        let is_halved = matches!(kind, Routine::Rfft | Routine::Irfft) && length.is_multiple_of(2);
        let n = if is_halved { length / 2 } else { length };
        let factors = match n {
            ..=SHORT => [n, 1],
            _ => {
                let a = (1..=n.isqrt()).rev().find(|a| n.is_multiple_of(*a)).unwrap_or(1);
                [n / a, a]
            }
        };
        let [a, b] = factors;
        let apart = |all: Vec<Complex<T>>| {
            all.iter().map(|c| c[0]).chain(all.iter().map(|c| c[1])).collect::<Vec<T>>()
        };
        let between = if b == 1 { Vec::new() } else { (0..n).map(|i| root(i / b * (i % b), n)).collect() };
        let parting = if is_halved { (0..n).map(|k| root(k, length)).collect() } else { Vec::new() };
        let (between, parting) = (apart(between), apart(parting));
        Plan { kind, length, n, factors, stages: [stages(a), stages(b)], between, parting }
    }

    /// Lines that are transformed together.
    pub fn together(&self) -> usize {
        if self.factors[1] == 1 { WIDTH } else { 1 }
    }

    /// Elements of scratch that a call needs.
    pub fn scratch(&self) -> usize {
        // Columns twice, both parts; a transposed line; lines before and after the transform, and one backwards.
        4 * WIDTH * self.factors[0].max(self.factors[1]) + 2 * self.n + 6 * self.together() * (self.n + 1)
    }

    /// Whether real lines are two halves of a complex line.
    fn is_halved(&self) -> bool {
        self.n != self.length
    }
}

/// Lines to transform: at most [`Plan::together`].
pub struct Lines<'a, T> {
    pub plan: &'a Plan<T>,
    /// Real and imaginary part of the first line; real arrays have one.
    pub from: [*const T; 2],
    pub to: [*mut T; 2],
    pub count: usize,
    pub scratch: *mut T,
}

/// A vector of complex numbers.
#[derive(Clone, Copy)]
struct Both<V>(V, V);

impl<V: Vector> Both<V>
where
    V::T: Real,
{
    #[inline(always)]
    unsafe fn load<const WHOLE: bool>(p: [*const V::T; 2], at: usize, n: usize) -> Both<V> {
        // SAFETY: by the caller's promise, as for all of these.
        unsafe {
            Both(load::<V, WHOLE>(p[0].wrapping_add(at), n), load::<V, WHOLE>(p[1].wrapping_add(at), n))
        }
    }
    #[inline(always)]
    unsafe fn store<const WHOLE: bool>(self, p: [*mut V::T; 2], at: usize, n: usize) {
        // SAFETY: as above.
        unsafe {
            store::<V, WHOLE>(self.0, p[0].wrapping_add(at), n);
            store::<V, WHOLE>(self.1, p[1].wrapping_add(at), n);
        }
    }
    #[inline(always)]
    unsafe fn add(self, o: Both<V>) -> Both<V> {
        // SAFETY: as above.
        unsafe { Both(self.0.add(o.0), self.1.add(o.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Both<V>) -> Both<V> {
        // SAFETY: as above.
        unsafe { Both(less(self.0, o.0), less(self.1, o.1)) }
    }
    /// Times −i.
    #[inline(always)]
    unsafe fn turned(self) -> Both<V> {
        // SAFETY: as above.
        unsafe { Both(self.1, less(V::splat(V::T::of(0.0)), self.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, w: Both<V>) -> Both<V> {
        // SAFETY: as above.
        unsafe {
            let zero = V::splat(V::T::of(0.0));
            let cross = less(zero, self.1.mul_add(w.1, zero));
            Both(self.0.mul_add(w.0, cross), self.0.mul_add(w.1, self.1.mul_add(w.0, zero)))
        }
    }
    #[inline(always)]
    unsafe fn splat(w: Complex<V::T>) -> Both<V> {
        // SAFETY: as above.
        unsafe { Both(V::splat(w[0]), V::splat(w[1])) }
    }
}

/// `a − b`
#[inline(always)]
unsafe fn less<V: Vector>(a: V, b: V) -> V
where
    V::T: Real,
{
    // SAFETY: by the caller's promise.
    unsafe { b.mul_add(V::splat(V::T::of(-1.0)), a) }
}

/// Calls a function for vectors of `0..n`: with the first element, and whether the vector is whole.
macro_rules! vectors {
    ($v:ty, $n:expr, $f:ident ( $($arg:expr),* )) => {{
        let (n, lanes) = ($n, <$v>::LANES);
        let mut at = 0;
        while at + lanes <= n {
            $f::<$v, true>($($arg,)* at, lanes);
            at += lanes;
        }
        if at < n {
            $f::<$v, false>($($arg,)* at, n - at);
        }
    }};
}

/// The terms of one group of a stage: `x[at + k · across]`, and where they go, `y[at + j · apart]`.
struct Group<'a, T> {
    x: [*const T; 2],
    y: [*mut T; 2],
    across: usize,
    apart: usize,
    turns: &'a [Complex<T>],
    roots: &'a [Complex<T>],
    is_first: bool,
}

#[inline(always)]
unsafe fn by_two<V: Vector, const WHOLE: bool>(g: &Group<'_, V::T>, at: usize, n: usize)
where
    V::T: Real,
{
    // SAFETY: by the caller's promise, the terms lie in the arrays.
    unsafe {
        let a = Both::<V>::load::<WHOLE>(g.x, at, n);
        let b = Both::<V>::load::<WHOLE>(g.x, at + g.across, n);
        a.add(b).store::<WHOLE>(g.y, at, n);
        let mut y = a.sub(b);
        if !g.is_first {
            y = y.mul(Both::splat(g.turns[0]));
        }
        y.store::<WHOLE>(g.y, at + g.apart, n);
    }
}

#[inline(always)]
unsafe fn by_four<V: Vector, const WHOLE: bool>(g: &Group<'_, V::T>, at: usize, n: usize)
where
    V::T: Real,
{
    // SAFETY: by the caller's promise, the terms lie in the arrays.
    unsafe {
        let x = |k: usize| Both::<V>::load::<WHOLE>(g.x, at + k * g.across, n);
        let (a, b, c, d) = (x(0), x(1), x(2), x(3));
        let (even, odd) = (a.add(c), b.add(d));
        let (far, turned) = (a.sub(c), b.sub(d).turned());
        even.add(odd).store::<WHOLE>(g.y, at, n);
        let mut y = [far.add(turned), even.sub(odd), far.sub(turned)];
        for (k, y) in y.iter_mut().enumerate() {
            if !g.is_first {
                *y = y.mul(Both::splat(g.turns[k]));
            }
            y.store::<WHOLE>(g.y, at + (k + 1) * g.apart, n);
        }
    }
}

#[inline(always)]
unsafe fn by_any<V: Vector, const WHOLE: bool>(g: &Group<'_, V::T>, at: usize, n: usize)
where
    V::T: Real,
{
    let radix = g.roots.len();
    // SAFETY: by the caller's promise, the terms lie in the arrays.
    unsafe {
        for j in 0..radix {
            let mut sum = Both::<V>::load::<WHOLE>(g.x, at, n);
            for k in 1..radix {
                let x = Both::<V>::load::<WHOLE>(g.x, at + k * g.across, n);
                sum = sum.add(x.mul(Both::splat(g.roots[j * k % radix])));
            }
            if j > 0 && !g.is_first {
                sum = sum.mul(Both::splat(g.turns[j - 1]));
            }
            sum.store::<WHOLE>(g.y, at + j * g.apart, n);
        }
    }
}

/// Transforms `width` columns that lie in the first of two arrays; returns which of them holds the result.
#[inline(always)]
unsafe fn columns<I: Isa, T: Real>(
    stages: &[Stage<T>],
    width: usize,
    arrays: [[*mut T; 2]; 2],
) -> [*mut T; 2] {
    let ([mut x, mut y], mut run) = (arrays, width);
    for stage in stages {
        for p in 0..stage.groups {
            let others = stage.radix - 1;
            let group = Group {
                x: x.map(|x| x.wrapping_add(run * p).cast_const()),
                y: y.map(|y| y.wrapping_add(run * stage.radix * p)),
                across: run * stage.groups,
                apart: run,
                turns: &stage.turns[p * others..(p + 1) * others],
                roots: &stage.roots,
                is_first: p == 0,
            };
            // SAFETY: by the caller's promise, the arrays have `length · width` elements.
            unsafe {
                match stage.radix {
                    2 => vectors!(T::V<I>, run, by_two(&group)),
                    4 => vectors!(T::V<I>, run, by_four(&group)),
                    _ => vectors!(T::V<I>, run, by_any(&group)),
                }
            }
        }
        run *= stage.radix;
        std::mem::swap(&mut x, &mut y);
    }
    x
}

#[inline(always)]
unsafe fn times<V: Vector, const WHOLE: bool>(x: [*mut V::T; 2], w: [*const V::T; 2], at: usize, n: usize)
where
    V::T: Real,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let y = Both::<V>::load::<WHOLE>(x.map(|x| x.cast_const()), at, n);
        y.mul(Both::load::<WHOLE>(w, at, n)).store::<WHOLE>(x, at, n);
    }
}

/// Parts an array in real and imaginary parts of so many elements each.
fn split<T>(p: *mut T, n: usize) -> [*mut T; 2] {
    [p, p.wrapping_add(n)]
}

/// One line of `n = a · b` elements.
#[inline(always)]
unsafe fn line<I: Isa, T: Real>(plan: &Plan<T>, x: [*const T; 2], y: [*mut T; 2], scratch: *mut T) {
    let ([a, b], n) = (plan.factors, plan.n);
    let half = WIDTH * a.max(b);
    let arrays = [split(scratch, half), split(scratch.wrapping_add(2 * half), half)];
    let turned = split(scratch.wrapping_add(4 * half), n);
    let between = [plan.between.as_ptr(), plan.between.as_ptr().wrapping_add(n)];
    // SAFETY: by the caller's promise: a line has `n` elements, scratch as many as `Plan::scratch` says.
    unsafe {
        for first in (0..b).step_by(WIDTH) {
            let width = WIDTH.min(b - first);
            take(x, first, b, [a, width], arrays[0]);
            let made = columns::<I, T>(&plan.stages[0], width, arrays);
            for k in 1..a {
                let w = between.map(|w| w.wrapping_add(k * b + first));
                let row = made.map(|p| p.wrapping_add(k * width));
                vectors!(T::V<I>, width, times(row, w));
            }
            for (from, to) in made.into_iter().zip(turned) {
                turn(from.cast_const(), [a, width], width, to.wrapping_add(first * a), a);
            }
        }
        for first in (0..a).step_by(WIDTH) {
            let width = WIDTH.min(a - first);
            take(turned.map(|p| p.cast_const()), first, a, [b, width], arrays[0]);
            let made = columns::<I, T>(&plan.stages[1], width, arrays);
            for k in 0..b {
                for (from, to) in made.into_iter().zip(y) {
                    let to = to.wrapping_add(k * a + first);
                    std::ptr::copy_nonoverlapping(from.wrapping_add(k * width).cast_const(), to, width);
                }
            }
        }
    }
}

/// Copies columns from `first` on of rows at a distance of `row`.
#[inline(always)]
unsafe fn take<T: Copy>(
    x: [*const T; 2],
    first: usize,
    row: usize,
    [rows, width]: [usize; 2],
    to: [*mut T; 2],
) {
    for i in 0..rows {
        for (x, to) in x.into_iter().zip(to) {
            let from = x.wrapping_add(i * row + first);
            // SAFETY: by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(i * width), width) };
        }
    }
}

/// `[rows, columns] → [columns, rows]`, with these distances of rows.
#[inline(always)]
unsafe fn turn<T: Copy>(from: *const T, [rows, columns]: [usize; 2], row: usize, to: *mut T, to_row: usize) {
    for i in (0..rows).step_by(8) {
        for j in 0..columns {
            for k in i..(i + 8).min(rows) {
                // SAFETY: by the caller's promise.
                unsafe { *to.wrapping_add(j * to_row + k) = *from.wrapping_add(k * row + j) };
            }
        }
    }
}

/// The complex transform of `count` lines at a distance of `n`.
#[inline(always)]
unsafe fn transform<I: Isa, T: Real>(
    plan: &Plan<T>,
    x: [*const T; 2],
    y: [*mut T; 2],
    count: usize,
    scratch: *mut T,
) {
    let n = plan.n;
    // SAFETY: by the caller's promise, the arrays hold the lines.
    unsafe {
        if plan.factors[1] > 1 {
            for k in 0..count {
                line::<I, T>(
                    plan,
                    x.map(|p| p.wrapping_add(k * n)),
                    y.map(|p| p.wrapping_add(k * n)),
                    scratch,
                );
            }
            return;
        }
        let half = WIDTH * n;
        let arrays = [split(scratch, half), split(scratch.wrapping_add(2 * half), half)];
        for (x, to) in x.into_iter().zip(arrays[0]) {
            turn(x, [count, n], n, to, count);
        }
        let made = columns::<I, T>(&plan.stages[0], count, arrays);
        for (from, y) in made.into_iter().zip(y) {
            turn(from.cast_const(), [n, count], count, y, n);
        }
    }
}

/// What parts the transform of a real line from that of its even and odd elements, and back.
struct Halves<T> {
    x: [*const T; 2],
    /// The same backwards.
    back: [*const T; 2],
    w: [*const T; 2],
    y: [*mut T; 2],
}

/// `½ (z + z̄′) − ½ i w (z − z̄′)`, where z′ is z backwards.
#[inline(always)]
unsafe fn parted<V: Vector, const WHOLE: bool>(h: &Halves<V::T>, at: usize, n: usize)
where
    V::T: Real,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let z = Both::<V>::load::<WHOLE>(h.x, at, n);
        let back = Both::<V>::load::<WHOLE>(h.back, at, n);
        let even = Both(z.0.add(back.0), less(z.1, back.1));
        let odd = Both(z.1.add(back.1), less(back.0, z.0));
        let sum = even.add(odd.mul(Both::load::<WHOLE>(h.w, at, n)));
        let (half, zero) = (V::splat(V::T::of(0.5)), V::splat(V::T::of(0.0)));
        Both(sum.0.mul_add(half, zero), sum.1.mul_add(half, zero)).store::<WHOLE>(h.y, at, n);
    }
}

/// `(x + x̄′) + i w̄ (x − x̄′)`, where x′ is x backwards.
#[inline(always)]
unsafe fn joined<V: Vector, const WHOLE: bool>(h: &Halves<V::T>, at: usize, n: usize)
where
    V::T: Real,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let x = Both::<V>::load::<WHOLE>(h.x, at, n);
        let back = Both::<V>::load::<WHOLE>(h.back, at, n);
        let even = Both(x.0.add(back.0), less(x.1, back.1));
        let odd = Both(less(x.0, back.0), x.1.add(back.1));
        let w = Both::<V>::load::<WHOLE>(h.w, at, n);
        let p = odd.mul(Both(w.0, less(V::splat(V::T::of(0.0)), w.1)));
        even.sub(p.turned()).store::<WHOLE>(h.y, at, n);
    }
}

/// Copies `from[0], from[n − 1], …, from[1]`; `closed`: `from[n], from[n − 1], …`.
#[inline(always)]
unsafe fn backwards<T: Copy>(from: *const T, to: *mut T, n: usize, closed: bool) {
    // SAFETY: by the caller's promise, both have `n` elements, `from` one more where it is closed.
    unsafe {
        *to = *from.wrapping_add(if closed { n } else { 0 });
        let (from, to) = (
            std::slice::from_raw_parts(from.add(1), n - 1),
            std::slice::from_raw_parts_mut(to.add(1), n - 1),
        );
        to.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
    }
}

/// Runs the [`Lines`] that the first operand points to.
pub struct FftTile<T>(PhantomData<T>);
impl<T: Real> Tile for FftTile<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, job: *const u8, _: *const u8, _: *const u8, _: usize) {
        // SAFETY: by the type's documentation.
        unsafe {
            let lines = &*job.cast::<Lines<'_, T>>();
            let (plan, count) = (lines.plan, lines.count);
            match plan.kind {
                // With both parts exchanged, before and after, the sign of the exponent is the other.
                Routine::Fft { inverse: true } => {
                    let ([re, im], [to_re, to_im]) = (lines.from, lines.to);
                    transform::<I, T>(plan, [im, re], [to_im, to_re], count, lines.scratch);
                }
                Routine::Rfft => lines.of_real::<I>(),
                Routine::Irfft => lines.to_real::<I>(),
                _ => transform::<I, T>(plan, lines.from, lines.to, count, lines.scratch),
            }
        }
    }
}

impl<T: Real> Lines<'_, T> {
    /// Scratch for the transform; lines before it, after it, and one backwards.
    fn places(&self) -> (*mut T, [[*mut T; 2]; 3]) {
        let all = self.plan.together() * (self.plan.n + 1);
        let first = self.scratch.wrapping_add(self.plan.scratch() - 6 * all);
        (self.scratch, [0, 1, 2].map(|k| split(first.wrapping_add(2 * k * all), all)))
    }

    #[inline(always)]
    unsafe fn of_real<I: Isa>(&self) {
        let (plan, n, length) = (self.plan, self.plan.n, self.plan.length);
        let (scratch, [before, after, back]) = self.places();
        // SAFETY: by the caller's promise, the arrays hold the lines, and scratch has room.
        unsafe {
            for l in 0..self.count {
                let x = std::slice::from_raw_parts(self.from[0].wrapping_add(l * length), length);
                let [re, im] = before.map(|p| std::slice::from_raw_parts_mut(p.wrapping_add(l * n), n));
                if plan.is_halved() {
                    for ((x, re), im) in x.chunks_exact(2).zip(re).zip(im) {
                        (*re, *im) = (x[0], x[1]);
                    }
                } else {
                    re.copy_from_slice(x);
                    im.fill(T::of(0.0));
                }
            }
            transform::<I, T>(plan, before.map(|p| p.cast_const()), after, self.count, scratch);
            let half = length / 2 + 1;
            for l in 0..self.count {
                let x = after.map(|p| p.wrapping_add(l * n).cast_const());
                let y = self.to.map(|p| p.wrapping_add(l * half));
                if !plan.is_halved() {
                    x.into_iter().zip(y).for_each(|(x, y)| std::ptr::copy_nonoverlapping(x, y, half));
                    continue;
                }
                x.into_iter().zip(back).for_each(|(x, back)| backwards(x, back, n, false));
                let w = [plan.parting.as_ptr(), plan.parting.as_ptr().wrapping_add(n)];
                let h = Halves { x, back: back.map(|p| p.cast_const()), w, y };
                vectors!(T::V<I>, n, parted(&h));
                *y[0].add(n) = *x[0] - *x[1];
                *y[1].add(n) = T::of(0.0);
            }
        }
    }

    #[inline(always)]
    unsafe fn to_real<I: Isa>(&self) {
        let (plan, n, length) = (self.plan, self.plan.n, self.plan.length);
        let (scratch, [before, after, back]) = self.places();
        let half = length / 2 + 1;
        // SAFETY: by the caller's promise, the arrays hold the lines, and scratch has room.
        unsafe {
            for l in 0..self.count {
                let x = self.from.map(|p| p.wrapping_add(l * half));
                let y = before.map(|p| p.wrapping_add(l * n));
                if plan.is_halved() {
                    // The line, of which the ends are real, then backwards.
                    let own = after;
                    x.into_iter().zip(own).for_each(|(x, own)| std::ptr::copy_nonoverlapping(x, own, n + 1));
                    (*own[1], *own[1].add(n)) = (T::of(0.0), T::of(0.0));
                    let own = own.map(|p| p.cast_const());
                    own.into_iter().zip(back).for_each(|(x, back)| backwards(x, back, n, true));
                    let w = [plan.parting.as_ptr(), plan.parting.as_ptr().wrapping_add(n)];
                    let h = Halves { x: own, back: back.map(|p| p.cast_const()), w, y };
                    vectors!(T::V<I>, n, joined(&h));
                } else {
                    for k in 0..n {
                        let (at, sign) = if k < half { (k, 1.0) } else { (n - k, -1.0) };
                        *y[0].add(k) = *x[0].add(at);
                        *y[1].add(k) = if k == 0 { T::of(0.0) } else { *x[1].add(at) * T::of(sign) };
                    }
                }
            }
            let ([re, im], [to_re, to_im]) = (before.map(|p| p.cast_const()), after);
            transform::<I, T>(plan, [im, re], [to_im, to_re], self.count, scratch);
            for l in 0..self.count {
                let [re, im] =
                    after.map(|p| std::slice::from_raw_parts(p.wrapping_add(l * n).cast_const(), n));
                let y = std::slice::from_raw_parts_mut(self.to[0].wrapping_add(l * length), length);
                if plan.is_halved() {
                    for ((y, re), im) in y.chunks_exact_mut(2).zip(re).zip(im) {
                        (y[0], y[1]) = (*re, *im);
                    }
                } else {
                    y.copy_from_slice(re);
                }
            }
        }
    }
}
