//! An answer as sentences and tables that fit the terminal.

use super::launch::devices;
use super::reply::Reply;
use crate::brief::{gb, gb_with_std, gpus_in_cell, std_of};
use console::{list_cell, table, text_of, wrap};
use engine::{AllocationCost, GpuList, GroupAnswer, HostGpus, NeighbourEffect};
use std::fmt::Write;

/// Maximum number of pods and of running jobs in the text; the JSON lists all.
const LISTED_MAX: usize = 16;
/// Maximum number of runner-ups in the text.
const RUNNER_UPS_SHOWN: usize = 3;
/// Width of a list of GPUs in a table, columns.
const LIST_WIDTH: usize = 30;
/// Width of a split in a table, columns.
const SPLIT_WIDTH: usize = 16;
/// Maximum length of a list of GPUs in a table, characters; a longer list becomes a count of hosts.
const CELL_CHARS_MAX: usize = 90;
/// Minimum gain over the rule that the text mentions, as a share of the choice's bandwidth.
const GAIN_SAID_MIN: f64 = 0.0002;

impl Reply<'_> {
    /// Hosts and GPUs in rank order, also for one host.
    fn ranks(&self) -> String {
        if self.hosts().iter().all(|h| h.gpus.is_sorted()) {
            return "as listed".to_owned();
        }
        let index = self.cluster.host_index();
        let groups = self.hosts().chunk_by(|a, b| a.gpus == b.gpus).map(|group: &[HostGpus]| {
            let ids = group.iter().filter_map(|h| index.get(h.host.as_str()).copied());
            let (hosts, gpus) = (self.cluster.host_list_in_order(ids), devices(&group[0]));
            hosts.split(' ').map(|h| format!("{h}:[{gpus}]")).collect::<Vec<_>>().join(" ")
        });
        groups.collect::<Vec<_>>().join(" ")
    }

    /// GPUs as a list, with the hosts in the list's order.
    fn list_in_order(&self, gpus: &GpuList) -> String {
        self.cluster.gpu_list_in_order(&self.masks(gpus))
    }

    /// The answer as sentences and tables.
    pub fn text(&self) -> String {
        let a = self.answer;
        let gpus = a.gpus.gpu_count();
        let s = if gpus == 1 { "" } else { "s" };
        let listed = self.list_in_order(&a.rank_order);
        let mut out = wrap(&format!("{gpus} GPU{s}, split {}: {listed}", a.split), 2);
        if gpus < 2 {
            out += &wrap("A single GPU has no collective traffic; chosen to leave the best-connected GPUs free.", 2);
            return out;
        }
        out += &self.predicted();
        out += &self.bottleneck();
        out += &engine::extrapolation_note(&a.outside_validated).map_or(String::new(), |note| wrap(&note, 2));
        if let (Some(found), Some(yaml)) = (&a.found_switches, &a.found_switches_yaml) {
            out += &wrap(&format!("Note: {found}. If they do, add this line below `network` of the file:"), 2);
            out += &format!("  {yaml}\n"); // unwrapped, to be pasted
        }
        out += &self.price();
        out += &self.equal_counts();
        out += &self.level();
        out += &self.pods();
        out += &self.groups();
        out += &wrap(&format!("Rank order: {}", self.ranks()), 2);
        out += &self.nccl_settings();
        out += &self.compared();
        out + &self.jobs()
    }

    fn predicted(&self) -> String {
        let a = self.answer;
        let candidates =
            if a.evaluations == 1 { "1 candidate".to_owned() } else { format!("{} candidates", a.evaluations) };
        let text = format!(
            "Predicted {} bus bandwidth at {}: {} GB/s ({} model, {} search, {candidates}, {:.0} us)",
            a.collective,
            self.size(),
            gb_with_std(a.predicted_busbw_gb_per_s, a.std_gb_per_s),
            a.model,
            a.search,
            self.elapsed.as_secs_f64() * 1e6
        );
        wrap(&text, 2)
    }

    fn groups(&self) -> String {
        let group = |g: &GroupAnswer| {
            let (n, size) = (g.count, g.size);
            let rate = gb(g.busbw_gb_per_s);
            wrap(&format!("{} groups: {n} of {size} ranks, {rate} GB/s while all communicate", g.kind), 2)
        };
        self.answer.groups.iter().map(group).collect()
    }

    /// The gains expected of NCCL settings.
    fn nccl_settings(&self) -> String {
        let Some(version) = self.nccl else { return String::new() };
        let settings = self.settings();
        if settings.is_empty() {
            return wrap(&format!("NCCL {version}: no setting is expected to gain anything here (model)."), 2);
        }
        let expected = settings.iter().map(|a| {
            let gain = 100.0 * a.gain().unwrap_or(0.0);
            wrap(&format!("With {} expect {gain:+.0} % (model of NCCL {version}, not measured).", a.text()), 2)
        });
        expected.collect()
    }

    /// The table of the choice and its alternatives.
    fn compared(&self) -> String {
        let a = self.answer;
        // If the choice is ranked by another figure than the bandwidth alone, that figure has its own column.
        let by = a.score_gb_per_s.map(|_| if a.contention.is_some() { "among\njobs" } else { "of\ngroups" });
        let mut head = vec!["", "split", "GB/s", "±"];
        head.extend(by);
        head.extend(["of choice", "GPUs"]);
        let mut t = table(&head, 2..head.len() - 1);
        let of_choice = a.score_gb_per_s.unwrap_or(a.predicted_busbw_gb_per_s);
        let mut row = |what: &str, split: &str, (gb_per_s, std): (f64, f64), score: Option<f64>, gpus: &GpuList| {
            let gpus = gpus_in_cell(self.cluster, &gpus.allocation(self.cluster), CELL_CHARS_MAX);
            let mut cells = vec![what.to_owned(), list_cell(split, SPLIT_WIDTH), gb(gb_per_s), std_of(gb_per_s, std)];
            cells.extend(by.map(|_| score.map_or("–".to_owned(), gb)));
            // A score that other jobs' losses make negative has no share.
            let share = score.unwrap_or(gb_per_s) / of_choice;
            cells.push(if of_choice > 0.0 { format!("{:.0} %", 100.0 * share) } else { "–".into() });
            cells.push(list_cell(&gpus, LIST_WIDTH));
            t.add_row(cells);
        };
        row("choice", &a.split, (a.predicted_busbw_gb_per_s, a.std_gb_per_s), a.score_gb_per_s, &a.gpus);
        let runner_ups = a.runner_ups.iter().take(RUNNER_UPS_SHOWN).enumerate();
        let rule = a.rule.iter().filter(|_| !a.price.keeps_rule).map(|r| ("simple rule", r));
        let others = rule.chain(a.packed.iter().map(|p| ("packed", p)));
        for (what, s) in others.chain(runner_ups.map(|(i, s)| (if i == 0 { "runner-up" } else { "" }, s))) {
            row(what, &s.split, (s.predicted_busbw_gb_per_s, s.std_gb_per_s), s.score_gb_per_s, &s.gpus);
        }
        text_of(&t)
    }

    fn bottleneck(&self) -> String {
        self.answer.bottleneck.text().map_or(String::new(), |t| wrap(&t, 2))
    }

    /// The bandwidth that the choice costs the cluster, and its gain over the simple rule.
    fn price(&self) -> String {
        let p = &self.answer.price;
        let cost = |c: &AllocationCost| {
            let plural = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
            let mut words = vec![plural(c.hosts, "host", "hosts")];
            words.extend(
                c.switches
                    .iter()
                    .map(|s| plural(s.count, &format!("{} switch", s.tier), &format!("{} switches", s.tier))),
            );
            words.push(format!("{} broken", plural(c.hosts_broken, "whole host", "whole hosts")));
            words.join(", ")
        };
        let price = format!("Costs {}", cost(&p.cost));
        let Some(rule) = &p.rule_cost else { return wrap(&format!("{price}."), 2) };
        let gained = p.gained_busbw_gb_per_s;
        let among = if self.answer.contention.is_some() { " among the running jobs" } else { "" };
        let same_gpus = self.answer.rule.as_ref().is_some_and(|r| r.gpus == self.answer.gpus);
        let text = if !p.keeps_rule {
            format!(
                "{price}; the simple rule {}. Gains {} GB/s over the rule{among} (needed: {}).",
                cost(rule),
                gb(gained),
                gb(p.slack_gb_per_s)
            )
        } else if same_gpus {
            format!("{price}: the simple rule's choice.")
        } else if gained > GAIN_SAID_MIN * self.answer.predicted_busbw_gb_per_s {
            let gained = gb(gained);
            format!("{price}, as the simple rule; gains {gained} GB/s over it{among} by the choice of hosts or GPUs.")
        } else {
            format!("{price}, as much as the simple rule's choice.")
        };
        wrap(&text, 2)
    }

    /// What the preferred level costs, or why it gave way.
    fn level(&self) -> String {
        let text = match (&self.answer.given_way, &self.answer.beyond_level) {
            (Some(g), _) => format!(
                "The preferred level gave way: below it {} GB/s as {}; `--require-level` insists.",
                gb(g.predicted_busbw_gb_per_s),
                g.split
            ),
            (_, Some(b)) => {
                format!("Beyond the preferred level: {} GB/s as {}.", gb(b.predicted_busbw_gb_per_s), b.split)
            }
            _ => return String::new(),
        };
        wrap(&text, 2)
    }

    /// What equal GPU counts per host would get if the choice has unequal ones, and the reverse.
    fn equal_counts(&self) -> String {
        if let Some(u) = &self.answer.uneven_counts {
            let hosts = u.gpus.allocation(self.cluster).host_count();
            let text = format!(
                "Unequal counts would get {} GB/s as {} on {hosts} hosts; `--uneven` asks for them.",
                gb(u.predicted_busbw_gb_per_s),
                u.split
            );
            return wrap(&text, 2);
        }
        let Some(e) = &self.answer.equal_counts else { return String::new() };
        let each = e.gpus.allocation(self.cluster).counts().first().copied().unwrap_or(0);
        let text = format!(
            "Equal counts would get {} GB/s as {}; `--per-host {each}` asks for them.",
            gb(e.predicted_busbw_gb_per_s),
            e.split
        );
        wrap(&text, 2)
    }

    fn pods(&self) -> String {
        let pods = &self.answer.pods;
        if pods.is_empty() {
            return String::new();
        }
        let pod = |(i, p): (usize, &GpuList)| format!("{i}={}", self.list_in_order(p));
        let mut words: Vec<String> = pods.iter().enumerate().take(LISTED_MAX).map(pod).collect();
        if pods.len() > LISTED_MAX {
            words.push(format!("and {} more", pods.len() - LISTED_MAX));
        }
        wrap(&format!("Pods: {}", words.join(" ")), 2)
    }

    /// The effect of the choice on the running jobs, largest loss first.
    fn jobs(&self) -> String {
        let Some(c) = &self.answer.contention else { return String::new() };
        let (n, s) = (c.jobs.len(), if c.jobs.len() == 1 { "" } else { "s" });
        let head = format!("Beside {n} running job{s} ({} contention):", c.kind);
        let (shared, alone) = (c.shared_busbw_gb_per_s, c.alone_busbw_gb_per_s);
        let mut out = wrap(&format!("{head} {} GB/s of {} alone.", gb(shared), gb(alone)), 2);
        let loss = |j: &NeighbourEffect| j.before_busbw_gb_per_s - j.after_busbw_gb_per_s;
        let mut losing: Vec<&NeighbourEffect> = c.jobs.iter().filter(|j| loss(j) > 0.0).collect();
        if losing.is_empty() {
            out.push_str("No running job loses anything.\n");
            return out;
        }
        losing.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
        let mut t = table(&["job", "GB/s now", "then", "loses"], 1..4);
        for j in losing.iter().take(LISTED_MAX) {
            let id: String = j.id.chars().filter(|c| !c.is_control()).take(40).collect();
            let (before, after) = (j.before_busbw_gb_per_s, j.after_busbw_gb_per_s);
            t.add_row([id, gb(before), gb(after), gb(loss(j))]);
        }
        out += &text_of(&t);
        if losing.len() > LISTED_MAX {
            let _ = writeln!(out, "and {} more jobs that lose less (--format json has all)", losing.len() - LISTED_MAX);
        }
        out
    }
}
