//! Progress of a campaign on standard error.

use console::{Progress, say};
use measure::CampaignEvent;
use std::io::IsTerminal;

/// Shows the progress of one campaign.
pub struct CampaignProgress {
    stage: Option<Progress>,
    /// `simulated `, or nothing.
    in_words: &'static str,
}

impl CampaignProgress {
    /// `in_words`: stands before the name of each stage and before each note.
    pub fn new(in_words: &'static str) -> Self {
        CampaignProgress { stage: None, in_words }
    }

    /// Updates the display with one event.
    pub fn on_event(&mut self, event: CampaignEvent) {
        match event {
            CampaignEvent::Stage { points: 0, .. } => {}
            CampaignEvent::Stage { name, points, already } => {
                self.stage = None; // remove the bar of the old stage first
                let name = format!("{}{name}", self.in_words);
                let stored = if already > 0 { format!(", {already} stored already") } else { String::new() };
                if !std::io::stderr().is_terminal() {
                    say(&format!("{name}: {} to take{stored}", topology::count(points, "point")));
                }
                self.stage = Some(Progress::new(&name, points));
            }
            CampaignEvent::Taken(n) => {
                if let Some(stage) = &self.stage {
                    stage.advance(n);
                }
            }
            CampaignEvent::Note(note) => {
                let note = match self.in_words.trim() {
                    "" => format!("note: {note}"),
                    word => format!("note: {word}: {note}"),
                };
                match &self.stage {
                    Some(stage) => stage.say(&note),
                    None => say(&note),
                }
            }
        }
    }
}
