//! A medium with a volatile cache whose power goes after some number of writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Result, Seed,
};

/// Blocks that differ from an image.
pub type Changes = BTreeMap<BlockNo, Vec<u8>>;

/// Writes are seen at once and are stable after a flush; what was not is lost in part when the power goes.
pub struct Volatile {
    base: Arc<MemDevice>,
    state: Mutex<State>,
}

struct State {
    stable: Changes,
    pending: Changes,
    writes: u64,
    writes_max: u64,
}

impl Volatile {
    pub fn new(base: &Arc<MemDevice>, stable: Changes, writes_max: u64) -> Self {
        let state = State { stable, pending: Changes::new(), writes: 0, writes_max };
        Self { base: Arc::clone(base), state: Mutex::new(state) }
    }

    /// How many blocks were written.
    pub fn writes(&self) -> u64 {
        self.state.lock().unwrap().writes
    }

    /// What differs from the base after a power cut: any of the blocks written since the last flush are there.
    pub fn survivors(&self, seed: &mut Seed) -> Changes {
        let state = self.state.lock().unwrap();
        let mut left = state.stable.clone();
        left.extend(
            state.pending.iter().filter(|_| seed.below(2) == 0).map(|(no, data)| (*no, data.clone())),
        );
        left
    }

    /// What differs from the base as long as the power is there.
    pub fn newest(&self) -> Changes {
        let state = self.state.lock().unwrap();
        let mut all = state.stable.clone();
        all.extend(state.pending.iter().map(|(no, data)| (*no, data.clone())));
        all
    }

    fn dead(op: IoOp, block: BlockNo) -> Error {
        Error::io(op, block, std::io::Error::other("the power is gone"))
    }
}

impl BlockDevice for Volatile {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let state = self.state.lock().unwrap();
        for read in reads {
            match state.pending.get(&read.block).or_else(|| state.stable.get(&read.block)) {
                Some(block) => read.data.copy_from_slice(block),
                None => self.base.read(std::slice::from_mut(read))?,
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        for write in writes {
            if state.writes == state.writes_max {
                return Err(Self::dead(IoOp::Write, write.block));
            }
            state.writes += 1;
            state.pending.insert(write.block, write.data.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.writes == state.writes_max {
            return Err(Self::dead(IoOp::Flush, BlockNo(0)));
        }
        let pending = std::mem::take(&mut state.pending);
        state.stable.extend(pending);
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
