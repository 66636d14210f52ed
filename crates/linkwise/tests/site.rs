//! `linkwise measure` on a site where others work: fake `nvidia-smi`, `ssh`, `sinfo`, `scontrol` and nccl-tests on PATH.

mod common;

use common::{Folder, said};

/// A folder of fake programs. Each host's processes are in `apps-HOST`, one line per process; every question is a line of `asked`.
fn site(gpus: usize) -> Folder {
    let folder = Folder::new();
    folder.script(
        "nvidia-smi",
        &format!(
            r#"#!/bin/sh
host=${{FAKE_HOST:-here}}
case "$*" in
  *query-gpu*) echo "$host" >> "$FAKE/asked"; i=0; while [ $i -lt {gpus} ]; do echo "$i, GPU-$host-$i, 4, Disabled"; i=$((i+1)); done;;
  *query-compute-apps*) cat "$FAKE/apps-$host" 2>/dev/null || true;;
esac
"#
        ),
    );
    folder.script(
        "ssh",
        "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n[ \"$1\" = n9 ] && { echo \"ssh: connect to host n9 port 22: No route to host\" >&2; exit 255; }\nFAKE_HOST=$1 exec sh -c \"$2\"\n",
    );
    folder.script(
        "all_reduce_perf",
        "#!/bin/sh\necho \"${CUDA_VISIBLE_DEVICES:-mpi}\" >> \"$FAKE/runs\"\n[ -f \"$FAKE/on-run\" ] && sh \"$FAKE/on-run\"\n\
         echo '#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong'\n\
         echo '16777216 4194304 float sum -1 100.0 90.0 150.0 0 100.0 90.0 150.0 0'\n",
    );
    for launcher in ["mpirun", "srun"] {
        folder.script(
            launcher,
            &format!("#!/bin/sh\necho \"$*\" >> \"$FAKE/{launcher}-lines\"\nexec \"$FAKE/all_reduce_perf\"\n"),
        );
    }
    folder
}

fn measure(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let mut c = common::linkwise("measure", args);
    let path = format!("{}:/usr/bin:/bin", folder.at(""));
    c.env("PATH", path).env("FAKE", folder.at("")).env_remove("SLURM_JOB_ID").env("FAKE_HOST", "n0");
    said(c)
}

fn lines(folder: &Folder, name: &str) -> Vec<String> {
    std::fs::read_to_string(folder.at(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_host_with_a_process_on_a_gpu_is_left_alone() {
    let folder = site(4);
    let (cluster, store) = ("1xh100-4gpu", folder.at("s.db"));
    std::fs::write(folder.at("apps-n0"), "GPU-n0-2, 4711, /usr/bin/python3\n").unwrap();
    let args = ["--cluster", cluster, "--backend", "nccl-tests", "--local-host", "n0", "--store", &store];
    let (code, _, err) = measure(&folder, &args);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("n0:2") && err.contains("process 4711 (python3)") && err.contains("--idle"), "{err}");
    assert_eq!(lines(&folder, "runs").len(), 0, "nothing ran");
    // The user names the GPUs that the process does not use.
    let (code, out, err) = measure(&folder, &[&args[..], &["--idle", "n0:0,n0:1"]].concat());
    assert!(code == 0 && out.contains("the campaign is finished"), "{out}{err}");
    assert_eq!(lines(&folder, "runs"), ["0,1"]);
    // Named, and asked for all the same.
    let (code, _, err) = measure(&folder, &[&args[..], &["--idle", "n0:1,n0:2", "--ask", "hosts"]].concat());
    assert!(code == 1 && err.contains("--idle names n0:2, which is not idle: process 4711"), "{err}");
}

#[test]
fn an_idle_host_is_measured_and_asked_again_after_every_run() {
    let folder = site(4);
    let store = folder.at("s.db");
    let args = [
        "--cluster",
        "1xh100-4gpu",
        "--backend",
        "nccl-tests",
        "--local-host",
        "n0",
        "--store",
        &store,
        "--format",
        "json",
    ];
    let (code, out, err) = measure(&folder, &args);
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    let runs = lines(&folder, "runs").len();
    assert_eq!(answer["measurements"], 11, "{out}");
    assert!(runs >= 11 && lines(&folder, "asked").len() > runs, "asked before the first run and after each");
}

#[test]
fn a_reading_during_which_a_job_came_is_not_stored() {
    let folder = site(4);
    let store = folder.at("s.db");
    // A job comes to GPU 3 with the third run and stays.
    std::fs::write(
        folder.at("on-run"),
        "[ $(wc -l < \"$FAKE/runs\") -ge 3 ] && echo 'GPU-n0-3, 99, train' > \"$FAKE/apps-n0\"; true",
    )
    .unwrap();
    let args = ["--cluster", "1xh100-4gpu", "--backend", "nccl-tests", "--local-host", "n0", "--store", &store];
    let (code, out, err) = measure(&folder, &args);
    assert!(code == 0 && out.contains("9 points gave no reading"), "{out}{err}");
    assert_eq!(lines(&folder, "runs").len(), 3, "no run disturbs the job once it was seen");
    assert!(err.contains("contended, the reading is dropped: n0:3 is in use: process 99 (train)"), "{err}");
    let (code, out, err) = measure(&folder, &["--cluster", "1xh100-4gpu", "--store", &store, "--export", "-"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().count(), 1 + 2, "two readings were taken before the job came: {out}");
}

const SINFO: &str = "#!/bin/sh\nprintf 'n0 mixed\\nn1 idle\\nn2 idle\\nn3 drained*\\n'\n";
const SCONTROL: &str =
    "#!/bin/sh\necho 'JobId=7 JobState=RUNNING NodeList=n0 Nodes=n0 CPU_IDs=0-7 Mem=0 GRES=gpu:h100:1(IDX:0) Power='\n";

#[test]
fn slurm_and_the_hosts_are_asked_before_srun() {
    let folder = site(4);
    folder.script("sinfo", SINFO);
    folder.script("scontrol", SCONTROL);
    std::fs::write(folder.at("apps-n2"), "GPU-n2-0, 5, debug\n").unwrap();
    let store = folder.at("s.db");
    let base = ["--backend", "nccl-tests", "--launcher", "srun", "--no-intra", "--samples", "4", "--store", &store];
    let (code, _, err) = measure(&folder, &[&["--cluster", "4xh100-4gpu"][..], &base].concat());
    assert_eq!(code, 1, "{err}");
    for wanted in [
        "nothing to measure",
        "n0:0: Slurm job 7",
        "n[0,2]:[1-3]: other GPUs of the host are in use",
        "n2:0: process 5 (debug)",
        "n3:[0-3]: Slurm says drained*",
    ] {
        assert!(err.contains(wanted), "no `{wanted}` in {err}");
    }
    assert!(!lines(&folder, "asked").iter().any(|h| h == "n3"), "a drained host is not asked");
    assert!(lines(&folder, "srun-lines").is_empty(), "one idle host has no multi-host run");
    // Inside job 7 its GPUs are the idle ones, and the processes of other jobs still count.
    folder.script("scontrol", &SCONTROL.replace("Nodes=n0", "Nodes=n[0-1]").replace("IDX:0", "IDX:0-3"));
    let mut c = common::linkwise("measure", &[&["--cluster", "4xh100-4gpu"][..], &base].concat());
    let path = format!("{}:/usr/bin:/bin", folder.at(""));
    c.env("PATH", path).env("FAKE", folder.at("")).env("SLURM_JOB_ID", "7");
    let (code, _, err) = said(c);
    assert_eq!(code, 0, "{err}");
    let runs = lines(&folder, "srun-lines");
    assert!(!runs.is_empty() && runs.iter().all(|l| l.contains("--nodelist=n0,n1")), "{runs:?}");
}

#[test]
fn gpus_of_a_job_in_the_state_are_not_touched_even_in_a_simulation() {
    let folder = site(4);
    let (state, store) = (folder.at("state"), folder.at("s.db"));
    let cluster = |args: &[&str]| said(common::linkwise("cluster", args));
    assert_eq!(cluster(&["init", "--cluster", "3xh100-4gpu", "--state", &state]).0, 0);
    assert_eq!(cluster(&["allocate", "train", "n1:0", "--state", &state]).0, 0);
    let args =
        ["--cluster", "3xh100-4gpu", "--backend", "simulated", "--state", &state, "--store", &store, "--samples", "9"];
    let (code, _, err) = measure(&folder, &args);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("n1:0: job train holds it"), "{err}");
    let (_, out, _) = measure(&folder, &["--cluster", "3xh100-4gpu", "--store", &store, "--export", "-"]);
    assert!(out.contains("n0:0") && out.contains("n2:0") && !out.contains("n1:"), "{out}");
}

#[test]
fn a_host_that_does_not_answer_is_left_out_and_a_run_without_any_query_is_refused() {
    let folder = site(4);
    let file = folder.at("c.yaml");
    std::fs::write(&file, "hosts: [{name: 'n[0-1,9]', type: h100-4gpu}]\n").unwrap();
    let store = folder.at("s.db");
    let base = ["--cluster", &file, "--backend", "nccl-tests", "--launcher", "mpirun", "--no-intra", "--samples", "3"];
    let (code, _, err) = measure(&folder, &[&base[..], &["--store", &store]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("n9:[0-3]: not known to be idle") && err.contains("No route to host"), "{err}");
    assert!(lines(&folder, "mpirun-lines").iter().all(|l| !l.contains("n9:")), "n9 was used");
    let (code, _, err) = measure(&folder, &[&base[..], &["--store", &store, "--ask", "none"]].concat());
    assert!(code == 2 && err.contains("no GPU is known to be idle") && err.contains("--all-idle"), "{err}");
    let other = ["--cluster", "2xhgx-h100", "--backend", "nccl-tests", "--launcher", "mpirun", "--no-intra"];
    let (code, _, err) = measure(&folder, &[&other[..], &["--store", &folder.at("t.db")]].concat());
    assert!(code == 1 && err.contains("it has 4 GPUs, the cluster file says 8"), "{err}");
}

/// The plan of a site, in points and GPU-minutes, as it is printed before the first run.
fn planned(args: &[&str]) -> f64 {
    let folder = Folder::new();
    let base = ["--backend", "simulated", "--budget-gpu-minutes", "0.001", "--store"];
    let (_, _, err) = said(common::linkwise("measure", &[args, &base, &[&folder.at("s.db")]].concat()));
    let word = err.split("would take about ").nth(1).and_then(|r| r.split_whitespace().next());
    word.and_then(|w| w.parse().ok()).unwrap_or_else(|| panic!("{err}"))
}

#[test]
fn the_plan_of_1024_gpus_takes_less_than_300_gpu_minutes() {
    let site = |hosts: usize| planned(&["--cluster", &format!("{hosts}xhgx-h100")]);
    let large = site(128);
    assert!(large <= 300.0, "{large}");
    let few = planned(&["--cluster", "128xhgx-h100", "--max-hosts", "4"]);
    assert!(few < large, "{few} with at most 4 hosts, {large} without");
}

#[test]
fn a_budget_of_300_gpu_minutes_suffices_for_1024_gpus_with_every_design_and_the_plan_is_told_by_stage() {
    for design in ["stratified", "adaptive"] {
        let folder = Folder::new();
        let store = folder.at("s.db");
        let args = ["--cluster", "128xhgx-h100", "--backend", "simulated", "--noise", "3", "--design", design];
        let budget = ["--budget-gpu-minutes", "300", "--clip", "--store", &store, "--format", "json"];
        let (code, out, err) = said(common::linkwise("measure", &[&args[..], &budget].concat()));
        assert_eq!(code, 0, "{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        let campaign = &answer["campaign"];
        let minutes = campaign["gpu_minutes"].as_f64().unwrap();
        assert!(campaign["stopped_by_budget"] == false && minutes <= 300.0, "{design}: {minutes}\n{out}{err}");
        let planned = campaign["planned"].as_array().unwrap();
        let (names, cost): (Vec<&str>, Vec<f64>) =
            planned.iter().map(|s| (s["name"].as_str().unwrap(), s["gpu_minutes"].as_f64().unwrap())).unzip();
        assert_eq!(names, ["intra tables", "spot checks", "multi-host samples"]);
        let taken = campaign["stages"][2]["gpu_minutes"].as_f64().unwrap();
        assert!(cost[2] > 20.0 && taken <= 1.1 * cost[2], "{design}: {taken} of {cost:?}");
        for (name, cost) in names.iter().zip(&cost) {
            assert!(
                err.contains(&format!("plan: {name}: ")) && err.contains(&format!("{cost:.1} simulated GPU-minutes")),
                "{err}"
            );
        }
        assert!(err.contains("simulated intra tables of n0, 16MiB: 247 points to take"), "{err}");
    }
}

#[test]
fn a_run_is_charged_by_its_ranks() {
    let minutes = |idle: &str| planned(&["--cluster", "4xhgx-h100", "--no-intra", "--samples", "1", "--idle", idle]);
    // The same number of GPU-minutes per GPU only if a run's length did not depend on its ranks.
    let (two, many) = (minutes("n0:0 n1:0"), minutes("n[0-3]"));
    assert!(many > two, "{two} {many}");
}
