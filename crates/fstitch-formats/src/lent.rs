//! Devices that are lent to something which wants to own its device.
//!
//! A logical disk and BPFS keep their devices; checkers and makers are lent theirs for the time of a call. So what keeps one runs on a thread of its own with a
//! device whose requests this thread, which has the real one, serves until the other has ended.

use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Geometry, Result};

/// A block that is written.
type Written = (BlockNo, BlockKind, Vec<u8>);

/// What the other thread wants of the device, and where the answer goes.
enum Request {
    Read(Vec<(BlockNo, BlockKind)>, SyncSender<Result<Vec<u8>>>),
    Write(Vec<Written>, SyncSender<Result<()>>),
    Flush(SyncSender<Result<()>>),
    Discard(BlockNo, u64, SyncSender<Result<()>>),
}

/// The device as the other thread has it.
struct Lent {
    geometry: Geometry,
    ask: Sender<Request>,
}

/// Runs `work` with the first `blocks` blocks of a device, or all of them, as a device that it may keep until it ends.
pub(crate) fn lend<R: Send>(
    device: &dyn BlockDevice,
    blocks: Option<u64>,
    work: impl FnOnce(Arc<dyn BlockDevice>) -> R + Send,
) -> R {
    let (ask, asked) = channel();
    let whole = device.geometry();
    let geometry = Geometry {
        block_count: blocks.map_or(whole.block_count, |most| most.min(whole.block_count)),
        ..whole
    };
    let lent: Arc<dyn BlockDevice> = Arc::new(Lent { geometry, ask });
    thread::scope(|scope| {
        let worker = scope.spawn(move || work(lent));
        // It ends when nobody has the lent device any more.
        asked.into_iter().for_each(|request| serve(device, request));
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does what was asked for. Whoever asked and has gone needs no answer.
fn serve(device: &dyn BlockDevice, request: Request) {
    match request {
        Request::Read(blocks, answer) => drop(answer.send(read(device, &blocks))),
        Request::Write(blocks, answer) => {
            let writes: Vec<_> = blocks
                .iter()
                .map(|(block, kind, data)| BlockWrite { block: *block, kind: *kind, data })
                .collect();
            drop(answer.send(device.write(&writes)));
        }
        Request::Flush(answer) => drop(answer.send(device.flush())),
        Request::Discard(start, count, answer) => drop(answer.send(device.discard(start, count))),
    }
}

fn read(device: &dyn BlockDevice, blocks: &[(BlockNo, BlockKind)]) -> Result<Vec<u8>> {
    let size = to_usize(device.geometry().block_size);
    let mut bytes = vec![0; blocks.len() * size];
    let pieces = blocks.iter().zip(bytes.chunks_mut(size));
    let mut reads: Vec<_> =
        pieces.map(|((block, kind), data)| BlockRead { block: *block, kind: *kind, data }).collect();
    device.read(&mut reads)?;
    Ok(bytes)
}

impl Lent {
    fn ask<T>(&self, request: impl FnOnce(SyncSender<Result<T>>) -> Request) -> Result<T> {
        let (answer, answered) = sync_channel(1);
        // The other side serves as long as this device exists.
        self.ask.send(request(answer)).map_err(|_| Errno::IO)?;
        answered.recv().map_err(|_| Errno::IO)?
    }

    fn check(&self, block: BlockNo) -> Result<()> {
        if block.0 < self.geometry.block_count { Ok(()) } else { Err(Errno::INVAL.into()) }
    }
}

impl BlockDevice for Lent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        reads.iter().try_for_each(|read| self.check(read.block))?;
        let blocks = reads.iter().map(|read| (read.block, read.kind)).collect();
        let bytes = self.ask(|answer| Request::Read(blocks, answer))?;
        for (read, found) in reads.iter_mut().zip(bytes.chunks(to_usize(self.geometry.block_size))) {
            read.data.copy_from_slice(found);
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        writes.iter().try_for_each(|write| self.check(write.block))?;
        let blocks = writes.iter().map(|write| (write.block, write.kind, write.data.to_vec())).collect();
        self.ask(|answer| Request::Write(blocks, answer))
    }

    fn flush(&self) -> Result<()> {
        self.ask(Request::Flush)
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.ask(|answer| Request::Discard(start, count, answer))
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::MemDevice;

    use super::*;

    #[test]
    fn what_is_done_with_a_lent_device_is_done_with_the_device() {
        let device = MemDevice::new(512, 8);
        let count = lend(&device, Some(6), |lent| {
            let data = [7; 512];
            lent.write(&[BlockWrite { block: BlockNo(3), kind: BlockKind::Data, data: &data }]).unwrap();
            lent.flush().unwrap();
            assert!(
                lent.write(&[BlockWrite { block: BlockNo(6), kind: BlockKind::Data, data: &data }]).is_err()
            );
            let mut found = [0; 512];
            lent.read(&mut [BlockRead { block: BlockNo(3), kind: BlockKind::Data, data: &mut found }])
                .unwrap();
            assert_eq!(found, data);
            lent.geometry().block_count
        });
        assert_eq!(count, 6);
        assert_eq!(device.image()[3 * 512], 7);
    }

    #[test]
    #[should_panic(expected = "in the other thread")]
    fn a_panic_is_passed_on() {
        lend(&MemDevice::new(512, 8), None, |_| panic!("in the other thread"));
    }
}
