//! Profiles programs on a plugin's devices: records some runs with the plugin's profiler and reports kernels by layer,
//! like the CPU engine's profile. Device activity also goes into the timeline (`--trace`).
//!
//! The device is synchronized before and after the recorded runs, which overlap as usual.

use crate::client::LoadedExecutable;
use crate::profiler::{ProfilerSession, wanted};
use crate::xspace::{self, XEvent, XPlane};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Result, knobs};
use systole_runtime::layer_times::{LayerPhase, LayerTime, layer_of, layer_table, name_within, percent};
use systole_runtime::protobuf::{ProtoValue, fields};
use systole_runtime::{events, trace};

/// Warm-up runs before recording.
const BEFORE: usize = 2;
/// Number of recorded runs.
const WATCHED: usize = 10;
/// Kernels in the short table.
const SLOWEST: usize = 10;
/// Width of kernel names.
const NAMES: usize = 45;

/// Profilers record the whole process, so programs are recorded one at a time.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Profiler of a program.
pub(crate) struct ProgramProfiler {
    label: String,
    module: String,
    state: Mutex<ProfileState>,
}

#[derive(Default)]
struct ProfileState {
    runs: usize,
    watched: usize,
    profiler: Option<ProfilerSession>,
    is_done: bool,
}

impl ProgramProfiler {
    /// Creates the profiler of a program with this label, if profiling is enabled.
    pub(crate) fn of(label: &str) -> Option<ProgramProfiler> {
        let label = if label.is_empty() { "a program" } else { label };
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        wanted().then(|| ProgramProfiler {
            label: label.into(),
            module: label.chars().map(plain).collect(),
            state: Mutex::default(),
        })
    }

    /// Returns the module's name in the profile.
    pub(crate) fn module(&self) -> &str {
        &self.module
    }

    /// Runs the program, recording it if it is its turn.
    pub(crate) fn run<R>(&self, program: &LoadedExecutable, run: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.runs += 1;
        if state.is_done || state.runs <= BEFORE {
            return run();
        }
        if state.profiler.is_none() && !WATCHING.swap(true, Ordering::AcqRel) {
            program.wait()?;
            match ProfilerSession::start(program.plugin()) {
                Ok(Some(profiler)) => state.profiler = Some(profiler),
                Ok(None) => self.give_up(&mut state, "the plugin does not support PJRT's profiler extension"),
                Err(e) => self.give_up(&mut state, &e.to_string()),
            }
        }
        let result = run()?;
        if state.profiler.is_some() {
            state.watched += 1;
            if state.watched == WATCHED {
                self.tell(program, &mut state);
            }
        }
        Ok(result)
    }

    /// Called when the program is dropped: reports the runs recorded so far.
    pub(crate) fn end(&self, program: &LoadedExecutable) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.profiler.is_some() {
            self.tell(program, &mut state);
        } else if !state.is_done && state.runs > 0 {
            let few = format!("of {} none was recorded: the first {BEFORE} are warm-up", counted(state.runs));
            events::emit(2, || format!("{} has no profile: {few}", self.label));
        }
    }

    fn give_up(&self, state: &mut ProfileState, why: &str) {
        state.is_done = true;
        WATCHING.store(false, Ordering::Release);
        events::emit(2, || format!("{} has no profile: {why}", self.label));
    }

    fn tell(&self, program: &LoadedExecutable, state: &mut ProfileState) {
        let Some(profiler) = state.profiler.take() else { return };
        // Errors of a run are reported when its results are read.
        let _ = program.wait();
        let ended = Instant::now();
        let seen = profiler.stop().and_then(|bytes| xspace::read(&bytes));
        let planes = match seen {
            Ok(planes) => planes,
            Err(e) => return self.give_up(state, &e.to_string()),
        };
        let Some(seen) = DeviceProfile::of(&planes, &self.module, &paths(program), state.watched) else {
            return self.give_up(state, "the plugin's profiler recorded no kernel of it");
        };
        state.is_done = true;
        WATCHING.store(false, Ordering::Release);
        seen.trace(ended);
        let table = match knobs::PROFILE.get().as_str() {
            "layers" => seen.summary(),
            _ => seen.all_kernels(),
        };
        events::emit(2, || format!("kernels of {}:\n{table}", self.label));
    }
}

/// Formats `1 run`, `3 runs`.
fn counted(runs: usize) -> String {
    format!("{runs} run{}", if runs == 1 { "" } else { "s" })
}

/// Returns the source paths of a program's operations by name; empty if the plugin does not provide them.
fn paths(program: &LoadedExecutable) -> HashMap<String, String> {
    let text = program.executable().and_then(|e| e.optimized());
    text.and_then(|bytes| paths_of(&bytes)).unwrap_or_default()
}

/// Parses the source paths of operations from a serialized `HloModuleProtoWithConfig`.
fn paths_of(bytes: &[u8]) -> Result<HashMap<String, String>> {
    const MODULE: u64 = 1;
    const COMPUTATIONS: u64 = 3;
    const INSTRUCTIONS: u64 = 2;
    let mut paths = HashMap::new();
    for field in fields(bytes) {
        let (MODULE, module) = field? else { continue };
        for field in fields(module.bytes()) {
            let (COMPUTATIONS, computation) = field? else { continue };
            for field in fields(computation.bytes()) {
                if let (INSTRUCTIONS, instruction) = field? {
                    let (name, path) = named(instruction)?;
                    paths.insert(name, path);
                }
            }
        }
    }
    Ok(paths)
}

/// Returns an instruction's name and the path in its metadata.
fn named(instruction: ProtoValue<'_>) -> Result<(String, String)> {
    const NAME: u64 = 1;
    const METADATA: u64 = 7;
    const OP_NAME: u64 = 2;
    let (mut name, mut path) = (String::new(), String::new());
    for field in fields(instruction.bytes()) {
        match field? {
            (NAME, text) => name = text.text().into(),
            (METADATA, metadata) => {
                for field in fields(metadata.bytes()) {
                    if let (OP_NAME, text) = field? {
                        path = text.text().into();
                    }
                }
            }
            _ => {}
        }
    }
    Ok((name, path))
}

/// A kernel of the program with all its launches.
struct ProfiledKernel {
    name: String,
    layer: String,
    kind: LayerPhase,
    calls: usize,
    seconds: f64,
}

/// Profile of a program on its first device.
struct DeviceProfile {
    device: String,
    devices: usize,
    runs: usize,
    kernels: Vec<ProfiledKernel>,
    /// From the start of the first kernel to the end of the last one, and how long at least one was running.
    seconds: f64,
    busy: f64,
    /// For the timeline: name, start and end in nanoseconds.
    spans: Vec<(String, f64, f64)>,
}

impl DeviceProfile {
    /// Builds the profile; `None` if there is no device, or no kernel of the module on it.
    fn of(
        planes: &[XPlane],
        module: &str,
        paths: &HashMap<String, String>,
        runs: usize,
    ) -> Option<DeviceProfile> {
        let of_devices = || planes.iter().filter(|p| p.name.starts_with("/device:"));
        let first = of_devices().find(|p| p.lines.iter().any(|(_, events)| !events.is_empty()))?;
        // TPUs report the same time by operation, by program and by step.
        let ops = |name: &str| name == "XLA Ops";
        let has_ops = first.lines.iter().any(|(name, _)| ops(name));
        let lines = first.lines.iter().filter(|(name, _)| !has_ops || ops(name));
        let ours = |e: &&XEvent| e.module.is_empty() || e.module == module;
        let events: Vec<(&XEvent, f64)> =
            lines.flat_map(|(_, events)| alone(events.iter().filter(ours).collect())).collect();
        let by_kernel_name: HashMap<String, &String> =
            paths.iter().map(|(name, path)| (name.replace(['.', '-'], "_"), path)).collect();
        let path_of = |e: &XEvent| {
            let known = paths.get(&e.op).or_else(|| by_kernel_name.get(&e.name).copied());
            known.map_or(e.path.as_str(), String::as_str).to_string()
        };
        let mut seen = DeviceProfile {
            device: first.name.trim_start_matches("/device:").trim_start_matches("CUSTOM:").into(),
            devices: of_devices().count(),
            runs,
            kernels: Vec::new(),
            seconds: 0.0,
            busy: 0.0,
            spans: Vec::new(),
        };
        let mut known: HashMap<(String, String), usize> = HashMap::new();
        for (e, nanos) in &events {
            let path = path_of(e);
            let (layer, is_derivative) = layer_of(&path);
            let at = *known.entry((e.name.clone(), path.clone())).or_insert_with(|| {
                let (name, layer) = (e.name.clone(), layer.to_string());
                let kind = LayerPhase::of(&layer, is_derivative);
                seen.kernels.push(ProfiledKernel { name, layer, kind, calls: 0, seconds: 0.0 });
                seen.kernels.len() - 1
            });
            seen.kernels[at].calls += 1;
            seen.kernels[at].seconds += nanos * 1e-9;
            let of = if layer.is_empty() { String::new() } else { format!(" of {layer}") };
            seen.spans.push((format!("{}{of}", e.name), e.start, e.start + e.took));
        }
        seen.spans.sort_by(|a, b| a.1.total_cmp(&b.1));
        (seen.seconds, seen.busy) = covered(&seen.spans);
        // Wall-clock time: kernels that ran concurrently share it.
        let share = seen.busy / seen.total().max(f64::MIN_POSITIVE);
        seen.kernels.iter_mut().for_each(|k| k.seconds *= share.min(1.0));
        (seen.total() > 0.0).then_some(seen)
    }

    fn total(&self) -> f64 {
        self.kernels.iter().map(|k| k.seconds).sum()
    }

    fn head(&self) -> String {
        let of = if self.devices > 1 { format!(", one of {} devices", self.devices) } else { String::new() };
        let runs = counted(self.runs);
        format!(
            "{runs} recorded on {}{of}: busy {} of {:.3} ms per run\n",
            self.device,
            percent(self.busy / self.seconds.max(f64::MIN_POSITIVE)),
            1e3 * self.seconds / self.runs.max(1) as f64
        )
    }

    /// Formats the time by layer and the slowest kernels in 80 columns.
    fn summary(&self) -> String {
        let (total, per_run) = (self.total(), 1e3 / self.runs.max(1) as f64);
        let part =
            |k: &ProfiledKernel| LayerTime { layer: k.layer.clone(), kind: k.kind, seconds: k.seconds };
        let parts: Vec<LayerTime> = self.kernels.iter().map(part).collect();
        let mut text = self.head() + &layer_table(&parts, total, per_run);
        let all = self.kernels.len();
        text += &match all > SLOWEST {
            true => format!("\nthe {SLOWEST} slowest of {all} kernels; --profile=kernels shows all\n"),
            false => "\n".into(),
        };
        text += &format!("{:<NAMES$}{:>8}{:>13}{:>12}\n", "kernel", "calls", "ms/call", "share");
        for k in self.by_time().into_iter().take(SLOWEST) {
            text += &format!(
                "{:<NAMES$}{:>8}{:>13.4}{:>12}\n",
                name_within(&k.name, &k.layer, NAMES - 1),
                k.calls,
                1e3 * k.seconds / k.calls as f64,
                percent(k.seconds / total)
            );
        }
        text
    }

    /// Formats all kernels.
    fn all_kernels(&self) -> String {
        let total = self.total();
        let mut text = self.head();
        text += &format!("{:<64} {:>7} {:>9} {:>7}  device\n", "kernel", "calls", "ms/call", "share");
        for (i, k) in self.by_time().into_iter().enumerate() {
            let of = if k.layer.is_empty() { "" } else { " of " };
            text += &format!(
                "{:<64} {:>7} {:>9.4} {:>7}  {}{of}{}\n",
                format!("{i} {}", k.name),
                k.calls,
                1e3 * k.seconds / k.calls as f64,
                percent(k.seconds / total),
                self.device,
                k.layer
            );
        }
        text
    }

    fn by_time(&self) -> Vec<&ProfiledKernel> {
        let mut all: Vec<&ProfiledKernel> = self.kernels.iter().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        all
    }

    /// Adds the kernels to the timeline, aligned with the end of the run.
    fn trace(&self, ended: Instant) {
        let last = self.spans.iter().map(|s| s.2).fold(0.0, f64::max);
        let at = |nanos: f64| ended.checked_sub(Duration::from_nanos((last - nanos).max(0.0) as u64));
        for (name, start, end) in &self.spans {
            if let (Some(start), Some(end)) = (at(*start), at(*end)) {
                trace::device_span("kernel", name, start, end);
            }
        }
    }
}

/// Returns the events of a line with their self time in nanoseconds.
fn alone(mut events: Vec<&XEvent>) -> Vec<(&XEvent, f64)> {
    // An outer event precedes those inside it.
    events.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.took.total_cmp(&a.took)));
    let mut all: Vec<(&XEvent, f64)> = Vec::with_capacity(events.len());
    let mut open: Vec<usize> = Vec::new();
    for event in events {
        let is_over = |outer: &XEvent| outer.start + outer.took <= event.start;
        while open.last().is_some_and(|at| is_over(all[*at].0)) {
            open.pop();
        }
        if let Some(at) = open.last() {
            all[*at].1 = (all[*at].1 - event.took).max(0.0);
        }
        open.push(all.len());
        all.push((event, event.took));
    }
    all
}

/// Returns, for spans in order of start, the seconds from the first start to the last end, and those that at least one
/// covers.
fn covered(spans: &[(String, f64, f64)]) -> (f64, f64) {
    let Some(first) = spans.first().map(|s| s.1) else { return (0.0, 0.0) };
    let (mut end, mut busy) = (first, 0.0);
    for (_, from, to) in spans {
        busy += (to - from.max(end)).max(0.0);
        end = to.max(end);
    }
    ((end - first) * 1e-9, busy * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, start: f64, took: f64, op: &str) -> XEvent {
        XEvent { name: name.into(), start, took, op: op.into(), module: "train".into(), ..XEvent::default() }
    }

    #[test]
    fn time_is_told_once_and_by_layer() {
        let paths = HashMap::from([
            ("fusion.3".to_string(), "dense/add".to_string()),
            ("gemm.1".to_string(), "transpose(jvp(dense))/dot_general".to_string()),
        ]);
        let other = XEvent { module: "eval".into(), ..event("fusion_3", 0.0, 5e6, "") };
        // The first contains the second; the third has only a kernel name; streams overlap.
        let first = vec![event("while", 0.0, 4e6, ""), event("gemm", 1e6, 2e6, "gemm.1"), other];
        let second = vec![event("fusion_3", 3e6, 2e6, "command_buffer_1")];
        let lines = vec![("Stream #1".into(), first), ("Stream #2".into(), second)];
        let host = XPlane { name: "/host:CPU".into(), lines: lines.clone(), origin: 0 };
        let planes = [host, XPlane { name: "/device:GPU:0".into(), lines, origin: 7 }];
        let seen = DeviceProfile::of(&planes, "train", &paths, 2).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(seen.seconds, 5e-3) && close(seen.busy, 5e-3));
        let kernels: Vec<_> =
            seen.kernels.iter().map(|k| (k.name.as_str(), k.layer.as_str(), k.kind)).collect();
        let expected = [
            ("while", "", LayerPhase::Forward),
            ("gemm", "dense", LayerPhase::Backward),
            ("fusion_3", "dense", LayerPhase::Forward),
        ];
        assert_eq!(kernels, expected);
        // Six milliseconds of kernels in five of wall-clock time.
        let sum: f64 = seen.kernels.iter().map(|k| k.seconds).sum();
        assert!(close(sum, 5e-3) && close(seen.kernels[0].seconds, 2e-3 * 5.0 / 6.0));
        let told = seen.summary();
        assert!(told.starts_with("2 runs recorded on GPU:0: busy 100.0 % of 2.500 ms per run\n"), "{told}");
        assert!(told.lines().all(|l| l.chars().count() <= 80), "{told}");
        assert!(DeviceProfile::of(&planes, "other", &paths, 2).is_none());
        assert!(DeviceProfile::of(&planes[..1], "train", &paths, 2).is_none());
    }

    #[test]
    fn paths_stand_in_the_optimized_program() {
        use systole_runtime::protobuf::ProtoMessage;
        let instruction = |name: &str, path: &str| {
            let metadata = ProtoMessage::default().bytes(1, b"add").bytes(2, path.as_bytes()).done();
            ProtoMessage::default().bytes(1, name.as_bytes()).bytes(2, b"add").bytes(7, &metadata).done()
        };
        let computation =
            ProtoMessage::default().bytes(1, b"main").bytes(2, &instruction("add.1", "dense/add"));
        let module = ProtoMessage::default().bytes(1, b"train").bytes(3, &computation.done()).done();
        let bytes = ProtoMessage::default().bytes(1, &module).done();
        assert_eq!(paths_of(&bytes).unwrap()["add.1"], "dense/add");
        assert!(paths_of(&bytes[..bytes.len() - 3]).is_err());
    }
}
