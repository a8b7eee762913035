//! Extended attributes, features and the index of a directory.

use fstitch_core::{Caller, FileSystem, XattrSetMode};

use super::rig::{EXT_ATTR, I_FILE_ACL, I_FLAGS, LARGE_FILE, Raw, Rig, contents};
use super::{Judgement, Script};

const INDEX: u32 = 0x1000;

fn value(fs: &dyn FileSystem, path: &str, name: &str) -> Option<Vec<u8>> {
    let ino = fs.walk(path.as_bytes()).ok()?.attr.ino;
    let value = fs.getxattr(ino, name.as_bytes()).ok();
    fs.forget(ino, 1);
    value
}

/// The attribute of the file has one of these values.
fn holds(fs: &dyn FileSystem, path: &str, name: &str, lawful: &[Option<Vec<u8>>]) -> Result<(), String> {
    let found = value(fs, path, name);
    if lawful.contains(&found) {
        return Ok(());
    }
    Err(format!("{name} of {path} has {:?} bytes", found.map(|value| value.len())))
}

#[test]
fn attributes_move_between_inode_and_block() {
    let (small, large) = (vec![1; 20], vec![2; 300]);
    for (old, new) in [(&small, &large), (&large, &small), (&large, &vec![3; 300])] {
        for other in [None, Some(vec![4; 300])] {
            let prepare = |rig: &Rig| {
                rig.create("/f", 1, 10);
                other.iter().for_each(|other| rig.set_xattr("/f", "user.b", other));
                rig.set_xattr("/f", "user.a", old);
            };
            let expect: Judgement<'_> = &|fs, _| {
                holds(fs, "/f", "user.b", std::slice::from_ref(&other))?;
                holds(fs, "/f", "user.a", &[Some(old.clone()), Some(new.clone())])
            };
            let work = |rig: &Rig| rig.set_xattr("/f", "user.a", new);
            Script { prepare: &prepare, work: &work, expect, ..Script::default() }.play();
        }
    }
}

#[test]
fn attribute_blocks_that_come_and_go() {
    let works: [&dyn Fn(&Rig); 3] =
        [&|rig| rig.remove_xattr("/f", "user.a"), &|rig| rig.unlink("/f"), &|rig| {
            rig.remove_xattr("/f", "user.a");
            rig.set_xattr("/f", "user.a", &[1; 500]);
        }];
    for then in works {
        let work = |rig: &Rig| {
            rig.create("/f", 1, 10);
            rig.set_xattr("/f", "user.a", &[1; 600]);
            rig.sync();
            then(rig);
            rig.symlink("/s", 30);
        };
        Script { inode_size: 128, work: &work, ..Script::default() }.play();
    }
}

/// Makes `/g` share the attribute block of `/f`.
fn share(raw: &Raw<'_>) {
    let [f, g] = ["/f", "/g"].map(|path| raw.inode(raw.find(path)));
    let shared = raw.u32(f + I_FILE_ACL);
    raw.put(g + I_FILE_ACL, &shared.to_le_bytes());
    let mut block = raw.block(shared);
    block[4..8].copy_from_slice(&2_u32.to_le_bytes());
    raw.put_block(shared, &block);
}

/// Two inodes with one attribute block, as other implementations make them.
#[test]
fn a_shared_block() {
    let (old, new) = (vec![1; 300], vec![2; 300]);
    let prepare = |rig: &Rig| {
        rig.create("/f", 1, 10);
        rig.set_xattr("/f", "user.a", &old);
        rig.spacer("s");
        rig.create("/g", 2, 10);
        rig.set_xattr("/g", "user.a", &old);
    };
    let works: [&dyn Fn(&Rig); 3] =
        [&|rig| rig.set_xattr("/f", "user.a", &new), &|rig| rig.remove_xattr("/f", "user.a"), &|rig| {
            rig.unlink("/f")
        }];
    let expect: Judgement<'_> = &|fs, _| {
        holds(fs, "/f", "user.a", &[Some(old.clone()), Some(new.clone()), None])?;
        holds(fs, "/g", "user.a", &[Some(old.clone())])
    };
    for work in works {
        Script { inode_size: 128, prepare: &prepare, edit: &share, work, expect, ..Script::default() }.play();
    }
}

/// One inode leaves a shared block, which is then the other's alone: what that one does to the block comes after the first
/// one's pointer.
#[test]
fn a_shared_block_that_one_has_left() {
    let (old, new) = (vec![1; 300], vec![2; 300]);
    let prepare = |rig: &Rig| {
        rig.create("/f", 1, 10);
        rig.set_xattr("/f", "user.a", &old);
        rig.spacer("s");
        rig.create("/g", 2, 10);
        rig.set_xattr("/g", "user.a", &old);
    };
    let works: [&dyn Fn(&Rig); 3] = [
        &|rig| {
            rig.remove_xattr("/g", "user.a");
            rig.set_xattr("/f", "user.a", &new);
        },
        &|rig| {
            rig.remove_xattr("/g", "user.a");
            rig.remove_xattr("/f", "user.a");
            rig.symlink("/slow", 200);
        },
        &|rig| {
            rig.unlink("/g");
            rig.unlink("/f");
        },
    ];
    let expect: Judgement<'_> = &|fs, _| holds(fs, "/g", "user.a", &[Some(old.clone()), None]);
    for work in works {
        let script =
            Script { inode_size: 128, prepare: &prepare, edit: &share, work, expect, ..Script::default() };
        script.play();
    }
}

/// A feature is announced before its first use: an attribute set, in the inode or in a block, or inherited.
#[test]
fn the_first_attribute_of_a_volume() {
    const DEFAULT: &str = "system.posix_acl_default";
    // Version 2; the owner, a named user, the group, the mask, others.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 7_u16, u32::MAX), (2, 7, 5), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let prepare = |rig: &Rig| {
        rig.create("/f", 1, 10);
        rig.mkdir("/d");
        let dir = rig.fs.walk(b"/d").unwrap().attr.ino;
        let set = rig.fs.setxattr(&Caller::default(), dir, DEFAULT.as_bytes(), &list, XattrSetMode::Set);
        set.unwrap();
        rig.fs.forget(dir, 1);
    };
    let works: [&dyn Fn(&Rig); 3] = [
        &|rig| rig.set_xattr("/f", "user.a", &[1; 20]),
        &|rig| rig.set_xattr("/f", "user.a", &[1; 300]),
        &|rig| rig.mkdir("/d/e"),
    ];
    let expect: Judgement<'_> = &|fs, raw| {
        let used = value(fs, "/f", "user.a").is_some() || value(fs, "/d/e", DEFAULT).is_some();
        if used && !raw.has(EXT_ATTR) { Err("an attribute without the feature".into()) } else { Ok(()) }
    };
    let edit = |raw: &Raw<'_>| raw.clear_feature(EXT_ATTR);
    for work in works {
        Script { prepare: &prepare, edit: &edit, work, expect, ..Script::default() }.play();
    }
    // In an inode of 128 bytes there is no room: the attribute takes a block.
    let (prepare, work) = (|rig: &Rig| rig.create("/f", 1, 10), works[0]);
    Script { inode_size: 128, prepare: &prepare, edit: &edit, work, expect, ..Script::default() }.play();
}

#[test]
fn the_first_large_file_of_a_volume() {
    for (from, to) in [(0_u64, (1_u64 << 31) + 5), (1000, (1 << 32) + 5), ((1 << 31) + 5, (1 << 32) + 5)] {
        let prepare = |rig: &Rig| {
            rig.create("/f", 1, 0);
            if from > 0 {
                rig.write("/f", from, 1, 1);
            }
        };
        let edit = |raw: &Raw<'_>| {
            if from < 1 << 31 {
                raw.clear_feature(LARGE_FILE);
            }
        };
        let expect: Judgement<'_> = &|fs, raw| {
            let attr = fs.walk(b"/f").unwrap().attr;
            if attr.size >= 1 << 31 && !raw.has(LARGE_FILE) {
                return Err("a large file without the feature".into());
            }
            let mut last = [0];
            fs.read(attr.ino, attr.size.saturating_sub(1), &mut last).unwrap();
            if attr.size > 0 && last != [1] { Err("the last byte is missing".into()) } else { Ok(()) }
        };
        let work = |rig: &Rig| rig.write("/f", to, 1, 1);
        Script { prepare: &prepare, edit: &edit, work: &work, expect, read: false, ..Script::default() }
            .play();
    }
}

/// Makes the first block of `/d` the root of an index over its two other blocks, of which the first holds all names
/// but those with the very highest hash.
fn make_index(raw: &Raw<'_>) {
    let at = raw.inode(raw.find("/d"));
    raw.put(at + I_FLAGS, &(raw.u32(at + I_FLAGS) | INDEX).to_le_bytes());
    let no = raw.direct("/d", 0);
    let mut block = raw.block(no);
    // `..` reaches to the end of the block; behind it the header: hash version, its own length, no inner levels.
    block[16..18].copy_from_slice(&1012_u16.to_le_bytes());
    block[24..].fill(0);
    (block[28], block[29]) = (1, 8);
    block[32..34].copy_from_slice(&124_u16.to_le_bytes());
    block[34..36].copy_from_slice(&2_u16.to_le_bytes());
    block[36..40].copy_from_slice(&1_u32.to_le_bytes());
    block[40..44].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    block[44..48].copy_from_slice(&2_u32.to_le_bytes());
    raw.put_block(no, &block);
}

#[test]
fn an_index_is_dropped_before_the_directory_changes() {
    let name = |n: usize| format!("/d/{n:0>200}");
    let prepare = |rig: &Rig| {
        rig.mkdir("/d");
        rig.spacer("a");
        (0..12).for_each(|n| rig.create(&name(n), 2, 0));
        // The names of the second block stay.
        (0..12).filter(|n| !(4..8).contains(n)).for_each(|n| rig.unlink(&name(n)));
        rig.spacer("b");
    };
    // The first four go where the root of the index is, the fifth into the empty leaf.
    let work = |rig: &Rig| (20..25).for_each(|n| rig.link("/a0", &name(n)));
    let expect: Judgement<'_> = &|fs, _| {
        (4..8).try_for_each(|n| contents(fs, &name(n)).map(drop).ok_or_else(|| format!("{n} is gone")))
    };
    Script { prepare: &prepare, edit: &make_index, work: &work, expect, ..Script::default() }.play();
}
