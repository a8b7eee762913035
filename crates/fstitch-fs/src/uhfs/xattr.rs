//! Extended attributes; the two that hold access lists also change the mode.

use fstitch_core::{Caller, Errno, FileKind, InodeFlags, InodeNo, Result, XattrSetMode};

use super::acl::{self, Acl};
use super::node::{Part, State};
use super::volume::ATTR_CHANGE_BLOCKS;
use super::{AttrChange, LowLevelFs, Uhfs};

/// Bytes in an attribute's name, Linux's limit.
const NAME_MAX: usize = 255;

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let node = self.node(ino)?;
        let state = node.read()?;
        if name.starts_with(b"user.") && !takes_user_attributes(self.kind(&state)) {
            return Err(Errno::NODATA.into());
        }
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
        check_xattr_name(name)?;
        let _change = self.change(ATTR_CHANGE_BLOCKS)?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.check_xattr_change(&state, name)?;
        if name == acl::ACCESS || name == acl::DEFAULT {
            self.set_acl(caller, &mut state, name, value)?;
        } else {
            let patches = self.low.set_xattr(caller, state.inode_mut(), name, value, mode)?;
            self.note(&mut state, Part::Attributes, &patches);
        }
        self.touch(&mut state, false)
    }

    pub(super) fn do_removexattr(&self, caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let _change = self.change(ATTR_CHANGE_BLOCKS)?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.check_xattr_change(&state, name)?;
        let patches = self.low.remove_xattr(caller, state.inode_mut(), name)?;
        self.note(&mut state, Part::Attributes, &patches);
        self.touch(&mut state, false)
    }

    fn check_xattr_change(&self, state: &State<L::Inode>, name: &[u8]) -> Result<()> {
        self.refuse_flags(state, InodeFlags::IMMUTABLE | InodeFlags::APPEND)?;
        if name.starts_with(b"user.") && !takes_user_attributes(self.kind(state)) {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// Sets an access list. One that says no more than the mode is not stored; an empty one removes it.
    fn set_acl(&self, caller: &Caller, state: &mut State<L::Inode>, name: &[u8], value: &[u8]) -> Result<()> {
        let list = if value.is_empty() { None } else { Acl::parse(value)? };
        let kind = self.kind(state);
        if kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        if name == acl::DEFAULT && kind != FileKind::Directory && list.is_some() {
            return Err(Errno::ACCES.into());
        }
        let stored = match &list {
            Some(list) if name == acl::ACCESS && list.is_equivalent_to_mode() => None,
            other => other.as_ref(),
        };
        match stored {
            Some(list) => self.store_xattr(caller, state, name, &list.encode())?,
            None => self.drop_xattr(caller, state, name)?,
        }
        if let (Some(list), acl::ACCESS) = (&list, name) {
            let perm = self.low.attr(state.inode()).perm & !0o777 | list.mode();
            self.set_plain(state, &AttrChange { perm: Some(perm), ..AttrChange::default() })?;
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

fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::RANGE.into()),
        len if len > NAME_MAX => Err(Errno::RANGE.into()),
        _ if name.contains(&0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// Linux lets users attach attributes only where the permission bits say who may.
fn takes_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}
