//! Aligned memory that stands in for unaligned memory of callers.

use fstitch_core::BlockBuf;

/// Zeroed memory of whole blocks, aligned as asked.
pub(crate) struct Bounce {
    memory: BlockBuf,
    skip: usize,
    len: usize,
}

impl Bounce {
    /// `blocks` blocks of `unit` bytes, aligned to `alignment` bytes, a multiple of 512.
    pub(crate) fn new(blocks: usize, unit: usize, alignment: usize) -> Self {
        let len = blocks * unit;
        let memory = BlockBuf::zeroed(if len == 0 { 0 } else { len + alignment });
        let skip = if len == 0 { 0 } else { memory.as_ptr().align_offset(alignment) };
        assert!(skip + len <= memory.len(), "{skip} + {len} bytes fit {}", memory.len());
        Self { memory, skip, len }
    }

    /// The memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.len]
    }

    /// The memory, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.len]
    }
}

/// Whether memory is aligned to `alignment` bytes.
pub(crate) fn is_aligned(memory: &[u8], alignment: usize) -> bool {
    memory.as_ptr().addr().is_multiple_of(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_as_asked() {
        for alignment in [512, 4096] {
            for blocks in [0, 1, 3] {
                let bounce = Bounce::new(blocks, 1024, alignment);
                assert_eq!(bounce.bytes().len(), blocks * 1024);
                assert!(blocks == 0 || is_aligned(bounce.bytes(), alignment));
            }
        }
    }
}
