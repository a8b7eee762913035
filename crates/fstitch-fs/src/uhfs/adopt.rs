//! Giving an inode that has lost its names another one, in `lost+found`. The order: of a directory, the raised count of
//! `lost+found` → `..`; that → name. A name in a directory that `..` does not name would be damage.

use fstitch_core::{Caller, Errno, FileKind, InodeNo, Result};
use fstitch_patch::PatchIds;
use fstitch_posix::make::Make;

use super::locks::Locked;
use super::node::Part;
use super::{LowLevelFs, Uhfs};

/// Where lost inodes go.
const LOST_AND_FOUND: &[u8] = b"lost+found";

impl<L: LowLevelFs> Uhfs<L> {
    /// Names `ino`, which nothing names and nobody uses, in `lost+found`. False if it cannot be: something else has the
    /// name of the directory, or its own, or there is no room.
    pub(super) fn adopt(&self, ino: InodeNo) -> Result<bool> {
        let caller = Caller::default();
        let placed = self.lost_and_found(&caller).and_then(|lost| match lost {
            Some(lost) => self.name_lost(&caller, lost, ino),
            None => Ok(false),
        });
        match placed {
            Err(error) if [Errno::NOSPC, Errno::EXIST, Errno::MLINK].contains(&error.errno()) => Ok(false),
            other => other,
        }
    }

    /// The directory, made if there is none; `None` if something else has its name.
    fn lost_and_found(&self, caller: &Caller) -> Result<Option<InodeNo>> {
        let root = self.low.root();
        let found = {
            let node = self.node(root)?;
            let state = node.read()?;
            self.low.find_name(state.inode(), LOST_AND_FOUND)?.map(|slot| slot.ino)
        };
        if let Some(ino) = found {
            let node = self.node(ino)?;
            let is_dir = self.kind(&*node.read()?) == FileKind::Directory;
            return Ok(is_dir.then_some(ino));
        }
        let name = Some(LOST_AND_FOUND);
        let kind = FileKind::Directory;
        let made =
            self.make(&Make { caller, parent: root, name, kind, perm: 0o700, rdev: 0, target: b"" })?;
        self.do_forget(made.attr.ino, 1);
        Ok(Some(made.attr.ino))
    }

    fn name_lost(&self, caller: &Caller, lost: InodeNo, ino: InodeNo) -> Result<bool> {
        let name = format!("#{}", ino.get());
        let _change = self.change(self.low.name_blocks())?;
        let _renames = self.renames.lock();
        let (dir, node) = (self.node(lost)?, self.node(ino)?);
        let mut locked = Locked::all(&[&dir, &node])?;
        if self.low.find_name(locked.of(lost).inode(), name.as_bytes())?.is_some() {
            return Ok(false);
        }
        self.low.prepare_name(caller, locked.of(lost).inode_mut(), name.as_bytes())?;
        let kind = self.kind(locked.of(ino));
        let is_dir = kind == FileKind::Directory;
        let mut befores = PatchIds::new();
        if is_dir {
            let counted = self.add_links(locked.of(lost), 1, &[])?;
            let state = locked.of(ino);
            let parent = self.low.set_parent(state.inode_mut(), lost, &counted)?;
            self.note(state, Part::Names, &[parent]);
            self.moves.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            befores.push(parent);
        }
        befores.extend(self.readiness(locked.of(ino)));
        let dir = locked.of(lost);
        let named = self.low.add_name(dir.inode_mut(), name.as_bytes(), ino, kind, &befores)?;
        self.note(dir, Part::Contents, &named);
        self.touch(dir, true)?;
        let lost = self.low.attr(dir.inode()).id();
        let state = locked.of(ino);
        self.note(state, Part::Names, &named);
        state.track.named_in(lost);
        Ok(true)
    }
}
