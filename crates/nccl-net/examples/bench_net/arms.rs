//! The arms of the bench: NCCL's own sockets in several settings, and the plugin.

use crate::Options;
use crate::cases::matrix;
use nccl_bench::SimulatedNode;
use nccl_bench::bytes::{BytesCall, BytesSpec, HostPlace, Traffic};
use netns::NetBox;
use std::process::Command;
use topology::{Cluster, Host, HostId, catalog};

/// NCCL's sockets over the kernel's multipath TCP: the hosts announce all rails to each other, and a preloaded library opens every socket as MPTCP and
/// listens on all addresses, because NCCL itself listens on one.
fn mptcp(netbox: &NetBox, s: &mut BytesSpec) -> Result<(), String> {
    let run = |command: &mut Command| {
        let out = command.output().map_err(|e| e.to_string())?;
        if out.status.success() {
            Ok(())
        } else {
            Err(format!("{command:?}: {}", String::from_utf8_lossy(&out.stderr)))
        }
    };
    for h in 0..netbox.hosts() {
        let ip = |args: &str| {
            let mut c = Command::new("ip");
            c.args(["mptcp"]).args(args.split(' '));
            run(&mut netbox.exec(h, c))
        };
        ip("limits set subflow 8 add_addr_accepted 8")?;
        ip("endpoint flush")?;
        for rail in 0..netbox.nics(h) {
            ip(&format!("endpoint add {} dev {} signal", netbox.address(h, rail), netbox.interface(h, rail)))?;
        }
    }
    let library = std::env::temp_dir().join(format!("bench-net-{}-mptcp.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bench_net/mptcp.c");
    run(Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl"))?;
    s.places.iter_mut().for_each(|p| p.preload = Some(library.clone()));
    Ok(())
}

/// What one arm runs.
pub fn spec(o: &Options, case: &str, arm: &str, netbox: &NetBox) -> Result<BytesSpec, String> {
    let t = catalog::host_type("hgx-h100").ok_or("no host type")?;
    let cluster = Cluster { name: "bench".into(), types: vec![t], ..Cluster::default() };
    let mut s = BytesSpec::new(cluster, Vec::new(), o.version.parse()?);
    let rails: Vec<&str> = (0..netbox.nics(0)).map(|r| netbox.interface(0, r)).collect();
    for h in 0..o.hosts {
        s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
        let gpus = (0..o.local as u8).collect();
        s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus, nvlink_domain: None });
        let nice = o.nice.to_string();
        let prefix = ["nice", "-n", &nice, "ip", "netns", "exec", netbox.namespace(h)].map(str::to_owned).to_vec();
        let own: Vec<&str> = (0..netbox.nics(h)).map(|r| netbox.interface(h, r)).collect();
        let env = vec![("LINKWISE_NET_RAILS".into(), own.join(","))];
        s.places.push(HostPlace { prefix, env, ..HostPlace::default() });
    }
    s.env.push(("NCCL_DEBUG".into(), "INFO".into()));
    s.interfaces = if o.shape == "rails" { rails.join(",") } else { "mgmt".into() };
    match arm {
        "sockets" => {}
        // Without PXN a GPU sends over its own NIC, and not over the one of the destination's.
        "sockets-no-pxn" => s.env.push(("NCCL_PXN_DISABLE".into(), "1".into())),
        "sockets-mptcp" => mptcp(netbox, &mut s)?,
        "sockets-best" => {
            s.env.push(("NCCL_SOCKET_NTHREADS".into(), "2".into()));
            s.env.push(("NCCL_NSOCKS_PERTHREAD".into(), "4".into()));
        }
        "linkwise" | "linkwise-no-pxn" | "linkwise-alone" | "linkwise-direct" | "linkwise-greedy" | "source-rail"
        | "stripe" => {
            if o.shape == "rails" {
                s.interfaces = rails[0].into();
            } else {
                s.env.push(("LINKWISE_NET_RELAY".into(), if arm == "linkwise-direct" { "0" } else { "1" }.into()));
                s.env.push(("LINKWISE_TOKEN".into(), "bench".into()));
            }
            // What sites have without adaptive paths: every message on the rail of its device, or in equal parts over all rails.
            let plan = match arm {
                "source-rail" => Some("* * home 1\n"),
                "stripe" => Some("* * * 1\n"),
                _ => None,
            };
            if let Some(text) = plan {
                let file = std::env::temp_dir().join(format!("bench-net-{}-{arm}", std::process::id()));
                std::fs::write(&file, text).map_err(|e| e.to_string())?;
                s.env.push(("LINKWISE_NET_PLAN".into(), file.display().to_string()));
            } else if arm == "linkwise-greedy" {
                s.env.push(("LINKWISE_NET_PLAN".into(), "off".into()));
            }
            if arm == "linkwise-no-pxn" {
                s.env.push(("NCCL_PXN_DISABLE".into(), "1".into()));
            }
            s.net_plugin = Some(o.plugin.clone());
            s.env.push(("LINKWISE_NET".into(), "tcp".into()));
            s.env.push(("LINKWISE_NET_SHARE".into(), if arm == "linkwise-alone" { "0" } else { "1" }.into()));
        }
        _ => {
            return Err(format!(
                "`{arm}` is none of sockets, sockets-best, sockets-no-pxn, sockets-mptcp, source-rail, stripe, linkwise, linkwise-no-pxn, linkwise-alone, linkwise-direct, linkwise-greedy"
            ));
        }
    }
    s.calls.push(BytesCall { repetitions: o.repetitions, ..BytesCall::new(Traffic::SendRecv(matrix(o, case)?)) });
    Ok(s)
}
