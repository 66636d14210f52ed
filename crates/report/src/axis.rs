//! Axes: their ranges, the positions of their ticks, and the labels of the ticks.

use super::text;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Values of a larger magnitude are omitted from a plot (and counted).
const MAGNITUDE_MAX: f64 = 1e15;
/// Positive values below this are omitted from a logarithmic axis.
const MAGNITUDE_MIN: f64 = 1e-15;
/// Intended number of ticks; an axis has at most about half more.
const TICKS_AIM: f64 = 7.0;

/// The quantity and the scale of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity with its unit: `busbw, GB/s`.
    pub label: String,
    /// Logarithmic; values of 0 and below are omitted.
    pub log: bool,
    /// The values are sizes in bytes: ticks at powers of two, written `16 MiB`.
    pub bytes: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis { label: label.into(), log: false, bytes: false }
    }
    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Axis { label: label.into(), log: true, bytes: false }
    }
    /// A logarithmic axis of sizes in bytes.
    #[allow(dead_code)] // no report shows sweeps over sizes yet; the tests draw them
    pub fn log_bytes(label: impl Into<String>) -> Self {
        Axis { label: label.into(), log: true, bytes: true }
    }
    /// The coordinate of `value` on the axis (its logarithm on a logarithmic one), or `None` if the axis cannot show it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || value.abs() > MAGNITUDE_MAX {
            return None;
        }
        match self.log {
            false => Some(value),
            true if value >= MAGNITUDE_MIN => Some(value.log10()),
            true => None,
        }
    }
}

/// An axis laid out over its data: a range in axis coordinates and the ticks inside it.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub lo: f64,
    pub hi: f64,
    /// (coordinate, text), ascending.
    pub ticks: Vec<(f64, String)>,
}

impl Frame {
    /// Lays out `axis` over `places` (from [`Axis::place`]). A linear axis starts at zero if the data come close to
    /// zero or if `zero` is true. Otherwise it starts just below the data, so that differences such as 97 and 99 % are
    /// visible.
    pub fn around(axis: &Axis, places: impl Iterator<Item = f64>, zero: bool) -> Frame {
        let (mut lo, mut hi) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p), h.max(p)));
        if lo > hi {
            (lo, hi) = (0.0, 1.0);
        }
        if axis.log { Frame::log(axis, lo, hi) } else { Frame::linear(axis, lo, hi, zero) }
    }

    fn linear(axis: &Axis, mut lo: f64, mut hi: f64, zero: bool) -> Frame {
        if zero || (lo > 0.0 && lo < 0.6 * hi) {
            lo = lo.min(0.0);
            hi = hi.max(0.0);
        }
        if hi - lo < 1e-9 * hi.abs().max(lo.abs()).max(1e-9) {
            let half = hi.abs().max(1.0) * 0.05;
            lo = if lo == 0.0 { 0.0 } else { lo - half };
            hi += half;
        }
        let step = nice_step((hi - lo) / TICKS_AIM);
        let (first, last) = ((lo / step + 1e-6).floor(), (hi / step - 1e-6).ceil());
        let count = (last - first) as usize;
        let ticks = (0..=count)
            .map(|i| {
                let v = (first + i as f64) * step;
                (v, if axis.bytes { text::bytes(v) } else { text::number(v, step) })
            })
            .collect();
        Frame { lo: first * step, hi: last * step, ticks }
    }

    fn log(axis: &Axis, lo: f64, hi: f64) -> Frame {
        // A margin, so that points do not lie on the frame.
        let air = ((hi - lo) * 0.03).max(0.02);
        let (lo, hi) = (lo - air, hi + air);
        let inside = |v: &f64| (lo..=hi).contains(&v.log10());
        let mut values: Vec<f64> = Vec::new();
        if axis.bytes {
            let (first, last) = ((lo / 2f64.log10()).ceil() as i32, (hi / 2f64.log10()).floor() as i32);
            let stride = (f64::from(last - first + 1) / (1.3 * TICKS_AIM)).ceil().max(1.0) as usize;
            values = (first..=last).step_by(stride).map(|e| 2f64.powi(e)).collect();
        } else {
            let decades = (hi - lo).ceil() as usize;
            let per_decade: &[f64] = if decades > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let stride = decades.div_ceil(9).max(1);
            for e in (lo.floor() as i32..=hi.ceil() as i32).step_by(stride) {
                values.extend(per_decade.iter().map(|m| m * 10f64.powi(e)));
            }
            values.retain(inside);
        }
        // The precision of a tick's text: its own decade, unless ticks are evenly spaced.
        let mut even: Option<f64> = None;
        if values.len() < 3 && !axis.bytes {
            // Over less than a decade, evenly spaced values are easier to read than one or two round ones.
            let step = nice_step((10f64.powf(hi) - 10f64.powf(lo)) / TICKS_AIM);
            let first = (10f64.powf(lo) / step).ceil();
            values = (0..12).map(|i| (first + f64::from(i)) * step).filter(inside).collect();
            even = Some(step);
        }
        let ticks = values
            .into_iter()
            .map(|v| {
                let step = even.unwrap_or_else(|| 10f64.powf(v.log10().floor()));
                let label = if axis.bytes { text::bytes(v) } else { text::number(v, step) };
                (v.log10(), label)
            })
            .collect();
        Frame { lo, hi, ticks }
    }

    /// The same axis, ending just after its data instead of at a tick (the largest request has 32 GPUs, not 35).
    pub fn ending_with(mut self, axis: &Axis, places: impl Iterator<Item = f64>) -> Frame {
        let (lo, hi) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p), h.max(p)));
        if !axis.log && lo < hi {
            let air = (hi - lo) * 0.02;
            (self.lo, self.hi) = (self.lo.max(lo - air), self.hi.min(hi + air));
            self.ticks.retain(|(p, _)| (self.lo..=self.hi).contains(p));
        }
        self
    }

    /// The same axis with room for the numbers at the ends of negative bars.
    pub fn with_room_below_zero(mut self) -> Frame {
        if self.lo < 0.0 {
            self.lo -= (self.hi - self.lo) * 0.09;
        }
        self
    }

    /// One unit per name, the first on top, its tick in the middle.
    pub fn categories(names: &[String]) -> Frame {
        let n = names.len().max(1) as f64;
        let ticks =
            names.iter().enumerate().rev().map(|(i, name)| (n - i as f64 - 0.5, text::line(name, 32))).collect();
        Frame { lo: 0.0, hi: n, ticks }
    }
}

impl Ranged for Frame {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        let part = (place - self.lo) / (self.hi - self.lo);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Grid lines only at ticks.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.iter().map(|(p, _)| *p).collect() }
    }
    fn range(&self) -> Range<f64> {
        self.lo..self.hi
    }
}

impl ValueFormatter<f64> for Frame {
    fn format(place: &f64) -> String {
        place.to_string()
    }
    fn format_ext(&self, place: &f64) -> String {
        let near = (self.hi - self.lo) * 1e-6;
        self.ticks.iter().find(|(p, _)| (p - place).abs() <= near).map(|(_, t)| t.clone()).unwrap_or_default()
    }
}

/// The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below `rough`.
fn nice_step(rough: f64) -> f64 {
    let rough = rough.max(1e-300);
    let power = 10f64.powf(rough.log10().floor());
    let lead = rough / power;
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|n| lead <= n + 1e-9).unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(frame: &Frame) -> Vec<&str> {
        frame.ticks.iter().map(|(_, t)| t.as_str()).collect()
    }

    proptest! {
        #[test]
        fn a_frame_holds_all_its_data_and_a_readable_number_of_ticks(values in prop::collection::vec(-1e12f64..1e12, 1..40), zero: bool) {
            let axis = Axis::linear("x");
            let f = Frame::around(&axis, values.iter().copied(), zero);
            let slack = (f.hi - f.lo) * 1e-5;
            prop_assert!(values.iter().all(|v| f.lo - slack <= *v && *v <= f.hi + slack));
            prop_assert!((2..=12).contains(&f.ticks.len()), "{:?}", f);
        }
        #[test]
        fn a_logarithmic_frame_holds_all_its_data_and_few_ticks(values in prop::collection::vec(1e-6f64..1e12, 1..40), bytes: bool) {
            let axis = Axis { label: "x".into(), log: true, bytes };
            let f = Frame::around(&axis, values.iter().filter_map(|v| axis.place(*v)), false);
            prop_assert!(values.iter().all(|v| f.lo <= v.log10() && v.log10() <= f.hi));
            prop_assert!(f.ticks.len() <= 16, "{:?}", f);
            prop_assert!(f.ticks.windows(2).all(|w| w[0].0 < w[1].0));
        }
    }

    #[test]
    fn an_axis_near_zero_starts_there_and_one_far_from_it_does_not() {
        let axis = Axis::linear("GBE, %");
        assert_eq!(
            labels(&Frame::around(&axis, [22.0, 99.0].into_iter(), false)),
            ["0", "20", "40", "60", "80", "100"]
        );
        assert!(Frame::around(&axis, [97.0, 99.5].into_iter(), false).lo >= 95.0);
    }

    #[test]
    fn sizes_tick_at_powers_of_two() {
        let axis = Axis::log_bytes("size");
        let sizes = (10..=31).filter_map(|e| axis.place(2f64.powi(e)));
        assert_eq!(
            labels(&Frame::around(&axis, sizes, false)),
            ["1 KiB", "8 KiB", "64 KiB", "512 KiB", "4 MiB", "32 MiB", "256 MiB", "2 GiB"]
        );
    }

    #[test]
    fn a_logarithmic_axis_of_less_than_a_decade_writes_every_tick_differently() {
        let axis = Axis::log("gain");
        let f = Frame::around(&axis, [0.92, 3.5].into_iter().filter_map(|v| axis.place(v)), false);
        assert_eq!(labels(&f), ["1.0", "1.5", "2.0", "2.5", "3.0", "3.5"]);
    }

    #[test]
    fn a_value_that_an_axis_cannot_show_has_no_coordinate() {
        assert_eq!(Axis::log("x").place(0.0), None);
        assert_eq!(Axis::linear("x").place(f64::NAN), None);
        assert_eq!(Axis::linear("x").place(1e300), None);
        assert_eq!(Axis::log("x").place(100.0), Some(2.0));
    }

    #[test]
    fn one_value_and_no_value_still_make_an_axis() {
        for axis in [Axis::linear("x"), Axis::log("x"), Axis::log_bytes("x")] {
            let f = Frame::around(&axis, axis.place(64.0).into_iter(), false);
            assert!(f.lo < f.hi && !f.ticks.is_empty(), "{f:?}");
            assert!(Frame::around(&axis, std::iter::empty(), false).lo < 1.0);
        }
    }
}
