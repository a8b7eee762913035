//! Where a medium's bytes come from that nobody has looked at yet: a device, page by page or some pages at a time.
//!
//! What leads to contents is looked at by every mount and stays. Contents may go again, when there are more of them in memory than somebody
//! wants there, as soon as the device has the same.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, Error, Result};

use super::BLOCK_BYTES;
use crate::log::Pages;

/// Pages that come at once where those behind are likely to be looked at.
const CHUNK: u64 = 16;
/// Locks for loading; chunks share them.
const LOCKS: usize = 64;

/// Pages, a bit for each.
struct Set(Vec<AtomicU64>);

impl Set {
    fn new(count: u64) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn has(&self, page: u64) -> bool {
        self.0[to_usize(page / 64)].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    /// Adds a page; whether it was missing.
    fn add(&self, page: u64) -> bool {
        self.0[to_usize(page / 64)].fetch_or(1 << (page % 64), Ordering::Release) >> (page % 64) & 1 == 0
    }

    /// Takes a page out; whether it was there.
    fn remove(&self, page: u64) -> bool {
        self.0[to_usize(page / 64)].fetch_and(!(1 << (page % 64)), Ordering::Release) >> (page % 64) & 1 == 1
    }
}

/// A device, and which pages of it are in memory.
pub(super) struct Source {
    pages: Pages,
    count: u64,
    /// Set behind a page's bytes.
    loaded: Set,
    /// Those of them that hold contents: not more than `contents_max` stay.
    contents: Set,
    contents_len: AtomicU64,
    contents_max: u64,
    /// As many are too many.
    too_many: AtomicU64,
    /// Where the next look for pages that can go begins.
    hand: AtomicU64,
    loading: [Mutex<(), rank::Epoch>; LOCKS],
    ahead: AtomicBool,
    failed: Mutex<Option<Error>, rank::Leaf>,
}

impl Source {
    /// So many pages of a device, of which none is in memory, and so many bytes of contents to be in memory.
    pub(super) fn new(pages: Pages, count: u64, cache_size: u64) -> Self {
        let contents_max = (cache_size / BLOCK_BYTES).max(CHUNK);
        Self {
            pages,
            count,
            loaded: Set::new(count),
            contents: Set::new(count),
            contents_len: AtomicU64::new(0),
            contents_max,
            too_many: AtomicU64::new(contents_max),
            hand: AtomicU64::new(0),
            loading: std::array::from_fn(|_| Mutex::new(())),
            ahead: AtomicBool::new(false),
            failed: Mutex::new(None),
        }
    }

    /// Whether pages come alone, or with those around them. What comes with others is contents: all that leads to contents was looked at
    /// before.
    pub(super) fn read_ahead(&self, behind: bool) {
        self.ahead.store(behind, Ordering::Relaxed);
    }

    /// Brings the pages of some bytes to memory by `put`, each once.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn load(&self, at: u64, len: usize, mut put: impl FnMut(u64, &[u8])) -> Result<()> {
        let wanted = pages_of(at, len);
        if wanted.clone().all(|page| self.loaded.has(page)) {
            return Ok(());
        }
        let ahead = self.ahead.load(Ordering::Relaxed);
        for chunk in wanted.start / CHUNK..wanted.end.div_ceil(CHUNK) {
            let all = chunk * CHUNK..self.count.min((chunk + 1) * CHUNK);
            let some = wanted.start.max(all.start)..wanted.end.min(all.end);
            let _alone = self.loading[to_usize(chunk) % LOCKS].lock();
            self.load_missing(if ahead { all } else { some }, ahead, &mut put)?;
        }
        Ok(())
    }

    /// Loads those of a chunk's pages that are not in memory. A page that is may be on its way to the device, and is not read.
    fn load_missing(
        &self,
        mut pages: Range<u64>,
        are_contents: bool,
        put: &mut impl FnMut(u64, &[u8]),
    ) -> Result<()> {
        while let Some(first) = pages.find(|page| !self.loaded.has(*page)) {
            let end = pages.find(|page| self.loaded.has(*page)).unwrap_or(pages.end);
            let mut bytes = vec![0; to_usize((end - first) * BLOCK_BYTES)];
            self.pages.read(first, BlockKind::Data, &mut bytes)?;
            for (page, bytes) in (first..end).zip(bytes.chunks_exact(to_usize(BLOCK_BYTES))) {
                // Memory is zeros, and stays without pages of its own where the device is zeros.
                if bytes.iter().any(|byte| *byte != 0) {
                    put(page * BLOCK_BYTES, bytes);
                }
                self.loaded.add(page);
                if are_contents {
                    self.has_contents(page);
                }
            }
        }
        Ok(())
    }

    /// Some bytes are about to be stored, by somebody who alone has the memory: pages that are stored whole need not come, those at the
    /// edges do. Whether they are contents is to be said anew.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn load_around(&self, at: u64, len: usize, mut put: impl FnMut(u64, &[u8])) -> Result<()> {
        let all = pages_of(at, len);
        let whole = at.div_ceil(BLOCK_BYTES)..(at + to_u64(len)) / BLOCK_BYTES;
        let edges = [all.start..whole.start.min(all.end), whole.end.max(all.start)..all.end];
        for page in edges.into_iter().flatten() {
            self.load(page * BLOCK_BYTES, 1, &mut put)?;
        }
        for page in whole {
            self.loaded.add(page);
        }
        for page in all {
            if self.contents.has(page) && self.contents.remove(page) {
                self.contents_len.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// A page that is in memory holds contents.
    pub(super) fn has_contents(&self, page: u64) {
        if self.contents.add(page) {
            self.contents_len.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether contents should go.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.contents_len.load(Ordering::Relaxed) > self.too_many.load(Ordering::Relaxed)
    }

    /// Lets contents go of which the device has the same, by `forget`, which has those bytes be zeros. Nobody has any of the memory.
    pub(super) fn let_go(&self, is_home: &dyn Fn(u64) -> bool, mut forget: impl FnMut(Range<u64>)) {
        let mut left = self.contents_len.load(Ordering::Relaxed);
        let (first, wanted) = (self.hand.load(Ordering::Relaxed), self.contents_max / 4 * 3);
        let words = to_u64(self.contents.0.len());
        let mut going: Option<Range<u64>> = None;
        for number in (first..words).chain(0..first) {
            if left <= wanted {
                self.hand.store(number, Ordering::Relaxed);
                break;
            }
            let mut word = self.contents.0[to_usize(number)].load(Ordering::Relaxed);
            while word != 0 {
                let page = number * 64 + u64::from(word.trailing_zeros());
                word &= word - 1;
                if !is_home(page) {
                    continue;
                }
                self.contents.remove(page);
                self.loaded.remove(page);
                left -= 1;
                going = Some(match going {
                    Some(run) if run.end == page => run.start..page + 1,
                    run => {
                        run.map(&mut forget);
                        page..page + 1
                    }
                });
            }
        }
        going.map(forget);
        self.contents_len.store(left, Ordering::Relaxed);
        // What is not home yet is asked about again when it is some more.
        self.too_many.store(self.contents_max.max(left + self.contents_max / 4), Ordering::Relaxed);
    }

    /// Something could not be read.
    pub(super) fn failed(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
    }

    /// What could not be read since this was asked before.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.failed.lock().take()
    }
}

/// The pages that some bytes are in.
fn pages_of(at: u64, len: usize) -> Range<u64> {
    at / BLOCK_BYTES..(at + to_u64(len)).div_ceil(BLOCK_BYTES)
}
