//! Finds the device files (`/dev/accel*`, `/dev/vfio/*`, `/dev/nvidia*`) of TPUs and GPUs.

use crate::AcceleratorPlatform;
use std::path::{Path, PathBuf};
use systole_ir::{Error, ErrorKind, Result};

/// Returns the device files of a platform, such as `/dev/accel0`; empty for the CPU.
pub fn device_nodes(platform: AcceleratorPlatform) -> Vec<PathBuf> {
    let (folders, prefix): (&[&str], &str) = match platform {
        AcceleratorPlatform::Tpu => (&["/dev", "/dev/vfio"], "accel"),
        AcceleratorPlatform::Cuda => (&["/dev"], "nvidia"),
        AcceleratorPlatform::Xla => return Vec::new(),
    };
    let mut nodes: Vec<PathBuf> = folders
        .iter()
        .flat_map(|f| std::fs::read_dir(f).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| is_node(path, prefix))
        .collect();
    nodes.sort();
    nodes
}

/// Matches `/dev/accel0`, `/dev/nvidia0`, `/dev/vfio/0`.
fn is_node(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let in_vfio = path.parent().is_some_and(|p| p.ends_with("vfio"));
    let number = if in_vfio { Some(&name[..]) } else { name.strip_prefix(prefix) };
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Rejects a platform without device nodes.
pub(crate) fn require_node(platform: AcceleratorPlatform) -> Result<()> {
    if !device_nodes(platform).is_empty() {
        return Ok(());
    }
    let (what, looked, try_this) = match platform {
        // The CPU is always available.
        AcceleratorPlatform::Xla => return Ok(()),
        AcceleratorPlatform::Tpu => (
            "this machine has no TPU",
            "/dev/accel0 and /dev/vfio/0 do not exist",
            "compile for a remote TPU with `systole compile MODEL --target v5e:2x2`, or train with `--device cpu`",
        ),
        AcceleratorPlatform::Cuda => {
            ("this machine has no NVIDIA GPU", "/dev/nvidia0 does not exist", "train with `--device cpu`")
        }
    };
    Err(Error::new(ErrorKind::Unsupported, what).because(looked).hint(try_this))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_from_other_files() {
        for (path, prefix, yes) in [
            ("/dev/accel0", "accel", true),
            ("/dev/accel", "accel", false),
            ("/dev/vfio/12", "accel", true),
            ("/dev/vfio/vfio", "accel", false),
            ("/dev/nvidia3", "nvidia", true),
            ("/dev/nvidiactl", "nvidia", false),
        ] {
            assert_eq!(is_node(Path::new(path), prefix), yes, "{path}");
        }
    }
}
