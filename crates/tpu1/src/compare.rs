//! Compares TPU v1 with the CPU and GPU of its time (Table 2 of the TPU v1 paper, Jouppi et al. 2017).

use crate::paper::{APPLICATIONS, DIE, PLATFORMS, PaperPlatform};
use serde_json::{Value, json};

/// Int8 multipliers in TPU v1, and f32 multipliers in a K80 die (13 SMX of 192).
const MULTIPLIERS: [u32; 2] = [65_536, 13 * 192];

/// Returns the comparison of TPU v1 with CPU and GPU as table rows for display.
pub fn rows() -> Vec<Vec<String>> {
    let head = ["the paper's Table 2, per die"].into_iter().chain(PLATFORMS.iter().map(|p| p.name));
    let mut rows = vec![head.map(String::from).collect::<Vec<_>>()];
    let mut row = |name: &str, of: &dyn Fn(&PaperPlatform) -> String| {
        rows.push([name.to_string()].into_iter().chain(PLATFORMS.iter().map(of)).collect());
    };
    row("die, mm²", &|p| p.die.into());
    row("clock, MHz", &|p| p.mhz.to_string());
    row("watts: design, idle, busy", &|p| p.watts.map(|w| w.to_string()).join(", "));
    row("peak, TOPS", &|p| format!("{} ({})", p.peak.0, p.peak.1));
    row("memory, GB/s", &|p| p.bandwidth.to_string());
    row("on-chip memory, MiB", &|p| p.on_chip.to_string());
    row("ridge point, MACs per byte", &|p| p.ridge.to_string());
    row("dies per server, server watts", &|p| format!("{}, {}", p.server[0], p.server[1]));
    let pair = |[geometric, weighted]: [f64; 2]| format!("{geometric} – {weighted}");
    row("speedup: means of six apps (GM – WM)", &|p| pair(p.speed));
    row("speedup per watt, whole server", &|p| pair(p.total_per_watt));
    row("… incremental (without host)", &|p| p.incremental_per_watt.map_or("–".into(), pair));
    for a in &APPLICATIONS {
        let speeds = [1.0, a.speed[0], a.speed[1]].map(|s| format!("{s}"));
        let name = format!("speedup on {}", a.name);
        rows.push([name].into_iter().chain(speeds).collect());
    }
    rows
}

/// Returns the conclusions of the comparison of TPU v1 with CPU and GPU as sentences.
pub fn words() -> Vec<String> {
    let [_, gpu, tpu] = PLATFORMS;
    let part = |names: &[&str]| -> u32 { DIE.iter().filter(|(n, _)| names.contains(n)).map(|d| d.1).sum() };
    let storage = part(&["unified buffer", "accumulators"]);
    let compute = part(&["matrix multiply unit", "activation pipeline"]);
    vec![
        "paper: 15 to 30 times as fast as CPU and GPU, 30 to 80 times as fast per watt".into(),
        format!(
            "{:.0} times the multipliers of a K80 die ({} int8 versus {} f32; the paper says 25), {} times its memory on the chip",
            f64::from(MULTIPLIERS[0]) / f64::from(MULTIPLIERS[1]),
            MULTIPLIERS[0],
            MULTIPLIERS[1],
            f64::from(tpu.on_chip) / f64::from(gpu.on_chip)
        ),
        format!(
            "die area: {storage} % unified buffer and accumulators, {compute} % multipliers and activations (with their \
             buffers about 70 % storage and compute), {} % control",
            part(&["control"])
        ),
    ]
}

/// Returns the comparison of TPU v1 with CPU and GPU as JSON.
pub fn as_json() -> Value {
    let platforms = PLATFORMS.iter().map(|p| {
        json!({
            "name": p.name, "die_mm2": p.die, "mhz": p.mhz, "tdp_watts": p.watts[0], "idle_watts": p.watts[1],
            "busy_watts": p.watts[2], "peak_tops": p.peak.0, "peak_type": p.peak.1, "memory_gb_per_s": p.bandwidth,
            "on_chip_mib": p.on_chip, "ridge_macs_per_byte": p.ridge, "dies_of_server": p.server[0],
            "server_watts": p.server[1], "speed_gm": p.speed[0], "speed_wm": p.speed[1],
            "per_watt_gm": p.total_per_watt[0], "per_watt_wm": p.total_per_watt[1],
        })
    });
    let die: serde_json::Map<String, Value> = DIE.iter().map(|(n, p)| (n.to_string(), json!(p))).collect();
    json!({"source": "Jouppi et al., ISCA 2017", "platforms": platforms.collect::<Value>(), "die_percent": die, "words": words()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headlines_follow_from_the_table() {
        let words = words().join("\n");
        assert!(
            words.contains("26 times the multipliers") && words.contains("3.5 times its memory"),
            "{words}"
        );
        assert!(words.contains("35 % unified buffer") && words.contains("30 % multipliers"), "{words}");
        assert!(words.contains(", 2 % control"), "{words}");
        let rows = rows();
        assert!(rows.iter().all(|r| r.len() == 4) && rows.len() == 18);
    }
}
