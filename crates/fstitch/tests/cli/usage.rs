//! Wrong usage ends with an exit code of its own, and what went wrong is said with the word that was wrong and what
//! would be right. Both are tables: a command that is missing here is one that nobody has misused yet.

use std::fs;

use crate::harness::{Place, Ran, fstitch, needs, needs_root};

/// Runs the words of a line of a table, in which `@` stands for the directory of the test.
fn misuse(place: &Place, line: &str) -> Ran {
    fstitch(&line.replace('@', place.text("").trim_end_matches('/')))
}

/// A directory with the volume `a.img`, ext3, and the empty directory `m`.
fn place() -> Place {
    let place = Place::new();
    fstitch(&format!("mkfs ext3 -q {} 16M", place.text("a.img"))).ok();
    place.directory("m");
    place
}

/// What nobody can do, with the word that the message must hold.
const MISUSES: &[(&str, &str)] = &[
    ("", "Usage"),
    ("nosuch", "nosuch"),
    ("--nosuch", "--nosuch"),
    ("mkfs", "Usage"),
    ("mkfs ext5 @/n.img 4M", "ext5"),
    ("mkfs ext2", "<IMAGE>"),
    ("mkfs ext2 @/n.img 64Q", "`Q`"),
    ("mkfs ext2 @/n.img x", "`x`"),
    ("mkfs ext2 @/n.img 99999999999999T", "99999999999999T"),
    ("mkfs ext2 @/n.img 1K", "1 blocks"),
    ("mkfs ext2 -m 101 @/n.img 4M", "101"),
    ("mkfs ext2 -m 51 @/n.img 4M", "51"),
    ("mkfs ext2 -b 1000 @/n.img 4M", "a power of two from 1024 to 65536"),
    ("mkfs ext4 -b 131072 @/n.img 4M", "a power of two from 1024 to 65536"),
    ("mkfs ext2 -I 100 @/n.img 4M", "inodes of 100 bytes"),
    ("mkfs ext2 -I 4096 @/n.img 4M", "inodes of 4096 bytes"),
    ("mkfs ext2 -N 999999999 @/n.img 4M", "999999999 inodes"),
    ("mkfs ext2 -i 1 @/n.img 4M", "1 bytes per inode"),
    ("mkfs ext2 -L a-label-of-more-than-16-bytes @/n.img 4M", "label of more than 16 bytes"),
    ("mkfs ext2 -U nonsense @/n.img 4M", "nonsense"),
    ("mkfs ext2 -O bigalloc @/n.img 4M", "bigalloc"),
    ("mkfs ext2 -E nosuch @/n.img 4M", "nosuch"),
    ("mkfs ext2 -E root_owner=me @/n.img 4M", "root_owner=me"),
    ("mkfs ext2 -E offset=abc @/n.img 4M", "offset=abc"),
    ("mkfs ext2 -r 2 @/n.img 4M", "2"),
    ("mkfs ext2 -r 0 -J size=4 @/n.img 16M", "revision 0"),
    ("mkfs ext3 -J size=1K @/n.img 16M", "journal of 1 blocks"),
    ("mkfs ext3 -J nosuch=1 @/n.img 16M", "nosuch=1"),
    ("mkfs ext2 --offset abc @/n.img 4M", "abc"),
    ("mkfs journal -b 1000 @/n.img 4M", "1000"),
    ("mkfs journal -U x @/n.img 4M", "-U x"),
    ("mkfs journal @/n.img 4X", "`X`"),
    ("mkfs journal @/n.img 4K", "journal"),
    ("mount", "<IMAGE>"),
    ("mount @/a.img", "<DIRECTORY>"),
    ("mount -o foo @/a.img @/m", "`foo`"),
    ("mount -o commit=abc @/a.img @/m", "commit=abc"),
    ("mount -o uid=x @/a.img @/m", "uid=x"),
    ("mount -o offset=x @/a.img @/m", "offset=x"),
    ("mount -o partition=x @/a.img @/m", "partition=x"),
    ("mount -o cache_size=x @/a.img @/m", "cache_size=x"),
    ("mount -o workers=x @/a.img @/m", "workers=x"),
    ("mount -o workers=99 @/a.img @/m", "workers=99"),
    ("mount -o durable_every=x @/a.img @/m", "durable_every=x"),
    ("mount -o without=x @/a.img @/m", "`x`"),
    ("mount -o consistency=fast @/a.img @/m", "`fast`"),
    ("mount -o transport=air @/a.img @/m", "transport=air"),
    ("mount -o fsync=never @/a.img @/m", "fsync=never"),
    ("mount -o remount,ro @/a.img @/m", "mount(8)"),
    ("mount -o writeback_cache,sync @/a.img @/m", "`sync` exclude each other"),
    ("mount --workers 99 @/a.img @/m", "99"),
    ("mount --cache-size 1Q @/a.img @/m", "1Q"),
    ("mount --offset 1 --partition 1 @/a.img @/m", "--partition"),
    ("mount --optimizations speed @/a.img @/m", "`speed`"),
    ("mount --stack @/s.toml @/a.img @/m", "--stack"),
    ("mount --json @/a.img @/m", "--check"),
    ("crash mount -o foo @/a.img @/m", "`foo`"),
    ("crash mount --level M1 @/a.img @/m", "M1"),
    ("crash cut @/m --survivors some", "seed=N"),
    ("crash run nosuch", "nosuch"),
    ("crash run seq1 --fs ext3 --consistency soft", "ext3-soft"),
    ("crash run seq1 --inside nosuch", "nosuch"),
    ("crash run seq1/0 --range 0..1", "--range"),
    ("crash run seq1 --range 5", "FIRST..END"),
    ("crash groups --programs 5", "FIRST..END"),
    ("crash replay abc", "abc"),
    ("crash show abc", "abc"),
    ("crash minimise abc", "abc"),
    ("crash replay-log @/a.img", "<LOG>"),
    ("umount", "<MOUNTPOINT>"),
    ("umount a b", "'b'"),
    ("umount --stack --lazy a", "--lazy"),
    ("ls", "<IMAGE:/PATH>"),
    ("ls @/m", "ls(1)"),
    ("ls --offset x @/a.img", "'x'"),
    ("ls --partition 1 --offset 1 @/a.img", "--partition"),
    ("cat @/a.img", "IMAGE:/path"),
    ("cp", "<SOURCE>"),
    ("cp a", "<DESTINATION>"),
    ("cp @/x @/y", "/x nor"),
    ("cp --owner me @/a.img @/a.img:/", "UID:GID"),
    ("info", "<IMAGE[:/PATH]>"),
    ("tune @/a.img", "--journal"),
    ("tune --journal=1K @/a.img", "1024 blocks"),
    ("tune --journal --no-journal @/a.img", "--no-journal"),
    ("journal", "Usage"),
    ("journal dump", "<IMAGE>"),
    ("status a b", "'b'"),
    ("stats", "<MOUNTPOINT>"),
    ("depend", "<COMMAND>"),
    ("order", "<CMD>"),
    ("order --durable-every 5 true", "5s"),
    ("bench --only nothing", "nothing"),
    ("bench --contenders ext5", "ext5"),
    ("bench --media tape", "tape"),
    ("bench --image-size 1K", "--image-size"),
    ("bench --transport air", "air"),
    ("demo --kills 0", "0"),
    ("completions nosuch", "nosuch"),
    ("man a b", "'b'"),
];

#[test]
fn wrong_usage_ends_with_two_and_names_what_is_wrong() {
    let place = place();
    for (line, said) in MISUSES {
        let ran = misuse(&place, line);
        assert_eq!(ran.code, 2, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(said), "{line}: {}", ran.err);
    }
    assert!(!place.at("n.img").exists(), "what was refused has made nothing");
}

#[test]
fn wrong_usage_of_fsck_has_the_code_of_fsck() {
    for line in ["fsck", "fsck -n -y x", "fsck --offset x a", "-v fsck --nosuch a"] {
        assert_eq!(fstitch(line).code, 16, "{line}");
    }
}

/// What does not work although it was asked for rightly, with what the message must hold: the culprit, and what to do
/// where that is not plain.
const FAILURES: &[(&str, &[&str])] = &[
    ("info @/nofile", &["@/nofile"]),
    ("ls @/nofile", &["@/nofile"]),
    ("ls @/a.img:/nofile", &["/nofile"]),
    ("cat @/a.img:/nofile", &["/nofile"]),
    ("cat @/a.img:/", &["/ is not a regular file"]),
    ("cp @/nofile @/a.img:/", &["@/nofile"]),
    ("cp @/m @/nofile:/", &["@/nofile"]),
    ("cp @/m @/a.img:/", &["@/m: it is a directory", "-r"]),
    ("cp @/a.img:/nofile @/x", &["/nofile"]),
    ("tune -j @/nofile", &["@/nofile"]),
    ("tune -j @/a.img", &["@/a.img", "second journal"]),
    ("tune --no-journal --journal-device @/nofile @/a.img", &["@/nofile"]),
    ("journal dump @/nofile", &["@/nofile"]),
    ("mkfs ext2 @/nowhere/x 4M", &["@/nowhere/x"]),
    ("mkfs ext2 @/n.img", &["@/n.img does not exist", "mkfs ext2 @/n.img 64M"]),
    ("mkfs ext3 @/n.img", &["@/n.img does not exist", "mkfs ext3 @/n.img 64M"]),
    ("mkfs ext2 @/a.img 4M", &["@/a.img seems to hold", "--force"]),
    ("mkfs ext3 -J device=@/nofile @/n.img 16M", &["@/nofile"]),
    ("mkfs ext2 @/n.img 7000000T", &["@/n.img"]),
    ("mount @/nofile @/m", &["@/nofile"]),
    ("mount @/a.img @/nodir", &["@/nodir does not exist", "make the directory"]),
    ("mount -o journal_path=@/nofile @/a.img @/m", &["@/nofile"]),
    ("mount --stack @/nofile", &["@/nofile"]),
    ("umount @/m", &["@/m is not a mount point", "fstitch status"]),
    ("status @/m", &["@/m", "fstitch status"]),
    ("stats @/m", &["@/m", "fstitch status"]),
    ("crash cut @/m", &["@/m", "fstitch status"]),
    ("crash replay-log @/nofile @/nolog", &["@/nofile"]),
    ("crash replay-log @/a.img @/nolog", &["@/nolog"]),
    ("depend --on /proc true", &["/proc", "--on"]),
    ("order --on @/nodir true", &["@/nodir"]),
    ("bench --from @/nofile", &["@/nofile"]),
    ("man /proc/nowhere", &["/proc/nowhere"]),
];

#[test]
fn failures_name_the_culprit_and_what_to_do() {
    let place = place();
    let here = place.text("").trim_end_matches('/').to_owned();
    for (line, held) in FAILURES {
        let ran = misuse(&place, line);
        assert!([1, 2].contains(&ran.code), "{line}: {}{}", ran.out, ran.err);
        for word in *held {
            assert!(ran.err.contains(&word.replace('@', &here)), "{line}: {word} is not in {}", ran.err);
        }
    }
    assert!(!place.at("n.img").exists(), "an image that could not be made is left");
}

#[test]
fn an_image_that_was_grown_in_vain_is_as_short_as_before() {
    let place = Place::new();
    fs::write(place.at("n.img"), vec![0; 1 << 20]).unwrap();
    fstitch(&format!("mkfs ext2 -N 999999999 {} 4M", place.text("n.img"))).refused(2, "999999999");
    assert_eq!(fs::metadata(place.at("n.img")).unwrap().len(), 1 << 20);
}

#[test]
fn what_may_only_be_read_is_said_to_be_with_what_to_do() {
    if !needs_root() || !needs("setpriv") {
        return;
    }
    let place = place();
    let open = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(place.at(name), mode).unwrap();
    };
    fs::copy(crate::harness::PROGRAM, place.at("fstitch")).unwrap();
    open(".", 0o755);
    open("a.img", 0o444);
    let nobody = |line: &str| {
        let line = line.replace('@', place.text("").trim_end_matches('/'));
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups"].into_iter().map(str::to_owned);
        let words = words.chain([place.text("fstitch")]).chain(line.split_whitespace().map(str::to_owned));
        crate::harness::run("setpriv", words.collect::<Vec<_>>())
    };
    let said = "this user may read";
    nobody("mount @/a.img @/m").refused(1, "`-o ro` mounts it for reading");
    nobody("cp @/fstitch @/a.img:/").refused(1, said);
    nobody("tune --no-journal @/a.img").refused(1, said);
    nobody("mkfs ext2 -F @/a.img").refused(1, said);
    nobody("fsck -fy @/a.img").refused(8, said);
    nobody("ls @/a.img").ok();
    nobody("fsck -fn @/a.img").ok();
}
