//! The images of one cut, by hash and by block, without making them.

use rustc_hash::FxHashMap;

use crate::medium::{Base, Cut, SECTOR, hash_block, hash_sector};

/// What the images of a cut have in common, hashed once.
pub struct View<'a> {
    cut: &'a Cut,
    /// The stable image's hash.
    stable: u128,
    /// For every atom, the hashes of its candidates.
    hashes: Vec<Vec<u128>>,
    /// For every undecided block, its atoms and the hash of the sectors that are decided.
    blocks: FxHashMap<u64, (std::ops::Range<usize>, u128)>,
    /// Atoms are not what a block's hash is the sum of.
    is_unlike: bool,
}

/// A block's share of an image's hash.
fn share(block: u64, hash: u128) -> u128 {
    let place = u128::from(block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let mixed = (hash ^ place.rotate_left(64)).wrapping_mul(place << 1 | 1);
    mixed ^ (mixed >> 61)
}

/// How much a block changes the hash of the base, which is 0.
fn change(base: &Base, block: u64, hash: u128) -> u128 {
    share(block, hash).wrapping_sub(share(block, base.hash(block)))
}

impl<'a> View<'a> {
    /// Hashes what a cut leaves open.
    #[must_use]
    pub fn new(cut: &'a Cut) -> Self {
        let is_unlike = cut.atoms.iter().any(|atom| {
            let block = atom.candidates[0].len();
            atom.len != block && atom.len != SECTOR
        });
        let hashes: Vec<Vec<u128>> = cut
            .atoms
            .iter()
            .map(|atom| {
                let hash = |data: &crate::medium::Bytes| match atom.len == data.len() {
                    true => data.hash(),
                    false if is_unlike => 0,
                    false => hash_sector(atom.offset, &data[atom.offset..atom.offset + atom.len]),
                };
                atom.candidates.iter().map(hash).collect()
            })
            .collect();
        let mut blocks: FxHashMap<u64, (std::ops::Range<usize>, u128)> = FxHashMap::default();
        for (at, atom) in cut.atoms.iter().enumerate() {
            let (range, rest) =
                blocks.entry(atom.block).or_insert_with(|| (at..at, atom.candidates[0].hash()));
            range.end = at + 1;
            *rest = rest.wrapping_sub(hashes[at][0]);
        }
        let decided = cut.stable.iter().filter(|(block, _)| !blocks.contains_key(block));
        let stable =
            decided.map(|(&block, data)| change(&cut.base, block, data.hash())).fold(0, u128::wrapping_add);
        Self { cut, stable, hashes, blocks, is_unlike }
    }

    /// The hash of the whole image.
    #[must_use]
    pub fn image(&self, choice: &[u8]) -> u128 {
        let open = self.blocks.keys().map(|&block| change(&self.cut.base, block, self.block(choice, block)));
        open.fold(self.stable, u128::wrapping_add)
    }

    /// The hash of one block.
    #[must_use]
    pub fn block(&self, choice: &[u8], block: u64) -> u128 {
        match self.blocks.get(&block) {
            Some((range, _)) if self.is_unlike => hash_block(&self.cut.put_together(range.clone(), choice)),
            Some((range, rest)) => range
                .clone()
                .map(|at| self.hashes[at][usize::from(choice[at])])
                .fold(*rest, u128::wrapping_add),
            None => self.cut.stable.get(&block).map_or_else(|| self.cut.base.hash(block), |data| data.hash()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use fstitch_core::{BlockKind, Seed};

    use super::View;
    use crate::medium::{Base, Cut, Event, History, Level, RequestNo, for_each_choice};

    /// Prevents the same where atoms are smaller or larger than sectors, and once they are stable.
    #[test]
    fn atoms_of_every_size_give_an_image_one_hash() {
        for (block_size, atom) in [(64, 8), (512, 8), (2048, 1024)] {
            let base = Base::with_atoms(block_size, atom, vec![0; 4096]);
            let len = usize::try_from(block_size).expect("small");
            let mut hashes: BTreeMap<Vec<u8>, BTreeSet<u128>> = BTreeMap::new();
            for level in Level::ALL {
                let mut history = History::new(base.clone(), level);
                let kind = BlockKind::Data;
                for (no, fill) in (0..).zip([1, 2]) {
                    let data = [vec![fill; len / 2], vec![fill % 2; len / 2]].concat().into();
                    let request = RequestNo(no);
                    history.apply(&Event::Write { request, block: 1, kind, data, fua: false });
                }
                for event in [None, Some(Event::Ack(RequestNo(1)))] {
                    event.iter().for_each(|event| history.apply(event));
                    let cut = history.cut();
                    let view = View::new(&cut);
                    for_each_choice(&cut, 1 << 10, &mut Seed::new(0), &mut |choice| {
                        hashes.entry(cut.image(choice).bytes()).or_default().insert(view.image(choice));
                        true
                    });
                }
            }
            let different: BTreeSet<&u128> = hashes.values().flatten().collect();
            assert_eq!(different.len(), hashes.len(), "one hash for each image, of atoms of {atom} bytes");
        }
    }

    /// Prevents images that are taken for others because their blocks were put together differently.
    #[test]
    fn an_image_has_one_hash_however_it_is_split() {
        let base = Base::new(1024, vec![0; 4096]);
        let cut = |level: Level| -> Cut {
            let mut history = History::new(base.clone(), level);
            let writes = [(0, 1, 1), (0, 2, 1), (0, 2, 2), (2, 1, 2), (3, 0, 3)];
            for (request, (block, low, high)) in (0..).zip(writes) {
                let data = [vec![low; 512], vec![high; 512]].concat().into();
                let (request, kind) = (RequestNo(request), BlockKind::Data);
                history.apply(&Event::Write { request, block, kind, data, fua: false });
            }
            history.cut()
        };
        let mut hashes: BTreeMap<Vec<Vec<u8>>, BTreeSet<u128>> = BTreeMap::new();
        for cut in [cut(Level::M2), cut(Level::M3)] {
            let view = View::new(&cut);
            for_each_choice(&cut, u64::MAX, &mut Seed::new(0), &mut |choice| {
                let blocks = cut.blocks(choice);
                let whole =
                    |block| blocks.get(&block).map_or_else(|| base.block(block).to_vec(), |b| b.to_vec());
                hashes.entry((0..4).map(whole).collect()).or_default().insert(view.image(choice));
                true
            });
        }
        assert_eq!(hashes.len(), 3 * 3 * 4 * 2, "sectors of block 0, of block 2, and of block 3");
        assert!(hashes.values().all(|of| of.len() == 1), "one hash for each image");
        let different: BTreeSet<&u128> = hashes.values().flatten().collect();
        assert_eq!(different.len(), hashes.len(), "another hash for each other image");
    }
}
