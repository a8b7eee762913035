//! A connection's file of a database: its calls, and what they make of a unit.
//!
//! **States.** SQLite writes what a transaction has changed when it commits, or before if it has no memory left, and always alone.
//!
//! | state | what it means |
//! |---|---|
//! | idle | nothing is written; reading is reading what is committed |
//! | open | a unit has what was written |
//! | joined | a unit of several databases has it |
//! | failed | a write failed, so the unit is gone, and SQLite is about to write back what was there before: that is there |
//! | restored | it has done so, and nothing was written since |
//!
//! | from | on | to |
//! |---|---|---|
//! | idle | write, truncate | open: a unit begins |
//! | open | `SYNC` with a super-journal's name | joined |
//! | open | `COMMIT_PHASETWO` | idle: **the unit ends**, durably if there was an `xSync`. Other databases of the connection that are written, too, are joined first |
//! | open | an error of a write | failed: the unit is aborted |
//! | open, failed, restored | unlock, close, `ROLLBACK_ATOMIC_WRITE` | idle: the unit is aborted |
//! | failed | `SYNC` | restored |
//! | restored | write, truncate | open |
//! | failed, restored | `COMMIT_PHASETWO` | idle, with an error: SQLite means what was not written |
//! | joined | the super-journal is removed | joined: **the unit of all ends** |
//! | joined, ended | anything | idle |
//! | joined, not ended | write, `SYNC`, unlock, close | failed, restored, idle, idle: the unit of all is given up |
//!
//! **Invariants.** 1. Nothing is written but in a unit. 2. A unit ends only on the word that the transaction is complete. 3. An answer
//! to that word, after an `xSync`, is given when the unit is stable.
//!
//! Who ends a unit only when SQLite has finished its own journal must not fail in a way that SQLite does not expect there: it takes a
//! full disk or an I/O error as a reason to forget all that it has in memory, which is what is wanted.

use std::ffi::c_int;
use std::sync::Arc;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;

use crate::abi::code;
use crate::base::Base;
use crate::disks::Opened;
use crate::failure::{Failure, Result};
use crate::group::Group;
use crate::locks::Level;
use crate::transaction::Transaction;

/// Such a file.
pub(crate) struct Database {
    pub(crate) opened: Arc<Opened>,
    number: u64,
    is_read_only: bool,
    side: Arc<Side>,
}

/// What other databases of the connection may see of it.
pub(crate) struct Side {
    base: Arc<Base>,
    state: Mutex<State, rank::Marking>,
}

enum State {
    Idle,
    Open(Transaction),
    Joined(Arc<Group>),
    Failed,
    Restored,
}

impl Side {
    /// Its state; a unit of several that has ended needs none any more.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if let State::Joined(group) = &*state
            && group.has_ended()
        {
            *state = State::Idle;
        }
        state
    }

    /// Whether it waits for nothing but the word that the transaction is complete.
    pub(crate) fn is_written(&self) -> bool {
        matches!(&*self.state(), State::Open(transaction) if transaction.is_written)
    }

    /// Joins a transaction over several databases.
    fn join(&self, group: &Arc<Group>) -> Result<()> {
        let mut state = self.state();
        let State::Open(transaction) = std::mem::replace(&mut *state, State::Failed) else { return Ok(()) };
        group.join(&self.base, &transaction)?;
        *state = State::Joined(Arc::clone(group));
        Ok(())
    }
}

impl Database {
    pub(crate) fn new(opened: Arc<Opened>, base: Arc<Base>, is_read_only: bool) -> Self {
        let number = base.number();
        let side = Arc::new(Side { base, state: Mutex::new(State::Idle) });
        Self { opened, number, is_read_only, side }
    }

    fn base(&self) -> &Arc<Base> {
        &self.side.base
    }

    /// The connection that it belongs to.
    pub(crate) fn belongs_to(&self, connection: usize) {
        self.opened.belongs(&self.side, connection);
    }

    /// Bytes of it, as this connection sees it.
    pub(crate) fn size(&self) -> u64 {
        match &*self.side.state() {
            State::Open(transaction) => transaction.size,
            _ => self.base().shared.lock().size,
        }
    }

    /// Bytes of a block of the disk.
    pub(crate) fn block_size(&self) -> usize {
        self.base().block_size
    }

    /// Reads, with zeros behind the end; says whether all was there.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let base = self.base();
        base.check()?;
        let there = to_usize(self.size().saturating_sub(offset).min(to_u64(into.len())));
        let (found, missing) = into.split_at_mut(there);
        for piece in base.pieces(offset, found.len()) {
            let part = &mut found[piece.at..piece.at + piece.len];
            if piece.len == base.block_size {
                self.read_block(piece.position, part)?;
            } else {
                let mut block = vec![0; base.block_size];
                self.read_block(piece.position, &mut block)?;
                part.copy_from_slice(&block[piece.start..piece.start + piece.len]);
            }
        }
        missing.fill(0);
        Ok(missing.is_empty())
    }

    fn read_block(&self, position: u64, into: &mut [u8]) -> Result<()> {
        let (base, of) = (self.base(), |error| Failure::of(code::READ, &error));
        match &*self.side.state() {
            State::Open(transaction) => return transaction.read(base, position, into).map_err(of),
            State::Joined(group) if group.read(base, position, into).map_err(of)? => return Ok(()),
            _ => {}
        }
        if position > 0 {
            return base.disk.read_at(base.list, position, into).map_err(of);
        }
        let (head, level) = {
            let shared = base.shared.lock();
            (shared.head.clone(), shared.locks.level(self.number))
        };
        if let Some(head) = head {
            into.copy_from_slice(&head);
            return Ok(());
        }
        base.disk.read_at(base.list, position, into).map_err(of)?;
        // Who holds no lock may have read what is not committed any more.
        if level >= Level::Shared {
            base.shared.lock().head = Some((&*into).into());
        }
        Ok(())
    }

    /// Writes in the transaction's unit.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_end(offset.saturating_add(to_u64(data.len())))?;
        self.change(code::WRITE, |base, transaction| transaction.write(base, offset, data))
    }

    /// Changes the size in the transaction's unit.
    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        self.check_end(size)?;
        self.change(code::TRUNCATE, |base, transaction| transaction.truncate(base, size))
    }

    fn check_end(&self, end: u64) -> Result<()> {
        self.base().check()?;
        if self.is_read_only {
            return Err(Failure::new(code::READONLY, "the disk is open for reading only"));
        }
        if !self.base().fits(end) {
            return Err(Failure::new(code::FULL, "a database that is larger than SQLite allows"));
        }
        Ok(())
    }

    fn change(
        &self,
        failing: c_int,
        work: impl FnOnce(&Base, &mut Transaction) -> fstitch_core::Result<()>,
    ) -> Result<()> {
        let mut state = self.side.state();
        if let State::Joined(group) = &*state {
            // It is written after all was said: SQLite takes it back.
            group.give_up();
            *state = State::Failed;
        }
        if matches!(*state, State::Idle | State::Restored) {
            *state = State::Open(Transaction::begin(self.base()));
        }
        let State::Open(transaction) = &mut *state else { return Ok(()) };
        work(self.base(), transaction).map_err(|error| {
            *state = State::Failed;
            Failure::of(failing, &error)
        })
    }

    /// What the transaction does is to be stable when it has ended; without one, what is there.
    pub(crate) fn sync(&self) -> Result<()> {
        match &mut *self.side.state() {
            State::Open(transaction) => transaction.is_durable = true,
            State::Joined(group) => group.make_durable(),
            State::Failed | State::Restored => {}
            State::Idle if self.is_read_only => {}
            State::Idle => self.base().disk.flush().map_err(|error| Failure::of(code::FSYNC, &error))?,
        }
        Ok(())
    }

    /// All of a transaction is written; if it is one of several databases, this may be the name of what ties them together.
    pub(crate) fn written(&self, together: Option<&str>) -> Result<()> {
        let mut state = self.side.state();
        match (&mut *state, together) {
            (State::Open(_), Some(name)) => {
                drop(state);
                let group = self.opened.group(name);
                let group = group.inspect_err(|_| *self.side.state() = State::Failed)?;
                return self.side.join(&group);
            }
            (State::Open(transaction), None) => transaction.is_written = true,
            (State::Joined(group), _) => {
                group.give_up();
                *state = State::Restored;
            }
            (State::Failed, _) => *state = State::Restored,
            (State::Idle | State::Restored, _) => {}
        }
        Ok(())
    }

    /// The transaction is complete.
    pub(crate) fn commit(&self) -> Result<()> {
        let state = std::mem::replace(&mut *self.side.state(), State::Idle);
        match state {
            State::Idle => Ok(()),
            State::Open(transaction) => match &*self.opened.written_with(&self.side) {
                [] => transaction.end(self.base()),
                others => self.commit_with(&transaction, others),
            },
            State::Joined(group) => {
                group.give_up();
                Err(Failure::new(code::WRITE, "a transaction over several databases was not completed"))
            }
            State::Failed | State::Restored => {
                Err(Failure::new(code::WRITE, "what could not be written cannot be committed"))
            }
        }
    }

    /// The first of several databases that nothing ties together hears that the transaction is complete: it is for all of them.
    fn commit_with(&self, transaction: &Transaction, others: &[Arc<Side>]) -> Result<()> {
        let group = Arc::new(Group::begin(&self.base().disk));
        group.join(self.base(), transaction)?;
        others.iter().try_for_each(|other| other.join(&group))?;
        group.end()
    }

    /// The transaction is given up.
    pub(crate) fn abort(&self) {
        let state = std::mem::replace(&mut *self.side.state(), State::Idle);
        if let State::Joined(group) = state {
            group.give_up();
        }
    }

    /// Takes a lock, or says that others are in the way.
    pub(crate) fn lock(&self, wanted: Level) -> bool {
        self.base().shared.lock().locks.lock(self.number, wanted)
    }

    /// Gives locks up. A transaction that was not committed by then never is.
    pub(crate) fn unlock(&self, left: Level) {
        self.abort();
        self.base().shared.lock().locks.unlock(self.number, left);
    }

    /// What it holds.
    pub(crate) fn level(&self) -> Level {
        self.base().shared.lock().locks.level(self.number)
    }

    /// Whether some connection writes, or will.
    pub(crate) fn is_reserved(&self) -> bool {
        self.base().shared.lock().locks.is_reserved()
    }

    /// The file is not needed any more: its disk, to be closed if it was the last.
    pub(crate) fn close(self) -> Arc<Opened> {
        self.unlock(Level::None);
        self.opened.belongs_to_none(&self.side);
        self.opened
    }
}
