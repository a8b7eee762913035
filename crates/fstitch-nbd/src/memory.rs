//! An export in memory, of which only what was written takes room.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::lock::RwLock;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{Errno, Result};

use crate::export::{BlockSizes, Export, Extent, Features, ZeroOptions};

/// Bytes in a piece of memory.
const PIECE: u64 = 1 << 16;

type Piece = RwLock<Box<[u8]>, rank::Leaf>;

/// Sparse memory. A flush does nothing, because nothing is ever volatile, or everything is.
pub struct MemExport {
    size: AtomicU64,
    features: Features,
    pieces: RwLock<BTreeMap<u64, Piece>, rank::Table>,
}

impl std::fmt::Debug for MemExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemExport({} bytes)", self.size())
    }
}

/// The part of a request that lies in one piece.
struct Part {
    piece: u64,
    /// Where it begins in the piece.
    start: usize,
    len: usize,
}

/// The parts of a request.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (piece, start) = (at / PIECE, at % PIECE);
        let len = (PIECE - start).min(end - at);
        at += len;
        (len > 0).then(|| Part { piece, start: to_usize(start), len: to_usize(len) })
    })
}

impl MemExport {
    /// Zeros, `size` of them.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let features = Features { has_multi_conn: true, has_status: true, ..Features::default() };
        Self::with_features(size, features)
    }

    /// The same with other features; those that it cannot have are the caller's business.
    #[must_use]
    pub const fn with_features(size: u64, features: Features) -> Self {
        Self { size: AtomicU64::new(size), features, pieces: RwLock::new(BTreeMap::new()) }
    }

    /// The same for requests of these sizes only.
    #[must_use]
    pub fn with_blocks(size: u64, block: BlockSizes) -> Self {
        Self { features: Features { block, ..Self::new(0).features }, ..Self::new(size) }
    }

    /// Changes the size. What lies beyond a smaller one is gone.
    pub fn resize(&self, size: u64) {
        let mut pieces = self.pieces.write();
        self.size.store(size, Ordering::Release);
        drop(pieces.split_off(&size.div_ceil(PIECE)));
        if let Some(last) = pieces.get(&(size / PIECE)) {
            last.write()[to_usize(size % PIECE)..].fill(0);
        }
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        to_u64(self.pieces.read().len()) * PIECE
    }

    /// Fails for what lies beyond the end: the size may have changed since the server looked.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let is_within = offset.checked_add(len).is_some_and(|end| end <= self.size());
        if is_within { Ok(()) } else { Err(Errno::INVAL.into()) }
    }

    /// Writes one part into memory that may have to be made.
    fn write_part(&self, part: &Part, bytes: &[u8]) {
        if let Some(piece) = self.pieces.read().get(&part.piece) {
            piece.write()[part.start..part.start + part.len].copy_from_slice(bytes);
            return;
        }
        let mut pieces = self.pieces.write();
        let piece = pieces
            .entry(part.piece)
            .or_insert_with(|| RwLock::new(vec![0; to_usize(PIECE)].into_boxed_slice()));
        piece.write()[part.start..part.start + part.len].copy_from_slice(bytes);
    }

    /// Makes zeros, and gives whole pieces back.
    fn clear(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let end = offset + len;
        let whole = offset.div_ceil(PIECE)..end / PIECE;
        let mut pieces = self.pieces.write();
        if !whole.is_empty() {
            // What is dropped is what lies in the middle.
            let mut rest = pieces.split_off(&whole.start);
            pieces.append(&mut rest.split_off(&whole.end));
        }
        for edge in [offset / PIECE, end / PIECE] {
            let Some(piece) = pieces.get(&edge) else { continue };
            let start = offset.max(edge * PIECE) - edge * PIECE;
            let stop = end.min((edge + 1) * PIECE).saturating_sub(edge * PIECE);
            if start < stop {
                piece.write()[to_usize(start)..to_usize(stop)].fill(0);
            }
        }
        Ok(())
    }
}

impl Export for MemExport {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn features(&self) -> Features {
        self.features
    }

    fn description(&self) -> Option<String> {
        Some("sparse memory".to_owned())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check(offset, to_u64(into.len()))?;
        let mut done = 0;
        let pieces = self.pieces.read();
        for part in parts(offset, to_u64(into.len())) {
            let into = &mut into[done..done + part.len];
            match pieces.get(&part.piece) {
                Some(piece) => into.copy_from_slice(&piece.read()[part.start..part.start + part.len]),
                None => into.fill(0),
            }
            done += part.len;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8], _fua: bool) -> Result<()> {
        self.check(offset, to_u64(bytes.len()))?;
        let mut done = 0;
        for part in parts(offset, to_u64(bytes.len())) {
            self.write_part(&part, &bytes[done..done + part.len]);
            done += part.len;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.clear(offset, len)
    }

    /// Always fast. Space is given back even where it should be kept: a write that finds no memory ends the process anyway.
    fn write_zeroes(&self, offset: u64, len: u64, _how: ZeroOptions) -> Result<()> {
        self.clear(offset, len)
    }

    fn status(&self, offset: u64, len: u64, sink: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        self.check(offset, len)?;
        let end = offset + len;
        let mut at = offset;
        for &piece in self.pieces.read().range(offset / PIECE..).map(|(piece, _)| piece) {
            let (start, stop) = ((piece * PIECE).max(offset), ((piece + 1) * PIECE).min(end));
            if start >= end {
                break;
            }
            if start > at && sink(Extent::hole(start - at)).is_break() {
                return Ok(());
            }
            if sink(Extent::data(stop - start)).is_break() {
                return Ok(());
            }
            at = stop;
        }
        if at < end {
            let _ = sink(Extent::hole(end - at));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 5 * PIECE + 777;
    const HOW: ZeroOptions = ZeroOptions { may_trim: true, fast: true, fua: false };

    fn extents(export: &MemExport, offset: u64, len: u64) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut sink = |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        };
        export.status(offset, len, &mut sink).unwrap();
        extents
    }

    #[test]
    fn only_what_was_written_takes_room() {
        let export = MemExport::new(1 << 40);
        export.write((1 << 39) + 5, &[1; 3], false).unwrap();
        assert_eq!(export.allocated(), PIECE);
        let mut bytes = [7; 5];
        export.read((1 << 39) + 4, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 1, 1, 0]);
        let found = extents(&export, (1 << 39) - PIECE, 4 * PIECE);
        assert_eq!(found, [Extent::hole(PIECE), Extent::data(PIECE), Extent::hole(2 * PIECE)]);
        export.trim(1 << 39, PIECE, false).unwrap();
        assert_eq!(export.allocated(), 0);
    }

    #[test]
    fn a_smaller_one_forgets_what_lay_beyond() {
        let export = MemExport::new(SIZE);
        export.write(0, &[1; 100], false).unwrap();
        export.write(3 * PIECE, &[2; 100], false).unwrap();
        export.resize(50);
        assert!(export.read(0, &mut [0; 51]).is_err());
        export.resize(SIZE);
        let mut bytes = [9; 100];
        export.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..50], &bytes[50..]), (&[1; 50][..], &[0; 50][..]));
        export.read(3 * PIECE, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 100]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_an_array_of_bytes(
            operations in proptest::collection::vec((0_u8..3, 0..SIZE, 1..2 * PIECE, 1_u8..), 1..12),
        ) {
            let export = MemExport::new(SIZE);
            let mut model = vec![0; to_usize(SIZE)];
            for (what, offset, len, byte) in operations {
                let len = len.min(SIZE - offset);
                let place = to_usize(offset)..to_usize(offset + len);
                match what {
                    0 => export.write(offset, &vec![byte; to_usize(len)], false).unwrap(),
                    1 => export.write_zeroes(offset, len, HOW).unwrap(),
                    _ => export.trim(offset, len, false).unwrap(),
                }
                model[place].fill(if what == 0 { byte } else { 0 });
            }
            let mut bytes = vec![7; to_usize(SIZE)];
            export.read(0, &mut bytes).unwrap();
            prop_assert!(bytes == model);
            let mut at = 0;
            for extent in extents(&export, 0, SIZE) {
                let end = at + to_usize(extent.len);
                prop_assert!(!extent.is_zero || model[at..end].iter().all(|&byte| byte == 0));
                at = end;
            }
            prop_assert_eq!(to_u64(at), SIZE);
        }
    }
}
