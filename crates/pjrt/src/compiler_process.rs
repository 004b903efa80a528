//! Compiling in a child process: the compiler may hang, use all memory or abort, and none of that may end this program.
//!
//! The parent writes the request into a folder and starts this program again with its hidden command; the child loads
//! the plugin, compiles, and writes its answer there. Its environment is set before it starts, because the compiler
//! reads that while it is loaded.

use crate::cache::{CompileCache, build};
use crate::plugin::{Plugin, PluginValue};
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result};
use systole_runtime::{AotCompiler, AotMemory, AotReport, AotRequest, AotTopology};

/// The hidden command of the `systole` program that [`serve`] stands behind.
pub const COMMAND: &str = "compile-in-this-process";

/// Files of an answer.
const ANSWER: &str = "answer.json";
const HLO: &str = "optimized.pb";
const EXECUTABLE: &str = "executable.bin";

/// How often the parent looks at its child.
const GLANCE: Duration = Duration::from_millis(20);

/// The compiler of a plugin, run in child processes: Google's for TPUs, XLA's for GPUs.
///
/// ```no_run
/// use systole_pjrt::{Platform, AheadCompiler, discover};
/// use systole_runtime::{AheadOfTime, AheadRequest, AheadSlice};
/// let compiler = AheadCompiler::new(discover(Platform::Tpu, None, None).require(Platform::Tpu)?)?;
/// let program = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
///     %y = stablehlo.add %x, %x : tensor<8xf32>
///     return %y : tensor<8xf32>
/// }";
/// let report = compiler.compile_ahead(&AheadRequest::new(program, AheadSlice::new("v5e", &[1, 1])))?;
/// println!("{} bytes on each {}", report.memory.need(), report.device_kind);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct AheadCompiler {
    library: PathBuf,
    program: PathBuf,
    cache: Option<CompileCache>,
}

impl AheadCompiler {
    /// The compiler in a library. Children are this very program; see [`serve`].
    pub fn new(library: PathBuf) -> Result<AheadCompiler> {
        let program = std::env::current_exe().map_err(|e| Error::io("cannot find", "this program", e))?;
        Ok(AheadCompiler { library, program, cache: None })
    }

    /// The same, which keeps what it compiled and does not compile it again.
    pub fn with_cache(self, cache: CompileCache) -> AheadCompiler {
        AheadCompiler { cache: Some(cache), ..self }
    }

    /// The same, with another program for the children: one that calls [`serve`] for [`COMMAND`].
    pub fn with_program(self, program: PathBuf) -> AheadCompiler {
        AheadCompiler { program, ..self }
    }
}

impl AotCompiler for AheadCompiler {
    fn compile_ahead(&self, request: &AotRequest) -> Result<AotReport> {
        let wanted = CompileRequest {
            library: self.library.clone(),
            build: build(&self.library),
            slice: request.slice.clone(),
            replicas: request.replicas,
            partitions: request.partitions,
            quick: request.quick,
            hlo: request.hlo,
            executable: request.executable,
        };
        let wanted = serde_json::to_vec(&wanted).map_err(unwritable)?;
        let asked = [("request.json", &wanted[..]), ("program.mlir", request.program.as_bytes())];
        if let Some(kept) = self.cache.as_ref().and_then(|cache| self.kept(cache, &asked)) {
            return Ok(kept);
        }
        self.compile_anew(request, &asked).map_err(|e| e.at(format!("compiling for {}", request.slice)))
    }
}

/// Names and contents of the files that say what is asked.
type CacheRequest<'a> = [(&'a str, &'a [u8])];

impl AheadCompiler {
    fn compile_anew(&self, request: &AotRequest, asked: &CacheRequest<'_>) -> Result<AotReport> {
        let folder = TempDir::new(self.cache.as_ref())?;
        asked.iter().try_for_each(|(name, bytes)| folder.write(name, bytes))?;
        let (status, most) = self.run(&folder, request)?;
        match CompileResponse::read(&folder.0) {
            Some(CompileResponse::Done(told)) => {
                let told = ReportInFile { compiler_memory: most, ..told };
                folder.write(
                    ANSWER,
                    &serde_json::to_vec(&CompileResponse::Done(told.clone())).map_err(unwritable)?,
                )?;
                let report = told.report(&folder.0, &self.library)?;
                if let Some(cache) = &self.cache {
                    // Without room for it the program is compiled again another time.
                    let _ = cache.keep(
                        &folder.0,
                        asked,
                        &["request.json", "program.mlir", ANSWER, HLO, EXECUTABLE],
                    );
                }
                Ok(report)
            }
            Some(CompileResponse::Failed(told)) => Err(told.error()),
            None => Err(ended(status, &folder)),
        }
    }

    /// What was answered before; a damaged answer is forgotten.
    fn kept(&self, cache: &CompileCache, asked: &CacheRequest<'_>) -> Option<AotReport> {
        let folder = cache.find(asked)?;
        let Some(CompileResponse::Done(told)) = CompileResponse::read(&folder) else {
            cache.forget(asked);
            return None;
        };
        match told.report(&folder, &self.library) {
            Ok(report) => Some(AotReport { cached: true, ..report }),
            Err(_) => {
                cache.forget(asked);
                None
            }
        }
    }
}

impl AheadCompiler {
    /// Runs a child to its end or its limits; also says the most memory it was seen to use.
    fn run(&self, folder: &TempDir, request: &AotRequest) -> Result<(ExitStatus, u64)> {
        let log = fs::File::create(folder.0.join("log.txt")).map_err(|e| folder.failed("create", e))?;
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).arg(&folder.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        for (name, value) in environment(folder) {
            command.env(name, value);
        }
        let child = command.spawn().map_err(|e| Error::io("cannot start", &self.program, e))?;
        watch(child, request.time_limit, request.memory_limit as u64)
    }
}

/// What libtpu must find in its environment where no TPU is: it would ask a cloud's metadata server for minutes.
fn environment(folder: &TempDir) -> [(&'static str, String); 6] {
    [
        ("TPU_SKIP_MDS_QUERY", "1".into()),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-4".into()),
        ("TPU_WORKER_HOSTNAMES", "localhost".into()),
        ("TPU_LOG_DIR", "disabled".into()),
        // No chips are opened, so nothing keeps several compilers from running side by side.
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1".into()),
        // It leaves a lock file in the folder for temporary files.
        ("TMPDIR", folder.0.display().to_string()),
    ]
}

fn watch(mut child: Child, time: Duration, memory: u64) -> Result<(ExitStatus, u64)> {
    let began = Instant::now();
    let mut most = 0;
    let stop = |child: &mut Child, why: Error| {
        let _ = child.kill();
        let _ = child.wait();
        Err(why)
    };
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::io("cannot watch", "the compiler", e))? {
            return Ok((status, most));
        }
        most = most.max(resident(child.id()));
        if most > memory {
            let what = format!("the compiler used {} MiB of memory and was stopped", most >> 20);
            let why = Error::new(ErrorKind::Unsupported, what)
                .because(format!("the limit is {} MiB", memory >> 20));
            return stop(&mut child, why.hint("raise it with --memory-limit, or compile a smaller program"));
        }
        if began.elapsed() > time {
            let what = format!("the compiler did not end within {} s and was stopped", time.as_secs_f64());
            let why = Error::new(ErrorKind::Unsupported, what);
            return stop(&mut child, why.hint("raise it with --time-limit, or compile a smaller program"));
        }
        std::thread::sleep(GLANCE);
    }
}

/// Memory that a process holds now, 0 where the system does not say.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// A child that left no answer.
fn ended(status: ExitStatus, folder: &TempDir) -> Error {
    let what = format!("the compiler ended without an answer: {status}");
    let mut e = Error::new(ErrorKind::Unsupported, what);
    let log = folder.end_of_log();
    if !log.is_empty() {
        e = e.because(log);
    }
    e.hint("a signal 9 is mostly the system's lack of memory; others are defects of the plugin: try another version")
}

fn unwritable(e: serde_json::Error) -> Error {
    Error::new(ErrorKind::Bug, "a request cannot be written").because(e.to_string())
}

/// What the child is asked; the program lies beside it.
#[derive(Serialize, Deserialize)]
struct CompileRequest {
    library: PathBuf,
    /// Which build of it: another one would answer otherwise.
    build: String,
    #[serde(with = "SliceInFile")]
    slice: AotTopology,
    replicas: usize,
    partitions: usize,
    quick: bool,
    hlo: bool,
    executable: bool,
}

/// An [`AheadSlice`] in a file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "AotTopology")]
struct SliceInFile {
    topology: String,
    extents: Vec<usize>,
    rings: Vec<bool>,
    chip_config: Option<String>,
    gpu: Option<String>,
    count: usize,
}

/// What the child says.
#[derive(Serialize, Deserialize)]
enum CompileResponse {
    Done(ReportInFile),
    Failed(ErrorInFile),
}

impl CompileResponse {
    fn read(folder: &Path) -> Option<CompileResponse> {
        serde_json::from_slice(&fs::read(folder.join(ANSWER)).ok()?).ok()
    }
}

/// A report without what lies beside it in files.
#[derive(Clone, Serialize, Deserialize)]
struct ReportInFile {
    compiler: String,
    device_kind: String,
    devices: usize,
    memory_limit: Option<u64>,
    seconds: f64,
    /// Filled in by the parent.
    compiler_memory: u64,
    /// Code, arguments, outputs, aliased, temporaries, peak.
    memory: [u64; 6],
    cost: BTreeMap<String, f64>,
    /// Bytes of the files beside it: optimized program, executable.
    files: [usize; 2],
}

impl ReportInFile {
    fn report(self, folder: &Path, library: &Path) -> Result<AotReport> {
        let file = |name: &str, size: usize| {
            let bytes = if size == 0 { Vec::new() } else { RequestDir(folder).bytes(name)? };
            let cut =
                || Error::new(ErrorKind::Data, "the compiler's answer is incomplete").at(name.to_string());
            if bytes.len() == size { Ok(bytes) } else { Err(cut()) }
        };
        let [code, arguments, outputs, aliased, temporaries, peak] = self.memory;
        Ok(AotReport {
            compiler: self.compiler,
            library: library.display().to_string(),
            device_kind: self.device_kind,
            devices: self.devices,
            memory_limit: self.memory_limit,
            seconds: self.seconds,
            compiler_memory: self.compiler_memory,
            cached: false,
            memory: AotMemory { code, arguments, outputs, aliased, temporaries, peak },
            cost: self.cost,
            hlo: file(HLO, self.files[0])?,
            executable: file(EXECUTABLE, self.files[1])?,
        })
    }
}

/// An error on its way from one process to another.
#[derive(Serialize, Deserialize)]
struct ErrorInFile {
    kind: String,
    what: String,
    places: Vec<String>,
    reasons: Vec<String>,
    hint: Option<String>,
}

impl ErrorInFile {
    fn of(e: &Error) -> ErrorInFile {
        ErrorInFile {
            kind: format!("{:?}", e.kind()),
            what: e.what().into(),
            places: e.places().to_vec(),
            reasons: e.reasons().to_vec(),
            hint: e.hint_text().map(String::from),
        }
    }

    fn error(self) -> Error {
        let kinds = [ErrorKind::Config, ErrorKind::Io, ErrorKind::Bug, ErrorKind::Graph];
        let kind = kinds.into_iter().find(|k| format!("{k:?}") == self.kind);
        let mut e = Error::new(kind.unwrap_or(ErrorKind::Unsupported), self.what);
        e = self.places.into_iter().fold(e, Error::at);
        e = self.reasons.into_iter().fold(e, Error::because);
        self.hint.into_iter().fold(e, Error::hint)
    }
}

/// The child's side: answers the request in a folder. Programs of users that compile ahead of time call it when their
/// first argument is [`COMMAND`], with the second one.
pub fn serve(folder: &Path) -> Result<()> {
    end_with_parent();
    let folder = RequestDir(folder);
    let answer = match folder.compile() {
        Ok(told) => CompileResponse::Done(told),
        Err(e) => CompileResponse::Failed(ErrorInFile::of(&e)),
    };
    // Under another name first: the parent takes what stands there for complete.
    folder.write("answer.part", &serde_json::to_vec(&answer).map_err(unwritable)?)?;
    fs::rename(folder.0.join("answer.part"), folder.0.join(ANSWER))
        .map_err(|e| Error::io("cannot write", folder.0, e))
}

/// Ends this process when its parent is gone: nobody would read the answer.
fn end_with_parent() {
    #[cfg(unix)]
    std::thread::spawn(|| {
        let parent = std::os::unix::process::parent_id();
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        std::process::exit(1);
    });
}

/// The compiler's own words for its version. Those of the CUDA plugin are the GPU's name.
fn compiler(plugin: &Plugin, topology: &Topology, slice: &AotTopology) -> Result<String> {
    let (major, minor) = plugin.version();
    match slice.gpu {
        Some(_) => Ok(format!("XLA's CUDA plugin of PJRT {major}.{minor}")),
        None => topology.version(),
    }
}

/// The versions of StableHLO that a plugin reads, as one more line of its version.
fn dialects(plugin: &Plugin) -> String {
    let shown = |version: Vec<i64>| PluginValue::Ints(version).to_string();
    let read = plugin.stablehlo();
    read.map_or_else(String::new, |(from, to)| format!("\nreads StableHLO {} to {}", shown(from), shown(to)))
}

/// A folder that the parent owns.
struct RequestDir<'a>(&'a Path);

impl RequestDir<'_> {
    fn read(&self, name: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::read_to_string(&path).map_err(|e| Error::io("cannot read", &path, e))
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.0.join(name);
        fs::read(&path).map_err(|e| Error::io("cannot read", &path, e))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, bytes).map_err(|e| Error::io("cannot write", &path, e))
    }

    fn compile(&self) -> Result<ReportInFile> {
        let wanted: CompileRequest = serde_json::from_str(&self.read("request.json")?)
            .map_err(|e| Error::new(ErrorKind::Data, "the request cannot be read").because(e.to_string()))?;
        let program = self.read("program.mlir")?;
        let plugin = Plugin::load(&wanted.library)?;
        let topology = Topology::new(&plugin, &wanted.slice)?;
        let devices = topology.devices()?;
        let began = Instant::now();
        let compiled = topology.compile(&program, wanted.replicas, wanted.partitions, wanted.quick)?;
        let seconds = began.elapsed().as_secs_f64();
        let hlo = if wanted.hlo { compiled.optimized()? } else { Vec::new() };
        let executable = if wanted.executable { compiled.serialized()? } else { Vec::new() };
        self.write(HLO, &hlo)?;
        self.write(EXECUTABLE, &executable)?;
        let m = compiled.memory()?;
        let limit = devices.first().and_then(|d| d.attributes.get("device_memory_bytes_limit")?.number());
        Ok(ReportInFile {
            compiler: compiler(&plugin, &topology, &wanted.slice)? + &dialects(&plugin),
            device_kind: devices.first().map(|d| d.kind.clone()).unwrap_or_default(),
            devices: devices.len(),
            memory_limit: limit.map(|bytes| bytes as u64),
            seconds,
            memory: [m.code, m.arguments, m.outputs, m.aliased, m.temporaries, m.peak],
            compiler_memory: 0,
            cost: compiled.cost()?,
            files: [hlo.len(), executable.len()],
        })
    }
}

/// A folder of the parent's for one request, gone with it.
struct TempDir(PathBuf);

impl TempDir {
    /// In the cache where there is one, so that it can become a part of it.
    fn new(cache: Option<&CompileCache>) -> Result<TempDir> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("systole-compile-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = cache.map_or_else(|| std::env::temp_dir().join(&name), |c| c.part(&name));
        fs::create_dir_all(&path).map_err(|e| Error::io("cannot create", &path, e))?;
        Ok(TempDir(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        RequestDir(&self.0).write(name, bytes)
    }

    fn failed(&self, action: &str, e: std::io::Error) -> Error {
        Error::io(&format!("cannot {action} files in"), &self.0, e)
    }

    /// The last lines of what the child wrote.
    fn end_of_log(&self) -> String {
        const SHOWN: i64 = 2000;
        let mut bytes = Vec::new();
        if let Ok(mut file) = fs::File::open(self.0.join("log.txt")) {
            let _ = file.seek(SeekFrom::End(-SHOWN)).or_else(|_| file.seek(SeekFrom::Start(0)));
            let _ = file.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).trim().to_string()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
