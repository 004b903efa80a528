//! A page of sections as one HTML file: no script, font or picture from elsewhere, light and dark, and readable on a phone. It is
//! well-formed XML too, so that programs can read it.

use crate::escape::escaped;
use crate::plot::Plot;
use std::fmt::Write;

/// What tells browsers that nothing may be fetched, whatever a text of the page says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
const STYLE: &str = include_str!("style.css");

/// How good a thing is, as a colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tone {
    #[default]
    /// No colour.
    Plain,
    /// Green.
    Good,
    /// Yellow.
    Warn,
    /// Red.
    Bad,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Warn => "warn",
            Tone::Bad => "bad",
        }
    }
}

/// A number that the page begins with.
pub struct HtmlTile {
    /// What is counted.
    pub label: String,
    /// The number, formatted.
    pub value: String,
    /// What is said of it.
    pub note: String,
}

/// A length of a whole.
pub struct Bar {
    /// Label of the bar.
    pub name: String,
    /// 0 to 1.
    pub share: f64,
    /// Text behind the bar.
    pub told: String,
}

/// One thing with a picture or a text.
pub struct Card {
    /// The bytes of a PNG file.
    pub png: Option<Vec<u8>>,
    /// A text or a row of a table.
    pub text: Option<String>,
    /// Lines below it: a word, and what is said.
    pub lines: Vec<(String, String)>,
}

/// A part of a section.
pub enum SectionBlock {
    /// A paragraph.
    Text(String),
    /// Charts beside each other.
    Plots(Vec<Plot>),
    /// The first row is the heads, unless they are all empty; columns from the second on are numbers where `numbers`.
    Table {
        /// Cells of each row.
        rows: Vec<Vec<String>>,
        /// Whether columns from the second on are numbers.
        numbers: bool,
    },
    /// Horizontal bars.
    Bars(Vec<Bar>),
    /// Cards in a grid.
    Cards(Vec<Card>),
    /// A picture as SVG, which is this crate's own.
    Svg(String),
    /// Preformatted text.
    Code(String),
    /// Behind a line that opens it.
    Folded(String, Box<SectionBlock>),
}

/// A heading and what stands below it.
pub struct HtmlSection {
    /// Anchor in links.
    pub id: &'static str,
    /// The heading.
    pub title: String,
    /// Content in order.
    pub blocks: Vec<SectionBlock>,
}

/// A page that is being put together.
#[derive(Default)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// The first sentence.
    pub lead: String,
    /// What is to be said of it all, and how good that is.
    pub verdicts: Vec<(Tone, String)>,
    /// Numbers at the top.
    pub tiles: Vec<HtmlTile>,
    /// Sections in order.
    pub sections: Vec<HtmlSection>,
    /// The last line.
    pub foot: String,
}

impl Page {
    /// Adds a section, unless it is empty.
    pub fn add(&mut self, id: &'static str, title: &str, blocks: Vec<SectionBlock>) {
        if !blocks.is_empty() {
            self.sections.push(HtmlSection { id, title: title.into(), blocks });
        }
    }

    /// The whole file.
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n\
             <p class=\"lead\">{}</p>\n",
            escaped(&self.lead)
        );
        for (tone, text) in &self.verdicts {
            let _ = writeln!(page, "<p class=\"verdict {}\">{}</p>", tone.class(), escaped(text));
        }
        page += &self.tiles();
        let links: Vec<String> = self
            .sections
            .iter()
            .map(|s| format!("<a href=\"#{}\">{}</a>", s.id, escaped(&s.title)))
            .collect();
        let _ = writeln!(page, "<nav>{}</nav>\n</header>\n<main>", links.join("\n"));
        for section in &self.sections {
            let _ = writeln!(page, "<section id=\"{}\">\n<h2>{}</h2>", section.id, escaped(&section.title));
            section.blocks.iter().for_each(|block| block.write(&mut page));
            page += "</section>\n";
        }
        let _ = write!(page, "</main>\n<footer>{}</footer>\n</body>\n</html>\n", escaped(&self.foot));
        page
    }

    fn tiles(&self) -> String {
        let mut text = String::from("<div class=\"tiles\">\n");
        for HtmlTile { label, value, note } in &self.tiles {
            let _ = writeln!(
                text,
                "<div class=\"tile\"><span class=\"label\">{}</span><span class=\"value\">{}</span>\
                 <span class=\"note\">{}</span></div>",
                escaped(label),
                escaped(value),
                escaped(note)
            );
        }
        text + "</div>\n"
    }
}

impl SectionBlock {
    fn write(&self, page: &mut String) {
        let _ = match self {
            SectionBlock::Text(text) => writeln!(page, "<p>{}</p>", escaped(text)),
            SectionBlock::Plots(plots) => {
                let all: Vec<String> = plots.iter().map(Plot::figure).collect();
                writeln!(page, "<div class=\"plots\">\n{}</div>", all.concat())
            }
            SectionBlock::Table { rows, numbers } => writeln!(page, "{}", table(rows, *numbers)),
            SectionBlock::Bars(bars) => writeln!(page, "{}", bars_of(bars)),
            SectionBlock::Cards(cards) => {
                let all: Vec<String> = cards.iter().map(card).collect();
                writeln!(page, "<div class=\"cards\">\n{}</div>", all.concat())
            }
            SectionBlock::Svg(svg) => writeln!(page, "<div class=\"wide\">{svg}</div>"),
            SectionBlock::Code(text) => writeln!(page, "<pre tabindex=\"0\">{}</pre>", escaped(text)),
            SectionBlock::Folded(title, block) => {
                let _ = writeln!(page, "<details><summary>{}</summary>", escaped(title));
                block.write(page);
                writeln!(page, "</details>")
            }
        };
    }
}

fn table(rows: &[Vec<String>], numbers: bool) -> String {
    let kind = if numbers { " class=\"numbers\"" } else { "" };
    let mut text = format!("<div class=\"wide\"><table{kind}>\n");
    let has_head = rows.first().is_some_and(|head| head.iter().any(|h| !h.is_empty()));
    for (i, row) in rows.iter().enumerate().skip(usize::from(!has_head)) {
        let cell = if i == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|c| format!("<{cell}>{}</{cell}>", escaped(c))).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</table></div>"
}

fn bars_of(bars: &[Bar]) -> String {
    let mut text = String::from("<div class=\"bars\">\n");
    for Bar { name, share, told } in bars {
        let percent = 100.0 * if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let _ = writeln!(
            text,
            "<div class=\"bar\"><span class=\"name\">{}</span><span class=\"track\"><i style=\"width:{percent:.1}%\"></i></span>\
             <span class=\"told\">{}</span></div>",
            escaped(name),
            escaped(told)
        );
    }
    text + "</div>"
}

fn card(Card { png, text, lines }: &Card) -> String {
    let mut html = String::from("<figure class=\"card\">");
    if let Some(png) = png {
        let _ = write!(html, "<img alt=\"\" src=\"data:image/png;base64,{}\"/>", base64(png));
    }
    if let Some(text) = text {
        let _ = write!(html, "<pre tabindex=\"0\">{}</pre>", escaped(text));
    }
    html += "<figcaption>";
    for (word, said) in lines {
        let _ = write!(html, "<span><b>{}</b> {}</span>", escaped(word), escaped(said));
    }
    html + "</figcaption></figure>\n"
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |i: usize| three.get(i).copied().map_or(0, u32::from);
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for k in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * k) & 63) as usize];
            text.push(if k <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_the_rfc_has_them() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

    #[test]
    fn texts_cannot_leave_their_place() {
        assert_eq!(
            escaped("<b a='1' c=\"2\">&\u{1b}[0m"),
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd}[0m"
        );
        let mut page = Page { title: "<script>alert(1)</script>".into(), ..Page::default() };
        page.add("a", "a & b", vec![SectionBlock::Code("</pre><img src=x>".into())]);
        let html = page.html();
        assert!(!html.contains("<script") && !html.contains("<img") && html.contains("a &amp; b"), "{html}");
    }
}
