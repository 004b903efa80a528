//! Line protocol between `systole selftest` and its child process: one JSON object per line.

/// `{"begin": "op add f32"}`: a check starts.
pub const BEGIN: &str = "begin";
/// `{"failure": {"check", "what", …}}`: a check failed.
pub const FAILURE: &str = "failure";
/// `{"section": "ops", "result": {…}}`: a section is complete.
pub const SECTION: &str = "section";
