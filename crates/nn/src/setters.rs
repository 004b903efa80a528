//! Setters by Keras's names: each replaces one argument through the type's `set`, which remembers what cannot be.

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

pub(crate) use setters;
