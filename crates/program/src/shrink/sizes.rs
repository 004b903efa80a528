//! Shrinks one array size everywhere in a program: in types and in lists of sizes and indices. Edits the program's text
//! and parses it again, so that inconsistent programs are rejected.

use std::collections::BTreeSet;
use std::sync::Arc;
use systole_base::{Literal, LiteralBuilder, TensorType};
use systole_ir::{Graph, text};

/// Returns the array sizes of a graph that can shrink, largest first.
pub(super) fn of(graph: &Graph) -> Vec<usize> {
    let all = graph.nodes.iter().flat_map(|n| &n.outs).flat_map(|ty| ty.shape.iter().copied());
    let sizes: BTreeSet<usize> = all.filter(|d| *d > 1).collect();
    sizes.into_iter().rev().collect()
}

/// Returns the graph with `size` replaced by `smaller`; arguments keep their first elements. `None` if it does not
/// parse.
pub(super) fn with(
    graph: &Graph,
    arguments: &[Literal],
    (size, smaller): (usize, usize),
) -> Option<(Arc<Graph>, Vec<Literal>)> {
    let written = replaced(&text::print(graph), size, smaller);
    let graph = text::parse(&written).ok()?;
    let cropped = arguments.iter().zip(graph.param_types()).map(|(x, ty)| crop(x, ty));
    let arguments = cropped.collect::<Option<Vec<_>>>()?;
    Some((graph, arguments))
}

/// Replaces a number in sizes of types (`tensor<…>`) and elements of lists (`array<i64: …>`).
fn replaced(text: &str, size: usize, smaller: usize) -> String {
    let (size, smaller) = (size.to_string(), smaller.to_string());
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let next =
            ["tensor<", "array<i64: "].iter().filter_map(|open| Some((rest.find(open)? + open.len(), *open)));
        let Some((begin, open)) = next.min() else { break };
        let Some(end) = rest.get(begin..).and_then(|r| r.find('>')).map(|n| begin + n) else { break };
        let (before, inside, after) = (&rest[..begin], &rest[begin..end], &rest[end..]);
        let between = if open == "tensor<" { "x" } else { ", " };
        let each = inside.split(between).map(|word| if word == size { smaller.as_str() } else { word });
        out += before;
        out += &each.collect::<Vec<_>>().join(between);
        rest = after;
    }
    out + rest
}

/// Returns the leading elements along each dimension.
fn crop(x: &Literal, ty: TensorType) -> Option<Literal> {
    if *x.ty() == ty {
        return Some(x.clone());
    }
    let fits = x.shape().rank() == ty.rank() && x.shape().iter().zip(ty.shape.iter()).all(|(a, b)| a >= b);
    if !fits || x.dtype() != ty.dtype {
        return None;
    }
    let shape = ty.shape.clone();
    let mut out = LiteralBuilder::new(ty);
    for (at, index) in shape.indices().enumerate() {
        out.set(at, x.at(&index));
    }
    Some(out.finish())
}
