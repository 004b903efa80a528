//! Prints graphs as StableHLO text.

use super::dense::print_dense;
use crate::graph::{Graph, ValueId};
use crate::op::attr::AttrField;
use crate::op::{Attr, AttrList, ConvDims, Op};
use crate::{Sharding, Shardings};
use std::fmt::{Display, Write};
use systole_base::TensorType;

/// Prints the graph as a StableHLO module with one function. [`parse`](super::parse) reads it back to an equal graph.
pub fn print(graph: &Graph) -> String {
    print_with(graph, &graph.name, &[], None, false)
}

/// Like [`print`](fn@print), but for a compiler that runs the program: the function is `@main`, and for each pair `(p,
/// r)` in `donated`, parameter `p` donates its memory to result `r`. With `spread`, the module contains the mesh, and
/// parameters and results have sharding attributes in Shardy's form; shapes are global.
pub fn print_program(graph: &Graph, donated: &[(usize, usize)], spread: Option<&Shardings>) -> String {
    print_with(graph, "main", donated, spread, false)
}

/// Like [`print`](fn@print), with the layer path of each op in a trailing comment.
pub fn print_annotated(graph: &Graph) -> String {
    print_with(graph, &graph.name, &[], None, true)
}

fn print_with(
    graph: &Graph,
    name: &str,
    donated: &[(usize, usize)],
    spread: Option<&Shardings>,
    annotate: bool,
) -> String {
    let name = symbol(name);
    let out = format!("module @{name} {{\n");
    let mut p = Printer { out, indent: 1, next_arg: 0, next_value: 0, annotate };
    if let Some(spread) = spread {
        let axes = join(spread.mesh.axes().iter().map(|(name, size)| format!("{}={size}", quoted(name))));
        p.line(&format!("sdy.mesh @mesh = <[{axes}]>"));
    }
    let sharding = |of: fn(&Shardings) -> &Vec<Sharding>, i: usize| {
        let text = of(spread?).get(i)?.text(&spread?.mesh);
        Some(format!("sdy.sharding = #sdy.sharding<@mesh, {text}>"))
    };
    let params: Vec<String> = graph.params.iter().map(|_| p.fresh_arg()).collect();
    let args = params.iter().enumerate().map(|(i, name)| {
        let label = graph.param_names.get(i).filter(|n| !n.is_empty());
        let label = label.map_or(String::new(), |n| format!(" loc({})", quoted(n)));
        let donated = donated.iter().find(|(p, _)| *p == i);
        let donated = donated.map(|(_, r)| format!("tf.aliasing_output = {r} : i32"));
        let own = attributes(donated.into_iter().chain(sharding(|s| &s.params, i)));
        format!("{name}: {}{own}{label}", tensor(graph.ty(graph.params[i])))
    });
    let returned = graph.result_types().into_iter().enumerate();
    let returned = returned.map(|(i, ty)| tensor(&ty) + &attributes(sharding(|s| &s.results, i)));
    let header = format!("func.func public @{name}({}) -> ({})", join(args), join(returned));
    p.line(&format!("{header} {{"));
    p.indent += 1;
    let results = p.body(graph, params);
    let types = graph.result_types();
    let tail = if types.is_empty() {
        String::new()
    } else {
        format!(" {} : {}", join(&results), self::types(&types))
    };
    p.line(&format!("return{tail}"));
    p.indent -= 1;
    p.line("}");
    p.out.push_str("}\n");
    p.out
}

/// Formats the attributes as ` {…}`; empty if there are none.
fn attributes(list: impl IntoIterator<Item = String>) -> String {
    let list = join(list);
    if list.is_empty() { list } else { format!(" {{{list}}}") }
}

struct Printer {
    out: String,
    indent: usize,
    next_arg: usize,
    next_value: usize,
    annotate: bool,
}

impl Printer {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", self.indent * 2);
    }

    fn fresh_arg(&mut self) -> String {
        self.next_arg += 1;
        format!("%arg{}", self.next_arg - 1)
    }

    /// Prints the nodes of a graph whose parameters have the given names; returns the names of its results.
    fn body(&mut self, graph: &Graph, params: Vec<String>) -> Vec<String> {
        let mut names: Vec<String> = vec![String::new(); graph.nodes.len()];
        for (p, name) in graph.params.iter().zip(params) {
            names[p.index()] = name;
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            if matches!(node.op, Op::Parameter(_)) {
                continue;
            }
            names[i] = format!("%{}", self.next_value);
            self.next_value += 1;
            self.node(graph, i, &names);
        }
        graph.results.iter().map(|&r| value(graph, &names, r)).collect()
    }

    fn node(&mut self, graph: &Graph, i: usize, names: &[String]) {
        let node = &graph.nodes[i];
        let rule = node.op.rule();
        let operands: Vec<String> = node.inputs.iter().map(|&v| value(graph, names, v)).collect();
        let (captured, operands) = operands.split_at(rule.captures());
        let target = match node.outs.len() {
            0 => String::new(),
            1 => format!("{} = ", names[i]),
            n => format!("{}:{n} = ", names[i]),
        };
        let (ours, inherent): (AttrList, AttrList) =
            rule.attrs().into_iter().partition(|(name, _)| name.contains('.'));
        let _ = write!(
            self.out,
            "{:1$}{target}\"{2}\"({3})",
            "",
            self.indent * 2,
            full_name(&node.op),
            join(operands)
        );
        if !inherent.is_empty() {
            let _ = write!(self.out, " <{{{}}}>", join(inherent.iter().map(attribute)));
        }
        for (k, region) in rule.regions().into_iter().enumerate() {
            self.out.push_str(if k == 0 { " (" } else { ", " });
            self.region(region, captured);
        }
        if !rule.regions().is_empty() {
            self.out.push(')');
        }
        if !ours.is_empty() {
            let _ = write!(self.out, " {{{}}}", join(ours.iter().map(attribute)));
        }
        let from: Vec<TensorType> =
            node.inputs[captured.len()..].iter().map(|&v| graph.ty(v).clone()).collect();
        let to = if let [one] = &node.outs[..] { tensor(one) } else { format!("({})", types(&node.outs)) };
        let layer = graph.scope(node);
        let comment = if self.annotate && !layer.is_empty() { format!(" // {layer}") } else { String::new() };
        let _ = writeln!(self.out, " : ({}) -> {to}{comment}", types(&from));
    }

    /// Prints a body. Names inside may repeat those of sibling bodies and of later outer values, as MLIR allows.
    fn region(&mut self, graph: &Graph, captured: &[String]) {
        let (next_arg, next_value) = (self.next_arg, self.next_value);
        let own: Vec<String> = graph.params[captured.len()..].iter().map(|_| self.fresh_arg()).collect();
        self.out.push_str("{\n");
        if !own.is_empty() {
            let typed = own.iter().zip(&graph.params[captured.len()..]);
            let args = join(typed.map(|(name, &p)| format!("{name}: {}", tensor(graph.ty(p)))));
            self.line(&format!("^bb0({args}):"));
        }
        self.indent += 1;
        let results = self.body(graph, [captured, &own].concat());
        let types = types(&graph.result_types());
        self.line(&format!("\"stablehlo.return\"({}) : ({types}) -> ()", join(&results)));
        self.indent -= 1;
        let _ = write!(self.out, "{:1$}}}", "", self.indent * 2);
        (self.next_arg, self.next_value) = (next_arg, next_value);
    }
}

fn value(graph: &Graph, names: &[String], v: ValueId) -> String {
    let name = &names[v.index()];
    if graph.node(v).outs.len() == 1 { name.clone() } else { format!("{name}#{}", v.out) }
}

fn full_name(op: &Op) -> String {
    let name = op.name();
    if name.contains('.') { name.to_string() } else { format!("stablehlo.{name}") }
}

fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

/// Prints a tensor type: `tensor<2x3xf32>`.
pub(super) fn tensor(ty: &TensorType) -> String {
    let dims: String = ty.shape.iter().map(|d| format!("{d}x")).collect();
    format!("tensor<{dims}{}>", ty.dtype)
}

fn types(types: &[TensorType]) -> String {
    join(types.iter().map(tensor))
}

/// A symbol name after `@`, quoted unless it is a plain identifier.
fn symbol(name: &str) -> String {
    let plain = |(i, c): (usize, char)| c.is_ascii_alphabetic() || c == '_' || (i > 0 && c.is_ascii_digit());
    if !name.is_empty() && name.chars().enumerate().all(plain) { name.to_string() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for b in text.bytes() {
        match b {
            b'"' | b'\\' => {
                let _ = write!(out, "\\{}", b as char);
            }
            b' '..=b'~' => out.push(b as char),
            _ => {
                let _ = write!(out, "\\{b:02X}");
            }
        }
    }
    out + "\""
}

fn attribute((name, attr): &(&'static str, Attr)) -> String {
    let value = match attr {
        Attr::Unit => return name.to_string(),
        Attr::Int(v) => format!("{v} : i64"),
        Attr::Int32(v) => format!("{v} : i32"),
        Attr::Bool(v) => v.to_string(),
        Attr::Str(v) => quoted(v),
        Attr::Ints(v) if v.is_empty() => "array<i64>".into(),
        Attr::Ints(v) => format!("array<i64: {}>", join(v)),
        Attr::Bools(v) if v.is_empty() => "array<i1>".into(),
        Attr::Bools(v) => format!("array<i1: {}>", join(v)),
        Attr::Pairs(v) => {
            let pairs = join(v.iter().map(|[a, b]| format!("[{a}, {b}]")));
            let list = if v.is_empty() { String::new() } else { format!("[{pairs}]") };
            format!("dense<{list}> : tensor<{}x2xi64>", v.len())
        }
        Attr::Dense(v) => format!("{} : {}", print_dense(v), tensor(v.ty())),
        Attr::Enum(kind, word) => format!("#stablehlo<{kind} {word}>"),
        Attr::Enums(kind, words) => {
            format!("[{}]", join(words.iter().map(|w| format!("#stablehlo<{kind} {w}>"))))
        }
        Attr::Struct(kind, fields) => {
            let shown = fields.iter().filter_map(|(name, field)| match field {
                AttrField::List(v) if v.is_empty() => None,
                AttrField::List(v) => Some(format!("{name} = [{}]", join(v))),
                AttrField::Int(v) => Some(format!("{name} = {v}")),
            });
            format!("#stablehlo.{kind}<{}>", join(shown))
        }
        Attr::Conv(dims) => format!("#stablehlo.conv<{}>", conv(dims)),
    };
    format!("{name} = {value}")
}

/// Formats convolution layouts: `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`.
fn conv(d: &ConvDims) -> String {
    let layout = |first: (usize, &str), second: (usize, &str), spatial: &[usize]| {
        let mut words = vec![String::new(); spatial.len() + 2];
        let named = [first, second].map(|(at, word)| (at, word.to_string()));
        let numbered = spatial.iter().enumerate().map(|(i, &at)| (at, i.to_string()));
        for (at, word) in named.into_iter().chain(numbered) {
            if let Some(slot) = words.get_mut(at) {
                *slot = word;
            }
        }
        join(words)
    };
    format!(
        "[{}]x[{}]->[{}]",
        layout((d.input_batch, "b"), (d.input_feature, "f"), &d.input_spatial),
        layout((d.kernel_input_feature, "i"), (d.kernel_output_feature, "o"), &d.kernel_spatial),
        layout((d.output_batch, "b"), (d.output_feature, "f"), &d.output_spatial)
    )
}
