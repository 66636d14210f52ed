//! Says on pods what is awaited, and where they were placed.
//!
//! The pods themselves say what they were told: a text that got lost is written again, by whatever leader.

use super::{Controller, SAY_AGAIN, TICK};
use crate::names::{REASON, RELEASED};
use crate::plan::{self, Plan, Waiting};
use crate::say::{self, Word};
use crate::world::{Id, id};
use crate::write::together;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::time::Instant;

/// Gangs that are told something in a round: each costs some requests, and the others have their turn in the next rounds.
const TOLD_MAX: usize = 20;

/// What was said of a gang.
#[derive(Debug)]
pub(super) struct Said {
    /// The text.
    pub text: String,
    /// When.
    pub at: Instant,
}

impl Controller {
    /// Says what a gang waits for: an event per text, and the condition of every pod that says something else. A text in which only numbers changed is no
    /// event for a while, and its condition comes once a minute.
    pub(super) async fn say(&mut self, waiting: &Waiting) {
        let now = Instant::now();
        let Some(said) = self.said.get(&waiting.gang) else {
            // The first second is silent: most gangs are complete by then.
            let at = now.checked_sub(SAY_AGAIN - TICK).unwrap_or(now);
            self.said.insert(waiting.gang.clone(), Said { text: String::new(), at });
            return;
        };
        let since = now.duration_since(said.at);
        if since <= SAY_AGAIN {
            return;
        }
        let news = say::is_other(&said.text, &waiting.message) || since > 20 * SAY_AGAIN;
        let word = Word { placed: false, text: &waiting.message };
        let is_old = since > 6 * SAY_AGAIN;
        let is_told = |p: &Pod| if is_old { word.is_on(p) } else { word.is_nearly_on(p) };
        let is_untold = |p: &&Id| self.world.pods.get(p).is_some_and(|p| !is_told(p));
        let untold: Vec<(Id, Word)> = waiting.pods.iter().filter(is_untold).map(|p| (p.clone(), word)).collect();
        if (!news && untold.is_empty()) || self.told >= TOLD_MAX {
            return;
        }
        self.told += 1;
        self.said.insert(waiting.gang.clone(), Said { text: waiting.message.clone(), at: now });
        self.pulse.beat();
        if let Some(pod) = waiting.pods.first().and_then(|p| self.world.pods.get(p)).filter(|_| news) {
            say::event(&self.client, &self.identity, pod, true, "Waiting", &waiting.message).await;
        }
        self.tell(&untold).await;
    }

    /// Released pods whose condition still says that they wait are told where they are.
    pub(super) async fn tell_placed(&mut self, plan: &Plan) {
        let waiting: BTreeSet<&Id> = plan.waiting.iter().flat_map(|w| &w.pods).collect();
        let released = self.world.pods.all().filter(|p| {
            p.annotations().contains_key(RELEASED) && !crate::gang::is_gated(p) && !plan::is_over(p) && say::waits(p)
        });
        let pods: Vec<(Id, String)> = released
            .map(|p| (id(p), p.annotations().get(REASON).cloned().unwrap_or_default()))
            .filter(|(id, _)| self.settings.places(&id.0) && !waiting.contains(id))
            .collect();
        let words: Vec<(Id, Word)> =
            pods.iter().map(|(id, reason)| (id.clone(), Word { placed: true, text: reason })).collect();
        self.tell(&words).await;
    }

    /// Writes conditions. The first one alone: what refuses it refuses the others.
    async fn tell(&mut self, words: &[(Id, Word<'_>)]) {
        let Some((first, rest)) = words.split_first() else { return };
        for part in [std::slice::from_ref(first), rest] {
            self.pulse.beat();
            let told = together(part.iter().map(|(pod, word)| say::tell(&self.client, pod, *word)).collect()).await;
            for told in told {
                match told {
                    Ok(now) => self.world.pods.put(now),
                    Err(why) => {
                        if let Some(why) = why {
                            self.log_once(why);
                        }
                        if part.len() == 1 {
                            return;
                        }
                    }
                }
            }
        }
    }
}
