//! Reads duty cycle and memory of TPUs from libtpu's metrics service.
//!
//! The service belongs to the process that uses the TPU: gRPC on this machine, port 8431, or the ports in
//! `TPU_RUNTIME_METRICS_PORTS` (one per process). Names and messages are those of Google's package `tpu-info` 0.14.2.

use crate::grpc;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use systole_ir::{Result, err};
use systole_runtime::protobuf::{ProtoMessage, ProtoValue, fields};

const METHOD: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";
const TOTAL: &str = "tpu.runtime.hbm.memory.total.bytes";
const USED: &str = "tpu.runtime.hbm.memory.usage.bytes";
const DUTY_CYCLE: &str = "tpu.runtime.tensorcore.dutycycle.percent";
/// Port of the service if libtpu's variable names none.
const PORT: u16 = 8431;
/// libtpu's variable with the ports of the service, one per process of the machine.
const PORTS: &str = "TPU_RUNTIME_METRICS_PORTS";
/// Longest wait for one metric.
const TIME: Duration = Duration::from_secs(2);

/// Load of a TPU device, as libtpu measures it.
#[derive(Clone, Debug, PartialEq)]
pub struct TpuLoad {
    /// Device index.
    pub device: u64,
    /// Fraction of the time in which the TensorCore computed, from 0 to 1. Cores of a chip share the value.
    pub duty_cycle: f64,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Memory in all, in bytes.
    pub total: u64,
}

/// Ports of libtpu's metrics services on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpuMetricsPorts {
    /// Ports, in order.
    pub ports: Vec<u16>,
    /// Whether libtpu's variable names them.
    pub is_set: bool,
}

impl TpuMetricsPorts {
    /// Reads `TPU_RUNTIME_METRICS_PORTS`, such as `8431,8432`; port 8431 without it.
    ///
    /// # Errors
    /// If the variable is not a list of ports.
    pub fn from_env() -> Result<TpuMetricsPorts> {
        TpuMetricsPorts::parse(&std::env::var(PORTS).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<TpuMetricsPorts> {
        if text.trim().is_empty() {
            return Ok(TpuMetricsPorts { ports: vec![PORT], is_set: false });
        }
        let ports = text.split(',').map(|p| p.trim().parse()).collect::<std::result::Result<_, _>>();
        let wrong = |_| {
            err!(Config, "expected a list of ports, got `{text}`")
                .at(PORTS)
                .hint(format!("set it as libtpu does, such as {PORTS}=8431,8432, or remove it"))
        };
        Ok(TpuMetricsPorts { ports: ports.map_err(wrong)?, is_set: true })
    }

    /// Returns the load of the TPU devices of all services, by device.
    ///
    /// ```
    /// use systole_pjrt::TpuMetricsPorts;
    /// match TpuMetricsPorts::from_env()?.loads() {
    ///     Ok(loads) => println!("{loads:?}"),
    ///     Err(e) => println!("{e}"), // no process uses a TPU
    /// }
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a service does not answer, or answers with other messages.
    pub fn loads(&self) -> Result<Vec<TpuLoad>> {
        let mut loads = Vec::new();
        for &port in &self.ports {
            let at = |ip: IpAddr| loads_at(SocketAddr::from((ip, port)));
            let here =
                at(Ipv4Addr::LOCALHOST.into()).or_else(|e| at(Ipv6Addr::LOCALHOST.into()).map_err(|_| e));
            loads.extend(here?);
        }
        loads.sort_by_key(|l| l.device);
        Ok(loads)
    }
}

fn loads_at(server: SocketAddr) -> Result<Vec<TpuLoad>> {
    let [totals, used, duty] = [metric(server, TOTAL)?, metric(server, USED)?, metric(server, DUTY_CYCLE)?];
    // Memory is measured per device, the duty cycle per chip, which can have two devices.
    let devices = totals.len() / duty.len().max(1);
    if totals.len() != used.len() || devices * duty.len() != totals.len() {
        return Err(err!(
            Data,
            "libtpu's metrics have {} devices with memory, {} with memory in use and {} with a duty cycle",
            totals.len(),
            used.len(),
            duty.len()
        )
        .at(server.to_string()));
    }
    let load = |(n, (total, used)): (usize, (&Gauge, &Gauge))| TpuLoad {
        device: used.device,
        duty_cycle: (duty[n / devices.max(1)].value / 100.0).clamp(0.0, 1.0),
        used: used.value as u64,
        total: total.value as u64,
    };
    Ok(totals.iter().zip(&used).enumerate().map(load).collect())
}

/// Value of a metric for a device or chip.
#[derive(Default)]
struct Gauge {
    device: u64,
    value: f64,
}

/// Requests a metric; values by device.
fn metric(server: SocketAddr, name: &str) -> Result<Vec<Gauge>> {
    let request = ProtoMessage::default().text(1, name).done();
    let answer = grpc::call(server, METHOD, &request, TIME).map_err(|e| {
        err!(Io, "cannot read `{name}` from libtpu's metrics service")
            .at(server.to_string())
            .because(e.to_string())
            .hint(format!("start a process that uses the TPU; if its service has another port, set {PORTS}"))
    })?;
    let mut gauges = Vec::new();
    // MetricResponse.metric.metrics
    for (_, metrics) in select(&answer, 1)? {
        for (_, metric) in select(metrics.bytes(), 3)? {
            gauges.push(gauge(metric.bytes())?);
        }
    }
    gauges.sort_by_key(|g| g.device);
    Ok(gauges)
}

/// Decodes a `Metric`: attribute 1 (its value 2 contains integer 3), gauge 3 (number 1 or integer 2).
fn gauge(metric: &[u8]) -> Result<Gauge> {
    let mut gauge = Gauge::default();
    for (_, attribute) in select(metric, 1)? {
        for (_, value) in select(attribute.bytes(), 2)? {
            for (_, device) in select(value.bytes(), 3)? {
                gauge.device = device.numbers().first().copied().unwrap_or_default();
            }
        }
    }
    for (_, value) in select(metric, 3)? {
        for field in fields(value.bytes()) {
            match field? {
                (1, ProtoValue::Number(bits)) => gauge.value = f64::from_bits(bits),
                (2, ProtoValue::Number(n)) => gauge.value = n as f64,
                _ => {}
            }
        }
    }
    Ok(gauge)
}

/// Returns the fields of a message with this number.
fn select(message: &[u8], number: u64) -> Result<Vec<(u64, ProtoValue<'_>)>> {
    fields(message).filter(|f| f.as_ref().map_or(true, |(n, _)| *n == number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::{response, serve};
    use systole_ir::ErrorKind;

    fn device(n: i64) -> ProtoMessage {
        ProtoMessage::default().text(1, "device-id").message(2, ProtoMessage::default().int(3, n))
    }

    fn integer(n: i64) -> ProtoMessage {
        ProtoMessage::default().int(2, n)
    }

    /// A gauge with an f64: field 1 of 64 bits.
    fn number(x: f64) -> Vec<u8> {
        [&[9][..], &x.to_le_bytes()].concat()
    }

    fn answer(name: &str, values: Vec<(i64, Vec<u8>)>) -> Vec<u8> {
        let metrics = values.into_iter().map(|(n, gauge)| {
            // Descending times and other fields are there too.
            ProtoMessage::default().message(1, device(n)).bytes(2, &[8, 1]).bytes(3, &gauge)
        });
        let metric = ProtoMessage::default().text(1, name).text(2, "about it").messages(3, metrics);
        response(&ProtoMessage::default().message(1, metric).done())
    }

    /// Two chips with two devices each, listed backwards.
    fn service(wrong: bool) -> SocketAddr {
        serve(move |_, message| {
            let name = fields(message).next().unwrap().unwrap().1.text().to_string();
            let devices = if wrong && name == USED { 3 } else { 4 };
            let all = |of: fn(i64) -> i64| (0..devices).rev().map(|n| (n, integer(of(n)).done())).collect();
            match name.as_str() {
                TOTAL => answer(&name, all(|_| 16 << 30)),
                USED => answer(&name, all(|n| n << 30)),
                DUTY_CYCLE => answer(&name, vec![(1, number(25.0)), (0, number(97.5))]),
                other => panic!("{other}"),
            }
        })
    }

    #[test]
    fn devices_have_their_memory_and_the_duty_cycle_of_their_chip() {
        let ports = TpuMetricsPorts { ports: vec![service(false).port()], is_set: true };
        let loads = ports.loads().unwrap();
        assert_eq!(loads.iter().map(|l| l.device).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(loads.iter().map(|l| l.duty_cycle).collect::<Vec<_>>(), [0.975, 0.975, 0.25, 0.25]);
        assert_eq!((loads[3].used, loads[3].total), (3 << 30, 16 << 30));
    }

    #[test]
    fn a_service_that_contradicts_itself_or_is_not_there_is_an_error() {
        let ports = TpuMetricsPorts { ports: vec![service(true).port()], is_set: true };
        assert_eq!(ports.loads().unwrap_err().kind(), ErrorKind::Data);
        let corrupt = serve(|_, _| response(&[0x0a, 0xff, 1]));
        let ports = TpuMetricsPorts { ports: vec![corrupt.port()], is_set: true };
        assert_eq!(ports.loads().unwrap_err().kind(), ErrorKind::Data);
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let e = TpuMetricsPorts { ports: vec![gone], is_set: true }.loads().unwrap_err();
        assert!(e.to_string().contains(PORTS), "{e}");
    }

    #[test]
    fn ports_are_those_of_libtpus_variable() {
        assert_eq!(TpuMetricsPorts::parse("").unwrap().ports, [8431]);
        let two = TpuMetricsPorts::parse("8431, 8432").unwrap();
        assert_eq!((two.ports, two.is_set), (vec![8431, 8432], true));
        assert!(TpuMetricsPorts::parse("8431;8432").unwrap_err().to_string().contains(PORTS));
    }
}
