//! A medium with a volatile cache whose power goes after some number of writes.

use std::sync::Mutex;

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Overlay, Result, Seed,
};

/// Writes are seen at once and are stable after a flush; what was not is lost in part when the power goes.
pub struct Volatile {
    stable: MemDevice,
    seen: Overlay<MemDevice>,
    state: Mutex<State>,
}

struct State {
    pending: Vec<(BlockNo, Vec<u8>)>,
    writes: u64,
    writes_max: u64,
}

impl Volatile {
    pub fn new(image: Vec<u8>, block_size: u32, writes_max: u64) -> Self {
        Self {
            stable: MemDevice::from_image(block_size, image.clone()),
            seen: Overlay::new(MemDevice::from_image(block_size, image)),
            state: Mutex::new(State { pending: Vec::new(), writes: 0, writes_max }),
        }
    }

    /// How many blocks were written.
    pub fn writes(&self) -> u64 {
        self.state.lock().unwrap().writes
    }

    /// The image after a power cut: any of the blocks written since the last flush are there.
    pub fn survivors(&self, seed: &mut Seed) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        for (block, data) in &state.pending {
            if seed.below(2) == 0 {
                let kind = fstitch_core::BlockKind::Data;
                self.stable.write(&[BlockWrite { block: *block, kind, data }]).unwrap();
            }
        }
        self.stable.image()
    }

    fn dead(block: BlockNo) -> Error {
        Error::io(IoOp::Write, block, std::io::Error::other("the power is gone"))
    }
}

impl BlockDevice for Volatile {
    fn geometry(&self) -> Geometry {
        self.stable.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.seen.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        for write in writes {
            if state.writes == state.writes_max {
                return Err(Self::dead(write.block));
            }
            state.writes += 1;
            state.pending.push((write.block, write.data.to_vec()));
            self.seen.write(std::slice::from_ref(write))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.writes == state.writes_max {
            return Err(Self::dead(BlockNo(0)));
        }
        for (block, data) in state.pending.drain(..) {
            self.stable.write(&[BlockWrite { block, kind: fstitch_core::BlockKind::Data, data: &data }])?;
        }
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
