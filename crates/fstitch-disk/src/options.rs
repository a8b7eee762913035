//! How a medium is opened.

use fstitch_core::{Error, Result};

/// The smallest block, in bytes: one sector of the smallest kind.
const BLOCK_SIZE_MIN: u32 = 512;
/// The largest block, in bytes. No format that we know uses more.
const BLOCK_SIZE_MAX: u32 = 64 * 1024;

/// Whether I/O bypasses the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Bypass it where the medium and the alignment of offset and block size permit.
    #[default]
    Auto,
    /// Bypass it, or refuse to open the medium.
    Always,
    /// Use the page cache.
    Never,
}

/// Whether batches are issued through io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uring {
    /// Use it where the kernel permits, for all but cached writes, which gain nothing from it.
    #[default]
    Auto,
    /// Use `preadv` and `pwritev` only.
    Never,
}

/// How [`crate::FileDisk::open`] opens a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Bytes per block: a power of two from 512 to 65,536.
    pub block_size: u32,
    /// Where the volume starts, in bytes: a partition's start inside an image. A multiple of 512.
    pub offset: u64,
    /// The volume's length in bytes; up to the end of the medium when absent.
    pub size: Option<u64>,
    /// Open for reading only. Writers are still kept out while it is open.
    pub read_only: bool,
    /// Whether I/O bypasses the page cache.
    pub direct: Direct,
    /// Whether batches go through io_uring.
    pub io_uring: Uring,
    /// Refuse a medium that is in use. Without it nothing protects the volume from a second writer.
    pub lock: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            offset: 0,
            size: None,
            read_only: false,
            direct: Direct::Auto,
            io_uring: Uring::Auto,
            lock: true,
        }
    }
}

impl DiskOptions {
    /// Refuses values that no medium can satisfy.
    pub(crate) fn validate(&self) -> Result<()> {
        let size = self.block_size;
        if !size.is_power_of_two() || !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&size) {
            return Err(Error::Unsupported(format!(
                "a block size of {size} bytes: it must be a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}"
            )));
        }
        if !self.offset.is_multiple_of(u64::from(BLOCK_SIZE_MIN)) {
            return Err(Error::Unsupported(format!(
                "an offset of {} bytes: it must be a multiple of {BLOCK_SIZE_MIN}",
                self.offset
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sizes_and_offsets_are_refused() {
        for block_size in [0, 1, 511, 1000, 3072, 131_072] {
            let options = DiskOptions { block_size, ..DiskOptions::default() };
            assert!(matches!(options.validate(), Err(Error::Unsupported(_))), "{block_size}");
        }
        let options = DiskOptions { offset: 100, ..DiskOptions::default() };
        assert!(matches!(options.validate(), Err(Error::Unsupported(_))));
        DiskOptions::default().validate().unwrap();
    }
}
