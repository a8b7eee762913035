//! A device with a volatile cache and a power switch, for a mount that is cut off while it works.
//!
//! **States.** Alive: writes stay in memory until a flush, or until there are too many of them; reads see the newest.
//! Dead, for ever, after [`LiveDevice::cut`]: every request fails with `EIO`.
//!
//! **Invariants**
//!
//! - L1. What a flush covered is on the medium, and the medium was flushed, before the flush returns.
//! - L2. A cut leaves for each atom what the medium holds or one of the versions written since: nothing that
//!   `docs/medium.md` does not allow at the level.
//!
//! Discards are ignored, as a device may.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result, Seed,
};

use crate::medium::{Level, SECTOR, check_request, size};

/// Which volatile writes a power cut spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Only what was flushed is there.
    None,
    /// Everything arrived just in time.
    All,
    /// Whatever the level allows, drawn by this seed.
    Seed(u64),
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Seed(seed) => write!(f, "seed={seed}"),
        }
    }
}

/// A word that names no survivors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no survivors of a power cut: expected none, all or seed=N")]
pub struct UnknownSurvivors(String);

impl FromStr for Survivors {
    type Err = UnknownSurvivors;

    fn from_str(text: &str) -> Result<Self, UnknownSurvivors> {
        let unknown = || UnknownSurvivors(text.to_owned());
        match text {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            _ => {
                let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
                seed.map(Self::Seed).ok_or_else(unknown)
            }
        }
    }
}

/// How a live device behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// How badly a cut behaves. No write is under way at a cut, so at M0 and M1 nothing is lost, whoever is to
    /// survive.
    pub level: Level,
    /// Bytes that stay volatile; beyond that the oldest writes go to the medium.
    pub limit_bytes: usize,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self { level: Level::M2, limit_bytes: 64 << 20 }
    }
}

/// What became of the volatile blocks at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CutReport {
    /// Blocks whose newest version arrived.
    pub survived: u64,
    /// Blocks that hold an older version, or parts of several.
    pub lost: u64,
}

/// A device in front of a medium, with a volatile cache between them.
pub struct LiveDevice<D> {
    medium: D,
    options: LiveOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Versions that the medium does not hold, in order of issue; no list is empty.
    volatile: BTreeMap<u64, Vec<Version>>,
    /// The blocks of these versions by their numbers, the oldest first.
    order: BTreeMap<u64, u64>,
    next: u64,
    dead: bool,
    /// A cut that happens in place of a flush: after how many others, and what survives.
    armed: Option<(u64, Survivors)>,
    /// What the cut did.
    report: CutReport,
}

#[derive(Debug)]
struct Version {
    no: u64,
    kind: BlockKind,
    data: Vec<u8>,
}

impl<D: BlockDevice> LiveDevice<D> {
    /// A device whose stable contents are those of `medium`.
    #[must_use]
    pub fn new(medium: D, options: LiveOptions) -> Self {
        Self { medium, options, state: Mutex::default() }
    }

    /// The medium below.
    pub fn medium(&self) -> &D {
        &self.medium
    }

    /// Whether the power is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Bytes that a cut may take.
    #[must_use]
    pub fn volatile_bytes(&self) -> usize {
        self.state().order.len() * self.unit()
    }

    /// Takes the power away now. Once it returned, the medium holds what survived; a second cut does nothing, and
    /// reports what the first one did.
    ///
    /// # Errors
    /// If the medium fails. The device is dead all the same.
    pub fn cut(&self, survivors: Survivors) -> Result<CutReport> {
        self.cut_state(&mut self.state(), survivors)
    }

    /// Takes the power away in place of a later flush, when the most is volatile: the first from now on that finds
    /// `skip` others before it.
    pub fn cut_at_flush(&self, skip: u64, survivors: Survivors) {
        self.state().armed = Some((skip, survivors));
    }

    fn cut_state(&self, state: &mut State, survivors: Survivors) -> Result<CutReport> {
        if state.dead {
            return Ok(state.report);
        }
        state.dead = true;
        state.order.clear();
        let volatile = std::mem::take(&mut state.volatile);
        let mut report = CutReport::default();
        let mut arrived: Vec<(u64, BlockKind, Vec<u8>)> = Vec::new();
        let mut fate = Fate::new(survivors, self.options.level);
        for (block, versions) in volatile {
            let newest = versions.last().expect("no list is empty");
            let kind = newest.kind;
            let mut data = vec![0; self.unit()];
            self.medium.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }])?;
            fate.decide(&mut data, &versions);
            let whole = data == newest.data;
            report.survived += u64::from(whole);
            report.lost += u64::from(!whole);
            arrived.push((block, kind, data));
        }
        let writes: Vec<BlockWrite<'_>> = arrived
            .iter()
            .map(|(block, kind, data)| BlockWrite { block: BlockNo(*block), kind: *kind, data })
            .collect();
        if !writes.is_empty() {
            self.medium.write(&writes)?;
        }
        self.medium.flush()?;
        state.report = report;
        Ok(report)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    fn unit(&self) -> usize {
        size(self.medium.geometry().block_size)
    }

    /// Lets the oldest versions go to the medium until the limit is kept.
    fn make_room(&self, state: &mut State) -> Result<()> {
        while state.order.len() * self.unit() > self.options.limit_bytes {
            let Some((_, &block)) = state.order.first_key_value() else { return Ok(()) };
            let versions = state.volatile.get_mut(&block).expect("both tables agree");
            let oldest = &versions[0];
            self.medium.write(&[BlockWrite {
                block: BlockNo(block),
                kind: oldest.kind,
                data: &oldest.data,
            }])?;
            let oldest = versions.remove(0);
            if versions.is_empty() {
                state.volatile.remove(&block);
            }
            state.order.remove(&oldest.no);
        }
        Ok(())
    }
}

/// Decides what survives.
struct Fate {
    survivors: Survivors,
    level: Level,
    dice: Seed,
}

impl Fate {
    fn new(survivors: Survivors, level: Level) -> Self {
        let seed = if let Survivors::Seed(seed) = survivors { seed } else { 0 };
        Self { survivors, level, dice: Seed::new(seed) }
    }

    /// Turns what the medium holds into what it holds after the cut.
    fn decide(&mut self, data: &mut [u8], versions: &[Version]) {
        let newest = versions.len();
        let atom = if self.level == Level::M3 { SECTOR.min(data.len()) } else { data.len() };
        for start in (0..data.len()).step_by(atom) {
            // 0 is what the medium holds.
            let chosen = match (self.survivors, self.level) {
                (Survivors::All, _) | (_, Level::M0 | Level::M1) => newest,
                (Survivors::None, _) => 0,
                _ => {
                    let bound = to_u64(newest + 1);
                    BlockNo(self.dice.below(bound)).index()
                }
            };
            if let Some(version) = chosen.checked_sub(1).and_then(|index| versions.get(index)) {
                data[start..start + atom].copy_from_slice(&version.data[start..start + atom]);
            }
        }
    }
}

/// The answer of a dead device.
fn dead(op: IoOp, block: BlockNo) -> Error {
    Error::io(op, block, io::Error::other("the power is gone"))
}

impl<D: BlockDevice> BlockDevice for LiveDevice<D> {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let state = self.state();
        for read in reads {
            if state.dead {
                return Err(dead(IoOp::Read, read.block));
            }
            check_request(self.medium.geometry(), IoOp::Read, read.block, read.data.len())?;
            match state.volatile.get(&read.block.get()).and_then(|versions| versions.last()) {
                Some(newest) => read.data.copy_from_slice(&newest.data),
                None => self.medium.read(std::slice::from_mut(read))?,
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut state = self.state();
        for write in writes {
            if state.dead {
                return Err(dead(IoOp::Write, write.block));
            }
            check_request(self.medium.geometry(), IoOp::Write, write.block, write.data.len())?;
        }
        for write in writes {
            let (no, block) = (state.next, write.block.get());
            state.next += 1;
            state.order.insert(no, block);
            let version = Version { no, kind: write.kind, data: write.data.to_vec() };
            state.volatile.entry(block).or_default().push(version);
        }
        self.make_room(&mut state)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state();
        if state.dead {
            return Err(dead(IoOp::Flush, BlockNo(0)));
        }
        match state.armed {
            Some((0, survivors)) => {
                self.cut_state(&mut state, survivors)?;
                return Err(dead(IoOp::Flush, BlockNo(0)));
            }
            Some((skip, survivors)) => state.armed = Some((skip - 1, survivors)),
            None => {}
        }
        let writes: Vec<BlockWrite<'_>> = state
            .volatile
            .iter()
            .filter_map(|(&block, versions)| {
                let newest = versions.last()?;
                Some(BlockWrite { block: BlockNo(block), kind: newest.kind, data: &newest.data })
            })
            .collect();
        if !writes.is_empty() {
            self.medium.write(&writes)?;
        }
        self.medium.flush()?;
        state.volatile.clear();
        state.order.clear();
        Ok(())
    }

    fn discard(&self, start: BlockNo, _count: u64) -> Result<()> {
        if self.is_dead() { Err(dead(IoOp::Discard, start)) } else { Ok(()) }
    }

    fn intact(&self) -> Result<()> {
        self.medium.intact()
    }
}
