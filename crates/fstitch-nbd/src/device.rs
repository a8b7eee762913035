//! A block device as an export.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Result};

use crate::export::{BlockSizes, Export, Features, ZeroOptions};
use crate::spans::{Span, Spans};

/// Zeros are written in pieces of so many bytes.
const ZEROS: usize = 1 << 18;

/// The bytes of a device. Requests that begin or end within a block read it, change it and write it again; no two of these, and
/// no other write to the block, overlap.
pub struct DeviceExport {
    device: Arc<dyn BlockDevice>,
    features: Features,
    unit: u64,
    spans: Spans,
}

impl std::fmt::Debug for DeviceExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceExport({:?})", self.device.geometry())
    }
}

/// A request in the device's terms: a part of a block, whole blocks, a part of a block; each may be absent.
struct Cut {
    /// The block, where in it, how many bytes.
    head: Option<(u64, usize, usize)>,
    /// First block and number.
    body: (u64, u64),
    tail: Option<(u64, usize, usize)>,
}

impl DeviceExport {
    /// Serves `device` in multiples of `minimum` bytes, which may be less than a block.
    ///
    /// # Errors
    /// `EINVAL` if the minimum is no power of two up to 65,536, or the blocks are no multiple of it.
    pub fn new(device: Arc<dyn BlockDevice>, minimum: u32, is_read_only: bool) -> Result<Self> {
        let unit = device.geometry().block_size;
        if !minimum.is_power_of_two() || minimum > 65_536 || !unit.is_multiple_of(minimum) {
            return Err(Errno::INVAL.into());
        }
        let block = BlockSizes { minimum, preferred: unit.max(4096), ..BlockSizes::default() };
        let features = Features { block, is_read_only, has_multi_conn: true, ..Features::default() };
        Ok(Self { device, features, unit: u64::from(unit), spans: Spans::new() })
    }

    fn cut(&self, offset: u64, len: u64) -> Cut {
        let end = offset + len;
        let (first, start) = (offset / self.unit, offset % self.unit);
        let (last, stop) = (end / self.unit, end % self.unit);
        let part = |block, start: u64, stop: u64| Some((block, to_usize(start), to_usize(stop - start)));
        if first == last {
            return Cut { head: part(first, start, stop), body: (first, 0), tail: None };
        }
        let head = if start == 0 { None } else { part(first, start, self.unit) };
        let tail = if stop == 0 { None } else { part(last, 0, stop) };
        let body = first + u64::from(head.is_some());
        Cut { head, body: (body, last - body), tail }
    }

    /// Keeps others away from the blocks in which `cut` changes a part, and from nothing if blocks are only ever whole.
    fn span(&self, cut: &Cut) -> Option<Span> {
        if u64::from(self.features.block.minimum) == self.unit {
            return None;
        }
        let (body, count) = cut.body;
        let first = cut.head.map_or(body, |(block, ..)| block);
        let last = cut.tail.map_or_else(|| (body + count).max(first + 1) - 1, |(block, ..)| block);
        Some(Span { first, last, is_partial: cut.head.is_some() || cut.tail.is_some() })
    }

    fn read_block(&self, block: u64) -> Result<BlockBuf> {
        let mut buf = BlockBuf::zeroed(to_usize(self.unit));
        let read = BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut buf };
        self.device.read(&mut [read])?;
        Ok(buf)
    }

    /// Changes a part of a block; the span keeps others away.
    fn change(&self, (block, start, len): (u64, usize, usize), bytes: &[u8]) -> Result<()> {
        let mut buf = self.read_block(block)?;
        buf[start..start + len].copy_from_slice(bytes);
        self.device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: &buf }])
    }

    fn read_part(&self, (block, start, len): (u64, usize, usize), into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.read_block(block)?[start..start + len]);
        Ok(())
    }

    fn write_blocks(&self, first: u64, bytes: &[u8]) -> Result<()> {
        let blocks = bytes.chunks_exact(to_usize(self.unit)).zip(first..);
        let writes: Vec<_> = blocks
            .map(|(data, block)| BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data })
            .collect();
        if writes.is_empty() { Ok(()) } else { self.device.write(&writes) }
    }

    fn write_unstable(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let cut = self.cut(offset, to_u64(bytes.len()));
        let _entered = self.span(&cut).map(|span| self.spans.enter(span));
        let (head, bytes) = bytes.split_at(cut.head.map_or(0, |(_, _, len)| len));
        let (body, tail) = bytes.split_at(to_usize(cut.body.1 * self.unit));
        if let Some(part) = cut.head {
            self.change(part, head)?;
        }
        self.write_blocks(cut.body.0, body)?;
        cut.tail.map_or(Ok(()), |part| self.change(part, tail))
    }

    fn flush_if(&self, fua: bool) -> Result<()> {
        if fua { self.device.flush() } else { Ok(()) }
    }
}

impl Export for DeviceExport {
    fn size(&self) -> u64 {
        self.device.geometry().bytes()
    }

    fn features(&self) -> Features {
        self.features
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let cut = self.cut(offset, to_u64(into.len()));
        let (head, into) = into.split_at_mut(cut.head.map_or(0, |(_, _, len)| len));
        let (body, tail) = into.split_at_mut(to_usize(cut.body.1 * self.unit));
        if let Some(part) = cut.head {
            self.read_part(part, head)?;
        }
        let blocks = body.chunks_exact_mut(to_usize(self.unit)).zip(cut.body.0..);
        let mut reads: Vec<_> = blocks
            .map(|(data, block)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
            .collect();
        if !reads.is_empty() {
            self.device.read(&mut reads)?;
        }
        cut.tail.map_or(Ok(()), |part| self.read_part(part, tail))
    }

    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<()> {
        self.write_unstable(offset, bytes)?;
        self.flush_if(fua)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    /// Only whole blocks are discarded.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let cut = self.cut(offset, len);
        let (first, count) = cut.body;
        if count > 0 {
            let whole = Span { first, last: first + count - 1, is_partial: false };
            let _entered = self.span(&cut).map(|_| self.spans.enter(whole));
            self.device.discard(BlockNo(first), count)?;
        }
        self.flush_if(fua)
    }

    /// Written out: what a device has discarded reads as anything.
    fn write_zeroes(&self, offset: u64, len: u64, how: ZeroOptions) -> Result<()> {
        if how.fast {
            return Err(Errno::OPNOTSUPP.into());
        }
        let zeros = BlockBuf::zeroed(ZEROS);
        let end = offset + len;
        let mut at = offset;
        while at < end {
            // Pieces end at multiples of their size, so that only the first and the last can begin or end within a block.
            let piece = (to_u64(ZEROS) - at % to_u64(ZEROS)).min(end - at);
            self.write_unstable(at, &zeros[..to_usize(piece)])?;
            at += piece;
        }
        self.flush_if(how.fua)
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::{MemDevice, StatsDevice};
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 16 * 4096;

    fn export(minimum: u32) -> DeviceExport {
        DeviceExport::new(Arc::new(MemDevice::new(4096, 16)), minimum, false).unwrap()
    }

    #[test]
    fn blocks_must_be_multiples_of_the_minimum() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096, 1));
        for minimum in [0, 3, 8192] {
            assert!(DeviceExport::new(Arc::clone(&device), minimum, false).is_err(), "{minimum}");
        }
        assert!(DeviceExport::new(device, 4096, false).is_ok());
    }

    #[test]
    fn whole_blocks_are_one_batch_without_reading() {
        let device = Arc::new(StatsDevice::new(MemDevice::new(4096, 16)));
        let export = DeviceExport::new(Arc::clone(&device) as Arc<dyn BlockDevice>, 512, false).unwrap();
        export.write(4096, &[1; 3 * 4096], true).unwrap();
        let stats = device.stats();
        assert_eq!((stats.blocks_read.get(), stats.write_requests.get(), stats.flushes.get()), (0, 1, 1));
        export.trim(100, 3 * 4096, false).unwrap();
        assert_eq!(stats.blocks_discarded.get(), 2);
    }

    /// Writers of neighbouring sectors of the same blocks, with writers of whole blocks among them: what each wrote last is there.
    #[test]
    fn parts_of_one_block_are_not_lost() {
        let export = export(512);
        std::thread::scope(|scope| {
            for sector in 0..8_u8 {
                let export = &export;
                scope.spawn(move || {
                    for round in 1..=200 {
                        let bytes = vec![round; 512];
                        export.write(u64::from(sector) * 512, &bytes, false).unwrap();
                        let mut read = vec![0; 512];
                        export.read(u64::from(sector) * 512, &mut read).unwrap();
                        assert!(read == bytes, "sector {sector}, round {round}");
                    }
                });
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn it_is_an_array_of_bytes(
            operations in proptest::collection::vec((any::<bool>(), 0..SIZE, 1..3 * 4096_u64, any::<u8>()), 1..20),
            probe in 0..SIZE,
        ) {
            let export = export(1);
            let mut model = vec![0; to_usize(SIZE)];
            for (is_write, offset, len, byte) in operations {
                let len = len.min(SIZE - offset);
                if is_write {
                    export.write(offset, &vec![byte; to_usize(len)], false).unwrap();
                } else {
                    let how = ZeroOptions { may_trim: true, fast: false, fua: true };
                    export.write_zeroes(offset, len, how).unwrap();
                }
                model[to_usize(offset)..to_usize(offset + len)].fill(if is_write { byte } else { 0 });
            }
            let mut bytes = vec![7; to_usize(SIZE - probe)];
            export.read(probe, &mut bytes).unwrap();
            prop_assert!(bytes == model[to_usize(probe)..]);
        }
    }
}
