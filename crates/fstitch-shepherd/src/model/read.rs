//! Reads.

use super::{Event, Fault, Scenario, Seen, Story, ask_again};
use crate::policy::{Answer, Chain, Standing};

/// What a read does.
pub(super) fn story(read: &Chain, write: &Chain, scenario: &Scenario) -> Story {
    let mut events = Vec::new();
    if scenario.fault == Fault::Slow {
        return Story { events: vec![Event::Waited], seen: Seen::Right, end: None, is_latent: false };
    }
    let Some(noticed) = notice(read, scenario) else {
        let (event, seen) = if scenario.fault.is_wrong() {
            (Some(Event::Unnoticed), Seen::Wrong)
        } else {
            (None, Seen::Right)
        };
        return Story { events: event.into_iter().collect(), seen, end: None, is_latent: false };
    };
    events.push(noticed);
    let mut asked = 1;
    for answer in &read.answers {
        if try_answer(*answer, write, scenario, &mut asked, &mut events) {
            return Story { events, seen: Seen::Right, end: None, is_latent: false };
        }
    }
    events.push(Event::Ended(read.end));
    Story { events, seen: Seen::Error, end: Some(read.end), is_latent: false }
}

/// Who notices the fault at the first request.
fn notice(read: &Chain, scenario: &Scenario) -> Option<Event> {
    if scenario.fault.is_reported(0) {
        return Some(Event::Reported);
    }
    if !scenario.fault.is_wrong() {
        return None;
    }
    if read.stands(Standing::Verify) {
        return Some(Event::SumDiffers);
    }
    (read.stands(Standing::Sanity) && scenario.breaks_rules).then_some(Event::RuleBroken)
}

/// One measure; whether it has helped.
fn try_answer(
    answer: Answer,
    write: &Chain,
    scenario: &Scenario,
    asked: &mut u32,
    events: &mut Vec<Event>,
) -> bool {
    let (event, helped) = match answer {
        Answer::Retry(retry) => {
            let (event, helped) = ask_again(scenario.fault, retry, asked);
            events.push(event);
            return helped;
        }
        Answer::Notify => {
            events.push(Event::Notified);
            return false;
        }
        Answer::Remount if !scenario.remountable => {
            events.push(Event::RemountedInVain);
            return false;
        }
        Answer::Remount => {
            events.push(Event::Remounted);
            let fails = scenario.fault.is_reported(*asked) || scenario.fault.is_wrong();
            *asked = asked.saturating_add(1);
            return !fails;
        }
        Answer::FullCheck => {
            // A check repairs what it reads; what the disk does not give it cannot, and a check takes its time.
            let helps = scenario.checkable && !scenario.fault.is_reported(*asked);
            *asked = asked.saturating_add(1);
            events.push(if helps { Event::Checked } else { Event::CheckedInVain });
            return helps;
        }
        Answer::Copies if scenario.copies => (Event::CopyRead, true),
        Answer::Copies => (Event::NoCopy, false),
        Answer::Reconstruct if scenario.parity => (Event::Reconstructed, true),
        Answer::Reconstruct => (Event::NoParity, false),
        // Only what was read can be repaired.
        Answer::Repair if scenario.repairable && scenario.fault.is_wrong() => (Event::Repaired, true),
        Answer::Repair => (Event::NoRepair, false),
        Answer::Remap => unreachable!("`remap` is refused in chains of reads"),
    };
    events.push(event);
    if helped {
        events.push(renew(write, scenario));
    }
    helped
}

/// The home gets the right contents, or the block moves.
fn renew(write: &Chain, scenario: &Scenario) -> Event {
    if scenario.writable {
        Event::Renewed
    } else if scenario.spares && write.answers.contains(&Answer::Remap) {
        Event::RenewedElsewhere
    } else {
        Event::NotRenewed
    }
}
