//! What a mount asks of the volume and of the kernel, from what its user asked for.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use fstitch_core::{Consistency, FileSystem};
use fstitch_disk::Direct;
use fstitch_fs::arrange::Arrangement;
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fuse::{IdleClass, MountOptions};
use fstitch_layers::{Casefold, Hiding, Layered, Patterns};

use super::{Atime, Options, Plan};
use crate::open::{Access, Options as OpenOptions, Survives};

/// How a mount opens its volume.
pub fn open_options(plan: &Plan) -> OpenOptions {
    OpenOptions {
        access: if plan.options.read_only { Access::ReadOnly } else { Access::ReadWrite },
        offset: plan.options.offset,
        cache_size: plan.cache_size,
        write_back_age: plan.write_back_age,
        optimizations: plan.optimizations,
        consistency: plan.options.consistency,
        preferred: None,
        survives: Survives::Asked(plan.options.durability),
        commit_interval: plan.options.commit_interval.unwrap_or(Arrangement::default().commit_interval),
        journal: plan.options.journal.clone(),
        live: plan.live.clone(),
        atime: plan.options.atime.into(),
        epoch: None,
        direct: Direct::Auto,
        tree: plan.options.tree.clone(),
        on_fault: plan.options.on_fault.clone(),
    }
}

/// The options for the kernel. `places` are what is mounted and where.
///
/// # Errors
/// Where they contradict what the volume promises.
pub fn mount_options(
    asked: &Options,
    places: (String, &Path),
    workers: usize,
    consistency: Consistency,
) -> Result<MountOptions> {
    ensure!(
        !(asked.writeback_cache && consistency == Consistency::Full),
        "`writeback_cache` and `consistency=full` exclude each other: full keeps contents in the order of the calls, and a kernel that keeps \
         writes back changes it; `consistency=ordered` goes with it"
    );
    let mut options = MountOptions::new(places.1, places.0);
    options.read_only = asked.read_only;
    options.allow_other = asked.allow_other;
    options.default_permissions = !asked.no_default_permissions;
    options.awake = asked.awake;
    options.idle_class = Some(IdleClass(fstitch_disk::enter_idle_class));
    options.auto_unmount = asked.auto_unmount;
    options.writeback_cache = asked.writeback_cache;
    options.transport = asked.transport;
    options.sync = asked.sync;
    options.ordered_fsync = asked.ordered_fsync;
    options.durable_every = asked.durable_every;
    options.noatime = asked.atime == Atime::Never;
    options.workers = workers;
    options.owners.shown_uid = asked.uid;
    options.owners.shown_gid = asked.gid;
    for option in &asked.kernel {
        match option.as_str() {
            "nosuid" => options.suid = false,
            "suid" => options.suid = true,
            "nodev" => options.dev = false,
            "dev" => options.dev = true,
            "noexec" => options.exec = false,
            "exec" => options.exec = true,
            "lazytime" => options.lazytime = true,
            "nolazytime" => options.lazytime = false,
            _ => {}
        }
    }
    Ok(options)
}

/// The volume as its mount shows it: with the layers that are asked for.
///
/// # Errors
/// For a pattern that is none.
pub fn layered(volume: Arc<dyn FileSystem>, asked: &Options) -> Result<Arc<dyn FileSystem>> {
    let mut shown = volume;
    if !asked.hide.is_empty() {
        let patterns = Patterns::new(asked.hide.iter().map(String::as_str))?;
        shown = Arc::new(Layered(Hiding::new(shown, patterns)));
    }
    // Hidden names are no other spelling of anything.
    if asked.casefold {
        shown = Arc::new(Layered(Casefold::new(shown)));
    }
    Ok(shown)
}

impl From<Atime> for AtimePolicy {
    fn from(atime: Atime) -> Self {
        match atime {
            Atime::Relative => Self::RelAtime,
            Atime::Never => Self::NoAtime,
            Atime::Always => Self::StrictAtime,
        }
    }
}
