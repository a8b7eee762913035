//! Steps that are not the shepherd's own to carry out: whoever has the volume open checks it, or opens it anew.
//!
//! ```text
//!   read ──► chain comes to `full-check` or `remount` ──► desk ──► a thread: Remedy ──► the read asks once more
//!   write ──► chain comes to `remount` ──► desk ──► a thread: Remedy        (the write is answered at once)
//! ```
//!
//! A read that waits here holds no lock of the shepherd, and a write never waits. A second fault of the kind waits for the same remedy. The
//! remedy's own requests, and those of an [`Era`] that was not settled, never come back here: there the step fails, and the chain goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard};
use std::thread::ThreadId;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

use super::{Opened, Shepherd};

/// What whoever has opened a volume does for a policy that says `full-check` or `remount`. Both are called in a thread of their own, one at a
/// time, while requests of the volume wait for them: so neither may wait until an operation of the volume has ended that was begun before.
/// Writes and flushes do not wait, and may be waited for.
pub trait Remedy: Send + Sync {
    /// Whether it would do either now. If not, the step is in vain, and the chain goes on: of a fault that comes back each time somebody has to have
    /// enough.
    fn is_willing(&self) -> bool {
        true
    }
    /// Stops the volume, checks it as `fsck -p` would, and lets it go on; whether it is sound now.
    fn full_check(&self) -> bool;
    /// Gives up what is not stable, recovers the volume as after a crash, and lets it go on; whether it does.
    fn remount(&self) -> bool;
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    FullCheck,
    Remount,
}

/// Where remedies are asked for, and waited for.
#[derive(Default)]
pub(super) struct Desk {
    turn: Mutex<Turn>,
    ended: Condvar,
}

#[derive(Default)]
struct Turn {
    under_way: Option<(Asked, ThreadId)>,
    /// How many have ended.
    ended: u64,
    /// Whether the last one of each has helped.
    helped: [bool; 2],
}

/// Ends a remedy's turn, however it ends: who waits for one that has panicked is told that it was in vain.
struct Ends {
    desk: Arc<Desk>,
    asked: Asked,
    helped: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let mut turn = self.desk.turn.lock().unpoisoned();
        turn.under_way = None;
        turn.ended += 1;
        turn.helped[self.asked as usize] = self.helped;
        self.desk.ended.notify_all();
    }
}

impl Shepherd {
    /// Asks for a remedy, or for the one of this kind that is under way; which of all, by number. `None` in a remedy's own thread, without
    /// anybody to ask, and while another one is under way if nobody is to wait.
    fn ask_for(&self, asked: Asked, waits: bool) -> Option<u64> {
        let remedy = Arc::clone(self.options.remedy.as_ref()?);
        let mut turn = self.desk.turn.lock().unpoisoned();
        loop {
            match turn.under_way {
                Some((_, thread)) if thread == std::thread::current().id() => return None,
                Some((other, _)) if other == asked => return Some(turn.ended + 1),
                Some(_) if !waits => return None,
                Some(_) => {
                    let patience = self.options.patience;
                    let ended = turn.ended;
                    let waited =
                        self.desk.ended.wait_timeout_while(turn, patience, |turn| turn.ended == ended);
                    let (back, late) = waited.unpoisoned();
                    if late.timed_out() {
                        return None;
                    }
                    turn = back;
                }
                None => break,
            }
        }
        if !remedy.is_willing() {
            return None;
        }
        let desk = Arc::clone(&self.desk);
        let begun = std::thread::Builder::new().name("remedy".into()).spawn(move || {
            let mut ends = Ends { desk, asked, helped: false };
            ends.helped = match asked {
                Asked::FullCheck => remedy.full_check(),
                Asked::Remount => remedy.remount(),
            };
        });
        turn.under_way = Some((asked, begun.ok()?.thread().id()));
        Some(turn.ended + 1)
    }

    /// Asks for a remedy, and waits for it; whether it has helped.
    pub(super) fn remedied(&self, asked: Asked) -> bool {
        let Some(number) = self.ask_for(asked, true) else { return false };
        let turn = self.desk.turn.lock().unpoisoned();
        let waited =
            self.desk.ended.wait_timeout_while(turn, self.options.patience, |turn| turn.ended < number);
        let (turn, late) = waited.unpoisoned();
        !late.timed_out() && turn.helped[asked as usize]
    }

    /// Asks for a remedy that nobody waits for; whether one is under way.
    pub(super) fn ask(&self, asked: Asked) -> bool {
        self.ask_for(asked, false).is_some()
    }

    /// Waits until no remedy is under way, as long as somebody waits for one at most. In a remedy's own thread there is nothing to wait for.
    pub fn await_remedy(&self) {
        let others =
            |turn: &mut Turn| turn.under_way.is_some_and(|(_, thread)| thread != std::thread::current().id());
        let turn = self.desk.turn.lock().unpoisoned();
        drop(self.desk.ended.wait_timeout_while(turn, self.options.patience, others));
    }

    /// Reads what lies where blocks are, whether that is believed or not: for a check that judges by itself.
    ///
    /// # Errors
    /// When the disk cannot be read, or the policy has stopped the volume.
    pub fn read_as_it_lies(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.lets(IoOp::Read, reads.first().map_or(BlockNo(0), |read| read.block))?;
        self.disk().read(reads)
    }

    /// What was under way is examined as after a crash, for a remedy that gives it up: sums that are not stable are of blocks that may not
    /// have been written. Nobody may write meanwhile: the [`Era`] is over.
    ///
    /// # Errors
    /// When the maps cannot be written.
    pub fn recover(&self) -> Result<Opened> {
        let _nobody_writes = self.gate.write().unpoisoned();
        let mut opened = Opened::default();
        {
            let mut guard = self.state();
            let state = &mut *guard;
            state.sums.go_back(&self.area);
            state.marks_taken = 0;
            state.failed.clear();
        }
        self.examine_all(&mut opened)?;
        Ok(opened)
    }
}

/// The volume as one opening of it uses it, to which a remedy can put an end. Until it is settled, its faults ask for no remedy.
pub struct Era {
    shepherd: Arc<Shepherd>,
    /// Shared by what changes the disk.
    is_over: RwLock<bool>,
    asks: AtomicBool,
}

impl Era {
    /// A new opening.
    #[must_use]
    pub fn new(shepherd: Arc<Shepherd>) -> Self {
        Self { shepherd, is_over: RwLock::new(false), asks: AtomicBool::new(false) }
    }

    /// The volume is open: from now on its faults ask for remedies.
    pub fn settled(&self) {
        self.asks.store(true, Ordering::Release);
    }

    /// Everything that is asked of it fails from now on. When this returns nothing of it is on its way to the disk any more.
    pub fn end(&self) {
        *self.is_over.write().unpoisoned() = true;
    }

    /// Does something while nothing of it changes the disk: what would waits.
    pub fn while_still<T>(&self, work: impl FnOnce() -> T) -> T {
        let _nobody_writes = self.is_over.write().unpoisoned();
        work()
    }

    fn goes_on(&self, op: IoOp, block: BlockNo) -> Result<RwLockReadGuard<'_, bool>> {
        let is_over = self.is_over.read().unpoisoned();
        if *is_over {
            let why = "its policy has had the volume opened anew after a fault; this is from before";
            return Err(Error::io(op, block, std::io::Error::other(why)));
        }
        Ok(is_over)
    }
}

impl BlockDevice for Era {
    fn geometry(&self) -> Geometry {
        self.shepherd.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let first = reads.first().map_or(BlockNo(0), |read| read.block);
        // A read may wait for a remedy, which may be waiting to put an end to this.
        drop(self.goes_on(IoOp::Read, first)?);
        self.shepherd.load(reads, self.asks.load(Ordering::Acquire))?;
        self.goes_on(IoOp::Read, first).map(drop)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let first = writes.first().map_or(BlockNo(0), |write| write.block);
        let _on_its_way = self.goes_on(IoOp::Write, first)?;
        self.shepherd.write_for(writes, self.asks.load(Ordering::Acquire))
    }

    fn flush(&self) -> Result<()> {
        let _on_its_way = self.goes_on(IoOp::Flush, BlockNo(0))?;
        self.shepherd.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        let _on_its_way = self.goes_on(IoOp::Discard, start)?;
        self.shepherd.discard(start, count)
    }

    fn intact(&self) -> Result<()> {
        self.shepherd.intact()
    }
}
