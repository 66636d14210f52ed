//! No command shows the password of a database's URL.

mod common;

use common::{Folder, linkwise};
use std::collections::BTreeSet;

#[path = "../../store/tests/common/postgres.rs"]
#[allow(dead_code)] // a part of it is used
mod postgres;

const SECRET: &str = "hunter2";

/// Every command that takes `--state` or `--store`, from the help.
fn commands(path: &[String], found: &mut BTreeSet<String>) {
    let args: Vec<&str> = path.iter().skip(1).map(String::as_str).chain(["--help"]).collect();
    let help = linkwise(path.first().map_or("--help", String::as_str), if path.is_empty() { &[] } else { &args });
    let (_, help, _) = common::said(help);
    if help.contains("--state <") || help.contains("--store <") {
        found.insert(path.join(" "));
    }
    let listed = help.split_once("Commands:\n").map_or("", |c| c.1).lines().take_while(|l| l.starts_with("  "));
    for name in
        listed.filter(|l| l.as_bytes().get(2).is_some_and(|b| *b != b' ')).filter_map(|l| l.split_whitespace().next())
    {
        if name != "help" {
            commands(&[path, &[name.to_owned()]].concat(), found);
        }
    }
}

/// The commands with their other arguments; STATE and STORE stand for the URL.
const RUNS: [&str; 36] = [
    "cluster init --cluster h100 --state STATE",
    "cluster show --state STATE",
    "cluster drain n0:1 --state STATE",
    "cluster allocate a n0:0 --state STATE",
    "cluster release a --state STATE",
    "cluster update --cluster h100 --state STATE --rename a=b --store STORE --store STORE",
    "cluster update --cluster h100 --state STATE --rename a=n0 --store STORE",
    "place --gpus 2 --state STATE --model none.json",
    "explain --gpus n0:[0-1] --state STATE --model none.json",
    "measure --cluster h100 --store STORE --export -",
    "measure --cluster h100 --store STORE --backend sim --samples 2 --sizes 1MiB",
    "measure --cluster h100 --store STORE --backend sim --samples 2 --sizes 1MiB --format json",
    "observe --job x --gpus n0:[0-1] --cluster h100 --store STORE --busbw 100 --collective all_reduce --size 1MiB",
    "observe --job x --gpus n0:[0-1] --cluster h100 --store STORE --busbw 100 --collective all_reduce --size 1MiB --format json",
    "observe --job x --state STATE --store STORE --busbw 100 --collective all_reduce --size 1MiB",
    "readings list --cluster h100 --store STORE",
    "readings list --state STATE --store STORE",
    "readings correct 1 --busbw 7 --why x --cluster h100 --store STORE",
    "readings withdraw 1 --why x --cluster h100 --store STORE",
    "readings learn 1 --model none.json --cluster h100 --store STORE",
    "slurm squeue --cluster h100 --model none.json --state STATE",
    "slurm status --state STATE",
    "slurm advise --cluster h100 --model none.json --state STATE",
    "slurm agent --once --socket none.sock --cluster h100 --model none.json --state STATE",
    "fit --cluster h100 --store STORE --output m.json",
    "doctor --cluster h100 --store STORE",
    "doctor --state STATE --store STORE",
    "token create a --scope read --state STATE",
    "token list --state STATE",
    "token revoke a --state STATE",
    "nccl explain --cluster h100 --gpus n0:[0-1] --store STORE",
    "nccl advise --cluster h100 --gpus n0:[0-1] --store STORE",
    "serve --cluster h100 --state STATE --store STORE --listen 192.0.2.1:1",
    "cluster backup --state STATE --to copy.db",
    "model list --state STATE",
    "model export --state STATE --output model.json",
];

#[test]
fn no_command_shows_the_password_of_a_database() {
    let mut all = BTreeSet::new();
    commands(&[], &mut all);
    assert!(all.len() >= 10, "{all:?}");
    let untried: Vec<_> = all.iter().filter(|c| !RUNS.iter().any(|r| r.starts_with(&format!("{c} ")))).collect();
    assert!(untried.is_empty(), "commands that take --state or --store and are not tried here: {untried:?}");

    let server = postgres::Server::start();
    if server.is_none() {
        postgres::skip("tests_of_the_store_on_postgresql");
    }
    // A server that is not there, a slip of the pen, an unknown option, and a database that answers.
    let mut urls: Vec<String> = [
        "postgres://u:SECRET@127.0.0.1:1/d",
        "postgre://u:SECRET@h/d",
        "Postgres://u:SECRET=x@127.0.0.1:1/d",
        "postgres://u@127.0.0.1:1/d?password=SECRET&x=1",
    ]
    .map(|u| u.replace("SECRET", SECRET))
    .into();
    urls.extend(server.as_ref().map(|s| s.database().replacen("tester@", &format!("tester:{SECRET}@"), 1)));
    let folder = Folder::new();
    let (mut worked, mut shown, mut wrong) = (0, Vec::new(), Vec::new());
    for (i, url) in urls.iter().enumerate() {
        // What is no URL of PostgreSQL never gets further than the place that reads URLs.
        let runs = if (1..4).contains(&i) { &RUNS[9..16] } else { &RUNS[..] };
        for run in runs {
            let words: Vec<&str> =
                run.split(' ').map(|w| if w == "STATE" || w == "STORE" { url.as_str() } else { w }).collect();
            let mut command = linkwise(words[0], &words[1..]);
            command.current_dir(folder.0.path()).env("NO_COLOR", "1");
            let (code, out, err) = common::said(command);
            shown.extend(
                [&out, &err].into_iter().filter(|t| t.contains(SECRET)).map(|t| format!("{run} on {url}: {t}")),
            );
            wrong.extend(
                (!(0..=2).contains(&code) || err.contains("Usage:")).then(|| format!("{run} on {url}: {code} {err}")),
            );
            worked += usize::from(code == 0);
        }
    }
    assert!(shown.is_empty(), "the password is shown: {shown:#?}");
    assert!(wrong.is_empty(), "no calls of the command: {wrong:#?}");
    assert!(server.is_none() || worked >= 10, "{worked} commands worked on the database");
}
