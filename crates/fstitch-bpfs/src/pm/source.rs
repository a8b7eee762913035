//! Where a medium's bytes come from that nobody has looked at yet: a device, page by page or some pages at a time.
//!
//! What leads to contents is held, because who follows a pointer cannot be told of a device that fails. All else (contents, and what is
//! nobody's) may go again when there is more of it in memory than somebody wants there, as soon as the device has the same.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, BlockNo, Error, IoOp, Result};

use super::{BLOCK_BYTES, SharedBits};
use crate::log::Pages;

/// Pages that come at once where those behind are likely to be looked at.
const CHUNK: u64 = 16;
/// Locks for loading; chunks share them.
const LOCKS: usize = 64;

/// A device, and which pages of it are in memory.
pub(super) struct Source {
    pages: Pages,
    count: u64,
    /// Set behind a page's bytes.
    loaded: SharedBits,
    /// Those that must not go, in memory or not. What a mount looks at before it looks at files is, and what is taken until somebody says
    /// that it holds contents.
    held: SharedBits,
    /// Pages in memory that may go: not more than `going_max` stay.
    going_len: AtomicU64,
    going_max: u64,
    /// As many are too many.
    too_many: AtomicU64,
    /// Where the next look for pages that can go begins.
    hand: AtomicU64,
    loading: [Mutex<(), rank::Epoch>; LOCKS],
    ahead: AtomicBool,
    failed: Mutex<Option<Error>, rank::Leaf>,
    /// Pages that somebody has seen as zeros because they could not be read. They stay so: what is seen does not change under who sees it.
    lost: SharedBits,
}

impl Source {
    /// So many pages of a device, of which none is in memory, and so many bytes of contents to be in memory.
    pub(super) fn new(pages: Pages, count: u64, cache_size: u64) -> Self {
        let going_max = (cache_size / BLOCK_BYTES).max(CHUNK);
        Self {
            pages,
            count,
            loaded: SharedBits::new(count),
            held: SharedBits::new(count),
            going_len: AtomicU64::new(0),
            going_max,
            too_many: AtomicU64::new(going_max),
            hand: AtomicU64::new(0),
            loading: std::array::from_fn(|_| Mutex::new(())),
            ahead: AtomicBool::new(false),
            failed: Mutex::new(None),
            lost: SharedBits::new(count),
        }
    }

    /// Whether pages come alone and are held, or with those around them and are not.
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
            if some.clone().any(|page| self.lost.has(page)) {
                return Err(self.why_lost(some.start));
            }
            let _alone = self.loading[to_usize(chunk) % LOCKS].lock();
            if ahead && self.load_missing(all, &mut put).is_ok() {
                continue;
            }
            // What nobody asked for may fail.
            self.load_missing(some.clone(), &mut put)?;
            if !ahead {
                some.for_each(|page| self.hold(page));
            }
        }
        Ok(())
    }

    fn why_lost(&self, page: u64) -> Error {
        let error = std::io::Error::other("a page that could not be read before");
        Error::io(IoOp::Read, BlockNo(page), error)
    }

    /// Loads those of a chunk's pages that are not in memory. A page that is may be on its way to the device, and is not read.
    fn load_missing(&self, mut pages: Range<u64>, put: &mut impl FnMut(u64, &[u8])) -> Result<()> {
        let is_here = |page: &u64| self.loaded.has(*page) || self.lost.has(*page);
        while let Some(first) = pages.find(|page| !is_here(page)) {
            let end = pages.find(is_here).unwrap_or(pages.end);
            let mut bytes = vec![0; to_usize((end - first) * BLOCK_BYTES)];
            self.pages.read(first, BlockKind::Data, &mut bytes)?;
            for (page, bytes) in (first..end).zip(bytes.chunks_exact(to_usize(BLOCK_BYTES))) {
                // Memory is zeros, and stays without pages of its own where the device is zeros.
                if bytes.iter().any(|byte| *byte != 0) {
                    put(page * BLOCK_BYTES, bytes);
                }
                self.is_here(page);
            }
        }
        Ok(())
    }

    /// Some bytes are about to be stored, by somebody who alone has the memory: pages that are stored whole need not come, those at the
    /// edges do.
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
            self.is_here(page);
            self.lost.remove(page);
        }
        Ok(())
    }

    /// A page is in memory.
    fn is_here(&self, page: u64) {
        if self.loaded.add(page) && !self.held.has(page) {
            self.going_len.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A page must not go.
    pub(super) fn hold(&self, page: u64) {
        if !self.held.has(page) && self.held.add(page) && self.loaded.has(page) {
            self.going_len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A page holds contents, or what is nobody's.
    pub(super) fn may_go(&self, page: u64) {
        if self.held.has(page) && self.held.remove(page) && self.loaded.has(page) {
            self.going_len.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages in memory.
    pub(super) fn len(&self) -> u64 {
        (0..self.words()).map(|word| u64::from(self.loaded.word(word).count_ones())).sum()
    }

    fn words(&self) -> u64 {
        self.count.div_ceil(64)
    }

    /// Whether something should go.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.going_len.load(Ordering::Relaxed) > self.too_many.load(Ordering::Relaxed)
    }

    /// Lets pages go of which the device has the same, by `forget`, which has those bytes be zeros. Nobody has any of the memory.
    pub(super) fn let_go(&self, is_home: &dyn Fn(u64) -> bool, mut forget: impl FnMut(Range<u64>)) {
        let mut left = self.going_len.load(Ordering::Relaxed);
        let (first, wanted) = (self.hand.load(Ordering::Relaxed), self.going_max / 4 * 3);
        let mut going: Option<Range<u64>> = None;
        for number in (first..self.words()).chain(0..first) {
            if left <= wanted {
                self.hand.store(number, Ordering::Relaxed);
                break;
            }
            let mut word = self.loaded.word(number) & !self.held.word(number);
            while word != 0 {
                let page = number * 64 + u64::from(word.trailing_zeros());
                word &= word - 1;
                if !is_home(page) {
                    continue;
                }
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
        self.going_len.store(left, Ordering::Relaxed);
        // What is not home yet is asked about again when it is a quarter more.
        self.too_many.store(self.going_max.max(left + left / 4), Ordering::Relaxed);
    }

    /// Some bytes could not be read, and are zeros for whoever looks at them.
    pub(super) fn failed(&self, at: u64, len: usize, error: Error) {
        pages_of(at, len).filter(|page| !self.loaded.has(*page)).for_each(|page| {
            self.lost.add(page);
        });
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
