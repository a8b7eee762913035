//! How to mount: options as a value, and as `-o` words.

use std::path::{Path, PathBuf};

use crate::{AwakeMode, IdleClass, MountError, OwnerMap, Transport};
use fstitch_core::num::to_usize;

/// How and where to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The directory to mount on.
    pub mountpoint: PathBuf,
    /// The source that `mount` and `df` show: usually the image's path.
    pub fs_name: String,
    /// What follows `fuse.` in the type that `mount` shows.
    pub subtype: String,
    /// Refuse changes.
    pub read_only: bool,
    /// Let other users in (unprivileged mounts need `user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: bool,
    /// Have the kernel check permissions and access lists. Without it, everybody who is let in may do
    /// everything.
    pub default_permissions: bool,
    /// Every change is stable before it is answered.
    pub sync: bool,
    /// `fsync` only orders, for every caller (`fsync=ordered`): what was done last may be missing after a crash although
    /// fsync returned. Never the default.
    pub ordered_fsync: bool,
    /// With `ordered_fsync`: how often everything is made stable; `None` leaves that to the file system.
    pub durable_every: Option<std::time::Duration>,
    /// Shown by `mount`; the file system itself decides on access times.
    pub noatime: bool,
    /// Device files work (root only).
    pub dev: bool,
    /// Set-user-id bits work (root only).
    pub suid: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// Times that the kernel keeps (with `writeback_cache`) wait for a reason to be passed on. Only where root mounts.
    pub lazytime: bool,
    /// Which way requests come.
    pub transport: Transport,
    /// Threads that serve requests through `/dev/fuse`, 1 to 16. Two by default, so that a read that waits for the medium holds up
    /// only one; more than cores costs speed.
    pub workers: usize,
    /// Which owners users see.
    pub owners: OwnerMap,
    /// Unmount when this process dies, also when it is killed (through `fusermount3`; unprivileged mounts need
    /// `allow_other` with it).
    pub auto_unmount: bool,
    /// Read-ahead in KiB, where this process may set it (root only).
    pub read_ahead_kib: u32,
    /// Whether idle processors are kept awake while requests come: several times as many requests in a second where waking takes long.
    pub awake: AwakeMode,
    /// How a thread gets what nobody else wants, for keeping processors awake without root. `None`: only root can.
    pub idle_class: Option<IdleClass>,
    /// The kernel keeps what is written in its cache and passes it on later, many small writes as one: when a file is closed, when it is made
    /// stable, or after some seconds. It does not say who wrote, so there are no patchgroups and no ordered fsync.
    pub writeback_cache: bool,
}

impl MountOptions {
    /// The usual options for mounting `fs_name` on `mountpoint`.
    #[must_use]
    pub fn new(mountpoint: impl AsRef<Path>, fs_name: impl Into<String>) -> Self {
        Self {
            mountpoint: mountpoint.as_ref().to_path_buf(),
            fs_name: fs_name.into(),
            subtype: "fstitch".to_owned(),
            read_only: false,
            allow_other: false,
            default_permissions: true,
            sync: false,
            ordered_fsync: false,
            durable_every: None,
            noatime: false,
            dev: true,
            suid: true,
            exec: true,
            lazytime: false,
            transport: Transport::Auto,
            workers: 2,
            owners: OwnerMap::default(),
            auto_unmount: false,
            read_ahead_kib: 1024,
            awake: AwakeMode::Auto,
            idle_class: None,
            writeback_cache: false,
        }
    }

    /// Fails where options contradict each other.
    pub(crate) fn check(&self) -> Result<(), MountError> {
        let late = |what: &str| {
            Err(MountError::Option(format!(
                "`writeback_cache` and `{what}` exclude each other: the kernel would still keep writes back that were answered"
            )))
        };
        match self.writeback_cache {
            true if self.sync => late("sync"),
            true if self.ordered_fsync => late("fsync=ordered"),
            _ => Ok(()),
        }
    }

    /// Applies one word of a `-o` list. Words that concern only `mount` and `fstab` are accepted and ignored.
    ///
    /// # Errors
    /// [`MountError::Option`] for unknown words and bad values.
    pub fn apply(&mut self, word: &str) -> Result<(), MountError> {
        let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
        match value {
            Some(value) => self.apply_value(key, value),
            None => self.apply_flag(key),
        }
    }

    fn apply_flag(&mut self, key: &str) -> Result<(), MountError> {
        match key {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "noatime" => self.noatime = true,
            "atime" | "relatime" | "norelatime" => self.noatime = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "lazytime" => self.lazytime = true,
            "nolazytime" => self.lazytime = false,
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "no_default_permissions" => self.default_permissions = false,
            "auto_unmount" => self.auto_unmount = true,
            "awake" => self.awake = AwakeMode::On,
            "writeback_cache" => self.writeback_cache = true,
            "" | "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "user" | "users" | "nouser"
            | "owner" | "group" | "nodiratime" | "diratime" | "nostrictatime" | "silent" | "loud"
            | "dirsync" => {}
            _ if key.starts_with("x-") => {}
            _ => return Err(MountError::Option(format!("`{key}` is unknown"))),
        }
        Ok(())
    }

    fn apply_value(&mut self, key: &str, value: &str) -> Result<(), MountError> {
        let number = || {
            let bad = |_| MountError::Option(format!("`{key}={value}`: `{value}` is not a number in range"));
            value.parse::<u32>().map_err(bad)
        };
        match key {
            "fsname" => value.clone_into(&mut self.fs_name),
            "subtype" => value.clone_into(&mut self.subtype),
            "uid" => self.owners.shown_uid = Some(number()?),
            "gid" => self.owners.shown_gid = Some(number()?),
            "stored_uid" => self.owners.stored_uid = number()?,
            "stored_gid" => self.owners.stored_gid = number()?,
            "read_ahead_kib" => self.read_ahead_kib = number()?,
            "workers" => {
                self.workers = to_usize(number()?);
                if !(1..=16).contains(&self.workers) {
                    return Err(MountError::Option(format!("`workers={value}`: 1 to 16 are possible")));
                }
            }
            "fsync" => {
                self.ordered_fsync = match value {
                    "ordered" => true,
                    "durable" => false,
                    _ => return Err(MountError::Option(format!("`fsync={value}`: `ordered` or `durable`"))),
                }
            }
            "durable_every_ms" => {
                self.durable_every = Some(match number()? {
                    ms @ 10.. => std::time::Duration::from_millis(u64::from(ms)),
                    _ => return Err(MountError::Option(format!("`{key}={value}`: at least 10"))),
                });
            }
            "awake" => self.awake = value.parse().map_err(MountError::Option)?,
            "transport" => self.transport = value.parse().map_err(MountError::Option)?,
            "comment" | "uhelper" | "helper" => {}
            _ if key.starts_with("x-") => {}
            _ => return Err(MountError::Option(format!("`{key}` is unknown"))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_options() {
        let mut options = MountOptions::new("/mnt", "disk.img");
        for word in "ro,noatime,uid=1000,workers=2,x-systemd.automount,defaults,allow_other".split(',') {
            options.apply(word).unwrap();
        }
        assert!(options.read_only && options.noatime && options.allow_other);
        assert_eq!((options.owners.shown_uid, options.workers), (Some(1000), 2));
    }

    #[test]
    fn unknown_words_are_named() {
        let mut options = MountOptions::new("/mnt", "disk.img");
        assert_eq!(
            options.apply("frobnicate").unwrap_err().to_string(),
            "mount option `frobnicate` is unknown"
        );
        assert!(options.apply("uid=me").is_err());
        assert!(options.apply("workers=0").is_err());
        assert!(options.apply("transport=pigeon").is_err());
        assert!(options.apply("fsync=maybe").is_err() && options.apply("durable_every_ms=9").is_err());
    }

    #[test]
    fn ordered_fsync_must_be_asked_for() {
        let mut options = MountOptions::new("/mnt", "disk.img");
        assert!(!options.ordered_fsync);
        options.apply("fsync=ordered").unwrap();
        options.apply("durable_every_ms=5000").unwrap();
        assert!(options.ordered_fsync);
        assert_eq!(options.durable_every, Some(std::time::Duration::from_secs(5)));
    }
}
