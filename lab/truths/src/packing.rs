//! Fluid packing of rings into NVLinks: the all-reduce bandwidth of a mesh of links if rings may share it in any
//! proportion.

use topology::{GpuMask, HostType, PathKind};

/// Maximum number of GPUs whose rings are enumerated (7!/2 = 2,520 rings). For more GPUs every GPU's links bound the
/// packing.
const RINGS_GPUS_MAX: usize = 8;

/// Links between two GPUs.
fn links(t: &HostType, a: usize, b: usize) -> f64 {
    match t.gpu_paths[a][b] {
        PathKind::NvLink(n) => f64::from(n),
        _ => 0.0,
    }
}

/// The largest packing of rings through exactly these GPUs, in units of one link's rate, both directions counted; 0 if
/// there is no ring. For two GPUs the number of their links.
pub(crate) fn rings(t: &HostType, mask: GpuMask) -> f64 {
    let g: Vec<usize> = mask.iter().collect();
    match g.len() {
        0 | 1 => return 0.0,
        2 => return links(t, g[0], g[1]),
        n if n > RINGS_GPUS_MAX => {
            let degree = |a: usize| g.iter().filter(|b| **b != a).map(|&b| links(t, a, b)).sum::<f64>();
            return g.iter().map(|&a| degree(a)).fold(f64::INFINITY, f64::min);
        }
        _ => {}
    }
    // Numbered edges with their capacity.
    let n = g.len();
    let mut edge = vec![vec![usize::MAX; n]; n];
    let mut capacity = Vec::new();
    for i in 0..n {
        for j in i + 1..n {
            let c = links(t, g[i], g[j]);
            if c > 0.0 {
                edge[i][j] = capacity.len();
                edge[j][i] = capacity.len();
                capacity.push(c);
            }
        }
    }
    let mut cycles = Vec::new();
    let mut path = vec![0];
    collect(&edge, &mut path, &mut cycles);
    2.0 * most(&cycles, &capacity)
}

/// All rings from node 0, each in one direction only, as lists of edges.
fn collect(edge: &[Vec<usize>], path: &mut Vec<usize>, cycles: &mut Vec<Vec<usize>>) {
    let n = edge.len();
    let last = path[path.len() - 1];
    if path.len() == n {
        if edge[last][0] != usize::MAX && path[1] < last {
            let mut c: Vec<usize> = path.windows(2).map(|w| edge[w[0]][w[1]]).collect();
            c.push(edge[last][0]);
            cycles.push(c);
        }
        return;
    }
    for next in 1..n {
        if edge[last][next] != usize::MAX && !path.contains(&next) {
            path.push(next);
            collect(edge, path, cycles);
            path.pop();
        }
    }
}

/// Maximises the sum of the rings' rates under the edges' capacities: the primal simplex with Bland's rule (which cannot cycle), from the
/// slack basis. O(pivots x edges x rings).
fn most(cycles: &[Vec<usize>], capacity: &[f64]) -> f64 {
    const EPSILON: f64 = 1e-9;
    let (rows, columns) = (capacity.len(), cycles.len() + capacity.len());
    let mut a: Vec<Vec<f64>> = (0..rows)
        .map(|r| {
            let mut row = vec![0.0; columns + 1];
            row[cycles.len() + r] = 1.0;
            row[columns] = capacity[r];
            row
        })
        .collect();
    for (j, c) in cycles.iter().enumerate() {
        for &e in c {
            a[e][j] = 1.0;
        }
    }
    let mut gain: Vec<f64> = (0..=columns).map(|j| if j < cycles.len() { 1.0 } else { 0.0 }).collect();
    let mut basis: Vec<usize> = (cycles.len()..columns).collect();
    while let Some(enter) = (0..columns).find(|&j| gain[j] > EPSILON) {
        let ratio = |r: usize| a[r][columns] / a[r][enter];
        let leave = (0..rows)
            .filter(|&r| a[r][enter] > EPSILON)
            .min_by(|&r, &s| ratio(r).total_cmp(&ratio(s)).then(basis[r].cmp(&basis[s])));
        let Some(leave) = leave else { return f64::INFINITY };
        let pivot = a[leave][enter];
        a[leave].iter_mut().for_each(|v| *v /= pivot);
        basis[leave] = enter;
        let row = a[leave].clone();
        for (r, other) in a.iter_mut().enumerate() {
            if r != leave && other[enter].abs() > EPSILON {
                let f = other[enter];
                other.iter_mut().zip(&row).for_each(|(v, p)| *v -= f * p);
            }
        }
        let f = gain[enter];
        gain.iter_mut().zip(&row).for_each(|(v, p)| *v -= f * p);
    }
    -gain[columns]
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    #[test]
    fn a_full_mesh_of_single_links_packs_all_of_them() {
        // Four GPUs, six links each pair: three rings use every edge twice, so each GPU's 18 links carry 18.
        let t = catalog::host_type("h100-4gpu").unwrap();
        assert!((rings(&t, GpuMask(0b1111)) - 18.0).abs() < 1e-9);
        assert!((rings(&t, GpuMask(0b11)) - 6.0).abs() < 1e-9);
    }

    #[test]
    fn rings_of_a_dgx1_are_bounded_by_degrees_and_absent_without_links() {
        let t = catalog::host_type("dgx1-v100").unwrap();
        for m in GpuMask::first(8).subsets().filter(|m| m.count() > 2) {
            let degree = |a: usize| m.iter().filter(|b| *b != a).map(|b| links(&t, a, b)).sum::<f64>();
            let most = m.iter().map(degree).fold(f64::INFINITY, f64::min);
            let r = rings(&t, m);
            assert!(r <= most + 1e-9 && r >= 0.0, "{m}: {r} of {most}");
        }
        assert!((rings(&t, GpuMask::first(8)) - 6.0).abs() < 1e-9, "all six links of every GPU are used");
        assert_eq!(rings(&t, GpuMask::from_indices([0, 1, 2, 4])), 0.0, "the published table reads 4.9 GB/s there");
    }
}
