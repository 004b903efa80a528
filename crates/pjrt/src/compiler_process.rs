//! Compiles ahead of time in a child process, since the compiler may hang, exhaust memory or abort.
//!
//! The parent writes the request to a directory and starts this program with a hidden command; the child loads the
//! plugin, compiles, and writes the response. Environment variables are set before the child starts, because the
//! compiler reads them while loading.

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
use systole_ir::{Error, ErrorKind, Result, err};
use systole_runtime::{AotCompiler, AotMemory, AotReport, AotRequest, AotTopology};

/// Hidden command of the `systole` program that runs [`serve`].
pub const COMMAND: &str = "compile-in-this-process";

/// Response files.
const ANSWER: &str = "answer.json";
const HLO: &str = "optimized.pb";
const EXECUTABLE: &str = "executable.bin";

/// Poll interval for the child process.
const GLANCE: Duration = Duration::from_millis(20);

/// Ahead-of-time compiler of a plugin, run in child processes: libtpu for TPUs, XLA for GPUs.
///
/// ```no_run
/// use systole_pjrt::{AcceleratorPlatform, AheadCompiler, discover};
/// use systole_runtime::{AotCompiler, AotRequest, AotTopology};
/// let compiler = AheadCompiler::new(discover(AcceleratorPlatform::Tpu, None, None).require(AcceleratorPlatform::Tpu)?)?;
/// let program = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
///     %y = stablehlo.add %x, %x : tensor<8xf32>
///     return %y : tensor<8xf32>
/// }";
/// let report = compiler.compile_ahead(&AotRequest::new(program, AotTopology::new("v5e", &[1, 1])))?;
/// println!("{} bytes on each {}", report.memory.need(), report.device_kind);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct AheadCompiler {
    library: PathBuf,
    program: PathBuf,
    cache: Option<CompileCache>,
}

impl AheadCompiler {
    /// Creates the ahead-of-time compiler of a plugin library. Child processes run this program; see [`serve`].
    pub fn new(library: PathBuf) -> Result<AheadCompiler> {
        let program = std::env::current_exe().map_err(|e| Error::io("cannot find", "this program", e))?;
        Ok(AheadCompiler { library, program, cache: None })
    }

    /// Adds a cache of compiled programs to the ahead-of-time compiler.
    pub fn with_cache(self, cache: CompileCache) -> AheadCompiler {
        AheadCompiler { cache: Some(cache), ..self }
    }

    /// Sets the program that child processes run, instead of this one: a program that calls [`serve`] for [`COMMAND`].
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

/// Names and contents of the request files.
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
                    // Without space it is compiled again next time.
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

    /// Returns a cached response; a damaged one is removed.
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
    /// Runs a child until it ends or exceeds its limits; also returns its peak memory.
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

/// Environment that libtpu needs without a TPU; otherwise it queries the metadata server for minutes.
fn environment(folder: &TempDir) -> [(&'static str, String); 6] {
    [
        ("TPU_SKIP_MDS_QUERY", "1".into()),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-4".into()),
        ("TPU_WORKER_HOSTNAMES", "localhost".into()),
        ("TPU_LOG_DIR", "disabled".into()),
        // No chips are opened, so several compilers may run at once.
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1".into()),
        // libtpu leaves a lock file in the temporary directory.
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
            let why = err!(Unsupported, "the compiler used {} MiB of memory and was stopped", most >> 20)
                .because(format!("the memory limit of the compiler process is {} MiB", memory >> 20));
            return stop(
                &mut child,
                why.hint("raise the memory limit with --memory-limit, or compile a smaller program"),
            );
        }
        if began.elapsed() > time {
            let why =
                err!(Unsupported, "the compiler did not end within {} s and was stopped", time.as_secs_f64());
            return stop(
                &mut child,
                why.hint("raise the time limit with --time-limit, or compile a smaller program"),
            );
        }
        std::thread::sleep(GLANCE);
    }
}

/// Returns the resident memory of a process; 0 if unknown.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the error for a child that left no response.
fn ended(status: ExitStatus, folder: &TempDir) -> Error {
    let mut e = err!(Unsupported, "the compiler ended without a response: {status}");
    let log = folder.end_of_log();
    if !log.is_empty() {
        e = e.because(log);
    }
    e.hint("signal 9 usually means that the system ran out of memory; for others try another version of the plugin")
}

fn unwritable(e: serde_json::Error) -> Error {
    err!(Bug, "cannot serialize a request").because(e.to_string())
}

/// Request to the child; the program is in a separate file.
#[derive(Serialize, Deserialize)]
struct CompileRequest {
    library: PathBuf,
    /// Fingerprint of the library build.
    build: String,
    #[serde(with = "SliceInFile")]
    slice: AotTopology,
    replicas: usize,
    partitions: usize,
    quick: bool,
    hlo: bool,
    executable: bool,
}

/// An [`AheadSlice`] in serialized form.
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

/// Response of the child.
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

/// A report without the parts in separate files.
#[derive(Clone, Serialize, Deserialize)]
struct ReportInFile {
    compiler: String,
    device_kind: String,
    devices: usize,
    memory_limit: Option<u64>,
    seconds: f64,
    /// Set by the parent.
    compiler_memory: u64,
    /// Code, arguments, outputs, aliased, temporaries, peak.
    memory: [u64; 6],
    cost: BTreeMap<String, f64>,
    /// Sizes of the separate files: optimized program, executable.
    files: [usize; 2],
}

impl ReportInFile {
    fn report(self, folder: &Path, library: &Path) -> Result<AotReport> {
        let file = |name: &str, size: usize| {
            let bytes = if size == 0 { Vec::new() } else { RequestDir(folder).bytes(name)? };
            let cut = || err!(Data, "the compiler's response is incomplete").at(name.to_string());
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

/// An error in serialized form.
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

/// Child-process side of ahead-of-time compilation: handles the request in a directory. User programs that compile
/// ahead of time must call `serve` if their first argument is [`COMMAND`], with the second argument.
pub fn serve(folder: &Path) -> Result<()> {
    end_with_parent();
    let folder = RequestDir(folder);
    let answer = match folder.compile() {
        Ok(told) => CompileResponse::Done(told),
        Err(e) => CompileResponse::Failed(ErrorInFile::of(&e)),
    };
    // Written under another name first, since the parent reads the file as soon as it exists.
    folder.write("answer.part", &serde_json::to_vec(&answer).map_err(unwritable)?)?;
    fs::rename(folder.0.join("answer.part"), folder.0.join(ANSWER))
        .map_err(|e| Error::io("cannot write", folder.0, e))
}

/// Ends this process when its parent ends.
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

/// Returns the compiler's version as it states it; for the CUDA plugin it contains the GPU's name.
fn compiler(plugin: &Plugin, topology: &Topology, slice: &AotTopology) -> Result<String> {
    let (major, minor) = plugin.version();
    match slice.gpu {
        Some(_) => Ok(format!("XLA's CUDA plugin, PJRT {major}.{minor}")),
        None => topology.version(),
    }
}

/// Returns the StableHLO versions that a plugin supports, as an additional line of its version.
fn dialects(plugin: &Plugin) -> String {
    let shown = |version: Vec<i64>| PluginValue::Ints(version).to_string();
    let read = plugin.stablehlo();
    read.map_or_else(String::new, |(from, to)| {
        format!("\nsupports StableHLO {} to {}", shown(from), shown(to))
    })
}

/// A request directory that the parent owns.
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
        let wanted: CompileRequest = serde_json::from_str(&self.read("request.json")?).map_err(|e| {
            err!(Data, "cannot parse the compile request").at("request.json").because(e.to_string())
        })?;
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

/// Temporary directory of the parent for one request.
struct TempDir(PathBuf);

impl TempDir {
    /// Creates it in the cache, if there is one, so that it can be moved into place.
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

    /// Returns the last lines of the child's output.
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
