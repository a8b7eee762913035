//! Block-sized memory, aligned so that direct I/O can use it as it is.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unalign};

/// The alignment, in bytes, of every [`BlockBuf`].
const ALIGNMENT: usize = 512;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(512))]
struct Sector([u8; ALIGNMENT]);

/// The bytes of one block: a multiple of 512 bytes, aligned to 512 bytes, zeroed when made.
///
/// `O_DIRECT` needs aligned memory; the cache's blocks are handed to the device without a copy, so all of
/// them are made aligned.
#[derive(Clone)]
pub struct BlockBuf(Box<[Sector]>);

impl BlockBuf {
    /// A zeroed buffer of `len` bytes.
    ///
    /// # Panics
    /// If `len` is not a multiple of 512.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        assert!(len.is_multiple_of(ALIGNMENT), "block size {len} is not a multiple of {ALIGNMENT}");
        let sectors = <[Sector]>::new_box_zeroed_with_elems(len / ALIGNMENT).expect("allocation of a block");
        Self(sectors)
    }

    /// A buffer that holds a copy of `bytes`.
    ///
    /// # Panics
    /// If their number is not a multiple of 512.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let sectors = <[Unalign<Sector>]>::ref_from_bytes(bytes);
        let sectors = sectors.unwrap_or_else(|_| panic!("{} bytes are no whole sectors", bytes.len()));
        // Not zeroed first: this is how contents of files come in.
        Self(sectors.iter().map(|sector| sector.get()).collect())
    }
}

impl Deref for BlockBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for BlockBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

impl std::fmt::Debug for BlockBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        let buf = BlockBuf::zeroed(1024);
        assert_eq!(buf.len(), 1024);
        assert!(buf.iter().all(|&b| b == 0));
        assert_eq!(buf.as_ptr().addr() % ALIGNMENT, 0);
    }

    #[test]
    fn copies_are_aligned_whatever_they_are_copied_from() {
        let bytes: Vec<u8> = (0..2049_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let buf = BlockBuf::copy_of(&bytes[1..]);
        assert_eq!(buf[..], bytes[1..]);
        assert_eq!(buf.as_ptr().addr() % ALIGNMENT, 0);
    }

    #[test]
    #[should_panic(expected = "100 bytes are no whole sectors")]
    fn half_a_sector_is_no_block() {
        drop(BlockBuf::copy_of(&[0; 100]));
    }
}
