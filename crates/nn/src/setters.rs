//! Macros for argument structs: field defaults and chainable setters with Keras's names.

/// Declares a struct with the default of each field next to its type: `with_defaults! { pub struct Window<const N:
/// usize> { /** doc */ pub strides: Sizes<N> = Sizes([1; N]), } }`.
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

/// Declares chainable setters, `setters!(LayerSpec: /** doc */ units: usize as usize;)`: a method that accepts the
/// first type and calls the type's `set` with the second. `set` remembers errors.
macro_rules! setters {
    ($of:ident: $($(#[$doc:meta])* $name:ident: $given:ty as $value:ty;)*) => {
        /// Keras's arguments.
        impl $of {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(self, value: $given) -> $of {
                let value: $value = value.into();
                self.set(stringify!($name), value.into())
            })*
        }
    };
}

/// Declares setters that replace the fields of the same name: `field_setters! { impl Timer { /** doc */
/// interval(interval: TimerInterval); limit(value: f64) => Some(value); } }`.
macro_rules! field_setters {
    (impl $(<$f:ident: $bound:ident>)? $of:ident $(<$g:ident>)? {
        $($(#[$about:meta])* $name:ident($value:ident: $ty:ty) $(=> $how:expr)?;)*
    }) => {
        impl $(<$f: $bound>)? $of $(<$g>)? {
            $($(#[$about])*
            pub fn $name(mut self, $value: $ty) -> Self {
                self.$name = $crate::setters::field_setters!(@value $value $(, $how)?);
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

pub(crate) use {field_setters, setters, with_defaults};
