//! Reads descriptions, types and attributes of named items from the source files. The names come from the program; a
//! name without a description fails the test that asks for it.

use std::fs;
use std::ops::Range;
use std::path::Path;

/// A field, variant or function found in the source.
#[derive(Clone, Debug, Default)]
pub struct Item {
    pub name: String,
    pub ty: String,
    /// First paragraph of the documentation.
    pub doc: String,
    pub attributes: String,
    /// Default written after the type: `0.5` in `rate: f64 = 0.5`.
    pub default: String,
}

/// A source file formatted by `rustfmt`.
pub struct Source {
    pub file: String,
    lines: Vec<String>,
}

/// Whether a line is the beginning of a public function's signature up to its open parenthesis, or more of it.
fn is_open_signature(line: &str) -> bool {
    line.starts_with("pub fn ") && !line.contains(')') && (line.ends_with('(') || line.ends_with(", "))
}

/// Returns the function of a row of `constructors!`: `    fn relu() = ReLU::default();`.
fn constructor(row: &str, made: &str) -> Option<String> {
    let (signature, _) = row.strip_prefix("    fn ")?.split_once(") =")?;
    Some(format!("pub fn {signature}) -> {made} {{"))
}

impl Source {
    pub fn read(file: &str) -> Source {
        let text = fs::read_to_string(Path::new(crate::documents::ROOT).join(file));
        let text = text.unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut lines: Vec<String> = Vec::new();
        let mut made = "";
        for line in text.lines() {
            made = line.strip_prefix("constructors!(").and_then(|l| l.strip_suffix(':')).unwrap_or(made);
            if let Some(constructor) = constructor(line, made) {
                lines.push(constructor);
                continue;
            }
            // A signature over several lines is joined: formatting wraps those with long type names.
            match lines.last_mut().filter(|last| is_open_signature(last)) {
                Some(last) if line.starts_with(')') => {
                    last.truncate(last.trim_end_matches([',', ' ']).len());
                    *last += line;
                }
                Some(last) => *last += &format!("{} ", line.trim()),
                None => lines.push(line.into()),
            }
        }
        Source { file: file.into(), lines }
    }

    /// Reads all files of a folder, recursively.
    pub fn folder(dir: &str) -> Vec<Source> {
        let entries = fs::read_dir(Path::new(crate::documents::ROOT).join(dir)).expect("a folder");
        let names = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let inside = |name: &String| match name.ends_with(".rs") {
            true => vec![Source::read(&format!("{dir}/{name}"))],
            false => Source::folder(&format!("{dir}/{name}")),
        };
        names.iter().flat_map(inside).collect()
    }

    /// First line that starts with `head`, ignoring indentation.
    fn line(&self, head: &str, within: Range<usize>) -> Option<usize> {
        within.into_iter().find(|&i| self.lines[i].trim_start().starts_with(head))
    }

    /// Lines inside the block that starts with the last of `heads`; each head is searched inside the previous one's
    /// block.
    fn body(&self, heads: &[&str]) -> Option<Range<usize>> {
        let mut within = 0..self.lines.len();
        for head in heads {
            let at = self.line(head, within.clone())?;
            let close = format!("{}}}", indentation(&self.lines[at]));
            let end = match self.lines[at].ends_with('{') {
                true => (at + 1..within.end).find(|&i| self.lines[i].starts_with(&close))?,
                false => at + 1,
            };
            within = at + 1..end;
        }
        Some(within)
    }

    /// Lines inside each block that starts with `head`.
    fn bodies<'a>(&'a self, head: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        let is_head = move |i: &usize| self.lines[*i].trim_start().starts_with(head);
        (0..self.lines.len()).filter(is_head).filter_map(|at| {
            let close = format!("{}}}", indentation(&self.lines[at]));
            Some(at + 1..(at + 1..self.lines.len()).find(|&i| self.lines[i].starts_with(&close))?)
        })
    }

    /// Fields or variants of the block that starts with the last of `heads`.
    pub fn items(&self, heads: &[&str]) -> Vec<Item> {
        let Some(body) = self.body(heads) else { return Vec::new() };
        let depth = self.lines[body.clone()].iter().map(|l| indentation(l).len()).min().unwrap_or(0);
        let (mut items, mut now) = (Vec::new(), Vec::new());
        for line in &self.lines[body] {
            let is_own = indentation(line).len() == depth;
            let text = line.trim();
            if !is_own || text.is_empty() {
                continue;
            }
            if text.starts_with("///") || text.starts_with('#') {
                now.push(text.to_string());
                continue;
            }
            if let Some(item) = declared(text) {
                items.push(Item { doc: doc_of(&now), attributes: attributes_of(&now), ..item });
            }
            now.clear();
        }
        items
    }

    /// Documentation above the first line that starts with `head`.
    pub fn doc(&self, head: &str) -> Option<String> {
        let at = self.line(head, 0..self.lines.len())?;
        let above = self.lines[..at].iter().rev().map(|l| l.trim());
        let mut above: Vec<String> =
            above.take_while(|l| l.starts_with("///") || l.starts_with('#')).map(str::to_string).collect();
        above.reverse();
        Some(doc_of(&above))
    }

    /// Remainder of the first line that starts with `head`.
    pub fn rest(&self, head: &str) -> Option<&str> {
        let at = self.line(head, 0..self.lines.len())?;
        self.lines[at].trim_start().strip_prefix(head)
    }

    /// Heads of all lines that contain `part`.
    pub fn lines_with<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().map(|l| l.trim()).filter(move |l| l.contains(part))
    }

    /// Functions of all blocks that start with `head`, including those generated by `field_setters!`: name, arguments,
    /// description.
    pub fn functions(&self, head: &str) -> Vec<Item> {
        let (mut found, mut now) = (Vec::new(), Vec::new());
        for line in self.bodies(head).flat_map(|body| &self.lines[body]) {
            let text = line.trim();
            if text.starts_with("///") || text.starts_with('#') {
                now.push(text.to_string());
                continue;
            }
            let function = text.strip_prefix("pub ").unwrap_or(text).strip_prefix("fn ");
            let function = function.and_then(|t| t.split_once('(')).map(|(name, rest)| {
                (name, rest.split_once(") ->").map_or(rest, |(arguments, _)| arguments).to_string())
            });
            if let Some((name, ty)) = function.or_else(|| setter(text)) {
                found.push(Item { name: name.into(), ty, doc: doc_of(&now), ..Item::default() });
            }
            now.clear();
        }
        found
    }
}

/// Parses a setter of `field_setters!`: `patience(epochs: usize);` or `limit(value: f64) => Some(value);`.
fn setter(text: &str) -> Option<(&str, String)> {
    let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let (name, rest) = text.split_once('(').filter(|(name, _)| is_name(name))?;
    let argument = rest.strip_suffix(';')?.split(" => ").next()?.strip_suffix(')')?;
    argument.split_once(": ").filter(|(name, _)| is_name(name))?;
    Some((name, format!("mut self, {argument}")))
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Parses a declaration: `pub units: usize,`, `recurrent_activation: Activation = Activation::Sigmoid,`, `Huber {` or
/// `Constant(f64),`.
fn declared(text: &str) -> Option<Item> {
    let text = text.strip_prefix("pub ").unwrap_or(text).trim_end_matches([',', ';', '{']).trim_end();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name == "fn" {
        return None;
    }
    let ty = rest.strip_prefix(": ").unwrap_or("");
    let (ty, default) = ty.split_once(" = ").unwrap_or((ty, ""));
    Some(Item { name: name.into(), ty: ty.into(), default: default.into(), ..Item::default() })
}

fn attributes_of(lines: &[String]) -> String {
    lines.iter().filter(|l| l.starts_with('#')).map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// First paragraph of a doc comment, without its `///` marks.
fn doc_of(lines: &[String]) -> String {
    let lines = lines.iter().filter_map(|l| l.strip_prefix("///"));
    let paragraph: Vec<&str> =
        lines.map(str::trim).take_while(|l| !l.is_empty() && !l.starts_with("```")).collect();
    plain(&paragraph.join(" "))
}

/// Removes rustdoc links: ``[`Name`](path)`` and ``[`Name`]`` become `` `Name` ``, `\[` becomes `[`.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let Some(end) = rest[at + 2..].find("`]") else { break };
        out += &rest[..at];
        out += &rest[at + 1..at + 2 + end + 1];
        rest = &rest[at + 2 + end + 2..];
        if rest.starts_with('(') {
            rest = rest.find(')').map_or(rest, |close| &rest[close + 1..]);
        }
    }
    out += rest;
    out.replace("\\[", "[").replace("\\]", "]")
}
