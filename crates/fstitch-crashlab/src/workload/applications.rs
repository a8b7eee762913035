//! What programs do: unpacking and removing trees, mail, editors, databases, PostMark.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{RenameMode, Seed};

use super::op::Op;
use super::{Family, Workload};

type Make = fn(&mut Seed) -> (Vec<Op>, Vec<Op>);

struct Application {
    name: &'static str,
    about: &'static str,
    make: Make,
}

/// The families of this file.
pub fn families() -> Vec<Box<dyn Family>> {
    let family = |name, about, make| Box::new(Application { name, about, make }) as Box<dyn Family>;
    vec![
        family("untar", "unpack a source tree of some 2.5 MiB", untar as Make),
        family("rm", "remove such a tree", rm),
        family("postmark", "create, append, read and delete small files", postmark),
        family("mail", "deliver messages: write in tmp, fsync, rename to new; read ones go", mail),
        family("editor", "save files: write a new one, fsync, rename over the old", editor),
        family(
            "db",
            "transactions with a rollback journal: journal, fsync, pages in place, fsync, drop the journal",
            db,
        ),
    ]
}

impl Family for Application {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        u64::MAX
    }

    fn get(&self, index: u64) -> Option<Workload> {
        let (setup, ops) = (self.make)(&mut Seed::new(index));
        Some(Workload { name: format!("{}/{index}", self.name), setup, ops })
    }
}

fn pick(dice: &mut Seed, bound: u64) -> usize {
    to_usize(dice.below(bound))
}

/// Lets the cache write now and then, as its flusher would.
fn flusher(dice: &mut Seed, ops: &mut Vec<Op>, every: u64) {
    if dice.chance(1, every) {
        ops.push(Op::WriteOut {
            share: u8::try_from(4 + dice.below(12)).expect("small"),
            seed: dice.next_u64(),
        });
    }
}

/// The directories and files of a tree, with the files' lengths.
fn tree(dice: &mut Seed) -> (Vec<String>, Vec<(String, usize)>) {
    let mut dirs = vec!["/src".to_owned()];
    for n in 0..14 {
        let parent = dirs[pick(dice, to_u64(dirs.len()))].clone();
        dirs.push(format!("{parent}/dir{n}"));
    }
    let mut files = vec![];
    for n in 0..150 {
        let dir = &dirs[pick(dice, 15)];
        let len = match dice.below(10) {
            0 => 0,
            1..=6 => pick(dice, 12_000),
            7 | 8 => pick(dice, 40_000),
            _ => pick(dice, 90_000),
        };
        files.push((format!("{dir}/file-{n}.c"), len));
    }
    (dirs, files)
}

fn unpack(dice: &mut Seed, every: u64) -> Vec<Op> {
    let (dirs, files) = tree(dice);
    let mut ops: Vec<Op> = dirs.into_iter().map(|path| Op::Mkdir { path }).collect();
    let mut room = 2_500_000;
    for (path, len) in files {
        ops.push(Op::Create { path: path.clone() });
        let len = len.min(room);
        room -= len;
        for piece in (0..len).step_by(10_240) {
            ops.push(Op::Append { path: path.clone(), len: (len - piece).min(10_240) });
        }
        ops.push(Op::Chmod { path, perm: 0o600 });
        flusher(dice, &mut ops, every);
    }
    ops
}

fn untar(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    (vec![], unpack(dice, 6))
}

fn rm(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    let setup = unpack(&mut dice.clone(), u64::MAX);
    let (mut dirs, files) = tree(dice);
    let mut ops = vec![];
    for (path, _) in files {
        ops.push(Op::Unlink { path });
        flusher(dice, &mut ops, 8);
    }
    dirs.sort_by_key(|dir| std::cmp::Reverse(dir.matches('/').count()));
    for path in dirs {
        ops.push(Op::Rmdir { path });
        flusher(dice, &mut ops, 4);
    }
    (setup, ops)
}

fn postmark(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    let mut setup = vec![];
    let mut files = vec![];
    for n in 0..6 {
        setup.push(Op::Mkdir { path: format!("/s{n}") });
    }
    let create = |dice: &mut Seed, n: usize, ops: &mut Vec<Op>, files: &mut Vec<String>| {
        let path = format!("/s{}/f{n}", n % 6);
        ops.push(Op::Create { path: path.clone() });
        ops.push(Op::Append { path: path.clone(), len: 500 + pick(dice, 9_500) });
        files.push(path);
    };
    for n in 0..40 {
        create(dice, n, &mut setup, &mut files);
    }
    let mut ops = vec![];
    for n in 40..160 {
        let at = pick(dice, to_u64(files.len()));
        match dice.below(4) {
            0 => create(dice, n, &mut ops, &mut files),
            1 if files.len() > 4 => ops.push(Op::Unlink { path: files.swap_remove(at) }),
            2 => ops.push(Op::Append { path: files[at].clone(), len: 1 + pick(dice, 4_000) }),
            _ => create(dice, n, &mut ops, &mut files),
        }
        if dice.chance(1, 16) {
            ops.push(Op::Fsync { path: files[pick(dice, to_u64(files.len()))].clone() });
        }
        flusher(dice, &mut ops, 8);
    }
    (setup, ops)
}

fn mail(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    let setup = ["/tmp", "/new", "/cur"].map(|path| Op::Mkdir { path: path.into() }).to_vec();
    let mut ops = vec![];
    for n in 0_u64..40 {
        let (tmp, new) = (format!("/tmp/{n}"), format!("/new/{n}"));
        ops.push(Op::Create { path: tmp.clone() });
        ops.push(Op::Append { path: tmp.clone(), len: 300 + pick(dice, 8_000) });
        ops.push(Op::Fsync { path: tmp.clone() });
        ops.push(Op::Rename { old: tmp, new: new.clone(), mode: RenameMode::Replace });
        if dice.chance(1, 2) {
            ops.push(Op::Fsync { path: "/new".into() });
        }
        if let Some(read) = n.checked_sub(3) {
            let (old, seen) = (format!("/new/{read}"), format!("/cur/{read}"));
            ops.push(Op::Rename { old, new: seen.clone(), mode: RenameMode::Replace });
            if dice.chance(1, 3) {
                ops.push(Op::Unlink { path: seen });
            }
        }
        flusher(dice, &mut ops, 6);
    }
    (setup, ops)
}

fn editor(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    let mut setup = vec![Op::Mkdir { path: "/doc".into() }];
    for n in 0..4 {
        setup.push(Op::Create { path: format!("/doc/{n}") });
        setup.push(Op::Append { path: format!("/doc/{n}"), len: 1_000 + pick(dice, 20_000) });
    }
    let mut ops = vec![];
    for _ in 0..30 {
        let path = format!("/doc/{}", dice.below(4));
        let new = format!("{path}~");
        ops.push(Op::Create { path: new.clone() });
        ops.push(Op::Append { path: new.clone(), len: 1_000 + pick(dice, 20_000) });
        // Some editors forget it: then the old or the new contents, or a part of the new ones, may be there.
        if dice.chance(3, 4) {
            ops.push(Op::Fsync { path: new.clone() });
        }
        ops.push(Op::Rename { old: new, new: path.clone(), mode: RenameMode::Replace });
        if dice.chance(1, 3) {
            ops.push(Op::Fsync { path });
        }
        flusher(dice, &mut ops, 4);
    }
    (setup, ops)
}

fn db(dice: &mut Seed) -> (Vec<Op>, Vec<Op>) {
    let setup = vec![Op::Create { path: "/db".into() }, Op::Append { path: "/db".into(), len: 120_000 }];
    let mut ops = vec![];
    let (db, journal) = ("/db".to_owned(), "/db-journal".to_owned());
    for _ in 0..24 {
        let pages = 1 + dice.below(4);
        ops.push(Op::Create { path: journal.clone() });
        for _ in 0..pages {
            ops.push(Op::Append { path: journal.clone(), len: 1_032 });
        }
        ops.push(Op::Fsync { path: journal.clone() });
        for _ in 0..pages {
            ops.push(Op::Write { path: db.clone(), offset: 1024 * dice.below(116), len: 1024 });
        }
        ops.push(Op::Fdatasync { path: db.clone() });
        match dice.below(2) {
            0 => ops.push(Op::Unlink { path: journal.clone() }),
            _ => ops.push(Op::Truncate { path: journal.clone(), size: 0 }),
        }
        flusher(dice, &mut ops, 3);
    }
    (setup, ops)
}
