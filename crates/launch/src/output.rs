//! Output interface of the launcher.

/// Receives the lines of the launcher and of its processes.
pub trait LaunchOutput: Sync {
    /// Writes a line to standard output.
    fn line(&self, text: &str);
    /// Writes a line to standard error.
    fn note(&self, text: &str);
    /// Whether details are written to the log only.
    fn is_quiet(&self) -> bool;
}
