//! Draws the inside of a host type: NVLinks on top, then GPUs, PCIe switches, NICs and CPUs.

use super::place::{Levels, Place};
use super::{MARGIN, Picture, WIDTH, cut};
use std::fmt::Write;
use topology::host::{HostType, PathKind};

/// Height of the inside of a host type without title, pixels.
const INSIDE_HEIGHT: f64 = 240.0;
/// Additional height for NVLinks, pixels.
const NVLINK_HEIGHT: f64 = 120.0;

impl Picture {
    /// Draws one host type: NVLinks on top, then GPUs, PCIe switches, NICs and CPUs.
    pub(super) fn inside(&mut self, t: &HostType) {
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
}
