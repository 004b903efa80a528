//! Reads prediction samples from a NumPy array whose shape is the model's input, with or without a batch dimension.

use systole_data::format::npy;
use systole_ir::{Error, ErrorKind, Literal, Result};

/// Reads the only array of a `.npy` or `.npz` file; `None` for other files, and for an `.npz` file of several fields.
pub(super) fn only_array(path: &str) -> Result<Option<Literal>> {
    let name = path.to_lowercase();
    let name = name.trim_end_matches(".gz");
    if name.ends_with(".npy") {
        return npy::read(path).map(Some);
    }
    if !name.ends_with(".npz") {
        return Ok(None);
    }
    // A file with arrays of texts is read as records.
    let mut arrays = npy::read_npz(path).unwrap_or_default();
    Ok(if arrays.len() == 1 { arrays.pop().map(|(_, x)| x) } else { None })
}

/// Returns the shapes of one sample that an input accepts: grayscale images need no channel dimension.
fn accepted(input: &[usize]) -> Vec<Vec<usize>> {
    let mut shapes = vec![input.to_vec()];
    match *input {
        [h, w] => shapes.push(vec![h, w, 1]),
        [h, w, 1] => shapes.push(vec![h, w]),
        [1] => shapes.push(Vec::new()),
        _ => {}
    }
    shapes
}

/// Returns samples `T[N, …sample]` of an array `[N, …input]` or `[…input]`; `None` for other shapes.
pub(super) fn batch_of(x: &Literal, input: &[usize], sample: &[usize]) -> Result<Option<Literal>> {
    let shapes = accepted(input);
    let is = |dims: &[usize]| shapes.iter().any(|shape| shape == dims);
    let count = match x.shape().dims() {
        one if is(one) => 1,
        [count, one @ ..] if is(one) => *count,
        _ => return Ok(None),
    };
    let dims: Vec<usize> = std::iter::once(count).chain(sample.iter().copied()).collect();
    x.reshape(dims).map(Some)
}

/// Error for an array that is neither one sample nor a batch of samples.
pub(super) fn wrong_shape(x: &Literal, input: &[usize], path: &str) -> Error {
    let channels_first = match *input {
        [h, w, c] => x.shape().dims().ends_with(&[c, h, w]),
        _ => false,
    };
    let batch = input.iter().fold("[N".to_string(), |text, n| format!("{text}, {n}")) + "]";
    Error::new(ErrorKind::Data, format!("expected {batch} or {input:?}, got {:?}", x.shape().dims()))
        .at(path)
        .because("one sample has the shape of the model's input, and several have a dimension before it")
        .hint(match channels_first {
            true => "put the channels last in your program: x.transpose(0, 2, 3, 1)",
            false => "reshape the array in your program, such as x[None] for one sample or x[..., None] for grayscale images",
        })
}
