//! Calls of some twenty kinds, each of which may fail, and none of which may return what is not there.

use fstitch_core::{
    Caller, Error, FallocateMode, FileSystem, InodeNo, RenameMode, Result, SetAttr, XattrSetMode,
};

type Step = fn(&dyn FileSystem) -> Result<()>;

/// Files that are synced.
pub const FILES_SYNCED: usize = 4;

const ME: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5 % 253) as u8 ^ seed).collect()
}

/// What the volume holds before.
pub fn fill(fs: &dyn FileSystem) -> Result<()> {
    for (name, seed, len) in
        [("kept", 1, 9_000), ("big", 2, 300_000), ("old", 3, 3_000), ("target", 4, 3_000)]
    {
        make(fs, "", name, &bytes(seed, len))?;
    }
    for name in ["dir", "gone"] {
        let made = fs.mkdir(&ME, fs.root(), name.as_bytes(), 0o755)?;
        fs.forget(made.attr.ino, 1);
    }
    for number in 0..40 {
        make(fs, "dir", &format!("a-file-with-a-rather-long-name-{number}"), &bytes(number, 700))?;
    }
    with(fs, "old", |ino| fs.setxattr(&ME, ino, b"user.colour", &[0x72; 300], XattrSetMode::Set))
}

/// All bytes of a file.
pub fn contents(fs: &dyn FileSystem, ino: InodeNo) -> Result<Vec<u8>> {
    let mut found = vec![0; usize::try_from(fs.getattr(ino)?.size).unwrap()];
    let mut done = 0;
    while done < found.len() {
        done += fs.read(ino, done as u64, &mut found[done..])?;
    }
    Ok(found)
}

fn with<T>(fs: &dyn FileSystem, path: &str, work: impl FnOnce(InodeNo) -> Result<T>) -> Result<T> {
    let ino = fs.walk(path.as_bytes())?.attr.ino;
    let done = work(ino);
    if ino != fs.root() {
        fs.forget(ino, 1);
    }
    done
}

fn put(fs: &dyn FileSystem, ino: InodeNo, offset: u64, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        done += fs.write(&ME, ino, offset + done as u64, &data[done..])?;
    }
    Ok(())
}

fn make(fs: &dyn FileSystem, dir: &str, name: &str, data: &[u8]) -> Result<()> {
    with(fs, dir, |dir| {
        let ino = fs.mknod(&ME, dir, name.as_bytes(), 0o100_644, 0)?.attr.ino;
        let written = put(fs, ino, 0, data);
        fs.forget(ino, 1);
        written
    })
}

fn kept(fs: &dyn FileSystem) -> Result<()> {
    let found = with(fs, "kept", |ino| contents(fs, ino))?;
    assert!(found == bytes(1, 9_000), "what was read is not what was written");
    Ok(())
}

fn listed(fs: &dyn FileSystem) -> Result<()> {
    let mut names = 0;
    with(fs, "dir", |dir| {
        fs.readdir(dir, 0, &mut |_| {
            names += 1;
            true
        })
    })?;
    assert_eq!(names, 42, "what was listed is not what is there");
    Ok(())
}

fn resize(fs: &dyn FileSystem, path: &str, size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    with(fs, path, |ino| fs.setattr(&ME, ino, &set).map(drop))
}

const READING: [(&str, Step); 7] = [
    ("read", kept),
    ("list", listed),
    ("read a large file", |fs| {
        let found = with(fs, "big", |ino| contents(fs, ino))?;
        assert!(found == bytes(2, 300_000), "what was read is not what was written");
        Ok(())
    }),
    ("stat", |fs| with(fs, "dir/a-file-with-a-rather-long-name-3", |ino| fs.getattr(ino).map(drop))),
    ("get an attribute", |fs| {
        let found = with(fs, "old", |ino| fs.getxattr(ino, b"user.colour"))?;
        assert_eq!(found, [0x72; 300]);
        Ok(())
    }),
    ("list attributes", |fs| with(fs, "old", |ino| fs.listxattr(ino).map(drop))),
    ("ask for room", |fs| fs.statfs().map(drop)),
];

const CHANGING: [(&str, Step); 14] = [
    ("make a file", |fs| make(fs, "", "one", &bytes(11, 5_000))),
    ("make a directory", |fs| {
        fs.mkdir(&ME, fs.root(), b"new", 0o755).map(|made| fs.forget(made.attr.ino, 1))
    }),
    ("make a file in it", |fs| make(fs, "new", "two", &bytes(12, 20_000))),
    ("rename over", |fs| fs.rename(&ME, (fs.root(), b"old"), (fs.root(), b"target"), RenameMode::Replace)),
    ("append", |fs| with(fs, "kept", |ino| put(fs, ino, 9_000, &bytes(13, 4_000)))),
    ("overwrite", |fs| with(fs, "big", |ino| put(fs, ino, 100_000, &bytes(14, 3_000)))),
    ("cut", |fs| resize(fs, "big", 200_000)),
    ("lengthen", |fs| resize(fs, "one", 50_000)),
    ("punch", |fs| with(fs, "big", |ino| fs.fallocate(&ME, ino, 20_000, 9_000, FallocateMode::PunchHole))),
    ("unlink", |fs| with(fs, "dir", |dir| fs.unlink(&ME, dir, b"a-file-with-a-rather-long-name-7"))),
    ("remove a directory", |fs| fs.rmdir(&ME, fs.root(), b"gone")),
    ("link symbolically", |fs| {
        let target = vec![b't'; 200];
        fs.symlink(&ME, fs.root(), b"symbolic", &target).map(|made| fs.forget(made.attr.ino, 1))
    }),
    ("link", |fs| {
        with(fs, "new/two", |ino| {
            fs.link(&ME, ino, fs.root(), b"two-again").map(|made| fs.forget(made.attr.ino, 1))
        })
    }),
    ("set an attribute", |fs| {
        with(fs, "target", |ino| fs.setxattr(&ME, ino, b"user.size", &[5; 90], XattrSetMode::Set))
    }),
];

/// Does everything; what failed, and what was promised.
pub fn work(fs: &dyn FileSystem, errors: &mut Vec<String>, promises: &mut Vec<(String, Vec<u8>)>) {
    let mut note = |what: &str, done: Result<()>| {
        errors.extend(done.err().map(|error: Error| format!("{what}: {error}")));
    };
    READING.iter().for_each(|(what, step)| note(what, step(fs)));
    let (early, late) = CHANGING.split_at(6);
    early.iter().for_each(|(what, step)| note(what, step(fs)));
    let synced = [
        ("one", bytes(11, 5_000)),
        ("new/two", bytes(12, 20_000)),
        ("kept", [bytes(1, 9_000), bytes(13, 4_000)].concat()),
    ];
    for (path, data) in synced {
        let done = sync(fs, path, &data);
        if let Ok(true) = done {
            promises.push((format!("/{path}"), data));
        }
        note("fsync", done.map(drop));
    }
    late.iter().for_each(|(what, step)| note(what, step(fs)));
    note(
        "change the mode",
        with(fs, "kept", |ino| {
            fs.setattr(&ME, ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).map(drop)
        }),
    );
    note("sync", fs.sync());
    note("make a last file", make(fs, "", "three", &bytes(15, 2_500)));
    let done = sync(fs, "three", &bytes(15, 2_500));
    if let Ok(true) = done {
        promises.push(("/three".to_owned(), bytes(15, 2_500)));
    }
    note("fsync", done.map(drop));
}

/// Syncs a file, and whether it holds what it should: a write that failed was told to somebody.
fn sync(fs: &dyn FileSystem, path: &str, data: &[u8]) -> Result<bool> {
    with(fs, path, |ino| {
        fs.fsync(ino, false)?;
        Ok(contents(fs, ino).is_ok_and(|found| found == data))
    })
}
