//! A graph for people: one line for each node, with the layer it belongs to. StableHLO text is the exact form.

use std::fmt::Write;
use systole_ir::op::attr::Field;
use systole_ir::op::{Attr, Lowering};
use systole_ir::{Graph, ValueId};

/// The graph's nodes, its parameters and results by name.
pub(crate) fn listing(graph: &Graph) -> String {
    let mut out = String::new();
    let moves = graph.nodes.len() - graph.params.len();
    let _ = writeln!(
        out,
        "# {} parameters, {moves} operations, {} results, {:.3} GFLOP",
        graph.params.len(),
        graph.results.len(),
        flops(graph) / 1e9
    );
    write_nodes(&mut out, graph, "");
    out
}

fn write_nodes(out: &mut String, graph: &Graph, indent: &str) {
    for (p, name) in graph.params.iter().zip(&graph.param_names) {
        let _ = writeln!(out, "{indent}{} = parameter {name} : {}", value(graph, *p), graph.ty(*p));
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        let rule = node.op.rule();
        if graph.params.iter().any(|p| p.index() == i) {
            continue;
        }
        let args: Vec<String> = node.inputs.iter().map(|v| value(graph, *v)).collect();
        let types: Vec<String> = node.outs.iter().map(|t| t.to_string()).collect();
        // The numbers of a large constant say nothing.
        let attrs: Vec<String> = match rule.lower() {
            Lowering::Leaf => Vec::new(),
            _ => rule.attrs().iter().map(|(n, a)| format!(", {n} = {}", short(&attribute(a)))).collect(),
        };
        let scope = graph.scope(node);
        let scope = if scope.is_empty() { String::new() } else { format!("  # {scope}") };
        let call = format!("{}({}{})", rule.name(), args.join(", "), attrs.concat());
        let _ = writeln!(out, "{indent}%{i} = {call} : {}{scope}", types.join(", "));
        for region in rule.regions() {
            let _ = writeln!(out, "{indent}  {{");
            write_nodes(out, region, &format!("{indent}    "));
            let _ = writeln!(out, "{indent}  }}");
        }
    }
    let results: Vec<String> = graph.results.iter().map(|v| value(graph, *v)).collect();
    let _ = writeln!(out, "{indent}return {}", results.join(", "));
}

fn value(graph: &Graph, v: ValueId) -> String {
    let many = graph.nodes[v.index()].outs.len() > 1;
    if many { format!("%{}#{}", v.index(), v.out) } else { format!("%{}", v.index()) }
}

fn attribute(a: &Attr) -> String {
    match a {
        Attr::Int(n) => n.to_string(),
        Attr::Int32(n) => n.to_string(),
        Attr::Bool(b) => b.to_string(),
        Attr::Str(s) => format!("{s:?}"),
        Attr::Ints(n) => format!("{n:?}"),
        Attr::Bools(b) => format!("{b:?}"),
        Attr::Pairs(p) => format!("{p:?}"),
        Attr::Enum(_, name) => name.clone(),
        Attr::Enums(_, names) => names.join(", "),
        Attr::Struct(_, fields) => {
            let shown = fields.iter().filter_map(|(name, f)| match f {
                Field::List(n) if n.is_empty() => None,
                Field::List(n) => Some(format!("{name} {n:?}")),
                Field::Int(n) => Some(format!("{name} {n}")),
            });
            format!("<{}>", shown.collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

fn flops(graph: &Graph) -> f64 {
    let each = graph.nodes.iter().map(|n| {
        let args: Vec<_> = n.inputs.iter().map(|v| graph.ty(*v)).collect();
        n.op.rule().cost(&args, &n.outs).flops
    });
    each.sum()
}
