//! Progress of a campaign on standard error.

use console::{Progress, say};
use measure::CampaignEvent;
use std::io::IsTerminal;

/// Shows the progress of one campaign.
#[derive(Default)]
pub struct CampaignProgress {
    stage: Option<Progress>,
}

impl CampaignProgress {
    /// Updates the display with one event.
    pub fn on_event(&mut self, event: CampaignEvent) {
        match event {
            CampaignEvent::Stage { points: 0, .. } => {}
            CampaignEvent::Stage { name, points, already } => {
                self.stage = None; // remove the bar of the old stage first
                let stored = if already > 0 { format!(", {already} stored already") } else { String::new() };
                if !std::io::stderr().is_terminal() {
                    say(&format!("{name}: {points} points to take{stored}"));
                }
                self.stage = Some(Progress::new(&name, points));
            }
            CampaignEvent::Taken(n) => {
                if let Some(stage) = &self.stage {
                    stage.advance(n);
                }
            }
            CampaignEvent::Note(note) => match &self.stage {
                Some(stage) => stage.say(&format!("note: {note}")),
                None => say(&format!("note: {note}")),
            },
        }
    }
}
