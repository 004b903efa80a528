//! Program arguments: named arrays from a file, or random values. Each argument is a list of row-major arrays that hold
//! it ([`ProgramPort::types`]).

use crate::files::StoredArray;
use systole_base::rng::{RandomStream, hash_name};
use systole_base::{DType, Error, Literal, Result, ResultExt, Shape, err};
use systole_mlir::interface::ProgramPort;

/// Returns the type of a program argument as text, `f32[2, 3]`, with the source element type.
pub fn type_text(face: &ProgramPort) -> String {
    format!("{}{}", face.element.name(), Shape::new(&face.dims))
}

/// Returns the name of a program argument: `arg0`.
pub fn name(index: usize) -> String {
    format!("arg{index}")
}

/// Formats program arguments: `arg0: f32[2, 3], arg1: i32[]`.
pub fn listed(faces: &[ProgramPort]) -> String {
    let one = |(i, face): (usize, &ProgramPort)| format!("{}: {}", name(i), type_text(face));
    faces.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns an error for a program called without arguments.
pub fn missing(faces: &[ProgramPort]) -> Error {
    let arguments =
        if faces.len() == 1 { "an argument".into() } else { format!("{} arguments", faces.len()) };
    err!(Config, "the program requires {arguments}, got none")
        .because(listed(faces))
        .hint("pass --random 0 for random values, or arrays of these names with --input FILE.npz or FILE.safetensors")
}

/// Converts a file's arrays to program arguments. They are matched by name: `arg0`, `arr_0` (numpy.savez), or the
/// parameter's name in `own`.
///
/// # Errors
/// `Data`: lists all missing arguments, type and shape mismatches, and unmatched arrays.
pub fn of_file(
    faces: &[ProgramPort],
    own: &[String],
    given: Vec<(String, StoredArray)>,
) -> Result<Vec<Vec<Literal>>> {
    let mut found: Vec<Option<StoredArray>> = vec![None; faces.len()];
    let mut wrong = Vec::new();
    let alone = faces.len() == 1;
    for (key, array) in given {
        let place = (0..faces.len()).find(|&i| {
            let called = [name(i), format!("arr_{i}")];
            called.contains(&key) || own.get(i).is_some_and(|n| *n == key) || alone && key.is_empty()
        });
        match place.and_then(|i| found.get_mut(i)) {
            None => wrong.push(format!("`{key}` ({}) matches no argument", array.ty())),
            Some(Some(_)) => wrong.push(format!("`{key}` is given twice")),
            Some(slot) => *slot = Some(array),
        }
    }
    for (i, (face, array)) in faces.iter().zip(&found).enumerate() {
        match array {
            None => wrong.push(format!("{} is missing: {}", name(i), type_text(face))),
            Some(a) if a.dims == face.dims && a.elements.contains(&&*face.element.name()) => {}
            Some(a) => wrong.push(format!("{} has type {}, expected {}", name(i), a.ty(), type_text(face))),
        }
    }
    if !wrong.is_empty() {
        return Err(err!(Data, "the arrays do not match the program's arguments")
            .because(wrong.join("; "))
            .hint(format!("pass {}", listed(faces))));
    }
    let split = |(i, (face, array)): (usize, (&ProgramPort, Option<StoredArray>))| {
        let array = array.ok_or_else(|| err!(Bug, "a checked array is missing"));
        array.and_then(|a| face.split(&a.bytes)).at(|| name(i))
    };
    faces.iter().zip(found).enumerate().map(split).collect()
}

/// Returns random program arguments: floats from −1 to 1, integers from 0 to 9 (often indices), bools. The same seed
/// gives the same values for every program.
///
/// # Errors
/// If an element type is unsupported.
pub fn random(faces: &[ProgramPort], seed: u64) -> Result<Vec<Vec<Literal>>> {
    let one = |(i, face): (usize, &ProgramPort)| {
        let mut stream = RandomStream::new(seed, hash_name("argument"), i as u64);
        let element = face.element.name();
        let mut bytes = Vec::with_capacity(face.bytes());
        for _ in 0..face.dims.iter().product::<usize>() {
            draw(&element, &mut stream, &mut bytes).at(|| name(i))?;
        }
        face.split(&bytes).at(|| name(i))
    };
    faces.iter().enumerate().map(one).collect()
}

/// Appends a random element.
fn draw(element: &str, stream: &mut RandomStream, out: &mut Vec<u8>) -> Result<()> {
    if let Some(part) = element.strip_prefix("complex<").and_then(|e| e.strip_suffix('>')) {
        draw(part, stream, out)?;
        return draw(part, stream, out);
    }
    let float = f64::from(stream.uniform()) * 2.0 - 1.0;
    if let Some(dtype) = DType::parse(element) {
        let value = match dtype {
            DType::Bool => f64::from(u8::from(float > 0.0)),
            d if d.is_float() => float,
            _ => ((float + 1.0) * 5.0).floor().min(9.0),
        };
        out.extend(Literal::scalar(dtype, value).bytes());
        return Ok(());
    }
    let bits = stream.next_u32();
    let sign = if bits >> 8 & 1 == 1 { 0x80 } else { 0 };
    // One, and values slightly below it: the bits of such floats are ordered like the numbers.
    let below = |one: u8, steps: u32, sign: u8| sign | (one - (bits % steps) as u8);
    out.push(match element {
        "i4" | "ui4" => (bits % 8) as u8,
        "i2" | "ui2" => (bits % 2) as u8,
        "f8E4M3FN" | "f8E4M3" => below(0x38, 24, sign),
        "f8E5M2" => below(0x3c, 16, sign),
        "f8E3M4" => below(0x30, 32, sign),
        "f8E4M3FNUZ" => below(0x40, 24, sign),
        "f8E5M2FNUZ" => below(0x40, 16, sign),
        "f8E4M3B11FNUZ" => below(0x58, 24, sign),
        "f8E8M0FNU" => below(0x7f, 4, 0),
        "f4E2M1FN" => (sign >> 4) | (bits % 8) as u8,
        _ => {
            return Err(err!(Unsupported, "random elements of type {element} are not supported")
                .hint("pass arrays for the program's arguments with --input"));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::stored;
    use systole_base::ErrorKind;
    use systole_mlir::interface::SourceElement;

    fn face(dtype: DType, dims: &[usize], first: usize) -> ProgramPort {
        ProgramPort { dims: dims.to_vec(), element: SourceElement::Plain(dtype), first }
    }

    #[test]
    fn every_misfit_is_told_at_once() {
        let faces = [face(DType::F32, &[2], 0), face(DType::I32, &[], 1), face(DType::Bool, &[1], 2)];
        let own = ["x", "n", "m"].map(String::from);
        let array =
            |element: &str, dims: &[usize], bytes: usize| stored(element, dims, vec![0; bytes]).unwrap();
        let told = of_file(
            &faces,
            &own,
            vec![
                ("arg0".into(), array("f64", &[2], 16)),
                ("y".into(), array("i32", &[], 4)),
                ("m".into(), array("i1", &[1], 1)),
            ],
        );
        let told = told.unwrap_err().to_string();
        for part in [
            "`y` (i32[]) matches no argument",
            "arg0 has type f64[2], expected f32[2]",
            "arg1 is missing: i32[]",
            "try: pass arg0: f32[2], arg1: i32[], arg2: i1[1]",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let given = vec![
            ("x".to_string(), array("f32", &[2], 8)),
            ("arr_1".to_string(), array("i32", &[], 4)),
            ("arg2".to_string(), array("i1", &[1], 1)),
        ];
        assert_eq!(of_file(&faces, &own, given).unwrap().len(), 3);
        let twice =
            vec![("x".to_string(), array("f32", &[2], 8)), ("arg0".to_string(), array("f32", &[2], 8))];
        let e = of_file(&faces[..1], &own, twice).unwrap_err();
        systole_testing::assert_error(&e, ErrorKind::Data, &["`arg0`"]);
    }

    #[test]
    fn drawn_values_are_small_and_those_of_the_seed() {
        for dtype in DType::ALL {
            let x = random(&[face(dtype, &[200], 0)], 7).unwrap().remove(0).remove(0);
            assert_eq!(x, random(&[face(dtype, &[200], 0)], 7).unwrap().remove(0).remove(0));
            assert_ne!(x, random(&[face(dtype, &[200], 0)], 8).unwrap().remove(0).remove(0));
            let values = x.to_f64s();
            let (low, high) = if dtype.is_float() { (-1.0, 1.0) } else { (0.0, 9.0) };
            assert!(values.iter().all(|v| (low..=high).contains(v)), "{dtype}");
            assert!(values.iter().any(|v| *v != values[0]), "{dtype}");
        }
    }
}
