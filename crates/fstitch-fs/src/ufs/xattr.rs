//! Extended attributes.
//!
//! **Orderings** (arrows read "comes after"). What is changed is written to another place, and the inode turns to that in one patch over their length
//! and their blocks → contents and bits of the new place; the old fragments are free → that patch.
//!
//! **Crash cases.** All attributes are as they were, or as they are now; leaked fragments.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Error, Result, Structure, XattrSetMode};
use fstitch_patch::{Block, PatchIds};

use super::alloc::Run;
use super::layout::inode::{EXTRA, EXTRA_AT, EXTRA_SIZE_AT};
use super::layout::xattr::{encode, end, find, split};

use super::layout::superblock::Version;
use super::layout::xattr::{Attribute, all};
use super::volume::{Inode, Ufs};

/// The longest name behind its namespace, and the longest value, in bytes.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65_536;

impl Ufs {
    /// The value of an attribute.
    pub(super) fn read_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let bytes = self.xattr_bytes(inode)?;
        let found = self.attributes_in(&bytes)?.into_iter().find(|found| found.full_name() == name);
        found.map(|found| found.value.to_vec()).ok_or_else(|| Errno::NODATA.into())
    }

    /// All names.
    pub(super) fn read_xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let bytes = self.xattr_bytes(inode)?;
        Ok(self.attributes_in(&bytes)?.iter().map(Attribute::full_name).collect())
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

    /// Creates or replaces a value.
    pub(super) fn write_xattr(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<PatchIds> {
        let (key, mut bytes, found) = self.attributes_with(inode, name)?;
        match (mode, found.is_some()) {
            (XattrSetMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrSetMode::Replace, false) => return Err(Errno::NODATA.into()),
            _ => {}
        }
        if let Some(found) = found {
            bytes.drain(found);
        }
        if value.len() > VALUE_MAX {
            return Err(Errno::NOSPC.into());
        }
        bytes.extend_from_slice(&encode(key, value, self.sb.order));
        self.put_attributes(caller, inode, &bytes)
    }

    /// Removes a value.
    pub(super) fn erase_xattr(&self, caller: &Caller, inode: &mut Inode, name: &[u8]) -> Result<PatchIds> {
        let (_, mut bytes, found) = self.attributes_with(inode, name)?;
        bytes.drain(found.ok_or(Errno::NODATA)?);
        self.put_attributes(caller, inode, &bytes)
    }

    /// A name's namespace and rest, all attributes of the inode, and where among them that one is.
    #[expect(clippy::type_complexity, reason = "three things that belong together here only")]
    fn attributes_with<'n>(
        &self,
        inode: &Inode,
        name: &'n [u8],
    ) -> Result<((u8, &'n [u8]), Vec<u8>, Option<std::ops::Range<usize>>)> {
        if self.sb.version == Version::One {
            return Err(Errno::OPNOTSUPP.into());
        }
        let key = split(name).ok_or(Errno::OPNOTSUPP)?;
        if key.1.is_empty() || key.1.len() > NAME_MAX {
            return Err(if key.1.is_empty() { Errno::INVAL } else { Errno::RANGE }.into());
        }
        let mut bytes = self.xattr_bytes(inode)?;
        let damaged = |(at, problem)| Error::corrupt(Structure::AttributeEntry(at), None, problem);
        let found = find(&bytes, key, self.sb.order).map_err(damaged)?;
        bytes.truncate(end(&bytes, self.sb.order));
        Ok((key, bytes, found))
    }

    /// Makes these all attributes of an inode.
    fn put_attributes(&self, caller: &Caller, inode: &mut Inode, bytes: &[u8]) -> Result<PatchIds> {
        let block_len = to_u64(to_usize(self.sb.block_size));
        if to_u64(bytes.len()) > block_len * to_u64(EXTRA) {
            return Err(Errno::NOSPC.into());
        }
        let inode_block = self.inode_block(inode)?;
        let places = self.places_for(caller, inode, bytes)?;
        let old = self.attribute_runs(inode);
        let mut blocks = [0; EXTRA];
        for (slot, (run, _)) in blocks.iter_mut().zip(&places) {
            *slot = run.start;
        }
        let mut raw = vec![0; EXTRA_AT + EXTRA * 8];
        let size = u32::try_from(bytes.len()).expect("two blocks at most");
        self.sb.order.put_u32(&mut raw, EXTRA_SIZE_AT, size);
        for (slot, &block) in blocks.iter().enumerate() {
            self.sb.order.put_u64(&mut raw, EXTRA_AT + slot * 8, block);
        }
        let mut befores = PatchIds::new();
        let mut taken = 0;
        let mut tx = self.cache.lock();
        let fragment = self.sb.fragment_len();
        let mut parts = bytes.chunks(to_usize(self.sb.block_size));
        for (run, handles) in places {
            let mut part = parts.next().unwrap_or_default().chunks(fragment);
            for block in handles {
                let mut contents = BlockBuf::zeroed(fragment);
                let here = part.next().unwrap_or_default();
                contents[..here.len()].copy_from_slice(here);
                let init = tx.init(&block, Arc::new(contents), &run.reuse);
                inode.gather(&mut tx, init);
                befores.push(init);
            }
            befores.extend(run.bits);
            taken += run.count;
        }
        let patch = inode.put(&mut tx, &inode_block, (EXTRA_SIZE_AT, &raw[EXTRA_SIZE_AT..]), &befores);
        drop(tx);
        (inode.disk.extra_size, inode.disk.extra) = (size, blocks);
        let freed: u64 = old.iter().map(|(_, count)| count).sum();
        self.add_sectors(inode, taken)?;
        self.sub_sectors(inode, freed)?;
        self.remember(inode);
        for (start, count) in old {
            self.free_checked(inode, start, count, Some(patch))?;
        }
        Ok(PatchIds::from_slice(&[patch]))
    }

    /// Takes the fragments for attributes of these bytes.
    fn places_for(&self, caller: &Caller, inode: &Inode, bytes: &[u8]) -> Result<Vec<(Run, Vec<Block>)>> {
        let near = self.near_inode(inode.ino);
        let mut places: Vec<(Run, Vec<Block>)> = Vec::new();
        for part in bytes.chunks(to_usize(self.sb.block_size)) {
            let count = self.fragments_of(to_u64(part.len()));
            let taken = if count < self.per_block() {
                self.take_fragments(caller, near, count)
            } else {
                self.take_blocks(caller, near, 1)
            };
            let placed = taken.and_then(|run| {
                let fresh = (run.start..run.start + run.count)
                    .map(|at| self.cache.fresh(BlockNo(at), BlockKind::Attribute))
                    .collect::<Result<Vec<_>>>();
                fresh.inspect_err(|_| self.give_back(run.start, run.count)).map(|blocks| (run, blocks))
            });
            match placed {
                Ok(place) => places.push(place),
                Err(error) => {
                    for (run, _) in places {
                        self.give_back(run.start, run.count);
                    }
                    return Err(error);
                }
            }
        }
        Ok(places)
    }

    /// The fragments of an inode's attributes.
    pub(super) fn attribute_runs(&self, inode: &Inode) -> Vec<(u64, u64)> {
        let mut left = u64::from(inode.disk.extra_size);
        let mut runs = Vec::new();
        for &start in &inode.disk.extra {
            let here = left.min(u64::from(self.sb.block_size));
            if start != 0 && here > 0 {
                runs.push((start, self.fragments_of(here)));
            }
            left -= here;
        }
        runs
    }
}
