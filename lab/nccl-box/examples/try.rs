//! Try.
use nccl_box::tuning::{self, Chooser, Loop};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = |i: usize| a[i].parse::<u64>().unwrap();
    let l = Loop {
        hosts: n(1) as usize,
        gpus: n(2) as u8,
        size_bytes: n(3),
        step_calls: n(4) as u32,
        steps: n(5) as u32,
        release: "2.28.9".into(),
    };
    let netbox = netns::NetBox::rails(l.hosts, 1, n(6) as u32).unwrap();
    let bench = nccl_bench::Bench::new().unwrap();
    let plugin = std::path::PathBuf::from("/work/main/target/debug/liblinkwise_nccl.so");
    let c = if a[7] == "nccl" { Chooser::Nccl } else { Chooser::Adaptive(1000) };
    let r = tuning::run(&bench, &netbox, &l, c, &plugin, || {}).unwrap();
    println!(
        "last {:?} differing {} waits {} wrong {} calls {}",
        r.last_arm(),
        r.differing,
        r.waits,
        r.wrong_bytes,
        r.arms.len()
    );
    let mut runs: Vec<(String, Vec<f64>)> = vec![];
    for (i, s) in r.step_s.iter().enumerate() {
        let x = r.arms.get(i * l.step_calls as usize).cloned().unwrap_or_default();
        match runs.last_mut() {
            Some((y, t)) if *y == x => t.push(s * 1e3),
            _ => runs.push((x, vec![s * 1e3])),
        }
    }
    for (x, t) in runs {
        println!(
            "{x} {} median {:.1} max {:.1} ms",
            t.len(),
            stats::upper_median(&t),
            t.iter().fold(0.0, |a: f64, b| a.max(*b))
        );
    }
}
