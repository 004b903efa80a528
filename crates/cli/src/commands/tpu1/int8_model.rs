//! A model of 8 bits on the first TPU.

use systole_base::rng::RandomStream;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_tflite::{TfliteInterpreter, TfliteModel as Graph};
use systole_tpu1::{ChipReport, Tpu1Chip, compile, of_graph};

/// Samples of a batch, where none are asked for.
const BATCH: usize = 64;

/// The time of a batch.
pub(super) fn report(name: &str, graph: &Graph, batch: Option<usize>, chip: &Tpu1Chip) -> Result<ChipReport> {
    let (model, last) = of_graph(name, graph)?;
    let make = |chip: &Tpu1Chip| compile(chip, &model, batch.unwrap_or(BATCH));
    let mut report = ChipReport::new(chip, &make)?;
    if graph.outputs.first() != Some(&last) {
        report.notes.push("its softmax is left to the host".into());
    }
    Ok(report)
}

/// Runs the program on a drawn sample, and says how it compares with the interpreter.
///
/// # Errors
/// A value that differs.
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
    let expected = found.unwrap_or_else(|| {
        Err(Error::new(ErrorKind::Bug, "the interpreter gave no output").at(name.to_string()))
    })?;
    let same = run.output.iter().zip(&expected).filter(|(a, b)| a == b).count();
    if same != expected.len() || run.output.len() != expected.len() {
        let what = format!("{same} of {} values are the interpreter's", expected.len());
        return Err(Error::new(ErrorKind::Bug, what).at(name).hint("report this with the file"));
    }
    Ok(format!(
        "checked: the program's {same} values of a drawn sample are the interpreter's, {} sums overflowed",
        run.overflows
    ))
}
