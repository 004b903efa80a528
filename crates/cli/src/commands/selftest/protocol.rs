//! Line protocol between `systole selftest` and its child process: one JSON object per line.

/// Message of the self-test's child process: `{"begin": "op add f32"}`, a check starts.
pub const BEGIN: &str = "begin";
/// Message of the self-test's child process: `{"failure": {"check", "what", …}}`, a check failed.
pub const FAILURE: &str = "failure";
/// Message of the self-test's child process: `{"section": "ops", "result": {…}}`, a section is complete.
pub const SECTION: &str = "section";
