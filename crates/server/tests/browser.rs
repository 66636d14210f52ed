//! The pages in a real browser: Chromium looks at every page in two widths, light and dark, and `browser/check.mjs` judges them.
//!
//! Needs node, npm and Chromium; where one is missing, or the packages cannot be fetched, each test prints a SKIP line.
//! `LINKWISE_SCREENSHOTS=FOLDER` keeps a picture of every page.

mod common;

use common::Server;
use engine::{Engine, FitRequest};
use serde_json::{Value, json};
use server::auth::Scope;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;
use store::{State, Store};
use topology::{Cluster, Collective, Tier};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser");

/// The browser: `LINKWISE_CHROMIUM`, else the first of the usual names.
fn chromium() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LINKWISE_CHROMIUM") {
        return Some(named.into()).filter(|p: &PathBuf| p.is_file());
    }
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut all = std::env::split_paths(&folders).flat_map(|f| names.map(|n| f.join(n)));
    all.find(|p| p.is_file())
}

/// Chromium and the packages; none, with a SKIP line, where something is missing.
fn tools(test: &str) -> Option<(PathBuf, PathBuf)> {
    static FOUND: OnceLock<Result<(PathBuf, PathBuf), String>> = OnceLock::new();
    let find = || -> Result<_, String> {
        let chromium = chromium().ok_or("no Chromium")?;
        Ok((chromium, common::npm::modules(Path::new(FOLDER), "axe-core")?))
    };
    match FOUND.get_or_init(find) {
        Ok(found) => Some(found.clone()),
        Err(why) => {
            eprintln!("SKIP {test}: {why}");
            None
        }
    }
}

/// Runs the check with a plan; every finding fails the test. Returns what it measured; none where tools are missing.
fn check(test: &str, s: &Server, mut plan: Value) -> Option<String> {
    let (chromium, modules) = tools(test)?;
    let shots = std::env::var_os("LINKWISE_SCREENSHOTS").map(PathBuf::from).unwrap_or_default();
    plan["chromium"] = json!(chromium);
    plan["modules"] = json!(modules);
    plan["shots"] = json!(shots);
    plan["base"] = json!(format!("http://localhost:{}", s.at.port()));
    // One browser at a time: four on two cores only wait for each other.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = Command::new("node").arg(Path::new(FOLDER).join("check.mjs")).arg(plan.to_string()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{test}:\n{out}{err}");
    Some(err.into_owned())
}

/// Milliseconds until Chromium has drawn a page, and the bytes of the page.
fn timed(test: &str, s: &Server, address: &str) -> Option<(f64, f64)> {
    let said = check(test, s, json!({"name": "timed", "timed": address}))?;
    let line = said.lines().find_map(|l| l.strip_prefix("timed "))?;
    let (ms, bytes) = line.split_once(' ')?;
    Some((ms.parse().ok()?, bytes.parse().ok()?))
}

#[test]
fn every_page_is_clean_in_a_browser_at_two_widths_light_and_dark() {
    let s = Server::new(4);
    s.post("/v1/allocations", &json!({"gpus": 12, "commit": "train-7", "lease_s": 3600}));
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "tune-8"}));
    s.post("/v1/hosts/drain", &json!({"gpus": ["n3:7"], "reason": "NIC 4 flaps"}));
    let reading = |gb: f64| json!({"job": "train-7", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": gb}]});
    for gb in [320.0, 315.5, 322.0] {
        assert_eq!(s.post("/v1/readings", &reading(gb)).status, 201);
    }
    let visit = [
        "/",
        "/what-if",
        "/what-if?gpus=10&size=64MiB&hosts_max=3&uneven=1",
        "/what-if?gpus=99",
        "/suspects",
        "/history",
        "/jobs/train-7",
        "/jobs/none",
        "/hosts?host=n2",
        "/login",
    ];
    check(
        "every_page_is_clean_in_a_browser_at_two_widths_light_and_dark",
        &s,
        json!({"name": "small", "visit": visit, "walk": true}),
    );
}

#[test]
fn suspects_and_the_next_reading_are_clean_in_a_browser() {
    let s = Server::new(6);
    for a in 0..6 {
        for b in 0..a {
            let gb = if a == 2 || b == 2 { 165.0 } else { 330.0 } + f64::from(a + 3 * b) / 10.0;
            let reading = json!({ "job": format!("pair-{a}-{b}"), "gpus": [format!("n{a}"), format!("n{b}")],
                "readings": [{"collective": "all_reduce", "busbw_gb_per_s": gb}]});
            assert_eq!(s.post("/v1/readings", &reading).status, 201);
        }
    }
    let found = s.post("/v1/diagnose", &json!({})).json();
    assert_eq!(found["defects"][0]["candidates"][0]["host"], "n2", "{found}");
    hold(&s, "on-the-slow-host", &["n2".into(), "n3".into()]);
    let page = s.get("/suspects").text;
    assert!(page.contains("Take this reading next") && page.contains("n2"), "{page}");
    assert!(s.get("/").text.contains("suspected: "), "the map marks the host");
    let plan =
        json!({"name": "suspects", "brief": true, "visit": ["/suspects", "/", "/jobs/on-the-slow-host", "/history"]});
    check("suspects_and_the_next_reading_are_clean_in_a_browser", &s, plan);
}

#[test]
fn a_browser_signs_in_and_out_and_no_other_site_can() {
    let s = Server::new(2);
    let token = s.token("ann", Scope::Read, None);
    while s.get("/v1/cluster").status != 401 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    check("a_browser_signs_in_and_out_and_no_other_site_can", &s, json!({"name": "session", "token": token}));
}

#[test]
fn a_browser_signs_in_with_an_identity_provider() {
    let name = "a_browser_signs_in_with_an_identity_provider";
    let mut provider = match common::provider::Provider::start() {
        Ok(p) => p,
        Err(why) => return common::skip(name, &why),
    };
    let mut oidc = server::Oidc::new(&provider.issuer, "linkwise");
    oidc.client_secret = Some("its/secret+&".into());
    oidc.scope = Some(Scope::Read);
    oidc.refetch = std::time::Duration::from_millis(100);
    let s = Server::with(2, |c| server::Config { oidc: Some(oidc), ..c });
    provider.tell(&format!("redirect http://localhost:{}/login/callback", s.at.port()));
    let start = Instant::now();
    while s.get("/login/oidc").status != 303 {
        assert!(start.elapsed().as_secs() < 60, "the provider does not answer");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    check(name, &s, json!({"name": "issuer", "issuer": provider.issuer}));
}

/// A server for any cluster, with a model that needs no readings.
fn of(cluster: Cluster) -> Server {
    cluster.check().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = State::init(&folder.path().join("s.db"), &cluster, 0.0).unwrap();
    let store = Store::create(&folder.path().join("r.db"), &cluster).unwrap();
    let engine = Engine::builder(cluster).state(state).store(store).build().unwrap();
    engine.fit(&FitRequest { kind: Some("nccl".into()), collective: Some(Collective::AllReduce), seed: 0 }).unwrap();
    Server::of(folder, engine, |c| c)
}

/// Allocates named GPUs.
fn hold(s: &Server, job: &str, gpus: &[String]) {
    let body = json!({ "job": job, "gpus": gpus}).to_string();
    let at = format!("/v1/allocations/{}", job.replace('/', "%2F").replace('+', "%2B"));
    let said = s.send("PUT", &at, &[("content-type", "application/json")], body.as_bytes());
    assert_eq!(said.status, 200, "{said:?}");
}

#[test]
fn hostile_names_and_reasons_are_text_and_break_no_page() {
    let mut cluster = common::cluster(6);
    let evil = "<script>alert`1`</script><img/src=x/onerror=alert`2`>";
    let names = [evil.to_owned(), "h".repeat(253), "узел-ß-\u{202e}gnp.exe".into(), "&lt;b&gt;".into(), "😀😀".into()];
    for (host, name) in cluster.hosts.iter_mut().zip(names) {
        host.name = name;
    }
    cluster.network.tiers = vec![Tier::regular(format!("{evil}{}", "leaf".repeat(20)), 2, 2.0)];
    let s = of(cluster.clone());
    let name = |h: usize| cluster.hosts[h].name.clone();
    let ids = ["x/../../login".to_owned(), "a+b=c@d:e".to_owned(), "j".repeat(128)];
    hold(&s, &ids[0], &[name(0)]);
    hold(&s, &ids[1], &[format!("{}:[0-3]", name(1)), format!("{}:0", name(2))]);
    hold(&s, &ids[2], &[format!("{}:5", name(4))]);
    let placed = s.post("/v1/allocations", &json!({"gpus": 9, "commit": "p", "constraints": {"uneven": true}}));
    assert_eq!(placed.status, 201, "{placed:?}");
    let reason = format!("{evil} \u{1F525} {}", "long".repeat(150));
    for (h, why) in [(3, reason.as_str()), (5, "\u{202e}drawkcab"), (1, "")] {
        let drained = s.post("/v1/hosts/drain", &json!({"gpus": [name(h)], "reason": why}));
        assert_eq!(drained.status, 200, "{drained:?}");
    }
    for path in ["/", "/suspects", "/jobs/p"] {
        let text = s.get(path).text;
        assert!(!text.contains('\u{202e}') && text.contains('\u{fffd}'), "{path} turns text round");
    }
    let visit = [
        "/".to_owned(),
        "/suspects".into(),
        "/history".into(),
        "/jobs/x%2F..%2F..%2Flogin".into(),
        format!("/jobs/{}", ids[2]),
        "/jobs/p".into(),
        "/jobs/%3Cscript%3Ealert(1)%3C%2Fscript%3E".into(),
        "/find?q=%3Cscript%3Ealert(1)%3C%2Fscript%3E".into(),
        format!("/hosts?host={}", "h".repeat(253)),
        "/what-if?gpus=3&exclude=%3Cscript%3E%22%27".into(),
        "/what-if?gpus=%3Cscript%3E&size=%22%3E%3Cb%3E".into(),
        "/what-if?gpus=2".into(),
    ];
    check(
        "hostile_names_and_reasons_are_text_and_break_no_page",
        &s,
        json!({"name": "hostile", "visit": visit, "brief": true}),
    );
    // Nothing is left to hold.
    for id in ids.iter().map(String::as_str).chain(["p"]) {
        s.send("DELETE", &format!("/v1/allocations/{}", id.replace('/', "%2F").replace('+', "%2B")), &[], b"");
    }
    let all: Vec<String> = (0..6).map(name).collect();
    assert_eq!(s.post("/v1/hosts/drain", &json!({"gpus": all, "reason": "move"})).status, 200);
    let drained = json!({"name": "drained", "brief": true, "visit": ["/", "/what-if?gpus=1", "/suspects", "/history"]});
    check("hostile_names_and_reasons_are_text_and_break_no_page", &s, drained);
}

#[test]
fn a_cluster_of_10240_gpus_and_four_tiers_is_clean_in_a_browser() {
    let mut cluster = common::cluster(1280);
    let tier = |name: &str, hosts, ratio| Tier::regular(name, hosts, ratio);
    cluster.network.tiers =
        vec![tier("leaf", 16, 1.0), tier("spine", 128, 2.0), tier("pod", 640, 2.0), tier("core", 1280, 1.0)];
    let s = of(cluster);
    for j in 0..120 {
        let hosts = j * 10;
        let gpus = vec![format!("n[{hosts}-{}]", hosts + j % 9), format!("n{}:[0-{}]", hosts + 9, j % 7)];
        hold(&s, &format!("job-{j}"), &gpus);
    }
    s.post("/v1/hosts/drain", &json!({"gpus": ["n[700-715]"], "reason": "leaf 43 gets new firmware"}));
    s.post("/v1/hosts/drain", &json!({"gpus": ["n9:7", "n1279:0"], "reason": "Xid 79"}));
    let map = s.get("/");
    let start = Instant::now();
    for _ in 0..5 {
        assert_eq!(s.get("/").status, 200);
    }
    let took = start.elapsed().as_secs_f64() / 5.0;
    eprintln!("the map of 1,280 hosts: {} kB, {:.0} ms", map.text.len() / 1000, 1e3 * took);
    assert!(map.text.len() < 400_000, "the map of 1,280 hosts has {} bytes", map.text.len());
    let visit =
        ["/", "/hosts?tier=0&switch=43", "/hosts?tier=3&switch=0&from=1152", "/jobs/job-8", "/suspects", "/history"];
    let plan = json!({"name": "large", "visit": visit, "brief": true});
    let name = "a_cluster_of_10240_gpus_and_four_tiers_is_clean_in_a_browser";
    check(name, &s, plan);
    // 48 hosts are the largest cluster whose map shows every GPU as a link.
    let small = of(common::cluster(48));
    for j in 0..12 {
        hold(&small, &format!("job-{j}"), &[format!("n[{}-{}]", 4 * j, 4 * j + 2)]);
    }
    if let (Some(large), Some(small)) = (timed(name, &s, "/"), timed(name, &small, "/")) {
        let (time, bytes) = (large.0 / small.0, large.1 / small.1);
        println!(
            "the map of 10,240 GPUs: {:.0} ms and {:.0} kB in Chromium, {time:.1} and {bytes:.1} times those of 384 GPUs",
            large.0,
            large.1 / 1e3
        );
        assert!(
            bytes < 4.0 && time < 6.0,
            "27 times as many GPUs: {bytes:.1} times the bytes, {time:.1} times the time"
        );
    }
}
