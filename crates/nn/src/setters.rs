//! How structs of arguments are written: defaults beside the fields, and setters by Keras's names, each of which replaces one
//! argument through the type's `set`, which remembers what cannot be.

/// A struct whose defaults stand beside the types of its fields:
/// `with_defaults! { pub struct Window<const N: usize> { /** doc */ pub strides: Sizes<N> = Sizes([1; N]), } }`.
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

/// `setters!(LayerSpec: /** doc */ units: usize as usize;)`: a method that takes the first type and sets the second.
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

/// Methods that replace fields of their names:
/// `field_setters! { impl Timer { /** doc */ interval(interval: TimerInterval); limit(value: f64) => Some(value); } }`.
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
