//! What a program that has the volume in its own process can do beyond a [`FileSystem`](fstitch_core::FileSystem): several ranges written
//! by one commit, and contents read where they are.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Caller, Errno, InodeNo, Result};
use fstitch_posix::change::check_write;
use fstitch_posix::expect_regular;

use crate::data::drop_privileges;
use crate::layout::SIZE_MAX;
use crate::pm::{BLOCK_BYTES, ZEROS};
use crate::tree;
use crate::volume::Bpfs;

impl Bpfs {
    /// Writes several ranges of a file, given by offset in bytes, in one commit: after any crash all of them are there, or none.
    /// Where ranges overlap the later one counts. Ranges may be behind the end; what is between are zeros.
    ///
    /// Through a mount the kernel splits what a program writes; here nothing does, whatever the length.
    ///
    /// # Errors
    /// `EFBIG` if a range ends behind the largest size, `EPERM` for files that may not be written so, `ENOSPC`, `EISDIR`, `EINVAL` for
    /// what has no contents, `ESTALE` for an inode that is gone. Nothing is written then.
    pub fn write_ranges(&self, caller: &Caller, ino: InodeNo, ranges: &[(u64, &[u8])]) -> Result<()> {
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        expect_regular(inode.kind)?;
        for (offset, data) in ranges {
            let end = offset.checked_add(to_u64(data.len())).filter(|end| *end <= SIZE_MAX);
            if end.is_none() {
                return Err(Errno::FBIG.into());
            }
            check_write(&inode.seen(1), *offset)?;
        }
        if ranges.iter().all(|(_, data)| data.is_empty()) {
            return Ok(());
        }
        let mut change = core.change(self.now())?;
        for (offset, data) in ranges {
            change.put(inode.ino, *offset, data)?;
        }
        drop_privileges(&mut change, &inode, caller);
        change.touch_contents(inode.ino);
        let done = change.finish(|_| ());
        drop(core);
        self.durably(done)
    }

    /// Shows `take` the bytes of a file from `offset` on, `len` of them or as many as there are, in pieces of at most a block, where they
    /// are: nothing is copied. Holes are shown as zeros. Returns how many bytes were shown.
    ///
    /// Changes of this volume wait meanwhile, so `take` must not call it; all pieces are of one moment. The access time is left as it is.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` for what has no contents, `ESTALE` for an inode that is gone, and what `take` returns: it is shown no more then.
    pub fn read_in_place(
        &self,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let core = self.share();
        let inode = self.live(&core.state, ino)?;
        expect_regular(inode.kind)?;
        let len = len.min(inode.size.saturating_sub(offset));
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let from = at % BLOCK_BYTES;
            let piece = (BLOCK_BYTES - from).min(len - done);
            let range = to_usize(from)..to_usize(from + piece);
            match tree::leaf(&core.state.gate, inode.contents(), at / BLOCK_BYTES) {
                Some(block) => {
                    core.state.gate.load(block.at())?;
                    take(&core.state.gate.block(block)[range])?;
                }
                None => take(&ZEROS[range])?,
            }
            done += piece;
        }
        Ok(len)
    }
}
