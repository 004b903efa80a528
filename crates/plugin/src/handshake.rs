//! Authenticates the connections between the processes of a run: both ends prove the secret in `SYSTOLE_SECRET`.
//!
//! Process 0 sends a random challenge. The other process answers with its own challenge, its greeting and an
//! HMAC-SHA-256 of all three, in a message of fixed length, and process 0 replies with its own code. A connection that
//! does not prove the secret is closed before anything else is read from it, and counted. Data is not encrypted.
//!
//! Without a secret (an empty key), processes accept connections within one machine only.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};
use systole_data::hmac::codes_match;
use systole_data::{RunSecret, hmac::HmacSha256, random_bytes};
use systole_ir::Error;

/// First bytes of both ends: protocol and version.
const MARK: &[u8; 16] = b"systole hosts 2\n";
const BANNER: usize = MARK.len() + 32;
/// Mark, challenge, greeting and code.
const ANSWER: usize = MARK.len() + 32 + GREETING + 32;
/// Bytes of a [`ProcessGreeting`].
const GREETING: usize = 24;
/// Reply instead of a code to a process with another secret.
const REJECTED: [u8; 32] = [0; 32];
/// Time for a new connection to prove the secret.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of connections accepted before the open ones are read.
const AT_ONCE: usize = 16;
/// Maximum number of connections that are waiting to prove the secret, in addition to one per process.
const MOST_WAITING: usize = 64;
/// Maximum number of addresses that are counted separately.
const MOST_ADDRESSES: usize = 16;
const WRONG_SECRET: &str = "wrong secret";
const NO_GREETING: &str = "not a process of this version";

/// First message of a process: its index, and the number of processes and devices.
#[derive(Clone, Copy)]
pub(crate) struct ProcessGreeting {
    pub(crate) process: i64,
    pub(crate) processes: i64,
    pub(crate) devices: i64,
}

impl ProcessGreeting {
    fn to_bytes(self) -> Vec<u8> {
        [self.process, self.processes, self.devices].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> ProcessGreeting {
        let number = |at: usize| {
            let bytes = bytes.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
            i64::from_le_bytes(bytes.unwrap_or_default())
        };
        ProcessGreeting { process: number(0), processes: number(1), devices: number(2) }
    }
}

/// End of a connection that a code is from; a code of one end is not valid for the other.
#[derive(Clone, Copy)]
enum ConnectionEnd {
    Process0,
    OtherProcess,
}

/// Returns the code with which an end proves the secret.
fn proof(key: &HmacSha256, end: ConnectionEnd, challenge: &[u8; 32], answer: &[u8]) -> [u8; 32] {
    let mut hmac = key.clone();
    hmac.update(MARK);
    hmac.update(&[end as u8]);
    hmac.update(challenge);
    hmac.update(answer);
    hmac.finish()
}

/// Returns the key of a run, which is empty without a secret.
pub(crate) fn key_of(secret: Option<&RunSecret>) -> HmacSha256 {
    secret.map_or_else(|| HmacSha256::new(b""), RunSecret::hmac)
}

/// Whether an address belongs to this machine only.
pub(crate) fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Explains why processes without a secret do not use an address.
pub(crate) fn needs_secret(address: &str) -> String {
    let command = RunSecret::command();
    format!(
        "{address} can be reached from other machines, and the run has no secret; set the same secret for all processes ({command}), or use 127.0.0.1"
    )
}

/// A connection whose other end has proved the secret.
pub(crate) struct ProvenConnection {
    pub(crate) stream: TcpStream,
    pub(crate) greeting: ProcessGreeting,
    /// Code of process 0, with which its reply starts.
    pub(crate) reply: [u8; 32],
}

/// A new connection that has not proved the secret.
struct NewConnection {
    stream: TcpStream,
    address: IpAddr,
    since: Instant,
    challenge: [u8; 32],
    answer: [u8; ANSWER],
    filled: usize,
}

impl NewConnection {
    /// Sends the challenge.
    fn open(stream: TcpStream, address: IpAddr) -> io::Result<NewConnection> {
        let challenge = random_bytes().map_err(|e| io::Error::other(e.to_string()))?;
        stream.set_nonblocking(true)?;
        // The buffer of a new connection has room for that.
        (&stream).write_all(&[&MARK[..], &challenge].concat())?;
        let since = Instant::now();
        Ok(NewConnection { stream, address, since, challenge, answer: [0; ANSWER], filled: 0 })
    }

    /// Reads what has arrived of the answer; ready when it is complete, or with the reason why it never will be.
    fn poll(&mut self) -> Poll<Result<(), &'static str>> {
        while self.filled < ANSWER {
            match self.stream.read(&mut self.answer[self.filled..]) {
                Ok(0) => return Poll::Ready(Err(NO_GREETING)),
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.since.elapsed() < PATIENCE => {
                    return Poll::Pending;
                }
                Err(_) => return Poll::Ready(Err(NO_GREETING)),
            }
            let n = self.filled.min(MARK.len());
            if self.answer[..n] != MARK[..n] {
                return Poll::Ready(Err(NO_GREETING));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Checks the code of a complete answer.
    fn check(self, key: &HmacSha256) -> io::Result<Result<ProvenConnection, IpAddr>> {
        let (answer, code) = self.answer.split_at(ANSWER - 32);
        let code = code.try_into().unwrap_or(REJECTED);
        if !codes_match(&code, &proof(key, ConnectionEnd::OtherProcess, &self.challenge, answer)) {
            // The other end may have closed the connection.
            let _ = (&self.stream).write_all(&REJECTED);
            return Ok(Err(self.address));
        }
        self.stream.set_nonblocking(false)?;
        let greeting = ProcessGreeting::read(&answer[MARK.len() + 32..]);
        let reply = proof(key, ConnectionEnd::Process0, &self.challenge, answer);
        Ok(Ok(ProvenConnection { stream: self.stream, greeting, reply }))
    }
}

/// Connections to process 0 that were rejected, by address and reason.
#[derive(Default)]
pub(crate) struct RejectedConnections {
    counts: BTreeMap<(IpAddr, &'static str), u64>,
    /// Number of connections from further addresses.
    others: u64,
}

impl RejectedConnections {
    fn add(&mut self, address: IpAddr, reason: &'static str) {
        let key = (address.to_canonical(), reason);
        match self.counts.len() < MOST_ADDRESSES || self.counts.contains_key(&key) {
            true => *self.counts.entry(key).or_default() += 1,
            false => self.others += 1,
        }
    }

    /// Describes the connections; `None` if there are none.
    pub(crate) fn describe(&self) -> Option<String> {
        let total = self.counts.values().sum::<u64>() + self.others;
        let mut list: Vec<String> =
            self.counts.iter().map(|((from, why), n)| format!("{n} from {from} ({why})")).collect();
        if self.others > 0 {
            list.push(format!("{} from other addresses", self.others));
        }
        let s = if total == 1 { "" } else { "s" };
        (total > 0).then(|| format!("process 0 rejected {total} connection{s}: {}", list.join(", ")))
    }
}

/// Accepts connections to process 0 and authenticates them. No connection can block another.
pub(crate) struct ConnectionGate {
    listener: TcpListener,
    key: HmacSha256,
    waiting: Vec<NewConnection>,
    most_waiting: usize,
    pub(crate) rejected: RejectedConnections,
}

impl ConnectionGate {
    pub(crate) fn new(
        listener: TcpListener,
        key: HmacSha256,
        processes: usize,
    ) -> io::Result<ConnectionGate> {
        listener.set_nonblocking(true)?;
        let most_waiting = processes + MOST_WAITING;
        Ok(ConnectionGate { listener, key, waiting: Vec::new(), most_waiting, rejected: Default::default() })
    }

    /// Returns the next connection that has proved the secret, if there is one now.
    ///
    /// # Errors
    /// If the listener fails.
    pub(crate) fn poll(&mut self) -> io::Result<Option<ProvenConnection>> {
        self.accept()?;
        let mut at = 0;
        while at < self.waiting.len() {
            let reason = match self.waiting[at].poll() {
                Poll::Pending => {
                    at += 1;
                    continue;
                }
                Poll::Ready(Err(reason)) => reason,
                Poll::Ready(Ok(())) => match self.waiting.remove(at).check(&self.key) {
                    Ok(Ok(proven)) => return Ok(Some(proven)),
                    Ok(Err(address)) => {
                        self.rejected.add(address, WRONG_SECRET);
                        continue;
                    }
                    Err(_) => continue,
                },
            };
            let address = self.waiting.remove(at).address;
            self.rejected.add(address, reason);
        }
        Ok(None)
    }

    fn accept(&mut self) -> io::Result<()> {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
        for _ in 0..AT_ONCE {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == WouldBlock => return Ok(()),
                // The other end has closed the connection already.
                Err(e) if [ConnectionAborted, ConnectionReset, Interrupted].contains(&e.kind()) => continue,
                Err(e) => return Err(e),
            };
            match NewConnection::open(stream, from.ip()) {
                Ok(connection) => self.waiting.push(connection),
                Err(e) if e.kind() == io::ErrorKind::Other => return Err(e),
                Err(_) => self.rejected.add(from.ip(), NO_GREETING),
            }
            if self.waiting.len() > self.most_waiting {
                let oldest = self.waiting.remove(0).address;
                self.rejected.add(oldest, NO_GREETING);
            }
        }
        Ok(())
    }
}

/// The other processes' end of a connection, which expects the code of process 0.
pub(crate) struct ExpectedReply([u8; 32]);

/// Why a process cannot join.
pub(crate) enum JoinError {
    /// The connection failed before process 0 sent its challenge; it may not listen yet.
    NotYet(io::Error),
    /// The connection failed.
    Lost(io::Error),
    /// The other end is not process 0 of this run.
    Wrong(String),
}

/// Proves the secret to process 0.
pub(crate) fn join(
    stream: &mut TcpStream,
    key: &HmacSha256,
    greeting: ProcessGreeting,
) -> Result<ExpectedReply, JoinError> {
    let mut banner = [0; BANNER];
    stream.read_exact(&mut banner).map_err(JoinError::NotYet)?;
    let (mark, challenge) = banner.split_at(MARK.len());
    if mark != MARK {
        return Err(JoinError::Wrong(
            "does not listen there: another program does, or another version".into(),
        ));
    }
    let challenge: [u8; 32] = challenge.try_into().unwrap_or_default();
    let own = random_bytes().map_err(|e: Error| JoinError::Wrong(e.to_string()))?;
    let mut answer = [&MARK[..], &own, &greeting.to_bytes()].concat();
    let expected = proof(key, ConnectionEnd::Process0, &challenge, &answer);
    let code = proof(key, ConnectionEnd::OtherProcess, &challenge, &answer);
    answer.extend_from_slice(&code);
    stream.write_all(&answer).map_err(JoinError::Lost)?;
    Ok(ExpectedReply(expected))
}

impl ExpectedReply {
    /// Reads the code of process 0, which comes when all processes are connected.
    pub(crate) fn check(&self, stream: &mut TcpStream) -> Result<(), JoinError> {
        let mut code = [0; 32];
        stream.read_exact(&mut code).map_err(JoinError::Lost)?;
        match codes_match(&code, &self.0) {
            true => Ok(()),
            false => Err(JoinError::Wrong(
                "has another secret: set the same SYSTOLE_SECRET for all processes".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETED: ProcessGreeting = ProcessGreeting { process: 1, processes: 2, devices: 3 };

    fn gate(key: &[u8]) -> (ConnectionGate, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (ConnectionGate::new(listener, HmacSha256::new(key), 2).unwrap(), address)
    }

    /// Polls until `done`, as process 0 does.
    fn until(gate: &mut ConnectionGate, done: impl Fn(&ConnectionGate) -> bool) -> Option<ProvenConnection> {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(gate) {
            if let Some(proven) = gate.poll().unwrap() {
                return Some(proven);
            }
            assert!(Instant::now() < end, "{:?}", gate.rejected.describe());
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    fn total(gate: &ConnectionGate) -> u64 {
        gate.rejected.counts.values().sum::<u64>() + gate.rejected.others
    }

    #[test]
    fn both_ends_prove_the_secret() {
        let (mut gate, address) = gate(b"the secret");
        let other = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let reply = join(&mut stream, &HmacSha256::new(b"the secret"), GREETED).ok().unwrap();
            reply.check(&mut stream).is_ok()
        });
        let mut proven = until(&mut gate, |_| false).unwrap();
        assert_eq!((proven.greeting.process, proven.greeting.processes, proven.greeting.devices), (1, 2, 3));
        proven.stream.write_all(&proven.reply).unwrap();
        assert!(other.join().unwrap());
        assert!(gate.rejected.describe().is_none());
    }

    #[test]
    fn a_stranger_is_counted_and_disturbs_nobody() {
        let (mut gate, address) = gate(b"the secret");
        let connect = || TcpStream::connect(&address).unwrap();
        // Silent all the time, with a part of the greeting, and many that leave at once.
        let silent = connect();
        let mut slow = connect();
        slow.write_all(&MARK[..5]).unwrap();
        (0..40).for_each(|_| drop(connect()));
        // The previous protocol, another one, and the greeting with no secret or another secret.
        connect().write_all(&[&b"systole hosts 1\n"[..], &[0; 24]].concat()).unwrap();
        connect().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let keys = [&b""[..], b"another secret"];
        let liars = keys.map(|key| {
            let mut stream = connect();
            std::thread::spawn(move || {
                let reply = join(&mut stream, &HmacSha256::new(key), GREETED).ok().unwrap();
                reply.check(&mut stream).err().map(|e| matches!(e, JoinError::Wrong(_)))
            })
        });
        assert!(until(&mut gate, |gate| total(gate) == 44).is_none());
        assert!(liars.into_iter().all(|liar| liar.join().unwrap() == Some(true)));
        let told = gate.rejected.describe().unwrap();
        assert!(told.contains("rejected 44 connections: "), "{told}");
        assert!(told.contains("42 from 127.0.0.1 (not a process of this version)"), "{told}");
        assert!(told.contains("2 from 127.0.0.1 (wrong secret)"), "{told}");

        // The process itself comes in while two strangers are still connected.
        let mut stream = connect();
        let own =
            std::thread::spawn(move || join(&mut stream, &HmacSha256::new(b"the secret"), GREETED).is_ok());
        assert!(until(&mut gate, |_| false).is_some() && own.join().unwrap());
        drop((silent, slow));
    }

    #[test]
    fn an_answer_of_an_earlier_connection_is_rejected() {
        let (mut gate, address) = gate(b"the secret");
        // An eavesdropper has the answer to another challenge.
        let key = HmacSha256::new(b"the secret");
        let mut answer = [&MARK[..], &[7; 32], &GREETED.to_bytes()].concat();
        let code = proof(&key, ConnectionEnd::OtherProcess, &[8; 32], &answer);
        answer.extend_from_slice(&code);
        TcpStream::connect(&address).unwrap().write_all(&answer).unwrap();
        assert!(until(&mut gate, |gate| total(gate) == 1).is_none());
        // The code of process 0 does not serve as the code of another process.
        let mut stream = TcpStream::connect(&address).unwrap();
        let reflected = std::thread::spawn(move || {
            let mut banner = [0; BANNER];
            stream.read_exact(&mut banner).unwrap();
            let challenge: [u8; 32] = banner[MARK.len()..].try_into().unwrap();
            let mut answer = [&MARK[..], &[7; 32], &GREETED.to_bytes()].concat();
            let code = proof(&key, ConnectionEnd::Process0, &challenge, &answer);
            answer.extend_from_slice(&code);
            stream.write_all(&answer).unwrap();
            let mut reply = [1; 32];
            stream.read_exact(&mut reply).unwrap();
            reply == REJECTED
        });
        assert!(until(&mut gate, |gate| total(gate) == 2).is_none() && reflected.join().unwrap());
    }

    #[test]
    fn the_oldest_of_too_many_silent_connections_is_closed() {
        let (mut gate, address) = gate(b"");
        gate.most_waiting = 3;
        let silent: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(&address).unwrap()).collect();
        assert!(until(&mut gate, |gate| total(gate) == 7).is_none());
        assert_eq!(gate.waiting.len(), 3);
        drop(silent);
    }

    #[test]
    fn addresses_are_counted_up_to_a_limit() {
        let mut rejected = RejectedConnections::default();
        (0..40).for_each(|n| rejected.add(IpAddr::from([10, 0, 0, n % 20]), NO_GREETING));
        let told = rejected.describe().unwrap();
        assert!(told.contains("rejected 40 connections") && told.contains("2 from 10.0.0.3 ("), "{told}");
        assert!(told.ends_with("8 from other addresses"), "{told}");
        assert!(["127.0.0.1", "::1", "::ffff:127.0.0.5"].iter().all(|a| is_local(a.parse().unwrap())));
        assert!(["0.0.0.0", "::", "10.0.0.1"].iter().all(|a| !is_local(a.parse().unwrap())));
    }
}
