//! What a policy may not say, because it cannot be what somebody wants.
//!
//! The rules are those of the table "what is refused" in `docs/design/shepherd.md`.

use super::step::{Answer, Place, Standing};
use super::text::{BadPolicy, Origin};
use super::{Chain, Direction, Group, Kind, Policy};

/// What a volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Disks that it is on.
    pub disks: usize,
}

/// A sentence of what is wrong, and one of what would be right.
pub(super) struct Refusal {
    pub(super) what: String,
    pub(super) remedy: &'static str,
    /// The chain to blame.
    pub(super) direction: Direction,
}

/// Checks the two chains of a kind.
pub(super) fn kind(kind: Kind, read: &Chain, write: &Chain) -> Result<(), Refusal> {
    restricted(kind, read, Direction::Read)?;
    restricted(kind, write, Direction::Write)?;
    rules(kind, read)?;
    pairs(read, write)
}

fn refuse(direction: Direction, what: impl Into<String>, remedy: &'static str) -> Result<(), Refusal> {
    Err(Refusal { what: what.into(), remedy, direction })
}

/// The journal's blocks and the maps' may have little (\[C\] §4.1.5).
fn restricted(kind: Kind, chain: &Chain, direction: Direction) -> Result<(), Refusal> {
    let group = kind.group();
    if !group.is_restricted() {
        return Ok(());
    }
    let lawful = |standing: &Standing| {
        group == Group::Journal && matches!(standing, Standing::Mirror { .. } | Standing::AllDisks)
    };
    let standing = chain.standing.iter().find(|standing| !lawful(standing)).map(ToString::to_string);
    let lawful = |answer: &Answer| match answer {
        Answer::Retry(_) | Answer::Notify => true,
        Answer::Copies => group == Group::Journal,
        _ => false,
    };
    let answer = chain.answers.iter().find(|answer| !lawful(answer)).map(ToString::to_string);
    let remedy = match group {
        Group::Journal => "a journal's blocks may have retry, mirror, notify and an end",
        _ => "maps have two copies in any case, and may have retry, notify and an end",
    };
    match standing.or(answer) {
        Some(step) => {
            refuse(direction, format!("`{step}` for {} would need what has just failed", kind.name()), remedy)
        }
        None => Ok(()),
    }
}

/// What needs rules of the format.
fn rules(kind: Kind, read: &Chain) -> Result<(), Refusal> {
    let judges = read.stands(Standing::Sanity);
    let repairs = read.answers.contains(&Answer::Repair);
    let checks = read.answers.contains(&Answer::FullCheck);
    if (judges || repairs || checks) && !kind.has_rules() {
        let what = format!(
            "the format has no rules by which a block of {} could be judged or repaired",
            kind.name()
        );
        return refuse(Direction::Read, what, "sanity, repair and full-check are for metadata");
    }
    if read.stands(Standing::Verify) && repairs && !judges {
        let what = "`repair` returns what no sum is known of, although `verify` asks for verified blocks";
        return refuse(Direction::Read, what, "with `sanity` as well, what was repaired is judged");
    }
    Ok(())
}

/// What one direction needs of the other.
fn pairs(read: &Chain, write: &Chain) -> Result<(), Refusal> {
    let keeps_sums = write.stands(Standing::Verify);
    let looks_at_sums = read.stands(Standing::Verify);
    if looks_at_sums && !keeps_sums {
        return refuse(
            Direction::Read,
            "`verify` compares with sums that no write keeps",
            "writes need `verify` too",
        );
    }
    if keeps_sums && !looks_at_sums {
        return refuse(
            Direction::Write,
            "`verify` keeps sums that no read looks at",
            "reads need `verify` too",
        );
    }
    let reads_copies = read.answers.contains(&Answer::Copies);
    if reads_copies && !write.keeps_copies() {
        return refuse(
            Direction::Read,
            "`mirror` reads copies that no write keeps",
            "writes need `mirror` or `all-disks`",
        );
    }
    if write.keeps_copies() && !reads_copies {
        return refuse(Direction::Write, "copies are kept that no read would look at", "reads need `mirror`");
    }
    let computes = read.answers.contains(&Answer::Reconstruct);
    if computes && !write.keeps_parity() {
        return refuse(
            Direction::Read,
            "`parity` computes from parity that no write keeps",
            "writes need `parity K`",
        );
    }
    if write.keeps_parity() && !computes {
        return refuse(Direction::Write, "parity is kept that no read would use", "reads need `parity`");
    }
    Ok(())
}

/// Checks that the volume has what is asked for.
pub(super) fn volume(policy: &Policy, text: &str, facts: &VolumeFacts) -> Result<(), BadPolicy> {
    for kind in Kind::ALL {
        for standing in &policy.chain(kind, Direction::Write).standing {
            let wanted = match standing {
                Standing::Mirror { place: Place::OtherDisk, copies } => usize::from(*copies) + 1,
                Standing::AllDisks => 2,
                _ => 1,
            };
            if facts.disks < wanted {
                let what = format!(
                    "`{standing}` for {} asks for {wanted} disks; the volume is on {}",
                    kind.name(),
                    if facts.disks == 1 { "one".to_owned() } else { facts.disks.to_string() }
                );
                let line = Origin::of(text, kind, Direction::Write).unwrap_or(1);
                return Err(BadPolicy { line, what, remedy: "mirror near or far works on one disk".into() });
            }
        }
    }
    Ok(())
}
