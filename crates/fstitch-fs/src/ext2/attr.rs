//! Changing attributes: each field a minimal patch of its own, so that independent changes stay independent.
//! Fields that lie side by side and change together share one.

use fstitch_core::{Errno, FileKind, Result, Timestamp};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};
use smallvec::SmallVec;

use super::inode::Inode;
use super::layout::Field;
use super::layout::feature::ro_compat;
use super::layout::inode as raw;
use super::num::{high16, low16, low32};
use super::times;
use super::volume::Ext2;
use crate::uhfs::AttrChange;

/// `chattr` flags that users may change: secure deletion, undelete, compress, sync, immutable, append, nodump,
/// noatime, journal data, notail, dirsync, topdir.
const USER_FLAGS: u32 = 0x0003_c0ff;
/// Files at least this long need the `large_file` feature.
const LARGE_FILE: u64 = 1 << 31;

/// A changed field.
#[derive(Clone, Copy, Debug)]
struct Edit {
    at: u16,
    len: u8,
    value: [u8; 4],
}

impl Edit {
    fn new(at: usize, value: &[u8]) -> Self {
        let mut bytes = [0; 4];
        bytes[..value.len()].copy_from_slice(value);
        let at = u16::try_from(at).expect("a place in an inode");
        Self { at, len: u8::try_from(value.len()).expect("a field"), value: bytes }
    }

    fn at(self) -> usize {
        usize::from(self.at)
    }

    fn bytes(&self) -> &[u8] {
        &self.value[..usize::from(self.len)]
    }
}

/// Changed fields of an inode.
#[derive(Debug, Default)]
struct Edits(SmallVec<[Edit; 12]>);

impl Edits {
    fn u16(&mut self, field: Field<u16>, value: u16) {
        self.0.push(Edit::new(field.offset(), &value.to_le_bytes()));
    }

    fn u32(&mut self, field: Field<u32>, value: u32) {
        self.0.push(Edit::new(field.offset(), &value.to_le_bytes()));
    }

    /// Leaves out what is unchanged, and brings the rest in order of its places.
    fn changed(mut self, now: &[u8]) -> Self {
        self.0.retain(|edit| now[edit.at()..edit.at() + edit.bytes().len()] != *edit.bytes());
        self.0.sort_unstable_by_key(|edit| edit.at);
        self
    }

    /// Changed bytes, neighbours joined.
    fn runs(&self) -> impl Iterator<Item = (usize, SmallVec<[u8; 16]>)> + '_ {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (first, mut more) = rest.split_first()?;
            let mut run = SmallVec::from_slice(first.bytes());
            while let Some((next, behind)) = more.split_first()
                && next.at() == first.at() + run.len()
            {
                run.extend_from_slice(next.bytes());
                more = behind;
            }
            rest = more;
            Some((first.at(), run))
        })
    }
}

impl Ext2 {
    /// Changes attributes after `befores`. Returns the patches.
    pub(super) fn change_attr(
        &self,
        inode: &mut Inode,
        change: &AttrChange,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        if self.changes_nothing(inode, change) {
            return Ok(PatchIds::new());
        }
        let mut befores = PatchIds::from_slice(befores);
        if change.nlink.is_some() || change.size.is_some() {
            self.watch.inode(inode.ino);
        }
        if let Some(size) = change.size {
            self.check_size(inode, size, &mut befores)?;
            self.before_end(inode, size, &mut befores)?;
        }
        let old_size = inode.disk.size;
        let block = self.inode_block(inode)?;
        if let Some(size) = only_size(change)
            && size >> 32 == inode.disk.size >> 32
        {
            // What every appending write does.
            if size == inode.disk.size {
                return Ok(PatchIds::new());
            }
            inode.disk.size = size;
            let mut tx = self.cache.lock();
            let patch = inode.put(&mut tx, &block, (raw::I_SIZE, low32(size)), &befores);
            self.note_end(&tx, inode, (old_size, patch));
            drop(tx);
            self.remember(inode);
            return Ok(PatchIds::from_slice(&[patch]));
        }
        let had_names = inode.disk.nlink > 0;
        let mut edits = Edits::default();
        self.edit_owner_and_mode(inode, change, &mut edits)?;
        let fields = edits.0.len();
        self.edit_times(inode, change, &mut edits);
        if had_names && inode.disk.nlink == 0 {
            // It stays in memory until its end, which sets a time anyway, and after a crash nobody sees it.
            edits.0.truncate(fields);
        }
        let high = change.size.is_some_and(|size| edit_size(inode, size, &mut edits));
        let mut tx = self.cache.lock();
        let edits = edits.changed(&tx.data(&block)[inode.at.1..]);
        let mut patches = PatchIds::new();
        for (at, bytes) in edits.runs() {
            // Times wait for nothing, whatever else changes with them.
            let befores = if is_time(at, at + bytes.len()) { &[] } else { &befores[..] };
            let patch = inode.put_bytes(&mut tx, &block, (at, &bytes), befores);
            patches.push(patch);
            if (at..at + bytes.len()).contains(&raw::I_SIZE.offset()) && inode.disk.size != old_size {
                self.note_end(&tx, inode, (old_size, patch));
            }
        }
        if high {
            let patch = put_both_halves(&mut tx, inode, &block, &befores);
            patches.push(patch);
            self.note_end(&tx, inode, (old_size, patch));
        }
        drop(tx);
        match (had_names, inode.disk.nlink > 0) {
            (true, false) => self.enter_orphan(inode, &block),
            (false, true) => self.leave_orphans(inode, &block)?,
            _ => {}
        }
        self.remember(inode);
        Ok(patches)
    }

    /// Whether only times are to change, and have these values already: the clock goes in steps.
    fn changes_nothing(&self, inode: &Inode, change: &AttrChange) -> bool {
        let AttrChange {
            size: None,
            perm: None,
            uid: None,
            gid: None,
            project: None,
            nlink: None,
            flags: None,
            ..
        } = change
        else {
            return false;
        };
        let disk = &inode.disk;
        let same = |time: Option<Timestamp>, more: Field<u32>, kept: Timestamp| {
            let extra = raw::has_extra(disk.extra_isize, more.end());
            time.is_none_or(|time| times::rounded(time, extra) == kept)
        };
        same(change.atime, raw::I_ATIME_EXTRA, disk.atime)
            && same(change.mtime, raw::I_MTIME_EXTRA, disk.mtime)
            && same(change.ctime, raw::I_CTIME_EXTRA, disk.ctime)
    }

    fn check_size(&self, inode: &Inode, size: u64, befores: &mut PatchIds) -> Result<()> {
        if size > inode.disk.size_max(self.sb.block_size) {
            return Err(Errno::FBIG.into());
        }
        if size >= LARGE_FILE && inode.disk.kind == FileKind::Regular {
            // The feature bit before its first use.
            let feature = self.need_ro_compat(ro_compat::LARGE_FILE).map_err(|_| Errno::FBIG)?;
            befores.push(feature);
        }
        Ok(())
    }

    fn edit_owner_and_mode(&self, inode: &mut Inode, change: &AttrChange, edits: &mut Edits) -> Result<()> {
        let disk = &mut inode.disk;
        if let Some(nlink) = change.nlink {
            let uncounted = disk.kind == FileKind::Directory && !self.counts_directories();
            if nlink > self.link_max() && !uncounted {
                return Err(Errno::MLINK.into());
            }
            // A directory with more than can be counted has 1 for good.
            disk.nlink = if nlink > self.link_max() { 1 } else { low16(nlink) };
            edits.u16(raw::I_LINKS_COUNT, disk.nlink);
        }
        if let Some(perm) = change.perm {
            disk.perm = perm & 0o7777;
            edits.u16(raw::I_MODE, disk.kind.mode_bits() | disk.perm);
        }
        if let Some(uid) = change.uid {
            disk.uid = uid;
            edits.u16(raw::I_UID, low16(uid));
            edits.u16(raw::I_UID_HIGH, high16(uid));
        }
        if let Some(gid) = change.gid {
            disk.gid = gid;
            edits.u16(raw::I_GID, low16(gid));
            edits.u16(raw::I_GID_HIGH, high16(gid));
        }
        if let Some(project) = change.project {
            disk.projid = project;
            edits.u32(raw::I_PROJID, project);
        }
        if let Some(flags) = change.flags {
            let mut own = USER_FLAGS;
            if disk.kind == FileKind::Directory && self.sb.features.has_ro_compat(ro_compat::PROJECT) {
                own |= raw::PROJINHERIT_FL;
            }
            disk.flags = (disk.flags & !own) | (flags.0 & own);
            edits.u32(raw::I_FLAGS, disk.flags);
        }
        Ok(())
    }

    fn edit_times(&self, inode: &mut Inode, change: &AttrChange, edits: &mut Edits) {
        let extra_isize = inode.disk.extra_isize;
        let mut edit = |time: Option<Timestamp>, secs: Field<u32>, more: Field<u32>, kept: &mut Timestamp| {
            let Some(time) = time else { return };
            let extra = raw::has_extra(extra_isize, more.end());
            let (low, high) = times::encode(time, extra);
            *kept = times::decode(low, high);
            edits.u32(secs, low);
            if extra {
                edits.u32(more, high);
            }
        };
        let disk = &mut inode.disk;
        edit(change.atime, raw::I_ATIME, raw::I_ATIME_EXTRA, &mut disk.atime);
        edit(change.mtime, raw::I_MTIME, raw::I_MTIME_EXTRA, &mut disk.mtime);
        edit(change.ctime, raw::I_CTIME, raw::I_CTIME_EXTRA, &mut disk.ctime);
    }
}

/// The length, if nothing else is to change.
fn only_size(change: &AttrChange) -> Option<u64> {
    match *change {
        AttrChange {
            size,
            perm: None,
            uid: None,
            gid: None,
            project: None,
            is_limited: _,
            nlink: None,
            atime: None,
            mtime: None,
            ctime: None,
            flags: None,
        } => size,
        _ => None,
    }
}

/// Both halves of the length in one patch: between two, the file would have neither length.
fn put_both_halves(tx: &mut Tx<'_>, inode: &mut Inode, block: &Block, befores: &[PatchId]) -> PatchId {
    let (from, to) = (raw::I_SIZE.offset(), raw::I_SIZE_HIGH.end());
    let mut bytes = tx.data(block)[inode.at.1 + from..inode.at.1 + to].to_vec();
    bytes[..4].copy_from_slice(&low32(inode.disk.size).to_le_bytes());
    let tail = bytes.len() - 4;
    bytes[tail..].copy_from_slice(&low32(inode.disk.size >> 32).to_le_bytes());
    inode.put_bytes(tx, block, (from, &bytes), befores)
}

/// Whether there are only times in bytes `from..to` of an inode.
fn is_time(from: usize, to: usize) -> bool {
    (from >= raw::I_ATIME.offset() && to <= raw::I_MTIME.end())
        || (from >= raw::I_CTIME_EXTRA.offset() && to <= raw::I_PROJID.offset())
}

/// Edits the length; true if its high half changes, which takes both halves in one patch.
fn edit_size(inode: &mut Inode, size: u64, edits: &mut Edits) -> bool {
    let high_changes = size >> 32 != inode.disk.size >> 32;
    inode.disk.size = size;
    if high_changes {
        return true;
    }
    edits.u32(raw::I_SIZE, low32(size));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_what_is_unchanged_is_left_out() {
        let mut edits = Edits::default();
        edits.u32(raw::I_MTIME, 7);
        edits.u32(raw::I_CTIME, 6);
        edits.u32(raw::I_ATIME, 0);
        edits.u16(raw::I_UID, 5);
        let edits = edits.changed(&[0; 128]);
        let joined: Vec<_> = edits.runs().collect();
        let places: Vec<_> = joined.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(places, [(2, 2), (12, 8)]);
        assert_eq!(&joined[1].1[..], [6, 0, 0, 0, 7, 0, 0, 0]);
        assert!(
            !is_time(2, 4) && is_time(12, 20) && !is_time(4, 12) && !is_time(16, 24) && is_time(132, 140)
        );
    }
}
