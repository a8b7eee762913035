//! The rows and columns of \[D\] Fig 3.8: what is done, after what, and how many bytes the dissertation says that it stores.

#![allow(clippy::unwrap_used, reason = "tests fail where they cannot go on")]

use std::time::Duration;

use fstitch_bpfs::{Bpfs, Optimizations, Options};
use fstitch_core::{Caller, FileSystem, InodeNo, ManualClock, RenameMode, SetAttr};
use fstitch_posix::time::AtimePolicy;

use crate::support::{CALLER, create, options};

pub type Prepare = fn(&Bpfs);
pub type Act = fn(&Bpfs);

/// A row: what is done, before that what is prepared, and the dissertation's bytes.
pub struct Row {
    pub name: &'static str,
    pub prepare: Prepare,
    pub act: Act,
    pub paper: [u64; 5],
}

pub const COLUMNS: [Optimizations; 7] = [
    Optimizations::SHADOW_PAGING,
    Optimizations::SHORT_CIRCUIT,
    Optimizations { times: true, ..Optimizations::SHORT_CIRCUIT },
    Optimizations::APPEND_AND_TIMES,
    Optimizations::ALL_OF_THE_PAPER,
    Optimizations::JOURNAL,
    Optimizations::ALL,
];

fn ino(fs: &Bpfs, path: &str) -> InodeNo {
    let ino = fs.walk(path.as_bytes()).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

fn file(fs: &Bpfs, bytes: usize) {
    let ino = create(fs, fs.root(), b"file");
    let data = vec![1; bytes];
    for (n, piece) in data.chunks(1 << 20).enumerate() {
        fs.write(&CALLER, ino, (n << 20) as u64, piece).unwrap();
    }
}

fn write(fs: &Bpfs, offset: u64, bytes: usize) {
    let data = vec![9; bytes];
    assert_eq!(fs.write(&CALLER, ino(fs, "file"), offset, &data).unwrap(), bytes);
}

fn dir(fs: &Bpfs, name: &str) {
    let ino = fs.mkdir(&CALLER, fs.root(), name.as_bytes(), 0o755).unwrap().attr.ino;
    fs.forget(ino, 1);
}

fn rename(fs: &Bpfs, from: &str, to_dir: &str, to: &str) {
    let to_dir = ino(fs, to_dir);
    fs.rename(&CALLER, (fs.root(), from.as_bytes()), (to_dir, to.as_bytes()), RenameMode::Replace).unwrap();
}

fn set(fs: &Bpfs, set: &SetAttr) {
    fs.setattr(&CALLER, ino(fs, "file"), set).unwrap();
}

const fn row(name: &'static str, prepare: Prepare, act: Act, paper: [u64; 5]) -> Row {
    Row { name, prepare, act, paper }
}

pub const ROWS: &[Row] = &[
    row("append 8 B to 0 B", |fs| file(fs, 0), |fs| write(fs, 0, 8), [20_524, 4_112, 4_116, 28, 28]),
    row(
        "append 4 KiB to 0 B",
        |fs| file(fs, 0),
        |fs| write(fs, 0, 4096),
        [24_612, 8_200, 8_204, 4_116, 4_116],
    ),
    row(
        "append 128 KiB to 0 B",
        |fs| file(fs, 0),
        |fs| write(fs, 0, 128 << 10),
        [151_852, 135_432, 135_436, 131_348, 131_356],
    ),
    row("append 8 B to 8 B", |fs| file(fs, 8), |fs| write(fs, 8, 8), [20_532, 8_200, 8_200, 20, 20]),
    row(
        "append 4 KiB to 8 KiB",
        |fs| file(fs, 8192),
        |fs| write(fs, 8192, 4096),
        [28_716, 12_296, 12_296, 4_116, 4_116],
    ),
    row(
        "append 4 KiB to 2 MiB",
        |fs| file(fs, 2 << 20),
        |fs| write(fs, 2 << 20, 4096),
        [24_636, 8_224, 8_224, 8_228, 4_140],
    ),
    row(
        "append 128 KiB to 2 MiB",
        |fs| file(fs, 2 << 20),
        |fs| write(fs, 2 << 20, 128 << 10),
        [151_860, 135_448, 135_448, 135_452, 131_364],
    ),
    row("overwrite 8 B at 0", |fs| file(fs, 1 << 20), |fs| write(fs, 0, 8), [28_708, 12_296, 12, 12, 12]),
    row(
        "overwrite 8 B at 4092",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 4092, 8),
        [32_812, 16_392, 12_300, 12_300, 12_316],
    ),
    row(
        "overwrite 16 B at 0",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 0, 16),
        [28_708, 12_296, 4_108, 4_108, 4_108],
    ),
    row(
        "overwrite 4 KiB at 0",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 0, 4096),
        [28_708, 12_296, 4_108, 4_108, 4_108],
    ),
    row(
        "overwrite 4 KiB at 1",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 1, 4096),
        [32_812, 16_392, 12_300, 12_300, 12_316],
    ),
    row(
        "overwrite 124 KiB at 1",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 1, 124 << 10),
        [155_932, 139_272, 135_180, 135_180, 135_436],
    ),
    row(
        "overwrite 128 KiB at 0",
        |fs| file(fs, 1 << 20),
        |fs| write(fs, 0, 128 << 10),
        [155_932, 139_272, 135_180, 135_180, 135_436],
    ),
    row(
        "create",
        |_| (),
        |fs| assert_ne!(create(fs, fs.root(), b"file"), fs.root()),
        [24_692, 8_200, 8_200, 8_208, 92],
    ),
    row(
        "link",
        |fs| file(fs, 0),
        |fs| {
            let ino = fs.link(&CALLER, ino(fs, "file"), fs.root(), b"link").unwrap().attr.ino;
            fs.forget(ino, 1);
        },
        [24_640, 8_200, 8_200, 8_212, 40],
    ),
    row(
        "symlink",
        |_| (),
        |fs| {
            let ino = fs.symlink(&CALLER, fs.root(), b"link", b"to").unwrap().attr.ino;
            fs.forget(ino, 1);
        },
        [24_694, 8_202, 8_202, 8_210, 94],
    ),
    row("mkdir", |_| (), |fs| dir(fs, "dir"), [24_698, 8_202, 8_202, 8_210, 98]),
    row(
        "unlink file",
        |fs| file(fs, 0),
        |fs| fs.unlink(&CALLER, fs.root(), b"file").unwrap(),
        [24_616, 8_200, 16, 16, 16],
    ),
    row(
        "unlink hard link",
        |fs| {
            file(fs, 0);
            let ino = fs.link(&CALLER, ino(fs, "file"), fs.root(), b"link").unwrap().attr.ino;
            fs.forget(ino, 1);
        },
        |fs| fs.unlink(&CALLER, fs.root(), b"link").unwrap(),
        [24_624, 8_200, 8_200, 8_212, 24],
    ),
    row(
        "rmdir",
        |fs| dir(fs, "dir"),
        |fs| fs.rmdir(&CALLER, fs.root(), b"dir").unwrap(),
        [24_620, 8_200, 8_200, 8_208, 20],
    ),
    row(
        "rename file",
        |fs| file(fs, 0),
        |fs| rename(fs, "file", "", "new"),
        [24_640, 8_200, 4_112, 4_112, 4_144],
    ),
    row(
        "rename file over a file",
        |fs| {
            file(fs, 0);
            create(fs, fs.root(), b"new");
        },
        |fs| rename(fs, "file", "", "new"),
        [24_624, 8_200, 4_112, 4_112, 4_128],
    ),
    row(
        "rename file to another directory",
        |fs| {
            file(fs, 0);
            dir(fs, "dir");
            create(fs, ino(fs, "dir"), b"a");
        },
        |fs| rename(fs, "file", "dir", "new"),
        [28_752, 12_296, 12_296, 12_312, 12_360],
    ),
    row(
        "rename directory",
        |fs| dir(fs, "dir"),
        |fs| rename(fs, "dir", "", "new"),
        [24_644, 8_200, 4_116, 4_116, 4_148],
    ),
    row(
        "rename directory over a directory",
        |fs| {
            dir(fs, "dir");
            dir(fs, "new");
        },
        |fs| rename(fs, "dir", "", "new"),
        [24_632, 8_200, 8_200, 8_212, 4_136],
    ),
    row(
        "rename directory to another directory",
        |fs| {
            dir(fs, "dir");
            dir(fs, "new");
            create(fs, ino(fs, "new"), b"a");
        },
        |fs| rename(fs, "dir", "new", "new"),
        [28_764, 12_296, 12_296, 12_316, 12_372],
    ),
    row(
        "chown",
        |fs| file(fs, 0),
        |fs| set(fs, &SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() }),
        [20_508, 4_104, 12, 12, 12],
    ),
    row(
        "chmod",
        |fs| file(fs, 0),
        |fs| set(fs, &SetAttr { perm: Some(0o600), ..SetAttr::default() }),
        [20_504, 4_104, 8, 8, 8],
    ),
    row(
        "read",
        |fs| file(fs, 8),
        |fs| {
            fs.read(ino(fs, "file"), 0, &mut [0; 8]).unwrap();
        },
        [20_500, 4, 4, 4, 4],
    ),
    row("readdir", |_| (), |fs| fs.readdir(fs.root(), 0, &mut |_| true).unwrap(), [41_000, 8, 8, 8, 8]),
];

/// Does all that comes before what is measured.
pub fn prepare(fs: &Bpfs, clock: &ManualClock, row: &Row) {
    create(fs, fs.root(), b"another");
    (row.prepare)(fs);
    clock.advance(Duration::from_secs(5));
    if row.name == "chmod" || row.name == "chown" || row.name.contains("link") || row.name.contains("rename")
    {
        // Time of contents and of attributes are apart already.
        let all = ["file", "dir", "link"].into_iter().filter_map(|name| fs.walk(name.as_bytes()).ok());
        for entry in all {
            fs.setattr(&Caller::default(), entry.attr.ino, &SetAttr::default()).unwrap();
            fs.forget(entry.attr.ino, 1);
        }
        clock.advance(Duration::from_secs(5));
    }
}

/// How it is mounted for that: [D] counts times of access.
pub fn mounted(optimizations: Optimizations) -> Options {
    Options { atime: AtimePolicy::StrictAtime, ..options(optimizations) }
}
