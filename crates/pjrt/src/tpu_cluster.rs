//! Resolves the TPU configuration from a TPU VM, Colab, GKE or environment variables (TPU cluster resolver).
//!
//! Nothing is loaded. The metadata server is queried only on Google Cloud machines, for at most two seconds.

use crate::{AcceleratorPlatform, device_nodes};
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use systole_ir::{Result, err, knobs};

/// Environment in which a program runs: TPU VM, GKE, Colab or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TpuEnvironment {
    /// A Google Cloud TPU VM.
    TpuVm,
    /// A Colab notebook.
    Colab,
    /// A container on Google Kubernetes Engine.
    Gke,
    /// Anything else.
    Elsewhere,
}

impl fmt::Display for TpuEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TpuEnvironment::TpuVm => "a TPU VM",
            TpuEnvironment::Colab => "a Colab runtime",
            TpuEnvironment::Gke => "a container on GKE",
            TpuEnvironment::Elsewhere => "not a cloud TPU machine",
        })
    }
}

/// Configuration of the TPUs available to a program, named like TensorFlow's `TPUClusterResolver`.
///
/// ```
/// use systole_pjrt::TpuClusterResolver;
/// let tpu = TpuClusterResolver::new("")?;
/// for line in tpu.explain() {
///     println!("{line}");
/// }
/// if let Err(e) = tpu.connect() {
///     println!("{e}"); // no TPU here: says where to get one
/// }
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TpuClusterResolver {
    /// Environment in which the program runs.
    pub surroundings: TpuEnvironment,
    /// TPU name in the cloud.
    pub name: Option<String>,
    /// Zone.
    pub zone: Option<String>,
    /// Project.
    pub project: Option<String>,
    /// Slice type: `v5litepod-16`.
    pub slice: Option<String>,
    /// Index of this host in the slice, from 0.
    pub worker: usize,
    /// Hosts of the slice; empty if unknown.
    pub hosts: Vec<String>,
    /// Number of slices (multislice).
    pub slices: usize,
    /// Index of this machine's slice, from 0.
    pub slice_id: usize,
    /// Device nodes of this machine.
    pub nodes: Vec<PathBuf>,
    /// Inconsistencies in the configuration.
    pub doubts: Vec<ClusterWarning>,
}

/// An inconsistency in the TPU configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterWarning {
    /// Description.
    pub what: String,
    /// Command that fixes it.
    pub mend: String,
}

/// Sources of configuration.
struct EnvironmentSources<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// Metadata server, on Google Cloud TPU machines.
    metadata: Option<SocketAddr>,
    nodes: Vec<PathBuf>,
}

/// Google's metadata server.
const METADATA: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
/// Total timeout for all its answers.
const PATIENCE: Duration = Duration::from_secs(2);

impl TpuClusterResolver {
    /// Resolves the TPU configuration of this machine. `tpu` is the TPU's name, or `""` or `"local"` for the local one.
    ///
    /// # Errors
    /// If `tpu` or a variable is the address of a TPU node, which Google retired.
    pub fn new(tpu: &str) -> Result<TpuClusterResolver> {
        let nodes = device_nodes(AcceleratorPlatform::Tpu);
        let wanted = !nodes.is_empty() && is_googles() && knobs::variable("TPU_SKIP_MDS_QUERY").is_none();
        let metadata = wanted.then(|| SocketAddr::from(METADATA));
        TpuClusterResolver::read(tpu, EnvironmentSources { variable: &knobs::variable, metadata, nodes })
    }

    fn read(tpu: &str, from: EnvironmentSources<'_>) -> Result<TpuClusterResolver> {
        let variable = from.variable;
        for address in [Some(tpu.to_string()), variable("COLAB_TPU_ADDR"), variable("TPU_NAME")] {
            refuse_retired(&address.unwrap_or_default())?;
        }
        let mut metadata = MetadataClient { server: from.metadata, until: Instant::now() + PATIENCE };
        let given = Some(tpu).filter(|t| !matches!(*t, "" | "local")).map(String::from);
        let hosts = variable("TPU_WORKER_HOSTNAMES").map(|list| split_list(&list));
        let mut found = TpuClusterResolver {
            surroundings: surroundings(variable, !from.nodes.is_empty()),
            name: given.or_else(|| variable("TPU_NAME")).or_else(|| metadata.ask("attributes/instance-id")),
            zone: variable("TPU_ZONE").or_else(|| metadata.ask("zone").map(|z| last_part(&z))),
            project: variable("TPU_PROJECT"),
            slice: variable("TPU_ACCELERATOR_TYPE").or_else(|| metadata.ask("attributes/accelerator-type")),
            worker: 0,
            hosts: hosts.unwrap_or_else(|| metadata.hosts()),
            slices: 1,
            slice_id: 0,
            nodes: from.nodes,
            doubts: Vec::new(),
        };
        let worker = variable("TPU_WORKER_ID").or_else(|| metadata.ask("attributes/agent-worker-number"));
        found.worker = found.number("TPU_WORKER_ID", worker, 0);
        found.slices = found.number("MEGASCALE_NUM_SLICES", variable("MEGASCALE_NUM_SLICES"), 1).max(1);
        found.slice_id = found.number("MEGASCALE_SLICE_ID", variable("MEGASCALE_SLICE_ID"), 0);
        found.look_for_doubts();
        Ok(found)
    }

    fn number(&mut self, name: &str, text: Option<String>, default: usize) -> usize {
        let Some(text) = text else { return default };
        text.trim().parse().unwrap_or_else(|_| {
            self.doubt(format!("{name} must be a number, got `{text}`"), format!("unset {name}"));
            default
        })
    }

    fn doubt(&mut self, what: String, mend: impl Into<String>) {
        self.doubts.push(ClusterWarning { what, mend: mend.into() });
    }

    fn look_for_doubts(&mut self) {
        if !self.hosts.is_empty() && self.worker >= self.hosts.len() {
            let what = format!("this is worker {} of {} hosts", self.worker, self.hosts.len());
            self.doubt(what, "unset TPU_WORKER_ID TPU_WORKER_HOSTNAMES   # libtpu then queries the cloud");
        }
        if let Some(zone) = self.zone.clone().filter(|z| !is_zone(z)) {
            let what = format!("invalid zone `{zone}`: expected a name like us-central1-a");
            self.doubt(what, "gcloud compute tpus locations list   # then export TPU_ZONE");
        }
        if let (true, Some(slice)) = (self.nodes.is_empty(), self.slice.clone()) {
            let what = format!(
                "an environment variable states the slice {slice}, but this machine has no TPU device"
            );
            let image = "gcloud compute tpus tpu-vm create NAME --version=v2-alpha-tpuv5-lite";
            self.doubt(
                what,
                format!(
                    "{image} …   # a TPU runtime image (docs/guide/tpu.md), or unset TPU_ACCELERATOR_TYPE"
                ),
            );
        }
        if !self.nodes.is_empty() && self.surroundings == TpuEnvironment::Elsewhere {
            let what = "there are TPU devices, but the slice is unknown";
            self.doubt(
                what.into(),
                "export TPU_ACCELERATOR_TYPE=v5litepod-4 TPU_WORKER_ID=0   # adapt the values",
            );
        }
    }

    /// Returns the TPU configuration like [`explain`](TpuClusterResolver::explain), without the inconsistencies.
    pub fn facts(&self) -> Vec<String> {
        let mut lines = vec![format!("this is {}", self.surroundings)];
        let named =
            [("TPU", &self.name), ("zone", &self.zone), ("project", &self.project), ("slice", &self.slice)];
        lines.extend(
            named.into_iter().filter_map(|(what, value)| Some(format!("{what} {}", value.as_ref()?))),
        );
        if !self.hosts.is_empty() {
            lines.push(format!("host {} of {}: {}", self.worker, self.hosts.len(), self.hosts.join(", ")));
        }
        if self.slices > 1 {
            lines.push(format!("slice {} of {} (multislice)", self.slice_id, self.slices));
        }
        if !self.nodes.is_empty() {
            let nodes: Vec<String> = self.nodes.iter().map(|n| n.display().to_string()).collect();
            lines.push(format!("devices {}", nodes.join(", ")));
        }
        lines
    }

    /// Returns the TPU configuration, one fact per line.
    pub fn explain(&self) -> Vec<String> {
        let doubts = self.doubts.iter().map(|d| format!("warning: {}; try: {}", d.what, d.mend));
        self.facts().into_iter().chain(doubts).collect()
    }

    /// Checks that a program here can use the TPU. No connection or initialization is needed: a program runs on the
    /// machine with the chips, and on a multi-host slice on every host with the same arguments.
    ///
    /// # Errors
    /// If this machine has no TPU, or the host or slice index is inconsistent.
    pub fn connect(&self) -> Result<()> {
        if self.nodes.is_empty() {
            let e = err!(Unsupported, "this machine has no TPU").because(self.explain().join("; "));
            return Err(e.hint("run the program on the TPU VM (docs/guide/tpu.md); `systole compile MODEL --target v5e:2x2` needs no TPU"));
        }
        if self.slice_id >= self.slices {
            let e = err!(Config, "this is slice {} of {}", self.slice_id, self.slices)
                .because("TPU slices are numbered from 0");
            return Err(e.hint(
                "set MEGASCALE_NUM_SLICES and MEGASCALE_SLICE_ID as `systole cloud` does, or unset both",
            ));
        }
        if !self.hosts.is_empty() && self.worker >= self.hosts.len() {
            let e = err!(Config, "this is host {} of {}", self.worker, self.hosts.len())
                .because("TPU hosts are numbered from 0");
            return Err(e.hint("unset TPU_WORKER_ID TPU_WORKER_HOSTNAMES: libtpu then queries the cloud"));
        }
        Ok(())
    }

    /// Checks that the opened devices match the configuration: process `index` of `count` is this worker of the slice's
    /// hosts. Hosts of several slices are numbered slice by slice, as in JAX. A process opened for its own chips only
    /// is always accepted.
    ///
    /// # Errors
    /// If they differ.
    pub fn check(&self, index: usize, count: usize) -> Result<()> {
        let hosts = self.hosts.len();
        let (host, all) = (self.slice_id * hosts + self.worker, self.slices * hosts);
        if count <= 1 || hosts == 0 || (index, count) == (host, all) {
            return Ok(());
        }
        Err(err!(Config, "the plugin reports process {index} of {count}")
            .because(format!("the environment states host {host} of {all}"))
            .hint("run `systole doctor` to see which setting is wrong; unset TPU_WORKER_ID TPU_WORKER_HOSTNAMES \
            and start again on every host"))
    }
}

/// Rejects the address of a TPU node: `grpc://10.0.0.2:8470`, `10.0.0.2:8470`.
///
/// # Errors
/// If it is one; the hint names the replacement.
pub fn refuse_retired(tpu: &str) -> Result<()> {
    let address = tpu.strip_prefix("grpc://").unwrap_or(tpu);
    let port = address.rsplit_once(':').map_or("", |(_, port)| port);
    if !tpu.starts_with("grpc://") && (port.is_empty() || port.parse::<u16>().is_err()) {
        return Ok(());
    }
    let e = err!(Unsupported, "`{tpu}` is the address of a TPU node");
    Err(e.because("Google retired TPU nodes, which were used over the network; programs now run on the TPU VM")
        .hint("create a TPU VM, or choose a TPU runtime (v5e-1, v6e-1) in Colab, and unset COLAB_TPU_ADDR; see docs/guide/tpu.md"))
}

fn surroundings(variable: &dyn Fn(&str) -> Option<String>, nodes: bool) -> TpuEnvironment {
    let said = |name: &str| variable(name).is_some();
    if said("COLAB_RELEASE_TAG") || said("COLAB_TPU_ADDR") {
        TpuEnvironment::Colab
    } else if said("KUBERNETES_SERVICE_HOST") && (nodes || said("TPU_WORKER_HOSTNAMES")) {
        TpuEnvironment::Gke
    } else if nodes && is_googles() {
        TpuEnvironment::TpuVm
    } else {
        TpuEnvironment::Elsewhere
    }
}

/// Whether this is a Google Cloud machine: only there a metadata server answers.
fn is_googles() -> bool {
    std::fs::read_to_string("/sys/class/dmi/id/product_name").is_ok_and(|name| name.contains("Google"))
}

/// Whether text is a zone like `us-central1-a`.
fn is_zone(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let letter = |p: &&str| p.len() == 1 && p.bytes().all(|b| b.is_ascii_lowercase());
    parts.len() >= 3 && parts.last().is_some_and(letter)
}

fn split_list(text: &str) -> Vec<String> {
    text.split(',').map(|h| h.trim().to_string()).filter(|h| !h.is_empty()).collect()
}

/// Returns the last component: `projects/123/zones/us-central1-a` → `us-central1-a`.
fn last_part(text: &str) -> String {
    text.rsplit('/').next().unwrap_or(text).to_string()
}

/// Metadata server client with a total timeout.
struct MetadataClient {
    server: Option<SocketAddr>,
    until: Instant,
}

impl MetadataClient {
    fn ask(&mut self, path: &str) -> Option<String> {
        let answer = self.request(path).ok();
        if answer.is_none() {
            // After one timeout the server is not queried again.
            self.server = None;
        }
        let answer = answer?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let good = head.lines().next()?.contains(" 200 ");
        Some(body.trim().to_string()).filter(|body| good && !body.is_empty())
    }

    fn request(&self, path: &str) -> std::io::Result<String> {
        let gone = || std::io::Error::from(std::io::ErrorKind::TimedOut);
        let server = self.server.ok_or_else(gone)?;
        let left =
            || self.until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()).ok_or_else(gone);
        let mut stream = TcpStream::connect_timeout(&server, left()?)?;
        stream.set_write_timeout(Some(left()?))?;
        let request = format!(
            "GET /computeMetadata/v1/instance/{path} HTTP/1.1\r\nHost: metadata.google.internal\r\n\
             Metadata-Flavor: Google\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut part = [0u8; 4096];
        // Limits time and memory even if the server sends slowly or endlessly.
        while answer.len() < 1 << 16 {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut part)? {
                0 => break,
                n => answer.extend_from_slice(&part[..n]),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Parses `worker:port:address,…`.
    fn hosts(&mut self) -> Vec<String> {
        let list = self.ask("attributes/worker-network-endpoints").unwrap_or_default();
        split_list(&list).iter().map(|e| e.rsplit(':').next().unwrap_or(e).to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn read(tpu: &str, variables: &[(&str, &str)], nodes: usize) -> Result<TpuClusterResolver> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let nodes = (0..nodes).map(|i| PathBuf::from(format!("/dev/accel{i}"))).collect();
        TpuClusterResolver::read(tpu, EnvironmentSources { variable: &variable, metadata: None, nodes })
    }

    #[test]
    fn each_place_is_known_by_what_it_says() {
        let gke = [
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("TPU_WORKER_HOSTNAMES", "a, b"),
            ("TPU_WORKER_ID", "1"),
            ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
        ];
        let found = read("", &gke, 4).unwrap();
        assert_eq!((found.surroundings, found.worker, found.hosts.len()), (TpuEnvironment::Gke, 1, 2));
        assert!(found.doubts.is_empty(), "{found:?}");
        assert!(found.connect().is_ok() && found.facts().iter().any(|f| f == "host 1 of 2: a, b"));
        // Compares with what the plugin opened; a process with only its own chips is accepted.
        assert!(found.check(1, 2).is_ok() && found.check(0, 1).is_ok());
        for (index, count) in [(0, 2), (1, 4)] {
            let e = found.check(index, count).unwrap_err().to_string();
            assert!(e.contains(&format!("process {index} of {count}")) && e.contains("host 1 of 2"), "{e}");
        }
        let slices = |id| [&gke[..], &[("MEGASCALE_NUM_SLICES", "2"), ("MEGASCALE_SLICE_ID", id)]].concat();
        let two = read("", &slices("1"), 4).unwrap();
        assert!(two.connect().is_ok() && two.facts().iter().any(|f| f == "slice 1 of 2 (multislice)"));
        // Its second host, after the two of the first slice.
        assert!(two.check(3, 4).is_ok() && two.check(1, 2).is_err() && two.check(1, 4).is_err());
        assert!(
            read("", &slices("2"), 4).unwrap().connect().unwrap_err().to_string().contains("slice 2 of 2")
        );
        let colab =
            read("", &[("COLAB_RELEASE_TAG", "2026"), ("TPU_ACCELERATOR_TYPE", "v5litepod-1")], 1).unwrap();
        assert_eq!(
            (colab.surroundings, colab.slice.as_deref()),
            (TpuEnvironment::Colab, Some("v5litepod-1"))
        );
        assert!(colab.connect().is_ok());
        let nothing = read("", &[], 0).unwrap();
        assert_eq!(nothing.surroundings, TpuEnvironment::Elsewhere);
        assert!(nothing.connect().unwrap_err().to_string().contains("no TPU"));
    }

    #[test]
    fn addresses_of_retired_nodes_say_what_to_do_today() {
        let colab = [("COLAB_TPU_ADDR", "10.63.4.2:8470")];
        for e in [read("", &colab, 0), read("grpc://10.0.0.2:8470", &[], 0), read("10.0.0.2:8470", &[], 0)] {
            let e = e.unwrap_err().to_string();
            assert!(e.contains("retired") && e.contains("Colab"), "{e}");
        }
        assert_eq!(read("my-tpu", &[], 1).unwrap().name.as_deref(), Some("my-tpu"));
    }

    #[test]
    fn what_does_not_fit_together_is_told() {
        let doubts = |variables: &[(&str, &str)], nodes| {
            let doubts = read("", variables, nodes).unwrap().doubts;
            doubts.into_iter().map(|d| d.what).collect::<Vec<_>>().join("; ")
        };
        assert!(doubts(&[("TPU_ZONE", "europe")], 0).contains("invalid zone"));
        assert_eq!(doubts(&[("TPU_ZONE", "europe-west4-b")], 0), "");
        assert!(doubts(&[("TPU_WORKER_ID", "x")], 0).contains("must be a number"));
        let worker = [("TPU_WORKER_ID", "2"), ("TPU_WORKER_HOSTNAMES", "a,b")];
        assert!(doubts(&worker, 0).contains("worker 2 of 2"));
        assert!(read("", &worker, 4).unwrap().connect().unwrap_err().to_string().contains("host 2 of 2"));
        assert!(doubts(&[("TPU_ACCELERATOR_TYPE", "v2-8")], 0).contains("v2-8"));
    }

    fn from_server(serve: impl Fn(TcpStream, &str) + Send + 'static) -> TpuClusterResolver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let metadata = Some(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0u8; 1024];
                let n = stream.read(&mut request).unwrap_or(0);
                serve(stream, &String::from_utf8_lossy(&request[..n]));
            }
        });
        let sources = EnvironmentSources { variable: &|_| None, metadata, nodes: Vec::new() };
        TpuClusterResolver::read("", sources).unwrap()
    }

    #[test]
    fn the_metadata_server_fills_in_what_no_variable_says() {
        let found = from_server(|mut stream, request| {
            let answers = [
                ("accelerator-type", "v5litepod-8"),
                ("zone ", "projects/7/zones/us-west4-a"),
                ("worker-number", "0"),
                ("endpoints", "w:8470:10.0.0.5"),
            ];
            let body = answers.iter().find(|(path, _)| request.contains(path)).map(|(_, body)| *body);
            let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nServer: x\r\n\r\n{}", body.unwrap_or("no"));
        });
        assert_eq!(found.slice.as_deref(), Some("v5litepod-8"));
        assert_eq!((found.zone.as_deref(), found.name), (Some("us-west4-a"), None));
        assert_eq!(found.hosts, ["10.0.0.5"]);
    }

    /// The test would not end if a silent server were waited for.
    #[test]
    fn a_silent_metadata_server_is_given_up() {
        let found = from_server(|stream, _| std::mem::forget(stream));
        assert_eq!((found.slice, found.zone), (None, None));
    }
}
