//! A transaction over several databases of a disk: one unit for all of them.
//!
//! SQLite writes the names of their journals to a file of its own, the super-journal, then has each database written and synchronised,
//! and removes the file: that is when all of it happens. Until then each database has a unit, because SQLite says only at the end that
//! they belong together. So what each has done is done again in a unit of all, which ends when the file is removed.

use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_lld::{Aru, Disk};

use crate::abi::code;
use crate::base::Base;
use crate::failure::{Failure, Result};
use crate::transaction::Transaction;

/// Such a transaction.
pub(crate) struct Group(Mutex<Joint, rank::Writer>);

/// How it stands.
struct Joint {
    outcome: Outcome,
    is_durable: bool,
    members: Vec<Member>,
}

/// What has become of it.
enum Outcome {
    /// Databases may join.
    Open(Aru<'static>),
    /// All of it has happened.
    Ended,
    /// Nothing of it has, and nothing will.
    Gone,
}

/// What is known of a database when it has ended.
struct Member {
    base: Arc<Base>,
    size: u64,
    head: Option<Arc<[u8]>>,
}

impl Group {
    /// Begins on a disk.
    pub(crate) fn begin(disk: &Arc<Disk>) -> Self {
        let joint =
            Joint { outcome: Outcome::Open(disk.begin_shared()), is_durable: false, members: Vec::new() };
        Self(Mutex::new(joint))
    }

    /// A database's part is in from now on.
    ///
    /// # Errors
    /// Those of the disk; then nothing of all of it happens.
    pub(crate) fn join(&self, base: &Arc<Base>, transaction: &Transaction) -> Result<()> {
        let mut joint = self.0.lock();
        let Outcome::Open(unit) = &joint.outcome else {
            return Err(Failure::new(code::WRITE, "a transaction over several databases has failed"));
        };
        match transaction.repeat_in(base, unit) {
            Ok(head) => {
                joint.is_durable |= transaction.is_durable;
                joint.members.push(Member { base: Arc::clone(base), size: transaction.size, head });
                Ok(())
            }
            Err(error) => {
                joint.outcome = Outcome::Gone;
                Err(Failure::of(code::WRITE, &error))
            }
        }
    }

    /// SQLite wants it to be stable when it has ended.
    pub(crate) fn make_durable(&self) {
        self.0.lock().is_durable = true;
    }

    /// Everything happens now, unless it is given up already.
    ///
    /// # Errors
    /// Those of the unit; nothing has happened.
    pub(crate) fn end(&self) -> Result<()> {
        let mut joint = self.0.lock();
        let Outcome::Open(unit) = std::mem::replace(&mut joint.outcome, Outcome::Gone) else { return Ok(()) };
        let done = if joint.is_durable { unit.end_durable() } else { unit.end() };
        if let Err(error) = done {
            joint.members.drain(..).for_each(|member| member.base.has_failed());
            return Err(Failure::of_end(&error));
        }
        joint.outcome = Outcome::Ended;
        for member in joint.members.drain(..) {
            member.base.publish(member.size, member.head);
        }
        Ok(())
    }

    /// Gives it up, unless it has ended.
    pub(crate) fn give_up(&self) {
        let mut joint = self.0.lock();
        if !matches!(joint.outcome, Outcome::Ended) {
            joint.outcome = Outcome::Gone;
            joint.members.clear();
        }
    }

    /// Whether all of it has happened.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.0.lock().outcome, Outcome::Ended)
    }

    /// Reads a block of a database as it will be; says whether it could.
    pub(crate) fn read(&self, base: &Base, position: u64, into: &mut [u8]) -> fstitch_core::Result<bool> {
        match &self.0.lock().outcome {
            Outcome::Open(unit) => unit.read_at(base.list, position, into).map(|()| true),
            Outcome::Ended | Outcome::Gone => Ok(false),
        }
    }
}
