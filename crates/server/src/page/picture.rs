//! Geometry of the pictures in the pages. Templates turn it into SVG, so every text is escaped once, by them.

use super::cut;
use engine::{BottleneckAnswer, GpuList};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use topology::{Allocation, Cluster, HostId};

/// Most boxes in the lowest row of a drawing of links; beyond it, hosts are drawn by switch.
const BOXES_MAX: usize = 16;
/// Most points of a line in a chart; beyond it, only the last of every interval is drawn.
const POINTS_MAX: usize = 400;

/// A chart of values over time.
#[derive(Serialize)]
pub struct Chart {
    /// The chart as a sentence, for readers who do not see it.
    label: String,
    width: f64,
    height: f64,
    left: f64,
    bottom: f64,
    lines: Vec<Line>,
    dots: Vec<Dot>,
    marks: Vec<Mark>,
    y_ticks: Vec<Tick>,
    x_ticks: Vec<Tick>,
}

#[derive(Serialize)]
struct Line {
    class: &'static str,
    path: String,
}

#[derive(Serialize)]
struct Dot {
    x: String,
    y: String,
    class: &'static str,
    title: String,
}

#[derive(Serialize)]
struct Mark {
    x: String,
    title: String,
}

#[derive(Serialize)]
struct Tick {
    at: String,
    text: String,
}

/// What a chart shows. Times are seconds since 1970.
pub struct Series<'a> {
    pub label: String,
    pub from: f64,
    pub to: f64,
    pub low: f64,
    pub high: f64,
    /// Lines that keep a value until the next one.
    pub steps: Vec<(&'static str, &'a [(f64, f64)])>,
    pub dots: Vec<(f64, f64, &'static str, String)>,
    /// Moments with their names.
    pub marks: Vec<(f64, String)>,
    /// A value as text of the axis.
    pub text: fn(f64) -> String,
}

/// The next number of the form 1, 2, 2.5 or 5 times a power of ten.
fn round_up(v: f64) -> f64 {
    let power = 10f64.powf(v.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0];
    steps.into_iter().map(|s| s * power).find(|s| *s >= v * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

impl Chart {
    pub fn new(s: &Series<'_>) -> Chart {
        let (width, height, left, top, bottom) = (720.0, 200.0, 52.0, 8.0, 170.0);
        let span = (s.to - s.from).max(1.0);
        let x = |t: f64| left + (width - left - 8.0) * ((t - s.from) / span).clamp(0.0, 1.0);
        // Quarters of the range are round numbers.
        let range = 4.0 * round_up((s.high - s.low).max(1e-9) / 4.0);
        let y = |v: f64| bottom - (bottom - top) * ((v - s.low) / range).clamp(0.0, 1.0);
        let line = |&(class, points): &(&'static str, &[(f64, f64)])| {
            let mut path = String::new();
            let mut last: Option<(f64, f64)> = None;
            let step = span / POINTS_MAX as f64;
            for (i, (t, v)) in points.iter().enumerate() {
                let next_near = points.get(i + 1).is_some_and(|n| n.0 - last.map_or(s.from, |l| l.0) < step);
                if last.is_some() && next_near {
                    continue;
                }
                let _ = match last {
                    None => write!(path, "M{:.1} {:.1}", x(*t), y(*v)),
                    Some(_) => write!(path, "H{:.1}V{:.1}", x(*t), y(*v)),
                };
                last = Some((*t, *v));
            }
            if last.is_some() {
                let _ = write!(path, "H{:.1}", x(s.to));
            }
            Line { class, path }
        };
        let y_ticks = (0..=4).map(|i| s.low + range * f64::from(i) / 4.0);
        let x_ticks = (0..=3).map(|i| s.from + span * f64::from(i) / 3.0);
        Chart {
            label: s.label.clone(),
            width,
            height,
            left,
            bottom,
            lines: s.steps.iter().map(line).collect(),
            dots: s
                .dots
                .iter()
                .map(|(t, v, class, title)| Dot {
                    x: format!("{:.1}", x(*t)),
                    y: format!("{:.1}", y(*v)),
                    class,
                    title: title.clone(),
                })
                .collect(),
            marks: s.marks.iter().map(|(t, title)| Mark { x: format!("{:.1}", x(*t)), title: title.clone() }).collect(),
            y_ticks: y_ticks.map(|v| Tick { at: format!("{:.1}", y(v)), text: (s.text)(v) }).collect(),
            x_ticks: x_ticks
                .map(|t| Tick {
                    at: format!("{:.1}", x(t)),
                    text: if s.to - t < 1.0 { "now".into() } else { format!("{} ago", super::words(s.to - t)) },
                })
                .collect(),
        }
    }
}

/// GPUs of consecutive hosts as columns: one path per class, so that 10,240 GPUs need about 100 kB.
#[derive(Serialize)]
pub struct Strip {
    width: usize,
    height: usize,
    layers: Vec<Layer>,
    /// Columns of hosts with suspected components.
    suspects: String,
}

#[derive(Serialize)]
struct Layer {
    class: String,
    path: String,
}

/// Width of a column and height of a GPU, pixels.
const CELL: usize = 8;

impl Strip {
    /// A column per host: the class of every GPU, and whether a component of the host is suspected.
    pub fn new(hosts: &[(Vec<String>, bool)]) -> Strip {
        let rows = hosts.iter().map(|h| h.0.len()).max().unwrap_or(0);
        let mut layers: Vec<Layer> = Vec::new();
        let mut place: HashMap<&str, usize> = HashMap::new();
        let mut suspects = String::new();
        for (column, (gpus, suspect)) in hosts.iter().enumerate() {
            let x = column * CELL;
            let mut g = 0;
            while g < gpus.len() {
                let run = gpus[g..].iter().take_while(|c| **c == gpus[g]).count();
                let at = *place.entry(gpus[g].as_str()).or_insert_with(|| {
                    layers.push(Layer { class: gpus[g].clone(), path: String::new() });
                    layers.len() - 1
                });
                let _ = write!(layers[at].path, "M{x} {}h{}v{}h-{}z", g * CELL, CELL - 2, run * CELL - 1, CELL - 2);
                g += run;
            }
            if *suspect {
                let _ = write!(suspects, "M{} {}l3 5h-6z", x + CELL / 2 - 1, rows * CELL + 1);
            }
        }
        Strip { width: hosts.len() * CELL, height: rows * CELL + 7, layers, suspects }
    }
}

/// The links that a job uses: hosts below, the switches above them, the limiting part marked.
#[derive(Serialize)]
pub struct Links {
    width: f64,
    height: f64,
    label: String,
    boxes: Vec<Box>,
    wires: Vec<Wire>,
}

#[derive(Serialize)]
struct Box {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    class: &'static str,
    limit: bool,
    name: String,
    title: String,
    sub: String,
    /// GPUs of a host: x, y and whether the job holds them.
    cells: Vec<(f64, f64, bool)>,
}

#[derive(Serialize)]
struct Wire {
    x1: f64,
    y1: f64,
    x2: f64,
    y2: f64,
    limit: bool,
    title: String,
}

/// A rate with its unit.
pub fn rate(gb_per_s: f64) -> String {
    if gb_per_s >= 10_000.0 { format!("{:.1} TB/s", gb_per_s / 1000.0) } else { format!("{gb_per_s:.0} GB/s") }
}

/// Line rate of all NICs of a host with their health, GB/s.
pub fn nic_rate(cluster: &Cluster, h: HostId) -> f64 {
    (0..cluster.type_of(h).nics.len()).map(|n| cluster.nic_rate(h, n).gb_per_s()).sum()
}

/// Bandwidth of a switch's uplinks by the cluster file: the NICs below it, over the oversubscription up to its tier, GB/s.
pub fn uplink(cluster: &Cluster, tier: usize, hosts: impl Iterator<Item = HostId>) -> f64 {
    hosts.map(|h| nic_rate(cluster, h)).sum::<f64>() / cluster.oversubscription_up_to(tier)
}

impl Links {
    /// The drawing of an allocation; none for one without GPUs. O(hosts x tiers).
    pub fn new(cluster: &Cluster, gpus: &GpuList, limit: &BottleneckAnswer) -> Option<Links> {
        let job = gpus.allocation(cluster);
        if job.is_empty() {
            return None;
        }
        let tiers = cluster.tiers().len();
        // The lowest row: the hosts, or the switches of the lowest tier with few enough of them.
        let by_host = job.host_count() <= BOXES_MAX;
        let base = match by_host {
            true => None,
            false => Some((0..tiers).find(|t| cluster.switches_spanned(*t, &job) <= BOXES_MAX).unwrap_or(tiers)),
        };
        let first = base.map_or(0, |t| t + 1);
        let mut p = Links { width: 0.0, height: 0.0, label: String::new(), boxes: Vec::new(), wires: Vec::new() };
        // Rows of switches above, up to the first one that all of the job is below.
        let mut rows: Vec<usize> = Vec::new();
        for t in first..tiers {
            rows.push(t);
            if cluster.switches_spanned(t, &job) == 1 {
                break;
            }
        }
        let limited_tier = match limit {
            BottleneckAnswer::Tier { name } => cluster.tiers().iter().position(|t| t.name == *name),
            _ => None,
        };
        let above = rows.last().is_none_or(|t| cluster.switches_spanned(*t, &job) > 1) && base != Some(tiers);
        let many = job.host_count() > 1;
        let levels = if many { rows.len() + usize::from(above) } else { 0 };
        let step = 92.0;
        let ground = 14.0 + levels as f64 * step;
        let limited_host = match limit {
            BottleneckAnswer::Host { host } | BottleneckAnswer::Nic { host, .. } => Some(host.as_str()),
            _ => None,
        };
        let inside = matches!(limit, BottleneckAnswer::Host { .. });
        let (mut below, count) = match base {
            None => p.hosts(cluster, &job, ground, limited_host.filter(|_| inside)),
            Some(t) => p.switches_below(cluster, &job, t, ground, limited_host.filter(|_| inside)),
        };
        p.width = count as f64 * 84.0 + 8.0;
        // Boxes whose wire upwards is the limit.
        let nic = matches!(limit, BottleneckAnswer::Nic { .. });
        let mut limited: Vec<bool> = below
            .iter()
            .map(|b| match base {
                _ if nic => limited_host.is_some_and(|h| b.hosts.contains(&h)),
                Some(t) => limited_tier == Some(t),
                None => false,
            })
            .collect();
        for (level, t) in rows.iter().enumerate().filter(|_| many) {
            let y = ground - (level + 1) as f64 * step;
            below = p.row(cluster, &job, *t, y, &below, &limited);
            limited = vec![limited_tier == Some(*t); below.len()];
        }
        if above && many {
            let x = below.iter().map(|b| b.x).sum::<f64>() / below.len() as f64;
            let word = if tiers == 0 { "one non-blocking switch" } else { "the network above" };
            p.switch(x, 14.0, 180.0, word, word.into(), String::new());
            p.join(&below, &limited, x, 38.0);
        }
        p.height = p.boxes.iter().map(|b| b.y + b.h).fold(0.0, f64::max) + 8.0;
        let widest = p.boxes.iter().map(|b| b.x + b.w).fold(0.0, f64::max) + 4.0;
        p.width = p.width.max(widest);
        let left = p.boxes.iter().map(|b| b.x).fold(4.0, f64::min);
        if left < 4.0 {
            p.shift(4.0 - left);
        }
        let told = limit.text().unwrap_or_else(|| "One GPU uses no link between GPUs.".into());
        p.label = format!("{} GPUs on {} hosts. {told}", job.gpu_count(), job.host_count());
        Some(p)
    }

    fn shift(&mut self, by: f64) {
        self.width += by;
        for b in &mut self.boxes {
            b.x += by;
            b.cells.iter_mut().for_each(|c| c.0 += by);
        }
        for w in &mut self.wires {
            w.x1 += by;
            w.x2 += by;
        }
    }

    fn hosts<'a>(
        &mut self,
        cluster: &'a Cluster,
        job: &Allocation,
        y: f64,
        limited: Option<&str>,
    ) -> (Vec<Below<'a>>, usize) {
        let mut below = Vec::new();
        for (i, &(h, mask)) in job.parts().iter().enumerate() {
            let (host, t) = (cluster.host(h), cluster.type_of(h));
            let (x, n) = (4.0 + i as f64 * 84.0, t.gpu_count());
            let cell = |g: usize| (x + 7.0 + (g % 8) as f64 * 8.0, y + 22.0 + (g / 8) as f64 * 9.0, mask.contains(g));
            let lines = n.div_ceil(8) as f64;
            let nics = nic_rate(cluster, h);
            self.boxes.push(Box {
                x,
                y,
                w: 76.0,
                h: 40.0 + 9.0 * lines,
                class: "host-box",
                limit: limited == Some(host.name.as_str()),
                name: cut(&host.name, 10),
                title: format!("{}: {} of {n} GPUs, NICs {}", host.name, mask.iter().count(), rate(nics)),
                sub: rate(nics),
                cells: (0..n).map(cell).collect(),
            });
            let title = format!("{} to its switches: {}", host.name, rate(nics));
            below.push(Below { x: x + 38.0, y, hosts: vec![&host.name], title, switches: switches(cluster, h) });
        }
        (below, job.host_count())
    }

    /// Boxes for the switches of a tier instead of hosts; beyond the tiers one box for all.
    fn switches_below<'a>(
        &mut self,
        cluster: &'a Cluster,
        job: &Allocation,
        tier: usize,
        y: f64,
        limited: Option<&str>,
    ) -> (Vec<Below<'a>>, usize) {
        let mut groups: Vec<(usize, Vec<HostId>)> = Vec::new();
        for &(h, _) in job.parts() {
            let s = if tier < cluster.tiers().len() { cluster.switch_of(tier, h) } else { 0 };
            match groups.iter_mut().find(|g| g.0 == s) {
                Some(g) => g.1.push(h),
                None => groups.push((s, vec![h])),
            }
        }
        let mut below = Vec::new();
        for (i, (s, hosts)) in groups.iter().enumerate() {
            let x = 4.0 + i as f64 * 84.0;
            let named = tier < cluster.tiers().len();
            let name = if named { cluster.switch_name(tier, *s).into_owned() } else { "all hosts".into() };
            let count: usize = hosts.iter().map(|h| job.mask(*h).iter().count()).sum();
            let names: Vec<&str> = hosts.iter().map(|h| cluster.host(*h).name.as_str()).collect();
            let up = if named { uplink(cluster, tier, cluster.hosts_below(tier, *s)) } else { 0.0 };
            let title = format!("{name}: {count} GPUs on {} hosts, uplinks {}", hosts.len(), rate(up));
            self.boxes.push(Box {
                x,
                y,
                w: 76.0,
                h: 52.0,
                class: "switch-box",
                limit: limited.is_some_and(|l| names.contains(&l)),
                name: cut(&name, 10),
                title: title.clone(),
                sub: format!("{} hosts", hosts.len()),
                cells: Vec::new(),
            });
            below.push(Below { x: x + 38.0, y, hosts: names, title, switches: switches(cluster, hosts[0]) });
        }
        let count = groups.len();
        (below, count)
    }

    /// A row of switches above boxes.
    fn row<'a>(
        &mut self,
        cluster: &Cluster,
        job: &Allocation,
        tier: usize,
        y: f64,
        below: &[Below<'a>],
        limited: &[bool],
    ) -> Vec<Below<'a>> {
        let mut above: Vec<Below<'a>> = Vec::new();
        for (s, gpus) in cluster.gpus_below(tier, job) {
            let mine: Vec<usize> = (0..below.len()).filter(|b| below[*b].switches.get(tier) == Some(&s)).collect();
            if mine.is_empty() {
                continue;
            }
            let x = mine.iter().map(|b| below[*b].x).sum::<f64>() / mine.len() as f64;
            let name = cluster.switch_name(tier, s).into_owned();
            let up = uplink(cluster, tier, cluster.hosts_below(tier, s));
            let title = format!("{name}: {gpus} GPUs of the job below, uplinks {}", rate(up));
            self.switch(x, y, 78.0, &name, title.clone(), format!("up {}", rate(up)));
            for b in mine {
                self.join(&below[b..=b], &limited[b..=b], x, y + 36.0);
            }
            let hosts = below.iter().filter(|b| b.switches.get(tier) == Some(&s)).flat_map(|b| b.hosts.clone());
            let switches = below.iter().find(|b| b.switches.get(tier) == Some(&s));
            let switches = switches.map_or_else(Vec::new, |b| b.switches.clone());
            above.push(Below { x, y, hosts: hosts.collect(), title, switches });
        }
        above
    }

    fn switch(&mut self, x: f64, y: f64, w: f64, name: &str, title: String, sub: String) {
        let h = if sub.is_empty() { 24.0 } else { 36.0 };
        let name = cut(name, (w / 7.0) as usize);
        self.boxes.push(Box {
            x: x - w / 2.0,
            y,
            w,
            h,
            class: "switch-box",
            limit: false,
            name,
            title,
            sub,
            cells: Vec::new(),
        });
    }

    fn join(&mut self, below: &[Below<'_>], limited: &[bool], x: f64, y: f64) {
        for (b, limit) in below.iter().zip(limited) {
            self.wires.push(Wire { x1: b.x, y1: b.y, x2: x, y2: y, limit: *limit, title: b.title.clone() });
        }
    }
}

/// A box that the next row is joined to.
struct Below<'a> {
    /// Centre and upper edge.
    x: f64,
    y: f64,
    hosts: Vec<&'a str>,
    title: String,
    switches: Vec<usize>,
}

/// The switch of every tier above a host.
fn switches(cluster: &Cluster, h: HostId) -> Vec<usize> {
    (0..cluster.tiers().len()).map(|t| cluster.switch_of(t, h)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::cluster::Host;
    use topology::{GpuMask, Tier};

    fn cluster(hosts: usize) -> Cluster {
        let mut c = topology::catalog::cluster("h100").unwrap();
        let one = c.hosts[0].clone();
        c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
        c.network.tiers = vec![Tier::regular("leaf", 4, 2.0), Tier::regular("spine", 16, 2.0)];
        c
    }

    fn drawn(hosts: usize, limit: &BottleneckAnswer) -> Links {
        let c = cluster(64);
        let job = Allocation::new((0..hosts).map(|h| (HostId(h as u32), GpuMask::first(8))));
        Links::new(&c, &GpuList::new(&c, &job), limit).unwrap()
    }

    #[test]
    fn the_limiting_wires_are_those_of_the_named_tier_or_host_also_where_hosts_are_drawn_by_switch() {
        let leaf = BottleneckAnswer::Tier { name: "leaf".into() };
        let marked = |l: &Links| l.wires.iter().filter(|w| w.limit).count();
        assert_eq!(marked(&drawn(8, &leaf)), 2, "two leaves below one spine");
        assert_eq!(marked(&drawn(32, &leaf)), 8, "eight leaves");
        let nic = BottleneckAnswer::Nic { host: "n5".into(), nics: vec!["mlx5_0".into()], gb_per_s: 50.0 };
        assert_eq!(marked(&drawn(8, &nic)), 1);
        let inside = BottleneckAnswer::Host { host: "n0".into() };
        let one = drawn(1, &inside);
        assert!(one.boxes.len() == 1 && one.boxes[0].limit && one.wires.is_empty());
        for n in [1, 2, 5, 16, 17, 40, 64] {
            let l = drawn(n, &leaf);
            for b in &l.boxes {
                assert!(b.x >= 0.0 && b.y >= 0.0 && b.x + b.w <= l.width && b.y + b.h <= l.height, "{n}: {}", b.title);
            }
        }
    }

    #[test]
    fn a_strip_has_a_path_per_class_and_draws_every_gpu_once() {
        let class = |c: &str| vec![c.to_owned(); 8];
        let s = Strip::new(&[(class("f"), false), (class("j j1"), true), (class("f"), false)]);
        let all: String = s.layers.iter().map(|l| l.path.as_str()).collect();
        assert_eq!((s.layers.len(), all.matches('M').count(), s.suspects.matches('M').count()), (2, 3, 1));
    }

    #[test]
    fn the_axis_ends_at_the_next_round_quarter() {
        let found = [0.25, 119.0, 250.0, 0.31, 1000.0, 7.0].map(round_up);
        assert_eq!(found, [0.25, 200.0, 250.0, 0.5, 1000.0, 10.0]);
    }

    #[test]
    fn a_chart_of_many_changes_has_few_points_and_ends_at_the_present() {
        let points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        let series = Series {
            label: "x".into(),
            from: 0.0,
            to: 10_000.0,
            low: 0.0,
            high: 7.0,
            steps: vec![("a", &points)],
            dots: Vec::new(),
            marks: Vec::new(),
            text: |v| format!("{v:.0}"),
        };
        let c = Chart::new(&series);
        let n = c.lines[0].path.matches('V').count();
        assert!((100..=2 * POINTS_MAX).contains(&n), "{n}");
        assert!(c.lines[0].path.ends_with("H712.0"), "{}", c.lines[0].path);
    }
}
