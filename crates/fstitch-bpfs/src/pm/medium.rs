//! The memory itself: mapped, read by everybody, stored to by the gate alone, and written back line by line where that is needed.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockNo, Error, IoOp, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::source::Source;
use super::{BLOCK_BYTES, LINE};
use crate::log::Pages;

/// What a store that was followed by a fence survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: the memory goes with the process.
    None,
    /// The end of the process, however it comes; not of the machine.
    Process,
    /// A power cut.
    Power,
}

/// A region of memory.
pub struct Medium {
    base: NonNull<u8>,
    len: usize,
    durability: Durability,
    file: Option<Arc<File>>,
    write_back: WriteBack,
    /// Where what was not looked at yet comes from.
    source: Option<Source>,
}

/// How a line leaves the processor's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBack {
    /// It need not.
    Nothing,
    #[cfg(target_arch = "x86_64")]
    Clwb,
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

// SAFETY: the mapping belongs to this value alone, and its address is used only through `&self` for reading and `&mut self` for storing.
unsafe impl Send for Medium {}
// SAFETY: as above: whoever shares it only reads.
unsafe impl Sync for Medium {}

impl std::fmt::Debug for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Medium")
            .field("len", &self.len)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

fn failed(error: rustix::io::Errno) -> Error {
    Error::io(IoOp::Open, BlockNo(0), error.into())
}

/// Bytes of a file or a device. Files and disks say it by their end; a character device that is memory has none, and its driver says
/// it in the kernel's list of devices.
fn len_of(mut file: &File) -> std::io::Result<u64> {
    let about = file.metadata()?;
    if !about.file_type().is_char_device() {
        return file.seek(SeekFrom::End(0));
    }
    let device = about.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let said = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"))?;
    said.trim().parse().map_err(|_| std::io::ErrorKind::InvalidData.into())
}

impl Medium {
    /// So many bytes of volatile memory, all zeros.
    ///
    /// # Errors
    /// When there is no such memory.
    pub fn memory(len: u64) -> Result<Self> {
        let len = to_usize(len);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, wherever the kernel likes.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }.map_err(failed)?;
        Ok(Self::over(base.cast(), len, None, Durability::None, WriteBack::Nothing))
    }

    /// A copy of an image, in volatile memory.
    ///
    /// # Errors
    /// When there is no such memory.
    pub fn copy_of(image: &[u8]) -> Result<Self> {
        let mut medium = Self::memory(to_u64(image.len()))?;
        medium.store(0, image);
        Ok(medium)
    }

    /// So many pages of a device, each of which comes to memory when it is looked at, and so many bytes of contents that stay there. What
    /// is stored goes with the process, unless somebody writes it to the device.
    ///
    /// # Errors
    /// When there is no such memory.
    pub(crate) fn pages(pages: Pages, count: u64, durability: Durability, cache_size: u64) -> Result<Self> {
        let mut medium = Self::memory(count * BLOCK_BYTES)?;
        medium.durability = durability;
        // Pages come and go one by one, and a kernel that gives 2 MiB for each would take all of them.
        // SAFETY: as for `read_ahead`.
        let _ =
            unsafe { rustix::mm::madvise(medium.base.as_ptr().cast(), medium.len, Advice::LinuxNoHugepage) };
        medium.source = Some(Source::new(pages, count, cache_size));
        Ok(medium)
    }

    /// Brings bytes of the device to memory, if that was not done yet.
    ///
    /// # Errors
    /// Those of the device.
    #[inline]
    pub(super) fn load(&self, at: u64, len: usize) -> Result<()> {
        let Some(source) = &self.source else { return Ok(()) };
        source.load(at, len, |from, bytes| self.loaded(from, bytes))
    }

    /// Bytes have come from the device.
    fn loaded(&self, from: u64, bytes: &[u8]) {
        let from = to_usize(from);
        assert!(bytes.len() <= self.len && from <= self.len - bytes.len(), "bytes at {from} of {}", self.len);
        // SAFETY: inside the mapping. Nobody has a slice of it or stores to it: both load it before, this is done once, and not at all if
        // somebody has a slice because it failed.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(from), bytes.len()) }
    }

    /// A page holds what leads to contents.
    #[inline]
    pub(super) fn hold(&self, page: u64) {
        if let Some(source) = &self.source {
            source.hold(page);
        }
    }

    /// A page holds contents of a file, or what is nobody's.
    #[inline]
    pub(super) fn may_go(&self, page: u64) {
        if let Some(source) = &self.source {
            source.may_go(page);
        }
    }

    /// Bytes of the device that are in memory, if that is where they come from.
    pub(super) fn in_memory(&self) -> Option<u64> {
        self.source.as_ref().map(|source| source.len() * BLOCK_BYTES)
    }

    /// Whether there is more in memory that may go than is wanted there.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.source.as_ref().is_some_and(Source::is_full)
    }

    /// Lets go what `is_home` says the device has as well, page by page.
    pub(super) fn let_go(&mut self, is_home: &dyn Fn(u64) -> bool) {
        let Some(source) = &self.source else { return };
        source.let_go(is_home, |pages| {
            let (from, end) = (to_usize(pages.start * BLOCK_BYTES), to_usize(pages.end * BLOCK_BYTES));
            assert!(from <= end && end <= self.len, "bytes {from} to {end} of {}", self.len);
            // SAFETY: inside the mapping, which is anonymous and private, so that these bytes are zeros now, and no page of it is borrowed:
            // this is exclusive.
            // A program that has locked its memory keeps what the device has as well.
            let _ = unsafe {
                let at = self.base.as_ptr().add(from);
                rustix::mm::madvise(at.cast(), end - from, Advice::LinuxDontNeed)
            };
        });
    }

    /// The same where nobody can be told of a failure now: it is kept, and what is not there reads as zeros. Memory itself, which has no
    /// source, is read with every step of every operation, so nothing is called for it.
    #[inline]
    fn bring(&self, at: u64, len: usize) {
        if let Some(source) = &self.source {
            self.bring_from(source, at, len);
        }
    }

    fn bring_from(&self, source: &Source, at: u64, len: usize) {
        if let Err(error) = self.load(at, len) {
            source.failed(at, len, error);
        }
    }

    /// The same before some bytes are stored.
    #[inline]
    fn bring_around(&self, at: usize, len: usize) {
        if let Some(source) = &self.source {
            let loaded = source.load_around(to_u64(at), len, |from, bytes| self.loaded(from, bytes));
            loaded.unwrap_or_else(|error| source.failed(to_u64(at), len, error));
        }
    }

    /// Why something was zeros, if so.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.source.as_ref().and_then(Source::take_failure)
    }

    /// A file, as far as it goes, or a device. On a file system that maps persistent memory itself (DAX), and on a device that is such
    /// memory (`/dev/dax0.0`), stores survive a power cut; else they are in the kernel's memory when the process ends, and a sync writes
    /// them to the disk, in no order. With `read_only`, a copy in memory changes, and the file does not.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn file(file: File, read_only: bool) -> Result<Self> {
        let len = len_of(&file).map_err(|error| Error::io(IoOp::Open, BlockNo(0), error))?;
        let len = to_usize(len);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping. The image's lock keeps other programs of ours from the file; what strangers write to it while it is
        // mapped is damage, as on any disk, and is looked at as damage: no bytes of the mapping are trusted.
        let map = |flags| unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &file, 0) };
        if read_only {
            let base = map(MapFlags::PRIVATE).map_err(failed)?;
            return Ok(Self::over(base.cast(), len, None, Durability::None, WriteBack::Nothing));
        }
        if let (Ok(base), Some(write_back)) =
            (map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC), WriteBack::detect())
        {
            return Ok(Self::over(base.cast(), len, Some(Arc::new(file)), Durability::Power, write_back));
        }
        let base = map(MapFlags::SHARED).map_err(failed)?;
        Ok(Self::over(base.cast(), len, Some(Arc::new(file)), Durability::Process, WriteBack::Nothing))
    }

    fn over(
        base: *mut u8,
        len: usize,
        file: Option<Arc<File>>,
        durability: Durability,
        write_back: WriteBack,
    ) -> Self {
        let base = NonNull::new(base).expect("a mapping is not at address 0");
        let medium = Self { base, len, durability, file, write_back, source: None };
        medium.read_ahead(false);
        medium
    }

    /// Whether a look at some bytes is likely to be followed by one at those behind them. Not until somebody says so: whoever opens a volume
    /// looks at blocks of pointers, which lie between blocks of contents, and a kernel that reads around each reads all of it from the disk.
    pub(super) fn read_ahead(&self, behind: bool) {
        if let Some(source) = &self.source {
            return source.read_ahead(behind);
        }
        let advice = if behind { Advice::Normal } else { Advice::Random };
        // SAFETY: the mapping is this value's, and the advice changes no bytes of it. A kernel that cannot take it is as right as before.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) };
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> u64 {
        to_u64(self.len)
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What stores survive.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The first block.
    pub(crate) fn head(&self) -> &[u8] {
        self.bytes(0, super::BLOCK)
    }

    /// Some bytes.
    ///
    /// # Panics
    /// If they are not all inside: whoever calls has compared numbers from the medium with its length.
    pub(super) fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let at = to_usize(at);
        assert!(len <= self.len && at <= self.len - len, "{len} bytes at {at} of {}", self.len);
        self.bring(to_u64(at), len);
        // SAFETY: inside the mapping, which lives as long as this borrow; stores need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }
    }

    /// Stores bytes that nobody reaches, in any order.
    pub(super) fn store(&mut self, at: u64, bytes: &[u8]) {
        let at = to_usize(at);
        assert!(
            bytes.len() <= self.len && at <= self.len - bytes.len(),
            "{} bytes at {at} of {}",
            bytes.len(),
            self.len
        );
        self.bring_around(at, bytes.len());
        // SAFETY: inside the mapping; `bytes` is not of it, because it is borrowed and this is exclusive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
    }

    /// Stores an aligned word at once.
    pub(super) fn store_word(&mut self, at: u64, word: u64) {
        let place = self.place(at, 8);
        // SAFETY: aligned, inside the mapping (`place`), and used by nobody else meanwhile.
        unsafe { AtomicU64::from_ptr(place.cast()) }.store(word.to_le(), Ordering::Release);
    }

    /// Stores an aligned half of a word at once.
    pub(super) fn store_half(&mut self, at: u64, half: u32) {
        let place = self.place(at, 4);
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(place.cast()) }.store(half.to_le(), Ordering::Release);
    }

    fn place(&mut self, at: u64, size: usize) -> *mut u8 {
        let at = to_usize(at);
        assert!(
            at.is_multiple_of(size) && at < self.len && self.len - at >= size,
            "a word at {at} of {}",
            self.len
        );
        self.bring_around(at, size);
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Begins to write back lines, by their numbers.
    pub(super) fn write_back(&self, lines: Range<u64>) {
        if self.write_back != WriteBack::Nothing {
            lines.for_each(|line| self.write_back.line(&self.bytes(line * LINE, 1)[0]));
        }
    }

    /// What was begun to be written back is durable when this returns.
    pub(super) fn drain(&self) {
        match self.write_back {
            // The order in which a process that ends leaves its stores is that of the program.
            WriteBack::Nothing => fence(Ordering::Release),
            // SAFETY: every processor of this kind has it.
            #[cfg(target_arch = "x86_64")]
            _ => unsafe { std::arch::x86_64::_mm_sfence() },
        }
    }

    /// The file whose contents the kernel writes to a disk when it is asked to, if stores do not survive a power cut by themselves.
    pub(super) fn behind(&self) -> Option<&Arc<File>> {
        self.file.as_ref().filter(|_| self.durability == Durability::Process)
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no borrow outlives it. There is nobody to tell of a failure, which leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl WriteBack {
    /// Has a line leave the caches, some time before the next drain.
    fn line(self, line: &u8) {
        match self {
            Self::Nothing => {}
            // SAFETY: the line is mapped, and the instruction was seen to be there.
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => unsafe {
                std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Clflushopt => unsafe {
                std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            },
            // SAFETY: every processor of this kind has it.
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => unsafe { std::arch::x86_64::_mm_clflush(std::ptr::from_ref(line)) },
        }
    }

    /// The instruction that costs least.
    #[cfg(target_arch = "x86_64")]
    fn detect() -> Option<Self> {
        let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
        Some(match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => Self::Clwb,
            (_, 1) => Self::Clflushopt,
            _ => Self::Clflush,
        })
    }

    /// On other processors memory that is persistent by itself is not used as such.
    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

    use fstitch_core::MemDevice;

    use super::*;

    /// What memory has, whether it should be there or not.
    fn in_memory(medium: &Medium, page: usize) -> u8 {
        // SAFETY: inside the mapping, and nobody stores to it.
        unsafe { *medium.base.as_ptr().add(page * super::super::BLOCK) }
    }

    fn all(medium: &Medium) -> Vec<u8> {
        (0..medium.len / super::super::BLOCK).map(|page| in_memory(medium, page)).collect()
    }

    #[test]
    fn what_is_not_held_goes_when_the_device_has_it_and_nothing_else_does() {
        let image: Vec<u8> = (1..=64).flat_map(|page| [page; super::super::BLOCK]).collect();
        let device: Arc<dyn fstitch_core::BlockDevice> = Arc::new(MemDevice::from_image(512, image));
        let pages = Pages::new(device).unwrap();
        let mut medium = Medium::pages(pages, 64, Durability::Power, 0).unwrap();
        // Alone before files are looked at, and with others behind that.
        medium.load(3 * BLOCK_BYTES, 1).unwrap();
        medium.read_ahead(true);
        medium.load(20 * BLOCK_BYTES, 1).unwrap();
        let expected = |page: u8| if page == 4 || (17..=32).contains(&page) { page } else { 0 };
        assert_eq!(all(&medium), (1..=64).map(expected).collect::<Vec<_>>());
        assert!(!medium.is_full());
        // A page that is stored whole is not read; one that is stored to in part is.
        medium.hold(40);
        medium.store(40 * BLOCK_BYTES, &[99; super::super::BLOCK]);
        assert_eq!((in_memory(&medium, 40), in_memory(&medium, 41)), (99, 0));
        medium.hold(18);
        medium.store_word(18 * BLOCK_BYTES + 8, 7);
        assert!(!medium.is_full());
        medium.load(63 * BLOCK_BYTES, 1).unwrap();
        assert!(medium.is_full());
        medium.let_go(&|page| page != 17);
        let left: Vec<_> = all(&medium).into_iter().enumerate().filter(|(_, byte)| *byte != 0).collect();
        // What leads to files was at 3; 17 is not home; 18 and 40 are held.
        assert_eq!(left, [(3, 4), (17, 18), (18, 19), (40, 99)]);
        // They come back.
        assert_eq!(medium.bytes(20 * BLOCK_BYTES, 1), [21]);
        medium.may_go(40);
        assert!(!medium.is_full());
        assert_eq!(medium.bytes(63 * BLOCK_BYTES, 1), [64]);
        assert!(medium.is_full());
        medium.let_go(&|page| page != 17);
        assert_eq!(in_memory(&medium, 40), 0);
        assert_eq!(medium.bytes(18 * BLOCK_BYTES + 8, 8), 7_u64.to_le_bytes());
    }

    /// Held twice, or let go of before it comes: what is counted is what is in memory and may go.
    #[test]
    fn what_may_go_is_counted_once() {
        let device: Arc<dyn fstitch_core::BlockDevice> = Arc::new(MemDevice::new(512, 64 * 8));
        let mut medium = Medium::pages(Pages::new(device).unwrap(), 64, Durability::Power, 0).unwrap();
        medium.read_ahead(true);
        for _ in 0..2 {
            (0..64).for_each(|page| medium.hold(page));
            medium.load(0, 64 * super::super::BLOCK).unwrap();
            assert!(!medium.is_full());
            (0..17).for_each(|page| medium.may_go(page));
            (0..17).for_each(|page| medium.may_go(page));
            assert!(medium.is_full());
            medium.hold(16);
            assert!(!medium.is_full());
            medium.may_go(16);
            medium.let_go(&|_| true);
            assert!(!medium.is_full() && medium.in_memory() == Some(47 * BLOCK_BYTES));
        }
    }
}
