//! The order of ranks in jobs of a real Slurm.

use crate::lab::{Setup, repository};
use crate::{lab, setup};

/// Linkwise's order reaches `srun` by the hostfile, if the site says so.
#[test]
fn ranks_of_srun_follow_the_order_in_the_jobs_comment() {
    let prolog = Setup { config: "TaskProlog=AT/prolog\n".into(), ..setup(3, 0) };
    let Some(lab) = lab("ranks_of_srun_follow_the_order_in_the_jobs_comment", prolog) else { return };
    let (conf, own) = (lab.at("prolog.conf"), repository().join("integrations/slurm/task-prolog"));
    let (slurm, folder) = (lab.at("etc/slurm.conf"), lab.at("run"));
    let script = format!(
        "#!/bin/bash\nexport LINKWISE_TEST_TASK_PROLOG_CONF={conf} SLURM_CONF={slurm} TMPDIR={folder}\nexec {}\n",
        own.display()
    );
    lab.folder.script("prolog", &script);
    let note = r#"{"linkwise":"took","rank_order":"n3,n1,n2"}"#;
    let nodes = |hostfile: &str| {
        std::fs::write(&conf, format!("hostfile={hostfile}\n")).unwrap();
        let out = lab.at("log/job-%j");
        let shown = "srun bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME $LINKWISE_RANK_ORDER'; echo end";
        let args = ["--parsable", "-H", "-N3", "--ntasks-per-node=2", "-o", &out, "--wrap", shown];
        let job: u32 = lab.client("sbatch", &args).trim().parse().expect("a job");
        lab.client("scontrol", &["update", &format!("JobId={job}"), &format!("AdminComment={note}")]);
        lab.client("scontrol", &["release", &job.to_string()]);
        let text = || std::fs::read_to_string(lab.at(&format!("log/job-{job}"))).unwrap_or_default();
        lab.until("the job ends", || text().contains("end\n"));
        let mut ranks: Vec<(usize, String)> = Vec::new();
        for line in text().lines().filter(|l| *l != "end") {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words.get(2), Some(&"n3,n1,n2"), "{line}");
            ranks.push((words[0].parse().unwrap(), words[1].into()));
        }
        ranks.sort();
        ranks.into_iter().map(|r| r.1).collect::<Vec<_>>()
    };
    assert_eq!(nodes("no"), ["n1", "n1", "n2", "n2", "n3", "n3"]);
    assert_eq!(nodes("yes"), ["n3", "n3", "n1", "n1", "n2", "n2"]);
}
