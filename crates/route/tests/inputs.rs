//! Tests of the demand readers: accepted input and error messages.

use route::read::{self, DemandFormat, DispatchLayout};

fn at(e: topology::ReadError) -> (usize, usize, String) {
    (e.line(), e.column(), e.message().to_string())
}

#[test]
fn a_square_of_bytes_is_read_row_by_row() {
    let d = read::csv("# row sends\n0, 5\r\n\n7,0\n", "d.csv").unwrap();
    assert_eq!((d.ranks(), d.get(0, 1), d.get(1, 0)), (2, 5, 7));
}

#[test]
fn a_bad_cell_is_pointed_at() {
    assert_eq!(at(read::csv("0,5\n7,x\n", "d.csv").unwrap_err()), (2, 3, "`x` is not a whole number of bytes".into()));
    assert_eq!(at(read::csv("0,5\n-7,0\n", "d.csv").unwrap_err()).0, 2);
    assert_eq!(
        at(read::csv("0,5,1\n7,0\n", "d.csv").unwrap_err()),
        (2, 1, "this line has 2 numbers, the first has 3".into())
    );
    assert_eq!(
        at(read::csv("0,5\n", "d.csv").unwrap_err()).2,
        "the file has 1 lines of 2 numbers, which is not a square"
    );
    assert_eq!(at(read::csv("0,,\n", "d.csv").unwrap_err()), (1, 3, "an empty cell".into()));
    for bad in
        ["", "\n\n", "0,5\n5,0\n1,1\n", "0,18446744073709551616\n0,0\n", "0,9000000000000000\n9000000000000000,0\n"]
    {
        assert!(read::csv(bad, "d.csv").is_err(), "{bad:?}");
    }
    let wide = format!("{}0\n", "0,".repeat(2000));
    assert_eq!(at(read::csv(&wide, "d.csv").unwrap_err()).2, "more than 1024 columns");
}

#[test]
fn json_holds_rows_or_entries() {
    for text in [
        "[[0,5],[7,0]]",
        r#"{"bytes":[[0,5],[7,0]]}"#,
        r#"{"ranks":2,"demands":[{"src":0,"dst":1,"bytes":2},{"src":0,"dst":1,"bytes":3},{"src":1,"dst":0,"bytes":7}]}"#,
    ] {
        let d = read::json(text, "d.json").unwrap();
        assert_eq!((d.get(0, 1), d.get(1, 0)), (5, 7), "{text}");
    }
    let e = at(read::json("{\"bytes\":[[0,5],\n[7,]]}", "d.json").unwrap_err());
    assert_eq!(e.0, 2, "{e:?}");
    for bad in [
        "{}",
        "[[0,5]]",
        "[[0,-5],[1,0]]",
        "[[0,1.5],[1,0]]",
        r#"{"ranks":2,"demands":[{"src":0,"dst":2,"bytes":1}]}"#,
        r#"{"ranks":1000000000,"demands":[]}"#,
        r#"{"bytes":[[0]],"byte":1}"#,
        "[]",
    ] {
        assert!(read::json(bad, "d.json").is_err(), "{bad}");
    }
}

#[test]
fn a_replay_needs_the_files_of_all_ranks_and_they_must_agree() {
    let rank = |i: &str, o: &str| {
        format!(
            r#"[{{"comms":"init","x":1}},{{"comms":"all_to_allv","in_split":{i},"out_split":{o},"dtype":"BFloat16","world_size":2}}]"#
        )
    };
    let file = |n: &str, t: String| (n.to_string(), t);
    let d = read::param(&[file("r0", rank("[1,5]", "[1,7]")), file("r1", rank("[7,0]", "[5,0]"))], 0).unwrap();
    assert_eq!((d.get(0, 1), d.get(1, 0)), (10, 14));
    let swapped = [file("r0", rank("[1,5]", "[1,8]")), file("r1", rank("[7,0]", "[5,0]"))];
    let e = at(read::param(&swapped, 0).unwrap_err());
    assert!(e.2.contains("rank 0 expects 16 bytes from rank 1, which sends 14"), "{e:?}");
    assert!(at(read::param(&swapped, 3).unwrap_err()).2.contains("number 3"));
    assert!(at(read::param(&swapped[..1], 0).unwrap_err()).2.contains("2 ranks, but 1 files"));
    let equal =
        r#"[{"comms":"all_to_all","in_split":[],"out_split":[],"in_msg_size":8,"dtype":"Float","world_size":2}]"#;
    let d = read::param(&[file("a", equal.into()), file("b", equal.into())], 0).unwrap();
    assert_eq!((d.get(0, 1), d.get(1, 0)), (16, 16));
    assert!(read::param(&[file("a", "[{\"comms\":".into())], 0).is_err());
    assert!(read::param(&[], 0).is_err());
}

#[test]
fn tokens_go_once_to_each_rank_that_has_one_of_their_experts() {
    // Two tokens of two experts each; four experts on two ranks.
    let routing = read::esft("0\t1\t2\t3\t\t0.5\t0.5\t0.5\t0.5\n", "e.txt", 4, 2).unwrap();
    assert_eq!(routing.tokens(), 2);
    let d = routing.demand(&DispatchLayout { ranks: 2, bytes_per_token: 100, tokens: None }).unwrap();
    // Token 0 (on rank 0) has experts 0 and 1, both on rank 0; token 1 (on rank 1) has 2 and 3, both on rank 1.
    assert_eq!((d.get(0, 0), d.get(0, 1), d.get(1, 0), d.get(1, 1)), (100, 0, 0, 100));
    let d = routing.demand(&DispatchLayout { ranks: 4, bytes_per_token: 100, tokens: Some(4) }).unwrap();
    assert_eq!(d.total(), 800, "four tokens to two ranks each");
    assert!(routing.demand(&DispatchLayout { ranks: 5, bytes_per_token: 1, tokens: None }).is_err());
    assert!(routing.demand(&DispatchLayout { ranks: 2, bytes_per_token: u64::MAX, tokens: None }).is_err());
    assert_eq!(
        at(read::esft("0\t9\t\t1\t1\n", "e.txt", 4, 2).unwrap_err()),
        (1, 3, "`9` is not an expert of 0 to 3".into())
    );
    assert_eq!(at(read::esft("0\t1\t2\t\t1\n", "e.txt", 4, 2).unwrap_err()).0, 1);
    assert!(read::esft("", "e.txt", 4, 2).is_err());
}

#[test]
fn formats_are_detected() {
    assert_eq!(read::detect_format("0,1\n1,0"), DemandFormat::Csv);
    assert_eq!(read::detect_format(" [[0]]"), DemandFormat::Json);
    assert_eq!(read::detect_format("{\"ranks\":1}"), DemandFormat::Json);
    assert_eq!(read::detect_format("[{\"comms\":\"all_to_allv\"}]"), DemandFormat::Param);
    assert_eq!(read::detect_format("1\t2\t3\t\t0.1\t0.2\t0.3"), DemandFormat::Esft);
}
