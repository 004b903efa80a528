//! The one error type: what went wrong, where, why, and what to try.
//!
//! Library code returns these and never panics on input; [`bug!`](crate::bug) is for the impossible.

use std::fmt;

/// `std::result::Result` with Systole's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong; decides exit codes and whether retrying can help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A graph cannot be built: shapes or element types do not fit.
    Graph,
    /// Input data is not what it says it is (wrong magic, count, label, checksum).
    Data,
    /// The operating system refused a file operation.
    Io,
    /// A configuration value, key or argument is wrong.
    Config,
    /// What was asked for exists in principle but not here (no such device, op, derivative).
    Unsupported,
    /// The user asked to stop.
    Interrupted,
    /// Numbers left the finite range where that ends the work.
    Numeric,
    /// A defect of Systole itself.
    Bug,
}

/// An error with its four answers: what, where, why, what to try.
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
    hint: Option<String>,
}

impl Error {
    /// An error that says what went wrong.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error(Box::new(ErrorInner {
            kind,
            what: what.into(),
            place: Vec::new(),
            why: Vec::new(),
            hint: None,
        }))
    }

    /// Wraps an operating-system error of an action on a path: `Error::io("cannot read", path, e)`. What an [`Error`] within
    /// it says (of an object store) is kept.
    pub fn io(action: &str, path: impl AsRef<std::path::Path>, source: std::io::Error) -> Error {
        let e = Error::new(ErrorKind::Io, format!("{action} {}", path.as_ref().display()));
        match source.downcast::<Error>() {
            Ok(Error(inner)) => Error(Box::new(ErrorInner { kind: inner.kind, what: e.0.what, ..*inner })),
            Err(source) => e.because(source.to_string()),
        }
    }

    /// Adds where: a file and offset, a layer, an argument. Later calls add wider places.
    pub fn at(mut self, place: impl Into<String>) -> Error {
        self.0.place.push(place.into());
        self
    }

    /// Adds why.
    pub fn because(mut self, why: impl Into<String>) -> Error {
        self.0.why.push(why.into());
        self
    }

    /// Sets what to try; the first (innermost) hint wins.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint.get_or_insert(hint.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What went wrong, one line.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Where, innermost first.
    pub fn places(&self) -> &[String] {
        &self.0.place
    }

    /// Why, innermost first.
    pub fn reasons(&self) -> &[String] {
        &self.0.why
    }

    /// What to try.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
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
        if let Some(hint) = &self.0.hint {
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

/// Adds a place to the error of a result as it travels outward.
pub trait ResultExt<T> {
    /// `Err(e)` becomes `Err(e.at(place()))`.
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.at(place()))
    }
}

/// Panics with a request to report the defect. Only for states that no input can reach.
#[macro_export]
macro_rules! bug {
    ($($arg:tt)*) => {
        panic!("this is a defect of Systole, please report it: {}", format_args!($($arg)*))
    };
}
