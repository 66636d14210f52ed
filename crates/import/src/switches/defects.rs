//! Defects of single hosts that a fabric shows: slow ports, and ports that other hosts have.

use super::Wiring;
use std::collections::BTreeMap;
use topology::{Host, HostType, count};

/// Ports below this share of the line rate are slow.
const FULL_RATE_MIN: f64 = 0.99;
/// A device that at least this share of the hosts has belongs to every host.
const ON_HOSTS_MIN: f64 = 0.5;

impl Wiring {
    /// Records slow and missing ports as the health of the hosts' NICs: a port of half the rate has 0.5, a missing one
    /// 0. Hosts that the file does not name stay as they are, and so do NICs whose names the file does not use. Returns
    /// one sentence per kind of defect. O(ports).
    pub fn record_defects(&self, ty: &HostType, hosts: &mut [Host]) -> Vec<String> {
        let mut ports: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
        let mut on_hosts: BTreeMap<&str, usize> = BTreeMap::new();
        for ((host, device), gbit) in &self.port_gbit_per_s {
            ports.entry(host).or_default().insert(device, *gbit);
            *on_hosts.entry(device).or_default() += 1;
        }
        let usual = |device: &str| on_hosts.get(device).is_some_and(|n| *n as f64 >= ON_HOSTS_MIN * ports.len() as f64);
        let (mut missing, mut slow) = (Vec::new(), Vec::new());
        for host in hosts {
            let Some(mine) = ports.get(host.name.as_str()) else { continue };
            let mut health = vec![1.0; ty.nics.len()];
            for (nic, h) in ty.nics.iter().zip(&mut health) {
                let line = nic.line_rate.gbit_per_s();
                match mine.get(nic.name.as_str()) {
                    Some(gbit) if *gbit < FULL_RATE_MIN * line => {
                        slow.push(format!("{} {} ({gbit} of {line} Gbit/s)", host.name, nic.name));
                        *h = gbit / line;
                    }
                    None if usual(&nic.name) => {
                        missing.push(format!("{} {}", host.name, nic.name));
                        *h = 0.0;
                    }
                    _ => {}
                }
            }
            if health.iter().any(|h| *h < 1.0) {
                host.nic_health = health;
            }
        }
        let note = |found: &[String], what: &str| {
            let first = found.first()?;
            let more = if found.len() > 1 { ", ..." } else { "" };
            Some(format!("{} {what}: {first}{more} (`degraded` in the cluster file)", count(found.len(), "NIC")))
        };
        let missing = note(&missing, "without a port in the fabric, where other hosts have one, taken as dead");
        missing.into_iter().chain(note(&slow, "slower than the line rate")).collect()
    }
}
