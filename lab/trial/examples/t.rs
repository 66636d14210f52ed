use trial::training::*;
fn show(spec: &LoopSpec, scheme: Scheme, runs: u64) {
    let t = std::time::Instant::now();
    let o: Vec<_> = (1..=runs).map(|s| train(spec, scheme, s)).collect();
    let n = |f: &dyn Fn(&LoopOutcome) -> bool| o.iter().filter(|x| f(x)).count();
    let longer: f64 = o.iter().map(|x| x.longer).sum::<f64>() / runs as f64;
    let mut f: Vec<u64> = o.iter().map(|x| x.found_after.unwrap_or(9999)).collect();
    f.sort();
    let worst = o.iter().map(|x| x.longer).fold(-9.0, f64::max);
    let g: Vec<_> = o.iter().filter_map(|x| x.gain).collect();
    let (gs, gt) = g.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0 / g.len() as f64, a.1 + b.1 / g.len() as f64));
    println!(
        "{:24} {:?} found<=200 {:3} end {:3} med {} p95 {} fooled {} longer {:.2}% worst {:.2}% gain {:.3} true {:.3} never {} K {:?} {:?}",
        spec.name,
        scheme,
        n(&|x| x.found_after.is_some_and(|f| f <= 200)),
        n(&|x| x.found_after.is_some()),
        f[f.len() / 2],
        f[f.len() * 95 / 100],
        n(&|x| x.is_fooled),
        100.0 * longer,
        100.0 * worst,
        gs,
        gt,
        n(&|x| x.never.is_some()),
        o[0].calls_found,
        t.elapsed()
    );
}
fn main() {
    let runs: u64 = std::env::args().nth(1).map_or(20, |a| a.parse().unwrap());
    let which = std::env::args().nth(2).unwrap_or_default();
    if which.contains('o') {
        for k in [1, 4, 8, 64] {
            show(&one_slot(&format!("k{k} bycall"), k, 0, &BETTER), Scheme::CallByCall, runs);
        }
    }
    for k in [1, 4, 8, 64] {
        for lag in 0..4 {
            if (k == 64 && lag > 0) || (k > 1 && lag == 2) || which.contains('q') && lag != 1 {
                continue;
            }
            show(&one_slot(&format!("k{k} lag{lag}"), k, lag, &BETTER), Scheme::WholeSteps, runs);
            show(&one_slot(&format!("k{k} lag{lag} none"), k, lag, &NONE_BETTER), Scheme::WholeSteps, runs);
        }
    }
    for k in [1, 4, 8] {
        let s = LoopSpec { is_told: false, ..one_slot(&format!("k{k} untold lag 2"), k, 2, &BETTER) };
        show(&s, Scheme::WholeSteps, runs);
    }
    for (name, noise) in [
        ("modes", StepNoise { mode_share: 0.5, mode_factor: 2.7, cv: 0.15, ..StepNoise::PLAIN }),
        ("modes15", StepNoise { mode_share: 0.15, mode_factor: 2.0, ..StepNoise::PLAIN }),
        ("memory", StepNoise { memory: 0.7, ..StepNoise::PLAIN }),
        ("cv10", StepNoise { cv: 0.1, ..StepNoise::PLAIN }),
        ("drift20", StepNoise { drift_per_1000: 0.2, ..StepNoise::PLAIN }),
    ] {
        show(&LoopSpec { noise, ..one_slot(&format!("{name} better"), 4, 1, &BETTER) }, Scheme::WholeSteps, runs);
        show(&LoopSpec { noise, ..one_slot(&format!("{name} none"), 4, 1, &[1.0; 5]) }, Scheme::WholeSteps, runs);
    }
}
