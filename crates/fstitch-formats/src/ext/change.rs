//! Size, settings and file maps of ext2, ext3 and ext4.

use fstitch_core::{BlockDevice, Result, Timestamp};
use fstitch_fs::ext2::{file_map, journal, resize, tuning};

use super::Ext;
use crate::resize::{FileMap, MapsFiles, Resized, Resizes, Run, Tunes, Tuning};

impl Resizes for Ext {
    fn size(&self, device: &dyn BlockDevice) -> Result<u64> {
        let shape = journal::read_superblock(device)?.1;
        Ok(u64::from(shape.blocks_count) * u64::from(shape.block_size))
    }

    fn resize(
        &self,
        device: &dyn BlockDevice,
        bytes: u64,
        now: Timestamp,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Resized> {
        let block_size = journal::read_superblock(device)?.1.block_size;
        let done = resize::resize(device, bytes / u64::from(block_size), now, progress)?;
        Ok(Resized {
            block_size_bytes: done.block_size,
            blocks_before: u64::from(done.before),
            blocks: u64::from(done.after),
        })
    }
}

impl Tunes for Ext {
    fn tune(&self, device: &dyn BlockDevice, asked: &Tuning) -> Result<()> {
        tuning::tune(device, asked)
    }
}

impl MapsFiles for Ext {
    fn file_map(&self, device: &dyn BlockDevice, ino: u64) -> Result<FileMap> {
        let found = file_map::read(device, ino)?;
        let map = match (found.is_inline, found.by_extents) {
            (true, _) => "inode",
            (false, true) => "extents",
            (false, false) => "pointers",
        };
        let run = |run: &file_map::Run| Run {
            logical: run.logical,
            physical: run.physical,
            blocks: run.blocks,
            unwritten: run.unwritten,
        };
        Ok(FileMap {
            map,
            depth: found.depth,
            map_blocks: found.map_blocks,
            block_size_bytes: found.block_size,
            extents: found.runs.iter().map(run).collect(),
        })
    }
}
