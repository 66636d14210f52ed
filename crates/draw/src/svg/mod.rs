//! Draws a cluster as a self-contained SVG. The upper part shows the network with its switches and hosts, the lower
//! part the inside of each host type: sockets, PCIe switches, GPUs, NVLinks, NICs.

mod inside;
mod overview;
mod place;

use std::fmt::Write;
use topology::cluster::Cluster;
use topology::host::HostType;

/// Width of the picture, pixels.
const WIDTH: f64 = 1100.0;
/// Distance from the edges, pixels.
const MARGIN: f64 = 20.0;
/// Maximum number of host types drawn.
const TYPES_DRAWN_MAX: usize = 16;

const STYLE: &str = "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2933}\
.t{font-size:17px;font-weight:600}.h{font-size:13px;font-weight:600}.s{font-size:11px;fill:#52606d}\
.m{text-anchor:middle}.box{fill:#fff;stroke:#9aa5b1}.gpu{fill:#76b900;stroke:#4f7a00}.slow{fill:#f0b429;stroke:#8d6100}\
.off{fill:#cbd2d9;stroke:#7b8794}.nic{fill:#2f80ed;stroke:#1b4f9c}.sw{fill:#7b61c4;stroke:#4b3a80}\
.pcie{fill:#d9e2ec;stroke:#7b8794}.w{fill:#fff}.wire{stroke:#7b8794;stroke-width:1.5;fill:none}\
.net{stroke:#2f80ed;fill:none}.nv{stroke:#4f7a00;fill:none}";

/// Draws the cluster. The SVG has O(hosts drawn + types x GPUs²) characters.
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

/// The text shortened to at most `n` characters.
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

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;
    use topology::cluster::Host;

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
