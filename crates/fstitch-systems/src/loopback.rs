//! A volume in a file of another volume as a system under test: the power fails for both at once, and the inner one is
//! judged as if it stood alone.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order;
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Caller, CheckReport, FileSystem, FindingClass, Geometry,
    InodeNo, IoOp, Result, SetAttr,
};
use fstitch_fs::arrange::{Arrangement, Chosen};
use fstitch_fs::ext2::{Ext2, journal};
use fstitch_fs::loopback::Loopback;
use fstitch_fs::uhfs::{LowLevelFs, Uhfs, UhfsOptions};
use fstitch_patch::{Cache, CacheOptions, VolumeDevice, VolumeOptions};

use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::{Mounted, Promise, STALE, Step, System, UnknownSystem};

use crate::ext2::Ext2System;

/// The file that the inner volume is in.
const FILE: &[u8] = b"volume";
/// What the outer volume has beside that file and its journal, in KiB.
const BESIDE_KIB: u32 = 1024;

/// How the inner volume is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Its patches become patches of the file's blocks; every block has its place from the start.
    Whole,
    /// The same, but blocks that the inner volume does not use are holes.
    Sparse,
    /// For comparison, as elsewhere: a device that writes the file and passes no flush on.
    Unordered,
}

impl How {
    const ALL: [Self; 3] = [Self::Whole, Self::Sparse, Self::Unordered];

    const fn suffix(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Sparse => "+sparse",
            Self::Unordered => "+unordered",
        }
    }
}

/// A volume in a file of another one: `ext2-soft@ext3-ordered+sparse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackSystem {
    inner: Ext2System,
    outer: Ext2System,
    how: How,
}

impl fmt::Display for LoopbackSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}{}", self.inner, self.outer, self.how.suffix())
    }
}

/// What names look like.
pub const NAMES: &str =
    "one of these @ another one, in a file of which it is, with +sparse or +unordered behind it";

/// The system of this name.
pub fn named(name: &str) -> Option<Arc<dyn System>> {
    Some(Arc::new(name.parse::<LoopbackSystem>().ok()?))
}

impl FromStr for LoopbackSystem {
    type Err = UnknownSystem;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownSystem> {
        let unknown = || UnknownSystem::new(text, NAMES);
        let (inner, outer) = text.split_once('@').ok_or_else(unknown)?;
        let suffix = outer.find('+').unwrap_or(outer.len());
        let (outer, suffix) = outer.split_at(suffix);
        let how = How::ALL.into_iter().find(|how| how.suffix() == suffix).ok_or_else(unknown)?;
        let system = Self { inner: inner.parse()?, outer: outer.parse()?, how };
        let same_blocks = system.inner.block_size == system.outer.block_size;
        let one_journal = !(system.logs_contents() && system.inner.is_journaled());
        if same_blocks && one_journal { Ok(system) } else { Err(unknown()) }
    }
}

/// Both volumes, mounted.
struct Running {
    inner: Uhfs<Ext2>,
    outer: Arc<Uhfs<Ext2>>,
    /// They have one graph.
    together: bool,
}

impl LoopbackSystem {
    fn logs_contents(&self) -> bool {
        self.outer.consistency == Consistency::Full
    }

    /// The outer volume is as large as it has to be.
    fn outer_system(&self) -> Ext2System {
        let journal = if self.outer.is_journaled() { self.outer.journal_blocks } else { 0 };
        let journal_kib = journal * (self.outer.block_size / 1024);
        Ext2System { size_kib: self.inner.medium_kib() + journal_kib + BESIDE_KIB, ..self.outer }
    }

    /// Whether the outer volume promises anything about itself.
    fn outer_is_ordered(&self) -> bool {
        self.outer.consistency != Consistency::Async
    }

    fn outer_working(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<Uhfs<Ext2>>> {
        Ok(Arc::new(self.outer_system().run(device)?.fs))
    }

    fn outer_looking(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<Uhfs<Ext2>>> {
        Ok(Arc::new(self.outer_system().looking(device)?.fs))
    }

    /// The inner volume's blocks as a device.
    fn device(&self, outer: &Arc<Uhfs<Ext2>>, read_only: bool) -> Result<Below> {
        let ino = outer.lookup(outer.root(), FILE)?.attr.ino;
        let below = match self.how {
            How::Unordered => {
                let block_size = self.outer.block_size;
                let block_count = outer.getattr(ino)?.size / u64::from(block_size);
                let geometry = Geometry { block_size, block_count, atomic_size: block_size };
                return Ok(Below::File(Arc::new(FileDevice { fs: Arc::clone(outer), ino, geometry })));
            }
            How::Whole | How::Sparse => Loopback::attach(outer, ino, read_only)?,
        };
        outer.forget(ino, 1);
        Ok(Below::Patches(below))
    }

    fn inner_in(&self, outer: &Arc<Uhfs<Ext2>>, read_only: bool) -> Result<Uhfs<Ext2>> {
        let below = self.device(outer, read_only)?;
        let device = below.as_device(outer, read_only)?;
        if !read_only {
            self.inner.replay(&*device)?;
            device.flush()?;
        }
        // A journal that is a device of its own is behind the volume, in the same file.
        let (volume, journal) = self.inner.split(&device)?;
        let journal = journal.map(|journal| Arc::new(journal) as Arc<dyn BlockDevice>);
        let arrangement = Arrangement {
            journal,
            consistency: Some(self.inner.consistency),
            cache: CacheOptions { read_only, ..cache(outer).options().clone() },
            fs: UhfsOptions { read_only, ..self.inner.uhfs_options() },
            ..Arrangement::default()
        };
        let chosen = Chosen::new::<Ext2>(&volume, &arrangement)?;
        let ordering = chosen.ordering();
        let volume = match below {
            Below::Patches(loopback) => {
                cache(outer).volume(loopback, VolumeOptions { ordering, read_only })?
            }
            Below::File(file) => {
                let options = CacheOptions { ordering, ..arrangement.cache };
                Cache::new(file, options, Arc::new(Ext2System::clock()))
            }
        };
        chosen.open_in(volume, arrangement.fs)
    }

    fn both(&self, outer: Arc<Uhfs<Ext2>>, read_only: bool) -> Result<Running> {
        let inner = self.inner_in(&outer, read_only)?;
        Ok(Running { inner, outer, together: self.how != How::Unordered })
    }

    fn running(&self, device: Arc<dyn BlockDevice>) -> Result<Running> {
        let outer = self.outer_working(device)?;
        self.both(outer, false)
    }

    /// Does `work` on the inner volume's device, to stay.
    fn with_device<T>(
        &self,
        device: &Arc<dyn BlockDevice>,
        work: impl FnOnce(&dyn BlockDevice) -> Result<T>,
    ) -> Result<T> {
        let outer = self.outer_working(Arc::clone(device))?;
        let done = {
            let below = self.device(&outer, false)?.as_device(&outer, false)?;
            let done = work(&*below)?;
            below.flush()?;
            done
        };
        outer.unmount()?;
        Ok(done)
    }

    /// Asks the inner volume's device, changing nothing.
    fn ask_device<T>(
        &self,
        device: &Arc<dyn BlockDevice>,
        ask: impl FnOnce(&dyn BlockDevice) -> Result<T>,
    ) -> Result<T> {
        let outer = self.outer_looking(Arc::clone(device))?;
        let below = self.device(&outer, true)?.as_device(&outer, true)?;
        ask(&*below)
    }

    /// The outer volume's file with the inner volume's fresh image in it.
    fn fill(&self, outer: &Uhfs<Ext2>, image: &[u8]) -> Result<()> {
        let caller = Caller::default();
        let ino = outer.mknod(&caller, outer.root(), FILE, 0o100_600, 0)?.attr.ino;
        let size = Some(to_u64(image.len()));
        outer.setattr(&caller, ino, &SetAttr { size, ..SetAttr::default() })?;
        let block_size = to_usize(self.inner.block_size);
        for (no, block) in (0_u64..).zip(image.chunks(block_size)) {
            if self.how != How::Sparse || block.iter().any(|&byte| byte != STALE) {
                outer.write(&caller, ino, no * u64::from(self.inner.block_size), block)?;
            }
        }
        outer.forget(ino, 1);
        Ok(())
    }
}

fn cache(fs: &Uhfs<Ext2>) -> &Arc<Cache> {
    LowLevelFs::cache(fs.format())
}

/// What the inner volume stands on.
enum Below {
    Patches(Arc<Loopback<Ext2>>),
    File(Arc<FileDevice>),
}

impl Below {
    fn as_device(&self, outer: &Uhfs<Ext2>, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
        Ok(match self {
            Self::File(file) => Arc::<FileDevice>::clone(file),
            Self::Patches(loopback) => {
                let options = VolumeOptions { read_only, ..VolumeOptions::default() };
                let loopback = Arc::<Loopback<Ext2>>::clone(loopback);
                Arc::new(VolumeDevice::new(cache(outer).volume(loopback, options)?))
            }
        })
    }
}

impl Mounted for Running {
    fn fs(&self) -> &dyn FileSystem {
        &self.inner
    }

    fn unmount(&self) -> Result<()> {
        self.inner.unmount()?;
        self.outer.unmount()
    }

    fn write_out(&self, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
        let (above, below) = (cache(&self.inner), cache(&self.outer));
        if above.is_journaled() && choose(Step::Close(0)) {
            above.close_transaction()?;
        }
        if below.is_journaled() && choose(Step::Close(1)) {
            below.close_transaction()?;
        }
        let mut write = |block| choose(Step::Write(block));
        let own = if self.together { 0 } else { above.step_blocks(&mut write)? };
        Ok(own + below.step_blocks(&mut write)?)
    }
}

impl System for LoopbackSystem {
    fn name(&self) -> String {
        self.to_string()
    }

    fn format(&self) -> Result<Arc<Base>> {
        let inner = Image::new(self.inner.format()?).bytes();
        let image = Arc::new(Image::new(self.outer_system().format()?));
        let outer = self.outer_working(Arc::<Image>::clone(&image))?;
        self.fill(&outer, &inner)?;
        outer.unmount()?;
        drop(outer);
        Ok(Base::new(self.outer.block_size, image.bytes()))
    }

    fn before_mount(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        self.outer_system().before_mount(device)?;
        if self.inner.is_journaled()
            && self.ask_device(device, |below| journal::needs_recovery(&self.inner.split(&below)?.0))?
        {
            self.with_device(device, |below| self.inner.replay(below))?;
        }
        Ok(())
    }

    fn promise(&self) -> Promise {
        // Transactions that take everything make operations whole, whatever the inner volume does by itself.
        if self.logs_contents() { Promise::Exact } else { self.inner.promise() }
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        Ok(Box::new(self.running(device)?))
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        let outer = self.outer_looking(device)?;
        Ok(Box::new(self.both(outer, true)?))
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        let mut report = self.ask_device(device, |below| self.inner.look_over(below))?;
        if self.outer_is_ordered() {
            let below = self.outer_system().check(device)?;
            for finding in below.findings.into_iter().filter(|found| found.class == FindingClass::Corrupt) {
                report.push(finding.class, finding.code, format!("the outer volume: {}", finding.text));
            }
        }
        Ok(report)
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        self.outer_system().recover(Arc::clone(&device))?;
        if self.inner.is_journaled() {
            return self.before_mount(&device);
        }
        let unclean = {
            let outer = self.outer_looking(Arc::clone(&device))?;
            self.inner_in(&outer, true)?.format().was_unclean()
        };
        if unclean {
            let running = self.running(device)?;
            let done = running.inner.reclaim()?;
            self.inner.expect_lawful(&done)?;
            running.unmount()?;
        }
        Ok(())
    }

    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        let mut left = self.outer_system().repair(device)?;
        let inner = self.with_device(device, |below| self.inner.mend(below))?;
        for finding in inner.findings {
            left.push(finding.class, finding.code, finding.text);
        }
        Ok(left)
    }

    fn identity(&self, block: u64, contents: &[u8]) -> Option<Vec<u8>> {
        self.outer_system().identity(block, contents)
    }
}

/// A file as a device, as loop devices do it where nobody passes their flushes on.
struct FileDevice {
    fs: Arc<Uhfs<Ext2>>,
    ino: InodeNo,
    geometry: Geometry,
}

impl FileDevice {
    fn at(&self, block: BlockNo) -> u64 {
        block.get() * u64::from(self.geometry.block_size)
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let _below = order::Below::enter();
        for read in reads {
            if self.fs.read(self.ino, self.at(read.block), read.data)? != read.data.len() {
                let short = std::io::Error::other("the file is too short");
                return Err(fstitch_core::Error::io(IoOp::Read, read.block, short));
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let _below = order::Below::enter();
        for write in writes {
            self.fs.write(&Caller::default(), self.ino, self.at(write.block), write.data)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
