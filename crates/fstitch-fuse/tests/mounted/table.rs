//! Groups by the table of states (`docs/design/patchgroups.md`), which order nothing: enough to see what reaches a file system.

use std::collections::BTreeMap;

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::{Errno, Result};

#[derive(Clone, Debug, Default)]
struct State {
    engaged: usize,
    was_engaged: bool,
    sealed: bool,
}

/// All groups, and which come after which.
#[derive(Debug, Default)]
pub struct Table {
    groups: BTreeMap<GroupId, State>,
    /// Each pair: the later one, the earlier one.
    pub order: Vec<(GroupId, GroupId)>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    fn find(&mut self, id: GroupId) -> Result<&mut State> {
        self.groups.get_mut(&id).ok_or(Errno::BADF.into())
    }

    pub fn call(&mut self, call: GroupCall) -> Result<GroupId> {
        match call {
            GroupCall::Create => {
                let id = GroupId::fresh();
                self.groups.insert(id, State::default());
                Ok(id)
            }
            GroupCall::Depend { after, before } => self.depend(after, before).map(|()| after),
            GroupCall::Engage(id) => {
                let state = self.find(id)?;
                if state.sealed {
                    return Err(Errno::INVAL.into());
                }
                state.engaged += 1;
                state.was_engaged = true;
                Ok(id)
            }
            GroupCall::Disengage(id) => {
                let state = self.find(id)?;
                state.engaged = state.engaged.checked_sub(1).ok_or(Errno::INVAL)?;
                Ok(id)
            }
            GroupCall::Sync(id) => self.find(id).map(|_| id),
            GroupCall::Close(id) => {
                assert_eq!(self.find(id)?.engaged, 0, "closed while engaged");
                self.groups.remove(&id);
                Ok(id)
            }
        }
    }

    fn depend(&mut self, after: GroupId, before: GroupId) -> Result<()> {
        let engaged = self.find(before)?.engaged;
        let later = self.find(after)?;
        if after == before || later.was_engaged || later.sealed {
            return Err(Errno::INVAL.into());
        }
        if engaged > 0 {
            return Err(Errno::BUSY.into());
        }
        self.find(before)?.sealed = true;
        self.order.push((after, before));
        Ok(())
    }
}
