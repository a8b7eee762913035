//! The kinds of blocks that travel with reads and writes are true.
//!
//! What it prevents: a reliability policy, a fault plan or a trace that takes a block for another kind than it is, because somebody
//! (recovery, orphans, a checker, a volume in a file) names kinds carelessly. What a block really is, is read from the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, IoOp, MemDevice, Result,
};
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::workload::{Target, Workload};
use fstitch_crashlab::{Anatomy, Image, System};
use fstitch_systems::{Ext2Anatomy, system};

/// A block, and as what it was read or written.
type Seen = (u64, BlockKind);

/// A device in memory that notes as what its blocks are read and written.
struct Told {
    memory: MemDevice,
    phase: Mutex<&'static str>,
    seen: Mutex<BTreeMap<Seen, (&'static str, IoOp)>>,
}

impl Told {
    fn new(image: Vec<u8>, block_size: u32) -> Arc<Self> {
        let memory = MemDevice::from_image(block_size, image);
        Arc::new(Self { memory, phase: Mutex::new("work"), seen: Mutex::default() })
    }

    fn begin(&self, phase: &'static str) {
        *self.phase.lock().unwrap() = phase;
    }

    fn note(&self, block: BlockNo, kind: BlockKind, op: IoOp) {
        let phase = *self.phase.lock().unwrap();
        self.seen.lock().unwrap().entry((block.get(), kind)).or_insert((phase, op));
    }
}

impl BlockDevice for Told {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        reads.iter().for_each(|read| self.note(read.block, read.kind, IoOp::Read));
        self.memory.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        writes.iter().for_each(|write| self.note(write.block, write.kind, IoOp::Write));
        self.memory.write(writes)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.memory.discard(start, count)
    }
}

/// What blocks are or have been.
#[derive(Default)]
struct Truth {
    kinds: BTreeMap<u64, BTreeSet<BlockKind>>,
    journal: BTreeSet<u64>,
    links: BTreeSet<u64>,
}

impl Truth {
    /// Learns from the volume on the medium.
    fn look(&mut self, system: &dyn System, told: &Told) {
        let block_size = told.geometry().block_size;
        let bytes = told.memory.image();
        let blocks = bytes.len() as u64 / u64::from(block_size);
        let anatomy = Ext2Anatomy::new(system, Image::new(Base::new(block_size, bytes))).unwrap();
        for block in 0..blocks {
            let Some(kind) = anatomy.kind(block) else { continue };
            self.kinds.entry(block).or_default().insert(kind);
            if anatomy.is_journal(block) {
                self.journal.insert(block);
            }
            if anatomy.describe(block, kind).ends_with("/link") {
                self.links.insert(block);
            }
        }
    }

    /// Whether a block may be accessed as this. `by_contents`: by who sees its contents only, to which an empty block is one of
    /// pointers, and the target of a link is text.
    fn allows(&self, block: u64, kind: BlockKind, by_contents: bool) -> bool {
        let Some(kinds) = self.kinds.get(&block) else { return true };
        let is_contents = kinds.contains(&BlockKind::Data);
        let is_alike = (kind == BlockKind::Indirect && is_contents)
            || (kind == BlockKind::Data && kinds.contains(&BlockKind::Attribute));
        kinds.contains(&kind)
            || (by_contents && is_alike)
            || (is_contents && self.journal.contains(&block) && kind.is_journal())
            || (is_contents && self.links.contains(&block) && kind == BlockKind::Attribute)
    }
}

const WORK: &str = "mkdir /d;mkdir /d/e;create /d/a;append /d/a 40000;create /f;write /f 9000000 300;\
    symlink /link 200;setxattr /f user.a 300;setxattr /d user.b 200;sync;rename /d/a /d/e/b;append /f 70000;\
    create /g;append /g 300000;sync;hold /g;unlink /g;rmdir /d/nothing;fsync /f;chmod /f 600;fsync /f";

fn work(system: &dyn System, told: &Arc<Told>, truth: &mut Truth, ends: bool) {
    let device = Arc::clone(told) as Arc<dyn BlockDevice>;
    system.before_mount(&device).unwrap();
    let mounted = system.mount(device).unwrap();
    let write_out = |choose: &mut dyn FnMut(fstitch_crashlab::Step) -> bool| mounted.write_out(choose);
    let mut target = Target::new(mounted.fs(), &write_out);
    for (no, op) in (0..).zip(&Workload::parse(WORK).unwrap().ops) {
        // The directory that is not there is not removed.
        let _ = op.run(&mut target, no);
        if op.to_string() == "sync" {
            truth.look(system, told);
        }
    }
    drop(target);
    if ends {
        mounted.unmount().unwrap();
    }
    truth.look(system, told);
}

#[test]
fn every_block_is_read_and_written_as_what_it_is() {
    let names = [
        "ext2-soft",
        "ext2-sync-b4096",
        "ext2-soft-i256-p8",
        "ext3-ordered",
        "ext3-metadata-b2048",
        "ext3-full",
        "ext3-full-x1",
        "ext3-ordered-x1-b4096",
    ];
    for name in names {
        for ends in [true, false] {
            let system = system(name).unwrap();
            let base = system.format().unwrap();
            let block_size = base.geometry().block_size;
            let told = Told::new(Image::new(base).bytes(), block_size);
            let device = Arc::clone(&told) as Arc<dyn BlockDevice>;
            let mut truth = Truth::default();
            work(&*system, &told, &mut truth, ends);
            let image = told.memory.image();
            told.begin("replay");
            system.before_mount(&device).unwrap();
            told.begin("check");
            system.check(&device).unwrap();
            told.begin("recovery");
            system.recover(Arc::clone(&device)).unwrap();
            truth.look(&*system, &told);
            // The same volume, mended instead.
            let mended = Told::new(image, block_size);
            mended.begin("repair");
            system.repair(&(Arc::clone(&mended) as Arc<dyn BlockDevice>)).unwrap();
            truth.look(&*system, &mended);
            let seen: Vec<_> = [told, mended]
                .iter()
                .flat_map(|told| told.seen.lock().unwrap().clone())
                .filter(|((block, kind), (phase, _))| {
                    !truth.allows(*block, *kind, !ends && ["replay", "repair"].contains(phase))
                })
                .map(|((block, kind), (phase, op))| {
                    format!("{phase}: {op} of block {block} as {kind}, it is {:?}", truth.kinds[&block])
                })
                .collect();
            assert!(seen.is_empty(), "{name}, unmounted: {ends}:\n{}", seen.join("\n"));
            assert!(truth.kinds.len() > 60, "{name}: something was learned");
        }
    }
}
