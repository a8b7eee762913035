//! Requests to an array: each goes to the disk that has the block, or to all.

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

use super::DiskState;
use super::array::{Array, Now};

/// Where a block of the array is: on all disks, or on one; with its number there.
#[derive(Clone, Copy)]
enum Place {
    Zone(BlockNo),
    Disk(usize, BlockNo),
}

impl Array {
    fn place(&self, op: IoOp, block: BlockNo) -> Result<Place> {
        let layout = &self.layout;
        let at = block.get();
        if let Some(in_zone) = at.checked_sub(layout.volume)
            && in_zone < layout.zone
        {
            return Ok(Place::Zone(BlockNo(layout.first + in_zone)));
        }
        let disk = self.disk_of(block);
        let disk = disk.ok_or_else(|| Error::io(op, block, std::io::Error::other("outside the array")))?;
        let part = &layout.parts[disk];
        let own = if at < layout.volume { at - part.homes } else { part.blocks + at - part.first_spare };
        Ok(Place::Disk(disk, BlockNo(layout.first + layout.zone + own)))
    }

    /// The disk that has a block; `None` for the zone, which is on all.
    #[must_use]
    pub fn disk_of(&self, block: BlockNo) -> Option<usize> {
        let (layout, at) = (&self.layout, block.get());
        let starts: fn(&super::array::Part) -> u64 = if at < layout.volume {
            |part| part.homes
        } else if at < layout.volume + layout.zone || at >= layout.blocks {
            return None;
        } else {
            |part| part.first_spare
        };
        Some(layout.parts.partition_point(|part| starts(part) <= at) - 1)
    }

    /// Whether a block is on a disk that keeps what is written to it.
    #[must_use]
    pub fn takes(&self, block: BlockNo) -> bool {
        self.disk_of(block).is_none_or(|disk| self.takes_disk(disk))
    }

    /// Whether a disk keeps what is written to it.
    pub(crate) fn takes_disk(&self, disk: usize) -> bool {
        !self.is_degraded() || self.now().taking(disk).is_some()
    }

    /// The disks, as bits, of those that have some blocks and serve them.
    pub(crate) fn having(&self, blocks: impl Iterator<Item = BlockNo>) -> u16 {
        let now = self.now();
        let served = blocks.filter(|block| self.serves_now(&now, *block));
        served.filter_map(|block| self.disk_of(block)).fold(0, |disks, disk| disks | 1 << disk)
    }

    /// The disks, as bits, that keep what is written to them.
    pub(crate) fn all_taking(&self) -> u16 {
        let now = self.now();
        (0..self.disks()).filter(|disk| now.taking(*disk).is_some()).fold(0, |disks, disk| disks | 1 << disk)
    }

    /// Whether what a block holds can be asked for: its disk is whole, or has been rebuilt so far (D3).
    #[must_use]
    pub fn serves(&self, block: BlockNo) -> bool {
        !self.is_degraded() || self.serves_now(&self.now(), block)
    }

    fn serves_now(&self, now: &Now, block: BlockNo) -> bool {
        let Some(disk) = self.disk_of(block) else { return true };
        now.devices[disk].is_some()
            && match now.state(disk) {
                DiskState::Whole => true,
                DiskState::Rebuilding { next } => block.get() < next && block.get() < self.layout.volume,
                DiskState::Out { .. } | DiskState::Hot => false,
            }
    }

    /// The spares of a disk, and which of them is where a block would be by its place on its own disk.
    pub(crate) fn spares_for(&self, home: BlockNo, disk: usize) -> (std::ops::Range<BlockNo>, BlockNo) {
        let part = &self.layout.parts[disk];
        let range = BlockNo(part.first_spare)..BlockNo(part.first_spare + part.spares);
        let (own, of) = match self.disk_of(home).map(|disk| &self.layout.parts[disk]) {
            Some(part) if home.get() < self.layout.volume => (home.get() - part.homes, part.blocks),
            Some(part) => (home.get() - part.first_spare, part.spares),
            None => (0, 1),
        };
        let wish = u128::from(own) * u128::from(part.spares) / u128::from(of.max(1));
        (range, BlockNo(part.first_spare + u64::try_from(wish).unwrap_or(0)))
    }

    /// Requests on their way to a disk.
    pub(crate) fn busy(&self, disk: usize) -> usize {
        self.counts[disk].busy.load(Ordering::Relaxed)
    }

    /// Asks a disk, and counts; whether it has failed, and is in use still.
    fn ask(
        &self,
        disk: usize,
        count: impl Fn(&super::array::Counts) -> &AtomicU64,
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let counts = &self.counts[disk];
        counts.busy.fetch_add(1, Ordering::Relaxed);
        let result = ask();
        counts.busy.fetch_sub(1, Ordering::Relaxed);
        if result.is_err() {
            count(counts).fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// What a disk reports, by the array's block.
    fn named(disk: usize, op: IoOp, block: BlockNo, error: &Error) -> Error {
        Error::io(op, block, std::io::Error::other(format!("disk {disk} of the array: {error}")))
    }

    fn out(disk: usize, op: IoOp, block: BlockNo) -> Error {
        Error::io(op, block, std::io::Error::other(format!("disk {disk} of the array is out")))
    }

    /// From the first disk that has the zone.
    fn read_zone(&self, at: BlockNo, read: &mut BlockRead<'_>) -> Result<()> {
        let mut last = None;
        for disk in 0..self.disks() {
            let now = self.now();
            let Some(device) = now.taking(disk) else { continue };
            let mut own = BlockRead { block: at, kind: read.kind, data: &mut *read.data };
            match self.ask(disk, |c| &c.reads, || device.read(std::slice::from_mut(&mut own))) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.put_out_if_dead(disk);
                    last = Some(Self::named(disk, IoOp::Read, read.block, &error));
                }
            }
        }
        Err(last.unwrap_or_else(|| Self::out(0, IoOp::Read, read.block)))
    }

    /// To all disks. One that cannot write it is put out, whatever else it can do; the last one must.
    fn write_zone(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut is_written = false;
        let mut last = None;
        for disk in 0..self.disks() {
            let now = self.now();
            let Some(device) = now.taking(disk) else { continue };
            match self.ask(disk, |c| &c.writes, || device.write(writes)) {
                Ok(()) => is_written = true,
                Err(error) => {
                    let is_out = self.put_out(disk);
                    last = (!is_out).then(|| Self::named(disk, IoOp::Write, writes[0].block, &error));
                }
            }
        }
        match last {
            Some(error) => Err(error),
            None if is_written => Ok(()),
            None => Err(Self::out(0, IoOp::Write, writes[0].block)),
        }
    }
}

impl BlockDevice for Array {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_size: self.layout.block_size,
            block_count: self.layout.blocks,
            atomic_size: self.layout.atomic_size,
        }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let now = self.now();
        let mut parts: Vec<Vec<BlockRead<'_>>> = (0..self.disks()).map(|_| Vec::new()).collect();
        let mut firsts: Vec<BlockNo> = vec![BlockNo(0); self.disks()];
        for read in reads {
            match self.place(IoOp::Read, read.block)? {
                Place::Zone(at) => self.read_zone(at, read)?,
                Place::Disk(disk, _) if !self.serves_now(&now, read.block) => {
                    return Err(Self::out(disk, IoOp::Read, read.block));
                }
                Place::Disk(disk, block) => {
                    if parts[disk].is_empty() {
                        firsts[disk] = read.block;
                    }
                    parts[disk].push(BlockRead { block, kind: read.kind, data: &mut *read.data });
                }
            }
        }
        for (disk, part) in parts.iter_mut().enumerate().filter(|(_, part)| !part.is_empty()) {
            let Some(device) = now.taking(disk) else {
                return Err(Self::out(disk, IoOp::Read, firsts[disk]));
            };
            if let Err(error) = self.ask(disk, |counts| &counts.reads, || device.read(part)) {
                self.put_out_if_dead(disk);
                return Err(Self::named(disk, IoOp::Read, firsts[disk], &error));
            }
        }
        Ok(())
    }

    /// What is on a disk that is out is not written: who must know asks [`Array::takes`] afterwards.
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let now = self.now();
        let mut zone: Vec<BlockWrite<'_>> = Vec::new();
        let mut parts: Vec<Vec<BlockWrite<'_>>> = vec![Vec::new(); self.disks()];
        let mut firsts: Vec<BlockNo> = vec![BlockNo(0); self.disks()];
        for write in writes {
            match self.place(IoOp::Write, write.block)? {
                Place::Zone(block) => zone.push(BlockWrite { block, ..*write }),
                Place::Disk(disk, block) => {
                    if parts[disk].is_empty() {
                        firsts[disk] = write.block;
                    }
                    parts[disk].push(BlockWrite { block, ..*write });
                }
            }
        }
        if !zone.is_empty() {
            self.write_zone(&zone)?;
        }
        let mut failed = None;
        for (disk, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            let Some(device) = now.taking(disk) else { continue };
            if let Err(error) = self.ask(disk, |counts| &counts.writes, || device.write(part))
                && !self.put_out_if_dead(disk)
            {
                failed = Some(Self::named(disk, IoOp::Write, firsts[disk], &error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn flush(&self) -> Result<()> {
        let mut failed = None;
        for disk in 0..self.disks() {
            let now = self.now();
            let Some(device) = now.taking(disk) else { continue };
            if let Err(error) = self.ask(disk, |counts| &counts.flushes, || device.flush())
                // What it had taken may be gone: it is not whole any more.
                && !self.put_out(disk)
            {
                failed = Some(Self::named(disk, IoOp::Flush, BlockNo(0), &error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        let now = self.now();
        for disk in 0..self.disks() {
            let Some(device) = now.taking(disk) else { continue };
            let part = &self.layout.parts[disk];
            let from = start.get().max(part.homes);
            let end = (start.get().saturating_add(count)).min(part.homes + part.blocks);
            if from < end {
                let own = self.layout.first + self.layout.zone + from - part.homes;
                // What a dead disk does not forget nobody reads.
                if let Err(error) = device.discard(BlockNo(own), end - from)
                    && !self.put_out_if_dead(disk)
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn intact(&self) -> Result<()> {
        let now = self.now();
        (0..self.disks()).filter_map(|disk| now.taking(disk)).try_for_each(|device| device.intact())
    }
}
