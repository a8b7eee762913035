//! Extended attributes.

use fstitch_core::{BlockKind, BlockNo, Errno, Error, Result, Structure};

use super::layout::superblock::Version;
use super::layout::xattr::{Attribute, all};
use super::volume::{Inode, Ufs};

impl Ufs {
    /// The value of an attribute.
    pub(super) fn read_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let bytes = self.xattr_bytes(inode)?;
        let found = self.attributes_in(&bytes)?.into_iter().find(|found| found.full_name() == name);
        found.map(|found| found.value.to_vec()).ok_or_else(|| self.no_xattr())
    }

    /// All names.
    pub(super) fn read_xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let bytes = self.xattr_bytes(inode)?;
        Ok(self.attributes_in(&bytes)?.iter().map(Attribute::full_name).collect())
    }

    fn no_xattr(&self) -> Error {
        match self.sb.version {
            Version::One => Errno::OPNOTSUPP.into(),
            Version::Two => Errno::NODATA.into(),
        }
    }

    fn attributes_in<'b>(&self, bytes: &'b [u8]) -> Result<Vec<Attribute<'b>>> {
        let damaged = |(at, problem)| Error::corrupt(Structure::AttributeEntry(at), None, problem);
        all(bytes, self.sb.order).map_err(damaged)
    }

    fn xattr_bytes(&self, inode: &Inode) -> Result<Vec<u8>> {
        let len = usize::try_from(inode.disk.extra_size).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        for start in inode.disk.extra {
            let left = (len - bytes.len()).min(usize::try_from(self.sb.block_size).unwrap_or(usize::MAX));
            if left == 0 {
                break;
            }
            let count = self.fragments_of(fstitch_core::num::to_u64(left));
            self.check_range(inode.ino, start, count)?;
            let before = bytes.len();
            for at in start..start + count {
                bytes.extend_from_slice(&self.cache.read(BlockNo(at), BlockKind::Attribute)?.snapshot());
            }
            bytes.truncate(before + left);
        }
        Ok(bytes)
    }
}
