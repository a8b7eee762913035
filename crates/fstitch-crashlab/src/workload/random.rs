//! Long runs of random operations in a small tree; the number is the seed.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{FallocateMode, RenameMode, Seed};

use super::op::Op;
use super::{Family, Workload};

/// Operations of a run.
const STEPS: u64 = 120;

struct Random {
    name: &'static str,
    about: &'static str,
    setup: fn() -> Vec<Op>,
    /// Writers, each with a directory of its own beside the shared root.
    writers: u64,
    /// One operation in so many lets a file share another one's blocks; 0 for none.
    shares: u64,
}

/// The families of this file.
pub fn families() -> Vec<Box<dyn Family>> {
    let family = |name, about, setup, writers| {
        Box::new(Random { name, about, setup, writers, shares: 0 }) as Box<dyn Family>
    };
    let shares = Random {
        name: "shares",
        about: "the same with every third operation one that lets files share blocks, where the format has that",
        setup: Vec::new,
        writers: 1,
        shares: 3,
    };
    vec![
        family("random", "120 random operations in a small tree", Vec::new, 1),
        family("full", "the same on a volume with hardly any room", fill_up, 1),
        family("writers", "four interleaved writers, each mostly in a directory of its own", Vec::new, 4),
        family("brim", "the same on a volume that has been filled to the last block", fill_to_the_brim, 1),
        family("inodes", "the same with six inodes left", use_up_inodes, 1),
        Box::new(shares),
    ]
}

/// Leaves some 60 KiB of a 4 MiB volume.
fn fill_up() -> Vec<Op> {
    let mut setup = vec![];
    for n in 0..4 {
        let path = format!("/fill{n}");
        setup.push(Op::Create { path: path.clone() });
        setup.push(Op::Append { path, len: if n == 3 { 600 << 10 } else { 1 << 20 } });
    }
    for n in 0..40 {
        let path = format!("/little{n}");
        setup.push(Op::Create { path: path.clone() });
        setup.push(Op::Append { path, len: 6_000 });
    }
    setup
}

/// Writes until there is no room, and gives three small files back: a dozen blocks are free. Small files, directories
/// and one that ends behind indirect pointers are there to be used.
fn fill_to_the_brim() -> Vec<Op> {
    let mut setup = vec![Op::Mkdir { path: "/n0".into() }, Op::Mkdir { path: "/n1".into() }];
    for n in 0..12 {
        let path = format!("/n{}/n{n}", n % 2);
        setup.push(Op::Create { path: path.clone() });
        setup.push(Op::Append { path, len: 3_500 });
    }
    for n in 0..5 {
        let path = format!("/n{}", n + 2);
        setup.push(Op::Create { path: path.clone() });
        setup.push(Op::Append { path, len: 1 << 20 });
    }
    setup.extend([0, 1, 2].map(|n| Op::Unlink { path: format!("/n{}/n{n}", n % 2) }));
    setup
}

/// Leaves six of 256 inodes, ten of which are the format's own, and lost+found.
fn use_up_inodes() -> Vec<Op> {
    let mut setup = vec![Op::Mkdir { path: "/n0".into() }];
    setup.extend((0..255 - 11 - 6).map(|n| Op::Create { path: format!("/n0/n{n}") }));
    setup
}

impl Family for Random {
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
        let setup = (self.setup)();
        let mut writers: Vec<Writer> = (0..self.writers)
            .map(|n| {
                let home = if self.writers == 1 { String::new() } else { format!("/w{n}") };
                Writer::new(Seed::new(index.wrapping_mul(0x1_0000_0001).wrapping_add(n)), home)
            })
            .collect();
        let homes = writers.iter().map(|writer| writer.home.clone()).filter(|home| !home.is_empty());
        let mut ops: Vec<Op> = homes.map(|path| Op::Mkdir { path }).collect();
        let mut turn = Seed::new(index);
        for _ in 0..STEPS {
            let at = to_usize(turn.below(self.writers));
            let is_share = self.shares > 0 && turn.below(self.shares) == 0;
            ops.push(if is_share { writers[at].share() } else { writers[at].step() });
        }
        Some(Workload { name: format!("{}/{index}", self.name), setup, ops })
    }
}

/// One writer and what it believes to be there; errors are part of life.
struct Writer {
    dice: Seed,
    home: String,
    dirs: Vec<String>,
    files: Vec<String>,
    held: Vec<String>,
}

impl Writer {
    fn new(dice: Seed, home: String) -> Self {
        Self { dice, dirs: vec![home.clone()], home, files: vec![], held: vec![] }
    }

    fn below(&mut self, bound: usize) -> usize {
        to_usize(self.dice.below(to_u64(bound)))
    }

    fn dir(&mut self) -> String {
        let at = self.below(self.dirs.len());
        self.dirs[at].clone()
    }

    fn file(&mut self) -> String {
        if self.files.is_empty() {
            return format!("{}/n0", self.home);
        }
        let at = self.below(self.files.len());
        self.files[at].clone()
    }

    fn name(&mut self) -> String {
        // Other writers meet in the root.
        let dir = if self.dice.chance(1, 8) { String::new() } else { self.dir() };
        let long = if self.dice.chance(1, 6) { "x".repeat(60 + self.below(150)) } else { String::new() };
        format!("{dir}/n{}{long}", self.below(14))
    }

    fn len(&mut self) -> usize {
        match self.dice.below(5) {
            0 => self.below(100),
            1 | 2 => self.below(5_000),
            3 => self.below(20_000),
            _ => self.below(60_000),
        }
    }

    fn share(&mut self) -> Op {
        Op::Share { from: self.file(), to: self.file() }
    }

    fn step(&mut self) -> Op {
        match self.dice.below(28) {
            0..=2 => self.create(),
            3..=5 => Op::Append { path: self.file(), len: self.len() },
            6 => Op::Write { path: self.file(), offset: self.dice.below(40_000), len: self.len() },
            7 => Op::Truncate { path: self.file(), size: self.dice.below(30_000) },
            8 | 9 => self.unlink(),
            10 => self.mkdir(),
            11 => self.rmdir(),
            12 | 13 => self.rename(),
            14 => Op::Link { old: self.file(), new: self.new_file() },
            15 => Op::Symlink { path: self.new_file(), len: 1 + self.below(120) },
            16 => Op::SetXattr { path: self.file(), name: "user.big".into(), len: self.below(600) },
            17 => Op::RemoveXattr { path: self.file(), name: "user.big".into() },
            18 => self.fallocate(),
            19 => Op::Chmod { path: self.file(), perm: 0o600 },
            20 => Op::Fsync { path: self.file() },
            21 => self.sync(),
            22 => self.hold(),
            23 => Op::Tmpfile { dir: "/".into(), link_as: self.new_file(), len: self.len() },
            _ => Op::WriteOut {
                share: u8::try_from(2 + self.dice.below(14)).expect("small"),
                seed: self.dice.next_u64(),
            },
        }
    }

    fn new_file(&mut self) -> String {
        let path = self.name();
        self.files.push(path.clone());
        path
    }

    fn create(&mut self) -> Op {
        Op::Create { path: self.new_file() }
    }

    fn unlink(&mut self) -> Op {
        let path = self.file();
        self.files.retain(|other| *other != path);
        Op::Unlink { path }
    }

    fn mkdir(&mut self) -> Op {
        let path = self.name();
        self.dirs.push(path.clone());
        Op::Mkdir { path }
    }

    fn rmdir(&mut self) -> Op {
        let path = self.dir();
        if path.is_empty() || path == self.home {
            return self.create();
        }
        self.dirs.retain(|other| *other != path);
        Op::Rmdir { path }
    }

    fn rename(&mut self) -> Op {
        let directory = self.dice.chance(1, 3);
        let old = if directory { self.dir() } else { self.file() };
        if old.is_empty() || old == self.home {
            return self.create();
        }
        let over = self.dice.chance(1, 2);
        let new = if over { self.file() } else { self.name() };
        let mode = match self.dice.below(8) {
            0 => RenameMode::Exchange,
            1 => RenameMode::NoReplace,
            _ => RenameMode::Replace,
        };
        let below = format!("{old}/");
        for path in self.dirs.iter_mut().chain(&mut self.files) {
            if *path == old {
                path.clone_from(&new);
            } else if let Some(rest) = path.strip_prefix(&below) {
                *path = format!("{new}/{rest}");
            }
        }
        Op::Rename { old, new, mode }
    }

    fn fallocate(&mut self) -> Op {
        let modes = [
            FallocateMode::PunchHole,
            FallocateMode::PunchHole,
            FallocateMode::Allocate,
            FallocateMode::ZeroRange,
            FallocateMode::ZeroRangeKeepSize,
        ];
        let mode = modes[self.below(modes.len())];
        Op::Fallocate {
            path: self.file(),
            offset: self.dice.below(20_000),
            len: 1 + self.dice.below(9_000),
            mode,
        }
    }

    fn sync(&mut self) -> Op {
        match self.dice.below(4) {
            0 => Op::Sync,
            1 => {
                let dir = self.dir();
                Op::Fsync { path: if dir.is_empty() { "/".into() } else { dir } }
            }
            _ => Op::Fdatasync { path: self.file() },
        }
    }

    fn hold(&mut self) -> Op {
        match self.held.pop() {
            Some(path) if self.dice.chance(1, 2) => Op::Release { path },
            before => {
                self.held.extend(before);
                let path = self.file();
                self.held.push(path.clone());
                Op::Hold { path }
            }
        }
    }
}
