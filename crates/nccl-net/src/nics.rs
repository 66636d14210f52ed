//! Which NICs of the host are rails.

use crate::config::{Config, Mode, Transport};
use std::net::IpAddr;
use std::path::Path;

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub ip: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
    /// It is up and has a carrier.
    pub is_up: bool,
}

/// A rail, as the plugin describes it to NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub name: String,
    pub ip: IpAddr,
    pub prefix: u8,
    /// Folder of the PCI device in /sys; `None` for a virtual interface.
    pub pci_path: Option<String>,
    pub speed_mbit_per_s: u32,
    /// The same for all ports of one card.
    pub guid: u64,
}

/// Speed of an interface that does not know its own, as NCCL assumes.
const SPEED_UNKNOWN_MBIT_PER_S: u32 = 10_000;

/// The folder /sys, or that of a test.
#[derive(Debug)]
pub struct Sys<'a>(pub &'a Path);

impl Sys<'_> {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(path)).ok().map(|t| t.trim().to_owned())
    }

    /// Folder of the interface's device; `None` for a virtual interface.
    fn device(&self, name: &str) -> Option<String> {
        let path = std::fs::canonicalize(self.0.join("class/net").join(name).join("device")).ok()?;
        path.to_str().map(str::to_owned)
    }

    fn speed(&self, name: &str) -> u32 {
        let known = self.text(&format!("class/net/{name}/speed")).and_then(|t| t.parse::<i64>().ok());
        known.filter(|s| (1..=10_000_000).contains(s)).map_or(SPEED_UNKNOWN_MBIT_PER_S, |s| s as u32)
    }

    /// True if an RDMA device has an active port.
    pub fn has_rdma(&self) -> bool {
        let list = |p: &Path| std::fs::read_dir(p).map(|d| d.flatten().map(|e| e.path()).collect::<Vec<_>>());
        let devices = list(&self.0.join("class/infiniband")).unwrap_or_default();
        let ports = devices.iter().flat_map(|d| list(&d.join("ports")).unwrap_or_default());
        ports.into_iter().any(|p| std::fs::read_to_string(p.join("state")).is_ok_and(|s| s.contains("ACTIVE")))
    }

    fn nic(&self, i: &Interface) -> Nic {
        let pci_path = self.device(&i.name);
        // Functions of one card differ in what follows the last point.
        let card = pci_path.as_deref().map_or(i.name.as_str(), |p| p.rsplit_once('.').map_or(p, |(card, _)| card));
        Nic {
            name: i.name.clone(),
            ip: i.ip,
            prefix: i.prefix,
            speed_mbit_per_s: self.speed(&i.name),
            guid: wire::bytes::hash(card.as_bytes()),
            pci_path,
        }
    }
}

/// The rails, or why the plugin offers no device.
///
/// # Errors
/// The reason, for the log.
pub fn rails(config: &Config, interfaces: &[Interface], sys: &Sys<'_>) -> Result<Vec<Nic>, String> {
    if config.mode == Mode::Off {
        return Err("LINKWISE_NET is off".into());
    }
    if !config.rails.is_empty() {
        let mut all: Vec<Nic> = Vec::new();
        for text in &config.rails {
            let mut nic = sys.nic(&named(text, interfaces)?);
            if all.iter().any(|n| n.ip == nic.ip) {
                return Err(format!("LINKWISE_NET_RAILS: {} is named twice", nic.ip));
            }
            // NCCL tells devices apart by their names.
            if all.iter().any(|n| n.name == nic.name) {
                nic.name = format!("{}@{}", nic.name, nic.ip);
                nic.guid = wire::bytes::hash(nic.name.as_bytes());
            }
            all.push(nic);
        }
        return Ok(all);
    }
    if config.mode == Mode::Auto && config.transport == Transport::Tcp && sys.has_rdma() {
        return Err("the host has RDMA devices, which NCCL's own transport uses (LINKWISE_NET=tcp or LINKWISE_NET_TRANSPORT=verbs overrides)".into());
    }
    let mut all: Vec<Nic> = Vec::new();
    for i in interfaces.iter().filter(|i| i.is_up && !i.ip.is_loopback() && !is_link_local(i.ip)) {
        let nic = sys.nic(i);
        match all.iter_mut().find(|n| n.name == nic.name) {
            // One address per NIC; IPv4 first, because sites route it everywhere.
            Some(before) if before.ip.is_ipv6() && nic.ip.is_ipv4() => *before = nic,
            Some(_) => {}
            None if nic.pci_path.is_some() => all.push(nic),
            None => {}
        }
    }
    all.sort_by(|a, b| (&a.pci_path, &a.name).cmp(&(&b.pci_path, &b.name)));
    // A slow NIC, for instance of the management network, is no rail beside fast ones.
    let fastest = all.iter().map(|n| n.speed_mbit_per_s).max().unwrap_or(0);
    all.retain(|n| n.speed_mbit_per_s >= fastest / 4);
    all.truncate(net::limits::RAILS_MAX);
    match all.len() {
        0 => Err("the host has no NIC with an address".into()),
        1 if config.mode == Mode::Auto => Err("the host has one NIC: there is nothing to spread".into()),
        _ => Ok(all),
    }
}

/// The interface of a name or an address.
fn named(text: &str, interfaces: &[Interface]) -> Result<Interface, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        if let Some(i) = interfaces.iter().find(|i| i.ip == ip) {
            return Ok(i.clone());
        }
        if ip.is_loopback() {
            return Ok(Interface { name: "lo".into(), ip, prefix: 8, is_up: true });
        }
        return Err(format!("LINKWISE_NET_RAILS: no interface of this host has the address {ip}"));
    }
    let of_name = |four: bool| interfaces.iter().find(|i| i.name == text && i.ip.is_ipv4() == four);
    let found = of_name(true).or_else(|| of_name(false).filter(|i| !is_link_local(i.ip)));
    found.cloned().ok_or_else(|| format!("LINKWISE_NET_RAILS: there is no interface `{text}` with an address"))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        Interface { name: name.into(), ip: ip.parse().unwrap(), prefix: 24, is_up: true }
    }

    fn sys(nics: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, pci, speed) in nics {
            let (net, device) = (root.path().join("class/net").join(name), root.path().join("devices").join(pci));
            std::fs::create_dir_all(&net).unwrap();
            std::fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink(&device, net.join("device")).unwrap();
            std::fs::write(net.join("speed"), speed).unwrap();
        }
        root
    }

    #[test]
    fn fast_nics_with_hardware_are_rails_in_the_order_of_their_slots() {
        let root = sys(&[
            ("eth9", "0000:1a:00.0", "100000\n"),
            ("eth0", "0000:60:00.0", "100000\n"),
            ("mgmt", "0000:01:00.0", "1000\n"),
        ]);
        let all = [
            interface("lo", "127.0.0.1"),
            interface("eth0", "fd00::1"),
            interface("eth0", "10.1.0.1"),
            interface("eth9", "10.2.0.1"),
            interface("eth9", "fe80::1"),
            interface("mgmt", "10.3.0.1"),
            interface("docker0", "172.17.0.1"),
        ];
        let config = Config::default();
        let found = rails(&config, &all, &Sys(root.path())).unwrap();
        let names: Vec<_> = found.iter().map(|n| (n.name.as_str(), n.ip.to_string(), n.speed_mbit_per_s)).collect();
        assert_eq!(names, [("eth9", "10.2.0.1".into(), 100_000), ("eth0", "10.1.0.1".into(), 100_000)]);
        assert!(found[0].pci_path.as_ref().unwrap().ends_with("0000:1a:00.0") && found[0].guid != found[1].guid);
        let one = rails(&config, &all[..3], &Sys(root.path()));
        assert!(one.unwrap_err().contains("one NIC"));
        assert!(rails(&Config { mode: Mode::Off, ..config.clone() }, &all, &Sys(root.path())).is_err());
        std::fs::create_dir_all(root.path().join("class/infiniband/mlx5_0/ports/1")).unwrap();
        std::fs::write(root.path().join("class/infiniband/mlx5_0/ports/1/state"), "4: ACTIVE\n").unwrap();
        assert!(rails(&config, &all, &Sys(root.path())).unwrap_err().contains("RDMA"));
        assert!(rails(&Config { transport: Transport::Verbs, ..config.clone() }, &all, &Sys(root.path())).is_ok());
        assert!(rails(&Config { mode: Mode::Tcp, ..config }, &all, &Sys(root.path())).is_ok());
    }

    #[test]
    fn ports_of_one_card_share_their_guid() {
        let root = sys(&[("a", "0000:1a:00.0", "1"), ("b", "0000:1a:00.1", "1"), ("c", "0000:1b:00.0", "1")]);
        let all = [interface("a", "10.1.0.1"), interface("b", "10.2.0.1"), interface("c", "10.3.0.1")];
        let found = rails(&Config::default(), &all, &Sys(root.path())).unwrap();
        assert!(found[0].guid == found[1].guid && found[1].guid != found[2].guid);
    }

    #[test]
    fn rails_are_named_by_interface_or_address() {
        let all = [interface("eth0", "10.1.0.1"), interface("eth1", "10.2.0.1")];
        let with =
            |rails: &[&str]| Config { rails: rails.iter().map(|r| r.to_string()).collect(), ..Config::default() };
        let root = tempfile::tempdir().unwrap();
        let names = |r: &[&str]| {
            rails(&with(r), &all, &Sys(root.path())).map(|n| n.iter().map(|n| n.ip.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["eth1", "10.1.0.1"]), Ok(vec!["10.2.0.1".into(), "10.1.0.1".into()]));
        assert_eq!(names(&["127.0.0.2"]), Ok(vec!["127.0.0.2".into()]));
        assert!(names(&["eth0", "10.1.0.1"]).unwrap_err().contains("twice"));
        let lo = rails(&with(&["127.0.0.1", "127.0.0.2"]), &all, &Sys(root.path())).unwrap();
        assert!(lo[0].name == "lo" && lo[1].name == "lo@127.0.0.2" && lo[0].guid != lo[1].guid);
        assert!(names(&["eth7"]).unwrap_err().contains("no interface `eth7`"));
        assert!(names(&["10.9.9.9"]).unwrap_err().contains("10.9.9.9"));
    }
}
