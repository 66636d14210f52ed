//! The rendezvous that the launcher's variables imply ([`agreement::launcher`]).

use agreement::Rendezvous;
use agreement::launcher::{SLURM, first_host, slurm_host_list, slurm_hosts};
use plugin_base::ConfigError;

/// The rendezvous from the launcher's variables; `None` if they imply none. For torchrun its host, at a port 1,717 above torchrun's own; for a
/// Slurm step of several hosts the first host. `LINKWISE_PORT` overrides the port.
pub fn rendezvous(env: &impl Fn(&str) -> Option<String>) -> Result<Option<Rendezvous>, ConfigError> {
    let port = match env("LINKWISE_PORT").filter(|p| !p.is_empty()) {
        None => None,
        Some(p) => Some(p.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| ConfigError {
            place: "LINKWISE_PORT".into(),
            what: format!("`{p}` is not a port, 1 to 65535"),
        })?),
    };
    let is_name = |h: &String| !h.is_empty() && h.len() <= 255;
    if let Some(host) = env("MASTER_ADDR").filter(is_name) {
        let next_to_torchrun =
            || env("MASTER_PORT")?.parse::<u16>().ok().map(|p| p.checked_add(1717).unwrap_or(17_171));
        return Ok(port.or_else(next_to_torchrun).map(|port| Rendezvous::Tcp { host, port }));
    }
    let number = |k: &str| env(k)?.trim().parse::<u64>().ok();
    let first = || first_host(&slurm_host_list(env)?).filter(is_name);
    if slurm_hosts(env).is_some_and(|n| n > 1)
        && let (Some(host), Some(job)) = (first(), SLURM.job.iter().find_map(|k| number(k)))
    {
        // Below the ports that systems assign automatically. Different for steps of one job, and for most jobs of one host.
        let by_step = 18_000 + (job * 31 + SLURM.step.and_then(number).unwrap_or(0)) % 12_000;
        return Ok(Some(Rendezvous::Tcp { host, port: port.unwrap_or(by_step as u16) }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string())
    }

    #[test]
    fn the_rendezvous_is_torchruns_host_or_the_first_host_of_a_slurm_step() {
        let at = |vars: &[(&str, &str)]| rendezvous(&env(vars)).unwrap().map(|m| m.to_string());
        let torch = [("MASTER_ADDR", "n7"), ("MASTER_PORT", "29500")];
        assert_eq!(at(&torch), Some("tcp:n7:31217".into()));
        let slurm = [
            ("SLURM_JOB_ID", "1000"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_NNODES", "9"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-08]"),
        ];
        assert_eq!(at(&slurm), Some("tcp:gpu07:25002".into()));
        assert_eq!(at(&[&slurm[..], &torch].concat()), Some("tcp:n7:31217".into()), "the innermost launcher");
        assert_eq!(
            at(&[slurm[0], slurm[1], slurm[4], ("SLURM_STEP_NUM_NODES", "1")]),
            None,
            "one host: no port needed"
        );
        assert_eq!(at(&[&slurm[..], &[("LINKWISE_PORT", "5")]].concat()), Some("tcp:gpu07:5".into()));
        let wrong = [&slurm[..], &[("LINKWISE_PORT", "x")]].concat();
        assert!(rendezvous(&env(&wrong)).unwrap_err().what.contains("not a port"));
    }
}
