//! Connects several processes as the hosts of one slice: each has some of its devices, and exchanges data over TCP.
//!
//! Process 0 listens, the others connect to it. In every exchange each process sends its devices' data to process 0,
//! which sends all of it back in process order, so sums are bit-identical to a single process with all devices. This is
//! slow: it tests numerics. A process that ends closes its connection, which the others notice at once; a silent one is
//! given up after a timeout. Every process proves the run's secret first (`handshake`).

use crate::call::{CallError, CallResult, list};
use crate::handshake::{
    ConnectionGate, ExpectedReply, JoinError, ProcessGreeting, ProvenConnection, is_local, join, key_of,
    needs_secret,
};
use crate::key_value::KeyValueStore;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use systole_data::RunSecret;
use systole_dist::ProcessExchange;
use systole_ir::{Error, ErrorKind, Result, knobs};
use systole_pjrt::sys::{self, code};

/// Client options: number of devices per process, index of this process, number of processes.
pub(crate) struct ProcessOptions {
    pub(crate) devices: i64,
    pub(crate) process: i64,
    pub(crate) processes: i64,
    /// Address where process 0 listens.
    coordinator: String,
    /// Secret of the run; without it, all processes must be on this machine.
    secret: Option<RunSecret>,
    /// Timeout for a silent process.
    patience: Duration,
    /// Simulated additional duration of each run.
    pub(crate) step: Duration,
    /// Host of process 0 in a run of `jax.distributed`, whose processes meet through the caller's key-value store.
    host: Option<String>,
}

/// Returns the default number of devices.
fn default_devices() -> CallResult<i64> {
    let text = knobs::DEVICES.get();
    text.trim().parse().map_err(|_| knobs::DEVICES.no_value(&text).into())
}

/// Maximum number of processes.
const MOST_PROCESSES: i64 = 1024;
/// Poll interval for new connections.
const POLL: Duration = Duration::from_millis(20);

impl ProcessOptions {
    /// # Safety
    /// `start` is null or points to `len` named values as the C API has them.
    pub(crate) unsafe fn read(start: *const sys::NamedValue, len: usize) -> CallResult<ProcessOptions> {
        let mut place = ProcessOptions {
            devices: default_devices()?,
            process: 0,
            processes: 1,
            coordinator: String::new(),
            secret: RunSecret::from_environment()?,
            patience: Duration::from_secs(120),
            step: Duration::ZERO,
            host: None,
        };
        let (mut node, mut nodes) = (0, 1);
        for i in 0..len {
            // SAFETY: the caller's list has that length.
            let option = unsafe { &*start.add(i) };
            // SAFETY: its name has that many bytes.
            let name = unsafe { std::slice::from_raw_parts(option.name, option.name_size) };
            let number = option.value as i64;
            let text = || {
                // SAFETY: a string's pointer has the length stored next to it.
                let text = unsafe { list(option.value as sys::CharPtr, option.value_size) };
                String::from_utf8_lossy(text).into_owned()
            };
            match (name, option.type_) {
                (b"num_devices", sys::named::INT64) => place.devices = number,
                (b"process_id", sys::named::INT64) => place.process = number,
                (b"num_processes", sys::named::INT64) => place.processes = number,
                // Set by JAX for all platforms, also those that the user did not select.
                (b"node_id", sys::named::INT64) => node = number,
                (b"num_nodes", sys::named::INT64) => nodes = number,
                // Set by the Python package if the user selected the platform.
                (b"jax_host", sys::named::STRING) => place.host = Some(text()),
                (b"step_milliseconds", sys::named::INT64) => {
                    place.step = Duration::from_millis(number.clamp(0, 60_000) as u64);
                }
                (b"timeout_seconds", sys::named::INT64) => {
                    place.patience = Duration::from_secs(number.clamp(1, 86_400) as u64);
                }
                (b"coordinator_address", sys::named::STRING) => place.coordinator = text(),
                _ => {}
            }
        }
        if place.host.is_some() {
            (place.process, place.processes) = (node, nodes);
        }
        place.check()?;
        Ok(place)
    }

    fn check(&self) -> CallResult {
        let ProcessOptions { process, processes, .. } = *self;
        if !(1..=MOST_PROCESSES).contains(&processes) || !(0..processes).contains(&process) {
            let what = format!("process_id is {process} and num_processes {processes}");
            return Err(CallError::invalid(format!(
                "{what}: processes are numbered from 0, and there are at most {MOST_PROCESSES}"
            )));
        }
        if processes > 1 && self.host.is_none() && self.coordinator.is_empty() {
            return Err(CallError::invalid(
                "num_processes requires coordinator_address, where process 0 listens, such as 127.0.0.1:8476",
            ));
        }
        Ok(())
    }

    /// Waits until all processes are connected. `None` for a single process.
    pub(crate) fn meet(mut self, store: Option<&KeyValueStore>) -> CallResult<Option<HostLinks>> {
        if self.processes == 1 {
            return Ok(None);
        }
        let listener = if self.host.is_some() { self.publish(store)? } else { None };
        let met = match self.process {
            0 => self.listen(listener),
            _ => self.connect().map(|end| (vec![end], None)),
        };
        let (ends, rejected) = met.map_err(|why| CallError { code: code::UNAVAILABLE, message: why })?;
        let (index, count) = (self.process as usize, self.processes as usize);
        Ok(Some(HostLinks {
            index,
            count,
            patience: self.longest(),
            rejected,
            runs: AtomicU64::new(0),
            state: Mutex::new(LinkState { ends, turn: 0, lost: None }),
        }))
    }

    /// Publishes address and secret in process 0, and reads them in the others.
    fn publish(&mut self, store: Option<&KeyValueStore>) -> CallResult<Option<TcpListener>> {
        // Each new client of a process has new connections.
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let key = format!("systole/process_0/{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        let store = store.ok_or_else(|| CallError::invalid("the caller has no key-value store"))?;
        let host = self.host.clone().unwrap_or_default();
        if self.process > 0 {
            let value = store.get(&key, self.patience)?;
            let (address, secret) = value.split_once(' ').unwrap_or((&value, ""));
            (self.coordinator, self.secret) = (address.into(), RunSecret::parse(secret)?);
            return Ok(None);
        }
        let is_local =
            (host.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.all(|a| is_local(a.ip())));
        let failed = |e: io::Error| CallError::invalid(format!("process 0 cannot listen: {e}"));
        let bound =
            if is_local { TcpListener::bind((host.as_str(), 0)) } else { TcpListener::bind("0.0.0.0:0") };
        let listener = bound.map_err(failed)?;
        let secret = RunSecret::random()?;
        self.coordinator = format!("{host}:{}", listener.local_addr().map_err(failed)?.port());
        store.put(&key, &format!("{} {}", self.coordinator, secret.text()))?;
        self.secret = Some(secret);
        Ok(Some(listener))
    }

    /// Accepts connections from processes 1, 2, … Also returns a description of the rejected connections.
    fn listen(
        &self,
        listener: Option<TcpListener>,
    ) -> std::result::Result<(Vec<TcpStream>, Option<String>), String> {
        let address = &self.coordinator;
        let failed = |e: io::Error| format!("process 0 cannot listen at {address}: {e}");
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let addresses = self.addresses().map_err(failed)?;
                if self.secret.is_none() && !addresses.iter().all(|address| is_local(address.ip())) {
                    return Err(format!("process 0 does not listen: {}", needs_secret(address)));
                }
                TcpListener::bind(&addresses[..]).map_err(failed)?
            }
        };
        let key = key_of(self.secret.as_ref());
        let mut gate = ConnectionGate::new(listener, key, self.processes as usize).map_err(failed)?;
        let mut ends: Vec<Option<ProvenConnection>> = (1..self.processes).map(|_| None).collect();
        let until = Instant::now() + self.patience;
        while let Some(missing) = ends.iter().position(Option::is_none) {
            if Instant::now() >= until {
                let rejected = gate.rejected.describe().map_or_else(String::new, |text| format!("; {text}"));
                return Err(self.absent(missing + 1) + &rejected);
            }
            match gate.poll().map_err(failed)? {
                Some(connection) => self.welcome(connection, &mut ends)?,
                None => sleep(POLL),
            }
        }
        let mut streams = Vec::new();
        for (k, mut end) in ends.into_iter().flatten().enumerate() {
            end.answer(Ok(())).map_err(|e| format!("{} {}", self.named(k + 1), told(&e, self.patience)))?;
            streams.push(end.stream);
        }
        Ok((streams, gate.rejected.describe()))
    }

    /// Accepts a process. A process with other options receives an error, and the wait fails.
    fn welcome(
        &self,
        mut connection: ProvenConnection,
        ends: &mut [Option<ProvenConnection>],
    ) -> std::result::Result<(), String> {
        let ProcessGreeting { process, processes, devices } = connection.greeting;
        prepare(&connection.stream, self.patience)
            .map_err(|e| format!("process {process} of {processes} {}", told(&e, self.patience)))?;
        let place = usize::try_from(process - 1).ok().and_then(|k| ends.get_mut(k));
        let wrong = match place {
            _ if (processes, devices) != (self.processes, self.devices) => format!(
                "process {process} was started with {processes} processes of {devices} devices, but process 0 with {} of {}",
                self.processes, self.devices
            ),
            Some(free @ None) => {
                *free = Some(connection);
                return Ok(());
            }
            _ => format!("two processes have process_id {process}"),
        };
        let _ = connection.answer(Err(&wrong));
        Err(wrong)
    }

    /// Connects to process 0.
    fn connect(&self) -> std::result::Result<TcpStream, String> {
        let until = Instant::now() + self.patience;
        let failed = |why: JoinError| match why {
            JoinError::NotYet(e) | JoinError::Lost(e) => {
                format!("{} {}", self.named(0), told(&e, self.longest()))
            }
            JoinError::Wrong(why) => format!("process 0 at {} {why}", self.coordinator),
        };
        let (mut stream, reply) = loop {
            match self.try_connect() {
                Ok(joined) => break joined,
                Err(JoinError::NotYet(e)) if Instant::now() >= until => {
                    return Err(format!("{} ({e})", self.absent(0)));
                }
                Err(JoinError::NotYet(_)) => sleep(POLL),
                Err(why) => return Err(failed(why)),
            }
        };
        let answered = prepare(&stream, self.longest())
            .map_err(JoinError::Lost)
            .and_then(|()| reply.check(&mut stream))
            .and_then(|()| refusal(&mut stream).map_err(JoinError::Lost));
        match answered {
            Ok(None) => Ok(stream),
            Ok(Some(why)) => Err(why),
            Err(why) => Err(failed(why)),
        }
    }

    /// Connects and proves the secret, if process 0 listens already.
    fn try_connect(&self) -> std::result::Result<(TcpStream, ExpectedReply), JoinError> {
        let stream = self.addresses().and_then(|all| TcpStream::connect(&all[..]));
        let mut stream = stream.map_err(JoinError::NotYet)?;
        let address = stream.peer_addr().map_err(JoinError::NotYet)?;
        if self.secret.is_none() && !is_local(address.ip()) {
            return Err(JoinError::Wrong(format!("is not used: {}", needs_secret(&address.to_string()))));
        }
        prepare(&stream, self.patience).map_err(JoinError::NotYet)?;
        let ProcessOptions { process, processes, devices, .. } = *self;
        let greeting = ProcessGreeting { process, processes, devices };
        let reply = join(&mut stream, &key_of(self.secret.as_ref()), greeting)?;
        Ok((stream, reply))
    }

    /// Returns how long this process waits for an answer: process 0 waits for each process in turn, and must be able to
    /// report which one is missing before the others time out.
    fn longest(&self) -> Duration {
        if self.process == 0 { self.patience } else { self.patience * self.processes as u32 }
    }

    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.coordinator.to_socket_addrs()?.collect())
    }

    fn named(&self, process: usize) -> String {
        format!("process {process} of {}", self.processes)
    }

    fn absent(&self, process: usize) -> String {
        let (named, seconds) = (self.named(process), self.patience.as_secs());
        format!(
            "{named} did not connect within {seconds} s; start all processes with coordinator_address={}",
            self.coordinator
        )
    }
}

fn prepare(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

impl ProvenConnection {
    /// Proves the secret in return, and writes whether the process may take part.
    fn answer(&mut self, said: std::result::Result<(), &str>) -> io::Result<()> {
        self.stream.write_all(&self.reply).and_then(|()| answer(&mut self.stream, said))
    }
}

/// Writes `Ok` (an empty block) or the error as a block.
fn answer(stream: &mut TcpStream, said: std::result::Result<(), &str>) -> io::Result<()> {
    write_block(stream, said.err().unwrap_or_default().as_bytes())
}

/// Reads what [`answer`] wrote.
fn refusal(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let why = String::from_utf8_lossy(&read_block(stream)?).into_owned();
    Ok(Some(why).filter(|why| !why.is_empty()))
}

/// Writes `length: u64, bytes`.
fn write_block(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_block(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    // Allocates as bytes arrive, since the length is untrusted.
    let mut bytes = Vec::new();
    match stream.take(length).read_to_end(&mut bytes)? as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Describes a connection error: `has not responded for 20 s`.
fn told(e: &io::Error, patience: Duration) -> String {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("has not responded for {} s", patience.as_secs())
        }
        _ => format!("is gone ({e})"),
    }
}

/// Connections between the processes of a slice.
pub(crate) struct HostLinks {
    index: usize,
    count: usize,
    patience: Duration,
    /// Description of the connections that process 0 rejected, if any.
    pub(crate) rejected: Option<String>,
    /// Number of runs of programs on devices of all processes; equal in all processes, which run the same programs.
    runs: AtomicU64,
    state: Mutex<LinkState>,
}

struct LinkState {
    /// In process 0 the connections to the others; otherwise the connection to process 0.
    ends: Vec<TcpStream>,
    /// Number of exchanges so far.
    turn: u64,
    /// Why no further exchange is possible.
    lost: Option<String>,
}

impl ProcessExchange for HostLinks {
    fn all(&self, what: &str, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.turn += 1;
        // A process in another exchange has run a different program.
        let name = format!("exchange {}, {what}", state.turn);
        let met = match &state.lost {
            Some(why) => Err(why.clone()),
            None if self.index == 0 => self.collect(&mut state.ends, &name, own),
            None => self.hand_in(&mut state.ends[0], &name, &own),
        };
        met.map_err(|why| {
            let e = Error::new(ErrorKind::Unsupported, why.clone()).because(format!(
                "this is process {} of {}: a step needs every process, and one has stopped or runs another program",
                self.index, self.count
            ));
            state.lost = Some(why);
            e.hint("start all processes again: they resume from the last backup")
        })
    }
}

impl HostLinks {
    /// Returns the number of the next run, from 1.
    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn failed(&self, process: usize, e: &io::Error) -> String {
        format!("process {process} of {} {}", self.count, told(e, self.patience))
    }

    /// Exchanges in process 0: receives from every process, and sends everything to all.
    fn collect(
        &self,
        ends: &mut [TcpStream],
        name: &str,
        own: Vec<u8>,
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut all = vec![own];
        let mut heard = || {
            for (k, end) in ends.iter_mut().enumerate() {
                let failed = |e| self.failed(k + 1, &e);
                let theirs = read_block(end).map_err(failed)?;
                if theirs != name.as_bytes() {
                    let theirs = String::from_utf8_lossy(&theirs).into_owned();
                    return Err(format!("process {} is at {theirs}; process 0 is at {name}", k + 1));
                }
                all.push(read_block(end).map_err(failed)?);
            }
            Ok(())
        };
        let heard = heard();
        let mut lost = heard.err();
        for (k, end) in ends.iter_mut().enumerate() {
            let mut tell = || {
                answer(end, lost.as_deref().map_or(Ok(()), Err))?;
                let list = if lost.is_none() { &all[..] } else { &[] };
                list.iter().try_for_each(|bytes| write_block(end, bytes))
            };
            // If one is gone already, the others still learn why.
            if let Err(e) = tell() {
                lost = lost.or(Some(self.failed(k + 1, &e)));
            }
        }
        lost.map_or(Ok(all), Err)
    }

    fn hand_in(
        &self,
        end: &mut TcpStream,
        name: &str,
        own: &[u8],
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut talk = || {
            let sent = write_block(end, name.as_bytes()).and_then(|()| write_block(end, own));
            // Process 0 may have sent its error before this message.
            match (sent, refusal(end)) {
                (_, Ok(Some(why))) => Ok(Err(why)),
                (Err(e), _) | (_, Err(e)) => Err(e),
                _ => (0..self.count).map(|_| read_block(end)).collect::<io::Result<_>>().map(Ok),
            }
        };
        talk().map_err(|e| self.failed(0, &e))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(process: i64, processes: i64, address: &str) -> ProcessOptions {
        let (coordinator, patience) = (address.to_string(), Duration::from_secs(2));
        let (secret, step) = (None, Duration::ZERO);
        ProcessOptions { devices: 1, process, processes, coordinator, secret, patience, step, host: None }
    }

    fn free_address() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    /// Creates the links of all processes, each on its own thread.
    fn lines(processes: i64) -> Vec<HostLinks> {
        let address = free_address();
        let start = |p| {
            let address = address.clone();
            std::thread::spawn(move || {
                place(p, processes, &address).meet(None).unwrap_or_else(|f| panic!("{}", f.message)).unwrap()
            })
        };
        let threads: Vec<_> = (0..processes).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    }

    #[test]
    fn everyone_gets_what_all_say_in_the_order_of_processes() {
        let talk = |line: HostLinks| {
            let index = line.index as u8;
            std::thread::spawn(move || {
                let small = line.all("a", vec![index; index.into()]).unwrap();
                // More than a socket buffers.
                (small, line.all("b", vec![index; 5_000_000]).unwrap().concat())
            })
        };
        let threads: Vec<_> = lines(3).into_iter().map(talk).collect();
        for thread in threads {
            let (small, large) = thread.join().unwrap();
            assert_eq!(small, [vec![], vec![1], vec![2, 2]]);
            assert!((0..3).all(|p| large[p * 5_000_000..][..5_000_000].iter().all(|b| *b == p as u8)));
        }
    }

    #[test]
    fn who_is_gone_silent_or_elsewhere_is_told_to_all() {
        type Act = fn(HostLinks) -> String;
        let stay: Act = |line| line.all("a", vec![0]).unwrap_err().to_string();
        let gone: Act = |_| String::new();
        let silent: Act = |line| {
            sleep(Duration::from_secs(4));
            drop(line);
            String::new()
        };
        let elsewhere: Act = |line| line.all("b", vec![0]).unwrap_err().to_string();
        let cases = [
            (gone, "process 1 of 3 is gone"),
            (silent, "process 1 of 3 has not responded for 2 s"),
            (elsewhere, "process 1 is at exchange 1, b; process 0 is at exchange 1, a"),
        ];
        for (act, expected) in cases {
            let acts = [stay, act, stay];
            let threads: Vec<_> = lines(3)
                .into_iter()
                .zip(acts)
                .map(|(line, act)| std::thread::spawn(move || act(line)))
                .collect();
            let said: Vec<String> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            for k in [0, 2] {
                assert!(said[k].contains(expected), "process {k}: {}", said[k]);
            }
        }
    }

    #[test]
    fn who_does_not_come_or_was_started_otherwise_is_told() {
        let failed = |p: ProcessOptions| p.meet(None).err().map(|f| f.message).unwrap_or_default();
        let address = free_address();
        let alone = failed(ProcessOptions { patience: Duration::from_secs(1), ..place(0, 2, &address) });
        assert!(alone.contains("process 1 of 2"), "{alone}");
        let alone = failed(ProcessOptions { patience: Duration::from_secs(1), ..place(1, 2, &address) });
        assert!(alone.contains("process 0 of 2"), "{alone}");
        let other = std::thread::spawn({
            let address = address.clone();
            move || failed(ProcessOptions { devices: 3, ..place(1, 2, &address) })
        });
        let said = [failed(place(0, 2, &address)), other.join().unwrap()];
        for text in said {
            assert!(text.contains("2 processes of 3 devices, but process 0 with 2 of 1"), "{text}");
        }
        // Each has a secret of its own.
        let secret = || Some(RunSecret::random().unwrap());
        let other = std::thread::spawn({
            let address = address.clone();
            move || failed(ProcessOptions { secret: secret(), ..place(1, 2, &address) })
        });
        let alone = failed(ProcessOptions { secret: secret(), ..place(0, 2, &address) });
        assert!(
            alone.contains("process 0 rejected 1 connection: 1 from 127.0.0.1 (wrong secret)"),
            "{alone}"
        );
        let other = other.join().unwrap();
        assert!(other.contains("has another secret: set the same SYSTOLE_SECRET"), "{other}");
        // Without a secret, other machines have no access.
        let open = failed(place(0, 2, "0.0.0.0:0"));
        assert!(
            open.contains("0.0.0.0:0 can be reached from other machines") && open.contains("export "),
            "{open}"
        );
        assert!(place(2, 2, &address).check().is_err_and(|f| f.message.contains("process_id")));
        assert!(place(0, 2, "").check().is_err_and(|f| f.message.contains("coordinator_address")));
    }
}
