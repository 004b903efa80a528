//! Macros for structs of options: a default next to each field, and setters.

/// Declares a struct with the default of each field next to its type: `with_defaults! { pub struct Window<const N:
/// usize> { /** doc */ pub strides: Sizes<N> = Sizes([1; N]), } }`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_defaults {
    (
        $(#[$meta:meta])*
        $see:vis struct $name:ident $(<const $n:ident: usize>)? {
            $($(#[$about:meta])* $see_field:vis $field:ident: $ty:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        $see struct $name $(<const $n: usize>)? {
            $($(#[$about])* $see_field $field: $ty,)*
        }

        impl $(<const $n: usize>)? Default for $name $(<$n>)? {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }
    };
}

/// Declares setters that replace the fields of the same name: `field_setters! { impl Timer { /** doc */
/// interval(interval: TimerInterval); limit(value: f64) => Some(value); } }`.
#[doc(hidden)]
#[macro_export]
macro_rules! field_setters {
    (impl $(<$f:ident: $bound:ident>)? $of:ident $(<$g:ident>)? {
        $($(#[$about:meta])* $name:ident($value:ident: $ty:ty) $(=> $how:expr)?;)*
    }) => {
        impl $(<$f: $bound>)? $of $(<$g>)? {
            $($(#[$about])*
            pub fn $name(mut self, $value: $ty) -> Self {
                self.$name = $crate::field_setters!(@value $value $(, $how)?);
                self
            })*
        }
    };
    (@value $value:ident) => {
        $value
    };
    (@value $value:ident, $how:expr) => {
        $how
    };
}
