//! The judgement over the whole volume before anything is freed.
//!
//! The checker's passes run over what the cache holds, while the volume is in use. What changed since they began is not
//! judged: it may look half done, and nothing of it is what a crash has left. Everything else is as it was at the beginning, so a
//! finding about it is one about that moment.

use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, BlockNo, Errno, FindingClass, Result};

use super::super::check::{Judgement, judge_source};
use super::super::source::BlockSource;
use super::Watch;
use crate::ext2::Inode;
use crate::ext2::layout::superblock::STATE_ERROR;
use crate::ext2::leftovers::Leftovers;
use crate::ext2::online::Cached;
use crate::ext2::volume::Ext2;
use crate::uhfs::ReclaimHooks;

/// What was judged of a volume since it was opened.
#[derive(Debug, Default)]
pub(in crate::ext2) struct Judged {
    /// Why nothing may be reclaimed, for good.
    refusal: Mutex<Option<String>, rank::Leaf>,
}

/// Whether the reclaimer may do its work.
pub(super) enum Verdict {
    /// Everything found may have been left by a crash. Which inodes without a name are is for [`Leftovers`] to say.
    Lawful(Leftovers),
    /// Nothing may be touched, for this reason.
    Refused(String),
    /// It was told to stop before it knew.
    Stopped,
}

/// A volume in motion.
struct Moving<'a> {
    cached: Cached<'a>,
    watch: &'a Watch,
    hooks: &'a dyn ReclaimHooks<Inode>,
    stopped: AtomicBool,
}

impl BlockSource for Moving<'_> {
    fn block_size(&self) -> usize {
        self.cached.block_size()
    }

    fn block_count(&self) -> u64 {
        self.cached.block_count()
    }

    fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        if self.hooks.stop() {
            self.stopped.store(true, Ordering::Relaxed);
            return Err(Errno::BUSY.into());
        }
        self.cached.read(block, kind, into)
    }

    fn is_in_use(&self) -> bool {
        self.cached.is_in_use()
    }

    fn inode_moves(&self, ino: u32) -> bool {
        self.watch.inode_changed(ino)
    }

    fn block_moves(&self, block: u64) -> bool {
        self.watch.block_changed(block)
    }
}

impl Ext2 {
    /// Judges the volume, unless that was done.
    pub(super) fn judge(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<Verdict> {
        if let Some(reason) = self.judged.refusal.lock().clone() {
            return Ok(Verdict::Refused(reason));
        }
        if self.has_values() {
            // What holds a value has no name either.
            return Ok(Verdict::Refused("the feature ea_inode".into()));
        }
        if self.sb.state & STATE_ERROR != 0 {
            let reason = "the volume is marked as having errors".into();
            return Ok(Verdict::Refused(self.refuse(hooks, reason)?));
        }
        self.start_pass(hooks)?;
        let cached = Cached(&self.cache);
        let source = Moving { cached, watch: &self.watch, hooks, stopped: AtomicBool::new(false) };
        let judged = judge_source(&source, &self.current_superblock(), (self.left, self.opened_at));
        let Judgement { report, leftovers } = match judged {
            Err(_) if source.stopped.load(Ordering::Relaxed) => return Ok(Verdict::Stopped),
            other => other?,
        };
        let Some(first) = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt)
        else {
            return Ok(Verdict::Lawful(leftovers));
        };
        let reason = format!(
            "the volume is damaged ({}, the first: {}: {})",
            match report.corrupt {
                1 => "1 finding that no crash leaves".into(),
                count => format!("{count} findings that no crash leaves"),
            },
            first.code,
            first.text
        );
        Ok(Verdict::Refused(self.refuse(hooks, reason)?))
    }

    /// Nothing is reclaimed from now on. A volume that is in use is marked as having errors, so that it stays unclean and
    /// the next mount knows.
    pub(super) fn refuse(&self, hooks: &dyn ReclaimHooks<Inode>, reason: String) -> Result<String> {
        self.set_unchecked();
        hooks.step(self.block_size(), &mut || {
            self.mark_damaged();
            Ok(())
        })?;
        *self.judged.refusal.lock() = Some(reason.clone());
        Ok(reason)
    }
}
