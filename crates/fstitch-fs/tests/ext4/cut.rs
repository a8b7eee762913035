//! A medium whose power fails.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result, Seed,
};

/// Whether `FSTITCH_CUTS` asks for all cuts instead of the sample that is taken by default: minutes, as each copies an image or four.
pub fn is_thorough() -> bool {
    std::env::var_os("FSTITCH_CUTS").is_some()
}

/// A device whose power fails after so many writes of a block.
pub struct Cut<'d> {
    below: &'d dyn BlockDevice,
    left: AtomicUsize,
}

impl BlockDevice for Cut<'_> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            let left =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left.is_err() {
                return Err(Error::io(IoOp::Write, write.block, std::io::Error::other("no power")));
            }
            self.below.write(&[BlockWrite { block: write.block, kind: write.kind, data: write.data }])?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

impl<'d> Cut<'d> {
    /// The device with so many writes left.
    pub fn after(below: &'d dyn BlockDevice, writes: usize) -> Self {
        Self { below, left: AtomicUsize::new(writes) }
    }

    /// The device with a power that does not fail, for [`Cut::written`].
    pub fn never(below: &'d dyn BlockDevice) -> Self {
        Self::after(below, usize::MAX)
    }

    /// Blocks that were written, of a device whose power does not fail.
    pub fn written(&self) -> usize {
        usize::MAX - self.left.load(Ordering::Relaxed)
    }
}

/// A device whose power fails after so many writes of a block, and that has then written only some of those since the last flush, in no order.
pub struct Lossy<'d> {
    below: &'d dyn BlockDevice,
    state: Mutex<Unflushed>,
}

struct Unflushed {
    /// What was written since the last flush, in order.
    writes: Vec<(BlockNo, BlockKind, Vec<u8>)>,
    /// Of each block, the last of them.
    last: BTreeMap<BlockNo, usize>,
    left: usize,
    seed: Seed,
}

impl<'d> Lossy<'d> {
    /// The device with so many writes left.
    pub fn after(below: &'d dyn BlockDevice, left: usize, seed: u64) -> Self {
        let state = Unflushed { writes: Vec::new(), last: BTreeMap::new(), left, seed: Seed::new(seed) };
        Self { below, state: Mutex::new(state) }
    }
}

impl BlockDevice for Lossy<'_> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.below.read(reads)?;
        let state = self.state.lock().unwrap();
        for read in reads {
            if let Some(&at) = state.last.get(&read.block) {
                read.data.copy_from_slice(&state.writes[at].2);
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        for write in writes {
            let Some(left) = state.left.checked_sub(1) else {
                let Unflushed { writes, last, seed, .. } = &mut *state;
                last.clear();
                for (block, kind, data) in writes.drain(..).filter(|_| seed.below(2) == 0) {
                    self.below.write(&[BlockWrite { block, kind, data: &data }])?;
                }
                return Err(Error::io(IoOp::Write, write.block, std::io::Error::other("no power")));
            };
            state.left = left;
            let at = state.writes.len();
            state.last.insert(write.block, at);
            state.writes.push((write.block, write.kind, write.data.to_vec()));
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.left == 0 {
            return Err(Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other("no power")));
        }
        state.last.clear();
        for (block, kind, data) in state.writes.drain(..) {
            self.below.write(&[BlockWrite { block, kind, data: &data }])?;
        }
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}
