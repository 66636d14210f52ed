//! The output of `ibstat`: the link layer, state and rate of each port of a host.

use topology::{NICS_PER_HOST_MAX, ReadError};

const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of devices, with one port each.
const PORTS_MAX: usize = 8 * NICS_PER_HOST_MAX;

/// The first port of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RdmaPort {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    pub active: bool,
    /// Rate in Gbit/s; 0 if not printed.
    pub rate_gbit_per_s: f64,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
}

/// Reads the output of `ibstat`. O(text).
pub fn read_ibstat(text: &str, file: &str) -> Result<Vec<RdmaPort>, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let mut out: Vec<RdmaPort> = Vec::new();
    let mut port = 0;
    for (i, raw) in text.lines().enumerate() {
        let line = raw.trim();
        if let Some(name) = line.strip_prefix("CA '").and_then(|l| l.strip_suffix('\'')) {
            if out.len() >= PORTS_MAX {
                let message = format!("more than {PORTS_MAX} devices");
                return Err(ReadError::at_line(file, text, i + 1, 1, 1, message, "one file describes one host"));
            }
            if out.iter().any(|p| p.device == name) {
                let message = format!("device `{}` is there twice", name.chars().take(40).collect::<String>());
                return Err(ReadError::at_line(file, text, i + 1, 1, 1, message, "one file describes one host"));
            }
            out.push(RdmaPort { device: name.chars().take(64).collect(), ..RdmaPort::default() });
            port = 0;
        } else if line.starts_with("Port ") && line.ends_with(':') {
            port += 1;
        }
        let (Some(p), Some((key, value))) = (out.last_mut(), line.split_once(':')) else { continue };
        let value = value.trim();
        match key {
            _ if port != 1 => {}
            "State" => p.active = value == "Active",
            "Rate" => {
                let rate = value.split_whitespace().next().and_then(|v| v.parse::<f64>().ok());
                let Some(rate) = rate.filter(|r| (0.0..=10_000.0).contains(r)) else {
                    let column = raw.chars().count().max(1);
                    let message = format!("`{}` is no rate in Gbit/s", value.chars().take(40).collect::<String>());
                    return Err(ReadError::at_line(file, text, i + 1, column, 1, message, "run `ibstat` again"));
                };
                p.rate_gbit_per_s = rate;
            }
            "Link layer" => p.link_layer = value.chars().take(32).collect(),
            _ => {}
        }
    }
    if out.is_empty() {
        return Err(ReadError::in_file(file, "no device (`CA 'mlx5_0'`)", "run `ibstat` on the host"));
    }
    Ok(out)
}
