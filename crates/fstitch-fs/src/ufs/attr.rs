//! Changing attributes.
//!
//! **Orderings** (arrows read "comes after").
//! - the length → what its caller says, and what holds it back ([`Inode::held`]);
//! - a shorter length of a regular file → the clearing of the pointers behind it in blocks of pointers that stay, from the end on: a check of
//!   FreeBSD's that nobody attends stops at pointers behind the end there;
//! - a length that needs pointers which are new behind the end, or that leaves pointers behind the end: **one patch over both**, because an
//!   inode with a pointer behind its length is one that a check clears;
//! - what a shorter length leaves is free → that patch;
//! - the number of names → what its caller says;
//! - everything else: no order.
//!
//! **Crash cases.** After a shorter length, before the bits: leaked fragments. After the pointers, before the shorter length: a length behind the
//! last block, which a check cuts to that.

use std::ops::Range;

use fstitch_core::num::to_u64;
use fstitch_core::{Errno, InodeFlags, Result, Timestamp};
use fstitch_patch::{Block, PatchId, PatchIds};

use super::layout::inode::{DIRECT, INDIRECT, LINKS_AT, MODE_AT, places, put_time};
use super::layout::superblock::Version;
use super::path::tree_span;
use super::volume::{Inode, Ufs};
use crate::num::{idx, idx64, low16};
use crate::uhfs::AttrChange;

/// Bytes of the larger kind of inode.
const INODE_BYTES_MAX: usize = Version::Two.inode_size() as usize;

/// What a shorter file has lost.
enum Lost {
    /// Fragments.
    Run(u64, u64),
    /// A tree of so many levels of blocks of pointers.
    Tree(u64, usize),
}

impl Ufs {
    /// Changes attributes after `befores`. Returns the patches.
    pub(super) fn change_attr(
        &self,
        inode: &mut Inode,
        change: &AttrChange,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        if change.project.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let block = self.inode_block(inode)?;
        let mut patches = PatchIds::new();
        self.change_owner_and_mode(inode, &block, change, &mut patches);
        self.change_times(inode, &block, change, &mut patches);
        if let Some(nlink) = change.nlink {
            let nlink =
                u16::try_from(nlink).ok().filter(|&nlink| u32::from(nlink) <= self.format_limits().link_max);
            inode.disk.nlink = nlink.ok_or(Errno::MLINK)?;
            let mut raw = [0; 2];
            self.sb.order.put_u16(&mut raw, 0, inode.disk.nlink);
            let mut tx = self.cache.lock();
            patches.push(inode.put(&mut tx, &block, (LINKS_AT, &raw), befores));
        }
        match change.size {
            Some(size) if size > self.format_limits().size_max => return Err(Errno::FBIG.into()),
            Some(size) if size < inode.disk.size => {
                patches.extend(self.shorten(inode, &block, size, befores)?)
            }
            Some(size) => patches.extend(self.lengthen_to(inode, &block, size, befores)),
            None => {}
        }
        self.remember(inode);
        Ok(patches)
    }

    fn change_owner_and_mode(
        &self,
        inode: &mut Inode,
        block: &Block,
        change: &AttrChange,
        patches: &mut PatchIds,
    ) {
        if change.perm.is_none() && change.uid.is_none() && change.gid.is_none() && change.flags.is_none() {
            return;
        }
        let (order, places) = (self.sb.order, places(self.sb.version));
        let mut edits: Vec<(usize, u32, usize)> = Vec::new();
        if let Some(perm) = change.perm {
            inode.disk.perm = perm & 0o7777;
            edits.push((MODE_AT, u32::from(inode.disk.kind.mode_bits() | inode.disk.perm), 2));
        }
        if let Some(uid) = change.uid {
            inode.disk.uid = uid;
            edits.push((places.uid, uid, 4));
        }
        if let Some(gid) = change.gid {
            inode.disk.gid = gid;
            edits.push((places.gid, gid, 4));
        }
        if let Some(flags) = change.flags {
            inode.disk.flags = changed_flags(inode.disk.flags, flags);
            edits.push((places.flags, inode.disk.flags, 4));
        }
        let mut tx = self.cache.lock();
        for (at, value, len) in edits {
            let mut raw = [0; 4];
            if len == 2 {
                order.put_u16(&mut raw, 0, low16(value));
            } else {
                order.put_u32(&mut raw, 0, value);
            }
            if tx.data(block)[inode.at.1 + at..inode.at.1 + at + len] != raw[..len] {
                patches.push(inode.put(&mut tx, block, (at, &raw[..len]), &[]));
            }
        }
    }

    fn change_times(&self, inode: &mut Inode, block: &Block, change: &AttrChange, patches: &mut PatchIds) {
        let places = places(self.sb.version);
        let disk = &mut inode.disk;
        let fields = [&mut disk.atime, &mut disk.mtime, &mut disk.ctime];
        let mut changed = [None; 3];
        // All that changes is one patch, with what lies between.
        let mut range: Option<Range<usize>> = None;
        for (at, (field, time)) in
            fields.into_iter().zip([change.atime, change.mtime, change.ctime]).enumerate()
        {
            let Some(time) = time.map(|time| self.storable(time)).filter(|time| time != field) else {
                continue;
            };
            *field = time;
            changed[at] = Some(time);
            let (from, end) = (places.seconds[at], places.nanos[at] + 4);
            range = Some(range.map_or(from..end, |range| range.start..range.end.max(end)));
        }
        let Some(range) = range else { return };
        let mut tx = self.cache.lock();
        let mut bytes = [0; INODE_BYTES_MAX];
        let bytes = &mut bytes[..range.len()];
        bytes.copy_from_slice(&tx.data(block)[inode.at.1..][range.clone()]);
        for (at, time) in changed.into_iter().enumerate() {
            if let Some(time) = time {
                let field = (places.seconds[at] - range.start, places.nanos[at] - range.start);
                put_time(bytes, &self.sb, field, time);
            }
        }
        patches.push(inode.put(&mut tx, block, (range.start, bytes), &[]));
    }

    /// A time as it comes back after being stored.
    pub(super) fn storable(&self, time: Timestamp) -> Timestamp {
        match self.sb.version {
            Version::One => {
                Timestamp { secs: time.secs.clamp(i64::from(i32::MIN), i64::from(i32::MAX)), ..time }
            }
            Version::Two => time,
        }
    }

    /// The patch of the length, with the pointers if they change with it.
    fn put_size(
        &self,
        inode: &mut Inode,
        block: &Block,
        with_pointers: bool,
        befores: &[PatchId],
    ) -> PatchId {
        let places = places(self.sb.version);
        let mut tx = self.cache.lock();
        let end = if with_pointers {
            places.pointers + idx(self.sb.version.pointer_size()) * (DIRECT + INDIRECT)
        } else {
            places.size + 8
        };
        let mut raw = [0; INODE_BYTES_MAX];
        let raw = &mut raw[..idx(self.sb.version.inode_size())];
        raw.copy_from_slice(&tx.data(block)[inode.at.1..inode.at.1 + raw.len()]);
        self.sb.order.put_u64(raw, places.size, inode.disk.size);
        if with_pointers {
            inode.disk.encode_pointers(raw, &self.sb);
        }
        inode.put(&mut tx, block, (places.size, &raw[places.size..end]), befores)
    }

    fn lengthen_to(&self, inode: &mut Inode, block: &Block, size: u64, befores: &[PatchId]) -> PatchIds {
        if size == inode.disk.size && !inode.is_ahead && !inode.has_late() {
            return PatchIds::new();
        }
        let mut befores = PatchIds::from_slice(befores);
        befores.append(&mut inode.held);
        inode.disk.size = size;
        let with_pointers = std::mem::take(&mut inode.is_ahead);
        let patch = self.put_size(inode, block, with_pointers, &befores);
        if let Some((tail, count)) = self.tail_of(inode) {
            // An allocation that came to nothing may have left more.
            self.cut_tail(inode, (tail, count));
        }
        let mut patches = PatchIds::from_slice(&[patch]);
        patches.extend(self.put_late(inode, PatchIds::from_slice(&[patch])));
        patches
    }

    /// Makes the file shorter: one patch of its length and of all pointers in the inode that it does not need any more.
    fn shorten(&self, inode: &mut Inode, block: &Block, size: u64, befores: &[PatchId]) -> Result<PatchIds> {
        self.settle_late(inode);
        let mut befores = PatchIds::from_slice(befores);
        befores.append(&mut inode.held);
        let (mut lost, mut fragments) = self.lose(inode, size);
        let mut failed = None;
        if inode.has_length_first() {
            let cleared = self.clear_behind(inode, self.blocks_of(size), &befores);
            for (start, levels) in cleared.unreachable {
                fragments += if levels == 0 { self.per_block() } else { 0 };
                lost.push(if levels == 0 {
                    Lost::Run(start, self.per_block())
                } else {
                    Lost::Tree(start, levels)
                });
            }
            (befores, failed) = (cleared.befores, cleared.failed);
        }
        inode.disk.size = size;
        inode.last = None;
        let with_pointers = std::mem::take(&mut inode.is_ahead) || !lost.is_empty();
        let patch = self.put_size(inode, block, with_pointers, &befores);
        inode.tail = self.tail_of(inode);
        let mut freed = fragments;
        for lost in lost {
            let done = match lost {
                Lost::Run(start, count) => self
                    .check_range(inode.ino, start, count)
                    .and_then(|()| self.free(start, count, Some(patch))),
                Lost::Tree(root, levels) => {
                    self.free_tree(inode, root, levels, Some(patch)).map(|count| freed += count)
                }
            };
            if let Err(error) = done {
                // The rest leaks.
                failed.get_or_insert(error);
            }
        }
        if freed > 0 {
            self.sub_sectors(inode, freed)?;
        }
        failed.map_or(Ok(PatchIds::from_slice(&[patch])), Err)
    }

    /// Takes out of the inode, in memory, what a file of `size` bytes does not need; returns it, and how many fragments of it lie in
    /// runs.
    fn lose(&self, inode: &mut Inode, size: u64) -> (Vec<Lost>, u64) {
        let (keeps, per_block) = (self.blocks_of(size), self.per_block());
        let mut lost = Vec::new();
        let mut fragments = 0;
        for at in 0..to_u64(DIRECT) {
            let start = inode.disk.direct[idx64(at)];
            if start == 0 {
                continue;
            }
            let has = self.allocated_len(inode, at);
            let needs = match at + 1 {
                next if next < keeps => per_block,
                next if next == keeps => self.block_len(size, at),
                _ => 0,
            };
            if needs < has {
                lost.push(Lost::Run(start + needs, has - needs));
                fragments += has - needs;
            }
            if needs == 0 {
                inode.disk.direct[idx64(at)] = 0;
            }
        }
        for slot in 0..INDIRECT {
            let root = inode.disk.indirect[slot];
            if root != 0 && tree_span(DIRECT + slot, self.pointers()).0 >= keeps {
                lost.push(Lost::Tree(root, slot + 1));
                inode.disk.indirect[slot] = 0;
            }
        }
        (lost, fragments)
    }
}

/// The flags of the disk with those that users change as `flags` has them.
fn changed_flags(now: u32, flags: InodeFlags) -> u32 {
    use super::layout::inode::flag;
    let pairs = [
        (flag::NODUMP, flag::NODUMP, InodeFlags::NODUMP),
        (flag::IMMUTABLE, flag::USER_IMMUTABLE, InodeFlags::IMMUTABLE),
        (flag::APPEND, flag::USER_APPEND, InodeFlags::APPEND),
    ];
    pairs.into_iter().fold(now, |now, (any, users, ours)| match (now & any != 0, flags.has(ours)) {
        (false, true) => now | users,
        (true, false) => now & !any,
        _ => now,
    })
}
