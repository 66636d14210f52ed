use super::*;
use crate::catalog;
use crate::cluster::Host;
use proptest::prelude::*;

/// A cluster of hosts with these names. The host types have 8, 1, 16 and 4 GPUs in turn.
fn cluster_of(names: impl IntoIterator<Item = String>) -> Cluster {
    let types: Vec<_> = [8, 1, 16, 4]
        .into_iter()
        .map(|n| {
            let mut t = catalog::host_type("hgx-h100").unwrap();
            let (gpu, path) = (t.gpus[0].clone(), t.gpu_paths[0][1]);
            t.gpus = vec![gpu; n];
            t.gpu_paths = vec![vec![path; n]; n];
            t
        })
        .collect();
    let host = |(i, name): (usize, String)| Host { name, host_type: i % 4, ..Host::default() };
    Cluster { name: "c".into(), hosts: names.into_iter().enumerate().map(host).collect(), types, ..Cluster::default() }
}

/// A cluster of hosts with eight GPUs each.
fn of_eight(names: impl IntoIterator<Item = String>) -> Cluster {
    let mut c = cluster_of(names);
    c.hosts.iter_mut().for_each(|h| h.host_type = 0);
    c
}

fn n64() -> Cluster {
    of_eight((0..64).map(|i| format!("n{i}")))
}

/// Host names as real sites choose them.
fn schemes() -> Vec<Vec<String>> {
    vec![
        (0..40).map(|i| format!("n{i}")).collect(),
        (1..=120).map(|i| format!("gpu-{i:03}")).collect(),
        (95..=130).map(|i| format!("n{i:02}")).collect(),
        (0..30).map(|i| format!("rack{}-n{}-ib", i / 8, i % 8)).collect(),
        (0..36).map(|i| format!("r{:02}c{}s{:02}", i / 12, i / 4 % 3, i % 4)).collect(),
        (20..40).map(|i| i.to_string()).collect(),
        (0..12).map(|i| format!("ip-10-0-{}-{}.internal", i / 4, i)).collect(),
        ["login", "alpha", "beta", "n1", "n01", "n001", "1", "01", "5-6", "GPU-7"].map(String::from).to_vec(),
        (0..8).map(|i| format!("n{}", 4_000_000_000u64 + i)).collect(),
        (0..8).map(|i| format!("knöten{i}ß")).collect(),
        (0..32).map(|i| format!("a{}b{}c{}d{}e{}", i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1, i >> 4)).collect(),
    ]
}

#[test]
fn a_large_allocation_is_one_item() {
    let c = n64();
    let show = |list: &str| c.gpu_list(&c.parse_gpus([list]).unwrap());
    assert_eq!(show("n[0-63]:[0-3]"), "n[0-63]:[0-3]");
    assert_eq!(show("n[0-3]"), "n[0-3]:[0-7]", "whole hosts print with their GPUs");
    assert_eq!(show("n2:3"), "n2:3");
    assert_eq!(show("n1:6 n1:0 n1:1,n1:2,n1:3"), "n1:[0-3,6]");
    assert_eq!(show("n0 n1:0 n2 n3:0 n4"), "n[0,2,4]:[0-7] n[1,3]:0", "hosts with the same GPUs share an item");
    assert_eq!(c.gpu_list(&Allocation::default()), "");
    assert_eq!(c.parse_gpus([]).unwrap(), Allocation::default());
    assert_eq!(c.host_list(c.host_ids().take(3)), "n[0-2]");
}

#[test]
fn padding_suffixes_and_several_brackets_are_kept_short() {
    for (names, text) in [
        ((1..=16).map(|i| format!("gpu-{i:03}")).collect::<Vec<_>>(), "gpu-[001-016]"),
        ((8..=101).map(|i| format!("n{i:02}")).collect(), "n[08-101]"),
        ((0..4).map(|i| format!("rack1-n{i}-ib")).collect(), "rack1-n[0-3]-ib"),
        ((0..8).map(|i| format!("r{}n{}", i / 4, i % 4)).collect(), "r[0-1]n[0-3]"),
        ((0..7).map(|i| format!("r{}n{}", i / 4, i % 4)).collect(), "r0n[0-3] r1n[0-2]"),
        (["b1", "a1", "b0", "a0"].map(String::from).to_vec(), "b[0-1] a[0-1]"),
    ] {
        let c = of_eight(names);
        assert_eq!(c.host_list(c.host_ids()), text);
    }
}

#[test]
fn lists_printed_by_earlier_releases_are_read() {
    let c = n64();
    let read = |list: &str| c.gpu_list(&c.parse_gpus([list]).unwrap_or_else(|e| panic!("{list}: {e}")));
    assert_eq!(read("n0{0-7} n2{0,1,5}"), "n0:[0-7] n2:[0-1,5]");
    assert_eq!(read("n0:0-7"), "n0:[0-7]");
    assert_eq!(read("n0:0,1,2 n1:0-2,5,7"), "n0:[0-2] n1:[0-2,5,7]");
    let named_so = of_eight(["n0".into(), "2".into()]);
    assert_eq!(named_so.gpu_list(&named_so.parse_gpus(["n0:0,2"]).unwrap()), "n0:0 2:[0-7]");
}

#[test]
fn the_order_of_ranks_is_kept() {
    let c = n64();
    let order = |list: &str| ListReader::new(&c).gpus_in_order([list]).unwrap();
    for (list, printed) in [
        ("n3 n2:0 n[0-1]", "n3:[0-7] n2:0 n[0-1]:[0-7]"),
        ("n[5,3,4]", "n[5,3-4]:[0-7]"),
        ("n1:0 n2:1 n1:1", "n1:[0-1] n2:1"),
    ] {
        assert_eq!(c.gpu_list_in_order(&order(list)), printed);
        assert_eq!(order(printed), order(list));
    }
}

#[test]
fn uuids_are_read() {
    let mut c = n64();
    c.hosts[3].gpu_uuids = (0..8).map(|g| format!("GPU-3{g}aa-bb")).collect();
    assert_eq!(c.gpu_list(&c.parse_gpus(["GPU-35aa-bb n0:1"]).unwrap()), "n0:1 n3:5");
    assert_eq!(ListReader::new(&c).gpu("GPU-30aa-bb").unwrap().gpu, 0);
    assert!(ListReader::new(&c).gpu("n[0-1]:0").unwrap_err().message.contains("is not one GPU"));
}

#[test]
fn errors_name_the_mistake_its_position_and_the_correct_form() {
    use ListErrorKind::*;
    let c = n64();
    for (list, kind, column, says) in [
        ("n0 n[3-1]", Syntax, 6, "`3-1` runs backwards; write 1-3"),
        ("n0 n[0-999999999]", TooLong, 6, "more than 65536 names"),
        ("n[0-9][0-9][0-9][0-9][0-9]", TooLong, 22, "more than 4 pairs of brackets"),
        ("n[0-999][0-999]", TooLong, 9, "more than 65536 names"),
        ("n[0-[1-2]]", Syntax, 5, "opens inside brackets"),
        ("n0 n[0-3", Syntax, 5, "is not closed"),
        ("n0]", Syntax, 3, "closes no bracket"),
        ("n[0-3}", Syntax, 6, "closes no bracket"),
        ("n[]", Syntax, 3, "a number is missing"),
        ("n[0,,2]", Syntax, 5, "a number is missing"),
        ("n[a-b]", Syntax, 3, "`a-b` is not a number or a range"),
        ("n[0-010]", Syntax, 3, "pads its ends differently"),
        ("n[1-2-3]", Syntax, 3, "is not a number or a range"),
        ("n[0000000001]", Syntax, 3, "is not a number or a range"),
        (":3", Syntax, 1, "no host before the colon"),
        ("n0:", Syntax, 3, "is not HOST:INDEX"),
        ("n0:1:2", Syntax, 3, "is not HOST:INDEX"),
        ("n0:x", Syntax, 4, "`x` is not a number"),
        ("n0:[0-7]x", Syntax, 3, "is not HOST:INDEX"),
        ("n[0-1]x{", Syntax, 8, "is not closed"),
        ("a{b}n[0-3]", Syntax, 2, "a bracket where none is allowed"),
        ("n0:8", UnknownGpu, 1, "host `n0` has GPUs 0 to 7"),
        ("n[0-3]:[0-8]", UnknownGpu, 1, "host `n0` has GPUs 0 to 7"),
        ("n0:[0-999999999]", TooLong, 5, "more than 65536"),
        ("n64:0", UnknownHost, 1, "no host `n64` (its hosts are n[0-63])"),
        ("n[60-64]", UnknownHost, 1, "no host `n64` (its hosts are n[0-63])"),
        ("m3:0", UnknownHost, 1, "did you mean `n3`?"),
        ("n03:0", UnknownHost, 1, "did you mean `n3`?"),
        ("n64", UnknownGpu, 1, "`n64` names no GPU"),
        ("n[0-1]:0,1", UnknownGpu, 10, "write several GPUs of a host in brackets, n0:[0,1]"),
        ("n0 n0:3", DuplicateGpu, 4, "`n0:3` is named twice"),
        ("n0:[1,0-2]", DuplicateGpu, 1, "names a GPU twice"),
        ("n[0-3] n[3-4]:0", DuplicateGpu, 8, "`n3:0` is named twice by `n[3-4]:0`"),
        ("knöten n[3-1]", UnknownGpu, 1, "`knöten` names no GPU"),
    ] {
        let e = c.parse_gpus([list]).expect_err(list);
        assert_eq!((e.kind, e.column), (kind, column), "{list}: {e}");
        assert!(e.message.contains(says), "{list}: {e}");
        assert_eq!(e.to_string().contains("(character"), column > 1);
    }
    let e = c.parse_gpus(["n0", "n1 nö n[3-1]"]).unwrap_err();
    assert_eq!((e.item, e.offset, e.column), (1, 3, 4), "in the second text: {e}");
    let hosts = ListReader::new(&c).hosts(["n0:3"]).unwrap_err();
    assert!(hosts.message.contains("names GPUs; hosts are expected"), "{hosts}");
}

#[test]
fn host_lists_repeat_nothing_and_keep_their_order() {
    let c = n64();
    let ids = |list: &str| -> Vec<u32> {
        let hosts = ListReader::new(&c).hosts([list]).unwrap();
        hosts.iter().map(|h| h.0).collect()
    };
    assert_eq!(ids("n[3-4,0],n4 n20\nn[20-21]"), [3, 4, 0, 20, 21]);
    assert!(ids(" , ").is_empty());
}

#[test]
fn a_hostile_list_is_refused_before_it_is_expanded() {
    let c = n64();
    let reader = ListReader::new(&c);
    let nested = "[".repeat(1 << 20);
    let endless = format!("n[{}]", vec!["0-999999999"; 100_000].join(","));
    let repeated = "n[0-63] ".repeat(2 << 20);
    let long = "n".repeat(LIST_BYTES_MAX + 1);
    let wide = format!("{}[0-65535]", "x".repeat(1 << 20));
    for list in [nested, endless, repeated, long, wide] {
        let e = reader.hosts([list.as_str()]).unwrap_err();
        assert!(matches!(e.kind, ListErrorKind::Syntax | ListErrorKind::TooLong), "{e}");
        assert!(e.to_string().len() < 400, "{e}");
        assert!(reader.gpus([list.as_str()]).is_err());
        assert!(expand(&list, 1000).is_err());
    }
}

#[test]
fn slurm_lists_have_one_bracket_at_the_end_and_keep_their_order() {
    let list = |names: &[&str]| compress(names.iter().copied());
    assert_eq!(list(&["r0n0", "r0n1", "r1n0", "r1n1"]), "r0n[0-1],r1n[0-1]");
    assert_eq!(list(&["a0-ib", "a1-ib"]), "a0-ib,a1-ib");
    assert_eq!(list(&["n3", "n1", "n2", "login", "n9", "n10"]), "n[3,1-2],login,n[9-10]");
    assert_eq!(list(&["n098", "n099", "n100"]), "n[098-100]");
}

fn allocations() -> impl Strategy<Value = (Cluster, Vec<(HostId, GpuMask)>)> {
    let scheme = prop::sample::select(schemes());
    (scheme, prop::collection::vec((any::<prop::sample::Index>(), 1u32..=0xffff), 0..60)).prop_map(|(names, picks)| {
        let c = cluster_of(names);
        let mut seen = HashSet::new();
        let part = |(at, bits): (prop::sample::Index, u32)| {
            let host = HostId(at.index(c.hosts.len()) as u32);
            // Most hosts get one of a few masks, because jobs take the same GPUs on many hosts.
            let bits = if bits % 3 == 0 { bits } else { [0xff, 0xf, 0xf0, 1][bits as usize % 4] };
            let mask = GpuMask(bits & c.type_of(host).all_gpus().0);
            (!mask.is_empty() && seen.insert(host)).then_some((host, mask))
        };
        let parts = picks.into_iter().filter_map(part).collect();
        (c, parts)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn printed_lists_read_back_for_every_naming_scheme((c, parts) in allocations()) {
        let reader = ListReader::new(&c);
        let a = Allocation::new(parts.iter().copied());
        let printed = c.gpu_list(&a);
        prop_assert_eq!(&reader.gpus([printed.as_str()]).unwrap(), &a, "{}", printed);
        prop_assert_eq!(&reader.gpus(printed.split(' ')).unwrap(), &a);
        prop_assert_eq!(&reader.gpus([printed.replace(' ', ",\n").as_str()]).unwrap(), &a);
        prop_assert_eq!(&reader.gpus(c.gpu_names(&a).iter().map(String::as_str)).unwrap(), &a);
        let whole: Vec<HostId> = parts.iter().map(|p| p.0).collect();
        let hosts = c.host_list(whole.iter().copied());
        let mut read = reader.hosts([hosts.as_str()]).unwrap();
        let mut expected = whole.clone();
        read.sort();
        expected.sort();
        prop_assert_eq!(read, expected, "{}", hosts);
    }

    #[test]
    fn the_order_of_hosts_survives((c, parts) in allocations()) {
        let printed = c.gpu_list_in_order(&parts);
        prop_assert_eq!(ListReader::new(&c).gpus_in_order([printed.as_str()]).unwrap(), parts, "{}", printed);
    }

    #[test]
    fn printing_depends_on_the_set_alone_and_never_grows_the_list((c, parts) in allocations()) {
        let a = Allocation::new(parts.iter().copied());
        let printed = c.gpu_list(&a);
        prop_assert_eq!(c.gpu_list(&c.parse_gpus([printed.as_str()]).unwrap()), printed.clone());
        prop_assert!(printed.split(' ').count() <= a.host_count().max(1));
    }

    #[test]
    fn compressed_names_expand_to_the_same_names(scheme in prop::sample::select(schemes())) {
        let names: Vec<&str> = scheme.iter().map(String::as_str).collect();
        prop_assert_eq!(expand(&compress(names.iter().copied()), 1000).unwrap(), scheme.clone());
    }

    #[test]
    fn expanded_lists_compress_and_expand_to_the_same_names(words in prop::collection::vec(prop::sample::select(vec![
        "n", "0", "9", "10", "08", "[0-3]", "[08-11,7]", "[9-10]", "99", "123456789", ",", "{b}", " ", "-", "x",
    ]), 1..12)) {
        if let Ok(names) = expand(&words.concat(), 1000) {
            let printed = compress(names.iter().map(String::as_str));
            prop_assert_eq!(expand(&printed, 1000), Ok(names), "{}", printed);
        }
    }

    #[test]
    fn nothing_panics_and_errors_point_into_the_text(words in prop::collection::vec(prop::sample::select(vec![
        "n", "0", "7", "n0", "n[0-3]", "[", "]", "{", "}", ":", ",", " ", "-", "\n", "ö", "00", "999999999", "0-3", "GPU-1",
    ]), 0..20)) {
        let c = n64();
        let text = words.concat();
        let reader = ListReader::new(&c);
        for e in [reader.gpus([text.as_str()]).err(), reader.hosts([text.as_str()]).err(), expand(&text, 100).err()] {
            let Some(e) = e else { continue };
            prop_assert!(e.offset <= text.len() && text.is_char_boundary(e.offset), "{text:?}: {e:?}");
            prop_assert!(e.column <= text.chars().count() + 1 && !e.message.is_empty());
        }
    }
}
