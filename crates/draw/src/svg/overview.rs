//! Draws the network of a cluster: switches and hosts.

use super::{MARGIN, Picture, WIDTH, cut};
use topology::cluster::{Cluster, Host};
use topology::host::HostType;

/// Maximum number of hosts drawn.
const HOSTS_DRAWN_MAX: usize = 64;
/// Maximum number of hosts in a row.
const HOSTS_PER_ROW: usize = 8;
/// Heights of a host in the overview, and of a row with its switch and gap, pixels.
const HOST_HEIGHT: f64 = 92.0;
const ROW_HEIGHT: f64 = 160.0;

/// A row of hosts below one switch.
struct Row {
    switch: String,
    hosts: Vec<usize>,
}

/// The first `drawn` hosts in rows, by leaf switch if the network has leaf switches.
fn rows(c: &Cluster, drawn: usize) -> Vec<Row> {
    if c.tiers().is_empty() {
        let all: Vec<usize> = (0..drawn).collect();
        return all.chunks(HOSTS_PER_ROW).map(|h| Row { switch: String::new(), hosts: h.to_vec() }).collect();
    }
    let mut rows = Vec::new();
    for (s, hosts) in c.switches(0).enumerate() {
        let hosts: Vec<usize> = hosts.map(|h| h.index()).filter(|h| *h < drawn).collect();
        let row = |h: &[usize]| Row { switch: c.switch_name(0, s).into_owned(), hosts: h.to_vec() };
        rows.extend(hosts.chunks(HOSTS_PER_ROW).map(row));
    }
    rows
}

impl Picture {
    /// Draws the network: a core switch (or the topmost tier), leaf switches if the network has that tier, hosts below.
    pub(super) fn overview(&mut self, c: &Cluster) {
        self.title(c);
        let drawn = c.hosts.len().min(HOSTS_DRAWN_MAX);
        let top = self.y;
        self.core_switch(c);
        let rows = rows(c, drawn);
        for (r, row) in rows.iter().enumerate() {
            self.switch_row(c, row, r, top);
        }
        self.y = top + 28.0 + rows.len() as f64 * ROW_HEIGHT;
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

    fn title(&mut self, c: &Cluster) {
        let usable = c.usable().gpu_count();
        let all = c.gpu_count();
        let usable = if usable == all { String::new() } else { format!(", {usable} usable") };
        self.text(MARGIN, self.y + 16.0, "t", &cut(&c.name, 80));
        self.text(MARGIN, self.y + 36.0, "s", &format!("{} hosts, {all} GPUs{usable}", c.hosts.len()));
        self.y += 50.0;
    }

    fn core_switch(&mut self, c: &Cluster) {
        let bar = WIDTH - 2.0 * MARGIN;
        let core = match &c.network.tiers[..] {
            [] => "one non-blocking switch".to_string(),
            tiers => tiers
                .iter()
                .rev()
                .map(|t| format!("{}: {}, {}:1", t.name, crate::text::switches(t), t.oversubscription))
                .collect::<Vec<_>>()
                .join("; "),
        };
        self.rect(MARGIN, self.y, bar, 28.0, "sw", &core);
        self.text(
            WIDTH / 2.0,
            self.y + 18.5,
            "h m w",
            &cut(&format!("{}, {core}", crate::text::class(c.network.class)), 130),
        );
    }

    /// Draws row `r` of the hosts with the switch above them; `top` is the height of the core switch.
    fn switch_row(&mut self, c: &Cluster, row: &Row, r: usize, top: f64) {
        let y = top + 28.0 + r as f64 * ROW_HEIGHT;
        let trunk = MARGIN + 10.0;
        let left = MARGIN + 26.0;
        let slot = (WIDTH - left - MARGIN) / HOSTS_PER_ROW as f64;
        let is_leaf = !c.tiers().is_empty();
        // Each leaf switch, and each row after the first one, gets its own bar.
        let bar_y = y + 18.0;
        if is_leaf || r > 0 {
            let w = slot * row.hosts.len() as f64 - 8.0;
            let title = &row.switch;
            self.rect(left, bar_y, w.max(40.0), 16.0, "sw", title);
            self.text(left + w.max(40.0) / 2.0, bar_y + 12.0, "s m w", &cut(title, 40));
            self.line((trunk, top + 28.0), (trunk, bar_y + 8.0), "net", 2.0);
            self.line((trunk, bar_y + 8.0), (left, bar_y + 8.0), "net", 2.0);
        }
        for (k, &i) in row.hosts.iter().enumerate() {
            let x = left + k as f64 * slot;
            let start = if is_leaf || r > 0 { bar_y + 16.0 } else { top + 28.0 };
            self.host(&c.hosts[i], &c.types[c.hosts[i].host_type], x, y + 50.0, slot - 8.0, start);
        }
    }

    fn host(&mut self, h: &Host, t: &HostType, x: f64, y: f64, w: f64, from: f64) {
        let total: f64 = t.nics.iter().map(|n| n.line_rate.gbit_per_s()).sum();
        let health = |k: usize| h.nic_health.get(k).copied().unwrap_or(1.0);
        let faults = crate::text::words(h, t).join("; ");
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
}
