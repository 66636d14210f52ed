//! What commands say of wrong units, changed networks, limits that cannot be kept and large jobs. All readings are simulated.

mod common;

use common::{Folder, linkwise, said};
use serde_json::Value;

/// A folder with a store, a fitted model and a state of the cluster `h100`.
fn workplace() -> Folder {
    let folder = Folder::new();
    ok(&folder, "measure --cluster h100 --backend simulated --samples 60 --store s.db");
    ok(&folder, "fit --cluster h100 --store s.db -o m.json");
    ok(&folder, "cluster init --cluster h100 --state s");
    folder
}

/// Runs `linkwise` with words separated by spaces; `'` groups them.
fn run(folder: &Folder, line: &str) -> (i32, String, String) {
    let mut words: Vec<String> = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    let args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let mut c = linkwise(&words[0], &args);
    c.current_dir(&folder.0).env("NO_COLOR", "1");
    said(c)
}

fn ok(folder: &Folder, line: &str) -> String {
    let (code, out, err) = run(folder, line);
    assert_eq!(code, 0, "{line}: {err}");
    out
}

fn json(folder: &Folder, line: &str) -> Value {
    serde_json::from_str(&ok(folder, &format!("{line} --format json"))).expect("JSON")
}

fn refused(folder: &Folder, line: &str, code: i32) -> String {
    let (found, out, err) = run(folder, line);
    assert_eq!(found, code, "{line}: {out}{err}");
    err
}

/// Text with its line breaks joined, as a sentence is read.
fn joined(text: &str) -> String {
    text.replace("\n  ", " ")
}

/// A site of 4 hosts like those of `h100`, with these lines of network.
fn site(folder: &Folder, file: &str, network: &str) {
    let text = format!("name: h100\nnetwork: {network}\nhosts: [{{name: 'n[0-3]', type: hgx-h100}}]\n");
    std::fs::write(folder.at(file), text).unwrap();
}

#[test]
fn another_network_is_told_by_update_and_by_every_command_with_a_model_of_the_former() {
    let folder = workplace();
    site(
        &folder,
        "leaves.yaml",
        "{class: infiniband, tiers: [{name: leaf, hosts_per_switch: 2, oversubscription: 2}]}",
    );
    site(
        &folder,
        "slower.yaml",
        "{class: infiniband, tiers: [{name: leaf, hosts_per_switch: 2, oversubscription: 4}]}",
    );
    let first = joined(&ok(&folder, "cluster update --cluster leaves.yaml --state s"));
    assert!(first.contains("the network is not as before:") && first.contains("tier leaf is new"), "{first}");
    assert!(first.contains("fit again"), "{first}");
    let second = json(&folder, "cluster update --cluster slower.yaml --state s");
    let change = "tier leaf has an oversubscription of 4:1, it was 2:1";
    assert_eq!(second["network_changes"], serde_json::json!([change]));
    let same = ok(&folder, "cluster update --cluster slower.yaml --state s");
    assert!(same.contains("the hosts are as they were") && !same.contains("network"), "{same}");

    let (_, _, err) = run(&folder, "place --cluster leaves.yaml --model m.json --gpus 16");
    assert!(err.contains("note: m.json: the network is not as before:") && err.contains("fit again"), "{err}");
    let answer = json(&folder, "place --state s --model m.json --gpus 16");
    assert!(answer["network_changes"].to_string().contains("tier leaf is new"), "{answer}");
    let (_, _, err) = run(&folder, "place --cluster h100 --model m.json --gpus 16");
    assert_eq!(err, "", "the network of the fit needs no note");
    assert!(json(&folder, "place --cluster h100 --model m.json --gpus 16").get("network_changes").is_none());
}

#[test]
fn the_note_about_another_network_lasts_until_the_next_fit() {
    let folder = workplace();
    site(
        &folder,
        "leaves.yaml",
        "{class: infiniband, tiers: [{name: leaf, hosts_per_switch: 2, oversubscription: 2}]}",
    );
    let place = "place --cluster leaves.yaml --model m.json --gpus 16";
    assert!(run(&folder, place).2.contains("tier leaf is new"));
    let observe = "observe --store s.db --cluster leaves.yaml --job j --simulated --model m.json";
    for busbw in [210, 220] {
        ok(&folder, &format!("{observe} --gpus 'n0 n1' --busbw {busbw}"));
        assert!(run(&folder, place).2.contains("tier leaf is new"), "learning does not end the note");
    }
    assert_eq!(run(&folder, "place --cluster h100 --model m.json --gpus 16").2, "", "the network of the fit");
    ok(&folder, "fit --cluster leaves.yaml --store s.db -o m.json");
    assert_eq!(run(&folder, place).2, "", "a fit ends it");
}

/// The hosts of `h100`, with n2 named so and the others in this order.
fn renamed_site(folder: &Folder, file: &str, hosts: &[&str]) {
    let hosts: Vec<String> = hosts.iter().map(|h| format!("{{name: {h}, type: hgx-h100}}")).collect();
    std::fs::write(folder.at(file), format!("name: h100\nhosts: [{}]\n", hosts.join(", "))).unwrap();
}

#[test]
fn a_renamed_host_keeps_its_readings_its_state_and_what_the_model_learned() {
    let folder = workplace();
    ok(&folder, "cluster allocate train 'n2:[0-3]' --state s");
    ok(&folder, "cluster drain n2:7 --reason 'NVLink' --state s");
    ok(&folder, "observe --store s.db --cluster h100 --job slow --gpus 'n1 n2' --busbw 60 --simulated --model m.json");
    let count = |cluster: &str, host: &str| {
        let list = json(&folder, &format!("readings list --store s.db --cluster {cluster} --host {host} --limit 1000"));
        list["readings"].as_array().unwrap().len()
    };
    let before = count("h100", "n2");
    assert!(before > 10, "{before}");
    let predicted = |cluster: &str, gpus: &str| {
        let line = format!("explain --cluster {cluster} --model m.json --gpus '{gpus}'");
        json(&folder, &line)["predicted_busbw_gb_per_s"].as_f64().unwrap_or(f64::NAN)
    };
    let (slow, other) = (predicted("h100", "n1 n2"), predicted("h100", "n0 n3"));
    renamed_site(&folder, "new.yaml", &["n3", "n0", "rack-2", "n1"]);
    let update = "cluster update --cluster new.yaml --state s --store s.db --model m.json --rename n2=rack-2";
    let said = joined(&ok(&folder, update));
    assert!(said.contains("1 host renamed") && !said.contains("removed") && !said.contains("network"), "{said}");
    let look = || {
        let now = json(&folder, "cluster show --state s");
        assert_eq!(now["jobs"][0]["gpus"].to_string().matches("rack-2").count(), 4, "{now}");
        assert!(now["drained"].to_string().contains("rack-2"), "{now}");
        assert_eq!(count("new.yaml", "rack-2"), before);
        assert_eq!((predicted("new.yaml", "n1 rack-2"), predicted("new.yaml", "n0 n3")), (slow, other));
    };
    look();
    ok(&folder, update); // again
    look();
    // A campaign knows its points under the new name.
    let again = json(&folder, "measure --cluster new.yaml --backend simulated --samples 0 --store s.db");
    assert_eq!(again["campaign"]["readings_taken"], 0, "{again}");
    ok(&folder, "fit --cluster new.yaml --store s.db -o m2.json");
}

#[test]
fn readings_taken_under_the_new_name_before_the_rename_stay_beside_the_old_ones() {
    let folder = workplace();
    ok(&folder, "cluster init --cluster h100 --state r");
    renamed_site(&folder, "new.yaml", &["n0", "n1", "rack-2", "n3"]);
    // The store was forgotten: the campaign measures the points of rack-2 again.
    let update = "cluster update --cluster new.yaml --state r --rename n2=rack-2";
    ok(&folder, update);
    let count = |host: &str| {
        let list = json(&folder, &format!("readings list --store s.db --cluster new.yaml --host {host} --limit 1000"));
        list["readings"].as_array().unwrap().len()
    };
    ok(&folder, "measure --cluster new.yaml --backend simulated --samples 10 --store s.db");
    let new = count("rack-2");
    assert!(new > 10, "{new}");
    for _ in 0..2 {
        ok(&folder, &format!("{update} --store s.db"));
        assert!(count("rack-2") >= 2 * new, "{} of {new}", count("rack-2"));
    }
    let twice = joined(&refused(&folder, &format!("{update} --store s.db --store ./s.db"), 2));
    assert!(twice.contains("--store: ./s.db is given twice"), "{twice}");
}

#[test]
fn a_rename_that_cannot_be_is_one_sentence_and_changes_nothing() {
    let folder = workplace();
    ok(&folder, "cluster allocate train n3 --state s");
    let now = || {
        let held = json(&folder, "cluster show --state s")["jobs"][0]["gpus"].to_string();
        (held, ok(&folder, "readings list --store s.db --cluster h100 --host n2"))
    };
    let before = now();
    renamed_site(&folder, "new.yaml", &["n0", "n1", "m2", "n3"]);
    let text = "name: h100\nhosts: [{name: 'n[0-1]', type: hgx-h100}, {name: m2, type: dgx-a100}, {name: n3, type: hgx-h100}]\n";
    std::fs::write(folder.at("other.yaml"), text).unwrap();
    renamed_site(&folder, "less.yaml", &["n0", "n1", "m2"]);
    for (cluster, rename, code, why) in [
        ("new.yaml", "n2", 2, "`n2` is not OLD=NEW"),
        ("new.yaml", "n9=m2", 2, "cluster `h100` had no host `n9`"),
        ("new.yaml", "n2=m9", 2, "has no host `m9`, the new name of `n2`"),
        ("new.yaml", "n1=m2", 2, "still has host `n1`"),
        ("new.yaml", "n[1-2]=m2", 2, "has 2 old names and 1 new ones"),
        ("h100", "n1=n2", 2, "still has host `n1`"),
        ("h100", "n1=n2 --rename n2=n1", 2, "a swap of two names takes three commands"),
        ("other.yaml", "n2=m2", 2, "a renamed host keeps its hardware"),
        ("less.yaml", "n2=m2", 1, "job `train` holds GPUs of host n3"),
    ] {
        let update =
            format!("cluster update --cluster {cluster} --state s --store s.db --model m.json --rename {rename}");
        let e = joined(&refused(&folder, &update, code));
        assert!(e.contains(why), "{update}: {e}");
        assert!(e.lines().all(|l| l.len() < 400), "{e}");
    }
    assert_eq!(before, now());
    // Without --rename, the host is another one: its readings are of hardware that is gone.
    let said = joined(&ok(&folder, "cluster update --cluster new.yaml --state s"));
    assert!(said.contains("1 host added (m2), 1 host removed (n2)"), "{said}");
}

#[test]
fn a_reading_above_what_the_links_allow_is_asked_for_its_unit() {
    let folder = workplace();
    let observe = "observe --store s.db --cluster h100 --job j --gpus 'n0 n1' --simulated";
    let note = "is it in Gbit/s? or are the NIC rates in the cluster file too low?";
    let healthy = joined(&ok(&folder, &format!("{observe} --busbw 300 --model m.json")));
    assert!(!healthy.contains("Gbit/s"), "{healthy}");
    let high = joined(&ok(&folder, &format!("{observe} --busbw 1000 --model m.json")));
    assert!(high.contains("more than the links allow") && high.contains(note), "{high}");
    assert!(high.contains("the reading is stored; the model"), "{high}");
    let high = json(&folder, &format!("{observe} --busbw 1000"));
    let links = high["readings"][0]["links_allow_gb_per_s"].as_f64().expect("a bound");
    assert!((1000.0 / 3.0..1000.0 / 1.3).contains(&links), "{high}");
    // The refusal names the bound that the note names.
    let impossible = refused(&folder, &format!("{observe} --busbw {}", 3.1 * links), 2);
    assert!(impossible.contains(&format!("the links allow {links:.1} GB/s")), "{impossible} {links}");
    let low = joined(&ok(&folder, &format!("{observe} --busbw 0.00016 --model m.json")));
    assert!(
        low.contains("less than a thousandth of what these GPUs should get") && low.contains("is it in GB/s?"),
        "{low}"
    );
    let id = high["readings"][0]["id"].as_i64().expect("a number");
    let learned = ok(&folder, &format!("readings learn {id} --store s.db --cluster h100 --model m.json"));
    assert!(joined(&learned).contains(note), "{learned}");
    ok(&folder, "measure --cluster h100 --store s.db --export s.csv");
    let text = std::fs::read_to_string(folder.at("s.csv")).unwrap();
    let row = text.lines().find(|l| l.contains(",1000")).expect("the reading");
    std::fs::write(folder.at("high.csv"), format!("{}\n{row}\n", text.lines().next().unwrap())).unwrap();
    let import = ok(&folder, "measure --cluster h100 --store other.db --import high.csv");
    assert!(joined(&import).contains(note), "{import}");
}

#[test]
fn readings_without_bandwidth_of_the_future_or_out_of_range_are_no_good_readings() {
    let folder = workplace();
    let observe = "observe --store s.db --cluster h100 --job j --simulated";
    let zero = refused(&folder, &format!("{observe} --gpus 'n0 n1' --busbw 0 --model m.json"), 2);
    assert!(zero.contains("0 GB/s cannot be recorded") && !zero.contains("fitted"), "{zero}");
    let empty = refused(&folder, &format!("{observe} --gpus '' --busbw 9"), 2);
    assert!(empty.contains("names no GPU"), "{empty}");
    let long = refused(&folder, &format!("{observe} --gpus 'n0 n1' --busbw 1e300"), 2);
    assert!(long.contains("1e300") && long.chars().count() < 200, "{long}");
    let line = |more: &str| format!("{{\"collective\":\"all_reduce\",\"size_bytes\":16777216,{more}}}\n");
    std::fs::write(folder.at("future.jsonl"), line("\"busbw_gb_per_s\":100,\"at_unix_s\":4102444800")).unwrap();
    let future = refused(&folder, &format!("{observe} --gpus 'n0 n1' --trace future.jsonl"), 2);
    assert!(future.contains("days in the future"), "{future}");
    std::fs::write(folder.at("zero.jsonl"), line("\"time_us\":0")).unwrap();
    let time = refused(&folder, &format!("{observe} --gpus 'n0 n1' --trace zero.jsonl"), 2);
    assert!(time.contains("a time above 0"), "{time}");

    ok(&folder, "measure --cluster h100 --store s.db --export s.csv");
    let text = std::fs::read_to_string(folder.at("s.csv")).unwrap();
    let (head, row) = (text.lines().next().unwrap(), text.lines().nth(1).unwrap());
    let column = |name: &str| head.split(',').position(|c| c == name).expect("a column");
    let with = |name: &str, value: &str| -> String {
        let mut cells: Vec<&str> = row.split(',').collect();
        cells[column(name)] = value;
        format!("{head}\n{}\n", cells.join(","))
    };
    std::fs::write(folder.at("zero.csv"), with("busbw_gb_per_s", "0")).unwrap();
    let zero = joined(&ok(&folder, "measure --cluster h100 --store z.db --import zero.csv --export z.csv"));
    assert!(zero.contains("1 of 0 GB/s (rejected"), "{zero}");
    let stored = std::fs::read_to_string(folder.at("z.csv")).unwrap();
    assert!(stored.contains("rejected") && !stored.contains("good"), "{stored}");
    std::fs::write(folder.at("future.csv"), with("taken_at_unix_s", "4102444800")).unwrap();
    let future = refused(&folder, "measure --cluster h100 --store f.db --import future.csv", 2);
    assert!(future.contains("days in the future"), "{future}");
}

#[test]
fn a_suspect_explains_only_slower_readings_and_is_told_only_of_its_collective() {
    let folder = workplace();
    ok(&folder, "cluster allocate j n0 n1 --state s");
    let observe = "observe --store s.db --state s --job j --simulated --model m.json";
    let expected = json(&folder, "explain --state s --model m.json --job j");
    let v = expected["predicted_busbw_gb_per_s"].as_f64().expect("a prediction");
    // One reading is no evidence of what explains it; two of other GPUs with a host in common are.
    let slow = json(&folder, &format!("{observe} --busbw {}", v / 2.0));
    assert_eq!(slow["readings"][0]["why_not"], Value::Null, "{slow}");
    ok(&folder, "cluster release j --state s");
    ok(&folder, "cluster allocate k n0 n2 --state s");
    let other = observe.replace("--job j", "--job k");
    let other = json(&folder, &format!("{other} --busbw {}", v / 2.0));
    assert_eq!(other["readings"][0]["why_not"], "explained", "{other}");
    ok(&folder, "cluster release k --state s");
    ok(&folder, "cluster allocate j n0 n1 --state s");
    let fast = json(&folder, &format!("{observe} --busbw {}", v * 1.02));
    assert_eq!(fast["readings"][0]["why_not"], Value::Null, "{fast}");
    // What a doubted reading changes is told.
    let odd = joined(&ok(&folder, &format!("{observe} --busbw {}", v * 1.6)));
    assert!(odd.contains("GB/s for these GPUs") && odd.contains("`linkwise fit` weighs it"), "{odd}");
    let gather = ok(&folder, &format!("{observe} --busbw {v} --collective all_gather"));
    assert!(gather.contains("another collective") && !gather.contains("suspected"), "{gather}");
    // GPUs of an ended job are named with the state alone.
    ok(&folder, "cluster release j --state s");
    ok(&folder, &format!("observe --store s.db --state s --job j --gpus 'n0 n1' --busbw {v} --simulated"));
}

#[test]
fn text_and_json_agree_on_whose_choice_it_is_and_on_what_is_gained() {
    let folder = workplace();
    for free in ["n[0-3]", "n0:[0-5] n[1-3]", "n0:[1-3] n1:[2-7] n2:[0-3] n3"] {
        for gpus in [2, 4, 8, 12] {
            let line = format!("place --cluster h100 --model m.json --gpus {gpus} --free '{free}'");
            let (text, answer) = (joined(&ok(&folder, &line)), json(&folder, &line));
            let same = answer["rule"]["gpus"] == answer["gpus"];
            assert_eq!(text.contains(": the simple rule's choice."), same, "{line}: {text}{answer}");
        }
    }
    let jobs = r#"[{"id":"a","gpus":["n0:0","n0:1","n1:0","n1:1"]},{"id":"b","gpus":["n2:0","n2:1","n3:0","n3:1"]}]"#;
    std::fs::write(folder.at("jobs.json"), jobs).unwrap();
    let line = "place --cluster h100 --model m.json --gpus 10 --jobs jobs.json";
    let (text, answer) = (ok(&folder, line), json(&folder, line));
    let figure = |v: &Value, key: &str| v[key].as_f64().expect("a figure");
    let gained = figure(&answer, "score_gb_per_s") - figure(&answer["rule"], "score_gb_per_s");
    assert!((gained - figure(&answer["price"], "gained_busbw_gb_per_s")).abs() < 0.01, "{answer}");
    let shared = figure(&answer["contention"], "shared_busbw_gb_per_s");
    assert_eq!(shared, figure(&answer, "score_gb_per_s"));
    assert!(text.contains("among") && text.contains(&format!("{shared:.1}")), "{text}");
}

#[test]
fn limits_that_no_split_keeps_are_refused_with_the_arithmetic_by_every_search() {
    let folder = workplace();
    for search in ["auto", "threshold", "exact", "bandpilot"] {
        let place = format!("place --cluster h100 --model m.json --search {search}");
        let e = refused(&folder, &format!("{place} --gpus 16 --max-hosts 1"), 1);
        assert!(e.contains("1 host holds at most 8 GPUs; allow 2 hosts, or ask for 8"), "{search}: {e}");
        let e = refused(&folder, &format!("{place} --gpus 24 --max-hosts 2 --free 'n0:[0-3] n[1-3]'"), 1);
        assert!(e.contains("2 hosts hold at most 16 GPUs; allow 3 hosts, or ask for 16"), "{search}: {e}");
        let e = refused(&folder, &format!("{place} --gpus 16 --max-hosts 2 --free 'n0:[0-3] n1:[0-5] n2 n3:0'"), 1);
        assert!(e.contains("2 hosts hold at most 14 of the usable GPUs; allow 3 hosts"), "{search}: {e}");
        let e = refused(&folder, &format!("{place} --gpus 16 --min-per-host 9"), 1);
        assert!(e.contains("no host has more than 8 GPUs"), "{search}: {e}");
        let e = refused(&folder, &format!("{place} --gpus 24 --max-per-host 4"), 1);
        assert!(e.contains("at most 16 GPUs at 4 per host"), "{search}: {e}");
    }
}

#[test]
fn small_messages_have_digits_and_large_jobs_few_lines() {
    let folder = workplace();
    let small = ok(&folder, "place --cluster h100 --model m.json --gpus 16 --size 1KiB");
    assert!(!small.contains(" 0.0 ± 0.0 GB/s"), "{small}");
    let text = "name: big\nnetwork: {tiers: [{name: leaf, hosts_per_switch: 32, oversubscription: 2}]}\n\
                hosts: [{name: 'n[000-319]', type: hgx-h100}]\n";
    std::fs::write(folder.at("big.yaml"), text).unwrap();
    ok(&folder, "fit --cluster big.yaml --model nccl -o big.json");
    // Every third host has GPUs 0 to 5 and every other one 2 to 7: the lists are long.
    let free: Vec<String> = (0..320).map(|h| format!("n{h:03}:[{}-{}]", h % 3, h % 3 + 5)).collect();
    std::fs::write(folder.at("free.txt"), free.join("\n")).unwrap();
    let (code, out, err) =
        run(&folder, "place --cluster big.yaml --model big.json --gpus 1250 --free free.txt --uneven");
    assert_eq!(code, 0, "{err}");
    let table = out.lines().skip_while(|l| !l.trim_start().starts_with("split")).count();
    assert!((1..=30).contains(&table), "{table} lines of table: {out}");
    assert!(out.lines().all(|l| l.chars().count() <= 80), "{out}");
    let limit = ok(&folder, "explain --cluster big.yaml --model big.json --gpus 'n[000-063]'");
    assert!(!limit.contains("the link NCCL") && !limit.contains("the link NVL"), "{limit}");
}

#[test]
fn errors_fit_80_columns_and_name_what_differs_of_two_clusters_of_one_name() {
    let folder = workplace();
    let text = "name: h100\nhosts: [{name: 'm[0-3]', type: hgx-h100}]\n";
    std::fs::write(folder.at("other.yaml"), text).unwrap();
    let mut c = linkwise("place", &["--cluster", "other.yaml", "--state", "s", "--model", "m.json", "--gpus", "8"]);
    let out = c.current_dir(&folder.0).output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert!(joined(&err).contains("of the same name (`h100`)") && !err.contains("given is"), "{err}");
    assert!(err.lines().all(|l| l.chars().count() <= 80), "{err}");
    let e = refused(&folder, "place --cluster other.yaml --model m.json --gpus 8", 2);
    assert!(!e.contains("not those of `h100`"), "{e}");
}

#[test]
fn readings_of_renamed_hosts_go_into_a_store_of_the_new_names() {
    let folder = workplace();
    let text = "name: h100\nhosts: [{name: 'gpu-[0-3]', type: hgx-h100}]\n";
    std::fs::write(folder.at("new.yaml"), text).unwrap();
    ok(&folder, "measure --cluster h100 --store s.db --export s.csv");
    let e = refused(&folder, "measure --cluster new.yaml --store n.db --import s.csv", 2);
    assert!(e.contains("has no host `n0`"), "{e}");
    ok(&folder, "measure --cluster new.yaml --store n.db --import s.csv --host-map 'n*=gpu-*'");
    ok(
        &folder,
        "measure --cluster new.yaml --store p.db --import s.csv --host-map n0=gpu-0,n1=gpu-1,n2=gpu-2,n3=gpu-3",
    );
    ok(&folder, "measure --cluster new.yaml --store n.db --export n.csv");
    ok(&folder, "measure --cluster new.yaml --store p.db --export p.csv");
    let gpus = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.at(file)).unwrap();
        text.lines().skip(1).map(|l| l.split(',').next().unwrap().to_owned()).collect()
    };
    let renamed: Vec<String> = gpus("s.csv").iter().map(|g| g.replace('n', "gpu-")).collect();
    assert_eq!((gpus("n.csv"), gpus("p.csv")), (renamed.clone(), renamed));
    let e = refused(&folder, "measure --cluster new.yaml --store q.db --import s.csv --host-map 'n*=m*'", 2);
    assert!(e.contains("no host of cluster `h100` begins with `m`"), "{e}");
}

#[test]
fn a_type_with_fewer_gpus_takes_the_rate_of_its_links_from_like() {
    let folder = Folder::new();
    let text = "name: odd\nhost_types:\n- {name: two, like: h100-4gpu, gpu_matrix: [X NV6, NV6 X]}\n\
                hosts: [{name: 'n[0-1]', type: two}]\n";
    std::fs::write(folder.at("odd.yaml"), text).unwrap();
    ok(&folder, "topology show odd.yaml");
}

#[test]
fn an_answer_beyond_every_published_measurement_and_every_reading_says_so() {
    let folder = workplace();
    let text = "name: wide\nnetwork: {class: infiniband}\nhosts: [{name: 'n[00-31]', type: hgx-h100}]\n";
    std::fs::write(folder.at("wide.yaml"), text).unwrap();
    ok(&folder, "measure --cluster wide.yaml --backend simulated --samples 60 --max-hosts 4 --store w.db");
    ok(&folder, "fit --cluster wide.yaml --store w.db -o w.json");
    let place = "place --cluster wide.yaml --model w.json --gpus";
    let explain = "explain --cluster wide.yaml --model w.json --gpus";
    for line in [format!("{place} 256"), format!("{explain} 'n[00-31]'")] {
        let answer = json(&folder, &line);
        let reasons = answer["outside_validated"].to_string();
        assert!(reasons.contains("32 hosts") && reasons.contains("256 GPUs"), "{line}: {answer}");
        let text = joined(&ok(&folder, &line));
        let note = text.lines().filter(|l| l.starts_with("Note: the prediction is extrapolated: 32 hosts")).count();
        assert_eq!(note, 1, "{line}: {text}");
    }
    for line in [format!("{place} 16"), format!("{explain} 'n[00-03]'")] {
        assert!(json(&folder, &line).get("outside_validated").is_none(), "{line}");
        assert!(!ok(&folder, &line).contains("extrapolated"), "{line}");
    }
}

#[test]
fn a_file_that_is_no_model_names_the_command_that_makes_one() {
    let folder = Folder::new();
    std::fs::write(folder.at("README.md"), "# linkwise\n").unwrap();
    for line in
        ["explain --model README.md --cluster h100 --gpus 'n0 n1'", "place --model README.md --cluster h100 --gpus 8"]
    {
        let err = joined(&refused(&folder, line, 2));
        assert!(err.contains("README.md: it is not a model file"), "{line}: {err}");
        assert!(err.contains("linkwise fit --store STORE --cluster CLUSTER -o model.json"), "{line}: {err}");
    }
}

#[test]
fn a_wrong_list_of_free_gpus_names_the_flag_once() {
    let folder = workplace();
    for list in ["n0:1 n0:1", "n9:0", "n0:[", "n0:9"] {
        let err = refused(&folder, &format!("place --cluster h100 --model m.json --gpus 2 --free '{list}'"), 2);
        assert_eq!(err.matches("free").count(), 1, "{list}: {err}");
        assert!(err.contains("--free"), "{list}: {err}");
    }
}

#[test]
fn one_reading_far_off_makes_no_defect_and_the_doctor_asks_for_another() {
    let folder = workplace();
    std::fs::write(folder.at("c.yaml"), "name: c\nhosts:\n- {name: 'h[00-15]', type: hgx-h100}\n").unwrap();
    ok(&folder, "measure --cluster c.yaml --backend simulated --store d.db");
    let healthy = ok(&folder, "doctor --cluster c.yaml --store d.db");
    assert!(healthy.contains("No defect is probable.\n"), "{healthy}");
    ok(&folder, "cluster init --cluster c.yaml --state d.state");
    ok(&folder, "cluster allocate j h00 h01 --state d.state");
    ok(&folder, "observe --store d.db --state d.state --job j --busbw 15.8 --simulated");
    let odd = joined(&ok(&folder, "doctor --cluster c.yaml --store d.db"));
    assert!(odd.contains("1 unexplained outlier below: a second reading") && odd.contains("got 15.8 GB/s"), "{odd}");
}
