//! Damage to contents and values in inodes.

use super::*;

/// Gives the attribute that has the rest of a directory's entries so many bytes.
fn inside_behind<const LEN: u32>(image: &mut Image) {
    inode(image, "d1", |raw| {
        let entry = 128 + usize::from(I_EXTRA_ISIZE.get(raw)) + 4;
        Le::put_u32(raw, entry + 8, LEN);
    });
}

/// Cases for volumes with contents and values in inodes.
const INSIDE: &[Case] = &[
    case("another kind of a directory inside", "inode-mode-not-directory", |image| {
        inode(image, "d3", |raw| I_MODE.put(raw, 0o050_755));
    }),
    case("a file inside that became a socket", "inode-mode-not-file", |image| {
        inode(image, "small1", |raw| I_MODE.put(raw, 0o140_644));
    }),
    case("contents inside without their attribute", "inline-attribute", |image| {
        let raw = image.inode_bytes("small1");
        let start = 128 + usize::from(I_EXTRA_ISIZE.get(raw));
        raw[start..].fill(0);
        image.seal_inode("small1");
    }),
    Case {
        tolerated: true,
        ..case("more contents than there is room for inside", "inline-size", |image| {
            inode(image, "small1", |raw| I_SIZE.put(raw, 3000));
        })
    },
    case("a directory inside of another length", "inline-size", |image| {
        inode(image, "d1", |raw| I_SIZE.put(raw, 24));
    }),
    case("a file inside that became a link", "symlink-bad", |image| {
        inode(image, "small1", |raw| {
            I_MODE.put(raw, 0o120_777);
            I_SIZE.put(raw, 1);
        });
    }),
    case("a directory inside with one byte behind", "inline-size", inside_behind::<1>),
    case("a directory inside with half an entry behind", "inline-size", inside_behind::<6>),
    case("a directory inside without a parent", "dir-dotdot-wrong", |image| {
        inode(image, "d1", |raw| Le::put_u32(raw, ROOT, 0));
    }),
    case("an entry inside that is too long", "dirent-structure", |image| {
        inode(image, "d1", |raw| Le::put_u16(raw, ROOT + 4 + 4, 400));
    }),
    case("contents inside by a flag, of a file with a map", "inode-extents-flag", |image| {
        inode(image, "indirect", |raw| I_FLAGS.put(raw, I_FLAGS.get(raw) & !EXTENTS_FL | INLINE_DATA_FL));
    }),
    case("contents inside by a flag, of a directory with a map", "inode-extents-flag", |image| {
        inode(image, "many", |raw| I_FLAGS.put(raw, I_FLAGS.get(raw) | INLINE_DATA_FL));
    }),
    case("all flags that others could have", "inode-extents-flag", |image| {
        inode(image, "indirect", |raw| I_FLAGS.put(raw, 0x332c_0000));
    }),
    case("contents inside without the flag", "pointer-invalid", |image| {
        inode(image, "small4", |raw| I_FLAGS.put(raw, 0));
    }),
];

/// The inode that holds a value of an attribute of `small13`.
fn value_inode(image: &mut Image) -> String {
    let raw = image.inode_bytes("small13");
    let inside = 128 + usize::from(I_EXTRA_ISIZE.get(raw)) + 4;
    let inside = raw[inside..].to_vec();
    let block = Le::u32(raw, I_FILE_ACL.offset());
    let behind = if block == 0 { Vec::new() } else { image.block(u64::from(block))[32..].to_vec() };
    [inside, behind].iter().find_map(|entries| first_value_inode(entries)).expect("a large value")
}

/// The first inode of a value that the entries name.
fn first_value_inode(entries: &[u8]) -> Option<String> {
    let mut at = 0;
    while at + 16 <= entries.len() && entries[at..at + 4] != [0; 4] {
        let ino = Le::u32(entries, at + 4);
        if ino != 0 {
            return Some(format!("<{ino}>"));
        }
        at += 16 + usize::from(entries[at]).next_multiple_of(4);
    }
    None
}

/// Cases for volumes with values in inodes of their own.
const VALUES: &[Case] = &[
    case("a count of entries that is too high", "value-count", |image| {
        let name = value_inode(image);
        inode(image, &name, |raw| Le::put_u32(raw, 0x24, 7));
    }),
    case("a value that is none", "inode-unreferenced", |image| {
        let name = value_inode(image);
        inode(image, &name, |raw| I_FLAGS.put(raw, I_FLAGS.get(raw) & !EA_INODE_FL));
    }),
    case("a value of another length", "value-unreferenced", |image| {
        let name = value_inode(image);
        inode(image, &name, |raw| I_SIZE.put(raw, 59_000));
    }),
    case("a value with the sum of another one", "value-unreferenced", |image| {
        let name = value_inode(image);
        inode(image, &name, |raw| I_ATIME.put(raw, 1));
    }),
];

#[test]
fn planted_damage_inside_inodes_is_found_by_name_and_mended() {
    check("inline", INSIDE);
    // Who only reads meets it as it is.
    let scratch = Scratch::new("ext4-damage-inside-read");
    let Some(healthy) = filled(&scratch, shape("inline")) else { return };
    for case in INSIDE {
        let mut image = Image::new(&scratch, healthy.clone());
        (case.damage)(&mut image);
        use_for_reading(image.bytes);
    }
}

#[test]
fn planted_damage_to_values_in_inodes_is_found_by_name_and_mended() {
    check("ea-inode", VALUES);
}
