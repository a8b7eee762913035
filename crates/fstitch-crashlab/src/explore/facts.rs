//! What is to be known of an image, whatever was promised: what the checker finds and what is shown.

use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Geometry, Result};

use super::subject::Subject;
use crate::medium::Image;
use crate::oracle::{Tree, Violation};

/// What is to be known of an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts<T = Tree> {
    /// What is shown, or why the image is unlawful whatever was promised.
    pub shown: std::result::Result<T, Violation>,
    /// Findings of the checker that a crash may leave.
    pub allowed: u64,
    /// All blocks that recovery, checking and reading read, in the order of the first time.
    pub reads: Vec<u64>,
}

impl<T> Facts<T> {
    /// Recovers, checks and reads an image.
    pub fn of<S: Subject<Shown = T> + ?Sized>(subject: &S, image: Image) -> Self {
        Self::of_like(subject, image, None)
    }

    /// The same, sharing memory with what looks much `like` it.
    pub fn of_like<S: Subject<Shown = T> + ?Sized>(subject: &S, image: Image, like: Option<&T>) -> Self {
        let watched = Arc::new(Watched::new(image));
        let (shown, allowed) = match subject.show_like(Arc::<Watched>::clone(&watched), like) {
            Ok((shown, allowed)) => (Ok(shown), allowed),
            Err(violation) => (Err(violation), 0),
        };
        let reads = std::mem::take(&mut watched.seen.lock().unpoisoned().order);
        Self { shown, allowed, reads }
    }
}

/// A device that remembers which blocks were asked for first.
struct Watched {
    image: Image,
    seen: Mutex<Seen>,
}

struct Seen {
    order: Vec<u64>,
    /// One bit per block: it is in `order`, or was written before it was read.
    known: Vec<u64>,
}

impl Seen {
    fn note(&mut self, block: u64) -> bool {
        let (word, bit) = (BlockNo(block / 64).index(), 1 << (block % 64));
        let new = self.known[word] & bit == 0;
        self.known[word] |= bit;
        new
    }
}

impl Watched {
    fn new(image: Image) -> Self {
        let words = BlockNo(image.geometry().block_count / 64).index() + 1;
        Self { image, seen: Mutex::new(Seen { order: Vec::new(), known: vec![0; words] }) }
    }
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.image.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.image.read(reads)?;
        let mut seen = self.seen.lock().unpoisoned();
        for read in reads {
            let block = read.block.get();
            if seen.note(block) {
                seen.order.push(block);
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.image.write(writes)?;
        let mut seen = self.seen.lock().unpoisoned();
        for write in writes {
            seen.note(write.block.get());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.image.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.image.discard(start, count)
    }
}
