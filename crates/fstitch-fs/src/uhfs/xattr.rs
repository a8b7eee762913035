//! Extended attributes.

use fstitch_core::{Caller, Errno, InodeNo, Result, XattrSetMode};
use fstitch_posix::xattr as rules;

use super::node::{Exclusive, Node, Part, State};
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::{AttrChange, LowLevelFs, Uhfs};

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        rules::check_name(name)?;
        let node = self.node(ino)?;
        let state = node.read()?;
        rules::check_get(self.kind(&state), name)?;
        self.low.get_xattr(state.inode(), name)
    }

    pub(super) fn do_listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        self.low.list_xattrs(state.inode())
    }

    pub(super) fn do_setxattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<()> {
        rules::check_name(name)?;
        let change = self.change(0)?;
        let node = self.node(ino)?;
        let mut state = self.reserve_xattr(&change, &node, 0, |_| Ok(Some(value.len())))?;
        rules::check_change(&self.seen(&state), name)?;
        self.ask_to_sync(&state)?;
        if rules::is_list(name) {
            self.set_acl(caller, &mut state, name, value)?;
        } else {
            let patches = self.low.set_xattr(caller, state.inode_mut(), name, value, mode)?;
            self.note(&mut state, Part::Attributes, &patches);
        }
        self.touch(&mut state, false)
    }

    pub(super) fn do_removexattr(&self, caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        let change = self.change(0)?;
        let node = self.node(ino)?;
        let mut state = self.reserve_xattr(&change, &node, 0, |_| Ok(Some(0)))?;
        rules::check_change(&self.seen(&state), name)?;
        self.ask_to_sync(&state)?;
        let patches = self.low.remove_xattr(caller, state.inode_mut(), name)?;
        self.note(&mut state, Part::Attributes, &patches);
        self.touch(&mut state, false)
    }

    /// Begins a step with room for a change of plain attributes and of an extended one to a value of the length that `len` says of
    /// the inode, `None` where none changes, and for `more` blocks beside it; and locks the inode.
    pub(super) fn reserve_xattr<'n>(
        &self,
        change: &Change<'_>,
        node: &'n Node<L::Inode>,
        more: usize,
        len: impl Fn(&State<L::Inode>) -> Result<Option<usize>>,
    ) -> Result<Exclusive<'n, L::Inode>> {
        let cost = |state: &State<L::Inode>| match len(state)? {
            Some(len) => self.low.xattr_blocks(state.inode(), len),
            None => Ok(0),
        };
        let mut blocks = cost(&*node.read()?)?;
        loop {
            if blocks > 0 {
                change.pause();
            }
            change.reserve(0, ATTR_CHANGE_BLOCKS + more + blocks)?;
            let state = node.write()?;
            let now = cost(&state)?;
            if now <= blocks {
                return Ok(state);
            }
            // Somebody has given it more since.
            blocks = now;
        }
    }

    /// Sets an access list.
    fn set_acl(&self, caller: &Caller, state: &mut State<L::Inode>, name: &[u8], value: &[u8]) -> Result<()> {
        let change = rules::set_list(&self.low.attr(state.inode()), name, value)?;
        match &change.stored {
            Some(list) => self.store_xattr(caller, state, name, list)?,
            None => self.drop_xattr(caller, state, name)?,
        }
        if change.perm.is_some() {
            self.set_plain(state, &AttrChange { perm: change.perm, ..AttrChange::default() })?;
        }
        Ok(())
    }

    /// Creates or replaces an attribute.
    pub(super) fn store_xattr(
        &self,
        caller: &Caller,
        state: &mut State<L::Inode>,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let patches = self.low.set_xattr(caller, state.inode_mut(), name, value, XattrSetMode::Set)?;
        self.note(state, Part::Attributes, &patches);
        Ok(())
    }

    /// Removes an attribute if it exists.
    fn drop_xattr(&self, caller: &Caller, state: &mut State<L::Inode>, name: &[u8]) -> Result<()> {
        match self.low.remove_xattr(caller, state.inode_mut(), name) {
            Ok(patches) => {
                self.note(state, Part::Attributes, &patches);
                Ok(())
            }
            Err(error) if error.errno() == Errno::NODATA => Ok(()),
            Err(error) => Err(error),
        }
    }
}
