//! Damage to single fields: the structures of an image, and values in them whose sums are right.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockNo, FileKind, InodeNo, Le, Seed};
use fstitch_fs::ext2::layout::checksum::{
    Sums, has_directory_tail, index_counts, place, put_block_bitmap_sum, put_inode_bitmap_sum,
    seal_superblock,
};
use fstitch_fs::ext2::layout::extent::{Entries, Expected, Node};
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{self, DiskInode, I_LINKS_COUNT};
use fstitch_fs::ext2::layout::superblock::{SUPERBLOCK_SIZE, Superblock};

/// A structure of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Superblock,
    Descriptor(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Inode(u32),
    /// Of this inode.
    ExtentNode(u32, u32),
    Directory(u32, u32),
    Attributes(u64),
    /// What has no sum of its own, or one that nobody makes right.
    Other,
}

/// Where one is.
#[derive(Clone, Copy, Debug)]
struct Place {
    what: What,
    at: usize,
    len: usize,
}

/// All structures of a volume.
pub struct Places {
    sums: Sums,
    shape: Superblock,
    all: Vec<Place>,
}

impl Places {
    /// Those of the sound volume in `image`.
    pub fn of(image: &[u8]) -> Self {
        let raw = &image[SUPERBLOCK_SIZE..2 * SUPERBLOCK_SIZE];
        let shape = Superblock::parse(raw, to_u64(image.len())).expect("a sound superblock");
        let mut places = Self { sums: shape.sums, shape, all: Vec::new() };
        places.add(What::Superblock, SUPERBLOCK_SIZE, SUPERBLOCK_SIZE);
        for group in 0..places.shape.group_count() {
            places.add_group(image, group);
        }
        places.add_journal(image);
        places
    }

    fn add(&mut self, what: What, at: usize, len: usize) {
        self.all.push(Place { what, at, len });
    }

    fn unit(&self) -> usize {
        to_usize(self.shape.block_size)
    }

    fn add_block(&mut self, what: What, block: u64) {
        self.add(what, to_usize(block) * self.unit(), self.unit());
    }

    fn descriptor(&self, group: u32) -> (usize, usize) {
        let (block, offset) = self.shape.descriptor_place(group);
        (to_usize(block) * self.unit() + offset, self.shape.descriptor_size())
    }

    fn add_group(&mut self, image: &[u8], group: u32) {
        let (at, len) = self.descriptor(group);
        self.add(What::Descriptor(group), at, len);
        let found = GroupDescriptor::raw(&image[at..at + len]);
        if !found.is_block_uninit() {
            self.add_block(What::BlockBitmap(group), found.block_bitmap);
        }
        if found.is_inode_uninit() {
            return;
        }
        self.add_block(What::InodeBitmap(group), found.inode_bitmap);
        let unused = if self.shape.features.has_group_sums() { u32::from(found.itable_unused) } else { 0 };
        for index in 0..self.shape.inodes_per_group - unused {
            let ino = group * self.shape.inodes_per_group + index + 1;
            let (block, offset) = inode::place(&self.shape, found.inode_table, ino);
            let at = to_usize(block.get()) * self.unit() + offset;
            self.add_inode(image, ino, at);
        }
    }

    fn add_inode(&mut self, image: &[u8], ino: u32, at: usize) {
        let len = usize::from(self.shape.inode_size);
        let raw = &image[at..at + len];
        if I_LINKS_COUNT.get(raw) == 0 {
            return;
        }
        self.add(What::Inode(ino), at, len);
        let Ok(disk) = DiskInode::parse(raw, InodeNo(u64::from(ino)), BlockNo(0), &self.shape) else {
            return;
        };
        if disk.xattr_block != 0 {
            let block = disk.xattr_block;
            self.add_block(What::Attributes(block), block);
        }
        if disk.has_extents() && disk.has_blocks(self.shape.block_size) {
            self.add_tree(image, ino, &disk);
        }
    }

    fn add_tree(&mut self, image: &[u8], ino: u32, disk: &DiskInode) {
        let mut expected = Expected::root(BlockNo(0), self.shape.blocks_count);
        let mut left =
            vec![Node::parse(&inode::pointer_bytes(&disk.block), &expected).expect("a sound root")];
        while let Some(node) = left.pop() {
            match node.entries {
                Entries::Leaf(extents) if disk.kind == FileKind::Directory => {
                    for block in
                        extents.iter().flat_map(|extent| extent.start..extent.start + u64::from(extent.len))
                    {
                        self.add_block(What::Directory(ino, disk.generation), block);
                    }
                }
                Entries::Leaf(_) => {}
                Entries::Inner(nodes) => {
                    for below in nodes {
                        self.add_block(What::ExtentNode(ino, disk.generation), below.node);
                        let at = to_usize(below.node) * self.unit();
                        expected.depth = Some(node.depth - 1);
                        left.push(
                            Node::parse(&image[at..at + self.unit()], &expected).expect("a sound node"),
                        );
                    }
                }
            }
        }
    }

    /// The superblock of the journal, which has no sum here, or one that stays as it was.
    fn add_journal(&mut self, image: &[u8]) {
        let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
        let found = image.chunks_exact(self.unit()).position(|block| block[..8] == magic);
        if let Some(block) = found {
            self.add(What::Other, block * self.unit(), 256);
        }
    }

    /// Damages one to three fields; what was done.
    pub fn damage(&self, seed: &mut Seed, image: &mut [u8]) -> Vec<String> {
        (0..=seed.below(3)).map(|_| self.damage_one(seed, image)).collect()
    }

    fn damage_one(&self, seed: &mut Seed, image: &mut [u8]) -> String {
        // Kinds are as likely as each other, though there are many more inodes than anything else.
        let first = self.all[to_usize(seed.below(to_u64(self.all.len())))].what;
        let wanted = match seed.below(8) {
            0 => std::mem::discriminant(&What::Superblock),
            1 => std::mem::discriminant(&What::Descriptor(0)),
            2 => std::mem::discriminant(&What::ExtentNode(0, 0)),
            3 => std::mem::discriminant(&What::Directory(0, 0)),
            4 => std::mem::discriminant(&What::Attributes(0)),
            5 => std::mem::discriminant(&What::Inode(0)),
            _ => std::mem::discriminant(&first),
        };
        let mut these: Vec<&Place> =
            self.all.iter().filter(|place| std::mem::discriminant(&place.what) == wanted).collect();
        if these.is_empty() {
            these = self.all.iter().collect();
        }
        let place = *these[to_usize(seed.below(to_u64(these.len())))];
        let raw = &mut image[place.at..place.at + place.len];
        let at = self.field(seed, raw);
        let width = [1, 2, 4][to_usize(seed.below(3))];
        let at = at / width * width;
        let before = raw[at..at + width].to_vec();
        let value = self.value(seed, raw, &before);
        raw[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        self.seal(place, image);
        format!("{:?}, {width} bytes at {at}: {before:02x?} became {value:#x}", place.what)
    }

    /// A byte that means something, with more care for the beginning of a block than for its end.
    fn field(&self, seed: &mut Seed, raw: &[u8]) -> usize {
        let most = if seed.chance(2, 3) { raw.len().min(128) } else { raw.len() };
        loop {
            let at = to_usize(seed.below(to_u64(most)));
            if raw[at / 4 * 4..][..4] != [0; 4] || seed.chance(1, 6) {
                return at;
            }
        }
    }

    fn value(&self, seed: &mut Seed, raw: &[u8], before: &[u8]) -> u32 {
        let mut word = [0; 4];
        word[..before.len()].copy_from_slice(before);
        let now = u32::from_le_bytes(word);
        match seed.below(9) {
            0 => 0,
            1 => u32::MAX,
            2 => now.wrapping_add(1),
            3 => now.wrapping_sub(1),
            4 => now ^ 1 << seed.below(32),
            5 => u32::try_from(seed.below(self.shape.blocks_count)).expect("a block"),
            6 => u32::try_from(seed.below(u64::from(self.shape.inodes_count) + 2)).expect("an inode"),
            // What another field of the same structure says.
            7 => Le::u32(raw, to_usize(seed.below(to_u64(raw.len() / 4))) * 4),
            _ => u32::try_from(seed.below(1 << 17)).expect("small"),
        }
    }

    /// Makes the sums right that cover what was changed.
    fn seal(&self, of: Place, image: &mut [u8]) {
        let sums = self.sums;
        let raw = &mut image[of.at..of.at + of.len];
        match of.what {
            What::Superblock => seal_superblock(raw),
            What::Descriptor(group) => sums.seal_descriptor(group, raw),
            What::Inode(ino) => sums.seal_inode(ino, raw),
            What::ExtentNode(ino, generation) => {
                if let Some(sum) = sums.of_inode(ino, generation).extent_node(raw) {
                    place(raw, sum);
                }
            }
            What::Directory(ino, generation) => {
                let sums = sums.of_inode(ino, generation);
                let sum = match index_counts(raw) {
                    Some(counts) => sums.directory_index(raw, counts),
                    None if has_directory_tail(raw) => sums.directory_leaf(raw),
                    None => None,
                };
                if let Some(sum) = sum {
                    place(raw, sum);
                }
            }
            What::Attributes(block) => sums.seal_attributes(block, raw),
            What::BlockBitmap(group) | What::InodeBitmap(group) => {
                let is_blocks = matches!(of.what, What::BlockBitmap(_));
                let bits = if is_blocks { self.shape.blocks_per_group } else { self.shape.inodes_per_group };
                let Some(sum) = sums.bitmap(raw, bits) else { return };
                let (at, len) = self.descriptor(group);
                let raw = &mut image[at..at + len];
                if is_blocks {
                    put_block_bitmap_sum(raw, sum)
                } else {
                    put_inode_bitmap_sum(raw, sum)
                }
                sums.seal_descriptor(group, raw);
            }
            What::Other => {}
        }
    }
}
