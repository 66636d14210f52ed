//! Prints lists of names as the shortest text.

use super::{BRACKETS_MAX, parse::Range};
use std::collections::HashMap;
use std::fmt::Write;

/// Maximum number of digits of a number. A longer run of digits is text.
const DIGITS_MAX: usize = 9;

/// Rule for the names that may share brackets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Any names. The output may have any order.
    Set,
    /// The output keeps the order of the names.
    Ordered,
    /// As `Ordered`, with one pair of brackets, at the end of the name: every release of Slurm reads this form.
    Slurm,
}

#[derive(Clone, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// The names of one item of a list.
struct Item<'a>(Vec<Part<'a>>);

impl<'a> Item<'a> {
    fn of(name: &'a str) -> Self {
        let mut parts = Vec::new();
        let mut text_from = 0;
        let mut at = 0;
        let bytes = name.as_bytes();
        while at < bytes.len() {
            let digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
            if digits == 0 {
                at += 1;
                continue;
            }
            if let (1..=DIGITS_MAX, Ok(n)) = (digits, name[at..at + digits].parse()) {
                if text_from < at {
                    parts.push(Part::Text(&name[text_from..at]));
                }
                parts.push(Part::Numbers(vec![Range { from: n, to: n, width: digits }]));
                text_from = at + digits;
            }
            at += digits;
        }
        if text_from < name.len() {
            parts.push(Part::Text(&name[text_from..]));
        }
        Item(parts)
    }

    /// Merges `other` into this item if both differ only in the numbers of one bracket and `how` allows it.
    fn absorb(&mut self, other: &Item<'a>, how: Fold) -> bool {
        if self.0.len() != other.0.len() {
            return false;
        }
        let mut differing = self.0.iter().zip(&other.0).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i);
        let (Some(place), None) = (differing.next(), differing.next()) else { return false };
        let is_list = |p: &Part| matches!(p, Part::Numbers(r) if r.len() > 1 || r[0].from < r[0].to);
        let others = self.0.iter().enumerate().filter(|(i, p)| *i != place && is_list(p)).map(|(i, _)| i);
        let allowed = match how {
            Fold::Set => others.count() < BRACKETS_MAX,
            Fold::Ordered => others.clone().all(|i| i > place) && others.count() < BRACKETS_MAX,
            Fold::Slurm => place + 1 == self.0.len() && others.count() == 0,
        };
        let (Part::Numbers(mine), Part::Numbers(more)) = (&mut self.0[place], &other.0[place]) else { return false };
        if allowed {
            more.iter().for_each(|r| push(mine, *r));
        }
        allowed
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for part in &self.0 {
            let _ = match part {
                Part::Text(t) => write!(out, "{t}"),
                Part::Numbers(r) => match r.as_slice() {
                    [one] if one.from == one.to => write!(out, "{:0w$}", one.from, w = one.width),
                    list => write!(out, "[{}]", of_ranges(list)),
                },
            };
        }
        out
    }
}

/// Adds a range; extends the last one if the numbers continue with the same padding.
fn push(ranges: &mut Vec<Range>, next: Range) {
    if let Some(last) = ranges.last_mut() {
        // The start of `next` must equal `to + 1`, printed with the padding of the last range.
        let same = format!("{:0w$}", next.from, w = last.width).len() == next.width.max(digits(next.from));
        if last.to.checked_add(1) == Some(next.from) && same {
            last.to = next.to;
            return;
        }
    }
    ranges.push(next);
}

fn digits(n: u32) -> usize {
    n.checked_ilog10().map_or(1, |d| d as usize + 1)
}

/// The ranges as text: `0-3,07,10`.
fn of_ranges(ranges: &[Range]) -> String {
    let one = |r: &Range| match r.from == r.to {
        true => format!("{:0w$}", r.from, w = r.width),
        false => format!("{:0w$}-{:0w$}", r.from, r.to, w = r.width),
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The fewest items for these names. Duplicate names are printed twice. O(bytes) per bracket.
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>, how: Fold) -> Vec<String> {
    let mut items: Vec<Item> = names.into_iter().map(Item::of).collect();
    if how == Fold::Set {
        items = together(items);
    }
    for _ in 0..BRACKETS_MAX {
        let before = items.len();
        let mut merged: Vec<Item> = Vec::new();
        for item in items {
            if !merged.last_mut().is_some_and(|last| last.absorb(&item, how)) {
                merged.push(item);
            }
        }
        items = merged;
        if items.len() == before {
            break;
        }
    }
    items.iter().map(Item::text).collect()
}

/// The numbers in a name with their widths, and the item.
type Member<'a> = (Vec<(u32, usize)>, Item<'a>);

/// Groups names that differ only in numbers, in ascending order of the numbers. O(names x log names).
fn together(items: Vec<Item>) -> Vec<Item> {
    let mut places: HashMap<Vec<Option<&str>>, usize> = HashMap::new();
    let mut families: Vec<Vec<Member>> = Vec::new();
    for item in items {
        let mut words = Vec::new();
        let mut numbers = Vec::new();
        for part in &item.0 {
            match part {
                Part::Text(t) => words.push(Some(*t)),
                Part::Numbers(r) => {
                    words.push(None);
                    numbers.extend(r.iter().map(|r| (r.from, r.width)));
                }
            }
        }
        let next = families.len();
        let place = *places.entry(words).or_insert(next);
        if place == next {
            families.push(Vec::new());
        }
        families[place].push((numbers, item));
    }
    families.iter_mut().for_each(|f| f.sort_by(|a, b| a.0.cmp(&b.0)));
    families.into_iter().flatten().map(|(_, item)| item).collect()
}

/// Numbers in ascending order, `0-3,6`.
pub fn runs(sorted: impl IntoIterator<Item = usize>) -> String {
    let mut ranges = Vec::new();
    for i in sorted {
        let n = u32::try_from(i).unwrap_or(u32::MAX);
        push(&mut ranges, Range { from: n, to: n, width: 1 });
    }
    of_ranges(&ranges)
}
