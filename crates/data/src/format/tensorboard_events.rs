//! Writes TensorBoard event files: TFRecord files of the protocol buffer message `Event`.
//!
//! Field numbers are those of tensorboard's `compat/proto` and of `plugins/hparams/plugin_data.proto`. Every event
//! contains its plugin's metadata, so that a file can be read from any record on.

use crate::format::protobuf_wire::{put_bytes, put_varint};
use crate::format::tfrecord::frame;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Prefix of event file names; ten digits of seconds follow.
const PREFIX: &str = "events.out.tfevents.";
/// Largest time stamp with ten digits.
const LATEST: u64 = 9_999_999_999;
/// Number of buckets of a histogram.
const BUCKETS: usize = 30;

/// TensorFlow's element type numbers.
const DT_FLOAT: u64 = 1;
const DT_DOUBLE: u64 = 2;
const DT_STRING: u64 = 7;

/// Value of a TensorBoard tag at one step: scalar, histogram, image or text.
#[derive(Clone, Debug, PartialEq)]
pub enum SummaryValue {
    /// Scalar, written as float32.
    Scalar(f64),
    /// Histogram: left edge, right edge and count of each bucket, as returned by [`histogram`].
    Histogram(Vec<[f64; 3]>),
    /// Markdown text.
    Text(String),
    /// PNG images of one size.
    Images {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Encoded PNG files.
        pngs: Vec<Vec<u8>>,
    },
}

/// Value of a hyperparameter in TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub enum HParamValue {
    /// Number.
    Number(f64),
    /// String.
    Text(String),
    /// Boolean.
    Bool(bool),
}

/// Node of a TensorBoard graph: name (with `/` for scopes), op, inputs and a description.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorBoardGraphNode {
    /// Name of the node.
    pub name: String,
    /// Op name: the class of a layer.
    pub op: String,
    /// Names of the input nodes.
    pub inputs: Vec<String>,
    /// Shown as the attribute `config`; omitted if empty.
    pub config: String,
}

/// Protocol buffer message under construction.
#[derive(Default)]
struct ProtoMessageWriter(Vec<u8>);

impl ProtoMessageWriter {
    fn varint(mut self, field: u64, value: u64) -> ProtoMessageWriter {
        put_varint(&mut self.0, field << 3);
        put_varint(&mut self.0, value);
        self
    }

    fn double(mut self, field: u64, value: f64) -> ProtoMessageWriter {
        put_varint(&mut self.0, field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> ProtoMessageWriter {
        put_bytes(&mut self.0, field, bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> ProtoMessageWriter {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: ProtoMessageWriter) -> ProtoMessageWriter {
        self.bytes(field, &message.0)
    }
}

/// Returns the seconds since the Unix epoch, as stored in TensorBoard events.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Whether a file name is that of a TensorBoard event file.
pub fn is_event_file(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Lists the event files of a directory in TensorBoard's reading order; empty if the directory does not exist.
pub fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_str().is_some_and(is_event_file));
    let mut files: Vec<PathBuf> = named.map(|e| e.path()).collect();
    files.sort();
    files
}

/// Returns a name for a new event file that TensorBoard reads after all existing ones, regardless of the clock.
pub fn next_name(folders: &[PathBuf]) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let seconds = |file: PathBuf| -> Option<u64> {
        file.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
    };
    let last = folders.iter().flat_map(|folder| files_of(folder)).filter_map(seconds).max();
    let second = last.map_or(0, |last| last.saturating_add(1)).max(now() as u64).min(LATEST);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{second:010}.systole.{}.{count}", std::process::id())
}

/// Appends an event record with one field in addition to time and step.
fn put_event(out: &mut Vec<u8>, step: u64, field: u64, content: &[u8]) {
    let event = ProtoMessageWriter::default().double(1, now()).varint(2, step).bytes(field, content);
    // Writing to memory cannot fail.
    let _ = frame(out, &event.0);
}

/// Appends the header of a TensorBoard event file.
pub fn put_header(out: &mut Vec<u8>) {
    let event = ProtoMessageWriter::default().double(1, now()).text(3, "brain.Event:2");
    let event = event.message(10, ProtoMessageWriter::default().text(1, "systole"));
    let _ = frame(out, &event.0);
}

/// Appends the value of a TensorBoard tag at a step.
pub fn put_value(out: &mut Vec<u8>, step: u64, tag: &str, value: &SummaryValue) {
    let (plugin, class, tensor) = match value {
        SummaryValue::Scalar(x) => {
            let tensor = tensor(DT_FLOAT, &[]).bytes(5, &(*x as f32).to_le_bytes());
            ("scalars", 1, tensor)
        }
        SummaryValue::Histogram(buckets) => {
            let bytes: Vec<u8> = buckets.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
            ("histograms", 2, tensor(DT_DOUBLE, &[buckets.len(), 3]).bytes(4, &bytes))
        }
        SummaryValue::Text(markdown) => ("text", 2, tensor(DT_STRING, &[]).text(8, markdown)),
        SummaryValue::Images { width, height, pngs } => {
            let sizes = tensor(DT_STRING, &[pngs.len() + 2]).text(8, &width.to_string());
            let sizes = sizes.text(8, &height.to_string());
            ("images", 3, pngs.iter().fold(sizes, |tensor, png| tensor.bytes(8, png)))
        }
    };
    put_summary(out, step, tag, metadata(plugin, &[]).varint(4, class), tensor);
}

/// Appends the start of a run with its hyperparameters; TensorBoard expects them in the parent directory of the runs.
pub fn put_session_start(out: &mut Vec<u8>, hparams: &[(String, HParamValue)]) {
    let info = hparams.iter().fold(ProtoMessageWriter::default(), |info, (name, value)| {
        let value = match value {
            HParamValue::Number(x) => ProtoMessageWriter::default().double(2, *x),
            HParamValue::Text(text) => ProtoMessageWriter::default().text(3, text),
            HParamValue::Bool(yes) => ProtoMessageWriter::default().varint(4, u64::from(*yes)),
        };
        info.message(1, ProtoMessageWriter::default().text(1, name).message(2, value))
    });
    put_session(out, "_hparams_/session_start_info", 3, info.double(5, now()));
}

/// Appends the TensorBoard event of a run's end.
pub fn put_session_end(out: &mut Vec<u8>) {
    const SUCCESS: u64 = 1;
    let info = ProtoMessageWriter::default().varint(1, SUCCESS).double(2, now());
    put_session(out, "_hparams_/session_end_info", 4, info);
}

fn put_session(out: &mut Vec<u8>, tag: &str, field: u64, info: ProtoMessageWriter) {
    let content = ProtoMessageWriter::default().varint(1, 0).message(field, info);
    put_summary(out, 0, tag, metadata("hparams", &content.0), tensor(DT_FLOAT, &[0]));
}

/// Appends a graph to a TensorBoard event file.
pub fn put_graph(out: &mut Vec<u8>, step: u64, nodes: &[TensorBoardGraphNode]) {
    let graph = nodes.iter().fold(ProtoMessageWriter::default(), |graph, node| {
        let message = ProtoMessageWriter::default().text(1, &node.name).text(2, &node.op);
        let mut message = node.inputs.iter().fold(message, |m, input| m.text(3, input));
        if !node.config.is_empty() {
            let value = ProtoMessageWriter::default().text(2, &node.config);
            message = message.message(5, ProtoMessageWriter::default().text(1, "config").message(2, value));
        }
        graph.message(1, message)
    });
    put_event(out, step, 4, &graph.message(4, ProtoMessageWriter::default().varint(1, 22)).0);
}

fn put_summary(
    out: &mut Vec<u8>,
    step: u64,
    tag: &str,
    metadata: ProtoMessageWriter,
    tensor: ProtoMessageWriter,
) {
    let value = ProtoMessageWriter::default().text(1, tag).message(8, tensor).message(9, metadata);
    put_event(out, step, 5, &ProtoMessageWriter::default().message(1, value).0);
}

/// Creates a tensor message without elements.
fn tensor(dtype: u64, shape: &[usize]) -> ProtoMessageWriter {
    let shape = shape.iter().fold(ProtoMessageWriter::default(), |shape, &size| {
        shape.message(2, ProtoMessageWriter::default().varint(1, size as u64))
    });
    ProtoMessageWriter::default().varint(1, dtype).message(2, shape)
}

fn metadata(plugin: &str, content: &[u8]) -> ProtoMessageWriter {
    ProtoMessageWriter::default().message(1, ProtoMessageWriter::default().text(1, plugin).bytes(2, content))
}

/// Computes a histogram like `tensorboard.summary.v2.histogram`: 30 buckets of equal width from minimum to maximum. If
/// all values are equal, they are in the last bucket and widths are 0. Non-finite values are skipped; without values
/// there are no buckets.
pub fn histogram(values: &[f64]) -> Vec<[f64; 3]> {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let (least, greatest) =
        finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    let count = finite().count();
    if count == 0 {
        return Vec::new();
    }
    let width = (greatest - least) / BUCKETS as f64;
    // A difference beyond the float range has no width either.
    if !(width > 0.0 && width.is_finite()) {
        let mut buckets = vec![[greatest, greatest, 0.0]; BUCKETS];
        buckets[BUCKETS - 1][2] = count as f64;
        return buckets;
    }
    let edge = |i: usize| if i == BUCKETS { greatest } else { least + width * i as f64 };
    let mut buckets: Vec<[f64; 3]> = (0..BUCKETS).map(|i| [edge(i), edge(i + 1), 0.0]).collect();
    for x in finite() {
        buckets[(((x - least) / width) as usize).min(BUCKETS - 1)][2] += 1.0;
    }
    buckets
}

// Names of the previous version.
systole_base::renamed! { GraphNode => TensorBoardGraphNode, HParam => HParamValue, Value => SummaryValue }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tfrecord::{OnCorrupt, TfRecordCompression, TfRecordReader};

    /// Returns the records of a file without their times (the first nine bytes).
    fn records(bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let mut reader = TfRecordReader::from_bytes("events", bytes, OnCorrupt::Fail);
        std::iter::from_fn(|| reader.next().map(|r| r.unwrap()[9..].to_vec())).collect()
    }

    #[test]
    fn bytes_are_tensorboards() {
        let mut out = Vec::new();
        put_header(&mut out);
        put_value(&mut out, 3, "loss", &SummaryValue::Scalar(0.5));
        let [header, scalar] = &records(out)[..] else { panic!("two records") };
        assert_eq!(header, b"\x1a\x0dbrain.Event:2\x52\x09\x0a\x07systole");
        // Event{step 3, summary{value{tag, tensor{DT_FLOAT, shape {}, float_val 0.5}, metadata{plugin_data{scalars, ""}, 1}}}}
        let expected =
            b"\x10\x03\x2a\x25\x0a\x23\x0a\x04loss\x42\x0a\x08\x01\x12\x00\x2a\x04\x00\x00\x00\x3f\
            \x4a\x0f\x0a\x0b\x0a\x07scalars\x12\x00\x20\x01";
        assert_eq!(scalar, expected);
    }

    #[test]
    fn histograms_count_every_finite_value_once() {
        let values: Vec<f64> = (0..=60).map(f64::from).collect();
        let buckets = histogram(&values);
        assert_eq!((buckets.len(), buckets[0], buckets[29]), (30, [0.0, 2.0, 2.0], [58.0, 60.0, 3.0]));
        assert_eq!(buckets.iter().map(|b| b[2]).sum::<f64>(), 61.0);
        assert!(buckets.windows(2).all(|w| w[0][1] == w[1][0]));
        let same = histogram(&[f64::NAN, 2.0, 2.0, f64::INFINITY]);
        assert_eq!((same.len(), same[28], same[29]), (30, [2.0, 2.0, 0.0], [2.0, 2.0, 2.0]));
        assert!(histogram(&[f64::NAN]).is_empty() && histogram(&[]).is_empty());
        assert_eq!(histogram(&[-f64::MAX, f64::MAX])[29][2], 2.0);
    }

    #[test]
    fn names_follow_each_other_whatever_the_clock_says() {
        let dir = std::env::temp_dir().join(format!("systole-events-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut last = format!("{PREFIX}9000000000.host.1.0");
        for _ in 0..3 {
            std::fs::write(dir.join(&last), "").unwrap();
            let next = next_name(&[dir.clone(), dir.join("missing")]);
            assert!(next > last, "{next}");
            last = next;
        }
        std::fs::write(dir.join("else"), "").unwrap();
        assert_eq!(files_of(&dir).len(), 3);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(next_name(&[]).len() > PREFIX.len() + 10);
    }

    #[test]
    fn records_have_right_checksums_in_a_file_too() {
        let path = std::env::temp_dir().join(format!("systole-event-file-{}", std::process::id()));
        let mut out = Vec::new();
        put_graph(
            &mut out,
            0,
            &[TensorBoardGraphNode {
                name: "a".into(),
                op: "Dense".into(),
                inputs: vec![],
                config: "{}".into(),
            }],
        );
        put_session_start(&mut out, &[("lr".into(), HParamValue::Number(0.1))]);
        put_session_end(&mut out);
        std::fs::write(&path, &out).unwrap();
        let mut reader = TfRecordReader::open(&path, TfRecordCompression::None, OnCorrupt::Fail).unwrap();
        assert_eq!(std::iter::from_fn(|| reader.next().map(|r| r.unwrap().len())).count(), 3);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn image_tensors_hold_the_size_before_the_images() {
        let mut out = Vec::new();
        let images = SummaryValue::Images { width: 2, height: 1, pngs: vec![b"png".to_vec()] };
        put_value(&mut out, 5, "img", &images);
        // Tensor{DT_STRING, shape {3}, "2", "1", "png"}, metadata{plugin_data{images, ""}, 3}.
        let expected = b"\x10\x05\x2a\x2c\x0a\x2a\x0a\x03img\x42\x13\x08\x07\x12\x04\x12\x02\x08\x03\
            \x42\x012\x42\x011\x42\x03png\x4a\x0e\x0a\x0a\x0a\x06images\x12\x00\x20\x03";
        assert_eq!(records(out), [expected]);
    }
}
