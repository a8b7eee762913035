//! A block of a map, which says what it is.
//!
//! ```text
//!    0 magic "FSHP"   4 version, part   8 index   16 UUID of the volume   32 generation   40 CRC32C of all but this   44 zero   48 contents
//! ```

use fstitch_core::Le;
use fstitch_core::num::to_usize;

use super::Part;

/// Bytes before the contents.
pub(crate) const HEADER: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"FSHP");
/// The version of maps that do not say where their blocks are.
pub(crate) const UNLISTED: u16 = 1;
/// Of those that do.
pub(crate) const LISTED: u16 = 2;
const SUM: usize = 40;

/// What a block of a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) version: u16,
    pub(crate) part: Part,
    pub(crate) index: u64,
    pub(crate) uuid: [u8; 16],
}

fn code(part: Part) -> u16 {
    match part {
        Part::Head => 1,
        Part::Policy => 2,
        Part::Doubt => 3,
        Part::Sums => 4,
        Part::Owners => 5,
        Part::Counters => 6,
        Part::List => 7,
    }
}

fn sum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..SUM]), &bytes[SUM + 4..])
}

/// A block with these contents.
pub(crate) fn encode(block_size: u32, identity: Identity, generation: u64, contents: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(block_size)];
    Le::put_u32(&mut bytes, 0, MAGIC);
    Le::put_u16(&mut bytes, 4, identity.version);
    Le::put_u16(&mut bytes, 6, code(identity.part));
    Le::put_u64(&mut bytes, 8, identity.index);
    bytes[16..32].copy_from_slice(&identity.uuid);
    Le::put_u64(&mut bytes, 32, generation);
    bytes[HEADER..HEADER + contents.len()].copy_from_slice(contents);
    let sum = sum(&bytes);
    Le::put_u32(&mut bytes, SUM, sum);
    bytes
}

/// The generation of a block, if it is what it should be.
pub(crate) fn generation(bytes: &[u8], identity: Identity) -> Option<u64> {
    let is_it = Le::u32(bytes, 0) == MAGIC
        && Le::u16(bytes, 4) == identity.version
        && Le::u16(bytes, 6) == code(identity.part)
        && Le::u64(bytes, 8) == identity.index
        && bytes[16..32] == identity.uuid
        && Le::u32(bytes, SUM) == sum(bytes);
    // One more must always be possible: nobody counts that far.
    let generation = Le::u64(bytes, 32);
    (is_it && generation < 1 << 63).then_some(generation)
}

/// Of a block that is a head: its version and its volume's UUID, which the caller does not know yet, and its contents.
pub(crate) fn head(bytes: &[u8]) -> Option<(Identity, &[u8])> {
    let version = (bytes.len() > HEADER).then(|| Le::u16(bytes, 4))?;
    let uuid = bytes[16..32].try_into().ok()?;
    let identity = Identity { version, part: Part::Head, index: 0, uuid };
    let is_known = version == UNLISTED || version == LISTED;
    generation(bytes, identity).filter(|_| is_known).map(|_| (identity, &bytes[HEADER..]))
}

/// Whether a piece of a medium begins as a head of maps that say where they are.
pub(crate) fn begins_head(bytes: &[u8]) -> bool {
    bytes.len() > HEADER
        && Le::u32(bytes, 0) == MAGIC
        && Le::u16(bytes, 4) == LISTED
        && Le::u16(bytes, 6) == code(Part::Head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_only_itself() {
        let identity = Identity { version: LISTED, part: Part::Sums, index: 7, uuid: [9; 16] };
        let bytes = encode(512, identity, 3, &[1; 464]);
        assert_eq!(generation(&bytes, identity), Some(3));
        assert_eq!(generation(&bytes, Identity { index: 8, ..identity }), None);
        assert_eq!(generation(&bytes, Identity { version: UNLISTED, ..identity }), None);
        assert_eq!(generation(&bytes, Identity { part: Part::Owners, ..identity }), None);
        assert_eq!(generation(&bytes, Identity { uuid: [8; 16], ..identity }), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(generation(&damaged, identity), None, "byte {at}");
        }
    }
}
