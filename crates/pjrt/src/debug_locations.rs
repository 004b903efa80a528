//! Writes layer paths as locations into a program's text, so that compilers' profiles show layers, and reads them back
//! in Systole's plugin. Ops in bodies belong to the surrounding op.

use systole_ir::{DERIVATIVE, Graph};
use systole_runtime::layer_times::{layer_of, location};

/// Start of a location.
const BEGIN: &str = " loc(\"";

/// Prints a graph as the module `module`, with each op's layer path as its location.
pub(crate) fn located(graph: &Graph, text: &str, module: &str) -> String {
    let places = graph.nodes.iter().filter(|n| !matches!(n.op, systole_ir::Op::Parameter(_))).map(|node| {
        let path = location(graph.scope(node), graph.is_derivative(node), node.op.name());
        path.chars().filter(|c| !matches!(c, '"' | '\\' | '\n')).collect::<String>()
    });
    let mut places = places.fuse();
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        match line.strip_prefix("module @").and_then(|named| named.split_once(' ')) {
            Some((_, rest)) => out.extend(["module @", module, " ", rest]),
            None => out.push_str(line),
        }
        if let Some(place) = ends_op(line).then(|| places.next()).flatten() {
            out.extend([BEGIN, &place, "\")"]);
        }
        out.push('\n');
    }
    out
}

/// Whether a line ends an op of the function rather than of a body: the closing line of its bodies.
fn ends_op(line: &str) -> bool {
    let Some(own) = line.strip_prefix("    ").filter(|own| !own.starts_with(' ')) else { return false };
    !own.ends_with('{') && !own.starts_with("return") && !own.starts_with('^')
}

/// Sets the layer paths of a graph from the locations in its StableHLO text, if any.
pub fn with_layers(mut graph: Graph, text: &str) -> Graph {
    if !text.contains(BEGIN) {
        return graph;
    }
    let places = text.lines().filter_map(|line| {
        let (op, place) = line.rsplit_once(BEGIN).map_or((line, None), |(op, place)| (op, Some(place)));
        ends_op(op).then(|| place.and_then(|place| place.strip_suffix("\")")).unwrap_or_default())
    });
    let nodes = graph.nodes.iter_mut().filter(|n| !matches!(n.op, systole_ir::Op::Parameter(_)));
    if graph.scopes.is_empty() {
        graph.scopes.push(String::new());
    }
    for (node, place) in nodes.zip(places) {
        let (layer, is_derivative) = layer_of(place);
        let known = graph.scopes.iter().rposition(|s| s == layer);
        let at = known.unwrap_or_else(|| {
            graph.scopes.push(layer.into());
            graph.scopes.len() - 1
        });
        node.scope = at as u32 | if is_derivative { DERIVATIVE } else { 0 };
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::text::{parse, print_program};
    use systole_ir::{DType, GraphBuilder, TensorType, control_builders, grad};

    #[test]
    fn layers_come_back_and_bodies_have_none() {
        let g = GraphBuilder::new("step");
        let x = g.parameter(TensorType::new(DType::F32, [4]), "x");
        let y = g.scope("dense", || x.tanh());
        let y = g.scope("steps", || {
            let start = g.scalar(DType::F32, 0.0);
            let limit = |s: &[systole_ir::Tensor]| s[1].less(&s[1].scalar_like(3.0));
            control_builders::while_loop(&[&y, &start], limit, |s| vec![s[0].tanh(), &s[1] + 1.0])
        });
        let loss = (&y[0] * &y[0]).sum_all();
        let z = g.scope("head", || x.exp().sum_all());
        let dz = grad(&z, &[&x]).remove(0);
        let graph = g.finish(&[loss, dz]).unwrap();
        let plain = print_program(&graph, &[], None);
        let text = located(&graph, &plain, "train_step");
        assert!(text.starts_with("module @train_step {"), "{text}");
        for place in ["dense/tanh", "steps/while", "head/exponential", "transpose(jvp(head))/multiply"] {
            assert!(text.contains(&format!(" loc(\"{place}\")\n")), "{place}: {text}");
        }
        let read = parse(&text).unwrap();
        let layers = |g: &Graph| {
            let of = |n| (g.scope(n).to_string(), g.is_derivative(n));
            g.nodes.iter().map(of).collect::<Vec<_>>()
        };
        let back = with_layers((*read).clone(), &text);
        let known = |(layer, mark): &(String, bool)| !layer.is_empty() || !mark;
        let same = layers(&graph).into_iter().zip(layers(&back)).filter(|(was, _)| known(was));
        assert!(same.clone().count() > 8 && same.into_iter().all(|(was, is)| was == is), "{text}");
        // Without locations nothing changes.
        assert_eq!(layers(&with_layers((*parse(&plain).unwrap()).clone(), &plain)), layers(&read));
    }
}
