//! Progress of a campaign on standard error: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use measure::CampaignEvent;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Least time between plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Shows the events of one campaign.
pub struct Progress {
    bar: Option<ProgressBar>,
    terminal: bool,
    stage: Stage,
}

struct Stage {
    name: String,
    points: usize,
    done: usize,
    begun: Instant,
    told: Instant,
}

impl Progress {
    /// Of a campaign that begins now.
    pub fn new() -> Self {
        let now = Instant::now();
        let stage = Stage { name: String::new(), points: 0, done: 0, begun: now, told: now };
        Progress { bar: None, terminal: std::io::stderr().is_terminal(), stage }
    }

    /// Shows an event.
    pub fn on_event(&mut self, event: CampaignEvent) {
        match event {
            CampaignEvent::Stage { points: 0, .. } => {}
            CampaignEvent::Stage { name, points, already } => self.stage(name, points, already),
            CampaignEvent::Taken(n) => self.taken(n),
            CampaignEvent::Note(note) => match &self.bar {
                Some(bar) => bar.println(format!("note: {note}")),
                None => eprintln!("note: {note}"),
            },
        }
    }

    fn stage(&mut self, name: String, points: usize, already: usize) {
        self.finish();
        let now = Instant::now();
        if self.terminal {
            let bar = ProgressBar::new(points as u64);
            let style = "{msg} {wide_bar} {pos}/{len}, {eta} left";
            bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(name.clone());
            self.bar = Some(bar);
        } else if already > 0 {
            eprintln!("{name}: {points} points to take, {already} stored already");
        } else {
            eprintln!("{name}: {points} points to take");
        }
        self.stage = Stage { name, points, done: 0, begun: now, told: now };
    }

    fn taken(&mut self, n: usize) {
        let s = &mut self.stage;
        s.done += n;
        if let Some(bar) = &self.bar {
            bar.inc(n as u64);
        } else if s.told.elapsed() >= PLAIN_EVERY && s.done < s.points {
            s.told = Instant::now();
            let left = s.begun.elapsed().as_secs_f64() / s.done.max(1) as f64 * (s.points - s.done) as f64;
            eprintln!("{}: {} of {}, {} left", s.name, s.done, s.points, duration(left));
        }
    }

    /// The stage or the campaign is over.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// `45 s`, `12 min`, `3 h 20 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{} h {:.0} min", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
    }
}
