//! What the examples report of their own cost.

/// Processor time of the main thread so far, seconds; 0 where the system does not report it.
pub fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}

/// Peak memory of this process, MiB; 0 where the system does not report it.
pub fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|v| v.parse::<usize>().ok()).unwrap_or(0) / 1024
}
