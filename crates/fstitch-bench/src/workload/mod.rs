//! What is done: each workload is written once and runs in every contender.
//!
//! ```text
//!   small.rs   creates, 4 KiB writes, unlinks; stat storms; a large directory; several clients
//!   tree.rs    a source tree: unpacked, read, deleted; copied and compiled
//!   mail.rs    PostMark's transactions
//!   stable.rs  files and blocks with fsync; sqlite's calls
//!   stream.rs  large sequential files
//!   program.rs programs: git, sqlite3, postmark, fio
//! ```

mod mail;
mod program;
mod small;
mod source;
mod stable;
mod stream;
mod tree;

use std::path::Path;

use anyhow::Result;
use fstitch_core::num::to_usize;

use crate::meter::Meter;
use crate::place::Place;
use crate::processors::Processors;

pub use self::mail::{PostMark, postmark};
pub use self::source::Tree;
pub(crate) use self::tree::unpack;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// What the report shows.
    Full,
    /// A look that takes minutes.
    Quick,
}

impl Scale {
    /// The amount for this scale.
    #[must_use]
    pub fn of(self, full: u64, quick: u64) -> u64 {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// Where and with what a workload runs.
pub struct At<'a> {
    /// The file system, which is empty.
    pub place: &'a dyn Place,
    /// Its directory on the host, for programs.
    pub host: Option<&'a Path>,
    /// How much to do.
    pub scale: Scale,
    /// A source tree.
    pub tree: &'a Tree,
    /// A directory in memory for what programs need beside.
    pub scratch: &'a Path,
}

/// A workload.
pub struct Workload {
    /// Its name in results.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// The programs that it runs, if it runs programs; their absence leaves it out.
    pub programs: &'static [&'static str],
    /// It calls fsync while it works.
    pub syncs: bool,
    /// Who does not take part.
    pub left_out: &'static [LeftOut],
    /// On which processors.
    pub processors: Processors,
    /// About how much memory it takes, in MiB: made ready before, see [`crate::warm`].
    pub memory: u64,
    run: fn(&At<'_>, &mut Meter<'_>) -> Result<()>,
}

impl Workload {
    /// Runs it.
    ///
    /// # Errors
    /// Those of the calls that it makes.
    pub fn run(&self, at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
        (self.run)(at, meter)
    }
}

/// Contenders that do not take part in a workload.
pub struct LeftOut {
    /// Their names.
    pub contenders: &'static [&'static str],
    /// On this medium only, and only beside another one; `None` for all.
    pub medium: Option<&'static str>,
    /// Why, for the report.
    pub why: &'static str,
}

impl LeftOut {
    /// Whether it concerns this contender on this medium.
    #[must_use]
    pub fn is(&self, contender: &str, medium: &str) -> bool {
        self.medium.is_none_or(|only| only == medium) && self.contenders.contains(&contender)
    }
}

const NOBODY: &[LeftOut] = &[];

/// Of what takes long, only those take part on the second medium whom a goal compares there.
const ALL_BUT_COMPARED: LeftOut = LeftOut {
    contenders: &[
        "fuse-ordered",
        "fuse-full",
        "fuse-memory",
        "in-ordered",
        "in-full",
        "fuse-ext4",
        "in-ext4",
        "fuse2fs-ext4",
        "kernel-ext2",
        "kernel-ext3-ordered",
        "kernel-ext3-journal",
        "kernel-ext4",
        "tmpfs",
    ],
    medium: Some("memory"),
    why: "it takes long; on this medium only those are raced whom a goal compares here",
};
const COMPARED_IN_MEMORY: &[LeftOut] = &[ALL_BUT_COMPARED];

/// What idle processors cost concerns those who wake each other: servers of FUSE and their clients.
const ALL_BUT_FUSE: LeftOut = LeftOut {
    contenders: &[
        "fuse-ordered",
        "fuse-full",
        "fuse-async",
        "in-soft",
        "in-ordered",
        "in-full",
        "fuse-ext4",
        "in-ext4",
        "fuse2fs-ext4",
        "in-async",
        "in-sync",
        "kernel-ext2",
        "kernel-ext3-ordered",
        "kernel-ext3-journal",
        "kernel-ext4",
        "tmpfs",
    ],
    medium: None,
    why: "what halted processors cost is shown by those on ext2 that are reached through FUSE",
};
const ONLY_FUSE: &[LeftOut] = &[ALL_BUT_FUSE];
const ONLY_FUSE_ON_DISK: &[LeftOut] = &[
    ALL_BUT_FUSE,
    LeftOut {
        contenders: &["fuse-soft", "fuse-memory", "fuse2fs"],
        medium: Some("memory"),
        why: "it takes long and shows there what it shows on the disk",
    },
];

/// Workloads on the machine as it is found: no option, no parameter of the kernel, no processor kept awake by the bench.
pub const FOUND: [&str; 3] = ["tree-found", "postmark-found", "postmark-program-found"];

const LARGE_DIRECTORY: &[LeftOut] = &[
    LeftOut {
        contenders: &["fuse2fs", "fuse2fs-ext4"],
        medium: None,
        why: "it reads a directory's blocks for every name: a quarter of an hour for 100,000",
    },
    ALL_BUT_COMPARED,
];

/// All workloads, in the order of reports: first what people get without knowing anything, then machines tuned for measuring.
pub const ALL: &[Workload] = &[
    Workload {
        name: "tree-found",
        about: "a part of the kernel's sources unpacked and deleted, defaults on the machine as it is found",
        programs: &[],
        syncs: false,
        processors: Processors::AsFound,
        memory: 400,
        left_out: NOBODY,
        run: tree::unpack_and_delete,
    },
    Workload {
        name: "postmark-found",
        about: "PostMark, the same as postmark, defaults on the machine as it is found",
        programs: &[],
        syncs: false,
        processors: Processors::AsFound,
        memory: 1500,
        left_out: COMPARED_IN_MEMORY,
        run: mail::large,
    },
    Workload {
        name: "postmark-program-found",
        about: "the program postmark, the same as postmark-program, defaults on the machine as it is found",
        programs: &["postmark"],
        syncs: false,
        processors: Processors::AsFound,
        memory: 64,
        left_out: NOBODY,
        run: program::postmark,
    },
    Workload {
        name: "small",
        about: "empty files made, a file written and written again in blocks of 4 KiB, files unlinked",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 256,
        left_out: NOBODY,
        run: small::run,
    },
    Workload {
        name: "small-pinned",
        about: "the same, client and server on one processor",
        programs: &[],
        syncs: false,
        processors: Processors::One,
        memory: 256,
        left_out: NOBODY,
        run: small::run,
    },
    Workload {
        name: "small-halted",
        about: "the same, idle processors in whatever state the machine puts them",
        programs: &[],
        syncs: false,
        processors: Processors::All,
        memory: 128,
        left_out: NOBODY,
        run: small::run_halted,
    },
    Workload {
        name: "tree",
        about: "a part of the kernel's sources unpacked and deleted",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 400,
        left_out: NOBODY,
        run: tree::unpack_and_delete,
    },
    Workload {
        name: "tree-halted",
        about: "the same as tree, idle processors in whatever state the machine puts them",
        programs: &[],
        syncs: false,
        processors: Processors::All,
        memory: 400,
        left_out: ONLY_FUSE_ON_DISK,
        run: tree::unpack_and_delete,
    },
    Workload {
        name: "postmark",
        about: "PostMark: 500 files of 500 bytes to 4 MiB, 500 transactions ([D] Fig 2.10)",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 1500,
        left_out: COMPARED_IN_MEMORY,
        run: mail::large,
    },
    Workload {
        name: "mail",
        about: "PostMark: 1,000 files of 512 bytes to 16 KiB, 30,000 transactions ([S] Table I)",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: mail::small,
    },
    Workload {
        name: "andrew",
        about: "a tree of sources copied, listed and read; compiled where programs can run",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 256,
        left_out: NOBODY,
        run: tree::andrew,
    },
    Workload {
        name: "creates",
        about: "files of 4 KiB made as fs_mark does, without and with an fsync of each",
        programs: &[],
        syncs: true,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: stable::creates,
    },
    Workload {
        name: "creates-halted",
        about: "the same as creates, idle processors in whatever state the machine puts them",
        programs: &[],
        syncs: true,
        processors: Processors::All,
        memory: 64,
        left_out: ONLY_FUSE,
        run: stable::creates,
    },
    Workload {
        name: "stream",
        about: "a large file written and read in pieces of 1 MiB",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 500,
        left_out: NOBODY,
        run: stream::run,
    },
    Workload {
        name: "random",
        about: "blocks of 4 KiB written at random places of a file, an fsync after every 16",
        programs: &[],
        syncs: true,
        processors: Processors::Awake,
        memory: 256,
        left_out: NOBODY,
        run: stable::random,
    },
    Workload {
        name: "stat",
        about: "attributes of many files asked again and again",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: small::stat,
    },
    Workload {
        name: "directory",
        about: "a directory of 10,000 names filled, listed and emptied",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: small::directory,
    },
    Workload {
        name: "directory-large",
        about: "the same with 100,000 names",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 256,
        left_out: LARGE_DIRECTORY,
        run: small::large_directory,
    },
    Workload {
        name: "parallel",
        about: "four clients make, write and remove files of their own",
        programs: &[],
        syncs: false,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: small::parallel,
    },
    Workload {
        name: "sqlite-calls",
        about: "the calls of 1,000 sqlite transactions with a rollback journal",
        programs: &[],
        syncs: true,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: stable::sqlite_calls,
    },
    Workload {
        name: "sqlite",
        about: "1,000 transactions of sqlite3",
        programs: &["sqlite3"],
        syncs: true,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: program::sqlite,
    },
    Workload {
        name: "git",
        about: "git clone --local --no-hardlinks, git status",
        programs: &["git"],
        syncs: false,
        processors: Processors::Awake,
        memory: 512,
        left_out: NOBODY,
        run: program::git,
    },
    Workload {
        name: "postmark-program",
        about: "the program postmark: 500 files of 500 bytes to 64 KiB, 2,000 transactions",
        programs: &["postmark"],
        syncs: false,
        processors: Processors::Awake,
        memory: 64,
        left_out: NOBODY,
        run: program::postmark,
    },
    Workload {
        name: "fio",
        about: "fio: 4 KiB random writes, an fsync after every 16",
        programs: &["fio"],
        syncs: true,
        processors: Processors::Awake,
        memory: 256,
        left_out: NOBODY,
        run: program::fio,
    },
];

/// Bytes that files are filled with.
pub(crate) static FILLER: [u8; 1 << 20] = [0x5A; 1 << 20];

/// A length as an index.
pub(crate) fn len(bytes: u64) -> usize {
    to_usize(bytes)
}
