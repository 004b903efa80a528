//! Runs and summarizes .tflite files for `systole run`, `summary`, `predict` and `evaluate`.

use crate::args::exit_status::{CommandError, CommandResult};
use crate::models::program::{self, InputArgs};
use crate::render::screen::{Screen, number_of, table};
use crate::render::timing_stats::spread;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use systole_data::format::ModelFormat;
use systole_ir::{DType, Error, Literal, Result, ResultExt, err};
use systole_nn::grouped;
use systole_program::files::{self, ArrayFileFormat, StoredArray};
use systole_quant::{FloatPredictor, GraphEngine, TfliteProgram};
use systole_tflite::{OptionField, TfliteModel, TfliteOp, TfliteOperator, TfliteTensor};

/// Number of profiled runs; the minimum per operator is shown, because other load on the machine disturbs some runs.
const PROFILED: usize = 10;

/// Whether the name has the extension `.tflite`.
pub(crate) fn is_lite(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("tflite"))
}

/// Whether the name is that of a .tflite file, by its extension or its first bytes.
pub(crate) fn is_lite_file(name: &str) -> bool {
    is_lite(name) || program::model_format(name) == Some(ModelFormat::Tflite)
}

/// Reads a .tflite file.
pub(crate) fn open(name: &str) -> Result<TfliteModel> {
    let bytes = systole_data::input_file::read(name)
        .map_err(|e| Error::io("cannot read", name, e).hint("check the path of the .tflite file"))?;
    TfliteModel::from_bytes(name, &bytes)
}

/// Number of threads for running samples.
pub(crate) fn threads() -> usize {
    let asked = systole_ir::knobs::THREADS.get_usize();
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// Engine for .tflite files: the CPU engine, or the reference interpreter with `--device ref`.
pub(crate) fn engine() -> GraphEngine {
    if systole_ir::knobs::BACKEND.get() == "ref" { GraphEngine::Reference } else { GraphEngine::Fast }
}

/// Splits a batch into its rows: `x: T[B, …] → T[1, …]` each.
pub(crate) fn rows(x: &Literal) -> Result<Vec<Literal>> {
    let dims = x.shape().dims();
    let size = x.ty().bytes() / dims.first().copied().unwrap_or(1).max(1);
    let one: Vec<usize> = std::iter::once(1).chain(dims.iter().skip(1).copied()).collect();
    x.bytes().chunks_exact(size.max(1)).map(|b| Literal::from_bytes(x.ty().with_shape(&one[..]), b)).collect()
}

/// `x: f32[B, …] → f32[B, …]`, sample by sample.
pub(crate) fn predict_on_batch(answers: &FloatPredictor, x: &Literal) -> Result<Literal> {
    let answers = answers.of(&rows(&x.convert(DType::F32))?)?;
    let dims = answers.first().map_or(&[][..], |y| y.shape().dims());
    let dims: Vec<usize> = std::iter::once(answers.len()).chain(dims.iter().skip(1).copied()).collect();
    Literal::from_slice(dims, &answers.iter().flat_map(|y| y.to_f32s()).collect::<Vec<f32>>())
}

/// Prints the operators, scales and sizes of a .tflite file (`systole summary FILE.tflite`).
pub(crate) fn summary(name: &str, screen: &Screen) -> CommandResult {
    let model = open(name)?;
    let of = |t: &TfliteTensor| match t.quantization.as_ref().map(|q| (&q.scale[..], &q.zero_point[..])) {
        Some(([scale], [zero])) => format!("{} {scale:.6} · (q − {zero})", t.ty),
        Some((scales, _)) => format!("{} {} scales", t.ty, scales.len()),
        None => t.ty.to_string(),
    };
    if screen.json {
        let tensor = |&i: &usize| model.tensors.get(i).map_or(Value::Null, tensor_json);
        let operators: Vec<Value> = model
            .operators
            .iter()
            .map(|o| {
                let inputs: Vec<Value> = o.inputs.iter().flatten().map(tensor).collect();
                json!({"op": o.op.name(), "version": o.version, "inputs": inputs, "outputs": o.outputs.iter().map(tensor).collect::<Vec<_>>()})
            })
            .collect();
        screen.object(&json!({
            "file": name, "description": model.description, "inputs": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
            "outputs": model.outputs.iter().map(tensor).collect::<Vec<_>>(), "operators": operators,
            "constant_bytes": model.constant_bytes(),
        }));
        return Ok(0);
    }
    let mut rows = vec![["Op", "version", "output", "type", "constants"].map(String::from).to_vec()];
    for o in &model.operators {
        let made = o.outputs.first().and_then(|&i| model.tensors.get(i));
        let weights: Vec<String> = o
            .inputs
            .iter()
            .flatten()
            .filter_map(|&i| model.tensors.get(i))
            .filter(|t| t.data.is_some())
            .map(of)
            .collect();
        let (name, ty) = made.map_or((String::new(), String::new()), |t| (t.name.clone(), of(t)));
        rows.push(vec![o.op.name().into(), o.version.to_string(), name, ty, weights.join(", ")]);
    }
    screen.line(table(&rows).trim_end());
    for (what, all) in [("Input", &model.inputs), ("Output", &model.outputs)] {
        for t in all.iter().filter_map(|&i| model.tensors.get(i)) {
            screen.line(format!("{what} {}: {}", t.name, of(t)));
        }
    }
    screen.line(format!(
        "{}, {} bytes of constants",
        number_of(model.operators.len(), "operator"),
        grouped(model.constant_bytes() as u64)
    ));
    Ok(0)
}

fn tensor_json(t: &TfliteTensor) -> Value {
    let q = t.quantization.as_ref();
    json!({
        "name": t.name, "dtype": t.ty.dtype.name(), "shape": t.dims(), "constant": t.data.is_some(),
        "scale": q.map(|q| q.scale.clone()), "zero_point": q.map(|q| q.zero_point.clone()),
    })
}

/// Prints the kernel of each operator and the memory of one sample (`systole show FILE.tflite --stage kernels`).
pub(crate) fn kernels(name: &str, model: TfliteModel, screen: &Screen) -> CommandResult {
    let program = TfliteProgram::new(model, engine(), 0).at(|| name.to_string())?;
    let (kernels, bytes) = (program.kernels(), program.arena_bytes());
    let made = |o: &TfliteOperator| o.outputs.first().and_then(|&i| program.model().tensors.get(i)).cloned();
    let rows: Vec<[String; 4]> = (program.model().operators.iter().zip(&kernels))
        .map(|(o, kernel)| {
            let (output, ty) = made(o).map_or_else(Default::default, |t| (t.name, t.ty.to_string()));
            [o.op.name().into(), (*kernel).into(), output, ty]
        })
        .collect();
    if screen.json {
        let steps: Vec<Value> = rows
            .iter()
            .map(|[op, kernel, output, ty]| json!({"op": op, "kernel": kernel, "output": output, "type": ty}))
            .collect();
        screen.object(&json!({"target": name, "stage": "kernels", "steps": steps, "arena_bytes": bytes}));
        return Ok(0);
    }
    let head = ["Op", "kernel", "output", "type"].map(String::from);
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).map(|row| row.to_vec()).collect();
    screen.line(table(&all).trim_end());
    screen.line(format!("{} bytes of intermediate results for a sample", grouped(bytes as u64)));
    Ok(0)
}

/// Runs the model once. Returns the results and the time in ms.
fn timed(program: &TfliteProgram, inputs: &[Literal]) -> Result<(Vec<Literal>, f64)> {
    let began = Instant::now();
    let results = program.run(inputs)?;
    Ok((results, began.elapsed().as_secs_f64() * 1e3))
}

/// Returns the operator profile if `--profile` is set: the ten slowest operators, or all.
fn profile(program: &TfliteProgram, inputs: &[Literal]) -> Result<Option<String>> {
    if !systole_runtime::events::wanted(2) {
        return Ok(None);
    }
    let Some(mut best) = program.operator_times(inputs)? else { return Ok(None) };
    for _ in 1..PROFILED {
        let own = program.operator_times(inputs)?.unwrap_or_default();
        best.iter_mut().zip(own).for_each(|(least, own)| least.1 = own.1.min(least.1));
    }
    let (model, whole) = (program.model(), best.iter().map(|(_, time)| time).sum::<Duration>());
    let mut all: Vec<_> = model.operators.iter().zip(&best).collect();
    if systole_ir::knobs::PROFILE.get() != "kernels" {
        all.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        all.truncate(10);
    }
    let mut rows = vec![["Op", "kernel", "output", "type", "ms", "share"].map(String::from).to_vec()];
    for (o, (form, time)) in all {
        let made = o.outputs.first().and_then(|&i| model.tensors.get(i));
        let (name, ty) = made.map_or_else(Default::default, |t| (t.name.clone(), t.ty.to_string()));
        let share = 100.0 * time.as_secs_f64() / whole.as_secs_f64().max(1e-12);
        let ms = format!("{:.3}", time.as_secs_f64() * 1e3);
        rows.push(vec![o.op.name().into(), (*form).into(), name, ty, ms, format!("{share:.1} %")]);
    }
    let whole = whole.as_secs_f64() * 1e3;
    Ok(Some(format!("minimum of {PROFILED} runs, {whole:.3} ms in total:\n{}", table(&rows))))
}

/// Describes how many operators run as compiled kernels.
fn engine_summary(program: &TfliteProgram) -> String {
    let (all, interpreted) = (program.model().operators.len(), program.interpreted());
    match engine() {
        GraphEngine::Fast => {
            format!("{} of {all} operators run as kernels of the CPU engine", all - interpreted)
        }
        GraphEngine::Reference => "all operators run in the interpreter".into(),
    }
}

/// Runs a .tflite file on raw inputs of the file's own types (`systole run FILE.tflite`).
pub(crate) fn run(
    name: &str,
    args: &InputArgs,
    output: Option<&Path>,
    repeat: u32,
    screen: &Screen,
) -> CommandResult {
    let format =
        output.map(ArrayFileFormat::of).transpose().map_err(|e| CommandError::usage(e.at("--output")))?;
    if args.function.is_some() {
        let e = err!(Config, "a .tflite file has one function").at("--function");
        return Err(CommandError::usage(e.hint_command("remove --function")));
    }
    let model = open(name)?;
    let inputs = inputs(&model, args)?;
    let program = TfliteProgram::new(model, engine(), 0).at(|| name.to_string())?;
    let device = if engine() == GraphEngine::Fast { "cpu" } else { "ref" };
    let (results, first) = timed(&program, &inputs).at(|| name.to_string())?;
    let profile = profile(&program, &inputs).at(|| name.to_string())?;
    let mut times = (0..repeat).map(|_| Ok(timed(&program, &inputs)?.1)).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    let stored = |(i, y): (usize, &Literal)| {
        Ok((format!("out{i}"), files::stored(y.dtype().name(), y.shape().dims(), y.bytes().to_vec())?))
    };
    if let (Some(path), Some(format)) = (output, format) {
        files::write(path, format, results.iter().enumerate().map(stored).collect::<Result<_>>()?)?;
    }
    if screen.json {
        let one = |(i, y): (usize, &Literal)| {
            let first: Vec<f64> = y.to_f64s().into_iter().take(8).collect();
            json!({"name": format!("out{i}"), "type": y.ty().to_string(), "first": first})
        };
        let all: Vec<Value> = results.iter().enumerate().map(one).collect();
        let interpreted = (engine() == GraphEngine::Fast).then(|| program.interpreted());
        screen.object(&json!({
            "program": name, "device": device, "interpreted": interpreted, "run_ms": first,
            "repeat": spread(&times).map(|s| s.json()), "results": all, "output": output,
        }));
        return Ok(0);
    }
    screen.detail(format!("{name} on {device}: {}, ran in {first:.3} ms", engine_summary(&program)));
    spread(&times).into_iter().for_each(|s| screen.line(s.to_string()));
    if let Some(table) = profile {
        screen.line(table.trim_end());
    }
    let names: Vec<String> = results.iter().enumerate().map(|(i, y)| format!("out{i} {}", y.ty())).collect();
    match output {
        Some(path) => screen.line(format!("{}: {}", path.display(), names.join(", "))),
        None => {
            for (name, y) in names.iter().zip(&results) {
                let first: Vec<String> = y.to_f64s().iter().take(8).map(f64::to_string).collect();
                let more = if y.ty().elements() > 8 { ", …" } else { "" };
                screen.line(format!("{name}: {}{more}", first.join(", ")));
            }
        }
    }
    Ok(0)
}

fn inputs(model: &TfliteModel, args: &InputArgs) -> Result<Vec<Literal>> {
    let wanted = model.inputs.iter().map(|&i| model.tensor(i)).collect::<Result<Vec<_>>>()?;
    if let Some(seed) = args.random {
        let one = |(t, &i): (&&TfliteTensor, &usize)| drawn(t, rows_chosen_by(model, i), seed);
        return wanted.iter().zip(&model.inputs).map(one).collect();
    }
    let Some(path) = &args.input else {
        let list: Vec<String> =
            wanted.iter().enumerate().map(|(i, t)| format!("arg{i} {} ({})", t.ty, t.name)).collect();
        return Err(err!(Config, "the .tflite file needs input arrays")
            .because(format!("expected {}", list.join(", ")))
            .hint_command("pass arrays with --input FILE.npz, or random ones with --random SEED"));
    };
    let arrays = files::read(path)?;
    let find = |(i, t): (usize, &&TfliteTensor)| {
        let arg = format!("arg{i}");
        let found = arrays
            .iter()
            .find(|(name, _)| *name == arg)
            .or_else(|| arrays.iter().find(|(name, _)| *name == t.name));
        let only = || arrays.first().filter(|_| arrays.len() == 1 && wanted.len() == 1);
        let (_, stored) = found.or_else(only).ok_or_else(|| {
            err!(Data, "expected an array named {arg} or {}", t.name).at(path.display().to_string())
        })?;
        literal(stored, t).at(|| format!("{arg} of {}", path.display()))
    };
    wanted.iter().enumerate().map(find).collect()
}

fn literal(stored: &StoredArray, t: &TfliteTensor) -> Result<Literal> {
    if !stored.elements.contains(&t.ty.dtype.name()) || stored.dims != t.dims() {
        let e = err!(Data, "the type of the array is {}, expected {}", stored.ty(), t.ty);
        return Err(
            e.hint_command("run `systole summary FILE.tflite` to see the types and scales of the inputs")
        );
    }
    Literal::from_bytes(t.ty.clone(), &stored.bytes)
}

/// Returns the row count of the smallest table that `tensor` indexes (gather), or `None` if it indexes none.
fn rows_chosen_by(model: &TfliteModel, tensor: usize) -> Option<usize> {
    let mut same = vec![tensor];
    let mut rows: Option<usize> = None;
    for o in &model.operators {
        let reads = |at: usize| o.inputs.get(at).copied().flatten().is_some_and(|t| same.contains(&t));
        match o.op {
            TfliteOp::Reshape | TfliteOp::Squeeze | TfliteOp::ExpandDims if reads(0) => {
                same.extend(&o.outputs)
            }
            TfliteOp::Gather if reads(1) => {
                let table = o.inputs.first().copied().flatten().and_then(|t| model.tensor(t).ok());
                let dims = table.map_or(&[][..], TfliteTensor::dims);
                let axis = o.int(OptionField::Axis);
                let axis = if axis < 0 { axis + dims.len() as i64 } else { axis };
                let n = usize::try_from(axis).ok().and_then(|axis| dims.get(axis).copied());
                rows = rows.into_iter().chain(n).min();
            }
            _ => {}
        }
    }
    rows
}

/// Random input: floats in [−1, 1), row indices below `rows` for index tensors, otherwise random bytes.
fn drawn(t: &TfliteTensor, rows: Option<usize>, seed: u64) -> Result<Literal> {
    let mut stream = systole_base::rng::RandomStream::new(seed, systole_base::rng::hash_name(&t.name), 0);
    let n = t.ty.elements();
    match t.ty.dtype {
        DType::F32 => {
            Literal::from_slice(t.dims(), &(0..n).map(|_| stream.range(-1.0, 1.0)).collect::<Vec<_>>())
        }
        dtype if dtype.is_int() && rows.is_some() => {
            let rows = rows.unwrap_or(1).max(1) as u64;
            let one = |_| Literal::scalar(dtype, stream.below(rows) as f64).bytes().to_vec();
            Literal::from_bytes(t.ty.clone(), &(0..n).flat_map(one).collect::<Vec<u8>>())
        }
        _ => {
            let bytes: Vec<u8> = (0..t.ty.bytes()).map(|_| stream.next_u64() as u8).collect();
            Literal::from_bytes(t.ty.clone(), &bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_choose_rows_are_drawn_among_them() {
        let of = |name: &str, dims: &[usize], dtype| TfliteTensor::new(name, dims, dtype);
        let table = |rows: usize| {
            let data = Literal::from_slice([rows, 2], &vec![0.0f32; rows * 2]).unwrap();
            TfliteTensor::constant("table", data)
        };
        let tensors = vec![
            of("tokens", &[1, 40], DType::I32),
            of("flat", &[40], DType::I32),
            table(7),
            of("vectors", &[40, 2], DType::F32),
            of("free", &[4], DType::I32),
            table(3),
            of("narrow", &[1, 40, 2], DType::F32),
        ];
        let mut model = TfliteModel {
            tensors,
            operators: vec![
                TfliteOperator::new(TfliteOp::Reshape, [0], [1]),
                TfliteOperator::new(TfliteOp::Gather, [2, 1], [3]),
            ],
            inputs: vec![0, 4],
            outputs: vec![3],
            ..TfliteModel::default()
        };
        assert_eq!((rows_chosen_by(&model, 0), rows_chosen_by(&model, 4)), (Some(7), None));
        let drawn = drawn(&model.tensors[0], Some(7), 1).unwrap();
        let seen: std::collections::BTreeSet<i64> = (0..40).map(|i| drawn.get(i).as_i64()).collect();
        assert!(seen.iter().all(|k| (0..7).contains(k)) && seen.len() > 4, "{seen:?}");
        model.operators.push(TfliteOperator::new(TfliteOp::Gather, [5, 0], [6]));
        assert_eq!(rows_chosen_by(&model, 0), Some(3));
    }
}
