//! Writes.

use super::{Event, Fault, Scenario, Seen, Story, ask_again};
use crate::policy::{Answer, Chain};

/// What a write does. A copy that is stored does not make up for a home that is not, but where its disk is dead: nobody would know that the home
/// is old.
pub(super) fn story(write: &Chain, scenario: &Scenario) -> Story {
    let mut events = Vec::new();
    let served = |events, is_latent| Story { events, seen: Seen::Right, end: None, is_latent };
    if scenario.fault == Fault::Slow {
        return served(vec![Event::Waited], false);
    }
    if scenario.fault == Fault::Dead && scenario.elsewhere && write.keeps_copies() {
        // The disk is put out, so everybody knows that its home is old: a copy is enough.
        return served(Vec::new(), false);
    }
    if !scenario.fault.is_reported(0) {
        let is_latent = scenario.fault.is_wrong();
        return served(is_latent.then_some(Event::Unnoticed).into_iter().collect(), is_latent);
    }
    events.push(Event::Reported);
    let mut asked = 1;
    for answer in &write.answers {
        match answer {
            Answer::Retry(retry) => {
                let (event, helped) = ask_again(scenario.fault, *retry, &mut asked);
                events.push(event);
                if helped {
                    return served(events, false);
                }
            }
            Answer::Remap if scenario.spares => {
                events.push(Event::Moved);
                return served(events, false);
            }
            Answer::Remap => events.push(Event::NoSpare),
            Answer::Notify => events.push(Event::Notified),
            Answer::Remount if !scenario.remountable => events.push(Event::RemountedInVain),
            Answer::Remount => {
                // The volume goes on; this write is among what was given up.
                events.push(Event::Remounted);
                return Story { events, seen: Seen::Error, end: None, is_latent: false };
            }
            Answer::Copies | Answer::Reconstruct | Answer::Repair | Answer::FullCheck => {
                unreachable!("`{answer}` is refused in chains of writes")
            }
        }
    }
    events.push(Event::Ended(write.end));
    Story { events, seen: Seen::Error, end: Some(write.end), is_latent: false }
}
