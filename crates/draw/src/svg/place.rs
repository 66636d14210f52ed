//! Positions of the devices of a host type in the drawing.

use super::{MARGIN, WIDTH};
use topology::host::{HostType, PathKind};

/// Heights of the rows.
pub(super) struct Levels {
    pub(super) nvlink: f64,
    pub(super) gpu: f64,
    pub(super) switch: f64,
    pub(super) tree: f64,
    pub(super) nic: f64,
    pub(super) cpu: f64,
}

/// Positions of the devices of a host type, and the groups that share PCIe switches. Devices are GPUs, then NICs.
pub(super) struct Place {
    pub(super) sockets: Vec<u8>,
    pub(super) spans: Vec<(f64, f64)>,
    pub(super) slot: f64,
    pub(super) nic_slot: f64,
    pub(super) gpu_x: Vec<f64>,
    pub(super) nic_x: Vec<f64>,
    pub(super) switches: Vec<Vec<usize>>,
    pub(super) trees: Vec<Vec<usize>>,
}

impl Place {
    pub(super) fn new(t: &HostType) -> Self {
        let mut sockets: Vec<u8> = t.gpus.iter().map(|g| g.socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        let (slot, spans, gpu_x) = gpu_positions(t, &sockets);
        let (nic_slot, nic_x) = nic_positions(t, &sockets, slot, &spans, &gpu_x);
        let switches = groups(t, |p| p == PathKind::Pix);
        let mut trees = groups(t, |p| matches!(p, PathKind::Pix | PathKind::Pxb));
        trees.retain(|t| !switches.contains(t));
        Place { sockets, spans, slot, nic_slot, gpu_x, nic_x, switches, trees }
    }

    pub(super) fn socket_span(&self, i: usize) -> (f64, f64) {
        self.spans[i]
    }
}

/// Width of a GPU's slot, span of every socket, and centre of every GPU. A socket's width is proportional to its number
/// of GPUs.
fn gpu_positions(t: &HostType, sockets: &[u8]) -> (f64, Vec<(f64, f64)>, Vec<f64>) {
    let n = t.gpu_count();
    let gap = 24.0;
    let usable = WIDTH - 2.0 * MARGIN - 24.0 - gap * (sockets.len() as f64 - 1.0);
    let slot = (usable / n as f64).min(230.0);
    let mut gpu_x = vec![0.0; n];
    let mut spans = Vec::new();
    let mut x = MARGIN + 12.0 + (usable - slot * n as f64) / 2.0;
    for s in sockets {
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
    (slot, spans, gpu_x)
}

/// Centres of the NICs with the width of a slot: NICs are spread evenly over their socket, in the order of their
/// nearest GPUs.
fn nic_positions(t: &HostType, sockets: &[u8], slot: f64, spans: &[(f64, f64)], gpu_x: &[f64]) -> (f64, Vec<f64>) {
    let n = t.gpu_count();
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
    (nic_slot, nic_x)
}

/// Groups of two or more devices connected by the kinds of path that `reach` accepts. O(devices²).
fn groups(t: &HostType, reach: impl Fn(PathKind) -> bool) -> Vec<Vec<usize>> {
    let (n, m) = (t.gpu_count(), t.nics.len());
    let path = |a: usize, b: usize| match (a < n, b < n) {
        (true, true) => t.gpu_paths[a][b],
        (true, false) => t.nics[b - n].gpu_paths[a],
        (false, true) => t.nics[a - n].gpu_paths[b],
        (false, false) => PathKind::Sys,
    };
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
}
