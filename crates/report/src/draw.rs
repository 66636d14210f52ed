//! Drawing: a canvas with a title and a legend above the data (never over them), axes, lines, marks and bars.
//!
//! plotters draws on whole pixels and has no font metrics. The canvas is therefore [`FINE`] times larger than the picture,
//! for smooth lines, and the width of a text is estimated generously. Text and axes are drawn in [`INK`], which becomes
//! the text colour of the page.

use super::axis::Frame;
use super::plot::Place;
use super::text::{self, LABEL_CHARS_MAX};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Canvas units per pixel of the picture.
const FINE: u32 = 4;
/// A placeholder for the page's text colour until the picture is finished; it has no other use.
const INK: RGBColor = RGBColor(17, 17, 18);
/// The same for grid lines and other parts that are less prominent than the data.
pub const INK_FADED: RGBAColor = RGBAColor(17, 17, 18, 0.45);
const GRID: RGBAColor = RGBAColor(17, 17, 18, 0.14);
const FONT: &str = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif";

/// Colours that people with any common colour blindness can distinguish (after Okabe and Ito), adjusted in lightness so
/// that each has contrast on a light and on a dark page. The marks also differ in shape.
pub const PALETTE: [RGBColor; 7] = [
    RGBColor(26, 127, 193),  // blue
    RGBColor(213, 94, 0),    // vermilion
    RGBColor(0, 145, 106),   // bluish green
    RGBColor(190, 105, 155), // reddish purple
    RGBColor(176, 124, 0),   // orange
    RGBColor(56, 146, 196),  // sky blue
    RGBColor(120, 125, 132), // grey
];

/// An error of the drawing library.
pub type Drawn<T> = Result<T, Box<dyn std::error::Error>>;
/// A part of the picture, in canvas units.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A canvas with axes, in axis coordinates.
pub type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Frame, Frame>>;

/// The grid lines to draw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// At the ticks of both axes.
    Both,
    /// Only vertical ones: the other axis has categories.
    Upright,
}

fn fine(px: f64) -> i32 {
    (px * f64::from(FINE)).round() as i32
}

/// A text style of `px` pixels (the SVG writer divides sizes by 1.24).
fn font(px: f64, ink: &impl Color) -> TextStyle<'static> {
    (FONT, px * f64::from(FINE) * 1.24).into_font().color(ink)
}

fn bold(px: f64) -> TextStyle<'static> {
    (FONT, px * f64::from(FINE) * 1.24, FontStyle::Bold).into_font().color(&INK)
}

/// Draws a picture of `size` pixels and returns it as one `<svg>` element.
pub fn picture(size: (u32, u32), place: Place, draw: impl FnOnce(&Canvas) -> Drawn<()>) -> Drawn<String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (size.0 * FINE, size.1 * FINE)).into_drawing_area();
        draw(&canvas)?;
        canvas.present()?;
    }
    let (w, h) = size;
    let (fw, fh) = (w * FINE, h * FINE);
    let opening = format!("<svg width=\"{fw}\" height=\"{fh}\"");
    let (style, ground) = match place {
        Place::Page => ("", String::new()),
        Place::File => {
            (" style=\"color:#1b1f24\"", format!("<rect width=\"{fw}\" height=\"{fh}\" fill=\"#ffffff\"/>\n"))
        }
    };
    let ink = format!("\"#{:02X}{:02X}{:02X}\"", INK.0, INK.1, INK.2);
    let svg = svg.replacen(&opening, &format!("<svg width=\"{w}\" height=\"{h}\" role=\"img\"{style}"), 1);
    let svg = svg.replacen(">\n", &format!(">\n{ground}"), 1);
    // No text contains a quoted colour, because quotes in texts are escaped.
    Ok(svg.replace(&ink, "\"currentColor\""))
}

/// The mark of a series in the legend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// By the shape of its marks.
    Mark,
    /// As a square of its colour.
    Patch,
}

/// Draws title, legend and the label of the vertical axis, from the top; returns the remaining area below.
pub fn head<'a>(canvas: &Canvas<'a>, title: &str, names: &[&str], key: Key, y_label: &str) -> Drawn<Canvas<'a>> {
    const LEFT: f64 = 14.0;
    let width = f64::from(canvas.dim_in_pixel().0 / FINE);
    canvas.draw_text(&text::line(title, 90), &bold(15.0), (fine(LEFT), fine(12.0)))?;
    let mut y = 40.0;
    let mut x = LEFT;
    for (index, name) in names.iter().enumerate() {
        let name = text::line(name, LABEL_CHARS_MAX);
        let item = 18.0 + text::width_px(&name, 13.0) + 18.0;
        if x > LEFT && x + item > width {
            (x, y) = (LEFT, y + 20.0);
        }
        let middle = (fine(x + 6.0), fine(y + 6.0));
        let shape = if key == Key::Mark { index } else { SQUARE };
        canvas.draw(&(EmptyElement::at(middle) + Polygon::new(outline(shape, 5.0), PALETTE[index].filled())))?;
        canvas.draw_text(&name, &font(13.0, &INK), (fine(x + 17.0), fine(y)))?;
        x += item;
    }
    if !names.is_empty() {
        y += 24.0;
    }
    if !y_label.is_empty() {
        canvas.draw_text(&text::line(y_label, LABEL_CHARS_MAX), &font(12.5, &INK.mix(0.75)), (fine(LEFT), fine(y)))?;
        y += 20.0;
    }
    Ok(canvas.margin(fine(y), 0, 0, 0))
}

/// Axes with their ticks, grid and the label of the horizontal axis.
pub fn chart<'a>(body: &Canvas<'a>, fx: &Frame, fy: &Frame, x_label: &str, grid: Grid) -> Drawn<Chart<'a>> {
    let widest = fy.ticks.iter().map(|(_, t)| text::width_px(t, 12.5)).fold(24.0, f64::max);
    let mut chart = ChartBuilder::on(body)
        .margin_top(fine(8.0))
        // Room for half of the last tick's text, and for the number at the end of the longest bar.
        .margin_right(fine(if grid == Grid::Upright { 54.0 } else { 24.0 }))
        .margin_bottom(fine(6.0))
        .margin_left(fine(8.0))
        .x_label_area_size(fine(46.0))
        .y_label_area_size(fine(widest + 10.0))
        .build_cartesian_2d(fx.clone(), fy.clone())?;
    let mut mesh = chart.configure_mesh();
    if grid == Grid::Upright {
        mesh.disable_y_mesh();
    }
    mesh.axis_style(INK.mix(0.5).stroke_width(FINE))
        .bold_line_style(GRID.stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .set_all_tick_mark_size(fine(4.0))
        .x_labels(fx.ticks.len())
        .y_labels(fy.ticks.len())
        .x_label_style(font(12.5, &INK))
        .y_label_style(font(12.5, &INK))
        .axis_desc_style(font(12.5, &INK.mix(0.75)))
        .x_desc(text::line(x_label, LABEL_CHARS_MAX))
        .draw()?;
    Ok(chart)
}

/// A line through `points`, `px` pixels wide.
pub fn line(chart: &mut Chart, points: &[(f64, f64)], ink: RGBAColor, px: f64) -> Drawn<()> {
    let style = ink.stroke_width(fine(px) as u32);
    chart.draw_series(std::iter::once(PathElement::new(points.to_vec(), style)))?;
    Ok(())
}

/// A mark at each point, in the colour and shape of series `index`.
pub fn marks(chart: &mut Chart, points: &[(f64, f64)], index: usize, radius_px: f64, opacity: f64) -> Drawn<()> {
    if radius_px <= 0.0 {
        return Ok(());
    }
    let style = PALETTE[index].mix(opacity).filled();
    chart.draw_series(points.iter().map(|p| EmptyElement::at(*p) + Polygon::new(outline(index, radius_px), style)))?;
    Ok(())
}

/// The index of a series whose mark is a square.
const SQUARE: usize = 1;

/// The outline of series `index`'s mark around (0, 0), in canvas units: disc, square, triangle, diamond, and again.
fn outline(index: usize, radius_px: f64) -> Vec<(i32, i32)> {
    let (corners, turn, size) = match index % 4 {
        0 => (16, 0.0, 1.0),
        SQUARE => (4, 0.125, 1.15),
        2 => (3, 0.75, 1.25),
        _ => (4, 0.0, 1.3),
    };
    let radius = radius_px * size * f64::from(FINE);
    (0..corners)
        .map(|i| (f64::from(i) / f64::from(corners) + turn) * std::f64::consts::TAU)
        .map(|a| ((radius * a.cos()).round() as i32, (radius * a.sin()).round() as i32))
        .collect()
}

/// A horizontal bar from zero to `length` between two heights, with the text `written` at its end.
pub fn bar(chart: &mut Chart, heights: (f64, f64), length: f64, ink: RGBColor, written: &str) -> Drawn<()> {
    chart.draw_series(std::iter::once(Rectangle::new([(0.0, heights.0), (length, heights.1)], ink.filled())))?;
    let (side, gap) = if length < 0.0 { (HPos::Right, -5.0) } else { (HPos::Left, 5.0) };
    let style = font(12.0, &INK).pos(Pos::new(side, VPos::Center));
    let middle = (length, (heights.0 + heights.1) / 2.0);
    chart.draw_series(std::iter::once(
        EmptyElement::at(middle) + Text::new(written.to_string(), (fine(gap), 0), style),
    ))?;
    Ok(())
}

/// Draws the text "no data".
pub fn nothing(body: &Canvas) -> Drawn<()> {
    let (w, h) = body.dim_in_pixel();
    let style = font(14.0, &INK.mix(0.75)).pos(Pos::new(HPos::Center, VPos::Center));
    body.draw_text("no data", &style, (w as i32 / 2, h as i32 / 2))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance and contrast as WCAG 2 defines them.
    fn luminance(c: RGBColor) -> f64 {
        let part = |v: u8| {
            let v = f64::from(v) / 255.0;
            if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(c.0) + 0.7152 * part(c.1) + 0.0722 * part(c.2)
    }
    fn contrast(a: RGBColor, b: RGBColor) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_series_has_contrast_on_a_light_and_on_a_dark_page() {
        for ground in [RGBColor(255, 255, 255), RGBColor(22, 24, 29)] {
            for colour in PALETTE {
                assert!(contrast(colour, ground) >= 3.0, "{colour:?} on {ground:?}: {:.2}", contrast(colour, ground));
            }
        }
    }
}
