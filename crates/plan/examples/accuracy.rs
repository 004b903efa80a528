//! Measures the accuracy of the analytic performance model against Google's compiler and published measurements; writes
//! the tables of `docs/results/plan-accuracy.md`.
//!
//! `bench/plan-accuracy.sh` is the complete command. Arguments: the output file, a cache folder for compiled programs
//! (an interrupted run continues from there), then training steps as StableHLO text.
#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use std::fmt::Write as _;
use std::path::Path;
use systole_ir::op::Convolution;
use systole_ir::{DType, Error, ErrorKind, Graph, GraphBuilder, Result, TensorType, text};
use systole_pjrt::{
    AcceleratorPlatform, AheadCompiler, COMMAND, CompileCache, discover, program_text, serve,
};
use systole_plan::{
    ChipTables, CollectiveMesh, HalfType, KernelList, Machine, MemoryNeed, analytic, compiled,
};
use systole_runtime::{AotCompiler, AotRequest};

/// One device of each generation.
const CHIPS: [&str; 7] = ["v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:1x1", "tpu7x:2x2x1"];

/// Rows, summed dimension, columns.
const PRODUCTS: [[usize; 3]; 18] = [
    [4096, 4096, 4096],
    [8192, 8192, 8192],
    [2048, 2048, 2048],
    [1024, 1024, 1024],
    [512, 512, 512],
    [256, 256, 256],
    [128, 128, 128],
    [8192, 64, 8192],
    [16384, 1024, 1024],
    [16384, 256, 256],
    [4096, 768, 3072],
    [4096, 3072, 768],
    [2048, 768, 50304],
    [200, 300, 700],
    [1000, 1000, 1000],
    [256, 1024, 4096],
    [6144, 6144, 1536],
    [100, 784, 512],
];

/// Batch, side, input features, output features, window, stride.
const CONVOLUTIONS: [[usize; 6]; 12] = [
    [256, 28, 256, 256, 3, 1],
    [128, 56, 64, 64, 3, 1],
    [1000, 28, 1, 64, 3, 1],
    [128, 224, 3, 64, 7, 2],
    [128, 14, 1024, 256, 1, 1],
    [128, 7, 512, 512, 3, 1],
    [128, 28, 128, 128, 3, 1],
    [128, 14, 256, 256, 3, 1],
    [128, 28, 512, 128, 1, 1],
    [128, 56, 128, 128, 3, 2],
    [64, 32, 64, 128, 3, 1],
    [256, 14, 512, 512, 3, 1],
];

/// What the folder of compiled programs may take.
const CACHE_BYTES: u64 = 4 << 30;

struct Case {
    name: String,
    kind: &'static str,
    graph: std::sync::Arc<Graph>,
    donated: bool,
}

struct Row {
    kind: &'static str,
    chip: &'static str,
    name: String,
    seconds: [f64; 2],
    memory: [MemoryNeed; 2],
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, command, folder] = &args[..]
        && command == COMMAND
    {
        return serve(Path::new(folder));
    }
    let tables = ChipTables::built_in()?;
    let compiler = AheadCompiler::new(
        discover(AcceleratorPlatform::Tpu, None, None).require(AcceleratorPlatform::Tpu)?,
    )?;
    let compiler = match args.get(2) {
        Some(folder) => compiler.with_cache(CompileCache::new(folder.into(), CACHE_BYTES)),
        None => compiler,
    };
    let mut rows = Vec::new();
    let mut refused = Vec::new();
    let mut version = String::new();
    for case in cases(&args[3.min(args.len())..])? {
        // After each case, so that a run that is stopped leaves what it found.
        if let (Some(path), false) = (args.get(1), rows.is_empty()) {
            write(path, &report(&rows, &refused, &tables, &version)?)?;
        }
        for chip in CHIPS {
            match row(&case, chip, &tables, &compiler, &mut version) {
                Ok(row) => {
                    println!("{}", line(&row));
                    row.memory.iter().for_each(|m| println!("    {}", parts(m)));
                    rows.push(row);
                }
                Err(e) => {
                    println!("{chip} {}: {}", case.name, e.what());
                    refused.push(format!("{chip} {}: {}", case.name, e.what()));
                }
            }
        }
    }
    let report = report(&rows, &refused, &tables, &version)?;
    let Some(path) = args.get(1) else {
        println!("{report}");
        return Ok(());
    };
    write(path, &report)
}

fn write(path: &str, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::io("cannot write", path, e))
}

fn cases(files: &[String]) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(file).map_err(|e| Error::io("cannot read", file, e))?;
        let name = Path::new(file).file_stem().map_or(file.clone(), |s| s.to_string_lossy().into());
        cases.push(Case { name, kind: "training step", graph: text::parse(&source)?, donated: true });
    }
    for [m, k, n] in PRODUCTS {
        let g = GraphBuilder::new("main");
        let (a, b) = (matrix(&g, &[m, k]), matrix(&g, &[k, n]));
        let graph = g.finish(&[a.dot(&b)])?;
        cases.push(Case { name: format!("{m}×{k}×{n}"), kind: "product", graph, donated: false });
    }
    for [batch, side, inner, outer, window, stride] in CONVOLUTIONS {
        let g = GraphBuilder::new("main");
        let x = matrix(&g, &[batch, side, side, inner]);
        let kernel = matrix(&g, &[window, window, inner, outer]);
        let spec = Convolution::same(x.ty(), kernel.ty(), &[stride, stride], &[1, 1], 1);
        let graph = g.finish(&[x.convolution(&kernel, spec)])?;
        let name = format!("{batch}×{side}×{side}×{inner} → {outer}, {window}×{window} / {stride}");
        cases.push(Case { name, kind: "convolution", graph, donated: false });
    }
    Ok(cases)
}

fn matrix(g: &GraphBuilder, dims: &[usize]) -> systole_ir::Tensor {
    g.parameter(TensorType::new(DType::BF16, dims), "x")
}

fn row(
    case: &Case,
    chip: &'static str,
    tables: &ChipTables,
    compiler: &AheadCompiler,
    version: &mut String,
) -> Result<Row> {
    let work = KernelList::of(&case.graph);
    let machine = Machine::of(chip, tables)?;
    let ours = analytic(&work, &machine, tables, HalfType::Bf16)?;
    let Machine::Slice(slice) = &machine else {
        return Err(Error::new(ErrorKind::Config, "only TPU slices are compiled for").at(chip));
    };
    let donated: Vec<usize> = if case.donated { (0..case.graph.params.len()).collect() } else { Vec::new() };
    let request = AotRequest::new(program_text(&case.graph, &donated), slice.ahead(tables));
    let said = compiler.compile_ahead(&AotRequest { hlo: true, ..request })?;
    *version = said.compiler.lines().next().unwrap_or("").into();
    let theirs = compiled(&said, &work, &machine, tables)?;
    // Sums of gradients are the same model in both: kernels are what is compared.
    let kernels = |e: &systole_plan::Estimate| e.device.likely - e.collective;
    Ok(Row {
        kind: case.kind,
        chip,
        name: case.name.clone(),
        seconds: [kernels(&ours), kernels(&theirs)],
        memory: [ours.memory, theirs.memory],
    })
}

/// Where a need comes from, in bytes.
fn parts(m: &MemoryNeed) -> String {
    let each = m.parts().into_iter().map(|(name, bytes)| format!("{name} {bytes:.0}"));
    each.collect::<Vec<_>>().join(", ")
}

impl Row {
    fn bytes(&self) -> [f64; 2] {
        [self.memory[0].total(), self.memory[1].total()]
    }
}

fn line(r: &Row) -> String {
    let ratio = |x: [f64; 2]| x[0] / x[1];
    let bytes = r.bytes();
    format!(
        "| {} | {} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.2} |",
        r.chip.split(':').next().unwrap_or(r.chip),
        r.name,
        r.seconds[0] * 1e6,
        r.seconds[1] * 1e6,
        ratio(r.seconds),
        bytes[0] / 1e6,
        bytes[1] / 1e6,
        ratio(bytes)
    )
}

/// How far ratios are from 1. A factor of `max(r, 1/r)` is an error in either direction.
struct Spread {
    /// Geometric mean of the factors.
    typical: f64,
    median: f64,
    /// 90th percentile of the factors.
    most_are_below: f64,
    worst: f64,
    /// Geometric mean of the ratios.
    bias: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(ratios: &[f64]) -> Spread {
        let n = ratios.len().max(1) as f64;
        let mean = |f: &dyn Fn(f64) -> f64| (ratios.iter().map(|&r| f(r.ln())).sum::<f64>() / n).exp();
        let mut factors: Vec<f64> = ratios.iter().map(|&r| r.max(1.0 / r)).collect();
        factors.sort_by(f64::total_cmp);
        let at = |part: f64| factors.get(((n * part).ceil() as usize).max(1) - 1).copied().unwrap_or(1.0);
        Spread {
            typical: mean(&f64::abs),
            median: at(0.5),
            most_are_below: at(0.9),
            worst: at(1.0),
            bias: mean(&|x| x),
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
        }
    }

    fn cells(&self) -> String {
        let all =
            [self.typical, self.median, self.most_are_below, self.worst, self.bias, self.least, self.most];
        all.map(|x| format!("{x:.2}")).join(" | ")
    }
}

fn report(rows: &[Row], refused: &[String], tables: &ChipTables, version: &str) -> Result<String> {
    let mut s = String::new();
    let mut add = |text: String| {
        let _ = writeln!(s, "{text}");
    };
    add(HEAD.trim_end().into());
    add(format!("\nCompiler version: `{version}`. {} programs compiled.\n", rows.len()));
    for (what, of) in [("Time", (|r| r.seconds) as fn(&Row) -> [f64; 2]), ("Memory", Row::bytes)] {
        add(format!("\n## {what}\n"));
        add("| programs | generation | number | typical | median | 90th percentile | worst | bias | minimum | maximum |".into());
        add("|---|---|---|---|---|---|---|---|---|---|".into());
        for kind in ["all", "product", "convolution", "training step"] {
            for chip in ["all"].into_iter().chain(CHIPS) {
                let own = |r: &&Row| (kind == "all" || r.kind == kind) && (chip == "all" || r.chip == chip);
                let ratios: Vec<f64> = rows.iter().filter(own).map(|r| of(r)[0] / of(r)[1]).collect();
                if !ratios.is_empty() {
                    let chip = chip.split(':').next().unwrap_or(chip);
                    add(format!("| {kind} | {chip} | {} | {} |", ratios.len(), Spread::of(&ratios).cells()));
                }
            }
        }
    }
    add(measured(tables)?);
    add("\n## Every program\n".into());
    add("| chip | program | analytic µs | compiled µs | ratio | analytic MB | compiled MB | ratio |".into());
    add("|---|---|---|---|---|---|---|---|".into());
    rows.iter().for_each(|r| add(line(r)));
    if !refused.is_empty() {
        add(format!("\nNot compiled ({}):\n", refused.len()));
        refused.iter().for_each(|r| add(format!("- {r}")));
    }
    Ok(s)
}

/// Points that others measured on hardware and published with enough detail to model them.
fn measured(tables: &ChipTables) -> Result<String> {
    let link = |chip: &str| tables.tpu(chip).map_or(0.0, |t| t.link_gb_per_s * 1e9);
    let mesh = |n, ring, chip: &str| CollectiveMesh { axes: vec![(n, ring)], link: link(chip) };
    let v2 = Machine::of("v2-8", tables)?;
    let g = GraphBuilder::new("main");
    // [32, 1024, 8192] × [8192, 32768] over 4 × 2 cores: a quarter of the rows, half of the columns.
    let (a, b) = (matrix(&g, &[8192, 8192]), matrix(&g, &[8192, 16384]));
    let work = KernelList::of(&*g.finish(&[a.dot(&b)])?);
    let product = analytic(&work, &v2, tables, HalfType::Bf16)?.device.likely;
    let points = [
        ("v2-8: feed-forward product bf16[32, 1024, 8192] × [8192, 32768]", product, 96e-3),
        ("v2-8: reduce-scatter, 134 MB per shard", mesh(4, true, "v2").reduce_scatter(134e6), 1.13e-3),
        (
            "v5e: all-gather bf16[2048, 8192] along an axis of 4",
            mesh(4, false, "v5e").all_gather(33.6e6),
            680e-6,
        ),
        ("v5e: all-gather bf16[256, 256] along an axis of 4", mesh(4, false, "v5e").all_gather(131e3), 8e-6),
    ];
    let mut errors: Vec<f64> = points.iter().map(|p| (p.1 / p.2 - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let bias = Spread::of(&points.iter().map(|p| p.1 / p.2).collect::<Vec<_>>()).bias;
    let mut s = String::from(MEASURED);
    for (name, ours, theirs) in points {
        let _ = writeln!(s, "| {name} | {:.1} | {:.1} | {:.2} |", ours * 1e6, theirs * 1e6, ours / theirs);
    }
    let percent = |x: f64| 100.0 * x;
    let _ = writeln!(
        s,
        "\nMedian error {:.0} %, 90th percentile and worst {:.0} % (too few points for percentiles), bias \
         {bias:.2}.",
        percent((errors[1] + errors[2]) / 2.0),
        percent(errors[3])
    );
    Ok(s)
}

const HEAD: &str = "# How accurate `systole plan` is

Written by `bench/plan-accuracy.sh`; do not edit. It compares the analytic model with Google's compiler (libtpu 0.0.51) for one
device of each TPU generation, and with published measurements that have enough detail.

Ratios are analytic divided by compiled. `typical` is the geometric mean of the error as a factor in either direction (1.10: 10 %
off); median, 90th percentile and worst are of the same factor; `bias` is the geometric mean of the ratios. `compiled` is the
compiler's own estimate of cycles for kernels with products, and bytes divided by 90 % of the bandwidth for the rest: an estimate
too, not a measurement. The constants of the analytic model were fitted to 23 products on each generation, and its models of
code size and on-chip memory to what the compiler reports for the programs below. Their agreement is therefore not
independent evidence.
";

const MEASURED: &str = "
## Against measurements

Published by the authors of the scaling-book (commit 0819a7d). Nothing was fitted to these.

| what | model µs | measured µs | ratio |
|---|---|---|---|
";
