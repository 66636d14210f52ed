//! A plan in the form of `linkwise route plan --format json` under the real NCCL library: two hosts in network namespaces, whose rails get the plan's
//! shares. Needs root.

mod common;

use common::{run, spec};
use nccl_bench::bytes::{BytesCall, HostPlace, Traffic};
use netns::NetBox;

#[test]
fn every_rail_carries_its_share_of_a_plan() {
    let name = "every_rail_carries_its_share_of_a_plan";
    let Some(netbox) = netns::or_skip(name, NetBox::rails(2, 3, 400)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    // Three parts over rail 0, one over rail 1, none over rail 2; in both directions.
    let links: Vec<_> = [("n0:0", "n1:0"), ("n1:0", "n0:0")]
        .iter()
        .flat_map(|(a, b)| [0, 1].map(|r| [(*a, format!("rail{r}")), (*b, format!("rail{r}"))]))
        .flat_map(|[(a, out), (b, into)]| {
            [serde_json::json!({"from": a, "to": out}), serde_json::json!({"from": into, "to": b})]
        })
        .collect();
    let flow = |first: usize, bytes: u64| serde_json::json!({"hops": [first, first + 1], "bytes": bytes});
    let flows = [flow(0, 3_000_000), flow(2, 1_000_000), flow(4, 3_000_000), flow(6, 1_000_000)];
    std::fs::write(&plan, serde_json::json!({"links": links, "flows": flows}).to_string()).unwrap();

    let rails: Vec<&str> = (0..3).map(|r| netbox.interface(0, r)).collect();
    let hosts = format!("n0={},n1={}", netbox.address(0, 2), netbox.address(1, 0));
    let settings = [
        ("LINKWISE_NET", "tcp"),
        ("LINKWISE_NET_RAILS", &rails.join(",")),
        ("LINKWISE_NET_PLAN", plan.to_str().unwrap()),
        ("LINKWISE_NET_HOSTS", &hosts),
    ];
    let mut s = spec("2.28.9", 2, 1, &settings);
    s.interfaces = rails[0].into();
    s.places = (0..2)
        .map(|h| HostPlace {
            prefix: ["ip", "netns", "exec", netbox.namespace(h)].map(str::to_owned).to_vec(),
            ..HostPlace::default()
        })
        .collect();
    let traffic = Traffic::SendRecv(vec![vec![0, 8_000_000], vec![8_000_000, 0]]);
    s.calls.push(BytesCall { repetitions: 3, ..BytesCall::new(traffic) });
    let Some(report) = run(name, &s) else { return };
    assert_eq!(report.wrong_bytes(), 0);
    let line = report.log.lines().rfind(|l| l.contains("bytes by rail ")).unwrap();
    let words = line.split_once("bytes by rail ").unwrap().1.split_once(',').unwrap().0;
    let sent: Vec<f64> = words.split_whitespace().map(|w| w.parse().unwrap()).collect();
    println!("bytes by rail {sent:?}");
    let part = sent[0] / (sent[0] + sent[1]);
    assert!((0.72..=0.78).contains(&part) && sent[2] == 0.0, "{sent:?}");
}
