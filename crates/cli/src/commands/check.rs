//! `systole check`: finds the first op of a program whose value differs between two devices.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::program::{self, InputArgs};
use crate::render::screen::{Screen, number_of, quoted};
use clap::Args;
use serde_json::{Value, json};
use std::panic;
use systole_ir::{Graph, Literal, Result, ResultExt, err, text};
use systole_mlir::import::ImportedProgram;
use systole_program::bisect::{DevicePair, DivergingOp, RunComparison, first_difference, single};
use systole_program::compare::{Difference, Tolerance};
use systole_program::summary::{self, ArraySummary};

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// StableHLO text or bytecode, ONNX or .tflite model; `-` reads standard input
    #[arg(value_name = "FILE")]
    program: String,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
}

/// Two devices to compare, with the tolerance and the program's arguments.
#[derive(Args)]
pub(crate) struct PairArgs {
    /// Compare two devices, such as cpu,ref or xla,ref or pjrt:FILE,cpu
    ///
    /// `ref`, the interpreter, is the reference. [default: the device of --device or cpu, and ref]
    #[arg(long, value_name = "A,B")]
    pub(crate) devices: Option<String>,
    /// Set the relative tolerance for floats; integers must be equal
    ///
    /// [default: f64 1e-11, f32 1e-4, f16 0.01, bf16 0.05]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) tolerance: Option<f64>,
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
}

/// Parses a fraction from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| (0.0..=1.0).contains(v));
    value.ok_or_else(|| "expected a number from 0 to 1, such as 1e-5".into())
}

impl PairArgs {
    /// Opens both devices.
    pub(crate) fn open(&self, common: &CommonArgs) -> CommandResult<DevicePair> {
        let usual = format!("{},ref", common.device.as_deref().filter(|d| *d != "ref").unwrap_or("cpu"));
        let said = self.devices.as_deref().unwrap_or(&usual);
        let names: Vec<&str> = said.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        let [a, b] = names[..] else {
            let e = err!(Config, "expected two devices, got `{said}`");
            return Err(CommandError::usage(
                e.at("--devices").hint_command("pass two device names, such as cpu,ref or xla,ref"),
            ));
        };
        let opened = |name| systole_devices::named(name).map_err(|e| CommandError::from(e.at("--devices")));
        Ok(DevicePair {
            devices: [opened(a)?, opened(b)?],
            names: [a.into(), b.into()],
            tolerance: Tolerance(self.tolerance),
        })
    }

    /// Returns the arguments as the graph's arrays (random if none are given) and a description of their source.
    pub(crate) fn arguments(&self, program: &ImportedProgram) -> Result<(Vec<Literal>, String)> {
        let random = self.inputs.random.or(self.inputs.input.is_none().then_some(0));
        let InputArgs { input, function, dims, .. } = &self.inputs;
        let inputs =
            InputArgs { input: input.clone(), function: function.clone(), dims: dims.clone(), random };
        let (values, given) = inputs.values(program)?;
        Ok((values.into_iter().flatten().collect(), given))
    }

    /// Formats the options as they are written on a command line.
    pub(crate) fn words(&self, pair: &DevicePair) -> String {
        let tolerance = self.tolerance.map_or(String::new(), |t| format!(" --tolerance {t}"));
        format!("--devices {}{tolerance}", quoted(pair.names.join(",")))
    }

    /// Formats the arguments as command-line options.
    pub(crate) fn given_words(&self) -> String {
        let function =
            self.inputs.function.as_ref().map_or(String::new(), |f| format!(" --function {}", quoted(f)));
        function
            + &self.inputs.dims.words()
            + &match (&self.inputs.input, self.inputs.random) {
                (Some(path), _) => format!(" --input {}", quoted(path)),
                (None, seed) => format!(" --random {}", seed.unwrap_or(0)),
            }
    }
}

/// Device names without plugin files, if they stay distinct.
pub(crate) fn short(pair: &DevicePair) -> [&str; 2] {
    let [a, b] = pair.names.each_ref().map(String::as_str);
    match [a, b].map(|name| name.split(':').next().unwrap_or(name)) {
        [x, y] if x != y => [x, y],
        _ => [a, b],
    }
}

/// Runs `f` without printing panic messages; `f` catches the panics.
pub(crate) fn quietly<T>(f: impl FnOnce() -> T) -> T {
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = f();
    panic::set_hook(before);
    result
}

impl RunCommand for CheckArgs {
    fn own_devices(&self) -> Option<&str> {
        self.pair.devices.as_deref()
    }

    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        let program = self.pair.inputs.open(&self.program)?;
        let pair = self.pair.open(common)?;
        let (arguments, given) = self.pair.arguments(&program)?;
        let graph = &program.program.graph;
        let found = quietly(|| first_difference(&pair, graph, &arguments));
        let answer = DeviceComparison { args: &self, program: &program, pair: &pair, given };
        match (&found, screen.json) {
            (found, true) => screen.object(&answer.object(found.as_ref())),
            (None, false) => {
                let results = number_of(program.interface.results.len() + program.checks.len(), "result");
                let names = short(&pair).join(" and ");
                screen.line(format!("{names} agree in {results}, with {}", answer.given));
            }
            (Some(culprit), false) => {
                answer.show(culprit, screen).at(|| program::called(&self.program).into())?
            }
        }
        Ok(u8::from(found.is_some()))
    }
}

/// Report of a device comparison.
struct DeviceComparison<'a> {
    args: &'a CheckArgs,
    program: &'a ImportedProgram,
    pair: &'a DevicePair,
    given: String,
}

impl DeviceComparison<'_> {
    fn graph(&self) -> &Graph {
        &self.program.program.graph
    }

    /// Formats the op's position: `line 12:5 of step.mlir`.
    fn place(&self, culprit: &DivergingOp) -> Option<String> {
        let place = self.program.place(culprit.node)?;
        Some(format!("{place} of {}", program::called(&self.args.program)))
    }

    fn show(&self, culprit: &DivergingOp, screen: &Screen) -> Result<()> {
        let parameters = self.graph().params.len();
        let [a, b] = short(self.pair);
        let at = format!(
            "op {} of {}",
            culprit.node + 1 - parameters.min(culprit.node),
            self.graph().nodes.len() - parameters
        );
        let place = self.place(culprit).map_or(String::new(), |p| format!(", {p}"));
        screen.line(match &culprit.what {
            RunComparison::Failed(i, _) => {
                format!("{} fails at {at}{place}", if *i == 0 { a } else { b })
            }
            _ => format!("{a} and {b} first differ at {at}{place}"),
        });
        screen.line(format!("  {}", op_text(self.graph(), culprit.node)));
        screen.line(format!("  {}", self.words(&culprit.what)));
        for (i, x) in culprit.operands.iter().enumerate() {
            screen.line(format!("  operand {i}: {}  {}", x.ty(), ArraySummary::of(std::slice::from_ref(x))));
        }
        if let Some(alone) = &culprit.alone {
            screen.line(format!("  {}", alone_words(alone)));
        }
        screen.line(format!(
            "found with {} of partial programs, with {}; to minimize the program:",
            number_of(culprit.runs, "run"),
            self.given
        ));
        let options = self.args.pair.words(self.pair) + &self.args.pair.given_words();
        let program = crate::render::screen::program();
        screen.line(format!("  {program} shrink {} {options}", quoted(&self.args.program)));
        Ok(())
    }

    fn words(&self, what: &RunComparison) -> String {
        match what {
            RunComparison::Same => "the values agree when only this op is a result".into(),
            RunComparison::Failed(_, e) => e.to_string().replace('\n', "\n  "),
            RunComparison::Differs(_, d) => {
                let [a, b] = short(self.pair);
                let parts = format!("{} of {} differ", d.count, number_of(d.elements, "element"));
                format!(
                    "element {:?}: {} on {a}, {} on {b}; {parts}",
                    d.index,
                    exact(d.first),
                    exact(d.second)
                )
            }
        }
    }

    fn object(&self, culprit: Option<&DivergingOp>) -> Value {
        let told = |c: &DivergingOp| {
            let operand = |x: &Literal| {
                let s = ArraySummary::of(std::slice::from_ref(x));
                json!({"type": x.ty().to_string(), "first": s.first})
            };
            json!({
                "node": c.node, "op": self.graph().nodes[c.node].op.name(), "text": op_text(self.graph(), c.node),
                "place": self.place(c), "difference": difference(&c.what), "runs": c.runs,
                "operands": c.operands.iter().map(operand).collect::<Vec<_>>(),
                "alone": c.alone.as_ref().map(difference),
            })
        };
        json!({
            "program": self.args.program, "devices": self.pair.names, "given": self.given,
            "agree": culprit.is_none(), "first": culprit.map(told),
        })
    }
}

/// Formats an element with all digits, so that different values look different.
fn exact(value: systole_ir::Scalar) -> String {
    match value {
        systole_ir::Scalar::Float(v) => format!("{v:?}"),
        other => summary::text(other),
    }
}

fn alone_words(alone: &RunComparison) -> &'static str {
    match alone {
        RunComparison::Same => {
            "with these operands the op alone agrees: it differs only when computed together with other ops"
        }
        RunComparison::Differs(..) => "with these operands the op alone differs too",
        RunComparison::Failed(..) => "with these operands the op alone fails too",
    }
}

/// Formats a comparison as JSON.
fn difference(what: &RunComparison) -> Value {
    match what {
        RunComparison::Same => Value::Null,
        RunComparison::Failed(i, e) => json!({"device": i, "error": e.to_string()}),
        RunComparison::Differs(_, Difference { index, first, second, count, elements }) => json!({
            "index": index, "first": exact(*first), "second": exact(*second), "differ": count, "elements": elements,
        }),
    }
}

/// Formats a node as StableHLO text.
fn op_text(graph: &Graph, node: usize) -> String {
    let whole = text::print(&single(graph, node));
    let lines: Vec<&str> = whole.lines().collect();
    // Strip the surrounding module and function.
    let own = lines.get(2..lines.len().saturating_sub(3)).unwrap_or_default();
    own.iter().map(|l| l.strip_prefix("    ").unwrap_or(l)).collect::<Vec<_>>().join("\n  ")
}
