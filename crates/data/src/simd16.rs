//! 128-bit SIMD helpers for JPEG (inverse DCT, color conversion) and image resizing.
//!
//! A vector is 16 bytes: eight 16-bit, four 32-bit or four f32 lanes. On x86-64 each function is one SSE2 instruction,
//! which every such CPU supports, so no run-time detection is needed; elsewhere they are loops.

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use any::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use safe_arch::*;

    pub type Lanes = m128i;
    pub type Floats = m128;

    macro_rules! one_instruction {
        ($($(#[$doc:meta])* $name:ident($($x:ident),+) = $instruction:ident;)*) => {$(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name($($x: Lanes),+) -> Lanes {
                $instruction($($x),+)
            }
        )*};
    }

    one_instruction! {
        add16(a, b) = add_i16_m128i;
        sub16(a, b) = sub_i16_m128i;
        add32(a, b) = add_i32_m128i;
        sub32(a, b) = sub_i32_m128i;
        /// Low halves of the products.
        mul16(a, b) = mul_i16_keep_low_m128i;
        /// High halves of the products of signed integers.
        mul16_high(a, b) = mul_i16_keep_high_m128i;
        /// Products of signed 16-bit integers, adjacent pairs added to 32 bits.
        dot16(a, b) = mul_i16_horizontal_add_m128i;
        /// Interleaves the low halves: a0 b0 a1 b1 …
        zip8_low(a, b) = unpack_low_i8_m128i;
        zip8_high(a, b) = unpack_high_i8_m128i;
        zip16_low(a, b) = unpack_low_i16_m128i;
        zip16_high(a, b) = unpack_high_i16_m128i;
        zip32_low(a, b) = unpack_low_i32_m128i;
        zip32_high(a, b) = unpack_high_i32_m128i;
        zip64_low(a, b) = unpack_low_i64_m128i;
        zip64_high(a, b) = unpack_high_i64_m128i;
        /// Narrows to 16 bits with saturation.
        narrow32(a, b) = pack_i32_to_i16_m128i;
        /// Narrows to bytes with saturation.
        narrow16(a, b) = pack_i16_to_u8_m128i;
    }

    #[inline(always)]
    pub fn all16(x: i16) -> Lanes {
        set_splat_i16_m128i(x)
    }

    #[inline(always)]
    pub fn all32(x: i32) -> Lanes {
        set_splat_i32_m128i(x)
    }

    /// Returns bytes 0, 2, 4 … as 16-bit integers.
    #[inline(always)]
    pub fn even8(a: Lanes) -> Lanes {
        bitand_m128i(a, all16(0xff))
    }

    /// Returns bytes 1, 3, 5 … as 16-bit integers.
    #[inline(always)]
    pub fn odd8(a: Lanes) -> Lanes {
        shr_imm_u16_m128i::<8>(a)
    }

    /// Shifts out the first 16 bits, with zeros at the end.
    #[inline(always)]
    pub fn behind16(a: Lanes) -> Lanes {
        byte_shr_imm_u128_m128i::<2>(a)
    }

    #[inline(always)]
    pub fn shift16<const N: i32>(a: Lanes) -> Lanes {
        shr_imm_i16_m128i::<N>(a)
    }

    #[inline(always)]
    pub fn shift32<const N: i32>(a: Lanes) -> Lanes {
        shr_imm_i32_m128i::<N>(a)
    }

    /// Converts signed 32-bit integers to floats.
    #[inline(always)]
    pub fn floats(a: Lanes) -> Floats {
        convert_to_m128_from_i32_m128i(a)
    }

    #[inline(always)]
    pub fn all(x: f32) -> Floats {
        set_splat_m128(x)
    }

    /// Computes `a · x + b · y`, rounding each product and the sum.
    #[inline(always)]
    pub fn mixed(a: Floats, x: Floats, b: Floats, y: Floats) -> Floats {
        add_m128(mul_m128(a, x), mul_m128(b, y))
    }

    /// Selects two lanes of `a`, then two of `b`, with two bits for each in `WHICH`.
    #[inline(always)]
    pub fn picked<const WHICH: i32>(a: Floats, b: Floats) -> Floats {
        shuffle_abi_f32_all_m128::<WHICH>(a, b)
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod any {
    pub type Lanes = [u8; 16];
    pub type Floats = [f32; 4];

    fn with16(a: Lanes, b: Lanes, f: impl Fn(i16, i16) -> i16) -> Lanes {
        let (a, b): ([i16; 8], [i16; 8]) = (bytemuck::cast(a), bytemuck::cast(b));
        bytemuck::cast(std::array::from_fn::<i16, 8, _>(|i| f(a[i], b[i])))
    }

    fn with32(a: Lanes, b: Lanes, f: impl Fn(i32, i32) -> i32) -> Lanes {
        let (a, b): ([i32; 4], [i32; 4]) = (bytemuck::cast(a), bytemuck::cast(b));
        bytemuck::cast(std::array::from_fn::<i32, 4, _>(|i| f(a[i], b[i])))
    }

    macro_rules! by_loop {
        ($($name:ident = $how:ident $(::<$size:literal>)? ($last:expr);)*) => {$(
            pub fn $name(a: Lanes, b: Lanes) -> Lanes {
                $how $(::<$size>)? (a, b, $last)
            }
        )*};
    }

    by_loop! {
        add16 = with16(i16::wrapping_add);
        sub16 = with16(i16::wrapping_sub);
        add32 = with32(i32::wrapping_add);
        sub32 = with32(i32::wrapping_sub);
        mul16 = with16(i16::wrapping_mul);
        mul16_high = with16(|a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16);
        zip8_low = zip::<1>(0);
        zip8_high = zip::<1>(8);
        zip16_low = zip::<2>(0);
        zip16_high = zip::<2>(8);
        zip32_low = zip::<4>(0);
        zip32_high = zip::<4>(8);
        zip64_low = zip::<8>(0);
        zip64_high = zip::<8>(8);
    }

    pub fn dot16(a: Lanes, b: Lanes) -> Lanes {
        let (a, b): ([i16; 8], [i16; 8]) = (bytemuck::cast(a), bytemuck::cast(b));
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        bytemuck::cast(std::array::from_fn::<i32, 4, _>(|i| product(2 * i).wrapping_add(product(2 * i + 1))))
    }

    /// Interleaves units of `SIZE` bytes of both, from byte `at` on.
    fn zip<const SIZE: usize>(a: Lanes, b: Lanes, at: usize) -> Lanes {
        std::array::from_fn(|i| {
            let from = if (i / SIZE).is_multiple_of(2) { &a } else { &b };
            from[at + i / (2 * SIZE) * SIZE + i % SIZE]
        })
    }

    pub fn narrow32(a: Lanes, b: Lanes) -> Lanes {
        let both: [i32; 8] = bytemuck::cast([a, b]);
        bytemuck::cast(both.map(|x| x.clamp(i16::MIN.into(), i16::MAX.into()) as i16))
    }
    pub fn narrow16(a: Lanes, b: Lanes) -> Lanes {
        let both: [i16; 16] = bytemuck::cast([a, b]);
        both.map(|x| x.clamp(0, 255) as u8)
    }
    pub fn all16(x: i16) -> Lanes {
        bytemuck::cast([x; 8])
    }
    pub fn all32(x: i32) -> Lanes {
        bytemuck::cast([x; 4])
    }
    pub fn even8(a: Lanes) -> Lanes {
        std::array::from_fn(|i| if i.is_multiple_of(2) { a[i] } else { 0 })
    }
    pub fn odd8(a: Lanes) -> Lanes {
        std::array::from_fn(|i| if i.is_multiple_of(2) { a[i + 1] } else { 0 })
    }
    pub fn behind16(a: Lanes) -> Lanes {
        std::array::from_fn(|i| a.get(i + 2).copied().unwrap_or(0))
    }
    pub fn shift16<const N: i32>(a: Lanes) -> Lanes {
        with16(a, a, |x, _| x >> N)
    }
    pub fn shift32<const N: i32>(a: Lanes) -> Lanes {
        with32(a, a, |x, _| x >> N)
    }
    pub fn floats(a: Lanes) -> Floats {
        bytemuck::cast::<_, [i32; 4]>(a).map(|x| x as f32)
    }
    pub fn all(x: f32) -> Floats {
        [x; 4]
    }
    pub fn mixed(a: Floats, x: Floats, b: Floats, y: Floats) -> Floats {
        std::array::from_fn(|i| a[i] * x[i] + b[i] * y[i])
    }
    pub fn picked<const WHICH: i32>(a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|i| if i < 2 { &a } else { &b }[(WHICH >> (2 * i) & 3) as usize])
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::{any, x86};
    use systole_base::rng::RandomStream;

    #[test]
    fn the_loops_are_the_instructions() {
        let mut draws = RandomStream::new(3, 1, 4);
        let mut draw = || std::array::from_fn::<u8, 16, _>(|_| draws.below(256) as u8);
        macro_rules! same {
            ($($name:ident)*) => {
                for _ in 0..200 {
                    let (a, b) = (draw(), draw());
                    $(
                        let one: [u8; 16] = bytemuck::cast(x86::$name(bytemuck::cast(a), bytemuck::cast(b)));
                        assert_eq!(one, any::$name(a, b), concat!(stringify!($name), " of {:?} and {:?}"), a, b);
                    )*
                    let a = draw();
                    let x = bytemuck::cast(a);
                    let one = [x86::shift16::<3>(x), x86::shift32::<11>(x), x86::even8(x), x86::odd8(x), x86::behind16(x)];
                    let other = [any::shift16::<3>(a), any::shift32::<11>(a), any::even8(a), any::odd8(a), any::behind16(a)];
                    assert_eq!(one.map(bytemuck::cast::<_, [u8; 16]>), other, "of {a:?}");
                }
            };
        }
        same!(add16 sub16 add32 sub32 mul16 mul16_high dot16 zip8_low zip8_high zip16_low zip16_high);
        same!(zip32_low zip32_high zip64_low zip64_high narrow32 narrow16);
        for _ in 0..200 {
            let x: [[f32; 4]; 4] = std::array::from_fn(|_| any::floats(draw()));
            let [a, b, c, d] = x.map(bytemuck::cast);
            let one: [[f32; 4]; 2] =
                bytemuck::cast([x86::mixed(a, b, c, d), x86::picked::<0b01_11_00_10>(a, b)]);
            assert_eq!(
                one,
                [any::mixed(x[0], x[1], x[2], x[3]), any::picked::<0b01_11_00_10>(x[0], x[1])],
                "{x:?}"
            );
            let bytes = draw();
            assert_eq!(bytemuck::cast::<_, [f32; 4]>(x86::floats(bytemuck::cast(bytes))), any::floats(bytes));
        }
        assert_eq!(bytemuck::cast::<_, [f32; 4]>(x86::all(0.1)), any::all(0.1));
        let one: [[u8; 16]; 2] = bytemuck::cast([x86::all16(-7), x86::all32(70_000)]);
        assert_eq!(one, [any::all16(-7), any::all32(70_000)]);
    }
}
