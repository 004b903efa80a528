//! Macro `inlined!`: defines always-inlined one-expression methods for vectors of intrinsics.

/// Defines methods that are always inlined, since intrinsics are instructions only within functions that have their
/// target features: `fn add(self, other: Self) -> Self = _mm512_add_epi32(self, other);`.
///
/// # Safety
/// The expressions are `unsafe`. They are intrinsics of a level that callers have, and addresses cover the lanes.
macro_rules! inlined {
    ($(fn $name:ident($($argument:tt)*) $(-> $result:ty)? = $value:expr;)*) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe, reason = "portable vectors need no intrinsics")]
            fn $name($($argument)*) $(-> $result)? {
                // SAFETY: see the macro.
                unsafe { $value }
            }
        )*
    };
    ($(unsafe fn $name:ident($($argument:tt)*) $(-> $result:ty)? = $value:expr;)*) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe, reason = "portable vectors need no intrinsics")]
            unsafe fn $name($($argument)*) $(-> $result)? {
                // SAFETY: see the macro.
                unsafe { $value }
            }
        )*
    };
}

pub(crate) use inlined;
