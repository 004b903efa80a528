//! The error type of all crates: message, location, causes and a hint.
//!
//! Library code returns errors and never panics on input; [`bug!`](crate::bug) is for unreachable states.

use std::fmt;
use std::panic::Location;

/// `std::result::Result` with Systole's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error category; determines the exit code and whether a retry can help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A graph cannot be built: incompatible shapes or element types.
    Graph,
    /// Malformed input data (wrong magic number, count, label, checksum).
    Data,
    /// A file operation failed.
    Io,
    /// Invalid configuration value, key or argument.
    Config,
    /// The requested device, op or derivative is not supported here.
    Unsupported,
    /// Stopped by the user.
    Interrupted,
    /// NaN or infinity that ends the computation, or a failed check of values.
    Numeric,
    /// A bug in Systole itself.
    Bug,
}

/// An error with four parts: what failed, where, why, and a hint what to try.
///
/// ```
/// use systole_base::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::Data, "the image file is cut short")
///     .at("train-images-idx3-ubyte.gz, byte 1024")
///     .because("the header promises 47,040,016 bytes")
///     .hint("download it again");
/// assert!(e.to_string().contains("try: download it again"));
/// ```
#[derive(Clone)]
pub struct Error(Box<ErrorInner>);

#[derive(Clone)]
struct ErrorInner {
    kind: ErrorKind,
    what: String,
    place: Vec<String>,
    why: Vec<String>,
    hint: Option<(String, &'static Location<'static>)>,
}

impl Error {
    /// Creates an error of a category from its message.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error(Box::new(ErrorInner { kind, what: what.into(), place: vec![], why: vec![], hint: None }))
    }

    /// Wraps an I/O error of an action on a path: `Error::io("cannot read", path, e)`. Keeps the message of an
    /// [`Error`] inside it (from an object store).
    pub fn io(action: &str, path: impl AsRef<std::path::Path>, source: std::io::Error) -> Error {
        let e = Error::new(ErrorKind::Io, format!("{action} {}", path.as_ref().display()));
        match source.downcast::<Error>() {
            Ok(Error(inner)) => Error(Box::new(ErrorInner { kind: inner.kind, what: e.0.what, ..*inner })),
            Err(source) => e.because(source.to_string()),
        }
    }

    /// Adds a location to the error: a file and offset, a layer, an argument. Later calls add outer locations.
    pub fn at(mut self, place: impl Into<String>) -> Error {
        self.0.place.push(place.into());
        self
    }

    /// Adds a cause to the error.
    pub fn because(mut self, why: impl Into<String>) -> Error {
        self.0.why.push(why.into());
        self
    }

    /// Sets the hint: an action outside of the program (restore a file, free disk space). The innermost hint wins.
    #[track_caller]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint.get_or_insert((hint.into(), Location::caller()));
        self
    }

    /// Like [`Error::hint`], for a command, option or argument.
    #[track_caller]
    pub fn hint_command(self, hint: impl Into<String>) -> Error {
        self.hint(hint)
    }

    /// Like [`Error::hint`], for a key or value of the configuration.
    #[track_caller]
    pub fn hint_setting(self, hint: impl Into<String>) -> Error {
        self.hint(hint)
    }

    /// Returns the error's category.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the error's message: what went wrong, in one line.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the error's locations, innermost first.
    pub fn places(&self) -> &[String] {
        &self.0.place
    }

    /// Returns the error's causes, innermost first.
    pub fn reasons(&self) -> &[String] {
        &self.0.why
    }

    /// Returns the error's hint: what to try.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_ref().map(|(text, _)| text.as_str())
    }

    /// Returns the source line that made the hint.
    pub fn hint_source(&self) -> Option<&'static Location<'static>> {
        self.0.hint.as_ref().map(|(_, source)| *source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)?;
        if !self.0.place.is_empty() {
            write!(f, "\n  where: {}", self.0.place.join(", in "))?;
        }
        if !self.0.why.is_empty() {
            write!(f, "\n  why: {}", self.0.why.join("; "))?;
        }
        if let Some((hint, _)) = &self.0.hint {
            write!(f, "\n  try: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} error: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// Adds a location to the error of a `Result` as it propagates.
pub trait ResultExt<T> {
    /// `Err(e)` becomes `Err(e.at(place()))`.
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.at(place()))
    }
}

/// Creates an error of a kind with a formatted message: `err!(Data, "{name} has {n} rows").hint(…)`.
#[macro_export]
macro_rules! err {
    ($kind:ident, $($what:tt)+) => {
        $crate::Error::new($crate::ErrorKind::$kind, format!($($what)+))
    };
}

/// Returns the error unless the condition holds: `ensure!(n > 0, err!(Data, "…"))`.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $error:expr $(,)?) => {
        if !$holds {
            return Err($error);
        }
    };
}

/// Panics with a request to report the bug. Only for states that no input can reach.
#[macro_export]
macro_rules! bug {
    ($($arg:tt)*) => {
        panic!("this is a bug in Systole, please report it: {}", format_args!($($arg)*))
    };
}
