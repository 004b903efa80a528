//! Generates `docs/internals/ops.md` from the op table: each column states what works for the samples of an op.

use super::same_or_bless;
use std::collections::BTreeSet;
use std::fmt::Write;
use systole::cpu::{CpuBackend, Level, ThreadPool, has_vector_form};
use systole_ir::op::{Op, OpEntry, OpSample, TABLE};
use systole_ir::{Graph, TensorType, interp, text};
use systole_program::bisect::single;
use systole_runtime::CompileOptions;

const HEAD: &str = "# Ops

Generated from the op table and its samples by `SYSTOLE_BLESS=1 cargo test --test docs documents`. Each column states what works for
the samples of an op, which are programs of one op and its operands:

- **samples**: their number; tests run all of them.
- **infer**: type inference gives the types of the samples.
- **eval**: the interpreter computes them; *devices*: the op needs several devices.
- **vjp**: at least one sample is differentiated, and compared with central differences.
- **cpu**: the kernel families that compute them; *reference* if no kernel is faster than the interpreter's loops;
  *folded* if constant folding leaves nothing to compute.
- **text**: printing and parsing give the same program.
- **bytecode**: writing and reading a portable artifact of the current version give the same program; CHLO ops have no bytecode form.
- **vector form**: loops over f32 are vectorized; – if the op is not element-wise, or not defined for floats.

| op | samples | infer | eval | vjp | cpu | text | bytecode | vector form |
|---|---|---|---|---|---|---|---|---|
";

/// Nodes of an op in its samples.
fn uses<'a>(e: &'a OpEntry, samples: &'a [OpSample]) -> impl Iterator<Item = (&'a Graph, usize)> {
    let nodes = samples.iter().flat_map(|s| (0..s.graph.nodes.len()).map(move |i| (&*s.graph, i)));
    nodes.filter(|(g, i)| g.nodes[*i].op.name() == e.name)
}

fn infers(graph: &Graph, node: usize) -> bool {
    let node = &graph.nodes[node];
    let types: Vec<&TensorType> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
    node.op.rule().infer(&types).is_ok_and(|outs| outs == node.outs)
}

fn evaluates(sample: &OpSample) -> bool {
    let arguments = sample.arguments(1);
    interp::run(&sample.graph, &arguments.iter().collect::<Vec<_>>()).is_ok()
}

/// Families of the kernels that compute the op alone.
fn families(e: &OpEntry, samples: &[OpSample], cpu: &CpuBackend) -> String {
    let mut all = BTreeSet::new();
    for (graph, node) in uses(e, samples) {
        let steps = cpu.explain(&single(graph, node), &CompileOptions::default()).unwrap_or_default();
        for step in steps.iter().filter(|s| s.program.is_empty()) {
            let (family, candidate) =
                step.kernel.name.split_once('/').unwrap_or((step.kernel.name.as_str(), ""));
            all.insert(if candidate == "reference" { "*reference*".into() } else { family.to_owned() });
        }
    }
    if all.is_empty() { "*folded*".into() } else { all.into_iter().collect::<Vec<_>>().join(", ") }
}

fn is_kept_by_text(graph: &Graph) -> bool {
    let printed = text::print(graph);
    text::parse(&printed).is_ok_and(|again| text::print(&again) == printed)
}

fn is_kept_by_bytecode(graph: &Graph) -> bool {
    let again = || {
        let module = systole_mlir::text::parse(&text::print(graph))?;
        let bytes = systole_bytecode::write(&module, systole_bytecode::CURRENT)?;
        systole_mlir::import::program(&systole_bytecode::parse(&bytes)?)
    };
    let straight = || systole_mlir::import::program(&systole_mlir::text::parse(&text::print(graph))?);
    match (again(), straight()) {
        (Ok(a), Ok(b)) => text::print(&a.program.graph) == text::print(&b.program.graph),
        _ => false,
    }
}

fn vector_form(op: &Op) -> &'static str {
    match op {
        Op::Unary(u) if u.row().float.is_none() => "–",
        Op::Binary(b) if b.row().float.is_none() => "–",
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Convert(_) => {
            said(has_vector_form(op))
        }
        _ => "–",
    }
}

fn said(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn row(e: &OpEntry, cpu: &CpuBackend, page: &mut String) {
    let samples = (e.samples)();
    let nodes: Vec<(&Graph, usize)> = uses(e, &samples).collect();
    let (graph, node) = *nodes.first().unwrap_or_else(|| panic!("no sample of {} has it", e.name));
    let op = &graph.nodes[node].op;
    let all = |holds: &dyn Fn(&Graph) -> bool| said(samples.iter().all(|s| holds(&s.graph)));
    let meets = nodes.iter().any(|(g, n)| g.nodes[*n].op.meets());
    let infer = said(nodes.iter().all(|(g, n)| infers(g, *n)));
    let eval = if meets { "*devices*" } else { said(samples.iter().all(evaluates)) };
    let vjp = said(samples.iter().any(|s| s.differentiable));
    let cpu = if meets { "*devices*".into() } else { families(e, &samples, cpu) };
    writeln!(
        page,
        "| `{}` | {} | {infer} | {eval} | {vjp} | {cpu} | {} | {} | {} |",
        e.name,
        samples.len(),
        all(&is_kept_by_text),
        all(&is_kept_by_bytecode),
        vector_form(op)
    )
    .expect("into memory");
}

#[test]
fn the_table_of_ops_is_what_they_do() {
    // The instruction set that every machine has: the page does not depend on where it is made.
    let cpu = CpuBackend::with(ThreadPool::new(1), Level::Portable).expect("every machine has it");
    let mut page = HEAD.to_owned();
    TABLE.iter().for_each(|e| row(e, &cpu, &mut page));
    same_or_bless("docs/internals/ops.md", &page);
}
