//! Macros for argument structs: field defaults, constructors and chainable setters with Keras's names.

/// Declares an argument struct with defaults that is stored in model files and rejects unknown arguments:
/// `arguments! { pub struct ELU { /** doc */ pub alpha: f64 = 1.0, } }`.
macro_rules! arguments {
    ($(#[$meta:meta])* pub struct $($rest:tt)*) => {
        $crate::setters::with_defaults! {
            #[derive(Clone, Debug, PartialEq, $crate::json::Serialize, $crate::json::Deserialize)]
            // Serde derives no bound for const generics.
            #[serde(default, deny_unknown_fields, bound(deserialize = ""))]
            $(#[$meta])*
            pub struct $($rest)*
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

/// Declares public constructors, `constructors!(LayerSpec: /** doc */ fn relu() = ReLU::default();)`: functions that
/// convert the value to the type.
macro_rules! constructors {
    ($of:ty: $($(#[$doc:meta])* fn $name:ident($($argument:ident: $ty:ty),*) = $value:expr;)*) => {
        $($(#[$doc])*
        #[track_caller]
        pub fn $name($($argument: $ty),*) -> $of {
            $value.into()
        })*
    };
}

pub(crate) use systole_data::{field_setters, with_defaults};
pub(crate) use {arguments, constructors, setters};
