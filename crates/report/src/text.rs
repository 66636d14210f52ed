//! Makes external text safe to show: names in a report come from files and may contain anything.

/// Longest label in a plot, in characters.
pub const LABEL_CHARS_MAX: usize = 60;
/// Longest cell of a table, in characters.
pub const CELL_CHARS_MAX: usize = 400;
/// Longest paragraph or preformatted block, in characters.
pub const BLOCK_CHARS_MAX: usize = 100_000;

/// One line of text: control characters and line breaks become spaces, direction overrides and characters that XML
/// forbids are removed, and a text longer than `chars_max` ends in an ellipsis.
pub fn line(text: &str, chars_max: usize) -> String {
    clip(text.chars().map(|c| if c.is_control() { ' ' } else { c }).filter(|c| shown(*c)), chars_max)
}

/// Text with its line breaks, otherwise like [`line`].
pub fn block(text: &str, chars_max: usize) -> String {
    let spaced = text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
    clip(spaced.filter(|c| shown(*c)), chars_max)
}

/// True for a character that XML allows and that is not a direction override or mark (a name must not reorder its surroundings).
fn shown(c: char) -> bool {
    !matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn clip(mut chars: impl Iterator<Item = char>, chars_max: usize) -> String {
    let mut out: String = chars.by_ref().take(chars_max).collect();
    if chars.next().is_some() {
        out.pop();
        out.push('…');
    }
    out
}

/// Estimated width of `text` in pixels, in a sans-serif font of `size_px`. An SVG has no font metrics; the estimate is generous.
pub fn width_px(text: &str, size_px: f64) -> f64 {
    let em: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '(' | ')' => 0.36,
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.95,
            c if c.is_ascii_uppercase() => 0.72,
            c if c.is_ascii() => 0.61,
            _ => 1.0,
        })
        .sum();
    em * size_px
}

/// A size in bytes with a binary unit: `16 MiB`, `1.5 KiB`, `7 B`.
pub fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = value;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if (value - value.round()).abs() < 0.005 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

/// A number with enough digits for a step of `step` between neighbours, without trailing noise.
pub fn number(value: f64, step: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && (magnitude >= 1e7 || step < 1e-5) {
        return format!("{value:.3e}").replace(".000e", "e");
    }
    let digits = (-step.abs().max(1e-6).log10()).ceil().max(0.0) as usize;
    // A step such as 2.5 needs one more digit than its power of ten.
    let digits = if (step * 10f64.powi(digits as i32)).fract().abs() > 1e-6 { digits + 1 } else { digits };
    let text = format!("{:.*}", digits.min(6), value);
    if text.trim_start_matches(['-', '0', '.']).is_empty() { "0".into() } else { text }
}

/// A number with about four significant digits: `99.97`, `337.2`, `4`, `0.0021`.
pub fn significant(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1e7 || (magnitude > 0.0 && magnitude < 1e-3) {
        return format!("{value:.2e}");
    }
    let digits = match magnitude {
        m if m >= 1000.0 => 0,
        m if m >= 100.0 => 1,
        m if m >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_holds_no_control_character_and_keeps_its_limit(text in any::<String>(), limit in 1usize..50) {
            let shown = line(&text, limit);
            prop_assert!(shown.chars().count() <= limit);
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }

    #[test]
    fn a_direction_override_cannot_hide_in_a_name() {
        assert_eq!(line("n0\u{202e}evil\u{2066}\n\u{1b}[31m", 40), "n0evil  [31m");
    }

    #[test]
    fn sizes_have_the_shortest_binary_unit() {
        assert_eq!(bytes(7.0), "7 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(16.0 * 1048576.0), "16 MiB");
        assert_eq!(bytes(2.0 * 1073741824.0), "2 GiB");
    }

    #[test]
    fn numbers_show_the_digits_that_the_step_needs() {
        assert_eq!(number(2.5, 2.5), "2.5");
        assert_eq!(number(100.0, 20.0), "100");
        assert_eq!(number(0.30000000000000004, 0.1), "0.3");
        assert_eq!(number(-0.0, 0.1), "0");
        assert_eq!(number(3e9, 1e9), "3e9");
        assert_eq!([99.97, 337.17, 4.0, 0.0021, 20480.4].map(significant), ["99.97", "337.2", "4", "0.0021", "20480"]);
    }
}
