//! What the daemon tells of its cache to who looks on.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_usize;
use fstitch_core::{Errno, Error};
use fstitch_patch::{Cache, Event, Observer};

use crate::control::Status;
use crate::control::trace::{Happened, Head, TraceEvent, VERSION};
use crate::open::Volume;

/// The most blocks that a graph shows, whatever is asked for: the core lock is held for about a microsecond for each.
pub const GRAPH_MAX: usize = 4096;
/// Events that wait for the control socket: about 4 MB, and enough for 50 times as many a second.
const EVENTS_MAX: usize = 1 << 16;

/// What was heard and not told yet. Between two tellings it is empty.
#[derive(Default)]
pub struct Heard(Arc<Mutex<Vec<Happened>>>);

/// Puts events where the control socket finds them.
struct Ear(Arc<Mutex<Vec<Happened>>>);

impl Observer for Ear {
    fn observe(&mut self, events: &[Event], dropped: u64) {
        let mut heard = self.0.lock().unpoisoned();
        heard.extend(events.iter().map(Happened::from));
        if dropped > 0 {
            let at_us = heard.last().map_or(0, |last| last.at_us);
            heard.push(Happened { at_us, event: TraceEvent::Lost { events: dropped } });
        }
    }
}

/// The cache of a volume.
pub fn cache_of(volume: &Volume) -> Result<Arc<Cache>> {
    volume.fs.cache().context("this format keeps no patches")
}

impl Heard {
    /// From now on it is noted what becomes of patches.
    pub fn begin(&self, volume: &Volume, status: &Status) -> Result<Head> {
        let cache = cache_of(volume)?;
        match cache.set_observer(Box::new(Ear(Arc::clone(&self.0))), EVENTS_MAX) {
            Ok(()) => {}
            Err(Error::Errno(Errno::BUSY)) => {
                bail!("somebody else records a trace of this volume or its stack")
            }
            Err(error) => return Err(error.into()),
        }
        self.take();
        Ok(Head {
            fstitch_trace: VERSION,
            image: status.image.clone(),
            mountpoint: status.mountpoint.clone(),
            format: status.format.clone(),
            consistency: status.consistency.clone(),
            dirty_blocks: cache.dirty_blocks(),
            patches: to_usize(cache.stats().patches_live),
            at_us: u64::try_from(cache.clock().elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// What has happened since the last time.
    pub fn next(&self, volume: &Volume) -> Result<Vec<Happened>> {
        if !cache_of(volume)?.deliver() {
            bail!("the volume was opened anew, with another cache: record another trace");
        }
        Ok(self.take())
    }

    /// Nothing is noted any more; what was is there to be taken.
    pub fn end(&self, volume: &Volume) {
        drop(volume.fs.cache().and_then(|cache| cache.take_observer()));
    }

    /// What was heard and not told.
    pub fn take(&self) -> Vec<Happened> {
        std::mem::take(&mut *self.0.lock().unpoisoned())
    }
}
