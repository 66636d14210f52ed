//! Fixed shares from a plan of `linkwise route plan --format json`. Pure.
//!
//! Such a plan gives the bytes of every pair of GPUs on every path. A connection of the plugin belongs to two hosts, not to two GPUs, so the bytes of all
//! pairs of GPUs of two hosts are added up by rail: the load of every NIC is that of the plan. What the plan does inside a host is not carried out.

use super::json::Json;
use super::{ROWS_MAX, Table, Which};
use crate::limits::RAILS_MAX;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Links of a plan, and links of a path.
const LINKS_MAX: usize = 1 << 16;
const HOPS_MAX: usize = 32;
/// Bytes of a flow: the planner's own limit.
const BYTES_MAX: u64 = 1 << 52;
/// The shares of two hosts' rails add up to about this.
const SHARES: f64 = (1 << 20) as f64;

/// One way of some bytes.
#[derive(Debug)]
struct Flow {
    /// Indices of links.
    hops: Vec<usize>,
    bytes: f64,
}

/// True if the text can only be a plan, not a table of rows.
pub fn is_one(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The shares of a plan. `hosts`: names of hosts as in the plan, each with the address of one of its rails.
///
/// # Errors
/// The text is no plan, a path cannot be carried, or a host has no address.
pub fn table(text: &str, hosts: &[(String, IpAddr)]) -> Result<Table, String> {
    let (links, flows) = read(text)?;
    let mut loads: BTreeMap<(&str, &str), [f64; RAILS_MAX]> = BTreeMap::new();
    for (i, flow) in flows.iter().enumerate() {
        let crossed = crossing(&links, flow).map_err(|what| format!("flow {i}: {what}"))?;
        if let Some((from, to, rail)) = crossed {
            loads.entry((from, to)).or_insert([0.0; RAILS_MAX])[rail] += flow.bytes;
        }
    }
    let address = |name: &str| {
        let found = hosts.iter().find(|h| h.0 == name);
        found
            .map(|h| h.1)
            .ok_or_else(|| format!("host {name} has no address: add {name}=ADDRESS to LINKWISE_NET_HOSTS"))
    };
    let mut rows = Vec::new();
    for ((from, to), rails) in &loads {
        let (from, to, all) = (address(from)?, address(to)?, rails.iter().sum::<f64>());
        for (rail, bytes) in rails.iter().enumerate().filter(|(_, b)| **b > 0.0) {
            let share = (bytes / all * SHARES).max(1.0) as u32;
            rows.push((Some(from), Some(to), Which::Rail(rail), share));
        }
    }
    match rows.len() {
        0 => Err("no flow of the plan goes over a rail".into()),
        n if n > ROWS_MAX => Err(format!("{n} pairs of hosts and rails; at most {ROWS_MAX}")),
        _ => Ok(Table { rows }),
    }
}

/// The ends of all links, and the flows.
fn read(text: &str) -> Result<(Vec<[String; 2]>, Vec<Flow>), String> {
    let (mut links, mut flows) = (None, None);
    let mut json = Json::new(text);
    json.object(|name, json| match name {
        "links" => {
            let mut all = Vec::new();
            json.list(|json| {
                let mut ends = [const { String::new() }; 2];
                json.object(|name, json| match name {
                    "from" => json.string().map(|s| ends[0] = s),
                    "to" => json.string().map(|s| ends[1] = s),
                    _ => json.skip(),
                })?;
                if all.len() == LINKS_MAX {
                    return json.wrong(&format!("more than {LINKS_MAX} links"));
                }
                all.push(ends);
                Ok(())
            })?;
            links = Some(all);
            Ok(())
        }
        "flows" => {
            let mut all = Vec::new();
            json.list(|json| {
                let mut flow = Flow { hops: Vec::new(), bytes: 0.0 };
                json.object(|name, json| match name {
                    "hops" => json.list(|json| {
                        if flow.hops.len() == HOPS_MAX {
                            return json.wrong(&format!("more than {HOPS_MAX} hops"));
                        }
                        json.whole(LINKS_MAX as u64).map(|h| flow.hops.push(h as usize))
                    }),
                    "bytes" => json.whole(BYTES_MAX).map(|b| flow.bytes = b as f64),
                    _ => json.skip(),
                })?;
                all.push(flow);
                Ok(())
            })?;
            flows = Some(all);
            Ok(())
        }
        _ => json.skip(),
    })?;
    json.end()?;
    let missing = |what: &str| format!("no `{what}`: this is not the output of linkwise route plan --format json");
    Ok((links.ok_or_else(|| missing("links"))?, flows.ok_or_else(|| missing("flows"))?))
}

/// The host of a node: `n0` of `n0:3`. Rails and the network belong to none.
fn host(node: &str) -> Option<&str> {
    node.rsplit_once(':').map(|(host, _)| host)
}

/// The two hosts of a flow and the rail between them; `None` if it stays in its host.
fn crossing<'a>(links: &'a [[String; 2]], flow: &Flow) -> Result<Option<(&'a str, &'a str, usize)>, String> {
    let mut from = None;
    let mut found = None;
    for hop in &flow.hops {
        let [a, b] = links.get(*hop).ok_or_else(|| format!("there is no link {hop}"))?;
        match (host(a), host(b)) {
            (Some(own), None) => {
                let rail = b.strip_prefix("rail").and_then(|n| n.parse::<usize>().ok()).filter(|r| *r < RAILS_MAX);
                let rail = rail.ok_or_else(|| {
                    format!("`{a}` > `{b}` names no rail (rail0 to rail{}), so no NIC has a share of it", RAILS_MAX - 1)
                })?;
                from = Some((own, rail));
            }
            (None, Some(to)) => {
                let Some((own, rail)) = from.take() else { return Err(format!("its path begins at `{a}`")) };
                if found.replace((own, to, rail)).is_some() {
                    return Err(format!("it goes through {own}: a fixed share has no relay on another host"));
                }
            }
            _ => {}
        }
    }
    Ok(found.filter(|(from, to, _)| from != to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINKS: &str = r#"[{"from":"n0:0","to":"rail0","capacity_gb_per_s":45.1,"bytes":1},{"from":"rail0","to":"n1:0"},
        {"from":"n0:0","to":"n0:1"},{"from":"n0:1","to":"rail1"},{"from":"rail1","to":"n1:1"},{"from":"n1:1","to":"n1:0"},
        {"from":"n1:0","to":"rail0"},{"from":"rail0","to":"n2:0"},{"from":"n0:0","to":"network"}]"#;

    fn plan(flows: &str) -> String {
        format!(r#"{{"cluster":"x","gap":0.0,"baselines":{{"direct":null}},"links":{LINKS},"flows":{flows}}}"#)
    }

    fn hosts() -> Vec<(String, IpAddr)> {
        vec![("n0".into(), "10.0.0.1".parse().unwrap()), ("n1".into(), "10.1.0.2".parse().unwrap())]
    }

    #[test]
    fn the_bytes_of_all_gpus_of_two_hosts_are_added_up_by_rail() {
        let flows = r#"[{"src":0,"dst":2,"hops":[0,1],"bytes":300},{"src":0,"dst":2,"hops":[2,3,4,5],"bytes":50},
            {"src":1,"dst":3,"hops":[3,4],"bytes":50},{"src":0,"dst":1,"hops":[2],"bytes":900}]"#;
        let t = table(&plan(flows), &hosts()).unwrap();
        let (own, peer) = (["10.0.0.1".parse().unwrap()], ["10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap()]);
        let share = |rail| t.share(&own, &peer, rail, true);
        assert_eq!([share(0), share(1), share(2)], [3 << 18, 1 << 18, 0]);
        assert_eq!(t.share(&peer, &own, 0, true), 0, "the other direction has no bytes and chooses alone");
    }

    #[test]
    fn what_cannot_be_carried_is_refused_with_its_place() {
        let flow = |hops: &str| plan(&format!("[{{\"hops\":{hops},\"bytes\":1}}]"));
        for (text, what) in [
            ("{}".into(), "no `links`: this is not the output of linkwise route plan --format json"),
            ("{\"links\":[],\"flows\":[}".into(), "line 1, column 22: expected `{`"),
            (plan("[]"), "no flow of the plan goes over a rail"),
            (flow("[99]"), "flow 0: there is no link 99"),
            (flow("[-1]"), "expected a whole number"),
            (flow("[1]"), "its path begins at `rail0`"),
            (flow("[0,1,6,7]"), "it goes through n1: a fixed share has no relay on another host"),
            (flow("[8]"), "`n0:0` > `network` names no rail"),
            (flow("[6,7]"), "host n2 has no address: add n2=ADDRESS to LINKWISE_NET_HOSTS"),
            (flow("[0,1]").replace("}]}", "}]} x"), "text behind the value"),
        ] {
            let e = table(&text, &hosts()).unwrap_err();
            assert!(e.contains(what), "{what}: {e}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_plan_is_a_table_or_an_error(at in 0usize..900, byte: u8) {
            let mut text = plan(r#"[{"src":0,"dst":2,"hops":[0,1],"bytes":300}]"#).into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let _ = table(&String::from_utf8_lossy(&text), &hosts());
        }
    }
}
