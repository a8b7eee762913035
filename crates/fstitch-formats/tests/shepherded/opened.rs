//! Opening a volume as commands do: the shepherd, what a crash makes necessary, the file system.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockKind, BlockNo, FileSystem, FindingClass, ManualClock, RepairMode, RepairOptions, Result,
};
use fstitch_crashlab::Step;
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::oracle::{Tree, Violation};
use fstitch_formats::{MapsAt, Recovering, Volume};
use fstitch_fs::arrange::Arrangement;
use fstitch_fs::uhfs::{AtimePolicy, UhfsOptions};
use fstitch_patch::CacheOptions;
use fstitch_shepherd::engine::Opened as OpenedMaps;
use fstitch_shepherd::{Array, Options, Remedy, Rules, Shepherd};

use crate::asked::NOW;
use crate::rack::Rack;
use crate::system::System;

/// A volume before a program, and what it shows.
pub struct Shown {
    pub base: Arc<Base>,
    pub tree: Tree,
}

/// No mount is there to carry out what only a mount can.
struct Nobody;

impl Remedy for Nobody {
    fn full_check(&self) -> bool {
        false
    }

    fn remount(&self) -> bool {
        false
    }
}

/// Has no opinion on blocks.
struct Anything;

impl Rules for Anything {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

/// Small memories, so that what is thrown out of them is written.
pub fn options(rules: Option<Arc<dyn Rules>>) -> Options {
    let rules = Some(rules.unwrap_or_else(|| Arc::new(Anything)));
    let remedy = Some(Arc::new(Nobody) as _);
    Options {
        pause: Arc::new(|_| {}),
        doubt_max: 4,
        pages_max: 2,
        scrubbed_at_once: 1,
        rules,
        remedy,
        ..Options::default()
    }
}

/// The shepherd alone.
pub fn shepherd(system: &System, rack: &Rack) -> Result<(Arc<Shepherd>, OpenedMaps)> {
    let mut given = rack.given();
    let opened = if system.disks == 1 {
        let disk = given.remove(0).unwrap();
        let MapsAt::Here(area) = system.keeps().maps(&*disk)? else { panic!("it follows a policy") };
        let options = options(Some(system.keeps().rules(&*disk)?));
        Shepherd::open(disk, &area, options)?
    } else {
        let array = Arc::new(Array::open(&given, false)?.0);
        let area = array.area();
        let disks = Some(Arc::clone(&array));
        Shepherd::open(array, &area, Options { disks, ..options(None) })?
    };
    Ok((Arc::new(opened.0), opened.1))
}

/// An open volume. Nothing runs in the background.
pub struct Opened {
    pub fs: Arc<dyn Volume>,
    pub shepherd: Arc<Shepherd>,
}

/// Recovers a volume, if that is needed.
fn recover(system: &System, shepherd: &Shepherd) -> Result<()> {
    if system.format().needs_recovery(shepherd)? {
        let mut how = Recovering { external: None, now: NOW, for_reading: false, progress: &mut |_| {} };
        system.format().recover(shepherd, &mut how)?;
    }
    Ok(())
}

/// The file system over a shepherd, recovered.
pub fn mount(system: &System, shepherd: &Arc<Shepherd>) -> Result<Arc<dyn Volume>> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(NOW.secs.unsigned_abs()));
    let arrangement = Arrangement {
        consistency: Some(system.consistency),
        cache: CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() },
        // Everything is read after each operation, which must change nothing.
        fs: UhfsOptions { atime: AtimePolicy::NoAtime, ..UhfsOptions::default() },
        ..Arrangement::default()
    };
    system.format().open(Arc::clone(shepherd) as _, &arrangement, Arc::new(clock))
}

/// Opens and recovers; what only the power can keep from going well.
pub fn open(system: &System, rack: &Rack) -> Result<Opened> {
    let (shepherd, _) = shepherd(system, rack)?;
    recover(system, &shepherd)?;
    let fs = mount(system, &shepherd)?;
    Ok(Opened { fs, shepherd })
}

/// The same after a crash: neither the maps nor the checker find damage.
pub fn open_sound(system: &System, rack: &Rack) -> std::result::Result<Opened, Violation> {
    let failed = |what| move |error: fstitch_core::Error| Violation::new(what, error.to_string());
    let (shepherd, maps) = shepherd(system, rack).map_err(failed("shepherd-failed"))?;
    if maps.is_foreign || maps.maps_lost > 0 {
        return Err(Violation::new("maps", format!("{maps:?}")));
    }
    recover(system, &shepherd).map_err(failed("recovery-failed"))?;
    let looking = RepairOptions { mode: RepairMode::No, now: NOW };
    let report = system.format().repair(&*shepherd, looking).map_err(failed("check-failed"))?.found;
    if let Some(finding) = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt) {
        return Err(Violation::new(finding.code, finding.text.clone()));
    }
    let fs = mount(system, &shepherd).map_err(failed("mount-failed"))?;
    Ok(Opened { fs, shepherd })
}

/// All that can be seen.
pub fn tree(fs: &dyn FileSystem) -> std::result::Result<Tree, Violation> {
    Tree::read(fs, None).map_err(|error| Violation::new("unreadable", error.to_string()))
}

/// Writes out some of what may be written, as the cache's own thread would at some moment.
pub fn write_out(volume: &dyn Volume, choose: &mut dyn FnMut(Step) -> bool) -> Result<usize> {
    let Some(cache) = volume.cache() else { return Ok(0) };
    if cache.is_journaled() && choose(Step::Close(0)) {
        cache.close_transaction()?;
    }
    cache.step_blocks(&mut |block| choose(Step::Write(block)))
}
