//! `systole run`: runs a StableHLO program, an ONNX model or a .tflite file on a device.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand, kind_name};
use crate::models::program::{self, InputArgs};
use crate::models::tflite;
use crate::render::screen::{Screen, note, number_of, table};
use crate::render::timing_stats::spread;
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use systole_compile::round_product_operands;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Scalar, err};
use systole_mlir::import::ImportedProgram;
use systole_nn::Precision;
use systole_program::files::{self, ArrayFileFormat};
use systole_program::program_file::{self, ParsedProgram};
use systole_program::run::{ProgramRunner, RunResults};
use systole_program::summary::ArraySummary;
use systole_runtime::backend;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// StableHLO text or bytecode, ONNX or .tflite file; `-` reads standard input
    ///
    /// Reads StableHLO as written by JAX, PyTorch/XLA and `systole show --stage stablehlo`.
    #[arg(value_name = "FILE")]
    program: String,
    #[command(flatten)]
    inputs: InputArgs,
    /// Write the results out0, out1, … to a .npz or .safetensors file
    ///
    /// Without it, a summary of the results is printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run N more times; print the median, best, 10th and 90th percentile time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: Option<u32>,
    /// Compute products and convolutions in float32, mixed_bfloat16 or mixed_float16
    ///
    /// A mixed precision rounds the float32 operands of matrix products and convolutions; sums, results, depthwise
    /// convolutions and other operations stay in float32. [default: float32]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
}

impl RunCommand for RunArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        if tflite::is_lite_file(&self.program) && !self.is_compiled_tflite()? {
            return tflite::run(
                &self.program,
                &self.inputs,
                self.output.as_deref(),
                self.repeat.unwrap_or(0),
                screen,
            );
        }
        let format = self
            .output
            .as_deref()
            .map(ArrayFileFormat::of)
            .transpose()
            .map_err(|e| CommandError::usage(e.at("--output")))?;
        let (source, functions) = self.inputs.functions(&self.program)?;
        if let [function] = &functions[..] {
            let (object, code) = run_one(&self, &source, function.as_deref(), format, screen)?;
            object.into_iter().for_each(|o| screen.object(&o));
            return Ok(code);
        }
        if format.is_some() {
            let e =
                err!(Config, "{} has {} test functions and no main program", self.program, functions.len());
            return Err(CommandError::usage(
                e.at("--output").hint_command("name a test function with --function, to write its results"),
            ));
        }
        let (mut objects, mut failed) = (Vec::new(), 0);
        for name in functions.iter().flatten() {
            match run_one(&self, &source, Some(name), None, screen) {
                Ok((object, code)) => {
                    failed += usize::from(code != 0);
                    objects.extend(object);
                }
                Err(e) => {
                    failed += 1;
                    let e = e.at(format!("@{name}"));
                    screen.error(&kind_name(e.kind()), &e.to_string());
                    objects.push(json!({"function": name, "error": e.to_string()}));
                }
            }
        }
        match screen.json {
            true => screen.object(&json!({"program": self.program, "failed": failed, "functions": objects})),
            false => screen.line(format!("{failed} of {} failed", number_of(functions.len(), "test"))),
        }
        Ok(u8::from(failed > 0))
    }
}

impl RunArgs {
    /// Whether a .tflite file is compiled like other programs, instead of with the int8 kernels that agree with LiteRT to
    /// the bit: for accelerators, another batch size or precision.
    fn is_compiled_tflite(&self) -> CommandResult<bool> {
        let is_accelerator = !matches!(&*systole_ir::knobs::BACKEND.get(), "" | "auto" | "cpu" | "ref");
        let is_int8 = tflite::open(&self.program)?.is_quantized();
        if let (true, Some(_)) = (is_int8, self.precision) {
            let e = err!(Config, "{} is quantized: its integers are its precision", self.program);
            return Err(CommandError::usage(e.at("--precision").hint_command("remove --precision")));
        }
        let compiled = is_accelerator || self.precision.is_some() || !self.inputs.dims.dims.is_empty();
        if compiled && is_int8 {
            note(
                "int8 operators are rescaled in floats here: results may be a few steps from those of LiteRT",
            );
        }
        Ok(compiled)
    }
}

/// Runs one function. Returns its JSON object and exit code.
fn run_one(
    args: &RunArgs,
    source: &ParsedProgram,
    function: Option<&str>,
    format: Option<ArrayFileFormat>,
    screen: &Screen,
) -> Result<(Option<Value>, u8)> {
    let told = |e: Error| e.at(program::called(&args.program).to_string());
    let mut program = program_file::function(source, function).map_err(told)?.imported;
    if let Some(dtype) = args.precision.map(Precision::compute_dtype).filter(|dtype| *dtype != DType::F32) {
        let graph = &mut program.program.graph;
        *graph = Arc::new(round_product_operands(graph, dtype));
    }
    if let Some(format) = format {
        program.interface.results.iter().try_for_each(|face| format.check(&face.element.name()))?;
    }
    let devices = program.program.spread.as_ref().map_or(1, |s| s.mesh.devices());
    if devices > 1 {
        note(&format!("the program is sharded over {devices} devices; one device runs all of it"));
    }
    let (inputs, given) = args.inputs.values(&program)?;
    let device = backend("auto")?;
    let runner = ProgramRunner::new(&program, &device).map_err(told)?;
    let buffers = runner.put(&inputs)?;
    let mut times = vec![];
    let mut results = timed(&runner, &buffers, &mut times).map_err(told)?;
    let first = times.drain(..).next().unwrap_or_default();
    for _ in 0..args.repeat.unwrap_or(0) {
        results = timed(&runner, &buffers, &mut times).map_err(told)?;
    }
    let ran = runner.results(&results).map_err(told)?;
    if let (Some(path), Some(format)) = (&args.output, format) {
        write(path, format, &ran)?;
    }
    times.sort_by(f64::total_cmp);
    let answer =
        Answer { args, program: &program, device: device.name(), given, runner: &runner, first, times, ran };
    if !screen.json {
        answer.show(screen);
    }
    let object = screen.json.then(|| answer.object());
    Ok((object, answer.code(screen)))
}

/// Writes the results to a file.
fn write(path: &Path, format: ArrayFileFormat, ran: &RunResults) -> Result<()> {
    let stored = |(i, v): (usize, &systole_program::run::ResultValue)| {
        Ok((format!("out{i}"), files::stored(&v.face.element.name(), &v.face.dims, v.bytes()?)?))
    };
    let arrays = ran.values.iter().enumerate().map(stored).collect::<Result<_>>()?;
    files::write(path, format, arrays)
}

/// Runs once and waits for the end.
fn timed(
    runner: &ProgramRunner,
    inputs: &[systole_runtime::Buffer],
    times: &mut Vec<f64>,
) -> Result<Vec<systole_runtime::Buffer>> {
    let began = Instant::now();
    let results = runner.run(inputs)?;
    times.push(began.elapsed().as_secs_f64() * 1e3);
    Ok(results)
}

/// Report of a program run.
struct Answer<'a> {
    args: &'a RunArgs,
    program: &'a ImportedProgram,
    device: &'a str,
    given: String,
    runner: &'a ProgramRunner,
    /// Time of the first run in ms, and the sorted times of the others.
    first: f64,
    times: Vec<f64>,
    ran: RunResults,
}

impl Answer<'_> {
    fn show(&self, screen: &Screen) {
        screen.detail(format!(
            "{}{} on {}: {}, compiled in {:.1} ms, ran in {:.3} ms",
            program::called(&self.args.program),
            match self.program.program.graph.name.as_str() {
                "main" => String::new(),
                name => format!(", @{name},"),
            },
            self.device,
            self.given,
            self.runner.report().compile_ms,
            self.first
        ));
        spread(&self.times).into_iter().for_each(|s| screen.line(s.to_string()));
        match &self.args.output {
            Some(path) => screen.line(format!("{}: {}", path.display(), self.names())),
            None => {
                let row = |(i, v): (usize, &systole_program::run::ResultValue)| {
                    vec![format!("out{i}"), v.ty(), ArraySummary::of(&v.held).to_string()]
                };
                let rows: Vec<Vec<String>> = self.ran.values.iter().enumerate().map(row).collect();
                if !rows.is_empty() {
                    screen.line(table(&rows));
                }
            }
        }
    }

    fn names(&self) -> String {
        let one = |(i, v): (usize, &systole_program::run::ResultValue)| format!("out{i} {}", v.ty());
        self.ran.values.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    fn object(&self) -> Value {
        let times = spread(&self.times).map(|s| s.json());
        let checks: Vec<Value> =
            self.ran.checks.iter().map(|c| json!({"holds": c.is_ok(), "why": c.as_ref().err()})).collect();
        let results: Vec<Value> = self.ran.values.iter().enumerate().map(|(i, v)| result(i, v)).collect();
        json!({
            "program": self.args.program, "function": self.program.program.graph.name, "device": self.device, "arguments": self.program.interface.arguments.len(),
            "given": self.given, "compile_ms": self.runner.report().compile_ms, "run_ms": self.first,
            "repeat": times, "results": results, "checks": checks,
            "output": self.args.output.as_ref().map(|p| p.display().to_string()),
        })
    }

    /// Prints failed checks of the program and returns the exit code.
    fn code(&self, screen: &Screen) -> u8 {
        let checks = &self.ran.checks;
        let wrong: Vec<String> = checks
            .iter()
            .enumerate()
            .filter_map(|(i, c)| Some(format!("check {} of {}: {}", i + 1, checks.len(), c.as_ref().err()?)))
            .collect();
        if wrong.is_empty() {
            if !checks.is_empty() && !screen.json {
                screen.line(match checks.len() {
                    1 => "the program's check passed".into(),
                    n => format!("all {n} checks of the program passed"),
                });
            }
            return 0;
        }
        let what = match checks.len() {
            1 => "the program's check failed".into(),
            n => format!("{} of the program's {n} checks failed", wrong.len()),
        };
        let hint = match self.device {
            "ref" => {
                "the interpreter follows the StableHLO specification: review the expected values in the program"
                    .into()
            }
            device => {
                format!(
                    "find the first op that differs from the interpreter with `systole check` (--devices {device},ref)"
                )
            }
        };
        let name = &self.program.program.graph.name;
        let file = program::called(&self.args.program);
        let e = Error::new(ErrorKind::Numeric, what).at(format!("@{name} of {file}"));
        let e = e.because(wrong.join("; ")).hint(hint);
        screen.error(&kind_name(e.kind()), &e.to_string());
        1
    }
}

/// JSON summary of a result.
fn result(i: usize, v: &systole_program::run::ResultValue) -> Value {
    let s = ArraySummary::of(&v.held);
    let mut o = Map::new();
    let mut put = |key: &str, value: Value| drop(o.insert(key.into(), value));
    put("name", json!(format!("out{i}")));
    put("type", json!(v.ty()));
    put("first", first(&v.held, s.first.len()));
    if let Some((low, high, mean)) = s.range {
        [("min", low), ("max", high), ("mean", mean)].into_iter().for_each(|(key, v)| put(key, number(v)));
    }
    put("nan", json!(s.nan));
    put("infinite", json!(s.infinite));
    o.into()
}

/// Returns the first elements; a complex element is a pair.
fn first(held: &[Literal], n: usize) -> Value {
    let one = |x: &Literal, i: usize| match x.get(i) {
        Scalar::Bool(b) => json!(b),
        Scalar::Int(v) => json!(v),
        Scalar::Uint(v) => json!(v),
        Scalar::Float(v) => number(v),
    };
    let element = |i: usize| match held {
        [x] => one(x, i),
        parts => parts.iter().map(|x| one(x, i)).collect(),
    };
    (0..n).map(element).collect()
}

/// A number, or its name (NaN, inf) if JSON cannot represent it.
fn number(v: f64) -> Value {
    if v.is_finite() { json!(v) } else { json!(v.to_string()) }
}
