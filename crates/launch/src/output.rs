//! Where a launch writes its lines.

/// Where the launcher's own lines and those of its processes go.
pub trait LaunchOutput: Sync {
    /// Writes a line to standard output.
    fn line(&self, text: &str);
    /// Writes a line to standard error.
    fn note(&self, text: &str);
    /// Whether details are for the log only.
    fn is_quiet(&self) -> bool;
}
