//! Simulates an int8 .tflite model on the first TPU and checks its output.

use systole_base::rng::RandomStream;
use systole_ir::{Literal, Result, err};
use systole_tflite::{TfliteInterpreter, TfliteModel as Graph};
use systole_tpu1::{ChipReport, Tpu1Chip, compile, of_graph};

/// Default batch size.
const BATCH: usize = 64;

/// Reports the time of a batch.
pub(super) fn report(name: &str, graph: &Graph, batch: Option<usize>, chip: &Tpu1Chip) -> Result<ChipReport> {
    let (model, last) = of_graph(name, graph)?;
    let make = |chip: &Tpu1Chip| compile(chip, &model, batch.unwrap_or(BATCH));
    let mut report = ChipReport::new(chip, &make)?;
    if graph.outputs.first() != Some(&last) {
        report.notes.push("the softmax runs on the host".into());
    }
    Ok(report)
}

/// Runs the program on a random sample and compares its output with the interpreter's.
///
/// # Errors
/// If a value differs.
pub(super) fn check(name: &str, graph: &Graph, chip: &Tpu1Chip) -> Result<String> {
    let (model, last) = of_graph(name, graph)?;
    let mut draw = RandomStream::new(0, 0, 0);
    let input: Vec<i8> = (0..model.input().values()).map(|_| draw.next_u32() as i8).collect();
    let run = compile(chip, &model, 1)?.run(chip, &input)?;
    let dims =
        graph.inputs.first().map_or(Ok(Vec::new()), |&i| graph.tensor(i).map(|t| t.dims().to_vec()))?;
    let mut found = None;
    TfliteInterpreter::new(graph)?.run_with(&[Literal::from_slice(&dims[..], &input)?], |t, y| {
        if t == last {
            found = Some(y.as_slice::<i8>().map(<[i8]>::to_vec));
        }
    })?;
    let expected =
        found.unwrap_or_else(|| Err(err!(Bug, "the interpreter returned no output").at(name.to_string())))?;
    let same = run.output.iter().zip(&expected).filter(|(a, b)| a == b).count();
    if same != expected.len() || run.output.len() != expected.len() {
        return Err(err!(Bug, "only {same} of {} values match the interpreter", expected.len())
            .at(name)
            .hint("report this bug, and attach the file"));
    }
    Ok(format!(
        "checked: all {same} output values of a random sample match the interpreter, {} accumulator overflows",
        run.overflows
    ))
}
