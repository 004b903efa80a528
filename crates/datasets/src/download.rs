//! Downloads files and verifies their SHA-256.
//!
//! No TLS here: a file is trusted only if its SHA-256 matches. A file grows as `NAME.part`, resumes after an
//! interruption, and is renamed when complete. All waits have a timeout.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Result, err};
use systole_data::file_system::{FileSystem, OsFileSystem, write_all};
use systole_data::http::{Request, Response};

/// Marks a directory whose files are being downloaded, so that an incomplete set is not reported as broken.
pub(super) const MARK: &str = ".downloading";

/// First words of the error that lists the result of each address.
pub(super) const REFUSED: &str = "cannot download";

/// Remote file with its expected size and SHA-256.
pub(super) struct RemoteFile {
    pub file: &'static str,
    pub size: u64,
    pub sha256: &'static str,
}

/// Downloads the missing `files` into `folder`, each from the first of `sources` that has it.
///
/// # Errors
/// `Io` if no server answers within `timeout` or every source rejects the request; `Data` for a wrong checksum. Partial
/// downloads are kept for the next attempt.
pub(super) fn fetch_all(
    files: &[RemoteFile],
    sources: &[&str],
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot create", folder, e))?;
    let mark = folder.join(MARK);
    let lock = File::create(&mark).map_err(|e| Error::io("cannot create", &mark, e))?;
    if lock.try_lock().is_err() {
        return Err(err!(Io, "another process is downloading the same files")
            .at(folder.display().to_string())
            .hint("wait until that download has finished"));
    }
    let deadline = Instant::now() + timeout;
    let mut download = DownloadPolicy { sources, folder, progress, deadline, answered: false, timeout };
    let lacking = files.iter().filter(|r| !folder.join(r.file).is_file());
    let fetched = lacking.into_iter().try_for_each(|remote| download.fetch(remote));
    if fetched.is_ok() || files.iter().all(|r| !folder.join(r.file).is_file()) {
        fs::remove_file(&mark).map_err(|e| Error::io("cannot remove", &mark, e))?;
        // Succeeds only if the directory is empty, that is, if nothing was downloaded.
        let _ = fs::remove_dir(folder);
    }
    fetched
}

/// Settings shared by all files of a dataset, and the timeout. Until the first answer, all attempts share one timeout.
struct DownloadPolicy<'a> {
    sources: &'a [&'a str],
    folder: &'a Path,
    progress: &'a dyn Fn(&str, u64, u64),
    deadline: Instant,
    answered: bool,
    timeout: Duration,
}

impl DownloadPolicy<'_> {
    fn patience(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match (self.answered, left.is_zero()) {
            (true, _) => Ok(self.timeout),
            (false, false) => Ok(left),
            (false, true) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }

    fn fetch(&mut self, remote: &RemoteFile) -> Result<()> {
        let part = self.folder.join(format!("{}.part", remote.file));
        let mut reasons = Vec::new();
        let mut kind = ErrorKind::Io;
        for source in self.sources {
            let url = format!("{source}{}", remote.file);
            // Retry after progress (an interrupted connection) or after a resumed file turned out wrong.
            for _ in 0..4 {
                let before = fs::metadata(&part).map_or(0, |m| m.len());
                match self.grow(remote, &url, &part).and_then(|()| accept(remote, &part, self.folder)) {
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
        let e = Error::new(kind, format!("{REFUSED} {}", remote.file));
        Err(reasons.into_iter().fold(e, Error::because))
    }

    /// Appends the server's remaining bytes to the partial file.
    fn grow(&mut self, remote: &RemoteFile, url: &str, part: &Path) -> Result<()> {
        let mut have = fs::metadata(part).map_or(0, |m| m.len());
        if have >= remote.size {
            return Ok(());
        }
        let mut body = self.open(url, have, remote.size)?;
        let mut buffer = vec![0; 1 << 16];
        // Read before creating the file: a rejected request must leave no file behind.
        let mut n = body.read(&mut buffer)?;
        self.answered = true;
        have = body.start;
        let mut file = continue_at(part, have)?;
        while n > 0 {
            have += n as u64;
            if have > remote.size {
                return Err(failed(format!("the server sends more than the expected {} bytes", remote.size)));
            }
            write_all(&OsFileSystem, &mut file, &buffer[..n])
                .map_err(|e| Error::io("cannot write", part, e))?;
            (self.progress)(remote.file, have, remote.size);
            n = body.read(&mut buffer)?;
        }
        OsFileSystem.sync(&mut file).map_err(|e| Error::io("cannot write", part, e))?;
        if have < remote.size {
            return Err(failed(format!("the connection ended after {have} of {} bytes", remote.size)));
        }
        Ok(())
    }

    /// Requests the bytes from `start` of a file of `size` bytes.
    fn open(&self, url: &str, start: u64, size: u64) -> Result<DownloadBody> {
        let range = ("Range".to_string(), format!("bytes={start}-"));
        let fields = if start > 0 { &[range][..] } else { &[] };
        let patience = self.patience()?;
        let from = Request { method: "GET", url, fields, body: b"", patience, follow: true }.send()?;
        let begin = match from.status {
            200 => 0,
            206 if from.field("content-range").is_some_and(|r| r.starts_with(&format!("bytes {start}-"))) => {
                start
            }
            other => return Err(failed(format!("the server returned status {other}"))),
        };
        match from.field("content-length").and_then(|v| v.parse::<u64>().ok()) {
            Some(n) if begin + n != size => {
                Err(failed(format!("the server's file has {} bytes, expected {size}", begin + n)))
            }
            _ => Ok(DownloadBody { start: begin, from }),
        }
    }
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, why)
}

fn continue_at(part: &Path, offset: u64) -> Result<File> {
    let open = || {
        let mut file = OsFileSystem.open(part)?;
        OsFileSystem.truncate(&mut file, offset)?;
        Ok(file)
    };
    open().map_err(|e| Error::io("cannot write", part, e))
}

/// Renames the partial file if its checksum matches; otherwise removes it.
fn accept(remote: &RemoteFile, part: &Path, folder: &Path) -> Result<()> {
    let mut hash = Sha256::new();
    let mut file = File::open(part).map_err(|e| Error::io("cannot read", part, e))?;
    std::io::copy(&mut file, &mut hash).map_err(|e| Error::io("cannot read", part, e))?;
    let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if found != remote.sha256 {
        OsFileSystem.remove(part).map_err(|e| Error::io("cannot remove", part, e))?;
        return Err(err!(Data, "the downloaded file is corrupt")
            .because(format!("the SHA-256 of the file is {found}, expected {}", remote.sha256)));
    }
    let path = folder.join(remote.file);
    let placed = OsFileSystem.rename(part, &path).and_then(|()| OsFileSystem.sync_dir(folder));
    placed.map_err(|e| Error::io("cannot rename to", path, e))
}

/// Running download: start offset in the file, and the byte stream.
struct DownloadBody {
    start: u64,
    from: Response,
}

impl DownloadBody {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.from.read(buffer).map_err(|e| failed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use systole_testing::assert_error;

    const CONTENT: &[u8] = &[42; 100_000];
    const SHA256: &str = "4db26b160a82f67c4868bd06b8b028f21c8ca5f25615b996326cc40c092633bf";

    fn remote() -> RemoteFile {
        RemoteFile { file: "file.gz", size: CONTENT.len() as u64, sha256: SHA256 }
    }

    /// Server behavior for one connection.
    #[derive(Clone, Copy)]
    enum Act {
        Serve,
        /// Announces the full length, sends this many bytes, closes the connection.
        Cut(usize),
        /// Sends other bytes of the right length.
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
        /// Performs one act per connection, then closes all further connections.
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
        // The client may have disconnected; the test checks how the client handles it.
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
    fn nobody_there_is_an_ordinary_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let server = Server::new("closed", &[]);
        let e = fetch_all(&[remote()], &[&base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
        assert_error(&e, ErrorKind::Io, &[&base]);
    }
}
