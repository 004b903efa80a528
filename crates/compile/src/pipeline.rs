//! Compiler pipeline: the stages from an optimized graph to a program, and the driver that runs and verifies them.
//!
//! The result of each stage can be printed and verified.

use crate::fuse::{FusionRule, RULES, RuleFn};
use crate::graph::{PASSES, optimize_until};
use crate::lower::lower;
use crate::memory::{buffer_assignment, step_order};
use crate::nested_compiler::NestedCompiler;
use crate::options::PipelineOptions;
use crate::program::{ProgramSchedule, RowBlockLoop, StepList, array_bytes, verify_planned, verify_steps};
use crate::tile::{OutlinedGraph, outline};
use std::collections::HashMap;
use systole_ir::{Graph, Result, ResultExt, err, knobs};

/// One stage of the compiler pipeline.
pub struct CompileStage {
    /// Name for `systole show --stage`.
    pub name: &'static str,
    /// One-line description.
    pub doc: &'static str,
    /// Runs the stage. `stop` names a fusion rule after which to stop; only the stage `fuse` uses it.
    run: fn(&mut Compilation<'_>, stop: Option<&str>) -> Result<()>,
    /// Checks the invariants of the stage's result.
    verify: fn(&Compilation<'_>) -> Result<()>,
}

/// All stages of the compiler pipeline, in execution order.
pub const STAGES: &[CompileStage] = &[
    CompileStage {
        name: "tile",
        doc: "outlines segments of the graph that run block by block into single nodes",
        run: |unit, _| {
            unit.tiled = outline(unit.graph, unit.options, &COMPILER)?;
            Ok(())
        },
        verify: |unit| unit.tiled.graph.verify(),
    },
    CompileStage {
        name: "lower",
        doc: "turns groups of element-wise nodes into maps, and other nodes into steps",
        run: |unit, _| {
            let OutlinedGraph { graph, blocks } = &unit.tiled;
            unit.program = lower(graph, blocks, unit.options.rounding, &COMPILER)?;
            Ok(())
        },
        verify: |unit| verify_steps(&unit.program),
    },
    CompileStage {
        name: "fuse",
        doc: "fuses neighboring steps, so that intermediate arrays are not materialized",
        run: |unit, stop| fuse(&mut unit.program, unit.options, |_| true, stop),
        verify: |unit| verify_steps(&unit.program),
    },
    CompileStage {
        name: "order",
        doc: "orders steps for low memory: those that free more than they allocate run early",
        run: |unit, _| {
            step_order::run(&mut unit.program, unit.options);
            Ok(())
        },
        verify: |unit| verify_steps(&unit.program),
    },
    CompileStage {
        name: "buffers",
        doc: "assigns every array an offset in one arena, by lifetime",
        run: |unit, _| buffer_assignment::run(&mut unit.program, unit.options),
        verify: |unit| verify_planned(&unit.program, &unit.options.donated),
    },
];

/// The pipeline, for stages that compile nested programs.
pub(crate) const COMPILER: NestedCompiler = NestedCompiler { schedule, estimate };

/// A compilation in progress: the input, and the output of the stages so far.
struct Compilation<'a> {
    graph: &'a Graph,
    options: &'a PipelineOptions,
    tiled: OutlinedGraph,
    program: ProgramSchedule,
}

/// The graph or program after a pass, a stage or a fusion rule.
pub enum StageOutput {
    /// After a pass, or after the stage `tile`.
    Graph(Graph),
    /// After any later stage or rule. Before the stage `buffers`, arena offsets are not assigned.
    Program(ProgramSchedule),
}

/// Compiles an optimized graph into a program with its buffer plan. Bodies of loops and branches are optimized here.
/// Debug builds, and other builds with `SYSTOLE_PARANOID` set, verify the program after each of the [`STAGES`].
pub fn schedule(graph: &Graph, options: &PipelineOptions) -> Result<ProgramSchedule> {
    Ok(run_until(graph, options, None)?.0.program)
}

/// Names and one-line descriptions of all passes, rules and stages, in execution order. A pass that runs more than once
/// appears at its first position.
pub fn stages() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for pass in PASSES {
        if all.iter().all(|(name, _)| *name != pass.name) {
            all.push((pass.name, pass.doc));
        }
    }
    for stage in STAGES {
        if stage.name == "fuse" {
            all.extend(RULES.iter().map(|rule| (rule.name, rule.doc)));
        }
        all.push((stage.name, stage.doc));
    }
    all
}

/// Compiles a traced graph up to the last run of the named pass, stage or rule (see [`stages`]).
pub fn form_after(graph: &Graph, options: &PipelineOptions, name: &str) -> Result<StageOutput> {
    if let Some(graph) = optimize_until(graph, options.rounding.excess_precision, name)? {
        return Ok(StageOutput::Graph(graph));
    }
    let (graph, _) = crate::graph::optimize_with(graph, options.rounding.excess_precision)?;
    let (unit, at) = run_until(&graph, options, Some(name))?;
    match at {
        None => Err(err!(Config, "unknown stage `{name}`")
            .hint(stages().iter().map(|s| s.0).collect::<Vec<_>>().join(", "))),
        Some("tile") => Ok(StageOutput::Graph(unit.tiled.graph)),
        Some(_) => Ok(StageOutput::Program(unit.program)),
    }
}

/// Runs the stages up to and including the one with this name or with the rule of this name. Returns the compilation
/// and the name of that stage; `None` if no stage matched.
fn run_until<'a>(
    graph: &'a Graph,
    options: &'a PipelineOptions,
    name: Option<&str>,
) -> Result<(Compilation<'a>, Option<&'static str>)> {
    for t in graph.nodes.iter().flat_map(|n| n.outs.iter()) {
        array_bytes(t)?;
    }
    let is_rule = RULES.iter().any(|rule| Some(rule.name) == name);
    let mut unit =
        Compilation { graph, options, tiled: OutlinedGraph::default(), program: ProgramSchedule::default() };
    for stage in STAGES {
        (stage.run)(&mut unit, name)?;
        if checks() {
            (stage.verify)(&unit).at(|| format!("after stage {}", stage.name))?;
        }
        if Some(stage.name) == name || stage.name == "fuse" && is_rule {
            return Ok((unit, Some(stage.name)));
        }
    }
    Ok((unit, None))
}

/// Whether to verify the result of each stage and rule.
fn checks() -> bool {
    cfg!(debug_assertions) || knobs::PARANOID.get_usize() != 0
}

/// Runs the fusion rules that `wanted` selects, up to and including the rule named `stop`.
fn fuse(
    program: &mut ProgramSchedule,
    options: &PipelineOptions,
    wanted: fn(&FusionRule) -> bool,
    stop: Option<&str>,
) -> Result<()> {
    let check = checks();
    let mut rules = RULES.iter().filter(|rule| wanted(rule)).peekable();
    while let Some(mut rule) = rules.next() {
        match rule.run {
            RuleFn::Program(run) => run(program, options),
            RuleFn::Steps(run) => {
                let mut steps = StepList::open(program);
                run(&mut steps);
                // If each rule is verified, the step list is closed after each rule.
                while !check
                    && Some(rule.name) != stop
                    && let Some(next) = rules.peek()
                {
                    let RuleFn::Steps(run) = next.run else { break };
                    run(&mut steps);
                    rule = next;
                    rules.next();
                }
                steps.close();
            }
        }
        if check {
            verify_steps(program).at(|| format!("after rule {}", rule.name))?;
        }
        if Some(rule.name) == stop {
            break;
        }
    }
    Ok(())
}

/// See [`NestedCompiler::estimate`].
fn estimate(
    graph: &Graph,
    blocks: &HashMap<usize, RowBlockLoop>,
    options: &PipelineOptions,
) -> Result<ProgramSchedule> {
    let mut program = lower(graph, blocks, options.rounding, &COMPILER)?;
    fuse(&mut program, options, |rule| rule.in_estimates, None)?;
    Ok(program)
}
