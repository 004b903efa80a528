//! Local HTTP server of the tests of downloads: serves one file, and misbehaves as told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// File that [`Server::new`] serves.
pub(crate) const CONTENT: &[u8] = &[42; 100_000];

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
