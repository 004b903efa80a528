//! A generated file of a cloud job: name, purpose and content.

/// A file that `systole cloud` generates.
pub struct GeneratedFile {
    /// Name in the output folder.
    pub name: String,
    /// Purpose, in a few words.
    pub what: &'static str,
    /// Content of the file.
    pub text: String,
}

impl GeneratedFile {
    pub(crate) fn new(name: &str, what: &'static str, text: String) -> GeneratedFile {
        GeneratedFile { name: name.into(), what, text }
    }

    /// Whether the generated file is a shell script, which must be executable.
    pub fn is_script(&self) -> bool {
        self.name.ends_with(".sh")
    }
}
