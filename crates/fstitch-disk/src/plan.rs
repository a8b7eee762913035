//! From a batch of blocks to requests: neighbours are joined.
//!
//! A plan borrows the memory of a batch for as long as it lives, mutably for reads. Each vector is exactly
//! one block, so that progress counted in whole blocks never splits a vector.

use std::marker::PhantomData;

use fstitch_core::BlockNo;
use fstitch_core::num::{to_u64, to_usize};

/// The most bytes of one request: 256 pages, which is what the kernel packs into one `bio`. Larger requests
/// would be split below us, and smaller ones leave the device more to do at the same time.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The most vectors that one system call accepts (`IOV_MAX` on Linux).
const REQUEST_VECTORS_MAX: usize = 1024;

/// Where data flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the medium to memory.
    Read,
    /// From memory to the medium.
    Write,
}

/// Where blocks lie on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The byte at which block 0 starts.
    pub(crate) offset: u64,
    /// Bytes per block.
    pub(crate) block_size: u32,
    /// Blocks of the volume.
    pub(crate) block_count: u64,
}

impl Layout {
    /// Bytes per block, as a length in memory.
    pub(crate) fn unit(&self) -> usize {
        to_usize(self.block_size)
    }

    /// The byte at which `block`, which lies inside the volume, starts.
    pub(crate) fn position(&self, block: BlockNo) -> u64 {
        assert!(block.get() <= self.block_count, "block {block} of {}", self.block_count);
        self.offset + block.get() * u64::from(self.block_size)
    }
}

/// Neighbouring blocks, moved by one system call: vectors `start..start + count` of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The first block.
    pub(crate) first: BlockNo,
    /// The first block's vector.
    pub(crate) start: usize,
    /// Blocks, and vectors.
    pub(crate) count: usize,
}

impl Request {
    /// What is left after `blocks` blocks have been moved.
    pub(crate) fn skip(self, blocks: usize) -> Self {
        assert!(blocks <= self.count, "{blocks} of {} blocks moved", self.count);
        let moved = to_u64(blocks);
        Self {
            first: BlockNo(self.first.get() + moved),
            start: self.start + blocks,
            count: self.count - blocks,
        }
    }

    /// Only the first block of it.
    pub(crate) fn head(self) -> Self {
        Self { count: 1, ..self }
    }
}

/// The requests of one batch and the memory that they use.
pub(crate) struct Plan<'a> {
    direction: Direction,
    layout: Layout,
    vectors: Vec<libc::iovec>,
    requests: Vec<Request>,
    /// The vectors point into memory borrowed for `'a`.
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Plan<'a> {
    /// Reads blocks into memory.
    pub(crate) fn read(layout: Layout, blocks: Vec<(BlockNo, &'a mut [u8])>) -> Self {
        let vectors = blocks.into_iter().map(|(block, data)| {
            assert_eq!(data.len(), layout.unit(), "one block of memory");
            (block, libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() })
        });
        Self::new(Direction::Read, layout, vectors.collect())
    }

    /// Writes blocks from memory.
    pub(crate) fn write(layout: Layout, blocks: Vec<(BlockNo, &'a [u8])>) -> Self {
        let vectors = blocks.into_iter().map(|(block, data)| {
            assert_eq!(data.len(), layout.unit(), "one block of memory");
            (block, libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() })
        });
        Self::new(Direction::Write, layout, vectors.collect())
    }

    fn new(direction: Direction, layout: Layout, mut blocks: Vec<(BlockNo, libc::iovec)>) -> Self {
        if !blocks.is_sorted_by_key(|&(block, _)| block) {
            blocks.sort_by_key(|&(block, _)| block);
        }
        let count_max = (REQUEST_BYTES_MAX / layout.unit()).clamp(1, REQUEST_VECTORS_MAX);
        let mut requests: Vec<Request> = Vec::new();
        for (start, &(block, _)) in blocks.iter().enumerate() {
            match requests.last_mut() {
                Some(last) if last.count < count_max && last.skip(last.count).first == block => {
                    last.count += 1;
                }
                _ => requests.push(Request { first: block, start, count: 1 }),
            }
        }
        let vectors = blocks.into_iter().map(|(_, vector)| vector).collect();
        Self { direction, layout, vectors, requests, memory: PhantomData }
    }

    /// Where data flows.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Bytes per block.
    pub(crate) fn unit(&self) -> usize {
        self.layout.unit()
    }

    /// The requests, in block order.
    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The memory of a request.
    pub(crate) fn vectors(&self, request: Request) -> &[libc::iovec] {
        &self.vectors[request.start..request.start + request.count]
    }

    /// The byte on the medium at which a request starts.
    pub(crate) fn position(&self, request: Request) -> u64 {
        self.layout.position(request.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(block_size: u32, blocks: &[u64]) -> Vec<(u64, usize)> {
        let layout = Layout { offset: 0, block_size, block_count: 1 << 20 };
        let memory = vec![0; layout.unit()];
        let blocks = blocks.iter().map(|&block| (BlockNo(block), &memory[..])).collect();
        let plan = Plan::write(layout, blocks);
        plan.requests().iter().map(|request| (request.first.get(), request.count)).collect()
    }

    #[test]
    fn neighbours_are_joined_and_gaps_are_not() {
        assert_eq!(runs(1024, &[1, 2, 3, 7, 9, 10]), [(1, 3), (7, 1), (9, 2)]);
    }

    #[test]
    fn unsorted_batches_are_sorted() {
        assert_eq!(runs(1024, &[9, 2, 10, 1]), [(1, 2), (9, 2)]);
    }

    #[test]
    fn requests_are_bounded_in_bytes_and_vectors() {
        let blocks: Vec<u64> = (0..2050).collect();
        assert_eq!(runs(512, &blocks), [(0, 1024), (1024, 1024), (2048, 2)]);
        assert_eq!(runs(4096, &blocks[..600]), [(0, 256), (256, 256), (512, 88)]);
    }

    #[test]
    fn the_same_block_twice_is_two_requests() {
        assert_eq!(runs(1024, &[4, 4]), [(4, 1), (4, 1)]);
    }
}
