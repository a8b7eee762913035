//! Several disks as one that is as fast as all of them: rows of units, each on the next disk.
//!
//! **Layout**: `docs/spec/disks.md`, *stripes*. Each disk begins with a label, which says which it is; what it has of the volume begins
//! behind the first 64 KiB.
//!
//! **Invariants.** 1. Each block of the volume is on one disk, each block of a disk is one of the volume. 2. Labels are written once, when
//! a stripe is made, and never changed: nothing of it depends on a crash.
//!
//! **Crash cases.** Those of one disk: a flush is one of each disk. When a disk is lost, so is the volume; a policy of the shepherd keeps
//! copies.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Le, Result};

/// Bytes before a disk's part of the volume.
pub const STRIPE_DATA: u64 = 64 << 10;
/// Bytes of a label.
pub const STRIPE_LABEL: usize = 512;
/// Disks of a stripe at most.
pub const STRIPE_DISKS_MAX: usize = 64;
/// Bytes of a unit: the least, the usual, and the most; powers of two.
pub const STRIPE_UNITS: [u32; 3] = [4 << 10, 64 << 10, 64 << 20];

const MAGIC: [u8; 8] = *b"FSSTRIPE";
const VERSION: u16 = 1;
const SUM: usize = STRIPE_LABEL - 4;
/// Blocks of a batch from which on each disk has a thread of its own: for fewer one costs more than it saves.
const THREADS_FROM: usize = 32;

/// What a disk of a stripe says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLabel {
    /// The stripe's name.
    pub uuid: [u8; 16],
    /// Which disk this is, from 0 on.
    pub disk: u16,
    /// How many there are.
    pub disks: u16,
    /// Bytes of a unit.
    pub unit: u32,
    /// Bytes that each disk has of the volume: whole units.
    pub bytes: u64,
}

impl StripeLabel {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; STRIPE_LABEL];
        bytes[..8].copy_from_slice(&MAGIC);
        Le::put_u16(&mut bytes, 8, VERSION);
        Le::put_u16(&mut bytes, 10, self.disk);
        Le::put_u16(&mut bytes, 12, self.disks);
        Le::put_u32(&mut bytes, 16, self.unit);
        Le::put_u64(&mut bytes, 24, self.bytes);
        bytes[32..48].copy_from_slice(&self.uuid);
        let sum = crc32c::crc32c(&bytes[..SUM]);
        Le::put_u32(&mut bytes, SUM, sum);
        bytes
    }

    /// The label with which a disk begins; `None` if there is none.
    ///
    /// # Errors
    /// `Unsupported` for another version; `Corrupt` for one that cannot be.
    pub fn find(head: &[u8]) -> Result<Option<Self>> {
        let Some(bytes) = head.get(..STRIPE_LABEL).filter(|bytes| bytes[..8] == MAGIC) else {
            return Ok(None);
        };
        let damaged = |problem: &str| {
            Error::corrupt(
                fstitch_core::Structure::Other("label of a stripe"),
                BlockNo(0),
                problem.to_owned(),
            )
        };
        if Le::u32(bytes, SUM) != crc32c::crc32c(&bytes[..SUM]) {
            return Err(damaged("its sum is another one"));
        }
        if Le::u16(bytes, 8) != VERSION {
            return Err(Error::Unsupported(format!("stripes of version {}", Le::u16(bytes, 8))));
        }
        let label = Self {
            uuid: bytes[32..48].try_into().expect("16 bytes"),
            disk: Le::u16(bytes, 10),
            disks: Le::u16(bytes, 12),
            unit: Le::u32(bytes, 16),
            bytes: Le::u64(bytes, 24),
        };
        let [least, _, most] = STRIPE_UNITS;
        let is_possible = (2..=STRIPE_DISKS_MAX).contains(&usize::from(label.disks))
            && label.disk < label.disks
            && label.unit.is_power_of_two()
            && (least..=most).contains(&label.unit)
            && label.bytes.is_multiple_of(label.unit.into())
            && (1..1 << 56).contains(&label.bytes);
        if is_possible { Ok(Some(label)) } else { Err(damaged("it says what no stripe is")) }
    }

    /// Bytes that each of these disks has of a volume, by how long they are; none if they are too short.
    #[must_use]
    pub fn bytes_of(lengths: impl IntoIterator<Item = u64>, unit: u32) -> u64 {
        let least = lengths.into_iter().min().unwrap_or(0).saturating_sub(STRIPE_DATA);
        least - least % u64::from(unit)
    }
}

/// The disks of a stripe, each of which is its part of the volume, in their order.
#[derive(Debug)]
pub struct Stripe<D> {
    disks: Vec<D>,
    /// Blocks of a unit.
    unit: u64,
    geometry: Geometry,
}

impl<D: BlockDevice> Stripe<D> {
    /// Joins the parts that disks have of a volume, in units of so many bytes.
    ///
    /// # Errors
    /// [`Error::Io`] when there is none, when they are not alike, or a unit has not whole blocks.
    pub fn new(disks: Vec<D>, unit: u32) -> Result<Self> {
        let refuse =
            |why: &str| Err(Error::io(IoOp::Open, BlockNo(0), std::io::Error::other(why.to_owned())));
        let Some(first) = disks.first().map(BlockDevice::geometry) else {
            return refuse("a stripe of no disks");
        };
        if disks.iter().any(|disk| disk.geometry().block_size != first.block_size) {
            return refuse("a stripe of disks with different block sizes");
        }
        if unit < first.block_size || !unit.is_multiple_of(first.block_size) {
            return refuse("a stripe whose units are less than a block, or have not whole ones");
        }
        let unit = u64::from(unit / first.block_size);
        let least = disks.iter().map(|disk| disk.geometry().block_count).min().unwrap_or(0);
        let atomic = disks.iter().map(|disk| disk.geometry().atomic_size).min();
        let geometry = Geometry {
            block_count: (least - least % unit) * to_u64(disks.len()),
            atomic_size: atomic.unwrap_or(first.atomic_size),
            ..first
        };
        Ok(Self { disks, unit, geometry })
    }

    /// The same with disks that were made others.
    ///
    /// # Errors
    /// Those of `with`, and of [`Stripe::new`].
    pub fn with(self, with: impl FnMut(D) -> Result<D>) -> Result<Self> {
        let unit = to_usize(self.unit) * to_usize(self.geometry.block_size);
        let disks = self.disks.into_iter().map(with).collect::<Result<Vec<_>>>()?;
        Self::new(disks, u32::try_from(unit).expect("as it was"))
    }

    /// The disks.
    pub fn disks(&self) -> &[D] {
        &self.disks
    }

    /// The disk that has a block, and the block's number there.
    fn locate(&self, op: IoOp, block: BlockNo) -> Result<(usize, BlockNo)> {
        let at = block.get();
        if at >= self.geometry.block_count {
            return Err(Error::io(op, block, std::io::Error::other("outside the stripe")));
        }
        let (row, count) = (at / self.unit, to_u64(self.disks.len()));
        Ok((to_usize(row % count), BlockNo(row / count * self.unit + at % self.unit)))
    }

    /// The block of the volume that a disk's block is.
    fn back(&self, disk: usize, block: BlockNo) -> BlockNo {
        let (row, rest) = (block.get() / self.unit, block.get() % self.unit);
        BlockNo((row * to_u64(self.disks.len()) + to_u64(disk)) * self.unit + rest)
    }

    /// Gives each disk its part of the work, all at once if it is much. A failure says which block of the volume it was.
    fn each<T: Send>(
        &self,
        parts: Vec<Vec<T>>,
        work: impl Fn(&D, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let is_much = parts.iter().map(Vec::len).sum::<usize>() >= THREADS_FROM;
        let mut busy: Vec<(usize, Vec<T>)> =
            parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()).collect();
        let told = |disk: usize, done: Result<()>| match done {
            Err(Error::Io { op, block, kind, device, source }) => {
                Err(Error::Io { op, block: self.back(disk, block), kind, device, source })
            }
            done => done,
        };
        if !is_much || busy.len() < 2 {
            return busy
                .into_iter()
                .try_for_each(|(disk, mut part)| told(disk, work(&self.disks[disk], &mut part)));
        }
        let Some((own, mut part)) = busy.pop() else { return Ok(()) };
        std::thread::scope(|scope| {
            let work = &work;
            let others: Vec<_> = busy
                .into_iter()
                .map(|(disk, mut part)| (disk, scope.spawn(move || work(&self.disks[disk], &mut part))))
                .collect();
            let mut done = told(own, work(&self.disks[own], &mut part));
            for (disk, other) in others {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                done = done.and(told(disk, other));
            }
            done
        })
    }

    fn parts<T>(&self) -> Vec<Vec<T>> {
        self.disks.iter().map(|_| Vec::new()).collect()
    }

    /// The pieces of a range of blocks, each on one disk.
    fn pieces(&self, start: BlockNo, count: u64) -> impl Iterator<Item = (BlockNo, u64)> {
        let end = start.get().saturating_add(count).min(self.geometry.block_count);
        let mut at = start.get();
        std::iter::from_fn(move || {
            let next = (at / self.unit + 1).saturating_mul(self.unit).min(end);
            let piece = (at < end).then(|| (BlockNo(at), next - at));
            at = next;
            piece
        })
    }
}

impl<D: BlockDevice> BlockDevice for Stripe<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let mut parts = self.parts();
        for read in reads {
            let (disk, block) = self.locate(IoOp::Read, read.block)?;
            parts[disk].push(BlockRead { block, kind: read.kind, data: &mut *read.data });
        }
        self.each(parts, |disk, part| disk.read(part))
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut parts = self.parts();
        for write in writes {
            let (disk, block) = self.locate(IoOp::Write, write.block)?;
            parts[disk].push(BlockWrite { block, ..*write });
        }
        self.each(parts, |disk, part| disk.write(part))
    }

    fn flush(&self) -> Result<()> {
        self.disks.iter().try_for_each(BlockDevice::flush)
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.pieces(start, count).try_for_each(|(block, count)| {
            let (disk, own) = self.locate(IoOp::Discard, block)?;
            self.disks[disk].discard(own, count)
        })
    }

    fn prefetch(&self, start: BlockNo, count: u64) {
        for (block, count) in self.pieces(start, count) {
            if let Ok((disk, own)) = self.locate(IoOp::Read, block) {
                self.disks[disk].prefetch(own, count);
            }
        }
    }

    fn intact(&self) -> Result<()> {
        self.disks.iter().try_for_each(BlockDevice::intact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fstitch_core::{BlockKind, MemDevice};

    fn stripe(sizes: &[u64], unit: u32) -> Stripe<MemDevice> {
        Stripe::new(sizes.iter().map(|&blocks| MemDevice::new(1024, blocks)).collect(), unit).unwrap()
    }

    fn put(device: &dyn BlockDevice, blocks: std::ops::Range<u64>) {
        let bytes: Vec<Vec<u8>> = blocks.clone().map(|no| no.to_le_bytes().repeat(128)).collect();
        let writes: Vec<_> = blocks
            .zip(&bytes)
            .map(|(no, data)| BlockWrite { block: BlockNo(no), kind: BlockKind::Data, data })
            .collect();
        device.write(&writes).unwrap();
    }

    fn get(device: &dyn BlockDevice, blocks: std::ops::Range<u64>) -> Vec<u64> {
        let mut bytes = vec![vec![0; 1024]; to_usize(blocks.end - blocks.start)];
        let mut reads: Vec<_> = blocks
            .zip(&mut bytes)
            .map(|(no, data)| BlockRead { block: BlockNo(no), kind: BlockKind::Data, data })
            .collect();
        device.read(&mut reads).unwrap();
        bytes.iter().map(|data| Le::u64(data, 0)).collect()
    }

    #[test]
    fn blocks_go_around_in_units() {
        let stripe = stripe(&[17, 19, 23], 4096);
        assert_eq!(stripe.geometry().block_count, 48, "whole units of the smallest");
        put(&stripe, 0..48);
        for part in [0..48, 3..5, 11..13, 47..48, 0..40] {
            assert_eq!(get(&stripe, part.clone()), part.collect::<Vec<_>>());
        }
        assert_eq!(get(&stripe.disks()[0], 0..8), [0, 1, 2, 3, 12, 13, 14, 15]);
        assert_eq!(get(&stripe.disks()[2], 12..16), [44, 45, 46, 47]);
        for disk in 0..3 {
            for own in 0..16 {
                let block = stripe.back(disk, BlockNo(own));
                assert_eq!(stripe.locate(IoOp::Read, block).unwrap(), (disk, BlockNo(own)));
            }
        }
        let pieces: Vec<_> = stripe.pieces(BlockNo(2), 1000).collect();
        assert_eq!(pieces[..2], [(BlockNo(2), 2), (BlockNo(4), 4)]);
        assert_eq!(pieces.iter().map(|(_, count)| count).sum::<u64>(), 46);
        stripe.discard(BlockNo(1), 9).unwrap();
        assert_eq!(get(&stripe, 0..1), [0]);
    }

    /// A failure names the block that the caller knows, whichever disk had it and however many were asked.
    #[test]
    fn what_fails_is_named_as_the_volume_knows_it() {
        struct Bad(MemDevice);
        impl BlockDevice for Bad {
            fn geometry(&self) -> Geometry {
                self.0.geometry()
            }
            fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
                match reads.iter().find(|read| read.block == BlockNo(5)) {
                    Some(read) => Err(Error::io(IoOp::Read, read.block, std::io::Error::other("bad"))),
                    None => self.0.read(reads),
                }
            }
            fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
                self.0.write(writes)
            }
            fn flush(&self) -> Result<()> {
                Ok(())
            }
            fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
                Ok(())
            }
        }
        let disks: Vec<Box<dyn BlockDevice>> =
            vec![Box::new(MemDevice::new(1024, 64)), Box::new(Bad(MemDevice::new(1024, 64)))];
        let stripe = Stripe::new(
            disks.into_iter().map(std::sync::Arc::from).collect::<Vec<std::sync::Arc<dyn BlockDevice>>>(),
            4096,
        )
        .unwrap();
        for range in [13..14, 0..128] {
            let mut bytes = vec![vec![0; 1024]; to_usize(range.end - range.start)];
            let mut reads: Vec<_> = range
                .zip(&mut bytes)
                .map(|(no, data)| BlockRead { block: BlockNo(no), kind: BlockKind::Data, data })
                .collect();
            let error = stripe.read(&mut reads).unwrap_err();
            // Block 5 of the second disk: its second unit, the fourth of all.
            assert!(matches!(error, Error::Io { block: BlockNo(13), .. }), "{error}");
        }
    }

    #[test]
    fn labels_are_read_as_they_are_written() {
        let label = StripeLabel { uuid: [7; 16], disk: 1, disks: 3, unit: 65_536, bytes: 1 << 20 };
        assert_eq!(StripeLabel::find(&label.encode()).unwrap(), Some(label));
        assert_eq!(StripeLabel::find(&[0; 4096]).unwrap(), None);
        assert_eq!(StripeLabel::find(b"FSSTRIPE").unwrap(), None);
        let mut damaged = label.encode();
        damaged[20] ^= 1;
        assert!(matches!(StripeLabel::find(&damaged), Err(Error::Corrupt(_))));
        for bad in [
            StripeLabel { disk: 3, ..label },
            StripeLabel { disks: 1, disk: 0, ..label },
            StripeLabel { unit: 3 << 12, ..label },
            StripeLabel { unit: 512, ..label },
            StripeLabel { bytes: 0, ..label },
            StripeLabel { bytes: 4096, ..label },
        ] {
            assert!(matches!(StripeLabel::find(&bad.encode()), Err(Error::Corrupt(_))), "{bad:?}");
        }
        assert_eq!(StripeLabel::bytes_of([(1 << 20) + 70_000, 1 << 20], 65_536), (1 << 20) - 65_536);
        assert_eq!(StripeLabel::bytes_of([100], 65_536), 0);
    }

    #[test]
    fn what_is_no_stripe_is_refused() {
        assert!(Stripe::new(Vec::<MemDevice>::new(), 4096).is_err());
        assert!(Stripe::new(vec![MemDevice::new(1024, 8), MemDevice::new(4096, 8)], 4096).is_err());
        assert!(Stripe::new(vec![MemDevice::new(4096, 8)], 1024).is_err());
        let outside = stripe(&[8, 8], 4096).locate(IoOp::Read, BlockNo(16));
        assert!(outside.is_err());
    }
}
