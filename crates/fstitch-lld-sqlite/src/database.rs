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
//! | open | `COMMIT_PHASETWO` | idle: **the unit ends**, durably if there was an `xSync` |
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

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};

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
    base: Arc<Base>,
    number: u64,
    is_read_only: bool,
    state: State,
}

enum State {
    Idle,
    Open(Transaction),
    Joined(Arc<Group>),
    Failed,
    Restored,
}

impl Database {
    pub(crate) fn new(opened: Arc<Opened>, base: Arc<Base>, is_read_only: bool) -> Self {
        let number = base.number();
        Self { opened, base, number, is_read_only, state: State::Idle }
    }

    /// Bytes of it, as this connection sees it.
    pub(crate) fn size(&mut self) -> u64 {
        self.settle();
        match &self.state {
            State::Open(transaction) => transaction.size,
            _ => self.base.shared.lock().size,
        }
    }

    /// Bytes of a block of the disk.
    pub(crate) fn block_size(&self) -> usize {
        self.base.block_size
    }

    /// Reads, with zeros behind the end; says whether all was there.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<bool> {
        self.base.check()?;
        let there = to_usize(self.size().saturating_sub(offset).min(to_u64(into.len())));
        let (found, missing) = into.split_at_mut(there);
        let base = Arc::clone(&self.base);
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
        let of = |error| Failure::of(code::READ, &error);
        match &self.state {
            State::Open(transaction) => return transaction.read(&self.base, position, into).map_err(of),
            State::Joined(group) if group.read(&self.base, position, into).map_err(of)? => return Ok(()),
            _ => {}
        }
        if position > 0 {
            return self.base.disk.read_at(self.base.list, position, into).map_err(of);
        }
        let (head, level) = {
            let shared = self.base.shared.lock();
            (shared.head.clone(), shared.locks.level(self.number))
        };
        if let Some(head) = head {
            into.copy_from_slice(&head);
            return Ok(());
        }
        self.base.disk.read_at(self.base.list, position, into).map_err(of)?;
        // Who holds no lock may have read what is not committed any more.
        if level >= Level::Shared {
            self.base.shared.lock().head = Some((&*into).into());
        }
        Ok(())
    }

    /// Writes in the transaction's unit.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_end(offset.saturating_add(to_u64(data.len())))?;
        self.change(code::WRITE, |base, transaction| transaction.write(base, offset, data))
    }

    /// Changes the size in the transaction's unit.
    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        self.check_end(size)?;
        self.change(code::TRUNCATE, |base, transaction| transaction.truncate(base, size))
    }

    fn check_end(&self, end: u64) -> Result<()> {
        self.base.check()?;
        if self.is_read_only {
            return Err(Failure::new(code::READONLY, "the disk is open for reading only"));
        }
        if !self.base.fits(end) {
            return Err(Failure::new(code::FULL, "a database that is larger than SQLite allows"));
        }
        Ok(())
    }

    fn change(
        &mut self,
        failing: std::ffi::c_int,
        work: impl FnOnce(&Base, &mut Transaction) -> fstitch_core::Result<()>,
    ) -> Result<()> {
        self.settle();
        if let State::Joined(group) = &self.state {
            // It is written after all was said: SQLite takes it back.
            group.give_up();
            self.state = State::Failed;
        }
        if matches!(self.state, State::Idle | State::Restored) {
            self.state = State::Open(Transaction::begin(&self.base));
        }
        let State::Open(transaction) = &mut self.state else { return Ok(()) };
        work(&self.base, transaction).map_err(|error| {
            self.state = State::Failed;
            Failure::of(failing, &error)
        })
    }

    /// A unit of several that has ended needs no state any more.
    fn settle(&mut self) {
        if let State::Joined(group) = &self.state
            && group.has_ended()
        {
            self.state = State::Idle;
        }
    }

    /// What the transaction does is to be stable when it has ended; without one, what is there.
    pub(crate) fn sync(&mut self) -> Result<()> {
        match &mut self.state {
            State::Open(transaction) => transaction.is_durable = true,
            State::Joined(group) => group.make_durable(),
            State::Failed | State::Restored => {}
            State::Idle if self.is_read_only => {}
            State::Idle => self.base.disk.flush().map_err(|error| Failure::of(code::FSYNC, &error))?,
        }
        Ok(())
    }

    /// All of a transaction is written; if it is one of several databases, this is the name of what ties them together.
    pub(crate) fn written(&mut self, together: Option<&str>) -> Result<()> {
        self.settle();
        match (&self.state, together) {
            (State::Open(_), Some(name)) => self.join(name),
            (State::Joined(group), _) => {
                group.give_up();
                self.state = State::Restored;
                Ok(())
            }
            (State::Failed, _) => {
                self.state = State::Restored;
                Ok(())
            }
            (State::Open(_) | State::Idle | State::Restored, _) => Ok(()),
        }
    }

    fn join(&mut self, name: &str) -> Result<()> {
        let State::Open(transaction) = std::mem::replace(&mut self.state, State::Failed) else {
            return Ok(());
        };
        let group = self.opened.group(name)?;
        group.join(&self.base, &transaction)?;
        self.state = State::Joined(group);
        Ok(())
    }

    /// The transaction is complete.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.settle();
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Ok(()),
            State::Open(transaction) => transaction.end(&self.base),
            State::Joined(group) => {
                group.give_up();
                Err(Failure::new(code::WRITE, "a transaction over several databases was not completed"))
            }
            State::Failed | State::Restored => {
                Err(Failure::new(code::WRITE, "what could not be written cannot be committed"))
            }
        }
    }

    /// The transaction is given up.
    pub(crate) fn abort(&mut self) {
        if let State::Joined(group) = std::mem::replace(&mut self.state, State::Idle) {
            group.give_up();
        }
    }

    /// Takes a lock, or says that others are in the way.
    pub(crate) fn lock(&mut self, wanted: Level) -> bool {
        self.base.shared.lock().locks.lock(self.number, wanted)
    }

    /// Gives locks up. A transaction that was not committed by then never is.
    pub(crate) fn unlock(&mut self, left: Level) {
        self.abort();
        self.base.shared.lock().locks.unlock(self.number, left);
    }

    /// What it holds.
    pub(crate) fn level(&self) -> Level {
        self.base.shared.lock().locks.level(self.number)
    }

    /// Whether some connection writes, or will.
    pub(crate) fn is_reserved(&self) -> bool {
        self.base.shared.lock().locks.is_reserved()
    }

    /// The file is not needed any more: its disk, to be closed if it was the last.
    pub(crate) fn close(mut self) -> Arc<Opened> {
        self.unlock(Level::None);
        self.opened
    }
}
