//! Where the contents of a file are in an archive: in one piece, or in those that a sparse file has.
//!
//! GNU's old format lists them in the header and in blocks behind it, 21 to a block; formats 0.0 and 0.1 of pax in the
//! extended header; format 1.0 in lines of decimal digits before the contents.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use tar::{EntryType, GnuSparseHeader, Header};

use super::UNIT;
use super::extensions::{Extensions, decimal};

/// The most pieces that a file may have.
const PIECES_MAX: usize = 1 << 20;
/// The longest line of a map, in bytes.
const LINE_MAX: u64 = 32;

/// Contents that are stored in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where it starts in the file.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Where it starts in the archive.
    pub(super) at: u64,
}

impl Piece {
    /// Where it ends in the file.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The contents of a file.
pub(super) struct Layout {
    pub(super) pieces: Vec<Piece>,
    /// Its length with all holes.
    pub(super) size: u64,
    /// Bytes from the end of the header to that of the contents.
    pub(super) stored: u64,
}

/// The layout of the entry of `header`, of which `stored` bytes are at byte `data` of the archive.
pub(super) fn layout(
    archive: &File,
    header: &Header,
    extensions: &Extensions,
    (data, stored): (u64, u64),
) -> Result<Layout> {
    let sparse = &extensions.sparse;
    if header.entry_type() == EntryType::GNUSparse {
        return old_gnu(archive, header, (data, stored));
    }
    let Some(size) = sparse.size else {
        let whole = Piece { start: 0, len: stored, at: data };
        return Ok(Layout {
            pieces: (stored > 0).then_some(whole).into_iter().collect(),
            size: stored,
            stored,
        });
    };
    let (map, at) = match sparse.in_data {
        true => map_in_data(archive, data)?,
        false => (sparse.listed.clone(), data),
    };
    ensure!(map.len().is_multiple_of(2), "a damaged map of a sparse file");
    let map = map.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    Ok(Layout { pieces: pieces(map, size, (at, data.saturating_add(stored)))?, size, stored })
}

/// The numbers before the contents, and where these start.
fn map_in_data(archive: &File, data: u64) -> Result<(Vec<u64>, u64)> {
    let mut at = data;
    let mut number = || {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            archive.read_exact_at(&mut byte, at)?;
            at += 1;
            if byte == *b"\n" {
                return decimal(&line).context("a damaged map of a sparse file");
            }
            line.push(byte[0]);
            ensure!(u64::try_from(line.len())? <= LINE_MAX, "a damaged map of a sparse file");
        }
    };
    let count = usize::try_from(number()?)?;
    ensure!(count <= PIECES_MAX, "a sparse file of {count} pieces");
    let map = (0..2 * count).map(|_| number()).collect::<Result<_>>()?;
    Ok((map, data + (at - data).next_multiple_of(UNIT)))
}

fn old_gnu(archive: &File, header: &Header, (data, stored): (u64, u64)) -> Result<Layout> {
    let gnu = header.as_gnu().context("a sparse file in a header that is not GNU's")?;
    let mut map = Vec::new();
    let mut take = |list: &[GnuSparseHeader]| {
        for piece in list.iter().filter(|piece| !piece.is_empty()) {
            map.push((piece.offset()?, piece.length()?));
        }
        ensure!(map.len() <= PIECES_MAX, "a sparse file of {} pieces", map.len());
        Ok(())
    };
    take(&gnu.sparse)?;
    let (mut at, mut more) = (data, gnu.is_extended());
    while more {
        let mut block = tar::GnuExtSparseHeader::new();
        archive.read_exact_at(block.as_mut_bytes(), at)?;
        take(block.sparse())?;
        more = block.is_extended();
        at += UNIT;
    }
    let size = gnu.real_size()?;
    let end = at.saturating_add(stored);
    Ok(Layout { pieces: pieces(map, size, (at, end))?, size, stored: end - data })
}

/// Pieces that lie one after the other in the archive, from `at` to `end` at most.
fn pieces(map: Vec<(u64, u64)>, size: u64, (mut at, end): (u64, u64)) -> Result<Vec<Piece>> {
    let (mut pieces, mut reached) = (Vec::new(), 0);
    for (start, len) in map.into_iter().filter(|&(_, len)| len > 0) {
        let sound = start >= reached
            && start.checked_add(len).is_some_and(|end| end <= size)
            && len <= end - at.min(end);
        ensure!(sound, "a sparse file whose pieces overlap or lie outside of it");
        pieces.push(Piece { start, len, at });
        (reached, at) = (start + len, at + len);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_inside_their_file() {
        let found = pieces(vec![(0, 10), (20, 5), (30, 0)], 30, (512, 1024)).unwrap();
        assert_eq!(found[1], Piece { start: 20, len: 5, at: 522 });
        assert_eq!(found.len(), 2);
        for bad in [vec![(0, 10), (5, 5)], vec![(25, 10)], vec![(u64::MAX, 2)]] {
            assert!(pieces(bad, 30, (512, 1024)).is_err());
        }
        assert!(pieces(vec![(0, 20)], 30, (512, 520)).is_err(), "more than there is");
    }
}
