//! What was changed and is not known to be stable; and, when that has been given up, what programs and the kernel are still to hear of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Attr, Entry, Errno, InodeNo, Result};
use fstitch_formats::References;

/// What the operations of one opening have changed.
#[derive(Default)]
pub(super) struct Touched {
    /// The life of each that was made here.
    inodes: BTreeMap<InodeNo, Option<u32>>,
    names: BTreeSet<(InodeNo, Box<[u8]>)>,
}

impl Touched {
    pub(super) fn inode(&mut self, ino: InodeNo) {
        self.inodes.entry(ino).or_default();
    }

    pub(super) fn made(&mut self, attr: &Attr) {
        self.inodes.insert(attr.ino, Some(attr.generation));
    }

    pub(super) fn name(&mut self, parent: InodeNo, name: &[u8]) {
        self.names.insert((parent, name.into()));
    }

    /// Takes out one that is about to be made stable.
    pub(super) fn take(&mut self, ino: InodeNo) -> Option<Option<u32>> {
        self.inodes.remove(&ino)
    }

    /// Puts it back, because it was not.
    pub(super) fn put_back(&mut self, ino: InodeNo, was: Option<Option<u32>>) {
        if let Some(life) = was {
            let now = self.inodes.entry(ino).or_default();
            *now = now.or(life);
        }
    }

    pub(super) fn add(&mut self, before: Self) {
        before.inodes.into_iter().for_each(|(ino, life)| self.put_back(ino, Some(life)));
        self.names.extend(before.names);
    }

    pub(super) fn len(&self) -> usize {
        self.inodes.len() + self.names.len()
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = InodeNo> + '_ {
        self.inodes.keys().copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (InodeNo, &[u8])> {
        self.names.iter().map(|(parent, name)| (*parent, &**name))
    }

    /// Takes out of `references` those to inodes that were made here, and are not there any more by what `life` says of a number.
    pub(super) fn strangers(
        &self,
        references: &mut References,
        life: impl Fn(InodeNo) -> Option<u32>,
    ) -> Vec<(InodeNo, Stranger)> {
        let mut strangers = Vec::new();
        references.retain(|&(ino, refs)| match self.inodes.get(&ino) {
            Some(&Some(generation)) if life(ino) != Some(generation) => {
                strangers.push((ino, Stranger { refs, generation, is_met: false }));
                false
            }
            _ => true,
        });
        strangers
    }
}

/// A number that the kernel knows for an inode that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stranger {
    /// References that the kernel gives back for it.
    refs: u64,
    /// The life that it had.
    generation: u32,
    /// The kernel has been told who has the number now.
    is_met: bool,
}

#[derive(Default)]
struct Debts {
    /// Whose next fsync fails.
    inodes: BTreeSet<InodeNo>,
    /// The next sync of everything fails.
    all: bool,
    strangers: BTreeMap<InodeNo, Stranger>,
}

/// What is still to be told.
#[derive(Default)]
pub(super) struct Owed {
    /// There is something: without it nobody needs the lock.
    any: AtomicBool,
    debts: Mutex<Debts>,
}

/// A life that the kernel has not heard of.
const OTHER_LIFE: u32 = 1 << 31;

impl Owed {
    fn debts(&self) -> Option<MutexGuard<'_, Debts>> {
        self.any.load(Ordering::Acquire).then(|| self.debts.lock().unpoisoned())
    }

    /// What an opening had changed was given up.
    pub(super) fn add(&self, touched: &Touched, strangers: Vec<(InodeNo, Stranger)>) {
        if touched.len() == 0 {
            return;
        }
        let mut debts = self.debts.lock().unpoisoned();
        debts.inodes.extend(touched.inodes());
        debts.all = true;
        for (ino, stranger) in strangers {
            // Where there was another one before, its references are among these.
            debts.strangers.insert(ino, stranger);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Tells of what was given up, with what an fsync has come to.
    pub(super) fn tell(&self, ino: InodeNo, done: Result<()>) -> Result<()> {
        let Some(mut debts) = self.debts() else { return done };
        // Who is told of a failure now has been told.
        let was_given_up = debts.inodes.remove(&ino);
        done.and_then(|()| if was_given_up { Err(Errno::IO.into()) } else { Ok(()) })
    }

    /// The same for everything. Who asks for one inode is told nevertheless: it is somebody else.
    pub(super) fn tell_all(&self, done: Result<()>) -> Result<()> {
        let Some(mut debts) = self.debts() else { return done };
        let was_given_up = std::mem::take(&mut debts.all);
        done.and_then(|()| if was_given_up { Err(Errno::IO.into()) } else { Ok(()) })
    }

    /// Whoever had this number before: a new one owes nothing.
    pub(super) fn is_new(&self, ino: InodeNo) {
        if let Some(mut debts) = self.debts() {
            debts.inodes.remove(&ino);
        }
    }

    /// Refuses numbers that the kernel knows for somebody who is gone.
    pub(super) fn refuse_strangers(&self, inodes: &[InodeNo]) -> Result<()> {
        let Some(debts) = self.debts() else { return Ok(()) };
        let unmet = |ino: &InodeNo| debts.strangers.get(ino).is_some_and(|stranger| !stranger.is_met);
        if inodes.iter().any(unmet) { Err(Errno::STALE.into()) } else { Ok(()) }
    }

    /// The kernel is about to be told of an inode: if it knows the number for another one, as of another life, so that it makes an end of that one.
    pub(super) fn introduce(&self, entry: Entry) -> Entry {
        let Some(mut debts) = self.debts() else { return entry };
        let mut entry = entry;
        if let Some(stranger) = debts.strangers.get_mut(&entry.attr.ino) {
            stranger.is_met = true;
            if stranger.generation == entry.attr.generation {
                entry.attr.generation ^= OTHER_LIFE;
            }
        }
        entry
    }

    /// The kernel gives back references; how many of them are to an inode that is there.
    pub(super) fn forget(&self, ino: InodeNo, count: u64) -> u64 {
        let Some(mut debts) = self.debts() else { return count };
        let Some(stranger) = debts.strangers.get_mut(&ino) else { return count };
        let to_stranger = stranger.refs.min(count);
        stranger.refs -= to_stranger;
        // The life of one that is met is to be told in the same way, as long as the number is known: it stays.
        if stranger.refs == 0 && !stranger.is_met {
            debts.strangers.remove(&ino);
        }
        count - to_stranger
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::{FileKind, Timestamp};

    use super::*;

    fn attr(ino: u64, generation: u32) -> Attr {
        let at = Timestamp::default();
        Attr {
            ino: InodeNo(ino),
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: at,
            mtime: at,
            ctime: at,
            crtime: None,
            generation,
        }
    }

    /// Inodes 12 and 13 were made and given up; 14 was changed. 13 has been another one before, and is again.
    fn owed() -> (Owed, References) {
        let mut touched = Touched::default();
        touched.made(&attr(12, 1));
        touched.made(&attr(13, 8));
        touched.inode(InodeNo(14));
        let mut references = vec![(InodeNo(12), 3), (InodeNo(13), 1), (InodeNo(14), 2)];
        let life = |ino: InodeNo| (ino != InodeNo(12)).then_some(7);
        let strangers = touched.strangers(&mut references, life);
        let owed = Owed::default();
        owed.add(&touched, strangers);
        (owed, references)
    }

    #[test]
    fn each_inode_that_was_changed_owes_one_failed_fsync() {
        let (owed, _) = owed();
        for ino in [12, 13, 14] {
            assert_eq!(owed.tell(InodeNo(ino), Ok(())).unwrap_err().errno(), Errno::IO);
            owed.tell(InodeNo(ino), Ok(())).unwrap();
        }
        owed.tell(InodeNo(15), Ok(())).unwrap();
        assert_eq!(owed.tell_all(Ok(())).unwrap_err().errno(), Errno::IO);
        owed.tell_all(Ok(())).unwrap();
    }

    #[test]
    fn who_is_gone_is_refused_until_the_kernel_knows_the_next_one() {
        let (owed, references) = owed();
        assert_eq!(references, [(InodeNo(14), 2)], "they are taken over");
        for ino in [12, 13] {
            let refused = owed.refuse_strangers(&[InodeNo(2), InodeNo(ino)]).unwrap_err();
            assert_eq!(refused.errno(), Errno::STALE);
        }
        owed.refuse_strangers(&[InodeNo(14)]).unwrap();
        // The number's next life would be the one that the kernel knows.
        let shown = owed.introduce(Entry { attr: attr(12, 1) });
        assert_ne!(shown.attr.generation, 1);
        assert_eq!(owed.introduce(Entry { attr: attr(12, 1) }).attr.generation, shown.attr.generation);
        assert_eq!(owed.introduce(Entry { attr: attr(13, 7) }).attr.generation, 7);
        owed.refuse_strangers(&[InodeNo(12), InodeNo(13)]).unwrap();
        // Three of four references were to the one that is gone.
        assert_eq!(owed.forget(InodeNo(12), 4), 1);
        assert_eq!(owed.forget(InodeNo(12), 1), 1);
        assert_eq!(owed.forget(InodeNo(14), 2), 2);
    }

    #[test]
    fn what_an_fsync_could_not_make_stable_is_still_noted() {
        let mut touched = Touched::default();
        touched.made(&attr(12, 1));
        let was = touched.take(InodeNo(12));
        assert_eq!(touched.len(), 0);
        touched.inode(InodeNo(12));
        touched.put_back(InodeNo(12), was);
        let mut references = vec![(InodeNo(12), 1)];
        assert_eq!(touched.strangers(&mut references, |_| None).len(), 1, "its life is known");
    }
}
