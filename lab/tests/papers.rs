//! docs/research/papers.md lists every numbered item of the four papers, and names only items that `linkwise-lab reproduce` knows.

mod common;

use common::{lab, said};

const PAGE: &str = include_str!("../../docs/research/papers.md");

/// Heading of a paper, and the numbers of its figures, tables, algorithms and equations. Counted in the papers.
const PAPERS: [(&str, [(&str, u32); 4]); 4] = [
    ("BandPilot", [("Figure", 11), ("Table", 8), ("Algorithm", 5), ("Equation", 0)]),
    ("LiteGD", [("Figure", 12), ("Table", 6), ("Algorithm", 1), ("Equation", 1)]),
    ("Bandit-Guided", [("Figure", 5), ("Table", 3), ("Algorithm", 0), ("Equation", 0)]),
    ("NIMBLE", [("Figure", 8), ("Table", 1), ("Algorithm", 1), ("Equation", 2)]),
];

/// The first cells of a paper's rows.
fn items(paper: &str) -> Vec<&'static str> {
    let begin = PAGE.find(&format!("\n## {paper}")).unwrap_or_else(|| panic!("no section on {paper}"));
    let section = PAGE[begin + 4..].split("\n## ").next().unwrap_or("");
    section.lines().filter_map(|l| l.strip_prefix("| ")?.split(" |").next()).collect()
}

#[test]
fn every_figure_table_algorithm_and_equation_of_the_four_papers_has_a_row() {
    for (paper, kinds) in PAPERS {
        let items = items(paper);
        for (kind, count) in kinds {
            for n in 1..=count {
                // `Figure 6 (a)`; `Algorithm 1, equations 1 and 2`.
                let names = |item: &&str| {
                    let words = item.to_lowercase().replace("equations 1 and 2", "equation 1, equation 2");
                    let wanted = format!("{} {n}", kind.to_lowercase());
                    words
                        .match_indices(&wanted)
                        .any(|(at, _)| !words[at + wanted.len()..].starts_with(|c: char| c.is_ascii_digit()))
                };
                assert!(items.iter().any(names), "{paper}: {kind} {n} has no row among {items:?}");
            }
        }
    }
}

#[test]
fn every_item_that_the_page_names_is_known_to_the_command() {
    let mut asked = 0;
    for paper in ["bandpilot", "litegd"] {
        let (code, known, err) = said(lab("reproduce", &[paper]));
        assert_eq!(code, 0, "{err}");
        for part in PAGE.split(&format!("`linkwise-lab reproduce {paper} ")).skip(1) {
            let item = part.split(['`', ' ']).next().unwrap_or("");
            assert!(
                known.lines().any(|l| l.starts_with(&format!("{item} "))),
                "`linkwise-lab reproduce {paper} {item}`: {known}"
            );
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked} items");
}
