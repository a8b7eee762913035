use super::*;

/// The volume with more read-only compatible features.
pub(in crate::ext2) fn sample_with(more: u32) -> Superblock {
    let mut raw = sample();
    let word = S_FEATURE_RO_COMPAT.get(&raw) | more;
    S_FEATURE_RO_COMPAT.put(&mut raw, word);
    S_CHECKSUM_TYPE.put(&mut raw, CHECKSUM_CRC32C);
    seal_superblock(&mut raw);
    Superblock::parse(&raw, 65_536 * 1024).unwrap()
}

/// A 64 MiB volume of 1 KiB blocks, encoded.
fn sample() -> Vec<u8> {
    let volume = Superblock {
        inodes_count: 8 * 2048,
        blocks_count: 65_536,
        reserved_blocks: 3276,
        free_blocks: 1000,
        free_inodes: 900,
        block_size: 1024,
        blocks_per_group: 8192,
        log_cluster: 0,
        inodes_per_group: 2048,
        mount_time: 1,
        write_time: 2,
        mount_count: 3,
        mount_count_max: 0xffff,
        state: STATE_VALID,
        errors: 1,
        check_time: 4,
        check_interval: 5,
        creator_os: 0,
        revision: REVISION_DYNAMIC,
        reserved_uid: 0,
        reserved_gid: 0,
        first_ino: 11,
        inode_size: 256,
        features: Features { compat: 0x38, incompat: 2, ro_compat: 3 },
        uuid: [7; 16],
        name: *b"name\0\0\0\0\0\0\0\0\0\0\0\0",
        reserved_gdt_blocks: 256,
        hash_seed: [9; 16],
        hash_version: 1,
        default_mount_opts: 0xc,
        mkfs_time: 6,
        extra_isize_min: 32,
        extra_isize_want: 32,
        flags: 2,
        orphan_file: 0,
        desc_size: 32,
        first_meta_bg: u32::MAX,
        log_groups_per_flex: 0,
        backup_groups: [0; 2],
        quota_inodes: [0; 3],
        mmp_block: 0,
        sums: Sums::None,
    };
    let mut raw = vec![0; SUPERBLOCK_SIZE];
    volume.encode_into(&mut raw, 0);
    assert_eq!(Superblock::parse(&raw, 65_536 * 1024).unwrap(), volume);
    raw
}

#[test]
fn shape_follows_from_the_fields() {
    let volume = Superblock::parse(&sample(), 1 << 40).unwrap();
    assert_eq!(volume.group_count(), 8);
    assert_eq!(volume.group_start(1), 8193);
    assert_eq!(volume.group_blocks(7), 8191);
    assert_eq!(volume.group_of(8193), 1);
    assert_eq!(volume.inode_table_blocks(), 512);
    assert_eq!(volume.descriptor_place(3), (2, 96));
    let with: Vec<u32> = (0..60).filter(|&group| volume.has_superblock(group)).collect();
    assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49]);
}

#[test]
fn impossible_values_are_refused() {
    type Damage = fn(&mut [u8]);
    let cases: [(&str, Damage); 9] = [
        ("magic", |raw| S_MAGIC.put(raw, 0)),
        ("block size", |raw| S_LOG_BLOCK_SIZE.put(raw, 77)),
        ("inode size", |raw| S_INODE_SIZE.put(raw, 129)),
        ("blocks per group", |raw| S_BLOCKS_PER_GROUP.put(raw, 0)),
        ("blocks per group", |raw| S_BLOCKS_PER_GROUP.put(raw, u32::MAX)),
        ("inodes per group", |raw| S_INODES_PER_GROUP.put(raw, 0)),
        ("blocks of", |raw| S_BLOCKS_COUNT.put(raw, u32::MAX)),
        ("inodes", |raw| S_INODES_COUNT.put(raw, 1)),
        ("first data block", |raw| S_FIRST_DATA_BLOCK.put(raw, 0)),
    ];
    for (expected, damage) in cases {
        let mut raw = sample();
        damage(&mut raw);
        let error = Superblock::parse(&raw, 65_536 * 1024).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} should mention {expected}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let mut seed = fstitch_core::Seed::new(1);
    for _ in 0..20_000 {
        let mut raw = sample();
        for _ in 0..=seed.below(4) {
            let at = usize::try_from(seed.below(0x164)).unwrap();
            raw[at] = u8::try_from(seed.below(256)).unwrap();
        }
        if let Ok(volume) = Superblock::parse(&raw, 65_536 * 1024) {
            for group in 0..volume.group_count() {
                let _ = volume.group_blocks(group) + volume.group_overhead(group);
            }
        }
    }
}
