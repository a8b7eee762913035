//! The sums of a volume that others have made, structure by structure: a sum over other bytes than theirs.

use fstitch_core::{BlockDevice, BlockKind, BlockNo, InodeNo};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::layout::checksum::{
    Sums, block_bitmap_sum, has_directory_tail, index_counts, inode_bitmap_sum, is_placed,
    is_superblock_right, kept_of_bitmap_sum,
};
use fstitch_fs::ext2::layout::extent::{Entries, Node};
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{DiskInode, I_LINKS_COUNT, I_MODE};
use fstitch_fs::view::BlockView;

use super::kernel;
use super::support::{Scratch, have};
use super::{SHAPES, device, made};

/// What was compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    descriptors: usize,
    bitmaps: usize,
    inodes: usize,
    leaves: usize,
    indexes: usize,
    nodes: usize,
    attributes: usize,
}

#[test]
fn every_sum_of_a_volume_that_others_wrote_is_right() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-sums");
    for (name, options) in SHAPES {
        let image = made(&scratch, options);
        let Some((image, _)) = kernel::filled(&scratch, &image) else { return };
        let found = compare(&image);
        // Blocks that are found by pointers have sums, too, but are not looked for here.
        let without = options.iter().any(|option| option.contains("^metadata_csum"));
        let with_sums = !without && *name != "no-extent";
        assert_eq!(
            found.inodes > 400 && found.leaves > 3 && found.attributes > 0,
            with_sums,
            "{name}: {found:?}"
        );
        let of_groups = options.iter().any(|option| option.contains("uninit_bg"));
        assert_eq!(found.descriptors > 0, !without || of_groups, "{name}");
        assert!(
            !matches!(*name, "default" | "small-groups") || (found.nodes > 0 && found.indexes > 0),
            "{name}: {found:?}"
        );
    }
}

fn compare(image: &[u8]) -> Compared {
    let mut done = Compared::default();
    let device = device(image.to_vec());
    let shape = Ext2::probe(&*device as &dyn BlockDevice).unwrap();
    assert!(is_superblock_right(&image[1024..2048]));
    if shape.sums == Sums::None {
        return done;
    }
    let view = BlockView::new(&*device, usize::try_from(shape.block_size).unwrap());
    let read = |no: u64| {
        let mut bytes = vec![0; usize::try_from(shape.block_size).unwrap()];
        view.read(BlockNo(no), BlockKind::Data, &mut bytes).unwrap();
        bytes
    };
    let size = shape.descriptor_size();
    for group in 0..shape.group_count() {
        let (block, offset) = shape.descriptor_place(group);
        let raw = read(block)[offset..offset + size].to_vec();
        let at = GroupDescriptor::parse(&raw, group, &shape, BlockNo(block)).unwrap();
        done.descriptors += 1;
        if shape.sums.seed().is_none() {
            continue;
        }
        if !at.is_block_uninit() {
            let sum = shape.sums.bitmap(&read(at.block_bitmap), shape.clusters_per_group()).unwrap();
            assert_eq!(kept_of_bitmap_sum(sum, size), block_bitmap_sum(&raw), "blocks of group {group}");
            done.bitmaps += 1;
        }
        if !at.is_inode_uninit() {
            let sum = shape.sums.bitmap(&read(at.inode_bitmap), shape.inodes_per_group).unwrap();
            assert_eq!(kept_of_bitmap_sum(sum, size), inode_bitmap_sum(&raw), "inodes of group {group}");
            done.bitmaps += 1;
            let used = shape.inodes_per_group - u32::from(at.itable_unused);
            for index in 0..used {
                let ino = group * shape.inodes_per_group + index + 1;
                let (no, offset) = fstitch_fs::ext2::layout::inode::place(&shape, at.inode_table, ino);
                let block = read(no.get());
                let raw = &block[offset..offset + usize::from(shape.inode_size)];
                if I_LINKS_COUNT.get(raw) > 0 && I_MODE.get(raw) != 0 {
                    assert!(shape.sums.is_inode_right(ino, raw), "inode {ino}");
                    done.inodes += 1;
                    let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), no, &shape).unwrap();
                    inode(&shape.sums, (ino, &disk), shape.blocks_count, &read, &mut done);
                }
            }
        }
    }
    done
}

fn inode(
    sums: &Sums,
    (ino, disk): (u32, &DiskInode),
    blocks_count: u64,
    read: &dyn Fn(u64) -> Vec<u8>,
    done: &mut Compared,
) {
    let of = sums.of_inode(ino, disk.generation);
    if disk.xattr_block != 0 {
        assert!(sums.are_attributes_right(disk.xattr_block, &read(disk.xattr_block)));
        done.attributes += 1;
    }
    if !disk.has_extents() {
        return;
    }
    let mut queue = vec![Node::parse_root(&disk.block, BlockNo(0), blocks_count).unwrap()];
    let mut expected = fstitch_fs::ext2::layout::extent::Expected::root(BlockNo(0), blocks_count);
    while let Some(node) = queue.pop() {
        match &node.entries {
            Entries::Inner(below) => {
                for index in below {
                    let raw = read(index.node);
                    let placed = of.extent_node(&raw).unwrap();
                    assert!(is_placed(&raw, placed), "a node of inode {ino}");
                    done.nodes += 1;
                    expected.depth = Some(node.depth - 1);
                    queue.push(Node::parse(&raw, &expected).unwrap());
                }
            }
            Entries::Leaf(extents) if disk.kind == fstitch_core::FileKind::Directory => {
                for block in
                    extents.iter().flat_map(|extent| extent.start..extent.start + u64::from(extent.len))
                {
                    let raw = read(block);
                    let placed = match index_counts(&raw) {
                        Some(counts) => {
                            done.indexes += 1;
                            of.directory_index(&raw, counts)
                        }
                        None => {
                            assert!(has_directory_tail(&raw), "a leaf of directory {ino}");
                            done.leaves += 1;
                            of.directory_leaf(&raw)
                        }
                    };
                    assert!(is_placed(&raw, placed.unwrap()), "a block of directory {ino}");
                }
            }
            Entries::Leaf(_) => {}
        }
    }
}
