//! Generates and compares `docs/internals/hints.md`: the hints that ask for an action outside of the program.

use super::same_or_bless;
use crate::program::hint_sites::{self, HintKind};
use std::collections::BTreeMap;

const HEAD: &str = "# Hints that ask for an action outside of the program

Every error has a hint. The source states its kind: `hint_command` (a command, option or argument), `hint_setting` (a key or
value of the configuration, or an environment variable), or `hint` (an action on files, machines or in a Rust program).

`crates/cli/tests/cli/hints.rs` follows the hints that name commands and settings: it applies them, and the result is a
success or an error not seen before. A hint without a case is an entry in `crates/cli/tests/cli/hints/left.rs` with the reason.
With `SYSTOLE_LOG=1` an error shows the source line of its hint.

Nobody can follow the hints below automatically. The list is generated from the sources of the program, configuration, data
and import crates: `SYSTOLE_BLESS=1 cargo test --test docs documents`.

";

#[test]
fn hints_outside_of_the_program_are_listed() {
    let sites = hint_sites::all();
    let mut page = HEAD.to_string() + "| file | hint |\n|---|---|\n";
    let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for site in sites.iter().filter(|site| site.kind == HintKind::Action) {
        let text = site.text.replace('\\', "").replace('|', "\\|").replace('<', "&lt;");
        let text = if text.contains(' ') { text } else { format!("computed: {text}") };
        let hints = files.entry(&site.file).or_default();
        if !hints.contains(&text) {
            hints.push(text);
        }
    }
    for (file, hints) in files {
        page += &format!("| `{file}` | {} |\n", hints.join("<br>"));
    }
    same_or_bless("docs/internals/hints.md", &page);
}
