//! Version, commit and cargo features of the program, for `--version`, `systole env` and printed commands.

use std::sync::LazyLock;

/// Commit that the program was built from, if the build script knows it.
pub(crate) const COMMIT: Option<&str> = option_env!("SYSTOLE_COMMIT");

/// Cargo features and whether they are on by default, in the order of `Cargo.toml`.
const FEATURES: [(&str, bool, bool); 9] = [
    ("cloud", cfg!(feature = "cloud"), true),
    ("launch", cfg!(feature = "launch"), true),
    ("tpu1", cfg!(feature = "tpu1"), true),
    ("tui", cfg!(feature = "tui"), true),
    ("object-stores", cfg!(feature = "object-stores"), false),
    ("parquet", cfg!(feature = "parquet"), false),
    ("parquet-zstd", cfg!(feature = "parquet-zstd"), false),
    ("gif", cfg!(feature = "gif"), false),
    ("webp", cfg!(feature = "webp"), false),
];

/// Features that the program was built with.
pub(crate) fn features() -> Vec<&'static str> {
    FEATURES.iter().filter(|(_, is_on, _)| *is_on).map(|(name, ..)| *name).collect()
}

/// Features that `cargo run` has to name to build this program again.
pub(crate) fn added_features() -> Vec<&'static str> {
    FEATURES.iter().filter(|(_, is_on, is_default)| *is_on && !is_default).map(|(name, ..)| *name).collect()
}

/// Returns the text of `systole --version` without the program's name: `0.1.0 (0123456789ab, features: launch, tui)`.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let features = features();
        let features = if features.is_empty() { "none".into() } else { features.join(", ") };
        let commit = COMMIT.map_or_else(String::new, |commit| format!("{commit}, "));
        format!("{} ({commit}features: {features})", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}
