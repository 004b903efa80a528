//! Model files: round trips, errors that name any corruption, and full disks that do no harm.
//!
//! (Failures of each file system call are tested in `src/file.rs`.)

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use systole_ir::{DType, ErrorKind, Literal, TensorType};
use systole_nn::ModelFile;
use systole_testing::assert_error;

/// Every element type, an empty array, a scalar, names and strings with awkward characters.
fn model() -> ModelFile {
    let mut tensors = vec![
        (
            "weights/dense/kernel".to_string(),
            Literal::from_slice([2, 3], &[1f32, -2., 3., 0.5, f32::NAN, -0.0]).unwrap(),
        ),
        ("flags".into(), Literal::from_bools([3], &[true, false, true]).unwrap()),
        ("leer \"é\\\n/0".into(), Literal::zeros(TensorType::new(DType::F16, [0, 4]))),
    ];
    for dtype in DType::ALL {
        tensors.push((format!("all/{dtype}"), Literal::scalar(dtype, 1.0)));
    }
    let text = r#"{"layers":[{"class_name":"Dense"}],"header_crc32c":"00000000"}"#;
    let metadata = BTreeMap::from([("architecture".into(), text.into()), ("step".into(), "12".into())]);
    ModelFile { tensors, metadata }
}

fn small() -> ModelFile {
    let tensors = vec![
        ("a".to_string(), Literal::from_slice([2], &[1f32, 2.0]).unwrap()),
        ("b".to_string(), Literal::from_slice([3], &[1u8, 2, 3]).unwrap()),
        ("c".to_string(), Literal::from_bools([1], &[true]).unwrap()),
    ];
    ModelFile { tensors, metadata: BTreeMap::from([("step".into(), "1".into())]) }
}

/// A path in the temporary folder that no other test uses.
fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("systole-files-{name}-{}", std::process::id()))
}

fn bytes_of(model: &ModelFile, name: &str) -> Vec<u8> {
    let path = place(name);
    model.save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> systole_ir::Result<ModelFile> {
    ModelFile::read(&mut &bytes[..], bytes.len() as u64)
}

fn message(bytes: &[u8]) -> String {
    read(bytes).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn what_is_saved_comes_back_and_the_same_model_gives_the_same_bytes() {
    let bytes = bytes_of(&model(), "round-trip");
    assert_eq!(read(&bytes).unwrap(), model());
    assert_eq!(bytes, bytes_of(&model(), "round-trip-2"));
    let empty = ModelFile::default();
    assert_eq!(read(&bytes_of(&empty, "empty")).unwrap(), empty);
}

/// The `safetensors` library reads what we write, every array aligned to its element size.
#[test]
fn other_programs_can_read_it() {
    let bytes = bytes_of(&model(), "library");
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((header + 8) % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap()["step"], "12");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, value) in &model().tensors {
        let view = file.tensor(name).unwrap();
        assert_eq!((view.shape(), view.data()), (value.shape().dims(), value.bytes()), "{name}");
        let offset = metadata.info(name).unwrap().data_offsets.0;
        assert_eq!(offset % value.dtype().size(), 0, "{name}");
    }
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let bytes = bytes_of(&small(), "cut");
    for n in 0..bytes.len() {
        assert!(read(&bytes[..n]).is_err(), "cut to {n}");
        // The disk promised more than it gives.
        assert!(ModelFile::read(&mut &bytes[..n], bytes.len() as u64).is_err(), "ends at {n}");
    }
    let cut = read(&bytes[..bytes.len() - 1]).unwrap_err();
    assert_error(&cut, ErrorKind::Data, &[&(bytes.len() - 1).to_string()]);
    let longer = [&bytes[..], &[0]].concat();
    assert_error(&read(&longer).unwrap_err(), ErrorKind::Data, &[&format!("byte {}", bytes.len())]);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = bytes_of(&small(), "flip");
    for i in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[i / 8] ^= 1 << (i % 8);
        assert!(read(&flipped).is_err(), "bit {} of byte {}", i % 8, i / 8);
    }
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 2;
    let n = bytes.len();
    let text = message(&flipped);
    assert!(text.contains("tensor c") && text.contains(&format!("bytes {}..{n}", n - 1)), "{text}");
}

/// A file whose header and sums are right in themselves, made from a header that may lie.
fn forged(header: &str, data: &[u8]) -> Vec<u8> {
    const DIGITS: std::ops::Range<usize> = 34..42;
    let mut text = header.as_bytes().to_vec();
    text[DIGITS].copy_from_slice(b"00000000");
    let sum = format!("{:08x}", crc32c::crc32c(&text));
    text[DIGITS].copy_from_slice(sum.as_bytes());
    [&(text.len() as u64).to_le_bytes(), &text[..], data].concat()
}

/// The header of two tensors `a: U8[2]` and `b: U8[3]` with right sums, and their bytes.
fn honest() -> (Value, [u8; 5]) {
    let data = [1, 2, 3, 4, 5];
    let sum = |bytes: &[u8]| format!("{:08x}", crc32c::crc32c(bytes));
    let metadata = json!({
        "header_crc32c": "00000000", "format": "systole", "format_version": "1",
        "crc32c:a": sum(&data[..2]), "crc32c:b": sum(&data[2..]),
    });
    let header = json!({
        "__metadata__": metadata,
        "a": { "dtype": "U8", "shape": [2], "data_offsets": [0, 2] },
        "b": { "dtype": "U8", "shape": [3], "data_offsets": [2, 5] },
    });
    (header, data)
}

#[test]
fn header_lies_are_named() {
    let (header, data) = honest();
    assert_eq!(read(&forged(&header.to_string(), &data)).unwrap().tensors.len(), 2);
    let huge = 1u64 << 62;
    let lies: [(&str, Value, &str); 14] = [
        ("/b/data_offsets", json!([1, 4]), "tensor b overlaps"),
        ("/b/data_offsets", json!([3, 6]), "tensor b leaves a gap"),
        ("/b/data_offsets", json!([2, 6]), "U8[3] needs 3 bytes, but offsets 2..6 hold 4 bytes"),
        ("/b/data_offsets", json!([5, 2]), "a negative number of bytes"),
        ("/b/data_offsets", json!([-1, 2]), "byte "),
        ("/b/shape", json!([2]), "U8[2] needs 2 bytes"),
        ("/b/shape", json!([huge, 16]), "too many bytes to count"),
        ("/b/dtype", json!("U16"), "U16[3] needs 6 bytes"),
        ("/b/dtype", json!("F8_E4M3"), "element type `F8_E4M3` is not supported"),
        ("/b/dtype", json!("BOOL"), "expected a bool of 0 or 1"),
        ("/__metadata__/crc32c:a", json!("00000000"), "tensor a"),
        ("/__metadata__/format", json!("pt"), "unknown file format `pt`"),
        ("/__metadata__/format_version", json!("2"), "format version `2`, expected 1"),
        ("/a", json!({ "dtype": "U8", "shape": [huge], "data_offsets": [0, huge] }), "tensor b overlaps"),
    ];
    for (pointer, lie, expected) in lies {
        let mut lying = header.clone();
        *lying.pointer_mut(pointer).unwrap() = lie.clone();
        let text = message(&forged(&lying.to_string(), &data));
        assert!(text.contains(expected), "{pointer} = {lie}: {text}");
    }
}

#[test]
fn header_lies_beyond_values_are_named() {
    let (header, data) = honest();
    let text = header.to_string();
    let twice = text.replace(r#""b":"#, r#""a":"#);
    assert!(message(&forged(&twice, &data)).contains("`a` occurs twice"));
    let twice = text.replace("crc32c:b", "crc32c:a");
    assert!(message(&forged(&twice, &data)).contains("`crc32c:a` occurs twice"));
    let unknown = text.replace(r#""shape":[3]"#, r#""shape":[3],"code":"x""#);
    assert!(message(&forged(&unknown, &data)).contains("code"));
    let without_sum = text.replace("crc32c:b", "note:b");
    assert!(message(&forged(&without_sum, &data)).contains("checksum is missing"));
    let extra_sum = text.replace(r#""crc32c:a""#, r#""crc32c:z":"00000000","crc32c:a""#);
    assert!(message(&forged(&extra_sum, &data)).contains("a checksum for tensor z"));
    let deep = text.replace("[3]", &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert!(message(&forged(&deep, &data)).contains("byte "));
    let trailing = format!("{text} {{}}");
    assert!(message(&forged(&trailing, &data)).contains("trailing"));
    let foreign = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}            "#;
    let file = [&(foreign.len() as u64).to_le_bytes(), foreign.as_bytes(), &[1, 2]].concat();
    assert_error(&read(&file).unwrap_err(), ErrorKind::Data, &["byte 8"]);
}

/// Nothing of the promised size is allocated: a length near 2⁶⁴ is refused at once.
#[test]
fn a_huge_header_length_is_refused() {
    let mut bytes = bytes_of(&small(), "huge");
    for length in [u64::MAX, u64::MAX - 7, 1 << 40, bytes.len() as u64 - 7] {
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let text = message(&bytes);
        assert!(text.contains("invalid header length") && text.contains(&length.to_string()), "{text}");
    }
}

#[test]
fn names_that_would_not_come_back_are_refused() {
    let zero = || Literal::scalar(DType::F32, 0.0);
    let path = place("names");
    let twice = ModelFile { tensors: vec![("a".into(), zero()), ("a".into(), zero())], ..Default::default() };
    assert!(twice.save(&path).unwrap_err().to_string().contains("`a`"));
    let own = ModelFile { tensors: vec![("__metadata__".into(), zero())], ..Default::default() };
    assert!(own.save(&path).is_err());
    for key in ["format", "header_crc32c", "crc32c:a"] {
        let metadata = BTreeMap::from([(key.to_string(), "x".to_string())]);
        let model = ModelFile { metadata, ..Default::default() };
        assert!(model.save(&path).unwrap_err().to_string().contains(key));
    }
    assert!(!path.exists());
}

#[test]
fn paths_that_cannot_be_written_or_read_say_so() {
    let dir = place("paths");
    std::fs::create_dir_all(dir.join("folder/inner")).unwrap();
    let error = |path: &Path| small().save(path).unwrap_err().to_string();
    let missing = error(&dir.join("none/model"));
    assert!(missing.contains("create the folder first") && missing.contains("none/model"), "{missing}");
    assert!(error(&dir.join("folder")).contains("cannot save"));
    assert!(error(Path::new("/")).contains("no file name"));
    let load = |path: &Path| ModelFile::load(path).unwrap_err().to_string();
    assert!(load(&dir.join("none")).contains("check the path"));
    assert!(load(&dir).contains("not a regular file"));
    let entries: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
    assert_eq!(entries.len(), 1, "nothing is left behind");
    std::fs::remove_dir_all(dir).unwrap();
}

#[cfg(unix)]
#[test]
fn links_protection_and_rights_keep_their_meaning() {
    use std::os::unix::fs::PermissionsExt;
    let dir = place("unix");
    std::fs::create_dir_all(dir.join("store")).unwrap();
    let (real, link) = (dir.join("store/model"), dir.join("latest"));
    small().save(&real).unwrap();
    let set = |mode| std::fs::set_permissions(&real, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o600);
    std::os::unix::fs::symlink(&real, &link).unwrap();
    model().save(&link).unwrap();
    assert!(link.is_symlink());
    assert_eq!(ModelFile::load(&real).unwrap(), model());
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    set(0o400);
    let text = small().save(&real).unwrap_err().to_string();
    assert!(text.contains("write-protected"), "{text}");
    assert_eq!(ModelFile::load(&real).unwrap(), model());
    assert_eq!(std::fs::read_dir(dir.join("store")).unwrap().count(), 1);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Unmounts when dropped, so that a failing test leaves no mount.
struct Mount(PathBuf);

impl Mount {
    /// A disk of 128 KiB, where this process may mount one.
    fn tiny(dir: PathBuf) -> Option<Mount> {
        std::fs::create_dir_all(&dir).ok()?;
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=128k", "tmpfs"])
            .arg(&dir)
            .stderr(std::process::Stdio::null())
            .status();
        let mounted = mount.is_ok_and(|s| s.success());
        if !mounted {
            let _ = std::fs::remove_dir(&dir);
        }
        mounted.then_some(Mount(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A model of 80 KiB fits once on a disk of 128 KiB, not twice. Where this process may not mount one, the tests in
/// `src/file.rs`, which fail each call with the same error, are all there is.
#[test]
fn a_full_disk_leaves_the_earlier_file_whole() {
    let of = |value: f32| ModelFile {
        tensors: vec![("w".into(), Literal::from_slice([20_000], &vec![value; 20_000]).unwrap())],
        ..Default::default()
    };
    let Some(disk) = Mount::tiny(place("disk")) else {
        println!(
            "SKIPPED a_full_disk_leaves_the_earlier_file_whole: this process may not mount a small disk"
        );
        return;
    };
    let path = disk.0.join("model");
    of(1.0).save(&path).unwrap();
    let text = of(2.0).save(&path).unwrap_err().to_string();
    assert!(text.contains("free 8") && text.contains("while writing"), "{text}");
    assert_eq!(ModelFile::load(&path).unwrap(), of(1.0));
    assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 1);
}
