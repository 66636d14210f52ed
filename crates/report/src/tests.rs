//! Requirements on a report: for readers, for browsers, and against hostile names.

use super::*;
use proptest::prelude::*;

/// An invented report that uses every part; its numbers have no meaning.
fn sample() -> Report {
    let wave = |phase: f64, n: usize| -> Vec<(f64, f64)> {
        (0..n).map(|i| (2.0 + i as f64, 80.0 + 15.0 * (phase + i as f64 / 5.0).sin())).collect()
    };
    let sizes =
        |top: f64| -> Vec<(f64, f64)> { (10..=31).map(|e| 2f64.powi(e)).map(|s| (s, top * s / (s + 2e7))).collect() };
    let cloud = |shift: f64| -> Vec<(f64, f64)> {
        (1..150).map(|i| f64::from(i) * 3.0).map(|v| (v, v * (1.0 + shift * (v * 1.7).sin()))).collect()
    };
    let s = |name: &str, points| Series { name: name.into(), points };
    Report {
        title: "Placement on a made-up cluster".into(),
        subtitle: "No number on this page was measured.".into(),
        generated_from: "linkwise 0.0.0, seed 1".into(),
        sections: vec![
            Section {
                heading: "By request size".into(),
                paragraphs: vec!["One paragraph of text that explains what the plots below show.".into()],
                table: Some(Table {
                    caption: "GBE by search.".into(),
                    head: vec!["search".into(), "mean, %".into(), "worst, %".into()],
                    rows: vec![
                        vec!["exact".into(), "99.97".into(), "90.1".into()],
                        vec!["packed".into(), "74".into(), "–".into()],
                    ],
                }),
                plots: vec![
                    Plot::Lines {
                        title: "GPU bandwidth efficiency by request size".into(),
                        x: Axis::linear("GPUs requested"),
                        y: Axis::linear("GBE, %"),
                        series: vec![s("exact search", wave(1.5, 31)), s("packed", wave(3.0, 31)), s("random", wave(4.5, 31))],
                    },
                    Plot::Lines {
                        title: "Bandwidth by message size".into(),
                        x: Axis::log_bytes("message size"),
                        y: Axis::linear("busbw, GB/s"),
                        series: vec![s("4+4", sizes(337.0)), s("6+2", sizes(153.0))],
                    },
                ],
                ..Section::default()
            },
            Section {
                heading: "Prediction".into(),
                plots: vec![
                    Plot::Scatter {
                        title: "Predicted and measured bandwidth".into(),
                        x: Axis::linear("measured busbw, GB/s"),
                        y: Axis::linear("predicted busbw, GB/s"),
                        series: vec![s("two hosts", cloud(0.05)), s("three and four hosts", cloud(0.15))],
                        diagonal: true,
                    },
                    Plot::Scatter {
                        title: "Error by time".into(),
                        x: Axis::log("time, µs"),
                        y: Axis::log("error"),
                        series: vec![s("rows", cloud(0.4))],
                        diagonal: false,
                    },
                ],
                ..Section::default()
            },
            Section {
                heading: "Comparison".into(),
                plots: vec![
                    Plot::Bars {
                        title: "Mean GBE by cluster".into(),
                        value: Axis::linear("GBE, %"),
                        categories: vec!["h100".into(), "het-ra".into(), "het-4mix (simulated)".into()],
                        series: vec![
                            BarSeries { name: "exact".into(), values: vec![99.97, 98.2, 97.0] },
                            BarSeries { name: "packed".into(), values: vec![74.0, 61.5, 58.9] },
                            BarSeries { name: "random".into(), values: vec![56.0, 47.0, f64::NAN] },
                        ],
                    },
                    Plot::Bars {
                        title: "Signed error by family".into(),
                        value: Axis::linear("error, %"),
                        categories: vec!["A100".into(), "V100".into(), "4090".into()],
                        series: vec![BarSeries { name: "error".into(), values: vec![1.2, -3.4, -14.25] }],
                    },
                ],
                drawings: vec![Drawing {
                    alt: "A square".into(),
                    svg: "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"40\" height=\"40\"><rect width=\"40\" height=\"40\" fill=\"#369\"/></svg>".into(),
                }],
                pre: Some("$ linkwise place --gpus 8\nn0:0-3 n1:0-3\n".into()),
                ..Section::default()
            },
            Section { heading: "The end".into(), paragraphs: vec!["Nothing more.".into()], ..Section::default() },
        ],
    }
}

/// A page as an XML tree: its template closes every element, apart from a few that HTML leaves open.
fn parse(html: &str) -> String {
    let body = html.split_once("<body>").expect("a body").1.split_once("</body>").expect("its end").0;
    // HTML's void element is the only difference between the page's body and XML.
    let mut xml = String::new();
    let mut rest = body;
    while let Some((before, tail)) = rest.split_once("<img ") {
        let (tag, after) = tail.split_once('>').expect("the end of the image");
        xml.push_str(&format!("{before}<img {tag}/>"));
        rest = after;
    }
    xml.push_str(rest);
    roxmltree::Document::parse(&xml).unwrap_or_else(|e| panic!("the page is not well-formed: {e}"));
    xml
}

#[test]
fn a_page_is_well_formed_and_small() {
    let html = sample().html().expect("a page");
    parse(&html);
    assert!(html.len() < 200_000, "{} bytes", html.len());
}

#[test]
fn a_page_needs_nothing_from_outside() {
    let html = sample().html().expect("a page");
    let without_namespaces = html.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "//", "<script", "<link", "@import", "url("] {
        let found = without_namespaces.find(outside);
        assert!(
            found.is_none(),
            "`{outside}` at {:?}",
            found.map(|i| &without_namespaces[i.saturating_sub(40)..i + 20])
        );
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn every_plot_is_an_svg_document_with_its_title_and_legend_as_text() {
    for section in sample().sections {
        for plot in section.plots {
            for place in [Place::Page, Place::File] {
                let svg = plot.svg(place).expect("a picture");
                let document = roxmltree::Document::parse(&svg).expect("well-formed");
                assert_eq!(document.root_element().tag_name().name(), "svg");
                let texts: Vec<&str> = document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
                assert!(texts.contains(&plot.title()), "{texts:?}");
                if let Plot::Lines { series, x, y, .. } | Plot::Scatter { series, x, y, .. } = &plot {
                    assert!(series.iter().all(|s| texts.contains(&s.name.as_str())));
                    assert!(texts.contains(&x.label.as_str()) && texts.contains(&y.label.as_str()));
                }
            }
        }
    }
}

#[test]
fn a_plot_takes_the_colour_of_its_page_and_a_file_has_a_background() {
    let plot = &sample().sections[0].plots[0];
    let (page, file) = (plot.svg(Place::Page).expect("page"), plot.svg(Place::File).expect("file"));
    assert!(page.contains("currentColor") && !page.contains("#111112") && !page.contains("fill=\"#ffffff\""));
    assert!(file.contains("fill=\"#ffffff\""));
}

#[test]
fn columns_of_numbers_are_aligned_right_and_names_left() {
    let html = sample().html().expect("a page");
    assert!(html.contains(r#"<td class="right">99.97</td>"#) && html.contains(r#"<td class="right">–</td>"#));
    assert!(html.contains("<td>exact</td>"));
    let table = Table { head: vec!["split".into()], rows: vec![vec!["4+4".into()]], ..Table::default() };
    assert!(!table.holds_numbers(0), "a split of GPUs over hosts is not a number");
}

#[test]
fn omitted_data_are_reported() {
    let line = |n: usize| Series { name: "s".into(), points: (0..n).map(|i| (i as f64, 1.0)).collect() };
    let mut series = vec![line(POINTS_MAX_PLUS); 9];
    series[0].points.push((f64::NAN, 1.0));
    let plot = Plot::Lines { title: "t".into(), x: Axis::linear("x"), y: Axis::linear("y"), series };
    assert_eq!(
        plot.notes(),
        [
            "2 series are not shown",
            "1 points have no place on these axes",
            "700 points are left out evenly to keep the picture small"
        ]
    );
    let rows = vec![vec!["1".to_string()]; TABLE_ROWS_MAX + 7];
    let table = Table { head: vec!["n".into()], rows, ..Table::default() };
    let report = Report { sections: vec![Section { table: Some(table), ..Section::default() }], ..Report::default() };
    assert!(report.html().expect("a page").contains("7 more rows are not shown"));
}
const POINTS_MAX_PLUS: usize = plot::POINTS_MAX + 100;

#[test]
fn a_drawing_cannot_run_code_in_the_page() {
    let svg = "<svg xmlns=\"x\" onload=\"alert(1)\"><script>alert(2)</script></svg>".to_string();
    let section = Section { drawings: vec![Drawing { alt: "\"><script>".into(), svg }], ..Section::default() };
    let html = Report { sections: vec![section], ..Report::default() }.html().expect("a page");
    parse(&html);
    assert!(!html.contains("<script") && !html.contains("onload=\""));
}

#[test]
fn a_drawing_that_is_too_large_is_named_instead_of_shown() {
    let section = Section {
        drawings: vec![Drawing { alt: "rack".into(), svg: " ".repeat(DRAWING_BYTES_MAX + 1) }],
        ..Section::default()
    };
    let html = Report { sections: vec![section], ..Report::default() }.html().expect("a page");
    assert!(html.contains("rack: the drawing is too large") && !html.contains("<img"));
}

#[test]
fn a_plot_without_data_shows_the_text_no_data() {
    let empty = Plot::Lines { title: "t".into(), x: Axis::linear("x"), y: Axis::linear("y"), series: vec![] };
    assert!(empty.svg(Place::Page).expect("a picture").contains("no data"));
    let empty = Plot::Bars { title: "t".into(), value: Axis::linear("x"), categories: vec![], series: vec![] };
    assert!(empty.svg(Place::Page).expect("a picture").contains("no data"));
}

/// Any number; extreme ones are frequent.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        -1e3f64..1e3,
        Just(0.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX)
    ]
}

fn axis() -> impl Strategy<Value = Axis> {
    (any::<String>(), any::<bool>(), any::<bool>()).prop_map(|(label, log, bytes)| Axis { label, log, bytes })
}

fn one_series() -> impl Strategy<Value = Series> {
    let points = prop::collection::vec((number(), number()), 0..30);
    (any::<String>(), points).prop_map(|(name, points)| Series { name, points })
}

fn any_plot() -> impl Strategy<Value = Plot> {
    let series = || prop::collection::vec(one_series(), 0..10);
    let values = prop::collection::vec(number(), 0..8);
    let bars =
        prop::collection::vec((any::<String>(), values).prop_map(|(name, values)| BarSeries { name, values }), 0..10);
    let names = prop::collection::vec(any::<String>(), 0..8);
    prop_oneof![
        (any::<String>(), axis(), axis(), series()).prop_map(|(title, x, y, series)| Plot::Lines {
            title,
            x,
            y,
            series
        }),
        (any::<String>(), axis(), axis(), series(), any::<bool>())
            .prop_map(|(title, x, y, series, diagonal)| Plot::Scatter { title, x, y, series, diagonal }),
        (any::<String>(), axis(), names, bars).prop_map(|(title, value, categories, series)| Plot::Bars {
            title,
            value,
            categories,
            series
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_plot_of_any_numbers_and_names_is_a_well_formed_picture(plot in any_plot()) {
        let svg = plot.svg(Place::File).expect("a picture");
        prop_assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", svg);
    }

    #[test]
    fn any_text_in_a_report_stays_text(text in ".{0,40}", hostile in prop::sample::select(vec![
        "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "]]>", "<!--", "&amp;lt;", "\u{0}\u{8}\u{202e}",
    ])) {
        let evil = format!("{text}{hostile}");
        let section = Section {
            heading: evil.clone(),
            paragraphs: vec![evil.clone()],
            table: Some(Table { caption: evil.clone(), head: vec![evil.clone()], rows: vec![vec![evil.clone()]] }),
            plots: vec![Plot::Lines {
                title: evil.clone(), x: Axis::linear(&evil), y: Axis::log(&evil),
                series: vec![Series { name: evil.clone(), points: vec![(1.0, 1.0), (2.0, 3.0)] }],
            }],
            drawings: vec![Drawing { alt: evil.clone(), svg: evil.clone() }],
            pre: Some(evil.clone()),
        };
        let report = Report { title: evil.clone(), subtitle: evil.clone(), generated_from: evil, sections: vec![section] };
        let html = report.html().expect("a page");
        let xml = parse(&html);
        prop_assert!(!html.contains("<script") && !xml.contains("onerror=alert(1)>"));
        let document = roxmltree::Document::parse(&xml).expect("well-formed");
        let images = document.descendants().filter(|n| n.has_tag_name("img")).count();
        prop_assert_eq!(images, 1, "only the drawing is an image");
    }
}
