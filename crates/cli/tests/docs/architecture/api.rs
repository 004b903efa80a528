//! Tests the public API of the library crates against the lists in `docs/api/CRATE.txt`, so that no change goes
//! unnoticed. `SYSTOLE_BLESS=1` rewrites the lists.
//!
//! Reads the pages of `cargo doc --workspace --no-deps`, which `.ci/run` builds before the tests: public items with
//! their fields, variants, inherent methods and implemented traits. Hidden items, traits that every type has,
//! compiler-generated traits and method contracts are not included. Other rustdoc versions word some lines differently,
//! so only the version named in the list is compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Crates, and folders with their sources.
const CRATES: [(&str, &str); 18] = [
    ("systole", "src"),
    ("systole_nn", "crates/nn/src"),
    ("systole_data", "crates/data/src"),
    ("systole_datasets", "crates/datasets/src"),
    ("systole_ir", "crates/ir/src"),
    ("systole_base", "crates/base/src"),
    ("systole_runtime", "crates/runtime/src"),
    ("systole_dist", "crates/dist/src"),
    ("systole_cloud", "crates/cloud/src"),
    ("systole_compile", "crates/compile/src"),
    ("systole_config", "crates/config/src"),
    ("systole_cpu", "crates/cpu/src"),
    ("systole_devices", "crates/devices/src"),
    ("systole_launch", "crates/launch/src"),
    ("systole_pjrt", "crates/pjrt/src"),
    ("systole_progress", "crates/progress/src"),
    ("systole_report", "crates/report/src"),
    ("systole_tpu1", "crates/tpu1/src"),
];

/// The part of a page between two marks.
fn between<'a>(page: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = page.find(from)? + from.len();
    Some(&page[start..start + page[start..].find(to)?])
}

/// All parts of a page between two marks.
fn all_between<'a>(page: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(from).skip(1).filter_map(move |rest| rest.find(to).map(|end| &rest[..end]))
}

/// What HTML shows, in one line.
fn shown(html: &str) -> String {
    let mut rest = html.to_string();
    // The word on a button that unfolds fields.
    while let Some(at) = rest.find("<summary class=\"hideme\">") {
        let end = rest[at..].find("</summary>").map_or(rest.len(), |n| at + n);
        rest.replace_range(at..end, "");
    }
    let mut text = String::new();
    for (i, part) in rest.split('<').enumerate() {
        text += if i == 0 { part } else { part.split_once('>').map_or("", |(_, after)| after) };
    }
    for (name, character) in [("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&quot;", "\""), ("&amp;", "&")]
    {
        text = text.replace(name, character);
    }
    text = text.replace("/* private fields */", "…");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The page without what comes from a heading on.
fn until<'a>(page: &'a str, headings: &[&str]) -> &'a str {
    let end = headings.iter().filter_map(|id| page.find(&format!("<h2 id=\"{id}\""))).min();
    &page[..end.unwrap_or(page.len())]
}

/// An item, from its page: its declaration, then what is its own, then its traits.
fn item(page: &str, path: &str, is_whole: bool, lines: &mut Vec<String>) {
    let (path, _) = path.rsplit_once(".html").expect("a page");
    let place = path.replace('/', "::");
    if !is_whole {
        lines.push(place);
        return;
    }
    let declared = between(page, "<pre class=\"rust item-decl\"><code>", "</code></pre>").map(shown);
    lines.push(format!("{place}  {}", declared.unwrap_or_default()).trim_end().into());
    let own = until(
        page,
        &["trait-implementations", "synthetic-implementations", "blanket-implementations", "implementors"],
    );
    let own = own.find("<h2 id=\"implementations\"").map_or("", |at| &own[at..]);
    let methods: BTreeSet<String> =
        all_between(own, "<h4 class=\"code-header\">", "</h4>").map(shown).collect();
    lines.extend(methods.into_iter().map(|line| format!("    {line}")));
    let traits = until(page, &["synthetic-implementations", "blanket-implementations", "implementors"]);
    let traits = traits.find("<h2 id=\"trait-implementations\"").map_or("", |at| &traits[at..]);
    let name = path.rsplit('.').next().unwrap_or_default();
    let of = |heading: String| {
        let plain =
            heading.strip_prefix("impl ").and_then(|rest| rest.strip_suffix(name)?.strip_suffix(" for "));
        plain.map_or(heading.clone(), String::from)
    };
    let mut all: Vec<String> =
        all_between(traits, "<h3 class=\"code-header\">", "</h3>").map(|h| of(shown(h))).collect();
    // The compiler's own companion of PartialEq.
    all.retain(|name| name != "StructuralPartialEq");
    all.sort();
    lines.extend((!all.is_empty()).then(|| format!("    has {}", all.join(", "))));
}

/// The list of a crate; `Err` says why there is none.
fn surface(docs: &Path, name: &str, sources: &Path) -> Result<String, String> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|_| format!("{} is not there", path.display()))
    };
    let folder = docs.join(name);
    let index = read(folder.join("index.html"))?;
    let changed =
        |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let newest = super::rust_files(sources).iter().map(|file| changed(file)).max();
    if newest > Some(changed(&folder.join("index.html"))) {
        return Err(format!("the documentation of {name} is older than its sources"));
    }
    let version = between(&index, "data-rustdoc-version=\"", " ").ok_or("no version of rustdoc")?;
    let mut lines = vec![format!("# {name}, by rustdoc {version}")];
    lines.extend(
        all_between(&index, "<code>pub use ", "</code>").map(|used| format!("pub use {}", shown(used))),
    );
    let all = read(folder.join("all.html"))?;
    let mut pages: Vec<&str> =
        all_between(&all, "<li><a href=\"", "\"").filter(|link| link.ends_with(".html")).collect();
    // By their paths, not by their kinds.
    pages.sort_by_key(|link| link.rsplit_once('/').map_or(("", *link), |(module, item)| (module, item)));
    for link in pages {
        // The prelude shows items of other crates, whose own lists have the rest of them.
        item(&read(folder.join(link))?, link, !link.starts_with("prelude/"), &mut lines);
    }
    Ok(lines.join("\n") + "\n")
}

#[test]
fn the_public_surface_is_the_one_that_is_listed() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder").join("doc");
    let is_blessed = std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1");
    let mut changes = Vec::new();
    for (name, sources) in CRATES {
        let is = match surface(&docs, name, &root.join(sources)) {
            Ok(is) => is,
            Err(why) => {
                println!(
                    "SKIPPED the_public_surface_is_the_one_that_is_listed: {why}: cargo doc --workspace --no-deps"
                );
                return;
            }
        };
        let file = root.join("docs/api").join(name).with_extension("txt");
        if is_blessed {
            std::fs::create_dir_all(root.join("docs/api")).expect("docs/api");
            std::fs::write(&file, &is).expect("docs/api");
            continue;
        }
        let listed = std::fs::read_to_string(&file).unwrap_or_default();
        let (made, should) = (is.lines().next(), listed.lines().next());
        if !listed.is_empty() && made != should {
            println!(
                "SKIPPED the_public_surface_is_the_one_that_is_listed: {made:?} compares with no {should:?}"
            );
            return;
        }
        let (now, then): (BTreeSet<&str>, BTreeSet<&str>) = (is.lines().collect(), listed.lines().collect());
        changes.extend(now.difference(&then).map(|line| format!("+ {name}: {}", line.trim())));
        changes.extend(then.difference(&now).map(|line| format!("- {name}: {}", line.trim())));
        if is != listed && now == then {
            changes.push(format!("{name}: its lines have another order"));
        }
    }
    assert!(
        changes.is_empty(),
        "the public surface has changed; where it is meant: SYSTOLE_BLESS=1 cargo test --test docs architecture\n{}",
        changes.join("\n")
    );
}

#[test]
fn pages_are_read_as_they_are_shown() {
    let page = "<pre class=\"rust item-decl\"><code>pub struct A&lt;T&gt; {\n<details><summary class=\"hideme\"><span>Show 1 field</span></summary>    pub x: <a href=\"b\">B</a>,\n    /* private fields */\n</details>}</code></pre>\
        <h4 class=\"code-header\">of no item</h4><h2 id=\"implementations\" class=\"x\"><h4 class=\"code-header\">pub fn <a>f</a>(\n    &amp;self,\n)</h4>\
        <h2 id=\"trait-implementations\"><h3 class=\"code-header\">impl Clone for A</h3><h4 class=\"code-header\">fn clone()</h4>\
        <h2 id=\"blanket-implementations\"><h3 class=\"code-header\">impl&lt;T&gt; Any for T</h3>";
    let mut lines = Vec::new();
    item(page, "m/struct.A.html", true, &mut lines);
    assert_eq!(
        lines,
        ["m::struct.A  pub struct A<T> { pub x: B, … }", "    pub fn f( &self, )", "    has Clone"]
    );
}
