//! The order in which NCCL adds, and what a sum must be to the bit.
//!
//! Floating-point sums depend on their order. A call with [`crate::bytes::BytesCall::keep_output`] has inputs for which every order gives other
//! bits; [`check`] recomputes every element in the orders that the rings or trees of the run allow, apart from the player's own code:
//!
//! - **Ring all-reduce**: one channel cuts its share into as many pieces as ranks. A piece begins with the input of one rank; each next rank of the
//!   ring adds what it receives. Which rank begins depends on the piece, so an element has one of `ranks` values per ring.
//! - **Ring reduce-scatter** of rank r begins behind r in the ring and ends with r; **reduce** ends with the root.
//! - **Tree all-reduce**: a rank adds to its input the values of its children, in their order; the root's value is the result. One value per tree.
//!
//! Every addition rounds once to the element's type (nearest, ties to even). All ranks must hold the same bits.

use crate::bytes::{BytesCall, BytesReport, Element, Reduction, Traffic};
use crate::report::TreePlace;
use std::collections::BTreeSet;
use topology::nccl::Algorithm;

/// Orders that occurred in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orders {
    /// Elements that were compared, on all ranks.
    pub elements: u64,
    /// Orders whose value occurred: for rings the channel and the place of the first rank, for trees the channel and 0. Channels with the same ring or
    /// tree count once.
    pub seen: BTreeSet<(usize, usize)>,
}

/// Compares the kept output of a call with the orders that its algorithm allows. Fails with the first element that has none of their values.
/// O(elements · ranks² · different rings).
pub fn check(report: &BytesReport, call: u32, spec: &BytesCall, algorithm: Algorithm) -> Result<Orders, String> {
    if spec.reduction != Reduction::Sum {
        return Err(format!("only the order of sums is known, not of {:?}", spec.reduction));
    }
    let distinct = |all: &[Vec<u32>]| {
        let mut out: Vec<Vec<u32>> = Vec::new();
        all.iter().for_each(|r| {
            if !out.contains(r) {
                out.push(r.clone())
            }
        });
        out
    };
    let (rings, mut trees): (_, Vec<Vec<TreePlace>>) = (distinct(&report.rings), Vec::new());
    report.trees.iter().for_each(|t| {
        if !trees.contains(t) {
            trees.push(t.clone())
        }
    });
    let mut found = Orders { elements: 0, seen: BTreeSet::new() };
    let outputs: Vec<_> = report.outputs.iter().filter(|(c, _, _)| *c == call).collect();
    if outputs.is_empty() {
        return Err(format!("call {call} has no kept output"));
    }
    let size = spec.element.bytes() as usize;
    for (_, rank, bytes) in &outputs {
        for (k, element) in bytes.chunks_exact(size).enumerate() {
            let got = element.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            let (at, last) = match &spec.traffic {
                Traffic::AllReduce(_) => (k, None),
                Traffic::ReduceScatter(_) => (*rank as usize * (bytes.len() / size) + k, Some(*rank)),
                Traffic::Reduce(_) if *rank == spec.root => (k, Some(spec.root)),
                Traffic::Reduce(_) => continue,
                other => return Err(format!("{other:?} reduces nothing")),
            };
            let values: Vec<_> = (0..report.ranks).map(|r| input(spec.element, r, call, at as u64)).collect();
            let order = match algorithm {
                Algorithm::Ring => rings
                    .iter()
                    .enumerate()
                    .find_map(|(c, ring)| ring_order(spec.element, ring, &values, last, got).map(|p| (c, p))),
                Algorithm::Tree => {
                    trees.iter().position(|t| tree_value(spec.element, t, &values) == Some(got)).map(|c| (c, 0))
                }
                other => return Err(format!("the order of {other} is not known")),
            };
            let Some(order) = order else {
                return Err(format!(
                    "rank {rank}, element {k}: {got:#x} is the sum in none of the orders of {algorithm}"
                ));
            };
            found.seen.insert(order);
            found.elements += 1;
        }
    }
    let all_reduce = matches!(spec.traffic, Traffic::AllReduce(_));
    if all_reduce && outputs.iter().any(|(_, _, bytes)| *bytes != outputs[0].2) {
        return Err("ranks hold different results".into());
    }
    Ok(found)
}

/// The place of the first rank of the order whose sum is `got`. `last`: the rank that must come last, if it is known.
fn ring_order(element: Element, ring: &[u32], values: &[u64], last: Option<u32>, got: u64) -> Option<usize> {
    let n = ring.len();
    let fits = |first: &usize| last.is_none_or(|l| ring[(first + n - 1) % n] == l);
    (0..n).filter(fits).find(|&first| {
        let order = (1..n).map(|k| values[ring[(first + k) % n] as usize]);
        order.fold(values[ring[first] as usize], |sum, v| add(element, v, sum)) == got
    })
}

fn tree_value(element: Element, tree: &[TreePlace], values: &[u64]) -> Option<u64> {
    fn of(element: Element, tree: &[TreePlace], values: &[u64], rank: u32, depth: usize) -> Option<u64> {
        let place = tree.iter().find(|p| p.rank == rank).filter(|_| depth <= tree.len())?;
        let own = *values.get(rank as usize)?;
        place
            .down
            .iter()
            .try_fold(own, |sum, child| Some(add(element, sum, of(element, tree, values, *child, depth + 1)?)))
    }
    let root = tree.iter().find(|p| p.up.is_none())?.rank;
    of(element, tree, values, root, 0)
}

/// The input of a rank (`rough` in `emulation/mover.c`), as bits.
fn input(element: Element, rank: u32, call: u32, i: u64) -> u64 {
    let key = 1 + u64::from(rank) + 1_000_000 * u64::from(call);
    let mut z = key.wrapping_mul(0x9E3779B97F4A7C15).wrapping_add(i.wrapping_mul(0xBF58476D1CE4E5B9));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
    z ^= z >> 31;
    let (exponent, low) = ((z >> 32) % 12, z & 0xffff_ffff);
    match element {
        Element::F32 => (low & 0x807f_ffff) | (exponent + 121) << 23,
        Element::F64 => (z & 0x800f_ffff_ffff_ffff) | (exponent + 1017) << 52,
        Element::F16 => (low & 0x83ff) | (exponent + 9) << 10,
        Element::Bf16 => (low & 0x807f) | (exponent + 121) << 7,
        whole => z & mask(whole),
    }
}

fn mask(element: Element) -> u64 {
    u64::MAX >> (64 - 8 * element.bytes())
}

/// One addition, rounded to the element's type. Narrow floats are added exactly in 64 bits, then rounded once.
fn add(element: Element, a: u64, b: u64) -> u64 {
    match element {
        Element::F32 => u64::from((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits()),
        Element::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Element::F16 => narrow(widen(a, 10, 5) + widen(b, 10, 5), 10, 5),
        Element::Bf16 => narrow(widen(a, 7, 8) + widen(b, 7, 8), 7, 8),
        whole => a.wrapping_add(b) & mask(whole),
    }
}

/// A finite float of 16 bits.
fn widen(bits: u64, fraction_bits: u32, exponent_bits: u32) -> f64 {
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let fraction = (bits & ((1 << fraction_bits) - 1)) as f64 / f64::from(1u32 << fraction_bits);
    let exponent = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
    let value =
        if exponent == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(exponent - bias) };
    if bits >> (fraction_bits + exponent_bits) & 1 == 1 { -value } else { value }
}

fn narrow(value: f64, fraction_bits: u32, exponent_bits: u32) -> u64 {
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let sign = u64::from(value.is_sign_negative()) << (fraction_bits + exponent_bits);
    let magnitude = value.abs();
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // In units of the last place; the scaling is exact, the rounding is to even.
    let units = (magnitude * 2f64.powi(fraction_bits as i32 - exponent)).round_ties_even() as u64;
    let bits = ((exponent + bias - 1) as u64).wrapping_shl(fraction_bits) + units; // a carry moves into the exponent
    let infinity = ((1 << exponent_bits) - 1) << fraction_bits;
    sign | bits.min(infinity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_round_to_the_nearest_and_ties_to_even() {
        // fp16: 2048 and 2049 differ by less than a unit; 2049 is a tie.
        let half = |v: f64| narrow(v, 10, 5);
        assert_eq!((half(1.0), half(-2.0), half(65504.0)), (0x3c00, 0xc000, 0x7bff));
        assert_eq!((half(2049.0), half(2051.0)), (half(2048.0), half(2052.0)));
        assert_eq!((half(65519.9), half(65520.0)), (0x7bff, 0x7c00));
        assert_eq!((half(2f64.powi(-24)), half(2f64.powi(-25)), half(1.5 * 2f64.powi(-24))), (1, 0, 2));
        let bf16 = |v: f64| narrow(v, 7, 8);
        assert_eq!((bf16(1.0), bf16(-3.5), bf16(257.0), bf16(259.0)), (0x3f80, 0xc060, bf16(256.0), bf16(260.0)));
        for bits in (0..0x7c00).chain(0x8000..0xfc00) {
            assert_eq!(narrow(widen(bits, 10, 5), 10, 5), bits);
        }
    }

    #[test]
    fn the_order_of_a_sum_changes_its_bits() {
        let differing = (0..100).filter(|i| {
            let values: Vec<u64> = (0..4).map(|r| input(Element::F32, r, 0, *i)).collect();
            let sum = |first: usize| (1..4).fold(values[first], |s, k| add(Element::F32, values[(first + k) % 4], s));
            let sums: BTreeSet<u64> = (0..4).map(sum).collect();
            assert!((0..4).all(|first| ring_order(Element::F32, &[0, 1, 2, 3], &values, None, sum(first)).is_some()));
            sums.len() > 1
        });
        assert!(differing.count() > 50);
    }
}
