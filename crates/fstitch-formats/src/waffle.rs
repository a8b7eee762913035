//! waffle: shadow paging, in which a crash leaves the last root, exactly.

use std::io::{Read, Write};
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockNo, Clock, Consistency, Error, FileSystem, Le, RepairOptions, RepairReport, Result,
    SystemClock,
};
use fstitch_fs::arrange::Arrangement;
use fstitch_fs::waffle::layout::root::feature;
use fstitch_fs::waffle::layout::{BLOCK_BYTES, BLOCK_SIZE};
use fstitch_fs::waffle::mkfs::{MkfsOptions, identify, label, mkfs};
use fstitch_fs::waffle::{Options, Root, ScrubAt, ScrubPart, Scrubbed, Waffle, check, copy_stream, receive};
use fstitch_patch::{Cache, CacheOptions};
use serde_json::{Map, Value};

use crate::lent::lend;
use crate::make::{Asked, AskedJournal, Fresh, Made, Making};
use crate::whose::Role;
use crate::{
    Description, Format, HasSnapshots, HasSums, Health, Identity, Look, OwnJournal, Owner, Owners,
    References, ScrubPlace, Snapshot, SnapshotWork, Snapshots, Sums, TreeKind, Volume, show,
};

/// Our own format with shadow paging.
pub struct WaffleFormat;

/// The option with which what is written to the volume's files is compressed.
const COMPRESS: &str = "compress";

/// Blocks that one part of a scrub compares, about.
const SCRUBBED: u64 = 1 << 14;

/// A volume that is to be made.
struct Plan(MkfsOptions);

impl Format for WaffleFormat {
    fn names(&self) -> &'static [&'static str] {
        &["waffle"]
    }

    fn thing(&self) -> &'static str {
        "a waffle volume"
    }

    fn absent(&self) -> &'static str {
        "no root of waffle in block 1 or 16)"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        match Root::find(head) {
            Ok(None) => None,
            // What is damaged is told by whoever opens it.
            Ok(Some(_)) | Err(Error::Corrupt(_)) => Some(Ok(BLOCK_SIZE)),
            Err(error) => Some(Err(error.to_string())),
        }
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        Root::read(device)?;
        Ok(Look { block_size: BLOCK_SIZE, journal: OwnJournal::None })
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let Arrangement { consistency, fs, journal, cache, commit_interval, tree, .. } = arrangement;
        if journal.is_some() {
            return Err(Error::Unsupported("the device of a journal for waffle, which keeps none".into()));
        }
        if let Some(asked) = consistency.filter(|asked| *asked != Consistency::Shadow) {
            let what = format!("consistency `{asked}` on waffle, whose only one is `shadow`");
            return Err(Error::Unsupported(what));
        }
        let options = Options {
            atime: fs.atime,
            read_only: fs.read_only,
            commit_age: *commit_interval,
            tree: tree.clone(),
            ..Options::default()
        };
        Ok(Waffle::mount(device, cache.clone(), clock, options)?)
    }

    fn has_choice(&self) -> bool {
        false
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        let root = Root::read(device)?;
        let label = String::from_utf8_lossy(root.name()).into_owned();
        let state = if root.is_closed { "clean" } else { "in use, or not unmounted" };
        let (all, free) = (root.blocks * BLOCK_BYTES, root.free * BLOCK_BYTES);
        let compression = (root.incompat & feature::ZSTD != 0).then_some("zstd");
        let fields = [
            ("format", "waffle".to_owned()),
            ("label", label.clone()),
            ("UUID", show::uuid(&root.uuid)),
            ("state", state.to_owned()),
            ("blocks of", show::size(BLOCK_BYTES)),
            ("size", format!("{}, of which {} is free", show::size(all), show::size(free))),
            ("root", format!("generation {} of {}", root.generation, show::time(root.at))),
            ("made", show::time(root.made)),
            ("compression", compression.map_or_else(|| "none".to_owned(), str::to_owned)),
        ];
        let values = [
            ("format", Value::from("waffle")),
            ("label", label.into()),
            ("uuid", show::uuid(&root.uuid).into()),
            ("clean", root.is_closed.into()),
            ("block_size_bytes", BLOCK_SIZE.into()),
            ("size_bytes", all.into()),
            ("free_bytes", free.into()),
            ("generation", root.generation.into()),
            ("root_at", show::time(root.at).into()),
            ("made_at", show::time(root.made).into()),
            ("compression", compression.into()),
        ];
        Ok(Description::of(fields, values))
    }

    fn about(&self, _kind: &str) -> &'static str {
        "Make a waffle volume: shadow paging, every block with a checksum, after a crash exactly the last root"
    }

    fn extended_words(&self) -> &'static str {
        "compress (what is written to files is compressed by zstd, as `chattr +c` asks for)"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        if !matches!(asked.journal, AskedJournal::Usual | AskedJournal::None) {
            return Err(Error::Unsupported("a journal: waffle keeps none".into()));
        }
        if asked.block_size.is_some_and(|bytes| bytes != BLOCK_SIZE) {
            return Err(Error::Unsupported(format!("such blocks: those of waffle have {BLOCK_SIZE} bytes")));
        }
        if let Some(word) = asked.extended.iter().find(|word| *word != COMPRESS) {
            return Err(Error::Unsupported(format!("the extended option `{word}`: waffle has `{COMPRESS}`")));
        }
        label(&asked.label)?;
        let seed = if asked.is_repeatable { asked.uuid } else { asked.random };
        Ok(Box::new(Plan(MkfsOptions {
            uuid: asked.uuid,
            label: asked.label.clone(),
            seed: Le::u64(&seed, 0),
            now: asked.now,
            owner: asked.root_owner,
            blocks: None,
            is_compressed: !asked.extended.is_empty(),
        })))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let Identity { label, uuid } = identity.clone();
        lend(device, None, |device| identify(device, label.as_deref(), uuid))
    }

    fn snapshots(&self) -> Option<&dyn HasSnapshots> {
        Some(self)
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        Root::read(device).is_ok_and(|root| root.is_closed)
    }

    fn repair(&self, device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
        lend(device, None, |device| check::repair(device, options))
    }
}

impl HasSnapshots for WaffleFormat {
    fn with(&self, device: &dyn BlockDevice, read_only: bool, work: SnapshotWork<'_>) -> Result<()> {
        lend(device, None, |device| {
            let cache = CacheOptions { read_only, ..CacheOptions::default() };
            let options = Options { read_only, ..Options::default() };
            let fs = Waffle::mount(device, cache, Arc::new(SystemClock::new()), options)?;
            work(&*fs)?;
            fs.unmount()
        })
    }

    fn receive(
        &self,
        device: &dyn BlockDevice,
        tree: &str,
        from: &mut (dyn Read + Send),
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<String> {
        lend(device, None, |device| {
            let clock = Arc::new(SystemClock::new()) as Arc<dyn Clock>;
            let received = receive(&device, &clock, tree.as_bytes(), from, progress)?;
            Ok(String::from_utf8_lossy(&received.name).into_owned())
        })
    }

    fn copy_stream(&self, from: &mut dyn Read, to: &mut dyn Write) -> Result<()> {
        copy_stream(from, to)
    }
}

impl Snapshots for Waffle {
    fn list(&self) -> Vec<Snapshot> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let shown = |snapshot: fstitch_fs::waffle::Snapshot| Snapshot {
            name: text(&snapshot.name),
            kind: match (snapshot.is_clone, snapshot.of.is_empty()) {
                (false, _) => TreeKind::Snapshot,
                (true, false) => TreeKind::Clone,
                (true, true) => TreeKind::Receiver,
            },
            of: text(&snapshot.of),
            whole: !snapshot.is_receiving,
            made: show::time(snapshot.made),
            inodes: snapshot.inodes,
        };
        self.snapshots().into_iter().map(shown).collect()
    }

    fn create(&self, name: &str) -> Result<()> {
        self.make_snapshot(name.as_bytes())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.remove_snapshot(name.as_bytes())
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> Result<()> {
        Self::make_clone(self, snapshot.as_bytes(), name.as_bytes())
    }

    fn remove_clone(&self, name: &str) -> Result<()> {
        Self::remove_clone(self, name.as_bytes())
    }

    fn send(
        &self,
        name: &str,
        since: Option<&str>,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        Self::send(self, name.as_bytes(), since.map(str::as_bytes), to, progress)
    }
}

impl HasSums for Waffle {
    fn used(&self) -> u64 {
        let root = self.root_made();
        root.blocks - root.free
    }

    fn compare(&self, from: Option<ScrubPlace>) -> Result<Sums> {
        let from = from.map(|place| ScrubAt {
            tree: place.tree,
            began: place.began,
            after: place.generation,
            inode: place.inode,
            in_attributes: place.attributes,
            leaf: place.index,
        });
        let part = self.scrub(from, SCRUBBED)?;
        let next = part.next.map(|at| ScrubPlace {
            tree: at.tree,
            began: at.began,
            generation: at.after,
            inode: at.inode,
            attributes: at.in_attributes,
            index: at.leaf,
        });
        let damaged = part.damaged.iter().map(|found| BlockNo(found.block)).collect();
        Ok(Sums { blocks: part.blocks, damaged, owners: owners(&part), next })
    }
}

/// Whom the damaged blocks of a part belong to.
fn owners(part: &ScrubPart) -> Owners {
    let mut owners: Vec<Owner> = Vec::new();
    for found in &part.damaged {
        let role = match found.what {
            Scrubbed::Tables => Role::Tables,
            Scrubbed::Map => Role::Map,
            Scrubbed::Inodes => Role::Inodes,
            Scrubbed::Contents => Role::Contents,
            Scrubbed::Entries => Role::Entries,
            Scrubbed::Attributes => Role::Attributes,
        };
        let is_it =
            |owner: &&mut Owner| (owner.role, owner.inode, &owner.paths) == (role, found.inode, &found.paths);
        match owners.iter_mut().find(is_it) {
            Some(owner) => owner.blocks += 1,
            None => owners.push(Owner {
                role,
                group: None,
                inode: found.inode,
                paths: found.paths.clone(),
                blocks: 1,
                first: BlockNo(found.block),
            }),
        }
    }
    Owners { owners, others: part.unnamed, unread: 0 }
}

impl Making for Plan {
    fn name(&self) -> &'static str {
        "waffle"
    }

    fn unit(&self) -> Option<u32> {
        Some(BLOCK_SIZE)
    }

    fn make(&self, fresh: Fresh<'_>, _progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let blocks = fresh.bytes.map(|bytes| bytes / BLOCK_BYTES);
        let options = MkfsOptions { blocks, ..self.0.clone() };
        let root = lend(fresh.device, None, |device| mkfs(device, &options))?;
        let values = [
            ("block_size_bytes", Value::from(BLOCK_SIZE)),
            ("blocks", root.blocks.into()),
            ("free_blocks", root.free.into()),
            ("uuid", show::uuid(&root.uuid).into()),
        ];
        Ok(Made {
            name: "waffle",
            block_size: BLOCK_SIZE,
            blocks: root.blocks,
            form: None,
            inodes: None,
            values: Map::from_iter(values.map(|(name, value)| (name.to_owned(), value))),
        })
    }
}

impl Volume for Waffle {
    fn format_name(&self) -> &'static str {
        "waffle"
    }

    fn consistency(&self) -> Consistency {
        Consistency::Shadow
    }

    fn was_unclean(&self) -> bool {
        Self::was_unclean(self)
    }

    fn cache(&self) -> Option<Arc<Cache>> {
        Some(Arc::clone(Self::cache(self)))
    }

    fn start(&self) -> Result<()> {
        Self::start(self)
    }

    fn health(&self) -> Health {
        let dirty_bytes = Self::cache(self).stats().dirty_bytes + self.pending_bytes();
        Health { failure: self.failed(), dirty_bytes }
    }

    fn takes_changes(&self) -> bool {
        !self.is_snapshot()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn sums(&self) -> Option<&dyn HasSums> {
        Some(self)
    }

    fn references(&self) -> References {
        Self::references(self)
    }

    fn take_over(&self, references: &References) {
        Self::take_over(self, references);
    }
}
