//! The namespaces, interfaces and rates of a box, collected first and made with few runs of `ip` and `tc`.

use crate::{NetBoxError, direct_addresses, programs, switch_address};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Bytes that a link may send at once after a pause. Smaller buckets need more processor time.
const BURST: &str = "128kb";
/// Bytes that a shaped link queues. Full queues of TCP's senders fit.
const QUEUE: &str = "4mb";

/// A NIC and the other end of its link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub namespace: String,
    pub interface: String,
    /// The other end: a switch's port, or another host's NIC.
    pub far_namespace: String,
    pub far_interface: String,
    /// The switch's bridge at the other end.
    pub bridge: Option<String>,
    pub address: Ipv4Addr,
    /// Host and NIC at the other end of a direct link.
    pub peer: Option<(usize, usize)>,
}

impl Link {
    /// The other end goes down, or up: this end keeps its address and loses the carrier.
    pub fn set(&self, state: &str) -> Result<(), NetBoxError> {
        programs::inside(&self.far_namespace, "ip", &[format!("link set {} {state}", self.far_interface)])
    }

    /// Attaches the port to its bridge, or detaches it.
    pub fn attach(&self, is_attached: bool) -> Result<(), NetBoxError> {
        let port = &self.far_interface;
        let line = match (&self.bridge, is_attached) {
            (Some(bridge), true) => format!("link set {port} master {bridge}"),
            (Some(_), false) => format!("link set {port} nomaster"),
            (None, _) => return self.set(if is_attached { "up" } else { "down" }),
        };
        programs::inside(&self.far_namespace, "ip", &[line])
    }

    pub fn rate(&self, mbit: u32) -> Result<(), NetBoxError> {
        let ends = [(&self.namespace, &self.interface), (&self.far_namespace, &self.far_interface)];
        for (namespace, interface) in ends {
            match shape(interface, mbit) {
                Some(line) => programs::inside(namespace, "tc", &[line])?,
                // Without a bucket there is nothing to remove, which is an error for `tc` alone.
                None => _ = programs::inside(namespace, "tc", &[format!("qdisc del dev {interface} root")]),
            }
        }
        Ok(())
    }
}

/// The command that shapes what an interface sends.
fn shape(interface: &str, mbit: u32) -> Option<String> {
    (mbit > 0).then(|| format!("qdisc replace dev {interface} root tbf rate {mbit}mbit burst {BURST} limit {QUEUE}"))
}

/// What is to be made.
#[derive(Debug)]
pub(crate) struct Plan {
    switch: String,
    pub namespaces: Vec<String>,
    pub hosts: Vec<String>,
    pub links: Vec<Vec<Link>>,
    pub uplinks: Vec<Vec<Link>>,
    pairs: Vec<String>,
    ip: BTreeMap<String, Vec<String>>,
    tc: BTreeMap<String, Vec<String>>,
    bridges: Vec<String>,
    direct: usize,
}

impl Plan {
    pub fn new(prefix: &str, hosts: usize) -> Self {
        let names: Vec<String> = (0..hosts).map(|h| format!("{prefix}.host{h}")).collect();
        Plan {
            switch: format!("{prefix}.switch"),
            namespaces: names.clone(),
            hosts: names,
            links: vec![Vec::new(); hosts],
            uplinks: Vec::new(),
            pairs: Vec::new(),
            ip: BTreeMap::new(),
            tc: BTreeMap::new(),
            bridges: Vec::new(),
            direct: 0,
        }
    }

    fn veth(&mut self, ends: [(&str, &str); 2], mbit: u32) {
        let [(a, if_a), (b, if_b)] = ends;
        self.pairs.push(format!("link add {if_a} netns {a} type veth peer name {if_b} netns {b}"));
        for (namespace, interface) in ends {
            self.ip.entry(namespace.into()).or_default().push(format!("link set {interface} up"));
            self.tc.entry(namespace.into()).or_default().extend(shape(interface, mbit));
        }
    }

    /// The switch's bridge of this name, made if there is none.
    fn bridge(&mut self, name: String) -> String {
        if !self.namespaces.contains(&self.switch) {
            self.namespaces.push(self.switch.clone());
        }
        if !self.bridges.contains(&name) {
            let lines = [format!("link add {name} type bridge mcast_snooping 0"), format!("link set {name} up")];
            self.ip.entry(self.switch.clone()).or_default().extend(lines);
            self.bridges.push(name.clone());
        }
        name
    }

    fn attach(&mut self, port: &str, bridge: &str) {
        self.ip.entry(self.switch.clone()).or_default().push(format!("link set {port} master {bridge}"));
    }

    /// A NIC at the bridge of its leaf and rail.
    pub fn add_nic(&mut self, host: usize, rail: usize, leaf: usize, mbit: u32) {
        let bridge = self.bridge(format!("leaf{leaf}r{rail}"));
        let link = Link {
            namespace: self.hosts[host].clone(),
            interface: format!("rail{rail}"),
            far_namespace: self.switch.clone(),
            far_interface: format!("h{host}r{rail}"),
            bridge: Some(bridge.clone()),
            address: switch_address(host, rail),
            peer: None,
        };
        self.veth([(&link.namespace, &link.interface), (&link.far_namespace, &link.far_interface)], mbit);
        self.attach(&link.far_interface, &bridge);
        self.add(host, rail, link, 24);
    }

    /// The link of a leaf's bridge to the spine's.
    pub fn add_uplink(&mut self, leaf: usize, rail: usize, mbit: u32) {
        let bridges = [self.bridge(format!("leaf{leaf}r{rail}")), self.bridge(format!("spine{rail}"))];
        let link = Link {
            namespace: self.switch.clone(),
            interface: format!("up{leaf}r{rail}"),
            far_namespace: self.switch.clone(),
            far_interface: format!("down{leaf}r{rail}"),
            bridge: Some(bridges[1].clone()),
            address: Ipv4Addr::UNSPECIFIED,
            peer: None,
        };
        self.veth([(&link.namespace, &link.interface), (&link.far_namespace, &link.far_interface)], mbit);
        self.attach(&link.interface, &bridges[0]);
        self.attach(&link.far_interface, &bridges[1]);
        if self.uplinks.len() <= leaf {
            self.uplinks.resize(leaf + 1, Vec::new());
        }
        self.uplinks[leaf].push(link);
    }

    /// A direct link between two hosts' NICs.
    pub fn direct(&mut self, a: (usize, usize), b: (usize, usize), mbit: u32) {
        let addresses = direct_addresses(self.direct);
        self.direct += 1;
        let ends = [(a, b), (b, a)].map(|((host, _), (peer, _))| (self.hosts[host].clone(), format!("to{peer}")));
        let [end_a, end_b] = &ends;
        self.veth([(&end_a.0, &end_a.1), (&end_b.0, &end_b.1)], mbit);
        for (i, (at, peer)) in [(a, b), (b, a)].into_iter().enumerate() {
            let link = Link {
                namespace: ends[i].0.clone(),
                interface: ends[i].1.clone(),
                far_namespace: ends[1 - i].0.clone(),
                far_interface: ends[1 - i].1.clone(),
                bridge: None,
                address: addresses[i],
                peer: Some(peer),
            };
            self.add(at.0, at.1, link, 30);
        }
    }

    fn add(&mut self, host: usize, nic: usize, link: Link, bits: u8) {
        let lines = self.ip.entry(link.namespace.clone()).or_default();
        lines.push(format!("addr add {}/{bits} dev {}", link.address, link.interface));
        // Links are planned in any order; a host's NICs are numbered.
        let nics = &mut self.links[host];
        let at = nics.len().min(nic);
        nics.insert(at, link);
    }

    /// Makes everything. The first step shows whether this machine can have namespaces at all.
    pub fn make(&self) -> Result<(), NetBoxError> {
        for (i, name) in self.namespaces.iter().enumerate() {
            programs::run("ip", &["netns", "add", name], "").map_err(|e| match e {
                NetBoxError::Failed { said, .. } if i == 0 => NetBoxError::Unavailable { reason: said },
                e => e,
            })?;
        }
        programs::run("ip", &["-batch", "-"], &(self.pairs.join("\n") + "\n"))?;
        for name in &self.namespaces {
            let mut lines = vec!["link set lo up".to_string()];
            lines.extend(self.ip.get(name).into_iter().flatten().cloned());
            programs::inside(name, "ip", &lines)?;
            programs::inside(name, "tc", self.tc.get(name).map_or(&[], Vec::as_slice))?;
        }
        Ok(())
    }
}
