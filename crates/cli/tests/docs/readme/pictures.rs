//! Draws the README's images from program output: a recorded run (`docs/pictures/record`), and the page of a plan,
//! which is generated each time.

use super::{READMES, ROOT, read, same_or_bless, scratch};
use std::fmt::Write;
use std::process::Command;

/// The recorded run: processor and date in the first line, then the screen.
const RUN: &str = "docs/pictures/run.txt";

const MONO: &str = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace";
const SANS: &str = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,DejaVu Sans,sans-serif";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn plain(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

fn svg(width: usize, height: usize, title: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\">\n<title>{}</title>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Columns of the screen that is drawn: longer lines go on below, as in a terminal.
const COLUMNS: usize = 112;

fn folded(text: &str) -> String {
    let fold = |line: &str| -> String {
        let letters: Vec<char> = line.chars().collect();
        letters.chunks(COLUMNS).map(|c| c.iter().collect::<String>()).collect::<Vec<_>>().join("\n")
    };
    text.lines().map(fold).collect::<Vec<_>>().join("\n")
}

/// A command over several lines, each no wider than the picture of a plan.
fn shell_lines(command: &str) -> Vec<String> {
    let mut lines = vec!["$".to_string()];
    for word in command.split_whitespace() {
        let last = lines.last_mut().expect("a line");
        match last.len() + word.len() > 76 && word.starts_with("--") {
            true => {
                *last += " \\";
                lines.push(format!("    {word}"));
            }
            false => *last += &format!(" {word}"),
        }
    }
    lines
}

/// A screen: one line of text below the other, in a face whose letters have one width.
fn screen(title: &str, text: &str) -> String {
    let text = &folded(text);
    let (advance, leading, margin) = (7.2, 18, 16);
    let widest = text.lines().map(|l| l.chars().count()).max().unwrap_or(0);
    let width = (widest as f64 * advance) as usize + 2 * margin;
    let height = text.lines().count() * leading + 2 * margin;
    let mut body = format!(
        "<style>text{{font:12px {MONO};fill:#d6deeb;white-space:pre}}.c{{fill:#fff;font-weight:700}}.e{{fill:#7fdbca}}\
         .t{{fill:#addb67}}.r{{fill:#8796a8}}</style>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0b2239\"/>\n"
    );
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty()) {
        let class = match line {
            l if l.starts_with("# ") => " class=\"r\"",
            l if l.starts_with("$ ") => " class=\"c\"",
            l if l.starts_with("Epoch ") => " class=\"e\"",
            l if l.starts_with("Test: ") || l.starts_with("Best: ") => " class=\"t\"",
            _ => "",
        };
        let (y, length) = (margin + leading * i + 13, line.chars().count() as f64 * advance);
        writeln!(
            body,
            "<text x=\"{margin}\" y=\"{y}\" textLength=\"{length:.0}\" lengthAdjust=\"spacingAndGlyphs\" \
             xml:space=\"preserve\"{class}>{}</text>",
            escaped(line)
        )
        .expect("a string");
    }
    svg(width, height, title, &body)
}

/// What is told about the recorded run, and its screen.
fn recorded() -> (String, String) {
    let text = read(RUN);
    let about = text.lines().next().expect("a line about the run").trim_start_matches("# ");
    (about.to_string(), text.trim_end().to_string())
}

#[test]
fn the_picture_of_a_run_is_the_run_that_was_recorded() {
    let (about, text) = recorded();
    let title = format!("A training run of Systole: {about}");
    same_or_bless("docs/pictures/run.svg", &screen(&title, &text));
    assert!(read("docs/README.md").contains("pictures/run.svg"), "docs/README.md does not show the run");
    // The READMEs show the run without the commands that it suggests at its end.
    let shown = text.split("\n\n").next().expect("the run");
    for page in READMES {
        let whole = read(page);
        let (before, rest) = whole.split_once("<!-- run -->\n").expect("the mark <!-- run -->");
        let (_, after) = rest.split_once("<!-- end -->").expect("the mark <!-- end -->");
        same_or_bless(page, &format!("{before}<!-- run -->\n```text\n{shown}\n```\n<!-- end -->{after}"));
    }
}

/// The lines that the record begins with words are lines that the program of today prints.
#[test]
fn the_recorded_run_has_the_lines_of_a_run_of_today() {
    let dir = scratch("readme-run");
    let small = ["--set=layers.0.filters=2", "--epochs=1", "--steps-per-epoch=2", "--batch-size=16"];
    // As the last epoch of the recorded run: with validation.
    let validated = ["--set=fit.validation_freq=1", "--set=data.test_samples=50"];
    let output = Command::new(env!("CARGO_BIN_EXE_systole"))
        .args(["train", "glyphs"])
        .args(small)
        .args(validated)
        .env("SYSTOLE_CACHE", dir.join("cache"))
        .current_dir(&dir)
        .output()
        .expect("the program starts");
    let today = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_string();
    let words = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|l| !l.starts_with([' ', '$', '#'])).map(first);
        lines.filter(|w| !w.is_empty() && w != "Note:").collect()
    };
    let (_, text) = recorded();
    let missing: Vec<String> = words(&text).into_iter().filter(|w| !words(&today).contains(w)).collect();
    assert!(
        missing.is_empty(),
        "{missing:?} are no lines of today: docs/pictures/record PROGRAM PROCESSOR\n{today}"
    );
}

/// What the picture of a plan shows of its page.
struct Page {
    title: String,
    length: String,
    advice: Vec<String>,
    /// Machine, width of each part in percent, whether it is too much, words.
    runs: Vec<(String, Vec<f64>, bool, String)>,
    memory: Vec<(String, Vec<f64>, bool, String)>,
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    text.split(from).skip(1).filter_map(|rest| Some(rest.split_once(to)?.0)).collect()
}

fn bars(section: &str) -> Vec<(String, Vec<f64>, bool, String)> {
    let row = |row: &str| {
        let cells = between(row, "<td>", "</td>");
        let width = |w: &str| w.parse().expect("a width");
        let parts = between(cells[1], "width:", "%").into_iter().map(width).collect();
        (plain(cells[0]), parts, cells[1].contains("bar over"), plain(cells[2]))
    };
    between(section, "<tr>", "</tr>").into_iter().map(row).collect()
}

impl Page {
    fn of(html: &str) -> Page {
        let section = |name: &str| {
            let rest =
                html.split_once(&format!("<h2>{name}</h2>")).unwrap_or_else(|| panic!("no section {name}")).1;
            rest.split_once("</div>").expect("a table").0.to_string()
        };
        let advice = between(html, "<div class=\"box\">", "</div>")[0];
        Page {
            title: plain(between(html, "<h1>", "</h1>")[0]),
            length: plain(between(html, "<p>", "</p>")[0]),
            advice: between(advice, "<p>", "</p>").into_iter().map(plain).collect(),
            runs: bars(&section("Time and cost of the run")),
            memory: bars(&section("Memory per device")),
        }
    }

    fn svg(&self, command: &str) -> String {
        const WIDTH: usize = 760;
        let mut body = String::new();
        let mut y = 0;
        let mut text = |body: &mut String, down: usize, class: &str, words: &str| {
            y += down;
            writeln!(
                body,
                "<text x=\"20\" y=\"{y}\" xml:space=\"preserve\" class=\"{class}\">{}</text>",
                escaped(words)
            )
            .expect("a string");
            y
        };
        text(&mut body, 10, "m", "");
        for line in shell_lines(command) {
            text(&mut body, 18, "m", &line);
        }
        text(&mut body, 30, "h", &self.title);
        text(&mut body, 20, "s", &self.length);
        for line in &self.advice {
            text(&mut body, 24, "a", line);
        }
        for (heading, rows) in [("Time and cost of the run", &self.runs), ("Memory per device", &self.memory)]
        {
            text(&mut body, 34, "b", heading);
            for (machine, parts, over, words) in rows {
                let y = text(&mut body, 22, "", machine);
                body += &bar(y, parts, *over);
                writeln!(body, "<text x=\"520\" y=\"{y}\">{}</text>", escaped(words)).expect("a string");
            }
        }
        let end =
            text(&mut body, 30, "s", "Estimates without a measurement behind them: take them as ranges.");
        let style = format!(
            "<style>text{{font:13px {SANS};fill:#1c2733}}.m{{font:12px {MONO};fill:#57606a}}.h{{font-size:17px;font-weight:700}}\
             .b{{font-weight:700}}.s{{fill:#57606a;font-size:12px}}.a{{fill:#1a5f9e;font-weight:600}}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{0}\" rx=\"8\" fill=\"#fff\" stroke=\"#d0d7de\"/>\n",
            end + 20
        );
        svg(WIDTH, end + 20, &format!("A plan of Systole: {}", self.title), &(style + &body))
    }
}

fn bar(y: usize, parts: &[f64], over: bool) -> String {
    const X: f64 = 150.0;
    const WIDTH: f64 = 350.0;
    let top = y - 11;
    let mut text =
        format!("<rect x=\"{X}\" y=\"{top}\" width=\"{WIDTH}\" height=\"14\" fill=\"#eaeef2\"/>\n");
    let (mut x, colour) = (X, if over { "#c4453b" } else { "#3b82c4" });
    for (i, part) in parts.iter().enumerate().filter(|(_, p)| **p >= 0.05) {
        let (width, opacity) = (part / 100.0 * WIDTH, [1.0, 0.8, 0.62, 0.48, 0.36, 0.26, 0.18][i.min(6)]);
        writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\" opacity=\"{opacity}\"/>"
        )
        .expect("a string");
        x += width;
    }
    text
}

#[test]
fn the_picture_of_a_plan_is_what_its_page_says() {
    let command = "systole plan resnet50 --targets v2-8,v5e-16,v6e-8,8*h100 --batch-size 1024 --precision mixed_bfloat16 --epochs 90";
    let page = scratch("readme-page").join("plan.html");
    let output = Command::new(env!("CARGO_BIN_EXE_systole"))
        .args(command.split_whitespace().skip(1))
        .arg("--html")
        .arg(&page)
        .current_dir(ROOT)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&page).expect("the page");
    same_or_bless("docs/pictures/plan.svg", &Page::of(&html).svg(&format!("{command} --html plan.html")));
}
