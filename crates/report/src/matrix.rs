//! Confusion matrix as SVG, with recall and precision per class and the most confused pairs.

use crate::escape::escaped;
use crate::html::SectionBlock;
use std::fmt::Write;
use systole_nn::grouped;

/// Maximum number of classes for a drawn matrix.
const MOST: usize = 60;
/// Maximum number of classes for numbers in the cells.
const NUMBERED: usize = 16;
/// Number of pairs in the table of confusions.
const PAIRS: usize = 12;
/// Maximum length of a class name.
const NAME: usize = 14;

/// Returns the matrix, recall and precision per class, and the most confused pairs.
pub(super) fn blocks(names: &[String], counts: &[Vec<u64>]) -> Vec<SectionBlock> {
    let all: u64 = counts.iter().flatten().sum();
    if all == 0 {
        return Vec::new();
    }
    let right: u64 = counts.iter().enumerate().filter_map(|(i, row)| row.get(i)).sum();
    let told = format!(
        "Rows: true class; columns: predicted class. {} of {} are correct ({:.2} %).",
        grouped(right),
        grouped(all),
        100.0 * right as f64 / all as f64
    );
    let mut blocks = vec![SectionBlock::Text(told)];
    match names.len() <= MOST {
        true => blocks.push(SectionBlock::Svg(drawn(names, counts))),
        false => blocks.push(SectionBlock::Text(format!("No matrix is drawn for {} classes.", names.len()))),
    }
    blocks.extend(pairs(names, counts));
    blocks.push(SectionBlock::Folded("Per class".into(), Box::new(classes(names, counts))));
    blocks
}

fn cut(name: &str) -> String {
    match name.chars().count() > NAME {
        true => name.chars().take(NAME - 1).chain(['…']).collect(),
        false => name.into(),
    }
}

fn drawn(names: &[String], counts: &[Vec<u64>]) -> String {
    let n = names.len() as f64;
    let cell = if names.len() <= NUMBERED { 34.0 } else { (600.0 / n).max(10.0) };
    let longest = names.iter().map(|n| cut(n).chars().count()).max().unwrap_or(0) as f64;
    let side = 14.0 + 7.0 * longest;
    let (width, height) = (side + n * cell + 4.0, side + n * cell + 4.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"Confusion matrix\" \
         style=\"max-width:{:.0}px\">",
        width * 1.25
    );
    for (i, row) in counts.iter().enumerate() {
        let of: u64 = row.iter().sum();
        let middle = side + (i as f64 + 0.5) * cell;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\
             <text transform=\"translate({:.1} {:.1}) rotate(-90)\">{name}</text>",
            side - 6.0,
            middle + 4.0,
            middle + 4.0,
            side - 6.0,
            name = escaped(&cut(&names[i]))
        );
        for (k, count) in row.iter().enumerate() {
            let (x, y) = (side + k as f64 * cell, side + i as f64 * cell);
            let share = if of > 0 { *count as f64 / of as f64 } else { 0.0 };
            // The square root keeps small shares visible.
            let strength = 0.08 + 0.72 * share.sqrt();
            let kind = if i == k { "right" } else { "wrong" };
            let (kind, strength) = if *count == 0 { ("none", 0.5) } else { (kind, strength) };
            let _ = write!(
                svg,
                "<rect class=\"cell {kind}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" fill-opacity=\"{strength:.2}\">\
                 <title>{} predicted as {}: {count} of {of}</title></rect>",
                escaped(&names[i]),
                escaped(names.get(k).map_or("", String::as_str))
            );
            if names.len() <= NUMBERED && *count > 0 {
                let _ = write!(
                    svg,
                    "<text class=\"count\" x=\"{:.1}\" y=\"{:.1}\">{count}</text>",
                    x + cell / 2.0,
                    y + cell / 2.0 + 4.0
                );
            }
        }
    }
    svg + "</svg>"
}

fn pairs(names: &[String], counts: &[Vec<u64>]) -> Option<SectionBlock> {
    let all = counts.iter().enumerate().flat_map(|(i, row)| {
        let of: u64 = row.iter().sum();
        row.iter().enumerate().map(move |(k, n)| (i, k, *n, of))
    });
    let mut wrong: Vec<_> = all.filter(|(i, k, n, _)| i != k && *n > 0).collect();
    wrong.sort_by_key(|(.., n, _)| std::cmp::Reverse(*n));
    wrong.truncate(PAIRS);
    let head = ["true", "predicted", "times", "of", "share"].map(String::from).to_vec();
    let row = |(i, k, n, of): (usize, usize, u64, u64)| {
        vec![
            names[i].clone(),
            names[k].clone(),
            grouped(n),
            grouped(of),
            format!("{:.1} %", 100.0 * n as f64 / of as f64),
        ]
    };
    let rows: Vec<_> = [head].into_iter().chain(wrong.into_iter().map(row)).collect();
    (rows.len() > 1).then(|| {
        SectionBlock::Folded(
            "Most confused classes".into(),
            Box::new(SectionBlock::Table { rows, numbers: false }),
        )
    })
}

/// Recall and precision per class.
fn classes(names: &[String], counts: &[Vec<u64>]) -> SectionBlock {
    let head = ["class", "tested", "recall", "precision"].map(String::from).to_vec();
    let share = |n: u64, of: u64| {
        if of > 0 { format!("{:.1} %", 100.0 * n as f64 / of as f64) } else { "–".into() }
    };
    let row = |(i, name): (usize, &String)| {
        let (of, taken) = (counts[i].iter().sum(), counts.iter().filter_map(|row| row.get(i)).sum());
        let right = counts[i].get(i).copied().unwrap_or(0);
        vec![name.clone(), grouped(of), share(right, of), share(right, taken)]
    };
    let rows = [head].into_iter().chain(names.iter().enumerate().map(row)).collect();
    SectionBlock::Table { rows, numbers: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_classes_or_none_no_matrix_is_drawn() {
        assert!(blocks(&[], &[]).is_empty());
        let names: Vec<String> = (0..80).map(|i| format!("<{i}>")).collect();
        let mut counts = vec![vec![0; 80]; 80];
        counts[3][4] = 5;
        assert!(blocks(&names, &counts).iter().all(|b| !matches!(b, SectionBlock::Svg(_))));
        let few = drawn(&names[..2], &[vec![3, 1], vec![0, 0]]);
        assert!(few.contains("&lt;0&gt; predicted as &lt;1&gt;: 1 of 4") && !few.contains("NaN"), "{few}");
    }
}
