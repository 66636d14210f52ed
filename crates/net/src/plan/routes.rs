//! Fixed shares from a plan of `linkwise route plan --format json`. Pure.
//!
//! Such a plan gives the bytes of every pair of GPUs on every path. A connection of the plugin belongs to two hosts, not to two GPUs, so the bytes of all
//! pairs of GPUs of two hosts are added up by rail: the load of every NIC is that of the plan. What the plan does inside a host is not carried out.

use super::json::Json;
use super::{Table, Which};
use crate::limits::RAILS_MAX;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// GPUs of a plan: the planner's own limit (`route::demand::RANKS_MAX`).
const RANKS_MAX: usize = 1024;
/// Bytes of text for a flow, and the largest text of a plan in which every GPU sends to every other one.
const FLOW_BYTES: usize = 128;
/// See [`FLOW_BYTES`].
pub const TEXT_BYTES_MAX: u64 = (RANKS_MAX * RANKS_MAX * FLOW_BYTES) as u64;
/// Shares of a plan, one per pair of hosts and rail: hosts with as many rails as GPUs have fewer than pairs of GPUs.
const SHARES_MAX: usize = RANKS_MAX * RANKS_MAX;
/// Links of a plan, and links of a path.
const LINKS_MAX: usize = 1 << 16;
const HOPS_MAX: usize = 32;
/// Bytes of a flow: the planner's own limit.
const BYTES_MAX: u64 = 1 << 52;
/// The shares of two hosts' rails add up to about this.
const SHARES: f64 = (1 << 20) as f64;

/// From, to, rail: bytes.
type Loads<'a> = BTreeMap<(&'a str, &'a str, usize), f64>;

/// True if the text can only be a plan, not a table of rows.
pub fn is_one(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The shares of a plan. `hosts`: names of hosts as in the plan, each with the address of one of its rails. Memory is bounded by the links and
/// [`SHARES_MAX`]: flows are added up as they are read.
///
/// # Errors
/// The text is no plan, a path cannot be carried, or a host has no address.
pub fn table(text: &str, hosts: &[(String, IpAddr)]) -> Result<Table, String> {
    let links = links(text)?;
    let loads = loads(text, &links)?;
    let hosts: HashMap<&str, IpAddr> = hosts.iter().map(|(name, ip)| (name.as_str(), *ip)).collect();
    let address = |name: &str| {
        let found = hosts.get(name).copied();
        found.ok_or_else(|| format!("host {name} has no address: add {name}=ADDRESS to LINKWISE_NET_HOSTS"))
    };
    let mut sums: HashMap<(&str, &str), f64> = HashMap::new();
    loads.iter().for_each(|((from, to, _), bytes)| *sums.entry((*from, *to)).or_default() += bytes);
    let mut rows = Vec::new();
    for ((from, to, rail), bytes) in loads.iter().filter(|(_, b)| **b > 0.0) {
        let all = sums.get(&(*from, *to)).copied().unwrap_or(*bytes);
        let share = (bytes / all * SHARES).max(1.0) as u32;
        rows.push((Some(address(from)?), Some(address(to)?), Which::Rail(*rail), share));
    }
    match rows.is_empty() {
        true => Err("no flow of the plan goes over a rail".into()),
        false => Ok(Table { rows }),
    }
}

fn missing<T>(what: &str) -> Result<T, String> {
    Err(format!("no `{what}`: this is not the output of linkwise route plan --format json"))
}

/// The ends of all links.
fn links(text: &str) -> Result<Vec<[String; 2]>, String> {
    let mut links = None;
    let mut json = Json::new(text);
    json.object(|name, json| match name {
        "links" => {
            let all = links.insert(Vec::new());
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
            })
        }
        _ => json.skip(),
    })?;
    json.end()?;
    links.map_or_else(|| missing("links"), Ok)
}

/// The bytes of all flows.
fn loads<'a>(text: &str, links: &'a [[String; 2]]) -> Result<Loads<'a>, String> {
    let (mut loads, mut flows) = (Loads::new(), None);
    let mut json = Json::new(text);
    json.object(|name, json| match name {
        "flows" => {
            let number = flows.insert(0);
            json.list(|json| {
                let (mut hops, mut bytes) = (Vec::new(), 0.0);
                json.object(|name, json| match name {
                    "hops" => json.list(|json| {
                        if hops.len() == HOPS_MAX {
                            return json.wrong(&format!("more than {HOPS_MAX} hops"));
                        }
                        json.whole(LINKS_MAX as u64).map(|h| hops.push(h as usize))
                    }),
                    "bytes" => json.whole(BYTES_MAX).map(|b| bytes = b as f64),
                    _ => json.skip(),
                })?;
                if let Some(key) = crossing(links, &hops).map_err(|what| format!("flow {number}: {what}"))? {
                    if loads.len() == SHARES_MAX && !loads.contains_key(&key) {
                        return Err(format!("more than {SHARES_MAX} pairs of hosts and rails"));
                    }
                    *loads.entry(key).or_default() += bytes;
                }
                *number += 1;
                Ok(())
            })
        }
        _ => json.skip(),
    })?;
    flows.map_or_else(|| missing("flows"), |_| Ok(loads))
}

/// The host of a node: `n0` of `n0:3`. Rails and the network belong to none.
fn host(node: &str) -> Option<&str> {
    node.rsplit_once(':').map(|(host, _)| host)
}

/// The two hosts of a path and the rail between them; `None` if it stays in its host.
fn crossing<'a>(links: &'a [[String; 2]], hops: &[usize]) -> Result<Option<(&'a str, &'a str, usize)>, String> {
    let mut from = None;
    let mut found = None;
    let mut before: Option<&str> = None;
    for hop in hops {
        let [a, b] = links.get(*hop).ok_or_else(|| format!("there is no link {hop}"))?;
        if let Some(end) = before.replace(b).filter(|end| end != a) {
            return Err(format!("its path is at `{end}` and goes on at `{a}`"));
        }
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
    if let (Some(_), Some(end)) = (from, before) {
        return Err(format!("its path ends at `{end}`, which is no GPU"));
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
            ("{\"links\":[],\"flows\":[}".into(), "line 1, column 22: expected a value"),
            (plan("[]"), "no flow of the plan goes over a rail"),
            (flow("[99]"), "flow 0: there is no link 99"),
            (flow("[-1]"), "expected a whole number"),
            (flow("[1]"), "its path begins at `rail0`"),
            (flow("[0,1,6,7]"), "it goes through n1: a fixed share has no relay on another host"),
            (flow("[0]"), "flow 0: its path ends at `rail0`, which is no GPU"),
            (flow("[0,7,6]"), "flow 0: its path is at `n2:0` and goes on at `n1:0`"),
            (flow("[2,0]"), "flow 0: its path is at `n0:1` and goes on at `n0:0`"),
            (flow("[0,1],\"hops\":[2]"), "a second `hops` in one object"),
            (plan("[]").replace("\"gap\"", "\"flows\":[],\"gap\""), "a second `flows` in one object"),
            (flow("[8]"), "`n0:0` > `network` names no rail"),
            (flow("[6,7]"), "host n2 has no address: add n2=ADDRESS to LINKWISE_NET_HOSTS"),
            (flow("[0,1]").replace("}]}", "}]} x"), "text behind the value"),
        ] {
            let e = table(&text, &hosts()).unwrap_err();
            assert!(e.contains(what), "{what}: {e}");
        }
    }

    #[test]
    fn a_plan_of_64_hosts_in_which_every_gpu_sends_to_every_other_one_fits() {
        const HOSTS: usize = 64;
        const GPUS: usize = 8;
        let gpu = |i: usize| format!("n{:02}:{}", i / GPUS, i % GPUS);
        let link = |from: &str, to: &str| {
            format!(
                r#"{{"from":"{from}","to":"{to}","capacity_gb_per_s":45.123456789,"bytes_direct":1234567890,"bytes":1234567890}}"#
            )
        };
        // Link 2i leads from GPU i to its rail, link 2i + 1 back.
        let links = (0..HOSTS * GPUS).flat_map(|i| {
            let rail = format!("rail{}", i % GPUS);
            [link(&gpu(i), &rail), link(&rail, &gpu(i))]
        });
        let flow = |a: usize, b: usize| {
            // Over the sender's rail, to the GPU with that rail; copies inside hosts are left out.
            let into = b / GPUS * GPUS + a % GPUS;
            format!(r#"{{"src":{a},"dst":{b},"hops":[{},{}],"bytes":1234567890}}"#, 2 * a, 2 * into + 1)
        };
        let pairs = (0..HOSTS * GPUS).flat_map(|a| (0..HOSTS * GPUS).map(move |b| (a, b)));
        let flows: Vec<String> = pairs.filter(|(a, b)| a / GPUS != b / GPUS).map(|(a, b)| flow(a, b)).collect();
        let links: Vec<String> = links.collect();
        let text = format!(r#"{{"links":[{}],"flows":[{}]}}"#, links.join(","), flows.join(","));
        assert!(text.len() as u64 * 4 < TEXT_BYTES_MAX, "of 512 GPUs: {}", text.len());
        let addresses: Vec<(String, IpAddr)> =
            (0..HOSTS).map(|h| (format!("n{h:02}"), [10, 0, h as u8, 1].into())).collect();
        let t = table(&text, &addresses).unwrap();
        assert_eq!(t.rows.len(), HOSTS * (HOSTS - 1) * GPUS);
        let own = t.of(&[addresses[3].1]);
        assert_eq!(own.rows.len(), (HOSTS - 1) * GPUS);
        assert_eq!(own.share(&[addresses[3].1], &[addresses[60].1], 5, false), 1 << 17);
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
