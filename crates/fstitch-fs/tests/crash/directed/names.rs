//! Names: making, moving, removing and replacing them.

use fstitch_core::FileSystem;

use super::Script;
use super::rig::{Raw, Rig, contents, kept};
use crate::workload::STALE;

/// Names of 208 bytes: a block of 1 KiB takes four.
fn long(n: usize) -> String {
    format!("{n:0>200}")
}

/// Directories whose inodes lie in blocks of their own.
fn directories(rig: &Rig, paths: &[&str]) {
    for (n, path) in paths.iter().enumerate() {
        rig.mkdir(path);
        rig.spacer(&format!("spacer{n}-"));
    }
}

fn one_of(fs: &dyn FileSystem, paths: &[&str]) -> Result<(), String> {
    if paths.iter().any(|path| fs.walk(path.as_bytes()).is_ok()) {
        return Ok(());
    }
    Err(format!("none of {paths:?} is left"))
}

fn play(prepare: &dyn Fn(&Rig), work: &dyn Fn(&Rig), expect: &dyn Fn(&dyn FileSystem) -> Result<(), String>) {
    Script { prepare, work, expect: &|fs, _| expect(fs), ..Script::default() }.play();
}

#[test]
fn everything_new() {
    let work = |rig: &Rig| {
        rig.mkdir("/d");
        rig.create("/d/f", 1, 3000);
        rig.symlink("/d/slow", 200);
        rig.symlink("/d/fast", 20);
        rig.mkfifo("/d/pipe");
        rig.link("/d/f", "/g");
        rig.mkdir("/d/e");
        rig.link("/d/f", "/d/e/h");
    };
    // An inode that is in use although its number is free would trouble whoever gets the number next.
    Script { work: &work, thorough: true, ..Script::default() }.play();
}

#[test]
fn a_file_moved_into_a_growing_directory() {
    let prepare = |rig: &Rig| {
        rig.create("/f", 1, 3000);
        rig.spacer("a");
        rig.mkdir("/d");
        rig.spacer("b");
        (0..4).for_each(|n| rig.create(&format!("/d/{}", long(n)), 2, 0));
    };
    let to = format!("/d/{}", long(9));
    play(&prepare, &|rig| rig.rename("/f", &to), &|fs| kept(fs, &["/f", &to], 1, 3000));
}

#[test]
fn a_file_moved_into_a_new_directory() {
    let work = |rig: &Rig| {
        rig.mkdir("/d");
        rig.mkdir("/d/e");
        rig.rename("/f", "/d/e/f");
    };
    let expect = |fs: &dyn FileSystem| kept(fs, &["/f", "/d/e/f"], 1, 3000);
    play(&|rig| rig.create("/f", 1, 3000), &work, &expect);
}

#[test]
fn a_directory_moved_into_a_new_one() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/q"]);
        rig.create("/q/f", 1, 3000);
    };
    let work = |rig: &Rig| {
        rig.mkdir("/d");
        rig.rename("/q", "/d/q");
    };
    play(&prepare, &work, &|fs| kept(fs, &["/q/f", "/d/q/f"], 1, 3000));
}

/// An fsync of the directory that a directory was moved into makes the move stable, and not only the name: without `..` the
/// next recovery would take the new name away, and with the old name left e2fsck might.
#[test]
fn a_directory_moved_and_its_new_parent_synced() {
    let moved = |fs: &dyn FileSystem| {
        let ino = |path: &str| fs.walk(path.as_bytes()).map(|entry| entry.attr.ino).ok();
        let Some(dir) = ino("/q/y") else { return Err("the new name was synced and is gone".into()) };
        if Some(fs.lookup(dir, b"..").unwrap().attr.ino) != ino("/q") {
            return Err("the new name was synced, and `..` knows nothing of it".into());
        }
        if ino("/p/x").is_some() { Err("the old name is left beside the synced one".into()) } else { Ok(()) }
    };
    let work = |rig: &Rig| {
        rig.rename("/p/x", "/q/y");
        rig.fsync("/q");
    };
    play(&|rig| directories(rig, &["/p", "/q", "/p/x"]), &work, &moved);
    let replacing = |rig: &Rig| {
        directories(rig, &["/p", "/q", "/p/x", "/q/y"]);
    };
    play(&replacing, &work, &moved);
    let young = |rig: &Rig| {
        directories(rig, &["/p", "/q", "/p/x"]);
        work(rig);
    };
    play(&|_| (), &young, &moved);
}

/// `..` of `/q/x` leads to a directory that has a name.
fn leads_home(fs: &dyn FileSystem) -> Result<(), String> {
    let Ok(moved) = fs.walk(b"/q/x") else { return Ok(()) };
    let parent = fs.lookup(moved.attr.ino, b"..").unwrap().attr.ino;
    let homes = ["/p", "/q"].map(|path| fs.walk(path.as_bytes()).map(|entry| entry.attr.ino).ok());
    if homes.contains(&Some(parent)) {
        Ok(())
    } else {
        Err("`..` leads to a directory without a name".into())
    }
}

#[test]
fn a_directory_moved_out_of_a_new_one() {
    let work = |rig: &Rig| {
        rig.mkdir("/p");
        rig.spacer("p");
        rig.mkdir("/p/x");
        rig.rename("/p/x", "/q/x");
    };
    play(&|rig| directories(rig, &["/q"]), &work, &leads_home);
    let young = |rig: &Rig| {
        rig.mkdir("/p/x");
        rig.rename("/p/x", "/q/x");
    };
    play(&|rig| directories(rig, &["/p", "/q"]), &young, &leads_home);
}

#[test]
fn a_directory_moved_once_and_twice() {
    let prepare = |rig: &Rig| directories(rig, &["/p", "/q", "/r", "/p/x"]);
    let once = |rig: &Rig| rig.rename("/p/x", "/q/x");
    play(&prepare, &once, &|fs| one_of(fs, &["/p/x", "/q/x"]));
    let twice = |rig: &Rig| {
        rig.rename("/p/x", "/q/x");
        rig.rename("/q/x", "/r/x");
    };
    play(&prepare, &twice, &|fs| one_of(fs, &["/p/x", "/q/x", "/r/x"]));
    let inside = |rig: &Rig| {
        rig.rename("/p/x", "/p/y");
        rig.rename("/p/y", "/q/y");
        rig.rename("/q/y", "/q/z");
    };
    play(&prepare, &inside, &|fs| one_of(fs, &["/p/x", "/p/y", "/q/y", "/q/z"]));
}

#[test]
fn a_directory_moved_and_removed() {
    let prepare = |rig: &Rig| directories(rig, &["/p", "/q", "/p/x"]);
    for to in ["/q/x", "/p/y"] {
        let work = |rig: &Rig| {
            rig.rename("/p/x", to);
            rig.rmdir(to);
        };
        play(&prepare, &work, &|_| Ok(()));
    }
    play(&prepare, &|rig| rig.rmdir("/p/x"), &|_| Ok(()));
}

#[test]
fn a_directory_that_was_moved_there_is_replaced() {
    let prepare = |rig: &Rig| directories(rig, &["/p", "/q", "/s", "/p/t", "/q/u"]);
    for from in ["/s", "/q/u"] {
        let work = |rig: &Rig| {
            rig.rename("/p/t", "/q/t");
            rig.rename(from, "/q/t");
        };
        play(&prepare, &work, &|fs| one_of(fs, &[from, "/q/t"]));
    }
    let work = |rig: &Rig| rig.rename("/p/t", "/q/u");
    play(&prepare, &work, &|fs| one_of(fs, &["/p/t", "/q/u"]));
}

#[test]
fn files_moved_linked_and_removed() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/d/a", 1, 3000);
        rig.spacer("f");
        rig.create("/e/b", 2, 3000);
    };
    let onto = |rig: &Rig| rig.rename("/d/a", "/e/b");
    play(&prepare, &onto, &|fs| {
        kept(fs, &["/d/a", "/e/b"], 1, 3000)?;
        one_of(fs, &["/e/b"])
    });
    let away = |rig: &Rig| {
        rig.rename("/d/a", "/e/c");
        rig.unlink("/e/c");
    };
    play(&prepare, &away, &|_| Ok(()));
    let linked = |rig: &Rig| {
        rig.link("/d/a", "/e/c");
        rig.unlink("/d/a");
        rig.unlink("/e/b");
    };
    // No rename: nothing keeps the old name for the new one.
    play(&prepare, &linked, &|_| Ok(()));
    let young = |rig: &Rig| {
        rig.create("/d/y", 3, 3000);
        rig.rename("/d/y", "/e/y");
        rig.link("/e/y", "/e/z");
        rig.rename("/e/y", "/e/b");
    };
    play(&prepare, &young, &|fs| one_of(fs, &["/e/b"]));
    let held = |rig: &Rig| {
        rig.fs.walk(b"/d/a").unwrap();
        rig.unlink("/d/a");
    };
    play(&prepare, &held, &|_| Ok(()));
}

#[test]
fn names_that_come_and_go() {
    let prepare = |rig: &Rig| directories(rig, &["/d", "/e"]);
    let unflown = |rig: &Rig| {
        rig.create("/d/a", 1, 3000);
        rig.unlink("/d/a");
        rig.create("/d/a", 2, 3000);
        rig.mkdir("/e/x");
        rig.rmdir("/e/x");
        rig.mkdir("/e/x");
        rig.rmdir("/e/x");
    };
    play(&prepare, &unflown, &|_| Ok(()));
    let works: [&dyn Fn(&Rig); 6] = [
        &|rig| rig.unlink("/d/a"),
        &|rig| rig.rmdir("/e/x"),
        &|rig| rig.rename("/e/x", "/d/x"),
        &|rig| rig.rename("/d/a", "/e/a"),
        &|rig| {
            rig.rename("/d/a", "/e/a");
            rig.unlink("/e/a");
        },
        &|rig| {
            rig.unlink("/d/a");
            rig.create("/d/a", 2, 3000);
            rig.unlink("/d/a");
        },
    ];
    for then in works {
        let work = |rig: &Rig| {
            rig.create("/d/a", 1, 3000);
            rig.spacer("s");
            rig.mkdir("/e/x");
            rig.sync();
            then(rig);
        };
        play(&prepare, &work, &|_| Ok(()));
    }
}

#[test]
fn a_slot_is_used_again_only_when_it_is_clear() {
    let old = "/d/an-entry-with-a-name-that-leaves-room-for-others";
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create(old, 1, 3000);
        rig.create("/d/behind", 2, 0);
    };
    let work = |rig: &Rig| {
        rig.rename(old, "/e/a");
        rig.create("/d/b", 3, 10);
        rig.create("/d/c", 4, 10);
        rig.mkfifo("/d/p");
        rig.rename("/d/p", "/d/c");
    };
    play(&prepare, &work, &|fs| {
        one_of(fs, &["/d/behind"])?;
        kept(fs, &[old, "/e/a"], 1, 3000)
    });
}

/// The length of a free entry comes after the lengths that it was computed from: here that of an entry which another
/// implementation has made as long as the rest of the block.
#[test]
fn a_length_comes_after_the_lengths_before_it() {
    // An entry of 48 bytes, and one that is too large to leave an entry behind it there.
    let (leaving, whole) = (format!("/d/{}", "k".repeat(40)), format!("/d/{}", "w".repeat(32)));
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/f", 1, 10);
        for path in [&leaving, "/d/m", "/d/q5678", "/d/l"] {
            rig.create(path, 2, 10);
        }
        rig.unlink("/d/q5678");
    };
    // The entry of `l`, the last one, reaches to the end of the block, over bytes that mean nothing.
    let edit = |raw: &Raw<'_>| {
        let no = raw.direct("/d", 0);
        let mut block = raw.block(no);
        let at = block.windows(4).position(|bytes| bytes == [1, 1, b'l', 0]).unwrap() - 2;
        block[at + 8..].fill(STALE);
        block[at..at + 2].copy_from_slice(&u16::try_from(1024 - (at - 4)).unwrap().to_le_bytes());
        raw.put_block(no, &block);
    };
    let work = |rig: &Rig| {
        rig.rename(&leaving, "/e/a");
        rig.link("/f", &whole);
        // Behind `l`, which becomes as short as it can be.
        rig.link("/f", &format!("/d/{}", long(1)));
        rig.unlink("/d/l");
        // Over the free entry and the one of `l`.
        rig.link("/f", "/d/over-both");
    };
    let expect = |fs: &dyn FileSystem| one_of(fs, &[&leaving, "/e/a"]);
    Script { prepare: &prepare, edit: &edit, work: &work, expect: &|fs, _| expect(fs), ..Script::default() }
        .play();
}

/// Found by recording an untar: blocks of a directory were attached in any order, and a crash left holes beyond its length.
/// Here up to the indirect block, and there.
#[test]
fn a_directory_grows_without_holes() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d"]);
        rig.create("/f", 1, 10);
    };
    for names in [20, 60] {
        let work = |rig: &Rig| (0..names).for_each(|n| rig.link("/f", &format!("/d/{}", long(n))));
        play(&prepare, &work, &|_| Ok(()));
    }
}

/// Found by recording an untar: names in a block whose directory is not long enough yet were still there, in a volume marked
/// clean, when their inodes had been reclaimed.
#[test]
fn names_beyond_a_directory_s_length_are_reclaimed() {
    let prepare = |rig: &Rig| directories(rig, &["/d"]);
    let work = |rig: &Rig| (0..10).for_each(|n| rig.create(&format!("/d/{}", long(n)), 1, 10));
    Script { prepare: &prepare, work: &work, thorough: true, ..Script::default() }.play();
}

#[test]
fn a_name_is_never_there_twice() {
    let prepare = |rig: &Rig| {
        rig.mkdir("/d");
        (0..12).for_each(|n| rig.create(&format!("/d/{}", long(n)), 2, 0));
        rig.unlink(&format!("/d/{}", long(0)));
    };
    let last = format!("/d/{}", long(11));
    let work = |rig: &Rig| {
        rig.unlink(&last);
        rig.create(&last, 1, 10);
    };
    play(&prepare, &work, &|_| Ok(()));
    // The same where the name that vanishes has taken the place of the one on the medium.
    let replaced_before = |rig: &Rig| {
        rig.link(&format!("/d/{}", long(1)), "/other");
        rig.rename("/other", &last);
        rig.unlink(&last);
        // An inode whose block waits for none of this.
        rig.link(&format!("/d/{}", long(6)), &last);
    };
    play(&prepare, &replaced_before, &|_| Ok(()));
}

#[test]
fn names_exchanged() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/d/a", 1, 3000);
        rig.create("/d/b", 2, 2000);
    };
    let work = |rig: &Rig| {
        rig.create("/d/c", 3, 10);
        rig.exchange("/d/a", "/d/b");
        rig.mkfifo("/d/p");
        rig.exchange("/d/p", "/d/c");
        rig.create("/d/q", 4, 10);
    };
    play(&prepare, &work, &|fs| {
        let both = [contents(fs, "/d/a"), contents(fs, "/d/b")].map(|bytes| bytes.map(|bytes| bytes.len()));
        let lawful = [[Some(3000), Some(2000)], [Some(2000), Some(3000)]].contains(&both);
        if lawful { Ok(()) } else { Err(format!("exchanged by half: {both:?}")) }
    });
}

/// `ln` and `rm` in place of `mv`: the file has a name at every moment.
#[test]
fn a_second_name_before_the_first_one_goes() {
    let prepare = |rig: &Rig| {
        rig.create("/f", 1, 3000);
        directories(rig, &["/d", "/e"]);
        rig.create("/e/g", 2, 100);
    };
    let removed = |rig: &Rig| {
        rig.link("/f", "/d/f");
        rig.unlink("/f");
    };
    play(&prepare, &removed, &|fs| kept(fs, &["/f", "/d/f"], 1, 3000));
    let in_a_new_directory = |rig: &Rig| {
        rig.mkdir("/d/n");
        rig.mkdir("/d/n/m");
        rig.link("/f", "/d/n/m/f");
        rig.unlink("/f");
    };
    play(&prepare, &in_a_new_directory, &|fs| kept(fs, &["/f", "/d/n/m/f"], 1, 3000));
    let replaced = |rig: &Rig| {
        rig.link("/f", "/d/f");
        rig.rename("/e/g", "/f");
    };
    play(&prepare, &replaced, &|fs| kept(fs, &["/f", "/d/f"], 1, 3000));
}

/// A directory goes after what was moved out of it has arrived.
#[test]
fn a_directory_removed_when_its_file_has_left() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e", "/d/s"]);
        rig.create("/d/f", 1, 3000);
        rig.create("/d/s/g", 2, 3000);
        rig.mkdir("/d/s/empty");
        rig.mkdir("/over");
    };
    let expect = |fs: &dyn FileSystem| {
        kept(fs, &["/d/f", "/e/f"], 1, 3000)?;
        kept(fs, &["/d/s/g", "/e/g"], 2, 3000)
    };
    let removed = |rig: &Rig| {
        rig.rename("/d/f", "/e/f");
        rig.link("/d/s/g", "/e/g");
        rig.unlink("/d/s/g");
        rig.rename("/d/s/empty", "/e/empty");
        rig.rmdir("/d/s");
        rig.rmdir("/d");
    };
    play(&prepare, &removed, &expect);
    let replaced = |rig: &Rig| {
        rig.rename("/d/f", "/e/f");
        rig.rename("/d/s/g", "/e/g");
        rig.rename("/e", "/e2");
        rig.rename("/e2", "/e");
        rig.rmdir("/d/s/empty");
        rig.rmdir("/d/s");
        rig.rename("/over", "/d");
    };
    play(&prepare, &replaced, &|fs| {
        let e2 = ["/d/f", "/e/f", "/e2/f"];
        kept(fs, &e2, 1, 3000)
    });
}

/// A directory goes after the other names of what was replaced in it.
#[test]
fn a_directory_removed_when_a_name_in_it_was_replaced() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/d/t", 1, 3000);
        rig.create("/x", 2, 100);
    };
    let work = |rig: &Rig| {
        rig.link("/d/t", "/e/t");
        rig.rename("/x", "/d/t");
        rig.unlink("/d/t");
        rig.rmdir("/d");
    };
    play(&prepare, &work, &|fs| kept(fs, &["/d/t", "/e/t"], 1, 3000));
}

/// `..` names a directory that can be reached.
#[test]
fn a_directory_moved_into_one_that_is_not_there_yet() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/q", "/r"]);
        rig.create("/q/f", 1, 3000);
    };
    let work = |rig: &Rig| {
        rig.mkdir("/r/d");
        rig.spacer("r");
        rig.rename("/q", "/r/d/q");
    };
    Script {
        prepare: &prepare,
        work: &work,
        expect: &|fs, _| kept(fs, &["/q/f", "/r/d/q/f"], 1, 3000),
        thorough: true,
        ..Script::default()
    }
    .play();
}

/// A name is replaced in a block that the directory has only just got.
#[test]
fn a_file_moved_over_a_name_in_a_young_block() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        (0..4).for_each(|n| rig.create(&format!("/d/{}", long(n)), 2, 0));
        rig.create("/e/f", 1, 3000);
    };
    let to = format!("/d/{}", long(9));
    let work = |rig: &Rig| {
        rig.symlink(&to, 20);
        rig.rename("/e/f", &to);
    };
    play(&prepare, &work, &|fs| {
        // What is left of the symbolic link is none of a file's business.
        let is_file = |path: &str| contents(fs, path) == Some(vec![1; 3000]);
        if is_file("/e/f") || is_file(&to) { Ok(()) } else { Err("the file is gone".into()) }
    });
}

/// What loses a name that an exchange gave it still has its other name on the medium.
#[test]
fn an_exchanged_name_moved_replaced_or_removed() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/d/a", 1, 3000);
        rig.spacer("s");
        rig.create("/d/b", 2, 2000);
        rig.link("/d/a", "/e/a");
        rig.link("/d/b", "/e/b");
        rig.create("/d/c", 3, 100);
    };
    let moves: [&dyn Fn(&Rig); 3] =
        [&|rig| rig.rename("/d/a", "/e/c"), &|rig| rig.rename("/d/c", "/d/a"), &|rig| rig.unlink("/d/a")];
    for next in moves {
        let work = |rig: &Rig| {
            rig.exchange("/d/a", "/d/b");
            next(rig);
        };
        play(&prepare, &work, &|_| Ok(()));
    }
}

/// What is synced below a directory can be found: an exchange has moved both directories, so the way to it is new.
#[test]
fn directories_exchanged_and_synced_below() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/d/a", "/d/c"]);
        rig.create("/d/a/f", 1, 3000);
    };
    let work = |rig: &Rig| {
        // The way down is known to be stable before the exchange.
        rig.fsync("/d/a/f");
        rig.exchange("/d/a", "/d/c");
        rig.fsync("/d/c/f");
        rig.create("/g", 2, 10);
    };
    play(&prepare, &work, &|fs| kept(fs, &["/d/c/f"], 1, 3000));
}

/// The block of a removed directory is dropped, and with it the clearing of a name that a lowered count waits for.
#[test]
fn a_directory_emptied_and_removed() {
    let prepare = |rig: &Rig| {
        directories(rig, &["/d", "/e"]);
        rig.create("/d/a", 1, 3000);
        rig.link("/d/a", "/e/b");
    };
    let work = |rig: &Rig| {
        rig.unlink("/d/a");
        rig.rmdir("/d");
    };
    play(&prepare, &work, &|fs| kept(fs, &["/e/b"], 1, 3000));
    let moved = |rig: &Rig| {
        rig.rename("/d/a", "/e/c");
        rig.rmdir("/d");
    };
    play(&prepare, &moved, &|fs| kept(fs, &["/e/b"], 1, 3000));
}
