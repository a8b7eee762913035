//! The control socket of a mount: how `status`, `stats`, `umount` and `fsck --online` reach the daemon.
//!
//! The protocol is described in `docs/control-socket.md`, which is its contract: fields are added, never
//! renamed. One request per line, one JSON document per line in return.

pub mod awake;
pub mod client;
pub mod graph;
pub mod kind;
pub mod server;
pub mod stack;
pub mod trace;

use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::Errno;
use fstitch_core::num::to_u64;
use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Request {
    /// What is mounted where, and how it fares.
    Status,
    /// The counters.
    Stats,
    /// Check the mounted volume and, with `repair`, reclaim what a crash left behind.
    Fsck {
        /// Mend what is found.
        repair: bool,
    },
    /// Make everything stable.
    Sync,
    /// Open a volume for writing that was mounted for reading only.
    Reopen,
    /// Give the volume another size, which is not less than it has.
    Resize {
        /// The size as people write it; all of the device or partition if there is none.
        size: Option<String>,
    },
    /// Take the power away from a mount that `fstitch crash mount` made.
    Cut {
        /// Which volatile writes arrive all the same: `none`, `all` or `seed=N`.
        survivors: String,
        /// Make everything stable, and cut in place of this flush of it, counted from 1; 0 cuts at once.
        #[serde(default)]
        flush: u64,
    },
    /// Show what waits to be written, and why.
    Graph {
        /// At most so many blocks and patches.
        limit: usize,
    },
    /// Tell what becomes of patches, until the client sends no more.
    Trace,
    /// How a volume that follows a policy is doing.
    Health,
    /// Name whom blocks belong to.
    Whose {
        /// Numbers of blocks of the volume.
        blocks: Vec<u64>,
    },
    /// How the disks of a volume on several stand.
    Disks,
    /// Change them.
    Disk {
        /// How.
        change: crate::disks::Change,
    },
    /// The volume's snapshots, after a change of them, if one is asked for.
    Snapshots {
        /// Which.
        #[serde(default)]
        change: Option<SnapshotChange>,
    },
    /// Send a snapshot. After the answer the stream follows, and the end of the connection.
    Send {
        /// The snapshot.
        name: String,
        /// The one that it is told from.
        since: Option<String>,
    },
    /// Read and compare what the maps of a policy speak of, or what the format has checksums of: a part of the volume.
    Scrub {
        /// The block where it begins.
        from: u64,
        /// The same where the format's checksums are compared: what the part before said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<fstitch_formats::ScrubPlace>,
    },
    /// Answer when the volume has been unmounted and everything is on the medium.
    Wait,
}

/// How snapshots are to change.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotChange {
    /// One is made, of this name.
    Create(String),
    /// That of this name goes.
    Remove(String),
    /// A clone is made of one.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// What the clone is called.
        name: String,
    },
    /// The clone of this name goes.
    RemoveClone(String),
}

impl SnapshotChange {
    /// Does it.
    pub fn apply(&self, snapshots: &dyn fstitch_formats::Snapshots) -> Result<()> {
        let (kind, name, done) = match self {
            Self::Create(name) => ("snapshot", name, snapshots.create(name)),
            Self::Remove(name) => ("snapshot", name, snapshots.remove(name)),
            Self::Clone { snapshot, name } => {
                let done = snapshots.make_clone(snapshot, name);
                if done.as_ref().is_err_and(|error| error.errno() == Errno::NOENT) {
                    bail!("there is no snapshot `{snapshot}`");
                }
                ("clone", name, done)
            }
            Self::RemoveClone(name) => ("clone", name, snapshots.remove_clone(name)),
        };
        done.map_err(|error| match error.errno() {
            Errno::EXIST => anyhow!("there is a snapshot `{name}`, or something else of that name"),
            Errno::NOENT => anyhow!("there is no {kind} `{name}`"),
            Errno::INVAL => anyhow!("`{name}` is no name for a {kind}"),
            Errno::BUSY if kind == "clone" => {
                anyhow!("`{name}` is mounted, or there are snapshots of it: `fstitch snapshot list`")
            }
            Errno::BUSY => anyhow!("a clone comes from `{name}`: it stays as long as that"),
            Errno::ROFS => anyhow!("the volume is mounted for reading only"),
            _ => error.into(),
        })
    }
}

/// What the daemon answers. `Progress` may come any number of times before the final answer.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To `Status`.
    Status(Box<Status>),
    /// To `Stats`.
    Stats(Box<crate::stats::Stats>),
    /// To `Fsck`.
    Fsck(crate::fsck::Report),
    /// To `Sync`.
    Synced,
    /// To `Reopen`.
    Reopened,
    /// To `Resize`.
    Resized(fstitch_formats::resize::Resized),
    /// To `Cut`.
    Cut(Cut),
    /// To `Graph`.
    Graph(Box<graph::Graph>),
    /// To `Send`, before the stream.
    Sending,
    /// To `Trace`, first.
    TraceBegan(trace::Head),
    /// To `Trace`: what has happened since the last answer.
    Trace(trace::Batch),
    /// To `Trace`, last: that was all.
    TraceEnded,
    /// To `Health`.
    Health(Box<crate::shepherd::health::Health>),
    /// To `Whose`.
    Whose(crate::shepherd::whose::Whose),
    /// To `Disks` and `Disk`.
    Disks {
        /// How they stand.
        list: crate::disks::DiskList,
        /// What was done; empty after `Disks`.
        said: String,
    },
    /// To `Snapshots`.
    Snapshots(Vec<fstitch_formats::Snapshot>),
    /// To `Scrub`.
    Scrub(crate::shepherd::scrub::Found),
    /// To `Wait`: all is on the medium, and the process is about to end.
    Unmounted,
    /// Still at work.
    Progress(Progress),
    /// The request failed.
    Error(String),
}

/// What a power cut did to the blocks that no flush had made stable.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Cut {
    /// Their newest versions arrived.
    pub survived: u64,
    /// They hold older versions, or parts of several.
    pub lost: u64,
    /// Other blocks with changes of which nothing had been written yet to where they belong. Daemons before this field do not send
    /// it.
    #[serde(default)]
    pub unwritten: u64,
}

/// How far an unmount has come.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of blocks that are not on the medium yet.
    pub dirty_bytes: u64,
}

/// A mount, for `status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Status {
    /// Version of the program that serves it.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The image file or block device.
    pub image: String,
    /// Where the volume starts in it, in bytes.
    pub offset_bytes: u64,
    /// Where it is mounted.
    pub mountpoint: String,
    /// The format.
    pub format: String,
    /// The consistency mechanism in force.
    pub consistency: String,
    /// Which way requests come from the kernel: `io_uring` or `device`; empty where none do. Daemons before this field do not
    /// send it.
    #[serde(default)]
    pub transport: String,
    /// What is done about idle processors; null where no requests come. Daemons before this field do not send it.
    #[serde(default)]
    pub awake: Option<awake::Awake>,
    /// Whether the kernel keeps writes back (`writeback_cache`), of which this daemon then does not know.
    #[serde(default)]
    pub writeback_cache: bool,
    /// Whether it accepts no changes because it was mounted so.
    pub read_only: bool,
    /// Whether it had not been unmounted cleanly before this mount.
    pub was_unclean: bool,
    /// What the background check after an unclean unmount does or found.
    pub recovery: String,
    /// Why the volume accepts no more changes after a failure; empty while all is well.
    pub failure: String,
    /// Bytes of blocks that are not on the medium yet.
    pub dirty_bytes: u64,
    /// Bytes of writes that a cut may take; 0 unless `fstitch crash mount` made the mount. Daemons before this field
    /// do not send it.
    #[serde(default)]
    pub volatile_bytes: u64,
    /// The journal, while one is kept. Daemons before this field do not send it.
    #[serde(default)]
    pub journal: Option<Journal>,
    /// The stack that the volume belongs to, if it is served with others. Daemons before this field do not send it.
    #[serde(default)]
    pub stack: Option<stack::StackStatus>,
    /// The disks, if the volume is on several. Daemons before this field do not send it.
    #[serde(default)]
    pub array: Option<crate::disks::DiskList>,
}

/// How a mount's journal is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Of these, blocks that recovery would read.
    pub used_blocks: u32,
    /// Blocks that the running transaction has changed.
    pub running_blocks: u64,
    /// Transactions that are closed, but not all home.
    pub transactions: u64,
    /// Transactions closed since the mount.
    pub transactions_closed: u64,
    /// Blocks that they took in the log.
    pub blocks_logged: u64,
    /// Block numbers that they revoked.
    pub blocks_revoked: u64,
}

impl From<fstitch_patch::JournalStatus> for Journal {
    fn from(status: fstitch_patch::JournalStatus) -> Self {
        let count = |n: usize| to_u64(n);
        Self {
            log_blocks: status.log_blocks,
            used_blocks: status.used_blocks,
            running_blocks: count(status.running_blocks),
            transactions: count(status.transactions),
            transactions_closed: status.closed,
            blocks_logged: status.logged_blocks,
            blocks_revoked: status.revoked,
        }
    }
}

/// The directory of this user's control sockets.
pub fn runtime_dir() -> PathBuf {
    let uid = rustix::process::geteuid();
    // Who is root only in a user namespace may be root over files nowhere outside of it.
    if uid.is_root() && std::fs::metadata("/run").is_ok_and(|run| run.uid() == 0) {
        return PathBuf::from("/run/fstitch");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("fstitch"),
        _ => PathBuf::from(format!("/tmp/fstitch-{}", outer_uid(uid.as_raw()))),
    }
}

/// What this user is outside of the user namespace that we are in.
fn outer_uid(uid: u32) -> u32 {
    outer(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default(), uid)
}

/// The same by a table of lines with first user inside, first user outside and count.
fn outer(table: &str, uid: u32) -> u32 {
    let mut rows = table.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let at = uid.checked_sub(inside).filter(|&at| at < count)?;
        outside.checked_add(at)
    });
    rows.next().unwrap_or(uid)
}

/// Makes the directory for this user alone, and refuses one that somebody else prepared.
fn prepare_runtime_dir() -> Result<PathBuf> {
    let dir = runtime_dir();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("making {}", dir.display()))?;
    let meta = dir.symlink_metadata()?;
    let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    ensure!(ours, "{} does not belong to this user", dir.display());
    Ok(dir)
}

/// The name of the socket that serves `mountpoint` (an absolute path without symbolic links): the 64-bit FNV-1a
/// hash of the path.
pub fn socket_name(mountpoint: &Path) -> String {
    let hash = mountpoint.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}.sock")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_protocol_is_what_the_document_says() {
        let line = |request: &Request| serde_json::to_string(request).unwrap();
        assert_eq!(line(&Request::Status), r#"{"command":"status"}"#);
        assert_eq!(line(&Request::Fsck { repair: true }), r#"{"command":"fsck","repair":true}"#);
        assert_eq!(line(&Request::Graph { limit: 9 }), r#"{"command":"graph","limit":9}"#);
        assert_eq!(line(&Request::Trace), r#"{"command":"trace"}"#);
        let change = Some(SnapshotChange::Create("a".into()));
        let made = r#"{"command":"snapshots","change":{"create":"a"}}"#;
        assert_eq!(line(&Request::Snapshots { change }), made);
        let listed: Request = serde_json::from_str(r#"{"command":"snapshots"}"#).unwrap();
        assert_eq!(listed, Request::Snapshots { change: None });
        assert_eq!(serde_json::to_string(&Response::TraceEnded).unwrap(), r#""trace-ended""#);
        let cut = Request::Cut { survivors: "seed=3".into(), flush: 2 };
        assert_eq!(line(&cut), r#"{"command":"cut","survivors":"seed=3","flush":2}"#);
        let cut = serde_json::to_string(&Response::Cut(Cut { survived: 1, lost: 2, unwritten: 3 })).unwrap();
        assert_eq!(cut, r#"{"cut":{"survived":1,"lost":2,"unwritten":3}}"#);
        assert_eq!(serde_json::to_string(&Response::Unmounted).unwrap(), r#""unmounted""#);
        let progress = Response::Progress(Progress { dirty_bytes: 5 });
        assert_eq!(serde_json::to_string(&progress).unwrap(), r#"{"progress":{"dirty_bytes":5}}"#);
    }

    /// The names that stand between backquotes in a section of the page.
    fn documented(section: &str) -> BTreeSet<String> {
        let page = include_str!("../../../../docs/control-socket.md");
        let head = format!("\n## {section}\n");
        let text = page.split_once(&head).map(|(_, rest)| rest.split("\n## ").next().unwrap_or_default());
        let text = text.unwrap_or_else(|| panic!("the page has no section {section}"));
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// All keys of a value, those of objects inside it included.
    fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            found.insert(key.clone());
            keys(value, found);
        }
        value.as_array().into_iter().flatten().for_each(|value| keys(value, found));
    }

    /// Prevents a page that lacks what the socket says: it is the contract.
    #[test]
    fn the_page_lists_every_field() {
        let listed = |section: &str, value: serde_json::Value| {
            let mut said = BTreeSet::new();
            keys(&value, &mut said);
            let page = documented(section);
            let lacking: Vec<&String> = said.difference(&page).collect();
            assert!(lacking.is_empty(), "docs/control-socket.md, section {section}, lacks {lacking:?}");
        };
        let journal = Some(Journal::default());
        let stack = stack::StackStatus {
            devices: vec![stack::DeviceStatus::default()],
            volumes: vec![stack::VolumeStatus::default()],
            ..stack::StackStatus::default()
        };
        let disks = vec![Default::default()];
        let array = Some(crate::disks::DiskList { disks, ..Default::default() });
        let status = Status { journal, stack: Some(stack), array: array.clone(), ..Status::default() };
        listed("`status`", serde_json::to_value(status).unwrap());
        listed("`stats`", serde_json::to_value(crate::stats::Stats::default()).unwrap());
        listed("`graph`", serde_json::to_value(full_graph()).unwrap());
        let head = trace::Head { fstitch_trace: trace::VERSION, ..trace::Head::default() };
        listed("`trace`", serde_json::to_value(head).unwrap());
        listed("`fsck`", serde_json::to_value(crate::fsck::Report::default()).unwrap());
        let health = crate::shepherd::health::Health {
            counts: vec![crate::shepherd::health::Count::default()],
            damaged: named(),
            short: named(),
            array: array.clone(),
            ..Default::default()
        };
        listed("`health`", serde_json::to_value(health).unwrap());
        listed("`disks`", serde_json::to_value(array).unwrap());
        listed("`scrub`", serde_json::to_value(crate::shepherd::scrub::Found::default()).unwrap());
        let page = documented("The protocol").into_iter().collect::<String>();
        for key in ["survived", "lost", "unwritten", "dirty_bytes"] {
            assert!(page.contains(key), "the protocol lacks {key}");
        }
    }

    /// Somebody to whom something belongs.
    fn named() -> crate::shepherd::whose::Whose {
        let owners = vec![crate::shepherd::whose::Named::default()];
        crate::shepherd::whose::Whose { owners, ..Default::default() }
    }

    /// A moment with one of everything.
    fn full_graph() -> graph::Graph {
        let whys = [
            graph::Why::Patch {
                patch: 1,
                before: 2,
                block: 3,
                kind: kind::Kind::Inode,
                standing: graph::Standing::Ready,
                group: None,
                others: 0,
            },
            graph::Why::Transaction { patch: 1, volume: 0, sequence: 1, operations: 1, closing: false },
            graph::Why::Held { patch: 1, held: 2, group: None },
            graph::Why::Chain { patch: 1, empty: 2 },
            graph::Why::Elsewhere { patch: 1, record: 2 },
            graph::Why::Failed { error: "EIO".into() },
        ];
        let block = |why| graph::Block {
            why: Some(why),
            patches: vec![graph::Patch::default()],
            ..graph::Block::default()
        };
        graph::Graph {
            epoch: Some(graph::Epoch::default()),
            blocks: whys.map(block).into(),
            empties: vec![graph::Patch::default()],
            edges: vec![graph::Edge::default()],
            journals: vec![graph::Journal {
                running: Some(graph::Running::default()),
                closed: vec![graph::Closed::default()],
                ..graph::Journal::default()
            }],
            patchgroups: vec![graph::Group::default()],
            ..graph::Graph::default()
        }
    }

    #[test]
    fn users_of_namespaces_are_known_by_what_they_are_outside() {
        assert_eq!(outer("         0       1000          1\n         1     100000      65536\n", 0), 1000);
        assert_eq!(outer("0 1000 1\n1 100000 65536\n", 5), 100_004);
        assert_eq!(outer("0 0 4294967295\n", 7), 7);
        assert_eq!(outer("", 7), 7);
    }

    #[test]
    fn socket_names_are_stable() {
        assert_eq!(socket_name(Path::new("")), "cbf29ce484222325.sock");
        assert_eq!(socket_name(Path::new("a")), "af63dc4c8601ec8c.sock");
    }
}
