//! A cluster in a box for tests: every host is a Linux network namespace, every NIC a veth pair with a shaped rate.
//!
//! ```text
//!  rails, leaf_spine                                  ring, mesh
//!
//!  host 0   host 1   host 2                           host 0 ──── host 1
//!   │ │      │ │      │ │    rail0, rail1               │  ╲    ╱  │
//!  ─┴─┼──────┴─┼──────┴─┼──  bridge of rail 0           │    ╲╱    │     a veth pair per link
//!  ───┴────────┴────────┴──  bridge of rail 1           │   ╱  ╲   │
//!   switch namespace                                  host 3 ──── host 2
//! ```
//!
//! - Rates: a token bucket (`tbf`) at both ends of every link. The bucket holds 128 KiB: a transfer shows the rate if it has 30 times as many bytes.
//!   Above 500 Mbit/s the processor limits before the link does.
//! - Several boxes may exist at once, also of several processes: names of namespaces contain the owner's process. Addresses repeat from box to box.
//! - A box is removed when it is dropped, with the processes in it. If its owner was killed, the next box of any process removes it.
//! - A box needs Linux, root and the programs `ip` and `tc`. Without these the error is [`NetBoxError::Unavailable`]; tests call [`or_skip`].
//!
//! Creating a box takes about 0.1 s and 20 ms per host.

mod owner;
mod plan;
mod programs;

use plan::{Link, Plan};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;

pub use owner::remove_dead;

/// Maximum number of hosts of a box.
pub const HOSTS_MAX: usize = 64;
/// Maximum number of NICs of a host.
pub const RAILS_MAX: usize = 64;

/// Why there is no box, or a change of it failed.
#[derive(Debug, thiserror::Error)]
pub enum NetBoxError {
    /// This machine cannot have network namespaces: no root, no `ip`, a kernel without them.
    #[error("no network namespaces here: {reason}")]
    Unavailable {
        /// What is missing.
        reason: String,
    },
    /// The kernel refused a command.
    #[error("`{command}`: {said}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// The program's own words.
        said: String,
    },
    /// More hosts or NICs than a box can have, or none.
    #[error("{hosts} hosts with {rails} NICs: a box has 1 to {HOSTS_MAX} hosts with 1 to {RAILS_MAX} NICs each")]
    Size {
        /// Hosts.
        hosts: usize,
        /// NICs per host.
        rails: usize,
    },
    /// The host has no such NIC.
    #[error("host {host} has no NIC {rail}")]
    NoSuchLink {
        /// Host.
        host: usize,
        /// NIC.
        rail: usize,
    },
}

/// Hosts, rails and switches of network namespaces. Hosts, and the NICs of each host, are numbered from 0. Rates are Mbit/s, 0 for unshaped.
#[derive(Debug)]
pub struct NetBox {
    /// One namespace per host.
    hosts: Vec<String>,
    /// By host: its NICs.
    links: Vec<Vec<Link>>,
    /// By leaf and rail: the link from the leaf's bridge to the spine's.
    uplinks: Vec<Vec<Link>>,
    namespaces: Vec<String>,
}

impl NetBox {
    /// Every host has a NIC on each of `rails` switches, each NIC with a rate of `mbit` in both directions. NICs of different rails do not reach each
    /// other.
    ///
    /// # Errors
    /// See [`NetBoxError`]. Nothing stays behind.
    pub fn rails(hosts: usize, rails: usize, mbit: u32) -> Result<Self, NetBoxError> {
        Self::build(hosts, rails, |plan| {
            for host in 0..hosts {
                (0..rails).for_each(|rail| plan.add_nic(host, rail, 0, mbit));
            }
        })
    }

    /// As [`rails`](Self::rails), but every rail has one leaf switch per `hosts_per_leaf` hosts and a spine. A leaf's link to the spine has
    /// `uplink_mbit`: less than `hosts_per_leaf` times `mbit` is oversubscribed.
    ///
    /// # Errors
    /// See [`NetBoxError`]. Nothing stays behind.
    pub fn leaf_spine(
        hosts: usize,
        rails: usize,
        hosts_per_leaf: usize,
        mbit: u32,
        uplink_mbit: u32,
    ) -> Result<Self, NetBoxError> {
        let per_leaf = hosts_per_leaf.max(1);
        Self::build(hosts, rails, |plan| {
            for host in 0..hosts {
                (0..rails).for_each(|rail| plan.add_nic(host, rail, host / per_leaf, mbit));
            }
            for leaf in 0..hosts.div_ceil(per_leaf) {
                (0..rails).for_each(|rail| plan.add_uplink(leaf, rail, uplink_mbit));
            }
        })
    }

    /// Direct links between neighbours: host `i` has NIC 0 to host `i + 1` and NIC 1 to host `i - 1` (two hosts: one link, NIC 0).
    ///
    /// # Errors
    /// See [`NetBoxError`]. Nothing stays behind.
    pub fn ring(hosts: usize, mbit: u32) -> Result<Self, NetBoxError> {
        Self::build(hosts, hosts.saturating_sub(1).clamp(1, 2), |plan| {
            for a in 0..(if hosts > 2 { hosts } else { hosts - 1 }) {
                let b = (a + 1) % hosts;
                plan.direct((a, 0), (b, usize::from(hosts > 2)), mbit);
            }
        })
    }

    /// A direct link between every pair of hosts. A host's NICs are in the order of its peers: see [`nic_to`](Self::nic_to).
    ///
    /// # Errors
    /// See [`NetBoxError`]. Nothing stays behind.
    pub fn mesh(hosts: usize, mbit: u32) -> Result<Self, NetBoxError> {
        Self::build(hosts, hosts.saturating_sub(1).max(1), |plan| {
            for a in 0..hosts {
                ((a + 1)..hosts).for_each(|b| plan.direct((a, b - 1), (b, a), mbit));
            }
        })
    }

    fn build(hosts: usize, rails: usize, wire: impl FnOnce(&mut Plan)) -> Result<Self, NetBoxError> {
        if !(1..=HOSTS_MAX).contains(&hosts) || !(1..=RAILS_MAX).contains(&rails) {
            return Err(NetBoxError::Size { hosts, rails });
        }
        programs::check()?;
        remove_dead();
        let prefix = owner::new_prefix()?;
        let mut plan = Plan::new(&prefix, hosts);
        wire(&mut plan);
        // From here on a failure drops the box, which removes what there is.
        let netbox = NetBox {
            hosts: plan.hosts.clone(),
            links: std::mem::take(&mut plan.links),
            uplinks: std::mem::take(&mut plan.uplinks),
            namespaces: plan.namespaces.clone(),
        };
        plan.make()?;
        Ok(netbox)
    }

    /// Adds a management network: a NIC called `mgmt` per host, unshaped, all on one switch. Returns the hosts' addresses. Programs start over it where
    /// not all hosts are neighbours.
    ///
    /// # Errors
    /// See [`NetBoxError`].
    pub fn add_management(&mut self) -> Result<Vec<IpAddr>, NetBoxError> {
        let prefix = self.hosts.first().and_then(|h| h.strip_suffix(".host0")).unwrap_or_default();
        let switch = format!("{prefix}.mgmt");
        programs::run("ip", &["netns", "add", &switch], "")?;
        self.namespaces.push(switch.clone());
        let mut at_switch = vec!["link add mgmt type bridge mcast_snooping 0".to_string(), "link set mgmt up".into()];
        let mut all = Vec::new();
        for (h, host) in self.hosts.iter().enumerate() {
            let pair = format!("link add mgmt netns {host} type veth peer name h{h} netns {switch}\n");
            programs::run("ip", &["-batch", "-"], &pair)?;
            let address = Ipv4Addr::new(10, 127, 0, h as u8 + 1);
            programs::inside(host, "ip", &[format!("addr add {address}/24 dev mgmt"), "link set mgmt up".into()])?;
            at_switch.extend([format!("link set h{h} master mgmt"), format!("link set h{h} up")]);
            all.push(address.into());
        }
        programs::inside(&switch, "ip", &at_switch)?;
        Ok(all)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Number of NICs of a host.
    pub fn nics(&self, host: usize) -> usize {
        self.links.get(host).map_or(0, Vec::len)
    }

    /// The host's namespace, for `ip netns exec` and `/run/netns`.
    ///
    /// # Panics
    /// There is no such host.
    pub fn namespace(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    /// The file that stands for the host's namespace: `setns` takes it.
    ///
    /// # Panics
    /// There is no such host.
    pub fn namespace_file(&self, host: usize) -> PathBuf {
        owner::folder().join(self.namespace(host))
    }

    /// The address of a host's NIC.
    ///
    /// # Panics
    /// There is no such NIC.
    pub fn address(&self, host: usize, rail: usize) -> IpAddr {
        self.links[host][rail].address.into()
    }

    /// The name of a host's NIC inside its namespace, such as `rail0` or `to3`.
    ///
    /// # Panics
    /// There is no such NIC.
    pub fn interface(&self, host: usize, rail: usize) -> &str {
        &self.links[host][rail].interface
    }

    /// The NIC of `host` on the direct link to `peer`. `None` if there is none.
    pub fn nic_to(&self, host: usize, peer: usize) -> Option<usize> {
        self.links.get(host)?.iter().position(|l| l.peer.is_some_and(|(h, _)| h == peer))
    }

    /// The host and NIC at the other end of a direct link. `None` at a switch.
    pub fn peer(&self, host: usize, rail: usize) -> Option<(usize, usize)> {
        self.links.get(host)?.get(rail)?.peer
    }

    /// The command, to be run inside the host. Its arguments, variables and folder are taken over; set stdin, stdout and stderr on the result. The
    /// process is the program itself (`ip netns exec` replaces itself by it), so that signals reach it.
    ///
    /// # Panics
    /// There is no such host.
    pub fn exec(&self, host: usize, command: Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", self.namespace(host)]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside
    }

    fn link(&self, host: usize, rail: usize) -> Result<&Link, NetBoxError> {
        self.links.get(host).and_then(|l| l.get(rail)).ok_or(NetBoxError::NoSuchLink { host, rail })
    }

    /// Takes the link down as if its cable were pulled: both ends lose their carrier, and processes see it.
    ///
    /// # Errors
    /// There is no such NIC, or `ip` fails.
    pub fn link_down(&self, host: usize, rail: usize) -> Result<(), NetBoxError> {
        self.link(host, rail)?.set("down")
    }

    /// Undoes [`link_down`](Self::link_down).
    ///
    /// # Errors
    /// There is no such NIC, or `ip` fails.
    pub fn link_up(&self, host: usize, rail: usize) -> Result<(), NetBoxError> {
        self.link(host, rail)?.set("up")
    }

    /// Loses every packet of a NIC at its switch, silently: the carrier stays. At a direct link, the same as [`link_down`](Self::link_down).
    ///
    /// # Errors
    /// There is no such NIC, or `ip` fails.
    pub fn cut(&self, host: usize, rail: usize) -> Result<(), NetBoxError> {
        self.link(host, rail)?.attach(false)
    }

    /// Undoes [`cut`](Self::cut).
    ///
    /// # Errors
    /// There is no such NIC, or `ip` fails.
    pub fn heal(&self, host: usize, rail: usize) -> Result<(), NetBoxError> {
        self.link(host, rail)?.attach(true)
    }

    /// Changes the rate of a NIC in both directions, also during transfers. 0: unshaped.
    ///
    /// # Errors
    /// There is no such NIC, or `tc` fails.
    pub fn rate(&self, host: usize, rail: usize, mbit: u32) -> Result<(), NetBoxError> {
        self.link(host, rail)?.rate(mbit)
    }

    /// Changes the rate between a leaf switch and the spine in both directions. 0: unshaped.
    ///
    /// # Errors
    /// There is no such leaf, or `tc` fails.
    pub fn uplink_rate(&self, leaf: usize, rail: usize, mbit: u32) -> Result<(), NetBoxError> {
        let uplink = self.uplinks.get(leaf).and_then(|l| l.get(rail));
        uplink.ok_or(NetBoxError::NoSuchLink { host: leaf, rail })?.rate(mbit)
    }
}

impl Drop for NetBox {
    fn drop(&mut self) {
        owner::remove(&self.namespaces);
    }
}

/// The box of a test, or `None` with a line `SKIP test: reason` if this machine cannot have one.
///
/// # Panics
/// The machine can have boxes, but this one failed.
pub fn or_skip(test: &str, made: Result<NetBox, NetBoxError>) -> Option<NetBox> {
    match made {
        Ok(netbox) => Some(netbox),
        Err(e @ NetBoxError::Unavailable { .. }) => {
            eprintln!("SKIP {test}: {e}");
            None
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

/// The address of a host's NIC at a switch.
fn switch_address(host: usize, rail: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, rail as u8, 0, host as u8 + 1)
}

/// The two addresses of the direct link with this number.
fn direct_addresses(link: usize) -> [Ipv4Addr; 2] {
    let first = u32::from(Ipv4Addr::new(10, 128, 0, 0)) + 4 * link as u32;
    [Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2)]
}
