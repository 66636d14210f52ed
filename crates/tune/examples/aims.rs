//! Scratch trial of the adaptive policy against the aims.
use tune::adaptive::{Adaptive, Options};
use tune::{Arm, Context, Phase, Policy, Sample};
struct R(u64);
impl R {
    fn u(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E3779B97F4A7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn n(&mut self) -> f64 {
        (-2.0 * (1.0 - self.u()).ln()).sqrt() * (std::f64::consts::TAU * self.u()).cos()
    }
}
#[derive(Clone, Copy)]
enum Noise {
    Cv(f64),
    Two(f64),
    Log,
}
fn arms(n: usize) -> Vec<Arm> {
    let mut v = vec![Arm::AUTO];
    for a in tune::Algorithm::ALL {
        for p in tune::Protocol::ALL {
            v.push(Arm::new(*a, *p));
        }
    }
    v.truncate(n);
    v
}
struct Out {
    first_leave: Option<u64>,
    use_at: Vec<usize>,
    cost: f64,
    calls_explore: Vec<u64>,
    looks: Vec<u64>,
    ever_left: bool,
    settled_at: Option<u64>,
}
fn run(seed: u64, calls: u64, noise: Noise, raw: &[f64], time: &dyn Fn(usize, u64) -> f64, n: usize) -> Out {
    let mut r = R(seed.wrapping_mul(7919).wrapping_add(13));
    let mut p = Adaptive::new(&arms(n), Options::default()).unwrap();
    let mut o = Out {
        first_leave: None,
        use_at: vec![],
        cost: 0.0,
        calls_explore: vec![0; n],
        looks: vec![0; n],
        ever_left: false,
        settled_at: None,
    };
    for c in 0..calls {
        let d = p.decide(Context::default());
        if d.phase == Phase::Exploit && o.settled_at.is_none() {
            o.settled_at = Some(c);
        }
        let base = time(d.arm, c);
        let sd = |cv: f64| (1.0 + cv * cv).ln().sqrt();
        let t = base
            * match noise {
                Noise::Cv(cv) => (sd(cv) * r.n()).exp(),
                Noise::Two(cv) => (if r.u() < 0.5 { 110.0 } else { 295.0 }) / 202.5 * (sd(cv) * r.n()).exp(),
                Noise::Log => raw[(r.u() * raw.len() as f64) as usize] / 223.0,
            };
        if d.phase == Phase::Explore {
            o.calls_explore[d.arm] += 1;
            if c > 400 {
                o.looks[d.arm] += 1;
            }
        }
        let best = (0..n).map(|a| time(a, c)).fold(f64::MAX, f64::min);
        if c >= 400 {
            o.cost += (base - best) / best;
        }
        p.learn(Sample { call: c, arm: d.arm, time_us: Some(t * 1000.0), channels: None });
        o.use_at.push(p.in_use());
        if p.in_use() != 0 {
            if o.first_leave.is_none() && std::env::var("SAY").is_ok() {
                println!("call {c}: {}", p.because());
            }
            o.ever_left = true;
            if o.first_leave.is_none() {
                o.first_leave = Some(c);
            }
        }
    }
    o
}
fn main() {
    let runs: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1000);
    let raw: Vec<f64> = std::fs::read_to_string("/work/shared/data/bandit/rewards_2x4_64MB.csv")
        .unwrap()
        .lines()
        .filter(|l| l.contains("exploit"))
        .map(|l| l.rsplit(',').next().unwrap().parse().unwrap())
        .collect();
    let pct = |k: usize| 100.0 * k as f64 / runs as f64;
    let part = std::env::args().nth(2).unwrap_or_default();
    if part.is_empty() || part == "right" {
        for (label, ratio) in [("1-ratio", false), ("ratio-1", true)] {
            for (g, at) in [(3.0, 20usize), (4.0, 20), (2.0, 40), (2.5, 40)] {
                print!("four arms gap {label} {g} CV: right at {at}:");
                for cv in [0.03, 0.05, 0.1, 0.2] {
                    let f = if ratio { 1.0 / (1.0 + g * cv) } else { 1.0 - g * cv };
                    for spread in [1.0, 1.1] {
                        let t = move |a: usize, _: u64| {
                            if a == 2 {
                                f
                            } else if a == 0 {
                                1.0
                            } else {
                                spread
                            }
                        };
                        let ok = (0..runs)
                            .filter(|&s| run(s, at as u64, Noise::Cv(cv), &raw, &t, 4).use_at[at - 1] == 2)
                            .count();
                        print!("  {:.0}%/{spread}: {:.1}", cv * 100.0, pct(ok));
                    }
                }
                println!();
            }
        }
    }
    if part.is_empty() || part == "null" {
        if std::env::var("LOG").is_err() {
            for cv in [0.03, 0.1, 0.2] {
                for n in [2, 4, 8, 12] {
                    let left = (0..10000u64)
                        .filter(|&s| run(s + 77777, 12 * n as u64, Noise::Cv(cv), &raw, &|_, _| 1.0, n).ever_left)
                        .count();
                    print!("null early {cv} {n}: {:.2}  ", left as f64 / 100.0);
                }
            }
        }
        println!();
        print!("null, left AUTO ever in 2000 calls:");
        let t0 = std::time::Instant::now();
        for noise in if std::env::var("LOG").is_ok() {
            vec![Noise::Log]
        } else {
            vec![Noise::Cv(0.03), Noise::Cv(0.1), Noise::Cv(0.2), Noise::Two(0.05), Noise::Two(0.15), Noise::Log]
        } {
            for n in [4, 12] {
                let (mut left, mut left40, mut ex) = (0, 0, 0);
                for s in 0..runs {
                    let o = run(s, 2000, noise, &raw, &|_, _| 1.0, n);
                    left += usize::from(o.ever_left);
                    left40 += usize::from(o.first_leave.is_some_and(|c| c < 60));
                    ex += o.calls_explore.iter().sum::<u64>();
                }
                print!("  {n}: {:.2} ({:.2} by 60; {} explore)", pct(left), pct(left40), ex / runs);
                eprintln!("{:?}", t0.elapsed());
            }
        }
        println!();
    }
    if part.is_empty() || part == "modes" {
        for (name, noise) in [
            ("cv5", Noise::Cv(0.05)),
            ("cv10", Noise::Cv(0.1)),
            ("cv20", Noise::Cv(0.2)),
            ("two5", Noise::Two(0.05)),
            ("two15", Noise::Two(0.15)),
            ("log", Noise::Log),
        ] {
            let t = |a: usize, _: u64| if a == 2 { 0.7 } else { 1.0 };
            let (mut at, mut cost, mut lk) = ([0usize; 5], 0.0, 0);
            for s in 0..runs {
                let o = run(s, 2000, noise, &raw, &t, 4);
                for (i, c) in [50, 100, 150, 200, 1999].into_iter().enumerate() {
                    at[i] += usize::from(o.use_at[c] == 2);
                }
                cost += o.cost / 1600.0;
                lk += o.looks.iter().sum::<u64>();
            }
            eprintln!("{lk}");
            println!(
                "30 % better arm, {name}: right at 50/100/150/200/2000: {:?}; cost of looking after 400: {:.2} %",
                at.map(pct),
                100.0 * cost / runs as f64
            );
        }
    }
    // twelve arms
    if part.is_empty() || part == "twelve" {
        for cv in [0.03, 0.05, 0.1] {
            let t = move |a: usize, _: u64| [1.0, 1.1, 1.3, 0.8, 1.0, 1.5, 1.7, 2.0, 2.5, 3.0, 1.2, 1.0][a];
            let (mut ok, mut ex, mut okend, mut cost) = (0, 0, 0, 0.0);
            let mut looks = 0;
            for s in 0..runs {
                let o = run(s, 2200, Noise::Cv(cv), &raw, &t, 12);
                let c = o.first_leave.unwrap_or(999);
                ex += c;
                ok += usize::from(o.use_at[60] == 3);
                okend += usize::from(o.use_at[2199] == 3);
                cost += o.cost / 1800.0;
                looks = looks.max((6..10).map(|a| o.looks[a]).max().unwrap());
            }
            println!(
                "twelve arms cv {cv}: calls until left {:.1}; right at 60 {:.1} end {:.1}; cost {:.2} %; most looks at an arm over 1.5x in 2000: {looks}",
                ex as f64 / runs as f64,
                pct(ok),
                pct(okend),
                100.0 * cost / runs as f64
            );
        }
    }
    if part.is_empty() || part == "change" {
        for (name, noise) in [
            ("cv3", Noise::Cv(0.03)),
            ("cv5", Noise::Cv(0.05)),
            ("cv10", Noise::Cv(0.1)),
            ("cv20", Noise::Cv(0.2)),
            ("two5", Noise::Two(0.05)),
            ("two15", Noise::Two(0.15)),
            ("log", Noise::Log),
        ] {
            for (what, before, after) in [
                ("used .7 -> .91, another .8", [1.0, 0.8, 0.7, 1.2], [1.0, 0.8, 0.91, 1.2]),
                ("used .8 -> 1.04", [1.0, 1.1, 0.80, 1.2], [1.0, 1.1, 1.04, 1.2]),
                ("used .85 -> 1.1", [1.0, 1.0, 0.85, 1.0], [1.0, 1.0, 1.1, 1.0]),
                ("AUTO 1 -> 1.3", [1.0, 1.05, 1.2, 1.2], [1.3, 1.05, 1.2, 1.2]),
                ("unused 1.1 -> .77", [1.0, 1.05, 1.1, 1.2], [1.0, 1.05, 0.77, 1.2]),
                ("unused 1.4 -> .7", [1.0, 1.05, 1.4, 1.2], [1.0, 1.05, 0.7, 1.2]),
            ] {
                let best = (0..4usize).min_by(|&a, &b| f64::total_cmp(&after[a], &after[b])).unwrap();
                let t = |a: usize, c: u64| if c < 1000 { before[a] } else { after[a] };
                let mut within: Vec<u64> = (0..runs / 2)
                    .map(|s| {
                        let o = run(s, 3000, noise, &raw, &t, 4);
                        (1000..3000)
                            .find(|&c| after[o.use_at[c]] <= after[best] * 1.001)
                            .map_or(9999, |c| c as u64 - 1000)
                    })
                    .collect();
                within.sort();
                let q = |p: f64| within[((within.len() - 1) as f64 * p) as usize];
                let share = |l: u64| 100.0 * within.iter().filter(|w| **w <= l).count() as f64 / within.len() as f64;
                println!(
                    " {name} {what}: {:.0} % in 60, {:.0} in 300, {:.0} in 2000 p50 {} p90 {} p95 {}",
                    share(60),
                    share(300),
                    share(2000),
                    q(0.5),
                    q(0.9),
                    q(0.95)
                );
            }
            println!();
        }
    }
}
#[test]
fn show() {
    let raw: Vec<f64> = std::fs::read_to_string("/work/shared/data/bandit/rewards_2x4_64MB.csv")
        .unwrap()
        .lines()
        .filter(|l| l.contains("exploit"))
        .map(|l| l.rsplit(',').next().unwrap().parse().unwrap())
        .collect();
    for s in 0..300u64 {
        let mut r = R(s * 991 + 5);
        let mut p = Adaptive::new(&arms(4), Options::default()).unwrap();
        let mut streak = 0;
        let mut log = String::new();
        let mut last = vec![];
        let mut when = String::new();
        for c in 0..250u64 {
            let d = p.decide(Context::default());
            if d.phase == Phase::Explore {
                streak += 1;
                last.push(d.arm);
            } else {
                if streak > 4 {
                    let mut n = [0; 4];
                    for a in &last {
                        n[*a] += 1;
                    }
                    log += &format!(" [{} at {c}: {n:?}]", streak);
                }
                streak = 0;
                last.clear();
            }
            let t = [1.0, 1.0, 0.7, 1.0][d.arm] * raw[(r.u() * raw.len() as f64) as usize];
            p.learn(Sample { call: c, arm: d.arm, time_us: Some(t * 1000.0), channels: None });
            if c == 80 {
                when = format!("{p:?}").split("state").nth(1).unwrap().split("pending").next().unwrap().to_string();
            }
        }
        if p.in_use() != 2 {
            println!("{s} {log} {} {when}", p.because());
        }
    }
}
