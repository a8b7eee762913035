//! Which blocks the area is, said by the maps themselves: for who has found a head on a medium whose format does not say it any more.
//!
//! The area is a sequence of **runs** of blocks that follow each other. There are two lists of them, one between the halves and the spares and
//! one behind those, of as many blocks as it takes. The head names the first block of each, and each block those that follow it in both, so that
//! it is enough if one of each two is whole. They are written when the maps are made, and again where one is found that is not as it was.
//!
//! ```text
//!    0 the next block of the one list   8 of the other (0 behind the last)   16 runs in this block   20 0   24 first block, count; 8 each
//! ```

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Error, Le, Result, Structure};

use super::area::MapWrite;
use super::block::{self, HEADER, Identity};
use super::head::Named;
use super::{Area, Part};

/// Bytes before the runs.
const RUNS: usize = 24;
/// Bytes of a run.
const RUN: usize = 16;

/// Blocks that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    count: u64,
}

fn runs(blocks: &[BlockNo]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(last) if last.start + last.count == block.get() => last.count += 1,
            _ => runs.push(Run { start: block.get(), count: 1 }),
        }
    }
    runs
}

/// Runs that a block has room for.
pub(crate) fn entries(block_size: u32) -> u64 {
    to_u64((to_usize(block_size) - HEADER - RUNS) / RUN)
}

/// Blocks that a list of an area takes.
pub(crate) fn blocks_for(block_size: u32, blocks: &[BlockNo]) -> u64 {
    to_u64(runs(blocks).len()).div_ceil(entries(block_size)).max(1)
}

/// What the blocks of both lists hold.
fn contents(area: &Area) -> Vec<Vec<u8>> {
    let runs = runs(&area.blocks);
    let pieces: Vec<&[Run]> = runs.chunks(to_usize(entries(area.shape.block_size))).collect();
    let one = |index: u64| {
        let mut contents = vec![0; area.shape.payload()];
        if index + 1 < area.shape.list {
            for half in 0..2 {
                let next = area.at(area.shape.place(half, Part::List, index + 1));
                Le::put_u64(&mut contents, 8 * to_usize(half), next.get());
            }
        }
        let piece = pieces.get(to_usize(index)).copied().unwrap_or_default();
        Le::put_u32(&mut contents, 16, u32::try_from(piece.len()).expect("as many as a block has room for"));
        for (at, run) in (RUNS..).step_by(RUN).zip(piece) {
            Le::put_u64(&mut contents, at, run.start);
            Le::put_u64(&mut contents, at + 8, run.count);
        }
        contents
    };
    (0..area.shape.list).map(one).collect()
}

fn put(area: &Area, wanted: impl Fn(u64, &[u8]) -> bool) -> Result<()> {
    let mut writes = Vec::new();
    for (index, contents) in (0..).zip(contents(area)) {
        if wanted(index, &contents) {
            let generation = area.read(Part::List, index).map_or(0, |(generation, _)| generation) + 1;
            writes.push(MapWrite { part: Part::List, index, generation, contents });
        }
    }
    if writes.is_empty() { Ok(()) } else { area.write(&writes) }
}

/// Writes both lists, if the area has any.
pub(crate) fn write(area: &Area) -> Result<()> {
    put(area, |_, _| true)
}

/// Writes what of the lists is not as it was. That it cannot be written keeps nobody from using the maps, which have been found.
///
/// # Errors
/// If a flush fails.
pub(crate) fn mend(area: &Area) -> Result<()> {
    let is_lost = |index: u64, contents: &[u8]| {
        let found = [0, 1].map(|half| area.raw(half, Part::List, index).unwrap_or_default());
        let is_right = |bytes: &Vec<u8>| {
            !bytes.is_empty()
                && block::generation(bytes, area.identity(Part::List, index)).is_some()
                && bytes[HEADER..] == *contents
        };
        !found.iter().all(is_right)
    };
    match put(area, is_lost) {
        Err(Error::Io { op: fstitch_core::IoOp::Write, .. }) => Ok(()),
        put => put,
    }
}

fn corrupt(block: Option<BlockNo>, problem: &str) -> Error {
    Error::corrupt(Structure::Other("list of the maps of the shepherd"), block, problem)
}

/// The blocks of the area that a head names, on a device of that head's blocks.
///
/// # Errors
/// `Corrupt` if a block of the list is lost in both places, or it says what cannot be.
pub(crate) fn read(device: &dyn BlockDevice, named: &Named) -> Result<Vec<BlockNo>> {
    let lists = named.lists.ok_or_else(|| corrupt(None, "the maps are of a version that has none"))?;
    let geometry = device.geometry();
    let mut runs = Vec::new();
    let mut total: u64 = 0;
    let mut at = lists.first;
    for index in 0..u64::from(lists.blocks) {
        let identity = Identity { version: block::LISTED, part: Part::List, index, uuid: named.uuid };
        let found = at.into_iter().filter_map(|block| read_one(device, block, identity));
        let newest = found.max_by_key(|(generation, _)| *generation);
        let (_, contents) =
            newest.ok_or_else(|| corrupt(Some(at[0]), "a block of it is lost in both places"))?;
        let count = u64::from(Le::u32(&contents, 16)).min(entries(geometry.block_size));
        for at in (RUNS..).step_by(RUN).take(to_usize(count)) {
            let run = Run { start: Le::u64(&contents, at), count: Le::u64(&contents, at + 8) };
            let end = run.start.checked_add(run.count).filter(|end| *end <= geometry.block_count);
            total = total.saturating_add(run.count);
            if run.count == 0 || end.is_none() || total > geometry.block_count {
                return Err(corrupt(Some(lists.first[0]), "it names blocks that there are not"));
            }
            runs.push(run);
        }
        at = [0, 8].map(|field| BlockNo(Le::u64(&contents, field)));
    }
    let mut sorted = runs.clone();
    sorted.sort_unstable_by_key(|run| run.start);
    if sorted.windows(2).any(|pair| pair[0].start + pair[0].count > pair[1].start) {
        return Err(corrupt(Some(lists.first[0]), "it names a block twice"));
    }
    Ok(runs.iter().flat_map(|run| (run.start..run.start + run.count).map(BlockNo)).collect())
}

fn read_one(device: &dyn BlockDevice, block: BlockNo, identity: Identity) -> Option<(u64, Vec<u8>)> {
    let geometry = device.geometry();
    let mut bytes = vec![0; to_usize(geometry.block_size)];
    if block.get() >= geometry.block_count {
        return None;
    }
    device.read(&mut [BlockRead { block, kind: BlockKind::Data, data: &mut bytes }]).ok()?;
    block::generation(&bytes, identity).map(|generation| (generation, bytes.split_off(HEADER)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{BlockWrite, MemDevice};

    use super::super::{Shape, head};
    use super::*;

    const BLOCK: u32 = 512;

    /// An area of many runs, so that its list takes several blocks, with its head and its lists on the medium.
    fn made() -> (Arc<MemDevice>, Area, Named) {
        let blocks: Vec<BlockNo> =
            (0..90).map(|no| BlockNo(5 + 3 * no)).chain((300..500).map(BlockNo)).collect();
        let list = blocks_for(BLOCK, &blocks);
        assert!(list > 3, "the list has a middle");
        let shape = Shape::fit(BLOCK, 600, to_u64(blocks.len()), list).unwrap();
        let device = Arc::new(MemDevice::new(BLOCK, 600));
        let area = Area::new(Arc::clone(&device) as _, &blocks, shape, [3; 16]);
        write(&area).unwrap();
        let named = Named { uuid: [3; 16], volume: 600, lists: head::Lists::of(&area) };
        (device, area, named)
    }

    fn spoil(device: &MemDevice, block: BlockNo, change: impl Fn(&mut [u8])) {
        let mut data = vec![0; to_usize(BLOCK)];
        device.read(&mut [BlockRead { block, kind: BlockKind::Data, data: &mut data }]).unwrap();
        change(&mut data);
        device.write(&[BlockWrite { block, kind: BlockKind::Data, data: &data }]).unwrap();
    }

    #[test]
    fn either_of_two_blocks_is_enough_and_what_is_lost_is_written_again() {
        let (device, area, named) = made();
        assert_eq!(read(&*device, &named).unwrap(), area.blocks);
        for index in 0..area.shape.list {
            let [one, other] = [0, 1].map(|half| area.at(area.shape.place(half, Part::List, index)));
            for (lost, left) in [(one, other), (other, one)] {
                spoil(&device, lost, |data| data.fill(0));
                assert_eq!(read(&*device, &named).unwrap(), area.blocks, "block {lost}");
                mend(&area).unwrap();
                spoil(&device, left, |data| data[50] ^= 1);
                assert_eq!(read(&*device, &named).unwrap(), area.blocks, "block {left} after {lost}");
                mend(&area).unwrap();
            }
            spoil(&device, one, |data| data[8] ^= 1);
            spoil(&device, other, |data| data.fill(0xff));
            let refused = read(&*device, &named).unwrap_err().to_string();
            assert!(refused.contains("lost in both places"), "{refused}");
            mend(&area).unwrap();
        }
    }

    /// Lists with a right sum that nobody of us has written.
    #[test]
    fn a_list_of_what_cannot_be_is_refused() {
        let (device, area, named) = made();
        let right = contents(&area);
        for (word, value, why) in [
            (RUNS, 600, "blocks that there are not"),
            (RUNS, u64::MAX, "blocks that there are not"),
            (RUNS + 8, 0, "blocks that there are not"),
            (RUNS + 8, u64::MAX, "blocks that there are not"),
            (RUNS, 8, "a block twice"),
            (0, 599, ""),
            (0, u64::MAX, ""),
        ] {
            let mut contents = right[0].clone();
            Le::put_u64(&mut contents, word, value);
            area.write(&[MapWrite { part: Part::List, index: 0, generation: 9, contents }]).unwrap();
            match read(&*device, &named) {
                Ok(blocks) => assert!(why.is_empty() && blocks == area.blocks, "{word}: {value}"),
                Err(error) => assert!(!why.is_empty() && error.to_string().contains(why), "{error}"),
            }
        }
        let endless =
            Named { lists: named.lists.map(|lists| head::Lists { blocks: u32::MAX, ..lists }), ..named };
        assert!(read(&*device, &endless).unwrap_err().to_string().contains("lost in both places"));
        assert!(read(&*device, &Named { lists: None, ..named }).is_err());
    }
}
