//! Extended attributes.

use fstitch_core::{Caller, Errno, InodeNo, Result, XattrSetMode};
use fstitch_posix::xattr as rules;

use super::node::{Part, State};
use super::volume::ATTR_CHANGE_BLOCKS;
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
        let _change = self.change(ATTR_CHANGE_BLOCKS + self.low.xattr_blocks(value.len()))?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
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
        let _change = self.change(ATTR_CHANGE_BLOCKS + self.low.xattr_blocks(0))?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
        rules::check_change(&self.seen(&state), name)?;
        self.ask_to_sync(&state)?;
        let patches = self.low.remove_xattr(caller, state.inode_mut(), name)?;
        self.note(&mut state, Part::Attributes, &patches);
        self.touch(&mut state, false)
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
