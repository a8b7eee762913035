//! Steps: from words to measures.

use std::fmt;
use std::time::Duration;

use super::Direction;

/// Where copies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// As near as there is room: cheap to write.
    Near,
    /// Half a disk away: a scratch does not take both.
    Far,
    /// On other disks.
    OtherDisk,
}

/// A measure that acts on every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Keeps a sum of each block, or compares with it.
    Verify,
    /// Judges by the format's rules for this kind of block.
    Sanity,
    /// Keeps copies.
    Mirror {
        /// Where.
        place: Place,
        /// How many besides the home.
        copies: u8,
    },
    /// Keeps a copy on every disk.
    AllDisks,
    /// Keeps a parity block.
    Parity {
        /// For so many neighbours.
        blocks: u8,
    },
}

/// How often and how long something is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// At most so often.
    pub times: u32,
    /// Before each attempt.
    pub delay: Duration,
    /// Since the first attempt; no further one begins after it.
    pub within: Duration,
}

/// A measure against a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Asks again.
    Retry(Retry),
    /// Reads the copies.
    Copies,
    /// Computes the block from its group.
    Reconstruct,
    /// Repairs by the format's rules.
    Repair,
    /// Writes elsewhere, and notes where.
    Remap,
    /// Runs the volume's hook.
    Notify,
    /// Stops the volume and checks it.
    FullCheck,
    /// Gives up what is not stable, and recovers.
    Remount,
}

/// What comes when nothing has helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum End {
    /// The error goes to the caller.
    #[default]
    Propagate,
    /// So does it, and nothing is changed from now on.
    ReadOnly,
    /// So does it, and everything fails from now on.
    Stop,
}

/// One step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Acts on every request.
    Standing(Standing),
    /// Acts on a fault.
    Answer(Answer),
    /// Ends a chain.
    End(End),
}

/// The longest time that a chain may ask again.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most attempts.
const ATTEMPTS: u32 = 1000;
/// Most copies besides the home.
const COPIES: u8 = 9;
/// Widest group of parity.
const GROUP: u8 = 64;

impl Step {
    /// What the words of a policy mean.
    ///
    /// # Errors
    /// With a sentence that names the word and what it could be.
    pub fn parse(words: &str, direction: Direction) -> Result<Self, String> {
        let mut rest = words.split_whitespace();
        let name = rest.next().ok_or("a step without a name")?;
        let rest: Vec<&str> = rest.collect();
        let step = match (name, direction) {
            ("verify", _) => Self::Standing(Standing::Verify),
            ("sanity", Direction::Read) => Self::Standing(Standing::Sanity),
            ("mirror", Direction::Read) => Self::Answer(Answer::Copies),
            ("mirror", Direction::Write) => return mirror(&rest),
            ("all-disks", Direction::Write) => Self::Standing(Standing::AllDisks),
            ("parity", Direction::Read) => Self::Answer(Answer::Reconstruct),
            ("parity", Direction::Write) => return parity(&rest),
            ("retry", _) => return retry(&rest),
            ("repair", Direction::Read) => Self::Answer(Answer::Repair),
            ("remap", Direction::Write) => Self::Answer(Answer::Remap),
            ("notify", _) => Self::Answer(Answer::Notify),
            ("full-check", Direction::Read) => Self::Answer(Answer::FullCheck),
            ("remount", _) => Self::Answer(Answer::Remount),
            ("propagate", _) => Self::End(End::Propagate),
            ("read-only", _) => Self::End(End::ReadOnly),
            ("stop", _) => Self::End(End::Stop),
            ("sanity" | "repair" | "full-check", Direction::Write) => {
                return Err(format!("`{name}` is for reads: a write has nothing yet that could be judged"));
            }
            ("all-disks", Direction::Read) => {
                return Err("`all-disks` is for writes; reads look at the copies with `mirror`".into());
            }
            ("remap", Direction::Read) => {
                return Err(
                    "`remap` is for writes; a moved block is found by every read without a step".into()
                );
            }
            _ => {
                return Err(format!(
                    "there is no step `{name}`; those of {}s are {}",
                    direction.name(),
                    names(direction)
                ));
            }
        };
        if rest.is_empty() {
            Ok(step)
        } else {
            Err(format!("`{name}` takes nothing, not `{}`", rest.join(" ")))
        }
    }
}

/// The names of steps for messages.
fn names(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => {
            "verify, sanity, retry, mirror, parity, repair, notify, full-check, remount, propagate, read-only, stop"
        }
        Direction::Write => {
            "verify, mirror, all-disks, parity, retry, remap, notify, remount, propagate, read-only, stop"
        }
    }
}

fn mirror(words: &[&str]) -> Result<Step, String> {
    let (place, rest) =
        words.split_first().ok_or("`mirror` of writes says where: near, far or other-disk")?;
    let place = match *place {
        "near" => Place::Near,
        "far" => Place::Far,
        "other-disk" => Place::OtherDisk,
        other => return Err(format!("copies are near, far or other-disk, not `{other}`")),
    };
    let copies = match rest {
        [] => 1,
        [count] => number(count, "copies", 1, u64::from(COPIES))?,
        more => {
            return Err(format!("`mirror` takes a place and a number of copies, not `{}`", more.join(" ")));
        }
    };
    let copies = u8::try_from(copies).map_err(|_| "too many copies")?;
    Ok(Step::Standing(Standing::Mirror { place, copies }))
}

fn parity(words: &[&str]) -> Result<Step, String> {
    let [count] = words else {
        return Err("`parity` of writes says for how many blocks, as in `parity 8`".into());
    };
    let blocks = number(count, "blocks of a parity group", 2, u64::from(GROUP))?;
    let blocks = u8::try_from(blocks).map_err(|_| "too many blocks")?;
    Ok(Step::Standing(Standing::Parity { blocks }))
}

fn retry(words: &[&str]) -> Result<Step, String> {
    let (times, mut rest) = words.split_first().ok_or("`retry` says how often, as in `retry 3`")?;
    let times =
        u32::try_from(number(times, "attempts", 1, u64::from(ATTEMPTS))?).map_err(|_| "too many attempts")?;
    let mut retry = Retry { times, delay: Duration::ZERO, within: PATIENCE };
    if let [delay, more @ ..] = rest
        && *delay != "within"
    {
        retry.delay = duration(delay)?;
        rest = more;
    }
    match rest {
        [] if retry.delay.saturating_mul(times) > PATIENCE => {
            return Err(format!(
                "{times} attempts with that delay take longer than ten minutes; `within TIME` bounds them"
            ));
        }
        [] => {}
        ["within", time] => retry.within = duration(time)?,
        more => {
            return Err(format!(
                "`retry` is `retry TIMES [DELAY] [within TIME]`, without `{}`",
                more.join(" ")
            ));
        }
    }
    if retry.within > PATIENCE {
        return Err("nobody waits for a block longer than ten minutes".into());
    }
    Ok(Step::Answer(Answer::Retry(retry)))
}

fn number(word: &str, of: &str, least: u64, most: u64) -> Result<u64, String> {
    let count = word.parse().ok().filter(|count| (least..=most).contains(count));
    count.ok_or_else(|| format!("the number of {of} is {least} to {most}, not `{word}`"))
}

fn duration(word: &str) -> Result<Duration, String> {
    let bad = || format!("a time is written as 10ms or 2s, not `{word}`");
    let (count, millis) = match word.strip_suffix("ms") {
        Some(count) => (count, 1),
        None => (word.strip_suffix('s').ok_or_else(bad)?, 1000),
    };
    let count: u64 = count.parse().map_err(|_| bad())?;
    count.checked_mul(millis).map(Duration::from_millis).ok_or_else(bad)
}

/// A time in the words of policies.
fn show(time: Duration) -> String {
    let millis = time.as_millis();
    if millis.is_multiple_of(1000) { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standing(standing) => standing.fmt(f),
            Self::Answer(answer) => answer.fmt(f),
            Self::End(end) => end.fmt(f),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verify => f.write_str("verify"),
            Self::Sanity => f.write_str("sanity"),
            Self::Mirror { place, copies } => {
                let place = match place {
                    Place::Near => "near",
                    Place::Far => "far",
                    Place::OtherDisk => "other-disk",
                };
                write!(f, "mirror {place}")?;
                if *copies == 1 { Ok(()) } else { write!(f, " {copies}") }
            }
            Self::AllDisks => f.write_str("all-disks"),
            Self::Parity { blocks } => write!(f, "parity {blocks}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(retry) => {
                write!(f, "retry {}", retry.times)?;
                if !retry.delay.is_zero() {
                    write!(f, " {}", show(retry.delay))?;
                }
                if retry.within == PATIENCE { Ok(()) } else { write!(f, " within {}", show(retry.within)) }
            }
            Self::Copies => f.write_str("mirror"),
            Self::Reconstruct => f.write_str("parity"),
            Self::Repair => f.write_str("repair"),
            Self::Remap => f.write_str("remap"),
            Self::Notify => f.write_str("notify"),
            Self::FullCheck => f.write_str("full-check"),
            Self::Remount => f.write_str("remount"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Propagate => "propagate",
            Self::ReadOnly => "read-only",
            Self::Stop => "stop",
        })
    }
}
