//! What the readings of a site tell about its slow NICs to a decoder that knows the truth's form, the noise and the
//! healthy bandwidths: a limit for the diagnosis, which knows none of them.
//!
//! The probability of the true set among all sets in which another NIC replaces one of its own.
//! Shares of the others have their most probable values; the share of the NIC that differs is summed over. The
//! truth's bandwidth with several slow NICs follows from that with one: a p-norm over hosts.

use topology::{Allocation, HostId};
use truths::Truth;
use truths::site::{Site, SlowNic};

/// Exponent of the truth's norm over hosts, and standard deviation of the irregularity of a split with that of hosts.
const POWER: f64 = 24.0;
pub(crate) const IRREGULARITY: f64 = 0.022;
/// Shares that are tried.
const SHARES: usize = 40;
/// Rounds over the shares of the true set.
const ROUNDS: usize = 6;

/// The slowness to the power of [`POWER`] that a NIC adds to every reading, by share. Zero where it takes no part.
type Column = Vec<Vec<f64>>;

/// The probability of `truth`, given readings as allocations with their bandwidths.
pub fn probability(site: &Site, truth: &[SlowNic], left: (f64, f64), readings: &[(Allocation, f64)]) -> f64 {
    let healthy = site.supposed(&vec![0.0; site.unknowns()]);
    let sd = IRREGULARITY.hypot(site.noise(2));
    let bandwidth = |s: &Site, a: &Allocation| s.smooth_gb_per_s(a).unwrap_or(f64::NAN);
    let base: Vec<f64> = readings.iter().map(|(a, _)| bandwidth(&healthy, a)).collect();
    let shares: Vec<f64> = (0..SHARES).map(|l| left.0 + (left.1 - left.0) * (l as f64 + 0.5) / SHARES as f64).collect();
    // All hosts are alike, so a reading has one column for all NICs that it uses.
    let added: Vec<Vec<f64>> = readings
        .iter()
        .zip(&base)
        .map(|((a, _), base)| {
            let (host, mask) = a.parts()[0];
            let nic = mask.iter().next().unwrap_or(0) as u8;
            let at = |left: &f64| {
                let slow = healthy.with_slow(&[SlowNic { host, nic, left: *left }]);
                ((base / bandwidth(&slow, a)).powf(POWER) - 1.0).max(0.0)
            };
            shares.iter().map(at).collect()
        })
        .collect();
    let column = |host: HostId, nic: u8| -> Column {
        let uses = |a: &Allocation| a.mask(host).contains(usize::from(nic));
        let zero = vec![0.0; SHARES];
        readings.iter().zip(&added).map(|((a, _), c)| if uses(a) { c.clone() } else { zero.clone() }).collect()
    };
    let ln = |sums: &[f64]| -> f64 {
        let z = |((sum, base), (_, v)): ((&f64, &f64), &(Allocation, f64))| {
            (v.ln() - base.ln() + (1.0 + sum).ln() / POWER) / sd
        };
        -0.5 * sums.iter().zip(&base).zip(readings).map(z).map(|z| z * z).sum::<f64>()
    };
    let columns: Vec<Column> = truth.iter().map(|s| column(s.host, s.nic)).collect();
    let nearest =
        |s: &SlowNic| (0..SHARES).min_by(|a, b| (shares[*a] - s.left).abs().total_cmp(&(shares[*b] - s.left).abs()));
    let mut share: Vec<usize> = truth.iter().map(|s| nearest(s).unwrap_or(0)).collect();
    let sums = |share: &[usize], without: Option<usize>| -> Vec<f64> {
        let of = |i: usize| {
            let each = columns.iter().zip(share).enumerate().filter(|x| Some(x.0) != without);
            each.map(|(_, (c, l))| c[i][*l]).sum()
        };
        (0..readings.len()).map(of).collect()
    };
    for _ in 0..ROUNDS {
        for k in 0..truth.len() {
            let rest = sums(&share, Some(k));
            let of = |l: usize| ln(&rest.iter().zip(&columns[k]).map(|(r, c)| r + c[l]).collect::<Vec<_>>());
            share[k] = (0..SHARES).max_by(|a, b| of(*a).total_cmp(&of(*b))).unwrap_or(0);
        }
    }
    // Sum over shares of one NIC, given the sums of the others.
    let with = |rest: &[f64], c: &Column, most: f64| -> f64 {
        let of = |l: usize| (ln(&rest.iter().zip(c).map(|(r, c)| r + c[l]).collect::<Vec<_>>()) - most).exp();
        (0..SHARES).map(of).sum::<f64>() / SHARES as f64
    };
    let most = ln(&sums(&share, None));
    let hosts =
        site.cluster().host_ids().flat_map(|h| (0..site.cluster().type_of(h).nics.len()).map(move |n| (h, n as u8)));
    let known = |n: &(HostId, u8)| truth.iter().any(|s| (s.host, s.nic) == *n);
    let others: Vec<Column> = hosts.filter(|n| !known(n)).map(|n| column(n.0, n.1)).collect();
    // The odds of each alternative set against the true one, whose own member is summed over its shares likewise.
    let mut alternatives = 0.0;
    for (k, of_member) in columns.iter().enumerate().take(truth.len()) {
        let rest = sums(&share, Some(k));
        let own = with(&rest, of_member, most);
        alternatives += others.iter().map(|c| with(&rest, c, most)).sum::<f64>() / own;
    }
    1.0 / (1.0 + alternatives)
}
