//! Order by waiting, for file systems without patchgroups and programs that ask for it.
//!
//! Everything on the volume is made stable at the moment at which a group becomes one that others depend on: by the
//! table, it changes nothing any more, and what depends on it has changed nothing yet. Which changes are whose need
//! not be known then, also of other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::call::{Call, Calls, GroupNo, OrderUsers};
use crate::lifecycle::{State, Step};

/// How many groups a process may have, as on a mount.
const GROUPS_MAX: usize = 1024;

/// The type of file systems in user space. To most of them syncfs does not get through: it would order nothing.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// How everything on a volume is made stable; another one in tests.
type MakeStable = fn(BorrowedFd<'_>) -> io::Result<()>;

/// The groups of this process on one volume.
#[derive(Debug)]
pub(crate) struct Fsync {
    make_stable: MakeStable,
    groups: Mutex<BTreeMap<GroupNo, Group>>,
}

#[derive(Debug)]
struct Group {
    state: State,
    /// The scopes that have it engaged.
    engaged: BTreeSet<Scope>,
    /// It was engaged since everything was made stable.
    volatile: bool,
}

/// Who has a group engaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Process,
    File(RawFd),
}

impl Fsync {
    /// Waiting on the file system that `place` is on, if that can be asked for.
    pub(crate) fn on(place: BorrowedFd<'_>) -> io::Result<Self> {
        if rustix::fs::fstatfs(place)?.f_type == FUSE {
            return Err(Errno::OPNOTSUPP.into());
        }
        Ok(Self::with(|on| Ok(rustix::fs::syncfs(on)?)))
    }

    fn with(make_stable: MakeStable) -> Self {
        Self { make_stable, groups: Mutex::default() }
    }

    /// A panic elsewhere leaves the table whole: every step changes it last.
    fn groups(&self) -> MutexGuard<'_, BTreeMap<GroupNo, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn depend(&self, on: BorrowedFd<'_>, after: GroupNo, before: GroupNo) -> io::Result<()> {
        let mut groups = self.groups();
        get(&mut groups, after)?.state.after(Step::DependOn)?;
        let group = get(&mut groups, before)?;
        if after == before {
            return Err(Errno::INVAL.into());
        }
        let sealed = group.state.after(Step::BeDependedOn)?;
        if group.volatile {
            (self.make_stable)(on)?;
        }
        group.volatile = false;
        group.state = sealed;
        Ok(())
    }

    fn engage(&self, group: GroupNo, scope: Scope) -> io::Result<()> {
        let mut groups = self.groups();
        let group = get(&mut groups, group)?;
        if group.engaged.contains(&scope) {
            return Err(Errno::BUSY.into());
        }
        group.state = group.state.after(Step::Engage)?;
        group.engaged.insert(scope);
        group.volatile = true;
        Ok(())
    }

    fn disengage(&self, group: GroupNo, scope: Scope) -> io::Result<()> {
        let mut groups = self.groups();
        let group = get(&mut groups, group)?;
        if !group.engaged.contains(&scope) {
            return Err(Errno::INVAL.into());
        }
        group.state = group.state.after(Step::Disengage)?;
        group.engaged.remove(&scope);
        Ok(())
    }

    fn sync(&self, on: BorrowedFd<'_>, group: GroupNo) -> io::Result<()> {
        let mut groups = self.groups();
        let group = get(&mut groups, group)?;
        if group.volatile {
            (self.make_stable)(on)?;
            group.volatile = !group.engaged.is_empty();
        }
        Ok(())
    }
}

fn get(groups: &mut BTreeMap<GroupNo, Group>, group: GroupNo) -> io::Result<&mut Group> {
    groups.get_mut(&group).ok_or_else(|| Errno::BADF.into())
}

impl Calls for Fsync {
    fn create(&self, _on: BorrowedFd<'_>) -> io::Result<GroupNo> {
        let mut groups = self.groups();
        if groups.len() >= GROUPS_MAX {
            return Err(Errno::MFILE.into());
        }
        let free = (1..).map(GroupNo).find(|no| !groups.contains_key(no));
        let no = free.expect("there are more numbers than groups");
        groups.insert(no, Group { state: State::New, engaged: BTreeSet::new(), volatile: false });
        Ok(no)
    }

    fn call(&self, on: BorrowedFd<'_>, call: Call) -> io::Result<()> {
        match call {
            Call::Depend { after, before } => self.depend(on, after, before),
            Call::Engage(group) => self.engage(group, Scope::Process),
            Call::Disengage(group) => self.disengage(group, Scope::Process),
            Call::EngageFile(group) => self.engage(group, Scope::File(on.as_raw_fd())),
            Call::DisengageFile(group) => self.disengage(group, Scope::File(on.as_raw_fd())),
            Call::Sync(group) => self.sync(on, group),
            Call::Close(group) => match self.groups().remove(&group) {
                Some(_) => Ok(()),
                None => Err(Errno::BADF.into()),
            },
            // The programs' own fsync already orders, and waits.
            // Nobody can wait after every change of another process.
            Call::OrderBegin { every_change: true, .. } => Err(Errno::OPNOTSUPP.into()),
            Call::OrderBegin { .. } | Call::OrderEnd => Ok(()),
        }
    }

    fn order_users(&self, _on: BorrowedFd<'_>) -> io::Result<OrderUsers> {
        Ok(OrderUsers::default())
    }
}

#[cfg(test)]
mod tests;
