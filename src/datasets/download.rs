//! Fetching files of known checksum: plain HTTP by hand, https through the system's `curl`.
//!
//! No TLS here: what is fetched is believed only when its SHA-256 is the known one. A file grows as `NAME.part`,
//! continues there after an interruption, and takes its name only when it is whole. Nothing waits forever.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Result};
use systole_data::disk::{Disk, FileSystem, write_all};

/// Lies in a folder while its files are being fetched, so that the few there are not taken for a broken set.
pub(super) const MARK: &str = ".downloading";

/// A file with a known content.
pub(super) struct Remote {
    pub file: &'static str,
    pub size: u64,
    pub sha256: &'static str,
}

/// Fetches what `folder` lacks of `files`, each from the first of `sources` that gives it.
///
/// # Errors
/// `Io`: nothing answers within `timeout`, or every source refuses; `Data`: a wrong checksum. What was fetched
/// so far stays for the next time.
pub(super) fn fetch_all(
    files: &[Remote],
    sources: &[&str],
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot create", folder, e))?;
    let mark = folder.join(MARK);
    let lock = File::create(&mark).map_err(|e| Error::io("cannot create", &mark, e))?;
    if lock.try_lock().is_err() {
        return Err(Error::new(ErrorKind::Io, "another process is downloading the same files")
            .at(folder.display().to_string())
            .hint("wait until it has finished"));
    }
    let fetched = fetch_missing(files, sources, folder, timeout, progress);
    if fetched.is_ok() || files.iter().all(|r| !folder.join(r.file).is_file()) {
        fs::remove_file(&mark).map_err(|e| Error::io("cannot remove", &mark, e))?;
        // Succeeds only where nothing at all was fetched: then nothing is left behind.
        let _ = fs::remove_dir(folder);
    }
    fetched
}

fn fetch_missing(
    files: &[Remote],
    sources: &[&str],
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let mut line = Line { deadline: Instant::now() + timeout, answered: false, timeout };
    for remote in files.iter().filter(|r| !folder.join(r.file).is_file()) {
        fetch(remote, sources, folder, &mut line, progress)?;
    }
    Ok(())
}

/// How long to wait. Until anything has answered, all attempts share one timeout.
struct Line {
    deadline: Instant,
    answered: bool,
    timeout: Duration,
}

impl Line {
    fn patience(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match (self.answered, left.is_zero()) {
            (true, _) => Ok(self.timeout),
            (false, false) => Ok(left),
            (false, true) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, why)
}

fn fetch(
    remote: &Remote,
    sources: &[&str],
    folder: &Path,
    line: &mut Line,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let part = folder.join(format!("{}.part", remote.file));
    let mut reasons = Vec::new();
    let mut kind = ErrorKind::Io;
    for source in sources {
        let url = format!("{source}{}", remote.file);
        // More rounds after progress (a cut line) or after a continued file turned out wrong.
        for _ in 0..4 {
            let before = fs::metadata(&part).map_or(0, |m| m.len());
            match grow(remote, &url, &part, line, progress).and_then(|()| accept(remote, &part, folder)) {
                Ok(()) => return Ok(()),
                Err(e) => {
                    let after = fs::metadata(&part).map_or(0, |m| m.len());
                    let again = if e.kind() == ErrorKind::Data { before > 0 } else { after > before };
                    if !again {
                        kind = if e.kind() == ErrorKind::Data { e.kind() } else { kind };
                        reasons.push(format!("{url}: {}", e.to_string().replace("\n  ", "; ")));
                        break;
                    }
                }
            }
        }
    }
    let e = Error::new(kind, format!("cannot download {}", remote.file));
    Err(reasons.into_iter().fold(e, Error::because))
}

/// Appends to the part file what the server has beyond it.
fn grow(
    remote: &Remote,
    url: &str,
    part: &Path,
    line: &mut Line,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let mut have = fs::metadata(part).map_or(0, |m| m.len());
    if have >= remote.size {
        return Ok(());
    }
    let mut body = open(url, have, remote.size, line)?;
    let mut buffer = vec![0; 1 << 16];
    // Read first, make the file then: a refusal must leave nothing behind.
    let mut n = body.read(&mut buffer)?;
    line.answered = true;
    have = body.start;
    let mut file = continue_at(part, have)?;
    while n > 0 {
        have += n as u64;
        if have > remote.size {
            return Err(failed(format!("the server sends more than the {} bytes of the file", remote.size)));
        }
        write_all(&Disk, &mut file, &buffer[..n]).map_err(|e| Error::io("cannot write", part, e))?;
        progress(remote.file, have, remote.size);
        n = body.read(&mut buffer)?;
    }
    Disk.sync(&mut file).map_err(|e| Error::io("cannot write", part, e))?;
    if have < remote.size {
        return Err(failed(format!("the connection ended after {have} of {} bytes", remote.size)));
    }
    Ok(())
}

fn continue_at(part: &Path, offset: u64) -> Result<File> {
    let open = || {
        let mut file = Disk.open(part)?;
        Disk.truncate(&mut file, offset)?;
        Ok(file)
    };
    open().map_err(|e| Error::io("cannot write", part, e))
}

/// Gives the part file its name when its checksum is right; removes it otherwise.
fn accept(remote: &Remote, part: &Path, folder: &Path) -> Result<()> {
    let mut hash = Sha256::new();
    let mut file = File::open(part).map_err(|e| Error::io("cannot read", part, e))?;
    std::io::copy(&mut file, &mut hash).map_err(|e| Error::io("cannot read", part, e))?;
    let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if found != remote.sha256 {
        Disk.remove(part).map_err(|e| Error::io("cannot remove", part, e))?;
        return Err(Error::new(ErrorKind::Data, "the downloaded file is not the right one")
            .because(format!("its SHA-256 is {found}, expected {}", remote.sha256)));
    }
    let path = folder.join(remote.file);
    let placed = Disk.rename(part, &path).and_then(|()| Disk.sync_dir(folder));
    placed.map_err(|e| Error::io("cannot rename to", path, e))
}

/// A running download: where in the file it begins, and the bytes.
struct Body {
    start: u64,
    from: From,
}

enum From {
    Tcp(std::io::Take<BufReader<TcpStream>>),
    Curl(Child, ChildStdout),
}

impl Body {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match &mut self.from {
            From::Tcp(stream) => stream.read(buffer).map_err(|e| stalled(&e)),
            From::Curl(child, out) => match out.read(buffer).map_err(|e| failed(e.to_string()))? {
                0 => finish(child).map(|()| 0),
                n => Ok(n),
            },
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let From::Curl(child, _) = &mut self.from {
            // Ends a curl whose output is no longer wanted; one that has ended already cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stalled(e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            failed("the server stopped answering")
        }
        _ => failed(e.to_string()),
    }
}

fn open(url: &str, start: u64, size: u64, line: &Line) -> Result<Body> {
    let patience = line.patience()?;
    match url.strip_prefix("http://").and_then(|rest| rest.split_once('/')) {
        Some((host, path)) if !proxied(host) => http(host, path, start, size, patience),
        _ => curl(url, start, patience),
    }
}

/// A proxy is curl's business.
fn proxied(host: &str) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !host.starts_with("127.0.0.1") && (set("http_proxy") || set("all_proxy") || set("ALL_PROXY"))
}

fn http(host: &str, path: &str, start: u64, size: u64, patience: Duration) -> Result<Body> {
    let until = Instant::now() + patience;
    let stream = connect(host, patience)?;
    let set = stream.set_read_timeout(Some(patience)).and_then(|()| stream.set_write_timeout(Some(patience)));
    set.map_err(|e| failed(e.to_string()))?;
    let range = if start > 0 { format!("Range: bytes={start}-\r\n") } else { String::new() };
    let request = format!(
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: systole\r\nAccept-Encoding: identity\r\n{range}Connection: close\r\n\r\n"
    );
    (&stream).write_all(request.as_bytes()).map_err(|e| stalled(&e))?;
    let mut reader = BufReader::new(stream);
    let head = head(&mut reader, until)?;
    let length = |name: &str| head.get(name).and_then(|v| v.parse::<u64>().ok());
    let begin = match head.status {
        200 => 0,
        206 if head.get("content-range").is_some_and(|r| r.starts_with(&format!("bytes {start}-"))) => start,
        other => return Err(failed(format!("the server answers with status {other}"))),
    };
    match length("content-length") {
        Some(n) if begin + n == size => Ok(Body { start: begin, from: From::Tcp(reader.take(n)) }),
        Some(n) => Err(failed(format!("the server has a file of {} bytes, expected {size}", begin + n))),
        None => Err(failed("the server does not say how long the file is")),
    }
}

struct Head {
    status: u16,
    fields: Vec<(String, String)>,
}

impl Head {
    fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

fn head(reader: &mut impl BufRead, until: Instant) -> Result<Head> {
    let mut text = Vec::new();
    // Byte by byte from the buffer: one that trickles in must not outlast the patience either.
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(|e| stalled(&e))?;
        text.push(byte[0]);
        if text.len() > 16 << 10 || Instant::now() > until {
            return Err(failed("the server's answer does not begin as HTTP does"));
        }
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let status = lines.next().and_then(|l| l.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| failed("the server does not speak HTTP/1"))?;
    let field = |l: &str| l.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_string()));
    Ok(Head { status, fields: lines.filter_map(field).collect() })
}

/// On a thread of its own, because looking up a name cannot be given a time limit.
fn connect(host: &str, patience: Duration) -> Result<TcpStream> {
    let (sender, receiver) = channel();
    let target = if host.contains(':') { host.to_string() } else { format!("{host}:80") };
    thread::spawn(move || {
        let stream = target.to_socket_addrs().and_then(|addresses| {
            let mut last = std::io::Error::other("the name has no address");
            for address in addresses {
                match TcpStream::connect_timeout(&address, patience) {
                    Ok(stream) => return Ok(stream),
                    Err(e) => last = e,
                }
            }
            Err(last)
        });
        // Nobody listens any more when the patience is over.
        let _ = sender.send(stream);
    });
    match receiver.recv_timeout(patience) {
        Ok(stream) => stream.map_err(|e| failed(format!("cannot connect: {e}"))),
        Err(_) => Err(failed(format!("cannot connect within {patience:?}"))),
    }
}

fn curl(url: &str, start: u64, patience: Duration) -> Result<Body> {
    let seconds = patience.as_secs_f64();
    let mut command = Command::new("curl");
    command.args(["--fail", "--location", "--silent", "--show-error"]);
    command.args(["--connect-timeout", &format!("{seconds:.2}"), "--speed-limit", "1"]);
    command.args(["--speed-time", &format!("{}", seconds.ceil() as u64)]);
    if start > 0 {
        command.args(["--range", &format!("{start}-")]);
    }
    command.arg("--").arg(url).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(format!("https needs the program curl: {e}")))?;
    match child.stdout.take() {
        Some(out) => Ok(Body { start, from: From::Curl(child, out) }),
        None => Err(failed("curl gives no output")),
    }
}

fn finish(child: &mut Child) -> Result<()> {
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(mut err) = child.stderr.take() {
        // Its message is a courtesy; the failure is reported either way.
        let _ = err.read_to_string(&mut text);
    }
    Err(failed(format!("curl failed: {}", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};

    const CONTENT: &[u8] = &[42; 100_000];
    const SHA256: &str = "4db26b160a82f67c4868bd06b8b028f21c8ca5f25615b996326cc40c092633bf";

    fn remote() -> Remote {
        Remote { file: "file.gz", size: CONTENT.len() as u64, sha256: SHA256 }
    }

    /// What the server does with one connection.
    #[derive(Clone, Copy)]
    enum Act {
        Serve,
        /// Promises all, sends this many bytes, hangs up.
        Cut(usize),
        /// Other bytes, of the right length.
        Lie,
        Status(u16),
        Silence,
    }

    struct Server {
        base: String,
        requests: Arc<Mutex<Vec<String>>>,
        folder: PathBuf,
    }

    impl Server {
        /// Acts in turn, one per connection, then hangs up for good.
        fn new(name: &str, acts: &[Act]) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let base = format!("http://{}/sets/", listener.local_addr().unwrap());
            let requests = Arc::new(Mutex::new(Vec::new()));
            let (log, acts) = (requests.clone(), acts.to_vec());
            thread::spawn(move || {
                let mut held = Vec::new();
                for act in acts {
                    let (stream, _) = listener.accept().unwrap();
                    held.extend(answer(stream, act, &log));
                }
            });
            let folder = std::env::temp_dir().join(format!("systole-download-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Server { base, requests, folder }
        }

        fn fetch(&self, timeout: Duration) -> Result<()> {
            fetch_all(&[remote()], &[&self.base], &self.folder, timeout, &|_, _, _| ())
        }

        fn file(&self) -> Option<Vec<u8>> {
            fs::read(self.folder.join("file.gz")).ok()
        }

        fn requests(&self) -> Vec<String> {
            self.requests.lock().unwrap().clone()
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn answer(mut stream: TcpStream, act: Act, log: &Mutex<Vec<String>>) -> Option<TcpStream> {
        let mut request = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap() > 0 {}
        let range =
            request.lines().find_map(|l| l.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok());
        log.lock().unwrap().push(request);
        let start: usize = range.unwrap_or(0);
        let body = &CONTENT[start..];
        let total = CONTENT.len();
        let head = match range {
            None => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()),
            Some(_) => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{total}\r\ncontent-length: {}\r\n\r\n",
                total - 1,
                body.len()
            ),
        };
        // The client may have hung up by then; the test looks at what the client made of it.
        let mut send = |bytes: &[u8]| drop(stream.write_all(bytes));
        match act {
            Act::Silence => return Some(stream),
            Act::Status(code) => send(format!("HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n").as_bytes()),
            Act::Serve => send(&[head.as_bytes(), body].concat()),
            Act::Cut(n) => send(&[head.as_bytes(), &body[..n.min(body.len())]].concat()),
            Act::Lie => send(&[head.as_bytes(), &vec![1; body.len()]].concat()),
        }
        None
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
    fn refusals_name_each_source_and_the_next_is_tried() {
        let server = Server::new("refused", &[Act::Status(404), Act::Status(503), Act::Serve]);
        let sources = [server.base.as_str(), server.base.as_str()];
        let go = || fetch_all(&[remote()], &sources, &server.folder, SECOND, &|_, _, _| ());
        let e = go().unwrap_err().to_string();
        assert!(e.contains("404") && e.contains("503") && e.contains(&server.base), "{e}");
        go().unwrap();
    }

    #[test]
    #[allow(clippy::print_stderr)]
    fn curl_does_what_we_do_by_hand() {
        if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED curl_does_what_we_do_by_hand: there is no curl");
            return;
        }
        let server = Server::new("curl", &[Act::Serve, Act::Status(404), Act::Silence]);
        let read = |timeout| -> Result<Vec<u8>> {
            let mut body = curl(&format!("{}file.gz", server.base), 99_000, timeout)?;
            let mut bytes = Vec::new();
            let mut buffer = [0; 1000];
            loop {
                match body.read(&mut buffer)? {
                    0 => return Ok(bytes),
                    n => bytes.extend(&buffer[..n]),
                }
            }
        };
        assert_eq!(read(SECOND).unwrap(), CONTENT[99_000..]);
        assert!(server.requests()[0].contains("bytes=99000-"));
        assert!(read(SECOND).unwrap_err().to_string().contains("404"));
        let start = Instant::now();
        assert!(read(Duration::from_millis(500)).is_err());
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    }

    #[test]
    fn nobody_there_is_an_ordinary_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let server = Server::new("closed", &[]);
        let e = fetch_all(&[remote()], &[&base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
        assert!(e.kind() == ErrorKind::Io && e.to_string().contains("cannot connect"), "{e}");
    }
}
