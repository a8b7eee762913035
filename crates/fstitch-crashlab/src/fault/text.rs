//! Plans as text: `seed=7; torn write kind=Inode nth=3; error flush every=2 times=all; slow=20`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use fstitch_core::{BlockKind, IoOp};

use super::plan::{Defect, Fault, FaultPlan, Times};

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` in a fault plan: {problem}")]
pub struct BadPlan {
    word: String,
    problem: &'static str,
}

fn bad(word: &str, problem: &'static str) -> BadPlan {
    BadPlan { word: word.to_owned(), problem }
}

const OPERATIONS: [IoOp; 4] = [IoOp::Read, IoOp::Write, IoOp::Flush, IoOp::Discard];

const KINDS: [BlockKind; 14] = [
    BlockKind::Superblock,
    BlockKind::GroupDescriptor,
    BlockKind::BlockBitmap,
    BlockKind::InodeBitmap,
    BlockKind::Inode,
    BlockKind::Directory,
    BlockKind::Indirect,
    BlockKind::Data,
    BlockKind::Attribute,
    BlockKind::JournalSuperblock,
    BlockKind::JournalDescriptor,
    BlockKind::JournalRevoke,
    BlockKind::JournalData,
    BlockKind::JournalCommit,
];

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.faults.iter().try_for_each(|fault| write!(f, "; {fault}"))
    }
}

impl FromStr for FaultPlan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let mut plan = Self::default();
        for clause in text.split(';').map(str::trim).filter(|clause| !clause.is_empty()) {
            match clause.strip_prefix("seed=") {
                Some(seed) => plan.seed = number(clause, seed)?,
                None => plan.faults.push(clause.parse()?),
            }
        }
        Ok(plan)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.defect.name())?;
        match self.defect {
            Defect::Corrupted { bits } => write!(f, "={bits}")?,
            Defect::Slow { ms } => write!(f, "={ms}")?,
            _ => {}
        }
        self.op.iter().try_for_each(|op| write!(f, " {op}"))?;
        self.blocks.iter().try_for_each(|blocks| write!(f, " blocks={}..{}", blocks.start, blocks.end))?;
        self.kind.iter().try_for_each(|kind| write!(f, " kind={kind:?}"))?;
        if self.nth != 1 {
            write!(f, " nth={}", self.nth)?;
        }
        if self.every != 1 {
            write!(f, " every={}", self.every)?;
        }
        match self.times {
            Times::Transient(1) => Ok(()),
            Times::Transient(times) => write!(f, " times={times}"),
            Times::Sticky => f.write_str(" times=all"),
        }
    }
}

impl FromStr for Fault {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let mut words = text.split_whitespace();
        let first = words.next().ok_or_else(|| bad(text, "a fault begins with the name of a defect"))?;
        let mut fault = Self::new(defect(first)?);
        for word in words {
            fault.take(word)?;
        }
        match fault.op {
            Some(op) if !fault.defect.operations().contains(&op) => {
                Err(bad(text, "this operation cannot fail in this way"))
            }
            _ => Ok(fault),
        }
    }
}

impl Fault {
    /// Takes in one word after the defect.
    fn take(&mut self, word: &str) -> Result<(), BadPlan> {
        match word.split_once('=') {
            None => {
                let op = OPERATIONS.into_iter().find(|op| op.to_string() == word);
                self.op = Some(op.ok_or_else(|| bad(word, "expected read, write, flush or discard"))?);
            }
            Some(("blocks", value)) => self.blocks = Some(range(word, value)?),
            Some(("kind", value)) => {
                let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == value);
                self.kind = Some(kind.ok_or_else(|| bad(word, "no such kind of block"))?);
            }
            Some(("nth", value)) => self.nth = positive(word, value)?,
            Some(("every", value)) => self.every = positive(word, value)?,
            Some(("times", "all")) => self.times = Times::Sticky,
            Some(("times", value)) => self.times = Times::Transient(number(word, value)?),
            Some(_) => return Err(bad(word, "expected blocks=, kind=, nth=, every= or times=")),
        }
        Ok(())
    }
}

fn defect(word: &str) -> Result<Defect, BadPlan> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let amount = || value.map(|value| number(word, value)).transpose();
    let defect = match name {
        "error" => Defect::Error,
        "torn" => Defect::Torn,
        "lost" => Defect::Lost,
        "misdirected" => Defect::Misdirected,
        "stale" => Defect::Stale,
        "dead" => Defect::Dead,
        "lying" => Defect::Lying,
        "corrupted" => {
            let bits = u32::try_from(amount()?.unwrap_or(1));
            return Ok(Defect::Corrupted { bits: bits.map_err(|_| bad(word, "too many bits"))? });
        }
        "slow" => return Ok(Defect::Slow { ms: amount()?.unwrap_or(1) }),
        _ => return Err(bad(word, "no such defect")),
    };
    if value.is_some() { Err(bad(word, "this defect takes no amount")) } else { Ok(defect) }
}

fn number(word: &str, value: &str) -> Result<u64, BadPlan> {
    value.parse().map_err(|_| bad(word, "expected a number"))
}

fn positive(word: &str, value: &str) -> Result<u64, BadPlan> {
    match number(word, value)? {
        0 => Err(bad(word, "it is counted from 1")),
        number => Ok(number),
    }
}

/// `7`, or `7..10` without its end.
fn range(word: &str, value: &str) -> Result<Range<u64>, BadPlan> {
    let (start, end) = match value.split_once("..") {
        Some((start, end)) => (number(word, start)?, number(word, end)?),
        None => {
            let block = number(word, value)?;
            (block, block.saturating_add(1))
        }
    };
    if start < end { Ok(start..end) } else { Err(bad(word, "the range is empty")) }
}
