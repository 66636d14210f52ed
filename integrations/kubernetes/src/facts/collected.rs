//! What a node's collector found: the matrix of `nvidia-smi topo -m`, UUIDs, ports; and the host type that they describe.

use super::resource::{CollectedGpu, CollectedPort, HostFactsSpec};
use import::host::{self, NicChoice};
use import::ports::RdmaPort;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use topology::{GPUS_PER_HOST_MAX, HostType, NICS_PER_HOST_MAX, read};

/// Maximum size of `nvidia-smi topo -m` that is kept, bytes: 16 GPUs and 32 NICs take 8 kB.
pub const TOPOLOGY_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a list of GPUs, bytes.
const LIST_BYTES_MAX: usize = 16 << 10;
/// Time limit of nvidia-smi, which hangs with a broken driver.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a name in sysfs.
const NAME_BYTES_MAX: usize = 64;

/// The host type of a node, and what was inferred. `product`: the GPU model by the driver or a label, which nvidia-smi's matrix lacks.
///
/// # Errors
/// The matrix cannot be read, describes several hosts, or needs a board that only the operator knows.
pub fn host_type(node: &str, facts: &HostFactsSpec, product: &str) -> Result<(HostType, Vec<String>), String> {
    let file = format!("HostFacts {node}");
    if facts.topology.len() > TOPOLOGY_BYTES_MAX {
        return Err(format!("{file}: a matrix of {} bytes; at most {TOPOLOGY_BYTES_MAX}", facts.topology.len()));
    }
    let reading = read::read(&facts.topology, &file).map_err(|e| format!("{file}: {}", e.message()))?;
    let one = reading.single().cloned();
    let mut t = one.ok_or_else(|| format!("{file}: the matrix describes several hosts; one was expected"))?;
    let mut notes = Vec::new();
    let product = match product {
        "" => facts.gpus.first().map_or("", |g| g.product.as_str()),
        named => named,
    };
    if !product.is_empty() {
        notes.extend(host::apply_model(&mut t, product));
        t.name = slug(product);
    }
    notes.extend(host::board(&mut t, None).map_err(|e| format!("{file}: {e}"))?);
    if !facts.ports.is_empty() {
        let port = |p: &CollectedPort| RdmaPort {
            device: p.device.clone(),
            active: p.active,
            rate_gbit_per_s: f64::from(p.rate_gbit_per_s),
            link_layer: p.link_layer.clone(),
        };
        let ports: Vec<RdmaPort> = facts.ports.iter().take(NICS_PER_HOST_MAX).map(port).collect();
        notes.extend(host::apply_ports(&mut t, &ports).1);
    }
    notes.extend(host::choose_nics(&mut t, &NicChoice::ByRule).map_err(|e| format!("{file}: {e}"))?);
    t.source = "nvidia-smi topo -m, collected".into();
    t.check().map_err(|e| format!("{file}: {e}"))?;
    Ok((t, notes))
}

/// A name of a host type from a product: `nvidia-h100-80gb-hbm3`.
pub fn slug(product: &str) -> String {
    let mut name = String::new();
    for c in product.chars().take(NAME_BYTES_MAX) {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "gpu-host".into() } else { name.into() }
}

/// Collects the facts of this machine: runs `nvidia-smi` and reads `sys`, the folder of sysfs.
///
/// # Errors
/// nvidia-smi is missing, fails, hangs, or says nothing that can be read.
pub fn collect(nvidia_smi: &Path, sys: &Path) -> Result<HostFactsSpec, String> {
    let topology = output(nvidia_smi, &["topo", "-m"], TOPOLOGY_BYTES_MAX)?;
    let list = output(nvidia_smi, &["--query-gpu=index,uuid,name", "--format=csv,noheader"], LIST_BYTES_MAX)?;
    let facts = HostFactsSpec { topology, gpus: gpus(&list)?, ports: ports(&sys.join("class/infiniband")) };
    // What cannot be read is refused here, where the operator sees the node.
    host_type("of this machine", &facts, "")
        .map(|_| ())
        .or_else(|e| if e.contains("--board") { Ok(()) } else { Err(e) })?;
    Ok(facts)
}

fn gpus(list: &str) -> Result<Vec<CollectedGpu>, String> {
    let mut out = Vec::new();
    for line in list.lines().filter(|l| !l.trim().is_empty()) {
        let mut fields = line.splitn(3, ',').map(str::trim);
        let (index, uuid, product) = (fields.next(), fields.next(), fields.next());
        let index = index.and_then(|i| i.parse().ok());
        let uuid = uuid.filter(|u| u.starts_with("GPU-") && u.len() <= NAME_BYTES_MAX);
        let (Some(index), Some(uuid)) = (index, uuid) else {
            return Err(format!(
                "nvidia-smi --query-gpu: `{}` is no index, UUID and name",
                line.chars().take(80).collect::<String>()
            ));
        };
        out.push(CollectedGpu {
            index,
            uuid: uuid.into(),
            product: product.unwrap_or_default().chars().take(NAME_BYTES_MAX).collect(),
        });
        if out.len() > GPUS_PER_HOST_MAX {
            return Err(format!("more than {GPUS_PER_HOST_MAX} GPUs"));
        }
    }
    out.sort_by_key(|g| g.index);
    Ok(out)
}

/// First port of each RDMA device of sysfs; devices that cannot be read are left out.
fn ports(folder: &Path) -> Vec<CollectedPort> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut out: Vec<CollectedPort> = entries
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| name.len() <= NAME_BYTES_MAX)
        .filter_map(|device| {
            let port = folder.join(&device).join("ports/1");
            let read = |file: &str| files::read_text(&port.join(file), 256).ok().map(|t| t.trim().to_owned());
            let rate = read("rate")?;
            let gbit: f64 = rate.split_whitespace().next()?.parse().ok()?;
            Some(CollectedPort {
                device,
                active: read("state").is_some_and(|s| s.ends_with("ACTIVE")),
                rate_gbit_per_s: if (0.0..1e5).contains(&gbit) { gbit.round() as u32 } else { 0 },
                link_layer: read("link_layer").unwrap_or_default(),
            })
        })
        .collect();
    out.sort_by(|a, b| a.device.cmp(&b.device));
    out.truncate(NICS_PER_HOST_MAX);
    out
}

/// Standard output of a program, at most `bytes_max`.
fn output(program: &Path, arguments: &[&str], bytes_max: usize) -> Result<String, String> {
    use std::io::Read;
    let told = |e: String| format!("{} {}: {e}", program.display(), arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| told(format!("{e}; is the runtime class of the collector NVIDIA's?")))?;
    let mut pipes = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let limit = bytes_max as u64 + 1;
        let read = pipes.0.take().map_or(Ok(0), |p| p.take(limit).read_to_end(&mut out));
        let _ = pipes.1.take().map_or(Ok(0), |p| p.take(2_000).read_to_end(&mut err));
        read.map(|_| (out, err))
    });
    let begin = std::time::Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < PROGRAM_TIME_MAX => std::thread::sleep(Duration::from_millis(20)),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                let why = other
                    .err()
                    .map_or_else(|| format!("no end after {} s", PROGRAM_TIME_MAX.as_secs()), |e| e.to_string());
                return Err(told(why));
            }
        }
    };
    let read = reader.join().map_err(|_| told("its output was lost".into()))?;
    let (out, err) = read.map_err(|e| told(e.to_string()))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&err);
        return Err(told(format!("{status}: {}", said.lines().next().unwrap_or("no message"))));
    }
    if out.len() > bytes_max {
        return Err(told(format!("more than {bytes_max} bytes")));
    }
    String::from_utf8(out).map_err(|_| told("its output is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Eight H100 behind NVSwitches, a NIC next to each pair.
    pub fn matrix() -> String {
        let mut text = "\t".to_owned();
        (0..8).for_each(|g| text += &format!("GPU{g}\t"));
        text += "NIC0\tNIC1\tNUMA Affinity\n";
        for a in 0..8 {
            text += &format!("GPU{a}\t");
            (0..8).for_each(|b| text += if a == b { " X \t" } else { "NV18\t" });
            (0..2).for_each(|n| text += if a / 4 == n { "PIX\t" } else { "SYS\t" });
            text += &format!("{}\n", a / 4);
        }
        for n in 0..2 {
            text += &format!("NIC{n}\t");
            (0..8).for_each(|g| text += if g / 4 == n { "PIX\t" } else { "SYS\t" });
            text += if n == 0 { " X \tSYS\n" } else { "SYS\t X \n" };
        }
        text + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
    }

    #[test]
    fn a_matrix_with_its_ports_gives_a_host_type() {
        let port = |device: &str, rate| CollectedPort {
            device: device.into(),
            active: true,
            rate_gbit_per_s: rate,
            link_layer: "Ethernet".into(),
        };
        let facts =
            HostFactsSpec { topology: matrix(), gpus: vec![], ports: vec![port("mlx5_0", 400), port("mlx5_1", 400)] };
        let (t, notes) = host_type("n0", &facts, "NVIDIA H100 80GB HBM3").unwrap();
        assert_eq!((t.gpu_count(), t.nics.len(), t.name.as_str()), (8, 2, "nvidia-h100-80gb-hbm3"));
        assert_eq!(t.nics[0].line_rate.gbit_per_s(), 400.0);
        assert!(t.nvlink.unwrap().multicast, "{notes:?}");
        let bad = HostFactsSpec { topology: "nonsense".into(), ..facts };
        assert!(host_type("n0", &bad, "").unwrap_err().starts_with("HostFacts n0: "));
    }

    #[test]
    fn a_collector_runs_nvidia_smi_and_reads_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = topo ]; then cat <<'E'\n{}E\nelse for g in 1 0 2 3 4 5 6 7; do echo \"$g, GPU-$g, NVIDIA H100 80GB HBM3\"; done; fi\n",
            matrix()
        );
        let program = folder.path().join("nvidia-smi");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = folder.path().join("sys/class/infiniband/mlx5_0/ports/1");
        std::fs::create_dir_all(&port).unwrap();
        for (file, text) in
            [("rate", "400 Gb/sec (4X NDR)\n"), ("state", "4: ACTIVE\n"), ("link_layer", "InfiniBand\n")]
        {
            std::fs::write(port.join(file), text).unwrap();
        }
        let facts = collect(&program, &folder.path().join("sys")).unwrap();
        assert_eq!((facts.gpus.len(), facts.gpus[1].uuid.as_str()), (8, "GPU-1"));
        let expected = CollectedPort {
            device: "mlx5_0".into(),
            active: true,
            rate_gbit_per_s: 400,
            link_layer: "InfiniBand".into(),
        };
        assert_eq!(facts.ports, [expected]);
        std::fs::write(&program, "#!/bin/sh\necho 'no driver' >&2; exit 9\n").unwrap();
        assert!(collect(&program, folder.path()).unwrap_err().contains("no driver"));
        assert!(collect(&folder.path().join("none"), folder.path()).unwrap_err().contains("runtime class"));
    }
}
