//! Short scripts after which everything is written that can be written while one block stays back, each block in turn.
//!
//! A dependency that is missing shows when what it should have waited for is still in the cache. Random choices of what is
//! written meet that seldom where many blocks are dirty; these workloads meet it always. The number is that of the script
//! times [`BLOCKS`], plus that of the block.
//!
//! `SPACERx` makes eight files: a block full of inodes, so that the inodes before and behind it lie in different blocks.
//! `LONG` is 200 letters: a directory block of 1 KiB takes four such names.

use super::op::Op;
use super::{Family, Workload};
use fstitch_core::num::to_u64;

/// Blocks that are held back in turn. Where fewer are dirty, the last workloads of a script hold nothing back.
const BLOCKS: u64 = 24;

/// What is there before, and what is done; what stands before `|` there is done before as well.
type Script = (&'static str, &'static str);

/// A file to be removed, what may take its blocks, and no room elsewhere.
const SCARCE: &str = "create /a;append /a 20480;SPACERa;mkdir /d;create /d/LONG0;create /d/LONG1;create /d/LONG2;create /d/LONG3;\
                      create /b;create /x;create /f;append /f 1000000";
/// The same, and one block that is free since long.
const SCARCE_BUT_ONE: &str = "create /a;append /a 10240;SPACERa;create /b;create /one;append /one 1024;create /f;append /f 1000000;unlink /one";

/// Blocks that are used again at once, on a volume of 400 KiB.
const REUSE: [Script; 16] = [
    (SCARCE, "unlink /a;create /d/LONG9"),
    (SCARCE, "unlink /a;mkdir /e"),
    (SCARCE, "unlink /a;symlink /slow 200"),
    (SCARCE, "unlink /a;setxattr /x user.x 600"),
    (SCARCE, "unlink /a;append /b 5120"),
    (SCARCE, "unlink /a;write /b 12288 1024"),
    (SCARCE, "truncate /a 0;create /d/LONG9"),
    (SCARCE, "truncate /a 0;mkdir /e"),
    (SCARCE, "truncate /a 0;symlink /slow 200"),
    (SCARCE, "truncate /a 0;setxattr /x user.x 600"),
    (SCARCE, "punch /a 0 8192;append /b 5120"),
    (SCARCE, "punch /a 0 8192;write /b 12288 1024"),
    (SCARCE_BUT_ONE, "unlink /a;write /b 12288 1024"),
    (SCARCE_BUT_ONE, "truncate /a 1024;write /b 12288 1024"),
    (SCARCE_BUT_ONE, "unlink /a;write /b 300000 1024"),
    (SCARCE_BUT_ONE, "punch /a 0 4096;write /b 12288 1024"),
];

const IN_INODE: &str = "create /f;append /f 10;setxattr /f user.a 20";
const IN_BLOCK: &str = "create /f;append /f 10;setxattr /f user.a 300";
const WITH_OTHERS: &str = "create /f;append /f 10;setxattr /f user.b 300;setxattr /f user.a 20";
const IN_BLOCK_WITH_OTHERS: &str = "create /f;append /f 10;setxattr /f user.b 300;setxattr /f user.a 300";
const NO_ATTRIBUTES: &str = "create /f;append /f 10;SPACERa;mkdir /d";

/// Attributes that come, move between inode and block, and go.
const ATTRIBUTES: [Script; 13] = [
    (IN_INODE, "setxattr /f user.a 300"),
    (IN_BLOCK, "setxattr /f user.a 20"),
    (IN_BLOCK, "setxattr /f user.a 310"),
    (WITH_OTHERS, "setxattr /f user.a 300"),
    (IN_BLOCK_WITH_OTHERS, "setxattr /f user.a 20"),
    (IN_BLOCK_WITH_OTHERS, "removexattr /f user.a"),
    (NO_ATTRIBUTES, "setxattr /f user.a 20"),
    (NO_ATTRIBUTES, "setxattr /f user.a 300"),
    (NO_ATTRIBUTES, "setxattr /d system.posix_acl_default 1;SPACERc;mkdir /d/e;create /d/f"),
    (NO_ATTRIBUTES, "setxattr /f user.a 300;sync;removexattr /f user.a;symlink /s 30"),
    (NO_ATTRIBUTES, "setxattr /f user.a 300;sync;unlink /f;symlink /s 30"),
    (NO_ATTRIBUTES, "setxattr /f user.a 300;sync;removexattr /f user.a;setxattr /f user.b 500"),
    (NO_ATTRIBUTES, "setxattr /f user.a 300;setxattr /f user.a 20;setxattr /d user.a 300"),
];

/// Files that grow and shrink, over holes and beyond the sizes at which something changes.
const SIZES: [Script; 16] = [
    ("create /a", "write /a 2147483653 1"),
    ("create /a;write /a 1000 1", "write /a 4294967301 1"),
    ("create /a;write /a 2147483653 1", "write /a 4294967301 1"),
    ("create /a", "truncate /a 3000000000"),
    ("create /a;write /a 307200 1024;truncate /a 614400", "write /a 542720 1024;write /a 614400 1024"),
    ("create /a;append /a 20480", "append /a 1000;append /a 300000"),
    ("create /a", "write /a 307200 2048;write /a 20480 2048;create /b;write /b 71680000 1024"),
    ("create /a;append /a 15360", "truncate /a 14436;truncate /a 317440"),
    ("create /a;append /a 20980", "truncate /a 14436;truncate /a 317440"),
    ("create /a;append /a 307700", "truncate /a 14436;truncate /a 317440"),
    ("create /a;append /a 204800", "truncate /a 153600;punch /a 0 2048;truncate /a 215040"),
    ("create /a;append /a 14336", "truncate /a 13322;punch /a 0 2048;truncate /a 16384"),
    ("create /a;append /a 14336", "truncate /a 13322;write /a 15360 1024"),
    ("create /a;append /a 20480", "truncate /a 5000;append /a 3000"),
    ("create /a;append /a 20480", "truncate /a 5000;append /a 300;append /a 20000"),
    ("create /a;append /a 614400", "unlink /a"),
];

/// The inodes of the first group are used up, and the second one's blocks, but for those that the scripts give back: of a file
/// in the second group, some blocks lie there and some in the first.
const TWO_GROUPS: &str = "mkdir /p;SPACERa;SPACERb;SPACERc;create /a;create /1;append /1 1024;create /2;append /2 1024;create /3;append /3 1024;\
                          create /f;append /f 310000";

/// Blocks of a file in several groups.
const GROUPS: [Script; 8] = [
    (TWO_GROUPS, "unlink /1|write /a 12288 1024"),
    (TWO_GROUPS, "unlink /1|write /a 307200 1024"),
    (TWO_GROUPS, "unlink /1;unlink /2|write /a 307200 1024"),
    (TWO_GROUPS, "unlink /1;unlink /2|write /a 67584000 1024"),
    (TWO_GROUPS, "unlink /1;unlink /2;unlink /3|write /a 67584000 1024"),
    (TWO_GROUPS, "unlink /1|setxattr /a user.a 300;append /a 2048"),
    (TWO_GROUPS, "write /a 12288 1024;symlink /slow 200;setxattr /2 user.a 300"),
    (TWO_GROUPS, "mkdir /d;append /2 20480"),
];

const TWO_DIRS: &str = "mkdir /d;SPACERa;mkdir /e;SPACERb;";
const DIRS: &str = "mkdir /p;SPACERa;mkdir /q;SPACERb;mkdir /s;SPACERc;mkdir /p/t;SPACERd;mkdir /q/u;SPACERe;create /f;append /f 3000";
const FILES: &str =
    "mkdir /d;SPACERa;mkdir /e;SPACERb;create /d/a;append /d/a 3000;SPACERf;create /e/b;append /e/b 3000";
const EMPTYING: &str = "mkdir /d;SPACERa;mkdir /e;SPACERb;mkdir /d/s;SPACERc;create /d/f;append /d/f 3000;create /d/s/g;append /d/s/g 3000;\
                        mkdir /d/s/empty;mkdir /over";
const LINKED: &str = "mkdir /d;SPACERa;mkdir /e;SPACERb;create /d/a;append /d/a 3000;SPACERs;create /d/b;append /d/b 2000;\
                      link /d/a /e/a;link /d/b /e/b;create /d/c;append /d/c 100";
const TWINS: &str =
    "mkdir /d;SPACERa;mkdir /e;SPACERb;create /d/t;append /d/t 3000;create /x;append /x 100;link /d/t /e/b";

/// Names that are made, moved, exchanged and removed; each inode that matters in a block of its own.
const NAMES: [Script; 42] = [
    ("create /z", "mkdir /d;create /d/f;append /d/f 3000;SPACERa;link /d/f /g;mkdir /d/e;link /d/f /d/e/h"),
    (
        "create /f;append /f 3000;SPACERa;mkdir /d;SPACERb;create /d/LONG0;create /d/LONG1;create /d/LONG2;create /d/LONG3",
        "rename /f /d/LONG9",
    ),
    ("create /f;append /f 3000", "mkdir /d;mkdir /d/e;rename /f /d/e/f"),
    (DIRS, "mkdir /d;rename /q /d/q"),
    (DIRS, "mkdir /n;SPACERn;mkdir /n/x;rename /n/x /q/x"),
    (DIRS, "mkdir /p/x;rename /p/x /q/x"),
    (DIRS, "rename /p/t /q/x"),
    (DIRS, "rename /p/t /q/x;rename /q/x /s/x"),
    (DIRS, "rename /p/t /p/y;rename /p/y /q/y;rename /q/y /q/z"),
    (DIRS, "rename /p/t /q/x;rmdir /q/x"),
    (DIRS, "rename /p/t /p/y;rmdir /p/y"),
    (DIRS, "rmdir /p/t"),
    (DIRS, "rename /p/t /q/t;rename /s /q/t"),
    (DIRS, "rename /p/t /q/t;rename /q/u /q/t"),
    (DIRS, "rename /p/t /q/u"),
    (FILES, "rename /d/a /e/b"),
    (FILES, "rename /d/a /e/c;unlink /e/c"),
    (FILES, "link /d/a /e/c;unlink /d/a;unlink /e/b"),
    (FILES, "create /d/y;append /d/y 3000;rename /d/y /e/y;link /e/y /e/z;rename /e/y /e/b"),
    (FILES, "hold /d/a;unlink /d/a;release /d/a"),
    (
        FILES,
        "create /d/c;append /d/c 10;SPACERc;mknod /d/p fifo;exchange /d/p /d/c;create /d/q;append /d/q 10",
    ),
    (FILES, "create /d/c;SPACERc;create /e/p;exchange /e/p /d/c"),
    (FILES, "create /d/c;SPACERc;create /e/p;exchange /d/c /e/p"),
    (FILES, "create /d/c;SPACERc;create /d/p;link /d/c /e/l;link /d/p /e/m"),
    (FILES, "create /d/c;unlink /d/c;create /d/c;mkdir /e/x;rmdir /e/x;mkdir /e/x;rmdir /e/x"),
    (
        TWO_DIRS,
        "create /d/a;append /d/a 3000;SPACERs;mkdir /e/x;sync;unlink /d/a;create /d/a;append /d/a 3000;unlink /d/a",
    ),
    (TWO_DIRS, "create /d/a;append /d/a 3000;SPACERs;mkdir /e/x;sync;rename /e/x /d/x"),
    (TWO_DIRS, "create /d/a;append /d/a 3000;SPACERs;mkdir /e/x;sync;rename /d/a /e/a;unlink /e/a"),
    (FILES, "link /d/a /e/c;unlink /d/a"),
    (FILES, "mkdir /d/n;mkdir /d/n/m;link /d/a /d/n/m/f;unlink /d/a"),
    (FILES, "link /d/a /e/c;rename /e/b /d/a"),
    (
        EMPTYING,
        "rename /d/f /e/f;link /d/s/g /e/g;unlink /d/s/g;rename /d/s/empty /e/empty;rmdir /d/s;rmdir /d",
    ),
    (
        EMPTYING,
        "rename /d/f /e/f;rename /d/s/g /e/g;rename /e /e2;rename /e2 /e;rmdir /d/s/empty;rmdir /d/s;rename /over /d",
    ),
    (TWINS, "rename /x /d/t;unlink /d/t;rmdir /d"),
    (TWINS, "unlink /d/t;rmdir /d"),
    (TWINS, "link /d/t /e/t;rename /x /d/t;unlink /d/t;rmdir /d"),
    (DIRS, "mkdir /p/x;create /p/x/y;rename /p/x /q/x;rename /f /q/x/f"),
    (LINKED, "exchange /d/a /d/b;rename /d/a /e/c"),
    (LINKED, "exchange /d/a /d/b;rename /d/c /d/a"),
    (LINKED, "exchange /d/a /d/b;unlink /d/a"),
    (FILES, "mkdir /e/d;SPACERr;rename /d /e/d/q"),
    (
        "mkdir /d;SPACERa;mkdir /e;SPACERb;create /d/LONG0;create /d/LONG1;create /d/LONG2;create /d/LONG3;create /e/f;append /e/f 3000",
        "symlink /d/LONG9 20;rename /e/f /d/LONG9",
    ),
];

/// Changes of the indexed directory of a peculiar volume: the first four names go where the root of the index is, the fifth
/// into its empty leaf.
const INDEXED: [Script; 3] = [
    (
        "create /i",
        "link /i /d/LONG14;link /i /d/LONG15;link /i /d/LONG16;link /i /d/LONG17;link /i /d/LONG18",
    ),
    ("SPACERa;create /i", "unlink /d/LONG5;create /d/LONG15"),
    ("SPACERa;create /i", "rename /i /d/x;mkdir /d/y"),
];

/// The same with the inode that gets the names in a block of its own, which does not wait for the directory's.
const INDEXED_APART: [Script; 1] = [(
    "SPACERa;create /i",
    "link /i /d/LONG14;link /i /d/LONG15;link /i /d/LONG16;link /i /d/LONG17;link /i /d/LONG18",
)];

/// Pointers that must not reach the medium before others: of a file that grows from a hole that was filled, of a directory
/// that grows by several blocks.
const SEAMS: [Script; 4] = [
    ("create /a;append /a 13312;truncate /a 15460", "write /a 13312 2098;append /a 2000"),
    ("create /a;append /a 1024;truncate /a 3172", "write /a 1024 2098;append /a 2000"),
    (
        "mkdir /d;SPACERa",
        "create /d/LONG0;create /d/LONG1;create /d/LONG2;create /d/LONG3;create /d/LONG4;create /d/LONG5;\
         create /d/LONG6;create /d/LONG7;create /d/LONG8;create /d/LONG9;create /d/LONG10;create /d/LONG11;\
         create /d/LONG12;create /d/LONG13;create /d/LONG14",
    ),
    (
        "create /f;mkdir /d;SPACERa",
        "link /f /d/LONG0;link /f /d/LONG1;link /f /d/LONG2;link /f /d/LONG3;link /f /d/LONG4;link /f /d/LONG5;\
         link /f /d/LONG6;link /f /d/LONG7;link /f /d/LONG8;link /f /d/LONG9;link /f /d/LONG10;link /f /d/LONG11",
    ),
];

/// Changes of the shared attributes of a peculiar volume.
const SHARED: [Script; 8] = [
    ("", "setxattr /f user.a 310"),
    ("", "setxattr /f user.a 20"),
    ("", "removexattr /f user.a"),
    ("", "unlink /f"),
    ("", "setxattr /g user.b 100;removexattr /f user.a"),
    ("", "removexattr /g user.a;setxattr /f user.a 310"),
    ("", "unlink /g;unlink /f;setxattr /between-0 user.a 300"),
    ("", "setxattr /g user.a 310;setxattr /f user.a 320;unlink /f"),
];

/// A table and what it stands for.
struct Held {
    name: &'static str,
    about: &'static str,
    scripts: Vec<Script>,
}

/// The families of this file.
pub fn families() -> Vec<Box<dyn Family>> {
    let family = |name, about, scripts| Box::new(Held { name, about, scripts }) as Box<dyn Family>;
    vec![
        family("reuse", "freed blocks used again at once, one block held back", REUSE.to_vec()),
        family("attrs", "attributes that come, move and go, one block held back", ATTRIBUTES.to_vec()),
        family("sizes", "files that grow and shrink, one block held back", SIZES.to_vec()),
        family("groups", "files in several groups, one block held back", GROUPS.to_vec()),
        family("indexed", "an indexed directory of a peculiar volume, one block held back", INDEXED.to_vec()),
        family(
            "indexed-apart",
            "the same, the names' inode apart from the directory's, one block held back",
            INDEXED_APART.to_vec(),
        ),
        family("seams", "growth from filled holes and of directories, one block held back", SEAMS.to_vec()),
        family("shared", "shared attributes of a peculiar volume, one block held back", SHARED.to_vec()),
        family("names", "names made, moved and removed, one block held back", NAMES.to_vec()),
    ]
}

fn ops(text: &str) -> Vec<Op> {
    let long = text.replace("LONG", &"n".repeat(200));
    let mut list = vec![];
    for part in long.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        match part.strip_prefix("SPACER") {
            Some(name) => list.extend((0..8).map(|n| Op::Create { path: format!("/{name}-{n}") })),
            None => list.push(part.parse().expect("the tables above are tested")),
        }
    }
    list
}

impl Family for Held {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        BLOCKS * to_u64(self.scripts.len())
    }

    fn get(&self, index: u64) -> Option<Workload> {
        let (setup, work) = *self.scripts.get(usize::try_from(index / BLOCKS).ok()?)?;
        let (given_back, work) = work.split_once('|').unwrap_or(("", work));
        let setup = [ops(setup), ops(given_back)].concat();
        let mut list = ops(work);
        list.push(Op::AllBut { nth: index % BLOCKS });
        Some(Workload { name: format!("{}/{index}", self.name), setup, ops: list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_operations() {
        for family in families() {
            assert!((0..family.len()).all(|index| family.get(index).is_some()));
            assert!(family.get(family.len()).is_none());
        }
    }
}
