//! Inodes by their bytes: fields are read and written one by one, for what a damaged inode says may not be believed as a whole.

use fstitch_core::num::to_usize;
use fstitch_core::{FileKind, Timestamp};

use crate::ufs::layout::inode::{DIRECT, EXTRA, INDIRECT};
use crate::ufs::layout::superblock::{Superblock, Version};
use crate::ufs::order::Order;

/// Pointers of an inode.
pub(super) const SLOTS: usize = DIRECT + INDIRECT;
/// The bits of a mode that hold the kind.
pub(super) const KIND_MASK: u16 = 0o170_000;
/// The mode of a directory, without permissions.
pub(super) const DIRECTORY_MODE: u16 = 0o040_000;

const MODE_AT: usize = 0;
const LINKS_AT: usize = 2;
/// Bytes of a block, which UFS2 has in each inode.
const BLOCK_SIZE_AT: usize = 12;
/// Bytes and pointers of extended attributes, in UFS2.
const EXTRA_SIZE_AT: usize = 92;
const EXTRA_AT: usize = 96;

/// Where the fields are.
struct Places {
    size: usize,
    sectors: usize,
    pointers: usize,
    flags: usize,
    generation: usize,
    /// Seconds of access, modification, change, creation.
    seconds: &'static [usize],
    nanos: &'static [usize],
}

static ONE: Places = Places {
    size: 8,
    sectors: 104,
    pointers: 40,
    flags: 100,
    generation: 108,
    seconds: &[16, 24, 32],
    nanos: &[20, 28, 36],
};

static TWO: Places = Places {
    size: 16,
    sectors: 24,
    pointers: 112,
    flags: 88,
    generation: 80,
    seconds: &[32, 40, 48, 56],
    nanos: &[68, 64, 72, 76],
};

/// An inode's bytes.
#[derive(Clone)]
pub(super) struct RawInode {
    pub(super) bytes: Vec<u8>,
    order: Order,
    version: Version,
}

impl RawInode {
    /// The inode in `bytes`, which are as many as an inode has.
    pub(super) fn new(bytes: Vec<u8>, shape: &Superblock) -> Self {
        Self { bytes, order: shape.order, version: shape.version }
    }

    fn places(&self) -> &'static Places {
        match self.version {
            Version::One => &ONE,
            Version::Two => &TWO,
        }
    }

    fn is_two(&self) -> bool {
        self.version == Version::Two
    }

    /// A number of 4 bytes in UFS1, of 8 in UFS2.
    fn wide(&self, at: usize) -> u64 {
        if self.is_two() { self.order.u64(&self.bytes, at) } else { self.order.u32(&self.bytes, at).into() }
    }

    fn put_wide(&mut self, at: usize, value: u64) {
        if self.is_two() {
            self.order.put_u64(&mut self.bytes, at, value);
        } else {
            self.order.put_u32(&mut self.bytes, at, u32::try_from(value).unwrap_or(u32::MAX));
        }
    }

    pub(super) fn mode(&self) -> u16 {
        self.order.u16(&self.bytes, MODE_AT)
    }

    pub(super) fn set_mode(&mut self, mode: u16) {
        self.order.put_u16(&mut self.bytes, MODE_AT, mode);
    }

    /// Makes it one of this kind. Permissions stay; if there are none, and no kind, the owner gets them.
    pub(super) fn set_kind(&mut self, kind: FileKind) {
        let perm = match (self.mode(), kind) {
            (0, FileKind::Directory) => 0o700,
            (0, _) => 0o600,
            (mode, _) => mode & !KIND_MASK,
        };
        self.set_mode(kind.mode_bits() | perm);
    }

    /// What it is; `None` for a mode that nothing has.
    pub(super) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode())
    }

    pub(super) fn links(&self) -> u16 {
        self.order.u16(&self.bytes, LINKS_AT)
    }

    pub(super) fn set_links(&mut self, links: u16) {
        self.order.put_u16(&mut self.bytes, LINKS_AT, links);
    }

    pub(super) fn size(&self) -> u64 {
        self.order.u64(&self.bytes, self.places().size)
    }

    pub(super) fn set_size(&mut self, size: u64) {
        let at = self.places().size;
        self.order.put_u64(&mut self.bytes, at, size);
    }

    pub(super) fn sectors(&self) -> u64 {
        self.wide(self.places().sectors)
    }

    pub(super) fn set_sectors(&mut self, sectors: u64) {
        self.put_wide(self.places().sectors, sectors);
    }

    pub(super) fn flags(&self) -> u32 {
        self.order.u32(&self.bytes, self.places().flags)
    }

    pub(super) fn set_flags(&mut self, flags: u32) {
        let at = self.places().flags;
        self.order.put_u32(&mut self.bytes, at, flags);
    }

    fn pointer_at(&self, base: usize, slot: usize) -> usize {
        base + slot * to_usize(self.version.pointer_size())
    }

    /// Pointer `slot`: 12 to blocks, then to blocks of pointers.
    pub(super) fn slot(&self, slot: usize) -> u64 {
        self.wide(self.pointer_at(self.places().pointers, slot))
    }

    pub(super) fn set_slot(&mut self, slot: usize, pointer: u64) {
        self.put_wide(self.pointer_at(self.places().pointers, slot), pointer);
    }

    /// Whether any pointer from `first` on is not zero.
    pub(super) fn has_slots_from(&self, first: usize) -> bool {
        (first..SLOTS).any(|slot| self.slot(slot) != 0)
    }

    pub(super) fn clear_slots_from(&mut self, first: usize) {
        (first..SLOTS).for_each(|slot| self.set_slot(slot, 0));
    }

    /// Whether the device's number is that of no device.
    pub(super) fn is_no_device(&self) -> bool {
        self.slot(0) == if self.is_two() { u64::MAX } else { u32::MAX.into() }
    }

    /// The bytes of the pointers, where the target of a short symbolic link is.
    pub(super) fn target_room(&self) -> &[u8] {
        let at = self.places().pointers;
        &self.bytes[at..at + SLOTS * to_usize(self.version.pointer_size())]
    }

    /// Writes the target of a short symbolic link.
    pub(super) fn put_target(&mut self, target: &[u8]) {
        self.clear_slots_from(0);
        let at = self.places().pointers;
        self.bytes[at..at + target.len()].copy_from_slice(target);
    }

    /// Bytes of extended attributes.
    pub(super) fn extra_size(&self) -> u32 {
        if self.is_two() { self.order.u32(&self.bytes, EXTRA_SIZE_AT) } else { 0 }
    }

    pub(super) fn set_extra_size(&mut self, size: u32) {
        if self.is_two() {
            self.order.put_u32(&mut self.bytes, EXTRA_SIZE_AT, size);
        }
    }

    /// Pointer `slot` of extended attributes.
    pub(super) fn extra(&self, slot: usize) -> u64 {
        if self.is_two() { self.order.u64(&self.bytes, EXTRA_AT + slot * 8) } else { 0 }
    }

    pub(super) fn set_extra(&mut self, slot: usize, pointer: u64) {
        if self.is_two() {
            self.order.put_u64(&mut self.bytes, EXTRA_AT + slot * 8, pointer);
        }
    }

    /// Whether it is one that nobody has: what a system leaves in such, it does not look at.
    pub(super) fn is_blank(&self) -> bool {
        self.mode() == 0 && self.size() == 0 && !self.has_slots_from(0)
    }

    /// Makes it one that nobody has. Its generation stays: whoever remembers the file must not take the next one for it.
    pub(super) fn clear(&mut self) {
        let at = self.places().generation;
        let generation = self.order.u32(&self.bytes, at);
        self.bytes.fill(0);
        self.order.put_u32(&mut self.bytes, at, generation);
    }

    /// Makes it a directory of one block, made now, that belongs to the superuser.
    pub(super) fn become_directory(&mut self, mode: u16, block_size: u32, now: Timestamp) {
        self.clear();
        self.set_mode(DIRECTORY_MODE | mode);
        self.set_links(2);
        let places = self.places();
        for (&secs, &nanos) in places.seconds.iter().zip(places.nanos) {
            if self.is_two() {
                self.order.put_u64(&mut self.bytes, secs, now.secs.cast_unsigned());
            } else {
                let fits = i32::try_from(now.secs).unwrap_or(i32::MAX);
                self.order.put_u32(&mut self.bytes, secs, fits.cast_unsigned());
            }
            self.order.put_u32(&mut self.bytes, nanos, now.nanos);
        }
        if self.is_two() {
            self.order.put_u32(&mut self.bytes, BLOCK_SIZE_AT, block_size);
        }
    }
}

/// Extended attributes have so many pointers.
pub(super) const EXTRA_SLOTS: usize = EXTRA;
