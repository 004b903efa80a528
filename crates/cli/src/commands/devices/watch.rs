//! `systole devices --watch`: prints load and memory of CPU and accelerators at intervals.

use crate::args::exit_status::CommandResult;
use crate::render::screen::{Screen, number_of};
use crate::run::signals::StopSignal;
use serde_json::{Value, json};
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use systole_ir::{Error, Result, err};
use systole_pjrt::{AcceleratorPlatform, TpuLoad, TpuMetricsPorts, device_nodes};
use systole_progress::terminal;

/// Polling interval for signals.
const POLL: Duration = Duration::from_millis(50);
/// Fields queried from `nvidia-smi`, which comes with the driver.
const ASKED: &str = "index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw";
/// Width of a load bar in columns.
const BAR: usize = 20;

/// Busy and total CPU time since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CpuTicks {
    busy: u64,
    all: u64,
}

/// Load of a device; unknown values are `None`.
#[derive(Clone, Debug, PartialEq)]
struct DeviceLoad {
    name: String,
    what: String,
    /// Utilization from 0 to 1.
    busy: Option<f64>,
    used_mib: Option<f64>,
    total_mib: Option<f64>,
    celsius: Option<f64>,
    watts: Option<f64>,
}

/// Prints all devices at the interval `every`, `count` times or until a signal.
pub(crate) fn watch(every: Duration, count: Option<u64>, screen: &Screen) -> CommandResult {
    let stop = StopSignal::install()?;
    let ports = TpuMetricsPorts::from_env()?;
    let mut before = cores()?;
    let is_live = !screen.json && stdout().is_terminal() && terminal::width().is_some();
    let mut drawn = 0;
    for round in 0.. {
        if count.is_some_and(|n| round >= n) {
            break;
        }
        // The load is averaged since the previous reading.
        if !wait(every, &stop) {
            return Ok(stop.exit_code());
        }
        let now = cores()?;
        let loads = loads(&before, &now, &ports);
        before = now;
        if screen.json {
            screen.object(&json!({"seconds": every.as_secs_f64(), "devices": loads.iter().map(DeviceLoad::object).collect::<Vec<_>>()}));
            continue;
        }
        let lines: Vec<String> = loads.iter().map(DeviceLoad::line).collect();
        let up = if is_live && drawn > 0 { format!("\x1b[{drawn}A\r\x1b[J") } else { String::new() };
        let width = terminal::width().filter(|_| is_live);
        let fits = |line: &String| width.map_or(line.clone(), |width| terminal::cut(line, width));
        screen.line(format!("{up}{}", lines.iter().map(fits).collect::<Vec<_>>().join("\n")));
        drawn = lines.len();
    }
    Ok(0)
}

/// Sleeps; returns `false` if a signal has arrived.
fn wait(time: Duration, stop: &StopSignal) -> bool {
    let began = Instant::now();
    while began.elapsed() < time && stop.exit_code() == 0 {
        std::thread::sleep(POLL.min(time.saturating_sub(began.elapsed())));
    }
    stop.exit_code() == 0
}

/// Returns the load of the CPU, then of each accelerator.
fn loads(before: &[CpuTicks], now: &[CpuTicks], ports: &TpuMetricsPorts) -> Vec<DeviceLoad> {
    let mut all = vec![processor(before, now)];
    if !device_nodes(AcceleratorPlatform::Cuda).is_empty() || on_path("nvidia-smi") {
        all.extend(graphics().unwrap_or_default());
    }
    all.extend(tpus(ports));
    all
}

/// Returns the load of TPUs from libtpu's metrics service; without it, the device nodes and the reason.
fn tpus(ports: &TpuMetricsPorts) -> Vec<DeviceLoad> {
    let nodes = device_nodes(AcceleratorPlatform::Tpu);
    if nodes.is_empty() && !ports.is_set {
        return Vec::new();
    }
    match ports.loads() {
        Ok(loads) if !loads.is_empty() => loads.iter().map(DeviceLoad::tpu).collect(),
        _ => {
            let list: Vec<String> = ports.ports.iter().map(u16::to_string).collect();
            let why = format!("no process with libtpu's metrics on port {}", list.join(", "));
            let nodes = nodes.iter().map(|n| n.display().to_string());
            let nodes: Vec<String> = if nodes.len() > 0 { nodes.collect() } else { vec!["no device".into()] };
            nodes.iter().map(|node| DeviceLoad::unknown("tpu", &format!("{node} ({why})"))).collect()
        }
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn processor(before: &[CpuTicks], now: &[CpuTicks]) -> DeviceLoad {
    let (memory, cores) = (memory(), now.len().saturating_sub(1));
    let busy = before.first().zip(now.first()).map(|(a, b)| share(*a, *b));
    // A few busy cores do not show in the mean over many.
    let most = before.iter().zip(now).skip(1).map(|(a, b)| share(*a, *b)).fold(0.0, f64::max);
    let what = format!("{}, busiest {:.0} %", number_of(cores, "core"), 100.0 * most);
    let used = memory.map(|(total, free)| total - free);
    DeviceLoad {
        name: "cpu".into(),
        what,
        busy,
        used_mib: used,
        total_mib: memory.map(|m| m.0),
        celsius: None,
        watts: None,
    }
}

fn share(before: CpuTicks, now: CpuTicks) -> f64 {
    match now.all.saturating_sub(before.all) {
        0 => 0.0,
        all => (now.busy.saturating_sub(before.busy) as f64 / all as f64).min(1.0),
    }
}

/// Reads the ticks of all cores together, then of each core.
fn cores() -> Result<Vec<CpuTicks>> {
    let path = Path::new("/proc/stat");
    let text = std::fs::read_to_string(path).map_err(|e| {
        Error::io("cannot read", path, e)
            .hint_command("remove --watch: device load is available on Linux only")
    })?;
    let all = ticks(&text);
    if all.is_empty() { Err(err!(Data, "/proc/stat has no CPU lines")) } else { Ok(all) }
}

/// Parses lines `cpu  user nice system idle iowait irq softirq steal guest guest_nice`; guest time is included in user
/// and nice.
fn ticks(stat: &str) -> Vec<CpuTicks> {
    let one = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| name.starts_with("cpu"))?;
        let values: Vec<u64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
        let (all, idle) = (values.iter().sum::<u64>(), values.iter().skip(3).take(2).sum::<u64>());
        (values.len() >= 4).then_some(CpuTicks { busy: all - idle, all })
    };
    stat.lines().map_while(one).collect()
}

/// Total and available memory in MiB.
fn memory() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
    };
    Some((of("MemTotal:")?, of("MemAvailable:")?))
}

/// Returns the load of NVIDIA GPUs from `nvidia-smi`; `None` if it is missing or fails.
fn graphics() -> Option<Vec<DeviceLoad>> {
    let mut command = Command::new("nvidia-smi");
    command.args([&format!("--query-gpu={ASKED}"), "--format=csv,noheader,nounits"]).stdin(Stdio::null());
    let output = command.output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(gpu).collect())
}

/// Parses `0, NVIDIA H100, 97, 1024, 81559, 45, 310.50`; unknown values are [N/A].
fn gpu(line: &str) -> Option<DeviceLoad> {
    let words: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, name, numbers @ ..] = words.as_slice() else { return None };
    let number = |i: usize| numbers.get(i).and_then(|w| w.parse::<f64>().ok());
    Some(DeviceLoad {
        name: format!("cuda:{index}"),
        what: name.to_string(),
        busy: number(0).map(|percent| percent / 100.0),
        used_mib: number(1),
        total_mib: number(2),
        celsius: number(3),
        watts: number(4),
    })
}

impl DeviceLoad {
    fn tpu(load: &TpuLoad) -> DeviceLoad {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        DeviceLoad {
            name: format!("tpu:{}", load.device),
            what: "duty cycle, from libtpu's metrics".into(),
            busy: Some(load.duty_cycle),
            used_mib: Some(mib(load.used)),
            total_mib: Some(mib(load.total)),
            celsius: None,
            watts: None,
        }
    }

    fn unknown(name: &str, what: &str) -> DeviceLoad {
        let (name, what) = (name.into(), what.into());
        DeviceLoad { name, what, busy: None, used_mib: None, total_mib: None, celsius: None, watts: None }
    }

    /// Formats as `cpu     [#####               ]  25 %   3.1 of 23.4 GiB  2 cores, busiest 31 %`.
    fn line(&self) -> String {
        let bar = match self.busy {
            Some(busy) => {
                let full = ((busy * BAR as f64).round() as usize).min(BAR);
                format!("[{}{}] {:>3.0} %", "#".repeat(full), " ".repeat(BAR - full), 100.0 * busy)
            }
            None => format!("{:BAR$}       ", ""),
        };
        let memory = self.used_mib.zip(self.total_mib).map_or(String::new(), |(used, total)| {
            format!("{:>6.1} of {:.1} GiB", used / 1024.0, total / 1024.0)
        });
        let more = [self.celsius.map(|c| format!(", {c:.0} °C")), self.watts.map(|w| format!(", {w:.0} W"))];
        let more: String = more.into_iter().flatten().collect();
        format!("{:<7} {bar} {memory:>18}  {}{more}", self.name, self.what)
    }

    fn object(&self) -> Value {
        json!({
            "device": self.name, "what": self.what, "busy": self.busy, "memory_used_mib": self.used_mib,
            "memory_mib": self.total_mib, "celsius": self.celsius, "watts": self.watts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_at_work_is_all_but_idling_and_waiting_for_disks() {
        let stat =
            "cpu  100 10 50 800 40 0 0 0 7 0\ncpu0 60 0 30 400 10 0 0 0 0 0\nintr 5 6 7 8 9\ncpu9 1 1 1 1";
        let all = ticks(stat);
        assert_eq!(all, [CpuTicks { busy: 160, all: 1000 }, CpuTicks { busy: 90, all: 500 }]);
        assert_eq!(share(all[0], CpuTicks { busy: 185, all: 1100 }), 0.25);
        assert_eq!((share(all[0], all[0]), share(all[0], CpuTicks::default())), (0.0, 0.0));
    }

    #[test]
    fn what_a_gpu_does_not_tell_is_left_out() {
        let known = gpu("0, NVIDIA H100 80GB HBM3, 97, 1024, 81559, 45, 310.50").unwrap();
        assert_eq!(
            known.line(),
            "cuda:0  [################### ]  97 %    1.0 of 79.6 GiB  NVIDIA H100 80GB HBM3, 45 °C, 310 W"
        );
        let little = gpu("1, Old, [N/A], 5, 10, [N/A], [N/A]").unwrap();
        assert_eq!((little.busy, little.used_mib, little.watts), (None, Some(5.0), None));
        assert_eq!(gpu(""), None);
    }
}
