//! The shepherd: a device over a device that does what a policy says.
//!
//! # States of a run of 64 blocks
//!
//! ```text
//!   agreed ──[write::prepare: the bit is stable before the write is issued]──► in doubt
//!   in doubt ──[settle: homes and copies flushed, then sums and owners, then the bit]──► agreed
//!   in doubt ──(crash)──[recover: each block is examined]──► agreed
//! ```
//!
//! # Invariants
//!
//! Those of `docs/design/shepherd.md`, as far as they concern what is built:
//!
//! - **S1.** A home that has a sum or copies is written only while its run's bit is stable, so in an agreed run sum, home and copies
//!   are of one version.
//! - **S2.** What a crash left in a run in doubt is taken as it is if it can be read.
//! - **S4.** A spare is given away only when no stable map names it, and is named as a copy behind a flush of what it holds (`map`, M2). A
//!   flush is answered when everything that was written before it is named.
//! - **S5.** Nothing is copied over another copy unless it was compared with its sum, or S2 says that there is none that counts.
//!
//! A run with a block whose home could not be written stays in doubt until it can be.

mod disks;
mod health;
mod make;
mod parity;
mod places;
mod read;
mod recover;
mod remap;
mod remedy;
mod rescue;
mod scrub;
mod search;
mod settle;
mod short;
mod without;
mod write;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result,
};

use crate::disks::Array;
use crate::map::shape::RUN;
use crate::map::{Area, Counters, Doubt, Head, Owners, Sums};
use crate::model::{Event, Seen};
use crate::policy::{Answer, Chain, Direction, End, Kind, Place, Policy, Standing};

pub use health::{Health, Holdings, Incident, Trouble};
pub use make::{Progress, Room, Stretch};
pub use recover::Opened;
pub use remedy::{Era, Remedy};
pub use rescue::{Asked, Rescue};
pub use scrub::Scrubbed;
pub use search::{Found, Reach, Sighting, heads};
pub use short::Counted;

/// The rules by which a format judges its own blocks.
pub trait Rules: Send + Sync {
    /// Why a block of this kind cannot hold this; `None` if it may.
    fn judge(&self, kind: BlockKind, block: BlockNo, data: &[u8]) -> Option<String>;
    /// What a block of this kind that holds `data` must hold, if there is but one answer; `read` reads other blocks of the volume.
    fn repair(
        &self,
        kind: BlockKind,
        block: BlockNo,
        data: &[u8],
        read: &dyn Fn(BlockNo, BlockKind) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let _ = (kind, block, data, read);
        None
    }
}

type Pause = Arc<dyn Fn(Duration) + Send + Sync>;
type Watch = Arc<dyn Fn(&Incident) + Send + Sync>;

/// What a shepherd is given beside the disk.
#[derive(Clone)]
pub struct Options {
    /// Waits between attempts.
    pub pause: Pause,
    /// Is told of every fault, and of what was done about it, in the thread that met it.
    pub watch: Watch,
    /// What `sanity` asks; without it, policies that have `sanity` are refused.
    pub rules: Option<Arc<dyn Rules>>,
    /// What `full-check` and `remount` ask for; without it, policies that have one of them are refused.
    pub remedy: Option<Arc<dyn Remedy>>,
    /// How long a read waits for a remedy before that counts as in vain.
    pub patience: Duration,
    /// The disks, if the volume is on several.
    pub disks: Option<Arc<Array>>,
    /// Nothing that is written is kept: maps that are of no use are not made empty, but passed over.
    pub read_only: bool,
    /// [`Shepherd::rescue`] has shown that nobody else has written: a superblock that cannot be read does not matter.
    pub is_ours: bool,
    /// Blocks of the map of sums in memory, but for those that are not on the medium yet.
    pub pages_max: usize,
    /// Runs in doubt before sums and copies are brought up to date by a write.
    pub doubt_max: usize,
    /// Pieces that a scrub asks for at once, each by a thread of its own. With 1 every request comes from the caller's, in the order of blocks, on
    /// which who replays them relies.
    pub scrubbed_at_once: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pause: Arc::new(std::thread::sleep),
            watch: Arc::new(|_| {}),
            rules: None,
            remedy: None,
            patience: Duration::from_secs(600),
            disks: None,
            read_only: false,
            is_ours: false,
            pages_max: 4096,
            doubt_max: 4096,
            scrubbed_at_once: 3,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options(pages_max: {}, doubt_max: {})", self.pages_max, self.doubt_max)
    }
}

/// What changes.
struct State {
    head: Head,
    doubt: Doubt,
    sums: Sums,
    owners: Owners,
    counters: Counters,
    /// Runs with a home that could not be written.
    failed: BTreeSet<u64>,
    /// Somebody else has written to the volume, and the maps were not renewed since: the seal stays as it is.
    is_foreign: bool,
    /// A sealed sector was written since the last flush, so a cut may leave either of the two.
    seal_moves: bool,
    /// Of the head's count of lost blocks, what the medium says.
    lost_said: u32,
    /// Marks of lost blocks that are gone in memory, and may still be on the medium.
    marks_taken: u32,
}

const WORKING: u8 = 0;
const READ_ONLY: u8 = 1;
const STOPPED: u8 = 2;

/// A device that follows a policy.
pub struct Shepherd {
    policy: Policy,
    /// Whether any kind of block has sums: else nobody needs to look for one.
    keeps_sums: bool,
    area: Area,
    options: Options,
    /// Blocks of a group of parity; 0 without.
    group: u64,
    /// Held over what changes parity or is computed by it; taken after the gate and before the state.
    parity: Mutex<()>,
    /// Shared by writes on their way, from what they note to the disk's answer; taken before the state.
    gate: RwLock<()>,
    /// Memory of the scrub that is under way.
    scrubbed: Mutex<Vec<BlockBuf>>,
    state: Mutex<State>,
    health: Mutex<Health>,
    desk: Arc<remedy::Desk>,
    /// What was written since the last flush, by the disks that have it.
    bare: Mutex<disks::Bare>,
    /// [`WORKING`], [`READ_ONLY`] or [`STOPPED`]; it only grows.
    mode: AtomicU8,
}

impl fmt::Debug for Shepherd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shepherd({}, {} blocks of maps)", self.policy.description, self.area.len())
    }
}

fn run_of(block: BlockNo) -> u64 {
    block.get() / RUN
}

/// Whether a chain of writes keeps something of a block besides its home.
fn keeps(chain: &Chain) -> bool {
    chain.stands(Standing::Verify) || chain.keeps_copies() || chain.keeps_parity()
}

impl Shepherd {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    fn disk(&self) -> &dyn BlockDevice {
        &self.area.device
    }

    /// What the policy says of a kind of block.
    fn chain(&self, kind: BlockKind, direction: Direction) -> &Chain {
        self.policy.chain(Kind::Block(kind), direction)
    }

    /// The policy that it follows.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Faults so far, since it was opened.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.lock().unpoisoned().clone()
    }

    /// Faults since the volume follows its policy.
    #[must_use]
    pub fn lifetime(&self) -> Health {
        let since = self.health().numbers();
        Health::from_numbers(&self.state().counters.total(&since))
    }

    /// What the maps have.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let state = self.state();
        Holdings {
            spares: self.area.shape.spares,
            free: state.owners.free(),
            bad: state.owners.bad(),
            copies: state.owners.homes().map(|(_, spares)| fstitch_core::num::to_u64(spares.len())).sum(),
            moved: fstitch_core::num::to_u64(state.owners.moved().count()),
            groups: state.owners.groups(),
            lost: u64::from(state.head.lost),
        }
    }

    /// Refuses a policy that cannot be carried out with these options, by the name of a step.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check(policy: &Policy, options: &Options) -> Result<()> {
        supported(policy, options)
    }

    /// Whether a block is one of the shepherd's own.
    #[must_use]
    pub fn owns(&self, block: BlockNo) -> bool {
        self.area.has(block)
    }

    /// Ends a chain: what becomes of the volume.
    fn end(&self, end: End) {
        let mode = match end {
            End::Propagate => return,
            End::ReadOnly => READ_ONLY,
            End::Stop => STOPPED,
        };
        self.mode.fetch_max(mode, Ordering::Relaxed);
    }

    /// Refuses what a policy has stopped.
    fn lets(&self, op: IoOp, block: BlockNo) -> Result<()> {
        let mode = self.mode.load(Ordering::Relaxed);
        let why = match (mode, op) {
            (STOPPED, _) => "its policy has stopped the volume after a fault",
            (READ_ONLY, IoOp::Write | IoOp::Discard) => {
                "its policy has made the volume read-only after a fault"
            }
            _ => return Ok(()),
        };
        Err(Error::io(op, block, std::io::Error::other(why)))
    }

    /// Makes everything stable that was written before this began, and has the medium know of its copies.
    fn flush_all(&self) -> Result<()> {
        let moved = std::mem::take(&mut self.state().seal_moves);
        let before = self.bare.lock().unpoisoned().clone();
        let flushed = self.flush_and_tell().and_then(|()| self.lost_with_disks(&before));
        if flushed.is_err() && moved {
            self.state().seal_moves = true;
        }
        flushed
    }

    /// Without news it is the disk's flush alone, over which nobody waits.
    fn flush_and_tell(&self) -> Result<()> {
        let mut state = self.state();
        if state.owners.has_news() {
            return self.tell_owners(&mut state);
        }
        drop(state);
        self.disk().flush()
    }

    fn tell(&self, incident: Incident) {
        self.health.lock().unpoisoned().count(&incident);
        (self.options.watch)(&incident);
    }
}

/// Blocks of a group of parity; 0 without.
fn group_of(policy: &Policy) -> u8 {
    let width = |standing: &Standing| match standing {
        Standing::Parity { blocks } => Some(*blocks),
        _ => None,
    };
    policy.standing().find_map(width).unwrap_or(0)
}

/// Refuses a policy with steps that need what is not given.
fn supported(policy: &Policy, options: &Options) -> Result<()> {
    let width = group_of(policy);
    let disks = options.disks.as_ref().map_or(1, |array| array.disks());
    for kind in Kind::ALL {
        for direction in Direction::ALL {
            let chain = policy.chain(kind, direction);
            let standing = chain.standing.iter().find(|standing| match standing {
                Standing::Verify | Standing::Mirror { place: Place::Near | Place::Far, .. } => false,
                Standing::Sanity => options.rules.is_none(),
                // Which blocks are a group does not depend on what they hold, and all of them may be on one disk.
                Standing::Parity { blocks } => *blocks != width || options.disks.is_some(),
                Standing::Mirror { place: Place::OtherDisk, copies } => usize::from(*copies) >= disks,
                Standing::AllDisks => disks < 2,
            });
            let answer = chain.answers.iter().find(|answer| match answer {
                Answer::Retry(_) | Answer::Copies | Answer::Notify | Answer::Remap | Answer::Reconstruct => {
                    false
                }
                Answer::Repair => options.rules.is_none(),
                Answer::FullCheck | Answer::Remount => options.remedy.is_none(),
            });
            let step = standing.map(ToString::to_string).or_else(|| answer.map(ToString::to_string));
            if let Some(step) = step {
                return Err(Error::Unsupported(format!(
                    "the step `{step}` of a policy, for {}",
                    kind.name()
                )));
            }
        }
    }
    Ok(())
}

impl BlockDevice for Shepherd {
    fn geometry(&self) -> Geometry {
        let geometry = self.disk().geometry();
        // Behind the volume of an array are its maps.
        let block_count = self.options.disks.as_ref().map_or(geometry.block_count, |array| array.volume());
        Geometry { block_count, ..geometry }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.load(reads, true)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.write_for(writes, true)
    }

    fn flush(&self) -> Result<()> {
        self.lets(IoOp::Flush, BlockNo(0))?;
        let has_failed = self.area.device.take_failed_flush();
        match self.flush_all() {
            Ok(()) if has_failed => {
                let why = "a flush before this one has failed: what was written before it may be lost";
                Err(Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other(why)))
            }
            Err(error) => {
                // It is told of its own failure now.
                self.area.device.take_failed_flush();
                Err(error)
            }
            // One that failed meanwhile, for another thread, is for who flushes next.
            Ok(()) => Ok(()),
        }
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.lets(IoOp::Discard, start)?;
        self.forget(start, count)?;
        // What is discarded may read as anything, and parity is of what is there.
        if self.group > 0 { Ok(()) } else { self.disk().discard(start, count) }
    }

    fn intact(&self) -> Result<()> {
        self.disk().intact()
    }
}

/// Words for stories of faults.
fn seen(result: &Result<()>) -> Seen {
    if result.is_ok() { Seen::Right } else { Seen::Error }
}

/// What a chain does in order.
type Events = Vec<Event>;
