//! Tests of downloads against a local HTTP server that serves one file, and misbehaves as told.

use super::*;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use systole_testing::assert_error;

/// File that [`Server::new`] serves.
const CONTENT: &[u8] = &[42; 100_000];

/// Server behavior for one connection.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Serve,
    /// Announces the full length, sends this many bytes, closes the connection.
    Cut(usize),
    /// Sends other bytes of the right length.
    Lie,
    Status(u16),
    Silence,
    /// Sends this many bytes, then nothing, without closing the connection.
    Stall(usize),
    /// Sends the file in pieces, with this pause after each.
    Slow(Duration),
    /// Redirects to this path or address.
    Redirect(&'static str),
}

/// Server on this machine, and the folder of its test, which is removed at the end.
pub(crate) struct Server {
    pub(crate) base: String,
    requests: Arc<Mutex<Vec<String>>>,
    pub(crate) folder: PathBuf,
}

impl Server {
    /// Performs one act per connection, then closes all further connections.
    pub(crate) fn new(name: &str, acts: &[Act]) -> Server {
        Server::serving(name, acts, CONTENT)
    }

    /// Like [`Server::new`], for another file.
    pub(crate) fn serving(name: &str, acts: &[Act], content: &[u8]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/sets/", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, acts, content) = (requests.clone(), acts.to_vec(), content.to_vec());
        thread::spawn(move || {
            let mut held = Vec::new();
            for act in acts {
                let (stream, _) = listener.accept().unwrap();
                held.extend(answer(stream, act, &content, &log));
            }
        });
        let folder = std::env::temp_dir().join(format!("systole-download-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Server { base, requests, folder }
    }

    /// Requests so far, one text each.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn answer(mut stream: TcpStream, act: Act, content: &[u8], log: &Mutex<Vec<String>>) -> Option<TcpStream> {
    let mut request = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap() > 0 {}
    let range =
        request.lines().find_map(|l| l.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok());
    log.lock().unwrap().push(request);
    let start: usize = range.unwrap_or(0);
    let body = &content[start..];
    let total = content.len();
    let head = match range {
        None => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()),
        Some(_) => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{total}\r\ncontent-length: {}\r\n\r\n",
            total - 1,
            body.len()
        ),
    };
    // The client may have disconnected; the test checks how the client handles it.
    let mut send = |bytes: &[u8]| drop(stream.write_all(bytes));
    match act {
        Act::Silence => return Some(stream),
        Act::Stall(n) => {
            send(&[head.as_bytes(), &body[..n.min(body.len())]].concat());
            return Some(stream);
        }
        Act::Slow(pause) => {
            send(head.as_bytes());
            for piece in body.chunks(content.len() / 8) {
                thread::sleep(pause);
                send(piece);
            }
        }
        Act::Redirect(to) => {
            send(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").as_bytes())
        }
        Act::Status(code) => send(format!("HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n").as_bytes()),
        Act::Serve => send(&[head.as_bytes(), body].concat()),
        Act::Cut(n) => send(&[head.as_bytes(), &body[..n.min(body.len())]].concat()),
        Act::Lie => send(&[head.as_bytes(), &vec![1; body.len()]].concat()),
    }
    None
}

const SHA256: &str = "4db26b160a82f67c4868bd06b8b028f21c8ca5f25615b996326cc40c092633bf";
const MD5: &str = "d88799ea915c2e290f816dc9b459ec91";

fn remote() -> RemoteFile<'static> {
    let digests = &[FileDigest::Sha256(SHA256), FileDigest::Md5(MD5)];
    RemoteFile { file: "file.gz", size: Some(CONTENT.len() as u64), digests }
}

fn fetch_all(
    files: &[RemoteFile<'_>],
    sources: &[&str],
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let has_data = || files.iter().any(|r| folder.join(r.file).is_file());
    let sources: Vec<String> = sources.iter().map(|base| base.to_string()).collect();
    locked(folder, has_data, || fetch_missing(files, (&sources, &[]), folder, timeout, progress))
}

impl Server {
    fn fetch(&self, timeout: Duration) -> Result<()> {
        fetch_all(&[remote()], &[&self.base], &self.folder, timeout, &|_, _, _| ())
    }

    fn file(&self) -> Option<Vec<u8>> {
        fs::read(self.folder.join("file.gz")).ok()
    }
}

const SECOND: Duration = Duration::from_secs(10);

#[test]
fn a_good_file_arrives_whole_and_once() {
    let server = Server::new("good", &[Act::Serve]);
    server.fetch(SECOND).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    server.fetch(SECOND).unwrap();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(fs::read_dir(&server.folder).unwrap().count(), 1, "no part file, no mark");
}

#[test]
fn a_wrong_checksum_is_told_and_leaves_nothing() {
    let server = Server::new("lie", &[Act::Lie]);
    let e = server.fetch(SECOND).unwrap_err();
    assert!(e.kind() == ErrorKind::Data && e.to_string().contains(SHA256), "{e}");
    assert!(!server.folder.exists());
}

#[test]
fn a_cut_line_is_continued_where_it_ended() {
    let server = Server::new("cut", &[Act::Cut(30_000), Act::Cut(50_000), Act::Serve]);
    server.fetch(SECOND).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    let requests = server.requests();
    assert!(!requests[0].contains("Range") && requests[1].contains("bytes=30000-"), "{requests:?}");
    assert!(requests[2].contains("bytes=80000-"));
}

#[test]
fn another_run_continues_and_a_spoilt_part_is_fetched_anew() {
    let server = Server::new("spoilt", &[Act::Serve, Act::Serve]);
    fs::create_dir_all(&server.folder).unwrap();
    fs::write(server.folder.join("file.gz.part"), vec![9; 1000]).unwrap();
    server.fetch(SECOND).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    let requests = server.requests();
    assert!(requests[0].contains("bytes=1000-") && !requests[1].contains("Range"));
}

#[test]
fn silence_is_given_up_after_the_timeout() {
    let server = Server::new("silent", &[Act::Silence, Act::Silence]);
    let timeout = Duration::from_millis(300);
    let start = Instant::now();
    let sources = [server.base.as_str(), server.base.as_str()];
    let e = fetch_all(&[remote()], &sources, &server.folder, timeout, &|_, _, _| ()).unwrap_err();
    let took = start.elapsed();
    assert!(took >= timeout && took < 10 * timeout, "{took:?}");
    assert!(e.kind() == ErrorKind::Io && e.to_string().contains("answer"), "{e}");
}

#[test]
fn each_digest_is_verified_by_itself() {
    let wrong = [
        (FileDigest::Sha256("0000000000000000000000000000000000000000000000000000000000000000"), SHA256),
        (FileDigest::Md5("00000000000000000000000000000000"), MD5),
    ];
    for (digest, found) in wrong {
        let server = Server::new("wrong", &[Act::Serve]);
        let files = [RemoteFile { digests: Vec::leak(vec![digest]), ..remote() }];
        let e = fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
        assert!(e.kind() == ErrorKind::Data && e.to_string().contains(found), "{e}");
        assert!(e.to_string().contains(digest.algorithm()) && !server.folder.exists(), "{e}");
    }
    let server = Server::new("md5", &[Act::Serve]);
    let files = [RemoteFile { digests: &[FileDigest::Md5(MD5)], ..remote() }];
    fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
}

#[test]
fn slow_servers_are_waited_for_and_stalled_ones_are_asked_again() {
    let timeout = Duration::from_millis(1000);
    // Eight pauses are longer than the timeout, each is shorter.
    let server = Server::new("slow", &[Act::Slow(timeout / 5)]);
    server.fetch(timeout).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    let server = Server::new("stalled", &[Act::Stall(40_000), Act::Serve]);
    server.fetch(timeout).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    assert!(server.requests()[1].contains("bytes=40000-"));
}

#[test]
fn redirects_are_followed_but_not_forever_and_not_to_files() {
    let server = Server::new("moved", &[Act::Redirect("/other/file.gz"), Act::Serve]);
    server.fetch(SECOND).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    assert!(server.requests()[1].starts_with("GET /other/file.gz "));
    let server = Server::new("circle", &[Act::Redirect("/sets/file.gz"); 6]);
    assert_error(&server.fetch(SECOND).unwrap_err(), ErrorKind::Io, &[&server.base]);
    assert_eq!(server.requests().len(), 6);
    for target in ["file:///etc/passwd", "//elsewhere/file.gz", "file.gz"] {
        let server = Server::new("elsewhere", &[Act::Redirect(target)]);
        assert_error(&server.fetch(SECOND).unwrap_err(), ErrorKind::Io, &[target]);
        assert!(!server.folder.exists());
    }
}

#[test]
fn refusals_name_each_source_and_the_next_is_tried() {
    let server = Server::new("refused", &[Act::Status(404), Act::Status(503), Act::Serve]);
    let sources = [server.base.as_str(), server.base.as_str()];
    let go = || fetch_all(&[remote()], &sources, &server.folder, SECOND, &|_, _, _| ());
    let e = go().unwrap_err().to_string();
    assert!(e.contains("404") && e.contains("503") && e.contains(&server.base), "{e}");
    go().unwrap();
}

#[test]
fn nobody_there_is_an_ordinary_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let server = Server::new("closed", &[]);
    let e = fetch_all(&[remote()], &[&base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
    assert_error(&e, ErrorKind::Io, &[&base]);
}

#[test]
fn a_file_of_unknown_size_is_resumed_and_verified_by_the_first_digits() {
    let prefix = &[FileDigest::Sha256Prefix("4db26b16")];
    let files = [RemoteFile { size: None, digests: prefix, ..remote() }];
    let server = Server::new("unsized", &[Act::Cut(30_000), Act::Serve]);
    fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap();
    assert_eq!(server.file().as_deref(), Some(CONTENT));
    assert!(server.requests()[1].contains("bytes=30000-"));
    // A part with all bytes cannot be continued.
    let server = Server::new("whole", &[Act::Status(416), Act::Serve]);
    fs::create_dir_all(&server.folder).unwrap();
    fs::write(server.folder.join("file.gz.part"), CONTENT).unwrap();
    fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap();
    let server = Server::new("other", &[Act::Lie]);
    let e = fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
    assert_error(&e, ErrorKind::Data, &["4db26b16"]);
}

#[test]
fn a_file_without_a_digest_needs_https_or_this_machine() {
    let files = [RemoteFile { size: None, digests: &[], ..remote() }];
    let server = Server::new("no-digest", &[Act::Serve]);
    fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap();
    fs::remove_dir_all(&server.folder).unwrap();
    let there = ["http://somewhere.invalid/"];
    let e = fetch_all(&files, &there, &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
    assert_error(&e, ErrorKind::Io, &[there[0]]);
}

#[test]
fn secrets_stay_with_the_first_host() {
    let away = Server::new("away", &[Act::Serve]);
    let to: &'static str = format!("{}file.gz", away.base).leak();
    let hub = Server::new("hub", &[Act::Redirect("/elsewhere"), Act::Redirect(to)]);
    let fields = [("Authorization".to_string(), "Bearer x".to_string()), ("X-Other".to_string(), "y".into())];
    let answer = get(&format!("{}file.gz", hub.base), &fields, || Ok(SECOND)).unwrap();
    assert_eq!(answer.status, 200);
    assert!(hub.requests().iter().all(|r| r.contains("Authorization: Bearer x")), "{:?}", hub.requests());
    let request = &away.requests()[0];
    assert!(!request.contains("Authorization") && request.contains("X-Other: y"), "{request}");
}
