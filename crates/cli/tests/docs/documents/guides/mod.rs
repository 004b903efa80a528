//! Tests of the guides to models, configurations, the command line, training loops, callbacks and programs: their
//! tables are generated from the program, and their examples are run or at least parsed.

mod callbacks;
mod chinese;
mod commands;
mod configuration;
mod models;
mod parity;
mod shown;
mod source;
mod table;

use crate::documents::{read, same_or_bless};

/// The pages that are tested here.
const PAGES: [&str; 12] = [
    "from-keras",
    "from-pytorch",
    "models",
    "fine-tuning",
    "configuration",
    "command-line",
    "training-loops",
    "callbacks",
    "programs",
    "int8",
    "cloud",
    "onnx",
];

fn page(name: &str) -> String {
    format!("docs/guide/{name}.md")
}

/// Puts what is generated between the marks `<!-- NAME -->` and `<!-- end -->` of a page: for each of `parts` its name and text.
fn same_parts(name: &str, parts: &[(&str, String)]) {
    let file = page(name);
    let mut text = read(&file);
    for (mark, generated) in parts {
        let mark = format!("<!-- {mark} -->\n");
        let (before, rest) = text.split_once(&mark).unwrap_or_else(|| panic!("{file}: no {mark}"));
        let (_, after) =
            rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{file}: {mark} has no end"));
        text = format!("{before}{mark}\n{}\n\n<!-- end -->{after}", generated.trim_end());
    }
    same_or_bless(&file, &text);
}
