//! A cluster as a self-contained SVG: above, the network with its switches and hosts; below, the inside of each host
//! type: sockets, PCIe switches, GPUs, NVLinks, NICs.

use crate::cluster::{Cluster, Host};
use crate::host::{HostType, PathKind};
use std::fmt::Write;

/// Width of the picture.
const WIDTH: f64 = 1100.0;
/// Distance from the edges.
const MARGIN: f64 = 20.0;
/// Most hosts drawn one by one.
const HOSTS_DRAWN_MAX: usize = 64;
/// Most host types drawn.
const TYPES_DRAWN_MAX: usize = 16;
/// Hosts side by side.
const HOSTS_PER_ROW: usize = 8;
/// Height of a host in the overview, and of a row with its switch and gap.
const HOST_HEIGHT: f64 = 92.0;
const ROW_HEIGHT: f64 = 160.0;
/// Height of the inside of a host type without title.
const INSIDE_HEIGHT: f64 = 240.0;
/// What NVLinks need above that.
const NVLINK_HEIGHT: f64 = 120.0;

const STYLE: &str = "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2933}\
.t{font-size:17px;font-weight:600}.h{font-size:13px;font-weight:600}.s{font-size:11px;fill:#52606d}\
.m{text-anchor:middle}.box{fill:#fff;stroke:#9aa5b1}.gpu{fill:#76b900;stroke:#4f7a00}.slow{fill:#f0b429;stroke:#8d6100}\
.off{fill:#cbd2d9;stroke:#7b8794}.nic{fill:#2f80ed;stroke:#1b4f9c}.sw{fill:#7b61c4;stroke:#4b3a80}\
.pcie{fill:#d9e2ec;stroke:#7b8794}.w{fill:#fff}.wire{stroke:#7b8794;stroke-width:1.5;fill:none}\
.net{stroke:#2f80ed;fill:none}.nv{stroke:#4f7a00;fill:none}";

/// Draws the cluster. Size of the text is O(hosts drawn + types x GPUs²).
pub fn svg(cluster: &Cluster) -> String {
    let mut p = Picture { out: String::new(), y: MARGIN };
    p.overview(cluster);
    let used: Vec<&HostType> = cluster
        .types
        .iter()
        .enumerate()
        .filter(|(i, _)| cluster.hosts.iter().any(|h| h.host_type == *i))
        .map(|(_, t)| t)
        .collect();
    for t in used.iter().take(TYPES_DRAWN_MAX) {
        p.inside(t);
    }
    if used.len() > TYPES_DRAWN_MAX {
        p.text(MARGIN, p.y + 14.0, "s", &format!("and {} more host types", used.len() - TYPES_DRAWN_MAX));
        p.y += 26.0;
    }
    p.legend();
    let height = p.y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n<rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#f7f9fb\"/>\n{}</svg>\n",
        escape(&format!("Topology of {}", cluster.name)),
        p.out
    )
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(200) {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// At most `n` characters.
fn cut(text: &str, n: usize) -> String {
    if text.chars().count() <= n {
        text.to_string()
    } else {
        text.chars().take(n.saturating_sub(1)).chain(['…']).collect()
    }
}

struct Picture {
    out: String,
    y: f64,
}

impl Picture {
    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(self.out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text));
    }
    fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, class: &str, title: &str) {
        let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"4\" class=\"{class}\">{title}</rect>"
        );
    }
    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str, width: f64) {
        let _ = writeln!(
            self.out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"{class}\" stroke-width=\"{width:.1}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// The network: a core switch (or the topmost tier), leaf switches where a tier says so, hosts below.
    fn overview(&mut self, c: &Cluster) {
        let usable = c.usable().gpu_count();
        let all = c.gpu_count();
        let usable = if usable == all { String::new() } else { format!(", {usable} usable") };
        self.text(MARGIN, self.y + 16.0, "t", &cut(&c.name, 80));
        self.text(MARGIN, self.y + 36.0, "s", &format!("{} hosts, {all} GPUs{usable}", c.hosts.len()));
        self.y += 50.0;
        let leaf = c.network.tiers.first();
        let per_row = leaf.map_or(HOSTS_PER_ROW, |t| t.hosts_per_switch.min(HOSTS_PER_ROW)).max(1);
        let drawn = c.hosts.len().min(HOSTS_DRAWN_MAX);
        let bar = WIDTH - 2.0 * MARGIN;
        let top = self.y;
        let core = match &c.network.tiers[..] {
            [] => "one non-blocking switch".to_string(),
            tiers => tiers
                .iter()
                .rev()
                .map(|t| format!("{}: {} hosts per switch, {}:1", t.name, t.hosts_per_switch, t.oversubscription))
                .collect::<Vec<_>>()
                .join("; "),
        };
        self.rect(MARGIN, top, bar, 28.0, "sw", &core);
        self.text(
            WIDTH / 2.0,
            top + 18.5,
            "h m w",
            &cut(&format!("{}, {core}", super::text::class(c.network.class)), 130),
        );
        let rows = drawn.div_ceil(per_row);
        let trunk = MARGIN + 10.0;
        for r in 0..rows {
            let y = top + 28.0 + r as f64 * ROW_HEIGHT;
            let first = r * per_row;
            let last = (first + per_row).min(drawn);
            let left = MARGIN + 26.0;
            let slot = (WIDTH - left - MARGIN) / HOSTS_PER_ROW as f64;
            let is_leaf = leaf.is_some();
            // With a leaf switch or in later rows the hosts hang on a bar of their own.
            let bar_y = y + 18.0;
            if is_leaf || r > 0 {
                let w = slot * (last - first) as f64 - 8.0;
                let title = leaf.map_or(String::new(), |t| {
                    let of_switch = first / t.hosts_per_switch.max(1);
                    format!("{} {of_switch}", t.name)
                });
                self.rect(left, bar_y, w.max(40.0), 16.0, "sw", &title);
                self.text(left + w.max(40.0) / 2.0, bar_y + 12.0, "s m w", &cut(&title, 40));
                self.line((trunk, top + 28.0), (trunk, bar_y + 8.0), "net", 2.0);
                self.line((trunk, bar_y + 8.0), (left, bar_y + 8.0), "net", 2.0);
            }
            for (k, i) in (first..last).enumerate() {
                let x = left + k as f64 * slot;
                let start = if is_leaf || r > 0 { bar_y + 16.0 } else { top + 28.0 };
                self.host(&c.hosts[i], &c.types[c.hosts[i].host_type], x, y + 50.0, slot - 8.0, start);
            }
        }
        self.y = top + 28.0 + rows as f64 * ROW_HEIGHT;
        if drawn < c.hosts.len() {
            self.text(MARGIN, self.y + 4.0, "s", &format!("and {} more hosts", c.hosts.len() - drawn));
            self.y += 20.0;
        }
        for l in c.network.host_links.iter().take(12) {
            let (a, b) = (&c.host(l.a).name, &c.host(l.b).name);
            self.text(
                MARGIN,
                self.y + 4.0,
                "s",
                &format!("{} to {}: {} Gbit/s", cut(a, 40), cut(b, 40), l.rate.gbit_per_s()),
            );
            self.y += 16.0;
        }
    }

    fn host(&mut self, h: &Host, t: &HostType, x: f64, y: f64, w: f64, from: f64) {
        let total: f64 = t.nics.iter().map(|n| n.line_rate.gbit_per_s()).sum();
        let health = |k: usize| h.nic_health.get(k).copied().unwrap_or(1.0);
        let faults = super::text::words(h, t).join("; ");
        self.rect(x, y, w, HOST_HEIGHT, "box", &format!("{} ({}) {faults}", h.name, t.name));
        let shown = t.nics.len().min(16);
        for k in 0..shown {
            let nx = x + w * (k as f64 + 0.5) / shown as f64;
            let class = if health(k) < 1.0 { "slow" } else { "nic" };
            self.line((nx, from), (nx, y - 3.0), "net", if health(k) > 0.0 { 1.2 } else { 0.2 });
            self.rect(
                nx - 3.0,
                y - 4.0,
                6.0,
                8.0,
                class,
                &format!("{} {} Gbit/s", t.nics[k].name, t.nics[k].line_rate.gbit_per_s() * health(k)),
            );
        }
        self.text(x + 6.0, y + 20.0, "h", &cut(&h.name, (w / 8.5) as usize));
        self.text(x + 6.0, y + 34.0, "s", &cut(&t.name, (w / 6.2) as usize));
        let n = t.gpu_count();
        let per_line = n.div_ceil(2).max(4);
        let cell = ((w - 12.0) / per_line as f64).min(16.0);
        for g in 0..n {
            let class = match () {
                _ if h.drained.contains(g) => "off",
                _ if h.gpu_health.get(g).is_some_and(|f| *f < 1.0) => "slow",
                _ => "gpu",
            };
            let (gx, gy) = (x + 6.0 + (g % per_line) as f64 * cell, y + 42.0 + (g / per_line) as f64 * 17.0);
            self.rect(gx, gy, cell - 2.5, 14.0, class, &format!("{}:{g}", h.name));
        }
        let rate = if total > 0.0 { format!("{total} Gbit/s") } else { "no NIC".into() };
        self.text(x + 6.0, y + 86.0, "s", &cut(&rate, (w / 6.0) as usize));
    }

    /// One host type: NVLinks on top, GPUs, PCIe switches, NICs, CPUs at the bottom.
    fn inside(&mut self, t: &HostType) {
        self.y += 14.0;
        let nvlink =
            t.nvlink.map_or(String::new(), |n| format!(", NVLink {} GB/s a link each way", n.link_rate.gb_per_s()));
        self.text(MARGIN, self.y + 16.0, "t", &cut(&t.name, 60));
        self.text(MARGIN, self.y + 34.0, "s", &cut(&format!("{}. {}{nvlink}", t.description, t.gpu_model), 160));
        let top = self.y + 46.0;
        let above = if t.nvlink.is_some() { NVLINK_HEIGHT } else { 12.0 };
        let height = INSIDE_HEIGHT + above;
        self.rect(MARGIN, top, WIDTH - 2.0 * MARGIN, height, "box", "");
        let base = top + above;
        let place = Place::new(t);
        let y = Levels {
            nvlink: top + 14.0,
            gpu: base + 12.0,
            switch: base + 88.0,
            tree: base + 120.0,
            nic: base + 152.0,
            cpu: base + 202.0,
        };
        self.sockets(t, &place, &y, top + height);
        self.pcie(t, &place, &y);
        self.nvlinks(t, &place, &y);
        for (g, &x) in place.gpu_x.iter().enumerate() {
            let w = place.slot.min(76.0) - 8.0;
            self.rect(x - w / 2.0, y.gpu, w, 34.0, "gpu", &format!("GPU{g}"));
            self.text(x, y.gpu + 21.0, "h m w", &if w > 46.0 { format!("GPU{g}") } else { g.to_string() });
        }
        for (k, &x) in place.nic_x.iter().enumerate() {
            let nic = &t.nics[k];
            let w = (place.nic_slot * 0.8).min(70.0);
            let title = format!("{} {} Gbit/s", nic.name, nic.line_rate.gbit_per_s());
            self.rect(x - w / 2.0, y.nic, w, 28.0, "nic", &title);
            self.text(x, y.nic + 12.0, "s m w", &cut(&nic.name, (w / 6.0) as usize));
            self.text(x, y.nic + 24.0, "s m w", &cut(&format!("{}G", nic.line_rate.gbit_per_s()), (w / 6.0) as usize));
        }
        self.y = top + height + 10.0;
    }

    fn sockets(&mut self, t: &HostType, place: &Place, y: &Levels, bottom: f64) {
        for (i, s) in place.sockets.iter().enumerate() {
            let (a, b) = place.socket_span(i);
            let _ = writeln!(
                self.out,
                "<rect x=\"{a:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"6\" fill=\"#eef2f6\" stroke=\"#cbd2d9\" stroke-dasharray=\"4 3\"/>",
                y.gpu - 12.0,
                b - a,
                bottom - y.gpu + 4.0
            );
            self.rect(a + 8.0, y.cpu, b - a - 16.0, 20.0, "pcie", &format!("socket {s}"));
            let label = format!("socket {s}, PCIe Gen{} x{}", t.pcie.generation, t.pcie.lanes);
            self.text((a + b) / 2.0, y.cpu + 14.0, "s m", &cut(&label, ((b - a) / 6.0) as usize));
            if i > 0 {
                let before = place.socket_span(i - 1).1;
                self.line((before - 8.0, y.cpu + 10.0), (a + 8.0, y.cpu + 10.0), "wire", 3.0);
            }
        }
    }

    fn pcie(&mut self, t: &HostType, place: &Place, y: &Levels) {
        let n = t.gpu_count();
        let x_of = |d: usize| if d < n { place.gpu_x[d] } else { place.nic_x[d - n] };
        let edge = |d: usize| if d < n { y.gpu + 34.0 } else { y.nic };
        let span = |group: &[usize]| {
            let gpus: Vec<f64> = group.iter().filter(|d| **d < n).map(|&d| x_of(d)).collect();
            let list = if gpus.is_empty() { group.iter().map(|&d| x_of(d)).collect() } else { gpus };
            let (a, b) = list.iter().fold((f64::MAX, f64::MIN), |(a, b), &x| (a.min(x), b.max(x)));
            (a - 46.0f64.min(place.slot / 2.0 - 3.0), b + 46.0f64.min(place.slot / 2.0 - 3.0))
        };
        let mut attached = vec![false; n + t.nics.len()];
        for tree in &place.trees {
            let (a, b) = span(tree);
            self.rect(a, y.tree, b - a, 12.0, "pcie", "tree of PCIe switches (PXB)");
            self.text((a + b) / 2.0, y.tree + 10.0, "s m", "PCIe switches");
            self.line((a + 2.0, y.tree + 12.0), (a + 2.0, y.cpu), "wire", 1.5);
        }
        for switch in &place.switches {
            let (a, b) = span(switch);
            self.rect(a, y.switch, b - a, 16.0, "pcie", "PCIe switch (PIX)");
            let label = if b - a > 70.0 { "PCIe switch" } else { "PCIe" };
            self.text((a + b) / 2.0, y.switch + 12.0, "s m", label);
            for &d in switch {
                attached[d] = true;
                let x = x_of(d).clamp(a + 3.0, b - 3.0);
                let to = if d < n { y.switch } else { y.switch + 16.0 };
                self.line((x_of(d), edge(d)), (x, to), "wire", 1.5);
            }
            let up = match place.trees.iter().any(|t| t.contains(&switch[0])) {
                true => y.tree,
                false => y.cpu,
            };
            self.line((a + 2.0, y.switch + 16.0), (a + 2.0, up), "wire", 1.5);
        }
        for (d, done) in attached.iter().enumerate() {
            if *done {
                continue;
            }
            let tree = place.trees.iter().find(|t| t.contains(&d));
            let to = match (tree, d < n) {
                (Some(_), true) => y.tree,
                (Some(_), false) => y.tree + 12.0,
                (None, _) => y.cpu,
            };
            let x = tree.map_or(x_of(d), |t| {
                let (a, b) = span(t);
                x_of(d).clamp(a + 3.0, b - 3.0)
            });
            let from = if d >= n && tree.is_none() { y.nic + 28.0 } else { edge(d) };
            self.line((x_of(d), from), (x, to), "wire", 1.5);
        }
    }

    fn nvlinks(&mut self, t: &HostType, place: &Place, y: &Levels) {
        let Some(nv) = t.nvlink else { return };
        let n = t.gpu_count();
        let rate = nv.link_rate.gb_per_s();
        let links = |i: usize, j: usize| if let PathKind::NvLink(k) = t.gpu_paths[i][j] { u32::from(k) } else { 0 };
        if nv.switched {
            let (a, b) = (place.gpu_x[0] - 30.0, place.gpu_x[n - 1] + 30.0);
            self.rect(a, y.nvlink + 6.0, b - a, 26.0, "sw", "NVSwitches");
            let multicast = if nv.multicast { ", multicast" } else { "" };
            let label = format!("NVSwitch, {rate} GB/s a link each way{multicast}");
            self.text((a + b) / 2.0, y.nvlink + 23.0, "h m w", &label);
            for (g, &x) in place.gpu_x.iter().enumerate() {
                let k = (0..n).map(|j| links(g, j)).max().unwrap_or(0);
                self.line((x, y.nvlink + 32.0), (x, y.gpu), "nv", 1.0 + f64::from(k) / 4.0);
                self.text(x + 5.0 + f64::from(k) / 8.0, y.nvlink + 74.0, "s", &format!("NV{k}"));
            }
            return;
        }
        let widest = (0..n)
            .flat_map(|i| (0..i).map(move |j| (i, j)))
            .filter(|&(i, j)| links(i, j) > 0)
            .map(|(i, j)| i - j)
            .max()
            .unwrap_or(1)
            .max(3);
        let mut labels = Vec::new();
        for i in 0..n {
            for j in 0..i {
                let k = links(i, j);
                if k == 0 {
                    continue;
                }
                let (a, b) = (place.gpu_x[j], place.gpu_x[i]);
                let top = y.gpu - 22.0 - 84.0 * (i - j) as f64 / widest as f64;
                let control = y.gpu + (top - y.gpu) * 4.0 / 3.0;
                let _ = writeln!(
                    self.out,
                    "<path d=\"M{a:.1} {:.1} C{a:.1} {control:.1} {b:.1} {control:.1} {b:.1} {:.1}\" class=\"nv\" stroke-width=\"{:.1}\" stroke-opacity=\"0.75\"><title>GPU{j} to GPU{i}: NV{k}</title></path>",
                    y.gpu,
                    y.gpu,
                    0.8 + f64::from(k) * 0.7
                );
                labels.push(((a + b) / 2.0, top + 4.0, format!("NV{k}")));
            }
        }
        for (x, y, label) in labels {
            let w = 6.6 * label.len() as f64;
            self.rect(x - w / 2.0, y - 10.0, w, 13.0, "w", "");
            self.text(x, y, "s m", &label);
        }
    }

    fn legend(&mut self) {
        let items = [
            ("gpu", "GPU"),
            ("slow", "degraded"),
            ("off", "drained"),
            ("nic", "NIC"),
            ("sw", "switch"),
            ("pcie", "PCIe switch, CPU"),
        ];
        let y = self.y + 6.0;
        let mut x = MARGIN;
        for (class, name) in items {
            self.rect(x, y, 14.0, 14.0, class, "");
            self.text(x + 20.0, y + 11.5, "s", name);
            x += 40.0 + 7.0 * name.len() as f64;
        }
        self.y += 26.0;
    }
}

/// Heights of the rows.
struct Levels {
    nvlink: f64,
    gpu: f64,
    switch: f64,
    tree: f64,
    nic: f64,
    cpu: f64,
}

/// Where the parts of a host type stand, and which share PCIe switches. Devices are GPUs, then NICs.
struct Place {
    sockets: Vec<u8>,
    spans: Vec<(f64, f64)>,
    slot: f64,
    nic_slot: f64,
    gpu_x: Vec<f64>,
    nic_x: Vec<f64>,
    switches: Vec<Vec<usize>>,
    trees: Vec<Vec<usize>>,
}

impl Place {
    fn new(t: &HostType) -> Self {
        let n = t.gpu_count();
        let mut sockets: Vec<u8> = t.gpus.iter().map(|g| g.socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        // GPUs in the order of their sockets, each socket as wide as it has GPUs.
        let gap = 24.0;
        let usable = WIDTH - 2.0 * MARGIN - 24.0 - gap * (sockets.len() as f64 - 1.0);
        let slot = (usable / n as f64).min(230.0);
        let mut gpu_x = vec![0.0; n];
        let mut spans = Vec::new();
        let mut x = MARGIN + 12.0 + (usable - slot * n as f64) / 2.0;
        for s in &sockets {
            let start = x;
            for (g, at) in gpu_x.iter_mut().enumerate() {
                if t.gpus[g].socket == *s {
                    *at = x + slot / 2.0;
                    x += slot;
                }
            }
            spans.push((start, x));
            x += gap;
        }
        // NICs: evenly over their socket, in the order of the GPUs they are near.
        let m = t.nics.len();
        let near = |k: usize| {
            let best = t.nics[k].gpu_paths.iter().min();
            let list: Vec<f64> = (0..n).filter(|&g| Some(&t.nics[k].gpu_paths[g]) == best).map(|g| gpu_x[g]).collect();
            list.iter().sum::<f64>() / list.len().max(1) as f64
        };
        let home = |k: usize| {
            let by_number = t.nics[k].socket.and_then(|s| sockets.iter().position(|x| *x == s));
            by_number.unwrap_or_else(|| spans.iter().position(|(a, b)| (*a..*b).contains(&near(k))).unwrap_or(0))
        };
        let mut nic_x = vec![0.0; m];
        let mut nic_slot = slot;
        for (i, (a, b)) in spans.iter().enumerate() {
            let mut of_socket: Vec<usize> = (0..m).filter(|&k| home(k) == i).collect();
            of_socket.sort_by(|&p, &q| near(p).total_cmp(&near(q)).then(p.cmp(&q)));
            let step = (b - a) / of_socket.len().max(1) as f64;
            nic_slot = nic_slot.min(step);
            for (k, &nic) in of_socket.iter().enumerate() {
                nic_x[nic] = a + step * (k as f64 + 0.5);
            }
        }
        let path = |a: usize, b: usize| match (a < n, b < n) {
            (true, true) => t.gpu_paths[a][b],
            (true, false) => t.nics[b - n].gpu_paths[a],
            (false, true) => t.nics[a - n].gpu_paths[b],
            (false, false) => PathKind::Sys,
        };
        let groups = |reach: &dyn Fn(PathKind) -> bool| {
            let mut seen = vec![false; n + m];
            let mut groups = Vec::new();
            for d in 0..n + m {
                let (mut group, mut todo) = (Vec::new(), vec![d]);
                while let Some(d) = todo.pop() {
                    if !std::mem::replace(&mut seen[d], true) {
                        group.push(d);
                        todo.extend((0..n + m).filter(|&e| !seen[e] && reach(path(d, e))));
                    }
                }
                if group.len() > 1 {
                    group.sort_unstable();
                    groups.push(group);
                }
            }
            groups
        };
        let switches = groups(&|p| p == PathKind::Pix);
        let mut trees = groups(&|p| matches!(p, PathKind::Pix | PathKind::Pxb));
        trees.retain(|t| !switches.contains(t));
        Place { sockets, spans, slot, nic_slot, gpu_x, nic_x, switches, trees }
    }

    fn socket_span(&self, i: usize) -> (f64, f64) {
        self.spans[i]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn every_catalog_type_is_drawn_as_well_formed_xml_inside_the_picture() {
        for t in catalog::host_types() {
            let n = t.gpu_count();
            let name = "a<b>&\"c\"".to_string();
            let hosts = (0..70).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
            let text = svg(&Cluster { name, types: vec![t], hosts, ..Cluster::default() });
            let doc = roxmltree::Document::parse(&text).unwrap();
            let gpus = doc.descendants().filter(|d| d.attribute("class") == Some("gpu")).count();
            assert_eq!(gpus, 64 * n + n + 1, "64 hosts, one type, one in the legend");
            for d in doc.descendants() {
                for a in ["x", "y", "x1", "x2", "y1", "y2"] {
                    let v: f64 = d.attribute(a).map_or(0.0, |v| v.parse().unwrap());
                    assert!(v.is_finite() && (-0.1..=WIDTH * 20.0).contains(&v), "{a}={v}");
                }
            }
        }
    }
}
