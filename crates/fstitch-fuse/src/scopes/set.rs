//! The groups that a scope has numbers for, and which are engaged.
//!
//! A [`Set`] never changes: a call makes a new one. Requests and children keep the set that they began with, and with it
//! what is engaged: a group is engaged as long as any set that is alive says so, and closed when no set knows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Errno, InodeId, InodeNo, Result};

use super::chain::Chain;
use super::{GROUPS_ALL_MAX, GROUPS_ENGAGED_MAX, GROUPS_MAX, GROUPS_USER_MAX, Ordering};

/// How many groups there are, in all and by user.
#[derive(Debug, Default)]
pub(super) struct Count {
    users: Mutex<BTreeMap<u32, usize>>,
}

impl Count {
    fn add(&self, uid: u32) -> Result<()> {
        let mut users = self.users.lock().unpoisoned();
        let all: usize = users.values().sum();
        let own = users.get(&uid).copied().unwrap_or(0);
        if all >= GROUPS_ALL_MAX || (uid != 0 && own >= GROUPS_USER_MAX) {
            return Err(Errno::NOSPC.into());
        }
        users.insert(uid, own + 1);
        Ok(())
    }

    fn remove(&self, uid: u32) {
        let mut users = self.users.lock().unpoisoned();
        match users.get_mut(&uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                users.remove(&uid);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.users.lock().unpoisoned().values().sum()
    }
}

/// A group of the file system, closed with the last of its numbers.
struct Group {
    fs: Arc<dyn Ordering>,
    count: Arc<Count>,
    uid: u32,
    id: GroupId,
}

impl Drop for Group {
    fn drop(&mut self) {
        end(&*self.fs, GroupCall::Close(self.id));
        self.count.remove(self.uid);
    }
}

/// Ends something of a group; a volume that has failed has none any more.
pub(super) fn end(fs: &dyn Ordering, call: GroupCall) {
    if let Err(error) = fs.group(call) {
        tracing::debug!("{call:?}: {error}");
    }
}

/// As long as it lives, the group is engaged.
struct Engagement(Arc<Group>);

impl Engagement {
    fn new(group: &Arc<Group>) -> Result<Arc<Self>> {
        group.fs.group(GroupCall::Engage(group.id))?;
        Ok(Arc::new(Self(Arc::clone(group))))
    }
}

impl Drop for Engagement {
    fn drop(&mut self) {
        end(&*self.0.fs, GroupCall::Disengage(self.0.id));
    }
}

/// A number's group.
#[derive(Clone)]
struct Member {
    // Declared first: what is engaged is disengaged before it is closed.
    engaged: Option<Arc<Engagement>>,
    group: Arc<Group>,
    /// Engaged for everything.
    whole: bool,
    /// Engaged for these inodes. A number that has got another file since then is not engaged.
    files: BTreeMap<InodeNo, InodeId>,
}

impl Member {
    /// Whether it is engaged for the file that has this number now.
    fn has(&self, ino: InodeNo) -> bool {
        self.files.get(&ino).is_some_and(|file| self.group.fs.life(ino).is_ok_and(|life| life == *file))
    }
}

/// What one engagement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Everything,
    File(InodeNo),
}

/// A scope's groups at one moment.
#[derive(Clone, Default)]
pub(super) struct Set {
    members: BTreeMap<u32, Member>,
    pub chain: Option<Arc<Chain>>,
}

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.chain.is_none()
    }

    fn member(&self, no: u32) -> Result<&Member> {
        self.members.get(&no).ok_or(Errno::BADF.into())
    }

    fn member_mut(&mut self, no: u32) -> Result<&mut Member> {
        self.members.get_mut(&no).ok_or(Errno::BADF.into())
    }

    /// The file system's name for a number.
    pub(super) fn id(&self, no: u32) -> Result<GroupId> {
        self.member(no).map(|member| member.group.id)
    }

    /// The groups that a change of these inodes belongs to.
    pub(super) fn engaged(&self, inodes: &[InodeNo]) -> Vec<GroupId> {
        let belongs = |member: &&Member| member.whole || inodes.iter().any(|&ino| member.has(ino));
        let engaged = self.members.values().filter(|member| member.engaged.is_some());
        engaged.filter(belongs).map(|member| member.group.id).collect()
    }

    /// Makes a group and gives it the smallest free number.
    pub(super) fn create(&mut self, fs: &Arc<dyn Ordering>, count: &Arc<Count>, uid: u32) -> Result<u32> {
        if self.members.len() >= GROUPS_MAX {
            return Err(Errno::MFILE.into());
        }
        let no = (1..).zip(self.members.keys()).find(|(no, used)| no != *used).map(|(no, _)| no);
        let no = no.unwrap_or_else(|| self.members.last_key_value().map_or(1, |(last, _)| last + 1));
        count.add(uid)?;
        let id = fs.group(GroupCall::Create).inspect_err(|_| count.remove(uid))?;
        let group = Arc::new(Group { fs: Arc::clone(fs), count: Arc::clone(count), uid, id });
        self.members.insert(no, Member { engaged: None, group, whole: false, files: BTreeMap::new() });
        Ok(no)
    }

    /// Forgets a number.
    pub(super) fn close(&mut self, no: u32) -> Result<()> {
        self.members.remove(&no).map(|_| ()).ok_or(Errno::BADF.into())
    }

    pub(super) fn engage(&mut self, no: u32, about: About) -> Result<()> {
        let engagements = |member: &Member| usize::from(member.whole) + member.files.len();
        let all: usize = self.members.values().map(engagements).sum();
        let member = self.member_mut(no)?;
        let already = match about {
            About::Everything => member.whole,
            About::File(ino) => member.has(ino),
        };
        if already {
            return Err(Errno::BUSY.into());
        }
        if all >= GROUPS_ENGAGED_MAX {
            return Err(Errno::MFILE.into());
        }
        let file = match about {
            About::Everything => None,
            About::File(ino) => Some(member.group.fs.life(ino)?),
        };
        if member.engaged.is_none() {
            member.engaged = Some(Engagement::new(&member.group)?);
        }
        match file {
            None => member.whole = true,
            Some(file) => drop(member.files.insert(file.ino, file)),
        }
        Ok(())
    }

    pub(super) fn disengage(&mut self, no: u32, about: About) -> Result<()> {
        let member = self.member_mut(no)?;
        let was = match about {
            About::Everything => std::mem::take(&mut member.whole),
            // Also of a file that is gone, if its number is all that is left of it.
            About::File(ino) => member.files.remove(&ino).is_some(),
        };
        if !was {
            return Err(Errno::INVAL.into());
        }
        if !member.whole && member.files.is_empty() {
            member.engaged = None;
        }
        Ok(())
    }
}
