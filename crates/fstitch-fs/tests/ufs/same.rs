//! A new volume and makefs's of an empty directory, field by field: where the two agree by rule they do.

use std::fs;

use fstitch_core::MemDevice;
use fstitch_core::num::to_usize;
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};

use super::mkfs::{made, options};
use super::newgroup::{Numbers, bit, group};
use super::support::{Scratch, run};
use super::{have_makefs, shapes};

/// Fields of the superblock, in words, that may differ: their first and their last byte.
const OTHERS: [(usize, usize, &str); 9] = [
    (32, 35, "fs_old_time"),
    (144, 151, "fs_id"),
    (724, 727, "fs_cgrotor, where makefs put the root directory"),
    (824, 855, "addresses in the memory of makefs"),
    (872, 879, "fs_providersize, which makefs does not know"),
    (880, 887, "fs_metaspace, which makefs does not know"),
    (992, 999, "fs_sblockactualloc, which makefs does not know"),
    (1072, 1079, "fs_time"),
    (1324, 1327, "fs_old_inodefmt, which newfs has in UFS1 alone"),
];
/// Those that are compared by hand: whatever depends on where the superblock lies, and on where the root directory does.
const BY_HAND: [(usize, usize, &str); 8] = [
    (8, 23, "fs_sblkno, fs_cblkno, fs_iblkno, fs_dblkno"),
    (40, 43, "fs_old_dsize"),
    (152, 155, "fs_old_csaddr"),
    (192, 207, "fs_old_cstotal, which makefs has in UFS2 as well"),
    (1000, 1007, "fs_sblockloc"),
    (1016, 1039, "fs_cstotal, but for the directories"),
    (1088, 1095, "fs_dsize"),
    (1096, 1103, "fs_csaddr"),
];
/// Fields of a group.
const OF_GROUP: [(usize, usize, &str); 3] =
    [(8, 11, "cg_old_time"), (40, 51, "cg_rotor, cg_frotor, cg_irotor"), (136, 143, "cg_time")];

fn is_in(at: usize, fields: &[(usize, usize, &str)]) -> bool {
    fields.iter().any(|&(first, last, _)| (first..=last).contains(&at))
}

struct Volume {
    image: Vec<u8>,
    sb: Superblock,
}

impl Volume {
    fn new(image: Vec<u8>) -> Self {
        let sb = Superblock::read(&MemDevice::from_image(512, image.clone())).unwrap();
        Self { image, sb }
    }

    fn superblock(&self) -> &[u8] {
        &self.image[to_usize(self.sb.at)..to_usize(self.sb.at) + 1376]
    }

    fn numbers(&self) -> Numbers {
        Numbers { order: self.sb.order }
    }

    /// The fragment of the root directory.
    fn root(&self) -> u32 {
        let (block, offset) = self.sb.inode_place(2);
        let inode = &self.image[to_usize(block.get()) * self.sb.fragment_len() + offset..];
        match self.sb.version {
            Version::One => self.numbers().word(inode, 40),
            Version::Two => self.numbers().long(inode, 112).try_into().unwrap(),
        }
    }

    /// Free fragments of group `no`, with those of the root directory.
    fn free(&self, no: u32) -> Vec<u32> {
        let raw = group(&self.image, &self.sb, no);
        let map = &raw[to_usize(self.numbers().word(raw, 96))..];
        let root = self.root();
        (0..self.sb.group_fragments).filter(|&at| bit(map, at) || (no == 0 && at == root)).collect()
    }

    fn free_fragments(&self) -> u64 {
        let totals = self.sb.totals;
        totals.blocks * u64::from(self.sb.fragments_per_block()) + totals.fragments
    }
}

#[test]
fn makefs_makes_the_same_where_the_two_agree_by_rule() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-same");
    let from = scratch.path("empty");
    fs::create_dir_all(&from).unwrap();
    for (version, order, block, fragment) in shapes() {
        let inodes_per_block = block / if version == 1 { 128 } else { 256 };
        // Groups of about 4 MiB whose inodes are whole blocks, and a last one that is not whole.
        let unit = 2 * inodes_per_block;
        let group = unit * ((4 << 20) / (unit * fragment)).max(1);
        let bytes = u64::from(group) * u64::from(fragment) * 19 / 4;
        let path = scratch.path("made.img");
        let (image, from) = (path.to_str().unwrap(), from.to_str().unwrap());
        let says = format!(
            "version={version},bsize={block},fsize={fragment},density={},maxbpcg={group},minfree=8",
            2 * fragment
        );
        let size = bytes.to_string();
        let (code, said) = run("makefs", &["-t", "ffs", "-B", order, "-s", &size, "-o", &says, image, from]);
        assert_eq!(code, 0, "{said}");
        let theirs = Volume::new(fs::read(&path).unwrap());
        let mut options = options((version, order, block, fragment));
        options.fragments_per_group = Some(group);
        let [contiguous, per_file] = [88, 92].map(|at| theirs.numbers().word(theirs.superblock(), at));
        (options.max_contiguous, options.blocks_per_file) = (Some(contiguous), Some(per_file));
        let ours = Volume::new(made(&options, bytes).unwrap().0);
        let name = format!("{version}, {order}, {block}, {fragment}");
        superblocks(&name, &ours, &theirs);
        groups(&name, &ours, &theirs);
    }
}

fn superblocks(name: &str, ours: &Volume, theirs: &Volume) {
    let (a, b) = (ours.superblock(), theirs.superblock());
    for at in (0..1376).step_by(4).filter(|&at| !is_in(at, &OTHERS) && !is_in(at, &BY_HAND)) {
        let (a, b) = (ours.numbers().word(a, at), theirs.numbers().word(b, at));
        assert_eq!(a, b, "{name}: at {at} of the superblock");
    }
    // In UFS2 the superblock, and all behind it, lies further back.
    let shift = ours.sb.parts[0] - theirs.sb.parts[0];
    let block = ours.sb.block_size;
    let expected = match ours.sb.version {
        Version::One => 0,
        Version::Two => 73_728_u32.next_multiple_of(block) - 16_384_u32.next_multiple_of(block),
    };
    assert_eq!(shift, expected / ours.sb.fragment_size, "{name}");
    assert_eq!(ours.sb.parts, theirs.sb.parts.map(|part| part + shift), "{name}");
    assert_eq!(
        ours.sb.summaries,
        (theirs.sb.summaries.0 + u64::from(shift), theirs.sb.summaries.1),
        "{name}"
    );
    assert_eq!(ours.sb.data_fragments, theirs.sb.data_fragments - u64::from(shift), "{name}");
    assert_eq!(ours.free_fragments(), theirs.free_fragments() - u64::from(shift), "{name}");
    assert_eq!(ours.sb.totals.inodes, theirs.sb.totals.inodes, "{name}");
    let totals = ours.sb.totals;
    let totals = [totals.directories, totals.blocks, totals.inodes, totals.fragments];
    let old = [192, 196, 200, 204].map(|at| u64::from(ours.numbers().word(a, at)));
    assert_eq!(old, if ours.sb.version == Version::One { totals } else { [0; 4] }, "{name}");
}

fn groups(name: &str, ours: &Volume, theirs: &Volume) {
    let is_same_place = ours.sb.version == Version::One;
    for no in 0..ours.sb.groups {
        let (a, b) = (group(&ours.image, &ours.sb, no), group(&theirs.image, &theirs.sb, no));
        // In the first group it depends on where the root directory lies what else is free.
        let counted = 28..84;
        for at in (0..168).step_by(4).filter(|&at| !is_in(at, &OF_GROUP)) {
            let (a, b) = (ours.numbers().word(a, at), theirs.numbers().word(b, at));
            assert!(a == b || (no == 0 && counted.contains(&at)), "{name}: at {at} of group {no}: {a}, {b}");
        }
        if is_same_place && no > 0 {
            assert!(a[168..] == b[168..], "{name}: the maps of group {no}");
        }
        let inodes = |raw: &[u8], volume: &Volume| {
            let [from, to] = [92, 96].map(|at| to_usize(volume.numbers().word(raw, at)));
            raw[from..to].to_vec()
        };
        assert!(inodes(a, ours) == inodes(b, theirs), "{name}: the inodes of group {no}");
        if is_same_place {
            assert!(ours.free(no) == theirs.free(no), "{name}: what is free in group {no}");
        }
    }
}
