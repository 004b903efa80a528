//! A file that is written: its name, its text, what it is for.

/// A file to write.
pub struct GeneratedFile {
    /// Name in the directory.
    pub name: String,
    /// What it is for, in a few words.
    pub what: &'static str,
    /// Its content.
    pub text: String,
}

impl GeneratedFile {
    pub(crate) fn new(name: &str, what: &'static str, text: String) -> GeneratedFile {
        GeneratedFile { name: name.into(), what, text }
    }

    /// A shell script is executable.
    pub fn is_script(&self) -> bool {
        self.name.ends_with(".sh")
    }
}
