//! Tests of object store access against a local mock server.
//!
//! Covers listing and reading of S3 and Google Cloud Storage, and failures.

use super::http_connector::SHA256_INFO;
use super::*;
use crate::format::tfrecord::{TfRecordCompression, Writer};
use crate::input_file::{self, Input};
use crate::stage::test::resumes;
use crate::{CsvColumn, CsvOptions, Dataset, ImageFolder, Sample, TfRecordOptions};
use object_store::client::{CryptoProvider, SigningAlgorithm};
use rsa::pkcs8::DecodePrivateKey;
use rsa::{Pkcs1v15Sign, PrivateKey};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;
use systole_base::{DType, ErrorKind, Literal};
use systole_testing::assert_error;

/// Behavior of the server for one request.
#[derive(Clone, Copy, Debug)]
enum Act {
    Serve,
    Status(u16),
    /// Announces the full length, but sends only this many bytes.
    Cut(usize),
    Silence,
}

struct Server {
    address: String,
    acts: Arc<Mutex<VecDeque<Act>>>,
    requests: Arc<Mutex<Vec<String>>>,
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Server {
    fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: format!("http://{}", listener.local_addr().unwrap()),
            acts: Arc::default(),
            requests: Arc::default(),
            objects: Arc::default(),
        };
        let (acts, requests, objects) =
            (server.acts.clone(), server.requests.clone(), server.objects.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let (acts, requests, objects) = (acts.clone(), requests.clone(), objects.clone());
                thread::spawn(move || {
                    let asked = ask(&stream);
                    lock(&requests).push(asked.clone());
                    let act = lock(&acts).pop_front().unwrap_or(Act::Serve);
                    let answer = answer(&asked, &lock(&objects).clone());
                    // The client may have disconnected.
                    let _ = send(stream, act, &answer);
                });
            }
        });
        server
    }

    /// Configures a bucket on this server with its own name.
    fn bucket(&self, name: &str) -> String {
        let patience =
            RetryPolicy { attempts: 4, wait: Duration::from_millis(1), answer: Duration::from_millis(400) };
        let bucket = format!("{name}-{}", self.address.rsplit(':').next().unwrap());
        let s3 = [
            ("endpoint", self.address.as_str()),
            ("access_key_id", "AKID"),
            ("secret_access_key", "secret"),
            ("region", "eu-north-1"),
        ];
        let google = [("base_url", self.address.as_str()), ("bearer_token", "ya29.token")];
        configure(&format!("s3://{bucket}"), s3, patience).unwrap();
        configure(&format!("gs://{bucket}"), google, patience).unwrap();
        bucket
    }

    fn put(&self, bucket: &str, key: &str, bytes: impl Into<Vec<u8>>) {
        lock(&self.objects).insert(format!("{bucket}/{key}"), bytes.into());
    }

    fn next(&self, acts: &[Act]) {
        lock(&self.acts).extend(acts);
    }

    /// Returns and clears the received requests.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.requests))
    }
}

fn ask(stream: &TcpStream) -> String {
    let mut asked = String::new();
    let mut reader = BufReader::new(stream);
    while !asked.ends_with("\r\n\r\n") && reader.read_line(&mut asked).unwrap() > 0 {}
    asked
}

fn field<'a>(asked: &'a str, name: &str) -> Option<&'a str> {
    asked
        .lines()
        .find_map(|l| l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)))
        .map(|(_, v)| v)
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{:08x}-{}\"", crc32c::crc32c(bytes), bytes.len())
}

/// Decodes percent-encoding such as `%2F`.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        out.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
        out += &part[2..];
    }
    out
}

/// Returns head and body.
fn answer(asked: &str, objects: &BTreeMap<String, Vec<u8>>) -> (String, Vec<u8>) {
    let target = asked.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let target = &decoded(target);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if query.contains("list-type=2") {
        return listing(path.trim_end_matches('/'), query, objects);
    }
    let Some(bytes) = objects.get(path) else { return ("404 Not Found\r\n".into(), b"<Error/>".to_vec()) };
    if field(asked, "if-match").is_some_and(|t| t != tag(bytes)) {
        return ("412 Precondition Failed\r\n".into(), Vec::new());
    }
    let about = format!("ETag: {}\r\nLast-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\n", tag(bytes));
    let Some(range) = field(asked, "range").and_then(|r| r.strip_prefix("bytes=")) else {
        return (format!("200 OK\r\n{about}"), bytes.clone());
    };
    let (from, to) = range.split_once('-').unwrap();
    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
    if from >= bytes.len() {
        return ("416 Range Not Satisfiable\r\n".into(), Vec::new());
    }
    let part = &bytes[from..(to + 1).min(bytes.len())];
    let last = from + part.len() - 1;
    (format!("206 Partial\r\n{about}Content-Range: bytes {from}-{last}/{}\r\n", bytes.len()), part.to_vec())
}

fn listing(bucket: &str, query: &str, objects: &BTreeMap<String, Vec<u8>>) -> (String, Vec<u8>) {
    let prefix = query.split('&').find_map(|p| p.strip_prefix("prefix=")).unwrap_or_default();
    let (mut contents, mut folders) = (String::new(), std::collections::BTreeSet::new());
    for (path, bytes) in objects {
        let Some(rest) = path.strip_prefix(&format!("{bucket}/{prefix}")) else { continue };
        match rest.split_once('/') {
            Some((folder, _)) => drop(folders.insert(format!("{prefix}{folder}/"))),
            None => {
                contents += &format!(
                    "<Contents><Key>{prefix}{rest}</Key><LastModified>2022-01-01T00:00:00.000Z</LastModified>\
                     <Size>{}</Size><ETag>{}</ETag></Contents>",
                    bytes.len(),
                    tag(bytes).replace('"', "&quot;")
                );
            }
        }
    }
    let folder = |f: String| format!("<CommonPrefixes><Prefix>{f}</Prefix></CommonPrefixes>");
    let folders: String = folders.into_iter().map(folder).collect();
    let body =
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{folders}</ListBucketResult>");
    ("200 OK\r\nContent-Type: application/xml\r\n".into(), body.into_bytes())
}

fn send(mut stream: TcpStream, act: Act, (head, body): &(String, Vec<u8>)) -> io::Result<()> {
    let whole = |length: usize| format!("HTTP/1.1 {head}Content-Length: {length}\r\n\r\n");
    match act {
        Act::Serve => stream.write_all(&[whole(body.len()).as_bytes(), body].concat()),
        Act::Status(status) => write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 4\r\n\r\noops"),
        Act::Cut(n) => stream.write_all(&[whole(body.len()).as_bytes(), &body[..n]].concat()),
        Act::Silence => {
            thread::sleep(Duration::from_secs(2));
            Ok(())
        }
    }
}

/// Records `0..n` of `size` bytes each.
fn records(n: u8, size: usize) -> Vec<u8> {
    let name = format!("systole-objects-{:?}-{}", thread::current().id(), std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut writer = Writer::create(&path, TfRecordCompression::None).unwrap();
    (0..n).for_each(|i| writer.write(&vec![i; size]).unwrap());
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

fn firsts(d: &Dataset) -> Vec<u8> {
    d.iter().map(|s| s.unwrap().get("record").unwrap().bytes()[0]).collect()
}

#[test]
fn files_of_both_clouds_are_listed_read_and_resumed() {
    let server = Server::new();
    let bucket = server.bucket("sources");
    for shard in 0..3 {
        server.put(&bucket, &format!("recs/part-{shard}.tfrecord"), records(7, 10));
    }
    server.put(&bucket, "recs/deep/table.csv", "x,y\n1,a\n2,b\n");
    let array = Literal::from_slice([3, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    server.put(&bucket, "array.npy", crate::format::npy::to_bytes(&array).unwrap());
    server.put(&bucket, "text/a.txt", "one\ntwo\n");
    server.put(&bucket, "none.txt", "");
    for cloud in ["s3", "gs"] {
        let at = |key: &str| format!("{cloud}://{bucket}/{key}");
        let files = Dataset::list_files(&at("recs/part-*.tfrecord")).unwrap();
        let names: Vec<String> = files.iter().map(|s| s.unwrap().text("path").unwrap().to_string()).collect();
        assert_eq!(names, [0, 1, 2].map(|i| at(&format!("recs/part-{i}.tfrecord"))));
        let all = files.interleave(|s: Sample| s.text("path").map(|p| Dataset::tfrecord([p])), 3, 1);
        assert_eq!(firsts(&all), (0..7).flat_map(|i| [i; 3]).collect::<Vec<u8>>());
        resumes(&Dataset::tfrecord(&names).shuffle(4, 1).batch(2));
        let any = TfRecordOptions { random_access: true, ..TfRecordOptions::default() };
        assert_eq!(firsts(&Dataset::tfrecord_with(&names[1..2], any).shuffle(7, 3)).len(), 7);
        let csv = Dataset::list_files(&at("**/*.csv")).unwrap().flat_map(|s: Sample| {
            s.text("path").map(|p| Dataset::csv([p], &[("x", DType::I64), ("y", DType::U8)]))
        });
        assert_eq!(csv.iter().map(|s| s.unwrap().get("x").unwrap().get(0).as_i64()).sum::<i64>(), 3);
        resumes(&Dataset::text_lines([at("text/a.txt"), at("none.txt")]));
        let rows = Dataset::from_npy(at("array.npy")).unwrap();
        assert_eq!(rows.iter().nth(2).unwrap().unwrap().get("value").unwrap().to_f64s(), [5.0, 6.0]);
        let opened = crate::tools::open(&at("recs"), None).unwrap();
        assert_eq!((opened.kind, opened.files.len()), ("TFRecord", 3));
        assert!(
            input_file::is_dir(at("recs"))
                && !input_file::is_dir(at("recs/none"))
                && input_file::is_file(at("none.txt"))
        );
        assert_eq!(input_file::read(at("none.txt")).unwrap(), b"");
    }
    let asked = server.asked();
    let says = |name: &str, begins: &str| {
        asked.iter().any(|a| field(a, name).is_some_and(|v| v.starts_with(begins)))
    };
    assert!(says("authorization", "AWS4-HMAC-SHA256 Credential=AKID/"), "signed");
    assert!(says("authorization", "Bearer ya29.token"));
    let e = Dataset::list_files(&format!("s3://{bucket}/*.jpg")).unwrap_err().to_string();
    assert!(e.contains(&format!("`s3://{bucket}/*.jpg`")), "{e}");
    let options = CsvOptions {
        columns: vec![CsvColumn { name: "z".into(), dtype: DType::F32, default: None }],
        separator: ',',
        header: true,
    };
    let lacking = Dataset::csv_with([format!("s3://{bucket}/recs/deep/table.csv")], options);
    let e = lacking.iter().next().unwrap().unwrap_err().to_string();
    assert!(e.contains("`z`") && e.contains("s3://"), "{e}");
}

#[test]
fn a_bucket_is_a_folder_and_no_file() {
    let server = Server::new();
    let bucket = server.bucket("whole");
    server.put(&bucket, "a.csv", "x\n1\n");
    // Stores answer for the bucket itself.
    for asked in [bucket.clone(), format!("{bucket}/")] {
        lock(&server.objects).insert(asked, Vec::new());
    }
    for path in [format!("s3://{bucket}"), format!("gs://{bucket}/")] {
        assert!(!input_file::is_file(&path) && input_file::is_dir(&path), "{path}");
    }
}

#[test]
fn folders_of_pictures_are_read_from_buckets() {
    let server = Server::new();
    let bucket = server.bucket("album");
    let jpeg = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gradient.jpg")).unwrap();
    for key in ["cat/1.jpg", "cat/more/2.jpg", "dog/1.jpg"] {
        server.put(&bucket, &format!("pictures/{key}"), jpeg.clone());
    }
    server.put(&bucket, "pictures/dog/notes.txt", "no picture");
    let folder = ImageFolder::open(format!("gs://{bucket}/pictures")).unwrap();
    assert_eq!(
        (folder.classes.join(","), folder.pictures.len(), folder.left_out.len()),
        ("cat,dog".into(), 3, 1)
    );
    let first = folder.dataset().iter().next().unwrap().unwrap();
    let local = crate::format::any_format::from_bytes("gradient.jpg", &jpeg).unwrap();
    assert_eq!(first.get("image").unwrap(), &local);
}

#[test]
fn large_objects_come_in_growing_ranges_one_of_them_ahead() {
    let server = Server::new();
    let bucket = server.bucket("large");
    let bytes: Vec<u8> = (0..12_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    server.put(&bucket, "big", bytes.clone());
    let path = format!("gs://{bucket}/big");
    assert_eq!(input_file::read(&path).unwrap(), bytes);
    let starts = |asked: Vec<String>| {
        let start =
            |a: &String| field(a, "range")?.strip_prefix("bytes=")?.split('-').next()?.parse::<usize>().ok();
        asked.iter().filter_map(start).collect::<Vec<_>>()
    };
    let kib = |n: usize| n << 10;
    let mut all = starts(server.asked());
    all.sort_unstable();
    assert_eq!(
        all,
        [0, kib(256), kib(256 + 1024), kib(256 + 1024 + 4096), kib(256 + 1024 + 4096) + (8 << 20)]
            [..all.len()]
    );
    assert_eq!(all.len(), 4, "nothing is read twice");
    let mut open = Input::open(&path).unwrap();
    open.seek(SeekFrom::End(-5)).unwrap();
    let mut end = Vec::new();
    open.read_to_end(&mut end).unwrap();
    assert_eq!(end, bytes[bytes.len() - 5..]);
    assert_eq!(starts(server.asked()), [0, bytes.len() - 5], "a place is gone to at once");
}

#[test]
fn what_passes_is_tried_again_and_the_bytes_are_right() {
    let server = Server::new();
    let bucket = server.bucket("troubles");
    server.put(&bucket, "recs", records(9, 100_000));
    let path = format!("s3://{bucket}/recs");
    for acts in [
        &[Act::Status(500), Act::Status(503), Act::Status(429)][..],
        &[Act::Cut(1000), Act::Serve, Act::Cut(0)],
        &[Act::Silence, Act::Serve],
    ] {
        server.next(acts);
        assert_eq!(firsts(&Dataset::tfrecord([&path])), (0..9).collect::<Vec<u8>>(), "{acts:?}");
        assert!(server.asked().len() >= 3 + acts.iter().filter(|a| !matches!(a, Act::Serve)).count() - 1);
    }
}

#[test]
fn what_does_not_pass_is_told_with_place_and_advice() {
    let server = Server::new();
    let bucket = server.bucket("refusals");
    server.put(&bucket, "recs", records(9, 100_000));
    let path = format!("s3://{bucket}/recs");
    let error = |acts: &[Act], path: &str| {
        server.next(acts);
        let e = Dataset::tfrecord([path]).iter().find_map(Result::err).unwrap();
        lock(&server.acts).clear();
        server.asked();
        e
    };
    let e = error(&[], &format!("{path}-none"));
    assert_error(&e, ErrorKind::Io, &[&format!("{path}-none"), "404", "s3"]);
    let e = error(&[Act::Status(403); 3], &path);
    assert_error(&e, ErrorKind::Io, &[&path, "403", "AWS_ACCESS_KEY_ID"]);
    for pattern in [path.clone(), format!("s3://{bucket}/*.csv")] {
        server.next(&[Act::Status(403); 9]);
        let e = Dataset::list_files(&pattern).unwrap_err();
        lock(&server.acts).clear();
        assert_error(&e, ErrorKind::Io, &["403", "AWS_ACCESS_KEY_ID"]);
    }
    let e = error(&[Act::Status(401); 3], &path.replace("s3:", "gs:"));
    assert_error(&e, ErrorKind::Io, &["401", "gcloud auth application-default login"]);
    let e = error(&[Act::Status(503); 20], &path);
    assert_error(&e, ErrorKind::Io, &["503", "4"]);
    let e = error(&[Act::Serve, Act::Cut(9), Act::Cut(9), Act::Cut(9), Act::Cut(9)], &path);
    assert_error(&e, ErrorKind::Io, &["262144", "900144", "638000", "4"]);
    let e = error(&[Act::Silence; 8], &path);
    assert_error(&e, ErrorKind::Io, &[&path]);
    // A replaced object under the same key is detected.
    let records_of = Dataset::tfrecord([&path]);
    let mut iter = records_of.iter();
    iter.next().unwrap().unwrap();
    server.put(&bucket, "recs", records(9, 100_001));
    assert_error(&iter.find_map(Result::err).unwrap(), ErrorKind::Io, &[&path, "412"]);
}

#[test]
fn keys_and_settings_that_are_none_are_told() {
    for path in ["s3://", "gs:///a", "s3://b/a//b"] {
        let e = Error::io("cannot read", path, input_file::read(path).unwrap_err());
        assert_error(&e, ErrorKind::Config, &[path]);
        assert!(e.hint_text().is_some(), "{e}");
    }
    let e = configure("s3://b", [("regoin", "x")], RetryPolicy::default()).unwrap_err().to_string();
    assert!(e.contains("regoin") && e.contains("s3://b"), "{e}");
}

#[test]
fn profiles_of_the_clouds_own_tool_are_read() {
    let text = "[default]\naws_access_key_id = A\nregion=us-west-2\n[profile lab]\naws_access_key_id=B\noutput = json\n";
    assert_eq!(
        section(text, "default"),
        [("aws_access_key_id".into(), "A".into()), ("region".into(), "us-west-2".into())]
    );
    assert_eq!(section(text, "lab"), [("aws_access_key_id".to_string(), "B".to_string())]);
    assert!(section(text, "other").is_empty());
}

/// Key of no account: `openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048`.
const KEY: &str = include_str!("../../../../fixtures/data/rsa_test_key.pem");

/// The signature of `openssl dgst -sha256 -sign`, by its SHA-256. PKCS #1 v1.5 signatures are deterministic.
#[test]
fn signatures_are_those_of_openssl() {
    let signer = RequestSigner.sign(SigningAlgorithm::RS256, KEY.as_bytes()).unwrap();
    let digest = Sha256::digest(signer.sign(b"a message").unwrap());
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, "b3d66b5d3769064805840c6140b82a9695d892953be5fa306500c9fe9d393c78");
}

/// Decodes base64url without padding.
fn base64url(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for letter in text.bytes() {
        bits = bits << 6 | LETTERS.iter().position(|l| *l == letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The server checks the signature of the token with the account's public key, and the claims.
#[test]
fn keys_of_service_accounts_sign_tokens() {
    let server = Server::new();
    let bucket = server.bucket("keyed");
    server.put(&bucket, "a.txt", "content");
    let account = json_object(&[
        ("private_key", KEY),
        ("private_key_id", "key-7"),
        ("client_email", "robot@project.iam.gserviceaccount.com"),
    ]);
    let settings = [("base_url", server.address.as_str()), ("service_account_key", account.as_str())];
    configure(&format!("gs://{bucket}"), settings, RetryPolicy::default()).unwrap();
    assert_eq!(input_file::read(format!("gs://{bucket}/a.txt")).unwrap(), b"content");
    let asked = server.asked();
    let token = asked.iter().flat_map(|r| r.lines()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("authorization").then(|| value.trim().strip_prefix("Bearer "))?
    });
    let token = token.unwrap_or_else(|| panic!("no token: {asked:?}"));
    let (message, signature) = token.rsplit_once('.').unwrap();
    let key = PrivateKey::from_pkcs8_pem(KEY).unwrap().to_public_key();
    let verified = |message: &str| {
        let scheme = Pkcs1v15Sign { hash_len: Some(32), prefix: SHA256_INFO.into() };
        key.verify(scheme, &Sha256::digest(message), &base64url(signature)).is_ok()
    };
    assert!(verified(message) && !verified(&message.replace('.', "..")));
    let (header, claims) = message.split_once('.').unwrap();
    let [header, claims] = [header, claims].map(|part| String::from_utf8(base64url(part)).unwrap());
    assert!(header.contains("RS256") && header.contains("key-7"), "{header}");
    let number = |name: &str| {
        let (_, rest) = claims.split_once(&format!("\"{name}\":")).unwrap();
        rest.split([',', '}']).next().unwrap().parse::<u64>().unwrap()
    };
    assert!(claims.contains("robot@project.iam.gserviceaccount.com") && claims.contains("scope"), "{claims}");
    assert_eq!(number("exp") - number("iat"), 3600);
}

/// A JSON object of texts.
fn json_object(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{name:?}: \"{}\"", value.replace('\n', "\\n"));
    format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
}

#[test]
fn a_damaged_key_of_a_service_account_is_named() {
    let key = r#"{"private_key": "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----", "private_key_id": "1",
        "client_email": "a@b", "disable_oauth": false}"#;
    let e = configure("gs://keyed", [("service_account_key", key)], RetryPolicy::default()).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["RSA", "gcloud auth application-default login"]);
}
