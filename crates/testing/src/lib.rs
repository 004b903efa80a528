//! Asserts for tests of all crates: the kind of an error and the names that it mentions, but not its wording. Only a
//! dev-dependency.

mod shown_error;

pub use shown_error::{ShownError, is_prose};

use systole_base::{Error, ErrorKind};

/// Asserts that an error is of this kind and mentions all `names`: keys, options, files, layers, shapes and numbers. A name
/// is in back-ticks, in the location, or a symbol; prose is rejected, so that messages can be reworded.
///
/// ```
/// use systole_base::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::Data, "the kernel of `dense_1` is f32[3, 4]").at("m.safetensors");
/// systole_testing::assert_error(&e, ErrorKind::Data, &["dense_1", "f32[3, 4]", "m.safetensors"]);
/// ```
///
/// # Panics
/// If the error is of another kind, lacks a name, or a name is prose.
#[track_caller]
pub fn assert_error(error: &Error, kind: ErrorKind, names: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let shown = ShownError::of(error);
    for name in names {
        let lacks = shown.lacks(name);
        assert!(lacks.is_none(), "{}: {error}", lacks.unwrap_or_default());
    }
}
