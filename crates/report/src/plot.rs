//! Plots as SVG text: lines, points with a diagonal, and bars. Functions take data and return text; no fonts, no files, no network.

use super::axis::{Axis, Frame};
use super::draw::{self, Drawn, Grid, Key, PALETTE};
use super::text;
use plotters::style::Color;

/// Maximum number of series in one plot; further ones are omitted and counted.
pub const SERIES_MAX: usize = PALETTE.len();
/// Maximum number of points of one series. Longer series are thinned evenly and keep their first and last point; a note
/// reports it.
pub const POINTS_MAX: usize = 2_000;
/// Maximum number of categories of a bar plot; further ones are omitted and counted.
pub const CATEGORIES_MAX: usize = 60;

/// A named series of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// (x, y), in the axes' units; lines join them in this order.
    pub points: Vec<(f64, f64)>,
}

/// One bar per category.
#[derive(Debug, Clone, PartialEq)]
pub struct BarSeries {
    /// The name in the legend.
    pub name: String,
    /// One value per category; missing or non-finite ones leave a gap.
    pub values: Vec<f64>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lines with a marker at each point.
    Lines {
        /// The heading of the plot.
        title: String,
        /// The horizontal axis.
        x: Axis,
        /// The vertical axis.
        y: Axis,
        /// At most [`SERIES_MAX`] lines.
        series: Vec<Series>,
    },
    /// Points without lines; with `diagonal` both axes share one range and y = x is drawn (predicted against measured).
    Scatter {
        /// The heading of the plot.
        title: String,
        /// The horizontal axis.
        x: Axis,
        /// The vertical axis.
        y: Axis,
        /// At most [`SERIES_MAX`] series.
        series: Vec<Series>,
        /// Draw y = x.
        diagonal: bool,
    },
    /// Horizontal bars from zero, grouped by category, each with its value.
    Bars {
        /// The heading of the plot.
        title: String,
        /// The axis of the bars' lengths; always linear.
        value: Axis,
        /// The names next to the bars, from the top.
        categories: Vec<String>,
        /// At most [`SERIES_MAX`] bars per category.
        series: Vec<BarSeries>,
    },
}

/// The place where a plot is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Inside an HTML page: transparent, in the page's text colour (light or dark).
    Page,
    /// A separate file: dark on white.
    File,
}

/// The drawing library failed. No data are known to cause this error.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot `{title}`: {reason}")]
pub struct DrawError {
    title: String,
    reason: String,
}

impl Plot {
    /// The heading of the plot.
    pub fn title(&self) -> &str {
        match self {
            Plot::Lines { title, .. } | Plot::Scatter { title, .. } | Plot::Bars { title, .. } => title,
        }
    }

    /// Draws the plot as one `<svg>` element. O(points).
    ///
    /// # Errors
    /// [`DrawError`] if the drawing library fails. No data in this module's tests cause it.
    pub fn svg(&self, place: Place) -> Result<String, DrawError> {
        let drawn = match self {
            Plot::Lines { title, x, y, series } => xy(title, x, y, series, Style::Lines, place),
            Plot::Scatter { title, x, y, series, diagonal } => {
                xy(title, x, y, series, Style::Points { diagonal: *diagonal }, place)
            }
            Plot::Bars { title, value, categories, series } => bars(title, value, categories, series, place),
        };
        drawn.map_err(|e| DrawError { title: text::line(self.title(), text::LABEL_CHARS_MAX), reason: e.to_string() })
    }

    /// A note on the data that the plot omits; empty when it shows everything.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count: usize, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        match self {
            Plot::Lines { x, y, series, .. } | Plot::Scatter { x, y, series, .. } => {
                note(series.len().saturating_sub(SERIES_MAX), "series are not shown");
                let shown = &series[..series.len().min(SERIES_MAX)];
                let total: usize = shown.iter().map(|s| s.points.len()).sum();
                let placed = shown.iter().map(|s| place_points(x, y, s).len());
                let (fit, drawn) = placed.fold((0, 0), |(a, b), n| (a + n, b + n.min(POINTS_MAX)));
                note(total - fit, "points have no place on these axes");
                note(fit - drawn, "points are left out evenly to keep the picture small");
            }
            Plot::Bars { categories, series, .. } => {
                note(series.len().saturating_sub(SERIES_MAX), "series are not shown");
                note(categories.len().saturating_sub(CATEGORIES_MAX), "categories are not shown");
            }
        }
        notes
    }
}

#[derive(Clone, Copy)]
enum Style {
    Lines,
    Points { diagonal: bool },
}

fn place_points(x: &Axis, y: &Axis, series: &Series) -> Vec<(f64, f64)> {
    series.points.iter().filter_map(|&(px, py)| Some((x.place(px)?, y.place(py)?))).collect()
}

/// At most [`POINTS_MAX`] of `points`, evenly, first and last among them.
fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let n = points.len();
    if n <= POINTS_MAX {
        return points;
    }
    (0..POINTS_MAX).map(|i| points[i * (n - 1) / (POINTS_MAX - 1)]).collect()
}

fn xy(title: &str, x: &Axis, y: &Axis, series: &[Series], style: Style, place: Place) -> Drawn<String> {
    let shown = &series[..series.len().min(SERIES_MAX)];
    let clouds: Vec<Vec<(f64, f64)>> = shown.iter().map(|s| thin(place_points(x, y, s))).collect();
    let xs = || clouds.iter().flatten().map(|p| p.0);
    let ys = || clouds.iter().flatten().map(|p| p.1);
    let diagonal = matches!(style, Style::Points { diagonal: true }) && x.log == y.log;
    let (fx, fy) = if diagonal {
        let both = Frame::around(y, xs().chain(ys()), false);
        (both.clone(), both)
    } else {
        (Frame::around(x, xs(), false).ending_with(x, xs()), Frame::around(y, ys(), false))
    };
    let names: Vec<&str> = shown.iter().map(|s| s.name.as_str()).collect();
    let size = if diagonal { (620, 560) } else { (760, 400) };
    draw::picture(size, place, |canvas| {
        let body = draw::head(canvas, title, &names, Key::Mark, &y.label)?;
        let mut chart = draw::chart(&body, &fx, &fy, &x.label, Grid::Both)?;
        if diagonal {
            draw::line(&mut chart, &[(fx.lo, fy.lo), (fx.hi, fy.hi)], draw::INK_FADED, 1.2)?;
        }
        for (index, points) in clouds.iter().enumerate() {
            // Many points are drawn small, few points as marks.
            let (radius, opacity) = match (style, points.len()) {
                (Style::Lines, 0..=60) => (3.5, 1.0),
                (Style::Lines, _) => (0.0, 1.0),
                (Style::Points { .. }, 0..=200) => (3.5, 0.85),
                (Style::Points { .. }, _) => (2.5, 0.5),
            };
            if matches!(style, Style::Lines) {
                draw::line(&mut chart, points, PALETTE[index].mix(1.0), 2.0)?;
            }
            draw::marks(&mut chart, points, index, radius, opacity)?;
        }
        if clouds.iter().all(Vec::is_empty) { draw::nothing(&body) } else { Ok(()) }
    })
}

fn bars(title: &str, value: &Axis, categories: &[String], series: &[BarSeries], place: Place) -> Drawn<String> {
    let value = Axis { log: false, ..value.clone() };
    let shown = &series[..series.len().min(SERIES_MAX)];
    let categories = &categories[..categories.len().min(CATEGORIES_MAX)];
    // (category, series, length), in drawing order.
    let lengths: Vec<(usize, usize, f64)> = (0..categories.len())
        .flat_map(|c| shown.iter().enumerate().map(move |(i, s)| (c, i, s.values.get(c).copied())))
        .filter_map(|(c, i, v)| Some((c, i, value.place(v?)?)))
        .collect();
    let fx = Frame::around(&value, lengths.iter().map(|l| l.2), true).with_room_below_zero();
    let fy = Frame::categories(categories);
    // A plot with one series needs no legend: the title names it.
    let names: Vec<&str> = if shown.len() > 1 { shown.iter().map(|s| s.name.as_str()).collect() } else { Vec::new() };
    let group_px = (18 * shown.len().max(1) + 12).min(120);
    let size = (760, (130 + group_px * categories.len().max(1)) as u32);
    draw::picture(size, place, |canvas| {
        let body = draw::head(canvas, title, &names, Key::Patch, "")?;
        let mut chart = draw::chart(&body, &fx, &fy, &value.label, Grid::Upright)?;
        for &(category, index, length) in &lengths {
            let height = 0.8 / shown.len() as f64;
            let top = fy.hi - category as f64 - 0.1 - height * index as f64;
            let written = if value.bytes { text::bytes(length) } else { text::significant(length) };
            draw::bar(&mut chart, (top, top - height), length, PALETTE[index], &written)?;
        }
        if lengths.is_empty() { draw::nothing(&body) } else { Ok(()) }
    })
}
