//! What the child of `systole selftest` tells, a line each.

/// `{"begin": "op add f32"}`: what is being done now.
pub const BEGIN: &str = "begin";
/// `{"failure": {"check", "what", …}}`: something is not as it should be.
pub const FAILURE: &str = "failure";
/// `{"section": "ops", "result": {…}}`: a part is over.
pub const SECTION: &str = "section";
