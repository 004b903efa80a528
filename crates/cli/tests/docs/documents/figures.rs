//! Tests the figures of the READMEs, guides, Chinese pages and internals: each measured time, speed, price or accuracy has a date and
//! a processor, or a link to the recorded results.
//!
//! A block is a paragraph, a list or a table. A block with a figure needs evidence: a link into `docs/results/`, or
//! both a date and a processor (for prices and plans a TPU slice or GPU). The evidence may be in the block, in the block
//! before it (a caption), or in the first block of the section. Code blocks, code spans and generated parts are skipped.

use super::{files, links, prose, read, without_code};

/// Units of time, speed and money after a number.
const UNITS: &str = "ms µs s min minutes seconds hours days dollars TFLOP/s GFLOP/s GOP/s GB/s MB/s GiB/s MiB/s \
                     images/s samples/s tokens/s rows/s records/s steps/s";
/// Chinese units of time, money and ratios; the text after them is not separated.
const CHINESE_UNITS: &[&str] = &["毫秒", "秒", "分钟", "小时", "倍", "美元"];
/// What a speed counts: `512 images a second`.
const COUNTED: &[&str] =
    &["images", "pictures", "samples", "tokens", "rows", "records", "steps", "batches", "elements"];
/// What follows `2 times` in a ratio of speeds.
const COMPARED: &[&str] = &["as fast", "as long", "faster", "slower", "longer", "the speed"];
/// Words near a percentage that make it a result.
const RESULTS: &[&str] = &["accura", "准确率", "faster", "slower", "longer"];
const MONTHS: &str = "January February March April May June July August September October November December";
/// Processors, GPUs and TPU slices, as the pages name them.
const PROCESSORS: &str = "Intel|AMD|P100|V100|v100|A100|H100|h100|H200|B200|K80|TPU v|TPU7x|tpu7x-|v2-|v3-|v4-|v5e-|\
                          v5litepod-|v5p-|v6e-|libtpu";

/// Figures that are not measured by this project: page, text, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("docs/guide/cloud.md", "deletes them 15 minutes later", "setting of the script"),
    ("docs/guide/cloud.md", "checks all machines every 20 seconds", "setting of the script"),
    ("docs/guide/cloud.md", "Spot machines give a pod 15 seconds", "GKE's limit"),
    ("docs/guide/data.md", "delays from 0.3 s that double", "setting"),
    ("docs/guide/tour.md", "exit within 25 seconds", "default of SYSTOLE_GRACE"),
    ("docs/guide/tpu.md", "(`--time-limit`, 600 s)", "default of an option"),
    ("docs/guide/tpu-v1.md", "start and end of a batch (29 µs)", "constant of the simulator"),
    ("docs/guide/tutorials.md", "15 to 30 times the speed", "the paper's figure, as the tutorials print it"),
    ("docs/internals/cpu.md", "Workers spin for 100 µs", "setting"),
];

/// A paragraph, list or table.
struct Block {
    /// Its first line.
    line: usize,
    /// Line of the heading above it.
    section: usize,
    text: String,
}

fn pages() -> Vec<String> {
    let readmes = ["README.md", "README.zh-CN.md"].map(String::from);
    let folders = ["docs/guide", "docs/zh", "docs/internals"];
    readmes.into_iter().chain(folders.into_iter().flat_map(|folder| files(folder, ".md"))).collect()
}

/// Blocks of a page, without code blocks and generated parts.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut is_generated, mut is_open) = (0, false, false);
    for (line, text) in prose(page) {
        let mark = text.trim().strip_prefix("<!-- ");
        if let Some(mark) = mark {
            is_generated = !mark.starts_with("end ");
        }
        let is_heading = text.starts_with('#');
        if is_heading {
            section = line;
        }
        let is_text = !is_generated && !is_heading && mark.is_none() && !text.trim().is_empty();
        match blocks.last_mut().filter(|_| is_open) {
            _ if !is_text => {}
            Some(block) => block.text += &format!(" {}", text.trim()),
            None => blocks.push(Block { line, section, text: text.trim().to_string() }),
        }
        is_open = is_text;
    }
    blocks
}

/// Returns what follows the number that a word starts with: nothing, or its unit.
fn after_number(word: &str) -> Option<&str> {
    let number = word.strip_prefix('$').unwrap_or(word);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    is_number.then(|| number.trim_start_matches(|c: char| c.is_ascii_digit() || ".,–-".contains(c)))
}

/// Splits a text into words without punctuation around them.
fn words(text: &str) -> Vec<&str> {
    let is_outer = |c: char| !(c.is_alphanumeric() || "$%".contains(c));
    text.split_whitespace().map(|w| w.trim_matches(is_outer)).collect()
}

/// Finds times, speeds, prices and accuracies in a text without code, and units in the heads of tables.
fn figures(text: &str) -> Vec<String> {
    let words = words(text);
    let mut found = units_of_columns(text);
    for (i, word) in words.iter().enumerate() {
        let Some(glued) = after_number(word) else { continue };
        // `10 ms` or `10ms`
        let after = &words[i + 1..];
        let unit = if glued.is_empty() { after.first().copied().unwrap_or_default() } else { glued };
        let following = after.iter().skip(usize::from(glued.is_empty())).take(2);
        let next = following.copied().collect::<Vec<_>>().join(" ");
        let near = &words[i.saturating_sub(8)..words.len().min(i + 9)];
        let before = words[..i].last().copied().unwrap_or_default();
        let is_alone = word.starts_with('$') || word.starts_with("0.") && before.contains("accura");
        let is_figure = is_alone
            || UNITS.split(' ').any(|u| u == unit)
            || CHINESE_UNITS.iter().any(|u| unit.starts_with(u))
            || COUNTED.contains(&unit) && ["a second", "per second"].contains(&next.as_str())
            || unit == "times" && COMPARED.iter().any(|c| next.starts_with(c))
            || unit == "per" && next.starts_with("hour")
            || unit == "%" && near.iter().any(|w| RESULTS.iter().any(|r| w.contains(r)));
        if is_figure {
            let has_unit = !is_alone && glued.is_empty();
            found.push(if has_unit { format!("{word} {unit}") } else { word.to_string() });
        }
    }
    found
}

/// Returns the units in the head of a table: `| compile time, s |`.
fn units_of_columns(text: &str) -> Vec<String> {
    let head = text.split_once("|-").map_or("", |(head, _)| head);
    let is_unit = |w: &&str| UNITS.split(' ').any(|u| u == *w);
    words(head).into_iter().filter(|_| text.starts_with('|')).filter(is_unit).map(String::from).collect()
}

fn has_date(text: &str) -> bool {
    let is_date = |w: &str| w.len() == 10 && w.starts_with("20") && w[4..].starts_with('-');
    text.split(|c: char| !(c.is_ascii_digit() || c == '-')).any(is_date)
        || MONTHS.split(' ').any(|month| text.contains(&format!("{month} 20")))
}

/// Whether a text links to the results, or names a date and a processor.
fn has_evidence(text: &str) -> bool {
    let is_linked = links(text).iter().any(|link| link.contains("results/"));
    is_linked || has_date(text) && PROCESSORS.split('|').any(|p| text.contains(p))
}

#[test]
fn every_figure_has_a_date_and_a_processor_or_a_link_to_the_results() {
    let mut missing = Vec::new();
    for page in pages() {
        let text = read(&page);
        let blocks = blocks(&text);
        for (i, block) in blocks.iter().enumerate() {
            let mut own = block.text.clone();
            for (_, exception, _) in EXCEPTIONS.iter().filter(|(at, ..)| *at == page) {
                own = own.replace(exception, "");
            }
            let figures = figures(&without_code(&own));
            let before: Vec<&str> =
                blocks[..i].iter().filter(|b| b.section == block.section).map(|b| b.text.as_str()).collect();
            let mut evidence = vec![block.text.as_str()];
            evidence.extend(before.first());
            evidence.extend(before.last());
            if !figures.is_empty() && !has_evidence(&evidence.join("\n")) {
                missing.push(format!("{page}:{}: {}", block.line, figures.join(", ")));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "figures without a link to the results or a date and processor:\n{}",
        missing.join("\n")
    );
}

/// The list of exceptions stays short, and holds no line that is no longer needed.
#[test]
fn exceptions_to_the_rule_of_figures_are_needed() {
    assert!(EXCEPTIONS.len() <= 12, "{} exceptions", EXCEPTIONS.len());
    for (page, exception, reason) in EXCEPTIONS {
        let text = read(page);
        assert!(
            blocks(&text).iter().any(|b| b.text.contains(exception)),
            "{page} does not say `{exception}`"
        );
        assert!(!figures(&without_code(exception)).is_empty() && !reason.is_empty(), "{page}: {exception}");
    }
}

#[test]
fn figures_are_found_and_settings_without_units_are_not() {
    let found = |text: &str| figures(text).join("; ");
    assert_eq!(found("takes 10.6 ms a step, 86,300 samples a second"), "10.6 ms; 86,300 samples");
    assert_eq!(found("it costs $64.53 (**4.50 dollars** per hour)"), "$64.53; 4.50 dollars");
    assert_eq!(found("| 21.8–25.3 s | 1.66 to 2.24 times the speed |"), "21.8–25.3 s; 2.24 times");
    assert_eq!(
        found("accuracy falls from 88.74 % to 88.1 %. 训练速度是 2.24 倍"),
        "88.74 %; 88.1 %; 2.24 倍"
    );
    assert_eq!(found("32 × 32 images in 10 classes, 90 % of the text, 4 times, v2-8, 2026-11-25"), "");
    assert_eq!(found("accuracy 0.8640, then validation accuracy of 0.9"), "0.8640");
    assert_eq!(found("| preset | time, s | |---|---| | mlp | 17.5 |"), "s");
    let page = "# A\n\nMeasured on 2026-11-25 (Intel Xeon).\n\n| 3 s |\n\n<!-- x -->\n4 s\n<!-- end -->\n\n# B\n\n5 s\n";
    let each: Vec<(usize, usize)> = blocks(page).iter().map(|b| (b.line, b.section)).collect();
    assert_eq!(each, [(3, 1), (5, 1), (13, 11)]);
    assert!(
        has_evidence("2 s ([results](../results/gpu.md))") && has_evidence("in November 2026 on an AMD EPYC")
    );
    assert!(!has_evidence("on 2026-11-25") && !has_evidence("on an H100"));
}
