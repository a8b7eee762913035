//! What groups say, read and counted anew by nobody but this.

use fstitch_core::num::to_usize;
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};
use fstitch_fs::ufs::order::Order;

/// Numbers of a volume, by the order of their bytes.
#[derive(Clone, Copy)]
pub struct Numbers {
    pub order: Order,
}

impl Numbers {
    pub fn word(self, raw: &[u8], at: usize) -> u32 {
        let bytes = raw[at..at + 4].try_into().unwrap();
        match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    pub fn half(self, raw: &[u8], at: usize) -> u16 {
        let bytes = raw[at..at + 2].try_into().unwrap();
        match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub fn long(self, raw: &[u8], at: usize) -> u64 {
        let bytes = raw[at..at + 8].try_into().unwrap();
        match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }
}

pub fn bit(map: &[u8], at: u32) -> bool {
    map[to_usize(at / 8)] >> (at % 8) & 1 != 0
}

/// The bytes of a group's block.
pub fn group<'i>(image: &'i [u8], sb: &Superblock, no: u32) -> &'i [u8] {
    let at = to_usize(sb.group_start(no) + u64::from(sb.parts[1])) * sb.fragment_len();
    &image[at..at + to_usize(sb.group_size)]
}

/// Bytes of the maps of a group and what is counted there: as FreeBSD's and NetBSD's fsck find it for themselves, in pass 5.
pub fn recount(name: &str, image: &[u8], sb: &Superblock) {
    let numbers = Numbers { order: sb.order };
    let superblock = &image[to_usize(sb.at)..];
    let lengths = numbers.word(superblock, 1316);
    let mut totals = [0_u64; 4];
    for no in 0..sb.groups {
        let raw = group(image, sb, no);
        let word = |at: usize| numbers.word(raw, at);
        let name = format!("{name}: group {no}");
        let fragments =
            (sb.fragments - sb.group_start(no)).min(u64::from(sb.group_fragments)).try_into().unwrap();
        assert_eq!([4, 12, 20].map(word), [0x0009_0255, no, fragments], "{name}");
        versions(&name, raw, sb);
        places(&name, raw, sb, lengths);
        let free = &raw[to_usize(word(96))..];
        let (blocks, rest) = runs_of_fragments(&name, raw, sb, fragments);
        let used = (0..sb.group_inodes).filter(|&at| bit(&raw[to_usize(word(92))..], at)).count();
        let counts = [24, 28, 32, 36].map(word);
        assert_eq!(counts[1..], [blocks, sb.group_inodes - u32::try_from(used).unwrap(), rest], "{name}");
        let summary = to_usize(sb.summaries.0) * sb.fragment_len() + to_usize(no) * 16;
        assert_eq!(image[summary..summary + 16], raw[24..40], "{name}: its counts among those of all");
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += u64::from(count));
        clusters(&name, raw, sb, (fragments, lengths));
        let beyond = (fragments..sb.group_fragments).filter(|&at| bit(free, at)).count();
        assert_eq!(beyond, 0, "{name}: what the volume does not have is not free");
    }
    let sum = sb.totals;
    assert_eq!(totals, [sum.directories, sum.blocks, sum.inodes, sum.fragments], "{name}");
}

/// What only one of the versions has.
fn versions(name: &str, raw: &[u8], sb: &Superblock) {
    let numbers = Numbers { order: sb.order };
    let word = |at: usize| numbers.word(raw, at);
    let old = [numbers.half(raw, 16), numbers.half(raw, 18)].map(u32::from);
    let inodes_per_block = sb.block_size / sb.version.inode_size();
    let expected = match sb.version {
        Version::One => ([1, sb.group_inodes], [168, 172, 174], [0, 0]),
        Version::Two => ([0, 0], [0, 0, 168], [sb.group_inodes, sb.group_inodes.min(2 * inodes_per_block)]),
    };
    assert_eq!((old, [84, 88, 92].map(word), [116, 120].map(word)), expected, "{name}");
}

/// Where the maps are.
fn places(name: &str, raw: &[u8], sb: &Superblock, lengths: u32) {
    let numbers = Numbers { order: sb.order };
    let word = |at: usize| numbers.word(raw, at);
    let used = word(92);
    let free = used + sb.group_inodes.div_ceil(8);
    let next = free + sb.group_fragments.div_ceil(8);
    let blocks = sb.group_fragments / sb.fragments_per_block();
    let expected = match lengths {
        0 => [free, next, 0, 0],
        _ => {
            let sums = (next - 4).next_multiple_of(4);
            let clusters = sums + (lengths + 1) * 4;
            [free, clusters + blocks.div_ceil(8), sums, clusters]
        }
    };
    assert_eq!([96, 100, 104, 108].map(word), expected, "{name}");
    assert!(word(100) <= sb.group_size && sb.group_size <= sb.block_size, "{name}");
    assert!(raw[to_usize(word(100))..].iter().all(|&byte| byte == 0), "{name}: nothing is behind the maps");
}

/// Counts free blocks and the free fragments of others, and compares the runs of these.
fn runs_of_fragments(name: &str, raw: &[u8], sb: &Superblock, fragments: u32) -> (u32, u32) {
    let numbers = Numbers { order: sb.order };
    let free = &raw[to_usize(numbers.word(raw, 96))..];
    let frag = sb.fragments_per_block();
    let (mut blocks, mut rest, mut runs) = (0, 0, [0_u32; 8]);
    for block in (0..fragments).step_by(to_usize(frag)) {
        let map: String =
            (block..block + frag).map(|at| if at < fragments && bit(free, at) { '1' } else { '0' }).collect();
        if !map.contains('0') {
            blocks += 1;
            continue;
        }
        for run in map.split('0').filter(|run| !run.is_empty()) {
            runs[run.len()] += 1;
            rest += u32::try_from(run.len()).unwrap();
        }
    }
    let said: [u32; 8] = std::array::from_fn(|length| numbers.word(raw, 52 + length * 4));
    assert_eq!(said, runs, "{name}: runs of fragments");
    (blocks, rest)
}

/// Compares the map of free blocks, and their runs.
fn clusters(name: &str, raw: &[u8], sb: &Superblock, (fragments, lengths): (u32, u32)) {
    let numbers = Numbers { order: sb.order };
    let word = |at: usize| numbers.word(raw, at);
    if lengths == 0 {
        assert_eq!(word(112), 0, "{name}");
        return;
    }
    let frag = sb.fragments_per_block();
    let free = &raw[to_usize(word(96))..];
    let blocks: String = (0..fragments / frag)
        .map(|block| (block * frag..(block + 1) * frag).all(|at| bit(free, at)))
        .map(|is_free| if is_free { '1' } else { '0' })
        .collect();
    assert_eq!(to_usize(word(112)), blocks.len(), "{name}");
    let map = &raw[to_usize(word(108))..];
    let all = sb.group_fragments / frag;
    let said: String = (0..all).map(|at| if bit(map, at) { '1' } else { '0' }).collect();
    assert_eq!(said.trim_end_matches('0'), blocks.trim_end_matches('0'), "{name}: free blocks");
    let longest = to_usize(lengths);
    let mut runs = vec![0_u32; longest + 1];
    for run in blocks.split('0').filter(|run| !run.is_empty()) {
        runs[run.len().min(longest)] += 1;
    }
    let sums = to_usize(word(104));
    let said: Vec<u32> = (1..=longest).map(|length| word(sums + length * 4)).collect();
    assert_eq!(said, runs[1..], "{name}: runs of blocks");
}
