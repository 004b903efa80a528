//! Reads and writes `XSpace` profiles of XLA's profilers: planes (device, host) with lines (stream, thread) of events
//! with names, times and statistics, as far as device time attribution requires. Field numbers:
//! <https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto>.

use std::collections::HashMap;
use systole_ir::Result;
use systole_runtime::protobuf::{ProtoMessage, ProtoValue, fields};

/// A timed event in an `XSpace` profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct XEvent {
    /// Kernel name.
    pub name: String,
    /// Start in nanoseconds since the plane's origin.
    pub start: f64,
    /// Duration in nanoseconds.
    pub took: f64,
    /// Program that it belongs to.
    pub module: String,
    /// Operation of the program.
    pub op: String,
    /// Source path of the operation: `dense/dot_general`.
    pub path: String,
}

/// A plane of an `XSpace` profile: a device or the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct XPlane {
    /// `/device:GPU:0`, `/host:CPU`.
    pub name: String,
    /// Origin in nanoseconds, since 1970 if the writer has a clock.
    pub origin: u64,
    /// Lines with their names.
    pub lines: Vec<(String, Vec<XEvent>)>,
}

/// Names of statistics.
const MODULE: &str = "hlo_module";
const OP: &str = "hlo_op";
const PATH: &str = "tf_op";

/// Parses the planes of a serialized `XSpace`. A trailing zero byte, which some plugins append, is ignored.
///
/// # Errors
/// If the bytes are damaged.
pub fn read(bytes: &[u8]) -> Result<Vec<XPlane>> {
    let bytes = if reads(bytes) { bytes } else { bytes.strip_suffix(&[0]).unwrap_or(bytes) };
    let mut planes = Vec::new();
    for field in fields(bytes) {
        if let (1, plane) = field? {
            planes.push(plane_of(plane.bytes())?);
        }
    }
    Ok(planes)
}

fn reads(bytes: &[u8]) -> bool {
    fields(bytes).all(|field| field.is_ok())
}

fn plane_of(bytes: &[u8]) -> Result<XPlane> {
    let (mut plane, mut lines) = (XPlane::default(), Vec::new());
    let (mut events, mut statistics) = (HashMap::new(), HashMap::new());
    for field in fields(bytes) {
        match field? {
            (2, name) => plane.name = name.text().into(),
            (3, line) => lines.push(line.bytes()),
            (4, entry) => events.extend(named(entry.bytes())?),
            (5, entry) => statistics.extend(named(entry.bytes())?),
            _ => {}
        }
    }
    let begins = lines.iter().map(|line| begin_of(line)).collect::<Result<Vec<u64>>>()?;
    plane.origin = begins.iter().copied().min().unwrap_or(0);
    for (line, begin) in lines.iter().zip(begins) {
        let (name, mut all) = line_of(line, &events, &statistics)?;
        // As integers first: nanoseconds since 1970 have more digits than an `f64`.
        all.iter_mut().for_each(|event| event.start += (begin - plane.origin) as f64);
        plane.lines.push((name, all));
    }
    Ok(plane)
}

/// Parses a map entry from a number to a message whose second field is a name.
fn named(entry: &[u8]) -> Result<Option<(u64, String)>> {
    let (mut key, mut name) = (0, String::new());
    for field in fields(entry) {
        match field? {
            (1, ProtoValue::Number(n)) => key = n,
            (2, value) => {
                for field in fields(value.bytes()) {
                    if let (2, text) = field? {
                        name = text.text().into();
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some((key, name)))
}

type MetadataNames = HashMap<u64, String>;

fn line_of(
    bytes: &[u8],
    events: &MetadataNames,
    statistics: &MetadataNames,
) -> Result<(String, Vec<XEvent>)> {
    let (mut name, mut all) = (String::new(), Vec::new());
    for field in fields(bytes) {
        match field? {
            (2, text) => name = text.text().into(),
            (4, event) => all.push(event_of(event.bytes(), events, statistics)?),
            _ => {}
        }
    }
    Ok((name, all))
}

/// Returns the start time of a line.
fn begin_of(bytes: &[u8]) -> Result<u64> {
    let mut begin = 0;
    for field in fields(bytes) {
        if let (3, ProtoValue::Number(n)) = field? {
            begin = n;
        }
    }
    Ok(begin)
}

fn event_of(bytes: &[u8], events: &MetadataNames, statistics: &MetadataNames) -> Result<XEvent> {
    let mut event = XEvent::default();
    for field in fields(bytes) {
        match field? {
            (1, ProtoValue::Number(n)) => event.name = events.get(&n).cloned().unwrap_or_default(),
            // Picoseconds.
            (2, ProtoValue::Number(n)) => event.start = n as f64 / 1e3,
            (3, ProtoValue::Number(n)) => event.took = n as f64 / 1e3,
            (4, statistic) => {
                let (name, value) = statistic_of(statistic.bytes(), statistics)?;
                match name {
                    MODULE => event.module = value,
                    OP => event.op = value,
                    PATH => event.path = value,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(event)
}

/// Returns the name of a statistic, and its value if it is a string.
fn statistic_of<'n>(bytes: &[u8], statistics: &'n MetadataNames) -> Result<(&'n str, String)> {
    let (mut name, mut value) = ("", String::new());
    let known = |n: u64| statistics.get(&n).map_or("", String::as_str);
    for field in fields(bytes) {
        match field? {
            (1, ProtoValue::Number(n)) => name = known(n),
            (5, text) => value = text.text().into(),
            // Frequent strings are stored once, as names of statistics.
            (7, ProtoValue::Number(n)) => value = known(n).into(),
            _ => {}
        }
    }
    Ok((name, value))
}

/// Serializes planes as `XSpace`. Times are rounded to picoseconds.
pub fn write(planes: &[XPlane]) -> Vec<u8> {
    planes.iter().enumerate().fold(ProtoMessage::default(), |all, (i, p)| all.bytes(1, &written(i, p))).done()
}

fn written(index: usize, plane: &XPlane) -> Vec<u8> {
    let mut names: Vec<&str> = Vec::new();
    let mut numbers: HashMap<&str, i64> = HashMap::new();
    let mut number = |name| {
        *numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() as i64
        })
    };
    let mut message = ProtoMessage::default().int(1, index as i64).bytes(2, plane.name.as_bytes());
    for (k, (name, events)) in plane.lines.iter().enumerate() {
        let mut line = ProtoMessage::default().int(1, k as i64 + 1).bytes(2, name.as_bytes());
        line = line.int(3, plane.origin as i64);
        for event in events {
            let whole = |nanos: f64| (nanos * 1e3).round() as i64;
            let mut one = ProtoMessage::default().int(1, number(&event.name));
            one = one.int(2, whole(event.start)).int(3, whole(event.took));
            for (name, value) in [(MODULE, &event.module), (OP, &event.op), (PATH, &event.path)] {
                if !value.is_empty() {
                    let statistic = ProtoMessage::default().int(1, number(name)).int(7, number(value));
                    one = one.bytes(4, &statistic.done());
                }
            }
            line = line.bytes(4, &one.done());
        }
        message = message.bytes(3, &line.done());
    }
    // One list of names serves both maps.
    for (k, name) in names.iter().enumerate() {
        let k = k as i64 + 1;
        let entry = ProtoMessage::default().int(1, k).bytes(2, name.as_bytes()).done();
        let entry = ProtoMessage::default().int(1, k).bytes(2, &entry).done();
        message = message.bytes(4, &entry).bytes(5, &entry);
    }
    message.done()
}

// Names of the previous version.
systole_ir::renamed! { Event => XEvent, Plane => XPlane }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_the_same() {
        let event = |name: &str, start: f64, path: &str| XEvent {
            name: name.into(),
            start,
            took: 1234.5,
            module: "train".into(),
            op: String::new(),
            path: path.into(),
        };
        let lines = vec![
            ("Stream".to_string(), vec![event("gemm", 0.0, "dense/dot_general"), event("add", 1300.25, "")]),
            ("idle".to_string(), Vec::new()),
        ];
        let origin = 1_795_706_664_495_303_079;
        let planes = [
            XPlane { name: "/device:CPU:0".into(), origin, lines },
            XPlane { name: "/host".into(), ..XPlane::default() },
        ];
        let bytes = write(&planes);
        assert_eq!(read(&bytes).unwrap(), planes);
        let with_end = [&bytes[..], &[0]].concat();
        assert_eq!(read(&with_end).unwrap(), planes);
        let cut = (0..bytes.len()).filter(|n| read(&bytes[..*n]).is_ok_and(|p| p == planes)).count();
        assert_eq!(cut, 0, "truncated files are errors or other planes");
    }

    /// As protobuf writes an event with a statistic by reference, one by text, and times before names.
    #[test]
    fn what_profilers_write_is_read() {
        let name = |k: i64, name: &str| {
            let value = ProtoMessage::default().int(1, k).bytes(2, name.as_bytes()).done();
            ProtoMessage::default().int(1, k).bytes(2, &value).done()
        };
        let by_reference = ProtoMessage::default().int(1, 2).int(7, 3).done();
        let by_text = ProtoMessage::default().int(1, 4).bytes(5, b"fusion.3").done();
        let event = ProtoMessage::default().int(1, 9).int(2, 2500).int(3, 500).bytes(4, &by_reference);
        let line = ProtoMessage::default()
            .bytes(4, &event.bytes(4, &by_text).done())
            .bytes(2, b"Stream #14")
            .int(3, 7);
        let plane = ProtoMessage::default().bytes(3, &line.done()).bytes(2, b"/device:GPU:0");
        let plane = plane.bytes(4, &name(9, "loop_fusion")).bytes(5, &name(2, "hlo_module"));
        let plane = plane.bytes(5, &name(3, "jit_f")).bytes(5, &name(4, "hlo_op"));
        let space = ProtoMessage::default().bytes(4, b"host").bytes(1, &plane.done()).done();
        let read = read(&space).unwrap();
        let (line, events) = &read[0].lines[0];
        assert_eq!((read[0].name.as_str(), line.as_str()), ("/device:GPU:0", "Stream #14"));
        let e = &events[0];
        assert_eq!((e.name.as_str(), e.module.as_str(), e.op.as_str()), ("loop_fusion", "jit_f", "fusion.3"));
        assert_eq!((read[0].origin, e.start, e.took), (7, 2.5, 0.5));
    }
}
