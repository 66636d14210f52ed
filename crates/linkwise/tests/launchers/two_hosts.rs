//! Two "hosts" on this machine.

use crate::environment;
use crate::lab::Host;
use netns::{NetBox, or_skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The hosts' names.
pub const NAMES: [&str; 2] = ["launch-a", "launch-b"];

/// Namespaces with a network between them, and names of their own that each resolves, as by a site's DNS. What `ssh` would be reaches them with an empty
/// environment.
pub struct TwoHosts {
    pub hosts: [Host; 2],
    /// Stands for `ssh`.
    pub agent: PathBuf,
    _netbox: NetBox,
}

impl TwoHosts {
    pub fn new(test: &str, folder: &Path) -> Option<TwoHosts> {
        let netbox = or_skip(test, NetBox::rails(2, 1, 0))?;
        let known = folder.join("hosts");
        let lines = (0..2).map(|h| format!("{} {}\n", netbox.address(h, 0), NAMES[h]));
        std::fs::write(&known, "127.0.0.1 localhost\n".to_owned() + &lines.collect::<String>()).unwrap();
        let enter = format!("hostname \"$0\" && mount --bind '{}' /etc/hosts && exec \"$@\"", known.display());
        let hosts = [0, 1].map(|h| {
            // Not by `ip netns exec`, which mounts a /sys without the control groups that slurmd asks for.
            let network = format!("--net={}", netbox.namespace_file(h).display());
            let words = ["nsenter", &network, "unshare", "--uts", "--mount", "sh", "-c"];
            let inside = words.iter().chain(&[enter.as_str(), NAMES[h]]).map(|w| (*w).to_owned()).collect();
            Host { name: NAMES[h].into(), address: netbox.address(h, 0).to_string(), inside }
        });
        let agent = folder.join("agent");
        std::fs::write(&agent, script(&hosts)).unwrap();
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(TwoHosts { hosts, agent, _netbox: netbox })
    }

    pub fn addresses(&self) -> [&str; 2] {
        [0, 1].map(|h| self.hosts[h].address.as_str())
    }

    /// A command on a host.
    pub fn command(&self, host: usize, words: &[String]) -> Command {
        let mut command = self.hosts[host].command(&words[0]);
        command.args(&words[1..]);
        environment(&mut command);
        command
    }
}

/// `agent [-OPTION...] ADDRESS COMMAND...`
fn script(hosts: &[Host; 2]) -> String {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    let one = |h: &Host| {
        let inside: Vec<String> = h.inside.iter().map(quoted).collect();
        format!("{}) exec env -i PATH=\"$PATH\" HOME=/tmp {} sh -c \"$*\" ;;\n", h.address, inside.join(" "))
    };
    let cases: String = hosts.iter().map(one).collect();
    format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\ncase $host in\n{cases}*) echo \"no host $host\" >&2; exit 9 ;;\nesac\n"
    )
}
