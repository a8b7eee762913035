//! Patchgroups of a volume: calls, and what changes of engaged threads come after. Design:
//! `docs/design/patchgroups.md`.

use fstitch_core::groups::{GroupCall, GroupId, with_engaged};
use fstitch_core::{Errno, Error, Result};
use smallvec::SmallVec;

use super::{Cache, Core, Shared, Tx};
use crate::patchgroup::{GROUPS_MAX, Group, State, Step};
use crate::{Ordering, PatchId, PatchIds};

/// The engaged groups of a thread, those of other volumes left out.
pub(super) type Mine = SmallVec<[GroupId; 2]>;

impl Cache {
    /// Does something with patchgroups of this volume; see [`fstitch_core::FileSystem::group`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` where dependencies are dropped, `EROFS` on a read-only cache, `ENFILE` for too many groups, `EBADF`,
    /// `EXDEV` for groups of two volumes, and those of the table; for a sync, as [`Cache::sync_patches`].
    pub fn group(&self, call: GroupCall) -> Result<GroupId> {
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        if self.options.ordering == Ordering::Dropped && !self.is_logged_below() {
            return Err(Error::Unsupported("groups where changes have no order".to_owned()));
        }
        match call {
            GroupCall::Create => self.create_group(),
            GroupCall::Depend { after, before } => self.depend(after, before).map(|()| after),
            GroupCall::Engage(group) => self.engage(group).map(|()| group),
            GroupCall::Disengage(group) => self.advance(group, Step::Disengage).map(|()| group),
            GroupCall::Sync(group) => self.sync_group(group).map(|()| group),
            GroupCall::Close(group) => self.advance(group, Step::Close).map(|()| group),
        }
    }

    /// Groups that exist.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.shared.core().groups.len()
    }

    fn create_group(&self) -> Result<GroupId> {
        let mut core = self.shared.core();
        Shared::check_volume(&core, self.volume)?;
        if core.groups.len() >= GROUPS_MAX {
            return Err(Errno::NFILE.into());
        }
        let id = GroupId::fresh();
        core.groups.insert(id, Group::new(self.volume));
        Ok(id)
    }

    fn depend(&self, after: GroupId, before: GroupId) -> Result<()> {
        if after == before {
            return Err(Errno::INVAL.into());
        }
        let mut tx = self.lock();
        let core = tx.core_mut();
        let (first, second) = (core.group(before)?, core.group(after)?);
        if first.volume != self.volume || second.volume != self.volume {
            return Err(Errno::XDEV.into());
        }
        // Both are asked before either changes.
        let (sealed, depends) = (first.state.after(Step::Before)?, second.state.after(Step::DependsOn)?);
        let (gather, head, mut tail) = (first.gather, first.head, first.tail);
        if first.state != State::Sealed {
            // A group without changes passes on what it comes after.
            let mut ends: PatchIds = first.befores.iter().copied().collect();
            ends.extend([gather, head]);
            tail = core.graph.empty_after(self.volume, &ends);
        }
        let first = core.group_mut(before)?;
        first.tail = tail;
        first.state = sealed.expect("only closing ends a group");
        first.befores.clear();
        let second = core.group_mut(after)?;
        second.state = depends.expect("only closing ends a group");
        // Said again it is nothing new: no program makes memory grow by repeating itself.
        if tail != PatchId::NONE && !second.befores.contains(&tail) {
            second.befores.push(tail);
        }
        Ok(())
    }

    fn engage(&self, id: GroupId) -> Result<()> {
        let mut tx = self.lock();
        let core = tx.core_mut();
        let group = core.group(id)?;
        if group.volume != self.volume {
            return Err(Errno::XDEV.into());
        }
        let state = group.state.after(Step::Engage)?.expect("only closing ends a group");
        let befores = group.befores.clone();
        // From now on there are no more dependencies.
        let head = if befores.is_empty() { group.head } else { core.graph.empty(self.volume, &befores) };
        let group = core.group_mut(id)?;
        (group.state, group.head) = (state, head);
        group.befores.clear();
        Ok(())
    }

    fn advance(&self, id: GroupId, step: Step) -> Result<()> {
        let mut core = self.shared.core();
        match core.group(id)?.state.after(step)? {
            Some(state) => core.group_mut(id)?.state = state,
            None => drop(core.groups.remove(&id)),
        }
        Ok(())
    }

    fn sync_group(&self, id: GroupId) -> Result<()> {
        self.advance(id, Step::Sync)?;
        let patches = {
            let core = self.shared.core();
            let group = core.group(id)?;
            let mut patches: PatchIds = group.befores.iter().copied().collect();
            patches.extend([group.gather, group.head, group.tail]);
            patches
        };
        self.sync_patches(&patches)
    }
}

impl Tx<'_> {
    /// Makes `patches` part of a group, gathers included: what its changes need to be there after a crash beside their
    /// own patches. Does nothing to a group that is not there or sealed.
    pub fn join_group(&mut self, group: GroupId, patches: &[PatchId]) {
        let volume = self.volume();
        let core = self.core_mut();
        let Some(group) = core.groups.get_mut(&group) else { return };
        if group.state != State::Sealed {
            let needed = core.graph.empty_after(volume, patches);
            group.gather = core.graph.gather(volume, group.gather, needed);
        }
    }

    /// The heads of the groups that this thread works for.
    pub(super) fn heads(&self) -> PatchIds {
        let groups = self.mine.iter().filter_map(|id| self.core().groups.get(id));
        groups.map(|group| group.head).filter(|&head| head != PatchId::NONE).collect()
    }

    /// A new change is the groups' as well.
    pub(super) fn enlist(&mut self, patch: PatchId) {
        let (volume, mine) = (self.volume(), self.mine.clone());
        let core = self.core_mut();
        for id in mine {
            let Some(group) = core.groups.get_mut(&id) else { continue };
            group.gather = core.graph.gather(volume, group.gather, patch);
        }
    }
}

impl Core {
    fn group(&self, id: GroupId) -> Result<&Group> {
        self.groups.get(&id).ok_or_else(|| Errno::BADF.into())
    }

    fn group_mut(&mut self, id: GroupId) -> Result<&mut Group> {
        self.groups.get_mut(&id).ok_or_else(|| Errno::BADF.into())
    }

    /// The groups of this volume that the thread works for.
    pub(super) fn mine(&self, volume: crate::graph::patch::Vx) -> Mine {
        with_engaged(|engaged| {
            let here = |id: &&GroupId| self.groups.get(id).is_some_and(|group| group.volume == volume);
            engaged.iter().filter(here).copied().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{BlockBuf, BlockKind, BlockNo, ManualClock, MemDevice};

    use super::*;
    use crate::CacheOptions;

    #[test]
    fn saying_a_dependency_again_takes_no_memory() {
        let device = Arc::new(MemDevice::new(1024, 64));
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        let [before, after] = [0; 2].map(|_| cache.group(GroupCall::Create).unwrap());
        cache.group(GroupCall::Engage(before)).unwrap();
        {
            let _engaged = fstitch_core::groups::Engaged::enter(&[before]);
            let block = cache.fresh(BlockNo(1), BlockKind::Data).unwrap();
            cache.lock().init(&block, Arc::new(BlockBuf::zeroed(1024)), &[]);
        }
        cache.group(GroupCall::Disengage(before)).unwrap();
        for _ in 0..100 {
            cache.group(GroupCall::Depend { after, before }).unwrap();
        }
        assert_eq!(cache.shared.core().groups[&after].befores.len(), 1);
    }
}
