//! The `-o` list of a mount.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use fstitch_core::Consistency;
use fstitch_formats::Durability;
use fstitch_fuse::{AwakeMode, Transport};
use fstitch_layers::Patterns;
use fstitch_patch::Optimizations;

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// When it is older than a day or than the last change.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Always,
}

/// Everything that `-o` can say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Accept no changes.
    pub read_only: bool,
    /// Every operation is stable before it returns.
    pub sync: bool,
    /// `fsync` only orders, whoever calls it.
    pub ordered_fsync: bool,
    /// With that: how often everything is made stable.
    pub durable_every: Option<Duration>,
    /// When access times change.
    pub atime: Atime,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions; on unless `nodefault_permissions` says otherwise.
    pub no_default_permissions: bool,
    /// The mount goes when its daemon does, even if that is killed.
    pub auto_unmount: bool,
    /// Whether idle processors are kept awake while requests come.
    pub awake: AwakeMode,
    /// The kernel keeps writes back, and nobody orders them.
    pub writeback_cache: bool,
    /// Which way the kernel's requests come.
    pub transport: Transport,
    /// Everything appears to belong to this user.
    pub uid: Option<u32>,
    /// Everything appears to belong to this group.
    pub gid: Option<u32>,
    /// Where the volume starts in the image, in bytes.
    pub offset: u64,
    /// The partition that the volume is in, instead of an offset.
    pub partition: Option<u32>,
    /// Bytes of memory for the cache.
    pub cache_size: Option<u64>,
    /// Threads that answer requests.
    pub workers: Option<usize>,
    /// Age at which changes are written.
    pub write_back_age: Option<Duration>,
    /// The consistency mechanism; what suits the volume if none is named.
    pub consistency: Option<Consistency>,
    /// What an operation survives, for volumes that give the choice.
    pub durability: Option<Durability>,
    /// Age at which a journal's transaction is committed.
    pub commit_interval: Option<Duration>,
    /// The optimisations to switch off.
    pub without: Vec<String>,
    /// Change the options of an existing mount.
    pub remount: bool,
    /// Do not reclaim in the background what a crash left behind.
    pub no_recovery: bool,
    /// The device of an external journal.
    pub journal: Option<PathBuf>,
    /// What is run on faults of which the volume's policy says `notify`.
    pub on_fault: Option<String>,
    /// Bytes a second that are written to a disk that is rebuilt.
    pub rebuild_rate: Option<u64>,
    /// The snapshot or clone of the volume that is mounted by itself.
    pub tree: Option<String>,
    /// Names are found whatever their case.
    pub casefold: bool,
    /// Patterns of names that do not exist.
    pub hide: Vec<String>,
    /// Options for the kernel (`nosuid`, `nodev`, `noexec`, …).
    pub kernel: Vec<String>,
}

/// Where [`super::OPTIONS_HELP`] says what a word means.
const ABOUT_FROM: usize = 33;

/// The words of `-o` as [`super::OPTIONS_HELP`] shows them, each with what it means.
pub fn option_terms() -> Vec<(&'static str, String)> {
    let mut terms: Vec<(&'static str, String)> = Vec::new();
    let lines = super::OPTIONS_HELP.lines().skip(1).take_while(|line| !line.is_empty());
    for (term, about) in lines.map(columns) {
        match (term.trim(), terms.last_mut()) {
            ("", Some((_, said))) => {
                said.push(' ');
                said.push_str(about.trim());
            }
            (term, _) => terms.push((term, about.trim().to_owned())),
        }
    }
    terms
}

/// The two columns of a line. It is counted in characters, as people see it.
fn columns(line: &str) -> (&str, &str) {
    let at = line.char_indices().nth(ABOUT_FROM).map_or(line.len(), |(at, _)| at);
    line.split_at(at)
}

/// The values of words that have few.
const VALUES: [&str; 16] = [
    "consistency=soft",
    "consistency=ordered",
    "consistency=metadata",
    "consistency=full",
    "consistency=sync",
    "consistency=async",
    "durability=power",
    "durability=process",
    "fsync=ordered",
    "fsync=durable",
    "awake=auto",
    "awake=on",
    "awake=off",
    "transport=auto",
    "transport=device",
    "transport=io_uring",
];

/// The words of `-o` that a shell offers: with `=` at the end where a value is the user's to choose.
pub fn list_words() -> impl Iterator<Item = &'static str> {
    let terms = option_terms().into_iter().flat_map(|(term, _)| term.split(", "));
    let terms = terms.filter(|term| !term.contains('…'));
    terms.flat_map(|term| {
        let name = term.split_inclusive('=').next().unwrap_or(term);
        let values: Vec<&str> =
            VALUES.into_iter().filter(|value| name.ends_with('=') && value.starts_with(name)).collect();
        if values.is_empty() { vec![name] } else { values }
    })
}

/// Takes any list, and tells shells which words there are.
#[derive(Clone)]
pub struct ListParser;

impl TypedValueParser for ListParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(list_words().map(PossibleValue::new)))
    }
}

/// Options that mean something to other programs than us, and that a mount helper is handed all the same.
const FOR_OTHERS: [&str; 14] = [
    "auto", "noauto", "user", "nouser", "users", "group", "owner", "nofail", "_netdev", "defaults", "rw",
    "loop", "async", "nonempty",
];
/// Generic options of mount(8) that ask for nothing beyond what happens anyway, or that may lawfully be ignored.
const WITHOUT_EFFECT: [&str; 11] = [
    "diratime",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "symfollow",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "silent",
    "loud",
];
/// Options that the kernel enforces.
const FOR_KERNEL: [&str; 8] = ["suid", "nosuid", "dev", "nodev", "exec", "noexec", "lazytime", "nolazytime"];
/// Prefixes of options that carry a value for other programs.
const PREFIXES_FOR_OTHERS: [&str; 7] = ["x-", "X-", "comment=", "uhelper=", "helper=", "subtype=", "fsname="];
/// What the kernel's table of mounts shows beside our own words. mount(8) hands it back when it remounts.
const PREFIXES_OF_KERNEL: [&str; 5] = ["user_id=", "group_id=", "rootmode=", "max_read=", "blksize="];

/// How many threads may serve a mount.
pub fn checked_workers(workers: usize) -> Result<usize, String> {
    match workers {
        1..=16 => Ok(workers),
        _ => Err(format!("{workers} workers: 1 to 16 are possible")),
    }
}

impl Options {
    /// Adds a comma-separated list. With `sloppy`, unknown options are ignored as `mount -s` asks.
    pub fn add(&mut self, list: &str, sloppy: bool) -> Result<(), String> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let known = self.add_one(option).map_err(|why| name_culprit(why, option))?;
            if !known && !sloppy {
                return Err(format!(
                    "`{option}` is not an option of fstitch; `fstitch mount --help` lists them"
                ));
            }
        }
        Ok(())
    }

    /// Adds one option; false if it is unknown.
    fn add_one(&mut self, option: &str) -> Result<bool, String> {
        if let Some((name, value)) = option.split_once('=')
            && self.add_value(name, value)?
        {
            return Ok(true);
        }
        match option {
            "ro" => self.read_only = true,
            // What asks for changes of directories alone to be stable gets more than it asks for.
            "sync" | "dirsync" => self.sync = true,
            "relatime" | "atime" => self.atime = Atime::Relative,
            "noatime" => self.atime = Atime::Never,
            "strictatime" => self.atime = Atime::Always,
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.no_default_permissions = false,
            "nodefault_permissions" => self.no_default_permissions = true,
            "auto_unmount" => self.auto_unmount = true,
            "awake" => self.awake = AwakeMode::On,
            "writeback_cache" => self.writeback_cache = true,
            "remount" => self.remount = true,
            "casefold" => self.casefold = true,
            "norecovery" => self.no_recovery = true,
            known if FOR_KERNEL.contains(&known) => self.kernel.push(known.to_owned()),
            known if FOR_OTHERS.contains(&known) => self.add_for_others(known),
            known if WITHOUT_EFFECT.contains(&known) => {}
            known => {
                let mut prefixes = PREFIXES_FOR_OTHERS.iter().chain(&PREFIXES_OF_KERNEL);
                return Ok(prefixes.any(|prefix| known.starts_with(prefix)));
            }
        }
        Ok(true)
    }

    /// Some options imply others, as in mount(8).
    fn add_for_others(&mut self, option: &str) {
        match option {
            "rw" => self.read_only = false,
            "async" => self.sync = false,
            "user" | "users" | "group" | "owner" => {
                self.kernel.extend(["nosuid", "nodev"].map(str::to_owned));
            }
            _ => {}
        }
    }

    /// Fails where options exclude each other, as far as it does not take a look at the volume.
    pub fn refuse_contradictions(&self) -> Result<(), String> {
        let others = [
            (self.sync, "sync", "the kernel would still keep writes back that were answered"),
            (
                self.ordered_fsync,
                "fsync=ordered",
                "the kernel would still keep writes back that were answered",
            ),
            (
                self.consistency == Some(Consistency::Full),
                "consistency=full",
                "full keeps contents in the order of the calls, and a kernel that keeps writes back changes it; \
                 `consistency=ordered` goes with it",
            ),
        ];
        match others.into_iter().find(|(is_asked, ..)| self.writeback_cache && *is_asked) {
            Some((_, name, why)) => Err(format!("`writeback_cache` and `{name}` exclude each other: {why}")),
            None => Ok(()),
        }
    }

    fn add_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let number = || value.parse().map_err(|_| format!("`{value}` is not a number"));
        match name {
            "uid" => self.uid = Some(number()?),
            "gid" => self.gid = Some(number()?),
            "partition" => self.partition = Some(number()?),
            "offset" => self.offset = crate::size::bytes(value)?,
            "journal_path" => self.journal = Some(PathBuf::from(value)),
            "hide" => {
                Patterns::new([value]).map_err(|error| error.to_string())?;
                self.hide.push(value.to_owned());
            }
            "tree" => self.tree = Some(value.to_owned()),
            "on_fault" => self.on_fault = Some(value.to_owned()),
            "rebuild_rate" => self.rebuild_rate = Some(crate::size::bytes(value)?),
            "cache_size" => self.cache_size = Some(crate::size::bytes(value)?),
            "workers" => {
                let workers = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
                self.workers = Some(checked_workers(workers)?);
            }
            "transport" => self.transport = value.parse()?,
            "awake" => self.awake = value.parse()?,
            "write_back_age" => self.write_back_age = Some(crate::size::duration(value)?),
            "without" => self.without.extend(value.split(':').map(str::to_owned)),
            "fsync" => {
                self.ordered_fsync = match value {
                    "ordered" => true,
                    "durable" => false,
                    _ => return Err(format!("`fsync={value}`: it is `durable` or `ordered`")),
                }
            }
            "durable_every" => self.durable_every = Some(crate::size::duration(value)?),
            "consistency" => self.consistency = Some(value.parse()?),
            "durability" => self.durability = Some(value.parse()?),
            "commit" => self.commit_interval = Some(crate::size::duration(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Has the message say which option is meant, if it does not.
fn name_culprit(why: String, option: &str) -> String {
    if why.contains(option) { why } else { format!("{why}, in `{option}`") }
}

/// The optimisations without those named.
pub fn optimizations<'a>(off: impl IntoIterator<Item = &'a str>) -> Result<Optimizations, String> {
    let mut chosen = Optimizations::ALL;
    for name in off.into_iter().map(str::trim).filter(|name| !name.is_empty()) {
        match name {
            "hard" => chosen.hard_patches = false,
            "overlap" => chosen.overlap_merging = false,
            "ready" => chosen.ready_lists = false,
            "elimination" => chosen.elimination = false,
            _ => {
                return Err(format!(
                    "`{name}` is not an optimisation; they are hard, overlap, ready and elimination"
                ));
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        let mut options = Options::default();
        options.add(list, false)?;
        Ok(options)
    }

    #[test]
    fn lists_are_parsed() {
        let options = parse("ro,sync,noatime,uid=5,gid=6,offset=1M,cache_size=64M,allow_other").unwrap();
        assert!(options.read_only && options.sync && options.allow_other);
        assert_eq!(options.atime, Atime::Never);
        assert_eq!((options.uid, options.gid, options.offset), (Some(5), Some(6), 1 << 20));
        assert_eq!(options.cache_size, Some(64 << 20));
    }

    #[test]
    fn what_help_shows_and_shells_offer_is_understood() {
        let lines = crate::mount::OPTIONS_HELP.lines().skip(1).take_while(|line| !line.is_empty());
        for line in lines {
            let (term, about) = columns(line);
            assert!(term.ends_with(' ') && term.starts_with("  ") && !about.starts_with(' '), "{line}");
        }
        for word in list_words() {
            let value = ["", "7"].map(|value| format!("{word}{value}"));
            assert!(value.iter().any(|word| parse(word).is_ok()), "{word}");
        }
        let words: Vec<&str> = list_words().collect();
        for word in ["ro", "gid=", "writeback_cache", "consistency=full", "nosuid", "journal_path="] {
            assert!(words.contains(&word), "{word} is not in {words:?}");
        }
    }

    #[test]
    fn the_last_word_counts() {
        assert!(!parse("ro,rw").unwrap().read_only);
        assert_eq!(parse("noatime,relatime").unwrap().atime, Atime::Relative);
    }

    #[test]
    fn keeping_processors_awake_is_automatic_unless_something_is_said() {
        let modes =
            ["", "awake", "awake=on", "awake=off", "awake=off,awake=auto"].map(|l| parse(l).unwrap().awake);
        assert_eq!(modes, [AwakeMode::Auto, AwakeMode::On, AwakeMode::On, AwakeMode::Off, AwakeMode::Auto]);
    }

    #[test]
    fn options_for_others_are_accepted() {
        let options =
            parse("defaults,noauto,nofail,_netdev,x-systemd.automount,nosuid,user,comment=a b").unwrap();
        assert_eq!(options.kernel, ["nosuid", "nosuid", "nodev"]);
    }

    #[test]
    fn what_mount_hands_back_for_a_remount_is_accepted() {
        let options = parse("ro,nosuid,noatime,user_id=0,group_id=0,default_permissions,remount").unwrap();
        assert!(options.remount && options.read_only);
        assert_eq!(options.kernel, ["nosuid"]);
    }

    #[test]
    fn generic_options_are_accepted() {
        let options = parse("nodiratime,norelatime,silent,iversion,dirsync").unwrap();
        assert!(options.sync, "at least as much as dirsync asks for");
    }

    #[test]
    fn unknown_options_are_refused_unless_sloppy() {
        assert!(parse("journal=update").unwrap_err().contains("journal=update"));
        assert!(parse("consistency=fast").unwrap_err().contains("fast"));
        assert!(parse("transport=x").unwrap_err().contains("io_uring"));
        assert!(parse("awake=maybe").unwrap_err().contains("auto"));
        for wrong in
            ["uid=x", "offset=x", "commit=abc", "partition=x", "workers=x", "workers=17", "cache_size=x"]
        {
            assert!(parse(wrong).unwrap_err().contains(&format!("`{wrong}`")), "{wrong}");
        }
        assert!(Options::default().add("nosuchthing", true).is_ok());
    }

    #[test]
    fn what_keeps_writes_back_excludes_what_promises_their_order() {
        let judge = |list: &str| parse(list).unwrap().refuse_contradictions();
        for other in ["sync", "fsync=ordered", "consistency=full"] {
            let said = judge(&format!("writeback_cache,{other}")).unwrap_err();
            assert!(said.contains(&format!("`{other}` exclude each other")), "{said}");
            assert_eq!(judge(other), Ok(()));
        }
        assert_eq!(judge("writeback_cache,consistency=ordered"), Ok(()));
    }

    #[test]
    fn optimisations_are_switched_off_by_name() {
        assert_eq!(optimizations([]), Ok(Optimizations::ALL));
        assert_eq!(optimizations(["hard", "overlap", "ready", "elimination"]), Ok(Optimizations::NONE));
        assert!(optimizations(["speed"]).is_err());
    }
}
