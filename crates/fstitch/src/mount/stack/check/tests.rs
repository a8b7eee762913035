//! Each refusal of a stack file, by its line and its words.

use std::path::Path;

use fstitch_core::Consistency;

use super::*;

/// Figure 6, inner volume first.
const FIGURE_6: &str = r#"
[[volume]]
name = "home"
device = "image"
journal = "journal"
consistency = "full"
mount = "/mnt/home"
options = "noatime,nosuid"

[[device]]
name = "image"
volume = "root"
file = "home.img"

[[device]]
name = "journal"
volume = "root"
file = "//dir/./journal"

[[device]]
name = "disk"
path = "disk.img"
partition = 2

[[volume]]
name = "root"
device = "disk"
mount = "root"
"#;

fn stack(text: &str) -> Result<Stack> {
    Stack::new(&Source::of(text))
}

#[track_caller]
fn refused(text: &str, line: usize, said: &str) {
    let error = stack(text).unwrap_err().to_string();
    assert!(error.starts_with(&format!("/stacks/a.toml:{line}: ")), "{error}");
    assert!(error.contains(said), "{error}");
}

/// Figure 6 with one text in place of another.
fn with(old: &str, new: &str) -> String {
    assert!(FIGURE_6.contains(old), "{old}");
    FIGURE_6.replacen(old, new, 1)
}

#[test]
fn figure_6_is_understood() {
    let stack = stack(&format!("cache_size = \"32M\"\nwrite_back_age = \"200ms\"\n{FIGURE_6}")).unwrap();
    assert_eq!((stack.cache_size, stack.write_back_age), (32 << 20, Duration::from_millis(200)));
    let names: Vec<&str> = stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["root", "home"], "outer ones first");
    let home = &stack.volumes[1];
    assert_eq!(home.options.consistency, Some(Consistency::Full));
    assert_eq!(home.options.kernel, ["nosuid"]);
    let place = |device: usize| &stack.devices[device].place;
    assert_eq!(place(home.device), &Place::File { volume: 0, path: "/home.img".into() });
    assert_eq!(place(home.journal.unwrap()), &Place::File { volume: 0, path: "/dir/journal".into() });
    assert_eq!(
        place(stack.volumes[0].device),
        &Place::Medium { path: "/stacks/disk.img".into(), part: Part::Partition(2) }
    );
    assert_eq!(stack.volumes[0].mountpoint.as_deref(), Some(Path::new("/stacks/root")));
    assert_eq!((stack.outer(0), stack.outer(1)), (BTreeSet::new(), BTreeSet::from([0])));
}

#[test]
fn a_volume_for_devices_alone_needs_no_mount_point() {
    let stack = stack(&with("mount = \"root\"\n", "")).unwrap();
    assert_eq!(stack.volumes[0].mountpoint, None);
    refused(&with("mount = \"/mnt/home\"\n", ""), 3, "volume `home` has no `mount`, and no device is in it");
}

#[test]
fn names_are_known_and_distinct() {
    refused(
        &with("device = \"image\"", "device = \"imag\""),
        4,
        "volume `home`: there is no device `imag` (there is disk, image, journal)",
    );
    refused(
        &with("volume = \"root\"", "volume = \"rot\""),
        12,
        "device `image`: there is no volume `rot` (there is home, root)",
    );
    refused(&with("journal = \"journal\"", "journal = \"j\""), 5, "there is no device `j`");
    refused(&with("name = \"disk\"", "name = \"image\""), 21, "there are two devices `image`");
    refused(&with("name = \"root\"", "name = \"home\""), 26, "there are two volumes `home`");
    refused(&with("name = \"disk\"", "name = \" \""), 21, "a device without a name");
}

#[test]
fn devices_are_in_one_place() {
    refused(&with("path = \"disk.img\"\n", ""), 21, "it needs either `path`, or `volume` and `file`");
    refused(&with("file = \"home.img\"\n", ""), 11, "it needs either `path`, or `volume` and `file`");
    refused(&with("file = \"home.img\"\n", "file = \"a\"\npath = \"b\"\n"), 11, "it needs either");
    refused(&with("file = \"home.img\"\n", "file = \"a\"\noffset = \"1M\"\n"), 11, "go with `path`");
    refused(&with("file = \"home.img\"\n", "file = \"/\"\n"), 13, "`file` names no file");
    refused(
        &with("partition = 2\n", "partition = 2\noffset = \"1M\"\n"),
        21,
        "either `partition` or `offset`",
    );
    refused(&with("partition = 2\n", "offset = \"1X\"\n"), 23, "`X` is not a unit of size");
    refused(
        &with("file = \"//dir/./journal\"", "file = \"home.img\""),
        16,
        "`image` and `journal` are the same",
    );
}

#[test]
fn every_device_carries_one_thing() {
    refused(
        &with("device = \"disk\"", "device = \"image\""),
        27,
        "volume `root` is on device `image`, as is volume `home`",
    );
    refused(
        &with("journal = \"journal\"", "journal = \"image\""),
        5,
        "the journal of `home` is on device `image`, as is volume `home`",
    );
    refused(&with("journal = \"journal\"\n", ""), 15, "nothing is on device `journal`");
}

#[test]
fn no_volume_is_inside_itself() {
    refused(&with("volume = \"root\"", "volume = \"home\""), 3, "inside itself, by way of its files: `home`");
    let text = with("path = \"disk.img\"\npartition = 2\n", "volume = \"home\"\nfile = \"disk.img\"\n");
    refused(&text, 3, "`home`, `root`");
}

#[test]
fn mount_points_are_distinct() {
    refused(&with("mount = \"root\"", "mount = \"/mnt/home/\""), 28, "have the same mount point /mnt/home");
}

#[test]
fn options_are_those_of_a_volume() {
    let options = |list: &str| with("noatime,nosuid", list);
    refused(&options("nosuchthing"), 8, "volume `home`: `nosuchthing` is not an option of fstitch");
    refused(&options("offset=1M"), 8, "`offset` is a key of its device");
    refused(&options("partition=1"), 8, "`partition` is a key of its device");
    refused(&options("journal_path=/x"), 8, "`journal_path` is the key `journal`");
    refused(&options("consistency=soft"), 8, "`consistency` is the key `consistency`");
    refused(&options("cache_size=1M"), 8, "`cache_size` is a key of the whole stack");
    refused(&options("write_back_age=1s"), 8, "`write_back_age` is a key of the whole stack");
    refused(&options("without=hard"), 8, "`without` is no option");
    refused(&options("tree=one"), 8, "`tree` is no option");
    refused(&options("remount"), 8, "`remount` is no option");
    refused(&with("\"full\"", "\"fast\""), 6, "`fast` is no consistency mechanism");
}

#[test]
fn what_accepts_changes_is_not_in_what_does_not() {
    refused(
        &with("mount = \"root\"", "mount = \"root\"\noptions = \"ro\""),
        3,
        "volume `home` accepts changes, but `root`, which it is in, is `ro`",
    );
    stack(&with("noatime,nosuid", "ro").replace("mount = \"root\"", "mount = \"root\"\noptions = \"ro\""))
        .unwrap();
}

#[test]
fn a_stack_of_nothing_is_refused() {
    refused("", 1, "at least one [[volume]]");
    refused(&format!("cache_size = \"much\"\n{FIGURE_6}"), 1, "does not start with a number");
    refused(&format!("write_back_age = \"5 weeks\"\n{FIGURE_6}"), 1, "is not a unit of time");
}
