//! The output of `ibstat` and `ibv_devinfo`: the link layer, state and rate of each port of a host.

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
    /// Rate in Gbit/s; 0 if not printed (`ibv_devinfo` prints it only with `-v`).
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
            add_device(&mut out, name, text, file, i + 1)?;
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

/// Reads the output of `ibv_devinfo`, with or without `-v`. O(text).
pub fn read_ibv_devinfo(text: &str, file: &str) -> Result<Vec<RdmaPort>, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let mut out: Vec<RdmaPort> = Vec::new();
    // The number of the port within its device, and its lanes.
    let (mut port, mut lanes) = (0, 0.0);
    for (i, raw) in text.lines().enumerate() {
        let Some((key, value)) = raw.trim().split_once(':') else { continue };
        let value = value.trim();
        if key == "hca_id" {
            add_device(&mut out, value, text, file, i + 1)?;
            (port, lanes) = (0, 0.0);
            continue;
        }
        port += usize::from(key == "port");
        let Some(p) = out.last_mut().filter(|_| port == 1) else { continue };
        let wrong = |what: &str| {
            let message = format!("`{}` is no {what}", value.chars().take(40).collect::<String>());
            ReadError::at_line(file, text, i + 1, raw.chars().count().max(1), 1, message, "run `ibv_devinfo -v` again")
        };
        match key {
            "state" => p.active = value.starts_with("PORT_ACTIVE"),
            "link_layer" => p.link_layer = value.chars().take(32).collect(),
            // A port that is down prints `invalid width` and `invalid speed`.
            "active_width" | "active_speed" if value.starts_with("invalid") => {}
            "active_width" => {
                let width = value.split_once('X').and_then(|(n, _)| n.parse::<f64>().ok());
                lanes = width.filter(|n| (1.0..=16.0).contains(n)).ok_or_else(|| wrong("width such as `4X (2)`"))?;
            }
            "active_speed" => {
                let lane = value.split_once(" Gbps").and_then(|(r, _)| r.parse::<f64>().ok());
                let lane = lane.filter(|r| (0.0..=1_000.0).contains(r));
                p.rate_gbit_per_s = lanes * lane.ok_or_else(|| wrong("rate of a lane such as `100.0 Gbps (128)`"))?;
            }
            _ => {}
        }
    }
    if out.is_empty() {
        return Err(ReadError::in_file(file, "no device (`hca_id: mlx5_0`)", "run `ibv_devinfo -v` on the host"));
    }
    Ok(out)
}

fn add_device(out: &mut Vec<RdmaPort>, name: &str, text: &str, file: &str, line: usize) -> Result<(), ReadError> {
    let wrong = |message| Err(ReadError::at_line(file, text, line, 1, 1, message, "one file describes one host"));
    if out.len() >= PORTS_MAX {
        return wrong(format!("more than {PORTS_MAX} devices"));
    }
    if out.iter().any(|p| p.device == name) {
        return wrong(format!("device `{}` is there twice", name.chars().take(40).collect::<String>()));
    }
    out.push(RdmaPort { device: name.chars().take(64).collect(), ..RdmaPort::default() });
    Ok(())
}
