//! Unit tests of private functions in `caller.rs`, kept apart from the source.

use super::is_ours;

#[test]
fn lines_of_users_are_told_from_ours() {
    let here = "crates/base/src/caller.rs";
    for ours in ["crates/nn/src/loss.rs", "src/cli/mod.rs"] {
        assert!(is_ours(here, ours), "{ours}");
        assert!(is_ours(&format!("/x/systole/{here}"), &format!("/x/systole/{ours}")), "{ours}");
        assert!(!is_ours(&format!("/x/systole/{here}"), ours), "{ours}");
    }
    for users in ["crates/nn/tests/fit.rs", "examples/tiny.rs", "tests/runs.rs", "/home/u/p/src/main.rs"] {
        assert!(!is_ours(here, users), "{users}");
    }
    let registry = "/c/registry/src/index/systole-base-0.1.0/src/caller.rs";
    assert!(is_ours(registry, "/c/registry/src/index/systole-nn-0.1.0/src/loss.rs"));
    assert!(!is_ours(registry, "/c/registry/src/index/other-0.1.0/src/lib.rs"));
    assert!(!is_ours(registry, "src/main.rs"));
}
